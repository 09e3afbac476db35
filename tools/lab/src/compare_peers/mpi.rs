//! The MPIs: our small benchmark, compiled by each one's own compiler, started by each one's own
//! launcher.
//!
//! Over the network the launcher reaches the other namespace by a script in the place of ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use doorbell_bench::stats::Percentiles;
use doorbell_fabric::clock::{Clock, Source};
use doorbell_tools::process::Stop;

use super::doorbell::BLOCKING_MOST;
use super::find::Peer;
use super::load::{Figure, Kind, Load, steps};
use super::stack::{Lab, Stack, complete};
use crate::compare_peers::args::Family;
use crate::place::{INTERFACE, Place, Setting, Side};
use crate::probes::Overlap;

/// The source of the benchmark.
const SOURCE: &str = include_str!("../../peers/mpi_pair.c");
/// A compiler takes a second or so.
const COMPILES: Duration = Duration::from_secs(60);

/// How an MPI carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it is installed: Open MPI's own ob1 over its btl, MPICH's and Intel's own shared memory; over the
    /// network what each has for TCP by itself.
    Own,
    /// Open MPI over UCX.
    OverUcx,
    /// MPICH by this module of its device, for messages within a host, too.
    Module(&'static str),
    /// Open MPI's ob1 over btl tcp, within a host.
    Loopback,
    /// Over this provider of libfabric, also within a host.
    Provider(&'static str),
}

/// The provider of this project.
const OURS: &str = "doorbell";
/// How the MPIs go within a host where that provider's folder is named.
const OPEN_MPI_OVER: [(Way, &str); 2] = [(Way::Provider(OURS), "doorbell"), (Way::Loopback, "tcp")];
const MPICH_OVER: [(Way, &str); 3] = [
    (Way::Provider(OURS), "doorbell"),
    (Way::Provider("shm"), "libfabric shm"),
    (Way::Provider("tcp;ofi_rxm"), "tcp"),
];

/// From this release of Open MPI on, its own shared memory is called sm, and its runtime is another one.
const OPEN_MPI_SM: u32 = 5;
/// From this release on, MPICH carries messages by a module within a host, too, where a setting has it do so.
const MPICH_MODULES: u32 = 4;

/// An MPI in one way.
pub(crate) struct Mpi {
    peer: Peer,
    way: Way,
    name: String,
    /// The folder of this project's provider.
    folder: Option<PathBuf>,
}

impl Mpi {
    /// The ways of an MPI that is here, over shared memory or over the network; within a host over this
    /// project's provider too, where its folder is named.
    pub(crate) fn ways(peer: &Peer, network: bool, ours: Option<&Path>) -> Vec<Self> {
        if peer.missing.is_some() || peer.path.is_none() || peer.compiler.is_none() {
            return Vec::new();
        }
        let mut ways = own_ways(peer, network);
        match (network, ours, peer.family) {
            (false, Some(_), Family::OpenMpi) => ways.extend(OPEN_MPI_OVER),
            (false, Some(_), Family::Mpich) if peer.has_carrier("ofi") => ways.extend(MPICH_OVER),
            _ => {}
        }
        ways.into_iter()
            .map(|(way, name)| Self {
                peer: peer.clone(),
                way,
                name: format!("{} {name}", peer.name).trim_end().to_owned(),
                folder: ours.filter(|_| way == Way::Provider(OURS)).map(Path::to_owned),
            })
            .collect()
    }

    /// Returns whose library its programs are linked with.
    pub(crate) fn library(&self) -> Family {
        self.peer.family
    }

    /// Its name, with what carries the messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The benchmark of this MPI; compiled when it is first wanted, once for all its ways and loads, and when
    /// that fails it is not tried again.
    fn program(&self, lab: &Lab<'_>) -> Result<PathBuf, Stop> {
        let known = &self.peer.built.program;
        if let Some(built) = known.get() {
            return built.clone().map_err(Stop::Failed);
        }
        let built = match self.compile(lab) {
            Err(Stop::Failed(why)) => Err(why),
            Err(stop) => return Err(stop),
            Ok(program) => Ok(program),
        };
        known.get_or_init(|| built).clone().map_err(Stop::Failed)
    }

    fn compile(&self, lab: &Lab<'_>) -> Result<PathBuf, Stop> {
        let compiler = self.peer.compiler.clone().unwrap_or_default();
        let folder = lab.place.folder.path();
        let source = folder.join("mpi_pair.c");
        let program = folder.join(format!("mpi_pair.{}", self.peer.name.replace(' ', "-")));
        write(&source, SOURCE)?;
        let mut command = lab.place.command(lab.setting, Side::One, &compiler);
        self.peer.at_home(&mut command);
        command.args(["-O2", "-w", "-o"]).arg(&program).arg(&source);
        let name = format!("its compiler, {},", compiler.display());
        lab.runner.run(&name, command, COMPILES)?.good(&name)?;
        Ok(program)
    }

    /// Returns the launcher with the options for how messages go and where processes run.
    fn launch(&self, lab: &Lab<'_>) -> Result<Command, Stop> {
        let launcher = self.peer.path.clone().unwrap_or_default();
        let mut command = lab.place.command(lab.setting, Side::One, &launcher);
        self.peer.at_home(&mut command);
        command.envs(self.folder.as_ref().map(|folder| ("FI_PROVIDER_PATH", folder)));
        let reach = lab.setting.is_network().then(|| script(lab.place)).transpose()?;
        self.options(&mut command, lab.place.folder.path(), reach.as_deref());
        Ok(command)
    }

    /// Adds the options; `reach` is called in the place of ssh, over the network.
    fn options(&self, command: &mut Command, folder: &Path, reach: Option<&Path>) {
        match self.peer.family {
            Family::OpenMpi => self.mpirun(command, folder, reach),
            Family::IntelMpi => self.intel(command, reach),
            _ => self.hydra(command, reach),
        }
    }

    fn mpirun(&self, command: &mut Command, folder: &Path, reach: Option<&Path>) {
        let newer = self.peer.major().is_some_and(|major| major >= OPEN_MPI_SM);
        let interface = if reach.is_some() { INTERFACE } else { "lo" };
        command.args(["--allow-run-as-root", "--bind-to", "none"]);
        // Its usual folder in /tmp may be another user's, who has our number in another user namespace.
        let [mca, interfaces, folders, rsh] = if newer {
            [
                "--prtemca",
                "prte_if_include",
                "prte_tmpdir_base",
                "plm_ssh_agent",
            ]
        } else {
            ["--mca", "oob_tcp_if_include", "orte_tmpdir_base", "plm_rsh_agent"]
        };
        // The newer one refuses the loopback interface by name, and takes it where there is no other.
        if reach.is_some() || !newer {
            command.args([mca, interfaces, interface]);
        }
        command.args([mca, folders]).arg(folder);
        match self.way {
            Way::OverUcx => {
                command.args(["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any"]);
                command.args(["--mca", "pml_ucx_devices", "any"]);
                ucx(command, reach.is_some());
            }
            Way::Provider(provider) => {
                command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
                command.args(["--mca", "mtl_ofi_provider_include", provider]);
            }
            _ => {
                let within = if newer { "sm,self" } else { "vader,self" };
                let tcp = reach.is_some() || self.way == Way::Loopback;
                let btl = if tcp { "tcp,self" } else { within };
                command.args(["--mca", "pml", "ob1", "--mca", "btl", btl]);
                if tcp {
                    command.args(["--mca", "btl_tcp_if_include", interface]);
                }
            }
        }
        if let Some(reach) = reach {
            command.args([mca, rsh]).arg(reach);
            let hosts = Side::BOTH.map(|side| format!("{}:1", side.address()));
            command.args(["--host", &hosts.join(",")]);
        }
    }

    fn hydra(&self, command: &mut Command, reach: Option<&Path>) {
        command.args(["-bind-to", "none"]);
        match self.way {
            Way::Provider(provider) => {
                // Not its own shared memory, which it takes within a host.
                command.envs([("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", "ofi")]);
                command.env("FI_PROVIDER", provider);
            }
            Way::Module(module) => {
                command.envs([("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", module)]);
                if module == "ofi" {
                    tcp(command);
                } else {
                    ucx(command, reach.is_some());
                }
            }
            _ => ucx(command, reach.is_some()),
        }
        match reach {
            None => command.args(["-iface", "lo"]),
            Some(reach) => {
                command.args(["-launcher", "rsh", "-launcher-exec"]).arg(reach);
                let hosts = Side::BOTH.map(Side::address).join(",");
                command.args(["-iface", INTERFACE, "-hosts", &hosts, "-ppn", "1"])
            }
        };
    }

    fn intel(&self, command: &mut Command, reach: Option<&Path>) {
        // Its own binding would put both ranks where it likes; each is bound by taskset.
        command.env("I_MPI_PIN", "0");
        match reach {
            None => {
                command.env("I_MPI_FABRICS", "shm");
                command.args(["-iface", "lo"]);
            }
            Some(reach) => {
                command.env("I_MPI_FABRICS", "ofi");
                command.env("I_MPI_OFI_PROVIDER", "tcp");
                tcp(command);
                command.args(["-bootstrap", "rsh", "-bootstrap-exec"]).arg(reach);
                let hosts = Side::BOTH.map(Side::address).join(",");
                command.args(["-iface", INTERFACE, "-hosts", &hosts, "-ppn", "1"]);
            }
        }
    }

    /// Makes the command that runs the same program on both sides, each bound to its core.
    pub(crate) fn both(&self, lab: &Lab<'_>, program: &Path, arguments: &[String]) -> Result<Command, Stop> {
        let mut command = self.launch(lab)?;
        for side in Side::BOTH {
            if side == Side::Two {
                command.arg(":");
            }
            command.args(["-np", "1", "taskset", "-c", &lab.place.core(side).to_string()]);
            command.arg(program).args(arguments);
        }
        Ok(command)
    }
}

/// The ways of an MPI by itself, with what its name is followed by.
fn own_ways(peer: &Peer, network: bool) -> Vec<(Way, &'static str)> {
    let newer = |least| peer.major().is_some_and(|major| major >= least);
    let own = match (peer.family, network) {
        (Family::OpenMpi, false) if newer(OPEN_MPI_SM) => "sm",
        (Family::OpenMpi, false) => "vader",
        (_, false) => "",
        (_, true) => "tcp",
    };
    let mut ways = vec![(Way::Own, own)];
    match peer.family {
        Family::OpenMpi if !network => ways.push((Way::OverUcx, "UCX")),
        // Over TCP its UCX is measured where it is the newest: elsewhere UCX's own program has it.
        Family::OpenMpi if newer(OPEN_MPI_SM) => ways.push((Way::OverUcx, "UCX tcp")),
        Family::Mpich if newer(MPICH_MODULES) && peer.has_carrier("ucx") && peer.has_carrier("ofi") => {
            if network {
                ways = vec![
                    (Way::Module("ucx"), "UCX tcp"),
                    (Way::Module("ofi"), "libfabric tcp"),
                ];
            } else {
                ways.push((Way::Module("ucx"), "UCX"));
            }
        }
        _ => {}
    }
    ways
}

/// UCX over shared memory, or over TCP.
fn ucx(command: &mut Command, network: bool) {
    let lines = if network {
        "tcp,self"
    } else {
        "posix,sysv,cma,self"
    };
    command.env("UCX_TLS", lines);
    if network {
        command.env("UCX_NET_DEVICES", INTERFACE);
    }
}

/// libfabric over TCP.
fn tcp(command: &mut Command) {
    command.env("FI_PROVIDER", "tcp").env("FI_TCP_IFACE", INTERFACE);
}

impl Stack for Mpi {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        (self.way != Way::Provider(OURS)).then_some(self.peer.family)
    }

    fn how(&self) -> String {
        let library = self.peer.built.library.get();
        let way = match (self.way, self.peer.family) {
            (Way::Own, Family::OpenMpi) => "pml ob1 over its own btl".to_owned(),
            (Way::Own, _) => library
                .and_then(|said| device(said))
                .unwrap_or("its own device")
                .to_owned(),
            (Way::OverUcx, _) => "pml ucx".to_owned(),
            (Way::Loopback, _) => "pml ob1 over btl tcp".to_owned(),
            (Way::Module(module), _) => format!("its module {module}, without its own shared memory"),
            (Way::Provider(provider), _) => format!("libfabric's provider {provider}"),
        };
        format!(
            "MPI_Send and MPI_Recv, MPI_Isend and MPI_Irecv in windows, tag-matched; {way}; our own benchmark, which sends out \
             of one buffer that never changes, receives into others, and warms up and reads the clock as doorbell does"
        )
    }

    fn unsupported(&self, kind: Kind) -> Option<&'static str> {
        match kind {
            Kind::Put | Kind::Am => Some("our benchmark of it exchanges messages"),
            Kind::Latency | Kind::Stream | Kind::Blocking | Kind::Overlap => None,
        }
    }

    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop> {
        let program = self.program(lab)?;
        let mut arguments = vec![
            load.kind.name().to_owned(),
            load.seconds.to_string(),
            load.window.to_string(),
            round(lab.setting).to_string(),
            counter().to_string(),
        ];
        arguments.extend(load.sizes.iter().map(|bytes| match load.kind {
            Kind::Overlap => format!("{bytes}:{}", steps(*bytes)),
            _ => bytes.to_string(),
        }));
        let command = self.both(lab, &program, &arguments)?;
        let ended = lab.runner.run(&self.name, command, load.deadline());
        // Its daemons may outlive a launcher that was killed.
        if ended.is_err() {
            lab.runner.sweep();
        }
        let text = ended?.good(&self.name)?;
        if let Some(library) = text.lines().find_map(|line| line.strip_prefix("library ")) {
            self.peer.built.library.get_or_init(|| library.to_owned());
        }
        complete(&self.name, load, read(&text))
    }
}

