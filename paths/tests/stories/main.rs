//! Stories of paths: what happens to them, and what both ends make of it. The layer above is as small as can
//! be (`stage.rs`): operations that are executed once, in their order, over rails that break. The PML and the
//! Portals interface have stories of their own, from end to end.

mod stage;

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life};
use doorbell_fabric::message::MsgId;
use doorbell_paths::{Count, PathState, Policy, Reason, Word};

use stage::{Frame, MS, POLICY, Stage, is_broken, is_echo, is_probe};

const UP: [PathState; 2] = [PathState::Up; 2];

#[test]
fn a_path_breaks_and_the_others_carry_on_and_both_ends_know() {
    let mut stage = Stage::new(3);
    stage.ends[0].rails[0].silent = true;
    stage.start(0, 5);
    // This end alone sees its link go.
    stage.event(0, 0, EventKind::LinkDown, 0);
    stage.pass(0);
    assert_eq!(stage.states(0), [PathState::Down; 2]);
    assert_eq!([stage.states(1), stage.states(2)], [UP; 2]);
    let told = [1, 2].map(|at| stage.words(0, at, is_broken));
    assert_eq!(told, [1, 1], "over each of the others");
    let back = [0, 1, 2].map(|at| stage.words(1, at, is_broken));
    assert_eq!(back, [0; 3], "an end that was notified has no news");
    assert_eq!(stage.ends[1].rails[0].abandoned, 1);
    assert_eq!(stage.ends[0].counted(Count::Down), 1);
    stage.all_executed();
}

#[test]
fn what_had_arrived_before_a_break_comes_again_and_is_executed_once() {
    let mut stage = Stage::new(2);
    stage.start(0, 2);
    stage.pass(0);
    stage.ends[0].rails[0].deaf = true;
    stage.start(0, 6);
    stage.pass(0);
    // All of it was executed, and our rail does not know.
    stage.ends[0].rails[0].silent = true;
    stage.start(0, 3);
    let before = stage.ends[1].duplicates;
    stage.event(0, 0, EventKind::PeerDown(DownReason::Silent), 0);
    stage.start(0, 2);
    stage.all_executed();
    assert_eq!(stage.ends[1].duplicates - before, 6);
}

#[test]
fn a_path_that_returns_beside_another_proves_itself_and_for_longer_when_it_broke_again() {
    let mut stage = Stage::new(2);
    for hold in [500, 1000, 2000, 2000] {
        let life = stage.ends[0].counted(Count::Down) as u32 + 1;
        stage.unplug(0);
        stage.pass(10);
        assert_eq!(stage.states(0), [PathState::Down; 2]);
        let probes = stage.words(0, 0, is_probe);
        stage.plug(0, life);
        stage.pass(hold - 10);
        assert_eq!(stage.states(0), [PathState::Returning; 2], "{hold}");
        stage.start(0, 3);
        stage.pass(30);
        assert_eq!(stage.states(0), UP, "{hold}");
        let probes = stage.words(0, 0, is_probe) - probes;
        assert!((4..=6).contains(&probes), "{probes} probes in {hold} ms");
    }
    assert_eq!(stage.ends[0].counted(Count::Returned), 4);
    // After a calm time it starts over.
    stage.pass(20_000);
    stage.unplug(0);
    stage.plug(0, 100);
    stage.pass(520);
    assert_eq!(stage.states(0), UP);
    stage.all_executed();
}

#[test]
fn a_path_that_does_not_answer_its_probes_is_not_used_again() {
    let mut stage = Stage::new(2);
    stage.unplug(0);
    stage.plug(0, 1);
    stage.ends[1].rails[0].silent = true; // answers do not get through
    stage.pass(3000);
    assert_eq!(stage.ends[0].state(0), PathState::Returning);
    assert!(stage.words(0, 0, is_probe) >= 10);
    stage.ends[1].rails[0].silent = false;
    stage.pass(1100);
    assert_eq!(stage.states(0), UP);
}

