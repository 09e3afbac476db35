//! The interfaces as their users hold them: borrowed from a node, owning it, or behind a guard of its lock.

use std::ops::DerefMut;
use std::os::fd::BorrowedFd;

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Message};
use doorbell_fabric::ni::{
    Atomic, Count, CtHandle, Entry, EntryHandle, EqGet, EqHandle, FetchAtomic, Get, Kind, List, Lost, Md,
    MdHandle, Ni, NiError, NiLimits, Process, PtOptions, Put, Register, Search, TakePut, Target, Triggered,
};
use doorbell_fabric::time::Time;

use crate::events::EventQueue;
use crate::iface::Iface;
use crate::node::Node;
use crate::peers::NONE;

/// An interface of a node, borrowed.
#[derive(Debug)]
pub struct View<'a, M: Message> {
    pub(crate) node: &'a mut Node<M>,
    pub(crate) kind: Kind,
}

/// An interface that owns its node.
#[derive(Debug)]
pub struct Interface<M: Message> {
    pub(crate) node: Node<M>,
    pub(crate) kind: Kind,
}

/// An interface of a node that a guard leads to, as that of a lock.
#[derive(Debug)]
pub struct Guarded<G> {
    node: G,
    kind: Kind,
}

impl<G> Guarded<G> {
    /// Views a node through its guard.
    #[inline]
    pub fn new(node: G, kind: Kind) -> Self {
        Self { node, kind }
    }
}

impl<M: Message> Interface<M> {
    /// Returns the node that it views.
    #[must_use]
    pub fn node(&self) -> &Node<M> {
        &self.node
    }

    /// The node, to be changed: more rails, more peers, its map.
    pub fn node_mut(&mut self) -> &mut Node<M> {
        &mut self.node
    }
}

/// The limits of an interface that does not exist.
const NOTHING: NiLimits = NiLimits {
    max_entries: 0,
    max_unexpected_headers: 0,
    max_mds: 0,
    max_cts: 0,
    max_eqs: 0,
    max_pt_index: 0,
    max_iovecs: 0,
    max_list_size: 0,
    max_triggered_ops: 0,
    max_msg_size: 0,
    max_atomic_size: 0,
    max_fetch_atomic_size: 0,
    max_waw_ordered_size: 0,
    max_war_ordered_size: 0,
    max_volatile_size: 0,
    features: 0,
};

impl<M: Message> Node<M> {
    #[inline(always)]
    fn there(&self, kind: Kind) -> Option<&Iface> {
        self.core.nis[kind.number() as usize]
            .as_deref()
            .filter(|ni| ni.users != 0)
    }

    /// A call has counted something: what has fired by that is done before it returns.
    #[inline(always)]
    fn settle(&mut self, kind: Kind) {
        if self.core.nis[kind.number() as usize]
            .as_deref()
            .is_some_and(|ni| ni.triggers.has_fired())
        {
            self.core.run_fired(&mut self.link, kind);
        }
    }
}

