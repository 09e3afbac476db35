//! A physical function that this process drives does it.

use std::os::fd::BorrowedFd;

use doorbell_fabric::ether::Mac;

use super::{Own, Parent, Request, Steering, Trouble};
use crate::pf::Pf;

/// See the module.
pub(crate) struct Proxy {
    pf: Pf,
    index: u32,
}

impl Proxy {
    /// For the function with this index.
    pub(crate) fn new(pf: Pf, index: u32) -> Self {
        Self { pf, index }
    }
}

impl Steering for Proxy {
    fn begin(&mut self, _: &mut Own, request: Request) -> Result<(), Trouble> {
        self.pf.begin(self.index, request)
    }

    fn poll(&mut self, _: &mut Own) -> Option<Result<u64, Trouble>> {
        self.pf.poll()
    }

    fn parent(&mut self) -> Result<Parent, Trouble> {
        Ok(Parent {
            news: self.pf.news(),
            life: self.pf.life(),
        })
    }

    fn mac(&mut self) -> Option<Mac> {
        self.pf.info().mac
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn renew(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn how(&self) -> &'static str {
        "filters by its physical function, which this process has"
    }
}
