//! Message rails under failures: which events come, what is lost, what is given back, what is executed once.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life, RailEvent, Scope};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, Landing, Message, MsgId, OpError, OpId, PeerIndex, Refused,
    Remote, RemoteKey,
};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::Collect;
use doorbell_sim::{Change, Faults, Plane, SimConfig, SimNet, SimRail};

struct Two {
    net: SimNet,
    a: SimRail,
    b: SimRail,
    to_b: PeerIndex,
    to_a: PeerIndex,
    at_a: Collect,
    at_b: Collect,
}

fn open(from: &mut SimRail, to: &SimRail) -> PeerIndex {
    from.open(&to.address(), to.incarnation()).unwrap()
}

fn two(seed: u64, config: SimConfig) -> Two {
    let net = SimNet::new(seed, config);
    let (mut a, mut b) = (net.attach(), net.attach());
    let (to_b, to_a) = (open(&mut a, &b), open(&mut b, &a));
    let (at_a, at_b) = (Collect::default(), Collect::default());
    Two {
        net,
        a,
        b,
        to_b,
        to_a,
        at_a,
        at_b,
    }
}

impl Two {
    fn poll(&mut self) {
        self.a.poll(usize::MAX, &mut self.at_a);
        self.b.poll(usize::MAX, &mut self.at_b);
    }

    /// Plays everything that will ever happen.
    fn play(&mut self) {
        loop {
            self.poll();
            if self.net.advance_to_next_event().is_none() {
                break;
            }
        }
        self.poll();
    }

    fn send(&mut self, text: &[u8]) -> Result<MsgId, Refused> {
        let sent = self.a.send(self.to_b, text, Body::Empty);
        self.a.flush();
        sent
    }

    fn pass(&mut self, time: Duration) {
        let until = self.net.now() + time;
        while self.net.next_event().is_some_and(|next| next <= until) {
            self.net.advance_to_next_event();
            self.poll();
        }
        self.net.advance_to(until);
        self.poll();
    }
}

fn events(rail: &mut SimRail) -> Vec<(Scope, EventKind)> {
    std::iter::from_fn(|| rail.event())
        .map(|RailEvent { scope, kind, .. }| (scope, kind))
        .collect()
}

#[test]
fn a_rail_can_move_to_another_thread_and_reports_that_it_cannot_sleep() {
    fn is_send<T: Send>(_: &T) {}
    let mut two = two(1, SimConfig::default());
    is_send(&two.a);
    assert!(matches!(two.a.arm(), Ok(Armed::Ready)));
    assert_eq!((two.a.name().as_str(), two.a.name().kind()), ("sim:1", "sim"));
    let west = two.net.add_plane("west");
    assert_eq!(two.net.attach_rank(0, west).name().as_str(), "sim:1:west");
}

#[test]
fn nothing_is_on_the_link_before_the_doorbell() {
    let mut two = two(2, SimConfig::default());
    two.a.send(two.to_b, b"1", Body::Empty).unwrap();
    assert_eq!(two.net.next_event(), None);
    two.a.flush();
    assert_eq!(two.net.next_event(), Some(Time::from_nanos(1_000)));
    two.b.progress(Time::from_nanos(999));
    assert_eq!(two.b.poll(9, &mut two.at_b), 0);
    two.b.progress(Time::from_nanos(1_000));
    assert_eq!(two.b.poll(9, &mut two.at_b), 1);
    assert_eq!(two.a.next_deadline(), Some(Time::from_nanos(2_000)));
    assert_eq!(two.a.handed_over(two.to_b), MsgId(0));
    two.a.progress(Time::from_nanos(2_000));
    assert_eq!(two.a.handed_over(two.to_b), MsgId(1));
}

