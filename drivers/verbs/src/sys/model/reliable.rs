//! Reliable connections of the model: requests are carried while they are posted, end in order, and go wrong
//! where a test wants it.

use super::*;

/// A receive queue that many queue pairs share.
pub(super) struct Shared {
    device: String,
    most: usize,
    /// An event is raised when fewer are left.
    limit: usize,
    receives: VecDeque<(u64, u64, u32, u32)>,
}

impl Shared {
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.device == name
    }
}

/// Registered memory, by its key.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: u64,
    pub(super) length: usize,
    pub(super) domain: usize,
    pub(super) access: c_int,
}

impl Memory {
    pub(super) fn new(start: u64, length: usize, domain: usize, access: c_int) -> Self {
        Self {
            start,
            length,
            domain,
            access,
        }
    }

    pub(super) fn has(&self, at: u64, length: usize) -> bool {
        let end = at.checked_add(length as u64);
        at >= self.start && end.is_some_and(|end| end <= self.start + self.length as u64)
    }
}

/// What a queue pair of a reliable connection has besides.
pub(super) struct Half {
    pub(super) domain: usize,
    shared: usize,
    inline: usize,
    /// The numbers of the packets that it sends, and expects.
    sends: u32,
    expects: u32,
    access: c_int,
    /// The place of its partition in the table.
    partition: u16,
    /// Reads and atomics that it may have under way, that it answers, and that do not end.
    reads: (u8, u8),
    pub(super) held_reads: u8,
    pub(super) to: AhAttr,
    pub(super) mtu: c_int,
    other: u32,
    /// Requests posted, and known to be ended, in all.
    posted: u64,
    retired: u64,
    /// Requests that do not end.
    held: Vec<u64>,
    /// Requests that are executed later, in their order.
    pub(super) later: VecDeque<onesided::Later>,
}

impl Half {
    /// Whether messages arrive over it.
    pub(super) fn receives(&self) -> bool {
        self.shared != 0
    }

    pub(super) fn of(attributes: &QpInitAttr, domain: usize) -> Option<Self> {
        (attributes.qp_type == numbers::QPT_RC).then(|| Self {
            domain,
            shared: attributes.srq as usize,
            inline: attributes.cap.max_inline_data as usize,
            sends: 0,
            expects: 0,
            access: 0,
            partition: 0,
            reads: (0, 0),
            held_reads: 0,
            to: AhAttr::zeroed(),
            mtu: 0,
            other: 0,
            posted: 0,
            retired: 0,
            held: Vec::new(),
            later: VecDeque::new(),
        })
    }
}

/// What goes wrong with a request of a device's reliable queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Requests before it.
    pub(crate) after: u32,
    /// How it ends.
    pub(crate) status: c_int,
    /// Whether it is carried all the same.
    pub(crate) is_carried: bool,
}

/// Has a request of a device end with an error.
pub(crate) fn fail_request(name: &str, fault: Fault) {
    world().device(name).faults.push(fault);
}

/// Has the next sends of a device end in the middle, as over soft-RoCE: the receive that one has begun to
/// fill ends with its queue pair, and without a completion.
pub(crate) fn tear_sends(name: &str, count: u32) {
    world().device(name).torn = count;
}

/// Has requests of a device not end from now on, or end as they should.
pub(crate) fn hold_requests(name: &str, is_held: bool) {
    world().device(name).is_held = is_held;
}

/// Has bytes arrive over a connected queue pair of a device, as a send of its peer.
pub(crate) fn inject(name: &str, bytes: &[u8]) {
    let mut world = world();
    let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_some() && pair.state >= numbers::RTR;
    let to = world.pairs.iter().find(|(_, pair)| is_it(pair));
    let (at, pair) = to.expect("a connected pair");
    let half = pair.reliable.as_ref().expect("it was looked for");
    let target = Target::of(*at, pair, half);
    // SAFETY: receives of the model name registered memory.
    let status = unsafe { world.deliver(&target, bytes) };
    assert_eq!(status, numbers::SUCCESS);
}

/// Has requests of a device that did not end do so, and well; nothing of them was carried.
pub(crate) fn release_requests(name: &str) {
    let mut world = world();
    world.device(name).is_held = false;
    let of_device = |(_, pair): &(&usize, &mut Pair)| pair.device == name;
    let pairs = world.pairs.iter_mut().filter(of_device);
    let held: Vec<_> = pairs
        .filter_map(|(at, pair)| {
            let half = pair.reliable.as_mut()?;
            half.held_reads = 0;
            Some((
                *at,
                pair.send,
                pair.number,
                half.posted,
                std::mem::take(&mut half.held),
            ))
        })
        .collect();
    for (at, queue, number, posted, ids) in held {
        for id in ids {
            let mut done = Wc::zeroed();
            (done.wr_id, done.qp_num) = (id, number);
            world.complete_for(queue, done, at, posted);
        }
    }
}

