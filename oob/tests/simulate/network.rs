//! A network for the simulator: subnets, NICs, connections that carry messages in order until they break, and
//! for each process and transport the real [`Meeting`] that decides about connections.
//!
//! A connection breaks silently where the network does (NIC, partition): what is sent from then on is gone,
//! and both ends notice after the keep-alive time. Where a process ends, its peers notice after one latency.
//!
//! A transport that is [`mutual`](Network::mutual) is like one over rails: a process does not answer a peer
//! that was not announced to it; a frame is sent when it has arrived; and a peer that fell silent is no path,
//! until it answers again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_oob::bytes::Bytes;
use doorbell_oob::connect::{Action, Conn, Limits, Meeting};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::transport::{Address, Command, Event, LinkId, Loss, ModuleId, Path, Refusal, TransportId};
use doorbell_oob::wire::Frame;
use doorbell_sim::Dice;

/// What a process's end of the network is called: its rank, which life, which transport.
pub(crate) type Port = (u32, u64, u8);

/// Something that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Will {
    Tell(Port, Event),
    Dialled(u64),
    Accept(u64),
    DialFailed(Port, Conn),
    Hello(u64, usize, Vec<u8>),
    Frame(u64, usize, Bytes),
    Sent(u64, usize, u64),
    Ended(u64, usize, Loss),
    MeetingTick(Port),
    /// Peers that fell silent are called, and again after this time.
    Revive(Port, Duration),
}

#[derive(Debug)]
struct Pipe {
    ends: [Option<End>; 2],
    subnet: u16,
    broken: bool,
    /// Nothing arrives before what was sent earlier.
    last: [Time; 2],
    /// The wire is busy until then.
    busy: [Time; 2],
}

#[derive(Clone, Copy, Debug)]
struct End {
    port: Port,
    conn: Conn,
    link: Option<LinkId>,
    frames: u64,
}

#[derive(Debug)]
struct Site {
    meeting: Meeting,
    links: u64,
    booked: Time,
    /// The peers to which paths were requested, with their addresses.
    asked: BTreeMap<Name, Vec<Address>>,
    /// Of these, those that are silent.
    silent: BTreeSet<Name>,
    /// And are being called.
    revives: bool,
}

/// The network, and all that stands between it and the nodes.
pub(crate) struct Network {
    sites: BTreeMap<Port, Site>,
    pipes: BTreeMap<u64, Pipe>,
    by_conn: BTreeMap<(Port, Conn), (u64, usize)>,
    by_link: BTreeMap<(Port, LinkId), (u64, usize)>,
    pipes_made: u64,
    /// (rank, transport, subnet) of NICs that are down.
    pub(crate) down: BTreeSet<(u32, u8, u16)>,
    /// Ranks on the other side of a partition.
    pub(crate) apart: BTreeSet<u32>,
    pub(crate) dead: BTreeSet<u32>,
    pub(crate) lives: Vec<u64>,
    /// The number of subnets of each transport; a rank has a NIC in those for which `has` returns true.
    pub(crate) subnets: Vec<u16>,
    pub(crate) has: fn(u32, u8, u16) -> bool,
    /// Transports like those over rails, one bit each.
    pub(crate) mutual: u32,
    /// Ranks with odd numbers think those paths the worst that the others think the best.
    pub(crate) contrary: bool,
    dice: Dice,
    pub(crate) soon: Vec<(Time, Will)>,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) connects: u64,
}

const KEEP_ALIVE: Duration = Duration::from_millis(150);
/// How soon, and how seldom at last, a silent peer is called.
const REVIVE: Duration = Duration::from_millis(50);
const REVIVE_MAX: Duration = Duration::from_secs(1);
const VERSION: u32 = 1;

impl Network {
    pub(crate) fn new(ranks: u32, subnets: Vec<u16>, has: fn(u32, u8, u16) -> bool, seed: u64) -> Self {
        Self {
            sites: BTreeMap::new(),
            pipes: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            by_link: BTreeMap::new(),
            pipes_made: 0,
            down: BTreeSet::new(),
            apart: BTreeSet::new(),
            dead: BTreeSet::new(),
            lives: vec![1; ranks as usize],
            subnets,
            has,
            mutual: 0,
            contrary: seed % 4 == 3,
            dice: Dice::new(seed ^ 0xA5A5),
            soon: Vec::new(),
            frames: 0,
            bytes: 0,
            connects: 0,
        }
    }

