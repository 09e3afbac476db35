//! The promises of `Message` about messages, each a check by name; `message_conformance!` makes tests of
//! them.

use std::collections::BTreeSet;
use std::time::Instant;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::event::{DownReason, EventKind, RailEvent, Scope};
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_fabric::message::{Body, Incarnation, Message, MsgId, PeerIndex, Refused};
use doorbell_fabric::time::Time;

use super::Pair;

/// Makes a test of every check in [`message`](crate::conformance::message),
/// [`onesided`](crate::conformance::onesided) and [`apart`](crate::conformance::apart), each over a fresh
/// pair of rails, of which the last one's have not opened each other.
#[macro_export]
macro_rules! message_conformance {
    (list $rail:ty) => {
        $crate::message_conformance!(@all [list $rail])
    };
    ($pair:path) => {
        $crate::message_conformance!(@all [tests $pair]);
    };
    (@all $made:tt) => {
        $crate::message_conformance! { @made $made
            message {
                a_message_arrives_whole_whatever_its_body
                each_message_arrives_exactly_once_both_ways
                accepted_bytes_are_the_rails_own
                the_watermark_waits_for_the_peers_poll
                the_watermark_only_grows_and_is_true
                reclaim_gives_exactly_what_is_above_the_watermark
                full_takes_nothing
                too_long_takes_nothing
                an_unknown_peer_is_down
                a_poll_keeps_to_its_budget
                the_same_address_and_life_is_the_same_peer
                a_foreign_address_is_refused_with_a_reason
                a_crash_is_reported_once_and_sends_are_refused_after_it
                a_goodbye_is_reported_as_one
                giving_a_connection_up_is_not_reported_to_its_own_side
                what_was_abandoned_is_revived_at_both_ends
                what_was_abandoned_comes_back_by_a_call_alone
                nothing_of_the_old_life_arrives_in_the_new_one
                both_ends_may_call_at_once
            }
            onesided {
                get_reads_exactly_what_was_exposed
                put_writes_exactly_its_range
                atomics_answer_the_old_value
                a_get_keeps_the_region_that_it_fills
                nothing_outside_the_exposure_is_reached
                a_wrong_key_or_access_reaches_nothing
                withdrawn_memory_cannot_be_reached
                an_exposure_to_one_peer_is_that_peers
                a_fence_comes_after_everything_before_it
                operations_open_at_a_crash_end_once_each
            }
            apart {
                a_peer_opened_late_was_reported_by_name_and_loses_nothing
            }
        }
    };
    (@made [list $rail:ty] message { $($message:ident)* } onesided { $($onesided:ident)* } apart { $($apart:ident)* }) => {
        [
            $((
                stringify!($message),
                (|apart| $crate::conformance::message::$message(&mut apart.connect()))
                    as fn($crate::conformance::Apart<$rail>),
            ),)*
            $((
                stringify!($onesided),
                (|apart| $crate::conformance::onesided::$onesided(&mut apart.connect()))
                    as fn($crate::conformance::Apart<$rail>),
            ),)*
            $((
                stringify!($apart),
                $crate::conformance::apart::$apart as fn($crate::conformance::Apart<$rail>),
            ),)*
        ]
    };
    (@made [tests $pair:path] message { $($message:ident)* } onesided { $($onesided:ident)* } apart { $($apart:ident)* }) => {
        $(#[test]
        fn $message() {
            $crate::conformance::message::$message(&mut $pair().connect());
        })*
        $(#[test]
        fn $onesided() {
            $crate::conformance::onesided::$onesided(&mut $pair().connect());
        })*
        $(#[test]
        fn $apart() {
            $crate::conformance::apart::$apart($pair());
        })*
    };
}

/// Lengths of interest up to `most`.
fn lengths(most: usize) -> Vec<usize> {
    let near = |n: usize| n.saturating_sub(1)..=n + 1;
    let all = (0..=9)
        .chain(near(16))
        .chain(near(64))
        .chain(near(256))
        .chain(near(4096))
        .chain(near(most));
    all.filter(|&n| n <= most).collect()
}

/// Bytes that depend on their place and on `salt`.
pub(crate) fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i * 7 + salt * 13 + (i >> 8)) as u8)
        .collect()
}

