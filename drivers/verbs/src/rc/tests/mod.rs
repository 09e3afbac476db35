//! The rail over the model of a library.

mod allocations;
mod allocations_one_sided;
mod calls;
mod contract_of_failure;
mod credits;
mod device;
mod fork;
mod infiniband;
mod lies;
mod limits;
mod many;
mod one_sided;
mod one_sided_random;
mod path;
mod record;
mod registered_at_fork;
mod ring;
mod sleep;
mod slots;
mod time;

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Scope};
use doorbell_fabric::message::{Body, Incarnation, Message};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::{Apart, Pair};

use super::core::{Core, RcStats, Sizes};
use super::rail::RcRail;
use crate::config::VerbsConfig;
use crate::sys::model::{self, Spec};
use crate::ud::open::Source;

/// A number that no other test of the model has.
fn fresh() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Why the peer of `a` went down; each time that it did.
fn downs(pair: &Pair<RcRail>) -> Vec<DownReason> {
    let about = pair
        .events
        .iter()
        .filter(|event| event.scope == Scope::Peer(pair.to_b));
    about
        .filter_map(|event| match event.kind {
            EventKind::PeerDown(reason) => Some(reason),
            _ => None,
        })
        .collect()
}

fn device(number: u32) -> String {
    format!("rc{number}")
}

/// A rail over a device of its own.
fn rail(sizes: Sizes) -> (RcRail, Incarnation) {
    rail_in(crate::ports::fake::everything(), sizes)
}

fn rail_in(tree: crate::ports::Tree, sizes: Sizes) -> (RcRail, Incarnation) {
    rail_over(tree, sizes, |_| {})
}

/// A rail over a device of its own, which is changed before.
fn rail_over(tree: crate::ports::Tree, sizes: Sizes, change: impl Fn(&mut Spec)) -> (RcRail, Incarnation) {
    let number = fresh();
    let address = [127, 1, (number >> 8) as u8, number as u8];
    let mut spec = Spec::new(&device(number), address);
    change(&mut spec);
    let library = model::library(spec);
    let name = format!("verbs:{}:1", device(number)).parse().unwrap();
    let source = Source { library, tree };
    let mut rail = RcRail::open_from(&name, &VerbsConfig::default(), sizes, &source).unwrap();
    rail.set_key(&[7; 32]);
    let life = rail.incarnation();
    (rail, life)
}

fn small() -> Sizes {
    Sizes {
        sends: 64,
        receives: (32, 64),
        peers: 8,
        ..Sizes::default()
    }
}

fn pair() -> Apart<RcRail> {
    pair_of(rail(small()), rail(small()))
}

/// Two rails over devices that are changed before.
fn pair_over(sizes: Sizes, change: impl Fn(&mut Spec)) -> Apart<RcRail> {
    let rail = || rail_over(crate::ports::fake::everything(), sizes, &change);
    pair_of(rail(), rail())
}

fn pair_of(a: (RcRail, Incarnation), b: (RcRail, Incarnation)) -> Apart<RcRail> {
    let mut now = Time::ZERO;
    Apart::new(a, b, move |a: &mut RcRail, b: Option<&mut RcRail>| {
        now += Duration::from_millis(1);
        a.progress(now);
        if let Some(b) = b {
            b.progress(now);
        }
    })
}

mod contract {
    use super::pair;
    doorbell_sim::message_conformance!(pair);
}

/// Two ends that have spoken: one message each way was shown.
fn connected() -> Pair<RcRail> {
    connect(pair())
}

fn connect(apart: Apart<RcRail>) -> Pair<RcRail> {
    let mut pair = apart.connect();
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

fn device_of(rail: &RcRail) -> String {
    let name = rail.name().to_string();
    name.split(':').nth(1).unwrap().to_owned()
}

/// A test that has a promise broken ends without a failure of its own.
impl Drop for Core {
    fn drop(&mut self) {
        if !self.expects_rnr && !std::thread::panicking() {
            assert_eq!(self.stats.rnr, 0, "a peer had no slot for a send");
        }
    }
}

fn counts(rail: &RcRail) -> RcStats {
    rail.stats()
}
