//! Many resolvers on one virtual clock, and a network between them that loses, repeats, delays, reorders and
//! corrupts messages, is partitioned and heals, while hosts restart and are renumbered.
//!
//! Everything follows from the seed. What must hold is looked at with each answer:
//!
//! * a question is answered once, by its bound;
//! * a path in an answer was true within the last two seconds, and neither faster nor larger than both its
//!   ends;
//! * tables are as large as they may be, at most.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use doorbell_acm::address::{Address, Gid, Name};
use doorbell_acm::endpoint::{DEFAULT_PKEY, Endpoint, Link, Network};
use doorbell_acm::mad::MAD;
use doorbell_acm::path::{Mtu, Path, Rate};
use doorbell_acm::query::{Answer, Found, Question};
use doorbell_acm::resolver::{
    Action, EndpointId, NotProbed, Options, Peer, ProbeId, Probed, Resolver, RouteProtocol, Sender, Ticket,
};
use doorbell_acm::sa::{NoPath, QueryId};
use doorbell_acm::status::Status;
use doorbell_fabric::time::Time;
use doorbell_sim::Dice;

/// For this time after a change, what was true before may still be answered.
const TRUE_FOR: Duration = Duration::from_secs(2);
/// Slack (virtual) for messages that are on their way to the querying host.
const SLACK: Duration = Duration::from_millis(1);

/// How bad the network is: each number is one in that many; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) loss: u64,
    pub(crate) again: u64,
    pub(crate) spoilt: u64,
    /// Delay (µs), from and to: what differs is mixed up.
    pub(crate) delay: (u64, u64),
}

/// What a host is like at a time.
#[derive(Clone, Debug)]
struct Place {
    since: Time,
    until: Time,
    gid: Gid,
    lid: u16,
    ip: Address,
}

struct Node {
    resolver: Resolver,
    id: EndpointId,
    life: u64,
    qpn: u32,
    fast: bool,
    side: u8,
    places: Vec<Place>,
    booked: Time,
}

#[derive(Clone, Debug)]
enum Will {
    Tick,
    Hear { from: Sender, bytes: Rc<[u8]> },
    Sa(QueryId, Box<Path>),
    Probed(ProbeId, Gid, u32),
}

#[derive(Clone, Debug)]
struct Open {
    node: usize,
    /// The host that it is about, and the address in the query.
    about: usize,
    to: Address,
    asked: Time,
    bound: Time,
    /// The network had been whole for long.
    sure: bool,
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Score {
    pub(crate) asked: u64,
    pub(crate) found: u64,
    pub(crate) refused: BTreeMap<u8, u64>,
    /// Queries that were answered in the call.
    pub(crate) at_once: u64,
    pub(crate) multicasts: u64,
    pub(crate) deliveries: u64,
    pub(crate) unicasts: u64,
    pub(crate) queries: u64,
    pub(crate) probes: u64,
    pub(crate) restarts: u64,
    pub(crate) renumbered: u64,
    pub(crate) partitions: u64,
    /// How long answers took (ns).
    pub(crate) took: Vec<u64>,
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) score: Score,
    pub(crate) weather: Weather,
    pub(crate) options: Options,
    link: Link,
    nodes: Vec<Node>,
    queue: BinaryHeap<Reverse<(Time, u64, usize, u64)>>,
    wills: BTreeMap<u64, Will>,
    open: BTreeMap<Ticket, Open>,
    dice: Dice,
    numbers: u64,
    /// The number of the last place. It counts nothing else: one place would be two hosts', and an answer to
    /// one of them would reach the other.
    place: u16,
    whole_since: Time,
    seed: u64,
}

impl World {
    pub(crate) fn new(nodes: usize, seed: u64, options: Options, link: Link) -> Self {
        let mut world = Self {
            now: Time::ZERO,
            score: Score::default(),
            weather: Weather {
                delay: (20, 200),
                ..Weather::default()
            },
            options,
            link,
            nodes: Vec::new(),
            queue: BinaryHeap::new(),
            wills: BTreeMap::new(),
            open: BTreeMap::new(),
            dice: Dice::new(seed),
            numbers: 0,
            place: 0,
            whole_since: Time::ZERO,
            seed,
        };
        for at in 0..nodes {
            let resolver = world.resolver();
            let qpn = world.dice.below(1 << 24) as u32;
            world.nodes.push(Node {
                resolver,
                id: EndpointId(0),
                life: 0,
                qpn,
                fast: at % 3 != 0,
                side: 0,
                places: Vec::new(),
                booked: Time::NEVER,
            });
            world.renumber(at);
        }
        world
    }

