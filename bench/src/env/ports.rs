//! The hardware counters of RDMA ports: what the ports of the rails counted while a measurement ran, of all
//! programs that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file beside the counters that is a setting.
const LIFESPAN: &str = "lifespan";

/// What a port counted during a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRecord {
    /// The device and the port's number: `mlx5_0:1`.
    pub port: String,
    /// By how much each of its hardware counters rose; those that did not are left out.
    pub rose: BTreeMap<String, u64>,
}

/// The counters of ports as they were at the beginning.
#[derive(Debug)]
pub(crate) struct PortCounters {
    root: PathBuf,
    before: BTreeMap<String, BTreeMap<String, u64>>,
}

impl PortCounters {
    /// Reads those of the ports that these rails use.
    pub(crate) fn of<'a>(rails: impl Iterator<Item = &'a str>) -> Self {
        Self::below(Path::new("/"), rails)
    }

    fn below<'a>(root: &Path, rails: impl Iterator<Item = &'a str>) -> Self {
        // Two rails may be of one port.
        let ports: BTreeSet<String> = rails.filter_map(port_of).collect();
        let before = ports.into_iter().map(|port| {
            let counters = read(root, &port);
            (port, counters)
        });
        Self {
            root: root.to_owned(),
            before: before.collect(),
        }
    }

    /// By how much they rose since.
    pub(crate) fn since(&self) -> Vec<PortRecord> {
        let record = |(port, before): (&String, &BTreeMap<String, u64>)| {
            let rose = read(&self.root, port).into_iter().filter_map(|(name, now)| {
                let by = now.checked_sub(*before.get(&name)?)?;
                (by > 0).then_some((name, by))
            });
            PortRecord {
                port: port.clone(),
                rose: rose.collect(),
            }
        };
        self.before.iter().map(record).collect()
    }
}

/// The device and port of a rail's name, `verbs:DEVICE:PORT` or `verbs:DEVICE:PORT:ud`.
fn port_of(rail: &str) -> Option<String> {
    let mut parts = rail.strip_prefix("verbs:")?.split(':');
    let (device, port) = (parts.next()?, parts.next()?);
    let is_device = !device.contains('/') && !matches!(device, "" | "." | "..");
    (is_device && port.parse::<u8>().is_ok()).then(|| format!("{device}:{port}"))
}

/// The counters of a port; none where its device has none.
fn read(root: &Path, port: &str) -> BTreeMap<String, u64> {
    let (device, number) = port.split_once(':').unwrap_or((port, "1"));
    let folder = root.join(format!(
        "sys/class/infiniband/{device}/ports/{number}/hw_counters"
    ));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let counter = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let number = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        (name != LIFESPAN).then_some((name, number))
    };
    entries.filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(root: &Path, port: u8, name: &str, text: &str) {
        let folder = root.join(format!("sys/class/infiniband/rxe0/ports/{port}/hw_counters"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn what_rose_is_recorded_once_for_each_port() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (name, text) in [
            ("sent_pkts", "10\n"),
            ("rcvd_seq_err", "3\n"),
            ("lifespan", "10\n"),
        ] {
            set(root, 1, name, text);
        }
        let rails = [
            "verbs:rxe0:1",
            "udp:eth0",
            "verbs:rxe0:1:ud",
            "verbs:none:1",
            "verbs:../x:1",
            "shm",
        ];
        let counters = PortCounters::below(root, rails.into_iter());
        for (name, text) in [
            ("sent_pkts", "1010\n"),
            ("rcvd_seq_err", "3\n"),
            ("lifespan", "20\n"),
            ("new", "7\n"),
        ] {
            set(root, 1, name, text);
        }
        let since = counters.since();
        let record = |port: &str, rose: &[(&str, u64)]| PortRecord {
            port: port.to_owned(),
            rose: rose.iter().map(|(name, by)| ((*name).to_owned(), *by)).collect(),
        };
        assert_eq!(
            since,
            [record("none:1", &[]), record("rxe0:1", &[("sent_pkts", 1000)])]
        );
        // A counter that was reset, and one that is no number.
        set(root, 1, "sent_pkts", "5\n");
        set(root, 1, "rcvd_seq_err", "N/A\n");
        assert_eq!(counters.since()[1].rose, BTreeMap::new());
    }

    #[test]
    fn rails_without_ports_have_no_records() {
        assert!(
            PortCounters::of(["shm", "udp:eth0", "verbs:", "verbs:a", "verbs:a:x"].into_iter())
                .since()
                .is_empty()
        );
    }
}
