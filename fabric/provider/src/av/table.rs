//! The entries of one address vector, and the way back from a peer to its entry.
//!
//! ```text
//!   fi_addr_t ──► routes[at]: rank, endpoint ──► send            eight bytes, all that a send looks at
//!                 entries[at]: address, next of the same member
//!   rank ──► firsts[rank] ──┐
//!   member ──► heads ───────┴─► the first of the member's entries
//! ```
//!
//! An entry takes no more than 160 bytes, and none of its peer's state before the first operation.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

/// The rank of an entry that no operation has used yet.
const UNUSED: u32 = u32::MAX;
/// The rank of an entry that was removed.
const REMOVED: u32 = u32::MAX - 1;
/// The number that stands for no entry.
const NONE: u32 = u32::MAX;
/// Removed numbers that are kept back before the oldest is given out again: unread completions may name them.
const KEPT_BACK: usize = 1024;
/// The most entries.
const MOST: usize = NONE as usize;

/// The way of messages to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    rank: u32,
    pub(crate) endpoint: u8,
}

impl Way {
    /// Returns the number of the peer; none before the first operation.
    #[inline(always)]
    pub(crate) fn rank(self) -> Option<u32> {
        (self.rank < REMOVED).then_some(self.rank)
    }
}

/// What has changed when the rank of a member was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Learned {
    /// Whether the member has entries.
    pub(crate) any: bool,
    /// The rank that they had before, if it was another one.
    pub(crate) before: Option<u32>,
}

#[derive(Clone, Debug)]
struct Entry<A> {
    address: A,
    next: u32,
}

/// The entries of one address vector.
#[derive(Debug)]
pub(crate) struct AddressTable<A> {
    routes: Vec<Way>,
    entries: Vec<Entry<A>>,
    /// The first entry of each member, by a hash of its identity.
    heads: HashMap<u64, u32>,
    /// The first entry of the member with each rank.
    firsts: Vec<u32>,
    free: VecDeque<u32>,
    used: usize,
}

impl<A: Copy> AddressTable<A> {
    /// Makes a table with room for `room` entries; more are taken too.
    pub(crate) fn new(room: usize) -> Self {
        let mut table = Self {
            routes: Vec::new(),
            entries: Vec::new(),
            heads: HashMap::new(),
            firsts: Vec::new(),
            free: VecDeque::new(),
            used: 0,
        };
        table.reserve(room);
        table
    }

    /// Makes room for `more` entries. A table does not double: most are filled by few calls.
    pub(crate) fn reserve(&mut self, more: usize) {
        if self.routes.capacity() - self.routes.len() < more {
            let more = more.max(self.routes.len() / 4);
            self.routes.reserve_exact(more);
            self.entries.reserve_exact(more);
        }
    }

    /// Adds an entry and returns its number; `member` is a hash of the identity of the address's member. No
    /// number is left for more than 2^32 − 1.
    pub(crate) fn insert(&mut self, address: A, endpoint: u8, member: u64) -> Option<u64> {
        let way = Way {
            rank: UNUSED,
            endpoint,
        };
        let entry = Entry { address, next: NONE };
        let at = if self.free.len() > KEPT_BACK {
            let at = self.free.pop_front()?;
            self.routes[at as usize] = way;
            self.entries[at as usize] = entry;
            at
        } else {
            if self.routes.len() >= MOST {
                return None;
            }
            self.reserve(1);
            self.routes.push(way);
            self.entries.push(entry);
            (self.routes.len() - 1) as u32
        };
        self.append(at, member);
        self.used += 1;
        Some(u64::from(at))
    }

