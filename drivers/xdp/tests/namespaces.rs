//! Beside the kernel's own stack on a real link: what goes to the rail and what does not, which other
//! programs are there, how it ends.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::discover::Driver;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_testing::netns::Lab;
use doorbell_xdp::{Mode, XdpConfig, XdpDriver, XdpRail};

const PATIENCE: Duration = Duration::from_secs(60);
const LIFE: Incarnation = Incarnation(1);

fn open(lab: &Lab, side: usize, config: &XdpConfig) -> Result<XdpRail, RailError> {
    lab.inside(side, || XdpRail::open(&"xdp:v0".parse().unwrap(), config))
}

/// Opens a peer from inside its host: routes are looked up there.
fn meet<R: Datagram + Send>(lab: &Lab, side: usize, rail: &mut R, address: &RailAddress) -> PeerIndex {
    lab.inside(side, || Datagram::open(rail, address, LIFE)).unwrap()
}

struct Watch(Instant);

fn watch() -> Watch {
    Watch(Instant::now())
}

impl Watch {
    fn now(&self) -> Time {
        Time::from_nanos(1 + self.0.elapsed().as_nanos() as u64)
    }

    fn until(&self, what: &str, mut done: impl FnMut(Time) -> bool) {
        while !done(self.now()) {
            assert!(self.0.elapsed() < PATIENCE, "never happened: {what}");
            std::thread::yield_now();
        }
    }
}

fn resolved(rail: &mut XdpRail, peer: PeerIndex) {
    watch().until("the neighbour is known", |now| {
        rail.progress(now);
        rail.is_resolved(peer)
    });
}

fn post<R: Datagram>(rail: &mut R, channel: Channel, peer: PeerIndex, bytes: &[u8]) -> bool {
    let (tx, _) = rail.split();
    if tx.reserve(channel, 1) == 0 {
        return false;
    }
    tx.post(channel, peer, bytes, Body::Empty).unwrap();
    tx.doorbell();
    true
}

/// The next frame on the channel.
fn take<R: Datagram>(rail: &mut R, channel: Channel) -> (Option<PeerIndex>, Vec<u8>) {
    let mut got = None;
    watch().until("a frame arrives", |_| {
        let (_, rx) = rail.split();
        if rx.poll(channel, 1) == 1 {
            let frame = rx.frame(channel, 0).unwrap();
            got = Some((frame.from, frame.bytes.to_vec()));
        }
        got.is_some()
    });
    got.unwrap()
}

/// Other ports of the same address, and everything else, go to the kernel as before.
#[test]
fn only_its_own_ports_come_to_the_rail() {
    let Some(lab) = Lab::pair("only_its_own_ports_come_to_the_rail", 1500) else {
        return;
    };
    let mut rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    let port = rail.address().inet_of("xdp").unwrap().port();
    let other = lab.inside(0, || UdpSocket::bind("10.77.0.1:0")).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let stranger = lab.inside(1, || UdpSocket::bind("10.77.0.2:0")).unwrap();
    stranger
        .send_to(b"to the kernel", other.local_addr().unwrap())
        .unwrap();
    let mut bytes = [0; 64];
    assert_eq!(other.recv(&mut bytes).unwrap(), 13);
    for (channel, port) in [(Channel::Priority, port), (Channel::Data, port + 1)] {
        stranger.send_to(b"to the rail", ("10.77.0.1", port)).unwrap();
        assert_eq!(take(&mut rail, channel), (None, b"to the rail".to_vec()));
    }
    // Below and above its ports no socket is bound.
    for port in [port - 1, port + 2] {
        stranger.send_to(b"to nobody", ("10.77.0.1", port)).unwrap();
    }
    // Too long for one packet: fragments are put together by the kernel, and never seen by the rail.
    lab.inside(1, || stranger.send_to(&[7; 4000], ("10.77.0.1", port)))
        .unwrap();
    let watch = watch();
    watch.until("fragments are counted as astray", |now| {
        rail.progress(now);
        rail.stats().astray == 1
    });
    let stats = rail.stats();
    assert_eq!(
        (stats.received, stats.strangers, stats.malformed),
        (2, 2, 0),
        "{stats:?}"
    );
}

