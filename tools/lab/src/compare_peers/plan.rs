//! What a command line selects: the settings, the loads of each, and the stacks that have a turn at each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use doorbell_bench::pin;
use doorbell_fabric::name::RailName;
use doorbell_tools::error::ToolError;
use doorbell_tools::process::{Runner, Stop};

use super::doorbell::Doorbell;
use super::find::Peer;
use super::iceoryx2::Iceoryx2;
use super::libfabric::Libfabric;
use super::load::{Kind, Load};
use super::mpi::{self, Mpi};
use super::osu::Osu;
use super::rounds::Event;
use super::stack::Stack;
use super::ucx::Ucx;
use crate::compare_peers::args::{ComparePeersArgs, Family};
use crate::place::{INTERFACE, Place, Setting, Wiring};

/// Sizes when none are named: each that a stack changes over at lies between two of them.
const SIZES: [u64; 13] = [
    8,
    16,
    64,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];
/// The same for a first look.
const COARSE: [u64; 6] = [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
/// The most sizes of a turn: one that takes longer is more often disturbed, and all of it is measured again.
const TURN_SIZES: usize = 4;
/// What losses are measured by: a small message's latency and a large one's stream.
const LOSS_LATENCY: u64 = 64;
const LOSS_STREAM: u64 = 1 << 20;
/// Losses are rare: the least time for which a stack is measured under them, and without, in seconds.
const LOSS_SECONDS: f64 = 1.0;
/// The names of the provider's file, as it is installed and as it is built.
const PROVIDER: [&str; 2] = ["libdoorbell-fi.so", "libdoorbell_fi.so"];
/// Rounds and seconds by default, and for a first look.
const USUAL: (u32, f64) = (5, 0.2);
const QUICK: (u32, f64) = (2, 0.05);

/// What a command line selects.
pub(super) struct Plan<'a> {
    args: &'a ComparePeersArgs,
    program: PathBuf,
    pub(super) cores: [usize; 2],
    settings: Vec<Setting>,
    /// Kinds of rails on the virtual cable.
    rails: Vec<String>,
    sizes: Vec<u64>,
    /// The folder of doorbell's libfabric provider.
    provider: Option<PathBuf>,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
}

impl<'a> Plan<'a> {
    pub(super) fn of(args: &'a ComparePeersArgs) -> Result<Self, ToolError> {
        let (rounds, seconds) = if args.quick { QUICK } else { USUAL };
        let network = args.network || !args.loss.is_empty();
        let shm = args.shm || args.overlap || (args.layers && !args.network) || !network;
        if !args.sizes.is_empty() && !shm && !args.network {
            return Err(ToolError::Usage(format!(
                "`--sizes` has no effect on losses, which are measured by messages of {LOSS_LATENCY} bytes and streams of 1 MiB: \
                 add `--network` to measure the sizes without losses, or leave them out"
            )));
        }
        let provider = args
            .provider
            .as_deref()
            .map(|folder| provider(folder, shm))
            .transpose()?;
        let mut settings = Vec::new();
        if shm {
            settings.push(Setting::Shm);
        }
        if network {
            settings.push(Setting::Network);
        }
        settings.extend(once(args.loss.iter().copied()).into_iter().map(Setting::Loss));
        Ok(Self {
            args,
            program: std::env::current_exe().map_err(|source| ToolError::System {
                what: "find this program",
                source,
            })?,
            cores: cores(&args.cores)?,
            settings,
            rails: rails(&args.rails, network)?,
            sizes: match (args.sizes.is_empty(), args.quick) {
                (true, false) => SIZES.to_vec(),
                (true, true) => COARSE.to_vec(),
                (false, _) => once(args.sizes.iter().map(|size| size.bytes() as u64)),
            },
            provider,
            rounds: args.rounds.unwrap_or(rounds),
            seconds: args.seconds.unwrap_or(seconds),
        })
    }

