//! The name that was probably meant: by how many letters have to be inserted, removed, replaced or exchanged
//! with their neighbour.

/// Returns the name among `known` that `given` was probably meant to be; `None` where more than about a third
/// of its letters differ from each, which would be no help. Of several that are as near, the first.
///
/// ```
/// use doorbell_fabric::nearest::nearest;
///
/// assert_eq!(nearest("pingpnog", ["info", "pingpong"]), Some("pingpong"));
/// assert_eq!(nearest("frobnicate", ["info", "pingpong"]), None);
/// ```
pub fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let most = given.chars().count().div_ceil(3);
    known
        .into_iter()
        .map(|name| (distance(given, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Returns how many letters have to be changed to make one name of the other.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    strsim::damerau_levenshtein(one, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_changes_win_and_the_first_of_equals() {
        let known = ["info", "run", "rate", "pingpong", "links"];
        for (given, meant) in [
            ("pingpnog", Some("pingpong")),
            ("pinpong", Some("pingpong")),
            ("rin", Some("run")),
            ("rat", Some("rate")),
            ("links", Some("links")),
            ("x", None),
            ("", None),
            ("zzzzzzzz", None),
        ] {
            assert_eq!(nearest(given, known), meant, "{given}");
        }
        assert_eq!(nearest("ab", ["ac", "ad"]), Some("ac"));
    }
}
