//! The state that a service shows: one JSON object, `doorbell.acm-watch/1`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::state::State;
use crate::query::Counters;
use crate::resolver::{EndpointId, EntryInfo, EntryState as Stage, Event, EventKind, Origin, ResolverStats};
use crate::serve::Count;

/// Maximum number of destinations shown; the most recently used come first.
const SHOWN: usize = 4096;
/// Maximum number of events shown.
const EVENTS: usize = 64;

#[derive(Debug, Serialize)]
pub(super) struct View {
    schema: &'static str,
    version: &'static str,
    process: u32,
    endpoints: Vec<EndpointView>,
    known: Vec<KnownView>,
    /// Destinations beyond those shown.
    more_known: usize,
    waiting: usize,
    memory_bytes: usize,
    counters: BTreeMap<&'static str, u64>,
    messages: BTreeMap<&'static str, u64>,
    clients: BTreeMap<&'static str, u64>,
    clients_now: u64,
    /// What carries messages between services: `udp` or `ud`.
    carrier_kind: &'static str,
    carrier: BTreeMap<String, u64>,
    /// The last send failure.
    trouble: Option<String>,
    warnings: Vec<String>,
    events: Vec<EventView>,
}

#[derive(Debug, Serialize)]
struct EndpointView {
    id: u32,
    device: String,
    guid: String,
    port: u8,
    pkey: u16,
    link: &'static str,
    mtu: u32,
    megabits: u32,
    addresses: Vec<String>,
    /// The port and the queue pair that serve it, if one does.
    queue_pair: Option<String>,
    /// Why the carrier does not serve the endpoint, if it does not.
    unserved: Option<String>,
}

#[derive(Debug, Serialize)]
struct KnownView {
    endpoint: Option<u32>,
    destination: String,
    state: &'static str,
    gid: Option<String>,
    lid: Option<u16>,
    qpn: Option<u32>,
    mtu: Option<u32>,
    origin: Option<&'static str>,
    age_s: f64,
    /// Seconds since the last message of its owner.
    confirmed_s: Option<f64>,
    /// Seconds until it expires.
    expires_s: Option<f64>,
    waiting: usize,
    /// Why it was not found.
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct EventView {
    ago_s: f64,
    what: String,
}

impl View {
    pub(super) fn of(state: &State) -> Self {
        let resolver = state.resolver();
        let mut known: Vec<EntryInfo> = resolver.snapshot();
        let more_known = known.len().saturating_sub(SHOWN);
        known.truncate(SHOWN);
        let now = state.now();
        let events: Vec<&Event> = resolver
            .history()
            .filter(|event| concerns(state, &event.what))
            .collect();
        let first = events.len().saturating_sub(EVENTS);
        Self {
            schema: "doorbell.acm-watch/1",
            version: env!("CARGO_PKG_VERSION"),
            process: std::process::id(),
            endpoints: endpoints(state),
            known: known.iter().map(KnownView::of).collect(),
            more_known,
            waiting: resolver.waiting(),
            memory_bytes: resolver.memory(),
            counters: resolver.counters(None).map(counters).unwrap_or_default(),
            messages: messages(resolver.stats()),
            clients: Count::ALL
                .into_iter()
                .map(|count| (count.name(), state.served().of(count)))
                .collect(),
            clients_now: state.served().present(),
            carrier_kind: state.carrier_kind(),
            carrier: carried(state),
            trouble: state.trouble().map(str::to_owned),
            warnings: state.warnings(),
            events: events[first..]
                .iter()
                .map(|event| EventView {
                    ago_s: now.since(event.at).as_secs_f64(),
                    what: event_text(&event.what),
                })
                .collect(),
        }
    }

