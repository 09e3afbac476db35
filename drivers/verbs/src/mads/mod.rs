//! Management datagrams (MADs) between the services that resolve addresses: one queue pair of a port in a
//! partition, with the Q_Key that all of them share, and its multicast groups.
//!
//! ```text
//!   MadPort::send(to, MAD)  ──► address handle known?  yes ──► one send
//!                               no: does the kernel know the neighbour?  yes ──► made, sent
//!                                                                        no  ──► waits, a second at most
//!   MadPort::turn(now)      ◄── completions: the MAD, its sender's GID, LID and queue pair, and where it
//!                               was sent to; the port's events
//! ```
//!
//! Nothing precedes the 256 bytes of a MAD but the routing header that the device writes: so the datagrams
//! are those of `ibacm`. Every datagram that is sent has such a header, since its receiver takes the GID of
//! the sender from it.
//!
//! A queue pair that has failed is set up again under its number, in its groups.
//!
//! Reference: acm, section 10; verbs, section 6.

mod error;
mod handles;
mod lookups;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::gid::Link;
use doorbell_fabric::memory::Region;
use doorbell_fabric::time::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::discover;
use crate::gid::{Entry, Gid, Kind};
use crate::neighbour::Neighbours;
use crate::ports::{self, Port, Tree};
use crate::rc::mail::{self, Mail};
use crate::source::gids;
use crate::sys::{AhAttr, Channel, Domain, Open, Registered, numbers};
use crate::ud::open::Source;

pub use error::MadError;
use handles::HandleTable;
use lookups::Lookups;

/// Bytes of a datagram.
pub const MAD: usize = 256;
/// The Q_Key of the general services, which the services' queue pairs and groups have.
pub const QKEY: u32 = 0x8001_0000;
/// The queue pair number that stands for all members of a group.
pub const GROUP_PAIR: u32 = 0x00ff_ffff;

/// Datagrams that can be under way at a time.
const SENDS: usize = 256;
/// Datagrams that are taken in one turn: a sender that floods a port holds up its owner no longer than these
/// take. A look at the port takes as long as this many of them.
const TURN: usize = 64;
/// Datagrams that can wait for neighbours at a time, those of them for one neighbour, and how long each does.
const WAITING_MAX: usize = 256;
const WAITING_EACH: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);
/// How often those that wait are looked at.
const AGAIN: Duration = Duration::from_millis(10);
/// How often the port is looked at without an event.
const LOOK: Duration = Duration::from_secs(5);
/// How often the device is looked for: its deletion may wait until it was let go of, and raise no event.
const LOOK_FOR_DEVICE: Duration = Duration::from_secs(1);
/// Least time between two set-ups of a queue pair.
const MEND: Duration = Duration::from_millis(10);

const _: () = assert!(MAD <= crate::cm::LONGEST, "a MAD is received whole");

/// Where a queue pair is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MadPlace {
    /// A port of a device, by its number from 1, in a partition.
    Port {
        /// The name of the device.
        device: String,
        /// The number of the port.
        port: u8,
        /// The key of the partition.
        partition: u16,
    },
    /// The port of RoCE that stands on a network interface, with the GIDs of that interface.
    Interface(String),
}

impl fmt::Display for MadPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port { device, port, .. } => write!(out, "{device} port {port}"),
            Self::Interface(name) => write!(out, "the RDMA device on {name}"),
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadDestination {
    /// The GID of the destination: of a port, or of a group.
    pub gid: Gid,
    /// The GID of this port that it is sent from.
    pub from: Gid,
    /// The LID of the destination; 0 without InfiniBand.
    pub lid: u16,
    /// The queue pair, or [`GROUP_PAIR`].
    pub pair: u32,
    /// The service level.
    pub service_level: u8,
    /// Which of this port's LIDs it is sent from, as an offset.
    pub path_bits: u8,
    /// The code of the greatest rate on the way; 0 for that of the port.
    pub rate: u8,
    /// The flow label (20 bits).
    pub flow_label: u32,
    /// The hop limit.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
}

/// A datagram that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The GID of the sender, from the routing header; `None` where it has none.
    pub gid: Option<Gid>,
    /// The GID that it was sent to, from the same header.
    pub to: Option<Gid>,
    /// The LID of the sender; 0 without InfiniBand.
    pub lid: u16,
    /// The queue pair of the sender.
    pub pair: u32,
    /// The service level that it came with.
    pub service_level: u8,
    /// Which of this port's LIDs it was sent to, as an offset.
    pub path_bits: u8,
    /// The bytes of the datagram.
    pub mad: Box<[u8; MAD]>,
}

