//! The meeting of two ranks on different hosts: over one connection of the control plane, which is
//! authenticated and stays open for as long as the job.
//!
//! ```text
//!   rank 0 (it connected)                          rank 1 (it listened)
//!     hello {version, key, rails …} ──────────────►
//!     ◄────────────────────────────── hello {version, rails …}
//!       each chooses its rails to the other
//!     ready ──────────────────────────────────────►                        both are ready
//!     ◄──────────────────────────────────────  ready
//!       messages go over the rails; the connection is silent
//!     close ◄────────────────────────────────────►  close                  all is sent
//! ```
//!
//! Instead of any message, a side may send a *refusal* with the reason and the exit status that its program
//! will end with; a busy server sends *occupied* instead of its hello. Every step has a limit. The connection
//! needs no thread: it carries nothing while the job runs, and a poll from time to time notices its end, with
//! that of the process or its host ([`Life`]).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use doorbell_fabric::error::Exit;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::time::Time;
use doorbell_oob::lines::tcp::blocking::Incoming;
use doorbell_oob::{Connection, OobError, Role};
use doorbell_pml::Rank;
use serde::{Deserialize, Serialize};

use super::{Key, Meeting, RankInfo};
use crate::error::Error;

/// The number of ranks that meet over one connection.
pub const RANKS: u32 = 2;
/// Interval at which a running program polls the connection, and so the delay until it notices its peer's
/// end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for the message to a client that is refused.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Longest reason of the other side that is shown, in characters.
const REASON_MAX: usize = 1000;

/// A message of the meeting.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    /// What a rank publishes about itself. Parsed in two steps, since only the version of another version's
    /// message is understood.
    Hello {
        version: String,
        key: Option<Key>,
        hello: Box<RankInfo>,
    },
    /// The hellos of all ranks, for processes that a running job has started.
    Table(Box<Meeting>),
    /// The sender has chosen and opened its rails.
    Ready,
    /// There will be no job, for this reason.
    Refusal { exit: u8, reason: String },
    /// The server is busy: the client may try again later.
    Occupied { reason: String },
}

/// One rank's side of the meeting.
#[derive(Debug)]
pub struct Remote {
    connection: Connection,
    limit: Duration,
}

impl Remote {
    /// Begins a meeting over `connection`; `limit` applies to each step.
    pub fn over(connection: Connection, limit: Duration) -> Self {
        Self { connection, limit }
    }

    /// Returns this side's rank: the side that connected is rank 0.
    pub fn rank(&self) -> u32 {
        match self.connection.role() {
            Role::Caller => 0,
            Role::Answerer => 1,
        }
    }

    /// Exchanges the hellos.
    ///
    /// # Errors
    /// A contradiction between the hellos, which both sides get; [`Error::Occupied`]; errors of the
    /// connection.
    pub fn meet(&mut self, mut own: RankInfo) -> Result<Meeting, Error> {
        own.host = within_network(own.host);
        let key = match self.connection.role() {
            Role::Caller => Some(Key::random()?),
            Role::Answerer => None,
        };
        let word = Word::Hello {
            version: own.version.clone(),
            key,
            hello: Box::new(own.clone()),
        };
        let received = self.exchange(&word)?;
        let met = self.judge(own, key, received);
        met.map_err(|error| self.refuse(error))
    }

    fn judge(&self, own: RankInfo, key: Option<Key>, received: Word) -> Result<Meeting, Error> {
        let Word::Hello {
            key: theirs, hello, ..
        } = received
        else {
            return Err(self.meeting_error("it sent another message before its hello"));
        };
        let other = RANKS - 1 - self.rank();
        if hello.rank != other || hello.size != RANKS {
            return Err(self.meeting_error("its hello has the wrong rank or size"));
        }
        let mut ranks = vec![own, *hello];
        ranks.sort_by_key(|hello| hello.rank);
        ranks[1]
            .check(&ranks[0])
            .map_err(|reason| Error::Disagreement { reason })?;
        if ranks.iter().any(|hello| hello.rails.len() > super::MOST_RAILS) {
            return Err(self.meeting_error("its hello has too many rails"));
        }
        match key.xor(theirs) {
            Some(key) => Ok(Meeting { key, ranks }),
            None => {
                Err(self.meeting_error("the key of the job has to come from rank 0, and only from rank 0"))
            }
        }
    }

    /// Reports that this side is ready, and waits for the same report of the other.
    ///
    /// # Errors
    /// Those of [`Remote::meet`].
    pub fn start(mut self) -> Result<Life, Error> {
        match self.exchange(&Word::Ready)? {
            Word::Ready => Ok(Life {
                peer: Rank(RANKS - 1 - self.rank()),
                connection: self.connection,
                look_at: Time::ZERO,
                over: false,
            }),
            _ => Err(self.meeting_error("it sent its hello twice")),
        }
    }

    /// Reports to the other side why there will be no job; returns the error.
    #[cold]
    pub fn refuse(&mut self, error: Error) -> Error {
        // A side that has refused us, or has closed, needs no reason.
        if !matches!(
            error,
            Error::Refused { .. } | Error::Occupied { .. } | Error::Oob(_)
        ) {
            let word = Word::Refusal {
                exit: error.exit().number(),
                reason: error.to_string(),
            };
            let _ = self.send(&word, LAST_WORDS);
        }
        error
    }

