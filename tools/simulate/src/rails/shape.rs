//! The further choices of a seed, beside messages and disturbances: ranks, kinds of rails, settings of every
//! layer.

use std::time::Duration;

use doorbell_btl::BtlConfig;
use doorbell_pml::{PmlConfig, Protocol, Rank, Resume};
use doorbell_sim::{Faults, Random, SimConfig};

use crate::plan::{CONTEXTS, Mix};
use crate::player::Manners;

/// Messages by default: three sizes of jobs.
const MESSAGES: [u64; 3] = [60, 150, 400];

/// Bytes per second of the slowest rail: slow enough for what breaks to find long messages under way.
const SLOWEST: u64 = 20_000_000;

/// The protocols, forced in turn.
const PROTOCOLS: [Protocol; 4] = [Protocol::Auto, Protocol::Get, Protocol::Put, Protocol::Fragments];

/// The shape of one job.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    /// For each rail, whether it carries frames, with a BTL over them.
    pub(crate) frames: Vec<bool>,
    /// For each rail, what it does all the time.
    pub(crate) faults: Vec<Faults>,
    pub(crate) sim: SimConfig,
    pub(crate) btl: BtlConfig,
    pub(crate) pml: PmlConfig,
    pub(crate) messages: usize,
    pub(crate) mix: Mix,
    pub(crate) manners: Manners,
    /// Virtual time that one step of all ranks takes.
    pub(crate) pace: Duration,
    /// How long the traffic and the weather last, about.
    pub(crate) lasts: Duration,
    /// When one rank dies, and after what time the others are notified from outside, as by a job's control
    /// plane.
    pub(crate) death: Option<(u32, Duration, Duration)>,
    /// When one rank loses all its rails, and goes on; of members only, whose other peers go on.
    pub(crate) isolation: Option<(u32, Duration)>,
}

struct Dice(Random);

impl Dice {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.below(choices.len() as u64) as usize]
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.0.below(count) == 0
    }

    fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.0.below(to - from))
    }
}

impl Shape {
    pub(crate) fn of(seed: u64, messages: Option<usize>) -> Self {
        let mut dice = Dice(Random::for_part(seed, &[21]));
        let ranks = 2 + dice.0.below(7) as u32;
        let rails = 2 + dice.0.below(3) as usize;
        let frames = match dice.0.below(3) {
            0 => vec![false; rails],
            1 => vec![true; rails],
            _ => (0..rails).map(|_| dice.one_in(2)).collect(),
        };
        let faults = frames.iter().map(|frames| climate(&mut dice, *frames)).collect();
        let messages = messages.unwrap_or(dice.of(&MESSAGES) as usize);
        let lasts = dice.micros(20_000, 3_000_000);
        let hurried = dice.one_in(2);
        let each = messages as u64 / u64::from(ranks) + 1;
        Self {
            ranks,
            frames,
            faults,
            sim: sim(&mut dice),
            btl: btl(&mut dice),
            pml: pml(&mut dice, seed),
            messages,
            mix: Mix {
                empty: 1,
                to_self: true,
                contexts: CONTEXTS.into(),
            },
            manners: Manners {
                depth: dice.of(&[2, 6, 12]),
                eagerness: dice.of(&[10, 50, 100]),
                contexts: CONTEXTS.into(),
                patience: Duration::from_millis(2),
                rest: if hurried {
                    Duration::ZERO
                } else {
                    lasts / each as u32
                },
            },
            pace: Duration::from_nanos(dice.of(&[200, 500, 1_000])),
            lasts,
            death: (ranks > 2 && dice.one_in(4)).then(|| {
                let victim = dice.0.below(ranks.into()) as u32;
                let at = dice.micros(0, lasts.as_micros() as u64);
                (victim, at, dice.of(&[5, 100, 3_000].map(Duration::from_millis)))
            }),
            isolation: None,
        }
    }

    /// The shape of a job of members: of two rails each, and in some of those in which no rank dies, one is
    /// isolated.
    pub(crate) fn of_members(seed: u64, messages: Option<usize>) -> Self {
        let mut dice = Dice(Random::for_part(seed, &[31]));
        let mut shape = Self::of(seed, messages);
        shape.frames.truncate(2);
        // A step has many reads.
        shape.pace = shape.pace.max(Duration::from_micros(1));
        if shape.ranks > 2 && shape.death.is_none() && dice.one_in(3) {
            let victim = dice.0.below(shape.ranks.into()) as u32;
            let at = dice.micros(0, shape.lasts.as_micros() as u64);
            shape.isolation = Some((victim, at));
        }
        shape
    }

    /// How long a peer without a way is waited for, before it is lost.
    pub(crate) fn patience(&self) -> Duration {
        self.pml.patience
    }

    /// The settings of a rank's PML.
    pub(crate) fn pml(&self, rank: u32) -> PmlConfig {
        PmlConfig {
            rank: Rank(rank),
            size: self.ranks,
            seed: self.pml.seed ^ u64::from(rank),
            ..self.pml.clone()
        }
    }

    /// How long all ways to a peer may be closed, without its being lost: less than the PML's patience, since
    /// a way that opens is called up to a second and a half later.
    pub(crate) fn lull(&self) -> Duration {
        self.pml.patience - Duration::from_millis(1_600)
    }

