//! Services of several hosts: network namespaces with links and switches between them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_acm::address::{Address, Gid};
use doorbell_acm::carrier::{Carrier, CarrierError, Peer, Reason, Settings, Trouble};
use doorbell_acm::endpoint::Link;
use doorbell_acm::host::{HostWatch, Sources};
use doorbell_acm::path::Mtu;

use crate::side::{END, NOW, Side, group, mad, settings, settle, until};
use doorbell_testing::netns::Lab;

fn pair(lab: &Lab, settings: &Settings) -> (Side, Side) {
    let [a, b] = [0, 1].map(|host| lab.inside(host, || Side::new("v0", settings.clone())));
    (a, b)
}

#[test]
fn a_question_goes_out_over_both_families_and_counts_once() {
    let Some(lab) = Lab::pair("a_question_goes_out_over_both_families", 1500) else {
        return;
    };
    let (mut a, mut b) = pair(&lab, &settings(16_201, None));
    let at: Vec<_> = a.carrier.addresses(END).collect();
    assert!(
        at.iter().any(SocketAddr::is_ipv4) && at.iter().any(SocketAddr::is_ipv6),
        "{at:?}"
    );
    a.query(&mad(1));
    until("both copies come", &mut [&mut a, &mut b], |sides| {
        !sides[1].mads.is_empty() && sides[1].carrier.counters().dropped.of(Reason::Again) > 0
    });
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.mads.len(), 1);
    let counters = b.carrier.counters();
    assert_eq!(
        (counters.taken, counters.dropped.of(Reason::Again)),
        (1, 1),
        "{counters:?}"
    );
    let from = b.mads[0].0;
    b.carrier.send(NOW, END, (&from, b.end.gid), &mad(2)).unwrap();
    until("it is answered", &mut [&mut a, &mut b], |sides| {
        !sides[0].mads.is_empty()
    });
    assert_eq!(a.mads[0].0.gid, b.end.gid);
}

#[test]
fn each_family_carries_alone() {
    let Some(lab) = Lab::pair("each_family_carries_alone", 1500) else {
        return;
    };
    for (port, ipv4) in [(16_202, true), (16_203, false)] {
        let one = Settings {
            ipv4,
            ipv6: !ipv4,
            ..settings(port, Some(1))
        };
        let (mut a, mut b) = pair(&lab, &one);
        a.query(&mad(1));
        until("it is received", &mut [&mut a, &mut b], |sides| {
            !sides[1].mads.is_empty()
        });
        assert_eq!(b.mads[0].0.at.unwrap().is_ipv4(), ipv4);
        let (now, to, from) = (a.now(), b.as_peer(), a.end.gid);
        a.carrier.probe(now, END, &to, from, a.end.mtu).unwrap();
        until("the probe ends", &mut [&mut a, &mut b], |sides| {
            !sides[0].probed.is_empty()
        });
        assert_eq!((a.probed[0].1.trouble, a.probed[0].1.largest), (None, 1024 + 48));
    }
}

#[test]
fn full_probes_do_not_pass_what_is_narrow_in_the_middle() {
    let Some(lab) = Lab::switched("full_probes_do_not_pass", 1500, 0) else {
        return;
    };
    let (mut a, mut b) = pair(&lab, &settings(16_204, None));
    lab.ip(2, "link set r1 mtu 700");
    lab.ip(2, "link set r0 mtu 700");
    let (now, to, from) = (a.now(), b.as_peer(), a.end.gid);
    a.carrier.probe(now, END, &to, from, a.end.mtu).unwrap();
    until("the probe ends", &mut [&mut a, &mut b], |sides| {
        !sides[0].probed.is_empty()
    });
    let result = a.probed[0].1;
    assert_eq!(result.trouble, Some(Trouble::FullLost), "{result:?}");
    assert_eq!(
        (result.round_trip.is_some(), result.largest),
        (true, 512 + 48),
        "what passes"
    );
    // A smaller one does.
    let now = a.now();
    a.carrier.probe(now, END, &to, from, Mtu::MIN).unwrap();
    until("the probe ends", &mut [&mut a, &mut b], |sides| {
        sides[0].probed.len() == 2
    });
    assert_eq!((a.probed[1].1.trouble, a.probed[1].1.largest), (None, 256 + 48));
    // The own link reports it at once.
    lab.ip(0, "link set v0 mtu 700");
    let now = a.now();
    a.carrier
        .probe(now, END, &to, from, Mtu::within(1024).unwrap())
        .unwrap();
    until("the probe ends", &mut [&mut a, &mut b], |sides| {
        sides[0].probed.len() == 3
    });
    assert_eq!(a.probed[2].1.trouble, Some(Trouble::FullRefused));
}

