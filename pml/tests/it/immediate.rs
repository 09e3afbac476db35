//! Immediate data: what holds at a message's turn is what it brings, whatever the rails do.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Features;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_pml::{MultiArgs, Pml, PmlConfig, PmlError, RailId, Rank, Source, Target};
use doorbell_sim::Change;
use doorbell_testing::Random;

use crate::feed::FeedRail;
use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, sim};

const NO_FEATURES: Features = Features {
    get: false,
    put: false,
    atomics: false,
    gather: false,
    reclaim: true,
    within_host: false,
    checksum: false,
    port: 0,
};

fn pair() -> World {
    World::new(2, sim(true, true, true), |_| ())
}

fn set(world: &mut World, data: Option<u64>) {
    world.pmls[0].set_immediate(Rank(1), data).unwrap();
}

#[test]
fn a_message_brings_the_data_that_were_set_before_it() {
    let mut world = pair();
    let into = empty(100_000);
    // Short ones, one of a rendezvous, a synchronous one: expected, and kept.
    for (length, expected) in [(8, true), (8, false), (100_000, true), (100_000, false)] {
        for data in [None, Some(7), Some(7), Some(0), Some(u64::MAX), None, Some(9)] {
            set(&mut world, data);
            let out = filled(length, 1);
            let early = expected.then(|| world.recv(1, Source::Any, 3, &into));
            let sent = world.send(0, 1, 3, &out);
            world.passes(20);
            let found = world.pmls[1].probe(Source::Any, 0, 3, 0);
            assert_eq!(found.map(|found| found.data), (!expected).then_some(data));
            let got = early.unwrap_or_else(|| world.recv(1, Source::Any, 3, &into));
            let status = world.wait(1, got).unwrap();
            assert_eq!((status.data, status.length), (data, length as u64));
            assert_eq!(bytes(&into)[..length], pattern(length, 1));
            world.wait_sent(0, sent).unwrap();
            let sent = world.ssend(0, 1, 4, &out);
            let got = world.recv(1, Rank(0), 4, &into);
            assert_eq!(world.wait(1, got).unwrap().data, data);
            world.wait_sent(0, sent).unwrap();
        }
    }
    // The other direction has none.
    let sent = world.send(1, 0, 3, &filled(8, 2));
    let got = world.recv(0, Source::Any, 3, &into);
    assert_eq!(world.wait(0, got).unwrap().data, None);
    world.wait_sent(1, sent).unwrap();
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
}

#[test]
fn a_message_of_a_multi_receive_brings_its_data() {
    let mut world = pair();
    let buffer = empty(100_000);
    let args = |buffer: &Memory| MultiArgs {
        from: Source::Any,
        context: 0,
        tag: 5,
        ignore: 0,
        target: Target::Region(buffer.whole()),
        min_free: 1,
        notify: false,
    };
    world.pmls[1].recv_multi(args(&buffer)).unwrap();
    for (length, data) in [(16, Some(3)), (60_000, Some(4)), (24, None), (16, Some(5))] {
        set(&mut world, data);
        let sent = world.send(0, 1, 5, &filled(length, 3));
        world.wait_sent(0, sent).unwrap();
    }
    let mut got = Vec::new();
    world.until("all four are there", |world| {
        got.extend(world.pmls[1].next_delivery());
        got.len() == 4
    });
    got.sort_by_key(|delivery| delivery.offset);
    let data: Vec<_> = got.iter().map(|delivery| delivery.status.data).collect();
    assert_eq!(data, [Some(3), Some(4), None, Some(5)]);
}

#[test]
fn a_claimed_message_keeps_its_data() {
    let mut world = pair();
    set(&mut world, Some(1));
    let _ = world.send(0, 1, 1, &filled(8, 1));
    set(&mut world, Some(2));
    let _ = world.send(0, 1, 2, &filled(8, 2));
    world.passes(20);
    let claimed = world.pmls[1].claim(Source::Any, 0, 1, 0).unwrap();
    assert_eq!(claimed.envelope.data, Some(1));
    let into = empty(8);
    let got = world.pmls[1]
        .recv_claimed(claimed.message, Target::Loan(into.room()), false)
        .unwrap();
    assert_eq!(world.wait(1, got).unwrap().data, Some(1));
    let claimed = world.pmls[1].claim(Source::Any, 0, 2, 0).unwrap();
    assert_eq!(world.pmls[1].discard(claimed.message).unwrap().data, Some(2));
}

