//! Bits whose meaning changed between releases: the one place that knows them.
//!
//! Most bits mean the same at every API level. A few were given up, and some of these were given to something
//! else later: a caller of level 1.17 that sets bit 48 of the capabilities means messages of variable
//! length, and one of level 2.0 means receives from exactly one source. Which release had which was found by
//! compiling a probe against the headers of each release from 1.0 on.

use crate::level::Level;

/// The words that have bits which changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The capabilities of [`fi_info`](crate::fi_info), and of its transmit, receive and domain attributes.
    Capabilities,
    /// The modes of [`fi_info`](crate::fi_info), and of its transmit, receive and domain attributes.
    Mode,
    /// The flags of a registration of memory.
    Registration,
}

/// What a bit of a word stands for, in a run of releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// The word that has the bit.
    pub word: Word,
    /// The bit, as a mask.
    pub bit: u64,
    /// The name in the headers of these releases.
    pub name: &'static str,
    /// The first release with this meaning.
    pub since: Level,
    /// The first release without it.
    pub until: Option<Level>,
}

const CAPS: Word = Word::Capabilities;
const MODE: Word = Word::Mode;
const REGISTRATION: Word = Word::Registration;

/// Every meaning of every bit that changed: word, bit, name, the first release with it, and the first without
/// it.
pub const CHANGED: &[Meaning] = &[
    bit(CAPS, 22, "FI_PRIORITY", "1.11", "1.21"),
    bit(CAPS, 44, "FI_XPU_TRIGGER", "1.15", "1.21"),
    bit(CAPS, 44, "FI_XPU", "2.7", ""),
    bit(CAPS, 45, "FI_TAGGED_DIRECTED_RECV", "2.0", ""),
    bit(CAPS, 46, "FI_TAGGED_MULTI_RECV", "2.0", ""),
    bit(CAPS, 48, "FI_VARIABLE_MSG", "1.7", "1.21"),
    bit(CAPS, 48, "FI_EXACT_DIRECTED_RECV", "2.0", ""),
    bit(MODE, 51, "FI_BUFFERED_RECV", "1.7", "2.0"),
    bit(MODE, 53, "FI_RESTRICTED_COMP", "1.5", "1.21"),
    bit(MODE, 54, "FI_NOTIFY_FLAGS_ONLY", "1.5", "1.21"),
    bit(REGISTRATION, 40, "FI_MR_DMABUF", "1.20", ""),
    bit(REGISTRATION, 41, "FI_MR_SINGLE_USE", "2.0", ""),
    bit(REGISTRATION, 45, "FI_HMEM_HOST_ALLOC", "1.14", ""),
    bit(REGISTRATION, 46, "FI_HMEM_DEVICE_ONLY", "1.13", ""),
];

const fn bit(word: Word, bit: u32, name: &'static str, since: &str, until: &str) -> Meaning {
    Meaning {
        word,
        bit: 1 << bit,
        name,
        since: Level::literal(since),
        until: if until.is_empty() {
            None
        } else {
            Some(Level::literal(until))
        },
    }
}

impl Meaning {
    /// Whether a caller of this API level means it.
    pub const fn is_of(&self, level: Level) -> bool {
        level.has(self.since)
            && match self.until {
                Some(until) => !level.has(until),
                None => true,
            }
    }
}

/// Returns what a caller of an API level means by a bit that changed: `None` where the level has no meaning
/// for it, or where the bit never changed.
pub fn meaning(word: Word, bit: u64, level: Level) -> Option<&'static Meaning> {
    let of_bit = CHANGED
        .iter()
        .filter(|meaning| meaning.word == word && meaning.bit == bit);
    of_bit.into_iter().find(|meaning| meaning.is_of(level))
}

