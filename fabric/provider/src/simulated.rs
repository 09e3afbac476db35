//! A client of the provider on a simulated network, in its time: for tests with rails that lose, double and
//! reorder frames, die and come back, alike for one seed each time.
//!
//! It makes its calls through the tables that other clients use, in one thread (`FI_THREAD_DOMAIN`). It keeps
//! the memory that it lends until the operation has ended, and notes which operations have.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use doorbell_fabric::memory::RegionSlice;
use doorbell_job::rails::AnyRail;
use doorbell_job::{Config, Error};
use doorbell_pml::{Pml, Rank};
use doorbell_sim::SimNet;
use libc::iovec;
use libfabric_sys::*;

use crate::domain::{Domain, State};
use crate::ep::EndpointObject;
use crate::fabric;
use crate::member::Member;
use crate::object::this;

/// Memory for many messages is given back where one of this length, the longest that is injected, finds no
/// room.
const LONGEST_INJECT: usize = crate::ep::limits::INJECT;

/// What a client is opened with.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The settings of its member.
    pub config: Config,
    /// The network that the rails are of.
    pub net: &'a SimNet,
    /// What takes the place of random numbers; see `PmlMember::enter_simulated`.
    pub number: u64,
    /// How many endpoints it has.
    pub endpoints: usize,
    /// Whether each of them has a queue of its own.
    pub apart: bool,
}

/// The memory of an operation that has not ended.
#[derive(Debug, Default)]
struct Lent {
    memory: Option<RegionSlice>,
    /// Where it puts what it fetches, of one that has other memory, too.
    #[allow(dead_code, reason = "kept until then")]
    also: Option<RegionSlice>,
    /// Whether it takes many messages.
    multi: bool,
}

impl Lent {
    fn one(memory: RegionSlice) -> Self {
        Self {
            memory: Some(memory),
            ..Self::default()
        }
    }
}

/// What a queue gave.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The number of the operation; 0 for a failure of messages that were injected.
    pub operation: u64,
    /// Whether that operation was under way: else it has ended more than once.
    pub was_open: bool,
    /// The flags of the entry.
    pub flags: u64,
    /// Bytes of the message, or of it that were delivered.
    pub length: usize,
    /// Where in the memory of an operation for many messages this one is.
    pub offset: usize,
    /// The tag of the message.
    pub tag: u64,
    /// The data of the message, if it has some.
    pub data: Option<u64>,
    /// The address of the sender, if it has one here.
    pub sender: fi_addr_t,
    /// The error number, and what it means in one sentence, of an operation that failed.
    pub failure: Option<(c_int, String)>,
}

/// Which messages a receive, or a search, is for.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The sender, or `FI_ADDR_UNSPEC`.
    pub from: fi_addr_t,
    /// The tag that messages have.
    pub tag: u64,
    /// The bits of the tag that do not count.
    pub ignore: u64,
}

/// A client: a domain with its endpoints.
#[derive(Debug)]
pub struct Client {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    vector: *mut fid_av,
    queues: Vec<*mut fid_cq>,
    endpoints: Vec<*mut fid_ep>,
    open: HashMap<u64, Lent>,
    /// Memory that peers may reach.
    registered: Vec<(*mut fid_mr, RegionSlice)>,
    /// The number of the last operation.
    last: u64,
}

/// Opens an object by a call that writes its address.
///
/// # Panics
/// When the call fails.
fn opened<T>(call: &str, open: impl FnOnce(*mut *mut T) -> c_int) -> *mut T {
    let mut object = ptr::null_mut();
    let result = open(&raw mut object);
    assert!(result == 0 && !object.is_null(), "{call}: {result}");
    object
}

/// Checks the result of a call that must not fail.
///
/// # Panics
/// When it has failed.
fn good(call: &str, result: c_int) {
    assert_eq!(result, 0, "{call}");
}

/// The answer of a call that starts an operation.
fn started(answer: isize) -> Result<(), c_int> {
    match answer {
        0 => Ok(()),
        error => Err(-error as c_int),
    }
}

/// An operation as a context.
fn context_of(operation: u64) -> *mut c_void {
    ptr::without_provenance_mut(operation as usize)
}

