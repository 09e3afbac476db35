//! An answer, as a client reads it: whatever calls itself the service may say anything.

use zerocopy::FromBytes;
use zerocopy::byteorder::network_endian::U64;

use super::ANSWER_MAX;
use super::layout::{EndpointRecord, Nonsense, Op, RawHead, Record, asks};
use crate::address::{Address, INFO, Kind};
use crate::ask::{Counters, Question};
use crate::path::Path;
use crate::status::Status;

/// An endpoint, as a client hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The device's GUID.
    pub guid: u64,
    /// The port, from 1.
    pub port: u8,
    /// How many ports the device has.
    pub ports: u8,
    /// The partition.
    pub pkey: u16,
    /// Counted from 1 among the endpoints with that port.
    pub index: u8,
    /// The back-end's name.
    pub provider: String,
    /// Its addresses, as text that can be shown.
    pub addresses: Vec<String>,
}

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A path, and the source where the service chose it.
    Path {
        /// The path.
        path: Box<Path>,
        /// The source that the service chose.
        source: Option<Address>,
    },
    /// Counters.
    Counters(Counters),
    /// An endpoint.
    Endpoint(Box<Report>),
}

/// Why bytes are not the answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// No message.
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
    /// An answer to something else.
    #[error("it answers another question")]
    Another,
    /// A status that there is not.
    #[error("its status {0} is unknown")]
    Status(u8),
    /// It says that it succeeded, and what was asked for is not in it.
    #[error("it has no {0} in it")]
    Lacks(&'static str),
}

/// The number by which the client knows which question this is the answer to.
///
/// # Errors
/// When it is no answer.
pub fn tid_of(bytes: &[u8]) -> Result<u64, BadAnswer> {
    let (head, _, _) = RawHead::split(bytes, ANSWER_MAX)?;
    if head.is_answer() {
        Ok(head.tid())
    } else {
        Err(Nonsense::NoAnswer.into())
    }
}

/// Reads a whole answer to `question`, which was asked under the number `tid`.
///
/// # Errors
/// When it is not the answer to that. The inner error is what the service answers instead of what was asked for.
pub fn told(question: &Question, tid: u64, bytes: &[u8]) -> Result<Result<Told, Status>, BadAnswer> {
    let (head, op, rest) = RawHead::split(bytes, ANSWER_MAX)?;
    if !head.is_answer() {
        return Err(Nonsense::NoAnswer.into());
    }
    if head.tid() != tid || op != op_of(question) {
        return Err(BadAnswer::Another);
    }
    if head.status != 0 {
        let status = Status::of(head.status).ok_or(BadAnswer::Status(head.status))?;
        return Ok(Err(status));
    }
    let told = match op {
        Op::Resolve => path(rest)?,
        Op::Counters => counters(head.data[0], rest)?,
        Op::Endpoint => endpoint(head.data[0], rest)?,
    };
    Ok(Ok(told))
}

const fn op_of(question: &Question) -> Op {
    match question {
        Question::Resolve { .. } | Question::Path { .. } => Op::Resolve,
        Question::Counters(_) => Op::Counters,
        Question::Endpoint { .. } => Op::Endpoint,
    }
}

/// The first path, and the first address that is a source.
fn path(rest: &[u8]) -> Result<Told, BadAnswer> {
    let path = Record::all(rest).find_map(|record| record.as_path());
    let source = Record::all(rest)
        .filter(|record| record.flags.get() & asks::SOURCE != 0)
        .find_map(|record| Address::from_info(Kind::of(record.kind.get())?, &record.info));
    Ok(Told::Path {
        path: Box::new(Path::from(&path.ok_or(BadAnswer::Lacks("path"))?)),
        source,
    })
}

/// More of them than are known here may come from a later service; fewer are none.
fn counters(count: u8, rest: &[u8]) -> Result<Told, BadAnswer> {
    let counts = <[U64; Counters::COUNT]>::read_from_prefix(rest).ok();
    let counts = counts.filter(|_| usize::from(count) >= Counters::COUNT);
    let (counts, _) = counts.ok_or(BadAnswer::Lacks("counters"))?;
    Ok(Told::Counters(Counters::from_order(counts.map(U64::get))))
}

fn endpoint(index: u8, rest: &[u8]) -> Result<Told, BadAnswer> {
    let record = EndpointRecord::read_from_prefix(rest).ok();
    let (record, rest) = record.ok_or(BadAnswer::Lacks("endpoint"))?;
    let (texts, _) = rest.as_chunks::<INFO>();
    let texts = texts.get(..usize::from(record.addresses.get()));
    let texts = texts.ok_or(BadAnswer::Lacks("room for its addresses"))?;
    Ok(Told::Endpoint(Box::new(Report {
        guid: record.guid.get(),
        port: record.port,
        ports: record.ports,
        pkey: record.pkey.get(),
        index,
        provider: shown(&record.provider),
        addresses: texts.iter().map(shown).collect(),
    })))
}

/// Text up to its end; what cannot be shown is replaced, so that nobody's terminal obeys it.
fn shown(text: &[u8; INFO]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(INFO);
    String::from_utf8_lossy(&text[..end])
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
