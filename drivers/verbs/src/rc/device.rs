//! What a rail's connections have of the device, to be let go of at once when it is gone, or made again; and
//! what the device's events mean for them.

use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life};
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::RailReport;
use doorbell_fabric::time::Time;
use zerocopy::IntoBytes;

use super::core::{Core, PROOF_HEAD, PROOF_MOST, Sizes, Step};
use super::inbox::Inbox;
use super::link::{DEPTH, LINE, State};
use super::record::Event as Recorded;
use super::slots::Slots;
use crate::error::VerbsError;
use crate::sys::{Channel, Completions, Domain, Event, Open, Registered, numbers};

/// How long the making of other queues waits for what is being destroyed.
const PATIENCE: Duration = Duration::from_millis(100);

/// What connections share of the device.
pub(crate) struct Device {
    pub(crate) open: Arc<Open>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) sent: Arc<Completions>,
    pub(crate) received: Arc<Completions>,
    /// The lines of the peers' counters, and behind them the bytes that prove connections.
    pub(crate) lines: Arc<Registered>,
}

impl Device {
    /// Makes the completion queues and the memory of counters.
    ///
    /// # Errors
    /// If the system refuses a step.
    pub(crate) fn new(
        (domain, channel, open): (&Arc<Domain>, &Arc<Channel>, &Arc<Open>),
        sizes: &Sizes,
    ) -> Result<Self, VerbsError> {
        let (sent, received) = queues(channel, sizes)?;
        let lines = memory(open, sizes.peers * LINE + PROOF_MOST)?;
        lines.write(sizes.peers * LINE, PROOF_HEAD.as_bytes());
        Ok(Self {
            open: Arc::clone(open),
            domain: Arc::clone(domain),
            channel: Arc::clone(channel),
            sent,
            received,
            lines: Registered::new(domain, &lines)?,
        })
    }

    /// Entries of the queue of sends.
    pub(crate) fn entries(sizes: &Sizes) -> usize {
        4 * DEPTH.max(sizes.sends)
    }
}

fn queues(channel: &Arc<Channel>, sizes: &Sizes) -> Result<(Arc<Completions>, Arc<Completions>), VerbsError> {
    let sent = Completions::new(channel, Device::entries(sizes))?;
    Ok((sent, Completions::new(channel, sizes.receives.1)?))
}

/// Memory of our own.
pub(crate) fn memory(open: &Open, bytes: usize) -> Result<Region, VerbsError> {
    Region::new(bytes).map_err(|error| VerbsError::Nonsense {
        device: open.name().to_owned(),
        what: error.to_string(),
    })
}

impl Core {
    /// Ends every connection at once; what was accepted can be reclaimed.
    pub(crate) fn drop_all(&mut self) {
        for index in 0..self.peers.len() as u32 {
            self.drop_peer(index);
            self.discard(index);
        }
    }

    /// Lets go of everything that is the device's. Every peer is down then.
    pub(crate) fn leave(&mut self) {
        self.drop_all();
        self.destroy_leaving();
        self.destroyer.finish();
        self.onesided.await_written();
        self.go_on_with_written();
        self.inbox = Inbox::default();
        (self.settling, self.renewal) = (0, None);
        self.slots.release();
        self.pool.release();
        self.onesided.release();
        self.memory.release();
        self.device = None;
    }

    /// Begins to make the queues again, after one of them has failed: it ends every connection.
    /// [`finish_renewal`](Self::finish_renewal) does the rest.
    pub(crate) fn renew_queues(&mut self) {
        self.stats.renewed += 1;
        for index in 0..self.peers.len() as u32 {
            self.fail_at_once(index);
        }
        self.destroy_leaving();
        self.renewal = Some(self.now);
    }

    /// Whether the queues are about to be made again: no connection is made meanwhile.
    pub(crate) fn is_renewing(&self) -> bool {
        self.renewal.is_some()
    }

    /// Makes the queues again, once the former queue pairs are destroyed, or have had the time.
    ///
    /// # Errors
    /// If the system refuses a step, or the device is gone.
    pub(crate) fn finish_renewal(&mut self) -> Result<(), VerbsError> {
        let is_due = |since: &mut Time| self.destroyer.is_idle() || self.now >= *since + PATIENCE;
        if self.renewal.take_if(is_due).is_none() {
            return Ok(());
        }
        self.inbox = Inbox::default();
        self.settling = 0;
        self.slots.release();
        let Some(device) = &mut self.device else {
            return Ok(());
        };
        let (sent, received) = queues(&device.channel, &self.sizes)?;
        let slots = Slots::new(&device.domain, self.sizes.slot, self.sizes.receives)?;
        self.onesided.renew_queue(&device.channel)?;
        (device.sent, device.received, self.slots) = (sent, received, slots);
        Ok(())
    }

