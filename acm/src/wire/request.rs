//! Encodes a question on the client's side.

use zerocopy::IntoBytes;

use super::layout::{Op, RawHead, Record, asks};
use crate::path::PathRecord;
use crate::query::{CounterScope, Question};

/// Returns the bytes of a question. `tid` is the client's transaction id, which the answer repeats.
#[must_use]
pub fn write_question(question: &Question, tid: u64) -> Vec<u8> {
    let (op, data, body) = match question {
        Question::Resolve {
            source,
            destination,
            no_delay,
        } => {
            let later = if *no_delay { asks::NO_DELAY } else { 0 };
            let source = source
                .as_ref()
                .map(|source| Record::address(asks::SOURCE, source));
            let to = Record::address(asks::DESTINATION | later, destination);
            (Op::Resolve, [0; 3], source.into_iter().chain([to]).collect())
        }
        Question::Path { path, verify } => {
            let flags = if *verify { asks::VERIFY } else { 0 };
            (
                Op::Resolve,
                [0; 3],
                vec![Record::path(flags, &PathRecord::from(path))],
            )
        }
        Question::Counters(CounterScope::Service) => (Op::Counters, [0; 3], Vec::new()),
        Question::Counters(CounterScope::Index(index)) => (Op::Counters, [0, *index, 0], Vec::new()),
        Question::Counters(CounterScope::Owner(owner)) => {
            let record = Record::address(asks::SOURCE, owner);
            (Op::Counters, [0; 3], vec![record])
        }
        Question::Endpoint { port, index } => (Op::Endpoint, [*index, *port, 0], Vec::new()),
    };
    let body: &[Record] = body.as_ref();
    let mut raw = RawHead::new(op, 0, tid, body.as_bytes().len());
    raw.data = data;
    [raw.as_bytes(), body.as_bytes()].concat()
}
