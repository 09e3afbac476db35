//! A peer over one rail.

use std::sync::Arc;

use doorbell_fabric::caps::Capabilities;
use doorbell_fabric::message::PeerIndex;

use crate::config::{PmlConfig, Protocol};
use crate::rails::RailId;
use crate::wire;

/// The shortest message of lent memory that is announced to a peer of this host: below it a copy takes less,
/// with cores far apart; near, a copy takes less up to some 16 KiB.
const LENT_FROM: u64 = 8192;

/// A length as a path stores it; the longest of these for those beyond.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A peer over one rail.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    rail: RailId,
    peer: PeerIndex,
    is_up: bool,
    // Narrow, as idle peers are many; what is longer than 4 GiB is announced.
    /// Longest payload that is sent at once.
    eager: u32,
    /// The payloads, first and last, of which the rail chooses whether they are sent at once or read.
    choice: (u32, u32),
    /// Bytes that travel with an announcement.
    first_part: u32,
    /// The rail's: all its paths share them, as idle peers are many.
    can: Arc<Capabilities>,
}

impl Path {
    /// The path to a peer that the rail numbers so.
    pub(crate) fn new(config: &PmlConfig, rail: RailId, peer: PeerIndex, can: &Arc<Capabilities>) -> Self {
        let head = if config.checksum {
            wire::CHECKED_LEN
        } else {
            wire::MATCH_LEN
        };
        let room = can.limits.message.saturating_sub(head);
        let by_rail = can.limits.eager.saturating_sub(head);
        let eager = config.eager_limit.unwrap_or(by_rail).min(room);
        let get_from = can.limits.get_from.saturating_sub(head).saturating_add(1);
        let chooses = can.features.get
            && can.features.within_host
            && get_from < by_rail
            && config.eager_limit.is_none()
            && config.protocol == Protocol::Auto;
        let choice = if chooses {
            (narrow(get_from), narrow(room))
        } else {
            (u32::MAX, 0)
        };
        let first_room = can.limits.message.saturating_sub(wire::RNDV_LEN);
        let first_part = config.first_part.unwrap_or(eager).min(first_room);
        Self {
            rail,
            peer,
            is_up: true,
            eager: narrow(eager),
            choice,
            first_part: narrow(first_part),
            can: Arc::clone(can),
        }
    }

    /// The rail, and the peer's number there.
    #[inline]
    pub(crate) fn route(&self) -> (RailId, PeerIndex) {
        (self.rail, self.peer)
    }

    /// The rail of the path.
    #[inline]
    pub(crate) fn rail(&self) -> RailId {
        self.rail
    }

    /// Whether it may carry messages.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Notes whether it may carry messages.
    pub(crate) fn set_up(&mut self, is_up: bool) {
        self.is_up = is_up;
    }

    /// Longest payload that is sent at once.
    pub(crate) fn eager(&self) -> usize {
        self.eager as usize
    }

    /// Longest payload that is sent at once without a question to the rail.
    pub(crate) fn eager_for_sure(&self) -> usize {
        self.eager.min(self.choice.0 - 1) as usize
    }

    /// Whether the rail chooses if a contiguous payload of this length is sent at once or read.
    pub(crate) fn has_choice(&self, length: u64) -> bool {
        (u64::from(self.choice.0)..=u64::from(self.choice.1)).contains(&length)
    }

    /// Bytes that travel with an announcement.
    pub(crate) fn first_part(&self) -> usize {
        self.first_part as usize
    }

    /// The capabilities of the rail.
    pub(crate) fn can(&self) -> &Capabilities {
        &self.can
    }

    /// Whether a contiguous message of `length` bytes should be read by its receiver.
    pub(crate) fn wants_get(&self, protocol: Protocol, length: u64) -> bool {
        let get = self.can.features.get;
        match protocol {
            // Both limits are of a whole message, so that no length falls between them and goes by fragments.
            Protocol::Auto => get && length + wire::MATCH_LEN as u64 >= self.can.limits.get_from as u64,
            Protocol::Get => get,
            Protocol::Put | Protocol::Fragments => false,
        }
    }

    /// Whether lent memory of `length` bytes should be read by its receiver where it lies.
    pub(crate) fn lends(&self, protocol: Protocol, length: u64) -> bool {
        let features = self.can.features;
        let chooses = matches!(protocol, Protocol::Auto | Protocol::Get);
        chooses && features.get && features.within_host && length >= LENT_FROM
    }

    /// Whether a contiguous message should be written by its sender.
    pub(crate) fn wants_put(&self, protocol: Protocol) -> bool {
        let features = self.can.features;
        match protocol {
            Protocol::Auto => features.put && !features.get,
            Protocol::Put => features.put,
            Protocol::Get | Protocol::Fragments => false,
        }
    }

    /// Payload bytes of one fragment.
    pub(crate) fn fragment(&self) -> usize {
        let limits = &self.can.limits;
        limits
            .fragment
            .min(limits.message)
            .saturating_sub(wire::FRAG_LEN)
            .max(1)
    }
}
