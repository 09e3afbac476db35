//! The socket at which a process of this host can be reached: its name is the process id, so one id belongs
//! to one process.
//!
//! ```text
//!   A, which needs {nid, 4711}                            process 4711
//!     connect @doorbell.ni.4711 ─────────────────────────►  its listener, served by a thread there
//!     A's card ──────────────────────────────────────────►  keeps it, opens A
//!     opens 4711 ◄────────────────────────────────────────  its card
//! ```
//!
//! The connection stays open while both exist: its end shows each the end of the other, whatever the rails
//! report. It may end earlier, where one side has too many connections, or did not wait for an answer. So the
//! other then connects to the name once more, and takes the process for ended only if no process, or another
//! one, listens there.
//!
//! The name is in the abstract namespace of the network namespace: nothing to clean up, and free again when
//! the process ends. Both ends check that the other runs as the same user. One packet is one card
//! (SOCK_SEQPACKET). The server never waits: a few connections without a card are kept, and the oldest of
//! them is closed for a new one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::ni::Process;
use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};

use super::card::{Card, LONGEST};
use crate::meet::peer_uid;

/// Most connections that have not sent a card yet.
const MOST_CALLS: usize = 64;
/// Most connections to processes that stay open; the rails notice the end of further processes.
const MOST_LINES: usize = 512;
/// Backlog of the listener: connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Interval between attempts while the other end's backlog is full.
const RETRY: Duration = Duration::from_millis(1);
/// The first pause between checks of a process whose connection has ended; it may still be exiting. Each
/// pause doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause; after that, the rails have to notice the process's end.
const LAST_PAUSE: Duration = Duration::from_secs(2);
const LISTENER: u64 = 0;

/// A process id of this host, with the socket that reserves it.
#[derive(Debug)]
pub(super) struct Place {
    listener: OwnedFd,
    pub(super) pid: u32,
}

impl Place {
    /// Takes a process id of this host; `None` if another process has it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn take(pid: u32) -> io::Result<Option<Self>> {
        let listener = seqpacket()?;
        match bind(&listener, &name_of(pid)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        listen(&listener, BACKLOG)?;
        Ok(Some(Self { listener, pid }))
    }
}

fn name_of(pid: u32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(
        format!("doorbell.ni.{pid}").as_bytes(),
    )?)
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

#[derive(Debug)]
struct Calls {
    /// Connections without a card yet, by number.
    silent: VecDeque<(u64, OwnedFd)>,
    next: u64,
    /// Connections to processes that are known, by number.
    lines: HashMap<u64, Line>,
    /// Processes whose last connection has ended, so that they may have ended as well.
    suspects: Vec<Suspect>,
    /// News for the owner.
    news: Vec<News>,
}

#[derive(Debug)]
struct Line {
    process: Process,
    socket: OwnedFd,
}

#[derive(Debug)]
struct Suspect {
    process: Process,
    /// The system's id of the process, where it is known.
    system_id: Option<i32>,
    /// When it is checked next, and the pause after that.
    next: Instant,
    pause: Duration,
}

impl Suspect {
    /// Whether no process listens at its name any more, or another one does.
    fn is_gone(&self) -> bool {
        let (Ok(name), Ok(socket)) = (name_of(self.process.pid), seqpacket()) else {
            return false;
        };
        match connect(&socket, &name) {
            Ok(()) => system_id(&socket)
                .zip(self.system_id)
                .is_some_and(|(now, before)| now != before),
            Err(error) => error == Errno::CONNREFUSED,
        }
    }
}

/// News of another process.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// It has connected and sent its card.
    Called(Card),
    /// The process has ended.
    Ended(Process),
}

#[derive(Debug)]
struct Shared {
    card: Card,
    /// The card, serialized.
    text: Vec<u8>,
    listener: OwnedFd,
    /// Readable when a connection or a card arrives.
    ready: OwnedFd,
    calls: Mutex<Calls>,
    any: AtomicBool,
}

/// This process's listener. Clones refer to the same one; no call of it takes another lock.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Shared>);

