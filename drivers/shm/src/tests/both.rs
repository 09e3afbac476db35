//! Reads that both ends copy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::*;
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;

use doorbell_testing::skipped;

use super::{Seen, World};
use crate::ShmConfig;

fn world(test: &str, help: bool) -> Option<World> {
    let config = ShmConfig {
        help,
        ..ShmConfig::default()
    };
    let mut world = World::new(2, &config);
    world.up(0, 1);
    let allowed = world.rails[0].pulls_from_us(PeerIndex(1));
    if !allowed {
        skipped(test, "process_vm_readv is not allowed here");
    }
    allowed.then_some(world)
}

/// Memory of the first rail that is read by the kernel, not by a map.
fn source(length: usize, seed: usize) -> (Region, Vec<u8>) {
    let region = Region::new(length).unwrap();
    let bytes: Vec<u8> = (0..length).map(|i| ((i * 13) >> 4) as u8 ^ seed as u8).collect();
    region.write(0, &bytes);
    (region, bytes)
}

fn expose(world: &mut World, region: &Region) -> Remote {
    if let Some(memory) = &mut world.rails[1].peers[0].memory {
        memory.worth = u64::MAX;
    }
    world.rails[0]
        .expose(Exposure::Region(region.whole()), Access::Read, Some(PeerIndex(1)))
        .unwrap()
}

