//! Whether a device checks the range of its windows, tried on a queue pair that is connected to itself.
//!
//! Without the probe a rail takes it that the device does not, and registers exactly what is exposed beneath
//! each window.

use std::time::{Duration, Instant};

use doorbell_fabric::memory::Region;

use super::exposures::next_key;
use super::memory::Counted;
use super::renewal::{begin_pair, connect_pair};
use crate::rc::core::Core;
use crate::rc::hello::Route;
use crate::sys::{Beneath, Held, ReliablePair, ReliableSizes, Requests, Wc, Window, numbers};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of the window, and of the memory behind it.
const HALF: usize = 64;

impl Core {
    /// Tries the device's windows over a route to the own port, before any peer is opened. What does not bind
    /// or reach its own bytes is not used.
    pub(crate) fn probe_windows(&mut self, to_itself: &Route) {
        if !self.onesided.abilities.windows || !self.peers.is_empty() {
            return;
        }
        match self.try_windows(to_itself) {
            Some(checks) => self.onesided.abilities.checks_range = checks,
            None => self.onesided.abilities.windows = false,
        }
    }

    fn try_windows(&mut self, route: &Route) -> Option<bool> {
        let region = Region::new(2 * HALF).ok()?;
        let memory = self
            .memory
            .pin(
                Held::Region(region.whole()),
                numbers::LOCAL_WRITE | numbers::MW_BIND,
            )
            .ok()?;
        let sizes = ReliableSizes {
            sends: 4,
            inline: 0,
            pieces: 1,
        };
        let domain = self.memory.domain.as_ref()?;
        let pair = ReliablePair::one_sided(domain, self.onesided.completions.as_ref()?, sizes).ok()?;
        begin_pair(&pair, (self.port.0, self.port.1), false).ok()?;
        let number = pair.number();
        connect_pair(&pair, route, (number, 1, 1), (1, 1), self.sizes.retries).ok()?;
        // After the registration and before the window, so that they end in the right order.
        let mut requests = Requests::new(pair, 4);
        let window = Window::new(domain).ok()?;
        self.try_one(&mut requests, &window, &memory, region.whole().address() as u64)
    }

    fn try_one(
        &self,
        requests: &mut Requests,
        window: &Window,
        memory: &Counted,
        start: u64,
    ) -> Option<bool> {
        let key = next_key(window);
        let beneath = Beneath::Pinned(&memory.pinned);
        let bound = requests.bind(1, (window, key), (beneath, 0, HALF), numbers::REMOTE_WRITE);
        if !matches!(bound, Ok(1)) || self.answer_of(1)? != numbers::SUCCESS {
            return None;
        }
        let mut write = |id, to| {
            requests.write(id, Some((beneath, 0, 8)), (to, key)).ok()?;
            (requests.post() == 1).then_some(())?;
            self.answer_of(id)
        };
        if write(2, start + 8)? != numbers::SUCCESS {
            return None;
        }
        Some(write(3, start + HALF as u64)? != numbers::SUCCESS)
    }

    /// How a request has ended.
    fn answer_of(&self, id: u64) -> Option<i32> {
        let begin = Instant::now();
        let mut found = [Wc::zeroed()];
        let completions = self.onesided.completions.as_ref()?;
        while begin.elapsed() < PATIENCE {
            if completions.poll(&mut found) == Ok(1) && found[0].wr_id == id {
                return Some(found[0].status);
            }
            std::thread::yield_now();
        }
        None
    }
}
