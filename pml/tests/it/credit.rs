//! Credit comes back, however a message ends: at rest, a sender has no more to its charge than what its
//! receiver has not reported yet, a quarter of the window.

use doorbell_fabric::event::DownReason;
use doorbell_fabric::message::Message;
use doorbell_pml::{Aborted, LostReason, MultiArgs, Pml, PmlError, Protocol, Rank, Sent, Source, Target};
use doorbell_sim::Change;

use crate::narrow::{WINDOW, narrow};
use crate::world::{World, bytes, empty, filled, pattern, sim};

fn is_balanced<M: Message>(sender: &Pml<M>) -> Result<(), u64> {
    let unreported = sender.peer(Rank(1)).unwrap().unreported;
    let most = sender.config().window / 4;
    if unreported <= most {
        Ok(())
    } else {
        Err(unreported)
    }
}

fn multi(room: &crate::world::Memory) -> MultiArgs {
    MultiArgs {
        from: Source::Any,
        context: 0,
        tag: 3,
        ignore: 0,
        target: Target::Loan(room.room()),
        min_free: 1,
        notify: false,
    }
}

/// What a multi-receive took, and was not fetched, is given back when it is aborted: while it takes more, and
/// when it is used up.
#[test]
fn an_aborted_multi_receive_gives_back_what_it_took() {
    for room in [4000, 1500] {
        let mut world = World::new(2, sim(true, true, true), |pml| {
            pml.window = 4096;
            pml.hard_window = 4096;
        });
        let buffer = empty(room);
        for round in 0..40 {
            let request = world.pmls[1].recv_multi(multi(&buffer)).unwrap();
            for _ in 0..3 {
                world.pmls[0].inject(Rank(1), 0, 3, &[7; 500]).unwrap();
            }
            world.passes(20);
            assert_eq!(world.pmls[1].is_done(request), room == 1500);
            assert_eq!(world.pmls[1].abort(request), Aborted::Now);
            assert!(world.pmls[1].next_delivery().is_none());
            world.passes(20);
            assert_eq!(is_balanced(&world.pmls[0]), Ok(()), "round {round}, room {room}");
        }
        assert_eq!(world.pmls[0].counters().window_full, 0);
        assert_eq!(
            (world.pmls[0].live_requests(), world.pmls[1].live_requests()),
            (0, 0)
        );
    }
}

/// How the receiver ends messages that were sent again over a rail that takes less.
#[derive(Clone, Copy, Debug)]
enum End {
    Received,
    /// Into so little room.
    Cut(usize),
    Discarded,
}

/// Messages of `length` bytes leave over a rail that dies after `passes`, and go on over one that takes less.
fn sent_again(seed: u64, length: usize, passes: usize, end: End) {
    let what = format!("seed {seed}, {length} bytes, {passes} passes, {end:?}");
    let mut world = narrow(seed, 600, sim(false, false, true), false);
    for round in 0..3 {
        for at in 0..10 {
            world.pmls[0].inject(Rank(1), 0, 1, &pattern(length, at)).unwrap();
        }
        world.passes(passes);
        if round == 0 {
            world.net.change(Change::PlaneDown(world.planes[0]));
            world.until("the first rail is down", |world| {
                world.pmls[0].counters().paths_down == 1
            });
        }
        world.passes(100);
        for at in 0..10 {
            match end {
                End::Received => {
                    let into = empty(length);
                    let request = world.recv(1, Rank(0), 1, &into);
                    world.wait(1, request).unwrap();
                    assert_eq!(bytes(&into), pattern(length, at), "{what}");
                }
                End::Cut(room) => {
                    let into = empty(room);
                    let request = world.recv(1, Rank(0), 1, &into);
                    assert!(world.wait(1, request).is_err(), "{what}");
                    assert_eq!(bytes(&into), pattern(length, at)[..room], "{what}");
                }
                End::Discarded => {
                    world.until("it is there", |world| {
                        world.pmls[1].probe(Source::Any, 0, 1, 0).is_some()
                    });
                    let claimed = world.pmls[1].claim(Source::Any, 0, 1, 0).unwrap();
                    world.pmls[1].discard(claimed.message).unwrap();
                }
            }
        }
        world.passes(1000);
        assert_eq!(is_balanced(&world.pmls[0]), Ok(()), "{what}");
    }
    let left = (world.pmls[0].live_requests(), world.pmls[1].live_requests());
    assert_eq!(left, (0, 0), "{what}");
}

