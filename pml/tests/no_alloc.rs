//! After a warm-up, no message costs an allocation: counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use doorbell_fabric::caps::Features;
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_pml::{
    MultiArgs, Payload, Pml, Protocol, Rank, RecvArgs, SendArgs, SendMode, Sent, Source, Target,
};

#[path = "it/pair.rs"]
mod pair;

use pair::Pair;

struct Counting;

thread_local! {
    // Of this thread alone: the test harness has threads of its own, which allocate when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more, and nothing that we ask about.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `at` came from `alloc` above, so from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn features(get: bool, put: bool) -> Features {
    Features {
        get,
        put,
        atomics: false,
        gather: true,
        reclaim: true,
        within_host: false,
        checksum: false,
    }
}

/// Runs `round` often to warm up, then often again, and counts.
fn steady(what: &str, mut round: impl FnMut()) {
    (0..300).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..300).for_each(|_| round());
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!(allocations, 0, "{what}: in 300 rounds");
}

fn finish<M: doorbell_fabric::message::Message>(pml: &mut Pml<M>, sent: Sent) {
    if let Sent::Pending(id) = sent {
        pml.test(id).expect("it has ended").expect("it succeeded");
    }
}

/// One test, because the counter counts all threads.
#[test]
fn steady_state_allocates_nothing() {
    let room = MutLoan::of_static(vec![0; 100_000].leak());
    let out = ConstLoan::of_static(&[7; 100_000]);
    let into = Region::new(100_000).unwrap();

    for length in [0, 8, 64, 4000] {
        let mut pair = Pair::new(features(false, false), |_| ());
        steady("expected eager", || {
            let request = pair
                .b
                .recv_loan(Rank(0).into(), 0, 1, 0, room.part(0, length))
                .unwrap();
            let sent = pair.a.send_loan(Rank(1), 0, 1, out.part(0, length)).unwrap();
            pair.settle();
            finish(&mut pair.a, sent);
            pair.b.test(request).unwrap().unwrap();
        });
        steady("unexpected eager, any source, with an ignore mask", || {
            for tag in 0..4 {
                finish(&mut pair.a, Sent::Done);
                let _ = pair.a.send_loan(Rank(1), 0, tag, out.part(0, length)).unwrap();
            }
            pair.settle();
            for _ in 0..4 {
                let request = pair.b.recv_loan(Source::Any, 0, 0, 3, room).unwrap();
                pair.b.test(request).unwrap().unwrap();
            }
        });
        steady("injected and to ourselves", || {
            pair.a.inject(Rank(0), 0, 9, &[7; 32]).unwrap();
            let request = pair.a.recv_loan(Source::Any, 0, 9, 0, room).unwrap();
            pair.a.test(request).unwrap().unwrap();
        });
    }

    for (protocol, get, put) in [
        (Protocol::Fragments, false, false),
        (Protocol::Get, true, false),
        (Protocol::Put, false, true),
    ] {
        let mut pair = Pair::new(features(get, put), |config| config.protocol = protocol);
        for expected in [true, false] {
            steady("long", || {
                let args = || SendArgs {
                    to: Rank(1),
                    context: 0,
                    tag: 1,
                    payload: Payload::Loan(out),
                    mode: SendMode::Synchronous,
                    notify: true,
                };
                let receive = |pair: &mut Pair| {
                    let args = RecvArgs {
                        from: Rank(0).into(),
                        context: 0,
                        tag: 1,
                        ignore: 0,
                        target: Target::Loan(room),
                        notify: true,
                    };
                    pair.b.recv(args).unwrap()
                };
                if expected {
                    receive(&mut pair);
                }
                let _ = pair.a.send(args()).unwrap();
                pair.settle();
                if !expected {
                    receive(&mut pair);
                    pair.settle();
                }
                for pml in [&mut pair.a, &mut pair.b] {
                    let id = pml.next_completion().expect("it has ended");
                    pml.test(id).unwrap().unwrap();
                }
            });
        }
    }

    // Out of regions and into regions, whose slices go along: short, long by fragments, long by a get.
    for (length, get) in [(64, false), (100_000, false), (100_000, true)] {
        let mut pair = Pair::new(features(get, false), |_| ());
        steady("regions", || {
            let args = RecvArgs {
                from: Rank(0).into(),
                context: 0,
                tag: 1,
                ignore: 0,
                target: Target::Region(into.whole()),
                notify: false,
            };
            let request = pair.b.recv(args).unwrap();
            let payload = match get {
                true => Payload::Loan(out),
                false => Payload::Region(into.slice(0, length).unwrap()),
            };
            let args = SendArgs {
                to: Rank(1),
                context: 0,
                tag: 1,
                payload,
                mode: SendMode::Standard,
                notify: false,
            };
            let sent = pair.a.send(args).unwrap();
            pair.settle();
            finish(&mut pair.a, sent);
            pair.b.test(request).unwrap().unwrap();
        });
    }

    let mut pair = Pair::new(features(false, false), |config| config.window = 8 << 10);
    steady("a multi-receive of short messages under credit", || {
        let args = MultiArgs {
            from: Source::Any,
            context: 0,
            tag: 1,
            ignore: 0,
            target: Target::Loan(room.part(0, 1000)),
            min_free: 1,
            notify: false,
        };
        let request = pair.b.recv_multi(args).unwrap();
        for _ in 0..10 {
            pair.a.inject(Rank(1), 0, 1, &[3; 100]).unwrap();
        }
        pair.settle();
        while pair.b.next_delivery().is_some() {}
        pair.b.test(request).unwrap().unwrap();
    });
}
