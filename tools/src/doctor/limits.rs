//! Limits of a process (setrlimit(2)): who set them, and where they are raised. And the step about open
//! files, which more than one rail needs.

use doorbell_fabric::limits::{self, Resource};

use super::chain::{Ended, Fix, Walk};
use super::system::System;

/// A limit, by its names in each place that sets it.
pub(super) struct Limit {
    /// In the files of limits that logins read, and in Slurm's settings.
    word: &'static str,
    /// In a unit of systemd, and what it is to be there.
    unit: &'static str,
    of_unit: &'static str,
    /// What it is to be for those who log in.
    of_login: &'static str,
    /// As an option of container runtimes.
    container: &'static str,
}

/// The limit of locked memory.
pub(super) const MEMLOCK: Limit = Limit {
    word: "memlock",
    unit: "LimitMEMLOCK",
    of_unit: "infinity",
    of_login: "unlimited",
    container: "memlock=-1",
};

/// The limit of open files.
const NOFILE: Limit = Limit {
    word: "nofile",
    unit: "LimitNOFILE",
    of_unit: "65536",
    of_login: "65536",
    container: "nofile=65536:65536",
};

/// `CAP_SYS_RESOURCE` (linux/capability.h): a process with it raises hard limits, too.
const SYS_RESOURCE: u32 = 24;
/// Descriptors that are enough for a job of any usual size.
const AMPLE: u64 = 4096;

/// A step that is broken because a process may have too few descriptors, of which `needed` are the least;
/// `why` they are needed.
pub(super) fn few_files(walk: &mut Walk, system: &System, needed: u64, why: &str) -> Ended {
    let [soft, _] = files(system);
    let may = soft.map_or_else(|| "too few".to_owned(), |soft| soft.to_string());
    let (cause, fix) = more_files(system, needed);
    let saw = format!("this process may have {may} descriptors, and {why}");
    walk.broken("files", saw, cause, vec![fix])
}

/// The limit of open files: the soft and the hard one.
fn files(system: &System) -> [Option<u64>; 2] {
    system.limit("Max open files").unwrap_or_else(|| {
        // Without a free descriptor no file can be read.
        let own = limits::Limit::of(Resource::RLIMIT_NOFILE);
        [own.soft, own.hard]
    })
}

/// Returns what keeps the limit of open files below `needed`, and where it is raised.
pub(super) fn more_files(system: &System, needed: u64) -> (String, Fix) {
    let [soft, hard] = files(system);
    // A limit that is enough, and not lower than the present one.
    let enough = needed.max(soft.unwrap_or(0) + 1);
    let is_free = system.may(SYS_RESOURCE) == Some(true) && !system.is_in_user_namespace();
    let (cause, fix) = match hard {
        None => (
            "the limit of open files (`ulimit -n`) is too small",
            Fix::run("ulimit -n 65536", "raise it for this shell and what it starts"),
        ),
        Some(hard) if hard >= enough => (
            "the limit of open files (`ulimit -n`) is too small",
            Fix::run(format!("ulimit -n {hard}"), "raise it as far as this shell may"),
        ),
        Some(_) if is_free => (
            "the limit of open files (`ulimit -n`) is too small, the hard one as well",
            Fix::run(
                format!("ulimit -n {AMPLE}"),
                "raise both, which this user may (CAP_SYS_RESOURCE)",
            ),
        ),
        Some(_) => {
            let origin = origin_of(system, &NOFILE);
            let cause = format!(
                "the hard limit of open files (`ulimit -Hn`) is too small; it came from {}",
                origin.by
            );
            return (cause, origin.fix);
        }
    };
    (cause.to_owned(), fix)
}

/// The origin of a limit, and where it is raised.
pub(super) struct Origin {
    pub(super) by: String,
    pub(super) origin: String,
    pub(super) fix: Fix,
}

