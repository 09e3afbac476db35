//! devcmd2: commands in a ring of memory, results in another one, in which new ones differ from old ones in
//! colour.
//!
//! ```text
//!   like a work queue: entry ─► barrier ─► posted index   then: new colour ─► barrier ─► rest of the result
//! ```
//!
//! The device's next index is left as it is found: commands begin there. The ring is full when one more would
//! make the indices equal. A command without an answer has a flag that keeps its result away.
//!
//! Sources: libfabric `usnic_direct/vnic_dev.c`, Linux `enic/vnic_dev.c`, DPDK `enic/base/vnic_devcmd.h` (the
//! structures).

use doorbell_fabric::memory::RegionSlice;
use doorbell_vfio::{after_completion, before_doorbell};
use memoffset::offset_of;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::words::Command;
use super::{Answer, Arguments};
use crate::errno::{Errno, Fault};
use crate::queue::{Side, Turning};
use crate::regs::{ARGUMENTS, CommandRing, GONE};
use crate::window::Window;

/// Entries of both rings, in all public drivers.
pub(crate) const ENTRIES: usize = 32;
/// Bytes of an entry of either.
const ENTRY: usize = 128;
/// Bytes of one ring: the commands, and behind them the results.
const RING: usize = ENTRIES * ENTRY;
/// Bytes of memory that both take.
pub(crate) const BYTES: usize = 2 * RING;
/// A command's flag: no result is wanted.
const NO_RESULT: u16 = 1;

/// A command as it lies in its ring.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    zero: U16,
    flags: U16,
    command: U32,
    arguments: [U64; ARGUMENTS],
}
const _: () = assert!(size_of::<Entry>() == ENTRY);
const _: () = assert!(offset_of!(Entry, flags) == 2 && offset_of!(Entry, command) == 4);
const _: () = assert!(offset_of!(Entry, arguments) == 8);

/// A result, as the device writes it into its ring.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Outcome {
    results: [U64; ARGUMENTS],
    padding: [u8; 4],
    completed: U16,
    error: u8,
    color: u8,
}
const _: () = assert!(size_of::<Outcome>() == ENTRY && offset_of!(Outcome, completed) == 124);
const _: () = assert!(offset_of!(Outcome, error) == 126 && offset_of!(Outcome, color) == 127);

/// How far it is on its way to be used.
#[derive(Debug)]
enum Stage {
    Off,
    Stopping(Turning),
    Begun,
}

/// The rings of commands and results.
#[derive(Debug)]
pub(super) struct Ring {
    window: Window,
    memory: RegionSlice,
    bus: u64,
    stage: Stage,
    posted: u32,
    /// The slot of the last command with an answer.
    slot: u16,
    next: usize,
    /// The colour of the next result: 1 in the first pass, then 0, and so on.
    color: u8,
}

impl Ring {
    /// Over these registers and this memory, which the device finds at `bus`.
    pub(super) fn new(window: Window, memory: RegionSlice, bus: u64) -> Self {
        Self {
            window,
            memory,
            bus,
            stage: Stage::Off,
            posted: 0,
            slot: 0,
            next: 0,
            color: 1,
        }
    }

    /// The device has forgotten it.
    pub(super) fn forget(&mut self) {
        self.stage = Stage::Off;
    }

