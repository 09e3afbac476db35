//! Both ends find the same pairs, and no other matching is better.

use proptest::prelude::*;

use super::*;
use crate::gid;

fn rail(at: usize, text: &str, prefix: u8) -> Offer {
    let ip: IpAddr = text.parse().unwrap();
    Offer {
        rail: format!("udp:e{at}").parse().unwrap(),
        wire: "udp".to_owned(),
        address: RailAddress::inet("udp", (ip, 56080).into()),
        place: Place {
            interface: format!("e{at}"),
            network: 1,
            prefix,
            mtu: 1500,
            takes: 1500,
            kind: if ip.is_loopback() {
                Kind::Loopback
            } else {
                Kind::Plain
            },
            port: None,
        },
    }
}

fn memory() -> Offer {
    Offer {
        rail: "shm".parse().unwrap(),
        wire: "shm".to_owned(),
        address: RailAddress::native("shm", [1]),
        place: Place::default(),
    }
}

fn rails(texts: &[&str]) -> Vec<Offer> {
    let one = |(at, text): (usize, &&str)| {
        let (ip, prefix) = text.split_once('/').unwrap();
        rail(at, ip, prefix.parse().unwrap())
    };
    texts.iter().enumerate().map(one).collect()
}

fn found(lower: &[Offer], higher: &[Offer]) -> Vec<(usize, usize, Quality)> {
    let side = |host, rails| Side { host, rails };
    let pairs = pairs(side("a", lower), side("b", higher));
    pairs
        .iter()
        .map(|pair| (pair.lower, pair.higher, pair.quality))
        .collect()
}

use Quality::{Direct, LinkLocal, Public, Routed, SameInterface, SameNetwork};

#[test]
fn networks_decide_and_not_the_order_of_the_lists() {
    let a = rails(&["10.1.0.1/24", "10.2.0.1/24"]);
    assert_eq!(
        found(&a, &rails(&["10.1.0.2/24", "10.2.0.2/24"])),
        [(0, 0, SameNetwork), (1, 1, SameNetwork)]
    );
    assert_eq!(
        found(&a, &rails(&["10.2.0.2/24", "10.1.0.2/24"])),
        [(0, 1, SameNetwork), (1, 0, SameNetwork)]
    );
    // Among equals, the lists decide.
    let one_network = rails(&["10.1.0.2/16", "10.1.0.3/16"]);
    assert_eq!(
        found(&rails(&["10.1.0.4/16", "10.1.0.5/16"]), &one_network),
        [(0, 0, SameNetwork), (1, 1, SameNetwork)]
    );
    // A network is one where both ends have it.
    assert_eq!(
        found(&rails(&["10.1.0.1/16"]), &rails(&["10.1.9.1/24"])),
        [(0, 0, Routed)]
    );
}

#[test]
fn lopsided_lists_leave_the_rail_that_has_the_fewest_friends_its_partner() {
    // Greedy by the first list would give 8.8.8.8 to the first rail, and leave the second one without.
    let (two, three) = (
        rails(&["8.8.4.4/24", "fd00::1/64"]),
        rails(&["8.8.8.8/24", "9.9.9.9/24", "fd00::2/64"]),
    );
    assert_eq!(found(&two, &three), [(0, 0, Public), (1, 2, SameNetwork)]);
    assert_eq!(found(&three, &two), [(0, 0, Public), (2, 1, SameNetwork)]);
    // The third rail of one side finds no partner.
    let (two, three) = (
        rails(&["10.1.0.1/24", "10.2.0.1/24"]),
        rails(&["10.3.0.2/24", "10.2.0.2/24", "10.1.0.2/24"]),
    );
    assert_eq!(found(&two, &three), [(0, 2, SameNetwork), (1, 1, SameNetwork)]);
    assert_eq!(found(&three, &two), [(1, 1, SameNetwork), (2, 0, SameNetwork)]);
    // More pairs before better pairs: a rail of only one friend takes it from one that has another.
    let (left, right) = (
        rails(&["fe80::1/64", "10.1.0.1/24"]),
        rails(&["10.1.0.2/24", "fe80::2/64", "fe80::3/64"]),
    );
    assert_eq!(found(&left, &right), [(0, 1, LinkLocal), (1, 0, SameNetwork)]);
}

#[test]
fn a_single_rail_has_one_partner() {
    let (two, one) = (rails(&["10.3.0.1/24", "10.2.0.1/24"]), rails(&["10.2.0.2/24"]));
    assert_eq!(found(&two, &one), [(1, 0, SameNetwork)]);
    assert_eq!(found(&one, &two), [(0, 1, SameNetwork)]);
    assert_eq!(found(&[], &one), []);
    assert_eq!(found(&two, &[]), []);
}

