//! Finds the launcher that started this process, and takes rank, size and meeting point from it.
//!
//! | found | rank and size | the ranks meet |
//! |---|---|---|
//! | `doorbell` | DOORBELL_RANK, DOORBELL_SIZE | at DOORBELL_ROOT |
//! | `pmix`, `pmi2`, `pmi1` | the launcher's | through the launcher (`meet::pmi`) |
//! | `environment` | the launcher's variables | at DOORBELL_ROOT, or at a name made of the job's |
//! | `singleton` | 0 of 1 | |
//!
//! Ranks that a running job has started take their number among the new ones from the launcher, and
//! everything else from their invitation (`meet::spawn_child`).

use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use doorbell_oob::Launcher;
use doorbell_oob::launch::singleton::Singleton;
use doorbell_oob::launch::{Found, Kind, Wanted, detect, open, open_beside};

use crate::config::{Config, warning_at};
use crate::error::Error;

/// The handle of the launcher, which all worlds of a process share.
pub type LauncherHandle = Arc<Mutex<Box<dyn Launcher>>>;

/// Locks the launcher for one exchange with it.
pub fn lock(launcher: &LauncherHandle) -> MutexGuard<'_, Box<dyn Launcher>> {
    launcher.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shared(launcher: Box<dyn Launcher>) -> LauncherHandle {
    Arc::new(Mutex::new(launcher))
}

/// Finds the launcher by which a world of this process would join its job, and the reasons against each other
/// one. Connects to nothing.
///
/// ```
/// # if std::env::vars().any(|(name, _)| name.starts_with("PMI") || name.starts_with("SLURM")) {
/// #     return Ok(());
/// # }
/// # use doorbell_job as doorbell;
/// let found = doorbell::launcher(&doorbell::Config::default())?;
/// assert_eq!(found.kind, doorbell::oob::launch::Kind::Singleton);
/// # Ok::<(), doorbell::Error>(())
/// ```
///
/// # Errors
/// A launcher that `job.launch` names and that is not there; a variable of a launcher that does not parse.
pub fn launcher(config: &Config) -> Result<Found, Error> {
    find(config, false)
}

fn find(config: &Config, without_environment: bool) -> Result<Found, Error> {
    let job = &config.job;
    let wanted = Wanted {
        kind: job.launch.get().named(),
        ours: match (*job.rank.get(), *job.size.get()) {
            (None, None) => None,
            (rank, size) => Some((rank.unwrap_or(0), size)),
        },
        library: job.pmix_library.get().clone(),
    };
    // A launcher that is named is used, and its environment is all there is to read.
    let blind = without_environment && wanted.kind.is_none();
    let variables = |name: &str| if blind { None } else { std::env::var(name).ok() };
    Ok(detect(&wanted, &variables)?)
}

/// Opens the launcher, where there is one. `config` then has rank and size, and the meeting point if this
/// launcher does not exchange values.
pub fn enter(config: &mut Config, without_environment: bool) -> Result<Option<LauncherHandle>, Error> {
    let found = find(config, without_environment)?;
    match found.kind {
        Kind::Doorbell => Ok(None),
        Kind::Singleton => {
            if config.job.launch.get().named().is_some() {
                // A named singleton overrides what the environment has.
                config.job.rank.learn(None, found.kind.name());
                config.job.size.learn(None, found.kind.name());
                config.job.root.learn(None, found.kind.name());
            }
            if found.spawned {
                return Ok(Some(shared(open(&found, *config.job.timeout.get())?)));
            }
            Ok(None)
        }
        Kind::Pmix | Kind::Pmi2 | Kind::Pmi1 | Kind::Environment => {
            let launcher = open(&found, *config.job.timeout.get())?;
            let (name, place) = (found.kind.name(), launcher.place());
            config.job.rank.learn(Some(place.rank), name);
            config.job.size.learn(Some(place.size), name);
            if place.size > 1
                && config.job.root.get().is_none()
                && let Some(meeting) = launcher.meeting()?
            {
                config.job.root.learn(Some(meeting.to_owned()), name);
            }
            Ok(Some(shared(launcher)))
        }
    }
}

/// Returns a launcher for a world that did not join through one, for requests while the job runs: the
/// connection that `doorbell run` leaves open for its ranks, or a stand-in where this process can start
/// others by itself.
pub fn beside(config: &Config) -> Result<LauncherHandle, Error> {
    match *config.job.rank.get() {
        Some(rank) => {
            let variables = |name: &str| std::env::var(name).ok();
            Ok(shared(open_beside(rank, &variables, *config.job.timeout.get())?))
        }
        None => Ok(shared(Box::new(Singleton::new()))),
    }
}

/// Keeps the connection to the launcher of a rank that could not take part, until its process ends. A
/// launcher takes a closed connection for the death of the rank, and kills the other ranks of this host and
/// this one, before the caller has printed why.
pub fn keep_open(launcher: Option<LauncherHandle>) {
    static KEPT: Mutex<Vec<LauncherHandle>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.extend(launcher);
}

/// Writes a warning to the standard error when the environment has variables that begin with `DOORBELL_` and
/// are no settings. Once per process, at rank 0 of a job only, and not where a parent process has warned of
/// them ([`warned_variables`](crate::config::warned_variables)).
pub fn warn_of_unknown_variables() {
    // A bad value is an error of the call that needs it, not of this one.
    let config = Config::from_environment().unwrap_or_default();
    warn(&config);
}

/// As [`warn_of_unknown_variables`], for a process with this configuration.
pub fn warn(config: &Config) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let text = warning_at(|| launcher(config).map_or(0, |found| found.rank));
        let _ = io::stderr().write_all(text.as_bytes());
    });
}

/// Whether this launcher exchanges values between its ranks.
pub fn passes_on(launcher: &dyn Launcher) -> bool {
    matches!(launcher.kind(), Kind::Pmix | Kind::Pmi2 | Kind::Pmi1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_environment_a_process_is_alone_and_ours_comes_first() {
        let mut config = Config::default();
        assert_eq!(find(&config, true).unwrap().kind, Kind::Singleton);
        config.job.rank.set(Some(1));
        config.job.size.set(Some(2));
        let found = find(&config, true).unwrap();
        assert_eq!((found.kind, found.rank, found.size), (Kind::Doorbell, 1, Some(2)));
        assert!(enter(&mut config, true).unwrap().is_none());
        // A named singleton wins over the variables.
        config.set("job.launch", "singleton").unwrap();
        assert!(enter(&mut config, true).unwrap().is_none());
        assert_eq!((*config.job.rank.get(), *config.job.size.get()), (None, None));
        assert_eq!(config.job.rank.origin().to_string(), "launcher (singleton)");
    }

    #[test]
    fn one_that_is_named_and_not_there_is_refused() {
        let mut config = Config::default();
        config.set("job.launch", "doorbell").unwrap();
        let error = enter(&mut config, true).unwrap_err();
        assert_eq!((error.code(), error.exit_code()), ("launch.not-possible", 2));
        let text = error.to_string();
        assert!(
            text.contains("job.launch = doorbell") && text.contains("DOORBELL_RANK"),
            "{text}"
        );
        let error = config.set("job.launch", "pmi3").unwrap_err().to_string();
        assert!(
            error.contains("pmi2|pmi1") && error.contains("nearest"),
            "{error}"
        );
    }
}