    /// No request takes longer after the last change of the network, or of a rank's life: three times the
    /// detection bound (a second), the longest back-off between two calls of a way (another one, and a
    /// quarter for the answer), and what all `bytes` take over the slowest rail, one rank after the other,
    /// sent twice.
    pub(crate) fn bound(&self, bytes: u64) -> Duration {
        Duration::from_millis(3 * 1_000 + 1_250) + Duration::from_nanos(2 * bytes * 1_000_000_000 / SLOWEST)
    }

    /// In words, for a failure.
    pub(crate) fn text(&self) -> String {
        let kinds: Vec<&str> = self
            .frames
            .iter()
            .map(|&frames| if frames { "btl" } else { "messages" })
            .collect();
        let features = self.sim.capabilities.features;
        format!(
            "{} ranks, rails {}, {:?}, get {}, put {}, handshake {}, resume {:?}, spread {}, {} messages{}{}",
            self.ranks,
            kinds.join("+"),
            self.pml.protocol,
            features.get,
            features.put,
            self.pml.handshake,
            self.pml.resume,
            self.pml.spread,
            self.messages,
            self.death
                .map(|(rank, at, news)| format!(", rank {rank} dies after {at:?}, reported {news:?} later"))
                .unwrap_or_default(),
            self.isolation
                .map(|(rank, at)| format!(", rank {rank} loses its rails after {at:?}"))
                .unwrap_or_default()
        )
    }
}

/// What a rail does to traffic while all is well.
fn climate(dice: &mut Dice, frames: bool) -> Faults {
    let calm = Faults {
        delay: dice.micros(1, 50),
        jitter: dice.micros(0, 5),
        reorder: dice.of(&[0.0, 0.1, 0.3]),
        reorder_window: dice.micros(5, 100),
        bandwidth: dice.of(&[None, Some(SLOWEST), Some(100_000_000), Some(1_000_000_000)]),
        queue: 4 << 20,
        ..Faults::NONE
    };
    if !frames {
        return calm;
    }
    Faults {
        loss: dice.of(&[0.0, 0.0, 0.01, 0.05]),
        duplicate: dice.of(&[0.0, 0.0, 0.1]),
        overtake: dice.of(&[0, 0, 16]),
        corrupt: dice.of(&[0.0, 0.001]),
        ..calm
    }
}

fn sim(dice: &mut Dice) -> SimConfig {
    let mut sim = SimConfig {
        queue_depth: dice.of(&[8, 64, 1024]),
        silence: dice.micros(500, 30_000),
        death_notice: dice.micros(50, 5_000),
        mtu: dice.of(&[1_472, 4_096, 8_972]),
        priority_ring: dice.of(&[32, 256]),
        data_ring: dice.of(&[128, 1024]),
        ..SimConfig::default()
    };
    let can = &mut sim.capabilities.features;
    (can.get, can.put, can.gather) = (!dice.one_in(4), !dice.one_in(4), dice.one_in(2));
    sim
}

fn btl(dice: &mut Dice) -> BtlConfig {
    BtlConfig {
        window: dice.of(&[64, 1024, 4096]),
        silence: dice.of(&[200, 1_000].map(Duration::from_millis)),
        // Longer than any pause or lull.
        give_up: Duration::from_secs(8),
        keep_alive: dice.of(&[1, 10].map(Duration::from_secs)),
        first_sequence: dice.one_in(2).then_some(u32::MAX - 100),
        frame_mac: dice.one_in(2),
        ..BtlConfig::default()
    }
}

fn pml(dice: &mut Dice, seed: u64) -> PmlConfig {
    let window = dice.of(&[16 << 10, 256 << 10, 4 << 20]);
    PmlConfig {
        protocol: PROTOCOLS[(seed % 4) as usize],
        handshake: dice.one_in(2),
        resume: dice.of(&[Resume::Missing, Resume::FromZero]),
        spread: dice.one_in(3),
        patience: dice.of(&[3, 5].map(Duration::from_secs)),
        window,
        hard_window: window * dice.of(&[1, 16]),
        pipeline: dice.of(&[1, 8, 16]),
        ..PmlConfig::new(Rank(0), 1, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_choose_everything_that_there_is() {
        let shapes: Vec<Shape> = (0..200).map(|seed| Shape::of(seed, None)).collect();
        for ranks in 2..=8 {
            assert!(shapes.iter().any(|shape| shape.ranks == ranks));
        }
        for rails in 2..=4 {
            let of = |kind: fn(&Shape) -> bool| {
                shapes
                    .iter()
                    .any(|shape| shape.frames.len() == rails && kind(shape))
            };
            assert!(of(|shape| shape.frames.iter().all(|frames| *frames)));
            assert!(of(|shape| shape.frames.iter().all(|frames| !*frames)));
            assert!(of(
                |shape| shape.frames.contains(&true) && shape.frames.contains(&false)
            ));
        }
        for protocol in PROTOCOLS {
            assert!(shapes.iter().any(|shape| shape.pml.protocol == protocol));
        }
        assert!(shapes.iter().filter(|shape| shape.death.is_some()).count() > 20);
    }
}