#[test]
fn bandwidth_serialises_and_order_changes_only_by_the_reorder_fault() {
    let order = |faults: Faults| {
        let mut two = two(
            3,
            SimConfig {
                faults,
                ..SimConfig::default()
            },
        );
        for n in 0..50_u8 {
            two.a.send(two.to_b, &[n], Body::Bytes(&[0; 99])).unwrap();
        }
        two.play();
        let order: Vec<u8> = two.at_b.messages.iter().map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(two.a.handed_over(two.to_b), MsgId(50));
        (order, two.net.now())
    };
    let straight: Vec<u8> = (0..50).collect();
    let narrow = Faults {
        bandwidth: Some(1_000_000),
        jitter: Duration::from_micros(500),
        ..Faults::NONE
    };
    let (seen, end) = order(narrow);
    assert_eq!(seen, straight, "jitter alone does not reorder");
    let micros = end.nanos() / 1_000;
    assert!(
        (5_000..7_000).contains(&micros),
        "5000 bytes at 1 MB/s take 5 ms, not {micros} us"
    );
    let rough = Faults {
        reorder: 0.3,
        reorder_window: Duration::from_micros(5),
        ..narrow
    };
    let (mut seen, _) = order(Faults {
        bandwidth: None,
        ..rough
    });
    assert_ne!(seen, straight);
    seen.sort_unstable();
    assert_eq!(seen, straight);
}

#[test]
fn strangers_wait_until_they_are_opened_and_keep_the_order_of_open() {
    let net = SimNet::new(4, SimConfig::default());
    let (mut a, mut b, mut c) = (net.attach(), net.attach(), net.attach());
    for from in [&mut b, &mut a] {
        let to_c = open(from, &c);
        let mark = [from.rank() as u8];
        from.send(to_c, &mark, Body::Empty).unwrap();
        from.flush();
    }
    net.advance_to(Time::from_nanos(10_000));
    let mut seen = Collect::default();
    assert_eq!(c.poll(9, &mut seen), 0);
    let names = [&b, &a].map(|end| c.caller(&end.address(), end.incarnation()));
    assert!(names[0] != names[1] && names[0].is_some());
    assert_eq!(
        [c.stranger(), c.stranger(), c.stranger()],
        [names[0], names[1], None]
    );
    // A sender that goes on is reported again, after a while, and no sender that is open.
    for (at, told) in [(1, None), (30, names[0]), (31, None), (60, None)] {
        if at == 60 {
            assert_eq!(open(&mut c, &a), PeerIndex(0));
        }
        let from = if at == 60 { &mut a } else { &mut b };
        net.advance_to(Time::from_nanos(at * 1_000_000));
        from.send(PeerIndex(0), b"more", Body::Empty).unwrap();
        from.flush();
        net.advance_to(Time::from_nanos(at * 1_000_000 + 10_000));
        assert_eq!(c.stranger(), told, "{at}");
    }
    assert_eq!(open(&mut c, &a), PeerIndex(0));
    assert_eq!(open(&mut c, &b), PeerIndex(1));
    assert_eq!(c.poll(9, &mut seen), 6);
    let of = |peer| {
        seen.messages
            .iter()
            .filter(move |(from, _)| *from == PeerIndex(peer))
    };
    let bytes = |peer| of(peer).map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>();
    assert_eq!(bytes(0), [&[0][..], b"more"]);
    assert_eq!(bytes(1), [&[1][..], b"more", b"more", b"more"]);
}

#[test]
fn a_short_break_loses_nothing_and_is_not_reported() {
    for change in [Change::PlaneDown(Plane::FIRST), Change::LinkDown(Plane::FIRST, 1)] {
        let mut two = two(5, SimConfig::default());
        two.send(b"1").unwrap();
        two.play();
        events(&mut two.a);
        two.net.change(change);
        two.send(b"2").unwrap();
        two.pass(Duration::from_micros(5));
        assert_eq!(two.at_b.messages.len(), 1, "nothing passes");
        two.net.change(match change {
            Change::PlaneDown(plane) => Change::PlaneUp(plane),
            _ => Change::LinkUp(Plane::FIRST, 1),
        });
        two.play();
        assert_eq!(two.at_b.messages.len(), 2);
        assert_eq!(two.a.handed_over(two.to_b), MsgId(2));
        assert_eq!(events(&mut two.a), []);
        assert!(two.net.total().stalled > 0);
    }
}

