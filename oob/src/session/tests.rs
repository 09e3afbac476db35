use proptest::prelude::*;

use super::*;

fn key(byte: u8) -> Option<JobKey> {
    Some(JobKey::from_bytes([byte; 32]))
}

fn side(role: Role, key: Option<JobKey>) -> Session {
    let terms = Terms {
        name: Name::new(9, role as u32 + 40),
        ..Terms::new(key, 7, role as u64 + 40)
    };
    Session::new(role, &terms, Time::ZERO).unwrap()
}

/// Carries bytes to and fro until nothing more comes; the first error of each side.
fn talk(caller: &mut Session, answerer: &mut Session) -> (Result<(), OobError>, Result<(), OobError>) {
    let (mut one, mut other) = (Ok(()), Ok(()));
    loop {
        let (to, fro) = (caller.take_outgoing(), answerer.take_outgoing());
        if to.is_empty() && fro.is_empty() {
            return (one, other);
        }
        other = other.and(answerer.receive(&to));
        one = one.and(caller.receive(&fro));
    }
}

fn open() -> (Session, Session) {
    let (mut caller, mut answerer) = (side(Role::Caller, key(1)), side(Role::Answerer, key(1)));
    let (one, other) = talk(&mut caller, &mut answerer);
    one.and(other).unwrap();
    let named = |incarnation| Peer {
        name: Name::new(9, incarnation as u32),
        incarnation,
    };
    assert_eq!(caller.event(), Some(Event::Ready(named(41))));
    assert_eq!(answerer.event(), Some(Event::Ready(named(40))));
    assert!(caller.is_open() && answerer.is_open());
    (caller, answerer)
}

#[test]
fn messages_of_every_length_arrive_in_pieces_of_every_length() {
    let (mut caller, mut answerer) = open();
    for (length, step) in [
        (0, 1),
        (1, 1),
        (PIECE_MAX, 999),
        (PIECE_MAX + 1, 65_537),
        (1 << 20, 1 << 20),
    ] {
        let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
        caller.send(&message).unwrap();
        for bytes in caller.take_outgoing().chunks(step) {
            answerer.receive(bytes).unwrap();
        }
        assert_eq!(answerer.event(), Some(Event::Message(message)));
        assert_eq!(answerer.event(), None);
    }
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(caller.send(&long), Err(OobError::TooLong { .. })));
}

#[test]
fn a_message_in_two_parts_is_one_however_its_pieces_are_cut() {
    let (mut caller, mut answerer) = open();
    for (head, body) in [
        (0, 0),
        (48, 0),
        (0, 9),
        (48, 1000),
        (48, PIECE_MAX),
        (PIECE_MAX + 3, 70_000),
    ] {
        let whole: Vec<u8> = (0..head + body).map(|at| at as u8).collect();
        let (first, second) = whole.split_at(head);
        caller.send_parts(first, second).unwrap();
        answerer.receive(&caller.take_outgoing()).unwrap();
        assert_eq!(answerer.event(), Some(Event::Message(whole.clone())));
        assert_eq!(answerer.event(), None);
    }
    let half = vec![0; 1 << 19];
    caller.send_parts(&half, &half).unwrap();
    assert!(matches!(
        caller.send_parts(&half, &[half.clone(), vec![0]].concat()),
        Err(OobError::TooLong { .. })
    ));
}

#[test]
fn both_ends_of_a_session_and_no_others_share_a_binding() {
    let ((one, other), (third, _)) = (open(), open());
    assert_eq!(one.binding(), other.binding());
    assert_ne!(one.binding(), third.binding());
    assert_ne!(one.binding(), [0; 32]);
}

#[test]
fn each_side_learns_what_does_not_fit() {
    let told = |caller: Option<JobKey>, answerer: Option<JobKey>| {
        let (mut caller, mut answerer) = (side(Role::Caller, caller), side(Role::Answerer, answerer));
        let (one, other) = talk(&mut caller, &mut answerer);
        assert!(caller.event().is_none() && answerer.event().is_none());
        (one.unwrap_err(), other.unwrap_err())
    };
    assert!(matches!(
        told(key(1), key(2)),
        (OobError::WrongKey, OobError::WrongKey)
    ));
    let (one, other) = told(key(1), None);
    assert!(matches!(one, OobError::KeyMissing { here: true }), "{one}");
    assert!(matches!(other, OobError::KeyMissing { here: false }), "{other}");
    let (mut caller, mut answerer) = (side(Role::Caller, key(1)), side(Role::Answerer, key(1)));
    answerer.purpose = 8;
    let (one, other) = talk(&mut caller, &mut answerer);
    assert!(matches!(one, Err(OobError::Purpose { ours: 7, theirs: 8 })));
    assert!(matches!(other, Err(OobError::Purpose { ours: 8, theirs: 7 })));
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (mut caller, mut answerer) = (side(Role::Caller, key(1)), side(Role::Answerer, key(1)));
    let mut call = caller.take_outgoing();
    call[8] = 9;
    assert!(matches!(
        answerer.receive(&call),
        Err(OobError::Version { ours: 2, theirs: 9 })
    ));
    let mut refusal = answerer.take_outgoing();
    refusal[8] = 3;
    assert!(matches!(
        caller.receive(&refusal),
        Err(OobError::Version { ours: 2, theirs: 3 })
    ));
}

