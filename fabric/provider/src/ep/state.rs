//! What the domain keeps of an endpoint: what every operation of it needs.

use doorbell_pml::MessageId;
use libfabric_sys::*;

use crate::av::VectorIndex;
use crate::cntr::CounterIndex;
use crate::cq::QueueIndex;
use crate::errno::{Errno, Result};
use crate::events::EventCounters;
use crate::ops::Mark;

/// The number of an endpoint: what peers name it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointNumber(pub(crate) u8);

/// The two spaces of matching, each with its own order: the highest bit of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Space {
    /// The space of fi_msg(3).
    Untagged = 0,
    /// The space of fi_tagged(3).
    Tagged = 1,
}

impl Space {
    /// The context of a message from one endpoint to another.
    #[inline(always)]
    pub(crate) const fn context(self, to: u8, from: EndpointNumber) -> u16 {
        (self as u16) << 15 | (to as u16 & 0x7f) << 8 | from.0 as u16
    }

    /// The space of a message with this context, and the endpoint that has sent it.
    pub(crate) const fn of(context: u16) -> (Self, EndpointNumber) {
        let space = match context >> 15 {
            0 => Self::Untagged,
            _ => Self::Tagged,
        };
        (space, EndpointNumber(context as u8))
    }

    /// The endpoint that a context is to.
    #[inline(always)]
    pub(crate) const fn target(context: u16) -> u8 {
        (context >> 8) as u8 & 0x7f
    }

    /// The context of a receive of an endpoint, whose messages come from any.
    #[inline(always)]
    pub(crate) const fn receives(self, to: EndpointNumber) -> u16 {
        self.context(to.0, EndpointNumber(0))
    }

    /// The flag that entries of this space have.
    #[inline(always)]
    pub(crate) const fn flag(self) -> u64 {
        match self {
            Self::Untagged => FI_MSG,
            Self::Tagged => FI_TAGGED,
        }
    }
}

/// The senders that the receives of a space take messages of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directed {
    /// Those of any: the address of a receive is ignored.
    No,
    /// Those of the address; of any for `FI_ADDR_UNSPEC`.
    Yes,
    /// Those of the address, which cannot be `FI_ADDR_UNSPEC`.
    Exact,
}

impl Directed {
    /// What these capabilities mean in a space, where `named` is the one that directs receives of it alone.
    const fn of(caps: u64, named: u64) -> Self {
        let directs = FI_DIRECTED_RECV | named;
        let exact = caps & FI_EXACT_DIRECTED_RECV != 0;
        // Alone it directs both spaces; with another one it is a part of that one's meaning.
        let is_alone = caps & (FI_DIRECTED_RECV | FI_TAGGED_DIRECTED_RECV) == 0;
        match (exact, caps & directs != 0) {
            (true, true) => Self::Exact,
            (true, false) if is_alone => Self::Exact,
            (false, true) => Self::Yes,
            _ => Self::No,
        }
    }
}

/// One direction of an endpoint: sends, or receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Whether the endpoint has this direction.
    pub(crate) offered: bool,
    /// The queue of its completions.
    pub(crate) queue: QueueIndex,
    /// Whether only operations that want an entry get one.
    pub(crate) selective: bool,
    /// The counter of its operations.
    pub(crate) counter: CounterIndex,
}

impl Side {
    /// A direction that nothing is bound to.
    pub(crate) const fn new(offered: bool) -> Self {
        Self {
            offered,
            queue: QueueIndex::NONE,
            selective: false,
            counter: CounterIndex::NONE,
        }
    }

    /// How an operation with these flags is reported.
    #[inline(always)]
    pub(crate) fn reports(&self, flags: u64) -> Mark {
        Mark::NONE
            .and_if(Mark::ENTRY, !self.selective || flags & FI_COMPLETION != 0)
            .and_if(Mark::COUNTED, self.counter != CounterIndex::NONE)
    }
}

