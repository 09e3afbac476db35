//! Several worlds in one thread over the simulated network: the same seed gives the same run.

use std::time::Duration;

use crate::common::pattern;
use doorbell::config::Protocol;
use doorbell::sim::{Change, Faults, Plane, SimConfig, SimNet};
use doorbell::{Config, Error, Source, Tag, World};

fn worlds(net: &SimNet, size: u32) -> Vec<World> {
    doorbell::simulated(net, size, &Config::default()).unwrap()
}

/// Polls every world in turn until `done`.
fn drive(worlds: &[World], mut done: impl FnMut() -> bool) {
    for _ in 0..200_000 {
        if done() {
            return;
        }
        worlds.iter().for_each(|world| _ = world.progress());
    }
    panic!("nothing moves any more");
}

/// Each rank sends to each, in all sizes; returns the trace's hash.
fn all_to_all(seed: u64, protocol: Protocol) -> u64 {
    let faults = Faults {
        reorder: 0.3,
        jitter: Duration::from_micros(3),
        ..Faults::NONE
    };
    all_to_all_with(seed, protocol, faults, doorbell::simulated).0
}

type Make = fn(&SimNet, u32, &Config) -> Result<Vec<World>, Error>;

/// Runs it on a network with these faults; also returns the number of frames that it lost.
fn all_to_all_with(seed: u64, protocol: Protocol, faults: Faults, make: Make) -> (u64, u64) {
    let net = SimNet::new(
        seed,
        SimConfig {
            faults,
            ..SimConfig::default()
        },
    );
    let mut config = Config::default();
    config.pml.protocol.set(protocol);
    let worlds = make(&net, 4, &config).unwrap();
    let sizes = [0usize, 8, 3_000, 20_000, 100_000];
    let mut requests = Vec::new();
    let mut regions = Vec::new();
    for to in &worlds {
        for from in &worlds {
            for (tag, size) in (0u64..).zip(sizes) {
                let (out, into) = (from.region(size.max(1)).unwrap(), to.region(size.max(1)).unwrap());
                out.write(0, &pattern(from.rank() * 10 + to.rank(), size));
                requests.push(
                    to.irecv_region(from.rank(), tag, into.slice(0, size).unwrap())
                        .unwrap(),
                );
                requests.push(
                    from.isend_region(to.rank(), tag, out.slice(0, size).unwrap())
                        .unwrap(),
                );
                regions.push((from.rank() * 10 + to.rank(), size, into));
            }
        }
    }
    drive(&worlds, || requests.iter().all(|request| request.is_done()));
    for request in &mut requests {
        request.test().unwrap().unwrap();
    }
    for (seed, size, into) in regions {
        let mut bytes = vec![0; size];
        into.read(0, &mut bytes);
        assert!(bytes == pattern(seed, size), "{size} bytes");
    }
    (net.trace_hash(), net.total().lost)
}

#[test]
fn a_whole_job_runs_the_same_way_for_the_same_seed() {
    for protocol in [Protocol::Auto, Protocol::Fragments, Protocol::Put] {
        assert_eq!(all_to_all(7, protocol), all_to_all(7, protocol));
    }
    assert_ne!(all_to_all(7, Protocol::Auto), all_to_all(8, Protocol::Auto));
}

