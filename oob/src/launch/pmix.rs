//! PMIx: the server that mpirun, PRRTE and Slurm run on each host, through libpmix.
//!
//! The library's calls have no limits that all its versions and servers respect. So each runs in a thread of
//! its own, and the caller waits as long as it wants to. A call that does not return leaves its thread
//! behind, and the launcher is not called again.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::invite::ELSEWHERE;
use super::{
    Found, Kind, LONGEST_VALUE, LaunchError, Launcher, Newcomers, Place, give_place_back, pieces, take_place,
};
use crate::pmix::client::{Client, Got, Order};

/// The variable with the invitation of processes started through PMIx, in hexadecimal digits after the
/// length. A variable, because a client has no values before `PMIx_Init`, and that call of a spawned process
/// did not always return (libpmix 4.2.2 under Open MPI 4.1.4: one spawn in ten). With the variable nothing
/// has to be requested from the launcher.
pub const VARIABLE: &str = "DOORBELL_INVITATION";
/// The prefix of the variables that are passed on to spawned processes.
const SETTINGS: &str = "DOORBELL_";
/// Variables that belong to one process only.
const OWN: [&str; 5] = [
    VARIABLE,
    "DOORBELL_RANK",
    "DOORBELL_SIZE",
    "DOORBELL_ROOT",
    super::singleton::VARIABLE,
];
/// The prefix of the namespaces of Slurm's plug-in.
const SLURM: &str = "slurm.pmix";

/// The prefix of our keys: the server's own begin with `pmix.`.
const PREFIX: &str = "doorbell.";

/// A process of a PMIx job.
#[derive(Debug)]
pub struct Pmix {
    client: Client,
    place: Place,
    /// Why no further call is possible, if so.
    over: Option<&'static str>,
}

impl Pmix {
    /// Connects to the server of this host.
    pub(super) fn open(found: &Found, limit: Duration) -> Result<Self, LaunchError> {
        let until = Instant::now() + limit;
        let left = || until.saturating_duration_since(Instant::now());
        take_place(Kind::Pmix)?;
        let library = found.library.clone();
        let entered = bounded("PMIx_Init", limit, move || Client::init(&library));
        let (client, rank) = entered.and_then(|entered| entered).inspect_err(|error| {
            // After a refusal another attempt is possible; a call that has not returned is still running.
            if !matches!(error, LaunchError::Late { .. }) {
                give_place_back();
            }
        })?;
        let asked = client.clone();
        let place = bounded("PMIx_Get", left(), move || {
            let number = |got: Result<Got, LaunchError>| match got {
                Ok(Got::Number(number)) => Some(number),
                _ => None,
            };
            Place {
                rank,
                // Without a size there is no job: 0 is rejected below.
                size: number(asked.size()).unwrap_or(0),
                local_rank: number(asked.local_rank(rank)),
                local_size: number(asked.local_size()),
                job: asked.namespace(),
            }
        })?;
        let place = place.checked(Kind::Pmix)?;
        Ok(Self {
            client,
            place,
            over: None,
        })
    }

    /// Runs one call of the library; after a failure no further one.
    fn call<R: Send + 'static>(
        &mut self,
        step: &'static str,
        limit: Duration,
        work: impl FnOnce(&Client) -> Result<R, LaunchError> + Send + 'static,
    ) -> Result<R, LaunchError> {
        if let Some(why) = self.over {
            return Err(LaunchError::State {
                kind: Kind::Pmix,
                step,
                why,
            });
        }
        let client = self.client.clone();
        let done = bounded(step, limit, move || work(&client)).and_then(|done| done);
        if done.is_err() {
            self.over = Some("after a failure");
        }
        done
    }
}

