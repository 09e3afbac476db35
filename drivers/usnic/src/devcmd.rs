//! Commands to a function's firmware: one at a time, by a block of 128 bytes of registers.
//!
//! ```text
//!   begin: status ─► not busy ─► 15 arguments ─► barrier ─► command       poll, every 100 µs: status ─► not busy ─► 15 results
//! ```
//!
//! Sources: DPDK `enic/base/vnic_dev.c` and `vnic_devcmd.h`; libfabric's `vnic_dev.c` and Linux's enic alike.

use std::time::{Duration, Instant};

use doorbell_vfio::before_doorbell;
use memoffset::offset_of;

use crate::errno::{Errno, Fault};
use crate::regs::{ARGUMENTS, BUSY, Commands, ERROR, GONE};
use crate::window::Window;

/// Arguments and results.
pub type Arguments = [u64; ARGUMENTS];

/// How long a command may take: 1000 looks, 100 µs apart, in all public drivers.
const LOOKS: u32 = 1000;
const BETWEEN: Duration = Duration::from_micros(100);
/// How long the second half of a two-part command may take.
const STATUS_LIMIT: Duration = Duration::from_secs(2);
const STATUS_BETWEEN: Duration = Duration::from_millis(1);

/// Bits of a command word.
const NOWAIT: u32 = 1 << 24;
const WRITE: u32 = 1 << 30;
const READ: u32 = 1 << 31;

/// A command: its word, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Number in bits 0 to 13, kinds of functions in 14 to 23, flags in 24 to 29, direction in 30 and 31.
    pub word: u32,
    /// Its name in the drivers.
    pub name: &'static str,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)*) => {
        $($(#[$doc])* pub const $name: Command = Command { word: $word, name: stringify!($name) };)*
        /// All of them.
        #[cfg(test)]
        pub const ALL: &[Command] = &[$($name),*];
    };
}
commands! {
    /// The firmware's words: IOVA of a buffer and its size; then bytes written.
    MCPU_FW_INFO = 0xc001_c001;
    /// Offset in the configuration block, size; then the value.
    DEV_SPEC = 0xc001_c002;
    /// IOVA of 512 bytes of counters, size.
    STATS_DUMP = 0x4001_c004;
    /// What is received without a filter: bits.
    PACKET_FILTER = 0x4100_4007;
    /// Then: the hardware address, its first octet lowest.
    MAC_ADDR = 0x8000_c009;
    /// A hardware address to receive.
    ADDR_ADD = 0x4100_c00c;
    /// Then: 0 when the reset is done.
    SOFT_RESET_STATUS = 0x8001_c014;
    /// The whole function begins anew.
    SOFT_RESET = 0x0101_c013;
    /// IOVA of the notify area, size and interrupt; then the size that is kept.
    NOTIFY = 0xc001_c015;
    /// Flags.
    OPEN = 0x4101_c017;
    /// Then: 0 when it is open.
    OPEN_STATUS = 0x8001_c018;
    /// The end.
    CLOSE = 0x0001_c019;
    /// Receiving begins.
    ENABLE = 0x4101_c01c;
    /// The same, with an answer.
    ENABLE_WAIT = 0x4001_c01c;
    /// Receiving ends.
    DISABLE = 0x0001_c01d;
    /// Then: 0 when done, and an error's number.
    INIT_STATUS = 0x8001_c01f;
    /// Flags.
    INIT = 0x4101_c023;
    /// A command's word; then 0 where it is there.
    CAPABILITY = 0xc001_c024;
    /// A function's index, a command, its arguments; then its status and results.
    PROXY_BY_INDEX = 0xc001_c02b;
    /// IOVA of the ring of results, entries.
    INITIALIZE_DEVCMD2 = 0x4001_c039;
    /// IOVA of a filter, size; then its number.
    ADD_FILTER = 0xc000_403a;
    /// Its number.
    DEL_FILTER = 0x4000_403b;
    /// A queue pair, and 0 for both of its queues.
    QP_ENABLE = 0x4000_403c;
    /// The same.
    QP_DISABLE = 0x4000_403d;
}

impl Command {
    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.word & 0x3fff
    }

    /// Whether the device is not waited for.
    #[must_use]
    pub fn is_nowait(self) -> bool {
        self.word & NOWAIT != 0
    }

    /// Whether it has arguments.
    #[must_use]
    pub fn writes(self) -> bool {
        self.word & WRITE != 0
    }

    /// Whether it has results.
    #[must_use]
    pub fn reads(self) -> bool {
        self.word & READ != 0
    }

    /// The command with this word.
    #[must_use]
    pub fn proxied(self) -> bool {
        [ADD_FILTER, DEL_FILTER, QP_ENABLE, QP_DISABLE].contains(&self)
    }
}

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
    looks: u32,
    next: Instant,
}

/// A function's command block.
#[derive(Debug)]
pub struct Devcmd {
    window: Window,
    pending: Option<Pending>,
    waits: u32,
}

const STATUS: usize = offset_of!(Commands, status);
const COMMAND: usize = offset_of!(Commands, command);
const FIRST: usize = offset_of!(Commands, arguments);

