//! Each rank prints on which cores its own thread and its progress thread may run, as the kernel has them.
//! Start it with
//! `DOORBELL_PROGRESS=dedicated doorbell run -n 2 --cores-per-rank 2 target/debug/examples/binding`.

use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("binding: {error}");
            let error = error.downcast_ref::<doorbell::Error>();
            ExitCode::from(error.map_or(1, doorbell::Error::exit_code))
        }
    }
}

fn show() -> Result<(), Box<dyn Error>> {
    let world = doorbell::init()?;
    let own = cores("/proc/thread-self")?;
    let name = format!("doorbell-{}", world.rank());
    let mut progress = "none".to_owned();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let folder = thread?.path().display().to_string();
        if std::fs::read_to_string(format!("{folder}/comm"))?.trim() == name {
            progress = cores(&folder)?;
        }
    }
    println!("rank {}: own {own}, progress {progress}", world.rank());
    world.barrier()?;
    Ok(())
}

/// The cores of a thread.
fn cores(folder: &str) -> Result<String, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("{folder}/status"))?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(list.unwrap_or_default().trim().to_owned())
}
