//! Three processes with two transports side by side: they communicate over shared memory, one of them is
//! killed, and another one takes its place.
//!
//! reference: oob, section 10.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // a test has processes and clocks

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Transport};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::{Event, Status};
use doorbell_oob::lines::rail::{self, Open, endpoint};
use doorbell_oob::lines::tcp;
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::plane::{Carried, Inbox, Message, Oob};
use doorbell_oob::{JobKey, runner};
use doorbell_shm::{ShmConfig, ShmRail};

const JOB: u64 = 78;
const TAG: u32 = 200;
const RANKS: u32 = 3;
const LIMIT: Duration = Duration::from_secs(120);
/// The variable that sets the rank and the life of a process of this test.
const WHO: &str = "DOORBELL_TEST_WHO";
/// The prefix of a contact in the output of such a process.
const HERE: &str = "contact ";
const TEST: &str = "processes_talk_over_shared_memory_and_one_that_is_killed_is_replaced";

fn start(rank: u32, epoch: u64) -> Oob {
    let transports = vec![Transport::direct("rail"), Transport::direct("tcp")];
    let mut config = Config::new(Name::new(JOB, rank), Epoch(epoch), RANKS, transports);
    (config.rounds, config.grace) = (2, Duration::from_millis(300));
    (config.retry, config.retry_max) = (Duration::from_millis(20), Duration::from_millis(200));
    let shm: Open = Box::new(|| {
        let rail = ShmRail::open(&"shm".parse()?, &ShmConfig::default())?;
        let life = rail.incarnation();
        Ok(endpoint(rail, life))
    });
    let carried = Carried::new()
        .rail(rail::Settings::default(), vec![shm])
        .tcp(tcp::Settings::default());
    let key = Some(JobKey::from_bytes([5; 32]));
    Oob::start(config, carried, key, runner::Settings::default()).unwrap()
}

fn contact(oob: &Oob) -> Contact {
    oob.contact().unwrap().wait(LIMIT).flatten().unwrap()
}