/// The queue belongs to one process, a second one is refused with the reason, and a link that was closed
/// leaves nothing behind.
#[test]
fn a_queue_serves_one_rail_at_a_time() {
    let Some(lab) = Lab::pair("a_queue_serves_one_rail_at_a_time", 1500) else {
        return;
    };
    let programs = || lab.inside(0, || link_of("v0")).contains("prog/xdp");
    assert!(!programs());
    let rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    assert!(programs());
    assert_eq!(
        (rail.granted().mode, rail.granted().queues.as_slice()),
        (Mode::Generic, &[0][..])
    );
    let error = open(&lab, 0, &XdpConfig::default()).unwrap_err();
    assert_eq!(error.code(), "rail-taken");
    let error = error.to_string();
    assert!(
        error.contains("another XDP program") && error.contains("xdp:v0"),
        "{error}"
    );
    let own = format!("of process {} (", std::process::id());
    assert!(error.contains(&own), "{error}");
    // A child that another test has just made still has copies of everything, until it runs its own program.
    let gone = || watch().until("the program is gone", |_| !programs());
    drop(rail);
    gone();
    drop(open(&lab, 0, &XdpConfig::default()).unwrap());
    gone();
}

/// What `ip link` shows of an interface.
fn link_of(interface: &str) -> String {
    let shown = Command::new("ip")
        .args(["link", "show", interface])
        .output()
        .unwrap();
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// A process that is killed leaves no program on the interface, and its queue can be opened at once.
#[test]
fn a_killed_process_leaves_a_clean_interface() {
    let Some(lab) = Lab::pair("a_killed_process_leaves_a_clean_interface", 1500) else {
        return;
    };
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new("ip")
        .args(["netns", "exec", lab.name(0)])
        .arg(program)
        .args(["--exact", "hold_the_interface", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("holding")),
        "it opened the rail"
    );
    let busy = open(&lab, 0, &XdpConfig::default()).unwrap_err().to_string();
    assert!(busy.contains("another XDP program"), "{busy}");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel takes a moment to end what a killed process had.
    let mut rail = None;
    watch().until("the interface is free", |_| {
        rail = open(&lab, 0, &XdpConfig::default()).ok();
        rail.is_some()
    });
    drop(rail);
    assert!(!lab.inside(0, || link_of("v0")).contains("prog/xdp"));
}

/// Set for the process that holds an interface until it is killed.
const CHILD: &str = "DOORBELL_TEST_HOLDS_AN_INTERFACE";

/// The process that is killed in the test above; run on its own, it does nothing.
#[test]
fn hold_the_interface() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let _rail = XdpRail::open(&"xdp:v0".parse().unwrap(), &XdpConfig::default()).unwrap();
    println!("holding");
    std::thread::sleep(Duration::from_secs(60));
}

/// Modes that an interface does not have are refused when they are named.
#[test]
fn a_mode_is_had_or_refused() {
    let Some(lab) = Lab::pair("a_mode_is_had_or_refused", 1500) else {
        return;
    };
    let asked = |mode| XdpConfig {
        mode: Some(mode),
        ..XdpConfig::default()
    };
    let error = open(&lab, 0, &asked(Mode::ZeroCopy)).unwrap_err().to_string();
    assert!(
        error.contains("zero-copy: its driver does not have it"),
        "{error}"
    );
    for mode in [Mode::Native, Mode::Generic] {
        assert_eq!(open(&lab, 0, &asked(mode)).unwrap().granted().mode, mode);
    }
    let config = XdpConfig {
        queue: Some(7),
        ..XdpConfig::default()
    };
    let error = open(&lab, 0, &config).unwrap_err().to_string();
    assert!(
        error.contains("no such queue") && error.contains("xdp.queue"),
        "{error}"
    );
    // Named in the step as it is, whatever the number.
    assert!(error.contains("xdp.queue is 7"), "{error}");
    let error = lab.inside(0, || {
        XdpRail::open(&"xdp:lo".parse().unwrap(), &XdpConfig::default())
    });
    assert!(error.unwrap_err().to_string().contains("udp:lo"));
}

