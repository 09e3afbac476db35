//! Two BTLs with an attacker between them that loses, repeats, reorders, changes and adds frames as the
//! script directs. Frames carry MACs, so nothing that was changed passes: what arrives was sent, arrives once
//! and whole, and when the attacker has gone, all of it has.

use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Incarnation, Message, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use crate::script::Script;
use crate::wire::{MTU, Queue, Wire, pair};

/// Most steps of a script.
const STEPS: usize = 300;
/// The number of the door of each end.
const DOOR: u64 = 0x6f6f_6420_6100_6f6f;
/// Most messages of each end.
const MESSAGES: usize = 64;
/// Turns until everything must have arrived: each is as long as what is due next.
const TURNS: usize = 20_000;

/// The bytes of a message: its number, then what follows from it.
fn message(from: usize, number: usize, length: usize) -> Vec<u8> {
    let body = (0..length).map(|at| (at * 31 + number * 7 + from) as u8);
    [number as u8, from as u8].into_iter().chain(body).collect()
}

/// What one end expects of the other: the lengths that were sent, and which messages have come.
struct Sink {
    from: usize,
    lengths: Vec<usize>,
    came: Vec<bool>,
}

impl Arrivals for Sink {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        assert_eq!(peer, PeerIndex(0), "there is one peer");
        let number = usize::from(*bytes.first().expect("no message is empty"));
        let length = *self.lengths.get(number).expect("it was never sent");
        assert_eq!(bytes, message(self.from, number, length), "it came changed");
        assert!(!std::mem::replace(&mut self.came[number], true), "it came twice");
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {
        panic!("an operation ended that was never started");
    }
}

struct World {
    ends: [Btl<Wire>; 2],
    sinks: [Sink; 2],
    /// All four queues: to end 0, to end 1; priority and data.
    queues: Vec<Queue>,
    now: Time,
}

impl World {
    fn new(config: &BtlConfig) -> Self {
        let mut life = 0;
        let mut ends = pair(true).map(|wire| {
            life += 1;
            let mut btl = Btl::new(wire, config.clone(), Incarnation(life)).expect("good settings");
            btl.set_key(JobKey::from_bytes([1; 32]));
            btl.open_door(DOOR);
            btl
        });
        let addresses = [ends[1].address(), ends[0].address()];
        for (i, address) in addresses.iter().enumerate() {
            ends[i]
                .open(address, Incarnation(2 - i as u64))
                .expect("it is there");
        }
        let queues = ends.iter().flat_map(|end| end.driver().incoming()).collect();
        let sinks = [1, 0].map(|from| Sink {
            from,
            lengths: Vec::new(),
            came: Vec::new(),
        });
        Self {
            ends,
            sinks,
            queues,
            now: Time::ZERO,
        }
    }

    fn turn(&mut self, by: Duration) {
        self.now += by;
        for (end, sink) in self.ends.iter_mut().zip(&mut self.sinks) {
            end.progress(self.now);
            while let Some(event) = end.event() {
                let known = [
                    EventKind::PeerUp,
                    EventKind::PeerSuspect,
                    EventKind::PeerRecovered,
                ];
                assert!(known.contains(&event.kind), "no peer is given up: {event:?}");
            }
            while end.poll(64, sink) > 0 {}
            // The layer above checks them; here they are whole, and not too long.
            let mut bytes = Vec::new();
            while end.next_hello(&mut bytes) {
                assert!(bytes.len() <= end.hello_room());
            }
        }
    }

    /// Sends a hello, of which nothing is promised, not even that it arrives.
    fn greet(&mut self, from: usize, bytes: &[u8]) {
        let there = self.ends[1 - from].address();
        let sent = self.ends[from].send_hello(&there, DOOR, bytes);
        assert!(sent.is_ok(), "{sent:?}");
    }

    fn send(&mut self, from: usize, length: usize) {
        let sink = &mut self.sinks[1 - from];
        let number = sink.lengths.len();
        if number == MESSAGES {
            return;
        }
        let bytes = message(from, number, length);
        if self.ends[from]
            .send(PeerIndex(0), &[], Body::Bytes(&bytes))
            .is_ok()
        {
            sink.lengths.push(length);
            sink.came.push(false);
        }
        self.ends[from].flush();
    }

    fn is_done(&mut self) -> bool {
        let came = |sink: &Sink| sink.came.iter().all(|came| *came);
        let taken = |i: usize| self.sinks[1 - i].lengths.len() as u64;
        let all = [taken(0), taken(1)];
        let known = (0..2).all(|i| self.ends[i].handed_over(PeerIndex(0)).0 == all[i]);
        known && self.sinks.iter().all(came)
    }

    fn attack(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        let mut queue = self.queues[usize::from(choice >> 6)].borrow_mut();
        let which = script.below(queue.len().clamp(1, 256));
        let frame = queue.get(which).cloned();
        match (choice % 5, frame) {
            (0, Some(_)) => _ = queue.remove(which),
            (1, Some(frame)) => queue.push_back(frame),
            (2, Some(_)) => {
                let other = script.below(queue.len().min(256));
                queue.swap(which, other);
            }
            (3, Some(mut frame)) => {
                change(&mut frame, script);
                queue[which] = frame;
            }
            // Something new: with the head of a real frame, if there is one.
            (_, frame) => {
                let length = script.below(MTU + 1);
                let mut new = script.take(length).to_vec();
                if let Some(frame) = frame {
                    let head = 20.min(frame.len()).min(new.len());
                    new[..head].copy_from_slice(&frame[..head]);
                }
                if queue.len() < 1024 {
                    queue.push_back(new);
                }
            }
        }
    }
}

/// Changes a frame in one place, or cuts or pads it.
fn change(frame: &mut Vec<u8>, script: &mut Script<'_>) {
    let (how, at) = (script.byte(), script.below(frame.len().max(1)));
    match how {
        0..32 => frame.truncate(at),
        32..48 => frame.resize((frame.len() + at).min(MTU), how),
        // Zero would change nothing.
        _ => {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= script.byte().max(1);
            }
        }
    }
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let settings = script.byte();
    let config = BtlConfig {
        frame_mac: true,
        window: 64,
        segments: 256,
        max_peers: 1,
        operations: 4,
        exposures: 1,
        eager_limit: 8 << 10,
        max_reassemblies: if settings & 1 == 0 { 2 } else { 16 },
        connectivity_check: settings & 2 == 0,
        give_up: Duration::from_secs(3600),
        // Numbers that wrap, now and then.
        first_sequence: (settings & 4 == 0).then_some(u32::MAX - 20),
        ..BtlConfig::default()
    };
    let mut world = World::new(&config);
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            choice @ 0..64 => {
                let length = script.below(if choice & 2 == 0 { 256 } else { 6000 });
                world.send(usize::from(choice & 1), length);
            }
            choice @ 64..112 => world.turn(Duration::from_micros(10 << (choice % 12))),
            choice @ 112..120 => {
                let length = script.below(MTU - 24);
                world.greet(usize::from(choice & 1), script.take(length));
            }
            _ => world.attack(&mut script),
        }
    }
    for _ in 0..TURNS {
        if world.is_done() {
            return;
        }
        let due = world.ends.iter().filter_map(|end| end.next_deadline()).min();
        let by = due.map_or(Duration::ZERO, |due| due.since(world.now));
        world.turn(by.clamp(Duration::from_micros(1), Duration::from_millis(300)));
    }
    let counters = world.ends.each_ref().map(|end| *end.counters());
    panic!("not everything has arrived: {counters:?}");
}
