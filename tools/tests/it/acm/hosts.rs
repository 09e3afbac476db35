//! Three hosts on one switch, a service in each: names and addresses by multicast, also after what happens to
//! hosts.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_acm::address::{Address, Gid, Name};
use doorbell_acm::carrier::{Header, Kind, ipv4_group};
use doorbell_acm::endpoint::DEFAULT_PKEY;
use doorbell_acm::mad::{Direction, Group, Groups, Resolve};
use doorbell_acm::path::{Mtu, Rate};
use rustix::process::Signal;
use serde_json::Value;

use super::{Service, addresses};
use crate::hosts::key_in;
use doorbell_testing::Stopwatch;
use doorbell_testing::netns::Lab;

/// Within this time after an event answers are right again.
const BOUND: Duration = Duration::from_secs(2);
/// The hosts' switch, in the lab.
const SWITCH: usize = 4;

/// What a look takes that finds nothing: the services' time for an answer, and that of the client.
/// Where a busy machine lets one take longer, no more than this is counted.
const LOOK: Duration = Duration::from_millis(700);

/// Three hosts and what runs in them.
struct Hosts {
    services: Vec<Option<Service>>,
    folders: Vec<tempfile::TempDir>,
    lab: Lab,
}

impl Hosts {
    /// With `words` for the service of each host.
    fn new(test: &str, words: &dyn Fn(&Path, usize) -> Vec<String>) -> Option<Self> {
        let lab = Lab::four(&format!("doorbell::it::acm::hosts::{test}"), 1500)?;
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let mut hosts = Self {
            services: (0..3).map(|_| None).collect(),
            folders,
            lab,
        };
        for host in 0..3 {
            hosts
                .lab
                .ip(host, &format!("address add fd77::{}/64 dev v0 nodad", host + 1));
            hosts.named(host, &format!("host{}", host + 1));
            let options = "timeout 500\nretries 0\n";
            std::fs::write(hosts.folders[host].path().join("ibacm_opts.cfg"), options).unwrap();
        }
        for host in 0..3 {
            let words = words(hosts.folders[host].path(), host);
            hosts.begin(host, &words);
        }
        Some(hosts)
    }

    fn plain(test: &str) -> Option<Self> {
        Self::new(test, &|_, _| Vec::new())
    }

