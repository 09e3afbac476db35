//! The rules that keep the project in order: dependencies, where `unsafe` lives, what lies in the tree.
//!
//! Each rule is one file here, and looks at plain values, so that its tests need only a small made tree.

mod floors;
mod levels;
mod rooms;
mod tidy;

use std::fmt;

use crate::error::Error;
use crate::lexer;
use crate::tree;
use crate::workspace::Workspace;

/// What `cargo xtask arrows --help` ends with.
pub(crate) const HELP: &str = "\
Fails on:
  an arrow between our crates that the table of floors does not allow, an unknown folder, a wrong package name
  (tools/xtask/src/arrows/floors.rs holds the table)
  an arrow between modules of `job` and `engine` that does not point to a lower level (levels.rs)
  the unsafe keyword outside its rooms, an unsafe block without a SAFETY comment, a crate that does not forbid or
  deny unsafe_code (rooms.rs)
  a top-level entry that is not on the list, words for unfinished work, an #[ignore] without a reason (tidy.rs)

Needs no network. Each finding is one line: file:line: what is wrong, and what to do.";

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// The file, relative to the root.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// One sentence: what is wrong, and what to do.
    pub(crate) message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// What one look at the tree gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Everything that is wrong, sorted by file.
    pub(crate) findings: Vec<Finding>,
    /// How many packages were looked at.
    pub(crate) packages: usize,
    /// How many files were looked at.
    pub(crate) files: usize,
}

/// The command: prints the findings; true when there are none.
pub(crate) fn run(workspace: &Workspace) -> Result<bool, Error> {
    let outcome = check(workspace)?;
    for finding in &outcome.findings {
        println!("{finding}");
    }
    let Outcome {
        findings,
        packages,
        files,
    } = outcome;
    println!(
        "{} findings in {packages} packages and {files} files",
        findings.len()
    );
    Ok(findings.is_empty())
}

/// Applies every rule to the whole tree.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, Error> {
    let files = tree::files(&workspace.root)?;
    let mut findings = floors::check(workspace, &files);
    findings.extend(levels::rows(&files));
    findings.extend(tidy::top_level(&files));
    for file in &files {
        let Some(text) = tree::read_text(&workspace.root, file)? else {
            continue;
        };
        findings.extend(tidy::words(file, &text));
        if file.ends_with(".rs") {
            let tokens = lexer::tokens(&text);
            findings.extend(tidy::rust(file, &tokens));
            findings.extend(levels::file(file, &tokens));
            findings.extend(rooms::file(file, &tokens));
            if rooms::is_crate_root(workspace, file) {
                findings.extend(rooms::crate_root(file, &tokens, &files));
            }
        }
    }
    findings.sort();
    findings.dedup();
    Ok(Outcome {
        findings,
        packages: workspace.members.len(),
        files: files.len(),
    })
}

#[cfg(test)]
mod tests;
