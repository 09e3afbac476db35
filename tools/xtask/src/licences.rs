//! The licences of the dependencies, and their sources.
//!
//! Advisories are not checked here: their database has to be fetched, and reading it is the work of
//! `cargo-deny`, which is run too where it is installed. Every run reports which of the two happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand, Package};
use spdx::{Expression, ParseMode};

use crate::error::Error;
use crate::workspace::{Workspace, cargo, host};

/// What `cargo xtask licences --help` ends with.
pub(crate) const HELP: &str = "\
Fails when a dependency (for this platform, tests included) has a licence outside the allow list
(tools/xtask/src/licences.rs), an expression that is not SPDX, or a source other than crates.io.
Reports packages that are there in more than one version; that alone is no failure.

Security advisories are NOT checked by this command: their database must be fetched. Where cargo-deny is installed
it is run as well, with deny.toml; it checks advisories when a database that it fetched earlier is on this machine
($CARGO_HOME/advisory-dbs).";

/// The licences that we accept; deny.toml holds the same list.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The only source of dependencies.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What the check found.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is wrong, one sentence each.
    pub(crate) problems: Vec<String>,
    /// What a reader may want to know.
    pub(crate) notes: Vec<String>,
    /// Why advisories were not checked; none when they were.
    pub(crate) unchecked: Option<String>,
}

/// Runs the command: prints what it found; true when nothing is wrong.
pub(crate) fn run(workspace: &Workspace) -> Result<bool, Error> {
    let outcome = check(workspace)?;
    for problem in &outcome.problems {
        println!("{problem}");
    }
    for note in &outcome.notes {
        println!("note: {note}");
    }
    if let Some(reason) = &outcome.unchecked {
        println!("note: security advisories were not checked: {reason}");
    }
    println!("{} problems", outcome.problems.len());
    Ok(outcome.problems.is_empty())
}

/// Looks at every package that the workspace is built, tested, proved or fuzzed with on this platform.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome, Error> {
    let packages = packages(workspace)?;
    let mut outcome = Outcome::default();
    let mut licences: BTreeMap<String, usize> = BTreeMap::new();
    for package in &packages {
        outcome.problems.extend(problem_of(package));
        *licences
            .entry(package.license.clone().unwrap_or_default())
            .or_default() += 1;
    }
    let list: Vec<String> = licences
        .iter()
        .map(|(licence, count)| format!("{licence} ({count})"))
        .collect();
    outcome
        .notes
        .push(format!("{} packages: {}", packages.len(), list.join(", ")));
    outcome.notes.extend(duplicates(&packages));
    cargo_deny(workspace, &mut outcome)?;
    Ok(outcome)
}

/// Returns the packages of the project's two workspaces, each once: the fuzzers have one of their own.
fn packages(workspace: &Workspace) -> Result<Vec<Package>, Error> {
    let mut all = metadata(&workspace.root.join("Cargo.toml"))?.packages;
    let of_fuzzers = metadata(&workspace.root.join("tools/fuzz/Cargo.toml"))?.packages;
    for package in of_fuzzers {
        let same = |other: &Package| other.name == package.name && other.version == package.version;
        if !all.iter().any(same) {
            all.push(package);
        }
    }
    Ok(all)
}

/// Returns the resolved packages for this machine; from what is downloaded if that is enough, else through
/// the network.
fn metadata(manifest: &Path) -> Result<Metadata, Error> {
    let host = host()?;
    let ask = |offline: &[&str]| {
        let options = ["--locked", "--filter-platform", &host]
            .into_iter()
            .chain(offline.iter().copied());
        MetadataCommand::new()
            .manifest_path(manifest)
            .other_options(options.map(str::to_owned).collect::<Vec<_>>())
            // The packages that only the loom proofs use are looked at as well.
            .env("RUSTFLAGS", "--cfg loom")
            .exec()
    };
    ask(&["--offline"])
        .or_else(|_| ask(&[]))
        .map_err(|source| Error::Metadata {
            manifest: manifest.to_owned(),
            source: Box::new(source),
        })
}

fn problem_of(package: &Package) -> Option<String> {
    let name = format!("{} {}", package.name, package.version);
    if let Some(source) = &package.source
        && source.repr != CRATES_IO
    {
        return Some(format!(
            "{name} comes from {source}; use its release on crates.io"
        ));
    }
    match &package.license {
        Some(licence) => licence_problem(&name, licence),
        None => Some(format!(
            "{name} names no licence; find out which it has, or use another crate"
        )),
    }
}

