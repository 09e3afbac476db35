//! Discovery shared by rails over interfaces: one candidate for each interface, and one for each address that
//! is named.

use std::net::IpAddr;

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;

use crate::interface::looks_like_address;
use crate::nics::{assigned, own_name};

/// Lists the names of rails of this kind, one for each interface of this network namespace.
///
/// # Errors
/// When the interfaces cannot be listed.
pub fn rails(kind: &str) -> Result<Vec<RailName>, RailError> {
    let all = assigned().map_err(|source| RailError::System {
        rail: kind.to_owned(),
        step: "list the interfaces",
        source,
        remedy: "check that the container allows netlink sockets",
    })?;
    let mut names: Vec<&str> = Vec::new();
    for one in &all {
        if !names.contains(&one.interface.as_str()) {
            names.push(&one.interface);
        }
    }
    // An interface with a name that no rail may have is reached by its address.
    let rails = names
        .iter()
        .filter_map(|name| format!("{kind}:{name}").parse().ok());
    Ok(rails.collect())
}

/// Whether a rail is named by an address, valid or not.
pub fn is_by_address(name: &RailName) -> bool {
    let object = name.object();
    let bare = object.split_once('%').map_or(object, |(bare, _)| bare);
    bare.parse::<IpAddr>().is_ok() || looks_like_address(object)
}

/// Whether a rail is named by something else than an interface's own name: an address, an address label
/// (`v0:1`), or an alternative name.
pub fn is_other_name(name: &RailName) -> bool {
    let is_known = |object: &str| {
        let all = assigned().unwrap_or_default();
        own_name(&all, object).is_some_and(|own| own != object)
            || all.iter().any(|one| one.label.as_deref() == Some(object))
    };
    is_by_address(name) || is_known(name.object())
}

/// Converts an error to a rejected candidate.
pub fn rejected(name: RailName, error: RailError) -> Candidate {
    match error {
        RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. } => {
            Candidate::rejected(name, reason, remedy)
        }
        error => Candidate::rejected(name, error.to_string(), error.help().next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_interface_is_a_rail_and_addresses_differ_from_names() {
        let lo: RailName = "udp:lo".parse().unwrap();
        let all = rails("udp").unwrap();
        assert_eq!(all.iter().filter(|name| **name == lo).count(), 1);
        for (text, is) in [
            ("udp:lo", false),
            ("udp:10.0.0.1", true),
            ("udp:fe80::1%eth0", true),
            ("udp:1.2.3", true),
            ("udp:eth0.5", false),
        ] {
            assert_eq!(is_by_address(&text.parse().unwrap()), is, "{text}");
        }
        assert!(!is_other_name(&lo), "its own name");
        assert!(is_other_name(&"udp:127.0.0.1".parse().unwrap()));
        assert!(!is_other_name(&"udp:nosuch0".parse().unwrap()));
    }
}
