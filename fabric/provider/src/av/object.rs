//! The object of an address vector: fi_av(3).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use doorbell_job::lobby::Address;
use libfabric_sys::*;

use super::VectorIndex;
use crate::address::{Format, Name, SocketName};
use crate::domain::{self, Domain, State};
use crate::ep::limits;
use crate::eq::EventQueue;
use crate::errno::{Errno, Result};
use crate::info::names;
use crate::object::{self, Head, Held, Object, Uses, give, publish, take_back, this};
use crate::refuse::{self, Table};
use crate::{log, params, text};

/// The flags of insertions.
const FLAGS: u64 = FI_MORE | FI_SYNC_ERR;
/// The most entries that a vector makes room for before they come.
const ROOM: usize = 1 << 16;

/// An address vector, as clients hold it.
#[repr(C)]
pub(crate) struct AddressVector {
    head: Head<fid_av>,
    uses: Uses,
    domain: Held<Domain>,
    index: VectorIndex,
    /// Whether insertions report their ends as events.
    is_asynchronous: bool,
    events: OnceLock<Held<EventQueue>>,
}

// SAFETY: `head` is first, and `open` sets the class and the table, which no other type has.
unsafe impl Object for AddressVector {
    type Head = fid_av;
    const CLASS: usize = FI_CLASS_AV;

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

static OPS: Table<fi_ops_av> = Table::new(fi_ops_av {
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    lookup2: Some(lookup2),
    straddr: Some(straddr),
    ..fi_ops_av::REFUSING
});

impl AddressVector {
    /// Returns its number in the domain.
    pub(crate) fn index(&self) -> VectorIndex {
        self.index
    }

    /// Returns the domain that it was opened on.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }
}

/// Opens an address vector: fi_av_open(3).
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attributes: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to domains.
    let domain = unsafe { domain::of(domain) };
    // SAFETY: the caller's pointers are those of fi_av_open(3).
    domain.run("fi_av_open", |state| unsafe {
        make(domain, state, attributes, av, context)
    })
}

unsafe fn make(
    domain: &Domain,
    state: &mut State,
    attributes: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller has the place for the result.
    unsafe { give(av, ptr::null_mut()) }?;
    if attributes.is_null() {
        return Err(Errno(FI_EINVAL));
    }
    // SAFETY: not null; all releases have the same fields.
    let wanted = unsafe { attributes.read() };
    if wanted.flags & !(FI_EVENT | FI_SYMMETRIC | FI_AFFINITY) != 0 {
        return Err(Errno(FI_EBADFLAGS));
    }
    if !wanted.name.is_null() {
        // No vector is shared between processes.
        return Err(Errno(FI_ENOSYS));
    }
    limits::check("fi_av_open: a count", wanted.count, limits::ADDRESSES)?;
    let room = if wanted.count == 0 {
        params::universe()
    } else {
        wanted.count
    };
    let room = room.min(ROOM);
    let context_bits = u32::try_from(wanted.rx_ctx_bits).map_err(|_| Errno(FI_EINVAL))?;
    let kind = match wanted.r#type {
        FI_AV_UNSPEC | FI_AV_TABLE => FI_AV_TABLE,
        FI_AV_MAP => FI_AV_MAP,
        _ => return Err(Errno(FI_EINVAL)),
    };
    let object = Box::new(AddressVector {
        head: Head::new(fid_av {
            fid: object::head::<AddressVector>(context),
            ops: OPS.pointer(),
        }),
        uses: Uses::default(),
        domain: Held::new(domain),
        index: state.vectors.add(room, context_bits)?,
        is_asynchronous: wanted.flags & FI_EVENT != 0,
        events: OnceLock::new(),
    });
    // SAFETY: not null.
    unsafe { (*attributes).r#type = kind };
    // SAFETY: written above.
    unsafe { publish(object, av) };
    Ok(0)
}

unsafe extern "C" fn close(av: *mut fid) -> c_int {
    // SAFETY: the table belongs to address vectors.
    match unsafe { take_back::<AddressVector>(av) } {
        Ok(object) => object.domain.close_part("fi_close of an AV", |state| {
            state.vectors.remove(&mut state.member, object.index);
        }),
        Err(errno) => -errno.0,
    }
}

/// Binds a vector to an event queue, which gets the ends of insertions.
unsafe extern "C" fn bind(av: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av.cast()) };
    vector.domain.guard("fi_av_bind", || {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        // SAFETY: null, or an open object of the caller.
        let queue = unsafe { object::find::<EventQueue>(queue) }?;
        let result = vector.events.set(Held::new(queue));
        result.map_err(|_| Errno(FI_EINVAL)).map(|()| 0)
    })
}