    /// Adds an entry at the end of its member's chain: the first that was inserted stays first.
    fn append(&mut self, at: u32, member: u64) {
        let mut last = match self.heads.entry(member) {
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(at);
                return;
            }
            std::collections::hash_map::Entry::Occupied(head) => *head.get(),
        };
        while self.entries[last as usize].next != NONE {
            last = self.entries[last as usize].next;
        }
        self.entries[last as usize].next = at;
    }

    /// Removes an entry, and returns whether it was there. `member` is as at its insertion.
    pub(crate) fn remove(&mut self, number: u64, member: impl FnOnce(&A) -> u64) -> bool {
        let Some(address) = self.get(number) else {
            return false;
        };
        let (at, member) = (number as u32, member(address));
        self.unchain(at, member);
        if let Some(rank) = self.routes[at as usize].rank() {
            // The next message of the peer finds its first entry again.
            if let Some(first) = self.firsts.get_mut(rank as usize) {
                *first = NONE;
            }
        }
        self.routes[at as usize].rank = REMOVED;
        self.free.push_back(at);
        self.used -= 1;
        true
    }

    fn unchain(&mut self, at: u32, member: u64) {
        let next = self.entries[at as usize].next;
        let Some(head) = self.heads.get_mut(&member) else {
            return;
        };
        if *head != at {
            let mut before = *head;
            while self.entries[before as usize].next != at {
                before = self.entries[before as usize].next;
                if before == NONE {
                    return;
                }
            }
            self.entries[before as usize].next = next;
        } else if next == NONE {
            self.heads.remove(&member);
        } else {
            *head = next;
        }
    }

    /// Returns the address of an entry.
    pub(crate) fn get(&self, number: u64) -> Option<&A> {
        let at = usize::try_from(number).ok()?;
        let way = self.routes.get(at)?;
        (way.rank != REMOVED).then(|| &self.entries[at].address)
    }

    /// Returns the way of messages to an entry.
    #[inline(always)]
    pub(crate) fn way(&self, number: u64) -> Option<Way> {
        let way = *self.routes.get(usize::try_from(number).ok()?)?;
        (way.rank != REMOVED).then_some(way)
    }

    /// Notes the rank of a member's peer, for those of its entries that `is_same` accepts. Returns whether
    /// there are any, and the rank that they had before.
    pub(crate) fn learn(&mut self, member: u64, rank: u32, is_same: impl Fn(&A) -> bool) -> Learned {
        let mut at = self.heads.get(&member).copied().unwrap_or(NONE);
        let (mut first, mut before) = (NONE, None);
        while at != NONE {
            let entry = &self.entries[at as usize];
            if is_same(&entry.address) {
                let way = &mut self.routes[at as usize];
                before = way.rank().filter(|before| *before != rank).or(before);
                way.rank = rank;
                first = if first == NONE { at } else { first };
            }
            at = entry.next;
        }
        if let Some(before) = before {
            // That number may become another peer's.
            self.firsts[before as usize] = NONE;
        }
        if first != NONE {
            let place = rank as usize;
            if self.firsts.len() <= place {
                self.firsts.resize(place + 1, NONE);
            }
            self.firsts[place] = first;
        }
        Learned {
            any: first != NONE,
            before,
        }
    }

    /// Whether a member has an entry that `is_same` accepts.
    pub(crate) fn has(&self, member: u64, is_same: impl Fn(&A) -> bool) -> bool {
        let mut at = self.heads.get(&member).copied().unwrap_or(NONE);
        while at != NONE {
            let entry = &self.entries[at as usize];
            if is_same(&entry.address) {
                return true;
            }
            at = entry.next;
        }
        false
    }

    /// Returns the ranks that entries lead to, each as often as it has entries.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = u32> {
        self.routes.iter().filter_map(|way| way.rank())
    }

    /// Returns the number of a peer's endpoint: of its entries, the one that was inserted first.
    #[inline]
    pub(crate) fn find(&self, rank: u32, endpoint: u8) -> Option<u64> {
        let mut at = *self.firsts.get(rank as usize)?;
        while at != NONE {
            let way = self.routes[at as usize];
            if way.rank == rank && way.endpoint == endpoint {
                return Some(u64::from(at));
            }
            at = self.entries[at as usize].next;
        }
        None
    }

    /// Whether messages of this peer have found entries already.
    #[inline]
    pub(crate) fn knows(&self, rank: u32) -> bool {
        self.firsts.get(rank as usize).is_some_and(|first| *first != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::address::Name;

    const LENGTH: usize = size_of::<Name>();
    type Bytes = [u8; LENGTH];

    impl<A: Copy> AddressTable<A> {
        /// Returns the number of entries.
        fn len(&self) -> usize {
            self.used
        }

        /// Returns the bytes that the table takes.
        fn bytes(&self) -> usize {
            self.routes.capacity() * size_of::<Way>()
                + self.entries.capacity() * size_of::<Entry<A>>()
                + self.heads.capacity() * 8 / 7 * (size_of::<(u64, u32)>() + 1)
                + self.firsts.capacity() * size_of::<u32>()
                + self.free.capacity() * size_of::<u32>()
        }
    }

    /// The address of an endpoint of a member, and the hash of the member.
    fn address(member: u8, endpoint: u8) -> (Bytes, u8, u64) {
        let mut bytes = [member; LENGTH];
        bytes[4] = endpoint;
        (bytes, endpoint, u64::from(member) * 1_000_003)
    }

    fn insert(table: &mut AddressTable<Bytes>, member: u8, endpoint: u8) -> u64 {
        let (bytes, endpoint, member) = address(member, endpoint);
        table.insert(bytes, endpoint, member).unwrap()
    }

    fn learn(table: &mut AddressTable<Bytes>, member: u8, rank: u32) -> Learned {
        table.learn(u64::from(member) * 1_000_003, rank, |bytes| bytes[5] == member)
    }

    #[test]
    fn entries_move_to_the_new_rank_of_a_member_that_came_back() {
        let mut table = AddressTable::new(0);
        let (first, second) = (insert(&mut table, 1, 0), insert(&mut table, 1, 3));
        let other = insert(&mut table, 2, 0);
        let none = Learned {
            any: true,
            before: None,
        };
        assert_eq!((learn(&mut table, 1, 7), learn(&mut table, 2, 8)), (none, none));
        assert_eq!(learn(&mut table, 1, 7), none);
        let moved = Learned {
            before: Some(7),
            ..none
        };
        assert_eq!(learn(&mut table, 1, 9), moved);
        assert_eq!((table.find(9, 0), table.find(9, 3)), (Some(first), Some(second)));
        assert!(!table.knows(7) && table.find(7, 0).is_none());
        assert_eq!(table.ranks().collect::<Vec<_>>(), [9, 9, 8]);
        // The old rank may be another member's.
        assert_eq!(
            learn(&mut table, 2, 7),
            Learned {
                before: Some(8),
                ..none
            }
        );
        assert_eq!((table.find(7, 0), table.find(9, 0)), (Some(other), Some(first)));
        assert!(!learn(&mut table, 3, 4).any && !table.has(3_000_009, |_| true));
        assert!(table.has(1_000_003, |bytes| bytes[5] == 1) && !table.has(1_000_003, |_| false));
    }

    #[test]
    fn numbers_follow_each_other_and_duplicates_have_their_own() {
        let mut table = AddressTable::new(2);
        assert_eq!(insert(&mut table, 1, 0), 0);
        assert_eq!(insert(&mut table, 2, 5), 1);
        assert_eq!(insert(&mut table, 1, 0), 2);
        assert_eq!(
            table.way(1).map(|way| (way.rank(), way.endpoint)),
            Some((None, 5))
        );
        assert_eq!(table.way(3), None);
        assert_eq!(table.way(u64::MAX), None);
        learn(&mut table, 1, 7);
        assert_eq!(table.way(0).and_then(Way::rank), Some(7));
        assert_eq!(table.way(2).and_then(Way::rank), Some(7));
        assert_eq!(table.way(1).and_then(Way::rank), None);
    }

    #[test]
    fn a_peer_is_found_by_its_rank_and_endpoint_and_the_first_entry_counts() {
        let mut table = AddressTable::new(0);
        let (first, other, second) = (
            insert(&mut table, 1, 0),
            insert(&mut table, 1, 3),
            insert(&mut table, 1, 0),
        );
        assert_eq!(table.find(9, 0), None);
        learn(&mut table, 1, 9);
        assert_eq!((table.find(9, 0), table.find(9, 3)), (Some(first), Some(other)));
        assert_eq!(table.find(9, 4), None);
        assert!(table.remove(first, |_| 1_000_003));
        assert!(!table.knows(9));
        learn(&mut table, 1, 9);
        assert_eq!(table.find(9, 0), Some(second));
    }

    #[test]
    fn a_removed_number_is_wrong_and_not_given_out_again_at_once() {
        let mut table = AddressTable::new(0);
        let number = insert(&mut table, 1, 0);
        assert!(table.remove(number, |_| 1_000_003));
        assert!(!table.remove(number, |_| 1_000_003));
        assert_eq!((table.get(number), table.way(number)), (None, None));
        assert_ne!(insert(&mut table, 2, 0), number);
    }

    #[test]
    fn joins_and_leaves_do_not_make_it_grow() {
        let mut table = AddressTable::new(0);
        let mut bytes = 0;
        for round in 0..10_000_u32 {
            let number = insert(&mut table, (round % 200) as u8, 0);
            assert!(table.remove(number, |address| u64::from(address[5]) * 1_000_003));
            if round == 2_000 {
                bytes = table.bytes();
            }
        }
        assert_eq!((table.len(), table.bytes()), (0, bytes));
    }

    #[test]
    fn an_entry_takes_at_most_160_bytes_however_it_comes() {
        for at_once in [1, 16, 4096] {
            let mut table = AddressTable::new(0);
            for start in (0..4096_u64).step_by(at_once) {
                table.reserve(at_once);
                for at in start..start + at_once as u64 {
                    let mut bytes = [0; LENGTH];
                    bytes[..8].copy_from_slice(&at.to_le_bytes());
                    table
                        .insert(bytes, 0, at.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                        .unwrap();
                }
            }
            assert!(table.bytes() <= 4096 * 160, "{} bytes", table.bytes());
        }
    }
}
