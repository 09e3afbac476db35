//! Rails over the model of a library.

use std::path::Path;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::{Armed, Rail};
use doorbell_fabric::time::Time;
use doorbell_sim::conformance::datagram::Ends;

use super::UdRail;
use super::open::Source;
use crate::config::VerbsConfig;
use crate::ports::Tree;
use crate::sys::model::{self, Spec};
use crate::sys::{Wc, numbers};

/// A device of its own for each rail.
struct Bench {
    name: String,
    tree: tempfile::TempDir,
}

impl Bench {
    fn new(spec: Spec) -> (Self, crate::sys::Library) {
        let tree = tempfile::tempdir().unwrap();
        let bench = Self {
            name: spec.name.clone(),
            tree,
        };
        bench.plug();
        (bench, model::library(spec))
    }

    fn files(&self) -> std::path::PathBuf {
        self.tree.path().join("class/infiniband_verbs")
    }

    /// The device file of every number: which one is this device's depends on how many the model has.
    fn plug(&self) {
        for number in 0..8 {
            std::fs::create_dir_all(self.files().join(format!("uverbs{number}"))).unwrap();
        }
    }

    fn unplug(&self) {
        std::fs::remove_dir_all(self.files()).unwrap();
    }

    fn open(&self, library: &crate::sys::Library) -> Result<UdRail, String> {
        let source = Source {
            library: library.clone(),
            tree: Tree::at(self.tree.path()),
        };
        let config = VerbsConfig {
            send: 64,
            receive: 64,
            spare: 16,
            ..VerbsConfig::default()
        };
        let name = format!("verbs:{}:1:ud", self.name).parse().unwrap();
        UdRail::open_from(&name, &config, source).map_err(|error| error.to_string())
    }
}

