//! A kernel that gives the receiving half whatever a script contains, for tests and fuzzers: frames whole and
//! in chunks, chains that never end or lose chunks, false entries; and a count of the owner of each chunk.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use doorbell_fabric::datagram::{Channel, Receive};
use doorbell_fabric::ether::{Headers, sum};
use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_ring::indexed::{Consumer, Places, Producer, bytes_of, pair};
use doorbell_ring::storage::Area;

use crate::layout::BUFFERS;
use crate::queue::{ADDRESS, CHUNKS, DESCRIPTOR, FRAMES, GOES_ON, pack};
use crate::rx::{Parts, Source, XdpRx, receiver as receiving_half};

const PLACES: Places = Places {
    producer: 0,
    consumer: 64,
    flags: 128,
    entries: 192,
};
const QUEUES: usize = 2;
/// More frames can wait, in all, than there are buffers.
const RING: usize = 128;
const CHUNK: usize = 2048;
const SPARE: usize = 3;
const BUFFER: usize = 9024;
/// Headroom before what is given.
const ROOM: usize = 256;

/// The kernel's side of a queue.
struct Queue {
    fill: Consumer<ADDRESS>,
    receive: Producer<DESCRIPTOR>,
    /// Chunks that it took and has not given.
    has: Vec<u32>,
}

struct Kernel {
    memory: RegionSlice,
    queues: Vec<Queue>,
}

fn addresses() -> (SocketAddr, SocketAddr) {
    (([10, 0, 0, 2], 56080).into(), ([10, 0, 0, 1], 56080).into())
}

/// A receiving half and the kernel below it. `several`: it takes frames of several chunks.
fn receiver(several: bool) -> Option<(XdpRx, Kernel)> {
    let chunks = QUEUES * RING + SPARE;
    let buffer = if several { BUFFER } else { 0 };
    let memory = Region::new(chunks * CHUNK + (BUFFERS + SPARE) * BUFFER)
        .ok()?
        .whole();
    let area = |bytes| Area::heap(bytes).ok();
    let (mut sources, mut queues) = (Vec::new(), Vec::new());
    for _ in 0..QUEUES {
        let frames = area(bytes_of::<DESCRIPTOR>(PLACES.entries, RING))?;
        let (given, receive) = pair(FRAMES, frames, RING, PLACES).ok()?;
        let filled = area(bytes_of::<ADDRESS>(PLACES.entries, 2 * RING))?;
        let (fill, taken) = pair(CHUNKS, filled, 2 * RING, PLACES).ok()?;
        sources.push(Source {
            socket: Arc::new(File::open("/dev/null").ok()?.into()),
            receive,
            fill,
            unpublished: 0,
            untold: 0,
            may_sleep: false,
        });
        queues.push(Queue {
            fill: taken,
            receive: given,
            has: Vec::new(),
        });
    }
    let (peer, own) = addresses();
    let received = (QUEUES * RING) as u32;
    let mut rx = receiving_half(Parts {
        sources,
        memory: memory.clone(),
        chunk: CHUNK,
        chunks,
        filled: (0..QUEUES as u32)
            .map(|queue| queue * RING as u32..(queue + 1) * RING as u32)
            .collect(),
        spares: received..received + SPARE as u32,
        buffer,
        kept_buffers: SPARE,
        own,
        may_be_unfinished: true,
    });
    for port in [56080, 56081] {
        rx.demux().add_peer(SocketAddr::new(peer.ip(), port), 7);
    }
    Some((rx, Kernel { memory, queues }))
}

impl Kernel {
    /// Takes the next chunk of a queue.
    fn chunk(&mut self, queue: usize) -> Option<u32> {
        let queue = &mut self.queues[queue];
        let next = queue
            .fill
            .take()
            .map(|at| (u64::from_ne_bytes(at) / CHUNK as u64) as u32);
        queue.fill.release();
        queue.has.extend(next);
        queue.has.pop()
    }

    /// Gives bytes in the next chunk, `goes_on` or not; returns whether there was one.
    fn give(&mut self, queue: usize, bytes: &[u8], goes_on: bool) -> bool {
        if self.queues[queue].receive.free(1) == 0 {
            return false;
        }
        let Some(chunk) = self.chunk(queue) else {
            return false;
        };
        let at = chunk as usize * CHUNK + ROOM;
        let n = self.memory.write(at, &bytes[..bytes.len().min(CHUNK - ROOM)]);
        self.complete(queue, (at as u64, n as u32), goes_on)
    }

    fn complete(&mut self, queue: usize, (at, length): (u64, u32), goes_on: bool) -> bool {
        let options = if goes_on { GOES_ON } else { 0 };
        let receive = &mut self.queues[queue].receive;
        let told = receive.push(pack(at, length, options)).is_ok();
        receive.publish();
        told
    }
}

