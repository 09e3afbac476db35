//! The cores of a machine as sysfs describes them, below a root, so that tests can make one up.
//!
//! Of the cores that are online, only those count that the affinity mask and the cpuset of the control group
//! leave to this process. What a machine does not show is as in the simplest one: one package, one node, one
//! cache, one hardware thread for each core.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{CoreSet, allowed};
use crate::name::RailName;

const CPU: &str = "sys/devices/system/cpu";
const NODE: &str = "sys/devices/system/node";

/// One core that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// The kernel's number of it.
    pub number: usize,
    /// The package (socket) that it is in.
    pub package: usize,
    /// The NUMA node that it is in.
    pub node: usize,
    /// The whole core that it is a hardware thread of, by the lowest of their numbers.
    pub whole: usize,
    /// The last level of cache that it uses, by the lowest number of those that share it.
    pub cache: usize,
    /// Whether the scheduler leaves it alone (`isolcpus`).
    pub isolated: bool,
}

/// The cores that this process may use, and how they lie to each other.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    cores: Vec<Core>,
    online: CoreSet,
    isolated: CoreSet,
    cpuset: Option<CoreSet>,
    /// The distances from each node to all nodes, as the firmware reports them.
    distances: BTreeMap<usize, Vec<usize>>,
}

impl Topology {
    /// Reads this machine, for the calling thread.
    pub fn read() -> Self {
        Self::under(Path::new("/"), &allowed())
    }

    /// Reads a machine below `root`, for a thread with the affinity mask `mask`.
    pub fn under(root: &Path, mask: &CoreSet) -> Self {
        let cpu = root.join(CPU);
        let online = list(&cpu.join("online")).unwrap_or_else(|| mask.clone());
        let isolated = list(&cpu.join("isolated")).unwrap_or_default();
        let cpuset = cpuset(root);
        let mut usable = mask.and(&online);
        if let Some(cpuset) = &cpuset {
            // A group whose file does not fit the mask is another one's.
            let both = usable.and(cpuset);
            if !both.is_empty() {
                usable = both;
            }
        }
        let nodes = nodes(root);
        let cores = usable.iter().map(|number| Core {
            number,
            package: number_in(&cpu.join(format!("cpu{number}/topology/physical_package_id"))),
            node: nodes
                .iter()
                .find_map(|(node, cores)| cores.contains(number).then_some(*node))
                .unwrap_or(0),
            whole: list(&cpu.join(format!("cpu{number}/topology/thread_siblings_list")))
                .and_then(|siblings| siblings.iter().next())
                .unwrap_or(number),
            cache: last_cache(&cpu.join(format!("cpu{number}/cache")))
                .and_then(|sharers| sharers.iter().next())
                .unwrap_or(0),
            isolated: isolated.contains(number),
        });
        Self {
            cores: cores.collect(),
            distances: nodes
                .keys()
                .filter_map(|node| Some((*node, distances(root, *node)?)))
                .collect(),
            online,
            isolated,
            cpuset,
        }
    }

    /// The same machine, where only these cores may be used.
    pub fn within(&self, cores: &CoreSet) -> Self {
        let mut within = self.clone();
        within.cores.retain(|core| cores.contains(core.number));
        within
    }

    /// Returns the cores that may be used, by number.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Returns a core that may be used.
    pub fn core(&self, number: usize) -> Option<&Core> {
        self.cores.iter().find(|core| core.number == number)
    }

    /// Returns the numbers of the cores that may be used.
    pub fn usable(&self) -> CoreSet {
        self.cores.iter().map(|core| core.number).collect()
    }

    /// Returns the cores that are online, whether or not they may be used.
    pub fn online(&self) -> &CoreSet {
        &self.online
    }

    /// Returns the isolated cores that may not be used here: processes have them only where they are named.
    pub fn isolated_elsewhere(&self) -> CoreSet {
        self.isolated.and(&self.online).without(&self.usable())
    }

