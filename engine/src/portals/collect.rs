//! Collective operations of all ranks over the node itself, on an interface of their own: what a program
//! needs before its first put.
//!
//! ```text
//!   barrier, step k       0 bytes to rank + 2^k, and as many from rank - 2^k          ⌈log₂ n⌉ steps
//!   all-gather, step k    blocks [0, min(2^k, n - 2^k)) to rank - 2^k, behind the others there       (Bruck)
//! ```
//!
//! Each step has a portal table entry and a counting event of its own, so that a rank which is ahead disturbs
//! no other. They are made before the first poll: a message that arrives early finds them.

use std::ops::DerefMut;

use doorbell_am_portals::Node;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    AckReq, CtHandle, Entry, EntryHandle, EntryOptions, Kind, List, Md, MdHandle, MdOptions, Memory, Ni,
    NiError, Piece, Process, PtOptions, Put, Target,
};
use doorbell_job::error::{Awaited, Error};
use doorbell_job::rails::AnyRail;
use doorbell_job::wait::{NodeWaiter, PollableNode};

/// The interface of the collective operations: non-matching, addressed by process.
pub(crate) const INTERNAL: Kind = Kind {
    matching: false,
    logical: false,
};

/// The owner of a node, in any state of a job.
pub(crate) trait AboveNode: PollableNode {
    fn node(&mut self) -> impl DerefMut<Target = Node<AnyRail>> + '_;

    /// Returns the process of a rank.
    fn process(&self, rank: u32) -> Option<Process>;
}

/// The collective operations of this rank.
pub(crate) struct Collect {
    rank: u32,
    size: u32,
    barrier: Vec<Step>,
    gather: Vec<Step>,
    /// A descriptor of no memory.
    nothing: MdHandle,
    /// The number of barriers so far.
    barriers: u64,
    gathers: u64,
}

/// One step of a barrier or an all-gather.
#[derive(Clone, Copy)]
struct Step {
    pt_index: u32,
    arrived: CtHandle,
}

pub(crate) fn refused(what: &'static str) -> impl FnOnce(NiError) -> Error {
    move |error| Error::Interface {
        what,
        reason: error.to_string(),
    }
}

impl Collect {
    /// Makes the entries, which are the last ones of the interface's portal table; sends nothing.
    pub(crate) fn new<G: AboveNode>(node: &mut G, rank: u32, size: u32) -> Result<Self, Error> {
        let steps = size.next_power_of_two().trailing_zeros();
        let mut node = node.node();
        let mut ni = node.ni(INTERNAL);
        let last = ni.limits().max_pt_index;
        let mut step = |below: u32| -> Result<Step, NiError> {
            let index = last.checked_sub(below).ok_or(NiError::PtFull)?;
            let pt_index = ni.pt_alloc(PtOptions::NONE, None, Some(index))?;
            let arrived = ni.ct_alloc()?;
            Ok(Step { pt_index, arrived })
        };
        let barrier: Result<Vec<Step>, NiError> = (0..steps).map(&mut step).collect();
        let gather: Result<Vec<Step>, NiError> = (steps..2 * steps).map(&mut step).collect();
        let (barrier, gather) = barrier
            .and_then(|barrier| Ok((barrier, gather?)))
            .map_err(refused("the entries of the collective operations"))?;
        for step in &barrier {
            let entry = Entry::open(Memory::Empty, counted()).counted(step.arrived);
            ni.append(step.pt_index, entry, List::Priority, 0)
                .map_err(refused("the entries of the collective operations"))?;
        }
        let nothing = ni
            .md_bind(Md::default())
            .map_err(refused("the entries of the collective operations"))?;
        Ok(Self {
            rank,
            size,
            barrier,
            gather,
            nothing,
            barriers: 0,
            gathers: 0,
        })
    }

    /// Waits until all ranks have called it.
    pub(crate) fn barrier<G: AboveNode>(
        &mut self,
        node: &mut G,
        waiter: &mut NodeWaiter,
    ) -> Result<(), Error> {
        self.barriers += 1;
        let mut distance = 1;
        for (number, step) in (0..).zip(self.barrier.clone()) {
            let to = (self.rank + distance) % self.size;
            let put = self.put(node, (to, step), (self.nothing, 0, 0), 0)?;
            send(
                node,
                waiter,
                &put,
                self.awaited("a barrier", self.size - distance, number),
            )?;
            let from = self.awaited("a barrier", self.size - distance, number);
            arrived(node, waiter, step.arrived, self.barriers, from)?;
            distance *= 2;
        }
        Ok(())
    }

    /// Gathers the `own` of every rank at every rank, in the order of ranks; `all` is `size` times as long.
    pub(crate) fn allgather<G: AboveNode>(
        &mut self,
        node: &mut G,
        waiter: &mut NodeWaiter,
        own: &[u8],
        all: &mut [u8],
    ) -> Result<(), Error> {
        let (item, size) = (own.len(), self.size as usize);
        if Some(all.len()) != item.checked_mul(size) {
            return Err(Error::Layout {
                what: format!(
                    "a buffer of {} bytes cannot hold {size} blocks of {item} bytes",
                    all.len()
                ),
            });
        }
        if item == 0 || size == 1 {
            all.copy_from_slice(own);
            return if item == 0 {
                self.barrier(node, waiter)
            } else {
                Ok(())
            };
        }
        self.gathers += 1;
        // Block i belongs to rank + i.
        let region = Region::new(all.len())?;
        region.write(0, own);
        let memory = || Memory::One(Landing::Region(region.whole()));
        let entries = self.open(node, &memory)?;
        let outcome = self.exchange(node, waiter, memory(), item);
        let closed = close(node, waiter, entries);
        outcome.and(closed)?;
        for block in 0..size {
            let at = (self.rank as usize + block) % size * item;
            region.read(block * item, &mut all[at..at + item]);
        }
        Ok(())
    }

