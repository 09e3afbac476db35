//! One-sided operations: memory of any owner, windows on it, and the requests of a queue pair that receives
//! nothing.

use doorbell_fabric::memory::{ConstLoan, MutLoan, SharedBytes};

use super::*;
use crate::sys::abi::MwBindInfo;

/// Memory, kept or borrowed for as long as it is registered.
#[derive(Clone, Debug)]
pub(crate) enum Held {
    /// A slice of an owned region.
    Region(RegionSlice),
    /// Borrowed memory, to be read.
    Read(ConstLoan),
    /// Borrowed memory, to be written.
    Write(MutLoan),
}

impl Held {
    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Region(slice) => slice.address() as u64,
            Self::Read(loan) => loan.address() as u64,
            Self::Write(loan) => loan.as_const().address() as u64,
        }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Region(slice) => slice.len(),
            Self::Read(loan) => loan.len(),
            Self::Write(loan) => loan.len(),
        }
    }

    /// Returns its bytes.
    pub(crate) fn as_shared(&self) -> SharedBytes<'_> {
        match self {
            Self::Region(slice) => slice.as_shared(),
            Self::Read(loan) => loan.as_shared(),
            Self::Write(loan) => loan.as_shared(),
        }
    }

    fn start(&self) -> *mut c_void {
        match self {
            Self::Region(slice) => slice.as_mut_ptr().cast(),
            Self::Read(loan) => ptr::with_exposed_provenance_mut(loan.address()),
            Self::Write(loan) => loan.as_mut_ptr().cast(),
        }
    }
}

owner! {
    /// A registration of exactly the bytes that are held.
    Pinned(Mr), destroyed by dereg_mr, keeps { domain: Arc<Domain>, held: Held }
}

impl Pinned {
    /// Registers memory with these rights.
    ///
    /// # Errors
    /// If the system refuses it: more locked memory than the limit allows, mostly.
    pub(crate) fn new(domain: &Arc<Domain>, held: Held, access: c_int) -> Result<Self, VerbsError> {
        let open = &domain.open;
        let (start, length) = (held.start(), held.len());
        // SAFETY: the domain is alive. The memory stays as long as what is held: a slice keeps its region,
        // and loans are promised to stay until the operation has ended or the exposure was withdrawn, which
        // is not before this registration is dropped.
        let raw = made(unsafe { (open.library.functions.reg_mr)(domain.raw, start, length, access) });
        Ok(Self {
            raw: raw.map_err(|error| failed("ibv_reg_mr", &open.name, error))?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            held,
        })
    }

    /// What is registered.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// The key by which a peer names it.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { (*self.raw).rkey }
    }

    fn piece(&self, at: usize, length: usize) -> Option<Sge> {
        let end = at.checked_add(length)?;
        if end > self.held.len() {
            return None;
        }
        Some(Sge {
            addr: self.held.address() + at as u64,
            length: u32::try_from(length).ok()?,
            // SAFETY: the registration is alive.
            lkey: unsafe { (*self.raw).lkey },
        })
    }
}

/// A registration that a request or a window names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beneath<'a> {
    Registered(&'a Registered),
    Pinned(&'a Pinned),
}

impl Beneath<'_> {
    fn piece(&self, at: usize, length: usize) -> Option<Sge> {
        match self {
            Self::Registered(memory) => memory.piece(at, length),
            Self::Pinned(memory) => memory.piece(at, length),
        }
    }

    fn bytes(&self) -> SharedBytes<'_> {
        match self {
            Self::Registered(memory) => memory.memory().as_shared(),
            Self::Pinned(memory) => memory.held().as_shared(),
        }
    }

    fn raw(&self) -> *mut abi::Mr {
        match self {
            Self::Registered(memory) => memory.raw,
            Self::Pinned(memory) => memory.raw,
        }
    }
}

