//! `--changed`: the part of the tests that a change can break.
//!
//! A file belongs to the package whose folder holds it. What depends on a changed package can break with it;
//! what only tests of a package use can break those tests alone. A file that belongs to no package and is no
//! text (the root manifest, the lock file, settings of cargo or clippy) can break everything.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use super::steps::{Step, Work};
use crate::error::Error;
use crate::workspace::{Member, Workspace};

/// The folder of the fuzzers, which are a workspace of their own.
const FUZZERS: &str = "tools/fuzz";

/// What the emulated machines of the lab run, besides the scripts of the lab itself.
const IN_THE_LAB: &[&str] = &[
    "drivers/igbvf/",
    "drivers/inet/",
    "drivers/packet/",
    "drivers/usnic/",
    "drivers/vfio/",
    "drivers/xdp/",
    "tools/src/doctor/",
    "tools/xtask/src/lab/",
];

/// The package whose programs `cargo xtask instructions` counts.
const COUNTED: &str = "bench/pair";

/// What differs from a commit, and what that concerns.
#[derive(Debug)]
pub(super) struct Changed {
    /// The commit, as it was named.
    since: String,
    /// The changed files, relative to the root.
    files: Vec<String>,
    /// A changed file that concerns every package.
    everywhere: Option<String>,
    /// Folders of packages with changed files.
    changed: BTreeSet<String>,
    /// Folders of packages whose tests can break: the changed ones, and those that depend on them.
    affected: BTreeSet<String>,
}

impl Changed {
    /// Compares the working tree, with new files, with the commit at which the branch left `revision`;
    /// without one, with what the branch's upstream has, or with the last commit where there is no upstream.
    ///
    /// # Errors
    ///
    /// The folder is no checkout, or git knows no such revision.
    pub(super) fn since(workspace: &Workspace, revision: Option<&str>) -> Result<Self, Error> {
        let root = &workspace.root;
        let upstream = || git(root, &["rev-parse", "--abbrev-ref", "@{upstream}"]);
        let since = match revision {
            Some(revision) => revision.to_owned(),
            None => upstream().map_or_else(|_| "HEAD".to_owned(), |name| name.trim().to_owned()),
        };
        let base = git(root, &["merge-base", &since, "HEAD"]).map_err(|why| {
            Error::Changed(format!(
                "cannot compare with {since:?}: {why}; give a revision of this checkout, as in `--changed HEAD~3`"
            ))
        })?;
        let listed = |arguments: &[&str]| git(root, arguments).map_err(Error::Changed);
        let differ = listed(&["diff", "--name-only", "--no-renames", "-z", base.trim()])?;
        let new = listed(&["ls-files", "--others", "--exclude-standard", "-z"])?;
        let names = differ.split('\0').chain(new.split('\0'));
        let files = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(Self::of(workspace, since, files))
    }

    fn of(workspace: &Workspace, since: String, files: Vec<String>) -> Self {
        let mut changed = BTreeSet::new();
        let mut everywhere = None;
        for file in &files {
            if is_below(file, FUZZERS) {
                continue;
            }
            match holder(workspace, file) {
                Some(member) => drop(changed.insert(member.folder.clone())),
                None if is_text(file) => {}
                None => everywhere = Some(file.clone()),
            }
        }
        let affected = if everywhere.is_some() {
            workspace
                .members
                .iter()
                .map(|member| member.folder.clone())
                .collect()
        } else {
            affected(workspace, &changed)
        };
        Self {
            since,
            files,
            everywhere,
            changed,
            affected,
        }
    }

    /// Returns the workspace without the packages whose tests cannot break.
    pub(super) fn narrowed(&self, workspace: &Workspace) -> Workspace {
        let is_affected = |member: &&Member| self.affected.contains(&member.folder);
        Workspace {
            root: workspace.root.clone(),
            target: workspace.target.clone(),
            members: workspace.members.iter().filter(is_affected).cloned().collect(),
        }
    }

