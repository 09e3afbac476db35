//! The control plane whole, over loopback: all calls of a handle.

use std::sync::mpsc::channel;
use std::time::Duration;

use doorbell_oob::bytes::Bytes;
use doorbell_oob::event::{Event, RecvError, SendError, Status};
use doorbell_oob::lines::tcp::Settings;
use doorbell_oob::name::{From, Name};
use doorbell_oob::plane::{Busy, Message, NotReceived, Oob};
use doorbell_oob::runner::{self, Progress};

use crate::job::{
    TAG, config, finish, introduce, job, job_with, number, receive_all, say, send_all, start, until,
};
use crate::side::{JOB, PATIENCE};

fn both_ways(settings: runner::Settings, count: u32) {
    let all = job_with(2, settings);
    let names = [all[0].name(), all[1].name()];
    let inbox = |at: usize| all[at].inbox(From::only(names[1 - at]), TAG, 64 << 10).unwrap();
    let inboxes = [inbox(0), inbox(1)];
    std::thread::scope(|scope| {
        for at in 0..2 {
            let (all, names, inboxes) = (&all, &names, &inboxes);
            scope.spawn(move || send_all(&all[at], names[1 - at], count, 500));
            scope.spawn(move || receive_all(&inboxes[at], count, |_| ()));
        }
    });
    finish(all);
}

#[test]
fn ten_thousand_messages_each_way_through_small_inboxes() {
    both_ways(runner::Settings::default(), 10_000);
}

#[test]
fn a_thread_that_spins_does_the_same() {
    let progress = Progress::Spin(None);
    let spin = runner::Settings {
        progress,
        ..Default::default()
    };
    both_ways(spin, 1_000);
}

/// A receiver that takes nothing makes the sender wait, and holds no more than its inbox and the window.
#[test]
fn a_full_inbox_holds_the_sender_up_and_loses_nothing() {
    const COUNT: u32 = 3_000;
    let small = |rank| {
        let mut config = config(rank, 2);
        config.unmatched = 64 << 10;
        start(config, Settings::default())
    };
    let all = [small(0), small(1)];
    introduce(&all);
    let inbox = all[1].inbox(From::ANYBODY, TAG, 16 << 10).unwrap();
    let body = |nth: u32| Bytes::from([nth.to_be_bytes().as_slice(), &[0; 1000]].concat());
    let sends: Vec<_> = (0..COUNT)
        .map(|nth| {
            all[0]
                .send(all[1].name(), TAG, body(nth), Some(PATIENCE))
                .unwrap()
        })
        .collect();
    // As many as the inbox, its receive's last turn, and the window hold; and no more.
    assert_eq!(sends[15].wait(PATIENCE), Some(Ok(Status::Delivered)));
    assert_eq!(sends[COUNT as usize - 1].wait(Duration::from_millis(500)), None);
    for nth in 0..COUNT {
        let message = inbox.wait(PATIENCE).expect("it comes when there is room");
        assert_eq!(message.body, body(nth));
    }
    assert_eq!(
        sends[COUNT as usize - 1].wait(PATIENCE),
        Some(Ok(Status::Delivered))
    );
    assert_eq!(inbox.missed(), 0);
    finish(all.into());
}

/// The room of an inbox is one of bytes, however long the messages are.
#[test]
fn an_inbox_of_long_messages_holds_few_of_them() {
    const LENGTH: usize = 100_000;
    const COUNT: usize = 100;
    let all = [0, 1].map(|rank| {
        let mut config = config(rank, 2);
        (config.unmatched, config.pending) = (128 << 10, 2 * COUNT * LENGTH);
        start(config, Settings::default())
    });
    introduce(&all);
    let inbox = all[1].inbox(From::ANYBODY, TAG, 4 * LENGTH).unwrap();
    let body = Bytes::from(vec![7; LENGTH]);
    let to = all[1].name();
    let sends = (0..COUNT).map(|_| all[0].send(to, TAG, body.clone(), Some(PATIENCE)).unwrap());
    let sends: Vec<_> = sends.collect();
    assert_eq!(sends[3].wait(PATIENCE), Some(Ok(Status::Delivered)));
    assert_eq!(sends[COUNT - 1].wait(Duration::from_millis(500)), None);
    assert_eq!(inbox.waiting(), 4);
    for _ in 0..COUNT {
        assert_eq!(inbox.wait(PATIENCE).expect("it comes").body.len(), LENGTH);
    }
    assert_eq!(sends[COUNT - 1].wait(PATIENCE), Some(Ok(Status::Delivered)));
    finish(all.into());
}

