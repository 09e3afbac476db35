//! From samples to verdicts, row by row; a row that is not judged has the reason.

use doorbell_bench::stats::median;

use super::base::Base;
use super::one_host::{Inside, Loopback, Shm};
use super::rows::{self, LOSSES};
use super::two_hosts::{Kind, LAYERS, Over};
use super::{BAD_BASE_NS, DEDICATED_CORES, Samples};
use crate::budgets::args::Part;
use crate::probes::{Bound, Budget, Judged};

/// The parts that are wanted: those that are named, or all.
#[derive(Debug)]
pub(super) struct Parts(Vec<Part>);

impl Parts {
    pub(super) fn of(named: &[Part]) -> Self {
        Self(named.to_vec())
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.0.is_empty() || self.0.contains(&part)
    }

    /// Returns why rows of a part are not judged, when it is not wanted.
    fn lacks(&self, part: Part) -> Option<String> {
        (!self.has(part)).then(|| format!("left out, as `--only {}` was not named", part.name()))
    }
}

/// Returns the verdicts of all rows.
pub(super) fn judge(samples: &Samples, parts: &Parts, cores: &[usize]) -> Vec<Judged> {
    let machine = Machine::of(cores);
    let mut all = of_shm(&samples.shm, &samples.inside, parts, &machine);
    all.push(of_loopback(&samples.loopback, parts, &machine));
    all.extend(of_network(samples, parts));
    all.extend(of_loss(samples, parts));
    all.extend(of_inside(&samples.inside, parts, &machine));
    all.push(rows::IDLE.judge(&samples.idle, parts.lacks(Part::Memory)));
    let elsewhere = rows::ELSEWHERE.iter();
    all.extend(elsewhere.map(|(budget, why)| budget.judge(&[], Some((*why).to_owned()))));
    all
}

/// What the machine lacks.
struct Machine {
    /// A second core.
    alone: Option<String>,
    /// Cores for dedicated mode.
    few: Option<String>,
}

impl Machine {
    fn of(cores: &[usize]) -> Self {
        let few = (cores.len() < DEDICATED_CORES).then(|| {
            format!(
                "two ranks in dedicated mode need {DEDICATED_CORES} cores, and {} can be used here",
                cores.len()
            )
        });
        Self {
            alone: (cores.len() < 2).then(|| "there is one core only".to_owned()),
            few,
        }
    }
}

fn of_shm(shm: &Shm, inside: &Inside, parts: &Parts, machine: &Machine) -> Vec<Judged> {
    let left = || parts.lacks(Part::Shm);
    let alone = || left().or_else(|| machine.alone.clone());
    let band = |values: &[f64], band: &str| {
        let mut other = format!("the two cores were never {band} in this run");
        if shm.bad_bases > 0 {
            let bad = shm.bad_bases;
            other.push_str(&format!(
                " ({bad} repetitions had a bare exchange above {BAD_BASE_NS} ns)"
            ));
        }
        if shm.unsteady > 0 {
            let unsteady = shm.unsteady;
            other.push_str(&format!(
                " ({unsteady} measurements were left out, as the cores moved under them)"
            ));
        }
        alone().or_else(|| values.is_empty().then_some(other))
    };
    let bad = shm.bad_bases + shm.unsteady;
    let none = |values: &[f64]| {
        let why = "no repetition had a bare exchange that it can be compared with";
        values.is_empty().then(|| why.to_owned())
    };
    let beside = |why: Option<String>| why.or_else(|| Some(rows::BESIDE_PEERS.to_owned()));
    let mailbox = parts.lacks(Part::Process).or_else(|| machine.alone.clone());
    let mailbox = mailbox.or_else(|| {
        let bad = inside.mailbox.is_empty() && inside.bad_bases > 0;
        bad.then(|| {
            let times = inside.bad_bases;
            format!("the bare exchange was above {BAD_BASE_NS} ns, {times} times")
        })
    });
    vec![
        rows::NEAR.judge(&shm.near, band(&shm.near, "near")).without(bad),
        rows::FAR.judge(&shm.far, band(&shm.far, "far")).without(bad),
        rows::SIBLING
            .judge(&shm.sibling, band(&shm.sibling, "threads of one core"))
            .without(bad),
        rows::PUT
            .judge(&shm.put, alone().or_else(|| none(&shm.put)))
            .without(bad),
        rows::REQUEST
            .judge(&shm.request, alone().or_else(|| none(&shm.request)))
            .without(bad),
        rows::REQUEST_RATE.judge(&shm.request_rate, alone()),
        rows::DEDICATED.judge(&shm.dedicated, left().or_else(|| machine.few.clone())),
        rows::MAILBOX
            .judge(&inside.mailbox, mailbox)
            .without(inside.bad_bases),
        rows::RATE_NEAR.judge(&shm.rate_near, beside(band(&shm.rate_near, "near"))),
        rows::RATE_FAR.judge(&shm.rate_far, beside(band(&shm.rate_far, "far"))),
        rows::RATE_POSTED.judge(&shm.rate_posted, beside(alone())),
        rows::BANDWIDTH.judge(&shm.bandwidth, alone()),
        rows::BANDWIDTH_REGIONS.judge(&shm.bandwidth_regions, alone()),
    ]
}

