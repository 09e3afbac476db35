//! Parses a question on the service's side, record by record in the order of the original.

use zerocopy::FromBytes;
use zerocopy::byteorder::native_endian;

use super::QUESTION_MAX;
use super::layout::{BadMessage, Op, PATH_KIND, RECORD, RawHead, Record, asks};
use crate::address::{Address, Gid, Kind};
use crate::path::Path;
use crate::query::{CounterScope, Question};
use crate::status::Status;

/// What an answer repeats of its question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub(super) op: Op,
    /// The client's transaction id, which the answer repeats.
    pub(super) tid: u64,
    pub(super) data: [u8; 3],
    /// Whether the path was to be verified, which the answer repeats.
    pub(super) verifies: bool,
}

impl Head {
    /// Returns the operation requested.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.op
    }

    /// Returns the client's transaction id, which the answer repeats.
    #[must_use]
    pub const fn tid(&self) -> u64 {
        self.tid
    }
}

/// Why a question is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Answer with a status; the client may query again.
    Answer(Head, Status),
    /// Close the connection.
    Drop(BadMessage),
}

/// Parses a whole message.
///
/// Whether a missing source can be chosen, and whether a given source belongs to this host, is not checked
/// here: that takes the host's endpoints.
///
/// # Errors
/// [`Rejected`], with what is to be done about it.
pub fn read_question(bytes: &[u8]) -> Result<(Head, Question), Rejected> {
    let (raw, op, rest) = RawHead::split(bytes, QUESTION_MAX).map_err(Rejected::Drop)?;
    let first = Record::all(rest).next();
    let flags = first.map_or(0, |record| record.flags.get());
    let is_path = kind_of_first(rest) == Some(PATH_KIND);
    let head = Head {
        op,
        tid: raw.tid(),
        data: raw.data,
        verifies: op == Op::Resolve && is_path && flags & asks::VERIFY != 0,
    };
    let asked = match op {
        Op::Resolve if is_path => path(rest, head.verifies),
        Op::Resolve => addresses(rest),
        Op::Counters => counter_scope(raw.data[1], first).map(Question::Counters),
        Op::Endpoint => Ok(Question::Endpoint {
            index: raw.data[0],
            port: raw.data[1],
        }),
    };
    match asked {
        Ok(question) => Ok((head, question)),
        Err(status) => Err(Rejected::Answer(head, status)),
    }
}

/// Returns the type of the first record, which may be there although the rest of the record is not.
fn kind_of_first(rest: &[u8]) -> Option<u16> {
    let (kind, _) = native_endian::U16::read_from_prefix(rest.get(4..)?).ok()?;
    Some(kind.get())
}

fn path(rest: &[u8], verifies: bool) -> Result<Question, Status> {
    if rest.len() < RECORD || verifies && rest.len() != RECORD {
        return Err(Status::Invalid);
    }
    let record = Record::all(rest).next().and_then(|record| record.as_path());
    let path = Path::from(&record.ok_or(Status::Invalid)?);
    if path.dlid == 0 && path.dgid.is_none() {
        return Err(Status::DestinationAddress);
    }
    Ok(Question::Path {
        path,
        verify: verifies,
    })
}

fn addresses(rest: &[u8]) -> Result<Question, Status> {
    let (mut source, mut destination, mut no_delay) = (None, None, false);
    for record in Record::all(rest) {
        let flags = record.flags.get();
        if flags & asks::SOURCE != 0 {
            if source.is_some() {
                return Err(Status::SourceAddress);
            }
            let kind = Kind::of(record.kind.get()).ok_or(Status::SourceType)?;
            source = Some(address(kind, &record).ok_or(Status::SourceAddress)?);
        }
        if flags & asks::DESTINATION != 0 {
            if destination.is_some() {
                return Err(Status::DestinationAddress);
            }
            let kind = Kind::of(record.kind.get()).ok_or(Status::DestinationType)?;
            destination = Some(address(kind, &record).ok_or(Status::DestinationAddress)?);
            no_delay = flags & asks::NO_DELAY != 0;
        }
    }
    Ok(Question::Resolve {
        source,
        destination: destination.ok_or(Status::DestinationType)?,
        no_delay,
    })
}

/// Returns the address; `None` if it is empty or not a valid name.
fn address(kind: Kind, record: &Record) -> Option<Address> {
    Address::from_info(kind, &record.info)
        .filter(|address| !matches!(address, Address::Lid(0) | Address::Gid(Gid::NONE)))
}

fn counter_scope(index: u8, first: Option<Record>) -> Result<CounterScope, Status> {
    match first {
        _ if index > 0 => Ok(CounterScope::Index(index)),
        Some(record) if record.flags.get() & asks::SOURCE != 0 => {
            let kind = Kind::of(record.kind.get()).ok_or(Status::SourceAddress)?;
            let owner = address(kind, &record).ok_or(Status::SourceAddress)?;
            Ok(CounterScope::Owner(owner))
        }
        _ => Ok(CounterScope::Service),
    }
}
