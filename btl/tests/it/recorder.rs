//! The flight recorder: silent while nothing is lost, and afterwards the story of what was, in order.

use std::time::Duration;

use crate::common::{RACK, World, rings};
use doorbell_btl::{BtlConfig, Dropped, Event, Notice, Why};
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::Message;
use doorbell_sim::{Change, Faults, Plane};

fn quick() -> BtlConfig {
    BtlConfig {
        give_up: Duration::from_secs(2),
        ..BtlConfig::default()
    }
}

/// Sends `messages` messages from end 0 to end 1, which takes them.
fn talk(world: &mut World, messages: u64) {
    let to = world.to(0, 1);
    let (before, mut sent) = (world.ends[0].btl.handed_over(to).0, 0);
    world.until("all are taken", Duration::from_secs(10), |world| {
        while sent < messages && world.ends[0].try_send(to, &[7; 900]).is_some() {
            sent += 1;
        }
        world.ends[0].flush();
        world.ends[0].btl.handed_over(to).0 == before + messages
    });
}

fn recorded(world: &World, end: usize) -> Vec<Event> {
    let recorder = world.ends[end].btl.recorder();
    recorder.all().map(|room| room.event).collect()
}

#[test]
fn while_nothing_is_lost_nothing_is_recorded() {
    let mut world = World::new(1, 2, rings(RACK), &quick());
    talk(&mut world, 10);
    let before = [recorded(&world, 0), recorded(&world, 1)];
    assert_eq!(before[0][0], Event::Opened);
    assert!(before[0].contains(&Event::Told(EventKind::PeerUp)), "{before:?}");
    talk(&mut world, 2000);
    assert_eq!([recorded(&world, 0), recorded(&world, 1)], before);
}

#[test]
fn a_link_that_dies_leaves_its_story() {
    let mut world = World::new(2, 2, rings(RACK), &quick());
    talk(&mut world, 10);
    let to = world.to(0, 1);
    world.net.change(Change::LinkDown(Plane::FIRST, 1));
    assert!(world.ends[0].try_send(to, b"into the dark").is_some());
    world.until("the peer is down", Duration::from_secs(10), |world| {
        world.ends[0].is_down(to).is_some()
    });
    let story = recorded(&world, 0);
    let place = |what: fn(&Event) -> bool| story.iter().position(what);
    let order = [
        place(|event| *event == Event::Opened),
        place(|event| *event == Event::Probing(Why::First)),
        place(|event| *event == Event::Told(EventKind::PeerUp)),
        place(|event| matches!(event, Event::TimedOut { in_a_row, .. } if *in_a_row > 2)),
        place(|event| *event == Event::Noticed(Notice::Suspect)),
        place(|event| *event == Event::Probing(Why::Suspect)),
        place(|event| *event == Event::Told(EventKind::PeerDown(DownReason::Silent))),
    ];
    assert!(
        order.iter().all(Option::is_some) && order.is_sorted(),
        "{story:?}"
    );
    let lines = world.ends[0].btl.recent(to, 32);
    let (last, timeouts) = (
        lines.last().unwrap(),
        lines.iter().filter(|line| line.contains(" time-out: ")),
    );
    assert!(last.ends_with(" before: down: it did not answer"), "{lines:#?}");
    assert_eq!(timeouts.count(), 1, "one line for all of them: {lines:#?}");
    assert_eq!(world.ends[0].btl.recent(to, 2), lines[lines.len() - 2..]);
}

#[test]
fn losses_and_corruption_are_recorded_with_their_reasons() {
    let faults = Faults {
        loss: 0.02,
        corrupt: 0.02,
        ..RACK
    };
    let mut world = World::new(3, 2, rings(faults), &quick());
    talk(&mut world, 2000);
    let (sender, receiver) = (recorded(&world, 0), recorded(&world, 1));
    let again = |event: &Event| matches!(event, Event::Overtaken { segments } if *segments > 0);
    assert!(sender.iter().any(again), "{sender:?}");
    assert!(
        receiver.contains(&Event::Dropped(Dropped::Corrupt)),
        "{receiver:?}"
    );
    let resent: u64 = (world.ends[0].btl.recorder().all())
        .map(|room| match room.event {
            Event::Overtaken { segments } => u64::from(segments),
            Event::TimedOut { .. } | Event::Missed => u64::from(room.times),
            _ => 0,
        })
        .sum();
    let resends = world.ends[0].btl.counters().resends;
    assert!((1..=resends + 8).contains(&resent), "{resent} of {resends}");
}

#[test]
fn a_recorder_of_no_size_records_nothing() {
    let config = BtlConfig {
        recorder: 0,
        ..quick()
    };
    let mut world = World::new(4, 2, rings(Faults { loss: 0.1, ..RACK }), &config);
    talk(&mut world, 100);
    assert_eq!((recorded(&world, 0).len(), recorded(&world, 1).len()), (0, 0));
}
