//! Keys of single peers, which hold instead of the job's: for processes that met without a job, where each
//! pair has a key of its own.

use std::collections::{HashMap, VecDeque};

use doorbell_fabric::message::PeerIndex;

use crate::key::JobKey;

/// An address, as [`Peers::place`](crate::peers::Peers::place) numbers it, and the life there.
pub(crate) type Name = (u64, u64);

/// A key, and the peer that was opened with it.
#[derive(Debug)]
struct Held {
    key: JobKey,
    peer: Option<PeerIndex>,
}

/// The keys of peers that have their own.
#[derive(Debug)]
pub(crate) struct PeerKeys {
    keys: HashMap<Name, Held>,
    opened: HashMap<PeerIndex, Name>,
    /// Those whose peers were not opened yet, the oldest first.
    waiting: VecDeque<Name>,
    /// How many may wait.
    most: usize,
}

impl PeerKeys {
    /// No keys; at most `most` for peers that are not opened.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            keys: HashMap::new(),
            opened: HashMap::new(),
            waiting: VecDeque::new(),
            most,
        }
    }

    /// Keeps a key for a peer that is to be opened. Where too many wait to be used, the oldest is dropped.
    pub(crate) fn set(&mut self, name: Name, key: JobKey) {
        if let Some(held) = self.keys.get_mut(&name) {
            if held.peer.is_none() {
                held.key = key;
            }
            return;
        }
        if self.waiting.len() >= self.most
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.keys.insert(name, Held { key, peer: None });
        self.waiting.push_back(name);
    }

    /// The key of the peer at this address and life, if it has its own.
    pub(crate) fn get(&self, name: Name) -> Option<&JobKey> {
        self.keys.get(&name).map(|held| &held.key)
    }

    /// The key of a peer that was opened, if it has its own.
    pub(crate) fn of(&self, peer: PeerIndex) -> Option<&JobKey> {
        self.get(*self.opened.get(&peer)?)
    }

    /// Whether the peer has a key of its own.
    pub(crate) fn has(&self, peer: PeerIndex) -> bool {
        self.opened.contains_key(&peer)
    }

    /// Drops the key of a peer.
    pub(crate) fn forget(&mut self, peer: PeerIndex) {
        if let Some(name) = self.opened.remove(&peer) {
            self.keys.remove(&name);
        }
    }

    /// The peer of this name was opened.
    pub(crate) fn opened(&mut self, name: Name, peer: PeerIndex) {
        if let Some(held) = self.keys.get_mut(&name) {
            held.peer = Some(peer);
            self.opened.insert(peer, name);
            self.waiting.retain(|waiting| *waiting != name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> JobKey {
        JobKey::from_bytes([n; 32])
    }

    fn bytes(key: Option<&JobKey>) -> Option<u64> {
        key.map(|key| key.life([1, 2], [3, 4]).connection)
    }

    #[test]
    fn keys_that_are_never_used_are_bounded_and_those_in_use_stay() {
        let mut keys = PeerKeys::new(3);
        keys.set((1, 1), key(1));
        keys.opened((1, 1), PeerIndex(7));
        keys.set((1, 1), key(9));
        for n in 2..100 {
            keys.set((n, 1), key(n as u8));
        }
        assert_eq!(bytes(keys.get((1, 1))), bytes(Some(&key(1))));
        assert_eq!(bytes(keys.of(PeerIndex(7))), bytes(Some(&key(1))));
        assert_eq!(bytes(keys.get((96, 1))), None);
        assert_eq!(bytes(keys.get((97, 1))), bytes(Some(&key(97))));
        assert_eq!((keys.keys.len(), keys.waiting.len()), (4, 3));
        keys.set((97, 1), key(50));
        assert_eq!(
            bytes(keys.get((97, 1))),
            bytes(Some(&key(50))),
            "it was not used yet"
        );
        assert_eq!(bytes(keys.of(PeerIndex(8))), None);
        keys.forget(PeerIndex(7));
        assert!(!keys.has(PeerIndex(7)) && keys.get((1, 1)).is_none());
        keys.set((1, 1), key(2));
        assert_eq!(bytes(keys.get((1, 1))), bytes(Some(&key(2))), "a fresh one");
    }
}
