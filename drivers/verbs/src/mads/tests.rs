//! Ports over the model of the library.

use super::*;
use crate::sys::model::{self, Spec};
use crate::sys::{Library, Wc};

struct Bench {
    name: String,
    library: Library,
}

fn tree() -> Tree {
    ports::fake::everything()
}

impl Bench {
    fn of(spec: Spec) -> Self {
        let name = spec.name.clone();
        let library = model::library(spec);
        Self { name, library }
    }

    fn new(number: u8) -> Self {
        Self::of(Spec::new(&format!("mads{number}"), [127, 0, 11, number]))
    }

    fn try_open(&self) -> Result<MadPort, MadError> {
        let place = MadPlace::Port {
            device: self.name.clone(),
            port: 1,
            partition: 0xffff,
        };
        let source = Source {
            library: self.library.clone(),
            tree: tree(),
        };
        MadPort::open_from(&place, 64, source)
    }

    fn open(&self) -> MadPort {
        self.try_open().unwrap()
    }
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(1 + millis)
}

fn mapped(address: [u8; 4]) -> Gid {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&address);
    Gid(gid)
}

/// A group as hosts of Ethernet have it, of one test: all devices of the model are on one network.
fn roce(test: u8) -> Gid {
    mapped([239, 255, 7, test])
}

/// A group of a subnet.
const SUBNET: Gid = Gid([0xff, 0x15, 0x40, 1, 0xff, 0xff, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0]);

fn to(port: &MadPort, gid: Gid, lid: u16, pair: u32) -> MadDestination {
    MadDestination {
        gid,
        from: port.gids().next().unwrap(),
        lid,
        pair,
        service_level: 0,
        path_bits: 0,
        rate: 0,
        flow_label: 0,
        hop_limit: 1,
        traffic_class: 0,
    }
}

fn back(port: &MadPort, from: &Received) -> MadDestination {
    to(port, from.gid.unwrap(), from.lid, from.pair)
}

fn all(port: &mut MadPort, now: Time) -> Vec<Received> {
    while port.turn(now) > 0 {}
    std::iter::from_fn(|| port.next_received()).collect()
}

#[test]
fn a_question_goes_to_the_group_and_its_answer_to_the_asker() {
    let (one, two, other) = (Bench::new(1), Bench::new(2), Bench::new(3));
    let (mut a, mut b, mut c) = (one.open(), two.open(), other.open());
    let group = roce(1);
    for port in [&mut a, &mut b] {
        port.attach(group, 0).unwrap();
        port.attach(group, 0).unwrap();
    }
    let question = to(&a, group, 0, GROUP_PAIR);
    a.send(at(0), &question, &[7; MAD]).unwrap();
    let [heard] = all(&mut b, at(0)).try_into().unwrap();
    assert_eq!(
        (heard.gid, heard.to),
        (Some(mapped([127, 0, 11, 1])), Some(group))
    );
    assert_eq!(
        (heard.pair, heard.lid, &heard.mad[..]),
        (a.number(), 0, &[7; MAD][..])
    );
    assert_eq!(all(&mut c, at(0)), [], "it is not in the group");
    assert_eq!(all(&mut a, at(0))[0].pair, a.number(), "its own comes back");
    let answer = back(&b, &heard);
    b.send(at(1), &answer, &[8; MAD]).unwrap();
    let [heard] = all(&mut a, at(1)).try_into().unwrap();
    assert_eq!((heard.pair, heard.to), (b.number(), a.gids().next()));
    b.detach(group);
    a.send(at(2), &question, &[9; MAD]).unwrap();
    assert_eq!(all(&mut b, at(2)), []);
    assert_eq!((a.counts().sent, b.counts().sent, a.counts().unsent), (2, 1, 0));
    drop((a, b, c));
    for bench in [one, two, other] {
        assert_eq!(
            model::outcome(&bench.name).1,
            0,
            "{}: all is given back",
            bench.name
        );
        assert_eq!(model::handles(&bench.name), 0);
    }
}