fn licence_problem(name: &str, licence: &str) -> Option<String> {
    // Older packages write "MIT/Apache-2.0".
    let mode = ParseMode {
        allow_slash_as_or_operator: true,
        ..ParseMode::STRICT
    };
    let expression = match Expression::parse_mode(licence, mode) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!(
                "{name}: {licence:?} is no SPDX expression: {}",
                error.reason
            ));
        }
    };
    let allowed = expression.evaluate(|requirement| {
        let id = requirement.license.id().map(|id| id.name);
        id.is_some_and(|id| ALLOWED.contains(&id))
    });
    (!allowed).then(|| {
        format!(
            "{name} is licensed under {licence}, which is not on the allow list; use another crate, or add the \
             licence in tools/xtask/src/licences.rs and deny.toml with the reason"
        )
    })
}

fn duplicates(packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        versions
            .entry(package.name.as_str())
            .or_default()
            .insert(package.version.to_string());
    }
    versions
        .into_iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, versions)| {
            let versions: Vec<String> = versions.into_iter().collect();
            format!(
                "{name} is there in {} versions: {}",
                versions.len(),
                versions.join(", ")
            )
        })
        .collect()
}

/// Runs cargo-deny where it is installed, and records whether advisories were part of it.
fn cargo_deny(workspace: &Workspace, outcome: &mut Outcome) -> Result<(), Error> {
    let deny = |arguments: &[&str]| {
        let mut command = Command::new(cargo());
        command
            .current_dir(&workspace.root)
            .arg("deny")
            .args(arguments)
            .stdin(std::process::Stdio::null());
        command.output().map_err(|source| Error::Start {
            program: "cargo deny".to_owned(),
            source,
        })
    };
    if !deny(&["--version"])?.status.success() {
        outcome.unchecked =
            Some("cargo-deny is not installed, and their database cannot be fetched offline".to_owned());
        return Ok(());
    }
    let mut arguments = vec!["--offline", "check", "licenses", "bans", "sources"];
    if advisory_databases().is_some_and(|folder| folder.is_dir()) {
        arguments.push("advisories");
    } else {
        outcome.unchecked =
            Some("cargo-deny has no database on this machine; `cargo deny fetch` gets it".to_owned());
    }
    let output = deny(&arguments)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        outcome.problems.push(format!(
            "cargo deny {} reports:\n{}",
            arguments.join(" "),
            said.trim_end()
        ));
    }
    Ok(())
}

fn advisory_databases() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .map(|home| home.join("advisory-dbs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_choice_is_enough_and_all_parts_of_an_and_are_needed() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert_eq!(licence_problem("x 1.0.0", good), None, "{good}");
        }
        for bad in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "LicenseRef-mine",
            "MIT or so",
            "",
        ] {
            let problem = licence_problem("x 1.0.0", bad);
            assert!(
                problem.as_ref().is_some_and(|text| text.starts_with("x 1.0.0")),
                "{bad}: {problem:?}"
            );
        }
    }

    #[test]
    fn the_list_is_sorted_known_to_spdx_and_the_same_as_in_deny_toml() {
        assert!(ALLOWED.is_sorted());
        for licence in ALLOWED {
            assert!(
                spdx::license_id(licence).is_some(),
                "{licence} is no SPDX identifier"
            );
        }
        let deny = include_str!("../../../deny.toml");
        let list = deny.split_once("allow = [").unwrap().1.split_once(']').unwrap().0;
        let listed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, ALLOWED);
    }

    #[test]
    fn foreign_sources_and_missing_licences_are_refused() {
        let package = |source: &str, licence: &str| -> Package {
            let text = format!(
                r#"{{"name":"x","version":"1.0.0","id":"x 1.0.0","source":{source},"license":{licence},
                    "dependencies":[],"targets":[],"features":{{}},"manifest_path":"/x/Cargo.toml"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let crates_io = format!("{CRATES_IO:?}");
        assert_eq!(problem_of(&package(&crates_io, "\"MIT\"")), None);
        assert_eq!(problem_of(&package("null", "\"MIT\"")), None);
        assert!(
            problem_of(&package("\"git+https://example.org/x\"", "\"MIT\""))
                .unwrap()
                .contains("example.org")
        );
        assert!(
            problem_of(&package(&crates_io, "null"))
                .unwrap()
                .contains("names no licence")
        );
    }

    #[test]
    fn two_versions_of_one_package_are_reported() {
        let package = |version: &str| -> Package {
            let text = format!(
                r#"{{"name":"x","version":"{version}","id":"x {version}","source":null,"license":"MIT",
                    "dependencies":[],"targets":[],"features":{{}},"manifest_path":"/x/Cargo.toml"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(duplicates(&[package("1.0.0")]), Vec::<String>::new());
        assert_eq!(
            duplicates(&[package("1.0.0"), package("2.0.0")]),
            ["x is there in 2 versions: 1.0.0, 2.0.0"]
        );
    }
}
