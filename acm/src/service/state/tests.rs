//! Services whose carriers are queue pairs that reach each other in this process.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use doorbell_verbs::mads::{GROUP_PAIR, MadEvent};
use doorbell_verbs::model::ModelDevice;
use doorbell_verbs::subnet::{Answer as SubnetAnswer, Reply as SubnetReply, Request};

use super::super::snapshot::View;
use super::*;
use crate::carrier::fake::{self, Network, infiniband, roce};
use crate::config::{Interfaces, RouteProtocol};
use crate::endpoint::Endpoint;
use crate::path::Mtu;
use crate::resolver::EntryState;

/// An administrator that grants everything.
#[derive(Default)]
struct Granting {
    replies: VecDeque<SubnetReply>,
    joined: usize,
    left: usize,
    manager: u16,
    /// The LID of the next group.
    lid: u16,
    is_silent: bool,
}

struct GrantingLine(Rc<RefCell<Granting>>);

impl Line for GrantingLine {
    fn ask(&mut self, transaction: u32, request: &Request, _: Duration, _: u32) -> Result<(), String> {
        let mut own = self.0.borrow_mut();
        let answer = match request {
            Request::Path(record, _) => SubnetAnswer::Path(*record),
            Request::Join(record, _) => {
                own.joined += 1;
                let mut record = *record;
                (record.lid, record.mtu, record.rate) = (own.lid.into(), 0x84, 0x83);
                SubnetAnswer::Joined(record)
            }
            Request::Leave(record, _) => {
                own.left += 1;
                SubnetAnswer::Joined(*record)
            }
        };
        let answer = Some(answer).filter(|_| !own.is_silent);
        own.replies.push_back(SubnetReply { transaction, answer });
        Ok(())
    }

    fn next_reply(&mut self) -> Result<Option<SubnetReply>, String> {
        Ok(self.0.borrow_mut().replies.pop_front())
    }

    fn manager(&self) -> Result<u16, String> {
        Ok(self.0.borrow().manager)
    }
}

struct Host {
    state: State,
    log: std::sync::mpsc::Receiver<String>,
    subnet: Rc<RefCell<Granting>>,
}

impl Host {
    fn new(network: &Rc<RefCell<Network>>, own: Endpoint, route_prot: RouteProtocol) -> Self {
        Self::over(Box::new(fake::carrier(network)), own, route_prot)
    }

    fn over(carrier: Box<dyn Carrier>, own: Endpoint, route_prot: RouteProtocol) -> Self {
        let mut config = ServiceConfig::default();
        config.options.doorbell_interfaces = Interfaces::All;
        config.options.route_prot = route_prot;
        config.options.timeout = Duration::from_millis(300);
        let (tell, said) = std::sync::mpsc::channel();
        let log = Log::new(Box::new(move |line| drop(tell.send(line.to_owned()))), Vec::new());
        let served = Arc::new(ServerCounters::default());
        let mut state = State::new(config, None, HostInventory::default(), served, log).unwrap();
        state.carrier = registered(AnyCarrier(carrier)).unwrap();
        let subnet = Rc::new(RefCell::new(Granting {
            manager: 1,
            lid: 0xc005,
            ..Granting::default()
        }));
        let line = Rc::clone(&subnet);
        let open = move |_: &str, _: u8| {
            let line: Box<dyn Line> = Box::new(GrantingLine(Rc::clone(&line)));
            Ok(line)
        };
        state.subnets = Subnets::new(Box::new(open), Duration::from_millis(100), 0);
        state.host(HostInventory {
            endpoints: vec![own],
            ..HostInventory::default()
        });
        Self {
            state,
            log: said,
            subnet,
        }
    }

    /// The lines of the log since the last call.
    fn said(&self) -> Vec<String> {
        self.log.try_iter().collect()
    }

    /// The entry that this service has for an address.
    fn knows(&self, destination: &Address) -> Option<(EntryState, Gid, Option<Mtu>)> {
        let all = self.state.resolver().snapshot();
        let found = all.into_iter().find(|entry| entry.destination == *destination)?;
        Some((found.state, found.peer?.gid, found.mtu))
    }

    fn resolve(&mut self, destination: &Address) {
        let question = Question::Resolve {
            source: None,
            destination: destination.clone(),
            no_delay: false,
        };
        let own = self.state.resolver().endpoints().next().unwrap().1;
        let chosen = own.addresses.iter().find_map(Address::ip);
        let now = self.state.now();
        self.state.tickets += 1;
        let ticket = self.state.tickets;
        self.state.resolver.query(now, ticket, &question, chosen);
        self.state.act();
    }
}

