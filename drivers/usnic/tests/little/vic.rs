//! A little VIC in this process: functions whose registers are reached by calls only, so that everything
//! happens in the call that rings the doorbell, in the same order each time. It does what the rail needs, and
//! writes false values where a test sets it up so; how the hardware behaves is for the model in a process of
//! its own (`doorbell-lab model vic`) to show.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_vfio::{Backend, Bar, Claim, Device, Error, Irq, IrqInfo, Range, RegionIndex, RegionInfo};

/// The longest that a reader is held: then `is_held` is over.
const HELD_MOST: Duration = Duration::from_secs(10);

const BAR: usize = 0x1_0000;
const WQ: usize = 0x1000;
const RQ: usize = 0x2000;
const CQ: usize = 0x3000;
const INTR: usize = 0x4000;
const DEVCMD: usize = 0x5000;

/// What is not true of the next completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lie {
    Index(u16),
    Queue(u16),
    Kind(u8),
    Color,
    Twice,
    Lost,
    Cut,
    Spoilt,
    Length(u16),
    NoEnd,
    BadSum,
}

/// How commands are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Everything is done.
    #[default]
    Permissive,
    /// A real usNIC function: filters and queue pairs are refused with error 3.
    Real,
    /// Every command is refused with error 5.
    Hidden,
}

#[derive(Debug, Default)]
pub(crate) struct Function {
    bar: HashMap<usize, u32>,
    memory: Vec<(u64, RegionSlice)>,
    pub(crate) mac: [u8; 6],
    pub(crate) policy: Policy,
    filters: Vec<(u64, Vec<u8>)>,
    pub(crate) pairs: Vec<u32>,
    /// Of each completion queue: tail and colour.
    tails: HashMap<usize, (u32, u8)>,
    pub(crate) lies: VecDeque<Lie>,
    pub(crate) is_gone: bool,
    /// Doorbells of work queues that are ignored.
    pub(crate) deaf: u32,
    pub(crate) stuck_running: Option<u32>,
    pub(crate) commands: Vec<u32>,
    pub(crate) resets: u32,
    pub(crate) no_bufs: u32,
    config: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) functions: Vec<Function>,
    pub(crate) pf: Function,
    next_filter: u64,
    pub(crate) frames: Vec<Vec<u8>>,
    /// The number of coming frames that are lost on their way.
    pub(crate) drops: u32,
    pub(crate) tags: bool,
    /// While set, readers of the physical function's configuration space wait; and how many have.
    pub(crate) is_held: bool,
    pub(crate) holds: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Vic(Arc<Mutex<State>>);

/// One of its functions, as a device.
#[derive(Debug)]
struct Handle {
    vic: Vic,
    /// `None`: the physical one.
    number: Option<usize>,
}

