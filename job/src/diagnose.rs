//! Diagnosis of rails: whether a rail carries messages to a host, and why not, according to the system and
//! before anything is sent.
//!
//! For the ranks of a job, the selection of each peer's rails has the reasons, and [`PathStatus`] the state
//! that the path has come to.

use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::discover::{Candidate, Verdict};
use doorbell_fabric::select::{Lost, Unchosen};
use serde::Serialize;

use doorbell_btl::Diagnosis;

use crate::config::Config;
use crate::rails::{self, discover};

/// The advice for a rail that is open at both ends and over which no frame comes back, alike in all reports.
pub const NOTHING_PASSES: &str = Diagnosis::Nothing.advice();

/// The verdict of one rail of this machine towards a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailVerdict {
    /// The rail's name.
    pub rail: String,
    /// Whether it would be used: it reaches the host, and is named or needs no naming.
    pub chosen: bool,
    /// Whether it would be used if it were named.
    pub when_named: bool,
    /// The case, when it is not chosen.
    pub unchosen: Option<Unchosen>,
    /// Which of the host's addresses it reaches, when there are several.
    pub address: Option<IpAddr>,
    /// How frames get to the host, or the one reason that the rail is not chosen.
    pub reason: String,
    /// The estimate of half a round trip of the smallest message in nanoseconds, when it is chosen.
    pub estimated_ns: Option<u64>,
}

/// Returns every candidate's verdict towards a host with these `addresses`, under the rails that the
/// configuration names: by interface, family and routing table. A rail that reaches one address reaches the
/// host. Which rails are open on that host is not considered.
///
/// ```
/// # use doorbell_job as doorbell;
/// let verdicts = doorbell::why(&doorbell::Config::default(), &[[192, 0, 2, 1].into()]);
/// let shm = verdicts.iter().find(|one| one.rail == "shm").unwrap();
/// assert!(!shm.chosen && shm.reason.contains("another host"), "{shm:?}");
/// assert_eq!(shm.unchosen, Some(doorbell::Unchosen::Unusable));
/// ```
pub fn why(config: &Config, addresses: &[IpAddr]) -> Vec<RailVerdict> {
    let found = discover(config);
    let mut all: Vec<RailVerdict> = found
        .candidates()
        .map(|one| judge(config, one, addresses))
        .collect();
    for name in &config.rails.list.get().0 {
        if !found.candidates().any(|one| one.rail == *name) {
            let reason = match found.named(name) {
                Err(error) => error.to_string(),
                Ok(_) => Lost::Missing.to_string(),
            };
            all.push(RailVerdict {
                rail: name.to_string(),
                chosen: false,
                when_named: false,
                unchosen: Some(Unchosen::Unusable),
                address: None,
                reason,
                estimated_ns: None,
            });
        }
    }
    all.sort_by_key(|one| !one.chosen);
    all
}

/// Returns the best verdict towards one of the addresses.
fn judge(config: &Config, candidate: &Candidate, addresses: &[IpAddr]) -> RailVerdict {
    let verdicts: Vec<(IpAddr, Result<String, Lost>)> = addresses
        .iter()
        .map(|address| (*address, verdict(config, candidate, *address)))
        .collect();
    let rank = |verdict: &Result<String, Lost>| match verdict {
        Ok(_) => 0,
        Err(Lost::OnlyWhenNamed { .. }) => 1,
        Err(_) => 2,
    };
    let best = verdicts.iter().map(|(_, verdict)| rank(verdict)).min();
    let mut alike = verdicts.iter().filter(|(_, verdict)| Some(rank(verdict)) == best);
    let reaching = alike.clone().next().filter(|_| best < Some(2));
    let stands = |(_, verdict): &(IpAddr, Result<String, Lost>)| verdict.as_ref().err().map(Lost::unchosen);
    // Without any address there is nothing to reach.
    let unchosen = alike.clone().next().map_or(Some(Unchosen::Unusable), stands);
    let reason = match reaching {
        Some((_, verdict)) => told(verdict),
        None => all_told(&mut alike),
    };
    let estimate = candidate.capabilities.map(|can| can.estimate.latency_ns);
    RailVerdict {
        rail: candidate.rail.to_string(),
        chosen: best == Some(0),
        when_named: best == Some(1),
        unchosen,
        address: reaching
            .map(|(address, _)| *address)
            .filter(|_| addresses.len() > 1),
        estimated_ns: estimate.filter(|_| best == Some(0)),
        reason,
    }
}

