//! The object of an endpoint: opened, bound, enabled, closed. fi_endpoint(3).

use std::ffi::{c_int, c_void};
use std::num::NonZeroU16;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use doorbell_pml::{Aborted, RequestId};
use libfabric_sys::*;

use super::state::{Endpoint, EndpointNumber};
use super::{flags, limits, name, options};
use crate::address::{Format, Given};
use crate::av::AddressVector;
use crate::cntr::{CounterIndex, CounterObject};
use crate::cq::{CompletionQueue, Outlet, QueueIndex};
use crate::domain::{self, Domain, State};
use crate::eq::EventQueue;
use crate::errno::{Answer, Errno, Result, check_flags};
use crate::object::{self, Head, Held, Object, Uses, find, give, publish, take_back, this};
use crate::ops::Mark;
use crate::refuse::{self, Table};
use crate::{atomic, exit, log, msg, rma, tagged};

/// How long a close waits, after that, until no memory of operations that it has given up is touched.
const ABORTS: Duration = Duration::from_secs(2);
/// Passes between two looks at the clock, while a close waits.
const PASSES: usize = 64;

/// An endpoint, as clients hold it. A second name of one is an object of its own, with flags of its own.
#[repr(C)]
pub(crate) struct EndpointObject {
    head: Head<fid_ep>,
    uses: Uses,
    domain: Held<Domain>,
    number: EndpointNumber,
    /// The flags of operations that take none.
    send_flags: AtomicU64,
    receive_flags: AtomicU64,
    /// What is bound to it, which cannot be closed meanwhile.
    bound: Mutex<Vec<Bound>>,
    /// The endpoint that this is a second name of.
    alias_of: Option<Held<EndpointObject>>,
}

/// An object that an endpoint is bound to.
#[allow(dead_code, reason = "held so that they stay open")]
enum Bound {
    Queue(Held<CompletionQueue>),
    Counter(Held<CounterObject>),
    Vector(Held<AddressVector>),
    Events(Held<EventQueue>),
}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for EndpointObject {
    type Head = fid_ep;
    const CLASS: usize = FI_CLASS_EP;

    fn ops() -> &'static Table<fi_ops> {
        &FI
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

static FI: Table<fi_ops> = Table::new(fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ..refuse::FI_OPS
});

impl EndpointObject {
    /// Its number in the domain.
    #[inline(always)]
    pub(crate) fn number(&self) -> EndpointNumber {
        self.number
    }

    /// The flags of sends that take none.
    #[inline(always)]
    pub(crate) fn send_flags(&self) -> u64 {
        self.send_flags.load(Ordering::Relaxed)
    }

    /// The flags of receives that take none.
    #[inline(always)]
    pub(crate) fn receive_flags(&self) -> u64 {
        self.receive_flags.load(Ordering::Relaxed)
    }

    /// Runs a call on the state of its domain.
    #[inline(always)]
    pub(crate) fn run<A: Answer>(&self, call: &'static str, work: impl FnOnce(&mut State) -> Result<A>) -> A {
        self.domain.run(call, work)
    }

    /// The domain that it was opened on.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    fn hold(&self, bound: Bound) {
        self.bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(bound);
    }
}

/// The endpoint of a call.
///
/// # Safety
/// The pointer is to the head of an open endpoint.
#[inline(always)]
pub(crate) unsafe fn of<'a>(ep: *mut fid_ep) -> &'a EndpointObject {
    // SAFETY: by the contract of this function.
    unsafe { this::<EndpointObject>(ep) }
}

/// Opens an endpoint: fi_endpoint(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    // SAFETY: the caller's pointers are those of fi_endpoint(3).
    domain.run("fi_endpoint", |state| unsafe {
        make(domain, state, info, ep, context)
    })
}

/// Opens an endpoint with flags, of which none is offered: fi_endpoint2(3).
pub(crate) unsafe extern "C" fn open2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: as for the call without flags.
    unsafe { open(domain, info, ep, context) }
}

