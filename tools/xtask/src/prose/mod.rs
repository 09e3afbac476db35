//! The words of comments, documentation, messages and documents: plain English, and the terms of the field.
//!
//! The tree still has findings, so each folder has a bound that only goes down: [`bounds`]. [`text`] finds
//! what is written for people, [`words`] has the list.

mod bounds;
mod text;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use self::text::Piece;
use crate::arrows::Finding;
use crate::error::Error;
use crate::workspace::Workspace;
use crate::{lexer, tree};

/// What `cargo xtask prose --help` ends with.
pub(crate) const HELP: &str = "\
Looks at comments, documentation and string literals of several words in Rust, and at Markdown, for
  words on the list (tools/xtask/src/prose/words.rs), which has for each what to write instead
  documentation comments of one or two words
  lines with a comment of more than 110 columns
Code, quotations in double quotes, addresses and placeholders are left out.

Fails where a folder has more findings than its bound, in tools/xtask/prose/FOLDER (`am/portals` is am-portals there);
without such a file it may have none. A bound goes down, by --update, and never up; for files that move to another
folder, --moved takes what they need from the bound of the one where they were.

Examples:
  cargo xtask prose --since main        what you have added
  cargo xtask prose --list acm          all of a folder or file
  cargo xtask prose --update            after the findings have become fewer
  cargo xtask prose --moved engine job  after files have moved from engine to job";

/// The files that quote the words of the list.
const QUOTES: &str = "tools/xtask/src/prose/";

/// What the command line selects.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print the findings below this folder or in this file
    #[arg(long, value_name = "PATH")]
    list: Option<String>,
    /// Print the findings on lines that are not in this git revision
    #[arg(long, value_name = "REVISION", conflicts_with = "list")]
    since: Option<String>,
    /// Lower the bounds to what is found
    #[arg(long)]
    update: bool,
    /// Move the bound of files that are in another folder now
    #[arg(long, num_args = 2, value_names = ["FROM", "TO"], conflicts_with = "update")]
    moved: Option<Vec<String>>,
    /// Fail where a bound is higher than what is found
    #[arg(long)]
    strict: bool,
}

/// The command; true when no folder is over its bound.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let findings = check(workspace)?;
    if let Some(path) = &options.list {
        let path = path.trim_end_matches('/');
        let is_below = |file: &str| {
            file.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        print(
            findings
                .iter()
                .filter(|finding| path == "." || is_below(&finding.file)),
        );
        return Ok(true);
    }
    if let Some(revision) = &options.since {
        let added = added_since(workspace, revision)?;
        print(
            findings
                .iter()
                .filter(|finding| added.contains(&(finding.file.clone(), finding.line))),
        );
        return Ok(true);
    }
    let mut counts = bounds::counts(&workspace.root, &by_folder(workspace, &findings))?;
    if let Some([from, to]) = options.moved.as_deref() {
        return Ok(match bounds::moved(&workspace.root, &counts, from, to)? {
            Some(count) => {
                println!("{to} may have {count} more and {from} {count} fewer");
                true
            }
            None => {
                println!(
                    "{from} has not fallen by as many as {to} is over its bound; `cargo xtask prose` has both"
                );
                false
            }
        });
    }
    if options.update {
        bounds::lower(&workspace.root, &mut counts)?;
    }
    for (folder, count) in &counts {
        let remark = if count.is_over() {
            "  more than its bound: `cargo xtask prose --since REVISION` shows what was added"
        } else if count.is_slack() {
            "  `cargo xtask prose --update` lowers the bound"
        } else {
            ""
        };
        println!("{folder:22} {:5} of {:5}{remark}", count.found, count.allowed);
    }
    let sum = |part: fn(&bounds::Count) -> usize| counts.values().map(part).sum::<usize>();
    println!(
        "{:22} {:5} of {:5}",
        "together",
        sum(|count| count.found),
        sum(|count| count.allowed)
    );
    let is_bad = |count: &bounds::Count| count.is_over() || options.strict && count.is_slack();
    Ok(!counts.values().any(is_bad))
}

