//! The caveats of a report: its reasons to doubt a figure, one line each (`doubts` in the JSON).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Environment, RankRecord};
use crate::baseline::Band;
use crate::load::{LATE_NS, Row};

/// A reason to doubt the figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caveat {
    /// A stable word for scripts.
    pub code: String,
    /// The reason, in one sentence, with what would remove it where something would.
    pub text: String,
}

impl Caveat {
    fn new(code: &str, text: String) -> Self {
        Self {
            code: code.to_owned(),
            text,
        }
    }
}

/// A doubt where faults are injected: rails that break on request are not fit to be measured.
pub(crate) fn injected(faults: &str) -> Option<Caveat> {
    (!faults.is_empty()).then(|| {
        let text =
            format!("rails break on purpose here (fault.inject = {faults}): the figures are of a test");
        Caveat::new("fault-injected", text)
    })
}

/// Rails that broke meanwhile: each with the rank it leads to, and how often it did.
pub(crate) fn broken(rails: &[(String, u64)], rows: &[Row]) -> Option<Caveat> {
    if rails.is_empty() {
        return None;
    }
    let each: Vec<String> = rails
        .iter()
        .map(|(rail, times)| match times {
            1 => format!("{rail} broke once"),
            times => format!("{rail} broke {times} times"),
        })
        .collect();
    let longest = rows.iter().filter_map(|row| row.verified.as_ref());
    let longest = longest.map(|verified| verified.longest_gap_ns).max();
    let longest = longest.map_or_else(String::new, |gap| {
        format!(
            "; the longest time without a message was {:.2} s",
            gap as f64 / 1e9
        )
    });
    let text = format!(
        "{} while it was measured, and what that took is in the figures{longest}",
        each.join(", ")
    );
    Some(Caveat::new("rail-broke", text))
}

/// All doubts about the rows that were measured in this environment, the fixed ones first.
pub fn caveats(environment: &Environment, rows: &[Row]) -> Vec<Caveat> {
    let mut found = Vec::new();
    cores(environment, &mut found);
    machine(environment, &mut found);
    noise(environment, &mut found);
    reference(environment, rows, &mut found);
    clock(environment, rows, &mut found);
    open(rows, &mut found);
    found
}

/// Adds caveats about what open loops could not do.
fn open(rows: &[Row], found: &mut Vec<Caveat>) {
    for (row, open) in rows.iter().filter_map(|row| Some((row, row.open.as_ref()?))) {
        let (bytes, asked) = (row.bytes, crate::report::per_second(open.asked_per_second, "msg"));
        if !open.kept_up() {
            let own = open.late - open.held.min(open.late);
            let text = format!(
                "the generator could not keep up with {asked} of {bytes} B: {own} of {} messages left more than {} µs \
                 late by its own fault, up to {:.0} µs; latencies from the intended send include that delay",
                open.sent,
                LATE_NS / 1_000,
                open.latest_ns as f64 / 1e3
            );
            found.push(Caveat::new("generator", text));
        }
        if !open.sustained() {
            let answered = open.answered_per_second.unwrap_or(0.0);
            let unsent = match open.unsent {
                0 => String::new(),
                unsent => format!("; {unsent} messages never left and are in no figure"),
            };
            let text = format!(
                "{asked} of {bytes} B were requested and {} answered: the queue grows, and times from the intended send \
                 grow with the length of the run{unsent}",
                crate::report::per_second(answered, "msg")
            );
            found.push(Caveat::new("not-sustained", text));
        }
    }
}

