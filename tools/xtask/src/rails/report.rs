//! The results: messages, the longest stall, the times of return, and the link that flapped, beside their
//! bounds.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::EXCHANGES;
use super::trouble::{Done, FLAPPING, Kind};
use super::watch::{Sample, Watch};

/// The name and version of the JSON.
const SCHEMA: &str = "doorbell.rails/1";
/// The bound of detection: silence here with life elsewhere.
const DETECTION: Duration = Duration::from_secs(1);
/// A stall may take three times that.
const STALL: Duration = Duration::from_secs(3);
/// A link that is whole again carries its share after at most this time.
const RETURN: Duration = Duration::from_secs(5);
/// A rail carries its share when it carries half of what is its part, over this time.
const WINDOW: Duration = Duration::from_millis(250);
/// Times that a way may come up while its link flaps.
const FLAPS: u64 = 1;

/// A link that was whole again, and its way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Return {
    link: usize,
    kind: Kind,
    /// From the end of the trouble until both sides used the way, in seconds; `None`: the next trouble, or
    /// the end of the part, came before.
    up_s: Option<f64>,
    /// Until it carried its share of a stream.
    share_s: Option<f64>,
    /// How long it was left alone.
    quiet_s: f64,
}

/// One part of the run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Phase {
    name: &'static str,
    flapping: bool,
    /// How it failed, as it was reported.
    failure: Option<String>,
    messages: u64,
    bytes: u64,
    lost: u64,
    duplicated: u64,
    misordered: u64,
    corrupt: u64,
    longest_stall_s: f64,
    troubles: Vec<Done>,
    /// Ways given up and taken back, by both sides together.
    ways_down: u64,
    ways_returned: u64,
    returns: Vec<Return>,
    /// Times that the way of the link that flaps came up while it flapped, at both sides together.
    ups_while_flapping: u64,
    /// Every change of a way's state that was seen: when, at which side, of which link, to what.
    changes: Vec<(f64, usize, usize, u64)>,
    /// Samples of the counter files.
    samples: usize,
}

impl Phase {
    pub(super) fn new(
        name: &'static str,
        flapping: bool,
        report: &Value,
        failure: Option<String>,
        troubles: Vec<Done>,
        watch: &Watch,
    ) -> Self {
        let verified = |what: &str| {
            let found = report.pointer(&format!("/results/0/verified/{what}"));
            found.and_then(Value::as_u64).unwrap_or(0)
        };
        let size = report
            .pointer("/results/0/bytes")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        let samples = &watch.samples;
        let last = samples.last();
        Self {
            name,
            flapping,
            failure,
            messages: verified("messages"),
            bytes: verified("messages") * size,
            lost: verified("lost"),
            duplicated: verified("duplicated"),
            misordered: verified("misordered"),
            corrupt: verified("corrupt"),
            longest_stall_s: verified("longest_gap_ns") as f64 / 1e9,
            ways_down: last.map_or(0, |last| last.downs),
            ways_returned: last.map_or(0, |last| last.returns),
            returns: returns(samples, &troubles, size >= 1 << 20),
            ups_while_flapping: if flapping { ups(samples, &troubles) } else { 0 },
            changes: changes(samples),
            samples: samples.len(),
            troubles,
        }
    }

    /// Returns the longest times of return: up, and with the share.
    fn slowest(&self) -> [Option<f64>; 2] {
        let most = |of: fn(&Return) -> Option<f64>| self.returns.iter().filter_map(of).reduce(f64::max);
        [most(|one| one.up_s), most(|one| one.share_s)]
    }

    /// Links that were left alone for long enough and did not return, or did not carry.
    fn late(&self) -> usize {
        let bound = RETURN.as_secs_f64();
        let streams = self.returns.iter().any(|one| one.share_s.is_some());
        let late = |one: &&Return| {
            let came = if streams { one.share_s } else { one.up_s };
            one.quiet_s > bound && came.is_none_or(|came| came > bound)
        };
        self.returns.iter().filter(late).count()
    }
}

