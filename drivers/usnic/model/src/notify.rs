//! The notify area: the link and the firmware's state, written into the client's memory whenever they change
//! (3.6).

/// Bytes of it.
pub(crate) const LENGTH: usize = 40;
/// The value that means no interrupt.
pub(crate) const NO_INTERRUPT: u16 = 0xffff;

/// The notify area of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotifyArea {
    pub(crate) address: u64,
    /// Bytes that are kept up to date.
    pub(crate) size: usize,
    pub(crate) interrupt: u16,
}

/// The state that is written to notify areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    /// The speed in Mb/s.
    pub(crate) speed: u32,
    pub(crate) mtu: u32,
    /// Bit 0: a fatal error of the firmware.
    pub(crate) status: u32,
    pub(crate) error: u32,
    /// How often the link went down.
    pub(crate) downs: u32,
}

impl Link {
    /// The area of `size` bytes (whole words, at most all): the sum of what follows comes first.
    pub(crate) fn area(&self, size: usize) -> ([u8; LENGTH], usize) {
        let size = size.min(LENGTH) / 4 * 4;
        let words = [
            u32::from(self.up),
            self.speed,
            self.mtu,
            0,
            0,
            self.status,
            self.error,
            self.downs,
            0,
        ];
        let words = &words[..(size / 4).saturating_sub(1)];
        let mut area = [0; LENGTH];
        let sum = words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
        for (index, word) in std::iter::once(&sum).chain(words).enumerate() {
            area[index * 4..index * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        (area, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_the_sum_of_those_that_are_there() {
        let link = Link {
            up: true,
            speed: 40_000,
            mtu: 9000,
            status: 0,
            error: 0,
            downs: 3,
        };
        let word = |area: &[u8; LENGTH], index: usize| {
            u32::from_le_bytes(area[index * 4..][..4].try_into().unwrap())
        };
        let (area, size) = link.area(40);
        assert_eq!(size, 40);
        assert_eq!(
            (word(&area, 1), word(&area, 2), word(&area, 3), word(&area, 8)),
            (1, 40_000, 9000, 3)
        );
        assert_eq!(word(&area, 0), 49_004);
        let (area, size) = link.area(18);
        assert_eq!((size, word(&area, 0), word(&area, 4)), (16, 49_001, 0));
        assert_eq!(link.area(0).1, 0);
    }
}
