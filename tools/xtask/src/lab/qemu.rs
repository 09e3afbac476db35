//! A machine as QEMU's command line, and what its exit status means.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The processor, under the host's kernel.
    Kvm,
    /// QEMU translates them: works everywhere, and allows no statement about time.
    Tcg,
}

/// A machine to be emulated.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) accelerator: Accelerator,
    pub(super) processors: u32,
    pub(super) memory_mib: u32,
    /// Arguments of QEMU, each one or more words between spaces.
    pub(super) devices: &'a [&'a str],
    pub(super) kernel: &'a Path,
    pub(super) first_root: &'a Path,
    /// Added to the kernel's command line.
    pub(super) append: &'a str,
}

/// The port that ends QEMU with what is written to it.
const EXIT_PORT: &str = "isa-debug-exit,iobase=0xf4,iosize=0x01";
/// Added by the guest to its status, so that no status of QEMU's own looks like one. `guest/init.sh` has the
/// same.
const OFFSET: i32 = 64;

impl Machine<'_> {
    fn arguments(&self) -> Vec<String> {
        let accelerator = match self.accelerator {
            Accelerator::Kvm => ["kvm", "host"],
            Accelerator::Tcg => ["tcg,thread=multi", "max"],
        };
        let [accelerator, processor] = accelerator;
        let fixed = format!(
            "-nodefaults -no-user-config -display none -serial stdio -monitor none -no-reboot -nic none \
             -machine q35,kernel-irqchip=split -accel {accelerator} -cpu {processor} -smp {} -m {}M -device {EXIT_PORT}",
            self.processors, self.memory_mib
        );
        let words = fixed.split_whitespace().map(str::to_owned);
        let devices = self.devices.iter().flat_map(|device| device.split_whitespace());
        let mut words: Vec<String> = words.chain(devices.map(str::to_owned)).collect();
        // On a busy machine, an emulated timer is late for the kernel's check of it, and the kernel gives up.
        let append = format!(
            "console=ttyS0 quiet panic=-1 loglevel=4 no_timer_check {}",
            self.append
        );
        for (option, value) in [
            ("-kernel", self.kernel.display().to_string()),
            ("-initrd", self.first_root.display().to_string()),
            ("-append", append.trim_end().to_owned()),
        ] {
            words.extend([option.to_owned(), value]);
        }
        words
    }

    /// Returns the command that runs it, with a QEMU that was unpacked and not installed: with its own loader
    /// and libraries.
    pub(super) fn command(&self, unpacked: &Path) -> Command {
        let at = |name: &str| unpacked.join(name);
        let mut command = with_own_loader(unpacked, &at("usr/bin/qemu-system-x86_64"));
        for folder in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(at(folder));
        }
        command.args(self.arguments());
        command.env("QEMU_MODULE_DIR", at("usr/lib/x86_64-linux-gnu/qemu"));
        command
    }
}

/// Returns a command that runs an unpacked program with the loader and the libraries that were unpacked with
/// it.
pub(super) fn with_own_loader(unpacked: &Path, program: &Path) -> Command {
    const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
    const LIBRARIES: &str = "lib/x86_64-linux-gnu";
    let usr = unpacked.join("usr");
    let loaders = [unpacked.join(LOADER), usr.join(LOADER)];
    let loader: &PathBuf = loaders
        .iter()
        .find(|loader| loader.exists())
        .unwrap_or(&loaders[0]);
    let libraries = format!(
        "{}:{}",
        usr.join(LIBRARIES).display(),
        unpacked.join(LIBRARIES).display()
    );
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(libraries).arg(program);
    command
}

/// Returns the status with which the guest's script ended; `None` when QEMU ended in another way.
pub(super) fn status(code: i32) -> Option<i32> {
    // isa-debug-exit ends QEMU with twice the value, and one.
    let value = (code & 1 == 1).then_some(code >> 1)?;
    (value >= OFFSET).then_some(value - OFFSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(accelerator: Accelerator) -> Machine<'static> {
        Machine {
            accelerator,
            processors: 2,
            memory_mib: 1024,
            devices: &["-netdev hubport,id=n0,hubid=0", "-device igb,netdev=n0"],
            kernel: Path::new("/k/vmlinuz"),
            first_root: Path::new("/r/a b.cpio"),
            append: "intel_iommu=on",
        }
    }

    #[test]
    fn devices_and_the_kernels_line_are_arguments_of_their_own() {
        let words = machine(Accelerator::Tcg).arguments();
        let after = |option: &str| {
            let at = words.iter().position(|word| word == option).unwrap();
            words[at + 1].as_str()
        };
        assert_eq!(after("-netdev"), "hubport,id=n0,hubid=0");
        assert_eq!(after("-initrd"), "/r/a b.cpio");
        assert_eq!(
            after("-append"),
            "console=ttyS0 quiet panic=-1 loglevel=4 no_timer_check intel_iommu=on"
        );
        assert_eq!((after("-accel"), after("-cpu")), ("tcg,thread=multi", "max"));
        assert_eq!((after("-smp"), after("-m")), ("2", "1024M"));
        assert!(words.contains(&"igb,netdev=n0".to_owned()));
        let words = machine(Accelerator::Kvm).arguments();
        assert!(words.contains(&"kvm".to_owned()) && words.contains(&"host".to_owned()));
    }

    #[test]
    fn no_guest_reaches_a_network_of_the_host() {
        let words = machine(Accelerator::Tcg).arguments().join(" ");
        assert!(
            words.contains("-nic none") && words.contains("-nodefaults"),
            "{words}"
        );
    }

    #[test]
    fn the_scripts_status_is_distinguished_from_qemus_own() {
        for wanted in [0, 1, 7, 63] {
            assert_eq!(status((wanted + OFFSET) << 1 | 1), Some(wanted));
        }
        for own in [0, 1, 2, 127] {
            assert_eq!(status(own), None, "{own}");
        }
    }
}
