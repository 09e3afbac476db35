//! A picture of several stacks beside each other: one colour for each, our own drawn above the others,
//! spreads as bars.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::axis::{Decades, Doublings, Nines, Unit};
use super::plot::{Area, FONT, GRID, INK, failed, picture, words};
use crate::error::BenchError;

/// The contents of a picture.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The title above the picture.
    pub title: String,
    /// The horizontal axis.
    pub across: Across,
    /// The vertical axis.
    pub up: Up,
    /// One curve for each stack.
    pub curves: Vec<Curve>,
}

/// The quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Message sizes; every doubling takes the same width.
    Sizes,
    /// Percentiles as shares below 1; every nine takes the same width.
    Percentiles,
    /// A number of things, by decades.
    Counts(&'static str),
}

/// The quantity on the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Up {
    /// Nanoseconds of a half round trip, by decades.
    HalfRoundTrip,
    /// Bytes per second, by decades.
    Bandwidth,
    /// Messages per second, by decades.
    Rate,
    /// Shares of a whole, up to 1.
    Share,
    /// Nanoseconds of something, by decades.
    Time(&'static str),
    /// Bytes of something, by decades.
    Bytes(&'static str),
}

/// The curve of one stack.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name of the stack.
    pub name: String,
    /// The points of the curve, from left to right.
    pub points: Vec<Point>,
    /// Which colour it has; the same number is the same colour in every picture.
    pub colour: usize,
    /// Whether it is drawn above the others, and thicker.
    pub ours: bool,
}

/// One point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Bytes, or a share below 1.
    pub x: f64,
    /// The figure at this point.
    pub y: f64,
    /// The least and the most behind it, where that is known.
    pub spread: Option<[f64; 2]>,
}

/// Width and height of the picture, in pixels.
const FRAME: (u32, u32) = (960, 440);
/// What the legend takes beside its words.
const LEGEND: u32 = 56;
/// Ours first; the others as far from each other as colour-blind readers need them (after Okabe and Ito).
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 92, 175),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 94, 60),
    RGBColor(110, 110, 110),
    RGBColor(148, 103, 189),
];

/// Draws the picture as SVG.
///
/// # Errors
/// When it cannot be drawn.
pub fn figure(figure: &Figure) -> Result<String, BenchError> {
    picture(FRAME, |area| {
        let points = || figure.curves.iter().flat_map(|curve| &curve.points);
        match figure.across {
            Across::Sizes => up(
                area,
                figure,
                Doublings::around(points().map(|point| point.x as u64)),
            ),
            Across::Counts(_) => {
                let counts = points().map(|point| point.x);
                up(area, figure, Decades::around(counts, Unit::Count))
            }
            Across::Percentiles => {
                let last = points().map(|point| point.x).fold(0.0, f64::max);
                // Ten samples lie beyond the last point of a curve.
                let samples = 10.0 / (1.0 - last.min(0.999_999));
                up(area, figure, Nines::for_samples(samples.round() as u64))
            }
        }
    })
}

/// The colour of a stack, for the words about it.
pub fn colour(number: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Whether the marks of a stack are squares: where there are more stacks than colours, a colour has circles
/// first and then squares.
pub fn is_square(number: usize) -> bool {
    number / COLOURS.len() % 2 == 1
}

fn up<X>(area: &Area<'_>, figure: &Figure, x: X) -> Result<(), BenchError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let all = || {
        let points = figure.curves.iter().flat_map(|curve| &curve.points);
        points.flat_map(|point| point.spread.unwrap_or([point.y; 2]).into_iter().chain([point.y]))
    };
    match figure.up {
        Up::HalfRoundTrip | Up::Time(_) => draw(area, figure, x, Decades::around(all(), Unit::Nanoseconds)),
        Up::Bytes(_) => draw(area, figure, x, Decades::around(all(), Unit::Bytes)),
        Up::Bandwidth => draw(area, figure, x, Decades::around(all(), Unit::BytesPerSecond)),
        Up::Rate => draw(area, figure, x, Decades::around(all(), Unit::MessagesPerSecond)),
        Up::Share => draw(area, figure, x, Shares),
    }
}

