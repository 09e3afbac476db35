//! One socket for both directions of a pair.

use std::sync::Arc;

use crate::connect;
use crate::tx::Handshake;

use super::*;

/// Whether both lanes of the pair use one socket, and none is about to be closed.
fn shares(rail: &ShmRail, peer: usize) -> bool {
    let peer = &rail.peers[peer];
    let (Some(tx), Some(rx)) = (&peer.tx, &peer.rx) else {
        return false;
    };
    matches!(&tx.handshake, Handshake::Up(far) if Arc::ptr_eq(&far.socket, &rx.socket))
        && rx.parting.is_none()
}

/// Two rails that have one socket, the one that begins it first.
fn merged() -> World {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    assert!(!shares(&world.rails[0], 1) && !shares(&world.rails[1], 0));
    world.up(1, 0);
    world.until("one socket", |world| {
        shares(&world.rails[0], 1) && shares(&world.rails[1], 0)
    });
    for rail in &mut world.rails {
        while rail.event().is_some() {}
    }
    world
}

fn readable(rail: &ShmRail) -> bool {
    let mut look = [rustix::event::PollFd::new(
        &rail.epoll,
        rustix::event::PollFlags::IN,
    )];
    let guard = rustix::time::Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut look, Some(&guard)).unwrap() == 1
}

/// Arms a rail, which has nothing to do.
fn asleep(world: &mut World, me: usize) {
    world.until("sleep", |world| {
        let sleeps = matches!(world.rails[me].arm().unwrap(), Armed::Sleep(_));
        if !sleeps {
            world.rails[me].disarm();
        }
        sleeps
    });
}

#[test]
fn it_wakes_both_ends_and_shows_the_end_of_both() {
    for ends in 0..2 {
        let mut world = merged();
        for me in [0, 1, 0, 1] {
            asleep(&mut world, me);
            let to = PeerIndex(me as u32);
            world.rails[1 - me].send(to, b"wake up", Body::Empty).unwrap();
            assert!(readable(&world.rails[me]), "{me} of {ends}");
            world.rails[me].disarm();
            world.until("delivery", |world| !world.seen[me].messages.is_empty());
            world.seen[me].messages.clear();
        }
        let (stays, peer) = (1 - ends, PeerIndex(ends as u32));
        asleep(&mut world, stays);
        // As the kernel does it: without a word.
        world.rails[ends].peers.clear();
        world.rails[ends].hot.clear();
        assert!(readable(&world.rails[stays]));
        world.rails[stays].disarm();
        let mut event = None;
        world.until("the end", |world| {
            event = world.rails[stays].event();
            event.is_some()
        });
        let event = event.unwrap();
        assert_eq!(event.kind, EventKind::PeerDown(DownReason::Died));
        assert_eq!(event.scope, doorbell_fabric::event::Scope::Peer(peer));
    }
}

#[test]
fn a_connection_that_is_made_again_comes_to_one_socket_too() {
    let mut world = merged();
    for round in 0..6 {
        let (from, to) = (round % 2, PeerIndex(1 - round as u32 % 2));
        world.rails[from].sever(Some(to));
        world.rails[from].revive(to);
        let start = Instant::now();
        while !shares(&world.rails[0], 1) || !shares(&world.rails[1], 0) {
            assert!(start.elapsed() < Duration::from_secs(60), "{round}");
            world.pump();
            world.rails[from].revive(to);
        }
        for me in 0..2 {
            world.rails[me]
                .send(PeerIndex(1 - me as u32), &[round as u8], Body::Empty)
                .unwrap();
        }
        world.until("both", |world| {
            world.seen.iter().all(|seen| !seen.messages.is_empty())
        });
        world.seen.iter_mut().for_each(|seen| seen.messages.clear());
    }
}

/// The word at a time at which it means nothing, and more than once.
#[test]
fn a_word_that_nobody_waits_for_changes_nothing() {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    let say = |world: &World, me: usize, peer: usize| {
        if let Some(Handshake::Up(far)) = world.rails[me].peers[peer].tx.as_ref().map(|tx| &tx.handshake) {
            assert!(connect::send_merge(&far.socket));
        }
    };
    for _ in 0..3 {
        say(&world, 0, 1);
        world.pump();
    }
    // Of the receiver of a lane, over the lane's socket.
    assert!(connect::send_merge(
        world.rails[1].peers[0].rx.as_ref().unwrap().socket()
    ));
    world.up(1, 0);
    for round in 0..50 {
        say(&world, round % 2, 1 - round % 2);
        for me in 0..2 {
            world.rails[me]
                .send(PeerIndex(1 - me as u32), &[round as u8], Body::Empty)
                .unwrap();
        }
        world.until("both", |world| {
            world.seen.iter().all(|seen| !seen.messages.is_empty())
        });
        world.seen.iter_mut().for_each(|seen| seen.messages.clear());
    }
    assert!(
        world
            .rails
            .iter()
            .all(|rail| rail.peers.iter().all(|peer| peer.down.is_none()))
    );
}
