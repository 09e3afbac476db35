//! What a job of active messages is made of, and how it is built.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use doorbell_am::{AmError, Attaching, Config as Plan, ExitFlag, Handlers, Settings, SettingsError};
use doorbell_fabric::limits::{Limit, Resource};
use doorbell_fabric::map::process::Kept;
use doorbell_fabric::memory::Region;
use doorbell_fabric::ni::Kind;
use doorbell_job::config::{AmHandlers, Config};
use doorbell_job::error::{Awaited, Error};
use doorbell_job::join::{Layer, machine_clock};
use doorbell_oob::Connection;
use doorbell_sim::SimNet;

use super::Am;
use super::field::{Field, Gathering};
use super::interrupt::Interrupt;
use super::wait::explained;
use crate::builder::Builder;
use crate::portals::{Parts, PortalsNode, build, jobs_in_process, refuse, simulated_jobs};
use crate::shared_node::SharedNode;

/// The interface that the conduit uses.
const KIND: Kind = Kind::MATCHING_LOGICAL;
/// The status of a job that SIGINT has ended, by the convention of shells.
const INTERRUPTED: u8 = 130;

/// What a job of active messages is made of. Handlers and settings are the same at all ranks.
///
/// ```
/// use doorbell::am::{Handlers, Settings, Setup};
/// let settings = Settings::parse([("GASNET_PORTAL_MSG_LIMIT", "64")]).map_err(doorbell::am::AmError::from)?;
/// let setup = Setup::new(Handlers::new(), 1 << 16).settings(settings);
/// let am = doorbell::Builder::new().build_am(setup)?;
/// assert_eq!(am.segment().len(), 1 << 16);
/// # Ok::<(), doorbell::Error>(())
/// ```
#[derive(Debug)]
pub struct Setup {
    handlers: Handlers,
    segment: usize,
    settings: Option<Settings>,
    interrupt: bool,
    pinned: bool,
    statistics: Option<PathBuf>,
}

impl Setup {
    /// Takes handlers, and the size of the segment in bytes. The settings are those of the environment
    /// (`GASNET_PORTAL_*`, `GASNET_EXITTIMEOUT*`).
    pub fn new(handlers: Handlers, segment: usize) -> Self {
        Self {
            handlers,
            segment,
            settings: None,
            interrupt: false,
            pinned: false,
            statistics: None,
        }
    }

    /// Uses these settings instead of those of the environment.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Makes SIGINT end the job in order, with status 130, at this rank's next poll: a handler is installed
    /// that sets a flag and does nothing else. A second SIGINT, and any when no such job is left, ends the
    /// process at once. A process that ignores SIGINT goes on ignoring it. Without this, no signal handler is
    /// changed.
    #[must_use]
    pub fn end_on_interrupt(mut self) -> Self {
        self.interrupt = true;
        self
    }

    /// Refuses to pin more memory than the system lets this process lock (`ulimit -l`), with an error that
    /// names the limit, and before anything is pinned. For interfaces that pin the memory of their
    /// operations; those in software do not.
    #[must_use]
    pub fn within_memlock(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// Sets where the statistics are written at the end, if the settings enable them
    /// (`GASNET_PORTAL_CREDIT_STATS=1`): this name with the rank behind it, as in `NAME.3`. The default is
    /// `credit_stats` in the working directory.
    #[must_use]
    pub fn statistics(mut self, name: impl Into<PathBuf>) -> Self {
        self.statistics = Some(name.into());
        self
    }

    /// Fills in the settings of the environment where none were given.
    fn resolved(mut self, without_environment: bool) -> Result<Self, Error> {
        if self.settings.is_none() {
            let settings = if without_environment {
                Settings::default()
            } else {
                of_environment().map_err(AmError::from)?
            };
            self.settings = Some(settings);
        }
        Ok(self)
    }

    fn flag(&self) -> Result<(ExitFlag, Option<Interrupt>), Error> {
        let flag = Arc::new(AtomicBool::new(false));
        let interrupt = self.interrupt.then(|| Interrupt::open(&flag)).transpose();
        let interrupt = interrupt.map_err(|source| Error::Io {
            step: "install a handler of SIGINT",
            object: "this process".to_owned(),
            source,
            remedy: "leave `end_on_interrupt` out where signals cannot be handled",
        })?;
        Ok((ExitFlag::new(flag, INTERRUPTED), interrupt))
    }

    fn file(&self, rank: u32, wanted: bool) -> Option<PathBuf> {
        let name = self.statistics.clone().unwrap_or_else(|| "credit_stats".into());
        let mut name = name.into_os_string();
        name.push(format!(".{rank}"));
        wanted.then(|| name.into())
    }
}

/// Returns the settings in the environment. The values of other variables need not be valid UTF-8.
fn of_environment() -> Result<Settings, SettingsError> {
    let ours = |name: &str| name.starts_with("GASNET_");
    let pairs: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| ours(name))
        .map(|(name, value)| (name, value.to_string_lossy().into_owned()))
        .collect();
    Settings::parse(pairs.iter().map(|(name, value)| (&**name, &**value)))
}

