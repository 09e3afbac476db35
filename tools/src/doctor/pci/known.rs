//! Functions of PCI devices that a rail drives, or that such functions belong to: numbers are the truth,
//! names only words for people. (Intel 82576 and I350: the datasheets' sections on device IDs,
//! linux/drivers/net/ethernet/intel; Cisco VIC: the numbers of the enic and usNIC drivers.)

/// A kind of virtual function that a rail can drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) vendor: u16,
    pub(super) device: u16,
    pub(super) name: &'static str,
    /// Whether a rail drives it, and not its virtual functions.
    pub(super) is_virtual: bool,
    /// The kind of rail that drives it, or its virtual functions.
    pub(super) rail: &'static str,
    /// The kernel's own driver, which has to release it (virtual) or has to have it (physical).
    pub(super) kernel: &'static str,
}

const fn known(
    (vendor, device): (u16, u16),
    name: &'static str,
    is_virtual: bool,
    rail: &'static str,
    kernel: &'static str,
) -> Known {
    Known {
        vendor,
        device,
        name,
        is_virtual,
        rail,
        kernel,
    }
}

const INTEL: u16 = 0x8086;
const CISCO: u16 = 0x1137;
const VIRTUAL: bool = true;
const PHYSICAL: bool = false;

const ALL: &[Known] = &[
    known(
        (INTEL, 0x10ca),
        "Intel 82576 virtual function",
        VIRTUAL,
        "igbvf",
        "igbvf",
    ),
    known(
        (INTEL, 0x1520),
        "Intel I350 virtual function",
        VIRTUAL,
        "igbvf",
        "igbvf",
    ),
    known((INTEL, 0x10c9), "Intel 82576", PHYSICAL, "igbvf", "igb"),
    known((INTEL, 0x10e6), "Intel 82576 (fibre)", PHYSICAL, "igbvf", "igb"),
    known(
        (INTEL, 0x10e7),
        "Intel 82576 (backplane)",
        PHYSICAL,
        "igbvf",
        "igb",
    ),
    known(
        (INTEL, 0x1526),
        "Intel 82576 (four ports)",
        PHYSICAL,
        "igbvf",
        "igb",
    ),
    known((INTEL, 0x1521), "Intel I350", PHYSICAL, "igbvf", "igb"),
    known(
        (CISCO, 0x00cf),
        "Cisco VIC userspace NIC (usNIC)",
        VIRTUAL,
        "usnic",
        "usnic_verbs",
    ),
    known(
        (CISCO, 0x0071),
        "Cisco VIC SR-IOV virtual function",
        VIRTUAL,
        "usnic",
        "enic",
    ),
    known(
        (CISCO, 0x0043),
        "Cisco VIC Ethernet NIC",
        PHYSICAL,
        "usnic",
        "enic",
    ),
    known(
        (CISCO, 0x0044),
        "Cisco VIC dynamic Ethernet NIC",
        PHYSICAL,
        "usnic",
        "enic",
    ),
];

/// The function with these numbers, where it is known.
pub(super) fn find(vendor: u16, device: u16) -> Option<&'static Known> {
    ALL.iter()
        .find(|one| (one.vendor, one.device) == (vendor, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_listed_twice() {
        for (at, one) in ALL.iter().enumerate() {
            assert!(
                ALL[..at]
                    .iter()
                    .all(|other| (other.vendor, other.device) != (one.vendor, one.device)),
                "{one:?}"
            );
        }
        assert_eq!(find(0x8086, 0x10ca).map(|one| one.rail), Some("igbvf"));
        assert!(find(0x8086, 0xffff).is_none());
    }
}
