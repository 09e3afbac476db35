//! A neighbour cache for virtual functions: ARP and NDP requests, replies and retries. The kernel does not
//! know the function's IP address, so the driver has to resolve neighbours and answer their requests itself.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_fabric::ether::{
    Mac, NeighbourMessage, neighbour_announcement, neighbour_reply, neighbour_request,
};
use doorbell_fabric::time::Time;

use crate::peer_numbers::put_peer;

/// The part of a rail's sending half that the neighbour cache uses.
pub trait PacketSender {
    /// Sets the source and destination hardware addresses of all further frames to this peer.
    fn set_macs(&mut self, peer: usize, own: Mac, theirs: Mac);

    /// Sends one ARP or NDP packet; returns false when the only free descriptors are reserved for frames.
    fn send_own(&mut self, packet: &[u8]) -> bool;
}

/// First retry interval of an unresolved next hop, and the interval after which a resolved one is confirmed.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const CONFIRM_AFTER: Duration = Duration::from_secs(20);
/// Longest retry interval of an unresolved next hop.
const RETRY_MAX: Duration = Duration::from_secs(3);
/// Most requests sent by one poll.
const REQUESTS_PER_POLL: usize = 16;

/// The next hop of one peer.
#[derive(Debug)]
struct Entry {
    next_hop: IpAddr,
    mac: Option<Mac>,
    /// The hardware address came from the next hop itself or its proxy, not from a third party.
    is_confirmed: bool,
    /// When the next request is due, and the retry interval after that.
    due: Time,
    retry_after: Duration,
}

/// The next hops of all peers, indexed by peer.
#[derive(Debug)]
pub struct NeighbourCache {
    own: (IpAddr, Mac),
    /// `None` in the places of peers that were forgotten.
    entries: Vec<Option<Entry>>,
    announced: bool,
    /// The entry that the next poll starts with.
    first: usize,
    /// Requests for the function's own address that were answered.
    pub answered: u64,
}

impl NeighbourCache {
    /// Creates an empty cache; `own` is the address pair that requests and replies carry.
    #[must_use]
    pub fn new(own: (IpAddr, Mac)) -> Self {
        Self {
            own,
            entries: Vec::new(),
            announced: false,
            first: 0,
            answered: 0,
        }
    }

