//! Locked memory: how much a rail needs, how much this process may lock, who set that, and where to change it.

use super::chain::{Fix, Link, Walk};
use super::system::{System, bytes};

/// `CAP_IPC_LOCK` (linux/capability.h): no limit holds for who has it.
const IPC_LOCK: u32 = 14;

/// The step of a rail that locks `needed` bytes. CAP_IPC_LOCK lifts the limit, for AF_XDP as for VFIO.
pub(super) fn step(walk: &mut Walk, system: &System, needed: u64) -> Link {
    let needs = format!("{} needed", bytes(needed));
    if system.may(IPC_LOCK) == Some(true) && !system.is_in_user_namespace() {
        walk.ok(
            "memlock",
            format!("{needs}, and no limit holds for who has CAP_IPC_LOCK"),
        );
        return Ok(());
    }
    let Some([soft, hard]) = system.limit("Max locked memory") else {
        walk.unknown(
            "memlock",
            format!("{needs}; /proc/self/limits does not tell how much may be locked"),
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
    let who = who(system);
    let saw = format!(
        "{needs}, and this process may lock {} ({})",
        bytes(soft),
        who.origin
    );
    let mut cause = format!(
        "the kernel locks the memory of frames, and the limit came from {}",
        who.by
    );
    let may_raise = hard.is_none_or(|hard| hard >= needed);
    if may_raise {
        cause.push_str("; whoever starts the program may raise it");
    }
    let kib = needed.div_ceil(1024);
    let mut fixes = Vec::new();
    if may_raise {
        fixes.push(Fix::run(
            format!("ulimit -l {kib}"),
            "raise the limit of this shell and what it starts",
        ));
    }
    fixes.push(who.fix);
    Err(walk.broken("memlock", saw, cause, fixes))
}

/// Who set the limit.
struct Who {
    by: String,
    origin: String,
    fix: Fix,
}

fn who(system: &System) -> Who {
    if let Some(runner) = system.container() {
        return Who {
            by: format!("the container ({runner})"),
            origin: "the container's".to_owned(),
            fix: match runner {
                "kubepods" => Fix::hand(
                    "raise LimitMEMLOCK of the container runtime's unit on the node (containerd or crio), and start the pod anew",
                ),
                _ => Fix::hand("start the container with `--ulimit memlock=-1`"),
            },
        };
    }
    let group = system.text("/proc/self/cgroup").unwrap_or_default();
    if group.contains("slurm") {
        return Who {
            by: "Slurm, which gave the job the limits of the shell that submitted it, or of slurmd"
                .to_owned(),
            origin: "the job's".to_owned(),
            fix: Fix::hand(
                "set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity in slurmd's unit",
            ),
        };
    }
    let unit = group
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .find(|name| name.ends_with(".service"));
    if let Some(unit) = unit.filter(|unit| !unit.starts_with("user@")) {
        return Who {
            by: format!("systemd, for {unit}"),
            origin: format!("{unit}'s"),
            fix: Fix::run(
                format!(
                    "mkdir -p /etc/systemd/system/{unit}.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > \
                     /etc/systemd/system/{unit}.d/memlock.conf && systemctl daemon-reload && systemctl restart {unit}"
                ),
                "give the service its own limit",
            ),
        };
    }
    if let Some((file, line)) = limits_line(system) {
        return Who {
            by: format!("{file}: `{line}`"),
            origin: format!("by {file}"),
            fix: Fix::hand(format!(
                "change that line of {file} to `* - memlock unlimited`, and log in again"
            )),
        };
    }
    Who {
        by: "the kernel's default, or the shell or program that started this one".to_owned(),
        origin: "a default".to_owned(),
        fix: Fix::run(
            "echo '* - memlock unlimited' > /etc/security/limits.d/doorbell.conf",
            "raise it for all who log in from now on",
        ),
    }
}

/// The first line about it in the files that logins read.
fn limits_line(system: &System) -> Option<(String, String)> {
    const FOLDER: &str = "/etc/security/limits.d";
    let parts = system
        .names(FOLDER)
        .into_iter()
        .rev()
        .map(|name| format!("{FOLDER}/{name}"));
    parts
        .chain(["/etc/security/limits.conf".to_owned()])
        .find_map(|file| {
            let text = system.text(&file)?;
            let line = text
                .lines()
                .map(str::trim)
                .find(|line| !line.starts_with('#') && line.split_whitespace().nth(2) == Some("memlock"))?;
            Some((file, line.to_owned()))
        })
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Chain, Is, Step, Verdict};
    use super::super::system::fake::Fake;
    use super::*;

    /// A user's process: no capability.
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
    fn sixty_four_kib_are_told_with_what_is_needed_and_how_to_raise_them() {
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
    fn who_set_it_is_named() {
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
