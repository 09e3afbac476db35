//! Owners of the library's objects. Each keeps what it was made of, so that the order of destruction is
//! always right; in a child of `fork` nothing is destroyed, since the objects are the parent's.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use doorbell_fabric::memory::{Region, RegionSlice};

use super::abi::{
    self, AhAttr, AsyncEvent, ContextOps, DeviceAttr, GidEntry, PortAttr, QpAttr, QpCap, QpInitAttr, RawGid,
    RecvWr, SendWr, Sge, Wc,
};
use super::library::{Library, file_of};
use super::{numbers, said};
use crate::error::VerbsError;

/// What a device of the library's list is called, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The name of the device: `mlx5_0`.
    pub(crate) name: String,
    /// The name of its device file: `uverbs0`.
    pub(crate) file: String,
    /// Its folder in the system's tree of devices.
    pub(crate) path: String,
    pub(crate) node_type: c_int,
    pub(crate) transport: c_int,
}

/// The devices that the library lists, and what it printed meanwhile.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) list: Vec<Listed>,
    pub(crate) said: String,
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes
        .iter()
        .map(|byte| *byte as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Library {
    /// The devices that are there now.
    ///
    /// # Errors
    /// If the library cannot list them; an empty list is none.
    pub(crate) fn devices(&self) -> Result<Devices, VerbsError> {
        let (list, said) = said::caught(|| List::new(self));
        let list = list?;
        let list = list.iter().map(|device| {
            // SAFETY: an entry of the list, which is kept until the end of this function.
            let device = unsafe { &*device };
            Listed {
                name: text(&device.name),
                file: text(&device.dev_name),
                path: text(&device.ibdev_path),
                node_type: device.node_type,
                transport: device.transport_type,
            }
        });
        Ok(Devices {
            list: list.collect(),
            said,
        })
    }

    /// Opens the device of this name.
    ///
    /// # Errors
    /// If the library does not list it, or the system refuses it.
    pub(crate) fn open(&self, name: &str) -> Result<Arc<Open>, VerbsError> {
        let (list, _) = said::caught(|| List::new(self));
        let list = list?;
        let found = list.iter().find(|device| {
            // SAFETY: an entry of the list, which is kept until the device is open.
            let device = unsafe { &**device };
            text(&device.name) == name
        });
        let device = found.ok_or_else(|| VerbsError::NoDevice {
            device: name.to_owned(),
            reason: "no provider of the library drives it, or it is gone".to_owned(),
        })?;
        // SAFETY: as above.
        let context = unsafe { (self.functions.open_device)(device) };
        if context.is_null() {
            return Err(failed("ibv_open_device", name, io::Error::last_os_error()));
        }
        Open::of(self.clone(), name, context)
    }
}

/// The library's list, given back at the end.
struct List<'a> {
    library: &'a Library,
    start: *mut *mut abi::Device,
    count: usize,
}

