//! Stories of one or two resolvers.

use super::*;
use crate::address::Name;
use crate::endpoint::{DEFAULT_PKEY, Link, Network};
use crate::path::{Mtu, Rate};

/// An Ethernet endpoint 10.0.0.`n`/24 with a name.
pub(crate) fn endpoint(name: &str, n: u8) -> Endpoint {
    let ip: IpAddr = [10, 0, 0, n].into();
    Endpoint {
        device: "eth0".into(),
        other_names: Vec::new(),
        guid: n.into(),
        interface: 2,
        port: 1,
        ports: 1,
        pkey: DEFAULT_PKEY,
        link: Link::Ethernet,
        gid: Gid::of_ip(ip),
        lid: 0,
        mtu: Mtu::MAX,
        rate: Rate::within(100_000),
        subnet_timeout: 0,
        addresses: vec![Address::Name(Name::new(name).expect("a name")), ip.into()],
        networks: vec![Network { ip, prefix: 24 }],
    }
}

use std::time::Duration;

use crate::mad::{Direction, Group, Groups, Resolve};
use crate::path::Path;
use crate::query::{Answer, CounterScope, Found};
use crate::status::Status;

const MILLISECOND: Duration = Duration::from_millis(1);

/// A resolver with its clock.
struct Host {
    resolver: Resolver,
    now: Time,
    qpn: u32,
    actions: Vec<Action>,
}

impl Host {
    fn new(name: &str, n: u8, options: Options) -> Self {
        Self::with(vec![endpoint(name, n)], options)
    }

    fn with(endpoints: Vec<Endpoint>, options: Options) -> Self {
        let mut number = 0;
        let random = Box::new(move || {
            number += 1;
            number
        });
        let mut host = Self {
            resolver: Resolver::new(options, Time::ZERO, random),
            now: Time::ZERO,
            qpn: 7,
            actions: Vec::new(),
        };
        host.resolver.host(Time::ZERO, endpoints);
        host.pass(Duration::from_secs(2));
        host.actions.clear();
        host
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.resolver.next_deadline().filter(|due| *due <= end) {
            self.now = due;
            self.resolver.tick(due);
            self.collect();
        }
        self.now = end;
        self.resolver.tick(end);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(act) = self.resolver.pop_action() {
            self.actions.push(act);
        }
    }

    fn query(&mut self, ticket: Ticket, question: &Question) -> Option<Answer> {
        self.resolver
            .query(self.now, ticket, question, Some([10, 0, 0, 1].into()));
        self.collect();
        self.answer(ticket)
    }

    fn resolve(&mut self, ticket: Ticket, to: &Address) -> Option<Answer> {
        self.query(ticket, &to_address(to))
    }

    /// The answer to a query; there is one at most.
    fn answer(&mut self, wanted: Ticket) -> Option<Answer> {
        let is_it = |act: &Action| matches!(act, Action::Answer { ticket, .. } if *ticket == wanted);
        let mut told: Vec<Action> = self.actions.extract_if(.., |act| is_it(act)).collect();
        assert!(told.len() <= 1);
        match told.pop() {
            Some(Action::Answer { answer, .. }) => Some(answer),
            _ => None,
        }
    }

    fn sender(&self) -> Sender {
        let (_, endpoint) = self.resolver.endpoints().next().expect("one");
        Sender {
            gid: endpoint.gid,
            lid: endpoint.lid,
            qpn: self.qpn,
            trusted: true,
        }
    }

    fn receive(&mut self, from: Sender, mad: &[u8]) {
        self.resolver.receive(self.now, EndpointId(1), from, mad);
        self.collect();
    }

    /// The messages that it has sent, to all or to one.
    fn sent_messages(&mut self) -> Vec<Resolve> {
        let is_said = |act: &mut Action| matches!(act, Action::Multicast { .. } | Action::Unicast { .. });
        let said: Vec<Action> = self.actions.extract_if(.., is_said).collect();
        let read = |act| match act {
            Action::Multicast { mad, .. } | Action::Unicast { mad, .. } => {
                Resolve::read(&mad[..]).expect("valid")
            }
            other => panic!("{other:?}"),
        };
        said.into_iter().map(read).collect()
    }

    /// Both send their messages, until there is nothing left.
    fn exchange(&mut self, other: &mut Self) {
        loop {
            let (one, two) = (self.sent_messages(), other.sent_messages());
            for host in [&mut *self, &mut *other] {
                host.resolver.sent(host.now, EndpointId(1));
                host.collect();
            }
            if one.is_empty() && two.is_empty() {
                return;
            }
            let (me, him) = (self.sender(), other.sender());
            one.iter().for_each(|said| other.receive(me, &said.bytes()));
            two.iter().for_each(|said| self.receive(him, &said.bytes()));
        }
    }

    fn state(&self, of: &Address) -> Option<EntryState> {
        let all = self.resolver.snapshot();
        all.iter()
            .find(|known| known.destination == *of)
            .map(|known| known.state)
    }
}

fn name(text: &str) -> Address {
    Address::Name(Name::new(text).expect("a name"))
}

fn ip(n: u8) -> Address {
    Address::V4([10, 0, 0, n].into())
}