#[test]
fn an_interface_that_goes_is_an_event_and_can_come_back() {
    let Some(lab) = Lab::pair("an_interface_that_goes_is_an_event", 1500) else {
        return;
    };
    let (mut a, b) = pair(&lab, &settings(16_205, None));
    let mut watch = lab.inside(0, || HostWatch::new(Sources::of_system(Vec::new())).unwrap());
    let has = |watch: &HostWatch| {
        watch
            .found()
            .endpoints
            .iter()
            .any(|end| end.link == Link::Ethernet)
    };
    assert!(has(&watch));
    lab.ip(0, "link del v0");
    until("it is reported", &mut [&mut a], |_| {
        lab.inside(0, || watch_is(&mut watch, false))
    });
    for round in 0..10 {
        let sent = a.carrier.multicast(NOW, END, (group(), a.end.gid), &mad(round));
        assert!(matches!(sent, Err(CarrierError::System { .. })), "{sent:?}");
        a.turn();
    }
    assert_eq!(a.failed, 1, "told once");
    let to = b.as_peer();
    let (now, from) = (a.now(), a.end.gid);
    a.carrier.probe(now, END, &to, from, Mtu::MIN).unwrap();
    until("the probe ends", &mut [&mut a], |sides| {
        !sides[0].probed.is_empty()
    });
    assert_eq!(a.probed[0].1.trouble, Some(Trouble::NoWay));
    let gone = a.end.clone();
    assert!(lab.inside(0, || a.carrier.update(END, &gone)).is_err());
    drop(b);
    // It comes back under its name, with another number.
    let other = lab.name(1).to_owned();
    lab.ip(0, &format!("link add v0 type veth peer name v0 netns {other}"));
    for host in 0..2 {
        lab.ip(host, &format!("address add 10.77.0.{}/24 dev v0", host + 1));
        lab.ip(host, "link set v0 up");
    }
    (0..2).for_each(|host| lab.wait_until_up(host, "v0"));
    until("it is reported", &mut [], |_| {
        lab.inside(0, || watch_is(&mut watch, true))
    });
    let (mut a, mut b) = pair(&lab, &settings(16_205, None));
    a.query(&mad(1));
    until("it is received", &mut [&mut a, &mut b], |sides| {
        !sides[1].mads.is_empty()
    });
}

/// The service's own wait for changes, which is woken by edges: after any swarm, the next change is seen.
#[test]
fn a_change_after_a_swarm_of_changes_is_seen() {
    let Some(lab) = Lab::pair("a_change_after_a_swarm_of_changes_is_seen", 1500) else {
        return;
    };
    let routes =
        |count: u32| (0..count).map(|at| format!("route add 10.99.{}.{}/32 dev v0", at >> 8, at & 255));
    let addresses = |what: &str, count: u32| -> Vec<String> {
        let each = |at| format!("address {what} 10.98.{}.{}/32 dev v0", at >> 8, at & 255);
        (0..count).map(each).collect()
    };
    lab.inside(0, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let watch = HostWatch::new(Sources::of_system(Vec::new())).unwrap();
            let mut watch = watch.registered().unwrap();
            for round in 0..3 {
                match round {
                    0 => {
                        lab.ip_batch(0, routes(400));
                        lab.ip(0, "route flush root 10.99.0.0/16");
                    }
                    // One turn of the runtime takes the edge of the first of them.
                    1 => {
                        lab.ip_batch(0, addresses("add", 150));
                        let _ =
                            tokio::time::timeout(Duration::from_millis(20), HostWatch::changed(&mut watch))
                                .await;
                        lab.ip_batch(0, addresses("del", 150));
                    }
                    // More than the socket holds.
                    _ => (0..6).for_each(|_| {
                        lab.ip_batch(0, addresses("add", 300));
                        lab.ip_batch(0, addresses("del", 300));
                    }),
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), HostWatch::changed(&mut watch)).await;
                let own = format!("10.77.0.{}", 79 + round);
                lab.ip(0, &format!("address add {own}/24 dev v0"));
                let own: IpAddr = own.parse().unwrap();
                let has = |watch: &HostWatch| {
                    let mut all = watch.found().endpoints.iter().flat_map(|end| &end.addresses);
                    all.any(|address| address.ip() == Some(own))
                };
                let seen = async {
                    while !has(watch.get_ref()) {
                        HostWatch::changed(&mut watch).await.unwrap();
                    }
                };
                let seen = tokio::time::timeout(Duration::from_secs(30), seen).await;
                assert!(seen.is_ok(), "{own} is not seen (swarm {round})");
            }
        });
    });
}

/// Whether the host is seen with or without an interface beyond its loopback.
fn watch_is(watch: &mut HostWatch, with: bool) -> bool {
    let _ = watch.poll();
    watch
        .found()
        .endpoints
        .iter()
        .any(|end| end.link == Link::Ethernet)
        == with
}

