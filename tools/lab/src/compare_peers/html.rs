//! The comparison as one page that stands alone: what it comes to, pictures, tables, how it was measured, and
//! the record.

use std::collections::BTreeSet;
use std::fmt::Write;

use doorbell_bench::error::BenchError;
use doorbell_bench::report::figure::{Across, Curve, Figure, Point, Up, colour, figure, is_square};

use super::load::Kind;
use super::report::{Line, Report};
use super::table::{self, Block, PERCENTILES, Show, against, blocks, compared, micros, named, size, times};
use super::verdict::Finding;
use crate::html::{escape, page};

/// Returns the report as an HTML page.
pub(crate) fn html(report: &Report) -> Result<String, BenchError> {
    let mut body = String::new();
    head(report, &mut body);
    let mut section = String::new();
    for block in blocks(report) {
        if block.title != section {
            section.clone_from(&block.title);
            let _ = write!(body, "<h2>{}</h2>\n{}", escape(&capital(&section)), bare(&block));
        }
        put(report, &block, &mut body)?;
    }
    how(report, &mut body);
    Ok(page(
        "doorbell beside its peers",
        &body,
        report.schema,
        &report.json(),
    ))
}

/// Writes the result.
fn head(report: &Report, body: &mut String) {
    let model = report.host.cpu_model.as_deref().unwrap_or("unknown processor");
    let peers: Vec<String> = report
        .peers
        .iter()
        .filter(|peer| peer.missing.is_none())
        .map(named)
        .collect();
    let _ = write!(
        body,
        "<h1>doorbell beside its peers</h1>\n<p class=\"soft\">doorbell {} beside {}; {}, cores {} and {}, one process on \
         each; {} rounds in turn</p>\n",
        escape(report.version),
        escape(&peers.join(", ")),
        escape(model),
        report.cores[0],
        report.cores[1],
        report.rounds
    );
    let judged: Vec<&Line> = report
        .results
        .iter()
        .filter(|line| line.ratio.is_some() && !line.ours)
        .collect();
    let count = |finding| judged.iter().filter(|line| line.ahead == Some(finding)).count();
    let cards = [
        ("ahead", count(Finding::Doorbell), "doorbell is ahead"),
        ("behind", count(Finding::Peer), "a peer is ahead"),
        ("open", count(Finding::Open), "open"),
    ];
    body.push_str("<div class=\"cards\">\n");
    for (class, count, words) in cards {
        let _ = writeln!(
            body,
            "<div class=\"card\" style=\"background:var(--{class})\"><b>{count}</b>{words}</div>"
        );
    }
    body.push_str("</div>\n<p>A comparison is of one size of one load with one peer. It is open where the rounds are on both \
                   sides of 1, or fewer than two could be compared.</p>\n");
    let behind: Vec<String> = table::summary(report).split_off(1);
    if !behind.is_empty() {
        list(body, "Where a peer is ahead", &behind);
    }
    let best: Vec<String> = report.best.iter().map(table::beside).collect();
    if !best.is_empty() {
        list(body, "Beside the best peer of each", &best);
    }
}

fn list(body: &mut String, title: &str, lines: &[String]) {
    let _ = writeln!(body, "<h3>{}</h3>\n<ul>", escape(title));
    for line in lines {
        let _ = writeln!(body, "<li>{}</li>", escape(line));
    }
    body.push_str("</ul>\n");
}

/// The bare exchange around a section's turns.
fn bare(block: &Block<'_>) -> String {
    let all: Vec<f64> = block.lines.iter().filter_map(|line| line.bare_ns).collect();
    doorbell_bench::stats::median(&all).map_or_else(String::new, |nanos| {
        format!(
            "<p class=\"soft\">A bare cache-line exchange between the cores took {nanos:.0} ns one way.</p>\n"
        )
    })
}

/// A picture, and its table under it.
fn put(report: &Report, block: &Block<'_>, body: &mut String) -> Result<(), BenchError> {
    let _ = writeln!(body, "<h3>{}</h3>", escape(&capital(&title(block))));
    if block.show == Show::Percentiles || sizes(block).len() > 1 {
        body.push_str(&figure(&drawn(report, block))?);
        body.push('\n');
    }
    body.push_str("<div class=\"wide\"><table>\n");
    match block.show {
        Show::Percentiles => percentiles(report, block, body),
        _ => by_size(report, block, body),
    }
    body.push_str("</table></div>\n");
    Ok(())
}

fn title(block: &Block<'_>) -> String {
    match (block.show, sizes(block).first()) {
        (Show::Percentiles, Some(bytes)) => format!("{}, {}", block.what, size(*bytes)),
        _ => block.what.to_owned(),
    }
}