impl Vic {
    /// A VIC with this many functions, each with this many completion queues.
    pub(crate) fn new(functions: usize, completions: u32) -> Self {
        let vic = Self::default();
        let mut state = vic.state();
        for number in 0..functions {
            state.functions.push(function(
                [2, 0, 0, 0, 1, number as u8],
                [0x37, 0x11, 0xcf, 0],
                completions,
            ));
        }
        state.pf = function([2, 0, 0, 0, 0, 0xff], [0x37, 0x11, 0x43, 0], completions);
        state.next_filter = 77;
        drop(state);
        vic
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn claim(&self, number: usize) -> Claim {
        let handle = Handle {
            vic: self.clone(),
            number: Some(number),
        };
        Claim::over(Arc::new(handle)).unwrap()
    }

    pub(crate) fn claim_pf(&self) -> Claim {
        let handle = Handle {
            vic: self.clone(),
            number: None,
        };
        Claim::over(Arc::new(handle)).unwrap()
    }

    /// Waits until it is released.
    fn hold(&self) {
        let begun = Instant::now();
        let mut is_new = true;
        while self.state().is_held {
            if begun.elapsed() > HELD_MOST {
                self.state().is_held = false;
            }
            self.state().holds += u32::from(std::mem::take(&mut is_new));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How many filters and queue pairs of a function there are.
    pub(crate) fn steered(&self, number: usize) -> (usize, usize) {
        let state = self.state();
        (state.filters(number), state.functions[number].pairs.len())
    }

    pub(crate) fn lie(&self, number: usize, lie: Lie) {
        self.state().functions[number].lies.push_back(lie);
    }
}

fn function(mac: [u8; 6], identity: [u8; 4], completions: u32) -> Function {
    let mut bar = HashMap::new();
    let mut at = 8;
    bar.insert(0, 0x766e_6963);
    for (kind, offset, count) in [
        (200, 0, 9),
        (3, CQ, completions),
        (1, WQ, 6),
        (16, DEVCMD, 128),
        (2, RQ, 6),
        (10, INTR, 6),
    ] {
        bar.insert(at, kind);
        bar.insert(at + 4, offset as u32);
        bar.insert(at + 8, count);
        at += 12;
    }
    let mut config = vec![0; 256];
    config[..4].copy_from_slice(&identity);
    Function {
        bar,
        mac,
        config,
        ..Function::default()
    }
}

impl Function {
    fn get(&self, at: usize) -> u32 {
        self.bar.get(&at).copied().unwrap_or(0)
    }

    fn wide(&self, at: usize) -> u64 {
        u64::from(self.get(at)) | u64::from(self.get(at + 4)) << 32
    }

    fn set_wide(&mut self, at: usize, value: u64) {
        self.bar.insert(at, value as u32);
        self.bar.insert(at + 4, (value >> 32) as u32);
    }

    fn find(&self, iova: u64) -> Option<(&RegionSlice, usize)> {
        let inside =
            |(start, memory): &&(u64, RegionSlice)| iova >= *start && iova < *start + memory.len() as u64;
        let (start, memory) = self.memory.iter().find(inside)?;
        Some((memory, (iova - start) as usize))
    }

    fn dma_read(&self, iova: u64, length: usize) -> Vec<u8> {
        let (memory, at) = self.find(iova).expect("mapped");
        let mut bytes = vec![0; length];
        memory.as_shared().skip(at).copy_to(0, &mut bytes);
        bytes
    }

    fn dma_write(&self, iova: u64, bytes: &[u8]) {
        let (memory, at) = self.find(iova).expect("mapped");
        memory.write(at, bytes);
    }

    fn running(&self, block: usize) -> u32 {
        self.stuck_running.unwrap_or_else(|| self.get(block + 0x20))
    }

    fn complete(&mut self, cq: u32, mut entry: [u8; 16]) {
        let lie = self.lies.pop_front();
        match lie {
            Some(Lie::Index(index)) => {
                let flags = u16::from_le_bytes([entry[0], entry[1]]) & 0xf000;
                entry[..2].copy_from_slice(&(flags | index).to_le_bytes());
            }
            Some(Lie::Queue(queue)) => entry[2..4].copy_from_slice(&queue.to_le_bytes()),
            Some(Lie::Kind(kind)) => entry[15] = kind,
            Some(Lie::Cut) => {
                entry[8..10].copy_from_slice(&0x4000u16.to_le_bytes());
                entry[14] = 0x22;
            }
            Some(Lie::Spoilt) => {
                entry[9] |= 0x40;
                entry[14] &= 0x7f;
            }
            Some(Lie::Length(length)) => entry[8..10].copy_from_slice(&length.to_le_bytes()),
            Some(Lie::NoEnd) => entry[1] &= !0x40,
            Some(Lie::BadSum) => entry[14] &= !1,
            Some(Lie::Lost) => return,
            Some(Lie::Color | Lie::Twice) | None => {}
        }
        let times = if matches!(lie, Some(Lie::Twice)) { 2 } else { 1 };
        for _ in 0..times {
            let block = CQ + cq as usize * 128;
            let (tail, color) = self.tails.get(&block).copied().unwrap_or((0, 1));
            let shown = if matches!(lie, Some(Lie::Color)) {
                color ^ 1
            } else {
                color
            };
            entry[15] = entry[15] & 0x7f | shown << 7;
            let size = self.get(block + 8);
            self.dma_write(self.wide(block) + u64::from(tail) * 16, &entry);
            let next = if tail + 1 == size {
                (0, color ^ 1)
            } else {
                (tail + 1, color)
            };
            self.tails.insert(block, next);
        }
    }

    /// A frame arrives at a receive queue.
    fn receive(&mut self, queue: u32, frame: &[u8]) {
        let block = RQ + queue as usize * 128;
        let (fetch, posted, size) = (
            self.get(block + 0x30),
            self.get(block + 0x10),
            self.get(block + 8),
        );
        if self.running(block) == 0 || !self.pairs.contains(&queue) || fetch == posted {
            self.no_bufs += 1;
            return;
        }
        let descriptor = self.dma_read(self.wide(block) + u64::from(fetch) * 16, 16);
        let at = u64::from_le_bytes(descriptor[..8].try_into().unwrap());
        let room = usize::from(u16::from_le_bytes([descriptor[8], descriptor[9]]) & 0x3fff);
        assert_eq!(descriptor[9] >> 6, 0, "a frame begins here");
        let mut frame = frame.to_vec();
        if frame.len() < 60 {
            frame.resize(60, 0);
        }
        let mut entry = [0; 16];
        entry[..2].copy_from_slice(&(fetch as u16 | 0xc000).to_le_bytes());
        entry[2..4].copy_from_slice(&(queue as u16).to_le_bytes());
        if frame.len() > room {
            entry[8..10].copy_from_slice(&0x4000u16.to_le_bytes());
        } else {
            self.dma_write(at, &frame);
            entry[8..10].copy_from_slice(&(frame.len() as u16).to_le_bytes());
            entry[14] = verdict(&frame);
        }
        entry[15] = 7;
        self.bar.insert(block + 0x30, (fetch + 1) % size);
        let cq = self.get(block + 0x18);
        self.complete(cq, entry);
    }

    /// The queue that a frame is steered to.
    fn steered(&self, frame: &[u8]) -> Option<u32> {
        let kind = u16::from_be_bytes([frame[12], frame[13]]);
        let number = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let short = |bytes: &[u8], at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let (_, filter) = self.filters.iter().find(|(_, filter)| match number(filter, 8) {
            0 => number(filter, 12) == 2 && short(filter, 18) == kind,
            1 => {
                kind == 0x0800
                    && frame[23] == 17
                    && number(filter, 24) == u32::from_be_bytes(frame[30..34].try_into().unwrap())
                    && short(filter, 30) == u16::from_be_bytes([frame[36], frame[37]])
            }
            _ => false,
        })?;
        Some(number(filter, 54))
    }
}

/// Sums, made here and apart from the rail's.
fn ones(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum = (sum & 0xffff) + 1;
        }
    }
    sum as u16
}

fn udp_sum(frame: &[u8]) -> u16 {
    let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    let pseudo = ones(&frame[26..34], 17 + length as u32);
    ones(&frame[34..34 + length], u32::from(pseudo))
}

fn verdict(frame: &[u8]) -> u8 {
    let is_udp = frame[12..14] == [8, 0] && frame[14] == 0x45 && frame[23] == 17;
    if !is_udp || usize::from(u16::from_be_bytes([frame[38], frame[39]])) + 34 > frame.len() {
        return 0x80;
    }
    let ip = u8::from(ones(&frame[14..34], 0) == 0xffff) << 3;
    let udp = u8::from(frame[40..42] != [0, 0] && udp_sum(frame) == 0xffff);
    0x80 | 0x20 | 0x02 | ip | udp
}

fn make_sums(frame: &mut [u8]) {
    if frame[12..14] != [8, 0] {
        return;
    }
    frame[24..26].fill(0);
    let ip = !ones(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&ip.to_be_bytes());
    frame[40..42].fill(0);
    let udp = match !udp_sum(frame) {
        0 => 0xffff,
        sum => sum,
    };
    frame[40..42].copy_from_slice(&udp.to_be_bytes());
}

impl State {
    fn of(&mut self, number: Option<usize>) -> &mut Function {
        match number {
            Some(number) => &mut self.functions[number],
            None => &mut self.pf,
        }
    }