#[test]
fn a_break_that_was_healed_does_not_shorten_the_patience_with_the_next() {
    let mut two = two(17, SimConfig::default());
    let (plane, from, to) = (Plane::FIRST, 0, 1);
    let (cut, heal) = (Change::Cut { plane, from, to }, Change::Heal { plane, from, to });
    for (at, change) in [(0, cut), (300_000, heal), (400_000, cut)] {
        two.net.at(Time::from_nanos(at), change);
    }
    two.net.advance_to(Time::from_nanos(899_999));
    assert_eq!(
        events(&mut two.a),
        [],
        "500 us of silence, counted from the second cut"
    );
    two.net.advance_to(Time::from_nanos(900_000));
    let down = EventKind::PeerDown(DownReason::Silent);
    assert_eq!(events(&mut two.a), [(Scope::Peer(two.to_b), down)]);
}

#[test]
fn a_dark_plane_is_one_link_event_each_and_comes_back() {
    let mut two = two(6, SimConfig::default());
    two.send(b"1").unwrap();
    two.play();
    events(&mut two.a);
    two.net.change(Change::PlaneDown(Plane::FIRST));
    assert_eq!(two.send(b"2"), Ok(MsgId(2)));
    two.pass(Duration::from_millis(5));
    assert_eq!(events(&mut two.a), [(Scope::Rail, EventKind::LinkDown)]);
    assert_eq!(two.send(b"3"), Err(Refused::PeerDown));
    let mut given = Vec::new();
    two.a
        .reclaim(two.to_b, &mut |id, bytes| given.push((id, bytes.to_vec())));
    assert_eq!(given, [(MsgId(2), b"2".to_vec())]);
    two.net.change(Change::PlaneUp(Plane::FIRST));
    two.pass(Duration::from_millis(5));
    assert_eq!(events(&mut two.a), [(Scope::Rail, EventKind::LinkUp)]);
    assert_eq!(
        two.a.handed_over(two.to_b),
        MsgId(1),
        "what was given back is not called handed over"
    );
    assert_eq!(two.send(b"4"), Ok(MsgId(3)), "ids go on");
    two.play();
    assert_eq!(two.a.handed_over(two.to_b), MsgId(3), "and are no gap any more");
    let texts: Vec<&[u8]> = two.at_b.messages.iter().map(|(_, text)| &text[..]).collect();
    assert_eq!(texts, [b"1", b"4"]);
    assert_eq!(two.net.held(), 0);
}

#[test]
fn a_pulled_cable_is_a_link_event_here_and_silence_there() {
    let mut two = two(7, SimConfig::default());
    two.net.change(Change::LinkDown(Plane::FIRST, 0));
    two.pass(Duration::from_millis(2));
    assert_eq!(events(&mut two.a), [(Scope::Rail, EventKind::LinkDown)]);
    let down = EventKind::PeerDown(DownReason::Silent);
    assert_eq!(events(&mut two.b), [(Scope::Peer(two.to_a), down)]);
    assert_eq!(two.b.send(two.to_a, b"x", Body::Empty), Err(Refused::PeerDown));
    two.net.change(Change::LinkUp(Plane::FIRST, 0));
    two.pass(Duration::from_millis(2));
    assert_eq!(events(&mut two.a), [(Scope::Rail, EventKind::LinkUp)]);
    assert_eq!(events(&mut two.b), [(Scope::Peer(two.to_a), EventKind::PeerUp)]);
    two.send(b"again").unwrap();
    two.play();
    assert_eq!(two.at_b.messages.len(), 1);
}

