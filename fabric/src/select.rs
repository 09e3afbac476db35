//! Selects the rails that carry the traffic to one peer, and gives for every other candidate the one reason
//! why not.
//!
//! ```text
//!   our candidates ─┬─ unusable here ──────────────► lost: rejected
//!                   ├─ not named, or only if named ► lost
//!                   ├─ the peer has none like it ──► lost: the peer lacks it, or it can reach none of them
//!   their offers ───┼─ theirs go to others of ours ► lost: unmatched                    (crate::pairs)
//!                   └─ in a pair ─┬─ opens ────────► chosen
//!                                 └─ does not ─────► broken: an error, as the other end relies on it
//! ```
//!
//! A pure function: its caller queries the system. Rails that the user named are used or refused, and never
//! replaced; one that is left over, because this peer has fewer rails, is used for other peers.
//!
//! All pairs are used: which of them carries a message is decided later, by measurement. So latencies do not
//! matter here, except for the order in which the chosen rails are shown.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::RailAddress;
use crate::discover::{Candidate, Verdict};
use crate::error::RailError;
use crate::name::RailName;
use crate::pairs::{Pair, Place, Quality, RAILS_MAX, Side, pairs, quality};

/// A rail that a peer has open, as it published it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The name of the rail at the other end.
    pub rail: RailName,
    /// What it speaks, as [`Candidate::wire`].
    pub wire: String,
    /// Where it is.
    pub address: RailAddress,
    /// The result of opening a pair.
    #[serde(default)]
    pub place: Place,
}

/// Whether a peer can be reached from one of our rails at one of its.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The peer can be reached over it.
    Yes {
        /// Half a round trip of the smallest message, in nanoseconds.
        latency_ns: u64,
        /// Measured by a probe, or only estimated from the capabilities.
        measured: bool,
    },
    /// The peer cannot be reached over it.
    No {
        /// Why it cannot be reached.
        reason: String,
    },
}

/// The rails to one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// The peer, as the caller calls it.
    pub peer: String,
    /// Every candidate: the chosen ones first (as they were named, else the fastest first), then the others
    /// as discovery listed them.
    pub rails: Vec<Judged>,
}

/// A candidate and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The name of the rail.
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
    /// The rail carries traffic, or is on standby.
    Chosen {
        /// The number of the pair: the same at both ends.
        pair: usize,
        /// How well it was expected to work, from what both ends published.
        quality: Quality,
        /// The peer's rail at the other end.
        to: Offer,
        /// Half a round trip of the smallest message, in nanoseconds.
        latency_ns: u64,
        /// Whether that was measured.
        measured: bool,
    },
    /// The rail was not chosen.
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
    /// The rail cannot be used on this machine.
    Rejected {
        /// Why it cannot be used.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The user named other rails.
    NotNamed,
    /// The rail is used only when named.
    OnlyWhenNamed {
        /// Why it was not chosen.
        reason: String,
    },
    /// The peer has no rail of the same protocol.
    PeerLacks {
        /// The protocol that it would need.
        wire: String,
    },
    /// The peer has rails of the same protocol, and this one reaches none of them.
    Unreachable {
        /// Why it cannot be reached.
        reason: String,
    },
    /// The peer has no rail left for it: those that it reaches are paired with our other rails.
    NoneLeft,
    /// Both ends have paired it, and it cannot be opened here.
    Broken {
        /// The peer's rail at the other end.
        to: RailName,
        /// Why it cannot be opened.
        reason: String,
    },
}

/// The state of a candidate that is not chosen: whether anything is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unchosen {
    /// The rail may be usable, but was not requested: others are named, or it is used only when named.
    NotNamed,
    /// The rail may be as good as any, and has no counterpart left.
    LeftOver,
    /// The rail cannot carry messages to this peer.
    Unusable,
}

impl Unchosen {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::NotNamed, Self::LeftOver, Self::Unusable];

    /// Returns the name that counters use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotNamed => "not_named",
            Self::LeftOver => "left_over",
            Self::Unusable => "unusable",
        }
    }
}

