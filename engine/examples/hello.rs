//! Every rank greets the next one. Start it with `doorbell run -n 4 target/debug/examples/hello`, or alone.

use std::process::ExitCode;

fn main() -> ExitCode {
    match greet() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn greet() -> Result<(), doorbell::Error> {
    let world = doorbell::init()?;
    let next = (world.rank() + 1) % world.size();
    world.send(next, 7, format!("hello from rank {}", world.rank()).as_bytes())?;
    let mut buffer = [0; 64];
    let status = world.recv(doorbell::Source::Any, 7, &mut buffer)?;
    println!(
        "rank {}: {}",
        world.rank(),
        String::from_utf8_lossy(&buffer[..status.len])
    );
    Ok(())
}
