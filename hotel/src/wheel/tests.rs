//! The invariants of the wheel, looked at from inside after every step.

use proptest::prelude::*;

use super::*;

const ROOMS: u32 = 12;

/// A wheel with what the hotel would know beside it.
struct Hall {
    wheel: Wheel,
    deadlines: [Option<u64>; ROOMS as usize],
    /// How often guests were moved since they were placed.
    moves: [u32; ROOMS as usize],
}

impl Hall {
    fn new(now: u64) -> Self {
        Self {
            wheel: Wheel::new(ROOMS, now).unwrap(),
            deadlines: [None; ROOMS as usize],
            moves: [0; ROOMS as usize],
        }
    }

    fn place(&mut self, room: u32, deadline: u64) {
        self.take(room);
        self.wheel.place(room, deadline);
        self.deadlines[room as usize] = Some(deadline);
        self.moves[room as usize] = 0;
    }

    fn take(&mut self, room: u32) {
        if self.deadlines[room as usize].take().is_some() {
            self.wheel.remove(room);
        }
    }

    fn tick(&mut self, now: u64) -> Vec<u32> {
        let mut evicted = Vec::new();
        if self.wheel.quiet(now) {
            return evicted;
        }
        while let Some(due) = self.wheel.due() {
            match due {
                Due::Room(room) => {
                    self.take(room);
                    evicted.push(room);
                }
                Due::Slots => {
                    self.wheel.spread(|room| {
                        self.moves[room as usize] += 1;
                        self.deadlines[room as usize].unwrap()
                    });
                    self.check();
                }
            }
        }
        evicted
    }

    /// Walks through every slot and holds the invariants against it.
    fn check(&self) {
        let wheel = &self.wheel;
        let mut seen = 0;
        for end in 0..ENDS {
            let (level, digit) = (Level::new(end / SLOTS), u64::from(end % SLOTS));
            let (mut at, mut last) = (wheel.links[end as usize].next, end);
            let bit = wheel.occupied[level.number() as usize] >> digit & 1;
            assert_eq!(bit == 1, at != end, "invariant 3, {level:?} slot {digit}");
            assert!(
                bit == 0 || wheel.levels >> level.number() & 1 == 1,
                "invariant 3, {level:?}"
            );
            while at != end {
                assert_eq!(wheel.links[at as usize].prev, last);
                let deadline = self.deadlines[(at - ENDS) as usize].expect("a guest lives there");
                let slot = level.slot_of(deadline.max(wheel.cursor));
                if level.number() > 0 {
                    assert_eq!(slot % 64, digit, "{deadline} is in its slot");
                    let ahead = slot - level.slot_of(wheel.cursor);
                    assert!((1..=64).contains(&ahead), "invariant 2, {ahead} ahead");
                    assert!(wheel.wake <= level.start_of(slot), "invariant 4");
                } else {
                    // A deadline that had passed waits at the time that the cursor had then, which is still
                    // due.
                    let first = wheel.cursor + (digit.wrapping_sub(wheel.cursor) & 63);
                    assert!(
                        first == deadline || deadline <= first && first <= wheel.now,
                        "invariant 1"
                    );
                    assert!(wheel.wake <= first, "invariant 4");
                }
                seen += 1;
                (last, at) = (at, wheel.links[at as usize].next);
            }
            assert_eq!(wheel.links[end as usize].prev, last);
        }
        let empty = wheel.occupied.iter().enumerate();
        let levels = empty.fold(0, |levels, (level, &word)| levels | u32::from(word != 0) << level);
        assert_eq!(wheel.levels, levels, "invariant 3");
        assert_eq!(
            seen,
            self.deadlines.iter().flatten().count(),
            "every guest is in one slot"
        );
        assert!(wheel.cursor <= wheel.now);
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Places or moves a room, so far ahead.
    Place(u32, u64),
    /// Places a room so far back.
    Late(u32, u64),
    Take(u32),
    Tick(u64),
}

/// Distances of any size, each size as likely as any other.
fn distance() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(bits, noise)| noise >> bits)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..ROOMS, distance()).prop_map(|(room, ahead)| Step::Place(room, ahead)),
        1 => (0..ROOMS, distance()).prop_map(|(room, back)| Step::Late(room, back)),
        2 => (0..ROOMS).prop_map(Step::Take),
        3 => distance().prop_map(Step::Tick),
    ]
}

proptest! {
    #[test]
    fn invariants_hold_after_every_step(
        start in prop_oneof![Just(0), any::<u64>(), Just(u64::MAX - 1000)],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut hall = Hall::new(start);
        let mut now = start;
        for step in steps {
            match step {
                Step::Place(room, ahead) => hall.place(room, now.saturating_add(ahead)),
                Step::Late(room, back) => hall.place(room, now.saturating_sub(back)),
                Step::Take(room) => hall.take(room),
                Step::Tick(by) => {
                    now = now.saturating_add(by);
                    hall.tick(now);
                }
            }
            hall.check();
        }
    }
}

/// The claims of the crate's first page about moves, at every size of stay.
#[test]
fn guests_are_first_moved_late_and_seldom() {
    for bits in 0..64u32 {
        for stay in [
            1u64 << bits,
            (1 << bits) + (1 << bits >> 1),
            u64::MAX >> (63 - bits),
        ] {
            let start = if stay < 1 << 62 { 1_000_003 } else { 0 };
            let deadline = start + stay;
            let mut hall = Hall::new(start);
            hall.place(0, deadline);
            // One nanosecond before 7/8 of the stay nothing has happened.
            let early = start + (stay / 8 * 7).saturating_sub(1);
            assert!(hall.tick(early).is_empty());
            assert_eq!(hall.moves[0], 0, "{stay}");
            // From wake to wake, so that every move is made.
            while let Some(wake) = hall.wheel.next().filter(|&wake| wake < deadline) {
                assert!(hall.tick(wake).is_empty());
            }
            let most = Level::of(stay).number() / 2 + 1;
            assert!(hall.moves[0] <= most.min(10), "{stay}: {} moves", hall.moves[0]);
            assert_eq!(hall.wheel.next(), Some(deadline), "exact in the end");
            assert_eq!(hall.tick(deadline), [0]);
        }
    }
}

/// Slots of several levels that begin together: the cursor must not be in one whose guests are still
/// there.
#[test]
fn slots_that_begin_together_are_all_seen() {
    let start = 8 * 4096;
    let mut hall = Hall::new(0);
    hall.place(0, start + 3); // each from nearer, so each in a narrower slot than the one before
    for (room, at) in [
        (1, start - 4096),
        (2, start - 512),
        (3, start - 64),
        (4, start - 1),
    ] {
        hall.tick(at);
        hall.place(room, start + 2);
        hall.check();
    }
    let ends = [0, 1, 2, 3].map(|room| hall.wheel.links[(ENDS + room) as usize].next);
    assert!(
        ends.iter().all(|end| *end >= SLOTS && *end < ENDS),
        "each alone in a slot above level 0"
    );
    assert!(hall.tick(start).is_empty());
    hall.check();
    assert_eq!(hall.wheel.next(), Some(start + 2));
    assert_eq!(hall.tick(start + 2).len(), 4);
    assert_eq!(hall.tick(u64::MAX), [0]);
}
