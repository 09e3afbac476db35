//! A peer that operates on windows as it likes: what is wrong is answered so and counted, answers act once
//! and for their own request, and what a peer can make us hold has an end.

use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_pml::{
    GetArgs, LostReason, OperationError, Pml, PmlError, RailId, Rank, RemotePiece, RequestId, Target,
    WindowAccess, WindowArgs, WindowMemory,
};

use crate::feed::FeedRail;
use crate::hostile::{feed, told, victim};
use crate::world::{Memory, bytes, empty, filled, pattern};

const MATCH: u8 = 1;
const RNDV: u8 = 2;
const ACK: u8 = 4;
const NACK: u8 = 5;
const ANSWER: u8 = 19;
const OPERATION: u8 = 0x80;
const REPLY: u8 = 0x40;
const AGAIN: u8 = 0x20;
const THEIRS: u64 = 0x77;

/// A victim with a window of 100 bytes, key 1.
fn windowed() -> (Pml<FeedRail>, Memory) {
    let (mut pml, memory) = (victim(), filled(100, 1));
    let window = WindowArgs {
        key: 1,
        base: 0,
        memory: WindowMemory::Loans(vec![memory.room()]),
        access: WindowAccess::ALL,
    };
    pml.open_window(window).unwrap();
    pml.rail_mut(RailId(0)).unwrap().keep = true;
    (pml, memory)
}

/// An operation on one piece, as words.
fn words(head: [u8; 8], address: u64, length: u64) -> Vec<u64> {
    vec![u64::from_le_bytes(head), 1, address, length]
}

fn answers(pml: &mut Pml<FeedRail>) -> Vec<(u8, u64)> {
    let sent = std::mem::take(&mut pml.rail_mut(RailId(0)).unwrap().sent);
    let answers = sent.iter().filter(|frame| frame[0] == ANSWER);
    answers
        .map(|frame| (frame[1], u64::from_le_bytes(frame[8..16].try_into().unwrap())))
        .collect()
}

#[test]
fn operations_that_cannot_be_are_answered_and_touch_nothing() {
    let (mut pml, memory) = windowed();
    let put = |length| words([1, 0, 0, 0, 1, 0, 0, 0], 0, length);
    let with = |mut words: Vec<u64>, more: &[u64]| {
        words.extend(more);
        words
    };
    let wrong = [
        (vec![], 5),
        (words([0, 0, 0, 0, 1, 0, 0, 0], 0, 8), 5),
        (words([9, 0, 0, 0, 1, 0, 0, 0], 0, 8), 5),
        (words([1, 0, 0, 0, 5, 0, 0, 0], 0, 8), 5),
        (words([1, 0, 0, 0, 2, 0, 0, 0], 0, 8), 5),
        (words([1, 0, 0, 0, 0, 0, 0, 0], 0, 8), 3),
        (words([1, 2, 0, 0, 1, 0, 0, 0], 0, 8), 5),
        // Fewer bytes than it names, and more.
        (with(put(16), &[1]), 5),
        (with(put(8), &[1, 2]), 5),
        (with(put(101), &[1]), 3),
        (with(put(u64::MAX), &[1]), 3),
        // No such operation, no such type, not on that type, halves of elements, no operands, too many bytes.
        (with(words([3, 0, 19, 8, 1, 0, 0, 0], 0, 8), &[1]), 5),
        (with(words([3, 0, 2, 16, 1, 0, 0, 0], 0, 8), &[1]), 5),
        (with(words([3, 0, 6, 9, 1, 0, 0, 0], 0, 8), &[1]), 5),
        (with(words([3, 0, 2, 13, 1, 0, 0, 0], 0, 8), &[1]), 5),
        (words([4, 0, 2, 8, 1, 0, 0, 0], 0, 8), 5),
        (with(words([4, 0, 11, 8, 1, 0, 0, 0], 0, 8), &[1]), 5),
        (words([3, 0, 18, 8, 1, 0, 0, 0], 0, 8), 5),
    ];
    let count = wrong.len() as u64;
    for (at, (words, status)) in wrong.iter().enumerate() {
        feed(&mut pml, &[told(MATCH, OPERATION, at as u32, THEIRS, words)]);
        assert_eq!(answers(&mut pml), [(*status, THEIRS)], "{at}: {words:x?}");
    }
    assert_eq!(
        (bytes(&memory), pml.counters().operations_refused),
        (pattern(100, 1), count)
    );
    // One that can be is done.
    let right = with(words([1, 0, 0, 0, 1, 0, 0, 0], 92, 8), &[0]);
    feed(&mut pml, &[told(MATCH, OPERATION, count as u32, THEIRS, &right)]);
    assert_eq!(answers(&mut pml), [(0, THEIRS)]);
    assert_eq!(bytes(&memory)[92..], [0; 8]);
}

