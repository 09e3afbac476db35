//! The frames with which ranks meet, and what is in them: read in pieces of any length they are the same,
//! what is accepted is what would be written, and a table or a hello that is accepted holds what the job
//! relies on.

use doorbell::fuzzing::{self, MOST_RAILS};
use doorbell_fabric::addr::{Address, NATIVE_MAX};

/// Reads the input as a frame, and its body as what it should be.
pub fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let zero = choice & 1 == 0;
    let whole = fuzzing::frame_of(bytes, usize::MAX, zero);
    let pieces = fuzzing::frame_of(bytes, usize::from(choice >> 1).max(1), zero);
    assert_eq!(whole, pieces, "it depends on the pieces");
    let body = match &whole {
        Ok(Some((kind, body))) => {
            let written = fuzzing::frame(*kind, body).expect("what was read can be written");
            assert!(bytes.starts_with(&written), "it was read as something else");
            body.as_slice()
        }
        Ok(None) => bytes,
        Err(reason) => {
            assert!(!reason.contains(char::is_control), "{reason:?}");
            bytes
        }
    };
    if let Ok(hello) = fuzzing::hello(body) {
        assert!(hello.rank < hello.size && hello.size == fuzzing::SIZE && hello.rails.len() <= MOST_RAILS);
        let text = serde_json::to_vec(&hello).expect("it was read");
        // Addresses of IPv6 travel without their scope, so the first copy may differ; the second cannot.
        let again = fuzzing::hello(&text).expect("what was written is read");
        assert_eq!(serde_json::to_vec(&again).expect("it was read"), text);
        for rail in &hello.rails {
            if let Address::Native(bytes) = &rail.address.address {
                assert!(bytes.len() <= NATIVE_MAX);
            }
        }
    }
    if let Ok(ranks) = fuzzing::table(body) {
        let numbers: Vec<u32> = ranks.iter().map(|hello| hello.rank).collect();
        assert!(
            numbers.into_iter().eq(0..fuzzing::SIZE),
            "ranks are missing, or in disorder"
        );
        assert!(ranks.iter().all(|hello| hello.rails.len() <= MOST_RAILS));
    }
    fuzzing::word(body);
}
