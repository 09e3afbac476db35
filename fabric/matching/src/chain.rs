//! First-in first-out chains through slots: doubly linked circles, so that both ends and any member are
//! reached in constant time and a chain is named by its head alone.

/// The index of no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// A slot's neighbours in its chain; the head's `prev` is the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) next: u32,
    pub(crate) prev: u32,
}

impl Link {
    /// The link of a slot that is in no chain.
    pub(crate) const LOOSE: Self = Self {
        next: NONE,
        prev: NONE,
    };
}

/// Where the links of slots are kept.
pub(crate) trait Links {
    /// The link of one slot.
    fn link(&self, slot: u32) -> &Link;
    /// The link of one slot, to be changed.
    fn link_mut(&mut self, slot: u32) -> &mut Link;
}

impl Links for Vec<Link> {
    #[inline]
    fn link(&self, slot: u32) -> &Link {
        &self[slot as usize]
    }

    #[inline]
    fn link_mut(&mut self, slot: u32) -> &mut Link {
        &mut self[slot as usize]
    }
}

/// Appends a slot to the chain that begins at `head` (`NONE`: a new one) and returns the head.
#[inline]
pub(crate) fn push(links: &mut impl Links, head: u32, slot: u32) -> u32 {
    if head == NONE {
        *links.link_mut(slot) = Link {
            next: slot,
            prev: slot,
        };
        return slot;
    }
    let tail = links.link(head).prev;
    *links.link_mut(slot) = Link {
        next: head,
        prev: tail,
    };
    links.link_mut(tail).next = slot;
    links.link_mut(head).prev = slot;
    head
}

/// Takes a slot out of the chain that begins at `head` and returns the new head, `NONE` when it was the last.
#[inline]
pub(crate) fn remove(links: &mut impl Links, head: u32, slot: u32) -> u32 {
    let Link { next, prev } = *links.link(slot);
    if next == slot {
        return NONE;
    }
    links.link_mut(prev).next = next;
    links.link_mut(next).prev = prev;
    if head == slot { next } else { head }
}

/// The slot behind `slot` in the chain that begins at `head`, `NONE` behind the tail.
#[inline]
pub(crate) fn after(links: &impl Links, head: u32, slot: u32) -> u32 {
    let next = links.link(slot).next;
    if next == head { NONE } else { next }
}

/// The slots of a chain from its head on.
pub(crate) fn walk(links: &impl Links, head: u32) -> impl Iterator<Item = u32> {
    let start = (head != NONE).then_some(head);
    std::iter::successors(start, move |&slot| {
        Some(after(links, head, slot)).filter(|&next| next != NONE)
    })
}
