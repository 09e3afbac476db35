//! A host: each rail of this machine by interface, address family and routing table, and by a probe on
//! request.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell::oob::{Connection, Endpoint, JobKey, OobError};
use doorbell::{NOTHING_PASSES, PathStatus, RailVerdict, World};
use doorbell_bench::job::{Cores, measure};
use doorbell_bench::plan::{Kind, Plan};
use doorbell_bench::size::Size;

use super::{From, LatencyOf, Row, Verdict, Why};
use crate::error::ToolError;
use crate::measure::with_rails;
use crate::why::args::WhyArgs;

/// Time for the other side to answer, and for names to be looked up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the rails to be judged once the two are connected, and again for the messages of the measured
/// latency.
const JUDGED_WITHIN: Duration = Duration::from_secs(3);
/// A look at what the rails found out meanwhile.
const LOOK: Duration = Duration::from_millis(10);
/// No message has this tag: who waits for one only keeps the rails going.
const NO_TAG: u64 = u64::MAX;
/// Messages that are exchanged for a measured latency.
const PROBES: u64 = 100;

/// The verdicts towards the host that `args` name.
pub(super) fn why(args: &WhyArgs) -> Result<Why, ToolError> {
    let (host, addresses) = resolve(&args.peer)?;
    let config = with_rails(doorbell::Builder::new(), &args.rails).resolve()?;
    let toward = doorbell::why(&config, &addresses);
    let (remedy, mut unanswered) = (remedy(&toward), None);
    let mut rails: Vec<Row> = toward.into_iter().map(Row::from).collect();
    if args.probe {
        let probed = probe(args, &host)?;
        rails.iter_mut().for_each(|row| row.judge(&probed));
        unanswered = probed.unanswered;
    }
    let from = From {
        shares_core: None,
        rank: None,
        pid: None,
        rails,
    };
    let shown = addresses.iter().map(IpAddr::to_string).collect();
    Ok(Why {
        unanswered,
        ..Why::new(args, shown, vec![from], remedy)
    })
}

/// Resolves a host: the address to connect to, and all its addresses, each once.
fn resolve(peer: &str) -> Result<(Endpoint, Vec<IpAddr>), ToolError> {
    let bare = peer.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let unknown = |error: OobError| {
        let why = match error {
            OobError::Address { reason, .. } => reason,
            other => other.to_string(),
        };
        ToolError::Usage(format!(
            "`{peer}` is neither the number of a rank nor a host: {why}"
        ))
    };
    // An IPv6 address may come without its brackets.
    let text = match bare.unwrap_or(peer).parse::<IpAddr>() {
        Ok(IpAddr::V6(six)) => format!("[{six}]"),
        _ => peer.to_owned(),
    };
    let host: Endpoint = text.parse().map_err(unknown)?;
    let found = host.resolve(PATIENCE).map_err(unknown)?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.iter().map(SocketAddr::ip) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok((host, addresses))
}

/// Returns what to type when no rail is chosen and some would be, if named.
fn remedy(toward: &[RailVerdict]) -> Option<String> {
    if toward.iter().any(|one| one.chosen) {
        return None;
    }
    let waiting = toward.iter().filter(|one| one.when_named);
    let names: Vec<String> = waiting.map(|one| format!("`--rail {}`", one.rail)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "no rail is chosen by itself; to use one, name it at both ends: {}",
            names.join(" or ")
        )
    })
}

/// The result of a probe.
struct Probed {
    ways: Vec<PathStatus>,
    /// Why the messages did not come back, if they did not.
    unanswered: Option<String>,
}