    fn send(&mut self, word: &Word, limit: Duration) -> Result<(), Error> {
        // The message consists of plain enums, strings and numbers, which always serialize.
        let text = serde_json::to_vec(word).map_err(|error| self.meeting_error(&error.to_string()))?;
        Ok(self.connection.send(&text, limit)?)
    }

    /// Sends a message and receives one, even if sending fails: the other side may have sent a refusal and
    /// closed.
    fn exchange(&mut self, word: &Word) -> Result<Word, Error> {
        let sent = self.send(word, self.limit);
        let received = self.connection.receive(self.limit);
        let text = match (sent, received) {
            (_, Ok(text)) => text,
            (Err(error), Err(_)) => return Err(error),
            (Ok(()), Err(error)) => return Err(error.into()),
        };
        let address = self.connection.address();
        match self.parse(&text).map_err(|error| self.refuse(error))? {
            Word::Refusal { exit, reason } => Err(Error::Refused {
                address,
                exit: exit_of(exit),
                reason: shown(&reason),
            }),
            Word::Occupied { reason } => Err(Error::Occupied {
                address,
                reason: shown(&reason),
            }),
            word => Ok(word),
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Word, Error> {
        let value: serde_json::Value =
            serde_json::from_slice(text).map_err(|error| self.meeting_error(&error.to_string()))?;
        let theirs = value
            .pointer("/hello/version")
            .and_then(serde_json::Value::as_str);
        let ours = env!("CARGO_PKG_VERSION");
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            let [zero, one] = if self.rank() == 0 {
                [ours, theirs]
            } else {
                [theirs, ours]
            };
            return Err(Error::Disagreement {
                reason: format!("rank 1 runs doorbell {}, rank 0 runs {}", shown(one), shown(zero)),
            });
        }
        serde_json::from_value(value).map_err(|error| self.meeting_error(&error.to_string()))
    }

    fn meeting_error(&self, reason: &str) -> Error {
        Error::Meeting {
            root: self.connection.address().to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// Reports to the client at the other end of `connection` that this process is busy, and why; the client may
/// try again.
pub fn occupied(mut connection: Connection, reason: &str) {
    let word = Word::Occupied {
        reason: reason.to_owned(),
    };
    let text = serde_json::to_vec(&word).unwrap_or_default();
    if connection.send(&text, LAST_WORDS).is_ok() {
        let _ = connection.close(LAST_WORDS);
    }
}

/// The connection while the job runs: it reports the end of the other rank.
#[derive(Debug)]
pub struct Life {
    connection: Connection,
    peer: Rank,
    look_at: Time,
    over: bool,
}

impl Life {
    /// Returns the other rank.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Returns the other side's address.
    pub fn address(&self) -> SocketAddr {
        self.connection.address()
    }

    /// Whether the other rank has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns how the other rank ended, once, if it has and the next poll is due.
    #[inline]
    pub fn look(&mut self, now: Time) -> Option<DownReason> {
        if now < self.look_at || self.over {
            return None;
        }
        self.look_now(now)
    }

    #[cold]
    fn look_now(&mut self, now: Time) -> Option<DownReason> {
        self.look_at = now + LOOK_EVERY;
        let reason = match self.connection.receive_or_wake(None, Some(Duration::ZERO)) {
            Ok(Incoming::Late | Incoming::Woken) => return None,
            Ok(Incoming::Closed) => DownReason::Closed,
            Err(OobError::Truncated | OobError::Broken { .. }) => DownReason::Died,
            // The other rank has nothing to send while the job runs.
            Ok(Incoming::Message(_)) | Err(_) => DownReason::Hostile,
        };
        self.over = true;
        Some(reason)
    }

    /// Returns the descriptor for a sleeper to poll; the next look happens at once after it wakes.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.look_at = Time::ZERO;
        (!self.over).then(|| self.connection.as_fd())
    }

    /// Closes the connection: everything that was accepted has been sent.
    pub fn leave(self, limit: Duration) {
        // The other side may have closed first.
        let _ = self.connection.close(limit);
    }
}

/// Extends a host's name by its network namespace: ranks count as on one host if they share memory and
/// abstract socket names, which network namespaces keep apart.
pub fn within_network(host: String) -> String {
    match std::fs::read_link("/proc/self/ns/net") {
        Ok(network) => format!("{host} {}", network.display()),
        Err(_) => host,
    }
}

/// Returns the exit status for the number that another program sent.
pub fn exit_of(number: u8) -> Exit {
    let all = [
        Exit::Usage,
        Exit::Rail,
        Exit::PeerLost,
        Exit::TimedOut,
        Exit::System,
    ];
    let known = all.into_iter().find(|exit| exit.number() == number);
    known.unwrap_or(Exit::PeerLost)
}

/// Makes a text of the other side fit for printing: of limited length, and without control characters.
pub fn shown(text: &str) -> String {
    text.chars()
        .take(REASON_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
