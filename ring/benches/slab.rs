//! Slabs (insert, get, remove), on one thread.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell_ring::slab::Slab;

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
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = slabs
}
criterion_main!(benches);