/// Returns what MPICH was built for, from its own output.
fn device(library: &str) -> Option<&str> {
    library.split("MPICH Device:").nth(1)?.split_whitespace().next()
}

/// Most exchanges of a round. Under losses many of them take a fifth of a second, whatever the one before
/// took, and a round has to end.
fn round(setting: Setting) -> u32 {
    match setting {
        Setting::Loss(_) => 50,
        Setting::Shm | Setting::Network => 1_000,
    }
}

/// Ticks a second of the processor's counter, which doorbell reads as its clock; 0 where it does not.
fn counter() -> f64 {
    let of = Clock::start().calibration();
    match of.source {
        Source::Tsc => of.frequency_hz,
        Source::Monotonic => 0.0,
    }
}

/// Blocking messages are compared up to the size to which doorbell's are.
pub(crate) fn blocking(bytes: u64) -> bool {
    bytes <= BLOCKING_MOST
}

/// Returns what an MPI's launcher calls in the place of ssh: HOST and a command.
fn script(place: &Place) -> Result<PathBuf, Stop> {
    let path = place.folder.path().join("reach");
    if path.exists() {
        return Ok(path);
    }
    let cases: Vec<String> = Side::BOTH
        .iter()
        .map(|side| {
            format!(
                "{}) exec {} sh -c \"$*\" ;;",
                side.address(),
                place.entrance(*side)
            )
        })
        .collect();
    let text = format!(
        "#!/bin/sh\n# HOST COMMAND...: what ssh would do\nwhile :; do case \"$1\" in -*) shift ;; *) break ;; esac; done\n\
         host=$1\nshift\ncase \"$host\" in\n{}\nesac\necho \"there is no host $host\" >&2\nexit 1\n",
        cases.join("\n")
    );
    write(&path, &text)?;
    let runs = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700));
    runs.map_err(|source| {
        Stop::Failed(format!(
            "`{}` could not be made a program: {source}",
            path.display()
        ))
    })?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    std::fs::write(path, text)
        .map_err(|source| Stop::Failed(format!("`{}` could not be written: {source}", path.display())))
}

