//! The table of actions: with what they go, their words, where they act, and what follows them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Action, Point};
use crate::frame::TX_MOST;
use crate::layout;
use crate::options::Options;

/// What a target names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Switch,
    Link,
    Model,
    Function,
    Wq,
    Rq,
    Cq,
    Intr,
    Devcmd,
    Dma,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Link => "link",
            Self::Model => "model",
            Self::Function => "a function",
            Self::Wq => "wq",
            Self::Rq => "rq",
            Self::Cq => "cq",
            Self::Intr => "intr",
            Self::Devcmd => "devcmd",
            Self::Dma => "dma",
        }
    }
}

/// What an action's word is followed by.
pub(super) type Make = fn(&mut Words<'_>) -> Result<Action, String>;

/// Where an action acts: at a point, or as a deed.
#[derive(Clone, Copy)]
pub(super) enum Acts {
    At(Point),
    Deed,
}

use Acts::{At, Deed};

/// Error numbers: 1 to 12 have names (3.5), and a driver has to bear the others that fit into the field's
/// byte.
const ERRNO: RangeInclusive<u64> = 1..=255;
/// Values of error_status: zero is fine, and a queue that is fine has not stopped.
const STATUS: RangeInclusive<u64> = 1..=u32::MAX as u64;
/// Nothing that happens to one event takes longer; and at least as long as a clock can measure.
const WAIT: (Duration, Duration) = (Duration::from_micros(1), Duration::from_secs(60));
/// How long a state may last: a week.
pub(super) const STATE: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(7 * 86_400));
/// How long an access of memory may take: the whole engine stands still meanwhile.
const ACCESS: (Duration, Duration) = (Duration::from_micros(1), Duration::from_secs(1));

