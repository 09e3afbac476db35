//! Messages that come in chunks, until they are whole. Rooms for them are shared by all peers, made when
//! first needed, and bounded in number: what finds no room is dropped, and comes again.
//!
//! The last room is for a message whose turn it is: what comes ahead of its turn could fill all of them, and
//! wait there for what is refused.

use doorbell_fabric::memory::SharedBytes;

use crate::pool::{Id, Pool};
use crate::seq::Seq;

/// Why there is no reassembly for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// There are as many as there may be.
    Room,
    /// The chunk contradicts earlier chunks of its message.
    Sense,
}

/// One message under reassembly.
#[derive(Debug)]
pub(crate) struct Reassembly {
    /// The number of the message's first segment: its name.
    first: Seq,
    total: u32,
    size: u16,
    got: u32,
    bytes: Box<[u8]>,
    /// The next of the same peer.
    next: Id<Self>,
}

impl Reassembly {
    fn new(longest: usize) -> Self {
        Self {
            first: Seq(0),
            total: 0,
            size: 0,
            got: 0,
            bytes: vec![0; longest].into_boxed_slice(),
            next: Id::NONE,
        }
    }

    /// Copies a chunk to its place; returns the message when that was the last one missing. Each chunk comes
    /// once.
    #[inline]
    pub(crate) fn write(&mut self, at: usize, chunk: SharedBytes<'_>) -> Option<&[u8]> {
        let copied = chunk.copy_to(0, &mut self.bytes[at..at + chunk.len()]);
        self.got += copied as u32;
        (self.got >= self.total).then_some(&self.bytes[..self.total as usize])
    }
}

/// The reassemblies of one peer: the first of a list.
#[derive(Debug)]
pub(crate) struct Partial(Id<Reassembly>);

impl Partial {
    /// No message is under reassembly.
    pub(crate) const fn new() -> Self {
        Self(Id::NONE)
    }
}

/// The reassemblies of all peers.
#[derive(Debug)]
pub(crate) struct Reassemblies {
    pool: Pool<Reassembly>,
    longest: usize,
}

impl Reassemblies {
    pub(crate) const fn new(most: usize, longest: usize) -> Self {
        Self {
            pool: Pool::new(most),
            longest,
        }
    }

    /// The reassembly of a peer's message, or a new one at the front of its list; `turn` is whether it is
    /// the message that the peer's next segment belongs to.
    #[inline]
    pub(crate) fn find(
        &mut self,
        partial: &mut Partial,
        first: Seq,
        total: u32,
        size: u16,
        turn: bool,
    ) -> Result<Id<Reassembly>, Missing> {
        let mut at = partial.0;
        while at != Id::NONE {
            let one = &self.pool[at];
            if one.first == first {
                return if one.total == total && one.size == size {
                    Ok(at)
                } else {
                    Err(Missing::Sense)
                };
            }
            at = one.next;
        }
        if !turn && self.pool.available() < 2 {
            return Err(Missing::Room);
        }
        let longest = self.longest;
        let id = self.pool.take(|| Reassembly::new(longest)).ok_or(Missing::Room)?;
        let one = &mut self.pool[id];
        (one.first, one.total, one.size, one.got, one.next) = (first, total, size, 0, partial.0);
        partial.0 = id;
        Ok(id)
    }

    /// A reassembly that [`Reassemblies::find`] returned.
    #[inline]
    pub(crate) fn get(&mut self, id: Id<Reassembly>) -> &mut Reassembly {
        &mut self.pool[id]
    }

    /// Takes one out of its peer's list, and gives its buffer back.
    #[inline]
    pub(crate) fn remove(&mut self, partial: &mut Partial, id: Id<Reassembly>) {
        let next = self.pool[id].next;
        if partial.0 == id {
            partial.0 = next;
        } else {
            let mut at = partial.0;
            while at != Id::NONE {
                let one = &mut self.pool[at];
                if one.next == id {
                    one.next = next;
                    break;
                }
                at = one.next;
            }
        }
        self.pool.give(id);
    }

    /// Removes all of a peer.
    pub(crate) fn clear(&mut self, partial: &mut Partial) {
        while partial.0 != Id::NONE {
            self.remove(partial, partial.0);
        }
    }

    /// Returns how many are under way.
    pub(crate) fn active(&self) -> usize {
        self.pool.active()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_bounded_and_come_back() {
        let mut all = Reassemblies::new(3, 100);
        let (mut one, mut two) = (Partial::new(), Partial::new());
        let a = all.find(&mut one, Seq(1), 50, 10, false).unwrap();
        let b = all.find(&mut one, Seq(2), 50, 10, false).unwrap();
        assert_eq!(
            all.find(&mut two, Seq(1), 50, 10, false),
            Err(Missing::Room),
            "not its turn"
        );
        let c = all.find(&mut two, Seq(1), 50, 10, true).unwrap();
        assert!(a != b && b != c && a != c && all.active() == 3);
        assert_eq!(all.find(&mut one, Seq(1), 50, 10, false), Ok(a), "found again");
        assert_eq!(
            all.find(&mut one, Seq(1), 51, 10, true),
            Err(Missing::Sense),
            "a message does not change its length"
        );
        assert_eq!(
            all.find(&mut one, Seq(3), 50, 10, true),
            Err(Missing::Room),
            "no room"
        );
        all.remove(&mut one, a);
        assert_eq!(all.find(&mut two, Seq(9), 50, 10, true), Ok(a));
        all.clear(&mut one);
        assert_eq!((one.0, all.active()), (Id::NONE, 2));
    }
}
