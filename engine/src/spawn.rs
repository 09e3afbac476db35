//! A running job starts more ranks and joins them: what all old ranks do together.
//!
//! ```text
//!   old rank 1 …            rank 0                     the launcher          new ranks
//!     ◄─ how many ─────────
//!     hello of the new world ─►
//!                           listens; invitation ───────────────────────────►  start
//!                           ◄──────────────────────────── hellos ───────────  (bootstrap::invite)
//!     ◄─ table ──────────── ─────────────────────────────────────────────►
//!     opens rails           opens rails                                       open rails
//!     ready ───────────────► ◄───────────────────────────────── ready ──────
//!     ◄─ verdict ─────────── ────────────────────────────────── ready ────►
//! ```
//!
//! The old ranks talk over their world. Whatever fails, at whomever, is told to all in the same words, and
//! the old world goes on. The new world has rails of its own.

use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_job::error::Error;
use doorbell_job::handle::Job;
use doorbell_job::join::{Joined, Layer, Rails, prepare};
use doorbell_job::launcher::{self, Door, lock};
use doorbell_job::meet::host::Host;
use doorbell_job::meet::remote::{exit_of, shown, within_network};
use doorbell_job::meet::{Hello, Key, Meeting};
use doorbell_job::random;
use doorbell_job::ranks::Directory;
use doorbell_job::types::MOST_RANKS;
use doorbell_job::wait::turns::Clock;
use doorbell_oob::launch::{Kind, Newcomers};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::collect::{gather_words, share_words};
use crate::world::World;

/// Most ranks that are started at a time: as many as `doorbell run` starts.
const MOST_NEW: u32 = 1024;
/// Longest word of a rank to rank 0, and of rank 0 to all.
const LONGEST_WORD: usize = 256 << 10;
/// The same where it may be a table.
const LONGEST_TABLE: usize = 256 << 20;
/// The others wait so much longer for what rank 0 says of its own waits.
const SLACK: Duration = Duration::from_secs(10);
/// Between two questions to the launcher whether all is well.
const ASK: Duration = Duration::from_millis(100);
/// Longest that all of it may take: a limit beyond that is this one, as for settings of time.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Time for one answer of the launcher.
const ANSWER: Duration = Duration::from_secs(5);

/// Which ranks are to be started: for [`World::spawn`].
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is given to `World::spawn`"]
pub struct Spawn {
    program: String,
    args: Vec<String>,
    ranks: u32,
    host: Option<String>,
}

impl Spawn {
    /// One rank of `program`: a path, or a name that is looked for in PATH.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            host: None,
        }
    }

    /// One more argument. Most launchers take printable ASCII only.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// More arguments.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// All on this host, by the launcher's name for it. Without this they go where the launcher thinks
    /// best; that of
    /// `doorbell run --hosts` takes the hosts with the fewest ranks.
    pub fn on(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }
}

/// What rank 0 tells all, or a rank tells rank 0: something, or why not.
#[derive(Serialize, Deserialize)]
enum Told<T> {
    Good(T),
    Bad { exit: u8, reason: String },
}

impl<T> Told<T> {
    fn of(result: Result<T, Error>) -> Self {
        match result {
            Ok(good) => Self::Good(good),
            Err(Error::NotSpawned { exit, reason }) => Self::Bad {
                exit: exit.number(),
                reason,
            },
            Err(error) => Self::Bad {
                exit: error.exit().number(),
                reason: error.to_string(),
            },
        }
    }

    fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Good(good) => Ok(good),
            Self::Bad { exit, reason } => Err(Error::NotSpawned {
                exit: exit_of(exit),
                reason: shown(&reason),
            }),
        }
    }
}

fn failed(exit: Exit, reason: impl Into<String>) -> Error {
    Error::NotSpawned {
        exit,
        reason: reason.into(),
    }
}

/// One spawn under way, on an old rank.
struct Call<'w> {
    world: &'w World,
    until: Instant,
}