    /// Seeds differ in everything that is a choice.
    pub(crate) fn of_seed(nodes: usize, seed: u64) -> Self {
        let link = if seed.is_multiple_of(2) {
            Link::InfiniBand
        } else {
            Link::Ethernet
        };
        let options = Options {
            route_prot: if seed.is_multiple_of(3) {
                RouteProtocol::Sa
            } else {
                RouteProtocol::Acm
            },
            has_sa: seed % 4 == 1,
            authenticated: seed % 5 < 2,
            verify: seed.is_multiple_of(7),
            resolve_depth: [1, 4, 32][seed as usize % 3],
            sa_depth: [1, 8][seed as usize % 2],
            send_depth: [1, 16][seed as usize / 2 % 2],
            entries: 256,
            searches: 64,
            questions: 128,
            questions_each: 32,
            groups: vec![(Rate::within(40_000), Mtu::within(2048).expect("a size"))],
            ..Options::default()
        };
        Self::new(nodes, seed, options, link)
    }

    fn resolver(&mut self) -> Resolver {
        let mut dice = Dice::new(self.dice.next_u64());
        let random = Box::new(move || dice.next_u64());
        Resolver::new(self.options.clone(), self.now, random)
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    fn endpoint(&self, at: usize) -> Endpoint {
        let node = &self.nodes[at];
        let place = node.places.last().expect("each has one");
        let ip = place.ip.ip().expect("of IP");
        Endpoint {
            device: "dev0".into(),
            other_names: Vec::new(),
            guid: at as u64,
            interface: 2,
            port: 1,
            ports: 1,
            pkey: DEFAULT_PKEY,
            link: self.link,
            gid: place.gid,
            lid: place.lid,
            mtu: if node.fast {
                Mtu::MAX
            } else {
                Mtu::within(2048).expect("a size")
            },
            rate: Rate::within(if node.fast { 100_000 } else { 40_000 }),
            subnet_timeout: 10,
            addresses: vec![name_of(at), ip.into()],
            networks: vec![Network { ip, prefix: 8 }],
        }
    }

    /// Moves the host to where no host was before: InfiniBand's numbers change, or the IP address does.
    pub(crate) fn renumber(&mut self, at: usize) {
        self.place = self.place.checked_add(1).expect("a place for each");
        let number = self.place;
        let ip = |number: u16| IpAddr::from([10, 0, (number >> 8) as u8, number as u8]);
        let (gid, lid, own) = match self.link {
            Link::InfiniBand => {
                let mut gid = [0; 16];
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[14..].copy_from_slice(&number.to_be_bytes());
                (Gid(gid), number, ip(at as u16))
            }
            _ => (Gid::of_ip(ip(number)), 0, ip(number)),
        };
        let mut others = self.nodes.iter().flat_map(|node| &node.places);
        assert!(
            others.all(|place| place.gid != gid),
            "seed {}: {gid} was another host's",
            self.seed
        );
        let now = self.now;
        let node = &mut self.nodes[at];
        if let Some(last) = node.places.last_mut() {
            last.until = now;
            self.score.renumbered += 1;
        }
        node.places.push(Place {
            since: now,
            until: Time::NEVER,
            gid,
            lid,
            ip: own.into(),
        });
        self.rehost(at);
    }

    fn rehost(&mut self, at: usize) {
        let endpoint = self.endpoint(at);
        let now = self.now;
        let node = &mut self.nodes[at];
        node.resolver.host(now, vec![endpoint]);
        node.id = node.resolver.endpoints().next().expect("it has one").0;
        let apart = self.nodes.iter().any(|node| node.side != 0);
        self.whole_since = if apart { Time::NEVER } else { now };
        self.carry(at);
    }

    /// The service ends, with all that waits there, and begins again.
    pub(crate) fn restart(&mut self, at: usize) {
        let resolver = self.resolver();
        let qpn = self.dice.below(1 << 24) as u32;
        let node = &mut self.nodes[at];
        (node.resolver, node.qpn) = (resolver, qpn);
        (node.life, node.booked) = (node.life + 1, Time::NEVER);
        self.open.retain(|_, open| open.node != at);
        self.score.restarts += 1;
        self.rehost(at);
    }

    pub(crate) fn cut(&mut self, at: usize) {
        self.nodes[at].side ^= 1;
        self.score.partitions += 1;
        let apart = self.nodes.iter().any(|node| node.side != 0);
        self.whole_since = if apart { Time::NEVER } else { self.now };
    }

    pub(crate) fn heal(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.side = 0);
        self.whole_since = self.now;
    }

