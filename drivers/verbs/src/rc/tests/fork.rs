//! Children of `fork`: the objects are the parent's.

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, Body, Exposure, Message, OpId};

use super::connected;
use crate::sys::model;

#[test]
fn a_child_that_drops_its_copy_calls_nothing_and_the_parents_traffic_goes_on() {
    let mut pair = connected();
    let (region, to_a, to_b) = (Region::new(64).unwrap(), pair.to_a, pair.to_b);
    let exposed = Exposure::Region(region.whole());
    let remote = pair.b().expose(exposed, Access::ReadWrite, Some(to_a)).unwrap();
    let put = pair.a.put(to_b, OpId(1), Body::Bytes(&[1; 64]), &remote);
    assert_eq!(put, Ok(()));
    pair.until("windows and queue pairs of every kind are there", |pair| {
        pair.at_a.ended.len() == 1
    });
    let child = model::fork();
    if child == 0 {
        let before = model::calls();
        drop(pair);
        model::leave(model::calls() == before);
    }
    let seen = pair.at_b.messages.len();
    let mut sent = 0;
    let is_well = loop {
        sent += usize::from(pair.a.send(to_b, b"meanwhile", Body::Empty).is_ok());
        pair.turn();
        if let Some(is_well) = model::has_ended(child) {
            break is_well;
        }
    };
    assert!(is_well, "the child called the library, or waited");
    for op in 2..10 {
        sent += usize::from(pair.a.send(to_b, b"afterwards", Body::Empty).is_ok());
        let put = pair.a.put(to_b, OpId(op), Body::Bytes(&[op as u8; 64]), &remote);
        assert_eq!(put, Ok(()));
        pair.turn();
    }
    pair.until("all arrive", |pair| {
        (pair.at_b.messages.len(), pair.at_a.ended.len()) == (seen + sent, 9)
    });
    assert!(pair.at_a.ended.iter().all(|(_, outcome)| *outcome == Ok(0)));
}