impl<'a> List<'a> {
    fn new(library: &'a Library) -> Result<Self, VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: the count is written; the list is the library's until it is given back.
        let start = unsafe { (library.functions.get_device_list)(&raw mut count) };
        if start.is_null() {
            let error = io::Error::last_os_error();
            return Err(failed("ibv_get_device_list", "this system", error));
        }
        Ok(Self {
            library,
            start,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = *mut abi::Device> + '_ {
        let entries = (0..self.count).map(|at| {
            let entry = self.start.wrapping_add(at);
            // SAFETY: the library wrote this many entries, and a null after them.
            unsafe { *entry }
        });
        entries.take_while(|device| !device.is_null())
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list of the library, which is not used any more.
        unsafe { (self.library.functions.free_device_list)(self.start) };
    }
}

fn failed(call: &'static str, on: &str, error: io::Error) -> VerbsError {
    VerbsError::Call {
        call,
        on: on.to_owned(),
        error,
    }
}

/// The value of a function that returns an error number.
fn done(number: c_int) -> io::Result<()> {
    match number {
        0 => Ok(()),
        // Some return -1 and set errno.
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// The value of a function that returns an object.
fn made<T>(object: *mut T) -> io::Result<*mut T> {
    if object.is_null() {
        return Err(io::Error::last_os_error());
    }
    Ok(object)
}

/// An asynchronous event, acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: c_int,
    /// The number of the port, where the event is about one.
    pub(crate) port: Option<u8>,
    /// The address of the object, where it is about a queue or a queue pair: to be compared with those that
    /// are alive.
    pub(crate) object: u64,
}

/// The functions that queues are driven by: those of the device's provider.
#[derive(Clone, Copy)]
struct Fast {
    poll_cq: unsafe extern "C" fn(*mut abi::Cq, c_int, *mut Wc) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut abi::Cq, c_int) -> c_int,
    post_send: unsafe extern "C" fn(*mut abi::Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut abi::Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    post_srq_recv: Option<unsafe extern "C" fn(*mut abi::Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    /// How memory windows are made and ended, where the provider has them.
    windows: Option<(AllocMw, DeallocMw)>,
}

type AllocMw = unsafe extern "C" fn(*mut abi::Pd, c_int) -> *mut abi::Mw;
type DeallocMw = unsafe extern "C" fn(*mut abi::Mw) -> c_int;

impl Fast {
    fn of(ops: &ContextOps) -> Option<Self> {
        Some(Self {
            poll_cq: ops.poll_cq?,
            req_notify_cq: ops.req_notify_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            post_srq_recv: ops.post_srq_recv,
            windows: ops.alloc_mw.zip(ops.dealloc_mw),
        })
    }
}

/// An open device.
pub(crate) struct Open {
    library: Library,
    name: String,
    context: *mut abi::Context,
    fast: Fast,
    /// The process that opened it.
    process: u32,
}

// SAFETY: all functions of the library may be called by any thread; what is mutable is behind its own locks.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl fmt::Debug for Open {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Open({})", self.name)
    }
}

impl Open {
    fn of(library: Library, name: &str, context: *mut abi::Context) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the library has just made it; its provider has set the table.
        let fast = Fast::of(unsafe { &(*context).ops });
        let Some(fast) = fast else {
            // SAFETY: as above; it is not used any more.
            unsafe { (library.functions.close_device)(context) };
            return Err(VerbsError::Nonsense {
                device: name.to_owned(),
                what: "queues without functions".to_owned(),
            });
        };
        let open = Arc::new(Self {
            library,
            name: name.to_owned(),
            context,
            fast,
            process: std::process::id(),
        });
        open.unblock()?;
        Ok(open)
    }

    /// Has reading an event not wait for one.
    fn unblock(&self) -> Result<(), VerbsError> {
        rustix::io::ioctl_fionbio(self.events(), true)
            .map_err(|error| failed("ioctl", &self.name, error.into()))
    }

    /// The name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The file of the provider that drives it: where its functions are.
    pub(crate) fn provider(&self) -> Option<PathBuf> {
        file_of(self.fast.poll_cq as *const c_void)
    }

    /// Whether the objects are this process's, and not those of a parent.
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Readable when there is an asynchronous event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open.
        let fd = unsafe { &*self.context }.async_fd;
        // SAFETY: the descriptor is open as long as the device is, which is as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next asynchronous event, if there is one.
    pub(crate) fn event(&self) -> Option<Event> {
        let mut event = AsyncEvent::zeroed();
        // SAFETY: the device is open, and the event is written.
        if unsafe { (self.library.functions.get_async_event)(self.context, &raw mut event) } != 0 {
            return None;
        }
        let kind = event.event_type;
        let is_ports = matches!(
            kind,
            numbers::EVENT_PORT_ACTIVE
                ..=numbers::EVENT_SM_CHANGE | numbers::EVENT_CLIENT_REREGISTER | numbers::EVENT_GID_CHANGE
        );
        let port = is_ports.then_some(event.element as u32 as u8);
        // SAFETY: the event that was read, once.
        unsafe { (self.library.functions.ack_async_event)(&raw mut event) };
        let object = event.element;
        Some(Event { kind, port, object })
    }

    /// What the device can do.
    ///
    /// # Errors
    /// If the library cannot query the device.
    pub(crate) fn attributes(&self) -> Result<DeviceAttr, VerbsError> {
        let mut found = DeviceAttr::zeroed();
        // SAFETY: the device is open, and the structure is written.
        let result = unsafe { (self.library.functions.query_device)(self.context, &raw mut found) };
        done(result).map_err(|error| failed("ibv_query_device", &self.name, error))?;
        Ok(found)
    }

    /// Whether the kernel copies registered pages at fork, so that children miss none of them.
    pub(crate) fn copies_at_fork(&self) -> bool {
        self.library.copies_at_fork()
    }

    /// Whether the provider makes memory windows.
    pub(crate) fn makes_windows(&self) -> bool {
        self.fast.windows.is_some()
    }

    /// The state of a port.
    ///
    /// # Errors
    /// If the library cannot query the port, or there is no such port.
    pub(crate) fn port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        let mut found = PortAttr::zeroed();
        // SAFETY: the device is open; the function writes the structure as far as it is declared here.
        let result = unsafe { (self.library.functions.query_port)(self.context, port, &raw mut found) };
        done(result).map_err(|error| failed("ibv_query_port", &format!("{}:{port}", self.name), error))?;
        Ok(found)
    }

