//! The numbers by which a rail and its owner call peers, and the tables that they are indices of.

/// Numbers of peers, from zero on. Those of forgotten peers are given out again, so that a table is never
/// longer than there were peers at one time.
#[derive(Clone, Debug, Default)]
pub struct PeerNumbers {
    next: u32,
    free: Vec<u32>,
}

impl PeerNumbers {
    /// Whether this is the number of a peer.
    #[must_use]
    pub fn is_known(&self, peer: u32) -> bool {
        peer < self.next && !self.free.contains(&peer)
    }

    /// Takes a number for a new peer: one that is free and `idle`, or else the next one.
    pub fn take(&mut self, idle: impl Fn(u32) -> bool) -> u32 {
        if let Some(at) = self.free.iter().rposition(|free| idle(*free)) {
            return self.free.swap_remove(at);
        }
        self.next += 1;
        self.next - 1
    }

    /// Frees the number of a forgotten peer. Returns whether it was one.
    pub fn free(&mut self, peer: u32) -> bool {
        let is_known = self.is_known(peer);
        if is_known {
            self.free.push(peer);
        }
        is_known
    }
}

/// Puts what belongs to a new peer into a table: in the place of a forgotten one, or behind the last.
pub fn put_peer<T>(table: &mut Vec<T>, peer: u32, value: T) {
    match table.get_mut(peer as usize) {
        Some(place) => *place = value,
        None => table.push(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_out_again_when_they_are_free_and_idle() {
        let (mut numbers, mut table) = (PeerNumbers::default(), Vec::new());
        for peer in 0..3 {
            assert_eq!(numbers.take(|_| true), peer);
            put_peer(&mut table, peer, peer);
        }
        assert!(numbers.free(1) && !numbers.free(1) && !numbers.free(3));
        assert!(numbers.is_known(0) && !numbers.is_known(1) && !numbers.is_known(3));
        assert_eq!(numbers.take(|peer| peer != 1), 3, "it is in use somewhere");
        put_peer(&mut table, 3, 3);
        assert_eq!(numbers.take(|_| true), 1);
        put_peer(&mut table, 1, 10);
        assert_eq!(table, [0, 10, 2, 3]);
        assert!(numbers.is_known(1));
    }
}
