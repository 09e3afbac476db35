//! Puts and gets: all three ways for the bytes, explicit and implicit, bulk and not.

use std::time::Duration;

use doorbell_am::{AmError, Destination, Handle, Handlers, Remote, Settings, Source, Try};
use doorbell_fabric::memory::{Region, RegionSlice};

use crate::messages::echo_world;
use crate::rig::{Am, Doing, Setting, World};

fn world(setting: &Setting) -> World {
    World::new(setting, |_| Handlers::new())
}

fn filled(length: usize, salt: u8) -> RegionSlice {
    let memory = Region::new(length.max(1)).expect("memory").whole();
    let bytes: Vec<u8> = (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(salt))
        .collect();
    memory.write(0, &bytes);
    memory.slice(0, length).expect("inside")
}

/// Rank 0 begins something, once it can, and synchronises it.
fn complete(
    world: &mut World,
    mut begin: impl FnMut(&mut Am) -> Result<Try<Handle>, AmError>,
) -> Result<(), AmError> {
    let (mut handle, mut outcome) = (None, None);
    world.run(|rank, am, _| {
        if rank != 0 || outcome.is_some() {
            return Doing::Finished;
        }
        if handle.is_none() {
            handle = match begin(am) {
                Ok(begun) => begun.done(),
                Err(error) => {
                    outcome = Some(Err(error));
                    None
                }
            };
            return Doing::Worked;
        }
        match handle.map(|handle| am.try_sync(handle)) {
            Some(Ok(false)) | None => Doing::Waits,
            Some(Ok(true)) => {
                outcome = Some(Ok(()));
                Doing::Finished
            }
            Some(Err(error)) => {
                outcome = Some(Err(error));
                Doing::Finished
            }
        }
    });
    outcome.expect("it has ended")
}

#[test]
fn puts_and_gets_of_all_sizes_by_all_ways() -> Result<(), AmError> {
    let mut setting = Setting::new(3);
    setting.segment = 1 << 18;
    let mut world = world(&setting);
    let mut salt = 0;
    for length in [
        0, 1, 8, 63, 64, 65, 512, 513, 2039, 2040, 2041, 2048, 2049, 70_000,
    ] {
        for rank in 0..3 {
            for bulk in [false, true] {
                for in_segment in [false, true] {
                    salt += 1;
                    let memory = filled(length, salt);
                    let expected = memory.as_shared().to_vec();
                    world.am(0).segment().write(7, &expected);
                    let to = Remote {
                        rank,
                        offset: 131_072 + 5,
                    };
                    let source = || match in_segment {
                        true => Source::Segment {
                            offset: 7,
                            length: length as u64,
                        },
                        false => Source::from(memory.clone()),
                    };
                    complete(&mut world, |am| {
                        if bulk {
                            am.put_bulk(to, source())
                        } else {
                            am.put(to, source())
                        }
                    })?;
                    let there = world
                        .am(rank)
                        .segment_bytes()
                        .skip(131_072 + 5)
                        .take(length)
                        .to_vec();
                    assert_eq!(there, expected, "put of {length} to {rank}");
                    let landing = Region::new(length.max(1)).expect("memory").whole();
                    let into = || match in_segment {
                        true => Destination::Segment { offset: 40_001 },
                        false => Destination::from(landing.clone()),
                    };
                    complete(&mut world, |am| am.get(into(), to, length as u64))?;
                    let here = match in_segment {
                        true => world.am(0).segment_bytes().skip(40_001).take(length).to_vec(),
                        false => landing.as_shared().take(length).to_vec(),
                    };
                    assert_eq!(here, expected, "get of {length} from {rank}");
                }
            }
        }
    }
    let ways = world.am(0).stats().ways;
    assert!(ways.iter().all(|count| *count > 20), "{ways:?}");
    world.assert_clean();
    Ok(())
}

