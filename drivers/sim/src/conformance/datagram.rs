//! The promises of `Datagram`, each a check by name; `datagram_conformance!` makes tests of them.

use std::time::Instant;

use doorbell_fabric::datagram::{Channel, Datagram, FrameId, Receive, Run, Transmit};
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};

use super::PATIENCE;
use super::message::pattern;

const CHANNELS: [Channel; 2] = [Channel::Priority, Channel::Data];

/// Makes a test of every check in [`datagram`](crate::conformance::datagram), each over a fresh pair. With
/// `list` and the type of a rail, it is a list of them instead, with their names, for programs.
#[macro_export]
macro_rules! datagram_conformance {
    (list $rail:ty) => {
        $crate::datagram_conformance!(@all [list $rail])
    };
    ($pair:path) => {
        $crate::datagram_conformance!(@all [tests $pair]);
    };
    (@all $made:tt) => {
        $crate::datagram_conformance! { @made $made
            a_frame_arrives_as_it_was_posted
            a_run_arrives_as_its_frames
            reserved_room_cannot_fail_and_no_more_is_given
            without_room_nothing_is_posted
            a_frame_above_the_mtu_is_refused
            an_unknown_peer_is_refused
            reaped_follows_the_posts_in_order
            frames_stay_in_place_until_the_next_poll
            a_kept_frame_leaves_the_ring
            a_peer_that_is_forgotten_can_be_opened_again
        }
    };
    (@made [list $rail:ty] $($check:ident)*) => {
        [$((
            stringify!($check),
            $crate::conformance::datagram::$check as fn(&mut $crate::conformance::datagram::Ends<$rail>),
        )),*]
    };
    (@made [tests $pair:path] $($check:ident)*) => {
        $(#[test]
        fn $check() {
            $crate::conformance::datagram::$check(&mut $pair());
        })*
    };
}

/// Advances time a little for both ends, without polling.
type Pump<D> = Box<dyn FnMut(&mut D, &mut D)>;

/// Two datagram queue pairs opened to each other, over a network without faults.
pub struct Ends<D> {
    /// One end of the pair.
    pub a: D,
    /// The other end.
    pub b: D,
    /// The other end, as `a` numbers it.
    pub to_b: PeerIndex,
    /// The first end, as `b` numbers it.
    pub to_a: PeerIndex,
    pump: Pump<D>,
}

impl<D: Datagram> Ends<D> {
    /// Opens each end at the other; `pump` advances time a little.
    ///
    /// # Panics
    /// When one cannot be opened.
    pub fn connect(
        (mut a, life_a): (D, Incarnation),
        (mut b, life_b): (D, Incarnation),
        pump: impl FnMut(&mut D, &mut D) + 'static,
    ) -> Self {
        let to_b = a
            .open(&b.address(), life_b)
            .expect("a rail opens its published address");
        let to_a = b
            .open(&a.address(), life_a)
            .expect("a rail opens its published address");
        Self {
            a,
            b,
            to_b,
            to_a,
            pump: Box::new(pump),
        }
    }

    fn post(&mut self, channel: Channel, head: &[u8], body: Body<'_>) -> FrameId {
        let start = Instant::now();
        while self.a.split().0.reserve(channel, 1) == 0 {
            (self.pump)(&mut self.a, &mut self.b);
            assert!(
                start.elapsed() < PATIENCE,
                "never happened: room in the send ring"
            );
        }
        let to_b = self.to_b;
        let id = self
            .a
            .split()
            .0
            .post(channel, to_b, head, body)
            .expect("reserved room");
        self.a.split().0.doorbell();
        id
    }

    /// Polls `b` until it shows frames; returns how many.
    fn arrive(&mut self, channel: Channel, budget: usize) -> usize {
        let start = Instant::now();
        loop {
            let shown = self.b.split().1.poll(channel, budget);
            if shown > 0 {
                assert!(shown <= budget, "{shown} shown for a budget of {budget}");
                return shown;
            }
            (self.pump)(&mut self.a, &mut self.b);
            assert!(start.elapsed() < PATIENCE, "never happened: a frame arrives");
        }
    }

