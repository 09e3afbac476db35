//! What disturbed a rank during the measurement: the difference of two readings of `/proc`.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Snapshots of the kernel's counters of this thread, of its core and of its control group; and, from the
/// first one on, of the cores that the thread may use.
#[derive(Debug)]
pub struct Watch {
    at: Instant,
    counts: Counts,
    cores: RefCell<Vec<Moved>>,
}

/// The counters of the kernel at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    core: Option<usize>,
    steal: u64,
    switches: u64,
    ran_ns: u64,
    waited_ns: u64,
    quota: Quota,
}

/// How often a control group, or one above it, had used up its share of processor time (`cpu.max`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Quota {
    periods: u64,
    throttled: u64,
    throttled_ns: u64,
}

/// Cores that a thread might use from some time on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Nanoseconds since the measurement began.
    pub after_ns: u64,
    /// The cores that it was allowed to use from then on.
    pub cores: Vec<usize>,
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noise {
    /// Ticks (a hundredth of a second each) that the hypervisor gave to another guest.
    pub steal_ticks: u64,
    /// How often this thread had to give its core to another one.
    pub involuntary_switches: u64,
    /// The time from one look to the other, in nanoseconds.
    #[serde(default)]
    pub wall_ns: u64,
    /// The part of that time in which this thread ran; 0 where the kernel does not count it.
    #[serde(default)]
    pub ran_ns: u64,
    /// The time in which it could have run, and had no core.
    #[serde(default)]
    pub waited_ns: u64,
    /// Periods of the quota of processor time of its control group (`cpu.max`).
    #[serde(default)]
    pub quota_periods: u64,
    /// The number of those periods in which the quota was used up.
    #[serde(default)]
    pub throttled_periods: u64,
    /// How long threads of the group were stopped for that, all of them together.
    #[serde(default)]
    pub throttled_ns: u64,
}

impl Noise {
    /// The time in which this thread neither ran nor waited for a core: it slept, or was stopped.
    pub fn stood_still(&self) -> Duration {
        match self.ran_ns {
            0 => Duration::ZERO,
            ran => Duration::from_nanos(self.wall_ns.saturating_sub(ran).saturating_sub(self.waited_ns)),
        }
    }
}

impl Watch {
    /// Looks now; `core` is the one that this thread is bound to, `None` means all of them together.
    pub fn look(core: Option<usize>) -> Self {
        let cores = Moved {
            after_ns: 0,
            cores: crate::pin::allowed(),
        };
        Self {
            at: Instant::now(),
            counts: Counts::under(Path::new("/"), core),
            cores: RefCell::new(vec![cores]),
        }
    }

    /// Notes where this thread may run now, when that has changed. One call of the system: for the time
    /// between two loops.
    pub fn look_at_cores(&self) {
        self.note(crate::pin::allowed());
    }

    fn note(&self, now: Vec<usize>) {
        let mut cores = self.cores.borrow_mut();
        if cores.len() < MOVES_MAX && cores.last().is_none_or(|last| last.cores != now) {
            cores.push(Moved {
                after_ns: nanos(self.at.elapsed()),
                cores: now,
            });
        }
    }

    /// Returns the other cores that this thread might use since the first look, in the order of time; empty
    /// when they never changed.
    pub fn moved(&self) -> Vec<Moved> {
        self.look_at_cores();
        self.cores.borrow()[1..].to_vec()
    }

    /// Returns what happened since the first look.
    pub fn since(&self) -> Noise {
        let noise = self
            .counts
            .until(&Counts::under(Path::new("/"), self.counts.core));
        Noise {
            wall_ns: nanos(self.at.elapsed()),
            ..noise
        }
    }
}

/// Maximum number of changes that are noted.
const MOVES_MAX: usize = 100;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counts {
    fn under(root: &Path, core: Option<usize>) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (ran_ns, waited_ns) = times(&text("proc/thread-self/schedstat"));
        Self {
            core,
            steal: steal(&text("proc/stat"), core),
            switches: switches(&text("proc/thread-self/status")),
            ran_ns,
            waited_ns,
            quota: Quota::under(root, &text("proc/self/cgroup")),
        }
    }

    fn until(&self, later: &Self) -> Noise {
        let quota = later.quota;
        Noise {
            steal_ticks: later.steal.saturating_sub(self.steal),
            involuntary_switches: later.switches.saturating_sub(self.switches),
            wall_ns: 0,
            ran_ns: later.ran_ns.saturating_sub(self.ran_ns),
            waited_ns: later.waited_ns.saturating_sub(self.waited_ns),
            quota_periods: quota.periods.saturating_sub(self.quota.periods),
            throttled_periods: quota.throttled.saturating_sub(self.quota.throttled),
            throttled_ns: quota.throttled_ns.saturating_sub(self.quota.throttled_ns),
        }
    }
}

impl Quota {
    /// Sums the groups that `/proc/self/cgroup` names and all above them (cgroups(7), of both versions).
    fn under(root: &Path, groups: &str) -> Self {
        let mut all = Self::default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let mounts: &[&str] = match controllers {
                "" => &["", "unified"],
                of if of.split(',').any(|controller| controller == "cpu") => &["cpu", "cpu,cpuacct"],
                _ => continue,
            };
            let mount = mounts
                .iter()
                .map(|mount| root.join("sys/fs/cgroup").join(mount))
                .find(|mount| mount.join("cgroup.procs").exists());
            let Some(mount) = mount else { continue };
            let mut path = PathBuf::from(path.trim_start_matches('/'));
            loop {
                let stat = fs::read_to_string(mount.join(&path).join("cpu.stat"));
                all.add(&stat.unwrap_or_default());
                if !path.pop() {
                    break;
                }
            }
        }
        all
    }

    fn add(&mut self, stat: &str) {
        let value = |name: &str| -> u64 {
            let mut words = stat.lines().filter_map(|line| line.split_once(' '));
            let found = words.find(|(key, _)| *key == name);
            found
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        self.periods += value("nr_periods");
        self.throttled += value("nr_throttled");
        // Version 2 has microseconds, version 1 nanoseconds.
        self.throttled_ns += value("throttled_usec") * 1_000 + value("throttled_time");
    }
}

