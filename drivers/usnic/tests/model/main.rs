//! The rail over the model of a VIC, which was written from the same reference and apart from it: functions
//! behind sockets, an agent that has the physical one, and a list of everything that a VIC would not have
//! forgiven, which stays empty.

mod agents;
mod commands;
mod faults;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::{self, Ends};
use doorbell_usnic::{Agent, AgentEvent, Control, Object, Pf, UsnicConfig, UsnicRail, VfCommands};
use doorbell_vic::{Behaviour, Counts, Kind, LayoutOptions, Model, Options, Policy, Timing, Trap};

/// Longer than anything takes here, on a machine with other work.
const SOON: Duration = Duration::from_secs(60);

/// A model, and an agent of its physical function in a thread.
struct Lab {
    model: Model,
    stop: Arc<AtomicBool>,
    agent: Option<std::thread::JoinHandle<()>>,
    /// The events that agents reported.
    told: Arc<Mutex<Vec<AgentEvent>>>,
}

impl Lab {
    fn new(options: Options) -> Self {
        let model = Model::start(options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let mut lab = Self {
            model,
            stop,
            agent: None,
            told: Arc::default(),
        };
        lab.start_agent();
        lab
    }

    fn start_agent(&mut self) {
        let folder = self.model.dir().to_owned();
        let mut agent = Agent::new(
            Pf::connect(&folder.join("pf.sock")).unwrap(),
            &folder.join("agent.sock"),
        )
        .unwrap();
        self.stop = Arc::new(AtomicBool::new(false));
        let (stop, told) = (Arc::clone(&self.stop), Arc::clone(&self.told));
        self.agent = Some(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let new = agent.turn(Duration::from_millis(5)).unwrap();
                told.lock().unwrap().extend(new);
            }
        }));
    }

    fn stop_agent(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.agent.take() {
            thread.join().unwrap();
        }
    }

    fn open(&self, function: &str, config: &UsnicConfig) -> Result<UsnicRail, String> {
        let name = format!("usnic:model/{}/{function}", self.model.dir().display());
        UsnicRail::open(&name.parse().unwrap(), config).map_err(|error| error.to_string())
    }

    /// Checks that every injected fault has happened: a test whose faults never came shows nothing.
    fn has_fired(&self, what: &str) {
        assert_eq!(
            self.model.unfired(),
            Some(0),
            "{what}: faults that never happened"
        );
    }

    fn is_forgiven(&self, what: &str) {
        let list = self.model.violations().list();
        assert!(list.is_empty(), "{what}: {:?}", &list[..list.len().min(5)]);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.agent.take() {
            let _ = thread.join();
        }
    }
}

struct Pair {
    a: UsnicRail,
    b: UsnicRail,
    clock: Instant,
    lab: Lab,
}

impl Pair {
    fn new(options: Options, config: &UsnicConfig) -> Self {
        let lab = Lab::new(options);
        let (mut a, mut b) = (lab.open("vf0", config).unwrap(), lab.open("vf1", config).unwrap());
        let (to_a, to_b) = (a.address(), b.address());
        a.open(&to_b, Incarnation(1)).unwrap();
        b.open(&to_a, Incarnation(1)).unwrap();
        let mut pair = Self {
            a,
            b,
            clock: Instant::now(),
            lab,
        };
        pair.until("they know each other", |pair| {
            pair.a.is_resolved(PeerIndex(0)) && pair.b.is_resolved(PeerIndex(0))
        });
        pair
    }