/// The rows that the benchmark prints: `row KIND name=value ...`.
pub(crate) fn read(text: &str) -> Vec<Figure> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("row "))
        .filter_map(row)
        .collect()
}

fn row(line: &str) -> Option<Figure> {
    let value = |name: &str| -> Option<&str> {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let number = |name: &str| {
        value(name)
            .and_then(|text| text.parse::<f64>().ok())
            .filter(|it| it.is_finite())
    };
    let overlap = || {
        let times = Overlap {
            alone: number("alone_ns")?,
            computing: number("compute_ns")?,
            both: number("both_ns")?,
        };
        Some(times)
    };
    Some(Figure {
        bytes: value("bytes")?.parse().ok()?,
        half_rtt_ns: Percentiles {
            mean: number("mean_ns"),
            p50: number("p50_ns"),
            p90: number("p90_ns"),
            p99: number("p99_ns"),
            p999: number("p999_ns"),
            p9999: number("p9999_ns"),
            max: number("max_ns"),
            min: None,
        },
        messages_per_second: number("per_second"),
        overlap: overlap(),
    })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use proptest::prelude::*;

    /// As Open MPI 4.1.4 printed it.
    const LATENCY: &str = "\
library Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022
read_ns 85.2
row latency bytes=8 mean_ns=484.04 p50_ns=486.0 p90_ns=613.5 p99_ns=805.5 p999_ns=7218.5 p9999_ns=- max_ns=39557.0 samples=50000 rounds=50
row latency bytes=1048576 mean_ns=183081.74 p50_ns=185014.5 p90_ns=199542.5 p99_ns=- p999_ns=- p9999_ns=- max_ns=216239.0 samples=161 rounds=3
";

    #[test]
    fn latencies_are_read_and_what_has_too_few_samples_is_none() {
        let figures = read(LATENCY);
        let [small, large] = &figures[..] else {
            panic!("{figures:?}")
        };
        assert_eq!(
            (small.bytes, small.half_rtt_ns.mean, small.half_rtt_ns.p999),
            (8, Some(484.04), Some(7218.5))
        );
        assert_eq!(
            (large.half_rtt_ns.p50, large.half_rtt_ns.p99),
            (Some(185_014.5), None)
        );
    }

    /// As Intel MPI 2021.19.0 and Open MPI 5.0.11 printed it.
    const NEWER: &str = "\
library Intel(R) MPI Library 2021.19.0 for Linux* OS
read_ns 36.5
row latency bytes=8 mean_ns=4045.50 p50_ns=476.0 p90_ns=561.0 p99_ns=716.0 p999_ns=- p9999_ns=- max_ns=8010856.5 samples=8000 rounds=8
library Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11rc1, Sep 16, 2026
row latency bytes=65536 mean_ns=95600.13 p50_ns=10554.5 p90_ns=11952.0 p99_ns=- p999_ns=- p9999_ns=- max_ns=12053492.0 samples=880 rounds=1
";

    #[test]
    fn newer_mpis_print_the_same_rows() {
        let figures = read(NEWER);
        let p50: Vec<(u64, Option<f64>)> = figures
            .iter()
            .map(|figure| (figure.bytes, figure.half_rtt_ns.p50))
            .collect();
        assert_eq!(p50, [(8, Some(476.0)), (65_536, Some(10_554.5))]);
    }

    #[test]
    fn streams_and_overlaps_are_read() {
        let text = "row stream bytes=65536 per_second=82691.76 rounds=6\n\
                    row overlap bytes=65536 alone_ns=100.0 compute_ns=100.0 both_ns=150.0\n";
        let figures = read(text);
        assert_eq!(figures[0].messages_per_second, Some(82_691.76));
        let times = figures[1].overlap.unwrap();
        assert_eq!((times.alone, times.both, times.hidden()), (100.0, 150.0, 0.5));
    }

    fn peer(family: Family, name: &str, version: &str, carriers: &[&str]) -> Peer {
        Peer {
            family,
            name: name.to_owned(),
            version: Some(version.to_owned()),
            path: Some(PathBuf::from("/p/bin/mpirun")),
            compiler: Some(PathBuf::from("/p/bin/mpicc")),
            home: None,
            carriers: carriers.iter().map(|name| (*name).to_owned()).collect(),
            built: Rc::default(),
            missing: None,
        }
    }

    /// The names of its ways with the words and variables of each.
    fn asked(peer: &Peer, network: bool) -> Vec<(String, String)> {
        let ways = Mpi::ways(peer, network, None).into_iter();
        ways.map(|way| {
            let mut command = Command::new("mpirun");
            way.options(
                &mut command,
                Path::new("/f"),
                network.then_some(Path::new("/reach")),
            );
            let set = command
                .get_envs()
                .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value?.to_str()?)));
            let words = command
                .get_args()
                .filter_map(|word| word.to_str().map(str::to_owned));
            let all: Vec<String> = set.chain(words).collect();
            (way.name.clone(), all.join(" "))
        })
        .collect()
    }

    #[test]
    fn open_mpi_is_asked_by_what_its_release_has() {
        let old = asked(&peer(Family::OpenMpi, "Open MPI", "4.1.4", &["ofi"]), false);
        let names: Vec<&str> = old.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["Open MPI vader", "Open MPI UCX"]);
        assert!(old[0].1.contains("--mca btl vader,self") && old[0].1.contains("--mca orte_tmpdir_base /f"));
        let new = peer(Family::OpenMpi, "Open MPI 5.0.11", "5.0.11", &["ofi"]);
        let within = asked(&new, false);
        assert_eq!(within[0].0, "Open MPI 5.0.11 sm");
        assert!(within[0].1.contains("--mca btl sm,self") && !within[0].1.contains("orte_"));
        assert!(
            within[0].1.contains("--prtemca prte_tmpdir_base /f") && !within[0].1.contains("_if_include")
        );
        assert!(within[1].1.contains("UCX_TLS=posix,sysv,cma,self") && within[1].1.contains("--mca pml ucx"));
        let between = asked(&new, true);
        let names: Vec<&str> = between.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["Open MPI 5.0.11 tcp", "Open MPI 5.0.11 UCX tcp"]);
        for (_, words) in &between {
            assert!(words.contains("--prtemca plm_ssh_agent /reach"), "{words}");
            assert!(words.contains("--prtemca prte_if_include v0"), "{words}");
            assert!(words.contains("--host 10.79.0.1:1,10.79.0.2:1"), "{words}");
        }
        assert!(between[1].1.contains("UCX_TLS=tcp,self"), "{}", between[1].1);
    }

    #[test]
    fn mpich_is_measured_by_each_module_that_it_has() {
        let names = |peer: &Peer, network| -> Vec<String> {
            asked(peer, network).into_iter().map(|(name, _)| name).collect()
        };
        let old = peer(Family::Mpich, "MPICH", "4.0.2", &["ucx"]);
        assert_eq!(names(&old, false), ["MPICH"]);
        assert_eq!(names(&old, true), ["MPICH tcp"]);
        let new = peer(Family::Mpich, "MPICH", "5.0.2", &["ucx", "ofi"]);
        assert_eq!(names(&new, false), ["MPICH", "MPICH UCX"]);
        let between = asked(&new, true);
        assert_eq!(names(&new, true), ["MPICH UCX tcp", "MPICH libfabric tcp"]);
        assert!(
            between[1].1.contains("FI_PROVIDER=tcp") && between[1].1.contains("MPIR_CVAR_CH4_NETMOD=ofi")
        );
    }

    #[test]
    fn intel_mpi_is_asked_in_its_own_words() {
        let peer = peer(Family::IntelMpi, "Intel MPI", "2021.19", &["ofi"]);
        let [(name, words)] = &asked(&peer, false)[..] else {
            panic!("one way")
        };
        assert_eq!(name, "Intel MPI");
        assert!(
            words.contains("I_MPI_FABRICS=shm") && words.contains("I_MPI_PIN=0"),
            "{words}"
        );
        let [(name, words)] = &asked(&peer, true)[..] else {
            panic!("one way")
        };
        assert_eq!(name, "Intel MPI tcp");
        assert!(
            words.contains("-bootstrap-exec /reach") && words.contains("FI_PROVIDER=tcp"),
            "{words}"
        );
    }

    #[test]
    fn what_mpich_was_built_for_is_what_it_prints() {
        let said = "MPICH Version: 4.0.2 MPICH Release date: Thu Apr  7 12:34:45 CDT 2022 MPICH ABI: 14:2:2 MPICH Device: ch4:ofi";
        assert_eq!(device(said), Some("ch4:ofi"));
        assert_eq!(device("Open MPI v4.1.4"), None);
    }

    proptest! {
        #[test]
        fn rubbish_is_no_row(text in "(row )?(latency)?\\PC{0,200}") {
            read(&text);
        }
    }
}
