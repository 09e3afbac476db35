//! Two domains in one thread, without libfabric: the library of the provider is a part of this program.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use libfabric_sys::*;

/// The tag of all messages, and the bits of it that receives leave open.
pub(crate) const TAG: u64 = 0x0300_0000_0007;
pub(crate) const IGNORE: u64 = 0xffff_0000_0000;
/// The data of those that have some.
const DATA: u64 = 5;

/// The key of the memory that each end has registered.
const KEY: u64 = 7;

/// What an endpoint is opened with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    /// Receives name their sender.
    pub(crate) directed: bool,
    /// Receives leave no bit of the tag open.
    pub(crate) exact: bool,
    /// Completions only where they are wanted.
    pub(crate) selective: bool,
    /// Counters of sends and receives.
    pub(crate) counters: bool,
    /// Senders are reported.
    pub(crate) sources: bool,
}

/// Calls an entry of a table as the inline functions of the C headers do: nothing is checked.
macro_rules! call {
    ($object:expr, $table:ident.$entry:ident($($argument:expr),* $(,)?)) => {
        ((*(*$object).$table).$entry.unwrap_unchecked())($object, $($argument),*)
    };
}

/// One endpoint, with everything that it needs.
#[derive(Debug)]
pub(crate) struct End {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    vector: *mut fid_av,
    queue: *mut fid_cq,
    counters: [*mut fid_cntr; 2],
    memory: *mut fid_mr,
    endpoint: *mut fid_ep,
    peer: fi_addr_t,
    from: fi_addr_t,
    ignore: u64,
    names_senders: bool,
    bytes: &'static [u8],
    room: *mut u8,
}

/// Two endpoints that have met.
#[derive(Debug)]
pub(crate) struct Couple {
    pub(crate) ends: [Box<End>; 2],
}

impl Couple {
    /// Opens both, for messages of this length.
    pub(crate) fn meet(wants: &Wants, length: usize) -> Self {
        let mut ends = [(); 2].map(|()| Box::new(End::open(wants, length)));
        let names = [ends[0].name(), ends[1].name()];
        ends[0].insert(&names[1], wants);
        ends[1].insert(&names[0], wants);
        Self { ends }
    }

    /// Closes both endpoints.
    pub(crate) fn close(self) {
        self.ends.iter().for_each(|end| end.close());
    }
}

/// Checks the result of a call that must not fail.
fn good(call: &str, result: i32) {
    assert_eq!(result, 0, "{call}");
}

/// Opens an object by a call that writes its address.
fn opened<T>(call: &str, open: impl FnOnce(*mut *mut T) -> i32) -> *mut T {
    let mut object = ptr::null_mut();
    good(call, open(&raw mut object));
    object
}

/// The first entry of what the provider offers. It lives as long as the process.
fn entry(wants: &Wants) -> *mut fi_info {
    let provider = doorbell_fi::fi_prov_ini();
    // SAFETY: the provider's structure lives as long as the process.
    let getinfo = unsafe { (*provider).getinfo }.unwrap();
    let mut info = ptr::null_mut();
    let level = Level::NEWEST.version();
    // SAFETY: no hints are given.
    let result = unsafe { getinfo(level, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut info) };
    good("getinfo", result);
    // SAFETY: an entry with all its attributes, which is ours now.
    unsafe {
        (*(*info).domain_attr).threading = FI_THREAD_DOMAIN;
        let optional = [
            (wants.directed, FI_DIRECTED_RECV),
            (wants.sources, FI_SOURCE | FI_SOURCE_ERR),
        ];
        for (wanted, flag) in optional {
            (*info).caps &= !flag;
            if wanted {
                (*info).caps |= flag;
            }
        }
    }
    info
}

