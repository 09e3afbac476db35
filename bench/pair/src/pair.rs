//! Two ranks of one thread, with PML and BTL each, over one or several copying rails.

use std::fmt;
use std::hint::black_box;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_fabric::message::{Incarnation, Message};
use doorbell_fabric::time::Time;
use doorbell_pml::{AtOnce, Pml, PmlConfig, Rank, Sent};

use crate::wire::{End, Shape};

const TAG: u64 = 7;
const PAYLOAD: usize = 8;
/// Time goes on by so much with each message, in nanoseconds, as it would on a busy rail.
const STEP: u64 = 100;
/// Number of messages between two rounds of housekeeping.
const EVERY: u64 = 64;

/// PML or BTL refused what it must not refuse, or a message did not arrive: in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed(String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PML and BTL without a driver: {}", self.0)
    }
}

impl std::error::Error for Failed {}

/// Two ranks that exchange messages of eight bytes, over copying rails if no others are given.
#[derive(Debug)]
pub struct Pair<R: Message = Btl<End>> {
    ends: [Pml<R>; 2],
    now: u64,
    from: ConstLoan,
    into: MutLoan,
}

impl Pair {
    /// Creates both ranks, connected over as many rails as there are latencies, in nanoseconds, which the
    /// rails report: small messages take the least of them.
    ///
    /// # Errors
    /// When PML or BTL refuses what it must not refuse; for more than 64 rails.
    pub fn over(latencies_ns: &[u64]) -> Result<Self, Failed> {
        Self::among(latencies_ns, 0)
    }

    /// Creates the same pair, where each rank is connected to `idle` more, which receive no message.
    ///
    /// # Errors
    /// Those of [`Pair::over`].
    pub fn among(latencies_ns: &[u64], idle: u32) -> Result<Self, Failed> {
        let mut sides = [Vec::new(), Vec::new()];
        for (number, latency) in latencies_ns.iter().enumerate() {
            let ends = End::pair(number, *latency).map_err(failed)?;
            for (side, end) in sides.iter_mut().zip(ends) {
                side.push(end);
            }
        }
        let [near, far] = sides;
        Ok(Self::of([rank(0, near, idle)?, rank(1, far, idle)?]))
    }

    /// Returns the frames of an exchange, one by one and of both ends, over as many messages as `exchange`
    /// exchanges.
    ///
    /// # Errors
    /// Those of `exchange`.
    pub fn shapes(
        &mut self,
        exchange: impl FnOnce(&mut Self) -> Result<(), Failed>,
    ) -> Result<Vec<Shape>, Failed> {
        let rails = |pair: &mut Self, each: &mut dyn FnMut(&mut End)| {
            let rails = pair.ends.iter_mut().flat_map(|end| end.rails_mut());
            rails.for_each(|(_, rail)| each(rail.driver_mut()));
        };
        rails(self, &mut End::remember);
        exchange(self)?;
        let mut shapes = Vec::new();
        rails(self, &mut |end| shapes.extend(end.remembered()));
        Ok(shapes)
    }

    /// Frames that both ends posted so far, rail by rail.
    #[must_use]
    pub fn frames(&self) -> Vec<u64> {
        let [near, far] = &self.ends;
        let both = near.rails().zip(far.rails());
        both.map(|((_, near), (_, far))| near.driver().posted() + far.driver().posted())
            .collect()
    }
}

impl<R: Message> Pair<R> {
    /// Creates both ranks over a rail each, which reach each other.
    ///
    /// # Errors
    /// When they do not, or the PML refuses one.
    pub fn between(rails: [(R, Incarnation); 2]) -> Result<Self, Failed> {
        let published = [&rails[0], &rails[1]].map(|(rail, life)| (rail.address(), *life));
        let rank = |number: u32, rail: R| -> Result<Pml<R>, Failed> {
            let mut pml = Pml::new(PmlConfig::new(Rank(number), 2, 0x5eed)).map_err(failed)?;
            let rail = pml.add_rail(rail).map_err(failed)?;
            let peer = 1 - number;
            let (address, life) = &published[peer as usize];
            pml.connect(Rank(peer), rail, address, *life).map_err(failed)?;
            Ok(pml)
        };
        let [near, far] = rails;
        let mut pair = Self::of([rank(0, near.0)?, rank(1, far.0)?]);
        // The first messages are what connects them.
        pair.exchanged(true)?;
        pair.exchanged(false)?;
        Ok(pair)
    }

    fn of(ends: [Pml<R>; 2]) -> Self {
        Self {
            ends,
            now: 0,
            // A few bytes, leaked: a loan without a lifetime of its own has to live for ever.
            from: ConstLoan::of_static(&[7; PAYLOAD]),
            into: MutLoan::of_static(vec![0; PAYLOAD].leak()),
        }
    }

