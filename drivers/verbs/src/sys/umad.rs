//! libibumad: management datagrams of a port, loaded for the first request to a subnet's administration, and
//! never unloaded.
//!
//! The library's buffers begin with a header of its own, of which only its functions know the layout; the
//! datagram of 256 bytes follows. Each function is looked up by its name and symbol version.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::fmt;
use std::io;

use super::library::{loader_error, symbol};
use super::said;

/// The name of the library since its first release of version 1.0 of its symbols.
pub(crate) const UMAD: &str = "libibumad.so.3";
/// The version of all symbols that are used here.
const VERSION: &CStr = c"IBUMAD_1.0";
/// Bytes of a management datagram.
pub(crate) const MAD: usize = 256;
/// Bytes of the longest header that a library may put before a datagram.
const HEADER_MAX: usize = 256;

/// What `umad_get_port` writes (`umad_port_t`).
#[repr(C)]
struct UmadPortAttr {
    device: [c_char; 20],
    number: c_int,
    base_lid: c_uint,
    lmc: c_uint,
    sm_lid: c_uint,
    sm_sl: c_uint,
    state: c_uint,
    phys_state: c_uint,
    rate: c_uint,
    capabilities: u32,
    gid_prefix: u64,
    port_guid: u64,
    pkeys_size: c_uint,
    pkeys: *mut u16,
    link_layer: [c_char; 20],
    /// Room for what a later version may append.
    later: [u64; 32],
}

