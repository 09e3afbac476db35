//! PCI devices from user space: discovery, preflight checks, and access.
//!
//! ```text
//!   discover ─► preflight ► Device ◄─ kernel VFIO (group, or iommufd)   /dev/vfio
//!   (sysfs)     (chain)     ▲   ◄─ vfio-user                            a process behind a Unix socket
//!                           │
//!                         Claim: reset, bus master on … off
//!                        ╱     ╲
//!                     Bar       SharedSlab
//!               (registers)     (memory with bus addresses)
//! ```
//!
//! A driver uses one trait, [`Device`]. A device is opened by a chain of steps, each with one error that
//! names its fix; `doorbell doctor` shows the same [`chain`]. A [`Claim`] keeps the order of setup and
//! teardown: reset, then bus mastering, and off again at the end. Memory is a [`Slab`] while it is ours, and
//! a [`SharedSlab`] while the device can access it: only the latter has a bus address, and if it cannot be
//! unshared, it is leaked and never used again.
//!
//! Sources: linux/vfio.h and Documentation/driver-api/vfio.rst, linux/iommufd.h; the vfio-user protocol,
//! version 0.9.2 of its specification.
//!
//! | file | job |
//! |---|---|
//! | `bdf` | addresses of PCI functions |
//! | `host`, `discover` | devices, their groups, physical and virtual functions, from sysfs |
//! | `functions` | who has a function, and how a card gets more of them |
//! | `preflight/`, `holder`, `memlock` | the steps of opening a device, and what prevents it |
//! | `device` | the trait that both backends implement |
//! | `kernel` | kernel VFIO |
//! | `user/` | a device emulated by another process: `line`, the socket; `wire`, the messages |
//! | `claim` | an open device |
//! | `config` | configuration space |
//! | `bar` | unsafe code: registers |
//! | `space` | registers for the control path, mapped or not |
//! | `dma`, `iova` | memory in two states; bus addresses |
//! | `event`, `wake` | eventfds, and what wakes one who sleeps |
//! | `error/` | one error per step, with its fix |
//! | `faults` | what the IOMMU stopped a device from doing |
//! | `sys` | unsafe code: system calls |
//!
//! ```no_run
//! use doorbell_vfio::{Claim, Registers, Slab};
//! use volatile_register::RO;
//!
//! let claim = Claim::open("0000:01:10.0".parse()?, 8 << 20)?;
//! let bar = claim.bar(0)?;
//! let status = bar.block::<RO<u32>>(0x8)?;
//! println!("status {:#x}", status.read());
//! let slab = claim.share(Slab::new(2 << 20)?).map_err(|(_slab, error)| error)?;
//! println!("the device finds it at {:#x}", slab.iova());
//! # Ok::<(), doorbell_vfio::Error>(())
//! ```
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod bar;
mod bdf;
mod claim;
mod config;
mod device;
mod discover;
mod dma;
mod error;
mod event;
#[cfg(test)]
mod fake;
mod faults;
mod functions;
mod holder;
mod host;
mod iova;
mod kernel;
mod memlock;
mod preflight;
mod space;
#[allow(unsafe_code)]
mod sys;
mod user;
mod wake;

pub use bar::{Bar, Block, Put, Registers, after_completion, before_doorbell};
pub use bdf::Bdf;
pub use claim::Claim;
pub use config::Config;
pub use device::{Area, Backend, Device, Irq, IrqInfo, RegionIndex, RegionInfo};
pub use discover::{Group, Guard, Interface, Member, PciDevice, Role};
pub use dma::{SharedSlab, Slab};
pub use error::Error;
pub use event::Event;
pub use host::Host;
pub use iova::{BusAddresses, Range};
pub use memlock::Memlock;
pub use preflight::{Chain, Step, Verdict, chain};
pub use space::Space;
pub use user::UserDevice;
pub use wake::WakeSet;