fn ends_of_what_was_sent_again(length: usize) {
    const { assert!(WINDOW / 4 < 10 * 3000, "ten lost messages have to show") };
    for seed in 0..3 {
        for passes in [0, 1, 2, 3, 5] {
            for end in [End::Received, End::Cut(300), End::Cut(0), End::Discarded] {
                sent_again(seed, length, passes, end);
            }
        }
    }
}

/// Announced without their bytes.
#[test]
fn whole_messages_that_were_sent_again_are_taken_back() {
    ends_of_what_was_sent_again(3000);
}

/// They left with 4048 bytes, and arrive with 552.
#[test]
fn first_parts_that_were_cut_on_the_next_rail_are_taken_back() {
    ends_of_what_was_sent_again(9000);
}

/// The same message, whole at the receiver before its rail died, and unknown as such to its sender.
#[test]
fn a_first_part_that_arrived_is_not_taken_back() {
    for end in 0..2 {
        let mut world = World::new(2, sim(false, false, true), |pml| {
            pml.protocol = Protocol::Fragments;
            pml.window = 32 << 10;
            pml.hard_window = 32 << 10;
        });
        let from = filled(9000, 1);
        for _ in 0..50 {
            let sent = world.send(0, 1, 1, &from);
            world.passes(10);
            if end == 0 {
                let into = empty(100);
                let request = world.recv(1, Rank(0), 1, &into);
                assert!(world.wait(1, request).is_err());
            } else {
                world.discard_all(1);
            }
            world.wait_sent(0, sent).unwrap();
            assert_eq!(world.drops(0), 0, "more was reported than was counted");
        }
        assert_eq!(is_balanced(&world.pmls[0]), Ok(()));
    }
}

/// However often a full rail, or a window that stays full, lets a send be tried again.
#[test]
fn a_send_for_which_the_window_is_full_counts_once() {
    for hard in [2048, 1 << 20] {
        let mut config = sim(true, true, true);
        config.queue_depth = 2;
        let mut world = World::new(2, config, |pml| {
            pml.window = 2048;
            pml.hard_window = hard;
        });
        let from = filled(500, 1);
        let sends: Vec<Sent> = (0..60).map(|_| world.send(0, 1, 1, &from)).collect();
        world.passes(1000);
        let counters = *world.pmls[0].counters();
        // Three of 564 bytes fill the window; the rest is announced, or the first of the rest waits.
        assert_eq!(counters.sent_eager, 3);
        let waits = u64::from(hard == 2048);
        assert_eq!(counters.window_full, counters.sent_rndv + waits);
        assert_eq!(hard > 2048, counters.sent_rndv == 57);
        let into = empty(500);
        for _ in 0..60 {
            let request = world.recv(1, Rank(0), 1, &into);
            world.wait(1, request).unwrap();
        }
        for sent in sends {
            world.wait_sent(0, sent).unwrap();
        }
        let counters = *world.pmls[0].counters();
        assert!(counters.window_full <= 57, "{}", counters.window_full);
        assert_eq!(counters.sent_eager + counters.sent_rndv, 60);
    }
}

/// Where restarts bring fragments again, those that a rail gives back are not sent again.
#[test]
fn only_what_is_sent_again_counts_as_that() {
    let mut restarts = 0;
    for seed in 0..10 {
        let mut world = World::with_planes(2, 2, seed, sim(false, false, true), |pml| {
            pml.handshake = true;
            pml.protocol = Protocol::Fragments;
        });
        let (from, into) = (filled(400_000, 1), empty(400_000));
        let request = world.recv(1, Rank(0), 1, &into);
        let sent = world.send(0, 1, 1, &from);
        world.until("fragments arrive", |world| {
            world.pmls[1].counters().frags_received > 3
        });
        world.net.change(Change::PlaneDown(world.planes[0]));
        world.wait(1, request).unwrap();
        world.wait_sent(0, sent).unwrap();
        assert_eq!(bytes(&into), pattern(400_000, 1));
        restarts += world.pmls[0].counters().restarts;
        assert_eq!(world.pmls[0].counters().resent, 0, "seed {seed}");
    }
    assert!(restarts > 0, "the test has to produce some");
}

