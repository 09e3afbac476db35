//! Address vectors: the peers that endpoints can name.
//!
//! | file | what it holds |
//! |---|---|
//! | `object` | the object: opened, filled, read, closed |
//! | `vectors` | all vectors of a domain: from an address to a peer, and back |
//! | `table` | the entries of one vector |

mod object;
mod table;
mod vectors;

#[allow(unused_imports, reason = "endpoints are bound to vectors")]
pub(crate) use self::object::AddressVector;
pub(crate) use self::object::open;
pub(crate) use self::vectors::{VectorIndex, Vectors};
