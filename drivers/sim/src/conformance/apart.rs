//! The promises of `Message` about rails that have not opened each other, each a check by name.

use doorbell_fabric::message::{Body, Message, MsgId, Refused};

use super::message::{down_events, pattern};
use super::{Apart, Collect};

/// Turns before the receiver opens its caller.
const LATE: usize = 400;
/// Messages sent meanwhile, at most: a lane or a window may be full before.
const MOST: usize = 20;

/// Promise 9, on rails that have names for callers.
pub fn a_peer_opened_late_was_reported_by_name_and_loses_nothing<R: Message>(mut apart: Apart<R>) {
    let address = apart.a.0.address();
    let Some(name) = apart.b.0.caller(&address, apart.a.1) else {
        return;
    };
    assert_eq!(apart.b.0.caller(&address, apart.a.1), Some(name), "a name stays");
    let to_b = apart.open_b();
    let (mut sent, mut told) = (Vec::new(), 0);
    let (mut at_a, mut at_b, mut events) = (Collect::default(), Collect::default(), Vec::new());
    for turn in 0..LATE {
        if turn % 16 == 0 && sent.len() < MOST {
            let body = pattern(sent.len() * 100, sent.len());
            match apart.a.0.send(to_b, &[sent.len() as u8], Body::Bytes(&body)) {
                Ok(_) => sent.push([&[sent.len() as u8][..], &body].concat()),
                Err(refused) => assert_eq!(refused, Refused::Full, "who is not answered is full, at most"),
            }
        }
        (apart.pump)(&mut apart.a.0, Some(&mut apart.b.0));
        apart.a.0.poll(64, &mut at_a);
        events.extend(std::iter::from_fn(|| apart.a.0.event()));
        apart.b.0.poll(64, &mut at_b);
        while let Some(who) = apart.b.0.stranger() {
            assert_eq!(who, name, "reported by the name that `caller` returns");
            told += 1;
        }
        assert_eq!(apart.b.0.event(), None, "an unopened sender causes no events");
    }
    assert!(
        !sent.is_empty() && at_b.messages.is_empty(),
        "nothing arrives before"
    );
    // It calls again at most, not with everything that it sends.
    assert!((1..=LATE / 4).contains(&told), "reported {told} times");
    let mut pair = apart.open_a(to_b);
    pair.events = events;
    let last = MsgId(sent.len() as u64);
    pair.until("everything sent before is taken", |pair| {
        pair.a.handed_over(pair.to_b) == last
    });
    pair.settle();
    let mut seen: Vec<_> = pair
        .at_b
        .messages
        .iter()
        .map(|(_, bytes)| bytes.clone())
        .collect();
    assert!(pair.at_b.messages.iter().all(|&(peer, _)| peer == pair.to_a));
    seen.sort();
    assert!(seen == sent, "each message once and whole");
    assert_eq!(pair.b().stranger(), None, "who is open is no stranger");
    assert_eq!(down_events(&pair), 0, "a receiver that is late is not down");
}