    fn turn(&mut self) {
        let clock = self.clock.elapsed().as_nanos() as u64;
        for rail in [&mut self.a, &mut self.b] {
            for channel in [Channel::Priority, Channel::Data] {
                rail.split().1.poll(channel, 0);
            }
            rail.progress(Time::from_nanos(clock));
        }
        // The model and the agent want a core too: on a machine with other work this thread's share would be
        // all gone by looking.
        std::thread::yield_now();
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(
                begun.elapsed() < SOON,
                "never happened: {what}\n{:?} {:?}\n{:?} {:?}\n{:?} {:?}",
                self.a,
                self.a.nic().trouble(),
                self.b,
                self.b.nic().trouble(),
                self.lab.model.violations().list(),
                self.lab.model.summary()
            );
            for rail in [&mut self.a, &mut self.b] {
                for channel in [Channel::Priority, Channel::Data] {
                    rail.split().1.poll(channel, 1);
                }
            }
            self.turn();
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn post(&mut self, channel: Channel, bytes: &[u8]) -> FrameId {
        let (tx, _) = self.a.split();
        assert_eq!(tx.reserve(channel, 1), 1);
        let id = tx.post(channel, PeerIndex(0), &[], Body::Bytes(bytes)).unwrap();
        tx.doorbell();
        id
    }

    /// The next frame at `b`.
    fn frame(&mut self, channel: Channel) -> Vec<u8> {
        let begun = Instant::now();
        loop {
            let (_, rx) = self.b.split();
            if rx.poll(channel, 1) > 0 {
                let frame = rx.frame(channel, 0).unwrap();
                assert_eq!(frame.from, Some(PeerIndex(0)));
                return frame.bytes.to_vec();
            }
            assert!(begun.elapsed() < SOON, "never came: {:?} {:?}", self.a, self.b);
            self.turn();
        }
    }

    fn passes(&mut self, what: &str) {
        for channel in [Channel::Priority, Channel::Data] {
            self.post(channel, what.as_bytes());
            while self.frame(channel) != what.as_bytes() {}
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

fn shuffled(seed: u64) -> LayoutOptions {
    LayoutOptions {
        seed: Some(seed),
        ..LayoutOptions::default()
    }
}

#[test]
fn the_promises_of_datagrams_hold() {
    let few = Counts {
        wq: 2,
        rq: 2,
        cq: 2,
        intr: 1,
        ..Counts::default()
    };
    let cases = [
        (Options::default(), UsnicConfig::default()),
        (
            Options {
                counts: few,
                layout: shuffled(7),
                trap: Trap::All,
                ..Options::default()
            },
            UsnicConfig {
                mtu: 9000,
                checksum: false,
                ..UsnicConfig::default()
            },
        ),
    ];
    for (options, config) in cases {
        for check in CHECKS {
            let pair = Pair::new(options.clone(), &config);
            let lab = pair.lab;
            let clock = pair.clock;
            let pump = move |a: &mut UsnicRail, b: &mut UsnicRail| {
                let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
                a.progress(now);
                b.progress(now);
            };
            let incarnations = (pair.a.incarnation(), pair.b.incarnation());
            check(&mut Ends::connect(
                (pair.a, incarnations.0),
                (pair.b, incarnations.1),
                pump,
            ));
            lab.is_forgiven("conformance");
        }
    }
}

/// 8.9.1: shuffled tables, all types, both header magics.
#[test]
fn resources_are_discovered_with_shuffled_tables_all_types_and_both_header_magics() {
    for seed in 0..6 {
        let layout = LayoutOptions {
            management: seed % 2 == 1,
            mem: 64 << 10,
            group_interrupts: true,
            wide: seed % 3 == 0,
            ..shuffled(seed)
        };
        let lab = Lab::new(Options {
            layout,
            vfs: 1,
            ..Options::default()
        });
        let rail = lab.open("vf0", &UsnicConfig::default()).unwrap();
        assert_eq!(rail.nic().resources(), [6; 4]);
        assert!(rail.is_link_up() && rail.nic().has_arp(), "{rail:?}");
        drop(rail);
        lab.is_forgiven("discovery");
    }
}

/// Section 8.9.6 of the reference: lengths around the limits arrive whole.
#[test]
fn lengths_0_1_17_18_19_950_951_mtu_minus_28_and_mtu_minus_27_refused() {
    for mtu in [1500, 9000] {
        let config = UsnicConfig {
            mtu,
            ..UsnicConfig::default()
        };
        let mut pair = Pair::new(Options::default(), &config);
        for length in [0, 1, 17, 18, 19, 950, 951, mtu - 28] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            for channel in [Channel::Priority, Channel::Data] {
                pair.post(channel, &bytes);
                assert_eq!(pair.frame(channel), bytes, "{length}");
            }
        }
        let (tx, _) = pair.a.split();
        tx.reserve(Channel::Data, 1);
        let long = vec![0; mtu - 27];
        assert_eq!(
            tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(&long)),
            Err(Refused::TooLong)
        );
        let stats = pair.b.stats();
        assert_eq!((stats.received, stats.checked_by_device), (16, 16), "{stats:?}");
        pair.lab.is_forgiven("lengths");
    }
}

/// 8.9.3, 8.9.4 and 8.9.7: rings of the least and the greatest lengths wrap around, colours flip, credits are
/// never more than there are, and come back with the next report.
#[test]
fn rings_wrap_and_colours_flip_and_credits_never_let_posted_wrap_onto_fetch() {
    for (sends, receives) in [(64, 64), (4096, 4096)] {
        let config = UsnicConfig {
            send_ring: sends,
            receive_ring: receives,
            ..UsnicConfig::default()
        };
        let mut pair = Pair::new(Options::default(), &config);
        let (mut sent, mut received, begun) = (0u32, 0u32, Instant::now());
        let most = 3 * sends as u32;
        while received < most {
            assert!(begun.elapsed() < SOON, "{sent} sent, {received} received");
            let (tx, _) = pair.a.split();
            // No more than there is room for at the other side, which still has the frames that it was shown
            // last: frames may be lost.
            let room = tx
                .reserve(Channel::Data, 16)
                .min(16 - (sent - received).min(16) as usize);
            for _ in 0..room {
                tx.post(Channel::Data, PeerIndex(0), &[], Body::Bytes(&sent.to_le_bytes()))
                    .unwrap();
                sent += 1;
            }
            tx.doorbell();
            let (_, rx) = pair.b.split();
            let count = rx.poll(Channel::Data, 64);
            for at in 0..count {
                let frame = rx.frame(Channel::Data, at).unwrap().bytes.to_vec();
                assert_eq!(frame, received.to_le_bytes());
                received += 1;
            }
            pair.turn();
        }
        pair.until("all is let go of", |pair| {
            pair.a.split().0.reaped(Channel::Data) == FrameId(sent.into())
        });
        pair.lab.is_forgiven("wraps");
    }
}

/// Section 8.9.8 of the reference: closing a loaded rail ends in time.
#[test]
fn disable_under_load_ends_within_the_time_outs() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    for round in 0..3 {
        let (tx, _) = pair.a.split();
        let room = tx.reserve(Channel::Data, usize::MAX);
        for number in 0..room as u64 {
            tx.post(
                Channel::Data,
                PeerIndex(0),
                &[],
                Body::Bytes(&number.to_le_bytes()),
            )
            .unwrap();
        }
        tx.doorbell();
        let begun = Instant::now();
        let config = UsnicConfig::default();
        // The function is another one's only when it was given back.
        pair.a.close(Time::ZERO, Time::ZERO);
        pair.a = pair.lab.open("vf0", &config).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let to_b = pair.b.address();
        pair.a.open(&to_b, Incarnation(1)).unwrap();
        pair.until("known again", |pair| pair.a.is_resolved(PeerIndex(0)));
        pair.passes(&format!("round {round}"));
    }
    pair.lab.is_forgiven("disabled");
}

#[test]
fn each_policy_of_a_function_is_met_by_its_setting() {
    let direct = UsnicConfig {
        control: Control::Direct,
        ..UsnicConfig::default()
    };
    for (policy, word) in [
        (Policy::Real, "may not do that"),
        (Policy::Hidden, "does not know the command"),
    ] {
        let lab = Lab::new(Options {
            policy,
            ..Options::default()
        });
        let error = lab.open("vf0", &direct).unwrap_err();
        assert!(error.contains(word), "{error}");
        // By the agent it works all the same.
        assert!(lab.open("vf0", &UsnicConfig::default()).unwrap().is_link_up());
    }
    let lab = Lab::new(Options {
        policy: Policy::Permissive,
        ..Options::default()
    });
    let rail = lab.open("vf0", &direct).unwrap();
    assert!(
        rail.is_link_up() && rail.how().contains("the function itself"),
        "{}",
        rail.how()
    );
}

/// 9.5: what a function answers to OPEN, INIT and ENABLE is not known.
#[test]
fn functions_that_refuse_their_own_commands_are_used_all_the_same() {
    for vf_open in [0, 3, 5] {
        let lab = Lab::new(Options {
            behaviour: Behaviour {
                vf_open,
                ..Behaviour::default()
            },
            ..Options::default()
        });
        for vf_commands in [VfCommands::Try, VfCommands::Skip, VfCommands::Need] {
            let config = UsnicConfig {
                vf_commands,
                ..UsnicConfig::default()
            };
            let opened = lab.open("vf0", &config);
            let works = vf_commands != VfCommands::Need || vf_open == 0;
            assert_eq!(opened.is_ok(), works, "{vf_open} {vf_commands:?}: {opened:?}");
        }
    }
    // What fails without an answer counts where it has to work, and nowhere else.
    for vf_commands in [VfCommands::Try, VfCommands::Need] {
        let lab = Lab::new(Options::default());
        lab.model.inject("always vf0.devcmd.28 error 7").unwrap();
        let config = UsnicConfig {
            vf_commands,
            ..UsnicConfig::default()
        };
        let opened = lab.open("vf0", &config);
        lab.has_fired("ENABLE");
        match vf_commands {
            VfCommands::Need => assert!(opened.unwrap_err().contains("ENABLE")),
            _ => assert!(opened.is_ok(), "{opened:?}"),
        }
    }
    // One that receives only after ENABLE gets it.
    let needs = Options {
        behaviour: Behaviour {
            vf_needs_enable: true,
            ..Behaviour::default()
        },
        ..Options::default()
    };
    Pair::new(needs, &UsnicConfig::default()).passes("enabled");
}

#[test]
fn every_access_is_well_formed_where_each_is_judged() {
    for future in [true, false] {
        let options = Options {
            trap: Trap::All,
            behaviour: Behaviour {
                future,
                strict_disable: true,
                strict_hint: true,
                ..Behaviour::default()
            },
            timing: Timing {
                recheck: Duration::from_micros(200),
                ..Timing::default()
            },
            ..Options::default()
        };
        let mut pair = Pair::new(options, &UsnicConfig::default());
        assert!(pair.a.how().contains("by messages"), "{}", pair.a.how());
        for round in 0..100 {
            pair.passes(&format!("frame {round} with its descriptor"));
        }
        pair.lab.is_forgiven("judged");
        let Pair { a, b, lab, .. } = pair;
        drop((a, b));
        // With `future`, the model takes room that is left in a queue that is turned off for room that is
        // given then.
        if !future {
            lab.is_forgiven("judged to the end");
        }
    }
}

#[test]
fn a_frame_wakes_a_sleeper_by_an_interrupt_or_by_the_clock() {
    for interrupts in [true, false] {
        let config = UsnicConfig {
            interrupts,
            ..UsnicConfig::default()
        };
        let mut pair = Pair::new(Options::default(), &config);
        if interrupts {
            assert_eq!(pair.b.nic().check_interrupt(SOON), Some(true));
        } else {
            assert_eq!(pair.b.nic().check_interrupt(SOON), None);
        }
        pair.until("nothing is left to do", |pair| {
            let idle = matches!(pair.b.arm().unwrap(), Armed::Sleep(_));
            pair.b.disarm();
            idle
        });
        let is_idle = matches!(pair.b.arm().unwrap(), Armed::Sleep(_));
        pair.post(Channel::Priority, b"wake up");
        if is_idle {
            let Armed::Sleep(fd) = pair.b.arm().unwrap() else {
                // It had come already.
                continue;
            };
            let mut waits = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec {
                tv_sec: 20,
                tv_nsec: 0,
            };
            assert_eq!(rustix::event::poll(&mut waits, Some(&limit)), Ok(1));
        }
        pair.b.disarm();
        while pair.frame(Channel::Priority) != b"wake up" {}
        pair.lab.is_forgiven("asleep");
    }
}

#[test]
fn an_agent_that_dies_takes_the_rails_down_and_the_next_one_brings_them_back() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    pair.passes("before");
    pair.lab.stop_agent();
    let mut events = Vec::new();
    pair.until("down", |pair| {
        events.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
        !pair.a.is_link_up() && !pair.b.is_link_up()
    });
    pair.lab.start_agent();
    pair.until("up", |pair| {
        events.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
        pair.a.is_link_up() && pair.b.is_link_up() && events.len() >= 2
    });
    assert_eq!(events, [EventKind::LinkDown, EventKind::LinkUp]);
    pair.passes("after");
}

