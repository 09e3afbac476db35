//! Clients that send invalid messages, half of one, or bytes without end; that do not read; that disconnect
//! in the middle.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use doorbell_acm::query::{CounterScope, Question};
use doorbell_acm::serve::{Count, Limits, Reply, Settings};
use doorbell_acm::wire::{ANSWER_MAX, Decoder, QUESTION_MAX, tid_of, write_question};

use crate::common::{LONG, Running, at_once, settings, table, v4};

/// A stranger, who writes bytes.
fn stranger(running: &Running) -> UnixStream {
    let stream = UnixStream::connect(&running.places.socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

fn resolve(last: u8) -> Question {
    Question::Resolve {
        source: Some(v4(1)),
        destination: v4(last),
        no_delay: false,
    }
}

/// What comes until the end. A reset is an end too: not all that was sent was read.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    all
}

fn whole(stream: &mut UnixStream) -> Vec<u8> {
    let mut decoder = Decoder::new(ANSWER_MAX);
    loop {
        if let Some(answer) = decoder.next().unwrap() {
            return answer;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        decoder.push(&byte);
    }
}

/// One that others are still served by.
fn still_serves(running: &Running) {
    assert!(running.client().counters(CounterScope::Service).is_ok());
}

#[test]
fn nonsense_ends_the_conversation_and_is_counted_by_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let good = write_question(&resolve(7), 1);
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = good.clone();
        changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes
    };
    let said = |length: u16| {
        let [low, high] = length.to_ne_bytes();
        with(&[(6, low), (7, high)])
    };
    let cases = [
        (with(&[(0, 0)]), Count::Version),
        (with(&[(0, 2)]), Count::Version),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Count::Version),
        (with(&[(1, 0)]), Count::Opcode),
        (with(&[(1, 4)]), Count::Opcode),
        (with(&[(1, 15)]), Count::Opcode),
        (said(15), Count::Length),
        (said(0), Count::Length),
        (said(QUESTION_MAX as u16 + 1), Count::Length),
        (said(u16::MAX), Count::Length),
    ];
    for (bytes, count) in cases {
        let before = running.served.of(count);
        let mut stream = stranger(&running);
        stream.write_all(&bytes).unwrap();
        assert_eq!(rest(stream), b"", "{count:?}: nothing is answered");
        running.until(count, before + 1);
    }
    still_serves(&running);
    assert_eq!(running.served.of(Count::Refused), 0);
}

#[test]
fn a_length_that_is_too_short_for_what_follows_is_two_messages() {
    // The second begins in the middle of the first's records, and is none.
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let mut bytes = write_question(&resolve(7), 1);
    bytes[6..8].copy_from_slice(&88u16.to_ne_bytes());
    let mut stream = stranger(&running);
    stream.write_all(&bytes).unwrap();
    rest(stream);
    running.until(Count::Version, 1);
    still_serves(&running);
}

#[test]
fn a_question_byte_by_byte_is_the_same_question() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let mut stream = stranger(&running);
    for tid in [1, u64::MAX] {
        for byte in write_question(&resolve(7), tid) {
            stream.write_all(&[byte]).unwrap();
        }
        let answer = whole(&mut stream);
        assert_eq!((answer.len(), tid_of(&answer)), (88, Ok(tid)));
    }
}

#[test]
fn a_client_that_has_closed_its_side_is_still_answered() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&settings(folder.path()), at_once);
    let mut stream = stranger(&running);
    let both = [write_question(&resolve(7), 1), write_question(&resolve(8), 2)].concat();
    stream.write_all(&both).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(stream).len(), 2 * 88);
    running.until_empty();
}

#[test]
fn half_a_question_is_not_waited_for_and_an_idle_client_may_stay() {
    let folder = tempfile::tempdir().unwrap();
    let quick = Settings {
        limits: Limits {
            half: Duration::from_millis(20),
            ..Limits::default()
        },
        ..settings(folder.path())
    };
    let running = Running::start(&quick, at_once);
    let mut idle = stranger(&running);
    let mut half = stranger(&running);
    half.write_all(&write_question(&resolve(7), 1)[..40]).unwrap();
    assert_eq!(rest(half), b"");
    running.until(Count::Half, 1);
    let mut cut = stranger(&running);
    cut.write_all(&write_question(&resolve(7), 1)[..1]).unwrap();
    drop(cut);
    running.until(Count::Cut, 1);
    idle.write_all(&write_question(&resolve(7), 3)).unwrap();
    assert_eq!(tid_of(&whole(&mut idle)), Ok(3));
}