#[test]
fn deadlines_pass_in_virtual_time() {
    let net = SimNet::new(1, SimConfig::default());
    let worlds = worlds(&net, 2);
    let (wall, virtually) = (std::time::Instant::now(), net.now());
    let error = worlds[0]
        .within(Duration::from_secs(3_600))
        .recv(1, 7, &mut [])
        .unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!(net.now().since(virtually) >= Duration::from_secs(3_600));
    assert!(wall.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_dead_rank_ends_what_names_it_and_nothing_else() {
    let net = SimNet::new(2, SimConfig::default());
    let worlds = worlds(&net, 3);
    for world in &worlds[1..] {
        world.send(0, 1, b"hello").unwrap();
        worlds[0].recv(world.rank(), 1, &mut [0; 5]).unwrap();
    }
    let region = worlds[0].region(64).unwrap();
    let mut named = worlds[0].irecv_region(2, 9, region.slice(0, 8).unwrap()).unwrap();
    let mut any = worlds[0]
        .irecv_region(Source::Any, Tag::any(), region.slice(8, 8).unwrap())
        .unwrap();
    net.change(Change::RankDeath(2));
    drive(&worlds[..2], || named.is_done());
    assert!(matches!(named.test(), Some(Err(Error::PeerLost { peer: 2, .. }))));
    assert!(!any.is_done(), "another rank may still send");
    assert!(matches!(
        worlds[0].send(2, 1, &[0; 8]),
        Err(Error::PeerLost { peer: 2, .. })
    ));
    assert!(worlds[0].peer(2).unwrap().lost.is_some() && worlds[0].peer(1).unwrap().lost.is_none());
    worlds[1].send(0, 3, b"survivor").unwrap();
    drive(&worlds[..2], || any.is_done());
    assert_eq!(any.test().unwrap().unwrap().source, 1);
}

#[test]
fn a_send_over_a_dead_plane_ends_and_returns_its_buffer() {
    let net = SimNet::new(3, SimConfig::default());
    let worlds = worlds(&net, 2);
    let data = pattern(1, 200_000);
    worlds[0].send(1, 1, b"first contact").unwrap();
    worlds[1].recv(0, 1, &mut [0; 13]).unwrap();
    net.at(
        net.now() + Duration::from_micros(2),
        Change::PlaneDown(Plane::FIRST),
    );
    let error = worlds[0].send(1, 2, &data).unwrap_err();
    assert!(
        matches!(&error, Error::PeerLost { peer: 1, .. } | Error::Timeout(_)),
        "{error}"
    );
}

#[test]
fn a_simulated_job_has_no_thread_of_its_own() {
    let net = SimNet::new(4, SimConfig::default());
    let mut config = Config::default();
    config.progress.mode.set(doorbell::config::Mode::Dedicated);
    assert_eq!(
        doorbell::simulated(&net, 2, &config).unwrap_err().code(),
        "unsupported"
    );
    assert_eq!(
        doorbell::simulated(&net, 0, &Config::default())
            .unwrap_err()
            .code(),
        "job.description"
    );
}

#[test]
fn a_whole_job_over_datagrams_that_get_lost_runs_the_same_way_for_the_same_seed() {
    let faults = Faults {
        loss: 0.05,
        duplicate: 0.05,
        corrupt: 0.01,
        reorder: 0.3,
        jitter: Duration::from_micros(3),
        ..Faults::NONE
    };
    for protocol in [Protocol::Auto, Protocol::Fragments, Protocol::Get] {
        let run = |seed| all_to_all_with(seed, protocol, faults, doorbell::simulated_datagrams);
        let (hash, lost) = run(7);
        assert!(lost > 20, "{lost}");
        assert_eq!(run(7), (hash, lost));
        assert_ne!(run(8).0, hash);
    }
}

/// A message of `send_more` leaves with the message that follows it or with the next check, and none is lost.
#[test]
fn a_message_with_more_to_follow_waits_for_the_next_call() {
    let net = SimNet::new(3, SimConfig::default());
    let worlds = doorbell::simulated_datagrams(&net, 2, &Config::default()).unwrap();
    let region = worlds[1].region(8).unwrap();
    let into = |tag| worlds[1].irecv_region(0, tag, region.whole()).unwrap();
    // The path is checked first, and then known to pass frames.
    let mut first = into(0);
    worlds[0].send(1, 0, &[0; 8]).unwrap();
    drive(&worlds, || first.is_done());
    first.test().unwrap().unwrap();
    for last in [false, true] {
        let mut requests: Vec<_> = (1..=10).map(into).collect();
        let before = net.total().frames_sent;
        for tag in 1..=9 {
            worlds[0].send_more(1, tag, &[7; 8]).unwrap();
        }
        assert_eq!(net.total().frames_sent, before, "none has left");
        if last {
            worlds[0].send(1, 10, &[7; 8]).unwrap();
        } else {
            worlds[0].send_more(1, 10, &[7; 8]).unwrap();
            worlds[0].progress();
        }
        assert_eq!(net.total().frames_sent, before + 10, "all have");
        drive(&worlds, || requests.iter().all(doorbell::Request::is_done));
        requests
            .iter_mut()
            .for_each(|it| assert!(it.test().unwrap().is_ok()));
    }
}

#[test]
fn bytes_that_change_on_the_way_are_found_by_the_checksum() {
    let net = SimNet::new(3, SimConfig::default());
    let mut config = Config::default();
    config.pml.checksum.set(true);
    let worlds = doorbell::simulated_datagrams(&net, 2, &config).unwrap();
    let (from, into) = (
        worlds[0].region(1 << 20).unwrap(),
        worlds[1].region(1 << 20).unwrap(),
    );
    let mut send = worlds[0].issend_region(1, 7, from.whole()).unwrap();
    for _ in 0..50 {
        worlds.iter().for_each(|world| _ = world.progress());
    }
    from.write((1 << 20) - 1, &[1]);
    let mut receive = worlds[1].irecv_region(0, 7, into.whole()).unwrap();
    drive(&worlds, || send.is_done() && receive.is_done());
    send.test().unwrap().unwrap();
    let error = receive.test().unwrap().unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("message.corrupt", 1));
    assert!(
        error
            .to_string()
            .contains("1048576 bytes from rank 0 (tag 0x7) arrived damaged"),
        "{error}"
    );
}

#[test]
fn a_path_that_drops_full_frames_is_named_in_the_error_of_a_wait() {
    let net = SimNet::new(3, SimConfig::default());
    let worlds = doorbell::simulated_datagrams(&net, 2, &Config::default()).unwrap();
    let faults = Faults {
        mtu: Some(600),
        ..Faults::NONE
    };
    net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 0,
        to: 1,
        faults: Some(faults),
    });
    let region = worlds[0].region(64).unwrap();
    let mut send = worlds[0].issend_region(1, 7, region.whole()).unwrap();
    drive(&worlds, || send.is_done());
    let error = send.test().unwrap().unwrap_err();
    assert_eq!(error.code(), "peer.lost");
    assert!(
        error
            .to_string()
            .contains("small frames pass and full ones do not"),
        "{error}"
    );
}

