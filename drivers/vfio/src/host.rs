//! The machine's folders under one root: `/`, or a tree of files that a test has made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bdf::Bdf;

/// Where devices are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self::here()
    }
}

impl Host {
    /// The machine on which this runs.
    pub fn here() -> Self {
        Self {
            root: PathBuf::from("/"),
        }
    }

    /// A file tree that looks like a machine: `sys`, `dev` and `proc` below `root`. It has no kernel, so
    /// steps that need one are not checked.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether the files are those of this machine's kernel.
    pub fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path of this machine.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// The folder of all PCI devices.
    pub(crate) fn devices_folder(&self) -> PathBuf {
        self.path("sys/bus/pci/devices")
    }

    /// The folder of one.
    pub(crate) fn folder(&self, bdf: Bdf) -> PathBuf {
        self.devices_folder().join(bdf.to_string())
    }
}

/// One line of a file of sysfs.
pub(crate) fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A number in a file of sysfs, `0x` before it where it is hexadecimal.
pub(crate) fn number(path: &Path) -> Option<u64> {
    let text = line(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The last name of what a link points to.
pub(crate) fn target(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The names in a folder, sorted; none where it is missing.
pub(crate) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names: Vec<_> = listed
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    Ok(names)
}
