//! Peers that end, in every way.

use std::time::Instant;

use doorbell_job::Error;
use doorbell_job::lobby::{Address, PmlMember};
use doorbell_pml::Source;

use super::node::{GUARD, Node, Other, config, hex, name, sockets};

/// Whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

#[test]
fn a_peer_that_is_killed_is_lost_and_others_go_on() {
    let (mut here, mut victim, mut third) = (Node::enter(), Other::start(), Other::start());
    here.send(&victim.address(), 1, "hello");
    here.until("sent 1 ok");
    here.send(&third.address(), 2, "hello");
    here.until("sent 2 ok");
    victim.until("got 1");
    let names = victim.socket_names();
    assert!(
        names.iter().any(|name| name.contains("doorbell.peer.")),
        "{names:?}"
    );
    // A stopped process is not dead: what is sent to it waits.
    let pid = nix::unistd::Pid::from_raw(victim.pid() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let begun = Instant::now();
    // It goes on for a moment on another core.
    while !is_stopped(victim.pid()) {
        assert!(begun.elapsed() < GUARD, "it does not stop");
        std::thread::yield_now();
    }
    here.send(&victim.address(), 3, "never matched");
    here.send(&third.address(), 4, "meanwhile");
    here.until("sent 4 ok");
    assert!(here.events.is_empty(), "{:?}", here.events);
    victim.kill();
    let error = here.until("sent 3 error");
    assert!(error.contains("its process ended"), "{error}");
    let lost = here.until("lost");
    assert!(
        lost.starts_with(&format!("lost {}", name(&victim.address()))),
        "{lost}"
    );
    // Later messages to it end at once, and the third one is as before.
    here.send(&victim.address(), 5, "too late");
    here.until("sent 5 error");
    third.send(&here.address(), 6, "still here");
    here.until("got 6");
    // Nothing of it is left: no name, and here no lane once it is left.
    let left: Vec<_> = sockets()
        .into_iter()
        .filter(|(_, name)| names.contains(name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let rank = here.member.known(&victim.address().peer()).unwrap();
    here.member.leave(rank);
    assert_eq!(here.member.known(&victim.address().peer()), None);
    let shared: Vec<_> = std::fs::read_dir("/dev/shm")
        .map(|all| all.flatten().map(|entry| entry.file_name()).collect())
        .unwrap_or_default();
    assert!(
        !shared
            .iter()
            .any(|name| name.to_string_lossy().contains("doorbell")),
        "{shared:?}"
    );
}

#[test]
fn a_peer_that_dies_before_it_is_met_and_one_that_was_never_there() {
    let mut here = Node::enter();
    let dead = {
        let mut other = Other::start();
        other.kill();
        other.address()
    };
    for (tag, address) in [(1, dead), (2, Node::no_process())] {
        here.send(&address, tag, "anybody?");
        here.until(&format!("sent {tag} error"));
        let lost = here.until("lost");
        assert!(
            lost.contains("no process of this host has this address"),
            "{lost}"
        );
    }
    // One that was called and does not look dies: nothing is waited for any longer.
    let mut other = Other::start();
    let pid = nix::unistd::Pid::from_raw(other.pid() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    here.send(&other.address(), 3, "anybody?");
    for _ in 0..100 {
        here.turn();
    }
    assert!(here.events.is_empty());
    other.kill();
    here.until("sent 3 error");
    here.until("lost");
}

#[test]
fn the_last_message_of_one_that_closes_arrives() {
    let mut here = Node::enter();
    for round in 0..20 {
        let mut other = Other::start();
        let to = hex(&here.address());
        // Without an answer that it waits for: its close has to push it out.
        other.tell(&format!("send {to} {round} last words"));
        other.tell("close");
        here.until(&format!("got {round} "));
        here.until("appeared");
        let lost = here.until("lost");
        assert!(
            lost.starts_with(&format!("lost {}", name(&other.address()))),
            "{lost}"
        );
        other.until("closed");
    }
    // It has looked up none of them: nothing of them stays.
    let start = Instant::now();
    while here.member.peers() > 1 {
        assert!(start.elapsed() < GUARD, "{} peers", here.member.peers());
        here.turn();
    }
}

#[test]
fn what_a_peer_has_sent_before_its_end_is_received_by_its_address() {
    let (mut here, mut other) = (Node::enter(), Other::start());
    here.pause();
    other.tell(&format!("post {} 1 last words", hex(&here.address())));
    other.tell("close");
    here.until("lost");
    // It is looked up for the first time.
    let rank = here.member.resolve(&other.address()).unwrap();
    here.receive_of(Source::Rank(rank));
    here.until(&format!("got 1 from {}: last words", name(&other.address())));
    other.until("closed");
}

#[test]
fn one_that_leaves_and_calls_again_is_another_acquaintance() {
    let (mut here, mut other) = (Node::enter(), Other::start());
    here.send(&other.address(), 1, "hello");
    here.until("sent 1 ok");
    let first = here.member.known(&other.address().peer()).unwrap();
    for round in 0..10 {
        // The other one forgets this one: it is lost here.
        other.tell(&format!("leave {}", hex(&here.address())));
        let lost = here.until("lost");
        assert!(lost.contains("it closed its end"), "{lost}");
        // It calls again: under another number, while the old one is the owner's.
        other.send(&here.address(), round, "again");
        here.until(&format!("got {round} "));
        here.until("appeared");
        let now = here.member.known(&other.address().peer()).unwrap();
        assert_ne!(now, first);
        here.send(&other.address(), round, "answer");
        here.until(&format!("sent {round} ok"));
    }
    here.member.leave(first);
}

#[test]
fn addresses_of_other_hosts_are_refused() {
    let mut member = PmlMember::enter(config()).unwrap();
    let own = member.address(0);
    let changed = |at: usize| {
        let mut bytes = own.bytes().to_vec();
        bytes[at] ^= 1;
        bytes[4..6].fill(0);
        let check = crc32c::crc32c(&bytes) as u16;
        bytes[4..6].copy_from_slice(&check.to_le_bytes());
        Address::parse(&bytes).unwrap()
    };
    // The lower half is the namespace, the upper one the boot.
    for (at, is_here, words) in [
        (24, true, "another network namespace"),
        (31, false, "on another host"),
    ] {
        let address = changed(at);
        let error = member.resolve(&address).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(matches!(error, Error::Elsewhere { is_namespace, .. } if is_namespace == is_here));
    }
}
