//! Real links: virtual Ethernet between network namespaces, with losses, cuts and narrow paths.

use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::event::{DownReason, EventKind, RailEvent, Scope};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_testing::Stopwatch;
use doorbell_testing::netns::Lab;
use doorbell_udp::{Family, UdpConfig, UdpRail};

const PATIENCE: Duration = Duration::from_secs(60);
const LIFE: Incarnation = Incarnation(1);

fn open(lab: &Lab, side: usize, config: &UdpConfig) -> UdpRail {
    lab.inside(side, || UdpRail::open(&"udp:v0".parse().unwrap(), config))
        .unwrap()
}

/// Both ends in this thread: sockets stay in the namespace in which they were made, new ones of peers need it
/// again.
fn meet(lab: &Lab, side: usize, rail: &mut UdpRail, address: &RailAddress) -> PeerIndex {
    lab.inside(side, || rail.open(address, LIFE)).unwrap()
}

fn pair(lab: &Lab, config: &UdpConfig) -> (UdpRail, UdpRail, PeerIndex, PeerIndex) {
    let (mut a, mut b) = (open(lab, 0, config), open(lab, 1, config));
    let to_b = meet(lab, 0, &mut a, &b.address());
    let to_a = meet(lab, 1, &mut b, &a.address());
    (a, b, to_b, to_a)
}

fn post(rail: &mut UdpRail, channel: Channel, peer: PeerIndex, bytes: &[u8]) -> bool {
    let (tx, _) = rail.split();
    if tx.reserve(channel, 1) == 0 {
        return false;
    }
    tx.post(channel, peer, bytes, Body::Empty).unwrap();
    tx.doorbell();
    true
}

/// Time since the test began, for `progress`.
struct Watch(Instant);

impl Watch {
    fn now(&self) -> Time {
        Time::from_nanos(1 + self.0.elapsed().as_nanos() as u64)
    }

    fn until(&self, what: &str, mut done: impl FnMut(Time) -> bool) {
        while !done(self.now()) {
            assert!(self.0.elapsed() < PATIENCE, "never happened: {what}");
        }
    }
}

fn watch() -> Watch {
    Watch(Instant::now())
}

fn next_event(rail: &mut UdpRail, watch: &Watch, what: &str) -> RailEvent {
    let mut event = None;
    watch.until(what, |now| {
        rail.progress(now);
        event = rail.event();
        event.is_some()
    });
    event.unwrap()
}

/// Both families, with and without connected sockets.
const CASES: [(Family, usize); 4] = [
    (Family::V4, 64),
    (Family::V4, 0),
    (Family::V6, 64),
    (Family::V6, 0),
];

#[test]
fn frames_cross_a_link_over_both_families_with_and_without_connected_sockets() {
    let Some(lab) = Lab::pair("frames_cross_a_link", 1500) else {
        return;
    };
    for (family, connected) in CASES {
        let config = UdpConfig {
            family,
            connected,
            ..UdpConfig::default()
        };
        let (mut a, mut b, to_b, to_a) = pair(&lab, &config);
        assert_eq!(a.is_connected(to_b), connected > 0);
        let longest = a.capabilities().limits.message;
        assert_eq!(longest, if family == Family::V4 { 1472 } else { 1452 });
        for channel in [Channel::Priority, Channel::Data] {
            for length in [1, 100, longest] {
                assert!(post(&mut a, channel, to_b, &vec![7; length]));
                watch().until("a frame crosses", |_| b.split().1.poll(channel, 8) > 0);
                let frame = b.split().1.frame(channel, 0).unwrap();
                assert_eq!((frame.from, frame.bytes.to_vec()), (Some(to_a), vec![7; length]));
            }
        }
        assert_eq!((b.stats().strangers, a.stats().unsendable), (0, 0));
    }
}

