//! The timers and a plain model of them, step by step side by side.

use self::common::{Pair, Step};
use crate::script::Script;

#[allow(dead_code)]
#[path = "../../../hotel/tests/common/mod.rs"]
mod common;

/// Most steps of a script.
const STEPS: usize = 500;

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let rooms = 1 + script.below(24);
    let start = match script.byte() % 3 {
        0 => 0,
        1 => u64::MAX - script.any() % 5000,
        _ => script.any(),
    };
    let mut pair = Pair::new(rooms, start);
    for at in 0..STEPS {
        if script.is_over() {
            break;
        }
        pair.step(&step(&mut script));
        if at % 16 == 0 {
            pair.compare_all();
        }
    }
    pair.compare_all();
}

fn step(script: &mut Script<'_>) -> Step {
    let choice = script.byte();
    let which = usize::from(choice >> 4);
    match choice & 15 {
        0..4 => Step::CheckIn { ahead: script.any() },
        4 => Step::CheckInLate { back: script.any() },
        5 | 6 => Step::CheckOut { which },
        7 => Step::CheckOutStale { which },
        8 => Step::ReBook {
            which,
            ahead: script.any(),
        },
        9 => Step::ReBookLate {
            which,
            back: script.any(),
        },
        10 => Step::ReBookStale { which },
        11 => Step::EvictOne { by: script.any() },
        12 | 13 => Step::Tick { by: script.any() },
        14 if which == 0 => Step::Clear,
        14 => Step::TickBack { by: script.any() },
        _ => Step::TickToNext,
    }
}
