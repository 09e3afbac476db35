//! Hands messages to the other rank and back without a copy, and prints what that takes: `doorbell run -n 2
//! -- target/release/examples/in_place`, with lengths in bytes if others than 4 KiB, 1 MiB and 64 MiB are
//! wanted. With `copy` in front of them, both ranks send out of a buffer and receive into one instead.
//!
//! Each rank writes the first byte of a message before it sends it, and reads it when it has come.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::{Error, World};

const TAG: u64 = 1;
/// Round trips between two looks at the clock.
const BATCH: u32 = 64;
/// Batches of a measurement at least, and at most; and its length.
const BATCHES: (usize, usize) = (5, 10_000);
const LENGTH: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("in_place: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<(), Error> {
    let world = doorbell::init()?;
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let copies = words.first().is_some_and(|word| word == "copy");
    if copies {
        words.remove(0);
    }
    let given: Vec<usize> = words
        .iter()
        .filter_map(|word| word.parse().ok())
        .filter(|length| *length > 0)
        .collect();
    let lengths = if given.is_empty() {
        vec![4 << 10, 1 << 20, 64 << 20]
    } else {
        given
    };
    for length in lengths {
        let (mut out, mut into) = (vec![0; length], vec![0; length]);
        let mut exchange = |number: u8| match copies {
            true => copied(&world, number, &mut out, &mut into),
            false => in_place(&world, number, length),
        };
        measure(&world, length, &mut exchange)?;
    }
    Ok(())
}

/// A message there and back; both have this number as their first byte.
fn in_place(world: &World, number: u8, length: usize) -> Result<u8, Error> {
    let other = 1 - world.rank();
    let send = |number: u8| {
        let mut lent = world.lend(length)?;
        if let Some(first) = lent.first_mut() {
            *first = number;
        }
        lent.send(other, TAG)
    };
    if world.rank() == 0 {
        send(number)?;
    }
    let received = world.recv_in_place(other, TAG)?;
    let [first] = received.bytes().read(0).unwrap_or_default();
    if world.rank() == 1 {
        send(first)?;
    }
    Ok(first)
}

fn copied(world: &World, number: u8, out: &mut [u8], into: &mut [u8]) -> Result<u8, Error> {
    let other = 1 - world.rank();
    if world.rank() == 0 {
        out.iter_mut().take(1).for_each(|first| *first = number);
        world.send(other, TAG, out)?;
    }
    world.recv(other, TAG, into)?;
    let first = into.first().copied().unwrap_or_default();
    if world.rank() == 1 {
        out.iter_mut().take(1).for_each(|byte| *byte = first);
        world.send(other, TAG, out)?;
    }
    Ok(first)
}

/// Exchanges batches, of which rank 0 decides when the last has come: its messages have the number 0.
fn measure(
    world: &World,
    length: usize,
    exchange: &mut impl FnMut(u8) -> Result<u8, Error>,
) -> Result<(), Error> {
    if world.rank() == 1 {
        while exchange(0)? != 0 {}
        return Ok(());
    }
    (0..BATCH).try_for_each(|_| exchange(1).map(drop))?;
    let mut batches = Vec::with_capacity(BATCHES.1);
    let begun = Instant::now();
    while batches.len() < BATCHES.0 || begun.elapsed() < LENGTH && batches.len() < BATCHES.1 {
        let started = Instant::now();
        for _ in 0..BATCH {
            exchange(1)?;
        }
        batches.push(started.elapsed() / (2 * BATCH));
    }
    exchange(0)?;
    batches.sort_unstable();
    let at = |part: usize| batches[(batches.len() - 1) * part / 100].as_nanos() as f64 / 1e3;
    println!(
        "{length:>9} bytes: half a round trip takes {:.3} us (10 %: {:.3}, 90 %: {:.3}, {} batches of \
         {BATCH})",
        at(50),
        at(10),
        at(90),
        batches.len()
    );
    Ok(())
}
