//! Random and mutated frames: no panic, no wrong delivery, nothing written where it should not be. As many as
//! a few seconds take; `DOORBELL_HOSTILE_FRAMES` gives a number instead.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use doorbell_btl::BtlConfig;
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, Body, Exposure, Inbound, Landing, Message, OpError, OpId, PeerIndex, Remote,
};
use doorbell_sim::Random;

use crate::lane::{MTU, Rings};

/// Keeps the numbers of messages, and looks at every byte.
#[derive(Default)]
struct Sink {
    numbers: BTreeSet<u64>,
    arrived: u64,
    damaged: u64,
    ended: u64,
}

fn message(number: u64) -> Vec<u8> {
    let length = 16 + (number % 3000 * 37 % 3000) as usize;
    let mut bytes: Vec<u8> = (0..length)
        .map(|i| (number as usize).wrapping_mul(31).wrapping_add(i) as u8)
        .collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Arrivals for Sink {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        self.arrived += 1;
        match bytes.first_chunk() {
            Some(number) if bytes == message(u64::from_le_bytes(*number)) => {
                self.damaged += u64::from(!self.numbers.insert(u64::from_le_bytes(*number)));
            }
            _ => self.damaged += 1,
        }
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {
        self.ended += 1;
    }
}

type Two = crate::lane::Two<Sink>;

/// Time between two turns.
const STEP: Duration = Duration::from_micros(20);

/// Some frames of everything that end 0 sends, taken off the wire and delivered all the same.
fn capture(two: &mut Two, region: &Region, remote: &Remote) -> Vec<Vec<u8>> {
    let incoming: Rings = two.ends[1].driver().incoming();
    let mut frames = Vec::new();
    for n in 0..40 {
        let bytes = message(n);
        let to = two.to[0];
        two.ends[0].send(to, &[], Body::Bytes(&bytes)).unwrap();
        if n % 10 == 0 {
            let end = &mut two.ends[0];
            end.put(to, OpId(3 * n), Body::Region(&region.whole()), remote)
                .unwrap();
            end.get(to, OpId(3 * n + 1), remote, Landing::Region(region.whole()))
                .unwrap();
            let word = remote.part(0, 8).unwrap();
            end.atomic(
                to,
                OpId(3 * n + 2),
                &word,
                doorbell_fabric::message::AtomicOp::Add(1),
            )
            .unwrap();
        }
        two.now += STEP;
        two.turn_of(0);
        for ring in &incoming {
            let mut ring = ring.borrow_mut();
            let waiting: Vec<Vec<u8>> = std::iter::from_fn(|| ring.pop()).collect();
            for frame in waiting {
                ring.push(&frame, SharedBytes::EMPTY);
                frames.push(frame);
            }
        }
        two.turn_of(1);
    }
    (0..100).for_each(|_| two.turn(STEP));
    assert_eq!(
        (
            two.sinks[1].numbers.len(),
            two.sinks[1].damaged,
            two.sinks[0].ended
        ),
        (40, 0, 12)
    );
    frames
}

/// A frame to hurt with: one of the captured, changed a little, a lot, or not at all; or noise behind a real
/// id.
fn evil(random: &mut Random, frames: &[Vec<u8>], from_within: Option<u32>) -> Vec<u8> {
    let mut frame = frames[random.below(frames.len() as u64) as usize].clone();
    let id: [u8; 8] = *frame.first_chunk().expect("a header");
    match random.below(8) {
        0 => {}
        1 => {
            frame = (0..random.below(MTU as u64 + 1))
                .map(|_| random.next_u64() as u8)
                .collect();
        }
        2 => frame.truncate(random.below(frame.len() as u64 + 1) as usize),
        3 => {
            // Any kind, any numbers, the right length.
            frame.resize(24 + random.below(1400) as usize, 0);
            for byte in &mut frame[24..] {
                *byte = random.next_u64() as u8;
            }
            frame[18] = random.below(14) as u8;
            if matches!(frame[18], 9 | 12) && random.chance(0.99) {
                frame[18] = 3; // after a goodbye, or a call in a new life, nothing else is looked at any more
            }
            let length = frame.len() as u16 - 24;
            frame[16..18].copy_from_slice(&length.to_le_bytes());
        }
        4 => {
            // Numbers near the window.
            let near = u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]]);
            let seq = near.wrapping_add(random.below(10_000) as u32).wrapping_sub(5000);
            frame[8..12].copy_from_slice(&seq.to_le_bytes());
        }
        _ => {
            for _ in 0..=random.below(6) {
                let at = random.below(frame.len() as u64) as usize;
                let interesting = [0, 1, 0x7f, 0x80, 0xff, random.next_u64() as u8];
                frame[at] = interesting[random.below(6) as usize];
            }
        }
    }
    if let Some(next) = from_within.filter(|_| frame.len() >= 20) {
        frame[..8].copy_from_slice(&id);
        if random.chance(0.5) {
            // New to the receiver.
            let seq = next.wrapping_add(random.below(64) as u32);
            frame[8..12].copy_from_slice(&seq.to_le_bytes());
        }
        if random.chance(0.9) {
            frame[19] = 1 << 4 | frame[19] & 3;
        }
    }
    frame
}

/// How many frames, or until when.
struct Effort {
    frames: u64,
    until: Instant,
}

