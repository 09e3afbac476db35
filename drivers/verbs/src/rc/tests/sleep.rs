//! Sleep, reports and counters.

use std::collections::HashSet;
use std::time::Duration;

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::rail::{Armed, PollCost, Rail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{connected, counts, device_of, rail, small};
use crate::rc::rail::RcRail;
use crate::sys::{model, numbers};

/// Whether a rail has something to do: at once, or once it sleeps.
#[derive(Debug, PartialEq, Eq)]
enum Woken {
    AtOnce,
    BySignal,
    No,
}

/// Has a rail sleep while something happens.
fn sleeps(rail: &mut RcRail, meanwhile: impl FnOnce()) -> Woken {
    let woken = match rail.arm().unwrap() {
        Armed::Ready => Woken::AtOnce,
        Armed::Sleep(fd) => {
            let is_readable = || {
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
            };
            assert!(!is_readable(), "nothing has happened");
            meanwhile();
            match is_readable() {
                true => Woken::BySignal,
                false => Woken::No,
            }
        }
    };
    rail.disarm();
    woken
}

#[test]
fn a_sleeper_is_woken_by_messages_completions_and_events() {
    let mut pair = connected();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    pair.settle();
    let mut b = std::mem::replace(pair.b(), rail(small()).0);
    // What is to be done is found by polls.
    let mut seen = super::credits::Count::default();
    let mut quiet = |b: &mut RcRail| {
        for _ in 0..50 {
            b.poll(64, &mut seen);
            pair.a.poll(64, &mut seen);
        }
        while b.event().is_some() {}
    };
    quiet(&mut b);
    assert_eq!(sleeps(&mut b, || ()), Woken::No);
    let a = &mut pair.a;
    let message = || {
        a.send(to_b, b"wake", Body::Empty).unwrap();
        a.flush();
    };
    assert_eq!(sleeps(&mut b, message), Woken::BySignal);
    assert_eq!(sleeps(&mut b, || ()), Woken::AtOnce, "it is not taken");
    let mut seen = super::credits::Count::default();
    for _ in 0..50 {
        b.poll(64, &mut seen);
    }
    assert_eq!(seen.0, 1);
    // What waits leaves when the rail is armed, and its end is one to be woken by.
    model::hold_requests(&device_of(&b), true);
    b.send(to_a, b"out", Body::Empty).unwrap();
    let device = device_of(&b);
    assert_eq!(
        sleeps(&mut b, || model::release_requests(&device)),
        Woken::BySignal,
        "an end"
    );
    b.poll(64, &mut seen);
    let device = device_of(&b);
    let event = || model::set_state(&device, numbers::PORT_DOWN);
    assert_eq!(sleeps(&mut b, event), Woken::BySignal, "an event");
}

#[test]
fn a_sleeper_is_woken_by_a_call() {
    let (mut a, life_a) = rail(small());
    let (mut b, life_b) = rail(small());
    let to_b = a.open(&b.address(), life_b).unwrap();
    b.open(&a.address(), life_a).unwrap();
    let mut now = doorbell_fabric::time::Time::ZERO;
    for _ in 0..50 {
        now += Duration::from_millis(1);
        a.progress(now);
        b.progress(now);
    }
    a.send(to_b, b"hello", Body::Empty).unwrap();
    let call = || {
        (0..5).for_each(|step| {
            a.progress(now + Duration::from_millis(step));
        });
    };
    assert_eq!(sleeps(&mut b, call), Woken::BySignal);
    assert_eq!(b.poll_cost(), PollCost::Memory);
}

#[test]
fn while_messages_wait_for_counters_the_next_look_is_near() {
    let mut pair = connected();
    (0..60).for_each(|_| {
        pair.a.send(pair.to_b, b"many", Body::Bytes(&[7; 5000])).unwrap();
    });
    pair.a.flush();
    // What a peer writes to our counters raises no event.
    let now = pair.a.core.now;
    pair.a.progress(now);
    assert!(pair.a.next_deadline().unwrap() <= now + Duration::from_millis(2));
    pair.settle();
    pair.until("nothing waits", |pair| {
        pair.a.next_deadline().unwrap() > pair.a.core.now + Duration::from_millis(2)
    });
}

#[test]
fn a_report_has_link_ages_and_counts() {
    let mut pair = connected();
    (0..200).for_each(|_| pair.turn());
    let report = pair.a.report(pair.to_b);
    assert_eq!(
        (report.link, report.unacknowledged, report.waiting),
        (Some(true), 0, None)
    );
    assert!(
        report.heard_ago.unwrap() >= Duration::from_millis(200),
        "{report:?}"
    );
    assert!(report.acked_ago.is_some() && report.oldest.is_none());
    model::hold_requests(&device_of(&pair.a), true);
    (0..3).for_each(|_| {
        pair.a.send(pair.to_b, b"held", Body::Bytes(&[7; 5000])).unwrap();
    });
    (0..250).for_each(|_| pair.turn());
    let report = pair.a.report(pair.to_b);
    let waiting = report.waiting.unwrap();
    assert!((200..260).contains(&waiting.as_millis()), "{waiting:?}");
    assert_eq!(report.unacknowledged, 3);
    assert!(report.oldest.is_some() && report.acked_ago.unwrap() >= waiting);
    model::set_state(&device_of(&pair.a), numbers::PORT_DOWN);
    (0..100).for_each(|_| pair.turn());
    assert_eq!(pair.a.report(pair.to_b).link, Some(false));
    let unknown = pair.a.report(doorbell_fabric::message::PeerIndex(77));
    assert_eq!((unknown.link, unknown.heard_ago), (Some(false), None));
}

#[test]
fn counters_have_names_and_count() {
    let mut pair = connected();
    let region = Region::new(5000).unwrap().whole();
    let before = counts(&pair.a);
    (0..3).for_each(|_| {
        pair.a.send(pair.to_b, b"short", Body::Empty).unwrap();
    });
    pair.a.flush();
    pair.a.send(pair.to_b, b"far", Body::Region(&region)).unwrap();
    (0..40).for_each(|_| {
        pair.a.send(pair.to_b, b"long", Body::Bytes(&[7; 5000])).unwrap();
    });
    let last = pair.a.accepted(pair.to_b);
    pair.until("all are taken", |pair| pair.a.handed_over(pair.to_b) == last);
    let after = counts(&pair.a);
    assert_eq!(after.coalesced - before.coalesced, 2);
    assert_eq!(after.inline - before.inline, 1);
    assert!(after.stalls > before.stalls && after.asked > before.asked);
    assert_eq!((after.registrations, after.registered_bytes), (1, 5000));
    assert!(counts(pair.b()).granted >= 40);
    let mut names = HashSet::new();
    pair.a
        .each_count(&mut |name, _| assert!(names.insert(name), "{name} twice"));
    assert!(names.contains("stalls") && names.len() > 24, "{names:?}");
}