/// Healed by itself or called, given up at one end or at both: each time that both are up, it is the same
/// life at both, and a later one.
#[test]
fn both_ends_tell_a_connection_by_the_same_number() {
    let mut two = two(7, SimConfig::default());
    let (plane, from, to) = (Plane::FIRST, 0, 1);
    let mut told = vec![Life::FIRST];
    for round in 0..15 {
        match round % 5 {
            0 => two.net.change(Change::Cut { plane, from, to }),
            4 => {
                // Only the other end finds a pulled cable to be the end of a connection.
                two.net.change(Change::LinkDown(plane, from));
                two.pass(Duration::from_millis(3));
                two.net.change(Change::LinkUp(plane, from));
                two.pass(Duration::from_millis(3));
                assert_eq!(events(&mut two.b).len(), 2, "down and up");
                two.a.abandon(two.to_b);
            }
            1 => two.a.abandon(two.to_b),
            2 => two.b.abandon(two.to_a),
            _ => {
                two.a.abandon(two.to_b);
                two.b.abandon(two.to_a);
            }
        }
        two.pass(Duration::from_millis(3));
        two.net.change(Change::Heal { plane, from, to });
        two.a.revive(two.to_b);
        two.b.revive(two.to_a);
        two.pass(Duration::from_millis(3));
        let last = |rail: &mut SimRail| {
            let ups = std::iter::from_fn(|| rail.event()).filter(|event| event.kind == EventKind::PeerUp);
            ups.map(|event| event.life).last()
        };
        let [at_a, at_b] = [last(&mut two.a), last(&mut two.b)];
        assert!(at_a.is_some() && at_a == at_b, "round {round}: {at_a:?} {at_b:?}");
        told.extend(at_a);
    }
    assert!(told.is_sorted_by(|one, next| one.is_before(*next)), "{told:?}");
}

#[test]
fn a_one_way_cut_delivers_what_it_cannot_confirm() {
    let mut two = two(8, SimConfig::default());
    let cut = Change::Cut {
        plane: Plane::FIRST,
        from: 1,
        to: 0,
    };
    two.net.at(Time::from_nanos(500), cut);
    two.send(b"seen").unwrap();
    two.pass(Duration::from_millis(2));
    assert_eq!(two.at_b.messages.len(), 1, "the open direction passes");
    assert_eq!(two.a.handed_over(two.to_b), MsgId(0), "the closed one does not");
    let down = EventKind::PeerDown(DownReason::Silent);
    assert_eq!(events(&mut two.a), [(Scope::Peer(two.to_b), down)]);
    let mut given = 0;
    two.a.reclaim(two.to_b, &mut |_, _| given += 1);
    assert_eq!(given, 1, "it may have arrived: it is given back");
    two.net.change(Change::Heal {
        plane: Plane::FIRST,
        from: 1,
        to: 0,
    });
    two.play();
    assert_eq!(events(&mut two.a), [(Scope::Peer(two.to_b), EventKind::PeerUp)]);
    assert_eq!(two.at_b.messages.len(), 1, "and was not sent twice");
}

#[test]
fn what_was_in_the_inbox_at_a_failure_may_or_may_not_be_seen() {
    let mut seen = [0; 2];
    for seed in 0..40 {
        let mut two = two(seed, SimConfig::default());
        two.send(b"text").unwrap();
        two.net.advance_to(Time::from_nanos(1_500));
        two.net.change(Change::LinkDown(Plane::FIRST, 0));
        two.net.advance_to(Time::from_nanos(100_000));
        two.poll();
        seen[two.at_b.messages.len()] += 1;
        assert_eq!(two.a.handed_over(two.to_b), MsgId(0));
        let mut given = 0;
        two.a.reclaim(two.to_b, &mut |_, _| given += 1);
        assert_eq!(given, 1);
    }
    assert!(seen.iter().all(|&n| n >= 8), "both ends happen: {seen:?}");
}

