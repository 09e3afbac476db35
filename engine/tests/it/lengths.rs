//! Every length at which the path of a message over shm changes, and its neighbours: the protocol that it
//! takes, and that it arrives intact.

use crate::common::{config, pattern};
use doorbell::config::{Mode, Size};
use doorbell::{Config, Counters, World};

/// The PML's header of a whole message.
const HEAD: usize = 16;
/// The header of an announcement.
const ANNOUNCEMENT: usize = 48;
/// The rail's eager limit and fragment length, headers included, and the length from which it pulls.
const LIMIT: usize = 32 << 10;

fn lengths() -> Vec<usize> {
    // One store; a cell, and as many as go in a row; a cache line; the eager limit with and without headers;
    // fragments; the lane's longest message with 128 KiB of data; one piece of a pull.
    let edges = [
        8,
        24 - HEAD,
        48 - HEAD,
        64 - HEAD,
        72 - HEAD,
        120 - HEAD,
        LIMIT - ANNOUNCEMENT,
        LIMIT - HEAD,
        LIMIT,
        LIMIT + HEAD,
        2 * LIMIT - HEAD,
        2 * LIMIT,
        24 + (64 << 10),
        256 << 10,
    ];
    let mut lengths: Vec<usize> = edges
        .iter()
        .flat_map(|edge| edge - 1..=edge + 1)
        .chain([0, 1])
        // All lengths between the limit of the body and that of the whole message.
        .chain(LIMIT - HEAD..=LIMIT)
        .collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Sends one message, which is received before or after it has arrived.
fn one(worlds: &[World], length: usize, posted: bool, synchronous: bool) {
    let data = pattern(length as u32, length);
    let region = worlds[1].region(length.max(1)).unwrap();
    let receive = || {
        let slice = region.slice(0, length).unwrap();
        worlds[1].irecv_region(0, 7, slice).unwrap()
    };
    worlds[0]
        .scope(|s| {
            let early = posted.then(receive);
            let send = if synchronous {
                s.issend(1, 7, &data)?
            } else {
                s.isend(1, 7, &data)?
            };
            if !posted {
                for _ in 0..100 {
                    worlds[1].progress();
                }
            }
            let mut receive = early.unwrap_or_else(receive);
            let mut send = send;
            for turn in 0.. {
                assert!(turn < 1_000_000, "{length} bytes never arrived");
                let (sent, received) = (send.test().transpose()?, receive.test().transpose()?);
                if sent.is_some() && received.is_some() {
                    return Ok(());
                }
                worlds[0].progress();
                worlds[1].progress();
            }
            Ok(())
        })
        .unwrap();
    let mut arrived = vec![0; length];
    region.read(0, &mut arrived);
    assert!(
        arrived == data,
        "{length} bytes, posted {posted}, synchronous {synchronous}"
    );
}

fn difference(before: Counters, after: Counters) -> [u64; 4] {
    [
        after.sent_eager - before.sent_eager,
        after.sent_rget - before.sent_rget,
        after.sent_rndv - before.sent_rndv,
        after.frags_sent - before.frags_sent,
    ]
}

fn all(config: &Config, is_right: impl Fn(usize, [u64; 3]) -> bool) {
    let worlds = doorbell::local(2, config).unwrap();
    one(&worlds, 1, true, false); // first contact
    for length in lengths() {
        for posted in [true, false] {
            let before = worlds[0].counters().unwrap();
            one(&worlds, length, posted, false);
            let [eager, rget, rndv, frags] = difference(before, worlds[0].counters().unwrap());
            let ways = [eager, rget, rndv];
            assert!(
                is_right(length, ways),
                "{length} bytes, posted {posted}: {ways:?}"
            );
            assert!(rndv > 0 || frags == 0, "{length} bytes, posted {posted}: {frags}");
            one(&worlds, length, posted, true);
        }
    }
}

#[test]
fn no_length_falls_between_eager_and_pull() {
    let mut config = config(Mode::Inline);
    config.pml.eager.set(Some(Size(LIMIT - HEAD)));
    all(&config, |length, ways| {
        ways == if length + HEAD <= LIMIT {
            [1, 0, 0]
        } else {
            [0, 1, 0]
        }
    });
}

/// What the machine measures decides which of the two it is, between 20 and 64 KiB.
#[test]
fn by_default_every_length_is_sent_at_once_or_pulled() {
    all(&config(Mode::Inline), |length, ways| match ways {
        [1, 0, 0] => length + HEAD <= (64 << 10) + 128,
        [0, 1, 0] => length + HEAD >= 20 << 10,
        _ => false,
    });
}

#[test]
fn without_pulls_every_length_goes_in_fragments() {
    let mut config = config(Mode::Inline);
    config.shm.cma.set(false);
    all(&config, |length, ways| {
        ways == if length + HEAD <= LIMIT {
            [1, 0, 0]
        } else {
            [0, 0, 1]
        }
    });
}

#[test]
fn the_smallest_lanes_and_windows_carry_every_length() {
    for (cma, unexpected, eager) in [
        (true, 1 << 10, None),
        (false, 1 << 10, None),
        (false, 4 << 20, Some(0)),
        (false, 4 << 20, Some(1 << 50)),
        (true, 4 << 30, Some(1 << 50)),
    ] {
        let mut config = config(Mode::Inline);
        config.shm.cma.set(cma);
        config.shm.cells.set(Some(2));
        config.shm.data.set(Some(Size(128 << 10)));
        config.pml.unexpected.set(Size(unexpected));
        config.pml.eager.set(eager.map(Size));
        all(&config, |_, _| true);
    }
}
