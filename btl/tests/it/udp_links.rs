//! The BTL over UDP sockets: two threads over the loopback, and two hosts (network namespaces) with a link
//! that loses packets or drops the long ones. In real time, so nothing is asserted about how long things
//! take.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_btl::{Btl, BtlConfig, Counters, Diagnosis, JobKey, Notice};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::{
    Arrivals, Body, Inbound, Incarnation, Message, MsgId, OpError, OpId, PeerIndex, Refused,
};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_testing::netns::Lab;
use doorbell_udp::{UdpConfig, UdpRail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PATIENCE: Duration = Duration::from_secs(40);

/// Checks what arrives: the number of each message, and every byte of it.
#[derive(Default)]
struct Sink {
    numbers: BTreeSet<u64>,
    twice: u64,
}

/// A message's number decides its length and its bytes.
fn length(number: u64) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Log-uniform from 8 bytes to 128 KiB.
    8 + ((1u64 << ((mixed >> 32) % 18)) - 1) as usize
}

fn byte(number: u64, at: usize) -> u8 {
    (number as usize * 31 + at * 7 + (at >> 8)) as u8
}

fn fill(number: u64, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend((8..length(number)).map(|at| byte(number, at)));
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let number = u64::from_le_bytes(inbound.read(0).expect("a number"));
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        assert_eq!(bytes.len(), length(number));
        assert!(
            (8..bytes.len()).all(|at| bytes[at] == byte(number, at)),
            "message {number} arrived whole"
        );
        self.twice += u64::from(!self.numbers.insert(number));
    }

    fn completed(&mut self, op: OpId, outcome: Result<u64, OpError>) {
        panic!("an operation that was not begun has ended, {op:?}: {outcome:?}");
    }
}

fn btl(udp: &UdpConfig, config: &BtlConfig, name: &str) -> Btl<UdpRail> {
    let rail = UdpRail::open(&name.parse().expect("a name"), udp).expect("the interface is there");
    let life = rail.incarnation();
    let mut btl = Btl::new(rail, config.clone(), life).expect("the settings are right");
    btl.set_key(JobKey::from_bytes([7; 32]));
    btl
}

type Published = (RailAddress, Incarnation);

/// Until something arrives or is due, so that other threads of a busy machine have its cores.
fn sleep(btl: &mut Btl<UdpRail>, clock: &Clock) {
    let now = clock.now();
    let due = btl.next_deadline().map_or(Duration::MAX, |due| due.since(now));
    let wait = Timespec::try_from(due.min(Duration::from_millis(5))).expect("a short time");
    if let Ok(Armed::Sleep(fd)) = btl.arm() {
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).expect("a descriptor to sleep on");
    }
    btl.disarm();
}

/// One end's work: sends `count` messages, receives as many, and goes on until both ends have all.
fn exchange(
    mut btl: Btl<UdpRail>,
    peer: PeerIndex,
    count: u64,
    done: &Barrier,
    end: &Clock,
) -> (Sink, Counters) {
    let (mut sink, mut bytes, mut next, mut idle) = (Sink::default(), Vec::new(), 0, 0);
    let start = Instant::now();
    fill(0, &mut bytes);
    while next < count || (sink.numbers.len() as u64) < count || btl.handed_over(peer) < MsgId(count) {
        for _ in 0..8 {
            match (next < count).then(|| btl.send(peer, &bytes[..8], Body::Bytes(&bytes[8..]))) {
                Some(Ok(_)) => {
                    next += 1;
                    fill(next, &mut bytes);
                }
                Some(Err(Refused::Full)) | None => break,
                Some(Err(refused)) => panic!("message {next} was refused: {refused:?}"),
            }
        }
        btl.flush();
        idle = if btl.progress(end.now()) + btl.poll(64, &mut sink) > 0 {
            0
        } else {
            idle + 1
        };
        if idle > 20 {
            sleep(&mut btl, end);
        }
        while let Some(event) = btl.event() {
            // Loss may make a suspect of it for a while; nothing else happens to it.
            let known = [
                EventKind::PeerUp,
                EventKind::PeerSuspect,
                EventKind::PeerRecovered,
            ];
            assert!(known.contains(&event.kind), "{event:?}");
        }
        assert!(
            start.elapsed() < PATIENCE,
            "never happened: all arrive; {next} sent, {} arrived, {:?}, {:?}",
            sink.numbers.len(),
            btl.counters(),
            btl.driver().stats()
        );
    }
    // The peer may still wait for one of our acknowledgements.
    let linger = Instant::now();
    while linger.elapsed() < Duration::from_millis(100) {
        btl.progress(end.now());
        btl.poll(64, &mut sink);
    }
    done.wait();
    (sink, *btl.counters())
}