    /// Returns where it is measured: over a switch when frames are to be lost, in all settings, so that they
    /// can be compared.
    pub(super) fn place<'r>(&self, runner: &'r Runner) -> Result<Place<'r>, Stop> {
        let mut place = Place::new(runner, self.cores)?;
        place.seclude()?;
        let way = if self.args.loss.is_empty() {
            Wiring::Direct
        } else {
            Wiring::Switched
        };
        if self.settings.iter().any(|setting| setting.is_network())
            && let Err(why) = place.lay(way)?
        {
            let text = format!("`--network` and `--loss`: {why}");
            return Err(Stop::Ended(ToolError::Usage(text)));
        }
        Ok(place)
    }

    /// Returns what each setting is measured by.
    fn loads(&self, setting: Setting) -> Vec<Load> {
        match setting {
            Setting::Shm => self.shm(),
            Setting::Network => self.network(),
            Setting::Loss(_) => self.losses(),
        }
    }

    /// A kind of load in pieces, each with the sizes of one turn.
    fn pieces(&self, kind: Kind, sizes: &[u64]) -> impl Iterator<Item = Load> {
        sizes
            .chunks(TURN_SIZES)
            .map(move |sizes| self.load(kind, sizes.to_vec()))
    }

    fn load(&self, kind: Kind, sizes: Vec<u64>) -> Load {
        Load {
            kind,
            sizes,
            seconds: self.seconds,
            window: self.args.window,
            limit: self.args.timeout.map(Duration::from_secs_f64),
        }
    }

    fn shm(&self) -> Vec<Load> {
        let nothing_named =
            !self.args.shm && !self.args.overlap && !self.args.layers && self.settings == [Setting::Shm];
        let mut loads = Vec::new();
        if self.args.shm || nothing_named {
            loads.extend(self.pieces(Kind::Latency, &self.sizes));
            loads.extend(self.pieces(Kind::Stream, &self.sizes));
            loads.extend(self.blocking());
        }
        if self.args.layers {
            loads.extend(self.layers());
        }
        if self.args.overlap {
            loads.extend(self.pieces(Kind::Overlap, &self.sizes));
        }
        loads
    }

    /// Blocking calls, at the sizes at which doorbell's are measured.
    fn blocking(&self) -> Vec<Load> {
        let sizes = self.sizes.iter().copied();
        let sizes: Vec<u64> = sizes.filter(|bytes| mpi::blocking(*bytes)).collect();
        self.pieces(Kind::Blocking, &sizes).collect()
    }

    /// Puts and active messages.
    fn layers(&self) -> impl Iterator<Item = Load> {
        let kinds = [Kind::Put, Kind::Am].into_iter();
        kinds.flat_map(|kind| self.pieces(kind, &self.sizes))
    }

    /// Without losses: the sizes, and what losses are compared with, which is measured as long as under them.
    fn network(&self) -> Vec<Load> {
        let told = if self.args.loss.is_empty() {
            Vec::new()
        } else {
            self.losses()
        };
        let mut loads = Vec::new();
        for (kind, bytes) in [(Kind::Latency, LOSS_LATENCY), (Kind::Stream, LOSS_STREAM)] {
            let sizes = self.sizes.iter().copied();
            let rest: Vec<u64> = sizes.filter(|size| told.is_empty() || *size != bytes).collect();
            if self.args.network {
                loads.extend(self.pieces(kind, &rest));
            }
            loads.extend(told.iter().filter(|load| load.kind == kind).cloned());
        }
        if self.args.network {
            loads.extend(self.blocking());
        }
        if self.args.network && self.args.layers {
            loads.extend(self.layers());
        }
        loads
    }

    fn losses(&self) -> Vec<Load> {
        let seconds = self.seconds.max(LOSS_SECONDS);
        let load = |kind, bytes| Load {
            seconds,
            ..self.load(kind, vec![bytes])
        };
        vec![load(Kind::Latency, LOSS_LATENCY), load(Kind::Stream, LOSS_STREAM)]
    }

    /// Every load of every setting with its stacks, doorbell's first.
    pub(super) fn events(
        &self,
        runner: &Runner,
        peers: [&[Peer]; 2],
        place: &Place<'_>,
    ) -> Result<Vec<Event>, Stop> {
        let mut events = Vec::new();
        for setting in &self.settings {
            let loads = self.loads(*setting).into_iter();
            for load in loads.filter(|load| !load.sizes.is_empty()) {
                events.push(Event {
                    setting: *setting,
                    stacks: self.stacks(runner, peers, place, (*setting, &load))?,
                    load,
                });
            }
        }
        Ok(events)
    }

    /// The stacks of the peers that are wanted; `found` are all that there are.
    fn stacks(
        &self,
        runner: &Runner,
        [wanted, found]: [&[Peer]; 2],
        place: &Place<'_>,
        (setting, load): (Setting, &Load),
    ) -> Result<Vec<Box<dyn Stack>>, Stop> {
        let network = setting.is_network();
        let ours = self.provider.as_deref();
        let mut stacks: Vec<Box<dyn Stack>> = Vec::new();
        if network {
            let of = |kind: &String| Doorbell::network(self.program.clone(), self.cores, kind);
            stacks.extend(boxed(self.rails.iter().map(of)));
        } else {
            stacks.extend(boxed(Doorbell::shm(self.program.clone(), self.cores, load)));
        }
        // A peer that would listen on all addresses is left out; the report lists it with the reason.
        if place.exposed(setting).is_some() {
            return Ok(stacks);
        }
        for peer in wanted {
            match peer.family {
                Family::OpenMpi | Family::Mpich | Family::IntelMpi => {
                    stacks.extend(boxed(Mpi::ways(peer, network, ours)))
                }
                Family::Ucx => stacks.extend(boxed(Ucx::of(peer, network))),
                Family::Libfabric => stacks.extend(boxed(Libfabric::ways(peer, network, ours))),
                Family::Iceoryx2 => stacks.extend(boxed(Iceoryx2::ways(peer, network))),
                Family::Osu => {
                    let mpis = found
                        .iter()
                        .flat_map(|peer| Mpi::ways(peer, network, None))
                        .collect();
                    stacks.extend(boxed(Osu::ways(runner, peer, mpis)?));
                }
            }
        }
        Ok(stacks)
    }
}

