//! The end of a PML with traffic under way, and regions as targets of the sender's writes.

use std::time::Duration;

use doorbell_fabric::message::Message;
use doorbell_pml::{Aborted, Payload, Protocol, Rank, RequestId, Sent, Source, Target};
use doorbell_sim::{Change, SimConfig};

use crate::narrow::narrow;
use crate::world::{Memory, World, bytes, empty, filled, pattern, recv_args, send_args, sim};

/// Closes rank 0, the others polling on; how long it took.
fn close<M: Message>(world: &mut World<M>, limit: Duration) -> Duration {
    close_while(world, limit, |_| ())
}

/// The same, while the others do something.
fn close_while<M: Message>(
    world: &mut World<M>,
    limit: Duration,
    mut others: impl FnMut(&mut World<M>),
) -> Duration {
    let started = world.net.now();
    let by = started + limit;
    loop {
        let now = world.net.now() + Duration::from_micros(1);
        world.net.advance_to(now);
        if world.pmls[0].close(now, by) {
            return now.since(started);
        }
        assert!(
            now < by + Duration::from_micros(2),
            "a close that goes on after its bound"
        );
        world.pmls[1].progress(now);
        others(world);
    }
}

/// Receives messages of `length` bytes one by one.
struct Receiver {
    length: usize,
    into: Memory,
    open: Option<RequestId>,
    count: u64,
}

impl Receiver {
    fn new(length: usize) -> Self {
        Self {
            length,
            into: empty(length),
            open: None,
            count: 0,
        }
    }

    fn step<M: Message>(&mut self, world: &mut World<M>, most: u64) {
        if let Some(ended) = self.open.and_then(|open| world.pmls[1].test(open)) {
            self.open = None;
            let what = format!("message {} of {} bytes", self.count, self.length);
            assert_eq!(
                ended.expect(&what).length as usize,
                self.length,
                "message {}",
                self.count
            );
            assert_eq!(
                bytes(&self.into),
                pattern(self.length, self.count),
                "message {}",
                self.count
            );
            self.count += 1;
        }
        if self.open.is_none() && self.count < most {
            self.open = Some(world.recv(1, Rank(0), 1, &self.into));
        }
    }
}

/// What was injected beyond the window is announced, and beyond the hard one it has not even left; with
/// `handshake`, fragments wait until the peer has them.
#[test]
fn a_close_waits_until_what_was_reported_as_sent_has_been_received() {
    for hard in [4096, 8192, 1 << 20] {
        for length in [1000, 6000] {
            for handshake in [false, true] {
                let mut world = World::new(2, sim(true, true, true), |pml| {
                    pml.window = 4096;
                    pml.hard_window = hard;
                    pml.handshake = handshake;
                });
                for at in 0..50 {
                    world.pmls[0].inject(Rank(1), 0, 1, &pattern(length, at)).unwrap();
                }
                let mut receiver = Receiver::new(length);
                let limit = Duration::from_secs(1);
                let took = close_while(&mut world, limit, |world| receiver.step(world, 50));
                assert!(took < limit, "{took:?}");
                for _ in 0..10_000 {
                    let now = world.net.now() + Duration::from_micros(1);
                    world.net.advance_to(now);
                    world.pmls[1].progress(now);
                    receiver.step(&mut world, 50);
                }
                assert_eq!(receiver.count, 50, "hard window {hard}, {length} bytes");
                assert_eq!(world.pmls[0].live_requests(), 0);
            }
        }
    }
}

/// Whole messages that a rail took are done for their sender, and have to be announced over the next.
#[test]
fn a_close_waits_for_what_a_rail_gave_back_and_the_next_one_only_announces() {
    for seed in 0..5 {
        let mut world = narrow(seed, 600, sim(true, true, true), false);
        for at in 0..10 {
            world.pmls[0].inject(Rank(1), 0, 1, &pattern(4000, at)).unwrap();
        }
        world.net.change(Change::PlaneDown(world.planes[0]));
        world.until("the first rail is down", |world| {
            world.pmls[0].counters().paths_down == 1
        });
        let mut receiver = Receiver::new(4000);
        let limit = Duration::from_secs(1);
        let took = close_while(&mut world, limit, |world| receiver.step(world, 10));
        assert!(took < limit, "{took:?}");
        for _ in 0..10_000 {
            let now = world.net.now() + Duration::from_micros(1);
            world.net.advance_to(now);
            world.pmls[1].progress(now);
            receiver.step(&mut world, 10);
        }
        assert_eq!(receiver.count, 10, "seed {seed}");
    }
}

