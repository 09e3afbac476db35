//! The promises of `Message` about one-sided operations, each a check by name. A feature that the
//! capabilities do not offer is seen refused instead.

use std::time::Instant;

use doorbell_fabric::event::EventKind;
use doorbell_fabric::memory::{ConstLoan, Region};
use doorbell_fabric::message::{
    Access, AtomicOp, Body, Exposure, FenceScope, Landing, Message, OpError, OpId, Refused, Remote, RemoteKey,
};

use super::Pair;
use super::message::pattern;

const SIZE: usize = 3000;

fn region(salt: usize) -> Region {
    let region = Region::new(SIZE).expect("memory for a test");
    region.write(0, &pattern(SIZE, salt));
    region
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Exposes a region at `b` to `a`; `None` when the rail offers no such access.
fn expose<R: Message>(pair: &mut Pair<R>, memory: &Region, access: Access) -> Option<Remote> {
    let to_a = pair.to_a;
    match pair
        .b()
        .expose(Exposure::Region(memory.whole()), access, Some(to_a))
    {
        Ok(remote) => {
            assert_eq!(remote.length.get(), memory.len() as u64);
            Some(remote)
        }
        Err(refused) => {
            assert_eq!(
                refused,
                Refused::Unsupported,
                "only a missing feature refuses an exposure here"
            );
            let features = pair.a.capabilities().features;
            let offered = match access {
                Access::Read => features.get,
                Access::Write => features.put,
                Access::ReadWrite => features.get && features.put && features.atomics,
            };
            assert!(!offered, "an offered access is not refused");
            None
        }
    }
}

/// The end of an operation: refused at once, or its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Refused(Refused),
    Ended(Result<u64, OpError>),
}

impl End {
    /// Whether it ended as an access that is not allowed must.
    fn is_refusal(self) -> bool {
        matches!(
            self,
            End::Refused(Refused::BadMemory) | End::Ended(Err(OpError::Denied | OpError::Withdrawn))
        )
    }
}

/// Starts an operation (again while the rail is full), and waits for its one completion.
fn run<R: Message>(
    pair: &mut Pair<R>,
    op: OpId,
    start: impl Fn(&mut Pair<R>, OpId) -> Result<(), Refused>,
) -> End {
    let begin = Instant::now();
    loop {
        match start(pair, op) {
            Ok(()) => break,
            Err(Refused::Full) => pair.turn(),
            Err(refused) => return End::Refused(refused),
        }
        assert!(
            begin.elapsed() < super::PATIENCE,
            "never happened: room for an operation"
        );
    }
    pair.until("the operation ends", |pair| {
        pair.at_a.ended.iter().any(|&(ended, _)| ended == op)
    });
    let of_op = |pair: &Pair<R>| -> Vec<_> {
        pair.at_a
            .ended
            .iter()
            .filter(|&&(ended, _)| ended == op)
            .map(|&(_, outcome)| outcome)
            .collect()
    };
    (0..20).for_each(|_| pair.turn());
    let ends = of_op(pair);
    assert_eq!(ends.len(), 1, "an operation ends once: {ends:?}");
    End::Ended(ends[0])
}

fn get<R: Message>(pair: &mut Pair<R>, op: u64, from: &Remote, into: &Region, at: usize) -> End {
    let into = into
        .slice(at, from.length.get() as usize)
        .expect("inside the region");
    run(pair, OpId(op), |pair, op| {
        pair.a.get(pair.to_b, op, from, Landing::Region(into.clone()))
    })
}

fn put<R: Message>(pair: &mut Pair<R>, op: u64, from: &[u8], to: &Remote) -> End {
    run(pair, OpId(op), |pair, op| {
        pair.a.put(pair.to_b, op, Body::Bytes(from), to)
    })
}

/// A get of all, of a part, of nothing.
pub fn get_reads_exactly_what_was_exposed<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    let Some(remote) = expose(pair, &there, Access::Read) else {
        let remote = Remote {
            key: 1.into(),
            address: 0.into(),
            length: 8.into(),
        };
        let refused = pair.a.get(
            pair.to_b,
            OpId(1),
            &remote,
            Landing::Region(here.slice(0, 8).expect("inside")),
        );
        assert_eq!(refused, Err(Refused::Unsupported));
        return;
    };
    let part = remote.part(100, 50).expect("inside");
    assert_eq!(get(pair, 1, &part, &here, 10), End::Ended(Ok(0)));
    let mut expected = pattern(SIZE, 2);
    expected[10..60].copy_from_slice(&pattern(SIZE, 1)[100..150]);
    assert!(
        bytes_of(&here) == expected,
        "exactly the requested part, exactly where"
    );
    assert_eq!(get(pair, 2, &remote, &here, 0), End::Ended(Ok(0)));
    assert!(bytes_of(&here) == pattern(SIZE, 1), "all of it");
    let nothing = remote.part(SIZE as u64, 0).expect("at the end");
    assert_eq!(get(pair, 3, &nothing, &here, 0), End::Ended(Ok(0)));
    assert!(bytes_of(&there) == pattern(SIZE, 1), "the target is as it was");
}