    fn begin(&mut self, host: usize, words: &[String]) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = [&["--nic", "v0"], &words[..]].concat();
        let service = Service::start(Some(self.lab.name(host)), self.folders[host].path(), &words);
        self.services[host] = Some(service);
    }

    fn at(&self, host: usize) -> &Service {
        self.services[host].as_ref().unwrap()
    }

    /// Its names, all of `v0`.
    fn named(&self, host: usize, name: &str) {
        let file = self.folders[host].path().join("ibacm_addr.cfg");
        std::fs::write(file, format!("{name} v0 1 default\n")).unwrap();
    }

    /// Where `to` is, as the service of `host` has it; null where it does not know.
    fn place(&self, host: usize, to: &str) -> Value {
        let source = format!("10.77.0.{}", host + 1);
        self.at(host).path(to, &["--source", &source])["dgid"].clone()
    }

    /// Asserts that `is_so` becomes true within the bound from now, of the services' own time.
    fn soon(&self, what: &str, is_so: impl Fn() -> bool) {
        let services = self.services.iter().flatten();
        let watch = Stopwatch::of_processes(services.map(|service| service.process.id()));
        let mut beyond = Duration::ZERO;
        loop {
            // Counted is what holds when the look begins in time, however long the answer takes.
            let elapsed = watch.elapsed().saturating_sub(beyond);
            assert!(
                elapsed < BOUND,
                "not within {BOUND:?}: {what}; {:#}",
                self.at(0).state()
            );
            let look = Instant::now();
            if is_so() {
                eprintln!("{what}: after {elapsed:?}");
                return;
            }
            beyond += look.elapsed().saturating_sub(LOOK);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// It is not so, at any of the looks of more than two seconds.
    fn never(&self, what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..22 {
            assert!(!is_so(), "{what}; {:#}", self.at(0).state());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn v4(last: usize) -> String {
    format!("::ffff:10.77.0.{last}")
}

#[test]
fn each_host_finds_each_other_by_name_ipv4_and_ipv6() {
    let Some(hosts) = Hosts::plain("each_host_finds_each_other_by_name_ipv4_and_ipv6") else {
        return;
    };
    for host in 0..3 {
        for other in 1..=3 {
            for (to, gid) in [
                (format!("host{other}"), v4(other)),
                (format!("10.77.0.{other}"), v4(other)),
                (format!("fd77::{other}"), format!("fd77::{other}")),
            ] {
                hosts.soon(&format!("{host} finds {to}"), || hosts.place(host, &to) == gid);
            }
        }
        assert!(hosts.place(host, "10.77.0.99").is_null(), "no host has it");
        assert!(hosts.place(host, "host9").is_null(), "no host has it");
        let state = hosts.at(host).state();
        assert!(state["carrier"]["taken"].as_u64() > Some(0), "{state:#}");
    }
}

#[test]
fn a_renumbered_host_is_found_where_it_is() {
    let Some(hosts) = Hosts::plain("a_renumbered_host_is_found_where_it_is") else {
        return;
    };
    let is_at = |last| move |hosts: &Hosts| hosts.place(0, "host2") == v4(last);
    hosts.soon("host2 is found", || is_at(2)(&hosts));
    hosts.soon("10.77.0.2 is found", || hosts.place(0, "10.77.0.2") == v4(2));
    hosts.lab.ip(1, "address add 10.77.0.22/24 dev v0");
    hosts.lab.ip(1, "address del 10.77.0.2/24 dev v0");
    // Deleting the first of a network deletes the others of it, unless the system promotes them.
    hosts.lab.can(1, "address add 10.77.0.22/24 dev v0");
    hosts.soon("host2 is at its new address", || {
        hosts.place(0, "host2") == v4(22) && hosts.place(0, "10.77.0.22") == v4(22)
    });
    hosts.soon("its old address leads nowhere", || {
        hosts.place(0, "10.77.0.2").is_null()
    });
    hosts.never("a path to an address that was given up", || {
        !hosts.place(0, "10.77.0.2").is_null() || !is_at(22)(&hosts)
    });
    // A name that another host has now.
    hosts.named(1, "other");
    hosts.named(2, "host2");
    hosts
        .at(2)
        .until("it has the name", |state| addresses(state).contains(&"host2"));
    hosts
        .at(1)
        .until("it has it not", |state| !addresses(state).contains(&"host2"));
    hosts.soon("host2 is the third host", || is_at(3)(&hosts));
    hosts.never("the second host by the name that it gave up", || {
        !is_at(3)(&hosts)
    });
}

#[test]
fn a_killed_service_is_found_again_when_it_is_back() {
    let Some(mut hosts) = Hosts::plain("a_killed_service_is_found_again_when_it_is_back") else {
        return;
    };
    hosts.soon("host2 is found", || hosts.place(0, "host2") == v4(2));
    hosts.at(1).process.signal(Signal::KILL);
    hosts.soon("host2 is not found", || hosts.place(0, "host2").is_null());
    hosts.never("a path to a host without a service", || {
        !hosts.place(0, "host2").is_null()
    });
    hosts.begin(1, &[]);
    hosts.soon("host2 is found again, and finds others", || {
        hosts.place(0, "host2") == v4(2) && hosts.place(1, "host3") == v4(3)
    });
}

#[test]
fn a_host_that_was_cut_off_is_found_again() {
    let Some(hosts) = Hosts::plain("a_host_that_was_cut_off_is_found_again") else {
        return;
    };
    let switch = hosts.lab.name(SWITCH).to_owned();
    // Its cable is out; its cable leads nowhere.
    for (cut, heal) in [
        ("link set r2 down", "link set r2 up"),
        ("link set r2 nomaster", "link set r2 master bridge"),
    ] {
        hosts.soon("host3 is found", || hosts.place(0, "host3") == v4(3));
        hosts.lab.ip(SWITCH, cut);
        hosts.soon("host3 is not found", || hosts.place(0, "host3").is_null());
        hosts.never("a path to a host that is cut off", || {
            !hosts.place(0, "host3").is_null() || !hosts.place(2, "host1").is_null()
        });
        hosts.lab.ip(SWITCH, heal);
        hosts.soon(&format!("{switch} {heal}: both find each other"), || {
            hosts.place(0, "host3") == v4(3) && hosts.place(2, "host1") == v4(1)
        });
    }
}

#[test]
fn without_the_key_nothing_is_poisoned_and_nothing_is_learnt() {
    let keys = tempfile::tempdir().unwrap();
    let [key, other] = ["key", "other"].map(|name| key_in(keys.path(), name));
    for stranger in [None, Some(&other)] {
        let words = |_: &Path, host: usize| -> Vec<String> {
            let key = if host == 2 { stranger } else { Some(&key) };
            key.map_or_else(Vec::new, |key| vec!["--key-file".to_owned(), key.clone()])
        };
        let test = "without_the_key_nothing_is_poisoned_and_nothing_is_learnt";
        let Some(hosts) = Hosts::new(test, &words) else {
            return;
        };
        hosts.soon("those with the key find each other", || {
            hosts.place(0, "host2") == v4(2) && hosts.place(1, "host1") == v4(1)
        });
        // The host without the key claims another one's name.
        hosts.named(2, "host2");
        hosts
            .at(2)
            .until("it has the name", |state| addresses(state).contains(&"host2"));
        hosts.never("the stranger is believed, or gets an answer", || {
            hosts.place(0, "host2") != v4(2)
                || !hosts.place(2, "host1").is_null()
                || !hosts.place(0, "10.77.0.3").is_null()
        });
        for host in 0..3 {
            let state = hosts.at(host).state();
            let found = state["known"].as_array().unwrap().iter();
            let strange = found.filter(|one| {
                let gid = one["gid"].as_str().unwrap_or("");
                gid == v4(3) || host == 2 && (gid == v4(1) || gid == v4(2))
            });
            let strange: Vec<_> = strange.collect();
            assert!(strange.is_empty(), "{host}: {strange:#?}");
            let dropped = state["carrier"].as_object().unwrap().iter();
            let dropped = dropped.filter(|(name, _)| name.starts_with("dropped_") && name.contains("tag"));
            let dropped: u64 = dropped.filter_map(|(_, count)| count.as_u64()).sum();
            assert!(dropped > 0, "{host}: {state:#}");
        }
    }
}

#[test]
fn a_host_that_lost_its_ipv4_addresses_is_found_by_its_name() {
    let Some(hosts) = Hosts::plain("a_host_that_lost_its_ipv4_addresses_is_found_by_its_name") else {
        return;
    };
    hosts.soon("host2 is found", || hosts.place(0, "host2") == v4(2));
    hosts.lab.ip(1, "-4 address flush dev v0");
    hosts.soon("host2 is found over IPv6, and so is host1 by it", || {
        let back = hosts.at(1).path("host1", &["--source", "fd77::2"]);
        hosts.place(0, "host2") == "fd77::2" && back["dgid"] == "fd77::1" && back["sgid"] == "fd77::2"
    });
    hosts.soon("10.77.0.2 is found no more", || {
        hosts.place(0, "10.77.0.2").is_null()
    });
    hosts.never("a path to an address that it has not", || {
        hosts.place(0, "host2") != "fd77::2" || !hosts.place(0, "10.77.0.2").is_null()
    });
}

#[test]
fn of_two_hosts_with_one_name_the_one_that_answered_is_returned_as_long_as_it_does() {
    let keys = tempfile::tempdir().unwrap();
    let key = key_in(keys.path(), "key");
    for key in [None, Some(&key)] {
        let words = |_: &Path, _| -> Vec<String> {
            key.map_or_else(Vec::new, |key| vec!["--key-file".into(), key.clone()])
        };
        let test = "of_two_hosts_with_one_name_the_one_that_answered_is_told";
        let Some(hosts) = Hosts::new(test, &words) else {
            return;
        };
        // An address that comes later is a change of its host, which is resolved again then.
        for host in 0..3 {
            let of_the_link = |state: &Value| addresses(state).iter().any(|own| own.starts_with("fe80"));
            hosts.at(host).until("it has an address of the link", of_the_link);
        }
        for host in [1, 2] {
            hosts.named(host, "twin");
            let has = |state: &Value| addresses(state).contains(&"twin");
            hosts.at(host).until("it has the name", has);
        }
        // Both announce it to their neighbours, three times within a second.
        for host in [1, 2] {
            let state = hosts.at(host).until("it sees the other one", |state| {
                state["events"].to_string().contains("twin")
            });
            assert!(
                addresses(&state).contains(&"twin"),
                "it keeps its name: {state:#}"
            );
        }
        std::thread::sleep(Duration::from_millis(1500));
        hosts.soon("one of them is found", || !hosts.place(0, "twin").is_null());
        let told = hosts.place(0, "twin");
        assert!(told == v4(2) || told == v4(3), "{told}");
        hosts.never("the other one, or none", || hosts.place(0, "twin") != told);
        // Each is itself by its name, and by its address to all.
        assert_eq!(
            (hosts.place(1, "twin"), hosts.place(2, "twin")),
            (v4(2).into(), v4(3).into())
        );
        let (gone, other) = if told == v4(2) { (1, 3) } else { (2, 2) };
        hosts.at(gone).process.signal(Signal::KILL);
        hosts.soon("the other one is found", || hosts.place(0, "twin") == v4(other));
    }
}

/// Sends unsolicited frames as fast as this thread can, until `stop` is set; returns how many.
fn flood(stop: &AtomicBool) -> u64 {
    let group = Group::new(DEFAULT_PKEY, Rate::within(10_000), Mtu::within(2048).unwrap()).gid();
    let own = Gid::of_ip([10, 77, 0, 1].into());
    let group_at = SocketAddr::from((ipv4_group(group), 6126));
    let alone_at = SocketAddr::from(([10, 77, 0, 1], 6127));
    let senders: Vec<UdpSocket> = (40..42)
        .map(|last| UdpSocket::bind((Ipv4Addr::new(10, 77, 0, last), 0)).expect("it has the address"))
        .collect();
    // As fast where twenty processes want the core: of this thread alone, and refused it is only slower.
    let _ = rustix::process::setpriority_process(None, -15);
    let mut bytes = Vec::new();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let [.., c, d] = number.to_be_bytes();
        // Any host on the link can claim every address on it.
        let claimed = Address::V4([10, 77, 0, d].into());
        let resolve = Resolve {
            direction: if c % 2 == 0 {
                Direction::Question
            } else {
                Direction::Answer { status: 0 }
            },
            transaction: number,
            destination: Some(Address::Name(Name::new(&format!("n{number}")).unwrap())),
            source: Some(claimed),
            groups: Groups::new([group]),
        };
        let (to_all, kind) = (
            number.is_multiple_of(2),
            [Kind::Mad, Kind::Probe, Kind::Echo][number as usize / 2 % 3],
        );
        let header = Header {
            kind,
            qpn: number as u32 & 0xff_ffff,
            lid: 0,
            sgid: Gid::of_ip([10, 77, 0, d].into()),
            dgid: if to_all { group } else { own },
        };
        let body = resolve.bytes();
        let body = if kind == Kind::Mad { &body[..] } else { &body[..16] };
        header.write(body, 1000, None, &mut bytes);
        // Some are spoilt, and some are cut.
        if number.is_multiple_of(5) {
            let at = number as usize % bytes.len();
            bytes[at] ^= 0xff;
        }
        if number.is_multiple_of(7) {
            bytes.truncate(number as usize % 400);
        }
        let to = if to_all { group_at } else { alone_at };
        let _ = senders[number as usize % senders.len()].send_to(&bytes, to);
    }
    number
}

#[test]
fn a_flood_from_the_link_takes_no_memory_and_questions_are_answered() {
    let Some(hosts) = Hosts::plain("a_flood_from_the_link_takes_no_memory") else {
        return;
    };
    hosts.soon("host2 is found", || hosts.place(0, "host2") == v4(2));
    (40..42).for_each(|last| hosts.lab.ip(3, &format!("address add 10.77.0.{last}/24 dev v0")));
    let resident = || -> u64 {
        let process = hosts.at(0).state()["process"].as_u64().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let for_a_while = |seconds: u64| {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let flooding = scope.spawn(|| hosts.lab.inside(3, || flood(&stop)));
            let (end, mut told) = (Instant::now() + Duration::from_secs(seconds), [0, 0]);
            let guard = end + Duration::from_secs(60);
            let dropped = || hosts.at(0).state()["carrier"]["dropped_flood"].as_u64();
            // On a busy machine, for as long as it takes.
            while Instant::now() < end
                || Instant::now() < guard && (told.contains(&0) || dropped() <= Some(1000))
            {
                told[0] += u32::from(hosts.place(0, "10.77.0.1") == v4(1));
                told[1] += u32::from(hosts.place(0, "host2") == v4(2));
            }
            stop.store(true, Ordering::Relaxed);
            (flooding.join().unwrap(), told)
        })
    };
    // Until all tables are as large as they become.
    for_a_while(3);
    let before = resident();
    let (sent, told) = for_a_while(4);
    let after = resident();
    eprintln!("{sent} frames; answered {told:?}; {before} KiB, then {after} KiB");
    assert!(told.iter().all(|told| *told > 0), "{told:?}");
    assert!(after <= before + 4096, "{before} KiB, then {after} KiB");
    let state = hosts.at(0).state();
    let count = |name: &str| state["carrier"][name].as_u64().unwrap();
    assert!(count("dropped_flood") > 1000, "{:#}", state["carrier"]);
    for reason in ["size", "magic", "unasked"] {
        assert!(
            count(&format!("dropped_{reason}")) > 0,
            "{reason}: {:#}",
            state["carrier"]
        );
    }
    // And after it all is as it was.
    hosts.soon("host2 and host3 are found", || {
        hosts.place(0, "host2") == v4(2) && hosts.place(0, "10.77.0.3") == v4(3)
    });
}
