//! Puts that are taken where they have arrived, instead of being matched and copied.

use super::types::Process;
use crate::memory::SharedBytes;

/// A put that has just arrived, in the memory of the rail that it came over.
///
/// The bytes are valid for the call that shows them, and their sender may still write them: what is checked
/// has to be copied first.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedPut<'a> {
    /// The process that put, as the interface's kind names it.
    pub initiator: Process,
    /// The user that it put for.
    pub uid: u32,
    /// The table entry.
    pub pt_index: u32,
    /// The match bits.
    pub match_bits: u64,
    /// The requested offset.
    pub remote_offset: u64,
    /// The header data.
    pub hdr_data: u64,
    /// All of the put's bytes.
    pub bytes: SharedBytes<'a>,
}

/// Takes puts where they have arrived ([`Ni::poll_in_place`](super::Ni::poll_in_place)).
pub trait TakePut {
    /// Returns whether the put was taken. One that was not is matched and copied as any other. Must not
    /// unwind: the rail is in the middle of a poll.
    fn take(&mut self, put: &ArrivedPut<'_>) -> bool;
}
