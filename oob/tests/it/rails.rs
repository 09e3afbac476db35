//! The transport `rail` beside `tcp`, over shm within a host: which one carries, and what happens when one of
//! them fails.
//!
//! reference: oob, sections 2 and 10.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::message::{Inbound, Incarnation, MsgId, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Armed;
use doorbell_fabric::time::Time;
use doorbell_oob::JobKey;
use doorbell_oob::OobError;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Transport};
use doorbell_oob::event::{Event, Status};
use doorbell_oob::lines::rail::{self, Endpoint, Open, endpoint};
use doorbell_oob::lines::{Limits, tcp};
use doorbell_oob::name::{Epoch, From};
use doorbell_oob::plane::{Carriage, Carried, Counted, Oob};
use doorbell_oob::runner::{self, Progress};
use doorbell_shm::{ShmConfig, ShmRail};
use rustix::event::{EventfdFlags, eventfd};

use crate::hosts::{assert_no_peer_was_lost, begin, counters, is_lost, wait_until};
use crate::job::{TAG, config, contact, finish, introduce, receive_all, say, send_all, until};
use crate::side::{PATIENCE, key};

pub fn shm() -> Result<Box<dyn Endpoint>, RailError> {
    let rail = ShmRail::open(&"shm".parse()?, &ShmConfig::default())?;
    let life = rail.incarnation();
    Ok(endpoint(rail, life))
}

/// What a test does to rails, from outside of their threads.
#[derive(Clone, Default)]
pub struct Fate {
    /// No message passes while this is set.
    pub cut: Arc<AtomicBool>,
    /// There is no descriptor to sleep on while this is set.
    pub deaf: Arc<AtomicBool>,
    /// Every other message is refused for lack of room while this is set.
    pub full: Arc<AtomicBool>,
    /// Number of polls of the rail.
    pub looks: Arc<AtomicU64>,
}

