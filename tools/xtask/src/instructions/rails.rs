//! What a small message costs over rails that are messages themselves: shared memory, and reliable
//! connections over the model of their library, whose own instructions are not counted.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::{MESSAGES, built};
use crate::error::Error;
use crate::workspace::Workspace;

/// What a call is of that is not counted, with all that it calls.
const MODEL: &str = "doorbell_verbs::sys::model";
/// How much more a message over a connection may cost than one through shared memory.
const MOST: f64 = 1.5;

/// The counts for one way of exchanging messages, each of one message, of both ends together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    way: &'static str,
    shm: f64,
    verbs: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.verbs / self.shm
    }
}

/// Builds the program, and counts both ways.
pub(super) fn rows(workspace: &Workspace) -> Result<Vec<Row>, Error> {
    let program = built(workspace, "rails", |command| {
        command.args(["--features", "rails"]);
        // Valgrind does not run what rustix does by itself at its first system call.
        command.env("RUSTFLAGS", "--cfg rustix_use_libc");
        command.env("CARGO_TARGET_DIR", workspace.root.join("target/counted"));
    })?;
    let profile = workspace.root.join("target/counted/profile.callgrind");
    let each = |way, rail| each((&program, &profile), way, rail);
    let row = |way| {
        Ok(Row {
            way,
            shm: each(way, "shm")?,
            verbs: each(way, "verbs")?,
        })
    };
    ["pingpong", "posted"].into_iter().map(row).collect()
}

/// Instructions for one message, without the model's.
fn each(files: (&Path, &Path), way: &str, rail: &str) -> Result<f64, Error> {
    let [more, less] = MESSAGES;
    let difference = count(files, way, more, rail)? - count(files, way, less, rail)?;
    Ok(difference as f64 / (more - less) as f64)
}

/// Counts a run of a program, by way of a profile.
fn count((program, profile): (&Path, &Path), way: &str, messages: u64, rail: &str) -> Result<u64, Error> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
    command.arg(format!("--callgrind-out-file={}", profile.display()));
    command.arg(program).args([way, &messages.to_string(), rail]);
    let output = command.output().map_err(|source| Error::Start {
        program: "valgrind".to_owned(),
        source,
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Lab(format!(
            "callgrind did not count {}: {said}",
            program.display()
        )));
    }
    let profile = std::fs::read_to_string(profile).map_err(Error::file("read", profile))?;
    Ok(without(&profile, MODEL))
}

/// Sums a profile's instructions, without those of calls from elsewhere into functions whose names have this
/// word.
///
/// A profile has lines `fn=NAME`, which begin a function; `LINE COUNT`, of the function itself; and for each
/// of its calls `cfn=NAME`, `calls=...`, and a line whose count is that of the function that is called.
fn without(profile: &str, word: &str) -> u64 {
    // A call may stand before what it calls.
    let (mut all, mut left_out) = (0u64, 0u64);
    let (mut function, mut called, mut is_call) = ("", "", false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = name;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let count = line
                .split_whitespace()
                .nth(1)
                .and_then(|count| count.parse().ok());
            let count: u64 = count.unwrap_or(0);
            if !std::mem::take(&mut is_call) {
                all += count;
            } else if called.contains(word) && !function.contains(word) {
                left_out += count;
            }
        }
    }
    all.saturating_sub(left_out)
}

/// The rows as a table.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = "\nInstructions for a message of 8 bytes, PML and rail of both ends\n\n\
        way        shm    verbs, without its library   ratio\n"
        .to_owned();
    for row in rows {
        let _ = writeln!(
            table,
            "{:9} {:5.0} {:10.0} {:26.2}",
            row.way,
            row.shm,
            row.verbs,
            row.ratio()
        );
    }
    let verdict = if rows.iter().all(|row| row.ratio() <= MOST) {
        "met"
    } else {
        "missed"
    };
    let _ = writeln!(
        table,
        "\nA message over a connection: at most {MOST} times one through shared memory: {verdict}"
    );
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_into_what_is_left_out_are_subtracted_once() {
        let profile = "events: Ir\n\nfl=a.rs\nfn=ours::main\n0 10\ncfn=x::model::post\ncalls=2 0\n0 7\n\
            cfn=ours::other\ncalls=1 0\n0 3\n\nfn=x::model::post\n0 4\ncfn=x::model::inner\ncalls=1 0\n0 3\n\n\
            fn=x::model::inner\n0 3\nfn=ours::other\n0 3\n\ntotals: 20\n";
        assert_eq!(without(profile, "x::model"), 13);
        assert_eq!(without(profile, "nothing"), 20);
    }

    #[test]
    fn a_row_that_costs_more_is_missed() {
        let row = |verbs| Row {
            way: "posted",
            shm: 1000.0,
            verbs,
        };
        assert!(table(&[row(1500.0)]).contains(": met"));
        assert!(table(&[row(1500.0), row(1501.0)]).contains(": missed"));
    }
}
