//! Whole jobs: repeatable runs, and random traffic between eight ranks over everything at once.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbell_fabric::event::{EventKind, Scope};
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message, MsgId, OpError, OpId, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Faults, Job, Plane, Random, SimConfig, SimNet, SimRail, Step};

const RANKS: usize = 8;
const MESSAGES: u64 = 150;

/// A rank that sends `MESSAGES` to each other rank, in a random order of receivers, and checks what it gets.
struct Talker {
    rank: usize,
    rail: SimRail,
    random: Random,
    /// Per peer: accepted, highest watermark seen, given back.
    sent: [u64; RANKS],
    watermark: [u64; RANKS],
    given: Vec<BTreeSet<u64>>,
    heard: Heard,
    down: BTreeSet<usize>,
}

/// What arrived, per peer.
#[derive(Default)]
struct Heard {
    from: Vec<BTreeSet<u64>>,
}

impl Arrivals for Heard {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let number = u64::from_le_bytes(inbound.read(0).expect("a head of eight bytes"));
        let length = (number * 37 % 900) as usize;
        assert_eq!(inbound.len(), 8 + length);
        let mut body = vec![0; length];
        inbound.copy_to(8, &mut body);
        assert!(
            body.iter().all(|&byte| byte == number as u8),
            "message {number} arrives whole"
        );
        assert!(
            self.from[peer.index()].insert(number),
            "message {number} of {peer:?} arrived twice"
        );
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {
        panic!("no operation was started");
    }
}

impl Talker {
    fn step(&mut self) -> Step {
        let mut work = self.rail.poll(1 + self.random.below(8) as usize, &mut self.heard);
        while let Some(event) = self.rail.event() {
            work += 1;
            if let (Scope::Peer(peer), EventKind::PeerDown(_)) = (event.scope, event.kind) {
                assert!(self.down.insert(peer.index()), "told twice");
                let given = &mut self.given[peer.index()];
                self.rail.reclaim(peer, &mut |id, _| {
                    given.insert(id.0);
                });
            }
        }
        let to = self.random.below(RANKS as u64) as usize;
        if to != self.rank && self.sent[to] < MESSAGES && !self.down.contains(&to) {
            work += self.send(to);
        }
        for to in 0..RANKS {
            let MsgId(watermark) = self.rail.handed_over(PeerIndex(to as u32));
            assert!(watermark >= self.watermark[to] && watermark <= self.sent[to]);
            self.watermark[to] = watermark;
        }
        let finished =
            |to: usize| to == self.rank || self.down.contains(&to) || self.watermark[to] == MESSAGES;
        let heard = |from: usize| self.heard.from[from].len() as u64 == MESSAGES;
        if work > 0 {
            Step::Worked
        } else if (0..RANKS).all(finished)
            && (0..RANKS)
                .all(|from| finished(from) && (from == self.rank || self.down.contains(&from) || heard(from)))
        {
            Step::Done
        } else {
            // Another receiver may be drawn next time.
            Step::Idle(Some(self.rail.net().now() + Duration::from_nanos(200)))
        }
    }

    fn send(&mut self, to: usize) -> usize {
        let number = self.sent[to] + 1;
        let body = vec![number as u8; (number * 37 % 900) as usize];
        match self
            .rail
            .send(PeerIndex(to as u32), &number.to_le_bytes(), Body::Bytes(&body))
        {
            Ok(id) => {
                assert_eq!(id, MsgId(number));
                self.sent[to] = number;
                1
            }
            Err(refused) => {
                assert!(
                    matches!(refused, Refused::Full | Refused::PeerDown),
                    "{refused:?}"
                );
                0
            }
        }
    }
}

fn job(net: &SimNet) -> Job<Talker> {
    let mut rails: Vec<SimRail> = (0..RANKS).map(|_| net.attach()).collect();
    let addresses: Vec<_> = rails
        .iter()
        .map(|rail| (rail.address(), rail.incarnation()))
        .collect();
    for rail in &mut rails {
        for (peer, (address, life)) in (0..).zip(&addresses) {
            assert_eq!(rail.open(address, *life).ok(), Some(PeerIndex(peer)));
        }
    }
    let mut rails = rails.into_iter();
    Job::new(net, RANKS, |rank| Talker {
        rank,
        rail: rails.next().expect("one for each rank"),
        random: Random::for_part(net.seed(), &[77, rank as u64]),
        sent: [0; RANKS],
        watermark: [0; RANKS],
        given: vec![BTreeSet::new(); RANKS],
        heard: Heard {
            from: vec![BTreeSet::new(); RANKS],
        },
        down: BTreeSet::new(),
    })
}

