//! Loom: every ordering of the mailbox.
//!
//! The tests with three threads are bounded to three preemptions: about 1 s for the file instead of about 25
//! s for the full exploration (which passes as well). Every ordering of the mailbox, when weakened, was still
//! caught.
#![cfg(loom)]

use doorbell_ring::mpsc::{self, Receiver, Refused, Sender};
use loom::thread;

fn bounded(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn send_waiting<T>(sender: &Sender<T>, mut value: T) {
    while let Err(refused) = sender.send(value) {
        value = refused.into_inner();
        thread::yield_now();
    }
}

fn recv_waiting<T>(receiver: &mut Receiver<T>) -> T {
    loop {
        match receiver.recv() {
            Some(value) => return value,
            None => thread::yield_now(),
        }
    }
}

/// Two senders race for positions; nothing is lost, doubled or torn.
#[test]
fn two_senders() {
    bounded(3, || {
        let (sender, mut receiver) = mpsc::mailbox::<Box<u32>>(2).unwrap();
        let senders: Vec<_> = (0..2)
            .map(|n| {
                let sender = sender.clone();
                thread::spawn(move || send_waiting(&sender, Box::new(n)))
            })
            .collect();
        let mut got = [*recv_waiting(&mut receiver), *recv_waiting(&mut receiver)];
        got.sort();
        assert_eq!(got, [0, 1]);
        assert!(receiver.recv().is_none());
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// More values than slots: a slot is written again as soon as the stamps allow.
#[test]
fn slots_are_used_again() {
    loom::model(|| {
        let (sender, mut receiver) = mpsc::mailbox::<u32>(2).unwrap();
        let handle = thread::spawn(move || {
            for n in 0..3 {
                send_waiting(&sender, n);
            }
        });
        for n in 0..3 {
            assert_eq!(recv_waiting(&mut receiver), n);
        }
        handle.join().unwrap();
    });
}

/// Two senders at a mailbox with one free slot: one gets in, the other is refused and keeps its value.
#[test]
fn full_hands_the_value_back() {
    bounded(3, || {
        let (sender, mut receiver) = mpsc::mailbox::<u32>(2).unwrap();
        sender.send(0).unwrap();
        let other = sender.clone();
        let handle = thread::spawn(move || other.send(1));
        let mine = sender.send(2);
        let theirs = handle.join().unwrap();
        let (in_box, back) = match (mine, theirs) {
            (Ok(()), Err(Refused::Full(back))) => (2, back),
            (Err(Refused::Full(back)), Ok(())) => (1, back),
            both => panic!("exactly one is refused: {both:?}"),
        };
        assert_eq!(in_box + back, 3);
        assert_eq!(receiver.recv(), Some(0));
        assert_eq!(receiver.recv(), Some(in_box));
    });
}

/// Once all senders are seen to be gone, all that they sent is there.
#[test]
fn abandoned_means_all_is_there() {
    bounded(3, || {
        let (sender, mut receiver) = mpsc::mailbox::<u32>(2).unwrap();
        let other = sender.clone();
        let first = thread::spawn(move || sender.send(1).unwrap());
        let second = thread::spawn(move || other.send(2).unwrap());
        if receiver.is_abandoned() {
            assert_eq!(receiver.recv().unwrap() + receiver.recv().unwrap(), 3);
        }
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// The receiver goes while a value is being sent: it is dropped exactly once, wherever it ended up.
#[test]
fn receiver_goes_first() {
    loom::model(|| {
        let counted = loom::sync::Arc::new(());
        let (sender, receiver) = mpsc::mailbox(2).unwrap();
        let value = counted.clone();
        let handle = thread::spawn(move || match sender.send(value) {
            Ok(()) | Err(Refused::Closed(_)) => {}
            Err(Refused::Full(_)) => panic!("nothing was sent before"),
        });
        drop(receiver);
        handle.join().unwrap();
        assert_eq!(loom::sync::Arc::strong_count(&counted), 1);
    });
}
