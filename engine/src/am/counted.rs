//! What a conduit and the node below it publish in their rank's counter file.

use doorbell_am::{Resources, Stats};
use doorbell_am_portals as ni;
use doorbell_job::counter_file::Counted;
use doorbell_job::rails::AnyRail;
use doorbell_pml::{PathState, RailId, Rank};

use super::field::Field;
use crate::portals::{Each, path, totals};

impl Counted for Field {
    fn totals(&self, each: Each<'_>) {
        conduit_totals(&self.conduit.stats(), each);
        credit_totals(self.conduit.credits().counters(), each);
        totals(self.node(), each);
    }

    fn levels(&self, each: Each<'_>) {
        let Resources {
            tickets,
            request_chunks,
            reply_chunks,
            temporaries,
            halves,
            operations,
            ..
        } = self.conduit.resources();
        for (name, unit, value) in [
            ("am.free.tickets", "tickets", u64::from(tickets.0)),
            ("am.free.request_chunks", "chunks", u64::from(request_chunks.0)),
            ("am.free.reply_chunks", "chunks", u64::from(reply_chunks.0)),
            ("am.free.temporaries", "descriptors", u64::from(temporaries.0)),
            ("am.live_halves", "messages", halves as u64),
            ("am.live_operations", "operations", operations as u64),
        ] {
            each(name, unit, value);
        }
    }

    fn rails(&self) -> impl Iterator<Item = &AnyRail> {
        self.node().rails().map(|(_, rail)| rail)
    }

    fn rail(&self, rail: RailId) -> Option<&AnyRail> {
        self.node().rail(ni::RailId(rail.0))
    }

    fn path(&self, rank: Rank, rail: RailId) -> Option<(PathState, Option<u64>)> {
        path(self.node(), &self.ranks, rank, rail)
    }
}

/// Passes every total of a conduit. A new one does not compile before it is listed here.
fn conduit_totals(stats: &Stats, each: Each<'_>) {
    let Stats {
        requests: [request_short, request_medium, request_packed, request_unpacked],
        replies: [reply_short, reply_medium, reply_packed, reply_unpacked],
        no_reply,
        handled: [handled_requests, handled_replies],
        in_place,
        unhandled,
        one_sided: [puts, gets],
        ways: [within, through_chunk, through_temporary],
        stalls:
            [
                credits,
                tickets,
                chunk,
                temporary,
                interface,
                reply,
                operations,
                barrier,
                exit,
            ],
        halves: [data_first, header_first],
        recycled,
        deferred,
        system,
        hostile,
        basin,
    } = *stats;
    for (name, unit, total) in [
        ("am.request.short", "messages", request_short),
        ("am.request.medium", "messages", request_medium),
        ("am.request.packed_long", "messages", request_packed),
        ("am.request.long", "messages", request_unpacked),
        ("am.reply.short", "messages", reply_short),
        ("am.reply.medium", "messages", reply_medium),
        ("am.reply.packed_long", "messages", reply_packed),
        ("am.reply.long", "messages", reply_unpacked),
        ("am.reply.by_itself", "messages", no_reply),
        ("am.handled.requests", "messages", handled_requests),
        ("am.handled.replies", "messages", handled_replies),
        ("am.handled.in_place", "messages", in_place),
        ("am.unhandled", "messages", unhandled),
        ("am.puts", "operations", puts),
        ("am.gets", "operations", gets),
        ("am.way.segment", "operations", within),
        ("am.way.chunk", "operations", through_chunk),
        ("am.way.temporary", "operations", through_temporary),
        ("am.stall.credits", "calls", credits),
        ("am.stall.tickets", "calls", tickets),
        ("am.stall.chunk", "calls", chunk),
        ("am.stall.temporary", "calls", temporary),
        ("am.stall.interface", "calls", interface),
        ("am.stall.reply", "calls", reply),
        ("am.stall.operations", "calls", operations),
        ("am.stall.barrier", "calls", barrier),
        ("am.stall.exit", "calls", exit),
        ("am.long.data_first", "messages", data_first),
        ("am.long.header_first", "messages", header_first),
        ("am.recycled", "buffers", recycled),
        ("am.deferred", "operations", deferred),
        ("am.system", "messages", system),
        ("am.drop.hostile", "arrivals", hostile),
        ("am.basin", "messages", basin),
    ] {
        each(name, unit, total);
    }
}

/// Passes every total of the credits, likewise.
fn credit_totals(counters: &doorbell_am::credit::Counters, each: Each<'_>) {
    let doorbell_am::credit::Counters {
        taken,
        stalls,
        asked,
        grants,
        granted,
        limited,
        dry,
        revocations,
        refusals,
        returned,
        given_back,
        epochs,
    } = *counters;
    for (name, unit, total) in [
        ("am.credit.taken", "requests", taken),
        ("am.credit.stalls", "requests", stalls),
        ("am.credit.asked", "requests", asked),
        ("am.credit.grants", "times", grants),
        ("am.credit.granted", "credits", granted),
        ("am.credit.limited", "times", limited),
        ("am.credit.dry", "times", dry),
        ("am.credit.revocations", "times", revocations),
        ("am.credit.refusals", "times", refusals),
        ("am.credit.returned", "credits", returned),
        ("am.credit.given_back", "credits", given_back),
        ("am.credit.epochs", "epochs", epochs),
    ] {
        each(name, unit, total);
    }
}