/// Two ranks have exchanged messages; then the link of the second is cut, and the first sends. Returns its
/// error and the recorded events.
fn error_when_the_link_dies(recorder: u32) -> (Error, Vec<String>) {
    let net = SimNet::new(5, SimConfig::default());
    let mut config = Config::default();
    config.btl.give_up.set(Duration::from_secs(2));
    config.btl.recorder.set(recorder);
    let worlds = doorbell::simulated_datagrams(&net, 2, &config).unwrap();
    let region = worlds[0].region(64).unwrap();
    let mut first = worlds[0].issend_region(1, 1, region.whole()).unwrap();
    let mut taken = worlds[1]
        .irecv_region(0, 1, worlds[1].region(64).unwrap().whole())
        .unwrap();
    drive(&worlds, || first.is_done() && taken.is_done());
    first.test().unwrap().unwrap();
    taken.test().unwrap().unwrap();
    net.change(Change::LinkDown(Plane::FIRST, 1));
    let mut send = worlds[0].issend_region(1, 2, region.whole()).unwrap();
    drive(&worlds, || send.is_done());
    let error = send.test().unwrap().unwrap_err();
    (error, worlds[0].recorded(1).unwrap())
}

#[test]
fn an_error_ends_with_what_the_rail_recorded() {
    let (error, recorded) = error_when_the_link_dies(256);
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
    assert_eq!(lines, recorded.iter().map(|line| line.trim()).collect::<Vec<_>>());
    assert!(
        lines[0].ends_with("recorded about rank 1, newest last:"),
        "{text}"
    );
    assert!((5..=33).contains(&lines.len()), "{text}");
    let place = |words: &str| lines.iter().position(|line| line.contains(words));
    let order = ["opened", "time-out", "suspect", "down: it did not answer"].map(place);
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{text}");
    // Without a recorder it is one line.
    let (error, recorded) = error_when_the_link_dies(0);
    assert_eq!(
        (error.to_string().lines().count(), recorded.len()),
        (1, 0),
        "{error}"
    );
}

/// One rail, whose link is lost at one end while no message is sent, so that only that end notices: the other
/// one learns of it from the next message to it, and waits instead of taking the peer for lost.
#[test]
fn a_peer_with_one_rail_is_waited_for_by_the_end_that_did_not_lose_the_link() {
    let net = SimNet::new(6, SimConfig::default());
    let worlds = doorbell::simulated_datagrams(&net, 2, &Config::default()).unwrap();
    let exchange = |tag: u64| {
        let regions = [0, 1].map(|at: usize| worlds[at].region(100_000).unwrap());
        regions[0].write(0, &pattern(tag as u32, 100_000));
        let mut sent = worlds[0].isend_region(1, tag, regions[0].whole()).unwrap();
        let mut taken = worlds[1].irecv_region(0, tag, regions[1].whole()).unwrap();
        drive(&worlds, || sent.is_done() && taken.is_done());
        sent.test().unwrap().unwrap();
        taken.test().unwrap().unwrap();
        let mut bytes = vec![0; 100_000];
        regions[1].read(0, &mut bytes);
        assert!(bytes == pattern(tag as u32, 100_000), "{tag}");
    };
    exchange(1);
    for (tag, end) in [(2, 0), (3, 1), (4, 0)] {
        net.change(Change::LinkDown(Plane::FIRST, end));
        let begun = net.now();
        drive(&worlds, || net.now() - begun > Duration::from_millis(300));
        net.change(Change::LinkUp(Plane::FIRST, end));
        exchange(tag);
        assert!(
            worlds
                .iter()
                .all(|world| world.paths(1 - world.rank()).unwrap()[0].state == "up")
        );
    }
}
