//! Barriers, exits, and what breaks: rails under traffic, ranks that are lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_am::{AmError, BarrierName, ExitFlag, Fault, Leaving, Remote, Source, Try, Unclean};
use doorbell_fabric::memory::Region;
use doorbell_sim::{Change, Random};

use crate::messages::{Seen, echo_world};
use crate::rig::{Doing, Setting, World};

#[test]
fn barriers_hold_every_rank_and_carry_names() {
    for ranks in [1, 2, 3, 8, 13] {
        let mut setting = Setting::new(ranks);
        setting.sim.faults.jitter = Duration::from_micros(4);
        let (mut world, _seen) = echo_world(&setting);
        let mut entered = vec![0u32; ranks as usize];
        let mut left = vec![0u32; ranks as usize];
        world.run(|rank, am, _| {
            let at = rank as usize;
            if left[at] == 20 {
                return Doing::Finished;
            }
            let name = if left[at].is_multiple_of(2) {
                BarrierName::Anonymous
            } else {
                BarrierName::Named(left[at])
            };
            if entered[at] == left[at] {
                am.notify_barrier(name).expect("in order");
                entered[at] += 1;
            }
            if !am.try_barrier(name).expect("no rank is lost") {
                return Doing::Waits;
            }
            left[at] += 1;
            assert!(
                entered.iter().all(|entered| *entered >= left[at]),
                "{entered:?} {left:?}"
            );
            Doing::Worked
        });
        world.assert_clean();
    }
}

#[test]
fn a_mismatch_is_reported_at_every_rank() {
    let (mut world, _seen) = echo_world(&Setting::new(3));
    let mut told = [None, None, None];
    let mut begun = [false; 3];
    world.run(|rank, am, _| {
        let at = rank as usize;
        let name = BarrierName::Named(u32::from(rank == 1));
        if !std::mem::replace(&mut begun[at], true) {
            am.notify_barrier(name).expect("in order");
        }
        if told[at].is_none() {
            match am.try_barrier(name) {
                Ok(false) => return Doing::Waits,
                outcome => told[at] = Some(matches!(outcome, Err(AmError::BarrierMismatch))),
            }
        }
        Doing::Finished
    });
    assert_eq!(told, [Some(true); 3]);
}

/// A rank may leave as soon as a barrier has ended for it: the others are not stopped by that.
#[test]
fn a_rank_that_leaves_after_a_barrier_stops_no_other() {
    for (ranks, seed) in [(2, 0), (3, 1), (6, 2), (6, 3), (13, 4)] {
        let mut setting = Setting::new(ranks);
        setting.seed = seed;
        setting.sim.faults.jitter = Duration::from_micros(20);
        let (mut world, _seen) = echo_world(&setting);
        let mut notified = vec![false; ranks as usize];
        let mut left = vec![false; ranks as usize];
        let mut closed = vec![false; ranks as usize];
        world.run(|rank, am, now| {
            let at = rank as usize;
            if !std::mem::replace(&mut notified[at], true) {
                am.notify_barrier(BarrierName::Anonymous)
                    .expect("no rank has left");
            }
            if !left[at] {
                if !am.try_barrier(BarrierName::Anonymous).expect("it ends well") {
                    return Doing::Waits;
                }
                left[at] = true;
            }
            let by = now + Duration::from_millis(1);
            if !closed[at] && am.ni_mut().node_mut().close(now, by) {
                closed[at] = true;
            }
            if closed[at] { Doing::Finished } else { Doing::Waits }
        });
    }
}

/// Runs until all ranks that live have left; returns the result of each.
fn leave(
    world: &mut World,
    mut each: impl FnMut(u32, &mut crate::rig::Am) -> bool,
) -> HashMap<u32, Result<u8, Unclean>> {
    let mut over = HashMap::new();
    world.run(|rank, am, _| {
        let worked = each(rank, am);
        match am.leaving() {
            Leaving::Over(how) => {
                over.insert(rank, how);
                Doing::Finished
            }
            _ if worked => Doing::Worked,
            Leaving::No | Leaving::Underway { .. } => Doing::Waits,
        }
    });
    over
}

#[test]
fn any_rank_may_end_the_job_at_any_time() {
    for ranks in [1, 2, 3, 7, 16] {
        for seed in 0..6 {
            let mut setting = Setting::new(ranks);
            setting.seed = seed;
            setting.sim.faults.jitter = Duration::from_micros(5);
            let (mut world, _seen) = echo_world(&setting);
            let mut random = Random::for_part(seed, &[u64::from(ranks)]);
            let asks = random.below(u64::from(ranks)) as u32;
            let also = random.below(u64::from(ranks)) as u32;
            let mut after = random.below(200);
            let mut sent = 0u32;
            let over = leave(&mut world, |rank, am| {
                // Traffic goes on until the end is known; then it is refused by name.
                let worked = match am.try_request_medium((rank + 1) % ranks, 2, &[sent], &[3; 300]) {
                    Ok(outcome) => outcome.is_done(),
                    Err(AmError::ShuttingDown { .. }) => false,
                    Err(error) => panic!("{error}"),
                };
                sent += u32::from(worked);
                if rank == asks || rank == also {
                    if after == 0 {
                        am.exit(if rank == asks { 3 } else { 9 });
                    }
                    after = after.saturating_sub(1);
                }
                worked || after > 0
            });
            assert_eq!(over.len(), ranks as usize);
            let codes: Vec<_> = over.values().collect();
            assert!(codes.windows(2).all(|pair| pair[0] == pair[1]), "{over:?}");
            assert!(matches!(codes[0], Ok(3 | 9)), "{over:?}");
        }
    }
}