/// What an endpoint is to be like.
struct Wanted {
    caps: u64,
    /// Sends and receives under way.
    sizes: [usize; 2],
    send_flags: u64,
    receive_flags: u64,
}

impl Wanted {
    /// Reads what the client's info wants.
    ///
    /// # Safety
    /// The info and its attributes are as fi_getinfo(3) gives them.
    unsafe fn of(info: *mut fi_info) -> Result<Self> {
        if info.is_null() {
            return Err(Errno(FI_EINVAL));
        }
        // SAFETY: not null.
        let caps = unsafe { (*info).caps };
        // SAFETY: as above.
        let tx = unsafe { (*info).tx_attr };
        // SAFETY: as above.
        let rx = unsafe { (*info).rx_attr };
        // SAFETY: as above.
        let ep = unsafe { (*info).ep_attr };
        if !ep.is_null() {
            // SAFETY: not null.
            let kind = unsafe { (*ep).r#type };
            if kind != FI_EP_RDM && kind != FI_EP_UNSPEC {
                return Err(Errno(FI_ENOSYS));
            }
        }
        let mut sizes = [limits::SENDS, limits::RECEIVES];
        let (mut send_flags, mut receive_flags) = (0, 0);
        if !tx.is_null() {
            // SAFETY: not null.
            let size = unsafe { (*tx).size };
            // SAFETY: not null.
            send_flags = unsafe { (*tx).op_flags };
            sizes[0] = if size == 0 { sizes[0] } else { size };
        }
        if !rx.is_null() {
            // SAFETY: not null.
            let size = unsafe { (*rx).size };
            // SAFETY: not null.
            receive_flags = unsafe { (*rx).op_flags };
            sizes[1] = if size == 0 { sizes[1] } else { size };
        }
        limits::check("fi_endpoint: a tx_attr.size", sizes[0], limits::OPERATIONS)?;
        limits::check("fi_endpoint: an rx_attr.size", sizes[1], limits::OPERATIONS)?;
        flags::check(send_flags, flags::SEND_DEFAULTS)?;
        flags::check(receive_flags, flags::RECEIVE_DEFAULTS)?;
        Ok(Self {
            caps,
            sizes,
            send_flags,
            receive_flags,
        })
    }
}

/// Makes an endpoint.
///
/// # Safety
/// The pointers are those of fi_endpoint(3).
unsafe fn make(
    domain: &Domain,
    state: &mut State,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(ep, ptr::null_mut()) }?;
    // SAFETY: the caller's info.
    let wanted = unsafe { Wanted::of(info) }?;
    // SAFETY: as above, and not null.
    check_source(domain, state, unsafe { domain::source_of(info) })?;
    let sizes = wanted.sizes.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
    let number = state.endpoints.add(Endpoint::new(wanted.caps, sizes))?;
    state.accept_messages(number);
    let object = object_of(
        domain,
        number,
        context,
        wanted.send_flags,
        wanted.receive_flags,
        None,
    );
    // SAFETY: written above.
    unsafe { publish(object, ep) };
    Ok(0)
}

/// Checks that the source address of an endpoint is one that its domain has: in the formats of sockets, all
/// endpoints of a domain are at its port.
fn check_source(domain: &Domain, state: &State, source: Option<Given>) -> Result<()> {
    let Some(port) = source.as_ref().and_then(Given::port) else {
        return Ok(());
    };
    let ours = state.member.address(0).peer().port();
    if domain.names().format == Format::Ours || ours == Some(port) {
        return Ok(());
    }
    log::info(FI_LOG_EP_CTRL, || {
        let ours = ours.map_or(0, NonZeroU16::get);
        format!("fi_endpoint: port {port} is not that of the domain, {ours}: open a domain for each port")
    });
    Err(Errno(FI_EADDRNOTAVAIL))
}

