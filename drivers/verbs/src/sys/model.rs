//! A library in this process, for tests: devices whose ports reach each other by GID, without a kernel. It
//! can refuse any call, lose its port, break queue pairs and lie in completions.
// Its functions are C's: each dereferences several of its caller's pointers.
#![allow(clippy::multiple_unsafe_ops_per_block, clippy::missing_safety_doc)]

mod late;
mod onesided;
mod reliable;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::abi::*;
use super::library::{Functions, Library};
use super::numbers;

#[cfg(test)]
use doorbell_testing::random::Random;
pub(crate) use late::{LateWrite, arrive, forget_data_in_order, late_writes, put_off_writes};
use onesided::Beneath;
#[cfg(test)]
pub(crate) use onesided::put_off_requests;
pub(crate) use onesided::{
    ForkCalls, Windows, bound_windows, break_pair, copy_nothing_at_fork, fork_calls, hold_binds, pairs_of,
    registered_elsewhere,
};
pub(crate) use reliable::{
    Fault, fail_request, hold_requests, inject, partitions_in_use, release_requests, shared_receives,
    tear_sends,
};

/// Describes a device that a test makes.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: String,
    /// IPv4 addresses of its GIDs, of RoCE v2; all on the loopback interface.
    pub(crate) addresses: Vec<[u8; 4]>,
    pub(crate) state: c_int,
    pub(crate) mtu: c_int,
    pub(crate) transport: c_int,
    /// The LID of its port, which is one of InfiniBand then; 0 on Ethernet.
    pub(crate) lid: u16,
    /// The keys of its table of partitions; 0 where there is none.
    pub(crate) partitions: Vec<u16>,
    pub(crate) limits: Limits,
    /// Which memory windows it has.
    pub(crate) windows: Windows,
    /// What its atomics are atomic with.
    pub(crate) atomics: c_int,
    /// Reads and atomics under way at a time, of a queue pair.
    pub(crate) reads: c_int,
    /// Bytes that may be registered.
    pub(crate) lockable: usize,
    /// Whether it reports that data is written in order.
    pub(crate) in_order: bool,
    /// Queue pairs of this process may have the keys of the system.
    pub(crate) is_privileged: bool,
}

/// What a device reports that it can do, and what it grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_qp_wr: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_sge: c_int,
    pub(crate) max_mr_size: u64,
    pub(crate) max_msg_sz: u32,
    /// Queue pairs that want more bytes to go with requests are refused; this many are granted at the least.
    pub(crate) inline: (u32, u32),
    /// Entries by which what is granted is less than what was requested: of queue pairs, of shared queues, of
    /// completion queues.
    pub(crate) lacks: [u32; 3],
    /// Ports, and the length of the table of GIDs.
    pub(crate) ports: u8,
    pub(crate) gids: c_int,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp_wr: 8192,
            max_srq_wr: 0,
            max_cqe: 0,
            max_sge: 0,
            max_mr_size: 0,
            max_msg_sz: 0,
            inline: (u32::MAX, 32),
            lacks: [0; 3],
            ports: 1,
            gids: 16,
        }
    }
}

impl Spec {
    pub(crate) fn new(name: &str, address: [u8; 4]) -> Self {
        Self {
            name: name.to_owned(),
            addresses: vec![address],
            state: numbers::PORT_ACTIVE,
            mtu: 3,
            transport: numbers::TRANSPORT_IB,
            lid: 0,
            partitions: vec![0xffff],
            limits: Limits::default(),
            windows: Windows::Unchecked,
            atomics: numbers::ATOMIC_HCA,
            reads: 4,
            lockable: usize::MAX,
            in_order: false,
            is_privileged: true,
        }
    }
}

/// Chance, of which there is some in tests alone.
#[cfg(not(test))]
enum Random {}

#[cfg(not(test))]
impl Random {
    fn below(&mut self, _: u64) -> u64 {
        match *self {}
    }

    fn index(&mut self, _: usize) -> usize {
        match *self {}
    }
}

/// A device, with what became of it.
struct Dev {
    spec: Spec,
    events: VecDeque<(c_int, u64)>,
    async_fd: c_int,
    /// Objects that exist.
    objects: i64,
    /// Calls that make something, until one is refused.
    until_refusal: Option<u32>,
    refused: Option<&'static str>,
    first_refused: Option<&'static str>,
    /// What goes wrong with the requests of its reliable queue pairs.
    faults: Vec<Fault>,
    /// Requests of its reliable queue pairs do not end.
    is_held: bool,
    /// Requests that bind windows do not end.
    holds_binds: bool,
    /// The call that is refused from now on, and how often.
    refuses: Option<(&'static str, u32)>,
    /// Datagrams that it sends are lost.
    is_mute: bool,
    /// What every poll answers, which is not true.
    answers_polls: Option<c_int>,
    /// Calls for which the kernel resolves a neighbour, and the time that they have taken.
    resolved: (u64, Duration),
    /// Bytes that are registered.
    locked: usize,
    /// When requests are executed that do not end as they are posted.
    random: Option<Random>,
    /// How long it takes to destroy a queue pair.
    destroys_in: Duration,
    /// Queue pairs whose destruction takes that long, and has begun.
    slow_ends: u32,
    /// Sends that end in the middle, from now on.
    torn: u32,
    /// Writes of at least this many bytes are kept, and what was.
    late_from: Option<usize>,
    late: Vec<LateWrite>,
}

impl Dev {
    /// Whether a path ends at its port.
    fn is_at(&self, to: &AhAttr) -> bool {
        match to.dlid {
            0 => {
                let mut own = self.spec.addresses.iter();
                own.any(|address| gid_of(*address) == to.grh.dgid.0)
            }
            lid => lid == self.spec.lid,
        }
    }
}

/// A queue pair's requests.
struct Pair {
    device: String,
    number: u32,
    state: c_int,
    key: u32,
    send: usize,
    received: usize,
    receives: VecDeque<(u64, u64, u32)>,
    sends_most: usize,
    /// What it is besides, where it is of reliable connections.
    reliable: Option<reliable::Half>,
}

#[derive(Default)]
struct Queue {
    /// Completions, each with the queue pair whose requests it retires, and their number.
    found: VecDeque<(Wc, usize, u64)>,
    entries: usize,
    is_armed: bool,
    channel: usize,
}

// SAFETY: completions have no pointers.
unsafe impl Send for Queue {}

#[derive(Default)]
struct World {
    devices: Vec<Dev>,
    pairs: HashMap<usize, Pair>,
    queues: HashMap<usize, Queue>,
    handles: HashMap<usize, (AhAttr, String)>,
    /// Queue pairs in multicast groups.
    groups: BTreeSet<(usize, [u8; 16])>,
    signals: HashMap<usize, VecDeque<usize>>,
    shared: HashMap<usize, reliable::Shared>,
    memory: HashMap<u32, reliable::Memory>,
    windows: HashMap<usize, onesided::Bound>,
    next: u32,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

struct Guard(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Guard {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().expect("it was made")
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("it was made")
    }
}

/// Calls of the model.
static CALLS: AtomicU64 = AtomicU64::new(0);

fn world() -> Guard {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(|| World {
        next: 100,
        ..World::default()
    });
    Guard(guard)
}

impl World {
    fn device(&mut self, name: &str) -> &mut Dev {
        let mut devices = self.devices.iter_mut();
        devices
            .find(|device| device.spec.name == name)
            .expect("a device of the model")
    }

