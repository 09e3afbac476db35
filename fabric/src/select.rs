//! Which rails carry the traffic to one peer, and for every other candidate the one reason that it lost.
//!
//! ```text
//!   our candidates ─┬─ unusable here ──────────────► lost: rejected
//!                   ├─ not named, or only if named ► lost
//!   their offers ───┼─ nobody there speaks it ─────► lost: the peer lacks it
//!                   ├─ no answer ──────────────────► lost: unreachable
//!                   └─ reachable ── by latency ──┬─► chosen, best first
//!                                                └─► lost: slower than the ones chosen
//! ```
//!
//! A pure function: whoever calls it brings the probe. Rails that the user named are used or refused, in the order
//! of naming, and never replaced.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::RailAddress;
use crate::discover::{Candidate, Verdict};
use crate::error::RailError;
use crate::name::RailName;

/// A rail that a peer has open, as it published it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its name over there.
    pub rail: RailName,
    /// What it speaks, as [`Candidate::wire`].
    pub wire: String,
    /// Where it is.
    pub address: RailAddress,
}

/// Whether a peer can be reached from one of our rails at one of its.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It can.
    Yes {
        /// Half a round trip of the smallest message, in nanoseconds.
        latency_ns: u64,
        /// Measured by a probe, or only estimated from the capabilities.
        measured: bool,
    },
    /// It cannot.
    No {
        /// Why not.
        reason: String,
    },
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rails to be used, most wanted first; empty: the best ones.
    pub named: Vec<RailName>,
    /// Most rails to choose when none is named: the first carries, the others wait for its failure.
    pub most: usize,
}

impl Default for Policy {
    /// The best two.
    fn default() -> Self {
        Self {
            named: Vec::new(),
            most: 2,
        }
    }
}

/// Most offers of one peer that are looked at: what it publishes is its own claim.
pub const OFFERS_MAX: usize = 64;

/// The rails to one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// The peer, as the caller calls it.
    pub peer: String,
    /// Every candidate: the chosen ones first, best first, then the others as discovery listed them.
    pub rails: Vec<Judged>,
}

/// One candidate and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The rail.
    pub rail: RailName,
    /// Whether the user named it.
    pub named: bool,
    /// What became of it.
    #[serde(flatten)]
    pub choice: Choice,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Choice {
    /// It carries traffic, or stands by.
    Chosen {
        /// The peer's rail at the other end.
        to: Offer,
        /// Half a round trip of the smallest message, in nanoseconds.
        latency_ns: u64,
        /// Whether that was measured.
        measured: bool,
    },
    /// It does not.
    Lost {
        /// The one reason.
        reason: Lost,
    },
}

/// The one reason that a candidate lost: the first in this order that holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Lost {
    /// Discovery did not find it.
    Missing,
    /// It cannot be used on this machine.
    Rejected {
        /// Why not.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The user named other rails.
    NotNamed,
    /// Its kind is used only when named.
    OnlyWhenNamed,
    /// The peer has no rail that speaks the same.
    PeerLacks {
        /// What it would have to speak.
        wire: String,
    },
    /// The peer does not answer over it.
    Unreachable {
        /// Why not.
        reason: String,
    },
    /// It works; the chosen ones are better.
    Slower {
        /// The last one that was chosen.
        than: RailName,
        /// Its latency in nanoseconds.
        theirs_ns: u64,
        /// The latency of the one that lost.
        ours_ns: u64,
    },
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Missing => out.write_str("this machine has no such rail"),
            Lost::Rejected { reason, remedy } => write!(out, "{reason}; {remedy}"),
            Lost::NotNamed => out.write_str("other rails were named"),
            Lost::OnlyWhenNamed => out.write_str("rails of this kind are used only when named"),
            Lost::PeerLacks { wire } => write!(out, "the peer has no rail that speaks `{wire}`"),
            Lost::Unreachable { reason } => write!(out, "the peer cannot be reached over it: {reason}"),
            Lost::Slower {
                than,
                theirs_ns,
                ours_ns,
            } => write!(out, "slower than `{than}` ({ours_ns} ns against {theirs_ns} ns)"),
        }
    }
}

