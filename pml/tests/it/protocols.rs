//! Each protocol in turn, in both directions of layout, and each fallback.

use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_fabric::message::Message;
use doorbell_pml::{Payload, PmlError, Protocol, Rank, Sent, Source, Strided, Target};
use doorbell_sim::SimConfig;

use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, send_args, sim};
use crate::wrap::{Forger, Withdrawer};

const LONG: usize = 100_000;

fn transfer<M: Message>(world: &mut World<M>, length: usize) {
    for posted_first in [true, false] {
        let (from, into) = (filled(length, 3), empty(length));
        let mut request = posted_first.then(|| world.recv(1, Rank(0), 5, &into));
        let sent = world.send(0, 1, 5, &from);
        if !posted_first {
            world.passes(20);
        }
        let request = request.take().unwrap_or_else(|| world.recv(1, Rank(0), 5, &into));
        let status = world.wait(1, request).unwrap();
        assert_eq!(
            (status.source, status.tag, status.length),
            (Rank(0), 5, length as u64)
        );
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(length, 3));
    }
    world.passes(50);
    assert_eq!(world.pmls[0].live_requests() + world.pmls[1].live_requests(), 0);
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
}

fn forced(protocol: Protocol, sim: SimConfig) -> World {
    World::new(2, sim, |config| config.protocol = protocol)
}

#[test]
fn eager_sizes_zero_to_the_limit() {
    let mut world = World::new(2, sim(true, true, true), |_| ());
    for length in [0, 1, 7, 8, 63, 64, 65, 1000, 4080] {
        transfer(&mut world, length);
    }
    assert_eq!(
        world.pmls[0].counters().sent_rndv + world.pmls[0].counters().sent_rget,
        0
    );
}

#[test]
fn get_carries_long_messages() {
    let mut world = forced(Protocol::Auto, sim(true, true, true));
    transfer(&mut world, LONG);
    let counters = world.pmls[0].counters();
    assert_eq!(
        (counters.sent_rget, counters.frags_sent, counters.puts),
        (2, 0, 0)
    );
    assert_eq!(world.pmls[1].counters().gets, 2);
}

#[test]
fn put_carries_long_messages() {
    for config in [sim(false, true, true), sim(true, true, true)] {
        let mut world = forced(Protocol::Put, config);
        transfer(&mut world, LONG);
        let counters = world.pmls[0].counters();
        assert_eq!(
            (counters.sent_rndv, counters.frags_sent, counters.puts),
            (2, 0, 2)
        );
    }
}

#[test]
fn fragments_carry_long_messages() {
    for (protocol, config) in [
        (Protocol::Fragments, sim(true, true, true)),
        (Protocol::Get, sim(false, true, true)),
        (Protocol::Auto, sim(false, false, false)),
    ] {
        let mut world = forced(protocol, config);
        transfer(&mut world, LONG);
        let counters = world.pmls[0].counters();
        assert_eq!((counters.sent_rndv, counters.puts), (2, 0));
        assert_eq!(counters.frags_sent, world.pmls[1].counters().frags_received);
        assert!(counters.frags_sent > 10);
    }
}

#[test]
fn one_sided_transfers_longer_than_one_operation_go_in_several() {
    for (protocol, get) in [(Protocol::Get, true), (Protocol::Put, false)] {
        let mut config = sim(get, true, true);
        config.capabilities.limits.one_sided = 30_000;
        let mut world = forced(protocol, config);
        transfer(&mut world, LONG);
        let operations = world.pmls[1].counters().gets + world.pmls[0].counters().puts;
        assert_eq!(operations, 8);
        assert_eq!(world.pmls[0].counters().frags_sent, 0);
    }
}

/// Peers are sent a key that does not exist: what a revoked or evicted one looks like to them.
fn forged(protocol: Protocol, sim: SimConfig) -> World<Forger> {
    World::wrapped(2, 1, 7, sim, Forger, |config| config.protocol = protocol)
}

#[test]
fn get_falls_back_to_fragments_when_it_is_denied() {
    let mut world = forged(Protocol::Get, sim(true, true, true));
    transfer(&mut world, LONG);
    let counters = world.pmls[1].counters();
    assert_eq!((counters.gets, counters.fallbacks), (2, 2));
    assert!(world.pmls[0].counters().frags_sent > 0);
}

#[test]
fn put_falls_back_to_fragments_when_it_is_denied() {
    let mut world = forged(Protocol::Put, sim(true, true, true));
    transfer(&mut world, LONG);
    let counters = world.pmls[0].counters();
    assert_eq!((counters.puts, counters.fallbacks), (2, 2));
    assert!(world.pmls[1].counters().frags_received > 0);
}

