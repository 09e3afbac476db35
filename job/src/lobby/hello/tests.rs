use std::collections::BTreeMap;

use super::*;
use crate::meet::RankInfo;

const LIMIT: Duration = Duration::from_secs(10);

/// What a network does to frames.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Of a hundred frames, how many are lost, come twice, or are changed.
    lost: u64,
    twice: u64,
    changed: u64,
    /// Longest time on the way (ns); frames overtake each other.
    longest: u64,
}

/// Numbers that a seed fixes.
struct Dice(u64);

impl Dice {
    /// Returns a number below `most`.
    fn roll(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most.max(1)
    }
}

/// Members of several hosts, and frames on their way.
struct Network {
    now: Time,
    members: Vec<Hellos>,
    frames: Vec<(Time, u64, Vec<u8>)>,
    faults: Faults,
    dice: Dice,
    /// All frames that were sent.
    seen: Vec<(u64, Vec<u8>)>,
}

fn id(host: u8) -> PeerId {
    PeerId::new(u64::from(host), &[host; 24])
}

fn doors(host: u8) -> Doors {
    Doors::new([format!("10.0.0.{host}:56081").parse().unwrap()])
}

fn member_with(id: PeerId, host: u8, agreed: &[(&str, &str)]) -> Hellos {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let agreed: BTreeMap<String, String> = agreed.iter().map(pair).collect();
    let info = RankInfo::of_this_process(0, 1, agreed, Vec::new()).unwrap();
    Hellos::new(id, doors(host), info, LIMIT).unwrap()
}

fn member(host: u8) -> Hellos {
    member_with(id(host), host, &[])
}

impl Network {
    fn new(members: Vec<Hellos>, faults: Faults, seed: u64) -> Self {
        Self {
            now: Time::ZERO,
            members,
            frames: Vec::new(),
            faults,
            dice: Dice(seed),
            seen: Vec::new(),
        }
    }

    fn call(&mut self, from: usize, to: u8) {
        self.members[from].begin(id(to), doors(to));
    }

    /// Puts frames on their way.
    fn carry(&mut self, sent: Vec<(u64, Vec<u8>)>) {
        for (door, mut bytes) in sent {
            self.seen.push((door, bytes.clone()));
            let copies = 1 + u64::from(self.dice.roll(100) < self.faults.twice);
            for _ in 0..copies {
                if self.dice.roll(100) < self.faults.lost {
                    continue;
                }
                if self.dice.roll(100) < self.faults.changed {
                    let bit = self.dice.roll(8 * bytes.len() as u64) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                let when = self.now + Duration::from_nanos(1_000 + self.dice.roll(self.faults.longest));
                self.frames.push((when, door, bytes.clone()));
            }
        }
    }

    /// Runs until nothing is due, or `until`.
    fn run(&mut self, until: Time) {
        loop {
            let arrival = self.frames.iter().map(|(when, ..)| *when).min();
            let due = self.members.iter().filter_map(Hellos::next_deadline).min();
            let Some(next) = arrival.into_iter().chain(due).min().filter(|next| *next < until) else {
                return;
            };
            self.now = self.now.max(next);
            let mut sent = Vec::new();
            let mut post = |post: Post<'_>| {
                assert!(!post.doors.is_empty());
                sent.push((post.door, post.bytes.to_vec()));
                Ok(())
            };
            let is_there = |(when, ..): &(Time, u64, Vec<u8>)| *when <= self.now;
            let (arrived, later): (Vec<_>, Vec<_>) = self.frames.drain(..).partition(is_there);
            self.frames = later;
            for (_, door, bytes) in arrived {
                if let Some(member) = self.members.iter_mut().find(|member| member.door() == door) {
                    member.on_frame(&bytes, self.now, &mut post);
                }
            }
            for member in &mut self.members {
                member.serve(self.now, &mut post);
            }
            self.carry(sent);
        }
    }

    fn news(&mut self, of: usize) -> Vec<News> {
        self.members[of].take()
    }
}

/// The card of one piece of news about a member that was met.
fn card_of(news: Vec<News>) -> Card {
    let [News::Called(card) | News::Answered(card)] = &news[..] else {
        panic!("{news:?}");
    };
    card.clone()
}

#[test]
fn two_members_meet_in_four_messages_and_agree_on_a_key() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 1);
    net.call(0, 2);
    net.run(Time::ZERO + LIMIT);
    let stages: Vec<u8> = net.seen.iter().map(|(_, bytes)| bytes[8]).collect();
    assert_eq!(stages, [1, 2, 3, 4]);
    let [called, answered] = [net.news(1), net.news(0)].map(card_of);
    assert_eq!(
        (called.name, answered.name),
        (Name::Peer(id(1)), Name::Peer(id(2)))
    );
    assert_eq!(
        called.key.map(|key| *key.bytes()),
        answered.key.map(|key| *key.bytes())
    );
    assert!(called.key.is_some_and(|key| *key.bytes() != [0; KEY]));
    assert_eq!(net.members[1].counts().answered, 1);
    // Another call of the same acquaintance has the same number; of another one, another.
    let before = called.bond;
    for (forget, same) in [(false, true), (true, false)] {
        if forget {
            net.members[0].forget(&id(2));
        }
        net.call(0, 2);
        net.run(Time::ZERO + LIMIT);
        assert_eq!(card_of(net.news(1)).bond == before, same);
    }
}

