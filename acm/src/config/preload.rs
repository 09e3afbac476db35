//! Preloaded entries from files: the GIDs of addresses, and the paths to them.
//!
//! With `route_prot sa`, the resolver gets routes from here as from a subnet administrator.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path;

use super::hosts::{HostEntry, read_hosts};
use super::lines::{Warnings, open_plain};
use super::options::Options;
use super::routes::read_routes;
use super::values::{AddressPreload, RoutePreload};
use crate::address::{Address, Gid};
use crate::endpoint::Endpoint;
use crate::path::Path;
use crate::sa::{Administration, Answer, NoPath};

/// Addresses and paths from files.
#[derive(Clone, Debug, Default)]
pub struct Preload {
    hosts: Vec<HostEntry>,
    by_address: HashMap<Address, Gid>,
    paths: Vec<Path>,
    /// Index by source and destination GID.
    by_gid: HashMap<(Gid, Gid), usize>,
    by_lid: HashMap<(Gid, u16), usize>,
}

impl Preload {
    /// Creates a table of these entries.
    #[must_use]
    pub fn new(hosts: Vec<HostEntry>, paths: Vec<Path>) -> Self {
        let by_address = hosts
            .iter()
            .map(|host| (host.address.clone(), host.gid))
            .collect();
        let each = || paths.iter().enumerate();
        let by_gid = each().map(|(at, path)| ((path.sgid, path.dgid), at)).collect();
        let lids = each().filter(|(_, path)| path.dlid != 0);
        let by_lid = lids.map(|(at, path)| ((path.sgid, path.dlid), at)).collect();
        Self {
            hosts,
            by_address,
            paths,
            by_gid,
            by_lid,
        }
    }

    /// Reads the files that the options name, and keeps the paths that start at one of these endpoints.
    ///
    /// A file that cannot be read yields a warning; the rest is used.
    #[must_use]
    pub fn read(options: &Options, endpoints: &[Endpoint], warnings: &mut Warnings) -> Self {
        let hosts = match options.addr_preload {
            AddressPreload::None => Vec::new(),
            AddressPreload::AcmHosts => open(&options.addr_data_file, warnings, |from, file, warnings| {
                read_hosts(from, file, warnings)
            }),
        };
        let paths = match options.route_preload {
            RoutePreload::None => Vec::new(),
            RoutePreload::OpenSmFullV1 => open(&options.route_data_file, warnings, |from, file, warnings| {
                read_routes(from, file, endpoints, warnings)
            }),
        };
        Self::new(hosts, paths)
    }

    /// Returns all addresses, in the order of the file.
    #[must_use]
    pub fn hosts(&self) -> &[HostEntry] {
        &self.hosts
    }

    /// Returns all paths.
    #[must_use]
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Returns the GID of an address.
    #[must_use]
    pub fn gid_of(&self, address: &Address) -> Option<Gid> {
        self.by_address.get(address).copied()
    }

    /// Returns the path from a GID of this host to an address: a GID or LID directly, other addresses by
    /// their GID.
    #[must_use]
    pub fn path_to(&self, sgid: Gid, to: &Address) -> Option<&Path> {
        let at = match to {
            Address::Lid(lid) => self.by_lid.get(&(sgid, *lid)),
            Address::Gid(gid) => self.by_gid.get(&(sgid, *gid)),
            other => self.by_gid.get(&(sgid, self.gid_of(other)?)),
        };
        at.map(|at| &self.paths[*at])
    }

    /// Returns the path that answers a query to the subnet administrator; fields that are zero or `None` are
    /// open.
    ///
    /// A query without a destination has no answer here.
    #[must_use]
    pub fn answer(&self, question: &Path) -> Option<&Path> {
        // Of a port with several LIDs, the one queried.
        let to = match (question.dlid, question.dgid.is_none()) {
            (0, true) => return None,
            (0, false) => Address::Gid(question.dgid),
            (lid, _) => Address::Lid(lid),
        };
        if !question.sgid.is_none() {
            return self
                .path_to(question.sgid, &to)
                .filter(|path| fits(question, path));
        }
        self.paths.iter().find(|path| fits(question, path))
    }
}

