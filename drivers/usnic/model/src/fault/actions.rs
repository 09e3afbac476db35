//! The table of actions: with what they go, their words, where they act, and what follows them.

use std::time::Duration;

use super::{Action, Point};

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

/// Every action: the parts that it goes with, its word, where it acts, and what follows it.
pub(super) const ACTIONS: &[(&[Part], &str, Acts, Make)] = &[
    (&[Part::Devcmd], "busy", At(Point::Command), |words| {
        Ok(Action::Busy(words.time_or_forever()?))
    }),
    (&[Part::Devcmd], "error", At(Point::Command), |words| {
        Ok(Action::Error(words.number()?))
    }),
    (&[Part::Devcmd], "pending", At(Point::Command), |_| {
        Ok(Action::Pending)
    }),
    (&[Part::Devcmd], "errno", At(Point::Command), |words| {
        Ok(Action::Errno(words.number()?))
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
        Ok(Action::ErrorStatus(words.number()?))
    }),
    (&[Part::Rq], "error-status", At(Point::Receive), |words| {
        Ok(Action::ErrorStatus(words.number()?))
    }),
    (&[Part::Rq], "stale", At(Point::Enable), |_| Ok(Action::Stale)),
    (
        &[Part::Wq, Part::Rq],
        "lost-doorbell",
        At(Point::Doorbell),
        |_| Ok(Action::LostDoorbell),
    ),
    (&[Part::Cq], "color-late", At(Point::Completion), |words| {
        Ok(Action::ColorLate(words.time()?))
    }),
    (&[Part::Cq], "color-early", At(Point::Completion), |words| {
        Ok(Action::ColorEarly(words.time()?))
    }),
    (&[Part::Cq], "interrupt-first", At(Point::Completion), |words| {
        Ok(Action::InterruptFirst(words.time()?))
    }),
    (&[Part::Cq], "duplicate", At(Point::Completion), |_| {
        Ok(Action::DuplicateEntry)
    }),
    (&[Part::Cq], "wrong-queue", At(Point::Completion), |words| {
        Ok(Action::WrongQueue(words.number()?))
    }),
    (&[Part::Cq], "wrong-type", At(Point::Completion), |words| {
        Ok(Action::WrongType(words.number()?))
    }),
    (&[Part::Cq], "wrong-color", At(Point::Completion), |_| {
        Ok(Action::WrongColor)
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
        Ok(Action::Delay(words.time()?))
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
        Ok(Action::Pad(words.number()?))
    }),
    (&[Part::Switch], "fragment", At(Point::Packet), |_| {
        Ok(Action::Fragment)
    }),
    (&[Part::Switch], "tag", At(Point::Packet), |_| Ok(Action::Tag)),
    (&[Part::Switch], "foreign-port", At(Point::Packet), |_| {
        Ok(Action::ForeignPort)
    }),
    (&[Part::Switch], "oversize", At(Point::Packet), |words| {
        Ok(Action::Oversize(words.number()?))
    }),
    (&[Part::Intr], "lost", At(Point::Interrupt), |_| Ok(Action::Lost)),
    (&[Part::Intr], "late", At(Point::Interrupt), |words| {
        Ok(Action::Late(words.time()?))
    }),
    (&[Part::Intr], "spurious", Deed, |_| Ok(Action::Spurious)),
    (&[Part::Dma], "unmapped", At(Point::Dma), |_| Ok(Action::Unmapped)),
    (&[Part::Dma], "slow", At(Point::Dma), |words| {
        Ok(Action::Slow(words.time()?))
    }),
    (&[Part::Dma], "unmap-late", At(Point::Unmap), |words| {
        Ok(Action::UnmapLate(words.time()?))
    }),
    (&[Part::Function], "removed", Deed, |_| Ok(Action::Removed)),
    (&[Part::Function], "bad-magic", Deed, |_| Ok(Action::BadMagic)),
    (&[Part::Function], "bad-version", Deed, |_| Ok(Action::BadVersion)),
    (&[Part::Function], "table-cut", Deed, |words| {
        Ok(Action::TableCut(words.number()?))
    }),
    (&[Part::Function], "small-bar", Deed, |_| Ok(Action::SmallBar)),
    (&[Part::Function], "missing", Deed, |words| {
        Ok(Action::Missing(words.number()?))
    }),
    (&[Part::Function], "count-zero", Deed, |words| {
        Ok(Action::CountZero(words.number()?))
    }),
    (&[Part::Function], "reset", Deed, |_| Ok(Action::Reset)),
    (&[Part::Function], "disconnect", Deed, |_| Ok(Action::Disconnect)),
    (&[Part::Function], "mac", Deed, |words| {
        Ok(Action::Mac(words.mac()?))
    }),
    (&[Part::Link], "down", Deed, |_| Ok(Action::LinkDown)),
    (&[Part::Link], "up", Deed, |_| Ok(Action::LinkUp)),
    (&[Part::Link], "mtu", Deed, |words| {
        Ok(Action::Mtu(words.number()?))
    }),
    (&[Part::Link], "fatal", Deed, |_| Ok(Action::Fatal)),
    (&[Part::Link], "torn", Deed, |words| {
        let time = words.time_or_forever()?;
        Ok(Action::Torn((time != Duration::MAX).then_some(time)))
    }),
    (&[Part::Model], "die", Deed, |_| Ok(Action::Die)),
    (&[Part::Model], "restart", Deed, |_| Ok(Action::Restart)),
];

/// The words of a line.
pub(super) struct Words<'a>(pub(super) std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    pub(super) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.0
            .next()
            .ok_or_else(|| format!("the line ends where {what} is expected"))
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T, String> {
        let word = self.next("a number")?;
        word.parse()
            .map_err(|_| format!("`{word}` is no number that fits here"))
    }

    pub(super) fn time(&mut self) -> Result<Duration, String> {
        let word = self.next("a time")?;
        time(word).ok_or_else(|| format!("`{word}` is no time such as 300us, 5ms or 1.5s"))
    }

    pub(super) fn time_or_forever(&mut self) -> Result<Duration, String> {
        if self.0.next_if_eq(&"forever").is_some() {
            return Ok(Duration::MAX);
        }
        self.time()
    }

    pub(super) fn mac(&mut self) -> Result<[u8; 6], String> {
        let word = self.next("a hardware address")?;
        let bytes: Option<Vec<u8>> = word
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        bytes
            .and_then(|bytes| <[u8; 6]>::try_from(bytes).ok())
            .ok_or_else(|| format!("`{word}` is no hardware address such as 02:00:00:00:00:01"))
    }
}

fn time(word: &str) -> Option<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((word.strip_suffix(name)?, unit)))?;
    let seconds = number.parse::<f64>().ok()? * unit;
    (0.0..=7.0 * 86_400.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}
