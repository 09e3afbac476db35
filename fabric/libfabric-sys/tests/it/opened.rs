//! Two endpoints of a provider in one process, each with a queue, that know each other.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use libfabric_sys::*;

/// How long an operation may take at most, so that a hang is an error.
const BOUND: Duration = Duration::from_secs(60);

/// An object that is closed at its end.
struct Object<T>(*mut T);

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: every object begins with its head, was opened, and is closed once.
        let result = unsafe { fi_close(self.0.cast()) };
        assert_eq!(result, 0, "fi_close");
    }
}

/// Opens an object by a call that writes its address.
fn open<T>(library: &Library, call: &'static str, open: impl FnOnce(*mut *mut T) -> i32) -> Object<T> {
    let mut object = ptr::null_mut();
    let result = open(&raw mut object);
    library.check(call, result).unwrap();
    assert!(!object.is_null(), "{call}");
    Object(object)
}

/// Memory that a provider reads and writes, so that no reference to it is made.
struct Memory(*mut [u8]);

impl Memory {
    fn start(&self) -> *mut u8 {
        self.0.cast()
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.0.len());
        // SAFETY: within the memory; a provider may be writing it, so the read is volatile.
        unsafe { self.start().wrapping_add(at).read_volatile() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and is given back once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Memory with its registration. Fields are dropped in this order.
pub(crate) struct Buffer {
    registration: Object<fid_mr>,
    memory: Memory,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        (0..self.length()).map(|at| self.memory.byte(at)).collect()
    }

    fn length(&self) -> usize {
        self.memory.0.len()
    }

    fn start(&self) -> *mut c_void {
        self.memory.start().cast()
    }

    /// What operations of the own endpoint take as descriptor.
    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        unsafe { fi_mr_desc(self.registration.0) }
    }

    /// The key by which peers name it.
    fn key(&self) -> u64 {
        // SAFETY: the registration is open.
        unsafe { fi_mr_key(self.registration.0) }
    }
}

/// One of the two ends. Fields are dropped in this order.
struct End {
    endpoint: Object<fid_ep>,
    queue: Object<fid_cq>,
    /// One for each end, as two processes have it.
    addresses: Object<fid_av>,
    /// The address of the other end.
    peer: fi_addr_t,
    /// Room for what a provider keeps per operation.
    contexts: Box<[fi_context2; 4]>,
    used: usize,
}

/// The two ends and what they share. Fields are dropped in this order.
pub(crate) struct Pair {
    ends: Vec<End>,
    domain: Object<fid_domain>,
    _fabric: Object<fid_fabric>,
    /// Whether peers name memory by its address, and not by the offset from its start.
    by_address: bool,
    _info: InfoList,
    library: Library,
}

/// Sets a field of a pointer's structure.
macro_rules! set {
    ($pointer:expr, $field:ident = $value:expr) => {{
        let (pointer, value) = ($pointer, $value);
        // SAFETY: the library gave the hints all their attributes, and fields of its first releases.
        unsafe { (*pointer).$field = value }
    }};
}

/// Returns a field of a pointer's structure.
macro_rules! get {
    ($pointer:expr, $field:ident) => {{
        let pointer = $pointer;
        // SAFETY: an entry of a list that lives, or one of its attributes.
        unsafe { (*pointer).$field }
    }};
}

