//! The network and the settings of one seed: chosen by it, so that many seeds are many networks.

use std::time::Duration;

use doorbell_pml::Protocol;
use doorbell_sim::{Faults, Random, SimConfig};

use crate::class::Class;
use crate::player::Manners;

/// What a seed chooses beside the messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sim: SimConfig,
    /// How long messages travel that are not sent at once.
    pub(crate) protocol: Protocol,
    /// Virtual time that one step of all ranks takes.
    pub(crate) pace: Duration,
    /// How ranks behave.
    pub(crate) manners: Manners,
    /// Whether sequence numbers wrap soon after the start.
    pub(crate) wraps: bool,
}

impl Shape {
    pub(crate) fn of(seed: u64, class: Class) -> Self {
        let mut random = Random::for_part(seed, &[1]);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let calm = Faults {
            delay: Duration::from_nanos(one_of(&[500, 1_000, 3_000, 10_000])),
            jitter: Duration::from_nanos(one_of(&[0, 100, 800])),
            // 100 Gb/s; what waits, waits in the send rings.
            bandwidth: Some(12_500_000_000),
            queue: usize::MAX,
            ..Faults::NONE
        };
        Self {
            sim: SimConfig {
                faults: class.faults(calm),
                mtu: one_of(&[1_472, 4_096, 8_972, 16_384]) as usize,
                priority_ring: one_of(&[64, 256]) as usize,
                data_ring: one_of(&[256, 1024]) as usize,
                ..SimConfig::default()
            },
            protocol: [Protocol::Auto, Protocol::Fragments, Protocol::Put][one_of(&[0, 1, 2]) as usize],
            pace: Duration::from_nanos(one_of(&[200, 500, 1_000])),
            manners: Manners {
                depth: one_of(&[4, 8, 12]) as usize,
                eagerness: one_of(&[10, 50, 100]),
                contexts: 1,
                patience: Duration::from_micros(100),
                rest: Duration::ZERO,
            },
            wraps: one_of(&[0, 1]) == 1,
        }
    }
}
