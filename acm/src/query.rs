//! Queries and their answers, independent of the protocol that carries them.
//!
//! reference: acm, sections 5 to 7.

use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::path::Path;
use crate::status::Status;

/// The counters of the service, in the order of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Queries that failed.
    pub errors: u64,
    /// Queries for a path.
    pub resolves: u64,
    /// Queries that failed because the cache had no answer.
    pub no_data: u64,
    /// Addresses queried from other services.
    pub address_queries: u64,
    /// Addresses found in the cache.
    pub address_hits: u64,
    /// Routes queried from others.
    pub route_queries: u64,
    /// Routes found in the cache.
    pub route_hits: u64,
}

impl Counters {
    /// The number of counters.
    pub const COUNT: usize = 7;

    /// Returns the counters in the order of the wire.
    #[must_use]
    pub const fn in_order(&self) -> [u64; Self::COUNT] {
        [
            self.errors,
            self.resolves,
            self.no_data,
            self.address_queries,
            self.address_hits,
            self.route_queries,
            self.route_hits,
        ]
    }

    /// Creates the counters from values in the order of the wire.
    #[must_use]
    pub const fn from_order(counts: [u64; Self::COUNT]) -> Self {
        let [
            errors,
            resolves,
            no_data,
            address_queries,
            address_hits,
            route_queries,
            route_hits,
        ] = counts;
        Self {
            errors,
            resolves,
            no_data,
            address_queries,
            address_hits,
            route_queries,
            route_hits,
        }
    }
}

/// Which counters a query wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterScope {
    /// The counters of the whole service.
    Service,
    /// The counters of the endpoint with this index, counted from 1 over all endpoints.
    Index(u8),
    /// The counters of the endpoint that has this address.
    Owner(Address),
}

/// A query of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Resolve the path from one address to another.
    Resolve {
        /// An address of this host; `None` lets the service choose.
        source: Option<Address>,
        /// The destination's address.
        destination: Address,
        /// Whether only the cache may answer, without waiting.
        no_delay: bool,
    },
    /// Complete the path that is described by LIDs or GIDs.
    Path {
        /// The description: zero fields are open.
        path: Path,
        /// Whether to verify it beyond the service's own cache.
        verify: bool,
    },
    /// Read a set of counters.
    Counters(CounterScope),
    /// Read the endpoint with this index on this port.
    Endpoint {
        /// The port number, from 1.
        port: u8,
        /// The index among the endpoints with that port, from 1.
        index: u8,
    },
}

impl Question {
    /// Returns the query with its addresses in canonical form ([`Address::canonical`]).
    #[must_use]
    pub fn canonical(&self) -> Self {
        match self {
            Self::Resolve {
                source,
                destination,
                no_delay,
            } => Self::Resolve {
                source: source.as_ref().map(Address::canonical),
                destination: destination.canonical(),
                no_delay: *no_delay,
            },
            Self::Counters(CounterScope::Owner(address)) => {
                Self::Counters(CounterScope::Owner(address.canonical()))
            }
            other => other.clone(),
        }
    }
}

/// The content of a successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A path, and its source if the service chose it.
    Path {
        /// The path to the destination.
        path: Box<Path>,
        /// The source that the service chose because the query had none.
        source: Option<Address>,
    },
    /// The counters requested.
    Counters(Counters),
    /// An endpoint, and the name of its provider.
    Endpoint {
        /// The endpoint requested.
        endpoint: Box<Endpoint>,
        /// The name of the provider.
        provider: &'static str,
    },
}

/// The answer to a query.
pub type Answer = Result<Found, Status>;