#[test]
fn a_client_that_does_not_read_is_left_and_delays_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let quick = Settings {
        limits: Limits {
            stuck: Duration::from_millis(50),
            ..Limits::default()
        },
        ..settings(folder.path())
    };
    let running = Running::start(&quick, at_once);
    let mut silent = stranger(&running);
    let question = write_question(&resolve(7), 1);
    // Until its own side is full too, and the service has left it.
    while silent.write_all(&question).is_ok() {}
    running.until(Count::Stuck, 1);
    still_serves(&running);
}

#[test]
fn a_flood_of_questions_stops_at_the_bound_and_all_are_answered() {
    const BOUND: usize = 8;
    const ASKED: u64 = 5000;
    let folder = tempfile::tempdir().unwrap();
    let narrow = Settings {
        limits: Limits {
            questions: BOUND,
            ..Limits::default()
        },
        ..settings(folder.path())
    };
    let (held, replies) = mpsc::channel::<(Question, Reply)>();
    let running = Running::start(&narrow, move |question, reply| {
        held.send((question, reply)).expect("the test goes on");
    });
    let stream = stranger(&running);
    let mut writer = stream.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let all: Vec<u8> = (1..=ASKED)
            .flat_map(|tid| write_question(&resolve(7), tid))
            .collect();
        writer.write_all(&all).unwrap();
    });
    running.until(Count::Questions, BOUND as u64);
    still_bounded(&running, BOUND as u64);
    let answers = std::thread::spawn(move || {
        let mut stream = stream;
        let mut tids: Vec<u64> = (0..ASKED).map(|_| tid_of(&whole(&mut stream)).unwrap()).collect();
        tids.sort_unstable();
        tids
    });
    // Two at a time, the later one first: in no order.
    for _ in 0..ASKED / 2 {
        let [one, other] = [(); 2].map(|()| replies.recv_timeout(LONG).expect("a question"));
        for (question, reply) in [other, one] {
            reply.send(&table(&question));
        }
    }
    flood.join().unwrap();
    assert_eq!(answers.join().unwrap(), (1..=ASKED).collect::<Vec<_>>());
}

/// Nothing is read beyond the bound, however long one looks.
fn still_bounded(running: &Running, bound: u64) {
    for _ in 0..100 {
        assert_eq!(running.served.of(Count::Questions), bound);
        std::thread::yield_now();
    }
}

#[test]
fn answers_that_are_not_read_have_a_bound_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = Settings {
        limits: Limits {
            unread: 1000,
            ..Limits::default()
        },
        ..settings(folder.path())
    };
    // All at once: the service has no turn to write the first before the last is there.
    let kept = Mutex::new(Vec::new());
    let running = Running::start(&narrow, move |_: Question, reply: Reply| {
        let mut kept = kept.lock().unwrap();
        kept.push(reply);
        if kept.len() == 64 {
            kept.drain(..).for_each(|reply| reply.send(&table(&resolve(7))));
        }
    });
    let mut stream = stranger(&running);
    for tid in 1..=64 {
        stream.write_all(&write_question(&resolve(7), tid)).unwrap();
    }
    running.until(Count::Unread, 1);
    assert_eq!(rest(stream).len(), 11 * 88, "those for which there was room");
}

#[test]
fn a_client_that_leaves_with_open_questions_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (held, replies) = mpsc::channel::<(Question, Reply)>();
    let running = Running::start(&settings(folder.path()), move |question, reply| {
        held.send((question, reply)).expect("the test goes on");
    });
    for tid in 0..50 {
        let mut stream = stranger(&running);
        stream.write_all(&write_question(&resolve(7), tid)).unwrap();
        let (question, reply) = replies.recv_timeout(LONG).expect("a question");
        drop(stream);
        reply.send(&table(&question));
    }
    running.until_empty();
}
