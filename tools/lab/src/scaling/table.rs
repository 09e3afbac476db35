//! The report as text: for each group a head of counts, for each curve its figures and its slope.

use std::fmt::Write;

use doorbell_bench::report::{bytes, count, time, wrap};

use super::report::{Curve, Group, Report, Unit};
use crate::scaling::fit::Slope;

/// A figure of a curve, with its unit.
pub(super) fn figure(curve: &Curve, value: f64) -> String {
    match curve.unit {
        Unit::Nanoseconds => time(value),
        Unit::Bytes => bytes(value),
    }
}

/// The slope in words and numbers.
pub(super) fn slope(curve: &Curve) -> Option<String> {
    let Slope { exponent, each } = curve.slope?;
    let sign = if each < 0.0 { '−' } else { '+' };
    let exponent = if exponent.abs() < 0.005 { 0.0 } else { exponent };
    let scope = if curve.group == Group::Ranks {
        "where ranks share cores, it "
    } else {
        ""
    };
    let Some(growth) = curve.growth else {
        let why = match curve.points.iter().map(|point| point.rounds).min() {
            Some(0 | 1) | None => "one round cannot separate growth from noise: give `--rounds 3`",
            Some(_) => "the rounds differ by as much as the curve does: its growth is unknown",
        };
        return Some(why.to_owned());
    };
    Some(format!(
        "{scope}{growth} (to the power of {exponent:.2}; {sign}{} for each {})",
        one(curve, each.abs()),
        curve.group.one()
    ))
}

/// Returns what one more costs; that may be far below a nanosecond.
fn one(curve: &Curve, each: f64) -> String {
    match curve.unit {
        Unit::Nanoseconds if each < 0.005 => format!("{:.2} ps", each * 1e3),
        _ => figure(curve, each),
    }
}

/// The whole report.
pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    for doubt in &report.doubts {
        for (at, line) in wrap::lines(&doubt.text, 90).iter().enumerate() {
            let _ = writeln!(text, "{:<7}{line}", if at == 0 { "doubt" } else { "" });
        }
    }
    if !report.doubts.is_empty() {
        text.push('\n');
    }
    for group in Group::ALL {
        let curves: Vec<&Curve> = report
            .curves
            .iter()
            .filter(|curve| curve.group == group)
            .collect();
        if let Some(first) = curves.first() {
            let counts = first.points.iter().map(|point| count(f64::from(point.count)));
            let _ = writeln!(text, "{}\n{}", group.title(), line(group.across(), counts));
        }
        for curve in curves {
            let figures = curve.points.iter().map(|point| figure(curve, point.figure));
            let _ = writeln!(text, "{}", line(curve.name, figures));
            if let Some(slope) = slope(curve) {
                let _ = writeln!(text, "    {slope}");
            }
        }
        if report.curves.iter().any(|curve| curve.group == group) {
            text.push('\n');
        }
    }
    for missing in &report.missing {
        let _ = writeln!(
            text,
            "not measured: {} {}: {}",
            missing.count, missing.what, missing.reason
        );
    }
    text
}

fn line(name: &str, cells: impl Iterator<Item = String>) -> String {
    let mut line = format!("{name:<30}");
    for cell in cells {
        let _ = write!(line, "{cell:>9} ");
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::report::samples::report;
    use super::*;

    #[test]
    fn the_table_has_counts_figures_slopes_and_what_is_missing() {
        let text = table(&report());
        for words in [
            "idle peers                            2     4,096",
            "151 ns",
            "flat (to the power of 0.00; +",
            "ps for each entry",
            "MB",
            "for each peer",
            "not measured: 64 ranks: no <room>",
            "doubt  other work ran when the measurement began (load average 9.0 on 2 cores)",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
