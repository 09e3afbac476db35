//! Collective operations in O(log n) steps, as messages in a context of their own.
//!
//! * barrier: dissemination (Hensgen, Finkel, Manber 1988): in step k, signal `rank + 2^k` and wait for
//!   `rank - 2^k`.
//! * broadcast: binomial tree, rooted by renumbering.
//! * allgather: Bruck et al. 1997: in step k, send the first 2^k blocks, so that the number of blocks
//!   doubles; then rotate.
//!
//! All ranks call the same collectives in the same order, so the order of messages between two ranks keeps
//! them apart; the tag (operation and step) makes a program that breaks this rule end with a timeout that
//! names the step, instead of with wrong bytes.

use std::time::{Duration, Instant};

use doorbell_job::error::{Awaited, Error};
use doorbell_job::types::{Source, Tag};

use crate::progress::Envelope;
use crate::scope::{exchange, post};
use crate::world::World;

/// The context number of collective operations.
pub(crate) const COLLECTIVE: u16 = 1;

#[derive(Clone, Copy)]
#[repr(u64)]
enum Operation {
    Barrier = 1,
    Broadcast = 2,
    Allgather = 3,
    Spawn = 4,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Barrier => "a barrier",
            Self::Broadcast => "a broadcast",
            Self::Allgather => "an allgather",
            Self::Spawn => "a spawn",
        }
    }

    fn tag(self, step: u32) -> u64 {
        (self as u64) << 32 | u64::from(step)
    }

    fn to(self, peer: u32, step: u32) -> Envelope {
        Envelope::to(COLLECTIVE, peer, self.tag(step), false)
    }

    fn from(self, peer: u32, step: u32) -> Envelope {
        Envelope::from(COLLECTIVE, Source::Rank(peer), Tag::exact(self.tag(step)))
    }

    fn awaited(self, step: u32) -> impl Fn(u32) -> Awaited {
        move |peer| Awaited::Collective {
            name: self.name(),
            peer,
            step,
        }
    }
}

/// Returns the ranks `distance` ahead and behind, around the ring.
fn around(rank: u32, size: u32, distance: u32) -> (u32, u32) {
    let (rank, size, distance) = (u64::from(rank), u64::from(size), u64::from(distance));
    let place = |at: u64| u32::try_from(at % size).unwrap_or_default();
    (place(rank + distance), place(rank + size - distance % size))
}

pub(crate) fn barrier(world: &World, limit: Duration) -> Result<(), Error> {
    world.here()?;
    let op = Operation::Barrier;
    let (rank, size) = (world.rank(), world.size());
    let mut distance = 1;
    let mut step = 0;
    while distance < size {
        let (ahead, behind) = around(rank, size, distance);
        let (send, recv) = (op.to(ahead, step), op.from(behind, step));
        exchange(
            world,
            Some((send, &[])),
            Some((recv, &mut [])),
            limit,
            op.awaited(step),
        )?;
        distance *= 2;
        step += 1;
    }
    Ok(())
}

pub(crate) fn broadcast(world: &World, root: u32, data: &mut [u8], limit: Duration) -> Result<(), Error> {
    world.here()?;
    let op = Operation::Broadcast;
    let (rank, size) = (world.rank(), world.size());
    if root >= size {
        return Err(Error::NoSuchRank { rank: root, size });
    }
    // Renumbered so that the root is 0: place p receives from p without its lowest bit, and sends to p plus
    // each bit below that one.
    let (place, _) = around(rank, size, size - root);
    let of_place = |place: u32| around(place, size, root).0;
    let bit = if place == 0 {
        size.next_power_of_two()
    } else {
        1 << place.trailing_zeros()
    };
    if place != 0 {
        let step = bit.ilog2();
        let from = op.from(of_place(place - bit), step);
        let length = data.len();
        let received = exchange(world, None, Some((from, &mut *data)), limit, op.awaited(step))?;
        if received != length {
            let what = format!(
                "rank {rank} expected a broadcast of {length} bytes and got {received}: lengths must be equal"
            );
            return Err(Error::Layout { what });
        }
    }
    let children = |bit: u32| {
        let bits = std::iter::successors(Some(bit / 2), |bit| Some(bit / 2));
        let bits = bits.take_while(|bit| *bit > 0).filter(|bit| place + bit < size);
        bits.map(|bit| (of_place(place + bit), bit.ilog2()))
    };
    for (child, step) in children(bit) {
        let awaited = op.awaited(step);
        post(world, (op.to(child, step), data), limit, || awaited(child))?;
    }
    // All children have their data before the call waits for one of them, which may be computing.
    let begun = Instant::now();
    for (child, step) in children(bit) {
        let awaited = op.awaited(step);
        let left = limit.saturating_sub(begun.elapsed());
        world.hand_over(Some(child), left, &|| awaited(child));
    }
    Ok(())
}

