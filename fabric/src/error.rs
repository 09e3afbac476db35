//! Errors of rails: what failed, on what, the system's error, the likely cause and what to do next.
//!
//! The message of an error is one line that names the object; where no rail of several leads to a peer, a
//! line for each of them follows. Three more items serve programs and longer explanations:
//! [`RailError::code`], a short name that scripts may compare; [`RailError::help`], the likely cause and the
//! next step; and [`RailError::exit`], the exit status of a program.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Termination};

use thiserror::Error;

use crate::limits::{Limit, Resource};
use crate::name::NAMED_KINDS;
use crate::nearest::nearest;
use crate::shown::shown;

/// The exit status of a doorbell program.
///
/// | number | meaning |
/// |---|---|
/// | 0 | everything was done |
/// | 1 | it ran, and the verdict is no: a budget was missed, a benchmark lost, a test failed |
/// | 2 | the command line, an environment variable or the configuration is wrong, or names a file that is not there |
/// | 3 | a rail or its device cannot be used |
/// | 4 | a peer was lost |
/// | 5 | a deadline passed |
/// | 6 | the system refused: memory, descriptors, permissions, files |
///
/// 101, the number of a panic, is a fault of doorbell whenever it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// The program ran, and its verdict is no.
    Verdict = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// A rail or device cannot be used.
    Rail = 3,
    /// A peer was lost.
    PeerLost = 4,
    /// A deadline passed.
    TimedOut = 5,
    /// The system refused.
    System = 6,
}

impl Exit {
    /// The number itself.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the status of a program whose user named a file that the system did not let be used.
    pub fn of_named_file(source: &io::Error) -> Self {
        match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Self::Usage,
            _ => Self::System,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.number())
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        self.into()
    }
}

/// The explanation of an error, in whole sentences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// The most likely cause.
    pub cause: &'static str,
    /// What to do next.
    pub next: &'static str,
}

