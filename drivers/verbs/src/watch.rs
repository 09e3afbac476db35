//! A device and its port, looked after while a rail has them: are they there, do packets pass, has anything
//! moved? Rails of datagrams and of connections use the same.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use doorbell_fabric::time::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::gid::Published;
use crate::ports::{Port, Tree};
use crate::sys::{Channel, Event, Open, numbers};
use crate::ways::Ways;

/// How often the device is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How often the port is: a change of its MTU raises no event.
const LOOK_AT_PORT: Duration = Duration::from_secs(1);
/// A link that is up is reported no sooner after it was reported down: one that flaps is reported twice a
/// second at most, and its loss at once.
const HOLD: Duration = Duration::from_secs(1);

/// Makes a set that is readable when there is something to do: a completion that was requested, an event of
/// the device, another neighbour.
pub(crate) fn wake_set(channel: &Channel, open: &Open, ways: &Ways) -> Result<OwnedFd, rustix::io::Errno> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = EventData::new_u64(0);
    epoll::add(&set, channel.fd(), data, EventFlags::IN)?;
    epoll::add(&set, open.events(), data, EventFlags::IN)?;
    if let Some(news) = ways.news() {
        epoll::add(&set, news, data, EventFlags::IN)?;
    }
    Ok(set)
}

/// What a rail needs of its port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    /// The place of the one GID that is used, where one is set.
    pub(crate) gid_index: Option<u8>,
    /// The GIDs that peers know, one of which has to be there.
    pub(crate) gids: Vec<Published>,
    /// Bytes that a packet has to carry.
    pub(crate) mtu: Option<usize>,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The device has failed, or is gone.
    pub(crate) is_gone: bool,
    /// The link is up, or down: to be reported.
    pub(crate) link: Option<bool>,
    /// Ways to peers may be others: a GID, the LID or the subnet's manager has changed.
    pub(crate) has_moved: bool,
    /// The partition is at another place of its table.
    pub(crate) is_partition_moved: bool,
    /// The port has another MTU.
    pub(crate) is_mtu_changed: bool,
}

/// The device and the port of a rail, as they are watched.
#[derive(Debug)]
pub(crate) struct PortWatch {
    tree: Tree,
    /// The device's entry of the system.
    entry: PathBuf,
    port: Port,
    /// The partition that is used: its last place in the table, and its key.
    partition: Option<(u16, u16)>,
    needs: Needs,
    is_up: bool,
    is_told_up: bool,
    told_down: Option<Time>,
    next_look: Time,
    next_port: Time,
}

impl PortWatch {
    /// Begins with a port that can be used, and the name of its device file.
    pub(crate) fn new(tree: Tree, file: &str, port: Port, needs: Needs) -> Self {
        Self {
            entry: tree.entry(file),
            tree,
            partition: port.partition,
            port,
            needs,
            is_up: true,
            is_told_up: true,
            told_down: None,
            next_look: Time::ZERO,
            next_port: Time::ZERO,
        }
    }

    /// The port, as of the last look.
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// The place of the partition in its table, and its key: also while it is gone.
    pub(crate) fn partition(&self) -> (u16, u16) {
        self.partition.unwrap_or_default()
    }

    /// Whether packets pass, as of the last look.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Has the port not be looked at any more unless an event names it.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn rest(&mut self) {
        self.next_port = Time::NEVER;
    }

    /// The time of the next look.
    pub(crate) fn next_look(&self) -> Time {
        self.next_look
    }

    /// Looks at the device and its port, and at the GIDs by which `ways` lead, if it is time to. `other` gets
    /// the events that are about something else.
    pub(crate) fn look(
        &mut self,
        now: Time,
        open: &Open,
        ways: &Ways,
        other: &mut dyn FnMut(&Event),
    ) -> Option<Changes> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK;
        let mut found = Changes {
            is_gone: !self.entry.exists(),
            ..Changes::default()
        };
        while !found.is_gone
            && let Some(event) = open.event()
        {
            match (event.kind, event.port) {
                (numbers::EVENT_DEVICE_FATAL, _) => found.is_gone = true,
                (kind, Some(port)) if port == self.port.number => {
                    self.next_port = Time::ZERO;
                    // Paths are of the subnet's manager.
                    found.has_moved |=
                        matches!(kind, numbers::EVENT_SM_CHANGE | numbers::EVENT_CLIENT_REREGISTER);
                }
                _ => other(&event),
            }
        }
        if found.is_gone {
            return Some(found);
        }
        if now >= self.next_port {
            self.next_port = now + LOOK_AT_PORT;
            self.look_at_port(open, ways, &mut found);
        }
        found.link = self.report(now);
        Some(found)
    }

    /// The port as it is now: its state, its MTU, its GIDs, its partition.
    fn look_at_port(&mut self, open: &Open, ways: &Ways, found: &mut Changes) {
        let partition = self.partition.map(|(_, key)| key);
        let port = Port::look_for(open, self.port.number, &self.tree, partition).ok();
        let Some(port) = port.and_then(|port| port.only(self.needs.gid_index).ok()) else {
            self.is_up = false;
            return;
        };
        let fits = self.needs.mtu.is_none_or(|least| port.mtu() >= Some(least));
        self.is_up = port.reason().is_none() && fits && self.has_a_known_gid(&port) && ways.begin_at(&port);
        found.has_moved |= port.gids != self.port.gids || port.attributes.lid != self.port.attributes.lid;
        found.is_partition_moved = port.partition.is_some() && port.partition != self.partition;
        found.is_mtu_changed = port.mtu().is_some() && port.mtu() != self.port.mtu();
        self.partition = port.partition.or(self.partition);
        self.port = port;
    }

    /// Whether a GID that peers know is still there.
    fn has_a_known_gid(&self, port: &Port) -> bool {
        let usable = |gid| port.gids.usable.iter().any(|entry| entry.published.gid == gid);
        let gids = &self.needs.gids;
        gids.is_empty() || gids.iter().any(|published| usable(published.gid))
    }

    /// Whether a change is to be reported.
    fn report(&mut self, now: Time) -> Option<bool> {
        let is_held = self.is_up && self.told_down.is_some_and(|at| now < at + HOLD);
        if self.is_up == self.is_told_up || is_held {
            return None;
        }
        self.is_told_up = self.is_up;
        if !self.is_up {
            self.told_down = Some(now);
        }
        Some(self.is_up)
    }
}
