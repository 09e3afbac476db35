//! A million random steps against the plain model, from fixed seeds; a failure names its seed and step.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use common::{Model, matches};
use doorbell_matching::{
    Capacity, Entry, EntryHandle, Load, MatchError, MatchKey, Matcher, Pattern, Posted, UnexpectedHandle,
};
use doorbell_testing::Random;

/// What one seed's run is like: few keys, so that collisions are common; few or many wildcard classes; and
/// a lean towards deep lists of entries or of messages.
struct Profile {
    tables: u64,
    sources: u64,
    tags: u64,
    wildcards: u64,
    classes: u64,
    odd_entries: u64,
    posts: u64,
    depth: usize,
}

impl Profile {
    fn of(random: &mut Random) -> Self {
        Self {
            tables: 1 + random.below(2),
            sources: 1 + random.below(5),
            tags: 1 + random.below(12),
            wildcards: [0, 10, 30, 60][random.below(4) as usize],
            classes: [2, 5, 16][random.below(3) as usize],
            odd_entries: [0, 20, 50][random.below(3) as usize],
            posts: [30, 50, 70][random.below(3) as usize],
            depth: [20, 120, 600][random.below(3) as usize],
        }
    }

    fn key(&self, random: &mut Random) -> MatchKey {
        let tag = random.below(self.tags);
        // Low and high bits, so that masks of either end matter.
        MatchKey::new(
            random.below(self.tables) as u32,
            random.below(self.sources) as u32,
            tag | tag << 60,
        )
    }

    fn pattern(&self, random: &mut Random) -> Pattern {
        let pattern = Pattern::from(self.key(random));
        if !random.percent(self.wildcards) {
            return pattern;
        }
        let class = random.below(self.classes);
        let ignore = [0, u64::MAX, 1, 0xf, 3 << 60, 0x7fff_ffff, 2, 4][class as usize % 8];
        let source_ignore = [u32::MAX, 0, 1][class as usize % 3];
        // Ignored bits may hold anything.
        let noise = random.next_u64() & ignore;
        let any = Pattern {
            bits: pattern.bits ^ noise,
            ..pattern
        };
        Pattern {
            source: any.source ^ (random.next_u64() as u32 & source_ignore),
            ..any
        }
        .ignoring(ignore)
        .ignoring_source(source_ignore)
    }

    fn entry(&self, random: &mut Random, token: u64) -> Entry {
        let entry = Entry::once(self.pattern(random), random.below(64), token);
        if !random.percent(self.odd_entries) {
            return entry;
        }
        let entry = match random.below(4) {
            0 => entry,
            1 => Entry {
                use_once: false,
                ..entry
            },
            2 => Entry {
                use_once: false,
                length: 16 + random.below(200),
                ..entry
            }
            .managed(random.below(32)),
            _ => Entry {
                filled: random.below(80),
                ..entry
            }
            .managed(random.below(8)),
        };
        let entry = if random.percent(40) {
            entry.no_truncate()
        } else {
            entry
        };
        if random.percent(30) {
            entry.overflow()
        } else {
            entry
        }
    }
}

/// The structure and its model, side by side.
struct Pair {
    matcher: Matcher,
    model: Model,
    token: u64,
    /// Handles that were valid once; many are stale by now.
    entries: Vec<EntryHandle>,
    messages: Vec<UnexpectedHandle>,
}

impl Pair {
    fn new(random: &mut Random) -> Self {
        let room = random.below(100) as usize;
        let matcher = Matcher::new(
            random.next_u64(),
            Capacity {
                posted: room,
                unexpected: room / 2,
            },
        );
        Self {
            matcher,
            model: Model::default(),
            token: 0,
            entries: Vec::new(),
            messages: Vec::new(),
        }
    }

