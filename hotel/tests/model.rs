//! The hotel against a plain model: a million random steps from fixed seeds, and short runs that proptest
//! shrinks.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use common::{Pair, Step};
use doorbell_testing::Random;
use proptest::prelude::*;

/// What one seed's run is like.
struct Profile {
    rooms: usize,
    start: u64,
    /// Bits of the longest stay, and of the longest step of time.
    stay: u64,
    tick: u64,
    /// Of 100 steps, how many are check-ins.
    arrivals: u64,
}

fn step(random: &mut Random, profile: &Profile) -> Step {
    let which = random.next_u64() as usize;
    if random.below(100) < profile.arrivals {
        return match random.below(20) {
            0 => Step::CheckInLate {
                back: random.of_bits(profile.stay),
            },
            _ => Step::CheckIn {
                ahead: random.of_bits(profile.stay),
            },
        };
    }
    match random.below(1000) {
        0..300 => Step::CheckOut { which },
        300..350 => Step::CheckOutStale { which },
        350..500 => Step::ReBook {
            which,
            ahead: random.of_bits(profile.stay),
        },
        500..520 => Step::ReBookLate {
            which,
            back: random.of_bits(profile.stay),
        },
        520..550 => Step::ReBookStale { which },
        550..700 => Step::EvictOne {
            by: random.of_bits(profile.tick),
        },
        700..900 => Step::Tick {
            by: random.of_bits(profile.tick),
        },
        900..940 => Step::TickBack {
            by: random.of_bits(64),
        },
        940..999 => Step::TickToNext,
        _ => Step::Clear,
    }
}

/// Runs `steps` steps; a failure names seed and step.
fn run(seed: u64, steps: u64, profile: &Profile) -> u64 {
    let mut random = Random::new(seed);
    let mut pair = Pair::new(profile.rooms, profile.start);
    for at in 0..steps {
        let step = step(&mut random, profile);
        let checked = catch_unwind(AssertUnwindSafe(|| {
            pair.step(&step);
            if at % 64 == 0 {
                pair.compare_all();
            }
        }));
        if let Err(panic) = checked {
            eprintln!("seed {seed:#x}, step {at}: {step:?}");
            resume_unwind(panic);
        }
    }
    pair.evictions
}

#[test]
fn a_million_steps_agree_with_the_model() {
    let profiles = [
        // A sender's timers: 200 µs and more, looked at every few microseconds.
        Profile {
            rooms: 64,
            start: 1 << 40,
            stay: 20,
            tick: 14,
            arrivals: 40,
        },
        // Many guests, so that slots are crowded.
        Profile {
            rooms: 1000,
            start: 0,
            stay: 12,
            tick: 6,
            arrivals: 60,
        },
        // Everything from a nanosecond to centuries; the run ends at the end of time.
        Profile {
            rooms: 300,
            start: 0,
            stay: 64,
            tick: 50,
            arrivals: 50,
        },
        // Few rooms, mostly overbooked.
        Profile {
            rooms: 3,
            start: 12_345,
            stay: 30,
            tick: 25,
            arrivals: 60,
        },
    ];
    for (seed, profile) in (0x5eed_0000..).zip(&profiles) {
        let evictions = run(seed, 225_000, profile);
        assert!(evictions > 5_000, "seed {seed:#x}: only {evictions} evictions");
    }
    // Before and at the end of time, where deadlines and steps saturate; a run gets there soon, so there are
    // many.
    for seed in 0x5eed_1000..0x5eed_1064 {
        let start = u64::MAX - Random::new(seed).of_bits(40);
        let profile = Profile {
            rooms: 100,
            start,
            stay: 41,
            tick: 33,
            arrivals: 50,
        };
        assert!(run(seed, 1_000, &profile) > 0);
    }
}

/// Distances of any size, each size as likely as any other.
fn distance() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(bits, noise)| noise >> bits)
}

fn any_step() -> impl Strategy<Value = Step> {
    let which = || any::<usize>();
    prop_oneof![
        8 => distance().prop_map(|ahead| Step::CheckIn { ahead }),
        1 => distance().prop_map(|back| Step::CheckInLate { back }),
        3 => which().prop_map(|which| Step::CheckOut { which }),
        1 => which().prop_map(|which| Step::CheckOutStale { which }),
        2 => (which(), distance()).prop_map(|(which, ahead)| Step::ReBook { which, ahead }),
        1 => (which(), distance()).prop_map(|(which, back)| Step::ReBookLate { which, back }),
        1 => which().prop_map(|which| Step::ReBookStale { which }),
        2 => distance().prop_map(|by| Step::EvictOne { by }),
        2 => distance().prop_map(|by| Step::Tick { by }),
        1 => distance().prop_map(|by| Step::TickBack { by }),
        1 => Just(Step::TickToNext),
    ]
}

proptest! {
    #[test]
    fn short_runs_agree_with_the_model(
        rooms in 1usize..12,
        start in prop_oneof![Just(0), any::<u64>(), (0u64..5000).prop_map(|back| u64::MAX - back)],
        steps in prop::collection::vec(any_step(), 1..100),
    ) {
        let mut pair = Pair::new(rooms, start);
        for step in &steps {
            pair.step(step);
            pair.compare_all();
        }
    }
}
