//! What contact costs: nothing for a peer that is only opened, and no allocation for what is repeated.

use doorbell_testing::alloc;

use super::*;

/// An address of a host of many.
fn far(host: u32) -> Vec<u8> {
    let mut address = local(3, 3).address;
    let [.., a, b, c] = &mut address.gids[0].gid.0;
    (*a, *b, *c) = ((host >> 16) as u8, (host >> 8) as u8, host as u8);
    // As long as can be.
    while address.gids.len() < 6 {
        let mut more = address.gids[0];
        more.gid.0[12] = 11 + address.gids.len() as u8;
        address.gids.push(more);
    }
    address.to_bytes()
}

#[test]
fn a_peer_that_was_opened_and_never_spoken_to_takes_256_bytes_at_most() {
    let mut contact = contact(local(1, 1));
    let before = alloc::of_thread();
    for count in 1..5000 {
        contact.open(&far(count), Incarnation(2), None).unwrap();
        let held = (alloc::of_thread() - before).held;
        // The first few share what a table has at least.
        assert!(
            count < 32 || held <= 256 * i64::from(count),
            "{held} bytes for {count}"
        );
    }
    assert!(contact.next_deadline().is_none() && contact.event().is_none());
}

#[test]
fn frames_that_are_repeated_allocate_nothing() {
    let config = ContactConfig {
        patience: Duration::MAX,
        ..ContactConfig::default()
    };
    let mut a = Contact::new(config, local(1, 1)).unwrap();
    a.set_key(&KEY);
    let mut now = Time::ZERO;
    let peers: Vec<PeerIndex> = (1..50)
        .map(|host| a.open(&far(host), Incarnation(2), None).unwrap())
        .collect();
    for peer in peers {
        a.call(peer, now);
    }
    let mut pair = 1000;
    while let Some(Event::Make(attempt)) = a.event() {
        pair += 1;
        let numbers = Numbers {
            pairs: [pair, 0],
            ..Numbers::default()
        };
        a.made(attempt, Some(numbers), now);
    }
    let mut frame = [0; LONGEST];
    let mut sent = 0;
    alloc::steady("calls", 600, || {
        now = a.next_deadline().unwrap();
        a.tick(now);
        while let Some((_, length)) = a.next_frame(&mut frame) {
            sent += usize::from(length == 160);
        }
    });
    assert!(sent > 800, "{sent} calls");
}

#[test]
fn answers_to_repeated_frames_allocate_nothing() {
    let mut world = World::new();
    world.call(0);
    let call = world.net[0].clone();
    world.run_up();
    let [_, end] = &mut world.ends;
    let mut frame = [0; LONGEST];
    let mut answers = 0;
    alloc::steady("answers", 100, || {
        end.contact.receive(&call.from, &call.bytes, world.now);
        answers += usize::from(end.contact.next_frame(&mut frame).is_some());
    });
    assert_eq!(answers, 200);
    assert!(world.are_up());
}
