//! What concerns every rail of the machine: nothing here breaks one, and most of it is about time.

use super::chain::{Chain, Fix, Walk};
use super::system::{System, bytes, list, listed};

/// The machine's own chain: facts and advice.
pub(super) fn chain(system: &System) -> Chain {
    Walk::along("machine", |walk| {
        let kernel = system.text("/proc/sys/kernel/osrelease");
        walk.proved(
            "kernel",
            format!("Linux {}", kernel.as_deref().unwrap_or("of unknown version")),
        );
        container(walk, system);
        cores(walk, system);
        isolation(walk, system);
        governor(walk, system);
        sleep_states(walk, system);
        pages(walk, system);
        Ok(())
    })
}

fn container(walk: &mut Walk, system: &System) {
    match (system.container(), system.is_in_user_namespace()) {
        (None, false) => walk.not_applicable("container", "this process is in no container that shows"),
        (runner, foreign) => {
            let runner = runner.map_or_else(String::new, |runner| format!("in a container ({runner})"));
            let space =
                "in a user namespace of its own, whose capabilities the system's devices do not count";
            let both = [runner, if foreign { space.to_owned() } else { String::new() }];
            let said: Vec<&str> = both
                .iter()
                .map(String::as_str)
                .filter(|part| !part.is_empty())
                .collect();
            walk.ok("container", said.join(", "));
        }
    }
}

/// A spinning rank wants a core of its own.
fn cores(walk: &mut Walk, system: &System) {
    let may = system.cores();
    let online = list(&system.text("/sys/devices/system/cpu/online").unwrap_or_default());
    let of = if online.len() > may.len() {
        format!(" of {}", online.len())
    } else {
        String::new()
    };
    let saw = format!("this process may use {}{of} (cores {})", may.len(), listed(&may));
    match may.len() {
        0 => walk.unknown(
            "cores",
            "/proc/self/status does not list which cores may be used",
            Vec::new(),
        ),
        1 => {
            let fix = match online.len() {
                0 | 1 => Fix::hand("give the machine or the container a second core"),
                _ => Fix::run(
                    format!("taskset -cp {} $$", listed(&online)),
                    "let this shell and what it starts use all cores (a container: raise its cpuset)",
                ),
            };
            walk.note(
                "cores",
                format!("{saw}: two ranks share it, and each message waits for the scheduler"),
                vec![fix],
            );
        }
        _ => walk.ok("cores", saw),
    }
}

/// Whether some cores are kept free of everything else.
fn isolation(walk: &mut Walk, system: &System) {
    let isolated = list(
        &system
            .text("/sys/devices/system/cpu/isolated")
            .unwrap_or_default(),
    );
    if !isolated.is_empty() {
        return walk.ok("isolation", format!("cores {} are isolated", listed(&isolated)));
    }
    let online = list(&system.text("/sys/devices/system/cpu/online").unwrap_or_default());
    if online.len() < 4 {
        return walk.not_applicable(
            "isolation",
            format!(
                "no core is isolated, and of {} none can be spared",
                online.len().max(1)
            ),
        );
    }
    let spare = listed(&online[online.len() / 2..]);
    walk.note(
        "isolation",
        "no core is isolated: the scheduler and the timer's ticks show in the tail of latencies",
        vec![Fix::hand(format!(
            "for steady latencies add `isolcpus={spare} nohz_full={spare} rcu_nocbs={spare}` to the kernel's command line \
             (GRUB_CMDLINE_LINUX in /etc/default/grub, then `update-grub`), and restart"
        ))],
    );
}

/// The step about the clock rate of the cores.
fn governor(walk: &mut Walk, system: &System) {
    let of = |core: &usize| {
        system.text(&format!(
            "/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"
        ))
    };
    let cores = system.cores();
    let told: Vec<(usize, String)> = cores.iter().filter_map(|core| Some((*core, of(core)?))).collect();
    let slow: Vec<usize> = told
        .iter()
        .filter(|(_, name)| name != "performance")
        .map(|(core, _)| *core)
        .collect();
    match (told.first(), slow.first()) {
        (None, _) => walk.not_applicable("governor", "the cores' frequency is not this system's to set"),
        (Some(_), None) => walk.ok("governor", "performance"),
        (Some(_), Some(first)) => {
            let name = told
                .iter()
                .find(|(core, _)| core == first)
                .map_or("", |(_, name)| name);
            walk.note(
                "governor",
                format!("{name} on cores {}: they slow down between messages, and take their time to speed up", listed(&slow)),
                vec![Fix::run(
                    "for f in /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor; do echo performance > $f; done",
                    "keep the cores at their speed",
                )],
            );
        }
    }
}

