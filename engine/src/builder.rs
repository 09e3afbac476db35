//! Bringing a world up: configuration, rails, the meeting of the ranks, the choice of rails per peer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::discover::Candidate;
use doorbell_fabric::map::process::Maker;
use doorbell_fabric::rail::Rail;
use doorbell_job::config::{Config, Mode, Origin, Protocol, Resume};
use doorbell_job::connect::{self, Way};
use doorbell_job::control::{self, Fates};
use doorbell_job::cores;
use doorbell_job::counter_file::Seen;
use doorbell_job::error::{Error, Waiting};
use doorbell_job::launcher::{self, Door};
use doorbell_job::meet::invite::Invited;
use doorbell_job::meet::launched::{self, Met};
use doorbell_job::meet::remote::{Life, RANKS, Remote};
use doorbell_job::meet::{Hello, Key, Meeting, Root, meet};
use doorbell_job::rails::{AnyRail, open_all};
use doorbell_job::random;
use doorbell_job::ranks::{Directory, Source};
use doorbell_job::types::MOST_RANKS;
use doorbell_job::wait::Hook;
use doorbell_oob::launch::Kind;
use doorbell_oob::{Connection, JobKey, Launcher, Terms};
use doorbell_pml::{Pml, PmlConfig, Protocol as PmlProtocol, Rank, Resume as PmlResume};
use doorbell_sim::SimNet;

use crate::progress::{Clock, Core, Front, Link, Meeting as PeerMeeting, Patience, Watch};
use crate::raw::OneSided;
use crate::world::World;

/// Joins the job that the environment describes: that of `doorbell run` (`DOORBELL_RANK`, `DOORBELL_SIZE`,
/// `DOORBELL_ROOT`), or of another launcher ([`crate::launcher`]). Without any, the world is one rank that can send to
/// itself.
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

/// Open rails, and everything that selection judges.
pub(crate) type Rails = (Vec<AnyRail>, Vec<Candidate>);

type Edit = Box<dyn FnOnce(&mut Config) -> Result<(), Error>>;