#[test]
fn a_recorded_call_gets_no_further_than_an_answer() {
    let mut caller = side(Role::Caller, key(1));
    let recorded = caller.take_outgoing();
    let mut first = side(Role::Answerer, key(1));
    first.receive(&recorded).unwrap();
    caller.receive(&first.take_outgoing()).unwrap();
    let confirm = caller.take_outgoing();
    // The same bytes again, to another answerer with the same key.
    let mut second = side(Role::Answerer, key(1));
    second.receive(&recorded).unwrap();
    assert!(second.event().is_none() && !second.is_open());
    assert!(matches!(
        second.receive(&confirm),
        Err(OobError::Forged { record: 0 })
    ));
    assert!(second.event().is_none());
    first.receive(&confirm).unwrap();
    assert!(first.is_open());
}

#[test]
fn repeated_reordered_dropped_and_changed_records_end_the_session() {
    for fault in 0..4 {
        let (mut caller, mut answerer) = open();
        let mut records: Vec<Vec<u8>> = Vec::new();
        for text in [b"one", b"two"] {
            caller.send(text).unwrap();
            records.push(caller.take_outgoing());
        }
        match fault {
            0 => records[1] = records[0].clone(),
            1 => records.swap(0, 1),
            2 => _ = records.remove(0),
            _ => records[1][5] ^= 1,
        }
        let came = answerer.receive(&records.concat());
        assert!(matches!(came, Err(OobError::Forged { .. })), "{fault}");
        let good = if matches!(fault, 0 | 3) {
            Some(Event::Message(b"one".to_vec()))
        } else {
            None
        };
        assert_eq!((answerer.event(), answerer.event()), (good, None), "{fault}");
        assert!(matches!(answerer.send(b"x"), Err(OobError::State(_))));
    }
}

#[test]
fn a_close_is_distinguished_from_a_cut() {
    let (mut caller, mut answerer) = open();
    caller.send(b"last").unwrap();
    caller.close();
    assert!(matches!(caller.send(b"more"), Err(OobError::State(_))));
    answerer.receive(&caller.take_outgoing()).unwrap();
    assert_eq!(answerer.event(), Some(Event::Message(b"last".to_vec())));
    assert_eq!(answerer.event(), Some(Event::Closed));
    answerer.end().unwrap();
    // The other direction is still there.
    let (mut caller, mut answerer) = open();
    caller.close();
    answerer.receive(&caller.take_outgoing()).unwrap();
    answerer.send(b"heard").unwrap();
    answerer.close();
    caller.receive(&answerer.take_outgoing()).unwrap();
    assert_eq!(caller.event(), Some(Event::Message(b"heard".to_vec())));
    assert_eq!(caller.event(), Some(Event::Closed));
    let (mut caller, mut answerer) = open();
    caller.send(b"half").unwrap();
    let bytes = caller.take_outgoing();
    answerer.receive(&bytes[..7]).unwrap();
    assert!(matches!(answerer.end(), Err(OobError::Truncated)));
    assert!(matches!(
        side(Role::Caller, None).end(),
        Err(OobError::Unanswered)
    ));
}

#[test]
fn a_handshake_ends_at_its_deadline_and_an_open_session_has_none() {
    let mut answerer = side(Role::Answerer, key(1));
    let deadline = answerer.next_deadline().unwrap();
    assert_eq!(deadline.since(Time::ZERO), Duration::from_secs(10));
    answerer.tick(Time::ZERO + Duration::from_millis(9_999)).unwrap();
    assert!(matches!(
        answerer.tick(deadline),
        Err(OobError::HandshakeLate { .. })
    ));
    answerer
        .receive(&side(Role::Caller, key(1)).take_outgoing())
        .unwrap();
    assert!(answerer.outgoing().is_empty());
    let (mut caller, _) = open();
    assert_eq!(caller.next_deadline(), None);
    caller.tick(Time::NEVER).unwrap();
}