#[test]
fn a_dead_process_is_reported_and_its_next_life_is_another_peer() {
    let mut two = two(9, SimConfig::default());
    two.b.send(two.to_a, b"old", Body::Empty).unwrap();
    two.b.flush();
    two.send(b"lost").unwrap();
    let old = two.b.incarnation();
    let new = two.net.restart(1);
    assert_ne!(old, new);
    two.net.advance_to(Time::from_nanos(1_000_000));
    two.poll();
    assert_eq!(
        two.at_a.messages.len() + two.at_b.messages.len(),
        0,
        "the old life sends and receives nothing more"
    );
    assert_eq!(
        events(&mut two.a),
        [(Scope::Peer(two.to_b), EventKind::PeerDown(DownReason::Died))]
    );
    assert_eq!(two.b.send(two.to_a, b"x", Body::Empty), Err(Refused::PeerDown));
    let mut b = two.net.attach_rank(1, Plane::FIRST);
    assert_eq!((b.incarnation(), b.rank(), two.net.is_alive(1)), (new, 1, true));
    assert!(
        two.a
            .open(&b.address(), old)
            .unwrap_err()
            .to_string()
            .contains("incarnation")
    );
    let to_new = open(&mut two.a, &b);
    assert_ne!(to_new, two.to_b);
    let to_a = open(&mut b, &two.a);
    two.a.send(to_new, b"hello", Body::Empty).unwrap();
    b.send(to_a, b"hello", Body::Empty).unwrap();
    b.flush();
    two.a.flush();
    two.net.advance_to(two.net.now() + Duration::from_micros(10));
    two.poll();
    let mut at_new = Collect::default();
    assert_eq!(b.poll(9, &mut at_new), 1);
    assert_eq!(two.at_a.messages, [(to_new, b"hello".to_vec())]);
}

#[test]
fn after_the_news_of_a_death_nothing_of_the_dead_is_seen() {
    for seed in 0..20 {
        let mut two = two(seed, SimConfig::default());
        for _ in 0..5 {
            two.b.send(two.to_a, b"old", Body::Empty).unwrap();
        }
        two.b.flush();
        two.net.advance_to(Time::from_nanos(5_000));
        two.net.change(Change::RankDeath(1));
        two.net.advance_to(Time::from_nanos(1_000_000));
        assert_eq!(events(&mut two.a).len(), 1);
        assert_eq!(
            two.a.poll(9, &mut two.at_a),
            0,
            "it waited in the inbox when the news came"
        );
    }
}

#[test]
fn a_lost_nic_is_reported_to_its_owner_and_looks_silent_to_others() {
    let mut two = two(10, SimConfig::default());
    two.send(b"1").unwrap();
    two.net
        .at(Time::from_nanos(100), Change::NicDeath(Plane::FIRST, 0));
    two.play();
    assert_eq!(events(&mut two.a), [(Scope::Rail, EventKind::DeviceGone)]);
    let down = EventKind::PeerDown(DownReason::Silent);
    assert_eq!(events(&mut two.b), [(Scope::Peer(two.to_a), down)]);
    assert_eq!(two.send(b"2"), Err(Refused::PeerDown));
    let mut given = Vec::new();
    two.a
        .reclaim(two.to_b, &mut |_, bytes| given.push(bytes.to_vec()));
    assert_eq!(given, [b"1"]);
    assert_eq!(two.net.held(), 0);
}

#[test]
fn planes_fail_apart_and_share_the_life_of_a_rank() {
    let net = SimNet::new(11, SimConfig::default());
    let west = net.add_plane("west");
    let mut rails = [0, 1].map(|rank| [Plane::FIRST, west].map(|plane| net.attach_rank(rank, plane)));
    assert_eq!(rails[0][0].incarnation(), rails[0][1].incarnation());
    let [[a0, a1], [b0, b1]] = &mut rails;
    let (p0, p1) = (open(a0, b0), open(a1, b1));
    open(b1, a1);
    assert!(
        a0.open(&b1.address(), b1.incarnation()).is_err(),
        "another plane is out of reach"
    );
    net.change(Change::PlaneDown(Plane::FIRST));
    net.advance_to(Time::from_nanos(1_000_000));
    assert_eq!(a0.send(p0, b"x", Body::Empty), Err(Refused::PeerDown));
    assert_eq!(a1.send(p1, b"x", Body::Empty), Ok(MsgId(1)));
    a1.flush();
    net.advance_to_next_event();
    assert_eq!(b1.poll(9, &mut Collect::default()), 1);
    assert_eq!(
        (
            net.stats(west).messages_sent,
            net.stats(Plane::FIRST).messages_sent
        ),
        (1, 0)
    );
}

