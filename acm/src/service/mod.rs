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
//! | `peers` | where other services were heard from |
//! | `written` | files, and what follows from them |
//! | `door`, `view` | what is shown of it |

mod door;
mod heart;
mod peers;
mod state;
mod view;
mod written;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};

use crate::carrier::{CarrierError, Key};
use crate::config::{ServerMode, Watch};
use crate::host::{HostError, HostWatch, Sources};
use crate::serve::{self, Made, Places, ServeError, Served, Server, Tcp};
use heart::{Mail, Slot, beat};
use state::State;
use written::Written;

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
    #[error("the system lets nothing be waited for ({0}); check `ulimit -n`")]
    Runtime(#[source] io::Error),
}

/// A service that has its sockets, and is not running yet.
pub struct Service {
    settings: Settings,
    server: Server,
    door: std::os::unix::net::UnixListener,
    made: Made,
    written: Written,
}

impl Service {
    /// Reads the configuration and opens the doors; `given` are sockets that somebody else opened for it
    /// ([`serve::inherited`]).
    ///
    /// # Errors
    /// [`ServiceError`]. What was made by then is removed again.
    pub fn open(settings: Settings, given: Vec<OwnedFd>) -> Result<Self, ServiceError> {
        let written = Written::read(&settings.folder).with_interfaces(&settings.interfaces);
        let server = Server::open(&doors(&settings, &written), given)?;
        let mut made = Made::default();
        let door = door::open(&settings.watch, &mut made)?;
        Ok(Self {
            settings,
            server,
            door,
            made,
            written,
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

    /// What of the configuration could not be used as it stands.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.written.warnings.iter().map(ToString::to_string)
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
            written,
        } = self;
        let (post, mail) = mpsc::unbounded_channel();
        let host = HostWatch::new(Sources::of_system(written.entries.clone()))?;
        let endpoints = host.found().endpoints.clone();
        let (renamed, renames) = watch::channel(written.entries.clone());
        let key = settings.key.as_ref().map(Key::of_job);
        let files = written.files(&settings.folder);
        let state = State::new(written, key, endpoints, server.served())?;
        spawn_local(follow_host(host, renames, post.clone()));
        spawn_local(follow_files(settings, files, renamed, post.clone()));
        let door = UnixListener::from_std(door).map_err(ServiceError::Runtime)?;
        spawn_local(door::serve(door, post.clone()));
        let serving = spawn_local(server.run(Slot(post), stop.clone()));
        let ended = beat(state, mail, stop).await;
        drop(made);
        let served = serving.await;
        ended?;
        // What panics there is a fault that is shown where it happens.
        served.unwrap_or(Ok(())).map_err(ServiceError::from)
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

/// Tells what this host has whenever it is not what it was.
async fn follow_host(
    host: HostWatch,
    mut renames: watch::Receiver<Vec<crate::config::AddressEntry>>,
    post: mpsc::UnboundedSender<Mail>,
) {
    let Ok(mut host) = host.registered() else { return };
    loop {
        let renamed = {
            let mut change = Box::pin(HostWatch::changed(&mut host));
            let mut rename = Box::pin(renames.changed());
            match crate::line::race(&mut change, &mut rename).await {
                crate::line::First::One(Ok(())) => false,
                crate::line::First::Other(Ok(())) => true,
                _ => return,
            }
        };
        if renamed {
            let entries = renames.borrow_and_update().clone();
            host.get_mut().rename(Sources::of_system(entries));
            if !matches!(host.get_mut().look(), Ok(Some(_))) {
                continue;
            }
        }
        if post
            .send(Mail::Host(host.get_ref().found().endpoints.clone()))
            .is_err()
        {
            return;
        }
    }
}

/// Reads the configuration again whenever its files change.
async fn follow_files(
    settings: Settings,
    mut files: Vec<PathBuf>,
    renamed: watch::Sender<Vec<crate::config::AddressEntry>>,
    post: mpsc::UnboundedSender<Mail>,
) {
    loop {
        let Ok(mut watching) = Watch::new(&files).and_then(Watch::registered) else {
            return;
        };
        loop {
            if Watch::changed(&mut watching).await.is_err() {
                return;
            }
            let written = Written::read(&settings.folder).with_interfaces(&settings.interfaces);
            let now = written.files(&settings.folder);
            renamed.send_if_modified(|entries| {
                let differs = *entries != written.entries;
                entries.clone_from(&written.entries);
                differs
            });
            if post.send(Mail::Written(Box::new(written))).is_err() {
                return;
            }
            if now != files {
                files = now;
                break;
            }
        }
    }
}
