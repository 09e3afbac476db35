//! What is written, and does not fit what this host has: interfaces, devices and partitions that are not there.
//!
//! None of it is an error: what comes later is served later. But a name that was mistyped is found out here, and nowhere else.

use std::path::Path;
use std::sync::Arc;

use super::config::Written;
use crate::config::{ADDRESSES_FILE, AddressEntry, Interfaces, OPTIONS_FILE, Warnings};
use crate::host::Found;

/// What of it does not fit this host.
pub(super) fn misfits(written: &Written, found: &Found) -> Warnings {
    let mut warnings = Warnings::default();
    interfaces(written, found, &mut warnings);
    let file: Arc<Path> = written.folder.join(ADDRESSES_FILE).into();
    for entry in &written.entries {
        if let Some((what, remedy)) = unlike(entry, found) {
            warnings.push(&file, entry.line, what, remedy);
        }
    }
    warnings
}

/// Names of interfaces that are none of this host's.
fn interfaces(written: &Written, found: &Found, warnings: &mut Warnings) {
    let Interfaces::Named(names) = &written.options.doorbell_interfaces else {
        return;
    };
    let file: Arc<Path> = if written.is_by_flag {
        Path::new("--nic").into()
    } else {
        written.folder.join(OPTIONS_FILE).into()
    };
    let has = |name: &String| {
        found.interfaces.contains(name) || found.endpoints.iter().any(|end| end.is_called(name))
    };
    for name in names.iter().filter(|name| !has(name)) {
        let what = format!("this host has no interface \"{}\" now", name.escape_debug());
        let remedy = "it is served when it comes; `ip -br link` lists those that there are";
        warnings.push(&file, 0, what, remedy);
    }
}

/// Why an entry is of no endpoint, if it is of none.
fn unlike(entry: &AddressEntry, found: &Found) -> Option<(String, &'static str)> {
    let of_device = || found.endpoints.iter().filter(|end| end.is_called(&entry.device));
    let of_port = || of_device().filter(|end| end.port == entry.port);
    let first = of_port().next().map(|end| end.pkey);
    let device = entry.device.escape_debug();
    let devices = "`ls /sys/class/infiniband /sys/class/net` shows those that there are";
    let Some(first) = first else {
        return Some(if of_device().next().is_some() {
            let what = format!("the device \"{device}\" has no port {} that is up", entry.port);
            (what, "the first one is 1; an interface has no other")
        } else if found.interfaces.contains(&entry.device) {
            let what = format!("the interface \"{device}\" is down or has no address");
            (what, "`ip addr` shows it; the line is used when that has changed")
        } else {
            let what = format!("this host has no device \"{device}\" now");
            (what, devices)
        });
    };
    let fits = of_port().any(|end| entry.pkey.is(end.pkey, first));
    (!fits).then(|| {
        let what = format!(
            "port {} of \"{device}\" is not in the partition {}",
            entry.port, entry.pkey
        );
        (what, "write default for its first one")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_addresses;
    use crate::host::{Sources, look};

    fn said(written: &Written) -> Vec<String> {
        let found = look(&Sources::of_system(Vec::new())).unwrap();
        misfits(written, &found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_this_host_does_not_have_is_said_with_its_line() {
        let text = "a lo 1 default\n\nb nothere0 1 default\nc lo 2 default\nd lo 1 0x8001\ne lo 1 ffff\n";
        let entries = read_addresses(text.as_bytes(), "f".as_ref(), false, &mut Warnings::default());
        assert_eq!(entries.len(), 5);
        let written = Written {
            entries,
            folder: "/etc/x".into(),
            ..Written::default()
        };
        let said = said(&written);
        let begins = [
            "/etc/x/ibacm_addr.cfg:3: this host has no device \"nothere0\" now",
            "/etc/x/ibacm_addr.cfg:4: the device \"lo\" has no port 2",
            "/etc/x/ibacm_addr.cfg:5: port 1 of \"lo\" is not in the partition 0x8001",
        ];
        assert_eq!(said.len(), begins.len(), "{said:?}");
        for (said, begin) in said.iter().zip(begins) {
            assert!(said.starts_with(begin), "{said}");
        }
    }

    #[test]
    fn interfaces_that_are_not_there_are_said_where_they_were_named() {
        let names = ["lo".to_owned(), "nothere0".to_owned()];
        let flagged = said(&Written::default().with_interfaces(&names));
        assert_eq!(flagged.len(), 1, "{flagged:?}");
        assert!(
            flagged[0].starts_with("--nic: this host has no interface \"nothere0\" now"),
            "{flagged:?}"
        );
        let mut filed = Written::default();
        filed.options.doorbell_interfaces = Interfaces::Named(names.to_vec());
        let filed = said(&filed);
        assert!(
            filed.len() == 1 && filed[0].starts_with("ibacm_opts.cfg: "),
            "{filed:?}"
        );
    }
}
