//! A device in this process whose command block answers by a script: for tests of what waits for it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use doorbell_fabric::memory::Region;
use doorbell_vfio::{
    Backend, Bar, Claim, Device, Error, Irq, IrqInfo, Range, RegionIndex, RegionInfo, Space,
};

/// How a command ends.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// After this many polls of the status, with these results.
    After(u32, Vec<u64>),
    /// It ends with this error number.
    Refuse(u64),
    /// It never ends.
    Never,
}

#[derive(Debug, Default)]
struct State {
    arguments: [u64; 15],
    busy_for: u32,
    is_stuck: bool,
    has_failed: bool,
    script: VecDeque<Answer>,
    always: Option<Answer>,
    commands: Vec<(u32, [u64; 15])>,
    accesses: u32,
    vanishes: Option<u32>,
    writes: u32,
    status_reads: u32,
    violations: u32,
    config: Vec<u8>,
    /// Behind the block: registers that do nothing.
    plain: std::collections::HashMap<usize, u32>,
}

/// A device for tests. Its BAR 0 is the command block and, behind it, registers that do nothing; it cannot be
/// mapped.
#[derive(Clone, Debug)]
pub(crate) struct Fake(Arc<Mutex<State>>);

impl Fake {
    /// Where registers are that do nothing by themselves.
    pub(crate) const PLAIN: u64 = 1024;

    pub(crate) fn new() -> Self {
        let mut config = vec![0; 256];
        config[..4].copy_from_slice(&[0x37, 0x11, 0xcf, 0x00]);
        Self(Arc::new(Mutex::new(State {
            config,
            ..State::default()
        })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim::over(Arc::new(self.clone())).unwrap()
    }

    pub(crate) fn space(&self) -> Space {
        self.claim().space(0).unwrap()
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.state().script.push_back(answer);
    }

    pub(crate) fn always(&self, answer: Answer) {
        self.state().always = Some(answer);
    }

    /// Makes everything read as ones after this many more accesses.
    pub(crate) fn vanish_after(&self, accesses: u32) {
        let mut state = self.state();
        state.vanishes = Some(state.accesses + accesses);
    }

    pub(crate) fn commands(&self) -> Vec<(u32, [u64; 15])> {
        self.state().commands.clone()
    }

    pub(crate) fn writes(&self) -> u32 {
        self.state().writes
    }

    pub(crate) fn status_reads(&self) -> u32 {
        self.state().status_reads
    }

    /// Writes while it was busy.
    pub(crate) fn violations(&self) -> u32 {
        self.state().violations
    }
}

impl State {
    fn status(&mut self) -> u64 {
        self.status_reads += 1;
        if self.is_stuck || self.busy_for > 0 {
            self.busy_for = self.busy_for.saturating_sub(1);
            return 1;
        }
        u64::from(self.has_failed) << 1
    }

    fn begin(&mut self, word: u32) {
        self.commands.push((word, self.arguments));
        self.has_failed = false;
        let answer = self.script.pop_front().or_else(|| self.always.clone());
        match answer.unwrap_or(Answer::Refuse(5)) {
            Answer::After(looks, results) => {
                self.busy_for = looks;
                if word >> 31 != 0 {
                    self.arguments[..results.len()].copy_from_slice(&results);
                }
            }
            Answer::Refuse(number) => {
                self.has_failed = true;
                self.arguments[0] = number;
            }
            Answer::Never => self.is_stuck = true,
        }
    }

    fn is_gone(&mut self) -> bool {
        self.accesses += 1;
        self.vanishes.is_some_and(|left| self.accesses > left)
    }
}

impl Device for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn backend(&self) -> Backend {
        Backend::User
    }

    fn is_resettable(&self) -> bool {
        false
    }

    fn region(&self, _: RegionIndex) -> Result<RegionInfo, Error> {
        Ok(RegionInfo {
            length: 4096,
            readable: true,
            writable: true,
            areas: Vec::new(),
        })
    }

    fn map(&self, region: RegionIndex) -> Result<Bar, Error> {
        Err(Error::OutOfRegion {
            device: "fake".to_owned(),
            region,
            at: 0,
            length: 0,
            reason: "cannot be mapped",
        })
    }

    fn read(&self, index: RegionIndex, at: u64, to: &mut [u8]) -> Result<(), Error> {
        let mut state = self.state();
        let at = at as usize;
        if index == RegionIndex::CONFIG {
            to.copy_from_slice(&state.config[at..at + to.len()]);
            return Ok(());
        }
        if state.is_gone() {
            to.fill(0xff);
            return Ok(());
        }
        let value = match at {
            0 => state.status(),
            1024.. => {
                let half = |at| u64::from(state.plain.get(&at).copied().unwrap_or(0));
                half(at) | half(at + 4) << 32
            }
            8.. => state.arguments[(at - 8) / 8],
            _ => 0,
        };
        to.copy_from_slice(&value.to_le_bytes()[..to.len()]);
        Ok(())
    }

    fn write(&self, index: RegionIndex, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.state();
        let at = at as usize;
        if index == RegionIndex::CONFIG {
            state.config[at..at + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        state.writes += 1;
        if state.is_gone() {
            return Ok(());
        }
        if at >= Self::PLAIN as usize {
            for (half, bytes) in bytes.chunks(4).enumerate() {
                let word = u32::from_le_bytes(bytes.try_into().unwrap());
                state.plain.insert(at + 4 * half, word);
            }
            return Ok(());
        }
        if state.is_stuck || state.busy_for > 0 {
            state.violations += 1;
            return Ok(());
        }
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        match at {
            4 => state.begin(u64::from_le_bytes(word) as u32),
            8.. => state.arguments[(at - 8) / 8] = u64::from_le_bytes(word),
            _ => state.violations += 1,
        }
        Ok(())
    }

    fn irq(&self, _: Irq) -> Result<IrqInfo, Error> {
        Ok(IrqInfo::default())
    }

    fn enable(&self, _: Irq, _: &[BorrowedFd<'_>]) -> Result<(), Error> {
        Ok(())
    }

    fn disable(&self, _: Irq) -> Result<(), Error> {
        Ok(())
    }

    fn raise(&self, _: Irq, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }

    fn bus_addresses(&self) -> Result<Vec<Range>, Error> {
        Ok(vec![Range {
            first: 0,
            last: (1 << 40) - 1,
        }])
    }

    fn share(&self, _: &Region, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn unshare(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }
}
