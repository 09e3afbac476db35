//! Rings: how bytes and values pass between threads, processes and devices without a lock.
//!
//! # Which one
//!
//! | job | use | far side trusted |
//! |---|---|---|
//! | values between two threads of this process | [`spsc`] | yes |
//! | commands of many threads to a progress thread | [`mpsc`] | yes |
//! | messages of any length to one other process | [`lane`] | no |
//! | descriptors to and from the kernel, by index words | [`indexed`] | no |
//! | a fixed number of values of one owner | [`slab`] | handles may come off a wire |
//!
//! Rings that others can see are placed in an [`Area`] of a [`Storage`](storage): a heap block of the exact
//! size, or a map made elsewhere. Bytes that others may write are reached through [`view`] only.
//!
//! # Memory orders
//!
//! Every atomic access of this crate, what it pairs with, and what would break with less. The loom tests
//! (`tests/loom_*.rs`) run each row under all interleavings.
//!
//! | load | pairs with the store | without it |
//! |---|---|---|
//! | `spsc`, consumer: tail, Acquire | producer: tail, Release, after writing the slots | a slot is taken that still holds what was there before |
//! | `spsc`, producer: head, Acquire | consumer: head, Release, after moving values out | a value is overwritten while it is being taken |
//! | `spsc`: `alone`, Acquire | drop of the other end, Release | the last values put in are missed after "abandoned" |
//! | `lane`, consumer: a cell's mark, Acquire | producer: mark, Release, after both parts | a message is read that is not there yet |
//! | `lane`, producer: consumed indices, Acquire | consumer: Release, after copying | cells and data are overwritten while they are being copied |
//! | `lane`, producer: attention, Relaxed | – | – (a hint; who needs certainty puts a fence on one side) |
//! | `mpsc`, receiver: stamp, Acquire | sender: stamp = position + 1, Release, after writing the value | a value is taken before it is there |
//! | `mpsc`, sender: stamp, Acquire | receiver: stamp = position + capacity, Release, after moving out | a value is overwritten while it is being taken |
//! | `mpsc`, sender: tail, Relaxed, and its compare-and-swap | – | – (hands out positions; stamps carry the data) |
//! | `mpsc`: `closed`, Acquire in `is_closed`, Relaxed in `send` | drop of the receiver, Release | in `send` only a hint: the value is then dropped with the mailbox |
//! | `mpsc`, receiver: `senders`, Acquire | drop of each sender, Release | the last values sent are missed after "abandoned" |
//! | `indexed`, consumer: the producer's index, Acquire | producer: Release, after the entries | an entry is read that is not there yet |
//! | `indexed`, producer: the consumer's index, Acquire | consumer: Release, after copying | an entry is written over while it is being copied |
//! | `indexed`: flags, after a SeqCst fence | the far side sets them, fence, looks at the index | a far side sleeps beside work, and is not woken |
//!
//! [`slab`] has no atomics: it has one owner.

#![deny(missing_docs)]

mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod indexed;
pub mod lane;
pub mod mpsc;
pub mod pad;
pub mod slab;
mod slot;
pub mod spsc;
pub mod storage;
mod sync;
pub mod view;

pub use error::{Full, RingError};
pub use storage::Area;
pub use view::{SharedSlice, SharedSliceMut};
