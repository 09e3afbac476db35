//! Random traffic: every message once, intact, in matching order.

use std::collections::HashMap;

use doorbell_pml::{Protocol, Rank, RequestId, Sent, Source};
use doorbell_testing::Random;
use proptest::prelude::*;

use crate::world::{Memory, World, empty, filled, pattern, sim};

struct Receive {
    request: RequestId,
    into: Memory,
    from: Source,
    tag: u64,
    ignore: u64,
    /// What it got: the sender and the number of the message.
    got: Option<(u32, u64)>,
    cancelled: bool,
}

struct Sending {
    sent: Sent,
    memory: Memory,
    tag: u64,
}

const MOST: usize = 40_000;

/// The number of a message from its first bytes: they are the pattern of its salt, so the salts are tried.
fn which(
    bytes: &[u8],
    source: u32,
    to: u32,
    sizes: &HashMap<(u32, u32), Vec<usize>>,
    used: &[bool],
) -> Option<u64> {
    let lengths = &sizes[&(source, to)];
    (0..lengths.len())
        .find(|number| {
            !used[*number]
                && lengths[*number] == bytes.len()
                && bytes == pattern(bytes.len(), salt(source, to, *number))
        })
        .map(|number| number as u64)
}

fn salt(from: u32, to: u32, number: usize) -> u64 {
    u64::from(from) << 40 | u64::from(to) << 32 | number as u64
}

fn run(seed: u64, ranks: u32, planes: usize, protocol: Protocol, reorder: f64, spread: bool) {
    let mut dice = Random::new(seed);
    let mut config = sim(true, true, dice.below(2) == 0);
    config.faults.reorder = reorder;
    config.queue_depth = 4 + dice.below(60) as usize;
    let mut world = World::with_planes(ranks, planes, seed, config, |pml| {
        pml.protocol = protocol;
        pml.spread = spread;
        pml.window = 32 << 10;
        pml.hard_window = 64 << 10;
    });
    let mut sends: Vec<(u32, u32, Sending)> = Vec::new();
    let mut sizes: HashMap<(u32, u32), Vec<usize>> = HashMap::new();
    let mut tags: HashMap<(u32, u32), Vec<u64>> = HashMap::new();
    for from in 0..ranks {
        for to in 0..ranks {
            sizes.insert((from, to), Vec::new());
            tags.insert((from, to), Vec::new());
        }
    }
    let mut receives: Vec<Vec<Receive>> = (0..ranks).map(|_| Vec::new()).collect();
    let mut expected = vec![0usize; ranks as usize];
    for _ in 0..ranks * 40 {
        let (from, to) = (dice.below(ranks.into()) as u32, dice.below(ranks.into()) as u32);
        let length = match dice.below(10) {
            0 => 0,
            1..=4 => dice.below(65) as usize,
            5..=7 => dice.below(5000) as usize,
            _ => dice.below(MOST as u64) as usize,
        } + 8; // long enough to be distinct
        let tag = dice.below(4);
        let number = sizes[&(from, to)].len();
        let memory = filled(length, salt(from, to, number));
        let sent = if dice.below(8) == 0 {
            world.ssend(from as usize, to, tag, &memory)
        } else {
            world.send(from as usize, to, tag, &memory)
        };
        sizes.get_mut(&(from, to)).unwrap().push(length);
        tags.get_mut(&(from, to)).unwrap().push(tag);
        expected[to as usize] += 1;
        sends.push((from, to, Sending { sent, memory, tag }));
        if dice.below(3) > 0 {
            let rank = dice.below(ranks.into()) as usize;
            let from = match dice.below(3) {
                0 => Source::Any,
                _ => Source::Rank(Rank(dice.below(ranks.into()) as u32)),
            };
            let ignore = [0, 0, 1, u64::MAX][dice.below(4) as usize];
            post(&mut world, &mut receives[rank], rank, from, dice.below(4), ignore);
        }
        if dice.below(4) == 0 {
            world.pass();
        }
    }
    // What is left is taken by receives from any rank; receives that nothing matches are cancelled.
    for _ in 0..100_000 {
        world.pass();
        let mut open = 0;
        for rank in 0..ranks as usize {
            collect(&mut world, rank, &mut receives[rank], &sizes);
            let got = receives[rank]
                .iter()
                .filter(|receive| receive.got.is_some())
                .count();
            open += expected[rank] - got;
            if got < expected[rank] && dice.below(3) == 0 {
                post(&mut world, &mut receives[rank], rank, Source::Any, 0, u64::MAX);
            }
        }
        if open == 0 {
            break;
        }
    }
    for rank in 0..ranks as usize {
        let got = receives[rank]
            .iter()
            .filter(|receive| receive.got.is_some())
            .count();
        assert_eq!(
            got,
            expected[rank],
            "seed {seed}: rank {rank}\n{}",
            world.net.trace_text()
        );
        for receive in receives[rank].iter_mut().filter(|receive| receive.got.is_none()) {
            assert!(world.pmls[rank].cancel(receive.request));
            assert!(world.pmls[rank].test(receive.request).unwrap().is_err());
            receive.cancelled = true;
        }
    }
    for (from, _, sending) in sends {
        world.wait_sent(from as usize, sending.sent).unwrap();
        assert!(sending.tag < 4 && sending.memory.len() >= 8);
    }
    world.passes(100);
    for rank in 0..ranks {
        assert_eq!(world.pmls[rank as usize].live_requests(), 0);
        assert_eq!(
            world.drops(rank as usize),
            0,
            "seed {seed}: {:?}",
            world.pmls[rank as usize].counters()
        );
        assert!(
            world.pmls[rank as usize]
                .probe(Source::Any, 0, 0, u64::MAX)
                .is_none()
        );
        check_order(rank, &receives[rank as usize], &tags, seed);
    }
}