/// Reads, or writes, of peers' memory, atomic ones among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accesses {
    /// Those that the endpoint has, of `FI_RMA` and `FI_ATOMIC`.
    families: u64,
    /// The counter of them.
    pub(crate) counter: CounterIndex,
}

impl Accesses {
    /// Those of an endpoint with these capabilities, which name them, or no direction at all.
    const fn of(caps: u64, named: u64) -> Self {
        const DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        let has_them = caps & named != 0 || caps & DIRECTIONS == 0;
        Self {
            families: if has_them { caps & (FI_RMA | FI_ATOMIC) } else { 0 },
            counter: CounterIndex::NONE,
        }
    }

    /// Whether the endpoint has any.
    pub(crate) const fn are_offered(&self) -> bool {
        self.families != 0
    }
}

/// What the domain keeps of an endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) sends: Side,
    pub(crate) receives: Side,
    /// The address vector of its peers.
    pub(crate) vector: Option<VectorIndex>,
    /// Whether operations may begin.
    pub(crate) enabled: bool,
    /// The senders that receives take messages of, by their space.
    directed: [Directed; 2],
    /// Whether senders are reported.
    pub(crate) names_senders: bool,
    /// Whether a message of a sender without an address is reported as a failure, with the address.
    pub(crate) reports_unknown: bool,
    /// A buffer for many messages is released when it has fewer bytes than this.
    pub(crate) min_multi: u64,
    /// Sends under way, and how many there may be.
    pub(crate) under_way: u32,
    pub(crate) most_under_way: u32,
    /// Those of them that are reads and writes of peers' memory.
    pub(crate) accesses: u32,
    /// Whether reads and writes may begin, with the counters of each.
    pub(crate) reads: Accesses,
    pub(crate) writes: Accesses,
    /// The counters of what peers read and write through it; `None` for one without `FI_RMA_EVENT`.
    pub(crate) events: Option<EventCounters>,
    /// Whether it has messages, or reads and writes alone.
    pub(crate) has_messages: bool,
    /// Receives under way that the client may count on.
    pub(crate) most_receives: u32,
    /// Messages that were claimed, by the context of the call.
    claimed: Vec<(usize, MessageId)>,
}

impl Endpoint {
    /// An endpoint with these capabilities, and with so many sends and receives under way, that nothing is
    /// bound to.
    pub(crate) fn new(caps: u64, [sends, receives]: [u32; 2]) -> Self {
        // Without modifiers it has both.
        let both = caps & (FI_SEND | FI_RECV) == 0;
        Self {
            sends: Side::new(both || caps & FI_SEND != 0),
            receives: Side::new(both || caps & FI_RECV != 0),
            accesses: 0,
            reads: Accesses::of(caps, FI_READ),
            writes: Accesses::of(caps, FI_WRITE),
            events: (caps & FI_RMA_EVENT != 0).then(EventCounters::default),
            has_messages: caps & (FI_MSG | FI_TAGGED) != 0 || caps & (FI_RMA | FI_ATOMIC) == 0,
            vector: None,
            enabled: false,
            directed: [
                Directed::of(caps, FI_DIRECTED_RECV),
                Directed::of(caps, FI_TAGGED_DIRECTED_RECV),
            ],
            names_senders: caps & (FI_SOURCE | FI_SOURCE_ERR) != 0,
            reports_unknown: caps & FI_SOURCE_ERR != 0,
            min_multi: super::limits::MIN_MULTI,
            under_way: 0,
            most_under_way: sends.max(1),
            most_receives: receives,
            claimed: Vec::new(),
        }
    }

    /// The senders that the receives of a space take messages of.
    #[inline(always)]
    pub(crate) fn directed(&self, space: Space) -> Directed {
        self.directed[space as usize]
    }

    /// The direction of sends, if operations of it may begin.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before the endpoint is enabled; `FI_EOPNOTSUPP` for one that only receives.
    #[inline(always)]
    pub(crate) fn sending(&self) -> Result<Side> {
        self.ready(self.sends)
    }

