//! How a job of Portals processes comes about: the meeting is that of a [`World`](crate::World), and the rails are its rails.

use std::sync::PoisonError;
use std::time::Duration;

use doorbell_am_portals as ni;
use doorbell_job::config::{Config, Mode};
use doorbell_job::connect;
use doorbell_job::error::Error;
use doorbell_job::launcher::Door;
use doorbell_job::meet::Key;
use doorbell_job::meet::remote::Remote;
use doorbell_job::rails::open_all;
use doorbell_job::random;
use doorbell_job::wait::{Hook, Station};
use doorbell_oob::Connection;
use doorbell_oob::launch::Kind as Launched;
use doorbell_sim::SimNet;

use super::collect::{Collect, INTERNAL, refused};
use super::floor::{Floor, Ranks, node_error};
use super::{Parts, Portals};
use crate::builder::{Builder, Joined, Layer, crowded, everybody, simulated_rails};
use crate::progress::{Clock, Patience};

/// Time for what a launcher is told at the end.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Builder {
    /// As [`Builder::build`], with Portals interfaces in place of tagged messages. When it returns, all ranks are there.
    ///
    /// ```
    /// let mut job = doorbell::Builder::new().build_portals()?;
    /// assert_eq!((job.rank(), job.size()), (0, 1));
    /// job.barrier()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`init`](crate::init); [`Error::NoSuchMode`] for what only a [`World`](crate::World) has: a progress thread, a
    /// control plane, ranks that a running job starts.
    pub fn build_portals(self) -> Result<Portals, Error> {
        self.joined(Layer::Portals, &refuse, |joined, hook, door| {
            let (floor, mut parts) = raise(joined, hook, None, clock())?;
            parts.door = door;
            begin(Portals::of((floor, parts)))
        })
    }

    /// As [`Builder::build_over`], with Portals interfaces in place of tagged messages.
    ///
    /// # Errors
    /// As [`Builder::build_portals`].
    pub fn build_portals_over(self, connection: Connection) -> Result<Portals, Error> {
        self.joined_over(connection, Layer::Portals, &refuse, |joined, hook, remote| {
            begin(Portals::of(raise(joined, hook, Some(remote), clock())?))
        })
    }
}

/// Makes a job of `size` Portals processes inside this process, over the configured rails: to be moved into threads, or to be
/// polled by one. Their [`Portals::barrier`] was not called yet.
///
/// ```
/// let jobs = doorbell::local_portals(2, &doorbell::Config::default())?;
/// std::thread::scope(|s| {
///     for mut job in jobs {
///         s.spawn(move || job.barrier().unwrap());
///     }
/// });
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// As [`Builder::build_portals`].
pub fn local_portals(size: u32, config: &Config) -> Result<Vec<Portals>, Error> {
    let jobs = jobs_in_process(size, config, Layer::Portals)?;
    Ok(jobs.into_iter().map(Portals::of).collect())
}

/// What all ranks of a job inside this process stand on.
pub(crate) fn jobs_in_process(
    size: u32,
    config: &Config,
    layer: Layer,
) -> Result<Vec<(Floor, Parts)>, Error> {
    config.verify()?;
    refuse(config)?;
    let rails = (0..size)
        .map(|_| open_all(config))
        .collect::<Result<Vec<_>, _>>()?;
    let joined = everybody(config, layer, rails, Key::random()?)?;
    let clock = clock();
    joined
        .into_iter()
        .map(|joined| raise(joined, None, None, clock.clone()))
        .collect()
}

/// As [`local_portals`], on a simulated network: one thread drives all of them, in virtual time, with
/// [`Portals::progress`] in turn. `datagrams`: the network loses, doubles, delays and spoils frames.
///
/// ```
/// use doorbell::sim::{SimConfig, SimNet};
/// let net = SimNet::new(42, SimConfig::default());
/// let jobs = doorbell::simulated_portals(&net, 2, &doorbell::Config::default(), false)?;
/// assert_eq!(jobs[1].rank(), 1);
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// As [`Builder::build_portals`].
pub fn simulated_portals(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
) -> Result<Vec<Portals>, Error> {
    let jobs = simulated_jobs(net, size, config, datagrams, Layer::Portals)?;
    Ok(jobs.into_iter().map(Portals::of).collect())
}

