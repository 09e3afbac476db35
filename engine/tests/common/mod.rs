//! Jobs for tests: ranks as threads of this process, over shm, in both modes of progress.
#![allow(dead_code)]

use std::thread;
use std::time::Duration;

use doorbell::config::Mode;
use doorbell::{Config, World};

pub(crate) const MODES: [Mode; 2] = [Mode::Inline, Mode::Dedicated];

/// A configuration for tests: short bounds, so that a hang is a failure and not a wait.
pub(crate) fn config(mode: Mode) -> Config {
    let mut config = Config::default();
    config.progress.mode.set(mode);
    config.wait.deadline.set(Duration::from_secs(20));
    config
}

/// Runs `rank` on `size` threads, each with its world; a panic in one fails the test.
pub(crate) fn job(size: u32, config: &Config, rank: impl Fn(World) + Sync) {
    let worlds = doorbell::local(size, config).unwrap();
    thread::scope(|s| {
        let rank = &rank;
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| s.spawn(move || rank(world)))
            .collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// Runs a job in both modes of progress.
pub(crate) fn in_both_modes(size: u32, rank: impl Fn(World) + Sync) {
    for mode in MODES {
        job(size, &config(mode), &rank);
    }
}

/// Returns bytes that depend on the sender and the length.
pub(crate) fn pattern(seed: u32, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i as u32).wrapping_mul(31).wrapping_add(seed.wrapping_mul(17)) as u8 ^ (i >> 8) as u8)
        .collect()
}
