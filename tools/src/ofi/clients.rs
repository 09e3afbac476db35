//! The hints that clients of libfabric pass to `fi_getinfo`.
//!
//! The hints are those in the clients' sources: Open MPI 4.1.4 and 5.0.9 (`mtl_ofi_component.c`,
//! `btl_ofi_component.c`), MPICH 5.0.1 (`init_provider.c`, `init_settings.c`), Sandia OpenSHMEM
//! (`transport_ofi.c`), GASNet-EX (`gasnet_ofi.c`), fabtests 2.6 (`rdm_tagged_bw.c`).

use libfabric_sys::{
    FI_ASYNC_IOV, FI_ATOMIC, FI_AV_MAP, FI_AV_TABLE, FI_COMPLETION, FI_CONTEXT, FI_CONTEXT2,
    FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV, FI_EP_RDM, FI_LOCAL_COMM, FI_MR_ALLOCATED, FI_MR_ENDPOINT,
    FI_MR_HMEM, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG, FI_MULTI_RECV, FI_ORDER_SAS,
    FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_REMOTE_COMM, FI_RM_ENABLED, FI_RMA, FI_RX_CQ_DATA, FI_TAGGED,
    FI_THREAD_DOMAIN, Hint, Level,
};

/// A client, as it looks for a provider.
#[derive(Debug)]
pub(crate) struct Client {
    /// The client and its release.
    pub(crate) name: &'static str,
    /// The API levels that it passes: of those that the library has, the first.
    pub(crate) levels: &'static [Level],
    /// What it is able to do, which no provider has to use.
    pub(crate) offers: &'static [Hint],
    /// What it wants, each with its name.
    pub(crate) wants: &'static [(&'static str, Hint)],
    /// What it uses one-sided operations for; `None` if it needs messages alone.
    pub(crate) one_sided: bool,
}

const CONTEXTS: Hint = Hint::Mode(FI_CONTEXT | FI_CONTEXT2);
const KEYS: Hint = Hint::Registration(FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);

/// A wish with its name, which is as in C.
macro_rules! wish {
    ($field:literal $kind:ident $value:ident) => {
        (concat!($field, " ", stringify!($value)), Hint::$kind($value))
    };
    ($field:literal $kind:ident $value:literal) => {
        (concat!($field, " ", stringify!($value)), Hint::$kind($value))
    };
}

/// What both releases of Open MPI want for messages.
const OPEN_MPI: &[(&str, Hint)] = &[
    wish!("caps" Caps FI_TAGGED),
    wish!("caps" Caps FI_LOCAL_COMM),
    wish!("caps" Caps FI_REMOTE_COMM),
    wish!("caps" Caps FI_DIRECTED_RECV),
    wish!("threading" Threading FI_THREAD_DOMAIN),
    wish!("av_type" AddressVector FI_AV_MAP),
    wish!("resource_mgmt" Resources FI_RM_ENABLED),
    wish!("tx msg_order" SentOrder FI_ORDER_SAS),
    wish!("rx msg_order" ReceivedOrder FI_ORDER_SAS),
    wish!("tx op_flags" SendFlags FI_COMPLETION),
    wish!("rx op_flags" ReceiveFlags FI_COMPLETION),
    wish!("cq_data_size" Immediate 4),
];

/// What both releases of Open MPI want for one-sided operations.
const OPEN_MPI_ONE_SIDED: &[(&str, Hint)] = &[
    wish!("caps" Caps FI_RMA),
    wish!("caps" Caps FI_ATOMIC),
    wish!("av_type" AddressVector FI_AV_MAP),
    wish!("tx op_flags" SendFlags FI_DELIVERY_COMPLETE),
    wish!("tx iov_limit" SentPieces 1),
];

