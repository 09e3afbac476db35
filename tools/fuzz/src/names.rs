//! Names and addresses of rails, as text and as JSON: what is accepted survives being written and read, and
//! what is refused is refused with words that a terminal can be given.

use std::net::SocketAddr;

use doorbell_fabric::addr::{Address, KIND_MAX, NATIVE_MAX, RailAddress};
use doorbell_fabric::name::{KINDS, NAME_MAX, RailName};

/// Reads the input as each of them.
pub fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        name(text);
        address(text);
    }
    if let Ok(name) = serde_json::from_slice::<RailName>(input) {
        self::name(name.as_str());
    }
    if let Ok(mut found) = serde_json::from_slice::<RailAddress>(input) {
        check(&found);
        // As text of JSON an address has no scope.
        if let Address::Inet(SocketAddr::V6(six)) = &mut found.address {
            six.set_scope_id(0);
            six.set_flowinfo(0);
        }
        let text = serde_json::to_string(&found).expect("it was read");
        assert_eq!(
            serde_json::from_str::<RailAddress>(&text).expect("it was written"),
            found
        );
    }
}

fn name(text: &str) {
    match text.parse::<RailName>() {
        Ok(name) => {
            assert!(text.len() <= NAME_MAX && KINDS.contains(&name.kind()));
            assert!(!text.contains(|c: char| c.is_control() || c.is_whitespace() || c == ','));
            assert_eq!(name.as_str(), text);
            let whole = format!("{}:{}", name.kind(), name.object());
            assert!(whole == text || name.kind() == text && name.object().is_empty());
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
    }
}

fn address(text: &str) {
    match text.parse::<RailAddress>() {
        Ok(address) => {
            check(&address);
            let again = address.to_string().parse::<RailAddress>();
            assert_eq!(again.expect("what is shown is read"), address);
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
    }
}

fn check(address: &RailAddress) {
    assert!((1..=KIND_MAX).contains(&address.kind.len()));
    if let Address::Native(bytes) = &address.address {
        assert!(bytes.len() <= NATIVE_MAX);
    }
}