impl Fate {
    fn cut(&self, is: bool) {
        self.cut.store(is, Ordering::Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// A shm rail with this fate.
    fn shm(&self) -> Open {
        let fate = self.clone();
        Box::new(move || {
            Ok(Box::new(Fated {
                rail: shm()?,
                fate,
                peers: 0,
                was_cut: false,
                refuses: false,
                silence: eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
                events: Vec::new(),
            }))
        })
    }
}

/// A rail that a test can cut: at both ends at once, since both have the same fate.
struct Fated {
    rail: Box<dyn Endpoint>,
    fate: Fate,
    peers: u32,
    was_cut: bool,
    refuses: bool,
    /// Nothing ever comes here.
    silence: OwnedFd,
    events: Vec<RailEvent>,
}

impl Endpoint for Fated {
    fn name(&self) -> &RailName {
        self.rail.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.rail.capabilities()
    }

    fn address(&self) -> RailAddress {
        self.rail.address()
    }

    fn incarnation(&self) -> Incarnation {
        self.rail.incarnation()
    }

    fn open(&mut self, address: &RailAddress, life: Incarnation) -> Result<PeerIndex, RailError> {
        let peer = self.rail.open(address, life)?;
        self.peers = self.peers.max(peer.0 + 1);
        Ok(peer)
    }

    fn send(&mut self, peer: PeerIndex, head: &[u8], body: &[u8]) -> Result<MsgId, Refused> {
        self.refuses = !self.refuses && self.fate.full.load(Ordering::Relaxed);
        if self.fate.is_cut() || self.refuses {
            return Err(Refused::Full);
        }
        self.rail.send(peer, head, body)
    }

    fn flush(&mut self) {
        self.rail.flush();
    }

    fn poll(&mut self, budget: usize, each: &mut dyn FnMut(PeerIndex, Inbound<'_>)) -> usize {
        self.fate.looks.fetch_add(1, Ordering::Relaxed);
        if self.fate.is_cut() {
            return 0;
        }
        self.rail.poll(budget, each)
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.rail.handed_over(peer)
    }

    fn forget(&mut self, peer: PeerIndex) {
        self.rail.forget(peer);
    }

    fn abandon(&mut self, peer: PeerIndex) {
        self.rail.abandon(peer);
    }

    fn revive(&mut self, peer: PeerIndex) {
        if !self.fate.is_cut() {
            self.rail.revive(peer);
        }
    }

    fn progress(&mut self, now: Time) -> usize {
        let cut = self.fate.is_cut();
        if cut && !self.was_cut {
            for peer in 0..self.peers {
                self.rail.abandon(PeerIndex(peer));
                self.events.push(RailEvent {
                    at: now,
                    scope: Scope::Peer(PeerIndex(peer)),
                    kind: EventKind::PeerDown(DownReason::Silent),
                    life: Life::FIRST,
                });
            }
        }
        self.was_cut = cut;
        if cut { 0 } else { self.rail.progress(now) }
    }

    fn next_deadline(&self) -> Option<Time> {
        self.rail.next_deadline()
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        if self.fate.deaf.load(Ordering::Relaxed) {
            return Err(RailError::misuse("sleep", "shm", "cannot, in this test"));
        }
        if self.fate.is_cut() {
            return Ok(Armed::Sleep(self.silence.as_fd()));
        }
        self.rail.arm()
    }

    fn disarm(&mut self) {
        if !self.fate.is_cut() {
            self.rail.disarm();
        }
    }

    fn event(&mut self) -> Option<RailEvent> {
        if self.fate.is_cut() {
            return self.events.pop();
        }
        self.rail.event()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.rail.close(now, by)
    }
}

pub fn with(rank: u32, ranks: u32, transports: Vec<Transport>) -> Config {
    let mut config = config(rank, ranks);
    config.transports = transports;
    config
}

/// First the rail, then `tcp`, both direct.
pub fn both() -> Vec<Transport> {
    vec![Transport::direct("rail"), Transport::direct("tcp")]
}

/// Short time limits: in tests, a peer that does not answer is one that was cut off or has ended, and no test
/// has to wait long for it.
pub fn quick() -> rail::Settings {
    rail::Settings {
        limits: Limits {
            handshake: Duration::from_secs(20),
            ..rail::Settings::default().limits
        },
        ..rail::Settings::default()
    }
}

fn beside_tcp(rails: Vec<Open>) -> Carried {
    Carried::new().rail(quick(), rails).tcp(tcp::Settings::default())
}

fn start(config: Config, carried: Carried, key: Option<JobKey>) -> Oob {
    Oob::start(config, carried, key, runner::Settings::default()).unwrap()
}

/// Two of them, which share a fate.
fn pair(fate: &Fate) -> Vec<Oob> {
    let one = |rank| start(with(rank, 2, both()), beside_tcp(vec![fate.shm()]), key(7));
    let all = vec![one(0), one(1)];
    introduce(&all);
    all
}

pub fn carriage(oob: &Oob, name: &str) -> Carriage {
    let all = oob.carriages();
    all.into_iter()
        .find(|carriage| &*carriage.name == name)
        .unwrap_or_default()
}

pub fn rail_counters(oob: &Oob) -> rail::Counters {
    match carriage(oob, "rail").counted {
        Counted::Rail(counters) => counters,
        other => panic!("{other:?}"),
    }
}

fn sent_by(oob: &Oob, name: &str) -> u64 {
    carriage(oob, name).frames_sent
}

pub fn linked(oob: &Oob, name: &str) -> bool {
    carriage(oob, name).links > 0
}

fn stream(all: &[Oob], count: u32, then: impl FnMut(u32)) {
    let inbox = all[1].inbox(From::only(all[0].name()), TAG, 64 << 10).unwrap();
    let to = all[1].name();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&all[0], to, count, 400));
        receive_all(&inbox, count, then);
    });
}

#[test]
fn messages_go_by_the_rail_that_comes_first_and_by_no_other() {
    let all = pair(&Fate::default());
    stream(&all, 10_000, |_| ());
    let long = Bytes::from(vec![7; 3 << 20]);
    let inbox = all[0].inbox(From::ANYBODY, TAG, 4 << 10).unwrap();
    let sent = all[1].send(all[0].name(), TAG, long.clone(), None).unwrap();
    assert_eq!(sent.wait(PATIENCE), Some(Ok(Status::Delivered)));
    assert!(inbox.wait(PATIENCE).unwrap().body == long, "cut and joined");
    for oob in &all {
        wait_until("all is shown", || carriage(oob, "rail").bytes_sent > 0);
        assert_eq!(sent_by(oob, "tcp"), 0);
    }
    let (one, two) = (carriage(&all[0], "rail"), carriage(&all[1], "rail"));
    assert!(
        one.frames_sent >= 10_000 && one.modules == 1 && one.links == 1,
        "{one:?}"
    );
    assert!(
        two.bytes_sent > 3 << 20 && two.frames_received >= 10_000,
        "{two:?}"
    );
    assert_eq!(rail_counters(&all[0]).sessions.strangers(), 0);
    finish(all);
}

