//! For the fuzzers (`tools/fuzz`) only: the parser of cards, without sockets.

use super::address::PeerId;
use super::card::{Bad, Card, Name};
use crate::meet::fuzzing::own;

/// The name of the member that reads, whose parts are all this byte.
const OURS: u8 = 7;

/// Parses a card as the desk of a member does, from a caller (`is_call`) or from a process that was called;
/// returns it as its sender would write it to this member.
///
/// # Errors
/// Why it is refused.
pub fn card(bytes: &[u8], is_call: bool) -> Result<Vec<u8>, String> {
    let ours = member(OURS);
    let card = match is_call {
        true => Card::read_call(bytes, &ours),
        false => Card::read(bytes, &ours),
    };
    let card = card.map_err(Bad::text)?;
    card.written(Some(&ours.name), card.bond)
}

/// Whether a call would be let in by the desk of another member.
pub fn is_admitted_elsewhere(bytes: &[u8]) -> bool {
    Card::read_call(bytes, &member(OURS + 1)).is_ok()
}

fn member(number: u8) -> Card {
    Card::new(Name::Peer(PeerId::new(9, &[number; 24])), own(0))
}
