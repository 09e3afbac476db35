//! The exit policy: when a job is over and with which exit status. The process that owns the ranks carries it
//! out.
//!
//! A rank that ends with anything but 0 ends the job. One that ended because it lost another one is not the
//! cause, which has some time to show. A signal that was passed on needs no message; the second one kills.

use std::time::{Duration, Instant};

use doorbell_fabric::error::Exit;
use rustix::process::Signal;

use super::rank::Failure;

/// Time between SIGTERM and SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// How long the cause may take to show after a rank ended because it lost another one.
const CAUSE: Duration = Duration::from_millis(500);

/// An action to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Print this message.
    Print(String),
    /// Send this to all ranks that have not ended.
    Signal(Signal),
}

/// The number of ranks that have not ended, and of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remaining {
    pub(super) alive: u32,
    pub(super) all: u32,
}

#[derive(Debug)]
pub(super) struct ExitPolicy {
    /// The exit status of the job, once it is decided.
    verdict: Option<u8>,
    /// The first rank that ended because it lost another one, and until when the cause may still show.
    consequence: Option<(Failure, Instant)>,
    timeout: Option<(Instant, Duration)>,
    kill_at: Option<Instant>,
    /// How many times a signal was passed on: the second time it becomes SIGKILL.
    passed_on: u32,
}

impl ExitPolicy {
    pub(super) fn new(now: Instant, timeout: Option<Duration>) -> Self {
        Self {
            verdict: None,
            consequence: None,
            timeout: timeout.map(|time| (now + time, time)),
            kill_at: None,
            passed_on: 0,
        }
    }

    /// Returns the job's exit status, if it has failed.
    pub(super) fn verdict(&self) -> Option<u8> {
        self.verdict
    }

    /// Whether a signal ended the job.
    pub(super) fn was_passed_on(&self) -> bool {
        self.passed_on > 0
    }

    /// Returns when [`ExitPolicy::tick`] is due.
    pub(super) fn until(&self) -> Option<Instant> {
        let cause = self.consequence.as_ref().map(|(_, until)| *until);
        let until = [self.kill_at, self.timeout.map(|(at, _)| at), cause];
        until.into_iter().flatten().min()
    }

    /// Handles the failure of a rank. The first failure decides, unless it looks like the consequence of
    /// another one.
    pub(super) fn failed(&mut self, now: Instant, failure: Failure, left: Remaining) -> Vec<Action> {
        if self.verdict.is_some() {
            return Vec::new();
        }
        if failure.code == Exit::PeerLost.number() {
            self.consequence.get_or_insert((failure, now + CAUSE));
            return Vec::new();
        }
        self.condemn(now, failure, left)
    }

    /// Handles a failure of the job that no rank caused.
    pub(super) fn condemn(&mut self, now: Instant, failure: Failure, left: Remaining) -> Vec<Action> {
        self.consequence = None;
        if self.verdict.is_some() {
            return Vec::new();
        }
        self.verdict = Some(failure.code);
        // A signal that was passed on needs no message.
        if self.passed_on > 0 {
            return Vec::new();
        }
        self.end(now, &failure.how, left)
    }

    /// Ends the remaining ranks, with the reason.
    fn end(&mut self, now: Instant, reason: &str, left: Remaining) -> Vec<Action> {
        let other = if left.alive < left.all { "other " } else { "" };
        let rest = match left.alive {
            0 => String::new(),
            1 => format!("; ending the {other}rank"),
            n => format!("; ending the {other}{n} ranks"),
        };
        self.kill_at = Some(now + GRACE);
        vec![
            Action::Print(format!("{reason}{rest}")),
            Action::Signal(Signal::TERM),
        ]
    }

    /// Passes a signal to the launcher on to the job; the second one kills.
    pub(super) fn signal(&mut self, now: Instant, signal: Signal) -> Action {
        self.passed_on += 1;
        if signal == Signal::HUP {
            // The terminal is gone, so no second signal can come.
            self.kill_at = Some(now + GRACE);
        }
        Action::Signal(if self.passed_on > 1 { Signal::KILL } else { signal })
    }

    /// Extends the deadlines by a time during which the job was stopped by us.
    pub(super) fn paused(&mut self, time: Duration) {
        if let Some((at, _)) = &mut self.timeout {
            *at += time;
        }
    }

