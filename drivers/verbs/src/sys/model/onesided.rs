//! What the model has for one-sided operations: memory windows, keys, reads and atomics.

use std::cell::Cell;

use super::*;

/// Which memory windows a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    None,
    /// A key of one reaches the whole registration beneath it, as over rxe.
    Unchecked,
    /// A key of one reaches its bytes.
    Checked,
}

/// A window, and what it is bound to.
pub(super) struct Bound {
    domain: usize,
    key: u32,
    to: Option<Binding>,
}

struct Binding {
    pair: usize,
    memory: u32,
    start: u64,
    length: u64,
    access: c_int,
}

/// What windows depend on.
#[derive(Clone, Copy)]
pub(super) enum Beneath {
    Memory(u32),
    Pair(usize),
}

/// Whether a request reads, and counts among those under way.
pub(super) fn is_read(opcode: c_int) -> bool {
    matches!(
        opcode,
        numbers::WR_RDMA_READ | numbers::WR_COMPARE_SWAP | numbers::WR_FETCH_ADD
    )
}

/// How many windows of a device are bound.
pub(crate) fn bound_windows(name: &str) -> usize {
    let world = world();
    let of_device = |bound: &&Bound| {
        let pair = bound.to.as_ref().and_then(|to| world.pairs.get(&to.pair));
        pair.is_some_and(|pair| pair.device == name)
    };
    world.windows.values().filter(of_device).count()
}

/// What was read of a window when its binding was posted: the key that the program has written down, and
/// that of the registration.
#[derive(Clone, Copy)]
pub(super) struct Named {
    written: u32,
    memory: u32,
}

impl Named {
    /// # Safety
    /// The request binds a window of the model to a registration of the model, which are alive.
    unsafe fn by(request: &SendWr) -> Self {
        let last = request.last;
        // SAFETY: the caller's promise.
        let (written, memory) = unsafe { ((*last.mw).rkey, (*last.bind_info.mr).lkey) };
        Self { written, memory }
    }
}

/// A request that is executed later.
pub(super) struct Later {
    request: SendWr,
    pieces: Vec<Sge>,
    /// The bytes that went with it.
    inline: Vec<u8>,
    posted: u64,
    named: Option<Named>,
}

// SAFETY: its pointers are followed by the thread that holds the world, or never.
unsafe impl Send for Later {}

impl Later {
    /// # Safety
    /// As of a request that is posted.
    pub(super) unsafe fn new(request: &SendWr, posted: u64) -> Self {
        let is_bind = request.opcode == numbers::WR_BIND_MW;
        let mut pieces = Vec::new();
        let mut inline = Vec::new();
        // SAFETY: the caller's promise.
        unsafe {
            for index in 0..request.num_sge as usize {
                let piece = *request.sg_list.add(index);
                pieces.push(piece);
                if request.send_flags & numbers::SEND_INLINE != 0 {
                    let start: *const u8 = std::ptr::with_exposed_provenance(piece.addr as usize);
                    inline.extend_from_slice(std::slice::from_raw_parts(start, piece.length as usize));
                }
            }
            Self {
                request: *request,
                pieces,
                inline,
                posted,
                named: is_bind.then(|| Named::by(request)),
            }
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.request.wr_id
    }
}

/// Has the requests of a device's reliable queue pairs be executed later than they are posted, at times that
/// follow from a seed.
#[cfg(test)]
pub(crate) fn put_off_requests(name: &str, seed: u64) {
    world().device(name).random = Some(Random::new(seed));
}

/// Has requests of a device that bind windows not end from now on, or end as they should.
pub(crate) fn hold_binds(name: &str, is_held: bool) {
    world().device(name).holds_binds = is_held;
}

/// What a kernel without copies at fork sees of this thread: whether `ibv_fork_init` was called, how often,
/// and registrations before and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForkCalls {
    pub(crate) inits: u32,
    pub(crate) before: u32,
    pub(crate) after: u32,
}

thread_local! {
    /// `None`: registered pages are copied at fork.
    static FORK: Cell<Option<ForkCalls>> = const { Cell::new(None) };
}

/// Has the kernel of this thread copy no registered pages at fork, from now on.
pub(crate) fn copy_nothing_at_fork() {
    FORK.set(Some(ForkCalls::default()));
}

/// What such a kernel has seen.
pub(crate) fn fork_calls() -> Option<ForkCalls> {
    FORK.get()
}

/// Something else in the process has registered memory.
pub(crate) fn registered_elsewhere() {
    registered();
}

/// Memory is registered.
pub(super) fn registered() {
    if let Some(mut calls) = FORK.get() {
        match calls.inits {
            0 => calls.before += 1,
            _ => calls.after += 1,
        }
        FORK.set(Some(calls));
    }
}

