//! A sender that is really killed, at every step of a send: no other peer is held up, and nothing half-done
//! is taken.
//!
//! The sender is a process of its own: this program, started again as a `victim`. It is stopped before its
//! send, goes on instruction by instruction under ptrace, and gets SIGKILL after the nth; another one gets it
//! after the n+1st, and so on for every instruction of a send. The receiver and two other senders live in the
//! test.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::event::{DownReason, EventKind, RailEvent, Scope};
use doorbell_fabric::message::*;
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_shm::{ShmConfig, ShmRail};

use common::{parsed, published};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, gettid};

const ROLE: &str = "DOORBELL_TEST_ROLE";
const RECEIVER: &str = "DOORBELL_TEST_RECEIVER";
/// What a victim prints before its address.
const HERE: &str = "victim at ";

/// How a victim sends its last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One cell; the receiver polls.
    Short,
    /// A cell and a part in the data area; the receiver polls.
    Long,
    /// The same while the receiver sleeps: ready bit and wake-up follow.
    ToSleeper,
    /// The first message of all: the lane is made and passed.
    First,
    /// The message that finds the lane's first page full: the lane grows.
    Growing,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Short, "short"),
    (Way::Long, "long"),
    (Way::ToSleeper, "to-sleeper"),
    (Way::First, "first"),
    (Way::Growing, "growing"),
];

impl Way {
    fn body(self) -> &'static [u8] {
        if self == Way::Short {
            b"8 bytes."
        } else {
            &[0xb0; 150]
        }
    }

    /// Whether its steps are entries of and returns from system calls, and not instructions.
    fn by_system_calls(self) -> bool {
        matches!(self, Way::First | Way::Growing)
    }

    /// The whole message, as it arrives.
    fn message(self) -> Vec<u8> {
        [&HEAD[..], self.body()].concat()
    }
}

const HEAD: &[u8; 16] = b"the last message";
/// After this long in one test, no more victims are started.
const BOUND: Duration = Duration::from_secs(12);
const GREETING: &[u8] = b"good morning";
/// What fills the lane's first page, together with the greeting, and how often.
const FILLER: &[u8] = b"one of many";
const FILLERS: u64 = 124;

fn rail() -> ShmRail {
    ShmRail::open(&"shm".parse().unwrap(), &ShmConfig::default()).unwrap()
}

fn since(start: Instant) -> Time {
    Time::ZERO + start.elapsed()
}

/// What a started process does; without a role, this is no test.
#[test]
fn victim() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let way = WAYS.into_iter().find(|(_, name)| *name == role).unwrap().0;
    let start = Instant::now();
    let mut rail = rail();
    let (address, life) = parsed(&std::env::var(RECEIVER).unwrap());
    let receiver = Message::open(&mut rail, &address, life).unwrap();
    println!("\n{HERE}{} {}", gettid(), published(&rail));
    std::io::stdout().flush().unwrap();
    if way != Way::First {
        rail.send(receiver, GREETING, Body::Empty).unwrap();
        let fillers = if way == Way::Growing { FILLERS } else { 0 };
        for _ in 0..fillers {
            rail.send(receiver, FILLER, Body::Empty).unwrap();
        }
        while rail.handed_over(receiver) != MsgId(1 + fillers) {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody receives");
            rail.progress(since(start));
            std::thread::yield_now();
        }
    }
    ptrace::traceme().unwrap();
    raise(Signal::SIGSTOP).unwrap();
    let sent = rail.send(receiver, HEAD, Body::Bytes(way.body()));
    // The end of the steps.
    raise(Signal::SIGSTOP).unwrap();
    sent.unwrap();
}

