//! The kernel's messages over netlink.

/// Reads the input as what a socket gave.
pub fn run(input: &[u8]) {
    doorbell_inet::fuzzing::netlink(input);
}
