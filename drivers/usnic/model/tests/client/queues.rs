//! A queue pair by hand: rings in the client's memory, registers as the reference orders them (5.3).

use super::{ADD_FILTER, CQ, Client, QP_ENABLE, RQ, WQ, until};

/// Bytes of a buffer.
pub const BUFFER: u64 = 16 << 10;

/// Where a pair's memory is: rings, then buffers.
const RINGS: u64 = 2 << 20;

/// A completion in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub bytes: [u8; 16],
}

impl Done {
    pub fn kind(&self) -> u8 {
        self.bytes[15] & 0x7f
    }
    pub fn index(&self) -> u16 {
        u16::from_le_bytes([self.bytes[0], self.bytes[1]]) & 0xfff
    }
    pub fn is_eop(&self) -> bool {
        self.bytes[1] & 0x40 != 0
    }
    pub fn is_sop(&self) -> bool {
        self.bytes[1] & 0x80 != 0
    }
    pub fn queue(&self) -> u16 {
        u16::from_le_bytes([self.bytes[2], self.bytes[3]]) & 0x3ff
    }
    pub fn length(&self) -> usize {
        usize::from(u16::from_le_bytes([self.bytes[8], self.bytes[9]]) & 0x3fff)
    }
    pub fn is_cut(&self) -> bool {
        self.bytes[9] & 0x40 != 0
    }
    pub fn flags(&self) -> u8 {
        self.bytes[14]
    }
}

/// A queue pair with a completion queue for both.
pub struct Pair {
    pub index: u32,
    pub base: u64,
    pub entries: u32,
    pub cq_entries: u32,
    pub wq: u64,
    pub rq: u64,
    pub cq: u64,
    posted: u32,
    rq_posted: u32,
    head: u32,
    color: u8,
}

impl Pair {
    /// Makes memory at `base`, and sets everything up but for running.
    pub fn new(client: &mut Client, index: u32, base: u64, (entries, cq_entries): (u32, u32)) -> Self {
        client.share(base, RINGS + 2 * u64::from(entries) * BUFFER);
        Self::over(client, index, base, (entries, cq_entries))
    }

    /// The same over memory that is shared already.
    pub fn over(client: &mut Client, index: u32, base: u64, (entries, cq_entries): (u32, u32)) -> Self {
        let mut pair = Self {
            index,
            base,
            entries,
            cq_entries,
            wq: client.find(WQ, index),
            rq: client.find(RQ, index),
            cq: client.find(CQ, index),
            posted: 0,
            rq_posted: 0,
            head: 0,
            color: 0,
        };
        pair.set_up(client);
        pair
    }

    /// Registers of all three, as 5.3 has it.
    pub fn set_up(&mut self, client: &mut Client) {
        (self.posted, self.rq_posted, self.head, self.color) = (0, 0, 0, 0);
        client.mem_write(self.cq_ring(), &vec![0; 16 * self.cq_entries as usize]);
        client.write64(self.cq, self.cq_ring());
        for (at, value) in [
            (0x08, self.cq_entries),
            (0x10, 0),
            (0x18, 1),
            (0x20, 0),
            (0x28, 0),
            (0x30, 1),
            (0x38, 0),
            (0x40, 1),
            (0x48, 0),
            (0x50, 0),
        ] {
            client.write32(self.cq + at, value);
        }
        for (queue, ring) in [(self.wq, self.base), (self.rq, self.base + 0x10000)] {
            client.write32(queue + 0x20, 0);
            client.write64(queue, ring);
            for (at, value) in [(0x08, self.entries), (0x30, 0), (0x10, 0), (0x18, self.index)] {
                client.write32(queue + at, value);
            }
        }
    }

    fn cq_ring(&self) -> u64 {
        self.base + 0x20000
    }

    /// Where send buffer `slot` is.
    pub fn tx(&self, slot: u32) -> u64 {
        self.base + RINGS + u64::from(slot) * BUFFER
    }

    /// Where receive buffer `slot` is.
    pub fn rx(&self, slot: u32) -> u64 {
        self.base + RINGS + u64::from(self.entries + slot) * BUFFER
    }

    /// Enables both queues and waits until they run.
    pub fn enable(&self, client: &mut Client) {
        for queue in [self.rq, self.wq] {
            client.write32(queue + 0x20, 1);
            until("the queue runs", || client.read32(queue + 0x28) == 1);
        }
    }

    /// Disables both, the receive queue twice.
    pub fn disable(&self, client: &mut Client) {
        for queue in [self.wq, self.rq, self.rq] {
            client.write32(queue + 0x20, 0);
            until("the queue stops", || client.read32(queue + 0x28) == 0);
        }
    }

