//! Why a rail carries messages to a peer or does not: towards a host, from what the system says before anything is sent.
//!
//! For the ranks of a job, [`World::selection`](crate::World::selection) has the reasons, and
//! [`World::ways`](crate::World::ways) what was found out since.

use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::discover::{Candidate, Verdict};
use doorbell_fabric::select::Lost;
use serde::Serialize;

use crate::config::Config;
use crate::rails::{self, discover};

/// A rail of this machine, and whether it would carry messages to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Toward {
    /// The rail.
    pub rail: String,
    /// Whether it would be used: it reaches the host, and is named or needs no naming.
    pub chosen: bool,
    /// How frames get there, or the one reason that it lost.
    pub reason: String,
    /// Half a round trip of the smallest message in nanoseconds, as estimated, when it is chosen.
    pub estimated_ns: Option<u64>,
}

/// Every candidate's verdict towards `host`, under the rails that the configuration names: by interface, family and
/// routing table. What the host has open is not known here.
///
/// ```
/// let verdicts = doorbell::why(&doorbell::Config::default(), [192, 0, 2, 1].into());
/// let shm = verdicts.iter().find(|one| one.rail == "shm").unwrap();
/// assert!(!shm.chosen && shm.reason.contains("another host"), "{shm:?}");
/// ```
pub fn why(config: &Config, host: IpAddr) -> Vec<Toward> {
    let found = discover(config);
    let mut all: Vec<Toward> = found.candidates().map(|one| judge(config, one, host)).collect();
    for name in &config.rails.list.get().0 {
        if !found.candidates().any(|one| one.rail == *name) {
            let reason = match found.named(name) {
                Err(error) => error.to_string(),
                Ok(_) => Lost::Missing.to_string(),
            };
            all.push(Toward {
                rail: name.to_string(),
                chosen: false,
                reason,
                estimated_ns: None,
            });
        }
    }
    all.sort_by_key(|one| !one.chosen);
    all
}

fn judge(config: &Config, candidate: &Candidate, host: IpAddr) -> Toward {
    let verdict = verdict(config, candidate, host);
    let estimate = candidate.capabilities.map(|can| can.estimate.latency_ns);
    Toward {
        rail: candidate.rail.to_string(),
        chosen: verdict.is_ok(),
        estimated_ns: estimate.filter(|_| verdict.is_ok()),
        reason: verdict.unwrap_or_else(|lost| lost.to_string()),
    }
}

/// How frames get there; the reason that says the most when they do not.
fn verdict(config: &Config, candidate: &Candidate, host: IpAddr) -> Result<String, Lost> {
    if let Verdict::Rejected { reason, remedy } = &candidate.verdict {
        return Err(Lost::Rejected {
            reason: reason.clone(),
            remedy: remedy.clone(),
        });
    }
    let named = &config.rails.list.get().0;
    if !named.is_empty() && !named.contains(&candidate.rail) {
        return Err(Lost::NotNamed);
    }
    let way = way(config, candidate, host).map_err(|reason| Lost::Unreachable { reason })?;
    match &candidate.only_named {
        Some(reason) if named.is_empty() => Err(Lost::OnlyWhenNamed {
            reason: format!("{reason}; it would reach the peer {way}"),
        }),
        _ => Ok(way),
    }
}

fn way(config: &Config, candidate: &Candidate, host: IpAddr) -> Result<String, String> {
    match candidate.rail.kind() {
        "shm" if doorbell_udp::is_own(host) => Ok("within this host".to_owned()),
        "shm" => Err("the peer runs on another host".to_owned()),
        _ => {
            // Any port: no frame is sent.
            let address = RailAddress::inet(&candidate.wire, SocketAddr::new(host, 1));
            match rails::way(&candidate.rail, config, &address) {
                Some(way) => way,
                None => Err("it reaches no IP address".to_owned()),
            }
        }
    }
}

/// A rail to a peer as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WayNow {
    /// Our rail.
    pub rail: String,
    /// The peer's rail at the other end.
    pub to: String,
    /// `up`, `suspect`, `down`, `probing` or `returning`.
    pub state: &'static str,
    /// Whether messages go over it; the others stand by.
    pub carries: bool,
    /// What the probe of two sizes has shown, where there was one.
    pub probed: Option<&'static str>,
    /// Half of the measured round trip, in nanoseconds.
    pub measured_ns: Option<u64>,
    /// What else the rail knows, in words.
    pub facts: Option<String>,
}
