//! The peer processes of a node: names, users, and the number of open operations with each.

use std::collections::HashMap;

use doorbell_fabric::ni::{NID_ANY, PID_ANY, Process};
use doorbell_matching::{Candidate, EntryHandle, List};

use crate::config::NodeError;
use crate::link::PeerId;
use crate::placed::{Offers, Room, Tail};

/// No peer, no rank, no index.
pub(crate) const NONE: u32 = u32::MAX;

/// A process that is known here.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) process: Process,
    /// What its messages are matched by on a physical interface: a dense node number, and the process id.
    pub(crate) source: u32,
    /// The user number, once the peer has sent it.
    pub(crate) uid: Option<u32>,
    /// Whether it was ever given a way.
    pub(crate) connected: bool,
    /// Whether our name and user number were sent to it.
    pub(crate) greeted: bool,
    pub(crate) lost: bool,
    /// Our operations that it has to answer.
    pub(crate) open: u32,
    /// Its operations that are in progress here.
    pub(crate) owed: u32,
    /// The words of puts that are remembered: of the last one to it, with its name
    /// ([`crate::wire::put_name`]); and of the last one from it.
    pub(crate) said: Option<(u32, Remembered)>,
    pub(crate) heard: Option<ReceivedPut>,
    /// Where puts to it may be placed ([`crate::placed`]), and when it is offered to place its own.
    pub(crate) rooms: Vec<Room>,
    pub(crate) offers: Offers,
    pub(crate) tail: Tail,
}

/// The last put that was to be remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedPut {
    /// Flags and table index, as [`crate::wire::put_name`] has them.
    pub(crate) name: u32,
    pub(crate) words: Remembered,
    /// Where it went, if it may go there again.
    pub(crate) found: Option<Found>,
}

/// The entry that took a put of `rlength` bytes: the number of its table entry, and its handle there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) table: u64,
    pub(crate) entry: EntryHandle,
    pub(crate) rlength: u64,
}

impl Peer {
    /// Remembers where the last put went.
    #[inline(never)]
    pub(crate) fn remember(&mut self, table: u64, found: &Candidate, rlength: u64) {
        if let Some(heard) = &mut self.heard {
            let first = found.hit.list == List::Priority;
            heard.found = first.then_some(Found {
                table,
                entry: found.hit.handle,
                rlength,
            });
        }
    }
}

/// The words of a put's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) main: u64,
    pub(crate) second: u64,
    pub(crate) hdr: u64,
}

/// All of them, this process first.
#[derive(Debug)]
pub(crate) struct Peers {
    list: Vec<Peer>,
    by_process: HashMap<Process, u32>,
    nodes: HashMap<u32, u16>,
}

impl Peers {
    pub(crate) fn new(me: Process, uid: u32) -> Self {
        let mut peers = Self {
            list: Vec::new(),
            by_process: HashMap::new(),
            nodes: HashMap::new(),
        };
        // A name that cannot be is reported by `connect`, and by peers that try to reach it; here it takes
        // the first number.
        let source = peers.source(me).unwrap_or(0);
        peers.push(me, source);
        if let Some(own) = peers.list.first_mut() {
            own.uid = Some(uid);
            own.connected = true;
            own.greeted = true;
        }
        peers
    }

    fn push(&mut self, process: Process, source: u32) {
        self.by_process.insert(process, self.list.len() as u32);
        self.list.push(Peer {
            process,
            source,
            uid: None,
            connected: false,
            greeted: false,
            lost: false,
            open: 0,
            owed: 0,
            said: None,
            heard: None,
            rooms: Vec::new(),
            offers: Offers::default(),
            tail: Tail::default(),
        });
    }

    /// Makes a process known under the next number, which the caller has from the link.
    pub(crate) fn add(&mut self, process: Process, id: PeerId) -> Result<(), NodeError> {
        debug_assert_eq!(id.index(), self.list.len());
        let source = self.source(process)?;
        self.push(process, source);
        Ok(())
    }

    /// Returns what a process is matched by; its node gets a number when it has none.
    pub(crate) fn source(&mut self, process: Process) -> Result<u32, NodeError> {
        if process.nid == NID_ANY || process.nid == u32::MAX || process.pid >= PID_ANY {
            return Err(NodeError::NoProcess(process));
        }
        Ok(u32::from(self.node(process.nid)?) << 16 | process.pid)
    }

    /// The dense number of a node.
    pub(crate) fn node(&mut self, nid: u32) -> Result<u16, NodeError> {
        if let Some(&node) = self.nodes.get(&nid) {
            return Ok(node);
        }
        let node = u16::try_from(self.nodes.len()).map_err(|_| NodeError::TooManyNodes)?;
        self.nodes.insert(nid, node);
        Ok(node)
    }

    #[inline(always)]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.list.get(peer.index())
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(peer.index())
    }

    /// The process with that name.
    pub(crate) fn find(&self, process: Process) -> Option<PeerId> {
        self.by_process.get(&process).copied().map(PeerId)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.list.iter()
    }
}
