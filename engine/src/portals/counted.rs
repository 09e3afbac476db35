//! What a Portals node publishes in its rank's counter file.

use doorbell_am_portals as ni;
use doorbell_am_portals::{Drop, LinkStats};
use doorbell_fabric::ni::Register;
use doorbell_job::counter_file::Counted;
use doorbell_job::rails::AnyRail;
use doorbell_pml::{PathState, RailId, Rank};

use super::node::{PortalsNode, Ranks};

/// Takes a value: its name, its unit, the value.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&'static str, &'static str, u64);

impl Counted for PortalsNode {
    fn totals(&self, each: Each<'_>) {
        totals(&self.node, each);
    }

    fn levels(&self, _: Each<'_>) {}

    fn rails(&self) -> impl Iterator<Item = &AnyRail> {
        self.node.rails().map(|(_, rail)| rail)
    }

    fn rail(&self, rail: RailId) -> Option<&AnyRail> {
        self.node.rail(ni::RailId(rail.0))
    }

    fn path(&self, rank: Rank, rail: RailId) -> Option<(PathState, Option<u64>)> {
        path(&self.node, &self.ranks, rank, rail)
    }
}

/// Returns how a rail to a rank is.
pub(crate) fn path(
    node: &ni::Node<AnyRail>,
    ranks: &Ranks,
    rank: Rank,
    rail: RailId,
) -> Option<(PathState, Option<u64>)> {
    node.path(ranks.process(rank.0)?, ni::RailId(rail.0))
}

/// Passes every total of a node. A new one of its links does not compile before it is listed here.
pub(crate) fn totals(node: &ni::Node<AnyRail>, each: Each<'_>) {
    let LinkStats {
        held,
        duplicates,
        too_far_ahead,
        short,
        bad_words,
        late_words,
        from_nobody,
        refused,
        waited,
        resent,
        paths_down,
        paths_returned,
        calls,
        probes,
        lost,
    } = *node.link_stats();
    let drops = node.drops();
    for (name, unit, total) in [
        ("portals.held", "messages", held),
        ("portals.refused", "messages", refused),
        ("portals.waited", "messages", waited),
        ("portals.resent", "messages", resent),
        ("portals.paths_down", "paths", paths_down),
        ("portals.paths_returned", "paths", paths_returned),
        ("portals.calls", "calls", calls),
        ("portals.probes", "probes", probes),
        ("portals.peers_lost", "peers", lost),
        ("portals.no_entry", "requests", node.status(Register::DropCount)),
        (
            "portals.permission_violations",
            "requests",
            node.status(Register::PermissionViolations),
        ),
        (
            "portals.operation_violations",
            "requests",
            node.status(Register::OperationViolations),
        ),
        ("portals.drop.duplicate", "arrivals", duplicates),
        ("portals.drop.too_far_ahead", "arrivals", too_far_ahead),
        ("portals.drop.runt", "arrivals", short),
        ("portals.drop.bad_word", "arrivals", bad_words),
        ("portals.drop.late_word", "arrivals", late_words),
        ("portals.drop.unknown_peer", "arrivals", from_nobody),
        ("portals.drop.unknown_kind", "arrivals", drops.of(Drop::Kind)),
        ("portals.drop.short", "arrivals", drops.of(Drop::Short)),
        ("portals.drop.malformed", "arrivals", drops.of(Drop::Malformed)),
        ("portals.drop.early", "arrivals", drops.of(Drop::Early)),
        ("portals.drop.wrong_identity", "arrivals", drops.of(Drop::Hello)),
        (
            "portals.drop.unknown_operation",
            "arrivals",
            drops.of(Drop::Unknown),
        ),
        ("portals.drop.beyond_window", "arrivals", drops.of(Drop::Window)),
    ] {
        each(name, unit, total);
    }
}