/// Connects to the side that serves there and lets some messages pass; returns what the rails found out.
/// Where no message passes, the rails' findings are the result, and soon: nothing here waits for long.
fn probe(args: &WhyArgs, host: &Endpoint) -> Result<Probed, ToolError> {
    let key = args.key_file.as_deref().map(JobKey::read).transpose()?;
    let connection = Connection::connect(host, &doorbell::terms(key)?, PATIENCE)?;
    let world = with_rails(doorbell::Builder::new(), &args.rails)
        .configure(|config| {
            let deadline = JUDGED_WITHIN.min(*config.wait.deadline.get());
            config.wait.deadline.set(deadline);
            config.wait.close.set(deadline.min(*config.wait.close.get()));
        })
        .on_quiet(|_| {})
        .build_over(connection)?;
    settle(&world);
    let plan = Plan {
        sizes: Size::new(8).into_iter().collect(),
        samples: Some(PROBES),
        reference: false,
        ..Plan::new(Kind::Pingpong)
    };
    let (report, unanswered) = match measure(&world, &plan, Cores::default(), &mut ()) {
        Ok(report) => (report, None),
        Err(error) => (None, Some(first_line(&error.to_string()))),
    };
    let mut paths = world.paths(1)?;
    world.close();
    // For the rail that carried them, the messages themselves are the best measure.
    let half = report.and_then(|report| report.results.first()?.half_rtt_ns.p50);
    for way in paths.iter_mut().filter(|way| way.carries) {
        way.measured_ns = half.map(|ns| ns as u64).or(way.measured_ns);
    }
    Ok(Probed {
        ways: paths,
        unanswered,
    })
}

/// Keeps the rails going until the probe of two sizes has come to a result on each, or the time is over. Of
/// several rails only: one alone is probed by the first message, which comes next.
fn settle(world: &World) {
    let begun = Instant::now();
    loop {
        let paths = world.paths(1).unwrap_or_default();
        let open = |way: &PathStatus| way.passes.is_none() && way.state != "down" && way.rail != "shm";
        if paths.len() < 2 || begun.elapsed() >= JUDGED_WITHIN || !paths.iter().any(open) {
            return;
        }
        // It has nothing to find, and that is no news.
        let _ = world.within(LOOK).probe(1, NO_TAG);
    }
}

/// An error's sentence, without what the rails recorded.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

impl std::convert::From<RailVerdict> for Row {
    fn from(one: RailVerdict) -> Self {
        let reason = match one.address {
            Some(address) => format!("{address}: {}", one.reason),
            None => one.reason,
        };
        Self {
            rail: one.rail,
            verdict: one.unchosen.map_or(Verdict::Chosen, Verdict::from),
            pair: None,
            latency_ns: one.estimated_ns,
            latency_of: one.estimated_ns.map(|_| LatencyOf::Estimate),
            reason,
            gids: Vec::new(),
        }
    }
}

impl Row {
    /// The verdict of a meeting over that of the routing table, which knows one address of the host and not
    /// its rails.
    fn judge(&mut self, probed: &Probed) {
        let Some(way) = probed.ways.iter().find(|way| way.rail == self.rail) else {
            if self.verdict == Verdict::Chosen {
                self.verdict = Verdict::Unusable;
                self.reason = "the side that serves there has no rail for it".to_owned();
            }
            return;
        };
        if self.verdict != Verdict::Chosen {
            self.verdict = Verdict::Chosen;
            self.reason = format!("paired with the peer's `{}`", way.to);
        }
        let silent = way.passes.is_none() && way.measured_ns.is_none() && way.acknowledged_ns.is_none();
        let carried_nothing = probed.unanswered.is_some() && way.carries;
        // If frames of both sizes and the messages came back, a path is suspect only because a process was
        // not scheduled in time.
        let answers = probed.unanswered.is_none() && way.passes == Some(true);
        let is_slow = way.state == "suspect" && answers;
        let in_trouble = way.passes == Some(false) || way.role == way.state && !is_slow;
        if silent && way.rail != "shm" || carried_nothing || in_trouble {
            self.verdict = Verdict::Down;
        }
        self.add(way);
        if self.verdict == Verdict::Down && way.passes != Some(false) {
            let facts = way
                .facts
                .as_ref()
                .map_or_else(String::new, |facts| format!("; {facts}"));
            self.reason = format!("{}{facts}; {NOTHING_PASSES}", self.reason);
        }
    }

