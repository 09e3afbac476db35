//! The MPIs: our small benchmark, compiled by each one's own compiler, started by each one's own
//! launcher.
//!
//! Over the network the launcher reaches the other namespace by a script in the place of ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use doorbell_bench::stats::Percentiles;
use doorbell_fabric::clock::{Clock, Source};
use doorbell_tools::process::Stop;

use super::doorbell::BLOCKING_MOST;
use super::find::{Built, Peer};
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
    /// Open MPI's own: ob1 over vader or btl tcp.
    Ob1,
    /// Open MPI over UCX.
    OverUcx,
    /// MPICH over what it was built for: in Debian's, UCX.
    Hydra,
    /// Open MPI's ob1 over btl tcp, within a host.
    Loopback,
    /// Over this provider of libfabric, also within a host.
    Provider(&'static str),
}

/// The provider of this project.
const OURS: &str = "doorbell";
/// How the MPIs go within a host where that provider's folder is named.
const OPEN_MPI_OVER: [(Way, &str); 2] = [
    (Way::Provider(OURS), "Open MPI doorbell"),
    (Way::Loopback, "Open MPI tcp"),
];
const MPICH_OVER: [(Way, &str); 3] = [
    (Way::Provider(OURS), "MPICH doorbell"),
    (Way::Provider("shm"), "MPICH libfabric shm"),
    (Way::Provider("tcp;ofi_rxm"), "MPICH tcp"),
];

/// An MPI in one way.
pub(crate) struct Mpi {
    family: Family,
    way: Way,
    name: String,
    launcher: PathBuf,
    compiler: PathBuf,
    built: Built,
    /// The folder of this project's provider.
    folder: Option<PathBuf>,
}

impl Mpi {
    /// The ways of an MPI that is here, over shared memory or over the network; within a host over this
    /// project's provider too, where its folder is named.
    pub(crate) fn ways(peer: &Peer, network: bool, ours: Option<&Path>) -> Vec<Self> {
        let (Some(launcher), Some(compiler), None) = (&peer.path, &peer.compiler, &peer.missing) else {
            return Vec::new();
        };
        let ways: &[(Way, &str, &str)] = match peer.family {
            Family::OpenMpi => &[
                (Way::Ob1, "Open MPI vader", "Open MPI tcp"),
                (Way::OverUcx, "Open MPI UCX", "Open MPI UCX"),
            ],
            _ => &[(Way::Hydra, "MPICH", "MPICH tcp")],
        };
        let own = ways.iter().filter(|(way, ..)| !(network && *way == Way::OverUcx));
        let own = own.map(|(way, shm, net)| (*way, if network { *net } else { *shm }));
        let over: &[(Way, &str)] = match (network, ours, peer.over_libfabric, peer.family) {
            (false, Some(_), true, Family::OpenMpi) => &OPEN_MPI_OVER,
            (false, Some(_), true, _) => &MPICH_OVER,
            _ => &[],
        };
        own.chain(over.iter().copied())
            .map(|(way, name)| Self {
                family: peer.family,
                way,
                name: name.to_owned(),
                launcher: launcher.clone(),
                compiler: compiler.clone(),
                built: Rc::clone(&peer.built),
                folder: ours.filter(|_| way == Way::Provider(OURS)).map(Path::to_owned),
            })
            .collect()
    }

    /// Returns whose library its programs are linked with.
    pub(crate) fn library(&self) -> Family {
        self.family
    }

    /// Its name, with what carries the messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The benchmark of this MPI; compiled when it is first wanted, once for all its ways and loads, and when
    /// that fails it is not tried again.
    fn program(&self, lab: &Lab<'_>) -> Result<PathBuf, Stop> {
        if let Some(built) = self.built.program.get() {
            return built.clone().map_err(Stop::Failed);
        }
        let built = match self.compile(lab) {
            Err(Stop::Failed(why)) => Err(why),
            Err(stop) => return Err(stop),
            Ok(program) => Ok(program),
        };
        let built = self.built.program.get_or_init(|| built);
        built.clone().map_err(Stop::Failed)
    }

    fn compile(&self, lab: &Lab<'_>) -> Result<PathBuf, Stop> {
        let folder = lab.place.folder.path();
        let source = folder.join("mpi_pair.c");
        let program = folder.join(format!("mpi_pair.{:?}", self.family));
        write(&source, SOURCE)?;
        let mut command = lab.place.command(lab.setting, Side::One, &self.compiler);
        command.args(["-O2", "-w", "-o"]).arg(&program).arg(&source);
        let name = format!("its compiler, {},", self.compiler.display());
        lab.runner.run(&name, command, COMPILES)?.good(&name)?;
        Ok(program)
    }

