//! How a control plane ends, by itself or with its process, and what starts over.

use std::time::{Duration, Instant};

use doorbell_oob::OobError;
use doorbell_oob::config::{Config, Policy, Transport};
use doorbell_oob::event::{Event, SendError, Status};
use doorbell_oob::lines::tcp::Settings;
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::plane::{Busy, NotReceived, Oob};
use doorbell_oob::runner;

use crate::job::{TAG, config, contact, finish, introduce, job, number, receive_all, say, start, until};
use crate::side::{JOB, PATIENCE};

#[test]
fn to_oneself_and_what_is_taken_back_and_what_the_end_finds() {
    let one = start(config(0, 1), Settings::default());
    let own = one.receive(From::ANYBODY, TAG).unwrap();
    say(&one, one.name(), TAG, b"self");
    assert_eq!(own.wait(PATIENCE).unwrap().unwrap().from, one.name());
    let gone = one.receive(From::job(JOB), TAG).unwrap();
    one.cancel(From::job(JOB), TAG).unwrap();
    assert_eq!(gone.wait(PATIENCE), Some(Err(NotReceived::Cancelled)));
    let inbox = one.inbox(From::ANYBODY, TAG, 4 << 10).unwrap();
    one.cancel(From::ANYBODY, TAG).unwrap();
    assert_eq!(
        (inbox.wait(PATIENCE), inbox.ended()),
        (None, Some(NotReceived::Cancelled))
    );

    let waits = one.receive(From::ANYBODY, TAG).unwrap();
    let (events, broadcasts) = (one.events(), one.broadcasts());
    finish(vec![one]);
    assert_eq!(waits.take(), Some(Err(NotReceived::Ended)));
    assert_eq!(
        (events.wait(PATIENCE), events.ended()),
        (None, Some(NotReceived::Ended))
    );
    assert_eq!(
        (broadcasts.wait(PATIENCE), broadcasts.ended()),
        (None, Some(NotReceived::Ended))
    );
}

/// Without its lifeline a process ends, unless its policy is to persist.
#[test]
fn the_loss_of_the_lifeline_is_the_end_unless_it_is_not_to_be() {
    let with = |rank, policy| {
        let mut config = config(rank, 3);
        config.policy = policy;
        (config.rounds, config.retry, config.retry_max) =
            (2, Duration::from_millis(20), Duration::from_millis(50));
        start(config, Settings::default())
    };
    let all = [
        with(0, Policy::End),
        with(1, Policy::End),
        with(2, Policy::Persist),
    ];
    introduce(&all);
    all.iter().for_each(|oob| oob.begin().unwrap());
    let [root, ends, persists] = all;
    let events = [ends.events(), persists.events()];
    for events in &events {
        until(events, "a lifeline", |event| {
            matches!(event, Event::LifelineUp { .. })
        });
    }
    let waits = ends.receive(From::ANYBODY, TAG).unwrap();
    root.finish(PATIENCE);
    for events in &events {
        until(events, "its loss", |event| *event == Event::LifelineLost);
    }
    assert_eq!(waits.wait(PATIENCE), Some(Err(NotReceived::Ended)));
    while events[0].wait(PATIENCE).is_some() {}
    assert_eq!(events[0].ended(), Some(NotReceived::Ended));
    let begun = Instant::now();
    while ends.begin() != Err(Busy::Ended) {
        assert!(begun.elapsed() < PATIENCE, "it goes on");
    }
    say(&persists, persists.name(), TAG, b"still here");
    finish(vec![ends, persists]);
}

