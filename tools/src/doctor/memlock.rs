//! Locked memory: how much a rail needs, how much this process may lock, what set that, and where to change
//! it.

use super::chain::{Fix, Link, Walk};
use super::limits::{MEMLOCK, origin_of};
use super::system::{System, bytes};

/// `CAP_IPC_LOCK` (linux/capability.h): no limit holds for a process with it.
const IPC_LOCK: u32 = 14;

/// The step of a rail that locks `needed` bytes. CAP_IPC_LOCK lifts the limit, for AF_XDP as for VFIO.
pub(super) fn step(walk: &mut Walk, system: &System, needed: u64) -> Link {
    let needs = format!("{} needed", bytes(needed));
    if system.may(IPC_LOCK) == Some(true) && !system.is_in_user_namespace() {
        walk.ok(
            "memlock",
            format!("{needs}, and no limit holds with CAP_IPC_LOCK"),
        );
        return Ok(());
    }
    let Some([soft, hard]) = system.limit("Max locked memory") else {
        walk.unknown(
            "memlock",
            format!("{needs}; /proc/self/limits does not show how much may be locked"),
            Vec::new(),
        );
        return Ok(());
    };
    let Some(soft) = soft.filter(|&soft| soft < needed) else {
        let may = soft.map_or("without a limit".to_owned(), |soft| {
            format!("up to {}", bytes(soft))
        });
        walk.ok(
            "memlock",
            format!("{needs}, and this process may lock memory {may}"),
        );
        return Ok(());
    };
    let origin = origin_of(system, &MEMLOCK);
    let saw = format!(
        "{needs}, and this process may lock {} ({})",
        bytes(soft),
        origin.origin
    );
    let mut cause = format!(
        "the kernel locks the memory of frames, and the limit came from {}",
        origin.by
    );
    let may_raise = hard.is_none_or(|hard| hard >= needed);
    if may_raise {
        cause.push_str("; the shell or service that starts the program may raise it");
    }
    let kib = needed.div_ceil(1024);
    let mut fixes = Vec::new();
    if may_raise {
        fixes.push(Fix::run(
            format!("ulimit -l {kib}"),
            "raise the limit of this shell and what it starts",
        ));
    }
    fixes.push(origin.fix);
    Err(walk.broken("memlock", saw, cause, fixes))
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Chain, Is, Step, Verdict};
    use super::super::system::fake::Fake;
    use super::*;

    /// Returns the files of a user's process, without capabilities.
    fn user() -> Fake {
        let fake = Fake::new();
        fake.file(
            "/proc/self/status",
            "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-1\n",
        );
        fake
    }

    fn judged(fake: &Fake, needed: u64) -> Chain {
        Walk::along("x", |walk| step(walk, &fake.system(), needed))
    }

    fn broken(fake: &Fake) -> Step {
        let chain = judged(fake, 12 << 20);
        assert_eq!(chain.verdict, Verdict::Broken);
        chain.steps.into_iter().next_back().unwrap()
    }

    #[test]
    fn enough_is_enough_and_a_right_lifts_the_limit() {
        let fake = user();
        fake.limits("16777216", "16777216");
        assert_eq!(judged(&fake, 12 << 20).steps[0].is, Is::Ok);
        fake.limits("unlimited", "unlimited");
        assert_eq!(judged(&fake, 12 << 20).steps[0].is, Is::Ok);
        let root = Fake::new();
        root.limits("65536", "65536");
        assert!(judged(&root, 12 << 20).steps[0].saw.contains("CAP_IPC_LOCK"));
    }

    #[test]
    fn sixty_four_kib_are_named_with_what_is_needed_and_how_to_raise_them() {
        let fake = user();
        fake.limits("65536", "unlimited");
        let step = broken(&fake);
        assert!(
            step.saw.contains("12.0 MiB needed") && step.saw.contains("64 KiB"),
            "{step:?}"
        );
        assert_eq!(step.fixes[0].command.as_deref(), Some("ulimit -l 12288"));
        fake.limits("65536", "65536");
        assert!(
            broken(&fake).fixes[0]
                .command
                .as_deref()
                .unwrap()
                .contains("limits.d")
        );
    }

    #[test]
    fn the_origin_of_a_limit_is_named() {
        let fake = user();
        fake.limits("65536", "65536");
        fake.file(
            "/etc/security/limits.conf",
            "# * - memlock 1\n*  hard  memlock  64\n",
        );
        assert!(
            broken(&fake)
                .cause
                .unwrap()
                .contains("/etc/security/limits.conf: `*  hard  memlock  64`")
        );
        fake.file("/proc/self/cgroup", "0::/system.slice/job.service");
        let step = broken(&fake);
        assert!(step.cause.unwrap().contains("systemd, for job.service"));
        assert!(
            step.fixes[0]
                .command
                .as_deref()
                .unwrap()
                .contains("LimitMEMLOCK=infinity")
        );
        fake.file("/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7");
        assert!(broken(&fake).cause.unwrap().contains("Slurm"));
        fake.file("/.dockerenv", "");
        assert!(broken(&fake).fixes[0].what.contains("--ulimit memlock=-1"));
    }
}