#[test]
fn announced_operations_that_cannot_be_are_given_back() {
    let (mut pml, memory) = windowed();
    let announced = |length: u64, lead: &[u64]| {
        let mut all = vec![length, THEIRS, 0, 0];
        all.extend(lead);
        all
    };
    let put = words([1, 0, 0, 0, 1, 0, 0, 0], 0, 101);
    let get = words([2, 0, 0, 0, 1, 0, 0, 0], 0, 50);
    let cases = [
        (OPERATION, announced(101, &put)),
        (OPERATION, announced(50, &get)),
        (OPERATION, announced(50, &[])),
        (OPERATION | AGAIN, announced(1 << 40, &[])),
    ];
    for (at, (flags, words)) in cases.iter().enumerate() {
        feed(&mut pml, &[told(RNDV, *flags, at as u32, 5, words)]);
        let sent = &pml.rail_mut(RailId(0)).unwrap().sent;
        assert!(sent.iter().any(|frame| frame[0] == NACK), "{at}");
        assert_eq!(answers(&mut pml).len(), 1, "{at}");
    }
    let before = pml.counters().drops.bad_range;
    let long = announced(50, &[0; 15]);
    feed(&mut pml, &[told(RNDV, OPERATION, 4, 5, &long)]);
    assert_eq!(
        pml.counters().drops.bad_range,
        before + 1,
        "a lead that is longer than one can be"
    );
    assert_eq!((pml.live_requests(), bytes(&memory)), (0, pattern(100, 1)));
}

fn get(pml: &mut Pml<FeedRail>, room: &Memory) -> RequestId {
    let at = RemotePiece {
        key: 1,
        address: 0,
        length: room.len() as u64,
    };
    let args = GetArgs {
        from: Rank(1),
        context: 0,
        at: at.into(),
        target: Target::Loan(room.room()),
        notify: false,
    };
    pml.get(args).unwrap()
}

fn answer(status: u8, length: u8, id: u64) -> Vec<u8> {
    let mut frame = vec![ANSWER, status, length, 0, 0, 0, 0, 0];
    frame.extend(id.to_le_bytes());
    frame.extend([0xab; 8]);
    frame
}

#[test]
fn answers_act_once_and_for_their_own_request() {
    let (mut pml, _) = windowed();
    let room = empty(8);
    let id = get(&mut pml, &room);
    let drops = |pml: &mut Pml<FeedRail>, peer: u32, frame: Vec<u8>| {
        let before = *pml.counters();
        let rail = pml.rail_mut(RailId(0)).unwrap();
        rail.frames.push_back((PeerIndex(peer), frame));
        pml.poll();
        assert_eq!(pml.counters().drops.total(), before.drops.total() + 1);
        assert!(!pml.is_done(id) && bytes(&room) == [0; 8]);
    };
    drops(&mut pml, 1, answer(0, 8, id.to_bits()));
    drops(&mut pml, 0, answer(0, 8, id.to_bits() + (1 << 32)));
    drops(&mut pml, 0, answer(0, 7, id.to_bits()));
    drops(&mut pml, 0, answer(0, 9, id.to_bits()));
    drops(&mut pml, 0, answer(8, 0, id.to_bits()));
    drops(&mut pml, 0, answer(0, 8, id.to_bits())[..23].to_vec());
    let mut reply = told(MATCH, REPLY, 0, id.to_bits(), &[]);
    reply.extend([0xcd; 9]);
    drops(&mut pml, 0, reply);
    feed(&mut pml, &[answer(0, 8, id.to_bits())]);
    pml.test(id).unwrap().unwrap();
    assert_eq!(bytes(&room), [0xab; 8]);
    let before = pml.counters().drops.stale_request;
    feed(&mut pml, &[answer(2, 8, id.to_bits())]);
    assert_eq!(pml.counters().drops.stale_request, before + 1);
    let id = get(&mut pml, &room);
    feed(&mut pml, &[answer(2, 0, id.to_bits())]);
    let Some(Err(PmlError::Operation { reason, .. })) = pml.test(id) else {
        panic!("it is refused");
    };
    assert_eq!(reason, OperationError::Access);
}

