//! A node of the control plane, and a malicious neighbour: it has the job's key, so its frames arrive, with
//! any heads and bodies that the script directs, next to transports that report anything in any order. Each
//! send ends at most once, no message of it is delivered twice, memory is bounded, and frames that were
//! understood would be written as they came.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Policy, Transport};
use doorbell_oob::connect::{HELLO, Hello};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::{Event, Output, SendId};
use doorbell_oob::name::{Epoch, From, Name};
use doorbell_oob::node::Node;
use doorbell_oob::transport::{self, Attempt, Command, LinkId, Loss, ModuleId, Path, Refusal, TransportId};
use doorbell_oob::wire::{Frame, HEAD, Head, Kind, Lane, Seq};

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 400;
const RANKS: u32 = 12;
const JOB: u64 = 7;
const TAG: u32 = 1000;
/// What a node may hold: its windows, for each peer, and what its own sends take.
const MEMORY: usize = 4 << 20;

struct Victim {
    node: Node,
    now: Time,
    links: u64,
    open: BTreeSet<SendId>,
    attempts: Vec<Attempt>,
    /// Deliveries; they do not contain (origin, life, lane, place), so the bodies are numbered.
    shown: u64,
}

impl Victim {
    fn new(settings: u8) -> Self {
        let transports = match settings & 1 {
            0 => vec![Transport::tree("tcp")],
            _ => vec![Transport::direct("rail"), Transport::tree("tcp")],
        };
        let rank = u32::from(settings >> 1 & 3);
        let config = Config {
            radix: 2,
            policy: Policy::Persist,
            longest: 4096,
            window: 8192,
            unmatched: 8192,
            unmatched_total: 32_768,
            pending: 16_384,
            pending_total: 65_536,
            relay: 32_768,
            operations: 8,
            ..Config::new(Name::new(JOB, rank), Epoch(100), RANKS, transports)
        };
        let mut node = Node::new(config, Time::ZERO);
        for other in 0..RANKS {
            let contact = Contact::new(Name::new(JOB, other), Epoch(0))
                .with("tcp", &["a"])
                .with("rail", &["b"]);
            node.learn(Time::ZERO, contact);
        }
        if settings & 8 == 0 {
            node.post(Time::ZERO, From::ANYBODY, TAG, true)
                .expect("the first");
        }
        node.start(Time::ZERO);
        Self {
            node,
            now: Time::ZERO,
            links: 0,
            open: BTreeSet::new(),
            attempts: Vec::new(),
            shown: 0,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.node.output() {
            match output {
                Output::Command(_, Command::Connect { attempt, .. }) => self.attempts.push(attempt),
                Output::Command(_, Command::Send { frame, .. }) => {
                    let bytes = frame.joined();
                    assert!(
                        Head::read(&bytes, Some(JOB), 64 << 10).is_ok(),
                        "it sends what no node can parse"
                    );
                }
                Output::Command(..) => {}
                Output::Event(Event::Sent { send, .. }) => {
                    assert!(self.open.remove(&send), "{send:?} ended, and was not open");
                }
                Output::Event(Event::Received { .. }) => self.shown += 1,
                Output::Event(_) => {}
            }
        }
        assert!(self.node.memory() < MEMORY, "{} bytes", self.node.memory());
    }

    fn name(&self, script: &mut Script<'_>) -> Name {
        let rank = script.below(RANKS as usize + 2) as u32;
        let job = if script.byte() < 240 {
            JOB
        } else {
            u64::from(script.byte())
        };
        Name::new(job, rank)
    }

    /// A frame with a head that makes sense, or nearly.
    fn frame(&self, script: &mut Script<'_>) -> Bytes {
        let choice = script.byte();
        let kind = [
            Kind::Data,
            Kind::Data,
            Kind::Data,
            Kind::Ack,
            Kind::Probe,
            Kind::Nack,
        ][usize::from(choice % 6)];
        let control = choice & 0x80 != 0;
        let mine = script.byte() < 200;
        let to = if mine { self.node.name() } else { self.name(script) };
        let body = self.body(script);
        let head = Head {
            kind,
            lane: Lane::ALL[usize::from(control)],
            origin: self.name(script),
            epoch: Epoch(script.near(50).max(1)),
            destination: to,
            to_epoch: Epoch(script.near(100).max(1)),
            tag: if control {
                script.below(16) as u32
            } else {
                TAG + u32::from(script.byte() & 1)
            },
            sequence: Seq(script.near(0) as u32),
            back: if kind == Kind::Data {
                script.byte().into()
            } else {
                0
            },
            ack: (script.byte() & 1 == 1).then(|| (Seq(script.near(1) as u32), script.short())),
            gap: false,
            hops: script.byte() % 33,
        };
        let mut bytes = Frame::new(&head, Some(JOB), body).joined().to_vec();
        if script.byte() > 250 {
            let at = script.below(HEAD);
            bytes[at] ^= script.byte();
        }
        bytes.into()
    }

    /// Bodies of control messages are numbers, mostly.
    fn body(&self, script: &mut Script<'_>) -> Bytes {
        let mut body = Vec::new();
        for _ in 0..script.below(12) {
            match script.byte() % 4 {
                0 => body.extend_from_slice(&(script.near(1) as u32).to_be_bytes()),
                1 => body.extend_from_slice(&script.near(100).to_be_bytes()),
                2 => body.push(script.byte()),
                _ => {
                    let length = script.below(300);
                    body.extend_from_slice(script.take(length));
                }
            }
        }
        body.into()
    }

    fn event(&mut self, script: &mut Script<'_>) -> transport::Event {
        let link = LinkId(script.below(self.links as usize + 2) as u64);
        let module = ModuleId(u16::from(script.byte() & 1));
        match script.byte() {
            0..40 => {
                self.links += 1;
                transport::Event::Connected {
                    link: LinkId(self.links),
                    module,
                    peer: self.name(script),
                    epoch: Epoch(script.near(50).max(1)),
                    attempt: self.attempts.pop().filter(|_| script.byte() & 1 == 1),
                }
            }
            40..180 => transport::Event::Received {
                link,
                frame: self.frame(script),
            },
            180..200 => transport::Event::Sent {
                link,
                frames: script.near(4),
            },
            200..210 => transport::Event::Lost {
                link,
                why: Loss::Broken,
            },
            210..220 => transport::Event::Refused {
                attempt: self.attempts.pop().unwrap_or(Attempt(script.any())),
                why: if script.byte() & 1 == 0 {
                    Refusal::NotListening
                } else {
                    Refusal::WrongKey
                },
            },
            220..230 => transport::Event::ModuleUp {
                module,
                addresses: vec!["here".into()],
            },
            230..235 => transport::Event::ModuleDown { module },
            _ => {
                let peer = self.name(script);
                let path = Path {
                    module,
                    addresses: vec!["there".into()],
                };
                transport::Event::Paths {
                    peer,
                    paths: vec![path],
                }
            }
        }
    }

    fn live(&mut self, script: &mut Script<'_>) {
        let to = self.name(script);
        match script.byte() {
            0..180 => {
                let body = vec![0; script.below(4200)];
                if let Ok(send) = self.node.send(self.now, to, TAG, body.into(), None) {
                    self.open.insert(send);
                }
            }
            180..200 => {
                if let Some(&send) = self.open.first() {
                    self.node.cancel_send(self.now, to, send);
                }
            }
            200..220 => {
                _ = self
                    .node
                    .broadcast(self.now, TAG, &Bytes::from(b"x"), Duration::from_secs(5))
            }
            220..235 => self.node.gather(
                self.now,
                u32::from(script.byte()),
                &Bytes::from(b"y"),
                Duration::from_secs(5),
            ),
            235..245 => {
                _ = self
                    .node
                    .post(self.now, From::only(to), TAG + 1, script.byte() & 1 == 0)
            }
            _ => self.node.look_up(self.now, to),
        }
    }
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let whole = Bytes::from(input);
    if let Ok((head, body)) = Head::read(&whole, Some(JOB), 4096) {
        let job = (whole.len() == HEAD + body.len()).then_some(JOB);
        assert_eq!(
            *Frame::new(&head, job, body).joined(),
            *whole,
            "it would be written otherwise"
        );
    }
    if let Some(hello) = input.get(..HELLO).and_then(Hello::read) {
        assert_eq!(hello.bytes(), input[..HELLO]);
    }
    let mut script = Script::new(input);
    let mut victim = Victim::new(script.byte());
    victim.drain();
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            0..170 => {
                let event = victim.event(&mut script);
                let transport = TransportId(script.byte() & 1);
                victim.node.handle(victim.now, transport, event);
            }
            170..220 => victim.live(&mut script),
            choice => {
                victim.now += Duration::from_millis(1 << (choice % 15));
                victim.node.tick(victim.now);
            }
        }
        victim.drain();
    }
    // Whatever was sent, everything ends.
    for _ in 0..200 {
        victim.now += Duration::from_secs(1);
        victim.node.tick(victim.now);
        victim.drain();
    }
    assert!(victim.open.is_empty(), "{:?} never ended", victim.open);
    assert!(victim.shown <= victim.node.counters().delivered);
}
