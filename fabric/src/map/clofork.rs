//! Descriptors that children of `fork` do not keep: FD_CLOFORK of POSIX.1-2024, which Linux lacks.
//!
//! A connection's end is what shows a peer that this process has ended, and the kernel reports it only when
//! the last copy of the descriptor is closed. So a child that lives on without `exec` would hide its
//! parent's death: peers would wait, and so would callers of a listener that no process serves. For the same
//! reason a descriptor that such a child has does not leave an epoll set when it is closed here.
//!
//! ```text
//!   NOTED, one bit per descriptor ── fork ──► the child's copy ── in_child ──► close(2) of each; no bit
//! ```
//!
//! The C library runs the handler in each child of `fork`, before anything else runs there. It does not for
//! `_Fork`, `vfork` and a bare `clone`: their children keep the descriptors until they call `exec`. Nor are
//! descriptors noted from 2^20 on.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::process::Maker;

/// Descriptors that can be noted: as many as a process can have by the kernel's usual `fs.nr_open`.
const MOST: usize = 1 << 20;
const BITS: usize = u64::BITS as usize;

/// One bit for each descriptor that is closed in children. Only pages with a bit take memory.
static NOTED: [AtomicU64; MOST / BITS] = [const { AtomicU64::new(0) }; MOST / BITS];
/// How many words of it may have a bit.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// The thread that opens or closes a descriptor, or forks; zero for none. So no child has one that is open
/// and not noted yet, or noted and closed already: another thread may have opened that number for itself.
static BUSY: AtomicI32 = AtomicI32::new(0);

/// Attempts to be the busy thread that are made without a sleep.
const YIELDS: u32 = 64;
/// The sleep between further attempts, in which a thread that this one has preempted can run.
const PAUSE: Duration = Duration::from_micros(50);

/// A descriptor that is open in this process only: it is closed in each child of `fork`. A child that drops
/// its copy of this value closes nothing.
#[derive(Debug)]
pub struct CloforkFd {
    descriptor: ManuallyDrop<OwnedFd>,
    maker: Maker,
}

impl CloforkFd {
    /// Opens a descriptor. `make` does so in one system call, and does nothing else: forks and openings of
    /// other threads wait for it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn open<E>(make: impl FnOnce() -> Result<OwnedFd, E>) -> Result<Self, E> {
        install();
        let maker = Maker::this();
        let _busy = Busy::enter();
        let descriptor = ManuallyDrop::new(make()?);
        note(descriptor.as_raw_fd());
        Ok(Self { descriptor, maker })
    }

    /// Whether it is open: the running process has opened it, and is no child of the one that has.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.maker.is_running()
    }
}

impl Drop for CloforkFd {
    fn drop(&mut self) {
        // In a child the number is of nothing, or of another descriptor.
        if !self.is_here() {
            return;
        }
        let _busy = Busy::enter();
        if let Some((word, bit)) = place(self.descriptor.as_raw_fd()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        // SAFETY: dropped here and nowhere else, once, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.descriptor) }
    }
}

impl AsFd for CloforkFd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The word and the bit of a descriptor; `None` for one that is too large.
fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((NOTED.get(number / BITS)?, 1 << (number % BITS)))
}