/// Frames of all queues arrive: the kernel chooses the queue by the sender's processor or by its flow.
#[test]
fn all_queues_of_an_interface_are_served() {
    let Some(lab) = Lab::pair("all_queues_of_an_interface_are_served", 1500) else {
        return;
    };
    let b = lab.name(1);
    lab.ip(0, "link del v0");
    let many = "numrxqueues 4 numtxqueues 4";
    lab.ip(
        0,
        &format!("link add v0 {many} type veth peer name v0 netns {b} {many}"),
    );
    for side in 0..2 {
        lab.ip(side, &format!("address add 10.77.0.{}/24 dev v0", side + 1));
        lab.ip(side, "link set v0 up");
    }
    (0..2).for_each(|side| lab.wait_until_up(side, "v0"));
    let config = XdpConfig {
        mode: Some(Mode::Native),
        ..XdpConfig::default()
    };
    let (mut one, mut other) = (open(&lab, 0, &config).unwrap(), open(&lab, 1, &config).unwrap());
    assert_eq!(one.granted().queues, [0, 1, 2, 3]);
    let to_other = meet(&lab, 0, &mut one, &other.address());
    meet(&lab, 1, &mut other, &one.address());
    resolved(&mut one, to_other);
    for number in 0..100u8 {
        assert!(post(&mut one, Channel::Data, to_other, &[number; 100]));
        assert_eq!(take(&mut other, Channel::Data).1, [number; 100]);
    }
    // Kernel sockets of many ports spread over the queues.
    let port = other.address().inet_of("xdp").unwrap().port();
    for _ in 0..32 {
        let stranger = lab.inside(0, || UdpSocket::bind("10.77.0.1:0")).unwrap();
        stranger.send_to(b"from anywhere", ("10.77.0.2", port)).unwrap();
        assert_eq!(take(&mut other, Channel::Priority).1, b"from anywhere");
    }
    assert_eq!(other.stats().astray, 0);
}

/// A queue that receives and cannot send, or the other way round, is refused at once, by name, without any
/// wait for it.
#[test]
fn a_queue_that_serves_one_way_only_is_refused() {
    let Some(lab) = Lab::pair("a_queue_that_serves_one_way_only_is_refused", 1500) else {
        return;
    };
    lab.ip(0, "link del v0");
    let queues = "numrxqueues 4 numtxqueues 1";
    let (b, other) = (lab.name(1), "numrxqueues 1 numtxqueues 4");
    lab.ip(
        0,
        &format!("link add v0 {queues} type veth peer name v0 netns {b} {other}"),
    );
    for side in 0..2 {
        lab.ip(side, &format!("address add 10.77.0.{}/24 dev v0", side + 1));
        lab.ip(side, "link set v0 up");
    }
    (0..2).for_each(|side| lab.wait_until_up(side, "v0"));
    let config = XdpConfig {
        queue: Some(2),
        ..XdpConfig::default()
    };
    for (side, way) in [(0, "go out by queue 0 only"), (1, "come in by queue 0 only")] {
        let error = open(&lab, side, &config).unwrap_err().to_string();
        assert!(
            error.contains("no such queue") && error.contains(way) && error.contains("ethtool -l v0"),
            "{error}"
        );
        let found = lab.inside(side, || {
            XdpDriver { config }.probe().map(|found| {
                let found = found.into_iter().find(|one| one.rail.as_str() == "xdp:v0");
                format!("{:?}", found.unwrap().verdict)
            })
        });
        assert!(found.unwrap().contains(way), "discovery reports the same");
    }
}

/// More frames than the rings hold: what does not fit is dropped and counted, the rest is whole, and it goes
/// on.
#[test]
fn a_flood_is_counted_and_ends_well() {
    let Some(lab) = Lab::pair("a_flood_is_counted_and_ends_well", 1500) else {
        return;
    };
    let config = XdpConfig {
        receive_ring: 64,
        send_ring: 64,
        ..XdpConfig::default()
    };
    let (mut a, mut b) = (open(&lab, 0, &config).unwrap(), open(&lab, 1, &config).unwrap());
    let to_b = meet(&lab, 0, &mut a, &b.address());
    meet(&lab, 1, &mut b, &a.address());
    resolved(&mut a, to_b);
    let mut posted = 0u64;
    watch().until("a thousand frames are posted", |_| {
        let (tx, _) = a.split();
        for _ in 0..tx.reserve(Channel::Data, 16) {
            tx.post(Channel::Data, to_b, &posted.to_ne_bytes(), Body::Empty)
                .unwrap();
            posted += 1;
        }
        tx.doorbell();
        posted >= 1000
    });
    let (mut last, mut seen) = (None, 0);
    loop {
        let (_, rx) = b.split();
        let n = rx.poll(Channel::Data, 16);
        if n == 0 {
            break;
        }
        for i in 0..n {
            let number = u64::from_ne_bytes(rx.frame(Channel::Data, i).unwrap().bytes.read(0).unwrap());
            assert!(last.is_none_or(|last| number > last), "in order, once");
            (last, seen) = (Some(number), seen + 1);
        }
    }
    let stats = b.stats();
    assert!(seen >= 64 && seen < posted, "{seen} of {posted}");
    assert_eq!(stats.received, seen);
    assert_eq!(stats.overrun + seen, posted, "{stats:?}");
    assert_eq!(a.stats().sent, posted);
    assert!(post(&mut a, Channel::Data, to_b, b"after"));
    assert_eq!(take(&mut b, Channel::Data).1, b"after");
}