    fn token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }

    fn post(&mut self, entry: Entry) {
        let wanted = match entry.list {
            doorbell_matching::List::Priority => self.model.peek_for(&entry),
            doorbell_matching::List::Overflow => None,
        };
        match self.matcher.post(&entry) {
            Posted::Found(found) => {
                assert_eq!(Some(found), wanted, "{entry:?}");
                assert!(self.model.remove(found.handle));
            }
            Posted::Linked(handle) => {
                assert_eq!(wanted, None, "{entry:?} was linked past a kept message");
                self.model.link(handle, &entry);
                self.entries.push(handle);
            }
        }
    }

    fn arrive(&mut self, key: MatchKey, offset: u64, length: u64) {
        let wanted = self.model.arrive(&key, offset, length);
        // Looking changes nothing, however often; what is found is taken in one step or in two.
        let looked = self.matcher.look(&key, offset, length);
        assert_eq!(self.matcher.look(&key, offset, length), looked);
        let got = match looked {
            Some(candidate) if length.is_multiple_of(2) => {
                assert_eq!(self.matcher.take(&candidate), Ok(()));
                Some(candidate.hit)
            }
            _ => self.matcher.arrive_at(key, offset, length),
        };
        assert_eq!(looked.map(|candidate| candidate.hit), got);
        let plain = got.map(|got| {
            (
                got.handle,
                got.token,
                got.list,
                got.offset,
                got.length,
                got.unlinked,
            )
        });
        let wanted_plain = wanted.map(|(handle, entry, place)| {
            (
                handle,
                entry.token,
                entry.list,
                place.offset,
                place.length,
                place.unlinked,
            )
        });
        assert_eq!(plain, wanted_plain, "{key:?} of {length} bytes at {offset}");
        let keep = match wanted {
            Some((_, entry, _)) => entry.list == doorbell_matching::List::Overflow,
            None => true,
        };
        if keep {
            let token = self.token();
            let handle = self.matcher.keep(key, length, token);
            self.model.keep(handle, key, length, token);
            self.messages.push(handle);
        }
    }

    fn cancel(&mut self, random: &mut Random) {
        if self.entries.is_empty() {
            return;
        }
        let handle = self.entries[random.below(self.entries.len() as u64) as usize];
        let wanted = self.model.cancel(handle).ok_or(MatchError::StaleEntry(handle));
        assert_eq!(self.matcher.cancel(handle), wanted);
    }

    fn remove(&mut self, random: &mut Random) {
        if self.messages.is_empty() {
            return;
        }
        let handle = self.messages[random.below(self.messages.len() as u64) as usize];
        let wanted = self.model.kept.iter().find(|kept| kept.handle == handle).copied();
        self.model.remove(handle);
        assert_eq!(
            self.matcher.remove_unexpected(handle),
            wanted.ok_or(MatchError::StaleUnexpected(handle))
        );
    }

    fn drain(&mut self, source: u32) {
        let mut gone = Vec::new();
        let count = self.matcher.drain_source(source, |kept| gone.push(kept.token));
        assert_eq!(gone, self.model.drain(source), "drain of source {source}");
        assert_eq!(count, gone.len());
    }

    fn cancel_source(&mut self, source: u32) {
        let mut gone = Vec::new();
        let count = self.matcher.cancel_source(source, |token| gone.push(token));
        gone.sort_unstable();
        let mut wanted = self.model.cancel_source(source);
        wanted.sort_unstable();
        assert_eq!(gone, wanted, "cancel of source {source}");
        assert_eq!(count, gone.len());
    }

    /// One random step; the lists lean towards their depth and away from it.
    fn step(&mut self, profile: &Profile, random: &mut Random) {
        let full = self.model.posted.len() > profile.depth || self.model.kept.len() > profile.depth;
        let emptying = full && random.percent(60);
        match random.below(100) {
            _ if emptying && random.percent(50) => self.cancel_oldest(),
            _ if emptying => self.claim(Pattern {
                source_ignore: u32::MAX,
                ignore: u64::MAX,
                ..profile.pattern(random)
            }),
            0..80 if random.percent(profile.posts) => {
                let token = self.token();
                self.post(profile.entry(random, token));
            }
            0..80 => {
                let offset = if random.percent(20) { random.below(80) } else { 0 };
                self.arrive(profile.key(random), offset, random.below(48));
            }
            80..85 => {
                let pattern = profile.pattern(random);
                assert_eq!(
                    self.matcher.peek(&pattern),
                    self.model.peek(&pattern),
                    "peek {pattern:?}"
                );
            }
            85..89 => self.claim(profile.pattern(random)),
            89..91 => {
                let entry = profile.entry(random, 0);
                assert_eq!(
                    self.matcher.peek_for(&entry),
                    self.model.peek_for(&entry),
                    "{entry:?}"
                );
            }
            91..92 => {
                let entry = profile.entry(random, 0);
                let wanted = self.model.peek_for(&entry);
                assert_eq!(self.matcher.claim_for(&entry), wanted, "{entry:?}");
                wanted.map(|kept| self.model.remove(kept.handle));
            }
            92..95 => self.cancel(random),
            95..98 => self.remove(random),
            98 if random.percent(20) => self.drain(random.below(profile.sources) as u32),
            99 if random.percent(20) => self.cancel_source(random.below(profile.sources) as u32),
            _ => self.counts(profile),
        }
    }

    fn cancel_oldest(&mut self) {
        if let Some(&(handle, entry)) = self.model.posted.first() {
            assert_eq!(self.matcher.cancel(handle), Ok(entry.token));
            self.model.cancel(handle);
        }
    }

    fn claim(&mut self, pattern: Pattern) {
        let wanted = self.model.peek(&pattern);
        assert_eq!(self.matcher.claim(&pattern), wanted, "claim {pattern:?}");
        wanted.map(|kept| self.model.remove(kept.handle));
    }

    fn counts(&self, profile: &Profile) {
        let load = |of: &dyn Fn(u32) -> bool| {
            let kept = self.model.kept.iter().filter(|kept| of(kept.key.source));
            kept.fold(Load::default(), |sum, kept| Load {
                messages: sum.messages + 1,
                bytes: sum.bytes + kept.length,
            })
        };
        assert_eq!(self.matcher.posted_len(), self.model.posted.len());
        assert_eq!(self.matcher.unexpected_load(), load(&|_| true));
        for source in 0..=profile.sources as u32 {
            assert_eq!(
                self.matcher.unexpected_load_of(source),
                load(&|other| other == source)
            );
        }
    }

    /// Everything on the lists, in full.
    fn contents(&self) {
        assert!(self.matcher.unexpected().eq(self.model.kept.iter().copied()));
        let mut posted: Vec<_> = self.matcher.posted().collect();
        posted.sort_by_key(|(_, entry)| entry.token);
        assert_eq!(posted.len(), self.model.posted.len());
        for ((handle, entry), (wanted_handle, wanted)) in posted.iter().zip(&self.model.posted) {
            let clear = |pattern: Pattern| Pattern {
                source: pattern.source & !pattern.source_ignore,
                bits: pattern.bits & !pattern.ignore,
                ..pattern
            };
            let filled = if wanted.space == doorbell_matching::Space::Remote {
                entry.filled
            } else {
                wanted.filled
            };
            let wanted = Entry {
                pattern: clear(wanted.pattern),
                filled,
                ..*wanted
            };
            assert_eq!((handle, entry), (wanted_handle, &wanted));
        }
    }
}

