//! Rank 0's side of the meeting with processes that its job has started (`invite`): listens until all have
//! connected, collects their hellos, sends the table, and reports when all are ready.
//!
//! Every wait calls a `tick` while nothing arrives, so that the old world makes progress; an error of the
//! tick ends the wait, for example when the launcher reports that a process has failed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::lines::tcp::blocking::{Accepted, Incoming};
use doorbell_oob::{Connection, Listener};

use super::spawn_child::{Invitation, addresses, meeting_error, parse_word, refuse, send, terms};
use super::tcp::{Word, exit_of, shown, within_network};
use super::{Key, Meeting, RankInfo, host_id};
use crate::error::{Error, ranks};

/// How long one poll of a listener or a client takes when nothing arrives.
const LOOK: Duration = Duration::from_millis(2);
/// How long to wait for the launcher's report about a process that closed its connection without a reason.
const CAUSE: Duration = Duration::from_secs(3);
/// Time for sending to a process that reads slowly.
const SLOW: Duration = Duration::from_secs(10);

/// The function that a wait calls while nothing arrives.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// A client that has authenticated with the key.
#[derive(Debug)]
struct Client {
    connection: Connection,
    hello: Option<Box<RankInfo>>,
    is_ready: bool,
}

/// The listening side, until all new ranks have joined.
#[derive(Debug)]
pub struct Host {
    key: Key,
    before: u32,
    ranks: u32,
    listeners: Vec<Listener>,
    clients: Vec<Client>,
    until: Instant,
    /// The whole limit, for error texts.
    limit: Duration,
    /// The last connection that was refused, with the reason.
    refused: String,
}

impl Host {
    /// Starts to listen: on loopback, and for ranks of other hosts at the addresses of the rails of `own`.
    ///
    /// # Errors
    /// When no address can be listened on.
    pub fn open(
        own: &RankInfo,
        before: u32,
        is_far: bool,
        (until, limit): (Instant, Duration),
    ) -> Result<Self, Error> {
        let ranks = own.size - before;
        let key = Key::random()?;
        let (mut listeners, mut last) = (Vec::new(), None);
        for address in addresses(own, is_far) {
            match Listener::bind(address, terms(&key, own.size)?) {
                Ok(listener) => listeners.push(listener),
                // The host may not have this address family, or the address may be a function's and no
                // interface's.
                Err(error) => last = Some(error),
            }
        }
        if let (true, Some(error)) = (listeners.is_empty(), last) {
            return Err(error.into());
        }
        Ok(Self {
            key,
            before,
            ranks,
            listeners,
            clients: Vec::with_capacity(ranks as usize),
            until,
            limit,
            refused: String::new(),
        })
    }

