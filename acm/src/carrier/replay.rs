//! Suppression of copies: a query goes out over each family that its interface has, and counts once.
//!
//! A frame is identified by its sender, its transaction and its method. A second one over the other family
//! soon after is a copy. Over the *same* family it is not: it was sent again, because the answer was lost.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::Mad;
use super::frame::Header;
use crate::address::Gid;

/// Maximum number of frames remembered; the oldest are forgotten first.
const MOST: usize = 4096;
/// How long a frame is remembered: copies arrive within milliseconds.
const MEMORY: Duration = Duration::from_secs(1);

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    qpn: u32,
    sgid: Gid,
    method: u8,
    transaction: [u8; 8],
}

/// The frames received in the last second.
#[derive(Debug, Default)]
pub(super) struct CopyFilter {
    first: HashMap<Frame, (Family, Time)>,
    order: VecDeque<(Frame, Time)>,
}

impl CopyFilter {
    /// Records a frame; returns whether it is the first copy.
    pub(super) fn is_new(&mut self, now: Time, header: &Header, mad: &Mad, over: Family) -> bool {
        self.forget(now);
        let mut transaction = [0; 8];
        transaction.copy_from_slice(&mad[8..16]);
        let frame = Frame {
            qpn: header.qpn,
            sgid: header.sgid,
            method: mad[3],
            transaction,
        };
        match self.first.get(&frame) {
            Some((family, _)) if *family != over => false,
            Some(_) => true,
            None => {
                self.first.insert(frame, (over, now));
                self.order.push_back((frame, now));
                true
            }
        }
    }

    fn forget(&mut self, now: Time) {
        while let Some((frame, at)) = self.order.front()
            && (now.since(*at) > MEMORY || self.order.len() >= MOST)
        {
            self.first.remove(frame);
            self.order.pop_front();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.first.len().max(self.order.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Kind;
    use super::*;

    fn header(qpn: u32) -> Header {
        Header {
            kind: Kind::Mad,
            qpn,
            lid: 0,
            sgid: Gid::NONE,
            dgid: Gid::NONE,
        }
    }

    #[test]
    fn a_copy_over_the_other_family_is_none_and_one_that_is_sent_again_is_one() {
        let (mut copies, mut now, mad) = (CopyFilter::default(), Time::from_nanos(1), [1; 256]);
        assert!(copies.is_new(now, &header(1), &mad, Family::V6));
        assert!(!copies.is_new(now, &header(1), &mad, Family::V4));
        assert!(copies.is_new(now, &header(1), &mad, Family::V6), "sent again");
        assert!(!copies.is_new(now, &header(1), &mad, Family::V4), "its copy");
        assert!(copies.is_new(now, &header(2), &mad, Family::V4), "another sender");
        assert!(
            copies.is_new(now, &header(1), &[2; 256], Family::V4),
            "another transaction"
        );
        now += MEMORY * 2;
        assert!(
            copies.is_new(now, &header(1), &mad, Family::V4),
            "the first family may have gone"
        );
    }

    #[test]
    fn memory_has_a_bound() {
        let (mut copies, now) = (CopyFilter::default(), Time::from_nanos(1));
        for qpn in 0..3 * MOST as u32 {
            assert!(copies.is_new(now, &header(qpn), &[0; 256], Family::V4));
            assert!(copies.len() <= MOST);
        }
    }
}