/// A peer that receives nothing holds as much as is meant for it, and no more.
#[test]
fn injects_to_a_peer_that_receives_nothing_leave_others_theirs() {
    const PEERS: u32 = 17;
    let mut world = World::new(PEERS + 1, sim(true, true, true), |config| {
        (config.window, config.hard_window) = (1024, 1024);
        config.inject_limit = 100;
    });
    let fill = |world: &mut World, to: u32| {
        let mut taken = 0;
        loop {
            match world.pmls[0].inject(Rank(to), 0, 1, &[1; 100]) {
                Ok(()) => taken += 1,
                Err(PmlError::InjectFull { waiting }) => break (taken, waiting),
                Err(error) => panic!("{error}"),
            }
            world.pass();
        }
    };
    // Six fit in the window, one waits.
    for peer in 1..PEERS {
        assert_eq!(fill(&mut world, peer), (7, 100), "peer {peer}");
    }
    // All together have a bound, too.
    assert_eq!(fill(&mut world, PEERS), (6, 0));
    for _ in 0..6 {
        let into = empty(100);
        let got = world.recv(1, Rank(0), 1, &into);
        world.wait(1, got).unwrap();
    }
    world.until("its window opens", |world| world.pmls[0].in_use().bytes < 1600);
    world.pmls[0].inject(Rank(PEERS), 0, 1, &[1; 100]).unwrap();
}

/// Injected messages that the window of a lost peer has held back are reported; those that had left are not.
#[test]
fn injects_that_have_not_left_a_lost_peer_are_reported() {
    let mut world = World::new(2, sim(true, true, true), |config| {
        (config.window, config.hard_window) = (1024, 2048);
    });
    let inject = |world: &mut World, context: u16| {
        world.pmls[0].inject(Rank(1), context, 1, &[1; 100]).unwrap();
        world.pass();
    };
    (0..6).for_each(|_| inject(&mut world, 3));
    // Announced without bytes at first, then not even that.
    (0..40).for_each(|_| inject(&mut world, 3));
    (0..5).for_each(|_| inject(&mut world, 4));
    let standard = world.send(0, 1, 1, &filled(100, 1));
    assert_eq!(world.pmls[0].counters().sent_eager, 6);
    assert!(world.pmls[0].counters().sent_rndv > 0);
    let now = world.net.now();
    world.pmls[0].peer_ended(now, Rank(1), DownReason::Died);
    assert!(world.wait_sent(0, standard).is_err());
    let lost: Vec<_> = std::iter::from_fn(|| world.pmls[0].next_lost_sends())
        .map(|lost| (lost.rank, lost.reason, lost.context, lost.count))
        .collect();
    let died = LostReason::Peer(DownReason::Died);
    assert_eq!(lost, [(Rank(1), died, 3, 40), (Rank(1), died, 4, 5)]);
    assert_eq!(
        (world.pmls[0].live_requests(), world.pmls[0].in_use().bytes),
        (0, 0)
    );
}

/// An ordinary end: all was received, whatever had been announced meanwhile.
#[test]
fn injects_that_were_received_before_their_peer_ended_are_not_reported() {
    let mut world = World::new(2, sim(true, true, true), |config| {
        (config.window, config.hard_window) = (1024, 2048);
    });
    for _ in 0..40 {
        world.pmls[0].inject(Rank(1), 3, 1, &[1; 100]).unwrap();
        world.pass();
    }
    for _ in 0..40 {
        let into = empty(100);
        let got = world.pmls[1]
            .recv_loan(Source::Any, 3, 1, 0, into.room())
            .unwrap();
        world.wait(1, got).unwrap();
    }
    let now = world.net.now();
    world.pmls[0].peer_ended(now, Rank(1), DownReason::Closed);
    assert!(world.pmls[0].next_lost_sends().is_none());
}