#[test]
fn a_flag_that_a_signal_handler_sets_ends_the_job() {
    let (mut world, _seen) = echo_world(&Setting::new(3));
    let flag = Arc::new(AtomicBool::new(false));
    world.am(2).set_exit_flag(ExitFlag::new(Arc::clone(&flag), 143));
    world.settle();
    assert_eq!(world.am(2).leaving(), Leaving::No);
    flag.store(true, Ordering::Relaxed);
    let over = leave(&mut world, |_, _| false);
    assert_eq!(over.len(), 3);
    assert!(over.values().all(|how| *how == Ok(143)), "{over:?}");
}

#[test]
fn an_unanswered_exit_ends_by_its_time_and_names_the_silent_rank() {
    let mut setting = Setting::new(3);
    setting.settings.exit.fixed = Some(0.01);
    let (mut world, _seen) = echo_world(&setting);
    world.net.change(Change::Pause(2));
    world.am(0).exit(5);
    let (net, start) = (world.net.clone(), world.net.now());
    for _ in 0..20_000 {
        let now = net.now();
        for rank in 0..2 {
            world.am(rank).step(now).expect("it goes on");
        }
        let over = |world: &mut World, rank| matches!(world.am(rank).leaving(), Leaving::Over(_));
        if over(&mut world, 0) && over(&mut world, 1) {
            break;
        }
        net.advance_to(now + Duration::from_micros(10));
    }
    assert!(
        net.now().since(start) < Duration::from_millis(30),
        "the time-out bounds it"
    );
    let said = [0, 1].map(|rank| world.am(rank).leaving());
    assert!(
        said.iter()
            .any(|how| matches!(how, Leaving::Over(Err(Unclean::Silent { rank: 2, .. })))),
        "{said:?}"
    );
}

/// Rank 2 dies in the middle of everything: all waits for it end with its name, and nothing of it is kept.
#[test]
fn a_lost_rank_ends_every_wait_by_its_name() {
    for seed in 0..8 {
        let mut setting = Setting::new(4);
        setting.seed = seed;
        let (mut world, _seen) = echo_world(&setting);
        let mut rounds = 40 + 10 * seed;
        let memory = Region::new(3000).expect("memory").whole();
        let net = world.net.clone();
        let mut handles: Vec<Vec<_>> = vec![Vec::new(); 4];
        let (mut failed, mut named) = (0, [false; 4]);
        let mut notified = [false; 4];
        world.dead.push(2);
        world.run(|rank, am, _| {
            let at = rank as usize;
            if rank == 2 {
                rounds -= 1;
                if rounds == 0 {
                    net.change(Change::RankDeath(2));
                }
            }
            if !std::mem::replace(&mut notified[at], rank != 2) && rank != 2 {
                am.notify_barrier(BarrierName::Anonymous)
                    .expect("no rank is lost yet");
            }
            handles[at].retain(|handle| match am.try_sync(*handle) {
                Ok(done) => !done,
                Err(AmError::Operation { rank: 2, .. }) => {
                    failed += 1;
                    false
                }
                Err(error) => panic!("{error}"),
            });
            if named[at] {
                let barrier = am.try_barrier(BarrierName::Anonymous);
                assert!(
                    matches!(barrier, Err(AmError::PeerLost { rank: 2, .. })),
                    "{barrier:?}"
                );
                return if handles[at].is_empty() {
                    Doing::Finished
                } else {
                    Doing::Waits
                };
            }
            let place = Source::Segment {
                offset: 0,
                length: 3000,
            };
            let outcomes = [
                am.try_request_medium(2, 2, &[1], &[1; 600]),
                am.try_request_long(2, 3, &[1], place, 8192)
                    .map(|sent| sent.map(|sent| handles[at].extend(sent.source))),
                am.put(Remote { rank: 2, offset: 0 }, memory.clone())
                    .map(|put| put.map(|put| handles[at].push(put))),
            ];
            let mut doing = Doing::Waits;
            for outcome in outcomes {
                match outcome {
                    Ok(Try::Done(())) => doing = Doing::Worked,
                    Ok(Try::Stalled(_)) => {}
                    Err(error) => {
                        assert!(matches!(error, AmError::PeerLost { rank: 2, .. }), "{error}");
                        named[at] = true;
                        doing = Doing::Worked;
                    }
                }
            }
            doing
        });
        assert!([0, 1, 3].iter().all(|rank| named[*rank]), "{named:?}");
        // The others go on among themselves.
        for rank in [0, 1, 3] {
            let to = (rank + 1) % 4;
            let to = if to == 2 { 3 } else { to };
            assert!(
                world
                    .am(rank)
                    .try_request_short(to, 1, &[])
                    .expect("it lives")
                    .is_done()
            );
        }
        world.settle();
        for rank in [0u32, 1, 3] {
            let free = world.am(rank).resources();
            assert_eq!(
                free.request_chunks.0, free.request_chunks.1,
                "rank {rank}, seed {seed}"
            );
            assert_eq!(free.tickets.0, free.tickets.1 - 2, "rank {rank}, seed {seed}");
            assert_eq!((free.halves, world.am(rank).lost().len()), (0, 1));
        }
        assert!(failed > 0, "something was under way when it died");
    }
}