#[test]
fn what_never_reaches_is_never_paired() {
    let never =
        |a: &str, b: &str, same_host| quality(&rails(&[a])[0], &rails(&[b])[0], same_host).unwrap_err();
    assert_eq!(never("10.1.0.1/24", "fd00::1/64", false), Never::OtherFamily);
    assert_eq!(never("127.0.0.1/8", "10.1.0.1/24", false), Never::Loopback);
    assert_eq!(never("127.0.0.1/8", "127.0.0.1/8", false), Never::OtherHost);
    assert_eq!(never("fe80::1/64", "fd00::1/64", false), Never::Scope);
    assert_eq!(never("172.17.0.1/16", "172.17.0.1/16", false), Never::SameAddress);
    assert_eq!(never("0.0.0.0/0", "10.1.0.1/24", false), Never::NoHost);
    assert_eq!(
        quality(&memory(), &rails(&["10.1.0.1/24"])[0], true),
        Err(Never::OtherWire)
    );
    assert_eq!(quality(&memory(), &memory(), false), Err(Never::OtherHost));
    // IPv6 alone against both.
    assert_eq!(
        found(&rails(&["fd00::1/64"]), &rails(&["10.1.0.2/24", "fd00::2/64"])),
        [(0, 1, SameNetwork)]
    );
}

#[test]
fn on_one_host_an_interface_reaches_only_itself() {
    let a = rails(&["10.1.0.1/24", "10.2.0.1/24", "127.0.0.1/8"]);
    let all = [a.clone(), vec![memory()]].concat();
    let side = Side {
        host: "a",
        rails: &all,
    };
    let here: Vec<_> = pairs(side, side)
        .iter()
        .map(|pair| (pair.lower, pair.higher, pair.quality))
        .collect();
    assert_eq!(
        here,
        [
            (0, 0, SameInterface),
            (1, 1, SameInterface),
            (2, 2, SameInterface),
            (3, 3, Direct)
        ]
    );
    let mut other = a[1].clone();
    assert_eq!(quality(&a[0], &other, true), Err(Never::OtherInterface));
    // Another address of the same interface, and another network namespace of the host.
    other.place.interface = "e0".to_owned();
    assert_eq!(quality(&a[0], &other, true), Ok(SameInterface));
    other.place.network = 2;
    assert_eq!(quality(&a[0], &other, true), Ok(Routed));
}

#[test]
fn plain_links_and_one_mtu_break_ties() {
    let a = rails(&["10.1.0.1/16"]);
    let mut b = rails(&["10.1.0.2/16", "10.1.0.3/16", "10.1.0.4/16"]);
    b[0].place.kind = Kind::Bridge;
    b[1].place.mtu = 9000;
    assert_eq!(found(&a, &b), [(0, 2, SameNetwork)]);
    b.truncate(2);
    assert_eq!(found(&a, &b), [(0, 1, SameNetwork)]);
}

#[test]
fn as_many_rails_as_there_may_be_are_no_trouble() {
    let many: Vec<Offer> = (0..2 * RAILS_MAX)
        .map(|at| rail(at, &format!("10.1.0.{}", at + 1), 16))
        .collect();
    let mut others = many.clone();
    others.iter_mut().for_each(|one| one.place.mtu = 9000);
    let more = rails(&["10.1.1.1/16"]);
    // The same addresses are different hosts' here: each of them has one that it cannot have.
    let pairs = found(&many, &others);
    assert_eq!(pairs.len(), RAILS_MAX);
    assert_eq!((pairs[0].1, pairs[1].1), (1, 0));
    assert_eq!(found(&many, &more).len(), 1);
}