    /// Whether a call that makes something is refused; counts what is made.
    fn makes(&mut self, name: &str, call: &'static str) -> bool {
        if self.refuses(name, call) {
            // SAFETY: the thread's own error number.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            return false;
        }
        let device = self.device(name);
        if let Some(left) = &mut device.until_refusal {
            if *left == 0 {
                device.refused = Some(call);
                device.first_refused.get_or_insert(call);
                // SAFETY: the thread's own error number.
                unsafe { *libc::__errno_location() = libc::ENOMEM };
                return false;
            }
            *left -= 1;
        }
        device.objects += 1;
        true
    }

    /// Whether a test has this call be refused, this time.
    fn refuses(&mut self, name: &str, call: &'static str) -> bool {
        match &mut self.device(name).refuses {
            Some((refused, left)) if *refused == call && *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        }
    }

    /// Counts a call for which the kernel resolves the neighbour at a GID, and waits for one that is silent.
    fn resolves(&mut self, name: &str, gid: [u8; 16]) {
        let is_near = gid[12] == 127;
        let resolved = &mut self.device(name).resolved;
        resolved.0 += 1;
        resolved.1 += if is_near { A_CALL } else { SILENCE };
    }

    fn complete(&mut self, queue: usize, completion: Wc) {
        self.complete_for(queue, completion, 0, 0);
    }

    fn complete_for(&mut self, queue: usize, completion: Wc, pair: usize, retires: u64) {
        let found = self.queues.get_mut(&queue).expect("a queue of the model");
        assert!(found.found.len() < found.entries, "a completion queue is full");
        found.found.push_back((completion, pair, retires));
        if std::mem::take(&mut found.is_armed) {
            let channel = found.channel;
            self.signals
                .get_mut(&channel)
                .expect("a channel")
                .push_back(queue);
            // SAFETY: the channel is alive: its queue is.
            let fd = unsafe { (*(channel as *mut CompChannel)).fd };
            signal(fd);
        }
    }