pub(crate) fn allgather(world: &World, own: &[u8], all: &mut [u8], limit: Duration) -> Result<(), Error> {
    world.here()?;
    let op = Operation::Allgather;
    let (rank, size) = (world.rank(), world.size());
    let (ranks, block) = (size as usize, own.len());
    if block.checked_mul(ranks) != Some(all.len()) {
        let what = format!(
            "allgather of {block} bytes from {size} ranks needs {size} times as many, but got {}",
            all.len()
        );
        return Err(Error::Layout { what });
    }
    // Until the rotation at the end, block i of `all` holds the bytes of rank (rank + i).
    all[..block].copy_from_slice(own);
    let mut have = 1;
    let mut step = 0;
    while have < ranks {
        let count = have.min(ranks - have);
        let (ahead, behind) = around(rank, size, have as u32);
        let (ours, free) = all.split_at_mut(have * block);
        let (send, recv) = (op.to(behind, step), op.from(ahead, step));
        let (out, into) = (&ours[..count * block], &mut free[..count * block]);
        let received = exchange(
            world,
            Some((send, out)),
            Some((recv, into)),
            limit,
            op.awaited(step),
        )?;
        if received != count * block {
            let what =
                format!("rank {ahead} gathers blocks of another length than rank {rank}'s {block} bytes");
            return Err(Error::Layout { what });
        }
        have += count;
        step += 1;
    }
    all.rotate_right(rank as usize * block);
    Ok(())
}

/// Gathers one message from every rank at rank 0, in the order of ranks, each of at most `most` bytes.
pub(crate) fn gather_words(
    world: &World,
    own: Vec<u8>,
    most: usize,
    limit: Duration,
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let op = Operation::Spawn;
    let send =
        |step, data: &[u8]| exchange(world, Some((op.to(0, step), data)), None, limit, op.awaited(step));
    if world.rank() != 0 {
        send(0, &(own.len() as u64).to_le_bytes())?;
        send(1, &own)?;
        return Ok(None);
    }
    let mut all = vec![own];
    for rank in 1..world.size() {
        let recv = |step, into: &mut [u8]| {
            exchange(
                world,
                None,
                Some((op.from(rank, step), into)),
                limit,
                op.awaited(step),
            )
        };
        let mut length = [0; 8];
        recv(0, &mut length)?;
        let mut words = room_for(length, most)?;
        recv(1, &mut words)?;
        all.push(words);
    }
    Ok(Some(all))
}

/// Broadcasts a message of at most `most` bytes from rank 0 to every rank.
pub(crate) fn share_words(
    world: &World,
    own: Option<Vec<u8>>,
    most: usize,
    limit: Duration,
) -> Result<Vec<u8>, Error> {
    let mut length = (own.as_ref().map_or(0, Vec::len) as u64).to_le_bytes();
    broadcast(world, 0, &mut length, limit)?;
    let mut words = match own {
        Some(own) => own,
        None => room_for(length, most)?,
    };
    broadcast(world, 0, &mut words, limit)?;
    Ok(words)
}

fn room_for(length: [u8; 8], most: usize) -> Result<Vec<u8>, Error> {
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > most {
        let what = format!("a rank announces a message of {length} bytes, but at most {most} are allowed");
        return Err(Error::Layout { what });
    }
    Ok(vec![0; length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_around_the_ring() {
        assert_eq!(around(0, 5, 2), (2, 3));
        assert_eq!(around(4, 5, 4), (3, 0));
        assert_eq!(around(3, 7, 7), (3, 3));
        assert_eq!(around(u32::MAX - 2, u32::MAX, 5), (3, u32::MAX - 7));
    }
}
