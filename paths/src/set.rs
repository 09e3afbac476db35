//! Sets of a peer's paths: one bit for each.

/// Most paths of one peer: a set of them is a word.
pub const PATHS_MAX: usize = 64;

/// Returns the members of a set, in ascending order.
pub fn each(set: u64) -> impl Iterator<Item = usize> {
    let rest = std::iter::successors(Some(set), |set| Some(set & set.wrapping_sub(1)));
    rest.take_while(|set| *set != 0)
        .map(|set| set.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_of_a_set_are_its_bits() {
        let of = |set| each(set).collect::<Vec<_>>();
        assert_eq!(of(0), []);
        assert_eq!(of(0b1011), [0, 1, 3]);
        assert_eq!(of(u64::MAX), (0..PATHS_MAX).collect::<Vec<_>>());
    }
}
