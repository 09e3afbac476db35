//! Paths and identities: small MTUs on the way, before and during a run; peers that restart, strangers, other
//! jobs.

use std::time::Duration;

use crate::common::{End, RACK, Sink, World, rings};
use doorbell_btl::{BtlConfig, Diagnosis, Notice};
use doorbell_fabric::datagram::{Channel, Datagram, Transmit};
use doorbell_fabric::event::{DownReason, EventKind};
use doorbell_fabric::message::{Body, Message, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane, SimNet};

fn quick() -> BtlConfig {
    BtlConfig {
        connectivity_ack_timeout: Duration::from_millis(10),
        connectivity_error_num_retries: 20,
        give_up: Duration::from_secs(2),
        ..BtlConfig::default()
    }
}

/// What becomes of the first message over such a path.
fn first_use(faults: Faults) -> (World, Option<Diagnosis>) {
    let mut world = World::new(1, 2, rings(faults), &quick());
    let to = world.to(0, 1);
    assert!(world.ends[0].try_send(to, b"hello").is_some());
    world.until("the check comes to a result", Duration::from_secs(5), |world| {
        let works = world.ends[0].btl.diagnosis(to) == Some(Diagnosis::Works);
        works || world.ends[0].is_down(to).is_some()
    });
    world.turn();
    let found = world.ends[0].btl.diagnosis(to);
    (world, found)
}

#[test]
fn the_check_names_what_is_wrong() {
    let (world, found) = first_use(RACK);
    assert_eq!(
        (found, world.ends[0].is_down(world.to(0, 1))),
        (Some(Diagnosis::Works), None)
    );
    let small = Faults {
        mtu: Some(1000),
        ..RACK
    };
    let lose = |pick| Faults {
        aim: Some(Aim::each(pick, Effect::Lose)),
        ..RACK
    };
    let large = lose(Pick {
        longest: 200,
        ..Pick::ALL
    });
    let nothing = lose(Pick::ALL);
    for (faults, named) in [
        (small, Diagnosis::OnlySmall),
        (large, Diagnosis::OnlyLarge),
        (nothing, Diagnosis::Nothing),
    ] {
        let (mut world, found) = first_use(faults);
        let to = world.to(0, 1);
        assert_eq!(found, Some(named));
        assert_eq!(
            world.ends[0].is_down(to),
            Some(EventKind::PeerDown(DownReason::Silent))
        );
        assert_eq!(world.ends[0].btl.notice(), Some((to, Notice::Checked(named))));
        assert!(!named.advice().is_empty());
        // What was accepted is given back, for another rail to carry.
        let mut given = Vec::new();
        world.ends[0]
            .btl
            .reclaim(to, &mut |id, bytes| given.push((id.0, bytes.to_vec())));
        assert_eq!(given, [(1, b"hello".to_vec())]);
    }
}

/// One direction is enough to be wrong.
#[test]
fn the_check_tries_both_directions() {
    let mut world = World::new(1, 2, rings(RACK), &quick());
    world.net.change(Change::PairFaults {
        plane: Plane::FIRST,
        from: 1,
        to: 0,
        faults: Some(Faults {
            mtu: Some(1000),
            ..RACK
        }),
    });
    let to = world.to(0, 1);
    assert!(world.ends[0].try_send(to, b"hello").is_some());
    world.until("the peer is down", Duration::from_secs(5), |world| {
        world.ends[0].is_down(to).is_some()
    });
    assert_eq!(world.ends[0].btl.diagnosis(to), Some(Diagnosis::OnlySmall));
    assert_eq!(
        world.ends[1].sink.total(),
        0,
        "nothing was sent over a path that is not whole"
    );
}

/// The path shrinks while it is used: small messages pass, long ones do not, and the reason is named.
#[test]
fn a_black_hole_in_the_middle_of_a_run() {
    let mut world = World::new(1, 2, rings(RACK), &quick());
    let to = world.to(0, 1);
    for _ in 0..10 {
        assert!(world.ends[0].try_send(to, &[1; 5000]).is_some());
    }
    world.until("all arrive", Duration::from_secs(1), |world| {
        world.ends[1].sink.total() == 10
    });
    assert_eq!(world.ends[0].btl.diagnosis(to), Some(Diagnosis::Works));
    world.net.change(Change::Faults(
        Plane::FIRST,
        Faults {
            mtu: Some(1000),
            ..RACK
        },
    ));
    assert!(world.ends[0].try_send(to, &[2; 5000]).is_some());
    assert!(world.ends[0].try_send(to, b"small").is_some());
    world.until("the small one arrives", Duration::from_secs(1), |world| {
        world.ends[1].sink.total() == 11
    });
    world.until("the peer is down", Duration::from_secs(5), |world| {
        world.ends[0].is_down(to).is_some()
    });
    assert_eq!(
        world.ends[0].btl.diagnosis(to),
        Some(Diagnosis::OnlySmall),
        "{}",
        world.report()
    );
    assert!(world.ends[0].btl.counters().suspects > 0);
    let mut given = Vec::new();
    world.ends[0]
        .btl
        .reclaim(to, &mut |_, bytes| given.push(bytes.len()));
    assert_eq!(given, [5000, 5], "what is above the watermark");
}