/// Runs `work` in another thread and waits for it for at most `limit`.
fn bounded<R: Send + 'static>(
    step: &'static str,
    limit: Duration,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, LaunchError> {
    let (tell, told) = mpsc::sync_channel(1);
    let spawned = thread::Builder::new()
        .name("doorbell-pmix".to_owned())
        .spawn(move || {
            // The receiver is gone if it took too long.
            let _ = tell.send(work());
        });
    spawned.map_err(|source| LaunchError::Io {
        kind: Kind::Pmix,
        step,
        source,
    })?;
    told.recv_timeout(limit).map_err(|_| LaunchError::Late {
        kind: Kind::Pmix,
        step,
        limit,
    })
}

impl Launcher for Pmix {
    fn kind(&self) -> Kind {
        Kind::Pmix
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn put(&mut self, key: &str, value: &[u8], limit: Duration) -> Result<(), LaunchError> {
        if value.len() > LONGEST_VALUE {
            return Err(LaunchError::TooLong {
                kind: Kind::Pmix,
                what: "a value",
                length: value.len(),
                limit: LONGEST_VALUE,
            });
        }
        let (key, value) = (format!("{PREFIX}{key}"), value.to_vec());
        self.call("PMIx_Put", limit, move |client| client.put(&key, &value))
    }

    fn fence(&mut self, limit: Duration) -> Result<(), LaunchError> {
        self.call("PMIx_Fence", limit, Client::fence)
    }

    fn get(&mut self, rank: u32, key: &str, limit: Duration) -> Result<Vec<u8>, LaunchError> {
        let ours = format!("{PREFIX}{key}");
        match self.call("PMIx_Get", limit, move |client| client.get(rank, &ours))? {
            Got::Bytes(bytes) => Ok(bytes),
            Got::Number(_) | Got::Absent => Err(LaunchError::Absent {
                kind: Kind::Pmix,
                rank,
                key: key.to_owned(),
            }),
        }
    }

    fn spawn(&mut self, newcomers: &Newcomers<'_>, limit: Duration) -> Result<(), LaunchError> {
        let kind = Kind::Pmix;
        if self.place.job.starts_with(SLURM) {
            let remedy = ELSEWHERE;
            return Err(LaunchError::NoSpawn { kind, remedy });
        }
        let settings = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            let goes_on = name.starts_with(SETTINGS) && !OWN.contains(&name.as_str());
            goes_on.then(|| format!("{name}={value}"))
        });
        let invitation = format!("{VARIABLE}={}", pieces::written(newcomers.invitation));
        let order = Order {
            program: newcomers.program.to_owned(),
            args: newcomers.args.to_vec(),
            variables: settings.chain([invitation]).collect(),
            processes: newcomers.ranks,
            host: newcomers.host.map(str::to_owned),
        };
        // An error of the library leaves it usable; a call that does not return does not.
        match self.call("PMIx_Spawn", limit, move |client| Ok(client.spawn(&order)))? {
            Err(error @ LaunchError::Pmix { .. }) => Err(LaunchError::NotSpawned {
                kind,
                reason: error.to_string(),
            }),
            spawned => spawned,
        }
    }

    fn abort(&mut self, code: u8, text: &str, limit: Duration) -> Result<(), LaunchError> {
        let text = text.to_owned();
        let done = self.call("PMIx_Abort", limit, move |client| client.abort(code, &text));
        self.over = Some("after a request to end the job");
        done
    }

    fn finalize(&mut self, limit: Duration) -> Result<(), LaunchError> {
        let done = self.call("PMIx_Finalize", limit, Client::finalize);
        self.over = Some("after finalize");
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_come_back_is_not_waited_for() {
        let (hold, held) = mpsc::channel::<()>();
        let waited = bounded("PMIx_Fence", Duration::from_millis(20), move || held.recv());
        let error = waited.unwrap_err();
        assert_eq!((error.code(), error.exit().number()), ("launch.late", 5));
        assert!(error.to_string().contains("PMIx_Fence"), "{error}");
        drop(hold);
        assert_eq!(bounded("PMIx_Get", Duration::from_secs(30), || 7).unwrap(), 7);
    }
}
