//! Messages that take a cell or a run of them, and those just above: every length, head and kind of body.

use super::*;

const HEADS: [usize; 6] = [0, 8, 16, 17, 24, 40];
const MOST: usize = 140;

fn small() -> ShmConfig {
    ShmConfig {
        cells: 16,
        data: 4096,
        eager: 512,
        fragment: 512,
        ..ShmConfig::default()
    }
}

/// The kinds of bodies, of the same bytes.
fn send(rail: &mut ShmRail, kind: usize, head: &[u8], bytes: &'static [u8]) -> Result<MsgId, Refused> {
    let loan = ConstLoan::of_static(bytes);
    let (front, back) = (loan.part(0, bytes.len() / 3), loan.part(bytes.len() / 3, MOST));
    let slice = Region::new(MOST).unwrap().slice(0, bytes.len()).unwrap();
    slice.write_shared(0, SharedBytes::of(bytes));
    let parts = [front, back];
    let body = match kind {
        0 => Body::Bytes(bytes),
        1 => Body::Loan(loan),
        2 => Body::Shared(loan.as_shared()),
        3 => Body::Parts(&parts),
        _ => Body::Region(&slice),
    };
    rail.send(PeerIndex(1), head, body)
}

#[test]
fn every_length_arrives_whatever_its_head_and_kind() {
    let mut world = World::new(2, &small());
    world.up(0, 1);
    let bytes: &'static [u8] = (0..MOST).map(|i| (i * 37 + 1) as u8).collect::<Vec<_>>().leak();
    let mut number = 1;
    for head in HEADS {
        for length in 0..=MOST {
            for kind in 0..5 {
                number += 1;
                let head = &[0xa5; 40][..head];
                let sent = send(&mut world.rails[0], kind, head, &bytes[..length]);
                assert_eq!(sent, Ok(MsgId(number)), "{length} bytes");
                // Each at another place of the ring than the one before.
                world.until("delivery", |world| !world.seen[1].messages.is_empty());
                let (_, got) = world.seen[1].messages.remove(0);
                assert_eq!(
                    got,
                    [head, &bytes[..length]].concat(),
                    "{length} bytes, kind {kind}"
                );
            }
        }
    }
    world.until("the watermark", |world| {
        world.rails[0].handed_over(PeerIndex(1)) == MsgId(number)
    });
    assert!(world.seen[1].messages.is_empty());
}

/// By the call that waits for one head; one that does not fit the room is left for a poll.
#[test]
fn every_length_is_found_by_a_look() {
    let mut world = World::new(2, &small());
    world.up(0, 1);
    let bytes: &'static [u8] = (0..MOST).map(|i| (i * 37 + 1) as u8).collect::<Vec<_>>().leak();
    let head = [7u64, 9].map(u64::to_ne_bytes).concat();
    let watch = |looks, between| Watch {
        looks,
        between,
        answer: true,
    };
    let up = (0..=MOST).map(|length| (length, watch(1, Between::Pauses(0))));
    let down = (0..=MOST).rev().map(|length| (length, watch(5, Between::Yield)));
    for (length, watch) in up.chain(down) {
        send(&mut world.rails[0], length % 4, &head, &bytes[..length]).unwrap();
        let room = MutLoan::of_static(vec![0; length + 8].leak());
        let rail = &mut world.rails[1];
        if length > 0 {
            let less = room.part(0, length - 1);
            let look = Message::look(rail, PeerIndex(0), [7, 9], less.into(), watch);
            assert!(matches!(look, Look::Other), "{length}");
        }
        let look = Message::look(rail, PeerIndex(0), [7, 9], room.into(), watch);
        assert!(matches!(look, Look::Taken(taken) if taken == length), "{length}");
        let written = room.as_shared().to_vec();
        assert_eq!(written[..length], bytes[..length]);
        assert_eq!(written[length..], [0; 8], "nothing behind it");
        world.pump();
        assert!(world.seen[1].messages.is_empty());
        let look = Message::look(&mut world.rails[1], PeerIndex(0), [7, 9], room.into(), watch);
        assert!(matches!(look, Look::Nothing), "{length}");
    }
}

/// Bytes that look like the marks of the cells that come: all arrive, and nothing else does.
#[test]
fn bytes_that_look_like_marks_arrive_like_any() {
    let mut world = World::new(2, &small());
    world.up(0, 1);
    for round in 0..2000u64 {
        // As far as the ring can be by then, in every word.
        let marks = (0..13).map(|word| (round * (1 + word % 4) + 2 * word + 1) << 32 | 8);
        let body: Vec<u8> = marks.flat_map(u64::to_ne_bytes).collect();
        let body = &body[..(round % 105) as usize];
        let id = world.rails[0]
            .send(PeerIndex(1), &[1; 16], Body::Bytes(body))
            .unwrap();
        assert_eq!(id, MsgId(round + 2));
        world.until("delivery", |world| !world.seen[1].messages.is_empty());
        world.pump();
        let (_, got) = world.seen[1].messages.remove(0);
        assert!(got[16..] == *body && world.seen[1].messages.is_empty(), "{round}");
    }
}