fn start(world: &mut World, remote: &Remote, op: u64) -> Region {
    let target = Region::new(remote.length.get() as usize).unwrap();
    world.rails[1]
        .get(PeerIndex(0), OpId(op), remote, Landing::Region(target.whole()))
        .unwrap();
    target
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

#[test]
fn every_length_arrives_whole_and_long_ones_with_the_owners_help() {
    let Some(mut world) = world("every_length_arrives", true) else {
        return;
    };
    for (i, length) in [
        1,
        4096,
        30_000,
        40_000,
        65_536,
        65_537,
        300_001,
        1 << 20,
        5_000_003,
    ]
    .into_iter()
    .enumerate()
    {
        let (region, expected) = source(length, i);
        let remote = expose(&mut world, &region);
        let before = world.rails[0].stats().helped;
        let target = start(&mut world, &remote, 7);
        world.seen[1] = Seen::default();
        world.until("the read", |world| !world.seen[1].ended.is_empty());
        assert_eq!(world.seen[1].ended, [(OpId(7), Ok(0))], "{length}");
        assert!(bytes(&target) == expected, "{length}");
        // Both ends take turns here: the owner gets one when the reader's piece is full.
        let helped = world.rails[0].stats().helped - before;
        assert_eq!(helped > 0, length > 512 << 10, "{length}: {helped} shares");
        world.rails[0].withdraw(RemoteKey(remote.key.get()));
    }
}

#[test]
fn an_owner_that_does_not_poll_takes_no_share_nor_one_with_it_disabled() {
    for (help, looks) in [(true, false), (false, true)] {
        let Some(mut world) = world("who_does_not_look", help) else {
            return;
        };
        let (region, expected) = source(1 << 20, 3);
        let remote = expose(&mut world, &region);
        let target = start(&mut world, &remote, 1);
        let mut seen = Seen::default();
        while seen.ended.is_empty() {
            if looks {
                world.rails[0].poll(64, &mut Seen::default());
            }
            world.rails[1].poll(64, &mut seen);
        }
        assert_eq!(seen.ended, [(OpId(1), Ok(0))]);
        assert!(bytes(&target) == expected);
        assert_eq!(world.rails[0].stats().helped, 0);
    }
}

#[test]
fn a_call_for_memory_that_is_not_lent_is_not_answered() {
    let Some(mut world) = world("a_call_for_memory_that_is_not_lent", true) else {
        return;
    };
    let (region, _) = source(1 << 20, 4);
    let remote = expose(&mut world, &region);
    // A second lease, so that the owner looks at the reader's board although the first has been withdrawn.
    let (other, _) = source(1 << 20, 5);
    expose(&mut world, &other);
    let target = start(&mut world, &remote, 1);
    world.rails[1].poll(1, &mut Seen::default());
    world.rails[0].withdraw(RemoteKey(remote.key.get()));
    for _ in 0..10 {
        world.rails[0].poll(64, &mut Seen::default());
    }
    assert_eq!(world.rails[0].stats().helped, 0);
    world.until("the end", |world| !world.seen[1].ended.is_empty());
    assert_eq!(world.seen[1].ended, [(OpId(1), Err(OpError::Withdrawn))]);
    drop(target);
}

/// One call at a time: the reads beside it are the reader's alone, and each is whole.
#[test]
fn many_reads_at_a_time_end_whole() {
    let Some(mut world) = world("many_reads_at_a_time", true) else {
        return;
    };
    let sources: Vec<_> = (0..20).map(|i| source(50_000 + i * 100_000, i)).collect();
    let remotes: Vec<_> = sources
        .iter()
        .map(|(region, _)| expose(&mut world, region))
        .collect();
    let targets: Vec<_> = (0..20)
        .map(|i| start(&mut world, &remotes[i], i as u64))
        .collect();
    world.until("all reads", |world| world.seen[1].ended.len() == 20);
    assert!(world.seen[1].ended.iter().all(|(_, outcome)| *outcome == Ok(0)));
    for ((_, expected), target) in sources.iter().zip(&targets) {
        assert!(bytes(target) == *expected);
    }
    let helped = world.rails[0].stats().helped;
    assert!(helped > 1, "{helped}");
}

/// Ends the other thread however this one ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The owner helps in a thread of its own while the reader gives up at any moment: what was given back is its
/// own again.
#[test]
fn memory_that_was_given_back_is_never_written() {
    given_back_is_never_written("memory_that_was_given_back", &[1 << 20]);
}

/// The same with several reads at a time, which owner and reader copy by turns.
#[test]
fn memory_of_reads_in_a_row_is_never_written_after_it_was_given_back() {
    given_back_is_never_written("memory_of_reads_in_a_row", &[200_000, 100_000, 256 << 10, 50_000]);
}

fn given_back_is_never_written(test: &str, lengths: &[usize]) {
    let Some(mut world) = world(test, true) else {
        return;
    };
    let (region, _) = source(1 << 20, 6);
    let over = AtomicBool::new(false);
    let started = Instant::now();
    let (mut withdrawn, mut whole) = (0, 0);
    let mut remote = expose(&mut world, &region);
    let World { rails, .. } = &mut world;
    let mut reader = rails.pop().unwrap();
    let owner = std::sync::Mutex::new(rails.pop().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                owner.lock().unwrap().poll(64, &mut Seen::default());
            }
        });
        let _over = Over(&over);
        // On a busy machine it takes longer until both copy at the same time.
        for round in 0u64..20_000 {
            if round >= 400 && owner.lock().unwrap().stats().helped > 10 {
                break;
            }
            let targets: Vec<_> = lengths
                .iter()
                .map(|length| Region::new(*length).unwrap())
                .collect();
            for target in &targets {
                let part = remote.part(0, target.len() as u64).unwrap();
                let into = Landing::Region(target.whole());
                reader.get(PeerIndex(0), OpId(round), &part, into).unwrap();
            }
            let mut seen = Seen::default();
            for _ in 0..round % (4 * lengths.len() as u64) {
                reader.poll(1, &mut seen);
            }
            // What a way that is given up does to its reads.
            reader.pulls.fail(PeerIndex(0), reader.leases.coop_state());
            while seen.ended.len() < lengths.len() {
                reader.pulls.close(Time::ZERO + started.elapsed());
                reader.poll(1, &mut seen);
            }
            for (_, outcome) in &seen.ended {
                match outcome {
                    Ok(_) => whole += 1,
                    Err(error) => {
                        assert_eq!(*error, OpError::NotDone);
                        withdrawn += 1;
                    }
                }
            }
            for target in &targets {
                target.write(0, &vec![0xa5; target.len()]);
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
            for target in &targets {
                assert!(bytes(target).iter().all(|byte| *byte == 0xa5), "round {round}");
            }
            if round % 50 == 49 {
                let mut owner = owner.lock().unwrap();
                owner.withdraw(RemoteKey(remote.key.get()));
                remote = owner
                    .expose(Exposure::Region(region.whole()), Access::Read, Some(PeerIndex(1)))
                    .unwrap();
            }
        }
    });
    let helped = owner.lock().unwrap().stats().helped;
    assert!(
        withdrawn > 50 && helped > 10,
        "{withdrawn} given up, {whole} whole, {helped} shares"
    );
}

