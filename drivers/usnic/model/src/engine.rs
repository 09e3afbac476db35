//! The engine's thread: mail, turns, and what it does when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use crate::options::Idle;
use crate::server::EngineMessage;
use crate::world::World;

/// How long the engine sleeps at most while it has no client.
const ALONE: Duration = Duration::from_millis(100);
/// Letters that are read in one turn.
const LETTERS: usize = 64;
/// A sleeping engine sleeps after this many nanoseconds without work.
const QUIET: u64 = 10_000_000;
/// How long it sleeps at a time.
const NAP: Duration = Duration::from_micros(50);

/// Runs until all writers are gone, or `stop` is set.
pub(crate) fn run(
    mut world: World,
    mail: Receiver<EngineMessage>,
    flag: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
) -> World {
    let idle = world.context.options.idle;
    let mut worked = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = world.context.clock();
        let mut done = 0;
        if flag.swap(false, Ordering::Acquire) {
            world.context.now = now;
            match read(&mut world, &mail, &flag) {
                Some(letters) => done += letters,
                None => break,
            }
        }
        let (frames, waits) = world.turn(now);
        done += frames;
        if world.is_over {
            break;
        }
        if done > 0 {
            worked = now;
        }
        if done == 0 && world.is_alone() {
            std::thread::park_timeout(ALONE);
        } else {
            rest(idle, done, now - worked > QUIET && !waits);
        }
    }
    world.hang_up();
    stop.store(true, Ordering::Relaxed);
    world
}

/// Reads what came; `None` once all writers are gone.
fn read(world: &mut World, mail: &Receiver<EngineMessage>, flag: &AtomicBool) -> Option<usize> {
    for letters in 0..LETTERS {
        match mail.try_recv() {
            Ok(EngineMessage::Attach(function, line)) => world.attach(function, line),
            Ok(EngineMessage::Message(function, message)) => world.message(function, message),
            Ok(EngineMessage::Detach(function, seat)) => {
                world.detach(function);
                seat.leave();
            }
            Ok(EngineMessage::Call(call)) => call(world),
            Err(TryRecvError::Empty) => return Some(letters),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
    flag.store(true, Ordering::Relaxed);
    Some(LETTERS)
}

fn rest(idle: Idle, done: usize, is_quiet: bool) {
    match idle {
        _ if done > 0 => {}
        Idle::Spin => std::hint::spin_loop(),
        Idle::Sleep if is_quiet => std::thread::park_timeout(NAP),
        Idle::Yield | Idle::Sleep => std::thread::yield_now(),
    }
}
