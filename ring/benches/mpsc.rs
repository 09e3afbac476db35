//! Our mailbox beside crossbeam's ArrayQueue (which also allows many receivers), in one run.
//!
//! * `single`: one send and one receive, on one thread.
//! * `hand over`: one sender, one receiver, pinned to two cores, per value; needs two idle cores.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
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

fn handed_over(n: u64, send: impl Fn(u64) -> bool + Send, mut recv: impl FnMut() -> Option<u64>) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    std::thread::scope(|scope| {
        let far = cores.get(1).copied();
        scope.spawn(move || {
            far.map(core_affinity::set_for_current);
            for i in 0..n {
                while !send(i) {
                    spin_loop();
                }
            }
        });
        cores.first().copied().map(core_affinity::set_for_current);
        let begun = Instant::now();
        for _ in 0..n {
            while recv().is_none() {
                spin_loop();
            }
        }
        begun.elapsed()
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