    /// A client at one host queries another, by its name or its IP address.
    pub(crate) fn query(&mut self, from: usize, about: usize, by_name: bool) {
        let to = match by_name {
            true => name_of(about),
            false => self.nodes[about].places.last().expect("each has one").ip.clone(),
        };
        self.numbers += 1;
        let ticket = self.numbers;
        let now = self.now;
        let node = &mut self.nodes[from];
        let own = node.places.last().expect("each has one").ip.clone();
        let question = Question::Resolve {
            source: Some(own).filter(|_| by_name),
            destination: to.clone(),
            no_delay: false,
        };
        let chosen = node.places.last().and_then(|place| place.ip.ip());
        let open = Open {
            node: from,
            about,
            to,
            asked: now,
            bound: now + self.options.bound(10) + SLACK,
            sure: now.since(self.whole_since) >= TRUE_FOR && self.whole_since <= now,
        };
        self.open.insert(ticket, open);
        self.score.asked += 1;
        node.resolver.query(now, ticket, &question, chosen);
        self.carry(from);
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(&Reverse((at, number, node, life))) = self.queue.peek() {
            if at > end {
                break;
            }
            self.queue.pop();
            self.now = at;
            let Some(will) = self.wills.remove(&number) else {
                continue;
            };
            if self.nodes[node].life == life {
                self.happen(node, will);
            }
        }
        self.now = end;
        for (ticket, open) in &self.open {
            assert!(
                open.bound >= self.now,
                "seed {}: {ticket} is not answered: {open:?}",
                self.seed
            );
        }
    }

    fn happen(&mut self, at: usize, will: Will) {
        let now = self.now;
        let whole = |path: &Path| {
            self.nodes.iter().position(|node| {
                let place = node.places.last().expect("each has one");
                (path.dgid.is_none() || place.gid == path.dgid) && (path.dlid == 0 || place.lid == path.dlid)
            })
        };
        match will {
            Will::Tick => {
                self.nodes[at].booked = Time::NEVER;
                self.nodes[at].resolver.tick(now);
            }
            Will::Hear { from, bytes } => {
                let id = self.nodes[at].id;
                self.nodes[at].resolver.receive(now, id, from, &bytes);
            }
            Will::Sa(id, path) => {
                let answer = whole(&path).map(|other| {
                    let (one, other) = (self.endpoint(at), self.endpoint(other));
                    let slow = std::cmp::min_by_key(one.rate, other.rate, |rate| rate.megabits());
                    Path {
                        dgid: other.gid,
                        dlid: other.lid,
                        mtu: Some(one.mtu.min(other.mtu)),
                        rate: Some(slow),
                        ..*path
                    }
                });
                self.nodes[at].resolver.sa(now, id, answer.ok_or(NoPath::Unknown));
            }
            Will::Probed(id, gid, large) => {
                let path = Path {
                    dgid: gid,
                    ..Path::default()
                };
                let answers = whole(&path).filter(|&other| self.nodes[other].side == self.nodes[at].side);
                let result = answers
                    .map(|_| Probed { largest: large })
                    .ok_or(NotProbed::Silent);
                self.nodes[at].resolver.probed(now, id, result);
            }
        }
        self.carry(at);
    }

