//! Golden bytes of every form, both ways; and everything that is none.

use proptest::prelude::*;

use super::*;
use crate::address::{Address, Gid, INFO, Name};
use crate::endpoint::{Endpoint, Link};
use crate::path::{Mtu, Path, Rate};
use crate::query::{Answer, CounterScope, Counters, Found, Question};
use crate::status::Status;

const TID: u64 = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
const TID_BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Bytes one after another.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A header whose length is in the order of the host.
fn host(op: u8, status: u8, length: u16) -> Vec<u8> {
    join(&[&[1, op, status, 0, 0, 0], &length.to_ne_bytes(), &TID_BYTES])
}

/// A header whose length is big endian.
fn big(op: u8, data: [u8; 3], length: u16) -> Vec<u8> {
    join(&[&[1, op, 0], &data, &length.to_be_bytes(), &TID_BYTES])
}

fn record(flags: u32, kind: u16, info: &[u8]) -> Vec<u8> {
    let padding = vec![0; INFO - info.len()];
    join(&[&flags.to_ne_bytes(), &kind.to_ne_bytes(), &[0, 0], info, &padding])
}

fn v4(last: u8) -> Address {
    Address::V4([10, 0, 0, last].into())
}

fn v6() -> Address {
    Address::V6("fd00::9".parse().unwrap())
}

fn name(name: &str) -> Address {
    Address::Name(Name::new(name).unwrap())
}

fn some_path() -> Path {
    Path {
        dgid: "fe80::1".parse().unwrap(),
        sgid: "fe80::2".parse().unwrap(),
        dlid: 3,
        slid: 4,
        reversible: true,
        num_path: 1,
        pkey: 0xffff,
        mtu: Mtu::within(2048),
        rate: Some(Rate::within(100_000)),
        packet_lifetime: 18,
        ..Path::default()
    }
}

/// The same as it lies on the wire.
fn path_bytes() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[8..24].copy_from_slice(&"fe80::1".parse::<Gid>().unwrap().0);
    bytes[24..40].copy_from_slice(&"fe80::2".parse::<Gid>().unwrap().0);
    bytes[40..44].copy_from_slice(&[0, 3, 0, 4]);
    bytes[49..58].copy_from_slice(&[0x81, 0xff, 0xff, 0, 0, 0x84, 0x90, 0x92, 0]);
    bytes
}

fn endpoint(addresses: Vec<Address>) -> Endpoint {
    Endpoint {
        device: "eth0".to_owned(),
        other_names: Vec::new(),
        guid: 0x0102_0304_0506_0708,
        interface: 2,
        port: 1,
        ports: 2,
        pkey: 0xffff,
        link: Link::Ethernet,
        gid: Gid::NONE,
        lid: 0,
        mtu: Mtu::MAX,
        rate: Rate::MIN,
        subnet_timeout: 18,
        addresses,
        networks: Vec::new(),
    }
}

fn asked(bytes: &[u8]) -> Question {
    let (head, question) = read_question(bytes).expect("a question");
    assert_eq!(head.tid(), TID);
    question
}

fn status_of(bytes: &[u8]) -> Status {
    match read_question(bytes) {
        Err(Rejected::Answer(head, status)) => {
            let golden = host(0x81, status.code(), 16);
            assert_eq!(write_answer(&head, &Err(status)), golden, "a header and no more");
            status
        }
        other => panic!("{other:?}"),
    }
}

fn resolve(source: Option<Address>, destination: Address, no_delay: bool) -> Question {
    Question::Resolve {
        source,
        destination,
        no_delay,
    }
}