    fn error(&mut self, at: usize) {
        let pair = self.pairs.get_mut(&at).expect("a pair of the model");
        pair.state = numbers::ERR;
        let (queue, number) = (pair.received, pair.number);
        for (id, _, _) in std::mem::take(&mut pair.receives) {
            self.complete(queue, failed(id, number, numbers::WR_FLUSH_ERR));
        }
        self.flush_held(at);
    }
}

/// A completion with an error: what does not count of one is nonsense.
fn failed(id: u64, number: u32, status: c_int) -> Wc {
    let mut failed = Wc::zeroed();
    (failed.wr_id, failed.qp_num, failed.status) = (id, number, status);
    (failed.opcode, failed.byte_len, failed.imm_data) = (0x5a5a, u32::MAX, u32::MAX);
    (failed.src_qp, failed.wc_flags, failed.slid) = (u32::MAX, u32::MAX, u16::MAX);
    failed
}

fn signal(fd: c_int) {
    let one = 1u64;
    // SAFETY: eight bytes are read, as an eventfd takes them.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

fn drain(fd: c_int) {
    let mut count = 0u64;
    // SAFETY: eight bytes are written at most.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

fn eventfd() -> c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }
}

/// Puts a device into the model; the library that finds it.
pub(crate) fn library(spec: Spec) -> Library {
    world().devices.push(Dev {
        spec,
        events: VecDeque::new(),
        async_fd: eventfd(),
        objects: 0,
        until_refusal: None,
        refused: None,
        first_refused: None,
        faults: Vec::new(),
        is_held: false,
        holds_binds: false,
        refuses: None,
        is_mute: false,
        answers_polls: None,
        resolved: (0, Duration::ZERO),
        locked: 0,
        random: None,
        destroys_in: Duration::ZERO,
        slow_ends: 0,
        torn: 0,
        late_from: None,
        late: Vec::new(),
    });
    Library {
        file: PathBuf::from("model"),
        version: "1.13",
        said: String::new(),
        functions: FUNCTIONS,
        fork: Arc::default(),
    }
}

/// Changes a port's state, and raises the event that reports it.
pub(crate) fn set_state(name: &str, state: c_int) {
    let mut world = world();
    let device = world.device(name);
    device.spec.state = state;
    let event = if state == numbers::PORT_ACTIVE {
        numbers::EVENT_PORT_ACTIVE
    } else {
        numbers::EVENT_PORT_ERR
    };
    device.events.push_back((event, 1));
    signal(device.async_fd);
}

/// Has the datagrams that a device sends be lost, or pass.
pub(crate) fn mute(name: &str, is_mute: bool) {
    world().device(name).is_mute = is_mute;
}

/// Has the queue pairs of a device be destroyed in this time from now on, as Linux does which waits until the
/// last packet has left.
pub(crate) fn destroy_slowly(name: &str, time: Duration) {
    world().device(name).destroys_in = time;
}

/// How many queue pairs of a device are destroyed slowly, or were.
pub(crate) fn slow_ends(name: &str) -> u32 {
    world().device(name).slow_ends
}

/// The event of a port that has another LID.
const LID_CHANGE: c_int = 11;

/// The link layer of InfiniBand.
const INFINIBAND: u8 = 1;

/// How long the kernel takes for a call with a neighbour that it knows, and with one that does not answer.
const A_CALL: Duration = Duration::from_micros(500);
const SILENCE: Duration = Duration::from_millis(1200);

/// Calls so far for which the kernel resolves a neighbour, and the time that they have taken.
pub(crate) fn resolved(name: &str) -> (u64, Duration) {
    world().device(name).resolved
}

/// Raises an event about the port.
pub(crate) fn raise_port(name: &str, event: c_int) {
    let mut world = world();
    let device = world.device(name);
    device.events.push_back((event, 1));
    signal(device.async_fd);
}

/// Gives a port another LID, and raises the event that reports it.
pub(crate) fn set_lid(name: &str, lid: u16) {
    world().device(name).spec.lid = lid;
    raise_port(name, LID_CHANGE);
}

/// Where queue pairs of connections and address handles of a device lead: LID, service level, rate; and the
/// path MTU of the former, which is 0 of the latter.
pub(crate) fn paths_in_use(name: &str) -> Vec<(u16, u8, u8, c_int)> {
    let world = world();
    let path = |to: &AhAttr, mtu: c_int| (to.dlid, to.sl, to.static_rate, mtu);
    let handles = world.handles.values().filter(|(_, device)| device == name);
    let mut all: Vec<_> = handles.map(|(to, _)| path(to, 0)).collect();
    let pairs = world.pairs.values().filter(|pair| pair.device == name);
    let halves = pairs.filter_map(|pair| pair.reliable.as_ref());
    all.extend(halves.map(|half| path(&half.to, half.mtu)));
    all.sort_unstable();
    all
}

/// Raises an event that names nothing.
pub(crate) fn raise(name: &str, event: c_int) {
    let mut world = world();
    let device = world.device(name);
    device.events.push_back((event, 0));
    signal(device.async_fd);
}

/// Raises an event about the port of a device.
pub(crate) fn raise_of_port(name: &str, event: c_int) {
    let mut world = world();
    let device = world.device(name);
    device.events.push_back((event, 1));
    signal(device.async_fd);
}

/// An object of a device, for an event to be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Its reliable queue pairs that receive messages.
    Pairs,
    /// Those of one-sided operations, and the completion queue of these.
    OneSided,
    OneSidedEnded,
    /// The completion queue of what they receive, and of what they send.
    Received,
    Sent,
    /// The receive queue that they share.
    Shared,
    /// The queue pairs of datagrams, and their completion queues of what was sent and received.
    Datagrams,
    DatagramsSent,
    DatagramsReceived,
    /// Something that is not there any more.
    Former,
}

/// Raises an event about objects of a device, once for each.
pub(crate) fn raise_about(name: &str, event: c_int, about: About) {
    let mut world = world();
    let pairs = world.pairs.iter();
    let of_kind = |pair: &Pair, receives: bool| {
        let half = pair.reliable.as_ref().filter(|_| pair.device == name);
        half.is_some_and(|half| half.receives() == receives)
    };
    let receives = !matches!(about, About::OneSided | About::OneSidedEnded);
    let of_device = pairs.filter(|(_, pair)| of_kind(pair, receives));
    let mut objects: Vec<u64> = match about {
        About::Pairs | About::OneSided => of_device.map(|(at, _)| *at as u64).collect(),
        About::Received => of_device.map(|(_, pair)| pair.received as u64).take(1).collect(),
        About::Sent | About::OneSidedEnded => of_device.map(|(_, pair)| pair.send as u64).take(1).collect(),
        About::Shared => {
            let shared = world.shared.iter().filter(|(_, shared)| shared.is_of(name));
            shared.map(|(at, _)| *at as u64).collect()
        }
        About::Datagrams | About::DatagramsSent | About::DatagramsReceived => {
            let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_none();
            let object = |(at, pair): (&usize, &Pair)| match about {
                About::DatagramsSent => pair.send,
                About::DatagramsReceived => pair.received,
                _ => *at,
            };
            let all = world.pairs.iter().filter(|(_, pair)| is_it(pair));
            all.map(|found| object(found) as u64).collect()
        }
        About::Former => vec![0x1000],
    };
    objects.sort_unstable();
    let device = world.device(name);
    device
        .events
        .extend(objects.into_iter().map(|object| (event, object)));
    signal(device.async_fd);
}

/// Takes a device's addresses away, or gives it others.
pub(crate) fn set_addresses(name: &str, addresses: &[[u8; 4]]) {
    let mut world = world();
    let device = world.device(name);
    device.spec.addresses = addresses.to_vec();
    device.events.push_back((numbers::EVENT_GID_CHANGE, 1));
}

/// How often the model was called so far.
pub(crate) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Forks; returns zero in the child, which ends after some seconds where it waits for a lock that another
/// thread had.
pub(crate) fn fork() -> c_int {
    // SAFETY: the child drops what it has and ends; the C library keeps its allocator usable there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no memory is involved.
        unsafe { libc::alarm(10) };
    }
    child
}

/// Ends a child at once: nothing of the test's runs on there.
pub(crate) fn leave(is_well: bool) -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(c_int::from(!is_well)) }
}

/// Whether a child has ended, and well.
pub(crate) fn has_ended(child: c_int) -> Option<bool> {
    let mut status = 0;
    // SAFETY: the status is written.
    let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    (ended != 0).then_some(ended == child && status == 0)
}

/// The states of a device's queue pairs of connections, in the order of their numbers.
pub(crate) fn states(name: &str) -> Vec<c_int> {
    let world = world();
    let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_some();
    let mut all: Vec<&Pair> = world.pairs.values().filter(is_it).collect();
    all.sort_unstable_by_key(|pair| pair.number);
    all.iter().map(|pair| pair.state).collect()
}

/// The first call that was refused, if one was.
pub(crate) fn first_refused(name: &str) -> Option<&'static str> {
    world().device(name).first_refused
}

/// How many address handles of a device there are.
pub(crate) fn handles(name: &str) -> i64 {
    let world = world();
    let of_device = world.handles.values().filter(|(_, device)| device == name);
    of_device.count() as i64
}