#[test]
fn a_path_that_is_down_is_called_with_a_back_off_and_at_once_when_its_link_is_back() {
    let mut stage = Stage::new(2);
    stage.unplug(0);
    stage.pass(10);
    stage.pass(3000);
    let revived = stage.ends[0].rails[0].revived;
    assert!((3..=8).contains(&revived), "{revived} calls");
    assert_eq!(stage.ends[0].counted(Count::Call), revived as usize);
    stage.event(0, 0, EventKind::LinkUp, 0);
    stage.pass(0);
    assert_eq!(stage.ends[0].rails[0].revived, revived + 1);
    assert_eq!(stage.ends[0].state(0), PathState::Probing);
    stage.pass(250);
    assert_eq!(stage.ends[0].state(0), PathState::Down);
}

#[test]
fn the_only_path_is_used_at_once_when_it_is_back_and_what_waited_goes() {
    let mut stage = Stage::new(1);
    stage.ends[0].rails[0].silent = true;
    stage.start(0, 4);
    stage.unplug(0);
    stage.start(0, 3);
    stage.pass(1000);
    let (until, reason) = stage.ends[0].paths.alone().expect("it is waited for");
    assert!(until > stage.now && reason == Reason::Link);
    stage.plug(0, 1);
    assert_eq!(stage.states(0), UP);
    assert_eq!(stage.ends[0].paths.alone(), None);
    stage.all_executed();
}

#[test]
fn a_path_on_its_way_back_is_used_at_once_when_the_last_other_one_breaks() {
    let mut stage = Stage::new(2);
    stage.unplug(0);
    stage.plug(0, 1);
    stage.pass(100);
    assert_eq!(stage.states(0), [PathState::Returning; 2]);
    stage.unplug(1);
    assert_eq!(stage.states(0), UP);
    assert_eq!(stage.ends[0].paths.alone(), None);
    stage.start(0, 3);
    stage.all_executed();
}

#[test]
fn patience_with_a_peer_ends_and_it_is_lost_once() {
    let mut stage = Stage::new(2);
    stage.unplug(0);
    stage.unplug(1);
    stage.pass(4_990);
    assert_eq!(stage.ends[0].lost, None);
    stage.pass(20);
    assert_eq!([0, 1].map(|side| stage.ends[side].lost), [Some(Reason::Link); 2]);
    stage.plug(0, 1);
    stage.pass(100);
    assert_eq!(
        stage.ends[0].timers.next_deadline(stage.now),
        None,
        "nothing is due for a peer that is lost"
    );
}

#[test]
fn a_peer_that_is_silent_when_the_link_is_back_has_all_the_time_and_is_lost_for_its_silence() {
    let mut stage = Stage::new(1);
    stage.unplug(0);
    stage.pass(4_000);
    stage.event(0, 0, EventKind::LinkUp, 0);
    stage.pass(4_900);
    assert_eq!(stage.ends[0].lost, None);
    stage.pass(200);
    assert_eq!(stage.ends[0].lost, Some(Reason::Peer(DownReason::Silent)));
}

#[test]
fn the_end_of_the_last_path_is_waited_for_by_its_reason() {
    let silent = Reason::Peer(DownReason::Silent);
    let died = Reason::Peer(DownReason::Died);
    for (rails, kind, lost) in [
        // What this path alone is to blame for leaves hope where there is another path, and not otherwise.
        (1, EventKind::PeerDown(DownReason::Silent), Some(silent)),
        (2, EventKind::PeerDown(DownReason::Silent), None),
        (1, EventKind::PeerDown(DownReason::Abandoned), None),
        (1, EventKind::LinkDown, None),
        (1, EventKind::DeviceGone, Some(Reason::Device)),
        (2, EventKind::PeerDown(DownReason::Died), Some(died)),
    ] {
        let mut stage = Stage::new(rails);
        for at in (0..rails).rev() {
            let kind = if at == 0 { kind } else { EventKind::LinkDown };
            stage.event(0, at, kind, 0);
        }
        assert_eq!(stage.ends[0].lost, lost, "{rails} {kind:?}");
    }
    let patience = Duration::ZERO;
    let mut stage = Stage::with(1, Policy { patience, ..POLICY });
    stage.event(0, 0, EventKind::LinkDown, 0);
    assert_eq!(stage.ends[0].lost, Some(Reason::Link), "without patience");
    // A layer whose peers have one rail only may wait for that one.
    let waits_for_only_path = true;
    for (kind, lost) in [
        (EventKind::PeerDown(DownReason::Silent), None),
        (EventKind::DeviceGone, Some(Reason::Device)),
        (EventKind::PeerDown(DownReason::Died), Some(died)),
    ] {
        let policy = Policy {
            waits_for_only_path,
            ..POLICY
        };
        let mut stage = Stage::with(1, policy);
        stage.event(0, 0, kind, 0);
        assert_eq!(stage.ends[0].lost, lost, "{kind:?}");
    }
}