    fn bytes(&mut self, channel: Channel, i: usize) -> Vec<u8> {
        self.b
            .split()
            .1
            .frame(channel, i)
            .expect("a shown frame")
            .bytes
            .to_vec()
    }
}

/// Every length, on both channels, from the peer that sent it, on that channel only.
pub fn a_frame_arrives_as_it_was_posted<D: Datagram>(ends: &mut Ends<D>) {
    let mtu = ends.a.capabilities().limits.message;
    let region = Region::new(mtu).expect("memory for a test");
    for channel in CHANNELS {
        for (salt, length) in [1, 2, 64, mtu / 2, mtu].into_iter().enumerate() {
            let expected = pattern(length, salt);
            let (head, body) = expected.split_at(length.min(8));
            region.write(0, body);
            let slice = region.slice(0, body.len()).expect("inside the region");
            for body in [Body::Bytes(body), Body::Region(&slice)] {
                ends.post(channel, head, body);
                assert_eq!(ends.arrive(channel, 16), 1);
                let to_a = ends.to_a;
                assert_eq!(
                    ends.b.split().1.frame(channel, 0).expect("shown").from,
                    Some(to_a)
                );
                assert!(
                    ends.bytes(channel, 0) == expected,
                    "{length} bytes on {channel:?}"
                );
                let other = if channel == Channel::Data {
                    Channel::Priority
                } else {
                    Channel::Data
                };
                assert_eq!(ends.b.split().1.poll(other, 16), 0, "channels are apart");
            }
        }
    }
}

/// The frames of a run come one after the other, behind what was posted before it and before what was posted
/// afterwards, and no more of them fit than were reserved. Runs that the send ring has no room for are left
/// out.
pub fn a_run_arrives_as_its_frames<D: Datagram>(ends: &mut Ends<D>) {
    const HEAD: usize = 16;
    let mtu = ends.a.capabilities().limits.message;
    let to_b = ends.to_b;
    let rings = CHANNELS.map(|channel| ends.a.split().0.reserve(channel, usize::MAX));
    for (count, size, last) in [
        (1, mtu, 7),
        (2, mtu, 1),
        (2, 64, 64 - HEAD),
        (5, 200, 100),
        (23, mtu, 3),
    ] {
        for channel in CHANNELS {
            if count + 2 > rings[channel.index()] {
                continue;
            }
            let first = pattern(HEAD + 5, count);
            let others = pattern(HEAD * (count - 1), size);
            let before = (count.max(2) - 2) * (size - HEAD) + (size - first.len());
            let body = pattern(if count == 1 { last } else { before + last }, 1);
            let run =
                Run::new(&first, &others, HEAD, size, SharedBytes::of(&body)).expect("the sizes are right");
            assert_eq!(run.len(), count);
            let start = Instant::now();
            while ends.a.split().0.reserve(channel, count + 2) < count + 2 {
                (ends.pump)(&mut ends.a, &mut ends.b);
                assert!(start.elapsed() < PATIENCE, "never happened: room for a run");
            }
            let (tx, _) = ends.a.split();
            let id = tx.post(channel, to_b, b"before", Body::Empty).expect("room");
            assert_eq!(tx.post_run(channel, to_b, &run), Ok(FrameId(id.0 + count as u64)));
            assert_eq!(
                tx.post(channel, to_b, b"after", Body::Empty),
                Ok(FrameId(id.0 + count as u64 + 1))
            );
            assert_eq!(
                tx.post_run(channel, to_b, &run),
                Err(Refused::Full),
                "all that was reserved is used"
            );
            tx.doorbell();

            let (mut expected, mut rest) = (vec![b"before".to_vec()], &body[..]);
            for head in std::iter::once(&first[..]).chain(others.chunks(HEAD)) {
                let (near, far) = rest.split_at(rest.len().min(size - head.len()));
                expected.push([head, near].concat());
                rest = far;
            }
            expected.push(b"after".to_vec());
            let mut came = Vec::new();
            while came.len() < expected.len() {
                let shown = ends.arrive(channel, 16);
                came.extend((0..shown).map(|i| ends.bytes(channel, i)));
            }
            assert!(came == expected, "{count} frames of {size} bytes on {channel:?}");
        }
    }
}