#[test]
fn the_keys_change_on_the_way_and_the_records_are_counted() {
    let (mut caller, mut answerer) = open();
    for number in 0..2 * REKEY_EVERY + 10 {
        caller.send(&number.to_le_bytes()).unwrap();
        answerer.receive(&caller.take_outgoing()).unwrap();
        assert_eq!(
            answerer.event(),
            Some(Event::Message(number.to_le_bytes().to_vec()))
        );
    }
    let State::Open(keys) = &mut caller.state else {
        panic!()
    };
    keys.sealed = RECORDS_MAX;
    assert!(matches!(caller.send(b"x"), Err(OobError::Exhausted)));
    let (mut caller, mut answerer) = open();
    // Changing the key on one side only: the other cannot open what follows.
    let State::Open(keys) = &mut caller.state else {
        panic!()
    };
    keys.noise.rekey_outgoing();
    caller.send(b"x").unwrap();
    assert!(matches!(
        answerer.receive(&caller.take_outgoing()),
        Err(OobError::Forged { .. })
    ));
}

#[test]
fn output_that_is_not_taken_is_limited() {
    let (mut caller, _) = open();
    let message = vec![0; 1 << 20];
    let refused = (0..10).find_map(|_| caller.send(&message).err());
    assert!(matches!(refused, Some(OobError::Full { .. })));
    assert!(caller.outgoing().len() < 4 << 20);
}

#[test]
fn what_the_other_side_announces_is_limited() {
    let (mut caller, mut answerer) = open();
    answerer.longest = PIECE_MAX;
    caller.send(&vec![0; PIECE_MAX + 1]).unwrap();
    assert!(matches!(
        answerer.receive(&caller.take_outgoing()),
        Err(OobError::TooLong { .. })
    ));
}

/// Each state with the bytes that it expects next.
fn stages() -> [(Session, Vec<u8>); 4] {
    let mut calling = side(Role::Caller, key(1));
    let call = calling.take_outgoing();
    let mut proving = side(Role::Answerer, key(1));
    proving.receive(&call).unwrap();
    let answer = proving.take_outgoing();
    let mut other = side(Role::Answerer, key(1));
    other.receive(&call).unwrap();
    let mut caller = side(Role::Caller, key(1));
    let mut second = side(Role::Answerer, key(1));
    second.receive(&caller.take_outgoing()).unwrap();
    caller.receive(&second.take_outgoing()).unwrap();
    let confirm = caller.take_outgoing();
    let (mut sender, open) = open();
    sender.send(b"a message").unwrap();
    let message = sender.take_outgoing();
    [
        (side(Role::Answerer, key(1)), call),
        (calling, answer),
        (second, confirm),
        (open, message),
    ]
}

#[test]
fn a_million_mutated_bytes_cause_no_panic_and_deliver_nothing() {
    let mut random = doorbell_testing::Random::new(1);
    let mut random = || random.next_u64();
    let (mut fed, mut sessions) = (0, 0);
    while fed < 1_000_000 {
        for (stage, (mut session, good)) in stages().into_iter().enumerate() {
            let mut bytes = good.clone();
            for _ in 0..=random() % 3 {
                match random() % 4 {
                    0 => bytes.truncate(random() as usize % (bytes.len() + 1)),
                    1 => bytes.extend((0..random() % 600).map(|_| random() as u8)),
                    _ => {
                        let at = random() as usize % bytes.len().max(1);
                        if let Some(byte) = bytes.get_mut(at) {
                            *byte ^= 1 << (random() % 8);
                        }
                    }
                }
            }
            let whole = bytes.starts_with(&good);
            let mut ok = Ok(());
            for piece in bytes.chunks(1 + random() as usize % 97) {
                ok = session.receive(piece);
                if ok.is_err() {
                    break;
                }
            }
            fed += bytes.len();
            sessions += 1;
            if !whole {
                assert_eq!(session.event(), None, "stage {stage}");
            }
            if ok.is_err() {
                assert!(!session.is_open());
            }
        }
    }
    assert!(sessions > 2000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_panic(stage in 0..4_usize, bytes in proptest::collection::vec(any::<u8>(), 0..300), good in any::<bool>()) {
        let (mut session, expected) = stages().into_iter().nth(stage).unwrap();
        if good { session.receive(&expected).unwrap(); }
        let _ = session.receive(&bytes);
        let _ = session.end();
        session.close();
    }

    #[test]
    fn messages_arrive_once_and_in_order(lengths in proptest::collection::vec(0..70_000_usize, 1..6), step in 1..9000_usize) {
        let (mut caller, mut answerer) = open();
        for (at, length) in lengths.iter().enumerate() {
            caller.send(&vec![at as u8; *length]).unwrap();
            for bytes in caller.take_outgoing().chunks(step) { answerer.receive(bytes).unwrap(); }
        }
        for (at, length) in lengths.iter().enumerate() {
            prop_assert_eq!(answerer.event(), Some(Event::Message(vec![at as u8; *length])));
        }
        prop_assert_eq!(answerer.event(), None);
    }
}
