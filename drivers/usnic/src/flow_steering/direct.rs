//! The function's own command block does it: a vNIC that is owned whole, and a VF whose firmware lets it.

use std::os::fd::BorrowedFd;

use doorbell_fabric::ether::Mac;

use super::{OwnFunction, Parent, Request, Steering, Trouble};
use crate::devcmd::{ADD_FILTER, arguments};
use crate::errno::Fault;

/// How many filters are remembered until they are removed.
const ORPHANS_MOST: usize = 16;

/// Steering by the function's own command block.
#[derive(Debug)]
pub(crate) struct Direct;

impl Steering for Direct {
    fn begin(&mut self, own: &mut OwnFunction, request: Request) -> Result<(), Trouble> {
        // The device may still read the filter of a command that was given up.
        if own.devcmd.is_busy()? {
            return Err(Fault::Busy.into());
        }
        if let Some((ADD_FILTER, results)) = own.devcmd.belated()
            && own.orphans.len() < ORPHANS_MOST
        {
            own.orphans.push(results[0]);
        }
        if let Request::Steer(what, queue) = request {
            own.buffer.0.write(0, &what.steer_to(queue));
        }
        let arguments = arguments(&request.arguments(own.buffer.1));
        own.devcmd.begin(request.command(), &arguments)?;
        Ok(())
    }

    fn poll(&mut self, own: &mut OwnFunction) -> Option<Result<u64, Trouble>> {
        let ended = own.devcmd.poll()?;
        Some(ended.map(|results| results[0]).map_err(Trouble::from))
    }

    fn parent(&mut self) -> Result<Parent, Trouble> {
        Ok(Parent::default())
    }

    fn mac(&mut self) -> Option<Mac> {
        None
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_own(&self) -> bool {
        true
    }

    fn how(&self) -> &'static str {
        "filters by the function itself"
    }
}
