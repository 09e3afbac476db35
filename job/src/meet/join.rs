//! The side of the other ranks: connects (rank 0 may start later), sends the hello, waits for the table.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::connect;

use super::ended::Ended;
use super::networks;
use super::wire::{self, Kind, Reader};
use super::{Absent, Meeting, RankInfo, Root, left, peer_uid, stream_socket};
use crate::error::Error;

/// Interval between attempts to connect: short, since rank 0 usually listens within milliseconds.
const RETRY: Duration = Duration::from_millis(2);

/// After this time without a listener, this rank searches the processes of this host for rank 0, and again
/// after each further interval.
const SEARCH_AFTER: Duration = Duration::from_secs(1);

pub(super) fn join(root: &Root, own: RankInfo, started: Instant, limit: Duration) -> Result<Meeting, Error> {
    let late = |step, note: String| Error::NoRoot {
        step,
        root: root.to_string(),
        waited: started.elapsed(),
        note,
    };
    let body = serde_json::to_vec(&own).map_err(|error| root.meeting(error.to_string()))?;
    let frame = wire::frame(Kind::Hello, &body).ok_or_else(|| root.meeting("our own hello is too long"))?;
    let socket = reach(root, started, limit)?;
    if peer_uid(&socket).map_err(|error| root.io("look up the user that serves the meeting", error))?
        != rustix::process::geteuid().as_raw()
    {
        return Err(Root::disagreement(format!(
            "another user serves the meeting at {root}; choose another DOORBELL_ROOT"
        )));
    }
    let mut at = 0;
    let mut reader = Reader::default();
    let allowed = [Kind::Table, Kind::Refusal, Kind::Absent];
    loop {
        at = match wire::write(&socket, &frame, at) {
            // Rank 0 may have refused us before it read everything: its reason can still be read.
            Err(_) => frame.len(),
            Ok(at) => at,
        };
        let open = reader
            .read(&socket, &allowed)
            .map_err(|error| root.meeting(error.to_string()))?;
        if let Some((kind, body)) = reader
            .finished(&allowed)
            .map_err(|bad| root.meeting(bad.to_string()))?
        {
            return match kind {
                Kind::Table => check(root, &own, body),
                Kind::Absent => Err(Absent::read(root, body)),
                _ => Err(Root::disagreement(String::from_utf8_lossy(body))),
            };
        }
        if !open {
            return Err(
                root.meeting("rank 0 closed the connection before all ranks had joined: see its own message")
            );
        }
        let Some(left) = left(started, limit) else {
            return Err(late("send the table", String::new()));
        };
        let wanted = if at < frame.len() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        match poll(&mut [PollFd::new(&socket, wanted)], Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(root.io("wait for rank 0", error)),
        }
    }
}

fn reach(root: &Root, started: Instant, limit: Duration) -> Result<OwnedFd, Error> {
    let address = root.address()?;
    let mut search_at = SEARCH_AFTER;
    let mut ended = Ended::watch(root);
    loop {
        let socket = stream_socket(root)?;
        let error = match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(error @ (Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN | Errno::INTR)) => error,
            Err(error) => return Err(root.io("connect to rank 0", error)),
        };
        if matches!(root, Root::Abstract(_)) && started.elapsed() >= search_at {
            search_at = started.elapsed() + SEARCH_AFTER;
            if let Some(reason) = networks::apart(root) {
                return Err(Root::disagreement(reason));
            }
        }
        ended.look();
        if let Some(rank) = ended.first(|rank| rank == 0) {
            return Err(Error::EndedEarly { rank });
        }
        let Some(left) = left(started, limit) else {
            let note = format!(
                " (last answer of the system: {}){}",
                std::io::Error::from(error),
                root.where_it_is_known()
            );
            return Err(Error::NoRoot {
                step: "listen",
                root: root.to_string(),
                waited: started.elapsed(),
                note,
            });
        };
        thread::sleep(RETRY.min(left));
    }
}

/// Parses the table, and checks that every rank is at its index, this one among them.
pub(super) fn check(root: &Root, own: &RankInfo, body: &[u8]) -> Result<Meeting, Error> {
    let meeting: Meeting = serde_json::from_slice(body)
        .map_err(|error| root.meeting(format!("the table does not parse: {error}")))?;
    let in_order = (0..own.size).eq(meeting.ranks.iter().map(|hello| hello.rank));
    if !in_order || meeting.ranks.get(own.rank as usize) != Some(own) {
        return Err(root.meeting("the table of rank 0 does not hold every rank in its place"));
    }
    if let Some(reason) = meeting.ranks.iter().find_map(|hello| hello.check(own).err()) {
        return Err(root.meeting(reason));
    }
    Ok(meeting)
}
