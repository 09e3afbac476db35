//! Messages to this process itself: queued, and shown by the next poll like all others.

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::{Body, Inbound, Refused};

use super::send::number;
use super::{Core, FIRST_LEN, PeerId, Upper};

impl Core {
    /// A message to this process itself.
    pub(super) fn send_own(&mut self, head: &mut [u8], body: &Body<'_>) -> Result<(), Refused> {
        let length = head.len() + body.len();
        if self.own_bytes + length > self.config.backlog {
            self.stats.refused += 1;
            return Err(Refused::Full);
        }
        let hot = &mut self.hot[PeerId::SELF.index()];
        if let Some(first) = head.first_chunk_mut::<FIRST_LEN>() {
            number(first, hot.next);
        }
        hot.next = hot.next.wrapping_add(1);
        self.own_bytes += length;
        self.busy = true;
        self.own.push_back(self.buffers.gather(head, body));
        Ok(())
    }

    /// Shows messages to this process itself, at most those that are there now.
    #[cold]
    pub(super) fn show_own<U: Upper>(&mut self, budget: usize, upper: &mut U) -> usize {
        let count = self.own.len().min(budget);
        for _ in 0..count {
            let Some(kept) = self.own.pop_front() else { break };
            self.own_bytes -= kept.len();
            if let Some(first) = kept.bytes().first_chunk::<FIRST_LEN>() {
                let inbound = Inbound::whole(SharedBytes::of(kept.bytes()));
                upper.message(PeerId::SELF, zerocopy::transmute!(*first), inbound);
            }
            self.buffers.give(kept);
        }
        count
    }
}