/// The addresses of a device.
pub(crate) fn addresses(name: &str) -> Vec<[u8; 4]> {
    world().device(name).spec.addresses.clone()
}

/// Gives a port's table other partitions.
pub(crate) fn set_partitions(name: &str, partitions: &[u16]) {
    let mut world = world();
    let device = world.device(name);
    device.spec.partitions = partitions.to_vec();
    device.events.push_back((numbers::EVENT_PKEY_CHANGE, 1));
    signal(device.async_fd);
}

/// Gives a port another MTU, by its number; no event reports it.
pub(crate) fn set_mtu(name: &str, mtu: c_int) {
    world().device(name).spec.mtu = mtu;
}

/// Moves every queue pair of a device to ERR.
pub(crate) fn break_pairs(name: &str) {
    let mut world = world();
    let pairs: Vec<usize> = world
        .pairs
        .iter()
        .filter(|(_, pair)| pair.device == name)
        .map(|(at, _)| *at)
        .collect();
    pairs.into_iter().for_each(|at| world.error(at));
}

/// Puts a completion into every queue of a device that receives.
pub(crate) fn lie(name: &str, completion: Wc) {
    let mut world = world();
    let queues: Vec<usize> = world
        .pairs
        .values()
        .filter(|pair| pair.device == name)
        .flat_map(|pair| [pair.received, pair.send])
        .collect();
    queues
        .into_iter()
        .for_each(|queue| world.complete(queue, completion));
}

/// Puts a completion into the queue of what a device's reliable queue pairs receive.
pub(crate) fn lie_received(name: &str, completion: Wc) {
    let mut world = world();
    let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_some();
    let queue = world
        .pairs
        .values()
        .find(is_it)
        .expect("a reliable pair")
        .received;
    world.uses(name, completion.wr_id);
    world.complete(queue, completion);
}

/// Puts a completion into the queue of what a device's reliable queue pairs send.
pub(crate) fn lie_sent(name: &str, completion: Wc) {
    let mut world = world();
    let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_some();
    let queue = world.pairs.values().find(is_it).expect("a reliable pair").send;
    world.complete(queue, completion);
}

/// Has every poll of a device's queues answer this number, or the truth.
pub(crate) fn answer_polls(name: &str, answer: Option<c_int>) {
    world().device(name).answers_polls = answer;
}

thread_local! {
    /// Allocations of the model's calls in this thread.
    static OWN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    /// How often this thread has driven queues.
    static DRIVEN: std::cell::RefCell<Driven> = const { std::cell::RefCell::new(Driven::NONE) };
    /// Events that this thread has read and not acknowledged.
    static UNACKNOWLEDGED: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

/// Allocations of this thread: counted in tests alone.
fn allocations() -> u64 {
    #[cfg(test)]
    return doorbell_testing::alloc::of_thread().allocations;
    #[cfg(not(test))]
    0
}

/// How often queues were driven by this thread: each of these is a call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Driven {
    /// Lists of requests, and the requests in them.
    pub(crate) posts: u64,
    pub(crate) requests: u64,
    /// Lists of receives.
    pub(crate) receives: u64,
    pub(crate) polls: u64,
}

impl Driven {
    const NONE: Self = Self {
        posts: 0,
        requests: 0,
        receives: 0,
        polls: 0,
    };

    fn count(change: impl FnOnce(&mut Self)) {
        DRIVEN.with_borrow_mut(change);
    }

    /// The counts so far.
    #[cfg(test)]
    pub(crate) fn now() -> Self {
        DRIVEN.with_borrow(|driven| *driven)
    }

    /// What was counted since.
    #[cfg(test)]
    pub(crate) fn since(&self) -> Self {
        let now = Self::now();
        Self {
            posts: now.posts - self.posts,
            requests: now.requests - self.requests,
            receives: now.receives - self.receives,
            polls: now.polls - self.polls,
        }
    }
}

/// Counts what the model itself allocates until it is dropped, for tests that count what the rail does.
struct Own(u64);

impl Own {
    fn count() -> Self {
        Self(allocations())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let made = allocations() - self.0;
        OWN.set(OWN.get() + made);
    }
}

/// How often the model's calls have allocated in this thread.
pub(crate) fn own_allocations() -> u64 {
    OWN.get()
}

/// The numbers of a device's queue pairs of connections.
pub(crate) fn connection_numbers(name: &str) -> Vec<u32> {
    let world = world();
    let is_it = |pair: &&Pair| pair.device == name && pair.reliable.is_some();
    world
        .pairs
        .values()
        .filter(is_it)
        .map(|pair| pair.number)
        .collect()
}

/// Has the call that makes the object behind `count` others be refused.
pub(crate) fn refuse_after(name: &str, count: Option<u32>) {
    let mut world = world();
    let device = world.device(name);
    (device.until_refusal, device.refused) = (count, None);
    device.first_refused = None;
}

/// Has this call be refused the next `times`.
pub(crate) fn refuse_call(name: &str, call: &'static str, times: u32) {
    world().device(name).refuses = Some((call, times));
}

/// The last call that was refused, if one was, and how many objects exist.
pub(crate) fn outcome(name: &str) -> (Option<&'static str>, i64) {
    let mut world = world();
    let device = world.device(name);
    (device.refused, device.objects)
}

const FUNCTIONS: Functions = Functions {
    get_device_list,
    free_device_list,
    open_device,
    close_device,
    get_async_event,
    ack_async_event,
    query_device,
    query_port,
    query_gid,
    query_pkey,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_srq: reliable::create_srq,
    modify_srq: reliable::modify_srq,
    destroy_srq: reliable::destroy_srq,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_qp,
    modify_qp,
    destroy_qp,
    create_ah,
    destroy_ah,
    attach_mcast,
    detach_mcast,
    query_gid_table: Some(query_gid_table),
    fork_init: onesided::fork_init,
    is_fork_initialized: Some(onesided::is_fork_initialized),
    query_data_in_order: Some(late::query_data_in_order),
};

