//! Tests of each failure of the handshake: one side is real, the other is made by hand.

use super::*;

const ME: Name = Name::new(7, 4);
const LOWER: Name = Name::new(7, 3);
const MODULE: ModuleId = ModuleId(0);

fn meeting() -> Meeting {
    Meeting::new(ME, Epoch(1), 1, Limits::default())
}

fn later() -> Time {
    Time::ZERO + Duration::from_secs(20)
}

fn call(meeting: &mut Meeting, attempt: u64, addresses: &[&str], deadline: Time) {
    let addresses = addresses.iter().map(|&address| address.into()).collect();
    meeting.connect(
        Time::ZERO,
        Attempt(attempt),
        LOWER,
        Epoch::UNKNOWN,
        MODULE,
        addresses,
        deadline,
    );
}

/// Calls over an established connection; returns the connection and the call.
fn calling() -> (Meeting, Conn, Hello) {
    let mut meeting = meeting();
    call(&mut meeting, 1, &["there"], later());
    let Some(Action::Dial { conn, .. }) = meeting.action() else {
        panic!("a dial")
    };
    meeting.dialled(Time::ZERO, conn);
    let Some(Action::Send { bytes, .. }) = meeting.action() else {
        panic!("a call")
    };
    let said = Hello::read(&bytes).expect("a call");
    (meeting, conn, said)
}

/// A hello of the lower name, which has received everything that the other side sent.
fn from_lower(said: HelloKind, nonce: u64, heard: u64) -> Hello {
    Hello {
        version: 1,
        said,
        from: LOWER,
        epoch: Epoch(1),
        to: ME,
        nonce,
        heard,
    }
}

/// Accepts a connection that sends this hello.
fn comes(meeting: &mut Meeting, hello: Hello) -> Conn {
    let conn = meeting.accepted(Time::ZERO, MODULE).expect("room");
    meeting.received(Time::ZERO, conn, &hello.bytes());
    conn
}

/// Collects the actions: nacks by reason, closes, links, ends of attempts.
fn done(meeting: &mut Meeting) -> Vec<String> {
    std::iter::from_fn(|| meeting.action())
        .map(|action| match action {
            Action::Send { conn, bytes } => format!("{:?} to {}", Hello::read(&bytes).unwrap().said, conn.0),
            Action::Close { conn, why } => format!("close {} {why:?}", conn.0),
            Action::Up { conn, attempt, .. } => format!("up {} {attempt:?}", conn.0),
            Action::Refused { attempt, why } => format!("refused {} {why:?}", attempt.0),
            Action::Dial { conn, address, .. } => format!("dial {} {address}", conn.0),
        })
        .collect()
}

#[test]
fn an_attempt_without_an_address_or_without_time_ends_at_once() {
    let mut meeting = meeting();
    call(&mut meeting, 1, &[], later());
    call(&mut meeting, 2, &["there"], Time::ZERO);
    assert_eq!(done(&mut meeting), ["refused 1 NoRoute", "refused 2 TimedOut"]);
    assert_eq!(meeting.next_deadline(), None);
    meeting.connect(
        Time::ZERO,
        Attempt(3),
        ME,
        Epoch::UNKNOWN,
        MODULE,
        vec!["here".into()],
        later(),
    );
    assert_eq!(
        done(&mut meeting),
        ["refused 3 Cancelled"],
        "a process does not call itself"
    );
}

#[test]
fn a_call_that_was_received_before_is_stale() {
    let mut meeting = meeting();
    let first = comes(&mut meeting, from_lower(HelloKind::Call, 5, 0));
    let up = format!("up {} None", first.0);
    assert_eq!(done(&mut meeting)[1], up);
    for nonce in [5, 4] {
        let again = comes(&mut meeting, from_lower(HelloKind::Call, nonce, 0));
        assert_eq!(
            done(&mut meeting),
            [
                format!("Nack(Stale) to {}", again.0),
                format!("close {} Replaced", again.0)
            ]
        );
    }
    assert_eq!(meeting.state(LOWER), State::Connected);
}

#[test]
fn of_two_calls_that_wait_for_the_end_of_our_own_the_first_is_stale() {
    let (mut meeting, ours, said) = calling();
    let first = comes(&mut meeting, from_lower(HelloKind::Call, 1, 0));
    assert!(done(&mut meeting).is_empty(), "it waits");
    let second = comes(&mut meeting, from_lower(HelloKind::Call, 2, 0));
    assert_eq!(
        done(&mut meeting),
        [
            format!("Nack(Stale) to {}", first.0),
            format!("close {} Replaced", first.0)
        ]
    );
    // Our own call succeeds, so the waiting one has lost the tie.
    let welcome = from_lower(HelloKind::Welcome, said.nonce, said.nonce);
    meeting.received(Time::ZERO, ours, &welcome.bytes());
    assert_eq!(
        done(&mut meeting),
        [
            format!("up {} Some(Attempt(1))", ours.0),
            format!("Nack(Tie) to {}", second.0),
            format!("close {} Replaced", second.0)
        ]
    );
}

