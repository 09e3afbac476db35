//! The parts of the lab: QEMU, kernels and the guests' programs, each unpacked from Debian's packages into a
//! folder of the cache. Nothing is installed.
//!
//! A folder is made once: its name describes its contents, and a file beside it marks it as whole. To have
//! newer packages, remove the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::apt::Apt;
use super::host::Host;
use super::programs::Programs;
use super::stop::Stop;
use crate::error::Error;

/// What unpacking one package may take.
const UNPACKING: Duration = Duration::from_secs(60);

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Qemu {
    /// The version of Debian 12's backports: 10.0, with igb and its virtual functions.
    Q10,
    /// The version of Debian 13's backports: 11.1 or later, with `vfio-user-pci`.
    Q11,
}

/// A version of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// The version of Debian 12's backports: 6.12.
    Stable,
    /// The version of Debian 13's backports: 7.2 or later.
    Newest,
}

/// What the guests run beside what is tested; `xz-utils` unpacks their modules.
const GUEST: [&str; 10] = [
    "busybox-static",
    "dash",
    "bash",
    "kmod",
    "iproute2",
    "ethtool",
    "tcpdump",
    "strace",
    "iperf3",
    "xz-utils",
];

/// What guests with RDMA devices run beside that: the library with its providers, tools and another stack
/// that use them, the firewall, and clients of libfabric.
const RDMA: [&str; 7] = [
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "ucx-utils",
    "nftables",
    "libfabric-bin",
    "openmpi-bin",
];

/// The package with the headers of the guests' MPI.
const MPI_HEADERS: &str = "libopenmpi-dev";

/// A set of programs for guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// What every guest has.
    Plain,
    /// With libibverbs, tools that use it, and clients of libfabric.
    Rdma,
}

impl Set {
    fn packages(self) -> Vec<&'static str> {
        let more: &[&str] = match self {
            Self::Plain => &[],
            Self::Rdma => &RDMA,
        };
        GUEST.iter().chain(more).copied().collect()
    }
}

/// Something that is unpacked into a folder of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image {
    Qemu(Qemu),
    Kernel(Kernel),
    Guest(Set),
    /// The headers of the guests' MPI, for the compiler of this machine.
    MpiHeaders,
}

/// The images of one cache.
pub(super) struct Images<'a> {
    programs: &'a Programs,
    host: &'a Host,
    cache: PathBuf,
}

impl Image {
    fn name(self, host: &Host) -> String {
        match self {
            Self::Qemu(Qemu::Q10) => "qemu-10".to_owned(),
            Self::Qemu(Qemu::Q11) => "qemu-11".to_owned(),
            Self::Kernel(Kernel::Stable) => "linux-stable".to_owned(),
            Self::Kernel(Kernel::Newest) => "linux-newest".to_owned(),
            // With other packages it is another image.
            Self::Guest(set) => format!("guest-{}-{:08x}", host.suite, crc32(&set.packages().join(" "))),
            Self::MpiHeaders => format!("{MPI_HEADERS}-{}", host.suite),
        }
    }

    /// Returns the suites that its packages are in, the one that is preferred last.
    fn suites(self, host: &Host) -> Vec<&str> {
        match self {
            Self::Qemu(Qemu::Q10) => vec!["bookworm", "bookworm-backports"],
            Self::Qemu(Qemu::Q11) => vec!["trixie", "trixie-backports"],
            Self::Kernel(Kernel::Stable) => vec!["bookworm-backports"],
            Self::Kernel(Kernel::Newest) => vec!["trixie-backports"],
            Self::Guest(_) | Self::MpiHeaders => vec![&host.suite],
        }
    }
}

impl<'a> Images<'a> {
    pub(super) fn new(programs: &'a Programs, host: &'a Host, cache: &Path) -> Self {
        Self {
            programs,
            host,
            cache: cache.to_owned(),
        }
    }

    /// Returns the folder of an image, which is made where it is not there yet.
    pub(super) fn get(&self, image: Image) -> Result<PathBuf, Stop> {
        let name = image.name(self.host);
        let folder = self.cache.join("images").join(&name);
        let whole = self.cache.join("images").join(format!("{name}.whole"));
        if whole.is_file() {
            return Ok(folder);
        }
        let apt = self.cache.join("apt").join(&name);
        for old in [&folder, &apt] {
            remove(old)?;
        }
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let packages = self.fetch(image, &apt)?;
        for package in &packages {
            let mut command = Command::new("dpkg");
            command.arg("-x").arg(package).arg(&folder);
            let doing = format!("unpacking {name}");
            self.programs.must("dpkg", &doing, &mut command, UNPACKING)?;
        }
        // The packages take as much room again.
        remove(&apt)?;
        let names: Vec<_> = packages
            .iter()
            .filter_map(|package| package.file_name())
            .collect();
        let names = names
            .iter()
            .fold(String::new(), |text, name| text + &name.to_string_lossy() + "\n");
        fs::write(&whole, names).map_err(Error::file("write", &whole))?;
        Ok(folder)
    }