/// Returns what became of each link after each of its troubles.
fn returns(samples: &[Sample], troubles: &[Done], streams: bool) -> Vec<Return> {
    let end = samples.last().map_or(Duration::ZERO, |last| last.at);
    let one = |trouble: &Done| {
        let after = |other: &&Done| other.link == trouble.link && other.from > trouble.from;
        let until = troubles.iter().filter(after).map(|other| other.from).min();
        let until = until.unwrap_or(end).min(end);
        let broke =
            |sample: &&Sample| sample.at >= trouble.from && sample.at < until && !sample.is_up(trouble.link);
        // A short one may have passed without the way being given up.
        let fell = samples.iter().filter(broke).count() > 0;
        let quiet = until.checked_sub(trouble.to)?;
        let last_down = samples.iter().rfind(broke).map(|sample| sample.at);
        let up = samples
            .iter()
            .find(|sample| last_down.is_some_and(|down| sample.at > down) && sample.at < until)
            .map(|sample| sample.at.max(trouble.to));
        let share = up
            .filter(|_| streams)
            .and_then(|up| carries(samples, trouble.link, up, until));
        let since = |at: Duration| at.saturating_sub(trouble.to).as_secs_f64();
        fell.then(|| Return {
            link: trouble.link,
            kind: trouble.kind,
            up_s: up.map(since),
            share_s: share.map(since),
            quiet_s: quiet.as_secs_f64(),
        })
    };
    troubles.iter().filter_map(one).collect()
}

fn changes(samples: &[Sample]) -> Vec<(f64, usize, usize, u64)> {
    let mut all = Vec::new();
    for pair in samples.windows(2) {
        for side in 0..2 {
            for (link, state) in pair[1].states[side].iter().enumerate() {
                if *state != pair[0].states[side][link] {
                    all.push((pair[1].at.as_secs_f64(), side, link, *state));
                }
            }
        }
    }
    all
}

/// Returns when a path had carried half of its part for a while, after `from`.
fn carries(samples: &[Sample], link: usize, from: Duration, until: Duration) -> Option<Duration> {
    let first = samples.partition_point(|sample| sample.at < from);
    for (at, begin) in samples.iter().enumerate().skip(first) {
        let end = samples[at..]
            .iter()
            .find(|sample| sample.at >= begin.at + WINDOW)?;
        if end.at > until {
            return None;
        }
        let carried = |link: usize| end.bytes[link].saturating_sub(begin.bytes[link]);
        let all: u64 = (0..end.bytes.len()).map(carried).sum();
        let paths = (0..end.bytes.len()).filter(|&link| end.is_up(link)).count() as u64;
        if all > 0 && carried(link) * 2 * paths.max(1) >= all {
            return Some(end.at);
        }
    }
    None
}

/// Times that the way of the link that flaps came up between the first trouble and the last.
fn ups(samples: &[Sample], troubles: &[Done]) -> u64 {
    let (Some(first), Some(last)) = (troubles.first(), troubles.last()) else {
        return 0;
    };
    let during: Vec<_> = samples
        .iter()
        .filter(|sample| sample.at >= first.from && sample.at <= last.to)
        .collect();
    let came_up = |side: usize| {
        let up = |sample: &Sample| sample.states[side][FLAPPING] < 2;
        during
            .windows(2)
            .filter(|pair| !up(pair[0]) && up(pair[1]))
            .count() as u64
    };
    came_up(0) + came_up(1)
}

/// One figure beside its bound.
#[derive(Debug, Serialize)]
struct Judged {
    part: &'static str,
    what: &'static str,
    measured: String,
    bound: String,
    met: bool,
}

/// The whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema: &'static str,
    seed: u64,
    detection_bound_s: f64,
    phases: Vec<Phase>,
    judged: Vec<Judged>,
}

