//! Parses an answer on the client's side; nothing in it is trusted.

use zerocopy::FromBytes;
use zerocopy::byteorder::network_endian::U64;

use super::ANSWER_MAX;
use super::layout::{BadMessage, EndpointRecord, Op, RawHead, Record, asks};
use crate::address::{Address, INFO, Kind};
use crate::path::Path;
use crate::query::{Counters, Question};
use crate::status::Status;

/// An endpoint, as reported to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// The GUID of the device.
    pub guid: u64,
    /// The port number, from 1.
    pub port: u8,
    /// The number of ports of the device.
    pub ports: u8,
    /// The partition key.
    pub pkey: u16,
    /// The index among the endpoints with that port, from 1.
    pub index: u8,
    /// The name of the provider.
    pub provider: String,
    /// The addresses, as printable text.
    pub addresses: Vec<String>,
}

/// The content of a successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A path, and its source if the service chose it.
    Path {
        /// The path to the destination.
        path: Box<Path>,
        /// The source that the service chose.
        source: Option<Address>,
    },
    /// The counters of the service or of an endpoint.
    Counters(Counters),
    /// The description of an endpoint.
    Endpoint(Box<EndpointInfo>),
}

/// Why bytes are not the answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    /// The message is invalid.
    #[error(transparent)]
    BadMessage(#[from] BadMessage),
    /// The response answers another question.
    #[error("it answers another query")]
    Another,
    /// The status code is unknown.
    #[error("unknown status {0}")]
    Status(u8),
    /// The status is success, but the content is missing.
    #[error("it contains no {0}")]
    Lacks(&'static str),
}

/// Returns the transaction id of an answer.
///
/// # Errors
/// When the bytes are not an answer.
pub fn tid_of(bytes: &[u8]) -> Result<u64, BadAnswer> {
    let (head, _, _) = RawHead::split(bytes, ANSWER_MAX)?;
    if head.is_answer() {
        Ok(head.tid())
    } else {
        Err(BadMessage::NoAnswer.into())
    }
}

/// Parses a whole answer to `question`, which was sent with the transaction id `tid`.
///
/// # Errors
/// When it is not the answer to that question. The inner error is the status that the service answered with.
pub fn read_response(
    question: &Question,
    tid: u64,
    bytes: &[u8],
) -> Result<Result<Response, Status>, BadAnswer> {
    let (head, op, rest) = RawHead::split(bytes, ANSWER_MAX)?;
    if !head.is_answer() {
        return Err(BadMessage::NoAnswer.into());
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

/// Returns the first path, and the first address that is a source.
fn path(rest: &[u8]) -> Result<Response, BadAnswer> {
    let path = Record::all(rest).find_map(|record| record.as_path());
    let source = Record::all(rest)
        .filter(|record| record.flags.get() & asks::SOURCE != 0)
        .find_map(|record| Address::from_info(Kind::of(record.kind.get())?, &record.info));
    Ok(Response::Path {
        path: Box::new(Path::from(&path.ok_or(BadAnswer::Lacks("path"))?)),
        source,
    })
}

/// Accepts more counters than are known here, from a later version of the service, but not fewer.
fn counters(count: u8, rest: &[u8]) -> Result<Response, BadAnswer> {
    let counts = <[U64; Counters::COUNT]>::read_from_prefix(rest).ok();
    let counts = counts.filter(|_| usize::from(count) >= Counters::COUNT);
    let (counts, _) = counts.ok_or(BadAnswer::Lacks("counters"))?;
    Ok(Response::Counters(Counters::from_order(counts.map(U64::get))))
}

fn endpoint(index: u8, rest: &[u8]) -> Result<Response, BadAnswer> {
    let record = EndpointRecord::read_from_prefix(rest).ok();
    let (record, rest) = record.ok_or(BadAnswer::Lacks("endpoint"))?;
    let (texts, _) = rest.as_chunks::<INFO>();
    let texts = texts.get(..usize::from(record.addresses.get()));
    let texts = texts.ok_or(BadAnswer::Lacks("room for its addresses"))?;
    Ok(Response::Endpoint(Box::new(EndpointInfo {
        guid: record.guid.get(),
        port: record.port,
        ports: record.ports,
        pkey: record.pkey.get(),
        index,
        provider: shown(&record.provider),
        addresses: texts.iter().map(shown).collect(),
    })))
}

/// Returns the text up to its terminator, with control characters replaced, so that a terminal does not
/// interpret them.
fn shown(text: &[u8; INFO]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(INFO);
    String::from_utf8_lossy(&text[..end])
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