    /// Carries out the actions of a resolver.
    fn carry(&mut self, at: usize) {
        while let Some(act) = self.nodes[at].resolver.pop_action() {
            match act {
                Action::Answer { ticket, answer } => self.answered(at, ticket, &answer),
                Action::Join { .. } | Action::Leave { .. } => {}
                Action::Multicast { mad, .. } => {
                    self.score.multicasts += 1;
                    let mad: Rc<[u8]> = Rc::from(&mad[..]);
                    for other in 0..self.nodes.len() {
                        if other != at {
                            self.send(at, other, &mad, true);
                        }
                    }
                }
                Action::Unicast {
                    endpoint,
                    to,
                    mad,
                    answer,
                } => {
                    self.score.unicasts += 1;
                    let mad: Rc<[u8]> = Rc::from(&mad[..]);
                    // The host that has the queue pair now, if it is where it is looked for.
                    let there = self.nodes.iter().position(|node| {
                        let place = node.places.last().expect("each has one");
                        (place.gid, place.lid) == (to.gid, to.lid) && is_reached(self.link, node, to)
                    });
                    if let Some(other) = there {
                        self.send(at, other, &mad, false);
                    }
                    if answer {
                        let now = self.now;
                        self.nodes[at].resolver.sent(now, endpoint);
                    }
                }
                Action::QuerySa { id, path, .. } => {
                    self.score.queries += 1;
                    self.later(at, Duration::from_micros(300), Will::Sa(id, path));
                }
                Action::Probe {
                    id,
                    destination,
                    large,
                    ..
                } => {
                    self.score.probes += 1;
                    self.later(
                        at,
                        Duration::from_micros(200),
                        Will::Probed(id, destination, large),
                    );
                }
            }
        }
        let (now, node) = (self.now, &self.nodes[at]);
        let due = node.resolver.next_deadline().unwrap_or(Time::NEVER);
        if due < node.booked {
            self.nodes[at].booked = due;
            self.later(at, due.since(now), Will::Tick);
        }
    }

    fn later(&mut self, at: usize, after: Duration, will: Will) {
        self.numbers += 1;
        let (number, life) = (self.numbers, self.nodes[at].life);
        self.wills.insert(number, will);
        self.queue.push(Reverse((self.now + after, number, at, life)));
    }

    fn send(&mut self, at: usize, to: usize, mad: &Rc<[u8]>, multicast: bool) {
        let weather = self.weather;
        if self.nodes[at].side != self.nodes[to].side || self.dice.one_in(weather.loss) {
            return;
        }
        let node = &self.nodes[at];
        let place = node.places.last().expect("each has one");
        let from = Sender {
            gid: place.gid,
            lid: place.lid,
            qpn: node.qpn,
            trusted: true,
        };
        let copies = 1 + u64::from(self.dice.one_in(weather.again));
        for _ in 0..copies {
            self.score.deliveries += u64::from(multicast);
            let mut bytes = Rc::clone(mad);
            if self.dice.one_in(weather.spoilt) {
                // What a checksum does not see: a head of something else, or half a message.
                let mut spoilt = mad.to_vec();
                match self.dice.below(2) {
                    0 => spoilt[self.dice.below(3) as usize] ^= 0x80,
                    _ => spoilt.truncate(self.dice.below(MAD as u64) as usize),
                }
                bytes = spoilt.into();
            }
            let (least, most) = weather.delay;
            let delay = Duration::from_micros(least + self.dice.below(most - least + 1));
            self.later(to, delay, Will::Hear { from, bytes });
        }
    }

    fn answered(&mut self, at: usize, ticket: Ticket, answer: &Answer) {
        let open = self.open.remove(&ticket);
        let open = open.unwrap_or_else(|| panic!("seed {}: {ticket} was not open", self.seed));
        let (seed, now) = (self.seed, self.now);
        assert_eq!(at, open.node, "seed {seed}");
        assert!(now <= open.bound, "seed {seed}: late: {open:?}");
        self.score.at_once += u64::from(now == open.asked);
        self.score.took.push(now.since(open.asked).as_nanos() as u64);
        match answer {
            Ok(Found::Path { path, .. }) => {
                self.score.found += 1;
                self.check(&open, path);
            }
            Ok(other) => panic!("seed {seed}: {other:?} is no path"),
            Err(status) => {
                *self.score.refused.entry(status.code()).or_default() += 1;
                let excused = *status == Status::NoMemory || self.whole_since >= open.asked;
                assert!(
                    !open.sure || excused,
                    "seed {seed}: {status} at {now}, and the network is whole since {}: {open:?}\n{:#?}",
                    self.whole_since,
                    self.nodes[at].resolver.snapshot(),
                );
            }
        }
    }