/// The clients, those of messages first.
pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "Open MPI 4 (mtl/ofi)",
        levels: &[Level::new(1, 5)],
        offers: &[CONTEXTS],
        wants: OPEN_MPI,
        one_sided: false,
    },
    Client {
        name: "Open MPI 5 (mtl/ofi)",
        levels: &[Level::new(1, 18), Level::new(1, 9)],
        offers: &[CONTEXTS],
        wants: &[
            wish!("caps" Caps FI_TAGGED),
            wish!("caps" Caps FI_MSG),
            wish!("caps" Caps FI_LOCAL_COMM),
            wish!("caps" Caps FI_REMOTE_COMM),
            wish!("caps" Caps FI_DIRECTED_RECV),
            wish!("threading" Threading FI_THREAD_DOMAIN),
            wish!("av_type" AddressVector FI_AV_MAP),
            wish!("resource_mgmt" Resources FI_RM_ENABLED),
            wish!("tx msg_order" SentOrder FI_ORDER_SAS),
            wish!("rx msg_order" ReceivedOrder FI_ORDER_SAS),
            wish!("tx op_flags" SendFlags FI_COMPLETION),
            wish!("rx op_flags" ReceiveFlags FI_COMPLETION),
            wish!("cq_data_size" Immediate 4),
        ],
        one_sided: false,
    },
    Client {
        name: "MPICH 5 (ch4:ofi, without one-sided)",
        levels: &[Level::NEWEST],
        offers: &[
            Hint::Mode(FI_CONTEXT | FI_CONTEXT2 | FI_ASYNC_IOV | FI_RX_CQ_DATA),
            Hint::Registration(FI_MR_ENDPOINT),
        ],
        wants: &[
            wish!("caps" Caps FI_TAGGED),
            wish!("caps" Caps FI_DIRECTED_RECV),
            wish!("caps" Caps FI_MSG),
            wish!("caps" Caps FI_MULTI_RECV),
            wish!("threading" Threading FI_THREAD_DOMAIN),
            wish!("control_progress" ControlProgress FI_PROGRESS_MANUAL),
            wish!("data_progress" DataProgress FI_PROGRESS_MANUAL),
            wish!("av_type" AddressVector FI_AV_TABLE),
            wish!("resource_mgmt" Resources FI_RM_ENABLED),
            wish!("tx msg_order" SentOrder FI_ORDER_SAS),
            wish!("rx msg_order" ReceivedOrder FI_ORDER_SAS),
            wish!("tx op_flags" SendFlags FI_COMPLETION),
            wish!("tx op_flags" SendFlags FI_DELIVERY_COMPLETE),
            wish!("rx op_flags" ReceiveFlags FI_COMPLETION),
        ],
        one_sided: false,
    },
    Client {
        name: "fabtests (tagged messages)",
        levels: &[Level::NEWEST],
        offers: &[
            CONTEXTS,
            Hint::Registration(
                FI_MR_LOCAL
                    | FI_MR_VIRT_ADDR
                    | FI_MR_ALLOCATED
                    | FI_MR_PROV_KEY
                    | FI_MR_ENDPOINT
                    | FI_MR_HMEM,
            ),
        ],
        wants: &[
            wish!("caps" Caps FI_TAGGED),
            wish!("threading" Threading FI_THREAD_DOMAIN),
            wish!("resource_mgmt" Resources FI_RM_ENABLED),
        ],
        one_sided: false,
    },
    Client {
        name: "Open MPI 4 (btl/ofi)",
        levels: &[Level::new(1, 5)],
        offers: &[CONTEXTS, KEYS],
        wants: OPEN_MPI_ONE_SIDED,
        one_sided: true,
    },
    Client {
        name: "Open MPI 5 (btl/ofi)",
        levels: &[Level::new(1, 18), Level::new(1, 9)],
        offers: &[CONTEXTS, KEYS, Hint::Registration(FI_MR_ENDPOINT)],
        wants: OPEN_MPI_ONE_SIDED,
        one_sided: true,
    },
    Client {
        name: "Sandia OpenSHMEM",
        levels: &[Level::new(1, 5)],
        offers: &[KEYS],
        wants: &[
            wish!("caps" Caps FI_RMA),
            wish!("caps" Caps FI_ATOMIC),
            wish!("threading" Threading FI_THREAD_DOMAIN),
            wish!("data_progress" DataProgress FI_PROGRESS_AUTO),
            wish!("resource_mgmt" Resources FI_RM_ENABLED),
            wish!("tx op_flags" SendFlags FI_DELIVERY_COMPLETE),
            wish!("tx inject_size" Inject 16),
            wish!("mr_key_size" KeySize 1),
        ],
        one_sided: true,
    },
    Client {
        name: "GASNet-EX (ofi-conduit)",
        levels: &[Level::new(1, 9), Level::new(1, 5)],
        offers: &[KEYS, Hint::Registration(FI_MR_ENDPOINT)],
        wants: &[
            wish!("caps" Caps FI_RMA),
            wish!("caps" Caps FI_MSG),
            wish!("caps" Caps FI_MULTI_RECV),
            wish!("threading" Threading FI_THREAD_DOMAIN),
            wish!("control_progress" ControlProgress FI_PROGRESS_MANUAL),
            wish!("av_type" AddressVector FI_AV_TABLE),
            wish!("resource_mgmt" Resources FI_RM_ENABLED),
            wish!("tx op_flags" SendFlags FI_DELIVERY_COMPLETE),
        ],
        one_sided: true,
    },
];

impl Client {
    /// Returns the API level that it passes to a library of this release.
    pub(crate) fn level(&self, release: Level) -> Level {
        let known = self.levels.iter().copied().find(|level| release.has(*level));
        known.unwrap_or(release)
    }

    /// Returns the hints of every client: an endpoint, and what it is able to do.
    pub(crate) fn least(&self) -> Vec<Hint> {
        let mut hints = vec![Hint::Endpoint(FI_EP_RDM)];
        hints.extend(self.offers);
        hints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_asks_for_the_newest_of_its_levels_that_the_library_has() {
        let open_mpi = &CLIENTS[1];
        assert_eq!(open_mpi.level(Level::new(1, 17)), Level::new(1, 9));
        assert_eq!(open_mpi.level(Level::new(2, 5)), Level::new(1, 18));
        assert_eq!(CLIENTS[2].level(Level::new(1, 22)), Level::new(1, 22));
    }

    #[test]
    fn wishes_are_named_as_in_c() {
        let names: Vec<_> = CLIENTS[0].wants.iter().map(|(name, _)| *name).collect();
        assert!(
            names.contains(&"caps FI_TAGGED") && names.contains(&"cq_data_size 4"),
            "{names:?}"
        );
        assert!(CLIENTS.iter().filter(|client| client.one_sided).count() >= 4);
    }
}