/// What becomes of the addresses of one call.
struct Outcome<'a> {
    vector: &'a AddressVector,
    /// Where insertions report their ends; none: in the result.
    events: Option<&'a EventQueue>,
    context: *mut c_void,
    /// Places for the numbers, or null.
    numbers: *mut fi_addr_t,
    /// Places for the errors, or null.
    errors: *mut c_int,
    good: usize,
}

impl<'a> Outcome<'a> {
    /// Checks the arguments that all insertions have.
    fn new(
        vector: &'a AddressVector,
        numbers: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<Self> {
        if flags & !FLAGS != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let events = match (vector.is_asynchronous, vector.events.get()) {
            (true, None) => return Err(Errno(FI_ENOEQ)),
            (true, Some(queue)) => Some(&**queue),
            (false, _) => None,
        };
        let errors = if flags & FI_SYNC_ERR == 0 {
            ptr::null_mut()
        } else if context.is_null() || events.is_some() {
            return Err(Errno(FI_EINVAL));
        } else {
            context.cast()
        };
        Ok(Self {
            vector,
            events,
            context,
            numbers,
            errors,
            good: 0,
        })
    }

    /// Notes the result of one address.
    ///
    /// # Safety
    /// The places are null, or there are more than `at`.
    unsafe fn note(&mut self, at: usize, result: Result<fi_addr_t>) {
        if !self.numbers.is_null() {
            let place = self.numbers.wrapping_add(at);
            // SAFETY: by the contract of this function.
            unsafe { place.write(result.unwrap_or(FI_ADDR_NOTAVAIL)) };
        }
        if !self.errors.is_null() {
            let place = self.errors.wrapping_add(at);
            // SAFETY: by the contract of this function.
            unsafe { place.write(result.err().map_or(0, |errno| errno.0)) };
        }
        match (result, self.events) {
            (Ok(_), _) => self.good += 1,
            (Err(errno), Some(queue)) => queue.failed(self.pointer(), self.context, at as u64, errno),
            (Err(_), None) => {}
        }
    }

    /// Returns the result of the call.
    fn end(self) -> Result<c_int> {
        match self.events {
            None => c_int::try_from(self.good).map_err(|_| Errno(FI_EINVAL)),
            Some(queue) => {
                queue.completed(FI_AV_COMPLETE, self.pointer(), self.context, self.good as u64);
                Ok(0)
            }
        }
    }

    fn pointer(&self) -> *mut fid {
        self.vector.head.get().cast()
    }
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    numbers: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av) };
    vector.domain.run("fi_av_insert", |state| {
        let mut outcome = Outcome::new(vector, numbers, flags, context)?;
        if count > 0 && addresses.is_null() || c_int::try_from(count).is_err() {
            return Err(Errno(FI_EINVAL));
        }
        state.vectors.reserve(vector.index, count);
        let length = vector.domain.names().format.length();
        for at in 0..count {
            let start = addresses.cast::<u8>().wrapping_add(at * length);
            // SAFETY: the caller has `count` addresses of this length.
            let bytes = unsafe { std::slice::from_raw_parts(start, length) };
            let result = state.vectors.insert(&state.member, vector.index, bytes);
            // SAFETY: null, or places for `count` results.
            unsafe { outcome.note(at, result) };
        }
        outcome.end()
    })
}

/// Inserts the peer that a node and a service name.
unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    number: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the texts and places are those of fi_av(3): one node, one service.
    unsafe { insertsym(av, node, 1, service, 1, number, flags, context) }
}

/// Inserts the peers that follow a node and a service: as many nodes, each with as many services. The numbers
/// at the ends of both texts are counted on.
#[allow(clippy::too_many_arguments, reason = "those of C")]
unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    numbers: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av) };
    vector.domain.run("fi_av_insertsym", |state| {
        let mut outcome = Outcome::new(vector, numbers, flags, context)?;
        let count = nodes.checked_mul(services).ok_or(Errno(FI_EINVAL))?;
        if node.is_null() || service.is_null() || c_int::try_from(count).is_err() {
            return Err(Errno(FI_EINVAL));
        }
        // SAFETY: not null, so a text that ends with a zero byte, here and below.
        let node = unsafe { CStr::from_ptr(node) };
        // SAFETY: as above.
        let service = unsafe { CStr::from_ptr(service) };
        for at in 0..count {
            let node = counted_on(node, at / services);
            let service = counted_on(service, at % services);
            let result = insert_named(state, vector, node.as_deref(), service.as_deref());
            // SAFETY: null, or places for `count` results.
            unsafe { outcome.note(at, result) };
        }
        outcome.end()
    })
}

/// Returns a text whose number at the end is higher by `by`; `None` where it has none, and would need one.
fn counted_on(text: &CStr, by: usize) -> Option<CString> {
    if by == 0 {
        return Some(text.to_owned());
    }
    let text = text.to_str().ok()?;
    let (name, number) = text.split_at(
        text.trim_end_matches(|letter: char| letter.is_ascii_digit())
            .len(),
    );
    let next = number.parse::<usize>().ok()?.checked_add(by)?;
    // As many digits as before, at least: node09 is followed by node10.
    CString::new(format!("{name}{next:0width$}", width = number.len())).ok()
}

