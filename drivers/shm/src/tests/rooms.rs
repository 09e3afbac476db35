//! Memory that a peer writes by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use doorbell_fabric::memory::{ConstLoan, Region, SharedBytes};
use doorbell_fabric::message::*;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use doorbell_testing::skipped;

use super::World;
use crate::ShmConfig;
use crate::coop_copy::reader::Owner;
use crate::lease::{Foreign, Leases};
use crate::rooms::{Given, MOST_ROOMS};

const LENGTH: usize = 64 << 10;

fn world(test: &str) -> Option<World> {
    let mut world = World::new(3, &ShmConfig::default());
    for other in [1, 2] {
        world.up(0, other);
        world.up(other, 0);
    }
    let allowed = world.rails[0].pulls_from_us(PeerIndex(1));
    if !allowed {
        skipped(test, "process_vm_readv is not allowed here");
    }
    allowed.then_some(world)
}

fn expose(world: &mut World, region: &Region, at: usize, length: usize) -> Remote {
    let slice = region.slice(at, length).unwrap();
    world.rails[0].expose_now(&slice, PeerIndex(1)).unwrap()
}

fn place(world: &mut World, from: usize, bytes: &[u8], to: &Remote) -> bool {
    world.rails[from].put_now(PeerIndex(0), SharedBytes::of(bytes), to)
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

fn end(world: &mut World, remote: &Remote) -> bool {
    world.rails[0].end_now(RemoteKey(remote.key.get()))
}

#[test]
fn bytes_are_placed_where_they_belong_at_once_and_by_one_peer() {
    let Some(mut world) = world("bytes_are_placed_where_they_belong") else {
        return;
    };
    let region = Region::new(LENGTH).unwrap();
    let remote = expose(&mut world, &region, 4097, 5000);
    let part = remote.part(7, 3).unwrap();
    assert!(place(&mut world, 1, b"abc", &part), "nothing is polled");
    let mut expected = vec![0; LENGTH];
    expected[4104..4107].copy_from_slice(b"abc");
    assert!(content(&region) == expected);
    let long: Vec<u8> = (0..5000).map(|i| ((i * 7) >> 3) as u8).collect();
    assert!(place(&mut world, 1, &long, &remote));
    expected[4097..9097].copy_from_slice(&long);
    assert!(content(&region) == expected);
    // One map serves all of them.
    let memory = world.rails[1].peers[0].memory.as_ref().unwrap();
    assert_eq!(memory.rooms.mapped(), 1);
    // It is read as well, by the one that it was given to.
    let into = Region::new(3).unwrap();
    assert!(world.rails[1].get_now(PeerIndex(0), &part, into.whole().room()));
    assert_eq!(content(&into), &long[7..10]);
    assert!(!world.rails[2].get_now(PeerIndex(0), &part, into.whole().room()));
    let short = part.part(0, 2).unwrap();
    assert!(
        !world.rails[1].get_now(PeerIndex(0), &short, into.whole().room()),
        "lengths differ"
    );
    // Another peer has no business there, nor has one that would read in another way.
    assert!(!place(&mut world, 2, b"no!", &part));
    assert!(world.rails[1].view(PeerIndex(0), &part).is_none());
    let target = Region::new(3).unwrap();
    let read = world.rails[1].get(PeerIndex(0), OpId(1), &part, Landing::Region(target.whole()));
    assert_eq!(read, Ok(()));
    world.until("the refusal", |world| !world.seen[1].ended.is_empty());
    assert_eq!(world.seen[1].ended, [(OpId(1), Err(OpError::Denied))]);
    assert!(content(&region) == expected);
}

#[test]
fn what_was_taken_back_is_not_written() {
    let Some(mut world) = world("what_was_taken_back_is_not_written") else {
        return;
    };
    let region = Region::new(LENGTH).unwrap();
    let remote = expose(&mut world, &region, 0, LENGTH);
    let first = remote.part(0, 2).unwrap();
    assert!(place(&mut world, 1, b"in", &first));
    assert!(end(&mut world, &remote), "nothing is under way");
    region.write(0, &[9; 16]);
    assert!(!place(&mut world, 1, b"no", &first));
    let next = expose(&mut world, &region, 0, LENGTH);
    assert!(!place(&mut world, 1, b"no", &first), "the key before");
    assert_eq!(content(&region)[..16], [9; 16]);
    assert!(place(&mut world, 1, b"ok", &next.part(0, 2).unwrap()));
    assert!(end(&mut world, &remote), "a key of none is quiet");
    // Nor after the connection is over.
    world.rails[0].abandon(PeerIndex(1));
    assert!(!place(&mut world, 1, b"no", &next.part(0, 2).unwrap()));
    assert_eq!(content(&region)[..2], *b"ok");
    assert!(end(&mut world, &next));
    assert!(world.rails[0].given.is_empty());
}

#[test]
fn what_is_outside_or_not_to_be_written_is_refused() {
    let Some(mut world) = world("what_is_outside_or_not_to_be_written") else {
        return;
    };
    let region = Region::new(LENGTH).unwrap();
    let remote = expose(&mut world, &region, 4096, 4096);
    let address = remote.address.get();
    let wrong = |key: u64, address: u64| Remote {
        key: key.into(),
        address: address.into(),
        length: 4.into(),
    };
    let key = remote.key.get();
    for of in [
        wrong(key, address - 1),
        wrong(key, address + 4093),
        wrong(key, 0),
        wrong(key, u64::MAX),
        wrong(key ^ 1 << 40, address),
        wrong(0, address),
    ] {
        assert!(!place(&mut world, 1, b"nope", &of), "{of:?}");
    }
    // Other bytes than the piece has.
    assert!(!place(&mut world, 1, b"four", &remote));
    // What was exposed to be read.
    let slice = region.slice(0, 4096).unwrap();
    let read = world.rails[0].expose(Exposure::Region(slice), Access::Read, Some(PeerIndex(1)));
    assert!(!place(&mut world, 1, b"nope", &read.unwrap().part(0, 4).unwrap()));
    let loan = ConstLoan::of_static(vec![5; 3000].leak());
    let lent = world.rails[0].expose(Exposure::Read(loan), Access::Read, Some(PeerIndex(1)));
    assert!(!place(&mut world, 1, b"nope", &lent.unwrap().part(0, 4).unwrap()));
    assert_eq!(content(&region), vec![0; LENGTH]);
}

#[test]
fn what_a_peer_forges_leads_nowhere() {
    let Some(mut world) = world("what_a_peer_forges_leads_nowhere") else {
        return;
    };
    let region = Region::new(8192).unwrap();
    // The offset beyond the object; a descriptor, serial or length that is not the object's.
    for (word, value) in [
        (5, 8189),
        (5, 8192),
        (5, u64::MAX),
        (4, 1 << 20),
        (4, u64::MAX),
        (6, 1),
        (7, 4096),
        (7, u64::MAX),
    ] {
        let remote = expose(&mut world, &region, 0, 8192);
        world.rails[0].leases.scribble(remote.key.get(), word, value);
        world.rails[1].peers[0].memory.as_mut().unwrap().rooms.forget();
        let part = remote.part(0, 4).unwrap();
        assert!(!place(&mut world, 1, b"nope", &part), "word {word} = {value}");
        assert!(end(&mut world, &remote));
    }
    assert_eq!(content(&region), vec![0; 8192]);
}

#[test]
fn maps_to_be_written_are_bounded_per_peer() {
    let Some(mut world) = world("maps_to_be_written_are_bounded") else {
        return;
    };
    for i in 0..2 * MOST_ROOMS {
        let region = Region::new(4096).unwrap();
        let remote = expose(&mut world, &region, 0, 4096);
        assert!(place(&mut world, 1, &[i as u8; 4096], &remote));
        assert_eq!(content(&region), [i as u8; 4096]);
        let memory = world.rails[1].peers[0].memory.as_ref().unwrap();
        assert_eq!(memory.rooms.mapped(), (i + 1).min(MOST_ROOMS));
    }
}

/// A writer is stopped between its look at the lease and the end of its copy.
#[test]
fn memory_is_not_quiet_before_a_write_has_ended() {
    let Some(mut world) = world("memory_is_not_quiet_before") else {
        return;
    };
    let region = Region::new(4096).unwrap();
    let remote = expose(&mut world, &region, 0, 4096);
    let other = expose(&mut world, &region, 0, 4096);
    world.rails[1].leases.begin_placing(remote.key.get());
    assert!(end(&mut world, &other), "it writes elsewhere");
    assert!(!end(&mut world, &remote) && !end(&mut world, &remote));
    // Also when its connection is over.
    world.rails[0].abandon(PeerIndex(1));
    world.rails[0].forget(PeerIndex(1));
    assert!(!end(&mut world, &remote));
    world.rails[1].leases.end_placing();
    assert!(end(&mut world, &remote));
}

/// A writer's process ends in the middle of its copy, and its announcement stays as it was.
#[test]
fn memory_is_quiet_when_the_writers_process_has_ended() {
    let Some(mut world) = world("memory_is_quiet_when_the_writers_process") else {
        return;
    };
    let region = Region::new(4096).unwrap();
    let theirs = Leases::new().unwrap();
    theirs.begin_placing(77);
    let mut writer = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = Pid::from_raw(writer.id() as i32).unwrap();
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        writer.kill().unwrap();
        writer.wait().unwrap();
        return skipped("memory_is_quiet_when", "the system has no pidfds");
    };
    let placer = Owner {
        leases: Foreign::map(&theirs.object).unwrap(),
        process: Arc::new(process),
    };
    world.rails[0].given.push(Given::of(77, placer, &region.whole()));
    assert!(!world.rails[0].end_now(RemoteKey(77)));
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(world.rails[0].end_now(RemoteKey(77)));
}