#[test]
fn borrowed_bytes_are_copied_and_may_change_at_once() -> Result<(), AmError> {
    let mut world = world(&Setting::new(2));
    let mut bytes = vec![1u8; 2048];
    let to = Remote { rank: 1, offset: 0 };
    let handle = world.am(0).put(to, &bytes)?.done().expect("a chunk is free");
    assert!(world.am(0).try_source(handle)?);
    bytes.fill(9);
    world.settle();
    assert!(world.am(0).try_sync(handle)?);
    assert_eq!(world.am(1).segment_bytes().take(2048).to_vec(), vec![1; 2048]);
    let refused = world.am(0).put(to, &vec![0; 2049]);
    assert!(matches!(
        refused,
        Err(AmError::MustStay {
            given: 2049,
            most: 2048
        })
    ));
    world.assert_clean();
    Ok(())
}

#[test]
fn the_end_of_an_uncopied_source_is_reported() -> Result<(), AmError> {
    let mut world = world(&Setting::new(2));
    let memory = filled(10_000, 1);
    let to = Remote { rank: 1, offset: 0 };
    let handle = world.am(0).put(to, memory)?.done().expect("a descriptor is free");
    assert!(!world.am(0).try_source(handle)?, "it is under way");
    world.settle();
    assert!(world.am(0).try_source(handle)?);
    assert!(world.am(0).try_sync(handle)?);
    assert!(matches!(world.am(0).try_source(handle), Err(AmError::Stale)));
    world.assert_clean();
    Ok(())
}

/// Many tickets, so that the interface has no room first.
fn many_tickets() -> Setting {
    let mut setting = Setting::new(2);
    setting.settings.message_limit = 4000;
    setting
}

#[test]
fn a_source_that_waits_for_room_is_not_free() -> Result<(), AmError> {
    let mut world = world(&many_tickets());
    world.am(0).segment().write(0, &[1; 8]);
    let puts = world.fill(0, 1);
    let (last, before) = puts.split_last().expect("at least one");
    for put in before {
        assert!(world.am(0).try_source(*put)?, "it was copied");
    }
    assert!(!world.am(0).try_source(*last)?, "it waits for room");
    world.settle();
    assert!(world.am(0).try_source(*last)?);
    world.am(0).segment().write(0, &[2; 8]);
    world.settle();
    assert_eq!(world.am(1).segment_bytes().take(8).to_vec(), [1; 8]);
    for put in puts {
        assert!(world.am(0).try_sync(put)?);
    }
    world.assert_clean();
    Ok(())
}

/// A rank that ends has its deferred operations sent, and no handler runs.
#[test]
fn what_waits_for_room_is_drained() -> Result<(), AmError> {
    let (mut world, seen) = echo_world(&many_tickets());
    let now = world.net.now();
    assert!(world.am(0).drain(now), "nothing waits");
    world.fill(0, 1);
    assert!(!world.am(0).drain(now), "there is no room yet");
    assert!(world.am(1).try_request_short(0, 1, &[])?.is_done());
    world.am(1).segment().write(0, &[0; 8]);
    world.am(0).segment().write(0, &[3; 8]);
    for _ in 0..100_000 {
        let now = world.net.now();
        world.am(1).step(now)?;
        if world.am(0).drain(now) {
            break;
        }
        let next = world.net.next_event();
        world
            .net
            .advance_to(next.unwrap_or(now + Duration::from_micros(1)));
    }
    let now = world.net.now();
    assert!(world.am(0).drain(now));
    assert_eq!(seen.try_iter().count(), 0, "no handler ran");
    world.settle();
    assert_eq!(world.am(1).segment_bytes().take(8).to_vec(), [3; 8]);
    Ok(())
}

