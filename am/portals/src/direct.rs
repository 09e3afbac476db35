//! The direct path of a put that is counted: for a caller that waits for a counting event.
//!
//! The last small put that was counted silently (no event, no header data, no offset) predicts the next one:
//! the same words from the same peer. Of one that was placed ([`crate::placed`]) there is only the head;
//! whatever else a peer put behind it would go into memory that it may write. A caller that waits for its
//! counting event has the rail look for just that, and copy its bytes to where they belong
//! ([`Message::look`]): nothing is looked up once it is there. What the general path would check has been
//! checked before: that the entry is still on its list (it was alone there, and what was appended since is
//! behind it), still lets the peer put, its table entry is enabled, and the peer is not lost. A message that
//! is not as predicted is left for the poll.

use doorbell_fabric::message::{Look, Message};
use doorbell_fabric::ni::{Count, CtHandle, EntryOptions, Kind, List, Memory};

use crate::core::Core;
use crate::entries::{EntrySlot, Standing};
use crate::iface::posts;
use crate::link::{Link, PeerId};
use crate::node::Node;
use crate::short::takes_puts;
use crate::wire::kind;

/// Puts that are taken directly before everything is polled once.
const IN_A_ROW: u32 = 32;

/// What [`Node::linger_for`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing came, in all the looks.
    Nothing,
    /// Perhaps something: poll.
    Something,
    /// A put was taken, and the counting event has counted it: what it is now.
    Counted(Count),
}

/// The put that is expected next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guess {
    ni: u8,
    /// Handles of the counting event and the entry.
    ct: u32,
    entry: u32,
    peer: PeerId,
    /// The first two words of its head, in memory order, without the number.
    first: u64,
    main: u64,
}

impl Guess {
    /// The guess after a put that consists of these two words, into an entry with a counting event (both by
    /// their handles).
    #[inline(always)]
    pub(crate) fn of(kind: Kind, peer: PeerId, first: u64, main: u64, (entry, ct): (u32, u32)) -> Self {
        Self {
            ni: kind.number() as u8,
            ct,
            entry,
            peer,
            first,
            main: main.to_le(),
        }
    }

    fn is_placed(&self) -> bool {
        self.first.to_le() as u8 == kind::PLACED
    }
}

/// Whether puts into an entry change nothing but its memory, and perhaps a count of them, and post no event.
#[inline(always)]
pub(crate) fn posts_nothing(slot: &EntrySlot, eq: u32) -> bool {
    let noisy = EntryOptions::MANAGE_LOCAL.0 | EntryOptions::USE_ONCE.0 | EntryOptions::EVENT_CT_BYTES.0;
    slot.options.0 & noisy == 0 && !(eq != 0 && posts(slot.options, true))
}

impl Core {
    /// Looks for the put that is expected, if it counts here.
    #[inline(always)]
    fn look<M: Message>(&mut self, link: &mut Link<M>, kind: Kind, ct: CtHandle, looks: u32) -> Option<Seen> {
        let guess = self.guess.filter(|guess| guess.ct == ct.0)?;
        let peer = self.peers.get_mut(guess.peer).filter(|peer| !peer.lost)?;
        let uid = peer.uid?;
        if u32::from(guess.ni) != kind.number() {
            return None;
        }
        let ni = self.nis[usize::from(guess.ni)].as_deref_mut()?;
        let (_, slot) = ni.entries.find(guess.entry)?;
        let table = ni.tables.get(slot.pt as usize)?.as_deref()?;
        let linked = slot.standing == Standing::Linked && slot.list == List::Priority;
        // Handles come again after very many others: the entry's own fields decide.
        if !linked
            || slot.ct != ct.0
            || !table.enabled
            || !slot.options.has(EntryOptions::EVENT_CT_COMM)
            || !posts_nothing(slot, table.eq)
            || !takes_puts(slot, uid)
        {
            return None;
        }
        let Memory::One(memory) = &slot.memory else {
            return None;
        };
        let counting = ni.cts.get_mut(ct.0).filter(|ct| !ct.is_waited_for())?;
        match link.look(guess.peer, [guess.first, guess.main], memory.room(), looks)? {
            Look::Nothing => Some(Seen::Nothing),
            Look::Other => Some(Seen::Something),
            Look::Taken(_) => {
                if guess.is_placed() {
                    peer.offers.count();
                }
                let success = counting.value.success.saturating_add(1);
                counting.value.success = success;
                // Not read back: both halves together would wait for the one that was just written.
                let failure = counting.value.failure;
                Some(Seen::Counted(Count { success, failure }))
            }
        }
    }
}

impl<M: Message> Node<M> {
    /// Lingers like [`Node::linger`], for a caller that waits for a counting event. A put that counts there
    /// may be taken meanwhile.
    #[inline]
    pub fn linger_for(&mut self, kind: Kind, ct: CtHandle, looks: u32) -> Seen {
        if self.core.is_restless() {
            return Seen::Something;
        }
        if self.core.in_a_row < IN_A_ROW {
            let seen = self.core.look(&mut self.link, kind, ct, looks);
            if let Some(Seen::Counted(_)) = seen {
                self.core.in_a_row += 1;
            }
            if let Some(seen) = seen {
                return seen;
            }
        }
        self.core.in_a_row = 0;
        if self.link.linger(looks) {
            Seen::Something
        } else {
            Seen::Nothing
        }
    }
}