/// Both ends, each in a thread, and in a host of the lab if there is one. Returns their counts.
fn both(lab: Option<&Lab>, name: &str, udp: &UdpConfig, count: u64) -> [Counters; 2] {
    let done = Arc::new(Barrier::new(2));
    let clock = Clock::start();
    let (to_second, from_first) = mpsc::channel::<Published>();
    let (to_first, from_second) = mpsc::channel::<Published>();
    let channels = [(to_second, from_second), (to_first, from_first)];
    let ends = thread::scope(|scope| {
        let threads = channels.into_iter().enumerate().map(|(side, (tell, hear))| {
            let done = Arc::clone(&done);
            scope.spawn(move || {
                assert!(lab.is_none_or(|lab| lab.enter(side)));
                let mut btl = btl(udp, &BtlConfig::default(), name);
                tell.send((btl.address(), btl.incarnation()))
                    .expect("the other end lives");
                let (address, life) = hear.recv().expect("the other end lives");
                let peer = btl.open(&address, life).expect("it is reached");
                exchange(btl, peer, count, &done, &clock)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("an end"))
            .collect::<Vec<_>>()
    });
    let counters = ends.into_iter().map(|(sink, counters)| {
        assert!(sink.numbers.iter().copied().eq(0..count), "every message");
        assert_eq!(sink.twice, 0, "none twice");
        counters
    });
    counters.collect::<Vec<_>>().try_into().expect("two ends")
}

#[test]
fn two_threads_over_the_loopback() {
    for connected in [64, 0] {
        let udp = UdpConfig {
            connected,
            ..UdpConfig::default()
        };
        let counters = both(None, "udp:lo", &udp, 3000);
        assert!(
            counters
                .iter()
                .all(|one| one.dropped_corrupt + one.dropped_unknown + one.dropped_malformed == 0)
        );
    }
}

#[test]
fn two_hosts_with_one_and_five_percent_of_loss() {
    let Some(lab) = Lab::pair("two_hosts_with_one_and_five_percent_of_loss", 1500) else {
        return;
    };
    // A loss of a run in one piece takes all of its frames: more is to be sent again, so fewer messages are
    // enough.
    for (permille, gso, messages) in [(10, false, 400), (50, false, 400), (50, true, 200)] {
        lab.lose(permille);
        // With runs in one piece a loss is a whole run.
        let udp = UdpConfig {
            gso,
            gro: gso,
            ..UdpConfig::default()
        };
        let start = Instant::now();
        let counters = both(Some(&lab), "udp:v0", &udp, messages);
        let time = start.elapsed();
        let dropped = lab.dropped(0) + lab.dropped(1);
        let resends: u64 = counters.iter().map(|one| one.resends).sum();
        let vain: u64 = counters.iter().map(|one| one.resends_vain).sum();
        println!(
            "{permille} permille, gso {gso}: {dropped} buffers dropped, {resends} resends, {vain} of them in vain, {time:?}"
        );
        assert!(dropped > 0 && resends > 0);
    }
}

/// Both ends in this thread, each with its sockets in a host of its own.
struct Pair<'a> {
    lab: &'a Lab,
    ends: [Btl<UdpRail>; 2],
    to: PeerIndex,
    sinks: [Sink; 2],
    clock: Clock,
}

impl<'a> Pair<'a> {
    fn new(lab: &'a Lab) -> Self {
        let config = BtlConfig {
            connectivity_ack_timeout: Duration::from_millis(20),
            connectivity_error_num_retries: 20,
            give_up: Duration::from_secs(10),
            ..BtlConfig::default()
        };
        let mut ends = [0, 1].map(|side| lab.inside(side, || btl(&UdpConfig::default(), &config, "udp:v0")));
        let published = [0, 1].map(|side: usize| (ends[side].address(), ends[side].incarnation()));
        let mut peers = Vec::new();
        for (side, end) in ends.iter_mut().enumerate() {
            let (address, life) = &published[1 - side];
            peers.push(
                lab.inside(side, || end.open(address, *life))
                    .expect("it is reached"),
            );
        }
        Self {
            lab,
            ends,
            to: peers[0],
            sinks: Default::default(),
            clock: Clock::start(),
        }
    }

    fn send(&mut self, number: u64) {
        let mut bytes = Vec::new();
        fill(number, &mut bytes);
        self.ends[0]
            .send(self.to, &bytes[..8], Body::Bytes(&bytes[8..]))
            .expect("room");
        self.ends[0].flush();
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            for (end, sink) in self.ends.iter_mut().zip(&mut self.sinks) {
                end.progress(self.clock.now());
                end.poll(64, sink);
            }
            assert!(
                start.elapsed() < PATIENCE,
                "never happened: {what}; {:?}",
                self.ends[0].counters()
            );
        }
    }

    /// The peer is down, and why is named.
    fn is_named_only_small(&mut self) {
        self.until("the peer is down", |pair| {
            let event = pair.ends[0].event();
            event.is_some_and(|event| event.kind == EventKind::PeerDown(DownReason::Silent))
        });
        assert_eq!(self.ends[0].diagnosis(self.to), Some(Diagnosis::OnlySmall));
        let mut notices = std::iter::from_fn(|| self.ends[0].notice());
        assert!(notices.any(|(_, notice)| notice == Notice::Checked(Diagnosis::OnlySmall)));
        assert!(self.lab.dropped(1) > 0);
    }
}

/// Numbers of messages with more than a frame of 1,472 bytes, and with much less.
fn long_and_short() -> (u64, u64) {
    let find = |wanted: fn(usize) -> bool| {
        (100..)
            .find(|&number| wanted(length(number)))
            .expect("one of them")
    };
    (find(|length| length > 4000), find(|length| length < 100))
}

#[test]
fn a_path_that_drops_long_packets_is_named_before_it_is_used() {
    let Some(lab) = Lab::pair("a_path_that_drops_long_packets_is_named_before", 1500) else {
        return;
    };
    lab.drop_longer(1, 1000);
    let mut pair = Pair::new(&lab);
    let (_, short) = long_and_short();
    pair.send(short);
    pair.is_named_only_small();
    assert!(
        pair.sinks[1].numbers.is_empty(),
        "nothing went over a path that is not whole"
    );
}

#[test]
fn a_path_that_begins_to_drop_long_packets_is_named_during_the_run() {
    let Some(lab) = Lab::pair("a_path_that_begins_to_drop_long_packets_is_named", 1500) else {
        return;
    };
    let mut pair = Pair::new(&lab);
    (0..20).for_each(|number| pair.send(number));
    pair.until("all arrive", |pair| pair.sinks[1].numbers.len() == 20);
    assert_eq!(pair.ends[0].diagnosis(pair.to), Some(Diagnosis::Works));
    lab.drop_longer(1, 1000);
    let (long, short) = long_and_short();
    pair.send(long);
    pair.send(short);
    pair.until("the short one arrives", |pair| {
        pair.sinks[1].numbers.contains(&short)
    });
    pair.is_named_only_small();
    assert!(!pair.sinks[1].numbers.contains(&long));
}