fn run(seeds: std::ops::Range<u64>, steps: u64) {
    for seed in seeds {
        let mut step = 0;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut random = Random::new(seed);
            let profile = Profile::of(&mut random);
            let mut pair = Pair::new(&mut random);
            while step < steps {
                pair.step(&profile, &mut random);
                step += 1;
            }
            pair.counts(&profile);
            pair.contents();
        }));
        if let Err(panic) = result {
            eprintln!("seed {seed}, step {step}: the matcher and the model disagree");
            resume_unwind(panic);
        }
    }
}

#[test]
fn half_a_million_steps_in_short_runs() {
    run(0..500, 1_000);
}

#[test]
fn half_a_million_steps_in_long_runs() {
    run(1_000..1_050, 10_000);
}

#[test]
fn patterns_match_bit_by_bit() {
    let mut random = Random::new(7);
    for _ in 0..20_000 {
        let key = MatchKey::new(
            random.below(2) as u32,
            random.next_u64() as u32 & 0xff,
            random.next_u64() & 0xff,
        );
        let pattern = Pattern::exact(
            random.below(2) as u32,
            key.source ^ (random.next_u64() & random.next_u64()) as u32 & 0xff,
            key.bits ^ random.next_u64() & random.next_u64() & 0xff,
        )
        .ignoring(random.next_u64() | random.next_u64())
        .ignoring_source((random.next_u64() | random.next_u64()) as u32);
        assert_eq!(
            pattern.matches(&key),
            matches(&pattern, &key),
            "{pattern:?} {key:?}"
        );
    }
}
