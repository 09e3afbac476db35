//! What a process must be allowed for this rail, and the exact word for what it lacks.
//!
//! | right | for |
//! |---|---|
//! | `CAP_NET_RAW` | an AF_XDP socket |
//! | `CAP_BPF` (before Linux 5.8 `CAP_SYS_ADMIN`) | the map and the program |
//! | `CAP_NET_ADMIN` | attaching the program, and asking for neighbours |
//!
//! and `CAP_IPC_LOCK`, or a `ulimit -l` of some 12 MiB, for the memory of frames.

use std::io;

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// Numbers of capabilities (linux/capability.h).
const NEEDED: [(&str, u32); 3] = [("CAP_NET_RAW", 13), ("CAP_NET_ADMIN", 12), ("CAP_BPF", 39)];
const SYS_ADMIN: u32 = 21;

/// The needed capabilities that this process does not have; `None` where that cannot be found out.
pub(crate) fn lacking() -> Option<Vec<&'static str>> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    lacking_in(&status)
}

fn lacking_in(status: &str) -> Option<Vec<&'static str>> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let has = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |number: u32| has & 1 << number != 0;
    // All of what CAP_BPF allows was CAP_SYS_ADMIN's before, and still is.
    let lacks = |number: u32| !(has(number) || number == 39 && has(SYS_ADMIN));
    Some(
        NEEDED
            .iter()
            .filter(|(_, number)| lacks(*number))
            .map(|(name, _)| *name)
            .collect(),
    )
}

/// What to do about it.
const REMEDY: &str =
    "run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep` on the program, or name udp";

/// The reason that the rights are not there, or `None` when they all are.
pub(crate) fn missing() -> Option<(String, &'static str)> {
    let lacking = lacking().filter(|lacking| !lacking.is_empty())?;
    Some((format!("this process lacks {}", lacking.join(", ")), REMEDY))
}

/// The error of a step that was refused for want of rights.
pub(crate) fn refused(name: &RailName, step: &str, error: &io::Error) -> RailError {
    match missing() {
        Some((reason, remedy)) => unusable(name, reason, remedy),
        None => unusable(
            name,
            format!("the kernel does not let this process {step}: {error}"),
            "capabilities of a container's own user namespace do not count for bpf: run it outside, or name udp",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_ones_are_named() {
        let status = |bits: u64| format!("Name:\tx\nCapEff:\t{bits:016x}\nSeccomp:\t0\n");
        let all = 1 << 13 | 1 << 12 | 1 << 39;
        assert_eq!(lacking_in(&status(all)), Some(vec![]));
        assert_eq!(lacking_in(&status(1 << 13 | 1 << 12 | 1 << 21)), Some(vec![]));
        assert_eq!(lacking_in(&status(1 << 12 | 1 << 39)), Some(vec!["CAP_NET_RAW"]));
        assert_eq!(lacking_in(&status(0)).map(|all| all.len()), Some(3));
        assert_eq!(lacking_in("Name: x\n"), None);
        assert_eq!(lacking_in("CapEff:\tzz\n"), None);
        assert!(lacking().is_some());
    }
}