#[test]
fn a_run_of_frames_crosses_in_one_piece_and_arrives_as_frames() {
    let Some(lab) = Lab::pair("a_run_of_frames_crosses_in_one_piece", 1500) else {
        return;
    };
    let (mut a, mut b, to_b, _) = pair(&lab, &UdpConfig::default());
    if !a.granted().gso || !a.granted().gro {
        return doorbell_testing::skipped(
            "a_run_of_frames_crosses_in_one_piece",
            "the kernel has no UDP_SEGMENT or UDP_GRO",
        );
    }
    let (tx, _) = a.split();
    assert_eq!(tx.reserve(Channel::Data, 40), 40);
    for n in 0..40u8 {
        tx.post(Channel::Data, to_b, &[n; 1472], Body::Empty).unwrap();
    }
    tx.doorbell();
    assert_eq!(
        (a.stats().send_calls, a.stats().sent_runs, a.stats().sent),
        (1, 1, 40)
    );
    let mut next = 0u8;
    watch().until("all frames arrive", |_| {
        let (_, rx) = b.split();
        for i in 0..rx.poll(Channel::Data, 16) {
            assert_eq!(rx.frame(Channel::Data, i).unwrap().bytes.to_vec(), [next; 1472]);
            next += 1;
        }
        next == 40
    });
    assert!(b.stats().received_runs > 0, "{:?}", b.stats());
}

#[test]
fn the_link_goes_down_and_comes_back_and_the_device_goes() {
    let Some(lab) = Lab::pair("the_link_goes_down_and_comes_back", 1500) else {
        return;
    };
    let (mut a, mut b, to_b, _) = pair(&lab, &UdpConfig::default());
    let watch = watch();
    assert!(a.event().is_none() && a.is_link_up());
    lab.ip(1, "link set v0 down");
    let event = next_event(&mut a, &watch, "the other end's interface goes down");
    assert_eq!((event.scope, event.kind), (Scope::Rail, EventKind::LinkDown));
    assert!(!a.is_link_up());
    // Nothing panics, whatever becomes of the frames.
    (0..10).for_each(|_| assert!(post(&mut a, Channel::Data, to_b, b"into the void")));
    lab.ip(1, "link set v0 up");
    assert_eq!(
        next_event(&mut a, &watch, "it comes back").kind,
        EventKind::LinkUp
    );
    watch.until("frames cross again", |_| {
        post(&mut a, Channel::Priority, to_b, b"again");
        let n = b.split().1.poll(Channel::Priority, 1);
        n > 0 && b.split().1.frame(Channel::Priority, 0).unwrap().bytes.to_vec() == b"again"
    });
    lab.ip(0, "link del v0");
    let mut last = EventKind::LinkUp;
    while last != EventKind::DeviceGone {
        last = next_event(&mut a, &watch, "the device goes").kind;
    }
    (0..10).for_each(|_| _ = post(&mut a, Channel::Data, to_b, b"into the void"));
    assert!(a.stats().unsendable > 0, "{:?}", a.stats());
}

#[test]
fn a_sleeper_is_woken_by_frames_and_by_the_link() {
    let Some(lab) = Lab::pair("a_sleeper_is_woken", 1500) else {
        return;
    };
    let (mut a, mut b, to_b, to_a) = pair(&lab, &UdpConfig::default());
    let readable = |rail: &mut UdpRail| match rail.arm().unwrap() {
        Armed::Ready => true,
        Armed::Sleep(fd) => {
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let wait = rustix::event::Timespec {
                tv_sec: 5,
                tv_nsec: 0,
            };
            rustix::event::poll(&mut fds, Some(&wait)).unwrap() > 0
        }
    };
    // Hot, so that its sockets have left the epoll set.
    for _ in 0..500 {
        post(&mut a, Channel::Priority, to_b, b"ping");
        watch().until("ping", |_| b.split().1.poll(Channel::Priority, 1) > 0);
        post(&mut b, Channel::Priority, to_a, b"pong");
        watch().until("pong", |_| a.split().1.poll(Channel::Priority, 1) > 0);
    }
    while !matches!(b.arm().unwrap(), Armed::Sleep(_)) {
        b.split().1.poll(Channel::Priority, 8);
    }
    post(&mut a, Channel::Priority, to_b, b"wake up");
    assert!(readable(&mut b));
    b.disarm();
    watch().until("the frame is there", |_| {
        b.split().1.poll(Channel::Priority, 8) > 0
    });
    lab.ip(0, "link set v0 down");
    assert!(readable(&mut b));
    let event = next_event(&mut b, &watch(), "the link is down");
    assert_eq!(event.kind, EventKind::LinkDown);
}

