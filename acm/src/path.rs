//! Paths: the result of resolving an address, in the layout and the units of InfiniBand's PathRecord.
//!
//! reference: acm, section 4 (layout, codes); InfiniBand Architecture Specification, volume 1, 15.2.5.16
//! (PathRecord).

use zerocopy::FromZeros;

use crate::address::Gid;

pub use doorbell_verbs::subnet::PathRecord;

/// Bytes of a path on the wire.
pub const PATH: usize = 64;
/// The selector "exactly" of a value.
const EXACTLY: u8 = 2;
/// The bits of the value in its byte; the others are the selector.
const VALUE: u8 = 0x3f;

/// The largest payload of a packet, as InfiniBand encodes it: a code from 1 to 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// The smallest MTU: 256 bytes.
    pub const MIN: Self = Self(1);
    /// The largest MTU: 4,096 bytes.
    pub const MAX: Self = Self(5);

    /// Returns the MTU with a code, if there is one.
    #[must_use]
    pub const fn of(code: u8) -> Option<Self> {
        if matches!(code, 1..=5) {
            Some(Self(code))
        } else {
            None
        }
    }

    /// Returns the code of the MTU.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the MTU in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.0
    }

    /// Returns the largest MTU of at most this many bytes.
    ///
    /// ```
    /// use doorbell_acm::path::Mtu;
    /// assert_eq!(Mtu::within(1500).map(Mtu::bytes), Some(1024));
    /// assert_eq!(Mtu::within(255), None);
    /// ```
    #[must_use]
    pub fn within(bytes: u32) -> Option<Self> {
        (1..=5).rev().map(Self).find(|mtu| mtu.bytes() <= bytes)
    }
}

/// The rate of a link, as InfiniBand encodes it: a code from 2 to 22, not in the order of speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate(u8);

/// Rate of each code (Mb/s), from code 2 on.
const MEGABITS: [u32; 21] = [
    2_500, 10_000, 30_000, 5_000, 20_000, 40_000, 60_000, 80_000, 120_000, 14_000, 56_000, 112_000, 168_000,
    25_000, 100_000, 200_000, 300_000, 28_000, 50_000, 400_000, 600_000,
];

impl Rate {
    /// The slowest rate: 2.5 Gb/s.
    pub const MIN: Self = Self(2);

    /// Returns the rate with a code, if there is one.
    #[must_use]
    pub const fn of(code: u8) -> Option<Self> {
        if matches!(code, 2..=22) {
            Some(Self(code))
        } else {
            None
        }
    }

    /// Returns the code of the rate.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the rate in Mb/s.
    #[must_use]
    pub const fn megabits(self) -> u32 {
        MEGABITS[self.0 as usize - 2]
    }

    /// Returns the fastest rate of at most this many Mb/s, or else [`Rate::MIN`].
    ///
    /// ```
    /// use doorbell_acm::path::Rate;
    /// assert_eq!(Rate::within(10_000).megabits(), 10_000);
    /// assert_eq!(Rate::within(1_000), Rate::MIN);
    /// ```
    #[must_use]
    pub fn within(megabits: u32) -> Self {
        (2..=22)
            .map(Self)
            .filter(|rate| rate.megabits() <= megabits)
            .max_by_key(|rate| rate.megabits())
            .unwrap_or(Self::MIN)
    }
}

/// A path, with its fields as numbers; [`PathRecord`] has the layout of the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The service id; 0 for any.
    pub service_id: u64,
    /// The destination's GID.
    pub dgid: Gid,
    /// The source's GID.
    pub sgid: Gid,
    /// The destination's LID; 0 without InfiniBand.
    pub dlid: u16,
    /// The source's LID; 0 without InfiniBand.
    pub slid: u16,
    /// The flow label (20 bits).
    pub flow_label: u32,
    /// The hop limit; 0 within a subnet.
    pub hop_limit: u8,
    /// The traffic class.
    pub tclass: u8,
    /// Whether the reverse path is the same.
    pub reversible: bool,
    /// Number of paths requested or returned (7 bits).
    pub num_path: u8,
    /// The partition key; with 0x8000 for full members.
    pub pkey: u16,
    /// The quality-of-service class (12 bits).
    pub qos_class: u16,
    /// The service level (4 bits).
    pub sl: u8,
    /// The largest payload of a packet; `None` if unknown.
    pub mtu: Option<Mtu>,
    /// The rate of the path; `None` if unknown.
    pub rate: Option<Rate>,
    /// The lifetime of a packet, as an exponent: 4.096 µs × 2^value (6 bits).
    pub packet_lifetime: u8,
    /// The preference; smaller is better.
    pub preference: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self::from(&PathRecord::new_zeroed())
    }
}

