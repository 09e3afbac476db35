//! Building a world: configuration, rails, the rank table, and the choice of rails per peer.

use std::path::PathBuf;

use doorbell_job::config::{Config, Mode};
use doorbell_job::control;
use doorbell_job::error::{Error, Waiting};
use doorbell_job::handle::Job;
use doorbell_job::join::{
    Joined, Layer, Rails, all_in_process, join, join_over, machine_clock, open_for_all, prepare,
    refuse_invitation, simulated_rails,
};
use doorbell_job::launcher::{self, LauncherHandle, lock};
use doorbell_job::meet::spawn_child::Invited;
use doorbell_job::meet::tcp::Remote;
use doorbell_job::meet::{Key, Meeting};
use doorbell_job::rails::sets::{Among, take_own};
use doorbell_job::ranks::Directory;
use doorbell_job::types::MOST_RANKS;
use doorbell_job::wait::Hook;
use doorbell_job::wait::turns::Clock;
use doorbell_oob::{Connection, Launcher};
use doorbell_sim::SimNet;

use crate::world::World;

/// Joins the job that the environment describes: that of `doorbell run` (`DOORBELL_RANK`, `DOORBELL_SIZE`,
/// `DOORBELL_ROOT`) or of another launcher ([`crate::launcher`]). Without either, the world is one rank that
/// can send to itself.
///
/// ```
/// let world = doorbell::init()?;
/// assert_eq!((world.rank(), world.size()), (0, 1));
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// A bad setting, ranks that did not come, a rail that cannot be used: each with the reason and what to do.
pub fn init() -> Result<World, Error> {
    Builder::new().build()
}

type Edit = Box<dyn FnOnce(&mut Config) -> Result<(), Error>>;

/// Joins a job with settings from code, which override those of the environment and of the file.
///
/// ```
/// use std::time::Duration;
/// let world = doorbell::Builder::new()
///     .set("wait.quiet", "1 s")
///     .configure(|config| config.wait.deadline.set(Duration::from_secs(5)))
///     .on_quiet(|waiting| println!("{waiting}"))
///     .build()?;
/// assert_eq!(world.config().wait.quiet.origin().to_string(), "code");
/// # Ok::<(), doorbell::Error>(())
/// ```
#[must_use = "nothing happens before `build`"]
#[derive(Default)]
pub struct Builder {
    file: Option<PathBuf>,
    alone: bool,
    edits: Vec<Edit>,
    hook: Option<Hook>,
}

