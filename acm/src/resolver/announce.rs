//! Announcements: a host that started, or whose addresses changed, queries the group for its own addresses.
//! No host answers; receivers learn the new addresses from it.

use std::collections::VecDeque;
use std::time::Duration;

use super::action::{Action, EndpointId};
use super::stats::EventKind;
use super::{Resolver, Timer};
use crate::address::Address;
use crate::mad::{Direction, Resolve};

/// Pauses before each announcement. A random part is added, so that hosts that start together do not announce
/// together.
const PAUSES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(600),
];
/// Maximum of the random part (ns).
const CHANCE: u64 = 20_000_000;
/// Maximum number of addresses announced at once, and the pause before the next ones.
const AT_ONCE: usize = 32;
const NEXT: Duration = Duration::from_millis(5);

/// What an endpoint still has to announce.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    round: usize,
    left: VecDeque<Address>,
}

impl Resolver {
    /// Starts to announce all addresses of an endpoint.
    pub(super) fn announce(&mut self, endpoint: EndpointId) {
        let Some(port) = self.port_mut(endpoint) else {
            return;
        };
        let left: VecDeque<Address> = port.endpoint.addresses.iter().cloned().collect();
        let count = left.len();
        port.announcement = Announcement { round: 0, left };
        if port.groups.first().is_none() || count == 0 {
            return;
        }
        self.note(EventKind::Announced(endpoint, count));
        self.pause(endpoint, PAUSES[0]);
    }

    fn pause(&mut self, endpoint: EndpointId, pause: Duration) {
        let chance = Duration::from_nanos((self.random)() % CHANCE);
        self.timers
            .set(Timer::Announce(endpoint), self.now + pause + chance);
    }

    pub(super) fn announce_due(&mut self, endpoint: EndpointId) {
        for _ in 0..AT_ONCE {
            let Some(port) = self.port_mut(endpoint) else {
                return;
            };
            let Some(address) = port.announcement.left.pop_front() else {
                break;
            };
            self.send_announcement(endpoint, address);
        }
        let Some(port) = self.port_mut(endpoint) else {
            return;
        };
        if !port.announcement.left.is_empty() {
            return self.timers.set(Timer::Announce(endpoint), self.now + NEXT);
        }
        port.announcement.round += 1;
        if let Some(pause) = PAUSES.get(port.announcement.round) {
            port.announcement.left = port.endpoint.addresses.iter().cloned().collect();
            self.pause(endpoint, *pause);
        }
    }

    fn send_announcement(&mut self, endpoint: EndpointId, address: Address) {
        let transaction = (self.random)();
        let Some(port) = self.port(endpoint) else { return };
        let Some(group) = port.groups.first().filter(|_| port.endpoint.has(&address)) else {
            return;
        };
        let mad = Resolve {
            direction: Direction::Question,
            transaction,
            destination: Some(address.clone()),
            source: Some(address),
            groups: port.groups.list(),
        };
        self.stats.multicasts += 1;
        self.stats.announcements += 1;
        self.actions.push_back(Action::Multicast {
            endpoint,
            group,
            mad: Box::new(mad.bytes()),
        });
    }
}
