//! Ways that are chosen, break and come back: one story each, between two links over rails that do what they are told.

use std::time::Duration;

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{
    Access, Body, Exposure, Incarnation, Landing, OpId, Refused, Remote, RemoteKey,
};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use super::air::{self, Air, CAN, Ends};
use super::world::{Heard, head, length};
use crate::link::flight::{COST, WINDOW};
use crate::link::way::State;
use crate::link::{Link, LinkConfig, PeerId};

const PEER: PeerId = PeerId(1);

/// Two links with some rails between them.
struct Stage {
    links: [Link<Air>; 2],
    heard: [Heard; 2],
    sent: [u64; 2],
    ends: Vec<Ends>,
    now: Time,
}

fn can(latency_ns: u64, bandwidth: u64) -> Capabilities {
    let mut can = CAN;
    (can.estimate.latency_ns, can.estimate.bandwidth) = (latency_ns, bandwidth);
    can
}

fn within_host() -> Capabilities {
    let mut can = can(100, 10_000_000_000);
    (can.features.within_host, can.features.get) = (true, true);
    (can.limits.one_sided, can.limits.get_from) = (1 << 20, 4096);
    can
}

/// What two ways do: answer, or hold back.
const TWO: [Capabilities; 2] = [CAN, CAN];

impl Stage {
    fn new(rails: &[Capabilities]) -> Self {
        Self::with(rails, LinkConfig::default())
    }

    fn with(rails: &[Capabilities], config: LinkConfig) -> Self {
        let mut links = [0, 1].map(|_| {
            let mut link = Link::new(config);
            link.add_peer();
            link
        });
        let mut ends = Vec::new();
        for can in rails {
            let pair = air::pair(*can);
            ends.push(pair[0].ends.clone());
            let address = pair[0].address();
            for (link, rail) in links.iter_mut().zip(pair) {
                let rail = link.add_rail(rail).expect("there is room");
                link.connect(PEER, rail, &address, Incarnation(1))
                    .expect("it is there");
            }
        }
        let heard = [0, 1].map(|_| Heard {
            long: 12_000,
            ..Heard::default()
        });
        let mut stage = Self {
            links,
            heard,
            sent: [0; 2],
            ends,
            now: Time::ZERO + Duration::from_secs(1),
        };
        stage.pass(0);
        stage
    }

    /// Everybody looks, a few times; then so many milliseconds pass.
    fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        loop {
            for _ in 0..4 {
                for (link, heard) in self.links.iter_mut().zip(&mut self.heard) {
                    link.poll(1000, heard);
                    link.progress(self.now);
                    link.poll(1000, heard);
                }
            }
            if self.now >= end {
                return;
            }
            self.now = end.min(self.now + Duration::from_millis(5));
        }
    }

    fn try_send(&mut self, side: usize, urgent: bool) -> Result<(), Refused> {
        let number = self.sent[side];
        let body = vec![number as u8; length(number, 12_000)];
        self.links[side].send(PEER, &mut head(1, number), Body::Bytes(&body), urgent)?;
        self.sent[side] += 1;
        Ok(())
    }

    fn send(&mut self, side: usize, count: u64) {
        for _ in 0..count {
            self.try_send(side, false).expect("there is room");
        }
    }

    /// Sends the next message that is short.
    fn send_short(&mut self, side: usize) {
        while length(self.sent[side], 12_000) > 2000 {
            self.send(side, 1);
        }
        self.send(side, 1);
    }

    fn way(&self, side: usize, at: usize) -> State {
        self.links[side].core.peers[1].ways[at].state
    }

    fn all_arrived(&mut self) {
        self.pass(10);
        for side in 0..2 {
            let heard = self.heard[1 - side].from.get(1).copied().unwrap_or(0);
            assert_eq!(
                heard,
                self.sent[side],
                "from side {side}: {:?}",
                self.links[side].explain()
            );
        }
    }

    /// The link goes at both ends.
    fn unplug(&mut self, at: usize) {
        self.ends[at]
            .borrow_mut()
            .iter_mut()
            .for_each(|end| end.silent = true);
        for side in 0..2 {
            air::tell(&self.ends[at], side, EventKind::LinkDown, 0);
        }
    }

    /// Both directions stand again, in a new connection.
    fn plug(&mut self, at: usize, life: u32) {
        for end in self.ends[at].borrow_mut().iter_mut() {
            (end.silent, end.down) = (false, false);
            end.under_way.clear();
        }
        for side in 0..2 {
            air::tell(&self.ends[at], side, EventKind::LinkUp, 0);
            air::tell(&self.ends[at], side, EventKind::PeerUp, life);
        }
    }

    fn bytes(&self, at: usize) -> usize {
        self.ends[at].borrow()[0].bytes
    }
}

