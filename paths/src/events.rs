//! What follows when a path breaks, answers or comes back: by an event of its rail, a refusal, or a message
//! of the peer.

use std::time::Duration;

use doorbell_fabric::event::{DownReason, EventKind, Life};
use doorbell_fabric::time::Time;

use crate::layer::{Count, Layer};
use crate::reason::Reason;
use crate::set::each;
use crate::state::{PathEvent, PathState};
use crate::tick::call;
use crate::word::Word;

/// How long what a process sent over other paths before it ended may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(10);

/// Acts on an event of a rail about one path of a peer; `life` is the event's.
#[cold]
pub fn on_event<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, kind: EventKind, life: Life) {
    match kind {
        EventKind::PeerUp => reached(layer, now, peer, at, life),
        EventKind::PeerSuspect => turn(layer, now, peer, at, PathEvent::Silent),
        EventKind::PeerRecovered => turn(layer, now, peer, at, PathEvent::Answered),
        EventKind::PeerDown(reason) => ended(layer, now, peer, at, Reason::Peer(reason), true),
        EventKind::LinkDown => broken(layer, now, peer, at, Reason::Link),
        EventKind::DeviceGone => broken(layer, now, peer, at, Reason::Device),
        EventKind::LinkUp => plugged(layer, now, peer, at),
    }
}

/// Moves a path on, if the table has the transition, and lets the layer choose again.
pub(crate) fn turn<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, event: PathEvent) {
    let Some((from, to)) = step(layer, now, peer, at, event) else {
        return;
    };
    if from.is_used() || to.is_used() {
        layer.choose(peer);
    }
}

/// Moves a path on, if the table has the transition. Returns the states before and after.
fn step<L: Layer>(
    layer: &mut L,
    now: Time,
    peer: u32,
    at: usize,
    event: PathEvent,
) -> Option<(PathState, PathState)> {
    let (paths, timers) = layer.paths(peer)?;
    let path = paths.get_mut(at)?;
    let from = path.turn(now, event)?;
    let to = path.state();
    timers.watch(peer, paths);
    layer.moved(peer, at, to);
    Some((from, to))
}

/// The link of a path is back: the peer is called at once.
fn plugged<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    paths.wait_anew(now + timers.policy().patience);
    let Some(path) = paths.get_mut(at) else { return };
    path.hurry();
    match path.state() {
        PathState::Down => path.wake_at(now),
        // The calls so far went nowhere.
        PathState::Probing => return call(layer, now, peer, at),
        PathState::Up | PathState::Suspect | PathState::Returning => return,
    }
    timers.watch(peer, paths);
}

/// Both directions work: at first, or again.
fn reached<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, life: Life) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at) else { return };
    path.begin(life);
    let first = path.probes.meet();
    // The peer has started over, too.
    paths.forget_news(at);
    if first && paths.any(|path| path.probes.unmet_since().is_some()) {
        timers.watch(peer, paths); // there is a path now that others are doubted by
    }
    if step(layer, now, peer, at, PathEvent::Reached).is_none() {
        if first {
            layer.choose(peer);
        }
        return;
    }
    // Without another one, there is nothing to wait for.
    if used(layer, peer) == 0 {
        steady(layer, now, peer, at);
    }
}

/// A returning path is used again.
pub(crate) fn steady<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, _)) = layer.paths(peer) else {
        return;
    };
    paths.wait_no_more();
    layer.count(Count::Returned);
    turn(layer, now, peer, at, PathEvent::Steady);
}

/// Gives a path up, whatever its rail knows: the rail refused a message for good, or the peer gave it up.
#[cold]
pub fn broken<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, reason: Reason) {
    ended(layer, now, peer, at, reason, false);
}

/// A path broke, which its rail has `reported`, or is notified of now: what was under way over it goes over
/// the others.
#[cold]
fn ended<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, reason: Reason, reported: bool) {
    let Some((paths, _)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at) else { return };
    let newly_dead = reason.is_for_good() && path.mark_dead();
    let was_alone = paths.alone().is_some();
    let Some((from, _)) = step(layer, now, peer, at, PathEvent::Broken) else {
        // It is down already, and now it is known why.
        if newly_dead {
            layer.choose(peer);
        }
        if was_alone {
            alone(layer, now, peer, at, reason);
        }
        return;
    };
    let lossy = from.is_used() && layer.loses(peer, at);
    if !reported {
        // A rail that reported it may know more meanwhile: that the peer is back, over a connection which is
        // good.
        layer.abandon(peer, at);
    }
    layer.take_back(peer, at);
    if from.is_used() {
        layer.count(Count::Down);
    }
    if from.is_used() || newly_dead {
        layer.choose(peer);
    }
    hurry(layer, now, peer);
    let others = used(layer, peer) != 0;
    if lossy && (others || may_hope(layer, peer, at, reason)) {
        layer.lose(peer, Reason::NotReclaimable);
    } else if others {
        others_carry_on(layer, now, peer, at, reason);
    } else {
        alone(layer, now, peer, at, reason);
    }
}