    /// Whether this process was given some of the cores only. A control group that confines all of a
    /// container counts only with `counts_cpuset`.
    pub fn is_bound(&self, counts_cpuset: bool) -> bool {
        let all = match &self.cpuset {
            Some(cpuset) if !counts_cpuset => self.online.and(cpuset),
            _ => self.online.clone(),
        };
        // Isolated cores are in no mask unless they are named.
        !all.without(&self.isolated).is_subset(&self.usable())
    }

    /// Returns the cores that are online, and in the cpuset of this process's control group.
    pub fn within_cpuset(&self) -> CoreSet {
        match &self.cpuset {
            Some(cpuset) => self.online.and(cpuset),
            None => self.online.clone(),
        }
    }

    /// Returns how many whole cores may be used.
    pub fn whole_cores(&self) -> usize {
        self.cores.iter().filter(|core| self.turn(core) == 0).count()
    }

    /// Returns all usable hardware threads of the whole core that this one belongs to, itself included.
    pub fn siblings(&self, number: usize) -> CoreSet {
        let whole = self.core(number).map(|core| core.whole);
        let same = self.cores.iter().filter(|core| Some(core.whole) == whole);
        same.map(|core| core.number).collect()
    }

    /// Returns the distance between two nodes, as the firmware reports it: 10 within a node.
    pub fn distance(&self, from: usize, to: usize) -> Option<usize> {
        self.distances.get(&from)?.get(to).copied()
    }

    /// How many usable hardware threads of the same whole core come before this one.
    pub(super) fn turn(&self, core: &Core) -> usize {
        let before = |other: &&Core| other.whole == core.whole && other.number < core.number;
        self.cores.iter().filter(before).count()
    }

    /// Orders nodes by their distance from the one that is preferred.
    pub(super) fn rank_of_node(&self, near: Option<usize>, node: usize) -> (usize, usize) {
        let distance = near.map_or(0, |near| {
            let unknown = if near == node { 10 } else { usize::MAX };
            self.distance(near, node).unwrap_or(unknown)
        });
        (distance, node)
    }
}