impl Client {
    /// Opens a client over these rails.
    ///
    /// # Errors
    /// Those of the member.
    ///
    /// # Panics
    /// When an object cannot be opened.
    pub fn open(setup: Setup<'_>, rails: Vec<AnyRail>) -> Result<Self, Error> {
        let null = ptr::null_mut();
        let Setup {
            config, net, number, ..
        } = setup;
        let member = Member::enter_simulated(config.clone(), rails, net, number)?;
        // SAFETY: the place for the result is the function's.
        let fabric = opened("fi_fabric", |to| unsafe {
            fabric::open(ptr::null_mut(), to, null)
        });
        // SAFETY: the fabric is open.
        let domain = Domain::simulated(unsafe { fabric::of(fabric) }, &config, member);
        let mut attr = fi_av_attr {
            r#type: FI_AV_MAP,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let vector = opened("fi_av_open", |to| unsafe {
            fi_av_open(domain, &mut attr, to, null)
        });
        let mut client = Self {
            fabric,
            domain,
            vector,
            queues: Vec::new(),
            endpoints: Vec::new(),
            open: HashMap::new(),
            registered: Vec::new(),
            last: 0,
        };
        for at in 0..setup.endpoints {
            if at == 0 || setup.apart {
                client.add_queue();
            }
            client.add_endpoint();
        }
        Ok(client)
    }

    fn add_queue(&mut self) {
        let mut attr = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        self.queues.push(opened("fi_cq_open", |to| unsafe {
            fi_cq_open(self.domain, &mut attr, to, ptr::null_mut())
        }));
    }

    fn add_endpoint(&mut self) {
        let mut info = fi_info {
            caps: FI_MSG
                | FI_TAGGED
                | FI_SEND
                | FI_RECV
                | FI_MULTI_RECV
                | FI_DIRECTED_RECV
                | FI_SOURCE
                | FI_RMA
                | FI_ATOMIC,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open, and the info has no attributes.
        let endpoint = opened("fi_endpoint", |to| unsafe {
            fi_endpoint(self.domain, &raw mut info, to, ptr::null_mut())
        });
        self.endpoints.push(endpoint);
        let queue = self
            .queues
            .last()
            .map_or(ptr::null_mut(), |queue| queue.cast::<fid>());
        for (object, flags) in [(queue, FI_TRANSMIT | FI_RECV), (self.vector.cast(), 0)] {
            // SAFETY: both are open.
            good("fi_ep_bind", unsafe { fi_ep_bind(endpoint, object, flags) });
        }
        let least = LONGEST_INJECT;
        let (ep, least) = (endpoint.cast(), (&raw const least).cast());
        // SAFETY: the endpoint is open, and the option has this type.
        let set = unsafe {
            fi_setopt(
                ep,
                FI_OPT_ENDPOINT,
                FI_OPT_MIN_MULTI_RECV,
                least,
                size_of::<usize>(),
            )
        };
        good("fi_setopt", set);
        // SAFETY: it is open.
        good("fi_enable", unsafe { fi_enable(endpoint) });
    }

    /// Returns the name of an endpoint.
    #[must_use]
    pub fn name(&self, endpoint: usize) -> Vec<u8> {
        let mut name = vec![0; 256];
        let mut length = name.len();
        // SAFETY: the endpoint is open, and the memory has this length.
        let result = unsafe {
            fi_getname(
                self.endpoints[endpoint].cast(),
                name.as_mut_ptr().cast(),
                &mut length,
            )
        };
        good("fi_getname", result);
        name.truncate(length);
        name
    }

    /// Inserts the name of an endpoint, and returns its address.
    ///
    /// # Panics
    /// When it is not taken.
    pub fn insert(&mut self, name: &[u8]) -> fi_addr_t {
        let mut address = FI_ADDR_NOTAVAIL;
        let null = ptr::null_mut();
        // SAFETY: one address, and a place for its number.
        let count = unsafe { fi_av_insert(self.vector, name.as_ptr().cast(), 1, &mut address, 0, null) };
        assert_eq!(count, 1, "fi_av_insert");
        address
    }

    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// An operation was started, or not.
    fn begun(&mut self, operation: u64, lent: Lent, answer: isize) -> Result<u64, c_int> {
        started(answer)?;
        self.open.insert(operation, lent);
        Ok(operation)
    }

    /// Sends a tagged message; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn send_tagged(
        &mut self,
        endpoint: usize,
        to: fi_addr_t,
        tag: u64,
        data: Option<u64>,
        bytes: RegionSlice,
        flags: u64,
    ) -> Result<u64, c_int> {
        let operation = self.begin();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        let (ep, null, context) = (self.endpoints[endpoint], ptr::null_mut(), context_of(operation));
        let iov = iovec {
            iov_base: start.cast(),
            iov_len: length,
        };
        let message = fi_msg_tagged {
            msg_iov: &raw const iov,
            iov_count: 1,
            addr: to,
            tag,
            context,
            data: data.unwrap_or(0),
            ..Layout::zeroed()
        };
        let flags = flags | data.map_or(0, |_| FI_REMOTE_CQ_DATA);
        let answer = match (flags, data) {
            // SAFETY: the memory is kept until the operation has ended.
            (0, _) => unsafe { fi_tsend(ep, start.cast(), length, null, to, tag, context) },
            // SAFETY: as above.
            (FI_REMOTE_CQ_DATA, Some(data)) => unsafe {
                fi_tsenddata(ep, start.cast(), length, null, data, to, tag, context)
            },
            // SAFETY: as above.
            _ => unsafe { fi_tsendmsg(ep, &raw const message, flags | FI_COMPLETION) },
        };
        self.begun(operation, Lent::one(bytes), answer)
    }

    /// Sends bytes that are taken at once, with a tag or without one.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn inject(
        &mut self,
        endpoint: usize,
        to: fi_addr_t,
        tag: Option<u64>,
        bytes: &[u8],
    ) -> Result<(), c_int> {
        let (ep, start, length) = (self.endpoints[endpoint], bytes.as_ptr().cast(), bytes.len());
        started(match tag {
            // SAFETY: the bytes are taken during the call.
            Some(tag) => unsafe { fi_tinject(ep, start, length, to, tag) },
            // SAFETY: as above.
            None => unsafe { fi_inject(ep, start, length, to) },
        })
    }

    /// Posts a receive of tagged messages; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn receive_tagged(
        &mut self,
        endpoint: usize,
        pattern: Pattern,
        room: RegionSlice,
    ) -> Result<u64, c_int> {
        let operation = self.begin();
        let Pattern { from, tag, ignore } = pattern;
        let (ep, context) = (self.endpoints[endpoint], context_of(operation));
        let (start, length, null) = (room.as_mut_ptr().cast(), room.len(), ptr::null_mut());
        // SAFETY: the memory is kept until the operation has ended.
        let answer = unsafe { fi_trecv(ep, start, length, null, from, tag, ignore, context) };
        self.begun(operation, Lent::one(room), answer)
    }

    /// Posts memory for many untagged messages; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn receive_many(&mut self, endpoint: usize, room: RegionSlice) -> Result<u64, c_int> {
        let operation = self.begin();
        let iov = iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        let message = fi_msg {
            msg_iov: &raw const iov,
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            context: context_of(operation),
            ..Layout::zeroed()
        };
        // SAFETY: the memory is kept until the operation has ended.
        let answer = unsafe { fi_recvmsg(self.endpoints[endpoint], &raw const message, FI_MULTI_RECV) };
        let lent = Lent {
            multi: true,
            ..Lent::one(room)
        };
        self.begun(operation, lent, answer)
    }

    /// Looks for a tagged message: `FI_PEEK`, with `FI_CLAIM` or `FI_DISCARD`; returns the number of the
    /// operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn peek(&mut self, endpoint: usize, pattern: Pattern, flags: u64) -> Result<u64, c_int> {
        let operation = self.begin();
        let answer = self.search(endpoint, pattern, operation, None, flags);
        self.begun(operation, Lent::default(), answer)
    }

    /// Receives the message that a search has claimed, under the same number.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn receive_claimed(
        &mut self,
        endpoint: usize,
        claimed: u64,
        room: RegionSlice,
    ) -> Result<u64, c_int> {
        let pattern = Pattern {
            from: FI_ADDR_UNSPEC,
            tag: 0,
            ignore: 0,
        };
        let answer = self.search(endpoint, pattern, claimed, Some(&room), FI_CLAIM);
        self.begun(claimed, Lent::one(room), answer)
    }

    fn search(
        &mut self,
        endpoint: usize,
        pattern: Pattern,
        operation: u64,
        room: Option<&RegionSlice>,
        flags: u64,
    ) -> isize {
        let iov = room.map(|room| iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        });
        let message = fi_msg_tagged {
            msg_iov: iov.as_ref().map_or(ptr::null(), ptr::from_ref),
            iov_count: usize::from(iov.is_some()),
            addr: pattern.from,
            tag: pattern.tag,
            ignore: pattern.ignore,
            context: context_of(operation),
            ..Layout::zeroed()
        };
        // SAFETY: the memory, where there is some, is kept by the caller until the operation has ended.
        unsafe { fi_trecvmsg(self.endpoints[endpoint], &raw const message, flags) }
    }

    /// Lets peers reach memory by a key, at offsets.
    ///
    /// # Panics
    /// When it is refused.
    pub fn register(&mut self, memory: RegionSlice, key: u64) {
        let (start, length) = (memory.as_mut_ptr().cast(), memory.len());
        let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
        // SAFETY: the domain is open, and the memory is kept until the registration is closed.
        let registration = opened("fi_mr_reg", |to| unsafe {
            fi_mr_reg(self.domain, start, length, access, 0, key, 0, to, ptr::null_mut())
        });
        self.registered.push((registration, memory));
    }

    /// Writes a peer's memory, at an offset and by a key; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn write(
        &mut self,
        endpoint: usize,
        to: fi_addr_t,
        (at, key): (u64, u64),
        bytes: RegionSlice,
    ) -> Result<u64, c_int> {
        let operation = self.begin();
        let (start, length, null) = (bytes.as_mut_ptr().cast(), bytes.len(), ptr::null_mut());
        let (ep, context) = (self.endpoints[endpoint], context_of(operation));
        // SAFETY: the memory is kept until the operation has ended.
        let answer = unsafe { fi_write(ep, start, length, null, to, at, key, context) };
        self.begun(operation, Lent::one(bytes), answer)
    }

    /// Reads a peer's memory, at an offset and by a key; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn read_memory(
        &mut self,
        endpoint: usize,
        from: fi_addr_t,
        (at, key): (u64, u64),
        room: RegionSlice,
    ) -> Result<u64, c_int> {
        let operation = self.begin();
        let (start, length, null) = (room.as_mut_ptr().cast(), room.len(), ptr::null_mut());
        let (ep, context) = (self.endpoints[endpoint], context_of(operation));
        // SAFETY: the memory is kept until the operation has ended.
        let answer = unsafe { fi_read(ep, start, length, null, from, at, key, context) };
        self.begun(operation, Lent::one(room), answer)
    }

    /// Adds a word to that at an offset of a peer's memory, and fetches what was there where there is room
    /// for it; returns the number of the operation.
    ///
    /// # Errors
    /// The error number of the call.
    pub fn add(
        &mut self,
        endpoint: usize,
        to: fi_addr_t,
        (at, key): (u64, u64),
        by: RegionSlice,
        old: Option<RegionSlice>,
    ) -> Result<u64, c_int> {
        let operation = self.begin();
        let (start, null) = (by.as_mut_ptr().cast(), ptr::null_mut());
        let (ep, context) = (self.endpoints[endpoint], context_of(operation));
        let (word, sum) = (FI_UINT64, FI_SUM);
        let answer = match &old {
            Some(old) => {
                let room = old.as_mut_ptr().cast();
                // SAFETY: the memory is kept until the operation has ended.
                unsafe { fi_fetch_atomic(ep, start, 1, null, room, null, to, at, key, word, sum, context) }
            }
            // SAFETY: as above.
            None => unsafe { fi_atomic(ep, start, 1, null, to, at, key, word, sum, context) },
        };
        let lent = Lent {
            also: old,
            ..Lent::one(by)
        };
        self.begun(operation, lent, answer)
    }

    /// Cancels an operation. If it could be cancelled, its completion has that as its failure.
    pub fn cancel(&mut self, endpoint: usize, operation: u64) {
        let ep = self.endpoints[endpoint].cast();
        // SAFETY: the endpoint is open.
        let answer = unsafe { fi_cancel(ep, context_of(operation)) };
        good("fi_cancel", answer as c_int);
    }

    /// Reads all queues once, one entry of each at most. This makes progress.
    pub fn read(&mut self, each: &mut impl FnMut(Completion)) {
        for at in 0..self.queues.len() {
            let found = self.read_one(self.queues[at]);
            if let Some(completion) = found {
                each(completion);
            }
        }
    }

    fn read_one(&mut self, queue: *mut fid_cq) -> Option<Completion> {
        let mut entry: fi_cq_tagged_entry = Layout::zeroed();
        let mut sender = FI_ADDR_NOTAVAIL;
        // SAFETY: room for one entry of this format.
        let count = unsafe { fi_cq_readfrom(queue, (&raw mut entry).cast(), 1, &mut sender) };
        let failure = match -count as c_int {
            FI_EAGAIN => return None,
            FI_EAVAIL => {
                let mut error: fi_cq_err_entry = Layout::zeroed();
                // SAFETY: a whole structure, without a buffer of its own.
                good(
                    "fi_cq_readerr",
                    unsafe { fi_cq_readerr(queue, &mut error, 0) } as c_int - 1,
                );
                entry = fi_cq_tagged_entry {
                    op_context: error.op_context,
                    flags: error.flags,
                    len: error.len,
                    buf: error.buf,
                    data: error.data,
                    tag: error.tag,
                };
                sender = error.src_addr;
                Some((error.err, text_of(queue, &error)))
            }
            _ => {
                assert_eq!(count, 1, "fi_cq_readfrom");
                None
            }
        };
        Some(self.ended(&entry, sender, failure))
    }

    fn ended(
        &mut self,
        entry: &fi_cq_tagged_entry,
        sender: fi_addr_t,
        failure: Option<(c_int, String)>,
    ) -> Completion {
        let operation = entry.op_context.addr() as u64;
        let lent = self.open.get(&operation);
        let start = lent.and_then(|lent| Some(lent.memory.as_ref()?.address()));
        let offset = match lent {
            Some(lent) if lent.multi => entry.buf.addr().wrapping_sub(start.unwrap_or(0)),
            _ => 0,
        };
        let (was_open, multi) = (lent.is_some(), lent.is_some_and(|lent| lent.multi));
        let is_over = !multi || entry.flags & FI_MULTI_RECV != 0 || failure.is_some();
        if is_over {
            self.open.remove(&operation);
        }
        Completion {
            operation,
            was_open,
            flags: entry.flags,
            length: entry.len,
            offset,
            tag: entry.tag,
            data: (entry.flags & FI_REMOTE_CQ_DATA != 0).then_some(entry.data),
            sender,
            failure,
        }
    }

    /// Returns how many operations have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    fn object(&self) -> &Domain {
        // SAFETY: it is open as long as the client is.
        unsafe { this::<Domain>(self.domain) }
    }

    /// Its state, between two calls.
    fn state(&self) -> &State {
        // SAFETY: all calls are made by this client, in one thread, and none is under way.
        unsafe { &*self.object().state() }
    }

    fn state_mut(&mut self) -> &mut State {
        // SAFETY: as above, and by an exclusive reference.
        unsafe { &mut *self.object().state() }
    }

    /// Returns the PML, to be looked at.
    #[must_use]
    pub fn pml(&self) -> &Pml<AnyRail> {
        self.state().member.pml_ref()
    }

    /// Returns the number that the peer of an address has now.
    pub fn rank_of(&mut self, address: fi_addr_t) -> Option<Rank> {
        // SAFETY: the endpoint is open.
        let number = unsafe { this::<EndpointObject>(*self.endpoints.first()?) }.number();
        let state = self.state_mut();
        let vector = state.endpoints.find(number).ok()?.vector;
        state.route_in(vector, address).ok().map(|route| route.rank)
    }

    /// Returns how long it can do without a call, and whether it waits for what only calls bring about.
    #[must_use]
    pub fn idle(&self) -> (Option<Duration>, bool) {
        let (member, pml) = (&self.state().member, self.pml());
        (member.idle(), pml.must_poll() || pml.has_unmet_sends())
    }

    /// Returns the words for a peer, with which the texts of its failures begin.
    #[must_use]
    pub fn name_of(&self, rank: Rank) -> String {
        self.state().member.name_of(rank)
    }

    /// Does a part of what the end of the process does: sends what was accepted, and closes the connections.
    /// Returns whether it is done, or the time is over; then only what ends it may follow.
    pub fn close_pass(&mut self, until: Instant) -> bool {
        self.state_mut().member.close_pass(until)
    }
}

/// What an error means.
fn text_of(queue: *mut fid_cq, error: &fi_cq_err_entry) -> String {
    let (data, null) = (error.err_data.cast_const(), ptr::null_mut());
    // SAFETY: the queue is open, and this has its last error.
    let text = unsafe { fi_cq_strerror(queue, error.prov_errno, data, null, 0) };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a text of the provider, which lives as long as the queue.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Drop for Client {
    fn drop(&mut self) {
        let endpoints = self.endpoints.iter().map(|object| object.cast::<fid>());
        let queues = self.queues.iter().map(|object| object.cast::<fid>());
        let registered = self.registered.iter().map(|(object, _)| object.cast::<fid>());
        let rest = [self.vector.cast(), self.domain.cast(), self.fabric.cast()];
        for object in endpoints.chain(queues).chain(registered).chain(rest) {
            // SAFETY: each was opened, is closed once, and before those that it uses.
            let result = unsafe { fi_close(object) };
            if !std::thread::panicking() {
                good("fi_close", result);
            }
        }
    }
}
