//! Starts more ranks, again and again, joins them, talks to them, and lets them go, under whichever launcher:
//!
//! ```text
//! doorbell run -n 2 -- target/release/examples/loop_spawn --rounds 100
//! mpiexec.hydra -n 2 target/release/examples/loop_spawn --rounds 10
//! mpirun -n 2 target/release/examples/loop_spawn --rounds 10
//! target/release/examples/loop_spawn --rounds 10
//! ```
//!
//! `--ranks 3` starts three a round, `--on HOST` names where. With `--grow 8` no world is closed before the
//! end: the world grows by one rank a round, all ranks start the next one together, and at eight all worlds
//! are closed. `--trouble KIND` first spawns ranks that do not join, and goes on when it has the error:
//! `missing`, `exit`, `fail`, `crash`, `hang`.

use std::process::ExitCode;
use std::time::Duration;

use doorbell::{Error, Spawn, World};

/// For one round, on a host that is busy with something else.
const LIMIT: Duration = Duration::from_secs(60);
/// For ranks that do not come.
const SOON: Duration = Duration::from_secs(3);
/// Bytes of each message.
const LENGTH: usize = 40_000;

#[derive(Clone, Debug)]
struct Args {
    rounds: u64,
    ranks: u32,
    on: Option<String>,
    grow: Option<u32>,
    trouble: Option<String>,
    /// What a new rank does in place of joining.
    role: Option<String>,
}

fn main() -> ExitCode {
    let args = match args() {
        Ok(args) => args,
        Err(why) => {
            eprintln!("loop_spawn: {why}");
            return ExitCode::from(2);
        }
    };
    if let Some(role) = &args.role {
        misbehave(role);
    }
    match work(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loop_spawn: {error}");
            error.exit_code().into()
        }
    }
}

fn args() -> Result<Args, String> {
    let mut args = Args {
        rounds: 10,
        ranks: 2,
        on: None,
        grow: None,
        trouble: None,
        role: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} lacks its value"))?;
        let number = || {
            value
                .parse()
                .map_err(|_| format!("{name} is no number: `{value}`"))
        };
        match name.as_str() {
            "--rounds" => args.rounds = number()?,
            "--ranks" => args.ranks = number()? as u32,
            "--on" => args.on = Some(value),
            "--grow" => args.grow = Some(number()? as u32),
            "--trouble" => args.trouble = Some(value),
            "--role" => args.role = Some(value),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    Ok(args)
}

/// A new rank that does not join.
fn misbehave(role: &str) {
    match role {
        "exit" => std::process::exit(0),
        "fail" => std::process::exit(3),
        "hang" => loop {
            std::thread::sleep(LIMIT);
        },
        // The first one waits in the meeting for the second one, and is killed there.
        "crash"
            if std::env::var("PMI_RANK")
                .or(std::env::var("DOORBELL_SPAWNED"))
                .as_deref()
                == Ok("0") =>
        {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                std::process::abort();
            });
        }
        "crash" => misbehave("hang"),
        _ => {}
    }
}

fn work(args: &Args) -> Result<(), Error> {
    let world = doorbell::init()?;
    if let Some(size) = args.grow {
        return grow(world, args, size);
    }
    if world.spawned().is_some() {
        return talk(&world).map(|()| world.close());
    }
    if let Some(trouble) = &args.trouble {
        be_refused(&world, args, trouble)?;
    }
    let mut before = None;
    for round in 0..args.rounds {
        // Memory that a process needs once is allocated after some rounds.
        if round == args.rounds / 2 {
            before = Some(held());
        }
        let grown = world.spawn(new_ranks(args), LIMIT)?;
        talk(&grown)?;
        grown.close();
    }
    let ((fds, kib), (fds_after, kib_after)) = (before.unwrap_or_else(held), held());
    println!(
        "rank {} of {}: {} rounds, descriptors {fds} -> {fds_after}, memory {kib} -> {kib_after} KiB",
        world.rank(),
        world.size(),
        args.rounds
    );
    world.barrier()?;
    world.close();
    Ok(())
}

/// Grows from world to world: every rank is there for all that follow its own.
fn grow(world: World, args: &Args, size: u32) -> Result<(), Error> {
    if world.spawned().is_some() {
        talk(&world)?;
    }
    let mut worlds = vec![world];
    while let Some(last) = worlds.last().filter(|last| last.size() < size) {
        let one = new_ranks(args).ranks(1).args(["--grow", &size.to_string()]);
        let grown = last.spawn(one, LIMIT)?;
        talk(&grown)?;
        worlds.push(grown);
    }
    let last = &worlds[worlds.len() - 1];
    println!("rank {} of {}: {} worlds", last.rank(), last.size(), worlds.len());
    last.barrier()?;
    while let Some(world) = worlds.pop() {
        world.close();
    }
    Ok(())
}

fn new_ranks(args: &Args) -> Spawn {
    let program = std::env::current_exe().unwrap_or_default();
    let spawn = Spawn::new(program.display().to_string()).ranks(args.ranks);
    match &args.on {
        Some(host) => spawn.on(host),
        None => spawn,
    }
}

/// Spawns ranks that do not join, and goes on.
fn be_refused(world: &World, args: &Args, trouble: &str) -> Result<(), Error> {
    let (spawn, limit) = match trouble {
        "missing" => (Spawn::new("/nonexistent/program"), LIMIT),
        "hang" => (new_ranks(args).args(["--role", trouble]), SOON),
        _ => (new_ranks(args).args(["--role", trouble]), LIMIT),
    };
    match world.spawn(spawn, limit) {
        Ok(_) => world_is_wrong(world, "ranks have joined that do not exist"),
        Err(error) => println!("rank {}: {} {error}", world.rank(), error.code()),
    }
    world.barrier()
}

fn world_is_wrong(world: &World, what: &str) {
    eprintln!("loop_spawn: rank {}: {what}", world.rank());
    std::process::exit(1);
}

/// Every old rank and every new one exchange a message, and all gather.
fn talk(world: &World) -> Result<(), Error> {
    let (rank, size) = (world.rank(), world.size());
    let before = world.spawned().unwrap_or(size);
    let is_old = rank < before;
    let others = if is_old { before..size } else { 0..before };
    let mut into = vec![0; LENGTH];
    for other in others {
        let (mine, theirs) = (vec![rank as u8; LENGTH], vec![other as u8; LENGTH]);
        if is_old {
            world.send(other, 7, &mine)?;
            world.recv(other, 8, &mut into)?;
        } else {
            world.recv(other, 7, &mut into)?;
            world.send(other, 8, &mine)?;
        }
        if into != theirs {
            world_is_wrong(world, "a message of another one has come");
        }
    }
    let mut all = vec![0; 4 * size as usize];
    world.allgather(&rank.to_le_bytes(), &mut all)?;
    let expected: Vec<u8> = (0..size).flat_map(u32::to_le_bytes).collect();
    if all != expected {
        world_is_wrong(world, "what was gathered is not what was given");
    }
    world.barrier()
}

/// Open descriptors, and resident memory in KiB.
fn held() -> (usize, u64) {
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
    (descriptors, resident.unwrap_or(0))
}