/// A peer whose next hop does not answer is no error: its frames are lost, until it does.
#[test]
fn a_neighbour_that_comes_later_is_found() {
    let Some(lab) = Lab::pair("a_neighbour_that_comes_later_is_found", 1500) else {
        return;
    };
    let mut rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    let unreachable = RailAddress::inet("xdp", "10.77.0.9:4000".parse().unwrap());
    let peer = meet(&lab, 0, &mut rail, &unreachable);
    assert!(!rail.is_resolved(peer));
    assert!(post(&mut rail, Channel::Data, peer, b"lost"));
    assert_eq!(rail.stats().unresolved, 1);
    lab.ip(1, "address add 10.77.0.9/24 dev v0");
    resolved(&mut rail, peer);
    let late = lab.inside(1, || UdpSocket::bind("10.77.0.9:4001")).unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(post(&mut rail, Channel::Data, peer, b"found"));
    let mut bytes = [0; 16];
    assert_eq!(late.recv(&mut bytes).unwrap(), 5);
    // It has another hardware address now, and announces it.
    lab.ip(1, "link set v0 down");
    lab.ip(1, "link set v0 address 02:00:00:00:00:77");
    lab.ip(1, "link set v0 up");
    watch().until("frames go to the new hardware address", |now| {
        rail.progress(now);
        lab.can(1, "neigh flush dev v0");
        let _ = late.send_to(b"hello", "10.77.0.1:9");
        post(&mut rail, Channel::Data, peer, b"moved");
        late.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        late.recv(&mut bytes).is_ok_and(|n| n == 5)
    });
}

#[test]
fn a_sleeper_is_woken_by_a_frame_and_the_link_is_reported() {
    let Some(lab) = Lab::pair("a_sleeper_is_woken_by_a_frame_and_the_link_is_reported", 1500) else {
        return;
    };
    let (mut a, mut b) = (
        open(&lab, 0, &XdpConfig::default()).unwrap(),
        open(&lab, 1, &XdpConfig::default()).unwrap(),
    );
    let to_b = meet(&lab, 0, &mut a, &b.address());
    resolved(&mut a, to_b);
    let watch = watch();
    b.progress(watch.now());
    let readable = |rail: &mut XdpRail, wait: i64| match rail.arm().unwrap() {
        Armed::Ready => true,
        Armed::Sleep(fd) => {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                fd,
                rustix::event::PollFlags::IN,
            )];
            let wait = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: wait * 1_000_000,
            };
            rustix::event::poll(&mut fds, Some(&wait)).unwrap() == 1
        }
    };
    // News of neighbours are read first.
    watch.until("nothing is left to read", |now| {
        b.disarm();
        b.progress(now);
        !readable(&mut b, 20)
    });
    assert!(post(&mut a, Channel::Data, to_b, b"wake up"));
    assert!(readable(&mut b, 5_000));
    b.disarm();
    assert_eq!(take(&mut b, Channel::Data).1, b"wake up");
    lab.ip(0, "link set v0 down");
    let mut events = Vec::new();
    watch.until("the link's end is reported", |now| {
        b.progress(now);
        events.extend(std::iter::from_fn(|| b.event()).map(|event| event.kind));
        events.contains(&EventKind::LinkDown)
    });
    assert!(!b.is_link_up());
    let deadline = watch.now();
    assert!(b.close(deadline, deadline));
}

/// A rail that has ended has released its queue, although its value still exists.
#[test]
fn a_closed_rail_has_let_go_of_the_queue() {
    let Some(lab) = Lab::pair("a_closed_rail_has_let_go_of_the_queue", 1500) else {
        return;
    };
    let mut rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    assert!(rail.close(Time::ZERO, Time::ZERO));
    let again = open(&lab, 0, &XdpConfig::default()).unwrap();
    assert_eq!(rail.stats().sent, 0);
    drop(again);
}

