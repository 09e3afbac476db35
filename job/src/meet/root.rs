//! Rank 0's side: accepts, collects one hello of every rank, hands out the table; strangers are counted and dropped.
//! When ranks do not fit together, nobody waits any longer: all are told why.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, unlink};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, connect, listen};

use super::ended::Ended;
use super::wire::{self, Kind, Reader};
use super::{Absent, Hello, Key, Meeting, Root, as_timespec, left, peer_uid, stream_socket};
use crate::error::Error;

/// Connections beyond the ranks still missing: room for strangers, who are dropped, and for impatient retries.
const SPARE: usize = 32;
/// How long rank 0 stays to tell latecomers that the meeting was called off: ranks are started within this time.
const LINGER: Duration = Duration::from_millis(500);

/// One connection: reading its hello, or waiting for the table.
struct Guest {
    socket: OwnedFd,
    reader: Reader,
    rank: Option<u32>,
}

/// What happened at the door that explains missing ranks.
#[derive(Default)]
struct Door {
    strangers: u32,
    refused: String,
    /// Why the ranks do not fit together, as soon as that is known.
    disagreement: Option<String>,
}

impl Door {
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

/// Removes the socket file whatever way the meeting ends.
struct Served<'a>(&'a Root);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0.path() {
            let _ = unlink(path);
        }
    }
}