    /// The path is one that was true recently.
    fn check(&self, open: &Open, path: &Path) {
        let lately = |place: &&Place| place.until + TRUE_FOR >= self.now && place.since <= self.now;
        let node = &self.nodes[open.about];
        let own = open.node == open.about;
        let mut places = node.places.iter().filter(lately);
        let is_true = places.any(|place| {
            let is_named = matches!(open.to, Address::Name(_)) || place.ip == open.to;
            is_named && path.dgid == place.gid && path.dlid == place.lid || own && path.dlid == place.lid
        });
        assert!(
            is_true,
            "seed {}: at {} {open:?} got {path:?}; it is {:?}",
            self.seed, self.now, node.places
        );
        let (one, other) = (self.endpoint(open.node), self.endpoint(open.about));
        let slow = one.rate.megabits().min(other.rate.megabits());
        let is_small = path.mtu.is_some_and(|mtu| mtu <= one.mtu.min(other.mtu));
        assert!(
            is_small && path.rate.is_some_and(|rate| rate.megabits() <= slow),
            "seed {}: at {} {open:?} got {path:?}; the slower end does {slow} Mb/s",
            self.seed,
            self.now
        );
    }

    /// Nothing is larger than it may be; and how large, of the largest.
    pub(crate) fn memory(&self) -> usize {
        for node in &self.nodes {
            let (entries, searches) = node.resolver.sizes();
            let options = &self.options;
            assert!(entries <= options.entries && searches <= options.searches);
            assert!(node.resolver.waiting() <= options.questions);
        }
        let memory = self.nodes.iter().map(|node| node.resolver.memory());
        memory.max().unwrap_or(0)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.open.len()
    }
}

/// A queue pair of an earlier run takes nothing; without InfiniBand the process that listens there does.
fn is_reached(link: Link, node: &Node, to: Peer) -> bool {
    link != Link::InfiniBand || node.qpn == to.qpn
}

fn name_of(at: usize) -> Address {
    Address::Name(Name::new(&format!("n{at}")).expect("a name"))
}

/// A whole story: calm, bad weather with everything that can happen to hosts, and calm again.
pub(crate) fn story(world: &mut World, seed: u64) {
    let mut dice = Dice::new(seed ^ 0xACED);
    let nodes = world.len() as u64;
    let pick = |dice: &mut Dice| dice.below(nodes) as usize;
    let some = |world: &mut World, dice: &mut Dice, count: usize| {
        for _ in 0..count {
            let (from, to) = (pick(dice), pick(dice));
            world.query(from, to, dice.one_in(2));
        }
    };
    some(world, &mut dice, 5);
    world.run(Duration::from_millis(2500));
    world.weather = Weather {
        loss: [0, 20, 10][seed as usize % 3],
        again: 10,
        spoilt: 50,
        delay: (20, [200, 5_000, 20_000][seed as usize / 3 % 3]),
    };
    for _ in 0..60 {
        some(world, &mut dice, 4);
        match dice.below(16) {
            0 => world.restart(pick(&mut dice)),
            1 => world.renumber(pick(&mut dice)),
            2 => world.cut(pick(&mut dice)),
            // No host learns where it is now.
            6 => {
                let alone = pick(&mut dice);
                world.cut(alone);
                world.run(Duration::from_millis(50));
                world.renumber(alone);
            }
            3..6 => world.heal(),
            _ => {}
        }
        world.run(Duration::from_millis(dice.below(600)));
    }
    world.heal();
    world.run(TRUE_FOR);
    for from in 0..world.len() {
        for by_name in [false, true] {
            world.query(from, pick(&mut dice), by_name);
        }
        world.run(Duration::from_millis(2));
    }
    world.run(world.options.bound(10) + SLACK);
    assert_eq!(world.waiting(), 0, "seed {seed}: all questions are answered");
}
