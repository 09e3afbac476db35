//! Checks a [`World`](super::world::World): bookkeeping of its own, and every rule after every step.

use std::collections::HashMap;

use super::world::{Message, Wire};
use crate::credit::{Ask, CreditByte, CreditState, Due, Peer};

pub(super) type Verdict = Result<(), String>;

/// What one process has of another, by the judge's own books: the first is the lender.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Granted in this epoch of the lender.
    granted: u16,
    /// Given back since the borrower was last notified of the end of an epoch of the lender.
    given_back: u16,
    /// The last of the lender's epochs of which the borrower was notified.
    told: u32,
}

pub(super) struct Judge {
    totals: Vec<u32>,
    arrivals: Vec<u32>,
    epochs: Vec<u32>,
    pairs: HashMap<(u32, u32), Pair>,
}

impl Judge {
    pub(super) fn new(nodes: &[CreditState]) -> Self {
        Self {
            totals: nodes.iter().map(sum).collect(),
            arrivals: vec![0; nodes.len()],
            epochs: vec![0; nodes.len()],
            pairs: HashMap::new(),
        }
    }

    /// A request includes a need only if it has stalled, and no more than it lacked.
    pub(super) fn sent(&mut self, from: u32, to: u32, ask: &Ask, byte: CreditByte) -> Verdict {
        let honest = byte.extra() == ask.need() && (ask.need() == 0 || ask.has_stalled());
        must(honest && byte.credits() == ask.credits(), || {
            format!("{from} sent {to} {byte:?} for {ask:?}")
        })
    }

    /// A stall is right only where too few credits were there.
    pub(super) fn stalled(&self, before: Option<Peer>, ask: &Ask) -> Verdict {
        let free = before.map_or(0, |peer| peer.send() - peer.in_use());
        must(u16::from(ask.credits()) > free, || {
            format!("{ask:?} stalled with {free} credits free")
        })
    }

    pub(super) fn arrived(&mut self, at: u32, from: u32, due: &Due) -> Verdict {
        let node = at as usize;
        self.arrivals[node] += 1;
        // The epoch ends before the grant is decided.
        if self.arrivals[node] == EPOCH {
            (self.arrivals[node], self.epochs[node]) = (0, self.epochs[node] + 1);
            let lent = self.pairs.iter_mut().filter(|((lender, _), _)| *lender == at);
            lent.for_each(|(_, pair)| pair.granted = 0);
        }
        let pair = self.pairs.entry((at, from)).or_default();
        pair.granted += u16::from(due.granted());
        let granted = pair.granted;
        must(granted <= LIMIT, || {
            format!("{at} granted {from} {granted} credits in one epoch")
        })
    }

    pub(super) fn gave(&mut self, borrower: u32, lender: u32, give: u16, epoch: bool) -> Verdict {
        let pair = self.pairs.entry((lender, borrower)).or_default();
        if epoch {
            pair.given_back = 0;
        }
        pair.given_back += give;
        let given = pair.given_back;
        must(given <= LIMIT, || {
            format!("{borrower} gave {lender} {given} credits back in one epoch")
        })
    }

    /// The first message after an epoch's end reports it; no other does.
    pub(super) fn posted(&mut self, wire: Wire) -> Verdict {
        let says = match wire.message {
            Message::Request(byte) | Message::Reply(byte) => byte.epoch(),
            Message::Revoke { epoch } | Message::Return { epoch, .. } => epoch,
        };
        let pair = self.pairs.entry((wire.from, wire.to)).or_default();
        let due = pair.told != self.epochs[wire.from as usize];
        pair.told = self.epochs[wire.from as usize];
        must(says == due, || {
            format!("{wire:?}: reports that an epoch ended: {says}; it did: {due}")
        })
    }

    /// What the borrower remembers fades when it is notified of an epoch's end, and at no other time.
    pub(super) fn delivered(
        &mut self,
        node: &CreditState,
        from: u32,
        message: &Message,
        before: &[Option<Peer>],
    ) -> Verdict {
        let epoch = match *message {
            Message::Request(byte) | Message::Reply(byte) => byte.epoch(),
            Message::Revoke { epoch } | Message::Return { epoch, .. } => epoch,
        };
        if epoch && !matches!(message, Message::Revoke { .. }) {
            let pair = self.pairs.entry((from, node.me())).or_default();
            pair.given_back = 0;
        }
        for (rank, before) in (0..).zip(before) {
            let (Some(before), Some(after)) = (before, node.peer(rank)) else {
                continue;
            };
            let gave = before.send().saturating_sub(after.send());
            let faded = rank == from && epoch;
            let (revoked, peak) = match faded {
                true => (before.revoked() >> 2, (before.peak() >> 2).max(after.in_use())),
                false => (before.revoked(), before.peak()),
            };
            // A reply lowers what is in use before the peak fades.
            must(after.revoked() == revoked + gave && after.peak() == peak, || {
                format!(
                    "{} of {rank} after {message:?} from {from}: {before:?}, then {after:?}",
                    node.me()
                )
            })?;
        }
        Ok(())
    }

