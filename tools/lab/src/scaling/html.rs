//! The report as one page that stands alone: pictures, their tables and slopes, and the record.

use std::fmt::Write;

use doorbell_bench::error::BenchError;
use doorbell_bench::report::count;
use doorbell_bench::report::figure::{Across, Curve as Drawn, Figure, Point, Up, colour};

use super::report::{Curve, Group, Report, Unit};
use super::table;
use crate::html::{escape, page};

const TITLE: &str = "How doorbell grows";

/// Returns the report as an HTML page.
pub(super) fn html(report: &Report) -> Result<String, BenchError> {
    let model = report.host.cpu_model.as_deref().unwrap_or("unknown processor");
    let mut body = format!(
        "<h1>{TITLE}</h1>\n<p class=\"soft\">doorbell {}; {}, {} cores; {}</p>\n",
        escape(report.version),
        escape(model),
        report.cores,
        match report.rounds {
            1 => "one round".to_owned(),
            rounds => format!("medians of {rounds} rounds, bars from the least to the most"),
        }
    );
    if !report.doubts.is_empty() {
        body.push_str("<ul>\n");
        for doubt in &report.doubts {
            let _ = writeln!(body, "<li>doubt: {}</li>", escape(&doubt.text));
        }
        body.push_str("</ul>\n");
    }
    for group in Group::ALL {
        let curves: Vec<&Curve> = report
            .curves
            .iter()
            .filter(|curve| curve.group == group)
            .collect();
        if !curves.is_empty() {
            section(group, &curves, &mut body)?;
        }
    }
    if !report.missing.is_empty() {
        body.push_str("<h2>Not measured</h2>\n<ul>\n");
        for missing in &report.missing {
            let _ = writeln!(
                body,
                "<li>{} {}: {}</li>",
                missing.count,
                escape(missing.what),
                escape(&missing.reason)
            );
        }
        body.push_str("</ul>\n");
    }
    Ok(page(TITLE, &body, report.schema, &report.json()))
}

/// Writes a picture, its reading in words, and its numbers.
fn section(group: Group, curves: &[&Curve], body: &mut String) -> Result<(), BenchError> {
    let _ = writeln!(body, "<h2>{}</h2>", escape(group.title()));
    body.push_str(&doorbell_bench::report::figure::figure(&drawn(group, curves))?);
    body.push_str("\n<ul>\n");
    for curve in curves {
        if let Some(slope) = table::slope(curve) {
            let _ = writeln!(body, "<li>{}: {}</li>", escape(curve.name), escape(&slope));
        }
    }
    let _ = write!(
        body,
        "</ul>\n<div class=\"wide\"><table>\n<tr><th>{}</th>",
        escape(group.across())
    );
    for point in curves.first().map_or(&[][..], |curve| &curve.points) {
        let _ = write!(body, "<th>{}</th>", count(f64::from(point.count)));
    }
    body.push_str("</tr>\n");
    for (curve, number) in curves.iter().zip(0..) {
        let _ = write!(
            body,
            "<tr><td><span class=\"dot\" style=\"background:{}\"></span>{}</td>",
            colour(number),
            escape(curve.name)
        );
        for point in &curve.points {
            let _ = write!(body, "<td>{}</td>", table::figure(curve, point.figure));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n");
    Ok(())
}

fn drawn(group: Group, curves: &[&Curve]) -> Figure {
    let bytes = curves.iter().any(|curve| curve.unit == Unit::Bytes);
    let curves = curves.iter().zip(0..).map(|(curve, number)| Drawn {
        name: curve.name.to_owned(),
        points: curve
            .points
            .iter()
            .map(|point| Point {
                x: f64::from(point.count),
                y: point.figure,
                spread: point.spread.min.zip(point.spread.max).map(<[f64; 2]>::from),
            })
            .collect(),
        colour: number,
        ours: true,
    });
    Figure {
        title: group.title().to_owned(),
        across: Across::Counts(group.across()),
        up: if bytes {
            Up::Bytes("bytes")
        } else {
            Up::Time("time")
        },
        curves: curves.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::samples::report;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let page = html(&report()).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
        assert!(page.contains("no &lt;room&gt;") && !page.contains("no <room>"));
        assert!(page.contains("flat (to the power of") && page.ends_with("</html>\n"));
    }
}
