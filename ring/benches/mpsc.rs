//! Our mailbox beside crossbeam's ArrayQueue (which also allows many receivers), in one run.
//!
//! * `single`: one send and one receive, on one thread.
//! * `hand over`: one sender, one receiver, pinned to two cores, per value; needs two idle cores.

use std::hint::{black_box, spin_loop};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use doorbell_ring::mpsc;

const SLOTS: usize = 256;

fn single(c: &mut Criterion) {
    let mut group = c.benchmark_group("mailbox/single");
    group.throughput(Throughput::Elements(1));
    let (sender, mut receiver) = mpsc::mailbox::<u64>(SLOTS).expect("a power of two");
    group.bench_function("doorbell", |b| {
        b.iter(|| (sender.send(black_box(7)).is_ok(), receiver.recv()))
    });
    let queue = ArrayQueue::<u64>::new(SLOTS);
    group.bench_function("crossbeam", |b| {
        b.iter(|| (queue.push(black_box(7)).is_ok(), queue.pop()))
    });
    group.finish();
}

/// Time for `n` values from one pinned thread to another; both sides spin. Both threads are new ones, so that
/// the harness itself stays where the system puts it.
fn handed_over(
    n: u64,
    send: impl Fn(u64) -> bool + Send,
    mut recv: impl FnMut() -> Option<u64> + Send,
) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (cores, start) = (&cores, &Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(move || {
            cores.get(1).map(|core| core_affinity::set_for_current(*core));
            start.wait();
            for i in 0..n {
                while !send(i) {
                    spin_loop();
                }
            }
        });
        let taker = scope.spawn(move || {
            cores.first().map(|core| core_affinity::set_for_current(*core));
            start.wait();
            let begun = Instant::now();
            for _ in 0..n {
                while recv().is_none() {
                    spin_loop();
                }
            }
            begun.elapsed()
        });
        taker.join().expect("the taker does not panic")
    })
}

fn hand_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("mailbox/hand over");
    group.throughput(Throughput::Elements(1));
    group.bench_function("doorbell", |b| {
        b.iter_custom(|n| {
            let (sender, mut receiver) = mpsc::mailbox::<u64>(SLOTS).expect("a power of two");
            handed_over(n, move |i| sender.send(i).is_ok(), move || receiver.recv())
        })
    });
    group.bench_function("crossbeam", |b| {
        b.iter_custom(|n| {
            let queue = Arc::new(ArrayQueue::<u64>::new(SLOTS));
            let far = Arc::clone(&queue);
            handed_over(n, move |i| far.push(i).is_ok(), move || queue.pop())
        })
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = single, hand_over
}
criterion_main!(benches);
