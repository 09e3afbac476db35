//! The chain of `shm`: memory, sealed objects, sockets, the right to read a peer's memory, and messages
//! between two processes.

use std::io::ErrorKind;

use doorbell::Config;
use doorbell_fabric::error::RailError;
use doorbell_fabric::map::{Object, Protection};

use super::between::{self, Findings};
use super::chain::{Chain, Fix, Link, Walk};
use super::limits::{few_files, more_files};
use super::system::{System, bytes};

/// What a rail takes before it has peers, and the lanes of some: far more than enough for a first look.
const MEMORY: u64 = 64 << 20;
/// Descriptors of a rank that has one peer over shm: its standard streams, those of the rail and of the job,
/// and what the two pass to each other when they meet. A job of two ranks works with as many, and not with
/// one less.
const LEAST_FILES: u64 = 15;
/// With fewer than this there is little room for peers, each of which takes one.
const FEW_FILES: u64 = 64;
/// The system's numbers of what may be refused (errno.h of Linux).
const EPERM: i32 = 1;
const ENOSYS: i32 = 38;

/// The chain of the rail `shm`.
pub(super) fn chain(system: &System, config: &Config) -> Chain {
    Walk::along("shm", |walk| {
        memory(walk, system)?;
        files(walk, system)?;
        objects(walk, system)?;
        let both = processes(walk)?;
        reading(walk, system, config, &both);
        exchange(walk, &both)
    })
}

fn memory(walk: &mut Walk, system: &System) -> Link {
    let used = system.field("/proc/self/status", "VmSize");
    let used = used
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024;
    if let Some([Some(soft), hard]) = system.limit("Max address space")
        && soft < used.saturating_add(MEMORY)
    {
        let raise = match hard {
            None => Fix::run(
                "ulimit -v unlimited",
                "take the limit away for this shell and what it starts",
            ),
            Some(hard) if hard > soft && hard >= used.saturating_add(MEMORY) => Fix::run(
                format!("ulimit -v {}", hard / 1024),
                "raise it as far as this shell may",
            ),
            Some(_) => Fix::hand(
                "raise the hard limit (`ulimit -Hv`) where it was set: in the shell that started this one, \
                 its service or its container",
            ),
        };
        return Err(walk.broken(
            "memory",
            format!(
                "this process may have {} of addresses, and uses {} already",
                bytes(soft),
                bytes(used)
            ),
            "the limit of the address space (`ulimit -v`) leaves no room for the lanes of a rail",
            vec![raise],
        ));
    }
    match system.memory("MemAvailable") {
        Some(free) if free < MEMORY => Err(walk.broken(
            "memory",
            format!(
                "{} of memory are left, and {} are a beginning",
                bytes(free),
                bytes(MEMORY)
            ),
            "other processes have the memory",
            vec![Fix::hand(
                "end what needs it: `ps -eo rss,pid,comm --sort=-rss | head` shows which processes use it",
            )],
        )),
        Some(free) => {
            walk.ok(
                "memory",
                format!("{} are free, addresses without a limit that matters", bytes(free)),
            );
            Ok(())
        }
        None => {
            walk.unknown("memory", "/proc/meminfo cannot be read", Vec::new());
            Ok(())
        }
    }
}

/// The descriptors below `limit`, beside the standard streams, that this process was started with, and that
/// ranks started from here have as well.
fn inherited(system: &System, limit: u64) -> u64 {
    /// `O_CLOEXEC` of the flags in fdinfo, which are octal: what this process has opened itself.
    const CLOEXEC: u64 = 0o2_000_000;
    const FOLDER: &str = "/proc/self/fdinfo";
    let kept = |number: &u64| {
        let flags = system.field(&format!("{FOLDER}/{number}"), "flags");
        let flags = flags.and_then(|text| u64::from_str_radix(text.trim(), 8).ok());
        (3..limit).contains(number) && flags.is_some_and(|flags| flags & CLOEXEC == 0)
    };
    let numbers = system
        .names(FOLDER)
        .into_iter()
        .filter_map(|name| name.parse().ok());
    numbers.filter(kept).count() as u64
}

fn files(walk: &mut Walk, system: &System) -> Link {
    match system.limit("Max open files") {
        Some([Some(soft), _]) if soft < LEAST_FILES + inherited(system, soft) => {
            let least = LEAST_FILES + inherited(system, soft);
            let why = format!("a rank with one peer over shm needs {least}");
            Err(few_files(walk, system, least, &why))
        }
        Some([Some(soft), _]) if soft < FEW_FILES => {
            let least = LEAST_FILES + inherited(system, soft);
            let saw = format!(
                "this process may have {soft} descriptors: a rank needs {least} with its first peer over shm, one more \
                 for each further peer, and a few while it meets several at a time"
            );
            walk.note("files", saw, vec![more_files(system, FEW_FILES).1]);
            Ok(())
        }
        Some([soft, _]) => {
            let many = soft.map_or("as many as the system has".to_owned(), |soft| soft.to_string());
            walk.ok("files", format!("descriptors: {many}"));
            Ok(())
        }
        None => {
            walk.unknown("files", "/proc/self/limits cannot be read", Vec::new());
            Ok(())
        }
    }
}

