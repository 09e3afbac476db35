//! Messages over a reliable connection from the port to itself: what a rail of connections does, tried.

use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::EventKind;
use doorbell_fabric::message::{Arrivals, Body, Inbound, Message as _, OpError, OpId, PeerIndex};
use doorbell_fabric::rail::Rail as _;
use doorbell_verbs::{RcRail, VerbsConfig};

use super::{At, Fix, Link, Walk, refused};

/// Messages of each length.
const COUNT: usize = 64;
/// Bytes of a short one.
const SHORT: usize = 64;
/// Time for a connection, and for the messages.
const PATIENCE: Duration = Duration::from_secs(5);

/// Messages that came, and those that were not what was sent.
#[derive(Default)]
pub(super) struct Came {
    next: usize,
    wrong: usize,
    length: usize,
}

/// The bytes of the message of this number: short ones, then long ones.
fn message(number: usize, longest: usize) -> Vec<u8> {
    let length = if number < COUNT { SHORT } else { longest };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(length, number as u8);
    bytes
}

impl Arrivals for Came {
    fn message(&mut self, _: PeerIndex, inbound: Inbound<'_>) {
        let mut bytes = vec![0; inbound.len()];
        inbound.copy_to(0, &mut bytes);
        self.wrong += usize::from(bytes != message(self.next, self.length));
        self.next += 1;
    }

    fn completed(&mut self, _: OpId, _: Result<u64, OpError>) {}
}

/// Why the messages did not come.
pub(super) enum Failed {
    Refused(RailError),
    /// One rail is opened, and a second one beside it is not.
    Second(RailError),
    Down(String),
    Silent(Came),
}

/// Sends messages of two lengths from one rail of the port to another, and compares what comes.
pub(super) fn steps(walk: &mut Walk, at: &At<'_>, config: &VerbsConfig) -> Link {
    judged(walk, exchange(at, config))
}

/// What the exchange shows.
pub(super) fn judged(walk: &mut Walk, outcome: Result<(Came, Duration), Failed>) -> Link {
    match outcome {
        Ok((came, took)) if came.wrong == 0 => {
            walk.proved(
                "connection",
                format!(
                    "{COUNT} messages of {SHORT} bytes and {COUNT} of {} bytes came from the port to itself, whole and in \
                     order; connected and done after {} ms",
                    came.length,
                    took.as_millis()
                ),
            );
            Ok(())
        }
        Ok((came, _)) => Err(walk.broken(
            "connection",
            format!(
                "{} of {} messages from the port to itself are not what was sent",
                came.wrong, came.next
            ),
            "the device or its driver changes what it carries",
            vec![Fix::hand(
                "use another rail, and report it to the device's vendor",
            )],
        )),
        Err(Failed::Refused(error)) => Err(refused(walk, "connection", &error)),
        Err(Failed::Second(error)) => {
            // A job has one rail of a port in each process: this limit may never be met there.
            walk.untried(
                "connection",
                format!(
                    "a rail of the port opens, and a second one beside it in this process does not: {error}"
                ),
                vec![Fix::hand(
                    "`doorbell pingpong --rail` with this name tries a connection between two processes",
                )],
            );
            Ok(())
        }
        Err(Failed::Down(why)) => Err(walk.broken(
            "connection",
            format!("the port is not connected to itself: {why}"),
            "its datagrams pass, and what its queue pairs of connections send does not",
            vec![Fix::hand(
                "`ibv_rc_pingpong` of ibverbs-utils tries the same; look at `dmesg`",
            )],
        )),
        Err(Failed::Silent(came)) => Err(walk.broken(
            "connection",
            format!(
                "{} of {} messages came from the port to itself",
                came.next,
                2 * COUNT
            ),
            "the device does not loop connections back, or drops long packets",
            vec![Fix::hand(
                "`ibv_rc_pingpong` of ibverbs-utils tries the same; look at `dmesg`",
            )],
        )),
    }
}

fn exchange(at: &At<'_>, config: &VerbsConfig) -> Result<(Came, Duration), Failed> {
    let open = || RcRail::open(at.name, config);
    let mut from = open().map_err(Failed::Refused)?;
    let mut to = open().map_err(Failed::Second)?;
    // Both are of this process.
    let key = [0x5a; 32];
    from.set_key(&key);
    to.set_key(&key);
    let peer = from
        .open(&to.address(), to.incarnation())
        .map_err(Failed::Refused)?;
    to.open(&from.address(), from.incarnation())
        .map_err(Failed::Refused)?;
    let (clock, began) = (Clock::system(), Instant::now());
    let mut came = Came {
        length: from.capabilities().limits.message,
        ..Came::default()
    };
    let mut sent = 0;
    while came.next < 2 * COUNT {
        if began.elapsed() > PATIENCE {
            return Err(Failed::Silent(came));
        }
        while sent < 2 * COUNT
            && from
                .send(peer, &[], Body::Bytes(&message(sent, came.length)))
                .is_ok()
        {
            sent += 1;
        }
        from.flush();
        let now = clock.now();
        from.progress(now);
        to.progress(now);
        from.poll(COUNT, &mut Came::default());
        if to.poll(COUNT, &mut came) == 0 {
            thread::yield_now();
        }
        while let Some(event) = from.event() {
            if let EventKind::PeerDown(reason) = event.kind {
                let why = from.findings(peer).unwrap_or_else(|| format!("{reason:?}"));
                return Err(Failed::Down(why));
            }
        }
    }
    Ok((came, began.elapsed()))
}