    /// Returns the invitation for the new processes.
    pub fn invitation(&self) -> Invitation {
        Invitation {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key,
            host: within_network(host_id()),
            addresses: self
                .listeners
                .iter()
                .map(Listener::address)
                .collect::<Vec<SocketAddr>>(),
            before: self.before,
            ranks: self.ranks,
            wait: self.left().as_millis() as u64,
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits for the hellos of all new ranks.
    ///
    /// # Errors
    /// New ranks that do not connect, in time or at all; contradictory hellos; refusals of new ranks; errors
    /// of `tick`.
    pub fn gather(&mut self, zero: &RankInfo, tick: Tick<'_>) -> Result<Vec<RankInfo>, Error> {
        while self
            .clients
            .iter()
            .filter(|client| client.hello.is_some())
            .count()
            < self.ranks as usize
        {
            self.let_in()?;
            self.listen(Some(zero), tick)?;
            self.in_time("come", |client| client.hello.is_some())?;
            tick()?;
        }
        // Every new rank has connected: nothing is left to accept.
        self.listeners.clear();
        self.clients
            .sort_by_key(|client| client.hello.as_ref().map(|hello| hello.rank));
        let hellos = self
            .clients
            .iter()
            .filter_map(|client| client.hello.as_deref().cloned());
        Ok(hellos.collect())
    }

    /// Sends the table to all new ranks.
    ///
    /// # Errors
    /// When a new rank does not take it.
    pub fn seat(&mut self, meeting: &Meeting) -> Result<(), Error> {
        let word = Word::Table(Box::new(meeting.clone()));
        for client in &mut self.clients {
            send(&mut client.connection, &word, SLOW)?;
        }
        Ok(())
    }

    /// Waits until all new ranks are ready.
    ///
    /// # Errors
    /// Those of [`Host::gather`].
    pub fn ready(&mut self, tick: Tick<'_>) -> Result<(), Error> {
        while !self.clients.iter().all(|client| client.is_ready) {
            self.listen(None, tick)?;
            self.in_time("open their rails", |client| client.is_ready)?;
            tick()?;
            std::thread::sleep(LOOK / 4);
        }
        Ok(())
    }

    /// Reports to all new ranks that all are ready.
    pub fn start(&mut self) {
        for client in &mut self.clients {
            // A rank that misses this is lost to the new world, which will report it.
            let _ = send(&mut client.connection, &Word::Ready, SLOW);
        }
        for client in self.clients.drain(..) {
            let _ = client.connection.close(LOOK);
        }
    }

    /// Refuses all new ranks, with the reason.
    pub fn refuse(&mut self, exit: Exit, reason: &str) {
        for client in &mut self.clients {
            refuse(&mut client.connection, exit, reason);
        }
        self.clients.clear();
    }

    fn let_in(&mut self) -> Result<(), Error> {
        for listener in &mut self.listeners {
            match listener.accept(None, Some(LOOK))? {
                // One client more than there are ranks is accepted: its message will be the error that names
                // the problem.
                Accepted::Connection(connection) if self.clients.len() <= self.ranks as usize => {
                    self.clients.push(Client {
                        connection: *connection,
                        hello: None,
                        is_ready: false,
                    });
                }
                Accepted::TurnedAway(address, error) => {
                    self.refused = format!("; {address} was turned away: {error}")
                }
                Accepted::Connection(_) | Accepted::Woken | Accepted::Late => {}
            }
        }
        Ok(())
    }

    /// Reads the messages of all clients. With `zero`, hellos are expected, and are checked against it.
    fn listen(&mut self, zero: Option<&RankInfo>, tick: Tick<'_>) -> Result<(), Error> {
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            let text = match client.connection.receive_or_wake(None, Some(Duration::ZERO)) {
                Ok(Incoming::Message(text)) => text,
                Ok(Incoming::Late | Incoming::Woken) => continue,
                Ok(Incoming::Closed) | Err(_) => return Err(self.gone(at, tick)),
            };
            match (parse_word(&text)?, zero) {
                (Word::Refusal { exit, reason }, _) => {
                    return Err(Error::NotSpawned {
                        exit: exit_of(exit),
                        reason: format!("{} cannot take part: {}", self.who(at), shown(&reason)),
                    });
                }
                (Word::Hello { hello, key: None, .. }, Some(zero)) => self.take(at, hello, zero)?,
                (Word::Ready, None) if !client.is_ready => client.is_ready = true,
                _ => {
                    return Err(meeting_error(format!(
                        "{} sent a message out of turn",
                        self.who(at)
                    )));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, hello: Box<RankInfo>, zero: &RankInfo) -> Result<(), Error> {
        hello
            .check(zero)
            .map_err(|reason| Error::Disagreement { reason })?;
        let twice = self.clients.iter().flat_map(|client| &client.hello);
        if hello.rank < self.before || twice.into_iter().any(|known| known.rank == hello.rank) {
            return Err(meeting_error(format!(
                "a new process claims to be rank {}, which is taken already",
                hello.rank
            )));
        }
        if self.clients[at].hello.replace(hello).is_some() {
            return Err(meeting_error(format!("{} sent its hello twice", self.who(at))));
        }
        Ok(())
    }

    /// Returns the error of a client that has closed: the launcher's report, if it comes in time.
    fn gone(&self, at: usize, tick: Tick<'_>) -> Error {
        let until = Instant::now() + CAUSE;
        while Instant::now() < until {
            if let Err(error) = tick() {
                return error;
            }
            std::thread::sleep(LOOK);
        }
        Error::NotSpawned {
            exit: Exit::PeerLost,
            reason: format!("{} ended before all had joined: see its own output", self.who(at)),
        }
    }

    fn who(&self, at: usize) -> String {
        let hello = self.clients.get(at).and_then(|client| client.hello.as_ref());
        hello.map_or_else(|| "a new rank".to_owned(), |hello| format!("rank {}", hello.rank))
    }

    fn in_time(&self, what: &str, is_done: impl Fn(&Client) -> bool) -> Result<(), Error> {
        if !self.left().is_zero() {
            return Ok(());
        }
        let done = self.clients.iter().filter(|client| is_done(client));
        let done: Vec<u32> = done
            .flat_map(|client| &client.hello)
            .map(|hello| hello.rank)
            .collect();
        let missing = (self.before..self.before + self.ranks).filter(|rank| !done.contains(rank));
        let missing: Vec<u32> = missing.collect();
        Err(Error::NotSpawned {
            exit: Exit::TimedOut,
            reason: format!(
                "{} did not {what} within {:.1} s{}: check what they are doing, and raise the limit if they are merely slow",
                ranks(&missing),
                self.limit.as_secs_f64(),
                self.refused
            ),
        })
    }
}
