//! Rank 0's side of the meeting: accepts connections, collects one hello of every rank, and sends the table.
//! Connections of other users are counted and closed. When hellos contradict each other, all ranks get the
//! reason at once.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, unlink};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, connect, listen};

use super::ended::Ended;
use super::wire::{self, Kind, Reader};
use super::{Absent, Key, Meeting, RankInfo, Root, left, peer_uid, stream_socket};
use crate::error::Error;

/// Connections beyond the ranks still missing: room for those of other users, which are closed, and for early
/// retries.
const SPARE: usize = 32;
/// How long rank 0 stays to refuse latecomers after the meeting has failed: ranks are started within this
/// time.
const LINGER: Duration = Duration::from_millis(500);

/// One connection: its hello is being read, or it waits for the table.
struct Client {
    socket: OwnedFd,
    reader: Reader,
    rank: Option<u32>,
}

/// Events at the socket that may explain missing ranks.
#[derive(Default)]
struct Refusals {
    strangers: u32,
    refused: String,
    /// The contradiction between hellos, once one is found.
    disagreement: Option<String>,
}

impl Refusals {
    fn refuse(&mut self, reason: &str) {
        if self.refused.len() < 500 {
            write!(self.refused, "; {reason}").expect("writing to a String cannot fail");
        }
    }

    fn note(&self) -> String {
        let mut note = self.refused.clone();
        if self.strangers > 0 {
            write!(
                note,
                "; {} connections of other users were closed",
                self.strangers
            )
            .expect("writing to a String cannot fail");
        }
        note
    }
}

/// Removes the socket file, however the meeting ends.
struct Served<'a>(&'a Root);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0.path() {
            let _ = unlink(path);
        }
    }
}

pub(super) fn serve(root: &Root, own: RankInfo, started: Instant, limit: Duration) -> Result<Meeting, Error> {
    own.check(&own).map_err(|reason| Error::Job { reason })?;
    let listener = listen_at(root)?;
    let _served = Served(root);
    let size = own.size as usize;
    let mut table: Vec<Option<RankInfo>> = vec![None; size];
    table[0] = Some(own);
    let mut clients: Vec<Client> = Vec::new();
    let mut refusals = Refusals::default();
    let mut ended = Ended::watch(root);
    while table.iter().any(Option::is_none) {
        let Some(left) = left(started, limit) else {
            return Err(give_up(&table, &clients, &refusals, started));
        };
        let missing = table.iter().filter(|entry| entry.is_none()).count();
        let ready = wait_for(&listener, &clients, ended.descriptor(), missing, left)
            .map_err(|error| root.io("wait for the other ranks", error))?;
        if ready[0] {
            accept_all(&listener, &mut clients, missing, &mut refusals);
        }
        let mut at = 0;
        clients.retain_mut(|client| {
            at += 1;
            // Those accepted in this turn have no entry in `ready` yet; they are read in the next turn.
            !ready.get(at).copied().unwrap_or(false) || read_from(client, &mut table, &mut refusals)
        });
        if let Some(reason) = refusals.disagreement.take() {
            call_off(&listener, &clients, &reason, left);
            return Err(Root::disagreement(reason));
        }
        ended.look();
        let is_missing = |rank: u32| matches!(table.get(rank as usize), Some(None));
        if let Some(rank) = ended.first(is_missing) {
            return Err(send_absent(&clients, ended_early(rank, started)));
        }
    }
    drop(listener);
    let meeting = Meeting {
        key: Key::random()?,
        ranks: table.into_iter().flatten().collect(),
    };
    let body = serde_json::to_vec(&meeting).map_err(|error| root.meeting(error.to_string()))?;
    let frame =
        wire::frame(Kind::Table, &body).ok_or_else(|| root.meeting("the table of the ranks is too long"))?;
    hand_out(root, &clients, &frame, started, limit)?;
    Ok(meeting)
}

