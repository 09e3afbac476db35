//! For tests: a tree of files that looks like the `/sys`, `/dev` and `/proc` of a machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::host::Host;

pub(crate) struct Tree {
    root: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn host(&self) -> Host {
        Host::at(self.root.path())
    }

    fn at(&self, below: &str) -> PathBuf {
        let path = self.root.path().join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, below: &str, text: &str) -> PathBuf {
        let path = self.at(below);
        fs::write(&path, format!("{text}\n")).unwrap();
        path
    }

    pub(crate) fn remove(&self, below: &str) {
        fs::remove_file(self.at(below)).unwrap();
    }

    pub(crate) fn link(&self, below: &str, target: &str) {
        let path = self.at(below);
        if path.is_symlink() {
            fs::remove_file(&path).unwrap();
        }
        symlink(target, path).unwrap();
    }

    pub(crate) fn device(&self, bdf: &str, (vendor, device, class): (u16, u16, u32)) {
        let at = |name: &str| format!("sys/bus/pci/devices/{bdf}/{name}");
        self.file(&at("vendor"), &format!("{vendor:#06x}"));
        self.file(&at("device"), &format!("{device:#06x}"));
        self.file(&at("class"), &format!("{class:#08x}"));
        self.file(&at("numa_node"), "-1");
    }

    pub(crate) fn driver(&self, bdf: &str, driver: &str) {
        let link = format!("sys/bus/pci/devices/{bdf}/driver");
        self.link(&link, &format!("../../drivers/{driver}"));
    }

    pub(crate) fn group(&self, number: u32, bdf: &str) {
        let link = format!("sys/bus/pci/devices/{bdf}/iommu_group");
        self.link(&link, &format!("../../../../kernel/iommu_groups/{number}"));
        self.link(
            &format!("sys/kernel/iommu_groups/{number}/devices/{bdf}"),
            &format!("../../../../{bdf}"),
        );
    }

    /// A port, and an igb behind it with two virtual functions, which igbvf has.
    pub(crate) fn igb_with_two_virtual_functions(&self) {
        self.device("0000:00:1c.0", (0x8086, 0x3420, 0x060400));
        self.driver("0000:00:1c.0", "pcieport");
        self.group(1, "0000:00:1c.0");
        let pf = "0000:01:00.0";
        let at = |name: &str| format!("sys/bus/pci/devices/{pf}/{name}");
        self.device(pf, (0x8086, 0x10c9, 0x020000));
        self.driver(pf, "igb");
        self.group(2, pf);
        self.file(&at("sriov_totalvfs"), "7");
        self.file(&at("net/eth0/operstate"), "up");
        self.file(&at("net/eth0/speed"), "1000");
        for (number, vf) in ["0000:01:10.0", "0000:01:10.2"].into_iter().enumerate() {
            self.device(vf, (0x8086, 0x10ca, 0x020000));
            self.driver(vf, "igbvf");
            self.group(7 + number as u32, vf);
            self.link(&format!("sys/bus/pci/devices/{vf}/physfn"), &format!("../{pf}"));
            self.link(&at(&format!("virtfn{number}")), &format!("../{vf}"));
            self.file(&format!("sys/bus/pci/devices/{vf}/numa_node"), "1");
        }
    }
}