pub(super) fn serve(root: &Root, own: Hello, started: Instant, limit: Duration) -> Result<Meeting, Error> {
    own.check(&own).map_err(|reason| Error::Job { reason })?;
    let listener = listen_at(root)?;
    let _served = Served(root);
    let size = own.size as usize;
    let mut table: Vec<Option<Hello>> = vec![None; size];
    table[0] = Some(own);
    let mut guests: Vec<Guest> = Vec::new();
    let mut door = Door::default();
    let mut ended = Ended::watch(root);
    while table.iter().any(Option::is_none) {
        let Some(left) = left(started, limit) else {
            return Err(give_up(&table, &guests, &door, started));
        };
        let missing = table.iter().filter(|entry| entry.is_none()).count();
        let ready = wait_for(&listener, &guests, ended.descriptor(), missing, left)
            .map_err(|error| root.io("wait for the other ranks", error))?;
        if ready[0] {
            accept_all(&listener, &mut guests, missing, &mut door);
        }
        let mut at = 0;
        guests.retain_mut(|guest| {
            at += 1;
            // Guests accepted in this turn have no verdict yet; they are read in the next one.
            !ready.get(at).copied().unwrap_or(false) || hear(guest, &mut table, &mut door)
        });
        if let Some(reason) = door.disagreement.take() {
            call_off(&listener, &guests, &reason, left);
            return Err(Root::disagreement(reason));
        }
        ended.look();
        let is_missing = |rank: u32| matches!(table.get(rank as usize), Some(None));
        if let Some(rank) = ended.first(is_missing) {
            return Err(tell_absent(&guests, ended_early(rank, started)));
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
    hand_out(root, &guests, &frame, started, limit)?;
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

/// Whether the path is a socket file on which nobody listens any more.
fn is_stale(root: &Root) -> Result<bool, Error> {
    let Some(path) = root.path() else { return Ok(false) };
    let socket =
        rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let probe = stream_socket(root)?;
    Ok(socket && connect(&probe, &root.address()?) == Err(Errno::CONNREFUSED))
}

/// Waits until a socket has something: the listener, the launcher, a guest. Which of them do: the listener
/// first, then each guest.
fn wait_for(
    listener: &OwnedFd,
    guests: &[Guest],
    ended: Option<&OwnedFd>,
    missing: usize,
    left: Duration,
) -> rustix::io::Result<Vec<bool>> {
    let unheard = guests.iter().filter(|guest| guest.rank.is_none()).count();
    let door = if unheard < missing + SPARE {
        PollFlags::IN
    } else {
        PollFlags::empty()
    };
    let mut fds = vec![PollFd::new(listener, door)];
    fds.extend(
        guests
            .iter()
            .map(|guest| PollFd::new(&guest.socket, PollFlags::IN)),
    );
    fds.extend(ended.map(|ended| PollFd::new(ended, PollFlags::IN)));
    match poll(&mut fds, Some(&as_timespec(left))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let heard = fds.iter().take(1 + guests.len());
    Ok(heard.map(|fd| !fd.revents().is_empty()).collect())
}

fn accept_all(listener: &OwnedFd, guests: &mut Vec<Guest>, missing: usize, door: &mut Door) {
    for _ in 0..missing + SPARE {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        if peer_uid(&socket) == Ok(rustix::process::geteuid().as_raw()) {
            guests.push(Guest {
                socket,
                reader: Reader::default(),
                rank: None,
            });
        } else {
            door.strangers = door.strangers.saturating_add(1);
        }
    }
}

/// Reads what a guest has to say; `false` when it is to be dropped.
fn hear(guest: &mut Guest, table: &mut [Option<Hello>], door: &mut Door) -> bool {
    if let Some(rank) = guest.rank {
        // It has said everything: readable means that it is gone, and another process may come for that rank.
        table[rank as usize] = None;
        door.refuse(&format!("rank {rank} came and went away again"));
        return false;
    }
    match guest.reader.read(&guest.socket, &[Kind::Hello]) {
        Ok(true) => {}
        Ok(false) => return false,
        Err(error) => return turn_away(guest, door, &error.to_string()),
    }
    let body = match guest.reader.finished(&[Kind::Hello]) {
        Ok(Some((_, body))) => body,
        Ok(None) => return true,
        Err(bad) => return turn_away(guest, door, &bad.to_string()),
    };
    let hello: Hello = match serde_json::from_slice(body) {
        Ok(hello) => hello,
        Err(error) => return turn_away(guest, door, &format!("its hello does not parse: {error}")),
    };
    match place(&hello, table) {
        Ok(place) => {
            guest.rank = Some(hello.rank);
            table[place] = Some(hello);
        }
        Err(reason) => _ = door.disagreement.get_or_insert(reason),
    }
    true
}

/// Where a hello belongs; the reason why the job cannot be.
fn place(hello: &Hello, table: &[Option<Hello>]) -> Result<usize, String> {
    if let Some(Some(zero)) = table.first() {
        hello.check(zero)?;
    }
    match table.get(hello.rank as usize) {
        Some(None) => Ok(hello.rank as usize),
        Some(Some(taken)) => Err(format!(
            "two processes say that they are rank {} (DOORBELL_RANK): pids {} and {}",
            hello.rank, taken.pid, hello.pid
        )),
        None => Err(format!("rank {} is not in a job of {}", hello.rank, table.len())),
    }
}

/// Tells everybody who is there, and those who come within a short time, why there will be no job.
fn call_off(listener: &OwnedFd, guests: &[Guest], reason: &str, left: Duration) {
    guests.iter().for_each(|guest| refuse(guest, reason));
    let (started, limit) = (Instant::now(), LINGER.min(left));
    let mut late = Vec::new();
    while let Some(left) = super::left(started, limit) {
        let mut door = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(
            poll(&mut door, Some(&as_timespec(left))),
            Ok(_) | Err(Errno::INTR)
        ) {
            return;
        }
        let known = late.len();
        accept_all(listener, &mut late, 0, &mut Door::default());
        late[known..].iter().for_each(|guest| refuse(guest, reason));
    }
}

fn turn_away(guest: &Guest, door: &mut Door, reason: &str) -> bool {
    door.refuse(&format!("a process was refused: {reason}"));
    refuse(guest, reason);
    false
}

fn refuse(guest: &Guest, reason: &str) {
    tell(guest, Kind::Refusal, reason.as_bytes());
}

/// One that does not read it any more is told nothing.
fn tell(guest: &Guest, kind: Kind, body: &[u8]) {
    if let Some(frame) = wire::frame(kind, body) {
        let _ = wire::write(&guest.socket, &frame, 0);
    }
}

fn give_up(table: &[Option<Hello>], guests: &[Guest], door: &Door, started: Instant) -> Error {
    let missing = (0u32..)
        .zip(table)
        .filter(|(_, entry)| entry.is_none())
        .map(|(rank, _)| rank);
    let absent = Absent {
        missing: missing.collect(),
        waited: started.elapsed(),
        note: door.note(),
        has_ended: false,
    };
    tell_absent(guests, absent)
}

fn ended_early(rank: u32, started: Instant) -> Absent {
    Absent {
        missing: vec![rank],
        waited: started.elapsed(),
        note: String::new(),
        has_ended: true,
    }
}

/// Gives the others the error that rank 0 ends with.
fn tell_absent(guests: &[Guest], absent: Absent) -> Error {
    let body = serde_json::to_vec(&absent).unwrap_or_default();
    let came = guests.iter().filter(|guest| guest.rank.is_some());
    came.for_each(|guest| tell(guest, Kind::Absent, &body));
    absent.into_error()
}

/// Gives everybody the table; a rank that went away since then is lost, which its rails will tell.
fn hand_out(
    root: &Root,
    guests: &[Guest],
    frame: &[u8],
    started: Instant,
    limit: Duration,
) -> Result<(), Error> {
    let mut at: Vec<usize> = vec![0; guests.len()];
    loop {
        let mut waiting = Vec::new();
        for (guest, at) in guests.iter().zip(&mut at) {
            if guest.rank.is_some() && *at < frame.len() {
                *at = wire::write(&guest.socket, frame, *at).unwrap_or(frame.len());
                if *at < frame.len() {
                    waiting.push(PollFd::new(&guest.socket, PollFlags::OUT));
                }
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        let Some(left) = left(started, limit) else {
            let late: Vec<u32> = guests
                .iter()
                .zip(&at)
                .filter(|(_, at)| **at < frame.len())
                .filter_map(|(guest, _)| guest.rank)
                .collect();
            return Err(Error::MissingRanks {
                missing: late,
                waited: started.elapsed(),
                note: "; they came, but did not take the table".to_owned(),
            });
        };
        match poll(&mut waiting, Some(&as_timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(root.io("wait for the other ranks", error)),
        }
    }
}