    fn is_current(&self, port: Port) -> bool {
        self.lives[port.0 as usize] == port.1 && !self.dead.contains(&port.0)
    }

    fn can_talk(&self, one: Port, other: Port, subnet: u16) -> bool {
        let has =
            |port: Port| (self.has)(port.0, port.2, subnet) && !self.down.contains(&(port.0, port.2, subnet));
        has(one) && has(other) && self.apart.contains(&one.0) == self.apart.contains(&other.0)
    }

    /// Begins a life of a rank, and returns the first events of its transports.
    pub(crate) fn begin(&mut self, name: Name, life: u64) -> Vec<(TransportId, Event)> {
        let mut told = Vec::new();
        for transport in 0..self.subnets.len() as u8 {
            let meeting = Meeting::new(name, Epoch(life), VERSION, Limits::default());
            let site = Site {
                meeting,
                links: 0,
                booked: Time::NEVER,
                asked: BTreeMap::new(),
                silent: BTreeSet::new(),
                revives: false,
            };
            self.sites.insert((name.rank, life, transport), site);
            for subnet in self.nics(name.rank, transport) {
                told.push((TransportId(transport), module_up(name.rank, subnet)));
            }
        }
        told
    }

    fn nics(&self, rank: u32, transport: u8) -> Vec<u16> {
        let subnets = 0..self.subnets[usize::from(transport)];
        subnets
            .filter(|&subnet| {
                (self.has)(rank, transport, subnet) && !self.down.contains(&(rank, transport, subnet))
            })
            .collect()
    }

    fn later(&mut self, at: Time, will: Will) {
        self.soon.push((at, will));
    }

    fn latency(&mut self) -> Duration {
        self.dice.micros(20, 120)
    }

    /// A node has a command for its transport.
    pub(crate) fn command(&mut self, now: Time, port: Port, command: Command) {
        match command {
            Command::Reach { peer, addresses } => {
                if let Some(site) = self.sites.get_mut(&port) {
                    site.asked.insert(peer, addresses);
                }
                self.paths(now, port);
            }
            Command::Connect {
                attempt,
                peer,
                epoch,
                module,
                addresses,
                deadline,
            } => {
                self.connects += 1;
                if let Some(site) = self.sites.get_mut(&port) {
                    site.meeting
                        .connect(now, attempt, peer, epoch, module, addresses, deadline);
                }
                self.act(now, port);
            }
            Command::Cancel { attempt } => {
                if let Some(site) = self.sites.get_mut(&port) {
                    site.meeting.cancel(now, attempt);
                }
                self.act(now, port);
            }
            Command::Send { link, frame } => self.send(now, port, link, &frame),
            Command::Close { link, why } => {
                if let Some(&(id, side)) = self.by_link.get(&(port, link)) {
                    self.sever(now, id, [side], why, self_latency(why));
                }
            }
        }
    }

    /// Reports the NICs by which the requested peers can be reached.
    pub(crate) fn paths(&mut self, now: Time, port: Port) {
        let nics = self.nics(port.0, port.2);
        let Some(site) = self.sites.get(&port) else { return };
        let at = now + Duration::from_micros(1);
        let of = |addresses: &Vec<Address>, subnet: &u16| {
            let prefix = format!("{subnet}.");
            addresses
                .iter()
                .filter(|address| address.starts_with(&prefix))
                .cloned()
                .collect::<Vec<_>>()
        };
        let mutual = self.is_mutual(port);
        let mut silent = BTreeSet::new();
        for (&peer, addresses) in &site.asked {
            let paths = nics.iter().map(|subnet| Path {
                module: ModuleId(*subnet),
                addresses: of(addresses, subnet),
            });
            let mut paths: Vec<Path> = paths.filter(|path| !path.addresses.is_empty()).collect();
            let before = paths.len();
            paths.retain(|path| !mutual || self.can_talk(port, (peer.rank, 0, port.2), path.module.0));
            if paths.len() < before {
                silent.insert(peer);
            }
            if self.contrary && port.0 % 2 == 1 {
                paths.reverse();
            }
            self.soon
                .push((at, Will::Tell(port, Event::Paths { peer, paths })));
        }
        if let Some(site) = self.sites.get_mut(&port) {
            let begins = !silent.is_empty() && !std::mem::replace(&mut site.revives, !silent.is_empty());
            site.silent = silent;
            if begins {
                self.later(now + REVIVE, Will::Revive(port, REVIVE));
            }
        }
    }

