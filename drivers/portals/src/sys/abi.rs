//! The numbers of the binding that the contract does not name (reference: portals, sections 2 and 13).

use std::ffi::c_uint;

/// No event queue, no counting event, any interface.
pub(crate) const EQ_NONE: u32 = 0x3fff_ffff;
pub(crate) const CT_NONE: u32 = 0x5fff_ffff;
pub(crate) const IFACE_DEFAULT: u32 = u32::MAX;

/// Options of NIInit.
pub(crate) const NI_MATCHING: c_uint = 1;
pub(crate) const NI_NO_MATCHING: c_uint = 2;
pub(crate) const NI_LOGICAL: c_uint = 4;
pub(crate) const NI_PHYSICAL: c_uint = 8;