pub(super) unsafe extern "C" fn is_fork_initialized() -> c_int {
    match FORK.get() {
        None => numbers::FORK_UNNEEDED,
        Some(calls) if calls.inits > 0 => numbers::FORK_ENABLED,
        Some(_) => numbers::FORK_DISABLED,
    }
}

/// As the library: refused behind the first registration.
pub(super) unsafe extern "C" fn fork_init() -> c_int {
    let Some(mut calls) = FORK.get() else { return 0 };
    if calls.before > 0 {
        return libc::EINVAL;
    }
    calls.inits += 1;
    FORK.set(Some(calls));
    0
}

/// Moves the queue pair of this number to ERR, if there is one.
pub(crate) fn break_pair(name: &str, number: Option<u32>) {
    let mut world = world();
    let mut pairs = world.pairs.iter();
    let found = pairs.find(|(_, pair)| pair.device == name && Some(pair.number) == number);
    if let Some(at) = found.map(|(at, _)| *at) {
        world.fall(at);
    }
}

/// How many queue pairs a device has.
pub(crate) fn pairs_of(name: &str) -> usize {
    let world = world();
    world.pairs.values().filter(|pair| pair.device == name).count()
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut Pd, kind: c_int) -> *mut Mw {
    let _own = Own::count();
    // SAFETY: a domain of the model.
    unsafe {
        let context = (*pd).context;
        let mut world = world();
        if kind != numbers::MW_TYPE_2 || !world.makes(&name_of(context), "alloc_mw") {
            return std::ptr::null_mut();
        }
        world.next += 1;
        let mut mw = Mw::zeroed();
        (mw.context, mw.pd, mw.rkey, mw.kind) = (context, pd, world.next << 8, kind);
        let bound = Bound {
            domain: pd as usize,
            key: mw.rkey,
            to: None,
        };
        let mw = Box::into_raw(Box::new(mw));
        world.windows.insert(mw as usize, bound);
        mw
    }
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    world().windows.remove(&(mw as usize));
    // SAFETY: made by the model.
    unsafe { end(mw, (*mw).context) }
}

impl World {
    /// Counts bytes that are registered; `false` above the limit.
    pub(super) fn locks(&mut self, name: &str, length: usize) -> bool {
        let device = self.device(name);
        let is_possible = device.locked.saturating_add(length) <= device.spec.lockable;
        device.locked += if is_possible { length } else { 0 };
        is_possible
    }

    /// Whether a window depends on this.
    pub(super) fn has_window(&self, on: Beneath) -> bool {
        let mut bindings = self.windows.values().filter_map(|bound| bound.to.as_ref());
        bindings.any(|to| match on {
            Beneath::Memory(key) => to.memory == key,
            Beneath::Pair(at) => to.pair == at,
        })
    }

    /// Executes a request about a window; `None` if it is about something else.
    ///
    /// # Safety
    /// The request's window and registration are the model's and alive, if they were not looked at before.
    pub(super) unsafe fn window(
        &mut self,
        at: usize,
        request: &SendWr,
        named: Option<Named>,
    ) -> Option<c_int> {
        match request.opcode {
            numbers::WR_BIND_MW => {
                // SAFETY: the caller's promise.
                let named = named.unwrap_or_else(|| unsafe { Named::by(request) });
                Some(self.bind(at, request, named))
            }
            numbers::WR_LOCAL_INV => Some(self.invalidate(at, request.imm_data)),
            _ => None,
        }
    }

    /// Executes requests of a device that were put off: some, in the order of each queue pair.
    pub(super) fn run_some(&mut self, name: &str) {
        let Some(random) = &mut self.device(name).random else {
            return;
        };
        let count = random.below(4);
        for _ in 0..count {
            let mut waiting: Vec<(u32, usize)> = self
                .pairs
                .iter()
                .filter_map(|(at, pair)| {
                    let half = pair.reliable.as_ref()?;
                    (pair.device == name && !half.later.is_empty()).then_some((pair.number, *at))
                })
                .collect();
            waiting.sort_unstable();
            let Some(random) = &mut self.device(name).random else {
                return;
            };
            if waiting.is_empty() {
                return;
            }
            let at = waiting[random.index(waiting.len())].1;
            let half = self.pairs.get_mut(&at).and_then(|pair| pair.reliable.as_mut());
            let half = half.expect("it was found");
            let Some(later) = half.later.pop_front() else {
                continue;
            };
            half.held_reads -= u8::from(is_read(later.request.opcode));
            let mut request = later.request;
            let mut pieces = later.pieces;
            if let (Some(piece), false) = (pieces.first_mut(), later.inline.is_empty()) {
                piece.addr = later.inline.as_ptr().expose_provenance() as u64;
            }
            request.sg_list = pieces.as_mut_ptr();
            // SAFETY: its pieces are here. What they name is checked to be registered, and so mapped.
            unsafe { self.execute(at, &request, later.posted, later.named) };
        }
    }