/// A number that no other test has.
fn fresh() -> u8 {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn rail() -> (Bench, UdRail) {
    let number = fresh();
    let (bench, library) = Bench::new(Spec::new(&format!("model{number}"), [127, 0, 7, number]));
    let rail = bench.open(&library).unwrap();
    (bench, rail)
}

/// Two rails that know each other.
struct Two {
    benches: [Bench; 2],
    a: UdRail,
    b: UdRail,
    to_b: PeerIndex,
}

fn two() -> Two {
    let ((bench_a, mut a), (bench_b, mut b)) = (rail(), rail());
    let to_b = a.open(&b.address(), Incarnation(1)).unwrap();
    b.open(&a.address(), Incarnation(1)).unwrap();
    Two {
        benches: [bench_a, bench_b],
        a,
        b,
        to_b,
    }
}

fn ends() -> Ends<UdRail> {
    let ((bench_a, a), (bench_b, b)) = (rail(), rail());
    let lives = [a.incarnation(), b.incarnation()];
    let mut now = Time::ZERO;
    Ends::connect((a, lives[0]), (b, lives[1]), move |a, b| {
        let _ = (&bench_a, &bench_b);
        now += std::time::Duration::from_millis(1);
        a.progress(now);
        b.progress(now);
    })
}

mod contract {
    use super::ends;
    doorbell_sim::datagram_conformance!(ends);
}

impl Two {
    fn send(&mut self, bytes: &[u8]) {
        let (tx, _) = self.a.split();
        assert_eq!(tx.reserve(Channel::Data, 1), 1);
        tx.post(Channel::Data, self.to_b, bytes, Body::Bytes(&[]))
            .unwrap();
        tx.doorbell();
    }

    fn arrived(&mut self) -> Vec<Vec<u8>> {
        let (_, rx) = self.b.split();
        let count = rx.poll(Channel::Data, 16);
        (0..count)
            .map(|at| rx.frame(Channel::Data, at).unwrap().bytes.to_vec())
            .collect()
    }

    fn events(rail: &mut UdRail, at: u64) -> Vec<EventKind> {
        rail.progress(Time::ZERO + std::time::Duration::from_millis(at));
        std::iter::from_fn(|| rail.event())
            .map(|event| event.kind)
            .collect()
    }
}

#[test]
fn a_child_that_drops_its_copy_calls_nothing_and_the_parents_frames_go_on() {
    let mut two = two();
    two.send(b"before");
    let child = model::fork();
    if child == 0 {
        let before = model::calls();
        let Two { benches, a, b, .. } = two;
        // Their folders are the parent's.
        std::mem::forget(benches);
        drop((a, b));
        model::leave(model::calls() == before);
    }
    let is_well = loop {
        two.send(b"meanwhile");
        assert!(two.arrived().iter().any(|bytes| bytes == b"meanwhile"));
        if let Some(is_well) = model::has_ended(child) {
            break is_well;
        }
    };
    assert!(is_well, "the child called the library, or waited");
    two.send(b"afterwards");
    assert_eq!(two.arrived(), [b"afterwards"]);
}

#[test]
fn a_frame_names_its_sender_and_strangers_have_no_name() {
    let mut two = two();
    two.send(b"hello");
    let (_, rx) = two.b.split();
    assert_eq!(rx.poll(Channel::Data, 16), 1);
    assert_eq!(rx.frame(Channel::Data, 0).unwrap().from, Some(PeerIndex(0)));
    two.b.forget(PeerIndex(0));
    two.send(b"again");
    let (_, rx) = two.b.split();
    assert_eq!(rx.poll(Channel::Data, 16), 1);
    assert_eq!(rx.frame(Channel::Data, 0).unwrap().from, None);
    assert_eq!(two.b.stats().received.strangers, 1);
}

#[test]
fn sixteen_frames_are_one_doorbell() {
    let mut two = two();
    let (tx, _) = two.a.split();
    assert_eq!(tx.reserve(Channel::Data, 16), 16);
    for at in 0..16u8 {
        tx.post(Channel::Data, two.to_b, &[at; 100], Body::Bytes(&[]))
            .unwrap();
    }
    tx.doorbell();
    assert_eq!((two.a.stats().sent.sent, two.a.stats().sent.doorbells), (16, 1));
    assert_eq!(two.arrived().len(), 16);
}

#[test]
fn every_step_of_opening_that_is_refused_is_named_and_leaves_nothing() {
    let number = fresh();
    let name = format!("model{number}");
    let (bench, library) = Bench::new(Spec::new(&name, [127, 0, 7, number]));
    let mut refused = Vec::new();
    for count in 0.. {
        model::refuse_after(&name, Some(count));
        let opened = bench.open(&library);
        let (call, _) = model::outcome(&name);
        let Some(call) = call else {
            drop(opened.expect("nothing was refused"));
            break;
        };
        let said = opened.expect_err("a step was refused");
        assert!(
            said.contains(&format!("ibv_{call}")) && said.contains(&name),
            "{said}"
        );
        if call == "reg_mr" {
            assert!(said.contains("KiB of locked memory"), "{said}");
        }
        assert_eq!(model::outcome(&name).1, 0, "objects are left behind {call}");
        refused.push(call);
    }
    assert!(
        refused.len() > 12 && refused.contains(&"modify_qp"),
        "{refused:?}"
    );
    model::refuse_after(&name, None);
    assert_eq!(model::outcome(&name).1, 0);
}

#[test]
fn a_queue_pair_that_broke_works_again_under_its_number() {
    let mut two = two();
    let before = two.b.address();
    two.send(b"one");
    assert_eq!(two.arrived(), [b"one".to_vec()]);
    two.arrived();
    model::break_pairs(&two.benches[1].name);
    two.send(b"lost");
    assert_eq!(two.arrived(), Vec::<Vec<u8>>::new());
    assert_eq!(Two::events(&mut two.b, 100), []);
    assert_eq!((two.b.stats().resets, two.b.address()), (1, before));
    for round in 0..200u8 {
        two.send(&[round; 9]);
        assert_eq!(two.arrived(), [vec![round; 9]]);
    }
    model::break_pairs(&two.benches[0].name);
    two.send(b"lost");
    let (tx, _) = two.a.split();
    tx.reserve(Channel::Data, 64);
    Two::events(&mut two.a, 200);
    assert_eq!(two.a.stats().resets, 1);
    two.send(b"three");
    assert_eq!(two.arrived(), [b"three".to_vec()]);
    // What was flushed before it was set up again is not taken for what came after.
    for rail in [&mut two.a, &mut two.b] {
        Two::events(rail, 300);
        let stats = rail.stats();
        assert_eq!(
            (stats.resets, stats.sent.nonsense, stats.received.nonsense),
            (1, 0, 0)
        );
    }
}

#[test]
fn a_port_that_goes_and_comes_is_told_once_each() {
    let mut two = two();
    Two::events(&mut two.a, 1);
    model::set_state(&two.benches[0].name, numbers::PORT_DOWN);
    assert_eq!(Two::events(&mut two.a, 100), [EventKind::LinkDown]);
    assert_eq!(Two::events(&mut two.a, 200), []);
    model::set_state(&two.benches[0].name, numbers::PORT_ACTIVE);
    model::set_state(&two.benches[0].name, numbers::PORT_ACTIVE);
    assert_eq!(Two::events(&mut two.a, 1050), [], "it may flap");
    assert_eq!(Two::events(&mut two.a, 1150), [EventKind::LinkUp]);
    two.send(b"back");
    assert_eq!(two.arrived(), [b"back".to_vec()]);
}

#[test]
fn a_link_that_flaps_is_reported_twice_a_second_and_its_loss_at_once() {
    let mut two = two();
    Two::events(&mut two.a, 1);
    let mut reports: Vec<(u64, EventKind)> = Vec::new();
    for at in (400..10_400).step_by(10) {
        if at % 200 == 0 {
            let states = [numbers::PORT_DOWN, numbers::PORT_ACTIVE];
            model::set_state(&two.benches[0].name, states[(at / 200) as usize % 2]);
        }
        reports.extend(Two::events(&mut two.a, at).into_iter().map(|kind| (at, kind)));
        let is_down = at % 400 < 200;
        // It is reported at most 20 ms later.
        if is_down && at % 200 >= 40 {
            assert_eq!(reports.last().unwrap().1, EventKind::LinkDown, "at {at}");
        }
    }
    for (at, _) in &reports {
        let within = reports
            .iter()
            .filter(|(other, _)| (*at..at + 1000).contains(other));
        assert!(within.count() <= 2, "after {at} ms: {reports:?}");
    }
    assert!(reports.len() > 8, "{reports:?}");
    model::set_state(&two.benches[0].name, numbers::PORT_ACTIVE);
    Two::events(&mut two.a, 10_500);
    Two::events(&mut two.a, 11_600);
    assert!(two.a.is_link_up());
    two.send(b"back");
    assert_eq!(two.arrived(), [b"back".to_vec()]);
}

#[test]
fn a_partition_that_moves_is_followed_and_one_that_is_gone_is_named() {
    let mut two = two();
    let device = two.benches[0].name.clone();
    let before = two.a.address();
    Two::events(&mut two.a, 1);
    model::set_partitions(&device, &[0x8001, 0xffff]);
    assert_eq!(Two::events(&mut two.a, 100), []);
    assert_eq!(two.a.stats().resets, 1, "queue pairs name it by its place");
    two.send(b"moved");
    assert_eq!(two.arrived(), [b"moved".to_vec()]);
    model::set_partitions(&device, &[0x8001]);
    assert_eq!(Two::events(&mut two.a, 200), [EventKind::LinkDown]);
    assert!(two.a.reason().unwrap().contains("not in the partition 0xffff"));
    assert_eq!(two.a.address(), before, "what peers know does not change");
    model::set_partitions(&device, &[0, 0, 0xffff]);
    assert_eq!(Two::events(&mut two.a, 1300), [EventKind::LinkUp]);
    two.send(b"back");
    assert_eq!(two.arrived(), [b"back".to_vec()]);
}

#[test]
fn a_smaller_mtu_is_noticed_within_a_second_without_an_event() {
    let mut two = two();
    Two::events(&mut two.a, 1);
    model::set_mtu(&two.benches[0].name, 2);
    assert_eq!(Two::events(&mut two.a, 1010), [EventKind::LinkDown]);
    model::set_mtu(&two.benches[0].name, 3);
    assert_eq!(Two::events(&mut two.a, 2100), [EventKind::LinkUp]);
}

#[test]
fn an_address_that_is_taken_away_and_given_back_moves_nothing_else() {
    let mut two = two();
    let number = two.benches[0].name.trim_start_matches("model").parse().unwrap();
    Two::events(&mut two.a, 1);
    model::set_addresses(&two.benches[0].name, &[]);
    assert_eq!(Two::events(&mut two.a, 100), [EventKind::LinkDown]);
    // It is at another place of the table now.
    model::set_addresses(&two.benches[0].name, &[[127, 0, 9, 9], [127, 0, 7, number]]);
    assert_eq!(Two::events(&mut two.a, 1100), [EventKind::LinkUp]);
    two.send(b"back");
    assert_eq!(two.arrived(), [b"back".to_vec()]);
    assert_eq!(two.b.stats().received.strangers, 0, "by its old address");
}

#[test]
fn without_the_address_that_peers_are_reached_by_the_link_is_down_whatever_others_there_are() {
    let number = fresh();
    let mut spec = Spec::new(&format!("model{number}"), [127, 0, 7, number]);
    spec.addresses.push([127, 0, 8, number]);
    let (bench, library) = Bench::new(spec);
    let (mut a, (_bench, b)) = (bench.open(&library).unwrap(), rail());
    a.open(&b.address(), Incarnation(1)).unwrap();
    Two::events(&mut a, 1);
    model::set_addresses(&bench.name, &[[127, 0, 8, number]]);
    assert_eq!(Two::events(&mut a, 100), [EventKind::LinkDown]);
    model::set_addresses(&bench.name, &[[127, 0, 7, number], [127, 0, 8, number]]);
    assert_eq!(Two::events(&mut a, 1100), [EventKind::LinkUp]);
}

#[test]
fn a_device_that_fails_or_goes_ends_the_rail() {
    for goes in [false, true] {
        let mut two = two();
        Two::events(&mut two.a, 1);
        match goes {
            false => model::raise(&two.benches[0].name, numbers::EVENT_DEVICE_FATAL),
            true => two.benches[0].unplug(),
        }
        assert_eq!(Two::events(&mut two.a, 100), [EventKind::DeviceGone]);
        // The deletion of a device waits until nothing is left of it.
        assert_eq!(model::outcome(&two.benches[0].name).1, 0, "objects of the device");
        assert_eq!(Two::events(&mut two.a, 200), []);
        assert!(matches!(two.a.arm().unwrap(), Armed::Sleep(_)));
        two.a.disarm();
        two.send(b"nowhere");
        assert!(two.arrived().is_empty());
        let address = two.b.address();
        assert!(
            two.a
                .open(&address, Incarnation(1))
                .unwrap_err()
                .to_string()
                .contains("device is gone")
        );
        assert!(two.a.close(Time::ZERO, Time::ZERO));
    }
}

#[test]
fn completions_that_lie_are_counted_and_change_nothing() {
    let mut two = two();
    let mut lie = Wc::zeroed();
    for (id, length) in [(u64::MAX, 50), (64, 50), (3, 10), (4, 100_000), (0, u32::MAX)] {
        (lie.wr_id, lie.byte_len) = (id, length);
        model::lie(&two.benches[1].name, lie);
    }
    assert!(two.arrived().is_empty());
    // It looks at all queues of both channels.
    two.b.arm().unwrap();
    let stats = two.b.stats();
    assert_eq!(
        (stats.received.nonsense, stats.sent.nonsense),
        (10, 10),
        "{stats:?}"
    );
    two.send(b"true");
    assert_eq!(two.arrived(), [b"true".to_vec()]);
}

#[test]
fn addresses_that_are_none_are_refused() {
    let (_bench, mut rail) = rail();
    let own = rail.address();
    let bytes = own.native_of("verbs").unwrap().to_vec();
    for wrong in [vec![], bytes[..20].to_vec(), vec![0; 42], vec![0xff; 256]] {
        let refused = rail.open(&RailAddress::native("verbs", wrong), Incarnation(1));
        assert!(refused.is_err());
    }
    assert!(
        rail.open(&RailAddress::native("shm", bytes), Incarnation(1))
            .is_err()
    );
    let first = rail.open(&own, Incarnation(1)).unwrap();
    assert_eq!(rail.open(&own, Incarnation(2)).unwrap(), first, "known already");
}

#[test]
fn ports_that_cannot_be_used_are_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut Spec)| {
        let number = fresh();
        let mut spec = Spec::new(&format!("model{number}"), [127, 0, 7, number]);
        change(&mut spec);
        let (bench, library) = Bench::new(spec);
        bench.open(&library).unwrap_err()
    };
    assert!(refused(&|spec| spec.state = numbers::PORT_DOWN).contains("is down or has no carrier"));
    assert!(refused(&|spec| spec.addresses.clear()).contains("table of GIDs is empty"));
    assert!(refused(&|spec| spec.mtu = 9).contains("MTU number 9"));
    assert!(refused(&|spec| spec.transport = numbers::TRANSPORT_IWARP).contains("iWARP"));
    let (bench, library) = Bench::new(Spec::new("model-here", [127, 0, 8, 1]));
    let source = Source {
        library,
        tree: Tree::at(bench.tree.path()),
    };
    let name = "verbs:nosuch:1:ud".parse().unwrap();
    let said = UdRail::open_from(&name, &VerbsConfig::default(), source)
        .unwrap_err()
        .to_string();
    assert!(said.contains("model-here"), "{said}");
}

