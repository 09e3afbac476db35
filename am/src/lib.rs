//! GASNet-style active messages, put and get over a Portals interface, with credits that migrate to where they are needed.
#![forbid(unsafe_code)]

pub mod credit;
