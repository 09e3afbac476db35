//! Tables of functions: every entry is set and refuses nonsense, and refusing words follow.
//!
//! Clients call most entries without a check of the table. So each is called here with arguments that mean
//! nothing: flags that none knows, numbers beyond each limit, options without a name, null.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use libc::iovec;
use libfabric_sys::layout::tables;
use libfabric_sys::*;

use crate::alone::run;
use crate::everything::Everything;

/// Refusing words behind each table.
const SPARE: usize = 8;
/// Tables that no object of ours has: sets of addresses are refused, the others are of other providers.
const OTHERS: [&str; 5] = [
    "fi_ops_av_set",
    "fi_hmem_override_ops",
    "fi_usnic_ops_",
    "fi_xpu_ops",
    "fi_ops_xpu_ctx",
];
/// A word of flags in which every bit is set.
const ALL: u64 = u64::MAX;
/// A number that no option, command or type has.
const NUMBER: c_int = 0x7777;

/// Checks that each entry of a table is set, and calls each word behind it.
fn check<T: Layout>(table: *mut T) {
    let name = T::STRUCTURE.name;
    let words = table.cast::<usize>();
    // SAFETY: the first word of a table is its size.
    let size = unsafe { words.read() };
    assert_eq!(size, size_of::<T>(), "{name}");
    for word in 1..size / 8 {
        // SAFETY: a word of the table.
        let entry = unsafe { words.wrapping_add(word).read() };
        assert!(entry != 0, "{name}, word {word}");
    }
    for word in 0..SPARE {
        let place = words.wrapping_add(size / 8 + word).cast::<Option<Spare>>();
        // SAFETY: one of the words behind the table, which are functions that look at no argument.
        let spare = unsafe { place.read() }.unwrap_or_else(|| panic!("{name}, spare word {word}"));
        // SAFETY: as above.
        assert_eq!(unsafe { spare() }, -(FI_ENOSYS as isize), "{name}");
    }
}

type Spare = unsafe extern "C" fn() -> isize;

/// The entries that were called, by their tables, and what answers were wrong.
#[derive(Debug, Default)]
struct Called {
    entries: BTreeSet<(&'static str, &'static str)>,
    wrong: Vec<String>,
}

impl Called {
    /// Notes a call of an entry, and returns the entry.
    fn note<T: Layout, F>(
        &mut self,
        entry: &'static str,
        of: impl FnOnce(&T) -> Option<F>,
        table: *mut T,
    ) -> F {
        self.entries.insert((T::STRUCTURE.name, entry));
        // SAFETY: the table of an open object.
        of(unsafe { &*table }).unwrap_or_else(|| panic!("{}.{entry}", T::STRUCTURE.name))
    }

    /// Compares what a call has returned.
    fn compare(&mut self, call: &str, answer: i64, expected: i64) {
        if answer != expected {
            self.wrong
                .push(format!("{call} returns {answer}, and not {expected}"));
        }
    }

    /// Checks that all answers were right, and that no entry of any table was left out.
    fn check(&self) {
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        for table in tables().filter(|table| OTHERS.iter().all(|other| !table.name.starts_with(other))) {
            for field in table.fields.iter().skip(1) {
                let key = (table.name, field.name);
                assert!(self.entries.contains(&key), "{}.{} was not called", key.0, key.1);
            }
        }
    }
}

/// Calls entries of a table that was checked, and compares what each returns.
macro_rules! calls {
    ($called:ident, $object:expr, $head:ident.$field:ident: $table:ident { $(
        $entry:ident($($argument:expr),* $(,)?) = $expected:expr;
    )* }) => {{
        let object = $object.cast::<$head>();
        // SAFETY: the object is open.
        let table: *mut $table = unsafe { (*object).$field };
        check(table);
        $(
            let entry = $called.note(stringify!($entry), |table: &$table| table.$entry, table);
            // SAFETY: the object is open; what the arguments point to is read only where it is there.
            let answer = unsafe { entry(object.cast(), $($argument),*) } as i64;
            let call = stringify!($table.$entry($($argument),*));
            $called.compare(call, answer, i64::from($expected));
        )*
    }};
}