#[test]
fn a_model_that_dies_is_a_device_that_is_gone() {
    let mut pair = Pair::new(Options::default(), &UsnicConfig::default());
    let folder = pair.lab.model.dir().to_owned();
    // The agent learns of its end from its device: it may end before.
    pair.lab.stop_agent();
    let other = Model::start(Options {
        vfs: 0,
        ..Options::default()
    });
    let old = std::mem::replace(&mut pair.lab.model, other.unwrap());
    old.stop();
    let begun = Instant::now();
    let mut told = Vec::new();
    while pair.a.nic().device().is_some() && begun.elapsed() < SOON {
        told.extend(std::iter::from_fn(|| pair.a.event()).map(|event| event.kind));
        pair.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nothing hangs; whether its registers can still be read, which were memory, is the system's.
    assert!(!pair.a.is_link_up(), "{told:?} {:?}", pair.a.nic().trouble());
    let name = format!("usnic:model/{}/vf0", folder.display()).parse().unwrap();
    let error = UsnicRail::open(&name, &UsnicConfig::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("doorbell-lab model vic"), "{error}");
}

#[test]
fn a_physical_function_of_the_rails_own_process_steers_too() {
    let model = Model::start(Options::default()).unwrap();
    let config = UsnicConfig {
        control: Control::Proxy,
        ..UsnicConfig::default()
    };
    let name = format!("usnic:model/{}/vf0", model.dir().display())
        .parse()
        .unwrap();
    let rail = UsnicRail::open(&name, &config).unwrap();
    assert!(
        rail.how().contains("this process has") && rail.is_link_up(),
        "{}",
        rail.how()
    );
    // It has the physical function alone.
    let text = format!("model/{}/pf", model.dir().display());
    let object = Object::parse(&text).unwrap();
    assert!(Pf::connect(&object.socket().unwrap()).is_err());
}

/// The physical function is an ordinary vNIC, too: no agent has a number for it, and it steers for itself.
#[test]
fn an_ordinary_vnic_needs_no_agent() {
    let other = Lab::new(Options::default());
    let mut lab = Lab::new(Options::default());
    lab.stop_agent();
    let config = UsnicConfig {
        agent: Some(other.model.dir().join("agent.sock")),
        address: Some("10.0.0.1/24".to_owned()),
        ..UsnicConfig::default()
    };
    let rail = lab.open("pf", &config).unwrap();
    assert!(rail.how().contains("the function itself"), "{}", rail.how());
    drop(rail);
    for control in [Control::Agent, Control::Proxy] {
        let error = lab
            .open(
                "pf",
                &UsnicConfig {
                    control,
                    ..config.clone()
                },
            )
            .unwrap_err();
        assert!(error.contains("1137:0043"), "{error}");
    }
}

#[test]
fn functions_that_share_the_physical_ones_address_are_separated_by_their_filters() {
    let mut options = Options::default();
    options.identity.shared_mac = true;
    let lab = Lab::new(options);
    let a = lab.open("vf0", &UsnicConfig::default()).unwrap();
    let b = lab.open("vf1", &UsnicConfig::default()).unwrap();
    assert_eq!(a.mac(), b.mac());
    assert!(a.is_link_up() && b.is_link_up());
    lab.is_forgiven("shared");
}
