//! The comparison as text: one block for each setting, band and kind of load, a stack on each line, sizes
//! beside each other; under a peer's figures how many times as good doorbell is, in bold where the peer
//! leads.

use std::collections::BTreeSet;
use std::fmt::Write;

use doorbell_bench::baseline::Band;
use doorbell_bench::report::wrap;
use doorbell_bench::size::Size;

use super::best::{Best, Kept};
use super::load::Kind;
use super::report::{Line, Report};
use super::verdict::{Finding, Over};

/// The least width of a stack's name, and the width of a figure.
const NAME: usize = 20;
const CELL: usize = 18;

/// How a ratio stands out in which a peer leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bold {
    /// By the terminal's bold face.
    Terminal,
    /// Between two stars, in a text that no terminal shows.
    Stars,
}

impl Bold {
    /// A right-aligned cell that stands out.
    fn cell(self, cell: &str) -> String {
        match self {
            Self::Terminal => format!("\x1b[1m{cell:>CELL$}\x1b[0m"),
            Self::Stars => format!("{:>CELL$}", format!("*{cell}*")),
        }
    }

    /// What marks such a ratio, in words.
    fn words(self) -> &'static str {
        match self {
            Self::Terminal => "in bold",
            Self::Stars => "between stars",
        }
    }
}

/// The whole comparison.
pub(crate) fn table(report: &Report, width: usize, bold: Bold) -> String {
    let mut text = String::new();
    head(report, width, &mut text);
    for block in blocks(report) {
        block.put(width, bold, &mut text);
    }
    foot(report, width, bold, &mut text);
    text
}

/// Rows that belong together.
#[derive(Debug)]
pub(crate) struct Block<'r> {
    pub(crate) title: String,
    /// What the figures are.
    pub(crate) what: &'static str,
    pub(crate) show: Show,
    pub(crate) kind: Kind,
    pub(crate) lines: Vec<&'r Line>,
}

/// Which of a row's figures a block shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// The one that is compared.
    Figure,
    /// Bytes per second.
    Bytes,
    /// The percentiles of one size.
    Percentiles,
    /// Of overlap: the receive alone.
    Alone,
    /// Of overlap: the computation alone.
    Computing,
    /// Of overlap: how much of the shorter of them is hidden.
    Hidden,
}

impl Show {
    /// Whether what is shown is what is compared.
    pub(crate) fn is_compared(self) -> bool {
        matches!(self, Self::Figure | Self::Bytes)
    }
}

/// The blocks of a report, in the order in which they were measured.
pub(crate) fn blocks(report: &Report) -> Vec<Block<'_>> {
    let mut heads: Vec<(String, Kind, Band)> = Vec::new();
    for line in &report.results {
        let head = (line.place.name(), line.kind, line.band);
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    let mut blocks = Vec::new();
    for (setting, kind, band) in heads {
        let same = |line: &&Line| line.place.name() == setting && (line.kind, line.band) == (kind, band);
        let lines: Vec<&Line> = report.results.iter().filter(same).collect();
        let shown: &[(&'static str, Show)] = match kind {
            Kind::Latency => &[
                ("half round trip, mean, µs", Show::Figure),
                ("half round trip by percentile, µs", Show::Percentiles),
            ],
            Kind::Put => &[("puts: half round trip, mean, µs", Show::Figure)],
            Kind::Am => &[("active messages: half round trip, mean, µs", Show::Figure)],
            Kind::Stream => &[
                ("messages per second, non-blocking, in a window", Show::Figure),
                ("bytes per second, non-blocking, in a window", Show::Bytes),
            ],
            Kind::Blocking => &[("messages per second, blocking calls", Show::Figure)],
            Kind::Overlap => &[
                ("a receive and the same computation together, µs", Show::Figure),
                ("the receive alone, µs", Show::Alone),
                ("the computation alone, µs", Show::Computing),
                ("share of the shorter of them that is hidden", Show::Hidden),
            ],
        };
        for (what, show) in shown {
            let lines = match show {
                Show::Percentiles => smallest_with_percentiles(&lines),
                _ => lines.clone(),
            };
            if !lines.is_empty() {
                blocks.push(Block {
                    title: format!("{setting}, cores {}", band.name()),
                    what,
                    show: *show,
                    kind,
                    lines,
                });
            }
        }
    }
    blocks
}

/// The rows of the size whose percentiles are shown: 64 bytes, or the smallest.
fn smallest_with_percentiles<'r>(lines: &[&'r Line]) -> Vec<&'r Line> {
    const USUAL: u64 = 64;
    let told = || {
        lines
            .iter()
            .filter(|line| line.half_rtt_ns.p50.is_some())
            .map(|line| line.bytes)
    };
    let chosen = told().find(|bytes| *bytes == USUAL).or(told().min());
    lines
        .iter()
        .copied()
        .filter(|line| Some(line.bytes) == chosen)
        .collect()
}

