//! The room for `unsafe`: the library's functions, its structures, and owners of its objects.

#[macro_use]
mod declare;
mod abi;
#[cfg(test)]
mod header_tests;
mod library;
#[cfg(any(test, feature = "model"))]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        unused_imports,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]
pub(crate) mod model;
pub(crate) mod numbers;
mod objects;
mod said;
mod umad;

pub(crate) use abi::{AhAttr, DeviceAttr, GidEntry, PortAttr, QpAttr, Wc};
pub(crate) use library::{LIBRARY, Library};
pub(crate) use objects::{
    AddressHandle, Beneath, Broken, Channel, Completions, DatagramPair, Destination, DeviceAtomic, Domain,
    Event, Handles, Held, Listed, Open, PIECES, Piece, Pinned, Place, Poster, ReceiveList, Registered,
    ReliablePair, ReliableSizes, Requests, Sender, SharedQueue, Sizes, Window,
};
pub(crate) use umad::{MAD, SubnetManager, UMAD, Umad, UmadPort};
