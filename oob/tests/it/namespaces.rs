//! Hosts with NICs that come, go, change their names and addresses, and routers between them: in network
//! namespaces.

use std::time::Instant;

use doorbell_oob::lines::Limits;
use doorbell_oob::lines::tcp::{Chosen, Families, Ports, Settings};
use doorbell_oob::transport::{Loss, ModuleId, Refusal};

use crate::side::{Hosts, Side};
use doorbell_testing::netns::Lab;

fn nics(include: &[&str], families: Families) -> Settings {
    let include = include.iter().map(|text| text.parse().unwrap()).collect();
    Settings {
        nics: Chosen::new(include, Vec::new(), families).unwrap(),
        ..Settings::default()
    }
}

fn both(settings: &Settings) -> [Settings; 2] {
    [settings.clone(), settings.clone()]
}

/// A second cable between the hosts of a pair: v1, 10.78.0.1 and 10.78.0.2.
pub fn second_cable(lab: &Lab) {
    let other = lab.name(1).to_owned();
    lab.ip(0, &format!("link add v1 type veth peer name v1 netns {other}"));
    for host in 0..2 {
        lab.ip(host, &format!("address add 10.78.0.{}/24 dev v1", host + 1));
        lab.ip(host, "link set v1 up");
    }
    (0..2).for_each(|host| lab.wait_until_up(host, "v1"));
}

/// What the sockets of the host listen on, as the kernel has it: addresses without ports, sorted.
pub fn listening(lab: &Lab, host: usize) -> Vec<String> {
    let text = lab.inside(host, || {
        ["tcp", "tcp6"]
            .map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default())
    });
    let lines = text.iter().flat_map(|text| text.lines().skip(1));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut all: Vec<String> = words
        .filter(|words| words.get(3) == Some(&"0A"))
        .map(|words| words[1].split(':').next().unwrap().to_owned())
        .collect();
    all.sort();
    all
}

/// Bytes that an interface of the host has sent.
fn sent_by(lab: &Lab, host: usize, interface: &str) -> u64 {
    let text = lab.inside(host, || {
        std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
    });
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{interface}:")));
    line.unwrap().split_whitespace().nth(8).unwrap().parse().unwrap()
}

fn has_word(sides: &mut [Side]) -> bool {
    sides.iter().all(|side| !side.bodies.is_empty())
}

/// A word each way over the one link.
fn talk(hosts: &mut Hosts) {
    for host in 0..2 {
        hosts.on(host, |side| {
            side.bodies.clear();
            let link = side.link().unwrap();
            side.send(link, b"a word".into());
        });
    }
    hosts.until("a word each path", has_word);
}

#[test]
fn nothing_listens_beyond_what_is_configured() {
    let Some(lab) = Lab::pair("nothing_listens_beyond_what_is_configured", 1500) else {
        return;
    };
    const LOOPBACK: [&str; 2] = ["00000000000000000000000001000000", "0100007F"];
    let hosts = Hosts::start(&lab, &[Settings::default(), nics(&["v0"], Families::V4)]);
    assert_eq!(listening(&lab, 0), LOOPBACK, "nothing is named: loopback");
    assert_eq!(listening(&lab, 1), ["02004D0A"], "10.77.0.2 and nothing else");
    drop(hosts);
    assert!(listening(&lab, 0).is_empty() && listening(&lab, 1).is_empty());
    let ports = Settings {
        ports: Ports::range(7200, 7201).unwrap(),
        ..nics(&["10.77.0.0/16"], Families::Both)
    };
    let hosts = Hosts::start(&lab, &both(&ports));
    assert_eq!(hosts.sides[0].addresses(), ["10.77.0.1/24:7200".into()]);
    assert_eq!(listening(&lab, 0), ["01004D0A"]);
}

#[test]
fn a_nic_that_goes_down_takes_its_links_along_and_comes_back_by_itself() {
    let Some(lab) = Lab::pair(
        "a_nic_that_goes_down_takes_its_links_along_and_comes_back_by_itself",
        1500,
    ) else {
        return;
    };
    let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::Both)));
    for round in 0..3 {
        hosts.link();
        talk(&mut hosts);
        let links = [0, 1].map(|host| hosts.sides[host].link().unwrap());
        lab.ip(0, "link set v0 down");
        let begun = Instant::now();
        hosts.until("down", |sides| sides[0].modules.is_empty());
        eprintln!("round {round}: down after {:?}", begun.elapsed());
        // The other end has no carrier any more.
        hosts.until("down there", |sides| sides[1].modules.is_empty());
        for (host, link) in links.into_iter().enumerate() {
            assert_eq!(hosts.sides[host].links[&link].lost, Some(Loss::ModuleDown));
        }
        lab.ip(0, "link set v0 up");
        // IPv6 addresses that were given by hand go with the link; IPv4 ones stay.
        let up = |side: &Side| {
            side.addresses()
                .iter()
                .any(|address| address.starts_with("10.77.0."))
        };
        hosts.until("up", |sides| sides.iter().all(up));
        assert!(
            hosts.sides[0].modules.contains_key(&ModuleId(0)),
            "the same module"
        );
    }
}

