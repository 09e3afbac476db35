//! `doorbell compare-peers`: doorbell and the peers that are installed, measured in turn and from outside.
//!
//! ```text
//!   find ──► who is here, and the package that brings each other one
//!   place ─► two cores; a namespace with nothing but its loopback, or two with a virtual cable
//!   rounds ─► turn by turn: bare exchange, one stack as processes of its own, bare exchange
//!             doorbell   mpi (mpi_pair.c by the peer's mpicc)   ucx   libfabric   osu
//!   verdict ─► ratios of one round and band ──► report: table, JSON, page
//! ```

mod counts;
mod doorbell;
mod find;
mod html;
mod libfabric;
mod load;
mod mpi;
mod osu;
mod overlap;
mod report;
mod rounds;
mod stack;
mod table;
mod ucx;
mod verdict;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use doorbell_bench::pin;
use doorbell_fabric::error::Exit;
use doorbell_fabric::name::RailName;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use self::overlap::measure_overlap;

use self::doorbell::Doorbell;
use self::find::Peer;
use self::libfabric::Libfabric;
use self::load::{Kind, Load};
use self::mpi::Mpi;
use self::osu::Osu;
use self::report::{Frame, Report};
use self::rounds::{Event, Progress};
use self::stack::Stack;
use self::ucx::Ucx;
use crate::cli::{ComparePeersArgs, Family};
use crate::error::ToolError;
use crate::place::process::{Runner, Stop};
use crate::place::{INTERFACE, Place, Setting, Way};
use crate::{out, outputs};

/// Sizes when none are named.
const SIZES: [u64; 5] = [8, 64, 1 << 10, 64 << 10, 1 << 20];
/// What losses are told by: a small message's latency and a large one's stream.
const LOSS_LATENCY: u64 = 64;
const LOSS_STREAM: u64 = 1 << 20;
/// Losses are rare: a stack is measured so long under them at least, in seconds.
const LOSS_SECONDS: f64 = 1.0;
/// Rounds and seconds when nothing is said, and for a first look.
const USUAL: (u32, f64) = (5, 0.2);
const QUICK: (u32, f64) = (2, 0.05);

/// `doorbell compare-peers`.
pub(crate) fn compare_peers(args: &ComparePeersArgs) -> Result<ExitCode, ToolError> {
    let named: Vec<outputs::Named<'_>> = [("--json", &args.json), ("--html", &args.html)]
        .into_iter()
        .filter_map(|(flag, name)| Some((flag, name.as_deref()?)))
        .collect();
    outputs::check(&named)?;
    let compared = Runner::new()
        .map_err(Stop::Ended)
        .and_then(|runner| compare(&runner, args));
    match compared {
        Ok(exit) => Ok(exit.into()),
        Err(stop) => stop.end(),
    }
}

fn compare(runner: &Runner, args: &ComparePeersArgs) -> Result<Exit, Stop> {
    let found = find::peers(runner, args.osu.as_deref())?;
    let wanted = |peer: &&Peer| args.only.is_empty() || args.only.contains(&peer.family);
    let peers: Vec<Peer> = found.iter().filter(wanted).cloned().collect();
    if args.list {
        out::print(&list(&peers))?;
        return Ok(Exit::Done);
    }
    if peers.iter().all(|peer| peer.missing.is_some()) {
        let reasons: Vec<String> = peers.iter().filter_map(|peer| peer.missing.clone()).collect();
        let text = format!("there is no peer to compare with: {}", reasons.join("; "));
        return Err(Stop::Ended(ToolError::Usage(text)));
    }
    // What is named is used or refused.
    let osu = found.iter().filter(|peer| peer.family == Family::Osu);
    if let Some(why) = osu.filter_map(|peer| peer.missing.clone()).next() {
        return Err(Stop::Ended(ToolError::Usage(format!("`--osu`: {why}"))));
    }
    let plan = Plan::of(args)?;
    let place = plan.place()?;
    let events = plan.events(runner, [&peers, &found], &place)?;
    let turns: u64 = events.iter().map(|event| event.stacks.len() as u64).sum();
    let mut bar = Bar::new(turns * u64::from(plan.rounds));
    let turns = rounds::run(runner, &place, &events, plan.rounds, &mut bar);
    bar.bar.finish_and_clear();
    let turns = turns?;
    let frame = Frame {
        cores: plan.cores,
        rounds: plan.rounds,
        seconds: plan.seconds,
        window: args.window,
        real_time: runner.first,
        peers,
        doubts: doubts(&place),
    };
    let report = Report::new(frame, &events, &turns, &verdict::rows(&events, &turns));
    show(&report, args)?;
    let behind = report.behind().next().is_some();
    Ok(if behind { Exit::Verdict } else { Exit::Done })
}