#[test]
fn a_device_that_is_gone_is_not_called() {
    let mut stage = Stage::new(2);
    stage.event(0, 0, EventKind::DeviceGone, 0);
    stage.pass(3000);
    assert_eq!(
        (stage.ends[0].rails[0].revived, stage.ends[0].paths.living()),
        (0, 0b10)
    );
    assert_eq!(stage.ends[0].timers.next_deadline(stage.now), None);
}

#[test]
fn time_in_which_this_process_did_not_look_is_not_its_peers() {
    let mut stage = Stage::new(1);
    stage.unplug(0);
    stage.pass(100);
    stage.away(POLICY.patience * 10);
    assert_eq!(stage.ends[0].lost, None);
    stage.pass(5_100);
    assert_eq!(stage.ends[0].lost, Some(Reason::Link));
}

#[test]
fn a_suspect_carries_nothing_new_and_its_rail_learns_that_the_peer_lives() {
    let mut stage = Stage::new(2);
    stage.ends[0].rails[0].silent = true;
    stage.start(0, 1);
    stage.event(0, 0, EventKind::PeerSuspect, 0);
    let before = stage.ends[0].rails[0].frames.len();
    stage.start(0, 10);
    stage.pass(100);
    assert_eq!(stage.ends[0].state(0), PathState::Suspect);
    assert_eq!(stage.ends[0].rails[0].frames.len(), before);
    assert!(
        stage.ends[0].rails[0].proved >= 3,
        "probed over the other one, and reported"
    );
    assert!(
        stage.ends[1].executed.is_empty(),
        "nothing overtakes what it carried"
    );
    stage.ends[0].rails[0].silent = false;
    stage.event(0, 0, EventKind::PeerRecovered, 0);
    assert_eq!(stage.ends[0].state(0), PathState::Up);
    stage.all_executed();
    assert_eq!(stage.ends[0].counted(Count::Down), 0);
}

#[test]
fn a_suspect_whose_peer_answers_elsewhere_is_given_up_at_the_layers_limit() {
    for silence in [Some(MS * 1000), None] {
        let mut stage = Stage::with(2, Policy { silence, ..POLICY });
        stage.ends[0].rails[0].silent = true;
        stage.start(0, 3);
        stage.event(0, 0, EventKind::PeerSuspect, 0);
        stage.pass(900);
        assert_eq!(stage.ends[0].state(0), PathState::Suspect);
        stage.pass(200);
        let given_up = stage.ends[0].state(0) != PathState::Suspect;
        assert_eq!(given_up, silence.is_some());
        assert_eq!(stage.ends[1].state(0) != PathState::Up, given_up);
        if given_up {
            assert_eq!(stage.ends[0].rails[0].abandoned, 1);
            stage.all_executed();
        }
    }
}

#[test]
fn a_suspect_whose_peer_does_not_look_is_not_given_up() {
    let mut stage = Stage::new(2);
    stage.asleep[1] = true;
    stage.event(0, 0, EventKind::PeerSuspect, 0);
    stage.pass(5000);
    assert_eq!(stage.ends[0].state(0), PathState::Suspect);
}

#[test]
fn a_path_over_which_nothing_was_ever_answered_is_doubted_when_another_one_works() {
    // The one that messages take, and the other one; with a layer that measures, and one that does not.
    for (dead, measures) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut stage = Stage::unproved(2, dead);
        stage.ends.iter_mut().for_each(|end| end.measures = measures);
        stage.start(0, 1);
        stage.pass(600);
        assert_eq!(stage.ends[0].state(dead), PathState::Suspect, "{dead} {measures}");
        assert_eq!(stage.ends[0].state(1 - dead), PathState::Up);
        // It works after all.
        stage.ends[0].rails[dead].silent = false;
        stage.ends[1].rails[dead].silent = false;
        stage.pass(600);
        assert_eq!(stage.ends[0].state(dead), PathState::Up, "{dead} {measures}");
        stage.all_executed();
    }
}

