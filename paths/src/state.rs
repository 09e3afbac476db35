//! The states of a path (a peer over one rail), and what moves it between them.
//!
//! ```text
//!             silent                 broken
//!      Up ───────────► Suspect ──────────────► Down ◄──────────────┐
//!      ▲ ◄─────────────   │                    │  ▲                │ broken, or
//!      │   answered, or   │ broken       called │  │ unanswered     │
//!      │     reached      │                     │  │                │
//!      │                  ▼                    ▼  │                │
//!      │                 Down                Probing ── reached ─► Returning
//!      └───────────────────────────── steady ──────────────────────┘
//! ```
//!
//! A path that is down also returns without one of our calls, when the peer's call reached us. A returning
//! path that owes answers stays: its probes are what it owes, and a process that did not run for a while is
//! no path that broke. Where it did break, its rail reports so.
//!
//! The table is complete; what is not in it moves nothing. Source: design, section 7; the states of Open
//! MPI's BFO are Up and Down alone (reference: bfo, sections 7 and 11).

use std::fmt;

/// The state of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PathState {
    /// It carries messages.
    #[default]
    Up,
    /// It owes answers: nothing new takes it while there is another one.
    Suspect,
    /// It is given up. What was under way over it goes over the others.
    Down,
    /// The peer is called, and has not answered.
    Probing,
    /// The peer has answered, and the path has to stay good for a while before it is used.
    Returning,
}

impl PathState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Up,
        Self::Suspect,
        Self::Down,
        Self::Probing,
        Self::Returning,
    ];

    /// Returns the number of the state, for counters: its index in [`PathState::ALL`].
    #[must_use]
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// Returns the state with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns whether a path broke between two checks: it was in this state before, and is in the state
    /// `now`.
    #[must_use]
    pub const fn has_failed(self, now: Self) -> bool {
        match (self, now) {
            (Self::Up | Self::Suspect, Self::Down | Self::Probing | Self::Returning) => true,
            (Self::Returning, Self::Down | Self::Probing) => true,
            (_, _) => false,
        }
    }

    /// Whether messages may take a path in this state.
    #[must_use]
    #[inline]
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Up | Self::Suspect)
    }

    /// Returns the state's name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Probing => "probing",
            Self::Returning => "returning",
        }
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// What happens to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathEvent {
    /// The rail reports that the peer owes answers.
    Silent,
    /// The rail reports an answer, or a probe was answered.
    Answered,
    /// The rail, its link or device, a refusal, or the peer over another path ends it.
    Broken,
    /// The back-off has passed, and the rail calls the peer.
    Called,
    /// The peer did not answer the call in time.
    Unanswered,
    /// The rail reports that both directions work again.
    Reached,
    /// It stayed good for long enough, or there is no other path.
    Steady,
}

#[cfg(test)]
impl PathEvent {
    const ALL: [Self; 7] = [
        Self::Silent,
        Self::Answered,
        Self::Broken,
        Self::Called,
        Self::Unanswered,
        Self::Reached,
        Self::Steady,
    ];
}

/// All transitions: from a state, by an event, to a state.
pub const TRANSITIONS: &[(PathState, PathEvent, PathState)] = {
    use {PathEvent as E, PathState as S};
    &[
        (S::Up, E::Silent, S::Suspect),
        (S::Up, E::Broken, S::Down),
        (S::Suspect, E::Answered, S::Up),
        (S::Suspect, E::Reached, S::Up),
        (S::Suspect, E::Broken, S::Down),
        (S::Down, E::Called, S::Probing),
        (S::Down, E::Reached, S::Returning),
        (S::Probing, E::Unanswered, S::Down),
        (S::Probing, E::Broken, S::Down),
        (S::Probing, E::Reached, S::Returning),
        (S::Returning, E::Steady, S::Up),
        (S::Returning, E::Broken, S::Down),
    ]
};

#[cfg(test)]
mod tests {
    use doorbell_testing::snapshot;

    use super::*;

    #[test]
    fn the_transitions_are_those_of_the_snapshot() {
        let file = |name: &str| format!("{}/src/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
        snapshot::check(&file("path.txt"), include_str!("snapshots/path.txt"), TRANSITIONS);
        snapshot::check_graph(
            &file("path.dot"),
            include_str!("snapshots/path.dot"),
            "path",
            TRANSITIONS,
        );
    }

    #[test]
    fn numbers_are_states_and_back() {
        for (place, state) in PathState::ALL.into_iter().enumerate() {
            assert_eq!(
                (state.number(), PathState::from_number(place as u64)),
                (place as u64, Some(state))
            );
        }
        assert_eq!(PathState::from_number(5), None);
    }

    #[test]
    fn every_transition_down_is_a_failure_but_a_call_without_an_answer() {
        for (from, _, to) in TRANSITIONS {
            let failed = *to == PathState::Down && *from != PathState::Probing;
            // A failure that is found later, when the peer is called or has answered, counts as well.
            assert!(
                !failed || from.has_failed(*to) && from.has_failed(PathState::Probing),
                "{from} {to}"
            );
            assert!(failed || !from.has_failed(*to), "{from} {to}");
        }
        assert!(PathState::Up.has_failed(PathState::Returning));
    }

    #[test]
    fn every_state_is_left_and_no_pair_leads_to_two() {
        for state in PathState::ALL {
            assert!(
                TRANSITIONS.iter().any(|(from, _, _)| *from == state),
                "{state} is a trap"
            );
            assert!(
                TRANSITIONS.iter().any(|(_, _, to)| *to == state),
                "{state} is never reached"
            );
            for event in PathEvent::ALL {
                let same = TRANSITIONS
                    .iter()
                    .filter(|(from, by, _)| (*from, *by) == (state, event));
                assert!(same.count() <= 1);
            }
        }
    }

    /// From every state, whatever happened, a path can get up again.
    #[test]
    fn up_is_reached_from_everywhere() {
        for start in PathState::ALL {
            let mut seen = vec![start];
            while let Some(next) = TRANSITIONS
                .iter()
                .find(|(from, _, to)| seen.contains(from) && !seen.contains(to))
            {
                seen.push(next.2);
            }
            assert!(seen.contains(&PathState::Up), "{start}");
        }
    }
}