/// The places of the partitions that a device's queue pairs of connections name.
pub(crate) fn partitions_in_use(name: &str) -> Vec<u16> {
    let world = world();
    let of_device = world.pairs.values().filter(|pair| pair.device == name);
    let halves = of_device.filter_map(|pair| pair.reliable.as_ref());
    halves.map(|half| half.partition).collect()
}

/// The receives that are left in the shared queues of a device.
pub(crate) fn shared_receives(name: &str) -> usize {
    let world = world();
    let of_device = world.shared.values().filter(|shared| shared.device == name);
    of_device.map(|shared| shared.receives.len()).sum()
}

pub(super) unsafe extern "C" fn create_srq(pd: *mut Pd, attributes: *mut SrqInitAttr) -> *mut Srq {
    // SAFETY: a domain of the model, and the caller's attributes.
    unsafe {
        let context = (*pd).context;
        let name = name_of(context);
        let mut world = world();
        if !world.makes(&name, "create_srq") {
            return std::ptr::null_mut();
        }
        let mut srq = Srq::zeroed();
        (srq.context, srq.pd) = (context, pd);
        let srq = Box::into_raw(Box::new(srq));
        let shared = Shared {
            device: name,
            most: (*attributes).attr.max_wr as usize,
            limit: 0,
            receives: VecDeque::with_capacity((*attributes).attr.max_wr as usize),
        };
        let lacks = world.device(&shared.device).spec.limits.lacks[1];
        world.shared.insert(srq as usize, shared);
        (*attributes).attr.max_wr -= lacks;
        srq
    }
}

