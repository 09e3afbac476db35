//! The endpoints of senders: some bits of a message's context are the endpoint that sent it
//! ([`PmlConfig::sources`](crate::PmlConfig::sources)). On the wire they are where they always were; in
//! matching they are a part of the source, so that a receive can name one endpoint, or none.
//!
//! ```text
//!   wire      context: context bits | source bits      peer: rank
//!   matching  table:   context bits                    source: endpoint << 24 | rank
//! ```

use doorbell_matching::MatchKey;

use crate::args::Status;
use crate::core::Core;
use crate::rank::{Rank, number};
use crate::request::RequestIndex;
use crate::unexpected::Envelope;

impl Core {
    /// The endpoint that sent a message of this context.
    #[inline]
    pub(crate) fn endpoint(&self, context: u16) -> u8 {
        (context & self.config.sources) as u8
    }

    /// Returns what a message is matched by.
    #[inline]
    pub(crate) fn key(&self, rank: Rank, context: u16, tag: u64) -> MatchKey {
        let table = context & !self.config.sources;
        MatchKey::new(u32::from(table), number(rank, self.endpoint(context)), tag)
    }

    /// Returns what a message is matched by.
    #[inline]
    pub(crate) fn key_of(&self, envelope: &Envelope) -> MatchKey {
        self.key(envelope.rank, envelope.context, envelope.tag)
    }

    /// Every sender that a rank may be in matching.
    pub(crate) fn senders_of(&self, rank: Rank) -> impl Iterator<Item = u32> + use<> {
        let sources = self.config.sources as u8;
        let endpoints = (0..=sources).filter(move |endpoint| endpoint & !sources == 0);
        endpoints.map(move |endpoint| number(rank, endpoint))
    }

    /// Messages of a rank that no receive has matched.
    pub(crate) fn kept_of(&self, rank: Rank) -> usize {
        let of = |source| self.matcher.unexpected_load_of(source).messages;
        self.senders_of(rank).map(of).sum()
    }

    /// The status of a request's message.
    #[inline]
    pub(crate) fn status(&self, index: RequestIndex) -> Status {
        self.requests.status(index, self.config.sources)
    }

    /// The status of a message for the user.
    pub(crate) fn status_of(&self, envelope: &Envelope) -> Status {
        Status {
            source: envelope.rank,
            endpoint: self.endpoint(envelope.context),
            tag: envelope.tag,
            length: envelope.length,
            data: envelope.data,
        }
    }
}
