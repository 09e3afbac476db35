//! The address of a PCI function: domain, bus, device, function, as the kernel writes it (`0000:01:10.0`).

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The address of a PCI function.
///
/// Written with the domain by the kernel, and mostly without by people; the domain is 0 then. Domains above
/// `ffff` (bridges of Intel's VMD make them) have more digits.
///
/// ```
/// use doorbell_vfio::Bdf;
/// let bdf: Bdf = "01:10.0".parse()?;
/// assert_eq!(bdf.to_string(), "0000:01:10.0");
/// assert!("01:20.0".parse::<Bdf>().is_err(), "a bus has 32 devices");
/// # Ok::<(), doorbell_vfio::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bdf {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Bdf {
    /// The address with these parts; `None` where a bus has no such device (0 to 31), or a device no such
    /// function (0 to 7).
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<Self> {
        if device > 31 || function > 7 {
            return None;
        }
        Some(Self {
            domain,
            bus,
            device,
            function,
        })
    }

    /// The domain, which some call segment.
    pub const fn domain(self) -> u32 {
        self.domain
    }

    /// The bus number.
    pub const fn bus(self) -> u8 {
        self.bus
    }

    /// The device on the bus, at most 31.
    pub const fn device(self) -> u8 {
        self.device
    }

    /// The function of the device, at most 7.
    pub const fn function(self) -> u8 {
        self.function
    }

    fn parse(text: &str) -> Option<Self> {
        let (rest, function) = text.split_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
        // A domain of more than four digits has no leading zero.
        let is_padded = domain.len() > 4 && domain.starts_with('0');
        if is_padded {
            return None;
        }
        Self::new(
            hexadecimal(domain, 4..=8)?,
            hexadecimal(bus, 2..=2)?.try_into().ok()?,
            hexadecimal(device, 2..=2)?.try_into().ok()?,
            hexadecimal(function, 1..=1)?.try_into().ok()?,
        )
    }
}

fn hexadecimal(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Bdf {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).ok_or_else(|| Error::BadAddress {
            given: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_are_one_address() {
        let address = Bdf::new(0, 1, 0x10, 0).unwrap();
        assert_eq!("0000:01:10.0".parse::<Bdf>().unwrap(), address);
        assert_eq!("01:10.0".parse::<Bdf>().unwrap(), address);
        assert_eq!("0000:AF:1f.7".parse::<Bdf>().unwrap().to_string(), "0000:af:1f.7");
        assert_eq!("10000:e1:00.0".parse::<Bdf>().unwrap().domain(), 0x10000);
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "",
            "01",
            "01:10",
            "1:10.0",
            "01:1.0",
            "01:10.8",
            "01:20.0",
            "01:10.00",
            "000:01:10.0",
            "00000:01:10.0",
            "0000:01:10.0 ",
            " 01:10.0",
            "0000-01-10.0",
            "+1:10.0",
            "0000:01:10.0.0",
            "0:0000:01:10.0",
            "01:10.g",
            "123456789:01:10.0",
            ":01:10.0",
            "../1:10.0",
        ] {
            let error = bad.parse::<Bdf>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = Bdf::new(domain, bus, device, function).unwrap();
            prop_assert_eq!(address.to_string().parse::<Bdf>().unwrap(), address);
        }

        #[test]
        fn what_is_read_is_printed_alike(text in "[0-9a-fA-F]{2,9}:[0-9a-f]{1,3}:[0-9a-f]{1,3}\\.[0-9a-f]{1,2}") {
            if let Ok(address) = text.parse::<Bdf>() {
                prop_assert_eq!(address.to_string(), text.to_lowercase());
            }
        }
    }
}