/// Sends, turning while the rail is full.
fn send<R: Message>(pair: &mut Pair<R>, head: &[u8], body: Body<'_>) -> MsgId {
    for _ in 0..1_000_000 {
        match pair.a.send(pair.to_b, head, body) {
            Ok(id) => return id,
            Err(Refused::Full) => pair.turn(),
            Err(refused) => panic!(
                "a message of {} bytes was refused: {refused:?}",
                head.len() + body.len()
            ),
        }
    }
    panic!("the rail stays full although its peer polls");
}

fn numbered(n: u64) -> [u8; 16] {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&n.to_le_bytes());
    head[8..].copy_from_slice(&(!n).to_le_bytes());
    head
}

fn number(bytes: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(word(0), !word(8), "a head arrives as it was sent");
    word(0)
}

/// Head and body arrive as they were sent, in every length and every kind of body.
pub fn a_message_arrives_whole_whatever_its_body<R: Message>(pair: &mut Pair<R>) {
    let limits = pair.a.capabilities().limits;
    let gather = pair.a.capabilities().features.gather;
    let region = Region::new(limits.message).expect("memory for a test");
    let (mut expected, mut salt) = (Vec::new(), 0);
    for head in [0, 1, 16, limits.head] {
        for length in lengths(limits.message - head) {
            salt += 1;
            let (head, body) = (pattern(head, salt), pattern(length, salt + 1));
            region.write(0, &body);
            let slice = region.slice(0, length).expect("inside the region");
            let loan = ConstLoan::of_static(body.clone().leak());
            let parts = [
                loan.part(0, length / 3),
                ConstLoan::EMPTY,
                loan.part(length / 3, length),
            ];
            let bodies = [
                Body::Bytes(&body),
                Body::Loan(loan),
                Body::Region(&slice),
                Body::Shared(slice.as_shared()),
                Body::Parts(&parts),
            ];
            let offered = if gather { 5 } else { 4 };
            for body_kind in &bodies[..offered] {
                expected.push([&head[..], &body[..]].concat());
                send(pair, &head, *body_kind);
            }
            if length == 0 {
                expected.push(head.clone());
                send(pair, &head, Body::Empty);
            }
            // A region's bytes are the sender's to keep until the message is handed over.
            pair.until("all messages arrive", |pair| {
                pair.at_b.messages.len() == expected.len()
            });
        }
    }
    let mut seen: Vec<Vec<u8>> = pair
        .at_b
        .messages
        .iter()
        .map(|(_, bytes)| bytes.clone())
        .collect();
    assert!(
        pair.at_b.messages.iter().all(|&(peer, _)| peer == pair.to_a),
        "from the peer that sent them"
    );
    seen.sort();
    expected.sort();
    assert!(
        seen == expected,
        "every message arrives with the bytes it was sent with"
    );
}

/// Promise 1, under traffic both ways.
pub fn each_message_arrives_exactly_once_both_ways<R: Message>(pair: &mut Pair<R>) {
    const COUNT: u64 = 2_000;
    let (mut from_a, mut from_b) = (0, 0);
    let start = Instant::now();
    while from_a < COUNT
        || from_b < COUNT
        || pair.at_a.messages.len().min(pair.at_b.messages.len()) < COUNT as usize
    {
        while from_a < COUNT
            && pair
                .a
                .send(pair.to_b, &numbered(from_a), Body::Bytes(b"a"))
                .is_ok()
        {
            from_a += 1;
        }
        let to_a = pair.to_a;
        while from_b < COUNT && pair.b().send(to_a, &numbered(from_b), Body::Bytes(b"b")).is_ok() {
            from_b += 1;
        }
        pair.turn();
        assert!(
            start.elapsed() < super::PATIENCE,
            "never happened: all messages arrive"
        );
    }
    pair.settle();
    for (arrived, mark) in [(&pair.at_a.messages, b'b'), (&pair.at_b.messages, b'a')] {
        assert!(
            arrived.iter().all(|(_, bytes)| bytes[16..] == [mark]),
            "bodies arrive as they were sent"
        );
        let mut numbers: Vec<u64> = arrived.iter().map(|(_, bytes)| number(bytes)).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..COUNT), "each message exactly once");
    }
}