/// Two rails, of which one dies under traffic, comes back, and the other one dies: every message is handled
/// once.
#[test]
fn rails_that_die_lose_and_double_nothing() {
    for seed in 0..6 {
        let mut setting = Setting::new(3);
        (setting.rails, setting.seed) = (2, seed);
        setting.sim.faults.jitter = Duration::from_micros(2);
        let (mut world, seen) = echo_world(&setting);
        let (net, planes) = (world.net.clone(), world.planes.clone());
        let memory = Region::new(6000).expect("memory").whole();
        memory.write(0, &[5; 6000]);
        let mut next = [0u32; 3];
        let mut handles: Vec<Vec<_>> = vec![Vec::new(); 3];
        let each = 400;
        world.run(|rank, am, _| {
            let at = rank as usize;
            handles[at].retain(|handle| !am.try_sync(*handle).expect("it ends well"));
            let number = next[at];
            if rank == 0 {
                match number {
                    60 => net.change(Change::PlaneDown(planes[0])),
                    150 => net.change(Change::PlaneUp(planes[0])),
                    250 => net.change(Change::NicDeath(planes[1], 1)),
                    _ => {}
                }
            }
            if number == each {
                return if handles[at].is_empty() {
                    Doing::Finished
                } else {
                    Doing::Waits
                };
            }
            let to = (rank + 1 + number % 2) % 3;
            let args = [16_384 + rank, number];
            let place = u64::from(rank) * 6000;
            let outcome = match number % 4 {
                0 => am.try_request_short(to, 1, &args),
                1 => am.try_request_medium(to, 2, &args, &vec![number as u8; number as usize]),
                2 => am
                    .try_request_long(to, 3, &args, memory.clone(), place)
                    .map(|sent| sent.map(|sent| handles[at].extend(sent.source))),
                _ => am
                    .put(
                        Remote {
                            rank: to,
                            offset: place,
                        },
                        memory.clone(),
                    )
                    .map(|put| put.map(|put| handles[at].push(put))),
            };
            match outcome.expect("it can be sent") {
                Try::Done(()) => {
                    next[at] += 1;
                    Doing::Worked
                }
                Try::Stalled(_) => Doing::Waits,
            }
        });
        world.settle();
        let mut counts: HashMap<(u32, u32, bool), u32> = HashMap::new();
        for Seen {
            from,
            at,
            is_reply,
            args,
            ..
        } in seen.try_iter()
        {
            let asks = if is_reply { at } else { from };
            *counts.entry((asks, args[1], is_reply)).or_default() += 1;
        }
        assert_eq!(counts.len() as u32, 3 * 2 * (each - each / 4), "seed {seed}");
        assert!(
            counts.values().all(|count| *count == 1),
            "seed {seed}: nothing is handled twice"
        );
        world.assert_clean();
    }
}

/// The wrong rule: what a peer sends beyond its credits falls into the catch basin, and is fatal.
#[test]
fn without_credits_a_flood_falls_into_the_catch_basin() {
    let mut setting = Setting::new(2);
    setting.settings.flow_control = false;
    setting.settings.chunks_per_buffer = 2;
    let (mut world, _seen) = echo_world(&setting);
    let mut sent = 0;
    // Rank 1 does not poll its queue of requests: only its interface is shown what arrives.
    let mut fault = None;
    for _ in 0..4000 {
        let now = world.net.now();
        if let Ok(Try::Done(())) = world.am(0).try_request_medium(1, 2, &[], &[1; 2000]) {
            sent += 1;
        }
        world.am(0).step(now).expect("the sender is well");
        world.am(1).poll_safely();
        world.am(1).progress(now);
        if let Err(error) = world.am(1).health() {
            fault = Some(error);
            break;
        }
        let next = world.net.next_event().unwrap_or(now + Duration::from_micros(1));
        world.net.advance_to(next);
    }
    assert!(
        matches!(fault, Some(AmError::Fault(Fault::CatchBasin))),
        "{fault:?} after {sent}"
    );
    assert!(world.am(1).stats().basin > 0);
    let refused = world.am(1).try_request_short(0, 1, &[]);
    assert!(
        matches!(refused, Err(AmError::Fault(Fault::CatchBasin))),
        "it reports it from then on"
    );
}
