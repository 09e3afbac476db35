//! Encodes an answer on the service's side, always whole: the original clients read it with one call.

use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U64;

use super::ANSWER_MAX;
use super::layout::{ACK, ENDPOINT, EndpointRecord, HEAD, Op, PATH_FLAGS, RawHead, Record, asks, text};
use super::question::Head;
use crate::address::{Address, INFO};
use crate::endpoint::Endpoint;
use crate::path::{Path, PathRecord};
use crate::query::{Answer, Counters, Found};
use crate::status::Status;

/// Returns the bytes of an answer, at most [`ANSWER_MAX`].
///
/// An error is a header only. So is an answer of the wrong kind for its question, which becomes the status
/// "invalid".
#[must_use]
pub fn write_answer(head: &Head, answer: &Answer) -> Vec<u8> {
    match (head.op, answer) {
        (Op::Resolve, Ok(Found::Path { path, source })) => resolved(head, path, source.as_ref()),
        (Op::Counters, Ok(Found::Counters(counters))) => counted(head, counters),
        (Op::Endpoint, Ok(Found::Endpoint { endpoint, provider })) => described(head, endpoint, provider),
        (_, Ok(_)) => refusal(head, Status::Invalid),
        (_, Err(status)) => refusal(head, *status),
    }
}

fn refusal(head: &Head, status: Status) -> Vec<u8> {
    let mut raw = RawHead::new(head.op, ACK, head.tid, 0);
    raw.status = status.code();
    raw.data = head.data;
    raw.as_bytes().to_vec()
}

fn resolved(head: &Head, path: &Path, source: Option<&Address>) -> Vec<u8> {
    let flags = if head.verifies { asks::VERIFY } else { PATH_FLAGS };
    let mut body = Record::path(flags, &PathRecord::from(path)).as_bytes().to_vec();
    if let Some(source) = source.filter(|_| !head.verifies) {
        body.extend_from_slice(Record::address(asks::SOURCE, source).as_bytes());
    }
    whole(head, head.data, &body)
}

fn counted(head: &Head, counters: &Counters) -> Vec<u8> {
    let body = counters.in_order().map(U64::new);
    whole(head, [Counters::COUNT as u8, head.data[1], 0], body.as_bytes())
}

/// Leaves out the addresses that do not fit into an answer.
fn described(head: &Head, endpoint: &Endpoint, provider: &str) -> Vec<u8> {
    const MOST: usize = (ANSWER_MAX - HEAD - ENDPOINT) / INFO;
    let told = &endpoint.addresses[..endpoint.addresses.len().min(MOST)];
    let mut record = EndpointRecord::zeroed();
    record.guid = endpoint.guid.into();
    record.port = endpoint.port;
    record.ports = endpoint.ports;
    record.pkey = endpoint.pkey.into();
    record.addresses = (told.len() as u16).into();
    record.provider = text(provider);
    let mut body = record.as_bytes().to_vec();
    told.iter()
        .for_each(|address| body.extend_from_slice(&text(&address.to_string())));
    whole(head, [head.data[0], 0, 0], &body)
}

fn whole(head: &Head, data: [u8; 3], body: &[u8]) -> Vec<u8> {
    let mut raw = RawHead::new(head.op, ACK, head.tid, body.len());
    raw.data = data;
    [raw.as_bytes(), body].concat()
}