    /// Whether the change can break what a step shows.
    ///
    /// # Errors
    ///
    /// The manifest of the fuzzers cannot be read.
    pub(super) fn concerns(&self, workspace: &Workspace, step: &Step) -> Result<bool, Error> {
        if self.everywhere.is_some() {
            return Ok(true);
        }
        Ok(match &step.work {
            Work::Fuzz(_) => self.fuzzers(workspace)?,
            Work::Lab => self
                .files
                .iter()
                .any(|file| IN_THE_LAB.iter().any(|part| file.starts_with(part))),
            Work::Instructions => self.affected.contains(COUNTED),
            // Formatting is checked at once; packages chosen for the others are named in their calls.
            Work::Cargo { calls, .. } => {
                let picks = |call: &super::steps::Invocation| call.arguments.iter().any(|word| word == "-p");
                step.name == "fmt" || calls.iter().any(picks)
            }
            _ => true,
        })
    }

    /// Whether a fuzzer, or a package that the fuzzers are built from, has changed.
    fn fuzzers(&self, workspace: &Workspace) -> Result<bool, Error> {
        if self.files.iter().any(|file| is_below(file, FUZZERS)) {
            return Ok(true);
        }
        let root = workspace.root.join(FUZZERS);
        if !root.join("Cargo.toml").exists() {
            return Ok(false);
        }
        let fuzzers = Workspace::load(&root)?;
        let depends = fuzzers.members.iter().flat_map(|member| &member.depends);
        let is_changed = |folder: &str| {
            self.changed
                .iter()
                .any(|changed| Path::new(folder) == workspace.root.join(changed))
        };
        Ok(depends
            .into_iter()
            .any(|dependency| is_changed(&dependency.folder)))
    }

    /// Returns what is printed before the first step.
    pub(super) fn summary(&self, left_out: &[&str]) -> String {
        let count = |number: usize, one: &str, many: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {many}"),
        };
        let mut text = format!(
            "{} changed since {}",
            count(self.files.len(), "file has", "files have"),
            self.since
        );
        match &self.everywhere {
            Some(file) => text += &format!("; {file} concerns every package"),
            None if self.affected.is_empty() => text += "; no package is concerned",
            None => text += &format!("; tested: {}", listed(&self.affected)),
        }
        if !left_out.is_empty() {
            text += &format!("; not concerned: {}", left_out.join(", "));
        }
        text
    }
}

/// Returns the packages with changed files, and all that can break with them.
fn affected(workspace: &Workspace, changed: &BTreeSet<String>) -> BTreeSet<String> {
    let mut built = changed.clone();
    let mut grows = true;
    while grows {
        let uses = |member: &&Member| {
            let mut depends = member.depends.iter().filter(|on| !on.only_in_tests);
            depends.any(|on| built.contains(&on.folder))
        };
        let more: Vec<String> = workspace
            .members
            .iter()
            .filter(uses)
            .map(|member| member.folder.clone())
            .collect();
        let before = built.len();
        built.extend(more);
        grows = built.len() > before;
    }
    // No package depends on tests, so this goes one step and no further.
    let tested = |member: &&Member| member.depends.iter().any(|on| built.contains(&on.folder));
    let mut affected: BTreeSet<String> = workspace
        .members
        .iter()
        .filter(tested)
        .map(|member| member.folder.clone())
        .collect();
    affected.extend(built);
    affected
}

/// Returns the package whose folder holds a file; of nested ones the innermost.
fn holder<'w>(workspace: &'w Workspace, file: &str) -> Option<&'w Member> {
    let holds = |member: &&Member| is_below(file, &member.folder);
    workspace
        .members
        .iter()
        .filter(holds)
        .max_by_key(|member| member.folder.len())
}

fn is_below(file: &str, folder: &str) -> bool {
    folder.is_empty()
        || file
            .strip_prefix(folder)
            .is_some_and(|rest| rest.starts_with('/'))
}

/// Texts and pictures for people, which nothing is built from.
fn is_text(file: &str) -> bool {
    file.starts_with("docs/") || file.ends_with(".md") || file.starts_with("LICENSE")
}

