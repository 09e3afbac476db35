//! Starting more ranks in a running job: what the old ranks do together.
//!
//! ```text
//!   old rank 1 …            rank 0                     the launcher          new ranks
//!     ◄─ how many ─────────
//!     hello of the new world ─►
//!                           listens; invitation ───────────────────────────►  start
//!                           ◄──────────────────────────── hellos ───────────  (job/src/meet/spawn_child.rs)
//!     ◄─ table ──────────── ─────────────────────────────────────────────►
//!     opens rails           opens rails                                       open rails
//!     ready ───────────────► ◄───────────────────────────────── ready ──────
//!     ◄─ verdict ─────────── ────────────────────────────────── ready ────►
//! ```
//!
//! The old ranks exchange these messages over their world. If a step fails on any rank, all of them return
//! the same error, and the old world goes on. The new world has rails of its own.

use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use doorbell_job::error::Error;
use doorbell_job::handle::Job;
use doorbell_job::join::{Joined, Layer, Rails, prepare};
use doorbell_job::launcher::{self, LauncherHandle};
use doorbell_job::meet::tcp::within_network;
use doorbell_job::meet::{Key, Meeting};
use doorbell_job::ranks::Directory;
use doorbell_job::spawn::{Order, RemoteResult, Spawn, check, failed, invite};
use doorbell_job::wait::turns::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collect::{gather_words, share_words};
use crate::world::World;

/// Most bytes in a message from a rank to rank 0, or from rank 0 to all.
const LONGEST_WORD: usize = 256 << 10;
/// Most bytes in a message that may contain the rank table.
const LONGEST_TABLE: usize = 256 << 20;
/// The other ranks wait this much longer, since rank 0 reports the outcome of its own waits.
const SLACK: Duration = Duration::from_secs(10);
/// The most that the whole spawn may take: a longer limit is cut to this, as in settings of time.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// One spawn in progress, on an old rank.
struct Call<'w> {
    world: &'w World,
    until: Instant,
}

