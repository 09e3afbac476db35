//! The files of the project: what git knows or would add; without git, what lies in the folders.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// Returns all files below `root`, as paths relative to it with forward slashes, sorted.
///
/// Ignored files (build output, fuzzers' findings) are left out.
pub(crate) fn files(root: &Path) -> Result<Vec<String>, Error> {
    let mut files = match from_git(root) {
        Some(files) => files,
        None => from_folders(root)?,
    };
    files.sort();
    files.dedup();
    Ok(files)
}

/// Returns the text of a file below `root`; none for links and for files that are not text.
pub(crate) fn read_text(root: &Path, file: &str) -> Result<Option<String>, Error> {
    let path = root.join(file);
    if !path.symlink_metadata().is_ok_and(|data| data.is_file()) {
        return Ok(None);
    }
    let bytes = std::fs::read(&path).map_err(Error::file("read", path))?;
    Ok(String::from_utf8(bytes).ok())
}

fn from_git(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let exists = |name: &&str| !name.is_empty() && root.join(name).symlink_metadata().is_ok();
    Some(names.split('\0').filter(exists).map(str::to_owned).collect())
}

fn from_folders(root: &Path) -> Result<Vec<String>, Error> {
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(Error::file("list", &path))? {
            let entry = entry.map_err(Error::file("list", &path))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let relative = if folder.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{name}")
            };
            let kind = entry.file_type().map_err(Error::file("look at", entry.path()))?;
            if !kind.is_dir() {
                files.push(relative);
            } else if name != ".git" && name != "target" && !name.starts_with("target-") {
                folders.push(relative);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_the_folders_are_walked_and_build_output_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "a.rs",
            "b/c/d.rs",
            "target/x.rs",
            "b/target/y.rs",
            "target-loom/z.rs",
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(files(root.path()).unwrap(), ["a.rs", "b/c/d.rs"]);
    }

    #[test]
    fn with_git_new_files_count_and_ignored_and_deleted_ones_do_not() {
        let root = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let status = Command::new("git")
                .arg("-C")
                .arg(root.path())
                .args(arguments)
                .status()
                .unwrap();
            assert!(status.success(), "git {arguments:?}");
        };
        git(&["init", "-q"]);
        for (file, text) in [
            (".gitignore", "/out\n"),
            ("kept.rs", ""),
            ("gone.rs", ""),
            ("out", ""),
        ] {
            std::fs::write(root.path().join(file), text).unwrap();
        }
        git(&["add", "kept.rs", "gone.rs"]);
        std::fs::remove_file(root.path().join("gone.rs")).unwrap();
        std::fs::write(root.path().join("new.rs"), "").unwrap();
        assert_eq!(files(root.path()).unwrap(), [".gitignore", "kept.rs", "new.rs"]);
    }
}