/// Every action: the parts that it goes with, its word, where it acts, and what follows it.
pub(super) const ACTIONS: &[(&[Part], &str, Acts, Make)] = &[
    (&[Part::Devcmd], "busy", At(Point::Command), |words| {
        Ok(Action::Busy(words.time_or_forever()?))
    }),
    (&[Part::Devcmd], "error", At(Point::Command), |words| {
        Ok(Action::Error(words.number("an error's number", ERRNO)?))
    }),
    (&[Part::Devcmd], "pending", At(Point::Command), |_| {
        Ok(Action::Pending)
    }),
    (&[Part::Devcmd], "errno", At(Point::Command), |words| {
        Ok(Action::Errno(words.number("an error's number", ERRNO)?))
    }),
    (&[Part::Devcmd], "zeros", At(Point::Command), |_| {
        Ok(Action::Zeros)
    }),
    (&[Part::Wq, Part::Rq], "stuck-running", At(Point::Disable), |_| {
        Ok(Action::StuckRunning)
    }),
    (&[Part::Wq, Part::Rq], "stuck-stopped", At(Point::Enable), |_| {
        Ok(Action::StuckStopped)
    }),
    (&[Part::Wq], "error-status", At(Point::Transmit), |words| {
        Ok(Action::ErrorStatus(words.number("an error_status", STATUS)?))
    }),
    (&[Part::Rq], "error-status", At(Point::Receive), |words| {
        Ok(Action::ErrorStatus(words.number("an error_status", STATUS)?))
    }),
    (&[Part::Rq], "stale", At(Point::Enable), |_| Ok(Action::Stale)),
    (
        &[Part::Wq, Part::Rq],
        "lost-doorbell",
        At(Point::Doorbell),
        |_| Ok(Action::LostDoorbell),
    ),
    (&[Part::Cq], "color-late", At(Point::Completion), |words| {
        Ok(Action::ColorLate(words.time(WAIT)?))
    }),
    (&[Part::Cq], "color-early", At(Point::Completion), |words| {
        Ok(Action::ColorEarly(words.time(WAIT)?))
    }),
    (&[Part::Cq], "interrupt-first", At(Point::Completion), |words| {
        Ok(Action::InterruptFirst(words.time(WAIT)?))
    }),
    (&[Part::Cq], "duplicate", At(Point::Completion), |_| {
        Ok(Action::DuplicateEntry)
    }),
    (&[Part::Cq], "wrong-queue", At(Point::Completion), |words| {
        Ok(Action::WrongQueue(
            words.number("a q_number of ten bits", 0..=1023)?,
        ))
    }),
    (&[Part::Cq], "wrong-type", At(Point::Completion), |words| {
        Ok(Action::WrongType(words.number("a type of seven bits", 0..=127)?))
    }),
    (&[Part::Cq], "wrong-color", At(Point::Completion), |_| {
        Ok(Action::WrongColor)
    }),
    (&[Part::Cq], "overrun", At(Point::Completion), |_| {
        Ok(Action::Overrun)
    }),
    (&[Part::Rq], "truncate", At(Point::Receive), |_| {
        Ok(Action::Truncate)
    }),
    (&[Part::Switch], "drop", At(Point::Packet), |_| Ok(Action::Drop)),
    (&[Part::Switch], "duplicate", At(Point::Packet), |_| {
        Ok(Action::Duplicate)
    }),
    (&[Part::Switch], "reorder", At(Point::Packet), |_| {
        Ok(Action::Reorder)
    }),
    (&[Part::Switch], "delay", At(Point::Packet), |words| {
        Ok(Action::Delay(words.time(WAIT)?))
    }),
    (&[Part::Switch], "corrupt", At(Point::Packet), |_| {
        Ok(Action::Corrupt)
    }),
    (&[Part::Switch], "bad-ip", At(Point::Packet), |_| {
        Ok(Action::BadIp)
    }),
    (&[Part::Switch], "bad-udp", At(Point::Packet), |_| {
        Ok(Action::BadUdp)
    }),
    (&[Part::Switch], "pad", At(Point::Packet), |words| {
        Ok(Action::Pad(
            words.number("a number of bytes", 1..=TX_MOST as u64)?,
        ))
    }),
    (&[Part::Switch], "fragment", At(Point::Packet), |_| {
        Ok(Action::Fragment)
    }),
    (&[Part::Switch], "tag", At(Point::Packet), |_| Ok(Action::Tag)),
    (&[Part::Switch], "foreign-port", At(Point::Packet), |_| {
        Ok(Action::ForeignPort)
    }),
    (&[Part::Switch], "oversize", At(Point::Packet), |words| {
        Ok(Action::Oversize(
            words.number("a frame's length", 14..=TX_MOST as u64)?,
        ))
    }),
    (&[Part::Intr], "lost", At(Point::Interrupt), |_| Ok(Action::Lost)),
    (&[Part::Intr], "late", At(Point::Interrupt), |words| {
        Ok(Action::Late(words.time(WAIT)?))
    }),
    (&[Part::Intr], "spurious", Deed, |_| Ok(Action::Spurious)),
    (&[Part::Dma], "unmapped", At(Point::Dma), |_| Ok(Action::Unmapped)),
    (&[Part::Dma], "slow", At(Point::Dma), |words| {
        Ok(Action::Slow(words.time(ACCESS)?))
    }),
    (&[Part::Dma], "unmap-late", At(Point::Unmap), |words| {
        Ok(Action::UnmapLate(words.time(WAIT)?))
    }),
    (&[Part::Function], "removed", Deed, |_| Ok(Action::Removed)),
    (&[Part::Function], "bad-magic", Deed, |_| Ok(Action::BadMagic)),
    (&[Part::Function], "bad-version", Deed, |_| Ok(Action::BadVersion)),
    (&[Part::Function], "table-cut", Deed, |words| {
        let most = words.bounds.kinds.len() as u64;
        Ok(Action::TableCut(
            words.number("a number of entries", 0..=most.saturating_sub(1))?,
        ))
    }),
    (&[Part::Function], "small-bar", Deed, |_| Ok(Action::SmallBar)),
    (&[Part::Function], "missing", Deed, |words| {
        Ok(Action::Missing(words.kind()?))
    }),
    (&[Part::Function], "count-zero", Deed, |words| {
        Ok(Action::CountZero(words.kind()?))
    }),
    (&[Part::Function], "reset", Deed, |_| Ok(Action::Reset)),
    (&[Part::Function], "disconnect", Deed, |_| Ok(Action::Disconnect)),
    (&[Part::Function], "mac", Deed, |words| {
        Ok(Action::Mac(words.mac()?))
    }),
    (&[Part::Link], "down", Deed, |_| Ok(Action::LinkDown)),
    (&[Part::Link], "up", Deed, |_| Ok(Action::LinkUp)),
    (&[Part::Link], "lose-filters", Deed, |_| Ok(Action::LoseFilters)),
    (&[Part::Link], "mtu", Deed, |words| {
        Ok(Action::Mtu(words.number("an MTU", 68..=9000)?))
    }),
    (&[Part::Link], "fatal", Deed, |_| Ok(Action::Fatal)),
    (&[Part::Link], "torn", Deed, |words| {
        let time = words.time_or_forever()?;
        Ok(Action::Torn((time != Duration::MAX).then_some(time)))
    }),
    (&[Part::Model], "die", Deed, |_| Ok(Action::Die)),
    (&[Part::Model], "restart", Deed, |_| Ok(Action::Restart)),
];