/// A caller's word, taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// The bits that mean what the constants of this crate are named for.
    pub known: u64,
    /// The bits that the caller's level has and that were given up since: no provider of today can offer
    /// them.
    pub given_up: u64,
    /// The bits that stand for nothing at the caller's level: they got their meaning later, or had lost it.
    pub unknown: u64,
}

/// Takes the word of a caller of an API level apart.
pub fn read(word: Word, bits: u64, level: Level) -> Read {
    let mut read = Read {
        known: bits,
        ..Read::default()
    };
    for meaning in CHANGED.iter().filter(|meaning| meaning.word == word) {
        let bit = bits & meaning.bit;
        match (meaning.is_of(level), meaning.until) {
            (true, None) => {}
            (true, Some(_)) => read.given_up |= bit,
            (false, _) => read.unknown |= bit,
        }
    }
    // Of a bit with two meanings, the one that the caller's level has counts.
    let counts = CHANGED
        .iter()
        .filter(|meaning| meaning.word == word && meaning.is_of(level));
    read.unknown &= !counts.fold(0, |all, meaning| all | meaning.bit);
    read.known &= !(read.given_up | read.unknown);
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::flags::{FI_CONTEXT, FI_EXACT_DIRECTED_RECV, FI_MSG, FI_TAGGED_MULTI_RECV};

    #[test]
    fn one_bit_means_two_things_to_callers_of_two_releases() {
        let bit = FI_EXACT_DIRECTED_RECV;
        let name = |level| meaning(Word::Capabilities, bit, level).map(|meaning| meaning.name);
        assert_eq!(name(Level::new(1, 5)), None);
        assert_eq!(name(Level::new(1, 17)), Some("FI_VARIABLE_MSG"));
        assert_eq!(name(Level::new(1, 21)), None);
        assert_eq!(name(Level::new(2, 0)), Some("FI_EXACT_DIRECTED_RECV"));
        assert_eq!(meaning(Word::Capabilities, FI_MSG, Level::NEWEST), None);
    }

    #[test]
    fn a_word_is_taken_apart_by_the_level_of_its_caller() {
        let bits = FI_MSG | FI_EXACT_DIRECTED_RECV | FI_TAGGED_MULTI_RECV;
        let old = read(Word::Capabilities, bits, Level::new(1, 17));
        assert_eq!(
            old,
            Read {
                known: FI_MSG,
                given_up: FI_EXACT_DIRECTED_RECV,
                unknown: FI_TAGGED_MULTI_RECV
            }
        );
        let new = read(Word::Capabilities, bits, Level::NEWEST);
        assert_eq!(
            new,
            Read {
                known: bits,
                ..Read::default()
            }
        );
        let between = read(Word::Capabilities, bits, Level::new(1, 22));
        assert_eq!((between.known, between.given_up), (FI_MSG, 0));
    }

    #[test]
    fn a_mode_that_was_given_up_is_known_to_the_releases_that_had_it_and_to_no_other() {
        let bits = FI_CONTEXT | 1 << 51;
        assert_eq!(read(Word::Mode, bits, Level::new(1, 17)).given_up, 1 << 51);
        assert_eq!(read(Word::Mode, bits, Level::NEWEST).unknown, 1 << 51);
        assert_eq!(read(Word::Mode, bits, Level::NEWEST).known, FI_CONTEXT);
    }

    #[test]
    fn no_release_has_two_meanings_for_a_bit_and_today_s_are_the_constants() {
        for (at, one) in CHANGED.iter().enumerate() {
            for other in &CHANGED[at + 1..] {
                if (one.word, one.bit) == (other.word, other.bit) {
                    let ends = one.until.expect("the older meaning ends");
                    assert!(other.since.has(ends), "{} and {}", one.name, other.name);
                }
            }
            let constant = crate::layout::constants().find(|constant| constant.name == one.name);
            if one.until.is_none() {
                assert_eq!(
                    constant.map(|constant| constant.value),
                    Some(one.bit),
                    "{}",
                    one.name
                );
            }
        }
    }
}
