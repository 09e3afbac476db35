//! Endpoints of senders: named by bits of the context, matched with the source.

use doorbell_pml::{
    MultiArgs, Payload, PmlConfig, PmlError, Protocol, Rank, SendArgs, SendMode, Source, Target, Waiting,
};

use crate::world::{Memory, World, bytes, empty, filled, pattern, send_args, sim};

const SOURCES: u16 = 0x00ff;

fn endpoints(ranks: u32) -> World {
    World::new(ranks, sim(true, true, true), |config| config.sources = SOURCES)
}

/// The context of a message: its space, and the endpoints at its two ends.
fn context(space: u16, to: u16, from: u16) -> u16 {
    space << 15 | to << 8 | from
}

fn send(world: &mut World, rank: usize, context: u16, tag: u64, memory: &Memory) -> doorbell_pml::Sent {
    let to = Rank(1 - rank as u32);
    world.pmls[rank]
        .send_loan(to, context, tag, memory.loan())
        .unwrap()
}

fn recv(world: &mut World, from: Source, context: u16, into: &Memory) -> doorbell_pml::RequestId {
    world.pmls[1].recv_loan(from, context, 7, 0, into.room()).unwrap()
}

#[test]
fn a_receive_that_names_an_endpoint_takes_only_its_messages() {
    let mut world = endpoints(2);
    let rank = Rank(0);
    for length in [8, 100_000] {
        for posted_first in [true, false] {
            let into = [empty(length), empty(length), empty(length)];
            let froms = [
                Source::Endpoint(rank, 127),
                Source::Rank(rank),
                Source::Endpoint(rank, 3),
            ];
            let mut got = Vec::new();
            let mut sends = Vec::new();
            for turn in 0..2 {
                if posted_first == (turn == 0) {
                    for (from, into) in froms.into_iter().zip(&into) {
                        got.push(recv(&mut world, from, context(0, 5, 0), into));
                    }
                } else {
                    for endpoint in [3, 127, 0] {
                        let out = filled(length, endpoint.into());
                        let sent = send(&mut world, 0, context(0, 5, endpoint), 7, &out);
                        sends.push((sent, out));
                    }
                    world.passes(50);
                }
            }
            for ((request, into), endpoint) in got.into_iter().zip(&into).zip([127, 0, 3]) {
                let status = world.wait(1, request).unwrap();
                assert_eq!((status.source, status.endpoint), (rank, endpoint));
                assert_eq!(bytes(into), pattern(length, endpoint.into()));
            }
            for (sent, _) in sends {
                world.wait_sent(0, sent).unwrap();
            }
        }
    }
    assert_eq!((world.drops(0), world.drops(1)), (0, 0));
}

#[test]
fn any_source_takes_all_endpoints_in_the_order_of_their_rank() {
    let mut world = endpoints(2);
    let order: Vec<u16> = (0..40).map(|number| number * 31 % 128).collect();
    let mut early = Vec::new();
    for _ in 0..20 {
        let into = empty(8);
        early.push((recv(&mut world, Source::Any, context(0, 5, 0), &into), into));
    }
    for endpoint in &order {
        let out = filled(8, u64::from(*endpoint));
        let _ = send(&mut world, 0, context(0, 5, *endpoint), 7, &out);
    }
    world.passes(50);
    let found = world.pmls[1].probe(Source::Any, context(0, 5, 0), 7, 0).unwrap();
    assert_eq!((found.source, u16::from(found.endpoint)), (Rank(0), order[20]));
    let named = Source::Endpoint(Rank(0), order[30] as u8);
    let found = world.pmls[1].probe(named, context(0, 5, 0), 7, 0).unwrap();
    assert_eq!(u16::from(found.endpoint), order[30]);
    for _ in 20..40 {
        let into = empty(8);
        early.push((recv(&mut world, Source::Any, context(0, 5, 0), &into), into));
    }
    for ((request, into), endpoint) in early.into_iter().zip(order) {
        let status = world.wait(1, request).unwrap();
        assert_eq!(u16::from(status.endpoint), endpoint);
        assert_eq!(bytes(&into), pattern(8, u64::from(endpoint)));
    }
}