/// Calls the entries of a table that is not offered, all of which refuse whatever they get.
macro_rules! refusals {
    ($called:ident, $object:expr, $field:ident: $table:ident { $($entry:ident($($argument:expr),*);)* }) => {
        calls!($called, $object, fid_ep.$field: $table { $($entry($($argument),*) = -FI_ENOSYS;)* })
    };
}

/// Calls the entries that every object has, but the one that closes it.
macro_rules! common {
    ($called:ident, $object:expr, bind = $bind:expr, flags = $flags:expr, close = $close:expr) => {
        calls!($called, $object, fid.ops: fi_ops {
            bind(ptr::null_mut(), 0) = $bind;
            bind($object, ALL) = $flags;
            control(NUMBER, ptr::null_mut()) = -FI_ENOSYS;
            ops_open(c"nonsense".as_ptr(), ALL, ptr::null_mut(), ptr::null_mut()) = -FI_ENOSYS;
            tostr(ptr::null_mut(), 0) = -FI_ENOSYS;
            ops_set(c"nonsense".as_ptr(), ALL, ptr::null_mut(), ptr::null_mut()) = -FI_ENOSYS;
        });
        if $close != 0 {
            calls!($called, $object, fid.ops: fi_ops { close() = $close; });
        }
    };
}

fn null<T>() -> *mut T {
    ptr::null_mut()
}