#[test]
fn on_infiniband_lids_and_the_group_of_the_subnet_are_used() {
    let of = |number: u8, lid: u16| {
        let spec = Spec {
            lid,
            ..Spec::new(&format!("mads{number}"), [127, 0, 11, number])
        };
        Bench::of(spec)
    };
    let (one, two) = (of(11, 5), of(12, 6));
    let (mut a, mut b) = (one.open(), two.open());
    let refused = a.attach(SUBNET, 0).unwrap_err().to_string();
    assert!(
        refused.contains("cannot attach the group ff15:4001:ffff:3:400::"),
        "{refused}"
    );
    a.attach(SUBNET, 0xc002).unwrap();
    b.attach(SUBNET, 0xc002).unwrap();
    a.send(at(0), &to(&a, SUBNET, 0xc002, GROUP_PAIR), &[7; MAD])
        .unwrap();
    let [heard] = all(&mut b, at(0)).try_into().unwrap();
    assert_eq!((heard.lid, heard.to), (5, Some(SUBNET)));
    assert_eq!(heard.gid, a.gids().next());
    let answer = back(&b, &heard);
    b.send(at(0), &answer, &[8; MAD]).unwrap();
    let [_own, heard] = all(&mut a, at(0)).try_into().unwrap();
    assert_eq!((heard.lid, heard.pair), (6, b.number()));
    // The group has another LID after another manager has made it.
    a.attach(SUBNET, 0xc003).unwrap();
    assert_eq!(model::attached(&one.name), 1);
    for event in [
        numbers::EVENT_CLIENT_REREGISTER,
        numbers::EVENT_SM_CHANGE,
        numbers::EVENT_PORT_ACTIVE,
    ] {
        model::raise_of_port(&one.name, event);
        a.turn(at(1));
        assert_eq!((a.next_event(), a.next_event()), (Some(MadEvent::Renew), None));
    }
}

#[test]
fn without_the_privilege_the_error_says_what_to_do() {
    let bench = Bench::of(Spec {
        is_privileged: false,
        ..Spec::new("mads21", [127, 0, 11, 21])
    });
    let refused = bench.try_open().unwrap_err();
    assert!(matches!(refused, MadError::Privilege(_)), "{refused:?}");
    let words = refused.to_string();
    for part in [
        "mads21 port 1",
        "0x80010000",
        "CAP_NET_RAW",
        "rdma system set privileged-qkey on",
    ] {
        assert!(words.contains(part), "{words}");
    }
    assert_eq!(model::outcome("mads21").1, 0, "all is given back");
}

#[test]
fn every_step_that_is_refused_gives_everything_back() {
    let bench = Bench::new(22);
    let mut steps = Vec::new();
    for count in 0.. {
        model::refuse_after(&bench.name, Some(count));
        match bench.try_open() {
            Ok(_) => break,
            Err(refused) => steps.push(refused.to_string()),
        }
        assert_eq!(model::outcome(&bench.name).1, 0, "{steps:?}");
    }
    model::refuse_after(&bench.name, None);
    for step in [
        "ibv_open_device",
        "ibv_alloc_pd",
        "ibv_reg_mr",
        "ibv_create_qp",
        "ibv_modify_qp",
    ] {
        assert!(
            steps.iter().any(|words| words.contains(step)),
            "{step}: {steps:?}"
        );
    }
    assert!(
        steps.iter().any(|words| words.contains("KiB of locked memory")),
        "{steps:?}"
    );
    let mut port = bench.open();
    model::refuse_after(&bench.name, Some(0));
    let refused = port.attach(roce(2), 0).unwrap_err().to_string();
    assert!(refused.contains("ibv_attach_mcast"), "{refused}");
    model::refuse_after(&bench.name, None);
    port.attach(roce(2), 0).unwrap();
}

#[test]
fn a_queue_pair_in_error_is_set_up_again_in_its_groups() {
    let (one, two) = (Bench::new(31), Bench::new(32));
    let (mut a, mut b) = (one.open(), two.open());
    let group = mapped([239, 255, 7, 31]);
    b.attach(group, 0).unwrap();
    let (number, question) = (b.number(), to(&a, group, 0, GROUP_PAIR));
    for round in 0..3 {
        model::break_pairs(&two.name);
        let now = at(20 * round);
        b.turn(now);
        b.turn(now);
        assert_eq!(b.counts().resets, 1 + round);
        a.send(now, &question, &[7; MAD]).unwrap();
        assert_eq!(all(&mut b, now).len(), 1, "round {round}");
    }
    assert_eq!((b.number(), model::attached(&two.name)), (number, 1));
    // An event about it, before any completion shows that it has failed.
    model::raise(&two.name, numbers::EVENT_QP_FATAL);
    b.turn(at(200));
    assert_eq!(b.counts().resets, 4);
    // One that fails again and again is set up at intervals.
    model::break_pairs(&two.name);
    b.turn(at(201));
    assert_eq!((b.counts().resets, b.next_deadline()), (4, at(210)));
    b.turn(at(210));
    assert_eq!(b.counts().resets, 5);
    model::raise(&two.name, numbers::EVENT_CQ_ERR);
    b.turn(at(220));
    assert_eq!(b.next_event(), Some(MadEvent::Gone));
}

