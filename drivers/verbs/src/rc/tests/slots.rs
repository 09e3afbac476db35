//! Slots that end with a connection which breaks in the middle of a send: some devices report nothing of
//! them.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::{Body, Message, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use super::credits::Count;
use super::{RcRail, counts, device_of, rail, small};
use crate::rc::link::State;
use crate::sys::model;

/// One rail that receives, and some that send to it.
struct Star {
    now: Time,
    hub: RcRail,
    seen: Count,
    others: Vec<(RcRail, PeerIndex)>,
    /// The hub's numbers of them.
    of_hub: Vec<PeerIndex>,
}

impl Star {
    fn new(others: usize) -> Self {
        let (mut hub, life) = rail(small());
        let (mut all, mut of_hub) = (Vec::new(), Vec::new());
        for _ in 0..others {
            let (mut other, its) = rail(small());
            let to_hub = other.open(&hub.address(), life).unwrap();
            of_hub.push(hub.open(&other.address(), its).unwrap());
            all.push((other, to_hub));
        }
        Self {
            now: Time::ZERO,
            hub,
            seen: Count::default(),
            others: all,
            of_hub,
        }
    }

    fn turn(&mut self) {
        self.now += Duration::from_millis(1);
        self.hub.progress(self.now);
        self.hub.poll(64, &mut self.seen);
        while self.hub.event().is_some() {}
        for (other, _) in &mut self.others {
            other.progress(self.now);
            other.poll(64, &mut Count::default());
        }
    }

    fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_done(self) {
                return;
            }
            self.turn();
        }
        panic!("never happened: {what}; {:?}", self.hub);
    }

    /// One message of a rail arrives, over the next connection if this one is over.
    fn works(&mut self, from: usize) {
        let goal = self.seen.0 + 1;
        let mut is_sent = false;
        self.until("a message is shown", |star| {
            let (other, to_hub) = &mut star.others[from];
            // What a connection that is over has not brought goes again.
            other.reclaim(*to_hub, &mut |_, _| is_sent = false);
            is_sent = is_sent || other.send(*to_hub, b"hello", Body::Empty).is_ok();
            other.revive(*to_hub);
            star.hub.revive(star.of_hub[from]);
            star.seen.0 >= goal
        });
    }

    /// A connection ends in the middle of a send.
    fn tears(&mut self, from: usize) {
        self.works(from);
        let (other, to_hub) = &mut self.others[from];
        while other.event().is_some() {}
        model::tear_sends(&device_of(other), 1);
        let index = *to_hub;
        other.send(index, b"torn", Body::Bytes(&[7; 5000])).unwrap();
        let mut is_down = false;
        self.until("the connection ends", |star| {
            let other = &mut star.others[from].0;
            while let Some(event) = other.event() {
                is_down |= matches!(event.kind, EventKind::PeerDown(_));
            }
            is_down
        });
        self.others[from].0.reclaim(index, &mut |_, _| ());
    }
}

#[test]
fn slots_that_end_with_connections_are_posted_again_once_no_queue_pair_is_there() {
    let mut star = Star::new(1);
    let device = device_of(&star.hub);
    // More than there are slots.
    for _ in 0..100 {
        star.tears(0);
    }
    star.works(0);
    // Queue pairs are destroyed in a thread of their own.
    star.until("every slot is there", |star| {
        star.hub.abandon(star.of_hub[0]);
        model::shared_receives(&device) == star.hub.core.slots.posted && !star.hub.core.slots.is_in_doubt()
    });
    star.works(0);
    let counted = counts(&star.hub);
    assert!(counted.doubtful >= 100, "{counted:?}");
    assert_eq!((counted.nonsense, counted.rnr), (0, 0));
}

#[test]
fn slots_that_end_while_other_connections_go_on_are_promised_to_none() {
    let mut star = Star::new(2);
    let device = device_of(&star.hub);
    let mut lost = 0;
    for _ in 0..100 {
        star.works(1);
        star.tears(0);
        let slots = &star.hub.core.slots;
        assert!(slots.promised <= model::shared_receives(&device), "{slots:?}");
        lost = lost.max(slots.posted - model::shared_receives(&device).min(slots.posted));
    }
    assert!(lost > 1, "the other connection keeps the queue");
    for from in [0, 1] {
        star.works(from);
        assert_eq!(star.others[from].0.stats().rnr, 0);
    }
    let counted = counts(&star.hub);
    assert!(counted.renewed > 0 && counted.renewed < 20, "{counted:?}");
    assert!(star.hub.is_link_up());
}

#[test]
fn a_queue_that_is_never_empty_delays_no_end_of_another_peer() {
    let mut star = Star::new(2);
    star.works(0);
    star.works(1);
    let fill = |star: &mut Star| {
        let (other, to_hub) = &mut star.others[1];
        while other.send(*to_hub, b"many", Body::Bytes(&[7; 5000])).is_ok() {
            other.flush();
        }
        star.now += Duration::from_millis(1);
        other.progress(star.now);
        other.poll(64, &mut Count::default());
        star.hub.progress(star.now);
        star.hub.poll(2, &mut star.seen)
    };
    (0..100).for_each(|_| {
        fill(&mut star);
    });
    while star.hub.event().is_some() {}
    star.hub.core.end(star.of_hub[0].0, DownReason::Abandoned);
    let mut is_reported = false;
    for _ in 0..2000 {
        assert_eq!(fill(&mut star), 2, "there is always more");
        while let Some(event) = star.hub.event() {
            if event.kind == EventKind::PeerDown(DownReason::Abandoned) {
                assert_eq!(event.scope, Scope::Peer(star.of_hub[0]));
                is_reported = true;
            }
        }
        // Its queue pair is destroyed, too, and what it was promised is there for others.
        if is_reported && !star.hub.core.has_leaving() && star.hub.core.settling == 0 {
            return;
        }
    }
    panic!("reported: {is_reported}, and never destroyed");
}

#[test]
fn an_attempt_that_is_given_up_before_it_is_proved_costs_no_slot() {
    let mut star = Star::new(1);
    let index = star.of_hub[0].0;
    let (other, to_hub) = &mut star.others[0];
    other.send(*to_hub, b"hello", Body::Empty).unwrap();
    star.until("the hub receives", |star| {
        let link = star.hub.core.peers[index as usize].link.as_ref();
        link.is_some_and(|link| link.state == State::Receiving && link.promised() > 0)
    });
    star.hub.core.discard(index);
    assert!(star.hub.core.peers[index as usize].link.is_none());
    assert_eq!(counts(&star.hub).doubtful, 0);
}
