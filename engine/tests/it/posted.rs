//! Non-blocking sends in a row over a rail whose doorbell is a system call: they may wait for each other, but
//! only until the next call that waits, tests, receives or makes progress.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::job;
use doorbell::config::Mode;
use doorbell::{Request, World};

/// More than leave one by one; fewer than leave together without a further call, or than the window admits at
/// the beginning.
const COUNT: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `count` messages have arrived, without a call by the sender.
fn until(here: &AtomicUsize, count: usize, what: &str) {
    let start = Instant::now();
    while here.load(Ordering::Acquire) < count {
        let so_far = here.load(Ordering::Acquire);
        assert!(
            start.elapsed() < PATIENCE,
            "{so_far} of {count} have arrived after {what}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Posts `count` messages inside a scope, does `inside` there and `outside` after it; then checks that all
/// arrive.
fn check(
    what: &str,
    count: usize,
    inside: impl Fn(&World, &mut Vec<Request<'_>>) + Sync,
    outside: impl Fn(&World) + Sync,
    stays: bool,
) {
    let mut config = crate::common::config(Mode::Inline);
    config.set("rails.list", "udp:lo").unwrap();
    config.set("udp.port", "0").unwrap();
    let (here, over) = (AtomicUsize::new(0), AtomicUsize::new(0));
    job(2, &config, |world| {
        let mut byte = [0];
        if world.rank() == 1 {
            world.recv(0, 1, &mut byte).unwrap();
            world.send(0, 1, &byte).unwrap();
            for n in 0..count {
                let mut number = [0; 8];
                world.recv(0, 2, &mut number).unwrap();
                assert_eq!(u64::from_le_bytes(number), n as u64, "in the order of posting");
                here.fetch_add(1, Ordering::Release);
            }
            world.send(0, 3, &byte).unwrap();
            until(&over, 1, "the other is done");
            return;
        }
        world.send(1, 1, &byte).unwrap();
        world.recv(1, 1, &mut byte).unwrap();
        let numbers: Vec<[u8; 8]> = (0..count as u64).map(u64::to_le_bytes).collect();
        world
            .scope(|scope| {
                let posted = numbers.iter().map(|number| scope.isend(1, 2, number));
                let mut posted = posted.collect::<Result<Vec<_>, _>>()?;
                inside(&world, &mut posted);
                if stays {
                    until(&here, count, what);
                }
                Ok(())
            })
            .unwrap();
        outside(&world);
        until(&here, count, what);
        over.store(1, Ordering::Release);
    });
}

fn nothing(_: &World) {}

#[test]
fn one_leaves_without_another_call() {
    check("no call", 1, |_, _| (), nothing, true);
}

#[test]
fn waiting_messages_leave_with_the_next_call() {
    let wait = |_: &World, posted: &mut Vec<Request<'_>>| _ = posted.pop().unwrap().wait().unwrap();
    check("a wait for the last", COUNT, wait, nothing, true);
    let all = |world: &World, posted: &mut Vec<Request<'_>>| world.wait_all(posted).unwrap();
    check("a wait for all", COUNT, all, nothing, true);
    let any = |world: &World, posted: &mut Vec<Request<'_>>| _ = world.wait_any(posted).unwrap();
    check("a wait for any", COUNT, any, nothing, true);
    let test = |_: &World, posted: &mut Vec<Request<'_>>| _ = posted[0].test().unwrap().unwrap();
    check("a test", COUNT, test, nothing, true);
    let progress = |world: &World, _: &mut Vec<Request<'_>>| _ = world.progress();
    check("progress", COUNT, progress, nothing, true);
    let receive = |world: &World, _: &mut Vec<Request<'_>>| _ = world.recv(1, 3, &mut [0]).unwrap();
    check("a receive", COUNT, receive, nothing, true);
    let send = |world: &World, _: &mut Vec<Request<'_>>| world.send(1, 4, &[0]).unwrap();
    check("a blocking send", COUNT, send, nothing, true);
    check("the end of the scope", COUNT, |_, _| (), nothing, false);
}

#[test]
fn messages_of_send_more_leave_with_progress() {
    let more = |world: &World| {
        for n in 1..5u64 {
            world.send_more(1, 2, &n.to_le_bytes()).unwrap();
        }
        world.progress();
    };
    // The first is posted, and the others follow by `send_more`.
    let mut config = crate::common::config(Mode::Inline);
    config.set("rails.list", "udp:lo").unwrap();
    let here = AtomicUsize::new(0);
    job(2, &config, |world| {
        let mut number = [0; 8];
        if world.rank() == 0 {
            world.send(1, 2, &number).unwrap();
            world.recv(1, 2, &mut number).unwrap();
            more(&world);
            until(&here, 1, "progress");
        } else {
            world.recv(0, 2, &mut number).unwrap();
            world.send(0, 2, &number).unwrap();
            (1..5).for_each(|_| _ = world.recv(0, 2, &mut number).unwrap());
            here.store(1, Ordering::Release);
        }
    });
}

/// The BTL's window, which begins with 32 frames, would close after a few if acknowledgements were not read
/// until all is posted.
#[test]
fn posting_many_messages_reads_acknowledgements_meanwhile() {
    const LONG: usize = 60_000;
    let mut config = crate::common::config(Mode::Inline);
    config.set("rails.list", "udp:lo").unwrap();
    let mut worlds = doorbell::local(2, &config).unwrap();
    let (one, zero) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    let bytes = crate::common::pattern(1, LONG);
    // Receives one message; this thread drives the sender, too.
    let take = |tag: u64, helped: bool| {
        let (mut into, start) = (vec![0; LONG], Instant::now());
        one.scope(|scope| {
            let mut receive = scope.irecv(0, tag, &mut into)?;
            while receive.test().is_none() {
                assert!(start.elapsed() < PATIENCE, "message {tag} does not arrive");
                if helped {
                    zero.progress();
                }
            }
            Ok(())
        })
        .unwrap();
        assert!(into == bytes, "message {tag}");
    };
    let sent = zero.scope(|scope| {
        let _first = scope.isend(1, 0, &bytes)?;
        take(0, true);
        for tag in 1..60 {
            let _posted = scope.isend(1, tag, &bytes)?;
            take(tag, false);
        }
        Ok(())
    });
    sent.unwrap();
}