fn listen_at(root: &Root) -> Result<OwnedFd, Error> {
    let listener = stream_socket(root)?;
    let address = root.address()?;
    match bind(&listener, &address) {
        Err(Errno::ADDRINUSE) if is_stale(root)? => {
            let path = root
                .path()
                .ok_or_else(|| root.io("bind the meeting socket", Errno::ADDRINUSE))?;
            unlink(path).map_err(|error| root.io("remove the socket file that a dead job left", error))?;
            bind(&listener, &address).map_err(|error| root.io("bind the meeting socket", error))?;
        }
        bound => bound.map_err(|error| root.io("bind the meeting socket", error))?,
    }
    listen(&listener, 1024).map_err(|error| root.io("listen on the meeting socket", error))?;
    Ok(listener)
}

/// Whether the path is a socket file without a listener.
fn is_stale(root: &Root) -> Result<bool, Error> {
    let Some(path) = root.path() else { return Ok(false) };
    let socket =
        rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let probe = stream_socket(root)?;
    Ok(socket && connect(&probe, &root.address()?) == Err(Errno::CONNREFUSED))
}

/// Waits until a socket is readable: the listener, the launcher or a client. Returns which of them are: the
/// listener first, then each client.
fn wait_for(
    listener: &OwnedFd,
    clients: &[Client],
    ended: Option<&OwnedFd>,
    missing: usize,
    left: Duration,
) -> rustix::io::Result<Vec<bool>> {
    let without_hello = clients.iter().filter(|client| client.rank.is_none()).count();
    let wanted = if without_hello < missing + SPARE {
        PollFlags::IN
    } else {
        PollFlags::empty()
    };
    let mut fds = vec![PollFd::new(listener, wanted)];
    fds.extend(
        clients
            .iter()
            .map(|client| PollFd::new(&client.socket, PollFlags::IN)),
    );
    fds.extend(ended.map(|ended| PollFd::new(ended, PollFlags::IN)));
    match poll(&mut fds, Some(&timespec(left))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let readable = fds.iter().take(1 + clients.len());
    Ok(readable.map(|fd| !fd.revents().is_empty()).collect())
}

fn accept_all(listener: &OwnedFd, clients: &mut Vec<Client>, missing: usize, refusals: &mut Refusals) {
    for _ in 0..missing + SPARE {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        if peer_uid(&socket) == Ok(rustix::process::geteuid().as_raw()) {
            clients.push(Client {
                socket,
                reader: Reader::default(),
                rank: None,
            });
        } else {
            refusals.strangers = refusals.strangers.saturating_add(1);
        }
    }
}

/// Reads from a client; returns `false` when its connection is to be closed.
fn read_from(client: &mut Client, table: &mut [Option<RankInfo>], refusals: &mut Refusals) -> bool {
    if let Some(rank) = client.rank {
        // Its hello is complete: readable means that it has closed, and another process may come for that
        // rank.
        table[rank as usize] = None;
        refusals.refuse(&format!("rank {rank} joined and closed its connection again"));
        return false;
    }
    match client.reader.read(&client.socket, &[Kind::Hello]) {
        Ok(true) => {}
        Ok(false) => return false,
        Err(error) => return turn_down(client, refusals, &error.to_string()),
    }
    let body = match client.reader.finished(&[Kind::Hello]) {
        Ok(Some((_, body))) => body,
        Ok(None) => return true,
        Err(bad) => return turn_down(client, refusals, &bad.to_string()),
    };
    let hello: RankInfo = match serde_json::from_slice(body) {
        Ok(hello) => hello,
        Err(error) => return turn_down(client, refusals, &format!("its hello does not parse: {error}")),
    };
    match place(&hello, table) {
        Ok(place) => {
            client.rank = Some(hello.rank);
            table[place] = Some(hello);
        }
        Err(reason) => _ = refusals.disagreement.get_or_insert(reason),
    }
    true
}

/// Returns the index of a hello in the table, or the contradiction that ends the meeting.
fn place(hello: &RankInfo, table: &[Option<RankInfo>]) -> Result<usize, String> {
    if let Some(Some(zero)) = table.first() {
        hello.check(zero)?;
    }
    match table.get(hello.rank as usize) {
        Some(None) => Ok(hello.rank as usize),
        Some(Some(taken)) => Err(format!(
            "two processes claim to be rank {} (DOORBELL_RANK): pids {} and {}",
            hello.rank, taken.pid, hello.pid
        )),
        None => Err(format!("rank {} is not in a job of {}", hello.rank, table.len())),
    }
}

/// Refuses all clients, and those that connect within a short time, with the reason that there will be no
/// job.
fn call_off(listener: &OwnedFd, clients: &[Client], reason: &str, left: Duration) {
    clients.iter().for_each(|client| refuse(client, reason));
    let (started, limit) = (Instant::now(), LINGER.min(left));
    let mut late = Vec::new();
    while let Some(left) = super::left(started, limit) {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&timespec(left))), Ok(_) | Err(Errno::INTR)) {
            return;
        }
        let known = late.len();
        accept_all(listener, &mut late, 0, &mut Refusals::default());
        late[known..].iter().for_each(|client| refuse(client, reason));
    }
}