/// What the search takes: looks at a weight. It is made for each peer of a job, at the start.
#[test]
fn the_search_is_cubic_and_no_more() {
    const BOUND: usize = 2 * RAILS_MAX.pow(3);
    let noise = |row: usize, column: usize| (row * 7919 + column * 104_729) as i64 % 1009;
    type Weight<'a> = &'a dyn Fn(usize, usize) -> i64;
    let weights: [(&str, Weight<'_>); 5] = [
        ("all alike", &|_, _| 1),
        ("none", &|_, _| 0),
        ("noise", &noise),
        ("few kinds", &|row, column| noise(row, column) % 3),
        ("against the order", &|row, column| (row * column) as i64),
    ];
    for (name, weight) in weights {
        let looks = std::cell::Cell::new(0);
        let counted = |row: usize, column: usize| {
            looks.set(looks.get() + 1);
            weight(row, column)
        };
        first_of_the_heaviest(RAILS_MAX, RAILS_MAX, counted);
        println!("{name}: {} looks", looks.get());
        assert!(looks.get() <= BOUND, "{name}: {} looks", looks.get());
    }
}

/// The best that any matching reaches, by trying all: the weight.
fn by_trying(weights: &[Vec<i64>], row: usize, taken: &mut Vec<bool>) -> i64 {
    let Some(columns) = weights.get(row) else {
        return 0;
    };
    let mut best = by_trying(weights, row + 1, taken);
    for column in 0..columns.len() {
        if columns[column] > 0 && !taken[column] {
            taken[column] = true;
            best = best.max(columns[column] + by_trying(weights, row + 1, taken));
            taken[column] = false;
        }
    }
    best
}

/// All matchings of the best weight, as lists of choices; the first of them by the rule of ties.
fn first_by_trying(weights: &[Vec<i64>]) -> Vec<Option<usize>> {
    fn all(weights: &[Vec<i64>], chosen: &mut Vec<Option<usize>>, each: &mut impl FnMut(&[Option<usize>])) {
        let Some(row) = weights.get(chosen.len()) else {
            each(chosen);
            return;
        };
        for column in 0..=row.len() {
            let choice = (column < row.len()).then_some(column);
            let possible = choice.is_none_or(|column| row[column] > 0 && !chosen.contains(&Some(column)));
            if possible {
                chosen.push(choice);
                all(weights, chosen, each);
                chosen.pop();
            }
        }
    }
    let mut best = (-1, Vec::new());
    all(weights, &mut Vec::new(), &mut |chosen| {
        let weight = chosen
            .iter()
            .zip(weights)
            .filter_map(|(choice, row)| Some(row[(*choice)?]))
            .sum();
        // They come in the order of the rule: the first of a weight stays.
        if weight > best.0 {
            best = (weight, chosen.to_vec());
        }
    });
    best.1
}

fn any_rail() -> impl Strategy<Value = Offer> {
    let address = prop_oneof![
        (0u8..3, 1u8..6).prop_map(|(net, host)| format!("10.{net}.0.{host}")),
        (8u8..10, 1u8..4).prop_map(|(net, host)| format!("{net}.{net}.{net}.{host}")),
        (0u8..2, 1u8..6).prop_map(|(net, host)| format!("fd0{net}::{host}")),
        (1u8..6).prop_map(|host| format!("fe80::{host}")),
        Just("127.0.0.1".to_owned()),
    ];
    let kind = prop_oneof![Just(Kind::Plain), Just(Kind::Plain), Just(Kind::Virtual)];
    (
        address,
        prop_oneof![Just(16u8), Just(24), Just(64)],
        prop_oneof![Just(1500usize), Just(9000)],
        kind,
        0usize..3,
    )
        .prop_map(|(address, prefix, mtu, kind, at)| {
            let mut one = rail(at, &address, prefix);
            (one.place.mtu, one.place.kind) = (mtu, kind);
            one
        })
}

fn any_rails() -> impl Strategy<Value = Vec<Offer>> {
    let one = prop_oneof![4 => any_rail(), 1 => Just(memory())];
    prop::collection::vec(one, 0..5)
}

proptest! {
    /// The heaviest matching is the heaviest, and the first one of them.
    #[test]
    fn no_matching_is_better(rows in 0usize..5, columns in 0usize..5, seed in prop::collection::vec(0i64..4, 16)) {
        let weights: Vec<Vec<i64>> = (0..rows).map(|row| (0..columns).map(|column| seed[row * 4 + column]).collect()).collect();
        let first = first_of_the_heaviest(rows, columns, |row, column| weights[row][column]);
        let weighs = |(row, column): (&Vec<i64>, &Option<usize>)| column.map_or(0, |column| row[column]);
        let best: i64 = weights.iter().zip(&first).map(weighs).sum();
        prop_assert_eq!(best, by_trying(&weights, 0, &mut vec![false; columns]));
        prop_assert_eq!(first, first_by_trying(&weights));
    }

    /// Whatever was published: no rail is in two pairs, no pair is one that never works, no larger matching
    /// exists, and what could be paired in addition is not there.
    #[test]
    fn pairs_are_as_many_as_can_be(lower in any_rails(), higher in any_rails(), same_host in any::<bool>()) {
        let hosts = if same_host { ["a", "a"] } else { ["a", "b"] };
        let found = pairs(Side { host: hosts[0], rails: &lower }, Side { host: hosts[1], rails: &higher });
        let reaches = |a: usize, b: usize| quality(&lower[a], &higher[b], same_host);
        for (number, pair) in found.iter().enumerate() {
            prop_assert_eq!(reaches(pair.lower, pair.higher), Ok(pair.quality));
            prop_assert!(found[..number].iter().all(|other| other.lower < pair.lower && other.higher != pair.higher));
        }
        let size: Vec<Vec<i64>> = (0..lower.len()).map(|a| (0..higher.len()).map(|b| i64::from(reaches(a, b).is_ok())).collect()).collect();
        prop_assert_eq!(found.len() as i64, by_trying(&size, 0, &mut vec![false; higher.len()]));
    }

    /// A rail's quality is the same from both ends.
    #[test]
    fn both_ends_judge_alike(a in any_rail(), b in any_rail(), same_host in any::<bool>()) {
        prop_assert_eq!(quality(&a, &b, same_host), quality(&b, &a, same_host));
        // And what was published survives its way.
        let text = serde_json::to_string(&a).unwrap();
        prop_assert_eq!(serde_json::from_str::<Offer>(&text).unwrap(), a);
    }
}

/// A rail over a RoCE port with these GIDs, or an InfiniBand port where they are IPv6.
fn port(interface: &str, network: u64, gids: &[&str]) -> Offer {
    let published = |text: &&str| {
        let (ip, prefix) = text.split_once('/').unwrap();
        let (gid, kind) = match ip.parse().unwrap() {
            IpAddr::V4(four) => (four.to_ipv6_mapped(), gid::Kind::RoceV2),
            IpAddr::V6(six) => (six, gid::Kind::InfiniBand),
        };
        gid::Published {
            gid: gid.into(),
            kind,
            prefix: prefix.parse().unwrap(),
        }
    };
    let gids: Vec<gid::Published> = gids.iter().map(published).collect();
    let link = match gids.first().map(|first| first.kind) {
        Some(gid::Kind::InfiniBand) => Link::InfiniBand,
        _ => Link::Ethernet,
    };
    Offer {
        rail: "verbs:mlx5_0:1:ud".parse().unwrap(),
        wire: "verbs-ud".to_owned(),
        address: RailAddress::native("verbs", [1]),
        place: Place {
            interface: interface.to_owned(),
            network,
            port: Some(Port {
                link,
                partition: 0xffff,
                gids,
            }),
            ..Place::default()
        },
    }
}

#[test]
fn ports_are_judged_by_their_gids() {
    let of = |interface, address| port(interface, 1, &[address]);
    let both = |one: &Offer, other: &Offer, same_host| {
        let found = quality(one, other, same_host);
        assert_eq!(found, quality(other, one, same_host), "the same at both ends");
        found
    };
    let a = of("eth0", "10.1.0.1/24");
    for (other, same_host, expected) in [
        (of("eth0", "10.1.0.2/24"), false, Ok(SameNetwork)),
        (of("eth0", "10.2.0.2/24"), false, Ok(Routed)),
        (of("eth0", "10.1.0.1/24"), false, Err(Never::SameAddress)),
        (of("eth0", "10.1.0.1/24"), true, Ok(SameInterface)),
        (of("eth1", "10.1.0.3/24"), true, Err(Never::OtherInterface)),
        (port("eth1", 2, &["10.1.0.3/24"]), true, Ok(SameNetwork)),
        (port("eth0", 1, &[]), false, Err(Never::OtherGids)),
        (of("", "fe80::2/64"), false, Err(Never::OtherLink)),
    ] {
        assert_eq!(both(&a, &other, same_host), expected, "{other:?}");
    }
    let first = of("", "fe80::1/64");
    assert_eq!(both(&first, &of("", "fe80::2/64"), false), Ok(SameNetwork));
    assert_eq!(both(&first, &of("", "fe80::1/64"), true), Ok(SameInterface));
    for other in ["fe81::2/64", "fd00::2/64"] {
        assert_eq!(both(&first, &of("", other), false), Err(Never::OtherSubnet));
    }
}

#[test]
fn limited_members_of_a_partition_reach_full_ones_alone() {
    let of = |partition| {
        let mut offer = port("eth0", 1, &["10.1.0.1/24"]);
        offer.place.port.as_mut().unwrap().partition = partition;
        offer
    };
    for (one, other, reach) in [
        (0xffff, 0xffff, true),
        (0xffff, 0x7fff, true),
        (0x7fff, 0x7fff, false),
        (0x8001, 0xffff, false),
        (0x8001, 0x0001, true),
    ] {
        let found = quality(&of(one), &of(other), true);
        let expected = if reach {
            Ok(SameInterface)
        } else {
            Err(Never::Partition)
        };
        assert_eq!(found, expected, "{one:#x} {other:#x}");
    }
}
