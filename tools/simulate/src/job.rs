//! A job of one seed: made, played to its end in virtual time, and judged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use doorbell::{Config, World};
use doorbell_btl::{Btl, BtlConfig, Counters, JobKey};
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_pml::{Pml, PmlConfig, Protocol, Rank};
use doorbell_sim::{Change, Plane, Random, SimDatagram, SimNet, Stats};

use crate::class::Class;
use crate::end::{End, WorldEnd};
use crate::failure::{Failure, Kind};
use crate::plan::{Mix, Plan};
use crate::player::Player;
use crate::shape::Shape;

/// If nothing is received for this long in virtual time, what is missing is lost.
const STANDSTILL: Duration = Duration::from_secs(5);
/// How long before the end of a failed run its capture begins.
const CAPTURED: Duration = Duration::from_micros(500);
/// The longest time of an orderly end.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a job runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// The library that users add: worlds, with the BTL under them.
    #[default]
    Worlds,
    /// The PML on the BTL, with everything that a seed can set in them, and what the BTL counts.
    Pml,
}

impl Stack {
    /// That of a seed, when none is named: even ones have worlds.
    pub fn of(seed: u64) -> Self {
        if seed.is_multiple_of(2) {
            Self::Worlds
        } else {
            Self::Pml
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worlds => "worlds",
            Self::Pml => "pml",
        }
    }
}

/// One job: which seed, over which faults, how large.
#[derive(Clone, Debug)]
pub struct SimulatedJob {
    /// The seed, which chooses everything.
    pub seed: u64,
    /// What the network does wrong.
    pub class: Class,
    /// What it runs on.
    pub stack: Stack,
    /// Ranks, 2 at least.
    pub ranks: u32,
    /// Messages of all ranks together.
    pub messages: usize,
    /// Longest frame, instead of the one that the seed chooses.
    pub mtu: Option<usize>,
    /// Changes of the network at their times, on top of the class.
    pub script: Vec<(Time, Change)>,
}

/// A job that went well.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Bytes of its messages.
    pub bytes: u64,
    /// How long it took, on the virtual clock.
    pub took: Duration,
    /// What the network did.
    pub network: Stats,
    /// Segments that the BTLs sent again; worlds do not report them.
    pub sent_again: Option<u64>,
    /// Equal for equal runs.
    pub hash: u64,
}

/// A PML for each rail, rank by rank, which knows all of them.
pub(crate) fn know_each_other<D: Datagram>(
    seed: u64,
    protocol: Protocol,
    rails: Vec<(Btl<D>, Incarnation)>,
) -> Result<Vec<Pml<Btl<D>>>, Kind> {
    let other = |error: doorbell_pml::PmlError| Kind::Other(error.to_string());
    let ranks = rails.len() as u32;
    let known: Vec<_> = rails.iter().map(|(rail, life)| (rail.address(), *life)).collect();
    let mut pmls = Vec::with_capacity(rails.len());
    for (rank, (rail, _)) in (0..).zip(rails) {
        let mut config = PmlConfig::new(Rank(rank), ranks, seed);
        config.protocol = protocol;
        let mut pml = Pml::new(config).map_err(other)?;
        let id = pml.add_rail(rail).map_err(other)?;
        for (peer, (address, life)) in (0..).zip(&known) {
            pml.connect(Rank(peer), id, address, *life).map_err(other)?;
        }
        pmls.push(pml);
    }
    Ok(pmls)
}

impl SimulatedJob {
    /// Plays the job; a failure is played again, with a capture of its end in `captures`.
    ///
    /// # Errors
    /// [`Failure`] with the first thing that is wrong.
    pub fn run(&self, captures: Option<&Path>) -> Result<Outcome, Failure> {
        let (at, kind) = match self.guarded(None) {
            Ok(outcome) => return Ok(outcome),
            Err(found) => found,
        };
        let file = captures.map(|folder| {
            folder.join(format!(
                "{}-{}-{}.pcapng",
                self.class,
                self.stack.name(),
                self.seed
            ))
        });
        let capture = file.filter(|path| {
            let silent = if matches!(kind, Kind::Lost(_)) {
                STANDSTILL
            } else {
                Duration::ZERO
            };
            let began = at.nanos().saturating_sub((CAPTURED + silent).as_nanos() as u64);
            let again = self.guarded(Some((Time::from_nanos(began), path)));
            // A failure that does not come again is reported all the same; its capture would mislead.
            again.is_err_and(|(again, _)| again == at) && path.is_file()
        });
        Err(self.failure(at, kind, capture))
    }

