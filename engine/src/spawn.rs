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
use doorbell_job::launcher::{self, Door};
use doorbell_job::meet::remote::within_network;
use doorbell_job::meet::{Key, Meeting};
use doorbell_job::ranks::Directory;
use doorbell_job::spawn::{Order, Spawn, Told, check, failed, invite};
use doorbell_job::wait::turns::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::collect::{gather_words, share_words};
use crate::world::World;

/// Longest word of a rank to rank 0, and of rank 0 to all.
const LONGEST_WORD: usize = 256 << 10;
/// The same where it may be a table.
const LONGEST_TABLE: usize = 256 << 20;
/// The others wait so much longer for what rank 0 says of its own waits.
const SLACK: Duration = Duration::from_secs(10);
/// Longest that all of it may take: a limit beyond that is this one, as for settings of time.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

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
    let ranks = call.share(is_root.then(|| check(world.size(), what)), LONGEST_WORD)?;
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
        invite(
            what,
            hellos.unwrap_or_default(),
            door,
            (call.until, limit),
            &mut || _ = world.progress(),
            &mut order,
        )
    });
    // Who has an error to tell has it as well: nobody goes on after this.
    let meeting = call.share(Some(met), LONGEST_TABLE)?;
    let key = meeting.key;
    let (raised, word) = apart(raise(world, meeting, things, clock));
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
