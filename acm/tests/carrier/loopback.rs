//! Several services of one host.

use std::net::{IpAddr, UdpSocket};

use doorbell_acm::address::Address;
use doorbell_acm::carrier::{Carrier, CarrierError, Frame, Reason, Settings, Trouble, UdpCarrier};
use doorbell_acm::config::Interfaces;
use doorbell_acm::path::Mtu;

use crate::side::{END, NOW, Side, endpoint, group, mad, narrow, settings, settle, until};

fn pair(port: u16, keys: [Option<u8>; 2]) -> (Side, Side) {
    let [a, b] = keys.map(|key| Side::new("lo", settings(port, key)));
    (a, b)
}

#[test]
fn a_question_is_received_once_and_answered_to_its_sender_alone() {
    let (mut a, mut b) = pair(16_101, [None, None]);
    let mut c = Side::new("lo", settings(16_101, None));
    assert_ne!(a.carrier.qpn(), b.carrier.qpn());
    a.query(&mad(1));
    until("both receive it", &mut [&mut a, &mut b, &mut c], |sides| {
        sides[1..].iter().all(|side| !side.mads.is_empty())
    });
    settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!([a.mads.len(), b.mads.len(), c.mads.len()], [0, 1, 1]);
    assert!(
        a.carrier.counters().dropped.of(Reason::Own) > 0,
        "its own message is not an event"
    );
    let (from, to, heard) = b.mads[0];
    assert_eq!(
        (from.gid, from.qpn, to, heard),
        (a.end.gid, a.carrier.qpn(), Some(group()), mad(1))
    );
    b.carrier.send(NOW, END, (&from, b.end.gid), &mad(2)).unwrap();
    until("it is answered", &mut [&mut a, &mut b, &mut c], |sides| {
        !sides[0].mads.is_empty()
    });
    settle(&mut [&mut a, &mut b, &mut c]);
    let (from, to, answer) = a.mads[0];
    assert_eq!((from.qpn, to, answer), (b.carrier.qpn(), None, mad(2)));
    assert_eq!([a.mads.len(), b.mads.len(), c.mads.len()], [1, 1, 1]);
}

#[test]
fn a_frame_sent_again_is_received_again() {
    let (mut a, mut b) = pair(16_102, [None, None]);
    for count in 1..4 {
        a.query(&mad(1));
        until("it is received", &mut [&mut a, &mut b], |sides| {
            sides[1].mads.len() == count
        });
    }
}

#[test]
fn only_frames_with_the_key_are_received() {
    let (mut a, mut b) = pair(16_103, [Some(1), Some(1)]);
    let mut open = Side::new("lo", settings(16_103, None));
    let mut other = Side::new("lo", settings(16_103, Some(2)));
    for side in [&mut a, &mut open, &mut other] {
        side.query(&mad(1));
    }
    until(
        "it is received",
        &mut [&mut a, &mut b, &mut open, &mut other],
        |sides| !sides[1].mads.is_empty(),
    );
    settle(&mut [&mut a, &mut b, &mut open, &mut other]);
    let dropped = b.carrier.counters().dropped;
    assert!(
        dropped.of(Reason::Untagged) > 0 && dropped.of(Reason::Tag) > 0,
        "{dropped:?}"
    );
    assert_eq!((b.mads.len(), b.mads[0].0.qpn), (1, a.carrier.qpn()));
    assert!(open.mads.is_empty() && open.carrier.counters().dropped.of(Reason::Tagged) > 0);
}

