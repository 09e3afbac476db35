//! The names of endpoints: from `ibacm_addr.cfg`, or else the host's own names for the endpoint of the
//! default route.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::address::{Address, Name};
use crate::config::AddressEntry;
use crate::endpoint::Endpoint;

/// Maximum number of names of a host.
const NAMES_MAX: usize = 64;
/// Maximum bytes read of a routing table or of a file of host names.
const FILE_MAX: u64 = 1 << 20;
/// The flags `RTF_UP` and `RTF_REJECT` of a route.
const UP: u32 = 1;
const REJECT: u32 = 0x200;

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let done = File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    done.map_or_else(
        |_| String::new(),
        |_| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// Adds the addresses of entries to their endpoints; returns the entries that match none.
pub(super) fn by_entries(entries: &[AddressEntry], endpoints: &mut [Endpoint]) -> Vec<AddressEntry> {
    let mut unmatched = Vec::new();
    let mut given = vec![Vec::new(); endpoints.len()];
    for entry in entries {
        // The first partition of a port is its first endpoint.
        let of_port = |end: &&Endpoint| end.is_called(&entry.device) && end.port == entry.port;
        let first = endpoints.iter().find(of_port).map_or(0, |end| end.pkey);
        let at = endpoints
            .iter()
            .position(|end| of_port(&end) && entry.pkey.is(end.pkey, first));
        match at {
            Some(at) => given[at].push(entry.address.clone()),
            None => unmatched.push(entry.clone()),
        }
    }
    for (end, addresses) in endpoints.iter_mut().zip(given) {
        put(end, addresses);
    }
    unmatched
}

/// Inserts addresses before those that the endpoint has, without duplicates.
pub(super) fn put(end: &mut Endpoint, addresses: Vec<Address>) {
    let later = std::mem::take(&mut end.addresses);
    for address in addresses.into_iter().chain(later) {
        if !end.addresses.contains(&address) {
            end.addresses.push(address);
        }
    }
}

/// Returns the host's own names: the system's, those of the file of host names, and their first labels.
pub(super) fn of_host(own: &str, hosts: &Path) -> Vec<Address> {
    let mut texts = vec![own.to_owned()];
    for line in read(hosts).lines() {
        let line = line.split('#').next().unwrap_or_default();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        if names.iter().any(|name| name.eq_ignore_ascii_case(own)) {
            texts.extend(
                names
                    .into_iter()
                    .filter(|name| !is_loopback(name))
                    .map(str::to_owned),
            );
        }
    }
    let short: Vec<String> = texts
        .iter()
        .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
        .collect();
    texts.extend(short);
    let mut names = Vec::new();
    for name in texts
        .iter()
        .take(NAMES_MAX)
        .filter_map(|text| Name::new(text).ok())
    {
        if !names.contains(&Address::Name(name.clone())) {
            names.push(Address::Name(name));
        }
    }
    names
}

fn is_loopback(name: &str) -> bool {
    name.to_ascii_lowercase().starts_with("localhost")
}

/// Returns the usual names of the loopback.
pub(super) fn of_loopback() -> Vec<Address> {
    Name::new("localhost").map(Address::Name).into_iter().collect()
}

/// Returns the interfaces of default routes: IPv4 first, and in each family by metric.
pub(super) fn default_interfaces(net: &Path) -> Vec<String> {
    let mut four: Vec<_> = read(&net.join("route")).lines().filter_map(route_4).collect();
    let mut six: Vec<_> = read(&net.join("ipv6_route"))
        .lines()
        .filter_map(route_6)
        .collect();
    four.sort();
    six.sort();
    four.into_iter().chain(six).map(|(_, name)| name).collect()
}

/// Returns metric and interface of a line of `route` that is a default route.
fn route_4(line: &str) -> Option<(u32, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, to, _, flags, _, _, metric, mask, ..] = words[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let usable = flags & UP != 0 && flags & REJECT == 0;
    let any = to == "00000000" && mask == "00000000" && usable;
    any.then_some((metric.parse().ok()?, name.to_owned()))
}

/// Returns metric and interface of a line of `ipv6_route` that is a default route.
fn route_6(line: &str) -> Option<(u32, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [to, bits, _, _, _, metric, _, _, flags, name] = words[..] else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let usable = flags & UP != 0 && flags & REJECT == 0;
    let any = bits == "00" && to.bytes().all(|byte| byte == b'0') && usable;
    any.then_some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_host_has_the_names_of_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hosts");
        let text = "127.0.0.1 localhost\n127.0.1.1 node1.cluster NODE1 login # mine\n10.0.0.2 node2\n";
        fs::write(&hosts, text).unwrap();
        let names: Vec<String> = of_host("node1", &hosts).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["node1", "node1.cluster", "login"]);
        let names: Vec<String> = of_host("x.y.z", &hosts).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["x.y.z", "x"]);
        assert!(of_host("", &folder.path().join("no")).is_empty());
    }

    #[test]
    fn default_routes_are_found_in_both_families() {
        let folder = tempfile::tempdir().unwrap();
        let four = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                    eth1 00000000 0100000A 0003 0 0 200 00000000 0 0 0\n\
                    eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n\
                    eth2 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        fs::write(folder.path().join("route"), four).unwrap();
        let zero = "0".repeat(32);
        let six = format!(
            "{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 eth3\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        fs::write(folder.path().join("ipv6_route"), six).unwrap();
        assert_eq!(default_interfaces(folder.path()), ["eth0", "eth1", "eth3"]);
        assert!(default_interfaces(&folder.path().join("no")).is_empty());
    }
}