fn to_address(to: &Address) -> Question {
    Question::Resolve {
        source: Some(ip(1)),
        destination: to.clone(),
        no_delay: false,
    }
}

/// A question for the path to 10.0.0.`n`, to be verified.
fn verified(n: u8) -> Question {
    Question::Path {
        path: Path {
            sgid: Gid::of_ip([10, 0, 0, 1].into()),
            dgid: Gid::of_ip([10, 0, 0, n].into()),
            ..Path::default()
        },
        verify: true,
    }
}

fn path_of(answer: Option<Answer>) -> Path {
    match answer {
        Some(Ok(Found::Path { path, .. })) => *path,
        other => panic!("no path: {other:?}"),
    }
}

fn pair(options: &Options) -> (Host, Host) {
    (
        Host::new("a", 1, options.clone()),
        Host::new("b", 2, options.clone()),
    )
}

#[test]
fn a_question_an_answer_and_then_the_cache() {
    let (mut a, mut b) = pair(&Options::default());
    assert_eq!(a.resolve(1, &name("b")), None);
    assert_eq!(a.state(&name("b")), Some(EntryState::QueryAddress));
    a.exchange(&mut b);
    let path = path_of(a.answer(1));
    assert_eq!(
        (path.dgid, path.sgid),
        (Gid::of_ip([10, 0, 0, 2].into()), Gid::of_ip([10, 0, 0, 1].into()))
    );
    assert_eq!(
        (path.mtu, path.pkey, path.hop_limit),
        (Some(Mtu::MAX), DEFAULT_PKEY, 0)
    );
    assert_eq!(
        path_of(a.resolve(2, &name("B"))),
        path,
        "at once, whatever the case"
    );
    // b has received a's query, and needs to query no other host.
    assert!(matches!(b.state(&ip(1)), Some(EntryState::Ready)));
    let counters = a.resolver.counters(None).unwrap();
    assert_eq!((counters.resolves, counters.address_queries), (2, 1));
    assert_eq!(
        (counters.address_hits, counters.route_hits, counters.errors),
        (1, 1, 0)
    );
    assert_eq!(a.resolver.counters(Some(EndpointId(1))), Some(counters));
}

#[test]
fn a_search_without_an_answer_is_remembered_for_a_while() {
    let mut a = Host::new("a", 1, Options::default());
    assert_eq!(a.resolve(1, &ip(9)), None);
    let bound = a.resolver.options().bound(0);
    let asked = a.now;
    while !a.actions.iter().any(|act| matches!(act, Action::Answer { .. })) {
        a.pass(MILLISECOND);
    }
    assert_eq!(a.answer(1), Some(Err(Status::TimedOut)));
    let took = a.now.since(asked);
    let attempts = a.resolver.options().attempt(0) * 3;
    assert!(
        took <= attempts + MILLISECOND && took <= bound && took > attempts - attempts / 10,
        "{took:?}"
    );
    assert_eq!(a.sent_messages().len(), 15, "five times in each attempt");
    assert_eq!(a.resolve(2, &ip(9)), Some(Err(Status::TimedOut)), "remembered");
    assert_eq!(a.state(&ip(9)), Some(EntryState::Refused(Status::TimedOut)));
    // New evidence counts more.
    let mut b = Host::new("b", 9, Options::default());
    b.resolver.host(b.now, vec![endpoint("c", 9)]);
    b.pass(Duration::from_secs(1));
    a.exchange(&mut b);
    path_of(a.resolve(3, &ip(9)));
    a.pass(Duration::from_secs(1));
    assert_eq!(a.resolver.counters(None).unwrap().errors, 2);
}

#[test]
fn no_delay_waits_for_nothing_and_begins() {
    let (mut a, mut b) = pair(&Options::default());
    let question = Question::Resolve {
        source: Some(ip(1)),
        destination: ip(2),
        no_delay: true,
    };
    assert_eq!(a.query(1, &question), Some(Err(Status::NoData)));
    a.exchange(&mut b);
    path_of(a.query(2, &question));
    let counters = a.resolver.counters(None).unwrap();
    assert_eq!((counters.no_data, counters.errors), (1, 0));
}

#[test]
fn a_stale_entry_is_confirmed_first() {
    let options = Options {
        watched: 0,
        ..Options::default()
    };
    let (mut a, mut b) = pair(&options);
    a.resolve(1, &name("b"));
    a.exchange(&mut b);
    path_of(a.answer(1));
    a.pass(Duration::from_millis(1500));
    assert_eq!(a.state(&name("b")), Some(EntryState::Unconfirmed));
    assert_eq!(a.resolve(2, &name("b")), None);
    assert_eq!(a.state(&name("b")), Some(EntryState::Confirming));
    let before = a.resolver.stats().multicasts;
    a.exchange(&mut b);
    path_of(a.answer(2));
    assert_eq!(a.resolver.stats().multicasts, before, "one to one");
    // The name is another host's now: the old one does not answer, and all are queried.
    a.pass(Duration::from_millis(1500));
    let mut c = Host::new("b", 3, options);
    assert_eq!(a.resolve(3, &name("b")), None);
    a.sent_messages();
    a.pass(Duration::from_millis(300));
    a.exchange(&mut c);
    assert_eq!(path_of(a.answer(3)).dgid, Gid::of_ip([10, 0, 0, 3].into()));
}

