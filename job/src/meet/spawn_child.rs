//! The meeting of processes that a running job has started with its ranks: each new process connects to rank
//! 0 of the job.
//!
//! ```text
//!   rank 0 of n                     the launcher                  new process i of k: rank n + i
//!     listens; invitation {key, addresses, n, k} ──────────────►
//!     ◄───────────────────────────────────────────  connects (Noise, by that key), hello {version, rails …}
//!   all k are there
//!     table {key, n + k hellos} ─────────────────────────────►
//!                                                              each opens its rails to the others
//!     ◄───────────────────────────────────────────────  ready
//!   all old ranks and all new ones are ready
//!     ready ─────────────────────────────────────────────────►    the new world begins
//! ```
//!
//! Instead of any message, a side may send a *refusal* with the reason, which ends the meeting for all. The
//! key is drawn for this meeting alone. `host` is rank 0's side; this file has the messages, and the side of
//! the new processes. Messages and the launcher's values are parsed as strictly as in any meeting.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::{Connection, JobKey, Launcher, OobError, Terms};
use serde::{Deserialize, Serialize};

use super::tcp::{Word, exit_of, shown, within_network};
use super::wire::{LONGEST_HELLO, LONGEST_TABLE};
use super::{Key, Meeting, RankInfo, host_id};
use crate::error::Error;
use crate::random;
use crate::types::MOST_RANKS;

/// The purpose of the sessions: the meeting of a job and the processes that it has started.
const SPAWN: u16 = 2;
/// Most addresses of one invitation.
const MOST_ADDRESSES: usize = 16;
/// Longest attempt at one address while there are others.
const TRY: Duration = Duration::from_secs(5);
/// Pause between two rounds over all addresses.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for the message to a client that is refused.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What new processes get through the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    pub(super) version: String,
    /// The key of the meeting.
    pub(super) key: Key,
    /// The host of the inviting rank, as [`within_network`] has it.
    pub(super) host: String,
    /// The addresses at which the inviting rank listens.
    pub(super) addresses: Vec<SocketAddr>,
    /// The number of ranks that the job has already.
    pub(super) before: u32,
    /// The number of new ranks.
    pub(super) ranks: u32,
    /// How long the inviting rank waits for them, in milliseconds.
    pub(super) wait: u64,
}

impl Invitation {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Error> {
        let bad = |reason: String| meeting_error(format!("the invitation {reason}"));
        if text.len() > LONGEST_HELLO {
            return Err(bad("is too long".to_owned()));
        }
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| bad(format!("does not parse: {error}")))?;
        same_version(&value, "/version")?;
        let read: Self =
            serde_json::from_value(value).map_err(|error| bad(format!("does not parse: {error}")))?;
        let size = read.before.checked_add(read.ranks);
        if read.before == 0 || read.ranks == 0 || size.is_none_or(|size| size > MOST_RANKS) {
            return Err(bad(format!(
                "is to {} ranks of {}, and a job has at most {MOST_RANKS}",
                read.ranks, read.before
            )));
        }
        if read.addresses.is_empty() || read.addresses.len() > MOST_ADDRESSES {
            return Err(bad(format!("has none or more than {MOST_ADDRESSES} addresses")));
        }
        Ok(read)
    }

    /// Serializes the invitation for the launcher.
    ///
    /// # Errors
    /// When it is too long.
    pub fn write(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| meeting_error(error.to_string()))
    }

    /// Returns the addresses to connect to, likely ones first.
    fn reachable(&self) -> Vec<SocketAddr> {
        let is_here = self.host == within_network(host_id());
        let loopback = |address: &&SocketAddr| address.ip().is_loopback();
        let near = self.addresses.iter().filter(loopback).filter(|_| is_here);
        let far = self.addresses.iter().filter(|address| !loopback(address));
        near.chain(far).copied().collect()
    }
}

