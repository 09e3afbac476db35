//! Rails that break on purpose (`fault.inject`), and rails of different kinds that take over for each other.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::pattern;
use doorbell::config::Resume;
use doorbell::{Config, World};
use doorbell_fabric::counters::{Reader, Value};

/// Two ranks with shared memory and the loopback, of which the first breaks at rank 0 or at both, as `faults`
/// states.
fn pair(faults: &str, edit: impl Fn(&mut Config)) -> [World; 2] {
    let mut config = Config::default();
    config.set("rails.list", "shm,udp:lo").unwrap();
    config.set("udp.port", "0").unwrap();
    config.set("fault.inject", faults).unwrap();
    edit(&mut config);
    let mut worlds = doorbell::local(2, &config).unwrap();
    let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    [zero, one]
}

fn count(world: &World, name: &str) -> u64 {
    let file = Reader::open(world.counter_file().unwrap()).unwrap();
    let snapshot = file.read().unwrap();
    let found = snapshot
        .readings
        .iter()
        .find(|reading| reading.entry.name == name);
    match found.map(|reading| &reading.value) {
        Some(Value::Counter(count) | Value::Gauge(count)) => *count,
        other => panic!("no row {name}: {other:?}"),
    }
}

/// Polls until both paths of a rank are up again.
fn returns(world: &World, from: Instant) {
    let peer = 1 - world.rank();
    loop {
        world.progress();
        let paths = world.paths(peer).unwrap();
        let shm = paths.iter().find(|way| way.rail == "shm").unwrap();
        // Whether it carries messages again depends on measured latencies, which may be alike on a busy
        // machine.
        if shm.state == "up" {
            return;
        }
        assert!(from.elapsed() < Duration::from_secs(10), "{paths:?}");
        thread::yield_now();
    }
}

/// Exchanges messages of both ranks, checked one by one; then each waits until the path has returned.
fn exchange(worlds: [World; 2], rounds: u32, bytes: usize) -> [World; 2] {
    let side = |world: World| {
        thread::spawn(move || {
            let (own, peer) = (world.rank(), 1 - world.rank());
            let mut into = vec![0; bytes];
            for round in 0..rounds {
                let out = pattern(round * 2 + own, bytes);
                world
                    .scope(|scope| {
                        let send = scope.isend(peer, 7, &out)?;
                        let len = world.recv(peer, 7, &mut into)?.len;
                        assert_eq!(len, bytes);
                        send.wait().map(drop)
                    })
                    .unwrap();
                assert!(
                    into == pattern(round * 2 + peer, bytes),
                    "round {round} of {bytes} bytes"
                );
            }
            returns(&world, Instant::now());
            // Both stay until both have found it.
            world.barrier().unwrap();
            // Counters are written to the file once in a millisecond.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(20) {
                world.progress();
            }
            world
        })
    };
    worlds.map(side).map(|thread| thread.join().unwrap())
}

#[test]
fn shared_memory_breaks_in_a_stream_of_small_messages_and_comes_back() {
    let worlds = exchange(pair("shm:500,shm:500", |_| ()), 1000, 64);
    let broken = |worlds: &[World; 2]| worlds.iter().all(|world| count(world, "pml.paths_down") >= 2);
    let mut worlds = exchange(worlds, 1000, 64);
    for _ in 0..20 {
        if !broken(&worlds) {
            worlds = exchange(worlds, 1000, 64);
        }
    }
    for world in &worlds {
        assert!(count(world, "pml.paths_down") >= 2, "it broke once at each end");
        assert!(count(world, "pml.paths_returned") >= 2);
        assert_eq!(count(world, "pml.peers_lost"), 0);
    }
}

#[test]
fn shared_memory_breaks_in_the_middle_of_a_rendezvous() {
    type Edit = fn(&mut Config);
    let cases: [(&str, Edit); 3] = [
        ("missing", |_| ()),
        ("from zero", |config| config.pml.resume.set(Resume::FromZero)),
        ("fragments", |config| {
            config.shm.cma.set(false);
            config.pml.handshake.set(true);
            config.set("fault.inject", "shm:20").unwrap();
        }),
    ];
    for (case, edit) in cases {
        let worlds = exchange(pair("shm:rendezvous", edit), 4, 8 << 20);
        let total = |name: &str| worlds.iter().map(|world| count(world, name)).sum::<u64>();
        assert!(total("pml.paths_down") >= 2, "{case}");
        assert!(total("pml.restarts") >= 1, "{case}: a transfer was in progress");
        assert!(
            total("udp:lo.messages_sent") > 0,
            "{case}: the other rail took over"
        );
    }
}

#[test]
fn a_fault_of_a_rail_that_is_not_in_use_is_refused() {
    let mut config = Config::default();
    config.set("rails.list", "shm").unwrap();
    config.set("fault.inject", "udp:lo:7").unwrap();
    let error = doorbell::local(2, &config).unwrap_err();
    assert_eq!(error.code(), "config.bad-value");
    assert!(error.to_string().contains("which udp:lo is not"), "{error}");
}

/// Without another rail, breaking the only one loses the peer: unless the error names `fault.inject`, the
/// user looks for the cause in vain.
#[test]
fn the_error_of_a_peer_lost_by_an_injected_fault_names_the_fault() {
    let [zero, one] = pair("udp:lo:3", |config| config.set("rails.list", "udp:lo").unwrap());
    let other = thread::spawn(move || {
        let mut into = [0; 8];
        while one
            .recv(0, 1, &mut into)
            .and_then(|_| one.send(0, 1, &into))
            .is_ok()
        {}
    });
    let mut into = [0; 8];
    let error = loop {
        if let Err(error) = zero.send(1, 1, &into).and_then(|()| zero.recv(1, 1, &mut into)) {
            break error;
        }
    };
    let text = error.to_string();
    assert_eq!(error.code(), "peer.lost", "{text}");
    assert!(
        text.contains("rank 1 is lost (fault.inject broke udp:lo on purpose"),
        "{text}"
    );
    assert!(error.remedy().contains("unset fault.inject"), "{text}");
    drop(zero);
    other.join().unwrap();
}