fn show(report: &Report, args: &ComparePeersArgs) -> Result<(), ToolError> {
    let named = [&args.json, &args.html];
    if !named.into_iter().flatten().any(|name| outputs::is_stdout(name)) {
        out::print(&table::table(report, out::width()))?;
    }
    if let Some(name) = &args.json {
        outputs::write(name, &report.json(), &mut io::stdout().lock())?;
    }
    if let Some(name) = &args.html {
        outputs::write(name, &html::html(report)?, &mut io::stdout().lock())?;
    }
    Ok(())
}

/// Who is here, one on each line.
fn list(peers: &[Peer]) -> String {
    let mut text = String::new();
    for peer in peers {
        let path = peer
            .path
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default();
        let what = peer.missing.clone().unwrap_or(path);
        let version = peer.version.as_deref().unwrap_or("-");
        text.push_str(&format!("{:<10} {version:<8} {what}\n", peer.name));
    }
    text
}

/// Why the figures may be worth less than they look.
fn doubts(place: &Place) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(why) = place.exposed(Setting::Shm) {
        doubts.push(format!(
            "no network namespace could be made ({why}): peers that listen were left out over shared memory"
        ));
    }
    let host = doorbell_bench::env::Host::read(&place.cores);
    if let Some(hypervisor) = &host.virtualised {
        doubts.push(format!(
            "this is a virtual machine ({hypervisor}): the host moves its cores and its time"
        ));
    }
    if !place.cores.iter().all(|core| host.is_isolated(*core)) {
        doubts.push("the cores are not isolated: other work runs there too".to_owned());
    }
    doubts
}

/// What a command line asks for.
struct Plan<'a> {
    args: &'a ComparePeersArgs,
    program: PathBuf,
    cores: [usize; 2],
    settings: Vec<Setting>,
    /// Kinds of rails on the virtual cable.
    rails: Vec<String>,
    sizes: Vec<u64>,
    rounds: u32,
    seconds: f64,
}

impl<'a> Plan<'a> {
    fn of(args: &'a ComparePeersArgs) -> Result<Self, ToolError> {
        let (rounds, seconds) = if args.quick { QUICK } else { USUAL };
        let network = args.network || !args.loss.is_empty();
        let mut settings = Vec::new();
        if args.shm || args.overlap || !network {
            settings.push(Setting::Shm);
        }
        if network {
            settings.push(Setting::Network);
        }
        settings.extend(args.loss.iter().map(|percent| Setting::Loss(*percent)));
        let sizes = args.sizes.iter().map(|size| size.bytes() as u64);
        Ok(Self {
            args,
            program: std::env::current_exe().map_err(|source| ToolError::System {
                what: "find this program",
                source,
            })?,
            cores: cores(&args.cores)?,
            settings,
            rails: rails(&args.rails, network)?,
            sizes: if args.sizes.is_empty() {
                SIZES.to_vec()
            } else {
                sizes.collect()
            },
            rounds: args.rounds.unwrap_or(rounds),
            seconds: args.seconds.unwrap_or(seconds),
        })
    }

    /// Where it is measured: over a switch when frames are to be lost, in all settings, so that they can be compared.
    fn place(&self) -> Result<Place, ToolError> {
        let mut place = Place::new(self.cores)?;
        place.seclude();
        let way = if self.args.loss.is_empty() {
            Way::Direct
        } else {
            Way::Switched
        };
        if self.settings.iter().any(|setting| setting.is_network()) {
            place
                .lay(way)
                .map_err(|why| ToolError::Usage(format!("`--network` and `--loss`: {why}")))?;
        }
        Ok(place)
    }