fn of_loopback(loopback: &Loopback, parts: &Parts, machine: &Machine) -> Judged {
    let why = parts.lacks(Part::Loopback).or_else(|| loopback.lacks.clone());
    let why = why.or_else(|| machine.alone.clone()).or_else(|| {
        let never = loopback.half.is_empty();
        never.then(|| Base::never(loopback.bad_bases))
    });
    rows::UDP.judge(&loopback.half, why).without(loopback.bad_bases)
}

fn of_network(samples: &Samples, parts: &Parts) -> Vec<Judged> {
    let missing = parts.lacks(Part::Network).or_else(|| samples.no_link.clone());
    let [udp, xdp] = Kind::ALL.map(|kind| samples.hosts.over(kind));
    let half = |budget: &Budget, over: &Over| {
        let never = || {
            let reason = over.lacks.clone().or_else(|| over.no_base.clone());
            reason.unwrap_or_else(|| Base::never(over.bad_bases))
        };
        let why = missing.clone();
        let why = why.or_else(|| over.half.is_empty().then(never));
        budget.judge(&over.half, why).without(over.bad_bases)
    };
    let bandwidth = |budget: &Budget, over: &Over| {
        let why = missing.clone().or_else(|| unusable(&over.bandwidth, over));
        budget.judge(&over.bandwidth, why)
    };
    let layers = |budgets: &[Budget; LAYERS.len()], over: &Over| {
        let each = budgets.iter().zip(&over.layers);
        each.map(|(budget, values)| {
            let why = missing.clone().or_else(|| unusable(values, over));
            budget.judge(values, why).without(over.unsteady_layers)
        })
        .collect::<Vec<_>>()
    };
    let mut rows = vec![half(&rows::NET_UDP, udp), half(&rows::NET_XDP, xdp)];
    let [of_udp, of_xdp] = &rows::NET_LAYERS;
    rows.extend(layers(of_udp, udp));
    rows.extend(layers(of_xdp, xdp));
    rows.extend([
        better(
            &rows::NET_RATE,
            missing.clone(),
            [&udp.rate, &xdp.rate],
            [udp, xdp],
        ),
        bandwidth(&rows::NET_BANDWIDTH_UDP, udp),
        bandwidth(&rows::NET_BANDWIDTH_XDP, xdp),
    ]);
    rows
}