    fn is_mutual(&self, port: Port) -> bool {
        self.mutual >> port.2 & 1 == 1
    }

    /// Calls those that are silent; when one of them answers, the paths are reported again.
    fn revive(&mut self, now: Time, port: Port, wait: Duration) {
        let nics = self.nics(port.0, port.2);
        let Some(site) = self.sites.get(&port) else { return };
        let hears = |peer: &&Name| {
            nics.iter()
                .any(|&nic| self.can_talk(port, (peer.rank, 0, port.2), nic))
        };
        let answers = site.silent.iter().filter(hears).count() > 0;
        if let Some(site) = self.sites.get_mut(&port) {
            site.revives = !answers && !site.silent.is_empty();
            if site.revives {
                return self.later(now + wait, Will::Revive(port, (wait * 2).min(REVIVE_MAX)));
            }
        }
        if answers {
            self.paths(now, port);
        }
    }

    fn send(&mut self, now: Time, port: Port, link: LinkId, frame: &Frame) {
        let Some(&(id, side)) = self.by_link.get(&(port, link)) else {
            return;
        };
        let latency = self.latency();
        let Some(pipe) = self.pipes.get_mut(&id) else {
            return;
        };
        let mutual = self.mutual >> port.2 & 1 == 1;
        self.frames += 1;
        self.bytes += frame.length() as u64;
        // A gigabyte a second.
        let busy = pipe.busy[side].max(now) + Duration::from_nanos(frame.length() as u64 + 200);
        pipe.busy[side] = busy;
        let Some(end) = &mut pipe.ends[side] else { return };
        end.frames += 1;
        let frames = end.frames;
        let at = pipe.last[side].max(busy + latency);
        pipe.last[side] = at;
        let broken = pipe.broken;
        if !broken {
            let sent = if mutual { at + latency } else { busy };
            self.later(sent, Will::Sent(id, side, frames));
            self.later(at, Will::Frame(id, 1 - side, frame.joined()));
        }
    }

    /// Does what a meeting wants.
    fn act(&mut self, now: Time, port: Port) {
        while let Some(action) = self.sites.get_mut(&port).and_then(|site| site.meeting.action()) {
            match action {
                Action::Dial { conn, address, .. } => self.dial(now, port, conn, &address),
                Action::Send { conn, bytes } => self.say(now, port, conn, bytes.to_vec()),
                Action::Up {
                    conn,
                    module,
                    peer,
                    epoch,
                    attempt,
                } => {
                    let Some(&(id, side)) = self.by_conn.get(&(port, conn)) else {
                        continue;
                    };
                    let Some(site) = self.sites.get_mut(&port) else {
                        continue;
                    };
                    site.links += 1;
                    let link = LinkId(site.links);
                    if let Some(end) = self.pipes.get_mut(&id).and_then(|pipe| pipe.ends[side].as_mut()) {
                        end.link = Some(link);
                    }
                    self.by_link.insert((port, link), (id, side));
                    let event = Event::Connected {
                        link,
                        module,
                        peer,
                        epoch,
                        attempt,
                    };
                    self.later(now, Will::Tell(port, event));
                }
                Action::Close { conn, why } => {
                    if let Some(&(id, side)) = self.by_conn.get(&(port, conn)) {
                        self.sever(now, id, [side], why, Duration::ZERO);
                    }
                }
                Action::Refused { attempt, why } => {
                    self.later(now, Will::Tell(port, Event::Refused { attempt, why }));
                }
            }
        }
        self.book(port);
    }

    fn book(&mut self, port: Port) {
        let Some(site) = self.sites.get_mut(&port) else {
            return;
        };
        if let Some(at) = site.meeting.next_deadline()
            && at != site.booked
        {
            site.booked = at;
            self.later(at, Will::MeetingTick(port));
        }
    }