#[test]
fn probes_pass_whole_with_and_without_a_key() {
    for (port, key) in [(16_104, None), (16_105, Some(3))] {
        let (mut a, mut b) = pair(port, [key, key]);
        let (now, to, from) = (a.now(), b.as_peer(), a.end.gid);
        let probe = a.carrier.probe(now, END, &to, from, Mtu::MAX).unwrap();
        assert!(a.carrier.next_deadline() > now);
        until("it ends", &mut [&mut a, &mut b], |sides| {
            !sides[0].probed.is_empty()
        });
        let (ended, result) = a.probed[0];
        assert_eq!((ended, result.trouble, result.largest), (probe, None, 4096 + 48));
        assert!(result.round_trip.is_some());
        assert_eq!(b.carrier.counters().echoes, 5, "one for each size");
    }
}

#[test]
fn a_probe_without_a_receiver_fails() {
    let (mut a, b) = pair(16_106, [None, None]);
    let to = b.as_peer();
    drop(b);
    let (now, from) = (a.now(), a.end.gid);
    a.carrier.probe(now, END, &to, from, Mtu::MIN).unwrap();
    until("it ends", &mut [&mut a], |sides| !sides[0].probed.is_empty());
    let result = a.probed[0].1;
    assert_eq!(
        (result.trouble, result.largest, result.round_trip),
        (Some(Trouble::Silent), 0, None)
    );
}

#[test]
fn floods_are_counted_and_take_neither_memory_nor_the_turn() {
    let limits = narrow();
    let mut b = Side::new(
        "lo",
        Settings {
            limits,
            ..settings(16_107, None)
        },
    );
    let at = b.as_peer().at.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sizes = [0, 1, 71, 312, 4145, 9000];
    for round in 0..50 {
        for size in sizes {
            socket.send_to(&vec![round; size], at).unwrap();
        }
        // Of one socket, at most this much in a turn; nothing of it becomes an event.
        assert!(b.turn() <= limits.turn);
    }
    settle(&mut [&mut b]);
    let counters = b.carrier.counters();
    let all: u64 = counters.dropped.each().map(|(_, count)| count).sum();
    assert_eq!(
        (all, counters.taken, b.mads.len()),
        (50 * sizes.len() as u64, 0, 0),
        "{counters:?}"
    );
    assert!(counters.dropped.of(Reason::Flood) > 0 && counters.dropped.of(Reason::Size) > 0);
}

#[test]
fn untaken_events_have_a_bound_and_waiting_frames_are_not_lost() {
    let mut a = Side::new("lo", settings(16_108, None));
    let limits = doorbell_acm::carrier::Limits {
        events: 4,
        ..doorbell_acm::carrier::Limits::default()
    };
    let mut b = Side::new(
        "lo",
        Settings {
            limits,
            ..settings(16_108, None)
        },
    );
    let (to, from) = (b.as_peer(), a.end.gid);
    (0..40).for_each(|at| a.carrier.send(NOW, END, (&to, from), &mad(at)).unwrap());
    let now = b.now();
    let done: usize = (0..10).map(|_| b.carrier.turn(now)).sum();
    assert_eq!((done, b.carrier.counters().taken), (4, 4));
    until("all are received", &mut [&mut a, &mut b], |sides| {
        sides[1].mads.len() == 40
    });
}

#[test]
fn a_stranger_that_asks_for_echoes_gets_no_more_than_it_sends_and_not_more_than_its_share() {
    let limits = narrow();
    let mut b = Side::new(
        "lo",
        Settings {
            limits,
            ..settings(16_109, None)
        },
    );
    let at = b.as_peer().at.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    let header = doorbell_acm::carrier::Header {
        kind: doorbell_acm::carrier::Kind::Probe,
        qpn: 77,
        lid: 0,
        sgid: b.end.gid,
        dgid: b.end.gid,
    };
    header.write(&[1; 16], 1000, None, &mut bytes);
    (0..200).for_each(|_| _ = socket.send_to(&bytes, at).unwrap());
    settle(&mut [&mut b]);
    let mut echoes = 0u64;
    let mut echo = [0; 2000];
    while let Ok(length) = socket.recv(&mut echo) {
        let frame = Frame::read(&echo[..length], None).unwrap();
        assert_eq!(
            (length, frame.header.kind),
            (1000, doorbell_acm::carrier::Kind::Echo)
        );
        echoes += 1;
    }
    // Its burst, and what its rate added while it took a moment.
    assert!((20..100).contains(&echoes), "{echoes}");
    assert_eq!(echoes, b.carrier.counters().echoes);
}