/// A victim under way. Dropped, it leaves no process behind.
struct Victim {
    child: Child,
    /// The thread of the test in it, which is what is traced.
    thread: Pid,
    peer: PeerIndex,
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Victim {
    /// Goes on for `steps` instructions, or entries of and returns from system calls, or to the end of its
    /// send; how many they were when it has come to the end.
    fn goes_on(&self, way: Way, steps: usize) -> Option<usize> {
        for step in 0..steps {
            if way.by_system_calls() {
                ptrace::syscall(self.thread, None).unwrap();
            } else {
                ptrace::step(self.thread, None).unwrap();
            }
            match self.status(WaitPidFlag::empty()) {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
                WaitStatus::Stopped(_, Signal::SIGSTOP) => return Some(step),
                other => panic!("the victim did not stop: {other:?}"),
            }
        }
        None
    }

    fn status(&self, flags: WaitPidFlag) -> WaitStatus {
        waitpid(self.thread, Some(flags | WaitPidFlag::__WALL)).unwrap()
    }

    fn kill(&mut self) -> Option<i32> {
        self.child.kill().ok()?;
        // The tracer has to reap the thread's end before the end of the process is reported.
        let flags = Some(WaitPidFlag::__WALL);
        while let Ok(WaitStatus::Stopped(..) | WaitStatus::PtraceSyscall(_)) = waitpid(self.thread, flags) {}
        self.child.wait().ok()?.signal()
    }

    fn killed(mut self) {
        assert_eq!(self.kill(), Some(9));
    }
}

/// What the receiver got.
#[derive(Default)]
struct Seen(Vec<(PeerIndex, Vec<u8>)>);

impl Arrivals for Seen {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
        self.0.push((peer, bytes));
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// The receiver, two senders that live on, and how many messages they have sent.
struct Scene {
    receiver: ShmRail,
    others: [ShmRail; 2],
    seen: Seen,
    events: Vec<RailEvent>,
    sent: [u64; 2],
    heard: [u64; 2],
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        let mut receiver = rail();
        let mut others = [rail(), rail()];
        for other in &mut others {
            Message::open(&mut receiver, &other.address(), other.incarnation()).unwrap();
            Message::open(other, &receiver.address(), receiver.incarnation()).unwrap();
        }
        let mut scene = Self {
            receiver,
            others,
            seen: Seen::default(),
            events: Vec::new(),
            sent: [0; 2],
            heard: [0; 2],
            start: Instant::now(),
        };
        scene.others_send();
        scene.until("the others' first messages", Scene::others_are_received);
        scene
    }

