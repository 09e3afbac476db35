//! Domains: one member of the fabric each, and everything that is opened on it.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use doorbell_fabric::error::RailError;
use doorbell_job::Config;
use doorbell_job::lobby::MeetingKey;
use doorbell_job::takeover::Manner;
use libfabric_sys::*;

use crate::address::{Format, Given, OwnNames};
use crate::auto::Auto;
use crate::av::{self, Vectors};
use crate::cntr::{self, Counters};
use crate::cq::{self, Queues};
use crate::ep::{self, Endpoints};
use crate::eq::EventQueue;
use crate::errno::{Answer, Errno, Result};
use crate::events::Watched;
use crate::fabric::{self, Fabric};
use crate::fence::{Fence, guard};
use crate::info::sets;
use crate::member::Member;
use crate::mr;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back};
use crate::ops::Operations;
use crate::refuse::{self, Table};
use crate::sleep::{Arming, Spin};
use crate::turns::{Turn, Turns, is_single_threaded};
use crate::{atomic, exit, log, params, sleep, wait};

/// A domain: one member, and the state that its objects share.
#[repr(C)]
pub(crate) struct Domain {
    head: Head<fid_domain>,
    uses: Uses,
    fence: Fence,
    _fabric: Held<Fabric>,
    /// The API level of the client.
    level: Level,
    /// Its rail set, which is its name.
    rails: CString,
    /// Whether keys of registrations are chosen here.
    chooses_keys: bool,
    /// Whether peers name registered memory by its virtual addresses, and not by offsets.
    names_addresses: bool,
    /// The names of its endpoints.
    names: OwnNames,
    /// Where registrations report that they are done, instead of at their call.
    registration_events: OnceLock<Held<EventQueue>>,
    /// Of its calls: by a lock, unless the client promises that it makes one call at a time.
    turns: Turns,
    /// What automatic progress needs, where the client wants it.
    auto: Option<Auto>,
    /// How long an end waits until what was accepted has left: the setting `wait.close`.
    linger: Duration,
    /// How long a call that waits looks before it sleeps: the setting `progress.spins`.
    spin: Spin,
    state: UnsafeCell<State>,
}

/// What the objects of a domain share. [`Domain::run`] gives it to one call at a time.
#[derive(Debug)]
pub(crate) struct State {
    /// The owner of the rails and of the PML.
    pub(crate) member: Member,
    /// The completion queues.
    pub(crate) queues: Queues,
    /// The endpoints, by their numbers.
    pub(crate) endpoints: Endpoints,
    /// What is known of each request of the PML beside it.
    pub(crate) operations: Operations,
    /// The address vectors.
    pub(crate) vectors: Vectors,
    /// The counters of operations.
    pub(crate) counters: Counters,
    /// Longest send that leaves as a whole when a rail takes it. The rest of a longer one may need further
    /// calls after that, so that it is reported when it is with its peer.
    pub(crate) one_frame: usize,
    /// Longest message that is not reported to its sender at once when it has come, since it left as a whole.
    pub(crate) unanswered: u64,
    /// The registrations that have counters.
    pub(crate) watched: Watched,
    /// Passes since the start, and those since one has found something.
    pub(crate) looks: u32,
    pub(crate) idle: u32,
    /// How many of the latter, before those with the clock yield the core.
    pub(crate) idle_most: u32,
    /// Whether peers were being met at the last pass with what depends on the clock.
    pub(crate) meeting: bool,
    /// Whether an injected message may wait in its call for its peer to be met: not where a thread makes
    /// progress when no call does, nor on the clock of a simulation.
    pub(crate) waits_to_meet: bool,
    /// When an injected message waited in vain for its peer to be met.
    pub(crate) in_vain: Option<Instant>,
    /// Whether peers are to ring.
    pub(crate) arming: Arming,
}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for Domain {
    type Head = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;

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
    ..refuse::FI_OPS
});

static OPS: Table<fi_ops_domain> = Table::new(fi_ops_domain {
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    cntr_open: Some(cntr::open),
    endpoint: Some(ep::open),
    endpoint2: Some(ep::open2),
    poll_open: Some(wait::open_poll),
    query_atomic: Some(atomic::query),
    ..fi_ops_domain::REFUSING
});

impl Domain {
    /// Runs a call on the state of the domain: behind the fence, and under the lock where there is one. A
    /// call must not run another one.
    #[inline]
    pub(crate) fn run<A: Answer>(&self, call: &'static str, work: impl FnOnce(&mut State) -> Result<A>) -> A {
        self.enter(call, |state| work(state.awake()))
    }