#[test]
fn a_call_that_waits_is_taken_when_our_own_fails_and_gone_when_its_connection_ends() {
    for ends in [false, true] {
        let (mut meeting, ours, _) = calling();
        let theirs = comes(&mut meeting, from_lower(HelloKind::Call, 1, 0));
        if ends {
            meeting.ended(Time::ZERO, theirs, Refusal::Broken);
        }
        meeting.ended(Time::ZERO, ours, Refusal::Broken);
        let done = done(&mut meeting);
        if ends {
            assert!(
                matches!(&done[..], [dial] if dial.starts_with("dial")),
                "{done:?}"
            );
        } else {
            let up = format!("up {} None", theirs.0);
            assert!(
                done.contains(&up) && done.contains(&"refused 1 Yielded".into()),
                "{done:?}"
            );
        }
    }
}

#[test]
fn an_answer_to_another_call_is_not_one_to_this() {
    let (mut meeting, ours, said) = calling();
    for nonce in [said.nonce + 1, said.nonce + 2] {
        let welcome = from_lower(HelloKind::Welcome, nonce, nonce);
        meeting.received(Time::ZERO, ours, &welcome.bytes());
    }
    assert!(done(&mut meeting).is_empty());
    assert_eq!(meeting.state(LOWER), State::Greeting);
}

/// The second try of an attempt fails in the same way, and with it the attempt.
#[test]
fn each_nack_ends_the_attempt_with_its_reason() {
    for (nack, why) in [
        (Nack::Stale, Refusal::Broken),
        (Nack::Version, Refusal::WrongVersion),
        (Nack::Name, Refusal::WrongName),
        (Nack::OldEpoch, Refusal::OutOfDate),
    ] {
        let (mut meeting, mut conn, mut said) = calling();
        for last in [false, true] {
            let answer = from_lower(HelloKind::Nack(nack), said.nonce, said.nonce);
            meeting.received(Time::ZERO, conn, &answer.bytes());
            assert_eq!(
                meeting.action(),
                Some(Action::Close {
                    conn,
                    why: Loss::Broken
                })
            );
            match meeting.action() {
                Some(Action::Dial { conn: next, .. }) if !last => {
                    meeting.dialled(Time::ZERO, next);
                    let Some(Action::Send { bytes, .. }) = meeting.action() else {
                        panic!("a call")
                    };
                    (conn, said) = (next, Hello::read(&bytes).expect("a call"));
                }
                action => {
                    let attempt = Attempt(1);
                    assert_eq!(action, Some(Action::Refused { attempt, why }), "{nack:?}");
                    assert!(last, "{nack:?}: it is tried twice");
                }
            }
        }
        assert_eq!(
            (meeting.state(LOWER), meeting.next_deadline()),
            (State::Failed, None)
        );
    }
}

#[test]
fn what_is_no_hello_or_comes_out_of_turn_ends_the_connection() {
    let cases: [(&str, Vec<u8>); 3] = [
        ("too short", vec![0; HELLO - 1]),
        (
            "too long",
            [from_lower(HelloKind::Call, 1, 0).bytes().to_vec(), vec![0]].concat(),
        ),
        ("an answer", from_lower(HelloKind::Welcome, 1, 0).bytes().to_vec()),
    ];
    for (what, bytes) in cases {
        let mut meeting = meeting();
        let conn = meeting.accepted(Time::ZERO, MODULE).expect("room");
        meeting.received(Time::ZERO, conn, &bytes);
        assert_eq!(
            done(&mut meeting),
            [format!("close {} Protocol", conn.0)],
            "{what}"
        );
        assert_eq!(meeting.counters().strangers, 1, "{what}");
    }
    // A call over the connection of our own call; and a second message of one that waits.
    let (mut meeting, ours, _) = calling();
    meeting.received(Time::ZERO, ours, &from_lower(HelloKind::Call, 1, 0).bytes());
    let first = done(&mut meeting);
    assert!(first.contains(&format!("close {} Protocol", ours.0)), "{first:?}");
    let (mut meeting, ..) = calling();
    let theirs = comes(&mut meeting, from_lower(HelloKind::Call, 1, 0));
    meeting.received(Time::ZERO, theirs, &from_lower(HelloKind::Call, 2, 0).bytes());
    assert_eq!(done(&mut meeting), [format!("close {} Protocol", theirs.0)]);
}

#[test]
fn events_of_connections_that_are_gone_change_nothing() {
    let mut meeting = meeting();
    let unknown = Conn(99);
    meeting.dialled(Time::ZERO, unknown);
    meeting.received(Time::ZERO, unknown, &from_lower(HelloKind::Call, 1, 0).bytes());
    meeting.ended(Time::ZERO, unknown, Refusal::Broken);
    meeting.cancel(Time::ZERO, Attempt(99));
    assert!(done(&mut meeting).is_empty());
    assert_eq!((meeting.counters().strangers, meeting.next_deadline()), (0, None));
}