    /// What each setting is measured by.
    fn loads(&self, setting: Setting) -> Vec<Load> {
        let load = |kind, sizes: Vec<u64>| Load {
            kind,
            sizes,
            seconds: self.seconds,
            window: self.args.window,
            limit: self.args.timeout.map(Duration::from_secs_f64),
        };
        let with = |bytes: u64| {
            let mut sizes = self.sizes.clone();
            if !self.args.loss.is_empty() && !sizes.contains(&bytes) {
                sizes.push(bytes);
            }
            sizes
        };
        let small = self
            .sizes
            .iter()
            .copied()
            .filter(|bytes| mpi::blocking(*bytes))
            .collect();
        let nothing_named = !self.args.shm && !self.args.overlap && self.settings == [Setting::Shm];
        match setting {
            Setting::Shm => {
                let mut loads = Vec::new();
                if self.args.shm || nothing_named {
                    loads.push(load(Kind::Latency, self.sizes.clone()));
                    loads.push(load(Kind::Stream, self.sizes.clone()));
                    loads.push(load(Kind::Blocking, small));
                }
                if self.args.overlap {
                    loads.push(load(Kind::Overlap, self.sizes.clone()));
                }
                loads
            }
            Setting::Network if !self.args.network => {
                vec![
                    load(Kind::Latency, vec![LOSS_LATENCY]),
                    load(Kind::Stream, vec![LOSS_STREAM]),
                ]
            }
            Setting::Network => vec![
                load(Kind::Latency, with(LOSS_LATENCY)),
                load(Kind::Stream, with(LOSS_STREAM)),
            ],
            Setting::Loss(_) => [
                load(Kind::Latency, vec![LOSS_LATENCY]),
                load(Kind::Stream, vec![LOSS_STREAM]),
            ]
            .map(|load| Load {
                seconds: load.seconds.max(LOSS_SECONDS),
                ..load
            })
            .to_vec(),
        }
    }

    /// Every load of every setting with its stacks, doorbell's first.
    fn events(&self, runner: &Runner, peers: [&[Peer]; 2], place: &Place) -> Result<Vec<Event>, Stop> {
        let mut events = Vec::new();
        for setting in &self.settings {
            for load in self
                .loads(*setting)
                .into_iter()
                .filter(|load| !load.sizes.is_empty())
            {
                events.push(Event {
                    setting: *setting,
                    stacks: self.stacks(runner, peers, place, *setting)?,
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
        place: &Place,
        setting: Setting,
    ) -> Result<Vec<Box<dyn Stack>>, Stop> {
        let network = setting.is_network();
        let mut stacks: Vec<Box<dyn Stack>> = Vec::new();
        if network {
            for kind in &self.rails {
                stacks.push(Box::new(Doorbell::network(self.program.clone(), kind)));
            }
        } else {
            stacks.push(Box::new(Doorbell::shm(self.program.clone())));
        }
        // A peer that would listen to everybody is left out; the report says so.
        if place.exposed(setting).is_some() {
            return Ok(stacks);
        }
        for peer in wanted {
            match peer.family {
                Family::OpenMpi | Family::Mpich => stacks.extend(boxed(Mpi::ways(peer, network))),
                Family::Ucx => stacks.extend(boxed(Ucx::of(peer, network))),
                Family::Libfabric => stacks.extend(boxed(Libfabric::ways(peer, network))),
                Family::Osu => {
                    let mpis = found.iter().flat_map(|peer| Mpi::ways(peer, network)).collect();
                    stacks.extend(boxed(Osu::ways(runner, peer, mpis)?));
                }
            }
        }
        Ok(stacks)
    }
}

fn boxed<S: Stack + 'static>(stacks: impl IntoIterator<Item = S>) -> impl Iterator<Item = Box<dyn Stack>> {
    stacks.into_iter().map(|stack| Box::new(stack) as Box<dyn Stack>)
}

/// The two cores: those that are named, or the first two.
fn cores(named: &[usize]) -> Result<[usize; 2], ToolError> {
    let allowed = pin::allowed();
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
        named.to_vec()
    })
}

/// The progress bar, on the standard error and only when a person looks at it.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new(turns: u64) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(turns), target);
        let style = ProgressStyle::with_template("[{bar:30}] {percent:>3} %, {eta} left  {msg}");
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        Self { bar }
    }
}

impl Progress for Bar {
    fn turn(&mut self, setting: Setting, load: &Load, stack: &str, round: u32) {
        let text = format!(
            "round {}: {stack}, {}, {}",
            round + 1,
            load.kind.name(),
            setting.name()
        );
        self.bar.set_message(text);
    }

    fn done(&mut self) {
        self.bar.inc(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn two_different_cores_are_taken_or_refused() {
        let allowed = pin::allowed();
        assert!(cores(&[allowed[0], allowed[0]]).is_err());
        assert!(cores(&[allowed[0]]).is_err());
        assert!(cores(&[allowed[0], 100_000]).is_err());
    }
}
