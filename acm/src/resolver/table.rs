//! The preloaded table: addresses and routes from files.

use std::collections::HashMap;

use super::action::Peer;
use crate::address::{Address, Gid};
use crate::path::Path;

/// Addresses with their GIDs, and paths. Its author decides how large it is.
#[derive(Clone, Debug, Default)]
pub struct Table {
    places: HashMap<Address, Gid>,
    by_gid: HashMap<Gid, Path>,
    by_lid: HashMap<u16, Path>,
}

impl Table {
    /// Creates a table; of duplicates, the last one counts.
    #[must_use]
    pub fn new(
        addresses: impl IntoIterator<Item = (Address, Gid)>,
        routes: impl IntoIterator<Item = Path>,
    ) -> Self {
        let mut table = Self {
            places: addresses
                .into_iter()
                .map(|(address, gid)| (address.canonical(), gid))
                .collect(),
            ..Self::default()
        };
        for path in routes {
            if path.dlid != 0 {
                table.by_lid.insert(path.dlid, path.clone());
            }
            if !path.dgid.is_none() {
                table.by_gid.insert(path.dgid, path);
            }
        }
        table
    }

    /// Returns the number of addresses and routes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() + self.by_gid.len().max(self.by_lid.len())
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = (&Address, Gid)> {
        self.places.iter().map(|(address, gid)| (address, *gid))
    }

    /// Returns where an address is.
    pub(super) fn place(&self, address: &Address) -> Option<Peer> {
        let gid = match address {
            Address::Gid(gid) => self.by_gid.contains_key(gid).then_some(*gid),
            Address::Lid(lid) => self.by_lid.get(lid).map(|path| path.dgid),
            address => self.places.get(address).copied(),
        }?;
        let lid = match address {
            Address::Lid(lid) => *lid,
            _ => self.by_gid.get(&gid).map_or(0, |path| path.dlid),
        };
        Some(Peer { gid, lid, qpn: 0 })
    }

    /// Returns the path to a peer.
    pub(super) fn route(&self, to: Peer) -> Option<&Path> {
        self.by_gid.get(&to.gid).or_else(|| self.by_lid.get(&to.lid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_their_routes() {
        let gid: Gid = "fe80::7".parse().unwrap();
        let node = Address::V4([10, 0, 0, 7].into());
        let path = Path {
            dgid: gid,
            dlid: 7,
            ..Path::default()
        };
        let table = Table::new([(node.clone(), gid)], [path.clone()]);
        let place = table.place(&node).unwrap();
        assert_eq!((place.gid, place.lid, table.len()), (gid, 7, 2));
        assert_eq!(table.route(place), Some(&path));
        for other in [Address::Gid(gid), Address::Lid(7)] {
            assert_eq!(table.route(table.place(&other).unwrap()), Some(&path));
        }
        assert_eq!(table.place(&Address::Lid(8)), None);
        assert!(Table::default().is_empty());
    }
}
