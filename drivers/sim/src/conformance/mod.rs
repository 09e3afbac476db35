//! The promises of the contracts as tests that any driver can run: its own factory, the same named checks.
//!
//! ```
//! // In the tests of a driver (here the simulator is its own first user):
//! use doorbell_sim::conformance::Apart;
//! use doorbell_sim::{SimConfig, SimNet, SimRail};
//!
//! fn pair() -> Apart<SimRail> {
//!     let net = SimNet::new(1, SimConfig::default());
//!     let (a, b) = (net.attach(), net.attach());
//!     let lives = (a.incarnation(), b.incarnation());
//!     Apart::new((a, lives.0), (b, lives.1), move |_, _| {
//!         net.advance_to_next_event();
//!     })
//! }
//! doorbell_sim::message_conformance!(pair);
//! ```
//!
//! A check panics with what was promised and what was seen. What a rail does not offer, its check sees
//! refused.

pub mod apart;
pub mod datagram;
pub mod message;
pub mod onesided;

use std::time::{Duration, Instant};

use doorbell_fabric::event::{Life, RailEvent};
use doorbell_fabric::message::{Arrivals, Inbound, Incarnation, Message, OpError, OpId, PeerIndex};

use crate::{Change, Plane, SimNet};

/// How long a check waits for something promised, in real time: longer than the minute in which a rail calls
/// a peer that it has not met.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Advances time a little for both ends: a virtual clock, or `progress` with a real one. It does not poll.
pub type Pump<R> = Box<dyn FnMut(&mut R, Option<&mut R>)>;

/// Two rails in one thread that have not opened each other yet: what a driver's factory makes.
pub struct Apart<R> {
    a: (R, Incarnation),
    b: (R, Incarnation),
    pump: Pump<R>,
    cut: Option<Cut>,
}

/// Two connected rails in one thread.
pub struct Pair<R> {
    /// One end of the pair.
    pub a: R,
    /// The other end; `None` after it was made to crash.
    pub b: Option<R>,
    /// The other end, as `a` numbers it.
    pub to_b: PeerIndex,
    /// The first end, as `b` numbers it.
    pub to_a: PeerIndex,
    /// The life of `b`.
    pub life_b: Incarnation,
    /// What arrived at `a`.
    pub at_a: Collect,
    /// What arrived at `b`.
    pub at_b: Collect,
    /// Events of `a`.
    pub events: Vec<RailEvent>,
    /// The last generation of the connection that each end has reported as up.
    lives: [Option<Life>; 2],
    pump: Pump<R>,
    cut: Option<Cut>,
}

/// Cuts the path between both ends (`true`), or restores it.
pub type Cut = Box<dyn FnMut(bool)>;

/// Cuts and restores the path between the first two ranks of a network.
pub fn cutter(net: SimNet) -> impl FnMut(bool) + 'static {
    move |cut| {
        for (from, to) in [(0, 1), (1, 0)] {
            let plane = Plane::FIRST;
            net.change(if cut {
                Change::Cut { plane, from, to }
            } else {
                Change::Heal { plane, from, to }
            });
        }
    }
}

/// A sink that keeps everything.
#[derive(Clone, Debug, Default)]
pub struct Collect {
    /// Each message with its peer, whole.
    pub messages: Vec<(PeerIndex, Vec<u8>)>,
    /// The completions, in their order.
    pub ended: Vec<(OpId, Result<u64, OpError>)>,
}

impl Arrivals for Collect {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        let copied = inbound.copy_to(0, &mut bytes);
        assert_eq!(copied, bytes.len(), "an arrival has all the bytes of its length");
        self.messages.push((peer, bytes));
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        self.ended.push((op, outcome));
    }
}

impl<R: Message> Apart<R> {
    /// Connects two ends, each with its incarnation.
    pub fn new(
        a: (R, Incarnation),
        b: (R, Incarnation),
        pump: impl FnMut(&mut R, Option<&mut R>) + 'static,
    ) -> Self {
        let pump = Box::new(pump);
        let cut = None;
        Self { a, b, pump, cut }
    }

    /// Adds a way to cut and restore the path between the ends, in both directions.
    #[must_use]
    pub fn with_cut(mut self, cut: impl FnMut(bool) + 'static) -> Self {
        self.cut = Some(Box::new(cut));
        self
    }

    /// Opens each end at the other.
    ///
    /// # Panics
    /// When one cannot be opened.
    pub fn connect(mut self) -> Pair<R> {
        let to_b = self.open_b();
        self.open_a(to_b)
    }

    /// Opens `b` at `a`: half of [`Apart::connect`].
    fn open_b(&mut self) -> PeerIndex {
        let (b, life) = &self.b;
        let opened = self.a.0.open(&b.address(), *life);
        opened.expect("a rail opens its published address")
    }

    /// The other half: `a` numbers `b` as `to_b` already.
    fn open_a(self, to_b: PeerIndex) -> Pair<R> {
        let ((a, life_a), (mut b, life_b)) = (self.a, self.b);
        let to_a = b
            .open(&a.address(), life_a)
            .expect("a rail opens its published address");
        Pair {
            a,
            b: Some(b),
            to_b,
            to_a,
            life_b,
            at_a: Collect::default(),
            at_b: Collect::default(),
            events: Vec::new(),
            lives: [None; 2],
            pump: self.pump,
            cut: self.cut,
        }
    }
}

impl<R: Message> Pair<R> {
    /// Cuts or restores the path, if that is possible.
    pub fn cut(&mut self, cut: bool) {
        if let Some(way) = &mut self.cut {
            way(cut);
        }
    }

    /// The living other end.
    ///
    /// # Panics
    /// When it was made to crash.
    pub fn b(&mut self) -> &mut R {
        self.b.as_mut().expect("the check has not made it crash")
    }

    /// Makes `b` crash: it is dropped without a goodbye.
    pub fn crash_b(&mut self) {
        self.b = None;
    }

    /// Advances time a little, polls `a`, and collects its events; `b` is not polled.
    pub fn turn_a(&mut self) {
        (self.pump)(&mut self.a, self.b.as_mut());
        self.a.poll(64, &mut self.at_a);
        while let Some(event) = self.a.event() {
            self.events.push(event);
        }
    }

    /// Advances time a little and polls both.
    pub fn turn(&mut self) {
        self.turn_a();
        if let Some(b) = &mut self.b {
            b.poll(64, &mut self.at_b);
        }
    }

    /// Turns until `done`.
    ///
    /// # Panics
    /// When that does not happen within [`PATIENCE`].
    pub fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        }
    }

    /// Continues for long enough that everything in flight has ended, to show that something does not happen.
    pub fn settle(&mut self) {
        (0..2_000).for_each(|_| self.turn());
    }
}
