//! One-sided operations on windows: between threads, between processes, over rails that break, with windows
//! that close and owners that are killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{MODES, config, in_both_modes, job, pattern};
use crate::processes::{ROLE, start_test};
use doorbell::{
    Arithmetic, Config, Error, OperationError, RemoteWindow, Window, WindowAccess, Windows, World,
};
use doorbell_testing::netns::Lab;

const LENGTHS: [usize; 9] = [0, 1, 8, 100, 4096, 20_000, 70_000, 1 << 20, 3_000_001];
const LONGEST: usize = 3_000_001;

fn windows(world: &World, length: usize) -> Windows<'_> {
    let region = world.region(length).unwrap();
    world.windows(region.whole(), WindowAccess::ALL).unwrap()
}

fn bytes(window: &Window<'_>, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert_eq!(window.read(at, &mut bytes), length);
    bytes
}

fn reason(error: Error) -> OperationError {
    match error {
        Error::OneSided { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Puts and gets of every length, blocking, in a scope and with regions.
fn moves(world: &World, to: u32) {
    let windows = windows(world, LONGEST + 8);
    let (own, target) = (world.rank(), windows.of(to));
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let data = pattern(own * 100 + round as u32, length);
        let mut back = vec![0; length];
        world.put(target, 5, &data).unwrap();
        world.get(target, 5, &mut back).unwrap();
        assert!(back == data, "blocking, {length}");

        let data = pattern(own * 200 + round as u32, length);
        back.fill(0);
        world
            .scope(|scope| {
                assert_eq!(scope.iput(target, 8, &data)?.wait()?.len, length);
                let got = scope.iget(target, 8, &mut back)?.wait_buffer()?;
                assert_eq!((got.0.source, got.0.tag, got.0.len), (to, 0, length));
                Ok(())
            })
            .unwrap();
        assert!(back == data, "in a scope, {length}");

        let region = world.region(2 * length).unwrap();
        let data = pattern(own * 300 + round as u32, length);
        region.write(0, &data);
        let put = world.iput_region(target, 3, region.slice(0, length).unwrap());
        put.unwrap().wait().unwrap();
        let get = world.iget_region(target, 3, region.slice(length, length).unwrap());
        get.unwrap().wait().unwrap();
        region.read(length, &mut back);
        assert!(back == data, "with regions, {length}");
    }
    world.fence().unwrap();
    // Of two ranks, each has written to the other; one alone to itself.
    assert!(bytes(windows.own(), 3, LONGEST) == pattern(to * 300 + 8, LONGEST));
    world.fence().unwrap();
}

#[test]
fn bytes_are_put_and_got_of_every_length() {
    in_both_modes(2, |world| moves(&world, 1 - world.rank()));
}

#[test]
fn a_rank_reaches_its_own_windows() {
    in_both_modes(1, |world| moves(&world, 0));
}

#[test]
fn bytes_are_put_and_got_over_udp() {
    for mode in MODES {
        let mut config = config(mode);
        config.set("rails.list", "udp:lo").unwrap();
        config.set("udp.port", "0").unwrap();
        job(2, &config, |world| moves(&world, 1 - world.rank()));
    }
}

#[test]
fn what_the_owner_refuses_is_an_error_at_the_initiator() {
    in_both_modes(2, |world| {
        let rank = world.rank();
        let other = 1 - rank;
        let all = windows(&world, 100);
        let region = world.region(100).unwrap();
        let reads = world.windows(region.whole(), WindowAccess::READ).unwrap();
        let target = all.of(other);
        let mut into = [0; 8];
        let far = world.put(target, 93, &[1; 8]).unwrap_err();
        assert_eq!(reason(far), OperationError::Range);
        let far = world.get(target, u64::MAX, &mut into).unwrap_err();
        assert_eq!(reason(far), OperationError::Range);
        let long = world.put(target, 0, &[1; 1 << 20]).unwrap_err();
        assert_eq!(reason(long), OperationError::Range);
        let add = world.fetch_accumulate(target, 96, Arithmetic::Sum, 1u64);
        assert_eq!(reason(add.unwrap_err()), OperationError::Range);
        let unread = world.put(reads.of(other), 0, b"refused").unwrap_err();
        assert_eq!(reason(unread), OperationError::Access);
        world.get(reads.of(other), 0, &mut into).unwrap();
        let add = world.fetch_accumulate(reads.of(other), 0, Arithmetic::Sum, 1u64);
        assert_eq!(reason(add.unwrap_err()), OperationError::Access);

        let mut forged = target.to_bytes();
        forged[4] ^= 0x55;
        let unknown = world.put(RemoteWindow::from_bytes(forged), 0, b"forged");
        let unknown = unknown.unwrap_err();
        assert!(unknown.to_string().contains("no open window"), "{unknown}");
        assert_eq!(
            (unknown.code(), reason(unknown)),
            ("one-sided", OperationError::UnknownKey)
        );
        let mut absent = target.to_bytes();
        absent[0] = 9;
        let absent = RemoteWindow::from_bytes(absent);
        assert_eq!(world.put(absent, 0, b"x").unwrap_err().code(), "rank.unknown");
        assert_eq!(world.flush(9).unwrap_err().code(), "rank.unknown");
        // There is no such operation.
        let undefined = world.accumulate(target, 0, Arithmetic::Band, &[1.0f64]);
        assert_eq!(undefined.unwrap_err().code(), "layout");
        let conditional = world.accumulate(target, 0, Arithmetic::Cswap, &[1u64]);
        assert_eq!(conditional.unwrap_err().code(), "layout");
        let long = world.scope(|scope| {
            let operands = &[1u8; 5000];
            scope.iaccumulate(target, 0, Arithmetic::Sum, operands).map(drop)
        });
        assert_eq!(long.unwrap_err().code(), "layout");

        // An error of a request that was not waited for is that of its scope.
        let scope = world.scope(|scope| {
            drop(scope.iput(target, 99, b"too long")?);
            Ok(())
        });
        assert_eq!(reason(scope.unwrap_err()), OperationError::Range);
        // Nothing of it was done, and the windows are as good as before.
        world.fence().unwrap();
        assert_eq!(bytes(all.own(), 0, 100), [0; 100]);
        let name = reads.of(other);
        drop(reads);
        world.fence().unwrap();
        let closed = world.get(name, 0, &mut into).unwrap_err();
        assert_eq!(reason(closed), OperationError::UnknownKey);
        world.put(target, 0, b"goes on").unwrap();
        world.fence().unwrap();
        assert_eq!(bytes(all.own(), 0, 7), b"goes on");
        world.fence().unwrap();
    });
}

/// Every rank adds to elements of every rank, in several types; each ticket is given out once.
fn sums(world: &World) {
    const ROUNDS: u64 = 300;
    let (rank, size) = (world.rank(), world.size());
    let all = windows(world, 16_384);
    let mut tickets = Vec::new();
    for round in 0..ROUNDS {
        let to = (rank + round as u32) % size;
        let target = all.of(to);
        let ticket = world.fetch_accumulate(all.of(0), 0, Arithmetic::Sum, 1u64);
        tickets.push(ticket.unwrap());
        world
            .accumulate(target, 8, Arithmetic::Sum, &[round, u64::from(rank)])
            .unwrap();
        world
            .accumulate(target, 24, Arithmetic::Sum, &[0.5f64, 1.0])
            .unwrap();
        world
            .accumulate(target, 40, Arithmetic::Sum, &[-1i32; 3])
            .unwrap();
        world
            .accumulate(target, 52, Arithmetic::Max, &[round as u32])
            .unwrap();
        world.accumulate(target, 56, Arithmetic::Sum, &[1u8; 5]).unwrap();
        world
            .accumulate(target, 64, Arithmetic::Sum, &[u128::from(u64::MAX)])
            .unwrap();
        // A lock by compare and swap, under which the count is not atomic.
        if round % 10 == 0 {
            let taken = u64::from(rank) + 1;
            while world.compare_and_swap(all.of(0), 80, 0, taken).unwrap() != 0 {
                world.progress();
            }
            let mut count = [0; 8];
            world.get(all.of(0), 88, &mut count).unwrap();
            let count = u64::from_ne_bytes(count) + 1;
            world.put(all.of(0), 88, &count.to_ne_bytes()).unwrap();
            let before = world.fetch_accumulate(all.of(0), 80, Arithmetic::Swap, 0u64);
            assert_eq!(before.unwrap(), taken, "it is ours");
        }
    }
    // More elements than one operation has, to all.
    let many = vec![3u16; 8000];
    for to in 0..size {
        world.accumulate(all.of(to), 96, Arithmetic::Sum, &many).unwrap();
    }
    let mut before = [0u64; 2];
    world
        .scope(|scope| {
            let read = scope.ifetch_accumulate(all.of(rank), 8, Arithmetic::Read, &[], &mut before)?;
            read.wait().map(drop)
        })
        .unwrap();
    assert!(before[0] > 0);
    world.fence().unwrap();

    let own = all.own();
    let all_rounds = |of: &dyn Fn(u32, u64) -> u64| -> u64 {
        let mine = |from: u32| (0..ROUNDS).filter(move |round| (from + *round as u32) % size == rank);
        (0..size)
            .flat_map(|from| mine(from).map(move |round| of(from, round)))
            .sum()
    };
    let times = all_rounds(&|_, _| 1);
    assert_eq!(own.load(8), Some(all_rounds(&|_, round| round)));
    assert_eq!(own.load(16), Some(all_rounds(&|from, _| u64::from(from))));
    assert_eq!(own.load(24), Some(times as f64 / 2.0));
    assert_eq!(own.load(32), Some(times as f64));
    assert_eq!(own.load(44), Some(-(times as i32)));
    assert_eq!(own.load(52), Some(299u32));
    assert_eq!(own.load(60), Some(times as u8));
    assert_eq!(own.load(64), Some(u128::from(u64::MAX) * u128::from(times)));
    for at in [96, 96 + 4094, 96 + 4096, 96 + 15_998] {
        assert_eq!(own.load(at), Some(3 * size as u16), "{at}");
    }
    if rank == 0 {
        assert_eq!(own.load(0), Some(ROUNDS * u64::from(size)));
        assert_eq!(
            (own.load(80), own.load(88)),
            (Some(0u64), Some(30 * u64::from(size)))
        );
        let counts = own.counts().unwrap();
        assert!(counts.writes > ROUNDS && counts.reads > ROUNDS, "{counts:?}");
    }
    // Each ticket once.
    let mine: Vec<u8> = tickets.iter().flat_map(|ticket| ticket.to_le_bytes()).collect();
    let mut given = vec![0; mine.len() * size as usize];
    world.allgather(&mine, &mut given).unwrap();
    let mut given: Vec<u64> = given
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect();
    given.sort_unstable();
    assert!(given.into_iter().eq(0..ROUNDS * u64::from(size)));
    world.fence().unwrap();
}

#[test]
fn what_all_ranks_add_at_once_is_all_there() {
    in_both_modes(4, |world| sums(&world));
}

#[test]
fn a_flush_waits_for_operations_whose_requests_are_gone() {
    in_both_modes(2, |world| {
        let other = 1 - world.rank();
        let all = windows(&world, 1 << 20);
        let region = world.region(1 << 20).unwrap();
        region.write(0, &pattern(7, 1 << 20));
        for round in 0..50 {
            let length = if round % 2 == 0 { 1 << 20 } else { 300 };
            drop(
                world
                    .iput_region(all.of(other), 0, region.slice(0, length).unwrap())
                    .unwrap(),
            );
            drop(
                world
                    .iput_region(all.of(other), 0, region.slice(0, 8).unwrap())
                    .unwrap(),
            );
            world.flush(other).unwrap();
            world.flush(world.rank()).unwrap();
            // A message may overtake nothing that was flushed.
            world.send(other, 1, b"").unwrap();
            world.recv(other, 1, &mut []).unwrap();
            assert!(bytes(all.own(), 0, length) == pattern(7, length), "{round}");
            world.fence().unwrap();
            all.own().write(0, &vec![0; 1 << 20]);
            world.fence().unwrap();
        }
    });
}

#[test]
fn a_window_that_closes_in_the_middle_ends_what_is_under_way() {
    for length in [64, 3 << 20] {
        for mode in MODES {
            job(2, &config(mode), |world| {
                for round in 0..10 {
                    let region = world.region(length).unwrap();
                    let window = world.window(region.whole(), WindowAccess::ALL).unwrap();
                    let mut name = window.remote().to_bytes();
                    world.broadcast(0, &mut name).unwrap();
                    if world.rank() == 0 {
                        // Some operations have come, or parts of them.
                        let begun = Instant::now();
                        while begun.elapsed() < Duration::from_micros(200 * round) {
                            world.progress();
                        }
                        window.close().unwrap();
                        let kept = pattern(round as u32, length);
                        region.write(0, &kept);
                        world.barrier().unwrap();
                        let mut now = vec![0; length];
                        region.read(0, &mut now);
                        assert!(now == kept, "nothing came later");
                    } else {
                        let target = RemoteWindow::from_bytes(name);
                        let data = vec![0xee; length];
                        let mut into = vec![0; length];
                        let error = loop {
                            if let Err(error) = world.put(target, 0, &data) {
                                break error;
                            }
                            if let Err(error) = world.get(target, 0, &mut into) {
                                break error;
                            }
                        };
                        let reason = reason(error);
                        assert!(
                            matches!(reason, OperationError::Closed | OperationError::UnknownKey),
                            "{reason:?}"
                        );
                        world.barrier().unwrap();
                    }
                }
            });
        }
    }
}

/// With a progress thread, the owner makes no call at all.
#[test]
fn a_progress_thread_serves_an_owner_that_makes_no_calls() {
    let over = AtomicBool::new(false);
    job(2, &config(doorbell::config::Mode::Dedicated), |world| {
        let all = windows(&world, 1 << 20);
        if world.rank() == 0 {
            world.put(all.of(1), 0, &pattern(1, 1 << 20)).unwrap();
            let sum = world.fetch_accumulate(all.of(1), 0, Arithmetic::Sum, 1u64);
            sum.unwrap();
            over.store(true, Ordering::Release);
        } else {
            let begun = Instant::now();
            while !over.load(Ordering::Acquire) {
                assert!(begun.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(1));
            }
            assert!(bytes(all.own(), 8, 1000) == pattern(1, 1008)[8..]);
        }
        world.fence().unwrap();
    });
}

/// An owner that makes no calls ends nothing: the wait ends by its deadline, and the memory is free.
#[test]
fn a_wait_for_an_owner_that_makes_no_calls_ends_at_its_deadline() {
    for mode in MODES {
        let over = AtomicBool::new(false);
        let mut other = config(mode);
        other.progress.mode.set(doorbell::config::Mode::Inline);
        job(2, &other, |world| {
            let all = windows(&world, 1 << 20);
            if world.rank() == 1 {
                while !over.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
                return world.fence().unwrap();
            }
            let within = world.within(Duration::from_millis(50));
            let mut into = vec![0; 1 << 20];
            for error in [
                within.put(all.of(1), 0, &into).unwrap_err(),
                within.get(all.of(1), 0, &mut into).unwrap_err(),
                within.get(all.of(1), 0, &mut into[..8]).unwrap_err(),
                within
                    .fetch_accumulate(all.of(1), 0, Arithmetic::Sum, 1u64)
                    .unwrap_err(),
            ] {
                assert_eq!(error.code(), "timeout", "{error}");
                assert!(error.to_string().contains("at rank 1"), "{error}");
            }
            let region = world.region(8).unwrap();
            drop(world.iput_region(all.of(1), 0, region.whole()).unwrap());
            let error = within.flush(1).unwrap_err();
            assert!(error.to_string().contains("its operations at rank 1"), "{error}");
            over.store(true, Ordering::Release);
            world.fence().unwrap();
        });
    }
}

/// Two rails, of which the first breaks again and again.
fn broken(rails: &str, faults: &str, length: usize, rounds: u64) {
    let mut config = Config::default();
    config.set("rails.list", rails).unwrap();
    config.set("udp.port", "0").unwrap();
    config.set("fault.inject", faults).unwrap();
    config.wait.deadline.set(Duration::from_secs(30));
    let worlds = doorbell::local(2, &config).unwrap();
    let side = |world: World| {
        let other = 1 - world.rank();
        let all = windows(&world, length + 64);
        let mut into = vec![0; length];
        for round in 0..rounds {
            let before = world.fetch_accumulate(all.of(other), 0, Arithmetic::Sum, 1u64);
            assert_eq!(before.unwrap(), round, "each addition once");
            let data = pattern(round as u32 * 2 + world.rank(), length);
            let operands = [round, 1];
            world
                .scope(|scope| {
                    let add = scope.iaccumulate(all.of(other), 8, Arithmetic::Sum, &operands)?;
                    let put = scope.iput(all.of(other), 64, &data)?;
                    add.wait()?;
                    put.wait().map(drop)
                })
                .unwrap();
            world.get(all.of(other), 64, &mut into).unwrap();
            assert!(into == data, "round {round}");
        }
        world.fence().unwrap();
        assert_eq!(all.own().load(0), Some(rounds));
        assert_eq!(all.own().load(8), Some((0..rounds).sum::<u64>()));
        assert_eq!(all.own().load(16), Some(rounds));
        world.fence().unwrap();
        let counters = world.counters().unwrap();
        assert!(counters.paths_down >= 1, "{counters:?}");
        world.fence().unwrap();
    };
    thread::scope(|scope| {
        let side = &side;
        let ranks: Vec<_> = worlds
            .into_iter()
            .map(|world| scope.spawn(move || side(world)))
            .collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

/// Both ranks in one network namespace with two interfaces, of which the first breaks at both.
#[test]
fn operations_are_done_once_over_two_rails_of_datagrams() {
    let Some(lab) = Lab::pair(
        "doorbell::it::windows::operations_are_done_once_over_two_rails",
        1500,
    ) else {
        return;
    };
    lab.ip(0, "link add v1 type veth peer name w1");
    lab.ip(0, "addr add 10.78.1.1/24 dev v1");
    lab.ip(0, "link set w1 up");
    lab.ip(0, "link set v1 up");
    lab.wait_until_up(0, "v1");
    let rails = "udp:v0,udp:v1";
    lab.inside(0, || broken(rails, "udp:v0:300,udp:v0:300", 100, 500));
    lab.inside(0, || broken(rails, "udp:v0:60", 2 << 20, 12));
}

#[test]
fn operations_are_done_once_where_shared_memory_breaks() {
    broken("shm,udp:lo", "shm:300,shm:300", 100, 500);
    broken("shm,udp:lo", "shm:20", 2 << 20, 12);
}

/// Kills the second rank while the first one waits for its windows.
fn killed(world: &World) {
    let way = std::env::var("DOORBELL_TEST_WAY").unwrap();
    let all = windows(world, 4 << 20);
    if world.rank() == 1 {
        world.send(0, 1, b"ready").unwrap();
        if way.starts_with("late") {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(20) {
                world.progress();
            }
        }
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        unreachable!("a killed process goes on");
    }
    world.recv(1, 1, &mut [0; 5]).unwrap();
    let target = all.of(1);
    let mut data = vec![1; 4 << 20];
    let begun = Instant::now();
    let error = loop {
        let outcome = match way.as_str() {
            "put" | "late put" => world.put(target, 0, &data[..8]),
            "long put" | "late long put" => world.put(target, 0, &data),
            "get" => world.get(target, 0, &mut data[..8]),
            "late long get" => world.get(target, 0, &mut data),
            "add" | "late add" => world.fetch_accumulate(target, 0, Arithmetic::Sum, 1u64).map(drop),
            "flush" => {
                let region = world.region(64).unwrap();
                let put = world.iput_region(target, 0, region.whole());
                put.map(drop).and_then(|()| world.flush(1))
            }
            other => panic!("there is no way {other}"),
        };
        if let Err(error) = outcome {
            break error;
        }
    };
    assert!(
        matches!(&error, Error::PeerLost { peer: 1, .. }),
        "{way}: {error}"
    );
    let limit = Duration::from_secs(2);
    assert!(
        begun.elapsed() < limit,
        "{way}: noticed after {:?}",
        begun.elapsed()
    );
    assert!(matches!(world.flush(1), Err(Error::PeerLost { .. })), "{way}");
    // The survivor's own windows go on.
    world.put(all.of(0), 0, b"alive").unwrap();
    world.flush(0).unwrap();
}

/// The body of a started process; without a role, this is no test.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let world = doorbell::init().unwrap();
    match role.as_str() {
        "moves" => moves(&world, (world.rank() + 1) % world.size()),
        "sums" => sums(&world),
        "killed" => killed(&world),
        other => panic!("there is no role {other}"),
    }
}

#[test]
fn processes_reach_each_others_windows() {
    for mode in MODES {
        start_test("windows::child", "moves", 2, mode, &[]).succeeds();
        start_test("windows::child", "sums", 4, mode, &[]).succeeds();
    }
    let inline = doorbell::config::Mode::Inline;
    let more = [("DOORBELL_SHM_CMA", "off")];
    start_test("windows::child", "moves", 2, inline, &more).succeeds();
    let more = [("DOORBELL_WAIT", "sleep")];
    start_test("windows::child", "moves", 2, inline, &more).succeeds();
}

#[test]
fn the_end_of_a_killed_owner_is_an_error_within_bounds() {
    let ways = [
        "put",
        "late put",
        "long put",
        "late long put",
        "get",
        "late long get",
        "add",
        "late add",
        "flush",
    ];
    for mode in MODES {
        for way in ways {
            let more = [("DOORBELL_TEST_WAY", way)];
            let status = start_test("windows::child", "killed", 2, mode, &more).wait();
            assert!(status[0].success(), "{mode:?} {way}: {status:?}");
            assert!(!status[1].success());
        }
    }
}
