//! The sockets of the functions: one client at a time, and the threads that read its messages.
//!
//! ```text
//!   accept ──► one client at a time ──► read ──► mail ──► the engine, which answers
//! ```
//!
//! A client that goes, however it does, ends its connection; the engine resets the function then, as the
//! kernel does when a device is given back. A client that connects at that moment waits until it is done; one
//! that connects while another is served is refused (EBUSY). Waiting clients do not block each other: one
//! that sends nothing keeps no other one out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::line::{Line, Message};
use crate::world::World;

/// How long a caller waits for the client before it to be gone.
const HANDOVER: Duration = Duration::from_millis(1500);

/// Callers of one function at a time, those who wait included.
const CALLERS: usize = 32;

/// The messages to the engine.
pub(crate) enum EngineMessage {
    /// A client came.
    Attach(usize, Arc<Line>),
    /// A client sent a message.
    Message(usize, Message),
    /// A client is gone; clients that wait for the function's reset are notified.
    Detach(usize, Arc<Seat>),
    /// Something of the process that the model runs in.
    Call(Box<dyn FnOnce(&mut World) + Send>),
}

/// The way to the engine.
#[derive(Clone)]
pub(crate) struct Post {
    pub(crate) mail: SyncSender<EngineMessage>,
    /// Set when there is mail.
    pub(crate) flag: Arc<AtomicBool>,
    pub(crate) engine: Thread,
}

impl Post {
    /// Delivers; waits where the engine is behind. False when it has ended.
    pub(crate) fn send(&self, mail: EngineMessage) -> bool {
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
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_taken: bool,
    /// Set once no client is served any more.
    is_over: bool,
}

impl Seat {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the seat, waiting a little for who is leaving.
    fn take(&self) -> bool {
        let waits = |state: &mut State| state.is_taken && !state.is_over;
        let waited = self.left.wait_timeout_while(self.state(), HANDOVER, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_over && !std::mem::replace(&mut state.is_taken, true)
    }

    /// The function is as new.
    pub(crate) fn leave(&self) {
        self.state().is_taken = false;
        self.left.notify_all();
    }

    /// Ends the wait for good.
    fn end(&self) {
        self.state().is_over = true;
        self.left.notify_all();
    }

    fn is_over(&self) -> bool {
        self.state().is_over
    }
}

/// The thread at the socket of one function.
pub(crate) struct Listener {
    thread: JoinHandle<()>,
    /// Dropped to end it.
    stop: OwnedFd,
    served: Arc<Served>,
}

/// The client that one function serves.
#[derive(Debug, Default)]
struct Served {
    seat: Arc<Seat>,
    line: Mutex<Option<Arc<Line>>>,
}

impl Served {
    /// A caller, from its first word to its last.
    fn serve(&self, function: usize, caller: &Arc<Line>, post: &Post) {
        if !self.seat.take() {
            if !self.seat.is_over() {
                caller.refuse(libc::EBUSY);
            }
            return;
        }
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(caller));
        if self.seat.is_over() {
            // The one that ended it may have looked for a connection before there was one.
            caller.close();
        }
        read(function, caller, post, Arc::clone(&self.seat));
    }

    fn end(&self) {
        self.seat.end();
        if let Some(line) = self.line.lock().unwrap_or_else(PoisonError::into_inner).take() {
            line.close();
        }
    }
}

impl Listener {
    /// Serves the clients of a function.
    pub(crate) fn open(function: usize, listener: UnixListener, post: Post) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let served = Arc::new(Served::default());
        let all = Arc::clone(&served);
        let serve = move || {
            let mut readers: Vec<JoinHandle<()>> = Vec::new();
            while let Some(socket) = accept(&listener, &stop) {
                readers.retain(|reader| !reader.is_finished());
                if readers.len() >= CALLERS {
                    // Its line ends.
                    continue;
                }
                let caller = Arc::new(Line::new(socket));
                let (post, all) = (post.clone(), Arc::clone(&all));
                let reader = std::thread::Builder::new().spawn(move || all.serve(function, &caller, &post));
                // Without a thread to spare its line ends, too.
                readers.extend(reader.ok());
            }
            for reader in readers {
                // One that panicked has printed that.
                let _ = reader.join();
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("vic-door-{function}"))
            .spawn(serve)?;
        Ok(Self {
            thread,
            stop: stopped,
            served,
        })
    }

    /// Ends the thread and the line.
    pub(crate) fn close(self) {
        let Self { thread, stop, served } = self;
        drop(stop);
        served.end();
        // One that panicked has printed that.
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
                // Accepted sockets do not inherit the flag, but no manual promises that.
                return stream.set_nonblocking(false).ok().map(|()| stream.into());
            }
            // Out of descriptors, or the caller is gone: the others go on.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn read(function: usize, line: &Arc<Line>, post: &Post, seat: Arc<Seat>) {
    let mut runs = post.send(EngineMessage::Attach(function, Arc::clone(line)));
    while runs && let Some(message) = line.next() {
        runs = post.send(EngineMessage::Message(function, message));
    }
    line.close();
    post.send(EngineMessage::Detach(function, seat));
}