const _: () = assert!(size_of::<PathRecord>() == PATH);

impl From<&Path> for PathRecord {
    fn from(path: &Path) -> Self {
        let exactly = |value: u8| EXACTLY << 6 | value & VALUE;
        Self {
            service_id: path.service_id.into(),
            dgid: path.dgid.0,
            sgid: path.sgid.0,
            dlid: path.dlid.into(),
            slid: path.slid.into(),
            flow_and_hops: ((path.flow_label & 0xf_ffff) << 8 | u32::from(path.hop_limit)).into(),
            tclass: path.tclass,
            reversible_and_count: u8::from(path.reversible) << 7 | path.num_path & 0x7f,
            pkey: path.pkey.into(),
            qos_and_sl: (path.qos_class << 4 | u16::from(path.sl & 0xf)).into(),
            mtu: path.mtu.map_or(0, |mtu| exactly(mtu.code())),
            rate: path.rate.map_or(0, |rate| exactly(rate.code())),
            packet_lifetime: exactly(path.packet_lifetime),
            preference: path.preference,
            reserved: [0; 6],
        }
    }
}

impl From<&PathRecord> for Path {
    /// Selectors are ignored: an answer means the value itself, and a query gets what there is.
    fn from(record: &PathRecord) -> Self {
        let (flow, qos) = (record.flow_and_hops.get(), record.qos_and_sl.get());
        Self {
            service_id: record.service_id.get(),
            dgid: Gid(record.dgid),
            sgid: Gid(record.sgid),
            dlid: record.dlid.get(),
            slid: record.slid.get(),
            flow_label: flow >> 8 & 0xf_ffff,
            hop_limit: (flow & 0xff) as u8,
            tclass: record.tclass,
            reversible: record.reversible_and_count & 0x80 != 0,
            num_path: record.reversible_and_count & 0x7f,
            pkey: record.pkey.get(),
            qos_class: qos >> 4,
            sl: (qos & 0xf) as u8,
            mtu: Mtu::of(record.mtu & VALUE),
            rate: Rate::of(record.rate & VALUE),
            packet_lifetime: record.packet_lifetime & VALUE,
            preference: record.preference,
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn some() -> Path {
        Path {
            service_id: 0x0102_0304_0506_0708,
            dgid: "fe80::1".parse().unwrap(),
            sgid: "::ffff:10.0.0.2".parse().unwrap(),
            dlid: 0x1112,
            slid: 0x1314,
            flow_label: 0xabcde,
            hop_limit: 64,
            tclass: 7,
            reversible: true,
            num_path: 1,
            pkey: 0xffff,
            qos_class: 0x123,
            sl: 4,
            mtu: Mtu::within(2048),
            rate: Some(Rate::within(100_000)),
            packet_lifetime: 18,
            preference: 9,
        }
    }

    #[test]
    fn golden_bytes() {
        let record = PathRecord::from(&some());
        let golden = [
            1, 2, 3, 4, 5, 6, 7, 8, //
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2, //
            0x11, 0x12, 0x13, 0x14, 0x0a, 0xbc, 0xde, 64, //
            7, 0x81, 0xff, 0xff, 0x12, 0x34, 0x84, 0x90, 0x92, 9, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(record.as_bytes(), golden);
        assert_eq!(Path::from(&record), some());
    }

    #[test]
    fn codes_are_those_of_the_reference() {
        let mtus: Vec<u32> = (1..=5).map(|code| Mtu::of(code).unwrap().bytes()).collect();
        assert_eq!(mtus, [256, 512, 1024, 2048, 4096]);
        assert!(Mtu::of(0).is_none() && Mtu::of(6).is_none());
        let stated = [
            (2, 25),
            (5, 50),
            (3, 100),
            (6, 200),
            (4, 300),
            (7, 400),
            (8, 600),
            (9, 800),
            (10, 1200),
            (11, 140),
            (12, 560),
            (13, 1120),
            (14, 1680),
            (15, 250),
            (16, 1000),
            (17, 2000),
            (18, 3000),
            (19, 280),
            (20, 500),
            (21, 4000),
            (22, 6000),
        ];
        for (code, tenths) in stated {
            let rate = Rate::of(code).unwrap();
            assert_eq!(rate.megabits(), tenths * 100, "code {code}");
            assert_eq!(Rate::within(rate.megabits()), rate);
        }
        assert!(Rate::of(1).is_none() && Rate::of(23).is_none());
    }
}