fn of_loss(samples: &Samples, parts: &Parts) -> Vec<Judged> {
    let missing = parts.lacks(Part::Loss).or_else(|| samples.no_loss.clone());
    let [udp, xdp] = Kind::ALL.map(|kind| samples.hosts.over(kind));
    let mean = |budget: &Budget, over: &Over, loss: usize| {
        let values = &over.mean[loss];
        let why = missing.clone().or_else(|| unusable(values, over));
        budget.judge(values, why).without(over.unsteady)
    };
    let goodput = |loss: usize| {
        let values: [&[f64]; Kind::ALL.len()] = [&udp.goodput[loss], &xdp.goodput[loss]];
        better(&rows::GOODPUT[loss], missing.clone(), values, [udp, xdp])
    };
    let means = |loss: usize| {
        [
            mean(&rows::MEAN_UDP[loss], udp, loss),
            mean(&rows::MEAN_XDP[loss], xdp, loss),
        ]
    };
    let losses = 0..LOSSES.len();
    losses
        .clone()
        .map(goodput)
        .chain(losses.flat_map(means))
        .collect()
}

/// Returns why a rail has no value.
fn unusable(values: &[f64], over: &Over) -> Option<String> {
    let moved = || {
        let times = over.unsteady;
        (times > 0).then(|| format!("what it does without losses did not stay as it was, {times} times"))
    };
    let why = || over.lacks.clone().or_else(moved);
    if values.is_empty() { why() } else { None }
}

/// Returns the verdict about the better rail; `how` describes what both have in common.
fn better(
    budget: &Budget,
    missing: Option<String>,
    values: [&[f64]; Kind::ALL.len()],
    over: [&Over; Kind::ALL.len()],
) -> Judged {
    let told = |kind: Kind| median(values[kind as usize]).map(|value| (kind, value));
    let smaller = budget.bound == Bound::AtMost;
    let best = Kind::ALL.into_iter().filter_map(told).reduce(|best, other| {
        let ahead = if smaller {
            other.1 < best.1
        } else {
            other.1 > best.1
        };
        if ahead { other } else { best }
    });
    let Some((best, _)) = best else {
        let reasons = Kind::ALL
            .map(|kind| unusable(&[], over[kind as usize]).map(|why| format!("{}: {why}", kind.name())));
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        let none = (!reasons.is_empty()).then(|| reasons.join("; "));
        return budget.judge(&[], missing.or(none));
    };
    let mut judged = budget.judge(values[best as usize], missing);
    let figures: Vec<String> = Kind::ALL
        .into_iter()
        .map(|kind| match told(kind) {
            Some((_, value)) => format!("{} {}", kind.name(), budget.number(value)),
            None => format!("{} none", kind.name()),
        })
        .collect();
    judged.how.push_str(&format!(" ({})", figures.join(", ")));
    judged
}