/// Returns the terms of both sides: messages may be as long as the table of such a job.
pub(super) fn terms(key: &Key, size: u32) -> Result<Terms, Error> {
    let key = JobKey::from_bytes(*key.bytes());
    let mut terms = Terms::new(Some(key), SPAWN, random::number()?);
    terms.longest = (size as usize + 2)
        .saturating_mul(LONGEST_HELLO)
        .min(LONGEST_TABLE);
    Ok(terms)
}

/// Refuses messages of another version of doorbell.
pub(super) fn same_version(value: &serde_json::Value, at: &str) -> Result<(), Error> {
    let ours = env!("CARGO_PKG_VERSION");
    match value.pointer(at).and_then(serde_json::Value::as_str) {
        Some(theirs) if theirs != ours => Err(Error::Disagreement {
            reason: format!(
                "the job and the ranks that it has started are of doorbell {} and {ours}",
                shown(theirs)
            ),
        }),
        _ => Ok(()),
    }
}

/// Parses a message of the meeting.
pub(super) fn parse_word(text: &[u8]) -> Result<Word, Error> {
    let bad = |error: serde_json::Error| meeting_error(format!("a message does not parse: {error}"));
    let value: serde_json::Value = serde_json::from_slice(text).map_err(bad)?;
    same_version(&value, "/hello/version")?;
    serde_json::from_value(value).map_err(bad)
}

pub(super) fn send(connection: &mut Connection, word: &Word, limit: Duration) -> Result<(), Error> {
    // The message consists of plain enums, strings and numbers, which always serialize.
    let text = serde_json::to_vec(word).map_err(|error| meeting_error(error.to_string()))?;
    Ok(connection.send(&text, limit)?)
}

/// Sends a refusal, if the client is still there.
pub(super) fn refuse(connection: &mut Connection, exit: Exit, reason: &str) {
    let word = Word::Refusal {
        exit: exit.number(),
        reason: reason.to_owned(),
    };
    // A client that has closed needs no reason.
    let _ = send(connection, &word, LAST_WORDS);
}

pub(super) fn meeting_error(reason: String) -> Error {
    Error::Meeting {
        root: "the listener for new ranks".to_owned(),
        reason,
    }
}

/// A process with an invitation, before it connects.
#[derive(Debug)]
pub struct Invited {
    invitation: Invitation,
    at: u32,
    until: Instant,
}

impl Invited {
    /// Reads the invitation of this process, if the launcher has one.
    ///
    /// # Errors
    /// Errors of the launcher; an invitation that does not parse.
    pub fn through(launcher: &mut dyn Launcher, limit: Duration) -> Result<Option<Self>, Error> {
        let Some(text) = launcher.invitation(limit)? else {
            return Ok(None);
        };
        let invitation = Invitation::parse(&text)?;
        let at = launcher.place().rank;
        if at >= invitation.ranks {
            return Err(meeting_error(format!(
                "{} ranks are invited, and this is number {at} of them",
                invitation.ranks
            )));
        }
        let until = Instant::now() + Duration::from_millis(invitation.wait).min(limit);
        Ok(Some(Self {
            invitation,
            at,
            until,
        }))
    }

    /// Returns this process's rank in the new world.
    pub fn rank(&self) -> u32 {
        self.invitation.before + self.at
    }

    /// Returns the size of the new world.
    pub fn size(&self) -> u32 {
        self.invitation.before + self.invitation.ranks
    }

    /// Returns the number of ranks that the job had before.
    pub fn before(&self) -> u32 {
        self.invitation.before
    }

