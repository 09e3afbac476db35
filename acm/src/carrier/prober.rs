//! Probes under way: what is sent when, what came back, what follows from it. No socket and no clock.
//!
//! ```text
//!   small, full  ──►  0 ms      an echo has the token of its probe, and is as long
//!   those again  ──►  100, 400, 1000 ms, as long as they have not come back
//!   the end      at   2 s, or as soon as both have
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::frame::TOKEN;
use super::{EndpointId, Peer, ProbeId, Probed, Trouble};
use crate::address::Gid;

/// Probes that are under way at a time.
pub(super) const PROBES_MAX: usize = 256;
/// When frames are sent, after the beginning (ms).
const SENT: [u64; 4] = [0, 100, 400, 1000];
/// When a probe ends that has not come back (ms).
const END: u64 = 2000;

/// What identifies a probe to whoever sends it back: nobody who has not seen it can guess it.
pub(super) type Token = [u8; TOKEN];

/// One of the two sizes of a probe.
#[derive(Debug)]
struct Half {
    /// Random; its last byte counts the attempts, so that an echo is timed from the frame that it is of.
    token: Token,
    /// Bytes of the datagram.
    size: usize,
    /// When each attempt was sent.
    sent: [Option<Time>; SENT.len()],
    round_trip: Option<Duration>,
    /// The system does not send it.
    refused: Option<Trouble>,
}

impl Half {
    fn is_done(&self) -> bool {
        self.round_trip.is_some() || self.refused.is_some()
    }
}

#[derive(Debug)]
struct Probe {
    endpoint: EndpointId,
    to: Peer,
    from: Gid,
    begun: Time,
    attempts: usize,
    halves: [Half; 2],
}

impl Probe {
    fn deadline(&self) -> Time {
        let after = SENT.get(self.attempts).copied().unwrap_or(END);
        self.begun + Duration::from_millis(after)
    }

    fn result(&self) -> Probed {
        let [small, full] = &self.halves;
        let passed = [small, full].into_iter().filter(|half| half.round_trip.is_some());
        let trouble = match (small.round_trip.is_some(), full.round_trip.is_some()) {
            (_, true) => None,
            (true, false) => Some(full.refused.unwrap_or(Trouble::FullLost)),
            (false, false) => Some(small.refused.unwrap_or(Trouble::Silent)),
        };
        Probed {
            round_trip: passed.clone().filter_map(|half| half.round_trip).min(),
            largest: passed.map(|half| half.size).max().unwrap_or(0),
            trouble,
        }
    }
}

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shot {
    pub(super) probe: ProbeId,
    pub(super) full: bool,
    pub(super) endpoint: EndpointId,
    pub(super) to: Peer,
    pub(super) from: Gid,
    pub(super) token: Token,
    pub(super) size: usize,
}

/// All probes that are under way.
#[derive(Debug, Default)]
pub(super) struct Prober {
    open: BTreeMap<ProbeId, Probe>,
    /// By tokens without their last byte.
    tokens: HashMap<[u8; TOKEN - 1], (ProbeId, usize)>,
    next: u64,
    shots: VecDeque<Shot>,
    ended: VecDeque<(ProbeId, Probed)>,
}

fn stem(token: &Token) -> [u8; TOKEN - 1] {
    let mut stem = [0; TOKEN - 1];
    stem.copy_from_slice(&token[..TOKEN - 1]);
    stem
}

impl Prober {
    /// Begins one with these sizes and random tokens; none when there are too many.
    pub(super) fn start(
        &mut self,
        now: Time,
        (endpoint, to, from): (EndpointId, Peer, Gid),
        sizes: [usize; 2],
        tokens: [Token; 2],
    ) -> Option<ProbeId> {
        if self.open.len() >= PROBES_MAX {
            return None;
        }
        let id = ProbeId(self.next);
        self.next += 1;
        let half = |at: usize| Half {
            token: tokens[at],
            size: sizes[at],
            sent: [None; SENT.len()],
            round_trip: None,
            refused: None,
        };
        (0..2).for_each(|at| _ = self.tokens.insert(stem(&tokens[at]), (id, at)));
        let probe = Probe {
            endpoint,
            to,
            from,
            begun: now,
            attempts: 0,
            halves: [half(0), half(1)],
        };
        self.open.insert(id, probe);
        self.tick(now);
        Some(id)
    }