fn effort() -> Effort {
    let asked = std::env::var("DOORBELL_HOSTILE_FRAMES")
        .ok()
        .and_then(|count| count.parse().ok());
    Effort {
        frames: asked.unwrap_or(5_000_000),
        until: Instant::now() + Duration::from_secs(if asked.is_some() { 36_000 } else { 4 }),
    }
}

/// An attacker who sees every frame, and adds frames of its own: with CRCs alone nothing that was changed
/// passes but by luck; with MACs nothing passes at all. What is genuine arrives once and whole all the while.
#[test]
fn what_is_not_genuine_is_not_delivered() {
    let config = BtlConfig {
        frame_mac: true,
        ..BtlConfig::default()
    };
    let mut two = Two::new(true, &config);
    let region = Region::new(6000).unwrap();
    let there = Region::new(6000).unwrap();
    let to = two.to;
    let remote = two.ends[1]
        .expose(Exposure::Region(there.whole()), Access::ReadWrite, Some(to[1]))
        .unwrap();
    let frames = capture(&mut two, &region, &remote);
    let incoming = two.ends[1].driver().incoming();
    let (mut random, effort, mut hurt, mut number) = (Random::new(1), effort(), 0, 40);
    while hurt < effort.frames && Instant::now() < effort.until {
        for _ in 0..32 {
            let frame = evil(&mut random, &frames, None);
            incoming[random.below(2) as usize]
                .borrow_mut()
                .push(&frame, SharedBytes::EMPTY);
            hurt += 1;
        }
        if two.ends[0]
            .send(to[0], &[], Body::Bytes(&message(number)))
            .is_ok()
        {
            number += 1;
        }
        two.turn(STEP);
    }
    (0..3000).for_each(|_| two.turn(STEP));
    let counters = two.ends[1].counters();
    println!(
        "{hurt} frames, {} forged; {number} genuine messages",
        counters.dropped_forged
    );
    assert_eq!(
        (two.sinks[1].damaged, two.sinks[1].numbers.len() as u64),
        (0, number),
        "{counters:?}"
    );
    assert!(counters.dropped_forged > hurt / 4, "{counters:?}");
    assert_eq!(
        two.ends[1].report(to[1]).impossible,
        None,
        "with a MAC, nothing is"
    );
}

/// A peer that misbehaves, or an attacker on the path where no MAC is: whatever it sends, nothing panics,
/// nothing grows without bound, and no byte outside of what was exposed is touched.
#[test]
fn a_mad_peer_hurts_only_itself() {
    let config = BtlConfig {
        max_reassemblies: 8,
        operations: 16,
        segments: 1024,
        give_up: Duration::from_secs(3600),
        ..BtlConfig::default()
    };
    let (mut random, effort, mut hurt, mut rounds) = (Random::new(2), effort(), 0, 0);
    let (mut executed, mut shown) = (0, 0);
    while hurt < effort.frames && Instant::now() < effort.until {
        // A fresh pair now and then: what the mad one has acknowledged or taken for itself stays broken.
        let mut two = Two::new(true, &config);
        let (region, there) = (Region::new(6000).unwrap(), Region::new(18_000).unwrap());
        there.write(0, &[0x55; 18_000]);
        let to = two.to;
        let exposed = there.slice(6000, 6000).unwrap();
        let remote = two.ends[1]
            .expose(Exposure::Region(exposed), Access::ReadWrite, Some(to[1]))
            .unwrap();
        let frames = capture(&mut two, &region, &remote);
        let incoming = two.ends[1].driver().incoming();
        let numbers = frames
            .iter()
            .filter(|frame| frame[18] == 2)
            .map(|frame| &frame[8..12]);
        let mut next = numbers
            .map(|seq| u32::from_le_bytes([seq[0], seq[1], seq[2], seq[3]]))
            .max()
            .unwrap();
        for _ in 0..500 {
            next = next.wrapping_add(8);
            for _ in 0..32 {
                let frame = evil(&mut random, &frames, Some(next));
                incoming[random.below(2) as usize]
                    .borrow_mut()
                    .push(&frame, SharedBytes::EMPTY);
                hurt += 1;
            }
            two.now += STEP;
            two.turn_of(1);
            let away = two.ends[0].driver().incoming();
            away.iter()
                .for_each(|ring| while ring.borrow_mut().pop().is_some() {});
            // Our operations, whose answers are made up.
            let op = OpId(1 << 40 | hurt);
            let _ = two.ends[1].get(to[1], op, &remote, Landing::Region(region.whole()));
            let _ = two.ends[1].send(to[1], b"ours", Body::Empty);
        }
        let mut bytes = vec![0; 18_000];
        there.read(0, &mut bytes);
        let outside = bytes[..6000].iter().chain(&bytes[12_000..]);
        assert!(
            outside.copied().all(|byte| byte == 0x55),
            "a byte outside of the exposure was written"
        );
        executed += two.ends[1].counters().operations_served;
        shown += two.sinks[1].arrived;
        let signs = two.ends[1].report(to[1]).impossible;
        assert!(
            signs.is_some_and(|count| count > 0),
            "what cannot be is counted: {signs:?}"
        );
        rounds += 1;
    }
    println!("{hurt} frames in {rounds} lives: {executed} operations executed, {shown} messages shown");
    assert!(rounds > 0 && shown > 40 * rounds);
}
