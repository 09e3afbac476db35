//! Puts of bytes, and puts that their receiver takes where they arrived.

use std::time::Duration;

use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::message::Body;
use doorbell_fabric::ni::*;

use super::world::*;

const PT: u32 = 3;

/// What a taker was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    initiator: Process,
    uid: u32,
    names: (u32, u64, u64, u64),
    bytes: Vec<u8>,
}

/// Takes the first so many puts, and notes all that it was shown.
struct Takes(usize, Vec<Shown>);

impl TakePut for Takes {
    fn take(&mut self, put: &ArrivedPut<'_>) -> bool {
        self.1.push(Shown {
            initiator: put.initiator,
            uid: put.uid,
            names: (put.pt_index, put.match_bits, put.remote_offset, put.hdr_data),
            bytes: put.bytes.to_vec(),
        });
        self.1.len() <= self.0
    }
}

/// A pair whose second rank has an entry for everything, in table entry [`PT`]; its queue and its memory.
fn receiving() -> (World, EqHandle, doorbell_fabric::memory::MutLoan) {
    let mut world = World::pair();
    let landing = bytes(8192, 0);
    let mut ni = world.ni(1);
    let eq = ni.eq_alloc(64).unwrap();
    ni.pt_alloc(PtOptions::NONE, Some(eq), Some(PT)).unwrap();
    let options = BOTH.0 | EntryOptions::EVENT_LINK_DISABLE.0;
    let mut entry = Entry::open(memory(landing), EntryOptions(options));
    entry.ignore_bits = u64::MAX;
    ni.append(PT, entry, List::Priority, 0).unwrap();
    // The first message introduces the peers to each other.
    let mut first = world.ni(0);
    let md = Md {
        memory: memory(numbered(8)),
        ..Md::default()
    };
    let md = first.md_bind(md).unwrap();
    let target = world.target(1, PT, 0, 0);
    world.ni(0).put(&put(md, 8, target)).unwrap();
    world.settle();
    assert_eq!(world.events(1, eq).len(), 1);
    landing.write(0, &[0; 8192]);
    (world, eq, landing)
}

/// Polls until nothing is under way; the second rank's puts are shown to a taker.
fn settle(world: &mut World, taker: &mut Takes) {
    let end = world.net.now() + Duration::from_millis(10);
    loop {
        let now = world.net.now();
        let kind = world.kind;
        let mut work = world.nodes[0].progress(now) + world.nodes[0].poll(16);
        work += world.nodes[1].progress(now) + world.nodes[1].poll_in_place(kind, 16, taker);
        world.nodes.iter_mut().for_each(crate::Node::flush);
        if work == 0 && (world.net.now() >= end || world.net.advance_to_next_event().is_none()) {
            return;
        }
    }
}

/// Puts words and bytes from the first rank to the second.
fn send(world: &mut World, names: (u64, u64, u64), words: &[u64], body: &[u8]) {
    let (bits, offset, hdr) = names;
    let target = world.target(1, PT, bits, offset);
    let body = Body::Shared(SharedBytes::of(body));
    let sent = world.ni(0).put_bytes(&target, hdr, words, body);
    assert_eq!(sent, Some(Ok(())), "{names:?} {words:?}");
}

fn whole(words: &[u64], body: &[u8]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    words.chain(body.iter().copied()).collect()
}

#[test]
fn bytes_that_are_put_arrive_like_those_of_a_descriptor() {
    let (mut world, eq, landing) = receiving();
    let long: Vec<u8> = (0..4000_u32).map(|at| (at * 11) as u8).collect();
    for names in [
        (7, 0, 11),
        (7, 0, 11),
        (7, 24, 0),
        (7, 24, 13),
        (7, 24, 13),
        (8, 0, 0),
    ] {
        for words in [&[][..], &[1], &[1, u64::MAX], &[5, 6, 7, 8]] {
            for length in [0, 4, 7, 8, 9, 12, 16, 17, 64, 100, 500, 4000] {
                let body = &long[..length];
                // Twice: the second one may leave out words of the first one.
                for _ in 0..2 {
                    landing.write(0, &[0; 8192]);
                    send(&mut world, names, words, body);
                    world.settle();
                    let events = world.events(1, eq);
                    let what = format!("{names:?} {words:?} {length}: {events:?}");
                    assert_eq!(events.len(), 1, "{what}");
                    let event = events[0];
                    let said = (event.match_bits, event.remote_offset, event.hdr_data);
                    let length = (8 * words.len() + length) as u64;
                    assert_eq!(
                        (said, event.mlength, event.place),
                        (names, length, names.1),
                        "{what}"
                    );
                    let landed = landing
                        .part(names.1 as usize, length as usize)
                        .as_shared()
                        .to_vec();
                    assert_eq!(landed, whole(words, body), "{what}");
                }
            }
        }
    }
    assert_eq!(world.nodes[1].drops().total(), 0);
}

