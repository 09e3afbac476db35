//! Address vectors: the peers that endpoints can name.

mod table;
