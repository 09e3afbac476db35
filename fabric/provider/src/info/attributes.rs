//! The attributes of an entry, flat and in numbers: read from hints, compared, and written into an answer.

use std::ffi::{CStr, CString, c_char, c_void};

use libfabric_sys::bits::{self, Word};
use libfabric_sys::*;

use super::offer::DOMAIN_CAPS;
use super::rules::{Judge, Rule};
use crate::domain::Domain;
use crate::ep::EndpointObject;
use crate::errno::{Errno, Result};
use crate::fabric::Fabric;
use crate::object::{Object, find};

/// The ways of making progress. Without a hint it is the client's calls.
const PROGRESS: &[u64] = &[
    FI_PROGRESS_AUTO as u64,
    FI_PROGRESS_MANUAL as u64,
    FI_PROGRESS_CONTROL_UNIFIED as u64,
];

/// Declares the fields: the part and its structure, and for each field how a hint of it is judged.
macro_rules! attributes {
    ($(
        $(#[$about:meta])*
        $part:ident: $Part:ident of $structure:ident at $pointer:ident {
            $($field:ident = $judge:expr;)*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub(crate) struct $Part { $(pub(crate) $field: u64,)* }

            impl $Part {
                /// Reads a structure as far as its caller's level has it; no structure is all zeros.
                ///
                /// # Safety
                /// `from` is null, or to a structure of a caller of this level.
                #[allow(clippy::multiple_unsafe_ops_per_block)] // of the macro that reads a field
                unsafe fn read(from: *const $structure, level: Level) -> Self {
                    let mut part = Self::default();
                    if from.is_null() {
                        return part;
                    }
                    $(
                        // SAFETY: not null, and read only if the caller's level has the field.
                        let value = unsafe { field_at!(from, $structure, $field, level) };
                        part.$field = value.map_or(0, |value| value as u64);
                    )*
                    part
                }

                /// Writes a structure, which is the largest that is known.
                ///
                /// # Safety
                /// `to` may be written.
                unsafe fn write(&self, to: *mut $structure) {
                    $(
                        // SAFETY: by the contract of this function.
                        unsafe { (*to).$field = self.$field as _ };
                    )*
                }
            }
        )*

        /// All attributes that are numbers.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct Attributes { $($(#[$about])* pub(crate) $part: $Part,)* }

        /// How each hint is judged, in the order of the fields.
        pub(crate) const RULES: &[Rule] = &[$($(Rule {
            hint: concat!(stringify!($pointer), ".", stringify!($field)),
            of: |attributes| attributes.$part.$field,
            #[cfg(test)]
            set: |attributes, value| attributes.$part.$field = value,
            judge: $judge,
        },)*)*];
    };
}

attributes! {
    /// Of the entry itself.
    info: Info of fi_info at info {
        caps = Judge::Bits(!0, CAPS);
        mode = Judge::Free;
        addr_format = Judge::OneOf(&crate::address::Format::NUMBERS);
    }
    /// Of the sending half.
    tx: Tx of fi_tx_attr at tx_attr {
        caps = Judge::Bits(!(RX_ONLY | DOMAIN_CAPS), CAPS);
        mode = Judge::Free;
        op_flags = Judge::Bits(!0, OP_FLAGS);
        msg_order = Judge::Bits(!0, ORDERS);
        comp_order = Judge::Bits(!0, ORDERS);
        inject_size = Judge::Most;
        size = Judge::Most;
        iov_limit = Judge::Most;
        rma_iov_limit = Judge::Most;
        tclass = Judge::Free;
    }
    /// Of the receiving half.
    rx: Rx of fi_rx_attr at rx_attr {
        caps = Judge::Bits(!(TX_ONLY | DOMAIN_CAPS), CAPS);
        mode = Judge::Free;
        op_flags = Judge::Bits(!0, OP_FLAGS);
        msg_order = Judge::Bits(!0, ORDERS);
        comp_order = Judge::Bits(!0, ORDERS);
        total_buffered_recv = Judge::Most;
        size = Judge::Most;
        iov_limit = Judge::Most;
    }
    /// Of the endpoint.
    ep: Ep of fi_ep_attr at ep_attr {
        r#type = Judge::OneOf(&[FI_EP_RDM as u64]);
        protocol = Judge::OneOf(&[super::offer::PROTOCOL as u64]);
        protocol_version = Judge::Most;
        max_msg_size = Judge::Most;
        msg_prefix_size = Judge::Free;
        max_order_raw_size = Judge::MostWith(FI_RMA | FI_ATOMIC);
        max_order_war_size = Judge::MostWith(FI_RMA | FI_ATOMIC);
        max_order_waw_size = Judge::MostWith(FI_RMA | FI_ATOMIC);
        mem_tag_format = Judge::Free;
        tx_ctx_cnt = Judge::Most;
        rx_ctx_cnt = Judge::Most;
        auth_key_size = Judge::Most;
    }
    /// Of the domain.
    domain: DomainAttributes of fi_domain_attr at domain_attr {
        threading = Judge::OneOf(&[
            FI_THREAD_SAFE as u64,
            FI_THREAD_FID as u64,
            FI_THREAD_ENDPOINT as u64,
            FI_THREAD_COMPLETION as u64,
            FI_THREAD_DOMAIN as u64,
        ]);
        control_progress = Judge::OneOf(PROGRESS);
        data_progress = Judge::OneOf(PROGRESS);
        resource_mgmt = Judge::OneOf(&[FI_RM_ENABLED as u64, FI_RM_DISABLED as u64]);
        av_type = Judge::OneOf(&[FI_AV_MAP as u64, FI_AV_TABLE as u64]);
        mr_mode = Judge::MrMode;
        mr_key_size = Judge::Most;
        cq_data_size = Judge::Most;
        cq_cnt = Judge::Most;
        ep_cnt = Judge::Most;
        tx_ctx_cnt = Judge::Most;
        rx_ctx_cnt = Judge::Most;
        max_ep_tx_ctx = Judge::Most;
        max_ep_rx_ctx = Judge::Most;
        max_ep_stx_ctx = Judge::Most;
        max_ep_srx_ctx = Judge::Most;
        cntr_cnt = Judge::Most;
        mr_iov_limit = Judge::Most;
        caps = Judge::Bits(!0, CAPS);
        mode = Judge::Free;
        auth_key_size = Judge::Most;
        max_err_data = Judge::Most;
        mr_cnt = Judge::Most;
        tclass = Judge::Free;
        max_ep_auth_key = Judge::Most;
        max_group_id = Judge::Most;
        max_cntr_value = Judge::Most;
        max_err_cntr_value = Judge::Most;
        max_xpu_ctx_cnt = Judge::Most;
    }
    /// Of the fabric.
    fabric: FabricAttributes of fi_fabric_attr at fabric_attr {
        prov_version = Judge::Most;
    }
}

/// Capabilities that only the receiving half has.
pub(crate) const RX_ONLY: u64 = FI_RECV
    | FI_DIRECTED_RECV
    | FI_TAGGED_DIRECTED_RECV
    | FI_EXACT_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RMA_EVENT;
/// Capabilities that only the sending half has.
pub(crate) const TX_ONLY: u64 = FI_SEND | FI_READ | FI_WRITE | FI_FENCE | FI_NAMED_RX_CTX;

macro_rules! names {
    ($($name:ident)*) => { &[$(($name, stringify!($name)),)*] };
}

/// The names of capabilities, for the log.
const CAPS: &[(u64, &str)] = names! {
    FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV FI_SEND FI_REMOTE_READ
    FI_REMOTE_WRITE FI_MULTI_RECV FI_TRIGGER FI_FENCE FI_AV_USER_ID FI_PEER FI_XPU FI_TAGGED_DIRECTED_RECV
    FI_TAGGED_MULTI_RECV FI_HMEM FI_EXACT_DIRECTED_RECV FI_RMA_PMEM FI_SOURCE_ERR FI_LOCAL_COMM FI_REMOTE_COMM
    FI_SHARED_AV FI_RMA_EVENT FI_SOURCE FI_NAMED_RX_CTX FI_DIRECTED_RECV
};

/// The names of flags of operations, for the log.
const OP_FLAGS: &[(u64, &str)] = names! {
    FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_MORE FI_FENCE FI_COMPLETION FI_INJECT FI_INJECT_COMPLETE FI_TRANSMIT_COMPLETE
    FI_DELIVERY_COMPLETE FI_AFFINITY FI_COMMIT_COMPLETE FI_MATCH_COMPLETE
};

/// The names of orders, for the log.
const ORDERS: &[(u64, &str)] = names! {
    FI_ORDER_RAR FI_ORDER_RAW FI_ORDER_RAS FI_ORDER_WAR FI_ORDER_WAW FI_ORDER_WAS FI_ORDER_SAR FI_ORDER_SAW
    FI_ORDER_SAS FI_ORDER_RMA_RAR FI_ORDER_RMA_RAW FI_ORDER_RMA_WAR FI_ORDER_RMA_WAW FI_ORDER_ATOMIC_RAR
    FI_ORDER_ATOMIC_RAW FI_ORDER_ATOMIC_WAR FI_ORDER_ATOMIC_WAW FI_ORDER_DATA
};

/// What a caller asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    /// The numbers; 0 stands for "any" in nearly all.
    pub(crate) attributes: Attributes,
    /// Capabilities that the caller's release had, and ours has not.
    pub(crate) foreign_caps: u64,
    pub(crate) fabric_name: Option<CString>,
    pub(crate) provider: Option<CString>,
    pub(crate) domain_name: Option<CString>,
    pub(crate) src_addr: Vec<u8>,
    pub(crate) dest_addr: Vec<u8>,
    /// Open objects that the answer is restricted to.
    pub(crate) handles: Handles,
    /// The first hint whose object is none of this provider's.
    pub(crate) foreign_object: Option<&'static str>,
    /// The open domain, if there is one: the answer is of its rails and modes.
    pub(crate) open: Option<OpenDomain>,
}

/// What an open domain cannot change any more.
#[derive(Clone, Debug)]
pub(crate) struct OpenDomain {
    /// Its rail set, which is its name.
    pub(crate) rails: CString,
    /// The modes of registration that it was opened with.
    pub(crate) modes: u64,
}

/// Open objects of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handles {
    handle: *mut fid,
    domain: *mut fid_domain,
    fabric: *mut fid_fabric,
}