#[test]
fn spaces_and_destinations_stay_apart() {
    let mut world = endpoints(2);
    let into = [empty(8), empty(8), empty(8)];
    let contexts = [context(0, 5, 0), context(1, 5, 0), context(0, 6, 0)];
    let got: Vec<_> = contexts
        .iter()
        .zip(&into)
        .map(|(context, into)| recv(&mut world, Source::Any, *context, into))
        .collect();
    for (salt, at) in [
        (1, context(0, 6, 9)),
        (2, context(0, 5, 9)),
        (3, context(1, 5, 9)),
    ] {
        let _ = send(&mut world, 0, at, 7, &filled(8, salt));
    }
    for ((request, into), salt) in got.into_iter().zip(&into).zip([2, 3, 1]) {
        assert_eq!(world.wait(1, request).unwrap().endpoint, 9);
        assert_eq!(bytes(into), pattern(8, salt));
    }
}

#[test]
fn messages_to_ourselves_have_endpoints() {
    let mut world = endpoints(2);
    for length in [8, 100_000] {
        let into = empty(length);
        let me = Rank(0);
        let early = world.pmls[0]
            .recv_loan(Source::Endpoint(me, 4), context(0, 1, 0), 7, 0, into.room())
            .unwrap();
        let out = filled(length, 1);
        for endpoint in [3, 4] {
            let _ = world.pmls[0]
                .send_loan(me, context(0, 1, endpoint), 7, out.loan())
                .unwrap();
        }
        assert_eq!(world.wait(0, early).unwrap().endpoint, 4);
        let late = world.pmls[0]
            .recv_loan(Source::Any, context(0, 1, 0), 7, 0, into.room())
            .unwrap();
        assert_eq!(world.wait(0, late).unwrap().endpoint, 3);
    }
}

#[test]
fn deliveries_and_claimed_messages_name_their_endpoint() {
    let mut world = endpoints(2);
    let buffer = empty(100_000);
    world.pmls[1]
        .recv_multi(MultiArgs {
            from: Source::Endpoint(Rank(0), 2),
            context: context(0, 1, 0),
            tag: 7,
            ignore: 0,
            target: Target::Region(buffer.whole()),
            min_free: 1,
            notify: false,
        })
        .unwrap();
    for (endpoint, length) in [(2, 8), (3, 8), (2, 60_000)] {
        let out = filled(length, 1);
        let sent = send(&mut world, 0, context(0, 1, endpoint), 7, &out);
        world.wait_sent(0, sent).unwrap();
    }
    let mut got = Vec::new();
    world.until("two are there", |world| {
        got.extend(world.pmls[1].next_delivery());
        got.len() == 2
    });
    assert!(got.iter().all(|delivery| delivery.status.endpoint == 2));
    let claimed = world.pmls[1].claim(Source::Any, context(0, 1, 0), 7, 0).unwrap();
    assert_eq!(claimed.envelope.endpoint, 3);
    let into = empty(8);
    let taken = world.pmls[1]
        .recv_claimed(claimed.message, Target::Loan(into.room()), false)
        .unwrap();
    assert_eq!(world.wait(1, taken).unwrap().endpoint, 3);
}

