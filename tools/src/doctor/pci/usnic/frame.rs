//! Whether frames pass: from the function to another one of its adapter, or back to itself where the
//! adapter's switch takes them there.

use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram as _, Receive as _};
use doorbell_fabric::error::RailError;
use doorbell_fabric::rail::Rail as _;
use doorbell_usnic::{Object, UsnicConfig, UsnicRail};

use crate::doctor::chain::{Fix, Link, Walk};
use crate::doctor::frames::{self, Came};

/// How long two functions may take to find each other.
const ANSWER: Duration = Duration::from_secs(3);

/// The step `frames`.
pub(super) fn step(walk: &mut Walk, config: &UsnicConfig, object: &Object, rail: &mut UsnicRail) -> Link {
    match beside(config, object) {
        Some((name, mut other)) => between(walk, rail, (&name, &mut other)),
        None => alone(walk, object, rail),
    }
}

/// Opens another function of the same model that no process uses.
fn beside(config: &UsnicConfig, object: &Object) -> Option<(String, UsnicRail)> {
    let Object::Model { folder, .. } = object else {
        return None;
    };
    let any = Object::parse(&format!("model/{}/vf*", folder.display())).ok()?;
    let mut others = any.each().into_iter().filter(|other| other != object);
    others.find_map(|other| {
        let name = format!("usnic:{other}");
        let rail = UsnicRail::open(&name.parse().ok()?, config).ok()?;
        Some((name, rail))
    })
}

fn between(walk: &mut Walk, rail: &mut UsnicRail, (name, other): (&str, &mut UsnicRail)) -> Link {
    let met = meet(rail, other).and_then(|met| match met {
        true => frames::exchange(rail, other, other.incarnation()).map(Some),
        false => Ok(None),
    });
    let there = "a script of faults loses them, or the steering of one of the functions does not work";
    match met {
        Err(error) => Err(walk.broken("frames", error.to_string(), "an error of doorbell", Vec::new())),
        Ok(None) => Err(walk.broken(
            "frames",
            format!("{name} did not answer requests for its hardware address through the rings"),
            there,
            vec![Fix::hand(
                "`doorbell-lab model vic` prints at its end how many frames matched no filter or found no buffer",
            )],
        )),
        Ok(Some(came)) => judged(
            walk,
            came,
            &format!("to {name}, another function of the model"),
            there,
        ),
    }
}

/// Waits until the one knows where the other is.
fn meet(rail: &mut UsnicRail, other: &mut UsnicRail) -> Result<bool, RailError> {
    let (clock, end) = (Clock::system(), Instant::now() + ANSWER);
    let peer = rail.open(&other.address(), other.incarnation())?;
    while !rail.is_resolved(peer) {
        if Instant::now() > end {
            return Ok(false);
        }
        for one in [&mut *rail, &mut *other] {
            one.split().1.poll(Channel::Priority, 16);
            one.progress(clock.now());
        }
        std::thread::yield_now();
    }
    Ok(true)
}

/// Without another function: sends a frame to itself.
fn alone(walk: &mut Walk, object: &Object, rail: &mut UsnicRail) -> Link {
    let own = rail.open_itself();
    match frames::loop_back(rail, own) {
        Some(came) => judged(
            walk,
            came,
            "to its own address, and the adapter's switch took them back",
            "frames of this length are longer than the vNIC lets through, or than others on the link do",
        ),
        None => {
            let (why, more) = match object {
                Object::Model { .. } => (
                    "no other function of the model is free, and the model does not return frames to their sender",
                    "start the model with more functions (--vfs N), or end the processes that use the others",
                ),
                Object::Pci(_) => (
                    "an adapter may not return frames to their sender, and there was no other function to answer",
                    "`doorbell links` or `doorbell pingpong` with a peer shows whether frames pass",
                ),
            };
            walk.unknown(
                "frames",
                format!(
                    "no frame was seen to pass: one to its own address did not come back. {why}. Shown so far: commands are \
                     answered, filters are taken, queues start; not shown: that a frame leaves or comes, and DMA"
                ),
                vec![Fix::hand(more)],
            );
            Ok(())
        }
    }
}

/// Judges the frames that arrived, of both lengths.
fn judged(walk: &mut Walk, came: Came, way: &str, cause: &str) -> Link {
    let saw = format!(
        "of {} frames each, {} of 64 bytes and {} of {} bytes came {way}",
        came.sent, came.short, came.full, came.length
    );
    // A queue that is full loses some; what is wrong loses all of a kind.
    if came.short * 2 > came.sent && came.full * 2 > came.sent {
        walk.proved("frames", saw);
        return Ok(());
    }
    Err(walk.broken(
        "frames",
        saw,
        cause,
        vec![Fix::hand(
            "see udp.mtu, and the vNIC's MTU above; the statistics of the rail show what was dropped",
        )],
    ))
}
