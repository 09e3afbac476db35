//! The actor: one task owns the state and handles client queries, network messages, changes and timers in
//! turn.

use std::time::Duration;

use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::ServiceError;
use super::config::ServiceConfig;
use super::snapshot::View;
use super::state::State;
use crate::address::Address;
use crate::host::HostInventory;
use crate::query::Question;
use crate::serve::{Backend, Reply};

/// A message to the actor.
pub(super) enum Message {
    /// A client's query.
    Query(Question, Reply),
    /// The interfaces of this host have changed.
    Host(Box<HostInventory>),
    /// The configuration that was read, and whether its files are known to have changed.
    Config(Box<ServiceConfig>, bool),
    /// A request for the state as JSON.
    View(oneshot::Sender<String>),
    /// A report that the path to an address does not work.
    Failed(Address),
    /// A failure outside the state, to be shown.
    Error(String),
}

/// Maximum number of messages handled before anything else is checked.
const BATCH: usize = 64;
/// How often queries of clients that have gone are dropped.
const SWEEP: Duration = Duration::from_millis(250);
/// Maximum time between two checks when nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// Sends queries to the actor.
pub(super) struct Handle(pub(super) mpsc::UnboundedSender<Message>);

impl Backend for Handle {
    /// The listener bounds the number of queries, so this channel needs no bound.
    fn query(&self, question: Question, reply: Reply) {
        // The actor has ended; the dropped reply reports that to the client.
        let _ = self.0.send(Message::Query(question, reply));
    }
}

/// Runs the actor until `stop` is true or its sender is gone.
pub(super) async fn run(
    mut state: State,
    messages: mpsc::UnboundedReceiver<Message>,
    stop: watch::Receiver<bool>,
) -> Result<(), ServiceError> {
    let ended = act(&mut state, messages, stop).await;
    state.end();
    ended
}

async fn act(
    state: &mut State,
    mut messages: mpsc::UnboundedReceiver<Message>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ServiceError> {
    let mut sweep = Instant::now() + SWEEP;
    loop {
        let more = state.turn();
        if Instant::now() >= sweep {
            state.sweep();
            sweep = Instant::now() + SWEEP;
        }
        if more {
            yield_now().await;
        }
        let until = if more { Instant::now() } else { until(state, sweep) };
        select! {
            biased;
            message = messages.recv() => {
                let Some(message) = message else { return Ok(()) };
                read(state, message);
                for _ in 1..BATCH {
                    let Ok(message) = messages.try_recv() else { break };
                    read(state, message);
                }
            }
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            // Clear readiness before reading: whatever arrives later sets it again.
            readable = state.carrier().readable_mut() => {
                readable.map_err(ServiceError::Runtime)?.clear_ready();
            }
            () = sleep_until(until) => {}
        }
    }
}

/// Returns when the actor must run next at the latest.
fn until(state: &State, sweep: Instant) -> Instant {
    let now = Instant::now();
    let idle = if state.is_in_use() { sweep } else { now + IDLE };
    match state.next_deadline() {
        Some(time) => idle.min(now + time.since(state.now())),
        None => idle,
    }
}

fn read(state: &mut State, message: Message) {
    match message {
        Message::Query(question, reply) => state.query(question, reply),
        Message::Host(found) => state.host(*found),
        Message::Config(config, changed) => state.configure(*config, changed),
        Message::View(reply) => _ = reply.send(View::of(state).line()),
        Message::Failed(address) => state.failed(&address),
        Message::Error(what) => state.report_error(what),
    }
}