/// Prints findings, and how many there are of each word.
fn print<'a>(findings: impl Iterator<Item = &'a Finding>) {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let mut total = 0;
    for finding in findings {
        println!("{finding}");
        *kinds
            .entry(finding.message.split(':').next().unwrap_or_default())
            .or_default() += 1;
        total += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let kinds: Vec<String> = kinds
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    println!(
        "{total} findings{}{}",
        if total > 0 { ": " } else { "" },
        kinds.join(", ")
    );
}

/// Returns the folders that are over their bounds, one sentence each.
pub(crate) fn problems(workspace: &Workspace) -> Result<Vec<String>, Error> {
    let counts = bounds::counts(&workspace.root, &by_folder(workspace, &check(workspace)?))?;
    let over = counts.iter().filter(|(_, count)| count.is_over());
    let sentence = |(folder, count): (&String, &bounds::Count)| {
        format!(
            "{folder}: {} findings in comments, messages and documents, and {} are allowed ({})",
            count.found,
            count.allowed,
            bounds::file(folder)
        )
    };
    Ok(over.map(sentence).collect())
}

/// Everything that is wrong in the whole tree, by file and line.
fn check(workspace: &Workspace) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for file in tree::files(&workspace.root)? {
        if file.starts_with(QUOTES) {
            continue;
        }
        let Some(source) = tree::read_text(&workspace.root, &file)? else {
            continue;
        };
        findings.extend(of_file(&file, &source));
    }
    findings.sort();
    Ok(findings)
}

/// Returns what is wrong in one file.
fn of_file(file: &str, source: &str) -> Vec<Finding> {
    let pieces = if file.ends_with(".rs") {
        text::rust(source, &lexer::tokens(source))
    } else if file.ends_with(".md") {
        text::markdown(source)
    } else {
        return Vec::new();
    };
    let finding = |line, message| Finding {
        file: file.to_owned(),
        line,
        message,
    };
    let of_piece = |piece| match piece {
        Piece::Words(words) => {
            let hits = words::hits(&words).into_iter();
            hits.map(|hit| finding(hit.line, format!("{:?}: {}", hit.phrase, hit.instead)))
                .collect()
        }
        Piece::ShortDoc { line, text } => {
            vec![finding(
                line,
                format!("short: {text:?} is no sentence; describe what the item is or does"),
            )]
        }
        Piece::LongLine { line, columns } => {
            vec![finding(
                line,
                format!("long: {columns} columns; wrap at {}", text::COLUMNS),
            )]
        }
    };
    pieces.into_iter().flat_map(of_piece).collect()
}

/// Returns how many findings each folder has: the package that a file is in, `docs`, or `top` for files of
/// the root.
fn by_folder(workspace: &Workspace, findings: &[Finding]) -> BTreeMap<String, usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let names = workspace.members.iter().map(|member| (member.folder.clone(), 0));
    counts.extend(names.filter(|(folder, _)| !folder.is_empty()));
    for finding in findings {
        *counts.entry(folder(workspace, &finding.file)).or_default() += 1;
    }
    counts
}

fn folder(workspace: &Workspace, file: &str) -> String {
    let is_in = |folder: &&str| {
        file.strip_prefix(*folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    let folders = workspace
        .members
        .iter()
        .map(|member| &*member.folder)
        .filter(is_in);
    let top = || file.split_once('/').map_or("top", |(first, _)| first);
    folders
        .max_by_key(|folder| folder.len())
        .unwrap_or_else(top)
        .to_owned()
}

/// Returns the lines of the working tree that are not in `revision`, by file.
fn added_since(workspace: &Workspace, revision: &str) -> Result<BTreeSet<(String, usize)>, Error> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(&workspace.root)
            .args(arguments)
            .stdin(Stdio::null());
        let output = command.output().map_err(|source| Error::Start {
            program: "git".to_owned(),
            source,
        })?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Revision {
                revision: revision.to_owned(),
                reason,
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut added = added(&git(&[
        "diff",
        "-U0",
        "--no-color",
        "--no-ext-diff",
        "--no-prefix",
        revision,
        "--",
    ])?);
    for file in git(&["ls-files", "--others", "--exclude-standard"])?.lines() {
        if let Some(text) = tree::read_text(&workspace.root, file)? {
            added.extend((1..=text.lines().count()).map(|line| (file.to_owned(), line)));
        }
    }
    Ok(added)
}

/// Returns the lines that a diff without context and prefixes adds.
fn added(diff: &str) -> BTreeSet<(String, usize)> {
    let mut added = BTreeSet::new();
    let mut file = "";
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("+++ ") {
            file = name;
        } else if let Some(hunk) = line.strip_prefix("@@ ") {
            let lines = hunk
                .split(' ')
                .find_map(|word| word.strip_prefix('+'))
                .unwrap_or_default();
            let (first, count) = lines.split_once(',').unwrap_or((lines, "1"));
            let (first, count): (usize, usize) = (first.parse().unwrap_or(0), count.parse().unwrap_or(0));
            added.extend((first..first + count).map(|line| (file.to_owned(), line)));
        }
    }
    added
}

#[cfg(test)]
mod tests;
