//! Writes of the model that arrive late, in another order than they were posted in, or in parts: a device
//! reports their ends, and keeps them.

use super::*;

/// A write that was reported to have ended, and of which a part or all is still to come.
#[derive(Clone, Debug)]
pub(crate) struct LateWrite {
    address: u64,
    key: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Has writes of a device of at least this many bytes be kept from now on, or arrive as they are posted.
pub(crate) fn put_off_writes(name: &str, from: Option<usize>) {
    world().device(name).late_from = from;
}

/// Takes the writes that a device has kept, in the order in which they were posted.
pub(crate) fn late_writes(name: &str) -> Vec<LateWrite> {
    std::mem::take(&mut world().device(name).late)
}

/// Has a part of a write arrive, if its memory is still registered; whether it was.
pub(crate) fn arrive(write: &LateWrite, part: std::ops::Range<usize>) -> bool {
    let world = world();
    let memory = world.memory.get(&write.key);
    let is_there = memory.is_some_and(|memory| memory.has(write.address, write.bytes.len()));
    if is_there {
        let bytes = &write.bytes[part.clone()];
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(write.address as usize + part.start);
        // SAFETY: the memory is registered to be written, and stays mapped while the world is held.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }
    is_there
}

/// What a device reports about the order in which it writes.
pub(super) unsafe extern "C" fn query_data_in_order(qp: *mut Qp, opcode: c_int, flags: u32) -> c_int {
    assert_eq!((opcode, flags), (numbers::WR_RDMA_WRITE, 0));
    // SAFETY: a queue pair of the model.
    let name = unsafe { name_of((*qp).context) };
    c_int::from(world().device(&name).spec.in_order)
}

/// As a library before version 1.14.
pub(crate) fn forget_data_in_order(library: &mut Library) {
    library.functions.query_data_in_order = None;
}

impl World {
    /// Whether a write of a queue pair is kept.
    pub(super) fn is_late(&mut self, at: usize, length: usize) -> bool {
        let name = self.pairs[&at].device.clone();
        self.device(&name).late_from.is_some_and(|from| length >= from)
    }

    /// Keeps a write that is allowed.
    pub(super) fn write_late(
        &mut self,
        at: usize,
        target: &reliable::Target,
        [address, key, ..]: [u64; 4],
        bytes: Vec<u8>,
    ) -> c_int {
        if !self.is_allowed(target, (address, key as u32), bytes.len(), numbers::REMOTE_WRITE) {
            self.fall(target.at);
            return numbers::REM_ACCESS_ERR;
        }
        let name = self.pairs[&at].device.clone();
        let key = key as u32;
        self.device(&name).late.push(LateWrite { address, key, bytes });
        numbers::SUCCESS
    }
}