#[test]
fn short_messages_take_the_quickest_way_and_long_ones_share_by_rate() {
    let mut stage = Stage::new(&[can(5000, 3_000_000_000), can(1000, 1_000_000_000)]);
    stage.send_short(0);
    stage.pass(30);
    let before = [stage.bytes(0), stage.bytes(1)];
    for _ in 0..20 {
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Empty, false)
            .expect("there is room");
    }
    assert_eq!(stage.bytes(0), before[0]);
    for _ in 0..200 {
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 16_000]), false)
            .expect("there is room");
    }
    let shares = [stage.bytes(0) - before[0], stage.bytes(1) - before[1]];
    let ratio = shares[0] as f64 / shares[1] as f64;
    assert!((2.5..3.5).contains(&ratio), "{shares:?}");
    // One that carries less than was estimated is given less.
    stage.ends[0].borrow_mut()[0].silent = true;
    let before = [stage.bytes(0), stage.bytes(1)];
    for _ in 0..100 {
        stage.ends[1].borrow_mut()[0].under_way.clear();
        stage.links[0]
            .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 16_000]), false)
            .expect("there is room");
    }
    assert!(stage.bytes(1) - before[1] > 8 * (stage.bytes(0) - before[0]));
}

#[test]
fn beside_a_way_within_the_host_no_other_is_used() {
    let mut stage = Stage::new(&[CAN, within_host()]);
    stage.send(0, 200);
    stage.all_arrived();
    stage.pass(30);
    let before = stage.bytes(0);
    stage.send(0, 200);
    stage.all_arrived();
    assert_eq!(stage.bytes(0), before);
    assert_eq!(stage.links[0].sizes(PEER).get_from, Some(4096));
}

#[test]
fn a_suspect_carries_nothing_new_and_hears_that_its_peer_lives() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 50);
    stage.all_arrived();
    stage.pass(30);
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.send_short(0);
    air::tell(&stage.ends[0], 0, EventKind::PeerSuspect, 0);
    stage.pass(0);
    let before = stage.bytes(0);
    stage.send(0, 100);
    stage.pass(100);
    assert_eq!((stage.way(0, 0), stage.bytes(0)), (State::Suspect, before));
    assert!(
        stage.ends[0].borrow()[0].proved >= 3,
        "asked over the other one, and told"
    );
    // What it carried is waited for: nothing overtakes it.
    assert!(stage.heard[1].from[1] < stage.sent[0] - 100);
    stage.ends[0].borrow_mut()[0].silent = false;
    air::tell(&stage.ends[0], 0, EventKind::PeerRecovered, 0);
    stage.all_arrived();
    stage.send_short(0);
    assert!(stage.bytes(0) > before && stage.way(0, 0) == State::Up);
    assert_eq!(stage.links[0].stats().resent, 0);
}

