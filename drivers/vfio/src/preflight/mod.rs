//! Opening a device by one step after another, each of which can be shown: what it found, or the one error and its fix.
//!
//! ```text
//!   device ► iommu ► driver ► group ► device-file ► container ► version ► model ► free ► memlock ► answers
//!   └── files of the machine ───────────────────────────────┘  └── answers of its kernel ──────────────┘
//! ```
//!
//! Whoever only wants the device calls [`Claim::open`](crate::Claim::open), which walks the same chain. Walking it to the end
//! opens the device, which resets the function, and closes it again with the chain.

mod steps;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::bdf::Bdf;
use crate::device::{Backend, Device};
use crate::error::Error;
use crate::host::Host;
use steps::Preflight;

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
    Passed(String),
    /// It does not; the steps after it are not walked.
    Failed(Error),
    /// It could not be found out, and why.
    Unknown(&'static str),
}

impl Step {
    /// What to do, where it is broken.
    pub fn fix(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Failed(error) => Some(error.fix()),
            _ => None,
        }
    }

    /// Whether it is broken.
    pub fn is_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}

/// All steps from the device's address to its answers, for a program that will share `memory` bytes with it. Ends after the
/// first one that is broken.
///
/// ```
/// use doorbell_vfio::{Host, Verdict, chain};
/// for step in chain(&Host::here(), "01:10.0".parse()?, 8 << 20) {
///     match &step.verdict {
///         Verdict::Passed(found) => println!("ok      {}: {found}", step.about),
///         Verdict::Failed(error) => println!("broken  {}: {}\n  do: {}", step.about, error.reason(), error.fix()),
///         Verdict::Unknown(why) => println!("?       {}: {why}", step.about),
///     }
/// }
/// # Ok::<(), doorbell_vfio::Error>(())
/// ```
pub fn chain(host: &Host, bdf: Bdf, memory: u64) -> Chain {
    Chain::new(host, bdf, memory)
}

type Check = fn(&mut Preflight) -> Result<Verdict, Error>;

/// The steps in their order.
const STEPS: &[(&str, &str, Check)] = &[
    ("device", "the device is there", Preflight::device),
    ("iommu", "an IOMMU stands before memory", Preflight::iommu),
    ("driver", "its driver gives it to programs", Preflight::driver),
    (
        "group",
        "nobody else in its IOMMU group is the kernel's",
        Preflight::group,
    ),
    ("device-file", "its file may be opened", Preflight::device_file),
    (
        "container",
        "the IOMMU's file may be opened",
        Preflight::container_file,
    ),
    (
        "version",
        "the kernel speaks our version of VFIO",
        Preflight::version,
    ),
    ("model", "the kernel's IOMMU model is ours", Preflight::model),
    ("free", "nobody else has it open", Preflight::free),
    ("memlock", "its memory can be locked", Preflight::memlock),
    ("answers", "it answers", Preflight::answers),
];

/// Walks the steps; an iterator over them.
#[derive(Debug)]
pub struct Chain {
    state: Preflight,
    next: usize,
}

impl Chain {
    /// As [`chain`].
    pub fn new(host: &Host, bdf: Bdf, memory: u64) -> Self {
        Self {
            state: Preflight {
                host: host.clone(),
                bdf,
                memory,
                backend: None,
                found: None,
                domain: None,
                open: None,
            },
            next: 0,
        }
    }

    /// By this way only: [`Backend::Group`] or [`Backend::Cdev`]. Unasked, by the group, unless only the other one is there.
    pub fn by(mut self, backend: Backend) -> Self {
        self.state.backend = Some(backend);
        self
    }

    /// Walks what is left of it, and hands out the open device.
    ///
    /// # Errors
    /// That of the first step that is broken.
    pub fn finish(mut self) -> Result<Arc<dyn Device>, Error> {
        for step in self.by_ref() {
            if let Verdict::Failed(error) = step.verdict {
                return Err(error);
            }
        }
        // A tree of files has no device to open.
        let bdf = self.state.bdf;
        self.state
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
        let verdict = check(&mut self.state).unwrap_or_else(|error| {
            self.next = STEPS.len();
            Verdict::Failed(error)
        });
        Some(Step { name, about, verdict })
    }
}
