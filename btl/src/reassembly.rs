//! Messages that come in chunks, until they are whole. Rooms for them are shared by all peers, made when first needed,
//! and bounded in number: what finds no room is dropped, and comes again.
//!
//! The last room is for a message whose turn it is: what comes ahead of its turn could fill all of them, and wait there
//! for what is refused.

/// No reassembly.
pub(crate) const NONE: u32 = u32::MAX;

/// Why there is no reassembly for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// There are as many as there may be.
    Room,
    /// It does not fit what the other chunks said.
    Sense,
}

/// One message under reassembly.
#[derive(Debug)]
pub(crate) struct Reassembly {
    /// The number of the message's first segment: its name.
    pub(crate) first: u32,
    pub(crate) total: u32,
    pub(crate) size: u16,
    pub(crate) got: u32,
    pub(crate) bytes: Box<[u8]>,
    /// The next of the same peer.
    next: u32,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Reassemblies {
    all: Vec<Reassembly>,
    free: Vec<u32>,
    most: usize,
    longest: usize,
}

impl Reassemblies {
    pub(crate) fn new(most: usize, longest: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            most,
            longest,
        }
    }

    /// The reassembly of a message in the list that begins at `head`, or a new one at its front; `turn` says whether it
    /// is the message that its sender's next segment belongs to.
    #[inline]
    pub(crate) fn find(
        &mut self,
        head: &mut u32,
        first: u32,
        total: u32,
        size: u16,
        turn: bool,
    ) -> Result<u32, Missing> {
        let mut at = *head;
        while at != NONE {
            let one = &self.all[at as usize];
            if one.first == first {
                return if one.total == total && one.size == size {
                    Ok(at)
                } else {
                    Err(Missing::Sense)
                };
            }
            at = one.next;
        }
        if !turn && self.rooms() < 2 {
            return Err(Missing::Room);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.make().ok_or(Missing::Room)?,
        };
        let one = &mut self.all[index as usize];
        (one.first, one.total, one.size, one.got, one.next) = (first, total, size, 0, *head);
        *head = index;
        Ok(index)
    }

    /// Rooms that are left.
    #[inline]
    fn rooms(&self) -> usize {
        self.free.len() + self.most - self.all.len()
    }

    #[cold]
    fn make(&mut self) -> Option<u32> {
        if self.all.len() == self.most {
            return None;
        }
        self.all.push(Reassembly {
            first: 0,
            total: 0,
            size: 0,
            got: 0,
            bytes: vec![0; self.longest].into_boxed_slice(),
            next: NONE,
        });
        self.free.reserve(self.all.len() - self.free.len());
        Some(self.all.len() as u32 - 1)
    }

    /// One by its index.
    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> &mut Reassembly {
        &mut self.all[index as usize]
    }

    /// Takes one out of the list that begins at `head`, and gives its room back.
    #[inline]
    pub(crate) fn remove(&mut self, head: &mut u32, index: u32) {
        let next = self.all[index as usize].next;
        if *head == index {
            *head = next;
        } else {
            let mut at = *head;
            while at != NONE {
                let one = &mut self.all[at as usize];
                if one.next == index {
                    one.next = next;
                    break;
                }
                at = one.next;
            }
        }
        self.free.push(index);
    }

    /// How many are under way.
    pub(crate) fn active(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_bounded_and_come_back() {
        let mut all = Reassemblies::new(3, 100);
        let (mut one, mut two) = (NONE, NONE);
        let a = all.find(&mut one, 1, 50, 10, false).unwrap();
        let b = all.find(&mut one, 2, 50, 10, false).unwrap();
        assert_eq!(
            all.find(&mut two, 1, 50, 10, false),
            Err(Missing::Room),
            "not its turn"
        );
        let c = all.find(&mut two, 1, 50, 10, true).unwrap();
        assert!(a != b && b != c && a != c && all.active() == 3);
        assert_eq!(all.find(&mut one, 1, 50, 10, false), Ok(a), "found again");
        assert_eq!(
            all.find(&mut one, 1, 51, 10, true),
            Err(Missing::Sense),
            "a message does not change its length"
        );
        assert_eq!(all.find(&mut one, 3, 50, 10, true), Err(Missing::Room), "no room");
        all.remove(&mut one, a);
        assert_eq!(all.find(&mut two, 9, 50, 10, true), Ok(a));
        all.remove(&mut one, b);
        assert_eq!((one, all.active()), (NONE, 2));
    }
}
