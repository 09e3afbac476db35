//! The cost of the pieces that every message uses: copies of short messages, the clock, a counter, a key.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::counters::{CounterFile, Place, Plan};
use doorbell_fabric::domain::KeyTable;
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{Access, Exposure, PeerIndex};

/// Short copies as the stack makes them against the library's, both with a length that the compiler does not
/// know.
fn copies(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("copy");
    let source = [7u8; 256];
    let mut target = [0u8; 256];
    for length in [1usize, 3, 6, 8, 12, 16, 17, 24, 32, 48, 64, 128] {
        group.bench_with_input(BenchmarkId::new("ours", length), &length, |bench, &length| {
            bench.iter(|| {
                let shared = SharedBytes::of(&source).take(black_box(length));
                shared.copy_to(0, black_box(&mut target))
            });
        });
        group.bench_with_input(BenchmarkId::new("library", length), &length, |bench, &length| {
            bench.iter(|| {
                let length = black_box(length).min(256);
                black_box(&mut target)[..length].copy_from_slice(&source[..length]);
                length
            });
        });
    }
    group.finish();
}

fn clock(bench: &mut Criterion) {
    for (name, clock) in [("tsc", Clock::start()), ("system", Clock::system())] {
        bench.bench_function(&format!("clock/{name}/now"), |bench| bench.iter(|| clock.now()));
        bench.bench_function(&format!("clock/{name}/ticks"), |bench| {
            bench.iter(|| clock.ticks())
        });
        bench.bench_function(&format!("clock/{name}/ordered"), |bench| {
            bench.iter(|| clock.ticks_ordered())
        });
    }
}

fn counters(bench: &mut Criterion) {
    let plan = Plan::new().counter("count", "").histogram("spread", "ns");
    let file = CounterFile::create(&Place::Memory, 0, &plan).expect("memory for a page");
    let counter = file.counter("count").expect("planned above");
    let histogram = file.histogram("spread").expect("planned above");
    bench.bench_function("counter/add", |bench| bench.iter(|| counter.add(black_box(1))));
    let mut value = 1u64;
    bench.bench_function("counter/record", |bench| {
        bench.iter(|| {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            histogram.record(value >> 40);
        });
    });
}

fn keys(bench: &mut Criterion) {
    let mut table = KeyTable::new(4096).expect("random numbers");
    let memory = Exposure::Region(Region::new(4096).expect("memory for a page").whole());
    let exposed = (0..1000).map(|_| table.expose(memory.clone(), Access::Read, None).expect("room"));
    let exposed: Vec<_> = exposed.collect();
    let mut at = 0;
    bench.bench_function("key/check", |bench| {
        bench.iter(|| {
            at = (at + 1) % exposed.len();
            table
                .check(PeerIndex(0), black_box(&exposed[at]), Access::Read)
                .map(|permit| permit.len())
        });
    });
    bench.bench_function("key/expose+withdraw", |bench| {
        bench.iter(|| {
            let remote = table.expose(memory.clone(), Access::Read, None).expect("room");
            table.withdraw(doorbell_fabric::message::RemoteKey(remote.key.get()))
        });
    });
}

criterion_group!(all, copies, clock, counters, keys);
criterion_main!(all);
