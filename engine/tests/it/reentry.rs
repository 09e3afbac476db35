//! What a hook may do to the world that calls it: nothing that could keep a buffer.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::MODES;
use doorbell::config::Mode;
use doorbell::{Builder, Error, World};

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
    static WORLD: Cell<Option<&'static World>> = const { Cell::new(None) };
    static CODES: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// A world of one rank that calls the hook at once.
fn world(mode: Mode, hook: impl FnMut() + Send + 'static) -> World {
    let mut hook = hook;
    Builder::new()
        .without_environment()
        .configure(move |config| {
            config.progress.mode.set(mode);
            config.wait.quiet.set(Duration::from_millis(1));
            config.wait.deadline.set(Duration::from_millis(60));
        })
        .on_quiet(move |_| hook())
        .build()
        .unwrap()
}

fn code<T>(result: Result<T, Error>) -> &'static str {
    match result {
        Ok(_) => "none",
        Err(Error::Busy) => "busy",
        Err(Error::Timeout(_)) => "timeout",
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_hook_that_calls_back_is_refused_and_lends_nothing() {
    let world: &'static World = Box::leak(Box::new(world(Mode::Inline, || {
        let Some(world) = WORLD.get() else { return };
        let mut into = [0; 4];
        let mut called = false;
        let codes = [
            code(world.send(0, 1, b"four")),
            code(world.ssend(0, 1, b"four")),
            code(world.recv(0, 1, &mut into)),
            code(world.barrier()),
            code(world.scope(|s| {
                called = true;
                s.irecv(0, 1, &mut into)?.wait()
            })),
        ];
        assert!(
            !called,
            "a scope that could not take its buffers back does not begin"
        );
        CODES.with_borrow_mut(|all| all.extend(codes));
    })));
    WORLD.set(Some(world));
    // In a blocking call; in a wait of a scope, with two requests open; at the end of a scope.
    let (mut one, mut two) = ([0; 4], [0; 4]);
    assert_eq!(code(world.recv(0, 7, &mut one)), "timeout");
    let ended = world.scope(|s| {
        let first = s.irecv(0, 7, &mut one)?;
        std::mem::forget(s.irecv(0, 8, &mut two)?);
        assert_eq!(code(first.wait()), "timeout");
        Ok(())
    });
    assert_eq!(code(ended), "timeout");
    WORLD.set(None);
    let codes = CODES.take();
    assert!(codes.len() >= 15, "the hook was called each time: {codes:?}");
    assert!(
        codes.iter().all(|code| *code == "busy" || *code == "none"),
        "{codes:?}"
    );
    assert!(
        codes.iter().filter(|code| **code == "busy").count() >= 12,
        "{codes:?}"
    );
    // Everything was taken back, and the world goes on.
    (one, two) = (*b"mine", *b"mine");
    world.send(0, 7, b"late").unwrap();
    world.send(0, 8, b"late").unwrap();
    assert_eq!((&one, &two), (b"mine", b"mine"), "no receive is left behind");
    world.recv(0, 7, &mut one).unwrap();
    world.recv(0, 8, &mut two).unwrap();
    assert_eq!((&one, &two), (b"late", b"late"));
}

#[test]
fn a_hook_that_panics_leaves_no_buffer_behind() {
    for mode in MODES {
        ARMED.set(true);
        let world = world(mode, || assert!(!ARMED.get(), "in the hook"));
        let (mut one, mut two) = ([0; 4], [0; 4]);
        let panics = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();
        assert!(panics(&mut || _ = world.recv(0, 7, &mut one)));
        assert!(panics(&mut || {
            let _ = world.scope(|s| {
                std::mem::forget(s.irecv(0, 8, &mut two)?);
                s.irecv(0, 7, &mut one)?.wait()
            });
        }));
        ARMED.set(false);
        (one, two) = (*b"mine", *b"mine");
        world.send(0, 7, b"late").unwrap();
        world.send(0, 8, b"late").unwrap();
        assert_eq!((&one, &two), (b"mine", b"mine"), "no receive is left behind");
        world.recv(0, 7, &mut one).unwrap();
        world.recv(0, 8, &mut two).unwrap();
        assert_eq!((&one, &two), (b"late", b"late"));
    }
}