#[test]
fn one_that_is_met_is_called_again_without_an_end_of_the_acquaintance() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 2);
    net.members[0].begin_again(id(2), doors(2));
    assert!(!net.members[0].is_wanted(&id(2)), "it was never met");
    net.call(0, 2);
    net.run(Time::ZERO + LIMIT);
    let (here, there) = (card_of(net.news(0)).bond, card_of(net.news(1)).bond);
    let again = |net: &mut Network| {
        net.members[0].begin_again(id(2), doors(2));
        let until = net.now + LIMIT * 2;
        net.run(until);
        assert!(!net.members[0].is_wanted(&id(2)));
    };
    again(&mut net);
    assert_eq!(
        (card_of(net.news(0)).bond, card_of(net.news(1)).bond),
        (here, there)
    );
    // Nothing answers for a while.
    net.faults.lost = 100;
    again(&mut net);
    assert!(net.news(0).is_empty());
    net.faults.lost = 0;
    again(&mut net);
    assert_eq!(
        (card_of(net.news(0)).bond, card_of(net.news(1)).bond),
        (here, there)
    );
    // It has come back: its number of the acquaintance is another one, and its own call is a first one.
    net.members[1] = member(2);
    again(&mut net);
    assert_ne!(card_of(net.news(0)).bond, here);
    net.faults.lost = 100;
    net.members[0].forget(&id(2));
    net.call(0, 2);
    let until = net.now + LIMIT * 2;
    net.run(until);
    assert!(matches!(net.news(0)[..], [News::Failed(..)]));
}

#[test]
fn all_meet_once_whatever_the_network_does() {
    for seed in 0..60 {
        let faults = Faults {
            lost: seed % 30,
            twice: seed % 7 * 5,
            changed: seed % 3,
            longest: 3_000_000,
        };
        let mut net = Network::new((1..=4).map(member).collect(), faults, seed);
        for from in 0..4 {
            for to in 1..=4 {
                if from + 1 != usize::from(to) {
                    net.call(from, to);
                }
            }
        }
        net.run(Time::ZERO + LIMIT * 3);
        let mut keys: HashMap<(PeerId, PeerId), Vec<[u8; KEY]>> = HashMap::new();
        for at in 0..4 {
            let mut known = Vec::new();
            for news in net.news(at) {
                match news {
                    News::Called(card) | News::Answered(card) => {
                        let Name::Peer(peer) = card.name else { panic!() };
                        // A card of the call that did not count may come late: it is of an acquaintance that
                        // the owner has.
                        if known.contains(&(peer, card.bond)) {
                            continue;
                        }
                        known.push((peer, card.bond));
                        let own = net.members[at].own;
                        let key = *card.key.unwrap().bytes();
                        keys.entry((own.min(peer), own.max(peer))).or_default().push(key);
                    }
                    // A changed frame may end a call, which another one would follow.
                    News::Failed(..) if faults.changed > 0 => {}
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        }
        if faults.changed == 0 {
            assert_eq!(keys.len(), 6, "seed {seed}");
            for (pair, found) in keys {
                assert_eq!(found.len(), 2, "seed {seed}: {pair:?}");
                assert_eq!(found[0], found[1], "seed {seed}: {pair:?}");
            }
        }
    }
}

#[test]
fn what_was_recorded_opens_nothing_later() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 3);
    net.call(0, 2);
    net.run(Time::ZERO + LIMIT);
    let recorded = std::mem::take(&mut net.seen);
    // The callee comes back without its memory: its new session opens to the caller's secrets alone.
    let mut callee = member(2);
    let mut sent = 0;
    let mut post = |_: Post<'_>| {
        sent += 1;
        Ok(())
    };
    for (door, bytes) in &recorded {
        if *door == callee.door() {
            callee.on_frame(bytes, Time::ZERO, &mut post);
        }
    }
    assert_eq!(sent, 1, "the answer, and no reply");
    assert!(callee.take().is_empty());
    assert_eq!(callee.counts().wrong_token, 1);
}

#[test]
fn a_call_opens_nothing_under_another_number_or_with_another_place() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 7);
    net.members[0].begin(id(2), doors(2));
    let mut frames = Vec::new();
    let mut post = |post: Post<'_>| {
        frames.push(post.bytes.to_vec());
        Ok(())
    };
    net.members[0].serve(Time::ZERO, &mut post);
    // The number of the call, the number of the caller's frames, the first address.
    for at in [0, frame::HEADER, frame::HEADER + 8] {
        let mut bytes = frames[0].clone();
        bytes[at] ^= 1;
        let mut post = |_: Post<'_>| panic!("byte {at} was changed, and the call answered");
        net.members[1].on_frame(&bytes, Time::ZERO, &mut post);
    }
    assert_eq!(net.members[1].counts().wrong_token, 3);
    assert!(net.members[1].answered.is_empty());
}