#[test]
fn what_is_used_is_confirmed_in_the_background_for_a_while() {
    let (mut a, mut b) = pair(&Options::default());
    a.resolve(1, &ip(2));
    a.exchange(&mut b);
    path_of(a.answer(1));
    let live = |a: &mut Host, b: &mut Host, time: u32| {
        for _ in 0..time {
            a.pass(10 * MILLISECOND);
            a.exchange(b);
        }
    };
    for ticket in 2..10 {
        live(&mut a, &mut b, 80);
        path_of(a.resolve(ticket, &ip(2)));
    }
    live(&mut a, &mut b, 4000);
    let background = a.resolver.stats().background;
    a.pass(Duration::from_secs(10));
    assert_eq!(
        a.resolver.stats().background,
        background,
        "it is not used any more"
    );
    assert!(background > 20, "{background}");
}

#[test]
fn an_expired_entry_is_not_returned() {
    let options = Options {
        addr_timeout: Some(Duration::from_secs(60)),
        confirm: Duration::ZERO,
        ..Options::default()
    };
    let (mut a, mut b) = pair(&options);
    a.resolve(1, &ip(2));
    a.exchange(&mut b);
    path_of(a.answer(1));
    a.pass(Duration::from_secs(40));
    path_of(a.resolve(2, &ip(2)));
    assert_eq!(a.sent_messages().len(), 0);
    a.pass(Duration::from_secs(15));
    path_of(a.resolve(3, &ip(2)));
    assert_eq!(
        a.sent_messages().len(),
        1,
        "used shortly before its end, it is queried again"
    );
    a.pass(Duration::from_secs(6));
    assert_eq!(a.resolve(4, &ip(2)), None, "nobody answered");
}

#[test]
fn with_a_key_only_answers_teach() {
    let options = Options {
        authenticated: true,
        ..Options::default()
    };
    let (mut a, mut b) = pair(&options);
    let said = Resolve {
        direction: Direction::Question,
        transaction: 1,
        destination: Some(ip(2)),
        source: Some(ip(66)),
        groups: Groups::new([Group::new(DEFAULT_PKEY, Rate::within(10_000), Mtu::MAX).gid()]),
    };
    let thief = Sender {
        gid: Gid::of_ip([10, 0, 0, 66].into()),
        lid: 0,
        qpn: 1,
        trusted: true,
    };
    b.receive(thief, &said.bytes());
    assert_eq!(b.resolver.sizes().0, 0, "a question teaches nothing");
    assert_eq!(b.sent_messages().len(), 1, "but is answered");
    let stranger = Sender {
        trusted: false,
        ..thief
    };
    b.receive(stranger, &said.bytes());
    assert_eq!((b.sent_messages().len(), b.resolver.stats().untrusted), (0, 1));
    a.resolve(1, &ip(2));
    a.exchange(&mut b);
    path_of(a.answer(1));
    // An old question played back makes it doubtful, and no more.
    let replayed = Resolve {
        source: Some(ip(2)),
        ..said
    };
    a.receive(thief, &replayed.bytes());
    assert_eq!(a.state(&ip(2)), Some(EntryState::Unconfirmed));
    assert_eq!(a.resolve(2, &ip(2)), None);
    a.exchange(&mut b);
    assert_eq!(path_of(a.answer(2)).dgid, Gid::of_ip([10, 0, 0, 2].into()));
}

#[test]
fn only_requested_answers_count() {
    let (mut a, b) = pair(&Options::default());
    a.resolve(1, &ip(2));
    let question = a.sent_messages().remove(0);
    let answer = Resolve {
        direction: Direction::Answer { status: 0 },
        transaction: question.transaction,
        destination: question.source.clone(),
        source: Some(ip(2)),
        groups: question.groups,
    };
    let wrong = [
        Resolve {
            transaction: 99,
            ..answer.clone()
        },
        Resolve {
            source: Some(ip(3)),
            ..answer.clone()
        },
    ];
    for wrong in &wrong {
        a.receive(b.sender(), &wrong.bytes());
    }
    a.receive(b.sender(), &[0; 256]);
    a.receive(b.sender(), &[0; 3]);
    let stats = a.resolver.stats();
    assert_eq!((stats.unasked, stats.mismatched), (1, 1));
    assert_eq!(stats.malformed.values().sum::<u64>(), 2);
    assert_eq!(a.answer(1), None);
    a.receive(b.sender(), &answer.bytes());
    path_of(a.answer(1));
    a.receive(b.sender(), &answer.bytes());
    assert_eq!(a.resolver.stats().unasked, 2, "it counts once");
    // No group in common is an answer, too.
    a.resolve(2, &ip(5));
    let question = a.sent_messages().remove(0);
    let no = Resolve {
        direction: Direction::Answer { status: 9 },
        transaction: question.transaction,
        source: Some(ip(5)),
        ..answer
    };
    a.receive(b.sender(), &no.bytes());
    assert_eq!(a.answer(2), Some(Err(Status::DestinationAddress)));
}