impl Desk {
    /// Opens the listener of a process id.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn open(place: Place, card: Card) -> io::Result<Self> {
        let text = card.written().map_err(io::Error::other)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = epoll::EventData::new_u64(LISTENER);
        epoll::add(&ready, &place.listener, event, epoll::EventFlags::IN)?;
        Ok(Self(Arc::new(Shared {
            card,
            text,
            listener: place.listener,
            ready,
            calls: Mutex::new(Calls {
                silent: VecDeque::new(),
                next: LISTENER + 1,
                lines: HashMap::new(),
                suspects: Vec::new(),
                news: Vec::new(),
            }),
            any: AtomicBool::new(false),
        })))
    }

    /// Returns this process's card.
    pub(super) fn card(&self) -> &Card {
        &self.0.card
    }

    /// Returns this process's id.
    pub fn process(&self) -> Process {
        self.0.card.process()
    }

    /// Returns the descriptor for a sleeper: it is readable when [`Desk::serve`] has something to do.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }

    /// Whether there are news.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Takes the news since the last call, in order.
    pub(super) fn take(&self) -> Vec<News> {
        let mut calls = self.lock();
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut calls.news)
    }

    fn tell(&self, calls: &mut Calls, news: News) {
        calls.news.push(news);
        self.0.any.store(true, Ordering::Release);
    }

    /// Adds a socket to the epoll set; returns its number.
    fn watch(&self, calls: &mut Calls, socket: &OwnedFd) -> Option<u64> {
        let number = calls.next;
        calls.next += 1;
        let event = epoll::EventData::new_u64(number);
        epoll::add(&self.0.ready, socket, event, epoll::EventFlags::IN).ok()?;
        Some(number)
    }

    /// Keeps the connection to a process that is known now.
    fn keep(&self, calls: &mut Calls, process: Process, number: Option<u64>, socket: OwnedFd) {
        calls.suspects.retain(|suspect| suspect.process != process);
        if calls.lines.len() >= MOST_LINES {
            return;
        }
        if let Some(number) = number.or_else(|| self.watch(calls, &socket)) {
            calls.lines.insert(number, Line { process, socket });
        }
    }

    /// Accepts connections and answers cards. Does not wait; bounded.
    pub fn serve(&self) {
        let mut calls = self.lock();
        let mut found = [const {
            epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }
        }; 16];
        let now = timespec(Duration::ZERO);
        let Ok(count) = epoll::wait(&self.0.ready, &mut found[..], Some(&now)) else {
            return;
        };
        for event in found.iter().take(count) {
            match event.data.u64() {
                LISTENER => self.accept(&mut calls),
                number => self.hear(&mut calls, number),
            }
        }
        if !calls.suspects.is_empty() {
            self.look_at_suspects(&mut calls);
        }
    }

    /// Returns when [`Desk::serve`] is due even if nothing arrives.
    pub(super) fn idle(&self) -> Option<Duration> {
        let next = self.lock().suspects.iter().map(|suspect| suspect.next).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    #[cold]
    fn look_at_suspects(&self, calls: &mut Calls) {
        let now = Instant::now();
        for mut suspect in std::mem::take(&mut calls.suspects) {
            if suspect.next <= now {
                if suspect.is_gone() {
                    self.tell(calls, News::Ended(suspect.process));
                    continue;
                }
                suspect.next = now + suspect.pause;
                suspect.pause *= 2;
            }
            if suspect.pause <= LAST_PAUSE {
                calls.suspects.push(suspect);
            }
        }
    }

    fn accept(&self, calls: &mut Calls) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.0.listener, flags) else {
            return;
        };
        if !is_ours(&socket) {
            return;
        }
        // The card has usually arrived together with the connection.
        match self.answer(&socket) {
            Heard::Card(card) => self.met(calls, *card, None, socket),
            Heard::Over => {}
            Heard::Nothing => {
                let Some(number) = self.watch(calls, &socket) else {
                    return;
                };
                if calls.silent.len() >= MOST_CALLS {
                    // Closing the socket removes it from the epoll set.
                    calls.silent.pop_front();
                }
                calls.silent.push_back((number, socket));
            }
        }
    }

    fn hear(&self, calls: &mut Calls, number: u64) {
        if let Some(line) = calls.lines.get(&number) {
            // A connection is silent once the cards are exchanged: it has ended, or sends nonsense.
            if !matches!(self.answer(&line.socket), Heard::Nothing)
                && let Some(line) = calls.lines.remove(&number)
            {
                Self::suspect(calls, &line);
            }
            return;
        }
        let Some(at) = calls.silent.iter().position(|(other, _)| *other == number) else {
            return;
        };
        let Some((_, socket)) = calls.silent.remove(at) else {
            return;
        };
        match self.answer(&socket) {
            Heard::Card(card) => self.met(calls, *card, Some(number), socket),
            Heard::Over => {}
            // A spurious wake-up.
            Heard::Nothing => calls.silent.push_back((number, socket)),
        }
    }

    /// Handles the end of a connection: with the last one of a process, the process may have ended.
    fn suspect(calls: &mut Calls, line: &Line) {
        if calls.lines.values().any(|other| other.process == line.process) {
            return;
        }
        calls.suspects.push(Suspect {
            process: line.process,
            system_id: system_id(&line.socket),
            next: Instant::now(),
            pause: FIRST_PAUSE,
        });
    }

    fn met(&self, calls: &mut Calls, card: Card, number: Option<u64>, socket: OwnedFd) {
        let process = card.process();
        self.tell(calls, News::Called(card));
        self.keep(calls, process, number, socket);
    }

    /// Reads the card of a connection, and sends ours.
    fn answer(&self, socket: &OwnedFd) -> Heard {
        let mut bytes = vec![0; LONGEST + 1];
        let length = match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::Over,
        };
        if length == 0 {
            return Heard::Over;
        }
        // A process whose card does not match gets ours all the same, and finds the reason in it.
        let _ = send(socket, &self.0.text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        match Card::read(&bytes[..length], &self.0.card) {
            Ok(card) if card.process().nid == self.process().nid => Heard::Card(Box::new(card)),
            _ => Heard::Over,
        }
    }

    /// Connects to another process of this host, exchanges cards, and returns its card. Serves other
    /// connections meanwhile.
    ///
    /// # Errors
    /// When there is no such process, its card does not match, or it does not answer until then.
    pub fn call(&self, process: Process, until: Instant) -> io::Result<Card> {
        let socket = self.reach(process.pid, until)?;
        if !is_ours(&socket) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "another user's process has this id",
            ));
        }
        self.wait(&socket, PollFlags::OUT, until)?;
        send(&socket, &self.0.text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        let mut bytes = vec![0; LONGEST + 1];
        let length = loop {
            match recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                Err(Errno::AGAIN | Errno::INTR) => self.wait(&socket, PollFlags::IN, until)?,
                Err(error) => return Err(error.into()),
            }
        };
        let card = Card::read(&bytes[..length], &self.0.card).map_err(io::Error::other)?;
        if card.process() != process {
            return Err(io::Error::other("its card has another id"));
        }
        self.keep(&mut self.lock(), process, None, socket);
        Ok(card)
    }

    fn reach(&self, pid: u32, until: Instant) -> io::Result<OwnedFd> {
        let name = name_of(pid)?;
        loop {
            let socket = seqpacket()?;
            match connect(&socket, &name) {
                Ok(()) => return Ok(socket),
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                    self.serve();
                    thread::sleep(RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for `socket`, and serves other connections.
    fn wait(&self, socket: &OwnedFd, wanted: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut both = [
                PollFd::new(socket, wanted),
                PollFd::new(&self.0.ready, PollFlags::IN),
            ];
            match poll(&mut both, Some(&timespec(left))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [ours, calls] = both.map(|fd| !fd.revents().is_empty());
            if calls {
                self.serve();
            }
            if ours {
                return Ok(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of reading from a connection.
enum Heard {
    /// No card has arrived yet.
    Nothing,
    /// The card that arrived.
    Card(Box<Card>),
    /// The connection has ended, or sent no valid card.
    Over,
}

/// Returns the system's process id of the other end; `None` where that is in another pid namespace.
fn system_id(socket: &OwnedFd) -> Option<i32> {
    use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
    let peer = getsockopt(socket, PeerCredentials).ok()?;
    Some(peer.pid()).filter(|id| *id != 0)
}

fn is_ours(socket: &OwnedFd) -> bool {
    peer_uid(socket).is_ok_and(|uid| uid == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::meet::RankInfo;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Opens a listener at the first free id from a random one on.
    fn desk() -> Desk {
        let mut pid = 0x4000_0000 | (crate::random::number().unwrap() as u32 & 0xfff_ffff);
        let place = loop {
            match Place::take(pid).unwrap() {
                Some(place) => break place,
                None => pid += 1,
            }
        };
        let info = RankInfo::of_this_process(0, 1, BTreeMap::new(), Vec::new()).unwrap();
        let card = Card::new(Process::physical(1, place.pid), info);
        Desk::open(place, card).unwrap()
    }

    fn until() -> Instant {
        Instant::now() + LIMIT
    }

    #[test]
    fn an_id_is_one_process_until_it_is_gone() {
        let desk = desk();
        let pid = desk.card().process().pid;
        assert!(Place::take(pid).unwrap().is_none());
        drop(desk);
        assert!(Place::take(pid).unwrap().is_some());
    }

    #[test]
    fn two_that_call_each_other_at_once_both_know_both() {
        let (one, two) = (desk(), desk());
        let (first, second) = thread::scope(|scope| {
            let (from, to) = (one.clone(), two.card().process());
            let first = scope.spawn(move || from.call(to, until()));
            let (from, to) = (two.clone(), one.card().process());
            let second = scope.spawn(move || from.call(to, until()));
            // The one that has its answer goes on serving the other.
            while !first.is_finished() || !second.is_finished() {
                one.serve();
                two.serve();
            }
            (first.join().unwrap().unwrap(), second.join().unwrap().unwrap())
        });
        assert_eq!((&first, &second), (two.card(), one.card()));
        assert!(one.any() && two.any());
        assert_eq!(one.take(), [News::Called(two.card().clone())]);
        assert_eq!(two.take(), [News::Called(one.card().clone())]);
        assert!(!one.any() && one.take().is_empty());
        // The end of one is reported to the other, once.
        let gone = two.process();
        drop(two);
        one.serve();
        assert_eq!(one.take(), [News::Ended(gone)]);
        assert!(one.idle().is_none());
    }

    #[test]
    fn nobody_and_one_who_does_not_answer_are_errors() {
        let (one, two) = (desk(), desk());
        let gone = {
            let gone = desk();
            gone.card().process()
        };
        let error = one.call(gone, until()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let soon = Instant::now() + Duration::from_millis(20);
        let error = one.call(two.card().process(), soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // The card that it sent is read later, though it has closed.
        two.serve();
        two.serve();
        two.serve();
        // The process has not ended: only its limit was over.
        assert_eq!(two.take(), [News::Called(one.card().clone())]);
        // Its end is noticed later.
        assert!(two.idle().is_some());
        let gone = one.process();
        drop(one);
        let until = until();
        while !two.any() && Instant::now() < until {
            two.serve();
        }
        assert_eq!(two.take(), [News::Ended(gone)]);
    }

    #[test]
    fn a_line_that_ends_is_not_a_process_that_ends() {
        let (one, two) = (desk(), desk());
        thread::scope(|scope| {
            let (from, to) = (one.clone(), two.process());
            let caller = scope.spawn(move || from.call(to, until()));
            while !caller.is_finished() {
                two.serve();
            }
            caller.join().unwrap().unwrap();
        });
        // Closes the connection, as a process with too many of them does.
        two.lock().lines.clear();
        one.serve();
        assert!(one.take().is_empty() && one.idle().is_some());
        let gone = two.process();
        drop(two);
        let until = until();
        while !one.any() && Instant::now() < until {
            one.serve();
        }
        assert_eq!(one.take(), [News::Ended(gone)]);
    }

    #[test]
    fn silent_and_senseless_calls_take_nothing_from_others() {
        let desk = desk();
        let name = name_of(desk.card().process().pid).unwrap();
        let call = || {
            let socket = seqpacket().unwrap();
            connect(&socket, &name).unwrap();
            desk.serve();
            socket
        };
        let silent: Vec<OwnedFd> = (0..MOST_CALLS + 3).map(|_| call()).collect();
        let loud = call();
        send(&loud, b"hello?", SendFlags::NOSIGNAL).unwrap();
        desk.serve();
        assert!(!desk.any());
        let other = self::desk();
        thread::scope(|scope| {
            let (from, to) = (other.clone(), desk.card().process());
            let caller = scope.spawn(move || from.call(to, until()));
            while !caller.is_finished() {
                desk.serve();
            }
            caller.join().unwrap().unwrap();
        });
        assert_eq!(desk.take(), [News::Called(other.card().clone())]);
        drop(silent);
    }
}
