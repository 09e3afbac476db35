//! Callers at a desk that have no business there.

use std::os::fd::OwnedFd;

use doorbell_job::lobby::Address;
use doorbell_testing::Random;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

use super::node::{Node, Other, name};

/// The address of a member with one bit of the token changed.
fn with_wrong_token(address: &Address) -> Address {
    let mut bytes = address.bytes().to_vec();
    bytes[46] ^= 0x10;
    bytes[4..6].fill(0);
    let check = crc32c::crc32c(&bytes) as u16;
    bytes[4..6].copy_from_slice(&check.to_le_bytes());
    Address::parse(&bytes).unwrap()
}

#[test]
fn a_wrong_token_is_not_answered_and_counted() {
    let (mut here, mut other) = (Node::enter(), Other::start());
    let wrong = with_wrong_token(&other.address());
    assert_ne!(wrong.peer(), other.address().peer());
    here.send(&wrong, 1, "let me in");
    here.until("sent 1 error");
    let lost = here.until("lost");
    assert!(lost.contains("closes calls without an answer"), "{lost}");
    other.tell("counts");
    let counts = other.until("counts");
    assert!(
        counts.starts_with("counts 1 ") && counts.contains("answered: 0, wrong_token: 4"),
        "{counts}"
    );
    // The right one is another peer, and is let in.
    here.send(&other.address(), 2, "let me in");
    here.until("sent 2 ok");
}

/// The abstract name of a desk's socket.
fn name_of_desk(address: &Address) -> String {
    let peer = u64::from_le_bytes(address.bytes()[32..40].try_into().unwrap());
    format!("doorbell.peer.{peer:016x}")
}

/// Callers that a desk has accepted and not closed, as the kernel lists them: the socket of each has the
/// desk's name, and an inode once it is accepted.
fn accepted(address: &Address) -> usize {
    let name = format!("@{}", name_of_desk(address));
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
    let is_one = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [.., state, inode, path] if path == name && state == "03" && inode != "0")
    };
    listed.lines().filter(is_one).count()
}

/// Calls a desk; `None` where its backlog is full.
fn call(address: &Address) -> Option<OwnedFd> {
    let name = name_of_desk(address);
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &name).ok().map(|()| socket)
}

#[test]
fn floods_are_bounded_and_counted_and_neighbours_go_on() {
    const FLOOD: u64 = 10_000;
    let (mut here, mut friend) = (Node::enter(), Other::start());
    let desk = here.address();
    here.send(&friend.address(), 0, "hello");
    here.until("sent 0 ok");
    let mut random = Random::new(11);
    let (mut silent, mut most, mut tag) = (Vec::new(), 0, 1);
    let mut sent = 0;
    while sent < FLOOD {
        let Some(caller) = call(&desk) else {
            here.turn();
            continue;
        };
        sent += 1;
        let length = random.within(0..=200) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.within(0..=255) as u8).collect();
        match sent % 4 {
            // Some are silent, and stay.
            0 if silent.len() < 400 => silent.push(caller),
            0 | 1 => drop(caller),
            _ => drop(send(&caller, &bytes, SendFlags::NOSIGNAL)),
        }
        if sent % 50 == 0 {
            here.turn();
            most = most.max(accepted(&desk));
        }
        if sent % 1000 == 0 {
            here.send(&friend.address(), tag, "still here");
            here.until(&format!("sent {tag} ok"));
            friend.send(&desk, tag, "so am I");
            here.until(&format!("got {tag} from {}", name(&friend.address())));
            tag += 1;
        }
    }
    while call(&desk).is_none() {
        here.turn();
    }
    assert!((1..=300).contains(&most), "{most} callers at the desk");
    let counts = here.member.desk_counts();
    assert!(counts.nonsense + counts.wrong_token > FLOOD / 2, "{counts:?}");
    assert!(counts.silent > 0, "{counts:?}");
    assert_eq!(here.member.peers(), 2);
    assert!(here.events.is_empty(), "{:?}", here.events);
}
