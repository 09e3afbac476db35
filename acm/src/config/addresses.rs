//! `ibacm_addr.cfg`: which name belongs to which port of which device, in which partition.
//!
//! ```text
//!   # address  device  port  pkey
//!   node1      mlx5_0  1     default
//!   node1-b    mlx5_0  1     0x8001
//! ```

use std::fmt::{self, Write as _};
use std::path::Path;

use super::lines::{Warnings, each_line, named, shown};
use super::values::hexadecimal;
use crate::address::{Address, Name, Zoned};

/// Entries that are taken, at most.
const ENTRIES_MAX: usize = 1 << 16;
/// Bytes of a device's name, at most.
const DEVICE_MAX: usize = 31;

/// The partition of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pkey {
    /// The first one of the port.
    Default,
    /// This one.
    Is(u16),
}

impl Pkey {
    /// Whether it means a partition, as told by both keys without the bit of full members.
    ///
    /// ```
    /// use doorbell_acm::config::Pkey;
    /// assert!(Pkey::Is(0x8001).is(1, 0xffff) && !Pkey::Is(0x8001).is(0xffff, 0xffff));
    /// assert!(Pkey::Default.is(0xffff, 0xffff));
    /// ```
    #[must_use]
    pub const fn is(self, pkey: u16, first: u16) -> bool {
        let own = match self {
            Self::Default => first,
            Self::Is(own) => own,
        };
        (own ^ pkey) & 0x7fff == 0
    }
}

impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Is(pkey) => write!(f, "{pkey:#06x}"),
        }
    }
}

/// A line of the file.
#[derive(Clone, Debug, Eq)]
pub struct AddressEntry {
    /// The address: a name, or an IP address where the options allow it.
    pub address: Address,
    /// The device.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// The partition.
    pub pkey: Pkey,
    /// Where it stands, from 1; 0 where it was not read.
    pub line: u32,
}

impl PartialEq for AddressEntry {
    /// Where it stands is no part of what it says.
    fn eq(&self, other: &Self) -> bool {
        (&self.address, &self.device, self.port, self.pkey)
            == (&other.address, &other.device, other.port, other.pkey)
    }
}

impl fmt::Display for AddressEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.address, self.device, self.port, self.pkey)
    }
}

fn read_entry(words: &[&str], ips: bool) -> Result<AddressEntry, (String, &'static str)> {
    let [address, device, port, pkey, ..] = words else {
        let what = format!("there are {} of 4 fields and the line is left out", words.len());
        return Err((what, "it takes: address device port pkey"));
    };
    let address = match Zoned::read(address) {
        Ok(Some(Zoned { ip, zone })) if ips => {
            if zone.is_some_and(|zone| zone != *device) {
                let what = format!("{} is of another interface than the line", shown(address));
                return Err((
                    what + " and the line is left out",
                    "write the address without its %",
                ));
            }
            ip.into()
        }
        Ok(Some(Zoned { ip, .. })) => {
            let what = format!("{ip} is an IP address and the line is left out");
            return Err((what, "it takes a name, or the option support_ips_in_addr_cfg 1"));
        }
        Err(error) => {
            let what = format!(
                "{} is no address ({error}) and the line is left out",
                shown(address)
            );
            return Err((what, "it takes the name of a host"));
        }
        // It would be read as a comment where it begins a line.
        Ok(None) if address.starts_with('#') => {
            let what = format!("{} is no address and the line is left out", shown(address));
            return Err((what, "begin the line itself with # to comment it"));
        }
        Ok(None) => Address::Name(Name::new(address).map_err(|error| {
            let what = format!(
                "{} is no address ({error}) and the line is left out",
                shown(address)
            );
            (what, "it takes the name of a host")
        })?),
    };
    if device.len() > DEVICE_MAX || device.contains('/') {
        let what = format!(
            "{} is no name of a device and the line is left out",
            shown(device)
        );
        return Err((
            what,
            "`ls /sys/class/infiniband /sys/class/net` shows those that there are",
        ));
    }
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        let what = format!("{} is no port and the line is left out", shown(port));
        (what, "it takes a number from 1 to 255")
    })?;
    let pkey = if pkey.eq_ignore_ascii_case("default") {
        Pkey::Default
    } else {
        let number = hexadecimal(pkey).and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|number| number & 0x7fff != 0).ok_or_else(|| {
            let what = format!("{} is no partition key and the line is left out", shown(pkey));
            (
                what,
                "it takes default, or up to 4 hexadecimal digits that are not 0 or 8000",
            )
        })?;
        Pkey::Is(number)
    };
    Ok(AddressEntry {
        address,
        device: (*device).to_owned(),
        port,
        pkey,
        line: 0,
    })
}

