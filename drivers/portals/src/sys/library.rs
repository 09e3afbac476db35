//! Loads a libportals by name, and wraps each of its functions in a safe one.
//!
//! Pointers are created in this module and live across the call; memory that a NIC will access is given by a
//! `Pieces` whose owner keeps it (`nic_records`), as a driver's DMA memory is; handles are numbers, and a
//! library refuses those that it does not know.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::fmt;

use doorbell_fabric::ni::layout::{PtlCtEvent, PtlEvent, PtlIovec, PtlMd, PtlMe, PtlNiLimits, PtlProcess};
use doorbell_fabric::ni::{Entry, EntryOptions};

use super::abi::CT_NONE;
use crate::error::PortalsError;

type Address = *mut c_void;
type Handle = c_uint;

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($($field:ident $symbol:literal $(or rather $preferred:literal)? ($($argument:ty),*);)*) => {
        /// The functions that every libportals has.
        #[derive(Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(handle: Address, library: &str) -> Result<Self, PortalsError> {
                Ok(Self {
                    $($field: {
                        let found = None$(.or_else(|| symbol(handle, $preferred)))?;
                        let address = found.or_else(|| symbol(handle, $symbol)).ok_or_else(|| PortalsError::Library {
                            name: library.to_owned(),
                            reason: format!("it has no {}", $symbol.to_string_lossy()),
                        })?;
                        // SAFETY: the loader found the function of this name, whose signature in portals4.h
                        // is the one of the field; the library is never unloaded.
                        unsafe { std::mem::transmute::<Address, unsafe extern "C" fn($($argument),*) -> c_int>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    // The second name belongs to libraries that distinguish programs by their header: ours uses the constants
    // of `abi`.
    init c"PtlInit" or rather c"PtlInit_2024" ();
    ni_init c"PtlNIInit" (c_uint, c_uint, u32, *const PtlNiLimits, *mut PtlNiLimits, *mut Handle);
    ni_fini c"PtlNIFini" (Handle);
    ni_status c"PtlNIStatus" (Handle, c_uint, *mut c_int);
    set_map c"PtlSetMap" (Handle, u64, *const PtlProcess);
    get_uid c"PtlGetUid" (Handle, *mut u32);
    get_id c"PtlGetId" (Handle, *mut PtlProcess);
    get_phys_id c"PtlGetPhysId" (Handle, *mut PtlProcess);
    pt_alloc c"PtlPTAlloc" (Handle, c_uint, Handle, u32, *mut u32);
    pt_free c"PtlPTFree" (Handle, u32);
    pt_enable c"PtlPTEnable" (Handle, u32);
    pt_disable c"PtlPTDisable" (Handle, u32);
    md_bind c"PtlMDBind" (Handle, *const PtlMd, *mut Handle);
    md_release c"PtlMDRelease" (Handle);
    le_append c"PtlLEAppend" (Handle, u32, *const PtlMe, u8, u64, *mut Handle);
    le_unlink c"PtlLEUnlink" (Handle);
    le_search c"PtlLESearch" (Handle, u32, *const PtlMe, u8, u64);
    me_append c"PtlMEAppend" (Handle, u32, *const PtlMe, u8, u64, *mut Handle);
    me_unlink c"PtlMEUnlink" (Handle);
    me_search c"PtlMESearch" (Handle, u32, *const PtlMe, u8, u64);
    eq_alloc c"PtlEQAlloc" (Handle, u64, *mut Handle);
    eq_free c"PtlEQFree" (Handle);
    eq_get c"PtlEQGet" (Handle, *mut PtlEvent);
    ct_alloc c"PtlCTAlloc" (Handle, *mut Handle);
    ct_free c"PtlCTFree" (Handle);
    ct_cancel c"PtlCTCancelTriggered" (Handle);
    ct_get c"PtlCTGet" (Handle, *mut PtlCtEvent);
    ct_set c"PtlCTSet" (Handle, PtlCtEvent);
    ct_inc c"PtlCTInc" (Handle, PtlCtEvent);
    put c"PtlPut" (Handle, u64, u64, u8, PtlProcess, u32, u64, u64, u64, u64);
    get c"PtlGet" (Handle, u64, u64, PtlProcess, u32, u64, u64, u64);
    atomic c"PtlAtomic" (Handle, u64, u64, u8, PtlProcess, u32, u64, u64, u64, u64, u8, u8);
    fetch_atomic c"PtlFetchAtomic" (Handle, u64, Handle, u64, u64, PtlProcess, u32, u64, u64, u64, u64, u8, u8);
    swap c"PtlSwap" (Handle, u64, Handle, u64, u64, PtlProcess, u32, u64, u64, u64, u64, *const c_void, u8, u8);
    triggered_put c"PtlTriggeredPut" (Handle, u64, u64, u8, PtlProcess, u32, u64, u64, u64, u64, Handle, u64);
    triggered_get c"PtlTriggeredGet" (Handle, u64, u64, PtlProcess, u32, u64, u64, u64, Handle, u64);
    triggered_atomic c"PtlTriggeredAtomic" (Handle, u64, u64, u8, PtlProcess, u32, u64, u64, u64, u64, u8, u8, Handle, u64);
    triggered_fetch_atomic c"PtlTriggeredFetchAtomic" (Handle, u64, Handle, u64, u64, PtlProcess, u32, u64, u64, u64, u64, u8, u8, Handle, u64);
    triggered_swap c"PtlTriggeredSwap" (Handle, u64, Handle, u64, u64, PtlProcess, u32, u64, u64, u64, u64, *const c_void, u8, u8, Handle, u64);
    triggered_ct_inc c"PtlTriggeredCTInc" (Handle, PtlCtEvent, Handle, u64);
    triggered_ct_set c"PtlTriggeredCTSet" (Handle, PtlCtEvent, Handle, u64);
}

/// A loaded library. It is never unloaded, so its functions stay where they are.
#[derive(Clone)]
pub(crate) struct Library {
    /// The name, as it was given.
    pub(crate) name: String,
    functions: Functions,
}

impl fmt::Debug for Library {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Library({})", self.name)
    }
}

/// What a call answered: its return code, when that is not zero.
pub(crate) type Answer<T> = Result<T, c_int>;

/// Memory as a descriptor or an entry names it. Made by `nic_records`, which keeps the memory for as long as
/// the NIC may reach it.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    start: *mut c_void,
    length: u64,
    vector: bool,
    life: std::marker::PhantomData<&'a ()>,
}

impl<'a> Pieces<'a> {
    /// Describes memory in one piece.
    pub(crate) fn one(start: *mut u8, length: usize) -> Self {
        Self {
            start: start.cast(),
            length: length as u64,
            vector: false,
            life: std::marker::PhantomData,
        }
    }

    /// Several: the list is read by the library for as long as the descriptor or entry is there.
    pub(crate) fn many(list: &'a [PtlIovec]) -> Self {
        Self {
            start: list.as_ptr().cast_mut().cast(),
            length: list.len() as u64,
            vector: true,
            life: std::marker::PhantomData,
        }
    }

    /// Whether the option for a list of pieces is set.
    pub(crate) fn is_list(&self) -> bool {
        self.vector
    }

    /// Returns an entry over this memory.
    fn entry(&self, entry: &Entry) -> PtlMe {
        let vector = if self.vector { EntryOptions::IOVEC.0 } else { 0 };
        PtlMe {
            start: self.start,
            length: self.length,
            ct_handle: entry.ct.map_or(CT_NONE, |ct| ct.0),
            uid: entry.uid,
            options: entry.options.0 & !EntryOptions::IOVEC.0 | vector,
            match_id: entry.match_id.into(),
            match_bits: entry.match_bits,
            ignore_bits: entry.ignore_bits,
            min_free: entry.min_free,
        }
    }
}

/// The destination of an operation, as the calls take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    pub(crate) process: PtlProcess,
    pub(crate) pt: u32,
    pub(crate) bits: u64,
    pub(crate) offset: u64,
}

/// When a triggered operation fires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) ct: u32,
    pub(crate) threshold: u64,
}

/// An operation's part of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of {
    pub(crate) md: u32,
    pub(crate) offset: u64,
}