    /// As [`Domain::run`], for a part of a call that sleeps.
    pub(crate) fn run_among_sleepers<A: Answer>(
        &self,
        call: &'static str,
        work: impl FnOnce(&mut State) -> Result<A>,
    ) -> A {
        self.enter(call, |state| state.among_sleepers(work))
    }

    #[inline]
    fn enter<A: Answer>(&self, call: &'static str, work: impl FnOnce(&mut State) -> Result<A>) -> A {
        self.turns.begin();
        // A thread of the parent may have held the lock at the fork, so the fence keeps a child from waiting
        // for it.
        let answer = self.fence.run(call, || {
            let _turn = self.turns.take(|| self.fence.check(call))?;
            // SAFETY: the turn is by the lock, or by the client's promise to make one call at a time
            // (FI_THREAD_DOMAIN); no call runs another one. The end of the process, which may be in another
            // thread, has closed the fence before, or waits until this call has ended (`turns`).
            work(unsafe { &mut *self.state.get() })
        });
        self.turns.end();
        answer
    }

    /// Runs what the domain's own thread does. It counts as no call, and leaves who sleeps asleep.
    pub(crate) fn run_aside<A: Answer>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut State) -> Result<A>,
    ) -> A {
        self.fence.run(what, || {
            let _turn = self.turns.take_aside(|| self.fence.check(what))?;
            // SAFETY: the turn is by the lock. The end of the process has it afterwards (`turns`).
            work(unsafe { &mut *self.state.get() })
        })
    }

    /// How many calls were made; `None` where none may be made any more.
    pub(crate) fn calls_made(&self) -> Option<u64> {
        if self.fence.is_open() {
            self.turns.made()
        } else {
            None
        }
    }

    /// What automatic progress needs, where the client wants it.
    #[inline]
    pub(crate) fn auto(&self) -> Option<&Auto> {
        self.auto.as_ref()
    }

    /// Runs a call that polls: while another one runs, there is nothing to read yet.
    #[inline]
    pub(crate) fn poll(&self, call: &'static str, work: impl FnOnce(&mut State) -> Result<isize>) -> isize {
        self.turns.begin();
        let answer = self.fence.run(call, || {
            let _turn = self.turns.try_take(|| self.fence.check(call))?;
            // SAFETY: as for `run`.
            work(unsafe { &mut *self.state.get() }.awake())
        });
        self.turns.end();
        answer
    }

    /// Waits until the end of the process touches no memory of the client any more, where it has closed the
    /// fence.
    pub(crate) fn wait_for_end(&self) {
        let until = Instant::now() + self.linger;
        while self.fence.is_leaving() && Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// Runs the end of an object of the domain. Where no call may run, the object's part of the state is left
    /// as it is.
    pub(crate) fn close_part(&self, call: &'static str, work: impl FnOnce(&mut State)) -> c_int {
        if !self.fence.is_open() {
            return 0;
        }
        self.run(call, |state| {
            work(state);
            Ok(0)
        })
    }

    /// Returns its rail set, which is its name.
    pub(crate) fn rails(&self) -> &CStr {
        &self.rails
    }

    /// Whether keys of registrations are chosen here, and not by the client.
    pub(crate) fn chooses_keys(&self) -> bool {
        self.chooses_keys
    }

    /// Whether peers name registered memory by its virtual addresses, and not by offsets.
    pub(crate) fn names_addresses(&self) -> bool {
        self.names_addresses
    }

    /// Returns the modes of registration that it was opened with.
    pub(crate) fn registration_modes(&self) -> u64 {
        let addresses = (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED) as u64;
        let of = |holds: bool, modes: u64| if holds { modes } else { 0 };
        of(self.names_addresses, addresses) | of(self.chooses_keys, FI_MR_PROV_KEY as u64)
    }

    /// Whether calls may run: not in a child of a fork, nor after a panic.
    pub(crate) fn may_run(&self) -> bool {
        self.fence.is_open()
    }

    /// Returns the queue that gets the events of registrations.
    pub(crate) fn registration_events(&self) -> Option<&EventQueue> {
        self.registration_events.get().map(|queue| &**queue)
    }

    /// Runs a call that needs no state of the domain: behind the fence alone.
    pub(crate) fn guard<A: Answer>(&self, call: &'static str, work: impl FnOnce() -> Result<A>) -> A {
        self.fence.run(call, work)
    }

    /// Returns the API level of the client.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// How long a call that waits looks before it sleeps.
    pub(crate) fn spin(&self) -> Spin {
        self.spin
    }

    /// How long an end waits until what was accepted has left.
    pub(crate) fn linger(&self) -> Duration {
        self.linger
    }

    /// Returns the names of its endpoints.
    pub(crate) fn names(&self) -> &OwnNames {
        &self.names
    }
}

