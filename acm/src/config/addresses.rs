//! `ibacm_addr.cfg`: the name of each port of each device, per partition.
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
use crate::address::{Address, Name, ScopedIp};

/// Maximum number of entries.
const ENTRIES_MAX: usize = 1 << 16;
/// Maximum bytes of a device's name.
const DEVICE_MAX: usize = 31;

/// The partition of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pkey {
    /// The first partition of the port.
    Default,
    /// The partition with this key.
    Is(u16),
}

impl Pkey {
    /// Whether it selects a partition; the full-membership bit of both keys is ignored.
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
    /// The address: a name, or an IP address if the options allow it.
    pub address: Address,
    /// The name of the device.
    pub device: String,
    /// The port number, from 1.
    pub port: u8,
    /// The partition of the address.
    pub pkey: Pkey,
    /// The line number, from 1; 0 if it was not read from a file.
    pub line: u32,
}

impl PartialEq for AddressEntry {
    /// The line number does not count.
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
        let what = format!("the line has {} of 4 fields and is ignored", words.len());
        return Err((what, "expected: address device port pkey"));
    };
    let address = match ScopedIp::read(address) {
        Ok(Some(ScopedIp { ip, zone })) if ips => {
            if zone.is_some_and(|zone| zone != *device) {
                let what = format!("{} names another interface than the line", shown(address));
                return Err((
                    what + " , and the line is ignored",
                    "write the address without the % and what follows",
                ));
            }
            ip.into()
        }
        Ok(Some(ScopedIp { ip, .. })) => {
            let what = format!("{ip} is an IP address, and the line is ignored");
            return Err((what, "use a name, or set support_ips_in_addr_cfg 1"));
        }
        Err(error) => {
            let what = format!(
                "{} is not an address ({error}), and the line is ignored",
                shown(address)
            );
            return Err((what, "expected the name of a host"));
        }
        // At the start of a line it would be a comment.
        Ok(None) if address.starts_with('#') => {
            let what = format!("{} is not an address, and the line is ignored", shown(address));
            return Err((what, "put the # at the start of the line to comment it out"));
        }
        Ok(None) => Address::Name(Name::new(address).map_err(|error| {
            let what = format!(
                "{} is not an address ({error}), and the line is ignored",
                shown(address)
            );
            (what, "expected the name of a host")
        })?),
    };
    if device.len() > DEVICE_MAX || device.contains('/') {
        let what = format!(
            "{} is not the name of a device, and the line is ignored",
            shown(device)
        );
        return Err((
            what,
            "`ls /sys/class/infiniband /sys/class/net` lists the devices of this host",
        ));
    }
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        let what = format!("{} is not a port, and the line is ignored", shown(port));
        (what, "expected a number from 1 to 255")
    })?;
    let pkey = if pkey.eq_ignore_ascii_case("default") {
        Pkey::Default
    } else {
        let number = hexadecimal(pkey).and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|number| number & 0x7fff != 0).ok_or_else(|| {
            let what = format!("{} is not a partition key, and the line is ignored", shown(pkey));
            (
                what,
                "expected default, or up to 4 hexadecimal digits other than 0 and 8000",
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

/// Parses `ibacm_addr.cfg`; with `ips`, it may contain IP addresses. Of duplicate lines for one port and
/// partition, the last one counts.
#[must_use]
pub fn read_addresses(text: &[u8], file: &Path, ips: bool, warnings: &mut Warnings) -> Vec<AddressEntry> {
    let (mut entries, file) = (Vec::new(), named(file));
    let mut known = std::collections::HashSet::new();
    let done = each_line(text, &file, warnings, |number, line, warnings| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match read_entry(&words, ips) {
            Err((what, remedy)) => warnings.push(&file, number, what, remedy),
            Ok(_) if entries.len() == ENTRIES_MAX => {
                let what = format!("the file has more than {ENTRIES_MAX} addresses, and the line is ignored");
                warnings.push(&file, number, what, "shorten the file");
            }
            Ok(entry) => {
                if let Some(more) = words.get(4) {
                    let what = format!("{} after the partition key is ignored", shown(more));
                    warnings.push(
                        &file,
                        number,
                        what,
                        "put a # at the start of a line to comment it out",
                    );
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
    debug_assert!(done.is_ok(), "reading memory cannot fail");
    entries
}

/// Formats the lines of `ibacm_addr.cfg`.
#[must_use]
pub fn write_addresses(entries: &[AddressEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        writeln!(text, "{entry}").expect("writing to a string cannot fail");
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