fn used<L: Layer>(layer: &mut L, peer: u32) -> u64 {
    layer.paths(peer).map_or(0, |(paths, _)| paths.used())
}

/// If no path is in use, one that is coming back need not prove itself.
fn hurry<L: Layer>(layer: &mut L, now: Time, peer: u32) {
    if let Some((paths, _)) = layer.paths(peer)
        && paths.used() == 0
        && let Some(at) = paths.first_in(PathState::Returning)
    {
        steady(layer, now, peer, at);
    }
}

/// Notifies the peer of the path that is given up, over each of the others: the peer may have closed its end
/// of the one that is next here, and may have had no way to report that.
fn others_carry_on<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, reason: Reason) {
    let Some((paths, _)) = layer.paths(peer) else {
        return;
    };
    let life = paths.get(at).map(|path| path.life()).unwrap_or_default();
    // Unless it is the peer that reported it.
    if reason != Reason::Peer(DownReason::Abandoned) && !send_broken(layer, peer, at, life) {
        add_news(layer, peer, at, life);
    }
    if reason == Reason::Peer(DownReason::Died)
        && layer.is_within_host(peer, at)
        && let Some((paths, timers)) = layer.paths(peer)
    {
        // Within a host it is the process itself that is seen to end: no need to wait for its silence
        // elsewhere.
        paths.end(now + LAST_WORDS);
        timers.watch(peer, paths);
    }
}

/// Notifies the peer over all paths in use that a connection is given up. Returns whether one of them took
/// it.
fn send_broken<L: Layer>(layer: &mut L, peer: u32, broken: usize, life: Life) -> bool {
    let word = Word::Broken {
        path: broken as u16,
        life,
    };
    let mut taken = false;
    for at in each(used(layer, peer)) {
        taken |= layer.send_word(peer, at, word);
    }
    taken
}

/// Notifies the peer of the given-up connections of which the lack of room kept it uninformed so far.
/// Returns `false` when there is still none. To be called before anything else is sent that has waited.
pub fn send_news<L: Layer>(layer: &mut L, peer: u32) -> bool {
    while let Some((at, life)) = layer.paths(peer).and_then(|(paths, _)| paths.last_news()) {
        if !send_broken(layer, peer, at, life) {
            return false;
        }
        if let Some((paths, _)) = layer.paths(peer) {
            paths.forget_news(at);
        }
    }
    true
}

/// A rail gave back a word that it had accepted ([`Layer::take_back`]). What is about that path itself is
/// over with it; what was to notify the peer of another one is sent once more, unless that one has come back
/// since.
pub fn given_back<L: Layer>(layer: &mut L, peer: u32, word: Word) {
    if let Word::Broken { path, life } = word
        && let Some((paths, _)) = layer.paths(peer)
        && paths
            .get(usize::from(path))
            .is_some_and(|path| path.life() == life)
    {
        add_news(layer, peer, usize::from(path), life);
    }
}

fn add_news<L: Layer>(layer: &mut L, peer: u32, at: usize, life: Life) {
    if let Some((paths, _)) = layer.paths(peer) {
        paths.add_news(at, life);
        layer.wants_room(peer);
    }
}

/// No path is in use. Where one may come back it is waited for; otherwise the peer is lost.
fn alone<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, reason: Reason) {
    if !may_hope(layer, peer, at, reason) {
        layer.lose(peer, reason);
        return;
    }
    if let Some((paths, timers)) = layer.paths(peer) {
        paths.wait(now + timers.policy().patience, reason);
        timers.watch(peer, paths);
    }
}

fn may_hope<L: Layer>(layer: &mut L, peer: u32, at: usize, reason: Reason) -> bool {
    layer
        .paths(peer)
        .is_some_and(|(paths, timers)| paths.may_hope(at, reason, timers.policy()))
}