/// Where the interface is down, what was posted waits for it; that keeps no thread awake, and an end does not
/// wait.
#[test]
fn frames_of_an_interface_that_is_down_wake_no_sleeper() {
    let Some(lab) = Lab::pair("frames_of_an_interface_that_is_down_wake_no_sleeper", 1500) else {
        return;
    };
    let (mut a, mut b) = (
        open(&lab, 0, &XdpConfig::default()).unwrap(),
        open(&lab, 1, &XdpConfig::default()).unwrap(),
    );
    let to_b = meet(&lab, 0, &mut a, &b.address());
    resolved(&mut a, to_b);
    lab.ip(0, "link set v0 down");
    assert!(post(&mut a, Channel::Data, to_b, b"waits"));
    let watch = watch();
    watch.until("it can sleep", |now| {
        a.disarm();
        a.progress(now);
        while a.event().is_some() {}
        matches!(a.arm().unwrap(), Armed::Sleep(_))
    });
    a.disarm();
    assert_eq!(a.stats().sent, 0);
    lab.ip(0, "link set v0 up");
    let mut got = false;
    watch.until("frames go out when the interface is up again", |now| {
        a.progress(now);
        // Until the carrier is back, the kernel takes frames and drops them.
        post(&mut a, Channel::Data, to_b, b"again");
        let (_, rx) = b.split();
        let n = rx.poll(Channel::Data, 16);
        got |= (0..n).any(|i| {
            rx.frame(Channel::Data, i)
                .is_some_and(|frame| frame.bytes.to_vec() == b"again")
        });
        got
    });
    assert!(a.stats().sent >= 2);
    lab.ip(0, "link set v0 down");
    assert!(post(&mut a, Channel::Data, to_b, b"lost"));
    let now = watch.now();
    assert!(
        a.close(now, now + Duration::from_secs(60)),
        "there is nothing to wait for"
    );
    assert_eq!(a.stats().unsendable, 1);
}

/// A send ring that fills while the interface is down is no end: everything goes on when it is up again.
#[test]
fn a_send_ring_that_is_full_goes_on_when_the_interface_is_up_again() {
    let Some(lab) = Lab::pair(
        "a_send_ring_that_is_full_goes_on_when_the_interface_is_up_again",
        1500,
    ) else {
        return;
    };
    let config = XdpConfig {
        send_ring: 64,
        ..XdpConfig::default()
    };
    let (mut a, mut b) = (open(&lab, 0, &config).unwrap(), open(&lab, 1, &config).unwrap());
    let to_b = meet(&lab, 0, &mut a, &b.address());
    resolved(&mut a, to_b);
    lab.ip(0, "link set v0 down");
    let mut posted = 0;
    while post(&mut a, Channel::Data, to_b, b"waits") {
        posted += 1;
    }
    assert_eq!((posted, a.stats().sent), (64, 0));
    assert!(
        matches!(a.arm().unwrap(), Armed::Sleep(_)),
        "the thread may sleep"
    );
    a.disarm();
    lab.ip(0, "link set v0 up");
    let mut got = false;
    watch().until("frames go out when the interface is up again", |now| {
        a.progress(now);
        post(&mut a, Channel::Data, to_b, b"again");
        let (_, rx) = b.split();
        let n = rx.poll(Channel::Data, 16);
        got |= (0..n).any(|i| {
            rx.frame(Channel::Data, i)
                .is_some_and(|frame| frame.bytes.to_vec() == b"again")
        });
        got
    });
    assert!(a.stats().sent > 64);
}

/// A route that changes is followed at once: frames go by the new next hop, and not by that which the table
/// had at the opening.
#[test]
fn a_route_that_changes_is_followed() {
    let Some(lab) = Lab::pair("a_route_that_changes_is_followed", 1500) else {
        return;
    };
    lab.ip(1, "address add 10.99.0.1/32 dev v0");
    lab.ip(1, "route add 10.77.0.1 dev v0 src 10.99.0.1");
    // A next hop that does not exist, which the table leads to at first.
    lab.ip(
        0,
        "neighbour add 10.77.0.4 lladdr 02:00:00:00:00:99 dev v0 nud permanent",
    );
    lab.ip(0, "route add 10.99.0.1 via 10.77.0.4");
    let mut rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    let far = RailAddress::inet("xdp", "10.99.0.1:4000".parse().unwrap());
    let peer = meet(&lab, 0, &mut rail, &far);
    resolved(&mut rail, peer);
    let other = lab.inside(1, || UdpSocket::bind("10.99.0.1:4001")).unwrap();
    other.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(post(&mut rail, Channel::Data, peer, b"astray"));
    let mut bytes = [0; 16];
    assert!(other.recv(&mut bytes).is_err(), "it reaches no socket");
    lab.ip(0, "route replace 10.99.0.1 via 10.77.0.2");
    let watch = watch();
    watch.until("frames go by the new next hop", |now| {
        lab.inside(0, || rail.progress(now));
        post(&mut rail, Channel::Data, peer, b"moved");
        other.recv(&mut bytes).is_ok_and(|n| n == 5)
    });
    assert!(
        watch.0.elapsed() < Duration::from_secs(2),
        "it was notified, and not found by chance"
    );
}

