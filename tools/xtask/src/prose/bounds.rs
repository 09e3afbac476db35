//! How many findings a folder may still have: one small file for each folder, which only ever goes down.
//!
//! A folder without a file may have none. Files of several folders change without a conflict; where two
//! changes of one meet, the least number in it holds, so that a file with conflict markers can be read, and
//! `--update` writes it again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::error::Error;

/// Where the files are, relative to the root.
pub(super) const FOLDER: &str = "tools/xtask/prose";

/// What each folder may have, and has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// What it has.
    pub(super) found: usize,
    /// What it may have.
    pub(super) allowed: usize,
}

impl Count {
    pub(super) fn is_over(self) -> bool {
        self.found > self.allowed
    }

    pub(super) fn is_slack(self) -> bool {
        self.found < self.allowed
    }
}

/// Returns the name of a folder's file.
fn name(folder: &str) -> String {
    folder.replace('/', "-")
}

/// Returns the path of a folder's file, relative to the root.
pub(super) fn file(folder: &str) -> String {
    format!("{FOLDER}/{}", name(folder))
}

/// Sets what was found, by folder, beside what is allowed. A file whose folder has gone is in it by its own
/// name.
pub(super) fn counts(root: &Path, found: &BTreeMap<String, usize>) -> Result<BTreeMap<String, Count>, Error> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (folder, found) in found {
        counts.entry(folder.clone()).or_default().found = *found;
    }
    for path in files(root)? {
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let allowed = text.lines().filter_map(|line| line.trim().parse().ok()).min();
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = found.keys().find(|folder| name(folder) == own).cloned();
        counts
            .entry(folder.unwrap_or_else(|| own.into_owned()))
            .or_default()
            .allowed = allowed.unwrap_or(0);
    }
    Ok(counts)
}

fn files(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let folder = root.join(FOLDER);
    let list = match fs::read_dir(&folder) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::file("list", folder)(error)),
    };
    let paths: io::Result<Vec<PathBuf>> = list.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(Error::file("list", folder))?;
    paths.sort();
    Ok(paths)
}

/// Lowers what is allowed to what was found, where that is less.
pub(super) fn lower(root: &Path, counts: &mut BTreeMap<String, Count>) -> Result<(), Error> {
    for (folder, count) in counts {
        if !count.is_over() {
            count.allowed = count.found;
            write(root, folder, count.allowed)?;
        }
    }
    Ok(())
}

/// Lets `to` have what it has over its bound, and takes as much from what `from` may have; `None` and nothing
/// is changed where `from` has not fallen by as much.
pub(super) fn moved(
    root: &Path,
    counts: &BTreeMap<String, Count>,
    from: &str,
    to: &str,
) -> Result<Option<usize>, Error> {
    let count = |folder| counts.get(folder).copied().unwrap_or_default();
    let (giver, taker) = (count(from), count(to));
    let over = taker.found.saturating_sub(taker.allowed);
    let Some(left) = giver
        .allowed
        .checked_sub(over)
        .filter(|left| *left >= giver.found)
    else {
        return Ok(None);
    };
    write(root, from, left)?;
    write(root, to, taker.allowed + over)?;
    Ok(Some(over))
}

/// A bound of zero is no file.
fn write(root: &Path, folder: &str, allowed: usize) -> Result<(), Error> {
    let path = root.join(file(folder));
    let written = if allowed > 0 {
        let parent = path.parent().unwrap_or(root);
        fs::create_dir_all(parent).and_then(|()| fs::write(&path, format!("{allowed}\n")))
    } else {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    };
    written.map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(counts: &[(&str, usize)]) -> BTreeMap<String, usize> {
        counts
            .iter()
            .map(|(folder, count)| ((*folder).to_owned(), *count))
            .collect()
    }

    fn tree(bounds: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(FOLDER)).unwrap();
        for (name, text) in bounds {
            fs::write(root.path().join(FOLDER).join(name), text).unwrap();
        }
        root
    }

    fn read(root: &tempfile::TempDir, name: &str) -> Option<String> {
        fs::read_to_string(root.path().join(FOLDER).join(name)).ok()
    }

    #[test]
    fn a_folder_without_a_file_may_have_none() {
        let root = tempfile::tempdir().unwrap();
        let counts = counts(root.path(), &found(&[("a", 1), ("b", 0)])).unwrap();
        assert!(counts["a"].is_over() && !counts["b"].is_over(), "{counts:?}");
    }

    #[test]
    fn bounds_go_down_and_never_up() {
        let root = tree(&[("a-b", "5\n"), ("c", "2\n"), ("d", "1\n"), ("gone", "3\n")]);
        let mut counts = counts(root.path(), &found(&[("a/b", 4), ("c", 3), ("d", 0)])).unwrap();
        assert_eq!(counts["a/b"], Count { found: 4, allowed: 5 });
        lower(root.path(), &mut counts).unwrap();
        assert_eq!(read(&root, "a-b").unwrap(), "4\n");
        assert_eq!(read(&root, "c").unwrap(), "2\n");
        assert_eq!((read(&root, "d"), read(&root, "gone")), (None, None));
        assert!(counts["c"].is_over());
    }

    #[test]
    fn of_a_merge_conflict_the_least_holds() {
        let root = tree(&[(
            "a",
            "<<<<<<< HEAD\n700\n=======\n750\n>>>>>>> 1234567 (a: reword)\n",
        )]);
        let mut counts = counts(root.path(), &found(&[("a", 650)])).unwrap();
        assert_eq!(counts["a"].allowed, 700);
        lower(root.path(), &mut counts).unwrap();
        assert_eq!(read(&root, "a").unwrap(), "650\n");
    }

    #[test]
    fn what_moves_takes_its_bound_along() {
        let root = tree(&[("engine", "100\n")]);
        let counted = counts(root.path(), &found(&[("engine", 70), ("job", 25)])).unwrap();
        assert_eq!(moved(root.path(), &counted, "engine", "job").unwrap(), Some(25));
        assert_eq!(read(&root, "engine").unwrap(), "75\n");
        assert_eq!(read(&root, "job").unwrap(), "25\n");
        let counted = counts(root.path(), &found(&[("engine", 70), ("job", 31)])).unwrap();
        assert_eq!(moved(root.path(), &counted, "engine", "job").unwrap(), None);
        assert_eq!(read(&root, "job").unwrap(), "25\n");
    }
}
