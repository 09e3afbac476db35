//! Unsafe room: AF_XDP sockets, maps of their rings, and the few `bpf(2)` calls that steer frames to them.
//!
//! Every pointer given to the kernel is made within the function that makes the call, from memory that it
//! borrows or owns, and none is kept. Of the memory of frames the kernel keeps the pages themselves, for as
//! long as a socket uses them; both halves of a rail, and every frame that is kept, own its map.

use std::any::Any;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use doorbell_fabric::memory::RegionSlice;
use doorbell_ring::indexed::Places;
use doorbell_ring::storage::{Access, Area, Mapped};

use crate::program::Instruction;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Takes over a descriptor that a call has just made.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let number = checked(result)? as RawFd;
    // SAFETY: the call made this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A socket of the family AF_XDP.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    let how = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes numbers only.
    owned(unsafe { libc::socket(libc::AF_XDP, how, 0) }.into())
}

fn set<T>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let pointer = ptr::from_ref(value).cast();
    // SAFETY: the kernel reads `length` bytes of the value, which is borrowed for the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, length) }.into()).map(drop)
}

/// Reads an option into a value of plain numbers; returns how many bytes of it the kernel wrote.
///
/// # Safety
/// Any bytes must be a `T`.
unsafe fn get<T>(fd: BorrowedFd<'_>, (level, option): (i32, i32), value: &mut T) -> io::Result<usize> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let pointer = ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `length` bytes to the value, which is borrowed for the call; they are
    // a `T` by the caller's promise.
    let done = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, pointer, &raw mut length) };
    checked(done.into()).map(|_| length as usize)
}

/// Sets an option of the socket layer whose value is one `int`.
pub(crate) fn set_int(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, option, &value)
}

/// Sets an option of AF_XDP whose value is one number: the entries of a ring, most frames of one call.
pub(crate) fn set_number(fd: BorrowedFd<'_>, option: i32, value: u32) -> io::Result<()> {
    set(fd, libc::SOL_XDP, option, &value)
}

/// Makes `memory` the place of all frames of this socket, in chunks of `chunk` bytes. The kernel holds its
/// pages, which it and the device write to, until the socket and all that share its memory are closed.
pub(crate) fn register(fd: BorrowedFd<'_>, memory: &RegionSlice, chunk: u32) -> io::Result<()> {
    let asked = libc::xdp_umem_reg {
        addr: memory.address() as u64,
        len: memory.len() as u64,
        chunk_size: chunk,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &asked)
}

/// Where the kernel has the words and the entries of each of a socket's rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    pub(crate) receive: Places,
    pub(crate) send: Places,
    pub(crate) fill: Places,
    pub(crate) completion: Places,
}

pub(crate) fn offsets(fd: BorrowedFd<'_>) -> io::Result<Offsets> {
    let none = libc::xdp_ring_offset {
        producer: 0,
        consumer: 0,
        desc: 0,
        flags: 0,
    };
    let mut told = libc::xdp_mmap_offsets {
        rx: none,
        tx: none,
        fr: none,
        cr: none,
    };
    // SAFETY: the offsets are numbers.
    let length = unsafe { get(fd, (libc::SOL_XDP, libc::XDP_MMAP_OFFSETS), &mut told) }?;
    if length != size_of_val(&told) {
        // Before Linux 5.4 they had no flags.
        return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
    }
    let places = |one: &libc::xdp_ring_offset| Places {
        producer: one.producer as usize,
        consumer: one.consumer as usize,
        flags: one.flags as usize,
        entries: one.desc as usize,
    };
    Ok(Offsets {
        receive: places(&told.rx),
        send: places(&told.tx),
        fill: places(&told.fr),
        completion: places(&told.cr),
    })
}

/// Which of a socket's rings, as the offset of its map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingOf {
    Receive,
    Send,
    Fill,
    Completion,
}

