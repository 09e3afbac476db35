//! Beginning anew while a rail is open: queues off, everything told and steered again; after a step that fails, later once more,
//! with a reset of the function before.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use doorbell_fabric::time::Time;

use crate::bringup::{Bringup, Parts};
use crate::open::Held;
use crate::rx::UsnicRx;
use crate::sleep::Sleep;
use crate::steer::Trouble;
use crate::tx::UsnicTx;

/// After how long a step that failed is tried again; twice as long after each, up to the second.
const AGAIN: Duration = Duration::from_millis(50);
const AGAIN_MOST: Duration = Duration::from_secs(2);
/// How long a rail that leaves waits for its queues to stop.
const QUIT: Duration = Duration::from_millis(250);

/// The way back.
#[derive(Debug)]
pub(crate) struct Restart {
    bringup: Option<Bringup>,
    at: Time,
    patience: Duration,
    failures: u32,
    trouble: Option<String>,
}

/// The device is gone.
pub(crate) struct Gone;

impl Restart {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            bringup: None,
            at: now,
            patience: AGAIN,
            failures: 0,
            trouble: None,
        }
    }

    /// The last step that failed.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When it is time for a step.
    pub(crate) fn due(&self) -> Time {
        if self.bringup.is_some() {
            Time::ZERO
        } else {
            self.at
        }
    }

    /// One step; true when the queues run.
    pub(crate) fn step(
        &mut self,
        now: Time,
        (tx, rx, held, sleep): (&mut UsnicTx, &mut UsnicRx, &mut Held, &Sleep),
        socket: (Ipv4Addr, u16),
    ) -> Result<bool, Gone> {
        if self.bringup.is_none() {
            if now < self.at {
                return Ok(false);
            }
            if let Err(trouble) = self.prepare(held, sleep) {
                return self.fail(now, &trouble);
            }
            self.bringup = Some(Bringup::new(held, socket));
        }
        let Some(bringup) = &mut self.bringup else {
            return Ok(false);
        };
        match bringup.step(&mut Parts { tx, rx, held }) {
            Ok(done) => Ok(done),
            Err(trouble) => self.fail(now, &trouble),
        }
    }

    /// Before each try: somebody who steers, and from the second one on a device that was reset.
    fn prepare(&mut self, held: &mut Held, sleep: &Sleep) -> Result<(), Trouble> {
        held.steering.renew()?;
        sleep.watch(held.steering.news());
        if self.failures > 0 && held.claim.device().is_resettable() {
            held.claim.reset()?;
            held.notify_kept = 0;
            sleep.again(&held.claim)?;
        } else {
            sleep.program()?;
        }
        Ok(())
    }

    fn fail(&mut self, now: Time, trouble: &Trouble) -> Result<bool, Gone> {
        if trouble.is_gone() {
            return Err(Gone);
        }
        self.trouble = Some(trouble.to_string());
        self.bringup = None;
        self.failures += 1;
        self.at = now + self.patience;
        self.patience = (self.patience * 2).min(AGAIN_MOST);
        Ok(false)
    }

    /// Queues off and nothing steered any more, as far as the device obeys soon.
    pub(crate) fn quit(tx: &mut UsnicTx, rx: &mut UsnicRx, held: &mut Held) {
        let mut bringup = Bringup::end(held);
        let end = Instant::now() + QUIT;
        let mut parts = Parts { tx, rx, held };
        while let Ok(false) = bringup.step(&mut parts) {
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
