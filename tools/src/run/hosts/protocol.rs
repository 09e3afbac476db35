//! The messages between the launcher and its daemons, over the control plane.

use doorbell::oob::contact::Contact;
use doorbell::oob::launch::Program;
use doorbell::oob::serve::token_of;
use serde::{Deserialize, Serialize};

use super::place::Host;
use crate::run::pmi_group::info;
use crate::run::rank::Failure;

/// From the launcher to its daemons.
/// Message type: commands of the launcher to its daemons.
pub(super) const COMMANDS: u32 = 200;
/// Message type: reports of the daemons to the launcher.
pub(super) const REPORTS: u32 = 201;
/// Message type: output of ranks, and its end ([`Output`]).
pub(super) const OUTPUT: u32 = 202;

/// Message type: input of rank 0, to its daemon; a message without bytes ends it.
pub(super) const INPUT: u32 = 203;
/// Message type: bytes of output that were written, or of input that rank 0 has taken, as `u64 LE`, back to
/// their sender.
pub(super) const USED: u32 = 204;

/// The first message that a daemon gets: a line on its standard input, since it contains the key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Birth {
    /// The version of doorbell that sends it.
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
    /// Names and values of the settings of the control plane, and of its rails, that are not defaults.
    pub(super) control: Vec<(String, String)>,
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
    pub(super) cores: crate::run::placement::Wanted,
    /// Whether rank 0 reads what the launcher does.
    pub(super) has_input: bool,
}

/// The part of a spawned PMI group that one host starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupPlan {
    pub(super) pmi_group: u32,
    /// The name of the group.
    pub(super) name: String,
    /// The number of its rank 0 in the job.
    pub(super) first: u32,
    pub(super) size: u32,
    /// First rank, of the group, and ranks of this host.
    pub(super) part: (u32, u32),
    pub(super) blocks: Vec<(u32, u32, u32)>,
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) folder: Option<String>,
    pub(super) values: Vec<(String, String)>,
}

impl GroupPlan {
    pub(super) fn here(&self) -> std::ops::Range<u32> {
        self.part.0..self.part.0 + self.part.1
    }
}

/// A rank's request to start more ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SpawnRequest {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) ranks: u32,
    pub(super) host: Option<String>,
    pub(super) folder: Option<String>,
    pub(super) token: Option<String>,
    pub(super) values: Vec<(String, String)>,
}

impl SpawnRequest {
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

/// Commands of the launcher to a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum DaemonCommand {
    /// Choose cores and rails for the ranks of the job on this host, and report whether there are enough.
    Check(Box<Plan>),
    /// Start the ranks of the job on this host.
    Start(Box<Plan>),
    /// Start the ranks of a spawned group on this host.
    StartGroup(Box<GroupPlan>),
    /// The ranks that a rank requested have joined, or why not: group, rank, token.
    Answer(u32, u32, Option<String>, Result<(), String>),
    /// The ranks that a group requested under this token will not come: group, token, reason.
    SpawnFailed(u32, String, String),
    /// A barrier of a spawned group is complete: group, barrier, the values of all ranks.
    Fenced(u32, u32, Vec<Vec<u8>>),
    /// A spawned group has failed: end its ranks on this host.
    EndGroup(u32),
    /// Send this signal to the ranks.
    Signal(i32),
    /// The job is over: clean up and exit.
    End,
}

/// Reports of a daemon to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DaemonReport {
    /// The daemon is ready, this many microseconds after its process began.
    Here(u64),
    /// Whether cores and rails are enough for the ranks of the host: exit status and reason where not.
    Checked(Result<(), (u8, String)>),
    /// All ranks of the host are started, which took this many microseconds.
    Started(u64),
    /// A rank has ended.
    Ended {
        rank: u32,
        failure: Option<(u8, String)>,
    },
    /// A rank of a group requests more ranks: group, rank, request.
    Wants(u32, u32, Box<SpawnRequest>),
    /// No rank waits any more for the group requested under this token.
    Abandoned(String),
    /// The ranks of a spawned group on this host are started, or why not.
    GroupStarted(u32, Result<(), String>),
    /// The ranks of that group on this host have reached this barrier, with these values.
    Fence(u32, u32, Vec<u8>),
    /// A spawned group failed before it joined, and how.
    Lost(u32, String),
    /// The job cannot go on on this host, or a rank requests its end.
    Failed(u8, String),
    /// All ranks of all hosts have reached this barrier of the job.
    Met(u32),
    /// The remote shell that this daemon started for that other one has ended, and how.
    Shell(u32, String),
    /// A rank, or a remote shell that this daemon started, was stopped: a sentence for people.
    Stopped(String),
}

impl DaemonReport {
    pub(super) fn ended(rank: u32, failure: Option<Failure>) -> Self {
        let failure = failure.map(|failure| (failure.code, failure.how));
        Self::Ended { rank, failure }
    }
}

/// What a rank has written: `rank u32 LE, stream u8, bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output<'a> {
    /// Bytes that a rank wrote to its standard output (0) or error (1); no bytes: the end of it.
    Of(u32, usize, &'a [u8]),
    /// All ranks of the host have ended and their output is complete, after this many commands to start
    /// ranks.
    Done(u32),
}

const DONE: u8 = 2;

impl<'a> Output<'a> {
    pub(super) fn write(self) -> Vec<u8> {
        let (rank, stream, bytes) = match self {
            Self::Of(rank, stream, bytes) => (rank, stream as u8, bytes),
            Self::Done(commands) => (commands, DONE, &[][..]),
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

/// Decodes the body of a message.
pub(super) fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("a message does not parse: {error}"))
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
            DaemonReport::Here(5),
            DaemonReport::Checked(Err((3, "too few".to_owned()))),
            DaemonReport::ended(1, Some(failure)),
            DaemonReport::ended(2, None),
            DaemonReport::Met(1),
            DaemonReport::GroupStarted(2, Err("no".to_owned())),
            DaemonReport::Fence(2, 0, vec![1, 255]),
            DaemonReport::Wants(0, 1, Box::new(SpawnRequest::of(program))),
        ] {
            assert_eq!(read::<DaemonReport>(&write(&news)), Ok(news));
        }
        assert!(read::<DaemonReport>(b"{}").is_err());
    }
}