    /// The number of peers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    /// Whether there is no peer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entry(&self, peer: usize) -> Option<&Entry> {
        self.entries.get(peer)?.as_ref()
    }

    /// The entries of all peers, with their numbers.
    fn all(&mut self) -> impl Iterator<Item = (usize, &mut Entry)> {
        let all = self.entries.iter_mut().enumerate();
        all.filter_map(|(peer, entry)| Some((peer, entry.as_mut()?)))
    }

    /// Removes a peer: nothing is requested for it any more.
    pub fn remove(&mut self, peer: u32) {
        if let Some(entry) = self.entries.get_mut(peer as usize) {
            *entry = None;
        }
    }

    /// Removes all peers.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.first = 0;
    }

    /// Whether the hardware address of this peer's next hop is known.
    #[must_use]
    pub fn is_resolved(&self, peer: usize) -> bool {
        self.entry(peer).is_some_and(|entry| entry.mac.is_some())
    }

    /// Adds a peer, reached through `next_hop`, and sends a request unless the address is known already.
    pub fn add(&mut self, peer: u32, next_hop: IpAddr, now: Time, tx: &mut impl PacketSender) {
        // Another peer may have resolved the same next hop.
        let known = self
            .entries
            .iter()
            .flatten()
            .find(|entry| entry.next_hop == next_hop);
        let (mac, is_confirmed) = known.map_or((None, false), |entry| (entry.mac, entry.is_confirmed));
        let entry = Entry {
            next_hop,
            mac,
            is_confirmed,
            due: now + RETRY_FIRST,
            retry_after: RETRY_FIRST,
        };
        put_peer(&mut self.entries, peer, Some(entry));
        match mac {
            Some(mac) => tx.set_macs(peer as usize, self.own.1, mac),
            None => self.send_request(next_hop, tx),
        }
    }

    fn send_request(&self, next_hop: IpAddr, tx: &mut impl PacketSender) {
        if let Some(packet) = neighbour_request(self.own, next_hop) {
            tx.send_own(&packet);
        }
    }

    /// Sets the function's hardware address after bring-up or a reset: the next polls announce it and resolve
    /// all next hops again.
    pub fn set_own_mac(&mut self, mac: Mac, tx: &mut impl PacketSender) {
        self.own.1 = mac;
        self.announced = false;
        for (peer, entry) in self.all() {
            (entry.due, entry.retry_after) = (Time::ZERO, RETRY_FIRST);
            if let Some(theirs) = entry.mac {
                tx.set_macs(peer, mac, theirs);
            }
        }
    }

    /// Handles a received ARP or NDP message, and replies to a request for the own address.
    pub fn on_message(&mut self, message: NeighbourMessage, now: Time, tx: &mut impl PacketSender) {
        match message {
            NeighbourMessage::Request {
                from,
                reply_to,
                target,
            } => {
                if target == self.own.0
                    && let Some(packet) = neighbour_reply(self.own, from.map(|(ip, _)| ip), reply_to)
                {
                    self.answered += u64::from(tx.send_own(&packet));
                }
                if let Some((ip, mac)) = from {
                    self.learn(ip, mac, now, tx);
                }
            }
            NeighbourMessage::Reply { target, mac } => self.learn(target, mac, now, tx),
        }
    }

    fn learn(&mut self, ip: IpAddr, mac: Mac, now: Time, tx: &mut impl PacketSender) {
        // A message that claims our own IP address is an error or an attack. The hardware address is not
        // compared: functions of one adapter may share it.
        if ip == self.own.0 {
            return;
        }
        let own = self.own.1;
        for (peer, entry) in self.all() {
            if entry.next_hop == ip {
                (entry.due, entry.retry_after, entry.is_confirmed) = (now + CONFIRM_AFTER, RETRY_FIRST, true);
                if entry.mac.replace(mac) != Some(mac) {
                    tx.set_macs(peer, own, mac);
                }
            }
        }
    }

    /// Takes a next hop's hardware address from a third party until the next hop itself confirms one.
    /// Requests are sent all the same, and a confirmed address is never replaced by a suggested one.
    pub fn suggest(&mut self, ip: IpAddr, mac: Mac, tx: &mut impl PacketSender) {
        let own = self.own;
        for (peer, entry) in self.all() {
            let is_wanted = entry.next_hop == ip && !entry.is_confirmed && ip != own.0;
            if is_wanted && entry.mac.replace(mac) != Some(mac) {
                tx.set_macs(peer, own.1, mac);
            }
        }
    }

    /// Sends the requests that are due, at most `REQUESTS_PER_POLL`; the next polls send the rest.
    pub fn poll(&mut self, now: Time, tx: &mut impl PacketSender) {
        if !self.announced {
            self.announced = neighbour_announcement(self.own).is_some_and(|packet| tx.send_own(&packet));
        }
        // A fixed array, because housekeeping must not allocate.
        let mut asked = [None; REQUESTS_PER_POLL];
        let mut asks = 0;
        let count = self.entries.len();
        for at in 0..count {
            let peer = (self.first + at) % count;
            let entry = self.entries[peer].as_mut();
            let Some(entry) = entry.filter(|entry| now >= entry.due) else {
                continue;
            };
            if asks == REQUESTS_PER_POLL {
                // The next poll starts with it.
                self.first = peer;
                return;
            }
            // The old address stays in use until a reply brings another one.
            entry.due = now + entry.retry_after;
            entry.retry_after = (entry.retry_after * 2).min(RETRY_MAX);
            let next_hop = entry.next_hop;
            if !asked.contains(&Some(next_hop)) {
                asked[asks] = Some(next_hop);
                asks += 1;
                self.send_request(next_hop, tx);
            }
        }
    }

    /// Returns the two socket addresses of a peer, one for each channel.
    ///
    /// # Errors
    /// The reason when `socket` cannot be a peer of this function.
    pub fn sockets(&self, socket: Option<SocketAddr>) -> Result<[SocketAddr; 2], &'static str> {
        let socket = socket.ok_or("it is not an IP address with a port")?;
        let ip = socket.ip();
        let broadcast = IpAddr::from([255; 4]);
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip == broadcast {
            Err("it is not the address of a single host")
        } else if ip.is_ipv4() != self.own.0.is_ipv4() {
            Err("it is of the other family (IPv4, IPv6) than the function's address")
        } else if ip == self.own.0 {
            Err("it is the function's own address")
        } else if socket.port() == 0 || socket.port() == u16::MAX {
            Err("a pair of ports starts between 1 and 65534")
        } else {
            Ok([socket.port(), socket.port() + 1].map(|port| SocketAddr::new(ip, port)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the hardware addresses set for each peer, and counts requests.
    #[derive(Default)]
    struct RecordingSender {
        to: Vec<Option<Mac>>,
        requests: usize,
    }

    impl PacketSender for RecordingSender {
        fn set_macs(&mut self, peer: usize, _: Mac, theirs: Mac) {
            self.to.resize(self.to.len().max(peer + 1), None);
            self.to[peer] = Some(theirs);
        }

        fn send_own(&mut self, _: &[u8]) -> bool {
            self.requests += 1;
            true
        }
    }

    const OWN: (IpAddr, Mac) = (
        IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        [2, 0, 0, 0, 0, 1],
    );
    const TRUE: Mac = [2, 0, 0, 0, 0, 2];
    const OTHER: Mac = [2, 0, 0, 0, 0, 3];

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_a_station_said_itself_is_not_replaced_by_what_others_say() {
        let next_hop = IpAddr::from([10, 0, 0, 2]);
        for asks in [false, true] {
            let (mut cache, mut tx) = (NeighbourCache::new(OWN), RecordingSender::default());
            cache.add(0, next_hop, at(0), &mut tx);
            let message = if asks {
                NeighbourMessage::Request {
                    from: Some((next_hop, TRUE)),
                    reply_to: TRUE,
                    target: OWN.0,
                }
            } else {
                NeighbourMessage::Reply {
                    target: next_hop,
                    mac: TRUE,
                }
            };
            cache.on_message(message, at(1), &mut tx);
            cache.suggest(next_hop, OTHER, &mut tx);
            assert_eq!(tx.to, [Some(TRUE)]);
            // Neither is it for another peer with the same next hop.
            cache.add(1, next_hop, at(2), &mut tx);
            cache.suggest(next_hop, OTHER, &mut tx);
            assert_eq!(tx.to, [Some(TRUE); 2]);
            // The next hop itself may announce another address.
            let moved = NeighbourMessage::Reply {
                target: next_hop,
                mac: OTHER,
            };
            cache.on_message(moved, at(3), &mut tx);
            assert_eq!(tx.to, [Some(OTHER); 2]);
        }
    }

    #[test]
    fn hints_are_used_until_the_next_hop_confirms_them_and_it_is_queried() {
        let next_hop = IpAddr::from([10, 0, 0, 2]);
        let (mut cache, mut tx) = (NeighbourCache::new(OWN), RecordingSender::default());
        cache.add(0, next_hop, at(0), &mut tx);
        cache.suggest(next_hop, OTHER, &mut tx);
        assert!(cache.is_resolved(0));
        cache.poll(at(0), &mut tx);
        let before = tx.requests;
        cache.poll(at(200), &mut tx);
        assert_eq!(tx.requests, before + 1, "it is requested all the same");
        // A later suggestion replaces an earlier one.
        cache.suggest(next_hop, [2, 0, 0, 0, 0, 4], &mut tx);
        assert_eq!(tx.to, [Some([2, 0, 0, 0, 0, 4])]);
        let told = NeighbourMessage::Reply {
            target: next_hop,
            mac: TRUE,
        };
        cache.on_message(told, at(300), &mut tx);
        cache.suggest(next_hop, OTHER, &mut tx);
        assert_eq!(tx.to, [Some(TRUE)]);
        cache.suggest(IpAddr::from([10, 0, 0, 9]), OTHER, &mut tx);
        assert_eq!(tx.to.len(), 1, "no peer has that address");
    }

    #[test]
    fn nothing_is_requested_for_a_peer_that_was_removed() {
        let (mut cache, mut tx) = (NeighbourCache::new(OWN), RecordingSender::default());
        for peer in 0..3 {
            cache.add(peer, IpAddr::from([10, 0, 0, 2 + peer as u8]), at(0), &mut tx);
        }
        cache.remove(1);
        assert_eq!((cache.len(), cache.is_resolved(1)), (2, false));
        cache.poll(at(0), &mut tx);
        let before = tx.requests;
        cache.poll(at(200), &mut tx);
        assert_eq!(tx.requests, before + 2);
        cache.set_own_mac(OTHER, &mut tx);
        cache.add(1, IpAddr::from([10, 0, 0, 9]), at(200), &mut tx);
        cache.suggest(IpAddr::from([10, 0, 0, 9]), TRUE, &mut tx);
        assert!(cache.is_resolved(1) && cache.len() == 3);
    }
}
