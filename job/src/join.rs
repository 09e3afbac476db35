//! Joining a job: opens the rails, meets the other ranks and makes the table of ranks, before there is a
//! layer above the rails.

use std::sync::Arc;

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Rail as _;
use doorbell_oob::{Connection, JobKey, Terms};
use doorbell_sim::SimNet;

use crate::binding;
use crate::config::{self, Config, Origin};
use crate::connect::{self, PeerPath, RailOwner};
use crate::control;
use crate::cores;
use crate::error::Error;
use crate::handle::Job;
use crate::launcher::{self, LauncherHandle, lock};
use crate::meet::pmi::{self, Met};
use crate::meet::spawn_child::Invited;
use crate::meet::tcp::{Life, RANKS, Remote};
use crate::meet::{Key, Meeting, RankInfo, Root, meet};
use crate::rails::sets::{Among, take_each, take_own};
use crate::rails::{AnyRail, open_all};
use crate::random;
use crate::ranks::{Directory, Source};
use crate::types::MOST_RANKS;
use crate::wait::Hook;
use crate::wait::turns::Clock;

/// Open rails, and all candidates for selection.
pub type Rails = (Vec<AnyRail>, Vec<Candidate>);

/// The kind of communication of a job, the same for all its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The ranks exchange tagged messages.
    Messages,
    /// The ranks exchange operations of Portals interfaces.
    Portals,
    /// The ranks exchange active messages.
    Am,
}

impl Layer {
    /// Returns the layer's name in the option `--layer` of the programs.
    fn name(self) -> &'static str {
        match self {
            Self::Messages => "pml",
            Self::Portals => "portals",
            Self::Am => "am",
        }
    }
}

/// A job that this rank has joined, with its own rails, before there is a layer above them.
pub struct Joined {
    /// The job as this rank knows it.
    pub job: Job,
    /// The secret of the job.
    pub key: Key,
    /// The rails of this rank, and all candidates for selection.
    pub rails: Rails,
}

/// A job with the layer above its rails.
pub struct Built<T> {
    /// The job as this rank knows it.
    pub job: Job,
    /// The layer that was built above the rails.
    pub layer: T,
    /// The connection to the rank on the other host, where the two met over one.
    pub life: Option<Life>,
}

impl Joined {
    /// Puts a layer above the rails: `make` makes it without rails, and `finish` completes it once it has
    /// them and its peers are open. Where two ranks met over a connection, an error of this rank is reported
    /// over it.
    ///
    /// # Errors
    /// Those of `make` and `finish`; a rail or a peer that cannot be used.
    pub fn build<A: RailOwner, T>(
        self,
        mut remote: Option<Remote>,
        make: impl FnOnce(&Job) -> Result<A, Error>,
        finish: impl FnOnce(A, &Job, Vec<Vec<PeerPath>>, Vec<Candidate>) -> Result<T, Error>,
    ) -> Result<Built<T>, Error> {
        let Self {
            mut job,
            key,
            rails: (rails, candidates),
        } = self;
        let built = make(&job).and_then(|mut owner| {
            job.set_rail_modes(connect::add_rails(&mut owner, rails, &key)?);
            let paths =
                connect::meet_at_once(&mut owner, job.config(), &candidates, job.rank(), job.directory())?;
            finish(owner, &job, paths, candidates)
        });
        let layer = built.map_err(|error| match &mut remote {
            Some(remote) => remote.refuse(error),
            None => error,
        })?;
        let life = remote.map(Remote::start).transpose()?;
        job.set_met_over(life.as_ref().map(Life::address));
        Ok(Built { job, layer, life })
    }
}

/// Opens the rails and meets the other ranks. Through a launcher that exchanges values, this reads the
/// entries of all ranks, or that of rank 0 alone in a job of more than `most`.
///
/// # Errors
/// A rail that cannot be used, ranks that do not come, an inconsistent description of the job.
pub fn join(
    launcher: Option<&LauncherHandle>,
    config: Config,
    layer: Layer,
    most: u32,
) -> Result<Joined, Error> {
    let mut config = config;
    let limit = *config.job.timeout.get();
    let (rank, size) = place(&config)?;
    let own = take_own(&mut config, Among::of(launcher, rank, size));
    let prepared = own.and_then(|()| prepare(&config, rank, size, layer));
    let exchange = launcher.filter(|launcher| launcher::passes_on(&**lock(launcher)));
    let (rails, key, directory) = match (size, exchange, config.job.root.get()) {
        (1, _, _) => {
            let (rails, own) = prepared?;
            (rails, Key::random()?, Directory::whole(vec![own]))
        }
        (_, Some(launcher), _) => meet_through(launcher, &config, prepared, most)?,
        (_, None, Some(root)) => {
            let (rails, own) = prepared?;
            let Meeting { key, ranks } = meet(&Root::parse(root)?, own, limit)?;
            (rails, key, Directory::whole(ranks))
        }
        (_, None, None) => {
            return Err(ill_described(
                "there are several ranks, but DOORBELL_ROOT is not set",
            ));
        }
    };
    let job = Job::new(config, rank, directory);
    Ok(Joined { job, key, rails })
}