#[test]
fn a_suspect_whose_peer_answers_elsewhere_is_given_up_after_a_second_and_both_ends_know() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.send(0, 40);
    air::tell(&stage.ends[0], 0, EventKind::PeerSuspect, 0);
    stage.pass(900);
    assert_eq!(stage.way(0, 0), State::Suspect);
    stage.pass(200);
    assert_ne!(stage.way(0, 0), State::Suspect);
    assert_ne!(stage.way(1, 0), State::Up);
    assert!(stage.ends[0].borrow().iter().all(|end| end.abandoned == 1));
    stage.all_arrived();
    assert!(stage.links[0].stats().resent > 0);
}

#[test]
fn a_suspect_whose_peer_does_not_poll_is_not_given_up() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    for ends in &stage.ends {
        ends.borrow_mut()[0].silent = true;
        air::tell(ends, 0, EventKind::PeerSuspect, 0);
    }
    stage.pass(5000);
    assert_eq!([stage.way(0, 0), stage.way(0, 1)], [State::Suspect; 2]);
    stage.send(0, 5);
    for ends in &stage.ends {
        ends.borrow_mut()[0].silent = false;
    }
    stage.all_arrived();
}

#[test]
fn what_a_broken_way_carried_goes_over_the_other_in_order_and_what_had_arrived_is_dropped() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    // The peer takes these, and our rail does not hear of it.
    let kept = {
        stage.ends[0].borrow_mut()[0].silent = true;
        stage.send(0, 30);
        stage.ends[0].borrow()[0].under_way.clone()
    };
    stage.ends[0].borrow_mut()[0].silent = false;
    stage.pass(0);
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.ends[0].borrow_mut()[0].under_way = kept.clone();
    air::tell(&stage.ends[0], 0, EventKind::PeerDown(DownReason::Silent), 0);
    stage.send(0, 5);
    stage.pass(1);
    stage.send(0, 20);
    stage.all_arrived();
    let stats = stage.links[0].stats();
    assert_eq!(stats.ways_down, 1);
    assert!(stats.resent as usize >= kept.len() && stage.links[1].stats().duplicates as usize == kept.len());
}

#[test]
fn a_way_that_returns_beside_another_proves_itself_for_half_a_second() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    stage.unplug(0);
    stage.pass(10);
    assert_eq!(stage.way(0, 0), State::Down);
    stage.plug(0, 2);
    stage.pass(10);
    assert_eq!([stage.way(0, 0), stage.way(1, 0)], [State::Returning; 2]);
    let before = stage.bytes(0);
    stage.pass(450);
    stage.send(0, 20);
    assert_eq!(stage.way(0, 0), State::Returning);
    let probes = stage.bytes(0) - before;
    assert!(probes <= 16 * 8, "{probes} bytes");
    stage.pass(60);
    assert_eq!([stage.way(0, 0), stage.way(1, 0)], [State::Up; 2]);
    let before = stage.bytes(0);
    stage.send_short(0);
    stage.all_arrived();
    assert!(stage.bytes(0) > before);
    assert_eq!(
        (
            stage.links[0].stats().ways_down,
            stage.links[0].stats().ways_returned
        ),
        (1, 1)
    );
}

#[test]
fn a_way_that_returns_alone_is_used_at_once_and_what_waited_goes_first() {
    let mut stage = Stage::new(&[CAN]);
    stage.send(0, 10);
    stage.all_arrived();
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.send(0, 10);
    stage.unplug(0);
    stage.pass(0);
    assert_eq!(stage.try_send(0, false), Err(Refused::Full));
    assert!(!stage.links[0].room(PEER) && stage.links[0].waits() && !stage.links[0].must_poll());
    stage.try_send(0, true).expect("urgent ones wait here");
    stage.pass(3000);
    let revived = stage.ends[0].borrow()[0].revived;
    assert!((3..=8).contains(&revived), "{revived} calls");
    stage.plug(0, 2);
    stage.pass(0);
    assert!(stage.links[0].room(PEER) && stage.way(0, 0) == State::Up);
    stage.send(0, 10);
    stage.all_arrived();
    assert_eq!(
        (stage.links[0].stats().resent, stage.links[0].stats().waited),
        (10, 1)
    );
    assert_eq!(stage.links[0].lost(), None);
}