    /// Connects, and sends what this process has prepared, or the reason why it cannot take part.
    ///
    /// # Errors
    /// This process's own reason, if there is one; [`Error::NotSpawned`] with the reason of the inviting
    /// rank.
    pub fn meet<R>(self, prepared: Result<(R, RankInfo), Error>) -> Result<(R, Meeting, Seat), Error> {
        let called = self.call();
        let (things, mut own) = match (prepared, called.as_ref().is_ok()) {
            (Ok(prepared), _) => prepared,
            (Err(error), _) => {
                if let Ok(mut connection) = called {
                    refuse(&mut connection, error.exit(), &error.to_string());
                }
                return Err(error);
            }
        };
        own.host = within_network(own.host);
        let mut seat = Seat {
            connection: called?,
            until: self.until,
        };
        let word = Word::Hello {
            version: own.version.clone(),
            key: None,
            hello: Box::new(own.clone()),
        };
        let left = seat.left();
        send(&mut seat.connection, &word, left).map_err(given_up)?;
        let meeting = match seat.receive()? {
            Word::Table(meeting) => *meeting,
            _ => return Err(meeting_error("rank 0 sent a message out of turn".to_owned())),
        };
        match checked(&meeting, &own) {
            Ok(()) => Ok((things, meeting, seat)),
            Err(error) => Err(seat.refuse(error)),
        }
    }

    /// Connects to the first address that answers.
    fn call(&self) -> Result<Connection, Error> {
        let terms = terms(&self.invitation.key, self.size())?;
        let reachable = self.invitation.reachable();
        let mut last: Option<Error> = None;
        loop {
            // The inviting rank listens before it invites: refused at every address means that this process
            // is too late.
            let mut is_shut = true;
            for address in &reachable {
                let left = self.until.saturating_duration_since(Instant::now());
                let limit = if reachable.len() > 1 { left.min(TRY) } else { left };
                if left.is_zero() {
                    break;
                }
                match Connection::connect(&(*address).into(), &terms, limit) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => {
                        is_shut &= matches!(&error, OobError::Connect { source, .. } if source.kind() == ErrorKind::ConnectionRefused);
                        last = Some(error.into());
                    }
                }
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_shut {
                let why = match last {
                    Some(error) => format!(" ({error})"),
                    None => String::new(),
                };
                return Err(Error::NotSpawned {
                    exit: Exit::PeerLost,
                    reason: format!(
                        "the ranks that had this process started, on host {}, cannot be reached{why}; ranks of several hosts need a \
                         rail between them that is named (DOORBELL_RAILS=udp:eth0)",
                        shown(&self.invitation.host)
                    ),
                });
            }
            std::thread::sleep(PAUSE.min(left));
        }
    }
}

/// Makes the error of a meeting that ends without a message to this process.
fn given_up(error: Error) -> Error {
    Error::NotSpawned {
        exit: Exit::PeerLost,
        reason: format!(
            "the job that had this process started has abandoned it: see the output of its rank 0 ({error})"
        ),
    }
}

/// Checks a table: every rank at its index, this one among them, and no contradiction.
fn checked(meeting: &Meeting, own: &RankInfo) -> Result<(), Error> {
    let in_order = (0..own.size).eq(meeting.ranks.iter().map(|hello| hello.rank));
    if !in_order || meeting.ranks.get(own.rank as usize) != Some(own) {
        return Err(meeting_error(
            "the table does not hold every rank in its place".to_owned(),
        ));
    }
    let misfit = meeting.ranks.iter().find_map(|hello| hello.check(own).err());
    misfit.map_or(Ok(()), |reason| Err(Error::Disagreement { reason }))
}

/// A new rank that has the table, until all are ready.
#[derive(Debug)]
pub struct Seat {
    connection: Connection,
    until: Instant,
}

impl Seat {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn receive(&mut self) -> Result<Word, Error> {
        let left = self.left();
        let text = self
            .connection
            .receive(left)
            .map_err(Error::from)
            .map_err(given_up)?;
        match parse_word(&text)? {
            Word::Refusal { exit, reason } => Err(Error::NotSpawned {
                exit: exit_of(exit),
                reason: shown(&reason),
            }),
            word => Ok(word),
        }
    }

    /// Reports that this rank is ready, and waits until all are.
    ///
    /// # Errors
    /// Why there is no world, as rank 0 reports it.
    pub fn start(mut self) -> Result<(), Error> {
        let left = self.left();
        send(&mut self.connection, &Word::Ready, left).map_err(given_up)?;
        match self.receive()? {
            Word::Ready => {
                // The meeting is over.
                let _ = self.connection.close(LAST_WORDS);
                Ok(())
            }
            _ => Err(meeting_error("rank 0 sent a message out of turn".to_owned())),
        }
    }

