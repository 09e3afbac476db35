//! The counters of a function, as STATS_DUMP lays them out (3.7).

/// Bytes of the whole dump.
pub(crate) const LENGTH: usize = 512;

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) ok: u64,
    pub(crate) unicast: u64,
    pub(crate) multicast: u64,
    pub(crate) broadcast: u64,
    pub(crate) bytes: u64,
    pub(crate) drops: u64,
    pub(crate) errors: u64,
}

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) ok: u64,
    pub(crate) total: u64,
    pub(crate) unicast: u64,
    pub(crate) multicast: u64,
    pub(crate) broadcast: u64,
    pub(crate) bytes: u64,
    /// Frames that matched no filter, or whose function takes nothing.
    pub(crate) drop: u64,
    pub(crate) no_bufs: u64,
    pub(crate) errors: u64,
    pub(crate) crc: u64,
    /// Frames by length: 64, 65 to 127, to 255, to 511, to 1023, to 1518, more.
    pub(crate) sizes: [u64; 7],
}

/// The counters of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) tx: Sent,
    pub(crate) rx: Received,
}

/// The kind of a frame's destination: unicast, multicast or broadcast.
fn cast(frame: &[u8]) -> usize {
    match frame.get(..6) {
        Some([255, 255, 255, 255, 255, 255]) => 2,
        Some([first, ..]) if first & 1 != 0 => 1,
        _ => 0,
    }
}

impl Stats {
    pub(crate) fn sent(&mut self, frame: &[u8]) {
        self.tx.ok += 1;
        self.tx.bytes += frame.len() as u64;
        let by = [
            &mut self.tx.unicast,
            &mut self.tx.multicast,
            &mut self.tx.broadcast,
        ];
        *by[cast(frame)] += 1;
    }

    pub(crate) fn received(&mut self, frame: &[u8]) {
        self.rx.ok += 1;
        self.rx.bytes += frame.len() as u64;
        let by = [
            &mut self.rx.unicast,
            &mut self.rx.multicast,
            &mut self.rx.broadcast,
        ];
        *by[cast(frame)] += 1;
        // Lengths on the wire have the FCS in them.
        let class = match frame.len() + 4 {
            ..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            1024..=1518 => 5,
            _ => 6,
        };
        self.rx.sizes[class] += 1;
    }

    /// The dump. \[M\] Bytes by kind of address are not told apart: all are unicast's.
    pub(crate) fn dump(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let (tx, rx) = (&self.tx, &self.rx);
        let sent = [
            tx.ok,
            tx.unicast,
            tx.multicast,
            tx.broadcast,
            tx.bytes,
            tx.bytes,
            0,
            0,
            tx.drops,
            tx.errors,
            0,
        ];
        for (index, value) in sent.into_iter().enumerate() {
            put(index * 8, value);
        }
        let received = [
            rx.ok,
            rx.total,
            rx.unicast,
            rx.multicast,
            rx.broadcast,
            rx.bytes,
            rx.bytes,
            0,
            0,
            rx.drop,
            rx.no_bufs,
            rx.errors,
            0,
            rx.crc,
        ];
        for (index, value) in received.into_iter().chain(rx.sizes).enumerate() {
            put(216 + index * 8, value);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_where_the_reference_has_them() {
        let mut stats = Stats::default();
        stats.sent(&[0; 60]);
        stats.sent(&[255; 100]);
        stats.received(&[1; 1600]);
        (
            stats.rx.no_bufs,
            stats.rx.drop,
            stats.rx.crc,
            stats.rx.total,
            stats.tx.errors,
        ) = (7, 8, 9, 10, 11);
        let dump = stats.dump();
        let at = |at: usize| u64::from_le_bytes(dump[at..at + 8].try_into().unwrap());
        assert_eq!(
            [at(0), at(8), at(16), at(24), at(32), at(72)],
            [2, 1, 0, 1, 160, 11]
        );
        assert_eq!([at(216), at(224), at(232), at(240), at(256)], [1, 10, 0, 1, 1600]);
        assert_eq!(
            [at(288), at(296), at(320), at(328), at(376), at(384)],
            [8, 7, 9, 0, 1, 0]
        );
    }
}