#[test]
fn what_is_no_mad_and_completions_that_lie_are_counted() {
    let (one, two) = (Bench::new(41), Bench::new(42));
    let (mut a, mut b) = (one.open(), two.open());
    let gid = b.gids().next().unwrap();
    let straight = to(&a, gid, 0, b.number());
    a.send(at(0), &straight, &[7; MAD]).unwrap();
    all(&mut b, at(0));
    // Datagrams of other lengths, over the handle that there is.
    for length in [0, 1, MAD - 1] {
        assert!(a.mail.send(0, (b.number(), QKEY), &[7; MAD][..length]));
    }
    assert_eq!(all(&mut b, at(0)), []);
    assert_eq!(b.counts().length, 3);
    let mut lie = Wc::zeroed();
    for (id, length) in [(1 << 40, 296), (u64::MAX, 296)] {
        (lie.wr_id, lie.byte_len) = (id, length);
        model::lie(&two.name, lie);
    }
    assert_eq!(all(&mut b, at(0)), []);
    // The library gives a number of completions that there is no room for.
    model::answer_polls(&two.name, Some(100));
    b.turn(at(0));
    model::answer_polls(&two.name, None);
    b.turn(at(20));
    a.send(at(20), &straight, &[9; MAD]).unwrap();
    assert_eq!(all(&mut b, at(20)).len(), 1, "it goes on");
    assert_eq!(b.counts().resets, 1);
}

#[test]
fn handles_are_made_once_and_their_number_is_bounded() {
    let (one, two) = (Bench::new(51), Bench::new(52));
    let (mut a, b) = (one.open(), two.open());
    let gid = b.gids().next().unwrap();
    for _ in 0..20 {
        a.send(at(0), &to(&a, gid, 0, b.number()), &[7; MAD]).unwrap();
        a.send(at(0), &to(&a, gid, 0, 77), &[7; MAD]).unwrap();
    }
    assert_eq!(model::handles(&one.name), 1);
    a.send(at(11_000), &to(&a, gid, 0, b.number()), &[7; MAD])
        .unwrap();
    assert_eq!(
        model::handles(&one.name),
        2,
        "an old one is made again, and kept for a while"
    );
    for label in 0..3000 {
        let to = MadDestination {
            flow_label: label,
            ..to(&a, gid, 0, b.number())
        };
        a.send(at(20_000 + 10 * u64::from(label)), &to, &[7; MAD])
            .unwrap();
        a.turn(at(20_000));
    }
    assert!(
        model::handles(&one.name) <= 1024 + 201,
        "{}",
        model::handles(&one.name)
    );
}

#[test]
fn a_flood_of_queries_has_each_neighbour_looked_up_once_in_an_interval() {
    let bench = Bench::new(53);
    let mut port = bench.open();
    let neighbour = |number: u8| mapped([203, 0, 113, 1 + number]);
    let mut refused = 0;
    for count in 0..2000 {
        let to = to(&port, neighbour((count % 8) as u8), 0, 7);
        refused += usize::from(port.send(at(0), &to, &[7; MAD]).is_err());
    }
    assert_eq!(port.neighbours.lookups, 8);
    // Of one neighbour, only some wait: the others find room.
    assert_eq!((refused, port.waiting.len()), (2000 - 8 * 16, 8 * 16));
    let other = to(&port, neighbour(99), 0, 7);
    port.send(at(0), &other, &[7; MAD]).unwrap();
    for millis in 1..=100 {
        port.turn(at(millis));
        port.turn(at(millis));
    }
    // After 10, 30 and 70 ms.
    assert_eq!(port.neighbours.lookups, 9 * 4);
    assert_eq!(port.counts().unresolved, 0);
    port.turn(at(1000));
    assert_eq!((port.counts().unresolved, port.waiting.len()), (8 * 16 + 1, 0));
}

#[test]
fn a_flood_from_everywhere_leaves_room_for_the_latest_and_has_a_bound() {
    let bench = Bench::new(54);
    let mut port = bench.open();
    for number in 0..2000_u16 {
        let [high, low] = number.to_be_bytes();
        let to = to(&port, mapped([100, 64, high, low]), 0, 7);
        port.send(at(0), &to, &[7; MAD]).unwrap();
    }
    let last = mapped([100, 64, 7, 207]);
    assert_eq!(port.waiting.back().map(|waiting| waiting.to.gid), Some(last));
    let counts = (port.waiting.len(), port.counts().unresolved as usize);
    assert_eq!(counts, (WAITING_MAX, 2000 - WAITING_MAX));
    // As many neighbours as are remembered were looked up, and not once more.
    assert_eq!(port.neighbours.lookups, 1024);
}

