//! The byte layout of a counter file, shared by the writer and the reader, which trusts nothing in it.
//!
//! All numbers are little endian, as are the supported processors.
//!
//! ```text
//!   0          header, 64 bytes          magic "dbcount1", written last: an incomplete file is detected
//!   64         table, 128 bytes a row    name, unit, kind, number of words, offset of the first word
//!   …          values, from a multiple of 64: relaxed atomic 64-bit words, each written by one thread
//! ```

use serde::Serialize;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first eight bytes of a finished file.
pub const MAGIC: [u8; 8] = *b"dbcount1";
/// The layout described here.
pub const VERSION: u32 = 1;
/// Longest name, in bytes.
pub const NAME_MAX: usize = 96;
/// Longest unit, in bytes.
pub const UNIT_MAX: usize = 16;
/// The most rows of a table.
pub const ENTRIES_MAX: usize = 4096;
/// Longest file, in bytes: more than every table of [`ENTRIES_MAX`] histograms needs.
pub const LENGTH_MAX: usize = 4 << 20;
/// Buckets of a histogram: zero, and one per number of significant bits.
pub const BUCKETS: usize = 65;
/// Words of a histogram: its buckets, the sum of all values, the largest value, and the rest of the last
/// line.
pub const HISTOGRAM_WORDS: usize = 72;
/// Index of the sum of all values in a histogram, wrapping.
pub const SUM: usize = BUCKETS;
/// Index of the largest value in a histogram.
pub const MOST: usize = BUCKETS + 1;

/// Words of a text: UTF-8, zeroes behind it.
pub const TEXT_WORDS: usize = 64;

/// The kind of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A word that only grows.
    Counter,
    /// A word that goes up and down.
    Gauge,
    /// [`HISTOGRAM_WORDS`] words: how many values had 0, 1, … 64 significant bits; their sum; the largest.
    Histogram,
    /// [`TEXT_WORDS`] words: a text that seldom changes.
    Text,
}

impl Kind {
    /// The number of words of a row of this kind.
    pub const fn words(self) -> usize {
        match self {
            Kind::Counter | Kind::Gauge => 1,
            Kind::Histogram => HISTOGRAM_WORDS,
            Kind::Text => TEXT_WORDS,
        }
    }

    pub(super) const fn number(self) -> u32 {
        match self {
            Kind::Counter => 1,
            Kind::Gauge => 2,
            Kind::Histogram => 3,
            Kind::Text => 4,
        }
    }

    pub(super) const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Kind::Counter),
            2 => Some(Kind::Gauge),
            3 => Some(Kind::Histogram),
            4 => Some(Kind::Text),
            _ => None,
        }
    }
}

/// The first 64 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) row: U32,
    pub(super) rows: U32,
    pub(super) rank: U32,
    pub(super) process: U32,
    pub(super) reserved: U32,
    pub(super) table: U64,
    pub(super) length: U64,
    pub(super) spare: [U64; 2],
}
const _: () = assert!(size_of::<Header>() == 64);

/// A row of the table.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Row {
    pub(super) name: [u8; NAME_MAX],
    pub(super) unit: [u8; UNIT_MAX],
    pub(super) kind: U32,
    pub(super) words: U32,
    pub(super) offset: U64,
}
const _: () = assert!(size_of::<Row>() == 128);

/// A short text, padded with zeroes; `None` when it does not fit or has other bytes than names may have.
pub(super) fn padded<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    text.bytes().all(plain).then_some(bytes)
}

/// The text in padded bytes; `None` when it is none: it will be shown on terminals.
pub(super) fn unpadded(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, rest) = bytes.split_at(end);
    let fine = text.iter().copied().all(plain) && rest.iter().all(|byte| *byte == 0);
    std::str::from_utf8(text).ok().filter(|_| fine)
}

/// The text in a value's words, up to the first zero byte. It will be shown on terminals, and another process
/// may be writing it, or anything: what is no plain text is replaced.
pub(super) fn text(words: &[u64]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    let plain = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    String::from_utf8_lossy(&bytes).chars().map(plain).collect()
}

/// The bytes of names: what Prometheus, shells and terminals all leave alone.
fn plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/')
}