/// The same on a simulated network.
pub(crate) fn simulated_jobs(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
    layer: Layer,
) -> Result<Vec<(Floor, Parts)>, Error> {
    config.verify()?;
    refuse(config)?;
    let rails = simulated_rails(net, size, config, datagrams)?;
    // Nothing of it leaves this process, and the same seed has to give the same run.
    let joined = everybody(config, layer, rails, Key::of_seed(net.seed()))?;
    joined
        .into_iter()
        .map(|joined| raise(joined, None, None, Clock::Virtual(net.clone())))
        .collect()
}

pub(crate) fn clock() -> Clock {
    Clock::Machine(doorbell_fabric::clock::Clock::start())
}

/// What only a world has.
pub(crate) fn refuse(config: &Config) -> Result<(), Error> {
    if *config.progress.mode.get() == Mode::Dedicated {
        return Err(Error::NoSuchMode {
            what: "a dedicated progress thread (progress.mode)",
        });
    }
    if *config.control.mode.get() {
        return Err(Error::NoSuchMode {
            what: "a control plane (control.mode)",
        });
    }
    Ok(())
}

/// Puts the parts together. Nothing has been polled for when this returns.
pub(crate) fn raise(
    joined: Joined,
    hook: Option<Hook>,
    mut remote: Option<Remote>,
    clock: Clock,
) -> Result<(Floor, Parts), Error> {
    let Joined {
        config,
        rank,
        key,
        directory,
        rails: (rails, candidates),
    } = joined;
    let ranks = Ranks::of(directory.hellos());
    let size = directory.size();
    let me = ranks.process(rank).ok_or(Error::NoSuchRank { rank, size })?;
    let mut hows = Vec::new();
    let built = node(&config, me).and_then(|mut node| {
        for mut rail in rails {
            let name = doorbell_fabric::rail::Rail::name(&rail).to_string();
            hows.extend(rail.how().map(|how| (name, how)));
            rail.set_key(&key);
            node.add_rail(rail).map_err(node_error)?;
        }
        let mut floor = Floor {
            node,
            ranks,
            ways: Vec::new(),
        };
        floor.ways = connect::meet_at_once(&mut floor, &config, &candidates, rank, &directory)?;
        let what = "the interface of the meeting points";
        floor.node.ni_init(INTERNAL, None).map_err(refused(what))?;
        let collect = Collect::new(&mut floor, rank, size)?;
        Ok((floor, collect))
    });
    let (floor, collect) = built.map_err(|error| match &mut remote {
        Some(remote) => remote.refuse(error),
        None => error,
    })?;
    let patience = Patience::of(&config.progress, crowded(rank, &directory, false));
    let mut station = Station::new(clock, patience, &config, (rank, directory.size()));
    station.hook = hook;
    station.life = remote.map(Remote::start).transpose()?;
    let parts = Parts {
        station,
        collect,
        rank,
        config,
        directory,
        door: None,
        hows,
    };
    Ok((floor, parts))
}

fn node(
    config: &Config,
    me: doorbell_fabric::ni::Process,
) -> Result<ni::Node<doorbell_job::rails::AnyRail>, Error> {
    let mut settings = ni::Config::new(me);
    settings.uid = rustix::process::geteuid().as_raw();
    settings.seed = random::number()?;
    settings.patience = *config.pml.patience.get();
    Ok(ni::Node::new(settings))
}

/// Waits until all ranks are there.
fn begin(mut job: Portals) -> Result<Portals, Error> {
    let within = *job.parts.config.job.timeout.get();
    let usual = std::mem::replace(&mut job.parts.station.limit, within);
    job.barrier()?;
    job.parts.station.limit = usual;
    Ok(job)
}

/// By which launcher a rank was started, when that was not `doorbell run`.
pub(crate) fn launcher_of(door: Option<&Door>) -> Option<Launched> {
    let kind = door?.lock().unwrap_or_else(PoisonError::into_inner).kind();
    (kind != Launched::Singleton).then_some(kind)
}

/// Takes leave of the launcher, if there is one.
pub(crate) fn farewell(door: Option<Door>) {
    let Some(door) = door else { return };
    let mut door = door.lock().unwrap_or_else(PoisonError::into_inner);
    if door.kind() != Launched::Singleton {
        // One that does not hear it takes our end for a failure, and has its own words for that.
        let _ = door.finalize(LAST_WORDS);
    }
}

/// Ends the job through its launcher, and this process.
pub(crate) fn abort(door: Option<Door>, exit: u8, reason: &str) -> ! {
    if let Some(door) = door {
        // One that cannot be told sees how we end.
        let mut door = door.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = door.abort(exit, reason, LAST_WORDS);
    }
    std::process::exit(i32::from(exit))
}
