//! Messages posted in a row over UDP sockets: how many system calls they take, and when they leave.

use std::time::{Duration, Instant};

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_udp::{UdpConfig, UdpRail};

const PATIENCE: Duration = Duration::from_secs(60);

/// The numbers that arrived.
#[derive(Default)]
struct Sink(Vec<u64>);

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        self.0
            .push(u64::from_le_bytes(inbound.read(0).expect("a number")));
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        panic!("an operation that was not begun has ended, {op:?}: {outcome:?}");
    }
}

/// A sender and a receiver.
struct Two {
    ends: [Btl<UdpRail>; 2],
    to: PeerIndex,
    from: PeerIndex,
    clock: Clock,
    sink: Sink,
    sent: u64,
}

impl Two {
    /// Over the loopback, checked, and with a window that nothing here fills.
    fn new() -> Self {
        let config = BtlConfig {
            initial_window: 1024,
            ..BtlConfig::default()
        };
        let mut ends = [(); 2].map(|()| {
            let rail = UdpRail::open(&"udp:lo".parse().expect("a name"), &UdpConfig::default());
            let rail = rail.expect("the loopback is there");
            let life = rail.incarnation();
            let mut btl = Btl::new(rail, config.clone(), life).expect("the settings are right");
            btl.set_key(JobKey::from_bytes([7; 32]));
            btl
        });
        let at = [0, 1].map(|i: usize| (ends[i].address(), ends[i].incarnation()));
        let to = ends[0].open(&at[1].0, at[1].1).expect("it is there");
        let from = ends[1].open(&at[0].0, at[0].1).expect("it is there");
        let mut two = Self {
            ends,
            to,
            from,
            clock: Clock::start(),
            sink: Sink::default(),
            sent: 0,
        };
        two.post(1);
        two.settle();
        two
    }

    fn post(&mut self, count: u64) {
        for _ in 0..count {
            let number = self.sent.to_le_bytes();
            self.ends[0].send(self.to, &number, Body::Empty).expect("room");
            self.ends[0].flush_soon(self.to);
            self.sent += 1;
        }
    }

    /// System calls that sent something so far.
    fn calls(&self) -> u64 {
        self.ends[0].driver().stats().send_calls
    }

    /// What arrives while the sender does nothing: until there are `count`, and a little longer.
    fn arrived(&mut self, count: u64) -> u64 {
        let (start, mut after) = (Instant::now(), 0);
        while after < 100 {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {count} arrived",
                self.sink.0.len()
            );
            self.ends[1].poll(64, &mut self.sink);
            after += u32::from(self.sink.0.len() as u64 >= count);
        }
        self.sink.0.len() as u64
    }

    /// Both ends work until everything has arrived and nothing is due.
    fn settle(&mut self) {
        let start = Instant::now();
        while self.ends[0].handed_over(self.to).0 < self.sent {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.ends[0].counters());
            for end in &mut self.ends {
                end.progress(self.clock.now());
                while end.event().is_some() {}
                end.poll(64, &mut self.sink);
            }
        }
        assert!(
            self.sink.0.iter().copied().eq(0..self.sent),
            "once each, in order"
        );
    }
}

#[test]
fn one_leaves_at_once_and_after_every_poll() {
    let mut two = Two::new();
    for _ in 0..10 {
        let before = two.calls();
        two.post(1);
        assert_eq!(two.calls() - before, 1);
        let sent = two.sent;
        assert_eq!(two.arrived(sent), sent, "without another call of the sender");
        two.settle();
    }
}

#[test]
fn a_hundred_in_a_row_take_six_calls_and_leave_with_the_next_poll() {
    let mut two = Two::new();
    let before = two.calls();
    two.post(100);
    // One by one twice, then 32 at a time.
    assert_eq!(two.calls() - before, 5);
    let known = two.sent - 2;
    assert_eq!(two.arrived(known), known, "the last two wait");
    let mut none = Sink::default();
    two.ends[0].poll(64, &mut none);
    assert_eq!(two.calls() - before, 6);
    assert_eq!(two.arrived(known + 2), known + 2);
    two.settle();
}

#[test]
fn those_that_wait_leave_before_a_sleep_and_with_a_flush() {
    let mut two = Two::new();
    two.post(10);
    let known = two.sent - 8;
    assert_eq!(two.arrived(known), known);
    two.ends[0].arm().expect("nothing fails");
    two.ends[0].disarm();
    assert_eq!(two.arrived(known + 8), known + 8);
    two.settle();
    two.post(10);
    two.ends[0].flush();
    let sent = two.sent;
    assert_eq!(two.arrived(sent), sent);
    two.settle();
}

#[test]
fn an_acknowledgement_that_would_go_later_goes_at_once_where_the_peer_waits_for_it() {
    let mut two = Two::new();
    two.post(1);
    let (sent, from) = (two.sent, two.from);
    two.arrived(sent);
    let known = |two: &mut Two| {
        let start = Instant::now();
        while two.ends[0].handed_over(two.to).0 < sent && start.elapsed() < Duration::from_millis(200) {
            two.ends[0].poll(64, &mut Sink::default());
        }
        two.ends[0].handed_over(two.to).0
    };
    assert!(
        known(&mut two) < sent,
        "the receiver has read no clock since it came"
    );
    two.ends[1].acknowledge(from);
    assert_eq!(known(&mut two), sent);
}