fn sizes(block: &Block<'_>) -> Vec<u64> {
    let sizes: BTreeSet<u64> = block.lines.iter().map(|line| line.bytes).collect();
    sizes.into_iter().collect()
}

fn drawn(report: &Report, block: &Block<'_>) -> Figure {
    let curves = block.stacks().into_iter().map(|stack| {
        let lines = block.lines.iter().copied().filter(|line| line.stack == stack);
        let mut points: Vec<Point> = match block.show {
            Show::Percentiles => lines.flat_map(of_percentiles).collect(),
            show => lines.map(|line| of_size(line, show)).collect(),
        };
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Curve {
            name: stack.to_owned(),
            points,
            colour: number(report, stack),
            ours: block.lines.iter().any(|line| line.stack == stack && line.ours),
        }
    });
    Figure {
        title: format!("{}, {}", title(block), block.title),
        across: if block.show == Show::Percentiles {
            Across::Percentiles
        } else {
            Across::Sizes
        },
        up: match (block.show, block.kind) {
            (Show::Bytes, _) => Up::Bandwidth,
            (_, kind) if kind.is_latency() => Up::HalfRoundTrip,
            (Show::Hidden, _) => Up::Share,
            (_, Kind::Overlap) => Up::Time("time"),
            _ => Up::Rate,
        },
        // A stack without a point would be a line in the legend alone.
        curves: curves.filter(|curve| !curve.points.is_empty()).collect(),
    }
}

fn of_size(line: &Line, show: Show) -> Point {
    let by = if show == Show::Bytes {
        line.bytes as f64
    } else {
        1.0
    };
    let over = line.figure;
    let times = line.overlap_ns;
    let alone = match show {
        Show::Alone => times.map(|times| times.alone),
        Show::Computing => times.map(|times| times.computing),
        Show::Hidden => line.hidden,
        _ => None,
    };
    Point {
        x: line.bytes as f64,
        y: alone.unwrap_or(over.median * by),
        spread: alone.is_none().then_some([over.least * by, over.most * by]),
    }
}

fn of_percentiles(line: &Line) -> Vec<Point> {
    let of = &line.half_rtt_ns;
    let told = [
        (0.5, of.p50),
        (0.9, of.p90),
        (0.99, of.p99),
        (0.999, of.p999),
        (0.9999, of.p9999),
    ];
    let point = |(x, y): (f64, Option<f64>)| {
        Some(Point {
            x,
            y: y?,
            spread: None,
        })
    };
    told.into_iter().filter_map(point).collect()
}

/// The colour of a stack: the same on the whole page.
fn number(report: &Report, stack: &str) -> usize {
    report
        .stacks
        .iter()
        .position(|told| told.name == stack)
        .unwrap_or(0)
}

fn first_cell(report: &Report, stack: &str) -> String {
    let number = number(report, stack);
    let (colour, square) = (colour(number), if is_square(number) { " square" } else { "" });
    format!(
        "<td><span class=\"dot{square}\" style=\"background:{colour}\"></span>{}</td>",
        escape(stack)
    )
}