fn exposed(two: &mut Two, memory: &Region, access: Access) -> Remote {
    two.b
        .expose(Exposure::Region(memory.whole()), access, None)
        .unwrap()
}

#[test]
fn a_withdrawal_at_any_time_is_never_a_half_success() {
    let mut ends = [0; 3];
    for at in (0..=4_000).step_by(50) {
        let mut two = two(12, SimConfig::default());
        let (there, here) = (Region::new(1000).unwrap(), Region::new(1000).unwrap());
        there.write(0, &[1; 1000]);
        let remote = exposed(&mut two, &there, Access::ReadWrite);
        two.a
            .get(two.to_b, OpId(1), &remote, Landing::Region(here.whole()))
            .unwrap();
        two.a
            .put(
                two.to_b,
                OpId(2),
                Body::Bytes(&[2; 8]),
                &remote.part(0, 8).unwrap(),
            )
            .unwrap();
        two.net.advance_to(Time::from_nanos(at));
        two.b.withdraw(RemoteKey(remote.key.get()));
        let mut then = [0; 8];
        there.read(0, &mut then);
        there.write(500, &[3; 500]);
        two.play();
        let mut after = [0; 8];
        there.read(0, &mut after);
        assert_eq!(then, after, "no write after the withdrawal (at {at} ns)");
        let outcome = |op| two.at_a.ended.iter().find(|(id, _)| *id == OpId(op)).unwrap().1;
        let mut got = [0; 1000];
        here.read(0, &mut got);
        match outcome(1) {
            Ok(_) => assert!(
                got[500..] == [1; 500],
                "a success has the bytes of before (at {at} ns)"
            ),
            Err(OpError::Withdrawn) => ends[1] += 1,
            Err(OpError::Denied) => ends[2] += 1,
            other => panic!("{other:?}"),
        }
        ends[0] += usize::from(outcome(1).is_ok());
        match outcome(2) {
            Ok(_) => assert_eq!(then, [2; 8]),
            Err(OpError::Withdrawn) => {
                assert_eq!(then, [2, 2, 2, 2, 1, 1, 1, 1], "half done, and reported so")
            }
            Err(OpError::Denied) => assert_eq!(then, [1; 8]),
            other => panic!("{other:?}"),
        }
    }
    assert!(
        ends.iter().all(|&n| n > 5),
        "done, withdrawn and denied all happen: {ends:?}"
    );
}

