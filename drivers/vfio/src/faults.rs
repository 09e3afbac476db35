//! IOMMU faults of a device from the kernel's log, the only place where a process can find them.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;

use crate::bdf::Bdf;
use crate::host::Host;

/// Longest record of the log (`CONSOLE_EXT_LOG_MAX`).
const RECORD: usize = 8192;
/// More records than any log has.
const RECORDS_MAX: usize = 1 << 20;

impl Host {
    /// Returns the kernel's messages about IOMMU faults of this device, oldest first, as far back as its log
    /// reaches.
    ///
    /// # Errors
    /// When the log cannot be read: mostly that takes CAP_SYSLOG (`kernel.dmesg_restrict`).
    pub fn faults(&self, bdf: Bdf) -> io::Result<Vec<String>> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut log = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(self.path("dev/kmsg"))?;
        let (mut faults, mut record) = (Vec::new(), vec![0; RECORD]);
        for _ in 0..RECORDS_MAX {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(length) => {
                    let text = String::from_utf8_lossy(&record[..length]);
                    faults.extend(text.lines().filter_map(|line| fault(line, bdf)));
                }
                // The log has wrapped; reading continues after the gap.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(faults)
    }
}

/// The text of a record about a fault of this device, of Intel's or AMD's IOMMU
/// (linux/drivers/iommu/intel/dmar.c, amd/iommu.c).
fn fault(record: &str, bdf: Bdf) -> Option<String> {
    // Priority, number, time and flags come first.
    let words = record.split_once(';').map_or(record, |(_, words)| words);
    let long = bdf.to_string();
    // Intel's leave out the segment.
    let short = long.split_once(':').map_or(long.as_str(), |(_, short)| short);
    let intel = words.starts_with("DMAR:") && words.contains(&format!("device [{short}]"));
    let amd = words.contains("IO_PAGE_FAULT") && words.contains(&format!("device={long}"));
    (intel || amd).then(|| words.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;

    #[test]
    fn only_this_devices_faults_are_returned() {
        let intel = "3,1045,9123456,-;DMAR: [DMA Read NO_PASID] Request device [01:10.0] fault addr 0xdead8000 [fault reason 0x06] \
                     PTE Read access is not set";
        let amd = "3,1,1,-;vfio-pci 0000:01:10.0: AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:01:10.0 domain=0x0001 \
                   address=0xdead8000 flags=0x0000]";
        let bdf: Bdf = "0000:01:10.0".parse().unwrap();
        assert!(fault(intel, bdf).unwrap().starts_with("DMAR: [DMA Read"));
        assert!(fault(amd, bdf).unwrap().contains("0xdead8000"));
        let other: Bdf = "0000:01:10.2".parse().unwrap();
        assert_eq!((fault(intel, other), fault(amd, other)), (None, None));
        assert_eq!(
            fault("6,2,2,-;igb 0000:01:00.0: igb: eth0 NIC Link is Up", bdf),
            None
        );
        let tree = Tree::new();
        tree.file("dev/kmsg", intel);
        assert_eq!(tree.host().faults(bdf).unwrap().len(), 1);
        assert!(Tree::new().host().faults(bdf).is_err());
    }
}
