//! Our SPSC ring beside rtrb and crossbeam's ArrayQueue, in one run.
//!
//! * `single`: one push and one pop, on one thread: the instructions, without any cache-line transfer.
//! * `chunk`, `slice`: 64 values at a time, by iterator and by slice, on one thread.
//! * `stream`: two threads pinned to two cores, as fast as they can, per value; needs two idle cores.
//!
//! Budget: `single`, `chunk` and `slice` at least 0.97 of rtrb's rate.

use std::hint::{black_box, spin_loop};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use doorbell_ring::spsc;

const SLOTS: usize = 1024;
const CHUNK: usize = 64;

fn single(c: &mut Criterion) {
    let mut group = c.benchmark_group("single");
    group.throughput(Throughput::Elements(1));
    let (mut p, mut q) = spsc::ring::<u64>(SLOTS).expect("a power of two");
    group.bench_function("doorbell", |b| {
        b.iter(|| {
            let pushed = p.push(black_box(7));
            (pushed.is_ok(), q.pop())
        })
    });
    let (mut p, mut q) = rtrb::RingBuffer::<u64>::new(SLOTS);
    group.bench_function("rtrb", |b| {
        b.iter(|| {
            let pushed = p.push(black_box(7));
            (pushed.is_ok(), q.pop().ok())
        })
    });
    let queue = ArrayQueue::<u64>::new(SLOTS);
    group.bench_function("crossbeam", |b| {
        b.iter(|| {
            let pushed = queue.push(black_box(7));
            (pushed.is_ok(), queue.pop())
        })
    });
    group.finish();
}

fn chunk(c: &mut Criterion) {
    let mut group = c.benchmark_group("chunk");
    group.throughput(Throughput::Elements(CHUNK as u64));
    let (mut p, mut q) = spsc::ring::<u64>(SLOTS).expect("a power of two");
    group.bench_function("doorbell", |b| {
        b.iter(|| {
            let mut room = p.reserve(CHUNK);
            room.fill(black_box(0)..CHUNK as u64);
            room.commit();
            q.read(CHUNK).drain().fold(0u64, u64::wrapping_add)
        })
    });
    let (mut p, mut q) = rtrb::RingBuffer::<u64>::new(SLOTS);
    group.bench_function("rtrb", |b| {
        b.iter(|| {
            let room = p.write_chunk_uninit(CHUNK).expect("the ring is empty");
            room.fill_from_iter(black_box(0)..CHUNK as u64);
            let chunk = q.read_chunk(CHUNK).expect("the ring holds a chunk");
            chunk.into_iter().fold(0u64, u64::wrapping_add)
        })
    });
    group.finish();
}

fn slice(c: &mut Criterion) {
    let mut group = c.benchmark_group("slice");
    group.throughput(Throughput::Elements(CHUNK as u64));
    let (values, mut out) = ([7u64; CHUNK], [0u64; CHUNK]);
    let (mut p, mut q) = spsc::ring::<u64>(SLOTS).expect("a power of two");
    group.bench_function("doorbell", |b| {
        b.iter(|| (p.push_slice(black_box(&values)), q.pop_slice(&mut out)))
    });
    let (mut p, mut q) = rtrb::RingBuffer::<u64>::new(SLOTS);
    group.bench_function("rtrb", |b| {
        b.iter(|| {
            p.push_entire_slice(black_box(&values))
                .expect("the ring is empty");
            q.pop_entire_slice(&mut out).expect("the ring holds a slice");
        })
    });
    group.finish();
}

/// Time for `n` values from one pinned thread to another; both sides spin. Both threads are new ones, so that
/// the harness itself stays where the system puts it, and own their ends.
fn streamed(
    n: u64,
    mut push: impl FnMut(u64) -> bool + Send,
    mut pop: impl FnMut() -> Option<u64> + Send,
) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (cores, start) = (&cores, &Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(move || {
            cores.get(1).map(|core| core_affinity::set_for_current(*core));
            start.wait();
            for i in 0..n {
                while !push(i) {
                    spin_loop();
                }
            }
        });
        let taker = scope.spawn(move || {
            cores.first().map(|core| core_affinity::set_for_current(*core));
            start.wait();
            let begun = Instant::now();
            for i in 0..n {
                loop {
                    if let Some(value) = pop() {
                        assert_eq!(value, i);
                        break;
                    }
                    spin_loop();
                }
            }
            begun.elapsed()
        });
        taker.join().expect("the values came in order")
    })
}

fn stream(c: &mut Criterion) {
    let mut group = c.benchmark_group("stream");
    group.throughput(Throughput::Elements(1));
    group.bench_function("doorbell", |b| {
        b.iter_custom(|n| {
            let (mut p, mut q) = spsc::ring::<u64>(SLOTS).expect("a power of two");
            streamed(n, move |i| p.push(i).is_ok(), move || q.pop())
        })
    });
    group.bench_function("rtrb", |b| {
        b.iter_custom(|n| {
            let (mut p, mut q) = rtrb::RingBuffer::<u64>::new(SLOTS);
            streamed(n, move |i| p.push(i).is_ok(), move || q.pop().ok())
        })
    });
    group.bench_function("crossbeam", |b| {
        b.iter_custom(|n| {
            let queue = Arc::new(ArrayQueue::<u64>::new(SLOTS));
            let far = Arc::clone(&queue);
            streamed(n, move |i| far.push(i).is_ok(), move || queue.pop())
        })
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = single, chunk, slice, stream
}
criterion_main!(benches);
