//! Why a lab stops before it has a verdict: this machine cannot have one, or something is wrong.

use crate::error::Error;

/// What ended it.
#[derive(Debug)]
pub(super) enum Stop {
    /// This machine cannot have a lab, or not now: the reason.
    Unable(String),
    /// The lab failed with this error.
    Failed(Error),
}

impl Stop {
    pub(super) fn unable(reason: &str) -> Self {
        Self::Unable(reason.to_owned())
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(Error::Lab(text.into()))
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
