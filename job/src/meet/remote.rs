//! How two ranks on different hosts meet: over one connection of the control plane, which is authenticated and stays
//! open for as long as the job.
//!
//! ```text
//!   rank 0 (it called)                             rank 1 (it was called)
//!     hello {version, key, rails …} ──────────────►
//!     ◄────────────────────────────── hello {version, rails …}
//!       each chooses its rails to the other
//!     ready ──────────────────────────────────────►                        start: both know that both can
//!     ◄──────────────────────────────────────  ready
//!       messages go over the rails; the connection is silent
//!     leave ◄────────────────────────────────────►  leave                  end: what was accepted had been pushed out
//! ```
//!
//! In place of any word, a *refusal* tells why not, and how the program that refuses will end; who is occupied says so
//! in place of its hello. Every step has a limit. The connection needs no thread: nothing is said while the job runs,
//! and that it ended, with the process or with its host, is seen by a look now and then ([`Life`]).

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use doorbell_fabric::error::Exit;
use doorbell_fabric::event::DownReason;
use doorbell_fabric::time::Time;
use doorbell_oob::tcp::Incoming;
use doorbell_oob::{Connection, OobError, Role};
use doorbell_pml::Rank;
use serde::{Deserialize, Serialize};

use super::{Hello, Key, Meeting};
use crate::error::Error;

/// Ranks that meet over one connection.
pub const RANKS: u32 = 2;
/// A living program looks at the connection that often: its peer's end is known within this time.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for the last words to one who is turned away.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Longest reason that is believed and shown, in characters.
const REASON_MAX: usize = 1000;

/// What the two tell each other.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    /// Who a rank is. Read in two steps: of another version, only the version is understood.
    Hello {
        version: String,
        key: Option<Key>,
        hello: Box<Hello>,
    },
    /// Who all ranks are: to those that were started by a running job.
    Table(Box<Meeting>),
    /// The rails are chosen, and open.
    Ready,
    /// There will be no job.
    Refusal { exit: u8, reason: String },
    /// There will be none now.
    Occupied { reason: String },
}

/// One rank's side of the meeting.
#[derive(Debug)]
pub struct Remote {
    connection: Connection,
    limit: Duration,
}

impl Remote {
    /// A meeting over `connection`; each step may take `limit`.
    pub fn over(connection: Connection, limit: Duration) -> Self {
        Self { connection, limit }
    }

    /// Our rank: who called is rank 0.
    pub fn rank(&self) -> u32 {
        match self.connection.role() {
            Role::Caller => 0,
            Role::Answerer => 1,
        }
    }

    /// Exchanges hellos.
    ///
    /// # Errors
    /// Why the two do not fit together, which both are told; [`Error::Occupied`]; what the connection has to say.
    pub fn meet(&mut self, mut own: Hello) -> Result<Meeting, Error> {
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
        let heard = self.exchange(&word)?;
        let met = self.judge(own, key, heard);
        met.map_err(|error| self.refuse(error))
    }

    fn judge(&self, own: Hello, key: Option<Key>, heard: Word) -> Result<Meeting, Error> {
        let Word::Hello {
            key: theirs, hello, ..
        } = heard
        else {
            return Err(self.disorder("it is ready before it said who it is"));
        };
        let other = RANKS - 1 - self.rank();
        if hello.rank != other || hello.size != RANKS {
            return Err(self.disorder("it takes itself for another rank than it is"));
        }
        let mut ranks = vec![own, *hello];
        ranks.sort_by_key(|hello| hello.rank);
        ranks[1]
            .check(&ranks[0])
            .map_err(|reason| Error::Disagreement { reason })?;
        if ranks.iter().any(|hello| hello.rails.len() > super::MOST_RAILS) {
            return Err(self.disorder("it has more rails than anybody"));
        }
        match key.xor(theirs) {
            Some(key) => Ok(Meeting { key, ranks }),
            None => Err(self.disorder("the key of the job has to come from rank 0, and from nobody else")),
        }
    }