fn is_too_large(error: &RailError) -> bool {
    matches!(error, RailError::Memory { source, .. } if source.kind() == ErrorKind::FileTooLarge)
}

/// Sealed memory of its own name, mapped.
fn objects(walk: &mut Walk, system: &System) -> Link {
    let made = Object::new("doorbell-doctor", 1 << 16).and_then(|object| {
        object.map(Protection::ReadOnly)?;
        Ok(())
    });
    match made {
        Ok(()) => {
            walk.ok("memfd", "a sealed memory object was made and mapped");
            Ok(())
        }
        Err(error) if is_too_large(&error) => Err(walk.broken(
            "memfd",
            error.to_string(),
            "the limit of file sizes (`ulimit -f`) also holds for shared memory objects",
            vec![match system.limit("Max file size") {
                // The shell counts in blocks of 1,024 bytes, or of 512.
                Some([_, Some(hard)]) => Fix::hand(format!(
                    "raise the limit as far as this shell may: `ulimit -H -f` shows how far ({hard} bytes)"
                )),
                _ => Fix::run(
                    "ulimit -f unlimited",
                    "take the limit away for this shell and what it starts",
                ),
            }],
        )),
        Err(error) => Err(walk.broken(
            "memfd",
            error.to_string(),
            error.help().cause,
            vec![Fix::hand(format!(
                "{} A container has to allow memfd_create(2) and fcntl(2) with F_ADD_SEALS: start it with \
                 `--security-opt seccomp=unconfined` to see whether that is it",
                error.help().next
            ))],
        )),
    }
}

/// Two processes, a rail each, and a socket between them.
fn processes(walk: &mut Walk) -> Result<between::Both, super::chain::Ended> {
    match between::meet() {
        Ok(both) => {
            walk.ok("processes", "two processes opened a rail each, and are connected");
            Ok(both)
        }
        Err(why) => Err(walk.broken(
            "processes",
            why,
            "no further process, Unix socket or descriptor is available",
            vec![
                Fix::hand(
                    "`ulimit -u` and `ulimit -n` show how many processes and descriptors this user may have",
                ),
                Fix::hand("`doorbell run -n 2 -- doorbell pingpong --rail shm` shows what fails in a job"),
            ],
        )),
    }
}

/// Whether the ranks of a job may read each other's memory. Without it, long messages take another way.
fn reading(walk: &mut Walk, system: &System, config: &Config, both: &between::Both) {
    if !*config.shm.cma.get() {
        return walk.not_applicable("cma", "turned off (shm.cma): long messages are copied twice");
    }
    let Some(refused) = both.iter().find_map(|told| told.unreadable) else {
        return walk.ok(
            "cma",
            "each process has read the other's memory (process_vm_readv)",
        );
    };
    let (why, fixes) = cause(system, refused);
    walk.note(
        "cma",
        format!(
            "process_vm_readv between two ranks: {}; {why}; long messages are copied twice instead",
            std::io::Error::from_raw_os_error(refused)
        ),
        fixes,
    );
}

/// Returns why a process may not read its sibling's memory, and what to do.
fn cause(system: &System, refused: i32) -> (String, Vec<Fix>) {
    let scope = system.number("/proc/sys/kernel/yama/ptrace_scope");
    let filtered = system
        .field("/proc/self/status", "Seccomp")
        .is_some_and(|mode| mode == "2");
    let in_container = || Fix::hand("start the container with `--cap-add=SYS_PTRACE`");
    match (refused, scope) {
        (EPERM, Some(scope @ 1..=2)) => (
            format!("Yama lets only parents read (kernel.yama.ptrace_scope is {scope})"),
            vec![Fix::run("sysctl -w kernel.yama.ptrace_scope=0", "let processes of one user read each other")],
        ),
        (EPERM, Some(3)) => (
            "Yama lets no process read another (kernel.yama.ptrace_scope is 3)".to_owned(),
            vec![Fix::hand(
                "set kernel.yama.ptrace_scope=0 in /etc/sysctl.d, and restart: 3 stays until then",
            )],
        ),
        (EPERM, _) if has_file_capabilities() => (
            "the program has capabilities of its file (setcap), and the kernel hides the memory of such processes".to_owned(),
            vec![Fix::hand("give the capabilities to the process instead, with `setpriv --ambient-caps`, as docs/xdp.md shows")],
        ),
        (EPERM, _) if !may_read_program() => (
            "this user may run the program and not read it, and the kernel hides the memory of such processes".to_owned(),
            vec![Fix::run(
                format!("chmod a+r '{}'", program()),
                "let users read the program (and the one that is the job)",
            )],
        ),
        (EPERM | ENOSYS, _) if filtered => (
            "a filter of system calls (seccomp) is on".to_owned(),
            vec![in_container(), Fix::hand("or allow process_vm_readv and process_vm_writev in its seccomp profile")],
        ),
        (ENOSYS, _) => (
            "this kernel has no process_vm_readv".to_owned(),
            vec![Fix::hand("use a kernel with CONFIG_CROSS_MEMORY_ATTACH")],
        ),
        _ => (
            "a security module or the container forbids it".to_owned(),
            vec![in_container()],
        ),
    }
}

