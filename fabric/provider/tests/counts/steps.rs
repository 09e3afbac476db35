//! Counts what a part of a program executes, by running that part one instruction at a time.
//!
//! ```text
//!   test ── trace(command) ──► child: warm up, mark(), the part, mark(), ... , exit
//!     └───── Vec<Steps>, one for each pair of marks
//! ```
//!
//! Counts are the same on a busy machine as on an idle one. A part is what one thread executes: its two marks
//! are that thread's, and other threads may stand still meanwhile.

use std::collections::HashMap;
use std::ffi::c_long;
use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::ptr;

/// The argument by which the system call of a mark is known; it changes nothing.
const QUERY: u64 = 0xffff_ffff;

/// What a part of a program has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// Instructions. A repeated string instruction is one.
    pub(crate) instructions: u64,
    /// Calls of the system.
    pub(crate) system_calls: u64,
    /// Instructions that lock a cache line, and full fences.
    pub(crate) locked: u64,
    /// Reads of the processor's clock.
    pub(crate) clock_reads: u64,
    /// Calls through a pointer.
    pub(crate) indirect_calls: u64,
}

impl Steps {
    fn add(&mut self, kind: Kind) {
        self.instructions += 1;
        match kind {
            Kind::SystemCall => self.system_calls += 1,
            Kind::Locked => self.locked += 1,
            Kind::ClockRead => self.clock_reads += 1,
            Kind::IndirectCall => self.indirect_calls += 1,
            Kind::Plain | Kind::Repeated => {}
        }
    }
}

/// Why nothing was counted.
#[derive(Debug)]
pub(crate) enum TraceError {
    /// Tracing is not possible here.
    Refused(io::Error),
    /// The child has ended in another way than by exit status 0.
    Failed(String),
}

impl fmt::Display for TraceError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(
                to,
                "a child cannot be traced: {error}; ptrace is not allowed here, or this is no x86-64"
            ),
            Self::Failed(how) => write!(to, "the traced child has ended with {how}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// The beginning or the end of a part that is counted: a system call that changes nothing.
pub(crate) fn mark() {
    // SAFETY: it queries the execution domain of the process.
    unsafe { libc::personality(QUERY) };
}

/// Runs a child, and counts what it executes between its first and its second mark, its third and its fourth,
/// and so on.
///
/// # Errors
/// [`TraceError::Refused`] where tracing is not possible; [`TraceError::Failed`] for a child that fails.
pub(crate) fn trace(command: &mut Command) -> Result<Vec<Steps>, TraceError> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return Err(TraceError::Refused(io::ErrorKind::Unsupported.into()));
    }
    // SAFETY: one system call, which is allowed between `fork` and `exec`.
    unsafe { command.pre_exec(|| call(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)) };
    let child = command.spawn().map_err(TraceError::Refused)?;
    let mut traced = Traced {
        thread: child.id() as i32,
        child,
        kinds: HashMap::new(),
    };
    let counted = traced.count();
    if counted.is_err() {
        // It may have ended already.
        let _ = traced.child.kill();
        let _ = traced.child.wait();
    }
    counted
}

/// What an instruction is, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    SystemCall,
    Locked,
    ClockRead,
    IndirectCall,
    /// A string instruction, which stays where it is until it is done.
    Repeated,
}

impl Kind {
    /// The kind of the instruction that these bytes begin with.
    fn of(code: [u8; 16]) -> Self {
        let mut at = 0;
        let (mut locked, mut repeated) = (false, false);
        while at < 8 {
            match code[at] {
                0xf0 => locked = true,
                0xf2 | 0xf3 => repeated = true,
                // Other legacy prefixes, and REX, which comes last.
                0x2e | 0x36 | 0x3e | 0x26 | 0x64..=0x67 | 0x40..=0x4f => {}
                _ => break,
            }
            at += 1;
        }
        let (first, second, third) = (code[at], code[at + 1], code[at + 2]);
        // A register as the operand, not memory.
        let is_register = |modes: u8| modes >> 6 == 3;
        match (first, second) {
            (0x0f, 0x05 | 0x34) => Self::SystemCall,
            (0x0f, 0x31) => Self::ClockRead,
            (0x0f, 0x01) if third == 0xf9 => Self::ClockRead,
            (0x0f, 0xae) if third == 0xf0 => Self::Locked,
            // An exchange with memory locks without a prefix.
            (0x86 | 0x87, modes) if !is_register(modes) => Self::Locked,
            (0xff, modes) if modes >> 3 & 7 == 2 => Self::IndirectCall,
            (0xa4 | 0xa5 | 0xaa | 0xab | 0xa6 | 0xa7 | 0xae | 0xaf, _) if repeated => Self::Repeated,
            _ if locked => Self::Locked,
            _ => Self::Plain,
        }
    }
}

