//! What a PML publishes: its counters, one row for each.

use doorbell_pml::{Counters, Drops, PathState, Pml, RailId, Rank};

use super::Counted;
use crate::rails::AnyRail;

/// A value of the PML: its name, its unit, its value.
type Named = (&'static str, &'static str, u64);

impl Counted for Pml<AnyRail> {
    fn totals(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        for (name, unit, total) in named(self.counters()) {
            each(name, unit, total);
        }
    }

    fn levels(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        each("pml.live_requests", "requests", self.live_requests() as u64);
    }

    fn rails(&self) -> impl Iterator<Item = &AnyRail> {
        Self::rails(self).map(|(_, rail)| rail)
    }

    fn rail(&self, rail: RailId) -> Option<&AnyRail> {
        Self::rail(self, rail)
    }

    fn path(&self, rank: Rank, rail: RailId) -> Option<(PathState, Option<u64>)> {
        Self::path(self, rank, rail)
    }
}

/// Returns every value of the PML with its name. A new counter of the PML does not compile before it is
/// listed here.
fn named(counters: &Counters) -> [Named; 45] {
    let Counters {
        sent_eager,
        sent_rndv,
        sent_rget,
        taken_in_place,
        sent_self,
        sent_operations,
        operations_refused,
        sends_queued,
        arrived,
        matched,
        unexpected,
        held,
        frags_sent,
        frags_received,
        gets,
        puts,
        fallbacks,
        window_full,
        credits_sent,
        credits_received,
        packed_bytes,
        resent,
        restarts,
        resumed_bytes,
        checked,
        corrupt,
        paths_down,
        paths_returned,
        calls,
        probes,
        peers_lost,
        drops,
    } = *counters;
    let Drops {
        runt,
        unknown_kind,
        unknown_peer,
        duplicate,
        too_far_ahead,
        stale_request,
        wrong_peer,
        wrong_state,
        wrong_identity,
        bad_range,
        repeated_bytes,
        late_word,
        lost_peer,
        unknown_operation,
    } = drops;
    [
        ("pml.sent_eager", "messages", sent_eager),
        ("pml.sent_rndv", "messages", sent_rndv),
        ("pml.sent_rget", "messages", sent_rget),
        ("pml.taken_in_place", "messages", taken_in_place),
        ("pml.sent_self", "messages", sent_self),
        ("pml.sent_operations", "operations", sent_operations),
        ("pml.operations_refused", "operations", operations_refused),
        ("pml.sends_queued", "messages", sends_queued),
        ("pml.arrived", "messages", arrived),
        ("pml.matched", "messages", matched),
        ("pml.unexpected", "messages", unexpected),
        ("pml.held", "messages", held),
        ("pml.frags_sent", "fragments", frags_sent),
        ("pml.frags_received", "fragments", frags_received),
        ("pml.gets", "operations", gets),
        ("pml.puts", "operations", puts),
        ("pml.fallbacks", "transfers", fallbacks),
        ("pml.window_full", "messages", window_full),
        ("pml.credits_sent", "reports", credits_sent),
        ("pml.credits_received", "reports", credits_received),
        ("pml.packed_bytes", "bytes", packed_bytes),
        ("pml.resent", "messages", resent),
        ("pml.restarts", "messages", restarts),
        ("pml.resumed_bytes", "bytes", resumed_bytes),
        ("pml.checked", "messages", checked),
        ("pml.corrupt", "messages", corrupt),
        ("pml.paths_down", "paths", paths_down),
        ("pml.paths_returned", "paths", paths_returned),
        ("pml.calls", "calls", calls),
        ("pml.probes", "probes", probes),
        ("pml.peers_lost", "peers", peers_lost),
        ("pml.drop.runt", "arrivals", runt),
        ("pml.drop.unknown_kind", "arrivals", unknown_kind),
        ("pml.drop.unknown_peer", "arrivals", unknown_peer),
        ("pml.drop.duplicate", "arrivals", duplicate),
        ("pml.drop.too_far_ahead", "arrivals", too_far_ahead),
        ("pml.drop.stale_request", "arrivals", stale_request),
        ("pml.drop.wrong_peer", "arrivals", wrong_peer),
        ("pml.drop.wrong_state", "arrivals", wrong_state),
        ("pml.drop.wrong_identity", "arrivals", wrong_identity),
        ("pml.drop.bad_range", "arrivals", bad_range),
        ("pml.drop.repeated_bytes", "bytes", repeated_bytes),
        ("pml.drop.late_word", "arrivals", late_word),
        ("pml.drop.lost_peer", "arrivals", lost_peer),
        ("pml.drop.unknown_operation", "arrivals", unknown_operation),
    ]
}
