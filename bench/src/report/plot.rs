//! Pictures as SVG: latency by percentile on an axis of nines; latency, bandwidth or rate by size on
//! logarithmic axes.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;

use super::axis::{Decades, Doublings, Nines, Unit};
use super::{Report, SCHEMA, per_second};
use crate::error::BenchError;
use crate::layer::Layer;
use crate::load::Row;
use crate::plan::Kind;
use crate::size::text_of;

/// Width and height of one picture, in pixels.
const FRAME: (u32, u32) = (900, 520);
/// Maximum number of curves in one picture.
const CURVES: usize = 6;
/// Colours that colour-blind readers tell apart (Okabe and Ito).
const COLOURS: [RGBColor; CURVES] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
pub(super) const INK: RGBColor = RGBColor(40, 40, 40);
pub(super) const GRID: RGBColor = RGBColor(225, 225, 225);
pub(super) const FONT: &str = "sans-serif";

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One curve: its name and its points.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Whether each point is shown: on a dense curve they would be a second, thicker line.
    marked: bool,
}

/// Half round trips by percentile, one curve per size (at most six of them).
///
/// # Errors
/// When the picture cannot be drawn.
pub fn by_percentile(report: &Report) -> Result<String, BenchError> {
    picture(FRAME, |area| percentiles(report, area))
}

/// Draws by message size: p50, p99 and p99.9 of half round trips, the bandwidth, or messages per second.
///
/// # Errors
/// When the picture cannot be drawn.
pub fn by_size(report: &Report) -> Result<String, BenchError> {
    picture(FRAME, |area| sizes(report, area))
}

/// Both pictures of a ping-pong, one above the other.
pub(super) fn both(report: &Report) -> Result<String, BenchError> {
    picture((FRAME.0, 2 * FRAME.1), |area| {
        let (upper, lower) = area.split_vertically(FRAME.1);
        percentiles(report, &upper)?;
        sizes(report, &lower)
    })
}

pub(super) fn picture(
    size: (u32, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), BenchError>,
) -> Result<String, BenchError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

pub(super) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Plot(error.to_string())
}

fn percentiles(report: &Report, area: &Area<'_>) -> Result<(), BenchError> {
    let rows = chosen(&report.results);
    let most = rows.iter().map(|row| row.samples).max().unwrap_or(0);
    let axis = Nines::for_samples(most);
    let curves: Vec<Curve> = rows
        .into_iter()
        .filter_map(|row| distribution(row, axis))
        .collect();
    let values = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.1));
    let latency = Decades::around(values, Unit::Nanoseconds);
    let (what, y) = match report.is_open() {
        true => ("Round trip from the intended send", "round trip"),
        false => ("Half round trip", "half round trip"),
    };
    let text = Text {
        title: format!("{what} by percentile, {}", subject(report)),
        x: "percentile (each nine takes the same width; a curve ends where its samples do)",
        y,
    };
    chart(area, &text, axis, latency, &curves)
}

fn sizes(report: &Report, area: &Area<'_>) -> Result<(), BenchError> {
    let curves = match report.kind {
        Kind::Pingpong => latencies(&report.results),
        Kind::Stream => bandwidths(&report.results),
        Kind::Rate => rates(&report.results),
    };
    let values = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.1));
    let (what, y, unit) = match report.kind {
        Kind::Pingpong => ("Half round trip", "half round trip", Unit::Nanoseconds),
        Kind::Stream => ("Bandwidth", "bandwidth, one direction", Unit::BytesPerSecond),
        Kind::Rate => (
            "Rate",
            "messages per second, one direction",
            Unit::MessagesPerSecond,
        ),
    };
    let axis = Doublings::around(report.results.iter().map(|row| row.bytes));
    let text = Text {
        title: format!("{what} by message size, {}", subject(report)),
        x: "message size",
        y,
    };
    chart(area, &text, axis, Decades::around(values, unit), &curves)
}

