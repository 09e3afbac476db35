//! What is measured between two hosts: network namespaces of our own with a virtual link between them, over
//! the rails that put frames into UDP.
//!
//! ```text
//!   direct     raw ─► 8 B to and fro ─► raw      64 B, one direction      1 MiB, one direction
//!   switched   64 B to and fro, 1 MiB in one direction: without losses, with each of them, and without
//! ```

use doorbell_bench::load::Row;
use doorbell_tools::process::{Runner, Stop};

use super::asked::Asker;
use super::base::Base;
use super::rows::LOSSES;
use crate::place::{INTERFACE, Place, Wiring};

/// Losses are rare: the least time for which a rail is measured with and without them, in seconds.
const LOSS_SECONDS: f64 = 0.4;

/// What is measured beside tagged messages.
pub(super) const LAYERS: [&str; 2] = ["portals", "am"];

/// A kind of rail that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Udp,
    Xdp,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Udp, Self::Xdp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
        }
    }

    fn rail(self) -> String {
        format!("{}:{INTERFACE}", self.name())
    }
}

/// What the repetitions measured over one kind of rail.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// Half round trips, as multiples of the raw ones.
    pub(super) half: Vec<f64>,
    /// Half round trips of [`LAYERS`], as multiples of those of tagged messages.
    pub(super) layers: [Vec<f64>; LAYERS.len()],
    /// Repetitions in which those of tagged messages did not stay as they were.
    pub(super) unsteady_layers: u32,
    /// Messages per second.
    pub(super) rate: Vec<f64>,
    /// Bytes per second.
    pub(super) bandwidth: Vec<f64>,
    /// Under each loss, as a share of what is carried without.
    pub(super) goodput: [Vec<f64>; LOSSES.len()],
    /// Under each loss, as a multiple of the mean without.
    pub(super) mean: [Vec<f64>; LOSSES.len()],
    /// Repetitions whose raw ping-pong cannot be compared with.
    pub(super) bad_bases: u32,
    /// Repetitions in which what it does without losses did not stay as it was.
    pub(super) unsteady: u32,
    /// Why there was no raw ping-pong.
    pub(super) no_base: Option<String>,
    /// Why the rail cannot be used.
    pub(super) lacks: Option<String>,
}

/// What they measured over all of them.
#[derive(Debug, Default)]
pub(super) struct TwoHosts {
    over: [Over; Kind::ALL.len()],
}

/// Two places: with a link, and with a switch in it; or why there is none.
pub(super) struct Places<'r> {
    pub(super) direct: Result<Place<'r>, String>,
    pub(super) switched: Result<Place<'r>, String>,
}

impl<'r> Places<'r> {
    /// Those that are wanted.
    pub(super) fn new(runner: &'r Runner, cores: &[usize], network: bool, loss: bool) -> Result<Self, Stop> {
        let make = |way, wanted: bool| -> Result<Result<Place<'r>, String>, Stop> {
            let &[one, two, ..] = cores else {
                return Ok(Err("there is one core only".to_owned()));
            };
            if !wanted {
                return Ok(Err("it was not requested".to_owned()));
            }
            let mut place = Place::new(runner, [one, two])?;
            Ok(place.lay(way)?.map(|()| place))
        };
        Ok(Self {
            direct: make(Wiring::Direct, network)?,
            switched: make(Wiring::Switched, loss)?,
        })
    }
}

impl TwoHosts {
    pub(super) fn over(&self, kind: Kind) -> &Over {
        &self.over[kind as usize]
    }

    #[cfg(test)]
    pub(super) fn over_mut(&mut self, kind: Kind) -> &mut Over {
        &mut self.over[kind as usize]
    }

    /// One repetition over the link.
    pub(super) fn direct(&mut self, asker: &Asker<'_>, place: &Place<'_>) -> Result<(), Stop> {
        for (kind, over) in Kind::ALL.into_iter().zip(&mut self.over) {
            let at = At { asker, place, kind };
            let seconds = asker.seconds;
            over.half(&at)?;
            over.layers(&at)?;
            let rate = at.ask(over, &["rate", "--sizes", "64"], seconds)?;
            over.rate.extend(rate.and_then(|row| row.messages_per_second));
            let stream = at.ask(over, &["stream", "--sizes", "1Mi"], seconds)?;
            over.bandwidth.extend(stream.and_then(|row| row.bytes_per_second));
        }
        Ok(())
    }

    /// One repetition through the switch. The reason when nothing can be lost here.
    pub(super) fn switched(
        &mut self,
        asker: &Asker<'_>,
        place: &Place<'_>,
    ) -> Result<Result<(), String>, Stop> {
        let before = self.figures(asker, place)?;
        let mut lossy = [[Figures::default(); Kind::ALL.len()]; LOSSES.len()];
        for (figures, percent) in lossy.iter_mut().zip(LOSSES) {
            if let Err(why) = place.lose(percent)? {
                return Ok(Err(why));
            }
            *figures = self.figures(asker, place)?;
        }
        // Later steps run without losses, or not at all.
        if let Err(why) = place.lose(0.0)? {
            return Ok(Err(why));
        }
        let after = self.figures(asker, place)?;
        for (kind, over) in self.over.iter_mut().enumerate() {
            over.compare([before[kind], after[kind]], lossy.map(|figures| figures[kind]));
        }
        Ok(Ok(()))
    }

    fn figures(&mut self, asker: &Asker<'_>, place: &Place<'_>) -> Result<[Figures; Kind::ALL.len()], Stop> {
        let mut all = [Figures::default(); Kind::ALL.len()];
        for (kind, (over, figures)) in Kind::ALL.into_iter().zip(self.over.iter_mut().zip(&mut all)) {
            *figures = over.figures(&At { asker, place, kind })?;
        }
        Ok(all)
    }
}

