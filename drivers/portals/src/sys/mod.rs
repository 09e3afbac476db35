//! The room for `unsafe`: the library's functions; and the binding's numbers.

mod abi;
mod library;

pub(crate) use abi::{CT_NONE, EQ_NONE, IFACE_DEFAULT, NI_LOGICAL, NI_MATCHING, NI_NO_MATCHING, NI_PHYSICAL};
pub(crate) use library::{At, Library, Of, Pieces, To, Words};
