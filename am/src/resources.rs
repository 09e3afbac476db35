//! Temporary descriptors, and the resources that a poll of the AM queue needs in hand (gasnet.md sections 3
//! and 4).

use doorbell_fabric::ni::MdHandle;

/// Temporary descriptors by number: an event names the number, the interface the handle.
#[derive(Debug)]
pub(crate) struct Temporaries {
    bound: Vec<Option<MdHandle>>,
    free: Vec<u32>,
}

impl Temporaries {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            bound: vec![None; limit as usize],
            free: (0..limit).rev().collect(),
        }
    }

    /// Returns how many are free.
    pub(crate) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Takes a ticket for one.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Assigns the descriptor to the ticket.
    #[inline]
    pub(crate) fn bind(&mut self, number: u32, md: MdHandle) {
        if let Some(slot) = self.bound.get_mut(number as usize) {
            *slot = Some(md);
        }
    }

    /// Returns an unused ticket.
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Takes the descriptor and returns the ticket: the descriptor is to be released.
    #[inline]
    pub(crate) fn unbind(&mut self, number: u32) -> Option<MdHandle> {
        let md = self.bound.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(md)
    }
}

/// Resources reserved for a reply, kept from one poll to the next even if incomplete: two send tickets, a
/// ticket for a temporary descriptor, a chunk of the replies' buffer.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) tickets: u32,
    pub(crate) temporary: Option<u32>,
    pub(crate) chunk: Option<u32>,
    /// All are reserved; cleared when a part is taken.
    pub(crate) complete: bool,
}

impl Held {
    /// Send tickets of an unpacked Long reply.
    pub(crate) const TICKETS: u32 = 2;

    /// Recomputes whether a reply of any kind can be sent.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.complete = self.tickets == Self::TICKETS && self.temporary.is_some() && self.chunk.is_some();
        self.complete
    }

    /// Takes a send ticket out.
    pub(crate) fn spend_ticket(&mut self) {
        self.complete = false;
        self.tickets = self.tickets.saturating_sub(1);
    }

    /// Takes the chunk out.
    pub(crate) fn spend_chunk(&mut self) {
        self.complete = false;
        self.chunk = None;
    }

    /// Takes the temporary descriptor's ticket out.
    pub(crate) fn spend_temporary(&mut self) -> Option<u32> {
        self.complete = false;
        self.temporary.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_is_released_once() {
        let mut temporaries = Temporaries::new(2);
        let first = temporaries.take();
        assert_eq!(first, Some(0));
        temporaries.bind(0, MdHandle(9));
        assert_eq!(temporaries.unbind(0), Some(MdHandle(9)));
        assert_eq!(
            temporaries.unbind(0),
            None,
            "an event that comes twice releases nothing"
        );
        assert_eq!(temporaries.unbind(7), None);
        assert_eq!(temporaries.free(), 2);
    }
}
