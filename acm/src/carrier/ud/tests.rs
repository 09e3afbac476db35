//! The carrier over queue pairs that reach each other in this process.

use std::cell::RefCell;
use std::rc::Rc;

use super::fake::{FakePair, Network, carrier, infiniband, of, roce};
use super::*;
use crate::carrier::{MAD, ipv4_group};
use crate::config::{Interfaces, Options};
use crate::endpoint::Network as Link6;
use crate::mad::Group;
use crate::path::Rate;
use crate::resolver::Membership;

const END: EndpointId = EndpointId(1);
const NOW: Time = Time::from_nanos(1);

fn group() -> Gid {
    "ff15:4001:ffff:3:400::".parse().unwrap()
}

fn subnet(lid: u16) -> SubnetGroup {
    let like = Membership {
        sl: 5,
        flow_label: 0x12345,
        hop_limit: 7,
        ..Membership::of(Group::of(group()).unwrap())
    };
    SubnetGroup { lid, like }
}

struct Side {
    carrier: UdCarrier<FakePair>,
    end: Endpoint,
}

impl Side {
    fn new(network: &Rc<RefCell<Network>>, end: Endpoint) -> Self {
        let mut carrier = carrier(network);
        carrier.update(END, &end).unwrap();
        let subnet = (end.link == Link::InfiniBand).then(|| subnet(0xc001));
        carrier.join_in(END, group(), subnet).unwrap();
        carrier.join_in(END, group(), subnet).unwrap();
        Self { carrier, end }
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.carrier.turn(NOW) > 0 {
            events.extend(std::iter::from_fn(|| self.carrier.event()));
        }
        events.extend(std::iter::from_fn(|| self.carrier.event()));
        events
    }

