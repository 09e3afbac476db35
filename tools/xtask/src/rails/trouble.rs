//! The disturbances: drawn from a seed, made by `ip` and `nft`, and recorded with their times.
//!
//! One link at least is always whole. A link that is whole again stays so for at least a second, so that some
//! of them are hit while they return, and others are long enough left alone to have returned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::error::Error;
use crate::links::lab::{Host, Lab};

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// One end's interface is down.
    DownAtA,
    DownAtB,
    /// Both ends' interfaces are down.
    DownAtBoth,
    /// One end receives no UDP.
    DeafA,
    DeafB,
}

const KINDS: [Kind; 5] = [
    Kind::DownAtA,
    Kind::DownAtB,
    Kind::DownAtBoth,
    Kind::DeafA,
    Kind::DeafB,
];

impl Kind {
    /// Returns it as it is shown.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::DownAtA => "down at the sender",
            Self::DownAtB => "down at the receiver",
            Self::DownAtBoth => "down at both",
            Self::DeafA => "UDP dropped to the sender",
            Self::DeafB => "UDP dropped to the receiver",
        }
    }

    fn set(self, lab: &Lab, link: usize, wrong: bool) -> Result<(), Error> {
        let down = |hosts: &[Host]| hosts.iter().try_for_each(|&host| lab.set(host, link, !wrong));
        match self {
            Self::DownAtA => down(&[Host::A]),
            Self::DownAtB => down(&[Host::B]),
            Self::DownAtBoth => down(&Host::BOTH),
            Self::DeafA => lab.deafen(Host::A, link, wrong),
            Self::DeafB => lab.deafen(Host::B, link, wrong),
        }
    }
}

/// One trouble, with its times since the part began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Done {
    pub(crate) link: usize,
    pub(crate) kind: Kind,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Anything, by this seed.
    Random(u64),
    /// The second link changes every 200 ms, for this time.
    Flap(Duration),
    /// The links in turn, `count` times, each whole again for a while before the next is down.
    Cuts { seed: u64, count: usize },
}

/// How long a link is down at least and at most where links are cut in turn, and whole then, in milliseconds.
const CUT: (u64, u64) = (200, 6000);
const WHOLE: (u64, u64) = (3000, 6000);

/// Time between two changes of a link that flaps.
const FLAP: Duration = Duration::from_millis(200);
/// The link that flaps.
pub(super) const FLAPPING: usize = 1;
/// Both sides are connected and exchange messages by then.
const FIRST: Duration = Duration::from_millis(1500);

/// Makes the troubles, until it is stopped.
pub(crate) struct Trouble {
    plan: Plan,
    links: usize,
    begun: Instant,
    over: AtomicBool,
}