#[test]
fn a_rail_killed_among_ten_thousand_messages_loses_none_and_is_used_again_when_it_is_back() {
    let fate = Fate::default();
    let all = pair(&fate);
    let events = [all[0].events(), all[1].events()];
    let mut by_tcp = 0;
    stream(&all, 10_000, |nth| match nth {
        3_000 => fate.cut(true),
        6_000 => {
            wait_until("tcp carries", || linked(&all[0], "tcp"));
            by_tcp = sent_by(&all[0], "tcp");
            fate.cut(false);
            wait_until("the rail is back", || {
                linked(&all[0], "rail") && linked(&all[1], "rail")
            });
        }
        _ => {}
    });
    assert!(by_tcp >= 1_000, "{by_tcp}");
    let before = (sent_by(&all[0], "rail"), sent_by(&all[0], "tcp"));
    stream(&all, 1_000, |_| ());
    wait_until("they go by the rail", || {
        sent_by(&all[0], "rail") >= before.0 + 1_000
    });
    assert!(
        sent_by(&all[0], "tcp") <= before.1 + 10,
        "but for acknowledgements"
    );
    events.iter().for_each(assert_no_peer_was_lost);
    let counted = rail_counters(&all[0]);
    assert!(
        counted.peers_down >= 1 && counted.peers_back >= 1 && counted.revivals >= 1,
        "{counted:?}"
    );
    finish(all);
}

#[test]
fn a_peer_without_the_rail_is_reached_by_the_tree_of_tcp() {
    let fate = Fate::default();
    let transports = vec![Transport::direct("rail"), Transport::tree("tcp")];
    let all: Vec<Oob> = (0..3)
        .map(|rank| {
            let mut config = with(rank, 3, transports.clone());
            config.radix = 1;
            // The one in the middle of the chain has no rail.
            let rails = if rank == 1 { Vec::new() } else { vec![fate.shm()] };
            start(config, beside_tcp(rails), key(7))
        })
        .collect();
    begin(&all);
    let relayed = || counters(&all[1]).node.relayed;
    say(&all[0], all[1].name(), TAG, b"by the tree");
    let ends = [&all[0], &all[2]];
    let inbox = ends[1].inbox(From::only(ends[0].name()), TAG, 64 << 10).unwrap();
    let talk = |count, then: &mut dyn FnMut(u32)| {
        let to = ends[1].name();
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(ends[0], to, count, 400));
            receive_all(&inbox, count, then);
        });
    };
    talk(2_000, &mut |_| ());
    wait_until("the rail carries", || sent_by(ends[0], "rail") >= 2_000);
    let before = relayed();
    talk(5_000, &mut |nth| {
        if nth == 1_000 {
            fate.cut(true);
        }
    });
    assert!(
        relayed() > before + 2_000,
        "by the tree: {before} to {}",
        relayed()
    );
    fate.cut(false);
    wait_until("the rail is back", || {
        linked(ends[0], "rail") || linked(ends[1], "rail") || {
            say(ends[0], ends[1].name(), TAG + 1, b"is it?");
            false
        }
    });
    let before = sent_by(ends[0], "rail");
    talk(2_000, &mut |_| ());
    wait_until("the rail carries", || sent_by(ends[0], "rail") >= before + 2_000);
    finish(all);
}

/// Two that have no contact of each other's rails look it up through the tree, and then both have it.
#[test]
fn a_look_up_makes_both_known_and_the_rail_is_used() {
    let transports = vec![Transport::direct("rail"), Transport::tree("tcp")];
    let all: Vec<Oob> = (0..3)
        .map(|rank| {
            start(
                with(rank, 3, transports.clone()),
                beside_tcp(vec![Box::new(shm)]),
                key(7),
            )
        })
        .collect();
    let root = contact(&all[0]);
    for oob in &all[1..] {
        oob.learn(vec![root.clone()]).unwrap();
    }
    for oob in &all {
        let events = oob.events();
        oob.begin().unwrap();
        if oob.name().rank > 0 {
            until(&events, "a lifeline", |event| {
                matches!(event, Event::LifelineUp { .. })
            });
        }
    }
    let events = all[1].events();
    all[1].look_up(all[2].name()).unwrap();
    until(&events, "an answer", |event| matches!(event, Event::Found { .. }));
    let before = counters(&all[0]).node.relayed;
    for nth in 0..100_u32 {
        say(&all[2], all[1].name(), TAG, &nth.to_be_bytes());
    }
    let after = counters(&all[0]).node.relayed;
    assert!(after < before + 20, "not through the root: {before} to {after}");
    finish(all);
}