    fn failure(&self, at: Time, kind: Kind, capture: Option<PathBuf>) -> Failure {
        let Self {
            seed,
            class,
            messages,
            ..
        } = self;
        let stack = self.stack.name();
        Failure {
            run: format!("seed {seed}, fault {class}"),
            again: format!("--seed {seed} --fault {class} --messages {messages} --stack {stack}"),
            at,
            kind,
            capture,
        }
    }

    /// Plays the job once, and writes all of it to `file` as a capture.
    ///
    /// # Errors
    /// Those of [`SimulatedJob::run`].
    pub fn capture(&self, file: &Path) -> Result<Outcome, Failure> {
        self.guarded(Some((Time::ZERO, file)))
            .map_err(|(at, kind)| self.failure(at, kind, Some(file.to_owned())))
    }

    /// Plays the job.
    fn guarded(&self, dump: Option<(Time, &Path)>) -> Result<Outcome, (Time, Kind)> {
        let mut shape = Shape::of(self.seed, self.class);
        if let Some(mtu) = self.mtu {
            shape.sim.mtu = mtu;
        }
        let net = SimNet::new(self.seed, shape.sim);
        self.script.iter().for_each(|&(at, change)| net.at(at, change));
        let played = caught(|| {
            let plan = Plan::new(self.seed, self.ranks, self.messages, Mix::PLAIN);
            match self.stack {
                Stack::Worlds => self.on_worlds(&net, &plan, shape, dump),
                Stack::Pml => self.on_pmls(&net, &plan, shape, dump),
            }
        });
        played.map_err(|kind| (net.now(), kind))
    }

    fn rail(&self, net: &SimNet, shape: Shape, rank: u32) -> Result<(Btl<SimDatagram>, Incarnation), Kind> {
        let driver = net.attach_datagram_rank(rank, Plane::FIRST);
        let life = driver.incarnation();
        let config = BtlConfig {
            first_sequence: shape.wraps.then_some(u32::MAX - 1_000),
            ..BtlConfig::default()
        };
        let mut btl = Btl::new(driver, config, life).map_err(|error| Kind::Other(error.to_string()))?;
        let mut key = [0; 32];
        let mut random = Random::for_part(self.seed, &[5]);
        key.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        btl.set_key(JobKey::from_bytes(key));
        Ok((btl, life))
    }

    fn on_pmls(
        &self,
        net: &SimNet,
        plan: &Plan,
        shape: Shape,
        dump: Option<(Time, &Path)>,
    ) -> Result<Outcome, Kind> {
        let rails = (0..self.ranks).map(|rank| self.rail(net, shape, rank));
        let rails = rails.collect::<Result<Vec<_>, _>>()?;
        let pmls = know_each_other(self.seed, shape.protocol, rails)?;
        let mut table = Table::seat(net, plan, self, shape, pmls);
        table.play(plan, dump)?;
        table.part()?;
        let rails = table.players.iter().flat_map(|player| player.end.rails());
        let counters: Vec<Counters> = rails.map(|(_, btl)| *btl.counters()).collect();
        let mut outcome = table.outcome(plan);
        outcome.sent_again = Some(counters.iter().map(|counters| counters.resends).sum());
        Ok(outcome)
    }

    fn on_worlds(
        &self,
        net: &SimNet,
        plan: &Plan,
        shape: Shape,
        dump: Option<(Time, &Path)>,
    ) -> Result<Outcome, Kind> {
        let mut config = Config::default();
        config.pml.protocol.set(match shape.protocol {
            Protocol::Fragments => doorbell::config::Protocol::Fragments,
            Protocol::Put => doorbell::config::Protocol::Put,
            _ => doorbell::config::Protocol::Auto,
        });
        config.counters.place.set(doorbell::config::CounterPlace::Off);
        // One thread: while one rank closes, no other one answers.
        config.wait.close.set(Duration::from_millis(1));
        let worlds = doorbell::simulated_datagrams(net, self.ranks, &config);
        let worlds: Vec<World> = worlds.map_err(|error| Kind::Other(error.to_string()))?;
        let ends = worlds.iter().map(|world| WorldEnd {
            world,
            net: net.clone(),
            alarm: self.ranks,
            pace: shape.pace / self.ranks,
        });
        let mut table = Table::seat(net, plan, self, shape, ends.collect());
        table.play(plan, dump)?;
        table.part()?;
        let outcome = table.outcome(plan);
        drop(table);
        drop(worlds);
        nothing_is_left(net)?;
        Ok(outcome)
    }
}