impl Trouble {
    pub(crate) fn new(plan: Plan, links: usize, begun: Instant) -> Self {
        Self {
            plan,
            links,
            begun,
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Everything that was done; at the end all links are whole.
    pub(crate) fn make(&self, lab: &Lab) -> Result<Vec<Done>, Error> {
        match self.plan {
            Plan::Random(seed) => self.at_random(lab, &mut Dice(seed)),
            Plan::Flap(time) => self.flap(lab, time),
            Plan::Cuts { seed, count } => self.cut(lab, &cuts(seed, count, self.links)),
        }
    }

    fn cut(&self, lab: &Lab, cuts: &[Cut]) -> Result<Vec<Done>, Error> {
        let mut done = Vec::new();
        for cut in cuts {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let from = self.begun.elapsed();
            cut.kind.set(lab, cut.link, true)?;
            self.pause(cut.down);
            done.push(self.mend(lab, cut.link, cut.kind, from)?);
            self.pause(cut.whole);
        }
        Ok(done)
    }

    /// Waits, and no longer when it is stopped.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn at_random(&self, lab: &Lab, dice: &mut Dice) -> Result<Vec<Done>, Error> {
        let mut done = Vec::new();
        // Of each link: what is wrong with it and until when, or from when on it may be hit again.
        let mut wrong: Vec<Option<(Kind, Duration, Duration)>> = vec![None; self.links];
        let mut rests = vec![Duration::ZERO; self.links];
        let mut next = FIRST;
        while !self.over.load(Ordering::Relaxed) {
            let now = self.begun.elapsed();
            for link in 0..self.links {
                if let Some((kind, from, until)) = wrong[link].filter(|(.., until)| *until <= now) {
                    done.push(self.mend(lab, link, kind, from)?);
                    wrong[link] = None;
                    rests[link] = until + dice.millis(1000, 8000);
                }
            }
            let whole = wrong.iter().filter(|wrong| wrong.is_none()).count();
            let link = dice.below(self.links as u64) as usize;
            if next <= now && whole > 1 && wrong[link].is_none() && rests[link] <= now {
                let kind = KINDS[dice.below(KINDS.len() as u64) as usize];
                kind.set(lab, link, true)?;
                wrong[link] = Some((kind, now, now + dice.millis(200, 3000)));
                next = now + dice.millis(300, 2000);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for (link, wrong) in wrong.into_iter().enumerate() {
            if let Some((kind, from, _)) = wrong {
                done.push(self.mend(lab, link, kind, from)?);
            }
        }
        Ok(done)
    }

    fn mend(&self, lab: &Lab, link: usize, kind: Kind, from: Duration) -> Result<Done, Error> {
        kind.set(lab, link, false)?;
        Ok(Done {
            link,
            kind,
            from,
            to: self.begun.elapsed(),
        })
    }

    fn flap(&self, lab: &Lab, time: Duration) -> Result<Vec<Done>, Error> {
        let mut done = Vec::new();
        let mut at = FIRST;
        while at < FIRST + time && !self.over.load(Ordering::Relaxed) {
            self.wait_until(at);
            let from = self.begun.elapsed();
            Kind::DownAtB.set(lab, FLAPPING, true)?;
            self.wait_until(at + FLAP);
            done.push(self.mend(lab, FLAPPING, Kind::DownAtB, from)?);
            at += 2 * FLAP;
        }
        Ok(done)
    }

    fn wait_until(&self, at: Duration) {
        std::thread::sleep(at.saturating_sub(self.begun.elapsed()));
    }
}

/// One link down, and how long all are whole after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    link: usize,
    kind: Kind,
    down: Duration,
    whole: Duration,
}

/// Returns cuts of interfaces, of each link in turn.
fn cuts(seed: u64, count: usize, links: usize) -> Vec<Cut> {
    let mut dice = Dice(seed);
    let kinds = [Kind::DownAtA, Kind::DownAtB, Kind::DownAtBoth];
    let mut one = |number| Cut {
        link: number % links,
        kind: kinds[dice.below(kinds.len() as u64) as usize],
        down: dice.millis(CUT.0, CUT.1),
        whole: dice.millis(WHOLE.0, WHOLE.1),
    };
    (0..count).map(&mut one).collect()
}

/// Returns how long that many cuts take.
pub(crate) fn time_of(seed: u64, count: usize, links: usize) -> Duration {
    let cuts = cuts(seed, count, links);
    cuts.iter().map(|cut| cut.down + cut.whole).sum()
}

/// Numbers by a seed: splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least))
    }
}

/// Returns a seed that was not used before, most likely.
pub(crate) fn any_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Dice(since.as_nanos() as u64).next() % 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_cut_in_turn_and_never_two_at_once() {
        let drawn = cuts(7, 21, 2);
        assert_eq!(drawn, cuts(7, 21, 2));
        assert_ne!(drawn, cuts(8, 21, 2));
        assert!(drawn.iter().enumerate().all(|(at, cut)| cut.link == at % 2));
        let millis = |time: Duration| time.as_millis() as u64;
        assert!(drawn.iter().all(|cut| (CUT.0..CUT.1).contains(&millis(cut.down))));
        assert!(drawn.iter().all(|cut| millis(cut.whole) >= WHOLE.0));
        assert!(time_of(7, 21, 2) > time_of(7, 20, 2));
    }

    #[test]
    fn the_same_seed_is_the_same_trouble() {
        let draw = |seed| {
            (0..100)
                .map(move |_| seed)
                .scan(Dice(seed), |dice, _| Some(dice.below(5)))
        };
        assert!(draw(7).eq(draw(7)) && !draw(7).eq(draw(8)));
        assert!((0..5).all(|kind| draw(7).any(|drawn| drawn == kind)));
        let times: Vec<_> = (0..1000).map(|seed| Dice(seed).millis(200, 3000)).collect();
        assert!(times.iter().all(|time| (200..3000).contains(&time.as_millis())));
    }
}
