//! The implementation of [`Rail`], the contract that all rails share.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{EventKind, RailEvent, Scope};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use crate::btl::Btl;
use crate::record::Event;
use crate::teardown::Phase;

impl<D: Datagram> Rail for Btl<D> {
    /// The driver's: a rail has one name.
    fn name(&self) -> &RailName {
        self.driver.name()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn address(&self) -> RailAddress {
        self.driver.address()
    }

    /// Takes the time, and finds what is due. What is to be sent for it is sent by the next poll, when what
    /// has arrived meanwhile was looked at.
    fn progress(&mut self, now: Time) -> Work {
        let expected = self.next_deadline().map(Time::nanos);
        let work = self.driver.progress(now);
        self.core.attend(now, expected);
        let due = self.core.tick();
        if due > 0 {
            self.forget_unused();
        }
        work + due
    }

    fn next_deadline(&self) -> Option<Time> {
        let ours = self.core.timers.next_deadline();
        let both = [self.driver.next_deadline(), ours];
        both.into_iter().flatten().min()
    }

    #[inline]
    fn wants_time(&self) -> bool {
        self.core.clock.is_old()
    }

    /// Sends the acknowledgements that wait for a segment to ride on: the owner is going to sleep.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        let (tx, _) = self.driver.split();
        self.core.acks.all_now(&mut self.core.peers);
        self.core.service(tx);
        if self.core.has_work() {
            return Ok(Armed::Ready);
        }
        self.driver.arm()
    }

    fn disarm(&mut self) {
        self.driver.disarm();
    }

    fn poll_cost(&self) -> PollCost {
        self.driver.poll_cost()
    }

    /// Hints of the driver about single peers are not passed on: the BTL probes the peer instead.
    fn event(&mut self) -> Option<RailEvent> {
        loop {
            if let Some(event) = self.core.journal.next_event() {
                return Some(event);
            }
            let event = self.driver.event()?;
            match event.scope {
                Scope::Rail => {
                    match event.kind {
                        EventKind::LinkUp => {
                            self.core.history.set_link(true);
                            self.core.on_link_up();
                        }
                        EventKind::LinkDown | EventKind::DeviceGone => self.core.history.set_link(false),
                        _ => {}
                    }
                    self.core.record_of(None, Event::Told(event.kind));
                    return Some(event);
                }
                // About an address, as the driver numbers it: whether the peer there is down is judged here.
                Scope::Peer(place) => self.core.on_hint(place, event.kind),
            }
        }
    }

    /// Sends a BYE to every peer that knows us, after everything that was accepted before has been
    /// acknowledged.
    fn close(&mut self, now: Time, by: Time) -> bool {
        if self.finished {
            return true;
        }
        if self.core.phase != Phase::Closed {
            self.progress(now);
            let (tx, rx) = self.driver.split();
            let done = self.core.say_goodbye(tx, rx);
            if !done && now < by {
                return false;
            }
            self.core.phase = Phase::Closed;
        }
        self.finished = self.driver.close(now, by);
        self.finished
    }
}
