//! How processes that a running job had started meet the ranks that are there: each calls rank 0 of those.
//!
//! ```text
//!   rank 0 of n                     the launcher                  new process i of k: rank n + i
//!     listens; invitation {key, addresses, n, k} ──────────────►
//!     ◄───────────────────────────────────────────  calls (Noise, by that key), hello {version, rails …}
//!   all k are there
//!     table {key, n + k hellos} ─────────────────────────────►
//!                                                              each opens its rails to the others
//!     ◄───────────────────────────────────────────────  ready
//!   all old ranks and all new ones are ready
//!     ready ─────────────────────────────────────────────────►    the world is there
//! ```
//!
//! In place of any word, a *refusal* says why not, and is the end for all. The key is drawn for this meeting alone. The
//! root's side is `host`; this file has what both say, and the new processes' side. The words are parsed as strictly as those
//! of any meeting, also the launcher's.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_oob::{Connection, JobKey, Launcher, OobError, Terms};
use serde::{Deserialize, Serialize};

use super::remote::{Word, exit_of, shown, within_network};
use super::wire::{LONGEST_HELLO, LONGEST_TABLE};
use super::{Hello, Key, Meeting, host_id};
use crate::error::Error;
use crate::random;
use crate::types::MOST_RANKS;

/// What a session is for: the meeting of a job and those that it had started.
const SPAWN: u16 = 2;
/// Addresses of one invitation.
const MOST_ADDRESSES: usize = 16;
/// Longest that one address is tried while there are others.
const TRY: Duration = Duration::from_secs(5);
/// Between two rounds over all addresses.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for the last words to one who is turned away.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What new processes are told through the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Invitation {
    pub(super) version: String,
    /// The key of the meeting.
    pub(super) key: Key,
    /// The host of who invites, as [`within_network`] has it.
    pub(super) host: String,
    /// Where who invites listens.
    pub(super) addresses: Vec<SocketAddr>,
    /// Ranks that are there.
    pub(super) before: u32,
    /// Ranks that are to come.
    pub(super) ranks: u32,
    /// For how long they are waited for, in milliseconds.
    pub(super) wait: u64,
}

impl Invitation {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Error> {
        let bad = |reason: String| disorder(format!("the invitation {reason}"));
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
            return Err(bad(format!("has not from 1 to {MOST_ADDRESSES} addresses")));
        }
        Ok(read)
    }

    /// Writes it for the launcher.
    ///
    /// # Errors
    /// When it is too long.
    pub fn write(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| disorder(error.to_string()))
    }

    /// Where to call, likely addresses first.
    fn ways(&self) -> Vec<SocketAddr> {
        let is_here = self.host == within_network(host_id());
        let loopback = |address: &&SocketAddr| address.ip().is_loopback();
        let near = self.addresses.iter().filter(loopback).filter(|_| is_here);
        let far = self.addresses.iter().filter(|address| !loopback(address));
        near.chain(far).copied().collect()
    }
}

/// Both sides' terms: messages may be as long as the table of such a job.
pub(super) fn terms(key: &Key, size: u32) -> Result<Terms, Error> {
    let key = JobKey::from_bytes(*key.bytes());
    let mut terms = Terms::new(Some(key), SPAWN, random::number()?);
    terms.longest = (size as usize + 2)
        .saturating_mul(LONGEST_HELLO)
        .min(LONGEST_TABLE);
    Ok(terms)
}

/// Refuses words of another version of doorbell.
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

/// What somebody in the meeting says.
pub(super) fn parse_word(text: &[u8]) -> Result<Word, Error> {
    let bad = |error: serde_json::Error| disorder(format!("what is said does not parse: {error}"));
    let value: serde_json::Value = serde_json::from_slice(text).map_err(bad)?;
    same_version(&value, "/hello/version")?;
    serde_json::from_value(value).map_err(bad)
}

pub(super) fn say(connection: &mut Connection, word: &Word, limit: Duration) -> Result<(), Error> {
    // Plain enums, strings and numbers: nothing in them can fail to be written.
    let text = serde_json::to_vec(word).map_err(|error| disorder(error.to_string()))?;
    Ok(connection.send(&text, limit)?)
}

/// A refusal, for whoever still listens.
pub(super) fn refuse(connection: &mut Connection, exit: Exit, reason: &str) {
    let word = Word::Refusal {
        exit: exit.number(),
        reason: reason.to_owned(),
    };
    // Who went away knows.
    let _ = say(connection, &word, LAST_WORDS);
}

pub(super) fn disorder(reason: String) -> Error {
    Error::Meeting {
        root: "the door for new ranks".to_owned(),
        reason,
    }
}

/// A process that was invited, before it has called.
#[derive(Debug)]
pub struct Invited {
    invitation: Invitation,
    at: u32,
    until: Instant,
}

