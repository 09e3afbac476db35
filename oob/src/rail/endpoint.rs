//! What the control plane asks of a rail: an object, so that rails of different kinds stand in one list.

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

/// A rail, as far as the control plane needs one. What the calls promise is said at [`Message`] and
/// [`Rail`](doorbell_fabric::rail::Rail), by whose names they go.
pub trait Endpoint {
    /// The configured name.
    fn name(&self) -> &RailName;
    /// What it can do, and its limits.
    fn capabilities(&self) -> &Capabilities;
    /// Where peers open it.
    fn address(&self) -> RailAddress;
    /// In which life.
    fn incarnation(&self) -> Incarnation;
    /// Makes a peer known; says nothing to it.
    ///
    /// # Errors
    /// When it is no address of this rail's, or cannot be reached.
    fn open(&mut self, address: &RailAddress, life: Incarnation) -> Result<PeerIndex, RailError>;
    /// Sends one message; the bytes are copied.
    ///
    /// # Errors
    /// [`Refused`], and nothing was taken.
    fn send(&mut self, peer: PeerIndex, head: &[u8], body: &[u8]) -> Result<MsgId, Refused>;
    /// The doorbell for all that was sent.
    fn flush(&mut self);
    /// Shows up to `budget` messages; returns how many.
    fn poll(&mut self, budget: usize, each: &mut dyn FnMut(PeerIndex, Inbound<'_>)) -> usize;
    /// All messages up to this one were taken by the peer.
    fn handed_over(&mut self, peer: PeerIndex) -> MsgId;
    /// Drops what was sent to a peer that is down, and not taken.
    fn forget(&mut self, peer: PeerIndex);
    /// Gives the way to a peer up.
    fn abandon(&mut self, peer: PeerIndex);
    /// Calls a peer that is down.
    fn revive(&mut self, peer: PeerIndex);
    /// Housekeeping; returns the work done.
    fn progress(&mut self, now: Time) -> usize;
    /// When that is due.
    fn next_deadline(&self) -> Option<Time>;
    /// Prepares to sleep.
    ///
    /// # Errors
    /// When it has no descriptor to sleep on.
    fn arm(&mut self) -> Result<Armed<'_>, RailError>;
    /// Ends what `arm` prepared.
    fn disarm(&mut self);
    /// The next event.
    fn event(&mut self) -> Option<RailEvent>;
    /// Ends it, in good order; true when it has ended.
    fn close(&mut self, now: Time, by: Time) -> bool;
}

/// Opens a rail, on the thread that it will belong to.
///
/// ```
/// use doorbell_fabric::message::Message;
/// use doorbell_oob::rail::{Open, endpoint};
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

/// Any rail that carries messages, in this life of its process.
#[must_use]
pub fn endpoint<M: Message + 'static>(rail: M, life: Incarnation) -> Box<dyn Endpoint> {
    Box::new(Driven { rail, life })
}

struct Driven<M> {
    rail: M,
    life: Incarnation,
}

/// Shows messages; operations on memory are never begun here.
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