impl Handles {
    /// Returns the first hint, as in C, whose object is none of this provider's: libfabric passes the same
    /// hints to all providers.
    ///
    /// # Safety
    /// Each is null or an open object of any provider.
    unsafe fn foreign(self) -> Option<&'static str> {
        // SAFETY: by the contract of this function.
        let handle = unsafe { is_foreign::<EndpointObject>(self.handle) };
        // SAFETY: as above.
        let domain = unsafe { is_foreign::<Domain>(self.domain.cast()) };
        // SAFETY: as above.
        let fabric = unsafe { is_foreign::<Fabric>(self.fabric.cast()) };
        let hints = [
            ("info.handle", handle),
            ("domain_attr.domain", domain),
            ("fabric_attr.fabric", fabric),
        ];
        hints
            .into_iter()
            .find_map(|(hint, is_foreign)| is_foreign.then_some(hint))
    }

    /// Returns what the domain is, if it is one of ours.
    ///
    /// # Safety
    /// The domain is null or an open object of any provider.
    unsafe fn open_domain(self) -> Option<OpenDomain> {
        // SAFETY: by the contract of this function; the reference ends here.
        let domain = unsafe { find::<Domain>(self.domain.cast()) }.ok()?;
        Some(OpenDomain {
            rails: domain.rails().to_owned(),
            modes: domain.registration_modes(),
        })
    }
}