/// Opens a domain: fi_domain(3).
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to fabrics.
    let fabric = unsafe { fabric::of(fabric) };
    // SAFETY: the caller's pointers are those of fi_domain(3).
    fabric.run("fi_domain", || unsafe { enter(fabric, info, domain, context) })
}

/// Opens a domain with flags, of which none is known.
pub(crate) unsafe extern "C" fn open2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: as for the call without flags.
    unsafe { open(fabric, info, domain, context) }
}

/// Makes a domain.
///
/// # Safety
/// The pointers are those of fi_domain(3).
unsafe fn enter(
    fabric: &Fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(domain, ptr::null_mut()) }?;
    // SAFETY: an entry of fi_getinfo(3), or null.
    let wanted = unsafe { Wanted::read(info) }?;
    let refuse = |error: doorbell_job::Error| {
        log::warn(FI_LOG_DOMAIN, &format!("fi_domain: {}", error.sentence()));
        errno_of(&error)
    };
    let config = params::config().map_err(refuse)?;
    let config = wanted.with_rails(&config)?;
    let key = MeetingKey::of(&config).map_err(refuse)?;
    let manner = match wanted.is_automatic {
        true => Manner::of(&config).map_err(refuse)?,
        false => Manner::default(),
    };
    let member = wanted.enter(&config, key).map_err(refuse)?;
    if let Some(door) = member.address(0).keyed_door() {
        log::info(FI_LOG_DOMAIN, || {
            format!("processes of other hosts that have the key reach this one at {door}")
        });
    }
    let object = Domain::of_member(fabric, &wanted, &config, member, context);
    object.start_thread(manner)?;
    exit::note(&object);
    // SAFETY: written above.
    unsafe { publish(object, domain) };
    Ok(0)
}

impl Domain {
    /// Makes the domain of a member.
    fn of_member(
        fabric: &Fabric,
        wanted: &Wanted,
        config: &Config,
        member: Member,
        context: *mut c_void,
    ) -> Box<Self> {
        let spins = *config.progress.spins.get();
        Box::new(Self {
            head: Head::new(fid_domain {
                fid: object::head::<Self>(context),
                ops: OPS.pointer(),
                mr: mr::OPS.pointer(),
            }),
            uses: Uses::default(),
            fence: Fence::new(),
            _fabric: Held::new(fabric),
            level: fabric.level(),
            rails: CString::new(sets::name_of(config)).unwrap_or_default(),
            chooses_keys: wanted.mr_mode & FI_MR_PROV_KEY != 0 || wanted.mr_mode == FI_MR_BASIC,
            names_addresses: wanted.mr_mode & FI_MR_VIRT_ADDR != 0 || wanted.mr_mode == FI_MR_BASIC,
            names: OwnNames::new(
                wanted.format,
                wanted.source.as_ref(),
                member.address(0).keyed_door(),
            ),
            registration_events: OnceLock::new(),
            turns: match wanted.threading {
                FI_THREAD_DOMAIN if !wanted.is_automatic => Turns::by_promise(),
                _ => Turns::by_lock(),
            },
            auto: wanted.is_automatic.then(Auto::default),
            linger: *config.wait.close.get(),
            spin: Spin::of(spins),
            state: UnsafeCell::new(State {
                one_frame: member.one_frame(),
                unanswered: unanswered(member.one_frame()),
                queues: Queues::default(),
                endpoints: Endpoints::default(),
                operations: Operations::default(),
                vectors: Vectors::new(wanted.format, &member),
                member,
                counters: Counters::default(),
                watched: Watched::default(),
                looks: 0,
                idle: 0,
                idle_most: spins.unwrap_or(sleep::IDLE),
                meeting: false,
                waits_to_meet: !wanted.is_automatic && !wanted.is_simulated,
                in_vain: None,
                arming: Arming::default(),
            }),
        })
    }

    /// Opens the domain of a member that stands on a simulated network: for [`crate::simulated`].
    pub(crate) fn simulated(fabric: &Fabric, config: &Config, member: Member) -> *mut fid_domain {
        let wanted = Wanted {
            threading: FI_THREAD_DOMAIN,
            rails: None,
            mr_mode: 0,
            is_automatic: false,
            is_simulated: true,
            format: Format::Ours,
            source: None,
        };
        let object = Self::of_member(fabric, &wanted, config, member, ptr::null_mut());
        exit::note(&object);
        let mut domain = ptr::null_mut();
        // SAFETY: a place of this function.
        unsafe { publish(object, &raw mut domain) };
        domain
    }

