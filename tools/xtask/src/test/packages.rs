//! The Debian packages that tests need beside Rust, and how they come onto the machine.

use std::path::Path;
use std::process::{Command, Stdio};

use super::steps::Step;
use crate::error::Error;
use crate::workspace::is_ci;

/// A package, and who needs it.
#[derive(Debug)]
struct Package {
    /// Debian's name for it.
    name: &'static str,
    /// The program by which its presence is known; of a package without programs, the path of a file.
    program: &'static str,
    /// The steps whose tests use it.
    steps: &'static [&'static str],
}

/// Everything that a test needs and a machine with Rust and a linker may lack. A test that uses a program
/// adds it here, and skips with "package NAME: ..." where it is missing.
const PACKAGES: &[Package] = &[
    // engine/tests/system_calls.rs counts a rank's system calls
    Package {
        name: "strace",
        program: "strace",
        steps: &["test", "release"],
    },
    // tools/simulate/tests runs the dissector of tools/dissector; drivers/sim/tests, the capinfos that comes
    // with it
    Package {
        name: "tshark",
        program: "tshark",
        steps: &["test"],
    },
    // testing/src/netns.rs makes hosts of network namespaces
    Package {
        name: "iproute2",
        program: "ip",
        steps: &["test", "release"],
    },
    Package {
        name: "nftables",
        program: "nft",
        steps: &["test", "release"],
    },
    Package {
        name: "ethtool",
        program: "ethtool",
        steps: &["test", "release"],
    },
    // `cargo xtask links` compares with TCP; tools/tests/it/links.rs runs it
    Package {
        name: "iperf3",
        program: "iperf3",
        steps: &["test"],
    },
    // tools/lab/tests/it/peers.rs compares with some of the peers, and looks at the page; the tests of
    // fabric/libfabric-sys use the library that comes with libfabric-bin
    Package {
        name: "ucx-utils",
        program: "ucx_perftest",
        steps: &["test"],
    },
    Package {
        name: "libfabric-bin",
        program: "fi_pingpong",
        steps: &["test"],
    },
    // `cargo xtask ofi-layouts` compares its headers with our types: tools/xtask/src/ofi_layouts/tests.rs
    Package {
        name: "libfabric-dev",
        program: "/usr/include/rdma/fabric.h",
        steps: &["test"],
    },
    Package {
        name: "openmpi-bin",
        program: "mpirun.openmpi",
        steps: &["test"],
    },
    Package {
        name: "libopenmpi-dev",
        program: "mpicc.openmpi",
        steps: &["test"],
    },
    // tools/tests/it/launchers.rs and slurm.rs start ranks under launchers that are not ours
    Package {
        name: "mpich",
        program: "mpiexec.hydra",
        steps: &["test"],
    },
    // am/portals/abi/tests, tools/tests/it/portals.rs and the tests of fabric/libfabric-sys compile programs
    // in C
    Package {
        name: "gcc",
        program: "gcc",
        steps: &["test"],
    },
    // tools/tests/it/run_hosts.rs builds a program of MPICH; the compiler's wrapper comes without the headers
    Package {
        name: "libmpich-dev",
        program: "/usr/share/doc/libmpich-dev/copyright",
        steps: &["test"],
    },
    Package {
        name: "slurmctld",
        program: "slurmctld",
        steps: &["test"],
    },
    Package {
        name: "slurmd",
        program: "slurmd",
        steps: &["test"],
    },
    Package {
        name: "slurm-client",
        program: "srun",
        steps: &["test"],
    },
    Package {
        name: "munge",
        program: "munged",
        steps: &["test"],
    },
    // tools/tests/it/run_ssh.rs has a server of its own
    Package {
        name: "openssh-client",
        program: "ssh",
        steps: &["test"],
    },
    Package {
        name: "openssh-server",
        program: "sshd",
        steps: &["test"],
    },
    // acm/tests/clients sends requests as rdma-core's own programs do, and as librdmacm does
    Package {
        name: "ibacm",
        program: "ib_acme",
        steps: &["test"],
    },
    Package {
        name: "rdmacm-utils",
        program: "rping",
        steps: &["test"],
    },
    // drivers/verbs/tests and acm/tests query a real manager of a simulated subnet (testing/src/subnet.rs)
    Package {
        name: "ibsim-utils",
        program: "ibsim",
        steps: &["test"],
    },
    Package {
        name: "libumad2sim0",
        program: "/usr/share/doc/libumad2sim0/copyright",
        steps: &["test"],
    },
    Package {
        name: "infiniband-diags",
        program: "/usr/sbin/ibstat",
        steps: &["test"],
    },
    Package {
        name: "opensm",
        program: "/usr/sbin/opensm",
        steps: &["test"],
    },
    Package {
        name: "chromium",
        program: "chromium",
        steps: &["test"],
    },
    // `cargo xtask instructions` counts with it
    Package {
        name: "valgrind",
        program: "valgrind",
        steps: &["instructions"],
    },
    // libFuzzer is C++ (tools/fuzz)
    Package {
        name: "g++",
        program: "c++",
        steps: &["fuzz"],
    },
];

