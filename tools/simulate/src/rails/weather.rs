//! The disturbances of the rails of one seed: which of them break, between which ranks, when and for how
//! long.
//!
//! Several things may be broken at once. But no pair of ranks is without an open way for longer than the PML
//! waits for one (the *lull*), since that would be the end of the peer, and rightly so. A way counts as
//! closed for some time after it opened: it has to be called first.

use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_sim::{Change, Faults, Plane, Random};

use super::shape::Shape;

/// The longest time until a path that opens is reached: the longest back-off between calls, and an answer.
const SETTLES: Duration = Duration::from_millis(1_300);

/// One thing that goes wrong.
#[derive(Clone, Debug)]
struct Trouble {
    begins: Time,
    /// When it ends; `None`: never.
    ends: Option<Time>,
    breaks: Vec<Change>,
    mends: Vec<Change>,
    /// Ways that it closes, or may: plane and both ranks.
    closes: Vec<(usize, u32, u32)>,
}

/// The weather of a job, in order.
#[derive(Debug)]
pub(crate) struct Weather {
    troubles: Vec<Trouble>,
    /// Times at which something changes, and which trouble begins (or ends) then.
    turns: Vec<(Time, usize, bool)>,
    next: usize,
    /// When something changed last.
    pub(crate) changed: Time,
}

impl Weather {
    pub(crate) fn of(seed: u64, shape: &Shape, planes: &[Plane]) -> Self {
        let mut random = Random::for_part(seed, &[22]);
        let mut troubles: Vec<Trouble> = Vec::new();
        for _ in 0..1 + random.below(14) {
            let new = Trouble::choose(&mut random, shape, planes);
            troubles.push(new);
            let begins = troubles.iter().filter(|one| one.ends.is_none()).count();
            if begins > 1 || !is_bearable(&troubles, shape) {
                troubles.pop();
            }
        }
        let mut turns: Vec<(Time, usize, bool)> = Vec::new();
        for (at, trouble) in troubles.iter().enumerate() {
            turns.push((trouble.begins, at, true));
            turns.extend(trouble.ends.map(|ends| (ends, at, false)));
        }
        turns.sort_unstable();
        Self {
            troubles,
            turns,
            next: 0,
            changed: Time::ZERO,
        }
    }

    /// When something changes next.
    pub(crate) fn next(&self) -> Option<Time> {
        self.turns.get(self.next).map(|turn| turn.0)
    }

    /// What changes now.
    pub(crate) fn due(&mut self, now: Time) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some(&(_, which, begins)) = self.turns.get(self.next).filter(|turn| turn.0 <= now) {
            self.next += 1;
            self.changed = now;
            if begins {
                changes.extend(&self.troubles[which].breaks);
                continue;
            }
            changes.extend(&self.troubles[which].mends);
            // What ends may have mended what is broken by another as well.
            let others = self.troubles.iter().enumerate();
            let broken = others.filter(|(at, trouble)| {
                *at != which && trouble.begins <= now && trouble.ends.is_none_or(|ends| ends > now)
            });
            broken.for_each(|(_, trouble)| changes.extend(&trouble.breaks));
        }
        changes
    }

    /// Whether a way is closed for good.
    pub(crate) fn is_gone(&self, way: (usize, u32, u32)) -> bool {
        let for_good = self.troubles.iter().filter(|trouble| trouble.ends.is_none());
        for_good
            .flat_map(|trouble| &trouble.closes)
            .any(|closed| *closed == way)
    }
}

/// Whether no pair is without a way for longer than the lull.
fn is_bearable(troubles: &[Trouble], shape: &Shape) -> bool {
    let pairs = (0..shape.ranks).flat_map(|a| (a + 1..shape.ranks).map(move |b| (a, b)));
    pairs
        .into_iter()
        .all(|pair| longest_lull(troubles, shape, pair) <= shape.lull())
}

/// The longest time for which all ways of a pair are closed, or were opened too recently.
fn longest_lull(troubles: &[Trouble], shape: &Shape, (a, b): (u32, u32)) -> Duration {
    let closed = |plane: usize, at: Time| {
        let by = |trouble: &&Trouble| {
            trouble.begins <= at
                && trouble.ends.is_none_or(|ends| ends + SETTLES > at)
                && trouble.closes.contains(&(plane, a, b))
        };
        troubles.iter().find(by).is_some()
    };
    let mut times: Vec<Time> = troubles
        .iter()
        .flat_map(|trouble| [Some(trouble.begins), trouble.ends.map(|ends| ends + SETTLES)])
        .flatten()
        .collect();
    times.sort_unstable();
    let (mut longest, mut since) = (Duration::ZERO, None);
    for &at in &times {
        if (0..shape.frames.len()).all(|plane| closed(plane, at)) {
            since = since.or(Some(at));
        } else if let Some(since) = since.take() {
            longest = longest.max(at.since(since));
        }
    }
    if since.is_some() { Duration::MAX } else { longest }
}

