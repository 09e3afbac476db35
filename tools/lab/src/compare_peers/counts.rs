//! Peers that take a number of iterations and not a time: how many fit, estimated from the last turn.

use std::cell::RefCell;
use std::collections::HashMap;

use doorbell_tools::process::Stop;

use super::load::{Figure, Kind, Load};
use crate::place::Setting;

/// Without any experience: few enough for a slow network with losses, and enough to know more.
const FIRST: u64 = 300;
/// The least number of iterations.
const LEAST: u64 = 100;
/// The highest number of iterations.
const MOST: u64 = 20_000_000;
/// A turn that took less than this share of its time is repeated with what it taught.
const SHORT: f64 = 0.3;
/// Tries to find the number: each may fill the time tenfold better.
const TRIES: u32 = 4;

/// Nanoseconds of an iteration, by setting, kind and size.
#[derive(Debug, Default)]
pub(crate) struct Counts(RefCell<HashMap<(String, Kind, u64), f64>>);

impl Counts {
    /// A figure of as many iterations as take the load's time.
    pub(crate) fn measured(
        &self,
        setting: Setting,
        load: &Load,
        bytes: u64,
        mut once: impl FnMut(u64) -> Result<Figure, Stop>,
    ) -> Result<Figure, Stop> {
        let key = (setting.name(), load.kind, bytes);
        let mut tries = 0;
        loop {
            let known = self.0.borrow().get(&key).copied();
            let iterations = known.map_or(FIRST, |each| fitting(load.seconds, each));
            let figure = once(iterations)?;
            tries += 1;
            let Some(each) = each_ns(&figure) else {
                return Ok(figure);
            };
            self.0.borrow_mut().insert(key.clone(), each);
            let share = each * iterations as f64 / (load.seconds * 1e9);
            if share >= SHORT || iterations >= MOST || tries >= TRIES {
                return Ok(figure);
            }
        }
    }
}

fn fitting(seconds: f64, each_ns: f64) -> u64 {
    ((seconds * 1e9 / each_ns.max(1.0)) as u64).clamp(LEAST, MOST)
}

/// Returns what one iteration took: a whole exchange, or one message.
fn each_ns(figure: &Figure) -> Option<f64> {
    let exchange = figure.half_rtt_ns.mean.map(|half| half * 2.0);
    let message = figure.messages_per_second.map(|rate| 1e9 / rate);
    exchange
        .or(message)
        .filter(|each| each.is_finite() && *each > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_bench::stats::Percentiles;

    fn load() -> Load {
        Load {
            kind: Kind::Latency,
            sizes: vec![8],
            seconds: 0.1,
            window: 1,
            limit: None,
        }
    }

    fn took(half: f64) -> Figure {
        Figure {
            bytes: 8,
            half_rtt_ns: Percentiles {
                mean: Some(half),
                ..Percentiles::default()
            },
            ..Figure::default()
        }
    }

    #[test]
    fn the_time_is_filled_after_a_short_first_try_and_at_once_from_then_on() {
        let counts = Counts::default();
        let mut asked = Vec::new();
        let mut ask = |_: ()| {
            counts.measured(Setting::Shm, &load(), 8, |iterations| {
                asked.push(iterations);
                Ok(took(500.0))
            })
        };
        ask(()).unwrap();
        ask(()).unwrap();
        assert_eq!(asked, [FIRST, 100_000, 100_000]);
    }

    #[test]
    fn slow_peers_get_few_iterations_and_nothing_goes_on_for_ever() {
        let counts = Counts::default();
        let mut asked = Vec::new();
        // Never as fast as it reports: 1 ns on paper, and the time is never filled.
        for half in [1e9, 0.5] {
            let figure = counts.measured(Setting::Network, &load(), 8, |iterations| {
                asked.push(iterations);
                Ok(took(half))
            });
            figure.unwrap();
        }
        assert_eq!(asked[0], FIRST);
        assert!(
            asked.len() <= 1 + TRIES as usize && asked[1] == LEAST,
            "{asked:?}"
        );
        assert!(
            counts
                .measured(Setting::Shm, &load(), 64, |_| Ok(took(f64::NAN)))
                .is_ok()
        );
    }
}
