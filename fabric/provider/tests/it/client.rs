//! A client of libfabric with one endpoint: what an MPI does, and no more.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use libc::iovec;
use libfabric_sys::*;

use crate::pair::Role;

/// How long an operation may take at most, so that a hang is an error.
const BOUND: Duration = Duration::from_secs(120);

/// What a client wants of the provider.
#[derive(Clone, Debug)]
pub(crate) struct Wants {
    pub(crate) caps: u64,
    pub(crate) send_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) format: fi_cq_format,
    pub(crate) size: usize,
    pub(crate) wait: fi_wait_obj,
    pub(crate) selective: bool,
    /// Whether receives have a queue of their own.
    pub(crate) divided: bool,
    /// Sends and receives under way of an endpoint; 0 for any number.
    pub(crate) depth: usize,
    pub(crate) threading: fi_threading,
    pub(crate) progress: fi_progress,
    /// Whether counters are bound to sends and receives.
    pub(crate) counters: bool,
    /// Whether the queue and the counters are in a wait set.
    pub(crate) set: bool,
    /// The format of addresses; 0 for any.
    pub(crate) addr_format: u32,
    /// What registrations may need.
    pub(crate) mr_mode: i32,
    /// The arguments of fi_getinfo(3).
    pub(crate) node: Option<CString>,
    pub(crate) service: Option<CString>,
    pub(crate) getinfo_flags: u64,
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            caps: FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV,
            send_flags: 0,
            receive_flags: 0,
            format: FI_CQ_FORMAT_TAGGED,
            size: 0,
            wait: FI_WAIT_NONE,
            selective: false,
            divided: false,
            depth: 0,
            threading: FI_THREAD_DOMAIN,
            progress: FI_PROGRESS_UNSPEC,
            counters: false,
            set: false,
            addr_format: FI_FORMAT_UNSPEC,
            mr_mode: 0,
            node: None,
            service: None,
            getinfo_flags: 0,
        }
    }
}

/// An object that is closed at its end.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) *mut T);

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: every object begins with its head, was opened, and is closed once.
        let result = unsafe { fi_close(self.0.cast()) };
        if !std::thread::panicking() {
            assert_eq!(result, 0, "fi_close");
        }
    }
}

/// Opens an object by a call that writes its address.
pub(crate) fn opened<T>(call: &'static str, open: impl FnOnce(*mut *mut T) -> c_int) -> Object<T> {
    let mut object = ptr::null_mut();
    let result = open(&raw mut object);
    assert_eq!(result, 0, "{call}");
    assert!(!object.is_null(), "{call}");
    Object(object)
}

/// What a queue gave.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// An entry, with its sender.
    Entry(fi_cq_tagged_entry, fi_addr_t),
    /// A failure of an operation.
    Failure(fi_cq_err_entry),
}

impl Found {
    pub(crate) fn entry(self) -> fi_cq_tagged_entry {
        match self {
            Self::Entry(entry, _) => entry,
            Self::Failure(failure) => panic!("{failure:?}: {}", words(&failure)),
        }
    }

    pub(crate) fn failure(self) -> fi_cq_err_entry {
        match self {
            Self::Entry(entry, _) => panic!("{entry:?}"),
            Self::Failure(failure) => failure,
        }
    }
}