    fn dial(&mut self, now: Time, port: Port, conn: Conn, address: &str) {
        let mut parts = address.split('.').filter_map(|part| part.parse::<u32>().ok());
        let (Some(subnet), Some(rank)) = (parts.next(), parts.next()) else {
            return;
        };
        let subnet = subnet as u16;
        let to = (rank, self.lives[rank as usize], port.2);
        let at = now + self.latency();
        let knows = |site: &Site| site.asked.keys().any(|name| name.rank == port.0);
        let deaf = self.is_mutual(port) && self.is_current(to) && !self.sites.get(&to).is_some_and(knows);
        if deaf || !self.can_talk(port, to, subnet) {
            // Nothing comes back: the one who dials has a time-out of its own.
            return self.later(now + Duration::from_millis(300), Will::DialFailed(port, conn));
        }
        if !self.is_current(to) {
            return self.later(at, Will::DialFailed(port, conn));
        }
        self.pipes_made += 1;
        let id = self.pipes_made;
        let end = |port, conn| {
            Some(End {
                port,
                conn,
                link: None,
                frames: 0,
            })
        };
        let pipe = Pipe {
            ends: [end(port, conn), end(to, Conn(0))],
            subnet,
            broken: false,
            last: [at; 2],
            busy: [now; 2],
        };
        self.pipes.insert(id, pipe);
        self.by_conn.insert((port, conn), (id, 0));
        self.later(at, Will::Accept(id));
        let back = at + self.latency();
        self.later(back, Will::Dialled(id));
    }

    fn say(&mut self, now: Time, port: Port, conn: Conn, bytes: Vec<u8>) {
        let Some(&(id, side)) = self.by_conn.get(&(port, conn)) else {
            return;
        };
        let latency = self.latency();
        let Some(pipe) = self.pipes.get_mut(&id) else {
            return;
        };
        let at = pipe.last[side].max(now + latency);
        pipe.last[side] = at;
        if !pipe.broken {
            self.later(at, Will::Hello(id, 1 - side, bytes));
        }
    }

    /// Ends these sides of a connection now, and the other one when it notices.
    fn sever<const N: usize>(&mut self, now: Time, id: u64, sides: [usize; N], why: Loss, after: Duration) {
        let Some(pipe) = self.pipes.get_mut(&id) else {
            return;
        };
        let broken = std::mem::replace(&mut pipe.broken, true);
        let last = pipe.last;
        for side in 0..2 {
            if sides.contains(&side) {
                self.later(now, Will::Ended(id, side, why));
            } else if !broken {
                // What was sent before the end arrives before it.
                let at = last[1 - side].max(now + after) + Duration::from_micros(30);
                self.later(at, Will::Ended(id, side, Loss::Closed));
            }
        }
    }

    /// What cannot carry anything any more breaks; both ends notice when nothing has arrived for a while.
    pub(crate) fn check_pipes(&mut self, now: Time) {
        let cut = |network: &Self, pipe: &Pipe| match pipe.ends {
            [Some(one), Some(other)] => !pipe.broken && !network.can_talk(one.port, other.port, pipe.subnet),
            _ => false,
        };
        let cut: Vec<u64> = self
            .pipes
            .iter()
            .filter(|(_, pipe)| cut(self, pipe))
            .map(|(id, _)| *id)
            .collect();
        for id in cut {
            if let Some(pipe) = self.pipes.get_mut(&id) {
                pipe.broken = true;
            }
            for side in 0..2 {
                self.later(now + KEEP_ALIVE, Will::Ended(id, side, Loss::Silent));
            }
        }
    }

    /// A rank ends without a word.
    pub(crate) fn kill(&mut self, now: Time, rank: u32) {
        self.dead.insert(rank);
        let of = |end: &Option<End>| end.is_some_and(|end| end.port.0 == rank);
        let pipes = self.pipes.iter().filter(|(_, pipe)| pipe.ends.iter().any(of));
        let pipes: Vec<(u64, usize)> = pipes
            .map(|(id, pipe)| (*id, usize::from(!of(&pipe.ends[0]))))
            .collect();
        for (id, side) in pipes {
            self.sever(now, id, [side], Loss::Broken, Duration::from_micros(50));
        }
        self.sites.retain(|port, _| port.0 != rank);
    }

    /// Breaks one connection, chosen by the dice.
    pub(crate) fn break_one(&mut self, now: Time) {
        let alive: Vec<u64> = self
            .pipes
            .iter()
            .filter(|(_, pipe)| !pipe.broken)
            .map(|(id, _)| *id)
            .collect();
        if alive.is_empty() {
            return;
        }
        let id = alive[self.dice.index(alive.len())];
        if let Some(pipe) = self.pipes.get_mut(&id) {
            pipe.broken = true;
        }
        for side in 0..2 {
            let after = self.latency();
            self.later(now + after, Will::Ended(id, side, Loss::Broken));
        }
    }

