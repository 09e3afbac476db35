//! A slow plain Portals interface, to compare the real one with.
//!
//! All processes live in one [`World`]. A call does everything at once: the request, what the target makes of
//! it, the answer, and whatever that triggers. Lists are vectors that are searched from the front; nothing is
//! hashed, cached, or cut in pieces. It is written from the reference alone (reference: portals, sections 3
//! to 11), a step of section 6 to a function, and knows nothing of how the real one does it.
//!
//! [`Wrong`] are rules that are easy to read wrongly: the world follows one where a test sets it, and stories
//! that claim to catch it must fail.

mod arithmetic;
mod calls;
mod list;
mod queue;
mod state;
mod target;
mod trigger;
mod valid;
mod wrong;

pub(crate) use self::arithmetic::{apply, of_double};
pub(crate) use self::calls::ModelNi;
pub(crate) use self::state::World;
pub(crate) use self::target::write;
pub(crate) use self::valid::atomic as valid_atomic;
pub(crate) use self::wrong::Wrong;
