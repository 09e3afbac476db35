//! Preflight checks: the steps of opening a device, each with what it found, or its error and the fix.
//!
//! ```text
//!   device ► iommu ► driver ► group ► device-file ► container ► version ► model ► free ► memlock ► answers
//!   └── files of the machine ───────────────────────────────┘  └── answers of its kernel ──────────────┘
//! ```
//!
//! [`Claim::open`](crate::Claim::open) runs the same steps and keeps the device. Running all steps opens the
//! device, which resets the function, and closes it again when the chain is dropped.

mod steps;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::bdf::Bdf;
use crate::device::{Backend, Device};
use crate::error::Error;
use crate::host::Host;
use steps::Preflight;

/// One step of opening a device.
#[derive(Debug)]
pub struct Step {
    /// Its name, which is stable for scripts.
    pub name: &'static str,
    /// The condition that it checks.
    pub about: &'static str,
    /// The step's result.
    pub verdict: Verdict,
}

/// The result of a step.
#[derive(Debug)]
pub enum Verdict {
    /// The condition holds; what was found.
    Passed(String),
    /// The condition does not hold; no later step is run.
    Failed(Error),
    /// It could not be checked, for this reason.
    Unknown(&'static str),
}

impl Step {
    /// Returns the fix of a failed step.
    pub fn fix(&self) -> Option<String> {
        match &self.verdict {
            Verdict::Failed(error) => Some(error.fix()),
            _ => None,
        }
    }

    /// Whether the step failed.
    pub fn is_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}

/// Iterates over all steps of opening a device for a program that will share `memory` bytes with it. Ends
/// after the first step that fails.
///
/// ```
/// use doorbell_vfio::{Host, Verdict, chain};
/// for step in chain(&Host::here(), "01:10.0".parse()?, 8 << 20) {
///     match &step.verdict {
///         Verdict::Passed(found) => println!("ok      {}: {found}", step.about),
///         Verdict::Failed(error) => {
///             println!("broken  {}: {}", step.about, error.reason());
///             println!("  do: {}", error.fix());
///         }
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
    ("device", "the device exists", Preflight::device),
    (
        "iommu",
        "an IOMMU restricts its memory accesses",
        Preflight::iommu,
    ),
    ("driver", "it is bound to a VFIO driver", Preflight::driver),
    (
        "group",
        "no kernel driver has another device of its IOMMU group",
        Preflight::group,
    ),
    (
        "device-file",
        "its device file can be opened",
        Preflight::device_file,
    ),
    (
        "container",
        "the IOMMU's device file can be opened",
        Preflight::container_file,
    ),
    (
        "version",
        "the kernel's VFIO version is supported",
        Preflight::version,
    ),
    ("model", "the kernel's IOMMU model is supported", Preflight::model),
    ("free", "no other process has it open", Preflight::free),
    ("memlock", "its memory can be locked", Preflight::memlock),
    ("answers", "it answers", Preflight::answers),
];

/// An iterator that runs the steps.
#[derive(Debug)]
pub struct Chain {
    state: Preflight,
    next: usize,
}

impl Chain {
    /// Creates the iterator; see [`chain`].
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

    /// Uses only this backend, [`Backend::Group`] or [`Backend::Cdev`]. By default the group is used if it
    /// exists.
    pub fn by(mut self, backend: Backend) -> Self {
        self.state.backend = Some(backend);
        self
    }

    /// Runs the remaining steps and returns the open device.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn finish(mut self) -> Result<Arc<dyn Device>, Error> {
        for step in self.by_ref() {
            if let Verdict::Failed(error) = step.verdict {
                return Err(error);
            }
        }
        // A fake file tree has no device to open.
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