pub(super) unsafe extern "C" fn modify_srq(srq: *mut Srq, attributes: *mut SrqAttr, mask: c_int) -> c_int {
    if mask != numbers::HAS_SRQ_LIMIT {
        return libc::EINVAL;
    }
    let mut world = world();
    let shared = world.shared.get_mut(&(srq as usize)).expect("a shared queue");
    // SAFETY: the caller's attributes.
    shared.limit = unsafe { (*attributes).srq_limit } as usize;
    0
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut Srq) -> c_int {
    {
        let mut world = world();
        let mut halves = world.pairs.values().filter_map(|pair| pair.reliable.as_ref());
        assert!(
            halves.all(|half| half.shared != srq as usize),
            "a shared receive queue ends before its queue pairs"
        );
        world.shared.remove(&(srq as usize));
    }
    // SAFETY: made by the model.
    unsafe { end(srq, (*srq).context) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut Srq,
    request: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    let _own = Own::count();
    Driven::count(|driven| driven.receives += 1);
    let mut world = world();
    let mut next = request;
    // SAFETY: a list of the caller's requests, each with one piece.
    unsafe {
        while let Some(this) = next.as_ref() {
            let shared = world.shared.get_mut(&(srq as usize)).expect("a shared queue");
            if shared.receives.len() == shared.most {
                *bad = next;
                return libc::ENOMEM;
            }
            let piece = *this.sg_list;
            shared
                .receives
                .push_back((this.wr_id, piece.addr, piece.length, piece.lkey));
            let memory = world.memory.get(&piece.lkey).expect("registered memory");
            assert!(
                memory.has(piece.addr, piece.length as usize),
                "a receive outside its memory"
            );
            next = this.next;
        }
    }
    0
}

/// What a request does, found out before anything moves.
pub(super) struct Target {
    pub(super) at: usize,
    queue: usize,
    number: u32,
    pub(super) domain: usize,
    shared: usize,
    pub(super) access: c_int,
    reads: u8,
}

impl Target {
    fn of(at: usize, pair: &Pair, half: &Half) -> Self {
        Self {
            at,
            queue: pair.received,
            number: pair.number,
            domain: half.domain,
            shared: half.shared,
            access: half.access,
            reads: half.reads.1,
        }
    }
}

impl World {
    /// Has a receive of a device be used.
    pub(super) fn uses(&mut self, name: &str, id: u64) {
        for shared in self.shared.values_mut().filter(|shared| shared.device == name) {
            if let Some(at) = shared.receives.iter().position(|receive| receive.0 == id) {
                shared.receives.remove(at);
                return;
            }
        }
    }

    /// The masks that each step needs, and what follows what.
    pub(super) fn modify_reliable(&mut self, at: usize, attributes: &QpAttr, mask: c_int) -> c_int {
        let needed = match attributes.qp_state {
            numbers::INIT => numbers::HAS_PKEY_INDEX | numbers::HAS_PORT | numbers::HAS_ACCESS_FLAGS,
            numbers::RTR => {
                numbers::HAS_AV
                    | numbers::HAS_PATH_MTU
                    | numbers::HAS_DEST_QPN
                    | numbers::HAS_RQ_PSN
                    | numbers::HAS_MAX_DEST_RD_ATOMIC
                    | numbers::HAS_MIN_RNR_TIMER
            }
            numbers::RTS => {
                numbers::HAS_SQ_PSN
                    | numbers::HAS_MAX_QP_RD_ATOMIC
                    | numbers::HAS_TIMEOUT
                    | numbers::HAS_RETRY_CNT
                    | numbers::HAS_RNR_RETRY
            }
            numbers::ERR => 0,
            _ => return libc::EINVAL,
        };
        if attributes.qp_state == numbers::RTR {
            let name = self.pairs[&at].device.clone();
            self.resolves(&name, attributes.ah_attr.grh.dgid.0);
        }
        let pair = self.pairs.get_mut(&at).expect("a pair of the model");
        let follows = attributes.qp_state == numbers::ERR || attributes.qp_state == pair.state + 1;
        if mask != numbers::HAS_STATE | needed || !follows {
            return libc::EINVAL;
        }
        let half = pair.reliable.as_mut().expect("a reliable one");
        match attributes.qp_state {
            numbers::INIT => {
                half.access = attributes.qp_access_flags as c_int;
                half.partition = attributes.pkey_index;
            }
            numbers::RTR => {
                (half.to, half.other) = (attributes.ah_attr, attributes.dest_qp_num);
                half.mtu = attributes.path_mtu;
                half.expects = attributes.rq_psn;
                half.reads.1 = attributes.max_dest_rd_atomic;
            }
            numbers::RTS => (half.sends, half.reads.0) = (attributes.sq_psn, attributes.max_rd_atomic),
            _ => {
                if pair.state != numbers::ERR {
                    self.fall(at);
                }
                return 0;
            }
        }
        pair.state = attributes.qp_state;
        0
    }

    /// A queue pair moves to ERR.
    pub(super) fn fall(&mut self, at: usize) {
        let pair = self.pairs.get_mut(&at).expect("a pair of the model");
        let (device, was_ready) = (pair.device.clone(), pair.state >= numbers::RTR);
        self.error(at);
        if was_ready {
            let device = self.device(&device);
            device
                .events
                .push_back((numbers::EVENT_QP_LAST_WQE_REACHED, at as u64));
            signal(device.async_fd);
        }
    }

    /// Flushes the requests that did not end.
    pub(super) fn flush_held(&mut self, at: usize) {
        let Some(pair) = self.pairs.get_mut(&at) else {
            return;
        };
        let (queue, number) = (pair.send, pair.number);
        let Some(half) = &mut pair.reliable else { return };
        half.held_reads = 0;
        let later = std::mem::take(&mut half.later);
        let later = later.iter().map(onesided::Later::id);
        for id in std::mem::take(&mut half.held).into_iter().chain(later) {
            self.complete_for(queue, failed(id, number, numbers::WR_FLUSH_ERR), at, 0);
        }
    }

    /// A completion was polled: the requests up to it have room again.
    pub(super) fn retire(&mut self, at: usize, retires: u64) {
        let half = self.pairs.get_mut(&at).and_then(|pair| pair.reliable.as_mut());
        if let Some(half) = half {
            half.retired = half.retired.max(retires);
        }
    }

    /// Takes one request; `false`, where the queue is full or not in a state to send.
    ///
    /// # Safety
    /// The request's pieces are memory that may be read, and what receives and registrations of the model
    /// name may be written.
    pub(super) unsafe fn post_reliable(&mut self, at: usize, request: &SendWr) -> bool {
        let pair = self.pairs.get_mut(&at).expect("a pair of the model");
        let (state, device) = (pair.state, pair.device.clone());
        let most = pair.sends_most as u64;
        let half = pair.reliable.as_mut().expect("a reliable one");
        if state != numbers::RTS && state != numbers::ERR || half.posted - half.retired >= most {
            return false;
        }
        // As the library does for soft-RoCE.
        let is_bind = request.opcode == numbers::WR_BIND_MW;
        if is_bind && (request.imm_data != 0 || request.num_sge != 0) {
            return false;
        }
        half.posted += 1;
        let posted = half.posted;
        let device_now = self.device(&device);
        let is_held = device_now.is_held || device_now.holds_binds && is_bind;
        if is_held && state == numbers::RTS {
            let half = self.pairs.get_mut(&at).and_then(|pair| pair.reliable.as_mut());
            let half = half.expect("a reliable one");
            half.held.push(request.wr_id);
            half.held_reads += u8::from(onesided::is_read(request.opcode));
            assert!(
                half.held_reads <= half.reads.0,
                "more reads under way than agreed"
            );
            return true;
        }
        if state == numbers::RTS && self.device(&device).random.is_some() {
            // SAFETY: the caller's promise.
            let later = unsafe { onesided::Later::new(request, posted) };
            let half = self.pairs.get_mut(&at).and_then(|pair| pair.reliable.as_mut());
            let half = half.expect("a reliable one");
            half.later.push_back(later);
            half.held_reads += u8::from(onesided::is_read(request.opcode));
            assert!(
                half.held_reads <= half.reads.0,
                "more reads under way than agreed"
            );
            return true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.execute(at, request, posted, None) };
        true
    }

    /// Executes a request; a window that it names was looked at when it was posted.
    ///
    /// # Safety
    /// As of [`post_reliable`](Self::post_reliable).
    pub(super) unsafe fn execute(
        &mut self,
        at: usize,
        request: &SendWr,
        posted: u64,
        window: Option<onesided::Named>,
    ) {
        let pair = self.pairs.get_mut(&at).expect("a pair of the model");
        let (state, queue, number, device) = (pair.state, pair.send, pair.number, pair.device.clone());
        let fault = match state {
            numbers::RTS => self.next_fault(&device),
            _ => None,
        };
        let status = match (state, fault) {
            (numbers::ERR, _) => numbers::WR_FLUSH_ERR,
            (_, Some(fault)) => {
                if fault.is_carried {
                    // SAFETY: the caller's promise.
                    unsafe { self.carry(at, request, window) };
                }
                fault.status
            }
            // SAFETY: the caller's promise.
            _ => unsafe { self.carry(at, request, window) },
        };
        let mut done = Wc::zeroed();
        (done.wr_id, done.qp_num) = (request.wr_id, number);
        if status != numbers::SUCCESS {
            done = failed(request.wr_id, number, status);
        }
        if status != numbers::SUCCESS || request.send_flags & numbers::SEND_SIGNALED != 0 {
            self.complete_for(queue, done, at, posted);
        }
        if status != numbers::SUCCESS && state != numbers::ERR {
            self.fall(at);
        }
    }

    fn next_fault(&mut self, device: &str) -> Option<Fault> {
        let faults = &mut self.device(device).faults;
        let due = faults.iter().position(|fault| fault.after == 0);
        faults
            .iter_mut()
            .for_each(|fault| fault.after = fault.after.saturating_sub(1));
        due.map(|due| faults.remove(due))
    }

    /// Carries a request to the other end; returns how it ends.
    ///
    /// # Safety
    /// As of [`post_reliable`](Self::post_reliable).
    unsafe fn carry(&mut self, at: usize, request: &SendWr, window: Option<onesided::Named>) -> c_int {
        // SAFETY: the caller's promise.
        if let Some(status) = unsafe { self.window(at, request, window) } {
            return status;
        }
        let Some(target) = self.target(at) else {
            return numbers::RETRY_EXC_ERR;
        };
        let half = self.pairs[&at].reliable.as_ref().expect("a reliable one");
        let (domain, inline) = (half.domain, half.inline);
        let is_inline = request.send_flags & numbers::SEND_INLINE != 0;
        let mut bytes = Vec::new();
        for index in 0..request.num_sge as usize {
            // SAFETY: the caller's list.
            let piece = unsafe { *request.sg_list.add(index) };
            let memory = self.memory.get(&piece.lkey);
            let registered = memory.is_some_and(|memory| {
                memory.has(piece.addr, piece.length as usize) && memory.domain == domain
            });
            if !is_inline && !registered {
                return numbers::LOC_PROT_ERR;
            }
            let start: *const u8 = std::ptr::with_exposed_provenance(piece.addr as usize);
            // SAFETY: the caller's promise.
            let part = unsafe { std::slice::from_raw_parts(start, piece.length as usize) };
            bytes.extend_from_slice(part);
        }
        if onesided::is_read(request.opcode) {
            let half = self.pairs[&at].reliable.as_ref().expect("a reliable one");
            if half.reads.0 == 0 || target.reads < half.reads.0 {
                self.fall(target.at);
                return numbers::REM_INV_REQ_ERR;
            }
            // SAFETY: the caller's promise.
            return unsafe { self.read(&target, request, bytes.len()) };
        }
        if is_inline && bytes.len() > inline {
            return numbers::LOC_LEN_ERR;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match request.opcode {
                numbers::WR_SEND if self.tears(at) => {
                    let shared = self.shared.get_mut(&target.shared).expect("a shared queue");
                    shared.receives.pop_front();
                    numbers::RETRY_EXC_ERR
                }
                numbers::WR_SEND => self.deliver(&target, &bytes),
                numbers::WR_RDMA_WRITE if self.is_late(at, bytes.len()) => {
                    self.write_late(at, &target, request.first, bytes)
                }
                numbers::WR_RDMA_WRITE => self.write(&target, request.first, &bytes),
                _ => numbers::LOC_QP_OP_ERR,
            }
        }
    }

    /// Whether the next send of a queue pair ends in the middle.
    fn tears(&mut self, at: usize) -> bool {
        let name = self.pairs[&at].device.clone();
        let torn = &mut self.device(&name).torn;
        let is_torn = *torn > 0;
        *torn = torn.saturating_sub(1);
        is_torn
    }

    /// The other end of a connection, if it is there, reached, and means this one.
    fn target(&mut self, at: usize) -> Option<Target> {
        let pair = &self.pairs[&at];
        let half = pair.reliable.as_ref()?;
        let (number, to, other, sends) = (pair.number, half.to, half.other, half.sends);
        let up = |dev: &Dev| dev.spec.state == numbers::PORT_ACTIVE;
        let own = pair.device.clone();
        if !up(self.device(&own)) {
            return None;
        }
        let holds = |dev: &&Dev| dev.is_at(&to) && up(dev);
        let peer = self.devices.iter().find(holds)?.spec.name.clone();
        let (at, pair) = self
            .pairs
            .iter()
            .find(|(_, pair)| pair.device == peer && pair.number == other)?;
        let half = pair.reliable.as_ref()?;
        let is_ready = pair.state == numbers::RTR || pair.state == numbers::RTS;
        let is_its_peer = half.other == number && half.expects == sends;
        (is_ready && is_its_peer).then(|| Target::of(*at, pair, half))
    }

    /// # Safety
    /// What receives of the model name may be written.
    unsafe fn deliver(&mut self, target: &Target, bytes: &[u8]) -> c_int {
        let shared = self.shared.get_mut(&target.shared).expect("a shared queue");
        let Some((id, addr, room, key)) = shared.receives.pop_front() else {
            return numbers::RNR_RETRY_EXC_ERR;
        };
        let device = shared.device.clone();
        if shared.receives.len() < shared.limit {
            shared.limit = 0;
            let device = self.device(&device);
            device
                .events
                .push_back((numbers::EVENT_SRQ_LIMIT_REACHED, target.shared as u64));
            signal(device.async_fd);
        }
        if bytes.len() > room as usize {
            self.fall(target.at);
            return numbers::REM_INV_REQ_ERR;
        }
        let memory = self.memory.get(&key).expect("registered memory");
        assert!(memory.has(addr, room as usize), "a receive outside its memory");
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: the caller's promise: the receive has room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        let mut arrived = Wc::zeroed();
        (arrived.wr_id, arrived.opcode, arrived.byte_len) = (id, numbers::WC_RECV, bytes.len() as u32);
        arrived.qp_num = target.number;
        self.complete(target.queue, arrived);
        numbers::SUCCESS
    }

    /// # Safety
    /// What registrations of the model name may be written.
    unsafe fn write(&mut self, target: &Target, [address, key, ..]: [u64; 4], bytes: &[u8]) -> c_int {
        if bytes.is_empty() {
            return numbers::SUCCESS;
        }
        if !self.is_allowed(target, (address, key as u32), bytes.len(), numbers::REMOTE_WRITE) {
            self.fall(target.at);
            return numbers::REM_ACCESS_ERR;
        }
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller's promise: the memory is registered to be written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        numbers::SUCCESS
    }
}