/// Meets the other ranks through a launcher that exchanges values: all of them, or rank 0 alone in a large
/// job.
fn meet_through(
    launcher: &LauncherHandle,
    config: &Config,
    prepared: Result<(Rails, RankInfo), Error>,
    most: u32,
) -> Result<(Rails, Key, Directory), Error> {
    let limit = *config.job.timeout.get();
    let mut through = lock(launcher);
    let (rails, met) = pmi::meet(&mut **through, prepared, limit, most)?;
    let local = (through.place().local_rank, through.place().local_size);
    drop(through);
    Ok(match met {
        Met::All(Meeting { key, ranks }) => (rails, key, Directory::whole(ranks)),
        Met::Zero { key, own, zero } => {
            let source = Source {
                launcher: Arc::clone(launcher),
                local,
                config: config.clone(),
            };
            (rails, key, Directory::lazy(*own, *zero, source)?)
        }
    })
}

/// Meets another rank over a connection; an error of this rank is reported there.
///
/// # Errors
/// What failed at either side.
pub fn join_over(
    connection: Connection,
    layer: Layer,
    resolved: Result<(Config, Option<Hook>), Error>,
) -> Result<(Joined, Option<Hook>, Remote), Error> {
    let limit = resolved
        .as_ref()
        .map_or(*Config::default().job.timeout.get(), |(config, _)| {
            *config.job.timeout.get()
        });
    let mut remote = Remote::over(connection, limit);
    let rank = remote.rank();
    let prepared = resolved.and_then(|(mut config, hook)| {
        without_launcher(&config)?;
        take_own(&mut config, Among::Alone)?;
        binding::check(&config)?;
        control::check(&config)?;
        let (rails, candidates) = open_all(&config)?;
        let own = info(&config, (rank, RANKS), layer, &rails)?;
        Ok((config, hook, (rails, candidates), own))
    });
    let (config, hook, rails, own) = prepared.map_err(|error| remote.refuse(error))?;
    let Meeting { key, ranks } = remote.meet(own)?;
    let job = Job::new(config, rank, Directory::whole(ranks));
    let joined = Joined { job, key, rails };
    Ok((joined, hook, remote))
}

/// Refuses an invitation into a running job: only a world can grow.
///
/// # Errors
/// When this process was started by an invitation.
pub fn refuse_invitation(launcher: Option<&LauncherHandle>, config: &Config) -> Result<(), Error> {
    let Some(launcher) = launcher else { return Ok(()) };
    let invited = Invited::through(&mut **lock(launcher), *config.job.timeout.get())?;
    let Some(invited) = invited else { return Ok(()) };
    let unsupported = Error::Unsupported {
        what: "to join a job that runs already",
        by: "a job of Portals interfaces or active messages".to_owned(),
    };
    invited.meet(Err(unsupported)).map(|_: (Rails, _, _)| ())
}

/// Returns what both sides of a connection between two hosts bring to it, for `Builder::build_over`. Without
/// a key, the connection has to be on the loopback interface.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn terms(key: Option<JobKey>) -> Result<Terms, Error> {
    Ok(Terms::new(key, MEETING, random::number()?))
}

/// The purpose of the sessions: the meeting of two ranks.
const MEETING: u16 = 1;

/// Refuses a rank from the environment: ranks that meet over a connection have no launcher.
fn without_launcher(config: &Config) -> Result<(), Error> {
    match config.job.rank.get() {
        None => Ok(()),
        Some(rank) => Err(ill_described(format!(
            "DOORBELL_RANK is {rank} ({}), but two hosts that meet over a connection have their ranks from it",
            config.job.rank.origin()
        ))),
    }
}

/// Opens the rails, and makes the entry that this rank publishes.
///
/// # Errors
/// A rail that cannot be used; too few cores for a progress thread.
pub fn prepare(config: &Config, rank: u32, size: u32, layer: Layer) -> Result<(Rails, RankInfo), Error> {
    binding::check(config)?;
    control::check(config)?;
    let alone = size == 1 && config.rails.list.get().0.is_empty();
    let (rails, candidates) = if alone {
        Default::default()
    } else {
        open_all(config)?
    };
    let own = info(config, (rank, size), layer, &rails)?;
    Ok(((rails, candidates), own))
}

fn ill_described(reason: impl Into<String>) -> Error {
    Error::Job {
        reason: reason.into(),
    }
}