/// Reads of `LENGTHS` bytes from the first rail that were started and of which nothing has happened yet.
struct Row {
    targets: Vec<Region>,
    expected: Vec<Vec<u8>>,
}

const LENGTHS: [usize; 4] = [64 << 10, 100_000, 256 << 10, 8 << 10];

impl Row {
    fn start(world: &mut World) -> Self {
        let sources: Vec<_> = LENGTHS
            .iter()
            .enumerate()
            .map(|(i, length)| source(*length, i))
            .collect();
        let remotes: Vec<_> = sources.iter().map(|(region, _)| expose(world, region)).collect();
        let targets = remotes
            .iter()
            .enumerate()
            .map(|(i, remote)| start(world, remote, i as u64))
            .collect();
        Self {
            targets,
            expected: sources.into_iter().map(|(_, expected)| expected).collect(),
        }
    }

    fn ends_whole(&self, world: &mut World) {
        world.until("all reads", |world| world.seen[1].ended.len() == LENGTHS.len());
        for (op, outcome) in &world.seen[1].ended {
            assert_eq!(*outcome, Ok(0), "{op:?}");
        }
        for (target, expected) in self.targets.iter().zip(&self.expected) {
            assert!(bytes(target) == *expected);
        }
    }
}

#[test]
fn reads_in_a_row_are_copied_by_turns_and_each_by_one_end() {
    let Some(mut world) = world("reads_in_a_row_are_copied_by_turns", true) else {
        return;
    };
    let row = Row::start(&mut world);
    // The reader copies the first one and offers the second, which the owner then copies whole.
    world.rails[1].poll(1, &mut Seen::default());
    assert!(bytes(&row.targets[0]) == row.expected[0]);
    assert!(bytes(&row.targets[1]).iter().all(|byte| *byte == 0));
    world.rails[0].poll(64, &mut Seen::default());
    assert_eq!(world.rails[0].stats().helped, 1);
    assert!(bytes(&row.targets[1]) == row.expected[1]);
    // Its end is the offer of the one after the next.
    let mut seen = Seen::default();
    world.rails[1].poll(1, &mut seen);
    assert!(bytes(&row.targets[2]).iter().all(|byte| *byte == 0));
    world.rails[0].poll(64, &mut Seen::default());
    assert_eq!(world.rails[0].stats().helped, 2);
    assert!(bytes(&row.targets[3]) == row.expected[3]);
    for _ in 0..4 {
        world.rails[1].poll(64, &mut seen);
    }
    assert!(bytes(&row.targets[2]) == row.expected[2]);
    assert_eq!(world.rails[0].stats().helped, 2);
}

#[test]
fn reads_in_a_row_of_an_owner_that_does_not_poll_are_the_readers() {
    let Some(mut world) = world("reads_in_a_row_of_an_owner", true) else {
        return;
    };
    let row = Row::start(&mut world);
    let mut seen = Seen::default();
    for _ in 0..20 {
        world.rails[1].poll(64, &mut seen);
    }
    world.seen[1] = seen;
    row.ends_whole(&mut world);
    assert_eq!(world.rails[0].stats().helped, 0);
}

