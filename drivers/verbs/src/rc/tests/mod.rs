//! The rail over the model of a library.

mod direct;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Apart;

use self::direct::{Direct, Office};
use super::core::{Core, Sizes};
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
