//! Resolves the addresses of peers by the address service (`doorbell acm serve`, or rdma-core's `ibacm`),
//! where `acm.mode` is on.
//!
//! ```text
//!   address of our rail, address of the peer's ──► service ──► a path: MTU, rate, hop limit
//!   port of InfiniBand, port of the peer's     ──► service ──► a path record
//!   name of a host                             ──► service ──► an address
//!             without an answer: the system's own tables and names, and one line on stderr
//! ```
//!
//! A path between IP addresses is reported beside what the rails find out by themselves: it does not change
//! how a peer is opened. A path between ports of InfiniBand is given to the rail before that, which uses it.
//! Where the service has no path, a peer is opened all the same.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_acm::address::{Address, Gid, Name};
use doorbell_acm::client::{ClientError, Service, query_all_within};
use doorbell_acm::path::{Path, PathRecord};
use doorbell_acm::query::Question;
use doorbell_acm::serve::SocketPaths;
use doorbell_acm::wire::Response;
use doorbell_fabric::addr::Address as Place;
use doorbell_fabric::gid::{self, Link};

use crate::config::Config;
use crate::meet::RankInfo;

/// Most pairs of addresses in one query.
const MOST: usize = 65_536;

/// How an address of a peer was resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// The address service had a path.
    Service {
        /// Largest payload of a packet by InfiniBand's classes, in bytes; `None` where the path has none.
        mtu: Option<u32>,
        /// Rate in megabits a second; `None` where the path has none.
        megabits: Option<u32>,
        /// Most routers that a packet may pass; 0 within one link.
        hop_limit: u8,
        /// The record that the rail uses, between ports of InfiniBand.
        record: Option<PathRecord>,
    },
    /// The system's own tables are used, because the service gave no path.
    System {
        /// Why the service gave none.
        reason: String,
    },
}

/// An address of a peer, with how it was resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolution {
    /// The peer's rank.
    pub rank: u32,
    /// The address of our rail; between ports of InfiniBand, the GID of ours.
    pub from: IpAddr,
    /// The address of the peer's rail, or the GID of its port.
    pub to: IpAddr,
    /// How the address was resolved.
    pub how: How,
}

impl Resolution {
    /// Returns the record of a path between ports of InfiniBand, for the rail to use.
    #[must_use]
    pub fn record(&self) -> Option<&PathRecord> {
        match &self.how {
            How::Service { record, .. } => record.as_ref(),
            How::System { .. } => None,
        }
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} at {}: ", self.rank, self.to)?;
        match &self.how {
            How::Service {
                mtu,
                megabits,
                hop_limit,
                ..
            } => {
                f.write_str("by the address service")?;
                if let Some(mtu) = mtu {
                    write!(f, ", MTU {mtu}")?;
                }
                if let Some(megabits) = megabits {
                    write!(f, ", {} Gb/s", f64::from(*megabits) / 1e3)?;
                }
                if *hop_limit > 0 {
                    f.write_str(", by routers")?;
                }
                Ok(())
            }
            How::System { reason } => write!(f, "by the system's own tables: {reason}"),
        }
    }
}

/// Queries the service for paths from our rails to those of all peers on other hosts; returns nothing where
/// `acm.mode` is off. Takes little longer than `acm.timeout` at most.
pub fn consult<'a>(
    config: &Config,
    own: &RankInfo,
    table: impl IntoIterator<Item = &'a RankInfo>,
) -> Vec<Resolution> {
    if !*config.acm.mode.get() {
        return Vec::new();
    }
    let table: Vec<&RankInfo> = table.into_iter().collect();
    let ports = ports(own, table.iter().copied());
    let addresses = pairs(own, table);
    if addresses.is_empty() && ports.is_empty() {
        return Vec::new();
    }
    let by_address = |(from, to): &(IpAddr, IpAddr)| Question::Resolve {
        source: Some((*from).into()),
        destination: (*to).into(),
        no_delay: false,
    };
    let by_port = |(from, to, partition): &(Gid, Gid, u16)| Question::Path {
        path: Path {
            sgid: *from,
            dgid: *to,
            pkey: *partition,
            reversible: true,
            num_path: 1,
            ..Path::default()
        },
        verify: false,
    };
    let questions = addresses.keys().map(by_address).chain(ports.keys().map(by_port));
    let questions: Vec<Question> = questions.collect();
    let asked = service(config).and_then(|service| query_all_within(&service, questions, limit(config)));
    let of_ports = ports
        .into_iter()
        .map(|((from, to, _), rank)| ((from.ip(), to.ip()), rank, true));
    let pairs = addresses.into_iter().map(|(pair, rank)| (pair, rank, false));
    let pairs = pairs.chain(of_ports);
    let mut found: Vec<Resolution> = match asked {
        Ok(answers) => pairs
            .zip(answers)
            .map(|(((from, to), rank, is_port), answer)| Resolution {
                rank,
                from,
                to,
                how: how(answer, is_port),
            })
            .collect(),
        Err(error) => {
            let how = How::System {
                reason: error.to_string(),
            };
            let of = |((from, to), rank, _)| Resolution {
                rank,
                from,
                to,
                how: how.clone(),
            };
            pairs.map(of).collect()
        }
    };
    found.sort_by_key(|one| (one.rank, one.to, one.from));
    found
}

