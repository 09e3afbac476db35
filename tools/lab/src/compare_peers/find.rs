//! Which peers are here: their programs by name on the PATH, their versions by calling them, and the Debian
//! packages that bring those that are missing.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use doorbell_tools::path::on_path;
use doorbell_tools::process::{Runner, Stop};
use serde::Serialize;

use crate::compare_peers::args::Family;
use crate::place::without_settings;

/// A peer, found or not.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    #[serde(skip)]
    pub(crate) family: Family,
    /// Its name for people.
    pub(crate) name: &'static str,
    /// The version that it prints.
    pub(crate) version: Option<String>,
    /// The program that starts it.
    pub(crate) path: Option<PathBuf>,
    /// The compiler of an MPI.
    #[serde(skip)]
    pub(crate) compiler: Option<PathBuf>,
    /// Whether it is an MPI over libfabric.
    #[serde(skip)]
    pub(crate) over_libfabric: bool,
    /// The benchmark that its compiler built.
    #[serde(skip)]
    pub(crate) built: Built,
    /// Why it cannot be measured, and what to do.
    pub(crate) missing: Option<String>,
}

/// What is found out about an MPI once, for all loads and ways.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The benchmark that its compiler built, or why there is none.
    pub(crate) program: OnceCell<Result<PathBuf, String>>,
    /// The name and version that its library reports.
    pub(crate) library: OnceCell<String>,
}

/// All ways of one MPI have one.
pub(crate) type Built = Rc<Known>;

/// A program that prints its version does so within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// An MPI's programs, by the names under which they may be there: Debian's own, which can be installed side
/// by side, and the common ones, which may belong to any MPI.
struct Mpi {
    family: Family,
    name: &'static str,
    launchers: &'static [&'static str],
    /// A word that its launcher prints about itself.
    word: &'static str,
    compilers: &'static [&'static str],
    /// An option of its compiler, and a word of its output: the path where it was installed is no proof.
    asked: &'static str,
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
        asked: "--showme:version",
        compiles: "Open MPI",
        packages: ["openmpi-bin", "libopenmpi-dev"],
    },
    Mpi {
        family: Family::Mpich,
        name: "MPICH",
        launchers: &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
        word: "HYDRA",
        compilers: &["mpicc.mpich", "mpicc"],
        asked: "-v",
        compiles: "MPICH version",
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
    if let Some(osu) = osu {
        peers.push(find_osu(runner, osu)?);
    }
    Ok(peers)
}

/// A peer that is one program.
struct Plain {
    family: Family,
    name: &'static str,
    program: &'static str,
    /// The arguments that print the version.
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
            over_libfabric: false,
            built: Built::default(),
            missing,
        })
    }
}

fn find_mpi(runner: &Runner, mpi: &Mpi) -> Result<Peer, Stop> {
    let (mut launcher, mut over_libfabric) = (None, false);
    for path in mpi.launchers.iter().filter_map(|name| on_path(name)) {
        let text = said(runner, &path, &["--version"])?.unwrap_or_default();
        if text.contains(mpi.word) {
            // Open MPI reaches libfabric by a module, and MPICH is built for it or not.
            over_libfabric = mpi.family == Family::OpenMpi || has_libfabric(&text);
            launcher = Some((path, number(&text)));
            break;
        }
    }
    let mut compiler = None;
    for path in mpi.compilers.iter().filter_map(|name| on_path(name)) {
        let line = said(runner, &path, &[mpi.asked])?.unwrap_or_default();
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
        over_libfabric,
        built: Built::default(),
        missing,
    })
}

/// The folder below `osu` that has its benchmarks of two processes.
fn find_osu(runner: &Runner, osu: &Path) -> Result<Peer, Stop> {
    let found = folder_with(osu, "osu_latency", || runner.check())?;
    let missing = found.as_ref().err().cloned();
    let path = found.ok();
    Ok(Peer {
        family: Family::Osu,
        name: "OSU",
        version: None,
        path,
        compiler: None,
        over_libfabric: false,
        built: Built::default(),
        missing,
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

/// The folders in a folder, by name; links are not followed.
fn inner(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut inner: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    inner.sort();
    Ok(inner)
}

/// Returns what a program prints with these arguments; nothing when it cannot be run.
fn said(runner: &Runner, program: &Path, arguments: &[&str]) -> Result<Option<String>, Stop> {
    let mut command = Command::new(program);
    command.args(arguments);
    without_settings(&mut command);
    match runner.run(&program.to_string_lossy(), command, PATIENCE) {
        Ok(ended) => Ok(Some(ended.out + &ended.err)),
        Err(Stop::Failed(_)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

/// Whether MPICH was configured with libfabric: `--with-device=ch4:ucx,ofi`, or `ch4` alone.
fn has_libfabric(launcher: &str) -> bool {
    let words = launcher.split(|c: char| c.is_whitespace() || c == '\'');
    let device = words
        .filter_map(|word| word.strip_prefix("--with-device="))
        .next();
    device.is_some_and(|device| match device.split_once(':') {
        Some((_, modules)) => modules.split(',').any(|module| module == "ofi"),
        None => device == "ch4",
    })
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
    fn an_mpich_over_libfabric_is_told_by_its_configuration() {
        let of = |device: &str| {
            has_libfabric(&format!(
                "Configure options: '--disable-x' '--with-device={device}'"
            ))
        };
        let found = ["ch4:ofi", "ch4:ucx,ofi", "ch4", "ch4:ucx", "ch3"].map(of);
        assert_eq!(found, [true, true, true, false, false]);
        assert!(!has_libfabric("HYDRA build details"));
    }

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
