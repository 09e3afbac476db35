//! Commands to a function's firmware: by a block of registers, one at a time, or by a ring.
//!
//! | file | |
//! |---|---|
//! | `words` | the commands |
//! | `block` | 128 bytes of registers (resource 16): what usNIC's library and DPDK use |
//! | `ring` | devcmd2 (resource 24): what Linux's enic uses where it is there |
//!
//! Sources: DPDK `enic/base/vnic_dev.c` and `vnic_devcmd.h`; libfabric's `vnic_dev.c` and Linux's enic alike.

mod block;
pub(crate) mod ring;
mod words;

use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use doorbell_fabric::memory::RegionSlice;

use crate::errno::{Errno, Fault};
use crate::regs::{ARGUMENTS, ERROR};
use crate::window::Window;
use block::Block;
use ring::Ring;
pub use words::*;

/// Arguments and results.
pub type Arguments = [u64; ARGUMENTS];
/// What a command comes to.
type Answer = Result<Arguments, Fault>;

/// How long a command may take: 1000 looks, 100 µs apart, in all public drivers.
const LOOKS: u32 = 1000;
const BETWEEN: Duration = Duration::from_micros(100);
/// The limits for a caller that polls seldom: this many polls at least, and this much time.
const LOOKS_LEAST: u32 = 20;
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the second half of a two-part command may take.
const STATUS_LIMIT: Duration = Duration::from_secs(2);
const STATUS_BETWEEN: Duration = Duration::from_millis(1);

/// Arguments from the first few; the others are zero.
#[must_use]
pub fn arguments(first: &[u64]) -> Arguments {
    let mut all = [0; ARGUMENTS];
    let count = first.len().min(ARGUMENTS);
    all[..count].copy_from_slice(&first[..count]);
    all
}

/// A command under way.
#[derive(Debug)]
struct Pending {
    command: Command,
    since: Instant,
    looks: u32,
    next: Instant,
}

impl Pending {
    fn is_late(&self, now: Instant) -> bool {
        self.looks >= LOOKS || self.looks >= LOOKS_LEAST && now >= self.since + PATIENCE
    }
}

#[derive(Debug)]
enum Transport {
    Block(Block),
    Ring(Ring),
}

/// A function's way of taking commands.
#[derive(Debug)]
pub struct Devcmd {
    transport: Transport,
    /// The device knows where results go; of a block there is nothing to know.
    is_ready: bool,
    pending: Option<Pending>,
    /// A command whose answer did not come in time: it may still come, and until then the device may read
    /// what it was given.
    late: Option<Command>,
    belated: Option<(Command, Arguments)>,
}

impl Devcmd {
    /// The block at this place.
    pub(crate) fn block(window: Window) -> Self {
        Self::over(Transport::Block(Block::new(window)), true)
    }

    /// The ring whose registers are at this place, over [`ring::BYTES`] of memory that the device finds at
    /// `bus`.
    pub(crate) fn ring(window: Window, memory: RegionSlice, bus: u64) -> Self {
        Self::over(Transport::Ring(Ring::new(window, memory, bus)), false)
    }

    fn over(transport: Transport, is_ready: bool) -> Self {
        Self {
            transport,
            is_ready,
            pending: None,
            late: None,
            belated: None,
        }
    }