/// Prints one line where the service did not resolve all addresses.
pub fn report_fallback(rank: u32, resolutions: &[Resolution]) {
    if let Some(line) = fallen_back(rank, resolutions) {
        // stderr may be closed: there is nowhere to report that.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

fn fallen_back(rank: u32, resolutions: &[Resolution]) -> Option<String> {
    let mut without = resolutions.iter().filter_map(|one| match &one.how {
        How::System { reason } => Some((one, reason)),
        How::Service { .. } => None,
    });
    let (first, reason) = without.next()?;
    let (count, all) = (1 + without.count(), resolutions.len());
    Some(format!(
        "doorbell: rank {rank}: the address service did not help with {count} of {all} addresses of peers, and the system's own \
         tables are used instead (rank {} at {}: {reason})\n",
        first.rank, first.to
    ))
}

/// Returns every pair of an address of ours and one of a peer's on another host that may reach each other,
/// with the peer's rank.
fn pairs<'a>(
    own: &RankInfo,
    table: impl IntoIterator<Item = &'a RankInfo>,
) -> BTreeMap<(IpAddr, IpAddr), u32> {
    let others = table.into_iter().filter(|peer| peer.host != own.host);
    let each = others.flat_map(|peer| {
        let ours = own.rails.iter();
        ours.flat_map(move |ours| peer.rails.iter().map(move |theirs| (ours, theirs, peer.rank)))
    });
    let fitting = each.filter(|(ours, theirs, _)| ours.wire == theirs.wire);
    fitting
        .filter_map(|(ours, theirs, rank)| {
            let (Place::Inet(from), Place::Inet(to)) = (&ours.address.address, &theirs.address.address)
            else {
                return None;
            };
            let fit =
                from.is_ipv4() == to.is_ipv4() && !from.ip().is_unspecified() && !from.ip().is_loopback();
            fit.then(|| ((from.ip(), to.ip()), rank))
        })
        .take(MOST)
        .collect()
}

/// Returns every pair of a port of InfiniBand of ours and one of a peer's, by the GIDs that both rails use
/// and the partition of ours, with the peer's rank.
fn ports<'a>(
    own: &RankInfo,
    table: impl IntoIterator<Item = &'a RankInfo>,
) -> BTreeMap<(Gid, Gid, u16), u32> {
    let others = table.into_iter().filter(|peer| peer.host != own.host);
    let each = others.flat_map(|peer| {
        let ours = own.rails.iter();
        ours.flat_map(move |ours| peer.rails.iter().map(move |theirs| (ours, theirs, peer.rank)))
    });
    let fitting = each.filter(|(ours, theirs, _)| ours.wire == theirs.wire);
    fitting
        .filter_map(|(ours, theirs, rank)| {
            let (ours, theirs) = (ours.place.port.as_ref()?, theirs.place.port.as_ref()?);
            if ours.link != Link::InfiniBand || theirs.link != Link::InfiniBand {
                return None;
            }
            let pair = gid::choose(&ours.gids, &theirs.gids)?;
            let (from, to) = (ours.gids[pair.ours].gid, theirs.gids[pair.theirs].gid);
            Some(((Gid(from.0), Gid(to.0), ours.partition), rank))
        })
        .take(MOST)
        .collect()
}