    /// Makes progress towards taking commands, without waiting; returns true once it takes them. The first
    /// command sets the address of the ring of results.
    pub(super) fn begin(&mut self) -> Result<bool, Fault> {
        match &mut self.stage {
            Stage::Begun => return Ok(true),
            Stage::Off => self.stage = Stage::Stopping(Turning::off(&self.window, Side::Send)?),
            Stage::Stopping(turning) => {
                if turning.poll(&self.window)? {
                    self.start()?;
                    self.stage = Stage::Begun;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn start(&mut self) -> Result<(), Fault> {
        for at in (0..BYTES).step_by(ENTRY) {
            self.memory.write(at, &[0; ENTRY]);
        }
        (self.next, self.color) = (0, 1);
        let set = |at, value| self.window.write32(at, value);
        self.window
            .write64(offset_of!(CommandRing, ring_base), self.bus)?;
        set(offset_of!(CommandRing, ring_size), ENTRIES as u32)?;
        self.posted = self.fetched()?;
        set(offset_of!(CommandRing, posted), self.posted)?;
        set(offset_of!(CommandRing, cq_index), 0)?;
        set(offset_of!(CommandRing, error_interrupt_enable), 0)?;
        set(offset_of!(CommandRing, error_interrupt_offset), 0)?;
        set(offset_of!(CommandRing, error_status), 0)?;
        Ok(set(offset_of!(CommandRing, enable), 1)?)
    }

    /// The command that the device takes next.
    fn fetched(&self) -> Result<u32, Fault> {
        match self.window.read32(offset_of!(CommandRing, fetch))? {
            GONE => Err(Fault::Gone),
            index if index as usize >= ENTRIES => Err(Fault::Nonsense("the index of its command ring")),
            index => Ok(index),
        }
    }

    fn after(index: u32) -> u32 {
        (index + 1) % ENTRIES as u32
    }

    /// Whether there is no room for a command.
    pub(super) fn is_full(&self) -> Result<bool, Fault> {
        Ok(Self::after(self.posted) == self.fetched()?)
    }

    /// Returns where its results go: the arguments of the first command.
    pub(super) fn first(&self) -> [u64; 2] {
        [self.bus + RING as u64, ENTRIES as u64]
    }

    /// Hands a command over. To be called while there is room.
    pub(super) fn put(&mut self, command: Command, arguments: &Arguments) -> Result<(), Fault> {
        let flags = if command.is_nowait() { NO_RESULT } else { 0 };
        let entry = Entry {
            zero: 0.into(),
            flags: flags.into(),
            command: command.word.into(),
            arguments: arguments.map(U64::from),
        };
        self.memory.write(self.posted as usize * ENTRY, entry.as_bytes());
        if !command.is_nowait() {
            self.slot = self.posted as u16;
        }
        self.posted = Self::after(self.posted);
        before_doorbell();
        Ok(self
            .window
            .write32(offset_of!(CommandRing, posted), self.posted)?)
    }

    /// Looks once for the result of the last command with a reply. Results of others, which were abandoned,
    /// are skipped.
    pub(super) fn look(&mut self, command: Command) -> Option<Answer> {
        if let Err(fault) = self.fetched() {
            return Some(Err(fault));
        }
        for _ in 0..ENTRIES {
            let found = self.take()?;
            if found.completed.get() != self.slot {
                continue;
            }
            return Some(match found.error {
                0 => Ok(found.results.map(U64::get)),
                number => Err(Fault::Refused(command.name, Errno(number.into()))),
            });
        }
        None
    }

    /// The next result, if there is one.
    fn take(&mut self) -> Option<Outcome> {
        let at = RING + self.next * ENTRY;
        let shared = self.memory.as_shared();
        let [color] = shared.read::<1>(at + offset_of!(Outcome, color))?;
        if color != self.color {
            return None;
        }
        // The colour is written last; the rest is read after it.
        after_completion();
        let bytes: [u8; ENTRY] = shared.read(at)?;
        self.next += 1;
        if self.next == ENTRIES {
            (self.next, self.color) = (0, self.color ^ 1);
        }
        Outcome::read_from_bytes(&bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devcmd::{
        Devcmd, INITIALIZE_DEVCMD2, MAC_ADDR, NOTIFY, OPEN, PROXY_BY_INDEX, QP_ENABLE, arguments,
    };
    use crate::fake::Fake;
    use doorbell_fabric::memory::Region;

    const BUS: u64 = 0x1234_5000;

    /// The ring with the test as its device: a block of plain memory for registers.
    struct Bench {
        devcmd: Devcmd,
        window: Window,
        memory: RegionSlice,
        fake: Fake,
        results: usize,
    }

    impl Bench {
        fn new(fetch: u32) -> Self {
            let fake = Fake::new();
            let window = Window::new(&fake.space(), Fake::PLAIN);
            window.write32(offset_of!(CommandRing, fetch), fetch).unwrap();
            let memory = Region::new(BYTES).unwrap().whole();
            Self {
                devcmd: Devcmd::ring(window.clone(), memory.clone(), BUS),
                window,
                memory,
                fake,
                results: 0,
            }
        }

        fn get(&self, at: usize) -> u32 {
            self.window.read32(at).unwrap()
        }

        fn entry(&self, slot: usize) -> [u8; ENTRY] {
            self.memory.as_shared().read(slot * ENTRY).unwrap()
        }

        fn set_fetch(&self, index: usize) {
            let at = offset_of!(CommandRing, fetch);
            self.window.write32(at, (index % ENTRIES) as u32).unwrap();
        }

        /// The device is done with a slot, and writes its result.
        fn answer(&mut self, slot: usize, error: u8, first: u64) {
            let mut bytes = [0; ENTRY];
            bytes[..8].copy_from_slice(&first.to_le_bytes());
            bytes[124..126].copy_from_slice(&(slot as u16).to_le_bytes());
            bytes[126] = error;
            bytes[127] = 1 ^ (self.results / ENTRIES) as u8 & 1;
            self.memory.write(RING + self.results % ENTRIES * ENTRY, &bytes);
            self.results += 1;
            self.set_fetch(slot + 1);
        }

        /// Plays the device until commands are taken: first the ring is set up, then the address of the
        /// results.
        fn ready(&mut self, fetch: usize) {
            while self.get(offset_of!(CommandRing, enable)) == 0 {
                assert!(!self.devcmd.ready().unwrap());
            }
            assert!(!self.devcmd.ready().unwrap());
            self.answer(fetch, 0, 0);
            while !self.devcmd.ready().unwrap() {}
        }

        fn wait(&mut self) -> Answer {
            loop {
                if let Some(ended) = self.devcmd.poll() {
                    return ended;
                }
            }
        }
    }

    #[test]
    fn a_command_and_a_result_have_these_bytes() {
        let mut bench = Bench::new(0);
        bench.ready(0);
        let mut first = [0; ENTRY];
        // INITIALIZE_DEVCMD2: where the results are, and how many.
        first[4..8].copy_from_slice(&[0x39, 0xc0, 0x01, 0x40]);
        first[8..16].copy_from_slice(&(BUS + 4096).to_le_bytes());
        first[16] = 32;
        assert_eq!(bench.entry(0), first);
        // PROXY_BY_INDEX with its arguments; OPEN, which wants no result.
        bench
            .devcmd
            .begin(PROXY_BY_INDEX, &arguments(&[3, 0xc000_403a, 0x1000, 58]))
            .unwrap();
        let mut second = [0; ENTRY];
        second[4..8].copy_from_slice(&[0x2b, 0xc0, 0x01, 0xc0]);
        second[8] = 3;
        second[16..20].copy_from_slice(&[0x3a, 0x40, 0x00, 0xc0]);
        second[25] = 0x10;
        second[32] = 58;
        assert_eq!(bench.entry(1), second);
        let golden: [u8; ENTRY] = std::array::from_fn(|at| match at {
            0 => 7,
            8 => 9,
            124 => 1,
            127 => 1,
            _ => 0,
        });
        bench.memory.write(RING + ENTRY, &golden);
        (bench.results, _) = (2, bench.set_fetch(2));
        assert_eq!(bench.wait().unwrap()[..3], [7, 9, 0]);
        bench.devcmd.begin(OPEN, &arguments(&[2])).unwrap();
        let mut third = [0; ENTRY];
        third[2] = 1;
        third[4..8].copy_from_slice(&[0x17, 0xc0, 0x01, 0x41]);
        third[8] = 2;
        assert_eq!(bench.entry(2), third);
        assert!(bench.wait().is_ok(), "done with this");
        assert_eq!(bench.get(offset_of!(CommandRing, posted)), 3);
        assert_eq!(bench.get(offset_of!(CommandRing, ring_base)), BUS as u32);
        assert_eq!(bench.get(offset_of!(CommandRing, ring_size)), 32);
    }

    #[test]
    fn colours_flip_with_each_pass_and_commands_begin_where_the_device_is() {
        for begin in [0, 1, 17, 31] {
            let mut bench = Bench::new(begin as u32);
            bench.ready(begin);
            for round in 1..100u64 {
                let slot = (begin + round as usize) % ENTRIES;
                bench.devcmd.begin(MAC_ADDR, &[0; ARGUMENTS]).unwrap();
                let early = bench.devcmd.poll();
                assert!(early.is_none(), "{begin} {round}: of the pass before");
                bench.answer(slot, 0, round);
                assert_eq!(bench.wait().unwrap()[0], round, "{begin}");
            }
        }
    }

    #[test]
    fn a_full_ring_is_busy_and_an_index_of_ones_is_gone() {
        let mut bench = Bench::new(0);
        bench.ready(0);
        for count in 0..ENTRIES - 1 {
            assert!(!bench.devcmd.is_busy().unwrap(), "{count}");
            bench.devcmd.begin(OPEN, &arguments(&[2])).unwrap();
            assert!(bench.wait().is_ok());
        }
        let posted = bench.get(offset_of!(CommandRing, posted));
        assert!(matches!(
            bench.devcmd.begin(OPEN, &[0; ARGUMENTS]),
            Err(Fault::Busy)
        ));
        assert_eq!(
            bench.get(offset_of!(CommandRing, posted)),
            posted,
            "nothing was posted"
        );
        bench.set_fetch(2);
        assert!(bench.devcmd.begin(OPEN, &[0; ARGUMENTS]).is_ok() && bench.wait().is_ok());
        let at = offset_of!(CommandRing, fetch);
        bench.window.write32(at, GONE).unwrap();
        assert!(matches!(
            bench.devcmd.begin(MAC_ADDR, &[0; ARGUMENTS]),
            Err(Fault::Gone)
        ));
        bench.window.write32(at, 99).unwrap();
        assert!(matches!(bench.devcmd.is_busy(), Err(Fault::Nonsense(_))));
        let mut gone = Bench::new(GONE);
        let error = loop {
            match gone.devcmd.ready() {
                Ok(false) => {}
                other => break other,
            }
        };
        assert!(matches!(error, Err(Fault::Gone)), "{error:?}");
    }

    #[test]
    fn refusals_time_outs_and_late_answers_are_those_of_their_command() {
        let mut bench = Bench::new(0);
        bench.ready(0);
        bench.devcmd.begin(QP_ENABLE, &arguments(&[1])).unwrap();
        bench.answer(1, 6, 0);
        let refused = bench.wait().unwrap_err();
        assert!(
            matches!(refused, Fault::Refused("QP_ENABLE", Errno(6))),
            "{refused:?}"
        );
        bench.devcmd.begin(NOTIFY, &[0; ARGUMENTS]).unwrap();
        assert!(matches!(bench.wait(), Err(Fault::TimedOut("NOTIFY"))));
        assert!(
            bench.devcmd.is_busy().unwrap(),
            "it may still read what it was given"
        );
        assert!(matches!(
            bench.devcmd.begin(MAC_ADDR, &[0; ARGUMENTS]),
            Err(Fault::Busy)
        ));
        bench.answer(2, 0, 40);
        assert!(!bench.devcmd.is_busy().unwrap());
        let (late, results) = bench.devcmd.belated().unwrap();
        assert_eq!((late, results[0]), (NOTIFY, 40));
        bench.devcmd.begin(MAC_ADDR, &[0; ARGUMENTS]).unwrap();
        bench.answer(3, 0, 5);
        assert_eq!(bench.wait().unwrap()[0], 5);
    }

    #[test]
    fn a_device_that_forgot_its_ring_gets_it_again() {
        let mut bench = Bench::new(0);
        bench.ready(0);
        bench.window.write32(offset_of!(CommandRing, enable), 0).unwrap();
        bench.set_fetch(0);
        bench.devcmd.forget();
        bench.results = 0;
        bench.ready(0);
        assert_eq!(bench.entry(0)[4], INITIALIZE_DEVCMD2.word as u8);
        assert_eq!(bench.fake.violations(), 0);
    }
}