impl Builder {
    /// Builds a job with active messages in place of tagged ones; otherwise as [`Builder::build`]. When it
    /// returns, all ranks have attached and know each other's segments.
    ///
    /// ```
    /// use doorbell::am::{Handlers, Setup};
    /// let mut am = doorbell::Builder::new().build_am(Setup::new(Handlers::new(), 4096))?;
    /// am.barrier()?;
    /// assert_eq!(am.exit(3)?, 3);
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Builder::build_portals`]; [`Error::Am`] for settings that do not fit together.
    pub fn build_am(self, setup: Setup) -> Result<Am, Error> {
        let setup = setup.resolved(self.is_alone())?;
        self.joined(Layer::Am, &refuse, |joined, hook| {
            attach(build(joined, hook, None, machine_clock())?, setup)
        })
    }

    /// Builds a job of two ranks with active messages in place of tagged ones; otherwise as
    /// [`Builder::build_over`].
    ///
    /// # Errors
    /// Those of [`Builder::build_am`].
    pub fn build_am_over(self, connection: Connection, setup: Setup) -> Result<Am, Error> {
        let setup = setup.resolved(self.is_alone())?;
        self.joined_over(connection, Layer::Am, &refuse, |joined, hook, remote| {
            attach(build(joined, hook, Some(remote), machine_clock())?, setup)
        })
    }
}

/// Makes a job of `size` ranks inside this process, over the configured rails, with one `setup` per rank.
/// Each attaches to the others in its [`Waiting::attach`], which is called in a thread of its own.
///
/// ```
/// use doorbell::am::{Handlers, Setup};
/// let ranks = doorbell::local_am(2, &doorbell::Config::default(), |_| Setup::new(Handlers::new(), 4096))?;
/// std::thread::scope(|s| {
///     for rank in ranks {
///         s.spawn(move || rank.attach().unwrap().barrier().unwrap());
///     }
/// });
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// Those of [`Builder::build_am`].
pub fn local_am(size: u32, config: &Config, setup: impl FnMut(u32) -> Setup) -> Result<Vec<Waiting>, Error> {
    waiting(jobs_in_process(size, config, Layer::Am)?, setup)
}

/// Makes a job on a simulated network; otherwise as [`local_am`]. One thread drives all ranks, in virtual
/// time, by [`Waiting::step`] of each in turn and then by calls that do not wait.
///
/// # Errors
/// Those of [`Builder::build_am`].
pub fn simulated_am(
    net: &SimNet,
    size: u32,
    config: &Config,
    datagrams: bool,
    setup: impl FnMut(u32) -> Setup,
) -> Result<Vec<Waiting>, Error> {
    waiting(simulated_jobs(net, size, config, datagrams, Layer::Am)?, setup)
}

fn waiting(
    jobs: Vec<(PortalsNode, Parts)>,
    mut setup: impl FnMut(u32) -> Setup,
) -> Result<Vec<Waiting>, Error> {
    let one = |job: (PortalsNode, Parts)| {
        let setup = setup(job.1.job.rank()).resolved(true)?;
        begin(job, setup)
    };
    jobs.into_iter().map(one).collect()
}

/// A rank of a job whose ranks have not all attached yet.
pub struct Waiting {
    gathering: Gathering,
    parts: Parts,
    statistics: Option<PathBuf>,
    interrupt: Option<Interrupt>,
}

impl Waiting {
    /// Waits until all ranks have attached.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Am`], which names the rank that does not attach.
    pub fn attach(mut self) -> Result<Am, Error> {
        let limit = *self.parts.job.config().job.timeout.get();
        let usual = std::mem::replace(&mut self.parts.waiter.limit, limit);
        let (gathering, waiter) = (&mut self.gathering, &mut self.parts.waiter);
        self.parts.collect.barrier(gathering, waiter)?;
        let what = Awaited::Interface {
            what: "all ranks to know each other's segments",
        };
        let clock = waiter.clock.clone();
        let step = |gathering: &mut Gathering| match gathering.attaching.step(clock.now(), &mut || Ok(true)) {
            Ok(false) => None,
            done => Some(done),
        };
        let done = waiter.wait(gathering, limit + MARGIN, what, step)?;
        if let Err(error) = done {
            return Err(explained(&self.parts.waiter, &self.gathering, error));
        }
        self.parts.waiter.limit = usual;
        self.finish()
    }