impl Block<'_> {
    fn put(&self, width: usize, bold: Bold, text: &mut String) {
        let sizes: Vec<u64> = self
            .lines
            .iter()
            .map(|line| line.bytes)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        if self.show == Show::Percentiles {
            let _ = writeln!(
                text,
                "\n{}: {}, {}",
                self.title,
                self.what,
                size(sizes.first().copied().unwrap_or(0))
            );
            self.put_percentiles(text);
            return;
        }
        let _ = writeln!(text, "\n{}: {}", self.title, self.what);
        let name = self.name_width();
        let beside = (width.saturating_sub(name) / CELL).max(1);
        for sizes in sizes.chunks(beside) {
            let heads: String = sizes
                .iter()
                .map(|bytes| format!("{:>CELL$}", size(*bytes)))
                .collect();
            let _ = writeln!(text, "{:name$}{heads}", "");
            for stack in self.stacks() {
                self.put_stack(stack, sizes, bold, text);
            }
        }
    }

    /// The width of the names: that of the longest one, and a space.
    fn name_width(&self) -> usize {
        let longest = self.lines.iter().map(|line| line.stack.chars().count()).max();
        longest.map_or(NAME, |longest| NAME.max(longest + 1))
    }

    /// The stacks in their order.
    pub(crate) fn stacks(&self) -> Vec<&str> {
        let mut stacks: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !stacks.contains(&line.stack.as_str()) {
                stacks.push(&line.stack);
            }
        }
        stacks
    }

    pub(crate) fn line(&self, stack: &str, bytes: u64) -> Option<&Line> {
        self.lines
            .iter()
            .copied()
            .find(|line| line.stack == stack && line.bytes == bytes)
    }

    /// The figure of a row as this block shows it.
    pub(crate) fn figure(&self, line: &Line) -> String {
        match (self.show, self.kind) {
            (Show::Bytes, _) => line
                .bytes_per_second
                .map_or_else(|| "-".to_owned(), |rate| short(rate, "B/s")),
            (Show::Alone, _) => micros(line.overlap_ns.map(|times| times.alone)),
            (Show::Computing, _) => micros(line.overlap_ns.map(|times| times.computing)),
            (Show::Hidden, _) => line
                .hidden
                .map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            (_, Kind::Latency | Kind::Overlap | Kind::Put | Kind::Am) => micros(Some(line.figure.median)),
            _ => short(line.figure.median, "/s"),
        }
    }

    fn put_stack(&self, stack: &str, sizes: &[u64], bold: Bold, text: &mut String) {
        let name = self.name_width();
        let cell = |of: &dyn Fn(&Line) -> String| -> String {
            let cells = sizes
                .iter()
                .map(|bytes| self.line(stack, *bytes).map_or_else(|| "-".to_owned(), of));
            cells.map(|cell| format!("{cell:>CELL$}")).collect()
        };
        let _ = writeln!(text, "{stack:name$}{}", cell(&|line| self.figure(line)));
        let any = |has: fn(&Line) -> bool| sizes.iter().filter_map(|bytes| self.line(stack, *bytes)).any(has);
        if any(|line| line.ratio.is_some()) && self.show.is_compared() {
            let ratios: String = sizes
                .iter()
                .map(|bytes| ratio(self.line(stack, *bytes), bold))
                .collect();
            let _ = writeln!(text, "{:name$}{}", "", ratios.trim_end());
        }
        if any(|line| line.against_lossless.is_some()) && self.show == Show::Figure {
            let lossless = cell(&|line| {
                line.against_lossless
                    .map_or_else(String::new, |share| against(self.kind, share))
            });
            let _ = writeln!(text, "{:name$}{}", "  to lossless", lossless.trim_end());
        }
    }

    fn put_percentiles(&self, text: &mut String) {
        const WIDTH: usize = 9;
        let name = self.name_width();
        let heads: String = PERCENTILES
            .iter()
            .map(|(head, _)| format!("{head:>WIDTH$}"))
            .collect();
        let _ = writeln!(text, "{:name$}{heads}", "");
        for line in &self.lines {
            let cells: String = PERCENTILES
                .iter()
                .map(|(_, of)| format!("{:>WIDTH$}", micros(of(line))))
                .collect();
            let _ = writeln!(text, "{:name$}{cells}", line.stack);
        }
    }
}

type Pick = fn(&Line) -> Option<f64>;

/// The columns of a block of percentiles.
pub(crate) const PERCENTILES: [(&str, Pick); 6] = [
    ("mean", |line| line.half_rtt_ns.mean),
    ("p50", |line| line.half_rtt_ns.p50),
    ("p90", |line| line.half_rtt_ns.p90),
    ("p99", |line| line.half_rtt_ns.p99),
    ("p99.9", |line| line.half_rtt_ns.p999),
    ("p99.99", |line| line.half_rtt_ns.p9999),
];