#[test]
fn a_peer_that_is_gone_is_reported_and_so_is_its_return() {
    let Some(lab) = Lab::pair("a_peer_that_is_gone_is_told", 1500) else {
        return;
    };
    for connected in [64, 0] {
        let config = UdpConfig {
            connected,
            port: 40_000,
            ..UdpConfig::default()
        };
        let (mut a, b, to_b, _) = pair(&lab, &config);
        drop(b);
        let watch = watch();
        let mut event = None;
        watch.until("the peer is reported down", |now| {
            post(&mut a, Channel::Data, to_b, b"are you there");
            a.split().1.poll(Channel::Data, 1);
            a.progress(now);
            event = a.event();
            event.is_some()
        });
        let event = event.unwrap();
        let down = EventKind::PeerDown(DownReason::Died);
        assert_eq!(
            (event.scope, event.kind),
            (Scope::Peer(to_b), down),
            "connected: {connected}"
        );
        assert!(a.stats().refused >= 3);
        let mut b = open(&lab, 1, &config);
        let to_a = meet(&lab, 1, &mut b, &a.address());
        let mut event = None;
        watch.until("its return is reported", |now| {
            post(&mut b, Channel::Data, to_a, b"here");
            a.split().1.poll(Channel::Data, 8);
            a.progress(now);
            event = a.event();
            event.is_some()
        });
        assert_eq!(event.map(|event| event.kind), Some(EventKind::PeerUp));
    }
}

#[test]
fn a_narrow_path_is_found_out_and_frames_above_it_are_counted() {
    let Some(lab) = Lab::routed("a_narrow_path_is_found_out", 1500, 1300) else {
        return;
    };
    for (family, connected) in CASES {
        let config = UdpConfig {
            family,
            connected,
            gso: false,
            ..UdpConfig::default()
        };
        let case = format!("{family:?}, {connected} connected");
        let (mut a, mut b, to_b, _) = pair(&lab, &config);
        let headers = if family == Family::V4 { 28 } else { 48 };
        let watch = watch();
        // What earlier cases taught the kernel is forgotten.
        lab.ip(0, "route flush cache");
        lab.ip(0, "-6 route flush cache");
        watch.until("short frames pass", |_| {
            post(&mut a, Channel::Data, to_b, &vec![1; 1300 - headers]);
            b.split().1.poll(Channel::Data, 1) > 0
        });
        watch.until(&format!("the router's answer, {case}"), |_| {
            post(&mut a, Channel::Data, to_b, &vec![2; 1301 - headers]);
            a.split().1.poll(Channel::Data, 1);
            a.stats().path_answers > 0 || a.stats().above_path_mtu > 0
        });
        watch.until(&format!("the limit, {case}"), |_| {
            post(&mut a, Channel::Data, to_b, &vec![2; 1301 - headers]);
            a.split().1.poll(Channel::Data, 1);
            a.path_limit(to_b) == Some(1300 - headers) && a.stats().above_path_mtu > 0
        });
        watch.until("short frames still pass", |_| {
            post(&mut a, Channel::Data, to_b, b"short");
            let n = b.split().1.poll(Channel::Data, 1);
            n > 0 && b.split().1.frame(Channel::Data, 0).unwrap().bytes.to_vec() == b"short"
        });
    }
}