struct Traced {
    child: Child,
    /// The thread that is counted, or goes on next.
    thread: i32,
    /// The kinds of the instructions that were executed, by their addresses.
    kinds: HashMap<u64, Kind>,
}

/// How a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// At a system call.
    SystemCall,
    /// At the next instruction, at its start, or where it has started another one.
    Trap,
    /// By a signal, which it is to get.
    Signal(i32),
    /// It has ended well.
    Ended,
}

/// What a thread has in this register at a stop before a system call.
const NOT_CALLED: u64 = -(libc::ENOSYS as i64) as u64;

impl Traced {
    fn count(&mut self) -> Result<Vec<Steps>, TraceError> {
        let mut parts = Vec::new();
        self.wait(self.thread)?;
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACECLONE;
        self.ask(libc::PTRACE_SETOPTIONS, 0, options as u64)?;
        while self.find_mark()? {
            parts.push(self.step_to_mark()?);
        }
        Ok(parts)
    }

    /// Lets the child run until a thread has made the call of a mark, which is the thread from then on; false
    /// when the child has ended.
    fn find_mark(&mut self) -> Result<bool, TraceError> {
        let mut signal = 0;
        loop {
            self.ask(libc::PTRACE_SYSCALL, 0, signal as u64)?;
            signal = match self.next_stop()? {
                None => return Ok(false),
                Some(Stop::SystemCall) if self.has_marked()? => return Ok(true),
                // The first stop of a thread that another one has started.
                Some(Stop::Signal(libc::SIGSTOP)) => 0,
                Some(Stop::Signal(number)) => number,
                Some(_) => 0,
            };
        }
    }

    /// Waits until a thread stops, which is the thread from then on; `None` when the child has ended.
    fn next_stop(&mut self) -> Result<Option<Stop>, TraceError> {
        loop {
            let (thread, stop) = self.wait(-1)?;
            if stop != Stop::Ended {
                self.thread = thread;
                return Ok(Some(stop));
            }
            if thread == self.child.id() as i32 {
                return Ok(None);
            }
        }
    }

    /// Whether the thread has just made the call of a mark.
    fn has_marked(&self) -> Result<bool, TraceError> {
        let is_made = self.register(offset_of!(libc::user_regs_struct, rax))? != NOT_CALLED;
        Ok(is_made && self.is_mark(offset_of!(libc::user_regs_struct, orig_rax))?)
    }

    /// Runs the thread instruction by instruction until it makes the call of a mark, and counts.
    fn step_to_mark(&mut self) -> Result<Steps, TraceError> {
        let (mut steps, mut last) = (Steps::default(), None);
        let mut signal = 0;
        loop {
            let at = self.register(offset_of!(libc::user_regs_struct, rip))?;
            let kind = self.kind(at)?;
            let is_end = kind == Kind::SystemCall && self.is_mark(offset_of!(libc::user_regs_struct, rax))?;
            if !is_end && (kind != Kind::Repeated || last != Some(at)) {
                steps.add(kind);
            }
            last = Some(at);
            self.ask(libc::PTRACE_SINGLESTEP, 0, signal as u64)?;
            signal = match self.wait(self.thread)?.1 {
                Stop::Signal(number) => number,
                Stop::Ended => return Err(TraceError::Failed("an exit between two marks".to_owned())),
                Stop::Trap | Stop::SystemCall => 0,
            };
            if is_end {
                return Ok(steps);
            }
        }
    }

    fn kind(&mut self, at: u64) -> Result<Kind, TraceError> {
        if let Some(kind) = self.kinds.get(&at) {
            return Ok(*kind);
        }
        let mut code = [0; 16];
        for (word, place) in code.chunks_exact_mut(8).zip([at, at + 8]) {
            // The second one may lie behind the end of the program.
            let bytes = self.ask(libc::PTRACE_PEEKTEXT, place, 0).unwrap_or_default();
            word.copy_from_slice(&bytes.to_le_bytes());
        }
        let kind = Kind::of(code);
        self.kinds.insert(at, kind);
        Ok(kind)
    }

    /// Whether the thread is at the call of a mark, whose number is in this register.
    fn is_mark(&self, number: usize) -> Result<bool, TraceError> {
        let is_call = self.register(number)? == libc::SYS_personality as u64;
        Ok(is_call && self.register(offset_of!(libc::user_regs_struct, rdi))? & QUERY == QUERY)
    }

    fn register(&self, at: usize) -> Result<u64, TraceError> {
        let at = offset_of!(libc::user, regs) + at;
        Ok(self.ask(libc::PTRACE_PEEKUSER, at as u64, 0)? as u64)
    }

    fn ask(&self, request: libc::c_uint, address: u64, data: u64) -> Result<c_long, TraceError> {
        call(request, self.thread, address, data).map_err(TraceError::Refused)
    }

