//! Probes in flight: frames of every possible MTU, and their echoes; sans I/O.
//!
//! An echo has the token of its probe, and the same length. The schedule is in `sizes`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use doorbell_fabric::time::Time;

use super::frame::TOKEN;
use super::sizes::Sizes;
use super::{EndpointId, Peer, ProbeId, Probed, Trouble};
use crate::address::Gid;
use crate::path::Mtu;

/// Maximum number of probes in flight.
pub(super) const PROBES_MAX: usize = 256;

/// Identifies a frame when it comes back; unpredictable to those who have not received it.
pub(super) type Token = [u8; TOKEN];
/// Random bytes of a token; the index of the size and the attempt follow, so that each echo is timed from its
/// own frame.
pub(super) const STEM: usize = TOKEN - 2;
type Stem = [u8; STEM];

#[derive(Debug)]
struct Probe {
    endpoint: EndpointId,
    to: Peer,
    from: Gid,
    stem: Stem,
    sizes: Sizes,
}

/// A frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeFrame {
    pub(super) probe: ProbeId,
    pub(super) endpoint: EndpointId,
    pub(super) to: Peer,
    pub(super) from: Gid,
    pub(super) token: Token,
    /// The length of the datagram (bytes).
    pub(super) size: usize,
}

/// All probes in flight.
#[derive(Debug, Default)]
pub(super) struct Prober {
    open: BTreeMap<ProbeId, Probe>,
    stems: HashMap<Stem, ProbeId>,
    next: u64,
    shots: VecDeque<ProbeFrame>,
    ended: VecDeque<(ProbeId, Probed)>,
}

/// Splits a token into its random bytes, the index of the size and the attempt.
fn parts(token: &Token) -> (Stem, u8, u8) {
    let mut stem = [0; STEM];
    stem.copy_from_slice(&token[..STEM]);
    (stem, token[STEM], token[STEM + 1])
}

impl Prober {
    /// Starts a probe with these random bytes; `None` if too many are in flight.
    pub(super) fn start(
        &mut self,
        now: Time,
        (endpoint, to, from): (EndpointId, Peer, Gid),
        mtu: Mtu,
        stem: Stem,
    ) -> Option<ProbeId> {
        if self.open.len() >= PROBES_MAX {
            return None;
        }
        let id = ProbeId(self.next);
        self.next += 1;
        self.stems.insert(stem, id);
        let probe = Probe {
            endpoint,
            to,
            from,
            stem,
            sizes: Sizes::up_to(mtu, now),
        };
        self.open.insert(id, probe);
        self.tick(now);
        Some(id)
    }

