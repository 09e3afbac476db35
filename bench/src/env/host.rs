//! What `/sys` and `/proc` report about the machine. Everything is optional: a missing file is not an error,
//! but a fact that cannot be known, and is shown as such.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use doorbell_fabric::cores::CoreSet;
use serde::{Deserialize, Serialize};

/// The machine of rank 0, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The host name of the machine.
    pub name: String,
    /// The processor's model.
    pub cpu_model: Option<String>,
    /// Cores that are online.
    pub cores_online: usize,
    /// Cores that the measurement might use, before it bound its ranks; under a launcher, those that it gave
    /// rank 0.
    pub cores_allowed: Vec<usize>,
    /// The release of the kernel.
    pub kernel: Option<String>,
    /// The kernel's own clock source.
    pub clock_source: Option<String>,
    /// Frequency governor of each measuring core; empty when the machine does not show one.
    pub governors: BTreeMap<usize, String>,
    /// The hardware threads of the core that each measuring core is one of, as the kernel lists them.
    #[serde(default)]
    pub threads: BTreeMap<usize, String>,
    /// The driver of idle states.
    pub idle_driver: Option<String>,
    /// Idle states of the first measuring core that are not disabled, shallow to deep, with their exit
    /// latency in microseconds.
    pub idle_states: Vec<(String, u64)>,
    /// Cores kept from the scheduler (`isolcpus`), as the kernel lists them.
    pub isolated: String,
    /// Cores without a timer tick while one task runs (`nohz_full`).
    pub nohz_full: String,
    /// The hypervisor's name, when this is a virtual machine.
    pub virtualised: Option<String>,
    /// Which cores share the last level of cache with the first measuring core.
    pub cache_neighbours: Option<String>,
    /// Load average over one minute when the measurement began.
    pub load: Option<f64>,
}

impl Host {
    /// Reads the machine's record for the given measuring cores.
    pub fn read(cores: &[usize]) -> Self {
        Self {
            cores_allowed: crate::pin::allowed(),
            ..Self::under(Path::new("/"), cores)
        }
    }

    /// Adds what is known of more measuring cores.
    pub(crate) fn add_cores(&mut self, cores: &[usize]) {
        let more = Self::under(Path::new("/"), cores);
        self.governors.extend(more.governors);
        self.threads.extend(more.threads);
    }

    /// Whether two cores are hardware threads of one.
    pub fn are_siblings(&self, one: usize, other: usize) -> bool {
        let threads = |core: usize| {
            self.threads
                .get(&core)
                .map_or_else(CoreSet::default, |list| CoreSet::of_kernel(list))
        };
        one != other && (threads(one).contains(other) || threads(other).contains(one))
    }

    /// Reads the record below another root, so that any machine can be imitated.
    pub fn under(root: &Path, cores: &[usize]) -> Self {
        let file = |path: &str| read(&root.join(path));
        let cpu = "sys/devices/system/cpu";
        let first = cores.first().copied().unwrap_or(0);
        let info = file("proc/cpuinfo").unwrap_or_default();
        Self {
            name: file("proc/sys/kernel/hostname").unwrap_or_default(),
            cpu_model: field(&info, "model name"),
            cores_online: file(&format!("{cpu}/online")).map_or(0, |list| CoreSet::of_kernel(&list).len()),
            cores_allowed: Vec::new(),
            kernel: file("proc/sys/kernel/osrelease"),
            clock_source: file("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            governors: cores
                .iter()
                .filter_map(|core| Some((*core, file(&format!("{cpu}/cpu{core}/cpufreq/scaling_governor"))?)))
                .collect(),
            threads: cores
                .iter()
                .filter_map(|core| {
                    Some((
                        *core,
                        file(&format!("{cpu}/cpu{core}/topology/thread_siblings_list"))?,
                    ))
                })
                .collect(),
            idle_driver: file(&format!("{cpu}/cpuidle/current_driver")),
            idle_states: idle_states(&root.join(format!("{cpu}/cpu{first}/cpuidle"))),
            isolated: file(&format!("{cpu}/isolated")).unwrap_or_default(),
            nohz_full: file(&format!("{cpu}/nohz_full"))
                .filter(|list| list != "(null)")
                .unwrap_or_default(),
            virtualised: virtualised(root, &info),
            cache_neighbours: (0..5)
                .rev()
                .find_map(|level| file(&format!("{cpu}/cpu{first}/cache/index{level}/shared_cpu_list"))),
            load: file("proc/loadavg").and_then(|line| line.split(' ').next()?.parse().ok()),
        }
    }

    /// Whether a core is kept from the scheduler.
    pub fn is_isolated(&self, core: usize) -> bool {
        CoreSet::of_kernel(&self.isolated).contains(core)
    }
}

/// A file's text without its last newline; `None` when it cannot be read or is empty.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn idle_states(folder: &Path) -> Vec<(String, u64)> {
    (0..32)
        .map(|state| folder.join(format!("state{state}")))
        .take_while(|state| state.is_dir())
        .filter(|state| read(&state.join("disable")).is_none_or(|text| text == "0"))
        .filter_map(|state| {
            Some((
                read(&state.join("name"))?,
                read(&state.join("latency"))?.parse().ok()?,
            ))
        })
        .collect()
}