/// Why a rail could not be opened, or could not do something off the data path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RailError {
    /// The name starts with no known kind of driver.
    #[error("`{}` is not a kind of rail{} (kinds: {})", shown(given), suggestion(nearest), NAMED_KINDS.join(", "))]
    UnknownKind {
        /// The given name.
        given: String,
        /// The valid kind that was probably meant, when one is near enough.
        nearest: Option<&'static str>,
    },
    /// A kind that this build does not contain, or an object that the driver cannot use.
    #[error("rail `{rail}` cannot be used: {reason}; {remedy}")]
    Unusable {
        /// The rail's name.
        rail: String,
        /// The reason as a text.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// Something that the rail needs for itself alone is in use: by another process, or by another rail of
    /// this one.
    #[error("rail `{rail}` cannot be used: {reason}; {remedy}")]
    Taken {
        /// The rail's name.
        rail: String,
        /// What is in use, and the process that has it, as far as that is known.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The ports that the driver is to have are not free, or not permitted.
    #[error("rail `{rail}` cannot be used: {reason}: {source}; {remedy}")]
    Ports {
        /// The rail's name.
        rail: String,
        /// Which ports, as a text.
        reason: String,
        /// The system's error.
        source: io::Error,
        /// What to do about it.
        remedy: String,
    },
    /// An address that is not one of this rail's.
    #[error("`{address}` is not an address of rail `{rail}`: {reason}")]
    BadAddress {
        /// The rail's name.
        rail: String,
        /// The address as a text.
        address: String,
        /// Why it is not one.
        reason: &'static str,
    },
    /// The peer does not answer or refuses.
    #[error("rail `{rail}` cannot reach {peer}: {reason}; {remedy}")]
    Unreachable {
        /// The rail's name.
        rail: String,
        /// The name of the peer.
        peer: String,
        /// Why it cannot be reached.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Shared memory could not be allocated or mapped.
    #[error(
        "could not {step} ({object}, {length} bytes): {source}; {}",
        advice(source).unwrap_or("check free memory, the container's memory limit, and `ulimit -n` and `-v`")
    )]
    Memory {
        /// The step that failed.
        step: &'static str,
        /// The object's label.
        object: String,
        /// The requested size, in bytes.
        length: usize,
        /// The system's error.
        source: io::Error,
    },
    /// A peer broke the rules.
    #[error(
        "a peer {what}; its connection is dropped: it runs another version, or is not a process of this job"
    )]
    Hostile {
        /// What it did.
        what: &'static str,
    },
    /// A system call failed.
    #[error("could not {step} on rail `{rail}`: {source}; {remedy}")]
    System {
        /// The rail's name.
        rail: String,
        /// The step that failed.
        step: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// No rail leads to a peer.
    #[error("no rail reaches {peer}{}", each(reasons))]
    NoRail {
        /// The name of the peer.
        peer: String,
        /// Each candidate with the one reason that it lost.
        reasons: Vec<String>,
    },
    /// The system refused a file or directory.
    #[error("could not {step} `{}`: {source}", path.display())]
    File {
        /// The step that failed.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that is not what it should be.
    #[error("`{}` {reason}", path.display())]
    BadFile {
        /// The file that is wrong.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A call with arguments that cannot work.
    #[error("{object} `{name}` {reason}")]
    Misuse {
        /// The sort of object.
        object: &'static str,
        /// The name of the object.
        name: String,
        /// What is wrong with the call.
        reason: &'static str,
    },
}

/// Several reasons have a line each, below the sentence.
fn each(reasons: &[String]) -> String {
    const NEXT: &str = "`doorbell info` shows every candidate";
    match reasons {
        [] => format!("; {NEXT}"),
        [only] => format!(": {only}; {NEXT}"),
        several => format!(" ({NEXT}):\n  {}", several.join("\n  ")),
    }
}

fn suggestion(nearest: &Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; the nearest is `{name}`"))
}

impl RailError {
    /// An unknown kind, with the nearest valid one.
    pub fn unknown_kind(given: &str) -> Self {
        let kind = given.split(':').next().unwrap_or(given);
        Self::UnknownKind {
            given: given.to_owned(),
            nearest: nearest(kind, NAMED_KINDS),
        }
    }

    /// A failed step on shared memory.
    pub fn memory(step: &'static str, object: &str, length: usize, source: io::Error) -> Self {
        Self::Memory {
            step,
            object: object.to_owned(),
            length,
            source,
        }
    }

    /// A peer that broke the rules.
    pub fn hostile(what: &'static str) -> Self {
        Self::Hostile { what }
    }

    /// A file or directory that the system refused.
    pub fn file(step: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            step,
            path: path.to_owned(),
            source,
        }
    }

    /// A file that is not what it should be.
    pub fn bad_file(path: &Path, reason: &'static str) -> Self {
        Self::BadFile {
            path: path.to_owned(),
            reason,
        }
    }

    /// A call with arguments that cannot work.
    pub fn misuse(object: &'static str, name: &str, reason: &'static str) -> Self {
        Self::Misuse {
            object,
            name: name.to_owned(),
            reason,
        }
    }

    /// A short name that stays the same for ever: for scripts, and for looking up.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownKind { .. } => "unknown-kind",
            Self::Unusable { .. } => "rail-unusable",
            Self::Taken { .. } => "rail-taken",
            Self::Ports { .. } => "rail-ports",
            Self::BadAddress { .. } => "bad-address",
            Self::Unreachable { .. } => "peer-unreachable",
            Self::Memory { .. } => "memory",
            Self::Hostile { .. } => "hostile-peer",
            Self::System { .. } => "system",
            Self::NoRail { .. } => "no-rail",
            Self::File { .. } => "file",
            Self::BadFile { .. } => "bad-file",
            Self::Misuse { .. } => "misuse",
        }
    }

    /// Returns the number with which a program ends because of it.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::UnknownKind { .. } | Self::Misuse { .. } => Exit::Usage,
            Self::Unusable { .. }
            | Self::Taken { .. }
            | Self::Ports { .. }
            | Self::BadAddress { .. }
            | Self::NoRail { .. } => Exit::Rail,
            Self::Unreachable { .. } | Self::Hostile { .. } => Exit::PeerLost,
            Self::Memory { .. } | Self::System { .. } | Self::File { .. } | Self::BadFile { .. } => {
                Exit::System
            }
        }
    }

    /// Returns the likely cause and the next step, by the system's error where there is one.
    pub fn help(&self) -> Help {
        let by_reason = match self {
            Self::Memory { source, .. } | Self::System { source, .. } | Self::File { source, .. } => {
                system_help(source)
            }
            _ => None,
        };
        by_reason.unwrap_or_else(|| self.usual_help())
    }

    fn usual_help(&self) -> Help {
        let (cause, next) = match self {
            Self::UnknownKind { .. } => (
                "The part before the first colon of a rail's name has to be the kind of its driver.",
                "Correct the name; `doorbell info` lists every kind and the rails found on this machine.",
            ),
            Self::Unusable { .. } => (
                "The rail was named, and something that it needs is missing or not permitted.",
                "Follow the message, or name another rail; a named rail is never replaced silently.",
            ),
            Self::Taken { .. } => (
                "A device's queues and an interface's program belong to one process at a time.",
                "End the process that the message names, or name another rail.",
            ),
            Self::Ports { .. } => (
                "Another program has the ports, or the user may not have them.",
                "Follow the message; `ss -ulnp` shows which processes have UDP ports.",
            ),
            Self::BadAddress { .. } => (
                "The peer published an address of another kind of rail, or runs another version.",
                "Start all ranks from one build and with the same list of rails.",
            ),
            Self::Unreachable { .. } => (
                "The peer has ended, runs elsewhere, or something between the two drops the traffic.",
                "Check whether the peer still runs; `doorbell info` shows what this side can use.",
            ),
            Self::Memory { .. } => (
                "The machine or the container has too little free memory, or too many maps or descriptors are open.",
                "Check `free -m`, the container's memory limit, `ulimit -n`, `ulimit -v` and vm.max_map_count.",
            ),
            Self::Hostile { .. } => (
                "The peer runs another version, has a bug, or is not a process of this job.",
                "Start all ranks from one build; if they were, report it with the flight record of both sides.",
            ),
            Self::System { .. } => (
                "The system refused a step that works on machines set up for this rail.",
                "Follow the message; `doorbell info` shows what the driver found.",
            ),
            Self::NoRail { .. } => (
                "Every rail of this side is unusable, is missing on the other side, or cannot reach it.",
                "Read the reasons in the message; `doorbell info` repeats them.",
            ),
            Self::File { .. } => (
                "The path is wrong, or the file system does not allow it.",
                "Check the path with `ls -ld`, as the same user and in the same container.",
            ),
            Self::BadFile { .. } => (
                "The file was made by another program or version, is still being written, or is damaged.",
                "Pass the right file, or run the tool of the same version as the job.",
            ),
            Self::Misuse { .. } => (
                "The program that calls doorbell made an invalid request.",
                "Correct the call; the message names the object and the rule.",
            ),
        };
        Help { cause, next }
    }
}

