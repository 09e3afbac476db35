//! The polls of a conduit, and its housekeeping (gasnet.md section 5).
//!
//! A poll shows arrivals to the interface and then looks at the queues in this order: SYS (all of it), SAFE
//! (up to a limit, for each event frees resources and needs none), AM (up to a limit, and only while the
//! resources of a reply of any kind are in hand). So a process that is short of everything still takes what
//! gives it something back.

use std::os::fd::BorrowedFd;

use doorbell_fabric::ni::{EqGet, EqHandle, Event, Ni, NiError};
use doorbell_fabric::time::Time;

use crate::conduit::Conduit;
use crate::error::{AmError, Fault, Stall};
use crate::objects::Queues;
use crate::resources::Held;

/// Arrivals that one poll shows to the interface, of each rail.
const ARRIVALS: usize = 32;
/// The most arrivals that one poll takes from the rails: an interface has up to 64.
pub(crate) const ARRIVALS_MOST: usize = ARRIVALS * 64;

impl<N: Ni> Conduit<N> {
    /// Shows arrivals, handles what they are, and sends what has waited; returns the work done. Runs
    /// handlers. Reads no clock.
    #[inline]
    pub fn poll(&mut self) -> usize {
        let (mut work, requests) = self.poll_queues(true);
        if requests != 0 {
            work += self.poll_am(requests);
        }
        self.flush();
        work
    }

    /// Polls without handling requests: no request handler runs.
    #[inline]
    pub fn poll_safely(&mut self) -> usize {
        self.poll_queues(false).0
    }

    /// Moves data, and runs no handler, for a thread beside the one that handlers run on: shows arrivals to
    /// the interface, which places what peers put and get and answers them, sends what has waited, and does
    /// barriers, the exit and credits that are taken back. Requests, replies and the ends of own operations
    /// stay in their queues, for [`Self::poll`]. Returns the work done.
    ///
    /// Requests without credits have no bound: while one waits for its handler, arrivals stay with the rails.
    pub fn poll_data(&mut self) -> usize {
        self.flush();
        let Queues { sys, safe, am } = self.objects.queues;
        let [.., requests] = self.ni.eq_waiting([sys, safe, am]);
        let mut work = 0;
        if requests == 0 || self.settings.flow_control {
            work += self.ni.poll(ARRIVALS);
        }
        if !self.deferred.is_empty() {
            work += self.send_deferred();
        }
        work += self.poll_sys(self.ni.eq_waiting([sys, safe, am])[0]);
        if self.credits.is_searching() {
            self.revoke();
        }
        self.look_at_exit_flag();
        self.flush();
        work
    }

    /// Housekeeping that needs the time, and that runs no handler: [`Self::progress`] without losses, whose
    /// last messages are handled first.
    pub fn progress_data(&mut self, now: Time) -> usize {
        let mut work = self.ni.progress(now);
        self.look_at_basin();
        work += self.advance_exit(now);
        self.flush();
        work
    }

    /// The work done, and how many events the AM queue holds. A request handler runs with `requests` only.
    #[inline]
    fn poll_queues(&mut self, requests: bool) -> (usize, usize) {
        self.flush();
        let mut work = self.poll_interface(ARRIVALS, requests);
        if !self.deferred.is_empty() {
            work += self.send_deferred();
        }
        let Queues { sys, safe, am } = self.objects.queues;
        let [system, safe, requests] = self.ni.eq_waiting([sys, safe, am]);
        if system != 0 {
            work += self.poll_sys(system);
        }
        if safe != 0 {
            work += self.poll_safe(safe);
        }
        if self.credits.is_searching() {
            self.revoke();
        }
        self.look_at_exit_flag();
        (work, requests)
    }

    #[inline]
    fn look_at_exit_flag(&mut self) {
        if self.exit.flag.is_set() && self.exit.is_running() {
            self.exit.request(self.exit.flag.status());
        }
    }

    /// Checks up to `looks` times whether anything has arrived, for a caller that polls next; `false` when
    /// nothing was seen. Sends pending messages first. Events that a poll left in a queue count as arrived.
    #[inline]
    pub fn linger(&mut self, looks: u32) -> bool {
        self.flush();
        let Queues { sys, safe, am } = self.objects.queues;
        !self.deferred.is_empty()
            || self.credits.is_searching()
            || self.ni.eq_waiting([sys, safe, am]) != [0; 3]
            || self.ni.linger(looks)
    }

    /// Polls, and does what depends on the time; returns the work done. To be called repeatedly while
    /// waiting.
    ///
    /// # Errors
    /// [`AmError::Fault`].
    pub fn step(&mut self, now: Time) -> Result<usize, AmError> {
        let work = self.poll() + self.progress(now);
        self.health().map(|()| work)
    }

    /// Housekeeping that needs the time: links, losses, the exit, the catch basin. Every hundred polls or so
    /// is enough.
    pub fn progress(&mut self, now: Time) -> usize {
        let mut work = self.ni.progress(now);
        while let Some(lost) = self.ni.lost() {
            work += 1;
            if let Some(rank) = self.ranks.rank(lost.process) {
                self.lose(rank, lost.reason);
            }
        }
        self.look_at_basin();
        work += self.advance_exit(now);
        self.flush();
        work
    }

