//! Discovery: which rails this machine has, and for each one that cannot be used, why not and what to do.
//!
//! ```text
//!   drivers of this build ──probe──► candidates ──► usable, or rejected with reason and remedy
//!        │ each by itself: an error or a panic of one is its own report and hides no other
//!   kinds not in this build ───────► "not built", as text
//! ```
//!
//! The result is data: `doorbell info` shows it, programs read it as JSON, and [`select`](crate::select)
//! chooses from it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use crate::caps::Capabilities;
use crate::error::RailError;
use crate::name::{KINDS, NAMED_KINDS, RailName};
use crate::nearest::distance;

/// A kind of driver, as discovery sees it.
pub trait Driver {
    /// The kind, one of [`KINDS`].
    fn kind(&self) -> &'static str;

    /// Lists every rail that this driver could open on this machine, usable or not, without opening one.
    /// Bounded: it queries the system and does not wait.
    ///
    /// # Errors
    /// When the driver as a whole cannot query the system, for example because its library is missing.
    fn probe(&self) -> Result<Vec<Candidate>, RailError>;

    /// Returns a rail that the user named and [`Driver::probe`] did not list, for drivers whose rails cannot
    /// be listed (the simulator has one for every seed). `None`: there is no such rail.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        let _ = name;
        None
    }

    /// Returns the rails of a set ([`RailName::is_set`]) that [`Driver::probe`] does not list.
    fn members(&self, set: &RailName) -> Vec<Candidate> {
        let _ = set;
        Vec::new()
    }

    /// Whether a rail can be opened by the name of a set, and is then any that is free.
    fn takes_any(&self, set: &RailName) -> bool {
        let _ = set;
        false
    }

    /// Returns the process that has a rail for itself, where others cannot open it meanwhile and the process
    /// can be seen.
    fn holder(&self, rail: &RailName) -> Option<String> {
        let _ = rail;
        None
    }

    /// Returns how this machine gets `count` rails of a set, as the beginning of a sentence: "`COMMAND` makes
    /// 4".
    fn more(&self, set: &RailName, count: usize) -> Option<String> {
        let _ = (set, count);
        None
    }
}

/// A rail that could be, and whether it can.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The name of the rail.
    pub rail: RailName,
    /// Its wire protocol: only rails of one protocol reach each other. Mostly the kind; `udp`, `xdp`,
    /// `usnic` and `igbvf` all put the same frames into UDP.
    pub wire: String,
    /// Whether it can be used.
    pub verdict: Verdict,
    /// Why it is used only when it is named; `None`: it may be chosen without.
    pub only_named: Option<String>,
    /// What was found out, in the order in which it is shown.
    pub facts: Vec<Fact>,
    /// What it will be able to do, where that is known before it is opened.
    pub capabilities: Option<Capabilities>,
}

/// Whether a candidate can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Verdict {
    /// The rail can be used.
    Usable,
    /// The rail cannot be used.
    Rejected {
        /// Why it cannot be used.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
}

/// Something that was found out about a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What, like `mtu`, `numa` or `driver`.
    pub name: String,
    /// The value of the fact, with its unit.
    pub value: String,
}

impl Candidate {
    /// A usable rail whose protocol is its kind.
    pub fn usable(rail: RailName, capabilities: Capabilities) -> Self {
        Self {
            wire: rail.wire().to_owned(),
            verdict: Verdict::Usable,
            only_named: None,
            facts: Vec::new(),
            capabilities: Some(capabilities),
            rail,
        }
    }

    /// A rail that is there and cannot be used.
    pub fn rejected(rail: RailName, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            wire: rail.wire().to_owned(),
            verdict: Verdict::Rejected {
                reason: reason.into(),
                remedy: remedy.into(),
            },
            only_named: None,
            facts: Vec::new(),
            capabilities: None,
            rail,
        }
    }

    /// Adds a fact to the candidate.
    #[must_use]
    pub fn fact(mut self, name: &str, value: impl ToString) -> Self {
        self.facts.push(Fact {
            name: name.to_owned(),
            value: value.to_string(),
        });
        self
    }

    /// Used only when it is named, for this reason.
    #[must_use]
    pub fn only_when_named(mut self, reason: impl Into<String>) -> Self {
        self.only_named = Some(reason.into());
        self
    }

    /// Whether it may be chosen without being named.
    pub fn is_automatic(&self) -> bool {
        self.only_named.is_none()
    }

    /// Whether it can be used.
    pub fn is_usable(&self) -> bool {
        self.verdict == Verdict::Usable
    }

    /// Itself when it can be used.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn require(&self) -> Result<&Self, RailError> {
        match &self.verdict {
            Verdict::Usable => Ok(self),
            Verdict::Rejected { reason, remedy } => Err(unusable(&self.rail, reason, remedy)),
        }
    }
}

