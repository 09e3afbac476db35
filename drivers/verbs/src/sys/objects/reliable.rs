//! Queue pairs of reliable connections, and the receive queue that they share.

use std::ops::RangeInclusive;

use super::*;
use crate::sys::abi::{SrqAttr, SrqInitAttr};

mod onesided;
pub(crate) use onesided::{Beneath, DeviceAtomic, Held, Pinned, Requests, Window};

owner! {
    /// A receive queue that many queue pairs share.
    SharedQueue(Srq), destroyed by destroy_srq, keeps {
        domain: Arc<Domain>,
        post: unsafe extern "C" fn(*mut abi::Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int
    }
}
owner! {
    /// A queue pair of a reliable connection.
    ReliablePair(Qp), destroyed by destroy_qp, keeps {
        domain: Arc<Domain>,
        sent: Arc<Completions>,
        received: Arc<Completions>,
        shared: Option<Arc<SharedQueue>>,
        granted: QpCap
    }
}

/// A piece of registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) memory: Arc<Registered>,
    pub(crate) at: usize,
    pub(crate) length: usize,
}

/// What a queue pair is to be made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReliableSizes {
    /// Requests under way at a time: a power of two. One more has room, for the mark at the end.
    pub(crate) sends: usize,
    /// Bytes that go with a request itself.
    pub(crate) inline: usize,
    /// Pieces of a request: one, or two.
    pub(crate) pieces: usize,
}

impl SharedQueue {
    /// Makes a queue for up to `entries` receives.
    ///
    /// # Errors
    /// If the system refuses it, or the device has no such queues.
    pub(crate) fn new(domain: &Arc<Domain>, entries: usize) -> Result<Arc<Self>, VerbsError> {
        let open = &domain.open;
        let post = open.fast.post_srq_recv.ok_or_else(|| VerbsError::Nonsense {
            device: open.name.clone(),
            what: "shared receive queues without a function".to_owned(),
        })?;
        let mut attributes = SrqInitAttr::zeroed();
        (attributes.attr.max_wr, attributes.attr.max_sge) = (entries as u32, 1);
        // SAFETY: the domain is alive; the attributes are read, and what is granted is written.
        let raw = made(unsafe { (open.library.functions.create_srq)(domain.raw, &raw mut attributes) });
        let queue = Self {
            raw: raw.map_err(|error| failed("ibv_create_srq", &open.name, error))?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            post,
        };
        if (attributes.attr.max_wr as usize) < entries {
            return Err(VerbsError::Nonsense {
                device: open.name.clone(),
                what: format!(
                    "a shared receive queue of {} entries where {entries} were requested",
                    attributes.attr.max_wr
                ),
            });
        }
        Ok(Arc::new(queue))
    }

    /// Destroys the queue, from which no queue pair receives any more; whether the system has done so: the
    /// device owns none of its receives then. One that was destroyed is not used.
    pub(crate) fn end(&mut self) -> bool {
        if !self.open.is_ours() || self.raw.is_null() {
            return false;
        }
        // SAFETY: made by the library, and not destroyed before. Each queue pair that receives from it keeps
        // a reference, so there is none beside the only one.
        let is_over = unsafe { (self.open.library.functions.destroy_srq)(self.raw) } == 0;
        if is_over {
            self.raw = ptr::null_mut();
        }
        is_over
    }

    /// Whether an event is about this queue.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.raw.addr() as u64 == event.object
    }

    /// Has an event be raised, once, when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn limit(&self, limit: usize) -> Result<(), VerbsError> {
        let mut attributes = SrqAttr::zeroed();
        attributes.srq_limit = limit as u32;
        let functions = &self.open.library.functions;
        // SAFETY: the queue is alive; the attributes are read.
        let result = unsafe { (functions.modify_srq)(self.raw, &raw mut attributes, numbers::HAS_SRQ_LIMIT) };
        done(result).map_err(|error| failed("ibv_modify_srq", &self.open.name, error))
    }

    /// Posts what was prepared, by one call; returns how many receives were taken. The others are forgotten.
    pub(crate) fn receive(&self, list: &mut ReceiveList) -> usize {
        let count = std::mem::take(&mut list.waiting);
        if count == 0 {
            return 0;
        }
        let (requests, pieces) = (list.requests.as_mut_ptr(), list.pieces.as_mut_ptr());
        for (at, request) in list.requests[..count].iter_mut().enumerate() {
            request.sg_list = pieces.wrapping_add(at);
            request.next = requests.wrapping_add(at + 1);
        }
        list.requests[count - 1].next = ptr::null_mut();
        let first = list.requests.as_mut_ptr();
        let mut bad: *mut RecvWr = ptr::null_mut();
        // SAFETY: the queue is alive; the list of `count` requests ends with a null, and it and its pieces
        // are read before the call returns. The memory that they name is registered; once it is not, the
        // device refuses it.
        match unsafe { (self.post)(self.raw, first, &raw mut bad) } {
            0 => count,
            _ => taken(first.addr(), bad.addr(), size_of::<RecvWr>()).min(count),
        }
    }
}