impl Report {
    pub(super) fn new(seed: u64, bytes: u64, messages: u64, phases: Vec<Phase>) -> Self {
        let judged = phases
            .iter()
            .flat_map(|phase| judge(phase, bytes, messages))
            .collect();
        Self {
            schema: SCHEMA,
            seed,
            detection_bound_s: DETECTION.as_secs_f64(),
            phases,
            judged,
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.judged.iter().all(|row| row.met)
    }

    pub(super) fn json(&self) -> String {
        // Strings and numbers only: writing them into memory cannot fail.
        let mut text = serde_json::to_string_pretty(self).expect("a report is plain data");
        text.push('\n');
        text
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "seed {}; two hosts, three links; the bound of detection is {:.0} s\n",
            self.seed, self.detection_bound_s
        );
        for phase in &self.phases {
            let _ = writeln!(
                text,
                "\n{}: {} messages, {:.2} GB, {} troubles; ways given up {} times and taken back {} times",
                phase.name,
                phase.messages,
                phase.bytes as f64 / 1e9,
                phase.troubles.len(),
                phase.ways_down,
                phase.ways_returned,
            );
            if let Some(failure) = &phase.failure {
                let _ = writeln!(text, "  FAILED {failure}");
            }
            for one in &phase.returns {
                let seconds =
                    |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |s| format!("{s:.2} s"));
                let _ = writeln!(
                    text,
                    "  v{} {:<28} up after {:>7}, its share after {:>7}, left alone for {:.1} s",
                    one.link,
                    one.kind.as_str(),
                    seconds(one.up_s),
                    seconds(one.share_s),
                    one.quiet_s
                );
            }
        }
        let _ = writeln!(
            text,
            "\n{:<16} {:<34} {:>22} {:>14}  verdict",
            "part", "what", "measured", "bound"
        );
        for row in &self.judged {
            let verdict = if row.met { "met" } else { "MISSED" };
            let _ = writeln!(
                text,
                "{:<16} {:<34} {:>22} {:>14}  {verdict}",
                row.part, row.what, row.measured, row.bound
            );
        }
        text
    }
}