#[test]
fn receives_of_every_endpoint_of_a_lost_rank_end() {
    let mut world = endpoints(3);
    let into = [empty(8), empty(8), empty(8)];
    let of_lost = [0, 127].map(|endpoint| {
        let from = Source::Endpoint(Rank(0), endpoint);
        recv(&mut world, from, context(0, 5, 0), &into[0])
    });
    let waiting = recv(
        &mut world,
        Source::Endpoint(Rank(2), 127),
        context(0, 5, 0),
        &into[2],
    );
    let explained = world.pmls[1].explain(of_lost[1]).unwrap();
    assert_eq!(
        (explained.waiting, explained.peer),
        (Waiting::Message, Source::Endpoint(Rank(0), 127))
    );
    assert!(
        explained.to_string().contains("endpoint 127 of rank 0"),
        "{explained}"
    );
    world.net.change(doorbell_sim::Change::RankDeath(0));
    for request in of_lost {
        let ended = world.wait(1, request);
        assert!(
            matches!(ended, Err(PmlError::PeerLost { rank: Rank(0), .. })),
            "{ended:?}"
        );
    }
    let late = recv(
        &mut world,
        Source::Endpoint(Rank(0), 9),
        context(0, 5, 0),
        &into[1],
    );
    assert!(world.pmls[1].test(late).unwrap().is_err(), "at once");
    assert!(world.pmls[1].test(waiting).is_none());
    let refused = world.pmls[1].recv_loan(Source::Endpoint(Rank(3), 0), 0, 7, 0, into[0].room());
    assert!(matches!(refused, Err(PmlError::NoSuchRank { rank: 3, size: 3 })));
}

#[test]
fn what_is_kept_of_a_rank_is_counted_over_all_endpoints() {
    let mut world = endpoints(2);
    for endpoint in [0, 1, 127] {
        let _ = send(&mut world, 0, context(0, 5, endpoint), 7, &filled(8, 1));
    }
    world.passes(20);
    assert_eq!(world.pmls[1].peer(Rank(0)).unwrap().unexpected, 3);
}

#[test]
fn only_the_lowest_bits_can_name_endpoints() {
    let mut config = PmlConfig::new(Rank(0), 2, 1);
    config.sources = 0x01ff;
    let refused = doorbell_pml::Pml::<doorbell_sim::SimRail>::new(config).unwrap_err();
    assert!(matches!(refused, PmlError::BadConfig { name: "sources", .. }));
}

#[test]
fn receives_with_a_notice_end_on_the_completion_queue_however_they_end() {
    let mut world = endpoints(2);
    let mask = 0xff00;
    for (length, room) in [(8, 8), (8, 4), (100_000, 100_000), (100_000, 500)] {
        let (out, into) = (filled(length, 9), empty(room));
        for data in [None, Some(5)] {
            let context = context(1, 5, 3);
            let request = world.pmls[1]
                .recv_loan_notified(Source::Any, context & !SOURCES, 7, mask, into.room())
                .unwrap();
            assert_eq!(world.pmls[1].next_completion(), None);
            world.pmls[0].set_immediate(Rank(1), data).unwrap();
            let sent = send(&mut world, 0, context, 0x0107, &out);
            let mut ended = Vec::new();
            world.until("it ends", |world| {
                ended.extend(world.pmls[1].next_completion());
                !ended.is_empty()
            });
            world.passes(20);
            ended.extend(world.pmls[1].next_completion());
            assert_eq!(ended, [request], "once");
            match world.pmls[1].test(request).unwrap() {
                Ok(status) => {
                    assert_eq!((status.source, status.endpoint), (Rank(0), 3));
                    assert_eq!((status.tag, status.length), (0x0107, length as u64));
                    assert_eq!((status.data, bytes(&into)), (data, pattern(length, 9)));
                }
                Err(PmlError::Truncated { length: whole, .. }) => {
                    assert!(room < length && whole == length as u64);
                }
                Err(error) => panic!("{error}"),
            }
            world.wait_sent(0, sent).unwrap();
        }
    }
    let into = empty(8);
    let request = world.pmls[1]
        .recv_loan_notified(Source::Endpoint(Rank(0), 3), context(1, 5, 0), 7, 0, into.room())
        .unwrap();
    assert!(world.pmls[1].cancel(request));
    assert_eq!(world.pmls[1].next_completion(), Some(request));
    let cancelled = world.pmls[1].test(request).unwrap();
    assert!(matches!(cancelled, Err(PmlError::Cancelled { .. })));
}