#[test]
fn sources_are_given_or_chosen() {
    let (mut a, mut b) = pair(&Options::default());
    let question = |source: Option<Address>, destination: Address| Question::Resolve {
        source,
        destination,
        no_delay: false,
    };
    let cases = [
        (Some(ip(7)), ip(2), Status::SourceAddress),
        (None, name("b"), Status::DestinationType),
        (
            Some(ip(1)),
            Address::V4([0, 0, 0, 0].into()),
            Status::DestinationAddress,
        ),
        (Some(ip(1)), Address::Lid(3), Status::DestinationAddress),
    ];
    for (ticket, (source, destination, status)) in (1..).zip(cases) {
        assert_eq!(a.query(ticket, &question(source, destination)), Some(Err(status)));
    }
    let open = question(None, ip(2));
    a.resolver.query(a.now, 10, &open, None);
    a.collect();
    assert_eq!(
        a.answer(10),
        Some(Err(Status::SourceAddress)),
        "the kernel has no route"
    );
    a.resolver.query(a.now, 11, &open, Some([10, 0, 0, 1].into()));
    a.collect();
    a.exchange(&mut b);
    let told = a.answer(11);
    assert!(matches!(told, Some(Ok(Found::Path { source: Some(own), .. })) if own == ip(1)));
}

#[test]
fn this_host_is_reached_at_once_or_as_any_other() {
    let mut a = Host::new("a", 1, Options::default());
    let path = path_of(a.resolve(1, &name("a")));
    assert_eq!((path.dgid, path.mtu), (path.sgid, Some(Mtu::MAX)));
    let mut a = Host::new(
        "a",
        1,
        Options {
            loopback_prot: LoopbackProtocol::None,
            ..Options::default()
        },
    );
    assert_eq!(a.resolve(1, &name("a")), None);
}

#[test]
fn endpoints_go_and_their_questions_end() {
    let (mut a, mut b) = pair(&Options::default());
    a.resolve(1, &ip(2));
    a.exchange(&mut b);
    path_of(a.answer(1));
    assert_eq!(a.resolve(2, &ip(9)), None);
    // The name stays, the address changes: what was learned through the endpoint is forgotten.
    a.resolver.host(a.now, vec![endpoint("a", 4)]);
    a.collect();
    assert_eq!(a.answer(2), Some(Err(Status::SourceAddress)));
    assert_eq!(a.resolver.sizes().0, 0);
    a.pass(Duration::from_secs(1));
    let said = a.sent_messages();
    assert!(
        said.iter()
            .any(|said| said.source == Some(ip(4)) && said.destination == Some(ip(4)))
    );
    a.resolver.host(a.now, Vec::new());
    a.collect();
    let left = a.actions.iter().filter(|act| matches!(act, Action::Leave { .. }));
    assert_eq!(left.count(), 2);
    assert_eq!(a.resolve(3, &ip(2)), Some(Err(Status::SourceAddress)));
    assert_eq!(
        a.resolver.next_deadline().map(|_| ()),
        None,
        "nothing is left to do"
    );
}

#[test]
fn beyond_a_router_a_path_is_probed_before_it_is_returned() {
    let mut a = Host::new("a", 1, Options::default());
    let far = Address::V4([192, 168, 1, 1].into());
    assert_eq!(a.resolve(1, &far), None);
    let Some(Action::Probe {
        id,
        large,
        destination,
        ..
    }) = a.actions.pop()
    else {
        panic!("no probe")
    };
    assert_eq!((large, destination), (4096, Gid::of_ip([192, 168, 1, 1].into())));
    a.resolver.probed(a.now, id, Ok(Probed { largest: 1400 }));
    a.collect();
    let path = path_of(a.answer(1));
    assert_eq!((path.hop_limit, path.mtu), (64, Mtu::within(1024)));
    assert_eq!(path_of(a.resolve(2, &far)), path);
    a.pass(Duration::from_secs(2));
    assert_eq!(a.resolve(3, &far), None, "probed again");
    a.pass(Duration::from_secs(2));
    assert_eq!(a.answer(3), Some(Err(Status::TimedOut)));
}

#[test]
fn loaded_addresses_and_the_administration() {
    let options = Options {
        has_sa: true,
        ..Options::default()
    };
    let mut a = Host::new("a", 1, options);
    let gid = Gid::of_ip([10, 0, 0, 8].into());
    a.resolver.preload(a.now, Table::new([(name("c"), gid)], []));
    assert_eq!(a.resolve(1, &name("c")), None);
    let Some(Action::QuerySa { id, path, .. }) = a.actions.pop() else {
        panic!("not asked")
    };
    assert_eq!((path.dgid, path.num_path), (gid, 1));
    assert_eq!(a.resolve(2, &name("c")), None);
    let told = Path {
        dlid: 0,
        sl: 3,
        ..*path
    };
    a.resolver.sa(a.now, id, Ok(told));
    a.collect();
    assert_eq!((path_of(a.answer(1)).sl, path_of(a.answer(2)).sl), (3, 3));
    path_of(a.resolve(3, &name("c")));
    assert_eq!(a.resolver.counters(None).unwrap().route_queries, 1);
    // A client could not use it.
    a.resolver.failed(a.now, &name("c"));
    assert_eq!(a.resolve(4, &name("c")), None);
    let Some(Action::QuerySa { id, .. }) = a.actions.pop() else {
        panic!("not asked")
    };
    a.resolver.sa(a.now, id, Err(sa::NoPath::Silent));
    a.collect();
    assert_eq!(a.answer(4), Some(Err(Status::TimedOut)));
    // Verification goes there as it is.
    let described = Path {
        sgid: Gid::of_ip([10, 0, 0, 1].into()),
        dgid: gid,
        service_id: 5,
        ..Path::default()
    };
    let question = Question::Path {
        path: described,
        verify: true,
    };
    assert_eq!(a.query(5, &question), None);
    let Some(Action::QuerySa { id, path, .. }) = a.actions.pop() else {
        panic!("not asked")
    };
    assert_eq!(path.service_id, 5);
    a.resolver.sa(a.now, id, Ok(*path));
    a.collect();
    assert_eq!(path_of(a.answer(5)).service_id, 5);
}

