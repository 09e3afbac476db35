//! Addresses of rails over queue pairs, as peers publish them.

/// Reads the input as an address.
pub fn run(input: &[u8]) {
    doorbell_verbs::fuzzing::address(input);
}