#[test]
fn unmatched_then_posted_one_shot_and_persistent_and_what_cannot_be_posted() {
    let all = job(2);
    let [one, two] = [&all[0], &all[1]];
    for word in [&b"first"[..], b"second", b"third"] {
        say(one, two.name(), TAG, word);
    }
    let once = two.receive(From::only(one.name()), TAG).unwrap();
    assert_eq!(&*once.wait(PATIENCE).unwrap().unwrap().body, b"first");
    let (tell, told) = channel();
    let each = move |message: Message| tell.send(message.body).unwrap();
    let posted = two.receive_each(From::ANYBODY, TAG, each).unwrap();
    assert_eq!(posted.wait(PATIENCE), Some(Ok(())));
    say(one, two.name(), TAG, b"fourth");
    let words: Vec<Bytes> = (0..3).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(
        words.iter().map(|word| &**word).collect::<Vec<_>>(),
        [&b"second"[..], b"third", b"fourth"]
    );

    let twice = RecvError::Twice {
        from: From::ANYBODY,
        tag: TAG,
    };
    let again = two.receive(From::ANYBODY, TAG).unwrap();
    assert_eq!(again.wait(PATIENCE), Some(Err(NotReceived::NotPosted(twice))));
    let (tell, why) = channel();
    two.receive_then(From::ANYBODY, 5, move |received| tell.send(received).unwrap())
        .unwrap();
    let reserved = NotReceived::NotPosted(RecvError::Reserved(5));
    assert_eq!(why.recv_timeout(PATIENCE), Ok(Err(reserved)));
    finish(all);
    assert!(told.recv().is_err(), "the function is gone");
}

/// An inbox is a receive: there is one of a kind, full or not; and once it is dropped, its place is free.
#[test]
fn the_place_of_an_inbox_is_taken_until_it_is_dropped() {
    let one = start(config(0, 1), Settings::default());
    let me = one.name();
    let inbox = one.inbox(From::ANYBODY, TAG, 2 * 65).unwrap();
    for full in [false, true] {
        let twice = one.receive(From::ANYBODY, TAG).unwrap().wait(PATIENCE);
        assert!(
            matches!(twice, Some(Err(NotReceived::NotPosted(RecvError::Twice { .. })))),
            "{full}"
        );
        (0..4).for_each(|nth| say(&one, me, TAG, &[nth]));
    }
    let second = one.inbox(From::ANYBODY, TAG, 2 * 65).unwrap();
    assert_eq!(second.wait(PATIENCE), None);
    assert!(matches!(second.ended(), Some(NotReceived::NotPosted(_))));
    drop(second);
    let bodies: Vec<u8> = (0..8).map(|_| inbox.wait(PATIENCE).unwrap().body[0]).collect();
    assert_eq!(
        bodies,
        [0, 1, 2, 3, 0, 1, 2, 3],
        "the end of the second is not that of the first"
    );
    (0..3).for_each(|nth| say(&one, me, TAG, &[nth]));
    drop(inbox);
    let next = one.inbox(From::ANYBODY, TAG, 2 * 65).unwrap();
    say(&one, me, TAG, b"next");
    // What waited in the node when the first was dropped is the next one's.
    let bodies: Vec<Bytes> = std::iter::from_fn(|| next.wait(Duration::from_millis(300)))
        .map(|it| it.body)
        .collect();
    assert_eq!(
        bodies.last().map(|body| &**body),
        Some(&b"next"[..]),
        "{bodies:?}"
    );
    // One that is cancelled while it is full ends, after what it has.
    (0..3).for_each(|nth| say(&one, me, TAG, &[nth]));
    one.cancel(From::ANYBODY, TAG).unwrap();
    assert!(next.wait(PATIENCE).is_some() && next.wait(PATIENCE).is_some());
    assert_eq!(
        (next.wait(PATIENCE), next.ended()),
        (None, Some(NotReceived::Cancelled))
    );
    finish(vec![one]);
}

