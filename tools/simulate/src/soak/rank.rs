//! A rank: epochs of messages, each judged, until rank 0 announces the end.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use doorbell::World;
use serde::{Deserialize, Serialize};

use crate::failure::Kind;
use crate::plan::{MOST, Mix, Plan};
use crate::usnic::worlds::{AHEAD, Walker, order};

/// Messages of one epoch, of all ranks together.
const MESSAGES: usize = 150;
/// Of 100 sends, so many are requests that are waited for later.
const EAGERNESS: [u64; 3] = [20, 50, 90];

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// How many seconds to run
    #[arg(long)]
    seconds: f64,
    /// The seed of the messages
    #[arg(long)]
    seed: u64,
}

/// What rank 0 prints after each epoch, a line each: totals so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Totals {
    pub(super) epochs: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// Joins the job of the environment and plays its part.
pub(super) fn run(options: &Options) -> Result<(), String> {
    let world = doorbell::init().map_err(|error| error.to_string())?;
    let ended = epochs(&world, options);
    let rank = world.rank();
    ended.map_err(|kind| format!("rank {rank}: {kind}"))?;
    world.close();
    Ok(())
}

fn epochs(world: &World, options: &Options) -> Result<(), Kind> {
    let other = |error: doorbell::Error| Kind::Other(error.to_string());
    let (began, mut totals) = (Instant::now(), Totals::default());
    // All that a walker ever takes, and all of it touched: what is touched late would look like growth.
    let mut pool = Vec::new();
    for _ in 0..=2 * AHEAD {
        let region = world.region(MOST).map_err(other)?;
        region.write(0, &vec![0xdb; MOST]);
        pool.push(region);
    }
    loop {
        let seed = options.seed.wrapping_mul(1 << 20).wrapping_add(totals.epochs);
        let mix = Mix {
            empty: 1,
            to_self: false,
            contexts: 1,
        };
        let plan = Plan::new(seed, world.size(), MESSAGES, mix);
        let eagerness = EAGERNESS[(totals.epochs % EAGERNESS.len() as u64) as usize];
        let walker = Walker::new(world, seed, &plan, eagerness, pool);
        pool = walker.go_through(&order(seed, &plan))?;
        totals.epochs += 1;
        totals.messages += MESSAGES as u64;
        totals.bytes += plan.bytes();
        // A broadcast, also to those whose part was done earlier: no rank begins an epoch that not all begin.
        let is_over = began.elapsed() >= Duration::from_secs_f64(options.seconds);
        let mut word = [u8::from(is_over)];
        world.broadcast(0, &mut word).map_err(other)?;
        if world.rank() == 0 {
            print(&totals);
        }
        if word[0] != 0 {
            break;
        }
    }
    let drops = world.counters().map_err(other)?.drops;
    match drops.total() {
        0 => Ok(()),
        _ => Err(Kind::Other(format!("it has dropped {drops:?}"))),
    }
}

fn print(totals: &Totals) {
    let mut out = std::io::stdout().lock();
    // Without a reader there is nowhere to report a failure.
    let _ = serde_json::to_writer(&mut out, totals).map(|()| writeln!(out).and_then(|()| out.flush()));
}
