//! The rail over a little VIC in this process (`vic.rs`): the promises of `Datagram`, each way of steering,
//! and false values that a device may write, one by one and in the same order each time.

mod vic;

use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::{self, Ends};
use doorbell_testing::skipped;
use doorbell_usnic::{Agent, Control, Pf, UsnicConfig, UsnicRail, VfCommands};
use vic::{Lie, Policy, Vic};

const SOON: Duration = Duration::from_secs(20);

fn config() -> UsnicConfig {
    UsnicConfig {
        control: Control::Direct,
        ..UsnicConfig::default()
    }
}

fn open(vic: &Vic, number: usize, config: &UsnicConfig) -> Result<UsnicRail, String> {
    let name = format!("usnic:model/D/vf{number}").parse().unwrap();
    doorbell_usnic::over(&name, config, vic.claim(number)).map_err(|error| error.to_string())
}

struct Pair {
    vic: Vic,
    a: UsnicRail,
    b: UsnicRail,
    clock: u64,
}

impl Pair {
    fn new(config: &UsnicConfig) -> Self {
        Self::over(Vic::new(2, 6), config)
    }

    fn over(vic: Vic, config: &UsnicConfig) -> Self {
        let (mut a, mut b) = (open(&vic, 0, config).unwrap(), open(&vic, 1, config).unwrap());
        let (to_a, to_b) = (a.address(), b.address());
        a.open(&to_b, Incarnation(1)).unwrap();
        b.open(&to_a, Incarnation(1)).unwrap();
        let mut pair = Self { vic, a, b, clock: 0 };
        pair.until("they know each other", |pair| {
            pair.a.is_resolved(PeerIndex(0)) && pair.b.is_resolved(PeerIndex(0))
        });
        // What was announced at the beginning is over, so that each lie is about a frame of the test.
        (0..50).for_each(|_| pair.look());
        pair
    }

    /// Neighbours' words come by the same rings as frames.
    fn look(&mut self) {
        for rail in [&mut self.a, &mut self.b] {
            for channel in [Channel::Priority, Channel::Data] {
                if rail.split().1.poll(channel, 1) > 0 {
                    rail.split().1.poll(channel, 0);
                }
            }
        }
        self.turn();
    }

    fn turn(&mut self) {
        self.clock += 1_000_000;
        for rail in [&mut self.a, &mut self.b] {
            rail.progress(Time::from_nanos(self.clock));
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(
                begun.elapsed() < SOON,
                "never happened: {what} {:?} {:?}",
                self.a,
                self.b
            );
            self.look();
        }
    }

    fn post(&mut self, channel: Channel, bytes: &[u8]) -> FrameId {
        let (tx, _) = self.a.split();
        assert_eq!(tx.reserve(channel, 1), 1);
        let id = tx.post(channel, PeerIndex(0), &[], Body::Bytes(bytes)).unwrap();
        tx.doorbell();
        id
    }

    /// The next frame at `b`, if it is there.
    fn now(&mut self, channel: Channel) -> Option<Vec<u8>> {
        let (_, rx) = self.b.split();
        (rx.poll(channel, 1) > 0).then(|| rx.frame(channel, 0).unwrap().bytes.to_vec())
    }

    /// Frames pass, both ways and by both channels.
    fn passes(&mut self, what: &str) {
        for channel in [Channel::Priority, Channel::Data] {
            // Frames of before may still be there.
            while self.now(channel).is_some() {}
            self.post(channel, what.as_bytes());
            assert_eq!(
                self.now(channel).as_deref(),
                Some(what.as_bytes()),
                "{what}: {:?}",
                self.b.stats()
            );
        }
    }
}

type Check = fn(&mut Ends<UsnicRail>);

const CHECKS: [Check; 9] = [
    datagram::a_frame_arrives_as_it_was_posted,
    datagram::reserved_room_cannot_fail_and_no_more_is_given,
    datagram::without_room_nothing_is_posted,
    datagram::a_frame_above_the_mtu_is_refused,
    datagram::an_unknown_peer_is_refused,
    datagram::reaped_follows_the_posts_in_order,
    datagram::frames_stay_in_place_until_the_next_poll,
    datagram::a_kept_frame_leaves_the_ring,
    datagram::a_peer_that_is_forgotten_can_be_opened_again,
];

#[test]
fn the_promises_of_datagrams_hold() {
    for (completions, checksum, mtu) in [(6, true, 1500), (2, true, 1500), (3, false, 9000)] {
        let config = UsnicConfig {
            checksum,
            mtu,
            ..config()
        };
        for check in CHECKS {
            let pair = Pair::over(Vic::new(2, completions), &config);
            let mut now = pair.clock;
            let pump = move |a: &mut UsnicRail, b: &mut UsnicRail| {
                now += 1_000_000;
                a.progress(Time::from_nanos(now));
                b.progress(Time::from_nanos(now));
            };
            let incarnations = (pair.a.incarnation(), pair.b.incarnation());
            check(&mut Ends::connect(
                (pair.a, incarnations.0),
                (pair.b, incarnations.1),
                pump,
            ));
        }
    }
}