/// A put writes exactly its range before its completion.
pub fn put_writes_exactly_its_range<R: Message>(pair: &mut Pair<R>) {
    let there = region(1);
    let Some(remote) = expose(pair, &there, Access::Write) else {
        let remote = Remote {
            key: 1.into(),
            address: 0.into(),
            length: 8.into(),
        };
        let refused = pair.a.put(pair.to_b, OpId(1), Body::Bytes(&[0; 8]), &remote);
        assert_eq!(refused, Err(Refused::Unsupported));
        return;
    };
    let part = remote.part(100, 50).expect("inside");
    let (first, second) = (pattern(50, 3), region(4));
    assert_eq!(put(pair, 1, &first, &part), End::Ended(Ok(0)));
    let mut expected = pattern(SIZE, 1);
    expected[100..150].copy_from_slice(&first);
    assert!(
        bytes_of(&there) == expected,
        "the bytes are at the target when the put has ended"
    );
    let whole = second.whole();
    let end = run(pair, OpId(2), |pair, op| {
        pair.a.put(pair.to_b, op, Body::Region(&whole), &remote)
    });
    assert_eq!(end, End::Ended(Ok(0)));
    assert!(bytes_of(&there) == pattern(SIZE, 4), "a put of a region");
    let wrong = pair.a.put(pair.to_b, OpId(3), Body::Bytes(&first[1..]), &part);
    assert_eq!(wrong, Err(Refused::BadMemory), "lengths are equal");
}

/// Every atomic, with the old value it answers and the new one it leaves.
pub fn atomics_answer_the_old_value<R: Message>(pair: &mut Pair<R>) {
    let there = Region::new(64).expect("memory for a test");
    let at = Remote {
        key: 1.into(),
        address: 0.into(),
        length: 8.into(),
    };
    if !pair.a.capabilities().features.atomics {
        assert_eq!(
            pair.a.atomic(pair.to_b, OpId(1), &at, AtomicOp::Add(1)),
            Err(Refused::Unsupported)
        );
        return;
    }
    let remote = expose(pair, &there, Access::ReadWrite).expect("atomics need memory to act on");
    let at = remote.part(8, 8).expect("inside");
    let missed = AtomicOp::CompareSwap {
        expected: 1,
        desired: 2,
    };
    let hit = AtomicOp::CompareSwap {
        expected: 77,
        desired: u64::MAX,
    };
    let steps = [
        (AtomicOp::Add(0b1100), 0),
        (AtomicOp::And(0b0110), 0b1100),
        (AtomicOp::Or(0b0011), 0b0100),
        (AtomicOp::Xor(0b0101), 0b0111),
        (AtomicOp::Swap(77), 0b0010),
        (missed, 77),
        (hit, 77),
        (AtomicOp::Add(1), u64::MAX),
        (AtomicOp::Add(0), 0),
    ];
    for (op, (what, old)) in (1..).zip(steps) {
        let end = run(pair, OpId(op), |pair, op| pair.a.atomic(pair.to_b, op, &at, what));
        assert_eq!(end, End::Ended(Ok(old)), "{what:?}");
    }
    assert_eq!(
        bytes_of(&there),
        [0; 64],
        "the eight bytes beside are as they were"
    );
    let wide = remote.part(8, 16).expect("inside");
    assert_eq!(
        pair.a.atomic(pair.to_b, OpId(90), &wide, AtomicOp::Add(1)),
        Err(Refused::BadMemory)
    );
    let crooked = remote.part(4, 8).expect("inside");
    assert_eq!(
        pair.a.atomic(pair.to_b, OpId(91), &crooked, AtomicOp::Add(1)),
        Err(Refused::BadMemory)
    );
}

