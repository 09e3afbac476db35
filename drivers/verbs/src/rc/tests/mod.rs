//! The rail over the model of a library.

mod allocations;
mod contract_of_failure;
mod direct;
mod path;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use doorbell_fabric::message::{Body, Incarnation, Message};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::{Apart, Pair};

use self::direct::{Direct, Office};
use super::core::{Core, RcStats, Sizes};
use super::rail::RcRail;
use crate::sys::model::{self, Spec};

type Rc1 = RcRail<Direct>;

/// A number that no other test of the model has.
fn fresh() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn device(number: u32) -> String {
    format!("rc{number}")
}

fn rail(office: &Rc<RefCell<Office>>, sizes: Sizes) -> (Rc1, Incarnation, String) {
    let number = fresh();
    let address = [127, 1, (number >> 8) as u8, number as u8];
    let library = model::library(Spec::new(&device(number), address));
    let open = library.open(&device(number)).unwrap();
    let core = Core::new(&open, (1, 0, 3), sizes).unwrap();
    let life = Incarnation(u64::from(number) << 8);
    let contact = Direct::new(office, (number, life.0), address);
    let name = format!("verbs:{}:1", device(number)).parse().unwrap();
    (RcRail::new(name, core, contact), life, device(number))
}

fn small() -> Sizes {
    Sizes {
        sends: 64,
        receives: (32, 64),
        peers: 8,
        ..Sizes::default()
    }
}

fn pair() -> Apart<Rc1> {
    let office = Rc::new(RefCell::new(Office::default()));
    let ((a, life_a, _), (b, life_b, _)) = (rail(&office, small()), rail(&office, small()));
    let mut now = Time::ZERO;
    Apart::new(
        (a, life_a),
        (b, life_b),
        move |a: &mut Rc1, b: Option<&mut Rc1>| {
            now += Duration::from_millis(1);
            a.progress(now);
            if let Some(b) = b {
                b.progress(now);
            }
        },
    )
}

mod contract {
    use super::pair;
    doorbell_sim::message_conformance!(pair);
}

/// Two ends that have spoken: one message each way was shown.
fn connected() -> Pair<Rc1> {
    let mut pair = pair().connect();
    let (to_a, to_b) = (pair.to_a, pair.to_b);
    pair.a.send(to_b, b"hello", Body::Empty).unwrap();
    pair.b().send(to_a, b"hello", Body::Empty).unwrap();
    pair.until("both are shown", |pair| {
        pair.at_a.messages.len() == 1 && pair.at_b.messages.len() == 1
    });
    pair.until("and known to be", |pair| {
        let ended = pair.a.handed_over(to_b).0 + pair.b().handed_over(to_a).0;
        ended == 2 && pair.a.core.requests_under_way() + pair.b().core.requests_under_way() == 0
    });
    while pair.b().event().is_some() {}
    pair
}

fn device_of(rail: &Rc1) -> String {
    let name = rail.name().to_string();
    name.split(':').nth(1).unwrap().to_owned()
}

fn counts(rail: &Rc1) -> RcStats {
    rail.stats()
}