/// A state that takes longer to wake from is felt by a rank that sleeps while it waits.
const LONG_WAKE_US: u64 = 20;

/// Checks how long a core sleeps that has nothing to do. One that polls never does.
fn sleep_states(walk: &mut Walk, system: &System) {
    let cores = system.cores();
    let Some(core) = cores.first() else {
        return walk.not_applicable("sleep", "no core is known");
    };
    let folder = format!("/sys/devices/system/cpu/cpu{core}/cpuidle");
    let of = |state: &String| {
        let at = |file: &str| format!("{folder}/{state}/{file}");
        let on = system.number(&at("disable")) == Some(0);
        let wakes = system.number(&at("latency"))?;
        on.then(|| (wakes, system.text(&at("name")).unwrap_or_else(|| state.clone())))
    };
    match system.names(&folder).iter().filter_map(of).max() {
        None => walk.not_applicable("sleep", "how cores sleep is not this system's to set"),
        Some((wakes, name)) if wakes <= LONG_WAKE_US => {
            walk.ok("sleep", format!("the deepest, {name}, is left within {wakes} µs"));
        }
        Some((wakes, name)) => walk.note(
            "sleep",
            format!("a core in {name} takes {wakes} µs to wake: ranks that sleep while they wait feel it, those that poll do not"),
            vec![Fix::run(
                format!(
                    "for s in /sys/devices/system/cpu/cpu*/cpuidle/state*; do [ $(cat $s/latency) -le {LONG_WAKE_US} ] || echo 1 > $s/disable; done"
                ),
                "forbid the deep states, until the next boot",
            )],
        ),
    }
}