fn of_inside(inside: &Inside, parts: &Parts, machine: &Machine) -> Vec<Judged> {
    let left = || parts.lacks(Part::Process);
    vec![
        rows::PML.judge(&inside.pml, left()),
        rows::STACK.judge(&inside.stack, left()),
        rows::STACK_POSTED.judge(&inside.stack_posted, left()),
        rows::HOTEL.judge(&inside.hotel, left()),
        rows::HOTEL_TICK.judge(&inside.hotel_tick, left()),
        rows::RING.judge(&inside.ring, left()),
        rows::RING_SLICE.judge(&inside.ring_slice, left()),
        rows::POSTED.judge(&inside.posted, left()),
        rows::UNEXPECTED.judge(&inside.unexpected, left()),
        rows::POSTED_ALL.judge(&inside.posted_all, left()),
        rows::UNEXPECTED_ALL.judge(&inside.unexpected_all, left()),
        rows::OVERLAP.judge(&inside.overlap, left().or_else(|| machine.few.clone())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::Verdict;

    fn row<'a>(rows: &'a [Judged], name: &str) -> &'a Judged {
        rows.iter()
            .find(|row| row.name.ends_with(name))
            .or_else(|| rows.iter().find(|row| row.name.contains(name)))
            .unwrap_or_else(|| panic!("{name}"))
    }

    fn why(rows: &[Judged], name: &str) -> String {
        let row = row(rows, name);
        assert_eq!(row.verdict, Verdict::NotJudged, "{name}");
        row.reason.clone().unwrap()
    }

    const ALL: Parts = Parts(Vec::new());

    #[test]
    fn rows_that_cannot_be_judged_here_say_why() {
        let mut samples = Samples::default();
        samples.shm.near = vec![1.2];
        samples.inside.mailbox = vec![3.0];
        samples.shm.rate_far = vec![9e6];
        let rows = judge(&samples, &ALL, &[0, 1]);
        assert_eq!(row(&rows, "shm, near").verdict, Verdict::Met);
        assert!(why(&rows, "shm, far").contains("never far"));
        assert!(why(&rows, "half round trip, dedicated").contains("need 4 cores"));
        assert_eq!(row(&rows, "mailbox").verdict, Verdict::Met);
        assert!(why(&rows, "udp:lo").contains("did not stay"));
        assert_eq!(row(&rows, "rate, 8 B, far").verdict, Verdict::NotJudged);
        assert!(why(&judge(&samples, &ALL, &[0]), "shm, near").contains("one core"));
    }

    #[test]
    fn every_promise_has_a_row_even_where_there_are_no_two_hosts() {
        let samples = Samples {
            no_link: Some("unshare: Operation not permitted".to_owned()),
            no_loss: Some("nft: not found".to_owned()),
            ..Samples::default()
        };
        let rows = judge(&samples, &ALL, &[0, 1]);
        for name in [
            "round trip, udp",
            "round trip, xdp",
            "64 B, network",
            "1 MiB, xdp",
        ] {
            assert!(why(&rows, name).contains("not permitted"), "{name}");
        }
        for name in [
            "goodput, 1 MiB, 1 %",
            "goodput, 1 MiB, 5 %",
            "mean, 5 % loss, xdp",
        ] {
            assert!(why(&rows, name).contains("nft"), "{name}");
        }
        assert!(why(&rows, "installed peer").contains("compare-peers"));
        assert!(why(&rows, "failover: lost").contains("cargo xtask rails"));
        assert!(why(&rows, "memory per idle peer").contains("nothing could be measured"));
        let names: std::collections::BTreeSet<&str> = rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(names.iter().all(|name| name.chars().count() <= 33), "{names:?}");
    }

    #[test]
    fn the_better_rail_counts_and_both_are_shown() {
        let mut samples = Samples::default();
        samples.hosts.over_mut(Kind::Udp).goodput[0] = vec![0.5, 0.6, 0.55];
        samples.hosts.over_mut(Kind::Xdp).goodput[0] = vec![0.9, 0.8, 0.85];
        samples.hosts.over_mut(Kind::Udp).rate = vec![2e6];
        samples.hosts.over_mut(Kind::Xdp).lacks = Some("lacks CAP_BPF".to_owned());
        let rows = judge(&samples, &ALL, &[0, 1]);
        let goodput = row(&rows, "goodput, 1 MiB, 1 %");
        assert_eq!((goodput.verdict, goodput.measured), (Verdict::Met, Some(0.85)));
        assert!(
            goodput.how.ends_with("(udp 0.55 x, xdp 0.85 x)"),
            "{}",
            goodput.how
        );
        let rate = row(&rows, "rate, 64 B");
        assert_eq!(rate.verdict, Verdict::Met);
        assert!(rate.how.contains("xdp none"), "{}", rate.how);
        assert!(why(&rows, "goodput, 1 MiB, 5 %").contains("xdp: lacks CAP_BPF"));
        assert!(why(&rows, "round trip, xdp").contains("CAP_BPF"));
    }

    #[test]
    fn parts_that_were_not_named_are_not_judged_and_say_so() {
        let mut samples = Samples::default();
        samples.inside.pml = vec![10.0];
        let rows = judge(&samples, &Parts(vec![Part::Process]), &[0, 1]);
        assert_eq!(row(&rows, "PML, one").verdict, Verdict::Met);
        assert!(why(&rows, "shm, near").contains("`--only shm`"));
        assert!(why(&rows, "goodput").contains("`--only loss`"));
    }
}
