//! Paths that break and come back, and peers that are lost, from end to end: what the link makes of it. What
//! happens to a path by itself is a story of `doorbell_paths`.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{Access, Body, Exposure, Refused};
use doorbell_paths::PathState;

use super::air::{self, CAN};
use super::stage::{PEER, Stage, TWO, can, under_way, within_host};
use super::world::head;
use crate::link::LinkConfig;

#[test]
fn a_suspect_carries_nothing_new_and_learns_that_its_peer_lives() {
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
    assert_eq!((stage.state(0, 0), stage.bytes(0)), (PathState::Suspect, before));
    assert!(
        stage.ends[0].borrow()[0].proved >= 3,
        "probed over the other one, and answered"
    );
    // What it carried is waited for: nothing overtakes it.
    assert!(stage.heard[1].from[1] < stage.sent[0] - 100);
    stage.ends[0].borrow_mut()[0].silent = false;
    air::tell(&stage.ends[0], 0, EventKind::PeerRecovered, 0);
    stage.all_arrived();
    stage.send_short(0);
    assert!(stage.bytes(0) > before && stage.state(0, 0) == PathState::Up);
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
    assert_eq!(stage.state(0, 0), PathState::Suspect);
    stage.pass(200);
    assert_ne!(stage.state(0, 0), PathState::Suspect);
    assert_ne!(stage.state(1, 0), PathState::Up);
    assert!(stage.ends[0].borrow().iter().all(|end| end.abandoned == 1));
    stage.all_arrived();
    assert!(stage.links[0].stats().resent > 0);
}

#[test]
fn what_a_broken_path_carried_goes_over_the_other_in_order_and_what_had_arrived_is_dropped() {
    let mut stage = Stage::new(&TWO);
    stage.send(0, 10);
    stage.pass(30);
    // The peer takes these, and our rail does not learn of it.
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
    assert_eq!(stats.paths_down, 1);
    assert!(stats.resent as usize >= kept.len() && stage.links[1].stats().duplicates as usize == kept.len());
}

#[test]
fn what_two_broken_paths_carried_goes_over_the_third_in_the_order_in_which_it_was_sent() {
    let mut stage = Stage::new(&[CAN; 3]);
    stage.send(0, 10);
    stage.pass(30);
    for ends in &stage.ends {
        ends.borrow_mut()[0].silent = true;
    }
    // Long ones take turns, so each way has numbers between those of the others.
    for _ in 0..30 {
        let sent = stage.links[0].send(PEER, &mut head(1, 0), Body::Bytes(&[0; 12_000]), false);
        assert_eq!(sent, Ok(()));
    }
    assert!(stage.ends.iter().all(|ends| under_way(ends).len() >= 5));
    let first = under_way(&stage.ends[2]).len();
    for at in 0..2 {
        stage.ends[2].borrow_mut()[0].full = at == 0;
        air::tell(&stage.ends[at], 0, EventKind::PeerDown(DownReason::Silent), 0);
        stage.links[0].progress(stage.now);
    }
    let again = under_way(&stage.ends[2]).split_off(first);
    assert!(again.len() >= 10 && again.is_sorted(), "{again:?}");
    let all = under_way(&stage.ends[2]).len();
    assert_eq!(all, 30, "and each of them once");
}

#[test]
fn a_path_that_returns_alone_is_used_at_once_and_what_waited_goes_first() {
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
    assert!(stage.links[0].room(PEER) && stage.state(0, 0) == PathState::Up);
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
    // What arrives of it now is not shown.
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
fn without_patience_the_last_path_is_the_end_and_so_is_a_goodbye() {
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
fn a_path_that_never_worked_is_left_for_one_that_does() {
    let mut stage = Stage::new(&[can(100, 1_000_000_000), can(9000, 1_000_000_000)]);
    stage.ends[0]
        .borrow_mut()
        .iter_mut()
        .for_each(|end| end.silent = true);
    stage.send(0, 10);
    stage.pass(200);
    assert_eq!(stage.heard[1].from.get(1), None);
    stage.pass(1500);
    assert_ne!(stage.state(0, 0), PathState::Up);
    stage.all_arrived();
}