#[test]
fn a_get_that_has_not_left_has_no_answer() {
    let (mut pml, _) = windowed();
    pml.rail_mut(RailId(0)).unwrap().full = true;
    let room = empty(8);
    let id = get(&mut pml, &room);
    let mut reply = told(MATCH, REPLY, 0, id.to_bits(), &[]);
    reply.extend([0xcd; 8]);
    let forged = [answer(0, 8, id.to_bits()), answer(6, 0, id.to_bits()), reply];
    for frame in forged {
        let before = pml.counters().drops.total();
        feed(&mut pml, &[frame]);
        assert_eq!(pml.counters().drops.total(), before + 1);
        assert!(!pml.is_done(id) && bytes(&room) == [0; 8]);
    }
    pml.rail_mut(RailId(0)).unwrap().full = false;
    pml.poll();
    feed(&mut pml, &[answer(0, 8, id.to_bits())]);
    pml.test(id).unwrap().unwrap();
    assert_eq!(bytes(&room), [0xab; 8]);
}

#[test]
fn a_reply_that_nobody_waits_for_is_given_back() {
    let (mut pml, _) = windowed();
    feed(
        &mut pml,
        &[told(RNDV, REPLY, 0, 1 << 40, &[100_000, THEIRS, 0, 0])],
    );
    let sent = &pml.rail_mut(RailId(0)).unwrap().sent;
    let ack = sent
        .iter()
        .find(|frame| frame[0] == ACK)
        .expect("its sender is answered");
    let word = |at: usize| u64::from_le_bytes(ack[at..at + 8].try_into().unwrap());
    assert_eq!(
        (word(16), word(32), word(40)),
        (THEIRS, 100_000, 100_000),
        "nothing is wanted"
    );
    assert_eq!(pml.live_requests(), 0);
}

/// A peer that takes nothing and goes on operating.
fn flood(frame: impl Fn(u32) -> Vec<u8>) {
    let (mut pml, _) = windowed();
    let rail = pml.rail_mut(RailId(0)).unwrap();
    (rail.full, rail.keep) = (true, false);
    let most = 400_000;
    let mut held = 0;
    for number in 0..most {
        let rail = pml.rail_mut(RailId(0)).unwrap();
        rail.frames.push_back((PeerIndex(0), frame(number)));
        pml.poll();
        pml.progress(Time::ZERO);
        held = held.max(pml.in_use().bytes);
        if pml.lost(Rank(1)) == Some(LostReason::Flood) {
            assert!(
                number < 20_000 && held < 1 << 20,
                "{number} operations, {held} bytes"
            );
            assert_eq!((pml.live_requests(), pml.in_use().bytes), (0, 0));
            return;
        }
    }
    panic!("{most} operations of a peer that takes no answer");
}

#[test]
fn a_peer_that_takes_no_answers_is_cut_off() {
    let put = words([1, 0, 0, 0, 1, 0, 0, 0], 0, 0);
    flood(|seq| told(MATCH, OPERATION, seq, THEIRS, &put));
    let get = words([2, 0, 0, 0, 1, 0, 0, 0], 0, 100);
    flood(|seq| told(MATCH, OPERATION, seq, THEIRS, &get));
    let unknown = words([2, 0, 0, 0, 1, 0, 0, 0], 0, 1 << 50);
    flood(|seq| told(MATCH, OPERATION, seq, THEIRS, &unknown));
    let mut notified = words([1, 3, 0, 0, 1, 0, 0, 0], 0, 0);
    notified.push(9);
    flood(|seq| told(MATCH, OPERATION, seq, THEIRS, &notified));
}

#[test]
fn a_peer_that_announces_and_sends_nothing_is_cut_off() {
    let mut long = vec![100, THEIRS, 0, 0];
    long.extend(words([1, 0, 0, 0, 1, 0, 0, 0], 0, 100));
    flood(|seq| told(RNDV, OPERATION, seq, u64::from(seq), &long));
    flood(|seq| {
        told(
            RNDV,
            OPERATION | AGAIN,
            seq,
            u64::from(seq),
            &[4000, THEIRS, 0, 0],
        )
    });
}