/// Joins a job with settings from code, over those of the environment and of the file.
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

    /// The settings of the environment and of the file that it names.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ignores the environment (for tests and for programs that do their own configuration).
    pub fn without_environment(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Reads this file instead of the one that `DOORBELL_CONFIG` names.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Sets a value by name from a text, as in the file: `set("wait.deadline", "5 s")`. Errors come from `build`.
    pub fn set(self, name: &str, value: &str) -> Self {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.edit(move |config| config.set(&name, &value))
    }

    /// As [`Builder::set`], for a program whose user wrote the value behind `option`: errors then name that.
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

    /// Who we are in the job, instead of the variables of the launcher.
    pub fn job(self, rank: u32, size: u32, root: &str) -> Self {
        let root = root.to_owned();
        self.configure(move |config| {
            config.job.rank.set(Some(rank));
            config.job.size.set(Some(size));
            config.job.root.set(Some(root));
        })
    }

    /// Called once for each wait that has been quiet for `wait.quiet`; without it, a line is written to the standard
    /// error. The world cannot be used inside.
    pub fn on_quiet(mut self, hook: impl FnMut(&Waiting) + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    fn edit(mut self, edit: impl FnOnce(&mut Config) -> Result<(), Error> + 'static) -> Self {
        self.edits.push(Box::new(edit));
        self
    }

    /// The configuration as it would be used.
    ///
    /// # Errors
    /// A name or value that cannot be.
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
    /// As [`init`].
    pub fn build(self) -> Result<World, Error> {
        let without_environment = self.alone;
        let (mut config, hook) = self.split()?;
        if !without_environment {
            launcher::warn(&config);
        }
        let door = launcher::enter(&mut config, without_environment)?;
        let door: Option<Door> = door.map(|door| Arc::new(Mutex::new(door)));
        match raise_through(door.as_ref(), config, hook) {
            // What has only brought an invitation is no launcher.
            Ok(world) => Ok(world.under(door.filter(|door| lock(door).kind() != Kind::Singleton))),
            Err(error) => {
                launcher::keep_open(door);
                Err(error)
            }
        }
    }

    /// Joins the job for something else than a world, if its settings are such that it can have that. `raise` has the launcher,
    /// where one is to be taken leave of.
    pub(crate) fn joined<T>(
        self,
        layer: Layer,
        judge: &dyn Fn(&Config) -> Result<(), Error>,
        raise: impl FnOnce(Joined, Option<Hook>, Option<Door>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let without_environment = self.alone;
        let (mut config, hook) = self.split()?;
        judge(&config)?;
        if !without_environment {
            launcher::warn(&config);
        }
        let door = launcher::enter(&mut config, without_environment)?;
        let door: Option<Door> = door.map(|door| Arc::new(Mutex::new(door)));
        let joined = refuse_invitation(door.as_ref(), &config)
            .and_then(|()| join(door.as_ref(), config, layer, MOST_RANKS))
            .and_then(|joined| raise(joined, hook, door.clone()));
        joined.inspect_err(|_| launcher::keep_open(door))
    }

    /// As [`Builder::joined`], for two ranks that meet over `connection`.
    pub(crate) fn joined_over<T>(
        self,
        connection: Connection,
        layer: Layer,
        judge: &dyn Fn(&Config) -> Result<(), Error>,
        raise: impl FnOnce(Joined, Option<Hook>, Remote) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let resolved = self.split().and_then(|(config, hook)| {
            judge(&config)?;
            launcher::warn(&config);
            Ok((config, hook))
        });
        let (joined, hook, remote) = join_over(connection, layer, resolved)?;
        raise(joined, hook, remote)
    }

    /// As [`Builder::build`], for a job of two ranks, usually on two hosts, that meet over `connection`: who called is
    /// rank 0, the other one rank 1. The connection stays open as long as the world: what happens to the other process
    /// is known by it, and the world takes leave over it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use doorbell::oob::{Connection, JobKey, Listener, tcp::Accepted};
    /// let key = JobKey::generate()?;
    /// let terms = || doorbell::terms(Some(key.clone()));
    /// let mut door = Listener::bind("127.0.0.1:0".parse().unwrap(), terms()?)?;
    /// let to = door.address().into();
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         let call = Connection::connect(&to, &terms().unwrap(), Duration::from_secs(5)).unwrap();
    ///         let world = doorbell::Builder::new().build_over(call).unwrap();
    ///         world.send(1, 7, b"from another host").unwrap();
    ///     });
    ///     let Accepted::Guest(guest) = door.accept(None, None)? else { panic!() };
    ///     let world = doorbell::Builder::new().build_over(*guest)?;
    ///     let mut buffer = [0; 64];
    ///     assert_eq!(world.recv(0, 7, &mut buffer)?.len, 17);
    ///     Ok::<(), doorbell::Error>(())
    /// })?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`init`]; [`Error::Refused`] and [`Error::Occupied`] in the words of the other side. It is told ours, too.
    pub fn build_over(self, connection: Connection) -> Result<World, Error> {
        let resolved = self.split().inspect(|(config, _)| launcher::warn(config));
        let (joined, hook, remote) = join_over(connection, Layer::Messages, resolved)?;
        let Joined {
            config,
            rank,
            key,
            directory,
            rails,
        } = joined;
        let clock = Clock::Machine(doorbell_fabric::clock::Clock::start());
        World::raise(config, rank, (key, directory), rails, clock, hook, Some(remote))?.with_control(&key)
    }
}

/// Meets another rank over a connection; our own reason why there will be no job is told there.
fn join_over(
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
    let prepared = resolved.and_then(|(config, hook)| {
        without_launcher(&config)?;
        let (rails, candidates) = open_all(&config)?;
        let own = hello(&config, (rank, RANKS), layer, &rails)?;
        Ok((config, hook, (rails, candidates), own))
    });
    let (config, hook, rails, own) = prepared.map_err(|error| remote.refuse(error))?;
    let Meeting { key, ranks } = remote.meet(own)?;
    let joined = Joined {
        config,
        rank,
        key,
        directory: Directory::whole(ranks),
        rails,
    };
    Ok((joined, hook, remote))
}

/// Only a world grows: the job that had this process started is told so.
fn refuse_invitation(door: Option<&Door>, config: &Config) -> Result<(), Error> {
    let Some(door) = door else { return Ok(()) };
    let invited = Invited::through(&mut **lock(door), *config.job.timeout.get())?;
    let Some(invited) = invited else { return Ok(()) };
    let unsupported = Error::Unsupported {
        what: "to join a job that runs already",
        by: "a job of Portals interfaces or active messages".to_owned(),
    };
    invited.meet(Err(unsupported)).map(|_: (Rails, _, _)| ())
}

/// Meets the other ranks, through the launcher where it passes on values.
pub(crate) fn raise_through(door: Option<&Door>, config: Config, hook: Option<Hook>) -> Result<World, Error> {
    let limit = *config.job.timeout.get();
    if let Some(door) = door {
        let mut door = lock(door);
        if let Some(invited) = Invited::through(&mut **door, limit)? {
            return raise_invited(invited, &mut **door, config, hook);
        }
    }
    let most = *config.job.lazy_above.get();
    let Joined {
        config,
        rank,
        key,
        directory,
        rails,
    } = join(door, config, Layer::Messages, most)?;
    let clock = Clock::Machine(doorbell_fabric::clock::Clock::start());
    World::raise(config, rank, (key, directory), rails, clock, hook, None)?.with_control(&key)
}

/// What the ranks of a job exchange, the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Tagged messages.
    Messages,
    /// Operations of Portals interfaces.
    Portals,
    /// Active messages.
    Am,
}

impl Layer {
    /// As the option `--layer` of the programs has it.
    fn name(self) -> &'static str {
        match self {
            Self::Messages => "pml",
            Self::Portals => "portals",
            Self::Am => "am",
        }
    }
}

