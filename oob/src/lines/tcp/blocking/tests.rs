use std::net::TcpStream;
use std::thread;

use super::*;
use crate::key::JobKey;

fn terms(key: u8) -> Terms {
    Terms {
        handshake: Duration::from_millis(400),
        ..Terms::new(Some(JobKey::from_bytes([key; 32])), 7, u64::from(key))
    }
}

fn at(address: &str, terms: Terms) -> Listener {
    Listener::bind(address.parse().unwrap(), terms).unwrap()
}

const AMPLE: Duration = Duration::from_secs(20);

/// Accepts until a caller has the key; returns the errors of those that were turned away before it.
fn guest(listener: &mut Listener) -> (Connection, Vec<OobError>) {
    let mut away = Vec::new();
    loop {
        match listener.accept(None, Some(AMPLE)).unwrap() {
            Accepted::Connection(connection) => return (*connection, away),
            Accepted::TurnedAway(_, error) => away.push(error),
            other => panic!("{other:?}"),
        }
    }
}

fn pair(address: &str) -> (Connection, Connection) {
    let mut listener = at(address, terms(1));
    let to = listener.address().into();
    thread::scope(|s| {
        let caller = s.spawn(move || Connection::connect(&to, &terms(1), AMPLE).unwrap());
        let (answerer, away) = guest(&mut listener);
        assert!(away.is_empty());
        (caller.join().unwrap(), answerer)
    })
}

#[test]
fn messages_cross_and_a_close_is_received_over_both_families() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut caller, mut answerer) = pair(address);
        assert_eq!(caller.binding(), answerer.binding());
        assert_eq!(caller.local_address(), answerer.address());
        let long = vec![5; 1 << 20];
        thread::scope(|s| {
            s.spawn(|| caller.send(&long, AMPLE).unwrap());
            assert!(answerer.receive(AMPLE).unwrap() == long);
        });
        answerer.send(b"back", AMPLE).unwrap();
        assert_eq!(caller.receive(AMPLE).unwrap(), b"back");
        caller.close(AMPLE).unwrap();
        assert_eq!(
            answerer.receive_or_wake(None, Some(AMPLE)).unwrap(),
            Incoming::Closed
        );
    }
}

#[test]
fn waits_end_by_time_by_another_descriptor_and_by_the_end_of_the_other() {
    let (caller, mut answerer) = pair("127.0.0.1:0");
    let limit = Some(Duration::from_millis(20));
    assert_eq!(answerer.receive_or_wake(None, limit).unwrap(), Incoming::Late);
    assert!(matches!(
        answerer.receive(Duration::ZERO),
        Err(OobError::Late { .. })
    ));
    let (wake, mut waker) = std::os::unix::net::UnixStream::pair().unwrap();
    waker.write_all(b"!").unwrap();
    assert_eq!(
        answerer.receive_or_wake(Some(wake.as_fd()), Some(AMPLE)).unwrap(),
        Incoming::Woken
    );
    // Dropped without a leave, as by a process that was killed.
    drop(caller);
    assert!(matches!(
        answerer.receive_or_wake(None, Some(AMPLE)),
        Err(OobError::Truncated)
    ));
}

#[test]
fn a_close_is_reported_on_every_call_and_both_sides_may_close() {
    let (caller, mut answerer) = pair("127.0.0.1:0");
    caller.close(AMPLE).unwrap();
    for _ in 0..3 {
        assert_eq!(
            answerer.receive_or_wake(None, Some(AMPLE)).unwrap(),
            Incoming::Closed
        );
    }
    let started = Instant::now();
    let _ = answerer.close(AMPLE);
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[test]
fn a_flood_of_bytes_that_make_no_message_does_not_keep_a_wait_alive() {
    let (mut caller, mut answerer) = pair("127.0.0.1:0");
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|s| {
        // One long message, byte by byte.
        s.spawn(|| {
            caller.session.send(&[0; 50_000]).unwrap();
            let bytes = caller.session.take_outgoing();
            for byte in bytes.chunks(1) {
                if stop.load(std::sync::atomic::Ordering::Relaxed) || caller.socket.write_all(byte).is_err() {
                    return;
                }
                thread::yield_now();
            }
        });
        let started = Instant::now();
        let heard = answerer
            .receive_or_wake(None, Some(Duration::from_millis(30)))
            .unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
        assert!(matches!(heard, Incoming::Late | Incoming::Message(_)));
    });
}

#[test]
fn a_connection_is_ended_from_another_thread() {
    let (mut caller, mut answerer) = pair("127.0.0.1:0");
    let canceller = caller.canceller().unwrap();
    thread::scope(|s| {
        let waiting = s.spawn(|| caller.receive_or_wake(None, Some(AMPLE)));
        thread::sleep(Duration::from_millis(20));
        canceller.cancel();
        assert!(matches!(waiting.join().unwrap(), Err(OobError::Truncated)));
    });
    assert!(matches!(
        answerer.receive_or_wake(None, Some(AMPLE)),
        Err(OobError::Truncated)
    ));
}

#[test]
fn a_side_that_does_not_read_is_not_waited_for_forever() {
    let (mut caller, _answerer) = pair("127.0.0.1:0");
    let message = vec![0; 1 << 20];
    let limit = Duration::from_millis(50);
    let refused = (0..100).find_map(|_| caller.send(&message, limit).err()).unwrap();
    assert!(
        matches!(
            refused,
            OobError::Late {
                step: "take our message",
                ..
            }
        ),
        "{refused}"
    );
}