#[test]
fn a_doubted_path_that_its_rail_reports_up_is_used_again() {
    let mut stage = Stage::unproved(2, 0);
    stage.start(0, 1);
    stage.pass(600);
    assert_eq!(stage.ends[0].state(0), PathState::Suspect);
    // No probe is answered yet, and none is sent any more: the rail has met the peer by itself.
    stage.event(0, 0, EventKind::PeerUp, 0);
    assert_eq!(stage.ends[0].state(0), PathState::Up);
    stage.pass(600);
    assert_eq!(stage.ends[0].state(0), PathState::Up);
}

#[test]
fn a_path_that_its_rail_reported_up_is_not_doubted() {
    let mut stage = Stage::unproved(2, 0);
    stage.event(0, 0, EventKind::PeerUp, 0);
    stage.start(0, 1);
    stage.pass(600);
    assert_eq!(stage.states(0)[0], PathState::Up);
    assert_eq!(stage.ends[0].paths.met(), 0b11);
}

#[test]
fn a_process_that_is_seen_to_end_within_the_host_is_lost_after_its_last_words() {
    let mut stage = Stage::new(2);
    stage.ends[0].rails[0].within_host = true;
    stage.event(0, 0, EventKind::PeerDown(DownReason::Died), 0);
    assert_eq!(stage.ends[0].lost, None);
    stage.pass(20);
    assert_eq!(stage.ends[0].lost, Some(Reason::Peer(DownReason::Died)));
    assert_eq!(stage.ends[0].last_words, 1);
}

#[test]
fn a_rail_that_gives_nothing_back_takes_the_peer_along_when_something_was_under_way() {
    for under_way in [0, 3] {
        let mut stage = Stage::new(2);
        stage.pass(600);
        let rail = &mut stage.ends[0].rails[0];
        (rail.forgets, rail.silent) = (true, true);
        stage.start(0, under_way);
        stage.event(0, 0, EventKind::PeerDown(DownReason::Silent), 0);
        let lost = (under_way > 0).then_some(Reason::NotReclaimable);
        assert_eq!(stage.ends[0].lost, lost);
    }
}

#[test]
fn news_of_a_break_wait_for_room_and_are_sent_over_every_path() {
    let mut stage = Stage::new(3);
    stage.ends[0].rails[1].full = true;
    stage.ends[0].rails[2].full = true;
    stage.event(0, 0, EventKind::LinkDown, 0);
    stage.pass(10);
    assert!(stage.ends[0].paths.has_news() && stage.ends[1].state(0) == PathState::Up);
    stage.ends[0].rails[1].full = false;
    stage.ends[0].rails[2].full = false;
    stage.pass(0);
    assert!(!stage.ends[0].paths.has_news() && stage.ends[1].state(0) == PathState::Down);
    assert_eq!([1, 2].map(|at| stage.words(0, at, is_broken)), [1, 1]);
}

#[test]
fn news_that_a_broken_path_carried_are_sent_once_more_unless_they_are_late() {
    for returned in [false, true] {
        let mut stage = Stage::new(3);
        stage.ends[0].rails[1].silent = true;
        stage.ends[0].rails[2].full = true;
        stage.event(0, 0, EventKind::LinkDown, 0);
        if returned {
            stage.event(0, 0, EventKind::PeerUp, 1);
        }
        stage.ends[0].rails[2].full = false;
        stage.event(0, 1, EventKind::LinkDown, 0);
        stage.pass(0);
        let first = |word: &Word| matches!(word, Word::Broken { path: 0, .. });
        assert_eq!(stage.words(0, 2, first), usize::from(!returned));
        assert_eq!(stage.ends[1].state(0) == PathState::Up, returned);
        assert_eq!(stage.ends[1].state(1), PathState::Down);
    }
}

