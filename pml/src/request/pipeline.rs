//! Fragments of one transfer under way: a bounded pipeline (reference: bfo, section 5).

use doorbell_fabric::message::MsgId;

use crate::rails::RailId;

/// The rail's numbers of the last fragments of a transfer.
#[derive(Debug)]
pub(crate) struct Pipeline {
    ids: [MsgId; Self::MOST],
    rail: RailId,
    count: usize,
}

impl Default for Pipeline {
    fn default() -> Self {
        Self::over_rail(RailId::NONE)
    }
}

impl Pipeline {
    /// The deepest pipeline.
    pub(crate) const MOST: usize = 16;

    const fn over_rail(rail: RailId) -> Self {
        Self {
            ids: [MsgId(0); Self::MOST],
            rail,
            count: 0,
        }
    }

    /// The fragment that must have been handed over before another one may leave over `rail`.
    pub(crate) fn gate(&mut self, rail: RailId, depth: usize) -> MsgId {
        self.use_rail(rail);
        if self.count < depth {
            return MsgId(0);
        }
        self.ids[(self.count - depth) % Self::MOST]
    }

    fn use_rail(&mut self, rail: RailId) {
        if self.rail != rail {
            *self = Self::over_rail(rail);
        }
    }

    /// Notes a fragment that left over `rail`.
    pub(crate) fn note(&mut self, rail: RailId, id: MsgId) {
        self.use_rail(rail);
        self.ids[self.count % Self::MOST] = id;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipeline_waits_for_the_fragment_that_left_depth_ago() {
        let mut pipeline = Pipeline::default();
        for id in 1..=40 {
            let gate = pipeline.gate(RailId(3), 4);
            assert_eq!(gate.0, u64::max(4, id - 1) - 4 + u64::from(id > 4));
            pipeline.note(RailId(3), MsgId(id));
        }
        assert_eq!(
            pipeline.gate(RailId(2), 4),
            MsgId(0),
            "another rail counts for itself"
        );
    }
}