impl Call<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// What rank 0 says; `own` is looked at there only.
    fn share<T: Serialize + DeserializeOwned>(
        &self,
        own: Option<Result<T, Error>>,
        most: usize,
    ) -> Result<T, Error> {
        let words = |told: &Told<T>| {
            serde_json::to_vec(told).map_err(|error| failed(Exit::System, error.to_string()))
        };
        let own = own.map(|own| words(&Told::of(own))).transpose()?;
        let text = share_words(self.world, own, most, self.left() + SLACK)?;
        let told: Told<T> = serde_json::from_slice(&text).map_err(|error| {
            failed(
                Exit::PeerLost,
                format!("what rank 0 says does not parse: {error}"),
            )
        })?;
        told.into_result()
    }

    /// What all ranks say, in their order, at rank 0; the first that cannot is the end for all.
    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        let text =
            serde_json::to_vec(&Told::of(own)).map_err(|error| failed(Exit::System, error.to_string()))?;
        let Some(texts) = gather_words(self.world, text, LONGEST_WORD, self.left() + SLACK / 2)? else {
            return Ok(None);
        };
        let read = |(rank, text): (usize, Vec<u8>)| {
            let told: Told<T> = serde_json::from_slice(&text).map_err(|error| {
                failed(
                    Exit::PeerLost,
                    format!("what rank {rank} says does not parse: {error}"),
                )
            })?;
            told.into_result().map_err(|error| match error {
                Error::NotSpawned { exit, reason } => {
                    failed(exit, format!("rank {rank} cannot take part: {reason}"))
                }
                error => error,
            })
        };
        texts
            .into_iter()
            .enumerate()
            .map(read)
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

/// What rank 0 has under way with the launcher: given up when it is dropped.
struct Order<'d> {
    door: &'d Door,
    token: String,
    host: Host,
    is_placed: bool,
    asked: Instant,
}

impl Order<'_> {
    /// Whether the launcher knows that somebody will not come.
    fn ask(door: &Door, token: &str, asked: &mut Instant) -> Result<(), Error> {
        if asked.elapsed() < ASK {
            return Ok(());
        }
        *asked = Instant::now();
        match lock(door).failure(token, ANSWER)? {
            Some(why) => Err(failed(Exit::PeerLost, why)),
            None => Ok(()),
        }
    }

    /// Waits on `host` with what has to be done meanwhile.
    fn wait<T>(
        &mut self,
        world: &World,
        step: impl FnOnce(&mut Host, &mut dyn FnMut() -> Result<(), Error>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (door, token, asked) = (self.door, self.token.as_str(), &mut self.asked);
        let mut tick = || {
            world.progress();
            Self::ask(door, token, asked)
        };
        step(&mut self.host, &mut tick)
    }

    /// Everybody who came is told why there is no world, and the launcher that nobody waits.
    fn give_up(&mut self, error: Error) -> Error {
        self.host.refuse(error.exit(), &error.to_string());
        error
    }
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        if self.is_placed {
            // A launcher that cannot be told has troubles of its own.
            let _ = lock(self.door).abandon(&self.token, ANSWER);
        }
    }
}

