//! The MPIs: a launcher and a compiler each, recognised by what they print about themselves.

use doorbell_tools::process::{Runner, Stop};

use super::Peer;
use super::homes::Where;
use super::programs::{number, said};
use crate::compare_peers::args::Family;

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
    /// What brings both, and what the compiler.
    brings: [&'static str; 2],
}

const OPEN_MPI: Mpi = Mpi {
    family: Family::OpenMpi,
    name: "Open MPI",
    launchers: &["mpirun.openmpi", "mpirun"],
    word: "Open",
    compilers: &["mpicc.openmpi", "mpicc"],
    asked: "--showme:version",
    compiles: "Open MPI",
    brings: [
        "apt-get install openmpi-bin libopenmpi-dev",
        "apt-get install libopenmpi-dev",
    ],
};

const MPICH: Mpi = Mpi {
    family: Family::Mpich,
    name: "MPICH",
    launchers: &["mpiexec.hydra", "mpiexec.mpich", "mpiexec"],
    word: "HYDRA",
    compilers: &["mpicc.mpich", "mpicc"],
    asked: "-v",
    compiles: "MPICH version",
    brings: [
        "apt-get install mpich libmpich-dev",
        "apt-get install libmpich-dev",
    ],
};

const FROM_WHEELS: &str = "`cargo xtask peers --into DIR` brings it, for `--peers-from DIR`";

const INTEL: Mpi = Mpi {
    family: Family::IntelMpi,
    name: "Intel MPI",
    launchers: &["mpiexec.hydra", "mpiexec"],
    word: "Intel(R) MPI",
    compilers: &["mpicc", "mpigcc"],
    asked: "-v",
    compiles: "Intel(R) MPI",
    brings: [FROM_WHEELS, FROM_WHEELS],
};

pub(super) fn open_mpi(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    find(runner, at, &OPEN_MPI)
}

pub(super) fn mpich(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    find(runner, at, &MPICH)
}

pub(super) fn intel(runner: &Runner, at: Where<'_>) -> Result<Option<Peer>, Stop> {
    find(runner, at, &INTEL)
}

fn find(runner: &Runner, at: Where<'_>, mpi: &Mpi) -> Result<Option<Peer>, Stop> {
    let mut peer = Peer::new(mpi.family, mpi.name, at);
    for path in mpi.launchers.iter().filter_map(|name| at.program(name)) {
        let text = said(runner, at, &path, &["--version"])?.unwrap_or_default();
        if text.contains(mpi.word) {
            peer.carriers = modules(mpi.family, &text);
            peer.version = number(&text);
            peer.path = Some(path);
            break;
        }
    }
    for path in mpi.compilers.iter().filter_map(|name| at.program(name)) {
        let text = said(runner, at, &path, &[mpi.asked])?.unwrap_or_default();
        if text.contains(mpi.compiles) {
            peer.compiler = Some(path);
            break;
        }
    }
    let [both, compiler] = mpi.brings;
    let place = at.words();
    peer.missing = match (&peer.path, &peer.compiler) {
        (Some(_), Some(_)) => None,
        (None, _) if at.home().is_some() => return Ok(None),
        (None, _) => Some(format!("{} is not {place}: {both}", mpi.launcher())),
        (Some(_), None) => Some(format!(
            "{}, which compiles the benchmark, is not {place}: {compiler}",
            mpi.compilers[0]
        )),
    };
    Ok(Some(peer))
}

impl Mpi {
    /// The name of its launcher, and whose it is where that is not its own.
    fn launcher(&self) -> String {
        match self.family {
            Family::IntelMpi => format!("{} of Intel MPI", self.launchers[0]),
            _ => self.launchers[0].to_owned(),
        }
    }
}

/// What an MPI can carry messages by: Open MPI reaches libfabric by a module, and MPICH is configured with
/// modules: `--with-device=ch4:ucx,ofi`, or `ch4` alone, which is `ofi`.
fn modules(family: Family, launcher: &str) -> Vec<String> {
    let named: Vec<&str> = match family {
        Family::Mpich => {
            let mut words = launcher.split(|c: char| c.is_whitespace() || c == '\'');
            let device = words.find_map(|word| word.strip_prefix("--with-device="));
            match device.map(|device| device.split_once(':').ok_or(device)) {
                Some(Ok((_, modules))) => modules.split(',').collect(),
                Some(Err("ch4")) => vec!["ofi"],
                _ => Vec::new(),
            }
        }
        _ => vec!["ofi"],
    };
    named.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_carries_mpich_is_told_by_its_configuration() {
        let of = |device: &str| {
            modules(
                Family::Mpich,
                &format!("Configure options: '--disable-x' '--with-device={device}'"),
            )
        };
        assert_eq!(of("ch4:ucx,ofi"), ["ucx", "ofi"]);
        assert_eq!(of("ch4"), ["ofi"]);
        assert_eq!(of("ch4:ucx"), ["ucx"]);
        assert!(of("ch3").is_empty() && modules(Family::Mpich, "HYDRA build details").is_empty());
        assert_eq!(modules(Family::OpenMpi, ""), ["ofi"]);
    }
}