/// What happened to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadEvent {
    /// Memberships in groups are to be renewed: the subnet has another manager, or one that requires it; the
    /// port has other GIDs or another LID; or it was down.
    Renew,
    /// The device is gone, or of no use any more: close the port.
    Gone,
}

/// What a port has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadCounts {
    /// Datagrams that were handed to the device.
    pub sent: u64,
    /// Datagrams whose destinations had no hardware address in time.
    pub unresolved: u64,
    /// Datagrams that the device refused, or ended with an error.
    pub unsent: u64,
    /// Datagrams of another length than a MAD's.
    pub length: u64,
    /// Receives that ended with an error, and completions that cannot be true.
    pub failed: u64,
    /// How often the queue pair was set up again.
    pub resets: u64,
}

/// A datagram that waits for the hardware address of its destination.
struct Waiting {
    until: Time,
    to: MadDestination,
    mad: Box<[u8; MAD]>,
}

/// A queue pair for management datagrams.
pub struct MadPort {
    place: MadPlace,
    /// The name of the interface whose GIDs are used.
    interface: Option<String>,
    tree: Tree,
    /// The device's entry of the system.
    entry: PathBuf,
    port: Port,
    partition: u16,
    /// Before what it was made of.
    mail: Mail,
    handles: HandleTable,
    domain: Arc<Domain>,
    channel: Arc<Channel>,
    open: Arc<Open>,
    neighbours: Neighbours,
    lookups: Lookups,
    /// Readable when something has come, or happened.
    wake: OwnedFd,
    groups: Vec<(Gid, u16)>,
    waiting: VecDeque<Waiting>,
    received: VecDeque<Received>,
    events: VecDeque<MadEvent>,
    unresolved: u64,
    length: u64,
    next_look: Time,
    next_search: Time,
    next_try: Time,
    next_mend: Time,
    is_gone: bool,
}

impl fmt::Debug for MadPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "MadPort({})", self.place)
    }
}

impl MadPort {
    /// Opens a queue pair that holds `depth` datagrams that were not taken yet. The library is loaded when
    /// the first one is opened, on a machine with devices.
    ///
    /// # Errors
    /// [`MadError`], with the first step that failed and what to do.
    pub fn open(place: &MadPlace, depth: usize) -> Result<Self, MadError> {
        let tree = Tree::default();
        if tree.device_files().is_empty() {
            return Err(match place {
                MadPlace::Interface(name) => MadError::NoDevice(name.clone()),
                MadPlace::Port { .. } => MadError::Unusable {
                    on: place.to_string(),
                    reason: "this machine has no device that programs can drive".to_owned(),
                    remedy: "load the module ib_uverbs (modprobe ib_uverbs)".to_owned(),
                },
            });
        }
        let library = discover::library().map_err(|error| MadError::of(place, &error))?;
        Self::open_from(place, depth, Source { library, tree })
    }

    pub(crate) fn open_from(
        place: &MadPlace,
        depth: usize,
        Source { library, tree }: Source,
    ) -> Result<Self, MadError> {
        let failed = |error| MadError::of(place, &error);
        let unusable = |(reason, remedy)| MadError::Unusable {
            on: place.to_string(),
            reason,
            remedy,
        };
        let (device, number, partition, interface) = match place {
            MadPlace::Port {
                device,
                port,
                partition,
            } => (device.clone(), *port, *partition, None),
            MadPlace::Interface(name) => {
                let (device, port) = tree
                    .port_on(name)
                    .ok_or_else(|| MadError::NoDevice(name.clone()))?;
                (device, port, DEFAULT_PARTITION, Some(name.clone()))
            }
        };
        let listed = discover::listed(&library, &device).map_err(failed)?;
        if let Some(why) = ports::reason_of_device(&listed) {
            return Err(unusable(why));
        }
        let open = library.open(&device).map_err(failed)?;
        let mut port = Port::look_for(&open, number, &tree, Some(partition)).map_err(failed)?;
        if let Some(why) = port.reason() {
            return Err(unusable(why));
        }
        if interface.is_some() {
            port.interface.clone_from(&interface);
        }
        let most = open.attributes().map_err(failed)?.max_qp_wr;
        let most = usize::try_from(most).ok().filter(|most| *most > 0);
        let frames = (
            SENDS.min(most.map_or(SENDS, |most| 1 << most.ilog2())),
            depth.clamp(1, most.unwrap_or(usize::MAX)),
        );
        let domain = Domain::new(&open).map_err(failed)?;
        let channel = Channel::new(&open).map_err(failed)?;
        let bytes = mail::bytes(&port, frames);
        let region = Region::new(bytes).map_err(|error| {
            unusable((
                error.to_string(),
                "free some memory, or set recv_depth lower".to_owned(),
            ))
        })?;
        let memory =
            Registered::new(&domain, &region).map_err(|error| MadError::of_memory(place, &error, bytes))?;
        let mail = Mail::over(&memory, &channel, &port, frames, QKEY)
            .map_err(|error| MadError::of_start(place, &error))?;
        let neighbours = Neighbours::watch(&port);
        let wake = wake_set(&channel, &open, &neighbours).map_err(|error| MadError::System {
            step: "make an epoll set",
            error: error.into(),
        })?;
        let found = Self {
            place: place.clone(),
            interface,
            entry: tree.entry(&listed.file),
            tree,
            port,
            partition,
            mail,
            handles: HandleTable::default(),
            domain,
            channel,
            open,
            neighbours,
            lookups: Lookups::default(),
            wake,
            groups: Vec::new(),
            waiting: VecDeque::new(),
            received: VecDeque::new(),
            events: VecDeque::new(),
            unresolved: 0,
            length: 0,
            next_look: Time::ZERO,
            next_search: Time::ZERO,
            next_try: Time::NEVER,
            next_mend: Time::ZERO,
            is_gone: false,
        };
        if found.gids().next().is_none() {
            return Err(unusable((
                "it has no GID of RoCE v2 on that interface".to_owned(),
                "give the interface an address, and look at the table that `doorbell info` shows".to_owned(),
            )));
        }
        Ok(found)
    }