#[test]
fn implicit_operations_are_counted() -> Result<(), AmError> {
    let mut world = world(&Setting::new(2));
    let to = |offset: u64| Remote { rank: 1, offset };
    for at in 0..50u64 {
        let value = at.to_le_bytes();
        assert!(world.am(0).put_nbi(to(8 * at), &value)?.is_done());
    }
    assert!(!world.am(0).try_sync_puts()?);
    assert!(world.am(0).try_sync_gets()?, "no get is under way");
    world.settle();
    assert!(world.am(0).try_sync_all()?);
    world.am(0).begin_access_region()?;
    let landing = Region::new(400).expect("memory").whole();
    for at in 0..50usize {
        let into = landing.slice(8 * at, 8).expect("inside");
        assert!(world.am(0).get_nbi(into, to(8 * at as u64), 8)?.is_done());
    }
    let region = world.am(0).end_access_region()?;
    assert!(world.am(0).try_sync_all()?, "they are the region's");
    assert!(!world.am(0).try_sync(region)?);
    world.settle();
    assert!(world.am(0).try_sync(region)?);
    for at in 0..50usize {
        assert_eq!(landing.as_shared().read(8 * at), Some((at as u64).to_le_bytes()));
    }
    world.assert_clean();
    Ok(())
}

#[test]
fn outside_of_a_segment_is_refused_and_takes_nothing() -> Result<(), AmError> {
    let mut world = world(&Setting::new(2));
    let am = world.am(0);
    let outside =
        |outcome: Result<Try<Handle>, AmError>| matches!(outcome, Err(AmError::OutsideSegment { .. }));
    assert!(outside(am.put(
        Remote {
            rank: 1,
            offset: 65_536 - 3
        },
        &[0; 4]
    )));
    assert!(outside(am.get(
        Destination::Segment { offset: 0 },
        Remote {
            rank: 1,
            offset: u64::MAX
        },
        2
    )));
    assert!(outside(am.get(
        Destination::Segment { offset: 65_536 },
        Remote { rank: 1, offset: 0 },
        1
    )));
    assert!(matches!(
        am.put(Remote { rank: 2, offset: 0 }, &[0; 4]),
        Err(AmError::NoSuchRank { .. })
    ));
    let small = Region::new(4).expect("memory").whole();
    assert!(matches!(
        am.get(small, Remote { rank: 1, offset: 0 }, 5),
        Err(AmError::TooLong { .. })
    ));
    assert_eq!(am.resources().operations, 0);
    world.assert_clean();
    Ok(())
}

/// With the smallest limits everything still goes, for who waits takes nothing with it.
#[test]
fn puts_and_gets_with_the_smallest_limits() -> Result<(), AmError> {
    let mut setting = Setting::minimal(4);
    setting.settings = Settings {
        put_bounce: Some(16),
        get_bounce: Some(16),
        ..setting.settings
    };
    let mut world = world(&setting);
    let memory: Vec<RegionSlice> = (0..4).map(|rank| filled(600, rank)).collect();
    let landing: Vec<RegionSlice> = (0..4).map(|_| filled(600, 99)).collect();
    let mut begun = [0u64; 4];
    world.run(|rank, am, _| {
        let at = begun[rank as usize];
        if at == 240 {
            return if am.try_sync_all().expect("all went well") {
                Doing::Finished
            } else {
                Doing::Waits
            };
        }
        let to = Remote {
            rank: (rank + at as u32) % 4,
            offset: u64::from(rank) * 1000,
        };
        let length = [8, 16, 200, 600][at as usize / 12 % 4];
        let piece = |memory: &RegionSlice| memory.slice(0, length).expect("inside");
        let outcome = match at / 4 % 3 {
            0 => am.put_nbi(to, piece(&memory[rank as usize])),
            1 => am.put_nbi_bulk(to, piece(&memory[rank as usize])),
            _ => am.get_nbi(piece(&landing[rank as usize]), to, length as u64),
        };
        match outcome.expect("it can be") {
            Try::Done(()) => {
                begun[rank as usize] += 1;
                Doing::Worked
            }
            Try::Stalled(_) => Doing::Waits,
        }
    });
    let stalls: u64 = (0..4)
        .map(|rank| world.am(rank).stats().stalls.iter().sum::<u64>())
        .sum();
    assert!(stalls > 0);
    for rank in 0..4u32 {
        let there = world.am(rank).segment_bytes();
        for from in 0..4u32 {
            let bytes = there.skip(from as usize * 1000).take(600).to_vec();
            assert_eq!(
                bytes,
                memory[from as usize].as_shared().to_vec(),
                "from {from} at {rank}"
            );
        }
    }
    world.assert_clean();
    Ok(())
}