fn how(answer: Result<Response, ClientError>, is_port: bool) -> How {
    match answer {
        Ok(Response::Path { path, .. }) => How::Service {
            mtu: path.mtu.map(|mtu| mtu.bytes()),
            megabits: path.rate.map(|rate| rate.megabits()),
            hop_limit: path.hop_limit,
            record: is_port.then(|| PathRecord::from(&*path)),
        },
        Ok(_) => How::System {
            reason: "the service answered another question".to_owned(),
        },
        Err(error) => How::System {
            reason: error.to_string(),
        },
    }
}

fn service(config: &Config) -> Result<Service, ClientError> {
    Service::of(config.acm.service.get().as_deref(), &SocketPaths::default())
}

fn limit(config: &Config) -> Duration {
    *config.acm.timeout.get()
}

/// Looks up a host's address by the address service; returns `None` where `acm.mode` is off, or `name` is no
/// host name.
///
/// ```
/// # use doorbell_job as doorbell;
/// let config = doorbell::Config::default();
/// assert!(doorbell::acm::host(&config, "node1", 7117).is_none(), "acm.mode is off");
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// Why the service did not resolve the name; the caller then uses the system's resolver.
pub fn host(config: &Config, name: &str, port: u16) -> Option<Result<SocketAddr, String>> {
    if !*config.acm.mode.get() || name.parse::<IpAddr>().is_ok() {
        return None;
    }
    let name = Name::new(name).ok()?;
    Some(ask_for(config, name).map(|ip| SocketAddr::new(ip, port)))
}

fn ask_for(config: &Config, name: Name) -> Result<IpAddr, String> {
    let question = Question::Resolve {
        source: None,
        destination: Address::Name(name),
        no_delay: false,
    };
    let service = service(config).map_err(|error| error.to_string())?;
    let answers =
        query_all_within(&service, vec![question], limit(config)).map_err(|error| error.to_string())?;
    match answers.into_iter().next() {
        Some(Ok(Response::Path { path, .. })) => ip_of(&path),
        Some(Err(error)) => Err(error.to_string()),
        _ => Err("the service answered another question".to_owned()),
    }
}