/// Chooses the rails to `peer` from what this side has (`ours`) and the peer published (`theirs`). `reach` probes
/// one pair; it is asked only about pairs that speak the same and are wanted.
///
/// ```
/// use doorbell_fabric::addr::RailAddress;
/// use doorbell_fabric::discover::Candidate;
/// use doorbell_fabric::select::{Offer, Policy, Reach, select};
///
/// let ours = [Candidate::rejected("udp:eth0".parse()?, "the link is down", "plug in the cable")];
/// let theirs = [Offer { rail: "udp:eth0".parse()?, wire: "udp".into(), address: RailAddress::native("udp", []) }];
/// let chosen = select("rank 1", &ours, &theirs, &Policy::default(), |_, _| {
///     Reach::Yes { latency_ns: 9_000, measured: true }
/// });
/// let error = chosen.require().unwrap_err().to_string();
/// assert!(error.contains("rank 1") && error.contains("plug in the cable"), "{error}");
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
pub fn select(
    peer: &str,
    ours: &[Candidate],
    theirs: &[Offer],
    policy: &Policy,
    mut reach: impl FnMut(&Candidate, &Offer) -> Reach,
) -> Selection {
    let theirs = &theirs[..theirs.len().min(OFFERS_MAX)];
    let rank = |rail: &RailName| policy.named.iter().position(|name| name == rail);
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for candidate in ours {
        let place = rank(&candidate.rail);
        match judge(candidate, place.is_some(), theirs, policy, &mut reach) {
            Ok(one) => won.push((place, one, candidate.rail.clone())),
            Err(reason) => lost.push(judged_lost(&candidate.rail, place.is_some(), reason)),
        }
    }
    // By place in the user's list, if there is one; then by latency; then by name, so that runs are repeatable.
    won.sort_by(|a, b| (a.0, a.1.latency_ns, &a.2).cmp(&(b.0, b.1.latency_ns, &b.2)));
    let most = if policy.named.is_empty() {
        policy.most.max(1)
    } else {
        usize::MAX
    };
    let beaten = won.split_off(won.len().min(most));
    let worst = won.last().map(|(_, one, rail)| (rail.clone(), one.latency_ns));
    let slower = beaten.into_iter().filter_map(|(_, one, rail)| {
        let (than, theirs_ns) = worst.clone()?;
        let ours_ns = one.latency_ns;
        Some(judged_lost(
            &rail,
            false,
            Lost::Slower {
                than,
                theirs_ns,
                ours_ns,
            },
        ))
    });
    lost.extend(slower);
    lost.sort_by_key(|one| ours.iter().position(|candidate| candidate.rail == one.rail));
    let missing = policy
        .named
        .iter()
        .filter(|name| !ours.iter().any(|one| one.rail == **name));
    lost.extend(missing.map(|name| judged_lost(name, true, Lost::Missing)));
    let chosen = won.into_iter().map(|(place, one, rail)| Judged {
        rail,
        named: place.is_some(),
        choice: Choice::Chosen {
            to: one.to,
            latency_ns: one.latency_ns,
            measured: one.measured,
        },
    });
    Selection {
        peer: peer.to_owned(),
        rails: chosen.chain(lost).collect(),
    }
}

/// A pair that works.
struct Pair {
    to: Offer,
    latency_ns: u64,
    measured: bool,
}

fn judged_lost(rail: &RailName, named: bool, reason: Lost) -> Judged {
    Judged {
        rail: rail.clone(),
        named,
        choice: Choice::Lost { reason },
    }
}

/// The best of the peer's rails for one of ours, or why there is none.
fn judge(
    candidate: &Candidate,
    named: bool,
    theirs: &[Offer],
    policy: &Policy,
    reach: &mut impl FnMut(&Candidate, &Offer) -> Reach,
) -> Result<Pair, Lost> {
    if let Verdict::Rejected { reason, remedy } = &candidate.verdict {
        return Err(Lost::Rejected {
            reason: reason.clone(),
            remedy: remedy.clone(),
        });
    }
    if !named && !policy.named.is_empty() {
        return Err(Lost::NotNamed);
    }
    if !named && !candidate.automatic {
        return Err(Lost::OnlyWhenNamed);
    }
    let mut best: Option<Pair> = None;
    let mut first_failure = None;
    for offer in theirs.iter().filter(|offer| offer.wire == candidate.wire) {
        match reach(candidate, offer) {
            Reach::Yes { latency_ns, measured } => {
                if best.as_ref().is_none_or(|best| latency_ns < best.latency_ns) {
                    best = Some(Pair {
                        to: offer.clone(),
                        latency_ns,
                        measured,
                    });
                }
            }
            Reach::No { reason } => {
                first_failure.get_or_insert(Lost::Unreachable { reason });
            }
        }
    }
    best.ok_or_else(|| {
        first_failure.unwrap_or_else(|| Lost::PeerLacks {
            wire: candidate.wire.clone(),
        })
    })
}

impl Selection {
    /// The chosen rails, best first.
    pub fn chosen(&self) -> impl Iterator<Item = (&RailName, &Offer)> {
        self.rails.iter().filter_map(|one| match &one.choice {
            Choice::Chosen { to, .. } => Some((&one.rail, to)),
            Choice::Lost { .. } => None,
        })
    }

    /// The chosen rails, best first, if there is one and every named rail is among them.
    ///
    /// # Errors
    /// [`RailError::Unusable`] for the first named rail that lost, [`RailError::NoRail`] without any, with the
    /// reasons.
    pub fn require(&self) -> Result<Vec<(&RailName, &Offer)>, RailError> {
        let lost = || {
            self.rails.iter().filter_map(|one| match &one.choice {
                Choice::Lost { reason } => Some((one, reason)),
                Choice::Chosen { .. } => None,
            })
        };
        if let Some((one, reason)) = lost().find(|(one, _)| one.named) {
            return Err(RailError::Unusable {
                rail: one.rail.to_string(),
                reason: format!("for {}: {reason}", self.peer),
                remedy: "a named rail is not replaced by another".to_owned(),
            });
        }
        let chosen: Vec<_> = self.chosen().collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let reasons: Vec<String> = lost()
            .map(|(one, reason)| format!("`{}`: {reason}", one.rail))
            .collect();
        Err(RailError::NoRail {
            peer: self.peer.clone(),
            reasons: if reasons.is_empty() {
                "this machine has no rail at all".to_owned()
            } else {
                reasons.join("; ")
            },
        })
    }
}

#[cfg(test)]
mod tests;