    /// Sends the reason why this rank cannot take part; returns the error.
    pub fn refuse(mut self, error: Error) -> Error {
        refuse(&mut self.connection, error.exit(), &error.to_string());
        error
    }
}

/// Returns the addresses at which a root can listen: loopback, and those of its rails that the kernel has,
/// too.
pub(super) fn addresses(own: &RankInfo, is_far: bool) -> Vec<SocketAddr> {
    use doorbell_fabric::addr::Address;
    let mut all = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let of_rails = own.rails.iter().filter_map(|rail| match &rail.address.address {
        Address::Inet(address) => Some(address.ip()),
        Address::Native(_) => None,
    });
    for address in of_rails.filter(|_| is_far) {
        // A link-local address needs an interface number, which is valid on this host alone.
        let is_link = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !address.is_unspecified() && !is_link && !all.contains(&address) {
            all.push(address);
        }
    }
    all.truncate(MOST_ADDRESSES);
    all.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation() -> Invitation {
        Invitation {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: Key::of_seed(1),
            host: "here".to_owned(),
            addresses: vec!["127.0.0.1:7".parse().unwrap(), "10.0.0.1:8".parse().unwrap()],
            before: 2,
            ranks: 3,
            wait: 1000,
        }
    }

    #[test]
    fn invitations_are_read_as_they_are_written() {
        let one = invitation();
        assert_eq!(Invitation::parse(&one.write().unwrap()).unwrap(), one);
        assert!(!format!("{one:?}").contains("[1, 0"), "the key is shown");
        // Loopback is for the same host only.
        assert_eq!(one.reachable(), ["10.0.0.1:8".parse().unwrap()]);
        let near = Invitation {
            host: within_network(host_id()),
            ..one
        };
        assert_eq!(near.reachable(), near.addresses);
    }

    #[test]
    fn invitations_that_are_none_are_refused() {
        let of = |edit: fn(&mut Invitation)| {
            let mut one = invitation();
            edit(&mut one);
            one.write().unwrap()
        };
        for (text, word) in [
            (b"{".to_vec(), "does not parse"),
            (b"[]".to_vec(), "does not parse"),
            (vec![b' '; LONGEST_HELLO + 1], "too long"),
            (of(|one| one.before = 0), "3 ranks of 0"),
            (of(|one| one.ranks = 0), "0 ranks of 2"),
            (of(|one| one.ranks = u32::MAX), "a job has at most"),
            (of(|one| one.addresses.clear()), "addresses"),
            (of(|one| one.addresses = vec![one.addresses[0]; 17]), "addresses"),
            (of(|one| one.version = "99.0\u{1b}".to_owned()), "doorbell 99.0 "),
        ] {
            let error = Invitation::parse(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn rails_of_the_kernel_say_where_to_listen() {
        use crate::meet::RailEntry;
        use doorbell_fabric::addr::RailAddress;
        let rail = |address| RailEntry {
            name: "udp:x".to_owned(),
            wire: "w".to_owned(),
            address,
            incarnation: 1,
            features: Vec::new(),
            eager: 1,
            place: doorbell_fabric::pairs::Place::default(),
        };
        let inet = |text: &str| rail(RailAddress::inet("udp", text.parse().unwrap()));
        let mut own = RankInfo::of_this_process(0, 2, Default::default(), Vec::new()).unwrap();
        own.rails = vec![
            rail(RailAddress::native("shm", [1])),
            inet("10.1.2.3:9"),
            inet("[fe80::1]:9"),
            inet("127.0.0.1:9"),
            inet("0.0.0.0:9"),
        ];
        let shown: Vec<String> = addresses(&own, true).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["127.0.0.1:0", "[::1]:0", "10.1.2.3:0"]);
        assert_eq!(addresses(&own, false).len(), 2);
    }
}