impl Trouble {
    fn choose(random: &mut Random, shape: &Shape, planes: &[Plane]) -> Self {
        // Half of them early, when those who do not rest have most under way.
        let most = [shape.lasts, shape.lasts / 8][random.below(2) as usize];
        let begins = Time::ZERO + random_below(random, most);
        // Unnoticed, noticed by some, noticed by all.
        let most = [5, 300, 3_000].map(Duration::from_millis)[random.below(3) as usize];
        let lasts = Duration::from_micros(50) + random_below(random, most);
        let mut trouble = Self {
            begins,
            ends: Some(begins + lasts),
            breaks: Vec::new(),
            mends: Vec::new(),
            closes: Vec::new(),
        };
        let ranks = u64::from(shape.ranks);
        let at = random.below(planes.len() as u64) as usize;
        let plane = planes[at];
        let one = random.below(ranks) as u32;
        let other = (one + 1 + random.below(ranks - 1) as u32) % shape.ranks;
        let both = random.below(2) == 0;
        match random.below(10) {
            0 | 1 => trouble.cut((at, plane), one, other, both),
            2 => trouble.change(
                Change::LinkDown(plane, one),
                Change::LinkUp(plane, one),
                at,
                one,
                shape,
            ),
            3 => {
                trouble.breaks.push(Change::PlaneDown(plane));
                trouble.mends.push(Change::PlaneUp(plane));
                (0..shape.ranks).for_each(|rank| trouble.close_of(at, rank, shape));
            }
            // One peer over all rails at once.
            4 => (0..planes.len()).for_each(|at| trouble.cut((at, planes[at]), one, other, both)),
            5 => trouble.part(&[(at, plane)], random.next_u64(), shape),
            6 => {
                let all: Vec<(usize, Plane)> = planes.iter().copied().enumerate().collect();
                trouble.part(&all, random.next_u64(), shape);
            }
            7 if shape.frames[at] => trouble.rough((at, plane), one, other, shape.faults[at], random),
            7 | 8 if shape.frames[at] => {
                let (stall, go_on) = (Change::NicStall(plane, one), Change::NicResume(plane, one));
                trouble.change(stall, go_on, at, one, shape);
            }
            // With two rails, there would be one left, and nothing to wait for when it is silent.
            8 if planes.len() > 2 => {
                trouble.ends = None;
                trouble.breaks.push(Change::NicDeath(plane, one));
                trouble.close_of(at, one, shape);
            }
            7 | 8 => trouble.cut((at, plane), other, one, both),
            _ => {
                trouble.ends = Some(begins + lasts.min(Duration::from_secs(1)));
                trouble.breaks.push(Change::Pause(one));
                trouble.mends.push(Change::Resume(one));
                (0..planes.len()).for_each(|at| trouble.close_of(at, one, shape));
            }
        }
        trouble
    }

    fn close(&mut self, at: usize, a: u32, b: u32) {
        if a != b {
            self.closes.push((at, a.min(b), a.max(b)));
        }
    }

    /// Closes all ways of a rank over a plane.
    fn close_of(&mut self, at: usize, rank: u32, shape: &Shape) {
        (0..shape.ranks).for_each(|other| self.close(at, rank, other));
    }

    fn change(&mut self, breaks: Change, mends: Change, at: usize, rank: u32, shape: &Shape) {
        self.breaks.push(breaks);
        self.mends.push(mends);
        self.close_of(at, rank, shape);
    }

    /// Nothing passes from one rank to another over a plane; nor, for `both`, the other way round.
    fn cut(&mut self, (at, plane): (usize, Plane), one: u32, other: u32, both: bool) {
        for (from, to) in [(one, other), (other, one)]
            .into_iter()
            .take(1 + usize::from(both))
        {
            self.breaks.push(Change::Cut { plane, from, to });
            self.mends.push(Change::Heal { plane, from, to });
        }
        self.close(at, one, other);
    }

    /// The ranks fall into two groups: those of the set bits, and the others.
    fn part(&mut self, planes: &[(usize, Plane)], group: u64, shape: &Shape) {
        for a in 0..shape.ranks {
            for b in (a + 1..shape.ranks).filter(|b| (group >> a ^ group >> b) & 1 == 1) {
                planes.iter().for_each(|plane| self.cut(*plane, a, b, true));
            }
        }
    }

    /// One direction loses most frames.
    fn rough(&mut self, (at, plane): (usize, Plane), from: u32, to: u32, calm: Faults, random: &mut Random) {
        let loss = [0.3, 0.7, 1.0][random.below(3) as usize];
        let change = |faults| Change::PairFaults {
            plane,
            from,
            to,
            faults,
        };
        self.breaks.push(change(Some(Faults {
            loss,
            duplicate: 0.2,
            ..calm
        })));
        self.mends.push(change(None));
        self.close(at, from, to);
    }
}

fn random_below(random: &mut Random, most: Duration) -> Duration {
    Duration::from_nanos(random.below(most.as_nanos() as u64))
}