    /// Returns the number of the queue pair, by which others reach it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.mail.numbers().0
    }

    /// Returns the name of the device, and the number of the port.
    #[must_use]
    pub fn device(&self) -> (&str, u8) {
        (self.open.name(), self.port.number)
    }

    /// Returns the GIDs that datagrams can be sent from, in order of preference.
    pub fn gids(&self) -> impl Iterator<Item = Gid> {
        self.entries().map(|entry| entry.published.gid)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let is_ours = |entry: &&Entry| match &self.interface {
            Some(name) => entry.interface == *name && entry.published.kind == Kind::RoceV2,
            None => entry.published.kind != Kind::RoceV1,
        };
        self.port.gids.usable.iter().filter(is_ours)
    }

    /// Has the queue pair receive what is sent to a group; `lid` is the group's in its subnet, or 0 without
    /// InfiniBand. One that it is in already may have another LID.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn attach(&mut self, group: Gid, lid: u16) -> Result<(), MadError> {
        if self.groups.contains(&(group, lid)) {
            return Ok(());
        }
        self.detach(group);
        self.mail
            .attach(group.0, lid)
            .map_err(|error| MadError::Group { group, error })?;
        self.groups.push((group, lid));
        Ok(())
    }

    /// Takes the queue pair out of a group, if it is in it.
    pub fn detach(&mut self, group: Gid) {
        let mail = &self.mail;
        self.groups.retain(|(other, lid)| {
            let stays = *other != group;
            if !stays {
                mail.detach(group.0, *lid);
            }
            stays
        });
    }

    /// Sends a datagram. One whose destination has no known hardware address waits until the kernel knows
    /// it, a second at most, and less where many wait; what was sent may be lost.
    ///
    /// # Errors
    /// If the port does not have the GID that it is to be sent from, too many wait for the same neighbour, or
    /// the system sends nothing.
    pub fn send(&mut self, now: Time, to: &MadDestination, mad: &[u8; MAD]) -> Result<(), MadError> {
        if self.post(now, to, mad)? {
            return Ok(());
        }
        let to_it = self.waiting.iter().filter(|waiting| waiting.to.gid == to.gid);
        if to_it.count() >= WAITING_EACH {
            return Err(MadError::Waiting);
        }
        // Neighbours that are there answer within milliseconds: a sender that makes many wait for others that
        // are not keeps no other from being answered.
        if self.waiting.len() >= WAITING_MAX && self.waiting.pop_front().is_some() {
            self.unresolved += 1;
        }
        self.waiting.push_back(Waiting {
            until: now + PATIENCE,
            to: *to,
            mad: Box::new(*mad),
        });
        self.next_try = self.next_try.min(now + AGAIN);
        Ok(())
    }

    /// Sends a datagram, if nothing has to be waited for; returns whether it did. A neighbour that is not
    /// known is looked up if its lookup is due.
    fn post(&mut self, now: Time, to: &MadDestination, mad: &[u8; MAD]) -> Result<bool, MadError> {
        let attributes = self.attributes(to).ok_or_else(|| MadError::NoGid {
            on: self.place.to_string(),
            gid: to.from,
        })?;
        let has_neighbour = to.pair != GROUP_PAIR && self.port.link == Link::Ethernet;
        let neighbour = Some(to.gid.address()).filter(|_| has_neighbour);
        let is_ready = || {
            let Some(ip) = neighbour else { return true };
            let is_due = self.lookups.is_due(now, ip);
            let is_known = is_due && self.neighbours.is_ready(&self.port, neighbour);
            if is_known {
                self.lookups.forget(ip);
            }
            is_known
        };
        let slot = self
            .handles
            .slot(now, to, attributes, &self.domain, &mut self.mail, is_ready);
        let slot = slot.map_err(|error| MadError::Handle { gid: to.gid, error })?;
        let Some(slot) = slot else { return Ok(false) };
        if self.mail.send(slot, (to.pair, QKEY), mad) {
            Ok(true)
        } else {
            Err(MadError::Busy(self.place.to_string()))
        }
    }

    /// Returns where a datagram goes, by the port's table as it is now; `None` while our GID is not in it.
    fn attributes(&self, to: &MadDestination) -> Option<AhAttr> {
        let entry = self.entries().find(|entry| entry.published.gid == to.from)?;
        let mut handle = AhAttr::zeroed();
        (handle.dlid, handle.sl, handle.src_path_bits) = (to.lid, to.service_level, to.path_bits);
        (handle.static_rate, handle.port_num) = (to.rate, self.port.number);
        handle.is_global = 1;
        handle.grh.dgid.0 = to.gid.0;
        handle.grh.sgid_index = entry.index;
        handle.grh.flow_label = to.flow_label;
        handle.grh.hop_limit = to.hop_limit;
        handle.grh.traffic_class = to.traffic_class;
        Some(handle)
    }

    /// Takes what has come, as much as is taken in one turn, and looks after the port; returns how much it
    /// did. Before sleeping, call it until it returns 0, and take [what it received](Self::next_received) in
    /// between: it holds no more than what one turn takes.
    pub fn turn(&mut self, now: Time) -> usize {
        if self.is_gone {
            return 0;
        }
        // Before the queue is read: whatever arrives later raises another event.
        self.channel.drain();
        self.mail.arm();
        let most = TURN.saturating_sub(self.received.len());
        let (received, length) = (&mut self.received, &mut self.length);
        let is_infiniband = self.port.link == Link::InfiniBand;
        let taken = self.mail.receive_with(most, |completion, room, bytes| {
            let Ok(mad) = <&[u8; MAD]>::try_from(bytes) else {
                *length += 1;
                return;
            };
            let has_header = completion.wc_flags & numbers::WC_WITH_GRH != 0;
            let header = has_header.then(|| gids(room));
            received.push_back(Received {
                gid: header.map(|(from, _)| from),
                to: header.map(|(_, to)| to),
                lid: if is_infiniband { completion.slid } else { 0 },
                pair: completion.src_qp,
                service_level: completion.sl,
                path_bits: completion.dlid_path_bits,
                mad: Box::new(*mad),
            });
        });
        taken + self.look(now) + self.send_waiting(now)
    }

    /// Looks at the port's events, at the port itself where one names it, and at the queue pair.
    fn look(&mut self, now: Time) -> usize {
        let (before, mut is_due) = (self.events.len(), now >= self.next_look);
        let mut done = 0;
        while let Some(event) = self.open.event() {
            match (event.kind, event.port) {
                // A completion queue that has lost completions is of no more use.
                (numbers::EVENT_DEVICE_FATAL | numbers::EVENT_CQ_ERR, _) => self.lose(),
                (numbers::EVENT_QP_FATAL..=numbers::EVENT_QP_ACCESS_ERR, _) => self.mail.doubt(),
                (kind, Some(port)) if port == self.port.number => {
                    is_due = true;
                    if self.is_for_renewal(kind) {
                        self.renew();
                    }
                }
                _ => {}
            }
        }
        if now >= self.next_search {
            self.next_search = now + LOOK_FOR_DEVICE;
            if !self.entry.exists() {
                self.lose();
            }
        }
        if is_due && !self.is_gone {
            self.next_look = now + LOOK;
            self.look_at_port(now);
            done += TURN;
        }
        // A send that failed stops those behind it, and raises no event.
        self.mail.reap();
        if self.mail.is_broken() && now >= self.next_mend && !self.is_gone {
            self.next_mend = now + MEND;
            self.mend();
        }
        done + self.events.len() - before
    }

    /// Whether memberships may be lost after such an event: a manager forgets those of a port that was down.
    fn is_for_renewal(&self, event: c_int) -> bool {
        let is_infiniband = self.port.link == Link::InfiniBand;
        matches!(event, numbers::EVENT_SM_CHANGE | numbers::EVENT_CLIENT_REREGISTER)
            || is_infiniband && event == numbers::EVENT_PORT_ACTIVE
    }

    fn renew(&mut self) {
        if !self.events.contains(&MadEvent::Renew) {
            self.events.push_back(MadEvent::Renew);
        }
    }

    fn look_at_port(&mut self, now: Time) {
        let found = Port::look_for(&self.open, self.port.number, &self.tree, Some(self.partition));
        let Ok(mut port) = found else { return };
        if self.interface.is_some() {
            port.interface.clone_from(&self.interface);
        }
        if port.partition.is_none() {
            // What has its place in the table may be another one. Opening it again reports that it is gone.
            return self.lose();
        }
        if port.partition != self.port.partition {
            // The queue pair names its partition by the place in the table.
            self.mail.doubt();
        }
        let (is, was) = (&port.attributes, &self.port.attributes);
        if port.gids != self.port.gids || is.lid != was.lid {
            self.handles.clear(now, &mut self.mail);
            self.renew();
        } else if is.sm_lid != was.sm_lid {
            self.renew();
        }
        self.port = port;
    }

    /// Sets the queue pair up again, in its groups.
    fn mend(&mut self) {
        self.mail.mend(&self.port);
        if self.mail.is_broken() {
            return self.lose();
        }
        for (group, lid) in &self.groups {
            self.mail.detach(group.0, *lid);
            if self.mail.attach(group.0, *lid).is_err() {
                return self.lose();
            }
        }
    }

    fn lose(&mut self) {
        if !std::mem::replace(&mut self.is_gone, true) {
            self.events.push_back(MadEvent::Gone);
        }
    }

    /// Sends the datagrams whose destinations have become known, and drops those that have waited for long.
    fn send_waiting(&mut self, now: Time) -> usize {
        let news = self.neighbours.read();
        if self.waiting.is_empty() || now < self.next_try && news.is_empty() {
            return 0;
        }
        news.into_iter().for_each(|ip| self.lookups.forget(ip));
        let mut done = 0;
        for waiting in std::mem::take(&mut self.waiting) {
            match self.post(now, &waiting.to, &waiting.mad) {
                Ok(false) if now < waiting.until => self.waiting.push_back(waiting),
                Ok(true) => done += 1,
                Ok(false) | Err(_) => {
                    self.unresolved += 1;
                    done += 1;
                }
            }
        }
        self.next_try = if self.waiting.is_empty() {
            Time::NEVER
        } else {
            now + AGAIN
        };
        done
    }

    /// Returns the next datagram that has come.
    pub fn next_received(&mut self) -> Option<Received> {
        self.received.pop_front()
    }

    /// Returns the next thing that happened to the port.
    pub fn next_event(&mut self) -> Option<MadEvent> {
        self.events.pop_front()
    }

    /// Returns when [`turn`](Self::turn) is due although nothing has come.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        if self.is_gone {
            return Time::NEVER;
        }
        let mend = if self.mail.is_broken() {
            self.next_mend
        } else {
            Time::NEVER
        };
        let look = self.next_look.min(self.next_search);
        look.min(self.next_try).min(mend)
    }

    /// Returns what was counted.
    #[must_use]
    pub fn counts(&self) -> MadCounts {
        let counts = &self.mail.counts;
        MadCounts {
            sent: counts.sent.sent,
            unresolved: self.unresolved,
            unsent: counts.sent.failed + counts.sent.unresolved,
            length: self.length,
            failed: counts.failed + counts.nonsense + counts.sent.nonsense,
            resets: counts.resets,
        }
    }
}

impl Drop for MadPort {
    /// The system destroys no queue pair that is in a group.
    fn drop(&mut self) {
        for (group, lid) in &self.groups {
            self.mail.detach(group.0, *lid);
        }
    }
}

impl AsFd for MadPort {
    /// Readable when [`turn`](Self::turn) has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The partition that every port of RoCE is in.
const DEFAULT_PARTITION: u16 = 0xffff;

fn wake_set(channel: &Channel, open: &Open, neighbours: &Neighbours) -> Result<OwnedFd, rustix::io::Errno> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = EventData::new_u64(0);
    epoll::add(&set, channel.fd(), data, EventFlags::IN)?;
    epoll::add(&set, open.events(), data, EventFlags::IN)?;
    if let Some(news) = neighbours.news() {
        epoll::add(&set, news, data, EventFlags::IN)?;
    }
    Ok(set)
}