    /// Writes a send descriptor at the next slot, without a doorbell.
    pub fn describe(&mut self, client: &Client, address: u64, length: u16, flags: u16, mss: u16) -> u32 {
        let slot = self.posted;
        let mut desc = [0; 16];
        desc[..8].copy_from_slice(&address.to_le_bytes());
        desc[8..10].copy_from_slice(&length.to_le_bytes());
        desc[10..12].copy_from_slice(&(mss << 2).to_le_bytes());
        desc[12..14].copy_from_slice(&flags.to_le_bytes());
        client.mem_write(self.base + u64::from(slot) * 16, &desc);
        self.posted = (slot + 1) % self.entries;
        slot
    }

    pub fn ring(&self, client: &mut Client) {
        client.write32(self.wq + 0x10, self.posted);
    }

    /// Sends a frame of one buffer, signalled, whose checksums the device makes.
    pub fn send(&mut self, client: &mut Client, frame: &[u8]) -> u32 {
        let address = self.tx(self.posted);
        client.mem_write(address, frame);
        let slot = self.describe(client, address, frame.len() as u16, 0x3000, 7);
        self.ring(client);
        slot
    }

    /// Posts receive buffers of a length and kind (0 start, 1 continuation).
    pub fn post(&mut self, client: &mut Client, count: u32, length: u16, kind: u16) {
        for _ in 0..count {
            let slot = self.rq_posted;
            let mut desc = [0; 16];
            desc[..8].copy_from_slice(&self.rx(slot).to_le_bytes());
            desc[8..10].copy_from_slice(&(length | kind << 14).to_le_bytes());
            client.mem_write(self.base + 0x10000 + u64::from(slot) * 16, &desc);
            self.rq_posted = (slot + 1) % self.entries;
        }
        client.write32(self.rq + 0x10, self.rq_posted);
    }

    /// The next completion, if there is one.
    pub fn poll(&mut self, client: &Client) -> Option<Done> {
        let at = self.cq_ring() + u64::from(self.head) * 16;
        let mut last = [0];
        client.mem_read(at + 15, &mut last);
        if last[0] >> 7 == self.color {
            return None;
        }
        let mut bytes = [0; 16];
        client.mem_read(at, &mut bytes);
        self.head += 1;
        if self.head == self.cq_entries {
            (self.head, self.color) = (0, self.color ^ 1);
        }
        Some(Done { bytes })
    }

    /// Waits for the next completion.
    pub fn wait(&mut self, client: &Client) -> Done {
        let mut done = None;
        until("a completion", || {
            done = self.poll(client);
            done.is_some()
        });
        done.unwrap()
    }

    /// The bytes of receive buffer `slot`.
    pub fn received(&self, client: &Client, slot: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        client.mem_read(self.rx(slot.into()), &mut bytes);
        bytes
    }
}

/// The buffer of a filter of UDP to an address and a port.
pub fn udp_filter(address: u32, port: u16, rq: u32) -> Vec<u8> {
    let mut buffer = Vec::new();
    for word in [0, 34, 1, 0x15, 0, 0, address] {
        buffer.extend(u32::to_le_bytes(word));
    }
    buffer.extend([0, 0]);
    buffer.extend(port.to_le_bytes());
    buffer.extend([0; 10]);
    for word in [1, 8, 0, rq] {
        buffer.extend(u32::to_le_bytes(word));
    }
    assert_eq!(buffer.len(), 58);
    buffer
}

/// Where the physical function keeps filters for the device to read.
pub const TLV: u64 = 0x7000_0000;

/// Has the physical function steer UDP to a queue pair of a virtual function, and enable it; returns the
/// filter's number.
pub fn steer(pf: &mut Client, vf: u64, address: u32, port: u16, qp: u32) -> u64 {
    pf.mem_write(TLV, &udp_filter(address, port, qp));
    let id = pf.proxy(vf, ADD_FILTER, &[TLV, 58]).unwrap()[0];
    assert_ne!(id, 0);
    pf.proxy(vf, QP_ENABLE, &[qp.into(), 0]).unwrap();
    id
}

/// A frame of UDP without checksums, as usNIC's headers are (5.5).
pub fn udp(
    to: [u8; 6],
    from: [u8; 6],
    (source, destination): (u32, u32),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(to);
    frame.extend(from);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 8, 17, 0, 0]);
    frame.extend(source.to_be_bytes());
    frame.extend(destination.to_be_bytes());
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// The ones' complement sum of RFC 1071, written for these tests: end-around carry at each step.
pub fn ones(bytes: &[u8]) -> u16 {
    let mut sum = 0u16;
    for pair in bytes.chunks(2) {
        let word = u16::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u16::from);
        let (next, carry) = sum.overflowing_add(word);
        sum = next + u16::from(carry);
    }
    sum
}

/// Whether IPv4's and UDP's checksums of a frame are good: each sum with its field is all ones.
pub fn is_good(frame: &[u8]) -> bool {
    let length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let udp = &frame[34..14 + length];
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend((udp.len() as u16).to_be_bytes());
    pseudo.extend(udp);
    ones(&frame[14..34]) == 0xffff && ones(&pseudo) == 0xffff && udp[6..8] != [0, 0]
}
