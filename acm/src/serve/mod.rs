//! The listeners of the service: clients connect over a Unix socket or TCP, send queries, and get answers.
//!
//! ```text
//!   client ──bytes──▶ Decoder ─▶ read_question ──┬─▶ Backend::query(question, reply)
//!                       ▲                        │ rejected: answered at once, or disconnected
//!   client ◀──bytes── writer ◀── answers in any order, by tid ─── Reply
//! ```
//!
//! One thread serves all clients. Each may have many queries open: it may send one after another without
//! waiting, and gets the answers in the order in which they are known. Clients that send one query at a time,
//! like the original ones, see no difference.
//!
//! Everything that a client can cost is bounded ([`Limits`]), and every rejection and disconnection is
//! counted by its reason ([`ServerCounters`]).
//!
//! reference: acm, section 2 (sockets and their files), section 3 (framing).

mod activation;
mod connection;
mod counters;
mod error;
mod files;
mod listener;
mod reply;
mod settings;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::limits::{Limit, Resource};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local, yield_now};

use crate::query::Question;

pub use activation::inherited;
pub use counters::{Count, ServerCounters};
pub use error::{Holder, SOCKET_MAX, ServeError};
pub use reply::Reply;
pub use settings::{Limits, Settings, SocketPaths, TCP_PORT, Tcp};

use connection::serve_client;
pub(crate) use files::{CreatedFiles, socket};
use listener::{Listener, Registered};

/// Pause of accepting when no descriptor is left for another client.
const NO_ROOM: Duration = Duration::from_millis(50);
/// Maximum connections accepted before the others are served.
const ACCEPT_MAX: u32 = 16;

/// Answers the queries.
pub trait Backend {
    /// Takes a query. It must not block: `reply` may be used now or later, from any thread.
    fn query(&self, question: Question, reply: Reply);
}

impl<F: Fn(Question, Reply)> Backend for F {
    fn query(&self, question: Question, reply: Reply) {
        self(question, reply);
    }
}

/// A server with open sockets that is not running yet.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    /// The files to be removed when the service ends.
    made: CreatedFiles,
    limits: Limits,
    served: Arc<ServerCounters>,
}

/// What all connections share.
struct Shared<B> {
    backend: B,
    limits: Limits,
    served: Arc<ServerCounters>,
}

impl Server {
    /// Opens the listeners that the settings call for; `given` are sockets that were opened for it
    /// ([`inherited`]). A given Unix or TCP socket replaces the one that it would open itself; the files of a
    /// given Unix socket belong to the process that opened it.
    ///
    /// Raises the limit of open descriptors to its maximum, since every client needs one.
    ///
    /// # Errors
    /// [`ServeError`]. Files created by then are removed again.
    pub fn open(settings: &Settings, given: Vec<OwnedFd>) -> Result<Self, ServeError> {
        raise_descriptors();
        let mut made = CreatedFiles::default();
        let listeners = listener::open_all(settings, given, &mut made)?;
        if listeners.is_empty() {
            return Err(ServeError::NoListener);
        }
        Ok(Self {
            listeners,
            made,
            limits: settings.limits.clone(),
            served: Arc::default(),
        })
    }

    /// Returns the counters, which stay readable while the server runs.
    #[must_use]
    pub fn served(&self) -> Arc<ServerCounters> {
        Arc::clone(&self.served)
    }

    /// Returns the address of the TCP listener, if there is one.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(Listener::tcp_address)
    }

    /// Serves until `stop` is true or its sender is gone; then disconnects all clients and removes its files.
    /// Runs in any tokio runtime with I/O and time.
    ///
    /// # Errors
    /// When the runtime cannot register the sockets.
    pub async fn run<B>(self, backend: B, mut stop: watch::Receiver<bool>) -> Result<(), ServeError>
    where
        B: Backend + 'static,
    {
        let Self {
            listeners,
            made,
            limits,
            served,
        } = self;
        let house = Rc::new(Shared {
            backend,
            limits,
            served,
        });
        let tasks = LocalSet::new();
        let ends = tasks
            .run_until(async move {
                for listener in listeners {
                    spawn_local(receive(listener.register()?, Rc::clone(&house)));
                }
                // A sender that is gone means the same as `true`.
                let _ = stop.wait_for(|stop| *stop).await;
                Ok(())
            })
            .await;
        // Remove the files first, so that new clients find no service instead of a closed one.
        drop(made);
        drop(tasks);
        ends
    }
}

/// Accepts clients, up to the limit.
async fn receive<B: Backend + 'static>(listener: Registered, house: Rc<Shared<B>>) {
    for nth in 1u32.. {
        match listener.accept().await {
            Ok(_) if house.served.present() >= house.limits.clients as u64 => {
                house.served.add(Count::Crowded);
            }
            Ok(line) => {
                let present = counters::Present::enter(&house.served);
                let house = Rc::clone(&house);
                spawn_local(async move {
                    serve_client(&line, &house.backend, &house.limits, &house.served).await;
                    drop(present);
                });
            }
            Err(_) => {
                house.served.add(Count::NotAccepted);
                tokio::time::sleep(NO_ROOM).await;
            }
        }
        if nth.is_multiple_of(ACCEPT_MAX) {
            yield_now().await;
        }
    }
}

/// Every client takes a descriptor, and the usual limit is 1,024.
fn raise_descriptors() {
    let limit = Limit::of(Resource::RLIMIT_NOFILE);
    if limit.soft != limit.hard {
        let raised = Limit {
            soft: limit.hard,
            ..limit
        };
        // If it fails, fewer clients fit: `NotAccepted` counts those that wait.
        let _ = raised.set(Resource::RLIMIT_NOFILE);
    }
}