#[test]
fn losses_on_the_link_are_losses_of_frames_and_nothing_else() {
    let Some(lab) = Lab::pair("losses_on_the_link", 1500) else {
        return;
    };
    let config = UdpConfig {
        gso: false,
        gro: false,
        ..UdpConfig::default()
    };
    let (mut a, mut b, to_b, _) = pair(&lab, &config);
    post(&mut a, Channel::Data, to_b, b"who has b");
    watch().until("they know each other", |_| b.split().1.poll(Channel::Data, 1) > 0);
    for (permille, expected) in [(0, 2000..=2000), (50, 1820..=1980), (10, 1940..=1999)] {
        lab.lose(permille);
        let mut arrived = 0;
        for n in 0..2000u32 {
            assert!(post(&mut a, Channel::Data, to_b, &n.to_le_bytes()));
            arrived += b.split().1.poll(Channel::Data, 8);
        }
        // What is under way comes in a moment, or in a while on a busy machine; what was lost otherwise never
        // does.
        let sent = Instant::now();
        while (arrived as u64) + lab.dropped(1) < 2000 && sent.elapsed() < PATIENCE {
            arrived += b.split().1.poll(Channel::Data, 8);
        }
        assert!(
            expected.contains(&arrived),
            "{arrived} of 2000 at {permille} permille"
        );
        assert_eq!(lab.dropped(1), 2000 - arrived as u64);
    }
    assert_eq!(b.kernel_drops(), 0);
}

#[test]
fn a_silent_cut_of_long_packets_passes_short_ones() {
    let Some(lab) = Lab::pair("a_silent_cut_of_long_packets", 1500) else {
        return;
    };
    let (mut a, mut b, to_b, _) = pair(&lab, &UdpConfig::default());
    lab.drop_longer(1, 1000);
    for _ in 0..20 {
        assert!(post(&mut a, Channel::Data, to_b, &[1; 1400]));
        assert!(post(&mut a, Channel::Data, to_b, &[2; 900]));
        watch().until("the short one passes", |_| b.split().1.poll(Channel::Data, 1) > 0);
        assert_eq!(b.split().1.frame(Channel::Data, 0).unwrap().bytes.len(), 900);
    }
    assert_eq!((lab.dropped(1), a.stats().above_path_mtu), (20, 0));
}

#[test]
fn only_the_named_interface_is_used_whatever_the_routing_table_prefers() {
    let Some(lab) = Lab::pair("only_the_named_interface_is_used", 1500) else {
        return;
    };
    lab.ip(0, "link add d0 type veth peer name d1");
    lab.ip(0, "address add 10.88.0.1/24 dev d0");
    lab.ip(0, "link set d0 up");
    lab.ip(0, "link set d1 up");
    lab.wait_until_up(0, "d0");
    let b = open(&lab, 1, &UdpConfig::default()).address();
    let mut through_v0 = open(&lab, 0, &UdpConfig::default());
    let name = "udp:d0".parse().unwrap();
    let mut through_other = lab
        .inside(0, || UdpRail::open(&name, &UdpConfig::default()))
        .unwrap();
    assert!(lab.inside(0, || through_v0.open(&b, LIFE)).is_ok());
    let error = lab
        .inside(0, || through_other.open(&b, LIFE))
        .unwrap_err()
        .to_string();
    assert!(
        ["udp:d0", "10.77.0.2", "through v0"]
            .iter()
            .all(|&part| error.contains(part)),
        "{error}"
    );
}

