//! A scope that cannot keep its promise does not return: it ends the process, which the test therefore starts
//! for itself.

use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::{env, mem, process};

/// Names the way in which the process leaves the scope.
const CHILD: &str = "SCOPE_TEST_LEAVES_BY";
/// The number of SIGABRT everywhere on Linux.
const ABORTED: i32 = 6;

/// Leaves a scope while the core is held, which no call from outside this crate can bring about.
fn leave_while_held(by_panic: bool) {
    let world = crate::init().unwrap();
    let mut into = [0; 8];
    let _ = catch_unwind(AssertUnwindSafe(|| {
        world.scope(|s| {
            mem::forget(s.irecv(0, 1, &mut into)?);
            mem::forget(world.engine().hold()?);
            assert!(!by_panic, "by panic");
            Ok(())
        })
    }));
    // The memory would be ours again here, with a receive still posted into it.
    process::exit(0);
}

#[test]
fn a_scope_that_cannot_take_its_buffers_back_does_not_return() {
    if let Some(how) = env::var_os(CHILD) {
        leave_while_held(how == "panic");
    }
    let this = "scope::tests::a_scope_that_cannot_take_its_buffers_back_does_not_return";
    for how in ["return", "panic"] {
        let ended = Command::new(env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture"])
            .env(CHILD, how)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.signal(), Some(ABORTED), "by {how}: {stderr}");
        assert!(
            stderr.contains("doorbell: a scope ends with buffers lent"),
            "{stderr}"
        );
    }
}

#[test]
fn a_scope_without_open_requests_needs_no_engine() {
    let world = crate::init().unwrap();
    let mut into = [0; 8];
    let held = world.scope(|s| {
        let receive = s.irecv(0, 1, &mut into)?;
        world.send(0, 1, b"to me...")?;
        receive.wait()?;
        world.engine().hold()
    });
    assert!(held.is_ok(), "nothing was left to take back");
    drop(held);
    assert_eq!(&into, b"to me...");
}