    fn bind(&mut self, at: usize, request: &SendWr, named: Named) -> c_int {
        let domain = self.pairs[&at].reliable.as_ref().expect("a reliable one").domain;
        let last = request.last;
        let Named { written, memory } = named;
        let info = last.bind_info;
        let needed = info.mw_access_flags as c_int & (numbers::REMOTE_WRITE | numbers::REMOTE_ATOMIC);
        let beneath = self.memory.get(&memory);
        let is_possible = beneath.is_some_and(|beneath| {
            beneath.domain == domain
                && beneath.has(info.addr, info.length as usize)
                && beneath.access & numbers::MW_BIND != 0
                && (needed == 0 || beneath.access & numbers::LOCAL_WRITE != 0)
        });
        let Some(window) = self.windows.get_mut(&(last.mw as usize)) else {
            return numbers::MW_BIND_ERR;
        };
        // The key that the program has written down has to be the last one.
        let is_known = window.key == written && written >> 8 == last.rkey >> 8 && written != last.rkey;
        if !is_possible || !is_known || window.to.is_some() || window.domain != domain {
            return numbers::MW_BIND_ERR;
        }
        window.key = last.rkey;
        window.to = Some(Binding {
            pair: at,
            memory,
            start: info.addr,
            length: info.length,
            access: info.mw_access_flags as c_int,
        });
        numbers::SUCCESS
    }

    fn invalidate(&mut self, at: usize, key: u32) -> c_int {
        let is_it =
            |bound: &&mut Bound| bound.key == key && bound.to.as_ref().is_some_and(|to| to.pair == at);
        match self.windows.values_mut().find(is_it) {
            Some(bound) => {
                bound.to = None;
                numbers::SUCCESS
            }
            None => numbers::MW_BIND_ERR,
        }
    }

    /// Whether a key allows an access that comes over a queue pair.
    pub(super) fn is_allowed(
        &self,
        target: &reliable::Target,
        (address, key): (u64, u32),
        length: usize,
        wanted: c_int,
    ) -> bool {
        if target.access & wanted == 0 {
            return false;
        }
        if let Some(memory) = self.memory.get(&key) {
            return memory.has(address, length)
                && memory.domain == target.domain
                && memory.access & wanted != 0;
        }
        let bound = self.windows.values().find(|bound| bound.key == key);
        let Some(to) = bound.and_then(|bound| bound.to.as_ref()) else {
            return false;
        };
        let device = &self.pairs[&target.at].device;
        let mut devices = self.devices.iter();
        let spec = devices
            .find(|dev| dev.spec.name == *device)
            .map(|dev| dev.spec.windows);
        let is_inside = match spec {
            Some(Windows::Checked) => {
                let end = address.checked_add(length as u64);
                address >= to.start && end.is_some_and(|end| end <= to.start + to.length)
            }
            _ => self.memory[&to.memory].has(address, length),
        };
        to.pair == target.at && to.access & wanted != 0 && is_inside
    }

    /// Reads, or changes eight bytes.
    ///
    /// # Safety
    /// What registrations of the model name may be read and written, and so may the request's piece.
    pub(super) unsafe fn read(
        &mut self,
        target: &reliable::Target,
        request: &SendWr,
        length: usize,
    ) -> c_int {
        if length == 0 {
            return numbers::SUCCESS;
        }
        let is_atomic = request.opcode != numbers::WR_RDMA_READ;
        let [address, second, third, fourth] = request.first;
        let (key, wanted) = match is_atomic {
            true => (fourth as u32, numbers::REMOTE_ATOMIC),
            false => (second as u32, numbers::REMOTE_READ),
        };
        if is_atomic && (length != 8 || !address.is_multiple_of(8)) {
            self.fall(target.at);
            return numbers::REM_INV_REQ_ERR;
        }
        if !self.is_allowed(target, (address, key), length, wanted) {
            self.fall(target.at);
            return numbers::REM_ACCESS_ERR;
        }
        let there: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller's promise.
        unsafe {
            let piece = *request.sg_list;
            let here: *mut u8 = std::ptr::with_exposed_provenance_mut(piece.addr as usize);
            if is_atomic {
                let old = there.cast::<u64>().read();
                let new = match request.opcode {
                    numbers::WR_FETCH_ADD => old.wrapping_add(second),
                    _ if old == second => third,
                    _ => old,
                };
                there.cast::<u64>().write(new);
                here.cast::<u64>().write_unaligned(old);
            } else {
                std::ptr::copy(there, here, length);
            }
        }
        numbers::SUCCESS
    }
}
