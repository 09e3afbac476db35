//! Slabs (take, look, give back) and descriptor rings (post, complete, poll), on one thread.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_ring::desc::{Bit, Layout, device};
use doorbell_ring::slab::{Buffers, SharedBuffers, Slab};
use doorbell_ring::storage::Area;

const SLOTS: usize = 1024;

fn slabs(c: &mut Criterion) {
    let mut group = c.benchmark_group("slab");
    group.throughput(Throughput::Elements(1));
    let mut slab = Slab::<[u64; 4]>::new(SLOTS).expect("memory");
    group.bench_function("values: insert, get, remove", |b| {
        b.iter(|| {
            let handle = slab.insert(black_box([7; 4])).expect("the slab is empty");
            let seen = slab.get(handle).map(|value| value[0]);
            (seen, slab.remove(handle).is_ok())
        })
    });
    let mut buffers = Buffers::new(SLOTS, 2048).expect("memory");
    group.bench_function("buffers: take, look, give back", |b| {
        b.iter(|| {
            let handle = buffers.take().expect("the slab is empty");
            let seen = buffers.get(handle).map(|bytes| bytes[0]);
            (seen, buffers.give_back(handle).is_ok())
        })
    });
    let area = Area::heap(SLOTS * 2048).expect("memory");
    let mut buffers = SharedBuffers::new(area, 2048).expect("memory");
    group.bench_function("shared buffers: take, look, give back", |b| {
        b.iter(|| {
            let handle = buffers.take().expect("the slab is empty");
            let seen = buffers.get(handle).map(|bytes| bytes.read::<8>(0));
            (seen, buffers.give_back(handle).is_ok())
        })
    });
    group.finish();
}

enum Entry {}

impl Layout for Entry {
    const NAME: &'static str = "bench";
    const COLOUR: Option<Bit> = Some(Bit::new(15, 7));
}

fn descriptors(c: &mut Criterion) {
    let mut group = c.benchmark_group("desc");
    group.throughput(Throughput::Elements(1));
    let area = || Area::heap(SLOTS * 16).expect("memory");
    let (mut posts, _device) = device::posts::<Entry, 16>(area(), SLOTS).expect("memory");
    group.bench_function("post, doorbell, complete", |b| {
        b.iter(|| {
            let slot = posts.post(black_box([7; 16])).expect("the ring is empty");
            (posts.doorbell(), posts.complete(slot).is_ok())
        })
    });
    let (mut queue, mut device) = device::completions::<Entry, 16>(area(), SLOTS).expect("memory");
    group.bench_function("device completes, poll", |b| {
        b.iter(|| {
            device.complete(black_box([7; 16]));
            queue.poll()
        })
    });
    group.bench_function("poll, nothing there", |b| b.iter(|| black_box(&mut queue).poll()));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = slabs, descriptors
}
criterion_main!(benches);
