//! Hardware addresses of the next stations, asked for by a virtual function itself: no kernel has its address, so none asks for it,
//! and none answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_fabric::ether::{Mac, Resolve, announce, answer, ask};
use doorbell_fabric::time::Time;

/// The half of a rail that sends, as far as neighbours concern it.
pub trait Speaker {
    /// The hardware addresses between which frames for this peer travel from now on.
    fn set_macs(&mut self, peer: usize, own: Mac, theirs: Mac);

    /// Sends a short packet of the function's own; returns whether there was room beside what is promised to others.
    fn send_own(&mut self, packet: &[u8]) -> bool;
}

/// After how long a station that does not answer is asked again, and one that does is asked whether it is still there.
const ASK_EVERY: Duration = Duration::from_millis(100);
const CONFIRM_EVERY: Duration = Duration::from_secs(20);
/// The longest time between two questions for one that does not answer.
const ASK_MOST: Duration = Duration::from_secs(3);
/// Most stations that are asked for at a time.
const AT_A_TIME: usize = 16;

/// The way to one peer.
#[derive(Debug)]
struct Hop {
    station: IpAddr,
    mac: Option<Mac>,
    /// The station, or one who asked in its name, has said so itself; else somebody else has.
    is_found: bool,
    /// When it is asked (again), and how long it is waited for then.
    due: Time,
    patience: Duration,
}

/// The ways to all peers, by their numbers.
#[derive(Debug)]
pub struct Hops {
    own: (IpAddr, Mac),
    list: Vec<Hop>,
    announced: bool,
    /// Who is looked at first.
    turn: usize,
    /// Questions for the own address that were answered.
    pub answered: u64,
}

impl Hops {
    /// Nobody is known yet. `own`: the addresses that questions are asked and answered by.
    #[must_use]
    pub fn new(own: (IpAddr, Mac)) -> Self {
        Self {
            own,
            list: Vec::new(),
            announced: false,
            turn: 0,
            answered: 0,
        }
    }

    /// How many peers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is no peer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets all peers.
    pub fn clear(&mut self) {
        self.list.clear();
        self.turn = 0;
    }

    /// Whether the hardware address on the way to this peer is known.
    #[must_use]
    pub fn is_resolved(&self, peer: usize) -> bool {
        self.list.get(peer).is_some_and(|hop| hop.mac.is_some())
    }

    /// The next peer, behind this station.
    pub fn add(&mut self, station: IpAddr, now: Time, tx: &mut impl Speaker) {
        // Another peer behind the same station may have been asked for.
        let known = self.list.iter().find(|hop| hop.station == station);
        let (mac, is_found) = known.map_or((None, false), |hop| (hop.mac, hop.is_found));
        let peer = self.list.len();
        self.list.push(Hop {
            station,
            mac,
            is_found,
            due: now + ASK_EVERY,
            patience: ASK_EVERY,
        });
        match mac {
            Some(mac) => tx.set_macs(peer, self.own.1, mac),
            None => self.question(station, tx),
        }
    }

    fn question(&self, station: IpAddr, tx: &mut impl Speaker) {
        if let Some(packet) = ask(self.own, station) {
            tx.send_own(&packet);
        }
    }

    /// The function has this hardware address (again): everybody is told, and asked again.
    pub fn begin(&mut self, mac: Mac, tx: &mut impl Speaker) {
        self.own.1 = mac;
        self.announced = false;
        for (peer, hop) in self.list.iter_mut().enumerate() {
            (hop.due, hop.patience) = (Time::ZERO, ASK_EVERY);
            if let Some(theirs) = hop.mac {
                tx.set_macs(peer, mac, theirs);
            }
        }
    }

    /// Hears what a neighbour says, and answers.
    pub fn hear(&mut self, said: Resolve, now: Time, tx: &mut impl Speaker) {
        match said {
            Resolve::Asks {
                from,
                reply_to,
                about,
            } => {
                if about == self.own.0
                    && let Some(packet) = answer(self.own, from.map(|(ip, _)| ip), reply_to)
                {
                    self.answered += u64::from(tx.send_own(&packet));
                }
                if let Some((ip, mac)) = from {
                    self.learn(ip, mac, now, tx);
                }
            }
            Resolve::Tells { about, mac } => self.learn(about, mac, now, tx),
        }
    }

    fn learn(&mut self, ip: IpAddr, mac: Mac, now: Time, tx: &mut impl Speaker) {
        // Nobody else has our IP address; who says so is mistaken, or lies. Functions of one adapter may share its hardware address.
        if ip == self.own.0 {
            return;
        }
        for (peer, hop) in self.list.iter_mut().enumerate() {
            if hop.station == ip {
                (hop.due, hop.patience, hop.is_found) = (now + CONFIRM_EVERY, ASK_EVERY, true);
                if hop.mac.replace(mac) != Some(mac) {
                    tx.set_macs(peer, self.own.1, mac);
                }
            }
        }
    }