fn hex(contact: &Contact) -> String {
    let mut bytes = Vec::new();
    contact.encode(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(text: &str) -> Contact {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    Contact::decode(&mut &bytes[..]).unwrap()
}

/// Sends back what comes, until a message ends it.
fn echo(rank: u32, epoch: u64) {
    let oob = start(rank, epoch);
    let inbox = oob.inbox(From::ANYBODY, TAG, 1 << 20).unwrap();
    println!("\n{HERE}{}", hex(&contact(&oob)));
    for line in std::io::stdin().lines().take(RANKS as usize - 1) {
        oob.learn(vec![read(&line.unwrap())]).unwrap();
    }
    loop {
        let message = inbox
            .wait(LIMIT)
            .expect("the starter of this process sends its end");
        if &*message.body == b"end" {
            return oob.finish(LIMIT);
        }
        drop(oob.send(message.from, TAG, message.body, Some(LIMIT)).unwrap());
    }
}

/// Another process. It is killed when it is dropped.
struct Process {
    child: Child,
    says: ChildStdin,
    contact: Contact,
    _output: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: u32, epoch: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", TEST])
            .env(WHO, format!("{rank} {epoch}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let contact = loop {
            let mut line = String::new();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "it ended before it began"
            );
            if let Some(contact) = line.trim().strip_prefix(HERE) {
                break read(contact);
            }
        };
        Self {
            child,
            says,
            contact,
            _output: output,
        }
    }

    fn hears_of(&mut self, contacts: [&Contact; RANKS as usize - 1]) {
        for contact in contacts {
            writeln!(self.says, "{}", hex(contact)).unwrap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(events: &Inbox<Event>, what: &str, is: impl Fn(&Event) -> bool) {
    let begun = Instant::now();
    while !is(&events
        .wait(LIMIT.saturating_sub(begun.elapsed()))
        .unwrap_or_else(|| panic!("no such event: {what}")))
    {}
}

/// Makes `count` round trips, in order and each once.
fn talk(oob: &Oob, to: Name, inbox: &Inbox<Message>, count: u32) {
    let sends: Vec<_> = (0..count)
        .map(|nth| {
            oob.send(to, TAG, nth.to_be_bytes().as_slice().into(), Some(LIMIT))
                .unwrap()
        })
        .collect();
    for nth in 0..count {
        let message = inbox
            .wait(LIMIT)
            .unwrap_or_else(|| panic!("message {nth} of {to}"));
        assert_eq!(
            (message.from, message.body),
            (to, Bytes::from(nth.to_be_bytes().as_slice()))
        );
    }
    assert!(
        sends
            .iter()
            .all(|sent| sent.wait(LIMIT) == Some(Ok(Status::Delivered)))
    );
}

#[test]
fn processes_talk_over_shared_memory_and_one_that_is_killed_is_replaced() {
    if let Ok(text) = std::env::var(WHO) {
        let (rank, epoch) = text.split_once(' ').unwrap();
        return echo(rank.parse().unwrap(), epoch.parse().unwrap());
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let oob = start(0, 1);
    let events = oob.events();
    let mut one = Process::start(1, 1);
    let mut two = Process::start(2, 1);
    let own = contact(&oob);
    one.hears_of([&own, &two.contact]);
    two.hears_of([&own, &one.contact]);
    oob.learn(vec![one.contact.clone(), two.contact.clone()]).unwrap();
    let names = [one.contact.name, two.contact.name];
    let inboxes = names.map(|name| oob.inbox(From::only(name), TAG, 1 << 20).unwrap());
    for (name, inbox) in names.iter().zip(&inboxes) {
        talk(&oob, *name, inbox, 500);
    }
    let begun = Instant::now();
    let carried = || {
        let all = oob.carriages();
        (all[0].frames_sent, all[0].frames_received, all[1].frames_sent)
    };
    while carried().1 < 1_000 {
        assert!(begun.elapsed() < LIMIT, "{:?}", oob.carriages());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(carried().0 >= 1_000 && carried().2 == 0, "{:?}", oob.carriages());

    // Killed in the middle of a thousand messages: it is lost, once, and each of these ends.
    let sends: Vec<_> = (0..1_000_u32)
        .map(|nth| {
            oob.send(names[1], TAG, nth.to_be_bytes().as_slice().into(), Some(LIMIT))
                .unwrap()
        })
        .collect();
    assert!(inboxes[1].wait(LIMIT).is_some());
    drop(two);
    until(
        &events,
        "a loss",
        |event| matches!(event, Event::PeerLost { peer, .. } if *peer == names[1]),
    );
    for sent in sends {
        let ended = sent.wait(LIMIT).expect("each ends");
        assert!(
            matches!(ended, Ok(Status::Delivered | Status::PeerLost) | Err(_)),
            "{ended:?}"
        );
    }
    talk(&oob, names[0], &inboxes[0], 200);
    while inboxes[1].take().is_some() {}

    let mut two = Process::start(2, 2);
    two.hears_of([&own, &one.contact]);
    oob.learn(vec![two.contact.clone()]).unwrap();
    let mut lost = 0;
    let begun = Instant::now();
    loop {
        let event = events
            .wait(LIMIT.saturating_sub(begun.elapsed()))
            .expect("a new life");
        lost += u32::from(matches!(event, Event::PeerLost { .. }));
        if matches!(event, Event::PeerRestarted { peer, epoch } if peer == names[1] && epoch == Epoch(2)) {
            break;
        }
    }
    assert_eq!(lost, 0, "told once");
    talk(&oob, names[1], &inboxes[1], 500);
    assert_eq!(carried().2, 0, "all by the rail: {:?}", oob.carriages());
    for (process, name) in [(&mut one, names[0]), (&mut two, names[1])] {
        let sent = oob.send(name, TAG, b"end".into(), Some(LIMIT)).unwrap();
        // It may be gone before its acknowledgement is sent.
        let ended = sent.wait(LIMIT);
        assert!(
            matches!(ended, Some(Ok(Status::Delivered | Status::PeerLost))),
            "{ended:?}"
        );
        assert!(process.child.wait().unwrap().success());
    }
    oob.finish(LIMIT);
    drop((one, two));
    assert_eq!(descriptors(), before, "nothing is left open");
}
