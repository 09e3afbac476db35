//! The model of a VIC: two clients and the wire act as a script directs
//! (`drivers/usnic/model/src/fuzzing.rs`).

/// Runs the input as a script.
pub fn run(input: &[u8]) {
    doorbell_vic::fuzzing::run(input);
}