    /// The direction of receives, if operations of it may begin.
    ///
    /// # Errors
    /// Those of [`Endpoint::sending`].
    #[inline(always)]
    pub(crate) fn receiving(&self) -> Result<Side> {
        self.ready(self.receives)
    }

    /// How reads or writes of a family are reported, and their counter, if they may begin.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before the endpoint is enabled; `FI_EOPNOTSUPP` for one without them.
    #[inline]
    pub(crate) fn accessing(&self, kind: Mark, family: u64) -> Result<(Side, CounterIndex)> {
        let accesses = match kind {
            Mark::READ => self.reads,
            _ => self.writes,
        };
        match self.enabled && accesses.families & family != 0 {
            true => Ok((self.sends, accesses.counter)),
            false => Err(self.refuse()),
        }
    }

    /// The counter of operations with this mark.
    pub(crate) fn counter(&self, mark: Mark) -> CounterIndex {
        if mark.is(Mark::SEND) {
            self.sends.counter
        } else if mark.is(Mark::READ) {
            self.reads.counter
        } else if mark.is(Mark::WRITE) {
            self.writes.counter
        } else {
            self.receives.counter
        }
    }

    /// Whether a receive from this address takes messages of all senders.
    ///
    /// # Errors
    /// `FI_EINVAL` for a receive without an address, where one is needed.
    #[inline(always)]
    pub(crate) fn takes_any(&self, space: Space, from: fi_addr_t) -> Result<bool> {
        match self.directed(space) {
            Directed::No => Ok(true),
            Directed::Exact if from == FI_ADDR_UNSPEC => Err(Errno(FI_EINVAL)),
            _ => Ok(from == FI_ADDR_UNSPEC),
        }
    }

    #[inline(always)]
    fn ready(&self, side: Side) -> Result<Side> {
        if self.enabled && side.offered {
            return Ok(side);
        }
        Err(self.refuse())
    }

    #[cold]
    fn refuse(&self) -> Errno {
        Errno(if self.enabled {
            FI_EOPNOTSUPP
        } else {
            FI_EOPBADSTATE
        })
    }

    /// Notes a message that was claimed by a call with this context.
    pub(crate) fn claim(&mut self, context: usize, message: MessageId) {
        self.claimed.push((context, message));
    }

    /// Takes the message that was claimed by a call with this context.
    pub(crate) fn take_claimed(&mut self, context: usize) -> Option<MessageId> {
        let at = self.claimed.iter().position(|(of, _)| *of == context)?;
        Some(self.claimed.remove(at).1)
    }