/// Every form of a question, and its bytes.
fn questions() -> Vec<(Question, Vec<u8>)> {
    let both = join(&[
        &host(1, 0, 160),
        &record(1, 2, &[10, 0, 0, 1]),
        &record(2, 2, &[10, 0, 0, 2]),
    ]);
    let one = join(&[&host(1, 0, 88), &record(0x4000_0002, 1, b"node2")]);
    let v6s = join(&[
        &host(1, 0, 88),
        &record(2, 3, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),
    ]);
    let path = join(&[&host(1, 0, 88), &record(0, 0x10, &path_bytes())]);
    let verify = join(&[&host(1, 0, 88), &record(0x8000_0000, 0x10, &path_bytes())]);
    let owner = join(&[&big(2, [0; 3], 88), &record(1, 2, &[10, 0, 0, 1])]);
    let of = |verify| Question::Path {
        path: some_path(),
        verify,
    };
    vec![
        (resolve(Some(v4(1)), v4(2), false), both),
        (resolve(None, name("node2"), true), one),
        (resolve(None, v6(), false), v6s),
        (of(false), path),
        (of(true), verify),
        (Question::Counters(CounterScope::Service), big(2, [0; 3], 16)),
        (Question::Counters(CounterScope::Index(3)), big(2, [0, 3, 0], 16)),
        (Question::Counters(CounterScope::Owner(v4(1))), owner),
        (Question::Endpoint { port: 2, index: 1 }, big(3, [1, 2, 0], 16)),
    ]
}

#[test]
fn questions_are_these_bytes_both_ways() {
    for (question, bytes) in questions() {
        assert_eq!(write_question(&question, TID), bytes, "{question:?}");
        assert_eq!(asked(&bytes), question);
    }
}

#[test]
fn the_order_of_the_records_is_free() {
    let bytes = join(&[
        &host(1, 0, 160),
        &record(2, 2, &[10, 0, 0, 2]),
        &record(1, 2, &[10, 0, 0, 1]),
    ]);
    assert_eq!(asked(&bytes), resolve(Some(v4(1)), v4(2), false));
}

#[test]
fn a_record_that_is_neither_source_nor_destination_is_passed_over() {
    // As librdmacm sends it where a route is hinted at.
    let bytes = join(&[
        &host(1, 0, 160),
        &record(2, 2, &[10, 0, 0, 2]),
        &record(0, 0x10, &path_bytes()),
    ]);
    assert_eq!(asked(&bytes), resolve(None, v4(2), false));
}

#[test]
fn addresses_are_refused_record_by_record() {
    let source = |kind| record(1, kind, &[10, 0, 0, 1]);
    let to = |kind| record(2, kind, &[10, 0, 0, 2]);
    let of = |records: &[Vec<u8>]| join(&[&host(1, 0, 16 + 72 * records.len() as u16), &records.concat()]);
    let cases = [
        (vec![], Status::DestinationType),
        (vec![source(2)], Status::DestinationType),
        (vec![source(2), source(2), to(2)], Status::SourceAddress),
        (vec![to(2), to(2)], Status::DestinationAddress),
        (vec![source(0), to(2)], Status::SourceType),
        (vec![source(6), to(2)], Status::SourceType),
        (vec![to(0)], Status::DestinationType),
        (vec![to(6)], Status::DestinationType),
        // The first that is wrong decides.
        (vec![to(6), source(6)], Status::DestinationType),
        (vec![source(6), to(6)], Status::SourceType),
        // A path is an address only where it comes first.
        (vec![to(2), record(1, 0x10, &[])], Status::SourceType),
        (vec![record(1, 1, &[0xff; 3]), to(2)], Status::SourceAddress),
        (vec![record(2, 1, &[b'a'; 64])], Status::DestinationAddress),
        (vec![record(2, 5, &[0; 2])], Status::DestinationAddress),
    ];
    for (records, status) in cases {
        assert_eq!(status_of(&of(&records)), status, "{records:?}");
    }
}

#[test]
fn both_flags_in_one_record_are_a_path_to_oneself() {
    let bytes = join(&[&host(1, 0, 88), &record(3, 2, &[10, 0, 0, 1])]);
    assert_eq!(asked(&bytes), resolve(Some(v4(1)), v4(1), false));
}

