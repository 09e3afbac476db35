//! Paths on which rails hold messages back, for calls that do not return before their messages have left.

use doorbell_fabric::message::{Message, MsgId, PeerIndex};

use super::Link;

/// A rail, and a peer of it.
type Path = (u16, PeerIndex);

/// The paths that are waited for, and those that are not any more.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// The paths of messages that were sent since the list was cleared.
    paths: Vec<Path>,
    /// The paths that took nothing more for the whole limit of a call, with the last message that they had
    /// taken.
    overdue: Vec<(Path, MsgId)>,
}

impl HeldBack {
    /// The rail holds back a message for this path, which has taken all up to `taken`.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&mut self, path: Path, taken: MsgId) {
        if !self.paths.contains(&path) && !self.overdue.contains(&(path, taken)) {
            self.paths.push(path);
        }
    }
}

impl<M: Message> Link<M> {
    /// Forgets what is held back now, so that no later call waits for it.
    #[inline]
    pub(crate) fn forget_held(&mut self) {
        self.held.paths.clear();
    }

    /// Whether messages that were sent since [`Link::forget_held`] are still held back. Not those of a peer
    /// for which a call has waited its whole limit, until that peer takes something; nor what waits for
    /// company alone.
    #[inline]
    pub(crate) fn holds_back(&mut self) -> bool {
        !self.held.paths.is_empty() && self.still_holds_back()
    }

    #[cold]
    #[inline(never)]
    fn still_holds_back(&mut self) -> bool {
        let rails = &mut self.rails;
        self.held.paths.retain(|(rail, peer)| {
            let slot = rails.get_mut(usize::from(*rail));
            slot.is_some_and(|slot| slot.rail.holds_back(Some(*peer)))
        });
        !self.held.paths.is_empty()
    }

    /// A call has waited its whole limit for what is held back: no later one does before the peer takes
    /// something.
    #[cold]
    pub(crate) fn give_up_held(&mut self) {
        for path in std::mem::take(&mut self.held.paths) {
            self.held.overdue.retain(|(other, _)| *other != path);
            if let Some(slot) = self.rails.get_mut(usize::from(path.0)) {
                let taken = slot.rail.handed_over(path.1);
                self.held.overdue.push((path, taken));
            }
        }
    }
}
