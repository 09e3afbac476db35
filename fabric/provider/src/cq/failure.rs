//! Operations that failed, until they are read, and their texts.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use super::entry::Entry;

/// The most texts that a queue keeps. Each stays for as long as the queue, since a client has a pointer to it
/// from fi_cq_strerror(3), of which the manual states no end.
const TEXTS: usize = 1024;
/// The numbers of texts begin here: above all error numbers of libfabric and of the system.
const FIRST_TEXT: c_int = 0x1_0000;
/// The longest buffer of a caller that is believed. Some clients do not set the field.
const LONGEST: usize = 64 << 10;
/// The level that brought the length of the error data, before which the data is only ever pointed to.
const DATA_SIZED: Level = Level::new(1, 5);

/// An operation that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// What is known of it: the bytes that were delivered are the length.
    pub(crate) entry: Entry,
    /// Bytes of the message that did not fit.
    pub(crate) lost: usize,
    /// The error number.
    pub(crate) errno: c_int,
    /// The sender, where it is known.
    pub(crate) sender: fi_addr_t,
    /// What happened, in one sentence.
    pub(crate) text: Option<String>,
    /// The address of a sender that is in no address vector, for the client to insert; else empty.
    pub(crate) address: Vec<u8>,
}

// SAFETY: the pointers are the client's, and are only ever given back to it.
unsafe impl Send for Failure {}

/// The failures of a queue.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Each with the number of the entry that comes next: those before it are read first.
    waiting: VecDeque<(usize, Failure)>,
    /// The texts, each of them once, by their numbers.
    texts: Vec<CString>,
    /// The address or the text that the last failure had, to which the client may have a pointer until it
    /// reads the next one.
    data: Vec<u8>,
}

impl Failures {
    /// Whether one waits to be read.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of failures.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a failure, which comes before the entry of this number.
    #[cold]
    pub(crate) fn push(&mut self, next: usize, failure: Failure) {
        self.waiting.push_back((next, failure));
    }

    /// The number of the entry before which the oldest one comes.
    pub(crate) fn next(&self) -> Option<usize> {
        self.waiting.front().map(|(next, _)| *next)
    }

    /// Writes the oldest failure, as far as a caller of this level knows the structure. Returns whether there
    /// was one.
    ///
    /// # Safety
    /// `to` may be read and written as far as a client of this level has it, and its `err_data` and
    /// `err_data_size` are as fi_cq(3) requires.
    pub(crate) unsafe fn read(&mut self, level: Level, to: *mut fi_cq_err_entry) -> bool {
        let Some((_, failure)) = self.waiting.pop_front() else {
            return false;
        };
        let mut prov_errno = failure.errno;
        let is_text = failure.text.is_some();
        self.data = match failure.text {
            Some(text) => {
                let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
                prov_errno = self.keep(&text).unwrap_or(prov_errno);
                text.into_bytes_with_nul()
            }
            None => failure.address,
        };
        let (mut err_data, mut err_data_size) = (ptr::null_mut(), 0);
        if !self.data.is_empty() {
            // SAFETY: the caller's structure, by the contract of this function.
            (err_data, err_data_size) = unsafe { hand_out(level, to, &self.data, is_text) };
        }
        let Entry {
            op_context,
            flags,
            len,
            buf,
            data,
            tag,
        } = failure.entry;
        let whole = fi_cq_err_entry {
            op_context,
            flags,
            len,
            buf,
            data,
            tag,
            olen: failure.lost,
            err: failure.errno,
            prov_errno,
            err_data,
            err_data_size,
            src_addr: failure.sender,
        };
        let size = fi_cq_err_entry::size_at(level);
        // SAFETY: a client of this level has that much of the structure.
        unsafe { ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), to.cast(), size) };
        true
    }

    /// Keeps a text, and returns its number, which is the same for the same text; `None` for one more than
    /// are kept.
    fn keep(&mut self, text: &CStr) -> Option<c_int> {
        let known = self.texts.iter().position(|kept| kept.as_c_str() == text);
        let at = known.unwrap_or(self.texts.len());
        if at >= TEXTS {
            return None;
        }
        if known.is_none() {
            self.texts.push(text.to_owned());
        }
        Some(FIRST_TEXT + at as c_int)
    }

    /// Returns what a number stands for, which a failure had as its `prov_errno`. The text lives as long as
    /// the queue.
    pub(crate) fn text(&self, number: c_int) -> &CStr {
        let at = number.checked_sub(FIRST_TEXT).map(usize::try_from);
        match at.and_then(|at| self.texts.get(at.ok()?)) {
            Some(text) => text,
            None => words(number),
        }
    }
}

