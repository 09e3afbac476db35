//! A peer that sends whatever it likes: nothing panics, everything that is dropped is counted.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Features;
use doorbell_fabric::memory::{MutLoan, Region};
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::time::Time;
use doorbell_pml::{
    Aborted, GetArgs, MultiArgs, Payload, Pml, PmlConfig, Protocol, RailId, Rank, RemotePiece, RequestId,
    SendMode, Sent, Source, Target, WindowAccess, WindowArgs, WindowMemory,
};

use crate::feed::FeedRail;
use doorbell_testing::Random;

use crate::world::{empty, filled, recv_args, send_args};

const FRAMES: u64 = 1_000_000;

pub(crate) fn victim() -> Pml<FeedRail> {
    victim_of(Protocol::Auto)
}

fn victim_of(protocol: Protocol) -> Pml<FeedRail> {
    let mut config = PmlConfig::new(Rank(0), 3, 1);
    config.window = 64 << 10;
    config.hard_window = 128 << 10;
    config.protocol = protocol;
    let mut pml = Pml::new(config).unwrap();
    let features = Features {
        get: true,
        put: true,
        atomics: false,
        gather: true,
        reclaim: true,
        within_host: false,
        checksum: false,
        port: 0,
    };
    let rail = pml.add_rail(FeedRail::new(features)).unwrap();
    for rank in [1, 2] {
        pml.connect(Rank(rank), rail, &RailAddress::native("sim", [0]), Incarnation(1))
            .unwrap();
    }
    pml
}

/// A frame that is nearly right: a kind, plausible numbers, and then some of it spoiled.
fn frame(dice: &mut Random, seq: u32) -> Vec<u8> {
    let length = match dice.below(8) {
        0 => dice.below(16),
        1 => dice.below(64),
        2 => 16 + dice.below(5000),
        _ => 16 + dice.below(100),
    };
    let mut frame: Vec<u8> = (0..length).map(|_| dice.next_u64() as u8).collect();
    if dice.below(10) == 0 {
        return frame; // pure noise
    }
    let mut word = |at: usize, bytes: &[u8]| {
        if frame.len() >= at + bytes.len() {
            frame[at..at + bytes.len()].copy_from_slice(bytes);
        }
    };
    let flags = [0, 0x02, 0x10, 0x40, 0x80, 0xa0, 0xff][dice.below(7) as usize];
    word(0, &[1 + dice.below(19) as u8, flags]);
    word(2, &(dice.below(2) as u16).to_le_bytes());
    let near = seq.wrapping_add(dice.below(6) as u32).wrapping_sub(2);
    word(
        4,
        &(if dice.below(20) == 0 {
            dice.next_u64() as u32
        } else {
            near
        })
        .to_le_bytes(),
    );
    word(8, &dice.below(4).to_le_bytes());
    for at in [16, 24, 32, 40, 48, 56, 64] {
        let number = match dice.below(5) {
            0 => dice.next_u64(),
            1 => u64::MAX - dice.below(3),
            2 => dice.below(40) | (1 + dice.below(40)) << 32, // a request, perhaps a live one
            3 => dice.below(200_000),
            _ => length.saturating_sub(48),
        };
        word(at, &number.to_le_bytes());
    }
    if flags & 0x80 != 0 {
        operation(dice, &mut frame);
    }
    if dice.below(4) == 0 && !frame.is_empty() {
        let at = dice.below(frame.len() as u64) as usize;
        frame[at] ^= 1 << dice.below(8);
    }
    frame
}

/// Makes what follows the header an operation that is nearly right.
fn operation(dice: &mut Random, frame: &mut Vec<u8>) {
    let mut at = [16, 48, 72][dice.below(3) as usize];
    if dice.below(2) == 0
        && let Some(head) = frame.get_mut(..2)
    {
        // One message.
        head.copy_from_slice(&[1, 0x80]);
        at = 16;
    }
    let pieces = 1 + dice.below(2) as usize;
    let mut bytes: Vec<u8> = [5, 4, 20, 17, 1].map(|most| dice.below(most) as u8).to_vec();
    (bytes[4], bytes[0]) = (pieces as u8, bytes[0] + u8::from(dice.below(9) > 0));
    bytes.resize(8, 0);
    for _ in 0..pieces {
        let length = [0, 8, 16, 100, dice.below(5000), u64::MAX][dice.below(6) as usize];
        for number in [dice.below(4), dice.below(1200), length] {
            bytes.extend(number.to_le_bytes());
        }
    }
    let end = at + bytes.len();
    if dice.below(2) == 0 {
        // With as many bytes as it names, perhaps.
        frame.resize(end + [0, 8, 16, 100][dice.below(4) as usize], 7);
    }
    if let Some(place) = frame.get_mut(at..end) {
        place.copy_from_slice(&bytes);
    }
}