#[test]
fn news_of_a_connection_that_has_not_come_up_here_wait_for_it() {
    let mut stage = Stage::new(2);
    stage.event(0, 0, EventKind::LinkDown, 0);
    stage.pass(0);
    // The peer has begun life 2 and given it up again, before it came up here.
    let life = Life(2);
    stage.ends[1].rails[1]
        .under_way
        .push_back((MsgId(99), Frame::Word(Word::Broken { path: 0, life })));
    stage.pass(0);
    assert_eq!(stage.ends[0].state(0), PathState::Down);
    stage.event(0, 0, EventKind::PeerUp, 2);
    stage.pass(0);
    assert_eq!(stage.ends[0].state(0), PathState::Down, "it was over already");
    stage.event(0, 0, EventKind::PeerUp, 3);
    stage.pass(0);
    assert_eq!(stage.ends[0].state(0), PathState::Returning);
}

#[test]
fn words_that_cannot_be_are_dropped() {
    let mut stage = Stage::new(2);
    stage.pass(600);
    let life = Life::FIRST;
    for (over, word) in [
        (0, Word::Broken { path: 0, life }), // over itself
        (0, Word::Broken { path: 7, life }),
        (0, Word::Probe { path: 1, number: 1 }), // over another one
        (1, Word::Echo { path: 0, number: 1 }),
    ] {
        let frame = (MsgId(99), Frame::Word(word));
        stage.ends[1].rails[over].under_way.push_back(frame);
    }
    let echoes = stage.words(0, 0, is_echo) + stage.words(0, 1, is_echo);
    stage.pass(10);
    assert_eq!(stage.ends[0].bad, 4);
    assert_eq!([stage.states(0), stage.states(1)], [UP; 2]);
    assert_eq!(stage.words(0, 0, is_echo) + stage.words(0, 1, is_echo), echoes);
}

#[test]
fn a_probe_for_whose_answer_there_is_no_room_is_answered_later() {
    let mut stage = Stage::new(2);
    stage.pass(600);
    stage.ends[1].rails[1].full = true;
    let echoes = stage.words(1, 1, is_echo);
    // With a suspect, the other path is probed every 20 ms.
    stage.ends[0].rails[0].silent = true;
    stage.event(0, 0, EventKind::PeerSuspect, 0);
    stage.pass(20);
    assert_eq!(stage.words(1, 1, is_echo), echoes);
    let due = stage.ends[1].timers.next_deadline(stage.now).expect("it waits");
    assert_eq!(due, stage.now + MS, "tried again soon, and not at once");
    stage.ends[1].rails[1].full = false;
    stage.pass(5);
    assert!(stage.words(1, 1, is_echo) > echoes);
}

#[test]
fn a_path_is_measured_while_there_is_traffic_and_quiet_otherwise() {
    let mut stage = Stage::unproved(2, 0);
    stage.ends[0].rails[0].silent = false;
    stage.ends[1].rails[0].silent = false;
    stage.ends[0].measures = true;
    stage.pass(2000);
    let probes = stage.ends[0].counted(Count::Probe);
    assert!(probes <= 2, "{probes} without traffic");
    for _ in 0..100 {
        stage.start(0, 1);
        stage.pass(10);
    }
    let probes = stage.ends[0].counted(Count::Probe) - probes;
    assert!((16..=24).contains(&probes), "{probes} in a second over two paths");
    assert!(stage.ends[0].paths.latency(0).is_some() && stage.ends[0].paths.latency(1).is_some());
    stage.pass(300);
    let before = stage.ends[0].counted(Count::Probe);
    stage.pass(5000);
    assert_eq!(stage.ends[0].counted(Count::Probe), before);
}

#[test]
fn peers_whose_paths_are_good_are_not_looked_at() {
    let mut stage = Stage::new(2);
    stage.pass(600);
    stage.ends.iter().for_each(|end| {
        assert_eq!(end.timers.watched().count(), 0);
        assert_eq!(end.timers.next_deadline(stage.now), None);
    });
    stage.event(0, 0, EventKind::LinkDown, 0);
    assert_eq!(stage.ends[0].timers.watched().count(), 1);
}
