//! Reads of regions by a map of their object.

use std::os::fd::{AsFd, AsRawFd};

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::*;

use doorbell_testing::skipped;

use super::{Seen, World};
use crate::ShmConfig;
use crate::pull::MOST_WINDOWS;

const LONG: usize = 1 << 20;

fn world(test: &str) -> Option<World> {
    let mut world = World::new(2, &ShmConfig::default());
    world.up(0, 1);
    let allowed = world.rails[0].pulls_from_us(PeerIndex(1));
    if !allowed {
        skipped(test, "process_vm_readv is not allowed here");
    }
    // Mapped at the first read.
    if let Some(memory) = &mut world.rails[1].peers[0].memory {
        memory.worth = 0;
    }
    allowed.then_some(world)
}

fn region(length: usize, seed: usize) -> (Region, Vec<u8>) {
    let region = Region::new(length).unwrap();
    let bytes: Vec<u8> = (0..length).map(|i| ((i * 7) >> 3) as u8 ^ seed as u8).collect();
    region.write(0, &bytes);
    (region, bytes)
}

fn expose(world: &mut World, region: &Region, at: usize, length: usize) -> Remote {
    let slice = region.slice(at, length).unwrap();
    world.rails[0]
        .expose(Exposure::Region(slice), Access::Read, Some(PeerIndex(1)))
        .unwrap()
}

/// Reads all of it, and returns how many pieces came by the map.
fn pull(world: &mut World, remote: &Remote) -> (Result<u64, OpError>, Vec<u8>, usize) {
    let target = Region::new(remote.length.get() as usize).unwrap();
    let before = memory(world).mapped;
    world.seen[1] = Seen::default();
    world.rails[1]
        .get(PeerIndex(0), OpId(1), remote, Landing::Region(target.whole()))
        .unwrap();
    world.until("the pull", |world| !world.seen[1].ended.is_empty());
    let mut got = vec![0; target.len()];
    target.read(0, &mut got);
    (world.seen[1].ended[0].1, got, memory(world).mapped - before)
}

fn memory(world: &World) -> &crate::pull::Memory {
    world.rails[1].peers[0].memory.as_ref().unwrap()
}

#[test]
fn a_region_is_read_by_a_map_from_the_right_offset() {
    let Some(mut world) = world("a_region_is_read_by_a_map") else {
        return;
    };
    let (source, bytes) = region(LONG, 1);
    let whole = expose(&mut world, &source, 0, LONG);
    assert_eq!(pull(&mut world, &whole), (Ok(0), bytes.clone(), 4));
    let part = expose(&mut world, &source, 4097, 1000).part(3, 500).unwrap();
    assert_eq!(pull(&mut world, &part), (Ok(0), bytes[4100..4600].to_vec(), 1));
    let borrowed = vec![5; 3000];
    let loan = doorbell_fabric::memory::ConstLoan::of_static(borrowed.leak());
    let remote = world.rails[0]
        .expose(Exposure::Read(loan), Access::Read, Some(PeerIndex(1)))
        .unwrap();
    assert_eq!(pull(&mut world, &remote), (Ok(0), vec![5; 3000], 0));
}

#[test]
fn a_region_is_mapped_when_it_was_read_often_enough() {
    let Some(mut world) = world("a_region_is_mapped_when") else {
        return;
    };
    let (source, bytes) = region(LONG, 2);
    world.rails[1].peers[0].memory.as_mut().unwrap().worth = 1;
    let half = expose(&mut world, &source, 0, LONG / 2);
    assert_eq!(pull(&mut world, &half), (Ok(0), bytes[..LONG / 2].to_vec(), 0));
    assert_eq!(pull(&mut world, &half), (Ok(0), bytes[..LONG / 2].to_vec(), 2));
}

#[test]
fn a_region_withdrawn_in_the_middle_of_a_mapped_read_is_noticed() {
    let Some(mut world) = world("a_region_withdrawn_in_the_middle") else {
        return;
    };
    let (source, _) = region(LONG, 3);
    let remote = expose(&mut world, &source, 0, LONG);
    let target = Region::new(LONG).unwrap();
    world.rails[1]
        .get(PeerIndex(0), OpId(1), &remote, Landing::Region(target.whole()))
        .unwrap();
    world.rails[1].poll(1, &mut Seen::default());
    assert_eq!(memory(&world).mapped, 1);
    world.rails[0].withdraw(RemoteKey(remote.key.get()));
    world.until("the end", |world| !world.seen[1].ended.is_empty());
    assert_eq!(world.seen[1].ended, [(OpId(1), Err(OpError::Withdrawn))]);
    assert_eq!(memory(&world).mapped, 1);
}

#[test]
fn a_new_region_behind_the_same_descriptor_is_not_taken_for_the_old_one() {
    let Some(mut world) = world("a_new_region_behind_the_same_descriptor") else {
        return;
    };
    // Other tests open descriptors too: tried until the number comes back.
    for _ in 0..1000 {
        let (old, bytes) = region(8192, 4);
        let number = old.object().as_fd().as_raw_fd();
        let remote = expose(&mut world, &old, 0, 8192);
        assert_eq!(pull(&mut world, &remote), (Ok(0), bytes, 1));
        world.rails[0].withdraw(RemoteKey(remote.key.get()));
        drop(old);
        let (new, bytes) = region(8192, 5);
        let same = new.object().as_fd().as_raw_fd() == number;
        let remote = expose(&mut world, &new, 0, 8192);
        assert_eq!(pull(&mut world, &remote), (Ok(0), bytes, 1));
        world.rails[0].withdraw(RemoteKey(remote.key.get()));
        if same {
            return;
        }
    }
    panic!("no descriptor number ever came back");
}

