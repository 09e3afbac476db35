//! The states of a way (a peer over one rail), and what moves it between them.
//!
//! ```text
//!             silent                 broken
//!      Up ───────────► Suspect ──────────────► Down ◄──────────────┐
//!      ▲ ◄─────────────   │                    │  ▲                │ broken, or
//!      │    answered      │ broken       called │  │ unanswered     │
//!      │                  ▼                    ▼  │                │
//!      │                 Down                Probing ── reached ─► Returning
//!      └───────────────────────────── steady ──────────────────────┘
//! ```
//!
//! A way that is down also returns without a call of ours, when the peer's call reached us. A way that returns and owes answers stays: its proofs are what it owes, and a process that did not run for a while is no
//! way that broke. Where it did break, its rail says so.
//!
//! The table is all there is; what is not in it moves nothing. Source: design, section 7; the states of Open MPI's BFO
//! are Up and Down alone (reference: bfo, sections 7 and 11).

use std::fmt;

/// How a way is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WayState {
    /// It carries messages.
    #[default]
    Up,
    /// It owes answers: nothing new takes it while there is another one.
    Suspect,
    /// It is given up. What was under way over it goes over the others.
    Down,
    /// The peer is called, and has not answered.
    Probing,
    /// The peer has answered, and the way has to stay good for a while before it is used.
    Returning,
}

impl WayState {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Up,
        Self::Suspect,
        Self::Down,
        Self::Probing,
        Self::Returning,
    ];

    /// As a number, for counters: its place in [`WayState::ALL`].
    #[must_use]
    pub const fn number(self) -> u64 {
        self as u64
    }

    /// The state of that number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether something in between was [`WayState::Down`], and came from a state that was not: with the state found `now`,
    /// when it was this one before.
    #[must_use]
    pub const fn has_failed(self, now: Self) -> bool {
        match (self, now) {
            (Self::Up | Self::Suspect, Self::Down | Self::Probing | Self::Returning) => true,
            (Self::Returning, Self::Down | Self::Probing) => true,
            (_, _) => false,
        }
    }

    /// As it is shown.
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

impl fmt::Display for WayState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// What happens to a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Turn {
    /// The rail: the peer owes answers.
    Silent,
    /// The rail: it has answered.
    Answered,
    /// The rail, the link, the device, a refusal, or the peer over another way: it is over.
    Broken,
    /// The back-off is over: the rail calls the peer.
    Called,
    /// It did not answer in time.
    Unanswered,
    /// The rail: both directions stand again.
    Reached,
    /// It stayed good for long enough, or there is no other way.
    Steady,
}

#[cfg(test)]
impl Turn {
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

/// Every move that there is.
pub(crate) const MOVES: &[(WayState, Turn, WayState)] = {
    use {Turn as T, WayState as W};
    &[
        (W::Up, T::Silent, W::Suspect),
        (W::Up, T::Broken, W::Down),
        (W::Suspect, T::Answered, W::Up),
        (W::Suspect, T::Broken, W::Down),
        (W::Down, T::Called, W::Probing),
        (W::Down, T::Reached, W::Returning),
        (W::Probing, T::Unanswered, W::Down),
        (W::Probing, T::Broken, W::Down),
        (W::Probing, T::Reached, W::Returning),
        (W::Returning, T::Steady, W::Up),
        (W::Returning, T::Broken, W::Down),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot;

    #[test]
    fn the_moves_are_those_of_the_snapshot() {
        snapshot::check("way.txt", include_str!("../snapshots/way.txt"), MOVES);
        snapshot::check_graph("way.dot", include_str!("../snapshots/way.dot"), "way", MOVES);
    }

    #[test]
    fn numbers_are_states_and_back() {
        for (place, state) in WayState::ALL.into_iter().enumerate() {
            assert_eq!(
                (state.number(), WayState::from_number(place as u64)),
                (place as u64, Some(state))
            );
        }
        assert_eq!(WayState::from_number(5), None);
    }

    #[test]
    fn every_move_down_is_a_failure_but_a_call_without_an_answer() {
        for (from, _, to) in MOVES {
            let failed = *to == WayState::Down && *from != WayState::Probing;
            // What is seen later, when the peer is called or has answered, counts as well.
            assert!(
                !failed || from.has_failed(*to) && from.has_failed(WayState::Probing),
                "{from} {to}"
            );
            assert!(failed || !from.has_failed(*to), "{from} {to}");
        }
        assert!(WayState::Up.has_failed(WayState::Returning));
    }

    #[test]
    fn every_state_is_left_and_no_pair_leads_to_two() {
        for state in WayState::ALL {
            assert!(
                MOVES.iter().any(|(from, _, _)| *from == state),
                "{state} is a trap"
            );
            assert!(
                MOVES.iter().any(|(_, _, to)| *to == state),
                "{state} is never met"
            );
            for turn in Turn::ALL {
                let ways = MOVES.iter().filter(|(from, by, _)| (*from, *by) == (state, turn));
                assert!(ways.count() <= 1);
            }
        }
    }

    /// From every state, whatever happened, a way can get up again.
    #[test]
    fn up_is_reached_from_everywhere() {
        for start in WayState::ALL {
            let mut seen = vec![start];
            while let Some(next) = MOVES
                .iter()
                .find(|(from, _, to)| seen.contains(from) && !seen.contains(to))
            {
                seen.push(next.2);
            }
            assert!(seen.contains(&WayState::Up), "{start}");
        }
    }
}