impl Registered {
    /// Registers a whole region with these rights.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn allowing(
        domain: &Arc<Domain>,
        region: &Region,
        access: c_int,
    ) -> Result<Arc<Self>, VerbsError> {
        Self::with(domain, region.whole(), access)
    }

    /// Whether nothing but this holds the region.
    pub(crate) fn is_last(&self) -> bool {
        !self.memory.region().is_shared()
    }
}

/// A memory window of type 2B: bound by a request on one queue pair, and good over that one alone.
pub(crate) struct Window {
    raw: *mut abi::Mw,
    open: Arc<Open>,
    #[allow(dead_code)] // kept alive
    domain: Arc<Domain>,
    dealloc: DeallocMw,
}

// SAFETY: all functions of the library may be called by any thread.
unsafe impl Send for Window {}
// SAFETY: as above; what changes its structure takes `&mut self`.
unsafe impl Sync for Window {}

impl fmt::Debug for Window {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Window of {}", self.open.name)
    }
}

impl Window {
    /// # Errors
    /// If the system refuses it, or the device has none.
    pub(crate) fn new(domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        let open = &domain.open;
        let Some((alloc, dealloc)) = open.fast.windows else {
            let error = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(failed("ibv_alloc_mw", &open.name, error));
        };
        // SAFETY: the domain is alive.
        let raw = made(unsafe { alloc(domain.raw, numbers::MW_TYPE_2) });
        Ok(Self {
            raw: raw.map_err(|error| failed("ibv_alloc_mw", &open.name, error))?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            dealloc,
        })
    }

    /// The key that it has had last: its upper 24 bits are those of all its keys.
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { (*self.raw).rkey }
    }

    /// It was bound under a key. The library leaves it to the program to write that down, and the device
    /// refuses the next bind where it is not.
    pub(crate) fn was_bound(&mut self, key: u32) {
        // SAFETY: the window is alive, and nothing else writes to its structure.
        unsafe { (*self.raw).rkey = key };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.open.is_ours() {
            // SAFETY: made by the library, and ended once. A refusal, of a device that is gone, changes
            // nothing.
            unsafe { (self.dealloc)(self.raw) };
        }
    }
}

/// What an atomic of the device does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceAtomic {
    Add(u64),
    CompareSwap { expected: u64, desired: u64 },
}

/// Bytes of a write that go with the request at most.
const INLINE: usize = 64;

/// The requests of a queue pair of one-sided operations. The caller keeps the memory of each until it
/// has ended; a device refuses what is not registered any more.
pub(crate) struct Requests {
    pair: ReliablePair,
    list: SendList<1>,
    /// Copies of the bytes that go with requests.
    inline: Box<[[u8; INLINE]]>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Requests of {:?}", self.pair)
    }
}

impl Requests {
    /// Drives a queue pair that was made for `sends` requests.
    pub(crate) fn new(pair: ReliablePair, sends: usize) -> Self {
        Self {
            pair,
            list: SendList::new(sends),
            inline: vec![[0; INLINE]; sends].into(),
        }
    }

    /// Its queue pair.
    pub(crate) fn pair(&self) -> &ReliablePair {
        &self.pair
    }

    /// Requests that were prepared.
    pub(crate) fn waiting(&self) -> usize {
        self.list.waiting
    }

    #[inline]
    fn next(&mut self, id: u64, opcode: c_int, piece: Option<Sge>) -> Result<&mut SendWr, Broken> {
        let (request, _) = self.list.next(id, piece.unwrap_or(Sge::zeroed()))?;
        request.opcode = opcode;
        request.send_flags = numbers::SEND_SIGNALED;
        request.num_sge = c_int::from(piece.is_some_and(|piece| piece.length > 0));
        request.first = [0; 4];
        // A key of an invalidation before: some providers refuse a bind that has one.
        request.imm_data = 0;
        Ok(request)
    }