/// An owner that has begun an offered read: the reader goes on with the others, and takes it over when the
/// owner steps back.
#[test]
fn an_offered_read_waits_for_its_owner_and_the_others_do_not() {
    let Some(mut world) = world("an_offered_read_waits", true) else {
        return;
    };
    let row = Row::start(&mut world);
    let mut seen = Seen::default();
    world.rails[1].poll(64, &mut seen);
    let (us, number) = (world.rails[1].holder, world.rails[1].leases.coop_state().number());
    assert_ne!(number, 0, "nothing was offered");
    let theirs = world.rails[0].leases.coop_state();
    theirs.accept_request(us, number);
    theirs.set_owner_begun(1);
    for _ in 0..20 {
        world.rails[1].poll(64, &mut seen);
    }
    let ended: Vec<_> = seen.ended.iter().map(|(op, _)| op.0).collect();
    assert_eq!(ended, [0, 2, 3]);
    assert!(bytes(&row.targets[1]).iter().all(|byte| *byte == 0));
    world.rails[0].leases.coop_state().set_owner_begun(0);
    for _ in 0..3 {
        world.rails[1].poll(64, &mut seen);
    }
    world.seen[1] = seen;
    row.ends_whole(&mut world);
}

/// An owner that takes longer than the reader does beside it: its end is noticed after the next read, not
/// after all, as it waits for the next offer.
#[test]
fn an_offered_read_that_ends_late_is_ended_before_those_behind_it() {
    let Some(mut world) = world("an_offered_read_that_ends_late", true) else {
        return;
    };
    let row = Row::start(&mut world);
    let mut seen = Seen::default();
    world.rails[1].poll(64, &mut seen);
    let (us, number) = (world.rails[1].holder, world.rails[1].leases.coop_state().number());
    let theirs = world.rails[0].leases.coop_state();
    theirs.accept_request(us, number);
    theirs.set_owner_begun(1);
    // The second waits, the third is read.
    world.rails[1].poll(64, &mut seen);
    world.rails[1].poll(64, &mut seen);
    row.targets[1].write(0, &row.expected[1]);
    world.rails[0].leases.coop_state().set_owner_ended(1);
    world.rails[1].poll(64, &mut seen);
    let ended: Vec<_> = seen.ended.iter().map(|(op, _)| op.0).collect();
    assert_eq!(ended, [0, 2, 1]);
    world.seen[1] = seen;
    row.ends_whole(&mut world);
}

/// A lease that is withdrawn before anyone copies: the read fails, and its memory stays as it was.
#[test]
fn an_offered_read_whose_lease_is_withdrawn_is_not_copied() {
    let Some(mut world) = world("an_offered_read_whose_lease_is_withdrawn", true) else {
        return;
    };
    let sources = [0, 1].map(|i| source(64 << 10, i));
    let remotes = [0, 1].map(|i| expose(&mut world, &sources[i].0));
    let targets = [0, 1].map(|i| start(&mut world, &remotes[i], i as u64));
    let mut seen = Seen::default();
    world.rails[1].poll(1, &mut seen);
    world.rails[0].withdraw(RemoteKey(remotes[1].key.get()));
    // A third lease, so that the owner looks at the reader's request.
    let (other, _) = source(64 << 10, 2);
    expose(&mut world, &other);
    for _ in 0..10 {
        world.rails[0].poll(64, &mut Seen::default());
        world.rails[1].poll(64, &mut seen);
    }
    assert_eq!(world.rails[0].stats().helped, 0);
    assert_eq!(seen.ended[0], (OpId(0), Ok(0)));
    assert!(matches!(
        seen.ended[1],
        (OpId(1), Err(OpError::Denied | OpError::Withdrawn))
    ));
    assert!(bytes(&targets[1]).iter().all(|byte| *byte == 0));
}