    pub(super) fn revoking(&self, node: &CreditState, to: u32) -> Verdict {
        let asked = node.peer(to).is_some_and(|peer| peer.is_being_revoked());
        must(
            asked && node.revoking() <= u32::from(node.limits().fan_out),
            || format!("{} revokes from {to}: {} under way", node.me(), node.revoking()),
        )
    }

    /// Everything that always holds.
    pub(super) fn look(&self, nodes: &[CreditState], wires: &[Wire], held: &[(u32, u32, Due)]) -> Verdict {
        for (node, total) in nodes.iter().zip(&self.totals) {
            let now = sum(node);
            must(now == *total, || {
                format!("{} accounts for {now} of {total}", node.me())
            })?;
            let asked = (0..node.nodes()).filter_map(|rank| node.peer(rank));
            let asked = asked.filter(Peer::is_being_revoked).count() as u32;
            must(asked == node.revoking(), || format!("{asked} asked"))?;
            // Every credit in use has room in the buffers, until the handler has run.
            let coming = wires.iter().filter(|wire| wire.to == node.me());
            let coming: u32 = coming
                .map(|wire| match wire.message {
                    Message::Request(byte) => u32::from(byte.credits()),
                    _ => 0,
                })
                .sum();
            let here = held.iter().filter(|(at, ..)| *at == node.me());
            let here: u32 = here.map(|(_, _, due)| u32::from(due.credits())).sum();
            must(coming + here <= *total, || {
                format!("{} has room for {total}, and {coming} + {here} come", node.me())
            })?;
        }
        for lender in nodes {
            for borrower in nodes.iter().filter(|node| node.me() != lender.me()) {
                pair(lender, borrower, wires, held)?;
            }
        }
        Ok(())
    }

    /// With nothing under way, both sides have the same figures and nothing is in use.
    pub(super) fn at_rest(&self, nodes: &[CreditState]) -> Verdict {
        self.look(nodes, &[], &[])?;
        for node in nodes {
            let peers = (0..node.nodes()).filter_map(|rank| node.peer(rank));
            for peer in peers {
                let rest = peer.in_use() == 0 && peer.held() == 0 && !peer.is_being_revoked();
                must(rest, || format!("{} at rest: {peer:?}", node.me()))?;
            }
        }
        Ok(())
    }
}

/// Requests that one epoch takes, and credits that move in one at most, in the tests' worlds.
pub(super) const EPOCH: u32 = 8;
pub(super) const LIMIT: u16 = 5;

fn pair(lender: &CreditState, borrower: &CreditState, wires: &[Wire], held: &[(u32, u32, Due)]) -> Verdict {
    let of = |node: &CreditState, rank| node.peer(rank).ok_or_else(|| format!("there is no rank {rank}"));
    let (ours, theirs) = (of(lender, borrower.me())?, of(borrower, lender.me())?);
    let mut way = 0;
    for wire in wires {
        way += match wire.message {
            Message::Reply(byte) if (wire.from, wire.to) == (lender.me(), borrower.me()) => {
                byte.extra().into()
            }
            Message::Return { give, .. } if (wire.from, wire.to) == (borrower.me(), lender.me()) => give,
            _ => 0,
        };
    }
    let here = held
        .iter()
        .filter(|(at, from, _)| (*at, *from) == (lender.me(), borrower.me()));
    let granted: u16 = here.map(|(_, _, due)| u16::from(due.granted())).sum();
    let (least, most) = (lender.least(), lender.limits().most_per_node);
    let name = || {
        format!(
            "{} lends {}: {ours:?}; borrowed: {theirs:?}",
            lender.me(),
            borrower.me()
        )
    };
    must(ours.loan() == theirs.send() + way + granted, || {
        format!("{way} + {granted} under way; {}", name())
    })?;
    must(theirs.in_use() <= theirs.send(), name)?;
    must(theirs.in_use() <= theirs.peak(), name)?;
    must(theirs.send() >= least && ours.loan() >= least, name)?;
    must(ours.loan() <= most, name)?;
    must(ours.is_listed() == (ours.loan() > least), name)
}

/// All credits of one process, wherever they are.
fn sum(node: &CreditState) -> u32 {
    let peers = (0..node.nodes()).filter_map(|rank| node.peer(rank));
    node.bank() + peers.map(|peer| u32::from(peer.loan())).sum::<u32>()
}

fn must(holds: bool, say: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(say()) }
}
