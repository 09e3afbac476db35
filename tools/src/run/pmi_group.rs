//! A PMI group: the ranks that share a PMI-1 server, namely those that a job begins with, or those of one
//! spawn. This is one host's part of it: the server, and its ends of the ranks' lines.
//!
//! A rank has a number in the job, which messages and output show. Within its group it counts from 0, and
//! that is its rank in PMI.
//!
//! A spawned group is *on trial* until its first barrier: if it fails before that, the requester is informed,
//! and the job continues.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use doorbell::oob::launch::Program;
use doorbell::oob::serve::{self, Blocks, Server};
use doorbell_fabric::error::Exit;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

/// Bytes read from a rank at once.
const PIECE: usize = 16 << 10;
/// Maximum reads from one rank before others are served.
const PIECES: u32 = 4;

/// A request of a PMI group's ranks to the launcher.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GroupRequest {
    /// For the other hosts: the number of the barrier, and the values.
    Fence(u32, Vec<u8>),
    /// This rank, by its number in the job, requests these processes.
    Spawn(u32, Box<Program>),
    /// The processes with this token are no longer waited for.
    Abandon(String),
    /// The job has failed.
    Failed(u8, String),
}

/// The trial of a PMI group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// It was not spawned: its failures are the job's.
    None,
    /// It has not passed its first barrier.
    Under,
    /// It has failed, and is being ended.
    Failed,
}

#[derive(Debug)]
pub(super) struct PmiGroup {
    /// The number of its rank 0 in the job.
    first: u32,
    size: u32,
    /// Its ranks on this host.
    here: Range<u32>,
    server: Server,
    lines: BTreeMap<u32, OwnedFd>,
    /// Ranks that ended while others may still wait for them.
    missing: BTreeSet<u32>,
    is_spawned: bool,
    pub(super) trial: Trial,
}

impl PmiGroup {
    /// Creates the group that the job `name` begins with.
    pub(super) fn of_job(name: &str, size: u32, here: Range<u32>, blocks: &Blocks) -> Self {
        Self {
            first: 0,
            size,
            server: Server::new(name, size, here.clone(), blocks),
            here,
            lines: BTreeMap::new(),
            missing: BTreeSet::new(),
            is_spawned: false,
            trial: Trial::None,
        }
    }

    /// Creates a spawned group, whose rank 0 has the number `first` in the job, with the values given to it.
    ///
    /// # Errors
    /// When a value is invalid.
    pub(super) fn spawned(
        name: &str,
        (first, size): (u32, u32),
        here: Range<u32>,
        blocks: &Blocks,
        values: &[(String, String)],
    ) -> Result<Self, String> {
        let mut pmi_group = Self::of_job(name, size, here, blocks);
        pmi_group.server.preput(values)?;
        (pmi_group.first, pmi_group.is_spawned, pmi_group.trial) = (first, true, Trial::Under);
        Ok(pmi_group)
    }

    /// Returns its ranks here, by their numbers in the job.
    pub(super) fn numbers(&self) -> Range<u32> {
        self.first + self.here.start..self.first + self.here.end
    }

