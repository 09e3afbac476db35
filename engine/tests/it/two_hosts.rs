//! Two worlds that meet over a connection, as on two hosts: how the job starts, ends, and fails on both
//! sides. Here both are threads of one process, and the rail between them is shm.

use std::thread;
use std::time::{Duration, Instant};

use doorbell::oob::lines::tcp::blocking::Accepted;
use doorbell::oob::{Connection, JobKey, Listener};
use doorbell::{Builder, Error, Exit, World, terms};

const AMPLE: Duration = Duration::from_secs(20);

/// Both ends of a connection: first that of the side that connected.
fn ends() -> (Connection, Connection) {
    let key = JobKey::from_bytes([7; 32]);
    let mut listener =
        Listener::bind("127.0.0.1:0".parse().unwrap(), terms(Some(key.clone())).unwrap()).unwrap();
    let to = listener.address().into();
    thread::scope(|s| {
        let call = s.spawn(move || Connection::connect(&to, &terms(Some(key)).unwrap(), AMPLE).unwrap());
        match listener.accept(None, Some(AMPLE)).unwrap() {
            Accepted::Connection(guest) => (call.join().unwrap(), *guest),
            other => panic!("{other:?}"),
        }
    })
}

fn builder() -> Builder {
    Builder::new()
        .without_environment()
        .set("rails.list", "shm")
        .set("job.timeout", "5 s")
}

fn meet(zero: fn() -> Builder, one: fn() -> Builder) -> (Result<World, Error>, Result<World, Error>) {
    let (call, answer) = ends();
    thread::scope(|s| {
        let other = s.spawn(move || one().build_over(answer));
        let zero = zero().build_over(call);
        (zero, other.join().unwrap())
    })
}

fn pair() -> (World, World) {
    let (zero, one) = meet(builder, builder);
    (zero.unwrap(), one.unwrap())
}

fn errors(zero: fn() -> Builder, one: fn() -> Builder) -> (Error, Error) {
    let started = Instant::now();
    let (zero, one) = meet(zero, one);
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    (zero.unwrap_err(), one.unwrap_err())
}

#[test]
fn messages_cross_and_a_close_is_reported_as_one() {
    for mode in ["inline", "dedicated"] {
        let (call, answer) = ends();
        thread::scope(|s| {
            let other = s.spawn(move || {
                let one = builder().set("progress.mode", mode).build_over(answer).unwrap();
                assert_eq!((one.rank(), one.size()), (1, 2));
                let mut buffer = [0; 64];
                assert_eq!(one.recv(0, 7, &mut buffer).unwrap().len, 5);
                one.send(0, 8, &buffer[..5]).unwrap();
                // The other one has closed: the wait ends with that error, and soon.
                let error = one.within(AMPLE).recv(0, 9, &mut buffer).unwrap_err();
                assert!(
                    matches!(&error, Error::PeerLost { why, .. } if why.contains("closed")),
                    "{error}"
                );
            });
            let zero = builder().set("progress.mode", mode).build_over(call).unwrap();
            zero.send(1, 7, b"hello").unwrap();
            let mut buffer = [0; 64];
            assert_eq!(zero.recv(1, 8, &mut buffer).unwrap().len, 5);
            assert_eq!(&buffer[..5], b"hello");
            zero.close();
            other.join().unwrap();
        });
    }
}

/// The other side connects, sends and closes before this one has polled its rail for the first time.
#[test]
fn messages_sent_before_an_early_close_arrive() {
    for round in 0..60 {
        let (call, answer) = ends();
        thread::scope(|s| {
            s.spawn(move || {
                let world = builder().build_over(call).unwrap();
                world.send(1, 7, b"from another host").unwrap();
            });
            let world = builder().build_over(answer).unwrap();
            thread::sleep(Duration::from_millis(round % 4));
            let mut buffer = [0; 64];
            let got = world.recv(0, 7, &mut buffer);
            assert_eq!(got.map(|status| status.len).ok(), Some(17), "round {round}");
        });
    }
}

#[test]
fn a_cut_connection_is_a_peer_that_died_also_for_a_sleeping_rank() {
    for wait in ["lowest-latency", "sleep"] {
        let (call, answer) = ends();
        let cut = call.canceller().unwrap();
        thread::scope(|s| {
            let zero = s.spawn(move || builder().build_over(call).unwrap());
            let one = builder().set("progress.wait", wait).build_over(answer).unwrap();
            let zero = zero.join().unwrap();
            let waiting = s.spawn(move || {
                let started = Instant::now();
                let error = one.within(AMPLE).recv(0, 1, &mut [0; 8]).unwrap_err();
                (error, started.elapsed())
            });
            thread::sleep(Duration::from_millis(100));
            let started = Instant::now();
            cut.cancel();
            let (error, _) = waiting.join().unwrap();
            assert!(
                started.elapsed() < Duration::from_secs(2),
                "{wait}: {:?}",
                started.elapsed()
            );
            assert_eq!(error.code(), "peer.lost", "{error}");
            drop(zero);
        });
    }
}