/// Returns what set `limit` of this process, according to where the process runs, and where it is raised.
pub(super) fn origin_of(system: &System, limit: &Limit) -> Origin {
    let Limit {
        word,
        unit: setting,
        container,
        ..
    } = limit;
    if let Some(runner) = system.container() {
        return Origin {
            by: format!("the container ({runner})"),
            origin: "the container's".to_owned(),
            fix: match runner {
                "kubepods" => Fix::hand(format!(
                    "raise {setting} of the container runtime's unit on the node (containerd or crio), and \
                     restart the pod"
                )),
                _ => Fix::hand(format!("start the container with `--ulimit {container}`")),
            },
        };
    }
    let group = system.text("/proc/self/cgroup").unwrap_or_default();
    if group.contains("slurm") {
        return Origin {
            by: "Slurm, which gave the job the limits of the shell that submitted it, or of slurmd"
                .to_owned(),
            origin: "the job's".to_owned(),
            fix: Fix::hand(format!(
                "set PropagateResourceLimitsExcept={} in slurm.conf and {setting}={} in slurmd's unit",
                word.to_uppercase(),
                limit.of_unit
            )),
        };
    }
    let unit = group
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .find(|name| name.ends_with(".service"));
    if let Some(unit) = unit.filter(|unit| !unit.starts_with("user@")) {
        return Origin {
            by: format!("systemd, for {unit}"),
            origin: format!("{unit}'s"),
            fix: Fix::run(
                format!(
                    "mkdir -p /etc/systemd/system/{unit}.d && printf '[Service]\\n{setting}={}\\n' > \
                     /etc/systemd/system/{unit}.d/{word}.conf && systemctl daemon-reload && systemctl \
                     restart {unit}",
                    limit.of_unit
                ),
                "give the service its own limit",
            ),
        };
    }
    if let Some((file, line)) = limits_line(system, word) {
        return Origin {
            by: format!("{file}: `{line}`"),
            origin: format!("by {file}"),
            fix: Fix::hand(format!(
                "change that line of {file} to `* - {word} {}`, and log in again",
                limit.of_login
            )),
        };
    }
    Origin {
        by: "the kernel's default, or the shell or program that started this one".to_owned(),
        origin: "a default".to_owned(),
        fix: Fix::run(
            format!(
                "echo '* - {word} {}' > /etc/security/limits.d/doorbell-{word}.conf",
                limit.of_login
            ),
            "raise it for all who log in from now on",
        ),
    }
}

/// The first line about it in the files that logins read.
fn limits_line(system: &System, word: &str) -> Option<(String, String)> {
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
                .find(|line| !line.starts_with('#') && line.split_whitespace().nth(2) == Some(word))?;
            Some((file, line.to_owned()))
        })
}

#[cfg(test)]
mod tests {
    use super::super::chain::Step;
    use super::super::system::fake::Fake;
    use super::*;

    fn step(fake: &Fake) -> Step {
        let chain = Walk::along("x", |walk| {
            Err(few_files(walk, &fake.system(), 64, "it needs 64"))
        });
        chain.steps.into_iter().next_back().unwrap()
    }

    #[test]
    fn the_limit_of_files_is_raised_where_it_was_set() {
        let fake = Fake::new();
        let files = |soft: &str, hard: &str| {
            fake.file(
                "/proc/self/limits",
                &format!("Max open files   {soft}   {hard}   files\n"),
            );
        };
        files("20", "4096");
        assert_eq!(step(&fake).fixes[0].command.as_deref(), Some("ulimit -n 4096"));
        files("20", "unlimited");
        assert_eq!(step(&fake).fixes[0].command.as_deref(), Some("ulimit -n 65536"));
        // Both are too small: root raises both; for other users the advice names what set theirs.
        files("20", "20");
        assert_eq!(step(&fake).fixes[0].command.as_deref(), Some("ulimit -n 4096"));
        fake.file("/proc/self/status", "CapEff:\t0000000000000000\n");
        let told = step(&fake);
        assert!(told.cause.unwrap().contains("hard limit"), "{:?}", told.fixes);
        assert!(
            told.fixes[0]
                .command
                .as_deref()
                .unwrap()
                .contains("* - nofile 65536")
        );
        fake.file("/proc/self/cgroup", "0::/system.slice/job.service");
        assert!(
            step(&fake).fixes[0]
                .command
                .as_deref()
                .unwrap()
                .contains("LimitNOFILE=65536")
        );
        fake.file("/.dockerenv", "");
        assert!(step(&fake).fixes[0].what.contains("--ulimit nofile=65536:65536"));
    }
}
