//! The socket by which a process of this host is known: its name is the process id, so one id is one process.
//!
//! ```text
//!   A, who has something to say to {nid, 4711}            process 4711
//!     connect @doorbell.ni.4711 ─────────────────────────►  its desk: whoever makes progress there serves it
//!     A's card ──────────────────────────────────────────►  keeps it, opens A
//!     opens 4711 ◄────────────────────────────────────────  its card
//! ```
//!
//! The line stays open for as long as both are there: by its end each hears of the other's, whatever the rails say. A line may
//! end before that, where one of the two has too many, or has not waited for an answer: so its name is called once more, and
//! only when nobody has it, or another process, is it taken for ended.
//!
//! The name is in the abstract namespace of the network namespace: nothing to clean up, and free again when the process is
//! gone. Both ends check that the other runs as the same user. One message is one card (SOCK_SEQPACKET). The server never
//! waits: calls that have not said anything are kept, a few of them, and the oldest is let go for a new one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::ni::Process;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};

use super::card::{Card, LONGEST};
use crate::meet::{as_timespec, peer_uid};

/// Calls that have not said anything yet.
const MOST_CALLS: usize = 64;
/// Lines that stay open; the end of further processes is found out by the rails.
const MOST_LINES: usize = 512;
/// Calls that wait to be answered.
const BACKLOG: i32 = 1024;
/// Between two attempts, where the other end has no room for a call.
const RETRY: Duration = Duration::from_millis(1);
/// The first pause between two looks at a process whose line has ended, which doubles; it may still be on its way out.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// After a longer one its end is left to the rails.
const LAST_PAUSE: Duration = Duration::from_secs(2);
const LISTENER: u64 = 0;

/// Taken process id, with the socket of its name.
#[derive(Debug)]
pub(super) struct Place {
    listener: OwnedFd,
    pub(super) pid: u32,
}

impl Place {
    /// Takes a process id on this host; `None`: another process has it.
    ///
    /// # Errors
    /// What the system says.
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
    /// Those that have said nothing yet, by number.
    silent: VecDeque<(u64, OwnedFd)>,
    next: u64,
    /// Those that have been met, by number.
    lines: HashMap<u64, Line>,
    /// Those whose last line has ended, and who may have, too.
    suspects: Vec<Suspect>,
    /// What nobody has taken.
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
    /// The system's id of it, as far as that is known.
    system_id: Option<i32>,
    /// When it is looked at next, and the pause after that.
    next: Instant,
    pause: Duration,
}

impl Suspect {
    /// Whether its name is nobody's any more, or another's.
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

/// What is told about another process.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// It has called.
    Called(Card),
    /// It has ended.
    Ended(Process),
}

#[derive(Debug)]
struct Shared {
    card: Card,
    /// The same, as it is sent.
    text: Vec<u8>,
    listener: OwnedFd,
    /// Readable when somebody calls or speaks.
    ready: OwnedFd,
    calls: Mutex<Calls>,
    any: AtomicBool,
}

/// This process's desk. Copies are the same; none of its calls takes another lock.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Shared>);

impl Desk {
    /// Opens the desk of a place.
    ///
    /// # Errors
    /// What the system says.
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

    /// What this process tells of itself.
    pub(super) fn card(&self) -> &Card {
        &self.0.card
    }

    /// Who this process is.
    pub fn process(&self) -> Process {
        self.0.card.process()
    }

    /// What a sleeper watches: readable when [`Desk::serve`] has something to do.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }

    /// Whether somebody has called, or ended.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Who has called or ended since the last time, in order.
    pub(super) fn take(&self) -> Vec<News> {
        let mut calls = self.lock();
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut calls.news)
    }

    fn tell(&self, calls: &mut Calls, news: News) {
        calls.news.push(news);
        self.0.any.store(true, Ordering::Release);
    }

    /// Watches a socket; its number.
    fn watch(&self, calls: &mut Calls, socket: &OwnedFd) -> Option<u64> {
        let number = calls.next;
        calls.next += 1;
        let event = epoll::EventData::new_u64(number);
        epoll::add(&self.0.ready, socket, event, epoll::EventFlags::IN).ok()?;
        Some(number)
    }

    /// Keeps the line to a process that has been met.
    fn keep(&self, calls: &mut Calls, process: Process, number: Option<u64>, socket: OwnedFd) {
        calls.suspects.retain(|suspect| suspect.process != process);
        if calls.lines.len() >= MOST_LINES {
            return;
        }
        if let Some(number) = number.or_else(|| self.watch(calls, &socket)) {
            calls.lines.insert(number, Line { process, socket });
        }
    }

    /// Answers those who call. Does not wait; bounded.
    pub fn serve(&self) {
        let mut calls = self.lock();
        let mut found = [const {
            epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }
        }; 16];
        let now = as_timespec(Duration::ZERO);
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

    /// When [`Desk::serve`] is to be called though nobody calls.
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
        // It has usually said everything with its call.
        match self.answer(&socket) {
            Heard::Card(card) => self.met(calls, *card, None, socket),
            Heard::Over => {}
            Heard::Nothing => {
                let Some(number) = self.watch(calls, &socket) else {
                    return;
                };
                if calls.silent.len() >= MOST_CALLS {
                    // Closing it takes it out of the epoll set.
                    calls.silent.pop_front();
                }
                calls.silent.push_back((number, socket));
            }
        }
    }

    fn hear(&self, calls: &mut Calls, number: u64) {
        if let Some(line) = calls.lines.get(&number) {
            // Nothing is ever said on a line: it has ended, or says nonsense.
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
            // Woken for nothing.
            Heard::Nothing => calls.silent.push_back((number, socket)),
        }
    }

    /// A line has ended: with the last one, the process may have.
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

    /// What a caller says, answered.
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
        // One that does not fit gets our card all the same, and finds the reason in it.
        let _ = send(socket, &self.0.text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        match Card::read(&bytes[..length], &self.0.card) {
            Ok(card) if card.process().nid == self.process().nid => Heard::Card(Box::new(card)),
            _ => Heard::Over,
        }
    }

    /// Introduces this process to another one of this host, and returns its card. Those who call meanwhile are answered.
    ///
    /// # Errors
    /// There is no such process; it does not fit; it does not answer until then.
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
            return Err(io::Error::other("it calls itself by another id"));
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

    /// Waits for `socket`, and answers those who call.
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
            match poll(&mut both, Some(&as_timespec(left))) {
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

/// What came of listening to a caller.
enum Heard {
    /// Nothing yet.
    Nothing,
    /// Who it is.
    Card(Box<Card>),
    /// It has ended, or is none that we understand.
    Over,
}

/// The system's process id of who is at the other end; none where it is of another namespace.
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
    use crate::meet::Hello;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A desk at the first free id from a random one on.
    fn desk() -> Desk {
        let mut pid = 0x4000_0000 | (crate::random::number().unwrap() as u32 & 0xfff_ffff);
        let place = loop {
            match Place::take(pid).unwrap() {
                Some(place) => break place,
                None => pid += 1,
            }
        };
        let hello = Hello::of_this_process(0, 1, BTreeMap::new(), Vec::new()).unwrap();
        let card = Card::new(Process::physical(1, place.pid), hello);
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
            // Whoever has its answer goes on serving the other.
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
        // The end of one is told to the other, once.
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
        // What it said is heard later, though it is gone.
        two.serve();
        two.serve();
        two.serve();
        // It has not ended: it waited no longer.
        assert_eq!(two.take(), [News::Called(one.card().clone())]);
        // Its end is still heard of.
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
        // As one does that has too many.
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