    /// What happens at a port, as it happens; the event is for its node.
    pub(crate) fn happen(&mut self, now: Time, will: Will) -> Option<(Port, Event)> {
        match will {
            Will::Tell(port, event) => return self.is_current(port).then_some((port, event)),
            Will::MeetingTick(port) => {
                // Others were booked before something else came up.
                let booked = |site: &&mut Site| site.booked <= now;
                if let Some(site) = self.sites.get_mut(&port).filter(booked) {
                    site.booked = Time::NEVER;
                    site.meeting.tick(now);
                    self.act(now, port);
                }
            }
            Will::DialFailed(port, conn) => {
                if let Some(site) = self.sites.get_mut(&port) {
                    site.meeting.ended(now, conn, Refusal::NotListening);
                }
                self.act(now, port);
            }
            Will::Accept(id) => self.accept(now, id),
            Will::Dialled(id) => {
                let broken = self.pipes.get(&id).is_none_or(|pipe| pipe.broken);
                let end = self.end(id, 0)?;
                if !broken && let Some(site) = self.sites.get_mut(&end.port) {
                    site.meeting.dialled(now, end.conn);
                }
                self.act(now, end.port);
            }
            Will::Hello(id, side, bytes) => {
                let end = self.end(id, side)?;
                if let Some(site) = self.sites.get_mut(&end.port) {
                    site.meeting.received(now, end.conn, &bytes);
                }
                self.act(now, end.port);
            }
            Will::Frame(id, side, frame) => {
                let end = self.end(id, side)?;
                let link = end.link?;
                return self
                    .is_current(end.port)
                    .then_some((end.port, Event::Received { link, frame }));
            }
            Will::Sent(id, side, frames) => {
                let end = self.end(id, side)?;
                let link = end.link?;
                return self
                    .is_current(end.port)
                    .then_some((end.port, Event::Sent { link, frames }));
            }
            Will::Ended(id, side, why) => return self.ended(now, id, side, why),
            Will::Revive(port, wait) => self.revive(now, port, wait),
        }
        None
    }

    fn end(&self, id: u64, side: usize) -> Option<End> {
        self.pipes.get(&id)?.ends[side]
    }

    fn accept(&mut self, now: Time, id: u64) {
        let Some((port, subnet)) = self
            .end(id, 1)
            .map(|end| end.port)
            .zip(self.pipes.get(&id).map(|pipe| pipe.subnet))
        else {
            return;
        };
        let broken = self.pipes.get(&id).is_none_or(|pipe| pipe.broken);
        let conn = self
            .sites
            .get_mut(&port)
            .filter(|_| !broken)
            .and_then(|site| site.meeting.accepted(now, ModuleId(subnet)));
        match conn {
            Some(conn) => {
                if let Some(end) = self.pipes.get_mut(&id).and_then(|pipe| pipe.ends[1].as_mut()) {
                    end.conn = conn;
                }
                self.by_conn.insert((port, conn), (id, 1));
                self.book(port);
            }
            None => self.sever(now, id, [1], Loss::Broken, Duration::from_micros(50)),
        }
    }

    fn ended(&mut self, now: Time, id: u64, side: usize, why: Loss) -> Option<(Port, Event)> {
        let pipe = self.pipes.get_mut(&id)?;
        pipe.broken = true;
        let end = pipe.ends[side].take()?;
        if pipe.ends.iter().all(Option::is_none) {
            self.pipes.remove(&id);
        }
        self.by_conn.remove(&(end.port, end.conn));
        if let Some(site) = self.sites.get_mut(&end.port) {
            site.meeting.ended(now, end.conn, Refusal::Broken);
        }
        self.act(now, end.port);
        if why == Loss::Silent && self.is_mutual(end.port) {
            self.paths(now, end.port);
        }
        let link = end.link?;
        self.by_link.remove(&(end.port, link));
        self.is_current(end.port)
            .then_some((end.port, Event::Lost { link, why }))
    }
}

/// The end that closes a link notifies the other one at once.
fn self_latency(_: Loss) -> Duration {
    Duration::from_micros(50)
}

/// The address of a rank in a subnet.
pub(crate) fn module_up(rank: u32, subnet: u16) -> Event {
    Event::ModuleUp {
        module: ModuleId(subnet),
        addresses: vec![format!("{subnet}.{rank}").into()],
    }
}