    /// Sends a message from the first rank and receives it at the second one, by a request that is posted
    /// before and tested after.
    ///
    /// # Errors
    /// When it does not arrive.
    #[inline]
    pub fn exchange(&mut self) -> Result<(), Failed> {
        self.exchanged(true)
    }

    #[inline]
    fn exchanged(&mut self, from_first: bool) -> Result<(), Failed> {
        let [first, second] = &mut self.ends;
        let (near, far, ranks) = if from_first {
            (first, second, [0, 1])
        } else {
            (second, first, [1, 0])
        };
        let request = far
            .recv_loan(Rank(ranks[0]).into(), 0, TAG, 0, black_box(self.into))
            .map_err(failed)?;
        let sent = near
            .send_loan(Rank(ranks[1]), 0, TAG, black_box(self.from))
            .map_err(failed)?;
        near.flush();
        let mut idle = 0;
        while !far.is_done(request) {
            far.poll();
            near.poll();
            idle += 1;
            if idle > EVERY {
                // Nothing moves until time does.
                self.now += 1_000 * STEP;
                near.progress(Time::from_nanos(self.now));
                far.progress(Time::from_nanos(self.now));
            }
            if idle > 100_000 {
                return Err(failed("a message did not arrive"));
            }
        }
        if let Some(ended) = far.test(request) {
            black_box(ended.map_err(failed)?);
        }
        if let Sent::Pending(sent) = sent
            && let Some(ended) = near.test(sent)
        {
            black_box(ended.map_err(failed)?);
        }
        self.pass(STEP);
        Ok(())
    }

    /// Sends a message from the first rank to the second one, and one back, by the calls that wait.
    ///
    /// # Errors
    /// When either does not arrive.
    #[inline]
    pub fn there_and_back(&mut self) -> Result<(), Failed> {
        let [near, far] = &mut self.ends;
        hand_over((near, 0), (far, 1), self.from, self.into)?;
        hand_over((far, 1), (near, 0), self.from, self.into)?;
        self.pass(2 * STEP);
        Ok(())
    }

    /// Lets the first rank poll for messages once, and there are none.
    #[inline]
    pub fn look(&mut self) {
        black_box(self.ends[0].poll());
    }

    /// Advances the time, and now and then calls the ranks' housekeeping.
    #[inline]
    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
        if self.now.is_multiple_of(EVERY * STEP) {
            for end in &mut self.ends {
                end.progress(Time::from_nanos(self.now));
            }
        }
    }
}

fn failed(error: impl fmt::Display) -> Failed {
    Failed(error.to_string())
}

/// Creates a rank, connected to the other one and then to the idle ones.
fn rank(number: u32, drivers: Vec<End>, idle: u32) -> Result<Pml<Btl<End>>, Failed> {
    let mut pml = Pml::new(PmlConfig::new(Rank(number), 2 + idle, 0x5eed)).map_err(failed)?;
    for driver in drivers {
        let usual = BtlConfig::default();
        let config = BtlConfig {
            connectivity_check: false,
            max_peers: usual.max_peers.max(idle as usize + 1),
            ..usual
        };
        let mut btl = Btl::new(driver, config, Incarnation(1)).map_err(failed)?;
        btl.set_key(JobKey::from_bytes([7; 32]));
        let rail = pml.add_rail(btl).map_err(failed)?;
        for peer in [1 - number].into_iter().chain(2..2 + idle) {
            let address = RailAddress::native("sim", (peer + 1).to_be_bytes());
            pml.connect(Rank(peer), rail, &address, Incarnation(1))
                .map_err(failed)?;
        }
    }
    Ok(pml)
}

/// Sends and receives as the calls of the library do that wait.
#[inline]
fn hand_over<R: Message>(
    (near, of_near): (&mut Pml<R>, u32),
    (far, of_far): (&mut Pml<R>, u32),
    from: ConstLoan,
    into: MutLoan,
) -> Result<(), Failed> {
    if near.send_at_once(Rank(of_far), 0, TAG, black_box(from)) == AtOnce::Refused {
        // Something of another kind waits before it, such as a probe of a path.
        let sent = near.send_loan(Rank(of_far), 0, TAG, from).map_err(failed)?;
        near.flush();
        if let Sent::Pending(_) = sent {
            return Err(failed("a message was not taken at once"));
        }
    }
    for _ in 0..1_000 {
        let looked = far.recv_directly(Rank(of_near), 0, TAG, black_box(into), 64);
        if looked.is_some() {
            return Ok(());
        }
    }
    Err(failed("a message did not arrive"))
}
