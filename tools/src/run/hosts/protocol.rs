//! What the launcher and its daemons say to each other, over the control plane.

use doorbell::oob::contact::Contact;
use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;
use serde::{Deserialize, Serialize};

use super::place::Host;
use crate::run::pmi_group::info;
use crate::run::rank::Failure;

/// From the launcher to its daemons.
pub(super) const ORDERS: u32 = 200;
/// From the daemons to the launcher.
pub(super) const NEWS: u32 = 201;
/// What ranks have written, and that it was all: [`Output`].
pub(super) const OUTPUT: u32 = 202;

/// What rank 0 reads, to its daemon; no bytes: that was all.
pub(super) const INPUT: u32 = 203;
/// Bytes of output that were written, or of input that rank 0 has taken: `u64 LE`, back to their sender.
pub(super) const USED: u32 = 204;

/// With what a daemon is born: a line on its standard input, as it holds the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Birth {
    /// The version of doorbell that says it.
    pub(super) version: String,
    /// The number of the job.
    pub(super) job: u64,
    /// This daemon's rank in the control plane; the launcher is 0.
    pub(super) rank: u32,
    /// The key of the control plane.
    pub(super) key: [u8; 32],
    /// Where its parent can be reached, as [`Contact::encode`] writes it.
    pub(super) parent: Vec<u8>,
    /// The NICs of the control plane, and those that are left out.
    pub(super) nics: (Vec<String>, Vec<String>),
    /// The ports of the control plane.
    pub(super) ports: String,
    /// The words that start a daemon on another host.
    pub(super) shell: Vec<String>,
    /// Where doorbell is on the hosts.
    pub(super) doorbell: String,
    /// The hosts of daemons 1, 2, ….
    pub(super) hosts: Vec<String>,
    /// Children of a daemon in the tree.
    pub(super) radix: u32,
}

/// The ranks of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) size: u32,
    /// First rank and ranks of daemons 1, 2, ….
    pub(super) hosts: Vec<(u32, u32)>,
    pub(super) blocks: Vec<(u32, u32, u32)>,
    /// What the job is called.
    pub(super) name: String,
    pub(super) program: Vec<u8>,
    pub(super) args: Vec<Vec<u8>>,
    pub(super) variables: Vec<(String, Vec<u8>)>,
    pub(super) folder: Vec<u8>,
    pub(super) bind: crate::run::args::Bind,
    /// Whether rank 0 reads what the launcher does.
    pub(super) has_input: bool,
}

/// The ranks of a crew that was asked for, as one host is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Muster {
    pub(super) crew: u32,
    /// What the crew is called.
    pub(super) name: String,
    /// The number of its rank 0 in the job.
    pub(super) first: u32,
    pub(super) size: u32,
    /// First rank, of the crew, and ranks of this host.
    pub(super) part: (u32, u32),
    pub(super) blocks: Vec<(u32, u32, u32)>,
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) folder: Option<String>,
    pub(super) values: Vec<(String, String)>,
}

impl Muster {
    pub(super) fn here(&self) -> std::ops::Range<u32> {
        self.part.0..self.part.0 + self.part.1
    }
}

/// What a rank wants started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) ranks: u32,
    pub(super) host: Option<String>,
    pub(super) folder: Option<String>,
    pub(super) token: Option<String>,
    pub(super) values: Vec<(String, String)>,
}

