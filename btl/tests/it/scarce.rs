//! Windows, segments and buffers so scarce that those of each end are full of messages that wait for those of
//! the others: requests both ways, replies, long messages, under loss. No end may wait forever for room that
//! only its own waiting keeps taken.

use std::time::Duration;

use crate::common::{World, rings};
use doorbell_btl::BtlConfig;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{Access, AtomicOp, Body, Exposure, Landing, Message, OpId, Refused, Remote};
use doorbell_sim::{Faults, Random};

const RANKS: usize = 3;

/// The transfers that every end starts with every other.
#[derive(Clone, Copy)]
struct Wants {
    puts: u64,
    gets: u64,
    atomics: u64,
    messages: u64,
    longest: u64,
}

/// Memory of one end: what others read and write, and what its own transfers use.
struct Memory {
    theirs: Region,
    own: Region,
    exposed: Vec<Option<Remote>>,
}

const BYTES: usize = 256 * 1024;

fn memories(world: &mut World) -> Vec<Memory> {
    let region = || Region::new(BYTES).expect("memory for a test");
    let mut all = Vec::new();
    for i in 0..RANKS {
        let theirs = region();
        let exposed = (0..RANKS)
            .map(|j| {
                let (by, memory) = (world.to(i, j), Exposure::Region(theirs.whole()));
                let expose =
                    |world: &mut World| world.ends[i].btl.expose(memory, Access::ReadWrite, Some(by));
                (i != j).then(|| expose(world).expect("room for a key"))
            })
            .collect();
        all.push(Memory {
            theirs,
            own: region(),
            exposed,
        });
    }
    all
}

/// Everything that `wants` lists, each end with each other, as fast as there is room; all must come to its
/// end.
#[allow(clippy::needless_range_loop)] // ranks are numbers
fn all_peers_want(seed: u64, faults: Faults, config: &BtlConfig, wants: Wants) {
    let mut world = World::new(seed, RANKS, rings(faults), config);
    world.ends.iter_mut().for_each(|end| end.sink.count_only = true);
    let memories = memories(&mut world);
    let mut random = Random::new(seed);
    // What is left to start, per pair: shuffled, so that kinds and lengths get in each other's way.
    let mut left: Vec<Vec<Vec<(u8, usize)>>> = vec![vec![Vec::new(); RANKS]; RANKS];
    for i in 0..RANKS {
        for j in (0..RANKS).filter(|j| *j != i) {
            let kinds = [wants.puts, wants.gets, wants.atomics, wants.messages];
            for (kind, count) in (0..).zip(kinds) {
                left[i][j].extend((0..count).map(|_| (kind, 1 + random.below(wants.longest) as usize)));
            }
            let list = &mut left[i][j];
            for at in (1..list.len()).rev() {
                list.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
    }
    let operations = (wants.puts + wants.gets + wants.atomics) as usize * (RANKS - 1);
    let messages = wants.messages * (RANKS as u64 - 1);
    world.until("everything ends", Duration::from_secs(600), |world| {
        for i in 0..RANKS {
            for j in (0..RANKS).filter(|j| *j != i) {
                while let Some((kind, length)) = left[i][j].last().copied() {
                    if !start(world, (i, j), &memories, kind, length) {
                        break;
                    }
                    left[i][j].pop();
                }
            }
            world.ends[i].flush();
        }
        world
            .ends
            .iter()
            .all(|end| end.sink.ended.len() == operations && end.sink.total() == messages)
    });
    for (i, end) in world.ends.iter().enumerate() {
        assert!(
            end.sink.ended.iter().all(|(_, outcome)| outcome.is_ok()),
            "each operation succeeds"
        );
        let mut word = [0; 8];
        memories[i].theirs.read(0, &mut word);
        assert_eq!(
            u64::from_le_bytes(word),
            wants.atomics * (RANKS as u64 - 1),
            "each atomic once"
        );
    }
}

/// Starts one; `false` without room.
fn start(world: &mut World, (i, j): (usize, usize), memories: &[Memory], kind: u8, length: usize) -> bool {
    let (to, op) = (world.to(i, j), OpId(0));
    let btl = &mut world.ends[i].btl;
    let own = &memories[i].own;
    let part = |at: u64, length: usize| {
        let whole = memories[j].exposed[i].expect("all expose to all");
        Remote {
            address: (whole.address.get() + at).into(),
            length: (length as u64).into(),
            ..whole
        }
    };
    let slice = || own.slice(0, length).expect("within");
    let started = match kind {
        // The first word is for the atomics.
        0 => btl.put(to, op, Body::Region(&slice()), &part(8, length)),
        1 => btl.get(to, op, &part(8, length), Landing::Region(slice())),
        2 => btl.atomic(to, op, &part(0, 8), AtomicOp::Add(1)),
        _ => btl
            .send(
                to,
                &[],
                Body::Region(&own.slice(0, length.min(8 << 10)).expect("within")),
            )
            .map(|_| ()),
    };
    match started {
        Ok(()) => true,
        Err(Refused::Full) => false,
        Err(refused) => panic!("{kind} of {length} bytes was refused: {refused:?}"),
    }
}

fn scarce() -> BtlConfig {
    BtlConfig {
        window: 64,
        segments: 96,
        max_reassemblies: 1,
        operations: 64,
        initial_window: 64,
        eager_limit: 8 << 10,
        max_peers: 8,
        ..BtlConfig::default()
    }
}

const LOSSY: Faults = Faults {
    loss: 0.02,
    delay: Duration::from_micros(5),
    ..Faults::NONE
};

const CLEAN: Faults = Faults { loss: 0.0, ..LOSSY };

fn on_both(wants: Wants) {
    for seed in 1..=4 {
        all_peers_want(seed, CLEAN, &scarce(), wants);
        all_peers_want(seed, LOSSY, &scarce(), wants);
    }
}

const NOTHING: Wants = Wants {
    puts: 0,
    gets: 0,
    atomics: 0,
    messages: 0,
    longest: 100_000,
};

#[test]
fn many_long_puts_both_ways() {
    on_both(Wants { puts: 100, ..NOTHING });
}

#[test]
fn many_long_gets_both_ways() {
    on_both(Wants { gets: 100, ..NOTHING });
}

#[test]
fn many_short_requests_both_ways() {
    on_both(Wants {
        puts: 1_000,
        gets: 1_000,
        atomics: 1_000,
        longest: 64,
        ..NOTHING
    });
}

#[test]
fn long_messages_with_one_room() {
    on_both(Wants {
        messages: 500,
        longest: 8 << 10,
        ..NOTHING
    });
}

#[test]
fn everything_at_once() {
    on_both(Wants {
        puts: 100,
        gets: 100,
        atomics: 300,
        messages: 300,
        longest: 50_000,
    });
}

/// More transfers to one target, of several ends, than it would remember if all of them took turns.
#[test]
fn more_puts_than_a_target_remembers() {
    let config = BtlConfig {
        operations: 512,
        window: 256,
        segments: 1024,
        ..scarce()
    };
    for faults in [CLEAN, LOSSY] {
        let wants = Wants {
            puts: 400,
            longest: 60_000,
            ..NOTHING
        };
        all_peers_want(1, faults, &config, wants);
    }
}
