//! Questions and answers: what a client wants to know, whichever way it asks.
//!
//! reference: acm, sections 5 to 7.

use crate::address::Address;
use crate::endpoint::Endpoint;
use crate::path::Path;
use crate::status::Status;

/// What the service counts, in the order of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Questions that ended with an error.
    pub errors: u64,
    /// Questions to resolve something.
    pub resolves: u64,
    /// Questions that ended because nothing was known.
    pub no_data: u64,
    /// Addresses that others were asked about.
    pub address_queries: u64,
    /// Addresses that were known.
    pub address_hits: u64,
    /// Routes that others were asked about.
    pub route_queries: u64,
    /// Routes that were known.
    pub route_hits: u64,
}

impl Counters {
    /// How many there are.
    pub const COUNT: usize = 7;

    /// In the order of the wire.
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

    /// From the order of the wire.
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

/// Whose counters are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those of the whole service.
    Service,
    /// Those of an endpoint, counted from 1 over all endpoints in the order in which they were found.
    Index(u8),
    /// Those of the endpoint that owns this address.
    Owner(Address),
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The path from one address to another.
    Resolve {
        /// An address of this host; where there is none, the service chooses it.
        source: Option<Address>,
        /// Where to.
        destination: Address,
        /// Only what is known already: nothing is waited for.
        no_delay: bool,
    },
    /// The path that is described by LIDs or GIDs.
    Path {
        /// The description: what is zero is open.
        path: Path,
        /// Whether it is to be verified beyond the service's own knowledge.
        verify: bool,
    },
    /// Counters.
    Counters(Whose),
    /// The endpoint with this index (from 1) on this port.
    Endpoint {
        /// The port, from 1.
        port: u8,
        /// Counted from 1 among the endpoints with that port.
        index: u8,
    },
}

impl Question {
    /// The same, with its addresses as tables know them ([`Address::canonical`]).
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
            Self::Counters(Whose::Owner(address)) => Self::Counters(Whose::Owner(address.canonical())),
            other => other.clone(),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A path, and the source where the service chose it.
    Path {
        /// The path.
        path: Box<Path>,
        /// The source that the service chose, because the question had none.
        source: Option<Address>,
    },
    /// Counters.
    Counters(Counters),
    /// An endpoint, and the name of what serves it.
    Endpoint {
        /// The endpoint.
        endpoint: Box<Endpoint>,
        /// The back-end's name.
        provider: &'static str,
    },
}

/// An answer.
pub type Answer = Result<Found, Status>;