pub(crate) fn place(config: &Config) -> Result<(u32, u32), Error> {
    let (rank, size, root) = (&config.job.rank, &config.job.size, &config.job.root);
    let without = |what: &str, origin: &Origin, missing: &str| {
        Err(ill_described(format!(
            "{what} is set ({origin}), but {missing} not"
        )))
    };
    match (*rank.get(), *size.get()) {
        (None, None) if root.get().is_some() => {
            without("job.root", root.origin(), "DOORBELL_RANK and DOORBELL_SIZE are")
        }
        (None, None) => Ok((0, 1)),
        (Some(_), None) => without("job.rank", rank.origin(), "DOORBELL_SIZE is"),
        (None, Some(_)) => without("job.size", size.origin(), "DOORBELL_RANK is"),
        (Some(rank), Some(size)) if rank >= size => Err(ill_described(format!(
            "DOORBELL_RANK is {rank}, but a job of {size} has the ranks from 0 to {}",
            size.saturating_sub(1)
        ))),
        (Some(rank), Some(size)) => Ok((rank, size)),
    }
}

fn info(
    config: &Config,
    (rank, size): (u32, u32),
    layer: Layer,
    rails: &[AnyRail],
) -> Result<RankInfo, Error> {
    let rails = rails.iter().map(AnyRail::entry).collect();
    let mut agreed = config.agreed();
    agreed.insert("the layer above the rails".to_owned(), layer.name().to_owned());
    RankInfo::of_this_process(rank, size, agreed, rails)
}

/// Opens the configured rails for each of `size` ranks inside this process.
///
/// # Errors
/// A rail that cannot be used.
pub fn open_for_all(size: u32, config: &Config) -> Result<Vec<Rails>, Error> {
    take_each(config, size)?.iter().map(open_all).collect()
}

/// Returns a clock that reads the machine's time.
pub fn machine_clock() -> Clock {
    Clock::Machine(doorbell_fabric::clock::Clock::start())
}

/// Opens one rail for each rank, on a simulated network of messages, or of datagrams.
///
/// # Errors
/// Settings of the BTL that do not fit.
pub fn simulated_rails(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
) -> Result<Vec<Rails>, Error> {
    let rail = |_| {
        let rail = if datagrams {
            AnyRail::simulated_datagrams(net.attach_datagram(), config)?
        } else {
            AnyRail::Sim(net.attach())
        };
        let candidate = rail.candidate();
        Ok((vec![rail], vec![candidate]))
    };
    (0..size).map(rail).collect()
}

/// Joins all ranks of a job inside this process, one for each of `rails`.
///
/// # Errors
/// Fewer ranks than one, or too many.
pub fn all_in_process(
    config: &Config,
    layer: Layer,
    rails: Vec<Rails>,
    key: Key,
) -> Result<Vec<Joined>, Error> {
    let size = u32::try_from(rails.len())
        .ok()
        .filter(|size| *size > 0 && *size <= MOST_RANKS);
    let size = size.ok_or_else(|| ill_described(format!("a job has from 1 to {MOST_RANKS} ranks")))?;
    let ranks = 0..size;
    let table = ranks
        .clone()
        .zip(&rails)
        .map(|(rank, (rails, _))| info(config, (rank, size), layer, rails))
        .collect::<Result<Vec<_>, _>>()?;
    let joined = |(rank, rails): (u32, Rails)| Joined {
        job: Job::new(
            with_opened(config, &rails.0),
            rank,
            Directory::whole(table.clone()),
        ),
        key,
        rails,
    };
    Ok(ranks.zip(rails).map(joined).collect())
}

/// The configuration of a rank of this process: with the rails that it has opened in the place of sets.
fn with_opened(config: &Config, rails: &[AnyRail]) -> Config {
    let mut own = config.clone();
    if own.rails.list.get().0.iter().any(RailName::is_set) {
        let opened = rails.iter().map(|rail| rail.name().clone());
        own.rails.list.narrow(config::Rails(opened.collect()));
        own.rails.of_sets.narrow(true);
    }
    own
}

/// Whether the ranks of this host have fewer cores than threads that want to spin.
pub fn crowded(rank: u32, directory: &Directory, dedicated: bool) -> bool {
    crowded_by(rank, directory, if dedicated { 2 } else { 1 })
}

/// The same, for ranks with this many threads that want to spin.
pub fn crowded_by(rank: u32, directory: &Directory, threads: usize) -> bool {
    let Some(own) = directory.rank_info(rank) else {
        return false;
    };
    if directory.is_lazy() {
        let here = directory.here().unwrap_or(directory.size());
        return cores::are_crowded_among(&own.cores, here as usize, threads);
    }
    let here = directory.rank_infos().filter(|info| info.host == own.host);
    cores::are_crowded(&own.cores, here.map(|info| info.cores.as_str()), threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_described_jobs_are_refused() {
        for (rank, size) in [
            (Some(0), None),
            (None, Some(2)),
            (None, Some(1)),
            (Some(2), Some(2)),
        ] {
            let mut config = Config::default();
            config.job.rank.set(rank);
            config.job.size.set(size);
            assert_eq!(
                place(&config).unwrap_err().code(),
                "job.description",
                "{rank:?} {size:?}"
            );
        }
        let mut config = Config::default();
        config.job.root.set(Some("@x".to_owned()));
        let error = place(&config).unwrap_err().to_string();
        assert!(error.contains("DOORBELL_RANK and DOORBELL_SIZE"), "{error}");
    }
}