    /// The table of GIDs of all ports, `most` entries at most; `None` where the library has no such call.
    ///
    /// # Errors
    /// If the library cannot read the table.
    pub(crate) fn gid_table(&self, most: usize) -> Option<Result<Vec<GidEntry>, VerbsError>> {
        let query = self.library.functions.query_gid_table?;
        let mut entries = vec![GidEntry::zeroed(); most];
        // SAFETY: the device is open; `most` entries of this size may be written.
        let count = unsafe { query(self.context, entries.as_mut_ptr(), most, 0, size_of::<GidEntry>()) };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::from_raw_os_error(-count as i32);
            return Some(Err(failed("ibv_query_gid_table", &self.name, error)));
        };
        entries.truncate(count);
        Some(Ok(entries))
    }

    /// The GID at an index of a port's table.
    pub(crate) fn gid(&self, port: u8, index: c_int) -> Option<[u8; 16]> {
        let mut gid = RawGid([0; 16]);
        // SAFETY: the device is open, and the GID is written.
        let result = unsafe { (self.library.functions.query_gid)(self.context, port, index, &raw mut gid) };
        (result == 0).then_some(gid.0)
    }

    /// The partition key at an index of a port's table.
    pub(crate) fn partition(&self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0;
        let index = c_int::from(index);
        // SAFETY: the device is open, and the key is written.
        let result = unsafe { (self.library.functions.query_pkey)(self.context, port, index, &raw mut key) };
        (result == 0).then(|| u16::from_be(key))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: everything that was made of it keeps it, so nothing is left. A refusal changes nothing.
            unsafe { (self.library.functions.close_device)(self.context) };
        }
    }
}

/// Declares the owner of an object: what it was made of, and how it ends.
macro_rules! owner {
    ($(#[$meta:meta])* $name:ident($raw:ident), destroyed by $destroy:ident, keeps { $($field:ident: $type:ty),* }) => {
        $(#[$meta])*
        pub(crate) struct $name {
            raw: *mut abi::$raw,
            open: Arc<Open>,
            $(#[allow(dead_code)] $field: $type,)* // some are only kept alive
        }

        // SAFETY: all functions of the library may be called by any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; what is driven by one thread alone takes `&mut self`.
        unsafe impl Sync for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!(stringify!($name), " of {}"), self.open.name)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if self.open.is_ours() && !self.raw.is_null() {
                    // SAFETY: made by the library, and ended once; what was made of it keeps it, so nothing
                    // uses it any more. A refusal (EIO, of a device that is gone) changes nothing.
                    unsafe { (self.open.library.functions.$destroy)(self.raw) };
                }
            }
        }
    };
}

owner! {
    /// A protection domain.
    Domain(Pd), destroyed by dealloc_pd, keeps {}
}
owner! {
    /// A channel of completion events.
    Channel(CompChannel), destroyed by destroy_comp_channel, keeps {}
}
owner! {
    /// A completion queue.
    Completions(Cq), destroyed by destroy_cq, keeps { channel: Arc<Channel>, entries: usize }
}
owner! {
    /// Memory that the device may read and write.
    Registered(Mr), destroyed by dereg_mr, keeps { domain: Arc<Domain>, memory: RegionSlice }
}
owner! {
    /// An address that datagrams are sent to.
    AddressHandle(Ah), destroyed by destroy_ah, keeps { domain: Arc<Domain> }
}
owner! {
    /// A queue pair of datagrams, with the memory that its requests name.
    DatagramPair(Qp), destroyed by destroy_qp, keeps {
        domain: Arc<Domain>,
        sent: Arc<Completions>,
        received: Arc<Completions>,
        memory: Arc<Registered>,
        granted: QpCap
    }
}