/// Promise 4: what was borrowed may be overwritten as soon as `send` has returned.
pub fn accepted_bytes_are_the_rails_own<R: Message>(pair: &mut Pair<R>) {
    let lent = MutLoan::of_static(b"the loan".to_vec().leak());
    let (mut head, mut body) = (*b"head", *b"the body");
    send(pair, &head, Body::Bytes(&body));
    send(pair, &head, Body::Loan(lent.as_const()));
    head.fill(b'x');
    body.fill(b'x');
    lent.write(0, b"xxxxxxxx");
    pair.until("both messages arrive", |pair| pair.at_b.messages.len() == 2);
    let mut seen: Vec<&[u8]> = pair.at_b.messages.iter().map(|(_, bytes)| &bytes[..]).collect();
    seen.sort_unstable();
    assert_eq!(seen, [&b"headthe body"[..], b"headthe loan"]);
}

/// Promise 3: while the peer's upper layer has taken nothing, the watermark does not move.
pub fn the_watermark_waits_for_the_peers_poll<R: Message>(pair: &mut Pair<R>) {
    let id = send(pair, &numbered(1), Body::Empty);
    pair.a.flush();
    (0..500).for_each(|_| pair.turn_a());
    assert_eq!(
        pair.a.handed_over(pair.to_b),
        MsgId(0),
        "the message is not taken yet"
    );
    pair.until("the watermark reaches the message", |pair| {
        pair.a.handed_over(pair.to_b) == id
    });
    assert_eq!(pair.at_b.messages.len(), 1);
}

/// Promise 3: monotone, never above what was taken without a gap, and complete in the end.
pub fn the_watermark_only_grows_and_is_true<R: Message>(pair: &mut Pair<R>) {
    const COUNT: u64 = 600;
    let (mut last, mut sent, mut turns, mut taken) = (MsgId(0), 0, 0, BTreeSet::new());
    let start = Instant::now();
    while last.0 < COUNT {
        if sent < COUNT
            && let Ok(id) = pair.a.send(pair.to_b, &numbered(sent + 1), Body::Empty)
        {
            sent += 1;
            assert_eq!(id, MsgId(sent), "ids count accepted messages from one");
        }
        pair.turn_a();
        let b = pair.b.as_mut().expect("it lives");
        turns += 1;
        b.poll(turns % 3, &mut pair.at_b);
        taken.extend(pair.at_b.messages.drain(..).map(|(_, bytes)| number(&bytes)));
        let watermark = pair.a.handed_over(pair.to_b);
        let without_gap = (1..).zip(&taken).take_while(|&(n, &id)| n == id).count() as u64;
        assert!(
            watermark >= last,
            "the watermark went back from {last:?} to {watermark:?}"
        );
        assert!(
            watermark.0 <= without_gap,
            "{watermark:?} is more than the {without_gap} that were taken"
        );
        last = watermark;
        assert!(
            start.elapsed() < super::PATIENCE,
            "never happened: the watermark reaches the last message"
        );
    }
    assert_eq!((sent, taken.len() as u64), (COUNT, COUNT));
}

