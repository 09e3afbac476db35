//! Budgets: what the design promises, measured in one run and judged.
//!
//! A budget is a ratio wherever it can be: of two things measured in turn, in several repetitions, on the
//! machine as it is at that moment. The verdict is about the median of the repetitions. A row that cannot be
//! judged here has the reason, and is never counted as met.

mod hotel;
mod idle;
mod local;
mod matching;
mod null;
mod overlap;
mod raw_udp;
mod stack;
mod threads;

use doorbell_bench::report::wrap;
use doorbell_bench::stats::{Spread, median};
use serde::{Deserialize, Serialize};

pub(crate) use hotel::hotel_nanos;
pub(crate) use idle::idle_peer_bytes;
pub(crate) use local::{pml_nanos, ring_ratios};
pub(crate) use matching::{Asked, Queue, matching_nanos, matching_ratio};
pub(crate) use overlap::{Computation, Overlap, overlap, overlap_serve, overlap_share};
pub(crate) use raw_udp::{
    Answered, Burst, raw_udp_answer, raw_udp_ask, raw_udp_end, raw_udp_nanos, raw_udp_socket, raw_xdp_queues,
};
pub(crate) use stack::{Way, among, stack_nanos};
pub(crate) use threads::hand_over;

/// The name and version of the JSON.
pub(crate) const SCHEMA: &str = "doorbell.budgets/1";

/// On which side of the limit a budget is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bound {
    /// Smaller is better.
    AtMost,
    /// Larger is better.
    AtLeast,
    /// Larger is better, and the limit itself is not enough.
    Above,
    /// There is no limit: the value is only reported.
    None,
}

/// The verdict about a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The budget is met.
    Met,
    /// The budget is missed.
    Missed,
    /// Not judged; the row has the reason.
    NotJudged,
}

/// One budget: what is measured, against what, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// The name of the work.
    pub(crate) name: &'static str,
    /// The unit of measured value and limit.
    pub(crate) unit: &'static str,
    /// The limit of the measured value.
    pub(crate) limit: f64,
    /// The side of the limit.
    pub(crate) bound: Bound,
    /// How it is measured, in one sentence.
    pub(crate) how: &'static str,
}

/// A budget with its measurement and verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Judged {
    /// The name of the work.
    pub(crate) name: String,
    /// The median of the repetitions; `None` when nothing could be measured.
    pub(crate) measured: Option<f64>,
    /// The unit of the measured value.
    pub(crate) unit: String,
    /// The limit; `None` for rows that are only reported.
    pub(crate) budget: Option<f64>,
    /// The side of the limit.
    pub(crate) bound: Bound,
    /// The verdict about the budget.
    pub(crate) verdict: Verdict,
    /// Why it is not judged.
    pub(crate) reason: Option<String>,
    /// How it was measured.
    pub(crate) how: String,
    /// The repetitions behind the median.
    pub(crate) repetitions: usize,
    /// The spread of the repetitions.
    pub(crate) spread: Spread,
    /// Repetitions that were left out, because what they are compared with was bad or did not stay as it was.
    #[serde(default)]
    pub(crate) bad_bases: u32,
}

impl Judged {
    /// Sets how many repetitions were left out because of what they are compared with.
    #[must_use]
    pub(crate) fn without(self, bad_bases: u32) -> Self {
        Self { bad_bases, ..self }
    }

    /// Describes how often it was measured, and the range.
    fn told(&self) -> String {
        let times = match self.repetitions {
            0 => return String::new(),
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        let spread = self.spread.min.zip(self.spread.max);
        let spread = spread.map_or_else(String::new, |(least, most)| {
            format!(", {} to {}", number(least, &self.unit), number(most, &self.unit))
        });
        let bad = match self.bad_bases {
            0 => String::new(),
            bad => format!(", and {bad} left out for a bad base"),
        };
        format!("measured {times}{spread}{bad}; ")
    }
}

/// How all of it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The number of repetitions on the command line, or by default.
    pub(crate) repetitions: u32,
    /// Seconds of each measurement.
    pub(crate) seconds: f64,
    /// Whether it was a first look, and not more.
    pub(crate) quick: bool,
    /// Whether everything ran at real-time priority.
    pub(crate) real_time: bool,
    /// Why the figures may be worth less than they look.
    pub(crate) doubts: Vec<String>,
}

impl Budget {
    /// A value as the table shows it, with its unit.
    pub(crate) fn number(&self, value: f64) -> String {
        number(value, self.unit)
    }

    /// The verdict about the median of `values`; `excuse` is why it is not judged here.
    pub(crate) fn judge(&self, values: &[f64], excuse: Option<String>) -> Judged {
        let measured = median(values);
        let reason = match (measured, excuse) {
            (_, Some(excuse)) => Some(excuse),
            (None, None) => Some("nothing could be measured".to_owned()),
            (Some(_), None) if self.bound == Bound::None => Some("only reported".to_owned()),
            (Some(_), None) => None,
        };
        let met = |value: f64| match self.bound {
            Bound::AtMost => value <= self.limit,
            Bound::AtLeast => value >= self.limit,
            Bound::Above => value > self.limit,
            Bound::None => false,
        };
        let verdict = match (measured, &reason) {
            (Some(value), None) if met(value) => Verdict::Met,
            (Some(_), None) => Verdict::Missed,
            _ => Verdict::NotJudged,
        };
        Judged {
            name: self.name.to_owned(),
            measured,
            unit: self.unit.to_owned(),
            budget: (self.bound != Bound::None).then_some(self.limit),
            bound: self.bound,
            verdict,
            reason,
            how: self.how.to_owned(),
            repetitions: values.iter().filter(|value| value.is_finite()).count(),
            spread: Spread::of(values),
            bad_bases: 0,
        }
    }
}

