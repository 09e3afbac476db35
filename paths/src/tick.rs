//! What time brings: calls over paths that are down, probes, the end of patience; and what arrived about
//! paths.

use std::time::Duration;

use doorbell_fabric::event::DownReason;
use doorbell_fabric::time::Time;

use crate::events::{broken, steady, turn};
use crate::layer::{Count, Layer};
use crate::path::GivenUp;
use crate::probe::ANSWER;
use crate::reason::Reason;
use crate::state::{PathEvent, PathState};
use crate::timers::TICK;
use crate::word::Word;

/// How often paths in use are compared; and, with a suspect among them, how often the others are probed for a
/// sign of life.
const COMPARED: Duration = Duration::from_millis(100);
const ALARMED: Duration = Duration::from_millis(20);
/// Time after which an answer for which there was no room is tried again.
const ANSWER_AGAIN: Duration = Duration::from_millis(1);

/// Acts on what has arrived about paths since the last call. Returns of how many peers something had.
pub fn act_on_words<L: Layer>(layer: &mut L, now: Time) -> usize {
    let arrived = layer.timers().take_arrived();
    for &peer in &arrived {
        if let Some((paths, _)) = layer.paths(peer) {
            paths.has_words = false;
            act_on_peer(layer, now, peer);
        }
    }
    let count = arrived.len();
    layer.timers().give_back(arrived);
    count
}

fn act_on_peer<L: Layer>(layer: &mut L, now: Time, peer: u32) {
    for at in 0..layer.paths(peer).map_or(0, |(paths, _)| paths.len()) {
        act_on_path(layer, now, peer, at);
    }
}

fn act_on_path<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, _)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at) else { return };
    let question = path.probes.take_question();
    match path.take_given_up() {
        GivenUp::Nothing => {}
        GivenUp::Late => layer.count(Count::Late),
        GivenUp::Now => broken(layer, now, peer, at, Reason::Peer(DownReason::Abandoned)),
    }
    if let Some(number) = question {
        answer(layer, now, peer, at, number);
    }
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at) else { return };
    let Some(first) = path.probes.take_answer(now) else {
        return;
    };
    if first || path.state() == PathState::Returning {
        // Others may be doubted now, and this one may have proved itself.
        timers.watch(peer, paths);
    }
    if first {
        // It may have been thought dead.
        turn(layer, now, peer, at, PathEvent::Answered);
    }
    prove_alive(layer, peer, at);
    if first || layer.traffic(peer).is_some() {
        layer.choose(peer);
    }
}

/// Answers a probe of the peer. Where there is no room, that is tried again soon.
fn answer<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, number: u32) {
    let path = at as u16;
    let state = layer.paths(peer).map(|(paths, _)| paths.state(at));
    let is_down = state.is_none_or(|state| state == PathState::Down);
    if is_down || layer.send_word(peer, at, Word::Echo { path, number }) {
        return;
    }
    if let Some((paths, timers)) = layer.paths(peer)
        && let Some(path) = paths.get_mut(at)
    {
        path.probes.question(number);
        timers.enlist(peer, paths);
        timers.due(now + ANSWER_AGAIN);
    }
}

/// The peer has answered over this path: the rails of those that wait for it know that the fault is their
/// own.
fn prove_alive<L: Layer>(layer: &mut L, peer: u32, over: usize) {
    let waits = |state| matches!(state, PathState::Suspect | PathState::Returning);
    let waiting = layer.paths(peer).map_or(0, |(paths, _)| paths.in_state(waits));
    for at in crate::each(waiting & !(1 << over)) {
        layer.proved_alive(peer, at);
    }
}

/// Looks at every peer that is watched.
#[cold]
pub fn tick<L: Layer>(layer: &mut L, now: Time) {
    layer.timers().begin();
    let mut at = 0;
    while let Some(peer) = layer.timers().watched_at(at) {
        if tick_peer(layer, now, peer) {
            at += 1;
            continue;
        }
        if let Some((paths, _)) = layer.paths(peer) {
            paths.is_watched = false;
        }
        layer.timers().unwatch(at);
    }
    layer.timers().end(now);
}

/// Looks at one peer. Returns whether it is to be watched on.
fn tick_peer<L: Layer>(layer: &mut L, now: Time, peer: u32) -> bool {
    // Arrivals come first: nothing is judged by the absence of what is here.
    act_on_peer(layer, now, peer);
    for at in 0..layer.paths(peer).map_or(0, |(paths, _)| paths.len()) {
        tick_path(layer, now, peer, at);
    }
    let measured = layer.traffic(peer).is_some();
    let Some((paths, timers)) = layer.paths(peer) else {
        return false;
    };
    let (alone, ended) = (paths.alone(), paths.ended());
    if ended.is_some_and(|until| until <= now) {
        layer.last_words();
        layer.lose(peer, Reason::Peer(DownReason::Died));
        return false;
    }
    if let Some((_, reason)) = alone.filter(|(until, _)| *until <= now) {
        layer.lose(peer, reason);
        return false;
    }
    for until in ended.into_iter().chain(alone.map(|(until, _)| until)) {
        timers.due(until);
    }
    paths.is_worth_watching(measured)
}