struct RingMap {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: an address range that stays mapped until dropped, whichever thread has it.
unsafe impl Send for RingMap {}
// SAFETY: as above; a reference gives nothing out.
unsafe impl Sync for RingMap {}

impl Drop for RingMap {
    fn drop(&mut self) {
        // SAFETY: the map is ours, and every user of its addresses held this value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Maps `length` bytes of one of the socket's rings.
pub(crate) fn map(fd: BorrowedFd<'_>, which: RingOf, length: usize) -> io::Result<Area> {
    let offset = match which {
        RingOf::Receive => libc::XDP_PGOFF_RX_RING,
        RingOf::Send => libc::XDP_PGOFF_TX_RING,
        RingOf::Fill => libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
        RingOf::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
    };
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_POPULATE,
    );
    // SAFETY: a new map at an address of the kernel's choice touches no existing memory.
    let base = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), offset) };
    let base = NonNull::new(base.cast::<u8>()).filter(|base| base.as_ptr().cast() != libc::MAP_FAILED);
    let base = base.ok_or_else(io::Error::last_os_error)?;
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(RingMap { base, length });
    // SAFETY: the map is readable and writable, lives as long as its owner, and nothing else of this process
    // knows where it is; the kernel is the other side.
    Ok(Area::new(unsafe {
        Mapped::new(base, length, Access::ReadWrite, owner)
    }))
}

/// Binds the socket to a queue of an interface. `shared`: the socket whose memory it uses.
pub(crate) fn bind(
    fd: BorrowedFd<'_>,
    (interface, queue): (u32, u32),
    flags: u16,
    shared: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // The flags of the memory's first socket hold for all.
        sxdp_flags: if shared.is_some() {
            libc::XDP_SHARED_UMEM
        } else {
            flags
        },
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: shared.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of the address, which lives for the call.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) }.into()).map(drop)
}

/// Whether the kernel knows frames of several chunks (Linux 6.6). It looks at the flags of a bind first, and
/// at the interface then, of which there is none with this number: nothing is bound.
pub(crate) fn has_pieces() -> bool {
    let asked = socket().and_then(|socket| {
        let fd = std::os::fd::AsFd::as_fd(&socket);
        bind(fd, (0, 0), libc::XDP_USE_SG, None)
    });
    asked.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}

/// Whether the device reads and writes the frames where they are.
pub(crate) fn is_zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut told = libc::xdp_options { flags: 0 };
    // SAFETY: the options are a number.
    unsafe { get(fd, (libc::SOL_XDP, libc::XDP_OPTIONS), &mut told) }?;
    Ok(told.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Whether the kernel knows which of the device's queues a receive of this socket would poll
/// (`SO_INCOMING_NAPI_ID`).
pub(crate) fn has_queue_to_poll(fd: BorrowedFd<'_>) -> bool {
    let mut number = 0u32;
    // SAFETY: the option is a number.
    let told = unsafe { get(fd, (libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID), &mut number) };
    told.is_ok() && number != 0
}

/// What the kernel counts for a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) dropped: u64,
    pub(crate) ring_full: u64,
    pub(crate) invalid: u64,
    /// How often there was no chunk to fill.
    pub(crate) starved: u64,
}

pub(crate) fn counted(fd: BorrowedFd<'_>) -> io::Result<Counted> {
    let mut told = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    // SAFETY: the statistics are numbers.
    unsafe { get(fd, (libc::SOL_XDP, libc::XDP_STATISTICS), &mut told) }?;
    Ok(Counted {
        dropped: told.rx_dropped,
        ring_full: told.rx_ring_full,
        invalid: told.rx_invalid_descs + told.tx_invalid_descs,
        starved: told.rx_fill_ring_empty_descs,
    })
}

/// Has the kernel look at the ring of frames to send.
#[inline]
pub(crate) fn wake_sender(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: no bytes and no address: the kernel reads nothing of ours.
    checked(unsafe { libc::sendto(fd, ptr::null(), 0, flags, ptr::null(), 0) } as libc::c_long).map(drop)
}

/// Has the kernel look at its device's queue, and at the ring of buffers to fill.
#[inline]
pub(crate) fn wake_receiver(fd: BorrowedFd<'_>) -> io::Result<()> {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: a buffer of no bytes and no address: the kernel writes nothing of ours.
    let got = unsafe { libc::recvfrom(fd, ptr::null_mut(), 0, flags, ptr::null_mut(), ptr::null_mut()) };
    checked(got as libc::c_long).map(drop)
}

// linux/bpf.h.
const MAP_CREATE: u32 = 0;
const MAP_UPDATE: u32 = 2;
const PROGRAM_LOAD: u32 = 5;
const INFO: u32 = 15;
const LINK_CREATE: u32 = 28;
const TYPE_XSKMAP: u32 = 17;
const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: frames may be in several pieces.
const HAS_FRAGS: u32 = 1 << 5;
/// The name of the program and the map, as `bpftool` shows them.
const NAME: [u8; 16] = *b"doorbell\0\0\0\0\0\0\0\0";

