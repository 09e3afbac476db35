//! Which peers are here: their programs by name on the PATH, their versions by asking them, and the Debian packages that
//! bring those that are missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::cli::Family;
use crate::place::on_path;
use crate::place::process::{Runner, Stop};

/// A peer, found or not.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    #[serde(skip)]
    pub(crate) family: Family,
    /// Its name for people.
    pub(crate) name: &'static str,
    /// What it says of itself.
    pub(crate) version: Option<String>,
    /// The program that starts it.
    pub(crate) path: Option<PathBuf>,
    /// The compiler of an MPI.
    #[serde(skip)]
    pub(crate) compiler: Option<PathBuf>,
    /// Why it cannot be measured, and what to do.
    pub(crate) missing: Option<String>,
}

/// A program that tells its version does so within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// An MPI's programs, by the names under which they may be there: Debian's own, which can stand side by side, and the
/// common ones, which may belong to any MPI.
struct Mpi {
    family: Family,
    name: &'static str,
    launchers: &'static [&'static str],
    /// A word that its launcher says of itself.
    word: &'static str,
    compilers: &'static [&'static str],
    /// A word in the line that its compiler would run.
    compiles: &'static str,
    packages: [&'static str; 2],
}

const MPIS: [Mpi; 2] = [
    Mpi {
        family: Family::OpenMpi,
        name: "Open MPI",
        launchers: &["mpirun.openmpi", "mpirun"],
        word: "Open",
        compilers: &["mpicc.openmpi", "mpicc"],
        compiles: "openmpi",
        packages: ["openmpi-bin", "libopenmpi-dev"],
    },
    Mpi {
        family: Family::Mpich,
        name: "MPICH",
        launchers: &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
        word: "HYDRA",
        compilers: &["mpicc.mpich", "mpicc"],
        compiles: "mpich",
        packages: ["mpich", "libmpich-dev"],
    },
];

/// Looks for all of them.
pub(crate) fn peers(runner: &Runner, osu: Option<&Path>) -> Result<Vec<Peer>, Stop> {
    let mut peers = Vec::new();
    for mpi in &MPIS {
        peers.push(find_mpi(runner, mpi)?);
    }
    let ucx = Plain {
        family: Family::Ucx,
        name: "UCX",
        program: "ucx_perftest",
        asked: &["ucx_info", "-v"],
        package: "ucx-utils",
    };
    let libfabric = Plain {
        family: Family::Libfabric,
        name: "libfabric",
        program: "fi_pingpong",
        asked: &["fi_info", "--version"],
        package: "libfabric-bin",
    };
    peers.push(ucx.find(runner)?);
    peers.push(libfabric.find(runner)?);
    peers.extend(osu.map(find_osu));
    Ok(peers)
}

/// A peer that is one program.
struct Plain {
    family: Family,
    name: &'static str,
    program: &'static str,
    /// What tells the version.
    asked: &'static [&'static str],
    package: &'static str,
}

impl Plain {
    fn find(&self, runner: &Runner) -> Result<Peer, Stop> {
        let path = on_path(self.program);
        let version = match &path {
            Some(_) => said(runner, Path::new(self.asked[0]), &self.asked[1..])?,
            None => None,
        };
        let missing = path.is_none().then(|| {
            format!(
                "{} is not on the PATH: apt-get install {}",
                self.program, self.package
            )
        });
        Ok(Peer {
            family: self.family,
            name: self.name,
            version: version.as_deref().and_then(number),
            path,
            compiler: None,
            missing,
        })
    }
}