#[test]
fn death_at_any_time_ends_an_atomic_truthfully() {
    let mut ends = [0; 3];
    for at in (0..=4_000).step_by(50) {
        let faults = Faults {
            bandwidth: Some(10_000_000),
            ..Faults::NONE
        };
        let mut two = two(
            13,
            SimConfig {
                faults,
                ..SimConfig::default()
            },
        );
        let there = Region::new(64).unwrap();
        let remote = exposed(&mut two, &there, Access::ReadWrite).part(0, 8).unwrap();
        // Ten bytes at 10 MB/s: the first microsecond belongs to them.
        two.a.send(two.to_b, &[0; 10], Body::Empty).unwrap();
        two.a.flush();
        two.a
            .atomic(two.to_b, OpId(1), &remote, AtomicOp::Add(5))
            .unwrap();
        two.a.fence(FenceScope::Peer(two.to_b), OpId(2)).unwrap();
        two.net.advance_to(Time::from_nanos(at));
        two.net.change(Change::NicDeath(Plane::FIRST, 0));
        two.play();
        let mut value = [0; 8];
        there.read(0, &mut value);
        let value = u64::from_ne_bytes(value);
        assert_eq!(two.at_a.ended.len(), 2, "each ends once");
        let fence = two.at_a.ended.iter().find(|(id, _)| *id == OpId(2)).unwrap().1;
        match two.at_a.ended.iter().find(|(id, _)| *id == OpId(1)).unwrap().1 {
            Ok(old) => {
                assert_eq!((old, value, fence), (0, 5, Ok(0)));
                ends[0] += 1;
            }
            Err(OpError::NotDone) => {
                assert_eq!(
                    (value, fence),
                    (0, Err(OpError::Indeterminate)),
                    "not done is not done"
                );
                ends[1] += 1;
            }
            Err(OpError::Indeterminate) => {
                assert_eq!(fence, Err(OpError::Indeterminate));
                ends[2] += 1;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(two.net.total().operations_executed, value / 5);
        two.a.reclaim(two.to_b, &mut |_, _| {});
        assert_eq!(two.net.held(), 0, "nothing is left behind");
    }
    assert!(
        ends.iter().all(|&n| n > 5),
        "done, not done and unknown all happen: {ends:?}"
    );
}

#[test]
fn an_operation_is_executed_once_over_whichever_rail() {
    let net = SimNet::new(14, SimConfig::default());
    let west = net.add_plane("west");
    let mut rails = [0, 1].map(|rank| [Plane::FIRST, west].map(|plane| net.attach_rank(rank, plane)));
    let [[a0, a1], [b0, b1]] = &mut rails;
    let (p0, p1) = (open(a0, b0), open(a1, b1));
    let memory = Region::new(8).unwrap();
    let mut ended = Collect::default();
    for (rail, peer, target) in [(a0, p0, b0), (a1, p1, b1)] {
        let at = target
            .expose(Exposure::Region(memory.whole()), Access::ReadWrite, None)
            .unwrap();
        rail.atomic(peer, OpId(7), &at, AtomicOp::Add(3)).unwrap();
        while net.advance_to_next_event().is_some() {}
        rail.poll(9, &mut ended);
    }
    assert_eq!(
        ended.ended,
        [(OpId(7), Ok(0)), (OpId(7), Ok(0))],
        "the repeat answers what the first one found"
    );
    let mut value = [0; 8];
    memory.read(0, &mut value);
    assert_eq!(u64::from_ne_bytes(value), 3);
    assert_eq!(
        (net.total().operations_executed, net.total().operations_repeated),
        (1, 1)
    );
}

#[test]
fn a_fence_waits_for_region_bodies_to_be_handed_over() {
    let mut two = two(15, SimConfig::default());
    let region = Region::new(100).unwrap();
    two.a.send(two.to_b, b"", Body::Region(&region.whole())).unwrap();
    two.a.fence(FenceScope::Rail, OpId(1)).unwrap();
    two.a.flush();
    while two.net.advance_to_next_event().is_some() {}
    assert_eq!(two.a.poll(9, &mut two.at_a), 0, "the peer has not read it");
    region.write(0, b"late");
    two.play();
    assert_eq!(two.at_a.ended, [(OpId(1), Ok(0))]);
    assert_eq!(
        two.at_b.messages[0].1[..4],
        *b"late",
        "a region's body is taken by reference"
    );
}

#[test]
fn tables_are_bounded_and_say_so() {
    let mut two = two(
        16,
        SimConfig {
            keys: 2,
            operations: 2,
            ..SimConfig::default()
        },
    );
    let region = Region::new(8).unwrap();
    let remote = exposed(&mut two, &region, Access::Read);
    exposed(&mut two, &region, Access::Read);
    let more = two.b.expose(Exposure::Region(region.whole()), Access::Read, None);
    assert_eq!(more, Err(Refused::Full));
    two.b.withdraw(RemoteKey(remote.key.get()));
    let remote = exposed(&mut two, &region, Access::Read);
    let into = || Landing::Region(region.whole());
    two.a.get(two.to_b, OpId(1), &remote, into()).unwrap();
    two.a.fence(FenceScope::Rail, OpId(2)).unwrap();
    assert_eq!(two.a.get(two.to_b, OpId(3), &remote, into()), Err(Refused::Full));
    assert_eq!(two.a.fence(FenceScope::Rail, OpId(4)), Err(Refused::Full));
    two.play();
    assert_eq!(two.a.get(two.to_b, OpId(3), &remote, into()), Ok(()));
}