/// Plays, and takes a panic for what it is.
pub(crate) fn caught<T>(play: impl FnOnce() -> Result<T, Kind>) -> Result<T, Kind> {
    catch_unwind(AssertUnwindSafe(play)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Kind::Panic(text.unwrap_or("of an unknown kind").to_owned()))
    })
}

/// Whether the network has nothing under way any more, some time after all ranks have closed.
pub(crate) fn nothing_is_left(net: &SimNet) -> Result<(), Kind> {
    while net.advance_to_next_event().is_some() {}
    match net.held() {
        0 => Ok(()),
        held => Err(Kind::Other(format!("the network is left with {held} frames"))),
    }
}

/// The players, and the network between them.
struct Table<E: End> {
    net: SimNet,
    players: Vec<Player<E>>,
    /// In which order they are stepped.
    order: Vec<usize>,
    random: Random,
    pace: Duration,
    ended: Time,
}

impl<E: End> Table<E> {
    fn seat(net: &SimNet, plan: &Plan, job: &SimulatedJob, shape: Shape, ends: Vec<E>) -> Self {
        let player = |(rank, end)| Player::new(end, plan, rank, job.ranks, job.seed, shape.manners);
        let players: Vec<_> = (0..).zip(ends).map(player).collect();
        Self {
            net: net.clone(),
            order: (0..players.len()).collect(),
            players,
            random: Random::for_part(job.seed, &[6]),
            pace: shape.pace,
            ended: Time::ZERO,
        }
    }

    fn outcome(&self, plan: &Plan) -> Outcome {
        Outcome {
            bytes: plan.bytes(),
            took: self.ended.since(Time::ZERO),
            network: self.net.total(),
            sent_again: None,
            hash: self.net.trace_hash(),
        }
    }

    /// Steps all ranks until all are done.
    fn play(&mut self, plan: &Plan, mut dump: Option<(Time, &Path)>) -> Result<(), Kind> {
        while !self.players.iter().all(|player| player.is_done(plan)) {
            let now = self.net.now();
            if let Some((_, path)) = dump.take_if(|(began, _)| now >= *began) {
                let file = std::fs::File::create(path).map_err(|error| Kind::Other(error.to_string()))?;
                self.net.dump(file);
            }
            self.random.shuffle(&mut self.order);
            let mut worked = false;
            for &rank in &self.order {
                let player = &mut self.players[rank];
                worked |= player.step(plan, now)? || player.end.must_poll();
            }
            self.advance(worked, |player| player.next_deadline());
            let last = self.players.iter().map(Player::last).max();
            if last.is_some_and(|last| now.since(last) > STANDSTILL) {
                let waits = self.players.iter().filter(|player| !player.is_done(plan));
                let texts: Vec<String> = waits.map(|player| player.explain(plan)).collect();
                return Err(Kind::Lost(texts.join("\n")));
            }
        }
        self.ended = self.net.now();
        Ok(())
    }

    /// One round takes its time; when no rank did anything, as long as until something is due.
    fn advance(&self, worked: bool, deadline: impl Fn(&Player<E>) -> Option<Time>) {
        let mut next = self.net.now() + self.pace;
        if !worked {
            let due = self
                .players
                .iter()
                .filter_map(deadline)
                .chain(self.net.next_due());
            next = due.min().map_or(next, |due| due.max(next));
        }
        self.net.advance_to(next);
    }

    /// Closes all ranks; nothing may be left.
    fn part(&mut self) -> Result<(), Kind> {
        let by = self.net.now() + FAREWELL;
        let mut closed = vec![false; self.players.len()];
        while closed.contains(&false) {
            let now = self.net.now();
            for (player, closed) in self.players.iter_mut().zip(&mut closed) {
                *closed = *closed || player.end.close(now, by);
            }
            self.advance(false, |player| player.end.next_deadline());
        }
        for (rank, player) in self.players.iter().enumerate() {
            if let Some(what) = player.end.leftovers() {
                return Err(Kind::Other(format!("rank {rank} is left with {what}")));
            }
        }
        nothing_is_left(&self.net)
    }
}