mod reliable;
pub(crate) use reliable::{Beneath, DeviceAtomic, Held, Pinned, Requests, Window};
pub(crate) use reliable::{PIECES, Place, Poster, ReceiveList, ReliablePair, ReliableSizes, SharedQueue};

impl Domain {
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn new(open: &Arc<Open>) -> Result<Arc<Self>, VerbsError> {
        // Before anything is registered in it. A refusal leaves children without protection, as the library's
        // other users in this process have decided; loans are not registered then.
        open.library.make_fork_safe();
        // SAFETY: the device is open.
        let raw = made(unsafe { (open.library.functions.alloc_pd)(open.context) });
        Ok(Arc::new(Self {
            raw: raw.map_err(|error| failed("ibv_alloc_pd", &open.name, error))?,
            open: Arc::clone(open),
        }))
    }
}

impl Domain {
    /// The name of its device.
    pub(crate) fn device(&self) -> &str {
        &self.open.name
    }

    /// Makes a queue pair; what is granted is written to the attributes. Which bytes may go with a request no
    /// query reports, and some devices refuse what they cannot grant: then fewer are requested.
    ///
    /// # Errors
    /// If the system refuses it, however few they are.
    fn create_pair(&self, attributes: &mut QpInitAttr) -> Result<*mut abi::Qp, VerbsError> {
        let (wanted, mut first) = (attributes.cap, None);
        let mut inline = wanted.max_inline_data;
        loop {
            attributes.cap = QpCap {
                max_inline_data: inline,
                ..wanted
            };
            // SAFETY: the domain and the queues that the attributes name are alive: the caller has them. The
            // attributes are read, and what is granted is written.
            let raw = made(unsafe { (self.open.library.functions.create_qp)(self.raw, attributes) });
            match raw {
                Ok(raw) => {
                    // More than was requested is no promise.
                    let granted = &mut attributes.cap.max_inline_data;
                    *granted = wanted.max_inline_data.min(*granted);
                    return Ok(raw);
                }
                Err(error) => {
                    let first = first.get_or_insert(error);
                    if inline == 0 {
                        let error =
                            io::Error::from_raw_os_error(first.raw_os_error().unwrap_or(libc::EINVAL));
                        return Err(failed("ibv_create_qp", &self.open.name, error));
                    }
                    inline = if inline < 64 { 0 } else { inline / 2 };
                }
            }
        }
    }
}

impl Channel {
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn new(open: &Arc<Open>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the device is open.
        let raw = made(unsafe { (open.library.functions.create_comp_channel)(open.context) });
        let channel = Self {
            raw: raw.map_err(|error| failed("ibv_create_comp_channel", &open.name, error))?,
            open: Arc::clone(open),
        };
        rustix::io::ioctl_fionbio(channel.fd(), true)
            .map_err(|error| failed("ioctl", &open.name, error.into()))?;
        Ok(Arc::new(channel))
    }

    /// Readable when a queue that was armed has a completion.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open.
        let fd = unsafe { &*self.raw }.fd;
        // SAFETY: the descriptor is open as long as the channel is, which is as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Reads and acknowledges all events.
    pub(crate) fn drain(&self) {
        let functions = &self.open.library.functions;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        loop {
            // SAFETY: the channel is open, and both pointers are written.
            if unsafe { (functions.get_cq_event)(self.raw, &raw mut queue, &raw mut context) } != 0 {
                return;
            }
            // SAFETY: a queue of an event is alive: destroying it waits for this.
            unsafe { (functions.ack_cq_events)(queue, 1) };
        }
    }
}

