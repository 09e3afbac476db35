//! What a guest measured, compared: lines of figures on its console, and the table of what is compared with
//! what. Times in an emulated machine mean nothing alone; the ratio of two programs on it shows where
//! software is wasted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The word that begins a line with a figure: its name and its value, once for each turn.
const FIGURE: &str = "LAB figure: ";
/// A base whose median is worse than its best turn by more than this was disturbed.
const DISTURBED: f64 = 2.0;

/// What a ratio should be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// A time, and the most that its ratio to the base should be.
    AtMost(f64),
    /// A rate, and the least that its ratio to the base should be.
    AtLeast(f64),
}

/// Figures that are compared.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) what: &'static str,
    /// The name of our figure.
    pub(super) ours: &'static str,
    /// The names of the bases; the best of them counts.
    pub(super) bases: &'static [&'static str],
    pub(super) unit: &'static str,
    pub(super) goal: Goal,
}

/// One row of what came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    what: String,
    /// Our median divided by the base's; `None` where one of them was not measured.
    ratio: Option<f64>,
    /// `<= 1.25` or `>= 0.95`.
    goal: String,
    reached: bool,
    unit: String,
    ours: Vec<f64>,
    /// The base that was best.
    base: String,
    bases: Vec<f64>,
    /// Whether the base varied so much that it is none.
    disturbed: bool,
}

impl Goal {
    fn is_time(self) -> bool {
        matches!(self, Self::AtMost(_))
    }

    fn is_reached(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }

    fn words(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {most}"),
            Self::AtLeast(least) => format!(">= {least}"),
        }
    }

    /// Returns the better one of two values.
    fn better(self, a: f64, b: f64) -> f64 {
        if self.is_time() { a.min(b) } else { a.max(b) }
    }
}

/// Returns the figures on a console by their names, in the order of the turns.
fn figures(console: &str) -> BTreeMap<String, Vec<f64>> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    // Output of the kernel may precede it on the same line.
    let lines = console
        .lines()
        .filter_map(|line| Some(line.split_once(FIGURE)?.1));
    for line in lines {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
            all.entry(name.to_owned()).or_default().push(value);
        }
    }
    all
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(sorted[middle - 1].midpoint(upper))
}

/// Compares the figures on a console.
pub(super) fn compare(comparisons: &[Comparison], console: &str) -> Vec<Ratio> {
    let figures = figures(console);
    let of = |name: &str| figures.get(name).cloned().unwrap_or_default();
    let compared = comparisons.iter().map(|comparison| compared(comparison, &of));
    compared.collect()
}

fn compared(comparison: &Comparison, of: &dyn Fn(&str) -> Vec<f64>) -> Ratio {
    let goal = comparison.goal;
    let ours = of(comparison.ours);
    let medians = comparison
        .bases
        .iter()
        .filter_map(|base| Some((*base, median(&of(base))?)));
    let best = medians.reduce(|a, b| if goal.better(a.1, b.1) == b.1 { b } else { a });
    let bases = best.map(|(base, _)| of(base)).unwrap_or_default();
    let ratio = best
        .and_then(|(_, base)| Some(median(&ours)? / base))
        .filter(|ratio| ratio.is_finite());
    let disturbed = best.is_some_and(|(_, middle)| {
        let top = bases.iter().copied().fold(middle, |a, b| goal.better(a, b));
        (middle / top).max(top / middle) > DISTURBED
    });
    Ratio {
        what: comparison.what.to_owned(),
        ratio,
        goal: goal.words(),
        reached: ratio.is_some_and(|ratio| goal.is_reached(ratio)),
        unit: comparison.unit.to_owned(),
        ours,
        base: best.map_or_else(|| comparison.bases.join(" or "), |(base, _)| base.to_owned()),
        bases,
        disturbed,
    }
}

/// Returns the rows as lines.
pub(super) fn lines(ratios: &[Ratio]) -> String {
    let mut text = String::new();
    for row in ratios {
        let middle = |values: &[f64]| {
            median(values).map_or_else(|| "not measured".to_owned(), |middle| format!("{middle:.2}"))
        };
        let ratio = row
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let verdict = match (row.ratio, row.reached) {
            (None, _) => "not measured",
            (_, true) => "reached",
            (_, false) => "not reached",
        };
        text += &format!(
            "    {:<44} {ratio:>7}  {:<8} {verdict:<12} {} {} of {} to {} of {} ({})\n",
            row.what,
            row.goal,
            middle(&row.ours),
            row.unit,
            row.ours.len(),
            middle(&row.bases),
            row.bases.len(),
            row.base,
        );
        if row.disturbed {
            text +=
                "            the base is worse than twice its own best turn: measure on a quieter machine\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Comparison = Comparison {
        what: "64 B",
        ours: "doorbell.p50",
        bases: &["slow", "quick"],
        unit: "µs",
        goal: Goal::AtMost(1.25),
    };

    fn console(figures: &[(&str, &[f64])]) -> String {
        let mut text = String::from("[1.0] booted\n");
        for (name, values) in figures {
            for value in *values {
                text += &format!("[ 2.0] LAB figure: {name} {value}\r\n");
            }
        }
        text
    }

    #[test]
    fn medians_are_divided_and_the_best_base_counts() {
        let text = console(&[
            ("doorbell.p50", &[30.0, 10.0, 11.0]),
            ("slow", &[20.0, 20.0, 21.0]),
            ("quick", &[10.0, 9.0, 11.0]),
        ]);
        let [row] = &compare(&[LATENCY], &text)[..] else {
            panic!("one row")
        };
        assert_eq!(
            (row.ratio, row.reached, &*row.base, row.disturbed),
            (Some(1.1), true, "quick", false)
        );
        assert!(lines(std::slice::from_ref(row)).contains("1.10  <= 1.25  reached"));
        let rate = Comparison {
            goal: Goal::AtLeast(1.0),
            ..LATENCY
        };
        let [row] = &compare(&[rate], &text)[..] else {
            panic!("one row")
        };
        assert_eq!(
            (row.ratio, row.reached, &*row.base),
            (Some(11.0 / 20.0), false, "slow")
        );
    }

    #[test]
    fn a_base_that_varies_and_a_figure_that_is_not_there_are_reported() {
        let text = console(&[("doorbell.p50", &[10.0, 12.0]), ("slow", &[8.0, 30.0, 40.0])]);
        let rows = compare(&[LATENCY], &text);
        assert!(
            rows[0].disturbed && rows[0].ratio == Some(11.0 / 30.0),
            "{rows:?}"
        );
        assert!(lines(&rows).contains("quieter"));
        let rows = compare(&[LATENCY], "LAB figure: slow x\nLAB figure: quick\n");
        assert_eq!((rows[0].ratio, rows[0].reached), (None, false));
        assert!(lines(&rows).contains("not measured"));
    }
}