/// `reserve` returns what can be posted; room comes back as the device releases frames.
pub fn reserved_room_cannot_fail_and_no_more_is_given<D: Datagram>(ends: &mut Ends<D>) {
    for channel in CHANNELS {
        let to_b = ends.to_b;
        let (tx, _) = ends.a.split();
        let mut posted = 0;
        loop {
            // More than once where the device releases the rail's own packets meanwhile: requests for a
            // neighbour's address.
            let room = tx.reserve(channel, usize::MAX);
            if room == 0 {
                break;
            }
            for _ in 0..room {
                posted += 1;
                assert!(posted < 1 << 20, "a ring is full at some time without a doorbell");
                let id = tx.post(channel, to_b, b"head", Body::Empty);
                assert_eq!(id, Ok(FrameId(posted)));
            }
            assert_eq!(tx.post(channel, to_b, b"head", Body::Empty), Err(Refused::Full));
        }
        assert!(posted > 0, "an idle ring has room");
        tx.doorbell();
        let start = Instant::now();
        while ends.a.split().0.reserve(channel, 1) == 0 {
            (ends.pump)(&mut ends.a, &mut ends.b);
            ends.b.split().1.poll(channel, 64);
            assert!(start.elapsed() < PATIENCE, "never happened: room comes back");
        }
    }
}

/// Checks that nothing is posted without a reservation.
pub fn without_room_nothing_is_posted<D: Datagram>(ends: &mut Ends<D>) {
    let to_b = ends.to_b;
    let (tx, _) = ends.a.split();
    for channel in CHANNELS {
        assert_eq!(tx.post(channel, to_b, b"head", Body::Empty), Err(Refused::Full));
        assert_eq!(tx.reserve(channel, 0), 0);
        assert_eq!(tx.post(channel, to_b, b"head", Body::Empty), Err(Refused::Full));
    }
}

/// The limit is the limit.
pub fn a_frame_above_the_mtu_is_refused<D: Datagram>(ends: &mut Ends<D>) {
    let long = vec![0; ends.a.capabilities().limits.message];
    let to_b = ends.to_b;
    let (tx, _) = ends.a.split();
    assert_eq!(tx.reserve(Channel::Data, 1), 1);
    assert_eq!(
        tx.post(Channel::Data, to_b, b"x", Body::Bytes(&long)),
        Err(Refused::TooLong)
    );
    assert_eq!(
        tx.post(Channel::Data, to_b, b"", Body::Bytes(&long)),
        Ok(FrameId(1)),
        "no room was used up"
    );
}

/// A number that `open` never gave is no peer.
pub fn an_unknown_peer_is_refused<D: Datagram>(ends: &mut Ends<D>) {
    let unknown = PeerIndex(ends.to_b.0 + 1000);
    let (tx, _) = ends.a.split();
    assert_eq!(tx.reserve(Channel::Data, 1), 1);
    assert_eq!(
        tx.post(Channel::Data, unknown, b"x", Body::Empty),
        Err(Refused::PeerDown)
    );
}

/// `reaped` only grows, never passes the last post, and reaches it.
pub fn reaped_follows_the_posts_in_order<D: Datagram>(ends: &mut Ends<D>) {
    for channel in CHANNELS {
        let mut last = FrameId(0);
        let mut posted = FrameId(0);
        let start = Instant::now();
        while last < FrameId(500) {
            if posted < FrameId(500) {
                posted = ends.post(channel, b"head", Body::Empty);
            }
            let reaped = ends.a.split().0.reaped(channel);
            assert!(
                reaped >= last && reaped <= posted,
                "{last:?} then {reaped:?} of {posted:?}"
            );
            last = reaped;
            (ends.pump)(&mut ends.a, &mut ends.b);
            ends.b.split().1.poll(channel, 64);
            assert!(start.elapsed() < PATIENCE, "never happened: everything is reaped");
        }
    }
}