impl Completions {
    /// A queue of at least `entries`.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn new(channel: &Arc<Channel>, entries: usize) -> Result<Arc<Self>, VerbsError> {
        let open = &channel.open;
        let wanted = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the device and the channel are open.
        let raw = made(unsafe {
            (open.library.functions.create_cq)(open.context, wanted, ptr::null_mut(), channel.raw, 0)
        });
        let raw = raw.map_err(|error| failed("ibv_create_cq", &open.name, error))?;
        // SAFETY: the library has just made it.
        let granted = unsafe { (*raw).cqe };
        let queue = Self {
            raw,
            open: Arc::clone(open),
            channel: Arc::clone(channel),
            entries: usize::try_from(granted).unwrap_or(0),
        };
        if queue.entries < entries {
            return Err(VerbsError::Nonsense {
                device: open.name.clone(),
                what: format!("a completion queue of {granted} entries where {entries} were requested"),
            });
        }
        Ok(Arc::new(queue))
    }

    /// Takes completions off the queue; returns how many, at most as many as there is room for.
    ///
    /// # Errors
    /// If the queue is broken.
    #[inline]
    pub(crate) fn poll(&self, into: &mut [Wc]) -> Result<usize, Broken> {
        let room = into.len() as c_int;
        // SAFETY: the queue is alive, and at most `room` entries are written.
        let count = unsafe { (self.open.fast.poll_cq)(self.raw, room, into.as_mut_ptr()) };
        match usize::try_from(count) {
            Ok(count) if count <= into.len() => Ok(count),
            _ => Err(Broken),
        }
    }

    /// Drops every completion that is there; stops at as many as the queue holds.
    pub(crate) fn empty(&self) {
        let mut found = [Wc::zeroed(); RECEIVES];
        let mut left = self.entries.div_ceil(found.len()) + 1;
        while left > 0 && self.poll(&mut found).is_ok_and(|count| count > 0) {
            left -= 1;
        }
    }

    /// Whether an event is about this queue.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.raw.addr() as u64 == event.object
    }

    /// Has the next completion raise an event.
    pub(crate) fn arm(&self) {
        // SAFETY: the queue is alive.
        unsafe { (self.open.fast.req_notify_cq)(self.raw, 0) };
    }
}

/// A queue that cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Registered {
    /// Registers memory of our own, for the device to read and write.
    ///
    /// # Errors
    /// If the system refuses it: more locked memory than the limit allows, mostly.
    pub(crate) fn new(domain: &Arc<Domain>, region: &Region) -> Result<Arc<Self>, VerbsError> {
        Self::with(domain, region.whole(), numbers::LOCAL_WRITE)
    }

    /// Registers memory for a peer to write.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn written(domain: &Arc<Domain>, memory: RegionSlice) -> Result<Arc<Self>, VerbsError> {
        Self::with(domain, memory, numbers::LOCAL_WRITE | numbers::REMOTE_WRITE)
    }

    fn with(domain: &Arc<Domain>, memory: RegionSlice, access: c_int) -> Result<Arc<Self>, VerbsError> {
        let open = &domain.open;
        let start = memory.as_mut_ptr().cast();
        // SAFETY: the domain is alive; the memory is mapped for as long as the slice that is kept, and is
        // read and written by copies alone.
        let raw = made(unsafe { (open.library.functions.reg_mr)(domain.raw, start, memory.len(), access) });
        Ok(Arc::new(Self {
            raw: raw.map_err(|error| failed("ibv_reg_mr", &open.name, error))?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            memory,
        }))
    }

    /// Returns the registered memory.
    #[inline]
    pub(crate) fn memory(&self) -> &RegionSlice {
        &self.memory
    }

    /// The key by which a peer names it.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { (*self.raw).rkey }
    }

    /// The piece of it that requests name over and over; `None` where it is not inside.
    pub(crate) fn named(&self, at: usize, length: usize) -> Option<Piece> {
        self.piece(at, length).map(Piece)
    }

    /// The piece of it that a request names; `None` where it is not inside.
    #[inline]
    fn piece(&self, at: usize, length: usize) -> Option<Sge> {
        let end = at.checked_add(length)?;
        if end > self.memory.len() {
            return None;
        }
        Some(Sge {
            addr: self.memory.address() as u64 + at as u64,
            length: u32::try_from(length).ok()?,
            // SAFETY: the registration is alive.
            lkey: unsafe { (*self.raw).lkey },
        })
    }
}

/// A piece of registered memory, as a request names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece(Sge);

impl AddressHandle {
    /// May wait for the kernel, which looks the neighbour up: the caller knows that it has the answer.
    ///
    /// # Errors
    /// If the system refuses it, or the neighbour has not answered.
    pub(crate) fn new(domain: &Arc<Domain>, mut to: AhAttr) -> io::Result<Self> {
        let open = &domain.open;
        // SAFETY: the domain is alive; the attributes are read.
        let raw = made(unsafe { (open.library.functions.create_ah)(domain.raw, &raw mut to) })?;
        Ok(Self {
            raw,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
        })
    }
}

/// What a queue pair is to be made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Sends under way at a time.
    pub(crate) sends: usize,
    /// Receives under way at a time.
    pub(crate) receives: usize,
    /// Bytes that go with a request itself.
    pub(crate) inline: usize,
}