/// Whether this is an object, and none of a type of ours.
///
/// # Safety
/// The pointer is null or to an open object of any provider.
unsafe fn is_foreign<T: Object>(object: *mut fid) -> bool {
    // SAFETY: by the contract of this function.
    !object.is_null() && unsafe { find::<T>(object) }.is_err()
}

impl Default for Handles {
    fn default() -> Self {
        Self {
            handle: std::ptr::null_mut(),
            domain: std::ptr::null_mut(),
            fabric: std::ptr::null_mut(),
        }
    }
}

impl Hints {
    /// Returns the name of the domain that the answer is to be of: that of the hints, or of the open one.
    pub(crate) fn domain(&self) -> Option<&CStr> {
        let open = self.open.as_ref().map(|open| open.rails.as_c_str());
        self.domain_name.as_deref().or(open)
    }

    /// Reads a caller's hints, as far as its level has them.
    ///
    /// # Safety
    /// `info` is null, or an entry of a caller of this level, with all that it points to.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address without its bytes.
    pub(crate) unsafe fn read(info: *const fi_info, level: Level) -> Result<Option<Self>> {
        if info.is_null() {
            return Ok(None);
        }
        // SAFETY: not null.
        let entry = unsafe { FirstFields::of(info) };
        // SAFETY: attributes of the caller, null or whole, here and below.
        let domain = unsafe { entry.domain() };
        // SAFETY: as above.
        let fabric = unsafe { entry.fabric() };
        let mut attributes = Attributes {
            // SAFETY: structures of a caller of this level, here and below.
            info: unsafe { Info::read(info, level) },
            // SAFETY: as above.
            tx: unsafe { Tx::read(entry.tx_attr, level) },
            // SAFETY: as above.
            rx: unsafe { Rx::read(entry.rx_attr, level) },
            // SAFETY: as above.
            ep: unsafe { Ep::read(entry.ep_attr, level) },
            // SAFETY: as above.
            domain: unsafe { DomainAttributes::read(entry.domain_attr, level) },
            // SAFETY: as above.
            fabric: unsafe { FabricAttributes::read(entry.fabric_attr, level) },
        };
        let foreign_caps = without_foreign(&mut attributes, level);
        let handles = Handles {
            handle: entry.handle,
            domain: domain.0,
            fabric: fabric.0,
        };
        // The number is signed in C.
        attributes.domain.mr_mode &= u64::from(u32::MAX);
        Ok(Some(Self {
            attributes,
            foreign_caps,
            // SAFETY: null, or texts of the caller, here and below.
            fabric_name: unsafe { text(fabric.1) },
            // SAFETY: as above.
            provider: unsafe { text(fabric.2) },
            // SAFETY: as above.
            domain_name: unsafe { text(domain.1) },
            // SAFETY: null, or as many bytes as the length, here and below.
            src_addr: unsafe { bytes(entry.src_addr, entry.src_addrlen) }?,
            // SAFETY: as above.
            dest_addr: unsafe { bytes(entry.dest_addr, entry.dest_addrlen) }?,
            handles,
            // SAFETY: null, or open objects of the caller.
            foreign_object: unsafe { handles.foreign() },
            // SAFETY: as above.
            open: unsafe { handles.open_domain() },
        }))
    }
}

