//! Acceptance check 10 of the model's contract: retransmission statistics match injected loss.
//!
//! Two rails of one model, and a clock that stands still while the model works: it goes on when the model has
//! taken everything that was posted, so that nothing is sent again because a machine was busy. All messages
//! go one way, so that all frames of the one function are data and all of the other acknowledgements; what
//! the switch dropped of each is what was sent less what came, by the model's own counters.

use std::time::{Duration, Instant};

use doorbell_btl::{Btl, BtlConfig, Counters, JobKey};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, OpError, OpId, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_simulate::Adapter;
use doorbell_usnic::{UsnicConfig, UsnicRail};
use doorbell_vic::{Counters as Frames, Options};

/// One step of the clock.
const STEP: Duration = Duration::from_micros(10);
/// An acknowledgement is under way at most `ack_delay` (50 µs), and three steps: one for the segment to be
/// seen, one to notice that it waited long enough, one to be seen itself. A sender that waits longer before
/// the last of a burst goes again does not do so in vain.
const TAIL: Duration = Duration::from_micros(100);
/// No wait here is as long, on a machine with other work.
const AMPLE: Duration = Duration::from_secs(60);
const MESSAGES: u64 = 3_000;

#[derive(Default)]
struct Sink {
    numbers: Vec<u64>,
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut number = [0; 8];
        inbound.copy_to(0, &mut number);
        self.numbers.push(u64::from_le_bytes(number));
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

struct Pair {
    ends: [Btl<UsnicRail>; 2],
    to: PeerIndex,
    sinks: [Sink; 2],
    now: Time,
    /// Frames that the rails and the functions had sent when it began.
    base: [u64; 2],
    adapter: Adapter,
}

impl Pair {
    fn new() -> Self {
        let adapter = Adapter::start(Options::default()).unwrap();
        let end = |function: &str| {
            let rail = adapter.open(function, &UsnicConfig::default()).unwrap();
            let life = rail.incarnation();
            let config = BtlConfig {
                retrans_tail: TAIL,
                // A peer that is suspect would be probed by frames that are neither data nor
                // acknowledgements.
                suspect_after: 100,
                ..BtlConfig::default()
            };
            let mut btl = Btl::new(rail, config, life).unwrap();
            btl.set_key(JobKey::from_bytes([3; 32]));
            btl
        };
        let mut ends = [end("vf0"), end("vf1")];
        let known = [0, 1].map(|at: usize| (ends[at].address(), ends[at].incarnation()));
        let to = ends[0].open(&known[1].0, known[1].1).unwrap();
        ends[1].open(&known[0].0, known[0].1).unwrap();
        let mut pair = Self {
            ends,
            to,
            sinks: Default::default(),
            now: Time::ZERO,
            base: [0; 2],
            adapter,
        };
        // They find each other, and check the way, both of them.
        pair.send(0, u64::MAX);
        pair.ends[1]
            .send(PeerIndex(0), &u64::MAX.to_le_bytes(), Body::Empty)
            .unwrap();
        let began = Instant::now();
        while pair.sinks.iter().any(|sink| sink.numbers.is_empty()) || pair.is_busy() {
            assert!(began.elapsed() < AMPLE, "they never meet");
            pair.turn();
            pair.now += STEP;
            std::thread::sleep(Duration::from_micros(100));
        }
        pair.sinks = Default::default();
        let frames = pair.frames();
        pair.base = [pair.posted(), frames[0].sent + frames[1].sent];
        pair
    }

    fn is_busy(&self) -> bool {
        self.ends.iter().any(|end| end.in_use().segments > 0)
    }

    fn frames(&self) -> [Frames; 2] {
        let summary = self.adapter.model.summary();
        ["vf0", "vf1"].map(|name| summary.functions[name])
    }

    fn posted(&self) -> u64 {
        self.ends.iter().map(|end| end.driver().stats().sent).sum()
    }

    fn send(&mut self, length: usize, number: u64) -> bool {
        let body = vec![7; length];
        match self.ends[0].send(self.to, &number.to_le_bytes(), Body::Bytes(&body)) {
            Ok(_) => true,
            Err(Refused::Full) => false,
            Err(refused) => panic!("{refused:?}"),
        }
    }

    fn turn(&mut self) {
        for (end, sink) in self.ends.iter_mut().zip(&mut self.sinks) {
            end.progress(self.now);
            while end.poll(64, sink) > 0 {}
            end.flush();
        }
    }

    /// A step of the clock, when the model has taken all that was posted before.
    fn step(&mut self) {
        self.turn();
        let began = Instant::now();
        loop {
            let frames = self.frames();
            if frames[0].sent + frames[1].sent - self.base[1] >= self.posted() - self.base[0] {
                break;
            }
            assert!(began.elapsed() < AMPLE, "the model takes nothing");
        }
        self.now += STEP;
    }