/// A job that this rank has joined: who the ranks are, and its own rails, before anything stands above them.
pub(crate) struct Joined {
    pub(crate) config: Config,
    pub(crate) rank: u32,
    pub(crate) key: Key,
    pub(crate) directory: Directory,
    pub(crate) rails: Rails,
}

/// Opens the rails and meets the other ranks, through the launcher where it passes on values: then rank 0 only, in a job of
/// more than `most`.
pub(crate) fn join(door: Option<&Door>, config: Config, layer: Layer, most: u32) -> Result<Joined, Error> {
    let limit = *config.job.timeout.get();
    let (rank, size) = place(&config)?;
    let prepared = prepare(&config, rank, size, layer);
    let exchange = door.filter(|door| launcher::passes_on(&**lock(door)));
    let (rails, key, directory) = match (size, exchange, config.job.root.get()) {
        (1, _, _) => {
            let (rails, own) = prepared?;
            (rails, Key::random()?, Directory::whole(vec![own]))
        }
        (_, Some(door), _) => meet_through(door, &config, prepared, most)?,
        (_, None, Some(root)) => {
            let (rails, own) = prepared?;
            let Meeting { key, ranks } = meet(&Root::parse(root)?, own, limit)?;
            (rails, key, Directory::whole(ranks))
        }
        (_, None, None) => return Err(job("there are several ranks, but DOORBELL_ROOT is not set")),
    };
    Ok(Joined {
        config,
        rank,
        key,
        directory,
        rails,
    })
}

/// Meets the other ranks through a launcher that passes on values: all of them, or in a large job rank 0 only.
fn meet_through(
    door: &Door,
    config: &Config,
    prepared: Result<(Rails, Hello), Error>,
    most: u32,
) -> Result<(Rails, Key, Directory), Error> {
    let limit = *config.job.timeout.get();
    let mut through = lock(door);
    let (rails, met) = launched::meet(&mut **through, prepared, limit, most)?;
    let local_size = through.place().local_size;
    drop(through);
    Ok(match met {
        Met::All(Meeting { key, ranks }) => (rails, key, Directory::whole(ranks)),
        Met::Zero { key, own, zero } => {
            let source = Source {
                door: Arc::clone(door),
                local_size,
                config: config.clone(),
            };
            (rails, key, Directory::lazy(*own, *zero, source)?)
        }
    })
}

