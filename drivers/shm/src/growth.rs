//! How a lane's memory grows with its use: a page at first, which holds some hundred short messages, and the
//! rest in a few steps while the first lap comes to it. A pair of processes that exchanges little takes
//! little; a lane that has been around once is as if it had been made whole.
//!
//! The sender allocates, before the receiver looks there: memory that runs out is an error of a send, and
//! never a fault. The steps are long, so that a lane takes a handful of them in its life.

use doorbell_fabric::error::RailError;
use doorbell_fabric::map::page_size;
use doorbell_ring::lane::{Backing, CELL_BYTES, Geometry};

use crate::map::WordsOf;
use crate::tx::FRONT_WORDS;

/// A step makes what there is this many times as long.
const STEP: usize = 4;
/// Bytes in front of the cells.
const FRONT: usize = FRONT_WORDS * 8;

/// The memory of a lane object: its front and its cells from the beginning, and its data area.
pub(crate) struct Growth {
    geometry: Geometry,
    object: WordsOf,
    /// Ends of what has been allocated of the cells and of the data, in the object; whole pages.
    cells_end: usize,
    data_end: usize,
}

impl Growth {
    /// Allocates the first page of a fresh lane object.
    pub(crate) fn begin(geometry: Geometry, object: WordsOf) -> Result<Self, RailError> {
        let first = whole_pages(FRONT + 2 * CELL_BYTES);
        object.allocate(0..first)?;
        let data = data_start(geometry);
        Ok(Self {
            geometry,
            object,
            cells_end: first,
            data_end: data - data % page_size(),
        })
    }

    /// What there is memory for.
    pub(crate) fn backing(&self) -> Backing {
        let data = data_start(self.geometry);
        // Cells may end in the middle of a page, which is the data area's first then.
        let data_end = if self.cells_end > data {
            self.data_end.max(self.cells_end)
        } else {
            self.data_end
        };
        Backing {
            cells: ((self.cells_end - FRONT) / CELL_BYTES).min(self.geometry.cells()),
            data: data_end.saturating_sub(data).min(self.geometry.data()),
        }
    }

    /// Allocates at least what is needed, and usually more; returns what there is then.
    pub(crate) fn extend(&mut self, needed: Backing) -> Result<Backing, RailError> {
        let (now, all) = (self.backing(), self.geometry);
        if needed.cells > now.cells {
            let cells = needed.cells.max(STEP * now.cells).min(all.cells());
            let end = whole_pages(FRONT + cells * CELL_BYTES);
            self.object.allocate(self.cells_end..end)?;
            self.cells_end = end;
        }
        if needed.data > now.data {
            let data = needed.data.max(STEP * now.data).min(all.data());
            let end = whole_pages(data_start(all) + data);
            self.object.allocate(self.data_end..end)?;
            self.data_end = end;
        }
        Ok(self.backing())
    }
}

#[cfg(test)]
impl Growth {
    /// Test equipment: refuses all further memory. A read-only map of an object stands in for a system that
    /// has none.
    pub(crate) fn starve(&mut self) {
        use doorbell_fabric::map::{Object, Protection};
        let object = Object::growing("test", data_start(self.geometry) + self.geometry.data()).unwrap();
        self.object = crate::map::words(&object, Protection::ReadOnly, 0).unwrap();
    }
}

/// Where the data area begins in the object.
fn data_start(geometry: Geometry) -> usize {
    FRONT + geometry.cells_bytes()
}

fn whole_pages(length: usize) -> usize {
    length.next_multiple_of(page_size())
}