/// A cell of the row under a stack's figures.
fn ratio(line: Option<&Line>, bold: Bold) -> String {
    let Some((line, ratio)) = line.and_then(|line| Some((line, line.ratio?))) else {
        let told = if line.is_some() { "" } else { "-" };
        return format!("{told:>CELL$}");
    };
    let cell = compared(ratio);
    if line.peer_leads() {
        bold.cell(&cell)
    } else {
        format!("{cell:>CELL$}")
    }
}

/// `×1.51 1.4–1.6`: the median, the least and the most.
pub(crate) fn compared(ratio: Over) -> String {
    let (least, most) = (times(ratio.least), times(ratio.most));
    format!("×{} {least}–{most}", times(ratio.median))
}

/// A ratio with about three digits.
pub(crate) fn times(ratio: f64) -> String {
    match ratio.abs() {
        below if below < 9.95 => format!("{ratio:.2}"),
        below if below < 99.5 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

/// Returns what losses make of a figure.
pub(crate) fn against(kind: Kind, share: f64) -> String {
    match kind {
        Kind::Latency => format!("{} × as long", times(share)),
        _ => format!("{:.0} % left", share * 100.0),
    }
}

pub(crate) fn micros(nanos: Option<f64>) -> String {
    let micros = nanos.map(|nanos| nanos / 1e3);
    micros.map_or_else(
        || "-".to_owned(),
        |micros| match micros {
            below if below < 9.995 => format!("{below:.3}"),
            below if below < 99.95 => format!("{below:.2}"),
            below if below < 999.5 => format!("{below:.1}"),
            above => format!("{above:.0}"),
        },
    )
}

/// A rate with about three digits.
pub(crate) fn short(value: f64, unit: &str) -> String {
    let steps = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (by, prefix) = steps
        .into_iter()
        .find(|(by, _)| value >= *by)
        .unwrap_or((1.0, ""));
    format!("{} {prefix}{unit}", times(value / by))
}

pub(crate) fn size(bytes: u64) -> String {
    let size = usize::try_from(bytes).ok().and_then(Size::new);
    size.map_or_else(|| format!("{bytes} B"), |size| size.to_string())
}

fn paragraph(text: &mut String, width: usize, label: &str, words: &str) {
    const LABEL: usize = 8;
    wrap::paragraph(text, label, words, LABEL, width);
}

fn head(report: &Report, width: usize, text: &mut String) {
    let [one, two] = report.cores;
    let model = report.host.cpu_model.as_deref().unwrap_or("unknown processor");
    paragraph(
        text,
        width,
        "cores",
        &format!("{one} and {two}, one process on each ({model})"),
    );
    let peers: Vec<String> = report
        .peers
        .iter()
        .filter(|peer| peer.missing.is_none())
        .map(named)
        .collect();
    paragraph(
        text,
        width,
        "peers",
        &format!("doorbell {} beside {}", report.version, peers.join(", ")),
    );
    let turns = report.turns;
    paragraph(
        text,
        width,
        "turns",
        &format!(
            "{} rounds of {} s for each size{}, {} messages in a window; {} turns count, {} were repeated because the cores \
             moved, {} because other work took them, {} failed",
            report.rounds,
            report.seconds,
            if report.real_time {
                ", at real-time priority"
            } else {
                ""
            },
            report.window,
            turns.counted,
            turns.moved,
            turns.others,
            turns.failed
        ),
    );
    for doubt in &report.doubts {
        paragraph(text, width, "doubt", doubt);
    }
}

/// A peer with its version.
pub(crate) fn named(peer: &super::find::Peer) -> String {
    match &peer.version {
        // The name may have it already.
        Some(version) if !peer.name.contains(&**version) => format!("{} {version}", peer.name),
        _ => peer.name.clone(),
    }
}

fn foot(report: &Report, width: usize, bold: Bold, text: &mut String) {
    text.push('\n');
    paragraph(
        text,
        width,
        "×",
        &format!(
            "how many times as good doorbell is (time over time, rate over rate): the median of the rounds, the least and the \
             most; above 1 doorbell is ahead; {} a peer leads by the median, and under `verdict` stands where it does in every \
             round. Figures are medians of the rounds; `-` stands for what a peer does not report, or has too few samples of",
            bold.words()
        ),
    );
    for told in &report.stacks {
        paragraph(text, width, "how", &format!("{}: {}", told.name, told.how));
    }
    for skipped in &report.skipped {
        let label = if skipped.failed { "failed" } else { "without" };
        paragraph(text, width, label, &format!("{}: {}", skipped.what, skipped.why));
    }
    for best in &report.best {
        paragraph(text, width, "best", &beside(best));
    }
    for words in summary(report) {
        paragraph(text, width, "verdict", &words);
    }
}

/// doorbell beside the best peer of a comparison.
pub(crate) fn beside(best: &Best) -> String {
    let verdict = match (best.promise, best.verdict) {
        (Some(promise), Some(verdict)) => {
            let verdict = match verdict {
                Kept::Met => "met",
                Kept::Missed => "MISSED",
                Kept::Open => "open",
            };
            format!("promised {}: {verdict}", promise.words())
        }
        _ => "nothing is promised".to_owned(),
    };
    format!(
        "{}, {}, {}, cores {}: {} beside {}, {verdict}",
        best.place.name(),
        best.kind.name(),
        size(best.bytes),
        best.band.name(),
        compared(best.ratio),
        best.peer
    )
}

/// Returns which stack is ahead, in sentences.
pub(crate) fn summary(report: &Report) -> Vec<String> {
    let judged: Vec<&Line> = report
        .results
        .iter()
        .filter(|line| line.ratio.is_some() && !line.ours)
        .collect();
    let count = |finding| judged.iter().filter(|line| line.ahead == Some(finding)).count();
    let mut words = vec![format!(
        "of {} comparisons, doorbell is ahead in {}, a peer in {}, and {} are open (rounds on both sides of 1, or fewer than two)",
        judged.len(),
        count(Finding::Doorbell),
        count(Finding::Peer),
        count(Finding::Open)
    )];
    for line in report.behind() {
        let Some(ratio) = line.ratio else { continue };
        words.push(format!(
            "{} is ahead: {}, {}, {}, cores {} ({})",
            line.stack,
            line.place.name(),
            line.kind.name(),
            size(line.bytes),
            line.band.name(),
            compared(ratio)
        ));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_the_leader_what_is_missing_and_what_is_not_compared() {
        let report = super::super::report::samples::report();
        let text = table(&report, 100, Bold::Stars);
        for words in [
            "shared memory, cores far: half round trip, mean, µs",
            " ×2.00 1.80–2.10",
            " *×0.70 0.63–0.73*",
            "between stars a peer leads",
            "5.00 M/s",
            "6.55 GB/s",
            "without MPICH: mpiexec.hydra is not on the PATH: apt-get install mpich",
            "UCX <&> is ahead: shared memory, latency, 64 KiB, cores far (×0.70 0.63–0.73)",
            "how     doorbell: as it is",
            "best    shared memory, latency, 8 B, cores far: ×2.00 1.80–2.10 beside UCX <&>, promised above 1:",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let told = text
            .lines()
            .filter(|line| line.starts_with("UCX <&>") && line.ends_with("-        -"));
        assert_eq!(told.count(), 1, "{text}");
        // Sizes that do not fit beside each other go below each other.
        let narrow = table(&report, 40, Bold::Stars);
        assert!(narrow.lines().count() > text.lines().count());
    }

    #[test]
    fn a_terminal_shows_in_bold_where_a_peer_leads_and_columns_stay_below_their_heads() {
        let mut report = super::super::report::samples::report();
        let text = table(&report, 100, Bold::Terminal);
        assert!(text.contains("\x1b[1m   ×0.70 0.63–0.73\x1b[0m"), "{text}");
        assert_eq!(text.matches("\x1b[1m").count(), text.matches("\x1b[0m").count());
        for line in &mut report.results {
            if line.stack != "doorbell" {
                line.stack = "a peer with a long name".to_owned();
            }
        }
        let text = table(&report, 100, Bold::Stars);
        let end = |head: &str| {
            let line = text.lines().find(|line| line.contains(head)).unwrap();
            let at = line.find(head).unwrap();
            line[..at].chars().count() + head.chars().count()
        };
        assert_eq!(end("64 KiB"), end("*×0.70 0.63–0.73*"));
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [0.067, 12.0, 456.7, 9.999].map(times),
            ["0.07", "12.0", "457", "10.0"]
        );
        assert_eq!(micros(Some(67.0)), "0.067");
        assert_eq!(micros(Some(2_340_000.0)), "2340");
        assert_eq!(micros(None), "-");
        assert_eq!(short(29_412_345.0, "/s"), "29.4 M/s");
        assert_eq!(size(65_536), "64 KiB");
    }

    #[test]
    fn comparisons_are_shown_with_their_spread() {
        let over = Over {
            median: 1.5,
            least: 1.25,
            most: 20.0,
            count: 3,
        };
        assert_eq!(compared(over), "×1.50 1.25–20.0");
        assert_eq!(against(Kind::Latency, 2.0), "2.00 × as long");
        assert_eq!(against(Kind::Stream, 0.8), "80 % left");
    }
}