fn rough() -> SimConfig {
    let faults = Faults {
        bandwidth: Some(1_000_000_000),
        queue: 8192,
        ..Faults::ROUGH
    };
    SimConfig {
        faults,
        queue_depth: 16,
        ..SimConfig::default()
    }
}

/// Runs a job to its end; returns the hash and the number of its events.
fn run(seed: u64, script: &[(u64, Change)]) -> (SimNet, Job<Talker>) {
    let net = SimNet::new(seed, rough());
    let mut job = job(&net).until(Time::from_nanos(1_000_000_000));
    for &(at, change) in script {
        net.at(Time::from_nanos(at), change);
    }
    let explain = |_: usize, talker: &Talker| format!("{:?} of {:?}", talker.watermark, talker.sent);
    if let Err(stuck) = job.run_explained(2_000_000, |_, talker, _| talker.step(), explain) {
        panic!("{stuck}\n{}", net.trace_text());
    }
    (net, job)
}

#[test]
fn eight_ranks_talk_at_random_and_everything_arrives_once() {
    for seed in 0..4 {
        let (net, job) = run(seed, &[]);
        let total = net.total();
        assert_eq!(total.messages_delivered, (RANKS * (RANKS - 1)) as u64 * MESSAGES);
        assert_eq!((total.messages_failed, net.held()), (0, 0));
        assert!(total.reordered > 1000 && total.refused_full > 0, "{total:?}");
        assert!(job.ranks().iter().all(|talker| talker.down.is_empty()));
    }
}

#[test]
fn a_death_in_the_middle_hurts_only_what_goes_to_the_dead() {
    for seed in 10..14 {
        let (_, job) = run(seed, &[(40_000, Change::RankDeath(3))]);
        for talker in job.ranks().iter().filter(|talker| talker.rank != 3) {
            assert_eq!(
                talker.down.iter().copied().collect::<Vec<_>>(),
                [3],
                "rank {}",
                talker.rank
            );
            let (watermark, sent) = (talker.watermark[3], talker.sent[3]);
            let expected: BTreeSet<u64> = (watermark + 1..=sent).collect();
            assert_eq!(talker.given[3], expected, "exactly what is above the watermark");
            let heard = &job.ranks()[3].heard.from[talker.rank];
            assert!(
                (1..=watermark).all(|n| heard.contains(&n)),
                "what is below it was received"
            );
        }
    }
}

#[test]
fn short_breaks_of_links_and_ways_lose_nothing() {
    let (plane, from, to) = (Plane::FIRST, 1, 2);
    let script = [
        (10_000, Change::Cut { plane, from, to }),
        (20_000, Change::LinkDown(plane, 5)),
        (25_000, Change::LinkUp(plane, 5)),
        (90_000, Change::Heal { plane, from, to }),
        (95_000, Change::PlaneDown(plane)),
        (99_000, Change::PlaneUp(plane)),
    ];
    for seed in 20..24 {
        let (net, job) = run(seed, &script);
        assert!(net.total().stalled > 0);
        assert_eq!((net.total().messages_failed, net.held()), (0, 0));
        assert!(job.ranks().iter().all(|talker| talker.down.is_empty()));
    }
}

#[test]
fn a_seed_means_one_run_and_another_seed_another() {
    let script = [
        (40_000, Change::RankDeath(3)),
        (50_000, Change::LinkDown(Plane::FIRST, 6)),
    ];
    let trace = |seed| {
        let (net, job) = run(seed, &script[..1]);
        let heard: Vec<usize> = job
            .ranks()
            .iter()
            .map(|talker| talker.heard.from[0].len())
            .collect();
        (
            net.trace_hash(),
            net.trace_count(),
            net.now(),
            net.total(),
            heard,
            net.trace_text(),
        )
    };
    let (first, again, other) = (trace(30), trace(30), trace(31));
    assert!(
        first == again,
        "the same seed gives the same events, counts and text"
    );
    assert_ne!(first.0, other.0);
    assert_ne!(first.5, other.5);
    assert!(first.5.starts_with("seed 30\n") && first.5.lines().count() == 1 + 4096);
}
