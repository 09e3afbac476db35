//! The resolver's options: those of the original by their names, and our own.
//!
//! reference: acm, section 9.

use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::path::{Mtu, Rate};

/// Where addresses come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressProtocol {
    /// Addresses come from their owners, by multicast.
    #[default]
    Acm,
}

/// Where routes come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteProtocol {
    /// Routes come from the subnet administrator. An Ethernet endpoint without one ([`Options::has_sa`])
    /// behaves as with [`Acm`](RouteProtocol::Acm).
    #[default]
    Sa,
    /// Routes come from the groups: a path has the properties of the best group that both ends are in.
    Acm,
}

/// How this host's own addresses are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopbackProtocol {
    /// Like any other address.
    None,
    /// Loopback addresses are resolved at once, without a message.
    #[default]
    Local,
}

/// The resolver's options. Those that the original has as well have its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Added to the subnet's timeout for each attempt: 2 s.
    pub timeout: Duration,
    /// Number of attempts after the first: 2.
    pub retries: u32,
    /// Maximum multicast queries in flight per endpoint: 1. One that is not answered soon ([`Options::lent`])
    /// makes room for the next, so that a dead host delays no other.
    pub resolve_depth: u32,
    /// Maximum queries to the subnet administrator in flight per endpoint: 1.
    pub sa_depth: u32,
    /// Maximum answers to other services in flight per endpoint: 1.
    pub send_depth: u32,
    /// MTU of the group that all are in: 2,048 bytes.
    pub min_mtu: Mtu,
    /// Rate of the group that all are in: 10 Gb/s.
    pub min_rate: Rate,
    /// Lifetime of an address that is not confirmed: a day; `None` for ever.
    pub addr_timeout: Option<Duration>,
    /// Lifetime of a route: for ever (`None`).
    pub route_timeout: Option<Duration>,
    /// Where addresses come from.
    pub addr_prot: AddressProtocol,
    /// Where routes come from.
    pub route_prot: RouteProtocol,
    /// How this host's own addresses are resolved.
    pub loopback_prot: LoopbackProtocol,

    /// Whether [`Action::QuerySa`](super::Action::QuerySa) is answered on an Ethernet endpoint, from a file
    /// for example.
    pub has_sa: bool,
    /// Whether messages that are not [trusted](super::Sender::trusted) are dropped. Then only answers to
    /// our queries teach addresses, since queries of others may be replayed.
    pub authenticated: bool,
    /// Whether every path is probed before it is used, not only those beyond a router.
    pub verify: bool,
    /// Further groups, from slow to fast: an endpoint joins those that its port can keep up with, as many as
    /// fit into a message.
    pub groups: Vec<(Rate, Mtu)>,
    /// How long an address is used without another query after the last message of its owner: 1 s; zero for
    /// ever. It bounds to two seconds how long a renumbered, restarted or unreachable host stays unnoticed.
    ///
    /// A confirmation costs one unicast message. Entries used recently are confirmed in the background, so
    /// that queries need not wait for it.
    pub confirm: Duration,
    /// Maximum number of addresses confirmed in the background: 64. It bounds a host's traffic, whatever the
    /// size of the network.
    pub watched: usize,
    /// How long after its last use an address is confirmed in the background: 30 s.
    pub watch: Duration,
    /// How long a failed lookup is cached: 250 ms at first, and twice as long each time;
    pub refused_first: Duration,
    /// up to this: 1 s. So a host that comes back is found within two seconds; a longer time saves queries.
    pub refused_last: Duration,
    /// How long a probe may take: 1 s.
    pub probe: Duration,
    /// How long a path stays reduced to the size that passed before larger ones are tried again: 10 s. It is
    /// used as it is meanwhile, and no query waits for the attempt.
    pub grow: Duration,
    /// Maximum number of cache entries: 65,536.
    pub entries: usize,
    /// Maximum number of searches in progress: 4,096.
    pub searches: usize,
    /// Maximum number of waiting queries: 16,384.
    pub questions: usize,
    /// Maximum number of waiting queries for one destination: 4,096.
    pub questions_each: usize,
    /// Maximum number of messages that wait for a credit, in each queue of an endpoint: 4,096.
    pub waiting: usize,
    /// Number of events remembered: 512.
    pub history: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(2000),
            retries: 2,
            resolve_depth: 1,
            sa_depth: 1,
            send_depth: 1,
            min_mtu: Mtu::within(2048).unwrap_or(Mtu::MIN),
            min_rate: Rate::within(10_000),
            addr_timeout: Some(Duration::from_secs(1440 * 60)),
            route_timeout: None,
            addr_prot: AddressProtocol::Acm,
            route_prot: RouteProtocol::Sa,
            loopback_prot: LoopbackProtocol::Local,
            has_sa: false,
            authenticated: false,
            verify: false,
            groups: Vec::new(),
            confirm: Duration::from_secs(1),
            watched: 64,
            watch: Duration::from_secs(30),
            refused_first: Duration::from_millis(250),
            refused_last: Duration::from_millis(1000),
            probe: Duration::from_secs(1),
            grow: Duration::from_secs(10),
            entries: 65_536,
            searches: 4096,
            questions: 16_384,
            questions_each: 4096,
            waiting: 4096,
            history: 512,
        }
    }
}

impl Options {
    /// Returns how long an attempt lasts, where answers of the subnet take 4.096 µs × 2^`subnet_timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use doorbell_acm::resolver::Options;
    /// let options = Options::default();
    /// assert_eq!(options.attempt(18), Duration::from_millis(2000 + 1024));
    /// assert_eq!(options.attempt(0), Duration::from_millis(2001));
    /// ```
    #[must_use]
    pub fn attempt(&self, subnet_timeout: u8) -> Duration {
        let subnet = 1u64 << subnet_timeout.clamp(8, 31).saturating_sub(8);
        self.timeout + Duration::from_millis(subnet)
    }

    /// Returns the time after which a query is answered at the latest: all attempts to find the address, as
    /// many for the route, and a probe.
    #[must_use]
    pub fn bound(&self, subnet_timeout: u8) -> Duration {
        let attempts = self.retries.saturating_add(1).saturating_mul(2);
        self.attempt(subnet_timeout).saturating_mul(attempts) + self.probe
    }

    /// Returns how long a query that is not answered keeps its credit: a sixteenth of an attempt. The query
    /// is repeated then, and after each quarter, so that a loss does not cost a whole attempt.
    #[must_use]
    pub fn lent(&self, subnet_timeout: u8) -> Duration {
        self.attempt(subnet_timeout) / 16
    }

    /// Returns when something received now expires.
    pub(super) fn until(now: Time, life: Option<Duration>) -> Time {
        life.map_or(Time::NEVER, |life| now + life)
    }
}
