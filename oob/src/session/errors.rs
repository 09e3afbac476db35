//! Tests of each invalid input of the other side, and of what both sides report then.

use super::*;

fn side(role: Role) -> Session {
    let terms = Terms {
        name: Name::new(9, role as u32),
        ..Terms::new(Some(JobKey::from_bytes([1; 32])), 7, 1)
    };
    Session::new(role, &terms, Time::ZERO).unwrap()
}

fn open() -> (Session, Session) {
    let (mut caller, mut answerer) = (side(Role::Caller), side(Role::Answerer));
    answerer.receive(&caller.take_outgoing()).unwrap();
    caller.receive(&answerer.take_outgoing()).unwrap();
    answerer.receive(&caller.take_outgoing()).unwrap();
    assert!(matches!(answerer.event(), Some(Event::Ready(_))));
    (caller, answerer)
}

/// Returns a record of these bytes, sealed as the session's next one.
fn sealed(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let State::Open(keys) = &mut session.state else {
        panic!("{session:?}")
    };
    let mut record = vec![0; PREFIX + plain.len() + TAG];
    record[..PREFIX].copy_from_slice(&((plain.len() + TAG) as u16).to_le_bytes());
    keys.noise.write_message(plain, &mut record[PREFIX..]).unwrap();
    record
}

fn stranger(result: Result<(), OobError>) -> &'static str {
    match result {
        Err(OobError::Stranger { what }) => what,
        other => panic!("{other:?}"),
    }
}

/// Checks that it has ended: it accepts, sends and reports nothing more.
fn is_over(mut session: Session) {
    let _ = session.receive(b"more");
    assert!(session.event().is_none() && !session.is_open());
    assert!(session.send(b"x").is_err());
}

#[test]
fn a_refusal_of_the_version_that_both_have_makes_no_sense() {
    let mut caller = side(Role::Caller);
    let _ = caller.take_outgoing();
    let refusal = Head::of(Kind::Refuse(Refusal::Version), true, 7);
    assert_eq!(
        stranger(caller.receive(&refusal.bytes())),
        "it refused a version that it speaks"
    );
    is_over(caller);
}

#[test]
fn an_answer_without_a_call_and_a_call_for_an_answer_are_refused() {
    let mut call = side(Role::Caller).take_outgoing();
    let mut caller = side(Role::Caller);
    assert_eq!(
        stranger(caller.receive(&call)),
        "it sent a call instead of an answer"
    );
    is_over(caller);
    call[10] = 2;
    let mut answerer = side(Role::Answerer);
    assert_eq!(
        stranger(answerer.receive(&call)),
        "it sent an answer without a call"
    );
    assert!(answerer.take_outgoing().is_empty(), "nothing is sent to it");
    is_over(answerer);
}

#[test]
fn each_refusal_is_reported_to_the_caller_as_what_it_is() {
    let refused = |refusal, keyed, purpose| {
        let mut caller = side(Role::Caller);
        let head = Head::of(Kind::Refuse(refusal), keyed, purpose);
        let error = caller.receive(&head.bytes()).unwrap_err();
        is_over(caller);
        error
    };
    let error = refused(Refusal::Key, true, 7);
    assert!(matches!(error, OobError::WrongKey), "{error}");
    let error = refused(Refusal::Keyed, false, 7);
    assert!(matches!(error, OobError::KeyMissing { here: true }), "{error}");
    let error = refused(Refusal::Purpose, true, 8);
    assert!(
        matches!(error, OobError::Purpose { ours: 7, theirs: 8 }),
        "{error}"
    );
}