/// The pointers of an entry, which all releases have.
#[derive(Clone, Copy)]
struct FirstFields {
    src_addrlen: usize,
    dest_addrlen: usize,
    src_addr: *mut c_void,
    dest_addr: *mut c_void,
    handle: *mut fid,
    tx_attr: *mut fi_tx_attr,
    rx_attr: *mut fi_rx_attr,
    ep_attr: *mut fi_ep_attr,
    domain_attr: *mut fi_domain_attr,
    fabric_attr: *mut fi_fabric_attr,
}

#[allow(clippy::multiple_unsafe_ops_per_block)] // one field after the other
impl FirstFields {
    /// # Safety
    /// `info` is an entry.
    unsafe fn of(info: *const fi_info) -> Self {
        // SAFETY: by the contract of this function.
        unsafe {
            Self {
                src_addrlen: (*info).src_addrlen,
                dest_addrlen: (*info).dest_addrlen,
                src_addr: (*info).src_addr,
                dest_addr: (*info).dest_addr,
                handle: (*info).handle,
                tx_attr: (*info).tx_attr,
                rx_attr: (*info).rx_attr,
                ep_attr: (*info).ep_attr,
                domain_attr: (*info).domain_attr,
                fabric_attr: (*info).fabric_attr,
            }
        }
    }