    /// Handles what is due: frames to send, probes to end.
    pub(super) fn tick(&mut self, now: Time) {
        let due = self
            .open
            .iter()
            .filter(|(_, probe)| probe.sizes.deadline() <= now);
        let due: Vec<ProbeId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.send_due(now, id);
            self.settle(now, id);
        }
    }

    /// Queues the frames of a probe that are due.
    fn send_due(&mut self, now: Time, id: ProbeId) {
        let Some(probe) = self.open.get_mut(&id) else {
            return;
        };
        while let Some(attempt) = probe.sizes.attempt(now) {
            let open = probe.sizes.each.iter_mut().enumerate();
            for (at, size) in open.filter(|(_, size)| size.is_open()) {
                size.is_sent(attempt, now);
                let mut token = [0; TOKEN];
                token[..STEM].copy_from_slice(&probe.stem);
                (token[STEM], token[STEM + 1]) = (at as u8, attempt as u8);
                self.shots.push_back(ProbeFrame {
                    probe: id,
                    endpoint: probe.endpoint,
                    to: probe.to,
                    from: probe.from,
                    token,
                    size: size.body,
                });
            }
        }
    }

    /// Returns the next frame to send.
    pub(super) fn shot(&mut self) -> Option<ProbeFrame> {
        self.shots.pop_front()
    }

    /// Takes the system's refusal to send a frame.
    pub(super) fn refused(&mut self, now: Time, shot: &ProbeFrame, trouble: Trouble) {
        let (_, at, _) = parts(&shot.token);
        if let Some(probe) = self.open.get_mut(&shot.probe)
            && let Some(size) = probe.sizes.each.get_mut(usize::from(at))
        {
            size.refuse(trouble);
            self.settle(now, shot.probe);
        }
    }

    /// Takes an echo of a given length; returns false if it belongs to no open probe.
    pub(super) fn echo(
        &mut self,
        now: Time,
        by: EndpointId,
        from: SocketAddr,
        token: &Token,
        size: usize,
    ) -> bool {
        let (stem, at, attempt) = parts(token);
        let Some(&id) = self.stems.get(&stem) else {
            return false;
        };
        let Some(probe) = self.open.get_mut(&id) else {
            return false;
        };
        let is_his = probe.endpoint == by && probe.to.at == Some(from);
        if !is_his || !probe.sizes.came_back(now, at, attempt, size) {
            return false;
        }
        self.settle(now, id);
        true
    }

    /// Ends a probe if it can bring nothing more.
    fn settle(&mut self, now: Time, id: ProbeId) {
        let over = self.open.get(&id).is_some_and(|probe| probe.sizes.is_over(now));
        if over && let Some(probe) = self.open.remove(&id) {
            self.stems.remove(&probe.stem);
            self.shots.retain(|shot| shot.probe != id);
            self.ended.push_back((id, probe.sizes.result()));
        }
    }

    /// Returns the next probe that has ended.
    pub(super) fn ended(&mut self) -> Option<(ProbeId, Probed)> {
        self.ended.pop_front()
    }

    /// Returns when something is due.
    pub(super) fn next_deadline(&self) -> Time {
        let all = self.open.values().map(|probe| probe.sizes.deadline());
        all.min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BY: EndpointId = EndpointId(1);

    fn there() -> SocketAddr {
        ([10, 0, 0, 2], 7).into()
    }

    /// Starts a probe with payloads of 256 and 512 bytes.
    fn started(prober: &mut Prober, now: Time, token: u8) -> Option<ProbeId> {
        let to = Peer {
            gid: Gid::NONE,
            lid: 0,
            qpn: 1,
            at: Some(there()),
            by: None,
        };
        let mtu = Mtu::within(512).unwrap();
        prober.start(now, (BY, to, Gid::NONE), mtu, [token; STEM])
    }

    fn shots(prober: &mut Prober) -> Vec<ProbeFrame> {
        std::iter::from_fn(|| prober.shot()).collect()
    }

    #[test]
    fn the_largest_that_comes_back_is_the_end() {
        let (mut prober, mut now) = (Prober::default(), Time::from_nanos(1));
        let id = started(&mut prober, now, 1).unwrap();
        let sent = shots(&mut prober);
        assert_eq!(sent.iter().map(|shot| shot.size).collect::<Vec<_>>(), [304, 560]);
        now += Duration::from_micros(30);
        assert!(prober.echo(now, BY, there(), &sent[0].token, 304));
        now += Duration::from_micros(30);
        assert!(prober.ended().is_none());
        assert!(prober.echo(now, BY, there(), &sent[1].token, 560));
        let (ended, result) = prober.ended().unwrap();
        assert_eq!(ended, id);
        let whole = Probed {
            round_trip: Some(Duration::from_micros(30)),
            largest: 560,
            trouble: None,
        };
        assert_eq!(result, whole);
        assert_eq!(prober.next_deadline(), Time::NEVER);
        assert!(
            !prober.echo(now, BY, there(), &sent[1].token, 560),
            "the probe has ended"
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
                if shot.size == 304 && shot.token[STEM + 1] == 1 {
                    assert!(prober.echo(now + Duration::from_millis(1), BY, there(), &shot.token, 304));
                }
            }
            now = prober.next_deadline();
            prober.tick(now);
        }
        assert_eq!(sizes, [304, 560, 304, 560, 560]);
        let result = prober.ended().unwrap().1;
        assert_eq!(result.trouble, Some(Trouble::FullLost));
        assert_eq!(
            (result.largest, result.round_trip),
            (304, Some(Duration::from_millis(1)))
        );
    }

    #[test]
    fn an_echo_of_another_host_is_none() {
        let (mut prober, now) = (Prober::default(), Time::from_nanos(1));
        started(&mut prober, now, 1).unwrap();
        let token = shots(&mut prober)[0].token;
        assert!(!prober.echo(now, EndpointId(2), there(), &token, 304));
        assert!(!prober.echo(now, BY, ([10, 0, 0, 3], 7).into(), &token, 304));
        assert!(!prober.echo(now, BY, there(), &token, 303));
        assert!(!prober.echo(now, BY, there(), &[9; TOKEN], 304));
        for wrong in [STEM, STEM + 1] {
            let mut other = token;
            other[wrong] = 3;
            assert!(!prober.echo(now, BY, there(), &other, 304), "it was not sent");
        }
        assert!(prober.echo(now, BY, there(), &token, 304));
    }

    #[test]
    fn what_the_system_does_not_send_is_said() {
        let (mut prober, now) = (Prober::default(), Time::from_nanos(1));
        started(&mut prober, now, 1).unwrap();
        let sent = shots(&mut prober);
        prober.refused(now, &sent[1], Trouble::FullRefused);
        assert!(prober.echo(now, BY, there(), &sent[0].token, 304));
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