impl End {
    fn open(wants: &Wants, length: usize) -> Self {
        let info = entry(wants);
        let null = ptr::null_mut::<c_void>();
        // SAFETY: the provider's structure lives as long as the process.
        let open = unsafe { (*doorbell_fi::fi_prov_ini()).fabric }.unwrap();
        // SAFETY: the entry is whole.
        let fabric = opened("fi_fabric", |to| unsafe { open((*info).fabric_attr, to, null) });
        // SAFETY: the fabric is open, and the entry is whole.
        let domain = opened("fi_domain", |to| unsafe { fi_domain(fabric, info, to, null) });
        let mut attr = fi_av_attr {
            r#type: FI_AV_MAP,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let vector = opened("fi_av_open", |to| unsafe {
            fi_av_open(domain, &raw mut attr, to, null)
        });
        let mut attr = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            ..Layout::zeroed()
        };
        // SAFETY: the domain is open.
        let queue = opened("fi_cq_open", |to| unsafe {
            fi_cq_open(domain, &raw mut attr, to, null)
        });
        // SAFETY: the domain is open, and the entry is whole.
        let endpoint = opened("fi_endpoint", |to| unsafe { fi_endpoint(domain, info, to, null) });
        let selective = if wants.selective {
            FI_SELECTIVE_COMPLETION
        } else {
            0
        };
        let bind = |object: *mut fid, flags| {
            // SAFETY: both are open.
            good("fi_ep_bind", unsafe { fi_ep_bind(endpoint, object, flags) });
        };
        bind(queue.cast(), FI_TRANSMIT | selective);
        bind(queue.cast(), FI_RECV);
        bind(vector.cast(), 0);
        let mut counters = [ptr::null_mut(); 2];
        if wants.counters {
            for (counter, flag) in counters.iter_mut().zip([FI_SEND, FI_RECV]) {
                let mut attr: fi_cntr_attr = Layout::zeroed();
                // SAFETY: the domain is open.
                *counter = opened("fi_cntr_open", |to| unsafe {
                    fi_cntr_open(domain, &raw mut attr, to, null)
                });
                bind((*counter).cast(), flag);
            }
        }
        // SAFETY: the endpoint is open.
        good("fi_enable", unsafe { fi_enable(endpoint) });
        let room = vec![0; length].leak().as_mut_ptr();
        // SAFETY: the domain is open, and the memory lives as long as the process.
        let memory = opened("fi_mr_reg", |to| unsafe {
            let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
            fi_mr_reg(domain, room.cast(), length, access, 0, KEY, 0, to, null)
        });
        Self {
            fabric,
            domain,
            vector,
            queue,
            counters,
            memory,
            endpoint,
            peer: FI_ADDR_NOTAVAIL,
            from: FI_ADDR_UNSPEC,
            ignore: if wants.exact { 0 } else { IGNORE },
            names_senders: wants.sources,
            bytes: vec![7; length].leak(),
            room,
        }
    }

    fn name(&self) -> Vec<u8> {
        let mut name = vec![0; 256];
        let mut length = name.len();
        // SAFETY: the endpoint is open, and the memory has this length.
        let result = unsafe { fi_getname(self.endpoint.cast(), name.as_mut_ptr().cast(), &mut length) };
        good("fi_getname", result);
        name.truncate(length);
        name
    }

    fn insert(&mut self, name: &[u8], wants: &Wants) {
        // SAFETY: one address, and a place for its number.
        let count = unsafe {
            fi_av_insert(
                self.vector,
                name.as_ptr().cast(),
                1,
                &raw mut self.peer,
                0,
                ptr::null_mut(),
            )
        };
        assert_eq!(count, 1, "fi_av_insert");
        if wants.directed {
            self.from = self.peer;
        }
    }

    /// Posts a tagged receive.
    pub(crate) fn receive_tagged(&self) {
        let (room, length, null) = (self.room.cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        let result = unsafe {
            call!(
                self.endpoint,
                tagged.recv(room, length, null, self.from, TAG, self.ignore, null)
            )
        };
        assert_eq!(result, 0, "fi_trecv");
    }

    /// Posts a receive.
    pub(crate) fn receive(&self) {
        let (room, length, null) = (self.room.cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        let result = unsafe { call!(self.endpoint, msg.recv(room, length, null, self.from, null)) };
        assert_eq!(result, 0, "fi_recv");
    }

    /// Calls until it is not refused for the moment.
    fn retry(&self, call: impl Fn() -> isize) {
        loop {
            match call() {
                0 => return,
                again if again == -(FI_EAGAIN as isize) => self.advance(),
                other => panic!("a call is refused: {other}"),
            }
        }
    }

    /// Sends by fi_tsend.
    pub(crate) fn send_tagged(&self) {
        let (from, length, null) = (self.bytes.as_ptr().cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                tagged.send(from, length, null, self.peer, TAG, null)
            )
        });
    }

    /// Sends by fi_send.
    pub(crate) fn send(&self) {
        let (from, length, null) = (self.bytes.as_ptr().cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe { call!(self.endpoint, msg.send(from, length, null, self.peer, null)) });
    }

    /// Sends by fi_tinject.
    pub(crate) fn inject_tagged(&self) {
        let (from, length) = (self.bytes.as_ptr().cast(), self.bytes.len());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe { call!(self.endpoint, tagged.inject(from, length, self.peer, TAG)) });
    }

    /// Sends by fi_tsenddata.
    pub(crate) fn send_tagged_data(&self) {
        let (from, length, null) = (self.bytes.as_ptr().cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                tagged.senddata(from, length, null, DATA, self.peer, TAG, null)
            )
        });
    }

    /// Writes into the peer's memory by fi_write.
    pub(crate) fn write(&self) {
        let (from, length, null) = (self.bytes.as_ptr().cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                rma.write(from, length, null, self.peer, 0, KEY, null)
            )
        });
    }

    /// Writes by fi_writedata.
    pub(crate) fn write_data(&self) {
        let (from, length, null) = (self.bytes.as_ptr().cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                rma.writedata(from, length, null, DATA, self.peer, 0, KEY, null)
            )
        });
    }

    /// Writes by fi_inject_write.
    pub(crate) fn inject_write(&self) {
        let (from, length) = (self.bytes.as_ptr().cast(), self.bytes.len());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe { call!(self.endpoint, rma.inject(from, length, self.peer, 0, KEY)) });
    }

    /// Reads the peer's memory by fi_read.
    pub(crate) fn read(&self) {
        let (room, length, null) = (self.room.cast(), self.bytes.len(), ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                rma.read(room, length, null, self.peer, 0, KEY, null)
            )
        });
    }

    /// Adds to words of the peer's memory by fi_atomic.
    pub(crate) fn atomic(&self) {
        let (from, count, null) = (self.bytes.as_ptr().cast(), self.bytes.len() / 8, ptr::null_mut());
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                atomic.write(from, count, null, self.peer, 0, KEY, FI_UINT64, FI_SUM, null)
            )
        });
    }

    /// Adds by fi_inject_atomic.
    pub(crate) fn inject_atomic(&self) {
        let (from, count) = (self.bytes.as_ptr().cast(), self.bytes.len() / 8);
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                atomic.inject(from, count, self.peer, 0, KEY, FI_UINT64, FI_SUM)
            )
        });
    }

    /// Does this operation by fi_fetch_atomic.
    pub(crate) fn fetch_atomic(&self, op: fi_op) {
        let (from, count, null) = (self.bytes.as_ptr().cast(), self.bytes.len() / 8, ptr::null_mut());
        let (to, kind) = (self.room.cast(), FI_UINT64);
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                atomic.readwrite(from, count, null, to, null, self.peer, 0, KEY, kind, op, null)
            )
        });
    }

    /// Compares and swaps by fi_compare_atomic.
    pub(crate) fn compare_atomic(&self) {
        let (from, count, null) = (self.bytes.as_ptr().cast(), self.bytes.len() / 8, ptr::null_mut());
        let (to, kind, op, peer) = (self.room.cast(), FI_UINT64, FI_CSWAP_NE, self.peer);
        // SAFETY: the memory lives as long as the process.
        self.retry(|| unsafe {
            call!(
                self.endpoint,
                atomic.compwrite(
                    from, count, null, from, null, to, null, peer, 0, KEY, kind, op, null
                )
            )
        });
    }

    /// Makes progress; no entry is read.
    pub(crate) fn advance(&self) {
        // SAFETY: no entry is read.
        unsafe { call!(self.queue, ops.read(ptr::null_mut(), 0)) };
    }

    /// Reads the queue until it has an entry; the other end makes progress meanwhile.
    pub(crate) fn read_entry(&self, other: &Self) {
        let mut entry = MaybeUninit::<fi_cq_tagged_entry>::uninit();
        let to = entry.as_mut_ptr().cast();
        let mut sender = FI_ADDR_NOTAVAIL;
        loop {
            let read = if self.names_senders {
                // SAFETY: room for one entry of the queue's format, and for its sender.
                unsafe { call!(self.queue, ops.readfrom(to, 1, &raw mut sender)) }
            } else {
                // SAFETY: room for one entry of the queue's format.
                unsafe { call!(self.queue, ops.read(to, 1)) }
            };
            match read {
                1 => return,
                again if again == -(FI_EAGAIN as isize) => other.advance(),
                other => panic!("fi_cq_read: {other}"),
            }
        }
    }

    fn close(&self) {
        let all = [
            self.endpoint.cast(),
            self.counters[0].cast(),
            self.counters[1].cast(),
            self.memory.cast(),
            self.queue.cast(),
            self.vector.cast::<fid>(),
            self.domain.cast(),
            self.fabric.cast(),
        ];
        for object in all.into_iter().filter(|object| !object.is_null()) {
            // SAFETY: it was opened, and is closed once.
            good("fi_close", unsafe { fi_close(object) });
        }
    }
}
