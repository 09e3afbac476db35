//! What the program `doorbell` is made of: its commands, and what they share with `doorbell-lab`, the program
//! of those who develop and evaluate doorbell.
//!
//! | module | what it is |
//! |---|---|
//! | `cli` | the list of commands, the words that their helps share, and the parsers of values |
//! | `run` | starts jobs, on this host and on others |
//! | `measure`, `compare` | `pingpong`, `stream`, `rate`, and the comparison of their reports |
//! | `onesided` | puts, gets and atomics beside messages |
//! | `info`, `why`, `counters`, `links`, `doctor` | what there is, and what is wrong with it |
//! | `acm`, `agent`, `key` | services, and the key that hosts share |
//! | `process`, `path` | programs that a command starts and ends, and where they are found |
//! | `console`, `report_files`, `error` | the standard output, files, and how a command ends |
#![forbid(unsafe_code)]

pub mod acm;
mod agent;
pub mod cli;
mod compare;
pub mod console;
mod counters;
mod doctor;
pub mod error;
mod info;
mod key;
mod links;
pub mod measure;
mod ofi;
mod onesided;
pub mod path;
pub mod process;
pub mod report_files;
pub mod run;
mod why;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use doorbell_fabric::error::Exit;
use doorbell_fabric::nearest::nearest;
use doorbell_fabric::signals;

use crate::cli::Command;
use crate::error::ToolError;

/// The commands that `doorbell` had before `doorbell-lab` took them, with their names there.
const MOVED: [(&str, &str); 7] = [
    ("budgets", "budgets"),
    ("compare-peers", "compare-peers"),
    ("scaling", "scaling"),
    ("raw-udp", "raw-udp"),
    ("model", "model"),
    ("load", "acm-load"),
    ("perf", "acm-perf"),
];

/// Runs a program from its command line to its exit status. `name` begins its errors, `command` reads the
/// command line, and `act` carries out what was read.
pub fn program<C: clap::FromArgMatches>(
    name: &str,
    mut command: clap::Command,
    act: impl FnOnce(C) -> Result<ExitCode, ToolError>,
) -> ExitCode {
    // Without these handlers, all that follows is as good.
    let _ = signals::of_a_program();
    let parsed = command
        .try_get_matches_from_mut(env::args_os())
        .and_then(|mut matches| C::from_arg_matches_mut(&mut matches));
    match parsed {
        Ok(parsed) => end(name, act(parsed)),
        Err(refusal) => refuse(name, &suggested(refusal, &command, env::args_os())),
    }
}

