//! The network card behind an entry: device, bus and link.
//!
//! Sources: `rdma/fabric.h`; fi_nic(3).

use std::ffi::{c_char, c_void};

use super::fabric::fid;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_bus_type = u32;
/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_link_state = u32;

unions! {
    /// Where a card is on its bus. fi_nic(3).
    pub union fi_bus_address = 6 {
        pci: fi_pci_attr;
    }
}

structures! {
    /// A network card. fi_nic(3).
    pub struct fid_nic = 56, since 1.7 {
        fid: fid = 0;
        device_attr: *mut fi_device_attr = 24;
        bus_attr: *mut fi_bus_attr = 32;
        link_attr: *mut fi_link_attr = 40;
        prov_attr: *mut c_void = 48;
    }

    /// The card's names and versions. fi_nic(3).
    pub struct fi_device_attr = 48, since 1.7 {
        name: *mut c_char = 0;
        device_id: *mut c_char = 8;
        device_version: *mut c_char = 16;
        vendor_id: *mut c_char = 24;
        driver: *mut c_char = 32;
        firmware: *mut c_char = 40;
    }

    /// Where the card is on the PCI bus. fi_nic(3).
    pub struct fi_pci_attr = 6, since 1.7 {
        domain_id: u16 = 0;
        bus_id: u8 = 2;
        device_id: u8 = 3;
        function_id: u8 = 4;
    }

    /// The bus that the card is on. fi_nic(3).
    pub struct fi_bus_attr = 12, since 1.7 {
        bus_type: fi_bus_type = 0;
        attr: fi_bus_address = 4;
    }

    /// The card's link. fi_nic(3).
    pub struct fi_link_attr = 40, since 1.7 {
        address: *mut c_char = 0;
        mtu: usize = 8;
        speed: usize = 16;
        state: fi_link_state = 24;
        network_type: *mut c_char = 32;
    }
}

constants! {
    fi_bus_type {
        FI_BUS_UNSPEC = 0;
        FI_BUS_UNKNOWN = 0;
        FI_BUS_PCI = 1;
    }
    fi_link_state {
        FI_LINK_UNKNOWN = 0;
        FI_LINK_DOWN = 1;
        FI_LINK_UP = 2;
    }
}