/// 42 bytes of headers with both checksums made by the device; 18 bytes make the shortest frame, 950 was what
/// usNIC copies.
#[test]
fn lengths_0_1_17_18_19_950_951_mtu_minus_28_and_mtu_minus_27_refused() {
    let mut pair = Pair::new(&config());
    for length in [0, 1, 17, 18, 19, 950, 951, 1500 - 28] {
        let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
        for channel in [Channel::Priority, Channel::Data] {
            pair.post(channel, &bytes);
            assert_eq!(pair.now(channel).as_ref(), Some(&bytes), "{length}");
        }
    }
    let (tx, _) = pair.a.split();
    tx.reserve(Channel::Data, 1);
    let long = vec![0; 1500 - 27];
    assert_eq!(
        tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(&long)),
        Err(Refused::TooLong)
    );
    let stats = pair.b.stats();
    assert_eq!((stats.received, stats.checked_by_device), (16, 16), "{stats:?}");
}

#[test]
fn the_device_makes_checksums_or_the_rail_does_and_both_are_understood() {
    for (of_a, of_b) in [(true, false), (false, true), (false, false)] {
        let vic = Vic::new(2, 6);
        let with = |checksum| UsnicConfig { checksum, ..config() };
        let mut a = open(&vic, 0, &with(of_a)).unwrap();
        let mut b = open(&vic, 1, &with(of_b)).unwrap();
        let (to_a, to_b) = (a.address(), b.address());
        a.open(&to_b, Incarnation(1)).unwrap();
        b.open(&to_a, Incarnation(1)).unwrap();
        let mut pair = Pair { vic, a, b, clock: 0 };
        pair.until("they know each other", |pair| pair.a.is_resolved(PeerIndex(0)));
        pair.passes("summed");
        assert_eq!(pair.b.stats().checked_by_device > 0, of_b);
    }
}

#[test]
fn what_a_device_writes_and_cannot_be_is_counted_and_the_rail_goes_on() {
    // The false value, how many entries or packets it spoils, and whether the queues have to be set up again.
    let lies = [
        (Lie::Index(4095), true),
        (Lie::Index(700), true),
        (Lie::Queue(5), true),
        (Lie::Queue(1), true),
        (Lie::Kind(1), true),
        (Lie::Kind(4), true),
        (Lie::Kind(5), true),
        (Lie::Kind(127), true),
        (Lie::Kind(0), true),
        (Lie::Lost, true),
        (Lie::Color, true),
        (Lie::Twice, false),
        (Lie::Cut, false),
        (Lie::Spoilt, false),
        (Lie::Length(0x3fff), false),
        (Lie::NoEnd, false),
        (Lie::Length(0), false),
    ];
    for (lie, again) in lies {
        let mut pair = Pair::new(&config());
        let before = pair.b.stats();
        pair.vic.lie(1, lie);
        pair.post(Channel::Priority, b"the one that is lied about");
        if !matches!(lie, Lie::Twice) {
            assert_eq!(pair.now(Channel::Priority), None, "{lie:?}");
        }
        // A second one, which shows the gap where there is one.
        pair.post(Channel::Priority, b"the next");
        (0..100).for_each(|_| pair.look());
        pair.until("the queues run", |pair| pair.b.is_link_up());
        pair.passes("afterwards");
        let after = pair.b.stats();
        assert_eq!(
            after.resets - before.resets,
            u64::from(again),
            "{lie:?}: {after:?}"
        );
        let strange =
            |stats: &doorbell_usnic::UsnicStats| stats.nonsense + stats.cut + stats.spoilt + stats.malformed;
        if !matches!(lie, Lie::Lost | Lie::Color) {
            assert!(strange(&after) > strange(&before), "{lie:?}: {after:?}");
        }
    }
}

#[test]
fn reports_on_what_was_sent_that_cannot_be_do_not_lose_room_for_ever() {
    for lie in [
        Lie::Index(4095),
        Lie::Queue(5),
        Lie::Kind(7),
        Lie::Twice,
        Lie::Lost,
        Lie::Color,
    ] {
        let mut pair = Pair::new(&config());
        for round in 0..1_000u32 {
            if round == 10 {
                pair.vic.lie(0, lie);
            }
            let (tx, _) = pair.a.split();
            let mut room = tx.reserve(Channel::Data, 1);
            let begun = Instant::now();
            while room == 0 {
                assert!(begun.elapsed() < SOON, "{lie:?}: round {round}");
                pair.look();
                room = pair.a.split().0.reserve(Channel::Data, 1);
            }
            let (tx, _) = pair.a.split();
            tx.post(
                Channel::Data,
                PeerIndex(0),
                &[],
                Body::Bytes(&round.to_le_bytes()),
            )
            .unwrap();
            tx.doorbell();
            while pair.now(Channel::Data).is_some() {}
            pair.turn();
        }
        pair.until("all is let go of", |pair| {
            pair.a.split().0.reaped(Channel::Data) == FrameId(1_000)
        });
    }
}