fn virtualised(root: &Path, cpuinfo: &str) -> Option<String> {
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    let named = read(&root.join("sys/hypervisor/type"))
        .or_else(|| read(&root.join("sys/class/dmi/id/product_name")).filter(|name| is_machine(name)));
    match (named, flags.split(' ').any(|flag| flag == "hypervisor")) {
        (Some(name), _) => Some(name),
        (None, true) => Some("unnamed hypervisor".to_owned()),
        (None, false) => None,
    }
}

/// Product names that virtual machines give themselves.
fn is_machine(name: &str) -> bool {
    ["KVM", "Virtual", "VMware", "Firecracker", "QEMU", "Bochs", "HVM"]
        .iter()
        .any(|known| name.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_tuned_machine_is_read_completely() {
        let cpu = "sys/devices/system/cpu";
        let root = machine(&[
            (
                "proc/cpuinfo",
                "processor : 0\nmodel name\t: Big Iron 9000\nflags : fpu tsc\n",
            ),
            ("proc/loadavg", "0.25 0.1 0.1 1/100 1\n"),
            (&format!("{cpu}/online"), "0-3\n"),
            (&format!("{cpu}/isolated"), "2-3\n"),
            (&format!("{cpu}/nohz_full"), "(null)\n"),
            (&format!("{cpu}/cpu2/cpufreq/scaling_governor"), "performance\n"),
            (&format!("{cpu}/cpu3/cpufreq/scaling_governor"), "powersave\n"),
            (&format!("{cpu}/cpu2/cpuidle/state0/name"), "POLL\n"),
            (&format!("{cpu}/cpu2/cpuidle/state0/latency"), "0\n"),
            (&format!("{cpu}/cpu2/cpuidle/state1/name"), "C6\n"),
            (&format!("{cpu}/cpu2/cpuidle/state1/latency"), "133\n"),
            (&format!("{cpu}/cpu2/cpuidle/state1/disable"), "1\n"),
            (&format!("{cpu}/cpu2/cache/index3/shared_cpu_list"), "0-3\n"),
            (&format!("{cpu}/cpu2/topology/thread_siblings_list"), "2-3\n"),
        ]);
        let host = Host::under(root.path(), &[2, 3]);
        assert_eq!(host.cpu_model.as_deref(), Some("Big Iron 9000"));
        assert_eq!((host.cores_online, host.load), (4, Some(0.25)));
        assert_eq!(host.governors[&3], "powersave");
        assert_eq!(host.idle_states, [("POLL".to_owned(), 0)]);
        assert!(host.is_isolated(2) && !host.is_isolated(1));
        assert!(host.are_siblings(2, 3) && host.are_siblings(3, 2));
        assert!(!host.are_siblings(2, 2) && !host.are_siblings(2, 1));
        assert_eq!((host.nohz_full.as_str(), host.virtualised.as_deref()), ("", None));
        assert_eq!(host.cache_neighbours.as_deref(), Some("0-3"));
    }

    #[test]
    fn a_machine_that_shows_nothing_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::under(root.path(), &[0]);
        assert_eq!((host.cpu_model, host.kernel, host.load), (None, None, None));
        assert!(host.governors.is_empty() && host.idle_states.is_empty());
    }

    #[test]
    fn this_machine_has_cores() {
        let host = Host::read(&[0]);
        assert!(host.cores_online >= 1 && !host.cores_allowed.is_empty());
    }
}