/// Memory of which a window is the middle.
struct Windowed(MutLoan);

impl Windowed {
    const EDGE: usize = 4096;
    const ROOM: usize = 1000;

    /// Opens windows in the middle of memory, for everything and for little.
    fn new(pml: &mut Pml<FeedRail>) -> Self {
        let memory = empty(2 * Self::EDGE + Self::ROOM).room();
        let middle = memory.part(Self::EDGE, Self::ROOM);
        for (key, access) in [
            (0, WindowAccess::ALL),
            (1, WindowAccess::ALL),
            (2, WindowAccess::READ),
        ] {
            let halves = vec![middle.part(0, 501), middle.part(501, Self::ROOM)];
            let window = WindowArgs {
                key,
                base: 0,
                memory: WindowMemory::Loans(halves),
                access,
            };
            pml.open_window(window).unwrap();
        }
        Self(memory)
    }

    fn is_clean_outside(&self) -> bool {
        let bytes = self.0.as_shared().to_vec();
        let (front, rest) = bytes.split_at(Self::EDGE);
        front.iter().chain(&rest[Self::ROOM..]).all(|byte| *byte == 0)
    }
}

/// Keeps requests of every kind open, so that hostile frames meet them.
struct Bait {
    memory: Region,
    lent: MutLoan,
    open: Vec<RequestId>,
}

impl Bait {
    fn renew(&mut self, pml: &mut Pml<FeedRail>, dice: &mut Random) {
        self.open.retain(|id| pml.test(*id).is_none());
        while self.open.len() < 24 {
            let tag = dice.below(4);
            let rank = 1 + dice.below(2) as u32;
            let room = self.memory.slice(0, dice.below(100_000) as usize).unwrap();
            match dice.below(6) {
                4 => {
                    let at = RemotePiece {
                        key: 1,
                        address: 0,
                        length: room.len() as u64,
                    };
                    let lent = self.lent.part(0, room.len()).as_const();
                    self.open
                        .extend(pml.put_loan(Rank(rank), 0, at, lent, false).ok());
                }
                5 => {
                    let at = RemotePiece {
                        key: 1,
                        address: 0,
                        length: dice.below(20).min(room.len() as u64),
                    };
                    let args = GetArgs {
                        from: Rank(rank),
                        context: 0,
                        at: at.into(),
                        target: Target::Region(room.slice(0, at.length as usize).unwrap()),
                        notify: false,
                    };
                    self.open.extend(pml.get(args).ok());
                }
                0 => {
                    let mut args = send_args(rank, tag, Payload::Region(room));
                    args.mode = SendMode::Synchronous;
                    match pml.send(args) {
                        Ok(Sent::Pending(id)) => self.open.push(id),
                        Ok(Sent::Done) => {}
                        Err(_) => self.open.push(
                            pml.recv(recv_args(Rank(2), tag, Target::Region(room_again(&self.memory))))
                                .unwrap(),
                        ),
                    }
                }
                1 => self.open.push(
                    pml.recv(recv_args(Rank(rank), tag, Target::Region(room)))
                        .unwrap(),
                ),
                2 => {
                    let parts = vec![self.lent.part(0, 100), self.lent.part(200, room.len())];
                    self.open.push(
                        pml.recv(recv_args(Source::Any, tag, Target::Parts(parts.into())))
                            .unwrap(),
                    );
                }
                _ => {
                    let args = MultiArgs {
                        from: Source::Any,
                        context: 0,
                        tag,
                        ignore: 0,
                        target: Target::Region(room),
                        min_free: 1,
                        notify: false,
                    };
                    self.open.push(pml.recv_multi(args).unwrap());
                }
            }
        }
        if dice.below(50) == 0 {
            let id = self.open.swap_remove(dice.below(self.open.len() as u64) as usize);
            let _ = pml.abort(id);
        }
    }
}

