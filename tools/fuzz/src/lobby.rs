//! What independent processes pass to each other before they talk: addresses, by any way the program has, and
//! cards, by the socket of a desk.

use doorbell_job::lobby::{Address, fuzzing};

/// Reads the input as an address, as a call, and as an answer.
pub fn run(input: &[u8]) {
    address(input);
    for is_call in [true, false] {
        match fuzzing::card(input, is_call) {
            Ok(written) => card(input, &written, is_call),
            Err(reason) => assert!(!reason.contains(char::is_control), "{reason:?}"),
        }
    }
}

fn address(input: &[u8]) {
    match Address::parse(input) {
        Ok(address) => {
            assert_eq!(address.bytes(), input);
            let other = address.with_endpoint(address.endpoint() ^ 1);
            assert_eq!(other.peer(), address.peer());
            assert_ne!(other.bytes(), input);
            assert_eq!(Address::parse(other.bytes()), Ok(other));
            assert!(!address.to_string().contains(char::is_control));
        }
        Err(reason) => assert!(!reason.to_string().contains(char::is_control), "{reason}"),
    }
}

/// A card was accepted: what its sender would write is the same card, and a call is for one member alone.
fn card(input: &[u8], written: &[u8], is_call: bool) {
    if is_call {
        assert!(
            !fuzzing::is_admitted_elsewhere(input),
            "two members take one call"
        );
    }
    // Addresses of IPv6 travel without their scope, so the first copy may differ; the second cannot.
    let again = fuzzing::card(written, is_call).expect("what was read can be written");
    assert_eq!(fuzzing::card(&again, is_call).as_deref(), Ok(&again[..]));
}