const _: () = {
    assert!(memoffset::offset_of!(UmadPortAttr, sm_lid) == 32);
    assert!(memoffset::offset_of!(UmadPortAttr, gid_prefix) == 56);
    assert!(memoffset::offset_of!(UmadPortAttr, port_guid) == 64);
    assert!(memoffset::offset_of!(UmadPortAttr, pkeys) == 80);
    assert!(memoffset::offset_of!(UmadPortAttr, link_layer) == 88);
};

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($($name:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of the library.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Looks all of them up.
            fn of(handle: *mut c_void) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($name: {
                        let address = symbol(handle, $symbol, VERSION).ok_or($symbol)?;
                        // SAFETY: the loader found the function of this name and version, whose signature in
                        // the header is the one of the field; the library is never unloaded.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init c"umad_init" () -> c_int;
    get_port c"umad_get_port" (*const c_char, c_int, *mut UmadPortAttr) -> c_int;
    release_port c"umad_release_port" (*mut UmadPortAttr) -> c_int;
    open_port c"umad_open_port" (*const c_char, c_int) -> c_int;
    close_port c"umad_close_port" (c_int) -> c_int;
    register c"umad_register" (c_int, c_int, c_int, u8, *mut c_long) -> c_int;
    unregister c"umad_unregister" (c_int, c_int) -> c_int;
    size c"umad_size" () -> usize;
    status c"umad_status" (*mut c_void) -> c_int;
    set_address c"umad_set_addr" (*mut c_void, c_int, c_int, c_int, c_int) -> c_int;
    set_pkey c"umad_set_pkey" (*mut c_void, c_int) -> c_int;
    send c"umad_send" (c_int, c_int, *mut c_void, c_int, c_int, c_int) -> c_int;
    recv c"umad_recv" (c_int, *mut c_void, *mut c_int, c_int) -> c_int;
    poll c"umad_poll" (c_int, c_int) -> c_int;
}

/// Turns a result of the library into the system's error: what is negative is an error number.
fn checked(result: c_int) -> io::Result<c_int> {
    match result {
        0.. => Ok(result),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

/// Returns why a call failed: the library prints more than its error numbers contain.
fn reason(error: &io::Error, said: &str) -> String {
    match said.lines().last() {
        Some(last) => last.trim_start_matches("ibwarn: ").to_owned(),
        None => error.to_string(),
    }
}

/// The loaded library.
#[derive(Clone, Copy)]
pub(crate) struct Umad {
    functions: Functions,
}

impl fmt::Debug for Umad {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Umad").finish_non_exhaustive()
    }
}

impl Umad {
    /// Loads the library of this name, or the file of that path.
    ///
    /// # Errors
    /// The reason in words: it cannot be loaded, lacks a function, or refuses to begin.
    pub(crate) fn load(name: &str) -> Result<Self, String> {
        let text = CString::new(name).map_err(|_| "its name has a zero byte".to_owned())?;
        let (handle, _said) = said::caught(|| {
            // SAFETY: the name ends with a zero byte. The library's constructors run; those of rdma-core have
            // no preconditions.
            unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        });
        if handle.is_null() {
            return Err(loader_error());
        }
        let functions = Functions::of(handle)
            .map_err(|symbol| format!("it has no {} of version 1.0", symbol.to_string_lossy()))?;
        // SAFETY: no preconditions; it may be called more than once.
        let (begun, said) = said::caught(|| checked(unsafe { (functions.init)() }));
        begun.map_err(|error| format!("umad_init failed: {}", reason(&error, &said)))?;
        Ok(Self { functions })
    }
}

/// The subnet of a port, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubnetManager {
    pub(crate) lid: u16,
    pub(crate) sl: u8,
}

/// Which port, for the calls that name it.
#[derive(Debug)]
struct Named {
    device: CString,
    port: c_int,
}

/// A port that is open for management datagrams of one class.
#[derive(Debug)]
pub(crate) struct UmadPort {
    library: Umad,
    named: Named,
    id: c_int,
    agent: c_int,
    /// Bytes of the library's header before each datagram.
    header: usize,
    /// The library's header and a datagram, aligned for the former.
    buffer: Box<[u64; (HEADER_MAX + MAD) / 8]>,
}

/// A datagram that has arrived, or one of ours that was not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) mad: [u8; MAD],
    /// The kernel's status: 0, or an error number for a request that was not answered.
    pub(crate) status: c_int,
}

impl UmadPort {
    /// Opens a port for requests of a management class.
    ///
    /// # Errors
    /// The name of the call that failed, and the reason.
    pub(crate) fn open(
        library: Umad,
        device: &str,
        port: u8,
        (class, version): (u8, u8),
    ) -> Result<Self, (&'static str, String)> {
        let invalid = |_| ("umad_open_port", "the device's name has a zero byte".to_owned());
        let named = Named {
            device: CString::new(device).map_err(invalid)?,
            port: port.into(),
        };
        let calls = library.functions;
        // SAFETY: the name ends with a zero byte and is only read.
        let open = || checked(unsafe { (calls.open_port)(named.device.as_ptr(), named.port) });
        let (id, said) = said::caught(open);
        let id = id.map_err(|error| ("umad_open_port", reason(&error, &said)))?;
        // SAFETY: the port is open; a null mask is that of a client, which answers nothing.
        let agent = unsafe { (calls.register)(id, class.into(), version.into(), 0, std::ptr::null_mut()) };
        // SAFETY: no preconditions; the library knows the kernel's format once a port is open.
        let header = unsafe { (calls.size)() };
        let agent = checked(agent).map_err(|error| error.to_string());
        let agent = agent.and_then(|agent| match header {
            0..=HEADER_MAX => Ok(agent),
            _ => Err(format!(
                "the library's header of {header} bytes is longer than any known"
            )),
        });
        match agent {
            Ok(agent) => Ok(Self {
                library,
                named,
                id,
                agent,
                header,
                buffer: Box::new([0; (HEADER_MAX + MAD) / 8]),
            }),
            Err(error) => {
                // SAFETY: the port is open, and nothing uses it any more.
                unsafe { (calls.close_port)(id) };
                Err(("umad_register", error))
            }
        }
    }

    /// Returns where the subnet's manager is. It reads the kernel's files.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn manager(&self) -> io::Result<SubnetManager> {
        let mut attr = std::mem::MaybeUninit::<UmadPortAttr>::zeroed();
        let calls = self.library.functions;
        // SAFETY: the name ends with a zero byte and is only read; the structure has room for what
        // the library writes.
        checked(unsafe { (calls.get_port)(self.named.device.as_ptr(), self.named.port, attr.as_mut_ptr()) })?;
        // SAFETY: zero bytes are valid for all its fields, and the call wrote the rest.
        let mut attr = unsafe { attr.assume_init() };
        let manager = SubnetManager {
            lid: u16::try_from(attr.sm_lid).unwrap_or(0),
            sl: u8::try_from(attr.sm_sl & 0xf).unwrap_or(0),
        };
        // SAFETY: the library filled it; its list of partitions is freed once.
        unsafe { (calls.release_port)(&raw mut attr) };
        Ok(manager)
    }

    /// Sends a request to a queue pair of the subnet. The kernel repeats it `retries` times, and returns it
    /// with a status where it is not answered.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn send(
        &mut self,
        mad: &[u8; MAD],
        (to, qpn, qkey): (SubnetManager, c_int, u32),
        timeout_ms: c_int,
        retries: c_int,
    ) -> io::Result<()> {
        let calls = self.library.functions;
        let header = self.header;
        self.buffer.fill(0);
        let start = self.buffer.as_mut_ptr().cast::<u8>();
        // SAFETY: the header has at most `HEADER_MAX` bytes, so the buffer has room for a datagram behind it.
        let behind = unsafe { start.add(header) };
        // SAFETY: both have a datagram's bytes, and the buffer is this port's own.
        unsafe { std::ptr::copy_nonoverlapping(mad.as_ptr(), behind, MAD) };
        let umad = start.cast::<c_void>();
        let qkey = c_int::from_ne_bytes(qkey.to_ne_bytes());
        // SAFETY: the buffer has the library's header, which this writes.
        unsafe { (calls.set_address)(umad, to.lid.into(), qpn, to.sl.into(), qkey) };
        // SAFETY: as above.
        unsafe { (calls.set_pkey)(umad, 0) };
        let length = MAD as c_int;
        // SAFETY: port and agent are open; the buffer has the header and as many bytes behind as are named.
        checked(unsafe { (calls.send)(self.id, self.agent, umad, length, timeout_ms, retries) })?;
        Ok(())
    }

    /// Takes what has arrived, without waiting.
    ///
    /// # Errors
    /// The system's error; the port is of no more use then.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Arrived>> {
        let calls = self.library.functions;
        // SAFETY: the port is open.
        match checked(unsafe { (calls.poll)(self.id, 0) }) {
            Ok(_) => {}
            Err(error) if is_nothing(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.buffer.fill(0);
        let umad = self.buffer.as_mut_ptr().cast::<c_void>();
        let mut length = MAD as c_int;
        // SAFETY: the port is open; the buffer has room for the header and `length` bytes.
        match checked(unsafe { (calls.recv)(self.id, umad, &raw mut length, 0) }) {
            Ok(_) => {}
            Err(error) if is_nothing(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the library has written its header.
        let status = unsafe { (calls.status)(umad) };
        let mut mad = [0; MAD];
        // SAFETY: the header has at most `HEADER_MAX` bytes, so a datagram's bytes follow in the buffer.
        let from = unsafe { self.buffer.as_ptr().cast::<u8>().add(self.header) };
        // SAFETY: all of them are initialised, and `mad` has as many.
        unsafe { std::ptr::copy_nonoverlapping(from, mad.as_mut_ptr(), MAD) };
        Ok(Some(Arrived { mad, status }))
    }
}

/// Whether an error means that nothing has arrived.
fn is_nothing(error: &io::Error) -> bool {
    let quiet = [libc::ETIMEDOUT, libc::EWOULDBLOCK, libc::EINTR];
    error.raw_os_error().is_some_and(|code| quiet.contains(&code))
}

impl Drop for UmadPort {
    fn drop(&mut self) {
        let calls = self.library.functions;
        // SAFETY: port and agent are open, and nothing uses them any more.
        unsafe { (calls.unregister)(self.id, self.agent) };
        // SAFETY: the port is open, and its agent is gone.
        unsafe { (calls.close_port)(self.id) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_of_management_datagrams_is_named() {
        assert!(
            Umad::load("libnosuch-umad.so.3")
                .unwrap_err()
                .contains("libnosuch")
        );
        let other = Umad::load("libm.so.6").unwrap_err();
        assert!(other.contains("umad_init"), "{other}");
        assert!(Umad::load("a\0b").unwrap_err().contains("zero byte"));
    }
}
