//! Why a rail carries messages to a peer or does not: towards a host, from what the system says before anything is sent.
//!
//! For the ranks of a job, the selection of each peer's rails has the reasons, and [`WayNow`] what was
//! found out since.

use std::net::{IpAddr, SocketAddr};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::discover::{Candidate, Verdict};
use doorbell_fabric::select::{Lost, Unchosen};
use serde::Serialize;

use doorbell_btl::Diagnosis;

use crate::config::Config;
use crate::rails::{self, discover};

/// What is said of a rail that is there at both ends and over which nothing comes back: the same words
/// everywhere.
pub const NOTHING_PASSES: &str = Diagnosis::Nothing.advice();

/// A rail of this machine, and whether it would carry messages to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Toward {
    /// The rail.
    pub rail: String,
    /// Whether it would be used: it reaches the host, and is named or needs no naming.
    pub chosen: bool,
    /// Whether it would be, if only it were named.
    pub when_named: bool,
    /// How it stands when it is not chosen.
    pub unchosen: Option<Unchosen>,
    /// Which of the host's addresses it reaches, when there are several.
    pub address: Option<IpAddr>,
    /// How frames get there, or the one reason that it is not chosen.
    pub reason: String,
    /// Half a round trip of the smallest message in nanoseconds, as estimated, when it is chosen.
    pub estimated_ns: Option<u64>,
}

/// Every candidate's verdict towards a host with these `addresses`, under the rails that the configuration names: by
/// interface, family and routing table. A rail that reaches one address reaches the host. What the host has open is not
/// known here.
///
/// ```
/// # use doorbell_job as doorbell;
/// let verdicts = doorbell::why(&doorbell::Config::default(), &[[192, 0, 2, 1].into()]);
/// let shm = verdicts.iter().find(|one| one.rail == "shm").unwrap();
/// assert!(!shm.chosen && shm.reason.contains("another host"), "{shm:?}");
/// assert_eq!(shm.unchosen, Some(doorbell::Unchosen::Unusable));
/// ```
pub fn why(config: &Config, addresses: &[IpAddr]) -> Vec<Toward> {
    let found = discover(config);
    let mut all: Vec<Toward> = found
        .candidates()
        .map(|one| judge(config, one, addresses))
        .collect();
    for name in &config.rails.list.get().0 {
        if !found.candidates().any(|one| one.rail == *name) {
            let reason = match found.named(name) {
                Err(error) => error.to_string(),
                Ok(_) => Lost::Missing.to_string(),
            };
            all.push(Toward {
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

/// The best verdict towards one of the addresses.
fn judge(config: &Config, candidate: &Candidate, addresses: &[IpAddr]) -> Toward {
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
    Toward {
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

/// Why none of the addresses is reached: the reason, or each address with its own.
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
        "shm" if doorbell_inet::is_own(host) => Ok("within this host".to_owned()),
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
    /// What it is for while it is up; else its state. Long messages are striped over several rails, but go alone over one
    /// within the host; small ones take the fastest, and equal ones in turn.
    pub role: &'static str,
    /// Whether it is the one of small messages, or next in turn.
    pub carries: bool,
    /// Longest message that goes in one frame of the rail (or in one piece, where it has no frames), in bytes.
    pub longest: usize,
    /// What the probe of two sizes has shown, where there was one.
    pub probed: Option<&'static str>,
    /// Whether frames of both sizes came back of it.
    pub passes: Option<bool>,
    /// Half of the round trip of its probes, in nanoseconds, once it was measured.
    pub measured_ns: Option<u64>,
    /// Half of the round trip of an acknowledgement, in nanoseconds: with what that waited for, and of frames of any length.
    pub acknowledged_ns: Option<u64>,
    /// What else the rail knows, in words.
    pub facts: Option<String>,
}
