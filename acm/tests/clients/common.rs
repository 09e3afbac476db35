//! A service in a thread, and the table that answers.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_acm::address::{Address, Gid, Name};
use doorbell_acm::client::{Client, Service};
use doorbell_acm::endpoint::{Endpoint, Link};
use doorbell_acm::path::{Mtu, Path, Rate};
use doorbell_acm::query::{Answer, CounterScope, Counters, Found, Question};
use doorbell_acm::serve::{Backend, Count, Reply, Server, ServerCounters, Settings, SocketPaths, Tcp};
use doorbell_acm::status::Status;
use tokio::sync::watch;

/// Far beyond what anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A service that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) places: SocketPaths,
    pub(crate) port: Option<u16>,
    pub(crate) served: Arc<ServerCounters>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Settings with all files in a folder of the test's own.
pub(crate) fn settings(folder: &FilePath) -> Settings {
    Settings {
        places: SocketPaths::within(folder),
        ..Settings::default()
    }
}

/// The same with a TCP socket at a port that the system chooses.
pub(crate) fn with_tcp(folder: &FilePath) -> Settings {
    Settings {
        tcp: Some(Tcp { port: 0, open: false }),
        ..settings(folder)
    }
}

impl Running {
    pub(crate) fn start<B: Backend + Send + 'static>(settings: &Settings, backend: B) -> Self {
        let server = Server::open(settings, Vec::new()).expect("a service");
        Self::run(server, settings.places.clone(), backend)
    }

    pub(crate) fn run<B: Backend + Send + 'static>(server: Server, places: SocketPaths, backend: B) -> Self {
        let (port, served) = (
            server.tcp_address().map(|address| address.port()),
            server.served(),
        );
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let end = runtime.expect("a runtime").block_on(server.run(backend, stopped));
            end.expect("it serves");
        });
        Self {
            places,
            port,
            served,
            stop,
            thread: Some(thread),
        }
    }

    pub(crate) fn unix(&self) -> Service {
        Service::Unix(self.places.socket.clone())
    }

    pub(crate) fn tcp(&self) -> Service {
        Service::Tcp {
            host: "127.0.0.1".to_owned(),
            port: self.port.expect("a TCP socket"),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.unix(), LONG).expect("a client")
    }

    /// Waits until it was counted so often.
    pub(crate) fn until(&self, count: Count, times: u64) {
        let end = Instant::now() + LONG;
        while self.served.of(count) < times {
            assert!(
                Instant::now() < end,
                "{count:?}: {} of {times}",
                self.served.of(count)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until no client is there.
    pub(crate) fn until_empty(&self) {
        let end = Instant::now() + LONG;
        while self.served.present() > 0 {
            assert!(Instant::now() < end, "{} are there", self.served.present());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let end = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(end, Some(Ok(()))), "the service panicked");
        }
    }
}

pub(crate) fn v4(last: u8) -> Address {
    Address::V4([10, 0, 0, last].into())
}

pub(crate) fn name(text: &str) -> Address {
    Address::Name(Name::new(text).unwrap())
}

/// The path to the host with this number.
pub(crate) fn path_to(last: u8) -> Path {
    let mut dgid: Gid = "fe80::".parse().unwrap();
    dgid.0[15] = last;
    Path {
        dgid,
        sgid: "fe80::1".parse().unwrap(),
        dlid: u16::from(last),
        slid: 1,
        hop_limit: 3,
        flow_label: 0x12,
        tclass: 5,
        reversible: true,
        num_path: 1,
        pkey: 0xffff,
        sl: 4,
        mtu: Mtu::within(2048),
        rate: Some(Rate::within(100_000)),
        packet_lifetime: 18,
        ..Path::default()
    }
}

/// The endpoints of the table: two on port 1, one on port 2.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of = |port, addresses: Vec<Address>| Endpoint {
        device: "eth0".to_owned(),
        other_names: Vec::new(),
        guid: 0x0002_c903_0000_0000 + u64::from(port),
        interface: 2,
        port,
        ports: 2,
        pkey: 0xffff,
        link: Link::Ethernet,
        gid: "fe80::1".parse().unwrap(),
        lid: 1,
        mtu: Mtu::MAX,
        rate: Rate::MIN,
        subnet_timeout: 18,
        addresses,
        networks: Vec::new(),
    };
    vec![
        of(1, vec![name("node1"), v4(1)]),
        of(1, vec![name("node1-b")]),
        of(2, vec![Address::V6("fd00::1".parse().unwrap())]),
    ]
}