fn cores(environment: &Environment, found: &mut Vec<Caveat>) {
    let used: Vec<Option<usize>> = environment.ranks.iter().map(|rank| rank.core).collect();
    if used.contains(&None) {
        found.push(Caveat::new(
            "not-bound",
            "ranks are not bound to cores and may be moved while they are measured".to_owned(),
        ));
    }
    let mut bound: Vec<usize> = used.into_iter().flatten().collect();
    bound.sort_unstable();
    let all = bound.len();
    bound.dedup();
    if bound.len() < all || environment.host.cores_online == 1 {
        found.push(Caveat::new(
            "shared-core",
            "two ranks share one core: every figure contains switches between processes".to_owned(),
        ));
    }
    moved(environment, found);
    let siblings = siblings(environment);
    if let Some((one, other)) = siblings {
        let text = format!(
            "cores {one} and {other} are hardware threads of one core: they share its units, and its nearest cache (choose \
             others with `--cores`)"
        );
        found.push(Caveat::new("sibling", text));
    }
    let open: Vec<usize> = bound
        .into_iter()
        .filter(|core| !environment.host.is_isolated(*core))
        .collect();
    if !open.is_empty() {
        found.push(Caveat::new(
            "no-isolation",
            format!(
                "cores {} are not isolated: other work runs there too (boot with isolcpus= and nohz_full=)",
                crate::pin::list(&open)
            ),
        ));
    }
    crowded(environment, found);
}

/// Progress threads that have no core of their own.
fn crowded(environment: &Environment, found: &mut Vec<Caveat>) {
    let shared = environment.ranks.iter().find_map(|rank| {
        let why = rank.shares.as_ref()?;
        Some(format!("; rank {}: {why}", rank.rank))
    });
    let is_on_core = environment.ranks.iter().any(|rank| {
        let others = environment
            .ranks
            .iter()
            .filter(|other| other.hostname == rank.hostname);
        rank.progress_core
            .is_some_and(|core| others.clone().any(|other| other.core == Some(core)))
    });
    if shared.is_some() || is_on_core {
        let why = shared.unwrap_or_default();
        found.push(Caveat::new(
            "crowded",
            format!(
                "a progress thread shares its core with a rank: dedicated mode needs two cores per rank \
                 (`doorbell run --cores-per-rank 2`){why}"
            ),
        ));
    }
    let sibling = environment.ranks.iter().find_map(|rank| {
        let (core, progress) = rank.core.zip(rank.progress_core)?;
        environment
            .host
            .are_siblings(core, progress)
            .then_some((core, progress))
    });
    if let Some((core, progress)) = sibling {
        let text = format!(
            "cores {core} and {progress} of one rank are hardware threads of one core: its progress \
             thread and its own share that core's units (progress.core = next takes a whole one)"
        );
        found.push(Caveat::new("sibling-progress", text));
    }
}

/// The cores of two ranks of this host that are hardware threads of one core.
fn siblings(environment: &Environment) -> Option<(usize, usize)> {
    let host = &environment.host;
    let here = environment.ranks.iter().filter(|rank| rank.hostname == host.name);
    let cores: Vec<usize> = here.filter_map(|rank| rank.core).collect();
    let mut pairs = cores
        .iter()
        .enumerate()
        .flat_map(|(at, one)| cores[at + 1..].iter().map(move |other| (*one, *other)));
    pairs.find(|(one, other)| host.are_siblings(*one, *other))
}

/// Ranks whose cores were changed while they were measured: what they were bound to is not where they ran.
fn moved(environment: &Environment, found: &mut Vec<Caveat>) {
    for rank in environment.ranks.iter().filter(|rank| !rank.moved.is_empty()) {
        let was = rank.core.map_or_else(
            || "was not bound".to_owned(),
            |core| format!("was bound to core {core}"),
        );
        let then: Vec<String> = rank
            .moved
            .iter()
            .take(MOVES_SHOWN)
            .map(|moved| {
                format!(
                    "{} {} from {:.1} s on",
                    if moved.cores.len() == 1 { "core" } else { "cores" },
                    crate::pin::list(&moved.cores),
                    moved.after_ns as f64 / 1e9
                )
            })
            .collect();
        let more = match rank.moved.len().saturating_sub(MOVES_SHOWN) {
            0 => String::new(),
            more => format!(", and {more} more times others"),
        };
        let text = format!(
            "the cores of rank {} were changed while it was measured (by `taskset` or a cpuset): it {was}, and was given {}{more}",
            rank.rank,
            then.join(", then ")
        );
        found.push(Caveat::new("cores-changed", text));
    }
    let shared = environment.ranks.iter().enumerate().find_map(|(at, one)| {
        let others = environment.ranks[at + 1..].iter();
        let mut same = others.filter(|other| other.hostname == one.hostname && other.core != one.core);
        same.find_map(|other| Some((one.rank, other.rank, met(one, other)?)))
    });
    if let Some((one, other, core)) = shared {
        let text = format!(
            "ranks {one} and {other} shared core {core} for a part of the time: those figures contain switches between processes"
        );
        found.push(Caveat::new("shared-core", text));
    }
}