/// Receives that were prepared, up to 16 of them, and are to be posted to a shared queue by one call.
pub(crate) struct ReceiveList {
    requests: Box<[RecvWr; RECEIVES]>,
    pieces: Box<[Sge; RECEIVES]>,
    waiting: usize,
}

// SAFETY: the pointers in its requests are to its own memory, and are written before each use.
unsafe impl Send for ReceiveList {}

impl fmt::Debug for ReceiveList {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ReceiveList of {}", self.waiting)
    }
}

impl Default for ReceiveList {
    fn default() -> Self {
        let mut request = RecvWr::zeroed();
        request.num_sge = 1;
        Self {
            requests: Box::new([request; RECEIVES]),
            pieces: Box::new([Sge::zeroed(); RECEIVES]),
            waiting: 0,
        }
    }
}

impl ReceiveList {
    /// Prepares a receive, by its number and the piece of memory that it fills.
    ///
    /// # Errors
    /// If as many wait as there is room for.
    #[inline(always)]
    pub(crate) fn next(&mut self, id: u64, into: Piece) -> Result<(), Broken> {
        let place = self.waiting;
        let (Some(request), Some(piece)) = (self.requests.get_mut(place), self.pieces.get_mut(place)) else {
            return Err(Broken);
        };
        *piece = into.0;
        request.wr_id = id;
        self.waiting += 1;
        Ok(())
    }
}

impl ReliablePair {
    /// Makes a queue pair in state RESET.
    ///
    /// # Errors
    /// If the system refuses it, or grants less than was requested.
    pub(crate) fn new(
        shared: &Arc<SharedQueue>,
        (sent, received): (&Arc<Completions>, &Arc<Completions>),
        sizes: ReliableSizes,
    ) -> Result<Self, VerbsError> {
        let mut attributes = QpInitAttr::zeroed();
        attributes.srq = shared.raw;
        attributes.cap.max_send_sge = sizes.pieces.min(PIECES) as u32;
        let mut made = Self::make(&shared.domain, (sent, received), attributes, sizes)?;
        made.shared = Some(Arc::clone(shared));
        Ok(made)
    }

    /// Makes a queue pair that receives nothing, in state RESET.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn one_sided(
        domain: &Arc<Domain>,
        ended: &Arc<Completions>,
        sizes: ReliableSizes,
    ) -> Result<Self, VerbsError> {
        let mut attributes = QpInitAttr::zeroed();
        // Not every provider makes queues of no entries.
        (attributes.cap.max_recv_wr, attributes.cap.max_recv_sge) = (1, 1);
        attributes.cap.max_send_sge = 1;
        Self::make(domain, (ended, ended), attributes, sizes)
    }

    fn make(
        domain: &Arc<Domain>,
        (sent, received): (&Arc<Completions>, &Arc<Completions>),
        mut attributes: QpInitAttr,
        sizes: ReliableSizes,
    ) -> Result<Self, VerbsError> {
        let open = &domain.open;
        let wanted = sizes.sends + 1;
        (attributes.send_cq, attributes.recv_cq) = (sent.raw, received.raw);
        attributes.qp_type = numbers::QPT_RC;
        attributes.cap.max_send_wr = wanted as u32;
        attributes.cap.max_inline_data = sizes.inline as u32;
        let pair = Self {
            raw: domain.create_pair(&mut attributes)?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            sent: Arc::clone(sent),
            received: Arc::clone(received),
            shared: None,
            granted: attributes.cap,
        };
        if (pair.granted.max_send_wr as usize) < wanted {
            return Err(VerbsError::Nonsense {
                device: open.name.clone(),
                what: format!(
                    "a queue pair of {} sends where {wanted} were requested",
                    pair.granted.max_send_wr
                ),
            });
        }
        Ok(pair)
    }

    /// Whether an event is about this queue pair.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.raw.addr() as u64 == event.object
    }

    /// The number by which peers name it.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number does not change.
        unsafe { (*self.raw).qp_num }
    }

    /// Bytes that go with a request itself.
    #[inline]
    pub(crate) fn inline(&self) -> usize {
        self.granted.max_inline_data as usize
    }

    /// Whether the library reports that what the other end writes is there in order, so that its last byte
    /// shows all of it. An older library does not report it.
    pub(crate) fn is_written_in_order(&self) -> bool {
        let Some(query) = self.open.library.functions.query_data_in_order else {
            return false;
        };
        // SAFETY: the queue pair is alive, and a kind of request and no flags are passed.
        unsafe { query(self.raw, numbers::WR_RDMA_WRITE, 0) == 1 }
    }

    /// Changes its state.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn modify(&self, mut attributes: QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let open = &self.open;
        // SAFETY: the queue pair is alive; the attributes are read.
        let result = unsafe { (open.library.functions.modify_qp)(self.raw, &raw mut attributes, mask) };
        done(result).map_err(|error| failed("ibv_modify_qp", &open.name, error))
    }
}

