//! The border of the library: a process that loads libfabric with the provider, talks, and unloads it, again
//! and again.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use crate::alone::run_without_library;
use crate::opened::{Object, open};

/// Lives of one process.
const LIVES: usize = 100;
/// Lives before the first count: tables grow to the size that they keep.
const WARM: usize = 10;
/// Bytes that a process may have more at the end: what the allocator keeps for itself counts as in use.
const GROWTH: usize = 128 << 10;
/// Bytes of the long message: it does not fit into a cell, nor into an eager message.
const LONG: usize = 256 << 10;

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type Fabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;

/// libfabric, loaded by the test itself, so that it can be unloaded.
struct Loaded {
    handle: *mut c_void,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    fabric: Fabric,
    version: Version,
}

impl Loaded {
    fn load() -> Self {
        // SAFETY: the name ends with a zero byte.
        let handle = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        let find = |name: &CStr| {
            // SAFETY: the library is loaded.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "{name:?}");
            address
        };
        Self {
            handle,
            // SAFETY: the functions of these names, with the signatures of the headers, here and below.
            getinfo: unsafe { std::mem::transmute::<*mut c_void, GetInfo>(find(c"fi_getinfo")) },
            // SAFETY: as above.
            freeinfo: unsafe { std::mem::transmute::<*mut c_void, FreeInfo>(find(c"fi_freeinfo")) },
            // SAFETY: as above.
            fabric: unsafe { std::mem::transmute::<*mut c_void, Fabric>(find(c"fi_fabric")) },
            // SAFETY: as above.
            version: unsafe { std::mem::transmute::<*mut c_void, Version>(find(c"fi_version")) },
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: it was loaded once for this, and nothing of it is used any more.
        assert_eq!(unsafe { libc::dlclose(self.handle) }, 0);
    }
}

/// One of two members of a process. Fields are dropped in this order.
struct Talker {
    endpoint: Object<fid_ep>,
    queue: Object<fid_cq>,
    vector: Object<fid_av>,
    _domain: Object<fid_domain>,
}

impl Talker {
    fn open(fabric: &Object<fid_fabric>, entry: *mut fi_info) -> Self {
        let null = ptr::null_mut::<c_void>();
        // SAFETY: the fabric is open, and the entry is of its provider.
        let domain = open("fi_domain", |to| unsafe { fi_domain(fabric.0, entry, to, null) });
        let mut attributes: fi_av_attr = Layout::zeroed();
        // SAFETY: the domain is open, here and below.
        let vector = open("fi_av_open", |to| unsafe {
            fi_av_open(domain.0, &raw mut attributes, to, null)
        });
        let mut attributes = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            wait_obj: FI_WAIT_FD,
            ..Layout::zeroed()
        };
        // SAFETY: as above.
        let queue = open("fi_cq_open", |to| unsafe {
            fi_cq_open(domain.0, &raw mut attributes, to, null)
        });
        // SAFETY: as above.
        let endpoint = open("fi_endpoint", |to| unsafe {
            fi_endpoint(domain.0, entry, to, null)
        });
        // SAFETY: all are open, here and below.
        let bound = unsafe { fi_ep_bind(endpoint.0, queue.fid(), FI_TRANSMIT | FI_RECV) };
        assert_eq!(bound, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { fi_ep_bind(endpoint.0, vector.fid(), 0) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { fi_enable(endpoint.0) }, 0);
        Self {
            endpoint,
            queue,
            vector,
            _domain: domain,
        }
    }