    /// Opens the memory to the others; when the barrier after it returns, all have done so.
    fn open<G: AboveNode>(
        &self,
        node: &mut G,
        memory: &dyn Fn() -> Memory,
    ) -> Result<Vec<EntryHandle>, Error> {
        let mut node = node.node();
        let mut ni = node.ni(INTERNAL);
        let append = |step: &Step| {
            let entry = Entry::open(memory(), counted()).counted(step.arrived);
            ni.append(step.pt_index, entry, List::Priority, 0)
        };
        let entries: Result<Vec<EntryHandle>, NiError> = self.gather.iter().map(append).collect();
        entries.map_err(refused("the memory of an all-gather"))
    }

    fn exchange<G: AboveNode>(
        &mut self,
        node: &mut G,
        waiter: &mut NodeWaiter,
        memory: Memory,
        item: usize,
    ) -> Result<(), Error> {
        self.barrier(node, waiter)?;
        let what = "the memory of an all-gather";
        let sent = node.node().ni(INTERNAL).ct_alloc().map_err(refused(what))?;
        let md = node.node().ni(INTERNAL).md_bind(Md {
            memory,
            options: MdOptions::EVENT_CT_SEND,
            eq: None,
            ct: Some(sent),
        });
        let md = md.map_err(refused(what))?;
        let mut done = Ok(());
        let mut distance = 1;
        for (number, step) in (0..).zip(self.gather.clone()) {
            let blocks = distance.min(self.size - distance) as usize;
            let to = (self.rank + self.size - distance) % self.size;
            let from = self.awaited("an all-gather", distance, number);
            done = self
                .put(node, (to, step), (md, 0, blocks * item), distance as usize * item)
                .and_then(|put| send(node, waiter, &put, from))
                .and_then(|()| arrived(node, waiter, step.arrived, self.gathers, from));
            if done.is_err() {
                break;
            }
            distance *= 2;
        }
        let steps = self.gather.len() as u64;
        let last = self.awaited("an all-gather", 1, self.gather.len() as u32);
        let done = done.and_then(|()| arrived(node, waiter, sent, steps, last));
        // After an error, operations in progress keep what they need.
        let _ = node.node().ni(INTERNAL).md_release(md);
        let _ = node.node().ni(INTERNAL).ct_free(sent);
        done
    }

    fn put<G: AboveNode>(
        &self,
        node: &G,
        (to, step): (u32, Step),
        (md, offset, length): (MdHandle, usize, usize),
        remote: usize,
    ) -> Result<Put, Error> {
        let process = node.process(to).ok_or(Error::NoSuchRank {
            rank: to,
            size: self.size,
        })?;
        Ok(Put {
            from: Piece {
                md,
                offset: offset as u64,
            },
            length: length as u64,
            ack: AckReq::None,
            target: Target {
                process,
                pt_index: step.pt_index,
                match_bits: 0,
                remote_offset: remote as u64,
            },
            user_ptr: 0,
            hdr_data: 0,
        })
    }

    /// Describes a wait for the rank that is `ahead` ranks after this one, around the ring.
    fn awaited(&self, name: &'static str, ahead: u32, step: u32) -> Awaited {
        Awaited::Collective {
            name,
            peer: (self.rank + ahead) % self.size,
            step,
        }
    }
}

/// The options of an entry that counts puts and reports nothing else.
fn counted() -> EntryOptions {
    EntryOptions::OP_PUT
        | EntryOptions::EVENT_CT_COMM
        | EntryOptions::EVENT_COMM_DISABLE
        | EntryOptions::EVENT_LINK_DISABLE
        | EntryOptions::EVENT_UNLINK_DISABLE
}

/// Begins a put as soon as there is room for it.
fn send<G: AboveNode>(node: &mut G, waiter: &mut NodeWaiter, put: &Put, what: Awaited) -> Result<(), Error> {
    let limit = waiter.limit;
    let begin = |node: &mut G| match node.node().ni(INTERNAL).put(put) {
        Err(NiError::Full) => None,
        begun => Some(begun),
    };
    let begun = waiter.wait(node, limit, what, begin)?;
    node.node().flush();
    begun.map_err(refused("a put to another rank"))
}

/// Waits until a counting event has reached `count`.
fn arrived<G: AboveNode>(
    node: &mut G,
    waiter: &mut NodeWaiter,
    ct: CtHandle,
    count: u64,
    what: Awaited,
) -> Result<(), Error> {
    let limit = waiter.limit;
    let look = |node: &mut G| match node.node().ni(INTERNAL).ct_get(ct) {
        Ok(found) if !found.reaches(count) => None,
        found => Some(found),
    };
    let found = waiter.wait(node, limit, what, look)?;
    let found = found.map_err(refused("the counting event of a collective operation"))?;
    if found.success < count {
        return Err(Error::Interface {
            what: "the put of another rank",
            reason: "it arrived incomplete".to_owned(),
        });
    }
    Ok(())
}

fn close<G: AboveNode>(
    node: &mut G,
    waiter: &mut NodeWaiter,
    entries: Vec<EntryHandle>,
) -> Result<(), Error> {
    let what = Awaited::Interface {
        what: "the memory of an all-gather to be released",
    };
    let limit = waiter.limit;
    for entry in entries {
        let unlink = |node: &mut G| match node.node().ni(INTERNAL).unlink(entry) {
            Err(NiError::InUse) => None,
            unlinked => Some(unlinked),
        };
        let unlinked = waiter.wait(node, limit, what, unlink)?;
        unlinked.map_err(refused("the memory of an all-gather"))?;
    }
    Ok(())
}