/// Changes of cores that a doubt lists.
const MOVES_SHOWN: usize = 4;

/// The core on which two ranks that began on different ones had to be at the same time.
fn met(one: &RankRecord, other: &RankRecord) -> Option<usize> {
    let only = |rank: &RankRecord, after: u64| {
        let then = rank.moved.iter().rfind(|moved| moved.after_ns <= after);
        match then.map(|moved| &moved.cores[..]) {
            None => rank.core,
            Some([core]) => Some(*core),
            Some(_) => None,
        }
    };
    let mut times = one.moved.iter().chain(&other.moved).map(|moved| moved.after_ns);
    times.find_map(|after| only(one, after).filter(|core| only(other, after) == Some(*core)))
}

fn machine(environment: &Environment, found: &mut Vec<Caveat>) {
    let host = &environment.host;
    for (core, governor) in &host.governors {
        if governor != "performance" {
            found.push(Caveat::new(
                "governor",
                format!(
                    "core {core} runs under the governor `{governor}`, not `performance`: its frequency moves"
                ),
            ));
        }
    }
    if let Some(name) = &host.virtualised {
        let text = format!("this is a virtual machine ({name}): the host moves its cores and its time");
        found.push(Caveat::new("virtual", text));
        if host.governors.is_empty() {
            let text = "the frequency governor belongs to the host and cannot be seen from here".to_owned();
            found.push(Caveat::new("governor-unknown", text));
        }
    }
    // The measurement itself puts up to one task on each of its cores.
    let own = environment.ranks.len() as f64;
    if let Some(load) = host.load
        && load + own > host.cores_online as f64 + 0.5
    {
        found.push(Caveat::new(
            "load",
            format!(
                "other work ran when the measurement began (load average {load:.1} on {} cores)",
                host.cores_online
            ),
        ));
    }
}

fn noise(environment: &Environment, found: &mut Vec<Caveat>) {
    for rank in &environment.ranks {
        let (noise, number) = (rank.noise, rank.rank);
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let same = |other: &&RankRecord| other.hostname == rank.hostname && other.noise.throttled_periods > 0;
        let first = environment.ranks.iter().find(same);
        if first.is_some_and(|first| first.rank == number) {
            let text = format!(
                "the quota of processor time of rank {number}'s control group (cpu.max, `CPUQuota=`, `--cpus`) was used up in \
                 {} of {} periods, and its threads stood still for {:.2} s: raise it",
                noise.throttled_periods,
                noise.quota_periods,
                seconds(noise.throttled_ns)
            );
            found.push(Caveat::new("throttled", text));
        }
        if noise.steal_ticks > 0 {
            found.push(Caveat::new(
                "steal",
                format!(
                    "the hypervisor took {} ms from rank {number}'s core",
                    noise.steal_ticks * 10
                ),
            ));
        }
        if noise.involuntary_switches > 0 {
            let waited = match noise.waited_ns {
                0 => String::new(),
                nanos => format!(
                    ", and waited {:.3} s of {:.2} s for it",
                    seconds(nanos),
                    seconds(noise.wall_ns)
                ),
            };
            found.push(Caveat::new(
                "switches",
                format!(
                    "rank {number} was pushed off its core {} times{waited}",
                    noise.involuntary_switches
                ),
            ));
        }
        let still = noise.stood_still();
        // A thread of its own makes the progress in dedicated mode, and this one sleeps meanwhile.
        let works = environment.mode != "dedicated";
        if works && still > STOOD_STILL && still.as_secs_f64() > STOOD_STILL_SHARE * seconds(noise.wall_ns) {
            let text = format!(
                "rank {number} neither ran nor waited for a core during {:.2} s of {:.2} s: it was stopped (SIGSTOP, a \
                 debugger, a frozen control group), or slept because nothing came",
                still.as_secs_f64(),
                seconds(noise.wall_ns)
            );
            found.push(Caveat::new("stood-still", text));
        }
    }
}

