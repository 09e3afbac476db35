//! The one task that owns the state: clients' questions, what comes from other services, changes and times, in turn.

use std::time::Duration;

use tokio::select;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::ServiceError;
use super::config::Written;
use super::snapshot::View;
use super::state::State;
use crate::address::Address;
use crate::ask::Question;
use crate::host::Found;
use crate::serve::{Backend, Reply};

/// What the task is told.
pub(super) enum Mail {
    /// A client asks.
    Ask(Question, Reply),
    /// What this host has is not what it was.
    Host(Box<Found>),
    /// What is written; whether files have surely changed.
    Written(Box<Written>, bool),
    /// Somebody wants to see it.
    View(oneshot::Sender<String>),
    /// Somebody could not use a path.
    Failed(Address),
    /// Something around the state does not work, and is shown.
    Trouble(String),
}

/// Letters that are read before anything else is looked at.
const LETTERS: usize = 64;
/// How often questions are looked for whose client is gone.
const SWEEP: Duration = Duration::from_millis(250);
/// With nothing to do, something is looked at all the same so often.
const IDLE: Duration = Duration::from_secs(60);

/// Puts questions into the mail.
pub(super) struct Slot(pub(super) mpsc::UnboundedSender<Mail>);

impl Backend for Slot {
    /// How many there can be is limited where clients are let in.
    fn ask(&self, question: Question, reply: Reply) {
        // Nobody reads any more: the reply says so when it is dropped.
        let _ = self.0.send(Mail::Ask(question, reply));
    }
}

/// Beats until `stop` says so.
pub(super) async fn beat(
    mut state: State,
    mut mail: mpsc::UnboundedReceiver<Mail>,
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
        let until = if more {
            Instant::now()
        } else {
            until(&state, sweep)
        };
        select! {
            biased;
            letter = mail.recv() => {
                let Some(letter) = letter else { return Ok(()) };
                read(&mut state, letter);
                for _ in 1..LETTERS {
                    let Ok(letter) = mail.try_recv() else { break };
                    read(&mut state, letter);
                }
            }
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            // Before it is looked at: what comes after that makes it ready again.
            readable = state.carrier().readable_mut() => {
                readable.map_err(ServiceError::Runtime)?.clear_ready();
            }
            () = sleep_until(until) => {}
        }
    }
}

/// When there is something to do at the latest.
fn until(state: &State, sweep: Instant) -> Instant {
    let now = Instant::now();
    let idle = if state.is_asked() { sweep } else { now + IDLE };
    match state.next_deadline() {
        Some(time) => idle.min(now + time.since(state.now())),
        None => idle,
    }
}

fn read(state: &mut State, letter: Mail) {
    match letter {
        Mail::Ask(question, reply) => state.ask(question, reply),
        Mail::Host(found) => state.host(*found),
        Mail::Written(written, changed) => state.configure(*written, changed),
        Mail::View(tell) => _ = tell.send(View::of(state).line()),
        Mail::Failed(address) => state.failed(&address),
        Mail::Trouble(what) => state.say(what),
    }
}