    /// Work queue `queue` of a function goes on.
    fn send(&mut self, number: usize, queue: usize) {
        let block = WQ + queue * 128;
        loop {
            let function = &mut self.functions[number];
            let (fetch, posted, size) = (
                function.get(block + 0x30),
                function.get(block + 0x10) & 0xfff,
                function.get(block + 8),
            );
            if fetch == posted || function.running(block) == 0 || !function.pairs.contains(&(queue as u32)) {
                return;
            }
            let descriptor = function.dma_read(function.wide(block) + u64::from(fetch) * 16, 16);
            let at = u64::from_le_bytes(descriptor[..8].try_into().unwrap());
            let length = usize::from(u16::from_le_bytes([descriptor[8], descriptor[9]]) & 0x3fff);
            let flags = u16::from_le_bytes([descriptor[12], descriptor[13]]);
            assert!(flags & 0x1000 != 0 && length > 0, "whole frames");
            let mut frame = function.dma_read(at, length);
            if descriptor[10] >> 2 & 3 == 3 {
                make_sums(&mut frame);
            }
            function.bar.insert(block + 0x30, (fetch + 1) % size);
            if flags & 0x2000 != 0 {
                let cq = function.get(block + 0x18);
                let mut entry = [0; 16];
                entry[..2].copy_from_slice(&(fetch as u16).to_le_bytes());
                entry[2..4].copy_from_slice(&(queue as u16).to_le_bytes());
                function.complete(cq, entry);
            }
            self.switch(number, frame);
        }
    }

