//! For the fuzzers (`tools/fuzz`) only: the parsers of the messages of the meeting, without sockets.

use std::collections::BTreeMap;

use super::tcp::Word;
use super::wire::{self, Kind, Reader};
use super::{RankInfo, Root};

/// Most rails that one rank may publish.
pub const MOST_RAILS: usize = super::MOST_RAILS;

/// The number of ranks in the job of the fuzzers.
pub const SIZE: u32 = 2;

const KINDS: [Kind; 4] = [Kind::Hello, Kind::Table, Kind::Refusal, Kind::Absent];

/// Reads a frame from bytes that come in pieces of at most `step`, as rank 0 or as another rank; returns its
/// kind and body, or nothing when it is not complete.
///
/// # Errors
/// When the frame is not valid.
pub fn frame_of(bytes: &[u8], step: usize, zero: bool) -> Result<Option<(usize, Vec<u8>)>, String> {
    let allowed = if zero { &KINDS[..1] } else { &KINDS[1..] };
    let (mut reader, mut rest) = (Reader::default(), bytes);
    loop {
        let wanted = reader.wanted(allowed).map_err(|bad| bad.to_string())?;
        let (piece, later) = rest.split_at(wanted.min(step).min(rest.len()));
        if piece.is_empty() {
            break;
        }
        reader.take(piece);
        rest = later;
    }
    let found = reader.finished(allowed).map_err(|bad| bad.to_string())?;
    let place = |kind| KINDS.iter().position(|known| *known == kind);
    Ok(found.and_then(|(kind, body)| Some((place(kind)?, body.to_vec()))))
}

/// Makes a frame of a kind, by the kind's index.
#[must_use]
pub fn frame(kind: usize, body: &[u8]) -> Option<Vec<u8>> {
    wire::frame(*KINDS.get(kind)?, body)
}

/// Reads a hello as rank 0 does.
///
/// # Errors
/// Why the rank is refused, or why there can be no job.
pub fn hello(body: &[u8]) -> Result<RankInfo, String> {
    let hello: RankInfo = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    hello.check(&own(0)).map(|()| hello)
}

/// Parses a table as rank 1 does, which has sent the hello that the table has for it.
///
/// # Errors
/// When the table is not valid.
pub fn table(body: &[u8]) -> Result<Vec<RankInfo>, String> {
    let root = Root::parse("@fuzz").map_err(|error| error.to_string())?;
    let meeting = super::join::check(&root, &own(1), body);
    Ok(meeting.map_err(|error| error.to_string())?.ranks)
}

/// Parses a message of a rank on another host or of a process that a running job has started, and its
/// invitation.
pub fn word(body: &[u8]) {
    drop(serde_json::from_slice::<Word>(body));
    drop(super::spawn_child::parse_word(body));
    drop(super::spawn_child::Invitation::parse(body));
}

/// Returns what the rank of the fuzzers is.
pub(crate) fn own(rank: u32) -> RankInfo {
    RankInfo {
        rank,
        size: SIZE,
        incarnation: 1,
        pid: 1,
        host: "here".to_owned(),
        cores: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program: String::new(),
        agreed: BTreeMap::from([("pml.unexpected".to_owned(), "1".to_owned())]),
        rails: Vec::new(),
    }
}