/// The first record has to be the proof of freshness.
#[test]
fn a_first_record_that_proves_nothing_is_forged() {
    let (mut caller, mut answerer) = (side(Role::Caller), side(Role::Answerer));
    answerer.receive(&caller.take_outgoing()).unwrap();
    caller.inbox = answerer.take_outgoing();
    let State::Calling(mut noise) = std::mem::replace(&mut caller.state, State::Failed) else {
        panic!("{caller:?}")
    };
    caller.read_handshake(&mut noise).unwrap();
    let keys = caller.keys(*noise).unwrap();
    caller.state = State::Open(keys);
    caller.seal(Piece::Last, [b"x", b""]).unwrap();
    let error = answerer.receive(&caller.take_outgoing()).unwrap_err();
    assert!(matches!(error, OobError::Forged { record: 0 }), "{error}");
    is_over(answerer);
}

#[test]
fn records_that_no_session_seals_are_forged_with_their_number() {
    let confirm = Piece::Confirm.number();
    let (more, close) = (Piece::More.number(), Piece::Close.number());
    let cases: [(&str, &[&[u8]]); 5] = [
        ("a proof, once more", &[&[confirm]]),
        ("a piece of another kind", &[&[9, 1]]),
        ("nothing, and more of it", &[&[more]]),
        ("an end in the middle of a message", &[&[more, 1], &[close]]),
        ("an end with contents", &[&[close, 1]]),
    ];
    for (what, records) in cases {
        let (mut caller, mut answerer) = open();
        let (last, before) = records.split_last().unwrap();
        for record in before {
            answerer.receive(&sealed(&mut caller, record)).unwrap();
        }
        let error = answerer.receive(&sealed(&mut caller, last)).unwrap_err();
        let number = 1 + before.len() as u64;
        assert!(
            matches!(error, OobError::Forged { record } if record == number),
            "{what}: {error}"
        );
        is_over(answerer);
    }
}

#[test]
fn a_record_that_is_too_short_or_was_changed_is_forged() {
    let (_, mut answerer) = open();
    let short = [TAG as u8, 0];
    assert!(matches!(
        answerer.receive(&short),
        Err(OobError::Forged { record: 1 })
    ));
    is_over(answerer);
    for at in [PREFIX, PREFIX + 1, PREFIX + TAG] {
        let (mut caller, mut answerer) = open();
        let mut record = sealed(&mut caller, &[Piece::Last.number(), 7]);
        record[at] ^= 1;
        assert!(matches!(
            answerer.receive(&record),
            Err(OobError::Forged { record: 1 })
        ));
        is_over(answerer);
    }
}

#[test]
fn records_come_to_an_end_before_their_numbers_do() {
    let (mut caller, mut answerer) = open();
    let record = sealed(&mut caller, &[Piece::Last.number(), 7]);
    let State::Open(keys) = &mut answerer.state else {
        panic!("{answerer:?}")
    };
    (keys.sealed, keys.opened) = (RECORDS_MAX, RECORDS_MAX);
    assert!(matches!(answerer.send(b"x"), Err(OobError::Exhausted)));
    assert!(answerer.take_outgoing().is_empty(), "no part of it is out");
    assert!(matches!(answerer.receive(&record), Err(OobError::Exhausted)));
    is_over(answerer);
}

#[test]
fn a_session_reports_its_progress() {
    let (mut caller, mut answerer) = (side(Role::Caller), side(Role::Answerer));
    let mut seen = vec![format!("{caller:?}"), format!("{answerer:?}")];
    answerer.receive(&caller.take_outgoing()).unwrap();
    seen.push(format!("{answerer:?}"));
    caller.receive(&answerer.take_outgoing()).unwrap();
    seen.push(format!("{caller:?}"));
    answerer.receive(&caller.take_outgoing()).unwrap();
    caller.close();
    answerer.receive(&caller.take_outgoing()).unwrap();
    seen.push(format!("{answerer:?}"));
    let _ = caller.receive(&[0, 0]);
    seen.push(format!("{caller:?}"));
    assert_eq!(
        seen,
        [
            "Session(waits for the answer)",
            "Session(waits for a call)",
            "Session(waits for the proof)",
            "Session(open)",
            "Session(closed)",
            "Session(over)"
        ]
    );
    assert_eq!((caller.role(), answerer.role()), (Role::Caller, Role::Answerer));
}
