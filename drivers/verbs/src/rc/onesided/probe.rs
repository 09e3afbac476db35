//! What a device's windows are worth, tried on queue pairs that are connected to themselves: at opening
//! whether it checks their range, and for a diagnosis the rest.
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

/// What a device's memory windows of type 2B are worth, tried on the port itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowFacts {
    /// Whether a key reaches no further than its window.
    pub checks_range: bool,
    /// Whether a key is refused over another queue pair than the one that its window was bound over.
    pub refuses_others: bool,
    /// Whether a key is refused after its end.
    pub refuses_ended: bool,
}

/// A window, and then the queue pair that it was bound over: they end in this order.
struct Stand {
    _window: Window,
    requests: Requests,
    key: u32,
}

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

    /// Whether the device checks the range of a window; `None` where it binds none, or one does not reach its
    /// own bytes.
    fn try_windows(&mut self, route: &Route) -> Option<bool> {
        let memory = self.memory_of_probe()?;
        let mut stand = self.stand(route, &memory, 1)?;
        let start = memory.pinned.held().address();
        if self.try_write(&mut stand.requests, &memory, 2, (start + 8, stand.key))? != numbers::SUCCESS {
            return None;
        }
        let beyond = (start + HALF as u64, stand.key);
        Some(self.try_write(&mut stand.requests, &memory, 3, beyond)? != numbers::SUCCESS)
    }

    /// Tries what the device's windows are worth, over a route to the own port, before any peer is opened;
    /// `None` where there are none that bind.
    pub(crate) fn examine_windows(&mut self, route: &Route) -> Option<WindowFacts> {
        if !self.onesided.abilities.windows || !self.peers.is_empty() {
            return None;
        }
        let checks_range = self.try_windows(route)?;
        let memory = self.memory_of_probe()?;
        let start = memory.pinned.held().address();
        // Over another queue pair than the window's.
        let stand = self.stand(route, &memory, 11)?;
        let mut other = self.pair_to_itself(route)?;
        let by_other = self.try_write(&mut other, &memory, 12, (start, stand.key))?;
        drop(stand);
        // After the end of the key.
        let mut stand = self.stand(route, &memory, 21)?;
        stand.requests.invalidate(22, stand.key).ok()?;
        let is_ended = stand.requests.post() == 1 && self.answer_of(22)? == numbers::SUCCESS;
        let late = match is_ended {
            true => self.try_write(&mut stand.requests, &memory, 23, (start, stand.key))?,
            false => numbers::SUCCESS,
        };
        Some(WindowFacts {
            checks_range,
            refuses_others: by_other != numbers::SUCCESS,
            refuses_ended: late != numbers::SUCCESS,
        })
    }

    fn memory_of_probe(&mut self) -> Option<Counted> {
        let region = Region::new(2 * HALF).ok()?;
        let rights = numbers::LOCAL_WRITE | numbers::MW_BIND;
        self.memory.pin(Held::Region(region.whole()), rights).ok()
    }

    /// A queue pair that is connected to itself.
    fn pair_to_itself(&self, route: &Route) -> Option<Requests> {
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
        Some(Requests::new(pair, 4))
    }

    /// A window on the first half of the memory, bound over a queue pair of its own.
    fn stand(&self, route: &Route, memory: &Counted, id: u64) -> Option<Stand> {
        let mut requests = self.pair_to_itself(route)?;
        let window = Window::new(self.memory.domain.as_ref()?).ok()?;
        let key = next_key(&window);
        let beneath = Beneath::Pinned(&memory.pinned);
        let bound = requests.bind(id, (&window, key), (beneath, 0, HALF), numbers::REMOTE_WRITE);
        let is_bound = matches!(bound, Ok(1)) && self.answer_of(id)? == numbers::SUCCESS;
        let stand = Stand {
            _window: window,
            requests,
            key,
        };
        is_bound.then_some(stand)
    }

    /// How a write of eight bytes under a key ends.
    fn try_write(&self, requests: &mut Requests, memory: &Counted, id: u64, to: (u64, u32)) -> Option<i32> {
        let beneath = Beneath::Pinned(&memory.pinned);
        requests.write(id, Some((beneath, 0, 8)), to).ok()?;
        (requests.post() == 1).then_some(())?;
        self.answer_of(id)
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