/// What is wrong although the link is up has words: an MTU that was lowered, frames past the rail.
#[test]
fn trouble_behind_a_link_that_is_up_has_words() {
    let Some(lab) = Lab::pair("trouble_behind_a_link_that_is_up_has_words", 1500) else {
        return;
    };
    let mut rail = open(&lab, 0, &XdpConfig::default()).unwrap();
    let port = rail.address().inet_of("xdp").unwrap().port();
    let told = |rail: &mut XdpRail, what: &str| {
        watch().until(what, |now| {
            rail.progress(now);
            rail.trouble(true).is_some_and(|words| words.contains(what))
        });
    };
    rail.progress(watch().now());
    assert_eq!((rail.trouble(true), rail.is_link_up()), (None, true));
    let stranger = lab.inside(1, || UdpSocket::bind("10.77.0.2:0")).unwrap();
    stranger.send_to(&[7; 4000], ("10.77.0.1", port)).unwrap();
    told(&mut rail, "astray");
    assert_eq!(rail.trouble(false), None, "where all is well, it is none");
    lab.ip(0, "link set v0 mtu 1400");
    told(&mut rail, "MTU was made smaller");
    lab.ip(0, "link set v0 mtu 1500");
    told(&mut rail, "astray");
}

/// Busy polling is claimed only where the kernel knows what to poll, which it does not on such a link; and an
/// interface of the other family alone is refused with the setting that takes it.
#[test]
fn what_is_not_had_is_not_claimed() {
    let Some(lab) = Lab::pair("what_is_not_had_is_not_claimed", 1500) else {
        return;
    };
    let config = XdpConfig {
        busy_poll: Some(50),
        mode: Some(Mode::Generic),
        ..XdpConfig::default()
    };
    let mut rail = open(&lab, 0, &config).unwrap();
    let port = rail.address().inet_of("xdp").unwrap().port();
    let stranger = lab.inside(1, || UdpSocket::bind("10.77.0.2:0")).unwrap();
    stranger.send_to(b"a frame", ("10.77.0.1", port)).unwrap();
    take(&mut rail, Channel::Priority);
    rail.progress(watch().now());
    let granted = rail.granted();
    assert!(granted.busy_poll_asked && !granted.busy_poll, "{granted:?}");
    assert!(granted.to_string().contains("not polled busily"), "{granted}");
    assert!(matches!(
        rail.poll_cost(),
        doorbell_fabric::rail::PollCost::Memory
    ));
    drop(rail);
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    let error = open(&lab, 0, &XdpConfig::default()).unwrap_err().to_string();
    assert!(
        error.contains("no IPv4 address") && error.contains("udp.family=ipv6"),
        "{error}"
    );
}

