//! Each fault of a datagram network has its effect, as often as configured, and is counted.

mod aimed;
mod dumped;
mod links;
mod lives;
mod shared;
mod together;
mod two;