fn put(text: &str, into: &mut [c_char]) {
    for (to, from) in into.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The name of the device of an object.
///
/// # Safety
/// The context is one of the model's.
unsafe fn name_of(context: *mut Context) -> String {
    // SAFETY: the context and its device are alive.
    let name = unsafe { &(*(*context).device).name };
    name.iter()
        .map(|byte| *byte as u8 as char)
        .take_while(|c| *c != '\0')
        .collect()
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    let world = world();
    let mut list: Vec<*mut Device> = Vec::new();
    for (index, dev) in world.devices.iter().enumerate() {
        let mut device = Device::zeroed();
        device.node_type = numbers::NODE_CA;
        device.transport_type = dev.spec.transport;
        put(&dev.spec.name, &mut device.name);
        // As many as tests that look at device files make: several devices have one of them, and no matter.
        put(&format!("uverbs{}", index % 8), &mut device.dev_name);
        list.push(Box::into_raw(Box::new(device)));
    }
    // SAFETY: the caller's number.
    unsafe { *count = list.len() as c_int };
    list.push(std::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// The list and its devices are not given back: contexts point to them.
unsafe extern "C" fn free_device_list(_: *mut *mut Device) {}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    let mut context = Context::zeroed();
    context.device = device;
    // SAFETY: a device of the model.
    let name = unsafe { name_of(&raw mut context) };
    let mut world = world();
    if !world.makes(&name, "open_device") {
        return std::ptr::null_mut();
    }
    context.async_fd = world.device(&name).async_fd;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.post_srq_recv = Some(reliable::post_srq_recv);
    if world.device(&name).spec.windows != Windows::None {
        context.ops.alloc_mw = Some(onesided::alloc_mw);
        context.ops.dealloc_mw = Some(onesided::dealloc_mw);
    }
    Box::into_raw(Box::new(context))
}

unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    // SAFETY: a context of the model, which ends here.
    unsafe {
        world().device(&name_of(context)).objects -= 1;
        drop(Box::from_raw(context));
    }
    0
}

unsafe extern "C" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    let _own = Own::count();
    // SAFETY: a context of the model, and the caller's event.
    unsafe {
        let mut world = world();
        let device = world.device(&name_of(context));
        let Some((kind, element)) = device.events.pop_front() else {
            drain(device.async_fd);
            return -1;
        };
        ((*event).event_type, (*event).element) = (kind, element);
    }
    UNACKNOWLEDGED.set(UNACKNOWLEDGED.get() + 1);
    0
}

unsafe extern "C" fn ack_async_event(_: *mut AsyncEvent) {
    UNACKNOWLEDGED.set(UNACKNOWLEDGED.get() - 1);
}

unsafe extern "C" fn query_device(context: *mut Context, attributes: *mut DeviceAttr) -> c_int {
    // SAFETY: a context of the model, and the caller's structure.
    unsafe {
        let mut world = world();
        let spec = &world.device(&name_of(context)).spec;
        let limits = spec.limits;
        *attributes = DeviceAttr::zeroed();
        (*attributes).phys_port_cnt = limits.ports;
        (*attributes).max_qp_wr = limits.max_qp_wr;
        ((*attributes).max_srq_wr, (*attributes).max_cqe) = (limits.max_srq_wr, limits.max_cqe);
        ((*attributes).max_sge, (*attributes).max_mr_size) = (limits.max_sge, limits.max_mr_size);
        (*attributes).node_guid = 0x0002_c903_0012_3456_u64.to_be();
        (*attributes).sys_image_guid = (*attributes).node_guid;
        put("model 1", &mut (*attributes).fw_ver);
        if spec.windows != Windows::None {
            (*attributes).device_cap_flags = numbers::CAN_MW_TYPE_2B;
        }
        (*attributes).atomic_cap = spec.atomics;
        ((*attributes).max_qp_rd_atom, (*attributes).max_qp_init_rd_atom) = (spec.reads, spec.reads);
    }
    0
}

unsafe extern "C" fn query_port(context: *mut Context, port: u8, attributes: *mut PortAttr) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: a context of the model, and the caller's structure.
    unsafe {
        let mut world = world();
        let spec = &world.device(&name_of(context)).spec;
        *attributes = PortAttr::zeroed();
        (*attributes).state = spec.state;
        ((*attributes).max_mtu, (*attributes).active_mtu) = (5, spec.mtu);
        (*attributes).gid_tbl_len = spec.limits.gids;
        (*attributes).pkey_tbl_len = spec.partitions.len() as u16;
        (*attributes).max_msg_sz = spec.limits.max_msg_sz;
        (*attributes).lid = spec.lid;
        (*attributes).link_layer = match spec.lid {
            0 => numbers::LINK_LAYER_ETHERNET,
            _ => INFINIBAND,
        };
    }
    0
}

fn gid_of(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d]
}

unsafe extern "C" fn query_gid(context: *mut Context, _: u8, index: c_int, gid: *mut RawGid) -> c_int {
    // SAFETY: a context of the model, and the caller's GID.
    unsafe {
        let mut world = world();
        let found = world
            .device(&name_of(context))
            .spec
            .addresses
            .get(index as usize)
            .copied();
        match found {
            Some(address) => (*gid).0 = gid_of(address),
            None => (*gid).0 = [0; 16],
        }
    }
    0
}

unsafe extern "C" fn query_gid_table(
    context: *mut Context,
    entries: *mut GidEntry,
    most: usize,
    _: u32,
    size: usize,
) -> isize {
    // The length of what a call of the kernel may write is a number of 16 bits.
    if most * size > usize::from(u16::MAX) {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: a context of the model, and `most` entries of the caller's.
    unsafe {
        let mut world = world();
        let spec = &world.device(&name_of(context)).spec;
        let (addresses, is_infiniband) = (spec.addresses.clone(), spec.lid != 0);
        for (index, address) in addresses.iter().enumerate().take(most) {
            *entries.add(index) = GidEntry {
                gid: RawGid(gid_of(*address)),
                gid_index: index as u32,
                port_num: 1,
                gid_type: if is_infiniband { 0 } else { numbers::GID_ROCE_V2 },
                ndev_ifindex: u32::from(!is_infiniband),
            };
        }
        addresses.len().min(most) as isize
    }
}

unsafe extern "C" fn query_pkey(context: *mut Context, _: u8, index: c_int, key: *mut u16) -> c_int {
    // SAFETY: a context of the model, and the caller's key.
    unsafe {
        let mut world = world();
        let partitions = &world.device(&name_of(context)).spec.partitions;
        let Some(found) = partitions.get(index as usize) else {
            return -1;
        };
        *key = found.to_be();
    }
    0
}

unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    // SAFETY: a context of the model.
    if !world().makes(&unsafe { name_of(context) }, "alloc_pd") {
        return std::ptr::null_mut();
    }
    let mut pd = Pd::zeroed();
    pd.context = context;
    Box::into_raw(Box::new(pd))
}

