//! Each fault of a datagram network does what it says, as often as it says, and is counted.

mod aimed;
mod dumped;
mod links;
mod lives;
mod shared;
mod together;
mod two;