/// Promise 3 after a failure: the messages above the watermark, whole, oldest first, and once.
pub fn reclaim_gives_exactly_what_is_above_the_watermark<R: Message>(pair: &mut Pair<R>) {
    if !pair.a.capabilities().features.reclaim {
        return;
    }
    let body = |n: u64| pattern(10 + n as usize, n as usize);
    let region = Region::new(64).expect("memory for a test");
    for n in 1..=3 {
        send(pair, &numbered(n), Body::Bytes(&body(n)));
    }
    pair.until("the first three are handed over", |pair| {
        pair.a.handed_over(pair.to_b) == MsgId(3)
    });
    for n in 4..=8 {
        region.write(0, &body(6));
        let slice = region.slice(0, body(n).len()).expect("inside the region");
        let bytes = body(n);
        let kind = if n == 6 {
            Body::Region(&slice)
        } else {
            Body::Bytes(&bytes)
        };
        assert_eq!(pair.a.send(pair.to_b, &numbered(n), kind), Ok(MsgId(n)));
    }
    pair.a.flush();
    pair.crash_b();
    pair.until("the crash is reported", |pair| down_events(pair) > 0);
    let watermark = pair.a.handed_over(pair.to_b).0;
    assert_eq!(watermark, 3, "a dead peer takes nothing");
    let mut given = Vec::new();
    pair.a
        .reclaim(pair.to_b, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
    let expected: Vec<(u64, Vec<u8>)> = (4..=8)
        .map(|n| (n, [&numbered(n)[..], &body(n)].concat()))
        .collect();
    assert_eq!(
        given, expected,
        "exactly what is above the watermark, oldest first, head and body"
    );
    pair.a
        .reclaim(pair.to_b, &mut |id, _| panic!("{id:?} was given back twice"));
}

/// Promise 5: a full rail accepts nothing, reports that, and has room again after the peer has polled.
pub fn full_takes_nothing<R: Message>(pair: &mut Pair<R>) {
    let body = vec![7; pair.a.capabilities().limits.eager.min(512)];
    let mut accepted = 0;
    loop {
        match pair
            .a
            .send(pair.to_b, &numbered(accepted + 1), Body::Bytes(&body))
        {
            Ok(id) => {
                accepted += 1;
                assert_eq!(id, MsgId(accepted));
            }
            Err(refused) => {
                // A rail that connects at first use may be full of nothing before that.
                assert_eq!(refused, Refused::Full, "a rail with too much to do is full");
                if accepted > 0 {
                    break;
                }
                pair.turn_a();
            }
        }
        if accepted % 16 == 0 {
            pair.turn_a();
        }
        assert!(accepted < 10_000_000, "a rail is bounded");
    }
    let refused = numbered(u64::MAX / 2);
    (0..3).for_each(|_| {
        while pair.a.send(pair.to_b, &refused, Body::Bytes(&body)).is_ok() {
            accepted += 1;
        }
    });
    pair.until("everything accepted is taken", |pair| {
        pair.at_b.messages.len() as u64 >= accepted
    });
    pair.settle();
    assert_eq!(
        pair.at_b.messages.len() as u64,
        accepted,
        "what was refused never arrives"
    );
    let next = send(pair, &numbered(accepted + 1), Body::Empty);
    assert_eq!(
        next,
        MsgId(accepted + 1),
        "a refusal uses no number, and room comes back"
    );
}

/// Limits are limits.
pub fn too_long_takes_nothing<R: Message>(pair: &mut Pair<R>) {
    let limits = pair.a.capabilities().limits;
    assert!(limits.head >= 64, "64 bytes of head on every rail");
    let long = vec![0; limits.message + 1];
    let head = vec![0; limits.head + 1];
    assert_eq!(pair.a.send(pair.to_b, &head, Body::Empty), Err(Refused::TooLong));
    assert_eq!(
        pair.a.send(pair.to_b, &[], Body::Bytes(&long)),
        Err(Refused::TooLong)
    );
    let just = &long[..limits.message];
    assert_eq!(
        pair.a.send(pair.to_b, &head[..1], Body::Bytes(just)),
        Err(Refused::TooLong)
    );
    let parts = vec![ConstLoan::of_static(b"x"); limits.parts + 1];
    let refused = pair.a.send(pair.to_b, &[], Body::Parts(&parts));
    let expected = if pair.a.capabilities().features.gather {
        Refused::TooLong
    } else {
        Refused::Unsupported
    };
    assert_eq!(refused, Err(expected));
    assert_eq!(
        send(pair, &[], Body::Bytes(just)),
        MsgId(1),
        "nothing was taken before"
    );
    pair.until("the longest message arrives", |pair| {
        !pair.at_b.messages.is_empty()
    });
    assert_eq!(
        (pair.at_b.messages.len(), pair.at_b.messages[0].1.len()),
        (1, limits.message)
    );
}

/// A number that `open` never gave is no peer.
pub fn an_unknown_peer_is_down<R: Message>(pair: &mut Pair<R>) {
    let unknown = PeerIndex(pair.to_b.0 + 1000);
    assert_eq!(pair.a.send(unknown, b"head", Body::Empty), Err(Refused::PeerDown));
    assert_eq!(pair.a.handed_over(unknown), MsgId(0));
    pair.a
        .reclaim(unknown, &mut |_, _| panic!("an unknown peer has no messages"));
}

/// A poll delivers at most its budget.
pub fn a_poll_keeps_to_its_budget<R: Message>(pair: &mut Pair<R>) {
    (1..=8).for_each(|n| {
        send(pair, &numbered(n), Body::Empty);
    });
    let before = pair.at_b.messages.len();
    let mut total = before;
    let start = Instant::now();
    while total < 8 {
        pair.turn_a();
        for budget in [0, 1, 2] {
            let shown = pair.b.as_mut().expect("it lives").poll(budget, &mut pair.at_b);
            assert!(shown <= budget, "{shown} shown for a budget of {budget}");
            assert_eq!(
                pair.at_b.messages.len(),
                total + shown,
                "the answer is what was shown"
            );
            total += shown;
        }
        assert!(
            start.elapsed() < super::PATIENCE,
            "never happened: all messages arrive"
        );
    }
}

/// Opening again is not a new peer.
pub fn the_same_address_and_life_is_the_same_peer<R: Message>(pair: &mut Pair<R>) {
    let (address, life) = (pair.b().address(), pair.life_b);
    assert_eq!(
        pair.a.open(&address, life).ok(),
        Some(pair.to_b),
        "revived, not opened as new"
    );
    let other = Incarnation(life.0 ^ 1);
    assert_ne!(
        pair.a.open(&address, other).ok(),
        Some(pair.to_b),
        "another life is another peer, or refused"
    );
    send(pair, b"still there", Body::Empty);
    pair.until("the known peer is reached", |pair| pair.at_b.messages.len() == 1);
}

/// An address of another kind is an error with a reason.
pub fn a_foreign_address_is_refused_with_a_reason<R: Message>(pair: &mut Pair<R>) {
    let foreign = RailAddress::native("portals", [1, 2, 3]);
    let error = pair
        .a
        .open(&foreign, Incarnation(1))
        .expect_err("it belongs to another kind of rail");
    assert!(error.to_string().contains("portals"), "{error}");
    let ours = pair.a.address().kind;
    let cut = RailAddress::native(&ours, [0xff]);
    assert!(
        pair.a.open(&cut, Incarnation(1)).is_err(),
        "one byte is no address"
    );
}

pub(crate) fn down_events<R>(pair: &Pair<R>) -> usize {
    let scope = Scope::Peer(pair.to_b);
    let down = |kind| matches!(kind, EventKind::PeerDown(_));
    pair.events
        .iter()
        .filter(|event| event.scope == scope && down(event.kind))
        .count()
}

/// Promise 6: a crash is an event, once, and later sends are refused.
pub fn a_crash_is_reported_once_and_sends_are_refused_after_it<R: Message>(pair: &mut Pair<R>) {
    send(pair, b"hello", Body::Empty);
    let to_a = pair.to_a;
    pair.until("the connection is made", |pair| !pair.at_b.messages.is_empty());
    while pair.b().send(to_a, b"hello", Body::Empty).is_err() {
        pair.turn();
    }
    pair.until("the connection is made both ways", |pair| {
        !pair.at_a.messages.is_empty()
    });
    pair.crash_b();
    pair.until("the crash is reported", |pair| down_events(pair) > 0);
    assert_eq!(
        pair.a.send(pair.to_b, b"hello", Body::Empty),
        Err(Refused::PeerDown)
    );
    pair.settle();
    assert_eq!(down_events(pair), 1, "told once: {:?}", pair.events);
    assert_eq!(
        pair.a.send(pair.to_b, b"hello", Body::Empty),
        Err(Refused::PeerDown)
    );
}

/// An orderly end is reported as `Closed`, after everything that was accepted has arrived.
pub fn a_goodbye_is_reported_as_one<R: Message>(pair: &mut Pair<R>) {
    send(pair, b"hello", Body::Empty);
    pair.until("the connection is made", |pair| !pair.at_b.messages.is_empty());
    let to_a = pair.to_a;
    while pair.b().send(to_a, b"goodbye", Body::Empty).is_err() {
        pair.turn();
    }
    let start = Instant::now();
    // The times are those of a clock that has just started; `by` is far away, so that only completed work
    // ends it.
    while !pair.b().close(Time::ZERO, Time::NEVER) {
        pair.turn_a();
        assert!(
            start.elapsed() < super::PATIENCE,
            "never happened: a rail with nothing left closes"
        );
    }
    assert!(pair.b().close(Time::ZERO, Time::NEVER), "closed stays closed");
    pair.until("the goodbye is reported", |pair| down_events(pair) > 0);
    let closed = EventKind::PeerDown(DownReason::Closed);
    assert!(
        pair.events.iter().any(|event| event.kind == closed),
        "as a goodbye: {:?}",
        pair.events
    );
    assert_eq!(pair.at_a.messages.len(), 1, "what was accepted before arrives");
}

/// Sends a message each way, and waits until both are known to be taken.
fn talk<R: Message>(pair: &mut Pair<R>) {
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let (at_a, at_b) = (pair.at_a.messages.len(), pair.at_b.messages.len());
    let sent = send(pair, b"there", Body::Empty);
    let back = loop {
        match pair.b().send(to_a, b"and back", Body::Empty) {
            Ok(id) => break id,
            Err(_) => pair.turn(),
        }
    };
    pair.until("a message each way is taken", |pair| {
        pair.a.handed_over(to_b) == sent && pair.b().handed_over(to_a) == back
    });
    assert_eq!(
        (pair.at_a.messages.len(), pair.at_b.messages.len()),
        (at_a + 1, at_b + 1)
    );
}

/// The events about the other end since the last call, doubts aside: those of `a`, and those of `b`. Each
/// life in which it was up is later than those before.
fn news<R: Message>(pair: &mut Pair<R>) -> [Vec<EventKind>; 2] {
    let doubts = [EventKind::PeerSuspect, EventKind::PeerRecovered];
    let scopes = [Scope::Peer(pair.to_b), Scope::Peer(pair.to_a)];
    let mut at_b = Vec::new();
    while let Some(event) = pair.b().event() {
        at_b.push(event);
    }
    let lives = &mut pair.lives;
    let mut of = |events: Vec<RailEvent>, end: usize| -> Vec<EventKind> {
        let about = |event: &RailEvent| event.scope == scopes[end] && !doubts.contains(&event.kind);
        let mut kinds = Vec::new();
        for event in events.into_iter().filter(about) {
            if event.kind == EventKind::PeerUp {
                let before = lives[end].replace(event.life);
                let grows = before.is_none_or(|before| before.is_before(event.life));
                assert!(grows, "a later life: {event:?} after {before:?}");
            }
            kinds.push(event.kind);
        }
        kinds
    };
    [of(std::mem::take(&mut pair.events), 0), of(at_b, 1)]
}

/// Requests reconnects repeatedly, as an owner would, until both ends have reported that the peer is up.
fn revive<R: Message>(pair: &mut Pair<R>, both: bool) -> [Vec<EventKind>; 2] {
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    let mut told = [Vec::new(), Vec::new()];
    let start = Instant::now();
    while told.iter().any(|kinds| kinds.last() != Some(&EventKind::PeerUp)) {
        pair.a.revive(to_b);
        if both {
            pair.b().revive(to_a);
        }
        (0..200).for_each(|_| pair.turn());
        for (all, more) in told.iter_mut().zip(news(pair)) {
            all.extend(more);
        }
        assert!(
            start.elapsed() < super::PATIENCE,
            "never happened: both ends are up again: {told:?}"
        );
    }
    assert_eq!(pair.lives[0], pair.lives[1], "both ends report the same life");
    told
}

/// Promise 6 for a connection that its owner gives up: everything but the event, at once.
pub fn giving_a_connection_up_is_not_reported_to_its_own_side<R: Message>(pair: &mut Pair<R>) {
    talk(pair);
    news(pair);
    let to_b = pair.to_b;
    let taken = pair.a.handed_over(to_b);
    let bodies: Vec<Vec<u8>> = (1..=3).map(|n| pattern(50, n)).collect();
    for body in &bodies {
        assert!(pair.a.send(to_b, b"left", Body::Bytes(body)).is_ok());
    }
    pair.a.abandon(to_b);
    assert_eq!(pair.a.send(to_b, b"", Body::Empty), Err(Refused::PeerDown));
    let mut given = Vec::new();
    pair.a
        .reclaim(to_b, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
    if pair.a.capabilities().features.reclaim {
        let left = (taken.0 + 1..).zip(bodies.iter());
        let left = left.map(|(id, body)| (id, [b"left", &body[..]].concat()));
        assert!(given.iter().cloned().eq(left), "what was not taken is given back");
    }
    pair.a.abandon(to_b);
    pair.settle();
    assert!(down_events(pair) == 0 && pair.a.handed_over(to_b) >= taken);
    let unknown = PeerIndex(to_b.0 + 1000);
    pair.a.abandon(unknown);
    pair.a.revive(unknown);
}

/// A connection that one end gave up is revived repeatedly: reported down to the other end, and up to both.
pub fn what_was_abandoned_is_revived_at_both_ends<R: Message>(pair: &mut Pair<R>) {
    talk(pair);
    news(pair);
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    for round in 0..6 {
        let (before, known) = (pair.a.handed_over(to_b), round % 2 == 0);
        pair.a.abandon(to_b);
        if known {
            pair.b().abandon(to_a);
        }
        let told = revive(pair, false);
        assert_eq!(told[0], [EventKind::PeerUp], "the caller, in round {round}");
        let [.., EventKind::PeerUp] = told[1][..] else {
            panic!("up at the called end: {told:?}");
        };
        let downs = told[1].len() - 1;
        assert_eq!(
            downs,
            usize::from(!known),
            "the called end, in round {round}: {told:?}"
        );
        assert!(pair.a.handed_over(to_b) >= before, "a watermark never shrinks");
        pair.a.revive(to_b);
        talk(pair);
        assert_eq!(news(pair), [vec![], vec![]], "a peer that is up is not called");
    }
}

/// A connection that one end gave up stays down at that end, and does not come up at the other one alone,
/// whatever the link does: only a reconnect request revives it.
pub fn what_was_abandoned_comes_back_by_a_call_alone<R: Message>(pair: &mut Pair<R>) {
    talk(pair);
    news(pair);
    let to_b = pair.to_b;
    for round in 0..3 {
        pair.a.abandon(to_b);
        pair.cut(true);
        pair.settle();
        pair.cut(false);
        pair.settle();
        let [at_a, at_b] = news(pair);
        assert_eq!(at_a, [], "who gave it up, in round {round}");
        let ups = at_b.iter().filter(|kind| **kind == EventKind::PeerUp);
        assert_eq!(ups.count(), 0, "up at one end only, in round {round}: {at_b:?}");
        assert_eq!(pair.a.send(to_b, b"", Body::Empty), Err(Refused::PeerDown));
        let told = revive(pair, false);
        assert_eq!(told[0], [EventKind::PeerUp], "the caller, in round {round}");
        talk(pair);
        assert_eq!(news(pair), [vec![], vec![]]);
    }
}

/// Promise 6: what was sent before the end is not delivered after the beginning.
pub fn nothing_of_the_old_life_arrives_in_the_new_one<R: Message>(pair: &mut Pair<R>) {
    talk(pair);
    news(pair);
    let to_b = pair.to_b;
    for life in 1..=4u64 {
        for n in 0..40 {
            let _ = pair.a.send(to_b, &numbered(life * 1000 + n), Body::Empty);
        }
        pair.a.flush();
        (0..life * 2).for_each(|_| pair.turn_a());
        let before = pair.a.handed_over(to_b);
        pair.a.abandon(to_b);
        let mut given = BTreeSet::new();
        pair.a.reclaim(to_b, &mut |id, bytes| {
            assert!(id > before);
            given.insert(number(bytes));
        });
        revive(pair, false);
        pair.at_b.messages.clear();
        let sent = send(pair, &numbered(life), Body::Empty);
        pair.until("the first of the new life arrives", |pair| {
            pair.a.handed_over(to_b) == sent
        });
        pair.settle();
        let seen: Vec<u64> = pair
            .at_b
            .messages
            .iter()
            .map(|(_, bytes)| number(bytes))
            .collect();
        assert_eq!(seen, [life], "nothing of the life before");
        assert!(pair.a.handed_over(to_b) == sent, "what was given back is no gap");
    }
}

/// Checks that both ends may request a reconnect at once after both gave up the connection.
pub fn both_ends_may_call_at_once<R: Message>(pair: &mut Pair<R>) {
    talk(pair);
    news(pair);
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    for _ in 0..6 {
        pair.a.abandon(to_b);
        pair.b().abandon(to_a);
        let told = revive(pair, true);
        let up = vec![EventKind::PeerUp];
        assert_eq!(told, [up.clone(), up], "once each");
        talk(pair);
        assert_eq!(news(pair), [vec![], vec![]]);
    }
}