/// Where the MTU needs it, frames are in several chunks: of every length to and from a host over sockets, and
/// between two rails; where it does not, and where a shorter MTU is set, they are in one.
#[test]
fn frames_longer_than_a_chunk_pass_both_ways() {
    let Some(lab) = Lab::pair("frames_longer_than_a_chunk_pass_both_ways", 9000) else {
        return;
    };
    for mode in [Mode::Generic, Mode::Native] {
        let config = XdpConfig {
            mode: Some(mode),
            ..XdpConfig::default()
        };
        let (mut a, mut b) = (open(&lab, 0, &config).unwrap(), open(&lab, 1, &config).unwrap());
        let granted = a.granted().clone();
        assert_eq!((granted.pieces, granted.longest), (3, 8972), "{granted}");
        assert!(granted.to_string().contains("up to 3 chunks"), "{granted}");
        assert_eq!(granted.notes, [""; 0]);
        let (to_b, to_a) = (
            meet(&lab, 0, &mut a, &b.address()),
            meet(&lab, 1, &mut b, &a.address()),
        );
        resolved(&mut a, to_b);
        resolved(&mut b, to_a);
        let socket = lab.inside(1, || UdpSocket::bind("10.77.0.2:0")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let stranger = RailAddress::inet("xdp", socket.local_addr().unwrap());
        let to_socket = meet(&lab, 0, &mut a, &stranger);
        resolved(&mut a, to_socket);
        let port = a.address().inet_of("xdp").unwrap().port();
        // One chunk, the last byte of one, of two, and the longest; what is odd and what is even.
        for length in [
            0, 1, 1472, 3797, 3798, 3799, 4053, 4054, 4055, 7638, 8149, 8150, 8151, 8971, 8972,
        ] {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + at / 255) as u8).collect();
            assert!(post(&mut a, Channel::Data, to_b, &bytes));
            let got = take(&mut b, Channel::Data);
            assert_eq!(got, (Some(to_a), bytes.clone()), "{mode} {length}");
            assert!(post(&mut b, Channel::Priority, to_a, &bytes));
            let got = take(&mut a, Channel::Priority);
            assert_eq!(got, (Some(to_b), bytes.clone()), "{mode} {length}");
            // The kernel checks the checksum of what the rail sent, and the rail finds what the kernel sent
            // whole.
            assert!(post(&mut a, Channel::Priority, to_socket, &bytes));
            let mut got = vec![0; 10_000];
            let n = socket.recv(&mut got).unwrap();
            assert!(got[..n] == bytes, "{mode} {length}");
            socket.send_to(&bytes, ("10.77.0.1", port)).unwrap();
            assert_eq!(take(&mut a, Channel::Priority).1, bytes, "{mode} {length}");
        }
        let stats = a.stats();
        assert_eq!(
            (stats.corrupt, stats.malformed, stats.nonsense, stats.overrun),
            (0, 0, 0, 0),
            "{stats:?}"
        );
        assert_eq!((stats.sent, stats.received), (30, 30), "{stats:?}");
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Data, 1), 1);
        let error = tx.post(Channel::Data, to_b, &[0; 8973], Body::Empty).unwrap_err();
        assert_eq!(error, doorbell_fabric::message::Refused::TooLong);
    }
    let short = XdpConfig {
        mtu: Some(3826),
        ..XdpConfig::default()
    };
    let rail = open(&lab, 0, &short).unwrap();
    assert_eq!((rail.granted().pieces, rail.granted().longest), (1, 3798));
}

/// Long frames by the thousand, more than the rings hold, a part of them kept: all that arrives is whole and
/// in order, every chunk comes back, and it goes on.
#[test]
fn a_flood_of_long_frames_loses_no_chunk() {
    let Some(lab) = Lab::pair("a_flood_of_long_frames_loses_no_chunk", 9000) else {
        return;
    };
    let config = XdpConfig {
        receive_ring: 64,
        send_ring: 64,
        spare: 4,
        ..XdpConfig::default()
    };
    let (mut a, mut b) = (open(&lab, 0, &config).unwrap(), open(&lab, 1, &config).unwrap());
    let to_b = meet(&lab, 0, &mut a, &b.address());
    meet(&lab, 1, &mut b, &a.address());
    resolved(&mut a, to_b);
    let frame = |number: u64| {
        let length = 8 + (number as usize * 509) % 8960;
        let mut bytes = vec![number as u8; length];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        bytes
    };
    let (mut posted, mut seen, mut last, mut kept) = (0u64, 0u64, None, Vec::new());
    for round in 0..200 {
        let (tx, _) = a.split();
        let room = tx.reserve(Channel::Data, 21);
        assert!(room <= 21);
        for _ in 0..room {
            tx.post(Channel::Data, to_b, &frame(posted), Body::Empty).unwrap();
            posted += 1;
        }
        tx.doorbell();
        let done = tx.reaped(Channel::Data);
        assert!(done.0 <= posted);
        // Every other round the frames are not read, so that the ring is full.
        if round % 2 == 0 {
            continue;
        }
        let (_, rx) = b.split();
        loop {
            let n = rx.poll(Channel::Data, 8);
            for i in 0..n {
                let bytes = rx.frame(Channel::Data, i).unwrap().bytes.to_vec();
                let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
                assert!(bytes == frame(number) && last.is_none_or(|last| number > last));
                (last, seen) = (Some(number), seen + 1);
                if number.is_multiple_of(7) && kept.len() < 4 {
                    let frame = rx.keep(Channel::Data, i).unwrap();
                    assert_eq!(frame.bytes().to_vec(), bytes);
                    kept.push((frame, bytes));
                }
            }
            if n == 0 {
                break;
            }
        }
        kept.iter()
            .for_each(|(frame, bytes)| assert_eq!(&frame.bytes().to_vec(), bytes));
        if round % 10 == 9 {
            kept.clear();
        }
    }
    let stats = b.stats();
    assert!(
        seen > 1000 && stats.overrun > 100,
        "{seen} of {posted}: {stats:?}"
    );
    assert_eq!(
        (stats.received, stats.received + stats.overrun),
        (seen, posted),
        "{stats:?}"
    );
    assert_eq!(
        (stats.malformed, stats.corrupt, stats.nonsense),
        (0, 0, 0),
        "{stats:?}"
    );
    assert_eq!(a.stats().sent, posted);
    // All of it can be reserved again: as many as there are chunks for, which is 64 by threes.
    for _ in 0..3 {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Data, 21), 21);
        for number in 0..21 {
            tx.post(Channel::Data, to_b, &vec![number; 8972], Body::Empty)
                .unwrap();
        }
        tx.doorbell();
        for number in 0..21 {
            assert_eq!(take(&mut b, Channel::Data).1, vec![number; 8972]);
        }
    }
}