fn object_of(
    domain: &Domain,
    number: EndpointNumber,
    context: *mut c_void,
    send_flags: u64,
    receive_flags: u64,
    alias_of: Option<Held<EndpointObject>>,
) -> Box<EndpointObject> {
    Box::new(EndpointObject {
        head: Head::new(fid_ep {
            fid: object::head::<EndpointObject>(context),
            ops: options::EP.pointer(),
            cm: name::CM.pointer(),
            msg: msg::MSG.pointer(),
            rma: rma::RMA.pointer(),
            tagged: tagged::TAGGED.pointer(),
            atomic: atomic::ATOMIC.pointer(),
            collective: refuse::COLLECTIVE.pointer(),
        }),
        uses: Uses::default(),
        domain: Held::new(domain),
        number,
        send_flags: AtomicU64::new(send_flags),
        receive_flags: AtomicU64::new(receive_flags),
        bound: Mutex::new(Vec::new()),
        alias_of,
    })
}

unsafe extern "C" fn bind(ep: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_ep_bind", |state| {
        // SAFETY: null, or an open object.
        let class = unsafe { object::class(other) }?;
        // SAFETY: an open object, which the client closes after the call at the earliest.
        let bound = unsafe { bind_to(endpoint, state, other, class, flags) }?;
        endpoint.hold(bound);
        Ok(0)
    })
}

/// Binds an object of this class to an endpoint.
///
/// # Safety
/// `other` is an open object of the class, which stays open until the result is dropped.
unsafe fn bind_to(
    endpoint: &EndpointObject,
    state: &mut State,
    other: *mut fid,
    class: usize,
    flags: u64,
) -> Result<Bound> {
    if endpoint.alias_of.is_some() {
        return Err(Errno(FI_EINVAL));
    }
    match class {
        FI_CLASS_CQ => {
            // SAFETY: an open object.
            let queue = unsafe { find::<CompletionQueue>(other) }?;
            same_domain(endpoint, queue.domain())?;
            bind_queue(state.endpoints.find(endpoint.number)?, queue.index(), flags)?;
            Ok(Bound::Queue(Held::new(queue)))
        }
        FI_CLASS_CNTR => {
            // SAFETY: an open object.
            let counter = unsafe { find::<CounterObject>(other) }?;
            same_domain(endpoint, counter.domain())?;
            bind_counter(state.endpoints.find(endpoint.number)?, counter.index(), flags)?;
            if flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
                state.member.pml().record_accesses();
            }
            Ok(Bound::Counter(Held::new(counter)))
        }
        FI_CLASS_AV => {
            // SAFETY: an open object.
            let vector = unsafe { find::<AddressVector>(other) }?;
            check_flags(flags, 0, 0)?;
            same_domain(endpoint, vector.domain())?;
            let found = state.endpoints.find(endpoint.number)?;
            if found.enabled || found.vector.is_some() {
                return Err(Errno(FI_EINVAL));
            }
            found.vector = Some(vector.index());
            Ok(Bound::Vector(Held::new(vector)))
        }
        FI_CLASS_EQ => {
            // SAFETY: an open object. No event of an endpoint of this kind exists.
            let queue = unsafe { find::<EventQueue>(other) }?;
            check_flags(flags, 0, 0)?;
            Ok(Bound::Events(Held::new(queue)))
        }
        _ => Err(Errno(FI_EINVAL)),
    }
}

fn same_domain(endpoint: &EndpointObject, domain: &Domain) -> Result<()> {
    match ptr::eq(endpoint.domain(), domain) {
        true => Ok(()),
        false => Err(Errno(FI_EDOMAIN)),
    }
}

fn bind_queue(endpoint: &mut Endpoint, queue: QueueIndex, flags: u64) -> Result<()> {
    let selective = flags & FI_SELECTIVE_COMPLETION != 0;
    if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    if endpoint.enabled {
        return Err(Errno(FI_EOPBADSTATE));
    }
    let directions = [
        (FI_TRANSMIT, endpoint.sends.queue),
        (FI_RECV, endpoint.receives.queue),
    ];
    let mut named = directions.iter().filter(|(flag, _)| flags & flag != 0).peekable();
    if named.peek().is_none() || named.any(|(_, bound)| *bound != QueueIndex::NONE) {
        return Err(Errno(FI_EINVAL));
    }
    for (flag, side) in [
        (FI_TRANSMIT, &mut endpoint.sends),
        (FI_RECV, &mut endpoint.receives),
    ] {
        if flags & flag != 0 {
            side.queue = queue;
            side.selective = selective;
        }
    }
    Ok(())
}