/// Returns what to do when the system refuses a process, a thread, a descriptor or memory; `None` for an
/// error that does not show the cause, and for EAGAIN, whose cause depends on the call.
pub fn advice(source: &io::Error) -> Option<&'static str> {
    Some(match source.raw_os_error()? {
        libc::EMFILE => "raise the limit of open files (`ulimit -n`)",
        libc::ENFILE => "the machine's limit of open files is reached: raise fs.file-max",
        libc::ENOMEM => {
            "memory or address space ran out: see `free -m`, the container's memory limit, `ulimit -v` and \
             vm.max_map_count"
        }
        libc::EFBIG => {
            "raise the limit of file sizes (`ulimit -f`), which also holds for shared memory objects"
        }
        libc::ENOSPC => {
            "the memory that backs shared objects is full: free some, or raise the container's limit"
        }
        libc::EPERM => {
            "a container's seccomp profile or a security module refuses this system call: update the container \
             runtime, or start the container with `--security-opt seccomp=unconfined`"
        }
        libc::ENOSYS => {
            "the kernel is too old for this system call, or a container's seccomp profile hides it: update the \
             kernel or the container runtime"
        }
        _ => return None,
    })
}

/// Refuses a file or a shared memory object longer than this process's limit of file sizes. Without this
/// check the system would send SIGXFSZ, which ends the process without a message.
///
/// # Errors
/// EFBIG.
pub fn check_file_size(length: u64) -> io::Result<()> {
    match Limit::of(Resource::RLIMIT_FSIZE).soft {
        Some(most) if length > most => Err(io::Error::from_raw_os_error(libc::EFBIG)),
        _ => Ok(()),
    }
}

