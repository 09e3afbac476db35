//! Opening a device by one step after another, each of which can be shown: what it found, or the one error and its fix.
//!
//! ```text
//!   device ► iommu ► driver ► group ► device-file ► container ► version ► model ► free ► memlock ► answers
//!   └── files of the machine ───────────────────────────────┘  └── answers of its kernel ──────────────┘
//! ```
//!
//! Whoever only wants the device calls [`Claim::open`](crate::Claim::open), which walks the same chain. Walking it to the end
//! opens the device, which resets the function, and closes it again with the chain.

mod walk;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::bdf::Bdf;
use crate::device::{Device, Way};
use crate::error::Error;
use crate::host::Host;
use walk::Walk;

/// One step on the way to an open device.
#[derive(Debug)]
pub struct Step {
    /// Its name, which stays the same for ever.
    pub name: &'static str,
    /// What has to hold, in a few words.
    pub about: &'static str,
    /// Whether it does.
    pub verdict: Verdict,
}

/// What came of a step.
#[derive(Debug)]
pub enum Verdict {
    /// It holds; what was found.
    Holds(String),
    /// It does not; the steps after it are not walked.
    Broken(Error),
    /// It could not be found out, and why.
    Open(&'static str),
}

impl Step {
    /// What to do, where it is broken.
    pub fn fix(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Broken(error) => Some(error.fix()),
            _ => None,
        }
    }

    /// Whether it is broken.
    pub fn is_broken(&self) -> bool {
        matches!(self.verdict, Verdict::Broken(_))
    }
}

/// All steps from the device's address to its answers, for a program that will share `memory` bytes with it. Ends after the
/// first one that is broken.
///
/// ```
/// use doorbell_vfio::{Host, Verdict, chain};
/// for step in chain(&Host::here(), "01:10.0".parse()?, 8 << 20) {
///     match &step.verdict {
///         Verdict::Holds(found) => println!("ok      {}: {found}", step.about),
///         Verdict::Broken(error) => println!("broken  {}: {}\n  do: {}", step.about, error.reason(), error.fix()),
///         Verdict::Open(why) => println!("?       {}: {why}", step.about),
///     }
/// }
/// # Ok::<(), doorbell_vfio::Error>(())
/// ```
pub fn chain(host: &Host, bdf: Bdf, memory: u64) -> Chain {
    Chain::new(host, bdf, memory)
}

type Check = fn(&mut Walk) -> Result<Verdict, Error>;

/// The steps in their order.
const STEPS: &[(&str, &str, Check)] = &[
    ("device", "the device is there", Walk::device),
    ("iommu", "an IOMMU stands before memory", Walk::iommu),
    ("driver", "its driver gives it to programs", Walk::driver),
    (
        "group",
        "nobody else in its IOMMU group is the kernel's",
        Walk::group,
    ),
    ("device-file", "its file may be opened", Walk::device_file),
    (
        "container",
        "the IOMMU's file may be opened",
        Walk::container_file,
    ),
    ("version", "the kernel speaks our version of VFIO", Walk::version),
    ("model", "the kernel's IOMMU model is ours", Walk::model),
    ("free", "nobody else has it open", Walk::free),
    ("memlock", "its memory can be locked", Walk::memlock),
    ("answers", "it answers", Walk::answers),
];

/// Walks the steps; an iterator over them.
#[derive(Debug)]
pub struct Chain {
    walk: Walk,
    next: usize,
}

impl Chain {
    /// As [`chain`].
    pub fn new(host: &Host, bdf: Bdf, memory: u64) -> Self {
        Self {
            walk: Walk {
                host: host.clone(),
                bdf,
                memory,
                way: None,
                found: None,
                domain: None,
                open: None,
            },
            next: 0,
        }
    }

    /// By this way only: [`Way::Group`] or [`Way::Cdev`]. Unasked, by the group, unless only the other one is there.
    pub fn by(mut self, way: Way) -> Self {
        self.walk.way = Some(way);
        self
    }

    /// Walks what is left of it, and hands out the open device.
    ///
    /// # Errors
    /// That of the first step that is broken.
    pub fn finish(mut self) -> Result<Arc<dyn Device>, Error> {
        for step in self.by_ref() {
            if let Verdict::Broken(error) = step.verdict {
                return Err(error);
            }
        }
        // A tree of files has no device to open.
        let bdf = self.walk.bdf;
        self.walk
            .open
            .map(|device| device as _)
            .ok_or(Error::NoDevice { bdf })
    }
}

impl Iterator for Chain {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let &(name, about, check) = STEPS.get(self.next)?;
        self.next += 1;
        let verdict = check(&mut self.walk).unwrap_or_else(|error| {
            self.next = STEPS.len();
            Verdict::Broken(error)
        });
        Some(Step { name, about, verdict })
    }
}
