//! Connections severed and made again at random times, by a seed, at both ends, with traffic in both
//! directions.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::event::RailEvent;
use doorbell_testing::Random;

use super::*;

/// One end as a layer above the rail would be: what is given back is sent again first, and what came twice is
/// dropped.
#[derive(Default)]
struct End {
    /// Numbers to be sent, in order.
    todo: VecDeque<u64>,
    /// Those under way, by their ids.
    sent: BTreeMap<u64, u64>,
    /// Numbers that were given back at least once.
    again: std::collections::BTreeSet<u64>,
    /// A way has ended, and its messages have not been given back.
    owes: bool,
    down: bool,
    /// The last epoch in which the other end was reported up.
    epoch: Option<Life>,
    /// The next number from the other end.
    expected: u64,
    repeated: u64,
    downs: u64,
}

const MESSAGES: u64 = 3000;

impl End {
    fn send(&mut self, rail: &mut ShmRail, to: PeerIndex, most: u64) {
        for _ in 0..most {
            let Some(&number) = self.todo.front().filter(|_| !self.owes) else {
                return;
            };
            let body = [number as u8; 200];
            let body = Body::Bytes(&body[..(number % 200) as usize]);
            match rail.send(to, &number.to_le_bytes(), body) {
                Ok(id) => assert_eq!(self.sent.insert(id.0, number), None),
                Err(Refused::Full | Refused::PeerDown) => return,
                Err(other) => panic!("{other:?}"),
            }
            self.todo.pop_front();
        }
    }

    /// Takes back what was not taken, in order; the rest has arrived at `other`.
    fn reclaim(&mut self, rail: &mut ShmRail, to: PeerIndex, other: &End) {
        let mut back = Vec::new();
        rail.reclaim(to, &mut |id, bytes| back.push((id.0, number(bytes), bytes.len())));
        let shown: Vec<_> = back.iter().map(|&(id, number, _)| (id, number)).collect();
        let mut taken: Vec<_> = std::mem::take(&mut self.sent).into_iter().collect();
        let left = taken.split_off(taken.len().saturating_sub(shown.len()));
        assert_eq!(shown, left);
        assert!(
            taken.iter().all(|(_, number)| *number < other.expected),
            "{taken:?}"
        );
        assert!(taken.last().is_none_or(|(id, _)| *id <= rail.handed_over(to).0));
        for &(_, number, length) in back.iter().rev() {
            assert_eq!(length as u64, 8 + number % 200);
            self.todo.push_front(number);
            self.again.insert(number);
        }
        self.owes = false;
    }

    fn hear(&mut self, reported: &[RailEvent]) {
        for event in reported {
            match event.kind {
                UP => {
                    self.down = false;
                    let before = self.epoch.replace(event.life);
                    let grows = before.is_none_or(|before| before.is_before(event.life));
                    assert!(grows, "{event:?} after {before:?}");
                }
                SILENT | GIVEN_UP => (self.down, self.owes, self.downs) = (true, true, self.downs + 1),
                other => panic!("{other:?}"),
            }
        }
    }

    /// What arrived: in order, and twice only what was given back.
    fn take(&mut self, from: &End, seen: &mut Seen) {
        for (_, bytes) in seen.messages.drain(..) {
            let number = number(&bytes);
            assert!(bytes[8..].iter().all(|byte| *byte == number as u8));
            if number == self.expected {
                self.expected += 1;
            } else {
                assert!(number < self.expected, "{number} before {}", self.expected);
                assert!(from.again.contains(&number), "{number} came twice");
                self.repeated += 1;
            }
        }
    }
}

/// Everything arrives once and in order, whatever breaks. How often ways broke, and how many messages came
/// twice.
pub(super) fn severs(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(2, &small());
    let mut ends: [End; 2] = Default::default();
    for end in &mut ends {
        end.todo = (0..MESSAGES).collect();
    }
    let mut now = Time::ZERO;
    let mut turns = 0u64;
    while ends.iter().any(|end| end.expected < MESSAGES) {
        turns += 1;
        assert!(
            turns < 4_000_000,
            "seed {seed}: {:?}",
            ends.map(|end| end.expected)
        );
        let i = random.below(2) as usize;
        let to = PeerIndex(1 - i as u32);
        let rail = &mut world.rails[i];
        let [first, second] = &mut ends;
        let (end, other) = if i == 0 {
            (first, &*second)
        } else {
            (second, &*first)
        };
        now += Duration::from_micros(random.below(200));
        match random.below(200) {
            0 => rail.sever(Some(to)),
            1 if !end.down => {
                rail.abandon(to);
                (end.down, end.owes) = (true, true);
                end.downs += 1;
            }
            2..12 if end.down => rail.revive(to),
            // Given up while it is called.
            12 if end.down => rail.abandon(to),
            13..60 => _ = rail.progress(now),
            60..120 => _ = rail.poll(random.below(20) as usize, &mut world.seen[i]),
            120..130 if end.owes => end.reclaim(rail, to, other),
            _ => end.send(rail, to, random.below(10)),
        }
        let reported: Vec<_> = std::iter::from_fn(|| rail.event()).collect();
        end.hear(&reported);
        end.take(other, &mut world.seen[i]);
    }
    settle(&mut world, &mut ends, now);
    ends.iter()
        .fold((0, 0), |sum, end| (sum.0 + end.downs, sum.1 + end.repeated))
}

/// In the end both ways stand, and nothing is left of those before.
fn settle(world: &mut World, ends: &mut [End; 2], mut now: Time) {
    for _ in 0..2000 {
        now += Duration::from_millis(1);
        for (i, end) in ends.iter_mut().enumerate() {
            let (rail, to) = (&mut world.rails[i], PeerIndex(1 - i as u32));
            if end.down {
                rail.revive(to);
            }
            rail.progress(now);
            rail.poll(64, &mut world.seen[i]);
            let reported: Vec<_> = std::iter::from_fn(|| rail.event()).collect();
            end.hear(&reported);
            rail.reclaim(to, &mut |_, _| ());
        }
    }
    for (i, end) in ends.iter().enumerate() {
        let peer = &world.rails[i].peers[1 - i];
        assert!(!end.down && peer.down.is_none() && peer.attempt.is_none());
        assert!(peer.retired.is_empty() && peer.tx.is_some() && peer.rx.is_some());
        assert!(
            end.epoch.is_some() && end.epoch == ends[1 - i].epoch,
            "the same at both"
        );
        let rail = &world.rails[i];
        assert!(rail.awaiting_hello.is_empty() && rail.pending_peers.is_empty());
    }
}

#[test]
fn severed_and_revived_at_random() {
    let (mut downs, mut repeated) = (0, 0);
    for seed in 0..20 {
        let (more, twice) = severs(seed);
        (downs, repeated) = (downs + more, repeated + twice);
    }
    assert!(downs > 200 && repeated > 0, "{downs} {repeated}");
}