/// Makes a packet of the peer, whose bytes follow from `seed`.
fn packet(length: usize, seed: u8, channel: u16) -> Vec<u8> {
    let (peer, own) = addresses();
    let at = |address: SocketAddr| SocketAddr::new(address.ip(), address.port() + channel);
    let frame: Vec<u8> = (0..length).map(|at| content(seed, at)).collect();
    let headers = Headers::new(at(peer), at(own));
    let mut packet = headers.for_frame(length, Some(sum(&frame))).to_vec();
    packet.extend_from_slice(&frame);
    packet
}

fn content(seed: u8, at: usize) -> u8 {
    if at == 0 {
        seed
    } else {
        seed.wrapping_mul(31).wrapping_add((at * 7 + at / 251) as u8)
    }
}

/// The script: each byte is taken once, and zero where there are none.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }
}

/// Plays a script against the receiving half.
///
/// # Panics
/// When a chunk or a buffer is lost or comes twice, a frame is shown that was not sent, or frames do not come
/// any more.
pub fn receive(script: &[u8]) {
    let mut script = Script(script);
    let Some((mut rx, mut kernel)) = receiver(script.byte() & 1 == 0) else {
        return;
    };
    let mut kept = Vec::new();
    while !script.0.is_empty() {
        let queue = usize::from(script.byte()) % QUEUES;
        match script.byte() % 8 {
            0 | 1 => send(&mut kernel, queue, &mut script),
            2 => {
                // Bytes that imitate a part of a frame.
                let piece = packet(script.word() % 2000, script.byte(), 0);
                let (skip, goes_on) = (usize::from(script.byte()), script.byte() & 1 == 1);
                kernel.give(queue, piece.get(skip..).unwrap_or(&[]), goes_on);
            }
            3 => lie(&mut rx, &mut kernel, queue, &mut script),
            4 => kept.truncate(usize::from(script.byte()) % 4),
            choice => {
                let channel = if choice == 5 {
                    Channel::Priority
                } else {
                    Channel::Data
                };
                let n = rx.poll(channel, usize::from(script.byte()) % 20);
                look(&rx, channel, n);
                if n > 0 && choice == 7 {
                    kept.extend(rx.keep(channel, 0));
                }
            }
        }
        census(&rx);
    }
    drop(kept);
    goes_on(&mut rx, &mut kernel);
}

/// A packet of the peer, in pieces of any length, all of it or up to where a chunk is lost.
fn send(kernel: &mut Kernel, queue: usize, script: &mut Script<'_>) {
    let (length, seed) = (script.word() % 9000, script.byte());
    let (size, lost) = (1 + script.word() % (CHUNK - ROOM), script.byte());
    let packet = packet(length, seed, u16::from(seed & 1));
    let pieces = packet.chunks(size.max(64)).count();
    for (number, piece) in packet.chunks(size.max(64)).enumerate() {
        if lost & 0x80 != 0 && number == usize::from(lost & 7) {
            continue;
        }
        if !kernel.give(queue, piece, number + 1 < pieces) {
            break;
        }
    }
}

/// An entry that cannot be: of a chunk that the kernel does not have, or of more bytes than it has.
fn lie(rx: &mut XdpRx, kernel: &mut Kernel, queue: usize, script: &mut Script<'_>) {
    let (at, length) = (script.word() * 997, script.word() as u32 * 3);
    let goes_on = script.byte() & 1 == 1;
    if kernel.queues[queue].receive.free(1) == 0 {
        return;
    }
    if script.byte() & 1 == 1 {
        if let Some(chunk) = kernel.chunk(queue) {
            kernel.complete(queue, ((chunk as usize * CHUNK) as u64, length), goes_on);
        }
    } else if !rx.queues.is_with_kernel(at / CHUNK) {
        kernel.complete(queue, (at as u64, length), goes_on);
    }
}

/// Each chunk and each buffer is somewhere, and once.
fn census(rx: &XdpRx) {
    let chunks = QUEUES * RING + SPARE;
    let buffers = if rx.queues.has_buffers() {
        BUFFERS + SPARE
    } else {
        0
    };
    let mut seen = vec![0; chunks + buffers];
    for buffer in rx.queues.buffers().chain(rx.buffers()) {
        seen[buffer as usize] += 1;
    }
    let wrong = seen.iter().position(|&count| count != 1);
    assert_eq!(wrong, None, "of {chunks} chunks and {buffers} buffers");
}