/// Returns what was measured, for the titles.
fn subject(report: &Report) -> String {
    let host = report
        .environment
        .host
        .cpu_model
        .as_deref()
        .unwrap_or("unknown processor");
    let mode = &report.environment.mode;
    let layer = match report.layer {
        Layer::Pml => "",
        Layer::Portals => "Portals puts, ",
        Layer::Am => "active messages, ",
    };
    format!("{layer}{}, {mode}, {host}", report.rail)
}

/// Chooses at most [`CURVES`] rows of the first pair: the usual sizes, or evenly spread ones.
fn chosen(rows: &[Row]) -> Vec<&Row> {
    const ASKED_FOR: [u64; CURVES] = [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
    let first: Vec<&Row> = rows.iter().filter(|row| row.pair == rows[0].pair).collect();
    if first.len() <= CURVES {
        return first;
    }
    let asked: Vec<&Row> = first
        .iter()
        .copied()
        .filter(|row| ASKED_FOR.contains(&row.bytes))
        .take(CURVES)
        .collect();
    if asked.len() >= CURVES / 2 {
        return asked;
    }
    let last = first.len() - 1;
    (0..CURVES).map(|n| first[n * last / (CURVES - 1)]).collect()
}

/// The distribution of a row, as far as its samples go.
fn distribution(row: &Row, axis: Nines) -> Option<Curve> {
    const STEPS_PER_NINE: i32 = 40;
    let recorder = row.recorded()?;
    let points: Vec<(f64, f64)> = (0..=axis.count * STEPS_PER_NINE)
        .map(|step| 1.0 - 10f64.powf(-f64::from(step) / f64::from(STEPS_PER_NINE)))
        .filter_map(|quantile| Some((quantile, recorder.at(quantile)? * row.share_shown())))
        .collect();
    (!points.is_empty()).then(|| Curve {
        name: match &row.open {
            Some(open) => format!(
                "{} at {}",
                text_of(row.bytes),
                per_second(open.asked_per_second, "msg")
            ),
            None => text_of(row.bytes),
        },
        points,
        marked: false,
    })
}

fn latencies(rows: &[Row]) -> Vec<Curve> {
    type Pick = fn(&Row) -> Option<f64>;
    let picks: [(&str, Pick); 4] = [
        ("p50", |row| row.half_rtt_ns.p50),
        ("p99", |row| row.half_rtt_ns.p99),
        ("p99.9", |row| row.half_rtt_ns.p999),
        ("bare exchange", |row| row.reference.cache_line_half_rtt_ns),
    ];
    picks
        .into_iter()
        .filter_map(|(name, pick)| curve(rows, name, pick))
        .collect()
}

fn bandwidths(rows: &[Row]) -> Vec<Curve> {
    type Pick = fn(&Row) -> Option<f64>;
    let picks: [(&str, Pick); 2] = [
        ("doorbell", |row| row.bytes_per_second),
        ("one memcpy, one core", |row| {
            row.reference.memcpy_bytes_per_second
        }),
    ];
    picks
        .into_iter()
        .filter_map(|(name, pick)| curve(rows, name, pick))
        .collect()
}

fn rates(rows: &[Row]) -> Vec<Curve> {
    let copies = |row: &Row| Some(row.reference.memcpy_bytes_per_second? / row.bytes as f64);
    let doorbell = curve(rows, "doorbell", |row| row.messages_per_second);
    doorbell
        .into_iter()
        .chain(curve(rows, "one memcpy each, one core", copies))
        .collect()
}

fn curve(rows: &[Row], name: &str, pick: fn(&Row) -> Option<f64>) -> Option<Curve> {
    let first = rows.first()?.pair;
    let points: Vec<(f64, f64)> = rows
        .iter()
        .filter(|row| row.pair == first)
        .filter_map(|row| Some((row.bytes as f64, pick(row)?)))
        .collect();
    (!points.is_empty()).then(|| Curve {
        name: name.to_owned(),
        points,
        marked: true,
    })
}

/// The words of a chart.
struct Text {
    title: String,
    x: &'static str,
    y: &'static str,
}

/// Axes, grid, curves with marks, and a legend beside them, where no curve can be.
fn chart<X>(whole: &Area<'_>, text: &Text, x: X, y: Decades, curves: &[Curve]) -> Result<(), BenchError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let (width, height) = whole.dim_in_pixel();
    let longest = curves
        .iter()
        .map(|curve| curve.name.chars().count())
        .max()
        .unwrap_or(0);
    let (area, beside) = whole.split_horizontally(width.saturating_sub(LEGEND + 7 * longest as u32));
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .margin_right(30)
        .caption(&text.title, (FONT, 17, &INK))
        .x_label_area_size(52)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style((FONT, 13, &INK))
        .axis_desc_style((FONT, 14, &INK))
        .x_desc(text.x)
        .y_desc(text.y)
        .draw()
        .map_err(failed)?;
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let line = ShapeStyle::from(colour).stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), line))
            .map_err(failed)?;
        if curve.marked {
            let marks = curve
                .points
                .iter()
                .map(|point| Circle::new(*point, 3, colour.filled()));
            chart.draw_series(marks).map_err(failed)?;
        }
    }
    if curves.is_empty() {
        let at = (width as i32 / 2, height as i32 / 2);
        return words(whole, &format!("no samples ({SCHEMA})"), at);
    }
    legend(&beside, curves)
}