impl Call<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Broadcasts rank 0's result; `own` is used only there.
    fn share<T: Serialize + DeserializeOwned>(
        &self,
        own: Option<Result<T, Error>>,
        most: usize,
    ) -> Result<T, Error> {
        let words = |result: &RemoteResult<T>| {
            serde_json::to_vec(result).map_err(|error| failed(Exit::System, error.to_string()))
        };
        let own = own.map(|own| words(&RemoteResult::of(own))).transpose()?;
        let text = share_words(self.world, own, most, self.left() + SLACK)?;
        let result: RemoteResult<T> = serde_json::from_slice(&text).map_err(|error| {
            failed(
                Exit::PeerLost,
                format!("what rank 0 sent does not parse: {error}"),
            )
        })?;
        result.into_result()
    }

    /// Gathers the results of all ranks at rank 0, in their order. The first failure fails all.
    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        own: Result<T, Error>,
    ) -> Result<Option<Vec<T>>, Error> {
        let text = serde_json::to_vec(&RemoteResult::of(own))
            .map_err(|error| failed(Exit::System, error.to_string()))?;
        let Some(texts) = gather_words(self.world, text, LONGEST_WORD, self.left() + SLACK / 2)? else {
            return Ok(None);
        };
        let read = |(rank, text): (usize, Vec<u8>)| {
            let result: RemoteResult<T> = serde_json::from_slice(&text).map_err(|error| {
                failed(
                    Exit::PeerLost,
                    format!("what rank {rank} sent does not parse: {error}"),
                )
            })?;
            result.into_result().map_err(|error| match error {
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

impl World {
    /// Starts more ranks and returns a new world: the old ranks keep their numbers, and the new ones come
    /// behind them. All ranks of this world call it together, and all of it takes about `limit` at most; the
    /// `what` of rank 0 counts. In the new processes, [`crate::init`] returns the same new world, and
    /// [`World::spawned`] the number of old ranks.
    ///
    /// This world goes on beside the new one, and each is closed separately. The new one has rails of its
    /// own. New ranks end as the ranks of any job do: with 0 when they are done, while the others go on; a
    /// failure is the whole job's, as its launcher sees it.
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
    /// [`Error::NotSpawned`], with the same text at all ranks, when there is no such program, the launcher
    /// starts no more processes, a new process ends before it has joined, or `limit` passes: then this world
    /// goes on unchanged, and the processes that were started are ended as far as the launcher supports that.
    /// Otherwise the errors of [`World::barrier`], when the ranks of this world do not come together.
    pub fn spawn(&self, what: Spawn, limit: Duration) -> Result<Self, Error> {
        self.here()?;
        spawn(self, &what, limit)
    }

    /// Returns the launcher that starts more ranks, and opens it if necessary. The world closes what is
    /// opened here.
    fn launcher_to_spawn(&self) -> Result<LauncherHandle, Error> {
        if let Some(launcher) = self.spawner() {
            return Ok(launcher);
        }
        let launcher = launcher::beside(self.config())?;
        self.set_spawner(launcher.clone());
        Ok(launcher)
    }
}

/// The steps of [`World::spawn`].
fn spawn(world: &World, what: &Spawn, limit: Duration) -> Result<World, Error> {
    let limit = limit.min(YEAR);
    let call = Call {
        world,
        until: Instant::now() + limit,
    };
    let is_root = world.rank() == 0;
    let before = world.size();
    let ranks = call.share(is_root.then(|| check(world.size(), what)), LONGEST_WORD)?;
    let size = before + ranks;
    let clock = clock_of(world)?;
    // A rank that cannot open its rails sends rank 0 the error in place of its record.
    let (things, own) = match prepare(world.config(), world.rank(), size, Layer::Messages) {
        Ok((things, mut own)) => {
            own.host = within_network(own.host);
            (Some(things), Ok(own))
        }
        Err(error) => (None, Err(error)),
    };
    let infos = call.gather(own);
    if !is_root {
        infos?;
        let meeting: Meeting = call.share(None, LONGEST_TABLE)?;
        let key = meeting.key;
        let built = build(world, meeting, things, clock);
        let (built, word) = apart(built);
        call.gather(word)?;
        call.share::<()>(None, LONGEST_WORD)?;
        return controlled(built, &key);
    }
    let launcher = world.launcher_to_spawn();
    let mut order: Option<Order<'_>> = None;
    let met = infos.and_then(|infos| {
        let launcher = launcher
            .as_ref()
            .map_err(|error| failed(error.exit(), error.to_string()))?;
        invite(
            what,
            infos.unwrap_or_default(),
            launcher,
            (call.until, limit),
            &mut || _ = world.progress(),
            &mut order,
        )
    });
    // Every rank returns the error that rank 0 broadcasts, so none continues after a failure.
    let meeting = call.share(Some(met), LONGEST_TABLE)?;
    let key = meeting.key;
    let (built, word) = apart(build(world, meeting, things, clock));
    let old = call.gather(word);
    let new = old.and_then(|_| match &mut order {
        Some(order) => order.ready(&mut || _ = world.progress()),
        None => Ok(()),
    });
    let new = new.map_err(|error| match &mut order {
        Some(order) => order.give_up(error),
        None => error,
    });
    call.share(Some(new), LONGEST_WORD)?;
    if let Some(order) = order {
        order.start();
    }
    controlled(built, &key)
}

/// Starts the control plane of the new world, when all ranks are in it.
fn controlled(built: Option<World>, key: &Key) -> Result<World, Error> {
    let built = built.ok_or_else(|| failed(Exit::System, "this rank had no rails"))?;
    built.with_control(key)
}

/// Splits a result into the world, which stays here, and the outcome, which rank 0 gathers.
fn apart(result: Result<World, Error>) -> (Option<World>, Result<(), Error>) {
    match result {
        Ok(world) => (Some(world), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// Returns the clock of the new world. A simulated job has no processes to start.
fn clock_of(world: &World) -> Result<Clock, Error> {
    let clock = world.engine().call(|core| core.clock.clone())?;
    match clock {
        Clock::Machine(_) => Ok(clock),
        Clock::Virtual(_) => Err(Error::Unsupported {
            what: "spawning ranks",
            by: "a simulated job".to_owned(),
        }),
    }
}

fn build(world: &World, meeting: Meeting, things: Option<Rails>, clock: Clock) -> Result<World, Error> {
    let rails = things.ok_or_else(|| failed(Exit::Rail, "it has no rails"))?;
    let Meeting { key, ranks } = meeting;
    let job = Job::new(world.config().clone(), world.rank(), Directory::whole(ranks));
    let built = World::build(Joined { job, key, rails }, clock, None, None)?;
    Ok(built.grown_from(world.size(), world.spawner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_limit_is_cut_to_a_year() {
        let world = crate::Builder::new().build().unwrap();
        let error = spawn(&world, &Spawn::new("/nonexistent/program"), Duration::MAX).unwrap_err();
        assert!(error.to_string().contains("there is no program"), "{error}");
        world.close();
    }
}