fn row_of(block: &Block<'_>, stack: &str) -> &'static str {
    if block.lines.iter().any(|line| line.stack == stack && line.ours) {
        "<tr class=\"ours\">"
    } else {
        "<tr>"
    }
}

fn by_size(report: &Report, block: &Block<'_>, body: &mut String) {
    let sizes = sizes(block);
    let heads: String = sizes
        .iter()
        .map(|bytes| format!("<th>{}</th>", size(*bytes)))
        .collect();
    let _ = writeln!(body, "<tr><th></th>{heads}</tr>");
    for stack in block.stacks() {
        let cells: String = sizes
            .iter()
            .map(|bytes| {
                block
                    .line(stack, *bytes)
                    .map_or_else(|| "<td>-</td>".to_owned(), |line| cell(block, line))
            })
            .collect();
        let _ = writeln!(
            body,
            "{}{}{cells}</tr>",
            row_of(block, stack),
            first_cell(report, stack)
        );
    }
}

fn cell(block: &Block<'_>, line: &Line) -> String {
    // Our own stacks beside each other are no verdict.
    let verdict = match line.ahead.filter(|_| !line.ours) {
        Some(Finding::Doorbell) => "ahead",
        Some(Finding::Peer) => "behind",
        Some(Finding::Open) => "open",
        None => "",
    };
    let leads = line.peer_leads() && block.show.is_compared();
    let class = if leads {
        format!("{verdict} leads")
    } else {
        verdict.to_owned()
    };
    let ratio = line.ratio.filter(|_| block.show.is_compared());
    let mut small = ratio.map_or_else(String::new, |ratio| format!("<small>{}</small>", compared(ratio)));
    if let Some(share) = line.against_lossless.filter(|_| block.show.is_compared()) {
        let _ = write!(small, "<small>{}</small>", against(line.kind, share));
    }
    format!(
        "<td class=\"{class}\">{}{small}</td>",
        escape(&block.figure(line))
    )
}

fn percentiles(report: &Report, block: &Block<'_>, body: &mut String) {
    let heads: String = PERCENTILES
        .iter()
        .map(|(head, _)| format!("<th>{head}</th>"))
        .collect();
    let _ = writeln!(body, "<tr><th></th>{heads}<th>× p50</th></tr>");
    for line in &block.lines {
        let cells: String = PERCENTILES
            .iter()
            .map(|(_, of)| format!("<td>{}</td>", micros(of(line))))
            .collect();
        let ratio = line
            .ratio_p50
            .map_or_else(|| "-".to_owned(), |ratio| format!("×{}", times(ratio.median)));
        let row = row_of(block, &line.stack);
        let _ = writeln!(
            body,
            "{row}{}{cells}<td>{ratio}</td></tr>",
            first_cell(report, &line.stack)
        );
    }
}

/// Writes how it was measured, and what was not.
fn how(report: &Report, body: &mut String) {
    let turns = report.turns;
    let host = &report.host;
    let _ = write!(
        body,
        "<h2>How it was measured</h2>\n<p>Cells in bold are those in which a peer leads by the median of the rounds. Rows with a name in \
         bold are doorbell's own, also those of other programs over its libfabric provider; they are no peers. Every stack ran as processes of its own, one on each core, turn by turn in {} rounds \
         that each began with another one; {} s for each size (losses, and what they are compared with: 1 s at least), after a warm-up; {} messages under way in rows with a window. \
         Half round trips are means of every exchange of a turn. A turn counts when the bare cache-line exchange was in the same band \
         before and after it{}: {} did, {} of them despite other work; {} were repeated because the cores moved and {} because \
         other work took them; {} failed. × is how many times as good doorbell is in the same round and band (time over time, rate over rate): the \
         median, the least and the most. A dash stands for what a peer does not report, or has too few samples of. Lines show medians \
         of the rounds, bars the least and the most.</p>\n",
        report.rounds,
        report.seconds,
        report.window,
        if report.real_time {
            "; all ran at real-time priority, before other programs"
        } else {
            ", and other work took less than a tenth of the cores, or did not leave them in three tries"
        },
        turns.counted,
        turns.despite,
        turns.moved,
        turns.others,
        turns.failed
    );
    let stacks: Vec<String> = report
        .stacks
        .iter()
        .map(|told| format!("{}: {}", told.name, told.how))
        .collect();
    list(body, "Stacks", &stacks);
    let mut machine = vec![format!(
        "{}, Linux {}, {} cores online",
        host.cpu_model.as_deref().unwrap_or("unknown processor"),
        host.kernel.as_deref().unwrap_or("unknown"),
        host.cores_online
    )];
    machine.extend(report.doubts.iter().map(|doubt| format!("doubt: {doubt}")));
    list(body, "Machine", &machine);
    let left: Vec<String> = report
        .skipped
        .iter()
        .map(|skipped| {
            format!(
                "{}{}: {}",
                if skipped.failed { "failed: " } else { "" },
                skipped.what,
                skipped.why
            )
        })
        .collect();
    if !left.is_empty() {
        list(body, "Left out", &left);
    }
}

/// A text with a capital letter in front.
pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::super::report::samples;
    use super::*;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let page = html(&samples::report()).unwrap();
        // Latencies, their percentiles, messages and bytes.
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
        assert!(page.contains("UCX &lt;&amp;&gt;") && !page.contains("UCX <&>"));
        assert!(page.contains("UCX &lt;&amp;&gt; is ahead: shared memory, latency, 64 KiB"));
        // In bold where the peer leads: the large message by latency, messages and bytes.
        assert_eq!(page.matches("<td class=\"behind leads\">").count(), 3);
        assert!(page.contains("apt-get install mpich") && page.ends_with("</html>\n"));
    }

    #[test]
    fn a_stack_has_one_colour_on_the_whole_page() {
        let report = samples::report();
        let colours: Vec<usize> = blocks(&report)
            .iter()
            .map(|block| drawn(&report, block))
            .filter_map(|figure| {
                figure
                    .curves
                    .iter()
                    .find(|curve| !curve.ours)
                    .map(|curve| curve.colour)
            })
            .collect();
        assert_eq!(colours, [1; 4]);
    }

    #[test]
    fn a_report_without_results_is_a_page_too() {
        let mut report = samples::report();
        report.results.clear();
        assert!(html(&report).unwrap().contains("How it was measured"));
    }
}