#[test]
fn patience_with_a_peer_ends_and_it_is_lost_once() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    stage.unplug(0);
    stage.unplug(1);
    stage.pass(0);
    stage.try_send(0, true).expect("urgent ones wait here");
    stage.pass(9_900);
    assert_eq!(stage.links[0].lost(), None);
    stage.pass(200);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Abandoned)));
    assert_eq!(stage.links[0].lost(), None);
    assert_eq!(stage.try_send(0, true), Err(Refused::PeerDown));
    let memory = Exposure::Read(ConstLoan::of_static(b"abc"));
    assert!(!stage.links[0].waits() && stage.links[0].expose(PEER, memory, Access::Read).is_none());
    // What comes of it now is not shown.
    stage.plug(0, 2);
    let heard = stage.heard[0].from.get(1).copied();
    stage.ends[0].borrow_mut()[1]
        .under_way
        .push_back((1, head(1, 0).to_vec()));
    stage.pass(100);
    assert_eq!(stage.heard[0].from.get(1).copied(), heard);
    assert!(stage.links[0].stats().from_nobody > 0 && stage.links[0].stats().lost == 1);
    assert_eq!(
        stage.links[0].next_deadline(),
        None,
        "nothing is due for who is lost"
    );
}

#[test]
fn without_patience_the_last_way_is_the_end_and_so_is_a_goodbye() {
    let config = LinkConfig {
        patience: Duration::ZERO,
        ..LinkConfig::default()
    };
    let mut stage = Stage::with(&[CAN], config);
    air::tell(&stage.ends[0], 0, EventKind::LinkDown, 0);
    stage.pass(0);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Abandoned)));
    let mut stage = Stage::new(&TWO);
    for at in 0..2 {
        air::tell(&stage.ends[at], 0, EventKind::PeerDown(DownReason::Closed), 0);
    }
    stage.pass(0);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Closed)));
}

#[test]
fn a_process_that_was_away_does_not_count_that_against_its_peers() {
    let mut stage = Stage::new(&[CAN]);
    stage.send(0, 1);
    stage.unplug(0);
    stage.pass(100);
    stage.now += Duration::from_secs(60);
    stage.pass(0);
    assert_eq!(stage.links[0].lost(), None);
}

#[test]
fn a_process_that_is_seen_to_end_within_the_host_is_lost_after_its_last_words() {
    let mut stage = Stage::new(&[within_host(), CAN]);
    stage.send(1, 10);
    stage.pass(30);
    // Its last words are on the other way.
    air::tell(&stage.ends[0], 1, EventKind::PeerDown(DownReason::Abandoned), 0);
    stage.links[1].progress(stage.now);
    stage.send(1, 10);
    air::tell(&stage.ends[0], 0, EventKind::PeerDown(DownReason::Died), 0);
    stage.links[0].progress(stage.now);
    stage.links[0].poll(100, &mut stage.heard[0]);
    assert_eq!((stage.heard[0].from[1], stage.links[0].lost()), (20, None));
    stage.pass(20);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Died)));
}

#[test]
fn a_rail_that_gives_nothing_back_costs_the_peer_only_when_something_was_under_way() {
    let mut lossy = CAN;
    lossy.features.reclaim = false;
    for under_way in [0, 3] {
        let mut stage = Stage::new(&[lossy, CAN]);
        stage.send(0, 10);
        stage.pass(30);
        stage.ends[0].borrow_mut()[0].silent = true;
        (0..under_way).for_each(|_| stage.send_short(0));
        air::tell(&stage.ends[0], 0, EventKind::PeerDown(DownReason::Silent), 0);
        stage.pass(10);
        let lost = (under_way > 0).then_some((PEER, DownReason::Abandoned));
        assert_eq!(stage.links[0].lost(), lost);
        if under_way == 0 {
            stage.send(0, 10);
            stage.all_arrived();
        }
    }
}