    fn mads(&mut self) -> Vec<(Peer, Option<Gid>, Mad)> {
        let each = self.events().into_iter();
        each.map(|event| match event {
            Event::Mad { from, group, mad, .. } => (from, group, *mad),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    fn query(&mut self, mad: &Mad) {
        self.carrier
            .multicast(NOW, END, (group(), self.end.gid), mad)
            .unwrap();
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.carrier.counters().dropped.of(reason)
    }
}

fn mad(transaction: u8) -> Mad {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 0x2c, 1, 1]);
    mad[15] = transaction;
    mad
}

#[test]
fn on_ethernet_a_query_goes_to_the_ip_group_and_its_answer_to_the_asker() {
    let network = Network::new();
    let (mut a, mut b) = (
        Side::new(&network, roce("a", 1)),
        Side::new(&network, roce("b", 2)),
    );
    let asker = network.borrow_mut().node("a").0;
    a.query(&mad(1));
    let [(from, to, got)] = b.mads().try_into().unwrap();
    assert_eq!((from.gid, from.qpn, from.lid), (a.end.gid, asker, 0));
    assert_eq!((to, got, from.at), (Some(group()), mad(1), None));
    assert_eq!((a.mads().len(), a.dropped(Reason::Own)), (0, 1));
    b.carrier.send(NOW, END, (&from, b.end.gid), &mad(2)).unwrap();
    let [(from, to, got)] = a.mads().try_into().unwrap();
    assert_eq!((from.gid, to, got), (b.end.gid, None, mad(2)));
    let sent = network.borrow().nodes[&asker].sent.clone();
    let mapped = Gid::of_ip(ipv4_group(group()).into());
    assert_eq!(
        (sent.len(), sent[0].gid, sent[0].pair),
        (1, of(mapped), GROUP_PAIR)
    );
    assert_eq!((sent[0].hop_limit, sent[0].lid), (1, 0));
    assert_eq!((a.carrier.counters().sent, a.carrier.counters().taken), (1, 1));
    let told = a.carrier.queue_pair(END).unwrap();
    assert_eq!(told, format!("a:1 {asker:#08x}"));
}

#[test]
fn a_query_over_both_families_counts_once() {
    let network = Network::new();
    let both = |device: &str, n: u8| {
        let six: std::net::IpAddr = format!("fd00::{n}").parse().unwrap();
        let mut end = roce(device, n);
        end.addresses.push(six.into());
        end.networks.push(Link6 { ip: six, prefix: 64 });
        end
    };
    let (mut a, mut b) = (
        Side::new(&network, both("a", 1)),
        Side::new(&network, both("b", 2)),
    );
    let mut four = Side::new(&network, roce("c", 3));
    let mut end = both("d", 4);
    end.addresses
        .retain(|address| address.ip().is_some_and(|ip| ip.is_ipv6()));
    end.gid = Gid::of_ip("fd00::4".parse().unwrap());
    let mut six = Side::new(&network, end);
    a.query(&mad(1));
    let [(from, to, _)] = b.mads().try_into().unwrap();
    assert_eq!((from.gid, to), (a.end.gid, Some(group())));
    assert_eq!((b.dropped(Reason::Again), four.mads().len()), (1, 1));
    let [(from, ..)] = six.mads().try_into().unwrap();
    assert_eq!(from.gid, Gid::of_ip("fd00::1".parse().unwrap()));
    // It was lost, and goes out again.
    a.query(&mad(1));
    assert_eq!(b.mads().len(), 1);
    b.carrier.leave(END, group());
    a.query(&mad(2));
    assert_eq!(b.mads().len(), 0);
    assert!(network.borrow_mut().node("b").1.groups.is_empty());
}

#[test]
fn on_infiniband_the_group_is_that_of_the_subnet() {
    let network = Network::new();
    let (mut a, mut b) = (
        Side::new(&network, infiniband("a", 1)),
        Side::new(&network, infiniband("b", 2)),
    );
    assert!(a.carrier.joins_by_subnet(&a.end) && a.carrier.is_in(END, group()));
    a.query(&mad(1));
    let [(from, to, _)] = b.mads().try_into().unwrap();
    assert_eq!((from.gid, from.lid, to), (a.end.gid, 1, Some(group())));
    b.carrier.send(NOW, END, (&from, b.end.gid), &mad(2)).unwrap();
    let [(from, to, _)] = a.mads().try_into().unwrap();
    assert_eq!((from.lid, to), (2, None));
    {
        let inner = network.borrow();
        let [one, two] = [0, 1].map(|at| inner.nodes.values().nth(at).unwrap().sent[0]);
        assert_eq!((one.gid, one.lid, one.pair), (of(group()), 0xc001, GROUP_PAIR));
        assert_eq!(
            (one.service_level, one.flow_label, one.hop_limit),
            (5, 0x12345, 7)
        );
        assert_eq!(one.rate, Rate::within(10_000).code());
        assert_eq!(
            (two.lid, two.service_level),
            (1, 5),
            "the level that the query came with"
        );
    }
    // Not before the subnet has joined it, and not to a peer of which only the address is known.
    let other = Group::new(0xffff, Rate::MIN, Mtu::MIN).gid();
    let early = a.carrier.join_in(END, other, None);
    assert!(
        matches!(early, Err(CarrierError::NotJoined(gid)) if gid == other),
        "{early:?}"
    );
    let early = a.carrier.multicast(NOW, END, (other, a.end.gid), &mad(1));
    assert!(matches!(early, Err(CarrierError::NotJoined(_))), "{early:?}");
    for wrong in [Peer { qpn: 0, ..from }, Peer { lid: 0, ..from }] {
        let refused = a.carrier.send(NOW, END, (&wrong, a.end.gid), &mad(1));
        assert!(matches!(refused, Err(CarrierError::NoPeer(_))), "{refused:?}");
    }
    // The group has another LID, after another manager has made it.
    a.carrier.join_in(END, group(), Some(subnet(0xc009))).unwrap();
    assert_eq!(
        network.borrow_mut().node("a").1.groups,
        BTreeMap::from([(group(), 0xc009)])
    );
    let refused = a.carrier.probe(Time::ZERO, END, &from, a.end.gid, Mtu::MAX);
    assert!(matches!(refused, Err(CarrierError::NoProbe)), "{refused:?}");
}

#[test]
fn what_is_not_of_the_link_or_not_for_us_is_dropped_with_its_reason() {
    let good = |network: &Rc<RefCell<Network>>, side: &Side, lid: u16, from: &str| Received {
        gid: Some(of(from.parse().unwrap())),
        to: Some(of(*network
            .borrow_mut()
            .node(&side.end.device)
            .1
            .groups
            .keys()
            .next()
            .unwrap())),
        lid,
        pair: 0x999,
        service_level: 0,
        path_bits: 0,
        mad: Box::new(mad(9)),
    };
    let network = Network::new();
    let mut side = Side::new(&network, roce("a", 1));
    let own = network.borrow_mut().node("a").0;
    let usual = good(&network, &side, 0, "::ffff:10.0.0.2");
    let gid = |text: &str| Some(of(text.parse().unwrap()));
    let with = |change: &dyn Fn(&mut Received)| {
        let mut other = usual.clone();
        change(&mut other);
        other
    };
    let cases = [
        (with(&|r| r.gid = None), Reason::Grh),
        (with(&|r| r.to = None), Reason::Grh),
        (with(&|r| r.gid = gid("::ffff:10.0.1.2")), Reason::Source),
        (with(&|r| r.gid = gid("::ffff:224.0.0.1")), Reason::Source),
        (with(&|r| r.gid = gid("ff15:4001:ffff:3:400::")), Reason::Source),
        (with(&|r| r.gid = gid("::")), Reason::Source),
        (with(&|r| r.pair = 1), Reason::Source),
        (with(&|r| r.pair = GROUP_PAIR), Reason::Source),
        (with(&|r| r.to = gid("::ffff:239.1.2.3")), Reason::NotForUs),
        (with(&|r| r.to = gid("ff15:4001:ffff:3:500::")), Reason::NotForUs),
        (with(&|r| r.to = gid("::ffff:10.0.0.9")), Reason::NotForUs),
        (
            with(&|r| (r.gid, r.pair) = (gid("::ffff:10.0.0.1"), own)),
            Reason::Own,
        ),
    ];
    let (mut counts, count) = (BTreeMap::new(), cases.len());
    for (received, reason) in cases {
        network.borrow_mut().put("a", received.clone());
        assert_eq!(side.mads().len(), 0, "{received:?}");
        *counts.entry(reason as u8).or_insert(0) += 1;
        assert_eq!(side.dropped(reason), counts[&(reason as u8)], "{received:?}");
    }
    network.borrow_mut().put("a", usual);
    assert_eq!(
        (side.mads().len(), counts.values().sum::<u64>()),
        (1, count as u64)
    );
    // In a subnet, a port has a LID that is not a group's.
    let mut side = Side::new(&network, infiniband("b", 3));
    for lid in [0, 0xc001, 0xffff] {
        let wrong = good(&network, &side, lid, "fe80::4");
        network.borrow_mut().put("b", wrong);
    }
    let usual = good(&network, &side, 0xbfff, "fe80::4");
    network.borrow_mut().put("b", usual);
    assert_eq!((side.mads().len(), side.dropped(Reason::Source)), (1, 3));
}

#[test]
fn a_flood_is_limited_per_sender_and_memory_is_bounded() {
    let network = Network::new();
    let mut side = Side::new(&network, roce("a", 1));
    let to = *network.borrow_mut().node("a").1.groups.keys().next().unwrap();
    for number in 0..10_000_u32 {
        let mut mad = mad(0);
        mad[8..12].copy_from_slice(&number.to_be_bytes());
        let received = Received {
            gid: Some(of("::ffff:10.0.0.2".parse().unwrap())),
            to: Some(of(to)),
            lid: 0,
            pair: 7,
            service_level: 0,
            path_bits: 0,
            mad: Box::new(mad),
        };
        network.borrow_mut().put("a", received);
    }
    let taken = side.mads().len();
    assert_eq!(taken, 4000);
    assert_eq!(side.dropped(Reason::Flood), 10_000 - taken as u64);
}

const OTHER: EndpointId = EndpointId(2);

/// A carrier with the endpoints `a` and `b`, both with both families and in the group, and the forms of it.
fn two_endpoints(network: &Rc<RefCell<Network>>) -> (UdCarrier<FakePair>, [gid::Gid; 2]) {
    let mut carrier = carrier(network);
    for (id, device, n) in [(END, "a", 1), (OTHER, "b", 2)] {
        let six: std::net::IpAddr = format!("fd00::{n}").parse().unwrap();
        let mut end = roce(device, n);
        end.addresses.push(six.into());
        carrier.update(id, &end).unwrap();
        carrier.join(id, group()).unwrap();
    }
    let mapped = Gid::of_ip(ipv4_group(group()).into());
    (carrier, [of(mapped), of(group())])
}

fn query_from(ip: &str, to: gid::Gid, transaction: u32) -> Received {
    let mut mad = mad(0);
    mad[8..12].copy_from_slice(&transaction.to_be_bytes());
    Received {
        gid: Some(of(Gid::of_ip(ip.parse().unwrap()))),
        to: Some(to),
        lid: 0,
        pair: 7,
        service_level: 0,
        path_bits: 0,
        mad: Box::new(mad),
    }
}

#[test]
fn a_message_to_one_endpoint_is_no_copy_of_one_to_another() {
    let network = Network::new();
    let (mut carrier, [four, six]) = two_endpoints(&network);
    network.borrow_mut().put("a", query_from("10.0.0.9", four, 1));
    network.borrow_mut().put("b", query_from("10.0.0.9", six, 1));
    while carrier.turn(NOW) > 0 {}
    let of_ends = std::iter::from_fn(|| carrier.event()).filter_map(|event| match event {
        Event::Mad { endpoint, .. } => Some(endpoint),
        _ => None,
    });
    assert_eq!(of_ends.collect::<Vec<_>>(), [END, OTHER]);
    assert_eq!(carrier.counters().dropped.of(Reason::Again), 0);
}

#[test]
fn a_flood_at_one_endpoint_takes_neither_the_turns_nor_the_shares_of_another() {
    let network = Network::new();
    let (mut carrier, [four, _]) = two_endpoints(&network);
    let limits = Settings::of(&Options::default(), None).limits;
    // From addresses that hosts at the other endpoint have.
    let hosts = ["10.0.0.9", "10.0.0.10", "10.0.0.11"];
    for number in 0..5 * limits.burst {
        let host = hosts[number as usize % hosts.len()];
        network.borrow_mut().put("a", query_from(host, four, number));
    }
    network.borrow_mut().put("b", query_from("10.0.0.9", four, 0));
    let mut taken = 0;
    let mut turns = 0;
    while !std::iter::from_fn(|| carrier.event()).any(|event| {
        taken += 1;
        matches!(event, Event::Mad { endpoint: OTHER, .. })
    }) {
        turns += 1;
        assert!(turns <= 2, "the other one has waited for {taken} messages");
        assert!(carrier.turn(NOW) < 2 * limits.turn);
    }
    assert!(taken <= limits.turn + 1, "{taken}");
    // The bursts at one are used up, and not at the other.
    while carrier.turn(NOW) > 0 {
        while carrier.event().is_some() {}
    }
    assert!(carrier.counters().dropped.of(Reason::Flood) > 0);
    for host in hosts {
        network.borrow_mut().put("b", query_from(host, four, 1));
    }
    carrier.turn(NOW);
    assert!(matches!(
        carrier.event(),
        Some(Event::Mad { endpoint: OTHER, .. })
    ));
}

#[test]
fn renewals_and_losses_are_reported_once() {
    let network = Network::new();
    let mut side = Side::new(&network, infiniband("a", 1));
    network.borrow_mut().raise("a", MadEvent::Renew);
    assert!(matches!(side.events()[..], [Event::Renew { endpoint: END }]));
    // Its port has another LID.
    side.end.lid = 9;
    side.carrier.update(END, &side.end).unwrap();
    assert!(matches!(side.events()[..], [Event::Renew { endpoint: END }]));
    side.carrier.update(END, &side.end).unwrap();
    assert!(side.events().is_empty());
    for _ in 0..2 {
        network.borrow_mut().raise("a", MadEvent::Gone);
    }
    let [Event::Failed { endpoint: END, error }] = &side.events()[..] else {
        panic!("it is reported once")
    };
    assert!(
        error
            .to_string()
            .contains("the RDMA device of a has failed or is gone"),
        "{error}"
    );
    // A new queue pair, which has to join.
    let before = network.borrow_mut().node("a").0;
    side.carrier.update(END, &side.end).unwrap();
    assert_ne!(network.borrow_mut().node("a").0, before);
    assert!(!side.carrier.is_in(END, group()));
    side.carrier.end(END);
    assert_eq!(side.carrier.served(), []);
}

#[test]
fn what_cannot_be_served_has_its_sentence() {
    let network = Network::new();
    let mut carrier = carrier(&network);
    network.borrow_mut().refuses = Some("the kernel refuses the Q_Key".to_owned());
    let refused = carrier.update(END, &roce("a", 1)).unwrap_err().to_string();
    assert_eq!(refused, "the kernel refuses the Q_Key");
    let lo = Endpoint {
        link: Link::Loopback,
        ..roce("lo", 1)
    };
    carrier.update(END, &lo).unwrap();
    assert_eq!((carrier.queue_pair(END), carrier.lacks(END)), (None, 0));
    let unknown = carrier.join(EndpointId(9), group());
    assert!(matches!(unknown, Err(CarrierError::Unknown(_))), "{unknown:?}");
    let odd = carrier.join(END, Gid::of_ip([10, 0, 0, 1].into()));
    assert!(matches!(odd, Err(CarrierError::NoGroup(_))), "{odd:?}");
    let options = Options::default();
    let settings = Settings::of(&options, Some(crate::carrier::Key::of_job(&[7; 32])));
    let refused = UdCarrier::new(settings, 16).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|words| words.contains("have no room for a tag")));
    // Nothing beyond the loopback is served unless it is named.
    let mut usual = UdCarrier::new(Settings::of(&options, None), 16).unwrap();
    assert!(matches!(
        usual.update(END, &roce("eth7", 1)),
        Err(CarrierError::NotServed(_))
    ));
    let named = Options {
        doorbell_interfaces: Interfaces::Named(vec!["nosuch7".to_owned()]),
        ..options
    };
    let mut named = UdCarrier::new(Settings::of(&named, None), 16).unwrap();
    let end = Endpoint {
        interface: 0,
        ..roce("nosuch7", 1)
    };
    let refused = named.update(END, &end).unwrap_err().to_string();
    assert!(
        refused.contains("no RDMA device stands on the interface nosuch7"),
        "{refused}"
    );
}