fn note(descriptor: RawFd) {
    if let Some((word, bit)) = place(descriptor) {
        WORDS.fetch_max(descriptor as usize / BITS + 1, Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// The right to open, close or fork, until it is dropped.
struct Busy;

impl Busy {
    fn enter() -> Self {
        enter();
        Self
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        leave();
    }
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Waits until no other thread opens, closes or forks. A fork in a signal handler may interrupt this very
/// thread while it is busy: it does not wait for itself.
extern "C" fn enter() {
    let us = this_thread();
    let mut attempts = 0;
    while let Err(busy) = BUSY.compare_exchange_weak(0, us, Ordering::Acquire, Ordering::Relaxed) {
        if busy == us {
            return;
        }
        if attempts < YIELDS {
            attempts += 1;
            thread::yield_now();
        } else {
            thread::sleep(PAUSE);
        }
    }
}

extern "C" fn leave() {
    // Another thread is busy where a fork in a signal handler has ended this one's time.
    let _ = BUSY.compare_exchange(this_thread(), 0, Ordering::Release, Ordering::Relaxed);
}

/// Closes the parent's descriptors. It allocates nothing and takes no lock.
extern "C" fn in_child() {
    let words = WORDS.load(Ordering::Relaxed);
    for (at, word) in NOTED.iter().take(words).enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        if bits == 0 {
            // Writing would copy the page.
            continue;
        }
        word.store(0, Ordering::Relaxed);
        while bits != 0 {
            let number = at * BITS + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: a copy of a descriptor of the parent's. What refers to it in this process is the
            // parent's as well: nothing of it is used, and its drop closes nothing.
            unsafe { libc::close(number as RawFd) };
        }
    }
    BUSY.store(0, Ordering::Release);
}

/// Prepares the process for forks.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `enter` and `leave` wait by system calls alone; `in_child` makes calls that are allowed in
        // a child of a process with threads. The C library removes handlers of a library that it unloads.
        unsafe { libc::pthread_atfork(Some(enter), Some(leave), Some(in_child)) };
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::atomic::AtomicBool;

    use rustix::event::PollFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// A child that runs `work` and then waits until it is killed, or is gone.
    struct Child(libc::pid_t);

    impl Child {
        fn start(work: impl FnOnce() -> bool) -> Self {
            // SAFETY: the child makes calls that are allowed after a fork among threads, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: only a system call; SIGALRM ends a child that nothing else ends.
                unsafe { libc::alarm(60) };
                if work() {
                    // SAFETY: only a system call.
                    unsafe { libc::pause() };
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(1) };
            }
            Self(child)
        }

        /// Whether it has ended by itself.
        fn has_failed(&self) -> bool {
            let mut status = 0;
            // SAFETY: our own child, and a valid place.
            unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) != 0 }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: our own child.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: our own child, and no place for its status.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }

    fn pair() -> (CloforkFd, OwnedFd) {
        let mut far = None;
        let near = CloforkFd::open(|| {
            let (one, two) = socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            far = Some(two);
            Ok::<_, rustix::io::Errno>(one)
        });
        (near.unwrap(), far.unwrap())
    }

    fn has_ended(far: &OwnedFd) -> bool {
        let state = crate::poll::state(far, PollFlags::RDHUP).unwrap();
        state.contains(PollFlags::HUP)
    }

    #[test]
    fn the_other_end_sees_a_close_while_a_child_lives() {
        let (near, far) = pair();
        let plain = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let child = Child::start(|| true);
        drop((near, plain.0));
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !has_ended(&far) {
            assert!(std::time::Instant::now() < until, "the child has it still");
            thread::yield_now();
        }
        assert!(!has_ended(&plain.1), "what is not noted stays open in the child");
        assert!(!child.has_failed());
    }

    #[test]
    fn a_child_that_drops_its_copy_closes_nothing_of_its_own() {
        let (near, _far) = pair();
        let (mut near, file) = (Some(near), std::fs::File::open("/dev/null").unwrap());
        let child = Child::start(|| {
            let number = near.as_ref().map(|near| near.descriptor.as_raw_fd());
            // SAFETY: it fails, or reads flags.
            let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
            let closed = number.is_some_and(|number| !is_open(number));
            // The child's own have the lowest numbers that are free, that of the parent's among them.
            let own: [_; 8] = std::array::from_fn(|_| CloforkFd::open(|| rustix::io::dup(&file)));
            let same = own
                .iter()
                .flatten()
                .any(|own| Some(own.descriptor.as_raw_fd()) == number);
            drop(near.take());
            let open = own
                .iter()
                .flatten()
                .all(|own| is_open(own.descriptor.as_raw_fd()));
            closed && same && open
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!child.has_failed());
    }

    #[test]
    fn no_child_has_a_descriptor_that_other_threads_open_and_close() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let inode = file.as_file().metadata().unwrap().ino();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let copy = || rustix::io::fcntl_dupfd_cloexec(file.as_file(), 300);
                        drop(CloforkFd::open(copy).unwrap());
                    }
                });
            }
            for _ in 0..300 {
                let child = Child::start(|| {
                    (300..400).all(|number| {
                        // SAFETY: zero is a valid value; the call fills it, or fails.
                        let mut status: libc::stat = unsafe { std::mem::zeroed() };
                        // SAFETY: as above.
                        let found = unsafe { libc::fstat(number, &raw mut status) } == 0;
                        !found || status.st_ino != inode
                    })
                });
                assert!(!ends_soon(&child));
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    /// Whether a child ends before it waits.
    fn ends_soon(child: &Child) -> bool {
        loop {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", child.0)).unwrap();
            match state.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]) {
                Some(b'S') => return false,
                Some(b'Z' | b'X') => return true,
                _ => thread::yield_now(),
            }
        }
    }
}
