//! The permissions that a process needs for this rail, and the exact text for what it lacks.
//!
//! | right | for |
//! |---|---|
//! | `CAP_NET_RAW` | an AF_XDP socket |
//! | `CAP_BPF` (before Linux 5.8 `CAP_SYS_ADMIN`) | the map and the program |
//! | `CAP_NET_ADMIN` | attaching the program, and resolving neighbours |
//!
//! and `CAP_IPC_LOCK`, or a `ulimit -l` that the memory of frames fits into: 12 MiB with all defaults, up to
//! 140 MiB with many queues and long frames.

use std::io;

use doorbell_fabric::error::RailError;
use doorbell_fabric::limits::{Limit, Resource};
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// Numbers of capabilities (linux/capability.h).
const NEEDED: [(&str, u32); 3] = [("CAP_NET_RAW", 13), ("CAP_NET_ADMIN", 12), ("CAP_BPF", 39)];
const SYS_ADMIN: u32 = 21;
const IPC_LOCK: u32 = 14;

/// The capabilities of this process, one bit each; `None` where that cannot be found out.
fn capabilities() -> Option<u64> {
    capabilities_in(&std::fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn capabilities_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The needed ones that are not among them.
fn lacking(has: u64) -> Vec<&'static str> {
    let has = |number: u32| has & 1 << number != 0;
    // All of what CAP_BPF allows was CAP_SYS_ADMIN's before, and still is.
    let lacks = |number: u32| !(has(number) || number == 39 && has(SYS_ADMIN));
    NEEDED
        .iter()
        .filter(|(_, number)| lacks(*number))
        .map(|(name, _)| *name)
        .collect()
}

/// Returns why this much memory for frames cannot be allocated, where that is so: the kernel locks it.
pub(crate) fn too_much(bytes: usize) -> Option<(String, String)> {
    let has = capabilities()?;
    let may = Limit::of(Resource::RLIMIT_MEMLOCK).soft;
    too_much_for(has, may, bytes)
}

fn too_much_for(has: u64, may: Option<u64>, bytes: usize) -> Option<(String, String)> {
    let may = may.filter(|&may| has & 1 << IPC_LOCK == 0 && may < bytes as u64)?;
    Some((
        format!(
            "its frames need {} KiB of locked memory, this process may lock {} KiB (`ulimit -l`), and it lacks CAP_IPC_LOCK",
            bytes >> 10,
            may >> 10
        ),
        format!(
            "`ulimit -l {}`, or `setcap` with cap_ipc_lock, or make xdp.receive_ring and xdp.send_ring smaller",
            bytes.div_ceil(1 << 10)
        ),
    ))
}

/// A step for which there was no memory: what the user's other processes have locked counts too.
pub(crate) fn no_memory(step: &str, error: &io::Error, bytes: usize) -> (String, String) {
    let locks = capabilities().is_some_and(|has| has & 1 << IPC_LOCK == 0);
    let why = if locks {
        ", of what all processes of this user may lock together, and it lacks CAP_IPC_LOCK"
    } else {
        ""
    };
    (
        format!(
            "no memory to {step}: {error}; the frames need {} KiB{why}",
            bytes >> 10
        ),
        "raise `ulimit -l`, or make xdp.receive_ring and xdp.send_ring smaller".to_owned(),
    )
}

/// What to do about it.
const REMEDY: &str =
    "run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep` on the program, or name udp";

/// The reason that the rights are not there, or `None` when they all are.
pub(crate) fn missing() -> Option<(String, &'static str)> {
    let lacking = lacking(capabilities()?);
    if lacking.is_empty() {
        return None;
    }
    Some((format!("this process lacks {}", lacking.join(", ")), REMEDY))
}

/// The error of a step that was refused because rights are missing.
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
        let lacking_in = |bits: u64| lacking(capabilities_in(&status(bits)).unwrap());
        assert!(lacking_in(all).is_empty());
        assert!(lacking_in(1 << 13 | 1 << 12 | 1 << 21).is_empty());
        assert_eq!(lacking_in(1 << 12 | 1 << 39), ["CAP_NET_RAW"]);
        assert_eq!(lacking_in(0).len(), 3);
        assert_eq!(capabilities_in("Name: x\n"), None);
        assert_eq!(capabilities_in("CapEff:\tzz\n"), None);
        assert!(capabilities().is_some());
    }

    #[test]
    fn memory_that_may_not_be_locked_is_named_with_its_size() {
        let (reason, remedy) = too_much_for(0, Some(8 << 20), 12 << 20).unwrap();
        assert!(
            reason.contains("12288 KiB") && reason.contains("8192 KiB") && reason.contains("CAP_IPC_LOCK"),
            "{reason}"
        );
        assert!(remedy.contains("ulimit -l 12288"), "{remedy}");
        assert_eq!(too_much_for(0, Some(12 << 20), 12 << 20), None);
        assert_eq!(too_much_for(0, None, 12 << 20), None, "no limit");
        assert_eq!(too_much_for(1 << IPC_LOCK, Some(0), 12 << 20), None);
    }
}