fn told(verdict: &Result<String, Lost>) -> String {
    match verdict {
        Ok(way) => way.clone(),
        Err(lost) => lost.to_string(),
    }
}

/// Formats why none of the addresses is reached: the common reason, or each address with its own.
fn all_told(verdicts: &mut dyn Iterator<Item = &(IpAddr, Result<String, Lost>)>) -> String {
    let all: Vec<(IpAddr, String)> = verdicts
        .map(|(address, verdict)| (*address, told(verdict)))
        .collect();
    match &all[..] {
        [] => "the host has no address".to_owned(),
        [(_, first), rest @ ..] if rest.iter().all(|(_, reason)| reason == first) => first.clone(),
        _ => {
            let each = all.iter().map(|(address, reason)| format!("{address}: {reason}"));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// Returns how frames get to the host, or the most specific reason that they do not.
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
        "shm" if doorbell_inet::is_own(host) => Ok("within this host".to_owned()),
        "shm" => Err("the peer runs on another host".to_owned()),
        "verbs" => over_its_interface(config, candidate, host),
        _ => {
            // The port does not matter: no frame is sent.
            let address = RailAddress::inet(&candidate.wire, SocketAddr::new(host, 1));
            match rails::way(&candidate.rail, config, &address) {
                Some(way) => way,
                None => Err("it reaches no IP address".to_owned()),
            }
        }
    }
}

/// The way of a port of an RDMA device: its packets to an IP address take that of its network interface.
fn over_its_interface(config: &Config, candidate: &Candidate, host: IpAddr) -> Result<String, String> {
    let interface = candidate.facts.iter().find(|fact| fact.name == "interface");
    let without = || "a port of InfiniBand is reached by its GID, and not by an IP address".to_owned();
    let interface = interface.ok_or_else(without)?;
    let rail = format!("udp:{}", interface.value)
        .parse()
        .map_err(rails::reason_of)?;
    let address = RailAddress::inet("udp", SocketAddr::new(host, 1));
    rails::way(&rail, config, &address).unwrap_or_else(|| Err(without()))
}

/// The state of one rail to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathStatus {
    /// The name of our rail.
    pub rail: String,
    /// The name of the peer's rail at the other end.
    pub to: String,
    /// `up`, `suspect`, `down`, `probing` or `returning`.
    pub state: &'static str,
    /// Its role while it is up, else its state. Long messages are striped over several rails, or take a rail
    /// within the host alone; small ones take the fastest, and equally fast ones in turn.
    pub role: &'static str,
    /// Whether small messages take it now, or in their next turn.
    pub carries: bool,
    /// Longest message that fits one frame of the rail (or one piece, where it has no frames), in bytes.
    pub longest: usize,
    /// The result of the probe with frames of two sizes, where there was one.
    pub probed: Option<&'static str>,
    /// Whether frames of both sizes came back from the peer.
    pub passes: Option<bool>,
    /// Half of the round trip of its probes in nanoseconds, once it was measured.
    pub measured_ns: Option<u64>,
    /// Half of the round trip of an acknowledgement in nanoseconds, with its delay, for frames of any length.
    pub acknowledged_ns: Option<u64>,
    /// Further facts that the rail reports, in words.
    pub facts: Option<String>,
    /// Over RDMA ports: the pair of GIDs that is used, and why each pair that comes before it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_reaches_what_its_interface_does_and_none_of_infiniband_an_address() {
        let config = Config::default();
        let port = || Candidate::rejected("verbs:rxe0:1:ud".parse().unwrap(), "", "");
        let host = [127, 0, 0, 1].into();
        let over_lo = way(&config, &port().fact("interface", "lo"), host);
        assert_eq!(
            over_lo,
            way(
                &config,
                &Candidate::rejected("udp:lo".parse().unwrap(), "", ""),
                host
            )
        );
        assert!(over_lo.is_ok(), "{over_lo:?}");
        let elsewhere = way(&config, &port().fact("interface", "nosuch0"), host);
        assert!(elsewhere.is_err(), "{elsewhere:?}");
        assert!(way(&config, &port(), host).unwrap_err().contains("by its GID"));
    }
}
