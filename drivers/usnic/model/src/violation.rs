//! What a driver did that hardware would not have forgiven: recorded, with who, where, what and when (8.7).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::error::Error;

/// Violations that are kept whole; what comes after is only counted, by its kind.
const KEPT: usize = 4096;
/// How many violations of one kind are written to the file.
const WRITTEN: u64 = 256;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $name:literal,)*) => {
        /// What kind of violation it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        impl Kind {
            /// All kinds of violations.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The name, as in the file of violations.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// A posted index at or above the ring's size.
    PostedBeyondRing = "posted-beyond-ring",
    /// A posted index that passes descriptors which the device has not fetched yet.
    PostedPassesFetch = "posted-passes-fetch",
    /// A ring that does not begin on 512 bytes.
    RingMisaligned = "ring-misaligned",
    /// A ring of WQ or RQ whose size is no multiple of 32, zero, or above 4096; of a CQ, zero.
    RingSize = "ring-size",
    /// fetch_index was written while the queue ran.
    FetchWhileRunning = "fetch-while-running",
    /// Another register of the ring was written while the queue ran.
    RingWhileRunning = "ring-while-running",
    /// Descriptors were posted on a receive queue before it was enabled (`future`).
    PostedBeforeEnable = "posted-before-enable",
    /// A receive queue that had been used was disabled once only (`strict_disable`).
    DisabledOnce = "disabled-once",
    /// A descriptor or a buffer changed between the doorbell and the completion.
    ChangedInFlight = "changed-in-flight",
    /// The hint of a 64-bit doorbell does not fit the descriptor (`strict_hint`).
    Hint = "hint",
    /// The device would have to reach memory that is not mapped.
    DmaUnmapped = "dma-unmapped",
    /// The device would have to write memory that may only be read, or the other way round.
    DmaRights = "dma-rights",
    /// The device would have to reach memory while bus mastering is off.
    BusMaster = "bus-master",
    /// A completion was written over one that is not known to have been read.
    CqOverrun = "cq-overrun",
    /// A queue reports to a completion queue that is not set up, or is none of the function's.
    CqIndex = "cq-index",
    /// An interrupt that the function does not have.
    InterruptIndex = "interrupt-index",
    /// An access that is not 4 or 8 aligned bytes, or crosses blocks.
    AccessShape = "access-shape",
    /// An access of BAR0 outside of all resources.
    AccessOutside = "access-outside",
    /// A register that can only be read was written.
    ReadOnly = "read-only",
    /// The devcmd block was written while it was BUSY.
    DevcmdBusy = "devcmd-busy",
    /// A device command that is unknown, or makes no sense now.
    Devcmd = "devcmd",
    /// Frames were posted on a queue pair that is not enabled.
    NoQpEnable = "no-qp-enable",
    /// A queue pair of a virtual function transmits, and no filter leads to its receive queue.
    NoFilter = "no-filter",
    /// A send descriptor that makes no sense: no length, too many fragments, segments of no size.
    Descriptor = "descriptor",
    /// A frame longer than 9208 bytes, or without a header.
    FrameLength = "frame-length",
    /// A descriptor requests something that is not modelled.
    NotModelled = "not-modelled",
    /// A client broke the rules of vfio-user.
    Protocol = "protocol",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Kind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A violation by a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Nanoseconds since the model began.
    pub at_ns: u64,
    /// The function: `pf`, `vf0`.
    pub function: String,
    /// The queue: `wq0`, `rq3`, `cq1`, `intr0`, `devcmd`.
    pub queue: Option<String>,
    /// The kind of violation.
    pub kind: Kind,
    /// The register, where there is one.
    pub register: Option<&'static str>,
    /// What was found there, or the address, or the offset.
    pub found: u64,
    /// The bound, or what was there before.
    pub against: u64,
    /// The violation in words.
    pub what: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at_ns,
            function,
            queue,
            kind,
            register,
            found,
            against,
            what,
        } = self;
        write!(f, "{:.6} s {function}", *at_ns as f64 / 1e9)?;
        if let Some(queue) = queue {
            write!(f, ".{queue}")?;
        }
        write!(f, " {kind}: {what}")?;
        if let Some(register) = register {
            write!(f, " ({register})")?;
        }
        write!(f, ": {found:#x}, against {against:#x}")
    }
}

#[derive(Debug, Default)]
struct Log {
    kept: Vec<Violation>,
    counts: BTreeMap<Kind, u64>,
    file: Option<File>,
}

/// Where violations are recorded; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Violations(Arc<Mutex<Log>>);

impl Violations {
    /// A log that is also written into a file, where one is named.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, Error> {
        let file = path.map(File::create).transpose().map_err(|source| Error::File {
            path: path.unwrap_or(Path::new("")).to_owned(),
            source,
        })?;
        Ok(Self(Arc::new(Mutex::new(Log {
            file,
            ..Log::default()
        }))))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    pub(crate) fn record(&self, violation: Violation) {
        let mut log = self.log();
        let count = log.counts.entry(violation.kind).or_default();
        *count += 1;
        let is_written = *count <= WRITTEN;
        if let (true, Some(file)) = (is_written, &mut log.file)
            && let Ok(mut line) = serde_json::to_vec(&violation)
        {
            line.push(b'\n');
            // A full disk is no reason to stop the device.
            let _ = file.write_all(&line);
        }
        if log.kept.len() < KEPT {
            log.kept.push(violation);
        }
    }

    /// Ends the file: how many of each kind there were that are not in it.
    pub(crate) fn finish(&self) {
        let mut log = self.log();
        let Some(mut file) = log.file.take() else { return };
        for (kind, count) in log.counts.iter().filter(|(_, count)| **count > WRITTEN) {
            let line = serde_json::json!({ "kind": kind, "not_written": count - WRITTEN });
            // A full disk is no reason to fail at the end.
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// The violations that were kept: the first few thousand.
    pub fn list(&self) -> Vec<Violation> {
        self.log().kept.clone()
    }

    /// Returns how many there were of each kind.
    pub fn counts(&self) -> BTreeMap<Kind, u64> {
        self.log().counts.clone()
    }

    /// Returns how many there were of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.log().counts.get(&kind).copied().unwrap_or(0)
    }

    /// Forgets all violations so far.
    pub fn clear(&self) {
        let mut log = self.log();
        log.kept.clear();
        log.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_kept_counted_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("violations");
        let violations = Violations::new(Some(&path)).unwrap();
        let one = Violation {
            at_ns: 1_500_000,
            function: "vf0".to_owned(),
            queue: Some("wq1".to_owned()),
            kind: Kind::PostedBeyondRing,
            register: Some("posted_index"),
            found: 40,
            against: 32,
            what: "the index is no slot of the ring",
        };
        for _ in 0..5000 {
            violations.record(one.clone());
        }
        assert_eq!(
            (violations.list().len(), violations.count(Kind::PostedBeyondRing)),
            (KEPT, 5000)
        );
        assert_eq!(
            one.to_string(),
            "0.001500 s vf0.wq1 posted-beyond-ring: the index is no slot of the ring (posted_index): 0x28, against 0x20"
        );
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count() as u64, WRITTEN);
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(
            (first["kind"].as_str(), first["found"].as_u64()),
            (Some("posted-beyond-ring"), Some(40))
        );
        violations.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            (last["kind"].as_str(), last["not_written"].as_u64()),
            (Some("posted-beyond-ring"), Some(5000 - WRITTEN))
        );
        violations.clear();
        assert!(violations.list().is_empty() && violations.counts().is_empty());
    }

    #[test]
    fn names_are_different() {
        let names: std::collections::BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