fn lock(door: &Door) -> MutexGuard<'_, Box<dyn Launcher>> {
    door.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the running job that had this process started.
fn raise_invited(
    invited: Invited,
    door: &mut (dyn Launcher + 'static),
    config: Config,
    hook: Option<Hook>,
) -> Result<World, Error> {
    let (rank, before) = (invited.rank(), invited.before());
    let prepared = prepare(&config, rank, invited.size(), Layer::Messages);
    let (rails, meeting, seat) = invited.meet(prepared)?;
    let limit = *config.job.timeout.get();
    let clock = Clock::Machine(doorbell_fabric::clock::Clock::start());
    let Meeting { key, ranks } = meeting;
    let met = (key, Directory::whole(ranks));
    let world = match World::raise(config, rank, met, rails, clock, hook, None) {
        Ok(world) => world,
        Err(error) => return Err(seat.refuse(error)),
    };
    seat.start()?;
    if launcher::passes_on(door) {
        // By this the launcher knows that these ranks have joined: from here on, how they end is the job's matter.
        door.fence(limit)?;
    }
    world.grown_from(before, None).with_control(&key)
}

/// What both sides of a connection between two hosts bring to it, for [`Builder::build_over`]. Without a key, it has to
/// be on loopback.
///
/// # Errors
/// When the kernel gives no random numbers.
pub fn terms(key: Option<JobKey>) -> Result<Terms, Error> {
    Ok(Terms::new(key, MEETING, random::number()?))
}

/// What a session is for: the meeting of two ranks.
const MEETING: u16 = 1;

/// Ranks that meet over a connection have no launcher.
fn without_launcher(config: &Config) -> Result<(), Error> {
    match config.job.rank.get() {
        None => Ok(()),
        Some(rank) => Err(job(format!(
            "DOORBELL_RANK is {rank} ({}), but two hosts that meet over a connection have their ranks from it",
            config.job.rank.origin()
        ))),
    }
}

/// Opens the rails, and writes down what the others are told of them.
pub(crate) fn prepare(config: &Config, rank: u32, size: u32, layer: Layer) -> Result<(Rails, Hello), Error> {
    let alone = size == 1 && config.rails.list.get().0.is_empty();
    let (rails, candidates) = if alone {
        Default::default()
    } else {
        open_all(config)?
    };
    let own = hello(config, (rank, size), layer, &rails)?;
    Ok(((rails, candidates), own))
}

fn job(reason: impl Into<String>) -> Error {
    Error::Job {
        reason: reason.into(),
    }
}

fn place(config: &Config) -> Result<(u32, u32), Error> {
    let (rank, size, root) = (&config.job.rank, &config.job.size, &config.job.root);
    let without = |what: &str, origin: &Origin, missing: &str| {
        Err(job(format!("{what} is set ({origin}), but {missing} not")))
    };
    match (*rank.get(), *size.get()) {
        (None, None) if root.get().is_some() => {
            without("job.root", root.origin(), "DOORBELL_RANK and DOORBELL_SIZE are")
        }
        (None, None) => Ok((0, 1)),
        (Some(_), None) => without("job.rank", rank.origin(), "DOORBELL_SIZE is"),
        (None, Some(_)) => without("job.size", size.origin(), "DOORBELL_RANK is"),
        (Some(rank), Some(size)) if rank >= size => Err(job(format!(
            "DOORBELL_RANK is {rank}, but a job of {size} has the ranks from 0 to {}",
            size.saturating_sub(1)
        ))),
        (Some(rank), Some(size)) => Ok((rank, size)),
    }
}

fn hello(config: &Config, (rank, size): (u32, u32), layer: Layer, rails: &[AnyRail]) -> Result<Hello, Error> {
    let rails = rails.iter().map(AnyRail::entry).collect();
    let mut agreed = config.agreed();
    agreed.insert("the layer above the rails".to_owned(), layer.name().to_owned());
    Hello::of_this_process(rank, size, agreed, rails)
}

/// Makes a job of `size` ranks inside this process, over the configured rails: worlds to be moved into threads, or
/// to be polled by one.
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
/// As [`init`].
pub fn local(size: u32, config: &Config) -> Result<Vec<World>, Error> {
    config.verify()?;
    let rails = (0..size)
        .map(|_| open_all(config))
        .collect::<Result<Vec<_>, _>>()?;
    let clock = Clock::Machine(doorbell_fabric::clock::Clock::start());
    raise_all(config, rails, &clock, Key::random()?)
}

/// Makes a job of `size` ranks on a simulated network. One thread drives them all, in virtual time: with calls that
/// do not wait, and [`World::progress`] in turn. A call that waits moves the virtual time to its end, since nobody else
/// can act meanwhile.
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

/// As [`simulated`], on a network that carries datagrams only, and may lose, double, delay and spoil them: the BTL makes
/// messages of them.
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
/// As [`simulated`].
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
    // Nothing of it leaves this process, and the same seed has to give the same run.
    raise_all(
        config,
        rails,
        &Clock::Virtual(net.clone()),
        Key::of_seed(net.seed()),
    )
}