/// Checks that what is shown was sent: its bytes follow from the first, unless it is one of the pieces that
/// imitate something.
fn look(rx: &XdpRx, channel: Channel, shown: usize) {
    for i in 0..shown {
        let frame = rx.frame(channel, i).expect("it is shown");
        assert_eq!(frame.from.map(|peer| peer.0), Some(7));
        let bytes = frame.bytes.to_vec();
        let seed = bytes.first().copied().unwrap_or(0);
        let right = bytes
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == content(seed, at));
        assert!(right, "a frame of {} bytes that was not sent", bytes.len());
    }
}

/// After all that, frames come as ever, through every chunk.
fn goes_on(rx: &mut XdpRx, kernel: &mut Kernel) {
    let empty = |rx: &mut XdpRx| {
        for channel in [Channel::Priority, Channel::Data] {
            while rx.poll(channel, 64) > 0 {}
        }
    };
    (0..4).for_each(|_| empty(rx));
    for queue in 0..QUEUES {
        // Whatever frame was begun ends here.
        kernel.give(queue, &[], false);
        empty(rx);
        for round in 0..3 * RING {
            let whole = packet(8 + round, round as u8, 1);
            assert!(
                kernel.give(queue, &whole, false),
                "queue {queue} has chunks, round {round}"
            );
            assert_eq!(rx.poll(Channel::Data, 1), 1);
            look(rx, Channel::Data, 1);
        }
    }
    empty(rx);
    census(rx);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts by chance; the fuzzer finds better ones.
    #[test]
    fn whatever_the_kernel_gives_no_chunk_is_lost() {
        let mut random = doorbell_testing::Random::new(1);
        let mut random = || random.next_u64();
        for _ in 0..100 {
            let script: Vec<u8> = (0..random() % 3000).map(|_| random() as u8).collect();
            receive(&script);
        }
    }

    /// A chain without an end passes every chunk on, and what follows its end is received.
    #[test]
    fn a_chain_that_never_ends_keeps_nothing() {
        for several in [true, false] {
            let (mut rx, mut kernel) = receiver(several).unwrap();
            let begun = packet(1700, 3, 1);
            for _ in 0..10 * RING {
                assert!(kernel.give(0, &begun, true));
                assert_eq!(rx.poll(Channel::Data, 64), 0);
                census(&rx);
            }
            assert_eq!(rx.counts().malformed, 1, "told once");
            // The end of the chain looks like a whole frame, and is none.
            assert!(kernel.give(0, &begun, false));
            assert_eq!(rx.poll(Channel::Data, 64), 0);
            goes_on(&mut rx, &mut kernel);
        }
    }

    /// Where chunks of a frame are lost, what is put together is not shown, whatever its parts look like.
    #[test]
    fn a_frame_that_lost_a_chunk_is_dropped_with_what_it_swallowed() {
        let (mut rx, mut kernel) = receiver(true).unwrap();
        let (one, other) = (packet(5000, 3, 1), packet(600, 9, 1));
        let parts: Vec<&[u8]> = one.chunks(1700).collect();
        // The last chunk is lost: the next frame is taken for it.
        assert!(kernel.give(0, parts[0], true) && kernel.give(0, parts[1], true));
        assert!(kernel.give(0, &other, false));
        assert_eq!(rx.poll(Channel::Data, 64), 0);
        // One in the middle.
        assert!(kernel.give(0, parts[0], true) && kernel.give(0, parts[2], false));
        assert_eq!(rx.poll(Channel::Data, 64), 0);
        assert_eq!((rx.counts().malformed, rx.counts().received), (2, 0));
        for part in [0, 1, 2] {
            assert!(kernel.give(0, parts[part], part < 2));
        }
        assert_eq!(rx.poll(Channel::Data, 64), 1);
        look(&rx, Channel::Data, 1);
        goes_on(&mut rx, &mut kernel);
    }

    /// With all buffers full of frames that are not read, the rings wait, and go on where they were.
    #[test]
    fn frames_of_several_chunks_wait_for_buffers() {
        let (mut rx, mut kernel) = receiver(true).unwrap();
        let long = packet(3000, 5, 1);
        let mut sent = 0;
        // Only the other channel is polled, so that the frames stay.
        for _ in 0..BUFFERS + 10 {
            for part in [0, 1] {
                let piece = long.chunks(1700).nth(part).unwrap();
                if !kernel.give(0, piece, part == 0) {
                    assert_eq!(part, 0, "frames are whole");
                    break;
                }
                sent += part;
            }
            assert_eq!(rx.poll(Channel::Priority, 1), 0);
        }
        assert!(sent > BUFFERS, "{sent}");
        let mut seen = 0;
        loop {
            let n = rx.poll(Channel::Data, 16);
            look(&rx, Channel::Data, n);
            seen += n;
            if n == 0 {
                break;
            }
        }
        assert_eq!(seen, sent);
        goes_on(&mut rx, &mut kernel);
    }
}
