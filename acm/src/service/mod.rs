//! The service: listeners for clients, the resolver, the carrier of its messages, and reloading while it
//! runs.
//!
//! ```text
//!   serve ── queries ────┐
//!   listener ── state ───┤               ┌── resolver
//!   host ── endpoints ───┼──► actor ─────┼── carrier ◄──► other services
//!   config ── files ─────┘               └── preloads
//! ```
//!
//! One thread, one task that owns the state; nothing is locked.
//!
//! | module | job |
//! |---|---|
//! | `actor` | the event loop |
//! | `state` | the resolver and everything around it |
//! | `outbound` | which endpoints the carrier serves, and what they send |
//! | `lock` | the file that keeps a second service from starting |
//! | `config_check` | warnings about configuration that this host cannot meet |
//! | `watch` | watchers of files and of this host's interfaces |
//! | `peers` | the socket addresses of other services |
//! | `config` | the configuration files, and what follows from them |
//! | `log_dedup` | the log, without repetition |
//! | `listener`, `snapshot` | the status socket, and the state that it shows |

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
use crate::config::{CarrierKind, Logging, ServerMode, Warnings};
use crate::host::{HostError, HostWatch, Sources, scan};
use crate::serve::{self, CreatedFiles, ServeError, Server, ServerCounters, SocketPaths, Tcp};
use actor::{Handle, run};
use config::ServiceConfig;
use lock::Lock;
use log_dedup::Log;
use state::State;
use watchers::Files;

/// The settings that a service is started with, beside its configuration files.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder of the configuration files.
    pub folder: PathBuf,
    /// The files by which clients find the service.
    pub places: SocketPaths,
    /// The path of the status socket.
    pub watch: PathBuf,
    /// A TCP socket to listen on, whatever is configured.
    pub tcp: Option<Tcp>,
    /// The interfaces for messages between services; unless empty, they replace those of the configuration.
    pub interfaces: Vec<String>,
    /// The key of the job: messages of other services without its tag are dropped.
    pub key: Option<[u8; 32]>,
}

impl Settings {
    /// Returns the default settings: the socket paths of rdma-core, and the configuration in `/etc/rdma`.
    #[must_use]
    pub fn usual() -> Self {
        Self::at(SocketPaths::default())
    }

    /// Returns the settings of a service whose clients find it at `places`.
    #[must_use]
    pub fn at(places: SocketPaths) -> Self {
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

/// Why a service cannot start, or why it stopped unasked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The listeners failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The carrier of messages failed.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    /// The interfaces of this host cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The asynchronous runtime cannot be built.
    #[error(
        "cannot create an event loop: {0}; {advice}",
        advice = doorbell_fabric::error::advice(.0).unwrap_or("check `ulimit -n`")
    )]
    Runtime(#[source] io::Error),
    /// No endpoint that is to be served can be.
    #[error(
        "no message can be exchanged with other services: {device} is not served: {why}{}",
        and_others(*others)
    )]
    NoneServed {
        /// The device of the first endpoint.
        device: String,
        /// Why it cannot be served, and what to do.
        why: String,
        /// How many more cannot be.
        others: usize,
    },
    /// Another service holds the lock file.
    #[error(
        "another service holds the lock file `{}`{}: stop it first, or name another lock_file in ibacm_opts.cfg",
        path.display(), by(*holder)
    )]
    Locked {
        /// The lock file's path.
        path: PathBuf,
        /// The process whose number the file contains.
        holder: Option<u32>,
    },
    /// The lock file cannot be opened or locked.
    #[error(
        "cannot lock `{}`: {source}; check that its folder exists and that this user may write to it, or \
         name another lock_file in ibacm_opts.cfg",
        path.display()
    )]
    Lock {
        /// The lock file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn by(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    }
}

/// Receives the service's log lines.
pub type LogSink = Box<dyn Fn(&str) + Send>;

/// A service with open sockets that is not running yet.
pub struct Service {
    settings: Settings,
    server: Server,
    door: std::os::unix::net::UnixListener,
    made: CreatedFiles,
    config: ServiceConfig,
    warnings: Vec<String>,
    lock: Option<Lock>,
    tell: LogSink,
    ready: Box<dyn FnOnce() + Send>,
}