fn bind_counter(endpoint: &mut Endpoint, counter: CounterIndex, flags: u64) -> Result<()> {
    const OURS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    /// Of what peers do, which needs FI_RMA_EVENT: without it such a counter stays at zero.
    const PEERS: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
    if flags & !(OURS | PEERS) != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    if flags == 0 {
        return Err(Errno(FI_EINVAL));
    }
    let mut bound = [
        (FI_SEND, &mut endpoint.sends.counter),
        (FI_RECV, &mut endpoint.receives.counter),
        (FI_READ, &mut endpoint.reads.counter),
        (FI_WRITE, &mut endpoint.writes.counter),
    ];
    let mut named = bound.iter().filter(|(flag, _)| flags & flag != 0);
    if named.any(|(_, bound)| **bound != CounterIndex::NONE) {
        return Err(Errno(FI_EINVAL));
    }
    if let Some(events) = &mut endpoint.events
        && flags & PEERS != 0
    {
        events.bind(flags & PEERS, counter)?;
    }
    for (flag, bound) in &mut bound {
        if flags & *flag != 0 {
            **bound = counter;
        }
    }
    Ok(())
}

unsafe extern "C" fn control(ep: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the table belongs to endpoints.
    let endpoint = unsafe { of(ep.cast()) };
    endpoint.run("fi_control", |state| match command {
        FI_ENABLE => enable(state.endpoints.find(endpoint.number)?),
        // SAFETY: the argument is that of the command.
        FI_GETOPSFLAG | FI_SETOPSFLAG => unsafe { ops_flags(endpoint, command, argument.cast()) },
        // SAFETY: the argument is that of the command.
        FI_ALIAS => unsafe { alias(endpoint, argument.cast()) },
        _ => Err(Errno(FI_ENOSYS)),
    })
}

fn enable(endpoint: &mut Endpoint) -> Result<c_int> {
    if endpoint.vector.is_none() {
        return Err(Errno(FI_ENOAV));
    }
    let has_messages = endpoint.has_messages;
    let lacks = |side: &super::state::Side| has_messages && side.offered && side.queue == QueueIndex::NONE;
    let accesses = endpoint.reads.are_offered() || endpoint.writes.are_offered();
    let lacks_any = lacks(&endpoint.sends) || lacks(&endpoint.receives);
    if lacks_any || accesses && endpoint.sends.queue == QueueIndex::NONE {
        return Err(Errno(FI_ENOCQ));
    }
    endpoint.enabled = true;
    Ok(0)
}

/// Reads or writes the flags of operations that take none; the argument names the direction, too.
///
/// # Safety
/// The argument is null or can be read and written.
unsafe fn ops_flags(endpoint: &EndpointObject, command: c_int, argument: *mut u64) -> Result<c_int> {
    if argument.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null.
    let word = unsafe { argument.read() };
    let (flags, ours) = match word & (FI_TRANSMIT | FI_RECV) {
        FI_TRANSMIT => (&endpoint.send_flags, flags::SEND_DEFAULTS),
        FI_RECV => (&endpoint.receive_flags, flags::RECEIVE_DEFAULTS),
        _ => return Err(Errno(FI_EINVAL)),
    };
    if command == FI_GETOPSFLAG {
        // SAFETY: not null.
        unsafe { argument.write(flags.load(Ordering::Relaxed)) };
    } else {
        let word = word & !(FI_TRANSMIT | FI_RECV);
        flags::check(word, ours)?;
        flags.store(word, Ordering::Relaxed);
    }
    Ok(0)
}

