//! Which endpoint has which name: as `ibacm_addr.cfg` says, or else the host's own names for the one that leads out of it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::address::{Address, Name};
use crate::config::AddressEntry;
use crate::endpoint::Endpoint;

/// Names that a host has, at most.
const NAMES_MAX: usize = 64;
/// Bytes that are read of a table of routes or of host names.
const FILE_MAX: u64 = 1 << 20;
/// `RTF_UP` and `RTF_REJECT` of a route.
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

/// Gives the entries' addresses to their endpoints; and those that are of none.
pub(super) fn by_entries(entries: &[AddressEntry], endpoints: &mut [Endpoint]) -> Vec<AddressEntry> {
    let mut unmatched = Vec::new();
    let mut given = vec![Vec::new(); endpoints.len()];
    for entry in entries {
        // The first partition of a port is the first endpoint of it.
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

/// Puts addresses before those that the endpoint has; none twice.
pub(super) fn put(end: &mut Endpoint, addresses: Vec<Address>) {
    let later = std::mem::take(&mut end.addresses);
    for address in addresses.into_iter().chain(later) {
        if !end.addresses.contains(&address) {
            end.addresses.push(address);
        }
    }
}

/// The host's own names: as the system has it, as the table of host names has it, and their first parts.
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

/// What the loopback is called everywhere.
pub(super) fn of_loopback() -> Vec<Address> {
    Name::new("localhost").map(Address::Name).into_iter().collect()
}

/// The interfaces of default routes: those of IPv4 first, and of each family those with the smallest metric.
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

/// The metric and the interface of a line of `route` that is a default route.
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

/// The same of `ipv6_route`.
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