/// Returns hints for reliable endpoints with messages, tags and reads and writes.
fn hints(library: &Library, provider: &CStr) -> InfoList {
    let mut hints = library.hints().unwrap();
    let entry = hints.as_mut_ptr();
    set!(entry, caps = FI_MSG | FI_TAGGED | FI_RMA);
    set!(entry, mode = FI_CONTEXT | FI_CONTEXT2);
    set!(get!(entry, ep_attr), r#type = FI_EP_RDM);
    let modes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    set!(get!(entry, domain_attr), mr_mode = modes);
    // SAFETY: the name ends with a zero byte; the library gives the copy back by `free`.
    let copy = unsafe { libc::strdup(provider.as_ptr()) };
    set!(get!(entry, fabric_attr), prov_name = copy);
    hints
}

impl Pair {
    /// Opens both ends; `node` is the address of one's own that they take.
    pub(crate) fn open(library: Library, provider: &str, node: Option<&CStr>) -> Result<Self, CallError> {
        let provider = CString::new(provider).unwrap();
        let hints = hints(&library, &provider);
        let flags = if node.is_some() { FI_SOURCE } else { 0 };
        let info = library.getinfo(library.level(), node, None, flags, Some(&hints))?;
        println!("{provider:?}: {info:?}");
        let entry = info.as_ptr().cast_mut();
        let fabric_attr = get!(entry, fabric_attr);
        let by_address = get!(get!(entry, domain_attr), mr_mode) & FI_MR_VIRT_ADDR != 0;
        let null = ptr::null_mut::<c_void>();
        // SAFETY: the attributes are the library's.
        let fabric = open(&library, "fi_fabric", |out| unsafe {
            library.fabric(fabric_attr, out, null)
        });
        // SAFETY: the fabric is open, and the entry is of its provider.
        let domain = open(&library, "fi_domain", |out| unsafe {
            fi_domain(fabric.0, entry, out, null)
        });
        let mut pair = Self {
            ends: Vec::new(),
            domain,
            _fabric: fabric,
            by_address,
            _info: info,
            library,
        };
        for _ in 0..2 {
            pair.add_end(entry);
        }
        pair.introduce();
        Ok(pair)
    }

    fn add_end(&mut self, entry: *mut fi_info) {
        let null = ptr::null_mut::<c_void>();
        let mut attributes = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            wait_obj: FI_WAIT_NONE,
            ..Layout::zeroed()
        };
        let domain = self.domain.0;
        // SAFETY: the domain is open, and the attributes live.
        let queue = open(&self.library, "fi_cq_open", |out| unsafe {
            fi_cq_open(domain, &raw mut attributes, out, null)
        });
        let mut vector = fi_av_attr {
            r#type: FI_AV_UNSPEC,
            count: 2,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open, and the attributes live.
        let addresses = open(&self.library, "fi_av_open", |out| unsafe {
            fi_av_open(domain, &raw mut vector, out, null)
        });
        // SAFETY: the domain is open, and the entry is the one that it was opened by.
        let endpoint = open(&self.library, "fi_endpoint", |out| unsafe {
            fi_endpoint(domain, entry, out, null)
        });
        // SAFETY: all three are open, here and below.
        let bound = unsafe { fi_ep_bind(endpoint.0, addresses.0.cast(), 0) };
        self.library.check("fi_ep_bind", bound).unwrap();
        // SAFETY: as above.
        let bound = unsafe { fi_ep_bind(endpoint.0, queue.0.cast(), FI_TRANSMIT | FI_RECV) };
        self.library.check("fi_ep_bind", bound).unwrap();
        // SAFETY: as above.
        let enabled = unsafe { fi_enable(endpoint.0) };
        self.library.check("fi_enable", enabled).unwrap();
        self.ends.push(End {
            endpoint,
            queue,
            addresses,
            peer: FI_ADDR_UNSPEC,
            contexts: Box::new([Layout::zeroed(); 4]),
            used: 0,
        });
    }

    /// Puts the name of each end into the address vector of the other one.
    fn introduce(&mut self) {
        for at in 0..2 {
            let name = self.name(at);
            let mut address = FI_ADDR_UNSPEC;
            // SAFETY: the vector is open; the name is whole, and the address may be written.
            let inserted = unsafe {
                fi_av_insert(
                    self.ends[1 - at].addresses.0,
                    name.as_ptr().cast(),
                    1,
                    &raw mut address,
                    0,
                    ptr::null_mut(),
                )
            };
            assert_eq!(inserted, 1, "fi_av_insert");
            self.ends[1 - at].peer = address;
        }
    }

    /// Returns the name of an end; its length is looked up first, as some clients do.
    fn name(&self, at: usize) -> Vec<u8> {
        let endpoint = self.ends[at].endpoint.0.cast();
        let mut length = 0;
        // SAFETY: the endpoint is open; nothing is written but the length.
        let refused = unsafe { fi_getname(endpoint, ptr::null_mut(), &raw mut length) };
        assert!(refused == -FI_ETOOSMALL && length > 0, "{refused}, {length}");
        let mut name = vec![0; length];
        // SAFETY: the endpoint is open, and the name has the length.
        let result = unsafe { fi_getname(endpoint, name.as_mut_ptr().cast(), &raw mut length) };
        self.library.check("fi_getname", result).unwrap();
        name
    }

    /// Registers memory for everything.
    pub(crate) fn register(&self, bytes: &[u8], key: u64) -> Buffer {
        let memory = Memory(Box::into_raw(bytes.into()));
        let access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        // SAFETY: the domain is open; the memory lives longer than its registration.
        let registration = open(&self.library, "fi_mr_reg", |out| unsafe {
            let (start, length) = (memory.start().cast(), memory.0.len());
            fi_mr_reg(
                self.domain.0,
                start,
                length,
                access,
                0,
                key,
                0,
                out,
                ptr::null_mut(),
            )
        });
        Buffer { registration, memory }
    }

    /// Begins an operation of an end, again while the provider has no room for it.
    fn begin(
        &mut self,
        at: usize,
        call: &'static str,
        operation: impl Fn(*mut fid_ep, fi_addr_t, *mut c_void) -> isize,
    ) {
        let end = &mut self.ends[at];
        let context = (&raw mut end.contexts[end.used % 4]).cast();
        let (endpoint, peer) = (end.endpoint.0, end.peer);
        end.used += 1;
        let until = Instant::now() + BOUND;
        loop {
            let result = operation(endpoint, peer, context);
            if result != -(FI_EAGAIN as isize) {
                self.library.check(call, i32::try_from(result).unwrap()).unwrap();
                return;
            }
            assert!(Instant::now() < until, "{call} finds no room");
            for end in 0..2 {
                // Completions of others cannot come here: each is waited for before the next begins.
                assert!(self.poll(end).is_none(), "{call}");
            }
        }
    }

    pub(crate) fn receive(&mut self, at: usize, buffer: &Buffer, tag: Option<u64>) {
        let (start, length, descriptor) = (buffer.start(), buffer.length(), buffer.descriptor());
        self.begin(at, "fi_recv", |endpoint, peer, context| match tag {
            // SAFETY: the endpoint is open; the buffer lives until the completion was read.
            Some(tag) => unsafe { fi_trecv(endpoint, start, length, descriptor, peer, tag, 0, context) },
            // SAFETY: as above.
            None => unsafe { fi_recv(endpoint, start, length, descriptor, peer, context) },
        });
    }

    pub(crate) fn send(&mut self, at: usize, buffer: &Buffer, tag: Option<u64>) {
        let (start, length, descriptor) = (buffer.start(), buffer.length(), buffer.descriptor());
        self.begin(at, "fi_send", |endpoint, peer, context| match tag {
            // SAFETY: the endpoint is open; the buffer lives until the completion was read.
            Some(tag) => unsafe { fi_tsend(endpoint, start, length, descriptor, peer, tag, context) },
            // SAFETY: as above.
            None => unsafe { fi_send(endpoint, start, length, descriptor, peer, context) },
        });
    }

    /// Writes a buffer into a peer's from its start on.
    pub(crate) fn write(&mut self, at: usize, buffer: &Buffer, target: &Buffer) {
        let (start, length, descriptor) = (buffer.start(), buffer.length(), buffer.descriptor());
        let remote = if self.by_address { target.start() as u64 } else { 0 };
        let key = target.key();
        self.begin(at, "fi_write", |endpoint, peer, context| {
            // SAFETY: the endpoint is open; both buffers live until the completion was read.
            unsafe { fi_write(endpoint, start, length, descriptor, peer, remote, key, context) }
        });
    }

    /// Returns a completion of an end, if there is one.
    fn poll(&self, at: usize) -> Option<fi_cq_tagged_entry> {
        let queue = self.ends[at].queue.0;
        let mut entry = fi_cq_tagged_entry::zeroed();
        // SAFETY: the queue is open, and the entry has its format.
        let result = unsafe { fi_cq_read(queue, (&raw mut entry).cast(), 1) };
        if result == -(FI_EAVAIL as isize) {
            let mut failed = fi_cq_err_entry::zeroed();
            // SAFETY: the queue is open, and the entry has the newest size.
            unsafe { fi_cq_readerr(queue, &raw mut failed, 0) };
            panic!("end {at}: {} ({})", self.library.strerror(failed.err), failed.err);
        }
        assert!(
            result == 1 || result == -(FI_EAGAIN as isize),
            "fi_cq_read: {result}"
        );
        (result == 1).then_some(entry)
    }

    /// Returns the next completion of each of these ends, with both ends polled meanwhile.
    pub(crate) fn complete<const N: usize>(&self, ends: [usize; N]) -> [fi_cq_tagged_entry; N] {
        let until = Instant::now() + BOUND;
        let mut found: [Option<fi_cq_tagged_entry>; N] = [None; N];
        while found.iter().any(Option::is_none) {
            assert!(Instant::now() < until, "no completion within {BOUND:?}");
            for at in 0..2 {
                let Some(entry) = self.poll(at) else { continue };
                let free = (0..N).find(|slot| ends[*slot] == at && found[*slot].is_none());
                found[free.unwrap_or_else(|| panic!("end {at} has one completion too many"))] = Some(entry);
            }
        }
        found.map(|entry| entry.expect("the loop ends when all are there"))
    }

    /// Polls both ends until a buffer has these bytes.
    pub(crate) fn until_there(&self, buffer: &Buffer, bytes: &[u8]) {
        let until = Instant::now() + BOUND;
        loop {
            let is_there = (0..bytes.len()).all(|at| buffer.memory.byte(at) == bytes[at]);
            if is_there {
                return;
            }
            assert!(Instant::now() < until, "the bytes did not come within {BOUND:?}");
            for at in 0..2 {
                assert!(self.poll(at).is_none(), "end {at} has one completion too many");
            }
        }
    }
}