#[test]
fn messages_to_ourselves_bring_data() {
    let mut world = pair();
    let into = empty(100_000);
    let me = Rank(0);
    for length in [8, 100_000] {
        for data in [Some(6), None, Some(7)] {
            world.pmls[0].set_immediate(me, data).unwrap();
            let out = filled(length, 1);
            let early = world.recv(0, me, 1, &into);
            let sent = world.send(0, 0, 1, &out);
            assert_eq!(world.wait(0, early).unwrap().data, data);
            world.wait_sent(0, sent).unwrap();
            let sent = world.send(0, 0, 1, &out);
            world.pmls[0].set_immediate(me, Some(99)).unwrap();
            let late = world.recv(0, me, 1, &into);
            assert_eq!(world.wait(0, late).unwrap().data, data, "of its turn");
            world.wait_sent(0, sent).unwrap();
        }
    }
}

#[test]
fn ranks_that_are_not_there_are_refused() {
    let mut world = pair();
    let refused = world.pmls[0].set_immediate(Rank(2), Some(1));
    assert!(matches!(refused, Err(PmlError::NoSuchRank { rank: 2, size: 2 })));
    world.net.change(Change::RankDeath(1));
    world.until("rank 1 is lost", |world| world.pmls[0].lost(Rank(1)).is_some());
    let lost = world.pmls[0].set_immediate(Rank(1), Some(1));
    assert!(matches!(lost, Err(PmlError::PeerLost { rank: Rank(1), .. })));
}

/// A PML whose frames are made by hand.
fn fed(configure: impl Fn(&mut PmlConfig)) -> Pml<FeedRail> {
    let mut config = PmlConfig::new(Rank(0), 2, 1);
    configure(&mut config);
    let mut pml = Pml::new(config).unwrap();
    let mut rail = FeedRail::new(NO_FEATURES);
    rail.keep = true;
    let id = pml.add_rail(rail).unwrap();
    pml.connect(Rank(1), id, &RailAddress::native("sim", [0]), Incarnation(1))
        .unwrap();
    pml
}

fn feed(pml: &mut Pml<FeedRail>, frame: &[u8]) {
    let rail = pml.rail_mut(RailId(0)).unwrap();
    rail.frames.push_back((PeerIndex(0), frame.to_vec()));
    while pml.poll() > 0 {}
}

/// A message of eight bytes, its tag its number.
fn message(seq: u8) -> Vec<u8> {
    let head = [1, 0, 0, 0, seq, 0, 0, 0, seq, 0, 0, 0, 0, 0, 0, 0];
    [&head[..], &[seq; 8]].concat()
}