#[test]
fn a_path_that_is_tried_holds_up_no_question_to_the_administration() {
    let mut a = Host::new(
        "a",
        1,
        Options {
            has_sa: true,
            verify: true,
            ..Options::default()
        },
    );
    let gid = |n: u8| Gid::of_ip([10, 0, 0, n].into());
    a.resolver
        .preload(a.now, Table::new([(ip(2), gid(2)), (ip(3), gid(3))], []));
    assert_eq!((a.resolve(1, &ip(2)), a.resolve(2, &ip(3))), (None, None));
    let Some(Action::QuerySa { id, path, .. }) = a.actions.pop() else {
        panic!("not asked")
    };
    assert_eq!((path.dgid, a.actions.len()), (gid(2), 0), "one at a time");
    a.resolver.sa(a.now, id, Ok(*path));
    a.collect();
    probe_of(&mut a).expect("it is tried");
    assert!(
        matches!(a.actions.pop(), Some(Action::QuerySa { path, .. }) if path.dgid == gid(3)),
        "meanwhile"
    );
}

#[test]
fn without_an_administrator_verification_is_a_probe() {
    let (mut a, mut b) = pair(&Options::default());
    assert_eq!(a.query(1, &verified(2)), None);
    a.exchange(&mut b);
    let Some(Action::Probe { id, .. }) = a.actions.pop() else {
        panic!("no probe")
    };
    a.resolver.probed(a.now, id, Ok(Probed { largest: 2048 }));
    a.collect();
    assert_eq!(path_of(a.answer(1)).mtu, Mtu::within(2048));
    assert_eq!(
        path_of(a.resolve(2, &ip(2))).mtu,
        Mtu::within(2048),
        "it is remembered"
    );
}

/// A fast host and a slow one: what they have in common is the group that all are in.
fn unlike(options: &Options) -> (Host, Host) {
    let slow = Endpoint {
        rate: Rate::within(40_000),
        ..endpoint("b", 2)
    };
    let fast = Host::new("a", 1, options.clone());
    (fast, Host::with(vec![slow], options.clone()))
}

#[test]
fn where_an_endpoint_has_changed_what_is_looked_for_is_looked_for_anew() {
    let (mut a, mut b) = unlike(&Options::default());
    assert_eq!(a.query(1, &verified(2)), None);
    a.exchange(&mut b);
    let (old, _) = probe_of(&mut a).expect("it is tried");
    let mtu = Mtu::within(1024).expect("a size");
    let changed = Endpoint {
        mtu,
        ..endpoint("a", 1)
    };
    a.resolver.host(a.now, vec![changed]);
    a.collect();
    // It was another way that this one has tried.
    a.resolver.probed(a.now, old, Err(NotProbed::Silent));
    a.collect();
    assert_eq!((a.answer(1), a.resolver.waiting()), (None, 1));
    a.exchange(&mut b);
    let (id, large) = probe_of(&mut a).expect("it is tried again");
    a.resolver.probed(a.now, id, Ok(Probed { largest: large }));
    a.collect();
    for told in [a.answer(1), a.resolve(2, &ip(2))] {
        let path = path_of(told);
        assert_eq!((path.mtu, path.rate), (Some(mtu), Some(Rate::within(10_000))));
    }
}

#[test]
fn an_entry_evicted_during_its_probe_is_queried_for_its_route_again() {
    let (mut a, mut b) = unlike(&Options::default());
    assert_eq!(a.query(1, &verified(2)), None);
    a.exchange(&mut b);
    let (id, large) = probe_of(&mut a).expect("it is tried");
    a.resolver.failed(a.now, &ip(2));
    a.resolver.probed(a.now, id, Ok(Probed { largest: large }));
    a.collect();
    assert_eq!(path_of(a.answer(1)).rate, Some(Rate::within(10_000)));
    assert_eq!(a.resolve(2, &ip(2)), None);
    a.exchange(&mut b);
    assert_eq!(path_of(a.answer(2)).rate, Some(Rate::within(10_000)));
}

