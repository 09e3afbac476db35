//! The system's own files: `/proc`, `/sys`, `/dev` and `/etc` below one root, which tests replace by a
//! folder.

use std::fs;
use std::path::{Path, PathBuf};

use doorbell_fabric::cores::{CoreSet, Topology};

/// The files of this system, or of one that a test has made up.
#[derive(Clone, Debug)]
pub(super) struct System {
    root: PathBuf,
}

/// The longest file that is read: those of the kernel are shorter.
const LONGEST: u64 = 1 << 20;

impl System {
    /// Returns the files of this system.
    pub(super) fn here() -> Self {
        Self::under(Path::new("/"))
    }

    /// Returns the files of a system below `root`.
    pub(super) fn under(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Returns where a file is: `path` without its first stroke.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the contents of a file, without the blanks around them.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        use std::io::Read as _;
        let file = fs::File::open(self.path(path)).ok()?;
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number in a file, decimal or after `0x`.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        match text.strip_prefix("0x") {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The names in a folder, in order; none where there is no such folder.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Whether there is such a file or folder.
    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The value behind `name` in a file of lines like `Name:   value`.
    pub(super) fn field(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// A field of `/proc/meminfo`, in bytes (it counts in KiB) or as it is (pages).
    pub(super) fn memory(&self, name: &str) -> Option<u64> {
        let value = self.field("/proc/meminfo", name)?;
        let mut words = value.split_whitespace();
        let number: u64 = words.next()?.parse().ok()?;
        match words.next() {
            Some("kB") => number.checked_mul(1024),
            _ => Some(number),
        }
    }

    /// A limit of this process as `/proc/self/limits` has it: what holds now, and how far it may be raised.
    /// `None` in it: without a limit.
    pub(super) fn limit(&self, name: &str) -> Option<[Option<u64>; 2]> {
        let text = self.text("/proc/self/limits")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        let mut words = rest.split_whitespace();
        let mut next = || match words.next()? {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        };
        Some([next()?, next()?])
    }

    /// Whether this process has a capability (linux/capability.h); `None` where that cannot be read.
    pub(super) fn may(&self, capability: u32) -> Option<bool> {
        let bits = self.field("/proc/self/status", "CapEff")?;
        let bits = u64::from_str_radix(&bits, 16).ok()?;
        Some(bits & 1 << capability != 0)
    }

    /// The cores that this process may use.
    pub(super) fn cores(&self) -> Vec<usize> {
        list(
            &self
                .field("/proc/self/status", "Cpus_allowed_list")
                .unwrap_or_default(),
        )
    }

    /// Returns how the cores that this process may use lie to each other.
    pub(super) fn topology(&self) -> Topology {
        Topology::under(&self.root, &self.cores().into_iter().collect())
    }

    /// Whether this process is in a user namespace of its own, where its capabilities are not the system's.
    pub(super) fn is_in_user_namespace(&self) -> bool {
        let map = self.text("/proc/self/uid_map").unwrap_or_default();
        let words: Vec<&str> = map.split_whitespace().collect();
        !words.is_empty() && words != ["0", "0", "4294967295"]
    }

    /// Returns what runs the container that this process is in, where it is in one.
    pub(super) fn container(&self) -> Option<&'static str> {
        if self.has("/.dockerenv") {
            return Some("docker");
        }
        if self.has("/run/.containerenv") {
            return Some("podman");
        }
        let group = self.text("/proc/self/cgroup").unwrap_or_default();
        ["kubepods", "docker", "libpod", "lxc"]
            .into_iter()
            .find(|runner| group.contains(runner))
    }
}

/// The numbers of a list like `0-3,8`.
pub(super) fn list(text: &str) -> Vec<usize> {
    CoreSet::of_kernel(text).to_vec()
}

/// Numbers as a list like `0-3,8`.
pub(super) fn listed(numbers: &[usize]) -> String {
    numbers.iter().copied().collect::<CoreSet>().to_string()
}

/// Formats a number of bytes for people.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count >> 10),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", count as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
pub(super) mod fake {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::System;

    /// A system in a folder.
    pub(in super::super) struct Fake(tempfile::TempDir);

    impl Fake {
        /// A plain machine: root's process without limits, two cores, nothing of what a rail may want beside.
        pub(in super::super) fn new() -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            let status =
                "Name:\tdoorbell\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-1\n";
            fake.file("/proc/self/status", status)
                .file("/proc/self/uid_map", "0 0 4294967295")
                .file("/proc/self/cgroup", "0::/user.slice/user-0.slice/session-1.scope")
                .limits("unlimited", "unlimited")
                .file("/proc/sys/kernel/osrelease", "6.12.0-made-up")
                .file("/proc/meminfo", "MemAvailable:    8000000 kB\nHugePages_Total:       64\nHugePages_Free:       64\nHugepagesize:       2048 kB\n");
            fake
        }

        pub(in super::super) fn limits(&self, soft: &str, hard: &str) -> &Self {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max locked memory         {soft}                {hard}                bytes     \n\
                 Max address space         unlimited            unlimited            bytes     \n\
                 Max open files            1024                 4096                 files     \n"
            );
            self.file("/proc/self/limits", &text)
        }

        pub(in super::super) fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.system().path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        pub(in super::super) fn folder(&self, path: &str) -> &Self {
            fs::create_dir_all(self.system().path(path)).unwrap();
            self
        }

        pub(in super::super) fn link(&self, path: &str, to: &str) -> &Self {
            let path = self.system().path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            symlink(to, path).unwrap();
            self
        }

        pub(in super::super) fn without(&self, path: &str) -> &Self {
            let path = self.system().path(path);
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
            self
        }

        pub(in super::super) fn system(&self) -> System {
            System::under(self.root())
        }

        fn root(&self) -> &Path {
            self.0.path()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Fake;
    use super::*;

    #[test]
    fn this_system_shows_this_process() {
        let here = System::here();
        assert!(!here.cores().is_empty() && here.memory("MemAvailable").is_some());
        assert!(here.limit("Max open files").is_some() && here.may(0).is_some());
    }

    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let fake = Fake::new();
        fake.limits("65536", "unlimited")
            .file("/sys/x/device", "0x10ca\n");
        let system = fake.system();
        assert_eq!(system.limit("Max locked memory"), Some([Some(65_536), None]));
        assert_eq!(system.limit("Max nothing"), None);
        assert_eq!(system.number("/sys/x/device"), Some(0x10ca));
        assert_eq!(system.cores(), [0, 1]);
        assert_eq!(system.memory("HugePages_Total"), Some(64));
        assert_eq!(system.memory("Hugepagesize"), Some(2 << 20));
        assert!(!system.is_in_user_namespace() && system.container().is_none());
        fake.file("/proc/self/uid_map", "0 1000 1")
            .file("/.dockerenv", "");
        assert!(system.is_in_user_namespace() && system.container() == Some("docker"));
        fake.file("/proc/self/status", "CapEff:\t0000000000001000\n");
        assert_eq!((system.may(12), system.may(13)), (Some(true), Some(false)));
    }

    #[test]
    fn lists_are_read_and_shown() {
        assert_eq!(list("0-2, 5,7-7"), [0, 1, 2, 5, 7]);
        assert!(list("x,-,3-999999999").is_empty());
        assert_eq!(listed(&[0, 1, 2, 5, 7]), "0-2,5,7");
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(1 << 30), "1.0 GiB");
    }
}