/// What the events of an operation carry: the initiator's and the target's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    pub(crate) user: u64,
    pub(crate) header: u64,
}

const fn answer(code: c_int) -> Answer<()> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Calls a function of the table. All of them follow the same rules, so the reason is given once.
macro_rules! call {
    ($self:ident . $function:ident ($($argument:expr),* $(,)?)) => {{
        let function = $self.functions.$function;
        // SAFETY: pointers among the arguments are to values that live across the call, as the function
        // requires; memory that they name is kept by its owner (`Pieces`); all else are numbers, which the
        // library checks.
        answer(unsafe { function($($argument),*) })
    }};
}

/// Calls a function of the table now, or its triggered form, which takes the counter and a threshold, too.
macro_rules! call_at {
    ($self:ident, $at:ident, $now:ident $later:ident ($($argument:expr),* $(,)?)) => {
        match $at {
            None => call!($self.$now($($argument),*)),
            Some(At { ct, threshold }) => call!($self.$later($($argument),*, ct, threshold)),
        }
    };
}

impl Library {
    /// Loads it and initialises it.
    pub(crate) fn load(name: &str) -> Result<Self, PortalsError> {
        let refused = |reason: String| PortalsError::Library {
            name: name.to_owned(),
            reason,
        };
        let c_name = CString::new(name).map_err(|_| refused("its name holds a zero byte".to_owned()))?;
        // SAFETY: the name ends with a zero byte; what the library does when it is loaded is its own matter,
        // as with any library that the program was linked to.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(refused(last_error()));
        }
        Ok(Self {
            functions: Functions::of(handle, name)?,
            name: name.to_owned(),
        })
    }

    /// PtlInit; counted by the library.
    pub(crate) fn init(&self) -> Answer<()> {
        call!(self.init())
    }

    /// PtlNIInit: the handle, and the limits that were granted.
    pub(crate) fn ni_init(
        &self,
        interface: u32,
        options: c_uint,
        pid: u32,
        desired: &PtlNiLimits,
    ) -> Answer<(u32, PtlNiLimits)> {
        let (mut granted, mut handle) = (PtlNiLimits::default(), 0);
        call!(self.ni_init(
            interface,
            options,
            pid,
            desired,
            &raw mut granted,
            &raw mut handle
        ))?;
        Ok((handle, granted))
    }

    pub(crate) fn ni_fini(&self, ni: u32) -> Answer<()> {
        call!(self.ni_fini(ni))
    }

    pub(crate) fn ni_status(&self, ni: u32, register: u32) -> Answer<i32> {
        let mut value = 0;
        call!(self.ni_status(ni, register, &raw mut value))?;
        Ok(value)
    }

    pub(crate) fn set_map(&self, ni: u32, map: &[PtlProcess]) -> Answer<()> {
        call!(self.set_map(ni, map.len() as u64, map.as_ptr()))
    }

    pub(crate) fn uid(&self, ni: u32) -> Answer<u32> {
        let mut uid = 0;
        call!(self.get_uid(ni, &raw mut uid))?;
        Ok(uid)
    }

    pub(crate) fn id(&self, ni: u32) -> Answer<PtlProcess> {
        let mut id = PtlProcess::default();
        call!(self.get_id(ni, &raw mut id))?;
        Ok(id)
    }

    pub(crate) fn physical_id(&self, ni: u32) -> Answer<PtlProcess> {
        let mut id = PtlProcess::default();
        call!(self.get_phys_id(ni, &raw mut id))?;
        Ok(id)
    }

    pub(crate) fn pt_alloc(&self, ni: u32, options: u32, eq: u32, wanted: u32) -> Answer<u32> {
        let mut index = 0;
        call!(self.pt_alloc(ni, options, eq, wanted, &raw mut index))?;
        Ok(index)
    }

    pub(crate) fn pt_free(&self, ni: u32, index: u32) -> Answer<()> {
        call!(self.pt_free(ni, index))
    }

    pub(crate) fn pt_enable(&self, ni: u32, index: u32) -> Answer<()> {
        call!(self.pt_enable(ni, index))
    }

    pub(crate) fn pt_disable(&self, ni: u32, index: u32) -> Answer<()> {
        call!(self.pt_disable(ni, index))
    }

    pub(crate) fn md_bind(
        &self,
        ni: u32,
        pieces: &Pieces<'_>,
        options: u32,
        eq: u32,
        ct: u32,
    ) -> Answer<u32> {
        let md = PtlMd {
            start: pieces.start,
            length: pieces.length,
            options,
            eq_handle: eq,
            ct_handle: ct,
        };
        let mut handle = 0;
        call!(self.md_bind(ni, &raw const md, &raw mut handle))?;
        Ok(handle)
    }

    pub(crate) fn md_release(&self, md: u32) -> Answer<()> {
        call!(self.md_release(md))
    }

    pub(crate) fn append(
        &self,
        (ni, matching): (u32, bool),
        pt: u32,
        (entry, pieces): (&Entry, &Pieces<'_>),
        list: u8,
        user: u64,
    ) -> Answer<u32> {
        let entry = pieces.entry(entry);
        let mut handle = 0;
        if matching {
            call!(self.me_append(ni, pt, &raw const entry, list, user, &raw mut handle))?;
        } else {
            call!(self.le_append(ni, pt, &raw const entry, list, user, &raw mut handle))?;
        }
        Ok(handle)
    }

    pub(crate) fn unlink(&self, matching: bool, entry: u32) -> Answer<()> {
        if matching {
            call!(self.me_unlink(entry))
        } else {
            call!(self.le_unlink(entry))
        }
    }

    pub(crate) fn search(
        &self,
        (ni, matching): (u32, bool),
        pt: u32,
        (entry, pieces): (&Entry, &Pieces<'_>),
        how: u8,
        user: u64,
    ) -> Answer<()> {
        let entry = pieces.entry(entry);
        if matching {
            call!(self.me_search(ni, pt, &raw const entry, how, user))
        } else {
            call!(self.le_search(ni, pt, &raw const entry, how, user))
        }
    }

    pub(crate) fn eq_alloc(&self, ni: u32, count: usize) -> Answer<u32> {
        let mut handle = 0;
        call!(self.eq_alloc(ni, count as u64, &raw mut handle))?;
        Ok(handle)
    }

    pub(crate) fn eq_free(&self, eq: u32) -> Answer<()> {
        call!(self.eq_free(eq))
    }

    /// The oldest event, with the code: zero, or that some were dropped before it.
    pub(crate) fn eq_get(&self, eq: u32) -> (c_int, PtlEvent) {
        let mut event = PtlEvent::default();
        let code = call!(self.eq_get(eq, &raw mut event)).err().unwrap_or(0);
        (code, event)
    }

    pub(crate) fn ct_alloc(&self, ni: u32) -> Answer<u32> {
        let mut handle = 0;
        call!(self.ct_alloc(ni, &raw mut handle))?;
        Ok(handle)
    }

    pub(crate) fn ct_free(&self, ct: u32) -> Answer<()> {
        call!(self.ct_free(ct))
    }

    pub(crate) fn ct_cancel(&self, ct: u32) -> Answer<()> {
        call!(self.ct_cancel(ct))
    }

    pub(crate) fn ct_get(&self, ct: u32) -> Answer<PtlCtEvent> {
        let mut value = PtlCtEvent::default();
        call!(self.ct_get(ct, &raw mut value))?;
        Ok(value)
    }

    pub(crate) fn ct_set(&self, ct: u32, to: PtlCtEvent) -> Answer<()> {
        call!(self.ct_set(ct, to))
    }

    pub(crate) fn ct_inc(&self, ct: u32, by: PtlCtEvent) -> Answer<()> {
        call!(self.ct_inc(ct, by))
    }

    pub(crate) fn put(
        &self,
        (from, length, ack): (Of, u64, u8),
        to: To,
        words: Words,
        at: Option<At>,
    ) -> Answer<()> {
        let (process, pt, bits, offset) = (to.process, to.pt, to.bits, to.offset);
        let (user, header) = (words.user, words.header);
        call_at!(self, at, put triggered_put(
            from.md, from.offset, length, ack, process, pt, bits, offset, user, header
        ))
    }

    pub(crate) fn get(&self, into: Of, length: u64, to: To, user: u64, at: Option<At>) -> Answer<()> {
        call_at!(self, at, get triggered_get(
            into.md, into.offset, length, to.process, to.pt, to.bits, to.offset, user
        ))
    }

    pub(crate) fn atomic(
        &self,
        (from, length, ack): (Of, u64, u8),
        to: To,
        words: Words,
        (kind, of): (u8, u8),
        at: Option<At>,
    ) -> Answer<()> {
        let (process, pt, bits, offset) = (to.process, to.pt, to.bits, to.offset);
        let (user, header) = (words.user, words.header);
        call_at!(self, at, atomic triggered_atomic(
            from.md, from.offset, length, ack, process, pt, bits, offset, user, header, kind, of
        ))
    }

    pub(crate) fn fetch_atomic(
        &self,
        (into, from, length): (Of, Of, u64),
        to: To,
        words: Words,
        (kind, of): (u8, u8),
        at: Option<At>,
    ) -> Answer<()> {
        let (process, pt, bits, offset) = (to.process, to.pt, to.bits, to.offset);
        let (user, header) = (words.user, words.header);
        call_at!(self, at, fetch_atomic triggered_fetch_atomic(
            into.md, into.offset, from.md, from.offset, length, process, pt, bits, offset, user, header, kind, of
        ))
    }

    /// The operand is read before the call returns, also of a triggered one.
    pub(crate) fn swap(
        &self,
        (into, from, length): (Of, Of, u64),
        to: To,
        words: Words,
        (kind, of, operand): (u8, u8, &[u8; 32]),
        at: Option<At>,
    ) -> Answer<()> {
        let (process, pt, bits, offset) = (to.process, to.pt, to.bits, to.offset);
        let (user, header) = (words.user, words.header);
        let operand = operand.as_ptr().cast::<c_void>();
        call_at!(self, at, swap triggered_swap(
            into.md, into.offset, from.md, from.offset, length, process, pt, bits, offset, user, header, operand,
            kind, of
        ))
    }

    pub(crate) fn triggered_ct_inc(&self, ct: u32, by: PtlCtEvent, at: At) -> Answer<()> {
        call!(self.triggered_ct_inc(ct, by, at.ct, at.threshold))
    }

    pub(crate) fn triggered_ct_set(&self, ct: u32, to: PtlCtEvent, at: At) -> Answer<()> {
        call!(self.triggered_ct_set(ct, to, at.ct, at.threshold))
    }
}

fn symbol(handle: Address, name: &CStr) -> Option<Address> {
    // SAFETY: the handle comes from dlopen and was not closed; the name ends with a zero byte.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn last_error() -> String {
    // SAFETY: dlerror has no preconditions; it gives null or a text.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the system gave no reason".to_owned();
    }
    // SAFETY: not null, a text with an end, valid until the next call of dlerror in this thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
