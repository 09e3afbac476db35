//! A service's end: a carrier with one endpoint, and the events that it got.

use std::time::{Duration, Instant};

use doorbell_acm::address::Gid;
use doorbell_acm::carrier::{
    Carrier, EndpointId, Event, Key, Limits, MAD, Mad, Peer, ProbeId, Probed, Settings, UdpCarrier,
};
use doorbell_acm::config::{Interfaces, Options};
use doorbell_acm::endpoint::Endpoint;
use doorbell_acm::host::{Sources, scan};
use doorbell_fabric::time::Time;

/// By when what is waited for has happened; only ever reached when it does not.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of the one endpoint.
pub const END: EndpointId = EndpointId(1);
/// A time, for sockets: they send at once.
pub const NOW: Time = Time::from_nanos(1);

pub fn group() -> Gid {
    "ff15:4001:ffff:3:4::".parse().unwrap()
}

/// Settings with a port of this test's own, so that tests that run at the same time do not receive each
/// other's messages.
pub fn settings(port: u16, key: Option<u8>) -> Settings {
    let options = Options {
        doorbell_port: port,
        doorbell_interfaces: Interfaces::All,
        ..Options::default()
    };
    Settings::of(&options, key.map(|key| Key::of_job(&[key; 32])))
}

/// The endpoint of an interface, as this thread's namespace has it.
pub fn endpoint(interface: &str) -> Endpoint {
    let start = Instant::now();
    loop {
        let found = scan(&Sources::of_system(Vec::new())).unwrap();
        if let Some(end) = found.endpoints.into_iter().find(|end| end.device == interface) {
            return end;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "never happened: {interface} has an address"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub struct Side {
    pub carrier: UdpCarrier,
    pub end: Endpoint,
    pub mads: Vec<(Peer, Option<Gid>, Mad)>,
    pub probed: Vec<(ProbeId, Probed)>,
    pub failed: usize,
    start: Instant,
}

impl Side {
    /// Serves an interface and joins the group; called inside its namespace.
    pub fn new(interface: &str, settings: Settings) -> Self {
        let end = endpoint(interface);
        let mut carrier = UdpCarrier::new(settings).unwrap();
        carrier.serve(END, &end).unwrap();
        carrier.join(END, group()).unwrap();
        carrier.join(END, group()).unwrap();
        Self {
            carrier,
            end,
            mads: Vec::new(),
            probed: Vec::new(),
            failed: 0,
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> Time {
        Time::from_nanos(1 + self.start.elapsed().as_nanos() as u64)
    }

    /// One turn, and its events.
    pub fn turn(&mut self) -> usize {
        let done = self.carrier.turn(self.now());
        while let Some(event) = self.carrier.event() {
            match event {
                Event::Mad {
                    endpoint,
                    from,
                    group,
                    mad,
                } => {
                    assert_eq!(endpoint, END);
                    self.mads.push((from, group, *mad));
                }
                Event::Probed { probe, result } => self.probed.push((probe, result)),
                Event::Renew { .. } => panic!("sockets have no subnet"),
                Event::Failed { endpoint, .. } => {
                    assert_eq!(endpoint, END);
                    self.failed += 1;
                }
            }
        }
        done
    }

    pub fn query(&mut self, mad: &Mad) {
        self.carrier
            .multicast(NOW, END, (group(), self.end.gid), mad)
            .unwrap();
    }

    /// How this side is reached.
    pub fn as_peer(&self) -> Peer {
        let at = self.carrier.addresses(END).next();
        Peer {
            gid: self.end.gid,
            lid: self.end.lid,
            qpn: self.carrier.qpn(),
            at,
            by: None,
        }
    }
}

/// A MAD with this transaction.
pub fn mad(transaction: u8) -> Mad {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 0x2c, 1, 1]);
    mad[15] = transaction;
    mad
}

/// Turns all sides until it is so.
pub fn until(what: &str, sides: &mut [&mut Side], mut done: impl FnMut(&[&mut Side]) -> bool) {
    let start = Instant::now();
    while !done(sides) {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        let work: usize = sides.iter_mut().map(|side| side.turn()).sum();
        if work == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Turns all sides until nothing has come for a while: what was on the way has arrived.
pub fn settle(sides: &mut [&mut Side]) {
    let mut quiet = Instant::now();
    let start = quiet;
    while quiet.elapsed() < Duration::from_millis(100) {
        assert!(start.elapsed() < PATIENCE, "never happened: quiet");
        if sides.iter_mut().map(|side| side.turn()).sum::<usize>() > 0 {
            quiet = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Small bounds, for floods.
pub fn narrow() -> Limits {
    Limits {
        rate: 10,
        burst: 20,
        turn: 16,
        events: 8,
    }
}