/// The address handles of a rail's peers, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    list: Vec<Option<AddressHandle>>,
}

impl Handles {
    /// Sets the handle of a peer, or takes it away; returns the one that was there.
    pub(crate) fn set(&mut self, peer: u32, handle: Option<AddressHandle>) -> Option<AddressHandle> {
        let at = peer as usize;
        if self.list.len() <= at {
            self.list.resize_with(at + 1, || None);
        }
        std::mem::replace(&mut self.list[at], handle)
    }

    /// Whether a peer has one.
    #[inline]
    pub(crate) fn has(&self, peer: u32) -> bool {
        self.get(peer).is_some()
    }

    #[inline]
    fn get(&self, peer: u32) -> Option<*mut abi::Ah> {
        self.list.get(peer as usize)?.as_ref().map(|handle| handle.raw)
    }
}

/// Where a datagram goes: the peer by its number, and its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) peer: u32,
    pub(crate) pair: u32,
    pub(crate) key: u32,
}

impl DatagramPair {
    /// Makes a queue pair of datagrams, in state RESET, with a completion queue for each direction.
    ///
    /// # Errors
    /// If the system refuses it, or grants less than was requested.
    pub(crate) fn new(
        memory: &Arc<Registered>,
        channel: &Arc<Channel>,
        sizes: Sizes,
    ) -> Result<Arc<Self>, VerbsError> {
        let domain = &memory.domain;
        let open = &domain.open;
        let (sent, received) = (
            Completions::new(channel, sizes.sends)?,
            Completions::new(channel, sizes.receives)?,
        );
        let mut attributes = QpInitAttr::zeroed();
        (attributes.send_cq, attributes.recv_cq) = (sent.raw, received.raw);
        attributes.qp_type = numbers::QPT_UD;
        attributes.cap = QpCap {
            max_send_wr: sizes.sends as u32,
            max_recv_wr: sizes.receives as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: sizes.inline as u32,
        };
        let pair = Self {
            raw: domain.create_pair(&mut attributes)?,
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            sent,
            received,
            memory: Arc::clone(memory),
            granted: attributes.cap,
        };
        let granted = (
            pair.granted.max_send_wr as usize,
            pair.granted.max_recv_wr as usize,
        );
        if granted.0 < sizes.sends || granted.1 < sizes.receives {
            return Err(VerbsError::Nonsense {
                device: open.name.clone(),
                what: format!(
                    "a queue pair of {} sends and {} receives where {} and {} were requested",
                    granted.0, granted.1, sizes.sends, sizes.receives
                ),
            });
        }
        Ok(Arc::new(pair))
    }

    /// What the system granted: sends and receives that can wait, and bytes that go with a request itself.
    pub(crate) fn granted(&self) -> Sizes {
        Sizes {
            sends: self.granted.max_send_wr as usize,
            receives: self.granted.max_recv_wr as usize,
            inline: self.granted.max_inline_data as usize,
        }
    }

    /// Whether an event is about this queue pair.
    pub(crate) fn is_meant(&self, event: &Event) -> bool {
        self.raw.addr() as u64 == event.object
    }

