//! Jobs whose ranks find each other at first use, run in threads over real rails with a launcher made for
//! these tests.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use doorbell_job::config::Config;
use doorbell_job::error::Error;
use doorbell_job::launcher::LauncherHandle;
use doorbell_job::types::Source;

use crate::world::World;

#[path = "../../job/src/meet/shelf.rs"]
mod shelf;
use self::shelf::{Shelf, Values};

/// A test that waits this long has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs such a job, with `rank` on each of its ranks.
fn job<R: Send>(
    size: u32,
    rail: &str,
    values: &Values,
    rank: impl Fn(World) -> R + Sync,
) -> Vec<Result<R, Error>> {
    let barrier = Arc::new(Barrier::new(size as usize));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|number| {
                let mut config = Config::default();
                config.set("rails.list", rail).unwrap();
                config.set("job.lazy_above", "1").unwrap();
                config.set("wait.deadline", "60 s").unwrap();
                config.job.rank.set(Some(number));
                config.job.size.set(Some(size));
                let shelf: Box<dyn doorbell_oob::Launcher> =
                    Box::new(Shelf::new((number, size), values, &barrier));
                let launcher: LauncherHandle = Arc::new(Mutex::new(shelf));
                let rank = &rank;
                scope.spawn(move || crate::builder::build_through(Some(&launcher), config, None).map(rank))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn known(world: &World) -> usize {
    (0..world.size())
        .filter(|rank| world.rank_info(*rank).is_some())
        .count()
}

/// Every rank sends to its right neighbour, and receives from its left one, whose rank it does not name.
fn ring(rail: &str) {
    const SIZE: u32 = 12;
    let values = Values::default();
    let start = Barrier::new(SIZE as usize);
    let all = job(SIZE, rail, &values, |world| {
        // Before any message, each rank knows itself and rank 0.
        assert_eq!(known(&world), if world.rank() == 0 { 1 } else { 2 });
        assert!(
            world
                .peer((world.rank() + 1) % SIZE)
                .is_none_or(|peer| peer.rails.is_empty())
        );
        start.wait();
        let right = (world.rank() + 1) % SIZE;
        let small = [world.rank() as u8; 40];
        let long = vec![world.rank() as u8; 300_000];
        let mut short = [0; 64];
        let mut room = vec![0; long.len()];
        for _ in 0..3 {
            world.send(right, 7, &small).unwrap();
            let status = world.recv(Source::Any, 7, &mut short).unwrap();
            assert_eq!(status.source, (world.rank() + SIZE - 1) % SIZE);
            assert_eq!(short[..status.len], [status.source as u8; 40]);
            world
                .scope(|scope| {
                    let sent = scope.isend(right, 8, &long)?;
                    let got = scope.irecv(status.source, 8, &mut room)?;
                    sent.wait()?;
                    got.wait().map(drop)
                })
                .unwrap();
            assert!(room.iter().all(|byte| u32::from(*byte) == status.source));
        }
        // Rank 0, both neighbours, itself. The search for the left neighbour may meet the right one on the
        // way, and no others.
        let met = known(&world);
        assert!((3..=5).contains(&met), "{met}");
        assert!(
            world.selection(right).is_some()
                && world
                    .rank_info((right + 3) % SIZE)
                    .is_none_or(|far| far.rank == 0)
        );
        // No rank leaves while others look for it.
        start.wait();
        met
    });
    let met: usize = all.into_iter().map(Result::unwrap).sum();
    // Each known record was read once, by all ranks but its own.
    assert_eq!(values.looks(), met - SIZE as usize);
}

#[test]
fn neighbours_in_shared_memory_meet_at_first_use() {
    ring("shm");
}

#[test]
fn neighbours_over_sockets_meet_at_first_use() {
    ring("udp:lo");
}

#[test]
fn collectives_connect_the_ranks_that_they_need() {
    const SIZE: u32 = 8;
    let values = Values::default();
    let all = job(SIZE, "shm", &values, |world| {
        world.barrier().unwrap();
        let mut word = [world.rank() as u8; 8];
        world.broadcast(3, &mut word).unwrap();
        assert_eq!(word, [3; 8]);
        let mut all = [0; SIZE as usize];
        world.allgather(&[world.rank() as u8], &mut all).unwrap();
        assert!(all.iter().copied().eq(0..SIZE as u8));
        world.barrier().unwrap();
        known(&world)
    });
    assert_eq!(all.len(), SIZE as usize);
    all.into_iter().for_each(|met| assert!(met.unwrap() > 2));
}

#[test]
fn an_unreadable_record_loses_its_rank_only_for_ranks_that_need_it() {
    let values = Values::default();
    // Rank 2 has published a record that cannot be parsed.
    values.keep(2, "hello", b"{\"hello\": 3}");
    let both = Barrier::new(3);
    let all = job(3, "shm", &values, |world| {
        if world.rank() == 1 {
            let error = world.within(LIMIT).send(2, 7, b"x").unwrap_err();
            assert_eq!(error.code(), "peer.lost");
            let text = error.to_string();
            assert!(text.contains("the hello of rank 2 does not parse"), "{text}");
            let again = world.within(LIMIT).recv(2, 7, &mut [0; 8]).unwrap_err();
            assert!(again.to_string().contains("does not parse"), "{again}");
        }
        if world.rank() == 0 {
            world.meet(1).unwrap();
            assert_eq!(world.peer(1).unwrap().rails[0].name, "shm");
            let error = world.meet(2).unwrap_err().to_string();
            assert!(error.contains("does not parse"), "{error}");
            assert_eq!(world.meet(3).unwrap_err().code(), "rank.unknown");
        }
        if world.rank() < 2 {
            let other = 1 - world.rank();
            world.send(other, 8, b"still here").unwrap();
            let mut room = [0; 16];
            assert_eq!(world.recv(other, 8, &mut room).unwrap().len, 10);
        }
        both.wait();
    });
    all.into_iter().for_each(|rank| rank.unwrap());
}

#[test]
fn a_wait_for_a_rank_that_was_never_connected_explains_itself() {
    let values = Values::default();
    let both = Barrier::new(2);
    let all = job(2, "shm", &values, |world| {
        let failure = (world.rank() == 0).then(|| {
            let error = world
                .within(Duration::from_millis(200))
                .recv(Source::Any, 7, &mut [0; 8]);
            error.unwrap_err().to_string()
        });
        both.wait();
        failure
    });
    let errors: Vec<String> = all.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(errors.len(), 1);
    assert!(!errors[0].contains("is lost"), "{}", errors[0]);
}