/// Both ends find out about a path that shrank at about the same time. The one that the other leaves before
/// its own check has ended knows why all the same.
#[test]
fn a_peer_given_up_during_a_check_has_its_result() {
    let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
    let (to, back) = (world.to(0, 1), world.to(1, 0));
    assert!(world.ends[0].try_send(to, &[1; 5000]).is_some());
    assert!(world.ends[1].try_send(back, b"answer").is_some());
    world.until("both arrive", Duration::from_secs(1), |world| {
        world.ends.iter().all(|end| end.sink.total() == 1)
    });
    let shrunk = Faults {
        mtu: Some(1000),
        ..RACK
    };
    world.net.change(Change::Faults(Plane::FIRST, shrunk));
    assert!(world.ends[0].try_send(to, &[2; 5000]).is_some());
    let later = world.now() + Duration::from_secs(1);
    while world.now() < later {
        world.step();
    }
    assert_eq!(world.ends[0].is_down(to), None, "{}", world.report());
    assert_eq!(world.ends[0].btl.diagnosis(to), Some(Diagnosis::OnlySmall));
    let by = world.now() + Duration::from_secs(1);
    world.until("the other one goes", Duration::from_secs(2), |world| {
        let now = world.now();
        world.ends[1].btl.close(now, by);
        world.ends[0].is_down(to).is_some()
    });
    let closed = EventKind::PeerDown(DownReason::Closed);
    assert_eq!(world.ends[0].is_down(to), Some(closed));
    assert_eq!(world.ends[0].btl.diagnosis(to), Some(Diagnosis::OnlySmall));
}

/// A peer that shows life elsewhere and not here is down here soon; one that shows none has until the bound.
#[test]
fn silence_here_with_life_elsewhere() {
    for (elsewhere, earliest, latest) in [(true, 100, 500), (false, 60_000, 62_000)] {
        let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
        let to = world.to(0, 1);
        assert!(world.ends[0].try_send(to, b"first").is_some());
        world.until("it arrives", Duration::from_secs(1), |world| {
            world.ends[0].btl.handed_over(to).0 == 1
        });
        world.net.change(Change::Cut {
            plane: Plane::FIRST,
            from: 1,
            to: 0,
        });
        assert!(world.ends[0].try_send(to, b"second").is_some());
        let start = world.now();
        world.until("the peer is down", Duration::from_secs(100), |world| {
            if elsewhere {
                world.ends[0].btl.proved_alive(to);
            }
            world.ends[0].is_down(to).is_some()
        });
        let took = (world.now() - start).as_millis();
        assert!((earliest..=latest).contains(&took), "{took} ms");
        assert_eq!(
            world.ends[0].btl.send(to, b"third", Body::Empty),
            Err(Refused::PeerDown)
        );
    }
}

/// The owner was away for longer than the bound: that is not the peer's silence.
#[test]
fn an_owner_that_was_away_finds_its_peers_alive() {
    let mut world = World::new(1, 2, rings(RACK), &BtlConfig::default());
    let to = world.to(0, 1);
    for n in 1..=3 {
        assert!(world.ends[0].try_send(to, b"before").is_some());
        world.ends[0].flush();
        // End 0 is not called any more; end 1 goes on.
        let back = world.now() + Duration::from_secs(100);
        while world.now() < back {
            world.net.advance_to(world.now() + Duration::from_secs(1));
            let now = world.now();
            let end = &mut world.ends[1];
            end.btl.progress(now);
            end.btl.poll(64, &mut end.sink);
        }
        world.until("it is acknowledged", Duration::from_secs(1), |world| {
            world.ends[0].btl.handed_over(to).0 == n
        });
        assert!(world.ends[0].is_down(to).is_none(), "{}", world.report());
    }
}

