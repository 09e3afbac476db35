//! Prints this rank's rails, and exchanges a message with every other rank, under whichever launcher:
//!
//! ```text
//! doorbell run -n 2 --rail shm --rail 'udp:eth*' -- target/release/examples/rails
//! DOORBELL_RAILS='shm,udp:eth*' mpirun -n 2 target/release/examples/rails
//! ```
//!
//! Each rank prints one line, `rank 0: shm,udp:eth0; from 1`, with the ranks whose messages it has received.

use std::process::ExitCode;

use doorbell::{Error, World};

fn main() -> ExitCode {
    match doorbell::init().and_then(|world| work(&world)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rails: {error}");
            error.exit_code().into()
        }
    }
}

fn work(world: &World) -> Result<(), Error> {
    let own = world.rank();
    let others = || (0..world.size()).filter(|rank| *rank != own);
    for rank in others() {
        world.send(rank, 7, &own.to_le_bytes())?;
    }
    let mut from = Vec::new();
    for rank in others() {
        let mut buffer = [0; 4];
        world.recv(rank, 7, &mut buffer)?;
        from.push(u32::from_le_bytes(buffer).to_string());
    }
    let listed = world.config().list();
    let rails = listed.iter().find(|line| line.name == "rails.list");
    let rails = rails.map_or("", |line| line.value.as_str());
    println!("rank {own}: {rails}; from {}", from.join(" "));
    Ok(())
}