fn has_file_capabilities() -> bool {
    let mut value = [0; 64];
    rustix::fs::getxattr("/proc/self/exe", "security.capability", &mut value).is_ok_and(|length| length > 0)
}

fn may_read_program() -> bool {
    use rustix::fs::{Access, access};
    access(program(), Access::READ_OK).is_ok()
}

fn program() -> String {
    std::env::current_exe().map_or_else(|_| "doorbell".to_owned(), |path| path.display().to_string())
}

fn exchange(walk: &mut Walk, both: &between::Both) -> Link {
    if let Some(why) = both.iter().find_map(|told| told.failed.clone()) {
        return Err(walk.broken(
            "exchange",
            why,
            "the two processes are connected, and no message passed: the container may forbid eventfd, epoll or passing descriptors",
            vec![Fix::hand("`doorbell run -n 2 -- doorbell pingpong --rail shm` shows what fails in a job")],
        ));
    }
    let Findings { half_ns, long, .. } = both[0];
    walk.proved(
        "exchange",
        format!(
            "messages of 8 and {long} bytes between two processes: {half_ns} ns, half a round trip, for 8"
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Is, Verdict};
    use super::super::system::fake::Fake;
    use super::*;

    #[test]
    fn a_process_that_may_not_read_gets_the_reason() {
        let fake = Fake::new();
        fake.file("/proc/sys/kernel/yama/ptrace_scope", "1\n");
        let (why, fixes) = cause(&fake.system(), EPERM);
        assert!(why.contains("Yama") && why.contains("is 1"), "{why}");
        assert_eq!(
            fixes[0].command.as_deref(),
            Some("sysctl -w kernel.yama.ptrace_scope=0")
        );
        fake.file("/proc/sys/kernel/yama/ptrace_scope", "3\n");
        assert!(cause(&fake.system(), EPERM).1[0].command.is_none());
        fake.file("/proc/sys/kernel/yama/ptrace_scope", "0\n")
            .file("/proc/self/status", "Seccomp:\t2\n");
        assert!(cause(&fake.system(), EPERM).0.contains("seccomp"));
        assert!(cause(&fake.system(), ENOSYS).0.contains("seccomp"));
        fake.file("/proc/self/status", "Seccomp:\t0\n");
        assert!(cause(&fake.system(), ENOSYS).0.contains("kernel"));
        assert!(cause(&fake.system(), EPERM).1[0].what.contains("SYS_PTRACE"));
    }

    #[test]
    fn limits_that_leave_no_room_break_the_chain_with_the_command() {
        let fake = Fake::new();
        let walked =
            |step: fn(&mut Walk, &System) -> Link| Walk::along("shm", |walk| step(walk, &fake.system()));
        assert_eq!(walked(memory).verdict, Verdict::Untried);
        fake.file(
            "/proc/self/limits",
            "Max address space   1048576   unlimited   bytes\nMax open files   14   4096   files\n",
        );
        let chain = walked(memory);
        assert_eq!(chain.verdict, Verdict::Broken);
        assert_eq!(
            chain.steps[0].fixes[0].command.as_deref(),
            Some("ulimit -v unlimited")
        );
        assert_eq!(
            walked(files).steps[0].fixes[0].command.as_deref(),
            Some("ulimit -n 4096")
        );
        // So few are enough for a job, and are no more than a note.
        fake.file("/proc/self/limits", "Max open files   20   4096   files\n");
        let few = &walked(files).steps[0];
        assert_eq!(
            (few.is, few.fixes[0].command.as_deref()),
            (Is::Note, Some("ulimit -n 4096"))
        );
        assert!(
            few.saw.contains("may have 20") && few.saw.contains("needs 15"),
            "{}",
            few.saw
        );
        fake.file("/proc/self/fdinfo/3", "pos:\t0\nflags:\t0100002\n")
            .file("/proc/self/fdinfo/5", "pos:\t0\nflags:\t02000002\n")
            .file("/proc/self/fdinfo/99", "pos:\t0\nflags:\t0100002\n");
        assert!(walked(files).steps[0].saw.contains("needs 16"));
        fake.file("/proc/meminfo", "MemAvailable: 1000 kB\n")
            .limits("unlimited", "unlimited");
        assert!(walked(memory).steps[0].saw.contains("1000 KiB"));
    }
}
