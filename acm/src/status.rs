//! Why something was not resolved: the byte of an answer's header.
//!
//! reference: acm, section 3 (status codes) and section 5 (what clients make of them).

use std::fmt;

/// An answer's status that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// No memory, or no room within a limit.
    NoMemory = 1,
    /// The question is not one.
    Invalid = 2,
    /// Nothing is known, and the question was not to wait.
    NoData = 3,
    /// The service is not connected to anything that could answer.
    NotConnected = 5,
    /// Nobody answered in time.
    TimedOut = 6,
    /// The source is not an address of this host.
    SourceAddress = 7,
    /// The source's type is unknown.
    SourceType = 8,
    /// The destination is not an address that can be reached.
    DestinationAddress = 9,
    /// The destination's type is unknown, or there is no destination.
    DestinationType = 10,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::NoMemory,
        Self::Invalid,
        Self::NoData,
        Self::NotConnected,
        Self::TimedOut,
        Self::SourceAddress,
        Self::SourceType,
        Self::DestinationAddress,
        Self::DestinationType,
    ];

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The status of a byte; none for success (0) and what is unknown.
    ///
    /// ```
    /// use doorbell_acm::status::Status;
    /// assert_eq!(Status::of(6), Some(Status::TimedOut));
    /// assert_eq!(Status::of(0), None);
    /// assert_eq!(Status::of(4), None);
    /// ```
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }
}

impl Status {
    /// What it says, in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoMemory => "no room for it",
            Self::Invalid => "not a valid question",
            Self::NoData => "not known yet",
            Self::NotConnected => "the service has no way out",
            Self::TimedOut => "nobody answered in time",
            Self::SourceAddress => "the source is no address of this host",
            Self::SourceType => "the source's type is unknown",
            Self::DestinationAddress => "the destination cannot be reached",
            Self::DestinationType => "no destination of a known type",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_reference() {
        let codes: Vec<u8> = Status::ALL.map(Status::code).to_vec();
        assert_eq!(codes, [1, 2, 3, 5, 6, 7, 8, 9, 10]);
        let unknown = [0, 4, 11, 255];
        assert!(unknown.into_iter().all(|code| Status::of(code).is_none()));
    }
}