#[test]
fn a_wrong_checksum_by_the_devices_word_is_looked_at_here() {
    let mut pair = Pair::new(&config());
    pair.vic.lie(1, Lie::BadSum);
    let before = pair.b.stats();
    pair.post(Channel::Data, b"right");
    assert_eq!(
        pair.now(Channel::Data).as_deref(),
        Some(&b"right"[..]),
        "the device was wrong"
    );
    assert_eq!(pair.b.stats().checked_by_device, before.checked_by_device);
    // Really wrong: a byte of a frame that passed is another one.
    let mut frame = pair.vic.state().frames.last().unwrap().clone();
    frame[43] ^= 1;
    pair.vic.state().bring(1, &frame);
    assert_eq!(pair.now(Channel::Data), None);
    assert_eq!(pair.b.stats().corrupt, before.corrupt + 1);
}

#[test]
fn frames_with_the_tag_of_vlan_0_are_read_over_it() {
    let mut pair = Pair::new(&config());
    pair.vic.state().tags = true;
    pair.passes("tagged");
    let malformed = pair.b.stats().malformed;
    // Another network's frames are not ours.
    let mut frame = pair.vic.state().frames.last().unwrap().clone();
    pair.vic.state().tags = false;
    frame.splice(12..12, [0x81, 0, 0, 7]);
    let mut state = pair.vic.state();
    // Past the filter, which would not match it.
    let shown = frame.clone();
    state.functions[1].lies.clear();
    state.bring(1, &shown);
    drop(state);
    assert_eq!(pair.now(Channel::Data), None);
    assert_eq!(pair.b.stats().malformed, malformed, "no filter brings it here");
}

#[test]
fn a_lost_doorbell_is_rung_again() {
    let mut pair = Pair::new(&config());
    pair.vic.state().functions[0].deaf = 1;
    pair.post(Channel::Data, b"heard late");
    assert_eq!(pair.now(Channel::Data), None);
    let mut frame = None;
    pair.until("it is rung again", |pair| {
        pair.turn();
        frame = pair.now(Channel::Data);
        frame.is_some()
    });
    assert_eq!(frame.as_deref(), Some(&b"heard late"[..]));
    assert!(pair.a.stats().rung_again >= 1 && pair.a.stats().resets == 0);
    // A queue that ignores its doorbells is set up again.
    pair.vic.state().functions[0].deaf = u32::MAX;
    pair.post(Channel::Data, b"never heard");
    pair.until("the queues are set up again", |pair| pair.a.stats().resets == 1);
    pair.vic.state().functions[0].deaf = 0;
    pair.passes("heard");
}

#[test]
fn a_queue_with_an_error_is_made_anew_and_frames_pass_again() {
    for what in ["error_status", "running"] {
        let mut pair = Pair::new(&config());
        let last = pair.post(Channel::Data, b"before");
        let promised = pair.a.split().0.reserve(Channel::Data, 4);
        assert_eq!(promised, 4);
        match what {
            "error_status" => pair.vic.state().error_status(0, 1),
            _ => pair.vic.state().functions[0].stuck_running = Some(0),
        }
        let mut events = Vec::new();
        let mut unstuck = false;
        pair.until("down and up", |pair| {
            events.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
            if what == "running" && !unstuck && pair.a.nic().trouble().is_some() {
                unstuck = true;
            }
            events.len() == 2
        });
        assert_eq!(events, [EventKind::LinkDown, EventKind::LinkUp], "{what}");
        assert_eq!(
            pair.a.split().0.reaped(Channel::Data),
            last,
            "a device that forgot it keeps nothing"
        );
        let state = pair.vic.state();
        assert_eq!(
            (state.filters(0), state.functions[0].pairs.len()),
            (3, 2),
            "{what}"
        );
        // A step that fails resets the function.
        assert!(state.functions[0].resets >= if what == "running" { 2 } else { 1 });
        drop(state);
        let (tx, _) = pair.a.split();
        for _ in 0..promised {
            tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(b"promised"))
                .expect("room that was promised before");
        }
        tx.doorbell();
        pair.until("what was promised room passes", |pair| {
            pair.now(Channel::Data).is_some_and(|frame| frame == b"promised")
        });
        pair.passes("after");
    }
}

#[test]
fn a_device_that_reads_as_ones_is_gone_at_any_request() {
    let mut pair = Pair::new(&config());
    pair.vic.state().functions[0].is_gone = true;
    let mut told = None;
    pair.until("it is gone", |pair| {
        told = pair.a.event().map(|event| event.kind);
        told.is_some()
    });
    assert_eq!(told, Some(EventKind::DeviceGone));
    assert!(pair.a.nic().device().is_none());
    assert_eq!(pair.a.next_deadline(), None);
    let to_b = pair.b.address();
    assert!(
        pair.a
            .open(&to_b, Incarnation(1))
            .unwrap_err()
            .to_string()
            .contains("device is gone")
    );
    let vic = Vic::new(1, 6);
    vic.state().functions[0].is_gone = true;
    let error = open(&vic, 0, &config()).unwrap_err();
    assert!(error.contains("reads as ones"), "{error}");
}

