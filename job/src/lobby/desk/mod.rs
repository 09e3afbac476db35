//! The socket at which a process of this host can be reached. Its name belongs to one process: a process id
//! that Portals programs name, or a random name that is in a member's address.
//!
//! ```text
//!   A, which needs B                                      B
//!     connect @doorbell.peer.4711 ───────────────────────►  its listener
//!     A's card, with B's token ──────────────────────────►  keeps it, opens A
//!     opens B ◄───────────────────────────────────────────  its card
//! ```
//!
//! A desk with a token answers only callers that have it; the others are counted, and find the connection
//! closed. Both ends check that the other runs as the same user.
//!
//! The connection stays open as a line while both exist: its end shows each the end of the other, whatever
//! the rails report. A line may end earlier, where one side has too many, or did not wait for an answer. So
//! the other then connects to the name once more, and takes the process for ended only if no process, or
//! another one, listens there. Where a rail has a connection of its own that shows the other's end, the line
//! is released ([`Desk::release`]), so that a peer costs few descriptors.
//!
//! The name is in the abstract namespace of the network namespace: nothing to clean up, and free again when
//! the process ends. One packet is one card (SOCK_SEQPACKET), or one word of a line. Nothing here waits, but
//! [`Desk::call`]: a few connections without a card are kept, and the oldest of them is closed for a new one.

mod calls;
mod place;
mod suspects;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::map::clofork::CloforkFd;
use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use self::calls::{Calls, RETRY};
pub(super) use self::place::Place;
use self::place::{accept, dial, is_ours, system_id};
use self::suspects::Suspects;
use self::table::{Role, Table, Watched};
use super::card::{Bad, Card, LONGEST, Name};
use crate::files::{DESCRIPTORS, files_needed, is_out_of_files, limit};
use crate::random;

const LISTENER: u64 = 0;
/// Most connections that one pass accepts.
const ACCEPTS: usize = 64;
/// Most events that one pass looks at.
const EVENTS: usize = 64;

/// How long callers wait that found no descriptor left, before the next attempt to accept one.
const PAUSE: Duration = Duration::from_millis(50);
/// The same while descriptors are kept free for the peers that are being met.
const CROWDED_PAUSE: Duration = Duration::from_millis(1);
/// How long they are kept free while none of these peers gets done.
const CROWDED_MAX: Duration = Duration::from_secs(1);

/// The word over a line: the sender notices the other's end by a rail, and closes the line.
const RELEASE: u8 = b'r';
/// The word over a line: the sender forgets the other.
const LEAVE: u8 = b'l';

/// News of another process.
#[derive(Debug, PartialEq)]
pub(super) enum News {
    /// It has connected and sent its card.
    Called(Card),
    /// It has answered a call with its card.
    Answered(Card),
    /// It cannot be called, with the reason.
    Failed(Name, String),
    /// It has forgotten this process, and goes on.
    Left(Name),
    /// The process has ended.
    Ended(Name),
}

/// Counters of what came to a desk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeskCounts {
    /// Callers that were answered.
    pub answered: u64,
    /// Callers without the desk's token: they get no answer.
    pub wrong_token: u64,
    /// Callers that sent no card, or one of a process that cannot be met.
    pub nonsense: u64,
    /// Callers of other users: nothing of them is read.
    pub other_user: u64,
    /// Callers that had not sent a card when their place was needed.
    pub silent: u64,
}

#[derive(Debug, Default)]
struct State {
    table: Table,
    calls: Calls,
    /// Processes whose last connection has ended, so that they may have ended as well.
    suspects: Suspects,
    /// Our number of the acquaintance with each process that has a token.
    bonds: HashMap<Name, u64>,
    /// The system's ids of the processes that have been met, where they are known.
    system_ids: HashMap<Name, i32>,
    /// The last of these numbers. The first is random: a process that comes back under the same name begins
    /// another acquaintance.
    last_bond: u64,
    /// News for the owner.
    news: Vec<News>,
    counts: DeskCounts,
    /// The listener is out of the epoll set until then, as there was no descriptor for a caller.
    pause: Option<Instant>,
    /// The number of the last descriptor that was opened here: all below it are in use.
    last_opened: u64,
    /// The limit of open files when it was last looked up.
    limit: u64,
    /// Since when descriptors are kept free for the peers that are being met.
    crowded_since: Option<Instant>,
    /// A sentence about missing descriptors that the owner has not taken.
    shortage: Option<String>,
    /// Whether there was such a sentence: there is one only.
    was_short: bool,
    /// Room for one card.
    room: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    card: Card,
    listener: CloforkFd,
    /// Readable when a connection or a card arrives.
    ready: Arc<OwnedFd>,
    state: Mutex<State>,
    any: AtomicBool,
    /// Whether lines are released once a rail shows the other end.
    releases: AtomicBool,
    /// Whether there is a sentence about missing descriptors.
    is_short: AtomicBool,
}