/// Ranges that a peer makes up itself are checked by the target.
pub fn nothing_outside_the_exposure_is_reached<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    let Some(remote) = expose(pair, &there, Access::Read) else {
        return;
    };
    assert_eq!(remote.part(1, SIZE as u64), None);
    assert_eq!(remote.part(u64::MAX, 1), None);
    let (start, end) = (remote.address.get(), remote.address.get() + remote.length.get());
    let outside = [
        (end - 7, 8),
        (end, 8),
        (start.wrapping_sub(1), 8),
        (end + (1 << 20), 8),
        (u64::MAX - 3, 8),
    ];
    for (op, (address, length)) in (1..).zip(outside) {
        let made_up = Remote {
            key: remote.key,
            address: address.into(),
            length: u64::into(length),
        };
        let ended = get(pair, op, &made_up, &here, 0);
        assert!(
            ended.is_refusal(),
            "a get at {address:#x} of {start:#x}..{end:#x} ended as {ended:?}"
        );
    }
    assert!(
        bytes_of(&here) == pattern(SIZE, 2),
        "a refused get brings nothing"
    );
    let longer = pair.a.get(
        pair.to_b,
        OpId(99),
        &remote,
        Landing::Region(here.slice(0, 8).expect("inside")),
    );
    assert_eq!(longer, Err(Refused::BadMemory), "lengths are equal");
}

/// The operation holds the region that a get fills: its owner need not keep it.
pub fn a_get_keeps_the_region_that_it_fills<R: Message>(pair: &mut Pair<R>) {
    let there = region(1);
    let Some(remote) = expose(pair, &there, Access::Read) else {
        return;
    };
    for round in 0..20 {
        let here = region(2);
        let object = std::os::fd::AsFd::as_fd(here.object())
            .try_clone_to_owned()
            .expect("a descriptor");
        let into = Landing::Region(here.whole());
        drop(here);
        assert_eq!(pair.a.get(pair.to_b, OpId(round), &remote, into), Ok(()));
        pair.until("the operation ends", |pair| {
            pair.at_a.ended.iter().any(|&(op, _)| op == OpId(round))
        });
        // The bytes that were written into memory which is no longer mapped, read through its object.
        let mut bytes = vec![0; SIZE];
        let file = std::fs::File::from(object);
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).expect("a region has its length");
        assert!(bytes == pattern(SIZE, 1), "filled, though only the get held it");
    }
}

/// A key is needed, and what it was exposed for is what it allows.
pub fn a_wrong_key_or_access_reaches_nothing<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    if let Some(remote) = expose(pair, &there, Access::Read) {
        for (op, key) in (1..).zip([0, 1, remote.key.get() ^ 1, remote.key.get().swap_bytes()]) {
            let guessed = Remote {
                key: key.into(),
                ..remote
            };
            let ended = get(pair, op, &guessed, &here, 0);
            assert!(ended.is_refusal(), "a get under a guessed key ended as {ended:?}");
        }
        if pair.a.capabilities().features.put {
            assert!(
                put(pair, 10, &[9; SIZE], &remote).is_refusal(),
                "exposed to be read only"
            );
        }
    }
    if let Some(remote) = expose(pair, &there, Access::Write)
        && pair.a.capabilities().features.get
    {
        assert!(
            get(pair, 11, &remote, &here, 0).is_refusal(),
            "exposed to be written only"
        );
    }
    assert!(
        bytes_of(&here) == pattern(SIZE, 2) && bytes_of(&there) == pattern(SIZE, 1),
        "nothing moved"
    );
    let loan = Exposure::Read(ConstLoan::of_static(&[1; SIZE]));
    let refused = pair
        .b()
        .expose(loan, Access::ReadWrite, None)
        .expect_err("a loan to be read is not written");
    assert!(
        matches!(refused, Refused::BadMemory | Refused::Unsupported),
        "{refused:?}"
    );
}

/// Promise 8: withdrawn memory cannot be reached.
pub fn withdrawn_memory_cannot_be_reached<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    let Some(remote) = expose(pair, &there, Access::Read) else {
        return;
    };
    assert_eq!(get(pair, 1, &remote, &here, 0), End::Ended(Ok(0)));
    pair.b().withdraw(RemoteKey(remote.key.get()));
    here.write(0, &pattern(SIZE, 2));
    let ended = get(pair, 2, &remote, &here, 0);
    assert!(ended.is_refusal(), "a get of withdrawn memory ended as {ended:?}");
    assert!(bytes_of(&here) == pattern(SIZE, 2), "and brought nothing");
    pair.b().withdraw(RemoteKey(remote.key.get()));
    pair.b().withdraw(RemoteKey(0));
    // Withdrawn right after the start: it has happened before, or it ends as an error.
    let again = expose(pair, &there, Access::Read).expect("exposed before");
    assert_ne!(again.key, remote.key, "a fresh key for each exposure");
    let into = Landing::Region(here.whole());
    assert_eq!(pair.a.get(pair.to_b, OpId(3), &again, into), Ok(()));
    pair.b().withdraw(RemoteKey(again.key.get()));
    there.write(0, &pattern(SIZE, 5));
    pair.until("the operation ends", |pair| {
        pair.at_a.ended.iter().any(|&(op, _)| op == OpId(3))
    });
    match pair.at_a.ended.last() {
        Some((_, Ok(_))) => assert!(
            bytes_of(&here) == pattern(SIZE, 1),
            "not what was written afterwards"
        ),
        Some((_, Err(error))) => assert!(matches!(error, OpError::Denied | OpError::Withdrawn), "{error:?}"),
        None => unreachable!("it has just ended"),
    }
}