fn word(seq: u8, data: Option<u8>) -> [u8; 16] {
    let flags = if data.is_some() { 0x04 } else { 0x0c };
    let data = data.unwrap_or(0);
    [1, flags, 0, 0, seq, 0, 0, 0, data, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn a_change_is_one_word_in_the_sequence_and_no_change_is_none() {
    let mut pml = fed(|_| ());
    for data in [None, Some(5), Some(5), None] {
        pml.set_immediate(Rank(1), data).unwrap();
        let out = filled(8, 1);
        let _ = pml.send_loan(Rank(1), 0, 9, out.loan()).unwrap();
    }
    let sent = &pml.rail(RailId(0)).unwrap().sent;
    let lengths: Vec<_> = sent.iter().map(Vec::len).collect();
    assert_eq!(lengths, [24, 16, 24, 24, 16, 24]);
    assert_eq!(
        (sent[1][..].to_vec(), sent[4][..].to_vec()),
        (word(1, Some(5)).to_vec(), word(4, None).to_vec())
    );
    for (seq, frame) in sent.iter().enumerate() {
        assert_eq!(usize::from(frame[4]), seq);
    }
}

#[test]
fn words_wait_in_order_where_the_rail_is_full() {
    let mut pml = fed(|_| ());
    let out = filled(8, 1);
    pml.rail_mut(RailId(0)).unwrap().full = true;
    pml.set_immediate(Rank(1), Some(1)).unwrap();
    pml.set_immediate(Rank(1), Some(2)).unwrap();
    pml.inject(Rank(1), 0, 9, &bytes(&out)).unwrap();
    pml.set_immediate(Rank(1), None).unwrap();
    pml.inject(Rank(1), 0, 9, &bytes(&out)).unwrap();
    assert_eq!(pml.rail(RailId(0)).unwrap().sent.len(), 0);
    pml.rail_mut(RailId(0)).unwrap().full = false;
    pml.poll();
    pml.inject(Rank(1), 0, 9, &bytes(&out)).unwrap();
    let sent = &pml.rail(RailId(0)).unwrap().sent;
    assert_eq!(
        sent[0],
        word(0, Some(2)),
        "the last of those that no message needed"
    );
    assert_eq!(sent[2], word(2, None));
    let lengths: Vec<_> = sent.iter().map(Vec::len).collect();
    assert_eq!(lengths, [16, 24, 16, 24, 24]);
}

#[test]
fn words_take_effect_at_their_turn_in_whatever_order_they_arrive() {
    // 0: data 7; 1, 2: messages; 3: data 9; 4: message; 5: no data; 6: message.
    let frames: [Vec<u8>; 7] = [
        word(0, Some(7)).to_vec(),
        message(1),
        message(2),
        word(3, Some(9)).to_vec(),
        message(4),
        word(5, None).to_vec(),
        message(6),
    ];
    let expected = [(1, Some(7)), (2, Some(7)), (4, Some(9)), (6, None)];
    let mut dice = Random::new(11);
    for round in 0..300 {
        let mut order: Vec<usize> = (0..frames.len()).chain(0..frames.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let mut pml = fed(|_| ());
        let into: Vec<Memory> = (0..4).map(|_| empty(8)).collect();
        // Some receives are posted before, the others after.
        let early = dice.below(5) as usize;
        let mut requests = Vec::new();
        let post = |pml: &mut Pml<FeedRail>, at: usize| {
            let from = [Source::Any, Source::Rank(Rank(1))][at % 2];
            pml.recv_loan(from, 0, expected[at].0, 0, into[at].room())
                .unwrap()
        };
        for at in 0..early {
            requests.push(post(&mut pml, at));
        }
        for at in order {
            feed(&mut pml, &frames[at]);
        }
        for at in early..4 {
            requests.push(post(&mut pml, at));
        }
        for (request, (tag, data)) in requests.into_iter().zip(expected) {
            let status = pml.test(request).expect("it is here").unwrap();
            assert_eq!((status.tag, status.data), (tag, data), "round {round}");
        }
        assert_eq!(pml.counters().drops.duplicate, 7);
        assert_eq!(pml.in_use(), doorbell_pml::InUse::default());
    }
}

#[test]
fn words_with_a_body_are_refused_and_words_count_against_the_window() {
    let mut pml = fed(|config| (config.window, config.hard_window) = (1024, 1024));
    feed(&mut pml, &[&word(0, Some(1))[..], &[0]].concat());
    assert_eq!(pml.counters().drops.bad_range, 1);
    // Sixteen words of 64 bytes fill the window.
    let out = filled(8, 1);
    for data in 0..20 {
        pml.set_immediate(Rank(1), Some(data)).unwrap();
    }
    pml.inject(Rank(1), 0, 9, &bytes(&out)).unwrap();
    assert_eq!(pml.rail(RailId(0)).unwrap().sent.len(), 16);
    let mut credit = [0; 16];
    (credit[0], credit[9]) = (14, 4); // 1024 bytes are consumed
    feed(&mut pml, &credit);
    let sent = &pml.rail(RailId(0)).unwrap().sent;
    assert_eq!((sent.len(), &sent[16][..]), (18, &word(16, Some(19))[..]));
    // Each of the other side's is consumed at its turn, and reported.
    for seq in 0..4 {
        feed(&mut pml, &word(seq, Some(seq)));
    }
    assert_eq!(pml.counters().credits_sent, 1);
}

/// Random lengths, data and protocols over two rails that reorder, one of which dies and comes back.
#[test]
fn data_are_right_when_rails_reorder_and_fail() {
    for seed in 0..20 {
        let mut dice = Random::new(seed);
        let mut config = sim(dice.below(2) == 0, dice.below(2) == 0, true);
        config.faults.reorder = 0.3;
        config.faults.reorder_window = std::time::Duration::from_micros(30);
        config.queue_depth = 4 + dice.below(20) as usize;
        let spread = dice.below(2) == 0;
        let mut world = World::with_planes(2, 2, seed, config, |pml| {
            pml.spread = spread;
            pml.window = 16 << 10;
            pml.hard_window = 32 << 10;
        });
        let mut expected = Vec::new();
        let mut sends = Vec::new();
        for number in 0..120_u64 {
            let data = [None, Some(0), Some(7), Some(number)][dice.below(4) as usize];
            set(&mut world, data);
            let length = [8, 100, 4000, 30_000][dice.below(4) as usize];
            let memory = filled(length, number);
            let sent = world.send(0, 1, number, &memory);
            sends.push((sent, memory));
            expected.push((length, data));
            if dice.below(3) == 0 {
                world.passes(dice.below(10) as usize);
            }
            match number {
                40 => world.net.change(Change::LinkDown(world.planes[0], 0)),
                80 => world.net.change(Change::LinkUp(world.planes[0], 0)),
                _ => {}
            }
            while expected.len() > 30 || number == 119 && !expected.is_empty() {
                let tag = number + 1 - expected.len() as u64;
                let (length, data) = expected.remove(0);
                let into = empty(length);
                let got = world.pmls[1]
                    .recv(recv_args(Rank(0), tag, Target::Loan(into.room())))
                    .unwrap();
                let status = world.wait(1, got).unwrap();
                assert_eq!(status.data, data, "seed {seed}, message {tag}");
                assert_eq!(bytes(&into), pattern(length, tag));
            }
        }
        for (sent, _) in sends {
            world.wait_sent(0, sent).unwrap();
        }
    }
}