#[test]
fn a_card_that_was_kept_opens_nothing_later() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 8);
    // Both call at once. The call of the lower one counts, and it keeps the other's card until then.
    net.call(0, 2);
    net.call(1, 1);
    net.run(Time::ZERO + LIMIT * 2);
    let (one, two) = (card_of(net.news(0)), card_of(net.news(1)));
    assert_eq!(one.key.map(|key| *key.bytes()), two.key.map(|key| *key.bytes()));
    // They forget each other. What was recorded of both calls comes again.
    net.members[0].forget(&id(2));
    net.members[1].forget(&id(1));
    for (door, bytes) in std::mem::take(&mut net.seen) {
        let mut post = |_: Post<'_>| Ok(());
        let now = net.now;
        let to = net.members.iter_mut().find(|member| member.door() == door);
        to.unwrap().on_frame(&bytes, now, &mut post);
    }
    assert!(net.news(0).is_empty() && net.news(1).is_empty());
}

#[test]
fn silent_members_do_not_keep_others_from_being_called() {
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 9);
    for number in 0..2 * CALLING as u64 {
        let mut random = [3; 24];
        random[..8].copy_from_slice(&(number + 1).to_le_bytes());
        net.members[0].begin(PeerId::new(3, &random), doors(3));
    }
    net.call(0, 2);
    net.run(Time::ZERO + LIMIT / 2);
    assert_eq!(card_of(net.news(0)).name, Name::Peer(id(2)));
    // The others fail in their own time.
    net.run(Time::ZERO + LIMIT * 2);
    let failed = net.news(0);
    assert_eq!(failed.len(), 2 * CALLING);
    assert!(failed.iter().all(|news| matches!(news, News::Failed(..))));
}

#[test]
fn another_token_is_not_answered() {
    let mut random = [2; 24];
    random[23] ^= 1;
    let other = PeerId::new(2, &random);
    let mut net = Network::new(vec![member(1), member(2)], Faults::default(), 4);
    // The caller has an address with a changed token, and its frames come to the member all the same.
    net.members[0].begin(other, doors(2));
    let mut frames = Vec::new();
    let mut post = |post: Post<'_>| {
        frames.push(post.bytes.to_vec());
        Ok(())
    };
    net.members[0].serve(Time::ZERO, &mut post);
    assert_ne!(door_of(&other), net.members[1].door());
    let mut answers = 0;
    net.members[1].on_frame(&frames[0], Time::ZERO, &mut |_| {
        answers += 1;
        Ok(())
    });
    assert_eq!((answers, net.members[1].counts().wrong_token), (0, 1));
    net.run(Time::ZERO + LIMIT * 2);
    let [News::Failed(name, reason)] = &net.news(0)[..] else {
        panic!()
    };
    assert_eq!(*name, Name::Peer(other));
    assert!(reason.contains("10.0.0.2:56081 within 10s"), "{reason}");
}

#[test]
fn members_that_cannot_meet_find_the_reason() {
    let other = member_with(id(2), 2, &[("pml.eager", "9")]);
    let ours = member_with(id(1), 1, &[("pml.eager", "8")]);
    let mut net = Network::new(vec![ours, other], Faults::default(), 5);
    net.call(0, 2);
    net.run(Time::ZERO + LIMIT * 2);
    let [News::Failed(_, reason)] = &net.news(0)[..] else {
        panic!()
    };
    assert_eq!(reason, "pml.eager is 9 there and 8 here");
    assert!(net.news(1).is_empty());
    assert_eq!(net.members[1].counts().unlike, 1);
}

#[test]
fn a_call_that_no_rail_can_carry_says_so() {
    let mut alone = member(1);
    alone.begin(id(2), doors(2));
    let mut post = |_: Post<'_>| Err("udp:v0 has no route there".to_owned());
    alone.serve(Time::ZERO, &mut post);
    alone.serve(Time::ZERO + LIMIT, &mut post);
    let [News::Failed(_, reason)] = &alone.take()[..] else {
        panic!()
    };
    assert_eq!(
        reason,
        "no rail of this process leads to 10.0.0.2:56081: udp:v0 has no route there"
    );
    assert_eq!(alone.next_deadline(), None);
}

#[test]
fn nonsense_takes_no_room() {
    let mut member = member(1);
    let mut dice = Dice(6);
    let mut post = |_: Post<'_>| panic!("nonsense was answered");
    for round in 0..20_000_u64 {
        let length = dice.roll(LONGEST as u64 + 8) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| dice.roll(256) as u8).collect();
        if let (Some(header), 1..) = (bytes.get_mut(8..12), round % 4) {
            header.copy_from_slice(&[1 + dice.roll(4) as u8, 0, 1, 0]);
        }
        member.on_frame(&bytes, Time::ZERO, &mut post);
    }
    assert!(member.answered.is_empty() && member.calling.is_empty() && member.take().is_empty());
}
