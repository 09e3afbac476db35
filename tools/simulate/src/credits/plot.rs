//! A pattern as a picture: throughput above, credits on the move below, over the same time.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::{Figures, Row};
use super::{Pattern, Policy, Sample};

const FRAME: (u32, u32) = (920, 560);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(228, 228, 228);
const FONT: &str = "sans-serif";
/// Room for the names beside the curves.
const BESIDE: u32 = 190;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Points = Vec<(f64, f64)>;

/// Colours that colour-blind readers tell apart (after Okabe and Ito).
const fn colour(policy: Policy) -> RGBColor {
    match policy {
        Policy::Unlimited => RGBColor(110, 110, 110),
        Policy::Fixed => RGBColor(213, 94, 0),
        Policy::Flags => RGBColor(0, 92, 175),
        Policy::Counters => RGBColor(0, 158, 115),
        Policy::Mixed => RGBColor(204, 121, 167),
    }
}

/// The default's is wide: the others, which come later, are seen upon it.
const fn width(policy: Policy) -> u32 {
    match policy {
        Policy::Flags => 5,
        _ => 2,
    }
}

struct Curve {
    name: String,
    points: Points,
    colour: RGBColor,
    width: u32,
}

/// The picture as SVG.
///
/// # Errors
/// When it cannot be drawn, in words.
pub(super) fn plot(figures: &Figures) -> Result<String, String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, FRAME).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (upper, lower) = area.split_vertically(FRAME.1 * 11 / 20);
        let title = format!(
            "{}, {} nodes: throughput of frequent partners, of unlimited credits'",
            figures.pattern.name(),
            figures.nodes
        );
        panel(&upper, &title, "share", "", &shares(figures))?;
        let title = "Credits on the move, by node and thousand ticks";
        panel(&lower, title, "credits", "thousand ticks", &moves(figures))?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

/// Each policy's throughput, smoothed, as a share of what unlimited credits have over the whole run.
fn shares(figures: &Figures) -> Vec<Curve> {
    let unlimited = figures.rows.iter().find(|row| row.policy == Policy::Unlimited);
    let mean = unlimited.map_or(1.0, |row| {
        let sum: f64 = row.samples.iter().map(|sample| sample.rate).sum();
        sum / row.samples.len().max(1) as f64
    });
    let curve = |row: &Row| Curve {
        name: row.policy.name().to_owned(),
        points: smoothed(row, few(figures), |sample| sample.rate / mean),
        colour: colour(row.policy),
        width: width(row.policy),
    };
    figures.rows.iter().map(curve).collect()
}

/// Grants and returns of the policies whose credits migrate.
fn moves(figures: &Figures) -> Vec<Curve> {
    let migrating = figures
        .rows
        .iter()
        .filter(|row| row.policy.migrates() && row.policy != Policy::Mixed);
    let mut curves = Vec::new();
    for row in migrating {
        let per = |credits: fn(&Sample) -> f64| {
            let width = row.samples.first().map_or(1.0, |sample| sample.tick as f64) / 1000.0;
            smoothed(row, few(figures), move |sample| credits(sample) / width)
        };
        let mut curve = |what: &str, points: Points, colour: RGBColor| {
            curves.push(Curve {
                name: format!("{what}, {}", row.policy.name()),
                points,
                colour,
                width: width(row.policy),
            });
        };
        curve("granted", per(|sample| sample.granted), colour(row.policy));
        let RGBColor(red, green, blue) = colour(row.policy);
        let lighter = |part: u8| part / 2 + 120;
        let pale = RGBColor(lighter(red), lighter(green), lighter(blue));
        curve("returned", per(|sample| sample.returned), pale);
    }
    curves
}

/// Pieces to a point: bursts leave many of them empty.
fn few(figures: &Figures) -> usize {
    match figures.pattern {
        Pattern::Bursts => 8,
        _ => 2,
    }
}

/// Means of a few pieces each: single ones show the steps of a pattern rather than its course.
fn smoothed(row: &Row, few: usize, figure: impl Fn(&Sample) -> f64) -> Points {
    let pieces = row.samples.chunks(few);
    let mean = |piece: &[Sample]| piece.iter().map(&figure).sum::<f64>() / piece.len() as f64;
    pieces
        .filter_map(|piece| Some((piece.last()?.tick as f64 / 1000.0, mean(piece))))
        .collect()
}

fn panel(whole: &Area<'_>, title: &str, up: &str, across: &str, curves: &[Curve]) -> Result<(), String> {
    let (area, beside) = whole.split_horizontally(FRAME.0 - BESIDE);
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let right = all().map(|point| point.0).fold(1.0, f64::max);
    let top = all()
        .map(|point| point.1)
        .filter(|y| y.is_finite())
        .fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .caption(title, (FONT, 15, &INK))
        .x_label_area_size(if across.is_empty() { 24 } else { 40 })
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..right, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style((FONT, 12, &INK))
        .axis_desc_style((FONT, 13, &INK))
        .x_labels(8)
        .y_labels(6)
        .x_desc(across)
        .y_desc(up)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&move |y| match top {
            10.0.. => format!("{y:.0}"),
            1.0.. => format!("{y:.1}"),
            _ => format!("{y:.3}"),
        })
        .draw()
        .map_err(failed)?;
    for curve in curves {
        let style = ShapeStyle::from(curve.colour).stroke_width(curve.width);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))
            .map_err(failed)?;
    }
    for (curve, row) in curves.iter().zip(0..) {
        let y = 44 + 22 * row;
        let style = ShapeStyle::from(curve.colour).stroke_width(curve.width);
        beside
            .draw(&PathElement::new([(0, y), (26, y)], style))
            .map_err(failed)?;
        beside
            .draw_text(&curve.name, &TextStyle::from((FONT, 13)).color(&INK), (34, y - 7))
            .map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}