fn room_again(memory: &Region) -> doorbell_fabric::memory::RegionSlice {
    memory.slice(0, 64).unwrap()
}

#[test]
fn a_million_random_and_mutated_frames_neither_panic_nor_go_uncounted() {
    let mut dice = Random::new(0xd1ce);
    let (mut drops, mut arrived, mut fed, mut lives) = (0, 0, 0, 0);
    let (mut refused, mut done) = (0, 0);
    while fed < FRAMES {
        lives += 1;
        let mut pml = victim();
        let mut bait = Bait {
            memory: empty(200_000).region().clone(),
            lent: empty(200_000).room(),
            open: Vec::new(),
        };
        let windowed = Windowed::new(&mut pml);
        let mut seq = 0u32;
        for _ in 0..2000 {
            bait.renew(&mut pml, &mut dice);
            let rail = pml.rail_mut(RailId(0)).unwrap();
            for _ in 0..12 {
                let peer = PeerIndex(if dice.below(50) == 0 {
                    dice.below(5) as u32
                } else {
                    0
                });
                rail.frames.push_back((peer, frame(&mut dice, seq)));
                fed += 1;
                seq += u32::from(dice.below(8) == 0);
            }
            pml.poll();
            pml.progress(Time::ZERO);
            while pml.next_delivery().is_some() {}
            while pml.next_notice().is_some() {}
            let _ = pml.probe(Source::Any, 0, 0, u64::MAX);
            for context in [0, 1] {
                while let Some(claimed) = pml.claim(Source::Any, context, 0, u64::MAX) {
                    pml.discard(claimed.message).unwrap();
                }
            }
            // The sequence that is expected, nearly: as an honest sender would know it.
            seq = pml.counters().arrived as u32;
            if pml.peer(Rank(1)).unwrap().lost.is_some() {
                break;
            }
        }
        assert!(windowed.is_clean_outside(), "in life {lives}");
        refused += pml.counters().operations_refused;
        done += (0..3)
            .map(|key| pml.window_counts(key).unwrap())
            .map(|of| of.writes + of.reads)
            .sum::<u64>();
        let counters = *pml.counters();
        drops += counters.drops.total();
        arrived += counters.arrived;
        drop(bait);
    }
    assert!(
        lives > 10 && drops > FRAMES / 2 && arrived > 10_000,
        "{lives} lives, {drops} drops, {arrived} arrived"
    );
    assert!(
        refused > 1000 && done > 300,
        "{refused} operations refused, {done} done"
    );
}