/// Readiness comes as edges: what one look left would never be read, and the kernel would drop all that comes
/// after.
#[test]
fn an_address_that_comes_after_a_swarm_of_changes_is_served() {
    let Some(lab) = Lab::pair("an_address_that_comes_after_a_swarm_of_changes_is_served", 1500) else {
        return;
    };
    let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::V4)));
    for (round, count) in [200, 400, 3000].into_iter().enumerate() {
        let routes = (0..count).map(|at| format!("route add 10.99.{}.{}/32 dev v0", at >> 8, at & 255));
        lab.ip_batch(0, routes);
        lab.ip(0, "route flush root 10.99.0.0/16");
        // The runtime turns, with nothing to see.
        let begun = Instant::now();
        hosts.until("a while", |_| begun.elapsed().as_millis() > 100);
        let own = format!("10.77.0.{}", 79 + round);
        lab.ip(0, &format!("address add {own}/24 dev v0"));
        hosts.until("it is served", |sides| {
            let mut all = sides[0]
                .addresses()
                .into_iter()
                .map(|address| address.to_string());
            all.any(|address| address.starts_with(&format!("{own}/")))
        });
    }
}

#[test]
fn ipv6_alone_and_link_local_alone_will_do() {
    let Some(lab) = Lab::pair("ipv6_alone_and_link_local_alone_will_do", 1500) else {
        return;
    };
    {
        let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::V6)));
        assert!(
            hosts.sides[1]
                .addresses()
                .iter()
                .all(|address| address.starts_with('['))
        );
        hosts.link();
        talk(&mut hosts);
    }
    let mut hosts = Hosts::start(&lab, &both(&nics(&["fe80::/10"], Families::Both)));
    let local = |side: &Side| !side.addresses().is_empty();
    hosts.until("duplicate address detection", |sides| sides.iter().all(local));
    hosts.link();
    talk(&mut hosts);
    for host in 0..2 {
        lab.ip(host, "-4 address flush dev v0");
    }
    talk(&mut hosts);
}

#[test]
fn peers_behind_a_router_are_reached_and_ways_follow_the_routes() {
    let Some(lab) = Lab::routed(
        "peers_behind_a_router_are_reached_and_ways_follow_the_routes",
        1500,
        1500,
    ) else {
        return;
    };
    let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::V4)));
    hosts.link();
    talk(&mut hosts);
    let peer = hosts.sides[1].name;
    assert_eq!(hosts.sides[0].paths[&peer].len(), 1);
    lab.ip(0, "route del default");
    hosts.until("no path", |sides| sides[0].paths[&peer].is_empty());
    lab.ip(0, "route add default via 10.77.1.254");
    hosts.until("a path again", |sides| sides[0].paths[&peer].len() == 1);
    talk(&mut hosts);
}

#[test]
fn a_nic_that_is_renamed_stays_and_addresses_are_followed() {
    let Some(lab) = Lab::pair("a_nic_that_is_renamed_stays_and_addresses_are_followed", 1500) else {
        return;
    };
    let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::V4)));
    hosts.link();
    let lost = hosts.sides[0].link().unwrap();
    lab.ip(0, "address add 10.77.0.99/24 dev v0");
    hosts.until("a second address", |sides| sides[0].addresses().len() == 2);
    lab.ip(0, "address del 10.77.0.1/24 dev v0");
    // With its first address the others of the network go, unless the host is set otherwise.
    hosts.until("a loss", |sides| sides[0].links[&lost].lost.is_some());
    assert_eq!(hosts.sides[0].links[&lost].lost, Some(Loss::ModuleDown));
    lab.ip(0, "link set v0 down");
    lab.ip(0, "link set v0 name w0");
    lab.ip(0, "address replace 10.77.0.50/24 dev w0");
    lab.ip(0, "link set w0 up");
    let is = |side: &Side| {
        side.addresses()
            .iter()
            .any(|address| address.starts_with("10.77.0.50/"))
    };
    hosts.until("another name and address", |sides| {
        is(&sides[0]) && !sides[1].modules.is_empty()
    });
    hosts.until("the other end knows", |sides| sides[1].link().is_none());
    hosts.link();
    talk(&mut hosts);
}