/// A route that is forgotten before its owner is, is queried from the owner, and not taken to be what this
/// end can do.
#[test]
fn a_route_that_expired_is_the_owners_to_tell() {
    for life in [0, 1] {
        let (mut a, mut b) = unlike(&Options {
            confirm: Duration::ZERO,
            route_timeout: Some(Duration::from_secs(life)),
            ..Options::default()
        });
        for ticket in 1..4 {
            assert_eq!(a.resolve(ticket, &ip(2)), None);
            a.exchange(&mut b);
            assert_eq!(path_of(a.answer(ticket)).rate, Some(Rate::within(10_000)));
            a.pass(Duration::from_secs(2));
        }
    }
}

/// The number of the probe that was wanted last, and its size.
fn probe_of(a: &mut Host) -> Option<(ProbeId, u32)> {
    let is_probe = |act: &mut Action| matches!(act, Action::Probe { .. });
    match a.actions.extract_if(.., is_probe).last() {
        Some(Action::Probe { id, large, .. }) => Some((id, large)),
        _ => None,
    }
}

/// Bytes of the path's MTU that is answered without waiting for a probe.
fn size_of_path(a: &mut Host, b: &mut Host, ticket: Ticket) -> Option<u32> {
    let told = a.resolve(ticket, &ip(2));
    a.exchange(b);
    path_of(told.or_else(|| a.answer(ticket)))
        .mtu
        .map(|mtu| mtu.bytes())
}

#[test]
fn a_path_that_was_cut_grows_again() {
    let (mut a, mut b) = pair(&Options::default());
    let ended = |a: &mut Host, id: ProbeId, result: Result<Probed, NotProbed>| {
        a.resolver.probed(a.now, id, result);
        a.collect();
    };
    assert_eq!(a.query(1, &verified(2)), None);
    a.exchange(&mut b);
    let (id, large) = probe_of(&mut a).expect("it is tried");
    assert_eq!(large, 4096);
    ended(&mut a, id, Ok(Probed { largest: 1072 }));
    assert_eq!(path_of(a.answer(1)).mtu, Mtu::within(1024));
    // Soon after it stays as it is; later the owner's size is tried again, without a wait for that.
    a.pass(Duration::from_secs(9));
    assert_eq!(size_of_path(&mut a, &mut b, 2), Some(1024));
    assert_eq!(probe_of(&mut a), None);
    a.pass(Duration::from_secs(2));
    assert_eq!(size_of_path(&mut a, &mut b, 3), Some(1024));
    let (id, large) = probe_of(&mut a).expect("it is tried again");
    assert_eq!((large, size_of_path(&mut a, &mut b, 4)), (4096, Some(1024)));
    // Nothing came back, of which it is no reason to be refused.
    ended(&mut a, id, Err(NotProbed::Silent));
    assert_eq!(size_of_path(&mut a, &mut b, 5), Some(1024));
    assert_eq!(probe_of(&mut a), None, "not at once");
    a.pass(Duration::from_secs(11));
    assert_eq!(size_of_path(&mut a, &mut b, 6), Some(1024));
    let (id, _) = probe_of(&mut a).expect("it is tried again");
    ended(&mut a, id, Ok(Probed { largest: 4144 }));
    assert_eq!(size_of_path(&mut a, &mut b, 7), Some(4096));
    a.pass(Duration::from_secs(11));
    assert_eq!(size_of_path(&mut a, &mut b, 8), Some(4096));
    assert_eq!(probe_of(&mut a), None, "there is nothing larger");
    // A verification tries the whole size at any time.
    assert_eq!(a.query(9, &verified(2)), None);
    let (id, _) = probe_of(&mut a).expect("it is tried");
    ended(&mut a, id, Ok(Probed { largest: 304 }));
    assert_eq!(path_of(a.answer(9)).mtu, Mtu::within(256));
    assert_eq!(a.query(10, &verified(2)), None);
    let (id, large) = probe_of(&mut a).expect("it is tried");
    ended(&mut a, id, Ok(Probed { largest: 4144 }));
    assert_eq!((large, path_of(a.answer(10)).mtu), (4096, Some(Mtu::MAX)));
}

#[test]
fn an_announced_path_is_tried_before_it_is_returned_where_all_is_verified() {
    let (mut a, mut b) = pair(&Options {
        verify: true,
        ..Options::default()
    });
    b.resolver.host(b.now, vec![endpoint("c", 2)]);
    b.pass(Duration::from_secs(1));
    a.exchange(&mut b);
    assert_eq!(
        a.state(&ip(2)),
        Some(EntryState::Ready),
        "a message of it was received"
    );
    assert_eq!(a.resolve(1, &ip(2)), None);
    let (id, _) = probe_of(&mut a).expect("it is tried");
    a.resolver.probed(a.now, id, Ok(Probed { largest: 560 }));
    a.collect();
    assert_eq!(path_of(a.answer(1)).mtu, Mtu::within(512));
    assert_eq!(size_of_path(&mut a, &mut b, 2), Some(512), "and not again");
    assert_eq!(probe_of(&mut a), None);
}