/// Our own interface goes down and comes back, under the same sockets: the event comes within the bound, also
/// to a sleeper, nothing ends the rail, and frames cross again in both directions.
#[test]
fn our_own_interface_goes_down_and_comes_back() {
    let Some(lab) = Lab::pair("our_own_interface_goes_down", 1500) else {
        return;
    };
    for (family, connected) in CASES {
        let case = format!("{family:?}, {connected} connected");
        let config = UdpConfig {
            family,
            connected,
            ..UdpConfig::default()
        };
        let (mut a, mut b, to_b, to_a) = pair(&lab, &config);
        let watch = watch();
        let crosses = |from: &mut UdpRail, to: &mut UdpRail, peer| {
            watch.until(&format!("a frame crosses, {case}"), |now| {
                post(from, Channel::Priority, peer, b"across");
                from.split().1.poll(Channel::Priority, 8);
                from.progress(now);
                to.progress(now);
                to.split().1.poll(Channel::Priority, 8) > 0
            });
        };
        crosses(&mut a, &mut b, to_b);
        crosses(&mut b, &mut a, to_a);
        let wait = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let down = loop {
            if let Armed::Sleep(fd) = a.arm().unwrap() {
                lab.ip(0, "link set v0 down");
                let down = Stopwatch::of_thread();
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                assert!(rustix::event::poll(&mut fds, Some(&wait)).unwrap() > 0, "{case}");
                break down;
            }
            a.split().1.poll(Channel::Priority, 8);
        };
        a.disarm();
        // The kernel notifies at once of an interface that is taken down; a lost carrier has to be queried.
        for (rail, most) in [(&mut a, 100), (&mut b, 250)] {
            let event = next_event(rail, &watch, "the link goes");
            assert_eq!((event.scope, event.kind), (Scope::Rail, EventKind::LinkDown));
            let took = down.elapsed();
            assert!(took < Duration::from_millis(most), "{took:?}, {case}");
        }
        for n in 0..100u8 {
            assert!(post(&mut a, Channel::Data, to_b, &[n; 1000]), "{case}");
            assert!(post(&mut b, Channel::Data, to_a, &[n; 1000]), "{case}");
        }
        lab.ip(0, "link set v0 up");
        // The kernel has removed this one, unless `keep_addr_on_down` is set.
        lab.ip(0, "-6 address replace fd77::1/64 dev v0 nodad");
        let up = Stopwatch::of_thread();
        for rail in [&mut a, &mut b] {
            let mut event = next_event(rail, &watch, "the link comes back");
            while event.kind != EventKind::LinkUp {
                event = next_event(rail, &watch, "the link comes back");
            }
        }
        assert!(
            up.elapsed() < Duration::from_millis(500),
            "{:?}, {case}",
            up.elapsed()
        );
        crosses(&mut a, &mut b, to_b);
        crosses(&mut b, &mut a, to_a);
    }
}

/// The text of the path from the rail `name` in the first host to `peer`: by name, and of an open rail, which
/// have to agree.
fn asked(lab: &Lab, name: &str, peer: &str) -> String {
    let (name, config) = (name.parse().unwrap(), UdpConfig::default());
    let address = RailAddress::inet("udp", format!("{peer}:56080").parse().unwrap());
    let by_name = lab.inside(0, || {
        doorbell_inet::next_hop_to(&name, &config.interface_query(), &address)
    });
    let opened = lab.inside(0, || UdpRail::open(&name, &config).unwrap().open(&address, LIFE));
    match (by_name, opened) {
        (Ok(way), Ok(_)) => way.to_string(),
        (Err(no), Err(refused)) => {
            assert_eq!(no.to_string(), refused.to_string());
            no.to_string()
        }
        (by_name, opened) => panic!("{by_name:?}, and {opened:?}"),
    }
}