#[test]
fn a_path_has_to_be_whole_and_to_lead_somewhere() {
    let path = record(0, 0x10, &path_bytes());
    for cut in [6, 8, 71] {
        let short = join(&[&host(1, 0, 16 + cut as u16), &path[..cut]]);
        assert_eq!(status_of(&short), Status::Invalid, "{cut}");
    }
    let nowhere = join(&[&host(1, 0, 88), &record(0, 0x10, &[])]);
    assert_eq!(status_of(&nowhere), Status::DestinationAddress);
    let mut by_lid = vec![0; 64];
    by_lid[41] = 3;
    let by_lid = join(&[&host(1, 0, 88), &record(0, 0x10, &by_lid)]);
    assert!(matches!(asked(&by_lid), Question::Path { path, .. } if path.dlid == 3));
    let verify = join(&[&host(1, 0, 160), &record(1 << 31, 0x10, &path_bytes()), &path]);
    match read_question(&verify) {
        Err(Rejected::Answer(_, status)) => assert_eq!(status, Status::Invalid, "one path and no more"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn counters_of_an_address_need_the_flag_and_an_address() {
    let of = |flags, kind| join(&[&big(2, [0; 3], 88), &record(flags, kind, &[10, 0, 0, 1])]);
    assert_eq!(asked(&of(0, 2)), Question::Counters(CounterScope::Service));
    match read_question(&of(1, 9)) {
        Err(Rejected::Answer(head, status)) => {
            assert_eq!(status, Status::SourceAddress);
            let golden = join(&[&[1, 0x82, 7, 0, 0, 0, 0, 16], &TID_BYTES]);
            assert_eq!(write_answer(&head, &Err(status)), golden);
        }
        other => panic!("{other:?}"),
    }
    let index = join(&[&big(2, [0, 4, 0], 88), &record(1, 2, &[10, 0, 0, 1])]);
    assert_eq!(asked(&index), Question::Counters(CounterScope::Index(4)));
}

#[test]
fn what_is_no_message_ends_the_conversation() {
    let drops = |bytes: &[u8]| match read_question(bytes) {
        Err(Rejected::Drop(nonsense)) => nonsense,
        other => panic!("{other:?}"),
    };
    let good = write_question(&Question::Counters(CounterScope::Service), TID);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(drops(&with(0, 0)), BadMessage::Version(0));
    assert_eq!(drops(&with(0, 2)), BadMessage::Version(2));
    assert_eq!(drops(&with(1, 0)), BadMessage::Opcode(0));
    assert_eq!(drops(&with(1, 4)), BadMessage::Opcode(4));
    let most = QUESTION_MAX;
    assert_eq!(drops(&with(7, 15)), BadMessage::Length { said: 15, most });
    assert_eq!(drops(&with(6, 3)), BadMessage::Length { said: 784, most });
    assert_eq!(drops(&with(7, 17)), BadMessage::Cut { said: 17, got: 16 });
    assert_eq!(drops(&good[..5]), BadMessage::Cut { said: 16, got: 5 });
    // The length of a question to resolve is the host's.
    let mut swapped = write_question(&resolve(None, v4(1), false), TID);
    swapped[6..8].reverse();
    assert!(matches!(drops(&swapped), BadMessage::Length { .. }));
}

/// What the service found, its bytes, and what the client reads; for the question at the same place.
fn answers() -> Vec<(Question, Found, Vec<u8>, Response)> {
    let mut counters = Vec::new();
    (1..=7u64).for_each(|count| counters.extend(count.to_be_bytes()));
    let counts = Counters::from_order([1, 2, 3, 4, 5, 6, 7]);
    let found = |source| Found::Path {
        path: Box::new(some_path()),
        source,
    };
    let told = |source| Response::Path {
        path: Box::new(some_path()),
        source,
    };
    let path = record(0x2b, 0x10, &path_bytes());
    let verified = record(1 << 31, 0x10, &path_bytes());
    let chosen = record(1, 2, &[10, 0, 0, 1]);
    let mut provider = b"doorbell".to_vec();
    provider.resize(64, 0);
    let text = |text: &str| join(&[text.as_bytes(), &vec![0; 64 - text.len()]]);
    let described = join(&[
        &big(0x83, [1, 0, 0], 16 + 80 + 128),
        &[1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 0, 0, 0xff, 0xff, 0, 2],
        &provider,
        &text("node1"),
        &text("10.0.0.1"),
    ]);
    let report = EndpointInfo {
        guid: 0x0102_0304_0506_0708,
        port: 1,
        ports: 2,
        pkey: 0xffff,
        index: 1,
        provider: "doorbell".to_owned(),
        addresses: vec!["node1".to_owned(), "10.0.0.1".to_owned()],
    };
    vec![
        (
            resolve(Some(v4(1)), v4(2), false),
            found(None),
            join(&[&host(0x81, 0, 88), &path]),
            told(None),
        ),
        (
            resolve(None, v4(2), false),
            found(Some(v4(1))),
            join(&[&host(0x81, 0, 160), &path, &chosen]),
            told(Some(v4(1))),
        ),
        (
            Question::Path {
                path: some_path(),
                verify: true,
            },
            found(None),
            join(&[&host(0x81, 0, 88), &verified]),
            told(None),
        ),
        (
            Question::Counters(CounterScope::Index(3)),
            Found::Counters(counts),
            join(&[&big(0x82, [7, 3, 0], 72), &counters]),
            Response::Counters(counts),
        ),
        (
            Question::Endpoint { port: 2, index: 1 },
            Found::Endpoint {
                endpoint: Box::new(endpoint(vec![name("node1"), v4(1)])),
                provider: "doorbell",
            },
            described,
            Response::Endpoint(Box::new(report)),
        ),
    ]
}

#[test]
fn answers_are_these_bytes_both_ways() {
    for (asks, found, bytes, says) in answers() {
        let (head, _) = read_question(&write_question(&asks, TID)).unwrap();
        assert_eq!(write_answer(&head, &Ok(found)), bytes, "{asks:?}");
        assert_eq!(read_response(&asks, TID, &bytes), Ok(Ok(says)));
        assert_eq!(tid_of(&bytes), Ok(TID));
    }
}

#[test]
fn every_status_is_in_a_header() {
    for (asks, ..) in answers() {
        let (head, _) = read_question(&write_question(&asks, TID)).unwrap();
        for status in Status::ALL {
            let bytes = write_answer(&head, &Err(status));
            assert_eq!((bytes.len(), bytes[2]), (16, status.code()));
            assert_eq!(read_response(&asks, TID, &bytes), Ok(Err(status)));
        }
    }
}

#[test]
fn an_answer_to_another_question_is_a_refusal() {
    let (head, _) = read_question(&write_question(&resolve(None, v4(2), false), TID)).unwrap();
    let wrong: Answer = Ok(Found::Counters(Counters::default()));
    assert_eq!(write_answer(&head, &wrong), host(0x81, 2, 16));
}

#[test]
fn an_endpoint_of_very_many_addresses_has_those_that_fit() {
    let asks = Question::Endpoint { port: 1, index: 1 };
    let (head, _) = read_question(&write_question(&asks, TID)).unwrap();
    let many = (0..2000u32).map(|at| Address::V4(at.into())).collect();
    let found = Found::Endpoint {
        endpoint: Box::new(endpoint(many)),
        provider: "doorbell",
    };
    let bytes = write_answer(&head, &Ok(found));
    assert!(bytes.len() <= ANSWER_MAX && bytes.len() > ANSWER_MAX - 64);
    match read_response(&asks, TID, &bytes) {
        Ok(Ok(Response::Endpoint(report))) => assert_eq!(report.addresses.len(), 1022),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_believes_nothing() {
    let all = answers();
    let (asks, _, path, _) = &all[0];
    let (counts_asked, _, counts, _) = &all[3];
    let (endpoint_asked, _, described, _) = &all[4];
    assert_eq!(read_response(asks, TID + 1, path), Err(BadAnswer::Another));
    assert_eq!(read_response(counts_asked, TID, path), Err(BadAnswer::Another));
    assert_eq!(
        read_response(asks, TID, &host(0x81, 4, 16)),
        Err(BadAnswer::Status(4))
    );
    assert_eq!(
        read_response(asks, TID, &host(0x81, 255, 16)),
        Err(BadAnswer::Status(255))
    );
    assert_eq!(
        read_response(asks, TID, &host(0x81, 0, 16)),
        Err(BadAnswer::Lacks("path"))
    );
    let question = write_question(asks, TID);
    assert_eq!(
        read_response(asks, TID, &question),
        Err(BadMessage::NoAnswer.into())
    );
    assert_eq!(tid_of(&question), Err(BadMessage::NoAnswer.into()));
    let few = big(0x82, [6, 0, 0], 72);
    let few = join(&[&few, &counts[16..]]);
    assert_eq!(
        read_response(counts_asked, TID, &few),
        Err(BadAnswer::Lacks("counters"))
    );
    let mut promising = described.clone();
    promising[31] = 3;
    let lacks = Err(BadAnswer::Lacks("room for its addresses"));
    assert_eq!(read_response(endpoint_asked, TID, &promising), lacks);
    let mut obeyed = described.clone();
    obeyed[96..99].copy_from_slice(b"\x1b[2");
    match read_response(endpoint_asked, TID, &obeyed) {
        Ok(Ok(Response::Endpoint(report))) => assert_eq!(report.addresses[0], "\u{fffd}[2e1"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stranger_is_known_by_its_first_byte() {
    let mut decoder = Decoder::new(QUESTION_MAX);
    decoder.push(b"G");
    assert_eq!(decoder.next(), Err(BadMessage::Version(b'G')));
}

proptest! {
    #[test]
    fn messages_are_the_same_in_any_pieces(cuts in proptest::collection::vec(1usize..700, 1..40)) {
        let all: Vec<Vec<u8>> = questions().into_iter().map(|(_, bytes)| bytes).collect();
        let (stream, mut rest) = (all.concat(), Vec::new());
        let (mut decoder, mut from) = (Decoder::new(QUESTION_MAX), 0);
        for cut in cuts.iter().cycle() {
            let end = (from + cut).min(stream.len());
            decoder.push(&stream[from..end]);
            while let Some(message) = decoder.next().unwrap() {
                rest.push(message);
            }
            from = end;
            if from == stream.len() {
                break;
            }
        }
        prop_assert_eq!(rest, all);
        prop_assert!(!decoder.is_partial());
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..700), real in any::<bool>()) {
        if real && bytes.len() >= 16 {
            let length = bytes.len() as u16;
            bytes[0] = 1;
            bytes[1] &= 0x83;
            let host = bytes[1] & 0xf == 1;
            bytes[6..8].copy_from_slice(&if host { length.to_ne_bytes() } else { length.to_be_bytes() });
        }
        match read_question(&bytes) {
            Ok((head, asks)) => {
                prop_assert_eq!(write_answer(&head, &Err(Status::TimedOut)).len(), 16);
                // What was understood is understood again.
                let (_, again) = read_question(&write_question(&asks, head.tid())).expect("it was a question");
                prop_assert_eq!(again, asks);
            }
            Err(Rejected::Answer(head, status)) => prop_assert_eq!(write_answer(&head, &Err(status)).len(), 16),
            Err(Rejected::Drop(_)) => {}
        }
        for (asks, ..) in answers() {
            let _ = read_response(&asks, 0, &bytes);
        }
    }
}