#[test]
fn a_sleeper_is_woken_by_a_frame() {
    let mut two = two();
    let armed = two.b.arm().unwrap();
    assert!(matches!(armed, Armed::Sleep(_)));
    let readable = |rail: &mut UdRail| match rail.arm().unwrap() {
        Armed::Ready => true,
        Armed::Sleep(_) => false,
    };
    two.send(b"wake");
    assert!(readable(&mut two.b));
    two.b.disarm();
    assert_eq!(two.arrived(), [b"wake".to_vec()]);
    assert!(!readable(&mut two.b));
}

#[test]
fn a_machine_without_devices_loads_nothing() {
    if Path::new("/sys/class/infiniband_verbs")
        .read_dir()
        .is_ok_and(|mut files| files.next().is_some())
    {
        return doorbell_testing::skipped(
            "a_machine_without_devices_loads_nothing",
            "this machine has RDMA devices",
        );
    }
    let error = UdRail::open(&"verbs:mlx5_0:1:ud".parse().unwrap(), &VerbsConfig::default()).unwrap_err();
    assert!(error.to_string().contains("no RDMA device"), "{error}");
}

#[test]
fn queues_that_the_device_does_not_have_are_refused_with_its_limit() {
    let number = fresh();
    let (bench, library) = Bench::new(Spec::new(&format!("model{number}"), [127, 0, 7, number]));
    let open = |send: usize, receive: usize| {
        let source = Source {
            library: library.clone(),
            tree: Tree::at(bench.tree.path()),
        };
        let config = VerbsConfig {
            send,
            receive,
            ..VerbsConfig::default()
        };
        let name = format!("verbs:{}:1:ud", bench.name).parse().unwrap();
        UdRail::open_from(&name, &config, source).map_err(|error| error.to_string())
    };
    // The model's queues have 8,192 entries.
    for (send, receive, setting) in [(16_384, 64, "verbs.send"), (64, 16_384, "verbs.receive")] {
        let refused = open(send, receive).unwrap_err();
        let said = format!(
            "{setting} is 16384, and queues of {} have 8192 entries at most",
            bench.name
        );
        assert!(refused.contains(&said), "{refused}");
        assert!(refused.contains("from 64 to 8192"), "{refused}");
    }
    assert!(open(100, 64).unwrap_err().contains("verbs.send is 100"));
    let [wanted, granted] = open(128, 64).unwrap().queues();
    assert_eq!((wanted.sends, wanted.receives, wanted.inline), (128, 64, 128));
    assert!(granted.sends >= 128 && granted.receives >= 64, "{granted:?}");
}

#[test]
fn a_datagram_for_nobody_has_a_way_and_reaches_no_process() {
    let mut two = two();
    let unused = two.a.unused_at([127, 0, 0, 1].into()).unwrap();
    let peer = two.a.open(&unused, Incarnation(1)).unwrap();
    assert!(peer != two.to_b && two.a.is_resolved(peer));
    let (tx, _) = two.a.split();
    assert_eq!(tx.reserve(Channel::Data, 1), 1);
    tx.post(Channel::Data, peer, b"unused", Body::Bytes(&[])).unwrap();
    tx.doorbell();
    assert!(two.arrived().is_empty());
}
