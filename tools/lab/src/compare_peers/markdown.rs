//! The comparison as Markdown, as docs/performance.md has it: a table for each setting, band and kind of
//! load, doorbell's own figures in its first row and ratios below them, in bold where a peer leads.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::html::capital;
use super::report::{Line, Report};
use super::table::{Block, Show, blocks, micros, named, size, summary, times};
use super::verdict::Over;

/// Percentiles that have a table of their own.
const PERCENTILES: [(&str, Pick); 3] = [
    ("p50", |line| line.half_rtt_ns.p50),
    ("p99", |line| line.half_rtt_ns.p99),
    ("p99.9", |line| line.half_rtt_ns.p999),
];

type Pick = fn(&Line) -> Option<f64>;

/// Returns the report as Markdown.
pub(crate) fn markdown(report: &Report) -> String {
    let mut text = String::new();
    head(report, &mut text);
    for block in blocks(report) {
        match block.show {
            // The ratios are those of the messages.
            Show::Bytes => {}
            Show::Percentiles => percentiles(report, &block, &mut text),
            _ => by_size(&block, &mut text),
        }
    }
    foot(report, &mut text);
    text
}

fn head(report: &Report, text: &mut String) {
    let here = report.peers.iter().filter(|peer| peer.missing.is_none());
    let peers: Vec<String> = here.map(named).collect();
    let [one, two] = report.cores;
    let _ = writeln!(
        text,
        "doorbell {} beside {}; {}, cores {one} and {two}; {} rounds of {} s for each size{}, {} messages in a window. `×` is the \
         peer's time over doorbell's, and doorbell's rate over the peer's: the median of the rounds (the least to the most); \
         above 1, doorbell is ahead, and in bold the peer leads.",
        report.version,
        peers.join(", "),
        report.host.cpu_model.as_deref().unwrap_or("unknown processor"),
        report.rounds,
        report.seconds,
        if report.real_time {
            ", at real-time priority"
        } else {
            ""
        },
        report.window
    );
    for doubt in &report.doubts {
        let _ = writeln!(text, "\nDoubt: {doubt}.");
    }
}

fn foot(report: &Report, text: &mut String) {
    text.push('\n');
    for words in summary(report) {
        let _ = writeln!(text, "* {}", escape(&words));
    }
    for skipped in &report.skipped {
        let label = if skipped.failed { "Failed" } else { "Without" };
        let _ = writeln!(
            text,
            "* {label}: {}: {}",
            escape(&skipped.what),
            escape(&skipped.why)
        );
    }
}

/// A row for each stack, a column for each size.
fn by_size(block: &Block<'_>, text: &mut String) {
    let sizes = sizes(&block.lines);
    title(block, block.what, text);
    heads(&sizes, text);
    for stack in block.stacks() {
        let cells = sizes.iter().map(|bytes| cell(block, block.line(stack, *bytes)));
        row(stack, cells, text);
    }
}

/// A table for each percentile, of all the sizes that have one.
fn percentiles(report: &Report, block: &Block<'_>, text: &mut String) {
    let Some(first) = block.lines.first() else { return };
    let same = |line: &&Line| (line.place, line.kind, line.band) == (first.place, first.kind, first.band);
    let lines: Vec<&Line> = report.results.iter().filter(same).collect();
    for (name, of) in PERCENTILES {
        let with: Vec<&Line> = lines.iter().copied().filter(|line| of(line).is_some()).collect();
        if with.is_empty() {
            continue;
        }
        let sizes = sizes(&with);
        title(block, &format!("half round trip, {name}, µs"), text);
        heads(&sizes, text);
        let mut stacks: Vec<&str> = Vec::new();
        for line in &with {
            if !stacks.contains(&&*line.stack) {
                stacks.push(&line.stack);
            }
        }
        for stack in stacks {
            let of_stack = |bytes: &u64| {
                let mut mine = with.iter();
                mine.find(|line| line.stack == stack && line.bytes == *bytes)
            };
            let cells = sizes
                .iter()
                .map(|bytes| of_stack(bytes).map_or_else(|| "–".to_owned(), |line| micros(of(line))));
            row(stack, cells, text);
        }
    }
}

fn title(block: &Block<'_>, what: &str, text: &mut String) {
    let _ = writeln!(text, "\n{}: {what}\n", capital(&block.title));
}

fn heads(sizes: &[u64], text: &mut String) {
    let names: Vec<String> = sizes.iter().map(|bytes| size(*bytes)).collect();
    let _ = writeln!(text, "| | {} |", names.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(sizes.len() + 1));
}

fn row(stack: &str, cells: impl Iterator<Item = String>, text: &mut String) {
    let cells: Vec<String> = cells.collect();
    let _ = writeln!(text, "| {} | {} |", escape(stack), cells.join(" | "));
}

/// A ratio where there is one, else the figure itself: nothing that was measured is left out.
fn cell(block: &Block<'_>, line: Option<&Line>) -> String {
    let Some(line) = line else {
        return "–".to_owned();
    };
    match line.ratio.filter(|_| block.show.is_compared()) {
        None => block.figure(line),
        Some(ratio) if line.peer_leads() => format!("**{}**", spread(ratio)),
        Some(ratio) => spread(ratio),
    }
}

/// Writes the median with the least and the most: `×1.51 (1.40–1.60)`.
fn spread(ratio: Over) -> String {
    let [median, least, most] = [ratio.median, ratio.least, ratio.most].map(times);
    if ratio.count < 2 {
        return format!("×{median}");
    }
    format!("×{median} ({least}–{most})")
}

fn sizes(lines: &[&Line]) -> Vec<u64> {
    let sizes: BTreeSet<u64> = lines.iter().map(|line| line.bytes).collect();
    sizes.into_iter().collect()
}

/// Characters that Markdown takes for its own.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '|' | '*' => {
                out.push('\\');
                out.push(c);
            }
            '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::samples;
    use super::*;

    #[test]
    fn tables_have_figures_of_doorbell_and_ratios_of_peers_in_bold_where_they_lead() {
        let text = markdown(&samples::report());
        for line in [
            "Shared memory, cores far: half round trip, mean, µs",
            "| | 8 B | 64 KiB |",
            "|---|---|---|",
            "| doorbell | 0.240 | 10.00 |",
            "| UCX &lt;&&gt; | ×2.00 (1.80–2.10) | **×0.70 (0.63–0.73)** |",
            "Shared memory, cores far: half round trip, p99, µs",
            "| doorbell | 0.720 | 30.00 |",
            "* Without: MPICH: mpiexec.hydra is not on the PATH: apt-get install mpich",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("UCX 1.13.1") && text.contains("Doubt: the cores are not isolated."));
    }

    #[test]
    fn what_has_no_ratio_is_there_as_a_figure() {
        let mut report = samples::report();
        for line in &mut report.results {
            line.ratio = None;
        }
        let text = markdown(&report);
        assert!(text.contains("| UCX &lt;&&gt; | 0.480 | 7.000 |"), "{text}");
    }
}
