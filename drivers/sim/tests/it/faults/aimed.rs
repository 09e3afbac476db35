//! Faults for chosen frames.

use std::time::Duration;

use doorbell_fabric::datagram::Channel;
use doorbell_fabric::time::Time;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane, Stats};

use super::two::{Two, number, two};

/// Fifty numbered frames; every third of them has 40 bytes, and a 7 in byte 16.
fn run(aim: Aim) -> (Two, Stats) {
    let faults = Faults {
        aim: Some(aim),
        ..Faults::NONE
    };
    let mut two = two(1, faults);
    for n in 0..50_u64 {
        let mut bytes = n.to_le_bytes().repeat(2);
        if n % 3 == 0 {
            bytes.extend([7; 24]);
        } else {
            bytes.extend([8; 8]);
        }
        two.post(&bytes);
        two.net.advance_to(two.net.now() + Duration::from_micros(1));
        two.take();
    }
    two.play();
    let stats = two.net.total();
    (two, stats)
}

fn numbers(two: &Two) -> Vec<u64> {
    two.got.iter().map(|(_, bytes)| number(bytes)).collect()
}

#[test]
fn by_length_byte_and_channel() {
    let third = |n: &u64| !n.is_multiple_of(3);
    let picks = [
        Pick {
            shortest: 33,
            ..Pick::ALL
        },
        Pick::byte(16, 7),
        Pick {
            longest: 40,
            ..Pick::byte(39, 7)
        },
    ];
    for pick in picks {
        let (two, stats) = run(Aim::each(pick, Effect::Lose));
        assert_eq!(
            numbers(&two),
            (0..50).filter(third).collect::<Vec<_>>(),
            "{pick:?}"
        );
        assert_eq!((stats.aimed, stats.lost_by_aim, stats.lost), (17, 17, 0));
    }
    let other = Pick {
        channel: Some(Channel::Priority),
        ..Pick::ALL
    };
    assert_eq!(run(Aim::each(other, Effect::Lose)).1.aimed, 0);
}

#[test]
fn by_count_and_again_from_the_start_with_new_faults() {
    let aim = Aim {
        pick: Pick::byte(16, 7),
        first: 3,
        every: 4,
        times: 2,
        effect: Effect::Lose,
    };
    let (mut two, _) = run(aim);
    let lost: Vec<u64> = (0..50).filter(|n| !numbers(&two).contains(n)).collect();
    assert_eq!(lost, [6, 18], "the third and the seventh of 0, 3, 6, …");
    let faults = Faults {
        aim: Some(Aim::nth(Pick::ALL, 1, Effect::Lose)),
        ..Faults::NONE
    };
    two.net.change(Change::Faults(Plane::FIRST, faults));
    let before = two.got.len();
    two.post(&[1; 8]);
    two.post(&[2; 8]);
    two.play();
    assert_eq!(two.got.len() - before, 1);
    assert_eq!(two.got[before].1, [2; 8]);
}

#[test]
fn each_effect() {
    let tenth = |effect| run(Aim::nth(Pick::ALL, 10, effect));
    let twice = |at: usize| {
        let mut all: Vec<u64> = (0..50).collect();
        all.insert(at, 9);
        all
    };

    let (two, stats) = tenth(Effect::Duplicate);
    assert_eq!((numbers(&two), stats.duplicated), (twice(9), 1));

    let (two, stats) = tenth(Effect::Replay(Duration::from_micros(5)));
    assert_eq!(stats.replayed, 1);
    let again = two.got.iter().filter(|(_, bytes)| number(bytes) == 9);
    let times: Vec<Time> = again.map(|(at, _)| *at).collect();
    assert_eq!(times, [Time::from_nanos(10_000), Time::from_nanos(15_000)]);

    let (two, stats) = tenth(Effect::Delay(Duration::from_nanos(5_500)));
    let late = two.got.iter().position(|(_, bytes)| number(bytes) == 9);
    assert_eq!((late, two.got.len(), stats.aimed), (Some(14), 50, 1));

    let (two, _) = tenth(Effect::Overtaken(20));
    let late = two.got.iter().position(|(_, bytes)| number(bytes) == 9);
    assert_eq!((late, two.got.len()), (Some(29), 50));

    let (two, stats) = tenth(Effect::Corrupt);
    assert_eq!(stats.corrupted, 1);
    let sent = [9_u64.to_le_bytes().repeat(2), vec![7; 24]].concat();
    assert!(two.got[9].1 != sent && two.got[9].1.len() == 40);

    let (two, stats) = tenth(Effect::Truncate(11));
    assert_eq!((&two.got[9].1[..], stats.truncated), (&sent[..11], 1));

    let (two, stats) = tenth(Effect::Lengthen(5));
    assert_eq!((&two.got[9].1[..40], stats.lengthened), (&sent[..], 1));
    assert_eq!(two.got[9].1.len(), 45);
}
