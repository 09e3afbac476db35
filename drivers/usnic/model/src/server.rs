//! The sockets of the functions: who calls, one client at a time, and the threads that read what it says.
//!
//! ```text
//!   accept ──► one client at a time ──► read ──► mail ──► the engine, which answers
//! ```
//!
//! A client that goes, however it does, ends its line; the engine resets the function then, as the kernel does when a device is
//! given back. Who calls at that moment waits until it is done; who calls while another is there is told so (EBUSY).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::line::{Line, Message};
use crate::world::World;

/// How long a caller waits for the client before it to be gone.
const HANDOVER: Duration = Duration::from_millis(1500);

/// What the engine is told.
pub(crate) enum Mail {
    /// A client came.
    Attach(usize, Arc<Line>),
    /// It said something.
    Message(usize, Message),
    /// It is gone; whoever waits for the function's reset is told.
    Detach(usize, Arc<Seat>),
    /// Something of the process that the model runs in.
    Call(Box<dyn FnOnce(&mut World) + Send>),
}

/// The way to the engine.
#[derive(Clone)]
pub(crate) struct Post {
    pub(crate) mail: SyncSender<Mail>,
    /// There is mail.
    pub(crate) flag: Arc<AtomicBool>,
    pub(crate) engine: Thread,
}

impl Post {
    /// Delivers; waits where the engine is behind. False when it has ended.
    pub(crate) fn send(&self, mail: Mail) -> bool {
        let sent = match self.mail.try_send(mail) {
            Ok(()) => true,
            Err(TrySendError::Full(mail)) => {
                self.ring();
                self.mail.send(mail).is_ok()
            }
            Err(TrySendError::Disconnected(_)) => false,
        };
        self.ring();
        sent
    }

    fn ring(&self) {
        self.flag.store(true, Ordering::Release);
        self.engine.unpark();
    }
}

/// Whether a client is there.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    taken: Mutex<bool>,
    left: Condvar,
}

impl Seat {
    /// Takes the seat, waiting a little for who is leaving.
    fn take(&self) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.left.wait_timeout_while(taken, HANDOVER, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut taken, true)
    }

    /// The function is as new.
    pub(crate) fn leave(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.left.notify_all();
    }
}

/// The thread at the socket of one function.
pub(crate) struct Door {
    thread: JoinHandle<()>,
    /// Dropped to end it.
    stop: OwnedFd,
    line: Arc<Mutex<Option<Arc<Line>>>>,
}

impl Door {
    /// Serves whoever calls.
    pub(crate) fn open(function: usize, listener: UnixListener, post: Post) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let line = Arc::new(Mutex::new(None));
        let current = Arc::clone(&line);
        let serve = move || {
            let seat = Arc::new(Seat::default());
            let mut readers: Vec<JoinHandle<()>> = Vec::new();
            while let Some(socket) = accept(&listener, &stop) {
                readers.retain(|reader| !reader.is_finished());
                let caller = Arc::new(Line::new(socket));
                if !seat.take() {
                    caller.refuse(libc::EBUSY);
                    continue;
                }
                *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&caller));
                let (post, seat) = (post.clone(), Arc::clone(&seat));
                readers.push(std::thread::spawn(move || read(function, &caller, &post, seat)));
            }
            for reader in readers {
                // One that panicked has said so.
                let _ = reader.join();
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("vic-door-{function}"))
            .spawn(serve)?;
        Ok(Self {
            thread,
            stop: stopped,
            line,
        })
    }

    /// Ends the thread and the line.
    pub(crate) fn close(self) {
        let Self { thread, stop, line } = self;
        drop(stop);
        if let Some(line) = line.lock().unwrap_or_else(PoisonError::into_inner).take() {
            line.close();
        }
        // One that panicked has said so.
        let _ = thread.join();
    }
}

/// The next caller; `None` once it is over.
fn accept(listener: &UnixListener, stop: &OwnedFd) -> Option<OwnedFd> {
    loop {
        let mut waits = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        if !waits[1].revents().is_empty() {
            return None;
        }
        match listener.accept() {
            Ok((stream, _)) => {
                // Accepted sockets do not inherit the flag, but nothing says so.
                return stream.set_nonblocking(false).ok().map(|()| stream.into());
            }
            // Out of descriptors, or the caller is gone: the others go on.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn read(function: usize, line: &Arc<Line>, post: &Post, seat: Arc<Seat>) {
    let mut runs = post.send(Mail::Attach(function, Arc::clone(line)));
    while runs && let Some(message) = line.next() {
        runs = post.send(Mail::Message(function, message));
    }
    line.close();
    post.send(Mail::Detach(function, seat));
}
