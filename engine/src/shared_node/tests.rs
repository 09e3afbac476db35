//! The lock and the thread of a shared node, over a node whose rails are counters.

use std::sync::atomic::AtomicU32;
use std::time::Instant;

use doorbell_fabric::clock;
use doorbell_job::config::Config;
use doorbell_job::wait::turns::Patience;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::*;

/// What the tests see and steer.
#[derive(Debug, Default)]
struct Rail {
    /// Passes of the progress thread.
    passes: AtomicU32,
    /// Passes of the owner.
    own_passes: AtomicU32,
    /// Work that a pass finds, one piece in each.
    work: AtomicU32,
    /// Whether each pass finds work, and takes a millisecond.
    floods: AtomicBool,
    /// Whether a pass of the thread takes its time.
    is_slow: AtomicBool,
    /// Whether a pass of the thread panics.
    panics: AtomicBool,
    sleeps: AtomicU32,
    /// Whether the rails are armed.
    armed: AtomicBool,
    dropped: AtomicBool,
}

impl Rail {
    fn take(&self) -> usize {
        let less = |work: u32| work.checked_sub(1);
        let taken = self.work.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        usize::from(taken.is_ok())
    }

    fn count(counter: &AtomicU32) -> u32 {
        counter.load(Ordering::SeqCst)
    }
}

/// A node whose descriptor never becomes readable.
struct Node {
    rail: Arc<Rail>,
    never: OwnedFd,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.rail.dropped.store(true, Ordering::SeqCst);
    }
}

impl PollableNode for Node {
    fn poll(&mut self) -> usize {
        self.rail.own_passes.fetch_add(1, Ordering::SeqCst);
        self.rail.take()
    }

    fn progress(&mut self, _: Time) -> usize {
        0
    }

    fn wants_time(&self) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self, each: &mut dyn FnMut(BorrowedFd<'_>)) -> bool {
        assert!(!self.rail.armed.swap(true, Ordering::SeqCst), "armed twice");
        self.rail.sleeps.fetch_add(1, Ordering::SeqCst);
        each(self.never.as_fd());
        false
    }

    fn disarm(&mut self) {
        self.rail.armed.store(false, Ordering::SeqCst);
    }

    fn lost(&mut self) -> Option<(u32, DownReason)> {
        None
    }

    fn ended(&mut self, _: u32, _: DownReason) {}

    fn flush(&mut self) {}

    fn forget_held(&mut self) {}

    fn holds_back(&mut self) -> bool {
        false
    }

    fn give_up_held(&mut self) {}

    fn close(&mut self, _: Time, _: Time) -> bool {
        true
    }

    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_cut_off(&self) -> bool {
        false
    }

    fn recorded(&self, _: u32) -> Vec<String> {
        Vec::new()
    }
}

impl Beside for Node {
    fn poll_beside(&mut self) -> usize {
        self.rail.passes.fetch_add(1, Ordering::SeqCst);
        assert!(!self.rail.panics.load(Ordering::SeqCst), "as a handler");
        if self.rail.floods.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
            return 1;
        }
        let found = self.rail.take();
        if self.rail.is_slow.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(50));
        }
        found
    }
}

fn shared(manner: Manner) -> (SharedNode<Node>, Arc<Rail>) {
    let rail = Arc::new(Rail::default());
    let node = Node {
        rail: Arc::clone(&rail),
        never: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
    };
    let clock = Clock::Machine(clock::Clock::start());
    let threaded = Threaded::start(node, 77, manner, clock, None).unwrap();
    (SharedNode::Shared(threaded), rail)
}

fn waiter() -> NodeWaiter {
    let config = Config::default();
    let clock = Clock::Machine(clock::Clock::start());
    let patience = Patience::of(&config.progress, true);
    NodeWaiter::new(clock, patience, &config, (0, 1))
}

/// Waits until something holds, which would be a hang otherwise.
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn sleeps(rail: &Rail) -> bool {
    rail.armed.load(Ordering::SeqCst)
}