fn draw<X, Y>(whole: &Area<'_>, figure: &Figure, x: X, y: Y) -> Result<(), BenchError>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    if figure.curves.iter().all(|curve| curve.points.is_empty()) {
        return words(
            whole,
            "nothing was measured",
            (FRAME.0 as i32 / 2, FRAME.1 as i32 / 2),
        );
    }
    let longest = figure
        .curves
        .iter()
        .map(|curve| curve.name.chars().count())
        .max()
        .unwrap_or(0);
    let (area, beside) = whole.split_horizontally(FRAME.0.saturating_sub(LEGEND + 8 * longest as u32));
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .margin_right(26)
        .caption(&figure.title, (FONT, 16, &INK))
        .x_label_area_size(46)
        .y_label_area_size(78)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style((FONT, 13, &INK))
        .axis_desc_style((FONT, 13, &INK))
        .x_desc(match figure.across {
            Across::Sizes => "message size",
            Across::Percentiles => "percentile (each nine takes the same width)",
            Across::Counts(what) => what,
        })
        .y_desc(match figure.up {
            Up::HalfRoundTrip => "half round trip",
            Up::Bandwidth => "bytes per second, one direction",
            Up::Rate => "messages per second, one direction",
            Up::Share => "hidden share",
            Up::Time(what) | Up::Bytes(what) => what,
        })
        .draw()
        .map_err(failed)?;
    for curve in in_order(figure) {
        let style = style(curve);
        let line = curve.points.iter().map(|point| (point.x, point.y));
        chart.draw_series(LineSeries::new(line, style)).map_err(failed)?;
        let bars = curve.points.iter().filter_map(|point| {
            let [least, most] = point.spread?;
            Some(PathElement::new([(point.x, least), (point.x, most)], style))
        });
        chart.draw_series(bars).map_err(failed)?;
        let marks = || curve.points.iter().map(|point| (point.x, point.y));
        for (size, style) in mark(curve) {
            if is_square(curve.colour) {
                let square = |at| EmptyElement::at(at) + square((0, 0), size, style);
                chart.draw_series(marks().map(square)).map_err(failed)?;
            } else {
                let circle = |at| Circle::new(at, size, style);
                chart.draw_series(marks().map(circle)).map_err(failed)?;
            }
        }
    }
    legend(&beside, figure)
}

/// Orders the curves so that ours is last, above the others.
fn in_order(figure: &Figure) -> impl Iterator<Item = &Curve> {
    let of = |ours: bool| figure.curves.iter().filter(move |curve| curve.ours == ours);
    of(false).chain(of(true))
}

fn style(curve: &Curve) -> ShapeStyle {
    let colour = COLOURS[curve.colour % COLOURS.len()];
    ShapeStyle::from(colour).stroke_width(if curve.ours { 4 } else { 2 })
}

/// The mark of a curve: its inside, and its rim above that.
fn mark(curve: &Curve) -> [(i32, ShapeStyle); 2] {
    let style = style(curve);
    match curve.ours {
        true => [(5, style.filled()), (5, style)],
        false => [(4, WHITE.filled()), (4, style)],
    }
}

fn square((x, y): (i32, i32), half: i32, style: ShapeStyle) -> Rectangle<(i32, i32)> {
    Rectangle::new([(x - half, y - half), (x + half, y + half)], style)
}

/// The names from the top down, each behind a piece of its line with its mark.
fn legend(area: &Area<'_>, figure: &Figure) -> Result<(), BenchError> {
    const TOP: i32 = 48;
    const ROW: i32 = 23;
    for (curve, row) in figure.curves.iter().zip(0..) {
        let y = TOP + ROW * row;
        area.draw(&PathElement::new([(0, y), (26, y)], style(curve)))
            .map_err(failed)?;
        for (size, style) in mark(curve) {
            let drawn = if is_square(curve.colour) {
                area.draw(&square((13, y), size, style))
            } else {
                area.draw(&Circle::new((13, y), size, style))
            };
            drawn.map_err(failed)?;
        }
        words(area, &curve.name, (34, y - 6))?;
    }
    Ok(())
}

