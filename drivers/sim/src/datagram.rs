//! `SimDatagram`: the `Datagram` contract over a simulated network, with all its faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Features, Limits};
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::{Armed, PollCost, Rail, Work};
use doorbell_fabric::time::Time;

use crate::config::SimConfig;
use crate::frame::Arrived;
use crate::handle::Handle;
use crate::net::{Plane, SimNet};
use crate::state::Ended;

/// A rank's datagram queue pair on one plane of a [`SimNet`].
///
/// Its address names a rank and not a life: after a restart, late frames of the old life reach the new one,
/// as they do on UDP.
#[derive(Debug)]
pub struct SimDatagram {
    tx: SimTx,
    rx: SimRx,
    handle: Handle,
}

/// The sending half.
#[derive(Debug)]
pub struct SimTx {
    net: SimNet,
    nic: u32,
}

/// The receiving half. It holds what the last poll showed, so that frames are looked at in place.
#[derive(Debug)]
pub struct SimRx {
    net: SimNet,
    nic: u32,
    shown: [Vec<Option<Arrived>>; 2],
    spare: Arc<AtomicUsize>,
}

/// A buffer taken out of the receive ring; dropping it returns a fresh one.
#[derive(Debug)]
pub struct SimKept {
    bytes: Arc<Vec<u8>>,
    spare: Arc<AtomicUsize>,
}

impl SimKept {
    /// The frame's bytes.
    pub fn bytes(&self) -> SharedBytes<'_> {
        SharedBytes::of(&self.bytes)
    }
}

impl Drop for SimKept {
    fn drop(&mut self) {
        self.spare.fetch_add(1, Ordering::Relaxed);
    }
}

impl SimDatagram {
    pub(crate) fn new(net: SimNet, nic: u32) -> Self {
        let config = net.config();
        let spare = net.lock().nics[nic as usize].queues.spare.clone();
        let shown = [config.priority_ring, config.data_ring].map(Vec::with_capacity);
        Self {
            tx: SimTx {
                net: net.clone(),
                nic,
            },
            rx: SimRx {
                net: net.clone(),
                nic,
                shown,
                spare,
            },
            handle: Handle::new(net, nic, capabilities(&config)),
        }
    }

    /// The life of the rank that attached this queue pair.
    pub fn incarnation(&self) -> Incarnation {
        self.handle.incarnation()
    }

    /// The rank that attached it.
    pub fn rank(&self) -> u32 {
        self.handle.rank()
    }

    /// The plane that it is attached to.
    pub fn plane(&self) -> Plane {
        self.handle.plane()
    }
}

/// A datagram offers nothing but its frames; the network does not check their bytes.
fn capabilities(config: &SimConfig) -> Capabilities {
    let limits = config.capabilities.limits;
    Capabilities {
        features: Features {
            gather: config.capabilities.features.gather,
            ..Features::default()
        },
        limits: Limits {
            message: config.mtu,
            inline: limits.inline.min(config.mtu),
            eager: config.mtu,
            fragment: config.mtu,
            one_sided: 0,
            ..limits
        },
        ..config.capabilities
    }
}

impl Rail for SimDatagram {
    fn name(&self) -> &RailName {
        &self.handle.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.handle.capabilities
    }

    fn address(&self) -> RailAddress {
        self.handle.address()
    }

    /// Moves the network's clock to `now`, when that is later.
    fn progress(&mut self, now: Time) -> Work {
        self.handle.progress(now)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.handle.next_deadline()
    }

    /// Always [`Armed::Ready`]: on a virtual clock there is nothing to sleep on; advance the clock instead.
    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        Ok(Armed::Ready)
    }

    fn disarm(&mut self) {}

    fn poll_cost(&self) -> PollCost {
        PollCost::Memory
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.handle.event()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        let nic = self.handle.nic;
        let mut net = self.handle.net.lock();
        net.run_until(now);
        net.ring_doorbell(nic);
        let empty = net.nics[nic as usize]
            .queues
            .send
            .iter()
            .all(|ring| ring.is_empty());
        if now < by && !empty {
            return false;
        }
        net.end_nic(nic, Ended::Closed);
        true
    }
}

impl Datagram for SimDatagram {
    type Tx = SimTx;
    type Rx = SimRx;

    /// Any rank that was ever attached can be opened; whether it is alive shows in its responses.
    fn open(&mut self, address: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        let rank = self.handle.rank_at(address)?;
        let mut net = self.handle.net.lock();
        Ok(net.nics[self.handle.nic as usize].queues.open(rank))
    }

    fn forget(&mut self, peer: PeerIndex) {
        let mut net = self.handle.net.lock();
        net.nics[self.handle.nic as usize].queues.forget(peer);
    }

    fn split(&mut self) -> (&mut SimTx, &mut SimRx) {
        (&mut self.tx, &mut self.rx)
    }
}

impl Transmit for SimTx {
    fn reserve(&mut self, channel: Channel, n: usize) -> usize {
        let mut net = self.net.lock();
        net.run_due();
        net.reserve(self.nic, channel, n)
    }

    fn post(
        &mut self,
        channel: Channel,
        peer: PeerIndex,
        head: &[u8],
        body: Body<'_>,
    ) -> Result<FrameId, Refused> {
        self.net.lock().post_frame(self.nic, channel, peer, head, body)
    }

    fn doorbell(&mut self) {
        self.net.lock().ring_doorbell(self.nic);
    }

    fn reaped(&mut self, channel: Channel) -> FrameId {
        let mut net = self.net.lock();
        net.run_due();
        FrameId(net.nics[self.nic as usize].queues.send[channel.index()].reaped)
    }
}

impl Receive for SimRx {
    type Kept = SimKept;

    fn poll(&mut self, channel: Channel, budget: usize) -> usize {
        let at = channel.index();
        let mut net = self.net.lock();
        net.run_due();
        for frame in self.shown[at].drain(..).flatten() {
            net.recycle(frame.bytes);
        }
        let rank = net.nics[self.nic as usize].rank;
        let budget = if net.paused.contains(&rank) { 0 } else { budget };
        let ring = &mut net.nics[self.nic as usize].queues.receive[at];
        let n = budget.min(ring.arrived.len());
        self.shown[at].extend(ring.arrived.drain(..n).map(Some));
        ring.shown = n;
        n
    }

    fn frame(&self, channel: Channel, i: usize) -> Option<Frame<'_>> {
        let arrived = self.shown[channel.index()].get(i)?.as_ref()?;
        Some(Frame {
            from: arrived.from,
            bytes: SharedBytes::of(&arrived.bytes),
        })
    }

    fn keep(&mut self, channel: Channel, i: usize) -> Result<SimKept, Refused> {
        let at = channel.index();
        let place = self.shown[at]
            .get_mut(i)
            .filter(|place| place.is_some())
            .ok_or(Refused::BadMemory)?;
        let take = |spare: usize| spare.checked_sub(1);
        self.spare
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Refused::Full)?;
        let arrived = place.take().ok_or(Refused::BadMemory)?;
        self.net.lock().nics[self.nic as usize].queues.receive[at].shown -= 1;
        Ok(SimKept {
            bytes: arrived.bytes,
            spare: self.spare.clone(),
        })
    }
}