impl Service {
    /// Reads the configuration and opens the listeners; `given` are sockets that were opened for it
    /// ([`serve::inherited`]).
    ///
    /// # Errors
    /// [`ServiceError`]. Files made by then are removed again.
    pub fn open(settings: Settings, given: Vec<OwnedFd>) -> Result<Self, ServiceError> {
        let config = ServiceConfig::read(&settings.folder).with_interfaces(&settings.interfaces);
        if settings.key.is_some() && config.options.doorbell_carrier == CarrierKind::Ud {
            return Err(CarrierError::NoTags.into());
        }
        let lock = config.options.lock_file.as_deref().map(Lock::take).transpose()?;
        let found = scan(&Sources::of_system(config.entries.clone()))?;
        let misfits = config_check::check(&config, &found);
        let warnings = lines(&[&config.warnings, &misfits]);
        let server = Server::open(&serve_settings(&settings, &config), given)?;
        let mut made = CreatedFiles::default();
        let door = listener::open(&settings.watch, &mut made)?;
        Ok(Self {
            settings,
            server,
            door,
            made,
            config,
            warnings,
            lock,
            tell: Box::new(|_| {}),
            ready: Box::new(|| {}),
        })
    }

    /// Returns the counters of the listeners, which stay readable while the service runs.
    #[must_use]
    pub fn served(&self) -> Arc<ServerCounters> {
        self.server.served()
    }

    /// Returns the address of the TCP listener, if there is one.
    #[must_use]
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        self.server.tcp_address()
    }

    /// Returns the warnings about the configuration: values that cannot be used, and names that do not fit
    /// this host. Preloaded files are read only when the service runs.
    pub fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Returns the destination of log lines that `log_file` names, if it names one.
    #[must_use]
    pub fn log_file(&self) -> Option<&Logging> {
        self.config.options.log_file.as_ref()
    }

    /// Sets the receiver of log lines while the service runs: warnings that are new since
    /// [`Service::warnings`], all of them again after the files changed, and what `log_level` enables. It
    /// must not block.
    #[must_use]
    pub fn telling(mut self, tell: LogSink) -> Self {
        self.tell = tell;
        self
    }

    /// Sets what is called once it is known that the service runs: its endpoints are served, or some of them.
    #[must_use]
    pub fn when_ready(mut self, ready: impl FnOnce() + Send + 'static) -> Self {
        self.ready = Box::new(ready);
        self
    }

    /// Runs until `stop` is true or its sender is gone, in a runtime of its own; then removes the files it
    /// made.
    ///
    /// # Errors
    /// [`ServiceError`], when a listener, the carrier or the runtime fails, or none of the endpoints that are
    /// to be served can be.
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
            config: _,
            warnings,
            lock,
            tell,
            ready,
        } = self;
        let (post, messages) = mpsc::unbounded_channel();
        let files = Files::new(settings.folder, settings.interfaces);
        // Start the watch first, so that no change after the reading is missed.
        let (watching, config) = files.watched();
        let host = HostWatch::new(Sources::of_system(config.entries.clone()))?;
        let found = host.found().clone();
        let (renamed, renames) = watch::channel(config.entries.clone());
        let key = settings.key.as_ref().map(Key::of_job);
        let log = Log::new(tell, warnings);
        let state = State::new(config, key, found, server.served(), log)?;
        state.must_serve_any()?;
        ready();
        spawn_local(watchers::host(host, renames, state.look(), post.clone()));
        spawn_local(watchers::files(files, watching, renamed, post.clone()));
        let door = UnixListener::from_std(door).map_err(ServiceError::Runtime)?;
        spawn_local(listener::serve(door, post.clone()));
        let mut serving = spawn_local(server.run(Handle(post), stop.clone()));
        let mut running = pin!(run(state, messages, stop));
        // Both end when `stop` is set; when one ends by itself, the other is stopped.
        let ended = select! {
            biased;
            run = &mut running => match run {
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
                Ok(()) => running.await,
                error => error,
            },
        };
        // Release the lock last: a process that waits for it finds no other file of this service.
        drop(lock);
        ended
    }
}

/// Returns the warnings as lines, and one with the number left out.
fn lines(all: &[&Warnings]) -> Vec<String> {
    let each = all.iter().flat_map(|warnings| warnings.iter());
    let mut lines: Vec<String> = each.map(ToString::to_string).collect();
    let more: u64 = all.iter().map(|warnings| warnings.more()).sum();
    if more > 0 {
        lines.push(format!(
            "and {more} more warnings; fix the first ones and check again"
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

/// Returns the listeners that the configuration and the settings call for.
fn serve_settings(settings: &Settings, config: &ServiceConfig) -> serve::Settings {
    let options = &config.options;
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
        // As in the original, a TCP mode has no Unix socket; TCP that the settings request comes in addition.
        unix: by_mode.is_none(),
        tcp: settings.tcp.or(by_mode),
        librdmacm: !options.acme_plus_kernel_only,
        ..serve::Settings::default()
    }
}