    /// Lets time pass: frames become due, probes end.
    pub(super) fn tick(&mut self, now: Time) {
        let due = self.open.iter().filter(|(_, probe)| probe.deadline() <= now);
        let due: Vec<ProbeId> = due.map(|(id, _)| *id).collect();
        for id in due {
            let Some(probe) = self.open.get_mut(&id) else {
                continue;
            };
            if probe.attempts == SENT.len() {
                self.end(id);
                continue;
            }
            let attempt = probe.attempts;
            probe.attempts += 1;
            for (at, half) in probe
                .halves
                .iter_mut()
                .enumerate()
                .filter(|(_, half)| !half.is_done())
            {
                half.sent[attempt] = Some(now);
                half.token[TOKEN - 1] = attempt as u8;
                self.shots.push_back(Shot {
                    probe: id,
                    full: at == 1,
                    endpoint: probe.endpoint,
                    to: probe.to,
                    from: probe.from,
                    token: half.token,
                    size: half.size,
                });
            }
        }
    }

    /// The next frame to send.
    pub(super) fn shot(&mut self) -> Option<Shot> {
        self.shots.pop_front()
    }

    /// The system did not send it.
    pub(super) fn refused(&mut self, shot: &Shot, trouble: Trouble) {
        if let Some(probe) = self.open.get_mut(&shot.probe) {
            probe.halves[usize::from(shot.full)].refused = Some(trouble);
            self.settle(shot.probe);
        }
    }

    /// An echo came, of so many bytes; false when nobody waits for it.
    pub(super) fn echo(
        &mut self,
        now: Time,
        by: EndpointId,
        from: SocketAddr,
        token: &Token,
        size: usize,
    ) -> bool {
        let Some(&(id, at)) = self.tokens.get(&stem(token)) else {
            return false;
        };
        let Some(probe) = self.open.get_mut(&id) else {
            return false;
        };
        let half = &mut probe.halves[at];
        let sent = half.sent.get(usize::from(token[TOKEN - 1])).copied().flatten();
        let (Some(sent), true) = (
            sent,
            probe.endpoint == by && probe.to.at == Some(from) && half.size == size,
        ) else {
            return false;
        };
        if half.round_trip.is_none() {
            half.round_trip = Some(now.since(sent));
            self.settle(id);
        }
        true
    }

    /// Ends a probe of which nothing is to come.
    fn settle(&mut self, id: ProbeId) {
        if self
            .open
            .get(&id)
            .is_some_and(|probe| probe.halves.iter().all(Half::is_done))
        {
            self.end(id);
        }
    }

    fn end(&mut self, id: ProbeId) {
        if let Some(probe) = self.open.remove(&id) {
            probe
                .halves
                .iter()
                .for_each(|half| _ = self.tokens.remove(&stem(&half.token)));
            self.ended.push_back((id, probe.result()));
        }
    }

    /// The next one that has ended.
    pub(super) fn ended(&mut self) -> Option<(ProbeId, Probed)> {
        self.ended.pop_front()
    }