const WHAT: Awaited = Awaited::Interface { what: "a test" };

#[test]
fn what_a_call_leaves_in_a_queue_is_taken_by_the_thread() {
    let (mut node, rail) = shared(Manner::default());
    for _ in 0..20 {
        until("the thread sleeps", || sleeps(&rail));
        // No descriptor shows this work, as that of events which a call has left in their queue.
        node.hold().rail.work.store(40, Ordering::SeqCst);
        until("all of it is done", || Rail::count(&rail.work) == 0);
    }
    assert_eq!(Rail::count(&rail.own_passes), 0);
}

/// The thread has looked, found nothing, and is about to sleep when a call leaves something.
#[test]
fn a_call_between_the_last_look_and_the_sleep_is_not_slept_over() {
    let (mut node, rail) = shared(Manner::default());
    for _ in 0..5 {
        rail.is_slow.store(false, Ordering::SeqCst);
        until("the thread sleeps", || sleeps(&rail));
        let before = Rail::count(&rail.passes);
        node.hold().rail.is_slow.store(true, Ordering::SeqCst);
        // The first pass is that of the housekeeping after a call, the second the last look.
        until("the last look", || Rail::count(&rail.passes) == before + 2);
        node.hold().rail.work.store(1, Ordering::SeqCst);
        until("it is done", || Rail::count(&rail.work) == 0);
    }
}

#[test]
fn a_wait_of_the_owner_makes_progress_itself_and_the_thread_none() {
    let (mut node, rail) = shared(Manner::default());
    let mut waiter = waiter();
    for _ in 0..5 {
        // The thread is in the middle of several looks.
        node.hold().rail.floods.store(true, Ordering::SeqCst);
        let before = Rail::count(&rail.passes);
        until("the thread works", || Rail::count(&rail.passes) >= before + 3);
        let (mut passes, began) = (None, Instant::now());
        let done = |node: &mut Node| {
            let now = Rail::count(&node.rail.passes);
            let first = *passes.get_or_insert(now);
            assert_eq!(now, first, "the thread works during a wait");
            node.rail.work.fetch_add(1, Ordering::SeqCst);
            (began.elapsed() > Duration::from_millis(50)).then_some(())
        };
        node.wait(&mut waiter, Duration::from_secs(30), WHAT, done)
            .unwrap();
    }
    assert!(Rail::count(&rail.own_passes) > 0);
    // What is left is the thread's again.
    rail.floods.store(false, Ordering::SeqCst);
    until("the rest is done", || Rail::count(&rail.work) == 0);
}

#[test]
fn a_wait_takes_the_lock_for_each_pass_alone() {
    let (mut node, rail) = shared(Manner::default());
    let mut waiter = waiter();
    let stop = Arc::new(AtomicBool::new(false));
    let SharedNode::Shared(threaded) = &node else {
        unreachable!()
    };
    let (shared, ends) = (Arc::clone(&threaded.shared), Arc::clone(&stop));
    let other = thread::spawn(move || {
        let mut taken = 0;
        while !ends.load(Ordering::SeqCst) {
            taken += u32::from(shared.state.try_lock().is_ok());
            thread::yield_now();
        }
        taken
    });
    let began = Instant::now();
    let done = |_: &mut Node| (began.elapsed() > Duration::from_millis(200)).then_some(());
    node.wait(&mut waiter, Duration::from_secs(30), WHAT, done)
        .unwrap();
    stop.store(true, Ordering::SeqCst);
    assert!(other.join().unwrap() > 0, "it was held all the time");
    assert!(Rail::count(&rail.own_passes) > 0);
}