/// Help by the system's reason, for the reasons that have one usual cause.
fn system_help(source: &io::Error) -> Option<Help> {
    let (cause, next) = match source.raw_os_error()? {
        libc::EMFILE => (
            "This process has reached its limit of open descriptors.",
            "Raise the limit with `ulimit -n`, or use fewer ranks a process.",
        ),
        libc::ENFILE => (
            "The whole machine has reached its limit of open files.",
            "Raise fs.file-max, or find what leaks files with `lsof`.",
        ),
        libc::EFBIG => (
            "A file or a shared object would exceed this process's limit of file sizes.",
            "Raise the limit with `ulimit -f`.",
        ),
        libc::ENOSPC => (
            "The file system, or the memory that backs shared objects, is full.",
            "Free space; in a container, raise its memory limit.",
        ),
        libc::ENOMEM => (
            "Memory, the address space or the number of maps ran out.",
            "Check `free -m`, the container's limit, `ulimit -v`, and vm.max_map_count.",
        ),
        libc::EACCES | libc::EPERM => (
            "The user or the container lacks the permission.",
            "Run as the user who owns the object, or grant the container the permission; `doorbell info` names it.",
        ),
        libc::ENOENT | libc::ESRCH => (
            "It does not exist: the process has ended, or the path is in another container.",
            "Check whether the process still runs, and use the same container's view of /proc.",
        ),
        _ => return None,
    };
    Some(Help { cause, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_kind_is_suggested_when_it_is_near() {
        assert!(
            RailError::unknown_kind("shmem:0")
                .to_string()
                .contains("the nearest is `shm`")
        );
        let verb = RailError::unknown_kind("verb:rxe0:1:ud").to_string();
        assert!(verb.contains("the nearest is `verbs`"), "{verb}");
        let far = RailError::unknown_kind("qqqqqqqq").to_string();
        assert!(!far.contains("nearest") && far.contains("kinds: shm"), "{far}");
    }

    #[test]
    fn kinds_without_a_driver_are_not_suggested_and_a_long_name_is_cut() {
        for given in ["qqqqqqqq", "ofl", "simm", "portal"] {
            let said = RailError::unknown_kind(given).to_string();
            assert!(
                said.ends_with("(kinds: shm, udp, xdp, usnic, igbvf, verbs)"),
                "{said}"
            );
            assert!(!said.contains("`verbs`") && !said.contains("`ofi`"), "{said}");
        }
        let long = RailError::unknown_kind(&format!("a\n{}", "b".repeat(100))).to_string();
        assert!(
            long.starts_with("`a\\nbbb") && long.chars().count() < 150,
            "{long}"
        );
    }

    /// Makes one of each variant; a new one is added here because `order` does not compile without it.
    fn one_of_each() -> Vec<RailError> {
        let text = || "object".to_owned();
        let source = || io::Error::other("the system's word");
        vec![
            RailError::unknown_kind("smh:0"),
            RailError::Unusable {
                rail: text(),
                reason: "reason".into(),
                remedy: "remedy".into(),
            },
            RailError::Taken {
                rail: text(),
                reason: "reason".into(),
                remedy: "remedy".into(),
            },
            RailError::Ports {
                rail: text(),
                reason: "reason".into(),
                source: source(),
                remedy: "remedy".into(),
            },
            RailError::BadAddress {
                rail: text(),
                address: text(),
                reason: "reason",
            },
            RailError::Unreachable {
                rail: text(),
                peer: text(),
                reason: "reason".into(),
                remedy: "remedy",
            },
            RailError::memory("step", "object", 1, source()),
            RailError::hostile("object"),
            RailError::System {
                rail: text(),
                step: "step",
                source: source(),
                remedy: "remedy",
            },
            RailError::NoRail {
                peer: text(),
                reasons: vec!["reason".into()],
            },
            RailError::file("step", Path::new("object"), source()),
            RailError::bad_file(Path::new("object"), "reason"),
            RailError::misuse("counter", "object", "reason"),
        ]
    }

    fn order(error: &RailError) -> usize {
        match error {
            RailError::UnknownKind { .. } => 0,
            RailError::Unusable { .. } => 1,
            RailError::Taken { .. } => 2,
            RailError::Ports { .. } => 3,
            RailError::BadAddress { .. } => 4,
            RailError::Unreachable { .. } => 5,
            RailError::Memory { .. } => 6,
            RailError::Hostile { .. } => 7,
            RailError::System { .. } => 8,
            RailError::NoRail { .. } => 9,
            RailError::File { .. } => 10,
            RailError::BadFile { .. } => 11,
            RailError::Misuse { .. } => 12,
        }
    }

    #[test]
    fn every_variant_has_a_code_a_cause_and_a_next_step_of_its_own() {
        let all = one_of_each();
        let (mut codes, mut causes, mut steps) = (HashSet::new(), HashSet::new(), HashSet::new());
        for (place, error) in all.iter().enumerate() {
            assert_eq!(order(error), place, "the list is complete and in order");
            let help = error.help();
            assert!(help.cause.ends_with('.') && help.next.ends_with('.'), "{help:?}");
            assert!(help.cause.len() > 20 && help.next.len() > 20, "{help:?}");
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(error.code().bytes().all(plain), "{}", error.code());
            assert!(codes.insert(error.code()) && causes.insert(help.cause) && steps.insert(help.next));
        }
    }

    #[test]
    fn every_message_is_one_line_and_names_its_object_and_the_systems_word() {
        for error in one_of_each() {
            let message = error.to_string();
            assert!(!message.contains('\n'), "{message}");
            assert!(
                message.contains("object") || message.contains("smh:0"),
                "{message}"
            );
            if std::error::Error::source(&error).is_some() {
                assert!(message.contains("the system's word"), "{message}");
            }
        }
    }

    #[test]
    fn the_systems_reason_gives_better_help_than_the_variant() {
        for number in [
            libc::EMFILE,
            libc::ENOMEM,
            libc::EACCES,
            libc::ENOENT,
            libc::ENFILE,
            libc::ENOSPC,
        ] {
            let error = |source| RailError::memory("step", "object", 1, source);
            let special = error(io::Error::from_raw_os_error(number)).help();
            assert_ne!(special, error(io::Error::other("x")).help(), "{number}");
        }
        let odd = io::Error::from_raw_os_error(libc::EXDEV);
        assert!(
            RailError::file("step", Path::new("x"), odd)
                .help()
                .cause
                .contains("path")
        );
    }

    #[test]
    fn exits_keep_their_numbers() {
        let exits = [
            Exit::Done,
            Exit::Verdict,
            Exit::Usage,
            Exit::Rail,
            Exit::PeerLost,
            Exit::TimedOut,
            Exit::System,
        ];
        assert!(
            exits
                .iter()
                .enumerate()
                .all(|(number, exit)| usize::from(exit.number()) == number)
        );
        let of = |error: RailError| error.exit().number();
        assert_eq!(of(RailError::unknown_kind("x")), 2);
        assert_eq!(of(RailError::hostile("x")), 4);
        assert!(
            one_of_each()
                .iter()
                .all(|error| (2..=6).contains(&error.exit().number()))
        );
    }
}