/// Both NICs lead to the peer's address, and the table prefers one: what goes over the other one goes over it
/// all the same.
#[test]
fn what_is_sent_by_a_module_leaves_by_its_nic() {
    let Some(lab) = Lab::pair("what_is_sent_by_a_module_leaves_by_its_nic", 1500) else {
        return;
    };
    second_cable(&lab);
    lab.ip(1, "address add 10.99.0.2/32 dev v0");
    lab.ip(0, "route add 10.99.0.0/24 via 10.77.0.2 metric 10");
    lab.ip(0, "route add 10.99.0.0/24 via 10.78.0.2 metric 20");
    let settings = [
        nics(&["v0", "v1"], Families::V4),
        nics(&["10.99.0.0/24"], Families::V4),
    ];
    let mut hosts = Hosts::start(&lab, &settings);
    let (peer, addresses) = (hosts.sides[1].name, hosts.sides[1].addresses());
    let paths = hosts.on(0, |side| side.reach(peer, addresses.clone()));
    assert_eq!(paths.len(), 2, "{paths:?}");
    for (path, (this, that)) in paths.iter().zip([("v0", "v1"), ("v1", "v0")]) {
        hosts.on(0, |side| side.call_by(peer, path.module, path.addresses.clone()));
        hosts.until("a link", |sides| sides[0].open.is_empty());
        assert_eq!(hosts.sides[0].refused, []);
        let before = [sent_by(&lab, 0, this), sent_by(&lab, 0, that)];
        let link = *hosts.sides[0].links.keys().last().unwrap();
        hosts.on(0, |side| side.send(link, vec![0; 200_000].into()));
        hosts.until("arrival", |sides| sides[1].bodies.len() == 1);
        hosts.sides[1].bodies.clear();
        let after = [sent_by(&lab, 0, this), sent_by(&lab, 0, that)];
        assert!(after[0] - before[0] > 200_000, "{this}: {before:?} {after:?}");
        assert!(after[1] - before[1] < 100_000, "{that}: {before:?} {after:?}");
    }
}

#[test]
fn a_peer_dropped_by_a_firewall_is_reported_with_the_remedy() {
    let Some(lab) = Lab::pair("a_peer_dropped_by_a_firewall_is_reported_with_the_remedy", 1500) else {
        return;
    };
    let mut hosts = Hosts::start(&lab, &both(&nics(&["v0"], Families::V4)));
    // ARP requests still pass.
    lab.drop_longer(1, 50);
    let (peer, addresses) = (hosts.sides[1].name, hosts.sides[1].addresses());
    let attempt = hosts.on(0, |side| side.call(peer, addresses.clone()));
    hosts.until("an end", |sides| sides[0].refused.len() == 1);
    assert_eq!(hosts.sides[0].refused[0], (attempt, Refusal::TimedOut));
    let said = hosts.sides[0].tcp.trouble().expect("a word").to_string();
    let port = addresses[0].rsplit_once(':').unwrap().1;
    let rule = format!("tcp dport {port} accept");
    assert!(
        said.contains(&rule) && said.contains("v0") && said.contains("10.77.0.2"),
        "{said}"
    );
}

/// A source beyond the host that fails too often is refused for a while; others are not.
#[test]
fn strangers_of_one_address_are_limited_and_others_still_come_in() {
    let test = "strangers_of_one_address_are_limited_and_others_still_come_in";
    let Some(lab) = Lab::pair(test, 1500) else { return };
    lab.ip(0, "address add 10.77.0.9/24 dev v0");
    let settings = Settings {
        limits: Limits {
            failures: 10,
            forgive: std::time::Duration::from_secs(1000),
            ..Limits::default()
        },
        ..nics(&["v0"], Families::V4)
    };
    let mut hosts = Hosts::start(&lab, &[nics(&["10.77.0.1"], Families::V4), settings]);
    let at = hosts.sides[1].addresses()[0]
        .rsplit_once(':')
        .unwrap()
        .1
        .to_owned();
    let at = format!("10.77.0.2:{at}");
    for nth in 0..40 {
        let stranger = lab.inside(0, || {
            use std::io::Write;
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            )
            .unwrap();
            let from: std::net::SocketAddr = "10.77.0.9:0".parse().unwrap();
            rustix::net::bind(&socket, &from).unwrap();
            let to: std::net::SocketAddr = at.parse().unwrap();
            rustix::net::connect(&socket, &to).unwrap();
            let mut socket = std::net::TcpStream::from(socket);
            let _ = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
            socket
        });
        hosts.until("one more", |sides| sides[1].tcp.counters().strangers() > nth);
        drop(stranger);
    }
    let counters = hosts.sides[1].tcp.counters();
    assert_eq!((counters.garbage, counters.throttled), (10, 30), "{counters:?}");
    hosts.link();
    talk(&mut hosts);
}