#[test]
fn the_owner_gets_the_lock_after_the_pass_under_way() {
    for spins in [false, true] {
        let (mut node, rail) = shared(Manner { core: None, spins });
        node.hold().rail.floods.store(true, Ordering::SeqCst);
        let mut passes = Vec::new();
        for _ in 0..20 {
            let before = Rail::count(&rail.passes);
            until("the thread works", || Rail::count(&rail.passes) >= before + 3);
            let before = Rail::count(&rail.passes);
            drop(node.hold());
            passes.push(Rail::count(&rail.passes) - before);
        }
        passes.sort_unstable();
        // Some attempts are late because something else had the core.
        assert!(
            passes[10] <= 2,
            "passes of the thread before the owner's: {passes:?}"
        );
        // However late the owner's thread comes to take it, the thread leaves it the lock.
        let SharedNode::Shared(threaded) = &node else {
            unreachable!()
        };
        threaded.shared.wanted.store(true, Ordering::SeqCst);
        let before = Rail::count(&rail.passes);
        thread::sleep(Duration::from_millis(50));
        assert!(Rail::count(&rail.passes) <= before + 1);
        assert!(threaded.shared.state.try_lock().is_ok());
        threaded.shared.wanted.store(false, Ordering::SeqCst);
        until("the thread works again", || {
            Rail::count(&rail.passes) >= before + 3
        });
    }
}

#[test]
fn an_owner_that_waits_for_the_lock_wants_it() {
    let (mut node, rail) = shared(Manner::default());
    until("the thread sleeps", || sleeps(&rail));
    let SharedNode::Shared(threaded) = &node else {
        unreachable!()
    };
    let shared = Arc::clone(&threaded.shared);
    let held = shared.state.lock().unwrap();
    thread::scope(|s| {
        let owner = s.spawn(|| drop(node.hold()));
        until("it is wanted", || shared.wanted.load(Ordering::SeqCst));
        drop(held);
        owner.join().unwrap();
        assert!(!shared.wanted.load(Ordering::SeqCst));
    });
}

#[test]
fn the_thread_has_ended_before_the_node_is_dropped() {
    for floods in [false, true] {
        for _ in 0..20 {
            let (mut node, rail) = shared(Manner::default());
            node.hold().rail.floods.store(floods, Ordering::SeqCst);
            if floods {
                until("the thread works", || Rail::count(&rail.passes) > 0);
            }
            assert!(node.stop().is_none());
            let passes = Rail::count(&rail.passes);
            assert!(!rail.dropped.load(Ordering::SeqCst));
            drop(node);
            assert!(rail.dropped.load(Ordering::SeqCst));
            assert_eq!(Rail::count(&rail.passes), passes);
            assert_eq!(Arc::strong_count(&rail), 1);
        }
    }
}

fn message(panic: Payload) -> String {
    match panic.downcast::<&str>() {
        Ok(text) => (*text).to_owned(),
        Err(other) => other
            .downcast::<String>()
            .map_or_else(|_| String::new(), |text| *text),
    }
}

#[test]
fn a_panic_on_the_thread_goes_on_in_the_owners_next_call() {
    let (mut node, rail) = shared(Manner::default());
    until("the thread sleeps", || sleeps(&rail));
    rail.panics.store(true, Ordering::SeqCst);
    drop(node.hold());
    let SharedNode::Shared(threaded) = &node else {
        unreachable!()
    };
    let shared = Arc::clone(&threaded.shared);
    until("it has panicked", || shared.stop.load(Ordering::SeqCst));
    let panic = catch_unwind(AssertUnwindSafe(|| drop(node.hold()))).unwrap_err();
    assert!(message(panic).contains("as a handler"));
    // It is the owner's once; the node can be used without the thread.
    drop(node.hold());
    assert!(node.stop().is_none());
}

#[test]
fn a_panic_that_no_call_has_got_is_returned_at_the_end() {
    let (mut node, rail) = shared(Manner::default());
    until("the thread sleeps", || sleeps(&rail));
    rail.panics.store(true, Ordering::SeqCst);
    drop(node.hold());
    let SharedNode::Shared(threaded) = &node else {
        unreachable!()
    };
    let shared = Arc::clone(&threaded.shared);
    until("it has panicked", || shared.stop.load(Ordering::SeqCst));
    let panic = node.stop().expect("the panic");
    assert!(message(panic).contains("as a handler"));
}