    /// Tells the other that this side can, or why it cannot, and hears the same of it.
    ///
    /// # Errors
    /// As [`Remote::meet`].
    pub fn start(mut self) -> Result<Life, Error> {
        match self.exchange(&Word::Ready)? {
            Word::Ready => Ok(Life {
                peer: Rank(RANKS - 1 - self.rank()),
                connection: self.connection,
                look_at: Time::ZERO,
                over: false,
            }),
            _ => Err(self.disorder("it says who it is twice")),
        }
    }

    /// Tells the other side why there will be no job; gives the error back.
    #[cold]
    pub fn refuse(&mut self, error: Error) -> Error {
        // Who has refused us, or went away, knows.
        if !matches!(
            error,
            Error::Refused { .. } | Error::Occupied { .. } | Error::Oob(_)
        ) {
            let word = Word::Refusal {
                exit: error.exit().number(),
                reason: error.to_string(),
            };
            let _ = self.say(&word, LAST_WORDS);
        }
        error
    }

    fn say(&mut self, word: &Word, limit: Duration) -> Result<(), Error> {
        // Plain enums, strings and numbers: nothing in them can fail to be written.
        let text = serde_json::to_vec(word).map_err(|error| self.disorder(&error.to_string()))?;
        Ok(self.connection.send(&text, limit)?)
    }

    /// Says a word and hears one. It may have refused us before it read ours: its reason is still to be heard.
    fn exchange(&mut self, word: &Word) -> Result<Word, Error> {
        let said = self.say(word, self.limit);
        let heard = self.connection.receive(self.limit);
        let text = match (said, heard) {
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
            serde_json::from_slice(text).map_err(|error| self.disorder(&error.to_string()))?;
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
        serde_json::from_value(value).map_err(|error| self.disorder(&error.to_string()))
    }

    fn disorder(&self, reason: &str) -> Error {
        Error::Meeting {
            root: self.connection.address().to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// Tells somebody who came over `connection` that this process is occupied, and why; it may come again.
pub fn occupied(mut connection: Connection, reason: &str) {
    let word = Word::Occupied {
        reason: reason.to_owned(),
    };
    let text = serde_json::to_vec(&word).unwrap_or_default();
    if connection.send(&text, LAST_WORDS).is_ok() {
        let _ = connection.close(LAST_WORDS);
    }
}

/// The connection while the job runs: says when the other rank ends.
#[derive(Debug)]
pub struct Life {
    connection: Connection,
    peer: Rank,
    look_at: Time,
    over: bool,
}

impl Life {
    /// The other rank.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// The other side's address.
    pub fn address(&self) -> SocketAddr {
        self.connection.address()
    }

    /// Whether the other rank has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// How the other rank ended, if it is time to look and it has: told once.
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
            // Nothing is said while the job runs.
            Ok(Incoming::Message(_)) | Err(_) => DownReason::Hostile,
        };
        self.over = true;
        Some(reason)
    }

    /// What a sleeper watches; the next look is due when it wakes.
    pub fn arm(&mut self) -> Option<BorrowedFd<'_>> {
        self.look_at = Time::ZERO;
        (!self.over).then(|| self.connection.as_fd())
    }

    /// Takes leave: everything that was accepted has been pushed out.
    pub fn leave(self, limit: Duration) {
        // Who does not hear it any more sees the end of the connection.
        let _ = self.connection.close(limit);
    }
}

/// A host as others see it: what shares memory and sockets of one name is one host, and network namespaces keep sockets
/// apart.
pub fn within_network(host: String) -> String {
    match std::fs::read_link("/proc/self/ns/net") {
        Ok(network) => format!("{host} {}", network.display()),
        Err(_) => host,
    }
}

/// How a program ends that sent this number as its exit.
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

/// A text of the other side that is fit to be shown: of limited length, without anything that moves a cursor.
pub fn shown(text: &str) -> String {
    text.chars()
        .take(REASON_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
