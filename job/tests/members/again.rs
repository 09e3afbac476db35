//! Peers that come and go many times: what they take is given back. Each in a process of its own, whose
//! descriptors and memory no other test changes.

use std::time::Duration;

use super::node::{Node, alone, open_files};

/// Rounds before the first look, which reach every state of the tables.
const WARM: u64 = 100;
const ROUNDS: u64 = 1000;
/// Resident memory that an allocator may move by, in KiB: less than 3 KiB for each round.
const SLACK: usize = 2048;

#[test]
fn a_thousand_guests_leave_nothing() {
    assert!(alone("guests").status().unwrap().success());
}

#[test]
fn one_peer_may_be_left_and_met_a_thousand_times() {
    assert!(alone("leaving").status().unwrap().success());
}

/// Descriptors, maps of lanes, and resident memory in KiB of this process.
fn taken() -> (usize, usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let resident = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lanes = maps.lines().filter(|line| line.contains("doorbell-")).count();
    (open_files(), lanes, resident)
}

/// Runs the rounds, and compares.
fn compare(mut round: impl FnMut(u64)) {
    (0..WARM).for_each(&mut round);
    let before = taken();
    (WARM..WARM + ROUNDS).for_each(&mut round);
    let after = taken();
    assert_eq!(
        (before.0, before.1),
        (after.0, after.1),
        "descriptors, maps of lanes"
    );
    assert!(after.2 <= before.2 + SLACK, "{} KiB after {}", after.2, before.2);
}

fn exchange(one: &mut Node, two: &mut Node, tag: u64) {
    let (first, second) = (one.address(), two.address());
    two.send(&first, tag, "hello");
    one.until_with(&format!("got {tag} "), &mut || two.go_on());
    two.until_with(&format!("sent {tag} ok"), &mut || one.go_on());
    one.send(&second, tag, "answer");
    two.until_with(&format!("got {tag} "), &mut || one.go_on());
    one.until_with(&format!("sent {tag} ok"), &mut || two.go_on());
}

/// New members come to one that stays, and go.
pub(crate) fn guests() {
    let mut here = Node::enter();
    compare(|round| {
        let mut guest = Node::enter();
        let peer = guest.address().peer();
        exchange(&mut here, &mut guest, round);
        guest.member.close(Duration::from_secs(10));
        drop(guest);
        here.until("appeared");
        here.until("lost");
        let rank = here.member.known(&peer).unwrap();
        here.member.leave(rank);
        assert_eq!(here.member.peers(), 1);
        assert!(here.events.is_empty(), "{:?}", here.events);
    });
}

/// Two members stay, and one of them leaves the other again and again.
pub(crate) fn leaving() {
    let (mut here, mut other) = (Node::enter(), Node::enter());
    let (own, theirs) = (here.address(), other.address());
    compare(|round| {
        exchange(&mut here, &mut other, round);
        let rank = here.member.resolve(&theirs).unwrap();
        here.member.leave(rank);
        other.until_with("lost", &mut || here.go_on());
        let rank = other.member.resolve(&own).unwrap();
        other.member.leave(rank);
        other.events.clear();
        here.events.clear();
    });
}
