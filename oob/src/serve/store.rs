//! One host's copy of a job's values.

use std::collections::BTreeMap;

/// Maximum bytes of a key.
pub const LONGEST_KEY: usize = 63;
/// Maximum bytes of a value. A line with both stays below 1,024 bytes, the buffer size of clients.
pub const LONGEST_VALUE: usize = 800;
/// Maximum bytes of all keys and values of a job.
pub const STORE: usize = 64 << 20;

/// Why a value was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Name,
    Key,
    Value,
    Twice,
    Full,
}

impl Refused {
    /// Returns the reason as one word, for the answers of PMI-1.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Name => "no_such_kvsname",
            Self::Key => "invalid_key",
            Self::Value => "value_too_long",
            Self::Twice => "duplicate_key",
            Self::Full => "no_room",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Store {
    values: BTreeMap<String, String>,
    /// Values put here since the last barrier.
    fresh: Vec<(String, String)>,
    bytes: usize,
}

impl Store {
    /// Adds a value that all ranks have from the start.
    pub(super) fn know(&mut self, key: &str, value: &str) {
        self.values.insert(key.to_owned(), value.to_owned());
    }

    /// Puts a value of a rank here: visible here at once, elsewhere after the barrier.
    pub(super) fn put(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        self.insert(key, value)?;
        self.fresh.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Returns the bytes of all keys and values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the values put here since the last barrier, for the other hosts: `(length of the key u8,
    /// length of the value u16 LE, key, value)…`.
    pub(super) fn write_fresh(&mut self, bytes: &mut Vec<u8>) {
        for (key, value) in self.fresh.drain(..) {
            // Both were checked when they were put.
            bytes.push(key.len() as u8);
            bytes.extend((value.len() as u16).to_le_bytes());
            bytes.extend(key.bytes());
            bytes.extend(value.bytes());
        }
    }

    /// Merges the values of a host; those put here are present already.
    pub(super) fn merge(&mut self, mut words: &[u8]) -> Result<(), String> {
        while let [key, low, high, rest @ ..] = words {
            let (key, value) = (usize::from(*key), usize::from(u16::from_le_bytes([*low, *high])));
            let texts = rest
                .get(..key + value)
                .and_then(|texts| std::str::from_utf8(texts).ok());
            let Some((key, value)) = texts.and_then(|texts| texts.split_at_checked(key)) else {
                return Err("the values of another host are truncated, or not text".to_owned());
            };
            words = &rest[key.len() + value.len()..];
            match self.insert(key, value) {
                Ok(()) => {}
                Err(Refused::Twice) if self.get(key) == Some(value) => {}
                Err(refused) => {
                    return Err(format!(
                        "the value `{}` of another host was rejected: {}",
                        key.escape_default(),
                        refused.word()
                    ));
                }
            }
        }
        if words.is_empty() {
            Ok(())
        } else {
            Err("the values of another host are truncated".to_owned())
        }
    }

    pub(super) fn insert(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let is_word = |byte: u8| matches!(byte, b'!'..=b'~') && byte != b'=';
        if key.is_empty() || key.len() > LONGEST_KEY || !key.bytes().all(is_word) {
            return Err(Refused::Key);
        }
        // A value may contain `=`, but neither spaces nor line ends.
        if value.len() > LONGEST_VALUE || !value.bytes().all(|byte| matches!(byte, b'!'..=b'~')) {
            return Err(Refused::Value);
        }
        if self.values.contains_key(key) {
            return Err(Refused::Twice);
        }
        if self.bytes + key.len() + value.len() > STORE {
            return Err(Refused::Full);
        }
        self.bytes += key.len() + value.len();
        self.values.insert(key.to_owned(), value.to_owned());
        Ok(())
    }
}
