//! Ends of a domain that no client can bring about by itself: of a process, beside a call in another thread,
//! and of a call that panics.

use std::process::Command;
use std::sync::mpsc;

use doorbell_fabric::memory::MutLoan;
use doorbell_pml::{MultiArgs, Rank, Source, Target};

use super::*;
use crate::fence;
use crate::ops::{Mark, Operation};

/// An open domain, which a test may pass to another thread.
#[derive(Clone, Copy)]
struct Opened(*mut fid_domain);

// SAFETY: the tests make one call at a time, or by the lock.
unsafe impl Send for Opened {}

impl Opened {
    fn new(threading: fi_threading) -> Self {
        let (mut info, mut fabric, null) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let level = Level::NEWEST.version();
        // SAFETY: no hints are given.
        let found =
            unsafe { crate::info::getinfo(level, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut info) };
        assert_eq!(found, 0);
        // SAFETY: an entry has all its attributes.
        let attributes = unsafe { (*info).fabric_attr };
        // SAFETY: as above.
        let of_domain = unsafe { (*info).domain_attr };
        // SAFETY: as above.
        unsafe { (*of_domain).threading = threading };
        // SAFETY: the attributes are those of the entry.
        assert_eq!(unsafe { fabric::open(attributes, &raw mut fabric, null) }, 0);
        let mut domain = ptr::null_mut();
        // SAFETY: the fabric is open, and the entry is whole.
        assert_eq!(unsafe { open(fabric, info, &raw mut domain, null) }, 0);
        Self(domain)
    }

    fn domain(&self) -> &Domain {
        // SAFETY: it is open, and no test frees it.
        unsafe { of(self.0) }
    }

    fn run(self, work: impl FnOnce(&mut State) -> Result<c_int>) -> c_int {
        self.domain().run("a call", work)
    }
}

#[test]
fn the_end_of_the_process_waits_for_a_call_of_another_thread_and_keeps_later_ones_out() {
    for threading in [FI_THREAD_DOMAIN, FI_THREAD_SAFE] {
        let opened = Opened::new(threading);
        let (enters, entered) = mpsc::channel();
        let (lets_go, let_go) = mpsc::channel();
        std::thread::scope(|scope| {
            let call = scope.spawn(move || {
                opened.run(|state| {
                    enters.send(()).unwrap();
                    let () = let_go.recv().unwrap();
                    state.idle = 3;
                    Ok(7)
                })
            });
            entered.recv().unwrap();
            let mut leave = Leave::begin(opened.domain(), Instant::now()).unwrap();
            assert!(!leave.pass() && leave.turn.is_none(), "the call is under way");
            if threading == FI_THREAD_SAFE {
                assert_eq!(opened.run(|_| panic!("it is kept out")), -FI_EAGAIN);
            }
            lets_go.send(()).unwrap();
            assert_eq!(call.join().unwrap(), 7, "a call that has begun ends");
            while !leave.pass() {}
            assert!(leave.turn.is_some() && opened.domain().fence.is_leaving());
        });
        assert!(!opened.domain().fence.is_leaving());
        assert_eq!(opened.run(|_| panic!("it is kept out")), -FI_EAGAIN);
        // SAFETY: it is open; it stays as it is, since its end may still use it.
        assert_eq!(unsafe { close(opened.0.cast()) }, 0);
        assert!(Leave::begin(opened.domain(), Instant::now()).is_none());
    }
}

#[test]
fn a_call_that_does_not_return_is_waited_for_until_the_time_is_over() {
    let opened = Opened::new(FI_THREAD_DOMAIN);
    let answer = opened.run(|_| {
        // As in a handler of a signal that has interrupted a call, beside another thread.
        let long_ago = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        let mut leave = Leave::begin(opened.domain(), long_ago).unwrap();
        assert!(leave.pass() && leave.turn.is_none());
        Ok(0)
    });
    assert_eq!(answer, 0);
}

/// Set in the process that panics, whose log is read.
const CHILD: &str = "DOORBELL_TEST_PANIC";

#[test]
fn a_call_that_panics_fails_and_all_later_ones_and_the_log_has_the_reason() {
    let test = "domain::tests::a_call_that_panics_fails_and_all_later_ones_and_the_log_has_the_reason";
    if std::env::var_os(CHILD).is_some() {
        return panics();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {printed}", output.status);
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("panicked")).collect();
    assert_eq!(lines.len(), 1, "{printed}");
    for part in [
        "fi_cq_read has panicked",
        "closed to all operations",
        "index out of bounds",
    ] {
        assert!(lines[0].contains(part), "{part}: {printed}");
    }
}

/// Reads a queue in whose domain something is that cannot be.
fn panics() {
    fence::install();
    let opened = Opened::new(FI_THREAD_SAFE);
    let mut queue = ptr::null_mut();
    // SAFETY: the domain is open.
    let done = unsafe { fi_cq_open(opened.0, ptr::null_mut(), &raw mut queue, ptr::null_mut()) };
    assert_eq!(done, 0);
    let damaged = opened.run(|state| {
        // A message for a buffer that there is not.
        let args = MultiArgs {
            from: Source::Any,
            context: 0,
            tag: 0,
            ignore: 0,
            target: Target::Loan(MutLoan::of_static(vec![0; 8].leak())),
            min_free: 1,
            notify: true,
        };
        let request = state.member.pml().recv_multi(args).unwrap();
        state.member.pml().inject(Rank(0), 0, 0, &[1]).unwrap();
        let mark = Mark::MULTI;
        state.operations.put(Operation {
            context: 0,
            request,
            flags: 0,
            queue: cq::QueueIndex::NONE,
            endpoint: 0,
            mark,
            multi: 999,
        });
        Ok(0)
    });
    assert_eq!(damaged, 0);
    let mut entry: fi_cq_tagged_entry = Layout::zeroed();
    for _ in 0..2 {
        // SAFETY: the queue is open, and there is room for one entry.
        let read = unsafe { fi_cq_read(queue, (&raw mut entry).cast(), 1) };
        assert_eq!(read, -(FI_EOTHER as isize));
    }
    // SAFETY: the queue is open.
    assert_eq!(unsafe { fi_cq_signal(queue) }, -FI_EOTHER);
    // SAFETY: as above; it is closed once.
    assert_eq!(unsafe { fi_close(queue.cast()) }, 0);
    // SAFETY: the domain is open.
    assert_eq!(unsafe { close(opened.0.cast()) }, 0);
    // The end of the process does not touch it.
    exit::leave_all();
}

#[test]
fn a_rail_of_which_another_process_has_something_is_busy() {
    let (rail, reason, remedy) = (
        "xdp:eth0".into(),
        "it has another program".into(),
        "end it".into(),
    );
    let taken = RailError::Taken { rail, reason, remedy };
    assert_eq!(errno_of(&taken.into()), Errno(FI_EBUSY));
    let missing = RailError::Unusable {
        rail: "xdp:eth0".into(),
        reason: "it is down".into(),
        remedy: "set it up".into(),
    };
    assert_eq!(errno_of(&missing.into()), Errno(FI_EIO));
}
