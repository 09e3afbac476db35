//! The workspace as the other commands need it: its folders, its packages, and the dependencies they declare.
//!
//! Only `cargo metadata --no-deps` is run: it needs no network and no downloaded dependency, so that these
//! checks run on a fresh clone.

use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::error::Error;

/// One checkout of the project.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder (`CARGO_TARGET_DIR` is honoured).
    pub(crate) target: PathBuf,
    /// The packages, in the order cargo gives them.
    pub(crate) members: Vec<Member>,
}

/// One package of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The package's name.
    pub(crate) package: String,
    /// Its folder, relative to the root, with forward slashes.
    pub(crate) folder: String,
    /// The other packages of the workspace that its manifest declares.
    pub(crate) depends: Vec<Dependency>,
    /// What it builds.
    pub(crate) targets: Vec<Target>,
}

/// A declared dependency on another folder of this tree.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    /// The folder, relative to the root; with `..` when it lies outside.
    pub(crate) folder: String,
    /// Whether only tests and benches use it.
    pub(crate) only_in_tests: bool,
}

/// What kind of program or library a target is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// The library of the package.
    Library,
    /// A program of the package.
    Program,
    /// A file in `tests/`.
    Test,
    /// Examples, benches, build scripts.
    Other,
}

/// One thing that a package builds.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Its name, as in `--test NAME`.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: TargetKind,
    /// Its first file, relative to the root.
    pub(crate) path: String,
    /// Whether `cargo test` runs it when nothing is chosen.
    pub(crate) is_tested: bool,
}

/// Returns the root of the workspace that the current directory lies in.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let here = std::env::current_dir().map_err(Error::file("find", "the current directory"))?;
    let is_root = |folder: &&Path| {
        std::fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|toml| toml.contains("[workspace]"))
    };
    here.ancestors()
        .find(is_root)
        .map(Path::to_path_buf)
        .ok_or(Error::NoWorkspace(here))
}

impl Workspace {
    /// Reads the workspace whose root is `root`.
    pub(crate) fn load(root: &Path) -> Result<Self, Error> {
        let manifest = root.join("Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(&manifest)
            .no_deps()
            .other_options(["--offline".to_owned()])
            .exec()
            .map_err(|source| Error::Metadata {
                manifest,
                source: Box::new(source),
            })?;
        let root = metadata.workspace_root.as_std_path();
        let members = metadata
            .packages
            .iter()
            .map(|package| member(package, root))
            .collect();
        Ok(Self {
            root: root.to_path_buf(),
            target: metadata.target_directory.into_std_path_buf(),
            members,
        })
    }

    /// Returns the package in `folder`, if there is one.
    pub(crate) fn member(&self, folder: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.folder == folder)
    }
}

fn member(package: &cargo_metadata::Package, root: &Path) -> Member {
    let folder = package
        .manifest_path
        .parent()
        .map_or_else(String::new, |path| relative(path.as_std_path(), root));
    let depends = package
        .dependencies
        .iter()
        .filter_map(|dependency| {
            let path = dependency.path.as_ref()?;
            Some(Dependency {
                folder: relative(path.as_std_path(), root),
                only_in_tests: dependency.kind == DependencyKind::Development,
            })
        })
        .collect();
    let targets = package
        .targets
        .iter()
        .map(|target| self::target(target, root))
        .collect();
    Member {
        package: package.name.to_string(),
        folder,
        depends,
        targets,
    }
}

fn target(target: &cargo_metadata::Target, root: &Path) -> Target {
    let kind = if target.is_test() {
        TargetKind::Test
    } else if target.is_bin() {
        TargetKind::Program
    } else if target.is_example() || target.is_bench() || target.is_custom_build() {
        TargetKind::Other
    } else {
        TargetKind::Library
    };
    Target {
        name: target.name.clone(),
        kind,
        path: relative(target.src_path.as_std_path(), root),
        is_tested: target.test,
    }
}

/// `path` as seen from `root`; the whole path when it lies elsewhere.
fn relative(path: &Path, root: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}

/// Returns the triple of this machine, as in `--target`.
pub(crate) fn host() -> Result<String, Error> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .map_err(|source| Error::Start {
            program: "rustc".to_owned(),
            source,
        })?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or(Error::Unreadable {
            program: "rustc -vV",
            wanted: "host: ...",
        })
}

/// Returns the cargo that started us, so that all steps use one toolchain.
pub(crate) fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Whether this is continuous integration's machine, where everything has to be there and nothing is built a
/// second time.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Returns a call of cargo in the workspace `root` that builds like every other one of a run: what one step
/// has built, another one finds. A call with other settings builds the whole workspace once more.
pub(crate) fn cargo_in(root: &Path) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(root);
    // `cargo run` describes us to us; our children must not take that for a description of themselves.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    if is_ci() {
        // Incremental state is kept for the next build, and there is none here.
        command.env("CARGO_INCREMENTAL", "0");
        // A panic prints its line without them, no debugger runs here, and it is built and linked sooner.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    command
}