#[test]
fn a_close_is_noticed_within_a_tenth_of_a_second_and_loses_no_message() {
    let (zero, one) = pair();
    for number in 0..100_u64 {
        zero.send(1, number, &number.to_le_bytes()).unwrap();
    }
    let closing = thread::spawn(move || zero.close());
    let mut buffer = [0; 8];
    for number in 0..100_u64 {
        assert_eq!(one.within(AMPLE).recv(0, number, &mut buffer).unwrap().len, 8);
        assert_eq!(u64::from_le_bytes(buffer), number);
    }
    closing.join().unwrap();
    let started = Instant::now();
    assert!(one.within(AMPLE).recv(0, 0, &mut buffer).is_err());
    assert!(
        started.elapsed() < Duration::from_millis(500),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn ranks_with_different_settings_fail_with_the_same_sentence() {
    let (zero, one) = errors(builder, || builder().set("pml.unexpected", "1 MiB"));
    assert_eq!(zero.to_string(), one.to_string());
    assert!(zero.to_string().contains("pml.unexpected"), "{zero}");
    assert_eq!((zero.exit(), one.exit()), (Exit::Usage, Exit::Usage));
}

#[test]
fn an_error_of_one_side_reaches_the_other_with_its_exit_status() {
    let (zero, one) = errors(builder, || builder().set("rails.list", "verbs:mlx5_9:1"));
    assert!(matches!(one, Error::Rail(_)), "{one}");
    let text = zero.to_string();
    assert!(
        text.contains(&one.to_string()) && text.contains("127.0.0.1"),
        "{text}"
    );
    assert_eq!(
        (zero.code(), zero.exit(), one.exit()),
        ("job.refused", Exit::Rail, Exit::Rail)
    );
    let (zero, one) = errors(|| builder().set("job.rank", "0").set("job.size", "2"), builder);
    assert_eq!((zero.code(), one.code()), ("job.description", "job.refused"));
}

#[test]
fn an_occupied_side_reports_it() {
    let (call, answer) = ends();
    let answering = thread::spawn(move || doorbell::occupied(answer, "10.0.0.9:40000 is served"));
    let error = builder().build_over(call).unwrap_err();
    assert!(
        matches!(&error, Error::Occupied { reason, .. } if reason.contains("10.0.0.9")),
        "{error}"
    );
    assert_eq!(error.exit(), Exit::TimedOut);
    answering.join().unwrap();
}

/// Returns the error of a meeting with a side that sends these messages.
fn against(messages: &[&[u8]]) -> Error {
    let (mut call, answer) = ends();
    let started = Instant::now();
    let error = thread::scope(|s| {
        let one = s.spawn(move || {
            builder()
                .set("job.timeout", "300 ms")
                .build_over(answer)
                .unwrap_err()
        });
        for message in messages {
            call.send(message, AMPLE).unwrap();
        }
        one.join().unwrap()
    });
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    error
}

#[test]
fn other_versions_invalid_messages_and_silence_end_the_meeting() {
    let version = against(&[br#"{"hello":{"version":"9.9.9","unknown":[1]}}"#]);
    let text = version.to_string();
    assert!(
        text.contains("rank 0 runs 9.9.9") && version.exit() == Exit::Usage,
        "{text}"
    );
    let messages: [&[u8]; 6] = [
        b"",
        b"\xff\xfe",
        b"{}",
        br#""ready""#,
        br#"{"hello":{"version":"0.1.0","key":null,"hello":{}}}"#,
        &[b'['; 100_000],
    ];
    for message in messages {
        let error = against(&[message]);
        assert_eq!(
            (error.code(), error.exit()),
            ("job.meeting", Exit::PeerLost),
            "{error}"
        );
    }
    assert_eq!(against(&[]).exit(), Exit::TimedOut);
    let escape = against(&[br#"{"refusal":{"exit":77,"reason":"\u001b[2Jgone"}}"#]);
    assert!(
        matches!(&escape, Error::Refused { reason, .. } if reason == " [2Jgone"),
        "{escape}"
    );
    assert_eq!(escape.exit(), Exit::PeerLost);
}

#[test]
fn a_message_in_the_middle_of_a_job_ends_it() {
    let (mut call, answer) = ends();
    let one = thread::spawn(move || builder().build_over(answer));
    // Plays rank 0 correctly, until the last message.
    let hello = call.receive(AMPLE).unwrap();
    let text = String::from_utf8(hello).unwrap();
    let text = text.replace("\"rank\":1", "\"rank\":0");
    let key = format!("\"key\":{:?}", [5; 32]).replace(' ', "");
    call.send(text.replace("\"key\":null", &key).as_bytes(), AMPLE)
        .unwrap();
    assert_eq!(call.receive(AMPLE).unwrap(), br#""ready""#);
    call.send(br#""ready""#, AMPLE).unwrap();
    let one = one.join().unwrap().unwrap();
    call.send(b"and another thing", AMPLE).unwrap();
    let error = one.within(AMPLE).recv(0, 1, &mut [0; 8]).unwrap_err();
    assert!(
        matches!(&error, Error::PeerLost { why, .. } if why.contains("rules")),
        "{error}"
    );
}