/// Inserts the peer that a node and a service name.
fn insert_named(
    state: &mut State,
    vector: &AddressVector,
    node: Option<&CStr>,
    service: Option<&CStr>,
) -> Result<fi_addr_t> {
    let (Some(node), Some(service)) = (node, service) else {
        return Err(Errno(FI_EINVAL));
    };
    let format = vector.domain.names().format;
    let named = names::peer(node, service, format, &state.member).map_err(|clash| {
        log::info(FI_LOG_AV, || {
            format!(
                "address not inserted: {} {}: {}",
                clash.hint, clash.wanted, clash.possible
            )
        });
        Errno(FI_EINVAL)
    })?;
    let bytes = named.and_then(|given| given.write(format));
    let bytes = bytes.ok_or(Errno(FI_EINVAL))?;
    state.vectors.insert(&state.member, vector.index, &bytes)
}

unsafe extern "C" fn remove(av: *mut fid_av, numbers: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av) };
    vector.domain.run("fi_av_remove", |state| {
        if flags != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        for at in 0..count {
            // SAFETY: the caller has `count` numbers.
            let number = unsafe { object::taken(numbers.wrapping_add(at).cast_const()) };
            let number = number.ok_or(Errno(FI_EINVAL))?;
            state.vectors.take_out(&mut state.member, vector.index, number)?;
        }
        Ok(0)
    })
}

/// Copies the address of an entry, as far as there is room, and its whole length.
unsafe extern "C" fn lookup(
    av: *mut fid_av,
    number: fi_addr_t,
    to: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av) };
    vector.domain.run("fi_av_lookup", |state| {
        // SAFETY: null, or the caller's length.
        let room = unsafe { object::taken(length.cast_const()) }.ok_or(Errno(FI_EINVAL))?;
        let bytes = state.vectors.name(vector.index, number)?.write();
        let count = room.min(bytes.len());
        if to.is_null() && count > 0 {
            return Err(Errno(FI_EINVAL));
        }
        // SAFETY: the caller's memory has `room` bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), count) };
        // SAFETY: the caller's length.
        unsafe { give(length, bytes.len()) }?;
        Ok(0)
    })
}

/// Does the same for the call of later releases, whose flags and context are for devices.
unsafe extern "C" fn lookup2(
    av: *mut fid_av,
    number: fi_addr_t,
    to: *mut c_void,
    length: *mut usize,
    flags: u64,
    device: *mut fid_xpu_ctx,
) -> c_int {
    if flags != 0 || !device.is_null() {
        return -FI_ENOSYS;
    }
    // SAFETY: as for the call without them.
    unsafe { lookup(av, number, to, length) }
}

/// Returns an address as a text, or why it is none.
fn text_of(format: Format, bytes: &[u8]) -> String {
    match (format, SocketName::read(bytes)) {
        (Format::Ours, _) => match Address::parse(bytes) {
            Ok(address) => Name::Ours(address).to_string(),
            Err(error) => error.to_string(),
        },
        (_, Some(name)) => name.to_string(),
        (_, None) => "it is no address of a socket in the format of the domain".to_owned(),
    }
}

/// Writes an address as a text: the member and the endpoint, without its token.
unsafe extern "C" fn straddr(
    av: *mut fid_av,
    address: *const c_void,
    to: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the table belongs to address vectors.
    let vector = unsafe { this::<AddressVector>(av) };
    vector.domain.guard("fi_av_straddr", || {
        // SAFETY: null, or the caller's length.
        let room = unsafe { object::taken(length.cast_const()) }.ok_or(Errno(FI_EINVAL))?;
        let text = if address.is_null() {
            "no address".to_owned()
        } else {
            let format = vector.domain.names().format;
            // SAFETY: the caller's address has this length.
            let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), format.length()) };
            text_of(format, bytes)
        };
        // SAFETY: the caller's memory has `room` bytes.
        unsafe { text::write(text.as_bytes(), to, room) };
        // SAFETY: the caller's length.
        unsafe { give(length, text.len() + 1) }?;
        Ok(to.cast_const())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_at_the_ends_of_names_are_counted_on() {
        let next = |text: &CStr, by| counted_on(text, by).map(|text| text.into_string().unwrap());
        assert_eq!(next(c"node", 0).as_deref(), Some("node"));
        assert_eq!(next(c"node", 1), None);
        assert_eq!(next(c"node09", 1).as_deref(), Some("node10"));
        assert_eq!(next(c"9228", 2).as_deref(), Some("9230"));
        assert_eq!(next(c"10.0.0.9", 1).as_deref(), Some("10.0.0.10"));
        assert_eq!(next(c"99999999999999999999999", 1), None);
    }
}