#[test]
fn a_close_for_a_peer_that_never_receives_ends_by_its_bound_or_with_the_peer() {
    for dies in [false, true] {
        let mut world = World::new(2, sim(true, true, true), |pml| pml.window = 4096);
        for at in 0..50 {
            world.pmls[0].inject(Rank(1), 0, 1, &pattern(1000, at)).unwrap();
        }
        world.passes(20);
        if dies {
            world.net.change(Change::RankDeath(1));
        }
        let limit = Duration::from_millis(5);
        let took = close(&mut world, limit);
        assert_eq!(took >= limit, !dies, "{took:?}");
    }
}

/// What its owner gave up is not waited for, nor what its owner waits for and does not any more.
#[test]
fn a_close_does_not_wait_for_sends_that_were_not_reported_as_done() {
    let mut world = World::new(2, sim(true, true, true), |pml| pml.window = 4096);
    let from = filled(100_000, 1);
    let sends = [world.send(0, 1, 1, &from), world.send(0, 1, 1, &from)];
    world.passes(20);
    for (sent, aborts) in sends.into_iter().zip([false, true]) {
        let Sent::Pending(id) = sent else {
            panic!("it is announced")
        };
        if aborts {
            assert_eq!(world.pmls[0].abort(id), Aborted::Now);
        }
    }
    let limit = Duration::from_millis(5);
    let took = close(&mut world, limit);
    assert!(took < limit, "{took:?}");
}

fn shallow() -> SimConfig {
    let mut config = sim(true, true, true);
    config.queue_depth = 4;
    config
}

#[test]
fn a_close_pushes_out_what_was_accepted() {
    let mut world = World::new(2, shallow(), |_| ());
    for at in 0..50 {
        world.pmls[0].inject(Rank(1), 0, 1, &pattern(2000, at)).unwrap();
    }
    assert!(
        world.pmls[0].counters().sends_queued > 0,
        "some have to wait for the rail"
    );
    let took = close(&mut world, Duration::from_secs(1));
    assert!(took < Duration::from_secs(1), "{took:?}");
    for at in 0..50 {
        let into = empty(2000);
        let request = world.recv(1, Rank(0), 1, &into);
        assert_eq!(world.wait(1, request).unwrap().length, 2000);
        assert_eq!(bytes(&into), pattern(2000, at));
    }
    assert!(world.pmls[1].counters().peers_lost <= 1);
}

#[test]
fn a_close_ends_by_its_bound_whatever_is_under_way() {
    for protocol in [Protocol::Get, Protocol::Put, Protocol::Fragments] {
        for passes in [0, 1, 3, 10, 40] {
            for silent in [false, true] {
                let mut world = World::new(2, shallow(), |pml| pml.protocol = protocol);
                let from: Vec<Memory> = (0..6).map(|at| filled(100_000, at)).collect();
                let into: Vec<Memory> = (0..6).map(|_| empty(100_000)).collect();
                // In both directions, half of it never received, and one that waits for nothing.
                for at in 0..6u32 {
                    let args = send_args(1, at.into(), Payload::Region(from[at as usize].whole()));
                    let _ = world.pmls[0].send(args).unwrap();
                    let args = send_args(0, at.into(), Payload::Region(from[at as usize].whole()));
                    let _ = world.pmls[1].send(args).unwrap();
                }
                let mut theirs = Vec::new();
                for at in 0..3u32 {
                    let target = || Target::Region(into[at as usize].whole());
                    theirs.push(
                        world.pmls[1]
                            .recv(recv_args(Rank(0), at.into(), target()))
                            .unwrap(),
                    );
                    let target = Target::Region(into[at as usize + 3].whole());
                    let _ = world.pmls[0].recv(recv_args(Rank(1), at.into(), target)).unwrap();
                }
                let _ = world.pmls[0].recv(recv_args(Source::Any, 99, Target::Region(empty(8).whole())));
                world.passes(passes);
                if silent {
                    let plane = world.planes[0];
                    world.net.change(Change::Cut {
                        plane,
                        from: 1,
                        to: 0,
                    });
                    world.net.change(Change::Cut {
                        plane,
                        from: 0,
                        to: 1,
                    });
                }
                let limit = Duration::from_millis(2);
                let took = close(&mut world, limit);
                assert!(took <= limit + Duration::from_micros(1), "{took:?}");
                // The other side is notified of it, and its requests end, well or badly; a PML that is
                // dropped is no peer.
                drop(world.pmls.remove(0));
                let mut open = theirs;
                for _ in 0..200_000 {
                    let now = world.net.now() + Duration::from_micros(1);
                    world.net.advance_to(now);
                    world.pmls[0].progress(now);
                    open.retain(|request| world.pmls[0].test(*request).is_none());
                    if open.is_empty() {
                        break;
                    }
                }
                assert!(
                    open.is_empty(),
                    "{protocol:?}, {passes} passes, silent {silent}: {open:?}"
                );
            }
        }
    }
}