#[test]
fn nothing_beyond_the_loopback_is_served_that_is_not_named() {
    let lo = endpoint("lo");
    let mut carrier = UdpCarrier::new(Settings {
        interfaces: Interfaces::Loopback,
        ..settings(16_110, None)
    })
    .unwrap();
    let mut other = lo.clone();
    (other.device, other.link) = ("eth7".to_owned(), doorbell_acm::endpoint::Link::Ethernet);
    assert!(matches!(carrier.serve(END, &other), Err(CarrierError::NotServed(name)) if name == "eth7"));
    assert!(carrier.served().next().is_none());
    carrier.serve(END, &lo).unwrap();
    assert!(carrier.addresses(END).all(|at| at.ip().is_loopback()));
    carrier.end(END);
    assert!(matches!(
        carrier.multicast(NOW, END, (group(), lo.gid), &mad(1)),
        Err(CarrierError::Unknown(END))
    ));
    let none = Settings {
        ipv4: false,
        ipv6: false,
        ..settings(16_110, None)
    };
    assert!(matches!(
        UdpCarrier::new(none).unwrap().serve(END, &lo),
        Err(CarrierError::NoFamily(_))
    ));
}

#[test]
fn wrong_uses_are_errors() {
    let mut a = Side::new("lo", settings(16_111, None));
    let (now, from) = (a.now(), a.end.gid);
    assert!(matches!(a.carrier.join(END, from), Err(CarrierError::NoGroup(_))));
    assert!(matches!(
        a.carrier.multicast(NOW, END, (from, from), &mad(1)),
        Err(CarrierError::NoGroup(_))
    ));
    let lost = doorbell_acm::carrier::Peer {
        at: None,
        ..a.as_peer()
    };
    assert!(matches!(
        a.carrier.send(NOW, END, (&lost, from), &mad(1)),
        Err(CarrierError::NoPeer(_))
    ));
    assert!(matches!(
        a.carrier.probe(now, END, &lost, from, Mtu::MIN),
        Err(CarrierError::NoPeer(_))
    ));
    let joined = (0..20u8).take_while(|last| {
        let mut other = group();
        other.0[15] = 1 + last;
        a.carrier.join(END, other).is_ok()
    });
    assert!(joined.count() < 20, "groups have a bound");
}

#[test]
fn a_waiting_reader_is_woken() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (mut a, b) = pair(16_112, [None, None]);
        let mut b = b.carrier.registered().unwrap();
        a.query(&mad(1));
        let patience = std::time::Duration::from_secs(20);
        let heard = tokio::time::timeout(patience, async {
            loop {
                b.readable_mut().await.unwrap().clear_ready();
                let now = a.now();
                while b.get_mut().turn(now) > 0 {}
                if b.get_mut().event().is_some() {
                    return;
                }
            }
        });
        heard.await.expect("it is woken");
    });
}

#[test]
fn addresses_have_a_bound_and_none_is_for_all() {
    let mut lo = endpoint("lo");
    let ip = |last: u8| IpAddr::from([127, 0, 1, last]);
    lo.addresses = (1..=100)
        .flat_map(|last| [ip(last), ip(last)])
        .map(Address::from)
        .collect();
    let mut carrier = UdpCarrier::new(settings(16_113, None)).unwrap();
    carrier.serve(END, &lo).unwrap();
    let at: Vec<IpAddr> = carrier.addresses(END).map(|at| at.ip()).collect();
    let first: Vec<IpAddr> = (1..=32).map(ip).collect();
    assert_eq!((at, carrier.lacks(END)), (first, 0));
}