/// Memory exposed to one peer is not for another: here, to `b` itself instead of `a`.
pub fn an_exposure_to_one_peer_is_that_peers<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    if expose(pair, &there, Access::Read).is_none() {
        return;
    }
    let (address, life) = (pair.b().address(), pair.life_b);
    let Ok(itself) = pair.b().open(&address, life) else {
        // A rail that does not reach its own process: the unknown peer is refused.
        let unknown = doorbell_fabric::message::PeerIndex(1 << 20);
        let refused = pair
            .b()
            .expose(Exposure::Region(there.whole()), Access::Read, Some(unknown));
        assert!(refused.is_err(), "exposed to an unknown peer");
        return;
    };
    let memory = Exposure::Region(there.whole());
    let remote = pair
        .b()
        .expose(memory, Access::Read, Some(itself))
        .expect("exposed to itself");
    let ended = get(pair, 1, &remote, &here, 0);
    assert!(
        ended.is_refusal(),
        "a get of what was exposed to another ended as {ended:?}"
    );
    assert!(bytes_of(&here) == pattern(SIZE, 2));
    let to_all = pair
        .b()
        .expose(Exposure::Region(there.whole()), Access::Read, None)
        .expect("exposed to all");
    assert_eq!(get(pair, 2, &to_all, &here, 0), End::Ended(Ok(0)));
}

/// A fence ends after everything that was posted before it.
pub fn a_fence_comes_after_everything_before_it<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    let remote = expose(pair, &there, Access::Read);
    for round in 0..20 {
        let (first, fence) = (100 * round, OpId(100 * round + 50));
        let mut posted = 0;
        if let Some(remote) = &remote {
            let part = remote.part(8 * round, 8).expect("inside");
            while posted < 5 {
                let into = Landing::Region(here.slice(8 * posted as usize, 8).expect("inside"));
                match pair.a.get(pair.to_b, OpId(first + posted), &part, into) {
                    Ok(()) => posted += 1,
                    Err(refused) => {
                        assert_eq!(refused, Refused::Full);
                        pair.turn();
                    }
                }
            }
        }
        let peer = FenceScope::Peer(pair.to_b);
        let scope = if round % 2 == 0 { peer } else { FenceScope::Rail };
        assert_eq!(
            run(pair, fence, |pair, op| pair.a.fence(scope, op)),
            End::Ended(Ok(0))
        );
        let place = |op| pair.at_a.ended.iter().position(|&(ended, _)| ended == op);
        for op in (first..first + posted).map(OpId) {
            assert!(
                place(op).is_some() && place(op) < place(fence),
                "{op:?} ended before the fence did"
            );
        }
    }
}

/// Promise 6 for operations: each ends once, and none starts afterwards.
pub fn operations_open_at_a_crash_end_once_each<R: Message>(pair: &mut Pair<R>) {
    let (there, here) = (region(1), region(2));
    let Some(remote) = expose(pair, &there, Access::Read) else {
        return;
    };
    pair.turn();
    let into = || Landing::Region(here.whole());
    for op in 1..=4 {
        assert_eq!(pair.a.get(pair.to_b, OpId(op), &remote, into()), Ok(()));
    }
    pair.crash_b();
    pair.until("every operation ends", |pair| pair.at_a.ended.len() >= 4);
    let down = |kind| matches!(kind, EventKind::PeerDown(_));
    pair.until("the crash is reported", |pair| {
        pair.events.iter().any(|event| down(event.kind))
    });
    let refused = run(pair, OpId(9), |pair, op| {
        pair.a.get(pair.to_b, op, &remote, into())
    });
    assert_eq!(refused, End::Refused(Refused::PeerDown));
    pair.settle();
    let mut ended: Vec<u64> = pair.at_a.ended.iter().map(|&(op, _)| op.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2, 3, 4], "each exactly once");
}
