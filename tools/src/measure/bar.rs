//! The progress bar of a measurement.

use std::time::Instant;

use doorbell_bench::load::Progress;
use doorbell_bench::plan::{Asked as Rate, Plan, SHARES};
use doorbell_bench::size::Size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::console;

/// The progress bar, on the standard error and only when a person looks at it.
pub(super) struct Bar {
    bar: ProgressBar,
    begun: Instant,
    /// Seconds that one size takes, when that is known.
    each: Option<f64>,
    size: String,
    done: u64,
    of: u64,
}

/// Steps of the bar for one size.
const STEPS: u64 = 100;
/// The search for a knee takes about this many times what a row takes.
const KNEE: f64 = 2.0;
/// A warm-up and the preparation of buffers take about this many seconds.
const BEFORE: f64 = 0.1;

impl Bar {
    /// A bar for the sizes of a plan, hidden unless `shown`.
    pub(super) fn new(shown: bool, plan: &Plan) -> Self {
        let target = if shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("{prefix} [{bar:24}] {percent:>3} %  {msg}");
        let bar = ProgressBar::with_draw_target(Some(1), target);
        bar.set_style(
            style
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> "),
        );
        // Shares of the knee are rows of their own, and it is searched for in about as many trials as they
        // last.
        let rows = match plan.open {
            Some(Rate::Knee) => SHARES.len() as f64 + KNEE,
            _ => 1.0,
        };
        Self {
            bar,
            begun: Instant::now(),
            each: plan.samples.is_none().then_some(rows * plan.seconds + BEFORE),
            size: String::new(),
            done: 0,
            of: plan.sizes.len() as u64,
        }
    }

    /// Removes it from the screen.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Shows where it stands and how long it takes from here.
    fn show(&mut self, position: u64) {
        let left = (self.of * STEPS).saturating_sub(position) as f64;
        let left = match self.each {
            Some(each) => Some(each * left / STEPS as f64),
            // The rest takes as long as the part that is done.
            None => (position > 0).then(|| self.begun.elapsed().as_secs_f64() * left / position as f64),
        };
        let which = match self.of {
            1 => self.size.clone(),
            of => format!("{}, {} of {of}", self.size, self.done / STEPS + 1),
        };
        self.bar.set_prefix(which);
        self.bar
            .set_message(left.map_or_else(String::new, console::about));
        self.bar.set_position(position);
    }
}

impl Progress for Bar {
    fn size(&mut self, index: usize, of: usize, bytes: usize) {
        self.done = index as u64 * STEPS;
        self.of = of as u64;
        self.bar.set_length(of as u64 * STEPS);
        self.size = Size::new(bytes).map_or_else(String::new, |size| size.to_string());
        self.show(self.done);
    }

    fn share(&mut self, done: f64) {
        self.show(self.done + (done * STEPS as f64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_bench::plan::Kind;
    use std::time::Duration;

    #[test]
    fn the_time_left_is_what_the_plan_has() {
        let plan = Plan {
            seconds: 20.0,
            ..Plan::new(Kind::Stream)
        };
        let mut bar = Bar::new(false, &plan);
        bar.size(0, 2, 8);
        assert_eq!(bar.bar.message(), "about 41 s left");
        bar.size(1, 2, 64);
        bar.share(0.5);
        assert_eq!(
            (bar.bar.message(), bar.bar.prefix()),
            ("about 11 s left".into(), "64 B, 2 of 2".into())
        );
        // By samples, it is known from what was done.
        let plan = Plan {
            samples: Some(10),
            ..Plan::new(Kind::Stream)
        };
        let mut bar = Bar::new(false, &plan);
        bar.size(0, 10_000, 8);
        assert_eq!(
            (bar.bar.message(), bar.bar.prefix()),
            ("".into(), "8 B, 1 of 10000".into())
        );
        bar.begun = Instant::now() - Duration::from_secs(3);
        bar.size(1, 10_000, 9);
        let (left, which) = (bar.bar.message(), bar.bar.prefix());
        assert!(
            left.contains("h 20 min left") || left.contains("h 19 min left"),
            "{left}"
        );
        assert_eq!(which, "9 B, 2 of 10000");
    }
}