    /// When there is something to do.
    pub(super) fn next_deadline(&self) -> Time {
        let all = self.open.values().map(Probe::deadline);
        all.min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY: EndpointId = EndpointId(1);

    fn there() -> SocketAddr {
        ([10, 0, 0, 2], 7).into()
    }

    fn started(prober: &mut Prober, now: Time, token: u8) -> Option<ProbeId> {
        let to = Peer {
            gid: Gid::NONE,
            lid: 0,
            qpn: 1,
            at: Some(there()),
            by: None,
        };
        prober.start(
            now,
            (BY, to, Gid::NONE),
            [100, 1000],
            [[token; TOKEN], [token ^ 0x80; TOKEN]],
        )
    }

    fn shots(prober: &mut Prober) -> Vec<Shot> {
        std::iter::from_fn(|| prober.shot()).collect()
    }

    #[test]
    fn both_sizes_that_come_back_are_the_end() {
        let (mut prober, mut now) = (Prober::default(), Time::from_nanos(1));
        let id = started(&mut prober, now, 1).unwrap();
        let sent = shots(&mut prober);
        assert_eq!(sent.iter().map(|shot| shot.size).collect::<Vec<_>>(), [100, 1000]);
        now += Duration::from_micros(30);
        assert!(prober.echo(now, BY, there(), &sent[0].token, 100));
        now += Duration::from_micros(30);
        assert!(prober.ended().is_none());
        assert!(prober.echo(now, BY, there(), &sent[1].token, 1000));
        let (ended, result) = prober.ended().unwrap();
        assert_eq!(ended, id);
        let whole = Probed {
            round_trip: Some(Duration::from_micros(30)),
            largest: 1000,
            trouble: None,
        };
        assert_eq!(result, whole);
        assert_eq!(prober.next_deadline(), Time::NEVER);
        assert!(
            !prober.echo(now, BY, there(), &sent[1].token, 1000),
            "nobody waits for it any more"
        );
    }

    #[test]
    fn what_is_lost_is_sent_again_and_in_the_end_given_up() {
        let (mut prober, mut now) = (Prober::default(), Time::from_nanos(1));
        started(&mut prober, now, 1).unwrap();
        let mut sizes = Vec::new();
        while prober.next_deadline() != Time::NEVER {
            for shot in shots(&mut prober) {
                sizes.push(shot.size);
                if shot.size == 100 && shot.token[TOKEN - 1] == 1 {
                    assert!(prober.echo(now + Duration::from_millis(1), BY, there(), &shot.token, 100));
                }
            }
            now = prober.next_deadline();
            prober.tick(now);
        }
        assert_eq!(sizes, [100, 1000, 100, 1000, 1000, 1000]);
        let result = prober.ended().unwrap().1;
        assert_eq!(result.trouble, Some(Trouble::FullLost));
        assert_eq!(
            (result.largest, result.round_trip),
            (100, Some(Duration::from_millis(1)))
        );
    }

    #[test]
    fn an_echo_of_somebody_else_is_none() {
        let (mut prober, now) = (Prober::default(), Time::from_nanos(1));
        started(&mut prober, now, 1).unwrap();
        let token = shots(&mut prober)[0].token;
        assert!(!prober.echo(now, EndpointId(2), there(), &token, 100));
        assert!(!prober.echo(now, BY, ([10, 0, 0, 3], 7).into(), &token, 100));
        assert!(!prober.echo(now, BY, there(), &token, 99));
        assert!(!prober.echo(now, BY, there(), &[9; TOKEN], 100));
        let mut later = token;
        later[TOKEN - 1] = 3;
        assert!(
            !prober.echo(now, BY, there(), &later, 100),
            "an attempt that was not made"
        );
        assert!(prober.echo(now, BY, there(), &token, 100));
    }

    #[test]
    fn what_the_system_does_not_send_is_said() {
        let (mut prober, now) = (Prober::default(), Time::from_nanos(1));
        started(&mut prober, now, 1).unwrap();
        let sent = shots(&mut prober);
        prober.refused(&sent[1], Trouble::FullRefused);
        assert!(prober.echo(now, BY, there(), &sent[0].token, 100));
        assert_eq!(prober.ended().unwrap().1.trouble, Some(Trouble::FullRefused));
    }

    #[test]
    fn there_is_a_bound() {
        let (mut prober, now) = (Prober::default(), Time::from_nanos(1));
        let begun = (0..PROBES_MAX + 5)
            .filter(|_| started(&mut prober, now, 1).is_some())
            .count();
        assert_eq!(begun, PROBES_MAX);
    }
}
