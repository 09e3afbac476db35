//! Every rank exchanges with every other one, round after round, without a barrier; rank 0 then prints the
//! times of the fastest and the slowest rank: `doorbell run -n 16 -- target/release/examples/all_to_all`.

use std::time::Instant;

use doorbell::Error;

const ROUNDS: u64 = 200;
const LENGTH: usize = 1024;

fn main() -> Result<(), Error> {
    let world = doorbell::init()?;
    let (rank, size) = (world.rank(), world.size());
    world.barrier()?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        let out: Vec<Vec<u8>> = (0..size)
            .map(|to| vec![(rank + to) as u8 ^ round as u8; LENGTH])
            .collect();
        let mut into = vec![vec![0; LENGTH]; size as usize];
        world.scope(|s| {
            for (from, into) in (0..).zip(&mut into) {
                drop(s.irecv(from, round, into)?);
            }
            for (to, out) in (0..).zip(&out) {
                drop(s.isend(to, round, out)?);
            }
            Ok(())
        })?;
        for (from, into) in (0..).zip(&into) {
            assert!(
                into.iter().all(|byte| *byte == (from + rank) as u8 ^ round as u8),
                "from {from}"
            );
        }
    }
    let mine = (start.elapsed().as_micros() as u64).to_le_bytes();
    let mut all = vec![0; 8 * size as usize];
    world.allgather(&mine, &mut all)?;
    let times = all
        .chunks_exact(8)
        .map(|time| u64::from_le_bytes(time.try_into().unwrap_or_default()));
    if let (0, Some(fastest), Some(slowest)) = (rank, times.clone().min(), times.max()) {
        let ratio = slowest as f64 / fastest as f64;
        println!(
            "{size} ranks, {ROUNDS} rounds: fastest {fastest} µs, slowest {slowest} µs, ratio {ratio:.2}"
        );
    }
    Ok(())
}
