//! Preloaded addresses: a file of lines `address GID`.

use std::io::{self, BufRead};
use std::path::Path;

use super::lines::{Warnings, each_line, named, shown};
use crate::address::{Address, Gid, Name, ScopedIp};

/// Maximum number of entries.
const ENTRIES_MAX: usize = 1 << 20;

/// An address, and the GID of the port that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    /// A name or an IP address.
    pub address: Address,
    /// The GID of the port.
    pub gid: Gid,
}

/// Parses a line; returns the entry, and the interface that follows the address.
fn read_entry(line: &str) -> Result<(HostEntry, Option<String>), (String, &'static str)> {
    let mut words = line.split_whitespace();
    let (Some(address), Some(gid)) = (words.next(), words.next()) else {
        return Err((
            "the line has no GID and is ignored".to_owned(),
            "expected: address GID",
        ));
    };
    let (address, zone) = match ScopedIp::read(address) {
        Ok(Some(ScopedIp { ip, zone })) => (Address::from(ip), zone),
        // At the start of a line it would be a comment.
        Ok(None) if address.starts_with('#') => {
            let what = format!("{} is not an address, and the line is ignored", shown(address));
            return Err((what, "put the # at the start of the line to comment it out"));
        }
        other => {
            let unfit = |error: &dyn std::fmt::Display| {
                let what = format!(
                    "{} is not an address ({error}), and the line is ignored",
                    shown(address)
                );
                (what, "expected a name or an IP address")
            };
            other.map_err(|error| unfit(&error))?;
            let name = Name::new(address).map_err(|error| unfit(&error))?;
            (Address::Name(name), None)
        }
    };
    let number = gid
        .parse::<Gid>()
        .ok()
        .filter(|gid| !gid.is_none() && gid.0[0] != 0xff);
    let gid = number.ok_or_else(|| {
        let what = format!("{} is not the GID of a port, and the line is ignored", shown(gid));
        (what, "expected 16 bytes in the notation of an IPv6 address")
    })?;
    Ok((HostEntry { address, gid }, zone))
}

/// Parses all lines of `address GID`. Later lines override earlier ones.
///
/// # Errors
/// When reading fails.
pub fn read_hosts(from: impl BufRead, file: &Path, warnings: &mut Warnings) -> io::Result<Vec<HostEntry>> {
    let (mut entries, file) = (Vec::<HostEntry>::new(), named(file));
    let mut places = std::collections::HashMap::new();
    each_line(from, &file, warnings, |number, line, warnings| {
        match read_entry(line) {
            Err((what, remedy)) => warnings.push(&file, number, what, remedy),
            Ok((_, Some(zone))) => {
                let what = format!(
                    "an entry applies to all interfaces, not to {} alone, and the line is ignored",
                    shown(&zone)
                );
                warnings.push(
                    &file,
                    number,
                    what,
                    "write the address without the % and what follows",
                );
            }
            Ok((entry, None)) => match places.get(&entry.address) {
                Some(&at) => entries[at] = entry,
                None if entries.len() == ENTRIES_MAX => {
                    let what =
                        format!("the file has more than {ENTRIES_MAX} addresses, and the line is ignored");
                    warnings.push(&file, number, what, "shorten the file");
                }
                None => {
                    places.insert(entry.address.clone(), entries.len());
                    entries.push(entry);
                }
            },
        }
    })?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ips_have_gids_and_later_lines_win() {
        let text = "# of a cluster\nnode1 fe80::1\n10.0.0.1 fe80::1\nfd00::1 fe80::1 extra\nNODE1 fe80::2\n";
        let mut warnings = Warnings::default();
        let entries = read_hosts(text.as_bytes(), Path::new("hosts"), &mut warnings).unwrap();
        assert!(warnings.is_empty());
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].gid.to_string(), "fe80::2");
        assert_eq!(entries[1].address, Address::V4([10, 0, 0, 1].into()));
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_said() {
        let text = "node1\nnode1 10.0.0.1\nnode1 ::\nnode1 ff15::1\nno,de fe80::1\nnode2 fe80::2\nfe80::3%eth0 fe80::3\n1.1.1.1%lo ::9\n";
        let mut warnings = Warnings::default();
        let entries = read_hosts(text.as_bytes(), Path::new("hosts"), &mut warnings).unwrap();
        let lines: Vec<u32> = warnings.iter().map(|warning| warning.line).collect();
        assert_eq!((entries.len(), lines), (1, vec![1, 2, 3, 4, 5, 7, 8]));
    }
}