/// Whether a path matches everything that a query gives.
fn fits(question: &Path, path: &Path) -> bool {
    let is = |asked: u16, own: u16| asked == 0 || asked == own;
    is(question.dlid, path.dlid)
        && is(question.slid, path.slid)
        && is(question.pkey & 0x7fff, path.pkey & 0x7fff)
        && is(question.sl.into(), path.sl.into())
        && (question.sgid.is_none() || question.sgid == path.sgid)
        && (question.dgid.is_none() || question.dgid == path.dgid)
        && question.mtu.is_none_or(|mtu| path.mtu == Some(mtu))
        && question.rate.is_none_or(|rate| path.rate == Some(rate))
}

fn open<T>(
    file: &path::Path,
    warnings: &mut Warnings,
    read: impl FnOnce(BufReader<File>, &path::Path, &mut Warnings) -> io::Result<Vec<T>>,
) -> Vec<T> {
    let done = open_plain(file).and_then(|open| read(BufReader::new(open), file, warnings));
    done.unwrap_or_else(|error| {
        let what = format!("cannot read the file ({error}), and nothing is preloaded from it");
        warnings.push(
            &file.into(),
            0,
            what,
            "name another file, or set its preload option to none",
        );
        Vec::new()
    })
}

/// Answers like the administrator of a subnet, from the paths of a file.
impl Administration for Preload {
    fn path(&self, question: &Path) -> Answer {
        if self.paths.is_empty() {
            return Err(NoPath::NoAdministrator);
        }
        self.answer(question).cloned().ok_or(NoPath::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Name;

    fn gid(last: u8) -> Gid {
        let mut gid = Gid::NONE;
        (gid.0[0], gid.0[15]) = (0xfe, last);
        gid
    }

    fn table() -> Preload {
        let path = |to: u8| Path {
            sgid: gid(1),
            slid: 1,
            dgid: gid(to),
            dlid: to.into(),
            pkey: 0xffff,
            ..Path::default()
        };
        let name = Address::Name(Name::new("two").unwrap());
        Preload::new(
            vec![HostEntry {
                address: name,
                gid: gid(2),
            }],
            vec![path(2), path(3)],
        )
    }

    #[test]
    fn paths_are_found_by_name_gid_and_lid() {
        let table = table();
        let two = Address::Name(Name::new("TWO").unwrap());
        for to in [two, Address::Gid(gid(2)), Address::Lid(2)] {
            assert_eq!(table.path_to(gid(1), &to).map(|path| path.dlid), Some(2), "{to}");
            assert!(table.path_to(gid(9), &to).is_none());
        }
        assert!(table.path_to(gid(1), &Address::Lid(4)).is_none());
    }

    #[test]
    fn questions_are_answered_by_what_they_give() {
        let table = table();
        let query = |question: Path| table.answer(&question).map(|path| path.dlid);
        assert_eq!(
            query(Path {
                dgid: gid(3),
                ..Path::default()
            }),
            Some(3)
        );
        assert_eq!(
            query(Path {
                dlid: 2,
                sgid: gid(1),
                ..Path::default()
            }),
            Some(2)
        );
        assert_eq!(
            query(Path {
                dlid: 2,
                slid: 7,
                ..Path::default()
            }),
            None
        );
        assert_eq!(
            query(Path {
                dgid: gid(3),
                dlid: 2,
                ..Path::default()
            }),
            None
        );
        assert_eq!(
            query(Path {
                dgid: gid(3),
                pkey: 0x7fff,
                ..Path::default()
            }),
            Some(3),
            "members of either kind"
        );
        assert_eq!(query(Path::default()), None, "no destination");
    }

    #[test]
    fn a_file_that_is_not_there_is_a_warning() {
        let options = Options {
            addr_preload: AddressPreload::AcmHosts,
            addr_data_file: "/nowhere/hosts".into(),
            ..Options::default()
        };
        let mut warnings = Warnings::default();
        let table = Preload::read(&options, &[], &mut warnings);
        assert!(table.hosts().is_empty());
        let said = warnings.iter().next().unwrap().to_string();
        assert!(said.starts_with("/nowhere/hosts: cannot read the file"), "{said}");
    }

    #[test]
    fn what_the_options_say_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "one fe80::1\n").unwrap();
        let options = Options {
            addr_preload: AddressPreload::AcmHosts,
            addr_data_file: file,
            ..Options::default()
        };
        let mut warnings = Warnings::default();
        let table = Preload::read(&options, &[], &mut warnings);
        assert_eq!(
            (table.hosts().len(), table.paths().len(), warnings.is_empty()),
            (1, 0, true)
        );
    }
}