/// Makes a second name of an endpoint, with flags of its own.
///
/// # Safety
/// The argument is null or can be read, and its place for the result written.
unsafe fn alias(endpoint: &EndpointObject, argument: *mut fi_alias) -> Result<c_int> {
    // SAFETY: null, or the argument of the command.
    let argument = unsafe { object::taken(argument) }.ok_or(Errno(FI_EINVAL))?;
    let word = argument.flags & !(FI_TRANSMIT | FI_RECV);
    let (mut sends, mut receives) = (endpoint.send_flags(), endpoint.receive_flags());
    match argument.flags & (FI_TRANSMIT | FI_RECV) {
        FI_TRANSMIT => {
            flags::check(word, flags::SEND_DEFAULTS)?;
            sends = word;
        }
        FI_RECV => {
            flags::check(word, flags::RECEIVE_DEFAULTS)?;
            receives = word;
        }
        _ => return Err(Errno(FI_EINVAL)),
    }
    let head = endpoint.head.get();
    // SAFETY: the head lives as long as the object, and its context was written when it was made.
    let context = unsafe { (*head).fid.context };
    let of = Held::new(endpoint.alias_of.as_deref().unwrap_or(endpoint));
    let object = object_of(
        &endpoint.domain,
        endpoint.number,
        context,
        sends,
        receives,
        Some(of),
    );
    if argument.fid.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null; an endpoint begins with its `fid`.
    unsafe { publish(object, argument.fid.cast()) };
    Ok(0)
}

unsafe extern "C" fn close(ep: *mut fid) -> c_int {
    // SAFETY: the table belongs to endpoints.
    match unsafe { take_back::<EndpointObject>(ep) } {
        Ok(object) => {
            if object.alias_of.is_none() {
                shut(&object);
            }
            0
        }
        Err(errno) => -errno.0,
    }
}

/// Ends an endpoint: what was accepted leaves, what waits for messages is given up, and the number is free.
/// Messages that still come to it are dropped, and who waits for them to be received is answered.
fn shut(object: &EndpointObject) {
    let (call, number) = ("fi_close of an endpoint", object.number);
    let until = Instant::now() + object.domain.linger();
    // In parts, so that other threads get their turns; a refusal of the fence ends it.
    let leaves = || object.run::<c_int>(call, |state| Ok(c_int::from(!state.push_out(number.0, PASSES))));
    let mut stays = leaves() > 0;
    while stays && Instant::now() < until {
        std::thread::yield_now();
        stays = leaves() > 0;
    }
    if stays {
        log::warn(FI_LOG_EP_CTRL, &exit::unsent(call));
    }
    let until = Instant::now() + ABORTS;
    let aborts = || object.run::<c_int>(call, |state| Ok(c_int::from(!state.give_up(number))));
    while aborts() > 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    object.run::<c_int>(call, |state| {
        state.reject_messages(number);
        state.endpoints.remove(number);
        Ok(0)
    });
    // The end of the process, in another thread, may still read what was posted.
    object.domain.wait_for_end();
}

impl State {
    /// Gives up all operations of an endpoint. Returns whether no memory of theirs is touched any more.
    fn give_up(&mut self, number: EndpointNumber) -> bool {
        // What has ended becomes an entry first.
        self.advance();
        let all: Vec<(RequestId, QueueIndex, Mark)> = self
            .operations
            .of_endpoint(number.0)
            .map(|operation| (operation.request, operation.queue, operation.mark))
            .collect();
        let mut whole = true;
        for (request, queue, mark) in all {
            if self.member.pml().abort(request) == Aborted::Wait {
                whole = false;
                continue;
            }
            if let Some(operation) = self.operations.take(request)
                && mark.is(Mark::MULTI)
            {
                self.operations.free_multi(operation.multi);
            }
            if mark.is(Mark::PLACE)
                && let Some(queue) = self.queues.get_mut(queue)
            {
                queue.release();
            }
        }
        if !whole {
            self.look();
            self.drain(&mut Outlet::closed());
        }
        whole
    }
}