    /// Carries out what is due.
    pub(super) fn tick(&mut self, now: Instant, left: Remaining) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some((failure, _)) = self
            .consequence
            .take_if(|(_, until)| left.alive == 0 || now >= *until)
        {
            actions.extend(self.condemn(now, failure, left));
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            actions.push(Action::Signal(Signal::KILL));
        }
        if let Some((at, time)) = self.timeout
            && now >= at
        {
            self.timeout = None;
            if left.alive > 0 {
                self.verdict.get_or_insert(Exit::TimedOut.number());
                let why = format!("the job did not end within {} s", time.as_secs_f64());
                actions.extend(self.end(now, &why, left));
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Remaining = Remaining { alive: 4, all: 4 };
    const SOME: Remaining = Remaining { alive: 2, all: 4 };

    fn failure(code: u8) -> Failure {
        Failure {
            code,
            how: format!("rank 1 ended with exit status {code}"),
        }
    }

    fn printed(actions: &[Action]) -> Vec<&str> {
        let mut printed = Vec::new();
        for action in actions {
            if let Action::Print(text) = action {
                printed.push(text.as_str());
            }
        }
        printed
    }

    #[test]
    fn the_first_failure_is_the_jobs() {
        let now = Instant::now();
        let mut policy = ExitPolicy::new(now, None);
        let actions = policy.failed(now, failure(7), SOME);
        assert_eq!(
            printed(&actions),
            ["rank 1 ended with exit status 7; ending the other 2 ranks"]
        );
        assert_eq!(actions.last(), Some(&Action::Signal(Signal::TERM)));
        assert_eq!(policy.failed(now, failure(9), SOME), []);
        assert_eq!(policy.verdict(), Some(7));
        assert_eq!(policy.until(), Some(now + GRACE));
        assert_eq!(policy.tick(now + GRACE, SOME), [Action::Signal(Signal::KILL)]);
        assert_eq!(policy.tick(now + 2 * GRACE, SOME), []);
    }

    #[test]
    fn a_consequence_waits_for_its_cause() {
        let now = Instant::now();
        let lost = Exit::PeerLost.number();
        let mut policy = ExitPolicy::new(now, None);
        assert_eq!(policy.failed(now, failure(lost), SOME), []);
        assert_eq!(policy.failed(now, failure(3), SOME).len(), 2);
        assert_eq!(policy.verdict(), Some(3));
        // No cause shows in time.
        for (at, left) in [(now + CAUSE, SOME), (now, Remaining { alive: 0, all: 4 })] {
            let mut policy = ExitPolicy::new(now, None);
            assert_eq!(policy.failed(now, failure(lost), SOME), []);
            assert_eq!(policy.tick(now, SOME), []);
            assert!(!policy.tick(at, left).is_empty());
            assert_eq!(policy.verdict(), Some(lost));
        }
    }

    #[test]
    fn a_signal_is_passed_on_and_the_second_one_is_meant() {
        let now = Instant::now();
        let mut policy = ExitPolicy::new(now, None);
        assert_eq!(policy.signal(now, Signal::INT), Action::Signal(Signal::INT));
        assert_eq!(policy.failed(now, failure(130), SOME), [], "it explains itself");
        assert_eq!(policy.signal(now, Signal::INT), Action::Signal(Signal::KILL));
        assert_eq!(policy.verdict(), Some(130));
        assert_eq!(policy.until(), None);
        policy.signal(now, Signal::HUP);
        assert_eq!(policy.until(), Some(now + GRACE));
    }

    #[test]
    fn a_time_out_ends_the_remaining_ranks() {
        let now = Instant::now();
        let time = Duration::from_secs(3);
        let mut policy = ExitPolicy::new(now, Some(time));
        policy.paused(time);
        assert_eq!(policy.tick(now + time, ALL), []);
        let actions = policy.tick(now + 2 * time, ALL);
        assert_eq!(
            printed(&actions),
            ["the job did not end within 3 s; ending the 4 ranks"]
        );
        assert_eq!(policy.verdict(), Some(Exit::TimedOut.number()));
        let mut policy = ExitPolicy::new(now, Some(time));
        assert_eq!(policy.tick(now + time, Remaining { alive: 0, all: 4 }), []);
        assert_eq!(policy.verdict(), None);
    }
}