/// Frames of a former life, and to a former life: counted, dropped; and the old life is reported as over.
#[test]
fn a_restarted_peer_is_another_one() {
    let config = quick();
    let delay = Duration::from_millis(40);
    let aim = Aim::each(Pick::ALL, Effect::Replay(delay));
    let mut world = World::new(
        1,
        2,
        rings(Faults {
            aim: Some(aim),
            ..RACK
        }),
        &config,
    );
    let old = world.to(0, 1);
    let back = world.to(1, 0);
    for _ in 0..20 {
        assert!(world.ends[0].try_send(old, b"to the old life").is_some());
        assert!(world.ends[1].try_send(back, b"from the old life").is_some());
    }
    world.until("all arrive", Duration::from_secs(1), |world| {
        world.ends[0].sink.total() == 20 && world.ends[1].sink.total() == 20
    });
    let alive = world.ends[0].sink.total();
    world.restart(1, &config);
    assert!(world.ends[0].try_send(old, b"too late").is_some());
    // Replayed frames of and for the old life arrive at the new one, which knows neither.
    let by = world.now() + 2 * delay;
    while world.now() < by {
        world.step();
    }
    assert_eq!(
        (world.ends[0].sink.total(), world.ends[1].sink.total()),
        (alive, 0),
        "nothing twice, nothing astray"
    );
    assert!(
        world.ends[1].btl.counters().dropped_unknown > 20,
        "{}",
        world.report()
    );
    assert!(
        world.ends[0].btl.counters().dropped_duplicate > 0,
        "{}",
        world.report()
    );

    // The new life is opened, and frames of it arrive: the old one is over.
    let new = world.open(0, 1);
    assert_ne!(new, old);
    let back = world.open(1, 0);
    assert!(world.ends[1].try_send(back, b"from the new life").is_some());
    world.until("the new life is up", Duration::from_secs(1), |world| {
        world.ends[0].sink.total() == alive + 1
    });
    assert_eq!(
        world.ends[0].is_down(old),
        Some(EventKind::PeerDown(DownReason::Died))
    );
    assert_eq!(
        world.ends[0].sink.messages.last().map(|(peer, _)| *peer),
        Some(new)
    );
    assert_eq!(
        world.ends[0].btl.send(old, b"", Body::Empty),
        Err(Refused::PeerDown)
    );
    let mut given = 0;
    world.ends[0]
        .btl
        .reclaim(old, &mut |_, bytes| given += usize::from(bytes == b"too late"));
    assert_eq!(given, 1);
}

/// Two jobs with other keys at the same addresses: neither receives anything of the other.
#[test]
fn two_jobs_on_one_port() {
    let mut world = World::new(1, 2, rings(RACK), &quick());
    let to = world.to(0, 1);
    assert!(world.ends[0].try_send(to, b"ours").is_some());
    world.until("it arrives", Duration::from_secs(1), |world| {
        world.ends[1].sink.total() == 1
    });
    // Another process has taken rank 2's port for a job of its own, and takes rank 1 for its own.
    let mut other = End::new(world.net.attach_datagram(), &quick(), 2);
    let (address, life) = (world.ends[1].btl.address(), world.ends[1].btl.incarnation());
    let there = other.btl.open(&address, life).unwrap();
    assert!(other.try_send(there, b"theirs").is_some());
    other.flush();
    world.ends.push(other);
    let by = world.now() + Duration::from_secs(3);
    while world.now() < by {
        world.step();
    }
    assert_eq!(world.ends[1].sink.total(), 1, "another job's message is not ours");
    assert!(
        world.ends[1].btl.counters().dropped_unknown > 2,
        "{}",
        world.report()
    );
    assert_eq!(
        world.ends[2].btl.diagnosis(there),
        Some(Diagnosis::Nothing),
        "and nothing at all arrives"
    );
    let known = |end: &End| {
        end.events
            .iter()
            .filter(|event| event.kind == EventKind::PeerUp)
            .count()
    };
    assert_eq!(known(&world.ends[1]), 1);
}

/// An attacker without a key, who sends arbitrary frames.
#[test]
fn a_strangers_frames_are_counted_and_dropped() {
    let mut world = World::new(1, 2, rings(RACK), &quick());
    let to = world.to(0, 1);
    assert!(world.ends[0].try_send(to, b"ours").is_some());
    world.until("it arrives", Duration::from_secs(1), |world| {
        world.ends[1].sink.total() == 1
    });
    let mut stranger = world.net.attach_datagram();
    let life = world.ends[1].btl.incarnation();
    let there = Datagram::open(&mut stranger, &world.ends[1].btl.address(), life).unwrap();
    for n in 0..100u64 {
        let (tx, _) = stranger.split();
        assert_eq!(tx.reserve(Channel::Data, 1), 1);
        let mut frame = [0; 60];
        frame[..8].copy_from_slice(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes());
        frame[18..20].copy_from_slice(&[2, 1 << 4]);
        tx.post(Channel::Data, there, &frame, Body::Empty).unwrap();
        tx.doorbell();
    }
    for _ in 0..200 {
        world.step();
    }
    let counters = *world.ends[1].btl.counters();
    assert_eq!(
        (counters.dropped_unknown, world.ends[1].sink.total()),
        (100, 1),
        "{}",
        world.report()
    );
}

/// Without a key nothing is opened, and the error has the remedy.
#[test]
fn a_key_comes_first() {
    let net = SimNet::new(1, rings(RACK));
    let (a, b) = (net.attach_datagram(), net.attach_datagram());
    let life = a.incarnation();
    let (address, other) = (b.address(), b.incarnation());
    let mut btl = doorbell_btl::Btl::new(a, BtlConfig::default(), life).unwrap();
    let error = btl.open(&address, other).unwrap_err().to_string();
    assert!(error.contains("set_key"), "{error}");
    assert_eq!(btl.poll(1, &mut Sink::default()), 0);
}
