//! The room for `unsafe`: the binding's types, and the library's functions.

mod abi;
mod library;

pub(crate) use abi::{
    CT_NONE, EQ_NONE, IFACE_DEFAULT, NI_LOGICAL, NI_MATCHING, NI_NO_MATCHING, NI_PHYSICAL, PtlCtEvent,
    PtlEvent, PtlIovec, PtlLimits, PtlProcess,
};
pub(crate) use library::{At, EntryWords, Library, Of, Pieces, To, Words};