/// What there is in the model that a script is for.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Functions, the physical one included.
    pub(crate) functions: usize,
    /// Queues and interrupts of each.
    pub(super) wq: usize,
    pub(super) rq: usize,
    pub(super) cq: usize,
    pub(super) intr: usize,
    /// Types of the entries of a resource table, as often as they occur there.
    kinds: Vec<u8>,
}

impl Bounds {
    pub(crate) fn new(options: &Options) -> Self {
        let counts = options.counts;
        Self {
            functions: options.vfs + 1,
            wq: counts.wq,
            rq: counts.rq,
            cq: counts.cq,
            intr: counts.intr,
            kinds: layout::of(options, 0).kinds(),
        }
    }

    /// The bounds of a model with this many functions, and the defaults for everything else.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(functions: usize) -> Self {
        Self::new(&Options {
            vfs: functions - 1,
            ..Options::default()
        })
    }

    /// Returns how many of a part a function has; `None` where it is not numbered.
    pub(super) fn count(&self, part: Part) -> Option<usize> {
        match part {
            Part::Wq => Some(self.wq),
            Part::Rq => Some(self.rq),
            Part::Cq => Some(self.cq),
            Part::Intr => Some(self.intr),
            _ => None,
        }
    }
}

/// The words of a line, and the things that they may name.
pub(super) struct Words<'a> {
    pub(super) words: std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>,
    pub(super) bounds: &'a Bounds,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a str, bounds: &'a Bounds) -> Self {
        let words = line.split_ascii_whitespace().peekable();
        Self { words, bounds }
    }

    pub(super) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.words
            .next()
            .ok_or_else(|| format!("the line ends where {what} is expected"))
    }

    /// A number in digits, within its range.
    pub(super) fn number<T: TryFrom<u64>>(
        &mut self,
        what: &str,
        range: RangeInclusive<u64>,
    ) -> Result<T, String> {
        let (least, most) = (range.start(), range.end());
        let word = self.next(&format!("{what} ({least} to {most})"))?;
        digits(word)
            .filter(|number| range.contains(number))
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("`{word}` is not {what}: that may be {least} to {most}"))
    }

    /// A type that the resource table has.
    fn kind(&mut self) -> Result<u8, String> {
        let mut kinds = self.bounds.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        let has: Vec<String> = kinds.iter().map(u8::to_string).collect();
        let has = has.join(", ");
        let word = self.next(&format!("a type of resource ({has})"))?;
        let kind = digits(word).and_then(|number| u8::try_from(number).ok());
        kind.filter(|kind| kinds.contains(kind))
            .ok_or_else(|| format!("`{word}` is not a type of the resource table: that has {has}"))
    }

    pub(super) fn time(&mut self, (least, most): (Duration, Duration)) -> Result<Duration, String> {
        let word = self.next("a time")?;
        let time = time(word).ok_or_else(|| format!("`{word}` is no time such as 300us, 5ms or 1.5s"))?;
        match time {
            time if (least..=most).contains(&time) => Ok(time),
            _ => Err(format!(
                "`{word}` is out of range: the time may be {least:?} to {most:?}"
            )),
        }
    }

    pub(super) fn time_or_forever(&mut self) -> Result<Duration, String> {
        if self.words.next_if_eq(&"forever").is_some() {
            return Ok(Duration::MAX);
        }
        self.time(STATE)
    }

    pub(super) fn mac(&mut self) -> Result<[u8; 6], String> {
        let word = self.next("a hardware address")?;
        let byte = |text: &str| {
            let is_hex = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u8::from_str_radix(text, 16).ok().filter(|_| is_hex)
        };
        let bytes: Option<Vec<u8>> = word.split(':').map(byte).collect();
        bytes
            .and_then(|bytes| <[u8; 6]>::try_from(bytes).ok())
            .filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6])
            .ok_or_else(|| {
                format!("`{word}` is no hardware address of one station, such as 02:00:00:00:00:01")
            })
    }
}

/// A number of nothing but digits.
pub(super) fn digits(word: &str) -> Option<u64> {
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    word.parse().ok().filter(|_| is_number)
}

fn time(word: &str) -> Option<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((word.strip_suffix(name)?, unit)))?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_number)? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}