/// The kernel's argument of a `bpf(2)` command, as 64-bit words: longer than any command used here reads.
type Argument = [u64; 16];

/// # Safety
/// What the fields of the argument point to must live for the call, and be as long as its length fields
/// require.
unsafe fn bpf(command: u32, argument: &mut Argument) -> io::Result<libc::c_long> {
    let length = size_of_val(argument);
    // SAFETY: the kernel reads and writes at most `length` bytes of the argument, which is borrowed for the
    // call; the rest is the caller's promise.
    checked(unsafe { libc::syscall(libc::SYS_bpf, command, argument.as_mut_ptr(), length) })
}

/// Puts two 32-bit fields of the argument into one word, the first at the lower address.
const fn pair(first: u32, second: u32) -> u64 {
    let (a, b) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

fn name() -> [u64; 2] {
    let half = |at: usize| NAME[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
    [half(0), half(8)]
}

/// A map from queues to sockets.
pub(crate) fn socket_map(entries: u32) -> io::Result<OwnedFd> {
    let mut argument = Argument::default();
    argument[0] = pair(TYPE_XSKMAP, 4);
    argument[1] = pair(4, entries);
    // Flags, inner map, node; then the name at byte 28.
    let bytes: Vec<u8> = name().iter().flat_map(|word| word.to_ne_bytes()).collect();
    argument[3] = pair(0, u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    argument[4] = u64::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7], 0, 0, 0, 0]);
    // SAFETY: numbers only.
    owned(unsafe { bpf(MAP_CREATE, &mut argument) }?)
}

/// Frames of `queue` go to `socket`.
pub(crate) fn put_socket(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (queue, socket.as_raw_fd() as u32);
    let mut argument = Argument::default();
    argument[0] = pair(map.as_raw_fd() as u32, 0);
    argument[1] = (&raw const key) as u64;
    argument[2] = (&raw const value) as u64;
    // SAFETY: key and value have the four bytes that the map was made with, and live for the call.
    unsafe { bpf(MAP_UPDATE, &mut argument) }.map(drop)
}

/// Loads a program. On refusal, also returns the verifier's output.
pub(crate) fn load(program: &[Instruction], frags: bool) -> Result<OwnedFd, (io::Error, String)> {
    const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";
    let mut log = vec![0u8; 64 << 10];
    let mut argument = Argument::default();
    argument[0] = pair(TYPE_XDP, program.len() as u32);
    argument[1] = program.as_ptr() as u64;
    argument[2] = LICENCE.as_ptr() as u64;
    argument[3] = pair(1, log.len() as u32);
    argument[4] = log.as_mut_ptr() as u64;
    argument[5] = pair(0, if frags { HAS_FRAGS } else { 0 });
    [argument[6], argument[7]] = name();
    argument[8] = pair(0, ATTACH_XDP);
    // SAFETY: the kernel reads the program and the licence and writes at most its length to the log: all live
    // for the call.
    let loaded = unsafe { bpf(PROGRAM_LOAD, &mut argument) };
    owned_or_said(loaded, &log)
}

fn owned_or_said(result: io::Result<libc::c_long>, log: &[u8]) -> Result<OwnedFd, (io::Error, String)> {
    result.and_then(owned).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        (error, String::from_utf8_lossy(&log[..end]).into_owned())
    })
}

/// Attaches the program to an interface for as long as the link that is returned is open in some process.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let mut argument = Argument::default();
    argument[0] = pair(program.as_raw_fd() as u32, interface);
    argument[1] = pair(ATTACH_XDP, flags);
    // SAFETY: numbers only.
    owned(unsafe { bpf(LINK_CREATE, &mut argument) }?)
}

/// The number of a program in this system.
pub(crate) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // `bpf_prog_info` begins with the type and the number.
    let mut info = [0u32; 64];
    let mut argument = Argument::default();
    argument[0] = pair(program.as_raw_fd() as u32, size_of_val(&info) as u32);
    argument[1] = info.as_mut_ptr() as u64;
    // SAFETY: the kernel writes at most that many bytes to the information, which lives for the call.
    unsafe { bpf(INFO, &mut argument) }?;
    Ok(info[1])
}
