//! Every rank gives a value, and all check and print the sum, under whichever launcher:
//!
//! ```text
//! doorbell run -n 4 -- target/release/examples/allgather
//! mpirun -n 4 target/release/examples/allgather
//! mpiexec.hydra -n 4 target/release/examples/allgather
//! srun -n 4 --mpi=pmi2 target/release/examples/allgather
//! ```

use std::process::ExitCode;

use doorbell::Error;

fn main() -> ExitCode {
    match allgather() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allgather: {error}");
            error.exit_code().into()
        }
    }
}

fn allgather() -> Result<(), Error> {
    let world = doorbell::init()?;
    let (rank, size) = (world.rank(), world.size());
    let mine = value_of(rank).to_le_bytes();
    let mut all = vec![0; mine.len() * size as usize];
    world.allgather(&mine, &mut all)?;
    let values = all
        .chunks_exact(mine.len())
        .map(|value| u64::from_le_bytes(value.try_into().unwrap_or_default()));
    let sum: u64 = values.sum();
    let expected: u64 = (0..size).map(value_of).sum();
    if sum != expected {
        // One wrong result is the end for all.
        world.abort(
            1,
            &format!("rank {rank} has the sum {sum}, and {expected} is right"),
        );
    }
    println!("rank {rank} of {size}: the sum is {sum}");
    world.barrier()?;
    world.close();
    Ok(())
}

/// Returns what a rank gives: no two sums of a few are equal by chance.
fn value_of(rank: u32) -> u64 {
    let rank = u64::from(rank) + 1;
    rank * rank * rank + 7
}