fn turn_down(client: &Client, refusals: &mut Refusals, reason: &str) -> bool {
    refusals.refuse(&format!("a process was refused: {reason}"));
    refuse(client, reason);
    false
}

fn refuse(client: &Client, reason: &str) {
    send_to(client, Kind::Refusal, reason.as_bytes());
}

/// Sends one frame, if the socket takes it at once: the client may have closed.
fn send_to(client: &Client, kind: Kind, body: &[u8]) {
    if let Some(frame) = wire::frame(kind, body) {
        let _ = wire::write(&client.socket, &frame, 0);
    }
}

fn give_up(table: &[Option<RankInfo>], clients: &[Client], refusals: &Refusals, started: Instant) -> Error {
    let missing = (0u32..)
        .zip(table)
        .filter(|(_, entry)| entry.is_none())
        .map(|(rank, _)| rank);
    let absent = Absent {
        missing: missing.collect(),
        waited: started.elapsed(),
        note: refusals.note(),
        has_ended: false,
    };
    send_absent(clients, absent)
}

fn ended_early(rank: u32, started: Instant) -> Absent {
    Absent {
        missing: vec![rank],
        waited: started.elapsed(),
        note: String::new(),
        has_ended: true,
    }
}

/// Sends the error that rank 0 ends with to the ranks that joined.
fn send_absent(clients: &[Client], absent: Absent) -> Error {
    let body = serde_json::to_vec(&absent).unwrap_or_default();
    let joined = clients.iter().filter(|client| client.rank.is_some());
    joined.for_each(|client| send_to(client, Kind::Absent, &body));
    absent.into_error()
}

/// Sends the table to all ranks. A rank that has closed since then is lost, which the rails will report.
fn hand_out(
    root: &Root,
    clients: &[Client],
    frame: &[u8],
    started: Instant,
    limit: Duration,
) -> Result<(), Error> {
    let mut at: Vec<usize> = vec![0; clients.len()];
    loop {
        let mut waiting = Vec::new();
        for (client, at) in clients.iter().zip(&mut at) {
            if client.rank.is_some() && *at < frame.len() {
                *at = wire::write(&client.socket, frame, *at).unwrap_or(frame.len());
                if *at < frame.len() {
                    waiting.push(PollFd::new(&client.socket, PollFlags::OUT));
                }
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let Some(left) = left(started, limit) else {
            let late: Vec<u32> = clients
                .iter()
                .zip(&at)
                .filter(|(_, at)| **at < frame.len())
                .filter_map(|(client, _)| client.rank)
                .collect();
            return Err(Error::MissingRanks {
                missing: late,
                waited: started.elapsed(),
                note: "; they joined, but did not take the table".to_owned(),
            });
        };
        match poll(&mut waiting, Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(root.io("wait for the other ranks", error)),
        }
    }
}