impl Lost {
    /// The state of the candidate.
    #[must_use]
    pub const fn unchosen(&self) -> Unchosen {
        match self {
            Self::NotNamed | Self::OnlyWhenNamed { .. } => Unchosen::NotNamed,
            Self::NoneLeft => Unchosen::LeftOver,
            Self::Missing
            | Self::Rejected { .. }
            | Self::PeerLacks { .. }
            | Self::Unreachable { .. }
            | Self::Broken { .. } => Unchosen::Unusable,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lost::Missing => out.write_str("this machine has no such rail"),
            Lost::Rejected { reason, remedy } => write!(out, "{reason}; {remedy}"),
            Lost::NotNamed => out.write_str("other rails were named"),
            Lost::OnlyWhenNamed { reason } => write!(out, "used only when named: {reason}"),
            Lost::PeerLacks { wire } => write!(out, "the peer has no rail of the wire format `{wire}`"),
            Lost::Unreachable { reason } => write!(out, "the peer cannot be reached over it: {reason}"),
            Lost::NoneLeft => {
                out.write_str("the peer's rails that it reaches are paired with other rails of this side")
            }
            Lost::Broken { to, reason } => write!(
                out,
                "it is paired with the peer's `{to}`, which cannot be reached: {reason}"
            ),
        }
    }
}

/// What both ends have published, from our point of view.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// What we have.
    pub ours: Side<'a>,
    /// What the peer has.
    pub theirs: Side<'a>,
    /// Whether our rank is the lower one.
    pub lower: bool,
}

impl Published<'_> {
    /// The pairs by number: our place in our list, the peer's in its own, and the quality.
    pub fn pairs(&self) -> Vec<(usize, usize, Quality)> {
        let ours_first = |pair: Pair| (pair.lower, pair.higher, pair.quality);
        let theirs_first = |pair: Pair| (pair.higher, pair.lower, pair.quality);
        if self.lower {
            pairs(self.ours, self.theirs)
                .into_iter()
                .map(ours_first)
                .collect()
        } else {
            pairs(self.theirs, self.ours)
                .into_iter()
                .map(theirs_first)
                .collect()
        }
    }
}

/// Chooses the rails to `peer`: those that are in a pair of what both have `published`. `reach` opens one
/// pair; it is called for no other.
///
/// ```
/// use doorbell_fabric::discover::Candidate;
/// use doorbell_fabric::pairs::Side;
/// use doorbell_fabric::select::{Published, Reach, select};
///
/// let ours = [Candidate::rejected("udp:eth0".parse()?, "the link is down", "plug in the cable")];
/// // What is rejected is not published.
/// let none = Side { host: "a", rails: &[] };
/// let published = Published { ours: none, theirs: none, lower: true };
/// let chosen = select("rank 1", &ours, published, &[], |_, _| Reach::Yes {
///     latency_ns: 9_000,
///     measured: true,
/// });
/// let error = chosen.require().unwrap_err().to_string();
/// assert!(error.contains("rank 1") && error.contains("plug in the cable"), "{error}");
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
pub fn select(
    peer: &str,
    ours: &[Candidate],
    published: Published<'_>,
    named: &[RailName],
    mut reach: impl FnMut(&RailName, &Offer) -> Reach,
) -> Selection {
    let pairs = published.pairs();
    let place = |rail: &RailName| named.iter().position(|name| name == rail);
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for candidate in ours {
        let judged = Judged {
            rail: candidate.rail.clone(),
            named: place(&candidate.rail).is_some(),
            choice: judge(candidate, published, &pairs, named, &mut reach),
        };
        match &judged.choice {
            // By place in the user's list, if there is one; then by latency; then by number, so that runs are
            // repeatable.
            Choice::Chosen { latency_ns, pair, .. } => {
                won.push(((place(&judged.rail), *latency_ns, *pair), judged))
            }
            Choice::Lost { .. } => lost.push(judged),
        }
    }
    won.sort_by_key(|(key, _)| *key);
    let missing = named
        .iter()
        .filter(|name| !ours.iter().any(|one| one.rail == **name));
    lost.extend(missing.map(|name| Judged {
        rail: name.clone(),
        named: true,
        choice: Choice::Lost {
            reason: Lost::Missing,
        },
    }));
    Selection {
        peer: peer.to_owned(),
        rails: won.into_iter().map(|(_, judged)| judged).chain(lost).collect(),
    }
}