/// The names of the curves from the top down, each behind a piece of its line.
fn legend(area: &Area<'_>, curves: &[Curve]) -> Result<(), BenchError> {
    const TOP: i32 = 52;
    const ROW: i32 = 22;
    for ((curve, colour), row) in curves.iter().zip(COLOURS).zip(0..) {
        let y = TOP + ROW * row;
        let line = ShapeStyle::from(colour).stroke_width(2);
        area.draw(&PathElement::new([(0, y), (22, y)], line))
            .map_err(failed)?;
        words(area, &curve.name, (30, y - 6))?;
    }
    Ok(())
}

pub(super) fn words(area: &Area<'_>, text: &str, at: (i32, i32)) -> Result<(), BenchError> {
    let style = (FONT, 13).into_font().color(&INK);
    area.draw(&plotters::element::Text::new(text.to_owned(), at, style))
        .map_err(failed)
}

/// Width of the legend without its words, in pixels.
const LEGEND: u32 = 44;

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn pictures_hold_their_curves_and_words() {
        let report = samples::pingpong();
        let curve = by_percentile(&report).unwrap();
        for word in ["<svg", "99.9 %", "8 B", "half round trip", "</svg>"] {
            assert!(curve.contains(word), "{word}");
        }
        let sizes = by_size(&report).unwrap();
        for word in ["p99.9", "bare exchange", "4 KiB"] {
            assert!(sizes.contains(word), "{word}");
        }
        assert!(by_size(&samples::stream()).unwrap().contains("GB/s"));
        let rate = by_size(&samples::rate()).unwrap();
        assert!(
            rate.contains("M/s") && rate.contains("messages per second") && !rate.contains("B/s"),
            "{rate}"
        );
    }

    #[test]
    fn markup_in_names_is_escaped() {
        let mut report = samples::pingpong();
        report.rail = "udp:<script>".to_owned();
        assert!(!by_percentile(&report).unwrap().contains("<script>"));
    }

    #[test]
    fn nothing_to_draw_is_stated_and_is_no_error() {
        let mut report = samples::pingpong();
        report.results.clear();
        assert!(by_percentile(&report).unwrap().contains("no samples"));
        assert!(by_size(&report).unwrap().contains("no samples"));
    }

    #[test]
    fn at_most_six_curves_are_chosen() {
        let row = samples::pingpong().results.remove(0);
        let of = |sizes: &[u64]| -> Vec<Row> {
            sizes
                .iter()
                .map(|bytes| Row {
                    bytes: *bytes,
                    ..row.clone()
                })
                .collect()
        };
        let powers: Vec<u64> = (0..=22).map(|power| 1 << power).collect();
        let bytes = |rows: &[Row]| chosen(rows).iter().map(|row| row.bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&of(&powers)), [8, 64, 1024, 8192, 65_536, 1 << 20]);
        let odd: Vec<u64> = (1..=11).map(|n| n * 3).collect();
        assert_eq!(bytes(&of(&odd)), [3, 9, 15, 21, 27, 33]);
    }
}
