//! Paths and groups of a simulated InfiniBand subnet, whose administrator is a real OpenSM.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::{Duration, Instant};

use doorbell_acm::address::{Address, Gid};
use doorbell_acm::endpoint::{Endpoint, Link};
use doorbell_acm::mad::Group;
use doorbell_acm::path::{Mtu, Path, Rate};
use doorbell_acm::query::{Answer, Found, Question};
use doorbell_acm::resolver::{Action, EndpointId, Options, Resolver};
use doorbell_acm::sa::{Line, SubnetEvent, Subnets};
use doorbell_acm::status::Status;
use doorbell_fabric::clock::Clock;
use doorbell_testing::subnet::{Subnet, node};

/// A second partition with a service level of its own, and a group in it that the administrator has made.
const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\n\
    Blue=0x0002, sl=5 : ALL=full;\n\
    Red=0x0003, sl=3 :\n  mgid=ff15:4001:8003:3:400::,sl=3,scope=5,mtu=4,rate=3\n  ALL=full;\n";
const PATIENCE: Duration = Duration::from_secs(20);

fn endpoint(pkey: u16) -> Endpoint {
    Endpoint {
        device: "ibsim0".to_owned(),
        other_names: Vec::new(),
        guid: 0x10_0003,
        interface: 0,
        port: 1,
        ports: 1,
        pkey,
        link: Link::InfiniBand,
        gid: "fe80::10:4".parse().unwrap(),
        lid: 0,
        mtu: Mtu::within(2048).unwrap(),
        rate: Rate::within(10_000),
        subnet_timeout: 18,
        addresses: vec![Address::Gid("fe80::10:4".parse().unwrap())],
        networks: Vec::new(),
    }
}

/// A resolver and the administrators that it queries, on the system's clock.
struct Node {
    clock: Clock,
    resolver: Resolver,
    subnets: Subnets<Box<dyn Line>>,
    answers: VecDeque<(u64, Answer)>,
}

impl Node {
    fn new(ends: Vec<Endpoint>) -> Self {
        let clock = Clock::system();
        let options = Options::default();
        let subnets = Subnets::of_system(options.attempt(18), options.retries);
        let mut resolver = Resolver::new(options, clock.now(), Box::new(|| 7));
        resolver.host(clock.now(), ends);
        let answers = VecDeque::new();
        Self {
            clock,
            resolver,
            subnets,
            answers,
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.subnets.turn(now);
        while let Some(event) = self.subnets.event() {
            match event {
                SubnetEvent::Path { id, answer } => self.resolver.sa(now, id, answer),
                other => panic!("{other:?}"),
            }
        }
        self.resolver.tick(now);
        while let Some(action) = self.resolver.pop_action() {
            match action {
                Action::Answer { ticket, answer } => self.answers.push_back((ticket, answer)),
                Action::QuerySa { id, endpoint, path } => {
                    let own = self.resolver.endpoint(endpoint).expect("it asks").clone();
                    self.subnets.path(now, &own, id, &path);
                }
                _ => {}
            }
        }
    }

    fn verify(&mut self, ticket: u64, path: Path) -> Answer {
        let begun = Instant::now();
        let question = Question::Path { path, verify: true };
        self.resolver.query(self.clock.now(), ticket, &question, None);
        while begun.elapsed() < PATIENCE {
            self.turn();
            if let Some((other, answer)) = self.answers.pop_front() {
                assert_eq!(other, ticket);
                return answer;
            }
            sleep(Duration::from_millis(1));
        }
        panic!("no answer");
    }
}

/// Returns a program's own test as a node of a subnet, or nothing where it is not one: then it has run there.
fn at_a_node(test: &str) -> Option<()> {
    if node().is_some() {
        return Some(());
    }
    let subnet = Subnet::start(test, PARTITIONS)?;
    subnet.again(test, "node2").unwrap();
    None
}

fn to(dgid: &str, pkey: u16) -> Path {
    Path {
        sgid: "fe80::10:4".parse().unwrap(),
        dgid: dgid.parse().unwrap(),
        pkey,
        reversible: true,
        num_path: 1,
        ..Path::default()
    }
}

#[test]
fn a_real_administrator_verifies_paths() {
    let Some(()) = at_a_node("a_real_administrator_verifies_paths") else {
        return;
    };
    let mut node = Node::new(vec![endpoint(0xffff), endpoint(0x8002)]);
    let Ok(Found::Path { path, .. }) = node.verify(1, to("fe80::10:7", 0xffff)) else {
        panic!("a path")
    };
    assert_eq!((path.pkey, path.sl), (0xffff, 0));
    assert!(path.slid != 0 && path.dlid != 0 && path.mtu.is_some() && path.rate.is_some());
    let Ok(Found::Path { path, .. }) = node.verify(2, to("fe80::10:7", 0x8002)) else {
        panic!("a path")
    };
    assert_eq!((path.pkey, path.sl), (0x8002, 5), "of the partition file");
    assert_eq!(node.verify(3, to("fe80::10:ee", 0xffff)), Err(Status::NoData));
    assert_eq!(node.verify(4, to("fe80::10:7", 0x8009)), Err(Status::NoData));
}

#[test]
fn groups_are_joined_with_the_administrators_properties_and_left() {
    let name = "groups_are_joined_with_the_administrators_properties_and_left";
    let Some(()) = at_a_node(name) else {
        return;
    };
    let clock = Clock::system();
    let mut subnets = Subnets::of_system(Duration::from_secs(1), 2);
    let groups: Vec<(u16, Gid)> = [(0xffff, 2048), (0x8002, 2048), (0x8003, 2048), (0xffff, 1024)]
        .into_iter()
        .map(|(pkey, mtu)| {
            let group = Group::new(pkey, Rate::within(10_000), Mtu::within(mtu).unwrap());
            (pkey, group.gid())
        })
        .collect();
    for (number, (pkey, group)) in groups.iter().enumerate() {
        let id = EndpointId(u32::try_from(number).unwrap());
        subnets.join(clock.now(), id, &endpoint(*pkey), *group);
    }
    let begun = Instant::now();
    let mut joined = Vec::new();
    while joined.len() < groups.len() {
        assert!(begun.elapsed() < PATIENCE, "{joined:?}");
        subnets.turn(clock.now());
        while let Some(event) = subnets.event() {
            let SubnetEvent::Joined {
                endpoint,
                group,
                lid,
                like,
            } = event
            else {
                panic!("{event:?}")
            };
            joined.push((endpoint.0, group, lid, like));
        }
        sleep(Duration::from_millis(1));
    }
    joined.sort_by_key(|(number, ..)| *number);
    let lids: std::collections::BTreeSet<u16> = joined.iter().map(|(_, _, lid, _)| *lid).collect();
    assert_eq!((lids.len(), lids.first() >= Some(&0xc000)), (4, true));
    let (_, group, _, like) = &joined[2];
    assert_eq!(
        (*group, like.sl),
        (groups[2].1, 3),
        "the administrator's group, as it is"
    );
    assert_eq!(joined[3].3.mtu.bytes(), 1024);
    subnets.leave_all(clock.now());
    // The simulator ends a program to which it answers after its port was closed.
    while subnets.is_waiting() {
        assert!(begun.elapsed() < PATIENCE, "leaving is not answered");
        subnets.turn(clock.now());
        sleep(Duration::from_millis(1));
    }
}
