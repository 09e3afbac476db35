//! Rank 0's side of the meeting with processes that it has had started (`invite`): listens for as long as that takes, hears
//! all of them, gives each the table, and says when all are ready.
//!
//! Every call takes a `tick`: it is called while nobody says anything, so that the old world makes progress, and it ends the
//! wait when the launcher knows that somebody will not come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::tcp::{Accepted, Incoming};
use doorbell_oob::{Connection, Listener};

use super::invite::{Invitation, addresses, disorder, parse_word, refuse, say, terms};
use super::remote::{Word, exit_of, shown, within_network};
use super::{Hello, Key, Meeting, host_id};
use crate::error::{Error, ranks};

/// How long one look at a door takes when nobody is there.
const LOOK: Duration = Duration::from_millis(2);
/// Who has gone away without a word: the launcher has so long to say how.
const CAUSE: Duration = Duration::from_secs(3);
/// For somebody who takes what is said to it in its own time.
const SLOW: Duration = Duration::from_secs(10);

/// What is done while nobody says anything.
pub type Tick<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// One who has proved to have the key.
#[derive(Debug)]
struct Guest {
    connection: Connection,
    hello: Option<Box<Hello>>,
    is_ready: bool,
}

/// The door, while it is open.
#[derive(Debug)]
pub struct Host {
    key: Key,
    before: u32,
    ranks: u32,
    doors: Vec<Listener>,
    guests: Vec<Guest>,
    until: Instant,
    /// How long that was from the beginning, for people.
    limit: Duration,
    /// Who was turned away, and why: the last one.
    stranger: String,
}

impl Host {
    /// Listens: on loopback, and where ranks of other hosts may come, at the addresses of the rails of `own`.
    ///
    /// # Errors
    /// When nowhere can be listened at.
    pub fn open(
        own: &Hello,
        before: u32,
        is_far: bool,
        (until, limit): (Instant, Duration),
    ) -> Result<Self, Error> {
        let ranks = own.size - before;
        let key = Key::random()?;
        let (mut doors, mut last) = (Vec::new(), None);
        for address in addresses(own, is_far) {
            match Listener::bind(address, terms(&key, own.size)?) {
                Ok(door) => doors.push(door),
                // A family that this host does not have, or the address of a function that is no interface.
                Err(error) => last = Some(error),
            }
        }
        if let (true, Some(error)) = (doors.is_empty(), last) {
            return Err(error.into());
        }
        Ok(Self {
            key,
            before,
            ranks,
            doors,
            guests: Vec::with_capacity(ranks as usize),
            until,
            limit,
            stranger: String::new(),
        })
    }

