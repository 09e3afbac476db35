//! The service: doors for clients, the resolver, what carries its messages, and everything that changes while it runs.
//!
//! ```text
//!   serve ── questions ──┐
//!   door ── state? ──────┤                  ┌── resolver
//!   host ── endpoints ───┼──► mail ──► heart ── carrier ◄──► other services
//!   config ── files ─────┘                  └── preloads
//! ```
//!
//! One thread, one task that owns the state; nothing is locked.
//!
//! | module | job |
//! |---|---|
//! | `heart` | waiting, and what is done next |
//! | `state` | the resolver with everything around it |
//! | `links` | what the carrier serves, and what goes out |
//! | `lock` | the file that keeps a second service from starting |
//! | `misfits` | what is written, and does not fit this host |
//! | `follow` | hearing of changes of files and of this host |
//! | `peers` | where other services were heard from |
//! | `written` | files, and what follows from them |
//! | `telling` | what is said of it, and to whom |
//! | `door`, `view` | what is shown of it |

mod actor;
mod config;
mod config_check;
mod listener;
mod lock;
mod log_dedup;
mod outbound;
mod peers;
mod snapshot;
mod state;
mod watchers;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::select;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, LocalSet, spawn_local};

use crate::carrier::{CarrierError, Key};
use crate::config::{Logging, ServerMode, Warnings};
use crate::host::{HostError, HostWatch, Sources, look};
use crate::serve::{self, Made, Places, ServeError, Served, Server, Tcp};
use actor::{Slot, beat};
use config::Written;
use lock::Lock;
use log_dedup::Telling;
use state::State;
use watchers::Files;

/// What a service is told by whoever starts it, beside its files.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder of the configuration.
    pub folder: PathBuf,
    /// The files by which clients find it.
    pub places: Places,
    /// The socket of what it shows of itself.
    pub watch: PathBuf,
    /// A TCP socket, whatever the configuration says.
    pub tcp: Option<Tcp>,
    /// The interfaces by which other services are asked and answered, in place of what the configuration says; unless empty.
    pub interfaces: Vec<String>,
    /// The key of the job: what other services say without it is not believed.
    pub key: Option<[u8; 32]>,
}

impl Settings {
    /// The usual ones: everything where rdma-core's clients look for it, configured by `/etc/rdma`.
    #[must_use]
    pub fn usual() -> Self {
        Self::at(Places::default())
    }

    /// Those of a service whose clients find it there.
    #[must_use]
    pub fn at(places: Places) -> Self {
        let mut watch = places.socket.clone().into_os_string();
        watch.push(".watch");
        Self {
            folder: crate::config::FOLDER.into(),
            places,
            watch: watch.into(),
            tcp: None,
            interfaces: Vec::new(),
            key: None,
        }
    }
}

