//! The data path allocates nothing: counted over every thread of a two-rank job in its steady state.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{MODES, config, job};
use doorbell::config::Mode;
use doorbell::{Arithmetic, Error, WindowAccess, Windows, World};
use doorbell_testing::alloc::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One round of everything that is to be free of allocations.
fn round(world: &World, small: &mut [u8], large: &mut [Vec<u8>; 2]) -> Result<(), Error> {
    let other = 1 - world.rank();
    let [out, into] = large;
    if world.rank() == 0 {
        world.send(other, 1, small)?;
        world.recv(other, 1, small)?;
        world.send(other, 2, out)?;
        world.recv(other, 2, into)?;
    } else {
        world.recv(other, 1, small)?;
        world.send(other, 1, small)?;
        world.recv(other, 2, into)?;
        world.send(other, 2, out)?;
    }
    world.scope(|s| {
        let large = s.irecv(other, 3, into)?;
        let little = s.irecv(other, 4, small)?;
        let sends = [s.isend(other, 3, out)?, s.isend(other, 4, b"eight by")?];
        little.wait()?;
        large.wait()?;
        sends.into_iter().try_for_each(|send| send.wait().map(drop))
    })?;
    // Calls to a dedicated thread allocate.
    if *world.config().progress.mode.get() == Mode::Inline {
        in_place(world)?;
    }
    world.barrier()
}

/// Messages of 1 MiB that are handed over in place, one each way.
fn in_place(world: &World) -> Result<(), Error> {
    let other = 1 - world.rank();
    for sender in 0..2 {
        if world.rank() == sender {
            let mut lent = world.lend(1 << 20)?;
            lent[0] = 7;
            lent.send(other, 6)?;
        } else {
            let received = world.recv_in_place(other, 6)?;
            assert_eq!(received.bytes().read(0), Some([7]));
        }
    }
    Ok(())
}

/// One round of one-sided operations of every kind, on the other rank's window and on our own.
fn operations(
    world: &World,
    windows: &Windows<'_>,
    small: &mut [u8],
    large: &mut [Vec<u8>; 2],
) -> Result<(), Error> {
    let [out, into] = large;
    for target in [windows.of(1 - world.rank()), windows.own().remote()] {
        world.put(target, 0, small)?;
        world.get(target, 0, small)?;
        world.put(target, 64, out)?;
        world.get(target, 64, into)?;
        world.accumulate(target, 8, Arithmetic::Sum, &[1u64, 2])?;
        world.fetch_accumulate(target, 8, Arithmetic::Sum, 1u64)?;
        world.compare_and_swap(target, 16, 0, 1u32)?;
        let mut before = [0u64; 8];
        world.scope(|s| {
            for at in 0..4 {
                drop(s.iput(target, 64 * at, b"eight by")?);
            }
            let add = s.ifetch_accumulate(target, 0, Arithmetic::Sum, &[1u64; 8], &mut before)?;
            s.iget(target, 64, into)?.wait()?;
            world.flush(target.rank())?;
            add.wait().map(drop)
        })?;
    }
    world.fence()
}

/// Brings the pools of unexpected messages to a depth that no round reaches.
fn flood(world: &World) -> Result<(), Error> {
    let other = 1 - world.rank();
    let mut into = [0; 8];
    for length in [0, 8] {
        (0..64).try_for_each(|_| world.send(other, 5, &[7; 8][..length]))?;
        world.barrier()?;
        (0..64).try_for_each(|_| world.recv(other, 5, &mut into).map(drop))?;
    }
    Ok(())
}

/// Brings what waits for a rail, answers among them, to a depth that no round reaches.
fn flood_window(world: &World, windows: &Windows<'_>, out: &[u8]) -> Result<(), Error> {
    let target = windows.of(1 - world.rank());
    for _ in 0..20 {
        let mut into = [[0; 64]; 16];
        world.scope(|s| {
            for into in &mut into {
                drop(s.iput(target, 64, out)?);
                drop(s.iput(target, 0, b"eight by")?);
                drop(s.iget(target, 0, into)?);
            }
            Ok(())
        })?;
        world.barrier()?;
    }
    Ok(())
}

/// The only test in this file: the count is that of the whole process.
#[test]
fn the_steady_state_allocates_nothing() {
    for mode in MODES {
        let (warm, measured) = (Barrier::new(2), Barrier::new(2));
        // First the number at the beginning of the measurement, then the allocations since.
        let count = AtomicU64::new(0);
        let now = || alloc::of_process().allocations;
        job(2, &config(mode), |world| {
            let mut small = [0; 8];
            let mut large = [vec![1; 200_000], vec![0; 200_000]];
            let region = world.region(200_064).unwrap();
            let windows = world.windows(region.whole(), WindowAccess::ALL).unwrap();
            flood(&world).unwrap();
            flood_window(&world, &windows, &large[0]).unwrap();
            for number in 0..300 {
                round(&world, &mut small, &mut large).unwrap();
                if number % 3 == 0 {
                    operations(&world, &windows, &mut small, &mut large).unwrap();
                }
            }
            if warm.wait().is_leader() {
                count.store(now(), Ordering::SeqCst);
            }
            warm.wait();
            for number in 0..300 {
                round(&world, &mut small, &mut large).unwrap();
                if number % 3 == 0 {
                    operations(&world, &windows, &mut small, &mut large).unwrap();
                }
            }
            if measured.wait().is_leader() {
                count.store(now() - count.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            measured.wait();
        });
        assert_eq!(
            count.load(Ordering::SeqCst),
            0,
            "allocations in 600 rounds, {mode:?}"
        );
    }
}
