//! Messages over rails and messages of the control plane, in one process: neither waits for the other's
//! progress.
//!
//! The tests do not slow a thread down: they block it, until the part that must not depend on it is over.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::common::{MODES, config, job, pattern};
use doorbell::Builder;
use doorbell::config::Mode;
use doorbell::oob::bytes::Bytes;
use doorbell::oob::config::{Config, Transport};
use doorbell::oob::event::Status;
use doorbell::oob::lines::tcp::Settings;
use doorbell::oob::name::{Epoch, From, Name};
use doorbell::oob::plane::Oob;

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 200;

/// The control planes of two processes, connected to each other.
fn planes() -> [Oob; 2] {
    let both = [0, 1].map(|rank| {
        let config = Config::new(Name::new(9, rank), Epoch(1), 2, vec![Transport::direct("tcp")]);
        Oob::start(config, Settings::default(), None, Default::default()).unwrap()
    });
    let contacts: Vec<_> = both
        .iter()
        .map(|oob| oob.contact().unwrap().wait(LIMIT).flatten().unwrap())
        .collect();
    both.iter().for_each(|oob| oob.learn(contacts.clone()).unwrap());
    both
}

/// Sends `count` messages each way, one after the other.
fn talk([one, two]: &[Oob; 2], count: u32) {
    for nth in 0..count {
        for (from, to) in [(one, two), (two, one)] {
            let body = Bytes::from(&nth.to_be_bytes());
            let receive = to.receive(From::only(from.name()), TAG).unwrap();
            let sent = from.send(to.name(), TAG, body.clone(), None).unwrap();
            assert_eq!(&*receive.wait(LIMIT).unwrap().unwrap().body, &*body);
            assert_eq!(sent.wait(LIMIT), Some(Ok(Status::Delivered)));
        }
    }
}

/// Blocks until a message comes, or until its sender is dropped.
fn stand_still(until: &Receiver<()>) {
    let _ = until.recv();
}

/// The thread that waits for a message makes its progress, so it blocks inside that wait.
#[test]
fn a_blocked_thread_of_messages_does_not_delay_the_control_plane() {
    let planes = planes();
    let (release, released) = channel::<()>();
    let (tell, stands) = channel();
    let waits = thread::spawn(move || {
        let mut hook = Some(move || {
            tell.send(()).unwrap();
            stand_still(&released);
        });
        let world = Builder::new()
            .without_environment()
            .configure(|config| {
                config.progress.mode.set(Mode::Inline);
                config.wait.quiet.set(Duration::from_millis(1));
                config.wait.deadline.set(Duration::from_millis(50));
            })
            .on_quiet(move |_| {
                if let Some(hook) = hook.take() {
                    hook();
                }
            })
            .build()
            .unwrap();
        world.recv(0, 1, &mut [0; 4]).unwrap_err().code().to_owned()
    });
    stands.recv_timeout(LIMIT).unwrap();
    talk(&planes, 500);
    assert!(!waits.is_finished(), "it was blocked all the time");
    drop(release);
    assert_eq!(waits.join().unwrap(), "timeout");
    planes.iter().for_each(|oob| oob.finish(LIMIT));
}

/// A function on the thread of the control plane must not block; this one does.
#[test]
fn a_blocked_control_plane_does_not_delay_messages() {
    for mode in MODES {
        let planes = planes();
        let (release, released) = channel::<()>();
        let (tell, stands) = channel();
        planes[1]
            .receive_then(From::ANYBODY, TAG, move |message| {
                tell.send(message.unwrap().body.len()).unwrap();
                stand_still(&released);
            })
            .unwrap();
        let sent = planes[0]
            .send(planes[1].name(), TAG, b"stop".into(), None)
            .unwrap();
        assert_eq!(stands.recv_timeout(LIMIT), Ok(4));
        let late = planes[0]
            .send(planes[1].name(), TAG + 1, b"late".into(), None)
            .unwrap();
        job(2, &config(mode), |world| {
            let other = 1 - world.rank();
            for nth in 0..500_u32 {
                let size = if nth % 50 == 0 { 100_000 } else { 64 };
                let (mut into, data) = (vec![0; size], pattern(nth, size));
                if world.rank() == 0 {
                    world.send(other, 1, &data).unwrap();
                    world.recv(other, 1, &mut into).unwrap();
                } else {
                    world.recv(other, 1, &mut into).unwrap();
                    world.send(other, 1, &into).unwrap();
                }
                assert!(into == data, "{mode:?}: message {nth}");
            }
        });
        assert_eq!(late.take(), None, "the control plane was blocked all the time");
        drop(release);
        for sent in [sent, late] {
            assert_eq!(sent.wait(LIMIT), Some(Ok(Status::Delivered)));
        }
        planes.iter().for_each(|oob| oob.finish(LIMIT));
    }
}
