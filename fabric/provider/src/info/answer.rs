//! The answer to hints that match: what they request, and what that needs.
#![forbid(unsafe_code)]

use libfabric_sys::*;

use super::attributes::{Attributes, Hints, RX_ONLY, TX_ONLY};
use super::offer::{ACCESSES, DIRECTIONS, DOMAIN_CAPS, Entry, PRIMARY};

/// The modes of registration that are returned where the caller offers all three: keys are then chosen here,
/// and memory is named by its address.
pub(crate) const MR_MODES: u64 = (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY) as u64;

/// Returns an entry's attributes for a caller of an API level.
pub(crate) fn answer(hints: Option<&Hints>, entry: &Entry, level: Level) -> Attributes {
    let mut answer = entry.usual;
    let Some(hints) = hints else {
        answer.domain.mr_mode = mr_mode(0, 0, level);
        divide_caps(&mut answer);
        return answer;
    };
    let asked = &hints.attributes;
    answer.info.caps = caps(asked, entry);
    divide_caps(&mut answer);
    choose(&mut answer.info.addr_format, asked.info.addr_format);
    choose(&mut answer.domain.threading, asked.domain.threading);
    choose(&mut answer.domain.control_progress, asked.domain.control_progress);
    choose(&mut answer.domain.data_progress, asked.domain.data_progress);
    choose(&mut answer.domain.av_type, asked.domain.av_type);
    answer.domain.mr_mode = match &hints.open {
        Some(open) if is_bits(asked.domain.mr_mode, level) => open.modes,
        _ => mr_mode(asked.domain.mr_mode, answer.info.caps, level),
    };
    answer.domain.tclass = asked.domain.tclass;
    answer.tx.tclass = asked.tx.tclass;
    answer.tx.op_flags = asked.tx.op_flags;
    answer.rx.op_flags = asked.rx.op_flags;
    at_least(&mut answer.tx.size, asked.tx.size);
    at_least(&mut answer.rx.size, asked.rx.size);
    answer
}

/// Returns the capabilities: all, or those of the hints and those that cost nothing.
fn caps(asked: &Attributes, entry: &Entry) -> u64 {
    let offered = entry.usual.info.caps;
    if asked.info.caps == 0 {
        return offered;
    }
    let asked = asked.info.caps
        | asked.tx.caps & !RX_ONLY
        | asked.rx.caps & !TX_ONLY
        | asked.domain.caps & DOMAIN_CAPS;
    let mut caps = asked | offered & !(PRIMARY | DIRECTIONS | ACCESSES);
    if caps & (FI_RMA | FI_ATOMIC) != 0 && caps & ACCESSES == 0 {
        caps |= offered & ACCESSES;
    }
    if caps & DIRECTIONS == 0 {
        caps |= offered & DIRECTIONS;
    }
    caps
}

/// Gives each half of the endpoint its capabilities.
fn divide_caps(answer: &mut Attributes) {
    answer.tx.caps = answer.info.caps & !RX_ONLY & !DOMAIN_CAPS;
    answer.rx.caps = answer.info.caps & !TX_ONLY & !DOMAIN_CAPS;
}

/// Whether the modes are bits, and not one of the two numbers that there were before.
fn is_bits(offered: u64, level: Level) -> bool {
    level >= Level::new(1, 5) && offered != FI_MR_BASIC as u64 && offered != FI_MR_SCALABLE as u64
}

/// Returns the bits that the caller offers, also where it has a number.
pub(super) fn offered_bits(offered: u64) -> u64 {
    if offered == FI_MR_BASIC as u64 {
        MR_MODES
    } else {
        offered
    }
}

/// Returns what registrations need of what the caller offers. A caller that counts what its peers do names
/// registrations by keys of its own and by offsets (fabtests' multi_mr, without looking at the answer).
fn mr_mode(offered: u64, caps: u64, level: Level) -> u64 {
    let (basic, scalable) = (FI_MR_BASIC as u64, FI_MR_SCALABLE as u64);
    if offered == basic || offered == scalable {
        offered
    } else if level < Level::new(1, 5) {
        scalable
    } else if offered & MR_MODES == MR_MODES && caps & FI_RMA_EVENT == 0 {
        MR_MODES
    } else {
        0
    }
}

fn choose(usual: &mut u64, asked: u64) {
    if asked != 0 {
        *usual = asked;
    }
}

fn at_least(usual: &mut u64, asked: u64) {
    *usual = (*usual).max(asked);
}