    /// What the new processes are to be told.
    pub fn invitation(&self) -> Invitation {
        Invitation {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key,
            host: within_network(host_id()),
            addresses: self
                .doors
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

    /// Waits for the hellos of all.
    ///
    /// # Errors
    /// Who did not come, in time or at all; who does not fit, or cannot take part; what `tick` says.
    pub fn gather(&mut self, zero: &Hello, tick: Tick<'_>) -> Result<Vec<Hello>, Error> {
        while self.guests.iter().filter(|guest| guest.hello.is_some()).count() < self.ranks as usize {
            self.let_in()?;
            self.listen(Some(zero), tick)?;
            self.in_time("come", |guest| guest.hello.is_some())?;
            tick()?;
        }
        // Nobody else is expected.
        self.doors.clear();
        self.guests
            .sort_by_key(|guest| guest.hello.as_ref().map(|hello| hello.rank));
        let hellos = self
            .guests
            .iter()
            .filter_map(|guest| guest.hello.as_deref().cloned());
        Ok(hellos.collect())
    }

    /// Gives everybody the table.
    ///
    /// # Errors
    /// Who does not take it.
    pub fn seat(&mut self, meeting: &Meeting) -> Result<(), Error> {
        let word = Word::Table(Box::new(meeting.clone()));
        for guest in &mut self.guests {
            say(&mut guest.connection, &word, SLOW)?;
        }
        Ok(())
    }

    /// Waits until all have said that they can.
    ///
    /// # Errors
    /// As [`Host::gather`].
    pub fn ready(&mut self, tick: Tick<'_>) -> Result<(), Error> {
        while !self.guests.iter().all(|guest| guest.is_ready) {
            self.listen(None, tick)?;
            self.in_time("open their rails", |guest| guest.is_ready)?;
            tick()?;
            std::thread::sleep(LOOK / 4);
        }
        Ok(())
    }

    /// Tells everybody that all are ready.
    pub fn start(&mut self) {
        for guest in &mut self.guests {
            // Who does not hear it is lost to the new world, which will say so.
            let _ = say(&mut guest.connection, &Word::Ready, SLOW);
        }
        for guest in self.guests.drain(..) {
            let _ = guest.connection.close(LOOK);
        }
    }

    /// Tells everybody why there is no world.
    pub fn refuse(&mut self, exit: Exit, reason: &str) {
        for guest in &mut self.guests {
            refuse(&mut guest.connection, exit, reason);
        }
        self.guests.clear();
    }

    fn let_in(&mut self) -> Result<(), Error> {
        for door in &mut self.doors {
            match door.accept(None, Some(LOOK))? {
                // One more than there are is one that will say something wrong.
                Accepted::Connection(connection) if self.guests.len() <= self.ranks as usize => {
                    self.guests.push(Guest {
                        connection: *connection,
                        hello: None,
                        is_ready: false,
                    });
                }
                Accepted::TurnedAway(address, error) => {
                    self.stranger = format!("; {address} was turned away: {error}")
                }
                Accepted::Connection(_) | Accepted::Woken | Accepted::Late => {}
            }
        }
        Ok(())
    }

    /// What the guests say now. `zero`: hellos are expected, that fit to this one.
    fn listen(&mut self, zero: Option<&Hello>, tick: Tick<'_>) -> Result<(), Error> {
        for at in 0..self.guests.len() {
            let guest = &mut self.guests[at];
            let text = match guest.connection.receive_or_wake(None, Some(Duration::ZERO)) {
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
                (Word::Ready, None) if !guest.is_ready => guest.is_ready = true,
                _ => return Err(disorder(format!("{} says something out of turn", self.who(at)))),
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, hello: Box<Hello>, zero: &Hello) -> Result<(), Error> {
        hello
            .check(zero)
            .map_err(|reason| Error::Disagreement { reason })?;
        let twice = self.guests.iter().flat_map(|guest| &guest.hello);
        if hello.rank < self.before || twice.into_iter().any(|known| known.rank == hello.rank) {
            return Err(disorder(format!(
                "a new process says that it is rank {}, which is another",
                hello.rank
            )));
        }
        if self.guests[at].hello.replace(hello).is_some() {
            return Err(disorder(format!("{} says who it is twice", self.who(at))));
        }
        Ok(())
    }

    /// Somebody has gone: how, if the launcher says so in time.
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
            reason: format!(
                "{} went away before all had joined: see its own output",
                self.who(at)
            ),
        }
    }

    fn who(&self, at: usize) -> String {
        let hello = self.guests.get(at).and_then(|guest| guest.hello.as_ref());
        hello.map_or_else(|| "a new rank".to_owned(), |hello| format!("rank {}", hello.rank))
    }

    fn in_time(&self, what: &str, is_done: impl Fn(&Guest) -> bool) -> Result<(), Error> {
        if !self.left().is_zero() {
            return Ok(());
        }
        let done = self.guests.iter().filter(|guest| is_done(guest));
        let done: Vec<u32> = done
            .flat_map(|guest| &guest.hello)
            .map(|hello| hello.rank)
            .collect();
        let missing = (self.before..self.before + self.ranks).filter(|rank| !done.contains(rank));
        let missing: Vec<u32> = missing.collect();
        Err(Error::NotSpawned {
            exit: Exit::TimedOut,
            reason: format!(
                "{} did not {what} within {:.1} s{}: look at what they do, and raise the limit if they are merely slow",
                ranks(&missing),
                self.limit.as_secs_f64(),
                self.stranger
            ),
        })
    }
}