    /// Returns the open domain and its name.
    ///
    /// # Safety
    /// The attributes are null or whole.
    unsafe fn domain(self) -> (*mut fid_domain, *const c_char) {
        if self.domain_attr.is_null() {
            return (std::ptr::null_mut(), std::ptr::null());
        }
        // SAFETY: by the contract of this function.
        unsafe { ((*self.domain_attr).domain, (*self.domain_attr).name) }
    }

    /// Returns the open fabric, its name, and the provider's name.
    ///
    /// # Safety
    /// The attributes are null or whole.
    unsafe fn fabric(self) -> (*mut fid_fabric, *const c_char, *const c_char) {
        let attributes = self.fabric_attr;
        if attributes.is_null() {
            return (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        }
        // SAFETY: by the contract of this function.
        unsafe { ((*attributes).fabric, (*attributes).name, (*attributes).prov_name) }
    }
}

/// Takes the capabilities out that mean something else in the caller's release, and returns them.
fn without_foreign(attributes: &mut Attributes, level: Level) -> u64 {
    let mut foreign = 0;
    for word in [
        &mut attributes.info.caps,
        &mut attributes.tx.caps,
        &mut attributes.rx.caps,
        &mut attributes.domain.caps,
    ] {
        let read = bits::read(Word::Capabilities, *word, level);
        *word = read.known;
        foreign |= read.given_up | read.unknown;
    }
    foreign
}

/// Copies a text; null is none.
///
/// # Safety
/// `from` is null or a text.
unsafe fn text(from: *const c_char) -> Option<CString> {
    // SAFETY: not null, so a text that ends with a zero byte.
    (!from.is_null()).then(|| unsafe { CStr::from_ptr(from) }.to_owned())
}

/// Copies an address; null is none.
///
/// # Safety
/// `from` is null, or has `length` bytes.
unsafe fn bytes(from: *const c_void, length: usize) -> Result<Vec<u8>> {
    match (from.is_null(), length) {
        (true, 0) => Ok(Vec::new()),
        (true, _) => Err(Errno(FI_EINVAL)),
        // SAFETY: not null, so there are as many bytes.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec()),
    }
}

/// The structures of one entry, allocated by C's allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Structures {
    pub(crate) info: *mut fi_info,
    pub(crate) tx: *mut fi_tx_attr,
    pub(crate) rx: *mut fi_rx_attr,
    pub(crate) ep: *mut fi_ep_attr,
    pub(crate) domain: *mut fi_domain_attr,
    pub(crate) fabric: *mut fi_fabric_attr,
}

impl Attributes {
    /// Writes all numbers.
    ///
    /// # Safety
    /// The structures may be written.
    pub(crate) unsafe fn write(&self, to: &Structures) {
        // SAFETY: by the contract of this function, here and below.
        unsafe { self.info.write(to.info) };
        // SAFETY: as above.
        unsafe { self.tx.write(to.tx) };
        // SAFETY: as above.
        unsafe { self.rx.write(to.rx) };
        // SAFETY: as above.
        unsafe { self.ep.write(to.ep) };
        // SAFETY: as above.
        unsafe { self.domain.write(to.domain) };
        // SAFETY: as above.
        unsafe { self.fabric.write(to.fabric) };
    }
}

impl Handles {
    /// Writes the open objects.
    ///
    /// # Safety
    /// The structures may be written.
    pub(crate) unsafe fn write(&self, to: &Structures) {
        // SAFETY: by the contract of this function, here and below.
        unsafe { (*to.info).handle = self.handle };
        // SAFETY: as above.
        unsafe { (*to.domain).domain = self.domain };
        // SAFETY: as above.
        unsafe { (*to.fabric).fabric = self.fabric };
    }
}