/// A rank that stalled for longer than this …
const STOOD_STILL: Duration = Duration::from_millis(100);
/// … and for more than this share of the time did not measure meanwhile.
const STOOD_STILL_SHARE: f64 = 0.01;

fn reference(environment: &Environment, rows: &[Row], found: &mut Vec<Caveat>) {
    if let Some(reason) = &environment.no_reference {
        found.push(Caveat::new(
            "no-reference",
            format!("the bare exchange was not measured: {reason}"),
        ));
    }
    let bands: Vec<Band> = rows.iter().filter_map(|row| row.reference.band).collect();
    // One core is not far from itself: its ranks wait for each other's time slice.
    if bands.contains(&Band::Far) && !found.iter().any(|caveat| caveat.code == "shared-core") {
        let slowest = rows
            .iter()
            .filter_map(|row| row.reference.cache_line_half_rtt_ns)
            .fold(0.0, f64::max);
        found.push(Caveat::new(
            "far",
            format!("the two cores are far apart (a bare exchange takes up to {slowest:.0} ns): small messages suffer"),
        ));
    }
    if bands.contains(&Band::Sibling) && siblings(environment).is_none() {
        found.push(Caveat::new(
            "sibling",
            "the two cores answer each other as hardware threads of one core do: they share its units, and its nearest \
             cache"
                .to_owned(),
        ));
    }
    let seen: Vec<_> = Band::ALL
        .into_iter()
        .filter(|band| bands.contains(band))
        .collect();
    if seen.len() > 1 {
        let names: Vec<_> = seen.iter().map(|band| band.name()).collect();
        found.push(Caveat::new(
            "bands",
            format!(
                "the cores moved between {}: compare rows of one band only",
                names.join(" and ")
            ),
        ));
    }
    let unsteady = rows.iter().filter(|row| row.reference.unsteady).count();
    if unsteady > 0 {
        found.push(Caveat::new(
            "unsteady",
            format!(
                "{unsteady} rows hold fewer samples than requested: the band would not stay (marked `~`)"
            ),
        ));
    }
    let hiccups = || rows.iter().filter_map(|row| row.hiccups);
    let stalls: u64 = hiccups().map(|hiccups| hiccups.count).sum();
    if stalls > 0 {
        let longest = hiccups().map(|hiccups| hiccups.max_ns).max().unwrap_or(0);
        let dropped = rows.iter().filter_map(|row| row.reference.dropped_max_ns);
        let dropped = dropped.reduce(f64::max).filter(|nanos| *nanos > longest as f64);
        let dropped = dropped.map_or_else(String::new, |nanos| {
            format!(
                " (and for {:.0} µs while the cores moved, which is in no figure)",
                nanos / 1e3
            )
        });
        found.push(Caveat::new(
            "hiccups",
            format!(
                "{stalls} exchanges stalled for more than 10 µs, the longest for {:.0} µs{dropped}",
                longest as f64 / 1e3
            ),
        ));
    }
    let cold = rows
        .iter()
        .filter(|row| row.warm_up.blocks > 0 && !row.warm_up.steady)
        .count();
    if cold > 0 {
        found.push(Caveat::new(
            "cold",
            format!(
                "{} still getting faster when the warm-up reached its limit: the first figures may be too slow",
                match cold {
                    1 => "one size was".to_owned(),
                    cold => format!("{cold} sizes were"),
                }
            ),
        ));
    }
}

