//! The notify area: 40 bytes that the device writes whenever link, MTU or its own health change.
//!
//! A copy of which the sum is wrong was taken in the middle of a write, which is normal: it is read again.
//!
//! Sources: DPDK `enic/base/vnic_dev.c` (`vnic_dev_notify_ready`), libfabric and Linux alike.

use doorbell_fabric::memory::SharedBytes;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the area.
pub const NOTIFY_BYTES: usize = size_of::<Area>();
/// How often a torn copy is read again in one look.
const TRIES: usize = 8;

/// `status`: fatal error of the firmware.
const FATAL: u32 = 1;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Area {
    sum: U32,
    link: U32,
    speed: U32,
    mtu: U32,
    message_level: U32,
    uplink: U32,
    status: U32,
    error: U32,
    link_downs: U32,
    rebuilds: U32,
}
const _: () = assert!(NOTIFY_BYTES == 40);
const _: () =
    assert!(memoffset::offset_of!(Area, status) == 24 && memoffset::offset_of!(Area, link_downs) == 32);

/// What the device reports of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Whether there is a link.
    pub link: bool,
    /// Mb/s, after rate limiting.
    pub speed: u32,
    /// The vNIC's MTU; 0 where the device does not report it.
    pub mtu: u32,
    /// The firmware has failed.
    pub fatal: bool,
    /// Number of its first error.
    pub error: u32,
    /// How often the link went away.
    pub link_downs: u32,
}

/// The result of reading the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyRead {
    /// The values there.
    News(News),
    /// The device has written nothing yet.
    Nothing,
    /// The sum is wrong, however often it is read.
    Torn,
}

/// Reads an area of which the device keeps `kept` bytes up to date.
#[must_use]
pub fn read(area: SharedBytes<'_>, kept: usize) -> NotifyRead {
    let words = (kept.min(NOTIFY_BYTES) / 4).max(1);
    for _ in 0..TRIES {
        let Some(bytes) = area.read::<NOTIFY_BYTES>(0) else {
            return NotifyRead::Nothing;
        };
        if bytes == [0; NOTIFY_BYTES] {
            return NotifyRead::Nothing;
        }
        if is_whole(&bytes, words) {
            return NotifyRead::News(News::of(&bytes, words));
        }
    }
    NotifyRead::Torn
}

/// Whether the first word is the wrapping sum of the others that the device keeps.
fn is_whole(bytes: &[u8; NOTIFY_BYTES], words: usize) -> bool {
    let (all, _) = bytes.as_chunks::<4>();
    let sum = all[1..words]
        .iter()
        .fold(0u32, |sum, word| sum.wrapping_add(u32::from_le_bytes(*word)));
    u32::from_le_bytes(all[0]) == sum
}

impl News {
    fn of(bytes: &[u8; NOTIFY_BYTES], words: usize) -> Self {
        // Fields that the device does not maintain are not read.
        let mut kept = [0; NOTIFY_BYTES];
        kept[..words * 4].copy_from_slice(&bytes[..words * 4]);
        let area: Area = zerocopy::transmute!(kept);
        Self {
            link: area.link.get() == 1,
            speed: area.speed.get(),
            mtu: area.mtu.get(),
            fatal: area.status.get() & FATAL != 0,
            error: area.error.get(),
            link_downs: area.link_downs.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(words: [u32; 9]) -> Vec<u8> {
        let sum = words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
        std::iter::once(sum)
            .chain(words)
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    #[test]
    fn a_whole_area_is_read_and_a_torn_one_is_not() {
        let bytes = area([1, 40_000, 9000, 0, 3, 0, 0, 2, u32::MAX]);
        let look = |bytes: &[u8], kept| read(SharedBytes::of(bytes), kept);
        let expected = News {
            link: true,
            speed: 40_000,
            mtu: 9000,
            link_downs: 2,
            ..News::default()
        };
        assert_eq!(
            look(&bytes, 40),
            NotifyRead::News(expected),
            "the sum wraps around"
        );
        for at in 0..40 {
            let mut torn = bytes.clone();
            torn[at] ^= 0x10;
            assert_eq!(look(&torn, 40), NotifyRead::Torn, "byte {at}");
        }
        assert_eq!(look(&[0; 40], 40), NotifyRead::Nothing);
        let failed = area([1, 0, 1500, 0, 0, 1, 7, 0, 0]);
        let NotifyRead::News(failed) = look(&failed, 40) else {
            panic!()
        };
        assert!(failed.fatal && failed.error == 7);
    }

    #[test]
    fn an_older_firmware_keeps_fewer_words() {
        let mut bytes = area([1, 10_000, 1500, 0, 0, 0, 0, 0, 0]);
        // Beyond the 16 bytes that it writes the old values stay.
        bytes[32] = 77;
        let NotifyRead::News(news) = read(SharedBytes::of(&bytes), 16) else {
            panic!()
        };
        assert_eq!((news.link, news.mtu, news.link_downs), (true, 1500, 0));
        assert_eq!(read(SharedBytes::of(&bytes), 40), NotifyRead::Torn);
        // Sizes that cannot be are cut to what can.
        assert_eq!(read(SharedBytes::of(&bytes), usize::MAX), NotifyRead::Torn);
        assert_eq!(read(SharedBytes::of(&bytes), 0), NotifyRead::Torn);
    }
}
