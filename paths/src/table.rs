//! State machines as tables: what is not in the table moves nothing.

/// Returns the state that follows `state` after `event`, by a table of (from, by, to); `None` where nothing
/// moves.
pub fn next<S: Copy + PartialEq, E: Copy + PartialEq>(
    transitions: &[(S, E, S)],
    state: S,
    event: E,
) -> Option<S> {
    let found = transitions
        .iter()
        .find(|(from, by, _)| *from == state && *by == event);
    found.map(|(_, _, to)| *to)
}