    /// Returns where its state is, for a look between two calls.
    pub(crate) fn state(&self) -> *mut State {
        self.state.get()
    }
}

/// Returns the number for an error of the member: the system's, where a call of the system has failed, and
/// `FI_EBUSY` where another process has what a rail needs.
fn errno_of(error: &doorbell_job::Error) -> Errno {
    if let doorbell_job::Error::Rail(RailError::Taken { .. }) = error {
        return Errno(FI_EBUSY);
    }
    let first: &(dyn std::error::Error + 'static) = error;
    let number = std::iter::successors(Some(first), |error| error.source())
        .find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error());
    Errno(number.unwrap_or(FI_EIO))
}

/// What a domain is opened with, of an entry of fi_getinfo(3).
struct Wanted {
    threading: fi_threading,
    /// The name of the domain, which is its rail set.
    rails: Option<CString>,
    /// Progress of either kind is to be made while the client makes no calls.
    is_automatic: bool,
    /// Its rails are simulated, and time is theirs.
    is_simulated: bool,
    mr_mode: c_int,
    format: Format,
    source: Option<Given>,
}

impl Wanted {
    /// # Safety
    /// `info` is null, or an entry with its attributes.
    ///
    /// # Errors
    /// `FI_EINVAL` for an entry without attributes of the domain.
    unsafe fn read(info: *const fi_info) -> Result<Self> {
        // SAFETY: null, or an entry, whose fields all releases have.
        let attributes = unsafe { taken_entry(info) }.ok_or(Errno(FI_EINVAL))?;
        // SAFETY: attributes of the entry, of which all releases have these fields.
        let threading = unsafe { (*attributes).threading };
        // SAFETY: as above.
        let control = unsafe { (*attributes).control_progress };
        // SAFETY: as above.
        let data = unsafe { (*attributes).data_progress };
        // SAFETY: as above.
        let mr_mode = unsafe { (*attributes).mr_mode };
        // SAFETY: as above.
        let name = unsafe { (*attributes).name };
        // SAFETY: not null, so a text that ends with a zero byte.
        let rails = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned());
        // SAFETY: an entry, since it has attributes.
        let format = match unsafe { (*info).addr_format } {
            FI_FORMAT_UNSPEC => Format::Ours,
            number => Format::of(number.into()).ok_or(Errno(FI_EINVAL))?,
        };
        Ok(Self {
            threading,
            rails,
            is_automatic: control == FI_PROGRESS_AUTO || data == FI_PROGRESS_AUTO,
            is_simulated: false,
            mr_mode,
            format,
            // SAFETY: an entry with its addresses.
            source: unsafe { source_of(info) },
        })
    }

    /// Returns the settings with the rails that the domain is to have.
    ///
    /// # Errors
    /// `FI_EINVAL` for rails that cannot be used, and for others than the settings name.
    fn with_rails(&self, config: &Config) -> Result<Config> {
        sets::of_domain(config, self.rails.as_deref()).map_err(|reason| {
            log::warn(FI_LOG_DOMAIN, &format!("fi_domain: {reason}"));
            Errno(FI_EINVAL)
        })
    }

    /// Opens the rails, at the port of the source address where it has one.
    fn enter(
        &self,
        config: &Config,
        key: Option<MeetingKey>,
    ) -> std::result::Result<Member, doorbell_job::Error> {
        let port = self.source.as_ref().and_then(Given::port);
        if self.format != Format::Ours {
            return Member::enter_at(config.clone(), port, key);
        }
        let Some(port) = port else {
            return Member::enter(config.clone(), key);
        };
        match Member::enter_at(config.clone(), Some(port), key.clone()) {
            // A client that exchanges addresses passes a port, too, on each side the same one.
            Err(error) if errno_of(&error) == Errno(FI_EADDRINUSE) => {
                log::info(FI_LOG_DOMAIN, || {
                    format!(
                        "port {port} has another process: this one is reached by the name of fi_getname alone"
                    )
                });
                Member::enter(config.clone(), key)
            }
            result => result,
        }
    }
}

/// Returns the source address of an entry, if it has one.
///
/// # Safety
/// An entry, with an address of the length that it has, or none.
pub(crate) unsafe fn source_of(info: *const fi_info) -> Option<Given> {
    // SAFETY: an entry, by the contract of this function.
    let start = unsafe { (*info).src_addr };
    // SAFETY: as above.
    let length = unsafe { (*info).src_addrlen };
    if start.is_null() || length == 0 {
        return None;
    }
    // SAFETY: the entry's address has this length.
    Given::read(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) })
}