    /// Ends a connection whose queues are of no use any more: nothing of it is waited for.
    fn fail_at_once(&mut self, index: u32) {
        let Some(link) = &self.peers[index as usize].link else {
            return;
        };
        match link.state {
            State::Made | State::Receiving => self.discard(index),
            State::Up | State::Ending(..) => {
                self.bury(index);
                self.report(index, EventKind::PeerDown(DownReason::Resources), Life::FIRST);
            }
        }
        self.ended.push_back((index, DownReason::Resources));
    }

    /// Requests one event when something completes; whether there is something to do already.
    pub(crate) fn arm(&mut self) -> bool {
        self.flush();
        // What is left of queue pairs that are being destroyed would wake the sleeper at once.
        self.has_stale = true;
        if let Some(device) = &self.device {
            device.sent.arm();
            self.onesided.arm();
            device.received.arm();
        }
        // What completed before raises no event.
        self.reap();
        self.reap_one_sided();
        let has_more = self.has_arrivals() || self.onesided.has_to_post();
        let has_news = !self.events.is_empty() || !self.onesided.ended.is_empty();
        let has_steps = !self.wanted.is_empty() || !self.ended.is_empty() || !self.steps.is_empty();
        let is_busy = has_more || has_news || has_steps;
        if !is_busy && self.rings.are_used() {
            self.pause_rings();
        }
        is_busy
    }

    /// Takes back the events that were requested.
    pub(crate) fn disarm(&mut self) {
        if let Some(device) = &self.device {
            device.channel.drain();
        }
    }

    /// What is known of the way to a peer.
    pub(crate) fn report_of(&self, index: u32) -> RailReport {
        let Some(peer) = self.peers.get(index as usize) else {
            return RailReport::default();
        };
        let report = peer.link.as_ref().map(|link| link.report(self.now));
        RailReport {
            unacknowledged: peer.outbox.as_ref().map_or(0, |outbox| outbox.kept() as u64),
            ..report.unwrap_or_default()
        }
    }

    /// Acts on an event of the device.
    pub(crate) fn on_device_event(&mut self, event: &Event) {
        match event.kind {
            numbers::EVENT_SRQ_LIMIT_REACHED => {
                let has_grown = self.slots.grow().unwrap_or(false);
                self.stats.grown += u64::from(has_grown);
                self.stats.at_limit += u64::from(!has_grown);
            }
            numbers::EVENT_QP_FATAL
            | numbers::EVENT_QP_REQ_ERR
            | numbers::EVENT_QP_ACCESS_ERR
            | numbers::EVENT_PATH_MIG_ERR => {
                if let Some(index) = self.peer_of(event) {
                    self.record(Some(index), Recorded::Device(event.kind));
                    self.end(index, DownReason::Abandoned);
                } else {
                    self.on_one_sided_event(event);
                }
            }
            numbers::EVENT_COMM_EST => {
                let begins = self.peer_of(event).filter(|index| self.is_beginning(*index));
                self.steps.extend(begins.map(|index| (index, Step::Established)));
            }
            // Receives are not the queue pair's own, so there is nothing to drain.
            numbers::EVENT_QP_LAST_WQE_REACHED => {}
            numbers::EVENT_CQ_ERR | numbers::EVENT_SRQ_ERR | numbers::EVENT_WQ_FATAL => {
                // Those that are about to be replaced may all report that they have failed.
                self.is_broken |= !self.is_renewing() && self.has_queue(event);
                self.record(None, Recorded::Device(event.kind));
            }
            _ => {
                self.stats.other_events += 1;
                self.record(None, Recorded::Device(event.kind));
            }
        }
    }

    /// The peer of the connection that an event is about. One that is over has none.
    fn peer_of(&self, event: &Event) -> Option<u32> {
        self.by_pair.peers().find(|index| {
            let link = self.peers[*index as usize].link.as_ref();
            link.is_some_and(|link| link.is_meant(event))
        })
    }

    /// Whether an event is about one of our queues.
    fn has_queue(&self, event: &Event) -> bool {
        let device = self.device.as_ref();
        let is_completions =
            device.is_some_and(|device| device.sent.is_meant(event) || device.received.is_meant(event));
        is_completions || self.slots.is_meant(event) || self.onesided.is_meant(event)
    }
}