#[test]
fn each_policy_of_a_function_is_met_by_its_setting() {
    let open_with = |policy, config: &UsnicConfig| {
        let vic = Vic::new(1, 6);
        vic.state().functions[0].policy = policy;
        open(&vic, 0, config).map(|rail| rail.mac())
    };
    assert!(open_with(Policy::Permissive, &config()).is_ok());
    let error = open_with(Policy::Real, &config()).unwrap_err();
    assert!(
        error.contains("ADD_FILTER")
            && error.contains("may not do that")
            && error.contains("doorbell agent usnic"),
        "{error}"
    );
    let error = open_with(Policy::Hidden, &config()).unwrap_err();
    assert!(error.contains("does not know the command"), "{error}");
    for commands in [VfCommands::Need, VfCommands::Skip] {
        let config = UsnicConfig {
            vf_commands: commands,
            ..config()
        };
        let error = open_with(Policy::Hidden, &config).unwrap_err();
        let command = if commands == VfCommands::Need {
            "OPEN"
        } else {
            "ADD_FILTER"
        };
        assert!(error.contains(command), "{commands:?}: {error}");
    }
    let skips = UsnicConfig {
        vf_commands: VfCommands::Skip,
        ..config()
    };
    let error = open_with(Policy::Permissive, &skips).unwrap_err();
    assert!(error.contains("usnic.mac"), "{error}");
    let own = UsnicConfig {
        mac: Some([2, 0, 0, 0, 1, 0]),
        ..skips
    };
    assert_eq!(open_with(Policy::Permissive, &own), Ok([2, 0, 0, 0, 1, 0]));
}

/// Filters and queue pairs that were installed before the step that fails are not left behind, nor the
/// function open.
#[test]
fn an_opening_that_fails_leaves_nothing_installed() {
    let vic = Vic::new(1, 6);
    let name = "usnic:model/D/vf0".parse().unwrap();
    let claim = vic.claim(0);
    vic.state().functions[0].stuck_running = Some(0);
    let error = doorbell_usnic::over(&name, &config(), claim)
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not start"), "{error}");
    assert_eq!(vic.steered(0), (0, 0));
    let state = vic.state();
    assert!(state.functions[0].commands.contains(&0xc000_403a), "ADD_FILTER");
    assert!(
        state.functions[0].commands.ends_with(&LAST),
        "{:x?}",
        state.functions[0].commands
    );
}

/// DISABLE, NOTIFY, CLOSE.
const LAST: [u32; 3] = [0x0001_c01d, 0xc001_c015, 0x0001_c019];

#[test]
fn a_rail_that_leaves_takes_everything_away_also_where_its_queues_do_not_stop() {
    for stuck in [None, Some(1)] {
        let all = Instant::now();
        // It has a second for it, by the clock: on a machine that gives it no core for that time, it is tried
        // again.
        while leaves(stuck) >= Duration::from_secs(1) {
            assert!(all.elapsed() < SOON, "{stuck:?}: it never takes less than it may");
        }
    }
}

/// Closes a rail, with this queue running on; returns how long that took. Everything is removed, if there was
/// time for that.
fn leaves(stuck: Option<u32>) -> Duration {
    let mut pair = Pair::new(&config());
    assert_eq!(pair.vic.steered(0), (3, 2));
    pair.vic.state().functions[0].stuck_running = stuck;
    // Step by step, as long as there is time.
    let (begun, mut steps) = (Instant::now(), 0);
    while !pair.a.close(Time::ZERO, Time::from_nanos(1)) {
        assert!(begun.elapsed() < SOON);
        steps += 1;
    }
    let took = begun.elapsed();
    assert!(steps > 0, "{stuck:?}: it waits for nothing within a step");
    if took < Duration::from_secs(1) {
        assert_eq!(pair.vic.steered(0), (0, 0), "{stuck:?}");
        let commands = &pair.vic.state().functions[0].commands;
        assert!(commands.ends_with(&LAST), "{stuck:?}");
    }
    took
}

mod agents {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use doorbell_usnic::AgentEvent;
    use doorbell_usnic::filter::Match;
    use doorbell_usnic::flow_steering::Request;
    use doorbell_usnic::flow_steering::wire::{Message, PACKET, Refusal};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

    /// An agent in a thread.
    pub(super) struct Running {
        pub(super) socket: PathBuf,
        stop: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<Vec<AgentEvent>>>,
        _folder: tempfile::TempDir,
    }