fn judge(phase: &Phase, bytes: u64, messages: u64) -> Vec<Judged> {
    let row = |what, measured: String, bound: String, met| Judged {
        part: phase.name,
        what,
        measured,
        bound,
        met,
    };
    let wrong = [phase.lost, phase.duplicated, phase.misordered, phase.corrupt];
    let mut rows = vec![row(
        "lost, doubled, misordered, corrupt",
        wrong.map(|count| count.to_string()).join(", "),
        "0, 0, 0, 0".to_owned(),
        phase.failure.is_none() && phase.messages > 0 && wrong == [0; 4],
    )];
    if phase.name == EXCHANGES {
        let met = phase.messages >= messages;
        rows.push(row(
            "messages",
            phase.messages.to_string(),
            format!("≥ {messages}"),
            met,
        ));
    } else if !phase.flapping {
        let met = phase.bytes >= bytes;
        rows.push(row("bytes", phase.bytes.to_string(), format!("≥ {bytes}"), met));
    }
    let stall = STALL.as_secs_f64();
    rows.push(row(
        "longest stall",
        format!("{:.3} s", phase.longest_stall_s),
        format!("≤ {stall:.0} s"),
        phase.longest_stall_s <= stall,
    ));
    if phase.flapping {
        rows.push(row(
            "ups of the way while it flapped",
            phase.ups_while_flapping.to_string(),
            format!("≤ {FLAPS}"),
            phase.ups_while_flapping <= FLAPS,
        ));
    }
    let [up, share] = phase.slowest();
    let slowest = share.or(up);
    rows.push(row(
        if share.is_some() {
            "slowest return with its share"
        } else {
            "slowest return"
        },
        slowest.map_or_else(|| "none".to_owned(), |slowest| format!("{slowest:.2} s")),
        format!("≤ {:.0} s", RETURN.as_secs_f64()),
        phase.late() == 0 && slowest.is_none_or(|slowest| slowest <= RETURN.as_secs_f64()),
    ));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a sample each 50 ms: the second way is down from 1 s to 3 s, and carries nothing before 4 s.
    fn samples() -> Vec<Sample> {
        let mut bytes = [0u64; 3];
        (0..200)
            .map(|n| {
                let at = Duration::from_millis(50 * n);
                let down = (1000..3000).contains(&at.as_millis());
                bytes[0] += 100;
                bytes[2] += 100;
                bytes[1] += u64::from(at.as_millis() < 1000 || at.as_millis() >= 4000) * 100;
                Sample {
                    at,
                    states: [vec![0, 2 * u64::from(down), 0], vec![0, 0, 0]],
                    bytes: bytes.to_vec(),
                    downs: 1,
                    returns: 1,
                }
            })
            .collect()
    }

    fn trouble(link: usize, from: u64, to: u64) -> Done {
        Done {
            link,
            kind: Kind::DownAtA,
            from: Duration::from_millis(from),
            to: Duration::from_millis(to),
        }
    }

    fn watch() -> Watch {
        let mut watch = Watch::new(3, [0, 0]);
        watch.samples = samples();
        watch
    }

    fn verified(lost: u64, gap: u64) -> Value {
        serde_json::json!({"results": [{"bytes": 1 << 20, "verified": {
            "messages": 2000, "lost": lost, "duplicated": 0, "misordered": 0, "corrupt": 0, "longest_gap_ns": gap}}]})
    }

    #[test]
    fn a_return_counts_from_the_end_of_the_trouble() {
        let phase = Phase::new(
            "stream",
            false,
            &verified(0, 1_000_000),
            None,
            vec![trouble(1, 950, 2000)],
            &watch(),
        );
        let [only] = &phase.returns[..] else {
            panic!("{phase:?}")
        };
        assert!((only.up_s.unwrap() - 1.0).abs() < 0.06, "{only:?}");
        let share = only.share_s.unwrap();
        assert!(share > 2.0 && share < 2.5, "{only:?}");
        let report = Report::new(7, 1 << 30, 0, vec![phase]);
        assert!(
            report.is_good() && report.table().contains("seed 7"),
            "{}",
            report.table()
        );
    }

    #[test]
    fn a_way_that_does_not_return_and_a_stall_are_missed_bounds() {
        let troubles = vec![trouble(1, 950, 1000), trouble(0, 5000, 5001)];
        let phase = |report: &Value| Phase::new("stream", false, report, None, troubles.clone(), &watch());
        assert_eq!(phase(&verified(0, 0)).returns.len(), 1, "the other never fell");
        for (report, what) in [
            (verified(1, 0), "lost"),
            (verified(0, 3_100_000_000), "longest stall"),
            (Value::Null, "lost"),
        ] {
            let report = Report::new(7, 0, 0, vec![phase(&report)]);
            let missed: Vec<_> = report.judged.iter().filter(|row| !row.met).collect();
            assert!(
                !report.is_good() && missed[0].what.starts_with(what),
                "{}",
                report.table()
            );
        }
        let mut never = watch();
        let stays = |sample: &mut Sample| sample.states[0][1] = 2 * u64::from(sample.at.as_millis() >= 1000);
        never.samples.iter_mut().for_each(stays);
        let phase = Phase::new("stream", false, &verified(0, 0), None, troubles, &never);
        assert!(!Report::new(7, 0, 0, vec![phase]).is_good());
    }

    #[test]
    fn ups_while_flapping_are_counted_at_both_sides() {
        let troubles = vec![trouble(FLAPPING, 900, 1100), trouble(FLAPPING, 3400, 3600)];
        assert_eq!(ups(&samples(), &troubles), 1);
        assert_eq!(ups(&samples(), &[trouble(FLAPPING, 900, 1100)]), 0);
    }
}
