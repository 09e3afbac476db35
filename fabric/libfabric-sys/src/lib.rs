//! libfabric for Rust: its types, checked against its headers; the library, loaded at run time; the calls of
//! its headers.
//!
//! ```text
//!   abi        the headers' structures, tables of functions and constants
//!   layout     the same as data: sizes, offsets, the API level of each field; compared with header folders
//!   bits       bits whose meaning changed between releases
//!   library    libfabric.so.1, found by the dynamic loader; fi_getinfo and its kin
//!   calls      what the headers define as inline functions, through an object's tables
//! ```
//!
//! It is built without libfabric and links nothing of it: a provider needs the types alone, a client loads
//! the library when it runs. It depends on no other crate of this project.
//!
//! # API levels
//! Structures and tables only ever grow at their end, and a caller names by an API level the release that it
//! was written for. So every field has the [`Level`] that brought it: [`field_at`] reads a field only of a
//! caller that has it, [`Layout::size_at`] returns how much of a structure such a caller has. A structure
//! that is allocated here is the largest that is known; fill it from [`Layout::zeroed`].
//!
//! # Example
//! ```
//! use libfabric_sys::{Library, LibraryError};
//!
//! let library = match Library::open() {
//!     Ok(library) => library,
//!     Err(error @ LibraryError::None { .. }) => {
//!         println!("{error}");
//!         return Ok(());
//!     }
//!     Err(error) => return Err(error.into()),
//! };
//! println!("libfabric {}", library.release());
//! for names in library.getinfo(library.level(), None, None, 0, None)?.names() {
//!     println!("{} {} {}", names.provider, names.fabric, names.domain);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(non_camel_case_types)] // the names of C

#[macro_use]
mod declare;

#[allow(missing_docs)] // fields, entries and constants have the names of C: the man pages describe them
pub mod abi;
pub mod bits;
pub mod calls;
pub mod layout;
mod level;
pub mod library;

pub use abi::{
    atomic::*, av::*, cm::*, cntr::*, collective::*, cq::*, domain::*, endpoint::*, eq::*, errno::*,
    fabric::*, flags::*, info::*, mr::*, msg::*, nic::*, provider::*, rma::*, tagged::*, trigger::*,
    usnic::*, wait::*, xpu::*,
};
pub use calls::{
    addresses::*, collectives::*, composed::*, endpoints::*, memory::*, messages::*, objects::*, onesided::*,
    queues::*,
};
pub use layout::Layout;
pub use level::{Level, NoLevel};
pub use library::{CallError, Hint, InfoList, Library, LibraryError, Names, ProviderFile, Services};