/// Ends an object. Events about it that were not read are gone with it.
///
/// # Safety
/// It was made by the model as a box of this type.
unsafe fn end<T>(object: *mut T, context: *mut Context) -> c_int {
    assert_eq!(UNACKNOWLEDGED.get(), 0, "destroying an object waits for events");
    // SAFETY: the caller's promise.
    unsafe {
        let mut world = world();
        let device = world.device(&name_of(context));
        device.objects -= 1;
        device.events.retain(|(_, about)| *about != object as u64);
        drop(world);
        drop(Box::from_raw(object));
    }
    0
}

unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: made by the model.
    unsafe { end(pd, (*pd).context) }
}

unsafe extern "C" fn reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    let _own = Own::count();
    onesided::registered();
    // SAFETY: a domain of the model.
    unsafe {
        let context = (*pd).context;
        let name = name_of(context);
        let mut world = world();
        if !world.makes(&name, "reg_mr") {
            return std::ptr::null_mut();
        }
        if !world.locks(&name, length) {
            world.device(&name).objects -= 1;
            *libc::__errno_location() = libc::ENOMEM;
            return std::ptr::null_mut();
        }
        let mut mr = Mr::zeroed();
        world.next += 1;
        let key = world.next << 8;
        (mr.context, mr.pd, mr.addr, mr.length) = (context, pd, addr, length);
        (mr.lkey, mr.rkey) = (key, key);
        let memory = reliable::Memory::new(addr as u64, length, pd as usize, access);
        world.memory.insert(key, memory);
        Box::into_raw(Box::new(mr))
    }
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    let _own = Own::count();
    // SAFETY: made by the model.
    unsafe {
        {
            let mut world = world();
            assert!(
                !world.has_window(Beneath::Memory((*mr).lkey)),
                "a registration ends before the windows on it"
            );
            world.memory.remove(&(*mr).lkey);
            let name = name_of((*mr).context);
            world.device(&name).locked -= (*mr).length;
        }
        end(mr, (*mr).context)
    }
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // SAFETY: a context of the model.
    if !world().makes(&unsafe { name_of(context) }, "create_comp_channel") {
        return std::ptr::null_mut();
    }
    let mut channel = CompChannel::zeroed();
    (channel.context, channel.fd) = (context, eventfd());
    let channel = Box::into_raw(Box::new(channel));
    world().signals.insert(channel as usize, VecDeque::new());
    channel
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: made by the model.
    unsafe {
        libc::close((*channel).fd);
        world().signals.remove(&(channel as usize));
        end(channel, (*channel).context)
    }
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    entries: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    // SAFETY: a context of the model.
    if !world().makes(&unsafe { name_of(context) }, "create_cq") {
        return std::ptr::null_mut();
    }
    let mut cq = Cq::zeroed();
    // SAFETY: a context of the model.
    let lacks = world().device(&unsafe { name_of(context) }).spec.limits.lacks[2];
    (cq.context, cq.channel, cq.cqe) = (context, channel, entries - lacks as c_int);
    let cq = Box::into_raw(Box::new(cq));
    let queue = Queue {
        channel: channel as usize,
        entries: entries as usize,
        ..Queue::default()
    };
    world().queues.insert(cq as usize, queue);
    cq
}

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    {
        let mut world = world();
        let is_used = world
            .pairs
            .values()
            .any(|pair| pair.send == cq as usize || pair.received == cq as usize);
        assert!(!is_used, "a completion queue ends before its queue pair");
        world.queues.remove(&(cq as usize));
    }
    // SAFETY: made by the model.
    unsafe { end(cq, (*cq).context) }
}

unsafe extern "C" fn get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    let mut world = world();
    let signals = world
        .signals
        .get_mut(&(channel as usize))
        .expect("a channel of the model");
    let Some(queue) = signals.pop_front() else {
        // SAFETY: a channel of the model.
        drain(unsafe { (*channel).fd });
        return -1;
    };
    // SAFETY: the caller's pointer.
    unsafe { *cq = queue as *mut Cq };
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: c_uint) {}

