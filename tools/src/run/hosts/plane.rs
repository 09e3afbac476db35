//! The control plane of a launched job: the launcher is rank 0, its daemons are the others.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use doorbell::bootstrap::Key;
use doorbell::control_plane::{Means, RAIL_PURPOSE};
use doorbell::oob::config::Config;
use doorbell::oob::contact::Contact;
use doorbell::oob::event::Status;
use doorbell::oob::lines::tcp::{Chosen, Families, Pattern, Settings};
use doorbell::oob::name::{Epoch, Name};
use doorbell::oob::plane::{Busy, Inbox, Oob, Sent};
use doorbell::oob::routed::Tree;
use doorbell::oob::{JobKey, OobError};

use super::control;
use super::protocol::Birth;
use super::shell::Shell;
use crate::error::ToolError;

/// Time limit of the clean-up at the end.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Interval between two checks for daemons that have ended.
const LOOK: Duration = Duration::from_millis(10);

/// Starts it; returns its contact too.
pub(super) fn start(birth: &Birth) -> Result<(Oob, Contact), ToolError> {
    let ranks = birth.hosts.len() as u32 + 1;
    let name = Name::new(birth.job, birth.rank);
    let pattern = |texts: &[String]| {
        texts
            .iter()
            .map(|text| text.parse())
            .collect::<Result<Vec<Pattern>, OobError>>()
    };
    let (include, exclude) = &birth.nics;
    let settings = Settings {
        nics: Chosen::new(pattern(include)?, pattern(exclude)?, Families::Both)?,
        ports: birth.ports.parse()?,
        ..Settings::default()
    };
    let key = JobKey::from_bytes(birth.key);
    let rail_key = Key::of_bytes(*key.derive(RAIL_PURPOSE).expose());
    let mut chosen = doorbell::Config::default();
    for (name, value) in &birth.control {
        chosen.set(name, value)?;
    }
    let core = control::core(&chosen).map(|core| core as usize);
    let means = Means::of(&chosen, settings, &rail_key, core);
    let mut config = Config::new(name, Epoch(1), ranks, means.transports);
    config.radix = birth.radix;
    let oob = Oob::start(config, means.carried, Some(key), means.runner)?;
    let contact = done(oob.contact())?.wait(LIMIT).flatten();
    let contact = contact
        .ok_or_else(|| ToolError::Stopped("the control plane has ended at its beginning".to_owned()))?;
    Ok((oob, contact))
}

/// Returns the children of a daemon, or of the launcher.
pub(super) fn children(birth: &Birth, rank: u32) -> impl Iterator<Item = u32> + use<> {
    Tree::new(birth.hosts.len() as u32 + 1, birth.radix).children(rank)
}

/// Returns the host of this daemon.
pub(super) fn host(birth: &Birth) -> &str {
    let at = (birth.rank as usize).checked_sub(1);
    at.and_then(|at| birth.hosts.get(at)).map_or("?", String::as_str)
}

pub(super) fn done<T>(asked: Result<T, Busy>) -> Result<T, ToolError> {
    asked.map_err(|busy| ToolError::Stopped(busy.to_string()))
}

pub(super) fn is_delivered(sent: &Sent) -> bool {
    matches!(sent, Ok(Status::Delivered))
}

/// Waits for daemons that are ending.
pub(super) fn await_end(shells: &mut [Shell], limit: Duration) {
    let until = Instant::now() + limit;
    while shells.iter_mut().any(|shell| shell.ended().is_none()) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Closes the pipes of daemons, which ends them, and kills those that remain.
pub(super) fn wait_for(shells: &mut [Shell], limit: Duration) {
    shells.iter_mut().for_each(Shell::hang_up);
    await_end(shells, limit);
    for shell in shells {
        if shell.ended().is_none() {
            shell.kill();
        }
    }
}

/// Returns the next item of an inbox, if there is one; otherwise the task is woken by the next one.
pub(super) fn next<T>(inbox: &Inbox<T>, cx: &mut Context<'_>) -> Option<T> {
    match pin!(inbox.next()).poll(cx) {
        Poll::Ready(next) => next,
        Poll::Pending => None,
    }
}