#[test]
fn each_reason_to_drop_a_frame_is_counted() {
    let mut pml = victim();
    let memory = filled(100_000, 1);
    let Ok(Sent::Pending(send)) = pml.send(send_args(1, 1, Payload::Region(memory.whole()))) else {
        panic!("it is announced");
    };
    let feed = |pml: &mut Pml<FeedRail>, peer: u32, frame: Vec<u8>| {
        pml.rail_mut(RailId(0))
            .unwrap()
            .frames
            .push_back((PeerIndex(peer), frame));
        let before = *pml.counters();
        pml.poll();
        let after = *pml.counters();
        assert_eq!(after.drops.total(), before.drops.total() + 1);
        after.drops
    };
    let header = |kind: u8, seq: u32, tag: u64, words: &[u64]| {
        let mut frame = vec![kind, 0, 0, 0];
        frame.extend(seq.to_le_bytes());
        frame.extend(tag.to_le_bytes());
        words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
        frame
    };
    let id = send.to_bits();
    assert_eq!(feed(&mut pml, 0, vec![1; 15]).runt, 1);
    assert_eq!(feed(&mut pml, 0, header(4, 0, 1, &[id])).runt, 2);
    assert_eq!(feed(&mut pml, 0, header(77, 0, 0, &[])).unknown_kind, 1);
    assert_eq!(feed(&mut pml, 0, header(7, 0, 0, &[0; 6])).unknown_kind, 2);
    assert_eq!(feed(&mut pml, 9, header(1, 0, 0, &[])).unknown_peer, 1);
    assert_eq!(feed(&mut pml, 0, header(1, u32::MAX, 0, &[])).duplicate, 1);
    assert_eq!(feed(&mut pml, 0, header(1, 1 << 30, 0, &[])).too_far_ahead, 1);
    assert_eq!(
        feed(&mut pml, 0, header(4, 0, 1, &[id + (1 << 32), 0, 0, 0, 0])).stale_request,
        1
    );
    assert_eq!(
        feed(&mut pml, 1, header(4, 0, 1, &[id, 0, 0, 0, 0])).wrong_peer,
        1
    );
    assert_eq!(
        feed(&mut pml, 0, header(4, 7, 1, &[id, 0, 0, 0, 0])).wrong_identity,
        1
    );
    assert_eq!(feed(&mut pml, 0, header(4, 0, 1, &[id, 0, 5, 4, 0])).bad_range, 1);
    assert_eq!(
        feed(&mut pml, 0, header(4, 0, 1, &[id, 0, 0, 100_001, 0])).bad_range,
        2
    );
    // The right FIN ends the send, and the same one again changes nothing.
    let fin = header(9, 0, 1, &[id, 0, 0]);
    let rail = pml.rail_mut(RailId(0)).unwrap();
    rail.frames.push_back((PeerIndex(0), fin.clone()));
    pml.poll();
    assert!(pml.is_done(send));
    assert_eq!(feed(&mut pml, 0, fin.clone()).wrong_state, 1);
    pml.test(send).unwrap().unwrap();
    assert_eq!(feed(&mut pml, 0, fin).stale_request, 2);
}

/// A header of 16 bytes, and what follows it.
pub(crate) fn told(kind: u8, flags: u8, seq: u32, tag: u64, words: &[u64]) -> Vec<u8> {
    let mut frame = vec![kind, flags, 0, 0];
    frame.extend(seq.to_le_bytes());
    frame.extend(tag.to_le_bytes());
    words.iter().for_each(|word| frame.extend(word.to_le_bytes()));
    frame
}

const RNDV: u8 = 2;
const RGET: u8 = 3;
const ACK: u8 = 4;
const FIN: u8 = 9;
const NOTIFY: u8 = 10;
const TO_RECEIVER: u8 = 0x40;
const CAN_PUT: u8 = 0x10;
const RESTART: u8 = 0x01;
/// The request that the sender claims to have.
const THEIRS: u64 = 7;

/// A victim that waits for a long message of the first peer; the region lives as long as the receive.
fn waiting(protocol: Protocol) -> (Pml<FeedRail>, RequestId) {
    let mut pml = victim_of(protocol);
    let memory = empty(60_000);
    let id = pml.recv(recv_args(Rank(1), 1, Target::Region(memory.whole())));
    (pml, id.unwrap())
}

/// Feeds frames of the first peer one by one, with a pass after each.
pub(crate) fn feed(pml: &mut Pml<FeedRail>, frames: &[Vec<u8>]) {
    for frame in frames {
        let rail = pml.rail_mut(RailId(0)).unwrap();
        rail.frames.push_back((PeerIndex(0), frame.clone()));
        pml.poll();
        pml.progress(Time::ZERO);
    }
}

#[test]
fn memory_is_not_handed_back_while_a_read_may_still_write_into_it() {
    let (mut pml, id) = waiting(Protocol::Auto);
    let mine = id.to_bits();
    pml.rail_mut(RailId(0)).unwrap().holds = true;
    // Announced to be written, then restarted to be read, then restarted again; and reported as written after
    // all.
    let rget = told(RGET, RESTART, 0, 1, &[60_000, THEIRS, mine, 2, 5, 0, 60_000]);
    let frames = [
        told(RNDV, CAN_PUT, 0, 1, &[60_000, THEIRS, 0, 0]),
        told(NOTIFY, 0, 0, 1, &[THEIRS, mine, 1]),
        rget,
        told(NOTIFY, 0, 0, 1, &[THEIRS, mine, 3]),
        told(FIN, TO_RECEIVER, 0, 1, &[THEIRS, mine, 3 << 32]),
    ];
    feed(&mut pml, &frames[..3]);
    assert_eq!(pml.rail_mut(RailId(0)).unwrap().held.len(), 1, "it is being read");
    feed(&mut pml, &frames[3..]);
    assert!(!pml.is_done(id));
    // The read ends, and with it what it held up.
    let rail = pml.rail_mut(RailId(0)).unwrap();
    rail.holds = false;
    rail.ended.append(&mut rail.held);
    pml.progress(Time::ZERO);
    feed(&mut pml, &[told(RNDV, RESTART, 0, 1, &[60_000, THEIRS, mine, 4])]);
    assert!(matches!(pml.abort(id), Aborted::Now));
    assert_eq!(pml.live_requests(), 0);
}