/// An owner that announces a write and then does nothing: the read is kept until the owner ends it or is
/// gone.
#[test]
fn a_read_that_was_given_up_is_kept_while_its_owner_writes() {
    let Some(mut world) = world("a_read_that_was_given_up", true) else {
        return;
    };
    let (region, _) = source(1 << 20, 8);
    let remote = expose(&mut world, &region);
    let _target = start(&mut world, &remote, 1);
    let mut seen = Seen::default();
    world.rails[1].poll(1, &mut seen);
    let (us, number) = (world.rails[1].holder, world.rails[1].leases.coop_state().number());
    assert_ne!(number, 0, "there was no call");
    let theirs = world.rails[0].leases.coop_state();
    theirs.accept_request(us, number);
    theirs.set_owner_begun(1);
    let reader = &mut world.rails[1];
    reader.pulls.fail(PeerIndex(0), reader.leases.coop_state());
    let mut now = Time::ZERO;
    for _ in 0..100 {
        now += std::time::Duration::from_millis(100);
        world.rails[1].progress(now);
        world.rails[1].poll(64, &mut seen);
        assert_eq!(seen.ended, []);
    }
    assert!(
        world.rails[1]
            .arm()
            .is_ok_and(|armed| matches!(armed, doorbell_fabric::rail::Armed::Ready))
    );
    world.rails[0].leases.coop_state().set_owner_ended(1);
    world.rails[1].progress(now);
    world.rails[1].poll(64, &mut seen);
    assert_eq!(seen.ended, [(OpId(1), Err(OpError::NotDone))]);
}

/// Two readers of one owner, which turns from one to the other: reads that have ended well are written over
/// at once.
#[test]
fn an_owner_of_two_reads_writes_to_none_that_has_ended() {
    const LENGTH: usize = 256 << 10;
    let mut world = World::new(3, &ShmConfig::default());
    world.up(0, 1);
    world.up(0, 2);
    if !world.rails[0].pulls_from_us(PeerIndex(1)) {
        return skipped("an_owner_of_two_reads", "process_vm_readv is not allowed here");
    }
    let (region, expected) = source(LENGTH, 9);
    let remotes: Vec<_> = [2, 1]
        .map(|reader| {
            let memory = world.rails[reader].peers[0].memory.as_mut();
            memory.unwrap().worth = u64::MAX;
            let whole = Exposure::Region(region.whole());
            world.rails[0].expose(whole, Access::Read, Some(PeerIndex(reader as u32)))
        })
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let over = AtomicBool::new(false);
    let mut readers: Vec<_> = world.rails.drain(1..).rev().collect();
    let owner = &mut world.rails[0];
    std::thread::scope(|scope| {
        let expected = &expected;
        let reads: Vec<_> = readers
            .iter_mut()
            .zip(remotes)
            .map(|(reader, remote)| scope.spawn(move || read_in_a_row(reader, &remote, expected)))
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                owner.poll(64, &mut Seen::default());
            }
        });
        let _over = Over(&over);
        for read in reads {
            read.join().unwrap();
        }
    });
    assert!(owner.stats().helped > 10, "{} shares", owner.stats().helped);
}

/// Reads again and again; what the read before brought is written over, and has to stay so.
fn read_in_a_row(reader: &mut crate::ShmRail, remote: &Remote, expected: &[u8]) {
    let mine = vec![0xa5; expected.len()];
    let targets = [0, 1].map(|_| Region::new(expected.len()).unwrap());
    let mut got = vec![0; expected.len()];
    for round in 0..1500u64 {
        let (target, before) = (&targets[round as usize % 2], &targets[(round as usize + 1) % 2]);
        reader
            .get(PeerIndex(0), OpId(round), remote, Landing::Region(target.whole()))
            .unwrap();
        let mut seen = Seen::default();
        while seen.ended.is_empty() {
            reader.progress(Time::from_nanos(round));
            reader.poll(1, &mut seen);
        }
        assert_eq!(seen.ended, [(OpId(round), Ok(0))]);
        target.read(0, &mut got);
        assert!(got == expected, "round {round}: not what was sent");
        target.write(0, &mine);
        if round > 0 {
            before.read(0, &mut got);
            assert!(got == mine, "round {round}: written to after its end");
        }
    }
}
