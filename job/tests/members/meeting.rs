//! Peers that meet when one first needs the other.

use std::time::Instant;

use super::node::{Node, Other, config, hex, name};
use doorbell_job::lobby::{Address, PmlMember};
use doorbell_pml::Rank;

#[test]
fn two_meet_at_the_first_message_of_either() {
    let (mut here, mut other) = (Node::enter(), Other::start());
    let (own, theirs) = (here.address(), other.address());
    // This one first: the other has never been given its address.
    here.send(&theirs, 1, "hello");
    assert_eq!(here.until("sent 1"), "sent 1 ok");
    assert_eq!(other.until("appeared"), format!("appeared {}", name(&own)));
    assert_eq!(other.until("got"), format!("got 1 from {}: hello", name(&own)));
    // The other one answers, over what is there.
    other.send(&own, 2, "and hello");
    assert_eq!(
        here.until("got"),
        format!("got 2 from {}: and hello", name(&theirs))
    );
    assert!(here.events.is_empty(), "{:?}", here.events);
    // The other one first.
    let mut third = Other::start();
    third.send(&own, 3, "me too");
    assert_eq!(
        here.until("got 3"),
        format!("got 3 from {}: me too", name(&third.address()))
    );
    here.until("appeared");
    assert_eq!(here.member.peers(), 3);
}

#[test]
fn both_may_begin_at_once() {
    for round in 0..20 {
        let (mut one, mut two) = (Node::enter(), Node::enter());
        let (first, second) = (one.address(), two.address());
        one.send(&second, 1, "from one");
        two.send(&first, 2, "from two");
        one.until_with("got 2", &mut || two.go_on());
        two.until_with("got 1", &mut || one.go_on());
        one.until_with("sent 1 ok", &mut || two.go_on());
        two.until_with("sent 2 ok", &mut || one.go_on());
        // Neither took the other for a new peer, or for a lost one.
        let peers = (one.member.peers(), two.member.peers());
        assert_eq!(peers, (2, 2), "round {round}: {:?} {:?}", one.events, two.events);
        assert!(
            one.events.is_empty() && two.events.is_empty(),
            "{:?} {:?}",
            one.events,
            two.events
        );
    }
}

#[test]
fn an_own_address_and_numbers_without_contact() {
    let mut member = PmlMember::enter(config()).unwrap();
    let own = member.address(3);
    assert_eq!(own.endpoint(), 3);
    assert_eq!(member.resolve(&own).unwrap(), Rank(0));
    assert_eq!(member.peer(Rank(0)), Some(&own.peer()));
    // Thousands of addresses are resolved, and no desk is called: none of these processes is there.
    let addresses: Vec<Address> = (0..200).map(|_| Node::no_process()).collect();
    let before = super::node::open_files();
    for (at, address) in addresses.iter().enumerate() {
        let rank = member.resolve(address).unwrap();
        assert_eq!(rank, Rank(at as u32 + 1));
        assert_eq!(member.resolve(&address.with_endpoint(9)).unwrap(), rank);
        assert_eq!(member.known(&address.peer()), Some(rank));
    }
    member.progress();
    assert_eq!(member.lost(), None);
    assert!(super::node::open_files() <= before);
}

#[test]
fn a_sleeper_is_woken_by_one_that_it_never_heard_of() {
    // A process that has nothing to do sleeps on the descriptors that it was given.
    let (mut one, mut two) = (Other::start(), Other::start());
    for tag in 0..20 {
        one.send(&two.address(), tag, "wake up");
        two.until(&format!("got {tag} "));
        one.until(&format!("sent {tag} ok"));
        two.send(&one.address(), tag, "wake up, too");
        one.until(&format!("got {tag} "));
    }
}

/// Processes that all send to all others at once, which have never met; each may open `files` more, or as
/// many as it likes.
fn all_to_all(count: usize, files: Option<usize>) {
    let mut all: Vec<Other> = (0..count).map(|_| Other::start()).collect();
    if let Some(files) = files {
        all.iter_mut()
            .for_each(|other| other.tell(&format!("limit {files}")));
    }
    let addresses: Vec<Address> = all.iter().map(Other::address).collect();
    for (own, other) in all.iter_mut().enumerate() {
        for (tag, to) in addresses.iter().enumerate().filter(|(to, _)| *to != own) {
            other.tell(&format!("send {} {tag} x", hex(to)));
        }
    }
    for (own, other) in all.iter_mut().enumerate() {
        for tag in (0..count).filter(|tag| *tag != own) {
            let sent = other.until(&format!("sent {tag} "));
            assert_eq!(sent, format!("sent {tag} ok"), "of {own}");
        }
        for _ in 1..count {
            other.until(&format!("got {own} "));
        }
        if files.is_some() {
            assert_eq!(other.has("lost"), None);
            continue;
        }
        other.tell("counts");
        let counts = other.until("counts");
        assert!(counts.starts_with(&format!("counts {count} ")), "{counts}");
        assert!(other.has("lost").is_none());
    }
    if files.is_some() {
        return;
    }
    // Two descriptors for each peer, one for each direction, and some of the process's own.
    let other = &mut all[0];
    other.tell("files");
    let files: usize = other.until("files ")["files ".len()..].parse().unwrap();
    assert!(
        files <= 2 * (count - 1) + 40,
        "{files} descriptors for {count} peers"
    );
}

#[test]
fn sixty_four_processes_send_to_each_other() {
    all_to_all(64, None);
}

#[test]
fn many_that_lack_descriptors_for_a_moment_lose_none() {
    // Each peer takes one in the end, and up to five while it is met.
    all_to_all(48, Some(48 + 24));
}

#[test]
fn one_without_descriptors_gives_its_calls_up_with_a_sentence() {
    const PEERS: usize = 6;
    let mut one = Other::start();
    let all: Vec<Other> = (0..PEERS).map(|_| Other::start()).collect();
    one.tell("limit 0");
    let began = Instant::now();
    for (tag, other) in all.iter().enumerate() {
        one.send(&other.address(), tag as u64, "x");
    }
    for tag in 0..PEERS {
        let sent = one.until(&format!("sent {tag} "));
        assert!(sent.contains("error"), "{sent}");
        let lost = one.until("lost ");
        let says = [
            "are needed at least",
            "the limit of open files is",
            "raise it by `ulimit -n ",
        ];
        assert!(says.iter().all(|word| lost.contains(word)), "{lost}");
    }
    let late = began.elapsed();
    assert!((5..30).contains(&late.as_secs()), "{late:?}");
}
