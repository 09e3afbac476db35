//! The interface for foreign front ends: one test per call of reference ofi, section P9.

use std::time::Duration;

use crate::common::{in_both_modes, pattern};
use doorbell::raw::{Aborted, Completion, Payload, Raw, SendMode, Sent, Target};
use doorbell::{Error, Region, RegionSlice, Source, Status, Tag};

const LONG: Duration = Duration::from_secs(20);

fn whole(region: &Region, at: usize, length: usize) -> RegionSlice {
    region.slice(at, length).unwrap()
}

fn bytes(region: &Region, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(at, &mut bytes);
    bytes
}

fn finished(raw: Raw<'_>) -> Result<Status, Error> {
    match raw.wait(LONG)? {
        Completion::Request { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn contexts_keep_front_ends_apart_and_low_ones_are_the_worlds_own() {
    in_both_modes(1, |world| {
        assert_eq!(world.raw(15).unwrap_err().code(), "unsupported");
        let (one, two) = (world.raw(16).unwrap(), world.raw(17).unwrap());
        one.inject(0, 5, b"sixteen").unwrap();
        world.send(0, 5, b"zero").unwrap();
        assert!(two.peek(Source::Any, Tag::any()).unwrap().is_none());
        assert_eq!(one.peek(Source::Any, Tag::any()).unwrap().unwrap().len, 7);
        assert_eq!(world.recv(0, 5, &mut [0; 16]).unwrap().len, 4);
    });
}

#[test]
fn match_bits_ignore_masks_and_one_queue() {
    in_both_modes(2, |world| {
        let raw = world.raw(20).unwrap();
        let other = 1 - world.rank();
        let region = world.region(200_000).unwrap();
        let id = raw
            .recv(
                Source::Rank(other),
                Tag::masked(0xab00, 0xff),
                Target::Region(whole(&region, 0, 90_000)),
            )
            .unwrap();
        region.write(100_000, &pattern(world.rank(), 90_000));
        let payload = Payload::Region(whole(&region, 100_000, 90_000));
        let sent = raw.send(other, 0xab42, payload, SendMode::Synchronous).unwrap();
        let Sent::Pending(sent) = sent else {
            panic!("a synchronous send is not done at once")
        };
        let mut left = vec![id, sent];
        while !left.is_empty() {
            match raw.wait(LONG).unwrap() {
                Completion::Request { id, outcome } => {
                    let status = outcome.unwrap();
                    assert_eq!((status.tag, status.len), (0xab42, 90_000));
                    left.retain(|one| *one != id);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(bytes(&region, 0, 90_000) == pattern(other, 90_000));
        assert!(raw.next_completion().unwrap().is_none());
        world.barrier().unwrap();
    });
}

#[test]
fn peek_claim_receive_and_discard() {
    in_both_modes(1, |world| {
        let raw = world.raw(16).unwrap();
        let region = world.region(64).unwrap();
        raw.inject(0, 1, b"first").unwrap();
        raw.inject(0, 2, b"second").unwrap();
        assert_eq!(raw.peek(Source::Any, Tag::exact(2)).unwrap().unwrap().len, 6);
        let second = raw.claim(Source::Any, Tag::exact(2)).unwrap().unwrap();
        assert!(raw.peek(Source::Any, Tag::exact(2)).unwrap().is_none());
        raw.recv_claimed(second.message, Target::Region(whole(&region, 0, 6)))
            .unwrap();
        assert_eq!(finished(raw).unwrap().tag, 2);
        assert_eq!(bytes(&region, 0, 6), b"second");
        let first = raw.claim(Source::Any, Tag::any()).unwrap().unwrap();
        assert_eq!(raw.discard(first.message).unwrap().len, 5);
        assert_eq!(raw.discard(first.message).unwrap_err().code(), "stale");
        assert!(raw.claim(Source::Any, Tag::any()).unwrap().is_none());
    });
}

#[test]
fn cancelled_and_aborted_receives() {
    in_both_modes(1, |world| {
        let raw = world.raw(16).unwrap();
        let region = world.region(16).unwrap();
        let one = raw
            .recv(Source::Any, Tag::exact(1), Target::Region(whole(&region, 0, 8)))
            .unwrap();
        assert!(raw.cancel(one).unwrap());
        assert!(matches!(finished(raw), Err(Error::Cancelled)));
        let two = raw
            .recv(Source::Any, Tag::exact(2), Target::Region(whole(&region, 0, 8)))
            .unwrap();
        assert_eq!(raw.abort(two).unwrap(), Aborted::Now);
        raw.inject(0, 2, b"not seen").unwrap();
        assert_eq!(raw.wait(Duration::from_millis(20)).unwrap_err().code(), "timeout");
        assert_eq!(bytes(&region, 0, 8), [0; 8]);
    });
}

#[test]
fn one_buffer_takes_many_messages() {
    in_both_modes(2, |world| {
        let raw = world.raw(16).unwrap();
        if world.rank() == 1 {
            for n in 0..10u8 {
                raw.inject(0, u64::from(n), &[n; 100]).unwrap();
            }
            world.barrier().unwrap();
            return;
        }
        let region = world.region(1_000).unwrap();
        let id = raw
            .recv_multi(
                Source::Rank(1),
                Tag::any(),
                Target::Region(whole(&region, 0, 1_000)),
                100,
            )
            .unwrap();
        let mut tags = Vec::new();
        loop {
            match raw.wait(LONG).unwrap() {
                Completion::Delivery(delivery) => {
                    assert_eq!(
                        (delivery.request, delivery.delivered, delivery.intact),
                        (id, 100, true)
                    );
                    let at = delivery.offset as usize;
                    assert_eq!(bytes(&region, at, 100), [delivery.status.tag as u8; 100]);
                    tags.push(delivery.status.tag);
                }
                Completion::Request { id: ended, outcome } => {
                    assert_eq!((ended, outcome.unwrap().len), (id, 1_000));
                    break;
                }
            }
        }
        // Deliveries come before the completion of the buffer.
        assert_eq!(tags, (0..10).collect::<Vec<u64>>());
        world.barrier().unwrap();
    });
}

#[test]
fn a_foreign_event_loop_sleeps_on_one_descriptor() {
    in_both_modes(2, |world| {
        const ROUNDS: u64 = 200;
        let raw = world.raw(16).unwrap();
        let other = 1 - world.rank();
        let region = world.region(8).unwrap();
        let descriptor = raw.descriptor().unwrap();
        let mut sleeps = 0;
        for round in 0..ROUNDS {
            raw.recv(
                Source::Rank(other),
                Tag::exact(round),
                Target::Region(region.whole()),
            )
            .unwrap();
            if world.rank() == 0 {
                // Sometimes late, so that the other side is asleep; sometimes at once, so that it is about to
                // sleep.
                if round % 4 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                raw.inject(other, round, &round.to_le_bytes()).unwrap();
            }
            loop {
                if let Some(completion) = raw.next_completion().unwrap() {
                    let Completion::Request { outcome, .. } = completion else {
                        panic!("{completion:?}")
                    };
                    assert_eq!(outcome.unwrap().tag, round);
                    break;
                }
                if let Some(longest) = raw.arm().unwrap() {
                    let longest = longest.min(LONG);
                    let timeout = rustix::event::Timespec {
                        tv_sec: longest.as_secs() as i64,
                        tv_nsec: longest.subsec_nanos().into(),
                    };
                    let fds = &mut [rustix::event::PollFd::new(
                        &descriptor,
                        rustix::event::PollFlags::IN,
                    )];
                    rustix::event::poll(fds, Some(&timeout)).unwrap();
                    sleeps += 1;
                    raw.disarm();
                }
            }
            if world.rank() == 1 {
                raw.inject(other, round, &round.to_le_bytes()).unwrap();
            }
        }
        assert!(sleeps > 0);
        world.barrier().unwrap();
    });
}