    /// Returns the queue pair's number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number does not change.
        unsafe { (*self.raw).qp_num }
    }

    /// The completions of what was received.
    #[inline]
    pub(crate) fn received(&self) -> &Completions {
        &self.received
    }

    /// The completions of what was sent.
    #[inline]
    pub(crate) fn sent(&self) -> &Completions {
        &self.sent
    }

    /// Changes its state.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn modify(&self, mut attributes: QpAttr, mask: c_int) -> Result<(), VerbsError> {
        let open = &self.open;
        // SAFETY: the queue pair is alive; the attributes are read.
        let result = unsafe { (open.library.functions.modify_qp)(self.raw, &raw mut attributes, mask) };
        done(result).map_err(|error| failed("ibv_modify_qp", &open.name, error))
    }

    /// Has it receive what is sent to a multicast group; `lid` is the group's inside an InfiniBand subnet.
    /// It has to leave the group again before it ends.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn attach(&self, group: [u8; 16], lid: u16) -> Result<(), VerbsError> {
        let group = RawGid(group);
        // SAFETY: the queue pair is alive; the GID is read.
        let result = unsafe { (self.open.library.functions.attach_mcast)(self.raw, &raw const group, lid) };
        done(result).map_err(|error| failed("ibv_attach_mcast", &self.open.name, error))
    }

    /// Takes it out of a multicast group. A refusal changes nothing: then it is not in the group, or the
    /// device is gone.
    pub(crate) fn detach(&self, group: [u8; 16], lid: u16) {
        if self.open.is_ours() {
            let group = RawGid(group);
            // SAFETY: the queue pair is alive; the GID is read.
            unsafe { (self.open.library.functions.detach_mcast)(self.raw, &raw const group, lid) };
        }
    }

    /// Posts receives into `length` bytes of its memory each, by their numbers and places, with one doorbell
    /// for up to 16 of them.
    ///
    /// # Errors
    /// If the queue is full, or the memory is not inside.
    pub(crate) fn receive(&self, list: &[(u64, usize)], length: usize) -> Result<(), Broken> {
        list.chunks(RECEIVES).try_for_each(|list| {
            let taken = post_receives(list, (&self.memory, length), |first, bad| {
                // SAFETY: the queue pair is alive; the list and its pieces are read before the call returns;
                // the memory that they name is registered, and kept by this queue pair.
                unsafe { (self.open.fast.post_recv)(self.raw, first, bad) }
            });
            if taken == list.len() { Ok(()) } else { Err(Broken) }
        })
    }
}

/// Receives that are posted by one call.
const RECEIVES: usize = 16;

/// Has `post` post receives into `length` bytes of memory each, by their numbers and places, up to 16 of
/// them; returns how many were taken. It gets a list that ends with a null, and where the first one that is
/// refused is to be written.
fn post_receives(
    list: &[(u64, usize)],
    (memory, length): (&Registered, usize),
    post: impl FnOnce(*mut RecvWr, *mut *mut RecvWr) -> c_int,
) -> usize {
    let list = &list[..list.len().min(RECEIVES)];
    let mut pieces = [Sge::zeroed(); RECEIVES];
    let mut requests = [RecvWr::zeroed(); RECEIVES];
    let (first, first_piece) = (requests.as_mut_ptr(), pieces.as_mut_ptr());
    for (index, (id, at)) in list.iter().enumerate() {
        let Some(piece) = memory.piece(*at, length) else {
            return 0;
        };
        pieces[index] = piece;
        let is_last = index + 1 == list.len();
        requests[index] = RecvWr {
            wr_id: *id,
            next: if is_last {
                ptr::null_mut()
            } else {
                first.wrapping_add(index + 1)
            },
            sg_list: first_piece.wrapping_add(index),
            num_sge: 1,
        };
    }
    if list.is_empty() {
        return 0;
    }
    let mut bad: *mut RecvWr = ptr::null_mut();
    match post(first, &raw mut bad) {
        0 => list.len(),
        _ => taken(first.addr(), bad.addr(), size_of::<RecvWr>()).min(list.len()),
    }
}

/// How many requests of a list were taken, by the addresses of the first and of the one that was refused.
fn taken(first: usize, bad: usize, size: usize) -> usize {
    if bad == 0 {
        0
    } else {
        bad.wrapping_sub(first) / size
    }
}

/// Requests of a queue pair that were prepared and not posted, each with up to `N` pieces of memory.
struct SendList<const N: usize> {
    requests: Box<[SendWr]>,
    pieces: Box<[[Sge; N]]>,
    waiting: usize,
}

// SAFETY: the pointers in its requests are to its own memory or to objects of the library, and are written
// before each use.
unsafe impl<const N: usize> Send for SendList<N> {}

impl<const N: usize> SendList<N> {
    /// Has room for as many requests as the queue pair was made for.
    fn new(sends: usize) -> Self {
        Self {
            requests: vec![SendWr::zeroed(); sends].into(),
            pieces: vec![[Sge::zeroed(); N]; sends].into(),
            waiting: 0,
        }
    }

    /// Prepares the next request, with its first piece; those behind it are what a request before has left.
    ///
    /// # Errors
    /// If as many wait as the queue holds.
    #[inline(always)]
    fn next(&mut self, id: u64, first: Sge) -> Result<(&mut SendWr, &mut [Sge; N]), Broken> {
        let index = self.waiting;
        let (Some(request), Some(pieces)) = (self.requests.get_mut(index), self.pieces.get_mut(index)) else {
            return Err(Broken);
        };
        pieces[0] = first;
        request.wr_id = id;
        self.waiting += 1;
        Ok((request, pieces))
    }