#[test]
fn a_put_that_is_taken_is_neither_copied_nor_an_event() {
    let (mut world, eq, landing) = receiving();
    let mut taker = Takes(usize::MAX, Vec::new());
    let puts = [
        (7, 0, 11, 30),
        (7, 0, 11, 8),
        (7, 0, 11, 8),
        (9, 16, 0, 300),
        (9, 16, 0, 0),
    ];
    let body = [5; 300];
    for (bits, offset, hdr, length) in puts {
        send(&mut world, (bits, offset, hdr), &[], &body[..length]);
        settle(&mut world, &mut taker);
    }
    let expected = puts.map(|(bits, offset, hdr, length)| Shown {
        initiator: Process::rank(0),
        uid: 0,
        names: (PT, bits, offset, hdr),
        bytes: vec![5; length],
    });
    assert_eq!(taker.1, expected);
    assert_eq!(world.events(1, eq), []);
    assert_eq!(landing.as_shared().to_vec(), [0; 8192]);
}

#[test]
fn what_is_not_taken_is_matched_and_what_follows_is_behind_it() {
    let (mut world, eq, _) = receiving();
    let mut none = Takes(0, Vec::new());
    for hdr in 1..=3 {
        send(&mut world, (7, 0, hdr), &[hdr], &[]);
    }
    settle(&mut world, &mut none);
    assert_eq!(none.1.len(), 1, "with an event in the queue nothing is shown");
    let headers: Vec<u64> = world.events(1, eq).iter().map(|event| event.hdr_data).collect();
    assert_eq!(headers, [1, 2, 3]);
    let mut one = Takes(1, Vec::new());
    for hdr in 4..=6 {
        send(&mut world, (7, 0, hdr), &[hdr], &[]);
    }
    settle(&mut world, &mut one);
    assert_eq!(one.1.len(), 2, "one is taken, and one is left");
    let headers: Vec<u64> = world.events(1, eq).iter().map(|event| event.hdr_data).collect();
    assert_eq!(headers, [5, 6]);
}

#[test]
fn puts_with_acknowledgements_and_into_disabled_entries_are_not_shown() {
    let (mut world, eq, _) = receiving();
    let mut all = Takes(usize::MAX, Vec::new());
    let sends = world.ni(0).eq_alloc(8).unwrap();
    let from = world.ni(0).md_bind(md(numbered(64), sends)).unwrap();
    let target = world.target(1, PT, 1, 0);
    world.ni(0).put(&put(from, 16, target)).unwrap();
    settle(&mut world, &mut all);
    assert_eq!((all.1.len(), world.events(1, eq).len()), (0, 1));
    assert!(world.ni(1).pt_disable(PT).unwrap());
    send(&mut world, (1, 0, 1), &[], &[1; 16]);
    settle(&mut world, &mut all);
    assert_eq!((all.1.len(), world.events(1, eq).len()), (0, 0));
}

#[test]
fn what_does_not_go_this_way_is_refused_without_effect() {
    let (mut world, eq, _) = receiving();
    let target = world.target(1, PT, 1, 1);
    let many = [1; 5];
    // With three words of the head these are more than a head has.
    assert_eq!(world.ni(0).put_bytes(&target, 1, &many, Body::Empty), None);
    let unknown = Target {
        process: Process::rank(9),
        ..target
    };
    assert_eq!(world.ni(0).put_bytes(&unknown, 1, &[1], Body::Empty), None);
    world.settle();
    assert_eq!(world.events(1, eq), []);
}