    fn fetch(&self, image: Image, folder: &Path) -> Result<Vec<PathBuf>, Stop> {
        let suites = image.suites(self.host);
        let shared = self.cache.join("apt");
        let apt = Apt::new(self.programs, self.host, &shared, folder, &suites)?;
        let from = suites.last().copied().unwrap_or_default();
        match image {
            Image::Qemu(_) => apt.fetch_with_needs(from, &["qemu-system-x86"]),
            Image::Guest(set) => apt.fetch_with_needs(from, &set.packages()),
            // Alone: what it needs is a compiler of Fortran and others' headers.
            Image::MpiHeaders => apt.fetch(&[MPI_HEADERS.to_owned()]),
            Image::Kernel(_) => {
                let shown = apt.cache(&["show", "--no-all-versions", "linux-image-amd64"])?;
                let version = version(&shown).ok_or_else(|| {
                    Stop::failed(format!(
                        "linux-image-amd64 of {from} names no kernel that it needs"
                    ))
                })?;
                let all = apt.cache(&["pkgnames", "linux-"])?;
                apt.fetch(&packages_of(version, &all))
            }
        }
    }
}

/// Computes a checksum of a text (CRC-32 of IEEE 802.3).
fn crc32(text: &str) -> u32 {
    !text.bytes().fold(!0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ ((sum & 1) * 0xedb8_8320)
        })
    })
}

/// Returns the version that the package of the current kernel means: `7.2.12+deb13-amd64`.
fn version(shown: &str) -> Option<&str> {
    let needs = shown.lines().find_map(|line| line.strip_prefix("Depends:"))?;
    let mut names = needs
        .split([',', '|'])
        .filter_map(|need| need.split_whitespace().next());
    names.find_map(|name| {
        let version = name.strip_prefix("linux-image-")?;
        version
            .starts_with(|first: char| first.is_ascii_digit())
            .then_some(version)
    })
}

/// Returns the packages in which a kernel and its modules come: one, or since 7.1 several.
fn packages_of(version: &str, names: &str) -> Vec<String> {
    let parts = ["image", "base", "binary", "modules"].map(|part| format!("linux-{part}-{version}"));
    let known = |name: &String| names.lines().any(|line| line.trim() == *name);
    parts.into_iter().filter(known).collect()
}

fn remove(folder: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_kernel_is_found_in_one_package_or_in_several() {
        let shown =
            "Package: linux-image-amd64\nDepends: linux-image-6.12.95+deb12-amd64 (= 6.12.95-1~bpo12+1)\n";
        assert_eq!(version(shown), Some("6.12.95+deb12-amd64"));
        let shown = "Depends: linux-base-amd64 (= 7), linux-image-7.2.12+deb13-amd64 (= 7), linux-modules-amd64 (= 7)\n";
        assert_eq!(version(shown), Some("7.2.12+deb13-amd64"));
        assert_eq!(version("Depends: linux-image-amd64-signed\n"), None);
        assert_eq!(version("Package: x\n"), None);
    }

    #[test]
    fn only_packages_of_this_very_version_are_fetched() {
        let names = "linux-image-7.2-amd64\nlinux-base-7.2-amd64\nlinux-binary-7.2-amd64\nlinux-modules-7.2-amd64\nlinux-modules-7.2-rt-amd64\n\
                     linux-headers-7.2-amd64\nlinux-image-6.12-amd64\n";
        let split = [
            "linux-image-7.2-amd64",
            "linux-base-7.2-amd64",
            "linux-binary-7.2-amd64",
            "linux-modules-7.2-amd64",
        ];
        assert_eq!(packages_of("7.2-amd64", names), split);
        assert_eq!(packages_of("6.12-amd64", names), ["linux-image-6.12-amd64"]);
        assert_eq!(packages_of("5.10-amd64", names), Vec::<String>::new());
    }

    #[test]
    fn the_guest_is_of_the_suite_whose_c_library_our_programs_have() {
        let host = Host {
            mirror: String::new(),
            suite: "trixie".to_owned(),
            fetching: String::new(),
        };
        let [plain, rdma] = [Set::Plain, Set::Rdma].map(Image::Guest);
        assert_eq!(plain.suites(&host), ["trixie"]);
        assert!(plain.name(&host).starts_with("guest-trixie-"));
        assert_ne!(plain.name(&host), rdma.name(&host), "of other packages");
        assert_eq!(crc32("123456789"), 0xcbf4_3926);
    }
}
