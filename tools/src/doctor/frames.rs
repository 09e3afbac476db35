//! Frames between two real rails of this process: short and full ones, on both channels, compared byte by
//! byte.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};

/// How many frames of each length are sent.
const TIMES: usize = 16;
/// If none of this many frames arrives, no more are sent.
const FIRST: usize = 4;
/// A frame that is not there by then is lost: nothing here leaves the machine.
const PATIENCE: Duration = Duration::from_millis(300);

/// The frames that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Came {
    /// Frames that were sent, of each length.
    pub(super) sent: usize,
    /// Of them, those of 64 bytes that came as they were sent.
    pub(super) short: usize,
    /// And those of the full length.
    pub(super) full: usize,
    /// The full length, in bytes.
    pub(super) length: usize,
}

impl Came {
    fn none_yet(length: usize) -> Self {
        Self {
            sent: 2 * TIMES,
            short: 0,
            full: 0,
            length,
        }
    }
}

/// Sends frames from one rail to the other.
///
/// # Errors
/// When one function cannot open the other as its peer.
pub(super) fn exchange<R: Datagram>(
    from: &mut R,
    to: &mut R,
    incarnation: Incarnation,
) -> Result<Came, doorbell_fabric::error::RailError> {
    let peer = Datagram::open(from, &to.address(), incarnation)?;
    let length = from
        .capabilities()
        .limits
        .message
        .min(to.capabilities().limits.message);
    let clock = Clock::system();
    let mut came = Came::none_yet(length);
    for channel in [Channel::Priority, Channel::Data] {
        for turn in 0..TIMES {
            if turn == FIRST && came.short + came.full == 0 {
                // Nor will the others.
                came.sent = turn;
                return Ok(came);
            }
            came.short += usize::from(pass(
                from,
                to,
                &clock,
                (peer, channel),
                &pattern(64.min(length), turn),
            ));
            came.full += usize::from(pass(from, to, &clock, (peer, channel), &pattern(length, turn)));
        }
    }
    Ok(came)
}

/// Sends frames from a rail to itself, which is `peer` there, as a switch takes them back that knows its
/// address. `None` where the first one does not come: then nothing is known of the others.
pub(super) fn loop_back<R: Datagram>(rail: &mut R, peer: PeerIndex) -> Option<Came> {
    let length = rail.capabilities().limits.message;
    let clock = Clock::system();
    let mut came = Came::none_yet(length);
    let mut passes = |to: (PeerIndex, Channel), bytes: &[u8]| {
        let until = Instant::now() + PATIENCE;
        send(rail, &clock, to, bytes, until) && comes(rail, &clock, to.1, bytes, until)
    };
    for channel in [Channel::Priority, Channel::Data] {
        for turn in 0..TIMES {
            came.short += usize::from(passes((peer, channel), &pattern(64.min(length), turn)));
            if came.short == 0 {
                return None;
            }
            came.full += usize::from(passes((peer, channel), &pattern(length, turn)));
        }
    }
    Some(came)
}

/// Whether a frame came as it was sent.
fn pass<R: Datagram>(
    from: &mut R,
    to: &mut R,
    clock: &Clock,
    (peer, channel): (PeerIndex, Channel),
    bytes: &[u8],
) -> bool {
    let until = Instant::now() + PATIENCE;
    send(from, clock, (peer, channel), bytes, until) && comes(to, clock, channel, bytes, until)
}

/// Posts a frame; false where there is no room for it by then.
fn send<R: Datagram>(
    from: &mut R,
    clock: &Clock,
    (peer, channel): (PeerIndex, Channel),
    bytes: &[u8],
    until: Instant,
) -> bool {
    const HEAD: usize = 16;
    let (head, body) = bytes.split_at(HEAD.min(bytes.len()));
    from.progress(clock.now());
    let (tx, _) = from.split();
    while tx.reserve(channel, 1) == 0 {
        if Instant::now() > until {
            return false;
        }
        tx.doorbell();
    }
    let is_posted = tx.post(channel, peer, head, Body::Bytes(body)).is_ok();
    tx.doorbell();
    is_posted
}

/// Waits for a frame with these bytes.
fn comes<R: Datagram>(to: &mut R, clock: &Clock, channel: Channel, bytes: &[u8], until: Instant) -> bool {
    while Instant::now() < until {
        to.progress(clock.now());
        let (_, rx) = to.split();
        let frames = rx.poll(channel, 8);
        if (0..frames).any(|at| {
            rx.frame(channel, at)
                .is_some_and(|frame| frame.bytes.to_vec() == bytes)
        }) {
            return true;
        }
        if frames == 0 {
            thread::yield_now();
        }
    }
    false
}

fn pattern(length: usize, turn: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (7 * at + 31 * turn + length) as u8)
        .collect()
}