#[test]
fn urgent_messages_wait_in_order_up_to_a_bound_and_the_others_behind_them() {
    let config = LinkConfig {
        backlog: 100_000,
        ..LinkConfig::default()
    };
    let mut stage = Stage::with(&[CAN], config);
    stage.send(0, 10);
    stage.ends[0].borrow_mut()[0].full = true;
    assert_eq!(stage.try_send(0, false), Err(Refused::Full));
    let mut waiting = 0;
    while stage.try_send(0, true).is_ok() {
        waiting += 1;
    }
    assert!(waiting > 20 && stage.links[0].core.peers[1].fresh_bytes <= 100_000);
    assert!(!stage.links[0].room(PEER) && stage.links[0].must_poll());
    stage.ends[0].borrow_mut()[0].full = false;
    // The next one may not overtake them.
    stage.send(0, 1);
    stage.all_arrived();
    assert_eq!(stage.links[0].stats().waited, waiting);
    assert_eq!(stage.links[0].core.peers[1].fresh_bytes, 0);
}

#[test]
fn no_more_than_a_window_is_under_way() {
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].silent = true;
    let mut sent = 0_u64;
    while stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 984]), false)
        .is_ok()
    {
        sent += 1;
    }
    assert_eq!(sent, WINDOW / (1000 + COST));
    // With half of it taken, there is room for about as much again.
    stage.ends[0].borrow_mut()[0].under_way.drain(..sent as usize / 2);
    let mut more = 0;
    while stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 984]), false)
        .is_ok()
    {
        more += 1;
    }
    assert!(more <= sent / 2 && more > sent / 2 - sent / 8, "{more} of {sent}");
}

#[test]
fn a_body_in_parts_is_gathered_where_a_rail_does_not() {
    let mut stage = Stage::new(&[CAN]);
    let loan = ConstLoan::of_static(&[0; 12_000]);
    let length = length(0, 12_000);
    let parts = [loan.part(0, 1), loan.part(1, length - 1)];
    stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Parts(&parts), false)
        .expect("there is room");
    stage.sent[0] = 1;
    stage.all_arrived();
}

#[test]
fn a_message_that_no_other_way_can_carry_ends_the_peer_and_not_the_process() {
    let mut narrow = CAN;
    narrow.limits.message = 4096;
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].silent = true;
    stage.links[0]
        .send(PEER, &mut head(1, 0), Body::Bytes(&[0; 9000]), false)
        .expect("there is room");
    let pair = air::pair(narrow);
    let address = pair[0].address();
    let [rail, _] = pair;
    let link = &mut stage.links[0];
    let rail = link.add_rail(rail).expect("there is room");
    link.connect(PEER, rail, &address, Incarnation(1))
        .expect("it is there");
    assert_eq!(link.sizes(PEER).message, 4096);
    assert_eq!(
        link.send(PEER, &mut head(1, 0), Body::Bytes(&[0; 9000]), false),
        Err(Refused::TooLong)
    );
    air::tell(&stage.ends[0], 0, EventKind::DeviceGone, 0);
    stage.pass(10);
    assert_eq!(stage.links[0].lost(), Some((PEER, DownReason::Abandoned)));
}

#[test]
fn a_way_that_never_worked_is_left_for_one_that_does() {
    let mut stage = Stage::new(&[can(100, 1_000_000_000), can(9000, 1_000_000_000)]);
    stage.ends[0]
        .borrow_mut()
        .iter_mut()
        .for_each(|end| end.silent = true);
    stage.send(0, 10);
    stage.pass(200);
    assert_eq!(stage.heard[1].from.get(1), None);
    stage.pass(1500);
    assert_ne!(stage.way(0, 0), State::Up);
    stage.all_arrived();
}