    impl Running {
        pub(super) fn new(vic: &Vic) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("agent.sock");
            let agent = Agent::new(Pf::over(vic.claim_pf()).unwrap(), &socket).unwrap();
            Self::of(agent, socket, folder)
        }

        fn of(mut agent: Agent, socket: PathBuf, folder: tempfile::TempDir) -> Self {
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                let mut told = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    told.extend(agent.turn(Duration::from_millis(1)).unwrap());
                }
                told
            });
            Self {
                socket,
                stop,
                thread: Some(thread),
                _folder: folder,
            }
        }

        pub(super) fn end(mut self) -> Vec<AgentEvent> {
            self.stop.store(true, Ordering::Relaxed);
            self.thread.take().unwrap().join().unwrap()
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn real(functions: usize) -> Vic {
        let vic = Vic::new(functions, 6);
        for function in &mut vic.state().functions {
            function.policy = Policy::Real;
        }
        vic
    }

    fn by(socket: &std::path::Path) -> UsnicConfig {
        UsnicConfig {
            control: Control::Agent,
            agent: Some(socket.to_owned()),
            ..UsnicConfig::default()
        }
    }

    #[test]
    fn an_agent_steers_for_functions_that_may_not_and_takes_it_away_at_the_end() {
        let vic = real(2);
        let agent = Running::new(&vic);
        let mut pair = Pair::over(vic.clone(), &by(&agent.socket));
        assert!(pair.a.how().contains("agent"), "{}", pair.a.how());
        assert!(pair.a.nic().has_arp() && pair.a.nic().news().is_some_and(|news| news.link));
        pair.passes("by an agent");
        assert_eq!(vic.steered(0), (3, 2));
        // No other process gets a function that is taken.
        let error = open(&vic, 0, &by(&agent.socket)).unwrap_err();
        assert!(error.contains("another process has function 0"), "{error}");
        drop(pair);
        let begun = Instant::now();
        while [vic.steered(0), vic.steered(1)] != [(0, 0); 2] {
            assert!(begun.elapsed() < SOON, "nothing is left behind");
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = agent.end();
        assert!(
            told.contains(&AgentEvent::Came(0)) && told.contains(&AgentEvent::Came(1)),
            "{told:?}"
        );
    }

    #[test]
    fn a_rail_whose_agent_dies_is_down_until_there_is_one_again() {
        let vic = real(2);
        let agent = Running::new(&vic);
        let socket = agent.socket.clone();
        let mut pair = Pair::over(vic.clone(), &by(&socket));
        agent.end();
        vic.state().forget();
        pair.until("both are down", |pair| {
            !pair.a.is_link_up() && !pair.b.is_link_up()
        });
        pair.until("the reason is known", |pair| {
            pair.a.nic().trouble().is_some_and(|why| why.contains("agent"))
        });
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let mut agent = Agent::new(Pf::over(vic.claim_pf()).unwrap(), &socket).unwrap();
        let begun = Instant::now();
        while !(pair.a.is_link_up() && pair.b.is_link_up()) {
            assert!(
                begun.elapsed() < SOON,
                "{:?} {:?}",
                pair.a.nic().trouble(),
                pair.b.nic().trouble()
            );
            agent.turn(Duration::from_micros(100)).unwrap();
            // A rail waits for the welcome of an agent, which is served here by the same thread.
            std::thread::scope(|scope| {
                let pair = &mut pair;
                let turns = scope.spawn(move || (0..20).for_each(|_| pair.look()));
                while !turns.is_finished() {
                    agent.turn(Duration::from_micros(100)).unwrap();
                }
            });
        }
        pair.passes("again");
        std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }

    /// A process that sends arbitrary packets.
    struct Client(OwnedFd);

    impl Client {
        fn new(socket: &std::path::Path) -> Self {
            let address = SocketAddrUnix::new(socket).unwrap();
            let line = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::empty(),
                None,
            )
            .unwrap();
            rustix::net::connect(&line, &address).unwrap();
            Self(line)
        }

        fn say(&self, bytes: &[u8]) -> bool {
            rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL).is_ok()
        }

        /// The next packet, without the news; `None` at the end.
        fn hear(&self) -> Option<Message> {
            loop {
                let mut bytes = [0; PACKET];
                match rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
                    // It closed the connection before it had read our packet; what it sent itself can still
                    // be read.
                    Err(rustix::io::Errno::CONNRESET) => {}
                    Ok((PACKET, _)) => match Message::read(&bytes) {
                        Some(Message::News { .. }) => {}
                        said => return said,
                    },
                    _ => return None,
                }
            }
        }

        fn ask(&self, number: u32, request: Request) -> Option<Message> {
            self.say(&Message::Request(number, request).to_bytes());
            self.hear()
        }
    }

    #[test]
    fn hostile_processes_are_bounded_and_others_served() {
        let vic = real(2);
        let agent = Running::new(&vic);
        let udp = |port| {
            Request::Steer(
                Match::Udp {
                    address: [10, 0, 0, 9].into(),
                    port,
                },
                0,
            )
        };
        let hello = |function| Message::Hello(function, [10, 0, 0, 9].into());
        // No greeting, nonsense, too long, another version: the line ends.
        for bytes in [
            Message::Request(1, udp(1)).to_bytes().to_vec(),
            vec![0xff; PACKET],
            vec![0; 4096],
            vec![1],
            Message::Done(1, 1).to_bytes().to_vec(),
        ] {
            let client = Client::new(&agent.socket);
            client.say(&bytes);
            assert_eq!(client.hear(), None, "{bytes:?}");
        }
        let client = Client::new(&agent.socket);
        client.say(&hello(0).to_bytes());
        assert!(matches!(client.hear(), Some(Message::Welcome { .. })));
        // Sixteen filters, and only of kinds that rails need; others' are not its own to take away.
        for port in 0..16 {
            assert!(
                matches!(client.ask(port.into(), udp(port)), Some(Message::Done(..))),
                "{port}"
            );
        }
        assert_eq!(client.ask(99, udp(99)), Some(Message::Refused(99, Refusal::Full)));
        let everything = Request::Steer(Match::Ethertype(0x0800), 0);
        assert_eq!(
            client.ask(7, everything),
            Some(Message::Refused(7, Refusal::Never))
        );
        let mut rail = open(&vic, 1, &by(&agent.socket)).unwrap();
        for id in 0..200 {
            client.ask(8, Request::Unsteer(id));
        }
        assert_eq!(vic.state().filters(1), 3, "the rail's filters are there");
        rail.progress(Time::from_nanos(1));
        assert!(rail.is_link_up());
        // A client that sends requests for ever and never reads is disconnected; the rail's requests are
        // served meanwhile.
        let mute = Client::new(&agent.socket);
        drop(client);
        let begun = Instant::now();
        while !Client::new(&agent.socket).say(&hello(0).to_bytes()) || vic.state().filters(0) > 0 {
            assert!(begun.elapsed() < SOON);
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = rustix::net::sockopt::set_socket_timeout(
            &mute.0,
            rustix::net::sockopt::Timeout::Send,
            Some(Duration::from_millis(200)),
        );
        mute.say(&hello(0).to_bytes());
        for number in 0..100_000 {
            if !mute.say(&Message::Request(number, Request::Disable(0)).to_bytes()) {
                break;
            }
        }
        drop(rail);
        let rail = open(&vic, 1, &by(&agent.socket));
        assert!(rail.is_ok(), "{rail:?}");
        // More processes than it serves.
        let many: Vec<_> = (0..70).map(|_| Client::new(&agent.socket)).collect();
        assert!(
            many.iter()
                .any(|client| client.hear_now() == Some(Message::Refused(0, Refusal::Full)))
        );
        drop((many, rail));
        agent.end();
    }

    /// A process that sends nothing, or announces addresses for ever, or requests what is another's, blocks
    /// no other one and gets nothing.
    #[test]
    fn one_process_can_neither_end_nor_starve_others() {
        let vic = real(2);
        let agent = Running::new(&vic);
        let mut rail = open(&vic, 1, &by(&agent.socket)).unwrap();
        let IpAddr::V4(address) = rail.address().inet_of("usnic").unwrap().ip() else {
            panic!("usNIC has IPv4 alone")
        };
        let mute = Client::new(&agent.socket);
        let own = Ipv4Addr::new(10, 0, 0, 9);
        let client = Client::new(&agent.socket);
        client.say(&Message::Hello(0, own).to_bytes());
        assert!(matches!(client.hear(), Some(Message::Welcome { .. })));
        let udp = |address| {
            Request::Steer(
                Match::Udp {
                    address,
                    port: 56_080,
                },
                0,
            )
        };
        assert_eq!(
            client.ask(1, udp(address)),
            Some(Message::Refused(1, Refusal::Never))
        );
        assert!(matches!(client.ask(2, udp(own)), Some(Message::Done(2, _))));
        // Another's function, another's address, and functions that cannot be.
        for (function, ip) in [
            (1, [10, 0, 0, 8].into()),
            (3, address),
            (999, [10, 0, 0, 7].into()),
        ] {
            let other = Client::new(&agent.socket);
            other.say(&Message::Hello(function, ip).to_bytes());
            let said = other.hear();
            let is_refused = match (function, said) {
                (1, Some(Message::Refused(0, Refusal::Taken(owner)))) => owner.function == 1,
                (3, Some(Message::Refused(0, Refusal::AddressTaken(owner)))) => owner.function == 1,
                (999, Some(Message::Refused(0, Refusal::Never))) => true,
                _ => false,
            };
            assert!(is_refused, "{function}: {said:?}");
        }
        // It announces itself so often that its connection is closed; the rail, which never reads meanwhile,
        // keeps its own.
        let mut ended = false;
        for number in 0..100_000u32 {
            let [a, b, c, d] = number.to_le_bytes();
            let here = Message::Here(own, [2, 0, a, b, c, d]);
            if !client.say(&here.to_bytes()) {
                ended = true;
                break;
            }
        }
        assert!(ended, "it may announce itself a few times");
        for turn in 1..50u64 {
            rail.progress(Time::from_nanos(turn * 50_000_000));
        }
        assert!(rail.is_link_up() && rail.stats().resets == 0, "{rail:?}");
        assert_eq!(vic.state().filters(1), 3);
        // It may name only an address of its own.
        let liar = Client::new(&agent.socket);
        liar.say(&Message::Hello(0, own).to_bytes());
        assert!(matches!(liar.hear(), Some(Message::Welcome { .. })));
        liar.say(&Message::Here(address, [2, 0, 0, 0, 0, 9]).to_bytes());
        assert_eq!(liar.hear(), None);
        assert_eq!(mute.hear(), None, "who does not greet is not waited for");
        agent.end();
    }

    #[test]
    fn a_group_is_let_in_by_the_sockets_mode() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let group = rustix::process::getegid().as_raw();
        for (group, mode) in [(None, 0o600), (Some(group), 0o660)] {
            let vic = real(1);
            let agent = Agent::for_group(Pf::over(vic.claim_pf()).unwrap(), &socket, group).unwrap();
            let meta = std::fs::metadata(&socket).unwrap();
            assert_eq!(meta.mode() & 0o777, mode);
            assert!(group.is_none_or(|group| group == meta.gid()));
            drop(agent);
            assert!(!socket.exists());
        }
    }

    /// Runs code in a thread of the user and group 65534, `nobody` on most systems. `None` where this process
    /// may not change its user.
    fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> Option<T> {
        as_user(65_534, what)
    }

    /// The same as this user, of the same group.
    fn as_user<T: Send>(user: u32, what: impl FnOnce() -> T + Send) -> Option<T> {
        let unprivileged = rustix::fs::Uid::from_raw(user);
        let group = rustix::fs::Gid::from_raw(65_534);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                // Of this thread alone: the kernel's calls, and not the library's.
                rustix::thread::set_thread_gid(group).ok()?;
                rustix::thread::set_thread_uid(unprivileged).ok()?;
                Some(what())
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn users_are_identified_by_the_kernel() {
        use std::os::unix::fs::PermissionsExt;
        if as_nobody(|| ()).is_none() {
            return skipped(
                "usnic::users_are_identified_by_the_kernel",
                "only root can change its user",
            );
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        // Another user's process listens there: its packets are not believed.
        let socket = folder.path().join("theirs.sock");
        let theirs = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&theirs, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        as_nobody(|| rustix::net::listen(&theirs, 4).unwrap());
        let error = open(&real(1), 0, &by(&socket)).unwrap_err();
        assert!(error.contains("user 65534 listens"), "{error}");
        // The agent's own user alone; then with a group.
        for group in [None, Some(65_534)] {
            let vic = real(1);
            let socket = folder.path().join("agent.sock");
            let mut agent = Agent::for_group(Pf::over(vic.claim_pf()).unwrap(), &socket, group).unwrap();
            let stop = AtomicBool::new(false);
            let opened = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        agent.turn(Duration::from_millis(1)).unwrap();
                    }
                });
                let opened = as_nobody(|| open(&vic, 0, &by(&socket)).map(|rail| rail.is_link_up()));
                stop.store(true, Ordering::Relaxed);
                opened.unwrap()
            });
            match group {
                Some(_) => assert_eq!(opened, Ok(true)),
                None => {
                    let error = opened.unwrap_err();
                    assert!(
                        error.contains("user 65534 may not reach") && error.contains("--group"),
                        "{error}"
                    );
                }
            }
        }
    }

    /// A group's members share what is left beside root's and the agent's own user's part, and none of them
    /// gets all of it.
    #[test]
    fn no_user_of_a_group_gets_all_lines_or_all_filters() {
        use std::os::unix::fs::PermissionsExt;
        if as_nobody(|| ()).is_none() {
            return skipped(
                "usnic::no_user_of_a_group_gets_all_lines_or_all_filters",
                "only root can change its user",
            );
        }
        let begin = |vic: &Vic| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
            let socket = folder.path().join("agent.sock");
            let agent = Agent::for_group(Pf::over(vic.claim_pf()).unwrap(), &socket, Some(65_534));
            Running::of(agent.unwrap(), socket, folder)
        };
        let vic = real(8);
        // What each user's lines come to: so many that are welcome, the others full.
        let come = |agent: &Running, user: u32, functions: std::ops::Range<u32>| -> Vec<Client> {
            let hello = |function: u32| {
                let client = Client::new(&agent.socket);
                client.say(&Message::Hello(function, [10, 0, user as u8, function as u8].into()).to_bytes());
                match client.hear() {
                    Some(Message::Welcome { .. }) => Some(client),
                    Some(Message::Refused(0, Refusal::Full)) => None,
                    said => panic!("{user} {function}: {said:?}"),
                }
            };
            let come = || functions.map(hello).collect::<Vec<_>>();
            let come = if user == 0 {
                come()
            } else {
                as_user(user, come).unwrap()
            };
            come.into_iter().flatten().collect()
        };
        let agent = begin(&vic);
        let nobodys = come(&agent, 65_534, 0..40);
        let others = come(&agent, 65_533, 40..60);
        let roots = come(&agent, 0, 60..78);
        assert_eq!([nobodys.len(), others.len(), roots.len()], [36, 12, 16]);
        agent.end();
        // Filters, of whichever line: sixteen each are not too many.
        let agent = begin(&vic);
        let steered = |user: u32, functions: std::ops::Range<u32>| {
            let first = functions.start;
            let clients = come(&agent, user, functions);
            let mut count = 0;
            for (client, function) in clients.iter().zip(first..) {
                for port in 0..16 {
                    let wants = Match::Udp {
                        address: [10, 0, user as u8, function as u8].into(),
                        port,
                    };
                    match client.ask(port.into(), Request::Steer(wants, 0)) {
                        Some(Message::Done(..)) => count += 1,
                        Some(Message::Refused(_, Refusal::Full)) => {}
                        said => panic!("{user} {function} {port}: {said:?}"),
                    }
                }
            }
            (clients, count)
        };
        let (nobodys, others, roots) = (steered(65_534, 0..3), steered(65_533, 3..5), steered(0, 5..8));
        assert_eq!([nobodys.1, others.1, roots.1], [36, 12, 48]);
        agent.end();
    }

    /// The model is stopped, or slow, when it is checked for a reset: a process that connects meanwhile is
    /// served.
    #[test]
    fn an_agent_waits_for_no_model_that_is_slow() {
        let vic = real(2);
        let agent = Running::new(&vic);
        vic.state().is_held = true;
        let begun = Instant::now();
        while vic.state().holds == 0 {
            assert!(begun.elapsed() < SOON, "it is checked every second");
            std::thread::sleep(Duration::from_millis(1));
        }
        let client = Client::new(&agent.socket);
        let own = Ipv4Addr::new(10, 0, 0, 9);
        client.say(&Message::Hello(0, own).to_bytes());
        assert!(matches!(client.hear(), Some(Message::Welcome { .. })));
        let udp = Match::Udp {
            address: own,
            port: 7,
        };
        assert!(matches!(
            client.ask(1, Request::Steer(udp, 0)),
            Some(Message::Done(1, _))
        ));
        let is_held = vic.state().is_held;
        let holds = vic.state().holds;
        vic.state().is_held = false;
        agent.end();
        assert!(
            is_held && holds == 1,
            "one question at a time, and not waited for: {holds}"
        );
    }

    #[test]
    fn a_missing_agent_is_named_with_what_to_do() {
        let vic = real(1);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let error = open(&vic, 0, &by(&socket)).unwrap_err();
        assert!(
            error.contains("no process listens there") && error.contains("doorbell agent usnic"),
            "{error}"
        );
        std::fs::write(&socket, "").unwrap();
        let error = open(&vic, 0, &by(&socket)).unwrap_err();
        assert!(error.contains("agent.sock"), "{error}");
    }

    impl Client {
        /// What is there within a moment.
        fn hear_now(&self) -> Option<Message> {
            let _ = rustix::net::sockopt::set_socket_timeout(
                &self.0,
                rustix::net::sockopt::Timeout::Recv,
                Some(Duration::from_millis(20)),
            );
            self.hear()
        }
    }

    #[test]
    fn a_physical_function_of_this_process_does_the_same() {
        let vic = real(2);
        let mut pf = Pf::over(vic.claim_pf()).unwrap();
        assert_eq!(pf.info().mac, Some([2, 0, 0, 0, 0, 0xff]));
        assert!(pf.info().has_usnic && pf.check().is_ok() && pf.news().is_some_and(|news| news.link));
        let arp = Request::Steer(Match::Ethertype(0x0806), 0);
        let id = pf.run(1, arp).unwrap();
        assert_eq!(
            pf.run(1, arp).unwrap_err().errno().map(|errno| errno.0),
            Some(1),
            "the inner error"
        );
        pf.run(1, Request::Enable(0)).unwrap();
        assert_eq!(vic.steered(1), (1, 1));
        pf.run(1, Request::Unsteer(id)).unwrap();
        assert_eq!(pf.run(1, Request::Unsteer(id)).unwrap(), 0, "taken away already");
        let gone = pf.run(9, Request::Enable(0)).unwrap_err();
        assert!(gone.to_string().contains("QP_ENABLE"), "{gone}");
        drop(pf);
        let closed = vic
            .state()
            .pf
            .commands
            .ends_with(&[0x0001_c01d, 0xc001_c015, 0x0001_c019]);
        assert!(closed, "DISABLE, NOTIFY, CLOSE");
    }
}
