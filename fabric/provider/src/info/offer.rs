//! What is offered.

use std::ffi::{CStr, CString};

use doorbell_job::Config;
use libfabric_sys::*;

use super::attributes::{Attributes, DomainAttributes, Ep, FabricAttributes, Info, Rx, Tx};
use super::sets;
use crate::ep::{flags, limits};
use crate::errno::{Errno, Result};
use crate::log;

/// The provider's name, which is also the fabric's.
pub(crate) const PROVIDER: &str = "doorbell";
/// The fabric's name.
pub(crate) const FABRIC: &str = "doorbell";

/// Numbers with this bit are a provider's own.
const FI_PROV_SPECIFIC: u32 = 1 << 31;
/// The format of our addresses.
pub(crate) const ADDRESS_FORMAT: u32 = FI_PROV_SPECIFIC | 0xdb01;
/// The protocol of the endpoints, and its version.
pub(crate) const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0xdb01;
const PROTOCOL_VERSION: u64 = 1;

/// Bytes of text that an error entry carries.
const ERROR_TEXT: u64 = 256;

const CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_SEND
    | FI_RECV
    | FI_RMA
    | FI_ATOMIC
    | ACCESSES
    | FI_RMA_EVENT
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_LOCAL_COMM
    | FI_REMOTE_COMM;

/// Capabilities that only hints bring into an entry: with the directed ones, a client that names none could
/// not receive from any (they came with API level 2.0, and an older level's bits are taken out before,
/// `libfabric_sys::bits`); with `FI_SOURCE_ERR`, the first message of a process that a client has not
/// inserted yet would be a failure. MPICH takes an entry that it has found without hints as it is.
const ON_REQUEST: u64 = FI_TAGGED_DIRECTED_RECV | FI_EXACT_DIRECTED_RECV | FI_SOURCE_ERR;

/// The capabilities of which an entry has only those that the hints name, if they name any.
pub(crate) const PRIMARY: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV | FI_SOURCE | FI_RMA_EVENT | ON_REQUEST;
/// The directions of messages: both, where hints name none.
pub(crate) const DIRECTIONS: u64 = FI_SEND | FI_RECV;
/// The directions of reads, writes and atomics: all four, where hints with `FI_RMA` or `FI_ATOMIC` name
/// none.
pub(crate) const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// The capabilities of a domain.
pub(crate) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// One sequence per peer keeps every order of messages, and of reads, writes and atomics of up to the
/// offered lengths (`max_order_*_size`); a longer one begins at its turn. Completions have none (`comp_order`
/// is 0, so that a hint of `FI_ORDER_STRICT` or `FI_ORDER_DATA` is not met): a long message ends after short
/// ones that were sent behind it, and its parts may come over several rails. Releases from 2.0 on have no
/// other value.
const ORDERS: u64 = FI_ORDER_STRICT
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW
    | FI_ORDER_DATA;

/// One rail set, which is one domain.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The rail set, in doorbell's own names.
    pub(crate) domain: CString,
    /// The values that hints are compared with.
    pub(crate) most: Attributes,
    /// The values where hints are 0.
    pub(crate) usual: Attributes,
}

/// Returns the entries, in the order of preference: one for each rail set ([`sets::offered`]). `wanted` is
/// the name of a domain, where the hints have one, which may be open: its rails are not looked for then.
///
/// # Errors
/// `FI_ENODATA` where a rail that was named cannot be used.
pub(crate) fn entries(config: &Config, wanted: Option<&CStr>, is_open: bool) -> Result<Vec<Entry>> {
    let sets = sets::offered(config, wanted, is_open).map_err(|reason| {
        log::warn(FI_LOG_CORE, &reason);
        Errno(FI_ENODATA)
    })?;
    let each = sets.iter().enumerate().map(|(at, set)| {
        let domain = CString::new(sets::name_of(set)).map_err(|_| Errno(FI_ENODATA))?;
        let mut entry = entry(domain, ordered(set));
        if at > 0 {
            entry.be_unlike();
        }
        Ok(entry)
    });
    each.collect()
}