/// Returns how long a thread ran, and how long it waited to run, in nanoseconds
/// (Documentation/scheduler/sched-stats.rst).
fn times(schedstat: &str) -> (u64, u64) {
    let mut numbers = schedstat.split_whitespace().map(|word| word.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The eighth number of the core's line (proc(5), /proc/stat).
fn steal(stat: &str, core: Option<usize>) -> u64 {
    let name = core.map_or_else(|| "cpu".to_owned(), |core| format!("cpu{core}"));
    stat.lines()
        .map(str::split_whitespace)
        .find_map(|mut words| {
            (words.next()? == name)
                .then(|| words.nth(7)?.parse().ok())
                .flatten()
        })
        .unwrap_or(0)
}

fn switches(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("nonvoluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  57972 0 7278 275523 1318 0 55 83 0 0\ncpu0 1 2 3 4 5 6 7 39 0 0\ncpu10 1 2 3 4 5 6 7 44 0 0\n";

    #[test]
    fn the_right_column_of_the_right_core_is_read() {
        assert_eq!(
            (steal(STAT, None), steal(STAT, Some(0)), steal(STAT, Some(10))),
            (83, 39, 44)
        );
        assert_eq!(
            (steal(STAT, Some(1)), steal("cpu 1 2", None), steal("", None)),
            (0, 0, 0)
        );
        assert_eq!(switches("Name:\tx\nnonvoluntary_ctxt_switches:\t12\n"), 12);
        assert_eq!(switches("nonvoluntary_ctxt_switches:\tmany"), 0);
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_thread_that_is_pushed_aside_notices() {
        let root = tempfile::tempdir().unwrap();
        let look = |switches: u32, steal: u32, times: &str| {
            let status = format!("nonvoluntary_ctxt_switches:\t{switches}\n");
            write(root.path(), "proc/thread-self/status", &status);
            write(root.path(), "proc/stat", &format!("cpu 0 0 0 0 0 0 0 {steal}\n"));
            write(root.path(), "proc/thread-self/schedstat", times);
            Counts::under(root.path(), None)
        };
        let (before, after) = (look(3, 10, "1000 500 7\n"), look(8, 12, "5000 900 9\n"));
        let noise = before.until(&after);
        assert_eq!((noise.involuntary_switches, noise.steal_ticks), (5, 2));
        assert_eq!((noise.ran_ns, noise.waited_ns), (4_000, 400));
        let stopped = Noise {
            wall_ns: 10_000,
            ..noise
        };
        assert_eq!(stopped.stood_still(), Duration::from_nanos(5_600));
        assert_eq!(after.until(&before), Noise::default());
        assert_eq!(
            Noise {
                wall_ns: 9,
                ..Noise::default()
            }
            .stood_still(),
            Duration::ZERO
        );
    }

    #[test]
    fn a_quota_is_counted_in_every_group_above() {
        let root = tempfile::tempdir().unwrap();
        let groups = "9:cpuset:/x\n4:cpu,cpuacct:/job\n0::/a/b\n";
        assert_eq!(Quota::under(root.path(), groups), Quota::default());
        let stat = |throttled: u32| {
            format!("usage_usec 5\nnr_periods 41\nnr_throttled {throttled}\nthrottled_usec 2\n")
        };
        write(root.path(), "sys/fs/cgroup/cgroup.procs", "");
        write(root.path(), "sys/fs/cgroup/a/b/cpu.stat", &stat(35));
        write(root.path(), "sys/fs/cgroup/a/cpu.stat", &stat(1));
        write(root.path(), "sys/fs/cgroup/cpu.stat", "usage_usec 5\n");
        let version_2 = Quota {
            periods: 82,
            throttled: 36,
            throttled_ns: 4_000,
        };
        assert_eq!(Quota::under(root.path(), groups), version_2);
        let old = "nr_periods 2\nnr_throttled 1\nthrottled_time 7\n";
        write(root.path(), "sys/fs/cgroup/cpu,cpuacct/cgroup.procs", "");
        write(root.path(), "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", old);
        let both = Quota {
            periods: 84,
            throttled: 37,
            throttled_ns: 4_007,
        };
        assert_eq!(Quota::under(root.path(), groups), both);
    }

    #[test]
    fn cores_that_change_are_noted_once_each() {
        let watch = Watch::look(None);
        let own = crate::pin::allowed();
        for cores in [own.clone(), vec![900], vec![900], own.clone()] {
            watch.note(cores);
        }
        let moved: Vec<Vec<usize>> = watch.moved().into_iter().map(|moved| moved.cores).collect();
        assert_eq!(moved, [vec![900], own]);
        (0..2 * MOVES_MAX).for_each(|n| watch.note(vec![n]));
        assert!(watch.moved().len() < MOVES_MAX);
        assert!(watch.since().wall_ns > 0);
    }
}