#[test]
fn addresses_that_come_are_followed_by_the_sockets() {
    let Some(lab) = Lab::pair("addresses_that_come_are_followed", 1500) else {
        return;
    };
    let (mut a, mut b) = pair(&lab, &settings(16_206, None));
    let before: Vec<_> = a.carrier.addresses(END).collect();
    // What does not concern the sockets leaves them as they are.
    let mut renamed = a.end.clone();
    renamed.addresses.reverse();
    lab.inside(0, || a.carrier.update(END, &renamed)).unwrap();
    assert_eq!(a.carrier.addresses(END).collect::<Vec<_>>(), before);
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    lab.ip(0, "address add 10.77.0.9/24 dev v0");
    a.end = lab.inside(0, || crate::side::endpoint("v0"));
    let end = a.end.clone();
    lab.inside(0, || a.carrier.update(END, &end)).unwrap();
    assert_ne!(a.carrier.addresses(END).collect::<Vec<_>>(), before);
    a.query(&mad(1));
    until("it is received", &mut [&mut a, &mut b], |sides| {
        !sides[1].mads.is_empty()
    });
    assert_eq!(b.mads[0].0.gid.to_string(), "::ffff:10.77.0.9");
    // Its groups are joined as before.
    b.query(&mad(2));
    until("it is received", &mut [&mut a, &mut b], |sides| {
        !sides[0].mads.is_empty()
    });
}

/// Both hosts have the link's own addresses, which takes the kernel a while.
fn of_the_link(lab: &Lab) {
    let is_there = |host| {
        let end = lab.inside(host, || crate::side::endpoint("v0"));
        let mut ips = end.addresses.iter().filter_map(Address::ip);
        ips.any(|ip| matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local()))
    };
    until("both have addresses of the link", &mut [], |_| {
        (0..2).all(is_there)
    });
}

#[test]
fn each_address_is_answered_from() {
    let Some(lab) = Lab::pair("each_address_is_answered_from", 1500) else {
        return;
    };
    for own in ["10.77.0.22/24", "10.88.0.2/24", "fd77::22/64 nodad"] {
        lab.ip(1, &format!("address add {own} dev v0"));
    }
    of_the_link(&lab);
    lab.ip(0, "address add 10.88.0.1/24 dev v0");
    let (mut a, mut b) = pair(&lab, &settings(16_207, Some(4)));
    let all: Vec<_> = b.carrier.addresses(END).collect();
    assert_eq!((all.len(), b.carrier.lacks(END)), (6, 0), "{all:?}");
    assert!(all.iter().all(|at| !at.ip().is_unspecified()));
    for (count, at) in (1..).zip(all) {
        let to = Peer {
            gid: Gid::of_ip(at.ip()),
            at: Some(at),
            ..b.as_peer()
        };
        let source = a.end.gid_towards(&Address::Gid(a.end.gid), to.gid);
        let now = a.now();
        // An echo counts only where it comes from the address that was probed.
        a.carrier.probe(now, END, &to, source, Mtu::MIN).unwrap();
        a.carrier.send(NOW, END, (&to, a.end.gid), &mad(count)).unwrap();
        let done = usize::from(count);
        until("it has come", &mut [&mut a, &mut b], |sides| {
            sides[0].probed.len() == done && sides[1].mads.len() == done
        });
        assert_eq!(a.probed[done - 1].1.trouble, None, "{at}");
        let from = b.mads[done - 1].0;
        assert_eq!(from.by, Some(at.ip()));
        b.carrier.send(NOW, END, (&from, b.end.gid), &mad(count)).unwrap();
        until("it is answered", &mut [&mut a, &mut b], |sides| {
            sides[0].mads.len() == done
        });
        let answer = a.mads[done - 1].0;
        assert_eq!(
            answer.at.map(|at| (at.ip(), at.port())),
            Some((at.ip(), at.port()))
        );
    }
}

#[test]
fn sockets_come_and_go_with_addresses_and_the_others_stay() {
    let Some(lab) = Lab::pair("sockets_come_and_go_with_addresses", 1500) else {
        return;
    };
    of_the_link(&lab);
    let (mut a, mut b) = pair(&lab, &settings(16_208, None));
    let follow = |a: &mut Side, change: &str| -> Vec<SocketAddr> {
        lab.ip(0, change);
        a.end = lab.inside(0, || crate::side::endpoint("v0"));
        let end = a.end.clone();
        lab.inside(0, || a.carrier.update(END, &end)).unwrap();
        assert_eq!(a.carrier.lacks(END), 0);
        a.carrier.addresses(END).collect()
    };
    let first: Vec<_> = a.carrier.addresses(END).collect();
    let more = follow(&mut a, "address add 10.77.0.33/24 dev v0");
    assert!(first.iter().all(|at| more.contains(at)), "{first:?} {more:?}");
    let came: Vec<_> = more.iter().filter(|at| !first.contains(at)).collect();
    assert_eq!(
        came.iter().map(|at| at.ip().to_string()).collect::<Vec<_>>(),
        ["10.77.0.33"]
    );
    assert_eq!(follow(&mut a, "address del 10.77.0.33/24 dev v0"), first);
    // Without any address of a family nothing of that family is left, and with the next one all is there
    // again.
    let six = follow(&mut a, "-4 address flush dev v0");
    assert!(six.len() == 2 && six.iter().all(SocketAddr::is_ipv6), "{six:?}");
    let back = follow(&mut a, "address add 10.77.0.1/24 dev v0");
    assert_eq!(back.len(), 3);
    b.query(&mad(1));
    until("both copies come", &mut [&mut a, &mut b], |sides| {
        !sides[0].mads.is_empty() && sides[0].carrier.counters().dropped.of(Reason::Again) > 0
    });
}
