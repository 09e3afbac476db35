//! How much memory this process may lock, which is what a device's memory is.
//!
//! Sources: getrlimit(2), capabilities(7), proc_pid_status(5); drivers/vfio/vfio_iommu_type1.c counts what it
//! locks in the process's `VmLck`.

use doorbell_fabric::limits::{Limit, Resource};

use crate::error::Error;

/// The number of CAP_IPC_LOCK (linux/capability.h).
const IPC_LOCK: u32 = 14;

/// What this process may lock, and has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memlock {
    /// The limit in bytes (`ulimit -l`); `None` where there is none, also by CAP_IPC_LOCK.
    pub limit: Option<u64>,
    /// Bytes that are locked.
    pub locked: u64,
}

impl Memlock {
    /// Returns the present limit.
    pub fn now() -> Self {
        let limit = Limit::of(Resource::RLIMIT_MEMLOCK).soft;
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self::of(limit, &status)
    }

    fn of(limit: Option<u64>, status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next())
                .unwrap_or("0")
        };
        let has = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
        let kib: u64 = field("VmLck:").parse().unwrap_or(0);
        Self {
            limit: limit.filter(|_| has & 1 << IPC_LOCK == 0),
            locked: kib.saturating_mul(1024),
        }
    }

    /// Whether `bytes` more fit.
    ///
    /// # Errors
    /// [`Error::Memlock`] where they do not.
    pub fn room_for(self, bytes: u64) -> Result<(), Error> {
        match self.limit {
            Some(limit) if self.locked.saturating_add(bytes) > limit => Err(Error::Memlock {
                needed: bytes,
                limit,
                locked: self.locked,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tx\nVmLck:\t      32 kB\nCapEff:\t0000000000000000\n";

    #[test]
    fn what_is_locked_already_counts() {
        let limits = Memlock::of(Some(64 << 10), STATUS);
        assert_eq!(limits.locked, 32 << 10);
        assert!(limits.room_for(32 << 10).is_ok());
        let error = limits.room_for((32 << 10) + 1).unwrap_err();
        assert_eq!(error.code(), "memlock");
        assert!(error.fix().contains("ulimit -l 65"), "{error}");
    }

    #[test]
    fn a_process_that_may_lock_all_has_no_limit() {
        let with = STATUS.replace("CapEff:\t0000000000000000", "CapEff:\t0000000000004000");
        assert_eq!(Memlock::of(Some(64 << 10), &with).limit, None);
        assert_eq!(Memlock::of(None, STATUS).limit, None);
        assert!(Memlock::of(None, "").room_for(u64::MAX).is_ok());
    }
}