/// Transparent huge pages, and those that are set aside.
fn pages(walk: &mut Walk, system: &System) {
    const THP: &str = "/sys/kernel/mm/transparent_hugepage";
    let chosen = |file: &str| {
        let text = system.text(&format!("{THP}/{file}"))?;
        let begin = text.find('[')? + 1;
        let end = begin + text[begin..].find(']')?;
        Some(text[begin..end].to_owned())
    };
    match (chosen("enabled").as_deref(), chosen("defrag").as_deref()) {
        (None, _) => walk.not_applicable("thp", "this kernel has no transparent huge pages"),
        (Some("never"), _) => walk.note(
            "thp",
            "never: large buffers are in pages of 4 KiB, and cost more look-ups",
            vec![Fix::run(
                format!("echo madvise > {THP}/enabled"),
                "allow huge pages for programs that request them",
            )],
        ),
        (Some(enabled), Some("always")) => walk.note(
            "thp",
            format!("{enabled}, and a page fault may stop to move memory together (defrag: always)"),
            vec![Fix::run(
                format!("echo madvise > {THP}/defrag"),
                "let page faults stop only in programs that request huge pages",
            )],
        ),
        (Some(enabled), _) => walk.ok("thp", enabled),
    }
    let (size, all, free) = (
        system.memory("Hugepagesize"),
        system.memory("HugePages_Total").unwrap_or(0),
        system.memory("HugePages_Free").unwrap_or(0),
    );
    match (size, all) {
        (None, _) => walk.not_applicable("hugepages", "this kernel has no huge pages"),
        (Some(size), 0) => walk.ok(
            "hugepages",
            format!(
                "no pages of {} are reserved (vm.nr_hugepages is 0); shm, udp and xdp need none",
                bytes(size)
            ),
        ),
        (Some(size), _) => walk.ok(
            "hugepages",
            format!("{free} of {all} pages of {} are free", bytes(size)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Is, Step, Verdict};
    use super::super::system::fake::Fake;
    use super::*;

    fn step(fake: &Fake, name: &str) -> Step {
        let chain = chain(&fake.system());
        assert_eq!(
            chain.verdict,
            Verdict::Usable,
            "nothing of the machine breaks a rail"
        );
        chain.steps.into_iter().find(|step| step.step == name).unwrap()
    }

    #[test]
    fn a_governor_that_saves_power_is_noted_with_its_cores() {
        let fake = Fake::new();
        assert_eq!(step(&fake, "governor").is, Is::NotApplicable);
        for core in 0..2 {
            fake.file(
                &format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor"),
                "performance\n",
            );
        }
        assert_eq!(step(&fake, "governor").is, Is::Ok);
        fake.file(
            "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
            "powersave\n",
        );
        let noted = step(&fake, "governor");
        assert!(
            noted.is == Is::Note && noted.saw.starts_with("powersave on cores 1"),
            "{noted:?}"
        );
        assert!(
            noted.fixes[0]
                .command
                .as_deref()
                .unwrap()
                .contains("echo performance")
        );
    }

    #[test]
    fn a_deep_sleep_is_noted_until_it_is_forbidden() {
        let fake = Fake::new();
        assert_eq!(step(&fake, "sleep").is, Is::NotApplicable);
        let state = |number: u32, name: &str, latency: u32, disable: u32| {
            for (file, value) in [
                ("name", name.to_owned()),
                ("latency", latency.to_string()),
                ("disable", disable.to_string()),
            ] {
                fake.file(
                    &format!("/sys/devices/system/cpu/cpu0/cpuidle/state{number}/{file}"),
                    &format!("{value}\n"),
                );
            }
        };
        state(0, "POLL", 0, 0);
        state(1, "C1", 2, 0);
        assert_eq!(step(&fake, "sleep").saw, "the deepest, C1, is left within 2 µs");
        state(2, "C6", 133, 0);
        let noted = step(&fake, "sleep");
        assert!(
            noted.is == Is::Note && noted.saw.contains("C6 takes 133 µs"),
            "{noted:?}"
        );
        state(2, "C6", 133, 1);
        assert_eq!(step(&fake, "sleep").is, Is::Ok);
    }

    #[test]
    fn isolation_is_advised_where_cores_can_be_spared() {
        let fake = Fake::new();
        fake.file("/sys/devices/system/cpu/online", "0-1");
        assert_eq!(step(&fake, "isolation").is, Is::NotApplicable);
        fake.file("/sys/devices/system/cpu/online", "0-7");
        let noted = step(&fake, "isolation");
        assert!(
            noted.is == Is::Note && noted.fixes[0].what.contains("isolcpus=4-7"),
            "{noted:?}"
        );
        fake.file("/sys/devices/system/cpu/isolated", "6-7\n");
        assert_eq!(step(&fake, "isolation").saw, "cores 6-7 are isolated");
    }

    #[test]
    fn one_core_of_many_is_noted_with_the_command() {
        let fake = Fake::new();
        fake.file("/sys/devices/system/cpu/online", "0-3")
            .file("/proc/self/status", "CapEff:\t0\nCpus_allowed_list:\t2\n");
        let noted = step(&fake, "cores");
        assert!(noted.is == Is::Note && noted.saw.contains("1 of 4"), "{noted:?}");
        assert_eq!(noted.fixes[0].command.as_deref(), Some("taskset -cp 0-3 $$"));
    }

    #[test]
    fn huge_pages_are_shown_as_they_are() {
        const THP: &str = "/sys/kernel/mm/transparent_hugepage";
        let fake = Fake::new();
        assert_eq!(step(&fake, "thp").is, Is::NotApplicable);
        fake.file(&format!("{THP}/enabled"), "always [madvise] never")
            .file(&format!("{THP}/defrag"), "always defer [madvise] never");
        assert_eq!(
            (step(&fake, "thp").is, step(&fake, "thp").saw.as_str()),
            (Is::Ok, "madvise")
        );
        fake.file(&format!("{THP}/defrag"), "[always] defer madvise never");
        assert!(
            step(&fake, "thp").fixes[0]
                .command
                .as_deref()
                .unwrap()
                .ends_with("/defrag")
        );
        fake.file(&format!("{THP}/enabled"), "always madvise [never]");
        assert!(step(&fake, "thp").saw.starts_with("never"));
        assert_eq!(step(&fake, "hugepages").saw, "64 of 64 pages of 2.0 MiB are free");
    }
}