/// Why a service cannot begin, or has ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Its doors.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// What carries its messages.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    /// What this host has.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The runtime below it.
    #[error(
        "cannot create an event loop: {0}; {advice}",
        advice = doorbell_fabric::error::advice(.0).unwrap_or("check `ulimit -n`")
    )]
    Runtime(#[source] io::Error),
    /// Another service has the lock file.
    #[error(
        "another service has the lock file `{}`{}: stop it first, or name another lock_file in ibacm_opts.cfg",
        path.display(), by(*holder)
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The process that is written in it.
        holder: Option<u32>,
    },
    /// The lock file cannot be had.
    #[error(
        "could not take the lock file `{}`: {source}; check that its folder is there and that this user may write to it, or \
         name another lock_file in ibacm_opts.cfg",
        path.display()
    )]
    Lock {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn by(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// Whoever hears what the service says of itself, line by line.
pub type Tell = Box<dyn Fn(&str) + Send>;

/// A service that has its sockets, and is not running yet.
pub struct Service {
    settings: Settings,
    server: Server,
    door: std::os::unix::net::UnixListener,
    made: Made,
    written: Written,
    warnings: Vec<String>,
    lock: Option<Lock>,
    tell: Tell,
}

impl Service {
    /// Reads the configuration and opens the doors; `given` are sockets that somebody else opened for it
    /// ([`serve::inherited`]).
    ///
    /// # Errors
    /// [`ServiceError`]. What was made by then is removed again.
    pub fn open(settings: Settings, given: Vec<OwnedFd>) -> Result<Self, ServiceError> {
        let written = Written::read(&settings.folder).with_interfaces(&settings.interfaces);
        let lock = written.options.lock_file.as_deref().map(Lock::take).transpose()?;
        let found = look(&Sources::of_system(written.entries.clone()))?;
        let misfits = config_check::misfits(&written, &found);
        let warnings = lines(&[&written.warnings, &misfits]);
        let server = Server::open(&doors(&settings, &written), given)?;
        let mut made = Made::default();
        let door = listener::open(&settings.watch, &mut made)?;
        Ok(Self {
            settings,
            server,
            door,
            made,
            written,
            warnings,
            lock,
            tell: Box::new(|_| {}),
        })
    }

    /// What is counted at its doors, also while it runs.
    #[must_use]
    pub fn served(&self) -> Arc<Served> {
        self.server.served()
    }

    /// Where it listens for TCP.
    #[must_use]
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        self.server.tcp_address()
    }

    /// What of the configuration could not be used as it stands, or does not fit this host. What is loaded by it is looked
    /// at when the service runs.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Where `log_file` says that lines are to be written; none where it says nothing.
    #[must_use]
    pub fn log_file(&self) -> Option<&Logging> {
        self.written.options.log_file.as_ref()
    }

    /// While it runs, `tell` hears what the service says of itself: warnings that are new since [`Service::warnings`], all of
    /// them again when the files have changed, and what `log_level` asks for besides. It must not wait for the service.
    #[must_use]
    pub fn telling(mut self, tell: Tell) -> Self {
        self.tell = tell;
        self
    }

    /// Runs until `stop` says so, or its sender is gone, in a runtime of its own; then what it made is removed.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(self, stop: watch::Receiver<bool>) -> Result<(), ServiceError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServiceError::Runtime)?;
        LocalSet::new().block_on(&runtime, self.serve(stop))
    }

    async fn serve(self, stop: watch::Receiver<bool>) -> Result<(), ServiceError> {
        let Self {
            settings,
            server,
            door,
            made,
            written: _,
            warnings,
            lock,
            tell,
        } = self;
        let (post, mail) = mpsc::unbounded_channel();
        let files = Files::new(settings.folder, settings.interfaces);
        // First the watch: what changes after the files are read is heard.
        let (watching, written) = files.watched();
        let host = HostWatch::new(Sources::of_system(written.entries.clone()))?;
        let found = host.found().clone();
        let (renamed, renames) = watch::channel(written.entries.clone());
        let key = settings.key.as_ref().map(Key::of_job);
        let telling = Telling::new(tell, warnings);
        let state = State::new(written, key, found, server.served(), telling)?;
        spawn_local(watchers::host(host, renames, post.clone()));
        spawn_local(watchers::files(files, watching, renamed, post.clone()));
        let door = UnixListener::from_std(door).map_err(ServiceError::Runtime)?;
        spawn_local(listener::serve(door, post.clone()));
        let mut serving = spawn_local(server.run(Slot(post), stop.clone()));
        let mut beating = pin!(beat(state, mail, stop));
        // Both end when they are told to. Where one ends by itself the other is of no use.
        let ended = select! {
            biased;
            beat = &mut beating => match beat {
                Ok(()) => {
                    drop(made);
                    served(serving.await)
                }
                Err(error) => {
                    serving.abort();
                    Err(error)
                }
            },
            ended = &mut serving => match served(ended) {
                Ok(()) => beating.await,
                error => error,
            },
        };
        // Whoever waits for it finds nothing else of this one.
        drop(lock);
        ended
    }
}

/// Warnings as lines, and how many more there were.
fn lines(all: &[&Warnings]) -> Vec<String> {
    let each = all.iter().flat_map(|warnings| warnings.iter());
    let mut lines: Vec<String> = each.map(ToString::to_string).collect();
    let more: u64 = all.iter().map(|warnings| warnings.more()).sum();
    if more > 0 {
        lines.push(format!(
            "and {more} more warnings; mend the first ones, and look again"
        ));
    }
    lines
}

fn served(ended: Result<Result<(), ServeError>, JoinError>) -> Result<(), ServiceError> {
    match ended {
        Ok(ended) => ended.map_err(ServiceError::from),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Ok(()),
    }
}

/// The doors that the configuration and the settings ask for.
fn doors(settings: &Settings, written: &Written) -> serve::Settings {
    let options = &written.options;
    let by_mode = match options.server_mode {
        ServerMode::Unix => None,
        ServerMode::Loop => Some(false),
        ServerMode::Open => Some(true),
    };
    let by_mode = by_mode.map(|open| Tcp {
        port: options.server_port,
        open,
    });
    serve::Settings {
        places: settings.places.clone(),
        // As with the original: a mode of TCP is one without the Unix socket, and what is asked for here comes beside it.
        unix: by_mode.is_none(),
        tcp: settings.tcp.or(by_mode),
        librdmacm: !options.acme_plus_kernel_only,
        ..serve::Settings::default()
    }
}