#[test]
fn gets_go_over_the_way_that_was_exposed_over_and_end_when_it_breaks() {
    let mut stage = Stage::new(&[CAN, within_host()]);
    static BYTES: [u8; 100] = [3; 100];
    let memory = || Exposure::Read(ConstLoan::of_static(&BYTES));
    let (way, remote) = stage.links[1]
        .expose(PEER, memory(), Access::Read)
        .expect("one way can");
    assert_eq!((way, remote.length.get()), (1, 100));
    assert!(stage.links[1].expose(PEER, memory(), Access::Write).is_none());
    let get = |link: &mut Link<Air>, way: u16, remote: &Remote| {
        link.get(PEER, way, OpId(5), remote, Landing::EMPTY)
    };
    assert_eq!(get(&mut stage.links[0], 1, &remote), Ok(()));
    for way in [2, u16::MAX] {
        assert_eq!(get(&mut stage.links[0], way, &remote), Err(Refused::PeerDown));
    }
    // The rail ends what is under way when it breaks.
    stage.ends[1].borrow_mut()[0].operations.push(OpId(5));
    air::tell(&stage.ends[1], 0, EventKind::PeerDown(DownReason::Silent), 0);
    stage.pass(0);
    assert!(matches!(stage.heard[0].ended[..], [(OpId(5), Err(_))]));
    assert_eq!(get(&mut stage.links[0], 1, &remote), Err(Refused::PeerDown));
    assert_eq!(stage.links[0].sizes(PEER).get_from, None);
    stage.links[1].withdraw(PEER, way, RemoteKey(remote.key.get()));
    stage.links[1].withdraw(PEER, 99, RemoteKey(1));
    assert!(stage.ends[1].borrow()[1].exposed.is_empty());
}

#[test]
fn a_close_pushes_out_what_waits_and_ends_in_time() {
    let mut stage = Stage::new(&[CAN]);
    stage.ends[0].borrow_mut()[0].full = true;
    stage.try_send(0, true).expect("urgent ones wait here");
    let by = stage.now + Duration::from_millis(10);
    assert!(!stage.links[0].close(stage.now, by));
    stage.ends[0].borrow_mut()[0].full = false;
    assert!(!stage.links[0].close(stage.now, by), "it is under way");
    stage.all_arrived();
    assert!(stage.links[0].close(stage.now, by));
    let by = stage.now + Duration::from_millis(10);
    stage.ends[0].borrow_mut()[1].full = true;
    stage.try_send(1, true).expect("urgent ones wait here");
    assert!(!stage.links[1].close(stage.now, by) && stage.links[1].close(by, by));
}

#[test]
fn rails_are_numbered_and_an_address_is_one_peers() {
    let mut stage = Stage::new(&TWO);
    let link = &mut stage.links[0];
    assert_eq!(link.rails().map(|(at, _)| at.0).collect::<Vec<_>>(), [0, 1]);
    let at = crate::link::RailId(0);
    assert!(link.rail_mut(at).is_some() && link.rail(crate::link::RailId(2)).is_none());
    let address = link.rail(at).map(Rail::address).expect("it is there");
    let other = link.add_peer();
    assert!(
        link.connect(other, at, &address, Incarnation(1)).is_err(),
        "another peer's"
    );
    assert!(
        link.connect(other, crate::link::RailId(9), &address, Incarnation(1))
            .is_err()
    );
    assert!(link.connect(PeerId::SELF, at, &address, Incarnation(1)).is_err());
    assert!(
        link.connect(PEER, at, &address, Incarnation(1)).is_ok(),
        "again, which changes nothing"
    );
    assert_eq!(link.core.peers[1].ways.len(), 2);
    let [rail, _] = air::pair(CAN);
    let ends = rail.ends.clone();
    let mut count = 2;
    let mut next = Some(rail);
    while let Some(rail) = next.take() {
        if link.add_rail(rail).is_some() {
            count += 1;
            let [rail, _] = air::pair(CAN);
            next = Some(rail);
        }
    }
    assert_eq!((count, ends.borrow()[0].accepted), (64, 0));
}
