//! An agent's requests to the device: one at a time, from its connections in turn; then clean-up after
//! processes that have left; then what could not be removed before.

use std::time::{Duration, Instant};

use super::connection::Connection;
use super::{Agent, AgentEvent};
use crate::errno::{Errno, Fault};
use crate::flow_steering::wire::{Message, Refusal};
use crate::flow_steering::{Request, Trouble};
use crate::pf::Pf;
use crate::pf_watchdog::Change;

/// Time after which a removal that failed is tried again.
const LATER: Duration = Duration::from_secs(1);
/// The most requests that are kept to try again.
const ORPHANS_MOST: usize = 1024;

/// The request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) function: u32,
    request: Request,
    pub(super) requester: Requester,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// The process that has the function.
    Connection,
    /// Clean-up after a process that has left.
    Left,
    /// Clean-up of something that could not be removed before.
    Orphan,
}

impl Agent {
    /// The next request for the device: from the connections in turn, after processes that have left, then
    /// what could not be removed before.
    pub(super) fn next(&self) -> Option<(Job, usize)> {
        let count = self.connections.len();
        for turn in 0..count {
            let at = (self.at + turn) % count;
            let connection = &self.connections[at];
            let Some(function) = connection.function() else {
                continue;
            };
            let of = |request, requester| {
                let job = Job {
                    function,
                    request,
                    requester,
                };
                Some((job, at))
            };
            if !connection.is_over {
                if let Some((_, request)) = connection.asked {
                    return of(request, Requester::Connection);
                }
            } else if let Some(pair) = connection.pairs.last() {
                return of(Request::Disable(*pair), Requester::Left);
            } else if let Some(filter) = connection.filters.last() {
                return of(Request::Unsteer(*filter), Requester::Left);
            }
        }
        let &(function, request) = self.orphans.front().filter(|_| Instant::now() >= self.later)?;
        let job = Job {
            function,
            request,
            requester: Requester::Orphan,
        };
        Some((job, self.at))
    }

    /// Ends what is done, and begins what is next.
    pub(super) fn work(&mut self) {
        if let Some(change) = self.watchdog.turn(&mut self.ended) {
            self.told.push(match change {
                Change::Slow(why) => AgentEvent::Slow(why),
                Change::Lost(why) => AgentEvent::Lost(why),
                Change::Back => AgentEvent::Back,
            });
        }
        if !self.watchdog.is_here() {
            return self.give_up();
        }
        if let Some(ended) = self.ended.take()
            && let Some(job) = self.job.take()
        {
            self.done(job, ended);
        }
        while let Some((function, id)) = self.watchdog.pf().and_then(Pf::orphan) {
            self.leave_behind(function, Request::Unsteer(id));
        }
        if let Some(gone) = self.watchdog.pf().and_then(Pf::gone)
            && !self.job.is_some_and(|job| job.requester == Requester::Orphan)
        {
            self.orphans
                .retain(|orphan| *orphan != (gone.0, Request::Unsteer(gone.1)));
        }
        if self.job.is_some() {
            return;
        }
        let Some((job, at)) = self.next() else { return };
        let Some(pf) = self.watchdog.pf().filter(|pf| pf.is_idle()) else {
            return;
        };
        self.at = at + 1;
        match pf.begin(job.function, job.request) {
            Ok(()) => self.job = Some(job),
            Err(trouble) => self.done(job, Err(trouble)),
        }
    }

    /// The device takes no requests, and all that was installed is lost.
    fn give_up(&mut self) {
        (self.job, self.ended) = (None, None);
        self.orphans.clear();
        for connection in &mut self.connections {
            connection.filters.clear();
            connection.pairs.clear();
            if let Some((number, _)) = connection.asked {
                connection.answer(Message::Refused(number, Refusal::Silent));
            }
        }
    }

    fn line_of(&mut self, function: u32) -> Option<&mut Connection> {
        self.connections
            .iter_mut()
            .find(|connection| connection.function() == Some(function))
    }

    fn done(&mut self, job: Job, ended: Result<u64, Trouble>) {
        let Job {
            function,
            request,
            requester,
        } = job;
        if let Err(Trouble::Fault(fault)) = &ended
            && (fault.is_gone() || fault.errno().is_some_and(|errno| errno == Errno::STATE))
        {
            self.watchdog.doubt();
        }
        if let (Request::Steer(..), Ok(id)) = (request, &ended) {
            // A number that was given out just now is not that of an old filter any more.
            let old = Request::Unsteer(*id);
            self.orphans.retain(|(_, request)| *request != old);
        }
        match (requester, self.line_of(function)) {
            (Requester::Connection, Some(connection)) => {
                note(connection, request, &ended);
                if let Some((number, _)) = connection.asked {
                    connection.answer(match ended {
                        Ok(value) => Message::Done(number, value),
                        Err(trouble) => Message::Refused(number, why(&trouble)),
                    });
                }
            }
            (Requester::Left, Some(connection)) => {
                match request {
                    Request::Unsteer(id) => connection.filters.retain(|filter| *filter != id),
                    Request::Disable(pair) => connection.pairs.retain(|other| *other != pair),
                    _ => {}
                }
                if is_still_there(&ended) {
                    self.leave_behind(function, request);
                }
            }
            _ => {
                self.orphans.pop_front();
                if is_still_there(&ended) {
                    self.leave_behind(function, request);
                    self.later = Instant::now() + LATER;
                }
            }
        }
    }

    /// Keeps a filter that could not be removed, to try again later. A queue pair that stays on without
    /// filters receives nothing, and the next process that has the function turns it on anyway.
    fn leave_behind(&mut self, function: u32, request: Request) {
        if !matches!(request, Request::Unsteer(_)) {
            return;
        }
        if self.orphans.len() == ORPHANS_MOST {
            self.orphans.pop_front();
        }
        self.orphans.push_back((function, request));
    }
}

/// Notes what a process has by now. A queue pair whose request got no answer may be on.
fn note(connection: &mut Connection, request: Request, ended: &Result<u64, Trouble>) {
    let is_silent = matches!(ended, Err(Trouble::Fault(Fault::TimedOut(_))));
    match (request, ended) {
        (Request::Steer(..), Ok(id)) => connection.filters.push(*id),
        // The rail takes the device's refusal for its end, too.
        (Request::Unsteer(id), ended) if !is_still_there(ended) => {
            connection.filters.retain(|filter| *filter != id);
        }
        (Request::Enable(pair), _) if (ended.is_ok() || is_silent) && !connection.pairs.contains(&pair) => {
            connection.pairs.push(pair);
        }
        (Request::Disable(pair), Ok(_)) => connection.pairs.retain(|other| *other != pair),
        _ => {}
    }
}

/// Whether what was to be taken away may still be there: the device did not answer, or was too busy to.
fn is_still_there(ended: &Result<u64, Trouble>) -> bool {
    match ended {
        Ok(_) => false,
        Err(trouble) => trouble
            .errno()
            .is_none_or(|errno| [Errno::BUSY, Errno::IN_PROGRESS].contains(&errno)),
    }
}

fn why(trouble: &Trouble) -> Refusal {
    match trouble.errno() {
        Some(errno) => Refusal::Device(errno),
        None => Refusal::Silent,
    }
}