/// One rail for each rank, on a simulated network of messages, or of datagrams.
pub(crate) fn simulated_rails(
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

fn raise_all(config: &Config, rails: Vec<Rails>, clock: &Clock, key: Key) -> Result<Vec<World>, Error> {
    control::refuse_without_processes(config)?;
    let raise = |joined: Joined| {
        World::raise(
            joined.config,
            joined.rank,
            (joined.key, joined.directory),
            joined.rails,
            clock.clone(),
            None,
            None,
        )
    };
    let joined = everybody(config, Layer::Messages, rails, key)?;
    joined.into_iter().map(raise).collect()
}

/// All ranks of a job inside this process, one for each of `rails`.
pub(crate) fn everybody(
    config: &Config,
    layer: Layer,
    rails: Vec<Rails>,
    key: Key,
) -> Result<Vec<Joined>, Error> {
    let size = u32::try_from(rails.len())
        .ok()
        .filter(|size| *size > 0 && *size <= MOST_RANKS);
    let size = size.ok_or_else(|| job(format!("a job has from 1 to {MOST_RANKS} ranks")))?;
    let ranks = 0..size;
    let table = ranks
        .clone()
        .zip(&rails)
        .map(|(rank, (rails, _))| hello(config, (rank, size), layer, rails))
        .collect::<Result<Vec<_>, _>>()?;
    let joined = |(rank, rails)| Joined {
        config: config.clone(),
        rank,
        key,
        directory: Directory::whole(table.clone()),
        rails,
    };
    Ok(ranks.zip(rails).map(joined).collect())
}

impl World {
    /// Puts the parts together.
    pub(crate) fn raise(
        config: Config,
        rank: u32,
        (key, directory): (Key, Directory),
        (rails, candidates): Rails,
        clock: Clock,
        hook: Option<Hook>,
        mut remote: Option<Remote>,
    ) -> Result<Self, Error> {
        let size = directory.size();
        let mut settings = pml_config(&config, rank, size)?;
        settings.lazy = directory.is_lazy();
        let mut pml = Pml::new(settings)?;
        let mut hows = Vec::new();
        for mut rail in rails {
            hows.extend(rail.how().map(|how| (rail.name().to_string(), how)));
            rail.set_key(&key);
            pml.add_rail(rail)?;
        }
        let chosen =
            connect::meet_at_once(&mut pml, &config, &candidates, rank, &directory).and_then(|ways| {
                let place = *config.counters.place.get();
                let seen = Seen::create(
                    place,
                    rank,
                    &pml,
                    &named_ways(&pml, &ways, &directory),
                    &directory,
                )?;
                Ok((ways, seen))
            });
        let (ways, seen) = chosen.map_err(|error| match &mut remote {
            Some(remote) => remote.refuse(error),
            None => error,
        })?;
        let meeting = directory.is_lazy();
        let meeting =
            meeting.then(|| Box::new(PeerMeeting::new(directory.clone(), config.clone(), candidates)));
        let life = remote.map(Remote::start).transpose()?;
        let met_over = life.as_ref().map(Life::address);
        let counters = seen.as_ref().map(|seen| seen.path().to_owned());
        let fates = Fates::default();
        let dedicated = *config.progress.mode.get() == Mode::Dedicated;
        let core = Core {
            pml,
            maker: Maker::this(),
            clock,
            patience: Patience::of(&config.progress, crowded(rank, &directory, dedicated)),
            quiet: *config.wait.quiet.get(),
            seen,
            rank,
            size,
            ways,
            dedicated,
            one_sided: OneSided::default(),
            life,
            fates: fates.clone(),
            meeting,
            watch: Watch::default(),
            raw_completions: std::collections::VecDeque::new(),
            stopped: None,
            tests: 0,
            unlooked: 0,
            overdue: Vec::new(),
        };
        let front = if dedicated {
            let (mailbox, core_id) = (*config.progress.mailbox.get(), *config.progress.core.get());
            Front::Dedicated(Link::start(core, mailbox, core_id)?)
        } else {
            Front::inline(core)
        };
        let world = Self::assemble(front, rank, config, directory, counters, hook);
        Ok(world.over(met_over).with_hows(hows).with_fates(fates))
    }
}

fn pml_config(config: &Config, rank: u32, size: u32) -> Result<PmlConfig, Error> {
    let mut pml = PmlConfig::new(Rank(rank), size, random::number()?);
    pml.eager_limit = config.pml.eager.get().map(|size| size.0);
    pml.protocol = match config.pml.protocol.get() {
        Protocol::Auto => PmlProtocol::Auto,
        Protocol::Fragments => PmlProtocol::Fragments,
        Protocol::Get => PmlProtocol::Get,
        Protocol::Put => PmlProtocol::Put,
    };
    pml.checksum = *config.pml.checksum.get();
    pml.inject_limit = config.pml.buffer.get().0;
    pml.window = config.pml.unexpected.get().0 as u64;
    pml.hard_window = pml.hard_window.max(pml.window.saturating_mul(16));
    pml.patience = *config.pml.patience.get();
    pml.handshake = *config.pml.handshake.get();
    pml.resume = match config.pml.resume.get() {
        Resume::Missing => PmlResume::Missing,
        Resume::FromZero => PmlResume::FromZero,
    };
    Ok(pml)
}

/// Whether the host has fewer cores for us than threads that want to spin.
pub(crate) fn crowded(rank: u32, directory: &Directory, dedicated: bool) -> bool {
    let Some(own) = directory.hello(rank) else {
        return false;
    };
    let threads = if dedicated { 2 } else { 1 };
    if directory.is_lazy() {
        let here = directory.here().unwrap_or(directory.size());
        return cores::are_crowded_among(&own.cores, here as usize, threads);
    }
    let here = directory.hellos().filter(|hello| hello.host == own.host);
    cores::are_crowded(&own.cores, here.map(|hello| hello.cores.as_str()), threads)
}

/// Every way with the rank that it leads to, and the names of the rails at both ends.
fn named_ways(pml: &Pml<AnyRail>, ways: &[Vec<Way>], directory: &Directory) -> Vec<(u32, Way, String)> {
    let named = |(rank, ways): (usize, &Vec<Way>)| {
        let name = |way: &Way| {
            let ours = pml.rail(way.rail)?.name();
            let theirs = &directory
                .hello(rank as u32)?
                .rails
                .get(usize::from(way.other))?
                .name;
            Some((rank as u32, *way, format!("{ours}/{theirs}")))
        };
        ways.iter().filter_map(name).collect::<Vec<_>>()
    };
    ways.iter().enumerate().flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(builder: Builder) -> Result<Config, Error> {
        builder.without_environment().resolve()
    }

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