fn listed(folders: &BTreeSet<String>) -> String {
    folders.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Runs git, and returns its output; else why it failed, in one line.
fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| !line.trim().is_empty());
    Err(line.map_or_else(|| format!("git ended with {}", output.status), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    /// ring <- btl <- engine; acm's tests use btl; `testing` is used by the tests of ring.
    fn workspace() -> Workspace {
        let member = |folder: &str, depends: &[(&str, bool)]| Member {
            package: format!("doorbell-{folder}"),
            folder: folder.to_owned(),
            depends: depends
                .iter()
                .map(|(folder, only_in_tests)| Dependency {
                    folder: (*folder).to_owned(),
                    only_in_tests: *only_in_tests,
                })
                .collect(),
            targets: Vec::new(),
        };
        Workspace {
            root: "/x".into(),
            target: "/x/target".into(),
            members: vec![
                member("ring", &[("testing", true)]),
                member("testing", &[]),
                member("btl", &[("ring", false)]),
                member("engine", &[("btl", false)]),
                member("acm", &[("btl", true)]),
                member("acm/inner", &[("acm", false)]),
            ],
        }
    }

    fn changed(files: &[&str]) -> Changed {
        let files = files.iter().map(|&file| file.to_owned()).collect();
        Changed::of(&workspace(), "main".to_owned(), files)
    }

    fn names(folders: &BTreeSet<String>) -> Vec<&str> {
        folders.iter().map(String::as_str).collect()
    }

    #[test]
    fn what_depends_on_a_changed_package_can_break_and_tests_pass_it_on_to_nothing() {
        assert_eq!(
            names(&changed(&["ring/src/lane.rs"]).affected),
            ["acm", "btl", "engine", "ring"]
        );
        assert_eq!(
            names(&changed(&["testing/src/skip.rs"]).affected),
            ["ring", "testing"]
        );
        assert_eq!(names(&changed(&["engine/README.md"]).affected), ["engine"]);
    }

    #[test]
    fn a_file_belongs_to_the_innermost_folder() {
        assert_eq!(names(&changed(&["acm/inner/src/lib.rs"]).affected), ["acm/inner"]);
        assert_eq!(
            names(&changed(&["acm/innermost.rs"]).affected),
            ["acm", "acm/inner"]
        );
    }

    #[test]
    fn texts_concern_no_package_and_what_all_are_built_with_concerns_all() {
        let texts = changed(&["README.md", "docs/credits/plot.svg", "tools/fuzz/targets/x.rs"]);
        assert_eq!((names(&texts.affected), texts.everywhere), (Vec::new(), None));
        let all = changed(&["docs/acm.md", "Cargo.lock"]);
        assert_eq!(all.everywhere.as_deref(), Some("Cargo.lock"));
        assert_eq!(all.affected.len(), 6);
        assert!(all.summary(&[]).contains("Cargo.lock concerns every package"));
    }

    #[test]
    fn steps_that_run_nothing_of_a_change_are_left_out() {
        let concerned = |files: &[&str]| -> Vec<&'static str> {
            let changed = changed(files);
            let part = changed.narrowed(&workspace());
            let plan = crate::test::steps::plan(&part, true, false).unwrap();
            plan.iter()
                .filter(|step| changed.concerns(&workspace(), step).unwrap())
                .map(|step| step.name)
                .collect()
        };
        let texts = concerned(&["README.md"]);
        assert!(
            texts.contains(&"fmt") && !texts.contains(&"clippy") && !texts.contains(&"lab"),
            "{texts:?}"
        );
        let ring = concerned(&["ring/src/lane.rs"]);
        assert!(
            ring.contains(&"clippy") && ring.contains(&"asan") && !ring.contains(&"lab"),
            "{ring:?}"
        );
        assert!(concerned(&["tools/xtask/src/lab/guest/xdp.sh", "ring/x.rs"]).contains(&"lab"));
        assert!(concerned(&["tools/fuzz/targets/x.rs"]).contains(&"fuzz"));
        assert!(concerned(&["Cargo.toml"]).contains(&"lab"));
    }
}