/// Returns the IP address that a path leads to; refuses link-local ones, since a path has no interface
/// number.
fn ip_of(path: &Path) -> Result<IpAddr, String> {
    let ip = path.dgid.ip();
    let is_of_a_link = matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local());
    if path.dgid == Gid::NONE || path.dlid != 0 || is_of_a_link {
        return Err(format!(
            "its path leads to the GID {}, which is no address to connect to",
            path.dgid
        ));
    }
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meet::RailEntry;
    use doorbell_acm::path::{Mtu, Rate};
    use doorbell_fabric::addr::RailAddress;

    fn info(rank: u32, host: &str, rails: &[(&str, &str)]) -> RankInfo {
        let rail = |(wire, address): &(&str, &str)| RailEntry {
            name: format!("{wire}:x"),
            wire: (*wire).to_owned(),
            address: RailAddress::inet(wire, address.parse().unwrap()),
            incarnation: 1,
            features: Vec::new(),
            eager: 0,
            place: doorbell_fabric::pairs::Place::default(),
        };
        let mut info =
            RankInfo::of_this_process(rank, 3, BTreeMap::new(), rails.iter().map(rail).collect()).unwrap();
        info.host = host.to_owned();
        info
    }

    #[test]
    fn only_addresses_that_may_lead_to_another_host_are_asked_about() {
        let own = info(
            0,
            "a",
            &[
                ("udp", "10.0.0.1:5"),
                ("udp", "127.0.0.1:6"),
                ("udp", "[fd00::1]:7"),
            ],
        );
        let near = info(1, "a", &[("udp", "10.0.0.9:5")]);
        let far = info(
            2,
            "b",
            &[
                ("udp", "10.0.0.2:5"),
                ("other", "10.0.0.3:5"),
                ("udp", "[fd00::2]:7"),
            ],
        );
        let found = pairs(&own, &[own.clone(), near, far]);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let wanted = BTreeMap::from([
            ((ip("10.0.0.1"), ip("10.0.0.2")), 2),
            ((ip("fd00::1"), ip("fd00::2")), 2),
        ]);
        assert_eq!(found, wanted);
    }

    #[test]
    fn without_a_service_it_is_told_why_and_without_the_setting_nobody_is_asked() {
        let (own, far) = (
            info(0, "a", &[("udp", "10.0.0.1:5")]),
            info(1, "b", &[("udp", "10.0.0.2:5")]),
        );
        let table = [own.clone(), far];
        let mut config = Config::default();
        assert!(consult(&config, &own, &table).is_empty());
        assert_eq!(host(&config, "node1", 1), None);
        config.acm.mode.set(true);
        config.acm.service.set(Some("/nonexistent/acm.sock".to_owned()));
        let told = consult(&config, &own, &table);
        assert_eq!(told.len(), 1);
        assert!(
            fallen_back(0, &told)
                .unwrap()
                .contains("1 of 1 addresses of peers")
        );
        assert_eq!(fallen_back(0, &[]), None);
        let line = told[0].to_string();
        assert!(
            line.starts_with("rank 1 at 10.0.0.2: by the system's own tables: no service listens at"),
            "{line}"
        );
        let named = host(&config, "node1", 1).unwrap().unwrap_err();
        assert!(
            named.contains("no service listens at /nonexistent/acm.sock"),
            "{named}"
        );
        assert_eq!(host(&config, "10.0.0.2", 1), None, "no name");
    }

    #[test]
    fn a_path_leads_to_an_address_that_can_be_called() {
        let to = |gid: &str, dlid| {
            ip_of(&Path {
                dgid: gid.parse().unwrap(),
                dlid,
                ..Path::default()
            })
        };
        assert_eq!(to("::ffff:10.0.0.2", 0), Ok("10.0.0.2".parse().unwrap()));
        assert_eq!(to("fd00::2", 0), Ok("fd00::2".parse().unwrap()));
        for (gid, dlid) in [("fe80::2", 0), ("::", 0), ("fd00::2", 7)] {
            assert!(to(gid, dlid).is_err(), "{gid}");
        }
    }

    #[test]
    fn what_the_service_says_of_a_path_is_told() {
        let path = Path {
            mtu: Mtu::within(2048),
            rate: Some(Rate::within(25_000)),
            hop_limit: 64,
            ..Path::default()
        };
        let resolution = Resolution {
            rank: 3,
            from: [10, 0, 0, 1].into(),
            to: [10, 0, 1, 2].into(),
            how: how(
                Ok(Response::Path {
                    path: Box::new(path),
                    source: None,
                }),
                false,
            ),
        };
        assert_eq!(
            resolution.to_string(),
            "rank 3 at 10.0.1.2: by the address service, MTU 2048, 25 Gb/s, by routers"
        );
    }

    #[test]
    fn ports_of_infiniband_are_asked_about_by_their_gids_and_the_record_is_kept() {
        let port = |link, last| {
            let mut gid = [0; 16];
            (gid[0], gid[1], gid[15]) = (0xfe, 0x80, last);
            gid::Port {
                link,
                partition: 0x8001,
                gids: vec![gid::Published {
                    gid: gid::Gid(gid),
                    kind: gid::Kind::InfiniBand,
                    prefix: 64,
                }],
            }
        };
        let of = |rank, host, link| {
            let mut info = info(rank, host, &[("verbs", "10.0.0.1:5")]);
            info.rails[0].address = RailAddress::native("verbs", [rank as u8]);
            info.rails[0].place.port = Some(port(link, rank as u8 + 1));
            info
        };
        let own = of(0, "a", Link::InfiniBand);
        let table = [
            of(1, "a", Link::InfiniBand),
            of(2, "b", Link::InfiniBand),
            of(3, "c", Link::Ethernet),
        ];
        let found = ports(&own, &table);
        let gid = |text: &str| text.parse::<Gid>().unwrap();
        let wanted = BTreeMap::from([((gid("fe80::1"), gid("fe80::3"), 0x8001), 2)]);
        assert_eq!(found, wanted);
        assert!(pairs(&own, &table).is_empty());
        let path = Path {
            dgid: gid("fe80::3"),
            dlid: 7,
            sl: 3,
            ..Path::default()
        };
        let answer = || {
            Ok(Response::Path {
                path: Box::new(path.clone()),
                source: None,
            })
        };
        let resolution = Resolution {
            rank: 2,
            from: gid("fe80::1").ip(),
            to: gid("fe80::3").ip(),
            how: how(answer(), true),
        };
        let record = resolution.record().unwrap();
        assert_eq!((record.dlid.get(), record.qos_and_sl.get()), (7, 3));
        let by_address = how(answer(), false);
        assert!(matches!(by_address, How::Service { record: None, .. }));
    }
}