/// Why an interface cannot be shared by its queues on a link that does not steer: a frame comes in by the
/// queue that its sender chose, or the sender's kernel by the flow, and a socket gets those of its own queue
/// only. So the second process is refused, whatever queue it names, and its error names the first one.
#[test]
fn a_frame_comes_by_the_queue_that_its_sender_chose_so_an_interface_is_one_rails() {
    const TEST: &str = "a_frame_comes_by_the_queue_that_its_sender_chose_so_an_interface_is_one_rails";
    let Some(lab) = Lab::pair(TEST, 1500) else { return };
    let b = lab.name(1);
    lab.ip(0, "link del v0");
    let two = "numrxqueues 2 numtxqueues 2";
    lab.ip(
        0,
        &format!("link add v0 {two} type veth peer name v0 netns {b} {two}"),
    );
    for side in 0..2 {
        lab.ip(side, &format!("address add 10.77.0.{}/24 dev v0", side + 1));
        lab.ip(side, "link set v0 up");
    }
    (0..2).for_each(|side| lab.wait_until_up(side, "v0"));
    for mode in [Mode::Generic, Mode::Native] {
        let on = |queue| XdpConfig {
            mode: Some(mode),
            queue: Some(queue),
            ..XdpConfig::default()
        };
        let mut receiver = open(&lab, 0, &on(0)).unwrap();
        let error = open(&lab, 0, &on(1)).unwrap_err().to_string();
        let own = format!("of process {} (", std::process::id());
        let missing = "v0 serves one rank: several would need rules that steer the ports of each to a queue \
                       (ETHTOOL_SRXCLSRLINS; its driver has no rules), and one program";
        assert!(error.contains(missing) && error.contains(&own), "{error}");
        // In the driver's mode the frames of a sender on the receiver's queue arrive, and those of one on the
        // other queue go to the kernel. In the common code the link does not carry the queue by which a frame
        // came, and all come by the first: the other one has none.
        for (queue, heard) in [(0, true), (1, mode == Mode::Generic)] {
            let mut sender = open(&lab, 1, &on(queue)).unwrap();
            let peer = meet(&lab, 1, &mut sender, &receiver.address());
            resolved(&mut sender, peer);
            let before = (receiver.stats().received, receiver.stats().astray);
            for _ in 0..20 {
                assert!(post(&mut sender, Channel::Data, peer, b"hello"));
            }
            let watch = watch();
            watch.until("all frames came some way", |now| {
                receiver.progress(now);
                receiver.split().1.poll(Channel::Data, 64);
                let stats = receiver.stats();
                stats.received + stats.astray == before.0 + before.1 + 20
            });
            let stats = receiver.stats();
            let expected = if heard { (20, 0) } else { (0, 20) };
            assert_eq!(
                (stats.received - before.0, stats.astray - before.1),
                expected,
                "{mode}, queue {queue}"
            );
        }
    }
}