    /// Takes a third party's word for where a station is, until the station is found. It is asked all the same: its own word counts more,
    /// and what it has said is not replaced.
    pub fn suggest(&mut self, ip: IpAddr, mac: Mac, tx: &mut impl Speaker) {
        for (peer, hop) in self.list.iter_mut().enumerate() {
            let is_wanted = hop.station == ip && !hop.is_found && ip != self.own.0;
            if is_wanted && hop.mac.replace(mac) != Some(mac) {
                tx.set_macs(peer, self.own.1, mac);
            }
        }
    }

    /// Asks for those that are due. A few at a time: the others' turn comes with the next looks.
    pub fn look(&mut self, now: Time, tx: &mut impl Speaker) {
        if !self.announced {
            self.announced = announce(self.own).is_some_and(|packet| tx.send_own(&packet));
        }
        // In place: housekeeping takes no memory either.
        let mut asked = [None; AT_A_TIME];
        let mut asks = 0;
        let count = self.list.len();
        for at in 0..count {
            let peer = (self.turn + at) % count;
            let hop = &mut self.list[peer];
            if now < hop.due {
                continue;
            }
            if asks == AT_A_TIME {
                // Its turn comes first with the next look.
                self.turn = peer;
                return;
            }
            // What was known is used until something else is.
            hop.due = now + hop.patience;
            hop.patience = (hop.patience * 2).min(ASK_MOST);
            let station = hop.station;
            if !asked.contains(&Some(station)) {
                asked[asks] = Some(station);
                asks += 1;
                self.question(station, tx);
            }
        }
    }

    /// The first two sockets of a peer, if this can be one.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn sockets(&self, socket: Option<SocketAddr>) -> Result<[SocketAddr; 2], &'static str> {
        let socket = socket.ok_or("it is not an IP address with a port")?;
        let ip = socket.ip();
        let broadcast = IpAddr::from([255; 4]);
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip == broadcast {
            Err("it names no single host of a network")
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

    /// Who is sent where, and how many questions there were.
    #[derive(Default)]
    struct Heard {
        to: Vec<Option<Mac>>,
        asked: usize,
    }

    impl Speaker for Heard {
        fn set_macs(&mut self, peer: usize, _: Mac, theirs: Mac) {
            self.to.resize(self.to.len().max(peer + 1), None);
            self.to[peer] = Some(theirs);
        }

        fn send_own(&mut self, _: &[u8]) -> bool {
            self.asked += 1;
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
        let station = IpAddr::from([10, 0, 0, 2]);
        for asks in [false, true] {
            let (mut hops, mut tx) = (Hops::new(OWN), Heard::default());
            hops.add(station, at(0), &mut tx);
            let said = if asks {
                Resolve::Asks {
                    from: Some((station, TRUE)),
                    reply_to: TRUE,
                    about: OWN.0,
                }
            } else {
                Resolve::Tells {
                    about: station,
                    mac: TRUE,
                }
            };
            hops.hear(said, at(1), &mut tx);
            hops.suggest(station, OTHER, &mut tx);
            assert_eq!(tx.to, [Some(TRUE)]);
            // Nor is it for another peer behind it.
            hops.add(station, at(2), &mut tx);
            hops.suggest(station, OTHER, &mut tx);
            assert_eq!(tx.to, [Some(TRUE); 2]);
            // It may say something else itself.
            let moved = Resolve::Tells {
                about: station,
                mac: OTHER,
            };
            hops.hear(moved, at(3), &mut tx);
            assert_eq!(tx.to, [Some(OTHER); 2]);
        }
    }

    #[test]
    fn what_others_say_is_used_until_the_station_says_it_and_it_is_asked() {
        let station = IpAddr::from([10, 0, 0, 2]);
        let (mut hops, mut tx) = (Hops::new(OWN), Heard::default());
        hops.add(station, at(0), &mut tx);
        hops.suggest(station, OTHER, &mut tx);
        assert!(hops.is_resolved(0));
        hops.look(at(0), &mut tx);
        let before = tx.asked;
        hops.look(at(200), &mut tx);
        assert_eq!(tx.asked, before + 1, "it is asked all the same");
        // The third party may know better by now.
        hops.suggest(station, [2, 0, 0, 0, 0, 4], &mut tx);
        assert_eq!(tx.to, [Some([2, 0, 0, 0, 0, 4])]);
        let told = Resolve::Tells {
            about: station,
            mac: TRUE,
        };
        hops.hear(told, at(300), &mut tx);
        hops.suggest(station, OTHER, &mut tx);
        assert_eq!(tx.to, [Some(TRUE)]);
        hops.suggest(IpAddr::from([10, 0, 0, 9]), OTHER, &mut tx);
        assert_eq!(tx.to.len(), 1, "nobody is there");
    }
}
