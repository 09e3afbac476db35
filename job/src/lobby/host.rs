//! The identity of a host: a boot of the kernel, and a network namespace of it. Two namespaces of one host
//! count as two hosts: neither abstract names nor sockets pass between them.

use doorbell_fabric::ni::NID_ANY;

use crate::meet::host_id;

/// Returns the name of this network namespace of this host.
pub(super) fn name() -> String {
    let space = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    format!("{} {}", host_id(), space.display())
}

/// Hashes a host's name to a nid: any of 32 bits but the wildcards.
pub(super) fn nid_of(name: &str) -> u32 {
    match hash(name) {
        hash @ (NID_ANY | u32::MAX) => hash - 1,
        hash => hash,
    }
}

/// Returns the number of this host in addresses: a hash of the boot in the upper half, of the boot and the
/// namespace in the lower one.
pub(super) fn number() -> u64 {
    number_of(&host_id(), &name())
}

fn number_of(boot: &str, name: &str) -> u64 {
    (u64::from(hash(boot)) << 32 | u64::from(hash(name))).max(1)
}

/// Whether two numbers are those of two namespaces of one host.
pub(super) fn is_same_boot(one: u64, other: u64) -> bool {
    one >> 32 == other >> 32
}

/// Returns the FNV-1a hash of a text.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn many_hosts_have_as_many_numbers() {
        let nids: HashSet<u32> = (0..4000)
            .map(|host| nid_of(&format!("node{host:04} net:[4026531840]")))
            .collect();
        assert_eq!(nids.len(), 4000);
        assert!(!nids.contains(&NID_ANY) && !nids.contains(&u32::MAX));
    }

    #[test]
    fn a_namespace_is_a_host_of_the_same_boot() {
        let of = |boot: &str, space: u32| number_of(boot, &format!("{boot} net:[{space}]"));
        assert_eq!(number(), number());
        assert_ne!(of("a", 1), of("a", 2));
        assert!(is_same_boot(of("a", 1), of("a", 2)));
        assert!(!is_same_boot(of("a", 1), of("b", 1)));
    }
}