    /// Waits until a thread stops; -1 stands for any of the child's.
    fn wait(&self, thread: i32) -> Result<(i32, Stop), TraceError> {
        let mut status = 0;
        let waited = loop {
            // Children that other threads of this process have started are theirs.
            let flags = libc::__WALL | libc::__WNOTHREAD;
            // SAFETY: a place for the status.
            let waited = unsafe { libc::waitpid(thread, &raw mut status, flags) };
            if waited >= 0 {
                break waited;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(TraceError::Refused(error));
            }
        };
        if libc::WIFSTOPPED(status) {
            let stop = match libc::WSTOPSIG(status) {
                signal if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
                libc::SIGTRAP => Stop::Trap,
                signal => Stop::Signal(signal),
            };
            return Ok((waited, stop));
        }
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Ok((waited, Stop::Ended)),
            (true, code) => Err(TraceError::Failed(format!("exit status {code}"))),
            (false, _) => Err(TraceError::Failed(format!("signal {}", libc::WTERMSIG(status)))),
        }
    }
}

fn call(request: libc::c_uint, of: i32, address: u64, data: u64) -> io::Result<c_long> {
    // Requests that read return what they have read, so that only this shows a failure.
    // SAFETY: the place of the thread's error number.
    unsafe { *libc::__errno_location() = 0 };
    let (address, data): (*mut u8, *mut u8) = (
        ptr::without_provenance_mut(address as usize),
        ptr::without_provenance_mut(data as usize),
    );
    // SAFETY: requests without pointers to memory of this process.
    let result = unsafe { libc::ptrace(request, of, address, data) };
    // SAFETY: as above.
    match unsafe { *libc::__errno_location() } {
        0 => Ok(result),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &[u8]) -> Kind {
        let mut bytes = [0x90; 16];
        bytes[..code.len()].copy_from_slice(code);
        Kind::of(bytes)
    }

    #[test]
    fn instructions_are_what_they_are() {
        assert_eq!(kind(&[0x0f, 0x05]), Kind::SystemCall);
        // lock xadd [rdi], rax; xchg [rdi], eax; xchg rax, rbx; mfence; lfence
        assert_eq!(kind(&[0xf0, 0x48, 0x0f, 0xc1, 0x07]), Kind::Locked);
        assert_eq!(kind(&[0x87, 0x07]), Kind::Locked);
        assert_eq!(kind(&[0x48, 0x87, 0xd8]), Kind::Plain);
        assert_eq!(kind(&[0x0f, 0xae, 0xf0]), Kind::Locked);
        assert_eq!(kind(&[0x0f, 0xae, 0xe8]), Kind::Plain);
        // rdtsc; rdtscp
        assert_eq!(kind(&[0x0f, 0x31]), Kind::ClockRead);
        assert_eq!(kind(&[0x0f, 0x01, 0xf9]), Kind::ClockRead);
        // call [rax+8]; call r11; call rel32; jmp rax
        assert_eq!(kind(&[0xff, 0x50, 0x08]), Kind::IndirectCall);
        assert_eq!(kind(&[0x41, 0xff, 0xd3]), Kind::IndirectCall);
        assert_eq!(kind(&[0xe8, 0, 0, 0, 0]), Kind::Plain);
        assert_eq!(kind(&[0xff, 0xe0]), Kind::Plain);
        // rep movsb; rep ret
        assert_eq!(kind(&[0xf3, 0xa4]), Kind::Repeated);
        assert_eq!(kind(&[0xf3, 0xc3]), Kind::Plain);
    }

    #[test]
    fn a_part_of_a_child_is_counted_and_nothing_else() {
        const CHILD: &str = "DOORBELL_TEST_STEPS";
        let test = "steps::tests::a_part_of_a_child_is_counted_and_nothing_else";
        if std::env::var_os(CHILD).is_some() {
            use std::sync::atomic::{AtomicU64, Ordering};
            let count = AtomicU64::new(0);
            for rounds in [3, 5] {
                count.fetch_add(1, Ordering::Relaxed);
                mark();
                for _ in 0..rounds {
                    count.fetch_add(1, Ordering::Relaxed);
                    // SAFETY: it has no arguments.
                    unsafe { libc::getppid() };
                }
                mark();
            }
            return;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", test, "--test-threads=1", "--nocapture"])
            .env(CHILD, "1");
        let parts = match trace(&mut command) {
            Ok(parts) => parts,
            Err(error @ TraceError::Refused(_)) => {
                return doorbell_testing::skipped(test, &error.to_string());
            }
            Err(error) => panic!("{error}"),
        };
        let counts: Vec<_> = parts
            .iter()
            .map(|part| (part.locked, part.system_calls))
            .collect();
        assert_eq!(counts, [(3, 3), (5, 5)]);
        assert!(parts[0].instructions < parts[1].instructions);
    }
}