    fn switch(&mut self, from: usize, frame: Vec<u8>) {
        if self.drops > 0 {
            self.drops -= 1;
            return;
        }
        self.frames.push(frame.clone());
        let is_group = frame[0] & 1 != 0;
        for number in (0..self.functions.len()).filter(|number| *number != from) {
            if is_group || frame[..6] == self.functions[number].mac {
                self.bring(number, &frame);
            }
        }
    }

    /// A frame comes from the wire to a function.
    pub(crate) fn bring(&mut self, number: usize, frame: &[u8]) {
        let Some(queue) = self.functions[number].steered(frame) else {
            return;
        };
        let mut frame = frame.to_vec();
        if self.tags {
            frame.splice(12..12, [0x81, 0, 0, 0]);
        }
        self.functions[number].receive(queue, &frame);
    }

    fn command(&mut self, number: Option<usize>, word: u32) {
        self.of(number).commands.push(word);
        let argument = |function: &Function, at: usize| function.wide(DEVCMD + 8 + 8 * at);
        let arguments: Vec<u64> = (0..15).map(|at| argument(self.of(number), at)).collect();
        let answer = match word {
            0xc001_c02b => Ok(self.proxy(number, &arguments)),
            word => self.simple(number, number, word, &arguments),
        };
        let function = self.of(number);
        match answer {
            Ok(results) => {
                function.bar.insert(DEVCMD, 0);
                for (at, result) in results.into_iter().enumerate() {
                    function.set_wide(DEVCMD + 8 + 8 * at, result);
                }
            }
            Err(error) => {
                function.bar.insert(DEVCMD, 2);
                function.set_wide(DEVCMD + 8, error);
            }
        }
    }

    fn proxy(&mut self, number: Option<usize>, arguments: &[u64]) -> Vec<u64> {
        assert_eq!(number, None, "a physical function's command");
        let target = arguments[0] as usize;
        if target >= self.functions.len() {
            return vec![2, 1];
        }
        let inner = [&arguments[2..], &[0, 0]].concat();
        match self.simple(None, Some(target), arguments[1] as u32, &inner) {
            Ok(results) => [vec![0], results].concat(),
            Err(error) => vec![2, error],
        }
    }