    fn pump(&mut self) {
        let now = since(self.start);
        for other in &mut self.others {
            other.progress(now);
        }
        self.receiver.progress(now);
        self.receiver.poll(64, &mut self.seen);
        self.events.extend(std::iter::from_fn(|| self.receiver.event()));
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{what} did not happen"
            );
            self.pump();
        }
    }

    /// A short message and a long one of each.
    fn others_send(&mut self) {
        for (sent, other) in self.sent.iter_mut().zip(&mut self.others) {
            for length in [8, 300] {
                let number = sent.to_le_bytes();
                let body = vec![number[0]; length];
                other.send(PeerIndex(0), &number, Body::Bytes(&body)).unwrap();
                *sent += 1;
            }
        }
    }

    /// Whether every message of the others came; each once, in its turn and whole.
    fn others_are_received(&mut self) -> bool {
        let (sent, heard) = (self.sent, &mut self.heard);
        self.seen.0.retain(|(peer, bytes)| {
            let Some(heard) = heard.get_mut(peer.index()) else {
                return true;
            };
            let number = heard.to_le_bytes();
            let length = if heard.is_multiple_of(2) { 8 } else { 300 };
            assert_eq!(bytes[..8], number);
            assert_eq!(bytes[8..], vec![number[0]; length]);
            *heard += 1;
            false
        });
        assert!(self.heard.iter().zip(sent).all(|(heard, sent)| *heard <= sent));
        self.heard == sent
    }

    /// Starts a victim, up to just before its send.
    fn victim(&mut self, way: Way) -> Victim {
        let name = WAYS.into_iter().find(|named| named.0 == way).unwrap().1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
            .env(ROLE, name)
            .env(RECEIVER, published(&self.receiver))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let here = lines.find_map(|line| line.unwrap().strip_prefix(HERE).map(str::to_owned));
        let here = here.unwrap();
        let (thread, here) = here.split_once(' ').unwrap();
        let (address, life) = parsed(here);
        let peer = Message::open(&mut self.receiver, &address, life).unwrap();
        let thread = Pid::from_raw(thread.parse().unwrap());
        let victim = Victim { child, thread, peer };
        self.until("the stop before the send", |_| {
            // Not ours to wait for before it requests to be traced.
            match waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => false,
                Ok(WaitStatus::Stopped(_, Signal::SIGSTOP)) => true,
                other => panic!("the victim did not stop: {other:?}"),
            }
        });
        victim
    }

    /// Sleeps until woken, as the owner of a rail does; what happens meanwhile is `meanwhile`.
    fn sleep(&mut self, meanwhile: impl FnOnce()) {
        loop {
            match self.receiver.arm().unwrap() {
                Armed::Ready => {}
                Armed::Sleep(descriptor) => {
                    meanwhile();
                    let mut wait = [rustix::event::PollFd::from_borrowed_fd(
                        descriptor,
                        rustix::event::PollFlags::IN,
                    )];
                    let bound = rustix::time::Timespec {
                        tv_sec: 10,
                        tv_nsec: 0,
                    };
                    let woken = rustix::event::poll(&mut wait, Some(&bound)).unwrap();
                    assert_eq!(woken, 1, "the sleeper was not woken");
                    return self.receiver.disarm();
                }
            }
            self.receiver.disarm();
            self.pump();
        }
    }

    /// Kills a victim after `steps`. Whether its message came, and the number of steps if its send had ended.
    fn kill_after(&mut self, way: Way, steps: usize) -> (bool, Option<usize>) {
        let victim = self.victim(way);
        let peer = victim.peer;
        let mut over = None;
        if way == Way::ToSleeper {
            self.sleep(|| {
                over = victim.goes_on(way, steps);
                victim.killed();
            });
        } else {
            self.others_send();
            over = victim.goes_on(way, steps);
            self.pump();
            victim.killed();
        }
        self.others_send();
        let mut reported = None;
        let mut quiet = 0;
        self.until("the others' messages and the victim's end", |scene| {
            for event in scene.events.drain(..) {
                match event.kind {
                    EventKind::PeerDown(reason) if event.scope == Scope::Peer(peer) => {
                        reported = Some(reason)
                    }
                    EventKind::PeerUp => {}
                    other => panic!("{other:?} of {:?}", event.scope),
                }
            }
            // Killed before it had shown itself, it never was there, and no event comes.
            quiet += usize::from(scene.others_are_received());
            quiet > 0 && reported.is_some() || way == Way::First && over.is_none() && quiet > 20
        });
        assert!(
            reported == Some(DownReason::Died) || reported.is_none() && way == Way::First,
            "{reported:?} after {steps} steps"
        );
        let mut came: Vec<Vec<u8>> = self.seen.0.drain(..).map(|(_, bytes)| bytes).collect();
        if way != Way::First {
            assert_eq!(came.remove(0), GREETING);
        }
        let all = came.len();
        came.retain(|message| message != FILLER);
        let fillers = if way == Way::Growing { FILLERS } else { 0 };
        assert_eq!((all - came.len()) as u64, fillers);
        match &came[..] {
            [] => (false, over),
            [whole] => {
                assert_eq!(*whole, way.message(), "torn after {steps} steps");
                (true, over)
            }
            more => panic!("{} messages after {steps} steps", more.len()),
        }
    }

    /// Kills one victim after each number of steps, as far as the time allows on a busy machine: first after
    /// every eighth, then in between. The message is there from one step on, and never before it.
    fn kill_everywhere(&mut self, way: Way) {
        let started = Instant::now();
        let (came, last) = self.kill_after(way, usize::MAX);
        let last = last.unwrap();
        let mut outcomes = BTreeMap::from([(last, came)]);
        for offset in [0, 4, 2, 6, 1, 5, 3, 7] {
            for steps in (offset..last).step_by(8) {
                if offset != 0 && started.elapsed() > BOUND {
                    break;
                }
                outcomes.insert(steps, self.kill_after(way, steps).0);
            }
        }
        let before = outcomes
            .iter()
            .filter(|(_, came)| !**came)
            .map(|(steps, _)| *steps)
            .max();
        let after = outcomes
            .iter()
            .filter(|(_, came)| **came)
            .map(|(steps, _)| *steps)
            .min();
        println!(
            "{way:?}: killed at {} of {} steps in {:?}; not there after {before:?}, there after {after:?}",
            outcomes.len(),
            last + 1,
            started.elapsed()
        );
        assert!(
            before.is_some() && before < after,
            "a message that was there is gone"
        );
    }
}

#[test]
fn a_sender_of_a_short_message_is_killed_at_every_instruction() {
    Scene::new().kill_everywhere(Way::Short);
}

#[test]
fn a_sender_of_a_long_message_is_killed_at_every_instruction() {
    Scene::new().kill_everywhere(Way::Long);
}

#[test]
fn a_sender_to_a_sleeper_is_killed_at_every_instruction() {
    Scene::new().kill_everywhere(Way::ToSleeper);
}

#[test]
fn a_sender_is_killed_at_every_system_call_while_its_lane_grows() {
    Scene::new().kill_everywhere(Way::Growing);
}

#[test]
fn a_sender_of_its_first_message_is_killed_at_every_system_call() {
    Scene::new().kill_everywhere(Way::First);
}