/// Gives a text or an address as the error data: in the caller's own buffer where it has one, else by a
/// pointer to ours.
///
/// # Safety
/// As for [`Failures::read`].
unsafe fn hand_out(
    level: Level,
    to: *mut fi_cq_err_entry,
    bytes: &[u8],
    is_text: bool,
) -> (*mut c_void, usize) {
    let ours = (bytes.as_ptr().cast_mut().cast(), bytes.len());
    if !level.has(DATA_SIZED) {
        return ours;
    }
    // SAFETY: a client of this level has set the field.
    let data = unsafe { (*to).err_data };
    // SAFETY: as above.
    let size = unsafe { (*to).err_data_size };
    if data.is_null() || !(1..=LONGEST).contains(&size) {
        return ours;
    }
    let size = size.min(bytes.len());
    let buffer = data.cast::<u8>();
    // SAFETY: the caller's buffer has at least `size` bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, size) };
    if is_text {
        // SAFETY: as above. A text that was cut ends, too.
        unsafe { buffer.wrapping_add(size - 1).write(0) };
    }
    (data, size)
}

/// Returns an error number in words.
fn words(number: c_int) -> &'static CStr {
    match number.checked_abs().unwrap_or(0) {
        FI_ETRUNC => c"the message was longer than the buffer; the rest is lost",
        FI_ECANCELED => c"the operation was cancelled",
        FI_ENOMSG => c"no message matches",
        FI_EIO => c"what arrived is not what was sent: its checksum differs",
        FI_ECONNABORTED => c"the sender gave the message up while it was under way",
        FI_EHOSTUNREACH => c"the peer is lost",
        FI_EADDRNOTAVAIL => c"the sender is not in the address vector",
        _ => c"no text is kept for this error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(errno: c_int, text: Option<&str>) -> Failure {
        Failure {
            entry: Entry {
                op_context: ptr::without_provenance_mut(8),
                flags: FI_RECV,
                len: 3,
                buf: ptr::null_mut(),
                data: 0,
                tag: 9,
            },
            lost: 4,
            errno,
            sender: 5,
            text: text.map(str::to_owned),
            address: Vec::new(),
        }
    }

    fn untouched() -> fi_cq_err_entry {
        fi_cq_err_entry {
            src_addr: 77,
            ..fi_cq_err_entry::zeroed()
        }
    }

    #[test]
    fn a_failure_is_written_as_far_as_the_caller_knows_the_structure() {
        let mut failures = Failures::default();
        let mut entry = untouched();
        // SAFETY: a whole structure.
        assert!(!unsafe { failures.read(Level::NEWEST, &mut entry) });
        for (level, sender) in [
            (Level::new(1, 17), 77),
            (Level::new(1, 20), 5),
            (Level::NEWEST, 5),
        ] {
            failures.push(0, failure(FI_ETRUNC, None));
            assert!(failures.any());
            let mut entry = untouched();
            // SAFETY: a whole structure.
            assert!(unsafe { failures.read(level, &mut entry) });
            assert_eq!(
                (entry.err, entry.prov_errno, entry.olen, entry.len),
                (FI_ETRUNC, FI_ETRUNC, 4, 3)
            );
            assert_eq!((entry.tag, entry.src_addr), (9, sender));
            assert!(entry.err_data.is_null() && !failures.any());
        }
    }

    #[test]
    fn an_address_is_given_as_data_whole_or_cut_to_the_callers_buffer() {
        let mut failures = Failures::default();
        let unknown = || Failure {
            address: vec![7; 56],
            ..failure(FI_EADDRNOTAVAIL, None)
        };
        failures.push(0, unknown());
        let mut entry = untouched();
        // SAFETY: a whole structure.
        unsafe { failures.read(Level::NEWEST, &mut entry) };
        assert_eq!(
            (entry.err, entry.prov_errno, entry.err_data_size),
            (FI_EADDRNOTAVAIL, FI_EADDRNOTAVAIL, 56)
        );
        // SAFETY: it points to the address, which is kept.
        let address = unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), 56) };
        assert_eq!(address, [7; 56]);

        failures.push(0, unknown());
        let mut room = [0xee_u8; 16];
        let mut entry = untouched();
        entry.err_data = room.as_mut_ptr().cast();
        entry.err_data_size = 10;
        // SAFETY: a whole structure, with a buffer.
        unsafe { failures.read(Level::NEWEST, &mut entry) };
        assert_eq!(
            (entry.err_data_size, &room[..10], &room[10..]),
            (10, &[7; 10][..], &[0xee; 6][..])
        );
    }

    #[test]
    fn a_text_is_found_by_its_number_and_given_as_data_cut_to_the_callers_buffer() {
        let mut failures = Failures::default();
        failures.push(0, failure(FI_EHOSTUNREACH, Some("the peer has gone")));
        let mut entry = untouched();
        // SAFETY: a whole structure.
        unsafe { failures.read(Level::NEWEST, &mut entry) };
        assert_eq!(entry.err, FI_EHOSTUNREACH);
        assert_eq!(failures.text(entry.prov_errno), c"the peer has gone");
        // SAFETY: it points to the text, which is kept.
        let text = unsafe { CStr::from_ptr(entry.err_data.cast()) };
        assert_eq!(text, c"the peer has gone");

        failures.push(0, failure(FI_EHOSTUNREACH, Some("the peer has gone")));
        let mut buffer = [7_u8; 9];
        entry.err_data = buffer.as_mut_ptr().cast();
        entry.err_data_size = 8;
        // SAFETY: the buffer has one byte more than the structure states.
        unsafe { failures.read(Level::NEWEST, &mut entry) };
        assert_eq!((&buffer, entry.err_data_size), (b"the pee\0\x07", 8));

        assert_eq!(failures.text(FI_ETRUNC).to_bytes()[..11], *b"the message");
    }

    #[test]
    fn a_text_stays_where_it_is_and_is_kept_once() {
        let mut failures = Failures::default();
        let read = |failures: &mut Failures, text: &str| {
            failures.push(0, failure(FI_EHOSTUNREACH, Some(text)));
            let mut entry = untouched();
            // SAFETY: a whole structure, without a buffer.
            unsafe { failures.read(Level::NEWEST, &mut entry) };
            entry
        };
        let first = read(&mut failures, "a").prov_errno;
        let pointer = failures.text(first).as_ptr();
        assert_eq!(read(&mut failures, "a").prov_errno, first);
        for number in 0..2 * TEXTS {
            read(&mut failures, &number.to_string());
        }
        assert_eq!(failures.texts.len(), TEXTS);
        assert_eq!(
            (failures.text(first), failures.text(first).as_ptr()),
            (c"a", pointer)
        );
        // One more has the words of its number, and its text as data until the next one is read.
        let late = read(&mut failures, "late");
        assert_eq!(failures.text(late.prov_errno), c"the peer is lost");
        // SAFETY: it points to the text, which is kept.
        assert_eq!(unsafe { CStr::from_ptr(late.err_data.cast()) }, c"late");
    }
}