/// Returns what becomes of one of our rails.
fn judge(
    candidate: &Candidate,
    published: Published<'_>,
    pairs: &[(usize, usize, Quality)],
    named: &[RailName],
    reach: &mut impl FnMut(&RailName, &Offer) -> Reach,
) -> Choice {
    let lost = |reason| Choice::Lost { reason };
    if let Verdict::Rejected { reason, remedy } = &candidate.verdict {
        return lost(Lost::Rejected {
            reason: reason.clone(),
            remedy: remedy.clone(),
        });
    }
    match &candidate.only_named {
        _ if named.contains(&candidate.rail) => {}
        _ if !named.is_empty() => return lost(Lost::NotNamed),
        Some(reason) => {
            return lost(Lost::OnlyWhenNamed {
                reason: reason.clone(),
            });
        }
        None => {}
    }
    let paired = pairs
        .iter()
        .enumerate()
        .find_map(|(number, (our, their, quality))| {
            let ours = published.ours.rails.get(*our)?;
            let to = published.theirs.rails.get(*their)?;
            (ours.rail == candidate.rail).then_some((number, to, *quality))
        });
    let Some((pair, to, quality)) = paired else {
        return lost(why_alone(candidate, published));
    };
    match reach(&candidate.rail, to) {
        Reach::Yes { latency_ns, measured } => Choice::Chosen {
            pair,
            quality,
            to: to.clone(),
            latency_ns,
            measured,
        },
        Reach::No { reason } => lost(Lost::Broken {
            to: to.rail.clone(),
            reason,
        }),
    }
}

/// Returns why one of our rails that could be used is in no pair.
fn why_alone(candidate: &Candidate, published: Published<'_>) -> Lost {
    let Published { ours, theirs, .. } = published;
    let Some(own) = ours
        .rails
        .iter()
        .take(RAILS_MAX)
        .find(|own| own.rail == candidate.rail)
    else {
        return Lost::Unreachable {
            reason: "the rail is not open".to_owned(),
        };
    };
    let alike: Vec<&Offer> = theirs
        .rails
        .iter()
        .take(RAILS_MAX)
        .filter(|offer| offer.wire == own.wire)
        .collect();
    let judged = alike
        .iter()
        .map(|offer| (offer, quality(own, offer, ours.host == theirs.host)));
    let mut never = None;
    for (offer, verdict) in judged {
        match verdict {
            Ok(_) => return Lost::NoneLeft,
            Err(why) => _ = never.get_or_insert((offer, why)),
        }
    }
    match never {
        Some((offer, why)) => Lost::Unreachable {
            reason: format!("it and the peer's `{}` {}", offer.rail, why.as_str()),
        },
        None => Lost::PeerLacks {
            wire: candidate.wire.clone(),
        },
    }
}

impl Selection {
    /// The chosen rails, best first.
    pub fn chosen(&self) -> impl Iterator<Item = (&RailName, &Offer)> {
        self.rails.iter().filter_map(|one| match &one.choice {
            Choice::Chosen { to, .. } => Some((&one.rail, to)),
            Choice::Lost { .. } => None,
        })
    }

    /// The same, where one rail has to lead to this peer and not all that are named: ranks have different
    /// rails of a set, which lead to different peers.
    #[must_use]
    pub fn by_any(mut self) -> Self {
        self.rails.iter_mut().for_each(|judged| judged.named = false);
        self
    }

    /// The chosen rails, best first, if there is one, and every named rail is among them or left over
    /// ([`Lost::NoneLeft`]).
    ///
    /// # Errors
    /// [`RailError::Unusable`] for the first named rail that lost, and for a pair that cannot be opened, as
    /// the other end counts on it; [`RailError::NoRail`] without any, with the reasons.
    pub fn require(&self) -> Result<Vec<(&RailName, &Offer)>, RailError> {
        let lost = || {
            self.rails.iter().filter_map(|one| match &one.choice {
                Choice::Lost { reason } => Some((one, reason)),
                Choice::Chosen { .. } => None,
            })
        };
        let refused = |(one, reason): &(&Judged, &Lost)| match reason {
            Lost::Broken { .. } => true,
            // Without any other, the reasons of all are listed below.
            Lost::NoneLeft => false,
            _ => one.named,
        };
        if let Some((one, reason)) = lost().find(refused) {
            return Err(RailError::Unusable {
                rail: one.rail.to_string(),
                reason: format!("for {}: {reason}", self.peer),
                remedy: if one.named {
                    "a named rail is not replaced by another".to_owned()
                } else {
                    format!(
                        "`doorbell why HOST --rail {}` at both ends shows the way; name rails that reach each other",
                        one.rail
                    )
                },
            });
        }
        let chosen: Vec<_> = self.chosen().collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let mut reasons: Vec<String> = lost()
            .map(|(one, reason)| format!("`{}`: {reason}", one.rail))
            .collect();
        if reasons.is_empty() {
            reasons.push("this machine has no rail at all".to_owned());
        }
        Err(RailError::NoRail {
            peer: self.peer.clone(),
            reasons,
        })
    }
}

#[cfg(test)]
mod tests;
