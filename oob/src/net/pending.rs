//! Accepted connections that have not yet proved that they have the key.
//!
//! Each costs a descriptor and some memory; so their number is limited, in all and per address. When one more
//! arrives, the oldest is dropped: a peer with the key completes the handshake quickly, and one without it
//! cannot keep others out. An address beyond this host whose handshakes keep failing is rejected for a while;
//! on this host that would only let every user lock out the others.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use doorbell_fabric::time::Time;

use super::connection::Io;
use super::settings::Settings;

/// Maximum number of addresses whose failures are remembered.
const REMEMBERED: usize = 1024;

/// A source of connections, within which a peer can change its address at will: an IPv4 address, or an IPv6
/// network of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(u128);

impl Source {
    /// Returns the source of an address; `None` for addresses of this host.
    pub(super) fn of(ip: IpAddr, host: &[IpAddr]) -> Option<Self> {
        let ip = ip.to_canonical();
        if ip.is_loopback() || host.contains(&ip) {
            return None;
        }
        Some(Self(match ip {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits() >> 64 << 64,
        }))
    }
}

#[derive(Debug)]
struct Waiting {
    io: Io,
    source: Option<Source>,
}

/// Failures that are not forgotten, at a given time.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    at: Time,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    failures: BTreeMap<Source, Failures>,
}

impl Pending {
    /// Whether connections from a source are accepted at all.
    pub(super) fn is_accepted(&mut self, now: Time, source: Option<Source>, settings: &Settings) -> bool {
        source.is_none_or(|source| self.remembered(now, source, settings) < settings.failures.max(1))
    }

    /// Adds a connection; returns the one to be dropped for it, if any.
    pub(super) fn enter(&mut self, io: Io, source: Option<Source>, settings: &Settings) -> Option<Io> {
        self.waiting.push_back(Waiting { io, source });
        let same = |other: &Waiting| source.is_some() && other.source == source;
        let crowd = self.waiting.iter().filter(|other| same(other)).count();
        let at = if crowd > settings.guests_each.max(1) {
            self.waiting.iter().position(same)
        } else if self.waiting.len() > settings.guests.max(1) {
            Some(0)
        } else {
            None
        };
        at.and_then(|at| self.waiting.remove(at)).map(|oldest| oldest.io)
    }

    /// Removes a connection that has proved the key or has failed. Returns false if it was not pending.
    pub(super) fn leave(&mut self, now: Time, io: Io, failed: bool, settings: &Settings) -> bool {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.io == io) else {
            return false;
        };
        let source = self.waiting.remove(at).and_then(|waiting| waiting.source);
        if let Some(source) = source.filter(|_| failed) {
            self.failed(now, source, settings);
        }
        true
    }

    /// Records a failed handshake of a source.
    pub(super) fn failed(&mut self, now: Time, source: Source, settings: &Settings) {
        let count = self.remembered(now, source, settings) + 1;
        if count == 1 && self.failures.len() >= REMEMBERED {
            let least = self
                .failures
                .iter()
                .min_by_key(|(_, failures)| (failures.count, failures.at));
            if let Some((&least, _)) = least {
                self.failures.remove(&least);
            }
        }
        self.failures.insert(source, Failures { count, at: now });
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of failures that are not forgotten yet.
    fn remembered(&mut self, now: Time, source: Source, settings: &Settings) -> u32 {
        let Some(failures) = self.failures.get_mut(&source) else {
            return 0;
        };
        let step = settings.forgive.as_nanos().max(1);
        let forgiven = u32::try_from(now.since(failures.at).as_nanos() / step).unwrap_or(u32::MAX);
        let left = failures.count.saturating_sub(forgiven);
        if left == 0 {
            self.failures.remove(&source);
        } else if forgiven > 0 {
            *failures = Failures { count: left, at: now };
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings() -> Settings {
        Settings {
            guests: 4,
            guests_each: 2,
            failures: 3,
            forgive: Duration::from_secs(1),
            ..Settings::default()
        }
    }

    fn source(last: u8) -> Option<Source> {
        Source::of(IpAddr::from([198, 18, 0, last]), &[])
    }

    #[test]
    fn the_oldest_goes_first_of_its_own_address_and_then_of_all() {
        let (mut pending, settings) = (Pending::default(), settings());
        for (io, from, gone) in [
            (1, 1, None),
            (2, 2, None),
            (3, 1, None),
            (4, 1, Some(1)),
            (5, 3, None),
            (6, 4, Some(2)),
        ] {
            assert_eq!(
                pending.enter(Io(io), source(from), &settings),
                gone.map(Io),
                "{io}"
            );
        }
        assert_eq!(pending.len(), 4);
        assert!(pending.leave(Time::ZERO, Io(3), false, &settings));
        assert!(!pending.leave(Time::ZERO, Io(3), true, &settings), "once");
        // On this host, only the total number is limited.
        for io in 10..20 {
            let _ = pending.enter(Io(io), None, &settings);
        }
        assert_eq!(pending.len(), 4);
    }

    #[test]
    fn a_source_that_fails_too_often_is_refused_until_that_is_forgotten() {
        let (mut pending, settings) = (Pending::default(), settings());
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        for io in 0..3 {
            assert!(pending.is_accepted(at(0), source(1), &settings));
            pending.enter(Io(io), source(1), &settings);
            pending.leave(at(0), Io(io), true, &settings);
        }
        assert!(!pending.is_accepted(at(0), source(1), &settings));
        assert!(
            pending.is_accepted(at(0), source(2), &settings),
            "others are accepted"
        );
        assert!(
            pending.is_accepted(at(0), None, &settings),
            "and this host always is"
        );
        assert!(pending.is_accepted(at(1), source(1), &settings));
        assert!(pending.is_accepted(at(9), source(1), &settings));
        assert!(pending.failures.is_empty(), "failures are forgotten");
    }

    #[test]
    fn memory_of_failures_is_bounded_and_of_ipv6_a_network_is_one() {
        let (mut pending, settings) = (Pending::default(), settings());
        for host in 0..5000_u32 {
            let source = Source::of(IpAddr::from(host.to_be_bytes()), &[]);
            pending.failed(Time::ZERO, source.unwrap_or(Source(0)), &settings);
        }
        assert!(pending.failures.len() <= REMEMBERED);
        let of = |text: &str| Source::of(text.parse().unwrap(), &["fd00::7".parse().unwrap()]);
        assert_eq!(of("fd00::1"), of("fd00::2"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_eq!((of("fd00::7"), of("::1"), of("127.0.0.9")), (None, None, None));
    }
}