#[test]
fn the_routing_table_is_queried_as_by_the_sockets() {
    let Some(lab) = Lab::pair("the_routing_table_is_asked", 1500) else {
        return;
    };
    // Rules that go by the source: one leads there, one does not.
    lab.ip(0, "route add 10.99.0.0/24 via 10.77.0.2 table 100");
    lab.ip(0, "rule add from 10.77.0.1 to 10.99.0.0/24 lookup 100");
    assert_eq!(asked(&lab, "udp:v0", "10.99.0.1"), "through the router 10.77.0.2");
    lab.ip(0, "route add 10.98.0.0/24 via 10.77.0.2");
    assert_eq!(asked(&lab, "udp:v0", "10.98.0.1"), "through the router 10.77.0.2");
    lab.ip(0, "rule add from 10.77.0.1 to 10.98.0.0/24 prohibit");
    let prohibited = asked(&lab, "udp:v0", "10.98.0.1");
    assert!(prohibited.contains("prohibit route"), "{prohibited}");
    lab.ip(0, "route add blackhole 10.97.0.0/24");
    let lost = asked(&lab, "udp:v0", "10.97.0.1");
    assert!(lost.contains("blackhole"), "{lost}");

    // Two default routes: a rail takes that of its own interface, whichever the table prefers.
    lab.ip(0, "link add d0 type veth peer name d1");
    lab.ip(0, "address add 10.88.0.1/24 dev d0");
    lab.ip(0, "link set d0 up");
    lab.ip(0, "link set d1 up");
    lab.wait_until_up(0, "d0");
    let apart = asked(&lab, "udp:d0", "203.0.113.9");
    assert!(apart.contains("no route"), "{apart}");
    lab.ip(0, "route add default via 10.77.0.2 metric 100");
    assert_eq!(
        asked(&lab, "udp:v0", "203.0.113.9"),
        "through the router 10.77.0.2"
    );
    let other = asked(&lab, "udp:d0", "203.0.113.9");
    assert!(
        other.contains("through v0 (router 10.77.0.2), not through d0"),
        "{other}"
    );
    lab.ip(0, "route add default via 10.88.0.254 metric 200");
    assert_eq!(
        asked(&lab, "udp:d0", "203.0.113.9"),
        "through the router 10.88.0.254"
    );
    assert_eq!(
        asked(&lab, "udp:v0", "203.0.113.9"),
        "through the router 10.77.0.2"
    );
    assert_eq!(asked(&lab, "udp:v0", "10.77.0.2"), "on its own link");
    // The table has both interfaces in one network, and prefers one of them.
    lab.ip(0, "address add 10.77.0.9/24 dev d0 metric 500");
    assert_eq!(asked(&lab, "udp:10.77.0.9", "10.77.0.2"), "on its own link");
}

/// As above, by a table of an interface's own.
#[test]
fn an_interface_of_a_vrf_has_its_own_routes() {
    let Some(lab) = Lab::pair("an_interface_of_a_vrf", 1500) else {
        return;
    };
    if !lab.can(0, "link add red type vrf table 10") {
        return doorbell_testing::skipped("an_interface_of_a_vrf", "the kernel has no VRFs");
    }
    lab.ip(0, "link set red up");
    lab.ip(0, "link set v0 master red");
    lab.ip(0, "route add 10.96.0.0/24 via 10.77.0.2 table 10");
    assert_eq!(asked(&lab, "udp:v0", "10.96.0.1"), "through the router 10.77.0.2");
    assert_eq!(asked(&lab, "udp:v0", "10.77.0.2"), "on its own link");
}

/// A rail keeps its own place and its own verdicts when its interface's name goes to another one.
#[test]
fn a_rail_is_where_it_was_opened() {
    let Some(lab) = Lab::pair("a_rail_is_where_it_was_opened", 1500) else {
        return;
    };
    let rail = open(&lab, 0, &UdpConfig::default());
    let (before, rail) = lab.inside(0, move || (rail.place(), rail));
    assert_eq!(
        (before.interface.as_str(), before.prefix, before.mtu),
        ("v0", 24, 1500)
    );
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    lab.ip(0, "address add 10.55.0.1/16 dev v0");
    let by_name = "udp:v0".parse().unwrap();
    let now = lab.inside(0, || {
        doorbell_inet::place(&by_name, &UdpConfig::default().interface_query())
    });
    assert_eq!(now.prefix, 16);
    let (after, mut rail) = lab.inside(0, move || (rail.place(), rail));
    assert_eq!(after, before);
    let peer = RailAddress::inet("udp", "10.55.0.2:56080".parse().unwrap());
    let error = lab.inside(0, || rail.open(&peer, LIFE)).unwrap_err().to_string();
    assert!(error.contains("no longer has the address 10.77.0.1"), "{error}");
}