impl World {
    /// Starts more ranks, and gives a new world of the old ones, which keep their numbers, and the new ones
    /// behind them. All ranks of this world call it together, and all of it is done within about `limit`;
    /// what rank 0 says counts. In the new processes, [`crate::init`] gives the same new world, and
    /// [`World::spawned`] how many were there before.
    ///
    /// This world goes on beside the new one, and each ends by itself. The new one has rails of its own.
    /// New ranks end as those of any job: with 0 when they are done, while the others go on; a failure is
    /// the job's, as its launcher sees it.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use doorbell::Spawn;
    /// let world = doorbell::init()?;
    /// if world.spawned().is_none() {
    ///     let more = Spawn::new("./worker").arg("--fast").ranks(2);
    ///     let grown = world.spawn(more, Duration::from_secs(30))?;
    ///     grown.send(world.size(), 7, b"to the first of the new ones")?;
    ///     grown.close();
    /// }
    /// world.barrier()?;
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotSpawned`], at all ranks in the same words, when there is no such program, the launcher
    /// starts no more, a new process ends before it has joined, or `limit` passes: then this world goes on
    /// as if nothing had been asked, and what was started is ended as far as the launcher can do that. As
    /// [`World::barrier`] when the ranks of this world do not come together.
    pub fn spawn(&self, what: Spawn, limit: Duration) -> Result<Self, Error> {
        self.here()?;
        spawn(self, &what, limit)
    }

    /// Who is asked for more ranks: opened when that is not known. What was opened is taken leave of at the
    /// end.
    fn door_to_ask(&self) -> Result<Door, Error> {
        if let Some(door) = self.spawner() {
            return Ok(door);
        }
        let door = launcher::beside(self.config())?;
        self.set_spawner(door.clone());
        Ok(door)
    }
}

/// [`World::spawn`].
fn spawn(world: &World, what: &Spawn, limit: Duration) -> Result<World, Error> {
    let limit = limit.min(YEAR);
    let call = Call {
        world,
        until: Instant::now() + limit,
    };
    let is_root = world.rank() == 0;
    let before = world.size();
    let ranks = call.share(is_root.then(|| check(world, what)), LONGEST_WORD)?;
    let size = before + ranks;
    let clock = clock_of(world)?;
    // What cannot be opened is told to rank 0 in place of the hello.
    let (things, own) = match prepare(world.config(), world.rank(), size, Layer::Messages) {
        Ok((things, mut own)) => {
            own.host = within_network(own.host);
            (Some(things), Ok(own))
        }
        Err(error) => (None, Err(error)),
    };
    let hellos = call.gather(own);
    if !is_root {
        hellos?;
        let meeting: Meeting = call.share(None, LONGEST_TABLE)?;
        let key = meeting.key;
        let raised = raise(world, meeting, things, clock);
        let (raised, word) = apart(raised);
        call.gather(word)?;
        call.share::<()>(None, LONGEST_WORD)?;
        return controlled(raised, &key);
    }
    let door = world.door_to_ask();
    let mut order: Option<Order<'_>> = None;
    let met = hellos.and_then(|hellos| {
        let door = door
            .as_ref()
            .map_err(|error| failed(error.exit(), error.to_string()))?;
        invite(&call, what, hellos.unwrap_or_default(), door, limit, &mut order)
    });
    // Who has an error to tell has it as well: nobody goes on after this.
    let meeting = call.share(Some(met), LONGEST_TABLE)?;
    let key = meeting.key;
    let (raised, word) = apart(raise(world, meeting, things, clock));
    let old = call.gather(word);
    let new = old.and_then(|_| match &mut order {
        Some(order) => order.wait(world, |host, tick| host.ready(tick)),
        None => Ok(()),
    });
    let new = new.map_err(|error| match &mut order {
        Some(order) => order.give_up(error),
        None => error,
    });
    call.share(Some(new), LONGEST_WORD)?;
    if let Some(mut order) = order {
        order.is_placed = false;
        order.host.start();
    }
    controlled(raised, &key)
}

/// The new world, when all are in it.
fn controlled(raised: Option<World>, key: &Key) -> Result<World, Error> {
    let raised = raised.ok_or_else(|| failed(Exit::System, "this rank had no rails"))?;
    raised.with_control(key)
}

/// A result as what is kept and what is told.
fn apart(result: Result<World, Error>) -> (Option<World>, Result<(), Error>) {
    match result {
        Ok(world) => (Some(world), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// How many ranks are wanted, when that can be.
fn check(world: &World, what: &Spawn) -> Result<u32, Error> {
    let size = world.size().checked_add(what.ranks);
    let fits = (1..=MOST_NEW).contains(&what.ranks) && size.is_some_and(|size| size <= MOST_RANKS);
    if !fits {
        return Err(failed(
            Exit::Usage,
            format!(
                "{} ranks were asked for beside {}: from 1 to {MOST_NEW} at a time, and at most {MOST_RANKS} together",
                what.ranks,
                world.size()
            ),
        ));
    }
    Ok(what.ranks)
}

/// The clock of the new world: a simulated one has no processes to be started.
fn clock_of(world: &World) -> Result<Clock, Error> {
    let clock = world.front().call(|core| core.clock.clone())?;
    match clock {
        Clock::Machine(_) => Ok(clock),
        Clock::Virtual(_) => Err(Error::Unsupported {
            what: "spawning ranks",
            by: "a simulated job".to_owned(),
        }),
    }
}

/// Rank 0: has the new processes started, and meets them.
fn invite<'d>(
    call: &Call<'_>,
    what: &Spawn,
    hellos: Vec<Hello>,
    door: &'d Door,
    limit: Duration,
    order: &mut Option<Order<'d>>,
) -> Result<Meeting, Error> {
    let Some(zero) = hellos.first().cloned() else {
        return Err(failed(Exit::System, "rank 0 has no hello"));
    };
    for hello in &hellos {
        hello
            .check(&zero)
            .map_err(|reason| Error::Disagreement { reason })?;
    }
    let program = find(&what.program)?;
    let kind = lock(door).kind();
    // Processes that we start ourselves are here.
    let is_far = kind != Kind::Singleton;
    let host = Host::open(&zero, hellos.len() as u32, is_far, (call.until, limit))?;
    let invitation = host.invitation().write()?;
    let token = format!("{:016x}", random::number()?);
    let order = order.insert(Order {
        door,
        token,
        host,
        is_placed: true,
        asked: Instant::now(),
    });
    let newcomers = Newcomers {
        program: &program,
        args: &what.args,
        ranks: zero.size - hellos.len() as u32,
        host: what.host.as_deref(),
        invitation: &invitation,
        token: &order.token,
    };
    let met = {
        // A launcher that is cut short is not to be asked again, and the job goes on: so it has some time
        // in any case.
        let limit = call.left().max(ANSWER);
        let placed = lock(door).spawn(&newcomers, limit).map_err(Error::from);
        placed.and_then(|()| order.wait(call.world, |host, tick| host.gather(&zero, tick)))
    };
    let met = met.and_then(|new| {
        let key = Key::random()?;
        let ranks = hellos.into_iter().chain(new).collect();
        let meeting = Meeting { key, ranks };
        order.host.seat(&meeting)?;
        Ok(meeting)
    });
    met.map_err(|error| order.give_up(error))
}

/// The program as every launcher finds it: a path from its root, where it is one, because not all start
/// where we are.
fn find(program: &str) -> Result<String, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &std::path::Path| {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let missing = || {
        failed(
            Exit::Usage,
            format!(
                "there is no program `{}` at rank 0: check its name, PATH and its permissions",
                program.escape_debug()
            ),
        )
    };
    if program.contains('/') {
        let path = std::path::absolute(program).map_err(|_| missing())?;
        let text = path.to_str().filter(|_| is_program(&path));
        return text.map(str::to_owned).ok_or_else(missing);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        !program.is_empty() && std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)));
    if found {
        Ok(program.to_owned())
    } else {
        Err(missing())
    }
}

fn raise(world: &World, meeting: Meeting, things: Option<Rails>, clock: Clock) -> Result<World, Error> {
    let rails = things.ok_or_else(|| failed(Exit::Rail, "it has no rails"))?;
    let Meeting { key, ranks } = meeting;
    let job = Job::new(world.config().clone(), world.rank(), Directory::whole(ranks));
    let raised = World::raise(Joined { job, key, rails }, clock, None, None)?;
    Ok(raised.grown_from(world.size(), world.spawner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_for_ever_waits_a_year() {
        let world = crate::Builder::new().build().unwrap();
        let error = spawn(&world, &Spawn::new("/nonexistent/program"), Duration::MAX).unwrap_err();
        assert!(error.to_string().contains("there is no program"), "{error}");
        world.close();
    }
}