/// Reads `ibacm_addr.cfg`; `ips`: with IP addresses, too. Where the same address stands twice for one port and partition,
/// the later line counts.
#[must_use]
pub fn read_addresses(text: &[u8], file: &Path, ips: bool, warnings: &mut Warnings) -> Vec<AddressEntry> {
    let (mut entries, file) = (Vec::new(), named(file));
    let mut known = std::collections::HashSet::new();
    let done = each_line(text, &file, warnings, |number, line, warnings| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match read_entry(&words, ips) {
            Err((what, remedy)) => warnings.push(&file, number, what, remedy),
            Ok(_) if entries.len() == ENTRIES_MAX => {
                let what = format!("there are more than {ENTRIES_MAX} addresses and the line is left out");
                warnings.push(&file, number, what, "shorten the file");
            }
            Ok(entry) => {
                if let Some(more) = words.get(4) {
                    let what = format!("{} behind the partition key is not read", shown(more));
                    warnings.push(&file, number, what, "begin a line with # to comment it");
                }
                if known.insert(entry.to_string().to_ascii_lowercase()) {
                    entries.push(AddressEntry {
                        line: number,
                        ..entry
                    });
                }
            }
        }
    });
    debug_assert!(done.is_ok(), "memory can be read");
    entries
}

/// Writes the lines of `ibacm_addr.cfg`.
#[must_use]
pub fn write_addresses(entries: &[AddressEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        writeln!(text, "{entry}").expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, ips: bool) -> (Vec<AddressEntry>, Vec<u32>) {
        let mut warnings = Warnings::default();
        let entries = read_addresses(text.as_bytes(), Path::new("addr"), ips, &mut warnings);
        (entries, warnings.iter().map(|warning| warning.line).collect())
    }

    #[test]
    fn an_address_of_a_link_may_name_the_interface_of_its_line() {
        let text = "fe80::1%eth0 eth0 1 default\nfe80::2%eth1 eth0 1 default\n10.0.0.1%eth0 eth0 1 default\n";
        let (entries, said) = read(text, true);
        assert_eq!((entries.len(), said), (1, vec![2, 3]));
        assert_eq!(entries[0].address, Address::V6("fe80::1".parse().unwrap()));
        assert_eq!(read("fe80::1%eth0 eth0 1 default\n", false).1, [1]);
    }

    #[test]
    fn lines_are_read_and_written_as_they_are() {
        let text = "node1 mlx5_0 1 default\nnode1-b mlx5_0 2 0x8001\n";
        let (entries, said) = read(text, false);
        assert_eq!((entries.len(), said.len()), (2, 0));
        assert_eq!(entries[1].pkey, Pkey::Is(0x8001));
        assert_eq!((entries[0].line, entries[1].line), (1, 2));
        assert_eq!(write_addresses(&entries), text);
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_said() {
        let text = "node1 mlx5_0 1\n10.0.0.1 eth0 1 default\nn eth0 0 default\nn eth0 1 0x18000\nn eth0 1 8000\n\
                    n ../x 1 default\na,b eth0 1 default\nn eth0 1 ffff # mine\n";
        let (entries, said) = read(text, false);
        assert_eq!(said, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(entries.len(), 1);
        let (entries, said) = read("10.0.0.1 eth0 1 default\nfd00::1 eth0 1 default\n", true);
        assert_eq!((entries.len(), said.len()), (2, 0));
    }

    #[test]
    fn a_comment_begins_with_its_line() {
        let (entries, said) = read(" # eth0 1 default\n", false);
        assert_eq!((entries.len(), said.len()), (0, 1));
    }

    #[test]
    fn the_same_line_twice_counts_once() {
        let (entries, said) = read("n eth0 1 0xffff\nN eth0 1 ffff\n", false);
        assert_eq!((entries.len(), said.len()), (1, 0));
    }
}