impl Entry {
    /// Makes the entry unlike the first one of its list: Open MPI deals entries that are alike out to the
    /// ranks of a host, in turns, and compares the longest messages, but not the names of domains
    /// (`opal_common_ofi_select_provider`). So it takes the first one.
    fn be_unlike(&mut self) {
        for attributes in [&mut self.most, &mut self.usual] {
            attributes.ep.max_msg_size -= 1;
        }
    }
}

/// Returns how many bytes a read or a write may have that is done at its turn, in order with all others: what
/// is one message on every rail, and its reply, too.
fn ordered(config: &Config) -> u64 {
    /// Of rails of shared memory.
    const SHARED: usize = 16 << 10;
    /// Of all others: what fits the smallest frame.
    const NARROW: usize = 1024;
    /// More than what stands in front of the bytes.
    const FRONT: usize = 256;
    let shares = config.rails.list.get().0.iter().all(|name| name.kind() == "shm");
    let by_rails = if shares { SHARED } else { NARROW };
    let eager = config.pml.eager.get().map_or(usize::MAX, |size| size.0);
    let window = config.pml.unexpected.get().0 / 4;
    let most = by_rails.min(eager.saturating_sub(FRONT));
    most.min(window.saturating_sub(FRONT)) as u64
}

/// Returns the entry of a rail set, on which reads and writes of up to `ordered` bytes are done in order.
pub(crate) fn entry(domain: CString, ordered: u64) -> Entry {
    let usual = usual(ordered);
    let mut most = usual;
    for caps in [&mut most.info.caps, &mut most.tx.caps, &mut most.rx.caps] {
        *caps |= ON_REQUEST;
    }
    most.tx.size = limits::OPERATIONS as u64;
    most.rx.size = limits::OPERATIONS as u64;
    most.tx.op_flags = flags::SEND_DEFAULTS;
    most.rx.op_flags = flags::RECEIVE_DEFAULTS;
    Entry { domain, most, usual }
}

fn usual(ordered: u64) -> Attributes {
    Attributes {
        info: Info {
            caps: CAPS,
            mode: 0,
            addr_format: u64::from(ADDRESS_FORMAT),
        },
        tx: Tx {
            caps: CAPS,
            msg_order: ORDERS,
            inject_size: limits::INJECT as u64,
            size: limits::SENDS as u64,
            iov_limit: limits::PIECES as u64,
            rma_iov_limit: limits::PIECES as u64,
            ..Tx::default()
        },
        rx: Rx {
            caps: CAPS,
            msg_order: ORDERS,
            size: limits::RECEIVES as u64,
            iov_limit: limits::PIECES as u64,
            ..Rx::default()
        },
        ep: Ep {
            r#type: u64::from(FI_EP_RDM),
            protocol: u64::from(PROTOCOL),
            protocol_version: PROTOCOL_VERSION,
            max_msg_size: limits::MESSAGE,
            max_order_raw_size: ordered,
            max_order_war_size: ordered,
            max_order_waw_size: ordered,
            mem_tag_format: u64::MAX,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            ..Ep::default()
        },
        domain: domain(),
        fabric: FabricAttributes {
            prov_version: u64::from(crate::entry::VERSION),
        },
    }
}

fn domain() -> DomainAttributes {
    DomainAttributes {
        threading: u64::from(FI_THREAD_SAFE),
        control_progress: u64::from(FI_PROGRESS_MANUAL),
        data_progress: u64::from(FI_PROGRESS_MANUAL),
        resource_mgmt: u64::from(FI_RM_ENABLED),
        // Both are as good, and some clients take the first entry of a table for that of each new peer.
        av_type: u64::from(FI_AV_UNSPEC),
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: limits::QUEUES.into(),
        ep_cnt: limits::ENDPOINTS as u64,
        tx_ctx_cnt: limits::ENDPOINTS as u64,
        rx_ctx_cnt: limits::ENDPOINTS as u64,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        cntr_cnt: limits::COUNTERS.into(),
        mr_iov_limit: limits::PIECES as u64,
        caps: DOMAIN_CAPS,
        max_err_data: ERROR_TEXT,
        mr_cnt: 1 << 32,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..DomainAttributes::default()
    }
}