#[test]
fn a_failed_verification_fails_only_its_own_query() {
    let (mut a, mut b) = pair(&Options::default());
    let probe = |a: &mut Host| match a.actions.pop() {
        Some(Action::Probe { id, .. }) => id,
        other => panic!("no probe: {other:?}"),
    };
    // One client wants it verified, and another one, which queries at the same time, does not.
    assert_eq!(a.query(1, &verified(2)), None);
    assert_eq!(a.resolve(2, &ip(2)), None);
    a.exchange(&mut b);
    path_of(a.answer(2));
    assert_eq!(a.answer(1), None);
    let id = probe(&mut a);
    a.resolver.probed(a.now, id, Err(NotProbed::Silent));
    a.collect();
    assert_eq!(a.answer(1), Some(Err(Status::TimedOut)));
    path_of(a.resolve(3, &ip(2)));
    // A query that comes while it is tried, when the owner has sent nothing for long.
    assert_eq!(a.query(4, &verified(2)), None);
    let id = probe(&mut a);
    a.pass(Duration::from_millis(999));
    let joined = a.resolve(5, &ip(2));
    a.resolver.probed(a.now, id, Err(NotProbed::Unsent));
    a.collect();
    path_of(joined.or_else(|| a.answer(5)));
    assert_eq!(a.answer(4), Some(Err(Status::NotConnected)));
    assert_ne!(a.state(&ip(2)), Some(EntryState::Refused(Status::TimedOut)));
}

#[test]
fn where_all_is_verified_a_failed_probe_fails_every_query() {
    let (mut a, mut b) = pair(&Options {
        verify: true,
        ..Options::default()
    });
    assert_eq!(a.query(1, &verified(2)), None);
    assert_eq!(a.resolve(2, &ip(2)), None);
    a.exchange(&mut b);
    assert_eq!(a.answer(2), None);
    a.pass(Duration::from_secs(1));
    assert_eq!(a.answer(1), Some(Err(Status::TimedOut)));
    assert_eq!(a.answer(2), Some(Err(Status::TimedOut)));
    assert_eq!(a.state(&ip(2)), Some(EntryState::Refused(Status::TimedOut)));
}

#[test]
fn a_dead_host_delays_no_other() {
    let (mut a, mut b) = pair(&Options::default());
    for (ticket, dead) in (10..).zip(20..40) {
        assert_eq!(a.resolve(ticket, &ip(dead)), None);
    }
    let asked = a.now;
    assert_eq!(a.resolve(1, &ip(2)), None);
    while a.answer(1).is_none() {
        a.pass(MILLISECOND);
        a.exchange(&mut b);
    }
    let took = a.now.since(asked);
    assert!(
        took <= a.resolver.options().lent(0) * 21,
        "{took:?}: each dead one takes its turn, once"
    );
    a.pass(a.resolver.options().bound(0));
    for ticket in 10..30 {
        assert_eq!(a.answer(ticket), Some(Err(Status::TimedOut)));
    }
}

#[test]
fn everything_is_bounded() {
    let options = Options {
        entries: 4,
        searches: 3,
        questions: 5,
        questions_each: 2,
        history: 3,
        ..Options::default()
    };
    let mut a = Host::new("a", 1, options);
    for ticket in 0..3 {
        let told = a.resolve(ticket, &ip(50));
        assert_eq!(told.is_some(), ticket == 2, "two wait for one");
    }
    for (ticket, n) in (10..).zip(60..64) {
        let told = a.resolve(ticket, &ip(n));
        assert_eq!(told.is_some(), n >= 62, "three are looked for");
    }
    assert_eq!(a.resolver.waiting(), 4);
    a.resolver.forget(0);
    a.resolver.forget(0);
    assert_eq!((a.resolver.waiting(), a.answer(0)), (3, None));
    let mut b = Host::new("b", 2, Options::default());
    a.resolve(30, &ip(50));
    for n in 2..40 {
        b.resolver.host(b.now, vec![endpoint("b", n)]);
        b.pass(Duration::from_secs(1));
        a.exchange(&mut b);
    }
    assert!(a.resolver.sizes().0 <= 4);
    assert!(a.resolver.history().count() <= 3);
    assert!(a.resolver.stats().evicted > 0);
}

#[test]
fn a_used_entry_stays_when_many_hosts_announce() {
    let options = Options {
        entries: 2,
        ..Options::default()
    };
    let (mut a, mut b) = pair(&options);
    for (ticket, to) in [(1, ip(2)), (2, name("b"))] {
        a.resolve(ticket, &to);
        a.exchange(&mut b);
        path_of(a.answer(ticket));
    }
    for n in 3..30 {
        let mut other = Host::new("c", n, Options::default());
        other.resolver.host(other.now, vec![endpoint("d", n)]);
        other.pass(Duration::from_secs(1));
        a.exchange(&mut other);
    }
    path_of(a.resolve(3, &ip(2)));
    path_of(a.resolve(4, &name("b")));
}

#[test]
fn counters_and_endpoints_are_returned() {
    let mut a = Host::new("a", 1, Options::default());
    let told = a.query(1, &Question::Counters(CounterScope::Owner(name("a"))));
    assert!(matches!(told, Some(Ok(Found::Counters(_)))));
    let none = [
        CounterScope::Index(0),
        CounterScope::Index(2),
        CounterScope::Owner(ip(9)),
    ];
    for (ticket, scope) in (2..).zip(none) {
        let told = a.query(ticket, &Question::Counters(scope));
        assert_eq!(told, Some(Err(Status::SourceAddress)));
    }
    let told = a.query(9, &Question::Endpoint { port: 1, index: 1 });
    assert!(matches!(told, Some(Ok(Found::Endpoint { endpoint, .. })) if endpoint.device == "eth0"));
    for (ticket, (port, index)) in (10..).zip([(1, 0), (1, 2), (2, 1), (0, 1)]) {
        let told = a.query(ticket, &Question::Endpoint { port, index });
        assert_eq!(told, Some(Err(Status::Invalid)));
    }
}