    /// Prepares a read of the peer's memory at an address, under a key, into a place; of nothing without one.
    ///
    /// # Errors
    /// If as many wait as the queue holds, or the place is not inside its memory.
    #[inline]
    pub(crate) fn read(
        &mut self,
        id: u64,
        place: Option<(Beneath<'_>, usize, usize)>,
        (address, key): (u64, u32),
    ) -> Result<(), Broken> {
        let piece = match place {
            Some((beneath, at, length)) => Some(beneath.piece(at, length).ok_or(Broken)?),
            None => None,
        };
        let request = self.next(id, numbers::WR_RDMA_READ, piece)?;
        request.first = [address, key.into(), 0, 0];
        Ok(())
    }

    /// Prepares a write of a place to the peer's memory; a short one goes with the request.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn write(
        &mut self,
        id: u64,
        place: Option<(Beneath<'_>, usize, usize)>,
        (address, key): (u64, u32),
    ) -> Result<(), Broken> {
        let piece = match place {
            Some((beneath, at, length)) => Some(beneath.piece(at, length).ok_or(Broken)?),
            None => None,
        };
        let inline = (self.pair.granted.max_inline_data as usize).min(INLINE);
        let request = self.next(id, numbers::WR_RDMA_WRITE, piece)?;
        request.first = [address, key.into(), 0, 0];
        if let Some((beneath, at, length)) = place
            && (1..=inline).contains(&length)
        {
            request.send_flags |= numbers::SEND_INLINE;
            let index = self.list.waiting - 1;
            beneath.bytes().copy_to(at, &mut self.inline[index][..length]);
            self.list.pieces[index][0].addr = self.inline[index].as_ptr().expose_provenance() as u64;
        }
        Ok(())
    }

    /// Prepares an atomic on eight bytes of the peer's memory, whose old value comes to a place.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[inline]
    pub(crate) fn atomic(
        &mut self,
        id: u64,
        place: (Beneath<'_>, usize),
        (address, key): (u64, u32),
        what: DeviceAtomic,
    ) -> Result<(), Broken> {
        let piece = place.0.piece(place.1, 8).ok_or(Broken)?;
        let (opcode, first, second) = match what {
            DeviceAtomic::Add(value) => (numbers::WR_FETCH_ADD, value, 0),
            DeviceAtomic::CompareSwap { expected, desired } => (numbers::WR_COMPARE_SWAP, expected, desired),
        };
        let request = self.next(id, opcode, Some(piece))?;
        request.first = [address, first, second, key.into()];
        Ok(())
    }

    /// Posts the binding of a window to bytes of a registration, under a key, behind what was prepared;
    /// returns how many requests were taken.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn bind(
        &mut self,
        id: u64,
        (window, key): (&Window, u32),
        (beneath, at, length): (Beneath<'_>, usize, usize),
        access: c_int,
    ) -> Result<usize, Broken> {
        let piece = beneath.piece(at, length).ok_or(Broken)?;
        let request = self.next(id, numbers::WR_BIND_MW, None)?;
        request.last = abi::LastOfSendWr {
            mw: window.raw,
            rkey: key,
            bind_info: MwBindInfo {
                mr: beneath.raw(),
                addr: piece.addr,
                length: length as u64,
                mw_access_flags: access as u32,
            },
        };
        // At once: the window and the registration are borrowed no longer than this call.
        Ok(self.post())
    }

    /// Prepares the end of a window's key.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn invalidate(&mut self, id: u64, key: u32) -> Result<(), Broken> {
        let request = self.next(id, numbers::WR_LOCAL_INV, None)?;
        request.imm_data = key;
        Ok(())
    }

    /// Posts what was prepared, with one doorbell; returns how many requests were taken. The others are
    /// forgotten.
    #[inline]
    pub(crate) fn post(&mut self) -> usize {
        // SAFETY: the queue pair is alive. Bytes that go with a request lie here. The window and the
        // registration of a binding are borrowed until this call has returned, since it is posted at once.
        unsafe { self.list.post(&self.pair.open, self.pair.raw, usize::MAX) }
    }
}