/// What a failure is in words.
fn words(failure: &fi_cq_err_entry) -> String {
    if failure.err_data.is_null() {
        return String::new();
    }
    // SAFETY: a queue keeps the bytes of its failures until it is read again.
    let bytes = unsafe { std::slice::from_raw_parts(failure.err_data.cast::<u8>(), failure.err_data_size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A client. Fields are dropped in this order.
pub(crate) struct Client {
    pub(crate) endpoint: Object<fid_ep>,
    pub(crate) sent: Option<Object<fid_cntr>>,
    pub(crate) received: Option<Object<fid_cntr>>,
    pub(crate) queue: Object<fid_cq>,
    pub(crate) receive_queue: Option<Object<fid_cq>>,
    pub(crate) set: Option<Object<fid_wait>>,
    pub(crate) vector: Object<fid_av>,
    pub(crate) domain: Object<fid_domain>,
    pub(crate) fabric: Object<fid_fabric>,
    pub(crate) info: InfoList,
    pub(crate) library: Library,
    /// The other one.
    pub(crate) peer: fi_addr_t,
    format: fi_cq_format,
}

impl Client {
    /// Opens everything, and exchanges addresses with the other process.
    pub(crate) fn meet(role: &mut Role, library: Library, wants: &Wants) -> Self {
        let mut client = Self::open(library, wants);
        client.peer = client.insert(&role.exchange(&client.name()));
        client
    }

    /// Opens everything, without a peer.
    pub(crate) fn open(library: Library, wants: &Wants) -> Self {
        let mut info = find(&library, wants);
        let first = info.as_mut_ptr();
        // SAFETY: an entry has all its attributes.
        let fabric = opened("fi_fabric", |to| unsafe {
            library.fabric((*first).fabric_attr, to, ptr::null_mut())
        });
        // SAFETY: the fabric is open, and the entry is whole.
        let domain = opened("fi_domain", |to| unsafe {
            fi_domain(fabric.0, first, to, ptr::null_mut())
        });
        let mut attr = fi_av_attr {
            r#type: FI_AV_MAP,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let vector = opened("fi_av_open", |to| unsafe {
            fi_av_open(domain.0, &mut attr, to, ptr::null_mut())
        });
        let set = wants.set.then(|| wait_set(&fabric));
        let wait = Wait {
            object: if wants.set { FI_WAIT_SET } else { wants.wait },
            set: set.as_ref().map_or(ptr::null_mut(), |set| set.0),
        };
        let queue = queue_in(&domain, wants.format, wants.size, wait);
        let counter = || wants.counters.then(|| counter(&domain, wait));
        let (sent, received) = (counter(), counter());
        // SAFETY: the domain is open, and the entry is whole.
        let endpoint = opened("fi_endpoint", |to| unsafe {
            fi_endpoint(domain.0, first, to, ptr::null_mut())
        });
        let selective = if wants.selective {
            FI_SELECTIVE_COMPLETION
        } else {
            0
        };
        let receive_queue = wants
            .divided
            .then(|| queue_in(&domain, wants.format, wants.size, wait));
        let first = if wants.divided {
            FI_TRANSMIT
        } else {
            FI_TRANSMIT | FI_RECV
        };
        bind(&endpoint, queue.0.cast(), first | selective);
        if let Some(queue) = &receive_queue {
            bind(&endpoint, queue.0.cast(), FI_RECV | selective);
        }
        bind(&endpoint, vector.0.cast(), 0);
        for (counter, flag) in [(&sent, FI_SEND), (&received, FI_RECV)] {
            if let Some(counter) = counter {
                bind(&endpoint, counter.0.cast(), flag);
            }
        }
        // SAFETY: the endpoint is open.
        assert_eq!(unsafe { fi_enable(endpoint.0) }, 0, "fi_enable");
        Self {
            endpoint,
            sent,
            received,
            queue,
            receive_queue,
            set,
            vector,
            domain,
            fabric,
            info,
            library,
            peer: FI_ADDR_NOTAVAIL,
            format: wants.format,
        }
    }

    /// Opens a domain alone, and closes it again. Returns the error of fi_domain(3), if there is one.
    pub(crate) fn try_domain(library: Library, wants: &Wants) -> Result<(), i32> {
        let mut info = find(&library, wants);
        let first = info.as_mut_ptr();
        // SAFETY: an entry has all its attributes.
        let fabric = opened("fi_fabric", |to| unsafe {
            library.fabric((*first).fabric_attr, to, ptr::null_mut())
        });
        let mut domain = ptr::null_mut();
        // SAFETY: the fabric is open, the entry is whole, and there is a place for the result.
        match unsafe { fi_domain(fabric.0, first, &raw mut domain, ptr::null_mut()) } {
            0 => {
                drop(Object(domain));
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Opens one more endpoint of the domain, with a queue of its own.
    pub(crate) fn one_more(&mut self, queue: &Object<fid_cq>) -> Object<fid_ep> {
        let entry = self.info.as_mut_ptr();
        // SAFETY: the domain is open, and the entry is whole.
        let endpoint = opened("fi_endpoint", |to| unsafe {
            fi_endpoint(self.domain.0, entry, to, ptr::null_mut())
        });
        bind(&endpoint, queue.0.cast(), FI_TRANSMIT | FI_RECV);
        bind(&endpoint, self.vector.0.cast(), 0);
        // SAFETY: the endpoint is open.
        assert_eq!(unsafe { fi_enable(endpoint.0) }, 0, "fi_enable");
        endpoint
    }

    /// The name of the endpoint.
    pub(crate) fn name(&self) -> Vec<u8> {
        name_of(&self.endpoint)
    }

    /// The address of the peer that the arguments of fi_getinfo(3) name.
    pub(crate) fn destination(&self) -> Vec<u8> {
        let entry = self.info.as_ptr();
        // SAFETY: an entry of the library.
        let (start, length) = unsafe { ((*entry).dest_addr, (*entry).dest_addrlen) };
        assert!(!start.is_null() && length > 0, "no peer is named");
        // SAFETY: the entry's address has this length.
        unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }.to_vec()
    }

    /// Inserts an address.
    pub(crate) fn insert(&self, name: &[u8]) -> fi_addr_t {
        let mut address = FI_ADDR_NOTAVAIL;
        // SAFETY: one address, and a place for its number.
        let count = unsafe {
            fi_av_insert(
                self.vector.0,
                name.as_ptr().cast(),
                1,
                &mut address,
                0,
                ptr::null_mut(),
            )
        };
        assert_eq!(count, 1, "fi_av_insert");
        address
    }

    /// Makes progress; no entry is read.
    pub(crate) fn advance(&self) {
        // SAFETY: no entry is read.
        unsafe { fi_cq_read(self.queue.0, ptr::null_mut(), 0) };
    }

    /// Reads the queue once.
    pub(crate) fn read(&self) -> Option<Found> {
        read(&self.queue, self.format)
    }

    /// Reads the queue until it gives something.
    pub(crate) fn next(&self) -> Found {
        until("nothing has ended", || self.read())
    }

    /// Sends and waits until that has ended.
    pub(crate) fn send(&self, bytes: &[u8], tag: Option<u64>) {
        let context = bytes.as_ptr() as usize | 1;
        self.post(bytes, tag, context);
        assert_eq!(self.next().entry().op_context.addr(), context);
    }

    /// Starts a send, which ends with this context.
    pub(crate) fn post(&self, bytes: &[u8], tag: Option<u64>, context: usize) {
        self.retry(|| self.try_post(bytes, tag, context));
    }

    pub(crate) fn try_post(&self, bytes: &[u8], tag: Option<u64>, context: usize) -> isize {
        let (ep, buf, len) = (self.endpoint.0, bytes.as_ptr().cast(), bytes.len());
        let (desc, context) = (ptr::null_mut(), pointer(context));
        match tag {
            // SAFETY: the memory stays until the operation has ended.
            Some(tag) => unsafe { fi_tsend(ep, buf, len, desc, self.peer, tag, context) },
            // SAFETY: as above.
            None => unsafe { fi_send(ep, buf, len, desc, self.peer, context) },
        }
    }

    /// Calls until it is not refused for the moment; the queue is not read, only progress is made.
    pub(crate) fn retry(&self, mut call: impl FnMut() -> isize) {
        let answer = until("it is refused for ever", || match call() {
            again if again == -(FI_EAGAIN as isize) => {
                self.advance();
                None
            }
            answer => Some(answer),
        });
        assert_eq!(answer, 0, "{}", self.library.strerror(answer as c_int));
    }

    /// Posts a receive.
    pub(crate) fn receive(&self, room: &mut Room, tag: Option<(u64, u64)>, from: fi_addr_t, context: usize) {
        let (ep, buf, len) = (self.endpoint.0, room.start(), room.len());
        let (desc, context) = (ptr::null_mut(), pointer(context));
        let answer = match tag {
            // SAFETY: the memory stays until the operation has ended.
            Some((tag, ignore)) => unsafe { fi_trecv(ep, buf, len, desc, from, tag, ignore, context) },
            // SAFETY: as above.
            None => unsafe { fi_recv(ep, buf, len, desc, from, context) },
        };
        assert_eq!(answer, 0, "{}", self.library.strerror(answer as c_int));
    }

    /// Receives one message of any sender, and checks its bytes.
    pub(crate) fn expect(&self, bytes: &[u8], tag: Option<u64>) -> fi_cq_tagged_entry {
        let mut room = Room::new(bytes.len());
        self.receive(&mut room, tag.map(|tag| (tag, 0)), FI_ADDR_UNSPEC, 77);
        let entry = self.next().entry();
        assert_eq!(entry.op_context.addr(), 77);
        assert_eq!(room.bytes(), bytes);
        entry
    }
}

/// The name of an endpoint.
pub(crate) fn name_of(endpoint: &Object<fid_ep>) -> Vec<u8> {
    let mut length = 0;
    // SAFETY: the endpoint is open.
    let answer = unsafe { fi_getname(endpoint.0.cast(), ptr::null_mut(), &mut length) };
    assert_eq!(answer, -FI_ETOOSMALL);
    let mut name = vec![0; length];
    // SAFETY: the memory has this length.
    let answer = unsafe { fi_getname(endpoint.0.cast(), name.as_mut_ptr().cast(), &mut length) };
    assert_eq!((answer, name.len()), (0, length));
    name
}

/// Calls until there is an answer.
pub(crate) fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + BOUND;
    loop {
        for _ in 0..100 {
            if let Some(found) = look() {
                return found;
            }
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// A number as a context.
pub(crate) fn pointer(context: usize) -> *mut c_void {
    ptr::without_provenance_mut(context)
}

/// Reads a queue once.
pub(crate) fn read(queue: &Object<fid_cq>, format: fi_cq_format) -> Option<Found> {
    let mut entry: fi_cq_tagged_entry = Layout::zeroed();
    let mut sender = FI_ADDR_NOTAVAIL;
    // SAFETY: room for one entry of any format.
    let count = unsafe { fi_cq_readfrom(queue.0, (&raw mut entry).cast(), 1, &mut sender) };
    if count == -(FI_EAVAIL as isize) {
        let mut failure: fi_cq_err_entry = Layout::zeroed();
        // SAFETY: a whole structure.
        assert_eq!(unsafe { fi_cq_readerr(queue.0, &mut failure, 0) }, 1);
        return Some(Found::Failure(failure));
    }
    if count == -(FI_EAGAIN as isize) {
        return None;
    }
    assert_eq!(count, 1, "fi_cq_read");
    let _ = format;
    Some(Found::Entry(entry, sender))
}

/// Opens a queue.
pub(crate) fn queue(
    domain: &Object<fid_domain>,
    format: fi_cq_format,
    size: usize,
    wait: fi_wait_obj,
) -> Object<fid_cq> {
    queue_in(domain, format, size, Wait::on(wait))
}

/// What is waited on, and the wait set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    object: fi_wait_obj,
    set: *mut fid_wait,
}

impl Wait {
    /// A wait object without a set.
    pub(crate) fn on(object: fi_wait_obj) -> Self {
        Self {
            object,
            set: ptr::null_mut(),
        }
    }
}

/// Opens a wait set.
fn wait_set(fabric: &Object<fid_fabric>) -> Object<fid_wait> {
    let mut attr = fi_wait_attr {
        wait_obj: FI_WAIT_UNSPEC,
        flags: 0,
    };
    // SAFETY: the fabric is open.
    opened("fi_wait_open", |to| unsafe {
        fi_wait_open(fabric.0, &mut attr, to)
    })
}

fn queue_in(domain: &Object<fid_domain>, format: fi_cq_format, size: usize, wait: Wait) -> Object<fid_cq> {
    let mut attr = fi_cq_attr {
        size,
        format,
        wait_obj: wait.object,
        wait_set: wait.set,
        ..Layout::zeroed()
    };
    // SAFETY: the domain is open.
    opened("fi_cq_open", |to| unsafe {
        fi_cq_open(domain.0, &mut attr, to, ptr::null_mut())
    })
}

/// Opens a counter.
pub(crate) fn counter(domain: &Object<fid_domain>, wait: Wait) -> Object<fid_cntr> {
    let mut attr = fi_cntr_attr {
        events: FI_CNTR_EVENTS_COMP,
        wait_obj: wait.object,
        wait_set: wait.set,
        ..Layout::zeroed()
    };
    // SAFETY: the domain is open.
    opened("fi_cntr_open", |to| unsafe {
        fi_cntr_open(domain.0, &mut attr, to, ptr::null_mut())
    })
}

/// Binds an object to an endpoint.
pub(crate) fn bind(endpoint: &Object<fid_ep>, other: *mut fid, flags: u64) {
    // SAFETY: both are open.
    assert_eq!(unsafe { fi_ep_bind(endpoint.0, other, flags) }, 0, "fi_ep_bind");
}

/// What the provider answers to a client's hints.
pub(crate) fn find(library: &Library, wants: &Wants) -> InfoList {
    let mut hints = library.hints().unwrap();
    let entry = hints.as_mut_ptr();
    let name = CString::new("doorbell").unwrap();
    // SAFETY: hints have all their attributes, and libfabric frees the name.
    unsafe {
        (*entry).caps = wants.caps;
        (*entry).addr_format = wants.addr_format;
        (*entry).mode = FI_CONTEXT | FI_CONTEXT2;
        (*(*entry).ep_attr).r#type = FI_EP_RDM;
        (*(*entry).domain_attr).mr_mode = wants.mr_mode;
        (*(*entry).domain_attr).threading = wants.threading;
        (*(*entry).domain_attr).data_progress = wants.progress;
        (*(*entry).domain_attr).resource_mgmt = FI_RM_ENABLED;
        (*(*entry).tx_attr).op_flags = wants.send_flags;
        (*(*entry).tx_attr).size = wants.depth;
        (*(*entry).rx_attr).size = wants.depth;
        (*(*entry).rx_attr).op_flags = wants.receive_flags;
        (*(*entry).fabric_attr).prov_name = libc::strdup(name.as_ptr());
    }
    library
        .getinfo(
            library.level(),
            wants.node.as_deref(),
            wants.service.as_deref(),
            wants.getinfo_flags,
            Some(&hints),
        )
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Memory that a provider writes, so that no reference to it is made.
pub(crate) struct Room(*mut [u8]);

impl Room {
    pub(crate) fn new(length: usize) -> Self {
        Self(Box::into_raw(vec![0xee; length].into_boxed_slice()))
    }

    pub(crate) fn start(&mut self) -> *mut c_void {
        self.0.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A piece of it.
    pub(crate) fn piece(&mut self, at: usize, length: usize) -> iovec {
        assert!(at + length <= self.len());
        iovec {
            iov_base: self.0.cast::<u8>().wrapping_add(at).cast(),
            iov_len: length,
        }
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.len());
        // SAFETY: within the memory; a provider may be writing it, so the read is volatile.
        unsafe { self.0.cast::<u8>().wrapping_add(at).read_volatile() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        (0..self.len()).map(|at| self.byte(at)).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is given back once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Bytes that differ by their number.
pub(crate) fn pattern(length: usize, number: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + number * 13 + at / 256) as u8)
        .collect()
}
