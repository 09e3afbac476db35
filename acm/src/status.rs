//! Status codes: why a query failed, as a byte in the answer's header.
//!
//! reference: acm, section 3 (status codes) and section 5 (what clients make of them).

use std::fmt;

/// A status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Out of memory, or over a limit.
    NoMemory = 1,
    /// The query is invalid.
    Invalid = 2,
    /// The cache has no answer, and the query was not to wait.
    NoData = 3,
    /// The service has no network to query.
    NotConnected = 5,
    /// No answer came in time.
    TimedOut = 6,
    /// The source is not an address of this host.
    SourceAddress = 7,
    /// The type of the source is unknown.
    SourceType = 8,
    /// The destination cannot be reached.
    DestinationAddress = 9,
    /// The type of the destination is unknown, or there is no destination.
    DestinationType = 10,
}

impl Status {
    /// Lists all codes.
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

    /// Returns the byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the status of a byte; `None` for success (0) and unknown codes.
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
    /// Returns a description of the status.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoMemory => "out of memory, or over a limit",
            Self::Invalid => "invalid query",
            Self::NoData => "not in the cache",
            Self::NotConnected => "the service has no network to query",
            Self::TimedOut => "no answer in time",
            Self::SourceAddress => "the source is not an address of this host",
            Self::SourceType => "unknown type of source address",
            Self::DestinationAddress => "the destination cannot be reached",
            Self::DestinationType => "no destination, or one of an unknown type",
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
