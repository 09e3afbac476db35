//! The folder of `--osu`: where the benchmarks of two processes lie below it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use doorbell_tools::process::{Runner, Stop};

use super::Peer;
use super::homes::{Where, inner};
use crate::compare_peers::args::Family;

/// The folder below `osu` that has its benchmarks of two processes.
pub(super) fn osu(runner: &Runner, osu: &Path) -> Result<Peer, Stop> {
    let found = folder_with(osu, "osu_latency", || runner.check())?;
    Ok(Peer {
        missing: found.as_ref().err().cloned(),
        path: found.ok(),
        ..Peer::new(Family::Osu, "OSU", Where::Path)
    })
}

/// The first folder at or below one that has a program, those near the top first; or why there is none. A
/// tree that is too large for a folder of benchmarks is not searched to its end.
fn folder_with(
    top: &Path,
    program: &str,
    check: impl Fn() -> Result<(), Stop>,
) -> Result<Result<PathBuf, String>, Stop> {
    const DEEP: usize = 5;
    const FOLDERS_MOST: usize = 5_000;
    let named = top.display();
    let mut open = match std::fs::canonicalize(top) {
        Ok(top) => VecDeque::from([(top, 0)]),
        Err(error) => return Ok(Err(format!("`{named}` cannot be opened: {error}"))),
    };
    let (mut seen, mut unread) = (0, None);
    while let Some((folder, deep)) = open.pop_front() {
        check()?;
        if folder.join(program).is_file() {
            return Ok(Ok(folder));
        }
        seen += 1;
        if seen == FOLDERS_MOST {
            return Ok(Err(format!(
                "no {program} in the first {FOLDERS_MOST} folders below `{named}`: name a folder nearer to where they were built"
            )));
        }
        match inner(&folder) {
            Ok(inner) if deep < DEEP => open.extend(inner.into_iter().map(|folder| (folder, deep + 1))),
            Ok(_) => {}
            Err(error) => {
                _ = unread.get_or_insert(format!("; `{}` cannot be read: {error}", folder.display()))
            }
        }
    }
    Ok(Err(format!(
        "no {program} below `{named}`: name the folder where they were built{}",
        unread.unwrap_or_default()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_benchmarks_is_found_where_it_was_built() {
        let root = tempfile::tempdir().unwrap();
        let find = || folder_with(root.path(), "osu_latency", || Ok(())).unwrap();
        let folder = root.path().join("libexec/osu/mpi/pt2pt");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(find().unwrap_err().contains("no osu_latency below"));
        std::fs::write(folder.join("osu_latency"), "").unwrap();
        assert_eq!(find().unwrap(), std::fs::canonicalize(&folder).unwrap());
        let nowhere = folder_with(&root.path().join("not there"), "osu_latency", || Ok(()));
        assert!(nowhere.unwrap().unwrap_err().contains("cannot be opened"));
    }

    #[test]
    fn a_search_for_benchmarks_ends_when_interrupted() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        let looks = std::cell::Cell::new(0);
        let found = folder_with(root.path(), "osu_latency", || {
            looks.set(looks.get() + 1);
            if looks.get() == 3 {
                Err(Stop::Failed("enough".to_owned()))
            } else {
                Ok(())
            }
        });
        assert!(found.is_err() && looks.get() == 3);
    }
}