/// Returns the NUMA node of the device behind a rail; `None` for rails without one, and on machines that do
/// not report it.
pub fn node_of_rail(root: &Path, rail: &RailName) -> Option<usize> {
    let object = rail.object();
    let device = match rail.kind() {
        "udp" | "xdp" => format!("sys/class/net/{object}/device"),
        "verbs" => {
            let device = object.split(':').next()?;
            format!("sys/class/infiniband/{device}/device")
        }
        "usnic" | "igbvf" => format!("sys/bus/pci/devices/{object}"),
        _ => return None,
    };
    if object.is_empty() || object.contains("..") {
        return None;
    }
    // A virtio device has no such file: the one of the card that it lies on counts.
    let device = fs::canonicalize(root.join(device)).ok()?;
    let system = fs::canonicalize(root.join("sys")).ok()?;
    let mut folders = device
        .ancestors()
        .take_while(|folder| folder.starts_with(&system));
    let node = folders.find_map(|folder| text(&folder.join("numa_node")))?;
    // −1 stands for no node.
    node.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn list(path: &Path) -> Option<CoreSet> {
    text(path).and_then(|text| CoreSet::parse(&text))
}

fn number_in(path: &Path) -> usize {
    text(path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Returns the cores that share the last level of cache.
fn last_cache(folder: &Path) -> Option<CoreSet> {
    let of = |index: usize| list(&folder.join(format!("index{index}/shared_cpu_list")));
    (0..8).rev().find_map(of)
}

/// Returns the cores of each node.
fn nodes(root: &Path) -> BTreeMap<usize, CoreSet> {
    let entries = fs::read_dir(root.join(NODE)).into_iter().flatten();
    let node = |entry: std::io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        let number: usize = name.strip_prefix("node")?.parse().ok()?;
        let cores = list(&root.join(NODE).join(name).join("cpulist")).unwrap_or_default();
        Some((number, cores))
    };
    entries.filter_map(node).collect()
}

/// Returns the distances from a node, by the numbers of nodes.
fn distances(root: &Path, node: usize) -> Option<Vec<usize>> {
    let row = text(&root.join(NODE).join(format!("node{node}/distance")))?;
    row.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// Returns the cpuset of this process's control group (cgroups(7), of both versions): that of the nearest
/// group above where it has none of its own.
fn cpuset(root: &Path) -> Option<CoreSet> {
    let groups = text(&root.join("proc/self/cgroup"))?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => ("", "cpuset.cpus.effective"),
            of if of.split(',').any(|controller| controller == "cpuset") => {
                ("cpuset", "cpuset.effective_cpus")
            }
            _ => return None,
        };
        let mount = root.join("sys/fs/cgroup").join(mount);
        let mut path = PathBuf::from(path.trim_start_matches('/'));
        loop {
            if let Some(cores) = list(&mount.join(&path).join(file)) {
                return Some(cores);
            }
            if !path.pop() {
                return None;
            }
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A machine that a test has made up.
    pub(in super::super) struct Machine {
        root: tempfile::TempDir,
    }

    impl Machine {
        /// A machine without files.
        pub(in super::super) fn bare() -> Self {
            Self {
                root: tempfile::tempdir().unwrap(),
            }
        }

        /// Nodes of `wholes` whole cores each; the second hardware threads, if there are two, have the
        /// numbers after all first ones, as Linux numbers them on x86.
        pub(in super::super) fn of(nodes: usize, wholes: usize, threads: usize) -> Self {
            let machine = Self::bare();
            let all = nodes * wholes;
            machine.file(&format!("{CPU}/online"), &format!("0-{}", all * threads - 1));
            for node in 0..nodes {
                let first: Vec<usize> = (node * wholes..(node + 1) * wholes).collect();
                let cores: CoreSet = (0..threads)
                    .flat_map(|thread| first.iter().map(move |core| core + thread * all))
                    .collect();
                machine.file(&format!("{NODE}/node{node}/cpulist"), &cores.to_string());
                let row: Vec<&str> = (0..nodes)
                    .map(|to| if to == node { "10" } else { "21" })
                    .collect();
                machine.file(&format!("{NODE}/node{node}/distance"), &row.join(" "));
                for core in cores.iter() {
                    let siblings: CoreSet = (0..threads).map(|thread| core % all + thread * all).collect();
                    let at = format!("{CPU}/cpu{core}");
                    machine.file(
                        &format!("{at}/topology/thread_siblings_list"),
                        &siblings.to_string(),
                    );
                    machine.file(&format!("{at}/topology/physical_package_id"), &node.to_string());
                    machine.file(
                        &format!("{at}/cache/index0/shared_cpu_list"),
                        &siblings.to_string(),
                    );
                    machine.file(&format!("{at}/cache/index3/shared_cpu_list"), &cores.to_string());
                }
            }
            machine
        }

        pub(in super::super) fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
            self
        }

        pub(in super::super) fn read(&self, mask: &str) -> Topology {
            Topology::under(self.root.path(), &CoreSet::parse(mask).unwrap())
        }
    }

    #[test]
    fn a_machine_of_two_nodes_with_two_hardware_threads_each_is_read() {
        let machine = Machine::of(2, 4, 2);
        let topology = machine.read("0-15");
        assert_eq!((topology.cores().len(), topology.whole_cores()), (16, 8));
        let core = |number| *topology.core(number).unwrap();
        assert_eq!((core(5).node, core(5).package, core(5).whole), (1, 1, 5));
        assert_eq!((core(13).node, core(13).whole, core(13).cache), (1, 5, 4));
        assert_eq!(topology.siblings(13).to_string(), "5,13");
        assert_eq!(topology.distance(0, 1), Some(21));
        assert!(!topology.is_bound(true));
        // Where a sibling may not be used, the other is a whole core.
        let some = machine.read("1,9,10");
        assert_eq!(
            (some.whole_cores(), some.siblings(10).to_string()),
            (2, "10".to_owned())
        );
        assert!(some.is_bound(false));
        assert_eq!(
            topology
                .within(&CoreSet::parse("4-5").unwrap())
                .usable()
                .to_string(),
            "4-5"
        );
    }

    #[test]
    fn a_machine_that_shows_nothing_is_the_simplest_one() {
        let topology = Machine::bare().read("2-3");
        assert_eq!(
            (topology.whole_cores(), topology.online().to_string()),
            (2, "2-3".to_owned())
        );
        let core = topology.core(3).unwrap();
        assert_eq!((core.node, core.package, core.whole, core.cache), (0, 0, 3, 0));
    }

    #[test]
    fn cores_that_are_offline_or_outside_the_mask_or_the_cpuset_are_not_usable() {
        let machine = Machine::of(1, 8, 1);
        machine.file(&format!("{CPU}/online"), "0-2,4-7");
        assert_eq!(machine.read("2-5").usable().to_string(), "2,4-5");
        machine.file("proc/self/cgroup", "4:cpu:/x\n0::/user.slice/job");
        machine.file("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "4-6");
        let confined = machine.read("0-7");
        assert_eq!(confined.usable().to_string(), "4-6");
        // All of the group's cores: bound as one of the machine, and not as one of the container.
        assert!(confined.is_bound(true) && !confined.is_bound(false));
        // The group's own file counts before that of a group above it.
        machine.file("sys/fs/cgroup/user.slice/job/cpuset.cpus.effective", "5");
        assert_eq!(machine.read("0-7").usable().to_string(), "5");
        // One that leaves nothing is not this process's.
        assert_eq!(machine.read("0-1").usable().to_string(), "0-1");
    }

    #[test]
    fn a_cpuset_of_the_first_version_is_read() {
        let machine = Machine::of(1, 4, 1);
        machine.file("proc/self/cgroup", "9:cpuset:/slurm/step\n4:cpu,cpuacct:/x");
        machine.file("sys/fs/cgroup/cpuset/slurm/step/cpuset.effective_cpus", "1-2");
        assert_eq!(machine.read("0-3").usable().to_string(), "1-2");
    }

    #[test]
    fn isolated_cores_outside_the_mask_are_known() {
        let machine = Machine::of(1, 4, 1);
        machine.file(&format!("{CPU}/isolated"), "2-3");
        let topology = machine.read("0-1");
        assert_eq!(topology.isolated_elsewhere().to_string(), "2-3");
        // The kernel leaves them out of every mask: that is no binding.
        assert!(!topology.is_bound(true));
        let all = machine.read("0-3");
        assert!(all.core(2).unwrap().isolated && all.isolated_elsewhere().is_empty());
    }

    #[test]
    fn the_node_of_a_rail_is_that_of_its_device() {
        let machine = Machine::bare();
        machine
            .file("sys/class/net/eth0/device/numa_node", "1")
            .file("sys/class/net/eth1/device/numa_node", "-1")
            .file("sys/class/infiniband/mlx5_0/device/numa_node", "0")
            .file("sys/bus/pci/devices/0000:3b:00.2/numa_node", "1");
        let of = |rail: &str| node_of_rail(machine.root.path(), &rail.parse().unwrap());
        assert_eq!(
            (of("udp:eth0"), of("xdp:eth0"), of("udp:eth1")),
            (Some(1), Some(1), None)
        );
        assert_eq!(
            (of("verbs:mlx5_0:1"), of("usnic:0000:3b:00.2")),
            (Some(0), Some(1))
        );
        // A virtio device lies on the card that has the node.
        machine.file("sys/devices/pci0/0000:00:05.0/numa_node", "1");
        machine.file("sys/devices/pci0/0000:00:05.0/virtio0/vendor", "0x1af4");
        machine.file("sys/class/net/eth2/mtu", "1500");
        let [card, device] = [
            "sys/devices/pci0/0000:00:05.0/virtio0",
            "sys/class/net/eth2/device",
        ]
        .map(|path| machine.root.path().join(path));
        std::os::unix::fs::symlink(card, device).unwrap();
        assert_eq!(of("udp:eth2"), Some(1));
        assert_eq!(
            (of("shm"), of("udp:../x"), of("udp:10.0.0.1")),
            (None, None, None)
        );
    }

    #[test]
    fn this_machine_has_cores() {
        let topology = Topology::read();
        assert!(topology.whole_cores() >= 1);
        assert!(topology.usable().is_subset(&allowed()));
    }
}