    /// Makes one step, for a thread that drives several ranks. Returns whether all have attached: then call
    /// [`Waiting::finish`].
    ///
    /// # Errors
    /// Those of [`Waiting::attach`].
    pub fn step(&mut self) -> Result<bool, Error> {
        self.parts.waiter.progress(&mut self.gathering);
        let now = self.parts.waiter.clock.now();
        let done = self.gathering.attaching.step(now, &mut || Ok(true));
        done.map_err(|error| explained(&self.parts.waiter, &self.gathering, error))
    }

    /// Returns the rank's handle, once [`Waiting::step`] has returned `true`.
    ///
    /// # Errors
    /// [`Error::Am`] before that.
    pub fn finish(self) -> Result<Am, Error> {
        let Self {
            gathering,
            parts,
            statistics,
            interrupt,
        } = self;
        let conduit = gathering.attaching.finish()?;
        let mut field = Field {
            conduit,
            ranks: gathering.ranks,
            paths: gathering.paths,
            handles_beside: *parts.job.config().am.handlers.get() == AmHandlers::Progress,
            reported: 0,
            counter: None,
            seen: None,
        };
        let counter_file = field.publish(&parts.job, parts.binding.as_ref())?;
        let segment = field.conduit.segment().clone();
        let Parts {
            job, waiter, binding, ..
        } = parts;
        Ok(Am {
            field: Kept::new(SharedNode::new(field, binding.as_ref(), &job, &waiter.clock)?),
            waiter: Kept::new(waiter),
            job: Kept::new(job),
            segment: Kept::new(segment),
            binding,
            counter_file,
            statistics,
            at_barrier: false,
            closed: false,
            _interrupt: interrupt,
        })
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Waiting(rank {})", self.parts.job.rank())
    }
}

/// The time that the wait may take beyond the conduit's own limit, whose error names the rank that it waits
/// for.
const MARGIN: Duration = Duration::from_millis(500);

fn attach(job: (PortalsNode, Parts), setup: Setup) -> Result<Am, Error> {
    begin(job, setup)?.attach()
}

/// Returns the number of bytes that the host can allocate without killing a process (proc(5), MemAvailable).
fn memory_left() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Makes the conduit's objects. Nothing has been polled before: what peers send early finds them.
fn begin((mut node, parts): (PortalsNode, Parts), setup: Setup) -> Result<Waiting, Error> {
    let (rank, size) = (parts.job.rank(), parts.job.size());
    let segment = Region::new(setup.segment.max(1))?;
    let slice = segment.slice(0, setup.segment).unwrap_or_else(|| segment.whole());
    let mut plan = Plan::new(rank, size, slice);
    plan.settings = setup.settings.clone().unwrap_or_default();
    plan.memlock = setup
        .pinned
        .then(|| Limit::of(Resource::RLIMIT_MEMLOCK).soft)
        .flatten();
    plan.memory = memory_left();
    plan.patience = *parts.job.config().job.timeout.get();
    let (flag, interrupt) = setup.flag()?;
    plan.exit_flag = flag;
    let statistics = setup.file(rank, plan.settings.credit_stats);
    let needs = plan.needs()?;
    node.init(KIND, Some(&needs))?;
    let attaching = Attaching::new(node.node.into_ni(KIND), plan, setup.handlers)?;
    Ok(Waiting {
        gathering: Gathering {
            attaching,
            ranks: node.ranks,
            paths: node.paths,
        },
        parts,
        statistics,
        interrupt,
    })
}