    /// Creates the line of a rank: the end that it inherits, and the variables that identify it.
    pub(super) fn line(&mut self, number: u32) -> io::Result<(OwnedFd, Vec<(String, OsString)>)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let rank = number - self.first;
        self.lines.insert(rank, ours);
        let mut variables = vec![
            ("PMI_FD", theirs.as_raw_fd().to_string()),
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", self.size.to_string()),
            ("MPI_LOCALRANKID", (rank - self.here.start).to_string()),
            ("MPI_LOCALNRANKS", self.here.len().to_string()),
        ];
        if self.is_spawned {
            variables.push(("PMI_SPAWNED", "1".to_owned()));
        }
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), OsString::from(value)));
        Ok((theirs, variables.collect()))
    }

    /// Returns the lines to wait for, with the numbers of their ranks.
    pub(super) fn watched(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        self.lines
            .iter()
            .map(|(rank, line)| (self.first + rank, line.as_fd()))
    }

    /// Reads from a line, or handles its end.
    pub(super) fn receive(&mut self, number: u32) {
        let rank = number - self.first;
        let mut buffer = [0; PIECE];
        for _ in 0..PIECES {
            let Some(line) = self.lines.get(&rank) else { return };
            match recv(line, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((count @ 1.., _)) => self.server.received(rank, &buffer[..count]),
                Err(Errno::INTR | Errno::AGAIN) => return,
                Ok(_) | Err(_) => {
                    self.lines.remove(&rank);
                    if !self.server.left(rank) {
                        self.missing.insert(rank);
                    }
                }
            }
        }
    }

    /// Whether a rank has sent `finalize`: then its end is no failure, even if its group never had a barrier.
    pub(super) fn has_finalized(&self, number: u32) -> bool {
        self.server.took_leave(number - self.first)
    }

    /// Returns why the exit of a rank with status 0 is a failure: it did not finalize, and others may wait
    /// for it. Reported once.
    pub(super) fn deserted(&mut self, number: u32) -> Option<String> {
        self.missing.remove(&(number - self.first)).then(|| {
            format!(
                "rank {number} ended without MPI_Finalize or the end of its `World`, and the others may wait for it"
            )
        })
    }

    /// Takes the values of all hosts for a barrier.
    ///
    /// # Errors
    /// Why they are invalid.
    pub(super) fn fenced<'a>(
        &mut self,
        number: u32,
        words: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        self.server.fenced(number, words)?;
        if self.trial == Trial::Under {
            self.trial = Trial::None;
        }
        Ok(())
    }

    /// Completes a rank's spawn request.
    pub(super) fn answer(&mut self, number: u32, result: Result<(), &str>) {
        self.server.spawned(number - self.first, result);
    }

    /// Records that the processes of `token` will not start.
    pub(super) fn spawn_failed(&mut self, token: &str, why: &str) {
        self.server.failed(token, why);
    }

    /// Returns the ranks' requests; sends them their answers.
    pub(super) fn requests(&mut self) -> Vec<GroupRequest> {
        let mut requests = Vec::new();
        while let Some(output) = self.server.take() {
            let first = self.first;
            requests.push(match output {
                serve::Output::Send(rank, bytes) => match self.send(rank, &bytes) {
                    Ok(()) => continue,
                    Err(why) => {
                        GroupRequest::Failed(Exit::System.number(), format!("rank {} {why}", first + rank))
                    }
                },
                serve::Output::Fence(number, words) => GroupRequest::Fence(number, words),
                serve::Output::Spawn(rank, program) => GroupRequest::Spawn(first + rank, program),
                serve::Output::Abandon(token) => GroupRequest::Abandon(token),
                serve::Output::Abort { rank, code, text } => {
                    let why = if text.is_empty() {
                        text
                    } else {
                        format!(": {text}")
                    };
                    let rank = first + rank;
                    GroupRequest::Failed(code, format!("rank {rank} requested the end of the job{why}"))
                }
                serve::Output::Wrong(rank, why) => GroupRequest::Failed(
                    Exit::System.number(),
                    format!(
                        "rank {} violates PMI-1 on the descriptor PMI_FD: {why}",
                        first + rank
                    ),
                ),
            });
        }
        requests
    }

    /// Sends to a rank. One that is gone gets nothing; its end is noticed elsewhere.
    fn send(&self, rank: u32, bytes: &[u8]) -> Result<(), &'static str> {
        let Some(line) = self.lines.get(&rank) else {
            return Ok(());
        };
        match send(line, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err("does not read its answers on the descriptor PMI_FD"),
            Err(_) => Ok(()),
        }
    }
}

/// Returns what a request contains besides the program.
pub(super) fn info<'p>(program: &'p Program, name: &str) -> Option<&'p str> {
    let found = program.infos.iter().find(|(known, _)| known == name)?;
    Some(&found.1)
}