#[test]
fn a_turn_takes_no_more_than_so_many_datagrams() {
    let (one, two) = (Bench::new(57), Bench::new(58));
    let (mut a, mut b) = (one.open(), two.open());
    a.turn(at(0));
    b.turn(at(0));
    let to = to(&a, b.gids().next().unwrap(), 0, b.number());
    let send = |a: &mut MadPort| (0..60).for_each(|_| a.send(at(0), &to, &[7; MAD]).unwrap());
    send(&mut a);
    assert_eq!(b.turn(at(0)), 60);
    // What has come is not taken.
    send(&mut a);
    assert_eq!((b.turn(at(0)), b.received.len()), (4, TURN));
    assert_eq!((b.turn(at(0)), b.received.len()), (0, TURN));
    assert_eq!(all(&mut b, at(0)).len(), TURN);
    assert_eq!(all(&mut b, at(0)).len(), 56);
}

#[test]
fn handles_that_are_not_used_any_more_have_a_bound() {
    let (one, two) = (Bench::new(55), Bench::new(56));
    let (mut a, b) = (one.open(), two.open());
    let gid = b.gids().next().unwrap();
    for label in 0..5000 {
        let to = MadDestination {
            flow_label: label,
            ..to(&a, gid, 0, b.number())
        };
        let _ = a.send(at(0), &to, &[7; MAD]);
        a.turn(at(0));
    }
    assert!(
        model::handles(&one.name) <= 2 * 1024,
        "{}",
        model::handles(&one.name)
    );
}

#[test]
fn a_gid_that_the_port_does_not_have_sends_nothing() {
    let bench = Bench::new(61);
    let mut port = bench.open();
    let foreign = MadDestination {
        from: mapped([127, 0, 99, 1]),
        ..to(&port, roce(3), 0, GROUP_PAIR)
    };
    let refused = port.send(at(0), &foreign, &[0; MAD]).unwrap_err().to_string();
    assert!(
        refused.contains("does not have the GID ::ffff:127.0.99.1"),
        "{refused}"
    );
    // It gets that address, and the event about it.
    model::set_addresses(&bench.name, &[[127, 0, 99, 1]]);
    port.turn(at(1));
    assert_eq!(
        (port.next_event(), port.next_event()),
        (Some(MadEvent::Renew), None)
    );
    port.send(at(1), &foreign, &[0; MAD]).unwrap();
    model::raise(&bench.name, numbers::EVENT_DEVICE_FATAL);
    port.turn(at(2));
    assert_eq!((port.next_event(), port.turn(at(3))), (Some(MadEvent::Gone), 0));
}

#[test]
fn a_device_that_is_taken_away_without_an_event_is_missed_within_a_second() {
    let bench = Bench::new(62);
    let fake = ports::fake::Fake::new();
    fake.plug();
    let place = MadPlace::Port {
        device: bench.name.clone(),
        port: 1,
        partition: 0xffff,
    };
    let source = Source {
        library: bench.library.clone(),
        tree: fake.tree(),
    };
    let mut port = MadPort::open_from(&place, 8, source).unwrap();
    port.turn(at(0));
    fake.unplug();
    assert_eq!((port.turn(at(1)), port.next_deadline()), (0, at(1000)));
    port.turn(at(1000));
    assert_eq!(port.next_event(), Some(MadEvent::Gone));
    drop(port);
    assert_eq!(model::outcome(&bench.name).1, 0);
}

#[test]
fn an_interface_without_a_device_is_named() {
    let bench = Bench::new(71);
    let source = Source {
        library: bench.library.clone(),
        tree: tree(),
    };
    let place = MadPlace::Interface("nosuch0".to_owned());
    let refused = MadPort::open_from(&place, 8, source).unwrap_err().to_string();
    assert!(
        refused.contains("no RDMA device stands on the interface nosuch0"),
        "{refused}"
    );
    let fake = ports::fake::Fake::rxe("eth0");
    fake.device("mlx5_0", 1, &[1]);
    fake.file("class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/3", "eth1.7\n");
    let tree = fake.tree();
    assert_eq!(tree.port_on("eth0"), Some(("rxe0".to_owned(), 1)));
    assert_eq!(tree.port_on("eth1.7"), Some(("mlx5_0".to_owned(), 1)));
    assert_eq!(tree.port_on("eth1"), None);
}
