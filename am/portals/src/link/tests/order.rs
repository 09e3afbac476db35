//! Order and exactly once, on one rail; the peer that is this process; hostile heads.

use std::time::Duration;

use doorbell_fabric::memory::ConstLoan;
use doorbell_fabric::message::{Access, Body, Exposure, Message, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{SimConfig, SimNet, SimRail};

use super::world::{self, Heard, Plan, first, head};
use crate::link::in_flight::{AHEAD_MOST, WINDOW};
use crate::link::{Link, LinkStats, PeerId, RailId};

#[test]
fn one_rail_that_mixes_everything_up_is_put_in_order() {
    for seed in 0..20 {
        let config = world::rough();
        let net = SimNet::new(seed, config);
        let planes = world::planes(&net, 1);
        let plan = Plan {
            ranks: 3,
            ..Plan::default()
        };
        let mut job = world::job(&net, &planes, &plan);
        world::run(&net, &mut job, &plan);
        let stats = *job.ranks()[0].link.stats();
        assert!(stats.held > 0, "{stats:?}");
        let clean = LinkStats {
            held: 0,
            refused: 0,
            waited: 0,
            ..stats
        };
        assert_eq!(clean, LinkStats::default(), "seed {seed}");
    }
}

#[test]
fn numbers_wrap() {
    let config = world::rough();
    let net = SimNet::new(1, config);
    let planes = world::planes(&net, 2);
    let plan = Plan {
        start: u32::MAX - 300,
        ..Plan::default()
    };
    let mut job = world::job(&net, &planes, &plan);
    world::run(&net, &mut job, &plan);
}

#[test]
fn a_peer_that_is_never_connected_refuses_and_nothing_panics() {
    let net = SimNet::new(1, SimConfig::default());
    let planes = world::planes(&net, 1);
    let mut job = world::job(&net, &planes, &Plan::default());
    let link = &mut job.ranks_mut()[0].link;
    let stranger = link.add_peer();
    for peer in [stranger, PeerId(77)] {
        assert_eq!(
            link.send(peer, &mut head(1, 0), Body::Empty, true),
            Err(Refused::PeerDown)
        );
        let nothing = Exposure::Read(ConstLoan::EMPTY);
        assert!(!link.room(peer) && link.expose(peer, nothing, Access::Read).is_none());
    }
    assert_eq!(
        link.send(PeerId(1), &mut [1; 7], Body::Empty, false),
        Err(Refused::TooLong)
    );
    assert_eq!(
        link.send(PeerId(1), &mut [1; 65], Body::Empty, false),
        Err(Refused::TooLong)
    );
    let long = vec![0; link.sizes(PeerId(1)).message];
    assert_eq!(
        link.send(PeerId(1), &mut head(1, 0), Body::Bytes(&long), true),
        Err(Refused::TooLong)
    );
}

/// The far end is a bare rail, which sends what it likes.
#[test]
fn hostile_heads_are_dropped_and_counted_and_honest_ones_still_arrive() {
    let net = SimNet::new(1, SimConfig::default());
    let planes = world::planes(&net, 1);
    let plan = Plan::default();
    let mut job = world::job(&net, &planes, &plan);
    let process = &mut job.ranks_mut()[0];
    let (link, heard) = (&mut process.link, &mut process.heard);
    let mut bad = net.attach_rank(9, planes[0]);
    let rail = link.rail(RailId(0)).expect("there is one");
    let to = bad
        .open(&rail.address(), rail.incarnation())
        .expect("it is there");
    let peer = link.add_peer();
    link.connect(peer, RailId(0), &bad.address(), bad.incarnation())
        .expect("it is there");
    let word = |kind: u8, short: u16, seq: u32| {
        let mut word = first(kind, short);
        word.seq = seq.into();
        let word: [u8; 8] = zerocopy::transmute!(word);
        word
    };
    let mut send = |bytes: &[u8], link: &mut Link<SimRail>, heard: &mut Heard| {
        while bad.send(to, bytes, Body::Empty) == Err(Refused::Full) {
            net.advance_to(net.now() + Duration::from_micros(50));
            link.poll(64, heard);
        }
        bad.flush();
        net.advance_to(net.now() + Duration::from_micros(50));
        link.poll(64, heard);
    };
    // Too short; paths that are not there; kinds that mean nothing; far ahead; behind; ahead, and the same
    // again.
    for length in 0..8 {
        send(&word(1, 0, 0)[..length], link, heard);
    }
    for kind in 0x80..=0xff_u8 {
        send(&word(kind, 1 + u16::from(kind), 3), link, heard);
    }
    send(&word(0x83, 0, 3), link, heard);
    for seq in [AHEAD_MOST + 1, (1 << 31) - 1] {
        send(&word(1, 0, seq), link, heard);
    }
    for seq in [u32::MAX, 1 << 31] {
        send(&word(1, 0, seq), link, heard);
    }
    send(&word(1, 0, AHEAD_MOST), link, heard);
    send(&word(1, 0, AHEAD_MOST), link, heard);
    let stats = link.stats();
    assert_eq!(
        (
            stats.short,
            stats.bad_words,
            stats.too_far_ahead,
            stats.duplicates,
            stats.held
        ),
        (8, 128 + 1, 2, 3, 1)
    );
    // Long ones ahead fill the window and no more.
    let mut long = vec![0; 16_000];
    for seq in 1..1000_u32 {
        long[..8].copy_from_slice(&word(1, 0, seq));
        let (head, body) = long.split_at(16);
        while bad.send(to, head, Body::Bytes(body)) == Err(Refused::Full) {
            bad.flush();
            net.advance_to(net.now() + Duration::from_micros(500));
            link.poll(64, heard);
        }
    }
    bad.flush();
    net.advance_to(net.now() + Duration::from_millis(5));
    while link.poll(64, heard) > 0 {
        net.advance_to(net.now() + Duration::from_millis(5));
    }
    let held: u64 = link.core.peers[peer.index()].held_charge;
    assert!(held <= WINDOW && link.stats().too_far_ahead > 100);
    assert!(heard.from.iter().all(|count| *count == 0));
    // The others exchange messages as before.
    world::run(&net, &mut job, &plan);
}

#[test]
fn what_is_sent_to_this_process_itself_is_shown_by_polls_in_order_and_bounded() {
    let net = SimNet::new(1, SimConfig::default());
    let mut plan = Plan {
        ranks: 1,
        ..Plan::default()
    };
    plan.config.backlog = 50_000;
    let mut job = world::job(&net, &world::planes(&net, 1), &plan);
    let process = &mut job.ranks_mut()[0];
    while process.send(PeerId::SELF, &plan) {}
    let sent = process.sent[0];
    assert!(sent > 10 && !process.link.room(PeerId::SELF) | (process.link.core.own_bytes > 30_000));
    assert!(process.link.must_poll());
    assert_eq!(process.link.poll(3, &mut process.heard), 3);
    while process.link.poll(64, &mut process.heard) > 0 {}
    assert_eq!(process.heard.from[0], sent);
    assert!(process.send(PeerId::SELF, &plan) && process.link.core.own_bytes < 20_000);
}
