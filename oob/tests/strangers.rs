//! Unauthenticated connections of every kind, while two processes of a job go on exchanging messages. One
//! test, alone in its process, because it counts the descriptors and memory of the process.

#![allow(unreachable_pub)] // modules of several test binaries
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // a test has sockets and clocks

#[path = "it/side.rs"]
mod side;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;
use doorbell_oob::lines::tcp::{Chosen, Families, Settings};
use doorbell_oob::lines::{Counters, Limits};
use doorbell_oob::name::Name;
use doorbell_oob::{JobKey, Role, Session, Terms};

use side::{JOB, Side, drive, key, pair, runtime};

const PURPOSE: u16 = 2;
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(to: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect_timeout(&to, PATIENCE).expect("the door is there");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What comes until the end, however that comes.
fn rest(mut socket: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = socket.read_to_end(&mut all);
    all
}

fn caller(key: Option<JobKey>, longest: usize) -> Session {
    let terms = Terms {
        name: Name::new(JOB, 9),
        longest,
        ..Terms::new(key, PURPOSE, 5)
    };
    Session::new(Role::Caller, &terms, Time::ZERO).unwrap()
}

/// Shakes hands for real.
fn member(to: SocketAddr, longest: usize) -> (TcpStream, Session) {
    let (mut socket, mut session) = (connect(to), caller(key(7), longest));
    let mut buffer = [0; 4096];
    while !session.is_open() {
        socket.write_all(&session.take_outgoing()).unwrap();
        let count = socket.read(&mut buffer).unwrap();
        assert!(count > 0, "turned away, with the key");
        session.receive(&buffer[..count]).unwrap();
    }
    socket.write_all(&session.take_outgoing()).unwrap();
    (socket, session)
}

fn wrong_key(to: SocketAddr) {
    let (mut socket, mut session) = (connect(to), caller(key(8), 1000));
    socket.write_all(&session.take_outgoing()).unwrap();
    let said = session.receive(&rest(socket)).unwrap_err().to_string();
    assert!(said.contains("a different key"), "{said}");
}

fn garbage(to: SocketAddr) {
    let mut socket = connect(to);
    let _ = socket.write_all(b"GET / HTTP/1.1\r\nHost: doorbell\r\n\r\n");
    assert!(rest(socket).is_empty(), "strangers get no answer");
}

/// A head that announces a long message.
fn oversized(to: SocketAddr) {
    let mut head = caller(key(7), 1000).take_outgoing();
    head[14..16].copy_from_slice(&0xffff_u16.to_le_bytes());
    let mut socket = connect(to);
    let _ = socket.write_all(&head);
    let _ = rest(socket);
}

/// Half a head, and then nothing.
fn silent(to: SocketAddr) -> TcpStream {
    let mut socket = connect(to);
    let _ = socket.write_all(b"bell-oob\x02\x00");
    socket
}

/// A good handshake, at a byte in 100 ms.
fn slow(to: SocketAddr) {
    let (mut socket, mut session) = (connect(to), caller(key(7), 1000));
    for byte in session.take_outgoing() {
        if socket.write_all(&[byte]).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it did not end in time");
}

/// Replays the first message and the confirmation of another caller.
fn replayed(to: SocketAddr) {
    let mut session = caller(key(7), 1000);
    let call = session.take_outgoing();
    let mut first = connect(to);
    first.write_all(&call).unwrap();
    let mut answer = [0; 4096];
    let count = first.read(&mut answer).unwrap();
    session.receive(&answer[..count]).unwrap();
    let confirm = session.take_outgoing();
    drop(first);
    let mut again = connect(to);
    again.write_all(&[call, confirm].concat()).unwrap();
    let _ = rest(again);
}

/// One that has the key, and sends a message that is too long: four times what is taken.
fn endless(to: SocketAddr) {
    let (mut socket, mut session) = member(to, usize::MAX >> 1);
    session.send(&vec![7; 8 << 20]).unwrap();
    assert!(
        socket.write_all(&session.take_outgoing()).is_err() || rest(socket).is_empty(),
        "it was taken"
    );
}

/// One that has the key and proves it, but does not identify itself.
fn nameless(to: SocketAddr) {
    let (socket, _session) = member(to, 1000);
    let _ = rest(socket);
}

fn attack(to: SocketAddr, connects: usize) {
    (0..50).for_each(|_| wrong_key(to));
    (0..50).for_each(|_| garbage(to));
    (0..50).for_each(|_| oversized(to));
    (0..20).for_each(|_| replayed(to));
    endless(to);
    nameless(to);
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| slow(to))));
    });
    let silent: Vec<TcpStream> = (0..100).map(|_| silent(to)).collect();
    silent.into_iter().for_each(|socket| drop(rest(socket)));
    for _ in 0..connects {
        drop(connect(to));
    }
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Round trips of small messages, until `done` returns true; returns the slowest of 100 and the median.
async fn echoes(one: &mut Side, two: &mut Side, mut done: impl FnMut(usize) -> bool) -> [Duration; 2] {
    let link = one.link().unwrap();
    let mut took = Vec::new();
    while !done(took.len()) {
        let begun = Instant::now();
        one.send(link, vec![0; 64].into());
        drive(&mut [one, two], "an echo", |sides| !sides[0].bodies.is_empty()).await;
        one.bodies.clear();
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    [took[took.len() * 99 / 100], took[took.len() / 2]]
}

/// The variable that sets the address a process of this test attacks, and the number of its connects.
const ATTACK: &str = "DOORBELL_TEST_ATTACK";

/// The attack, in a process of its own: what it takes is not counted.
fn attacker(to: SocketAddr, connects: usize) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "strangers_are_refused_and_counted_and_cost_nothing_that_lasts",
        ])
        .env(ATTACK, format!("{to} {connects}"))
        .stdout(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn strangers_are_refused_and_counted_and_cost_nothing_that_lasts() {
    if let Ok(text) = std::env::var(ATTACK) {
        let (to, connects) = text.split_once(' ').unwrap();
        return attack(to.parse().unwrap(), connects.parse().unwrap());
    }
    let runtime = runtime();
    let settings = Settings {
        nics: Chosen::new(Vec::new(), Vec::new(), Families::V4).unwrap(),
        limits: Limits {
            handshake: Duration::from_secs(2),
            longest: 2 << 20,
            meeting: doorbell_oob::connect::Limits {
                hello: Duration::from_secs(2),
                ..Default::default()
            },
            ..Limits::default()
        },
        ..Settings::default()
    };
    runtime.block_on(async {
        let (mut one, mut two) = pair(settings).await;
        two.echo = true;
        let text = two.addresses()[0].to_string();
        let to: SocketAddr = text.replace("/8", "").parse().unwrap();
        // Everything has been there once before it is measured.
        let mut warm = attacker(to, 500);
        echoes(&mut one, &mut two, |_| warm.try_wait().unwrap().is_some()).await;
        let quiet = echoes(&mut one, &mut two, |count| count >= 2000).await;
        let before = (resident(), descriptors(), two.tcp.counters());

        let mut attacker = attacker(to, 10_000);
        let mut ended = None;
        let (mut highest, mut most) = (0, 0);
        let busy = echoes(&mut one, &mut two, |_| {
            highest = highest.max(resident());
            most = most.max(descriptors());
            ended = attacker.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        assert!(ended.is_some_and(|ended| ended.success()), "an attack went wrong");
        let settled = |sides: &mut [&mut Side]| sides[1].tcp.guests() == 0 && descriptors() <= before.1;
        drive(&mut [&mut one, &mut two], "all of them gone", settled).await;

        let counters = two.tcp.counters();
        eprintln!(
            "echo of 64 bytes, 99th percentile and median: quiet {quiet:?}, under attack {busy:?}; resident before, \
             highest, after: {}, {}, {} KiB; descriptors {} to {most}; {counters:?}",
            before.0 >> 10,
            highest >> 10,
            resident() >> 10,
            before.1
        );
        let more = |count: fn(&Counters) -> u64| count(&counters) - count(&before.2);
        assert!(more(|all| all.accepted) >= 10_000);
        assert_eq!(more(|all| all.wrong_key), 50);
        // A length that no session has does not begin one of our frames.
        assert_eq!(more(|all| all.garbage), 100);
        assert_eq!(more(|all| all.unproved), 20);
        assert!(more(|all| all.late + all.evicted) >= 100, "the silent and the slow");
        assert!(more(|all| all.broken + all.evicted) >= 10_000, "who came and went");
        assert_eq!(more(|all| all.meeting.strangers), 2, "callers that have the key and no name");
        assert_eq!(more(|all| all.meeting.links), 0);
        assert!(highest < before.0 + (10 << 20) && resident() < before.0 + (10 << 20));
        assert!(one.link().is_some() && two.link().is_some(), "the link is the one that was there before");
    });
}
