//! How two processes of a test exchange their rails' addresses: in one line.

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail;
use doorbell_shm::ShmRail;

/// A rail's address and incarnation.
pub(crate) fn published(rail: &ShmRail) -> String {
    let address = rail.address();
    let bytes = address.native_of("shm").unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}:{}", rail.incarnation().0)
}

/// Back from [`published`].
pub(crate) fn parsed(text: &str) -> (RailAddress, Incarnation) {
    let (hex, life) = text.trim().split_once(':').unwrap();
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    (
        RailAddress::native("shm", bytes),
        Incarnation(life.parse().unwrap()),
    )
}