    /// Takes every message that was claimed.
    pub(crate) fn take_all_claimed(&mut self) -> impl Iterator<Item = MessageId> + use<> {
        std::mem::take(&mut self.claimed)
            .into_iter()
            .map(|(_, message)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of a context that name the sender's endpoint.
    const SOURCES: u16 = 0x00ff;

    #[test]
    fn contexts_keep_spaces_and_endpoints_apart() {
        let from = EndpointNumber(0x12);
        assert_eq!(Space::Untagged.context(0x7f, from), 0x7f12);
        assert_eq!(Space::Tagged.context(0x01, from), 0x8112);
        for space in [Space::Untagged, Space::Tagged] {
            assert_eq!(Space::of(space.context(0x7f, from)), (space, from));
        }
        assert_eq!(
            Space::Tagged.receives(EndpointNumber(1)),
            Space::Tagged.context(1, from) & !SOURCES
        );
    }

    #[test]
    fn an_endpoint_has_the_directions_of_its_capabilities() {
        let mut endpoint = Endpoint::new(FI_MSG | FI_SEND, [0; 2]);
        assert_eq!(endpoint.sending().map(|_| ()), Err(Errno(FI_EOPBADSTATE)));
        endpoint.enabled = true;
        assert!(endpoint.sending().is_ok());
        assert_eq!(endpoint.receiving().map(|_| ()), Err(Errno(FI_EOPNOTSUPP)));
        let mut both = Endpoint::new(FI_MSG, [0; 2]);
        both.enabled = true;
        assert!(both.sending().is_ok() && both.receiving().is_ok());
    }

    #[test]
    fn an_endpoint_reads_and_writes_as_its_capabilities_have_it() {
        let [both, neither] = [(true, true), (false, false)];
        for (caps, has) in [
            (FI_RMA, both),
            (FI_MSG | FI_RMA | FI_SEND, both),
            (FI_RMA | FI_READ, (true, false)),
            (FI_RMA | FI_WRITE | FI_REMOTE_READ, (false, true)),
            (FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE, neither),
            (FI_MSG, neither),
        ] {
            let mut endpoint = Endpoint::new(caps, [0; 2]);
            let before = endpoint.accessing(Mark::READ, FI_RMA).map(|_| ());
            assert_eq!(before, Err(Errno(FI_EOPBADSTATE)));
            endpoint.enabled = true;
            let may = |kind| endpoint.accessing(kind, FI_RMA).is_ok();
            assert_eq!((may(Mark::READ), may(Mark::WRITE)), has, "{caps:#x}");
            assert!(endpoint.accessing(Mark::READ, FI_ATOMIC).is_err());
        }
        let mut endpoint = Endpoint::new(FI_ATOMIC | FI_WRITE, [0; 2]);
        endpoint.enabled = true;
        let may = |kind, family| endpoint.accessing(kind, family).is_ok();
        assert!(may(Mark::WRITE, FI_ATOMIC) && !may(Mark::READ, FI_ATOMIC) && !may(Mark::WRITE, FI_RMA));
        assert!(!endpoint.has_messages);
        assert_eq!(Space::target(Space::Tagged.context(5, EndpointNumber(9))), 5);
    }

    #[test]
    fn receives_are_directed_by_space_and_exactly_where_that_was_asked_for() {
        let [both, tagged, exact] = [FI_DIRECTED_RECV, FI_TAGGED_DIRECTED_RECV, FI_EXACT_DIRECTED_RECV];
        use Directed::{Exact, No, Yes};
        for (caps, untagged, of_tagged) in [
            (0, No, No),
            (both, Yes, Yes),
            (tagged, No, Yes),
            (exact, Exact, Exact),
            (both | exact, Exact, Exact),
            (tagged | exact, No, Exact),
            (both | tagged, Yes, Yes),
        ] {
            let endpoint = Endpoint::new(FI_MSG | FI_TAGGED | caps, [0; 2]);
            for (space, directed) in [(Space::Untagged, untagged), (Space::Tagged, of_tagged)] {
                assert_eq!(endpoint.directed(space), directed, "{caps:#x}");
                let without = endpoint.takes_any(space, FI_ADDR_UNSPEC);
                let refused = Err(Errno(FI_EINVAL));
                assert_eq!(without, if directed == Exact { refused } else { Ok(true) });
                assert_eq!(endpoint.takes_any(space, 3), Ok(directed == No));
            }
        }
    }

    #[test]
    fn a_selective_side_reports_what_asks_for_it() {
        let mut side = Side::new(true);
        assert!(side.reports(0).is(Mark::ENTRY));
        side.selective = true;
        assert!(!side.reports(FI_INJECT).is(Mark::ENTRY) && side.reports(FI_COMPLETION).is(Mark::ENTRY));
        assert!(!side.reports(0).is(Mark::COUNTED));
        side.counter = CounterIndex(0);
        assert!(side.reports(0).is(Mark::COUNTED));
    }

    #[test]
    fn claimed_messages_are_found_by_their_contexts_once() {
        let mut endpoint = Endpoint::new(FI_TAGGED, [0; 2]);
        for context in [1, 2, 3] {
            endpoint.claim(context, MessageId::from_bits(context as u64 + 10));
        }
        assert_eq!(endpoint.take_claimed(2), Some(MessageId::from_bits(12)));
        assert_eq!(endpoint.take_claimed(2), None);
        assert_eq!(endpoint.take_all_claimed().count(), 2);
        assert_eq!(endpoint.take_claimed(1), None);
    }
}