    /// Returns the launcher with the options for how messages go and where processes run.
    fn launch(&self, lab: &Lab<'_>) -> Result<Command, Stop> {
        let mut command = lab.place.command(lab.setting, Side::One, &self.launcher);
        let network = lab.setting.is_network();
        let hosts = Side::BOTH.map(Side::address);
        match (self.way, self.family) {
            (Way::Ob1 | Way::OverUcx | Way::Loopback, _) | (Way::Provider(_), Family::OpenMpi) => {
                command.args(["--allow-run-as-root", "--bind-to", "none"]);
                let interface = if network { INTERFACE } else { "lo" };
                command.args(["--mca", "oob_tcp_if_include", interface]);
                // Its usual folder in /tmp may be another user's, who has our number in another user
                // namespace.
                command
                    .args(["--mca", "orte_tmpdir_base"])
                    .arg(lab.place.folder.path());
                match (self.way, network) {
                    (Way::OverUcx, _) => {
                        command.args(["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any"]);
                        command.args(["--mca", "pml_ucx_devices", "any"]);
                        command.args(["-x", "UCX_TLS=posix,sysv,cma,self"]);
                    }
                    (Way::Provider(provider), _) => {
                        command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
                        command.args(["--mca", "mtl_ofi_provider_include", provider]);
                        // Its processes of this host inherit it; `-x` is for the first of two programs alone.
                        command.envs(self.folder.as_ref().map(|folder| ("FI_PROVIDER_PATH", folder)));
                    }
                    (Way::Loopback, _) => {
                        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
                        command.args(["--mca", "btl_tcp_if_include", "lo"]);
                    }
                    (_, false) => {
                        command.args(["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]);
                    }
                    (_, true) => {
                        command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
                        command.args(["--mca", "btl_tcp_if_include", INTERFACE]);
                    }
                }
                if network {
                    command.arg("--mca").arg("plm_rsh_agent").arg(script(lab.place)?);
                    command.args(["--host", &hosts.map(|host| format!("{host}:1")).join(",")]);
                }
            }
            (Way::Provider(provider), _) => {
                command.args(["-bind-to", "none", "-iface", "lo"]);
                // Not its own shared memory, which it takes within a host.
                command.envs([("MPIR_CVAR_NOLOCAL", "1"), ("MPIR_CVAR_CH4_NETMOD", "ofi")]);
                command.env("FI_PROVIDER", provider);
                command.envs(self.folder.as_ref().map(|folder| ("FI_PROVIDER_PATH", folder)));
            }
            (Way::Hydra, _) => {
                command.args(["-bind-to", "none"]);
                command.env(
                    "UCX_TLS",
                    if network {
                        "tcp,self"
                    } else {
                        "posix,sysv,cma,self"
                    },
                );
                if network {
                    command.env("UCX_NET_DEVICES", INTERFACE);
                    command
                        .args(["-launcher", "rsh", "-launcher-exec"])
                        .arg(script(lab.place)?);
                    command.args(["-iface", INTERFACE, "-hosts", &hosts.join(","), "-ppn", "1"]);
                } else {
                    command.args(["-iface", "lo"]);
                }
            }
        }
        Ok(command)
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

impl Stack for Mpi {
    fn name(&self) -> &str {
        &self.name
    }

    fn family(&self) -> Option<Family> {
        (self.way != Way::Provider(OURS)).then_some(self.family)
    }

    fn how(&self) -> String {
        let library = self.built.library.get();
        let way = match self.way {
            Way::Ob1 => "pml ob1 over its own btl".to_owned(),
            Way::OverUcx => "pml ucx".to_owned(),
            Way::Loopback => "pml ob1 over btl tcp".to_owned(),
            Way::Provider(provider) => format!("libfabric's provider {provider}"),
            Way::Hydra => library
                .and_then(|said| device(said))
                .unwrap_or("its own device")
                .to_owned(),
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
            self.built.library.get_or_init(|| library.to_owned());
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

    #[test]
    fn streams_and_overlaps_are_read() {
        let text = "row stream bytes=65536 per_second=82691.76 rounds=6\n\
                    row overlap bytes=65536 alone_ns=100.0 compute_ns=100.0 both_ns=150.0\n";
        let figures = read(text);
        assert_eq!(figures[0].messages_per_second, Some(82_691.76));
        let times = figures[1].overlap.unwrap();
        assert_eq!((times.alone, times.both, times.hidden()), (100.0, 150.0, 0.5));
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