/// The axis of shares, from nothing to all.
#[derive(Clone, Copy, Debug)]
struct Shares;

impl Ranged for Shares {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = if value.is_finite() {
            value.clamp(0.0, 1.0)
        } else {
            0.0
        };
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..=5).map(|fifth| f64::from(fifth) / 5.0).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..1.0
    }
}

impl ValueFormatter<f64> for Shares {
    fn format_ext(&self, value: &f64) -> String {
        format!("{:.0} %", value * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(up: Up, across: Across, points: &[(f64, f64)]) -> Figure {
        let points: Vec<Point> = points
            .iter()
            .map(|(x, y)| Point {
                x: *x,
                y: *y,
                spread: Some([y * 0.9, y * 1.1]),
            })
            .collect();
        let curve = |name: &str, colour, ours| Curve {
            name: name.to_owned(),
            points: points.clone(),
            colour,
            ours,
        };
        Figure {
            title: "a <title>".to_owned(),
            across,
            up,
            curves: vec![curve("ours", 0, true), curve("another", 1, false)],
        }
    }

    #[test]
    fn every_axis_shows_its_curves_and_their_names() {
        for (up, across, points, word) in [
            (
                Up::HalfRoundTrip,
                Across::Sizes,
                [(8.0, 70.0), (1024.0, 900.0)],
                "1 KiB",
            ),
            (
                Up::HalfRoundTrip,
                Across::Percentiles,
                [(0.5, 70.0), (0.9999, 900.0)],
                "99.99 %",
            ),
            (
                Up::Bandwidth,
                Across::Sizes,
                [(8.0, 7e8), (65536.0, 1e10)],
                "GB/s",
            ),
            (Up::Rate, Across::Sizes, [(8.0, 3e7), (64.0, 2e7)], "M/s"),
            (Up::Share, Across::Sizes, [(8.0, 0.1), (64.0, 1.0)], "100 %"),
            (
                Up::Time("a match"),
                Across::Counts("entries"),
                [(1.0, 30.0), (100_000.0, 90.0)],
                "10,000",
            ),
            (
                Up::Bytes("memory"),
                Across::Counts("idle peers"),
                [(2.0, 3e5), (4096.0, 4e6)],
                "2 MB",
            ),
        ] {
            let svg = figure(&of(up, across, &points)).unwrap();
            for word in [
                word,
                "ours",
                "another",
                &colour(0).to_uppercase(),
                "a &lt;title&gt;",
            ] {
                assert!(svg.contains(word), "{word}: {up:?}");
            }
        }
    }

    #[test]
    fn two_stacks_of_one_colour_have_different_marks() {
        let mut many = of(Up::HalfRoundTrip, Across::Sizes, &[(8.0, 70.0), (64.0, 90.0)]);
        let all = COLOURS.len();
        assert_eq!(colour(1), colour(1 + all));
        assert!(!is_square(1) && is_square(1 + all));
        let rectangles = |figure: &Figure| super::figure(figure).unwrap().matches("<rect").count();
        let before = rectangles(&many);
        many.curves[1].colour += all;
        // Two points and the legend, each with an inside and a rim.
        assert_eq!(rectangles(&many), before + 6);
    }

    #[test]
    fn nothing_and_nonsense_are_no_error() {
        assert!(
            figure(&of(Up::Rate, Across::Sizes, &[]))
                .unwrap()
                .contains("nothing was measured")
        );
        let odd = [(f64::NAN, f64::NAN), (0.0, -1.0), (1e300, f64::INFINITY)];
        for up in [Up::HalfRoundTrip, Up::Share, Up::Bytes("x")] {
            for across in [Across::Sizes, Across::Percentiles, Across::Counts("y")] {
                figure(&of(up, across, &odd)).unwrap();
            }
        }
    }
}
