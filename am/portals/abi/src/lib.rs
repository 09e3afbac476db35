//! libportals: the C library that Portals 4 programs link. A program needs nothing else: it includes
//! `portals4.h` (its own, or the one in `include/`), links `-lportals`, and is started by any launcher, or by
//! none.
//!
//! ```text
//!   a C program's threads            this process                                other processes
//!     PtlPut, PtlEQWait, … ──┐
//!                            ├─ one lock ── Member (engine::lobby) ── rails ──►  …
//!     thread `libportals` ───┘                 └── desk ◄──────────────────────  processes that connect
//! ```
//!
//! # Progress
//! A target need not call anything for operations of others on its memory. A thread that is inside of a call
//! makes progress for all; when no call was made for half a millisecond, a thread of the library takes over,
//! and sleeps on the rails' descriptors until something comes. A call that waits looks for 100 µs, and then
//! sleeps the same way. With `PTL_PROGRESS_THREAD=0` progress is made in calls only, and a program has to go
//! on calling; the thread then only answers processes that introduce themselves.
//!
//! # Meeting
//! {nid, pid}: a nid names a network namespace of a host (32 bits); a pid is unique there, and a program may
//! choose one of up to `PTL_PID_MAX`. A process that sends to another one introduces itself at that one's
//! desk first (`doorbell::lobby`): no barrier of all is needed. Processes of other hosts are found among the
//! launcher's values (PMI-1), where a rail leads out of the host. That conversation is the program's own as
//! well: turns are complete, and taken inside of its calls. So no thread of it may talk to the launcher while
//! another one is inside of a call, in that case.
//!
//! # Rails
//! Shared memory, and `udp:NAME` where `PTL_IFACE_NAME` names an interface. `DOORBELL_RAILS` names others;
//! the settings of the engine are read from `DOORBELL_*` as usual.
//!
//! # Waits, signals, forks
//! Waits without a time end by what they wait for, or by `PtlAbort`, which takes the lock: it is not for
//! signal handlers. No signal handler is installed, and the library's thread takes no signals. A child of
//! `fork` has no interface: its calls fail, and harm nothing. A process that ends without `PtlFini` pushes
//! out what it has sent.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod abi;
mod call;
mod limits;
mod state;
mod thread;
mod wait;