#[test]
fn when_the_rail_and_tcp_are_gone_the_peer_is_lost_once() {
    let fate = Fate::default();
    let one = |rank| {
        let mut config = with(rank, 2, both());
        (config.rounds, config.grace) = (2, Duration::from_millis(300));
        (config.retry, config.retry_max) = (Duration::from_millis(20), Duration::from_millis(200));
        start(config, beside_tcp(vec![fate.shm()]), key(7))
    };
    let mut all = vec![one(0), one(1)];
    introduce(&all);
    say(&all[0], all[1].name(), TAG, b"there");
    let events = all[0].events();
    fate.cut(true);
    say(&all[0], all[1].name(), TAG, b"by tcp");
    let gone = all.pop().unwrap();
    let name = gone.name();
    gone.finish(Duration::ZERO);
    let sends: Vec<_> = (0..20)
        .map(|_| all[0].send(name, TAG, b"x".into(), Some(PATIENCE)).unwrap())
        .collect();
    let lost = until(&events, "a loss", is_lost);
    assert!(
        matches!(lost, Event::PeerLost { peer, .. } if peer == name),
        "{lost:?}"
    );
    for sent in &sends {
        assert!(matches!(sent.wait(PATIENCE), Some(Ok(Status::PeerLost) | Err(_))));
    }
    // Attempts and calls go on for a while, over both.
    std::thread::sleep(Duration::from_millis(1500));
    assert_no_peer_was_lost(&events);
    finish(all);
}

#[test]
fn a_peer_that_starts_again_is_known_for_a_new_life_over_the_rail() {
    let alone = |epoch| {
        let mut config = with(1, 2, vec![Transport::direct("rail")]);
        config.epoch = Epoch(epoch);
        start(config, Carried::new().rail(quick(), vec![Box::new(shm)]), key(7))
    };
    let config = with(0, 2, vec![Transport::direct("rail")]);
    let one = start(config, Carried::new().rail(quick(), vec![Box::new(shm)]), key(7));
    let events = one.events();
    let mut before = None;
    for epoch in 101..105 {
        let two = alone(epoch);
        let contacts = vec![contact(&one), contact(&two)];
        one.learn(contacts.clone()).unwrap();
        two.learn(contacts).unwrap();
        if before.is_some() {
            let is = |event: &Event| matches!(event, Event::PeerRestarted { epoch: of, .. } if of.0 == epoch);
            until(&events, "a new life", is);
        }
        say(&one, two.name(), TAG, b"there");
        say(&two, one.name(), TAG, b"and back");
        before = Some(epoch);
        two.finish(Duration::ZERO);
    }
    finish(vec![one]);
}

#[test]
fn a_wrong_key_is_refused_with_the_reason_on_both_sides_and_counted() {
    let one = |rank, byte| {
        let config = with(rank, 2, vec![Transport::direct("rail")]);
        start(
            config,
            Carried::new().rail(quick(), vec![Box::new(shm)]),
            key(byte),
        )
    };
    let all = vec![one(0, 7), one(1, 8)];
    introduce(&all);
    let sent = all[0]
        .send(all[1].name(), TAG, b"x".into(), Some(Duration::from_secs(2)))
        .unwrap();
    assert!(matches!(
        sent.wait(PATIENCE),
        Some(Ok(Status::Unreachable | Status::PeerLost))
    ));
    wait_until("it is counted", || rail_counters(&all[1]).sessions.wrong_key >= 1);
    let mut said = Vec::new();
    wait_until("the trouble is reported", || {
        said.extend(all[0].troubles());
        said.iter().any(|trouble| matches!(trouble, OobError::WrongKey))
    });
    assert_eq!(rail_counters(&all[1]).sessions.meeting.links, 0);
    finish(all);
}

#[test]
fn without_a_key_only_rails_within_the_host_carry() {
    let one = |rank| {
        let config = with(rank, 2, vec![Transport::direct("rail")]);
        start(config, Carried::new().rail(quick(), vec![Box::new(shm)]), None)
    };
    let all = vec![one(0), one(1)];
    introduce(&all);
    say(&all[0], all[1].name(), TAG, b"within the host");
    finish(all);
    let config = with(0, 2, vec![Transport::direct("rail")]);
    let udp: Open = Box::new(crate::rail_hosts::udp("udp:lo", [7; 32]));
    let carried = Carried::new().rail(quick(), vec![udp]);
    let refused = Oob::start(config, carried, None, runner::Settings::default());
    let said = refused.map(|_| ()).unwrap_err();
    assert!(
        matches!(&said, OobError::RailKey { rail } if rail == "udp:lo"),
        "{said}"
    );
}