impl Builder {
    /// Whether the environment is ignored.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Starts from the settings of the environment and of the file that it names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ignores the environment, for tests and for programs that do their own configuration.
    pub fn without_environment(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Reads this file instead of the one that `DOORBELL_CONFIG` names.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Sets a value by name, from text as in the file: `set("wait.deadline", "5 s")`. `build` returns its
    /// errors.
    pub fn set(self, name: &str, value: &str) -> Self {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.edit(move |config| config.set(&name, &value))
    }

    /// Sets a value that the program's user gave as `option`, so that errors name that option; otherwise as
    /// [`Builder::set`].
    pub fn set_by(self, option: &'static str, name: &str, value: &str) -> Self {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.edit(move |config| config.set_by(option, &name, &value))
    }

    /// Sets values by type: `configure(|config| config.wait.deadline.set(…))`.
    pub fn configure(self, edit: impl FnOnce(&mut Config) + 'static) -> Self {
        self.edit(move |config| {
            edit(config);
            Ok(())
        })
    }

    /// Sets this process's rank, the size of the job and its meeting point, instead of the launcher's
    /// variables.
    pub fn job(self, rank: u32, size: u32, root: &str) -> Self {
        let root = root.to_owned();
        self.configure(move |config| {
            config.job.rank.set(Some(rank));
            config.job.size.set(Some(size));
            config.job.root.set(Some(root));
        })
    }

    /// Sets the function that is called once for each wait that has been quiet for `wait.quiet`; without one,
    /// a line is written to stderr. It cannot use the world.
    pub fn on_quiet(mut self, hook: impl FnMut(&Waiting) + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    fn edit(mut self, edit: impl FnOnce(&mut Config) -> Result<(), Error> + 'static) -> Self {
        self.edits.push(Box::new(edit));
        self
    }

    /// Returns the configuration that [`Builder::build`] would use.
    ///
    /// # Errors
    /// A name that does not exist, or a value that does not fit.
    pub fn resolve(self) -> Result<Config, Error> {
        self.split().map(|(config, _)| config)
    }

    fn split(self) -> Result<(Config, Option<Hook>), Error> {
        let none = std::iter::empty();
        let mut config = match (self.alone, &self.file) {
            (true, file) => Config::from_variables(none, file.as_deref())?,
            (false, file) => Config::from_variables(std::env::vars_os(), file.as_deref())?,
        };
        for edit in self.edits {
            edit(&mut config)?;
        }
        config.verify()?;
        Ok((config, self.hook))
    }

    /// Opens the rails, meets the other ranks, and chooses the rails for each of them.
    ///
    /// # Errors
    /// Those of [`init`].
    pub fn build(self) -> Result<World, Error> {
        self.enter(&|_| Ok(()), |launcher, config, hook| {
            Ok(build_through(launcher, config, hook)?.under(launcher.cloned()))
        })
    }

    /// Resolves the configuration, which `judge` may refuse, and calls `build` with the launcher, if there is
    /// one. The launcher's connection stays open when `build` fails.
    fn enter<T>(
        self,
        judge: &dyn Fn(&Config) -> Result<(), Error>,
        build: impl FnOnce(Option<&LauncherHandle>, Config, Option<Hook>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let without_environment = self.alone;
        let (mut config, hook) = self.split()?;
        judge(&config)?;
        if !without_environment {
            launcher::warn(&config);
        }
        let launcher = launcher::enter(&mut config, without_environment)?;
        build(launcher.as_ref(), config, hook).inspect_err(|_| launcher::keep_open(launcher.clone()))
    }

    /// Joins the job for a handle other than a world, if `judge` accepts the settings.
    pub(crate) fn joined<T>(
        self,
        layer: Layer,
        judge: &dyn Fn(&Config) -> Result<(), Error>,
        build: impl FnOnce(Joined, Option<Hook>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.enter(judge, |launcher, config, hook| {
            refuse_invitation(launcher, &config)?;
            let mut joined = join(launcher, config, layer, MOST_RANKS)?;
            joined.job.set_launcher(launcher.cloned());
            build(joined, hook)
        })
    }

    /// Joins a job of two ranks that meet over `connection`; otherwise as [`Builder::joined`].
    pub(crate) fn joined_over<T>(
        self,
        connection: Connection,
        layer: Layer,
        judge: &dyn Fn(&Config) -> Result<(), Error>,
        build: impl FnOnce(Joined, Option<Hook>, Remote) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let resolved = self.split().and_then(|(config, hook)| {
            judge(&config)?;
            launcher::warn(&config);
            Ok((config, hook))
        });
        let (joined, hook, remote) = join_over(connection, layer, resolved)?;
        build(joined, hook, remote)
    }

    /// Builds the world of a job of two ranks, usually on two hosts, that meet over `connection`: the side
    /// that connected is rank 0, the side that accepted rank 1. The connection stays open as long as the
    /// world: it shows when the other process ends, and the world closes over it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use doorbell::oob::lines::tcp::blocking::Accepted;
    /// use doorbell::oob::{Connection, JobKey, Listener};
    /// let key = JobKey::generate()?;
    /// let terms = || doorbell::terms(Some(key.clone()));
    /// let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), terms()?)?;
    /// let to = listener.address().into();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let call = Connection::connect(&to, &terms().unwrap(), Duration::from_secs(5)).unwrap();
    ///         let world = doorbell::Builder::new().build_over(call).unwrap();
    ///         world.send(1, 7, b"from another host").unwrap();
    ///     });
    ///     let Accepted::Connection(guest) = listener.accept(None, None)? else { panic!() };
    ///     let world = doorbell::Builder::new().build_over(*guest)?;
    ///     let mut buffer = [0; 64];
    ///     assert_eq!(world.recv(0, 7, &mut buffer)?.len, 17);
    ///     Ok::<(), doorbell::Error>(())
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`init`]; [`Error::Refused`] and [`Error::Occupied`] with the other side's text. Our own
    /// error is sent to the other side, too.
    pub fn build_over(self, connection: Connection) -> Result<World, Error> {
        let resolved = self.split().inspect(|(config, _)| launcher::warn(config));
        let (joined, hook, remote) = join_over(connection, Layer::Messages, resolved)?;
        let key = joined.key;
        World::build(joined, machine_clock(), hook, Some(remote))?.with_control(&key)
    }
}

/// Joins the job through its launcher where that passes values on between processes, and accepts a spawn
/// invitation.
pub(crate) fn build_through(
    launcher: Option<&LauncherHandle>,
    config: Config,
    hook: Option<Hook>,
) -> Result<World, Error> {
    let limit = *config.job.timeout.get();
    if let Some(launcher) = launcher {
        let mut launcher = lock(launcher);
        if let Some(invited) = Invited::through(&mut **launcher, limit)? {
            return build_spawned(invited, &mut **launcher, config, hook);
        }
    }
    let most = *config.job.lazy_above.get();
    let joined = join(launcher, config, Layer::Messages, most)?;
    let key = joined.key;
    World::build(joined, machine_clock(), hook, None)?.with_control(&key)
}

/// Joins the running job that started this process.
fn build_spawned(
    invited: Invited,
    launcher: &mut (dyn Launcher + 'static),
    mut config: Config,
    hook: Option<Hook>,
) -> Result<World, Error> {
    let (rank, before) = (invited.rank(), invited.before());
    let own = take_own(&mut config, Among::Spawned);
    let prepared = own.and_then(|()| prepare(&config, rank, invited.size(), Layer::Messages));
    let (rails, meeting, seat) = invited.meet(prepared)?;
    let limit = *config.job.timeout.get();
    let Meeting { key, ranks } = meeting;
    let job = Job::new(config, rank, Directory::whole(ranks));
    let world = match World::build(Joined { job, key, rails }, machine_clock(), hook, None) {
        Ok(world) => world,
        Err(error) => return Err(seat.refuse(error)),
    };
    seat.start()?;
    if launcher::passes_on(launcher) {
        // The fence shows the launcher that these ranks have joined: from here on, a rank that ends counts as
        // a rank of the job.
        launcher.fence(limit)?;
    }
    world.grown_from(before, None).with_control(&key)
}

/// Makes a job of `size` ranks inside this process, over the configured rails. Move the worlds into threads,
/// or poll them all from one.
///
/// ```
/// let mut worlds = doorbell::local(2, &doorbell::Config::default())?;
/// let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
/// std::thread::scope(|s| {
///     s.spawn(move || zero.send(1, 7, b"to a thread").unwrap());
///     let mut buffer = [0; 64];
///     let status = one.recv(0, 7, &mut buffer).unwrap();
///     assert_eq!(&buffer[..status.len], b"to a thread");
/// });
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// Those of [`init`].
pub fn local(size: u32, config: &Config) -> Result<Vec<World>, Error> {
    config.verify()?;
    let rails = open_for_all(size, config)?;
    build_all(config, rails, &machine_clock(), Key::random()?)
}

/// Makes a job of `size` ranks on a simulated network. One thread drives them all, in virtual time: by calls
/// that do not wait, and [`World::progress`] of each in turn. A call that waits moves the virtual time to its
/// end, since no other rank can act meanwhile.
///
/// ```
/// use doorbell::sim::{SimConfig, SimNet};
/// let net = SimNet::new(42, SimConfig::default());
/// let worlds = doorbell::simulated(&net, 2, &doorbell::Config::default())?;
/// worlds[0].send(1, 7, b"virtual")?;
/// let mut buffer = [0; 64];
/// let status = worlds[1].recv(0, 7, &mut buffer)?;
/// assert_eq!(&buffer[..status.len], b"virtual");
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] with `progress.mode = dedicated`: a second thread would make runs differ.
pub fn simulated(net: &SimNet, size: u32, config: &Config) -> Result<Vec<World>, Error> {
    simulate(net, size, config, false)
}

/// Makes a job on a simulated network that carries only datagrams, and may lose, duplicate, delay and corrupt
/// them; the BTL makes messages of them. Otherwise as [`simulated`].
///
/// ```
/// use doorbell::sim::{SimConfig, SimNet};
/// let net = SimNet::new(42, SimConfig::default());
/// let worlds = doorbell::simulated_datagrams(&net, 2, &doorbell::Config::default())?;
/// worlds[0].send(1, 7, b"in frames")?;
/// while worlds[1].iprobe(0, 7)?.is_none() {
///     worlds[0].progress();
/// }
/// let mut buffer = [0; 64];
/// let status = worlds[1].recv(0, 7, &mut buffer)?;
/// assert_eq!(&buffer[..status.len], b"in frames");
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// Those of [`simulated`].
pub fn simulated_datagrams(net: &SimNet, size: u32, config: &Config) -> Result<Vec<World>, Error> {
    simulate(net, size, config, true)
}

fn simulate(net: &SimNet, size: u32, config: &Config, datagrams: bool) -> Result<Vec<World>, Error> {
    if *config.progress.mode.get() == Mode::Dedicated {
        return Err(Error::Unsupported {
            what: "a dedicated progress thread",
            by: "the simulated network".to_owned(),
        });
    }
    config.verify()?;
    let rails = simulated_rails(net, size, config, datagrams)?;
    // Nothing of it leaves this process, and the same seed has to reproduce the same run.
    build_all(
        config,
        rails,
        &Clock::Virtual(net.clone()),
        Key::of_seed(net.seed()),
    )
}

fn build_all(config: &Config, rails: Vec<Rails>, clock: &Clock, key: Key) -> Result<Vec<World>, Error> {
    control::refuse_without_processes(config)?;
    let joined = all_in_process(config, Layer::Messages, rails, key)?;
    let build = |joined: Joined| World::build(joined, clock.clone(), None, None);
    joined.into_iter().map(build).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(builder: Builder) -> Result<Config, Error> {
        builder.without_environment().resolve()
    }

    #[test]
    fn half_described_jobs_are_refused() {
        for size in [0, MOST_RANKS + 1] {
            let builder = Builder::new().without_environment().job(0, size, "@x");
            let error = builder.build().unwrap_err().to_string();
            assert!(
                error.contains("job.size") && error.contains("1 to 65536"),
                "{error}"
            );
        }
        let without_root = Builder::new()
            .without_environment()
            .set("job.rank", "0")
            .set("job.size", "2")
            .build();
        assert!(without_root.unwrap_err().to_string().contains("DOORBELL_ROOT"));
    }

    #[test]
    fn errors_of_names_come_from_build() {
        assert_eq!(
            resolve(Builder::new().set("wait.dedline", "1 s"))
                .unwrap_err()
                .code(),
            "config.unknown-name"
        );
        assert_eq!(
            resolve(Builder::new().set("wait.deadline", "soon"))
                .unwrap_err()
                .code(),
            "config.bad-value"
        );
        assert_eq!(
            *resolve(Builder::new().job(3, 4, "@x")).unwrap().job.rank.get(),
            Some(3)
        );
    }

    #[test]
    fn what_code_sets_is_checked_before_a_world_is_made() {
        let mut config = Config::default();
        config.shm.cells.set(Some(3));
        let error = local(2, &config).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(
            error.to_string(),
            "`3` is no value for shm.cells (code): expected a power of two from 2 to 1048576, or `auto`"
        );
        let mut config = Config::default();
        config.pml.unexpected.set(doorbell_job::config::Size(0));
        let net = SimNet::new(1, doorbell_sim::SimConfig::default());
        let error = simulated(&net, 2, &config).unwrap_err().to_string();
        assert!(
            error.contains("pml.unexpected") && error.contains("1 KiB to 4 GiB"),
            "{error}"
        );
    }

    #[test]
    fn a_named_rail_without_a_driver_is_refused_and_never_replaced() {
        for name in ["udp:nosuch0", "sim:3", "verbs:mlx5_0:1"] {
            let error = Builder::new()
                .without_environment()
                .set("rails.list", name)
                .build()
                .unwrap_err();
            assert_eq!(error.code(), "rail-unusable");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn a_core_that_is_not_ours_is_refused() {
        let builder = Builder::new().without_environment();
        let error = builder
            .set("progress.mode", "dedicated")
            .set("progress.core", "4095")
            .build()
            .unwrap_err();
        assert!(matches!(error, Error::Core { core: 4095, .. }), "{error}");
    }
}