/// Frames stay the same until the next poll, which returns the buffers.
pub fn frames_stay_in_place_until_the_next_poll<D: Datagram>(ends: &mut Ends<D>) {
    ends.post(Channel::Data, b"first", Body::Empty);
    assert_eq!(ends.arrive(Channel::Data, 1), 1);
    ends.post(Channel::Data, b"second", Body::Empty);
    (0..100).for_each(|_| (ends.pump)(&mut ends.a, &mut ends.b));
    assert_eq!(ends.bytes(Channel::Data, 0), b"first");
    assert_eq!(ends.bytes(Channel::Data, 0), b"first");
    assert!(
        ends.b.split().1.frame(Channel::Data, 1).is_none(),
        "one was shown"
    );
    assert_eq!(ends.arrive(Channel::Data, 16), 1);
    assert_eq!(ends.bytes(Channel::Data, 0), b"second");
    assert_eq!(ends.b.split().1.poll(Channel::Data, 16), 0);
    assert!(
        ends.b.split().1.frame(Channel::Data, 0).is_none(),
        "none was shown"
    );
}

/// Kept buffers are bounded, leave the ring, and return when they are dropped.
pub fn a_kept_frame_leaves_the_ring<D: Datagram>(ends: &mut Ends<D>) {
    let mut kept = Vec::new();
    let refused = loop {
        ends.post(Channel::Data, b"frame", Body::Empty);
        assert_eq!(ends.arrive(Channel::Data, 1), 1);
        match ends.b.split().1.keep(Channel::Data, 0) {
            Ok(buffer) => kept.push(buffer),
            Err(refused) => break refused,
        }
        assert!(
            ends.b.split().1.frame(Channel::Data, 0).is_none(),
            "a kept frame is not shown"
        );
        assert!(
            ends.b.split().1.keep(Channel::Data, 0).is_err(),
            "and not kept twice"
        );
        assert!(kept.len() < 1_000_000, "fresh buffers are bounded");
    };
    assert_eq!(refused, Refused::Full);
    assert_eq!(
        ends.bytes(Channel::Data, 0),
        b"frame",
        "what could not be kept is still there"
    );
    assert!(!kept.is_empty(), "there are fresh buffers at first");
    kept.pop();
    assert!(
        ends.b.split().1.keep(Channel::Data, 0).is_ok(),
        "a dropped buffer makes room"
    );
}

/// A peer that was forgotten, however often, is opened as one that was not known, and its number is used
/// again. Two lives at one address are one peer.
pub fn a_peer_that_is_forgotten_can_be_opened_again<D: Datagram>(ends: &mut Ends<D>) {
    let address = ends.b.address();
    let again = ends.a.open(&address, Incarnation(u64::MAX)).expect("it is open");
    assert_eq!(again, ends.to_b, "whatever lives there");
    for _ in 0..200 {
        ends.a.forget(ends.to_b);
        ends.a.forget(ends.to_b);
        ends.to_b = ends.a.open(&address, Incarnation(0)).expect("it is still there");
        assert!(ends.to_b.0 < 2, "{:?} after one peer at a time", ends.to_b);
    }
    ends.a.forget(PeerIndex(ends.to_b.0 + 1000));
    let start = Instant::now();
    loop {
        // The first ones may be lost, until the next hop's hardware address is known again.
        ends.post(Channel::Data, b"again", Body::Empty);
        for _ in 0..20 {
            (ends.pump)(&mut ends.a, &mut ends.b);
            // Messages of the next hop come with polls.
            for channel in CHANNELS {
                ends.a.split().1.poll(channel, 1);
            }
            ends.b.split().1.poll(Channel::Priority, 1);
            if ends.b.split().1.poll(Channel::Data, 1) == 1 {
                assert_eq!(ends.bytes(Channel::Data, 0), b"again");
                return;
            }
        }
        assert!(start.elapsed() < PATIENCE, "never happened: a frame arrives");
    }
}