/// A rail between the two hosts of a place.
struct At<'a> {
    asker: &'a Asker<'a>,
    place: &'a Place<'a>,
    kind: Kind,
}

impl At<'_> {
    /// One measurement, unless the rail cannot be used.
    fn ask(&self, over: &mut Over, words: &[&str], seconds: f64) -> Result<Option<Row>, Stop> {
        if over.lacks.is_some() {
            return Ok(None);
        }
        // The bare exchange of cache lines has nothing to do with a link.
        let words = [words, &["--no-reference"]].concat();
        match self
            .asker
            .between(self.place, &self.kind.rail(), &words, seconds)?
        {
            Ok(row) => Ok(Some(row)),
            Err(why) => {
                over.lacks = Some(why);
                Ok(None)
            }
        }
    }
}

/// What losses change.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// Half a round trip of 64 bytes in nanoseconds, on average.
    mean: Option<f64>,
    /// Bytes per second in messages of a mebibyte.
    stream: Option<f64>,
}

impl Over {
    /// The rail between two measurements of the sockets or queues below it.
    fn half(&mut self, at: &At<'_>) -> Result<(), Stop> {
        // A reference that was never available will not be next time.
        if self.no_base.is_some() && self.half.is_empty() {
            return Ok(());
        }
        let Some(before) = self.raw(at)? else {
            return Ok(());
        };
        let row = at.ask(self, &["pingpong", "--sizes", "8"], at.asker.seconds)?;
        let Some(half) = row.and_then(|row| row.half_rtt_ns.mean) else {
            return Ok(());
        };
        let Some(after) = self.raw(at)? else {
            return Ok(());
        };
        match Base::raw(before, after) {
            Some(base) => self.half.push(half / base.value),
            None => self.bad_bases += 1,
        }
        Ok(())
    }

    /// The other layers between two measurements of tagged messages.
    fn layers(&mut self, at: &At<'_>) -> Result<(), Stop> {
        let seconds = at.asker.seconds;
        let half = |over: &mut Self, layer: &str| -> Result<Option<f64>, Stop> {
            let row = at.ask(over, &["pingpong", "--layer", layer, "--sizes", "8"], seconds)?;
            Ok(row.and_then(|row| row.half_rtt_ns.mean))
        };
        let before = half(self, "pml")?;
        let mut halves = [None; LAYERS.len()];
        for (layer, value) in LAYERS.into_iter().zip(&mut halves) {
            *value = half(self, layer)?;
        }
        let (Some(before), Some(after)) = (before, half(self, "pml")?) else {
            return Ok(());
        };
        match Base::steady(before, after) {
            None => self.unsteady_layers += 1,
            Some(base) => {
                for (samples, value) in self.layers.iter_mut().zip(halves) {
                    samples.extend(value.map(|value| value / base.value));
                }
            }
        }
        Ok(())
    }

    fn raw(&mut self, at: &At<'_>) -> Result<Option<f64>, Stop> {
        match at.asker.raw(at.place, at.kind == Kind::Xdp)? {
            Ok(half) => Ok(Some(half)),
            Err(why) => {
                self.bad_bases += 1;
                self.no_base = Some(why);
                Ok(None)
            }
        }
    }

    /// Compares the figures under each loss with those without.
    fn compare(&mut self, lossless: [Figures; 2], lossy: [Figures; LOSSES.len()]) {
        let base = |of: fn(&Figures) -> Option<f64>| {
            let [before, after] = &lossless;
            Base::steady(of(before)?, of(after)?)
        };
        let mean = base(|figures| figures.mean);
        let stream = base(|figures| figures.stream);
        self.unsteady += u32::from(mean.is_none() || stream.is_none());
        for (loss, lossy) in lossy.into_iter().enumerate() {
            let ratio = |value: Option<f64>, base: Option<Base>| Some(value? / base?.value);
            self.mean[loss].extend(ratio(lossy.mean, mean));
            self.goodput[loss].extend(ratio(lossy.stream, stream));
        }
    }

    fn figures(&mut self, at: &At<'_>) -> Result<Figures, Stop> {
        let seconds = at.asker.seconds.max(LOSS_SECONDS);
        let latency = at.ask(self, &["pingpong", "--sizes", "64"], seconds)?;
        let stream = at.ask(self, &["stream", "--sizes", "1Mi"], seconds)?;
        Ok(Figures {
            mean: latency.and_then(|row| row.half_rtt_ns.mean),
            stream: stream.and_then(|row| row.bytes_per_second),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_compared_with_what_stayed_as_it_was() {
        let figures = |mean, stream| Figures {
            mean: Some(mean),
            stream: Some(stream),
        };
        let mut over = Over::default();
        let lossy = [figures(6_000.0, 1.5e9), figures(12_000.0, 0.5e9)];
        over.compare([figures(3_000.0, 2e9), figures(3_400.0, 2e9)], lossy);
        assert!(over.mean.iter().all(Vec::is_empty), "{over:?}");
        assert_eq!(
            (over.goodput[0][0], over.goodput[1][0], over.unsteady),
            (0.75, 0.25, 1)
        );
        over.compare([figures(3_000.0, 2e9), figures(3_000.0, 2e9)], lossy);
        assert_eq!((over.mean[0][0], over.mean[1][0], over.unsteady), (2.0, 4.0, 1));
        over.compare([Figures::default(); 2], lossy);
        assert_eq!((over.goodput[0].len(), over.unsteady), (2, 2));
    }
}
