//! State machines as tables: what is not in the table moves nothing.

/// Where `turn` leads from `state`, by a table of (from, by, to).
pub(crate) fn after<S: Copy + PartialEq, T: Copy + PartialEq>(
    moves: &[(S, T, S)],
    state: S,
    turn: T,
) -> Option<S> {
    let found = moves.iter().find(|(from, by, _)| *from == state && *by == turn);
    found.map(|(_, _, to)| *to)
}
