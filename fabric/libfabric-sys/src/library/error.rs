//! What can go wrong with the library, each in one sentence.

use std::path::PathBuf;

use crate::level::Level;

/// A library that could not be loaded or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The loader found none.
    #[error(
        "no libfabric is installed ({reason}); install it (Debian: apt-get install libfabric1), or give the path of \
         its libfabric.so.1"
    )]
    None {
        /// The loader's own words.
        reason: String,
    },
    /// The file that was named cannot be loaded.
    #[error("the library {} cannot be loaded: {reason}", path.display())]
    File {
        /// The path that was given.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// It lacks a function.
    #[error(
        "{library} has no function {function}, so it is no libfabric of release {} or later",
        Level::OLDEST
    )]
    Function {
        /// What was loaded.
        library: String,
        /// The function that is missing.
        function: &'static str,
    },
    /// Its release is before the oldest that is used.
    #[error(
        "{library} is libfabric {found}, and {} is the oldest release that can be used",
        Level::OLDEST
    )]
    TooOld {
        /// What was loaded.
        library: String,
        /// The release that it reports.
        found: Level,
    },
}

/// A call that the library answered with an error number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {text} ({number})")]
pub struct CallError {
    /// The function that was called.
    pub call: &'static str,
    /// The number, positive: one of the constants `FI_E*`.
    pub number: i32,
    /// The library's words for it.
    pub text: String,
}
