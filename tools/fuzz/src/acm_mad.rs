//! A resolver of addresses on a network of liars: messages of any kind, some of which contain secrets that
//! their sender should not have; an administration and probes that answer anything; hosts that change under
//! it. What is read would be written the same. Questions end once and by their bound, tables stay within
//! theirs, and where a key is required, a host without it teaches nothing, and a host with it teaches nothing
//! by a question.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use doorbell_acm::address::{Address, Gid, Name};
use doorbell_acm::endpoint::{DEFAULT_PKEY, Endpoint, Link, Network};
use doorbell_acm::mad::{Direction, Group, Groups, MAD, Resolve};
use doorbell_acm::path::{Mtu, Path, Rate};
use doorbell_acm::query::{CounterScope, Found, Question};
use doorbell_acm::resolver::{
    Action, EndpointId, Membership, NotProbed, Options, ProbeId, Probed, Resolver, RouteProtocol, Sender,
    Table,
};
use doorbell_acm::sa::{NoPath, QueryId};
use doorbell_fabric::time::Time;

use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 300;
const ENTRIES: usize = 8;
const SEARCHES: usize = 6;
const QUESTIONS: usize = 12;
/// What all of it may take.
const MEMORY: usize = 256 << 10;

struct Victim {
    resolver: Resolver,
    now: Time,
    bound: Duration,
    open: BTreeMap<u64, Time>,
    tickets: u64,
    /// The transactions that it used, which only the receivers of its questions know.
    transactions: Vec<u64>,
    queries: Vec<(QueryId, Path)>,
    probes: Vec<ProbeId>,
    /// Whether an answer with a transaction of the resolver arrived, or anything else that may teach.
    taught: bool,
}