/// What discovery learned from one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The kind of rail.
    pub kind: &'static str,
    /// How its probe went.
    pub outcome: Outcome,
    /// What it found.
    pub candidates: Vec<Candidate>,
}

/// How a kind's probe went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Outcome {
    /// The driver looked; what it found may still be nothing.
    Probed,
    /// The driver could not look.
    Failed {
        /// Why the kind has no rails here.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// This build has no such driver.
    NotBuilt {
        /// Describes it for users.
        reason: String,
    },
}

/// Everything that was found, kind by kind in the order of [`KINDS`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Discovery {
    /// The reports, one for each kind.
    pub kinds: Vec<Report>,
}

/// Runs the discovery of every driver; looks for the rails in `named` also where a driver does not list them.
///
/// ```
/// use doorbell_fabric::discover::{Candidate, Driver, Outcome, discover};
/// use doorbell_fabric::error::RailError;
///
/// struct Sick;
/// impl Driver for Sick {
///     fn kind(&self) -> &'static str {
///         "verbs"
///     }
///     fn probe(&self) -> Result<Vec<Candidate>, RailError> {
///         panic!("a library went wrong")
///     }
/// }
///
/// let found = discover(&[&Sick], &[]);
/// let verbs = found.kinds.iter().find(|report| report.kind == "verbs").unwrap();
/// assert!(matches!(&verbs.outcome, Outcome::Failed { reason, .. } if reason.contains("went wrong")));
/// ```
pub fn discover(drivers: &[&dyn Driver], named: &[RailName]) -> Discovery {
    let report = |kind| match drivers.iter().find(|driver| driver.kind() == kind) {
        Some(driver) => probe(*driver, named),
        None => Report {
            kind,
            outcome: Outcome::NotBuilt {
                reason: format!("this build contains no driver for {}", what_is(kind)),
            },
            candidates: Vec::new(),
        },
    };
    Discovery {
        kinds: KINDS.into_iter().map(report).collect(),
    }
}

/// Probes one driver, with everything that can go wrong in it kept inside.
fn probe(driver: &dyn Driver, named: &[RailName]) -> Report {
    let kind = driver.kind();
    let look = || {
        let mut candidates = driver.probe()?;
        for name in named.iter().filter(|name| name.kind() == kind) {
            if name.is_set() {
                candidates.extend(driver.members(name));
            }
            if name.is_set() && !driver.takes_any(name) {
                continue;
            }
            if !candidates.iter().any(|one| one.rail == *name) {
                candidates.extend(driver.named(name));
            }
        }
        Ok(candidates)
    };
    let (outcome, mut candidates) = match catch_unwind(AssertUnwindSafe(look)) {
        Ok(Ok(candidates)) => (Outcome::Probed, candidates),
        Ok(Err(error)) => (sick(error_text(&error), error.help().next), Vec::new()),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().copied();
            let said = said.or(panic.downcast_ref::<String>().map(String::as_str));
            let reason = format!("its driver failed: {}", said.unwrap_or("it gave no reason"));
            (
                sick(reason, "This is a bug of doorbell: please report it."),
                Vec::new(),
            )
        }
    };
    // A driver that lists others' rails, or one twice, would make names mean two things.
    candidates.retain(|one: &Candidate| one.rail.kind() == kind);
    let mut seen = std::collections::HashSet::new();
    candidates.retain(|one| seen.insert(one.rail.clone()));
    Report {
        kind,
        outcome,
        candidates,
    }
}

fn sick(reason: String, remedy: &str) -> Outcome {
    Outcome::Failed {
        reason,
        remedy: remedy.to_owned(),
    }
}

fn error_text(error: &RailError) -> String {
    error.to_string()
}