impl Wanted {
    pub(super) fn of(program: Program) -> Self {
        let info = |name| info(&program, name).map(str::to_owned);
        Self {
            host: info("host"),
            folder: info("wdir"),
            token: token_of(&program).map(str::to_owned),
            program: program.name,
            args: program.args,
            ranks: program.ranks,
            values: program.values,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Start(Box<Plan>),
    /// Start the ranks here of a crew that was asked for.
    Man(Box<Muster>),
    /// What a rank of a crew wanted is there, or why not: crew, rank, token.
    Answer(u32, u32, Option<String>, Result<(), String>),
    /// What a crew asked for under this token will not come, and why.
    Tell(u32, String, String),
    /// A barrier of a crew that was asked for is over: its number, the words of all.
    Fenced(u32, u32, Vec<Vec<u8>>),
    /// A crew that was asked for has failed: end its ranks here.
    EndCrew(u32),
    /// Send this signal to the ranks.
    Signal(i32),
    /// All is over: give everything back and end.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// The daemon is there: so many microseconds after its process began.
    Here(u64),
    /// All ranks of the host are started; it took so many microseconds.
    Started(u64),
    /// A rank has ended.
    Ended {
        rank: u32,
        failure: Option<(u8, String)>,
    },
    /// A rank of a crew wants more of them.
    Wants(u32, u32, Box<Wanted>),
    /// Nobody waits any more for those that were asked for under this token.
    Abandoned(String),
    /// The ranks here of a crew that was asked for are started, or why not.
    Manned(u32, Result<(), String>),
    /// Those of that crew are at this barrier, with these words.
    Fence(u32, u32, Vec<u8>),
    /// A crew that was asked for has failed before it had joined, and how.
    Lost(u32, String),
    /// The job cannot go on here, or a rank asks for its end.
    Failed(u8, String),
    /// The ranks of all hosts have met, for the nth time.
    Met(u32),
    /// The remote shell that this daemon started for that one has ended so.
    Shell(u32, String),
    /// A rank, or a remote shell that this daemon started, was stopped: a sentence for people.
    Stopped(String),
}

impl News {
    pub(super) fn ended(rank: u32, failure: Option<Failure>) -> Self {
        let failure = failure.map(|failure| (failure.code, failure.how));
        Self::Ended { rank, failure }
    }
}

/// What a rank has written: `rank u32 LE, stream u8, bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output<'a> {
    /// On its standard output (0) or error (1); no bytes: that is all.
    Of(u32, usize, &'a [u8]),
    /// All ranks of the host have ended, and this was all, as of so many orders to start some.
    Done(u32),
}

const DONE: u8 = 2;

impl<'a> Output<'a> {
    pub(super) fn write(self) -> Vec<u8> {
        let (rank, stream, bytes) = match self {
            Self::Of(rank, stream, bytes) => (rank, stream as u8, bytes),
            Self::Done(orders) => (orders, DONE, &[][..]),
        };
        [&rank.to_le_bytes()[..], &[stream], bytes].concat()
    }

    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let (rank, rest) = bytes.split_first_chunk()?;
        match rest.split_first()? {
            (&DONE, []) => Some(Self::Done(u32::from_le_bytes(*rank))),
            (&stream @ 0..DONE, bytes) => {
                Some(Self::Of(u32::from_le_bytes(*rank), usize::from(stream), bytes))
            }
            _ => None,
        }
    }
}

/// Words as bytes. They are all our own, and can always be written.
pub(super) fn write<T: Serialize>(words: &T) -> Vec<u8> {
    serde_json::to_vec(words).unwrap_or_default()
}

/// Bytes as words.
pub(super) fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("what was said does not parse: {error}"))
}

pub(super) fn contact(bytes: &[u8]) -> Option<Contact> {
    Contact::decode(&mut &*bytes)
}

impl Plan {
    pub(super) fn of(hosts: &[Host]) -> Vec<(u32, u32)> {
        hosts.iter().map(|host| (host.first, host.ranks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read_as_they_are_written() {
        for output in [
            Output::Of(7, 0, b"text"),
            Output::Of(1 << 20, 1, b""),
            Output::Done(3),
        ] {
            assert_eq!(Output::read(&output.write()), Some(output));
        }
        for wrong in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x03", b"\0\0\0\0\x02more"] {
            assert_eq!(Output::read(wrong), None);
        }
    }

    #[test]
    fn news_are_read_as_they_are_written() {
        let failure = Failure {
            code: 3,
            how: "rank 1 was killed".to_owned(),
        };
        let program = Program {
            name: "a".to_owned(),
            ranks: 2,
            infos: vec![("host".to_owned(), "b".to_owned())],
            ..Program::default()
        };
        for news in [
            News::Here(5),
            News::ended(1, Some(failure)),
            News::ended(2, None),
            News::Met(1),
            News::Manned(2, Err("no".to_owned())),
            News::Fence(2, 0, vec![1, 255]),
            News::Wants(0, 1, Box::new(Wanted::of(program))),
        ] {
            assert_eq!(read::<News>(&write(&news)), Ok(news));
        }
        assert!(read::<News>(b"{}").is_err());
    }
}