#[test]
fn transports_that_do_not_agree_with_the_configuration_are_refused() {
    let refused = |transports, carried: Carried| {
        let started = Oob::start(
            with(0, 1, transports),
            carried,
            key(7),
            runner::Settings::default(),
        );
        started.map(|_| ()).unwrap_err().to_string()
    };
    let tcp = || Carried::from(tcp::Settings::default());
    for (transports, carried) in [
        (both(), tcp()),
        (vec![Transport::direct("rail")], tcp()),
        (Vec::new(), Carried::new()),
        (
            vec![Transport::direct("tcp"), Transport::direct("rail")],
            beside_tcp(Vec::new()),
        ),
        (
            vec![Transport::direct("tcp"), Transport::tree("tcp")],
            tcp().tcp(tcp::Settings::default()),
        ),
    ] {
        let said = refused(transports, carried);
        assert!(said.contains("in this order"), "{said}");
    }
    let fails: Open = Box::new(|| Err(RailError::misuse("rail", "shm", "cannot be opened, in this test")));
    let said = refused(both(), beside_tcp(vec![fails]));
    assert!(said.contains("cannot be opened"), "{said}");
}

/// Whatever there is to sleep on, it is used: nothing polls all the time.
#[test]
fn a_thread_that_blocks_does_not_spin_and_one_that_has_no_descriptor_polls_from_a_timer() {
    for deaf in [false, true] {
        let fate = Fate::default();
        fate.deaf.store(deaf, Ordering::Relaxed);
        let all = pair(&fate);
        stream(&all, 2_000, |_| ());
        std::thread::sleep(Duration::from_millis(500));
        let before = fate.looks.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(1));
        let looks = fate.looks.load(Ordering::Relaxed) - before;
        // Both ends: none where descriptors wake them, or 50 a second by the timer. A loop without a pause
        // makes a million.
        assert!(
            looks < 5_000 && (looks > 2 || !deaf),
            "{looks} looks, deaf: {deaf}"
        );
        say(&all[0], all[1].name(), TAG + 1, b"and it is woken");
        finish(all);
    }
}

#[test]
fn what_a_full_rail_refuses_waits_and_keeps_its_place() {
    let fate = Fate::default();
    fate.full.store(true, Ordering::Relaxed);
    let all = pair(&fate);
    stream(&all, 3_000, |_| ());
    let inbox = all[0].inbox(From::ANYBODY, TAG, 4 << 10).unwrap();
    let long = Bytes::from(vec![9; 1 << 20]);
    let sent = all[1].send(all[0].name(), TAG, long.clone(), None).unwrap();
    assert!(inbox.wait(PATIENCE).unwrap().body == long);
    assert_eq!(sent.wait(PATIENCE), Some(Ok(Status::Delivered)));
    let counted = rail_counters(&all[0]);
    assert!(counted.full >= 50 && counted.duplicates == 0, "{counted:?}");
    assert_eq!(sent_by(&all[0], "tcp"), 0);
    finish(all);
}

/// Two modules of one transport: the second carries when the first one is cut, and `tcp` is not needed.
#[test]
fn of_two_rails_the_other_one_carries_when_the_first_is_cut() {
    let fate = Fate::default();
    let one = |rank| {
        let udp: Open = Box::new(crate::rail_hosts::udp("udp:lo", [3; 32]));
        start(with(rank, 2, both()), beside_tcp(vec![fate.shm(), udp]), key(7))
    };
    let all = vec![one(0), one(1)];
    introduce(&all);
    let events = [all[0].events(), all[1].events()];
    let mut pieces = 0;
    stream(&all, 10_000, |nth| match nth {
        2_000 => fate.cut(true),
        5_000 => {
            pieces = rail_counters(&all[0]).pieces_sent;
            fate.cut(false);
            wait_until("the first is back", || rail_counters(&all[0]).peers_back >= 1);
        }
        _ => {}
    });
    assert!(pieces > 0 && carriage(&all[0], "rail").modules == 2);
    assert!(carriage(&all[0], "rail").lost >= 1, "{:?}", all[0].carriages());
    assert!(sent_by(&all[0], "tcp") <= 10, "{:?}", all[0].carriages());
    events.iter().for_each(assert_no_peer_was_lost);
    finish(all);
}

#[test]
fn a_thread_that_spins_carries_the_same() {
    let spin = runner::Settings {
        progress: Progress::Spin(None),
        ..Default::default()
    };
    let one = |rank| {
        Oob::start(
            with(rank, 2, both()),
            beside_tcp(vec![Box::new(shm)]),
            key(7),
            spin,
        )
        .unwrap()
    };
    let all = vec![one(0), one(1)];
    introduce(&all);
    stream(&all, 1_000, |_| ());
    wait_until("the rail carried", || sent_by(&all[0], "rail") >= 1_000);
    finish(all);
}