fn clock(environment: &Environment, rows: &[Row], found: &mut Vec<Caveat>) {
    let clock = &environment.clock;
    let closed = rows.iter().filter(|row| row.open.is_none());
    let least = closed
        .filter_map(|row| row.rtt_ns.min)
        .fold(f64::INFINITY, f64::min);
    if clock.read_ns > least {
        found.push(Caveat::new(
            "clock-cost",
            format!(
                "a reading of the clock costs {:.0} ns, and the shortest round trip takes {least:.0} ns: the readings make \
                 exchanges longer",
                clock.read_ns
            ),
        ));
    }
    if clock.source == "monotonic" {
        found.push(Caveat::new(
            "clock",
            format!("the time stamp counter is not used: {}", clock.how),
        ));
    }
    if let Some(ppm) = clock.drift_ppm
        && ppm.abs() > 50.0
    {
        found.push(Caveat::new(
            "drift",
            format!("the clock drifted by {ppm:+.0} ppm against the system's raw clock during the run"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Host, Moved, Noise, RankRecord};
    use super::*;
    use crate::load::{Hiccups, Reference};

    fn rank(rank: u32, core: Option<usize>) -> RankRecord {
        RankRecord {
            rank,
            core,
            ..RankRecord::default()
        }
    }

    fn quiet() -> Environment {
        Environment {
            host: Host {
                cores_online: 4,
                cores_allowed: vec![2, 3],
                isolated: "2-3".to_owned(),
                load: Some(0.2),
                governors: [(2, "performance".to_owned()), (3, "performance".to_owned())].into(),
                ..Host::default()
            },
            ranks: vec![rank(0, Some(2)), rank(1, Some(3))],
            ..Environment::default()
        }
    }

    /// A rank gets these cores after two seconds.
    fn to(cores: &[usize]) -> Vec<Moved> {
        vec![Moved {
            after_ns: 2_000_000_000,
            cores: cores.to_vec(),
        }]
    }

    fn codes(environment: &Environment, rows: &[Row]) -> Vec<String> {
        caveats(environment, rows)
            .into_iter()
            .map(|doubt| doubt.code)
            .collect()
    }

    #[test]
    fn faults_on_purpose_are_the_first_caveat() {
        assert_eq!(injected(""), None);
        let doubt = injected("shm:7").unwrap();
        assert!(
            doubt.code == "fault-injected" && doubt.text.contains("shm:7"),
            "{doubt:?}"
        );
    }

    #[test]
    fn a_tuned_quiet_machine_leaves_none() {
        let row = Row {
            reference: Reference {
                band: Some(Band::Near),
                ..Reference::default()
            },
            ..Row::default()
        };
        assert_eq!(codes(&quiet(), &[row]), [] as [&str; 0]);
    }

    #[test]
    fn each_disturbance_is_named_once() {
        type Change = fn(&mut Environment);
        let cases: [(&str, Change); 18] = [
            ("not-bound", |e| e.ranks[1].core = None),
            ("shared-core", |e| e.ranks[1].core = Some(2)),
            ("no-isolation", |e| e.host.isolated = "2".to_owned()),
            ("crowded", |e| e.ranks[0].progress_core = Some(3)),
            ("crowded", |e| e.ranks[0].shares = Some("it was moved".to_owned())),
            ("sibling-progress", |e| {
                e.ranks[0].progress_core = Some(6);
                drop(e.host.threads.insert(2, "2,6".to_owned()));
            }),
            ("governor", |e| {
                drop(e.host.governors.insert(3, "powersave".to_owned()))
            }),
            ("virtual", |e| e.host.virtualised = Some("KVM".to_owned())),
            ("load", |e| e.host.load = Some(3.0)),
            ("steal", |e| {
                e.ranks[0].noise.steal_ticks = 2;
            }),
            ("switches", |e| {
                e.ranks[1].noise.involuntary_switches = 9;
            }),
            ("throttled", |e| {
                e.ranks[0].noise.quota_periods = 41;
                e.ranks[0].noise.throttled_periods = 35;
            }),
            ("stood-still", |e| {
                e.ranks[0].noise = Noise {
                    wall_ns: 4_000_000_000,
                    ran_ns: 1_900_000_000,
                    waited_ns: 100_000_000,
                    ..Noise::default()
                };
            }),
            ("cores-changed", |e| e.ranks[1].moved = to(&[9])),
            ("sibling", |e| drop(e.host.threads.insert(2, "2-3".to_owned()))),
            ("no-reference", |e| e.no_reference = Some("two hosts".to_owned())),
            ("clock", |e| e.clock.source = "monotonic".to_owned()),
            ("drift", |e| e.clock.drift_ppm = Some(-80.0)),
        ];
        for (code, change) in cases {
            let mut environment = quiet();
            change(&mut environment);
            assert_eq!(codes(&environment, &[]), [code]);
        }
    }

    #[test]
    fn what_changed_in_mid_run_is_reported_with_its_time() {
        let mut environment = quiet();
        environment.ranks[1].moved = to(&[2]);
        let found = caveats(&environment, &[]);
        assert_eq!(codes(&environment, &[]), ["cores-changed", "shared-core"]);
        let text = &found[0].text;
        assert!(
            text.contains("bound to core 3") && text.contains("core 2 from 2.0 s on"),
            "{text}"
        );
        assert!(
            found[1].text.contains("ranks 0 and 1 shared core 2"),
            "{}",
            found[1].text
        );
        // On another host, it is another core.
        environment.ranks[1].hostname = "other".to_owned();
        assert_eq!(codes(&environment, &[]), ["cores-changed"]);
        environment.ranks[1].moved = (0..9).flat_map(|n| to(&[n])).collect();
        assert!(
            caveats(&environment, &[])[0]
                .text
                .contains("and 5 more times others")
        );
    }

    #[test]
    fn a_clock_that_costs_more_than_a_round_trip_is_doubted() {
        let mut environment = quiet();
        environment.clock.read_ns = 300.0;
        let mut row = Row::default();
        row.rtt_ns.min = Some(200.0);
        assert_eq!(codes(&environment, &[row.clone()]), ["clock-cost"]);
        row.rtt_ns.min = Some(400.0);
        assert_eq!(codes(&environment, &[row]), [] as [&str; 0]);
    }

    #[test]
    fn rows_bring_doubts_too() {
        let row = |band, unsteady, count| Row {
            reference: Reference {
                band: Some(band),
                cache_line_half_rtt_ns: Some(260.0),
                unsteady,
                ..Reference::default()
            },
            hiccups: Some(Hiccups {
                count,
                max_ns: 55_000,
            }),
            ..Row::default()
        };
        let rows = [row(Band::Near, false, 0), row(Band::Far, true, 3)];
        assert_eq!(codes(&quiet(), &rows), ["far", "bands", "unsteady", "hiccups"]);
        assert!(caveats(&quiet(), &rows)[3].text.contains("55 µs"));
    }

    #[test]
    fn sizes_whose_warm_up_was_cut_are_counted() {
        let mut row = Row::default();
        row.warm_up.blocks = 60;
        let text = |rows: &[Row]| caveats(&quiet(), rows).remove(0).text;
        assert!(text(&[row.clone()]).starts_with("one size was still getting faster"));
        assert!(text(&[row.clone(), row]).starts_with("2 sizes were still getting faster"));
    }

    #[test]
    fn rails_that_broke_are_named_with_what_it_cost() {
        let row = |gap| Row {
            verified: Some(crate::verify::Verified {
                longest_gap_ns: gap,
                ..crate::verify::Verified::default()
            }),
            ..Row::default()
        };
        let rails = [
            ("udp:v1 to rank 1".to_owned(), 2),
            ("shm to rank 1".to_owned(), 1),
        ];
        let doubt = broken(&rails, &[row(1_000), row(4_070_000_000)]).unwrap();
        assert_eq!(doubt.code, "rail-broke");
        for part in [
            "udp:v1 to rank 1 broke 2 times",
            "shm to rank 1 broke once",
            "4.07 s",
        ] {
            assert!(doubt.text.contains(part), "{part}: {}", doubt.text);
        }
        assert!(
            !broken(&rails, &[Row::default()])
                .unwrap()
                .text
                .contains("longest")
        );
        assert_eq!(broken(&[], &[row(1)]), None);
    }
}