#[test]
fn get_falls_back_when_the_memory_is_withdrawn_under_way() {
    let mut world = World::wrapped(2, 1, 7, sim(true, true, true), Withdrawer, |_| ());
    transfer(&mut world, LONG);
    assert_eq!(world.pmls[1].counters().fallbacks, 2);
}

#[test]
fn put_falls_back_to_fragments_when_the_room_cannot_be_exposed() {
    let mut config = sim(false, true, true);
    config.keys = 0;
    let mut world = forced(Protocol::Put, config);
    transfer(&mut world, LONG);
    assert_eq!(world.pmls[1].counters().fallbacks, 2);
}

#[test]
fn get_falls_back_when_memory_cannot_be_exposed() {
    let mut config = sim(true, false, true);
    config.keys = 0;
    let mut world = forced(Protocol::Get, config);
    transfer(&mut world, LONG);
    assert_eq!(world.pmls[0].counters().sent_rndv, 2);
}

#[test]
fn synchronous_send_completes_only_after_the_match() {
    for length in [0, 8, 4000, LONG] {
        let mut world = World::new(2, sim(true, true, true), |_| ());
        let (from, into) = (filled(length, 1), empty(length));
        let Sent::Pending(send) = world.ssend(0, 1, 5, &from) else {
            panic!("a synchronous send has a request");
        };
        world.passes(200);
        assert!(!world.pmls[0].is_done(send), "{length}");
        let request = world.recv(1, Rank(0), 5, &into);
        world.wait(1, request).unwrap();
        world.wait(0, send).unwrap();
        assert_eq!(bytes(&into), pattern(length, 1));
    }
}

/// A region seen as blocks with gaps, and what those blocks hold.
fn blocks(region: &Memory, block: usize, stride: usize) -> (Strided<ConstLoan>, Vec<u8>) {
    let count = (region.len() - block) / stride + 1;
    let all = bytes(region);
    let data = (0..count)
        .flat_map(|at| all[at * stride..at * stride + block].to_vec())
        .collect();
    let base = region.loan();
    (
        Strided {
            base,
            block,
            stride,
            count,
        },
        data,
    )
}

fn room_of(strided: &Strided<ConstLoan>, region: &Memory) -> Strided<MutLoan> {
    Strided {
        base: region.room(),
        block: strided.block,
        stride: strided.stride,
        count: strided.count,
    }
}

/// Cuts a region into pieces of growing length.
fn pieces(length: usize, count: usize) -> Vec<(usize, usize)> {
    let mut at = 0;
    let mut list = Vec::new();
    for step in 1..=count {
        let part = if step == count {
            length - at
        } else {
            (length - at) / (count - step + 1) / 2
        };
        list.push((at, part));
        at += part;
    }
    list
}

#[test]
fn iovec_and_strided_in_both_directions() {
    for (config, protocol) in [
        (sim(false, false, true), Protocol::Auto),
        (sim(false, false, false), Protocol::Auto),
        (sim(true, true, true), Protocol::Get),
        (sim(true, true, true), Protocol::Put),
    ] {
        let mut world = forced(protocol, config);
        for length in [24, 3000, 60_000] {
            let from = filled(length, 9);
            let (strided, data) = blocks(&from, 12, 17);
            let parts: Vec<ConstLoan> = pieces(length, 7)
                .iter()
                .map(|(at, part)| from.loan().part(*at, *part))
                .collect();
            // strided to one piece
            let into = empty(data.len());
            let sent = world.pmls[0]
                .send(send_args(1, 1, Payload::Strided(strided)))
                .unwrap();
            let request = world.recv(1, Rank(0), 1, &into);
            world.wait(1, request).unwrap();
            world.wait_sent(0, sent).unwrap();
            assert_eq!(bytes(&into), data);
            // one piece to strided
            let packed = empty(data.len());
            packed.write(0, &data);
            let spread = empty(length);
            let target = Target::Strided(room_of(&strided, &spread));
            let request = world.pmls[1].recv(recv_args(Rank(0), 2, target)).unwrap();
            let sent = world.send(0, 1, 2, &packed);
            assert_eq!(world.wait(1, request).unwrap().length, data.len() as u64);
            world.wait_sent(0, sent).unwrap();
            assert_eq!(blocks(&spread, 12, 17).1, data);
            // pieces to pieces, cut elsewhere
            let apart = empty(length);
            let rooms: Vec<MutLoan> = pieces(length, 4)
                .iter()
                .map(|(at, part)| apart.room().part(*at, *part))
                .collect();
            let request = world.pmls[1]
                .recv(recv_args(Source::Any, 3, Target::Parts(rooms.into())))
                .unwrap();
            let sent = world.pmls[0]
                .send(send_args(1, 3, Payload::Parts(parts.into())))
                .unwrap();
            world.wait(1, request).unwrap();
            world.wait_sent(0, sent).unwrap();
            assert_eq!(bytes(&apart), pattern(length, 9));
        }
    }
}