/// Turns all hosts until it is so.
fn until(what: &str, hosts: &mut [&mut Host], mut done: impl FnMut(&mut [&mut Host]) -> bool) {
    let start = Instant::now();
    while !done(hosts) {
        let states = || {
            hosts
                .iter()
                .map(|host| View::of(&host.state).line())
                .collect::<String>()
        };
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "never happened: {what}
{}",
            states()
        );
        let more = hosts
            .iter_mut()
            .fold(false, |more, host| host.state.turn() | more);
        if !more {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn in_a_runtime(test: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let _entered = runtime.as_ref().unwrap().enter();
    test();
}

#[test]
fn hosts_of_a_link_resolve_each_other_over_queue_pairs() {
    in_a_runtime(|| {
        let network = Network::new();
        let mut a = Host::new(&network, roce("a", 1), RouteProtocol::Sa);
        let mut b = Host::new(&network, roce("b", 2), RouteProtocol::Sa);
        let wanted = Address::V4([10, 0, 0, 2].into());
        // Nothing but the answer teaches it: what has been announced by now is forgotten.
        until("announcements", &mut [&mut a, &mut b], |hosts| {
            hosts[0].knows(&wanted).is_some()
        });
        a.state.failed(&wanted);
        assert_eq!(a.knows(&wanted), None);
        a.resolve(&wanted);
        let gid = Gid::of_ip([10, 0, 0, 2].into());
        until(
            "an answer",
            &mut [&mut a, &mut b],
            |hosts| matches!(hosts[0].knows(&wanted), Some((EntryState::Ready, found, _)) if found == gid),
        );
        let inner = network.borrow();
        let answered = inner.nodes.values().nth(1).unwrap();
        assert!(
            answered
                .sent
                .iter()
                .any(|to| to.pair == *inner.nodes.keys().next().unwrap())
        );
        drop(inner);
        // What is sent after a pause has the time of then: it waits for a neighbour from then on.
        std::thread::sleep(Duration::from_millis(20));
        let now = a.state.now();
        a.resolve(&Address::V4([10, 0, 0, 7].into()));
        assert!(network.borrow_mut().node("a").1.sent_at >= now);
        assert_eq!(a.state.carrier_kind(), "ud");
        assert_eq!(a.subnet.borrow().joined, 0, "there is no administrator");
    });
}

#[test]
fn in_a_subnet_groups_are_joined_left_and_joined_anew() {
    in_a_runtime(|| {
        let network = Network::new();
        let mut a = Host::new(&network, infiniband("a", 1), RouteProtocol::Sa);
        let mut b = Host::new(&network, infiniband("b", 2), RouteProtocol::Sa);
        let wanted = Address::V4([10, 0, 0, 2].into());
        a.resolve(&wanted);
        let gid: Gid = "fe80::2".parse().unwrap();
        until(
            "an answer",
            &mut [&mut a, &mut b],
            |hosts| matches!(hosts[0].knows(&wanted), Some((EntryState::Ready, found, _)) if found == gid),
        );
        let groups = |network: &Rc<RefCell<Network>>| network.borrow_mut().node("a").1.groups.clone();
        let [(group, lid)] = groups(&network)
            .into_iter()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert_eq!((lid, a.subnet.borrow().joined), (0xc005, 1));
        // What the port has become is looked at whenever that may have changed.
        let look = a.state.look();
        let is_looked_at = || {
            let mut looked = std::pin::pin!(look.notified());
            looked.as_mut().enable()
        };
        assert!(!is_looked_at());
        // The manager requires it; there is another manager; each time the group has another LID.
        for (joined, renewed) in [(2, "required"), (3, "another manager")] {
            a.subnet.borrow_mut().lid = 0xc100 + joined;
            if renewed == "required" {
                network.borrow_mut().raise("a", MadEvent::Renew);
            } else {
                a.subnet.borrow_mut().manager = 9;
            }
            until(renewed, &mut [&mut a, &mut b], |_| {
                groups(&network) == BTreeMap::from([(group, 0xc100 + joined)])
            });
            assert_eq!(a.subnet.borrow().joined, usize::from(joined));
            assert_eq!(is_looked_at(), renewed == "required");
        }
        // A manager that does not answer takes nothing away: queries still go to the group.
        a.subnet.borrow_mut().is_silent = true;
        network.borrow_mut().raise("a", MadEvent::Renew);
        until("silence", &mut [&mut a, &mut b], |hosts| {
            hosts[0]
                .state
                .trouble()
                .is_some_and(|words| words.contains("cannot join the group"))
        });
        let sent = |network: &Rc<RefCell<Network>>| {
            let mut inner = network.borrow_mut();
            let to_all = inner.node("a").1.sent.iter().filter(|to| to.pair == GROUP_PAIR);
            to_all.count()
        };
        let before = sent(&network);
        a.resolve(&Address::V4([10, 0, 0, 7].into()));
        until("a query", &mut [&mut a, &mut b], |_| sent(&network) > before);
        a.state.end();
        assert_eq!(a.subnet.borrow().left, 1);
    });
}

#[test]
fn what_the_system_refuses_is_shown_and_tried_again() {
    in_a_runtime(|| {
        let network = Network::new();
        network.borrow_mut().refuses = Some("CAP_NET_RAW is missing".to_owned());
        let mut a = Host::new(&network, infiniband("a", 1), RouteProtocol::Acm);
        let shown: Vec<&String> = a.state.unserved().values().collect();
        assert_eq!(shown, ["CAP_NET_RAW is missing"]);
        assert_eq!(
            a.subnet.borrow().joined,
            0,
            "without a queue pair there is nothing to join"
        );
        a.state.turn();
        assert_eq!(a.said(), ["a is not served: CAP_NET_RAW is missing"]);
        let refused = a.state.must_serve_any().unwrap_err().to_string();
        assert_eq!(
            refused,
            "no message can be exchanged with other services: a is not served: CAP_NET_RAW is missing"
        );
        network.borrow_mut().refuses = Some("no memory is left".to_owned());
        a.state.serve_endpoints();
        for _ in 0..3 {
            a.state.turn();
        }
        assert_eq!(
            a.said(),
            ["a is not served: no memory is left"],
            "it is another reason"
        );
        network.borrow_mut().refuses = None;
        until("it is served", &mut [&mut a], |hosts| {
            let network = network.borrow();
            hosts[0].state.unserved().is_empty() && network.nodes.values().any(|node| node.groups.len() == 2)
        });
        assert_eq!(a.said(), ["a is served now"]);
        assert!(a.state.must_serve_any().is_ok());
        // Its device fails: another queue pair is in both groups.
        network.borrow_mut().raise("a", MadEvent::Gone);
        until("it is served again", &mut [&mut a], |_| {
            let network = network.borrow();
            network
                .nodes
                .values()
                .filter(|node| node.groups.len() == 2)
                .count()
                == 2
        });
    });
}

/// A host whose queue pair is one of the model of the library.
fn over_the_model(device: &ModelDevice, own: Endpoint) -> Host {
    let options = Options {
        doorbell_interfaces: Interfaces::All,
        ..Options::default()
    };
    let device = device.clone();
    let open = move |_: &Endpoint, depth: usize| device.mad_port(depth).map_err(|error| error.to_string());
    let settings = carrier::Settings::of(&options, None);
    let carrier = UdCarrier::with(settings, 64, Box::new(open)).unwrap();
    Host::over(Box::new(carrier), own, RouteProtocol::Sa)
}

#[test]
fn services_over_the_model_of_the_library_resolve_each_other() {
    in_a_runtime(|| {
        over_the_model_with(0);
        over_the_model_with(5);
    });
}

/// On Ethernet, or on InfiniBand with LIDs from this one on.
fn over_the_model_with(first_lid: u16) {
    let (is_infiniband, kind) = (first_lid != 0, first_lid as u8);
    let own = |number: u8| {
        // Its GIDs are addresses of this machine, for which no neighbour has to be looked up.
        let gid = IpAddr::from([127, 0, 13, kind + number]);
        let ip = if is_infiniband {
            IpAddr::from([10, 0, 0, number])
        } else {
            gid
        };
        Endpoint {
            link: if is_infiniband {
                Link::InfiniBand
            } else {
                Link::Ethernet
            },
            lid: if is_infiniband {
                first_lid + u16::from(number)
            } else {
                0
            },
            gid: Gid::of_ip(gid),
            addresses: vec![ip.into()],
            networks: vec![crate::endpoint::Network { ip, prefix: 24 }],
            ..roce(&format!("acm-model-{kind}-{number}"), number)
        }
    };
    let device = |number: u8| {
        let end = own(number);
        ModelDevice::new(&end.device, [127, 0, 13, kind + number], end.lid)
    };
    let (one, two) = (device(1), device(2));
    let mut a = over_the_model(&one, own(1));
    let mut b = over_the_model(&two, own(2));
    let wanted = own(2).addresses[0].clone();
    let resolved = |hosts: &mut [&mut Host]| matches!(hosts[0].knows(&wanted), Some((EntryState::Ready, ..)));
    a.resolve(&wanted);
    until("an answer", &mut [&mut a, &mut b], resolved);
    assert_eq!(a.state.unserved().len() + b.state.unserved().len(), 0);
    // A queue pair that failed is set up again, and answers.
    two.break_pairs();
    until("it is set up again", &mut [&mut a, &mut b], |hosts| {
        hosts[1].state.carried().resets == 1
    });
    a.state.failed(&wanted);
    a.resolve(&wanted);
    until("another answer", &mut [&mut a, &mut b], resolved);
    let joined = a.subnet.borrow().joined;
    one.require_renewal();
    if is_infiniband {
        until("it has joined again", &mut [&mut a, &mut b], |hosts| {
            hosts[0].subnet.borrow().joined == joined + 1
        });
    } else {
        assert_eq!(joined, 0);
    }
}
