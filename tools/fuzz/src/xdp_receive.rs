//! Entries and frames that a kernel puts into the rings of an xdp rail, whole and in chunks.

/// Most bytes of a script.
const LONGEST: usize = 2000;

/// Plays the input as a script.
pub fn run(input: &[u8]) {
    doorbell_xdp::fuzzing::receive(&input[..input.len().min(LONGEST)]);
}
