//! The planned tree, computed by a formula.

/// The radix tree of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    ranks: u32,
    radix: u32,
}

impl Tree {
    /// Creates the tree of this many ranks, with at most this many children each (at least 1).
    #[must_use]
    pub fn new(ranks: u32, radix: u32) -> Self {
        Self {
            ranks,
            radix: radix.max(1),
        }
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the first rank of the level of `rank`, and the capacity of that level.
    fn level(&self, rank: u32) -> (u64, u64) {
        let (mut start, mut size) = (0, 1);
        while start + size <= u64::from(rank) {
            start += size;
            size *= u64::from(self.radix);
        }
        (start, size)
    }

    /// Returns the parent of a rank; `None` for the root.
    #[must_use]
    pub fn parent(&self, rank: u32) -> Option<u32> {
        if rank == 0 {
            return None;
        }
        let (start, size) = self.level(rank);
        let above = size / u64::from(self.radix);
        let parent = start - above + (u64::from(rank) - start) % above;
        u32::try_from(parent).ok()
    }

    /// Returns the children of a rank, in order.
    pub fn children(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let (_, size) = self.level(rank);
        let ranks = u64::from(self.ranks);
        (1..=u64::from(self.radix))
            .map(move |nth| u64::from(rank) + nth * size)
            .take_while(move |&child| child < ranks)
            .filter_map(|child| u32::try_from(child).ok())
    }

    /// Returns the ancestors of a rank, from its parent to the root.
    pub fn ancestors(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let tree = *self;
        std::iter::successors(tree.parent(rank), move |&rank| tree.parent(rank))
    }

    /// Whether `rank` is `top`, or below it.
    #[must_use]
    pub fn is_below(&self, rank: u32, top: u32) -> bool {
        rank == top || self.ancestors(rank).any(|ancestor| ancestor == top)
    }

    /// Returns a rank and all ranks below it.
    #[must_use]
    pub fn branch(&self, top: u32) -> Vec<u32> {
        let mut branch = vec![top];
        let mut at = 0;
        while let Some(&rank) = branch.get(at) {
            branch.extend(self.children(rank));
            at += 1;
        }
        branch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_by_hand() {
        let tree = Tree::new(15, 2);
        let parents: Vec<_> = (0..15).map(|rank| tree.parent(rank)).collect();
        let by_hand = [0, 0, 1, 2, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6];
        assert_eq!(parents[0], None);
        assert_eq!(parents[1..], by_hand.map(Some));
        assert_eq!(tree.children(1).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(tree.children(3).collect::<Vec<_>>(), [7, 11]);
        assert_eq!(tree.ancestors(11).collect::<Vec<_>>(), [3, 1, 0]);
        assert_eq!(tree.branch(1), [1, 3, 5, 7, 11, 9, 13]);
    }

    #[test]
    fn parents_and_children_agree_and_every_rank_is_below_the_root() {
        for (ranks, radix) in [
            (1, 64),
            (2, 64),
            (65, 64),
            (66, 64),
            (5000, 64),
            (1000, 1),
            (1000, 3),
            (4097, 8),
        ] {
            let tree = Tree::new(ranks, radix);
            for rank in 0..ranks {
                for child in tree.children(rank) {
                    assert_eq!(tree.parent(child), Some(rank), "{ranks} {radix}");
                }
                assert!(tree.children(rank).count() <= radix as usize);
            }
            let mut all = tree.branch(0);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..ranks), "{ranks} ranks, radix {radix}");
        }
        assert_eq!(Tree::new(10_000, 64).ancestors(9_999).count(), 3);
        assert!(Tree::new(u32::MAX, 64).parent(u32::MAX - 1).is_some());
    }
}
