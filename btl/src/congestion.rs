//! Congestion control: how many segments may be under way to one peer.
//!
//! Slow start, then a growth of two segments per round trip, the same for all, so that flows become equal. A
//! loss is answered once per window, and only when it looks like congestion: there is a queue on the path
//! (round trips much longer than the shortest), or more than one in forty segments of the window were lost
//! (what was lost in one piece counts as one). A link that drops one frame in a hundred at random is not
//! congested, and halving the window for it would cost most of its goodput. Time-outs halve. What was
//! concluded from a loss that was none (the peer was away, and got everything twice) is taken back (RFC
//! 4015).

/// The congestion window of one peer, in segments. In 16 bits each: a window has at most 4096, and idle peers
/// are many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window: u16,
    threshold: u16,
    /// Fractions of the next segment of growth.
    grown: u16,
    /// Segments acknowledged, and bursts of them lost, since the window began.
    acknowledged: u16,
    lost: u16,
    /// How many acknowledged segments make the window that is looked at.
    span: u16,
    /// Window (0: none) and threshold before the losses that the last shrinking was for, until it is known
    /// whether there were any.
    before: (u16, u16),
    /// Windows without a loss since then.
    clean: u8,
}

/// Growth outside of slow start, in segments per round trip.
const GROWTH: u32 = 2;

/// A window in which more than one segment in this many was lost is congested.
const RANDOM: u16 = 40;

/// Windows without a loss after which a loss that was not contradicted was one.
const CLEAN: u8 = 8;

/// Least segments under way.
const LEAST: u16 = 2;

/// A count of segments; more than 16 bits hold is as good as their most.
#[inline]
fn count(n: u32) -> u16 {
    n.min(u16::MAX.into()) as u16
}

impl Congestion {
    pub(crate) fn new(initial: u32) -> Self {
        let window = count(initial).max(LEAST);
        Self {
            window,
            threshold: u16::MAX,
            grown: 0,
            acknowledged: 0,
            lost: 0,
            span: window,
            before: (0, 0),
            clean: 0,
        }
    }

    /// Segments that may be under way.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window.into()
    }

    /// `n` segments were acknowledged while `flight` were under way before. `queueing` is whether round
    /// trips are long; `most` is the window of the protocol. A window that is not used does not grow. From
    /// how many to how many it shrank, if it did.
    #[inline(always)]
    pub(crate) fn acknowledged(
        &mut self,
        n: u32,
        flight: u32,
        queueing: impl Fn() -> bool,
        most: u32,
    ) -> Option<(u32, u32)> {
        self.acknowledged = self.acknowledged.saturating_add(count(n));
        if flight + n >= self.window() / 2 {
            self.grow(n, queueing(), most);
        }
        if self.acknowledged < self.span {
            return None;
        }
        let from = self.window();
        self.end_of_window(queueing());
        (self.window() < from).then_some((from, self.window()))
    }

    #[inline]
    fn grow(&mut self, n: u32, queueing: bool, most: u32) {
        if self.window < self.threshold {
            if queueing {
                self.threshold = self.window;
            }
            self.window = count(self.window().saturating_add(n).min(most));
        } else if !queueing {
            let grown = u32::from(self.grown) + n * GROWTH;
            let window = self.window();
            self.grown = count(grown % window);
            self.window = count((window + grown / window).min(most));
        }
    }

    /// `n` bursts of segments were found lost: what was lost in one piece was one event, on the way or in a
    /// queue.
    pub(crate) fn lost(&mut self, n: u32) {
        self.lost = self.lost.saturating_add(count(n));
    }

    /// A whole window was answered: was it a congested one?
    fn end_of_window(&mut self, queueing: bool) {
        if self.lost > 0 {
            let all = self.acknowledged.saturating_add(self.lost);
            let heavy = self.lost > 1 && self.lost > all / RANDOM;
            if heavy || queueing {
                self.shrink(7);
            }
        } else {
            self.clean = self.clean.saturating_add(1);
            if self.clean > CLEAN {
                self.before = (0, 0);
            }
        }
        (self.acknowledged, self.lost, self.span) = (0, 0, self.window);
    }

    fn shrink(&mut self, tenths: u32) {
        if self.before.0 == 0 {
            self.before = (self.window, self.threshold);
        }
        self.clean = 0;
        self.window = count(self.window() * tenths / 10).max(LEAST);
        (self.threshold, self.grown) = (self.window, 0);
    }

    /// Nothing was answered in time.
    pub(crate) fn timed_out(&mut self) {
        self.shrink(5);
        (self.acknowledged, self.lost, self.span) = (0, 0, self.window);
    }

    /// The losses were none.
    pub(crate) fn undo(&mut self) {
        let (window, threshold) = std::mem::take(&mut self.before);
        if window > 0 {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
            self.span = self.window;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(congestion: &mut Congestion, n: usize, lost: impl Fn(u32) -> u32, queueing: bool) {
        for _ in 0..n {
            let window = congestion.window();
            congestion.lost(lost(window));
            congestion.acknowledged(window - lost(window), lost(window), || queueing, 4096);
            congestion.acknowledged(lost(window), 0, || queueing, 4096);
        }
    }

    #[test]
    fn it_opens_fast_and_stops_at_the_window() {
        let mut congestion = Congestion::new(32);
        rounds(&mut congestion, 10, |_| 0, false);
        assert_eq!(congestion.window(), 4096);
    }

    #[test]
    fn a_random_loss_now_and_then_costs_nothing() {
        let mut congestion = Congestion::new(32);
        rounds(&mut congestion, 200, |window| window / 100, false);
        assert!(congestion.window() > 300, "{congestion:?}");
    }

    #[test]
    fn heavy_loss_or_a_queue_shrinks_it_once_per_window() {
        for queueing in [false, true] {
            let mut congestion = Congestion::new(1000);
            rounds(&mut congestion, 1, |_| if queueing { 1 } else { 200 }, queueing);
            let after = congestion.window();
            assert!((600..1500).contains(&after), "{congestion:?}");
            rounds(&mut congestion, 20, |window| window / 3, queueing);
            assert!(congestion.window() < 50, "{congestion:?}");
        }
    }

    #[test]
    fn timeouts_halve_and_leave_two() {
        let mut congestion = Congestion::new(64);
        congestion.timed_out();
        assert_eq!(congestion.window(), 32);
        (0..20).for_each(|_| congestion.timed_out());
        assert_eq!(congestion.window(), 2);
    }

    #[test]
    fn what_was_concluded_from_no_loss_is_taken_back_once() {
        let mut congestion = Congestion::new(64);
        (0..3).for_each(|_| congestion.timed_out());
        congestion.undo();
        assert_eq!(congestion.window(), 64);
        congestion.undo();
        assert_eq!(congestion.window(), 64);
        // It was not contradicted for long: it was congestion.
        congestion.timed_out();
        rounds(&mut congestion, CLEAN as usize + 1, |_| 0, false);
        let grown = congestion.window();
        congestion.undo();
        assert!(congestion.window() == grown && grown < 64, "{congestion:?}");
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut congestion = Congestion::new(64);
        (0..1000).for_each(|_| _ = congestion.acknowledged(1, 0, || false, 4096));
        assert_eq!(congestion.window(), 64);
    }
}
