//! Which peers are here: on the PATH, and in the folders of `--peers-from`; their versions by calling them,
//! and what brings those that are missing.
//!
//! ```text
//!   homes ─► folders of programs below DIR     programs ─► what a program prints about itself
//!   mpi, libfabric, plain ─► one peer each, on the PATH or in one home ─► all, under names that differ
//!   benchmarks ─► the folder of `--osu`
//! ```

mod benchmarks;
mod homes;
mod libfabric;
mod mpi;
mod plain;
mod programs;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};
use serde::Serialize;

pub(crate) use self::homes::Home;
use self::homes::Where;
pub(crate) use self::libfabric::FABTESTS;
use crate::compare_peers::args::Family;

/// A peer, found or not.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    #[serde(skip)]
    pub(crate) family: Family,
    /// Its name for people; with its version where there are several of one family.
    pub(crate) name: String,
    /// The version that it prints.
    pub(crate) version: Option<String>,
    /// The program that starts it.
    pub(crate) path: Option<PathBuf>,
    /// The compiler of an MPI.
    #[serde(skip)]
    pub(crate) compiler: Option<PathBuf>,
    /// Where it is installed, if it is one of `--peers-from`.
    #[serde(skip)]
    pub(crate) home: Option<Home>,
    /// What carries messages below it: the modules that MPICH is built with, the providers that libfabric
    /// has.
    #[serde(skip)]
    pub(crate) carriers: Vec<String>,
    /// The benchmark that its compiler built.
    #[serde(skip)]
    pub(crate) built: Built,
    /// Why it cannot be measured, and what to do.
    pub(crate) missing: Option<String>,
}

impl Peer {
    /// A peer of which nothing is known yet.
    fn new(family: Family, name: &str, at: Where<'_>) -> Self {
        Self {
            family,
            name: name.to_owned(),
            version: None,
            path: None,
            compiler: None,
            home: at.home().cloned(),
            carriers: Vec::new(),
            built: Built::default(),
            missing: None,
        }
    }

    /// The first number of its version.
    pub(crate) fn major(&self) -> Option<u32> {
        self.version.as_deref()?.split('.').next()?.parse().ok()
    }

    /// Whether this carries messages below it.
    pub(crate) fn has_carrier(&self, name: &str) -> bool {
        self.carriers.iter().any(|carrier| carrier == name)
    }

    /// Sets the variables by which its programs and libraries find where it is installed.
    pub(crate) fn at_home(&self, command: &mut Command) {
        if let Some(home) = &self.home {
            home.set(command);
        }
    }
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

/// Looks for one kind of peer: on the PATH, or in a home, where only what is there is returned.
type Find = fn(&Runner, Where<'_>) -> Result<Option<Peer>, Stop>;

/// Every kind, in the order of the report.
const KINDS: [Find; 6] = [
    mpi::open_mpi,
    mpi::mpich,
    mpi::intel,
    plain::ucx,
    libfabric::find,
    plain::iceoryx2,
];

/// Looks for all of them: those of the folder `from` first.
pub(crate) fn peers(runner: &Runner, from: Option<&Path>, osu: Option<&Path>) -> Result<Vec<Peer>, Stop> {
    let refused = |why| Stop::Ended(ToolError::Usage(why));
    let homes = from.map(homes::below).transpose().map_err(refused)?;
    let homes = homes.unwrap_or_default();
    let mut peers = Vec::new();
    for find in KINDS {
        let mut of_kind = Vec::new();
        let places = homes.iter().map(Where::Home).chain([Where::Path]);
        for place in places {
            if let Some(peer) = find(runner, place)? {
                add(&mut of_kind, peer);
            }
        }
        tell_apart(&mut of_kind);
        peers.extend(of_kind);
    }
    if let Some(osu) = osu {
        peers.push(benchmarks::osu(runner, osu)?);
    }
    Ok(peers)
}

/// Adds a peer, unless it is one that is there, or missing where others are not.
fn add(of_kind: &mut Vec<Peer>, peer: Peer) {
    let real = |peer: &Peer| peer.path.as_ref().and_then(|path| path.canonicalize().ok());
    let same = |known: &Peer| real(known) == real(&peer) && known.version == peer.version;
    if !of_kind.iter().any(|known| peer.missing.is_some() || same(known)) {
        of_kind.push(peer);
    }
}

/// Gives peers of one family names that differ: by their versions, else by where they are.
fn tell_apart(of_kind: &mut [Peer]) {
    if of_kind.len() < 2 {
        return;
    }
    for peer in &mut *of_kind {
        if let Some(version) = &peer.version {
            peer.name = format!("{} {version}", peer.name);
        }
    }
    let names: Vec<String> = of_kind.iter().map(|peer| peer.name.clone()).collect();
    for (at, peer) in of_kind.iter_mut().enumerate() {
        let twin = names
            .iter()
            .enumerate()
            .any(|(other, name)| other != at && *name == peer.name);
        if let Some(home) = peer.home.as_ref().filter(|_| twin) {
            peer.name = format!("{} of {}", peer.name, home.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(version: &str, home: Option<&str>, path: &str) -> Peer {
        Peer {
            version: Some(version.to_owned()),
            path: Some(PathBuf::from(path)),
            home: home.map(|prefix| Home::at(Path::new(prefix))),
            ..Peer::new(Family::OpenMpi, "Open MPI", Where::Path)
        }
    }

    #[test]
    fn several_of_one_family_have_names_that_differ() {
        let names = |mut peers: Vec<Peer>| -> Vec<String> {
            tell_apart(&mut peers);
            peers.into_iter().map(|peer| peer.name).collect()
        };
        assert_eq!(names(vec![peer("4.1.4", None, "/usr/bin/mpirun")]), ["Open MPI"]);
        let two = vec![
            peer("5.0.11", Some("/d/a"), "/d/a/bin/mpirun"),
            peer("4.1.4", None, "/usr/bin/mpirun"),
        ];
        assert_eq!(names(two), ["Open MPI 5.0.11", "Open MPI 4.1.4"]);
        let twins = vec![
            peer("5.0.11", Some("/d/a"), "/d/a/bin/mpirun"),
            peer("5.0.11", Some("/d/b"), "/d/b/bin/mpirun"),
        ];
        assert_eq!(names(twins), ["Open MPI 5.0.11 of a", "Open MPI 5.0.11 of b"]);
    }

    #[test]
    fn a_peer_is_added_where_it_is_another_one() {
        let mut peers = vec![peer("5.0.11", Some("/usr"), "/bin/sh")];
        add(&mut peers, peer("5.0.11", None, "/bin/sh"));
        assert_eq!(peers.len(), 1);
        let missing = Peer {
            missing: Some("not here".to_owned()),
            ..peer("4.1.4", None, "/nowhere")
        };
        add(&mut peers, missing.clone());
        assert_eq!(peers.len(), 1);
        // One program over the libraries of two releases is two.
        add(&mut peers, peer("4.1.4", None, "/bin/sh"));
        assert_eq!(peers.len(), 2);
        let mut none = Vec::new();
        add(&mut none, missing);
        assert_eq!(none.len(), 1);
    }

    #[test]
    fn the_first_number_of_a_version_decides_which_options_there_are() {
        assert_eq!(peer("5.0.11", None, "/x").major(), Some(5));
        assert_eq!(peer("", None, "/x").major(), None);
    }
}
