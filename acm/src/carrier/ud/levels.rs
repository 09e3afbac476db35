//! The service levels of senders, for messages to them.

use std::collections::HashMap;

use crate::address::Gid;

/// Maximum entries of a generation; there are two.
const MOST: usize = 4096;

/// The GID and the LID of a port.
type Port = (Gid, u16);
/// A service level, and which LID of this port it came to, as an offset.
type Level = (u8, u8);

/// The last service level of each sender, in two generations: entries not seen during the last one are
/// dropped.
#[derive(Debug, Default)]
pub(super) struct Levels {
    young: HashMap<Port, Level>,
    old: HashMap<Port, Level>,
}

impl Levels {
    /// Records what a message came with.
    pub(super) fn record(&mut self, from: Port, level: Level) {
        if level == (0, 0) && !self.young.contains_key(&from) && !self.old.contains_key(&from) {
            return;
        }
        if self.young.len() >= MOST && !self.young.contains_key(&from) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(from, level);
    }

    /// Returns the level for a message; the lowest where none is known.
    pub(super) fn of(&self, to: Port) -> Level {
        let found = self.young.get(&to).or_else(|| self.old.get(&to));
        found.copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_levels_are_known_and_memory_has_a_bound() {
        let mut levels = Levels::default();
        let gid = |number: usize| {
            let mut gid = Gid::NONE;
            gid.0[8..].copy_from_slice(&(number as u64).to_be_bytes());
            gid
        };
        levels.record((gid(1), 7), (0, 0));
        assert!(levels.young.is_empty(), "what all have takes no memory");
        for number in 0..3 * MOST {
            levels.record((gid(number), 7), (3, 1));
        }
        assert!(levels.young.len() + levels.old.len() <= 2 * MOST);
        assert_eq!(levels.of((gid(3 * MOST - 1), 7)), (3, 1));
        assert_eq!((levels.of((gid(0), 7)), levels.of((gid(9), 8))), ((0, 0), (0, 0)));
        levels.record((gid(3 * MOST - 1), 7), (0, 0));
        assert_eq!(levels.of((gid(3 * MOST - 1), 7)), (0, 0));
    }
}
