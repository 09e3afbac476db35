//! A distributed counter and a histogram, without a rank that serves them: every rank takes the next piece of
//! work from a counter in a window of rank 0, and adds what it finds to a histogram there.
//! `doorbell run -n 4 -- target/release/examples/counter`.

use std::process::ExitCode;

use doorbell::{Arithmetic, Error, WindowAccess};

/// Numbers to be examined, and how many are one piece of work.
const NUMBERS: u64 = 200_000;
const PIECE: u64 = 1_000;
/// Longest sequence that the histogram has a row for, by tens.
const ROWS: usize = 40;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("counter: {}", error.sentence());
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<(), Error> {
    let world = doorbell::init()?;
    // Eight bytes for the counter, then the histogram.
    let length = if world.rank() == 0 { 8 + 8 * ROWS } else { 0 };
    let windows = world.windows(world.region(length)?.whole(), WindowAccess::ALL)?;
    let shared = windows.of(0);
    let mut pieces = 0;
    loop {
        // The element before the addition: no two ranks get the same.
        let first = world.fetch_accumulate(shared, 0, Arithmetic::Sum, PIECE)?;
        if first >= NUMBERS {
            break;
        }
        let mut found = [0u64; ROWS];
        for number in first.max(1)..(first + PIECE).min(NUMBERS) {
            found[(steps(number) / 10).min(ROWS - 1)] += 1;
        }
        world.accumulate(shared, 8, Arithmetic::Sum, &found)?;
        pieces += 1;
    }
    // Every addition of every rank is there after it.
    world.fence()?;
    println!("rank {}: {pieces} pieces", world.rank());
    if world.rank() == 0 {
        let mut rows = Vec::new();
        for row in 0..ROWS {
            rows.push(windows.own().load::<u64>(8 + 8 * row).unwrap_or_default());
        }
        assert_eq!(rows.iter().sum::<u64>(), NUMBERS - 1, "each number once");
        for (row, count) in rows.iter().enumerate().filter(|(_, count)| **count > 0) {
            println!("{:4} to {:4} steps: {count}", 10 * row, 10 * row + 9);
        }
    }
    Ok(())
}

/// The steps from a number to one: even numbers are halved, odd ones become three times as much and one.
fn steps(number: u64) -> usize {
    let next = |number: &u64| match number {
        1 => None,
        even if even % 2 == 0 => Some(even / 2),
        odd => Some(3 * odd + 1),
    };
    std::iter::successors(Some(number), next).count() - 1
}