fn post(world: &mut World, list: &mut Vec<Receive>, rank: usize, from: Source, tag: u64, ignore: u64) {
    let into = empty(MOST + 8);
    let request = world.pmls[rank]
        .recv_loan(from, 0, tag, ignore, into.room())
        .unwrap();
    list.push(Receive {
        request,
        into,
        from,
        tag,
        ignore,
        got: None,
        cancelled: false,
    });
}

fn collect(world: &mut World, rank: usize, list: &mut [Receive], sizes: &HashMap<(u32, u32), Vec<usize>>) {
    let mut used: HashMap<u32, Vec<bool>> = HashMap::new();
    for receive in list.iter() {
        if let Some((source, number)) = receive.got {
            let lengths = &sizes[&(source, rank as u32)];
            used.entry(source).or_insert_with(|| vec![false; lengths.len()])[number as usize] = true;
        }
    }
    for receive in list.iter_mut().filter(|receive| receive.got.is_none()) {
        let Some(ended) = world.pmls[rank].test(receive.request) else {
            continue;
        };
        let status = ended.unwrap();
        let source = status.source.0;
        let mut bytes = vec![0; status.length as usize];
        receive.into.read(0, &mut bytes);
        let used = used
            .entry(source)
            .or_insert_with(|| vec![false; sizes[&(source, rank as u32)].len()]);
        let number =
            which(&bytes, source, rank as u32, sizes, used).expect("a message that was sent, once, intact");
        used[number as usize] = true;
        receive.got = Some((source, number));
    }
}

/// No receive may have got a later message of a rank while an earlier one, which it would have taken, went to
/// a receive that was posted later.
fn check_order(rank: u32, list: &[Receive], tags: &HashMap<(u32, u32), Vec<u64>>, seed: u64) {
    let takes = |receive: &Receive, source: u32, number: u64| {
        let tag = tags[&(source, rank)][number as usize];
        let from = match receive.from {
            Source::Any => true,
            Source::Rank(rank) | Source::Endpoint(rank, _) => rank.0 == source,
        };
        from && (tag ^ receive.tag) & !receive.ignore == 0
    };
    for (at, earlier_posted) in list.iter().enumerate() {
        let Some((source, number)) = earlier_posted.got else {
            continue;
        };
        assert!(takes(earlier_posted, source, number));
        for later_posted in &list[at + 1..] {
            let Some((other, earlier)) = later_posted.got else {
                continue;
            };
            let overtaken = other == source && earlier < number && takes(earlier_posted, source, earlier);
            assert!(
                !overtaken,
                "seed {seed}: message {number} of rank {source} overtook {earlier}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_message_once_intact_and_in_matching_order(
        seed: u64,
        ranks in 4u32..=8,
        planes in 1usize..=2,
        protocol in prop::sample::select(vec![Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments]),
        reorder in prop::sample::select(vec![0.0, 0.3, 0.7]),
        spread: bool,
    ) {
        run(seed, ranks, planes, protocol, reorder, spread);
    }
}
