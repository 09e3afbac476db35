//! The interface to a rail, as an object, so that rails of different kinds fit into one list.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::RailEvent;
use doorbell_fabric::message::{
    Arrivals, Body, Inbound, Incarnation, Message, MsgId, OpError, OpId, PeerIndex, Refused,
};
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail::Armed;
use doorbell_fabric::time::Time;

/// A rail, as far as the control plane uses it. The calls have the contracts of the calls with the same names
/// in [`Message`] and [`Rail`](doorbell_fabric::rail::Rail).
pub trait Endpoint {
    /// Returns the configured name.
    fn name(&self) -> &RailName;
    /// Returns its capabilities and limits.
    fn capabilities(&self) -> &Capabilities;
    /// Returns the address by which peers open it.
    fn address(&self) -> RailAddress;
    /// Returns the incarnation of the rail.
    fn incarnation(&self) -> Incarnation;
    /// Opens a peer, without sending to it.
    ///
    /// # Errors
    /// When the address is not of this rail's kind, or cannot be reached.
    fn open(&mut self, address: &RailAddress, life: Incarnation) -> Result<PeerIndex, RailError>;
    /// Sends one message; the bytes are copied.
    ///
    /// # Errors
    /// [`Refused`], and nothing was taken.
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: &[u8]) -> Result<MsgId, Refused>;
    /// Rings the doorbell for everything that was sent.
    fn flush(&mut self);
    /// Shows up to `budget` messages; returns the number.
    fn poll(&mut self, budget: usize, each: &mut dyn FnMut(PeerIndex, Inbound<'_>)) -> usize;
    /// Returns the last message up to which the peer has taken all.
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId;
    /// Drops the messages that a peer which is down has not taken.
    fn forget(&mut self, peer: PeerIndex);
    /// Gives up the connection to a peer.
    fn abandon(&mut self, peer: PeerIndex);
    /// Calls a peer that is down.
    fn revive(&mut self, peer: PeerIndex);
    /// Does housekeeping; returns the work done.
    fn progress(&mut self, now: Time) -> usize;
    /// Returns when housekeeping is due.
    fn next_deadline(&self) -> Option<Time>;
    /// Prepares to sleep.
    ///
    /// # Errors
    /// When it has no descriptor to sleep on.
    fn arm(&mut self) -> Result<Armed<'_>, RailError>;
    /// Reverses what `arm` prepared.
    fn disarm(&mut self);
    /// Returns the next event.
    fn event(&mut self) -> Option<RailEvent>;
    /// Closes the rail regularly; returns whether it is closed.
    fn close(&mut self, now: Time, by: Time) -> bool;
}

/// Opens a rail, on the thread that it will belong to.
///
/// ```
/// use doorbell_fabric::message::Message;
/// use doorbell_oob::lines::rail::{Open, endpoint};
/// use doorbell_shm::{ShmConfig, ShmRail};
///
/// let open: Open = Box::new(|| {
///     let rail = ShmRail::open(&"shm".parse()?, &ShmConfig::default())?;
///     let life = rail.incarnation();
///     Ok(endpoint(rail, life))
/// });
/// assert_eq!(open()?.name().as_str(), "shm");
/// # Ok::<(), doorbell_fabric::error::RailError>(())
/// ```
pub type Open = Box<dyn FnOnce() -> Result<Box<dyn Endpoint>, RailError> + Send>;

/// Wraps any rail that carries messages, with this incarnation of its process.
#[must_use]
pub fn endpoint<M: Message + 'static>(rail: M, life: Incarnation) -> Box<dyn Endpoint> {
    Box::new(Driven { rail, life })
}

struct Driven<M> {
    rail: M,
    life: Incarnation,
}

/// Shows messages; operations on memory are never started here.
struct Shows<'a>(&'a mut dyn FnMut(PeerIndex, Inbound<'_>));

impl Arrivals for Shows<'_> {
    fn message(&mut self, peer: PeerIndex, inbound: Inbound<'_>) {
        (self.0)(peer, inbound);
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

impl<M: Message> Endpoint for Driven<M> {
    fn name(&self) -> &RailName {
        self.rail.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.rail.capabilities()
    }

    fn address(&self) -> RailAddress {
        self.rail.address()
    }

    fn incarnation(&self) -> Incarnation {
        self.life
    }

    fn open(&mut self, address: &RailAddress, life: Incarnation) -> Result<PeerIndex, RailError> {
        self.rail.open(address, life)
    }

    fn send(&mut self, peer: PeerIndex, head: &[u8], body: &[u8]) -> Result<MsgId, Refused> {
        let body = if body.is_empty() {
            Body::Empty
        } else {
            Body::Bytes(body)
        };
        self.rail.send(peer, head, body)
    }

    fn flush(&mut self) {
        self.rail.flush();
    }

    fn poll(&mut self, budget: usize, each: &mut dyn FnMut(PeerIndex, Inbound<'_>)) -> usize {
        self.rail.poll(budget, &mut Shows(each))
    }

    fn handed_over(&mut self, peer: PeerIndex) -> MsgId {
        self.rail.handed_over(peer)
    }

    fn forget(&mut self, peer: PeerIndex) {
        self.rail.reclaim(peer, &mut |_, _| ());
    }

    fn abandon(&mut self, peer: PeerIndex) {
        self.rail.abandon(peer);
    }

    fn revive(&mut self, peer: PeerIndex) {
        self.rail.revive(peer);
    }

    fn progress(&mut self, now: Time) -> usize {
        self.rail.progress(now)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.rail.next_deadline()
    }

    fn arm(&mut self) -> Result<Armed<'_>, RailError> {
        self.rail.arm()
    }

    fn disarm(&mut self) {
        self.rail.disarm();
    }

    fn event(&mut self) -> Option<RailEvent> {
        self.rail.event()
    }

    fn close(&mut self, now: Time, by: Time) -> bool {
        self.rail.close(now, by)
    }
}