/// Returns the attributes of the domain of an entry.
///
/// # Safety
/// `info` is null or an entry.
unsafe fn taken_entry(info: *const fi_info) -> Option<*const fi_domain_attr> {
    if info.is_null() {
        return None;
    }
    // SAFETY: not null.
    let attributes = unsafe { (*info).domain_attr };
    (!attributes.is_null()).then_some(attributes.cast_const())
}

/// Binds a domain to an event queue: with `FI_REG_MR`, registrations report their ends there.
unsafe extern "C" fn bind(domain: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { of(domain.cast()) };
    domain.guard("fi_domain_bind", || {
        if flags & !FI_REG_MR != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: null, or an open object of the caller.
        let queue = unsafe { object::find::<EventQueue>(queue) }?;
        if flags & FI_REG_MR != 0 && domain.registration_events.set(Held::new(queue)).is_err() {
            return Err(Errno(FI_EINVAL));
        }
        Ok(0)
    })
}

/// Returns the domain of a call.
///
/// # Safety
/// The pointer is to the head of an open domain.
pub(crate) unsafe fn of<'a>(domain: *mut fid_domain) -> &'a Domain {
    // SAFETY: by the contract of this function.
    unsafe { object::this::<Domain>(domain) }
}

unsafe extern "C" fn close(domain: *mut fid) -> c_int {
    // SAFETY: the table belongs to domains; the reference ends before the domain is taken back.
    let object = unsafe { of(domain.cast()) };
    if object.uses.count() > 0 {
        return -FI_EBUSY;
    }
    if !object.fence.is_open() || !exit::forget(object) {
        // It is the parent's, a panic has left it in an unknown state, or the end of the process still uses
        // it: it stays as it is.
        return 0;
    }
    object.stop_thread();
    // SAFETY: as above.
    match unsafe { take_back::<Domain>(domain) } {
        Ok(object) => {
            let call = "fi_close of a domain";
            Fence::close(
                object,
                |object| &object.fence,
                call,
                |mut object| {
                    let linger = object.linger;
                    object.state.get_mut().member.close(linger);
                    Ok(0)
                },
            )
        }
        Err(errno) => -errno.0,
    }
}

/// The end of a domain that is open when the process ends: it sends what it has accepted.
pub(crate) struct Leave<'a> {
    domain: &'a Domain,
    until: Instant,
    turn: Option<Turn<'a>>,
    /// Whether calls that are under way are seen.
    is_sure: bool,
}

impl<'a> Leave<'a> {
    /// Closes a domain to calls. `None` for one in which none may run: of a parent, or after a panic.
    pub(crate) fn begin(domain: &'a Domain, began: Instant) -> Option<Self> {
        domain.fence.begin_to_leave().then(|| Self {
            domain,
            until: began + domain.linger,
            turn: None,
            is_sure: domain.turns.find_calls(),
        })
    }

    /// Makes a pass. Returns whether all has been sent, or cannot be.
    pub(crate) fn pass(&mut self) -> bool {
        if self.turn.is_none() && self.is_sure {
            self.turn = self.domain.turns.last();
        }
        if !self.domain.fence.is_leaving() {
            // The last call has panicked.
            return true;
        }
        if self.turn.is_none() {
            return self.gives_up();
        }
        let passed: c_int = guard("the end of the process", || {
            // SAFETY: the turn is this one's, and stays so; no later call passes the fence.
            let state = unsafe { &mut *self.domain.state.get() };
            Ok(c_int::from(state.member.close_pass(self.until)))
        });
        if passed != 0 && Instant::now() >= self.until {
            log::warn(FI_LOG_DOMAIN, &exit::unsent("the end of the process"));
        }
        passed != 0
    }

    /// Whether there is no point in waiting for a call that is under way. One of this thread, which a handler
    /// of a signal has interrupted, does not go on.
    #[cold]
    fn gives_up(&self) -> bool {
        let is_over = !self.is_sure || is_single_threaded() || Instant::now() >= self.until;
        if is_over {
            log::warn(
                FI_LOG_DOMAIN,
                "the end of the process: a call is under way, so what was accepted is not sent; call exit \
                 outside of handlers of signals",
            );
        }
        is_over
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.domain.fence.has_left();
    }
}

/// Longest message that is not reported to its sender at once, where the longest one of a frame is
/// `one_frame`: frames of a peer may be shorter, though not than those of the least MTU of IPv6, 1,280.
fn unanswered(one_frame: usize) -> u64 {
    const SHORTEST: usize = 1200;
    match one_frame {
        usize::MAX => u64::MAX,
        one_frame => one_frame.min(SHORTEST) as u64,
    }
}

#[cfg(test)]
mod tests;