/// Carries out a command of `doorbell`.
///
/// # Errors
/// The reason of the failure, as one sentence, and the exit status.
pub fn carry_out(command: Command) -> Result<ExitCode, ToolError> {
    if reads_settings(&command) {
        doorbell::config::warn_of_unknown_variables();
    }
    match command {
        Command::Run(args) => run::run(&args),
        Command::Info(args) => info::info(&args),
        Command::Why(args) => why::why(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Counters(args) => counters::counters(&args),
        Command::Links(args) => links::links(&args),
        Command::Acm(args) => acm::acm(&args),
        Command::Agent { kind } => agent::agent(&kind),
        Command::LinksRank => links::links_rank(),
        Command::Onesided(args) => onesided::onesided(&args),
        Command::OnesidedRank(args) => onesided::onesided_rank(&args),
        Command::DoctorPeer => doctor::doctor_peer(),
        Command::OfiChild { task } => ofi::child::carry_out(&task),
        Command::Pingpong(args) => measure::pingpong(&args),
        Command::Stream(args) => measure::stream(&args),
        Command::Rate(args) => measure::rate(&args),
        Command::Key(args) => key::key(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::ExecRank(args) => run::exec_rank(&args),
        Command::KeepJob(args) => run::keep_job(&args),
        Command::Daemon => run::daemon(),
    }
}

/// Whether the command, or what it starts, works by the settings of the environment.
fn reads_settings(command: &Command) -> bool {
    matches!(
        command,
        Command::Run(_)
            | Command::Info(_)
            | Command::Why(_)
            | Command::Doctor(_)
            | Command::Links(_)
            | Command::Onesided(_)
            | Command::Pingpong(_)
            | Command::Stream(_)
            | Command::Rate(_)
    )
}

fn end(name: &str, done: Result<ExitCode, ToolError>) -> ExitCode {
    match done {
        Ok(code) => code,
        // The reader has what it wanted.
        Err(error) if error.is_closed_pipe() => Exit::Done.into(),
        Err(error) => {
            console::say(&format!("{name}: {error}"));
            error.exit().into()
        }
    }
}

/// Replaces the parser's suggestions for an unknown command, which go by the letters that two names have in
/// common in whatever order, by the one name that differs least, if any is near.
fn suggested(
    mut refusal: clap::Error,
    program: &clap::Command,
    words: impl IntoIterator<Item = OsString>,
) -> clap::Error {
    let Some(ContextValue::String(asked)) = refusal.get(ContextKind::InvalidSubcommand) else {
        return refusal;
    };
    let asked = asked.clone();
    // Down to the command whose command it was to be.
    let mut within = program;
    for word in words.into_iter().skip(1) {
        match word.to_str() {
            Some(word) if word == asked => break,
            // Its words are commands of what is above it.
            Some("help") | None => {}
            Some(word) => within = within.find_subcommand(word).unwrap_or(within),
        }
    }
    let known = within.get_subcommands().filter(|command| !command.is_hide_set());
    refusal.remove(ContextKind::SuggestedSubcommand);
    if let Some(name) = nearest(&asked, known.map(clap::Command::get_name)) {
        let names = ContextValue::Strings(vec![name.to_owned()]);
        refusal.insert(ContextKind::SuggestedSubcommand, names);
    }
    refusal
}

/// Prints what the command line's parser returned: help and version are results, all else is wrong usage.
fn refuse(name: &str, refusal: &clap::Error) -> ExitCode {
    if let Some(sentence) = moved(refusal) {
        return end(name, Err(ToolError::Usage(sentence)));
    }
    let shown = matches!(refusal.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let printed = refusal.print();
    if shown {
        let flushed = printed.and_then(|()| io::stdout().flush());
        end(
            name,
            flushed.map(|()| Exit::Done.into()).map_err(ToolError::Output),
        )
    } else {
        // If stderr is closed, there is nowhere to report that.
        Exit::Usage.into()
    }
}

/// Returns where a command is found that is not one of this program's any more.
fn moved(refusal: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(asked)) = refusal.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (old, new) = MOVED.iter().find(|(old, _)| old == asked)?;
    Some(format!(
        "`{old}` is a command of the program `doorbell-lab`: `doorbell-lab {new}`, or from the sources \
         `cargo run --release -p doorbell-lab -- {new}`"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn refusal(words: &[&str]) -> clap::Error {
        let words = ["doorbell"].iter().chain(words);
        Cli::command().try_get_matches_from(words).unwrap_err()
    }

    #[test]
    fn an_unknown_command_is_answered_with_the_nearest_or_none() {
        for (words, meant) in [
            (&["pingpnog"][..], Some("pingpong")),
            (&["pinpong"], Some("pingpong")),
            (&["infos"], Some("info")),
            (&["docter", "shm"], Some("doctor")),
            (&["acm", "resovle", "node3"], Some("resolve")),
            (&["acm", "pingpong"], None),
            (&["agent", "usinc"], Some("usnic")),
            (&["help", "pingpnog"], Some("pingpong")),
            // Hidden ones are for doorbell itself.
            (&["exec-rnak"], None),
            (&["frobnicate"], None),
            (&["ofi"], None),
        ] {
            let command = Cli::command();
            let all = ["doorbell"].iter().chain(words).map(OsString::from);
            let shown = suggested(refusal(words), &command, all).to_string();
            let tips: Vec<&str> = shown.lines().filter(|line| line.contains("similar")).collect();
            match meant {
                Some(meant) => assert!(
                    tips.len() == 1 && tips[0].ends_with(&format!("exists: '{meant}'")),
                    "{words:?}: {shown}"
                ),
                None => assert!(tips.is_empty(), "{words:?}: {shown}"),
            }
        }
        // Other refusals stay as they are.
        let command = Cli::command();
        let words = ["pingpong", "--size", "8"];
        let all = ["doorbell"].iter().chain(&words).map(OsString::from);
        assert!(
            suggested(refusal(&words), &command, all)
                .to_string()
                .contains("'--sizes'")
        );
    }

    #[test]
    fn commands_that_moved_say_where_they_are() {
        for (words, new) in [
            (&["budgets"][..], "-- budgets`"),
            (&["compare-peers", "--list"], "-- compare-peers`"),
            (&["scaling"], "-- scaling`"),
            (&["raw-udp", "--answer"], "-- raw-udp`"),
            (&["model", "vic"], "-- model`"),
            (&["help", "budgets"], "-- budgets`"),
            (&["acm", "load", "10.0.0.1"], "-- acm-load`"),
            (&["acm", "perf"], "-- acm-perf`"),
        ] {
            let sentence = moved(&refusal(words)).unwrap_or_default();
            assert!(sentence.ends_with(new), "{words:?}: {sentence}");
        }
        for words in [&["budget"][..], &["acm", "serv"], &["pingpong", "--budgets"], &[]] {
            assert_eq!(moved(&refusal(words)), None, "{words:?}");
        }
    }
}