fn tick_path<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, _)) = layer.paths(peer) else {
        return;
    };
    match paths.state(at) {
        PathState::Up => {
            tick_used(layer, now, peer, at);
            doubt(layer, now, peer, at);
        }
        PathState::Suspect => tick_suspect(layer, now, peer, at),
        PathState::Down => tick_down(layer, now, peer, at),
        PathState::Probing => tick_called(layer, now, peer, at),
        PathState::Returning => tick_returning(layer, now, peer, at),
    }
}

/// One of several paths in use is measured while there is traffic, or probed once to see whether it works at
/// all; and probed for a sign of life while another one is suspect.
fn tick_used<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let traffic = layer.traffic(peer);
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    if paths.len() < 2 {
        return;
    }
    let alarmed = paths.first_in(PathState::Suspect).is_some();
    if alarmed {
        timers.due(now + ALARMED);
    }
    let Some(path) = paths.get_mut(at) else { return };
    let probes = &mut path.probes;
    let pace = match traffic {
        _ if alarmed => ALARMED,
        Some(traffic) if probes.has_traffic(traffic) => COMPARED,
        None if !probes.met() && probes.unmet_since().is_none() => Duration::ZERO,
        Some(_) | None => return,
    };
    if probe(layer, now, peer, at, pace)
        && let Some(traffic) = traffic
        && let Some(path) = layer.paths(peer).and_then(|(paths, _)| paths.get_mut(at))
    {
        path.probes.note_traffic(traffic);
    }
}

/// A path over which nothing was ever answered, while the peer answers over another one, may be dead from the
/// start: its rail, which waits long for a peer that has yet to begin, does not know that the other one
/// works.
fn doubt<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let since = paths.get(at).and_then(|path| path.probes.unmet_since());
    let Some(since) = since.filter(|_| paths.any(|path| path.probes.met())) else {
        return;
    };
    let due = since + ANSWER;
    if due <= now {
        turn(layer, now, peer, at, PathEvent::Silent);
    } else {
        timers.due(due);
    }
}

/// Its rail reports when it answers again, and mostly when it does not. One that was suspect before it ever
/// answered is probed for as long as it is suspect: nothing else may be on its way over it.
fn tick_suspect<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get(at) else { return };
    let met = path.probes.met();
    if let Some(silence) = timers.policy().silence {
        let end = path.since() + silence;
        // The peer polls: it has answered late in that time.
        let polls =
            paths.any(|path| path.state() == PathState::Up && path.probes.answered_at() + silence / 2 >= end);
        if end <= now && polls {
            return broken(layer, now, peer, at, Reason::Peer(DownReason::Silent));
        }
        timers.due(if end > now { end } else { now + ANSWER });
    }
    if !met {
        timers.due(now + ANSWER);
        probe(layer, now, peer, at, Duration::ZERO);
    }
}

fn tick_down<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at).filter(|path| !path.is_dead()) else {
        return;
    };
    if path.due() > now {
        return timers.due(path.due());
    }
    path.turn(now, PathEvent::Called);
    call(layer, now, peer, at);
}

/// Calls the peer over a path that is down.
pub(crate) fn call<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    if let Some(path) = paths.get_mut(at) {
        path.wake_at(now + ANSWER);
    }
    timers.due(now + ANSWER);
    layer.revive(peer, at);
    layer.count(Count::Call);
}

fn tick_called<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get_mut(at) else { return };
    if path.due() <= now {
        path.turn(now, PathEvent::Unanswered);
    }
    timers.due(path.due());
}

fn tick_returning<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize) {
    let Some((paths, timers)) = layer.paths(peer) else {
        return;
    };
    let Some(path) = paths.get(at) else { return };
    let (end, pace) = path.returns();
    if path.probes.proved() && end <= now {
        return steady(layer, now, peer, at);
    }
    timers.due(if end > now {
        end.min(now + pace)
    } else {
        now + pace
    });
    probe(layer, now, peer, at, pace);
}

/// Sends a probe over a path, unless it is too early for that. Returns whether a probe has left.
fn probe<L: Layer>(layer: &mut L, now: Time, peer: u32, at: usize, pace: Duration) -> bool {
    let Some((paths, _)) = layer.paths(peer) else {
        return false;
    };
    let Some(number) = paths.get_mut(at).and_then(|path| path.probes.next(now, pace)) else {
        return false;
    };
    let path = at as u16;
    let sent = layer.send_word(peer, at, Word::Probe { path, number });
    if sent {
        layer.count(Count::Probe);
    }
    if let Some((paths, timers)) = layer.paths(peer)
        && let Some(path) = paths.get_mut(at)
    {
        match sent {
            true => path.probes.left(now),
            false => timers.due(now + TICK), // there is no room
        }
    }
    sent
}