/// What was kept when a context was closed, and what comes afterwards: nothing of it stays, and synchronous
/// sends learn of it. Other contexts go on.
#[test]
fn what_comes_to_a_closed_context_is_dropped_and_who_waits_is_answered() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        let mut world = World::new(2, sim(true, true, true), |config| {
            config.sources = SOURCES;
            config.protocol = protocol;
        });
        let (closed, open) = (context(0, 5, 9), context(0, 6, 9));
        let sync = |world: &mut World, memory: &Memory| {
            let args = SendArgs {
                context: closed,
                mode: SendMode::Synchronous,
                ..send_args(1, 7, Payload::Region(memory.whole()))
            };
            world.pmls[0].send(args).unwrap()
        };
        let memory = [filled(8, 1), filled(100_000, 2)];
        for is_late in [false, true] {
            if is_late {
                world.pmls[1].close_context(context(0, 5, 0));
            }
            let sends = [0, 1].map(|at| sync(&mut world, &memory[at]));
            let long = filled(100_000, 3);
            let standard = send(&mut world, 0, closed, 7, &long);
            let _ = send(&mut world, 0, closed, 7, &filled(8, 4));
            world.passes(50);
            if !is_late {
                assert!(world.pmls[1].in_use().kept > 0);
                world.pmls[1].close_context(context(0, 5, 0));
            }
            for sent in sends {
                let error = world.wait_sent(0, sent).unwrap_err();
                assert!(
                    matches!(
                        error,
                        PmlError::Rejected {
                            rank: Rank(1),
                            tag: 7
                        }
                    ),
                    "{error}"
                );
            }
            world.wait_sent(0, standard).unwrap();
            assert_eq!(
                (world.pmls[1].in_use().kept, world.pmls[1].in_use().records),
                (0, 0)
            );
            world.pmls[1].open_context(context(0, 5, 0));
        }
        world.pmls[1].close_context(context(0, 5, 0));
        // More than the window, of which nothing stays.
        for _ in 0..6000 {
            world.pmls[0].inject(Rank(1), closed, 7, &[1; 1000]).unwrap();
            world.pass();
        }
        assert_eq!(world.pmls[0].counters().window_full, 0);
        world.pmls[1].open_context(context(0, 5, 0));
        for at in [open, closed] {
            let _ = send(&mut world, 0, at, 8, &filled(8, 5));
            world.passes(50);
            assert!(world.pmls[1].probe(Source::Any, at & !SOURCES, 8, 0).is_some());
        }
        assert_eq!((world.drops(0), world.drops(1)), (0, 0));
        assert_eq!(world.pmls[0].live_requests(), 0);
    }
}

#[test]
fn a_message_to_a_closed_context_of_our_own_is_rejected() {
    let mut world = endpoints(1);
    let at = context(0, 5, 9);
    let memory = filled(100_000, 1);
    let args = |mode| SendArgs {
        context: at,
        mode,
        ..send_args(0, 7, Payload::Region(memory.whole()))
    };
    let early = world.pmls[0].send(args(SendMode::Synchronous)).unwrap();
    world.pmls[0].close_context(context(0, 5, 0));
    let late = world.pmls[0].send(args(SendMode::Synchronous)).unwrap();
    for sent in [early, late] {
        let error = world.wait_sent(0, sent).unwrap_err();
        assert!(matches!(error, PmlError::Rejected { .. }), "{error}");
    }
    let standard = world.pmls[0].send(args(SendMode::Standard)).unwrap();
    world.wait_sent(0, standard).unwrap();
    let in_use = world.pmls[0].in_use();
    assert_eq!((in_use.kept, in_use.records, in_use.requests), (0, 0, 0));
}
