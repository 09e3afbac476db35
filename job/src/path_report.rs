//! Formats a rail's report about a path: for the notice of a long wait, and for `doorbell why`.

use std::time::Duration;

use doorbell_fabric::message::RailReport;

/// Formats the facts of a report in one line; `None` for a rail that keeps none.
pub fn facts(report: &RailReport) -> Option<String> {
    let mut words = Vec::new();
    match report.link {
        Some(true) => words.push("link up".to_owned()),
        Some(false) => words.push("link down".to_owned()),
        None => {}
    }
    let ago = |what: &str, time: Option<Duration>| time.map(|time| format!("{what} {} ago", short(time)));
    words.extend(ago("last frame from it", report.heard_ago));
    words.extend(ago("last acknowledgement", report.acked_ago));
    if report.unacknowledged > 0 {
        let oldest = report
            .oldest
            .map_or_else(String::new, |number| format!(", the oldest has number {number}"));
        let waiting = report
            .waiting
            .map_or_else(String::new, |time| format!(" and waits for {}", short(time)));
        words.push(format!(
            "{} unacknowledged{oldest}{waiting}",
            counted(report.unacknowledged, "frame")
        ));
    }
    if report.retries > 0 {
        words.push(format!(
            "{} in a row",
            counted(u64::from(report.retries), "time-out")
        ));
    }
    if let Some(ns) = round_trip(report) {
        words.push(format!("round trip {}", short(Duration::from_nanos(ns))));
    }
    if let Some(length) = report.at_once {
        words.push(format!(
            "messages of up to {length} B are sent at once, and longer ones read"
        ));
    }
    if let Some(count) = report.impossible.filter(|count| *count > 0) {
        words.push(format!(
            "{} came under a peer's name that no peer can have sent: if frames are forged, \
             DOORBELL_BTL_FRAME_MAC=on at all ranks keeps them out",
            counted(count, "frame")
        ));
    }
    (!words.is_empty()).then(|| words.join(", "))
}

/// Returns the measured round trip in nanoseconds, if it is plausible. A rail that reads its clock once per
/// look measures almost nothing for an answer that arrives before the next look: that is no round trip.
pub fn round_trip(report: &RailReport) -> Option<u64> {
    const LEAST: u64 = 1_000;
    report.round_trip_ns.filter(|ns| *ns >= LEAST)
}

fn counted(count: u64, what: &str) -> String {
    let more = if count == 1 { "" } else { "s" };
    format!("{count} {what}{more}")
}

/// Formats a time with about three digits.
pub fn short(time: Duration) -> String {
    match time.as_nanos() {
        ns if ns < 1_000 => format!("{ns} ns"),
        ns if ns < 1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        ns if ns < 1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        ns => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_known_is_told_and_nothing_else() {
        assert_eq!(facts(&RailReport::default()), None);
        let all = RailReport {
            link: Some(true),
            heard_ago: Some(Duration::from_millis(3200)),
            acked_ago: Some(Duration::from_millis(3100)),
            waiting: Some(Duration::from_millis(3050)),
            oldest: Some(4711),
            unacknowledged: 12,
            retries: 5,
            round_trip_ns: Some(40_500),
            impossible: Some(0),
            at_once: Some(12_288),
        };
        assert_eq!(
            facts(&all).unwrap(),
            "link up, last frame from it 3.2 s ago, last acknowledgement 3.1 s ago, 12 frames unacknowledged, the oldest has \
             number 4711 and waits for 3.0 s, 5 time-outs in a row, round trip 40.5 µs, messages of up to \
             12288 B are sent at once, and longer ones read"
        );
        let forged = RailReport {
            impossible: Some(7),
            ..RailReport::default()
        };
        assert_eq!(
            facts(&forged).unwrap(),
            "7 frames came under a peer's name that no peer can have sent: if frames are forged, \
             DOORBELL_BTL_FRAME_MAC=on at all ranks keeps them out"
        );
        let quiet = RailReport {
            link: Some(false),
            ..RailReport::default()
        };
        assert_eq!(facts(&quiet).as_deref(), Some("link down"));
    }

    #[test]
    fn times_have_a_unit_that_fits() {
        let shown = [999, 1_500, 2_500_000, 61_000_000_000].map(|ns| short(Duration::from_nanos(ns)));
        assert_eq!(shown, ["999 ns", "1.5 µs", "2.5 ms", "61.0 s"]);
    }
}