/// Pieces of one request: the slot, and a body that lies elsewhere.
pub(crate) const PIECES: usize = 2;

/// The requests of one queue pair: those that are prepared, and the memory of those under way.
pub(crate) struct Poster {
    pair: ReliablePair,
    list: SendList<PIECES>,
    /// Bodies of the requests under way, by their numbers, and how many there are.
    kept: Box<[Option<Arc<Registered>>]>,
    bodies: usize,
    /// What the requests of every connection name.
    #[allow(dead_code)] // kept alive
    memory: [Arc<Registered>; 2],
}

impl fmt::Debug for Poster {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Poster of {:?}", self.pair)
    }
}

impl Poster {
    /// Drives a queue pair that was made for `sends` requests, a power of two.
    pub(crate) fn new(pair: ReliablePair, sends: usize, memory: [Arc<Registered>; 2]) -> Self {
        Self {
            pair,
            list: SendList::new(sends),
            kept: vec![None; sends].into(),
            bodies: 0,
            memory,
        }
    }

    /// Its queue pair.
    #[inline]
    pub(crate) fn pair(&self) -> &ReliablePair {
        &self.pair
    }

    /// Prepares a send of a place, followed by a body that lies elsewhere. A short one goes with the request.
    ///
    /// # Errors
    /// If as many wait as the queue holds, or a place is not inside its memory.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        id: u64,
        (memory, at, length): (&Registered, usize, usize),
        body: Option<&Place>,
        signalled: bool,
    ) -> Result<(), Broken> {
        let first = memory.piece(at, length).ok_or(Broken)?;
        let second = match body {
            Some(body) => Some(body.memory.piece(body.at, body.length).ok_or(Broken)?),
            None => None,
        };
        if let Some(body) = body {
            let kept = self.kept(id);
            let former = self.kept[kept].replace(Arc::clone(&body.memory));
            self.bodies += usize::from(former.is_none());
        }
        let request = self.next(id, first, second, signalled)?;
        request.opcode = numbers::WR_SEND;
        Ok(())
    }

    /// Prepares a write of a place to the peer's memory at an address, under a key; of no bytes, it touches
    /// nothing.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub(crate) fn write(
        &mut self,
        id: u64,
        (memory, at, length): (&Registered, usize, usize),
        (address, key): (u64, u32),
        signalled: bool,
    ) -> Result<(), Broken> {
        let piece = memory.piece(at, length).ok_or(Broken)?;
        let request = self.next(id, piece, None, signalled)?;
        request.opcode = numbers::WR_RDMA_WRITE;
        request.first = [address, key.into(), 0, 0];
        if length == 0 {
            request.num_sge = 0;
        }
        Ok(())
    }

    #[inline]
    fn kept(&self, id: u64) -> usize {
        id as usize & (self.kept.len() - 1)
    }

    #[inline(always)]
    fn next(
        &mut self,
        id: u64,
        first: Sge,
        second: Option<Sge>,
        signalled: bool,
    ) -> Result<&mut SendWr, Broken> {
        let (request, pieces) = self.list.next(id, first)?;
        let mut flags = if signalled { numbers::SEND_SIGNALED } else { 0 };
        if let Some(second) = second {
            request.num_sge = 2;
            pieces[1] = second;
        } else {
            request.num_sge = 1;
            if first.length <= self.pair.granted.max_inline_data {
                flags |= numbers::SEND_INLINE;
            }
        }
        request.send_flags = flags;
        Ok(request)
    }

    /// Has the last one that was prepared report when it is done.
    #[inline]
    pub(crate) fn signal_last(&mut self) {
        self.list.signal_last();
    }

    /// Posts what was prepared, with one doorbell; returns how many requests were taken. The others are
    /// forgotten.
    #[inline]
    pub(crate) fn post(&mut self) -> usize {
        // SAFETY: the queue pair is alive. Bytes that go with a request are of memory that is kept here until
        // the request has ended.
        unsafe { self.list.post(&self.pair.open, self.pair.raw, usize::MAX) }
    }

    /// Lets go of the memory of requests, which have ended.
    #[inline]
    pub(crate) fn ended(&mut self, ids: RangeInclusive<u64>) {
        if self.bodies > 0 {
            self.let_go(ids);
        }
    }

    #[cold]
    fn let_go(&mut self, ids: RangeInclusive<u64>) {
        for id in ids {
            let kept = self.kept(id);
            self.bodies -= usize::from(self.kept[kept].take().is_some());
        }
    }
}