#[test]
fn a_forged_place_is_denied_and_a_strange_object_is_not_opened() {
    let Some(mut world) = world("a_forged_place_is_denied") else {
        return;
    };
    let (source, bytes) = region(8192, 6);
    // (word, value, outcome): the offset beyond the object; a descriptor, serial or length that is not the
    // object's.
    let forged = [
        (5, 8192, Err(OpError::Denied)),
        (5, 1, Err(OpError::Denied)),
        (5, u64::MAX, Err(OpError::Denied)),
        (4, 1 << 20, Ok(0)),
        (4, u64::MAX, Ok(0)),
        (6, 1, Ok(0)),
        (7, 4096, Ok(0)),
        (7, u64::MAX, Ok(0)),
    ];
    for (word, value, outcome) in forged {
        let remote = expose(&mut world, &source, 0, 8192);
        world.rails[0].leases.scribble(remote.key.get(), word, value);
        // A fresh start: what was refused is remembered.
        world.rails[1].peers[0].memory.as_mut().unwrap().forget();
        let (ended, got, mapped) = pull(&mut world, &remote);
        assert_eq!((ended, mapped), (outcome, 0), "word {word} = {value}");
        if outcome.is_ok() {
            assert!(got == bytes, "by the kernel, word {word} = {value}");
        }
        world.rails[0].withdraw(RemoteKey(remote.key.get()));
    }
}

#[test]
fn maps_are_bounded_per_peer() {
    let Some(mut world) = world("maps_are_bounded_per_peer") else {
        return;
    };
    for i in 0..2 * MOST_WINDOWS {
        let (source, bytes) = region(4096, i);
        let remote = expose(&mut world, &source, 0, 4096);
        assert_eq!(pull(&mut world, &remote), (Ok(0), bytes, 1));
        assert_eq!(memory(&world).windows(), (i + 1).min(MOST_WINDOWS));
    }
}

fn view(world: &mut World, remote: &Remote) -> Option<doorbell_fabric::memory::View> {
    world.rails[1].view(PeerIndex(0), remote)
}

#[test]
fn a_region_is_viewed_where_it_lies() {
    let Some(mut world) = world("a_region_is_viewed_where_it_lies") else {
        return;
    };
    world.rails[1].peers[0].memory.as_mut().unwrap().worth = 4;
    let (source, bytes) = region(LONG, 7);
    let remote = expose(&mut world, &source, 4097, 100_000);
    let seen = view(&mut world, &remote).unwrap();
    assert_eq!(seen.bytes().to_vec(), bytes[4097..104_097]);
    // Not a copy: what is written later shows.
    source.write(4097, b"later");
    assert_eq!(seen.bytes().read(0), Some(*b"later"));
    // One map serves all views of the region.
    let part = remote.part(5, 10).unwrap();
    assert_eq!(
        view(&mut world, &part).unwrap().bytes().to_vec(),
        bytes[4102..4112]
    );
    assert_eq!(memory(&world).windows(), 1);
    // It outlives the key, the region and the peer.
    world.rails[0].withdraw(RemoteKey(remote.key.get()));
    drop(source);
    assert!(
        view(&mut world, &remote).is_none(),
        "the key is not valid any more"
    );
    world.rails[1].abandon(PeerIndex(0));
    assert_eq!(seen.bytes().read(0), Some(*b"later"));
    assert!(view(&mut world, &remote).is_none(), "the peer is down");
}

#[test]
fn what_is_no_region_or_not_allowed_is_not_viewed() {
    let Some(mut world) = world("what_is_no_region_or_not_allowed_is_not_viewed") else {
        return;
    };
    let borrowed = doorbell_fabric::memory::ConstLoan::of_static(vec![5; 3000].leak());
    let remote = world.rails[0]
        .expose(Exposure::Read(borrowed), Access::Read, Some(PeerIndex(1)))
        .unwrap();
    assert!(view(&mut world, &remote).is_none());
    let (source, _) = region(8192, 8);
    let remote = expose(&mut world, &source, 0, 8192);
    for (key, address, length) in [(1, 0, 8192), (0, 1, 8192), (0, u64::MAX, 1), (0, 0, u64::MAX)] {
        let wrong = Remote {
            key: (remote.key.get() ^ key).into(),
            address: remote.address.get().wrapping_add(address).into(),
            length: length.into(),
        };
        assert!(view(&mut world, &wrong).is_none(), "{key} {address} {length}");
    }
    // What a peer forges leads to no view beyond its object.
    for (word, value) in [
        (5, 8192),
        (5, 1),
        (5, u64::MAX),
        (4, 1 << 20),
        (6, 1),
        (7, 4096),
        (7, u64::MAX),
    ] {
        let remote = expose(&mut world, &source, 0, 8192);
        world.rails[0].leases.scribble(remote.key.get(), word, value);
        world.rails[1].peers[0].memory.as_mut().unwrap().forget();
        assert!(view(&mut world, &remote).is_none(), "word {word} = {value}");
        world.rails[0].withdraw(RemoteKey(remote.key.get()));
    }
}
