//! Hints for `fi_getinfo`, as a list of single wishes.

use std::ffi::{CStr, c_int};

use super::{CallError, InfoList, Library};
use crate::abi::av::fi_av_type;
use crate::abi::info::{fi_ep_type, fi_progress, fi_resource_mgmt, fi_threading};

/// One wish of a caller: a field of `fi_info` or of its attributes, and its value there.
///
/// Fields that are sets of bits are united where several hints are for the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The type of the endpoint.
    Endpoint(fi_ep_type),
    /// Capabilities, a set of `FI_MSG` and its kin.
    Caps(u64),
    /// What the caller is able to do for the provider: a set of `FI_CONTEXT` and its kin.
    Mode(u64),
    /// Orders of messages that are sent.
    SentOrder(u64),
    /// Orders of messages that are received.
    ReceivedOrder(u64),
    /// Flags of every operation that sends.
    SendFlags(u64),
    /// Flags of every operation that receives.
    ReceiveFlags(u64),
    /// The longest message that can be injected, in bytes.
    Inject(usize),
    /// Number of pieces of a message that is sent.
    SentPieces(usize),
    /// The threads that call.
    Threading(fi_threading),
    /// Progress of control operations.
    ControlProgress(fi_progress),
    /// Progress of data.
    DataProgress(fi_progress),
    /// Type of address vectors.
    AddressVector(fi_av_type),
    /// What the caller is able to do about registrations: a set of `FI_MR_*`.
    Registration(c_int),
    /// Size of a registration's key, in bytes.
    KeySize(usize),
    /// Whether the provider prevents overruns.
    Resources(fi_resource_mgmt),
    /// Bytes of immediate data in a completion.
    Immediate(usize),
}

impl Library {
    /// Makes hints of single wishes, and of a provider's name.
    ///
    /// # Errors
    /// `FI_ENOMEM` if there is no memory.
    pub fn hints_of(&self, provider: Option<&CStr>, wishes: &[Hint]) -> Result<InfoList, CallError> {
        let mut hints = self.hints()?;
        if let Some(name) = provider {
            set_provider(&mut hints, name);
            if hints
                .names()
                .first()
                .is_none_or(|names| names.provider.is_empty())
            {
                self.check("strdup", -crate::abi::errno::FI_ENOMEM)?;
            }
        }
        for wish in wishes {
            wish.write(&mut hints);
        }
        Ok(hints)
    }
}

/// Sets the provider's name in empty hints.
fn set_provider(hints: &mut InfoList, name: &CStr) {
    // SAFETY: the name ends with a zero byte.
    let copy = unsafe { libc::strdup(name.as_ptr()) };
    // SAFETY: hints are one entry with all its attributes.
    let fabric = unsafe { (*hints.as_mut_ptr()).fabric_attr };
    // SAFETY: as above; the name was null, and the library frees the copy with the entry.
    unsafe { (*fabric).prov_name = copy };
}

/// Writes a field of an entry's attribute.
macro_rules! set {
    ($info:ident . $attribute:ident . $field:ident = $value:expr) => {{
        // SAFETY: hints are one entry with all its attributes.
        let attribute = unsafe { (*$info).$attribute };
        // SAFETY: as above; every release has this field.
        unsafe { (*attribute).$field = $value };
    }};
    ($info:ident . $attribute:ident . $field:ident |= $value:expr) => {{
        // SAFETY: hints are one entry with all its attributes.
        let attribute = unsafe { (*$info).$attribute };
        // SAFETY: as above; every release has this field.
        unsafe { (*attribute).$field |= $value };
    }};
}

impl Hint {
    fn write(self, hints: &mut InfoList) {
        let info = hints.as_mut_ptr();
        match self {
            Self::Endpoint(value) => set!(info.ep_attr.r#type = value),
            // SAFETY: hints are one entry.
            Self::Caps(value) => unsafe { (*info).caps |= value },
            // SAFETY: hints are one entry.
            Self::Mode(value) => unsafe { (*info).mode |= value },
            Self::SentOrder(value) => set!(info.tx_attr.msg_order |= value),
            Self::ReceivedOrder(value) => set!(info.rx_attr.msg_order |= value),
            Self::SendFlags(value) => set!(info.tx_attr.op_flags |= value),
            Self::ReceiveFlags(value) => set!(info.rx_attr.op_flags |= value),
            Self::Inject(value) => set!(info.tx_attr.inject_size = value),
            Self::SentPieces(value) => set!(info.tx_attr.iov_limit = value),
            Self::Threading(value) => set!(info.domain_attr.threading = value),
            Self::ControlProgress(value) => set!(info.domain_attr.control_progress = value),
            Self::DataProgress(value) => set!(info.domain_attr.data_progress = value),
            Self::AddressVector(value) => set!(info.domain_attr.av_type = value),
            Self::Registration(value) => set!(info.domain_attr.mr_mode |= value),
            Self::KeySize(value) => set!(info.domain_attr.mr_key_size = value),
            Self::Resources(value) => set!(info.domain_attr.resource_mgmt = value),
            Self::Immediate(value) => set!(info.domain_attr.cq_data_size = value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::flags::{FI_MSG, FI_TAGGED};
    use crate::abi::info::{FI_EP_RDM, FI_THREAD_DOMAIN};

    #[test]
    fn hints_have_the_provider_s_name_and_each_wish_and_bits_are_united() {
        let Ok(library) = Library::open() else {
            return doorbell_testing::skipped(
                "hints_have_the_provider_s_name_and_each_wish_and_bits_are_united",
                "package libfabric1: no libfabric is installed",
            );
        };
        let wishes = [
            Hint::Endpoint(FI_EP_RDM),
            Hint::Caps(FI_MSG),
            Hint::Caps(FI_TAGGED),
            Hint::Threading(FI_THREAD_DOMAIN),
            Hint::Inject(16),
        ];
        let hints = library.hints_of(Some(c"made-up"), &wishes).unwrap();
        assert_eq!(hints.names()[0].provider, "made-up");
        let info = hints.as_ptr();
        // SAFETY: the hints live.
        let info = unsafe { &*info };
        // SAFETY: they have all attributes.
        let domain = unsafe { &*info.domain_attr };
        // SAFETY: as above.
        let tx = unsafe { &*info.tx_attr };
        assert_eq!(info.caps, FI_MSG | FI_TAGGED);
        assert_eq!((domain.threading, tx.inject_size), (FI_THREAD_DOMAIN, 16));
        // No provider has this name.
        let error = library
            .getinfo(library.level(), None, None, 0, Some(&hints))
            .unwrap_err();
        assert_eq!(error.number, crate::FI_ENODATA);
    }
}
