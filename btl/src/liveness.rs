//! When frames of a peer arrived last, here and on other rails, and since when it owes an answer. All times
//! are attended time ([`Clock`](crate::clock::Clock)), unless noted otherwise.

/// What speaks for a peer's being alive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Liveness {
    /// When something of it arrived here last.
    heard: u64,
    /// Since when something is due and nothing new was acknowledged.
    waiting: u64,
    /// When it proved alive elsewhere, for the first time since it owes an answer here.
    elsewhere: u64,
    /// When something new was acknowledged last (ns): time-outs count from there, too (RFC 6298, section
    /// 5.3).
    acked: u64,
}

impl Liveness {
    /// Starts the times of a connection that begins now.
    pub(crate) const fn new(attended: u64) -> Self {
        Self {
            heard: attended,
            waiting: attended,
            elsewhere: 0,
            acked: 0,
        }
    }

    /// Something of the peer has arrived here.
    #[inline]
    pub(crate) fn hear(&mut self, attended: u64) {
        self.heard = attended;
    }

    /// Returns when something of the peer arrived here last.
    #[inline]
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// Something is due from now on.
    #[inline]
    pub(crate) fn wait(&mut self, attended: u64) {
        self.waiting = attended;
    }

    /// Since when something is due and nothing new was acknowledged.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Something new was acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&mut self, attended: u64, now: u64) {
        (self.waiting, self.acked) = (attended, now);
    }

    /// Returns when something new was acknowledged last (ns), or zero.
    #[inline]
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// The peer has proved alive elsewhere while it owes an answer here, since `since`. Whether that is
    /// proved now: the first proof since then is `bound` back. `None` when there was none before.
    pub(crate) fn prove_elsewhere(&mut self, attended: u64, since: u64, bound: u64) -> Option<bool> {
        if self.elsewhere <= since {
            self.elsewhere = attended;
            return None;
        }
        Some(attended >= self.elsewhere.saturating_add(bound))
    }

    /// Whether the peer has proved alive elsewhere after `since`.
    pub(crate) fn is_proved_since(&self, since: u64) -> bool {
        self.elsewhere > since
    }

    /// Proofs count from now on.
    pub(crate) fn restart_proofs(&mut self, attended: u64) {
        self.elsewhere = attended + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_proofs_that_are_far_enough_apart_are_one() {
        let mut liveness = Liveness::new(5);
        assert_eq!(liveness.prove_elsewhere(10, 7, 100), None, "the first");
        assert_eq!(liveness.prove_elsewhere(109, 7, 100), Some(false));
        assert_eq!(liveness.prove_elsewhere(110, 7, 100), Some(true));
        assert_eq!(
            liveness.prove_elsewhere(300, 200, 100),
            None,
            "it has answered since"
        );
    }
}