/// Returns the folder in which doorbell's libfabric provider is, for processes that run elsewhere.
fn provider(folder: &Path, shm: bool) -> Result<PathBuf, ToolError> {
    if !shm {
        let text = "`--provider` measures within this host: add `--shm`, or leave it out";
        return Err(ToolError::Usage(text.to_owned()));
    }
    let found = PROVIDER.iter().any(|name| folder.join(name).is_file());
    match (found, std::fs::canonicalize(folder)) {
        (true, Ok(folder)) => Ok(folder),
        _ => Err(ToolError::Usage(format!(
            "`--provider {}`: there is no {} in this folder: `cargo xtask provider --into {0}` installs it",
            folder.display(),
            PROVIDER[0]
        ))),
    }
}

/// Removes duplicates: what is named twice is measured once.
fn once<T: PartialEq>(named: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    for one in named {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

fn boxed<S: Stack + 'static>(stacks: impl IntoIterator<Item = S>) -> impl Iterator<Item = Box<dyn Stack>> {
    stacks.into_iter().map(|stack| Box::new(stack) as Box<dyn Stack>)
}

/// The two cores: those that are named, or the first two.
fn cores(named: &[usize]) -> Result<[usize; 2], ToolError> {
    let allowed = pin::apart();
    let list = pin::list(&allowed);
    match (named, &allowed[..]) {
        ([one, two], _) if one != two => {
            pin::check(*one)?;
            pin::check(*two)?;
            Ok([*one, *two])
        }
        ([], [one, two, ..]) => Ok([*one, *two]),
        ([], _) => Err(ToolError::Usage(format!(
            "two processes need a core each, and only {list} can be used here: measure on a machine with two"
        ))),
        _ => Err(ToolError::Usage(format!(
            "`--cores` takes two different cores, as in `--cores 0,1`; allowed here: {list}"
        ))),
    }
}

/// The kinds of rails that doorbell is measured over on the cable: each has to be one that has an interface.
fn rails(named: &[String], network: bool) -> Result<Vec<String>, ToolError> {
    const USUAL: &str = "udp";
    if !named.is_empty() && !network {
        return Err(ToolError::Usage(
            "`--rail` is about the network: add `--network`, or leave it out".to_owned(),
        ));
    }
    for kind in named {
        let name = format!("{kind}:{INTERFACE}");
        let rail: RailName = name.parse().map_err(|error: doorbell_fabric::error::RailError| {
            ToolError::Usage(format!("`--rail` takes a kind of rail, such as udp: {error}"))
        })?;
        if rail.kind() != kind {
            return Err(ToolError::Usage(format!(
                "`--rail` takes a kind of rail without its interface, which is made for the comparison: `--rail {}`",
                rail.kind()
            )));
        }
    }
    Ok(if named.is_empty() {
        vec![USUAL.to_owned()]
    } else {
        once(named.iter().cloned())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn rails_are_kinds_that_have_an_interface() {
        assert_eq!(rails(&[], true).unwrap(), ["udp"]);
        assert!(
            rails(&["udp".to_owned()], false)
                .unwrap_err()
                .to_string()
                .contains("--network")
        );
        let refused = |kind: &str| rails(&[kind.to_owned()], true).unwrap_err().to_string();
        assert!(refused("upd").contains("udp"), "{}", refused("upd"));
        assert!(
            refused("udp:eth0").contains("--rail udp"),
            "{}",
            refused("udp:eth0")
        );
    }

    fn args(words: &[&str]) -> ComparePeersArgs {
        let words = ["doorbell-lab", "compare-peers"].iter().chain(words);
        match Cli::parse_from(words).command {
            Command::ComparePeers(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_without_the_provider_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = provider(folder.path(), true).unwrap_err().to_string();
        assert!(refused.contains("libdoorbell-fi.so"), "{refused}");
        assert!(refused.contains("cargo xtask provider"), "{refused}");
        std::fs::write(folder.path().join(PROVIDER[0]), "").unwrap();
        let found = provider(folder.path(), true).unwrap();
        assert_eq!(found, std::fs::canonicalize(folder.path()).unwrap());
        assert!(
            provider(folder.path(), false)
                .unwrap_err()
                .to_string()
                .contains("--shm")
        );
    }

    #[test]
    fn what_is_named_twice_is_measured_once() {
        if pin::allowed().len() < 2 {
            return;
        }
        let args = args(&[
            "--shm",
            "--network",
            "--loss",
            "1,1",
            "--sizes",
            "8,8",
            "--rail",
            "udp",
            "--rail",
            "udp",
        ]);
        let plan = Plan::of(&args).unwrap();
        assert_eq!(
            (&plan.sizes[..], &plan.rails[..]),
            (&[8][..], &["udp".to_owned()][..])
        );
        let settings = [Setting::Shm, Setting::Network, Setting::Loss(1.0)];
        assert_eq!(plan.settings, settings);
    }

    #[test]
    fn every_size_is_measured_by_latency_windows_and_blocking_calls() {
        if pin::allowed().len() < 2 {
            return;
        }
        let sizes = |plan: &Plan<'_>, setting, kind| -> Vec<u64> {
            let loads = plan.loads(setting).into_iter();
            let pieces: Vec<Vec<u64>> = loads
                .filter(|load| load.kind == kind)
                .map(|load| load.sizes)
                .collect();
            assert!(pieces.iter().all(|piece| piece.len() <= TURN_SIZES), "{pieces:?}");
            pieces.concat()
        };
        let (whole, quick) = (
            args(&["--shm", "--network"]),
            args(&["--shm", "--network", "--quick"]),
        );
        for (args, all) in [(&whole, &SIZES[..]), (&quick, &COARSE[..])] {
            let plan = Plan::of(args).unwrap();
            let small: Vec<u64> = all.iter().copied().filter(|bytes| *bytes <= 4096).collect();
            for setting in [Setting::Shm, Setting::Network] {
                assert_eq!(sizes(&plan, setting, Kind::Latency), all);
                assert_eq!(sizes(&plan, setting, Kind::Stream), all);
                assert_eq!(sizes(&plan, setting, Kind::Blocking), small);
            }
        }
        // Named sizes are those that are measured, also for a first look.
        let named = args(&["--quick", "--sizes", "24"]);
        assert_eq!(Plan::of(&named).unwrap().sizes, [24]);
    }

    #[test]
    fn losses_are_compared_with_what_was_measured_as_long() {
        if pin::allowed().len() < 2 {
            return;
        }
        let with_both = args(&["--network", "--loss", "1", "--sizes", "8,64", "--seconds", "0.1"]);
        for args in [with_both, args(&["--loss", "1", "--seconds", "0.1"])] {
            let plan = Plan::of(&args).unwrap();
            for (kind, bytes) in [(Kind::Latency, 64), (Kind::Stream, 1 << 20)] {
                let seconds = |setting| -> Vec<f64> {
                    let loads = plan.loads(setting).into_iter();
                    loads
                        .filter(|load| load.kind == kind && load.sizes.contains(&bytes))
                        .map(|load| load.seconds)
                        .collect()
                };
                assert_eq!(seconds(Setting::Network), [LOSS_SECONDS]);
                assert_eq!(seconds(Setting::Loss(1.0)), [LOSS_SECONDS]);
            }
        }
        let refused = args(&["--loss", "1", "--sizes", "8"]);
        let said = Plan::of(&refused).err().map(|error| error.to_string());
        assert!(said.is_some_and(|said| said.contains("`--sizes`")));
    }

    #[test]
    fn two_different_cores_are_taken_or_refused() {
        let allowed = pin::allowed();
        assert!(cores(&[allowed[0], allowed[0]]).is_err());
        assert!(cores(&[allowed[0]]).is_err());
        assert!(cores(&[allowed[0], 100_000]).is_err());
    }
}
