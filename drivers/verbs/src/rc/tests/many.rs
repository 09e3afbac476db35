//! Many rails that reach each other at once, in processes that seldom run.

use std::time::Duration;

use doorbell_fabric::message::{Body, Message, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use super::credits::Count;
use super::{RcRail, rail};
use crate::rc::core::Sizes;

/// All rails, each with its peers.
fn all(count: usize) -> Vec<(RcRail, Vec<PeerIndex>)> {
    let sizes = Sizes {
        peers: 64,
        ..Sizes::default()
    };
    let mut rails: Vec<_> = (0..count).map(|_| rail(sizes)).collect();
    let addresses: Vec<_> = rails.iter().map(|(rail, life)| (rail.address(), *life)).collect();
    let mut open = |(at, (mut rail, _)): (usize, (RcRail, _))| {
        let others = addresses.iter().enumerate().filter(|(other, _)| *other != at);
        let peers = others
            .map(|(_, (address, life))| rail.open(address, *life).unwrap())
            .collect();
        (rail, peers)
    };
    rails.drain(..).enumerate().map(&mut open).collect()
}

/// Time and frames until each rail has a message of each other one, where each runs once in a while.
fn meet(count: usize, pause: Duration) -> (Duration, u64) {
    let mut rails = all(count);
    for (rail, peers) in &mut rails {
        for peer in peers {
            rail.send(*peer, b"hello", Body::Empty).unwrap();
        }
    }
    let mut now = Time::ZERO;
    let mut seen: Vec<Count> = rails.iter().map(|_| Count::default()).collect();
    for _ in 0..2000 {
        for ((rail, _), seen) in rails.iter_mut().zip(&mut seen) {
            rail.progress(now);
            rail.poll(64, seen);
        }
        if seen.iter().all(|seen| seen.0 == count - 1) {
            let frames = rails.iter().map(|(rail, _)| {
                let mut sent = 0;
                rail.each_count(&mut |name, count| {
                    if name == "contact_sent" {
                        sent = count;
                    }
                });
                sent
            });
            return (now.since(Time::ZERO), frames.sum());
        }
        now += pause;
    }
    panic!("some never meet");
}

#[test]
fn sixteen_ranks_meet_within_a_second_although_each_runs_seldom() {
    for (pause, within) in [(1, 300), (20, 1000), (50, 1500)] {
        let (taken, frames) = meet(16, Duration::from_millis(pause));
        assert!(taken <= Duration::from_millis(within), "{pause} ms: {taken:?}");
        // Each end calls, answers and is ready, and repeats a few of these.
        assert!(frames <= 16 * 15 * 10, "{pause} ms: {frames}");
    }
}