/// Returns what failed in a handshake, after a check that the error names `address`.
fn from(address: SocketAddr, error: OobError) -> OobError {
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    match error {
        OobError::With { error, .. } => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_key_is_named_on_both_sides_and_the_next_one_is_served() {
    let mut listener = at("127.0.0.1:0", terms(1));
    let to: Endpoint = listener.address().into();
    thread::scope(|s| {
        let wrong = s.spawn(|| Connection::connect(&to, &terms(2), AMPLE).map(drop).unwrap_err());
        let Accepted::TurnedAway(_, away) = listener.accept(None, Some(AMPLE)).unwrap() else {
            panic!()
        };
        assert!(matches!(away, OobError::WrongKey), "{away}");
        let wrong = from(listener.address(), wrong.join().unwrap());
        assert!(matches!(wrong, OobError::WrongKey), "{wrong}");
        let without = Terms {
            key: None,
            ..terms(1)
        };
        let without = s.spawn(|| {
            Connection::connect(&to, &{ without }, AMPLE)
                .map(drop)
                .unwrap_err()
        });
        let Accepted::TurnedAway(_, OobError::KeyMissing { here: true }) =
            listener.accept(None, Some(AMPLE)).unwrap()
        else {
            panic!()
        };
        assert!(matches!(
            from(listener.address(), without.join().unwrap()),
            OobError::KeyMissing { here: false }
        ));
        let right = s.spawn(|| Connection::connect(&to, &terms(1), AMPLE).map(drop).unwrap());
        guest(&mut listener);
        right.join().unwrap();
    });
}

#[test]
fn beyond_loopback_a_key_is_needed() {
    let without = Terms {
        key: None,
        ..terms(1)
    };
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7117"] {
        let address: SocketAddr = address.parse().unwrap();
        let bound = Listener::bind(address, without.clone()).unwrap_err();
        let called = Connection::connect(&address.into(), &without, AMPLE)
            .map(drop)
            .unwrap_err();
        for error in [bound, called] {
            assert!(matches!(error, OobError::KeyNeeded { .. }), "{error}");
            assert!(error.to_string().contains("doorbell key FILE"), "{error}");
        }
    }
    let mut listener = at("127.0.0.1:0", without.clone());
    let to: Endpoint = listener.address().into();
    thread::scope(|s| {
        let caller = s.spawn(|| Connection::connect(&to, &without, AMPLE).map(drop));
        guest(&mut listener);
        caller.join().unwrap().unwrap();
    });
}

#[test]
fn exactly_the_address_is_served() {
    let listener = at("[::]:0", terms(1));
    let port = listener.address().port();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(TcpStream::connect(("::1", port)).is_ok());
    let listener = at("127.0.0.2:0", terms(1));
    assert!(TcpStream::connect(("127.0.0.1", listener.address().port())).is_err());
}

#[test]
fn what_the_system_refuses_is_reported_with_the_cause() {
    let taken = at("127.0.0.1:0", terms(1));
    let again = Listener::bind(taken.address(), terms(1)).unwrap_err().to_string();
    assert!(
        again.contains(&taken.address().to_string()) && again.contains("ss -ltnp"),
        "{again}"
    );
    let address = taken.address();
    drop(taken);
    let refused = Connection::connect(&address.into(), &terms(1), AMPLE)
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("nothing listens there"), "{refused}");
    let foreign = Listener::bind("192.0.2.1:0".parse().unwrap(), terms(1)).unwrap_err();
    assert!(foreign.to_string().contains("ip addr"), "{foreign}");
    // It accepts, by its backlog, and never sends anything.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap();
    let to = address.into();
    let late = Connection::connect(&to, &terms(1), AMPLE).map(drop).unwrap_err();
    let late = from(address, late);
    assert!(matches!(late, OobError::HandshakeLate { .. }), "{late}");
    let web = thread::spawn(move || {
        // The first in the queue is the caller from before.
        drop(mute.accept().unwrap());
        mute.accept()
            .unwrap()
            .0
            .write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    });
    let strange = Connection::connect(&to, &terms(1), AMPLE).map(drop).unwrap_err();
    let strange = from(address, strange);
    assert!(
        matches!(strange, OobError::Stranger { .. } | OobError::Unanswered),
        "{strange}"
    );
    web.join().unwrap().unwrap();
}

#[test]
fn strangers_slow_ones_and_crowds_keep_no_member_out() {
    let mut listener = at("127.0.0.1:0", terms(1));
    let to = listener.address();
    // More than have room, each a few bytes into a call; and some that talk about something else.
    let mut crowd: Vec<TcpStream> = (0..HALF_OPEN_MAX + 20)
        .map(|_| TcpStream::connect(to).unwrap())
        .collect();
    for (at, stranger) in crowd.iter_mut().enumerate() {
        stranger
            .write_all(if at % 4 == 0 {
                b"GET / HTTP/1.1"
            } else {
                b"bell-oo"
            })
            .unwrap();
    }
    let started = Instant::now();
    thread::scope(|s| {
        let caller = s.spawn(|| Connection::connect(&to.into(), &terms(1), AMPLE));
        let (_guest, away) = guest(&mut listener);
        caller.join().unwrap().unwrap();
        assert!(
            away.iter()
                .any(|error| matches!(error, OobError::Stranger { .. }))
        );
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
    });
    assert!(listener.half_open() <= HALF_OPEN_MAX);
    // No caller stays for longer than a handshake may take.
    while listener.half_open() > 0 {
        assert!(!matches!(
            listener.accept(None, Some(AMPLE)).unwrap(),
            Accepted::Late
        ));
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}