/// Packages whose service listens from the moment that they are installed, where a systemd runs.
const LISTENERS: &[&str] = &["openssh-server", "ibacm", "opensm"];

/// Whether a package may be installed without being named by the user.
fn may_come(name: &str, has_systemd: bool, is_ci: bool) -> bool {
    !has_systemd || is_ci || !LISTENERS.contains(&name)
}

/// Installs what the steps need and the machine lacks; where that is not allowed, prints the line to type.
pub(super) fn install(steps: &[Step]) -> Result<(), Error> {
    let needed = |package: &Package| steps.iter().any(|step| package.steps.contains(&step.name));
    install_those(needed)
}

/// Installs packages by their names.
pub(crate) fn install_named(names: &[&str]) -> Result<(), Error> {
    install_those(|package| names.contains(&package.name))
}

fn install_those(needed: impl Fn(&Package) -> bool) -> Result<(), Error> {
    let mut missing = missing(PACKAGES, needed, &std::env::var("PATH").unwrap_or_default());
    if missing.is_empty() {
        return Ok(());
    }
    let line = install_line(&missing);
    if !rustix::process::geteuid().is_root() {
        println!("missing packages; what needs them will be skipped. Type: sudo {line}");
        return Ok(());
    }
    let has_systemd = Path::new("/run/systemd/system").is_dir();
    let is_ci = is_ci();
    missing.retain(|name| {
        let may = may_come(name, has_systemd, is_ci);
        if !may {
            println!(
                "{name} is not installed unasked: its service would listen. What needs it will be skipped."
            );
        }
        may
    });
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing: {}", missing.join(" "));
    apt(&["update"])?;
    let arguments: Vec<&str> = ["install", "-y", "--no-install-recommends"]
        .into_iter()
        .chain(missing)
        .collect();
    if !apt(&arguments)? {
        eprintln!("apt-get failed; what needs these packages will be skipped. Try: {line}");
    }
    Ok(())
}

/// Returns the package that `program` comes in, if the program is not here.
pub(super) fn lacking(program: &str) -> Option<&'static str> {
    let package = PACKAGES.iter().find(|package| package.program == program)?;
    let path = std::env::var("PATH").unwrap_or_default();
    (!is_on_path(program, &path)).then_some(package.name)
}

/// Returns the command line that installs these packages.
pub(super) fn install_line(names: &[&str]) -> String {
    format!("apt-get install -y --no-install-recommends {}", names.join(" "))
}

fn missing(packages: &[Package], needed: impl Fn(&Package) -> bool, path: &str) -> Vec<&'static str> {
    let needed = packages.iter().filter(|package| needed(package));
    needed
        .filter(|package| !is_on_path(package.program, path))
        .map(|package| package.name)
        .collect()
}

/// Whether a program is in one of the folders, or a file at its path.
fn is_on_path(program: &str, path: &str) -> bool {
    path.split(':')
        .any(|folder| !folder.is_empty() && Path::new(folder).join(program).is_file())
}

/// Runs apt-get, without questions and with a limit on each of its waits.
fn apt(arguments: &[&str]) -> Result<bool, Error> {
    let program = "apt-get";
    let waits = [
        "-o",
        "Acquire::http::Timeout=20",
        "-o",
        "Acquire::Retries=1",
        "-o",
        "DPkg::Lock::Timeout=60",
    ];
    let status = Command::new(program)
        .args(waits)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) => Ok(status.success()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Start {
            program: program.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_listen_is_installed_only_on_request() {
        assert!(!may_come("openssh-server", true, false));
        assert!(may_come("openssh-server", false, false) && may_come("openssh-server", true, true));
        assert!(may_come("tshark", true, false));
        let known = |name: &&str| PACKAGES.iter().any(|package| package.name == *name);
        assert!(LISTENERS.iter().all(known));
    }

    #[test]
    fn only_what_a_chosen_step_needs_and_the_machine_lacks_is_missing() {
        let packages = [
            Package {
                name: "there",
                program: "there",
                steps: &["test"],
            },
            Package {
                name: "gone",
                program: "gone",
                steps: &["test"],
            },
            Package {
                name: "elsewhere",
                program: "gone",
                steps: &["loom"],
            },
        ];
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there"), "").unwrap();
        let path = format!("/nonexistent::{}", folder.path().display());
        let there = folder.path().join("there").display().to_string();
        assert!(is_on_path(&there, "/nonexistent") && !is_on_path("/nonexistent/there", &path));
        let for_step = |name| {
            let needed = move |package: &Package| package.steps.contains(&name);
            missing(&packages, needed, &path)
        };
        assert_eq!(for_step("test"), ["gone"]);
        assert_eq!(for_step("fmt"), Vec::<&str>::new());
        assert_eq!(
            install_line(&["a", "b"]),
            "apt-get install -y --no-install-recommends a b"
        );
    }
}
