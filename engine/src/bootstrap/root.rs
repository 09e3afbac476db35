//! Rank 0's side: accepts, collects one hello of every rank, hands out the table; strangers are counted and dropped.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, unlink};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, bind, connect, listen};

use super::wire::{self, Kind, Reader};
use super::{Hello, Root, as_timespec, left, peer_uid, stream_socket};
use crate::error::{Error, ranks};

/// Connections beyond the ranks still missing: room for strangers, who are dropped, and for impatient retries.
const SPARE: usize = 32;

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

pub(super) fn serve(root: &Root, own: Hello, started: Instant, limit: Duration) -> Result<Vec<Hello>, Error> {
    own.check(own.size).map_err(|reason| Error::Job { reason })?;
    let listener = listen_at(root)?;
    let _served = Served(root);
    let size = own.size as usize;
    let mut table: Vec<Option<Hello>> = vec![None; size];
    table[0] = Some(own);
    let mut guests: Vec<Guest> = Vec::new();
    let mut door = Door::default();
    while table.iter().any(Option::is_none) {
        let Some(left) = left(started, limit) else {
            return Err(give_up(&table, &guests, &door, started, limit));
        };
        let missing = table.iter().filter(|entry| entry.is_none()).count();
        let ready = wait_for(&listener, &guests, missing, left)
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
    }
    drop(listener);
    let table: Vec<Hello> = table.into_iter().flatten().collect();
    let body = serde_json::to_vec(&table).map_err(|error| root.meeting(error.to_string()))?;
    let frame =
        wire::frame(Kind::Table, &body).ok_or_else(|| root.meeting("the table of the ranks is too long"))?;
    hand_out(root, &guests, &frame, started, limit)?;
    Ok(table)
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

/// Waits until a socket has something; for the listener first, then for each guest.
fn wait_for(
    listener: &OwnedFd,
    guests: &[Guest],
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
    match poll(&mut fds, Some(&as_timespec(left))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
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
    let size = u32::try_from(table.len()).unwrap_or(u32::MAX);
    let place = hello
        .check(size)
        .and_then(|()| match &table[hello.rank as usize] {
            Some(taken) => Err(format!(
                "two processes say that they are rank {}: pids {} and {}",
                hello.rank, taken.pid, hello.pid
            )),
            None => Ok(hello.rank as usize),
        });
    match place {
        Ok(place) => {
            guest.rank = Some(hello.rank);
            table[place] = Some(hello);
            true
        }
        Err(reason) => turn_away(guest, door, &reason),
    }
}

fn turn_away(guest: &Guest, door: &mut Door, reason: &str) -> bool {
    door.refuse(&format!("a process was refused: {reason}"));
    refuse(guest, reason);
    false
}

fn refuse(guest: &Guest, reason: &str) {
    if let Some(frame) = wire::frame(Kind::Refusal, reason.as_bytes()) {
        let _ = wire::write(&guest.socket, &frame, 0);
    }
}

fn give_up(
    table: &[Option<Hello>],
    guests: &[Guest],
    door: &Door,
    started: Instant,
    limit: Duration,
) -> Error {
    let missing = (0u32..)
        .zip(table)
        .filter(|(_, entry)| entry.is_none())
        .map(|(rank, _)| rank)
        .collect::<Vec<_>>();
    let reason = format!(
        "{} did not come within {:.1} s",
        ranks(&missing),
        limit.as_secs_f64()
    );
    guests
        .iter()
        .filter(|guest| guest.rank.is_some())
        .for_each(|guest| refuse(guest, &reason));
    Error::MissingRanks {
        missing,
        waited: started.elapsed(),
        note: door.note(),
    }
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