#[test]
fn restarts_that_count_wrongly_are_dropped() {
    let (mut pml, id) = waiting(Protocol::Auto);
    let mine = id.to_bits();
    feed(&mut pml, &[told(RNDV, 0, 0, 1, &[60_000, THEIRS, 0, 0])]);
    let wrong = [
        told(NOTIFY, 0, 0, 1, &[THEIRS, mine, 2]),
        told(RNDV, RESTART, 0, 1, &[60_000, THEIRS, mine, 3]),
        told(RNDV, RESTART, 0, 1, &[60_000, THEIRS, mine, 0]),
        told(RNDV, 0, 1, 1, &[60_000, THEIRS, 0, 2]),
    ];
    let before = pml.counters().drops.bad_range;
    feed(&mut pml, &wrong);
    assert_eq!(pml.counters().drops.bad_range, before + wrong.len() as u64);
    assert!(!pml.is_done(id));
}

#[test]
fn a_peer_that_restarts_for_ever_and_takes_no_answer_is_cut_off() {
    let (mut pml, id) = waiting(Protocol::Auto);
    feed(&mut pml, &[told(RNDV, 0, 0, 1, &[60_000, THEIRS, 0, 0])]);
    pml.rail_mut(RailId(0)).unwrap().full = true;
    for number in 0..200_000u64 {
        let notify = told(NOTIFY, 0, 0, 1, &[THEIRS, id.to_bits(), 2 * number + 1]);
        feed(&mut pml, &[notify]);
    }
    assert!(pml.peer(Rank(1)).unwrap().lost.is_some());
    assert!(pml.is_done(id));
}

#[test]
fn credit_and_a_refund_for_the_same_bytes_do_not_count_below_nothing() {
    let mut pml = victim_of(Protocol::Fragments);
    let memory = filled(100_000, 1);
    let Ok(Sent::Pending(send)) = pml.send(send_args(1, 1, Payload::Region(memory.whole()))) else {
        panic!("it is announced");
    };
    pml.progress(Time::ZERO);
    const CREDIT: u8 = 14;
    let charged = pml.peer(Rank(1)).unwrap().unreported;
    assert!(charged > 1_000, "its beginning left with the announcement");
    let mut credit = vec![CREDIT, 0, 0, 0, 0, 0, 0, 0];
    credit.extend(charged.to_le_bytes());
    let all = told(ACK, 0, 0, 1, &[send.to_bits(), THEIRS, 0, 100_000, 0]);
    feed(&mut pml, &[credit, all]);
    assert_eq!(pml.peer(Rank(1)).unwrap().unreported, 0);
}

#[test]
fn pieces_that_find_no_place_are_requested_again() {
    let (mut pml, id) = waiting(Protocol::Fragments);
    feed(&mut pml, &[told(RNDV, 0, 0, 1, &[60_000, THEIRS, 0, 0])]);
    let rail = pml.rail_mut(RailId(0)).unwrap();
    rail.keep = true;
    rail.sent.clear();
    // Every second byte, until there are too many holes.
    for at in 0..5_000u64 {
        let mut piece = vec![6, 0, 0, 0, 0, 0, 0, 0];
        piece.extend(id.to_bits().to_le_bytes());
        piece.extend((2 * at + 1).to_le_bytes());
        piece.push(1);
        feed(&mut pml, &[piece]);
    }
    const ERROR: u8 = 13;
    let sent = &pml.rail_mut(RailId(0)).unwrap().sent;
    assert!(sent.iter().any(|word| word[0] == ERROR));
    assert!(!pml.is_done(id));
}
