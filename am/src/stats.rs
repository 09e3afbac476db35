//! The counters of a conduit, and their text for `GASNET_PORTAL_CREDIT_STATS`. The caller writes the file.

use std::fmt::{self, Write as _};

use crate::credit;
use crate::error::Stall;

/// Counts since the conduit was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent: Short, Medium, packed Long, unpacked Long.
    pub requests: [u64; 4],
    /// Replies sent, likewise.
    pub replies: [u64; 4],
    /// Replies that no handler sent, which are among them.
    pub no_reply: u64,
    /// Requests whose handler ran, and replies.
    pub handled: [u64; 2],
    /// Requests and replies whose handler ran on the bytes where they arrived.
    pub in_place: u64,
    /// Messages for a handler that was not registered.
    pub unhandled: u64,
    /// Puts and gets started.
    pub one_sided: [u64; 2],
    /// Puts and gets from or to the segment, through a chunk, through a temporary descriptor.
    pub ways: [u64; 3],
    /// Calls that did not find what they needed, by [`Stall`].
    pub stalls: [u64; 9],
    /// Halves of Longs that arrived first and were data, and that were headers.
    pub halves: [u64; 2],
    /// Receive buffers attached again.
    pub recycled: u64,
    /// Operations that had to be deferred because the interface had no room.
    pub deferred: u64,
    /// System messages sent.
    pub system: u64,
    /// Messages that did not keep to the protocol, and were dropped.
    pub hostile: u64,
    /// Requests that fell into the catch basin.
    pub basin: u64,
}

impl Stats {
    #[inline]
    pub(crate) const fn stalled(&mut self, stall: Stall) {
        self.stalls[stall as usize] += 1;
    }
}

/// What of the resources is free now, and of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Send tickets, and how many there are.
    pub tickets: (u32, u32),
    /// Chunks of the requests' buffer.
    pub request_chunks: (u32, u32),
    /// Chunks of the replies' buffer.
    pub reply_chunks: (u32, u32),
    /// Temporary descriptors that are free, and all of them.
    pub temporaries: (u32, u32),
    /// Resources that are in hand for the next reply: send tickets, temporary descriptors, chunks of the
    /// replies' buffer.
    pub in_hand: (u32, u32, u32),
    /// Halves of Longs that wait.
    pub halves: usize,
    /// Operations that are not synchronised.
    pub operations: u32,
}

/// The text of the statistics file.
pub(crate) fn text(
    (me, nodes): (u32, u32),
    stats: &Stats,
    resources: &Resources,
    credits: &credit::CreditState,
) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = write(&mut out, (me, nodes), stats, resources, credits);
    out
}

fn write(
    out: &mut String,
    (me, nodes): (u32, u32),
    stats: &Stats,
    resources: &Resources,
    credits: &credit::CreditState,
) -> fmt::Result {
    writeln!(out, "rank {me} of {nodes}")?;
    for (name, [short, medium, packed, long]) in [("requests", stats.requests), ("replies", stats.replies)] {
        writeln!(
            out,
            "{name}: short {short}, medium {medium}, packed long {packed}, long {long}"
        )?;
    }
    let [requests, replies] = stats.handled;
    writeln!(
        out,
        "handled: requests {requests}, replies {replies}, of them where they arrived {}; \
         without a handler {}, without a reply {}",
        stats.in_place, stats.unhandled, stats.no_reply
    )?;
    let [puts, gets] = stats.one_sided;
    let [segment, bounced, temporary] = stats.ways;
    writeln!(
        out,
        "one-sided: puts {puts}, gets {gets}; in the segment {segment}, through chunks {bounced}, through temporary descriptors {temporary}"
    )?;
    write!(out, "stalls:")?;
    for stall in STALLS {
        write!(
            out,
            " {} {};",
            NAMES[stall as usize], stats.stalls[stall as usize]
        )?;
    }
    writeln!(out)?;
    let [data, headers] = stats.halves;
    writeln!(
        out,
        "longs: data first {data}, header first {headers}; buffers recycled {}, deferred {}, system messages {}, dropped {}, catch basin {}",
        stats.recycled, stats.deferred, stats.system, stats.hostile, stats.basin
    )?;
    writeln!(
        out,
        "free: tickets {}/{}, request chunks {}/{}, reply chunks {}/{}, temporary descriptors {}/{}",
        resources.tickets.0,
        resources.tickets.1,
        resources.request_chunks.0,
        resources.request_chunks.1,
        resources.reply_chunks.0,
        resources.reply_chunks.1,
        resources.temporaries.0,
        resources.temporaries.1
    )?;
    write_credits(out, credits)
}

fn write_credits(out: &mut String, credits: &credit::CreditState) -> fmt::Result {
    let shares = credits.shares();
    writeln!(
        out,
        "credits at the start: {} for each, {} banked, {} in all; receive space {} bytes in {} buffers, {} events",
        shares.per_node,
        shares.banked,
        shares.total,
        shares.receive_bytes(),
        shares.buffers,
        shares.events
    )?;
    let count = credits.counters();
    writeln!(
        out,
        "credits: bank {}, epochs {}, requests {}, stalls {}, needs {}, grants {} of {}, limited {}, bank empty {}",
        credits.bank(),
        count.epochs,
        count.taken,
        count.stalls,
        count.asked,
        count.grants,
        count.granted,
        count.limited,
        count.dry
    )?;
    writeln!(
        out,
        "revocations: {} sent, {} refused, {} credits returned, {} given back",
        count.revocations, count.refusals, count.returned, count.given_back
    )?;
    writeln!(out, "rank lent used borrowed in-use most stalls")?;
    for rank in 0..credits.nodes() {
        // Only peers with activity: at ten thousand ranks the rest is noise.
        let Some(peer) = credits.peer(rank) else { continue };
        let at_start =
            peer.loan() == shares.of(credits.me(), rank) && peer.send() == shares.of(rank, credits.me());
        if at_start && peer.peak() == 0 && peer.held() == 0 {
            continue;
        }
        writeln!(
            out,
            "{rank} {} {} {} {} {} {}",
            peer.loan(),
            peer.held(),
            peer.send(),
            peer.in_use(),
            peer.peak(),
            peer.stalls()
        )?;
    }
    Ok(())
}

const STALLS: [Stall; 9] = [
    Stall::Credits,
    Stall::Tickets,
    Stall::Chunk,
    Stall::Temporary,
    Stall::Interface,
    Stall::Reply,
    Stall::Operations,
    Stall::Barrier,
    Stall::Exit,
];

const NAMES: [&str; 9] = [
    "credits",
    "tickets",
    "chunks",
    "temporary",
    "interface",
    "reply",
    "operations",
    "barrier",
    "exit",
];