#[test]
fn a_peer_that_is_started_again_is_a_new_one_and_gets_nothing_of_the_first() {
    let mut all = job(2);
    let events = all[0].events();
    let first = all.pop().unwrap();
    let (one, name) = (all.remove(0), first.name());
    let inbox = one.inbox(From::only(name), TAG, 64 << 10).unwrap();
    say(&first, one.name(), TAG, b"first life");
    first.finish(PATIENCE);
    until(
        &events,
        "a loss",
        |event| matches!(event, Event::PeerLost { peer, .. } if *peer == name),
    );
    let late = one
        .send(name, TAG, b"for the first".into(), Some(PATIENCE))
        .unwrap();
    assert_eq!(late.wait(PATIENCE), Some(Err(SendError::Lost(name))));

    let mut again = config(1, 2);
    again.epoch = Epoch(101);
    let second = start(again, Settings::default());
    let received = second.receive(From::only(one.name()), TAG).unwrap();
    second.learn(vec![contact(&one)]).unwrap();
    one.learn(vec![contact(&second)]).unwrap();
    second.begin().unwrap();
    let new = |event: &Event| matches!(event, Event::PeerRestarted { peer, epoch } if *peer == name && epoch.0 == 101);
    until(&events, "a new life", new);
    say(&second, one.name(), TAG, b"second life");
    say(&one, name, TAG, b"for the second");
    assert_eq!(
        &*received.wait(PATIENCE).unwrap().unwrap().body,
        b"for the second"
    );
    let bodies = [
        inbox.wait(PATIENCE).unwrap().body,
        inbox.wait(PATIENCE).unwrap().body,
    ];
    assert_eq!(
        (&*bodies[0], &*bodies[1]),
        (&b"first life"[..], &b"second life"[..])
    );
    finish(vec![one, second]);
}

/// A function on the progress thread may hold the last handle, and drop it.
#[test]
fn the_last_handle_may_be_dropped_on_the_progress_thread() {
    for finishes in [false, true] {
        let one = start(config(0, 1), Settings::default());
        let (copy, me) = (one.clone(), one.name());
        let waits = one.receive(From::ANYBODY, TAG + 1).unwrap();
        let then = move |_| {
            if finishes {
                copy.finish(Duration::ZERO);
            }
            drop(copy);
        };
        one.receive_then(From::ANYBODY, TAG, then).unwrap();
        drop(one.send(me, TAG, b"x".into(), None).unwrap());
        drop(one);
        assert_eq!(waits.wait(PATIENCE), Some(Err(NotReceived::Ended)));
    }
}

#[test]
fn a_function_that_panics_ends_the_control_plane_and_no_caller_waits_for_ever() {
    let one = start(config(0, 1), Settings::default());
    let waits = one.receive(From::ANYBODY, TAG + 1).unwrap();
    let events = one.events();
    one.receive_then(From::ANYBODY, TAG, |_| panic!("on purpose"))
        .unwrap();
    drop(one.send(one.name(), TAG, b"x".into(), None).unwrap());
    assert_eq!(waits.wait(PATIENCE), Some(Err(NotReceived::Ended)));
    assert_eq!(events.wait(PATIENCE), None);
    finish(vec![one]);
}

#[test]
fn requests_before_the_end_are_carried_out() {
    let all = job(2);
    let inbox = all[1].inbox(From::ANYBODY, TAG, 1 << 20).unwrap();
    let sends: Vec<_> = (0..2_000)
        .map(|nth| all[0].send(all[1].name(), TAG, number(nth), None).unwrap())
        .collect();
    all[0].finish(PATIENCE);
    assert!(
        sends
            .iter()
            .all(|sent| sent.take() == Some(Ok(Status::Delivered)))
    );
    receive_all(&inbox, 2_000, |_| ());
    finish(all);
}

#[test]
fn settings_that_cannot_be_are_refused_with_what_to_write() {
    let with = |transports, rank| {
        let config = Config::new(Name::new(JOB, rank), Epoch(1), 2, transports);
        match Oob::start(config, Settings::default(), None, runner::Settings::default()) {
            Err(error @ OobError::Setting { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let tcp = || Transport::direct("tcp");
    for wrong in [
        vec![],
        vec![Transport::direct("rail")],
        vec![tcp(), Transport::tree("tcp")],
    ] {
        assert!(with(wrong, 0).contains("`tcp`"));
    }
    assert!(with(vec![tcp()], 2).contains("the size of the job"));
}