/// This process's listener. Clones refer to the same one; no call of it takes another lock.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Shared>);

impl Desk {
    /// Opens the listener of a name.
    ///
    /// # Errors
    /// Errors of the system.
    pub(super) fn open(place: Place, card: Card) -> io::Result<Self> {
        // Checked now, not when the first caller comes.
        card.written(None, 0).map_err(io::Error::other)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = epoll::EventData::new_u64(LISTENER);
        epoll::add(&ready, &place.listener, event, epoll::EventFlags::IN)?;
        let state = State {
            last_bond: random::number().map_err(io::Error::other)?,
            ..State::default()
        };
        Ok(Self(Arc::new(Shared {
            card,
            listener: place.listener,
            ready: Arc::new(ready),
            state: Mutex::new(state),
            any: AtomicBool::new(false),
            releases: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
        })))
    }

    /// Returns this process's card.
    pub(super) fn card(&self) -> &Card {
        &self.0.card
    }

    /// Returns the descriptor for a sleeper: it is readable when [`Desk::serve`] has something to do.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.0.ready.as_fd()
    }

    /// The owner releases each line once a rail shows the other end ([`Desk::release`]). Then callers wait,
    /// and calls too, while the descriptors that are left would not suffice for all peers that are being met:
    /// if each process took all it can have, none could get done.
    pub(super) fn expect_releases(&self) {
        self.0.releases.store(true, Ordering::Relaxed);
    }

    /// Whether there are news.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Takes the news since the last call, in order.
    pub(super) fn take(&self) -> Vec<News> {
        let mut state = self.lock();
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut state.news)
    }

    /// Returns the counters.
    pub fn counts(&self) -> DeskCounts {
        self.lock().counts
    }

    /// Returns how many connections it has, its listener aside.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.lock().table.len()
    }

    /// Takes the sentence for the user about missing descriptors, once there is one. There is one at most.
    #[inline]
    pub(super) fn take_shortage(&self) -> Option<String> {
        if !self.0.is_short.load(Ordering::Acquire) {
            return None;
        }
        self.0.is_short.store(false, Ordering::Relaxed);
        self.lock().shortage.take()
    }

    fn report(&self, state: &mut State, news: News) {
        state.news.push(news);
        self.0.any.store(true, Ordering::Release);
    }

    /// Begins a call to another process, unless there is one: [`Desk::serve`] carries it on, and its outcome
    /// is among the news.
    pub(super) fn begin(&self, name: Name) {
        self.lock().calls.begin(name, Instant::now());
    }

    /// Closes the lines to a process whose end a rail shows, with a word about that.
    pub(super) fn release(&self, name: &Name) {
        let mut state = self.lock();
        state.suspects.remove(name);
        state.calls.one_is_met();
        state.hang_up(name, RELEASE);
    }

    /// Forgets a process: a call to it ends, and its lines close with a word about that. A later call
    /// begins another acquaintance.
    pub(super) fn forget(&self, name: &Name) {
        self.lock().forget(name);
    }

    /// Forgets a process that has ended. What another process under its name has reported since stays.
    pub(super) fn over(&self, name: &Name) {
        let mut state = self.lock();
        if !state.has_met(name) {
            state.forget(name);
        }
    }

    /// Whether the last connection to a process has ended, and nothing is known of the process itself yet.
    pub(super) fn suspects(&self, name: &Name) -> bool {
        self.lock().suspects.has(name)
    }

    /// Whether the process that was met under a name does not listen there any more, as far as the system
    /// shows: none does, or another one. A program may have opened the same name again: that its last
    /// connection has ended counts where it does no harm, as the owner had given the peer up.
    pub(super) fn is_replaced(&self, name: &Name, is_given_up: bool) -> bool {
        let state = self.lock();
        match dial(name) {
            Ok(socket) => {
                let ids = system_id(&socket).zip(state.system_ids.get(name).copied());
                let is_another = ids.is_some_and(|(now, before)| now != before);
                is_another || is_given_up && state.suspects.has(name)
            }
            Err(error) => Errno::from_io_error(&error) == Some(Errno::CONNREFUSED),
        }
    }

    /// Carries on what is under way: connections, cards, calls. Does not wait; bounded.
    pub fn serve(&self) {
        let mut state = self.lock();
        let mut found = [const {
            epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }
        }; EVENTS];
        self.resume(&mut state);
        let now = timespec(Duration::ZERO);
        let count = epoll::wait(&self.0.ready, &mut found[..], Some(&now)).unwrap_or(0);
        let numbers = || found.iter().take(count).map(|event| event.data.u64());
        // What came over older connections first: a caller that calls again has forgotten its first call.
        for number in numbers().filter(|number| *number != LISTENER) {
            self.on_event(&mut state, number);
        }
        if numbers().any(|number| number == LISTENER) {
            for _ in 0..ACCEPTS {
                if !self.has_room(&mut state) {
                    self.pause(&mut state, CROWDED_PAUSE);
                    break;
                }
                if !self.accept(&mut state) {
                    break;
                }
            }
        }
        if !state.suspects.is_empty() {
            for name in state.suspects.look() {
                self.report(&mut state, News::Ended(name));
            }
        }
        if state.calls.len() > 0 {
            self.dial(&mut state);
        }
    }

    /// Returns when [`Desk::serve`] is due even if nothing arrives.
    pub(super) fn idle(&self) -> Option<Duration> {
        let state = self.lock();
        let next = state
            .suspects
            .next()
            .into_iter()
            .chain(state.calls.next())
            .chain(state.pause)
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Tries the calls that are due.
    #[cold]
    fn dial(&self, state: &mut State) {
        let now = Instant::now();
        let mut is_short = false;
        for name in state.calls.take_due(now) {
            if is_short || !self.has_room(state) {
                self.call_later(state, name, now, is_short);
                continue;
            }
            let called = dial(&name).and_then(|socket| {
                state.last_opened = number_of(&socket);
                if !is_ours(&socket) {
                    return Err(other_user());
                }
                self.send_card(state, &socket, &name, Some(&name))?;
                Ok(socket)
            });
            match called {
                Ok(socket) => match self.keep(state, socket, Role::Call(name)) {
                    Some(number) => state.calls.sent(&name, number),
                    None => self.fail(state, name, "this process cannot wait for its answer".to_owned()),
                },
                Err(error) if is_out_of_files(&error) => {
                    is_short = true;
                    self.call_later(state, name, now, true);
                }
                Err(error) => self.on_dial_error(state, name, &error, now),
            }
        }
    }

    /// A call waits for descriptors: for a bounded time, where there are none at all.
    #[cold]
    fn call_later(&self, state: &mut State, name: Name, now: Instant, is_short: bool) {
        if !state.calls.wait_for_files(name, now, is_short) {
            self.fail(state, name, files_needed(state.calls.len()));
        }
    }

    /// Whether the descriptors that are left suffice for the peers that are being met, and for one more.
    fn has_room(&self, state: &mut State) -> bool {
        let others = state.table.len() as u64;
        if others == 0 || !self.0.releases.load(Ordering::Relaxed) {
            return true;
        }
        let needed = DESCRIPTORS * (others + 1);
        let has = state.limit.saturating_sub(state.last_opened) >= needed || self.has_room_now(state, needed);
        if has {
            state.crowded_since = None;
        }
        has
    }

    /// Looks up whether `needed` descriptors are left. The system gives out the lowest free number, so that
    /// of a fresh one shows how many there are at most.
    #[cold]
    fn has_room_now(&self, state: &mut State, needed: u64) -> bool {
        state.limit = limit();
        if let Ok(fresh) = rustix::io::fcntl_dupfd_cloexec(&self.0.ready, 0) {
            state.last_opened = number_of(&fresh);
            if state.limit.saturating_sub(state.last_opened) >= needed {
                return true;
            }
        }
        let now = Instant::now();
        let since = *state.crowded_since.get_or_insert(now);
        if now.duration_since(since) >= CROWDED_MAX {
            // None of them gets done: one more makes no difference.
            state.crowded_since = Some(now);
            return true;
        }
        false
    }

    fn on_dial_error(&self, state: &mut State, name: Name, error: &io::Error, now: Instant) {
        let reason = match Errno::from_io_error(error) {
            Some(Errno::AGAIN | Errno::INTR) => return state.calls.again(name, now),
            // It has closed the connection before the card was sent.
            Some(Errno::PIPE | Errno::CONNRESET) if state.calls.was_closed(name, now) => return,
            Some(Errno::CONNREFUSED) => "no process of this host has this address any more".to_owned(),
            _ => format!("it cannot be called: {error}"),
        };
        self.fail(state, name, reason);
    }

    fn fail(&self, state: &mut State, name: Name, reason: String) {
        state.calls.end(&name);
        if !state.table.has_line(&name) {
            state.bonds.remove(&name);
        }
        self.report(state, News::Failed(name, reason));
    }

    /// Adds a connection to the epoll set and to the table; returns its number.
    fn keep(&self, state: &mut State, socket: CloforkFd, role: Role) -> Option<u64> {
        let number = state.table.number();
        let watched = Watched::new(&self.0.ready, socket, number).ok()?;
        state.put(number, watched, role);
        Some(number)
    }

    /// Accepts a connection; returns whether there may be another one.
    fn accept(&self, state: &mut State) -> bool {
        let socket = match accept(&self.0.listener) {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => {
                self.pause(state, PAUSE);
                self.report_shortage(state);
                return false;
            }
            Err(_) => return false,
        };
        state.last_opened = number_of(&socket);
        if !is_ours(&socket) {
            state.counts.other_user += 1;
            return true;
        }
        // The card has usually arrived together with the connection.
        match self.read_caller(state, &socket) {
            Caller::Card(card) => self.met(state, *card, socket),
            Caller::Over => {}
            Caller::Nothing => _ = self.keep(state, socket, Role::Silent),
        }
        true
    }

    /// No descriptor is left for a caller. It waits, and would wake every sleep meanwhile.
    #[cold]
    fn pause(&self, state: &mut State, pause: Duration) {
        if epoll::delete(&self.0.ready, &self.0.listener).is_ok() {
            state.pause = Some(Instant::now() + pause);
        }
    }

    #[cold]
    fn report_shortage(&self, state: &mut State) {
        if !std::mem::replace(&mut state.was_short, true) {
            state.shortage = Some(files_needed(1));
            self.0.is_short.store(true, Ordering::Release);
        }
    }

    /// Accepts callers again, when that is due.
    fn resume(&self, state: &mut State) {
        if state.pause.is_some_and(|until| until <= Instant::now()) {
            let event = epoll::EventData::new_u64(LISTENER);
            if epoll::add(&self.0.ready, &self.0.listener, event, epoll::EventFlags::IN).is_ok() {
                state.pause = None;
            }
        }
    }

    fn on_event(&self, state: &mut State, number: u64) {
        // An earlier event may have closed it.
        let Some(connection) = state.table.get(number) else {
            return;
        };
        match connection.role {
            Role::Silent => self.on_caller(state, number),
            Role::Call(name) => self.on_answer(state, number, name),
            Role::Line(name) => self.on_line(state, number, name),
        }
    }

    fn on_caller(&self, state: &mut State, number: u64) {
        let Some(connection) = state.table.take(number) else {
            return;
        };
        match self.read_caller(state, &connection.socket) {
            Caller::Card(card) => {
                let name = card.name;
                self.report(state, News::Called(*card));
                state.put(number, connection.socket, Role::Line(name));
            }
            Caller::Over => {}
            // A spurious wake-up.
            Caller::Nothing => state.put(number, connection.socket, Role::Silent),
        }
    }

    fn met(&self, state: &mut State, card: Card, socket: CloforkFd) {
        let name = card.name;
        self.report(state, News::Called(card));
        let _ = self.keep(state, socket, Role::Line(name));
    }

    /// Reads the card of a caller, and answers it with ours.
    fn read_caller(&self, state: &mut State, socket: &impl AsFd) -> Caller {
        let card = match state.read(socket) {
            Packet::Nothing => return Caller::Nothing,
            Packet::Over => {
                state.counts.nonsense += 1;
                return Caller::Over;
            }
            Packet::Bytes(length) => Card::read_call(&state.room[..length], &self.0.card),
        };
        match card {
            Ok(card) if card.name.is_beside(&self.0.card.name) => {
                state.counts.answered += 1;
                let _ = self.send_card(state, socket, &card.name, None);
                Caller::Card(Box::new(card))
            }
            Err(Bad::Token) => {
                state.counts.wrong_token += 1;
                Caller::Over
            }
            Err(Bad::Unlike(_)) => {
                state.counts.nonsense += 1;
                // It finds the reason in our card.
                if let Ok(ours) = self.0.card.written(None, 0) {
                    let _ = send(socket, &ours, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                }
                Caller::Over
            }
            Ok(_) | Err(Bad::Nonsense(_)) => {
                state.counts.nonsense += 1;
                Caller::Over
            }
        }
    }

    /// Reads the answer to a call.
    fn on_answer(&self, state: &mut State, number: u64, name: Name) {
        let packet = match state.table.get(number) {
            Some(connection) => read(&mut state.room, &connection.socket),
            None => return,
        };
        if matches!(packet, Packet::Nothing) {
            return;
        }
        let Some(connection) = state.table.take(number) else {
            return;
        };
        let Packet::Bytes(length) = packet else {
            if !state.calls.was_closed(name, Instant::now()) {
                let reason = "the process at its address closes calls without an answer: its address is of another \
                              member, or was changed";
                self.fail(state, name, reason.to_owned());
            }
            return;
        };
        match self.read_answer(&state.room[..length], &name) {
            Ok(card) => {
                state.calls.end(&name);
                self.report(state, News::Answered(card));
                state.put(number, connection.socket, Role::Line(name));
            }
            Err(reason) => self.fail(state, name, reason),
        }
    }

    fn read_answer(&self, bytes: &[u8], name: &Name) -> Result<Card, String> {
        let card = Card::read(bytes, &self.0.card).map_err(Bad::text)?;
        if card.name != *name {
            return Err("its card has another name".to_owned());
        }
        Ok(card)
    }

    /// Handles a word over a line, or its end.
    fn on_line(&self, state: &mut State, number: u64, name: Name) {
        let packet = match state.table.get(number) {
            Some(connection) => read(&mut state.room, &connection.socket),
            None => return,
        };
        if matches!(packet, Packet::Nothing) {
            return;
        }
        let Some(line) = state.table.take(number) else {
            return;
        };
        match packet {
            Packet::Bytes(1) if state.room[0] == RELEASE => {}
            Packet::Bytes(1) if state.room[0] == LEAVE => self.report(state, News::Left(name)),
            // The last line has ended, or carries nonsense.
            _ if !state.table.has_line(&name) => state.suspects.add(name, system_id(&line.socket)),
            _ => {}
        }
    }

    fn send_card(
        &self,
        state: &mut State,
        socket: &impl AsFd,
        peer: &Name,
        to: Option<&Name>,
    ) -> io::Result<()> {
        let bond = state.bond(peer);
        let text = self.0.card.written(to, bond).map_err(io::Error::other)?;
        send(socket, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Connects to another process of this host, exchanges cards, and returns its card. Serves other
    /// connections meanwhile.
    ///
    /// # Errors
    /// When there is no such process, its card does not match, or it does not answer until then.
    pub(super) fn call_name(&self, name: Name, until: Instant) -> io::Result<Card> {
        let socket = self.reach(&name, until)?;
        if !is_ours(&socket) {
            return Err(other_user());
        }
        self.wait(&socket, PollFlags::OUT, until)?;
        self.send_card(&mut self.lock(), &socket, &name, Some(&name))?;
        let mut bytes = vec![0; LONGEST + 1];
        let length = loop {
            match recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                Err(Errno::AGAIN | Errno::INTR) => self.wait(&socket, PollFlags::IN, until)?,
                Err(error) => return Err(error.into()),
            }
        };
        let card = self
            .read_answer(&bytes[..length], &name)
            .map_err(io::Error::other)?;
        self.keep(&mut self.lock(), socket, Role::Line(name));
        Ok(card)
    }

    fn reach(&self, name: &Name, until: Instant) -> io::Result<CloforkFd> {
        loop {
            match dial(name) {
                Err(error)
                    if (matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::INTR))
                        || is_out_of_files(&error))
                        && Instant::now() < until =>
                {
                    self.serve();
                    thread::sleep(RETRY);
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits for `socket`, and serves other connections.
    fn wait(&self, socket: &CloforkFd, wanted: PollFlags, until: Instant) -> io::Result<()> {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    pub(super) fn is_about(&self, name: &Name) -> bool {
        match self {
            Self::Called(card) | Self::Answered(card) => card.name == *name,
            Self::Failed(other, _) | Self::Left(other) | Self::Ended(other) => other == name,
        }
    }
}

impl State {
    /// Keeps a connection that the epoll set has. Others may close for it.
    fn put(&mut self, number: u64, socket: Watched, role: Role) {
        if let Role::Line(name) = role {
            self.suspects.remove(&name);
            if let (Name::Peer(_), Some(id)) = (name, system_id(&socket)) {
                self.system_ids.insert(name, id);
            }
        }
        let evicted = self.table.put(number, socket, role);
        self.counts.silent += u64::from(evicted.is_some_and(|evicted| evicted.role == Role::Silent));
    }

    fn forget(&mut self, name: &Name) {
        let call = self.calls.end(name);
        if let Some(call) = call.and_then(|number| self.table.take(number)) {
            // The other one may have taken the card already.
            send_word(&call.socket, LEAVE);
        }
        self.suspects.remove(name);
        self.hang_up(name, LEAVE);
        self.bonds.remove(name);
        self.system_ids.remove(name);
        self.news.retain(|news| !news.is_about(name));
    }

    /// Whether cards were exchanged with a process that the owner was not notified of yet.
    fn has_met(&self, name: &Name) -> bool {
        let is_it = |news: &News| matches!(news, News::Called(_) | News::Answered(_)) && news.is_about(name);
        self.news.iter().any(is_it)
    }

    /// Closes the lines to a process with a last word.
    fn hang_up(&mut self, name: &Name, word: u8) {
        for line in self.table.take_lines(name) {
            send_word(&line.socket, word);
        }
    }

    /// Returns our number of the acquaintance with a process: the same until it is forgotten.
    fn bond(&mut self, name: &Name) -> u64 {
        if matches!(name, Name::Process(_)) {
            return 0;
        }
        let last = &mut self.last_bond;
        *self.bonds.entry(*name).or_insert_with(|| {
            *last = last.wrapping_add(1);
            *last
        })
    }

    fn read(&mut self, socket: &impl AsFd) -> Packet {
        read(&mut self.room, socket)
    }
}

/// The number of a descriptor.
fn number_of(descriptor: &impl AsFd) -> u64 {
    descriptor.as_fd().as_raw_fd().unsigned_abs().into()
}

/// A packet of a connection.
enum Packet {
    /// None has arrived yet.
    Nothing,
    /// One has arrived, of that length.
    Bytes(usize),
    /// The connection has ended.
    Over,
}

/// Reads a packet into `room`.
fn read(room: &mut Vec<u8>, socket: &impl AsFd) -> Packet {
    room.resize(LONGEST + 1, 0);
    match recv(socket, &mut room[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => Packet::Over,
        Ok((length, _)) => Packet::Bytes(length),
        Err(Errno::AGAIN | Errno::INTR) => Packet::Nothing,
        Err(_) => Packet::Over,
    }
}

/// Sends a word over a line.
fn send_word(line: &impl AsFd, word: u8) {
    let _ = send(line, &[word], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// The result of reading from a caller's connection.
enum Caller {
    /// No card has arrived yet.
    Nothing,
    /// The card that arrived.
    Card(Box<Card>),
    /// The connection has ended, or sent no valid card.
    Over,
}

fn other_user() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "another user's process has this name",
    )
}