#[test]
fn answers_to_others_wait_for_their_credit() {
    let (mut a, mut b) = pair(&Options {
        waiting: 2,
        ..Options::default()
    });
    a.resolve(1, &ip(2));
    let question = a.sent_messages().remove(0);
    for _ in 0..5 {
        b.receive(a.sender(), &question.bytes());
    }
    assert_eq!(b.sent_messages().len(), 1);
    assert_eq!(b.resolver.stats().unanswered, 2);
    b.resolver.sent(b.now, EndpointId(1));
    b.collect();
    assert_eq!(b.sent_messages().len(), 1);
    b.pass(Duration::from_secs(1));
    assert_eq!(b.sent_messages().len(), 1, "it was not reported as gone");
}

mod model {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LIFE: Duration = Duration::from_secs(10);

    #[derive(Clone, Debug)]
    enum Step {
        /// This name is at this host now.
        Hear(u8, u8),
        Ask(u8),
        Failed(u8),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u8..6, 10u8..14).prop_map(|(name, at)| Step::Hear(name, at)),
            5 => (0u8..6).prop_map(Step::Ask),
            1 => (0u8..6).prop_map(Step::Failed),
            4 => (0u64..4000).prop_map(Step::Pass),
        ]
    }

    fn named(n: u8) -> Address {
        name(&format!("n{n}"))
    }

    proptest! {
        /// The model is a map of what was received last, and when.
        #[test]
        fn an_overheard_entry_is_returned_until_it_expires(steps in proptest::collection::vec(step(), 0..60)) {
            let options = Options { addr_timeout: Some(LIFE), confirm: Duration::ZERO, ..Options::default() };
            let mut a = Host::new("a", 1, options);
            let mut model = BTreeMap::<u8, (u8, Time)>::new();
            for (ticket, step) in (1..).zip(steps) {
                match step {
                    Step::Hear(n, at) => {
                        let gid = Gid::of_ip([10, 0, 0, at].into());
                        let from = Sender { gid, lid: 0, qpn: 1, trusted: false };
                        // The group that all are in.
                        let mtu = Mtu::within(2048).expect("a size");
                        let group = Group::new(DEFAULT_PKEY, Rate::within(10_000), mtu);
                        let said = Resolve {
                            direction: Direction::Question,
                            transaction: ticket,
                            destination: Some(named(n)),
                            source: Some(named(n)),
                            groups: Groups::new([group.gid()]),
                        };
                        a.receive(from, &said.bytes());
                        model.insert(n, (at, a.now + LIFE));
                    }
                    Step::Ask(n) => {
                        let known = model.get(&n).filter(|(_, until)| *until > a.now);
                        // Shortly before its end it is queried again, which is another story.
                        if known.is_some_and(|(_, until)| until.since(a.now) < LIFE / 8) {
                            continue;
                        }
                        let told = a.resolve(ticket, &named(n));
                        a.resolver.forget(ticket);
                        match known {
                            Some((at, _)) => prop_assert_eq!(path_of(told).dgid, Gid::of_ip([10, 0, 0, *at].into())),
                            None => prop_assert!(!matches!(told, Some(Ok(_))), "{:?}", told),
                        }
                    }
                    Step::Failed(n) => {
                        a.resolver.failed(a.now, &named(n));
                        model.remove(&n);
                    }
                    Step::Pass(millis) => a.pass(Duration::from_millis(millis)),
                }
                a.sent_messages();
            }
        }
    }
}

#[test]
fn an_address_that_is_mapped_into_ipv6_is_known_by_its_own_family() {
    let mapped = |n: u8| Address::V6(std::net::Ipv4Addr::from([10, 0, 0, n]).to_ipv6_mapped());
    let mut written = endpoint("a", 1);
    written.addresses[1] = mapped(1);
    let mut a = Host::with(vec![written], Options::default());
    let gid = Gid::of_ip([10, 0, 0, 9].into());
    let route = Path {
        dgid: gid,
        ..Path::default()
    };
    a.resolver.preload(a.now, Table::new([(mapped(9), gid)], [route]));
    assert_eq!(a.resolver.owner(&ip(1)), a.resolver.owner(&mapped(1)));
    assert!(a.resolver.owner(&mapped(1)).is_some());
    let question = Question::Resolve {
        source: Some(mapped(1)),
        destination: mapped(9),
        no_delay: true,
    };
    assert_eq!(path_of(a.query(1, &question)).dgid, gid);
    // On the wire, too: a receiver needs no other context to read it.
    a.query(2, &to_address(&mapped(2)));
    let said = a.sent_messages();
    assert!(
        said.iter().any(|said| said.destination == Some(ip(2))),
        "{said:?}"
    );
}