#[test]
fn a_rail_that_gathers_costs_no_copy_of_ours() {
    for (gather, packed) in [(true, 0), (false, 3000 + 30_000)] {
        let mut world = forced(Protocol::Auto, sim(false, false, gather));
        for length in [3000, 30_000] {
            let (from, into) = (filled(length, 2), empty(length));
            let parts: Vec<ConstLoan> = (0..3)
                .map(|at| from.loan().part(at * length / 3, length / 3))
                .collect();
            let request = world.recv(1, Rank(0), 1, &into);
            let sent = world.pmls[0]
                .send(send_args(1, 1, Payload::Parts(parts.into())))
                .unwrap();
            world.wait(1, request).unwrap();
            world.wait_sent(0, sent).unwrap();
            assert_eq!(bytes(&into), pattern(length, 2));
        }
        assert_eq!(world.pmls[0].counters().packed_bytes, packed);
    }
}

#[test]
fn truncation_is_reported_with_the_full_length_by_every_protocol() {
    for (protocol, length, room) in [
        (Protocol::Auto, 100, 40),
        (Protocol::Auto, 100, 0),
        (Protocol::Get, LONG, 70_000),
        (Protocol::Get, LONG, 0),
        (Protocol::Put, LONG, 70_000),
        (Protocol::Put, LONG, 0),
        (Protocol::Fragments, LONG, 70_000),
        (Protocol::Fragments, LONG, 100),
        (Protocol::Fragments, LONG, 0),
    ] {
        for posted_first in [true, false] {
            let mut world = forced(protocol, sim(true, true, true));
            let (from, into) = (filled(length, 4), empty(room));
            let mut request = posted_first.then(|| world.recv(1, Rank(0), 9, &into));
            let sent = world.send(0, 1, 9, &from);
            if !posted_first {
                world.passes(20);
            }
            let request = request.take().unwrap_or_else(|| world.recv(1, Rank(0), 9, &into));
            match world.wait(1, request) {
                Err(PmlError::Truncated {
                    source_rank,
                    tag,
                    length: full,
                    room: fitted,
                    ..
                }) => {
                    assert_eq!((source_rank, tag), (Rank(0), 9));
                    assert_eq!((full, fitted), (length as u64, room as u64), "{protocol:?}");
                }
                other => panic!("{protocol:?} {room}: {other:?}"),
            }
            world.wait_sent(0, sent).unwrap();
            assert_eq!(bytes(&into), pattern(length, 4)[..room]);
            world.passes(50);
            assert_eq!(world.pmls[0].live_requests() + world.pmls[1].live_requests(), 0);
        }
    }
}

#[test]
fn rails_out_of_order_keep_the_order_of_messages() {
    let mut config = sim(false, false, true);
    config.faults.reorder = 0.4;
    let mut world = World::new(2, config, |_| ());
    let mut requests = Vec::new();
    let memory: Vec<Memory> = (0..300).map(|_| empty(6000)).collect();
    for into in &memory {
        requests.push(world.recv(1, Rank(0), 1, into));
    }
    let mut sends = Vec::new();
    let payloads: Vec<Memory> = (0..300)
        .map(|at| filled(if at % 7 == 0 { 6000 } else { 8 + at }, at as u64))
        .collect();
    for from in &payloads {
        sends.push(world.send(0, 1, 1, from));
    }
    for (at, request) in requests.into_iter().enumerate() {
        let status = world.wait(1, request).unwrap();
        assert_eq!(status.length as usize, payloads[at].len());
        assert_eq!(bytes(&memory[at])[..payloads[at].len()], bytes(&payloads[at]));
    }
    for sent in sends {
        world.wait_sent(0, sent).unwrap();
    }
    assert!(
        world.pmls[1].counters().held > 20,
        "{:?}",
        world.pmls[1].counters()
    );
}

#[test]
fn long_messages_in_both_directions_at_once() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut world = forced(protocol, sim(true, true, true));
        let from = [filled(LONG, 1), filled(LONG, 2)];
        let into = [empty(LONG), empty(LONG)];
        let sends = [world.send(0, 1, 1, &from[0]), world.send(1, 0, 1, &from[1])];
        let receives = [
            world.recv(0, Rank(1), 1, &into[0]),
            world.recv(1, Rank(0), 1, &into[1]),
        ];
        for rank in 0..2 {
            world.wait(rank, receives[rank]).unwrap();
            world.wait_sent(rank, sends[rank]).unwrap();
            assert_eq!(bytes(&into[rank]), pattern(LONG, 2 - rank as u64));
        }
    }
}
