//! Processes and devices that stand still, end, and begin again.

use std::time::Duration;

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::Body;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Aim, Change, Effect, Faults, Job, Pick, Plane, SimConfig, SimNet, Step, StopReason};

use super::two::{number, two};

#[test]
fn a_paused_process_sees_nothing_until_it_goes_on() {
    let mut two = two(1, Faults::NONE);
    two.net.change(Change::Pause(1));
    two.net.at(Time::from_nanos(500_000), Change::Resume(1));
    for n in 0..5_u64 {
        two.post(&n.to_le_bytes());
    }
    two.net.advance_to(Time::from_nanos(499_999));
    two.take();
    assert!(two.got.is_empty() && two.net.is_paused(1));
    assert_eq!(two.net.total().frames_delivered, 5, "the NIC works on");
    two.play();
    assert!(two.got.iter().map(|(_, bytes)| number(bytes)).eq(0..5));
}

#[test]
fn a_job_does_not_step_a_paused_rank() {
    let net = SimNet::new(1, SimConfig::default());
    net.change(Change::Pause(1));
    net.at(Time::from_nanos(9_000), Change::Resume(1));
    let mut job = Job::new(&net, 2, |_| net.attach_datagram());
    let mut first = None;
    let end = job.run(10, |rank, _, now| {
        if rank == 1 {
            first.get_or_insert(now);
        }
        Step::Done
    });
    assert!(end.is_ok());
    assert_eq!(first, Some(Time::from_nanos(9_000)));

    net.change(Change::Pause(1));
    let stuck = job.run(10, |_, _, _| Step::Done).unwrap_err();
    assert_eq!((stuck.why, stuck.waiting.len()), (StopReason::Deadlock, 1));
}

#[test]
fn a_hanging_device_fills_its_send_ring() {
    let mut two = two(2, Faults::NONE);
    let places = two.net.config().data_ring;
    two.net.change(Change::NicStall(Plane::FIRST, 0));
    let (tx, _) = two.a.split();
    assert_eq!(tx.reserve(Channel::Data, places + 1), places);
    for n in 0..places as u64 {
        tx.post(Channel::Data, two.to_b, &n.to_le_bytes(), Body::Empty)
            .unwrap();
    }
    tx.doorbell();
    two.net.advance_to(Time::from_nanos(1_000_000));
    let (tx, _) = two.a.split();
    assert_eq!(
        (tx.reserve(Channel::Data, 1), tx.reaped(Channel::Data)),
        (0, FrameId(0))
    );
    assert_eq!(two.net.total().reserves_short, 2);
    two.net.change(Change::NicResume(Plane::FIRST, 0));
    assert_eq!(two.a.split().0.reserve(Channel::Data, 1), 1);
    two.play();
    assert!(
        two.got
            .iter()
            .map(|(_, bytes)| number(bytes))
            .eq(0..places as u64)
    );
}

#[test]
fn a_device_that_goes_away_is_reported_and_accounts_for_its_frames() {
    let mut two = two(3, Faults::NONE);
    two.post(b"on its way");
    let (tx, _) = two.a.split();
    tx.reserve(Channel::Data, 2);
    tx.post(Channel::Data, two.to_b, b"posted, and no doorbell", Body::Empty)
        .unwrap();
    two.net.change(Change::NicDeath(Plane::FIRST, 0));
    let (tx, _) = two.a.split();
    assert_eq!(tx.reserve(Channel::Data, 1), 0);
    two.play();
    assert_eq!(two.got.len(), 1, "what is on a link goes on");
    assert_eq!(two.a.event().map(|event| event.kind), Some(EventKind::DeviceGone));
    let total = two.net.total();
    assert_eq!(
        (total.frames_sent, total.frames_delivered, total.frames_dropped()),
        (2, 1, 1)
    );
    assert_eq!(total.stale, 1);
    assert_eq!(two.net.held(), 0);
}

#[test]
fn a_frame_is_replayed_into_the_next_life_of_its_receiver() {
    let aim = Aim::nth(Pick::ALL, 1, Effect::Replay(Duration::from_millis(1)));
    let faults = Faults {
        aim: Some(aim),
        ..Faults::NONE
    };
    let mut two = two(4, faults);
    two.post(b"once");
    two.net.advance_to(Time::from_nanos(10_000));
    two.take();
    assert_eq!(two.got.len(), 1);
    let before = two.b.incarnation();
    two.net.at(Time::from_nanos(20_000), Change::RankDeath(1));
    two.net.advance_to(Time::from_nanos(30_000));
    assert!(!two.net.is_alive(1));
    two.b = two.net.attach_datagram_rank(1, Plane::FIRST);
    assert_ne!(before, two.b.incarnation());
    two.play();
    assert_eq!(two.got.len(), 2);
    assert_eq!(two.got[1].1, b"once");
    assert!(two.b.split().1.frame(Channel::Data, 0).is_none());
}
