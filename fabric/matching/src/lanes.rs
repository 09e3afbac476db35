//! The lanes of the tuple-space search: entries that leave the same bits open share one.
//!
//! Within a lane all keys are masked alike, so a masked key is looked up by hash. An arrival looks once into
//! every lane that has entries; when no wildcard is posted, that is one look-up. Programs use very few
//! different masks (any source, any tag, both); entries whose masks find no lane are on a plain list
//! behind the lanes, which is searched linearly.

use crate::List;
use crate::masks::Masks;

/// Lanes of each list.
const CLASSES: usize = 8;

/// The lane of fully given entries on the priority list: always there, never counted here.
pub(crate) const EXACT: u8 = 0;

/// The number of the priority list's plain list; the overflow list's is the next. All lanes are below.
pub(crate) const LINEAR: u8 = 2 * CLASSES as u8;

/// What one lane leaves open, and how many entries are in it.
#[derive(Clone, Copy, Debug)]
struct Class {
    masks: Masks,
    entries: u32,
}

/// All lanes of both lists.
#[derive(Debug)]
pub(crate) struct Lanes {
    classes: [Class; 2 * CLASSES],
    /// One bit for each lane with entries; [`EXACT`] is always set.
    live: u32,
    /// The lane of each list that was given last. Whatever it leaves open is left open by no other one that
    /// has entries, also while it has none itself.
    last: [u8; 2],
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let class = Class {
            masks: Masks::EXACT,
            entries: 0,
        };
        Self {
            classes: [class; 2 * CLASSES],
            live: 1 << EXACT,
            last: [
                Self::range(List::Priority).end - 1,
                Self::range(List::Overflow).end - 1,
            ],
        }
    }

    /// Returns what a lane leaves open.
    #[inline]
    pub(crate) fn masks(&self, lane: u8) -> Masks {
        self.classes[usize::from(lane)].masks
    }

    /// The lane for one more entry with these masks, or the list's plain list.
    #[inline]
    pub(crate) fn admit(&mut self, list: List, masks: Masks) -> u8 {
        let lane = self.last[list as usize];
        let class = &mut self.classes[usize::from(lane)];
        // Most programs leave the same bits open each time.
        if class.masks == masks {
            class.entries += 1;
            self.live |= 1 << lane;
            return lane;
        }
        self.admit_elsewhere(list, masks)
    }

    #[inline(never)]
    fn admit_elsewhere(&mut self, list: List, masks: Masks) -> u8 {
        let lanes = Self::range(list);
        let mut free = None;
        for lane in lanes {
            let class = &mut self.classes[usize::from(lane)];
            if self.live & (1 << lane) == 0 {
                free = free.or(Some(lane));
            } else if lane != EXACT && class.masks == masks {
                class.entries += 1;
                self.last[list as usize] = lane;
                return lane;
            }
        }
        let Some(lane) = free else {
            return LINEAR + list as u8;
        };
        self.last[list as usize] = lane;
        self.classes[usize::from(lane)] = Class { masks, entries: 1 };
        self.live |= 1 << lane;
        lane
    }

    /// An entry has left its lane; an empty lane may take other masks.
    #[inline]
    pub(crate) fn leave(&mut self, lane: u8) {
        let class = &mut self.classes[usize::from(lane)];
        class.entries -= 1;
        if class.entries == 0 {
            self.live &= !(1 << lane);
        }
    }

    /// The lane of a list that has entries, if it is the only one; `exact` is whether [`EXACT`] has any.
    /// `Err`: several.
    #[inline]
    pub(crate) fn only(&self, list: List, exact: bool) -> Result<Option<u8>, ()> {
        let range = Self::range(list);
        let mut live = self.live >> range.start & ((1 << CLASSES) - 1);
        if list == List::Priority && !exact {
            live &= !(1 << EXACT);
        }
        match live & live.wrapping_sub(1) {
            0 => Ok((live != 0).then(|| range.start + live.trailing_zeros() as u8)),
            _ => Err(()),
        }
    }

    /// The lanes of a list that have entries.
    #[inline]
    pub(crate) fn live(&self, list: List) -> impl Iterator<Item = u8> + use<> {
        let mut left = self.live >> Self::range(list).start & ((1 << CLASSES) - 1);
        let start = Self::range(list).start;
        std::iter::from_fn(move || {
            let lane = (left != 0).then(|| start + left.trailing_zeros() as u8);
            left &= left.wrapping_sub(1);
            lane
        })
    }

    /// True for the lanes and the plain list of the overflow list.
    pub(crate) fn is_overflow(lane: u8) -> bool {
        if lane < LINEAR {
            lane >= CLASSES as u8
        } else {
            lane != LINEAR
        }
    }

    #[inline]
    const fn range(list: List) -> std::ops::Range<u8> {
        let start = list as u8 * CLASSES as u8;
        start..start + CLASSES as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(ignore: u64) -> Masks {
        Masks {
            source_ignore: u32::MAX,
            ignore,
        }
    }

    #[test]
    fn equal_masks_share_a_lane_and_the_last_to_leave_frees_it() {
        let mut lanes = Lanes::new();
        let one = lanes.admit(List::Priority, masked(1));
        assert_eq!(lanes.admit(List::Priority, masked(1)), one);
        assert_ne!(lanes.admit(List::Priority, masked(2)), one);
        lanes.leave(one);
        assert!(lanes.live(List::Priority).any(|lane| lane == one));
        lanes.leave(one);
        assert!(!lanes.live(List::Priority).any(|lane| lane == one));
        assert_eq!(lanes.admit(List::Priority, masked(3)), one);
    }

    #[test]
    fn masks_beyond_the_lanes_stand_on_the_plain_list_of_their_own_list() {
        let mut lanes = Lanes::new();
        for ignore in 1..CLASSES as u64 {
            assert!(lanes.admit(List::Priority, masked(ignore)) < LINEAR);
        }
        assert_eq!(lanes.admit(List::Priority, masked(99)), LINEAR);
        for ignore in 1..=CLASSES as u64 {
            let lane = lanes.admit(List::Overflow, masked(ignore));
            assert!((CLASSES as u8..LINEAR).contains(&lane));
        }
        assert_eq!(lanes.admit(List::Overflow, masked(99)), LINEAR + 1);
    }
}