fn find_mpi(runner: &Runner, mpi: &Mpi) -> Result<Peer, Stop> {
    let mut launcher = None;
    for path in mpi.launchers.iter().filter_map(|name| on_path(name)) {
        let text = said(runner, &path, &["--version"])?.unwrap_or_default();
        if text.contains(mpi.word) {
            launcher = Some((path, number(&text)));
            break;
        }
    }
    let mut compiler = None;
    for path in mpi.compilers.iter().filter_map(|name| on_path(name)) {
        let line = said(runner, &path, &["-show"])?.unwrap_or_default();
        if line.contains(mpi.compiles) {
            compiler = Some(path);
            break;
        }
    }
    let [runs, develops] = mpi.packages;
    let missing = match (&launcher, &compiler) {
        (Some(_), Some(_)) => None,
        (None, _) => Some(format!(
            "{} is not on the PATH: apt-get install {runs} {develops}",
            mpi.launchers[0]
        )),
        (Some(_), None) => Some(format!(
            "{}, which compiles the benchmark, is not on the PATH: apt-get install {develops}",
            mpi.compilers[0]
        )),
    };
    let (path, version) = launcher.unzip();
    Ok(Peer {
        family: mpi.family,
        name: mpi.name,
        version: version.flatten(),
        path,
        compiler,
        missing,
    })
}

/// The folder below `osu` that has its benchmarks of two processes.
fn find_osu(osu: &Path) -> Peer {
    const DEEP: usize = 6;
    let path = folder_with(osu, "osu_latency", DEEP);
    let missing = path.is_none().then(|| {
        format!(
            "no osu_latency below `{}`: name the folder where they were built",
            osu.display()
        )
    });
    Peer {
        family: Family::Osu,
        name: "OSU",
        version: None,
        path,
        compiler: None,
        missing,
    }
}

fn folder_with(folder: &Path, program: &str, deep: usize) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(folder).ok()?;
    if folder.join(program).is_file() {
        return Some(folder);
    }
    if deep == 0 {
        return None;
    }
    let mut inner: Vec<PathBuf> = std::fs::read_dir(&folder)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    inner.sort();
    inner
        .into_iter()
        .find_map(|folder| folder_with(&folder, program, deep - 1))
}

/// What a program says when it is asked of itself; nothing when it cannot.
fn said(runner: &Runner, program: &Path, arguments: &[&str]) -> Result<Option<String>, Stop> {
    let mut command = Command::new(program);
    command.args(arguments);
    match runner.run(&program.to_string_lossy(), command, PATIENCE) {
        Ok(ended) => Ok(Some(ended.out + &ended.err)),
        Err(Stop::Failed(_)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// The first version number of a text: digits with a point between them.
fn number(text: &str) -> Option<String> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '-' | '('));
    let mut words = words.map(|word| word.trim_start_matches('v').trim_end_matches(['.', ',']));
    let plain = |word: &&str| {
        let mut parts = word.split('.');
        let first = parts.next().is_some_and(all_digits);
        let mut more = parts.peekable();
        first && more.peek().is_some() && more.all(|part| part.starts_with(|c: char| c.is_ascii_digit()))
    };
    words.find(plain).map(str::to_owned)
}

fn all_digits(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            (
                "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/",
                "4.1.4",
            ),
            (
                "HYDRA build details:\n    Version:                                 4.0.2\n",
                "4.0.2",
            ),
            (
                "# Version 1.13.1\n# Git branch '<unknown>', revision 0000000\n",
                "1.13.1",
            ),
            (
                "fi_info: 1.17.0\nlibfabric: 1.17.0\nlibfabric api: 1.17\n",
                "1.17.0",
            ),
            ("prog v5.0.3rc1, built", "5.0.3rc1"),
        ] {
            assert_eq!(number(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(number("no number. at 3 all"), None);
    }

    #[test]
    fn a_folder_of_benchmarks_is_found_where_it_was_built() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("libexec/osu/mpi/pt2pt");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(
            find_osu(root.path())
                .missing
                .unwrap()
                .contains("no osu_latency below")
        );
        std::fs::write(folder.join("osu_latency"), "").unwrap();
        let found = find_osu(root.path());
        assert_eq!(found.path, Some(std::fs::canonicalize(&folder).unwrap()));
    }
}