impl Devcmd {
    /// The block at this place.
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            pending: None,
            waits: 0,
        }
    }

    /// Starts a command. One without an answer is done with this, but for the device, which is waited for before the next one.
    ///
    /// # Errors
    /// [`Fault::Busy`] where an earlier one is under way, [`Fault::Gone`], or where the registers cannot be reached.
    pub fn begin(&mut self, command: Command, arguments: &Arguments) -> Result<(), Fault> {
        if self.pending.is_some() {
            return Err(Fault::Busy);
        }
        match self.window.read32(STATUS)? {
            GONE => return Err(Fault::Gone),
            status if status & BUSY != 0 => return Err(Fault::Busy),
            _ => {}
        }
        if command.writes() {
            for (number, argument) in arguments.iter().enumerate() {
                self.window.write64(FIRST + 8 * number, *argument)?;
            }
            before_doorbell();
        }
        self.window.write32(COMMAND, command.word)?;
        self.pending = Some(Pending {
            command,
            looks: 0,
            next: Instant::now() + BETWEEN,
        });
        Ok(())
    }

    /// Looks whether the command is done: at most every 100 µs, whoever calls, and 1000 times.
    ///
    /// # Errors
    /// Its end in an error is in the answer.
    pub fn poll(&mut self) -> Option<Result<Arguments, Fault>> {
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
        let (command, looks) = (pending.command, pending.looks);
        let ended = match self.window.read32(STATUS) {
            Err(error) => Err(error.into()),
            Ok(GONE) => Err(Fault::Gone),
            Ok(status) if status & BUSY != 0 => {
                if looks < LOOKS {
                    return None;
                }
                Err(Fault::TimedOut(command.name))
            }
            Ok(status) if status & ERROR != 0 => self.refusal(command),
            Ok(_) if command.reads() => self.results(),
            Ok(_) => Ok([0; ARGUMENTS]),
        };
        self.pending = None;
        Some(ended)
    }

    fn refusal(&self, command: Command) -> Result<Arguments, Fault> {
        let number = self.window.read64(FIRST)?;
        Err(Fault::Refused(
            command.name,
            Errno(u32::try_from(number).unwrap_or(u32::MAX)),
        ))
    }

    fn results(&self) -> Result<Arguments, Fault> {
        doorbell_vfio::after_completion();
        let mut results = [0; ARGUMENTS];
        for (number, result) in results.iter_mut().enumerate() {
            *result = self.window.read64(FIRST + 8 * number)?;
        }
        Ok(results)
    }

    /// Whether the device still works on a command that nobody waits for, or was not waited for.
    ///
    /// # Errors
    /// As of [`begin`](Self::begin).
    pub fn is_busy(&self) -> Result<bool, Fault> {
        match self.window.read32(STATUS)? {
            GONE => Err(Fault::Gone),
            status => Ok(status & BUSY != 0),
        }
    }

    /// Does a command and waits for it; also for an earlier one without an answer, as long as for one with one.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn run(&mut self, command: Command, first: &[u64]) -> Result<Arguments, Fault> {
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
            self.waits += 1;
            std::thread::sleep(BETWEEN);
        }
    }

    /// Asks for the end of a two-part command until its first result is 0, for two seconds. Returns the second one.
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

    /// Whether the device has a command. Two ways of saying no are known, and both are taken.
    ///
    /// # Errors
    /// [`Fault`], where it does not say.
    pub fn has(&mut self, command: Command) -> Result<bool, Fault> {
        match self.run(CAPABILITY, &[command.word.into()]) {
            Ok(said) => Ok(said[0] == 0),
            Err(fault) if fault.is_no() => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// The highest type of filter that the device has; `None` where it has none, or not for this function. Of this command the
    /// answer is the other way round: 1 says that it counts.
    ///
    /// # Errors
    /// [`Fault`], where it does not say.
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
    pub fn mac(&mut self) -> Result<Option<[u8; 6]>, Fault> {
        let said = self.run(MAC_ADDR, &[])?[0].to_le_bytes();
        let mac = [said[0], said[1], said[2], said[3], said[4], said[5]];
        Ok((mac != [0; 6] && mac[0] & 1 == 0).then_some(mac))
    }
}

/// What a proxied command came to: the results of the outer one.
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
        Devcmd::new(Window::new(&fake.space(), 0))
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
        assert!(begun.elapsed() >= BETWEEN * LOOKS, "{:?}", begun.elapsed());
        assert_eq!(
            fake.status_reads(),
            1000 + 2,
            "one look before each of two steps, and a thousand after"
        );
        // The next one finds it busy, waits as long, and writes nothing.
        let written = fake.writes();
        assert!(matches!(devcmd.run(QP_ENABLE, &[]), Err(Fault::Busy)));
        assert!(matches!(devcmd.begin(QP_ENABLE, &[0; 15]), Err(Fault::Busy)));
        assert_eq!((fake.writes(), fake.violations()), (written, 0));
    }

    #[test]
    fn a_device_that_is_gone_is_told_as_gone_at_any_step() {
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
    fn two_part_commands_are_asked_for_until_they_are_done_or_two_seconds_are_over() {
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