unsafe extern "C" fn poll_cq(cq: *mut Cq, most: c_int, into: *mut Wc) -> c_int {
    let _own = Own::count();
    Driven::count(|driven| driven.polls += 1);
    let mut world = world();
    // SAFETY: a queue of the model.
    let device = unsafe { name_of((*cq).context) };
    if let Some(answer) = world.device(&device).answers_polls {
        return answer;
    }
    world.run_some(&device);
    let queue = world
        .queues
        .get_mut(&(cq as usize))
        .expect("a queue of the model");
    let count = queue.found.len().min(most as usize);
    for at in 0..count {
        let queue = world.queues.get_mut(&(cq as usize)).expect("it was found");
        let (completion, pair, retires) = queue.found.pop_front().expect("it was counted");
        // SAFETY: the caller has room for `most`.
        unsafe { *into.add(at) = completion };
        world.retire(pair, retires);
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    let mut world = world();
    world
        .queues
        .get_mut(&(cq as usize))
        .expect("a queue of the model")
        .is_armed = true;
    0
}

unsafe extern "C" fn create_qp(pd: *mut Pd, attributes: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: a domain of the model, and the caller's attributes.
    unsafe {
        let context = (*pd).context;
        let name = name_of(context);
        let mut world = world();
        let limits = world.device(&name).spec.limits;
        let is_possible = (*attributes).cap.max_inline_data <= limits.inline.0;
        if !is_possible {
            *libc::__errno_location() = libc::EINVAL;
        }
        if !is_possible || !world.makes(&name, "create_qp") {
            return std::ptr::null_mut();
        }
        world.next += 1;
        let mut qp = Qp::zeroed();
        (qp.context, qp.pd, qp.qp_num) = (context, pd, world.next);
        let pair = Pair {
            device: name,
            number: qp.qp_num,
            state: numbers::RESET,
            key: 0,
            send: (*attributes).send_cq as usize,
            received: (*attributes).recv_cq as usize,
            receives: VecDeque::new(),
            sends_most: (*attributes).cap.max_send_wr as usize,
            reliable: reliable::Half::of(&*attributes, pd as usize),
        };
        let granted = &mut (*attributes).cap;
        granted.max_inline_data = granted.max_inline_data.max(limits.inline.1);
        granted.max_send_wr -= limits.lacks[0];
        let qp = Box::into_raw(Box::new(qp));
        world.pairs.insert(qp as usize, pair);
        qp
    }
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    let mut world = world();
    // SAFETY: the caller's attributes.
    let attributes = unsafe { *attributes };
    let is_privileged;
    {
        // SAFETY: a pair of the model.
        let name = unsafe { name_of((*qp).context) };
        if world.refuses(&name, "modify_qp") {
            return libc::EIO;
        }
        let device = world.device(&name);
        if let Some(left) = &mut device.until_refusal {
            if *left == 0 {
                device.refused = Some("modify_qp");
                device.first_refused.get_or_insert("modify_qp");
                return libc::EIO;
            }
            *left -= 1;
        }
        is_privileged = device.spec.is_privileged;
    }
    let pair = world.pairs.get_mut(&(qp as usize)).expect("a pair of the model");
    if pair.reliable.is_some() {
        return world.modify_reliable(qp as usize, &attributes, mask);
    }
    let needed = match attributes.qp_state {
        numbers::INIT => numbers::HAS_PKEY_INDEX | numbers::HAS_PORT | numbers::HAS_QKEY,
        numbers::RTS => numbers::HAS_SQ_PSN,
        _ => 0,
    };
    let follows = match attributes.qp_state {
        numbers::RESET => true,
        state => state == pair.state + 1,
    };
    if mask != numbers::HAS_STATE | needed || !follows {
        return libc::EINVAL;
    }
    pair.state = attributes.qp_state;
    if needed & numbers::HAS_QKEY != 0 {
        if attributes.qkey >> 31 == 1 && !is_privileged {
            pair.state = numbers::RESET;
            return libc::EPERM;
        }
        pair.key = attributes.qkey;
    }
    if attributes.qp_state == numbers::RESET {
        // Completions that are there stay, as over rxe; other devices take them away.
        pair.receives.clear();
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: a pair of the model.
    let name = unsafe { name_of((*qp).context) };
    let time = world().device(&name).destroys_in;
    if !time.is_zero() {
        world().device(&name).slow_ends += 1;
        std::thread::sleep(time);
    }
    {
        let mut world = world();
        assert!(
            !world.has_window(Beneath::Pair(qp as usize)),
            "a queue pair ends before the windows that are bound over it"
        );
        let is_in_group = world.groups.iter().any(|(pair, _)| *pair == qp as usize);
        assert!(!is_in_group, "a queue pair ends before it has left its groups");
        world.pairs.remove(&(qp as usize));
        // Its completions stay, as those of rxe do, and retire nothing.
        let found = world.queues.values_mut().flat_map(|queue| &mut queue.found);
        found
            .filter(|(_, pair, _)| *pair == qp as usize)
            .for_each(|(_, pair, _)| *pair = 0);
    }
    // SAFETY: made by the model.
    unsafe { end(qp, (*qp).context) }
}

unsafe extern "C" fn create_ah(pd: *mut Pd, attributes: *mut AhAttr) -> *mut Ah {
    // SAFETY: a domain of the model, and the caller's attributes.
    unsafe {
        let context = (*pd).context;
        let name = name_of(context);
        let mut world = world();
        if !world.makes(&name, "create_ah") {
            return std::ptr::null_mut();
        }
        let to = (*attributes).grh;
        world.resolves(&name, to.dgid.0);
        let mut ah = Ah::zeroed();
        (ah.context, ah.pd) = (context, pd);
        let ah = Box::into_raw(Box::new(ah));
        world.handles.insert(ah as usize, (*attributes, name));
        ah
    }
}

unsafe extern "C" fn destroy_ah(ah: *mut Ah) -> c_int {
    world().handles.remove(&(ah as usize));
    // SAFETY: made by the model.
    unsafe { end(ah, (*ah).context) }
}

/// Whether a GID is that of a multicast group.
fn is_group(gid: [u8; 16]) -> bool {
    gid[0] == 0xff || gid[..12] == gid_of([0; 4])[..12] && (224..240).contains(&gid[12])
}

/// How many queue pairs of a device are in groups.
pub(crate) fn attached(name: &str) -> usize {
    let world = world();
    let of_device = |(pair, _): &&(usize, [u8; 16])| world.pairs[pair].device == name;
    world.groups.iter().filter(of_device).count()
}

unsafe extern "C" fn attach_mcast(qp: *mut Qp, gid: *const RawGid, lid: u16) -> c_int {
    // SAFETY: a pair of the model, and the caller's GID.
    let (name, gid) = unsafe { (name_of((*qp).context), (*gid).0) };
    let mut world = world();
    let device = world.device(&name);
    let is_fit = device.spec.lid == 0 || lid >= 0xc000;
    if device.until_refusal == Some(0) {
        (device.refused, device.first_refused) = (Some("attach_mcast"), Some("attach_mcast"));
        return libc::ENOMEM;
    }
    if !is_group(gid) || !is_fit {
        return libc::EINVAL;
    }
    world.groups.insert((qp as usize, gid));
    0
}

unsafe extern "C" fn detach_mcast(qp: *mut Qp, gid: *const RawGid, _: u16) -> c_int {
    // SAFETY: the caller's GID.
    let gid = unsafe { (*gid).0 };
    if world().groups.remove(&(qp as usize, gid)) {
        0
    } else {
        libc::EINVAL
    }
}

unsafe extern "C" fn post_recv(qp: *mut Qp, request: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    let mut world = world();
    let pair = world.pairs.get_mut(&(qp as usize)).expect("a pair of the model");
    let mut next = request;
    // SAFETY: a list of the caller's requests, each with one piece.
    unsafe {
        while let Some(this) = next.as_ref() {
            if pair.state == numbers::RESET {
                *bad = next;
                return libc::EINVAL;
            }
            let piece = *this.sg_list;
            pair.receives.push_back((this.wr_id, piece.addr, piece.length));
            next = this.next;
        }
    }
    0
}

unsafe extern "C" fn post_send(qp: *mut Qp, request: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let _own = Own::count();
    Driven::count(|driven| driven.posts += 1);
    let mut world = world();
    let mut next = request;
    // SAFETY: a list of the caller's requests, each with one piece.
    unsafe {
        while let Some(this) = next.as_ref() {
            Driven::count(|driven| driven.requests += 1);
            let pair = &world.pairs[&(qp as usize)];
            let waiting = world.queues[&pair.send].found.len();
            if pair.reliable.is_some() {
                if !world.post_reliable(qp as usize, this) {
                    *bad = next;
                    return libc::ENOMEM;
                }
                next = this.next;
                continue;
            }
            if pair.state != numbers::RTS && pair.state != numbers::ERR || waiting >= pair.sends_most {
                *bad = next;
                return libc::ENOMEM;
            }
            send(&mut world, qp as usize, this);
            next = this.next;
        }
    }
    0
}

/// Carries one datagram.
///
/// # Safety
/// The request's piece is memory that may be read, and what receives of the model name may be written.
unsafe fn send(world: &mut World, at: usize, request: &SendWr) {
    let (state, number, send, device) = {
        let pair = &world.pairs[&at];
        (pair.state, pair.number, pair.send, pair.device.clone())
    };
    let mut done = Wc::zeroed();
    (done.wr_id, done.qp_num) = (request.wr_id, number);
    if state == numbers::ERR {
        return world.complete(send, failed(request.wr_id, number, numbers::WR_FLUSH_ERR));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe {
        let piece = *request.sg_list;
        let start: *const u8 = std::ptr::with_exposed_provenance(piece.addr as usize);
        std::slice::from_raw_parts(start, piece.length as usize).to_vec()
    };
    if request.send_flags & numbers::SEND_SIGNALED != 0 {
        world.complete(send, done);
    }
    let handle = std::ptr::with_exposed_provenance::<Ah>(request.first[0] as usize) as usize;
    let Some((to_port, _)) = world.handles.get(&handle).cloned() else {
        return;
    };
    let index = to_port.grh.sgid_index;
    let (to, key) = (request.first[1] as u32, (request.first[1] >> 32) as u32);
    // A key with this bit stands for the queue pair's own.
    let key = if key >> 31 == 1 { world.pairs[&at].key } else { key };
    let own = world
        .device(&device)
        .spec
        .addresses
        .get(usize::from(index))
        .copied();
    let up = |dev: &Dev| dev.spec.state == numbers::PORT_ACTIVE;
    let Some(own) = own else { return };
    let dev = world.device(&device);
    if !up(dev) || dev.is_mute {
        return;
    }
    let (lid, gid) = (dev.spec.lid, to_port.grh.dgid.0);
    // On InfiniBand, a packet has a routing header where its sender's handle has one.
    let room = (lid == 0 || to_port.is_global != 0).then(|| header(lid, own, gid));
    let takes = |pair: &Pair| pair.key == key && pair.state == numbers::RTS;
    let targets: Vec<usize> = if to == MULTICAST && is_group(gid) {
        let members = world.groups.iter().filter(|(_, group)| *group == gid);
        members
            .map(|(pair, _)| *pair)
            .filter(|pair| takes(&world.pairs[pair]))
            .collect()
    } else {
        let holds = |dev: &&Dev| dev.is_at(&to_port) && up(dev);
        let peer = world.devices.iter().find(holds).map(|dev| dev.spec.name.clone());
        let is_it = |pair: &Pair| Some(&pair.device) == peer.as_ref() && pair.number == to && takes(pair);
        let found = world.pairs.iter().find(|(_, pair)| is_it(pair));
        found.map(|(at, _)| *at).into_iter().collect()
    };
    for target in targets {
        let (name, mtu) = {
            let name = world.pairs[&target].device.clone();
            let spec = &world.device(&name).spec;
            (name, spec.mtu)
        };
        if bytes.len() > 128 << mtu || !up(world.device(&name)) {
            continue;
        }
        // SAFETY: the caller's promise.
        unsafe { deliver(world, target, (number, lid), room, &bytes) };
    }
}

/// The number that stands for all queue pairs of a group.
const MULTICAST: u32 = 0x00ff_ffff;

/// The room in front of a datagram, as a device fills it.
fn header(lid: u16, own: [u8; 4], to: [u8; 16]) -> [u8; 40] {
    let mut room = [0; 40];
    if lid != 0 || to[0] == 0xff {
        room[0] = 0x60;
        room[8..24].copy_from_slice(&gid_of(own));
        room[24..].copy_from_slice(&to);
    } else {
        room[20] = 0x45;
        room[32..36].copy_from_slice(&own);
        room[36..].copy_from_slice(&to[12..]);
    }
    room
}

/// Writes a datagram into the next receive of a queue pair, if it has one.
///
/// # Safety
/// What the receive names may be written.
unsafe fn deliver(
    world: &mut World,
    at: usize,
    (from, lid): (u32, u16),
    room: Option<[u8; 40]>,
    bytes: &[u8],
) {
    let pair = world.pairs.get_mut(&at).expect("a pair of the model");
    let Some((id, addr, length)) = pair.receives.pop_front() else {
        return;
    };
    let (queue, number) = (pair.received, pair.number);
    assert!(bytes.len() + 40 <= length as usize, "a receive that is too short");
    let mut whole = room.unwrap_or([0; 40]).to_vec();
    whole.extend_from_slice(bytes);
    // SAFETY: the caller's promise: the receive has room.
    unsafe {
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(addr as usize);
        std::ptr::copy_nonoverlapping(whole.as_ptr(), start, whole.len());
    }
    let mut arrived = Wc::zeroed();
    (arrived.wr_id, arrived.opcode, arrived.byte_len) = (id, numbers::WC_RECV, whole.len() as u32);
    (arrived.qp_num, arrived.src_qp, arrived.slid) = (number, from, lid);
    if room.is_some() {
        arrived.wc_flags = numbers::WC_WITH_GRH;
    }
    world.complete(queue, arrived);
}
