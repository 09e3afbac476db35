//! Finds out which folder is which client, by a file that no other tree has.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::over::Over;
use crate::error::Error;

/// A program of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    /// The tests of Sandia's Portals 4.
    Reference,
    /// Open MPI's mtl, osc and coll of that name.
    OpenMpi,
    /// Sandia's implementation of OpenSHMEM.
    OpenShmem,
    /// GASNet 1, portals4-conduit.
    Gasnet,
    /// MPI for Python, over the Open MPI that was built before it.
    Mpi4py,
}

impl Client {
    /// All clients, in the order in which they are built.
    pub(crate) const ALL: [Self; 5] = [
        Self::Reference,
        Self::OpenMpi,
        Self::OpenShmem,
        Self::Gasnet,
        Self::Mpi4py,
    ];

    /// Returns the name of the client, as on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::OpenMpi => "openmpi",
            Self::OpenShmem => "openshmem",
            Self::Gasnet => "gasnet",
            Self::Mpi4py => "mpi4py",
        }
    }

    /// Returns a file that its tree has, and no other: the transport for what is below it.
    pub(crate) fn sign(self, over: Over) -> &'static str {
        match (self, over) {
            (Self::Reference, _) => "test/basic/testing.h",
            (Self::OpenMpi, _) => "ompi/mca/mtl/portals4/mtl_portals4.c",
            (Self::OpenShmem, Over::Portals) => "src/transport_portals4.c",
            (Self::OpenShmem, Over::Libfabric) => "src/transport_ofi.c",
            (Self::Gasnet, _) => "portals4-conduit/gasnet_portals4.c",
            (Self::Mpi4py, _) => "src/mpi4py/MPI.pyx",
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|client| client.name() == word);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no client {word:?}; the clients are: {names}")
        })
    }
}

/// Finds the tree of each client in a folder, or the one that the folder is; of several the last by name,
/// which is mostly the newest.
pub(crate) fn find(from: &Path, over: Over) -> Result<BTreeMap<Client, PathBuf>, Error> {
    let mut folders = vec![from.to_path_buf()];
    let entries = std::fs::read_dir(from).map_err(Error::file("read", from))?;
    folders.extend(entries.flatten().map(|entry| entry.path()));
    folders.sort();
    let mut trees = BTreeMap::new();
    for folder in folders {
        for client in Client::ALL {
            if folder.join(client.sign(over)).is_file() {
                trees.insert(client, folder.clone());
            }
        }
    }
    Ok(trees)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_known_by_its_sign_whatever_it_is_called() {
        let from = tempfile::tempdir().unwrap();
        for (folder, client) in [
            ("a", Client::OpenMpi),
            ("b", Client::OpenMpi),
            ("other", Client::Gasnet),
        ] {
            let sign = from.path().join(folder).join(client.sign(Over::Portals));
            std::fs::create_dir_all(sign.parent().unwrap()).unwrap();
            std::fs::write(sign, "").unwrap();
        }
        let trees = find(from.path(), Over::Portals).unwrap();
        let names: Vec<_> = trees
            .iter()
            .map(|(client, tree)| (*client, tree.file_name().unwrap().to_owned()))
            .collect();
        assert_eq!(
            names,
            [(Client::OpenMpi, "b".into()), (Client::Gasnet, "other".into())]
        );
        // The folder itself may be the tree.
        let own = find(&from.path().join("other"), Over::Portals).unwrap();
        assert_eq!(own.keys().copied().collect::<Vec<_>>(), [Client::Gasnet]);
        assert!(find(&from.path().join("missing"), Over::Portals).is_err());
    }

    #[test]
    fn clients_have_names() {
        for client in Client::ALL {
            assert_eq!(client.name().parse(), Ok(client));
        }
        assert!("mpich".parse::<Client>().unwrap_err().contains("openshmem"));
    }
}
