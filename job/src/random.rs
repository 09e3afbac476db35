//! Unpredictable numbers, from the kernel.

use crate::error::Error;

/// Returns `N` random bytes.
///
/// # Errors
/// When a sandbox forbids the call.
pub fn bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Io {
        step: "draw a random number",
        object: "the kernel's generator".to_owned(),
        source: error.into(),
        remedy: "check that getrandom(2) is allowed here",
    })?;
    Ok(bytes)
}

/// Returns a random number.
///
/// # Errors
/// When [`bytes`] fails.
pub fn number() -> Result<u64, Error> {
    bytes().map(u64::from_le_bytes)
}