    /// Sends everything, by bursts of different lengths, and waits until all of it is there and acknowledged.
    fn run(&mut self) -> Outcome {
        let (counters, frames) = (self.ends.each_ref().map(|end| *end.counters()), self.frames());
        let mut next = 0;
        let began = Instant::now();
        while (self.sinks[1].numbers.len() as u64) < MESSAGES || self.is_busy() {
            let mut burst = 1 + next % 23;
            while burst > 0 && next < MESSAGES && self.send([0, 40, 700, 5_000][(next % 4) as usize], next) {
                (next, burst) = (next + 1, burst - 1);
            }
            self.step();
            assert!(
                began.elapsed() < AMPLE,
                "{next} sent, {} there",
                self.sinks[1].numbers.len()
            );
        }
        let mut numbers = std::mem::take(&mut self.sinks[1].numbers);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..MESSAGES), "each once");
        Outcome::new(
            [counters, self.ends.each_ref().map(|end| *end.counters())],
            [frames, self.frames()],
        )
    }
}

/// What was sent, lost and sent again in a run.
#[derive(Debug)]
struct Outcome {
    segments: u64,
    resends: u64,
    /// Data frames that the switch dropped; and acknowledgements.
    dropped: u64,
    dropped_acks: u64,
    /// Data frames that arrived and were not taken: for the second time, or without room.
    refused: u64,
    fast: u64,
    tail: u64,
    timeout: u64,
}

impl Outcome {
    fn new(counters: [[Counters; 2]; 2], frames: [[Frames; 2]; 2]) -> Self {
        let of =
            |end: usize, count: fn(&Counters) -> u64| count(&counters[1][end]) - count(&counters[0][end]);
        let seen = |end: usize, count: fn(&Frames) -> u64| count(&frames[1][end]) - count(&frames[0][end]);
        let arrived = |frames: &Frames| frames.received + frames.dropped + frames.no_bufs + frames.errors;
        let outcome = Self {
            segments: of(0, |one| one.segments_sent),
            resends: of(0, |one| one.resends),
            dropped: seen(0, |one| one.sent) - seen(1, arrived),
            dropped_acks: seen(1, |one| one.sent) - seen(0, arrived),
            refused: of(1, |one| {
                one.dropped_duplicate + one.dropped_room + one.dropped_window
            }),
            fast: of(0, |one| one.resends_fast),
            tail: of(0, |one| one.resends_tail),
            timeout: of(0, |one| one.resends_timeout),
        };
        // What was dropped is known to be data: the one sends nothing else, and the other nothing but
        // acknowledgements.
        let others = |end: usize| of(end, |one| one.pings_sent + one.pongs_sent + one.calls_sent);
        assert_eq!(
            (others(0), others(1), of(0, |one| one.acks_sent)),
            (0, 0, 0),
            "{outcome:?}"
        );
        assert_eq!(of(1, |one| one.segments_sent + one.resends), 0);
        assert_eq!(
            seen(0, |one| one.sent),
            outcome.segments + outcome.resends,
            "{outcome:?}"
        );
        assert_eq!(seen(1, |one| one.sent), of(1, |one| one.acks_sent), "{outcome:?}");
        assert_eq!(
            seen(1, |one| one.no_bufs + one.dropped + one.errors),
            0,
            "{outcome:?}"
        );
        outcome
    }

    /// Sent again although the first had arrived.
    fn spurious(&self) -> u64 {
        self.resends - self.dropped
    }
}

#[test]
fn acceptance_10_without_loss_nothing_is_sent_again() {
    let mut pair = Pair::new();
    let outcome = pair.run();
    println!("{outcome:?}");
    assert!(outcome.segments >= MESSAGES);
    assert_eq!(
        (outcome.dropped, outcome.dropped_acks, outcome.refused),
        (0, 0, 0),
        "{outcome:?}"
    );
    assert_eq!(outcome.resends, 0, "{outcome:?}");
    pair.adapter.is_forgiving().unwrap();
}

#[test]
fn acceptance_10_retransmissions_match_injected_loss() {
    for rule in [
        "every 50 frames switch drop",
        "probability 0.01 seed 3 switch drop",
        "probability 0.05 seed 4 switch drop",
        "probability 0.2 seed 5 switch drop",
    ] {
        let mut pair = Pair::new();
        pair.adapter.model.inject(rule).unwrap();
        let outcome = pair.run();
        println!("{rule}: {outcome:?}, spurious {}", outcome.spurious());
        let sent = outcome.segments + outcome.resends;
        assert!(outcome.dropped * 200 > sent, "it drops: {rule}: {outcome:?}");
        // Every transmission was dropped, or arrived; of each segment one was taken, since all are there. So
        // each dropped one was sent again, and whatever else was arrived for the second time: the books of
        // both ends and of the model agree to the frame.
        assert_eq!(
            outcome.resends,
            outcome.dropped + outcome.refused,
            "{rule}: {outcome:?}"
        );
        assert_eq!(
            outcome.resends,
            outcome.fast + outcome.tail + outcome.timeout,
            "{rule}: {outcome:?}"
        );
        // With nothing late and nothing out of order, a segment that has arrived is sent again only because
        // its acknowledgement was lost.
        assert!(outcome.spurious() <= outcome.dropped_acks, "{rule}: {outcome:?}");
        pair.adapter.is_forgiving().unwrap();
    }
}