macro_rules! interface {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<$($generics)*> Ni for $type {
            fn kind(&self) -> Kind {
                self.kind
            }

            fn limits(&self) -> &NiLimits {
                self.node.there(self.kind).map_or(&NOTHING, |ni| &ni.limits)
            }

            fn id(&self) -> Process {
                let none = Process { nid: NONE, pid: 0 };
                self.node.there(self.kind).map_or(none, |ni| ni.id)
            }

            fn uid(&self) -> u32 {
                self.node.core.uid
            }

            fn status(&self, register: Register) -> u64 {
                self.node.there(self.kind).map_or(0, |ni| ni.registers[register as usize])
            }

            #[inline]
            fn poll(&mut self, budget: usize) -> usize {
                self.node.poll(budget)
            }

            #[inline]
            fn poll_in_place(&mut self, budget: usize, taker: &mut impl TakePut) -> usize {
                self.node.poll_in_place(self.kind, budget, taker)
            }

            #[inline]
            fn linger(&mut self, looks: u32) -> bool {
                self.node.linger(looks)
            }

            fn progress(&mut self, now: Time) -> usize {
                self.node.progress(now)
            }

            fn next_deadline(&self) -> Option<Time> {
                self.node.next_deadline()
            }

            fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
                self.node.arm(each)
            }

            fn disarm(&mut self) {
                self.node.disarm();
            }

            fn lost(&mut self) -> Option<Lost> {
                self.node.core.present(self.kind).ok()?.lost.pop_front()
            }

            fn pt_alloc(
                &mut self,
                options: PtOptions,
                eq: Option<EqHandle>,
                index: Option<u32>,
            ) -> Result<u32, NiError> {
                let kind = self.kind;
                let index = self.node.core.pt_alloc(kind, options, eq, index)?;
                if options.has(PtOptions::FLOWCTRL) {
                    // Its queue may disable other entries of the table from here on, too. What is being
                    // written was begun before.
                    self.node.take_back(|given| given.is_of_table(kind, None));
                }
                Ok(index)
            }

            fn pt_free(&mut self, index: u32) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.pt_free(index)
            }

            fn pt_enable(&mut self, index: u32) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.pt_enable(index)
            }

            fn pt_disable(&mut self, index: u32) -> Result<bool, NiError> {
                let disabled = self.node.core.ready(self.kind)?.pt_disable(index)?;
                let kind = self.kind;
                let quiet = self.node.take_back(|given| given.is_of_table(kind, Some(index)));
                Ok(disabled && quiet)
            }

            fn eq_alloc(&mut self, count: usize) -> Result<EqHandle, NiError> {
                self.node.core.ready(self.kind)?.eq_alloc(count)
            }

            fn eq_free(&mut self, eq: EqHandle) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.eq_free(eq)
            }

            #[inline]
            fn eq_get(&mut self, eq: EqHandle) -> Result<EqGet, NiError> {
                self.node.core.ready(self.kind)?.eq_get(eq)
            }

            #[inline]
            fn eq_waiting(&self, queues: [EqHandle; 3]) -> [usize; 3] {
                let ni = self.node.there(self.kind);
                queues.map(|eq| {
                    let queue = ni.and_then(|ni| ni.eqs.get(eq.0));
                    queue.map_or(usize::MAX, EventQueue::len)
                })
            }

            fn ct_alloc(&mut self) -> Result<CtHandle, NiError> {
                self.node.core.ready(self.kind)?.ct_alloc()
            }

            fn ct_free(&mut self, ct: CtHandle) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.ct_free(ct)
            }

            #[inline]
            fn ct_get(&self, ct: CtHandle) -> Result<Count, NiError> {
                let ni = self.node.there(self.kind).ok_or(NiError::NoInit)?;
                Ok(ni.counting(ct.0)?.value)
            }

            fn ct_set(&mut self, ct: CtHandle, to: Count) -> Result<(), NiError> {
                let ni = self.node.core.ready(self.kind)?;
                ni.counting(ct.0)?;
                ni.ct_set(ct.0, to);
                self.node.settle(self.kind);
                Ok(())
            }

            fn ct_inc(&mut self, ct: CtHandle, by: Count) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.ct_inc(ct, by)?;
                self.node.settle(self.kind);
                Ok(())
            }

            fn ct_cancel_triggered(&mut self, ct: CtHandle) -> Result<(), NiError> {
                let ni = self.node.core.ready(self.kind)?;
                ni.counting(ct.0)?;
                ni.cancel_triggered(ct.0);
                Ok(())
            }

            fn md_bind(&mut self, md: Md) -> Result<MdHandle, NiError> {
                self.node.core.ready(self.kind)?.md_bind(md)
            }

            fn md_release(&mut self, md: MdHandle) -> Result<(), NiError> {
                self.node.core.ready(self.kind)?.md_release(md)
            }

            fn append(
                &mut self,
                pt_index: u32,
                entry: Entry,
                list: List,
                user_ptr: u64,
            ) -> Result<EntryHandle, NiError> {
                let handle = self.node.core.append(self.kind, pt_index, entry, list, user_ptr)?;
                self.node.settle(self.kind);
                Ok(handle)
            }

            fn unlink(&mut self, entry: EntryHandle) -> Result<(), NiError> {
                let kind = self.kind;
                self.node.core.ready(kind)?.may_unlink(entry.0)?;
                if !self.node.take_back(|given| given.is_of_entry(kind, entry.0)) {
                    return Err(NiError::InUse);
                }
                self.node.core.ready(kind)?.unlink_entry(entry.0)
            }

            fn search(
                &mut self,
                pt_index: u32,
                entry: &Entry,
                how: Search,
                user_ptr: u64,
            ) -> Result<(), NiError> {
                self.node.core.search(self.kind, pt_index, entry, how, user_ptr)?;
                self.node.settle(self.kind);
                Ok(())
            }

            #[inline]
            fn put(&mut self, put: &Put) -> Result<(), NiError> {
                let node: &mut Node<M> = &mut self.node;
                node.core.put(&mut node.link, self.kind, put)?;
                node.settle(self.kind);
                Ok(())
            }

            #[inline]
            fn put_bytes(
                &mut self,
                target: &Target,
                hdr_data: u64,
                words: &[u64],
                body: Body<'_>,
            ) -> Option<Result<(), NiError>> {
                let node: &mut Node<M> = &mut self.node;
                node.core.put_bytes(&mut node.link, (self.kind, target, hdr_data), words, body)
            }

            #[inline]
            fn can_place(&mut self, target: &Target, length: u64) -> bool {
                let node: &mut Node<M> = &mut self.node;
                node.core.can_place(&mut node.link, self.kind, target, length)
            }

            #[inline]
            fn place(&mut self, target: &Target, bytes: SharedBytes<'_>) -> bool {
                let node: &mut Node<M> = &mut self.node;
                node.core.place(&mut node.link, self.kind, target, bytes)
            }

            fn offer(&mut self, to: Process, entry: EntryHandle, length: u64) {
                self.node.core.offer(self.kind, to, (entry.0, length));
            }

            #[inline]
            fn get(&mut self, get: &Get) -> Result<(), NiError> {
                let node: &mut Node<M> = &mut self.node;
                node.core.get(&mut node.link, self.kind, get)?;
                node.settle(self.kind);
                Ok(())
            }

            fn atomic(&mut self, atomic: &Atomic) -> Result<(), NiError> {
                let node: &mut Node<M> = &mut self.node;
                node.core.atomic(&mut node.link, self.kind, atomic)?;
                node.settle(self.kind);
                Ok(())
            }

            fn fetch_atomic(&mut self, fetch: &FetchAtomic) -> Result<(), NiError> {
                let node: &mut Node<M> = &mut self.node;
                node.core.fetch_atomic(&mut node.link, self.kind, fetch)?;
                node.settle(self.kind);
                Ok(())
            }

            fn trigger(
                &mut self,
                ct: CtHandle,
                threshold: u64,
                what: Triggered,
            ) -> Result<Option<EntryHandle>, NiError> {
                let kind = self.kind;
                if let Triggered::Unlink(entry) = what {
                    self.node.core.ready(kind)?.will_leave(entry.0);
                    // Heads that are under way when it fires count still.
                    self.node.take_back(|given| given.is_of_entry(kind, entry.0));
                }
                let entry = self.node.core.trigger(kind, ct, threshold, what)?;
                self.node.settle(kind);
                Ok(entry.map(EntryHandle))
            }

            #[inline]
            fn flush(&mut self) {
                self.node.flush();
            }
        }
    )*};
}

interface! {
    ['a, M: Message] View<'a, M>;
    [M: Message] Interface<M>;
    [M: Message + 'static, G: DerefMut<Target = Node<M>>] Guarded<G>;
}