    /// Inserts the name of another one.
    fn insert(&self, other: &Self) -> fi_addr_t {
        let (mut name, mut length, mut address) = ([0_u8; 64], 64, FI_ADDR_NOTAVAIL);
        // SAFETY: the endpoint is open, and the memory has this length.
        let named = unsafe { fi_getname(other.endpoint.fid(), name.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(named, 0);
        let null = ptr::null_mut();
        // SAFETY: the vector is open, with one name and a place for its number.
        let count =
            unsafe { fi_av_insert(self.vector.0, name.as_ptr().cast(), 1, &raw mut address, 0, null) };
        assert_eq!(count, 1);
        address
    }

    /// Sends to another one, and waits until both have an entry.
    fn talk(&self, other: &Self, length: usize) {
        let (sent, mut room, null) = (vec![7_u8; length], vec![0_u8; length], ptr::null_mut());
        let (to, start) = (self.insert(other), room.as_mut_ptr().cast());
        // All capabilities are open, of which one reports senders that are not in the vector as failures.
        other.insert(self);
        // SAFETY: the endpoints are open, and the memory stays until the operations have ended.
        let posted = unsafe { fi_trecv(other.endpoint.0, start, length, null, FI_ADDR_UNSPEC, 5, 0, null) };
        assert_eq!(posted, 0);
        loop {
            // SAFETY: as above.
            match unsafe { fi_tsend(self.endpoint.0, sent.as_ptr().cast(), length, null, to, 5, null) } {
                0 => break,
                result => assert_eq!(result, -(FI_EAGAIN as isize)),
            }
            self.read();
        }
        let (mut is_sent, mut is_received) = (false, false);
        while !(is_sent && is_received) {
            is_sent |= self.read();
            is_received |= other.read();
        }
        assert_eq!(room, sent);
    }

    fn read(&self) -> bool {
        let mut entry: fi_cq_tagged_entry = Layout::zeroed();
        // SAFETY: the queue is open, and there is room for an entry.
        match unsafe { fi_cq_read(self.queue.0, (&raw mut entry).cast(), 1) } {
            1 => true,
            result if result == -(FI_EAGAIN as isize) => false,
            result => panic!("fi_cq_read: {result}, {}", self.failure()),
        }
    }

    /// Describes an operation that has failed.
    fn failure(&self) -> String {
        let mut failure: fi_cq_err_entry = Layout::zeroed();
        // SAFETY: the queue is open, and the structure whole.
        let count = unsafe { fi_cq_readerr(self.queue.0, &raw mut failure, 0) };
        let null = ptr::null_mut();
        // SAFETY: as above; there is no memory for the text.
        let text = unsafe { fi_cq_strerror(self.queue.0, failure.prov_errno, null, null.cast(), 0) };
        // SAFETY: a text that ends with a zero byte.
        format!("{count} failed: {:?}", unsafe { CStr::from_ptr(text) })
    }
}

/// Loads the library, talks in two members, and unloads it.
fn live() {
    let library = Loaded::load();
    let mut info = ptr::null_mut();
    // SAFETY: the library is loaded.
    let version = unsafe { (library.version)() };
    // SAFETY: no hints; the entry is freed below.
    let found =
        unsafe { (library.getinfo)(version, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut info) };
    assert_eq!(found, 0);
    // SAFETY: an entry has all its attributes.
    let attributes = unsafe { (*info).fabric_attr };
    // SAFETY: the attributes are the library's.
    let fabric = open("fi_fabric", |to| unsafe {
        (library.fabric)(attributes, to, ptr::null_mut())
    });
    let [one, other] = [(); 2].map(|()| Talker::open(&fabric, info));
    one.talk(&other, 8);
    other.talk(&one, LONG);
    drop((one, other));
    drop(fabric);
    // SAFETY: the entry is used no more.
    unsafe { (library.freeinfo)(info) };
}

/// What a process holds.
#[derive(Debug)]
struct Holds {
    descriptors: usize,
    threads: usize,
    /// Bytes of the heap that are in use, and bytes of all mappings.
    heap: usize,
    mapped: usize,
}

impl Holds {
    fn now() -> Self {
        let count = |folder| std::fs::read_dir(folder).unwrap().count();
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
        Self {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            // SAFETY: the call takes nothing.
            heap: unsafe { libc::mallinfo2() }.uordblks,
            mapped: pages << 12,
        }
    }
}

#[test]
fn a_hundred_loads_and_unloads_leave_nothing_behind() {
    run_without_library("border::a_hundred_loads_and_unloads_leave_nothing_behind", || {
        let before = Holds::now();
        (0..WARM).for_each(|_| live());
        let warm = Holds::now();
        (WARM..LIVES).for_each(|_| live());
        let after = Holds::now();
        println!("{before:?}\n{warm:?}\n{after:?}");
        assert_eq!(
            (after.descriptors, after.threads),
            (before.descriptors, before.threads)
        );
        assert!(after.heap <= warm.heap + GROWTH, "{warm:?} {after:?}");
        assert!(after.mapped <= warm.mapped + GROWTH, "{warm:?} {after:?}");
    });
}