    /// Has the last one that was prepared report when it is done.
    #[inline]
    fn signal_last(&mut self) {
        if let Some(last) = self.waiting.checked_sub(1) {
            self.requests[last].send_flags |= numbers::SEND_SIGNALED;
        }
    }

    /// Chains the first `count` requests, but for the end of the last one.
    #[inline(never)]
    fn chain(&mut self, count: usize) {
        let (requests, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for (at, request) in self.requests.iter_mut().take(count).enumerate() {
            request.sg_list = pieces.wrapping_add(at).cast();
            request.next = requests.wrapping_add(at + 1);
        }
    }

    /// Posts the first `count` of what was prepared as one list, with one doorbell; returns how many requests
    /// were taken. The others are forgotten.
    ///
    /// # Safety
    /// The queue pair is alive and of this device, and so is each object that a request points to. Bytes that
    /// go with a request may be read.
    #[inline(always)]
    unsafe fn post(&mut self, open: &Open, pair: *mut abi::Qp, count: usize) -> usize {
        let count = std::mem::take(&mut self.waiting).min(count);
        if count == 0 {
            return 0;
        }
        if count > 1 {
            self.chain(count);
        }
        let (requests, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        if let Some(last) = self.requests.get_mut(count - 1) {
            last.sg_list = pieces.wrapping_add(count - 1).cast();
            last.next = ptr::null_mut();
        }
        let mut bad: *mut SendWr = ptr::null_mut();
        // SAFETY: the caller's promise. The list of `count` requests ends with a null; it and its pieces are
        // read before the call returns. Memory is named by its key: the device refuses what is not
        // registered.
        let result = unsafe { (open.fast.post_send)(pair, requests, &raw mut bad) };
        match result {
            0 => count,
            _ => taken(requests.addr(), bad.addr(), size_of::<SendWr>()).min(count),
        }
    }
}

/// The sending half of a queue pair: what was prepared and not announced.
pub(crate) struct Sender {
    pair: Arc<DatagramPair>,
    list: SendList<1>,
}

impl Sender {
    /// Makes the half, for as many sends as the queue pair was made for.
    pub(crate) fn new(pair: &Arc<DatagramPair>, sends: usize) -> Self {
        Self {
            pair: Arc::clone(pair),
            list: SendList::new(sends),
        }
    }

    /// Its queue pair.
    #[inline]
    pub(crate) fn pair(&self) -> &DatagramPair {
        &self.pair
    }

    /// Prepares a send of `length` bytes of the memory from `at` on.
    ///
    /// # Errors
    /// If as many wait as the queue holds, or the memory is not inside.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        id: u64,
        (at, length): (usize, usize),
        to: Destination,
        signalled: bool,
    ) -> Result<(), Broken> {
        let piece = self.pair.memory.piece(at, length).ok_or(Broken)?;
        let (request, _) = self.list.next(id, piece)?;
        request.num_sge = 1;
        request.opcode = numbers::WR_SEND;
        request.send_flags = if signalled { numbers::SEND_SIGNALED } else { 0 };
        if length <= self.pair.granted.max_inline_data as usize {
            request.send_flags |= numbers::SEND_INLINE;
        }
        // The handle takes the place of the peer's number when it is announced.
        request.first = [to.peer.into(), u64::from(to.pair) | u64::from(to.key) << 32, 0, 0];
        Ok(())
    }

    /// Has the last one that was prepared report when it is done.
    #[inline]
    pub(crate) fn signal_last(&mut self) {
        self.list.signal_last();
    }

    /// Announces what was prepared, with one doorbell; returns how many requests were taken. What was not
    /// taken, also from the first one on whose peer has no handle any more, is dropped.
    #[inline]
    pub(crate) fn announce(&mut self, handles: &Handles) -> usize {
        let mut count = 0;
        for request in &mut self.list.requests[..self.list.waiting] {
            let Some(handle) = handles.get(request.first[0] as u32) else {
                break;
            };
            request.first[0] = handle.expose_provenance() as u64;
            count += 1;
        }
        // SAFETY: the queue pair is alive, and so are the handles, which are borrowed. Bytes that go with a
        // request are of memory that the queue pair keeps.
        unsafe { self.list.post(&self.pair.open, self.pair.raw, count) }
    }
}
