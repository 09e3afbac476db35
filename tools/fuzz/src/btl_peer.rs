//! A BTL and a malicious peer that it trusts: frames without CRC or MAC, with the right connection id and any
//! contents that the script directs. Nothing is written but what was exposed or lent for it, nothing is sent
//! but what was exposed, and each operation of ours ends at most once.

use std::collections::BTreeSet;
use std::time::Duration;

use doorbell_btl::wire::{Basic, Kind, VERSION};
use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, Inbound, Incarnation, Landing, Message, OpError, OpId,
    PeerIndex, Remote,
};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use crate::script::Script;
use crate::wire::{MTU, Queue, Wire, pair};

/// Most steps of a script.
const STEPS: usize = 400;
/// Bytes of the region of which the middle third is exposed, and of the one of which the middle third is
/// lent.
const MEMORY: usize = 3 * 1024;
/// The bytes around them, which the peer must neither read nor write.
const SECRET: [u8; 16] = *b"\x5anot to be seen\xa5";

#[derive(Default)]
struct Sink {
    open: BTreeSet<u64>,
    shown: u64,
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        self.shown += 1;
        let mut bytes = vec![0; inbound.len()];
        assert_eq!(inbound.copy_to(0, &mut bytes), bytes.len());
    }

    fn completed(&mut self, op: OpId, _: Result<u64, OpError>) {
        assert!(
            self.open.remove(&op.0),
            "operation {} ended, and was not open",
            op.0
        );
    }
}

/// A region full of the secret, but for its middle third, which is zero.
fn guarded() -> Region {
    let region = Region::new(MEMORY).expect("memory");
    for at in (0..MEMORY).step_by(SECRET.len()) {
        region.write(at, &SECRET);
    }
    region.write(MEMORY / 3, &[0; MEMORY / 3]);
    region
}

fn assert_guarded(region: &Region) {
    let mut bytes = [0; MEMORY];
    region.read(0, &mut bytes);
    let (low, high) = (&bytes[..MEMORY / 3], &bytes[2 * MEMORY / 3..]);
    let outside = low.chunks(SECRET.len()).chain(high.chunks(SECRET.len()));
    assert!(
        outside.into_iter().all(|chunk| chunk == SECRET),
        "a byte outside was written"
    );
}

struct Victim {
    btl: Btl<Wire>,
    sink: Sink,
    peer: PeerIndex,
    /// To the victim, and from it.
    queues: [[Queue; 2]; 2],
    /// Of the connection that leads to the victim.
    id: [u8; 8],
    exposed: Region,
    lent: Region,
    remote: Remote,
    ops: u64,
    /// The number of its last operation, as its frames contain it.
    told: u64,
    now: Time,
}

impl Victim {
    fn new() -> Self {
        let config = BtlConfig {
            window: 64,
            segments: 128,
            max_peers: 1,
            eager_limit: 8 << 10,
            max_reassemblies: 4,
            operations: 8,
            exposures: 4,
            connectivity_check: false,
            give_up: Duration::from_secs(3600),
            first_sequence: Some(0),
            ..BtlConfig::default()
        };
        let mut life = 0;
        let [mut other, mut btl] = pair(true).map(|wire| {
            life += 1;
            let mut btl = Btl::new(wire, config.clone(), Incarnation(life)).expect("good settings");
            btl.set_key(JobKey::from_bytes([1; 32]));
            btl
        });
        let to = other.open(&btl.address(), Incarnation(2)).expect("it is there");
        let peer = btl.open(&other.address(), Incarnation(1)).expect("it is there");
        // One honest message contains the connection's id, which is all that the other end is for.
        other.send(to, b"hello", Body::Empty).expect("there is room");
        other.flush();
        let queues = [btl.driver().incoming(), other.driver().incoming()];
        let id = queues[0].iter().find_map(|queue| queue.borrow().front().cloned());
        let id = *id.expect("a frame").first_chunk().expect("a header");
        let (exposed, lent) = (guarded(), guarded());
        let third = exposed.slice(MEMORY / 3, MEMORY / 3).expect("inside");
        let remote = btl
            .expose(Exposure::Region(third), Access::ReadWrite, Some(peer))
            .expect("there is room");
        Self {
            btl,
            sink: Sink::default(),
            peer,
            queues,
            id,
            exposed,
            lent,
            remote,
            ops: 0,
            told: 0,
            now: Time::ZERO,
        }
    }

    fn turn(&mut self, by: Duration) {
        self.now += by;
        self.btl.progress(self.now);
        while self.btl.event().is_some() {}
        for _ in 0..16 {
            if self.btl.poll(64, &mut self.sink) == 0 {
                break;
            }
        }
        for queue in &self.queues[1] {
            for frame in queue.borrow_mut().drain(..) {
                let told = frame.windows(SECRET.len()).any(|window| window == SECRET);
                assert!(!told, "a frame contains what was not exposed");
                let begins = [Kind::Put, Kind::Get, Kind::Atomic]
                    .map(|kind| kind as u8)
                    .contains(&frame[18]);
                if let Some(number) = frame.get(24..32).filter(|_| begins) {
                    self.told = u64::from_le_bytes(number.try_into().expect("eight bytes"));
                }
            }
        }
    }