    fn look_at_basin(&mut self) {
        match self.ni.ct_get(self.objects.basin) {
            Ok(count) if count.success + count.failure > 0 => {
                self.stats.basin = count.success + count.failure;
                self.fail(Fault::CatchBasin);
            }
            Ok(_) => {}
            Err(error) => self.fail(Fault::Interface(error)),
        }
    }

    /// Sends what calls left pending because the interface had no room; returns whether nothing is pending
    /// any more. For the end: no handler runs, and arrivals stay in their queue.
    pub fn drain(&mut self, now: Time) -> bool {
        self.flush();
        if self.deferred.is_empty() {
            return true;
        }
        self.ni.poll(ARRIVALS);
        self.ni.progress(now);
        self.send_deferred();
        self.flush();
        self.deferred.is_empty()
    }

    /// Returns when [`Conduit::progress`] has something to do next, or `None`.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let exit = self.exit.deadline();
        self.ni.next_deadline().into_iter().chain(exit).min()
    }

    /// Sends pending messages. A poll does so too.
    #[inline]
    pub fn flush(&mut self) {
        if self.begun {
            self.begun = false;
            self.ni.flush();
        }
    }

    /// Prepares to sleep: every descriptor that becomes readable when there is work is shown to `each`.
    /// Whether there is work already: then do not sleep. To be called after a poll that found nothing;
    /// [`Self::disarm`] ends it.
    pub fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        let work = self.arm_data(each);
        // Events may have been posted since that poll, as by housekeeping: no descriptor shows them. Requests
        // that lack resources of a reply wait for an arrival that frees some. An interface that does not know
        // has none.
        let Queues { sys, safe, am } = self.objects.queues;
        let waiting = self.ni.eq_waiting([sys, safe, am]);
        let [system, safe, requests] = waiting.map(|events| events != 0 && events != usize::MAX);
        work || system || safe || (requests && self.hold())
    }

    /// Prepares a sleep between two [`Self::poll_data`]; otherwise as [`Self::arm`].
    pub fn arm_data(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        let work = self.ni.arm(each);
        work || self.begun || self.credits.is_searching()
    }

    /// Ends what [`Self::arm`] prepared.
    pub fn disarm(&mut self) {
        self.ni.disarm();
    }

    /// Polls for a wait: while waiting for tickets no requests are handled, since these need tickets
    /// themselves.
    pub(crate) fn wait_step(&mut self, stall: Stall, now: Time) -> Result<(), AmError> {
        match stall {
            Stall::Tickets | Stall::Temporary => {
                self.poll_safely();
                self.flush();
            }
            _ => {
                self.poll();
            }
        }
        self.progress(now);
        self.health()
    }

    #[inline]
    fn poll_safe(&mut self, events: usize) -> usize {
        let most = limit(self.settings.safe_limit).min(events);
        let mut work = 0;
        while work < most {
            match self.ni.eq_get(self.objects.queues.safe) {
                Ok(EqGet::Event(event)) => self.safe_event(&event),
                Ok(EqGet::Empty) => break,
                odd => match self.odd(odd, "SAFE") {
                    Some(event) => self.safe_event(&event),
                    None => break,
                },
            }
            work += 1;
        }
        work
    }

    #[inline]
    fn poll_am(&mut self, events: usize) -> usize {
        let most = limit(self.settings.am_limit).min(events);
        let mut work = 0;
        while work < most && self.hold() {
            match self.ni.eq_get(self.objects.queues.am) {
                Ok(EqGet::Event(event)) => self.am_event(&event),
                Ok(EqGet::Empty) => break,
                odd => match self.odd(odd, "AM") {
                    Some(event) => self.am_event(&event),
                    None => break,
                },
            }
            work += 1;
        }
        work
    }

    /// Takes what a reply of any kind needs, as far as it is there; whether all of it is in hand.
    #[inline]
    pub(crate) fn hold(&mut self) -> bool {
        self.held.complete || self.hold_more()
    }

    #[cold]
    fn hold_more(&mut self) -> bool {
        while self.held.tickets < Held::TICKETS && self.tickets.take(1) {
            self.held.tickets += 1;
        }
        if self.held.temporary.is_none() {
            self.held.temporary = self.temporaries.take();
        }
        if self.held.chunk.is_none() {
            self.held.chunk = self.rplsb.take();
            if let Some(chunk) = self.held.chunk {
                self.outbox.offset = self.rplsb.offset(chunk) as usize;
            }
        }
        self.held.is_complete()
    }

    /// The next event of a queue.
    #[inline]
    pub(crate) fn event(&mut self, queue: EqHandle, name: &'static str) -> Option<Event> {
        match self.ni.eq_get(queue) {
            Ok(EqGet::Event(event)) => Some(event),
            Ok(EqGet::Empty) => None,
            odd => self.odd(odd, name),
        }
    }

    /// A queue that has lost events, or that cannot be read.
    #[cold]
    fn odd(&mut self, got: Result<EqGet, NiError>, name: &'static str) -> Option<Event> {
        match got {
            Ok(EqGet::Event(event)) => Some(event),
            Ok(EqGet::Empty) => None,
            Ok(EqGet::Dropped(event)) => {
                self.fail(Fault::EventsLost(name));
                Some(event)
            }
            Err(error) => {
                self.fail(Fault::Interface(error));
                None
            }
        }
    }
}

/// A limit of a poll: zero is none.
#[inline]
const fn limit(limit: u32) -> usize {
    if limit == 0 { usize::MAX } else { limit as usize }
}
