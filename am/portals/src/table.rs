//! The portal table: entries that are taken, enabled, disabled (reference: portals, section 4), and their
//! lists.

use doorbell_fabric::ni::{List, PtOptions};
use doorbell_matching::Matcher;

use crate::peers::NONE;

/// An entry of the portal table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) options: PtOptions,
    /// The queue's handle; zero for none.
    pub(crate) eq: u32,
    pub(crate) enabled: bool,
    /// PT_DISABLED is to be posted when the last operation in progress has ended.
    pub(crate) owes_event: bool,
    /// A PT_DISABLED of it is in the queue.
    pub(crate) told: bool,
    /// Operations that an entry has taken, and that have not ended.
    pub(crate) in_progress: u32,
    /// Entries on the priority and the overflow list.
    pub(crate) linked: [u32; 2],
    /// The first and last entry of the two lists, on an interface without matching.
    pub(crate) ends: [(u32, u32); 2],
    /// The entries of a matching interface, and the unexpected headers of both kinds.
    pub(crate) matcher: Matcher,
    /// No other table entry of this interface has this number, or had.
    pub(crate) number: u64,
}

impl Table {
    pub(crate) fn new(options: PtOptions, eq: u32, matcher: Matcher, number: u64) -> Self {
        Self {
            options,
            eq,
            enabled: !options.has(PtOptions::ALLOC_DISABLED),
            owes_event: false,
            told: false,
            in_progress: 0,
            linked: [0; 2],
            ends: [(NONE, NONE); 2],
            matcher,
            number,
        }
    }

    #[inline(always)]
    pub(crate) fn has_flow_control(&self) -> bool {
        self.options.has(PtOptions::FLOWCTRL)
    }

    /// The entry that takes the next request, on an interface without matching.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<(u32, List)> {
        let [(priority, _), (overflow, _)] = self.ends;
        if priority != NONE {
            return Some((priority, List::Priority));
        }
        (overflow != NONE).then_some((overflow, List::Overflow))
    }
}