    /// A frame with the right id and a length that is right, or nearly.
    fn hurt(&mut self, script: &mut Script<'_>) {
        let (kind, flags) = (script.byte() % 14, script.byte());
        let (sequence, ack) = (script.near(1) as u32, script.near(0) as u32);
        let mut payload = self.header(Kind::of(kind), script);
        let length = script.below(MTU - 24 - payload.len());
        payload.extend_from_slice(script.take(length));
        let wrong = if flags & 0x80 == 0 { 0 } else { script.short() };
        let basic = Basic {
            connection: u64::from_le_bytes(self.id).into(),
            sequence: sequence.into(),
            ack: ack.into(),
            length: (payload.len() as u16).wrapping_add(wrong).into(),
            kind,
            flags: VERSION << 4 | flags & 3,
            check: 0.into(),
        };
        let [connection, rest] = [basic.connection.get().to_le_bytes().to_vec(), rest_of(&basic)];
        let frame = [connection, rest, payload].concat();
        let queue = &self.queues[0][usize::from(flags >> 6 & 1)];
        if queue.borrow().len() < 256 {
            queue.borrow_mut().push_back(frame);
        }
    }

    /// The kind's own header: numbers that the victim knows, or nearly.
    fn header(&self, kind: Option<Kind>, script: &mut Script<'_>) -> Vec<u8> {
        let mut words = Vec::new();
        let mut word = |number: u64| words.extend_from_slice(&number.to_le_bytes());
        let key = self.remote.key.get();
        let (address, length) = (self.remote.address.get(), self.remote.length.get());
        match kind {
            Some(Kind::Put | Kind::Get) => {
                word(script.near(0));
                word(if script.byte() < 224 { key } else { script.any() });
                word(address.wrapping_add(script.near(0)));
                word(script.near(length));
                if kind == Some(Kind::Put) {
                    word(script.near(0));
                }
            }
            Some(Kind::Atomic) => {
                word(script.near(0));
                word(if script.byte() < 224 { key } else { script.any() });
                word(address.wrapping_add(script.near(0)));
                word(script.any());
                word(script.any());
                word(script.below(8) as u64);
            }
            Some(Kind::Data) => {
                word(script.near(self.told));
                word(script.near(0));
            }
            Some(Kind::End) => {
                word(script.near(self.told));
                word(script.any());
                word(script.below(4) as u64);
            }
            Some(Kind::Chunk) => {
                let first = script.near(1) as u32;
                let (total, size) = (script.short(), script.short());
                words.extend_from_slice(&first.to_le_bytes());
                words.extend_from_slice(&u32::from(total).to_le_bytes());
                words.extend_from_slice(&size.to_le_bytes());
                words.extend_from_slice(&[0; 2]);
            }
            _ => {}
        }
        words
    }

    /// Something that the victim does by itself, and that the peer may answer.
    fn live(&mut self, script: &mut Script<'_>) {
        let third = MEMORY / 3;
        let (at, length) = (script.below(third), script.below(third));
        let slice = self
            .lent
            .slice(third + at, length.min(third - at))
            .expect("inside");
        let theirs = Remote {
            key: 7.into(),
            address: 0.into(),
            length: (slice.len() as u64).into(),
        };
        let op = OpId(1000 + self.ops);
        let begun = match script.byte() % 4 {
            0 => self.btl.get(self.peer, op, &theirs, Landing::Region(slice)),
            1 => self.btl.put(
                self.peer,
                op,
                Body::Region(&self.exposed.slice(third, 64).expect("inside")),
                &theirs,
            ),
            2 => match theirs.part(0, 8) {
                Some(word) => self.btl.atomic(self.peer, op, &word, AtomicOp::Add(1)),
                None => return,
            },
            _ => {
                let bytes = vec![1; at];
                let _ = self.btl.send(self.peer, b"ours", Body::Bytes(&bytes));
                return;
            }
        };
        if begun.is_ok() {
            self.ops += 1;
            self.sink.open.insert(op.0);
        }
    }
}

/// A basic header without its connection.
fn rest_of(basic: &Basic) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&basic.sequence.get().to_le_bytes());
    bytes.extend_from_slice(&basic.ack.get().to_le_bytes());
    bytes.extend_from_slice(&basic.length.get().to_le_bytes());
    bytes.extend_from_slice(&[basic.kind, basic.flags]);
    bytes.extend_from_slice(&basic.check.get().to_le_bytes());
    bytes
}

/// Runs a script.
pub fn run(input: &[u8]) {
    if input.windows(4).any(|window| window == &SECRET[..4]) {
        return; // a peer that sends the secret may receive it
    }
    let mut script = Script::new(input);
    let mut victim = Victim::new();
    victim.turn(Duration::from_micros(20));
    assert_eq!(victim.sink.shown, 1, "the honest message");
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            0..128 => victim.hurt(&mut script),
            128..192 => victim.live(&mut script),
            choice => victim.turn(Duration::from_micros(20 << (choice % 14))),
        }
    }
    victim.turn(Duration::from_micros(20));
    assert_guarded(&victim.exposed);
    assert_guarded(&victim.lent);
    let counters = victim.btl.counters();
    assert!(
        counters.messages_delivered <= counters.frames_received,
        "{counters:?}"
    );
    assert_eq!(counters.messages_delivered, victim.sink.shown);
}
