//! Tags: matching of messages with receives.
//!
//! A message goes to the first posted receive, in the order of posting, with the same tag and with senders
//! that include its own. Without one it waits, and the next matching receive takes it, the oldest message
//! first; a persistent receive takes all of them. The waiting messages are bounded for each peer and in all:
//! when a bound is reached, the stream's window closes and the rest stays with the sender.
//!
//! reference: oob, section 5.

use std::collections::{BTreeMap, VecDeque};

use crate::bytes::Bytes;
use crate::event::{RecvError, RecvId};
use crate::name::{From, Name};
use crate::stream::charge;

/// Tags up to this one are reserved for the control plane.
pub const RESERVED: u32 = 100;
/// The tag of a message that was cancelled after it had been sent.
pub(crate) const VOID: u32 = 0;

#[derive(Debug)]
struct Posted {
    recv: RecvId,
    from: From,
    persistent: bool,
}

/// A message that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: Name,
    pub(crate) tag: u32,
    pub(crate) body: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Rml {
    /// Receives by tag, in the order of posting.
    posted: BTreeMap<u32, Vec<Posted>>,
    /// Messages by tag, in the order of arrival.
    waiting: BTreeMap<u32, VecDeque<Arrived>>,
    charge: usize,
    recvs: u64,
}

impl Rml {
    /// Posts a receive, and returns the messages that it takes at once.
    pub(crate) fn post(
        &mut self,
        from: From,
        tag: u32,
        persistent: bool,
    ) -> Result<(RecvId, Vec<Arrived>), RecvError> {
        if tag <= RESERVED {
            return Err(RecvError::Reserved(tag));
        }
        let posted = self.posted.entry(tag).or_default();
        if posted.iter().any(|posted| posted.from == from) {
            return Err(RecvError::Twice { from, tag });
        }
        self.recvs += 1;
        let recv = RecvId(self.recvs);
        let taken = self.take(from, tag, persistent);
        if persistent || taken.is_empty() {
            let posted = self.posted.entry(tag).or_default();
            posted.push(Posted {
                recv,
                from,
                persistent,
            });
        }
        self.tidy(tag);
        Ok((recv, taken))
    }

    fn take(&mut self, from: From, tag: u32, all: bool) -> Vec<Arrived> {
        let mut taken = Vec::new();
        let Some(waiting) = self.waiting.get_mut(&tag) else {
            return taken;
        };
        let mut at = 0;
        while at < waiting.len() && (all || taken.is_empty()) {
            if from.matches(waiting[at].from) {
                taken.extend(waiting.remove(at));
            } else {
                at += 1;
            }
        }
        let less: u32 = taken.iter().map(|arrived| charge(arrived.body.len())).sum();
        self.charge -= less as usize;
        taken
    }

    fn tidy(&mut self, tag: u32) {
        if self.posted.get(&tag).is_some_and(Vec::is_empty) {
            self.posted.remove(&tag);
        }
        if self.waiting.get(&tag).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&tag);
        }
    }

    /// Returns the receive for a message of this sender and tag; a one-shot receive is removed.
    pub(crate) fn matched(&mut self, from: Name, tag: u32) -> Option<RecvId> {
        let posted = self.posted.get_mut(&tag)?;
        let at = posted.iter().position(|posted| posted.from.matches(from))?;
        let recv = posted[at].recv;
        if !posted[at].persistent {
            posted.remove(at);
        }
        self.tidy(tag);
        Some(recv)
    }

    /// Whether a message of this sender and tag would be taken at once.
    pub(crate) fn is_wanted(&self, from: Name, tag: u32) -> bool {
        let posted = self.posted.get(&tag);
        posted.is_some_and(|posted| posted.iter().any(|posted| posted.from.matches(from)))
    }

    /// Keeps a message without a receive.
    pub(crate) fn keep(&mut self, arrived: Arrived) {
        self.charge += charge(arrived.body.len()) as usize;
        self.waiting.entry(arrived.tag).or_default().push_back(arrived);
    }

    /// Returns the bytes (and the overhead per message) without a receive.
    pub(crate) fn waiting(&self) -> usize {
        self.charge
    }

    /// Removes the receive with exactly these senders and this tag.
    pub(crate) fn cancel(&mut self, from: From, tag: u32) -> Option<RecvId> {
        let posted = self.posted.get_mut(&tag)?;
        let at = posted.iter().position(|posted| posted.from == from)?;
        let recv = posted.remove(at).recv;
        self.tidy(tag);
        Some(recv)
    }

    /// Drops the messages of an earlier epoch of `name`.
    pub(crate) fn purge(&mut self, name: Name) {
        let tags: Vec<u32> = self.waiting.keys().copied().collect();
        for tag in tags {
            self.take(From::only(name), tag, true);
            self.tidy(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(rank: u32, body: u8) -> Arrived {
        Arrived {
            from: Name::new(7, rank),
            tag: 200,
            body: Bytes::from(&[body]),
        }
    }

    fn bodies(taken: &[Arrived]) -> Vec<u8> {
        taken.iter().map(|arrived| arrived.body[0]).collect()
    }

    #[test]
    fn the_first_posted_that_matches_takes_it_and_one_shot_ones_take_one() {
        let mut rml = Rml::default();
        let (any, _) = rml.post(From::ANYBODY, 200, false).expect("posted");
        let (only, _) = rml.post(From::only(Name::new(7, 3)), 200, true).expect("posted");
        assert!(rml.is_wanted(Name::new(7, 3), 200) && !rml.is_wanted(Name::new(7, 3), 201));
        let takes: Vec<_> = (0..3).map(|_| rml.matched(Name::new(7, 3), 200)).collect();
        assert_eq!(takes, [Some(any), Some(only), Some(only)]);
        assert_eq!(rml.matched(Name::new(7, 4), 200), None);
    }

    #[test]
    fn unmatched_then_posted_takes_the_oldest_and_persistent_ones_all() {
        let mut rml = Rml::default();
        for (rank, body) in [(1, 10), (2, 20), (1, 11), (1, 12)] {
            rml.keep(arrived(rank, body));
        }
        assert_eq!(rml.waiting(), 4 * 65);
        let (_, taken) = rml.post(From::only(Name::new(7, 1)), 200, false).expect("posted");
        assert_eq!(bodies(&taken), [10]);
        let (_, taken) = rml
            .post(From::only(Name::new(7, 1)), 200, true)
            .expect("the one-shot one is done");
        assert_eq!(bodies(&taken), [11, 12]);
        assert_eq!(rml.waiting(), 65);
        rml.purge(Name::new(7, 2));
        assert_eq!((rml.waiting(), rml.waiting.len()), (0, 0));
    }

    #[test]
    fn an_equal_receive_is_refused_until_the_first_is_cancelled_and_reserved_tags_always() {
        let mut rml = Rml::default();
        let (recv, _) = rml.post(From::job(7), 200, true).expect("posted");
        assert!(rml.post(From::ANYBODY, 200, true).is_ok(), "not equal");
        let twice = RecvError::Twice {
            from: From::job(7),
            tag: 200,
        };
        assert_eq!(rml.post(From::job(7), 200, false).expect_err("equal"), twice);
        assert_eq!(rml.cancel(From::job(7), 200), Some(recv));
        assert_eq!(rml.cancel(From::job(7), 200), None);
        assert!(rml.post(From::job(7), 200, false).is_ok());
        assert_eq!(
            rml.post(From::ANYBODY, RESERVED, false).expect_err("reserved"),
            RecvError::Reserved(RESERVED)
        );
    }
}
