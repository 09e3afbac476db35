//! Restart of a rail that is open: queues off, everything set up and steered again; after a step that fails,
//! once more later, with a reset of the function before. And the end: everything off and removed, as far as
//! the device obeys soon.
//!
//! ```text
//!   waiting ─► filters have an owner ─► (a reset, in a thread: it takes 100 ms and more) ─► steps ─► running
//!      ▲                                    any of it fails │
//!      └───────────── 50 ms to 2 s ─────────────────────────┘
//! ```

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;
use doorbell_vfio::Error;

use crate::bringup::{Bringup, Parts};
use crate::flow_steering::Trouble;
use crate::open::Held;
use crate::rail::{UsnicRx, UsnicTx};
use crate::sleep::Sleep;

/// Time after which a step that failed is tried again; doubled after each failure, up to the second value.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MOST: Duration = Duration::from_secs(2);
/// Between two steps: who steers, and a device that is a process, want a core too.
const STEP: Duration = Duration::from_micros(250);
/// How long a rail that leaves waits for its device to obey.
const QUIT: Duration = Duration::from_secs(1);

/// A reset under way. It is waited for when dropped: the device is not touched meanwhile.
#[derive(Debug)]
struct Reset(Option<JoinHandle<Result<(), Error>>>);

impl Reset {
    fn begin(held: &Held) -> Result<Self, Trouble> {
        let claim = Arc::clone(&held.claim);
        let thread = std::thread::Builder::new().name("usnic-reset".to_owned());
        let begun = thread.spawn(move || claim.reset());
        begun.map(|thread| Self(Some(thread))).map_err(|error| {
            Trouble::agent(
                format!("cannot start a thread for the reset of the function: {error}"),
                "end other processes of this user, or let it have more threads (`ulimit -u`, pids.max of its cgroup)",
            )
        })
    }

    /// Returns what became of it, when it is done.
    fn ended(&mut self) -> Option<Result<(), Error>> {
        let thread = self.0.take_if(|thread| thread.is_finished())?;
        // A thread that panicked has reset nothing, which the steps after it find.
        Some(thread.join().unwrap_or(Ok(())))
    }
}

impl Drop for Reset {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Connecting,
    Resetting(Reset),
    Steps(Bringup),
}

/// The way back.
#[derive(Debug)]
pub(crate) struct Restart {
    stage: Stage,
    at: Time,
    patience: Duration,
    failures: u32,
    /// What failed last, and what to do.
    trouble: Option<(String, String)>,
}

/// The device is gone.
pub(crate) struct Gone;