/// All verdicts of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdicts {
    /// The name of the schema, [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of doorbell.
    pub(crate) version: String,
    /// The machine that was measured.
    pub(crate) host: doorbell_bench::env::Host,
    /// How all of it was measured.
    pub(crate) run: Run,
    /// The rows of the table.
    pub(crate) budgets: Vec<Judged>,
}

impl Verdicts {
    /// Makes the report of rows, on this machine.
    pub(crate) fn new(run: Run, budgets: Vec<Judged>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: doorbell_bench::env::Host::read(&doorbell_bench::pin::allowed()),
            run,
            budgets,
        }
    }

    /// Whether anything was measured at all.
    pub(crate) fn measured(&self) -> bool {
        self.budgets.iter().any(|row| row.measured.is_some())
    }

    /// Whether any budget was missed.
    pub(crate) fn missed(&self) -> bool {
        self.budgets.iter().any(|row| row.verdict == Verdict::Missed)
    }

    /// Returns it as JSON, with a newline at the end.
    pub(crate) fn json(&self) -> String {
        // Strings, numbers and options only: writing them into memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).expect("verdicts are plain data");
        text.push('\n');
        text
    }

    /// As a table of at most 80 columns: name, measured, budget, verdict; below each row how, and why not
    /// judged.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<33} {:>15} {:>17}  {}\n",
            "work", "measured", "budget", "verdict"
        );
        for row in &self.budgets {
            let measured = row
                .measured
                .map_or_else(|| "-".to_owned(), |value| number(value, &row.unit));
            let sign = match row.bound {
                Bound::AtMost => "≤ ",
                Bound::AtLeast => "≥ ",
                Bound::Above => "> ",
                Bound::None => "",
            };
            let budget = row.budget.map_or_else(
                || "-".to_owned(),
                |limit| format!("{sign}{}", number(limit, &row.unit)),
            );
            let verdict = match row.verdict {
                Verdict::Met => "met",
                Verdict::Missed => "MISSED",
                Verdict::NotJudged => "not judged",
            };
            text.push_str(&format!(
                "{:<33} {measured:>15} {budget:>17}  {verdict}\n",
                row.name
            ));
            let why = row
                .reason
                .as_ref()
                .map_or_else(String::new, |reason| format!("not judged: {reason}; "));
            for line in wrap::lines(&format!("{why}{}{}", row.told(), row.how), 76) {
                text.push_str(&format!("    {line}\n"));
            }
        }
        let run = &self.run;
        text.push_str(&format!(
            "\n{} repetitions of {} s for each measurement{}{}\n",
            run.repetitions,
            run.seconds,
            if run.quick {
                ", a first look and not more"
            } else {
                ""
            },
            if run.real_time {
                ", at real-time priority"
            } else {
                ""
            }
        ));
        for doubt in &run.doubts {
            for line in wrap::lines(&format!("doubt: {doubt}"), 80) {
                text.push_str(&format!("{line}\n"));
            }
        }
        text
    }
}

/// A value with its unit; ratios have none of their own.
fn number(value: f64, unit: &str) -> String {
    match unit {
        "x" => format!("{value:.2} x"),
        "msg/s" => doorbell_bench::report::per_second(value, "msg"),
        "B/s" => doorbell_bench::report::per_second(value, "B"),
        "ns" => format!("{value:.1} ns"),
        "B" => format!("{value:.0} B"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bound: Bound) -> Budget {
        Budget {
            name: "a piece of work",
            unit: "x",
            limit: 2.0,
            bound,
            how: "by doing it and by looking at the clock before and after, eight times, in turn with the other thing",
        }
    }

    #[test]
    fn the_median_is_judged_on_the_right_side_of_the_limit() {
        let verdict = |bound, values: &[f64]| budget(bound).judge(values, None).verdict;
        assert_eq!(verdict(Bound::AtMost, &[1.0, 2.0, 9.0]), Verdict::Met);
        assert_eq!(verdict(Bound::AtMost, &[1.0, 2.1, 9.0]), Verdict::Missed);
        assert_eq!(verdict(Bound::AtLeast, &[2.0]), Verdict::Met);
        assert_eq!(verdict(Bound::Above, &[2.0]), Verdict::Missed);
        assert_eq!(verdict(Bound::None, &[2.0]), Verdict::NotJudged);
        assert_eq!(verdict(Bound::AtMost, &[f64::NAN]), Verdict::NotJudged);
    }

    #[test]
    fn an_excuse_is_shown_and_never_counts_as_met() {
        let judged = budget(Bound::AtMost).judge(&[1.0], Some("there is one core only".to_owned()));
        assert_eq!(judged.verdict, Verdict::NotJudged);
        let verdicts = Verdicts::new(Run::default(), vec![judged]);
        assert!(!verdicts.missed());
        let table = verdicts.table();
        assert!(table.contains("not judged: there is one core only"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn a_missed_budget_is_a_missed_run() {
        let verdicts = Verdicts::new(Run::default(), vec![budget(Bound::AtMost).judge(&[3.0], None)]);
        assert!(verdicts.missed() && verdicts.table().contains("MISSED"));
        assert!(verdicts.measured() && verdicts.table().contains("measured once, 3.00 x to 3.00 x"));
        let none = Verdicts::new(Run::default(), vec![budget(Bound::AtMost).judge(&[], None)]);
        assert!(!none.measured());
        let back: Verdicts = serde_json::from_str(&verdicts.json()).unwrap();
        assert_eq!(back.budgets[0].measured, Some(3.0));
    }
}