#[test]
fn messages_to_unknown_peers_end_with_the_reason_and_can_be_given_up() {
    let one = start(config(0, 3), Settings::default());
    let unanswered = one.send(Name::new(JOB, 99), TAG, b"x".into(), None).unwrap();
    assert!(matches!(
        unanswered.wait(PATIENCE),
        Some(Err(SendError::UnknownPeer(_)))
    ));
    let short = Some(Duration::from_millis(200));
    let away = one.send(Name::new(JOB, 1), TAG, b"x".into(), short).unwrap();
    assert_eq!(
        away.wait(PATIENCE),
        Some(Ok(Status::Unreachable)),
        "no contact of it is known"
    );
    let (tell, told) = channel();
    let then = move |sent| tell.send(sent).unwrap();
    one.send_then(Name::new(JOB, 1), TAG, b"x".into(), short, then)
        .unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(Status::Unreachable)));
    let given_up = one
        .send(Name::new(JOB, 2), TAG, b"x".into(), Some(PATIENCE * 10))
        .unwrap();
    one.give_up(&given_up).unwrap();
    assert_eq!(given_up.wait(PATIENCE), Some(Ok(Status::Cancelled)));
    let said = one.explain(Name::new(JOB, 2)).unwrap().wait(PATIENCE).unwrap();
    assert!(said.contains(&format!("{JOB}.2")), "{said}");
    finish(vec![one]);
}

#[test]
fn broadcasts_and_gathers_reach_all_and_missing_ranks_are_named() {
    let mut all = job(5);
    let broadcasts: Vec<_> = all.iter().map(Oob::broadcasts).collect();
    let events = all[0].events();
    for word in [&b"to all"[..], b"again"] {
        let spread = all[3].broadcast(TAG, word.into(), PATIENCE).unwrap();
        assert_eq!(spread.wait(PATIENCE * 2), Some(Ok(Vec::new())));
    }
    for inbox in &broadcasts {
        let words = [inbox.wait(PATIENCE).unwrap(), inbox.wait(PATIENCE).unwrap()];
        assert_eq!(
            (words[0].from, &*words[0].body, &*words[1].body),
            (all[3].name(), &b"to all"[..], &b"again"[..])
        );
    }
    let gather = |rank: u32| all[rank as usize].gather(1, number(rank), PATIENCE).unwrap();
    let gathers: Vec<_> = (0..5).map(gather).collect();
    let table: Vec<(u32, Bytes)> = (0..5).map(|rank| (rank, number(rank))).collect();
    for gather in gathers {
        let gathered = gather.wait(PATIENCE * 2).unwrap();
        assert_eq!(
            (gathered.table, gathered.missing),
            (Some(table.clone()), Vec::new())
        );
    }
    all.pop().unwrap().finish(PATIENCE);
    until(
        &events,
        "a loss",
        |event| matches!(event, Event::PeerLost { peer, .. } if peer.rank == 4),
    );
    finish(all);
}

#[test]
fn everything_can_be_awaited() {
    let all = job(2);
    let inbox = all[1].inbox(From::ANYBODY, TAG, 4 << 10).unwrap();
    crate::side::runtime().block_on(async {
        for nth in 0..200 {
            let sent = all[0].send(all[1].name(), TAG, number(nth), None).unwrap();
            assert_eq!(inbox.next().await.unwrap().body, number(nth));
            assert_eq!(sent.await, Ok(Status::Delivered));
        }
        all[1].finish(PATIENCE);
        assert_eq!(inbox.next().await, None);
    });
    finish(all);
}

#[test]
fn a_full_mailbox_refuses_and_what_it_took_is_carried_out() {
    let settings = runner::Settings {
        mailbox: 4,
        ..Default::default()
    };
    let one = Oob::start(config(0, 1), Settings::default(), None, settings).unwrap();
    let (release, wait) = channel::<()>();
    let (tell, told) = channel();
    let stalls = move |_| {
        tell.send(()).unwrap();
        let _ = wait.recv_timeout(PATIENCE);
    };
    one.receive_then(From::ANYBODY, TAG, stalls).unwrap();
    let first = one.send(one.name(), TAG, b"x".into(), None).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    // The thread is held up.
    let sends: Vec<_> = (0..10)
        .map(|_| one.send(one.name(), TAG, b"x".into(), None))
        .collect();
    assert!(sends[3].is_ok() && matches!(sends[4], Err(Busy::Full)));
    release.send(()).unwrap();
    for sent in sends.into_iter().take(4).flatten().chain([first]) {
        assert_eq!(sent.wait(PATIENCE), Some(Ok(Status::Delivered)));
    }
    finish(vec![one]);
}
