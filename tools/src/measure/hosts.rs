//! What the two sides of a measurement between two hosts share: `--serve` and `--connect`.

use doorbell::config::ProgressCore;
use doorbell::oob::launch::Kind;
use doorbell::oob::{JobKey, Terms};
use doorbell_bench::job::Cores;
use doorbell_bench::pin;
use doorbell_fabric::cores::Topology;
use doorbell_fabric::error::Exit;

use super::args::{HostsArgs, MeasureArgs};
use super::launched;
use super::settings::Threads;
use crate::error::ToolError;
use crate::run::can_bind;

/// Returns what to do where no rail reaches the other host.
pub(super) fn no_way(error: doorbell::Error) -> ToolError {
    match error.exit() {
        Exit::Rail => ToolError::NoWay {
            said: error.to_string(),
        },
        _ => error.into(),
    }
}

/// A key is for two hosts.
pub(super) fn refuse_key(args: &HostsArgs) -> Result<(), ToolError> {
    match args.key_file {
        Some(_) => Err(ToolError::Usage(
            "`--key-file` goes with `--serve` or `--connect`: ranks of one host need no key".to_owned(),
        )),
        None => Ok(()),
    }
}

/// What is for the side that serves is refused on any other. The parser lets it pass beside options that a
/// server does not have.
pub(super) fn refuse_without_serve(args: &HostsArgs) -> Result<(), ToolError> {
    let given = [("--bind", args.bind.is_some()), ("--once", args.once)];
    match given.into_iter().find(|(_, is_given)| *is_given && !args.serve) {
        Some((flag, _)) => Err(ToolError::Usage(format!(
            "`{flag}` goes with `--serve`: add it on the side that serves, or leave `{flag}` out"
        ))),
        None => Ok(()),
    }
}

/// The other side of such a measurement is another process, and not another rank of a job.
pub(super) fn alone(flag: &str) -> Result<(), ToolError> {
    match launched::member()?.map(|member| member.kind) {
        Some(Kind::Doorbell) => Err(ToolError::Usage(format!(
            "`{flag}` starts no job and joins none, but DOORBELL_RANK is set: do not use it under `doorbell run`"
        ))),
        Some(kind) => Err(ToolError::Usage(format!(
            "`{flag}` starts no job and joins none, but a launcher ({kind}) has started several ranks: start one of each \
             side, or set DOORBELL_LAUNCH=singleton"
        ))),
        None => Ok(()),
    }
}

pub(super) fn terms(args: &HostsArgs) -> Result<Terms, ToolError> {
    let key = args.key_file.as_deref().map(JobKey::read).transpose()?;
    Ok(doorbell::terms(key)?)
}

/// Which side of a measurement.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Connects,
    Serves,
}

/// Each side's threads in dedicated mode.
const THREADS: usize = 2;

/// The cores of this side. Unnamed, the two sides take different ones: they may be on one host after all.
pub(super) fn cores(args: &MeasureArgs, side: Side, threads: &Threads) -> Result<Cores, ToolError> {
    let allowed = pin::apart();
    let dedicated = threads.dedicated;
    if let Some(core) = args.cores.iter().find(|core| !allowed.contains(core)) {
        let text = format!(
            "core {core} cannot be used; allowed here: {}",
            pin::list(&allowed)
        );
        return Err(ToolError::Usage(text));
    }
    let (side, both) = (side as usize, 2 * THREADS);
    match args.cores[..] {
        [] if !can_bind() => Ok(Cores::default()),
        [] if !dedicated => Ok(Cores {
            main: allowed.get(side % allowed.len().max(1)).copied(),
            progress: None,
        }),
        // The library divides what there is, or does as the settings have it.
        [] if allowed.len() < both || threads.core != ProgressCore::Auto => Ok(Cores::default()),
        [] => Ok(Cores {
            main: allowed.get(side * THREADS).copied(),
            progress: threads.core_or(allowed.get(side * THREADS + 1).copied()),
        }),
        [main] => Ok(Cores {
            main: Some(main),
            progress: threads.core_or(Some(beside(main, side))),
        }),
        [main, progress] if dedicated => Ok(Cores {
            main: Some(main),
            progress: Some(progress),
        }),
        _ => Err(ToolError::Usage(
            "with `--serve` and `--connect`, `--cores` takes the core of this side, and in dedicated mode a second one for \
             its progress thread"
                .to_owned(),
        )),
    }
}

/// Returns a core for a progress thread whose side has `main`: another whole one, if there is one.
fn beside(main: usize, side: usize) -> usize {
    let topology = Topology::read();
    let others = topology.usable().without(&topology.siblings(main));
    let free = topology.within(&others).order(None);
    free.get(side).or(free.first()).copied().unwrap_or(main)
}

/// Binds the calling thread to the cores of both threads of this side, which the library divides.
pub(super) fn bind_both(cores: Cores) -> Result<(), ToolError> {
    match (cores.main, cores.progress) {
        (Some(main), Some(progress)) => Ok(pin::bind_all(&[main, progress])?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn args(line: &[&str]) -> MeasureArgs {
        match Cli::parse_from([&["doorbell", "pingpong"], line].concat()).command {
            Command::Pingpong(args) => args.all,
            _ => unreachable!("the line begins with pingpong"),
        }
    }

    #[test]
    fn each_side_has_its_own_cores() {
        let allowed = pin::allowed();
        let of = |line: &[&str], side| {
            let args = args(line);
            let threads = Threads {
                dedicated: args.mode.is_some_and(|mode| mode.name() == "dedicated"),
                ..Threads::default()
            };
            cores(&args, side, &threads)
        };
        let main = |line: &[&str], side| of(line, side).unwrap().main;
        if allowed.len() > 1 {
            assert_ne!(main(&[], Side::Connects), main(&[], Side::Serves));
        }
        let named = allowed[0].to_string();
        assert_eq!(main(&["--cores", &named], Side::Serves), Some(allowed[0]));
        let two = format!("{named},{named}");
        assert!(of(&["--cores", &two], Side::Serves).is_err());
        let both = of(&["--cores", &two, "--mode", "dedicated"], Side::Serves).unwrap();
        assert_eq!(both.progress, Some(allowed[0]));
        let none = of(&["--cores", "99999"], Side::Serves).unwrap_err().to_string();
        assert!(none.contains("core 99999"), "{none}");
    }

    #[test]
    fn what_only_one_side_has_is_refused_at_the_other() {
        for line in [
            "--serve --connect h",
            "--serve --sizes 8",
            "--serve --seconds 2",
            "--serve --json x",
            "--bind 127.0.0.1",
            "--once",
            "--connect h:x",
            "--connect 10.0.0",
        ] {
            let words = ["doorbell", "pingpong"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
        assert!(args(&["--serve", "--bind", "[::1]:0", "--once"]).hosts.serve);
        assert!(refuse_key(&args(&["--key-file", "x"]).hosts).is_err());
        for beside in [
            &["--bind", "127.0.0.1", "--sizes", "8"][..],
            &["--once", "--sizes", "8"],
        ] {
            assert!(refuse_without_serve(&args(beside).hosts).is_err());
        }
        assert!(refuse_without_serve(&args(&["--serve", "--once"]).hosts).is_ok());
    }
}