    /// Adds what the rail found out.
    fn add(&mut self, way: &PathStatus) {
        self.pair = Some(way.to.clone());
        self.gids.clone_from(&way.gids);
        let known = way.measured_ns.map(|ns| (ns, LatencyOf::Messages));
        let known = known.or(way.acknowledged_ns.map(|ns| (ns, LatencyOf::Acknowledgements)));
        if let Some((ns, of)) = known {
            (self.latency_ns, self.latency_of) = (Some(ns), Some(of));
        }
        let state = if way.role == way.state { "" } else { "up, for " };
        let probed = way.probed.map_or_else(String::new, |text| format!("; {text}"));
        self.reason = format!("{}; {state}{}{probed}", self.reason, way.role);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::Unchosen;

    #[test]
    fn peers_are_addresses_and_names_and_everything_else_is_refused() {
        let found = |peer: &str| resolve(peer).unwrap().1;
        assert_eq!(found("10.0.0.2"), [IpAddr::from([10, 0, 0, 2])]);
        assert_eq!(found("10.0.0.2:7118"), [IpAddr::from([10, 0, 0, 2])]);
        for loopback in ["[::1]", "::1"] {
            let all = found(loopback);
            assert!(
                all.len() == 1 && all[0].is_loopback() && all[0].is_ipv6(),
                "{loopback}"
            );
        }
        assert!(found("localhost").iter().all(IpAddr::is_loopback));
        for odd in ["no such host", "", "-1", "[10.0.0.2", "nosuchhost.invalid"] {
            let said = resolve(odd).unwrap_err().to_string();
            assert!(
                said.contains("neither the number of a rank nor a host"),
                "{odd}: {said}"
            );
        }
    }

    /// A way that frames passed over, and how it is.
    fn way(state: &'static str) -> PathStatus {
        PathStatus {
            rail: "udp:v0".to_owned(),
            to: "udp:v0".to_owned(),
            state,
            role: if state == "up" { "everything" } else { state },
            carries: true,
            longest: 1400,
            measured_ns: None,
            acknowledged_ns: Some(700_000),
            passes: Some(true),
            probed: Some("small and full frames pass both ways"),
            facts: Some("link up".to_owned()),
            gids: Vec::new(),
        }
    }

    #[test]
    fn a_way_that_answers_is_no_lost_one_because_it_was_slow() {
        let judged = |state, unanswered: Option<&str>| {
            let mut row = Row::from(toward("udp:v0", true, true));
            let unanswered = unanswered.map(str::to_owned);
            row.judge(&Probed {
                ways: vec![way(state)],
                unanswered,
            });
            (
                row.verdict == Verdict::Chosen,
                row.reason.contains(NOTHING_PASSES),
            )
        };
        assert_eq!(judged("up", None), (true, false));
        assert_eq!(judged("suspect", None), (true, false));
        assert_eq!(judged("down", None), (false, true));
        assert_eq!(judged("suspect", Some("no message came back")), (false, true));
    }

    fn toward(rail: &str, chosen: bool, when_named: bool) -> RailVerdict {
        RailVerdict {
            rail: rail.to_owned(),
            chosen,
            when_named,
            unchosen: (!chosen).then_some(Unchosen::NotNamed),
            address: None,
            reason: "x".to_owned(),
            estimated_ns: None,
        }
    }

    #[test]
    fn rails_that_wait_for_their_name_are_named() {
        let veth = toward("udp:v0", false, true);
        let said = remedy(&[toward("shm", false, false), veth.clone()]).unwrap();
        assert!(said.ends_with("name it at both ends: `--rail udp:v0`"), "{said}");
        assert_eq!(remedy(&[toward("shm", false, false)]), None);
        assert_eq!(remedy(&[toward("udp:eth0", true, false), veth]), None);
    }
}
