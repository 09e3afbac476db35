//! Building a job of Portals processes: its ranks meet as those of a [`World`](crate::World), and the rails
//! are its rails.

use std::sync::Arc;

use doorbell_am_portals as ni;
use doorbell_job::binding;
use doorbell_job::config::{Config, Mode};
use doorbell_job::error::Error;
use doorbell_job::join::{
    Built, Joined, Layer, all_in_process, crowded, machine_clock, open_for_all, simulated_rails,
};
use doorbell_job::meet::Key;
use doorbell_job::meet::tcp::Remote;
use doorbell_job::random;
use doorbell_job::wait::turns::{Clock, Patience};
use doorbell_job::wait::{Hook, NodeWaiter};
use doorbell_oob::Connection;
use doorbell_sim::SimNet;

use super::collect::{Collect, INTERNAL, refused};
use super::node::{PortalsNode, Ranks};
use super::{Parts, Portals};
use crate::builder::Builder;

impl Builder {
    /// Builds a job with Portals interfaces in place of tagged messages; otherwise as [`Builder::build`].
    /// When it returns, all ranks have joined.
    ///
    /// ```
    /// let mut job = doorbell::Builder::new().build_portals()?;
    /// assert_eq!((job.rank(), job.size()), (0, 1));
    /// job.barrier()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`init`](crate::init); [`Error::NoSuchMode`] for what only a [`World`](crate::World) has: a
    /// control plane, ranks that a running job starts.
    pub fn build_portals(self) -> Result<Portals, Error> {
        self.joined(Layer::Portals, &refuse, |joined, hook| {
            begin(Portals::of(build(joined, hook, None, machine_clock())?)?)
        })
    }

    /// Builds a job of two ranks with Portals interfaces in place of tagged messages; otherwise as
    /// [`Builder::build_over`].
    ///
    /// # Errors
    /// Those of [`Builder::build_portals`].
    pub fn build_portals_over(self, connection: Connection) -> Result<Portals, Error> {
        self.joined_over(connection, Layer::Portals, &refuse, |joined, hook, remote| {
            begin(Portals::of(build(joined, hook, Some(remote), machine_clock())?)?)
        })
    }
}

/// Makes a job of `size` Portals processes inside this process, over the configured rails. Move them into
/// threads, or poll them all from one. They have not called [`Portals::barrier`] yet.
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
/// Those of [`Builder::build_portals`].
pub fn local_portals(size: u32, config: &Config) -> Result<Vec<Portals>, Error> {
    let jobs = jobs_in_process(size, config, Layer::Portals)?;
    jobs.into_iter().map(Portals::of).collect()
}

/// Returns the node and the other parts of each rank of a job inside this process.
pub(crate) fn jobs_in_process(
    size: u32,
    config: &Config,
    layer: Layer,
) -> Result<Vec<(PortalsNode, Parts)>, Error> {
    config.verify()?;
    refuse(config)?;
    let rails = open_for_all(size, config)?;
    let joined = all_in_process(config, layer, rails, Key::random()?)?;
    let clock = machine_clock();
    joined
        .into_iter()
        .map(|joined| build(joined, None, None, clock.clone()))
        .collect()
}

/// Makes a job on a simulated network; otherwise as [`local_portals`]. One thread drives all ranks, in
/// virtual time, by [`Portals::progress`] of each in turn. With `datagrams`, the network loses, duplicates,
/// delays and corrupts frames.
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
/// Those of [`Builder::build_portals`]; [`Error::Unsupported`] with `progress.mode = dedicated`: a second
/// thread would make runs differ.
pub fn simulated_portals(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
) -> Result<Vec<Portals>, Error> {
    let jobs = simulated_jobs(net, size, config, datagrams, Layer::Portals)?;
    jobs.into_iter().map(Portals::of).collect()
}

/// Returns the node and the other parts of each rank of a job on a simulated network.
pub(crate) fn simulated_jobs(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
    layer: Layer,
) -> Result<Vec<(PortalsNode, Parts)>, Error> {
    config.verify()?;
    refuse(config)?;
    if *config.progress.mode.get() == Mode::Dedicated {
        return Err(Error::Unsupported {
            what: "a dedicated progress thread",
            by: "the simulated network".to_owned(),
        });
    }
    let rails = simulated_rails(net, size, config, datagrams)?;
    // Nothing of it leaves this process, and the same seed has to reproduce the same run.
    let joined = all_in_process(config, layer, rails, Key::of_seed(net.seed()))?;
    joined
        .into_iter()
        .map(|joined| build(joined, None, None, Clock::Virtual(net.clone())))
        .collect()
}

/// Refuses settings that only a world supports.
pub(crate) fn refuse(config: &Config) -> Result<(), Error> {
    if *config.control.mode.get() {
        return Err(Error::NoSuchMode {
            what: "a control plane (control.mode)",
        });
    }
    Ok(())
}

/// Assembles the parts of a job. Nothing has been polled when this returns.
pub(crate) fn build(
    joined: Joined,
    hook: Option<Hook>,
    remote: Option<Remote>,
    clock: Clock,
) -> Result<(PortalsNode, Parts), Error> {
    let Built { job, layer, life } = joined.build(
        remote,
        |job| {
            let (rank, size) = (job.rank(), job.size());
            let ranks = Arc::new(Ranks::of_job(job.directory(), rank));
            let me = ranks.process(rank).ok_or(Error::NoSuchRank { rank, size })?;
            let node = node(job.config(), me)?;
            let paths = Vec::new();
            Ok(PortalsNode {
                node,
                ranks,
                paths,
                seen: None,
            })
        },
        |mut node, job, paths, _| {
            node.paths = paths;
            let what = "the interface of the collective operations";
            node.node.ni_init(INTERNAL, None).map_err(refused(what))?;
            let collect = Collect::new(&mut node, job.rank(), job.size())?;
            Ok((node, collect))
        },
    )?;
    let (node, collect) = layer;
    let (config, place) = (job.config(), (job.rank(), job.size()));
    let dedicated = *config.progress.mode.get() == Mode::Dedicated;
    let is_crowded = crowded(job.rank(), job.directory(), dedicated);
    let binding = binding::of(config, job.rank(), job.directory(), is_crowded)?;
    let shares = binding.as_ref().is_some_and(|binding| binding.shares.is_some());
    let patience = Patience::of(&config.progress, is_crowded || shares);
    let mut waiter = NodeWaiter::new(clock, patience, config, place);
    waiter.hook = hook;
    waiter.life = life;
    let parts = Parts {
        waiter,
        collect,
        job,
        binding,
    };
    Ok((node, parts))
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

/// Waits until all ranks have joined.
fn begin(mut job: Portals) -> Result<Portals, Error> {
    let within = *job.parts.job.config().job.timeout.get();
    let usual = std::mem::replace(&mut job.parts.waiter.limit, within);
    job.barrier()?;
    job.parts.waiter.limit = usual;
    Ok(job)
}
