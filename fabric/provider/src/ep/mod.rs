//! Endpoints: what they keep, and the operations of messages.
//!
//! | file | what it holds |
//! |---|---|
//! | `object` | the object: opened, bound, enabled, closed |
//! | `options`, `name` | its options; its name |
//! | `state` | what every operation needs of it |
//! | `flags`, `limits` | the flags and the limits of operations |
//! | `send`, `receive`, `peek` | sends and receives of both spaces; messages that have arrived |
//! | `access`, `compute` | reads, writes and atomics of peers' memory |
//! | `route` | the way from addresses to peers, and back |

mod access;
mod compute;
pub(crate) mod flags;
pub(crate) mod limits;
mod name;
mod object;
mod options;
mod peek;
mod receive;
mod route;
mod send;
mod state;

pub(crate) use self::access::{Access, Remote};
pub(crate) use self::compute::Compute;
pub(crate) use self::object::{EndpointObject, of as endpoint, open, open2};
pub(crate) use self::receive::{Receive, Room};
pub(crate) use self::send::{Bytes, Send};
pub(crate) use self::state::{Endpoint, EndpointNumber, Space};

use libfabric_sys::{FI_EMFILE, FI_EOPBADSTATE};

use crate::errno::{Errno, Result};

/// The endpoints of a domain, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    table: Vec<Option<Endpoint>>,
    /// The number that is tried first for the next one: numbers are used again as late as possible, since
    /// messages to a closed endpoint may still be on their way.
    next: u8,
}

impl Endpoints {
    /// Adds an endpoint, and returns its number.
    ///
    /// # Errors
    /// `FI_EMFILE` for more than a domain can have.
    pub(crate) fn add(&mut self, endpoint: Endpoint) -> Result<EndpointNumber> {
        let all = limits::ENDPOINTS as u8;
        let number = (0..all)
            .map(|step| (self.next + step) % all)
            .find(|number| !matches!(self.table.get(usize::from(*number)), Some(Some(_))))
            .ok_or(Errno(FI_EMFILE))?;
        self.next = (number + 1) % all;
        let number = EndpointNumber(number);
        let at = usize::from(number.0);
        if self.table.len() <= at {
            self.table.resize_with(at + 1, || None);
        }
        self.table[at] = Some(endpoint);
        Ok(number)
    }

    /// Removes an endpoint.
    pub(crate) fn remove(&mut self, number: EndpointNumber) {
        if let Some(place) = self.table.get_mut(usize::from(number.0)) {
            *place = None;
        }
    }

    /// An endpoint, if there is one of this number.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u8) -> Option<&mut Endpoint> {
        self.table.get_mut(usize::from(number))?.as_mut()
    }

    /// An endpoint, if there is one of this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u8) -> Option<&Endpoint> {
        self.table.get(usize::from(number))?.as_ref()
    }

    /// The endpoint of a call.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` where there is none.
    #[inline(always)]
    pub(crate) fn find(&mut self, number: EndpointNumber) -> Result<&mut Endpoint> {
        self.get_mut(number.0).ok_or(Errno(FI_EOPBADSTATE))
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys::FI_MSG;

    use super::*;

    #[test]
    fn numbers_are_used_again_as_late_as_possible_and_no_number_twice() {
        let mut endpoints = Endpoints::default();
        let add = |endpoints: &mut Endpoints| endpoints.add(Endpoint::new(FI_MSG, [1; 2]));
        assert_eq!(add(&mut endpoints), Ok(EndpointNumber(0)));
        assert_eq!(add(&mut endpoints), Ok(EndpointNumber(1)));
        endpoints.remove(EndpointNumber(0));
        assert!(endpoints.get(0).is_none() && endpoints.get(1).is_some());
        for number in 2..128 {
            assert_eq!(add(&mut endpoints), Ok(EndpointNumber(number)));
        }
        assert_eq!(add(&mut endpoints), Ok(EndpointNumber(0)));
        assert_eq!(add(&mut endpoints), Err(Errno(FI_EMFILE)));
        assert!(endpoints.find(EndpointNumber(0)).is_ok());
    }
}