fn text(text: *const c_char) -> String {
    assert!(!text.is_null());
    // SAFETY: not null, so a text that ends with a zero byte.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[test]
fn every_entry_of_every_table_refuses_nonsense() {
    run("tables::every_entry_of_every_table_refuses_nonsense", |library| {
        let all = Everything::open(library);
        let mut called = Called::default();
        openings(&mut called, &all);
        queues(&mut called, &all);
        vectors(&mut called, &all);
        endpoints(&mut called, &all);
        not_offered(&mut called, all.endpoint.0);
        atomics(&mut called, &all);
        messages(&mut called, &all);
        called.check();
        still_works(&all);
        let registration = all.registration.fid();
        calls!(called, registration, fid.ops: fi_ops { close() = 0; });
        std::mem::forget(all.registration);
    });
}

/// Fabrics and domains, and what is opened of them.
fn openings(called: &mut Called, all: &Everything) {
    let (fabric, domain) = (all.opened.fabric.0, all.opened.domain.0);
    let (mut place, mut events): (*mut fid, fi_eq_attr) = (null(), Layout::zeroed());
    let to = (&raw mut place).cast();
    common!(
        called,
        all.opened.fabric.fid(),
        bind = -FI_EINVAL,
        flags = -FI_EINVAL,
        close = -FI_EBUSY
    );
    events.flags = ALL;
    let mut waits = fi_wait_attr {
        wait_obj: NUMBER as u32,
        flags: ALL,
    };
    calls!(called, fabric, fid_fabric.ops: fi_ops_fabric {
        domain(null(), to, null()) = -FI_EINVAL;
        passive_ep(null(), to.cast(), null()) = -FI_ENOSYS;
        eq_open(&raw mut events, to.cast(), null()) = -FI_EBADFLAGS;
        eq_open(null(), null(), null()) = -FI_EINVAL;
        wait_open(&raw mut waits, to.cast()) = -FI_EBADFLAGS;
        wait_open(null(), to.cast()) = -FI_EINVAL;
        trywait(null(), -1) = -FI_EINVAL;
        trywait(null(), 1) = -FI_EINVAL;
        domain2(null(), to, ALL, null()) = -FI_EBADFLAGS;
    });
    let mut vector: fi_av_attr = Layout::zeroed();
    vector.flags = ALL;
    let mut polls = fi_poll_attr { flags: ALL };
    let mut queue: fi_cq_attr = Layout::zeroed();
    queue.format = NUMBER as u32;
    let mut flagged: fi_cq_attr = Layout::zeroed();
    flagged.flags = ALL;
    let mut counter: fi_cntr_attr = Layout::zeroed();
    counter.events = NUMBER as u32;
    let mut atomic: fi_atomic_attr = Layout::zeroed();
    common!(
        called,
        all.opened.domain.fid(),
        bind = -FI_EINVAL,
        flags = -FI_EBADFLAGS,
        close = -FI_EBUSY
    );
    calls!(called, domain, fid_domain.ops: fi_ops_domain {
        av_open(null(), to.cast(), null()) = -FI_EINVAL;
        av_open(&raw mut vector, to.cast(), null()) = -FI_EBADFLAGS;
        cq_open(&raw mut queue, to.cast(), null()) = -FI_EINVAL;
        cq_open(&raw mut flagged, to.cast(), null()) = -FI_EBADFLAGS;
        endpoint(null(), to.cast(), null()) = -FI_EINVAL;
        scalable_ep(null(), to.cast(), null()) = -FI_ENOSYS;
        cntr_open(&raw mut counter, to.cast(), null()) = -FI_ENOSYS;
        poll_open(&raw mut polls, to.cast()) = -FI_EBADFLAGS;
        stx_ctx(null(), to.cast(), null()) = -FI_ENOSYS;
        srx_ctx(null(), to.cast(), null()) = -FI_ENOSYS;
        query_atomic(NUMBER as u32, NUMBER as u32, &raw mut atomic, ALL) = -FI_EBADFLAGS;
        query_atomic(NUMBER as u32, NUMBER as u32, &raw mut atomic, 0) = -FI_EOPNOTSUPP;
        query_atomic(FI_UINT8, FI_SUM, &raw mut atomic, FI_TAGGED | FI_FETCH_ATOMIC) = -FI_EOPNOTSUPP;
        query_atomic(FI_UINT8, FI_SUM, &raw mut atomic, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) = -FI_EBADFLAGS;
        query_atomic(FI_UINT8, FI_SUM, null(), 0) = -FI_EINVAL;
        query_atomic(FI_UINT8, FI_SUM, &raw mut atomic, FI_FETCH_ATOMIC) = 0;
        query_collective(NUMBER as u32, null(), ALL) = -FI_ENOSYS;
        endpoint2(null(), to.cast(), ALL, null()) = -FI_EBADFLAGS;
        xpu_ctx(null(), to.cast(), null()) = -FI_ENOSYS;
    });
    let registration = all.registration.fid();
    common!(
        called,
        registration,
        bind = -FI_EINVAL,
        flags = -FI_EBADFLAGS,
        close = 0
    );
    calls!(called, domain, fid_domain.mr: fi_ops_mr {
        reg(null(), usize::MAX, ALL, ALL, ALL, ALL, to.cast(), null()) = -FI_EINVAL;
        reg(null(), 0, FI_READ, 0, 9, ALL, to.cast(), null()) = -FI_EBADFLAGS;
        regv(null(), usize::MAX, FI_READ, 0, 9, 0, to.cast(), null()) = -FI_EINVAL;
        regattr(null(), 0, to.cast()) = -FI_EINVAL;
    });
    assert!(place.is_null());
}

/// Queues, counters, and what waits for them.
fn queues(called: &mut Called, all: &Everything) {
    let events = all.events.fid();
    common!(called, events, bind = -FI_EINVAL, flags = -FI_EINVAL, close = 0);
    calls!(called, events, fid_eq.ops: fi_ops_eq {
        read(null(), null(), usize::MAX, ALL) = -FI_EBADFLAGS;
        read(null(), null(), 0, 0) = -FI_EAGAIN;
        readerr(null(), ALL) = -FI_EBADFLAGS;
        readerr(null(), 0) = -FI_EAGAIN;
        write(u32::MAX, null(), usize::MAX, ALL) = -FI_EINVAL;
        sread(null(), null(), 0, c_int::MIN, ALL) = -FI_EBADFLAGS;
        sread(null(), null(), 0, 0, 0) = -FI_EAGAIN;
    });
    // SAFETY: the queue is open.
    let table = unsafe { (*all.events.0).ops };
    let strerror = called.note("strerror", |table: &fi_ops_eq| table.strerror, table);
    for number in [c_int::MIN, NUMBER, c_int::MAX] {
        // SAFETY: the queue is open; there is no memory for the text.
        assert!(!text(unsafe { strerror(all.events.0, number, null(), null(), usize::MAX) }).is_empty());
    }

    let completions = all.completions.fid();
    let mut failure: fi_cq_err_entry = Layout::zeroed();
    common!(
        called,
        completions,
        bind = -FI_EINVAL,
        flags = -FI_EINVAL,
        close = -FI_EBUSY
    );
    calls!(called, completions, fid_cq.ops: fi_ops_cq {
        read(null(), 0) = -FI_EAGAIN;
        readfrom(null(), 0, null()) = -FI_EAGAIN;
        readerr(null(), 0) = -FI_EINVAL;
        readerr(&raw mut failure, ALL) = -FI_EBADFLAGS;
        sread(null(), 0, null(), 0) = -FI_EAGAIN;
        sreadfrom(null(), 0, null(), null(), 0) = -FI_EAGAIN;
        signal() = 0;
        export_xpu(ALL, null()) = -FI_ENOSYS;
    });
    // SAFETY: the queue is open.
    let table = unsafe { (*all.completions.0).ops };
    let strerror = called.note("strerror", |table: &fi_ops_cq| table.strerror, table);
    for number in [c_int::MIN, NUMBER, c_int::MAX] {
        // SAFETY: the queue is open; there is no memory for the text.
        let words = text(unsafe { strerror(all.completions.0, number, null(), null(), usize::MAX) });
        assert!(!words.is_empty());
    }

    let counter = all.counter.fid();
    common!(
        called,
        counter,
        bind = -FI_EINVAL,
        flags = -FI_EINVAL,
        close = -FI_EBUSY
    );
    calls!(called, counter, fid_cntr.ops: fi_ops_cntr {
        add(ALL) = 0;
        adderr(ALL) = 0;
        read() = -1;
        readerr() = -1;
        wait(ALL, c_int::MIN) = 0;
        set(0) = 0;
        seterr(0) = 0;
        wait(ALL, 0) = -FI_ETIMEDOUT;
        export_xpu(ALL, null()) = -FI_ENOSYS;
    });

    let polls = all.polls.fid();
    common!(called, polls, bind = -FI_EINVAL, flags = -FI_EINVAL, close = 0);
    calls!(called, polls, fid_poll.ops: fi_ops_poll {
        poll(null(), -1) = -FI_EINVAL;
        poll_add(null(), 0) = -FI_EINVAL;
        poll_add(events, ALL) = -FI_EBADFLAGS;
        poll_add(polls, 0) = -FI_EINVAL;
        poll_del(null(), 0) = -FI_EINVAL;
        poll_del(events, ALL) = -FI_EBADFLAGS;
    });
    let waits = all.waits.fid();
    common!(
        called,
        waits,
        bind = -FI_EINVAL,
        flags = -FI_EINVAL,
        close = -FI_EBUSY
    );
    calls!(called, waits, fid_wait.ops: fi_ops_wait { wait(0) = -FI_ETIMEDOUT; });
}

/// Calls the entries of address vectors.
fn vectors(called: &mut Called, all: &Everything) {
    let (vector, mut number, mut length) = (all.vector.fid(), 77, usize::MAX);
    let mut bytes = [0_u8; 64];
    let to = bytes.as_mut_ptr();
    common!(
        called,
        vector,
        bind = -FI_EINVAL,
        flags = -FI_EBADFLAGS,
        close = -FI_EBUSY
    );
    calls!(called, vector, fid_av.ops: fi_ops_av {
        insert(null(), usize::MAX, null(), ALL, null()) = -FI_EBADFLAGS;
        insert(null(), 1, &raw mut number, 0, null()) = -FI_EINVAL;
        insert(to.cast(), usize::MAX, &raw mut number, 0, null()) = -FI_EINVAL;
        insert(to.cast(), 1, &raw mut number, 0, null()) = 0;
        insertsvc(null(), null(), null(), 0, null()) = -FI_EINVAL;
        insertsvc(c"".as_ptr(), c"-1".as_ptr(), null(), 0, null()) = 0;
        insertsym(c"x".as_ptr(), usize::MAX, c"1".as_ptr(), 2, null(), 0, null()) = -FI_EINVAL;
        insertsym(c"x".as_ptr(), usize::MAX, c"1".as_ptr(), 0, null(), 0, null()) = 0;
        remove(null(), 1, 0) = -FI_EINVAL;
        remove(&raw mut number, 1, 0) = -FI_EINVAL;
        remove(&raw mut number, 1, ALL) = -FI_EBADFLAGS;
        lookup(ALL, null(), null()) = -FI_EINVAL;
        lookup(77, to.cast(), &raw mut length) = -FI_EINVAL;
        av_set(null(), null(), null()) = -FI_ENOSYS;
        insert_auth_key(null(), usize::MAX, null(), ALL) = -FI_ENOSYS;
        lookup_auth_key(ALL, null(), null()) = -FI_ENOSYS;
        set_user_id(ALL, ALL, ALL) = -FI_ENOSYS;
        lookup2(ALL, null(), null(), ALL, null()) = -FI_ENOSYS;
    });
    assert_eq!(number, FI_ADDR_NOTAVAIL);
    // SAFETY: the vector is open.
    let table = unsafe { (*all.vector.0).ops };
    let straddr = called.note("straddr", |table: &fi_ops_av| table.straddr, table);
    // SAFETY: the vector is open, and has neither an address nor a length.
    assert_eq!(text(unsafe { straddr(all.vector.0, null(), null(), null()) }), "");
    length = 64;
    // SAFETY: zeros in the place of an address, and memory of this length.
    let words = text(unsafe {
        straddr(
            all.vector.0,
            [0_u8; 64].as_ptr().cast(),
            to.cast(),
            &raw mut length,
        )
    });
    assert!(!words.is_empty(), "{words}");
}

/// What endpoints do beside messages.
fn endpoints(called: &mut Called, all: &Everything) {
    let (endpoint, mut value, mut length) = (all.endpoint.0, [0_u8; 8], 1);
    let to = value.as_mut_ptr();
    common!(
        called,
        all.endpoint.fid(),
        bind = -FI_EINVAL,
        flags = -FI_EINVAL,
        close = 0
    );
    calls!(called, endpoint, fid_ep.ops: fi_ops_ep {
        cancel(ptr::without_provenance_mut(77)) = 0;
        getopt(NUMBER, NUMBER, null(), null()) = -FI_ENOPROTOOPT;
        getopt(FI_OPT_ENDPOINT, NUMBER, null(), null()) = -FI_ENOPROTOOPT;
        getopt(FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, null(), null()) = -FI_EINVAL;
        getopt(FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, to.cast(), &raw mut length) = -FI_ETOOSMALL;
        setopt(NUMBER, NUMBER, null(), usize::MAX) = -FI_ENOPROTOOPT;
        setopt(FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, null(), 8) = -FI_EINVAL;
        setopt(FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, to.cast(), usize::MAX) = -FI_EINVAL;
        tx_ctx(NUMBER, null(), null(), null()) = -FI_ENOSYS;
        rx_ctx(NUMBER, null(), null(), null()) = -FI_ENOSYS;
        export_xpu(ALL, null()) = -FI_ENOSYS;
    });
    calls!(called, all.bare.0, fid_ep.ops: fi_ops_ep {
        rx_size_left() = -FI_EOPBADSTATE;
        tx_size_left() = -FI_EOPBADSTATE;
    });
    calls!(called, endpoint, fid_ep.cm: fi_ops_cm {
        setname(null(), usize::MAX) = -FI_ENOSYS;
        getname(null(), null()) = -FI_EINVAL;
        getpeer(null(), null()) = -FI_ENOSYS;
        connect(null(), null(), usize::MAX) = -FI_ENOSYS;
        listen() = -FI_ENOSYS;
        accept(null(), usize::MAX) = -FI_ENOSYS;
        reject(null(), null(), usize::MAX) = -FI_ENOSYS;
        shutdown(ALL) = -FI_ENOSYS;
        join(null(), ALL, null(), null()) = -FI_ENOSYS;
    });
    // Commands of endpoints, of which each has an argument of its own.
    let mut word = ALL;
    let mut alias = fi_alias {
        fid: null(),
        flags: ALL,
    };
    calls!(called, endpoint, fid.ops: fi_ops {
        control(FI_GETOPSFLAG, null()) = -FI_EINVAL;
        control(FI_SETOPSFLAG, (&raw mut word).cast()) = -FI_EINVAL;
        control(FI_ALIAS, null()) = -FI_EINVAL;
        control(FI_ALIAS, (&raw mut alias).cast()) = -FI_EINVAL;
    });
    word = FI_TRANSMIT | 1 << 63;
    calls!(called, endpoint, fid.ops: fi_ops {
        control(FI_SETOPSFLAG, (&raw mut word).cast()) = -FI_EBADFLAGS;
    });
}

/// Atomics: of numbers without a meaning, without an address, too many elements, with wrong flags.
fn atomics(called: &mut Called, all: &Everything) {
    let (kind, op, len, me) = (NUMBER as u32, NUMBER as u32, usize::MAX, all.insert_oneself());
    let (sum, cswap, word) = (FI_SUM, FI_CSWAP, FI_UINT64);
    let mut memory = [0_u8; 8];
    let start = memory.as_mut_ptr().cast::<c_void>();
    let pieces = [fi_ioc {
        addr: start,
        count: 1,
    }; 2];
    let ioc = pieces.as_ptr();
    let message: fi_msg_atomic = Layout::zeroed();
    let message = &raw const message;
    let mut count = 0;
    let count = &raw mut count;
    for (ep, refusal) in [(all.endpoint.0, FI_EINVAL), (all.bare.0, FI_EOPBADSTATE)] {
        calls!(called, ep, fid_ep.atomic: fi_ops_atomic {
            write(null(), len, null(), ALL, ALL, ALL, kind, op, null()) = -FI_EOPNOTSUPP;
            write(start, len, null(), me, 0, 7, word, sum, null()) = -FI_EMSGSIZE;
            write(start, 0, null(), me, 0, 7, word, sum, null()) = -FI_EINVAL;
            write(start, 1, null(), 77, 0, 7, word, sum, null()) = -refusal;
            writev(null(), null(), len, ALL, ALL, ALL, kind, op, null()) = -FI_EOPNOTSUPP;
            writev(null(), null(), len, me, 0, 7, word, sum, null()) = -FI_EINVAL;
            writev(ioc, null(), 5, me, 0, 7, word, sum, null()) = -FI_EINVAL;
            writemsg(null(), ALL) = -FI_EBADFLAGS;
            writemsg(null(), 0) = -FI_EINVAL;
            writemsg(message, FI_REMOTE_CQ_DATA) = -FI_EOPNOTSUPP;
            writemsg(message, 0) = -FI_EINVAL;
            inject(null(), len, ALL, ALL, ALL, kind, op) = -FI_EOPNOTSUPP;
            inject(start, 513, me, 0, 7, word, sum) = -FI_EMSGSIZE;
            inject(start, 1, 77, 0, 7, word, sum) = -refusal;
            readwrite(null(), len, null(), null(), null(), ALL, ALL, ALL, kind, op, null()) = -FI_EOPNOTSUPP;
            readwrite(start, 1, null(), start, null(), 77, 0, 7, word, sum, null()) = -refusal;
            readwritev(
                null(), null(), len, null(), null(), len, ALL, ALL, ALL, kind, op, null()
            ) = -FI_EOPNOTSUPP;
            readwritev(
                ioc, null(), 2, ioc.cast_mut(), null(), 1, me, 0, 7, word, sum, null()
            ) = -FI_EINVAL;
            readwritemsg(null(), null(), null(), len, ALL) = -FI_EBADFLAGS;
            readwritemsg(message, null(), null(), len, FI_TAGGED) = -FI_EOPNOTSUPP;
            readwritemsg(message, null(), null(), len, 0) = -FI_EINVAL;
            compwrite(
                null(), len, null(), null(), null(), null(), null(), ALL, ALL, ALL, kind, op, null()
            ) = -FI_EOPNOTSUPP;
            compwrite(
                start, 1, null(), start, null(), start, null(), me, 0, 7, word, sum, null()
            ) = -FI_EOPNOTSUPP;
            compwrite(
                start, 1, null(), start, null(), start, null(), 77, 0, 7, word, cswap, null()
            ) = -refusal;
            compwritev(
                null(), null(), len, null(), null(), len, null(), null(), len, ALL, ALL, ALL, kind, op, null()
            ) = -FI_EOPNOTSUPP;
            compwritev(
                ioc, null(), 2, ioc, null(), 1, ioc.cast_mut(), null(), 2, me, 0, 7, word, cswap, null()
            ) = -FI_EINVAL;
            compwritemsg(null(), null(), null(), len, null(), null(), len, ALL) = -FI_EBADFLAGS;
            compwritemsg(message, null(), null(), len, null(), null(), len, 0) = -FI_EOPNOTSUPP;
            writevalid(kind, op, null()) = -FI_EOPNOTSUPP;
            writevalid(word, sum, null()) = -FI_EINVAL;
            writevalid(word, sum, count) = 0;
            readwritevalid(kind, op, null()) = -FI_EOPNOTSUPP;
            readwritevalid(word, sum, count) = 0;
            compwritevalid(kind, op, null()) = -FI_EOPNOTSUPP;
            compwritevalid(word, cswap, count) = 0;
        });
    }
}

/// Calls the entries of collectives, which are not offered.
fn not_offered(called: &mut Called, ep: *mut fid_ep) {
    let (kind, op, len) = (NUMBER as u32, NUMBER as u32, usize::MAX);
    refusals!(called, ep, collective: fi_ops_collective {
        barrier(ALL, null());
        broadcast(null(), len, null(), ALL, ALL, kind, ALL, null());
        alltoall(null(), len, null(), null(), null(), ALL, kind, ALL, null());
        allreduce(null(), len, null(), null(), null(), ALL, kind, op, ALL, null());
        allgather(null(), len, null(), null(), null(), ALL, kind, ALL, null());
        reduce_scatter(null(), len, null(), null(), null(), ALL, kind, op, ALL, null());
        reduce(null(), len, null(), null(), null(), ALL, ALL, kind, op, ALL, null());
        scatter(null(), len, null(), null(), null(), ALL, ALL, kind, ALL, null());
        gather(null(), len, null(), null(), null(), ALL, ALL, kind, ALL, null());
        msg(null(), null(), null(), len, ALL);
        barrier2(ALL, ALL, null());
    });
}

/// Messages of both spaces, reads and writes: without an address, too long, in too many pieces, with wrong
/// flags.
fn messages(called: &mut Called, all: &Everything) {
    let (len, me) = (usize::MAX, all.insert_oneself());
    let mut memory = [0_u8; 8];
    let start = memory.as_mut_ptr().cast::<c_void>();
    // Their lengths together are 1.
    let pieces = [usize::MAX, 2].map(|iov_len| iovec {
        iov_base: start,
        iov_len,
    });
    let iov = pieces.as_ptr();
    let (message, tagged): (fi_msg, fi_msg_tagged) = (Layout::zeroed(), Layout::zeroed());
    let (message, tagged) = (&raw const message, &raw const tagged);
    let memory: fi_msg_rma = Layout::zeroed();
    let memory = &raw const memory;
    for (ep, refusal) in [(all.endpoint.0, FI_EINVAL), (all.bare.0, FI_EOPBADSTATE)] {
        calls!(called, ep, fid_ep.msg: fi_ops_msg {
            recv(start, 8, null(), 77, null()) = -refusal;
            recvv(iov, null(), 1, 77, null()) = -refusal;
            recvv(null(), null(), len, me, null()) = -FI_EINVAL;
            recvmsg(message, ALL) = -FI_EBADFLAGS;
            recvmsg(null(), 0) = -FI_EINVAL;
            send(start, 8, null(), 77, null()) = -refusal;
            send(null(), 0, null(), FI_ADDR_UNSPEC, null()) = -refusal;
            sendv(null(), null(), len, me, null()) = -FI_EINVAL;
            sendmsg(message, ALL) = -FI_EBADFLAGS;
            sendmsg(null(), 0) = -FI_EINVAL;
            inject(start, 8, 77) = -refusal;
            inject(start, len, me) = -FI_EMSGSIZE;
            senddata(start, 8, null(), ALL, 77, null()) = -refusal;
            injectdata(start, 4097, ALL, me) = -FI_EMSGSIZE;
            injectdata(start, 8, ALL, 77) = -refusal;
        });
        calls!(called, ep, fid_ep.tagged: fi_ops_tagged {
            recv(start, 8, null(), 77, ALL, ALL, null()) = -refusal;
            recvv(iov, null(), 1, 77, ALL, ALL, null()) = -refusal;
            recvv(null(), null(), len, me, ALL, ALL, null()) = -FI_EINVAL;
            recvmsg(tagged, ALL) = -FI_EBADFLAGS;
            recvmsg(tagged, FI_DISCARD) = -FI_EINVAL;
            recvmsg(tagged, FI_CLAIM) = -refusal;
            recvmsg(null(), 0) = -FI_EINVAL;
            send(start, 8, null(), 77, ALL, null()) = -refusal;
            sendv(null(), null(), len, me, ALL, null()) = -FI_EINVAL;
            sendmsg(tagged, ALL) = -FI_EBADFLAGS;
            sendmsg(null(), 0) = -FI_EINVAL;
            inject(start, 8, 77, ALL) = -refusal;
            inject(start, len, me, ALL) = -FI_EMSGSIZE;
            senddata(start, 8, null(), ALL, 77, ALL, null()) = -refusal;
            injectdata(start, 4097, ALL, me, ALL) = -FI_EMSGSIZE;
            injectdata(start, 8, ALL, 77, ALL) = -refusal;
        });
        calls!(called, ep, fid_ep.rma: fi_ops_rma {
            read(start, 8, null(), 77, 0, 7, null()) = -refusal;
            read(start, len, null(), me, ALL, ALL, null()) = -FI_EMSGSIZE;
            readv(null(), null(), len, me, 0, 7, null()) = -FI_EINVAL;
            readmsg(memory, ALL) = -FI_EBADFLAGS;
            readmsg(memory, FI_REMOTE_CQ_DATA) = -FI_EOPNOTSUPP;
            readmsg(memory, 0) = -FI_EINVAL;
            readmsg(null(), 0) = -FI_EINVAL;
            write(start, 8, null(), 77, 0, 7, null()) = -refusal;
            writev(iov, null(), 2, me, 0, 7, null()) = -FI_EMSGSIZE;
            writev(null(), null(), len, me, 0, 7, null()) = -FI_EINVAL;
            writemsg(memory, ALL) = -FI_EBADFLAGS;
            writemsg(memory, FI_COMMIT_COMPLETE) = -FI_EOPNOTSUPP;
            writemsg(memory, 0) = -FI_EINVAL;
            writemsg(null(), 0) = -FI_EINVAL;
            inject(start, 8, 77, 0, 7) = -refusal;
            inject(start, len, me, 0, 7) = -FI_EMSGSIZE;
            writedata(start, 8, null(), ALL, 77, 0, 7, null()) = -refusal;
            injectdata(start, 4097, ALL, me, 0, 7) = -FI_EMSGSIZE;
            injectdata(start, 8, ALL, 77, 0, 7) = -refusal;
        });
    }
    // Longer than any message, in one piece and in two.
    let most = 1 << 40;
    calls!(called, all.endpoint.0, fid_ep.msg: fi_ops_msg {
        send(start, most + 1, null(), me, null()) = -FI_EMSGSIZE;
        send(start, len, null(), me, null()) = -FI_EMSGSIZE;
        sendv(iov, null(), 2, me, null()) = -FI_EMSGSIZE;
        recvv(iov, null(), 2, me, null()) = -FI_EMSGSIZE;
    });
    calls!(called, all.endpoint.0, fid_ep.tagged: fi_ops_tagged {
        senddata(start, len, null(), ALL, me, 0, null()) = -FI_EMSGSIZE;
        sendv(iov, null(), 2, me, 0, null()) = -FI_EMSGSIZE;
        recvv(iov, null(), 2, me, 0, 0, null()) = -FI_EMSGSIZE;
    });
}

/// After all that, a message to oneself.
fn still_works(all: &Everything) {
    let (me, sent, mut received, null) = (all.insert_oneself(), [7_u8; 8], [0_u8; 8], null::<c_void>());
    let start = received.as_mut_ptr().cast();
    // SAFETY: the endpoint is open, and the memory stays until the operation has ended, here and below.
    let posted = unsafe { fi_trecv(all.endpoint.0, start, 8, null, FI_ADDR_UNSPEC, 5, 0, null) };
    assert_eq!(posted, 0);
    // SAFETY: as above.
    let posted = unsafe { fi_tsend(all.endpoint.0, sent.as_ptr().cast(), 8, null, me, 5, null) };
    assert_eq!(posted, 0);
    let flags = [all.next().flags, all.next().flags];
    assert!(flags.contains(&(FI_TAGGED | FI_RECV)) && flags.contains(&(FI_TAGGED | FI_SEND)));
    assert_eq!(received, sent);
}