    /// Whether commands go by a ring.
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self.transport, Transport::Ring(_))
    }

    /// Forgets what is under way after a reset of the function; a ring has to be set up again.
    pub fn forget(&mut self) {
        (self.pending, self.late) = (None, None);
        if let Transport::Ring(ring) = &mut self.transport {
            ring.forget();
            self.is_ready = false;
        }
    }

    /// Gives up the command under way; its result may still come.
    pub(crate) fn abandon(&mut self) {
        if let Some(pending) = self.pending.take().filter(|pending| !pending.command.is_nowait()) {
            self.late = Some(pending.command);
        }
    }

    /// Goes on towards being able to take commands, without waiting; true once it is so.
    ///
    /// # Errors
    /// [`Fault`]; the next call starts over.
    pub fn ready(&mut self) -> Result<bool, Fault> {
        if self.is_ready {
            return Ok(true);
        }
        let ready = self.go_on();
        match ready {
            Ok(is_ready) => self.is_ready = is_ready,
            Err(_) => self.forget(),
        }
        ready
    }

    fn go_on(&mut self) -> Result<bool, Fault> {
        if let Some(ended) = self.poll() {
            return ended.map(|_| true);
        }
        let Transport::Ring(ring) = &mut self.transport else {
            return Ok(true);
        };
        if self.pending.is_some() || !ring.begin()? {
            return Ok(false);
        }
        let first = arguments(&ring.first());
        self.late = None;
        self.send(INITIALIZE_DEVCMD2, &first)?;
        Ok(false)
    }

    /// Whether no command is taken now: the device still works on one that was abandoned or has no reply; or
    /// the ring is full.
    ///
    /// # Errors
    /// [`Fault::Gone`], or where the registers cannot be reached.
    pub fn is_busy(&mut self) -> Result<bool, Fault> {
        if let Some(late) = self.late
            && let Some(ended) = self.look(late)
        {
            self.late = None;
            self.belated = ended.ok().map(|results| (late, results));
        }
        match &self.transport {
            Transport::Block(block) => block.is_busy(),
            Transport::Ring(_) if self.late.is_some() => Ok(true),
            Transport::Ring(ring) => ring.is_full(),
        }
    }

    /// Returns once the late result of a command that was given up: it was done all the same.
    pub(crate) fn belated(&mut self) -> Option<(Command, Arguments)> {
        self.belated.take()
    }

    /// Starts a command. One without a reply is done with this; only the device's work on it is waited for
    /// before the next one.
    ///
    /// # Errors
    /// [`Fault::Busy`] where an earlier one is under way or the ring is not [`ready`](Self::ready),
    /// [`Fault::Gone`], or where the registers cannot be reached.
    pub fn begin(&mut self, command: Command, arguments: &Arguments) -> Result<(), Fault> {
        if self.pending.is_some() || !self.is_ready || self.is_busy()? {
            return Err(Fault::Busy);
        }
        self.send(command, arguments)
    }

    fn send(&mut self, command: Command, arguments: &Arguments) -> Result<(), Fault> {
        match &mut self.transport {
            Transport::Block(block) => block.put(command, arguments)?,
            Transport::Ring(ring) => ring.put(command, arguments)?,
        }
        let now = Instant::now();
        self.pending = Some(Pending {
            command,
            since: now,
            looks: 0,
            next: now + BETWEEN,
        });
        Ok(())
    }

    fn look(&mut self, command: Command) -> Option<Answer> {
        match &mut self.transport {
            Transport::Block(block) => block.look(command),
            Transport::Ring(ring) => ring.look(command),
        }
    }

    /// Polls the command under way: at most every 100 µs, however often it is called, and for 1000 polls or
    /// half a second.
    ///
    /// # Errors
    /// Its end in an error is in the answer.
    pub fn poll(&mut self) -> Option<Answer> {
        let pending = self.pending.as_mut()?;
        if pending.command.is_nowait() {
            self.pending = None;
            return Some(Ok([0; ARGUMENTS]));
        }
        let now = Instant::now();
        if now < pending.next {
            return None;
        }
        (pending.looks, pending.next) = (pending.looks + 1, now + BETWEEN);
        let (command, is_late) = (pending.command, pending.is_late(now));
        let ended = match self.look(command) {
            None if !is_late => return None,
            None => {
                self.late = Some(command);
                Err(Fault::TimedOut(command.name))
            }
            Some(ended) => ended,
        };
        self.pending = None;
        Some(ended)
    }

    /// The outcome of a command without a reply, by the status register once the device is done with it:
    /// public drivers do not read it. `None` while the device works; success where there is no such register.
    pub(crate) fn aftermath(&mut self, command: Command) -> Option<Result<(), Fault>> {
        match &self.transport {
            Transport::Block(block) => Some(block.look(command)?.map(drop)),
            Transport::Ring(_) => Some(Ok(())),
        }
    }

    /// Runs a command and waits for it; also for an earlier one without a reply, as long as for one with a
    /// reply.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run(&mut self, command: Command, first: &[u64]) -> Result<Arguments, Fault> {
        while !self.ready()? {
            std::thread::sleep(BETWEEN);
        }
        for look in 0.. {
            if !self.is_busy()? {
                break;
            }
            if look == LOOKS {
                return Err(Fault::Busy);
            }
            std::thread::sleep(BETWEEN);
        }
        self.begin(command, &arguments(first))?;
        loop {
            if let Some(ended) = self.poll() {
                return ended;
            }
            std::thread::sleep(BETWEEN);
        }
    }

    /// Polls a two-part command until its first result is 0, for two seconds at most. Returns the second
    /// result.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn finish(&mut self, status: Command) -> Result<u64, Fault> {
        let end = Instant::now() + STATUS_LIMIT;
        loop {
            let said = self.run(status, &[])?;
            if said[0] == 0 {
                return Ok(said[1]);
            }
            if Instant::now() >= end {
                return Err(Fault::TimedOut(status.name));
            }
            std::thread::sleep(STATUS_BETWEEN);
        }
    }

    /// Whether the device has a command. Devices are known to refuse in two ways, and both are taken for no.
    ///
    /// # Errors
    /// [`Fault`], where the device gives neither answer.
    pub fn has(&mut self, command: Command) -> Result<bool, Fault> {
        match self.run(CAPABILITY, &[command.word.into()]) {
            Ok(said) => Ok(said[0] == 0),
            Err(fault) if fault.is_no() => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// The highest type of filter that the device has; `None` where it has none, or not for this function.
    /// For this command the reply is the other way round: 1 means that it is supported.
    ///
    /// # Errors
    /// [`Fault`], where the device gives neither answer.
    pub fn highest_filter(&mut self) -> Result<Option<u64>, Fault> {
        match self.run(CAPABILITY, &[ADD_FILTER.word.into()]) {
            Ok(said) => Ok((said[0] == 1).then_some(said[1])),
            Err(fault) if fault.is_no() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// The hardware address; `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn mac(&mut self) -> Result<Option<Mac>, Fault> {
        Ok(unicast_mac(&self.run(MAC_ADDR, &[])?))
    }
}

/// The hardware address in MAC_ADDR's results; `None` where that is not unicast.
pub(crate) fn unicast_mac(results: &Arguments) -> Option<Mac> {
    let [a, b, c, d, e, f, ..] = results[0].to_le_bytes();
    let mac = [a, b, c, d, e, f];
    (mac != [0; 6] && a & 1 == 0).then_some(mac)
}

/// Returns what a proxied command came to: the results of the outer one.
///
/// # Errors
/// [`Fault::Refused`] with the inner error's number.
pub fn unwrap_proxy(command: Command, results: &Arguments) -> Result<u64, Fault> {
    let status = results[0];
    if status & u64::from(ERROR) != 0 {
        let number = u32::try_from(results[1]).unwrap_or(u32::MAX);
        return Err(Fault::Refused(command.name, Errno(number)));
    }
    Ok(results[1])
}

/// The arguments of a proxied command, thirteen at most.
#[must_use]
pub fn proxy(index: u32, command: Command, first: &[u64]) -> Arguments {
    let mut all = arguments(&[index.into(), command.word.into()]);
    let count = first.len().min(ARGUMENTS - 2);
    all[2..2 + count].copy_from_slice(&first[..count]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Answer, Fake};

    fn devcmd(fake: &Fake) -> Devcmd {
        Devcmd::block(Window::new(&fake.space(), 0))
    }

    #[test]
    fn words_say_what_the_drivers_headers_say() {
        for command in ALL {
            assert!(command.number() > 0 && command.number() < 100, "{command:?}");
        }
        let known = [
            (OPEN, 23, true, true, false),
            (CAPABILITY, 36, false, true, true),
            (PROXY_BY_INDEX, 43, false, true, true),
            (ADD_FILTER, 58, false, true, true),
            (DEL_FILTER, 59, false, true, false),
            (QP_ENABLE, 60, false, true, false),
            (MAC_ADDR, 9, false, false, true),
            (NOTIFY, 21, false, true, true),
            (DISABLE, 29, false, false, false),
        ];
        for (command, number, nowait, writes, reads) in known {
            assert_eq!(
                (
                    command.number(),
                    command.is_nowait(),
                    command.writes(),
                    command.reads()
                ),
                (number, nowait, writes, reads),
                "{command:?}"
            );
        }
    }

    #[test]
    fn a_command_has_its_arguments_before_its_word_and_its_results_after() {
        let fake = Fake::new();
        fake.answer(Answer::After(3, vec![7, 8]));
        let results = devcmd(&fake).run(DEV_SPEC, &[48, 8]).unwrap();
        assert_eq!(results[..3], [7, 8, 0]);
        let seen = fake.commands();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].0, &seen[0].1[..3]), (DEV_SPEC.word, &[48, 8, 0][..]));
        assert_eq!(fake.violations(), 0);
    }

    #[test]
    fn a_command_without_arguments_or_results_leaves_them_alone() {
        let fake = Fake::new();
        fake.answer(Answer::After(0, vec![]));
        let written = fake.writes();
        devcmd(&fake).run(DISABLE, &[]).unwrap();
        assert_eq!(fake.writes() - written, 1, "the word alone");
    }

    #[test]
    fn refusals_have_their_number() {
        for number in 1..=12u32 {
            let fake = Fake::new();
            fake.answer(Answer::Refuse(number.into()));
            let fault = devcmd(&fake).run(QP_ENABLE, &[1]).unwrap_err();
            assert_eq!(fault.errno(), Some(Errno(number)));
        }
    }

    #[test]
    fn a_device_that_stays_busy_is_waited_for_a_hundred_milliseconds() {
        let fake = Fake::new();
        fake.answer(Answer::Never);
        let mut devcmd = devcmd(&fake);
        let begun = Instant::now();
        assert!(matches!(
            devcmd.run(QP_ENABLE, &[]),
            Err(Fault::TimedOut("QP_ENABLE"))
        ));
        let waited = begun.elapsed();
        assert!(waited >= BETWEEN * LOOKS, "{waited:?}");
        let looks = fake.status_reads();
        assert!(
            looks == 1000 + 2 || waited >= PATIENCE && looks >= LOOKS_LEAST + 2,
            "one look before each of two steps, and a thousand after: {looks}"
        );
        // The next one finds it busy, waits as long, and writes nothing.
        let written = fake.writes();
        assert!(matches!(devcmd.run(QP_ENABLE, &[]), Err(Fault::Busy)));
        assert!(matches!(devcmd.begin(QP_ENABLE, &[0; 15]), Err(Fault::Busy)));
        assert_eq!((fake.writes(), fake.violations()), (written, 0));
    }

    #[test]
    fn a_device_that_is_gone_is_reported_as_gone_at_any_step() {
        for step in 0..3 {
            let fake = Fake::new();
            fake.answer(Answer::After(5, vec![1]));
            fake.vanish_after(step);
            assert!(
                matches!(devcmd(&fake).run(MAC_ADDR, &[]), Err(Fault::Gone)),
                "{step}"
            );
        }
    }

    #[test]
    fn a_command_without_an_answer_is_waited_for_before_the_next_one() {
        let fake = Fake::new();
        fake.answer(Answer::After(4, vec![]));
        fake.answer(Answer::After(1, vec![0, 0]));
        let mut devcmd = devcmd(&fake);
        devcmd.run(OPEN, &[2]).unwrap();
        devcmd.run(OPEN_STATUS, &[]).unwrap();
        assert_eq!(fake.violations(), 0, "nothing was written while it was busy");
        assert_eq!(fake.commands().len(), 2);
    }

    #[test]
    fn two_part_commands_are_polled_until_they_are_done_or_two_seconds_are_over() {
        let fake = Fake::new();
        for left in [1, 1, 0] {
            fake.answer(Answer::After(1, vec![left, 6]));
        }
        assert_eq!(
            devcmd(&fake).finish(INIT_STATUS).unwrap(),
            6,
            "the error's number"
        );
        let fake = Fake::new();
        fake.always(Answer::After(0, vec![1]));
        let begun = Instant::now();
        assert!(matches!(
            devcmd(&fake).finish(OPEN_STATUS),
            Err(Fault::TimedOut("OPEN_STATUS"))
        ));
        assert!(begun.elapsed() >= STATUS_LIMIT);
    }

    #[test]
    fn capabilities_are_answered_in_two_ways_and_that_of_filters_the_other_way_round() {
        let has = |answer| {
            let fake = Fake::new();
            fake.answer(answer);
            devcmd(&fake).has(ENABLE_WAIT).unwrap()
        };
        assert!(has(Answer::After(1, vec![0])));
        assert!(!has(Answer::After(1, vec![5])) && !has(Answer::Refuse(5)) && !has(Answer::Refuse(3)));
        let highest = |answer| {
            let fake = Fake::new();
            fake.answer(answer);
            devcmd(&fake).highest_filter().unwrap()
        };
        assert_eq!(highest(Answer::After(1, vec![1, 1])), Some(1));
        assert_eq!(highest(Answer::After(1, vec![0, 1])), None);
        assert_eq!(highest(Answer::Refuse(3)), None);
    }

    #[test]
    fn a_proxied_command_has_two_ends() {
        assert_eq!(
            proxy(3, ADD_FILTER, &[0x1000, 58])[..4],
            [3, 0xc000_403a, 0x1000, 58]
        );
        assert_eq!(unwrap_proxy(ADD_FILTER, &arguments(&[0, 77])).unwrap(), 77);
        let inner = unwrap_proxy(DEL_FILTER, &arguments(&[2, 1])).unwrap_err();
        assert_eq!(inner.errno(), Some(Errno::INVALID));
    }

    #[test]
    fn an_address_of_zeroes_or_of_a_group_is_none() {
        let mac = |value: u64| {
            let fake = Fake::new();
            fake.answer(Answer::After(1, vec![value]));
            devcmd(&fake).mac().unwrap()
        };
        assert_eq!(mac(0x0605_0403_0202), Some([2, 2, 3, 4, 5, 6]));
        assert_eq!((mac(0), mac(1)), (None, None));
    }
}