impl Victim {
    fn new(settings: u8) -> Self {
        let mut number = 0u64;
        let random = Box::new(move || {
            number += 1;
            number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        let options = Options {
            authenticated: settings & 1 == 1,
            route_prot: [RouteProtocol::Acm, RouteProtocol::Sa][usize::from(settings >> 1 & 1)],
            has_sa: settings & 4 != 0,
            verify: settings & 8 != 0,
            resolve_depth: u32::from(settings >> 4 & 3),
            entries: ENTRIES,
            searches: SEARCHES,
            questions: QUESTIONS,
            questions_each: 4,
            waiting: 4,
            watched: 4,
            history: 16,
            ..Options::default()
        };
        let mut victim = Self {
            bound: options.bound(31),
            resolver: Resolver::new(options, Time::ZERO, random),
            now: Time::ZERO,
            open: BTreeMap::new(),
            tickets: 0,
            transactions: vec![0],
            queries: Vec::new(),
            probes: Vec::new(),
            taught: false,
        };
        let infiniband = settings & 64 != 0;
        victim.resolver.host(Time::ZERO, hosts(infiniband, 1, 3));
        victim.drain();
        victim
    }

    fn drain(&mut self) {
        while let Some(action) = self.resolver.pop_action() {
            match action {
                Action::Answer { ticket, answer } => {
                    let asked = self.open.remove(&ticket);
                    let asked = asked.unwrap_or_else(|| panic!("{ticket} was not open"));
                    assert!(self.now.since(asked) <= self.bound, "late");
                    if let Ok(Found::Path { path, .. }) = answer {
                        assert!(path.mtu.is_none_or(|mtu| mtu <= Mtu::MAX));
                    }
                }
                Action::Multicast { mad, .. } | Action::Unicast { mad, .. } => {
                    let said = Resolve::read(&mad[..]).expect("it sends what can be parsed");
                    assert_eq!(said.bytes(), *mad);
                    if said.direction == Direction::Question {
                        self.transactions.push(said.transaction);
                    }
                }
                Action::QuerySa { id, path, .. } => self.queries.push((id, *path)),
                Action::Probe { id, .. } => self.probes.push(id),
                Action::Join { .. } | Action::Leave { .. } => {}
            }
        }
        let (entries, searches) = self.resolver.sizes();
        assert!(entries <= ENTRIES && searches <= SEARCHES);
        assert_eq!(self.resolver.waiting(), self.open.len());
        assert!(self.open.len() <= QUESTIONS);
        assert!(
            self.resolver.memory() < MEMORY,
            "{} bytes",
            self.resolver.memory()
        );
        if self.resolver.options().authenticated && !self.taught {
            assert_eq!(entries, 0, "something was learned from a host without the key");
        }
    }

    fn mad(&self, script: &mut Script<'_>) -> (Vec<u8>, bool) {
        let choice = script.byte();
        if choice < 24 {
            return (script.take(MAD + 2).to_vec(), true);
        }
        let is_answer = choice & 1 == 1;
        let known = script.below(self.transactions.len() + 1);
        let group = |script: &mut Script<'_>| {
            let rate = Rate::of(script.byte() % 24).unwrap_or(Rate::MIN);
            let mtu = Mtu::of(script.byte() % 6).unwrap_or(Mtu::MIN);
            Group::new(DEFAULT_PKEY, rate, mtu).gid()
        };
        let mad = Resolve {
            direction: match is_answer {
                true => Direction::Answer {
                    status: u16::from(script.byte() > 240),
                },
                false => Direction::Question,
            },
            transaction: match self.transactions.get(known) {
                Some(transaction) => *transaction,
                None => script.any(),
            },
            destination: Some(address(script)),
            source: Some(address(script)),
            groups: Groups::new((0..script.below(8)).map(|_| group(script)).collect::<Vec<_>>()),
        };
        let mut bytes = mad.bytes().to_vec();
        let spoilt = script.byte() > 200;
        if spoilt {
            let at = script.below(MAD);
            bytes[at] ^= script.byte();
        }
        (bytes, is_answer || spoilt)
    }

    fn receive(&mut self, script: &mut Script<'_>) {
        let (bytes, teaches) = self.mad(script);
        let from = Sender {
            gid: gid(script),
            lid: u16::from(script.byte()),
            qpn: u32::from(script.byte() & 3),
            trusted: script.byte() & 1 == 1,
        };
        self.taught |= teaches && from.trusted;
        let endpoint = EndpointId(u32::from(script.byte() & 3));
        let before = self.resolver.sizes().0;
        self.resolver.receive(self.now, endpoint, from, &bytes);
        if self.resolver.options().authenticated && !from.trusted {
            assert!(self.resolver.sizes().0 <= before, "a stranger taught something");
        }
    }

    fn query(&mut self, script: &mut Script<'_>) {
        self.tickets += 1;
        let question = match script.byte() {
            0..170 => Question::Resolve {
                source: (script.byte() & 1 == 1).then(|| Address::V4([10, 0, 0, 1].into())),
                destination: address(script),
                no_delay: script.byte() > 220,
            },
            170..220 => Question::Path {
                path: Path {
                    sgid: gid(script),
                    dgid: gid(script),
                    dlid: u16::from(script.byte() & 3),
                    slid: u16::from(script.byte() & 3),
                    ..Path::default()
                },
                verify: script.byte() & 1 == 1,
            },
            220..240 => Question::Counters(match script.byte() {
                0..100 => CounterScope::Service,
                100..200 => CounterScope::Index(script.byte()),
                _ => CounterScope::Owner(address(script)),
            }),
            _ => Question::Endpoint {
                port: script.byte(),
                index: script.byte(),
            },
        };
        let chosen = (script.byte() > 20).then(|| IpAddr::from([10, 0, 0, 1]));
        self.open.insert(self.tickets, self.now);
        self.resolver.query(self.now, self.tickets, &question, chosen);
    }

    fn others(&mut self, script: &mut Script<'_>) {
        self.taught = true;
        match script.byte() {
            0..80 => {
                let (id, path) = self
                    .queries
                    .pop()
                    .unwrap_or((QueryId(script.any()), Path::default()));
                let answer = match script.byte() {
                    0..160 => Ok(Path {
                        dlid: u16::from(script.byte()),
                        ..path
                    }),
                    160..200 => Ok(Path::default()),
                    200..220 => Err(NoPath::Unknown),
                    220..240 => Err(NoPath::Silent),
                    _ => Err(NoPath::NoAdministrator),
                };
                self.resolver.sa(self.now, id, answer);
            }
            80..150 => {
                let id = self.probes.pop().unwrap_or(ProbeId(script.any()));
                let result = match script.byte() {
                    0..200 => Ok(Probed {
                        largest: u32::from(script.short()),
                    }),
                    200..230 => Err(NotProbed::Silent),
                    _ => Err(NotProbed::Unsent),
                };
                self.resolver.probed(self.now, id, result);
            }
            150..170 => {
                let endpoints = hosts(script.byte() & 1 == 1, script.byte() & 3, script.byte() & 3);
                self.resolver.host(self.now, endpoints);
            }
            170..190 => {
                let group = Group::new(
                    DEFAULT_PKEY,
                    Rate::within(10_000),
                    Mtu::within(2048).expect("a size"),
                );
                let like = (script.byte() & 1 == 1).then(|| Membership::of(group));
                let endpoint = EndpointId(u32::from(script.byte() & 3));
                self.resolver.joined(self.now, endpoint, group.gid(), like);
            }
            190..210 => {
                let table = Table::new([(address(script), gid(script))], []);
                self.resolver.preload(self.now, table);
            }
            210..225 => self.resolver.failed(self.now, &address(script)),
            225..240 => self
                .resolver
                .sent(self.now, EndpointId(u32::from(script.byte() & 3))),
            _ => {
                if let Some((&ticket, _)) = self.open.first_key_value() {
                    self.open.remove(&ticket);
                    self.resolver.forget(ticket);
                }
            }
        }
    }
}

fn gid(script: &mut Script<'_>) -> Gid {
    match script.byte() & 3 {
        0 => Gid::NONE,
        1 => Gid::of_ip([10, 0, 0, script.byte()].into()),
        2 => "fe80::1".parse().expect("a GID"),
        _ => Gid([script.byte(); 16]),
    }
}

fn address(script: &mut Script<'_>) -> Address {
    let number = script.byte();
    match number % 8 {
        0 => Address::Name(Name::new(&format!("n{}", script.byte() & 15)).expect("a name")),
        1..5 => Address::V4([10, 0, number & 1, script.byte() & 31].into()),
        5 => Address::V6(gid(script).0.into()),
        6 => Address::Gid(gid(script)),
        _ => Address::Lid(u16::from(script.byte() & 3)),
    }
}

fn hosts(infiniband: bool, first: u8, count: u8) -> Vec<Endpoint> {
    let endpoint = |number: u8| {
        let ip = IpAddr::from([10, 0, 0, first + number]);
        Endpoint {
            device: format!("dev{number}"),
            other_names: Vec::new(),
            guid: number.into(),
            interface: 1 + u32::from(number),
            port: 1,
            ports: 1,
            pkey: DEFAULT_PKEY,
            link: match (infiniband, number) {
                (_, 2) => Link::Loopback,
                (true, _) => Link::InfiniBand,
                _ => Link::Ethernet,
            },
            gid: Gid::of_ip(ip),
            lid: u16::from(infiniband) * u16::from(first + number),
            mtu: Mtu::MAX,
            rate: Rate::within(40_000),
            subnet_timeout: 18,
            addresses: vec![ip.into()],
            networks: vec![Network { ip, prefix: 24 }],
        }
    };
    (0..count).map(endpoint).collect()
}

/// Runs a script.
pub fn run(input: &[u8]) {
    if let Ok(said) = Resolve::read(input) {
        assert_eq!(Resolve::read(&said.bytes()), Ok(said));
    }
    if let Some(gid) = input.first_chunk::<16>() {
        let group = Group::of(Gid(*gid));
        assert!(group.is_none_or(|group| group.gid() == Gid(*gid)));
    }
    let mut script = Script::new(input);
    let mut victim = Victim::new(script.byte());
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            0..120 => victim.receive(&mut script),
            120..180 => victim.query(&mut script),
            180..220 => victim.others(&mut script),
            choice => {
                victim.now += Duration::from_micros(1 << (choice % 24));
                victim.tick();
            }
        }
        victim.drain();
    }
    // Whatever was sent, everything ends.
    let end = victim.now + victim.bound + Duration::from_secs(1);
    while let Some(due) = victim.resolver.next_deadline().filter(|due| *due <= end) {
        victim.now = victim.now.max(due);
        victim.resolver.tick(victim.now);
        victim.drain();
    }
    assert!(victim.open.is_empty(), "{:?} never ended", victim.open);
    assert!(!victim.resolver.snapshot().is_empty() || victim.resolver.sizes() == (0, 0));
}

impl Victim {
    /// Advances the time from deadline to deadline, as the owner of a resolver does.
    fn tick(&mut self) {
        let now = self.now;
        while let Some(due) = self.resolver.next_deadline().filter(|due| *due <= now) {
            self.now = due;
            self.resolver.tick(due);
            self.drain();
        }
        self.now = now;
    }
}