/// The property itself: the owner never finds a byte changed after its memory was quiet, whenever it takes it
/// back.
#[test]
fn no_byte_is_written_after_the_memory_was_quiet() {
    let Some(mut world) = world("no_byte_is_written_after") else {
        return;
    };
    let region = Region::new(4096).unwrap();
    let (mut writer, owner) = {
        let mut rails = std::mem::take(&mut world.rails).into_iter();
        let owner = rails.next().unwrap();
        (rails.next().unwrap(), owner)
    };
    let mut owner = owner;
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (give, given) = mpsc::channel::<Remote>();
        let (refuse, refused) = mpsc::channel::<u64>();
        let written = &written;
        scope.spawn(move || {
            for remote in given {
                let mut count = 0;
                while writer.put_now(PeerIndex(0), SharedBytes::of(&[0xaa; 4096]), &remote) {
                    written.store(true, Ordering::Relaxed);
                    count += 1;
                }
                refuse.send(count).unwrap();
            }
        });
        let mut total = 0;
        for round in 0..3000u32 {
            let remote = owner.expose_now(&region.whole(), PeerIndex(1)).unwrap();
            written.store(false, Ordering::Relaxed);
            give.send(remote).unwrap();
            while !written.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            for _ in 0..round % 97 {
                std::hint::spin_loop();
            }
            while !owner.end_now(RemoteKey(remote.key.get())) {
                std::hint::spin_loop();
            }
            region.write(0, &[0; 4096]);
            for _ in 0..4 {
                assert!(content(&region) == [0; 4096], "round {round}");
            }
            total += refused.recv().unwrap();
            assert!(content(&region) == [0; 4096], "round {round}, at its end");
        }
        assert!(total >= 3000);
    });
}
