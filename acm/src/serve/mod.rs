//! The service's doors: clients come in over a Unix socket or TCP, ask, and are answered.
//!
//! ```text
//!   client ──bytes──▶ guest: Pieces ─▶ question ─┬─▶ Backend::ask(question, reply)
//!                       ▲                        │ refused: answered at once, or the client is left
//!   client ◀──bytes── guest ◀─── answers in any order, by tid ─── Reply
//! ```
//!
//! One thread, no thread per client. Many questions of many clients are open at once, and many of one client: it may
//! send one after another without waiting, and is answered in the order in which the answers are known. Whoever only
//! asks one at a time, as the original clients do, notices nothing of that.
//!
//! Everything that a client can cost has a bound ([`Limits`]), and whatever ends or refuses it is counted by its reason
//! ([`Served`]).
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

use crate::ask::Question;

pub use activation::inherited;
pub use counters::{Count, Served};
pub use error::{Holder, SOCKET_MAX, ServeError};
pub use reply::Reply;
pub use settings::{Limits, Places, Settings, TCP_PORT, Tcp};

use connection::attend;
pub(crate) use files::{Made, socket};
use listener::{Door, Open};

/// How long the doors stay shut when the system has no descriptor for another client.
const NO_ROOM: Duration = Duration::from_millis(50);
/// Let in before those who are in are heard again.
const ACCEPT_MAX: u32 = 16;

/// Who knows the answers.
pub trait Backend {
    /// Takes a question. It must not wait: `reply` may be used now, or later, from any thread.
    fn ask(&self, question: Question, reply: Reply);
}

impl<F: Fn(Question, Reply)> Backend for F {
    fn ask(&self, question: Question, reply: Reply) {
        self(question, reply);
    }
}

/// A service that has its sockets, and is not running yet.
#[derive(Debug)]
pub struct Server {
    doors: Vec<Door>,
    /// Removed when the service ends.
    made: Made,
    limits: Limits,
    served: Arc<Served>,
}

/// What all guests share.
struct House<B> {
    backend: B,
    limits: Limits,
    served: Arc<Served>,
}

impl Server {
    /// Opens what the settings say; `given` are sockets that somebody else opened for it ([`inherited`]). A given Unix
    /// or TCP socket takes the place of that which it would open itself; the files of a given Unix socket, and the link
    /// to it, belong to whoever opened it.
    ///
    /// As many descriptors as the system allows are made usable, since every client needs one.
    ///
    /// # Errors
    /// [`ServeError`]. What was made by then is removed again.
    pub fn open(settings: &Settings, given: Vec<OwnedFd>) -> Result<Self, ServeError> {
        raise_descriptors();
        let mut made = Made::default();
        let doors = listener::open_all(settings, given, &mut made)?;
        if doors.is_empty() {
            return Err(ServeError::NoDoor);
        }
        Ok(Self {
            doors,
            made,
            limits: settings.limits.clone(),
            served: Arc::default(),
        })
    }

    /// What is counted, also while it runs.
    #[must_use]
    pub fn served(&self) -> Arc<Served> {
        Arc::clone(&self.served)
    }

    /// Where it listens for TCP.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.doors.iter().find_map(Door::tcp_address)
    }

    /// Serves until `stop` says so, or its sender is gone; then all clients are left, and files are removed that are
    /// still its own. Runs in any tokio runtime with I/O and time.
    ///
    /// # Errors
    /// When the runtime cannot take the sockets.
    pub async fn run<B>(self, backend: B, mut stop: watch::Receiver<bool>) -> Result<(), ServeError>
    where
        B: Backend + 'static,
    {
        let Self {
            doors,
            made,
            limits,
            served,
        } = self;
        let house = Rc::new(House {
            backend,
            limits,
            served,
        });
        let tasks = LocalSet::new();
        let ends = tasks
            .run_until(async move {
                for door in doors {
                    spawn_local(receive(door.register()?, Rc::clone(&house)));
                }
                // A sender that is gone is the same as one that says so.
                let _ = stop.wait_for(|stop| *stop).await;
                Ok(())
            })
            .await;
        // The files first: who comes now finds nobody, and not a door that is shut in its face.
        drop(made);
        drop(tasks);
        ends
    }
}

/// Lets clients in, at most so many at once.
async fn receive<B: Backend + 'static>(door: Open, house: Rc<House<B>>) {
    for nth in 1u32.. {
        match door.accept().await {
            Ok(_) if house.served.present() >= house.limits.clients as u64 => {
                house.served.add(Count::Crowded);
            }
            Ok(line) => {
                let present = counters::Present::enter(&house.served);
                let house = Rc::clone(&house);
                spawn_local(async move {
                    attend(&line, &house.backend, &house.limits, &house.served).await;
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

/// Every client is a descriptor, and the usual limit is 1,024.
fn raise_descriptors() {
    let limit = Limit::of(Resource::RLIMIT_NOFILE);
    if limit.soft != limit.hard {
        let raised = Limit {
            soft: limit.hard,
            ..limit
        };
        // Where it is not allowed, there are fewer clients: `NotAccepted` counts those who wait.
        let _ = raised.set(Resource::RLIMIT_NOFILE);
    }
}