impl Invited {
    /// Whether this process was invited to a job.
    ///
    /// # Errors
    /// What the launcher says; an invitation that is none.
    pub fn through(door: &mut dyn Launcher, limit: Duration) -> Result<Option<Self>, Error> {
        let Some(text) = door.invitation(limit)? else {
            return Ok(None);
        };
        let invitation = Invitation::parse(&text)?;
        let at = door.place().rank;
        if at >= invitation.ranks {
            return Err(disorder(format!(
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

    /// This process's rank in the world to be.
    pub fn rank(&self) -> u32 {
        self.invitation.before + self.at
    }

    /// That world's size.
    pub fn size(&self) -> u32 {
        self.invitation.before + self.invitation.ranks
    }

    /// How many ranks there were before.
    pub fn before(&self) -> u32 {
        self.invitation.before
    }

    /// Calls, and gives what this process has prepared, or the reason why it cannot take part.
    ///
    /// # Errors
    /// Our own reason, when there is one; [`Error::NotSpawned`] in the words of who invited us.
    pub fn meet<R>(self, prepared: Result<(R, Hello), Error>) -> Result<(R, Meeting, Seat), Error> {
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
        say(&mut seat.connection, &word, left).map_err(given_up)?;
        let meeting = match seat.hear()? {
            Word::Table(meeting) => *meeting,
            _ => return Err(disorder("rank 0 says something out of turn".to_owned())),
        };
        match checked(&meeting, &own) {
            Ok(()) => Ok((things, meeting, seat)),
            Err(error) => Err(seat.refuse(error)),
        }
    }

    /// The first address that answers.
    fn call(&self) -> Result<Connection, Error> {
        let terms = terms(&self.invitation.key, self.size())?;
        let ways = self.invitation.ways();
        let mut last: Option<Error> = None;
        loop {
            // Who invites listens from before the invitation on: who is refused everywhere comes too late.
            let mut is_shut = true;
            for address in &ways {
                let left = self.until.saturating_duration_since(Instant::now());
                let limit = if ways.len() > 1 { left.min(TRY) } else { left };
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
                        "those who had this process started, on host {}, cannot be called{why}; ranks of several hosts need a \
                         rail between them that is named (DOORBELL_RAILS=udp:eth0)",
                        shown(&self.invitation.host)
                    ),
                });
            }
            std::thread::sleep(PAUSE.min(left));
        }
    }
}

/// A meeting that ends without a word for us.
fn given_up(error: Error) -> Error {
    Error::NotSpawned {
        exit: Exit::PeerLost,
        reason: format!(
            "the job that had this process started gave it up: see the output of its rank 0 ({error})"
        ),
    }
}

/// The table, when it is one: every rank in its place, ourselves among them.
fn checked(meeting: &Meeting, own: &Hello) -> Result<(), Error> {
    let in_order = (0..own.size).eq(meeting.ranks.iter().map(|hello| hello.rank));
    if !in_order || meeting.ranks.get(own.rank as usize) != Some(own) {
        return Err(disorder(
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

    fn hear(&mut self) -> Result<Word, Error> {
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

    /// Says that this rank can, and waits until all have said so.
    ///
    /// # Errors
    /// Why there is no world, as rank 0 says it.
    pub fn start(mut self) -> Result<(), Error> {
        let left = self.left();
        say(&mut self.connection, &Word::Ready, left).map_err(given_up)?;
        match self.hear()? {
            Word::Ready => {
                // Nothing is said any more.
                let _ = self.connection.close(LAST_WORDS);
                Ok(())
            }
            _ => Err(disorder("rank 0 says something out of turn".to_owned())),
        }
    }

    /// Says why this rank cannot; gives the error back.
    pub fn refuse(mut self, error: Error) -> Error {
        refuse(&mut self.connection, error.exit(), &error.to_string());
        error
    }
}

/// Addresses at which a root can listen: loopback, and those of its rails that are the kernel's.
pub(super) fn addresses(own: &Hello, is_far: bool) -> Vec<SocketAddr> {
    use doorbell_fabric::addr::Address;
    let mut all = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let of_rails = own.rails.iter().filter_map(|rail| match &rail.address.address {
        Address::Inet(address) => Some(address.ip()),
        Address::Native(_) => None,
    });
    for address in of_rails.filter(|_| is_far) {
        // The number of an interface, which such an address needs, is this host's alone.
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
        assert_eq!(one.ways(), ["10.0.0.1:8".parse().unwrap()]);
        let near = Invitation {
            host: within_network(host_id()),
            ..one
        };
        assert_eq!(near.ways(), near.addresses);
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
        let mut own = Hello::of_this_process(0, 2, Default::default(), Vec::new()).unwrap();
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