/// What an endpoint of the table has counted; the service itself is 0.
pub(crate) fn counters(of: u64) -> Counters {
    Counters::from_order([1, 2, 3, 4, 5, 6, 7].map(|count| of * 100 + count))
}

/// The table. Hosts 200 to 210 fail, each with the status that is its number less 200; 250 is known only
/// later.
pub(crate) fn table(question: &Question) -> Answer {
    match question {
        Question::Resolve {
            source,
            destination,
            no_delay,
        } => {
            let last = number(destination).ok_or(Status::DestinationAddress)?;
            if let Some(status) = last.checked_sub(200).and_then(Status::of) {
                return Err(status);
            }
            if last == 250 && *no_delay {
                return Err(Status::NoData);
            }
            let is_ours = |source: &Address| endpoints().iter().any(|endpoint| endpoint.has(source));
            if source.as_ref().is_some_and(|source| !is_ours(source)) {
                return Err(Status::SourceAddress);
            }
            let chosen = match destination {
                Address::V6(_) => Address::V6("fd00::1".parse().unwrap()),
                Address::Name(_) => name("node1"),
                _ => v4(1),
            };
            Ok(Found::Path {
                path: Box::new(path_to(last)),
                source: source.is_none().then_some(chosen),
            })
        }
        Question::Path { path, verify } => {
            let last = if path.dgid.is_none() {
                path.dlid as u8
            } else {
                path.dgid.0[15]
            };
            match last.checked_sub(200).and_then(Status::of) {
                Some(status) => Err(status),
                None if *verify && last == 99 => Err(Status::TimedOut),
                None => Ok(Found::Path {
                    path: Box::new(path_to(last)),
                    source: None,
                }),
            }
        }
        Question::Counters(scope) => {
            let index = match scope {
                CounterScope::Service => 0,
                CounterScope::Index(index) if usize::from(*index) <= endpoints().len() => u64::from(*index),
                CounterScope::Index(_) => return Err(Status::SourceAddress),
                CounterScope::Owner(owner) => {
                    let at = endpoints().iter().position(|endpoint| endpoint.has(owner));
                    at.ok_or(Status::SourceAddress)? as u64 + 1
                }
            };
            Ok(Found::Counters(counters(index)))
        }
        Question::Endpoint { port, index } => {
            let mut there = endpoints().into_iter().filter(|endpoint| endpoint.port == *port);
            let nth = usize::from(*index).checked_sub(1).ok_or(Status::Invalid)?;
            Ok(Found::Endpoint {
                endpoint: Box::new(there.nth(nth).ok_or(Status::Invalid)?),
                provider: "doorbell",
            })
        }
    }
}

/// The last number of an address: `node7`, 10.0.0.7 and fd00::7 are host 7.
fn number(address: &Address) -> Option<u8> {
    match address {
        Address::Name(name) => name.as_str().strip_prefix("node")?.parse().ok(),
        Address::V4(ip) => Some(ip.octets()[3]),
        Address::V6(ip) => Some(ip.octets()[15]),
        Address::Gid(gid) => Some(gid.0[15]),
        Address::Lid(lid) => Some(*lid as u8),
    }
}

/// Answers from the table, at once.
pub(crate) fn at_once(question: Question, reply: Reply) {
    reply.send(&table(&question));
}