fn unusable(rail: &RailName, reason: &str, remedy: &str) -> RailError {
    RailError::Unusable {
        rail: rail.to_string(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// A set, where one rail is needed.
fn one_needed(set: &RailName, others: &[Candidate]) -> RailError {
    let members = others.iter().filter(|one| set.contains(&one.rail));
    let members: Vec<&str> = members.map(|one| one.rail.as_str()).collect();
    unusable(
        set,
        "it stands for several rails, and one is needed here",
        &format!("name one of them: {}", members.join(", ")),
    )
}

/// Describes a kind of rail.
fn what_is(kind: &str) -> &'static str {
    match kind {
        "shm" => "shared memory between processes of one machine",
        "udp" => "UDP sockets",
        "xdp" => "AF_XDP sockets",
        "usnic" => "usNIC functions of Cisco adapters",
        "igbvf" => "virtual functions of Intel 82576 and I350 adapters",
        "verbs" => "InfiniBand and RoCE devices",
        "ofi" => "libfabric providers",
        "portals" => "Portals 4 network interfaces",
        "sim" => "simulated networks",
        _ => "this kind",
    }
}

/// Names that are listed where a rail is not there.
const NAMES_MOST: usize = 4;

impl Discovery {
    /// Every candidate of every kind.
    pub fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.kinds.iter().flat_map(|report| &report.candidates)
    }

    /// The candidates that can be used.
    pub fn usable(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates().filter(|one| one.is_usable())
    }

    /// Whether its kind was looked for, and there is no rail of this name; one that is there and cannot be
    /// used is not missing.
    pub fn is_missing(&self, name: &RailName) -> bool {
        self.kinds
            .iter()
            .filter(|report| report.kind == name.kind() && report.outcome == Outcome::Probed)
            .any(|report| !report.candidates.iter().any(|one| one.rail == *name))
    }

    /// The rail that the user named.
    ///
    /// # Errors
    /// The reason why it cannot be used: it is rejected, it is not there, or its kind is.
    pub fn named(&self, name: &RailName) -> Result<&Candidate, RailError> {
        if let Some(candidate) = self.candidates().find(|one| one.rail == *name) {
            return candidate.require();
        }
        let report = self.kinds.iter().find(|report| report.kind == name.kind());
        let (reason, remedy) = match report.map(|report| (&report.outcome, &report.candidates)) {
            Some((Outcome::Failed { reason, remedy }, _)) => (reason.clone(), remedy.clone()),
            Some((Outcome::NotBuilt { reason }, _)) => (
                reason.clone(),
                format!("name a rail of another kind: {}", NAMED_KINDS.join(", ")),
            ),
            Some((Outcome::Probed, others)) if others.iter().any(|one| name.contains(&one.rail)) => {
                return Err(one_needed(name, others));
            }
            Some((Outcome::Probed, others)) if !others.is_empty() => {
                let mut names: Vec<&str> = others.iter().map(|one| one.rail.as_str()).collect();
                names.sort_by_key(|other| distance(name.as_str(), other));
                let remedy = match names.get(..NAMES_MOST) {
                    Some(few) if few.len() < names.len() => {
                        format!("the nearest are {}; `doorbell info` lists all", few.join(", "))
                    }
                    _ => format!("these are: {}", names.join(", ")),
                };
                let reason = match name.is_set() {
                    true => "this machine has no rail that it stands for",
                    false => "this machine has no such rail",
                };
                (reason.to_owned(), remedy)
            }
            _ => (
                format!("this machine has no rail of kind `{}`", name.kind()),
                "`doorbell info` lists what it has".to_owned(),
            ),
        };
        Err(unusable(name, &reason, &remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> RailName {
        text.parse().unwrap()
    }

    struct Fake(&'static str, fn() -> Result<Vec<Candidate>, RailError>);

    impl Driver for Fake {
        fn kind(&self) -> &'static str {
            self.0
        }
        fn probe(&self) -> Result<Vec<Candidate>, RailError> {
            (self.1)()
        }
        fn named(&self, name: &RailName) -> Option<Candidate> {
            (name.object() == "42").then(|| {
                Candidate::usable(name.clone(), Capabilities::of_a_test()).only_when_named("it is simulated")
            })
        }
    }

    fn found() -> Discovery {
        let shm = Fake("shm", || {
            Ok(vec![
                Candidate::usable(name("shm"), Capabilities::of_a_test()).fact("pages", 4096),
            ])
        });
        let udp = Fake("udp", || {
            Ok(vec![
                Candidate::rejected(name("udp:eth0"), "the link is down", "plug in the cable"),
                Candidate::usable(name("udp:lo"), Capabilities::of_a_test()),
                Candidate::usable(name("udp:lo"), Capabilities::of_a_test()),
                Candidate::usable(name("shm"), Capabilities::of_a_test()),
            ])
        });
        let sick = Fake("verbs", || panic!("segment {}", 7));
        let failing = Fake("ofi", || Err(RailError::hostile("is missing")));
        let sim = Fake("sim", || Ok(Vec::new()));
        discover(
            &[&sick, &shm, &failing, &udp, &sim],
            &[name("sim:42"), name("sim:43"), name("udp:lo")],
        )
    }

    fn outcome<'a>(found: &'a Discovery, kind: &str) -> &'a Outcome {
        &found
            .kinds
            .iter()
            .find(|report| report.kind == kind)
            .unwrap()
            .outcome
    }

    #[test]
    fn every_kind_has_a_report_and_no_sick_driver_hides_another() {
        let found = found();
        assert_eq!(
            found.kinds.iter().map(|report| report.kind).collect::<Vec<_>>(),
            KINDS
        );
        let failed = |kind, what| matches!(outcome(&found, kind), Outcome::Failed { reason, .. } if reason.contains(what));
        assert!(
            failed("verbs", "segment 7") && failed("ofi", "is missing"),
            "{found:?}"
        );
        let not_built = |kind| matches!(outcome(&found, kind), Outcome::NotBuilt { reason } if reason.contains("contains no"));
        assert!(not_built("xdp") && not_built("portals") && !not_built("shm"));
        let names: Vec<_> = found.candidates().map(|one| one.rail.as_str()).collect();
        assert_eq!(names, ["shm", "udp:eth0", "udp:lo", "sim:42"]);
        assert_eq!(found.usable().count(), 3);
    }

    #[test]
    fn a_named_rail_is_found_or_refused_with_the_reason() {
        let found = found();
        let refused = |text: &str| found.named(&name(text)).unwrap_err().to_string();
        assert_eq!(found.named(&name("udp:lo")).unwrap().rail, name("udp:lo"));
        assert!(!found.named(&name("sim:42")).unwrap().is_automatic());
        assert!(refused("udp:eth0").contains("link is down") && refused("udp:eth0").contains("cable"));
        assert!(refused("udp:eth7").contains("udp:lo"), "{}", refused("udp:eth7"));
        assert!(refused("xdp:eth0").contains("contains no driver for AF_XDP"));
        let others = "name a rail of another kind: shm, udp, xdp, usnic, igbvf, verbs";
        assert!(refused("xdp:eth0").contains(others), "{}", refused("xdp:eth0"));
        assert!(refused("verbs:mlx5_0:1").contains("segment 7"));
        assert!(refused("sim:43").contains("this machine has no such rail"));
        for (text, missing) in [
            ("udp:eth7", true),
            ("udp:eth0", false),
            ("udp:lo", false),
            ("xdp:eth0", false),
            ("verbs:mlx5_0:1", false),
        ] {
            assert_eq!(found.is_missing(&name(text)), missing, "{text}");
        }
    }

    #[test]
    fn of_many_rails_the_nearest_names_are_listed() {
        let many = Fake("udp", || {
            let names = ["lo", "docker0", "eth10", "br-3f0c9", "eth0", "eth1", "wlan0"];
            Ok(names
                .map(|one| Candidate::usable(name(&format!("udp:{one}")), Capabilities::of_a_test()))
                .into())
        });
        let said = discover(&[&many], &[])
            .named(&name("udp:eth11"))
            .unwrap_err()
            .to_string();
        let list = "the nearest are udp:eth10, udp:eth1, udp:eth0, udp:";
        assert!(
            said.contains(list) && said.contains("`doorbell info` lists all"),
            "{said}"
        );
    }

    #[test]
    fn a_machine_without_rails_is_reported() {
        let found = discover(&[&Fake("udp", || Ok(Vec::new()))], &[]);
        let error = found.named(&name("udp:eth0")).unwrap_err();
        assert!(error.to_string().contains("no rail of kind `udp`"), "{error}");
    }

    #[test]
    fn the_report_is_data() {
        let json = serde_json::to_value(found()).unwrap();
        assert_eq!(json["kinds"][0]["candidates"][0]["rail"], "shm");
        assert_eq!(json["kinds"][0]["candidates"][0]["facts"][0]["value"], "4096");
        assert_eq!(json["kinds"][1]["candidates"][0]["verdict"]["is"], "rejected");
        assert_eq!(json["kinds"][2]["outcome"]["is"], "not-built");
    }

    #[test]
    fn every_kind_is_described_in_plain_words() {
        assert!(KINDS.iter().all(|kind| what_is(kind) != what_is("other")));
    }
}