impl Restart {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            stage: Stage::Waiting,
            at: now,
            patience: AGAIN,
            failures: 0,
            trouble: None,
        }
    }

    /// The last step that failed.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// Returns what to do about it.
    pub(crate) fn fix(&self) -> Option<&str> {
        self.trouble.as_ref().map(|(_, fix)| fix.as_str())
    }

    /// Whether registers may be touched: not while the function is reset.
    pub(crate) fn is_resetting(&self) -> bool {
        matches!(self.stage, Stage::Resetting(_))
    }

    /// The reset under way, for the way out.
    fn into_reset(self) -> Option<Reset> {
        match self.stage {
            Stage::Resetting(reset) => Some(reset),
            _ => None,
        }
    }

    /// Tries at once: the owner of the filters is back.
    pub(crate) fn hasten(&mut self, now: Time) {
        self.at = self.at.min(now);
    }

    /// Returns when the next step is due. While it waits for an agent or for a reset, it is polled as often
    /// as a rail that runs.
    pub(crate) fn due(&self) -> Time {
        match self.stage {
            Stage::Waiting | Stage::Steps(_) => self.at,
            Stage::Connecting | Stage::Resetting(_) => Time::NEVER,
        }
    }

    /// Makes one step; true when the queues run. Never waits.
    pub(crate) fn step(
        &mut self,
        now: Time,
        (tx, rx, held, sleep): (&mut UsnicTx, &mut UsnicRx, &mut Held, &Sleep),
        socket: (Ipv4Addr, u16),
    ) -> Result<bool, Gone> {
        if matches!(self.stage, Stage::Waiting) {
            if now < self.at {
                return Ok(false);
            }
            self.stage = Stage::Connecting;
        }
        let prepared = self.prepare(held, sleep, socket);
        let stepped = prepared.and_then(|()| match &mut self.stage {
            Stage::Steps(bringup) if now >= self.at => {
                self.at = now + STEP;
                bringup.step(&mut Parts { tx, rx, held })
            }
            _ => Ok(false),
        });
        stepped.or_else(|trouble| self.fail(now, &trouble))
    }

    /// Does what comes before the steps: connects to the owner of the filters, and from the second try on
    /// resets the device.
    fn prepare(&mut self, held: &mut Held, sleep: &Sleep, socket: (Ipv4Addr, u16)) -> Result<(), Trouble> {
        match &mut self.stage {
            Stage::Connecting => {
                if !held.steering.renew()? {
                    return Ok(());
                }
                sleep.watch(held.steering.news());
                if self.failures > 0 && held.claim.device().is_resettable() {
                    self.stage = Stage::Resetting(Reset::begin(held)?);
                    return Ok(());
                }
                let config = held.claim.config();
                if config.is_bus_master()? {
                    sleep.program()?;
                } else {
                    // Another process has reset it: it may not reach memory, and has forgotten its vectors.
                    config.set_bus_master(true)?;
                    was_reset(held, sleep)?;
                }
            }
            Stage::Resetting(reset) => {
                let Some(ended) = reset.ended() else { return Ok(()) };
                ended?;
                was_reset(held, sleep)?;
            }
            Stage::Waiting | Stage::Steps(_) => return Ok(()),
        }
        self.stage = Stage::Steps(Bringup::new(held, socket));
        Ok(())
    }

    fn fail(&mut self, now: Time, trouble: &Trouble) -> Result<bool, Gone> {
        if trouble.is_gone() {
            return Err(Gone);
        }
        self.trouble = Some((trouble.to_string(), trouble.fix()));
        self.stage = Stage::Waiting;
        self.failures += 1;
        self.at = now + self.patience;
        self.patience = (self.patience * 2).min(AGAIN_MOST);
        Ok(false)
    }
}

fn was_reset(held: &mut Held, sleep: &Sleep) -> Result<(), Trouble> {
    forgotten(held);
    Ok(sleep.again(&held.claim)?)
}

/// Clears what a function that was reset has forgotten.
fn forgotten(held: &mut Held) {
    held.own.devcmd.forget();
    (held.notify_kept, held.is_open) = (0, false);
}

/// The way out, after which the device is given back: the end of a reset that is under way, then the steps,
/// within their time.
#[derive(Default)]
pub(crate) struct Ending {
    reset: Option<Reset>,
    steps: Option<(Bringup, Instant)>,
}

impl Ending {
    /// Begins the end, wherever a restart was.
    pub(crate) fn new(restart: Option<Restart>) -> Self {
        Self {
            reset: restart.and_then(Restart::into_reset),
            steps: None,
        }
    }

    /// Whether registers may not be touched yet.
    pub(crate) fn is_resetting(&self) -> bool {
        self.reset.is_some()
    }

    /// Makes one step; true when all is done, as far as it can be. Never waits.
    pub(crate) fn step(&mut self, tx: &mut UsnicTx, rx: &mut UsnicRx, held: &mut Held) -> bool {
        if let Some(reset) = &mut self.reset {
            let Some(ended) = reset.ended() else { return false };
            self.reset = None;
            if ended.is_ok() {
                forgotten(held);
            }
        }
        let begin = || (Bringup::end(held), Instant::now() + QUIT);
        let (steps, until) = self.steps.get_or_insert_with(begin);
        !matches!(steps.step(&mut Parts { tx, rx, held }), Ok(false)) || Instant::now() >= *until
    }

    /// All steps, waiting for each; bounded.
    pub(crate) fn finish(&mut self, tx: &mut UsnicTx, rx: &mut UsnicRx, held: &mut Held) {
        while !self.step(tx, rx, held) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
