//! Peers that are opened late: a sender is reported by name, and its messages arrive when it is opened.

use doorbell_fabric::addr::RailAddress;

use super::*;

const COUNT: u8 = 50;

/// Two rails of which only the first has opened the other, with messages on their way to it; and the name of
/// the first.
fn half() -> (ShmRail, ShmRail, PeerIndex, Caller) {
    let (mut a, b) = (rail(&ShmConfig::default()), rail(&ShmConfig::default()));
    let to_b = Message::open(&mut a, &b.address(), b.incarnation()).unwrap();
    for n in 0..COUNT {
        let body = vec![n; 1 + 37 * usize::from(n)];
        a.send(to_b, &[n; 16], Body::Bytes(&body)).unwrap();
    }
    let name = b.caller(&a.address(), a.incarnation()).unwrap();
    (a, b, to_b, name)
}

/// Lets both rails poll their sockets for `time`, and shows what arrives; the clock is the test's.
fn pass(rails: &mut [&mut ShmRail], clock: &mut Time, time: Duration, seen: &mut Seen) {
    let by = *clock + time;
    while *clock < by {
        *clock += Duration::from_millis(5);
        for rail in &mut *rails {
            rail.progress(*clock);
            rail.poll(64, seen);
        }
    }
}

fn reported(rail: &mut ShmRail) -> Vec<Caller> {
    std::iter::from_fn(|| rail.stranger()).collect()
}

fn events(rail: &mut ShmRail) -> Vec<EventKind> {
    std::iter::from_fn(|| rail.event())
        .map(|event| event.kind)
        .collect()
}

/// All messages, in the order of the lane.
fn assert_all(seen: &Seen, peer: PeerIndex) {
    assert_eq!(seen.messages.len(), usize::from(COUNT));
    for (n, (from, bytes)) in seen.messages.iter().enumerate() {
        let (head, body) = bytes.split_at(16);
        assert_eq!((*from, head), (peer, &[n as u8; 16][..]));
        assert!(body.len() == 1 + 37 * n && body.iter().all(|byte| *byte == n as u8));
    }
}

#[test]
fn a_receiver_that_is_two_seconds_late_loses_nothing() {
    let (mut a, mut b, to_b, name) = half();
    let (mut clock, mut seen) = (Time::ZERO, Seen::default());
    assert_eq!(reported(&mut b), [], "nothing was looked at");
    pass(
        &mut [&mut a, &mut b],
        &mut clock,
        Duration::from_millis(5),
        &mut seen,
    );
    assert_eq!(reported(&mut b), [name]);
    pass(
        &mut [&mut a, &mut b],
        &mut clock,
        Duration::from_secs(2),
        &mut seen,
    );
    assert_eq!(reported(&mut b), [], "it has called once");
    assert!(seen.messages.is_empty() && events(&mut a).is_empty() && events(&mut b).is_empty());
    let to_a = Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    // The last of what was taken is published after some idle polls.
    pass(
        &mut [&mut a, &mut b],
        &mut clock,
        Duration::from_secs(1),
        &mut seen,
    );
    assert_all(&seen, to_a);
    assert_eq!(a.handed_over(to_b), MsgId(u64::from(COUNT)));
    // A lane makes its receiver reachable; the receiver's first message proves it to the sender.
    assert_eq!(
        (events(&mut a), events(&mut b)),
        (vec![], vec![EventKind::PeerUp])
    );
    assert_eq!((reported(&mut b), b.refused()), (vec![], 0));
}

/// Its messages outlive it, and so does its name.
#[test]
fn messages_of_a_caller_that_has_ended_still_arrive() {
    let (a, mut b, _, name) = half();
    let (address, life) = (a.address(), a.incarnation());
    let (mut clock, mut seen) = (Time::ZERO, Seen::default());
    pass(&mut [&mut b], &mut clock, Duration::from_millis(5), &mut seen);
    drop(a);
    pass(&mut [&mut b], &mut clock, Duration::from_secs(1), &mut seen);
    assert_eq!(reported(&mut b), [name]);
    let to_a = Message::open(&mut b, &address, life).unwrap();
    pass(&mut [&mut b], &mut clock, Duration::from_millis(50), &mut seen);
    assert_all(&seen, to_a);
    let closed = EventKind::PeerDown(DownReason::Closed);
    assert_eq!(events(&mut b), [EventKind::PeerUp, closed]);
}

/// A sender that gives up and connects again is reported again; other waiting senders are not.
#[test]
fn each_call_is_reported_once() {
    let (mut a, mut b, to_b, name) = half();
    let mut other = rail(&ShmConfig::default());
    let from_other = Message::open(&mut other, &b.address(), b.incarnation()).unwrap();
    other.send(from_other, b"me too", Body::Empty).unwrap();
    let others = b.caller(&other.address(), other.incarnation()).unwrap();
    let (mut clock, mut seen) = (Time::ZERO, Seen::default());
    let moment = Duration::from_millis(10);
    pass(&mut [&mut a, &mut b], &mut clock, moment, &mut seen);
    assert_eq!(reported(&mut b), [name, others]);
    for _ in 0..3 {
        a.abandon(to_b);
        pass(&mut [&mut a, &mut b], &mut clock, moment, &mut seen);
        assert_eq!(reported(&mut b), []);
        a.revive(to_b);
        pass(&mut [&mut a, &mut b], &mut clock, moment, &mut seen);
        assert_eq!(reported(&mut b), [name]);
    }
    a.abandon(to_b);
    a.revive(to_b);
    pass(&mut [&mut a, &mut b], &mut clock, moment, &mut seen);
    // Opened before `stranger` was called: it is not reported any more.
    Message::open(&mut b, &a.address(), a.incarnation()).unwrap();
    assert_eq!(reported(&mut b), []);
    let to_other = Message::open(&mut b, &other.address(), other.incarnation()).unwrap();
    pass(&mut [&mut b, &mut other], &mut clock, moment, &mut seen);
    assert_eq!(seen.messages, [(to_other, b"me too".to_vec())]);
}

#[test]
fn a_name_is_of_one_life() {
    let (a, b, _, name) = half();
    let life = a.incarnation();
    assert_eq!(b.caller(&a.address(), life), Some(name));
    assert_ne!(b.caller(&a.address(), Incarnation(life.0 ^ 1)), Some(name));
    assert_ne!(b.caller(&b.address(), life), Some(name));
    for foreign in [
        RailAddress::native("udp", [1; 16]),
        RailAddress::native("shm", [1; 15]),
        RailAddress::inet("shm", ([127, 0, 0, 1], 9).into()),
    ] {
        assert_eq!(b.caller(&foreign, life), None);
    }
}
