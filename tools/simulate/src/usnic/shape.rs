//! What a seed chooses beside the messages, and the script of what the wire does wrong.

use std::fmt::Write as _;
use std::time::Duration;

use doorbell_pml::Protocol;
use doorbell_sim::{Faults, Random};

use crate::class::Class;
use crate::plan::Mix;
use crate::player::Manners;

/// The delay of late frames: longer than a round trip, and shorter than a time-out.
const LATE: &str = "300us";

/// What a seed chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Longest IP packet.
    pub(super) mtu: usize,
    /// How long messages travel that are not sent at once.
    pub(super) protocol: Protocol,
    /// Whether sequence numbers wrap soon after the start.
    pub(super) wraps: bool,
    /// Whether frames carry a MAC.
    pub(super) frame_mac: bool,
    /// Whether the device makes and checks the checksums.
    pub(super) checksum: bool,
    /// Frames of the rings.
    pub(super) ring: usize,
    /// Where things are in the functions' registers.
    pub(super) layout: u64,
    pub(super) manners: Manners,
    /// Messages without a byte, and of which contexts.
    pub(super) mix: Mix,
}

impl Shape {
    pub(super) fn of(seed: u64, contexts: u64) -> Self {
        let mut random = Random::for_part(seed, &[31]);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Self {
            mtu: one_of(&[1_500, 4_000, 9_000]) as usize,
            protocol: [Protocol::Auto, Protocol::Fragments, Protocol::Put][one_of(&[0, 1, 2]) as usize],
            wraps: one_of(&[0, 1]) == 1,
            frame_mac: one_of(&[0, 1]) == 1,
            checksum: one_of(&[0, 1]) == 1,
            ring: one_of(&[128, 256, 1024]) as usize,
            layout: one_of(&[3, 5, 7, 11]),
            manners: Manners {
                depth: one_of(&[4, 8, 12]) as usize,
                eagerness: one_of(&[10, 50, 100]),
                contexts,
                patience: Duration::from_millis(20),
                rest: Duration::ZERO,
            },
            mix: Mix {
                empty: 1,
                to_self: false,
                contexts,
            },
        }
    }
}

/// The rules of a class. One adapter has them, through which all frames of both directions pass once.
pub(super) fn script(seed: u64, class: Class) -> String {
    let faults = class.faults(Faults::NONE);
    let mut rules = String::new();
    let mut rule = |rate: f64, action: &str| {
        if rate > 0.0 {
            let number = rules.lines().count() as u64;
            let own = Random::for_part(seed, &[32, number]).next_u64() >> 1;
            // Nothing can fail that is written to a string.
            let _ = writeln!(rules, "probability {rate} seed {own} switch {action}");
        }
    };
    rule(faults.loss, "drop");
    rule(faults.duplicate, "duplicate");
    rule(faults.reorder, "reorder");
    rule(faults.reorder / 10.0, &format!("delay {LATE}"));
    // A simulated network damages a frame in one way; this one in three, of which two look whole to the
    // device.
    for action in ["corrupt", "bad-udp", "bad-ip"] {
        rule(faults.corrupt, action);
    }
    rules
}