fn putting() -> SimConfig {
    sim(false, true, true)
}

#[test]
fn the_sender_writes_into_a_slice_of_a_region_and_nowhere_else() {
    for (offset, length) in [(0, 100_000), (1, 100_000), (4096, 65_537), (33, 70_001)] {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(length, 5);
        let into = empty(length + 8192);
        into.write(0, &vec![0xee; length + 8192]);
        let target = Target::Region(into.region().slice(offset, length).unwrap());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent = world.send(0, 1, 1, &from);
        assert_eq!(world.wait(1, request).unwrap().length as usize, length);
        world.wait_sent(0, sent).unwrap();
        assert!(world.pmls[0].counters().puts > 0);
        let all = bytes(&into);
        assert_eq!(all[offset..offset + length], pattern(length, 5));
        let outside = all[..offset].iter().chain(&all[offset + length..]);
        assert!(outside.into_iter().all(|byte| *byte == 0xee), "offset {offset}");
    }
}

#[test]
fn a_region_that_its_owner_dropped_lives_until_the_sender_has_written() {
    let mut world = World::new(2, putting(), |_| ());
    let from = filled(200_000, 6);
    let into = empty(200_000);
    let request = world.pmls[1]
        .recv(recv_args(Rank(0), 1, Target::Region(into.whole())))
        .unwrap();
    drop(into);
    let sent = world.send(0, 1, 1, &from);
    assert_eq!(world.wait(1, request).unwrap().length, 200_000);
    world.wait_sent(0, sent).unwrap();
    let counters = world.pmls[0].counters();
    assert!(
        counters.puts > 0 && counters.frags_sent == 0,
        "the memory was there to be written"
    );
}

#[test]
fn a_region_is_free_again_when_its_receive_was_aborted() {
    for passes in 0..40 {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(200_000, 7);
        let into = empty(200_000);
        let target = Target::Region(into.whole());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent = world.send(0, 1, 1, &from);
        world.passes(passes);
        let mut waited = 0;
        while world.pmls[1].abort(request) == Aborted::Wait {
            world.pass();
            waited += 1;
            assert!(waited < 10_000, "{passes} passes");
        }
        into.write(0, &vec![0xee; 200_000]);
        world.passes(1000);
        world.discard_all(1);
        world.wait_sent(0, sent).unwrap();
        world.passes(1000);
        assert!(bytes(&into).iter().all(|byte| *byte == 0xee), "{passes} passes");
        assert_eq!(
            (world.pmls[0].live_requests(), world.pmls[1].live_requests()),
            (0, 0),
            "{passes} passes"
        );
    }
}

#[test]
fn a_peer_that_dies_while_it_writes_leaves_a_request_that_ends() {
    for passes in 0..30 {
        let mut world = World::new(2, putting(), |_| ());
        let from = filled(400_000, 8);
        let into = empty(400_000);
        let target = Target::Region(into.whole());
        let request = world.pmls[1].recv(recv_args(Rank(0), 1, target)).unwrap();
        let sent: Sent = world.send(0, 1, 1, &from);
        let _ = sent;
        world.passes(passes);
        world.net.change(Change::RankDeath(0));
        if let Ok(status) = world.wait(1, request) {
            assert_eq!(status.length, 400_000);
            assert_eq!(bytes(&into), pattern(400_000, 8));
        }
        into.write(0, &vec![0xee; 400_000]);
        world.passes(1000);
        assert!(bytes(&into).iter().all(|byte| *byte == 0xee), "{passes} passes");
        assert_eq!(world.pmls[1].live_requests(), 0);
    }
}
