//! Diagnostics of a rail whose link is up: what it observes itself, and the texts that describe it.

use std::time::Duration;

use doorbell_fabric::time::Time;

/// Time for which the kernel may take nothing of what it was notified to send.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// Texts that explain why nothing arrives.
const NO_PROGRAM: &str = "the rail's program was taken off its interface, so nothing arrives any more: find out who detached \
                          it (`bpftool net`), and start the job again";
const STUCK: &str = "the kernel takes nothing off the rail's send queue: look at the queue (`ethtool -l`, `ethtool -S`), or \
                     choose another one (xdp.queue)";
const SHRUNK: &str = "the interface's MTU was made smaller than the rail's frames while it was open, so full ones are lost: \
                      raise it again, or start the job again";
const ASTRAY: &str = "frames for the rail came by the kernel's own stack, where it does not see them (counter astray): \
                      fragments of packets that are too long for the path, options, or queues without a socket (xdp.queue)";

/// What is wrong, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Diagnostics {
    /// Another process took the program off.
    pub(crate) no_program: bool,
    /// The interface's MTU was lowered.
    pub(crate) shrunk: bool,
    stuck: bool,
    /// Since when nothing was taken, and how much had been by then.
    since: Option<Time>,
    taken: u64,
}

impl Diagnostics {
    /// Whether nothing passes at all.
    pub(crate) fn is_fatal(&self) -> bool {
        self.no_program || self.stuck
    }

    /// `taken` frames were taken so far; `waits`: and more could be.
    pub(crate) fn look_at_sends(&mut self, now: Time, taken: u64, waits: bool) {
        let moves = std::mem::replace(&mut self.taken, taken) != taken;
        if moves || !waits {
            (self.since, self.stuck) = (None, false);
            return;
        }
        let since = *self.since.get_or_insert(now);
        self.stuck |= now >= since + STUCK_AFTER;
    }

    /// Describes the trouble. `astray`: frames that came by the kernel's own stack, which is a reason only
    /// where there is trouble.
    pub(crate) fn in_words(&self, astray: u64, in_doubt: bool) -> Option<&'static str> {
        if self.no_program {
            Some(NO_PROGRAM)
        } else if self.stuck {
            Some(STUCK)
        } else if self.shrunk {
            Some(SHRUNK)
        } else {
            (in_doubt && astray > 0).then_some(ASTRAY)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_that_never_move_are_trouble_until_they_do() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let mut trouble = Diagnostics::default();
        for millis in [0, 20, 499] {
            trouble.look_at_sends(at(millis), 7, millis > 0);
            assert!(!trouble.is_fatal());
        }
        trouble.look_at_sends(at(520), 7, true);
        assert!(trouble.is_fatal());
        assert_eq!(trouble.in_words(0, false), Some(STUCK));
        trouble.look_at_sends(at(540), 8, true);
        assert!(!trouble.is_fatal());
        trouble.look_at_sends(at(2000), 8, false);
        trouble.look_at_sends(at(2020), 8, true);
        assert!(!trouble.is_fatal(), "it waited for nothing in between");
    }

    #[test]
    fn what_went_astray_is_a_reason_only_where_there_is_trouble() {
        let mut trouble = Diagnostics::default();
        assert_eq!(trouble.in_words(5, false), None);
        assert_eq!(trouble.in_words(0, true), None);
        assert_eq!(trouble.in_words(5, true), Some(ASTRAY));
        trouble.shrunk = true;
        assert_eq!(
            (trouble.in_words(5, true), trouble.is_fatal()),
            (Some(SHRUNK), false)
        );
    }
}
