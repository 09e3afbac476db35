//! Warnings about configuration that this host cannot meet: interfaces, devices and partitions that it lacks.
//!
//! None of them is an error: what appears later is served then. But only here is a mistyped name noticed.

use std::path::Path;
use std::sync::Arc;

use super::config::ServiceConfig;
use crate::config::{ADDRESSES_FILE, AddressEntry, CarrierKind, Interfaces, OPTIONS_FILE, Warnings};
use crate::host::HostInventory;

/// Returns a warning for each setting that does not fit this host.
pub(super) fn check(config: &ServiceConfig, found: &HostInventory) -> Warnings {
    let mut warnings = Warnings::default();
    interfaces(config, found, &mut warnings);
    let file: Arc<Path> = config.folder.join(ADDRESSES_FILE).into();
    for entry in &config.entries {
        if let Some((what, remedy)) = unlike(entry, found) {
            warnings.push(&file, entry.line, what, remedy);
        }
    }
    warnings
}

/// Warns of interface names that this host does not have.
fn interfaces(config: &ServiceConfig, found: &HostInventory, warnings: &mut Warnings) {
    let Interfaces::Named(names) = &config.options.doorbell_interfaces else {
        return;
    };
    let file: Arc<Path> = if config.is_by_flag {
        Path::new("--nic").into()
    } else {
        config.folder.join(OPTIONS_FILE).into()
    };
    let has = |name: &String| {
        found.interfaces.contains(name) || found.endpoints.iter().any(|end| end.is_called(name))
    };
    for name in names.iter().filter(|name| !has(name)) {
        let name = name.escape_debug();
        let (what, remedy) = match config.options.doorbell_carrier {
            CarrierKind::Udp => (
                format!("this host has no interface \"{name}\""),
                "it is served once it appears; `ip -br link` lists the interfaces of this host",
            ),
            CarrierKind::Ud => (
                format!("this host has no interface and no RDMA device \"{name}\""),
                "it is served once it appears; `rdma link` and `ip -br link` list those of this host",
            ),
        };
        warnings.push(&file, 0, what, remedy);
    }
}

/// Returns why an entry matches no endpoint, with the remedy; `None` if it matches one.
fn unlike(entry: &AddressEntry, found: &HostInventory) -> Option<(String, &'static str)> {
    let of_device = || found.endpoints.iter().filter(|end| end.is_called(&entry.device));
    let of_port = || of_device().filter(|end| end.port == entry.port);
    let first = of_port().next().map(|end| end.pkey);
    let device = entry.device.escape_debug();
    let devices = "`ls /sys/class/infiniband /sys/class/net` lists the devices of this host";
    let Some(first) = first else {
        return Some(if of_device().next().is_some() {
            let what = format!("the device \"{device}\" has no active port {}", entry.port);
            (
                what,
                "ports are counted from 1, and an interface has only that one",
            )
        } else if found.interfaces.contains(&entry.device) {
            let what = format!("the interface \"{device}\" is down or has no address");
            (
                what,
                "see `ip addr`; the line takes effect once the interface is up and has an address",
            )
        } else {
            let what = format!("this host has no device \"{device}\"");
            (what, devices)
        });
    };
    let fits = of_port().any(|end| entry.pkey.is(end.pkey, first));
    (!fits).then(|| {
        let what = format!(
            "port {} of \"{device}\" is not in partition {}",
            entry.port, entry.pkey
        );
        (what, "write `default` for its first partition")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_addresses;
    use crate::host::{Sources, scan};

    fn said(config: &ServiceConfig) -> Vec<String> {
        let found = scan(&Sources::of_system(Vec::new())).unwrap();
        check(config, &found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_this_host_does_not_have_is_said_with_its_line() {
        let text = "a lo 1 default\n\nb nothere0 1 default\nc lo 2 default\nd lo 1 0x8001\ne lo 1 ffff\n";
        let entries = read_addresses(text.as_bytes(), "f".as_ref(), false, &mut Warnings::default());
        assert_eq!(entries.len(), 5);
        let config = ServiceConfig {
            entries,
            folder: "/etc/x".into(),
            ..ServiceConfig::default()
        };
        let said = said(&config);
        let begins = [
            "/etc/x/ibacm_addr.cfg:3: this host has no device \"nothere0\"",
            "/etc/x/ibacm_addr.cfg:4: the device \"lo\" has no active port 2",
            "/etc/x/ibacm_addr.cfg:5: port 1 of \"lo\" is not in partition 0x8001",
        ];
        assert_eq!(said.len(), begins.len(), "{said:?}");
        for (said, begin) in said.iter().zip(begins) {
            assert!(said.starts_with(begin), "{said}");
        }
    }

    #[test]
    fn interfaces_that_are_not_there_are_said_where_they_were_named() {
        let names = ["lo".to_owned(), "nothere0".to_owned()];
        let flagged = said(&ServiceConfig::default().with_interfaces(&names));
        assert_eq!(flagged.len(), 1, "{flagged:?}");
        assert!(
            flagged[0].starts_with("--nic: this host has no interface \"nothere0\""),
            "{flagged:?}"
        );
        let mut filed = ServiceConfig::default();
        filed.options.doorbell_interfaces = Interfaces::Named(names.to_vec());
        let filed = said(&filed);
        assert!(
            filed.len() == 1 && filed[0].starts_with("ibacm_opts.cfg: "),
            "{filed:?}"
        );
    }
}
