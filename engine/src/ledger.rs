//! The ledger of a world: the open requests of its scopes, and the keys of its windows.

use std::cell::{Cell, RefCell};

use doorbell_job::error::Peers;

use crate::progress::RequestToken;

/// The open requests on borrowed memory of all scopes of a world.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: RefCell<Entries>,
    scopes: Cell<u64>,
}

#[derive(Default)]
struct Entries {
    slots: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    token: RequestToken,
    /// The number of its scope; [`Entry::FREE`] when the slot is free.
    scope: u64,
    /// The rank that the request is for; `None` for a receive from any rank.
    peer: Option<u32>,
}

/// The keys of the windows of a world.
#[derive(Default)]
pub(crate) struct WindowKeys {
    last: Cell<u32>,
    /// Windows that could not be closed when they were dropped.
    left: RefCell<Vec<u32>>,
}

impl WindowKeys {
    /// Returns the next key.
    pub(crate) fn next(&self) -> u32 {
        self.last.set(self.last.get().wrapping_add(1));
        self.last.get()
    }

    /// Notes a window that is to be closed later.
    #[cold]
    pub(crate) fn leave(&self, key: u32) {
        self.left.borrow_mut().push(key);
    }

    /// Returns a window that is to be closed.
    pub(crate) fn left(&self) -> Option<u32> {
        self.left.borrow().last().copied()
    }

    /// Removes a window that was closed.
    pub(crate) fn forget(&self, key: u32) {
        self.left.borrow_mut().retain(|this| *this != key);
    }
}

impl Entry {
    /// The number of no scope: they are counted from 1.
    const FREE: u64 = 0;
}

impl Entries {
    #[cold]
    #[inline(never)]
    fn grow(&mut self, token: RequestToken, scope: u64, peer: Option<u32>) -> u32 {
        self.slots.push(Entry { token, scope, peer });
        (self.slots.len() - 1) as u32
    }
}

impl Ledger {
    /// Returns the number of a new scope.
    pub(crate) fn open_scope(&self) -> u64 {
        self.scopes.set(self.scopes.get() + 1);
        self.scopes.get()
    }

    /// Records a request and returns its slot.
    #[inline(always)]
    pub(crate) fn enter(&self, token: RequestToken, scope: u64, peer: Option<u32>) -> u32 {
        let mut entries = self.entries.borrow_mut();
        let Some(slot) = entries.free.pop() else {
            return entries.grow(token, scope, peer);
        };
        // Written field by field into its place: see `Engine::post_send`.
        let entry = &mut entries.slots[slot as usize];
        entry.token = token;
        entry.scope = scope;
        entry.peer = peer;
        slot
    }

    /// Frees the slot of a request that has ended.
    #[inline]
    pub(crate) fn strike(&self, slot: u32) {
        let mut entries = self.entries.borrow_mut();
        entries.slots[slot as usize].scope = Entry::FREE;
        entries.free.push(slot);
    }

    /// Returns the first open request of `scope` at slot `from` or above.
    pub(crate) fn next(&self, scope: u64, from: usize) -> Option<(u32, RequestToken)> {
        let entries = self.entries.borrow();
        let mut of_scope = (from..).zip(entries.slots.iter().skip(from));
        let (at, entry) = of_scope.find(|(_, entry)| entry.scope == scope)?;
        Some((at as u32, entry.token))
    }

    /// Returns the peers of the open requests of `scope`, from slot `from` on.
    pub(crate) fn peers(&self, scope: u64, from: usize) -> Peers {
        let entries = self.entries.borrow();
        let open = entries.slots.iter().skip(from);
        open.filter(|entry| entry.scope == scope)
            .map(|entry| entry.peer)
            .collect()
    }
}
