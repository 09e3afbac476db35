//! What the tests of all crates share. Only ever a dev-dependency: `cargo xtask arrows` refuses any other
//! use.
//!
//! | module | what it holds |
//! |---|---|
//! | [`skip`] | how a test that cannot run here reports that, so that it is not counted as passed |
//! | [`alloc`] | an allocator that counts, of a thread and of the process |
//! | [`random`] | numbers that follow from a seed |
//! | [`snapshot`] | tables of transitions, compared with files of the repository |
//! | [`run_folder`] | programs that see a folder of the test as `/run` |
//! | [`subnet`] | an InfiniBand subnet of simulated nodes with a real manager (ibsim, opensm) |
//! | [`stopwatch`] | a clock that stands still while what it measures waits for a core |
//! | `netns` (feature) | hosts made of network namespaces, with veth links between them |
//!
//! **Decided**: this crate depends on no other crate of the project, so that the lowest ones can use it too,
//! and no unit test sees two versions of its own crate's types. What pulls in a dependency of its own is a
//! module behind a feature of the same name. Rails for tests, which need `fabric`, stay with the crate whose
//! contract they exercise.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]
pub mod alloc;
#[cfg(feature = "netns")]
pub mod netns;
pub mod random;
pub mod run_folder;
pub mod skip;
pub mod snapshot;
pub mod stopwatch;
pub mod subnet;

pub use random::Random;
pub use skip::skipped;
pub use stopwatch::Stopwatch;