    /// Returns the JSON on one line.
    pub(super) fn line(&self) -> String {
        // Only strings and numbers: serialising into memory cannot fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

fn endpoints(state: &State) -> Vec<EndpointView> {
    let each = state.resolver().endpoints();
    each.map(|(id, endpoint)| EndpointView {
        id: id.0,
        device: endpoint.device.clone(),
        guid: format!("{:#018x}", endpoint.guid),
        port: endpoint.port,
        pkey: endpoint.pkey,
        link: match endpoint.link {
            crate::endpoint::Link::InfiniBand => "infiniband",
            crate::endpoint::Link::Ethernet => "ethernet",
            crate::endpoint::Link::Loopback => "loopback",
        },
        mtu: endpoint.mtu.bytes(),
        megabits: endpoint.rate.megabits(),
        addresses: endpoint.addresses.iter().map(ToString::to_string).collect(),
        queue_pair: state.queue_pair(id),
        unserved: state.unserved().get(&id).cloned(),
    })
    .collect()
}

impl KnownView {
    fn of(known: &EntryInfo) -> Self {
        let refused = match known.state {
            Stage::Refused(status) => Some(status.to_string()),
            _ => None,
        };
        Self {
            endpoint: known.endpoint.map(|EndpointId(id)| id),
            destination: known.destination.to_string(),
            state: stage(known.state),
            gid: known.peer.map(|peer| peer.gid.to_string()),
            lid: known.peer.map(|peer| peer.lid).filter(|lid| *lid != 0),
            qpn: known.peer.map(|peer| peer.qpn),
            mtu: known.mtu.map(|mtu| mtu.bytes()),
            origin: known.origin.map(origin),
            age_s: known.age.as_secs_f64(),
            confirmed_s: known.confirmed.map(|time| time.as_secs_f64()),
            expires_s: known.expires.map(|time| time.as_secs_f64()),
            waiting: known.waiting,
            refused,
        }
    }
}

fn stage(state: Stage) -> &'static str {
    match state {
        Stage::Ready => "ready",
        Stage::Unconfirmed => "unconfirmed",
        Stage::AddressOnly => "address-only",
        Stage::Confirming => "confirming",
        Stage::QueryAddress => "query-address",
        Stage::QueryRoute => "query-route",
        Stage::Probing => "probing",
        Stage::Refused(_) => "refused",
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Multicast => "multicast",
        Origin::Static => "static",
        Origin::Sa => "sa",
        Origin::Loopback => "loopback",
        Origin::Route => "route",
    }
}

fn counters(counters: Counters) -> BTreeMap<&'static str, u64> {
    let names = [
        "errors",
        "resolves",
        "no_data",
        "address_queries",
        "address_hits",
        "route_queries",
        "route_hits",
    ];
    names.into_iter().zip(counters.in_order()).collect()
}

fn messages(stats: &ResolverStats) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("multicasts", stats.multicasts),
        ("announcements", stats.announcements),
        ("confirmations", stats.confirmations),
        ("confirmations_in_the_background", stats.background),
        ("answers", stats.answers),
        ("sa_queries", stats.queries),
        ("probes", stats.probes),
        ("heard", stats.received),
        ("malformed", stats.malformed.values().sum()),
        ("untrusted", stats.untrusted),
        ("unasked", stats.unasked),
        ("mismatched", stats.mismatched),
        ("not_ours", stats.not_ours),
        ("unanswered", stats.unanswered),
        ("changed", stats.changed),
        ("refused_hits", stats.refused_hits),
        ("evicted", stats.evicted),
        ("no_room", stats.no_room),
    ])
}

fn carried(state: &State) -> BTreeMap<String, u64> {
    let counters = state.carried();
    let mut all = BTreeMap::from([
        ("sent".to_owned(), counters.sent),
        ("unsent".to_owned(), counters.unsent),
        ("taken".to_owned(), counters.taken),
        ("echoes".to_owned(), counters.echoes),
        ("unresolved".to_owned(), counters.unresolved),
        ("failed".to_owned(), counters.failed),
        ("resets".to_owned(), counters.resets),
    ]);
    let dropped = counters.dropped.each();
    all.extend(
        dropped.map(|(reason, count)| (format!("dropped_{}", format!("{reason:?}").to_lowercase()), count)),
    );
    all
}

/// Whether an event is shown: announcements and failed joins of an endpoint that is not to be served are not.
fn concerns(state: &State, what: &EventKind) -> bool {
    match what {
        EventKind::Announced(id, _) | EventKind::NotJoined(id, _) => state
            .resolver()
            .endpoint(*id)
            .is_none_or(|own| state.config().options.doorbell_interfaces.serve(own)),
        _ => true,
    }
}

fn event_text(what: &EventKind) -> String {
    let at = |gid: &crate::address::Gid, qpn: u32| format!("{gid} (queue pair {qpn:#08x})");
    match what {
        EventKind::EndpointCame(_, device) => format!("{device} came"),
        EventKind::EndpointWent(_, device) => format!("{device} went"),
        EventKind::Announced(_, count) => format!("announced {count} addresses"),
        EventKind::Learned(_, address, peer) => format!("{address} is at {}", at(&peer.gid, peer.qpn)),
        EventKind::Changed(_, address, peer) => format!("{address} moved to {}", at(&peer.gid, peer.qpn)),
        EventKind::Conflict(_, address, peer) => {
            format!(
                "address conflict: {} claims {address}, which is ours",
                at(&peer.gid, peer.qpn)
            )
        }
        EventKind::Refused(_, address, status) => format!("{address} not found: {status}"),
        EventKind::Failed(address) => format!("the path to {address} was reported as not working"),
        EventKind::NotJoined(_, group) => format!("could not join the group {group}"),
        EventKind::Evicted(_, address) => format!("{address} was evicted to make room"),
    }
}