    /// `memory`: whose memory a filter lies in; `number`: whose command it is.
    fn simple(
        &mut self,
        memory: Option<usize>,
        number: Option<usize>,
        word: u32,
        arguments: &[u64],
    ) -> Result<Vec<u64>, u64> {
        let is_own = memory == number;
        let policy = self.of(number).policy;
        if is_own && policy == Policy::Hidden {
            return Err(5);
        }
        let is_steering = matches!(word, 0xc000_403a | 0x4000_403b | 0x4000_403c | 0x4000_403d);
        if is_own && policy == Policy::Real && is_steering {
            return Err(3);
        }
        match word {
            0xc000_403a => {
                let length = arguments[1] as usize;
                let filter = self.of(memory).dma_read(arguments[0], length);
                if length != 58
                    || self
                        .of(number)
                        .filters
                        .iter()
                        .any(|(_, other)| other[..42] == filter[..42])
                {
                    return Err(1);
                }
                self.next_filter += 1;
                let id = self.next_filter;
                self.of(number).filters.push((id, filter));
                Ok(vec![id])
            }
            0x4000_403b => {
                let filters = &mut self.of(number).filters;
                let before = filters.len();
                filters.retain(|(id, _)| *id != arguments[0]);
                if filters.len() == before {
                    Err(1)
                } else {
                    Ok(vec![])
                }
            }
            0x4000_403c => {
                self.of(number).pairs.push(arguments[0] as u32);
                Ok(vec![])
            }
            0x4000_403d => {
                self.of(number).pairs.retain(|pair| *pair != arguments[0] as u32);
                Ok(vec![])
            }
            0x8000_c009 => {
                let mut mac = [0; 8];
                mac[..6].copy_from_slice(&self.of(number).mac);
                Ok(vec![u64::from_le_bytes(mac)])
            }
            0xc001_c024 => Ok(if arguments[0] == 0xc000_403a {
                vec![1, 1]
            } else {
                vec![0]
            }),
            0xc001_c015 => {
                let mut area = [0; 40];
                for (at, word) in [(4, 1u32), (8, 40_000), (12, 9000)] {
                    area[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                area[..4].copy_from_slice(&(1u32 + 40_000 + 9000).to_le_bytes());
                if arguments[0] != 0 {
                    self.of(memory).dma_write(arguments[0], &area);
                }
                Ok(vec![arguments[0], 40])
            }
            0xc001_c002 => Ok(vec![0x2000]),
            _ => Ok(vec![0, 0]),
        }
    }

    pub(crate) fn filters(&self, number: usize) -> usize {
        self.functions[number].filters.len()
    }

    /// Puts it into the state after a reset of the physical function.
    pub(crate) fn forget(&mut self) {
        for function in &mut self.functions {
            function.filters.clear();
            function.pairs.clear();
        }
    }

    /// Writes an error to the status register of a work queue.
    pub(crate) fn error_status(&mut self, number: usize, queue: usize) {
        self.functions[number].bar.insert(WQ + queue * 128 + 0x50, 5);
    }
}

impl Device for Handle {
    fn name(&self) -> &str {
        "little"
    }

    fn backend(&self) -> Backend {
        Backend::User
    }

    fn is_resettable(&self) -> bool {
        true
    }

    fn region(&self, index: RegionIndex) -> Result<RegionInfo, Error> {
        let length = if Some(index) == RegionIndex::bar(0) {
            BAR as u64
        } else {
            0
        };
        Ok(RegionInfo {
            length,
            readable: true,
            writable: true,
            areas: Vec::new(),
        })
    }

    fn map(&self, region: RegionIndex) -> Result<Bar, Error> {
        Err(Error::OutOfRegion {
            device: "little".to_owned(),
            region,
            at: 0,
            length: 0,
            reason: "cannot be mapped",
        })
    }

    fn read(&self, index: RegionIndex, at: u64, to: &mut [u8]) -> Result<(), Error> {
        if index == RegionIndex::CONFIG && self.number.is_none() {
            self.vic.hold();
        }
        let mut state = self.vic.state();
        let function = state.of(self.number);
        let at = at as usize;
        if index == RegionIndex::CONFIG {
            to.copy_from_slice(&function.config[at..at + to.len()]);
            return Ok(());
        }
        if function.is_gone {
            to.fill(0xff);
            return Ok(());
        }
        let is_running = (WQ..CQ).contains(&at) && at % 128 == 0x28;
        let value = if is_running {
            function.running(at - 0x28).into()
        } else {
            function.wide(at)
        };
        to.copy_from_slice(&value.to_le_bytes()[..to.len()]);
        Ok(())
    }

    fn write(&self, index: RegionIndex, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.vic.state();
        let at = at as usize;
        let function = state.of(self.number);
        if index == RegionIndex::CONFIG {
            function.config[at..at + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        if function.is_gone {
            return Ok(());
        }
        for (part, bytes) in bytes.chunks(4).enumerate() {
            let value = u32::from_le_bytes(bytes.try_into().unwrap());
            function.bar.insert(at + 4 * part, value);
        }
        if (CQ..INTR).contains(&at) && matches!(at % 128, 0x28 | 0x30) {
            function.tails.remove(&(at & !127));
        }
        if at == DEVCMD + 4 {
            let word = function.get(at);
            state.command(self.number, word);
        } else if (WQ..RQ).contains(&at) && at % 128 == 0x10 {
            if function.deaf > 0 {
                function.deaf -= 1;
            } else if let Some(number) = self.number {
                state.send(number, (at - WQ) / 128);
            }
        }
        Ok(())
    }

    fn irq(&self, _: Irq) -> Result<IrqInfo, Error> {
        Ok(IrqInfo::default())
    }

    fn enable(&self, kind: Irq, events: &[BorrowedFd<'_>]) -> Result<(), Error> {
        Err(Error::NoInterrupt {
            device: "little".to_owned(),
            kind,
            has: 0,
            wanted: events.len() as u32,
        })
    }

    fn disable(&self, _: Irq) -> Result<(), Error> {
        Ok(())
    }

    fn raise(&self, _: Irq, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        let mut state = self.vic.state();
        let function = state.of(self.number);
        function.resets += 1;
        function.filters.clear();
        function.pairs.clear();
        function.tails.clear();
        function.bar.retain(|at, _| *at < WQ);
        function.stuck_running = None;
        Ok(())
    }

    fn bus_addresses(&self) -> Result<Vec<Range>, Error> {
        Ok(vec![Range {
            first: 0,
            last: (1 << 40) - 1,
        }])
    }

    fn share(&self, memory: &Region, iova: u64) -> Result<(), Error> {
        let mut state = self.vic.state();
        state.of(self.number).memory.push((iova, memory.whole()));
        Ok(())
    }

    fn unshare(&self, iova: u64, _: u64) -> Result<(), Error> {
        let mut state = self.vic.state();
        state.of(self.number).memory.retain(|(start, _)| *start != iova);
        Ok(())
    }
}
