//! Whether the committed `Cargo.lock` is the one that the committed manifests require.
//!
//! Cargo updates a stale lock file in silence when it builds us, so that `--locked` afterwards finds nothing
//! wrong. What it leaves is a changed `Cargo.lock` beside unchanged manifests, and that is what is looked
//! for.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// What the check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// It is as committed, or is changing together with a manifest.
    Good,
    /// It was updated: a manifest was committed without it.
    Stale,
    /// There is no git to compare with.
    Unknown,
}

/// Compares the working tree at `root` with its last commit.
pub(crate) fn check(root: &Path) -> Result<Lock, Error> {
    if !root.join(".git").exists() {
        return Ok(Lock::Unknown);
    }
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["diff", "--name-only", "HEAD", "--", "Cargo.lock", "*Cargo.toml"])
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: "git".to_owned(),
            source,
        })?;
    if !output.status.success() {
        return Ok(Lock::Unknown);
    }
    let changed = String::from_utf8_lossy(&output.stdout);
    let stale = changed.lines().all(|file| file == "Cargo.lock") && !changed.trim().is_empty();
    Ok(if stale { Lock::Stale } else { Lock::Good })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_changes_alone_was_stale() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let git = |arguments: &[&str]| {
            let name = [
                "-c",
                "user.name=test",
                "-c",
                "user.email=test@localhost",
                "-c",
                "commit.gpgsign=false",
            ];
            let mut command = Command::new("git");
            let status = command
                .arg("-C")
                .arg(root.path())
                .args(name)
                .args(arguments)
                .status()
                .unwrap();
            assert!(status.success(), "git {arguments:?}");
        };
        write("Cargo.lock", "1");
        assert_eq!(check(root.path()).unwrap(), Lock::Unknown);
        write("ring/Cargo.toml", "1");
        write("ring/src/lib.rs", "1");
        git(&["init", "-q"]);
        assert_eq!(
            check(root.path()).unwrap(),
            Lock::Unknown,
            "before the first commit"
        );
        git(&["add", "."]);
        git(&["commit", "-q", "-m", "first"]);
        write("ring/src/lib.rs", "2");
        assert_eq!(check(root.path()).unwrap(), Lock::Good);
        write("Cargo.lock", "2");
        assert_eq!(check(root.path()).unwrap(), Lock::Stale);
        write("ring/Cargo.toml", "2");
        assert_eq!(check(root.path()).unwrap(), Lock::Good);
    }
}
