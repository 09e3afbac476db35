//! The whole software path on one thread, so that no cache line moves between cores: what is left is instructions.
//!
//! * `shm`, `sim`: two worlds of one thread; a message is sent by the one and received by the other.
//! * `recorder`: what recording one sample costs, and the summary of a million.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell::sim::{SimConfig, SimNet};
use doorbell::{Config, World};
use doorbell_bench::stats::Recorder;

const SIZES: [usize; 3] = [8, 64, 1024];

fn messages(c: &mut Criterion, name: &str, worlds: &[World]) {
    let mut group = c.benchmark_group(name);
    for bytes in SIZES {
        let body = vec![7; bytes];
        let mut into = vec![0; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{bytes} B"), |b| {
            b.iter(|| {
                worlds[0].send(1, 7, black_box(&body)).expect("sent");
                worlds[1].recv(0, 7, black_box(&mut into)).expect("received").len
            });
        });
    }
    group.finish();
}

fn shm(c: &mut Criterion) {
    let worlds = doorbell::local(2, &Config::default()).expect("two worlds over shared memory");
    messages(c, "shm", &worlds);
}

fn sim(c: &mut Criterion) {
    let net = SimNet::new(42, SimConfig::default());
    let worlds = doorbell::simulated(&net, 2, &Config::default()).expect("two simulated worlds");
    messages(c, "sim", &worlds);
}

fn recorder(c: &mut Criterion) {
    let mut recorder = Recorder::new();
    let mut nanos = 100;
    c.bench_function("recorder/record", |b| {
        b.iter(|| {
            nanos = (nanos * 7 + 13) % 100_000;
            recorder.record(black_box(nanos));
        });
    });
    (0..1_000_000).for_each(|n| recorder.record(n % 50_000));
    c.bench_function("recorder/percentiles", |b| {
        b.iter(|| black_box(recorder.percentiles()))
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = shm, sim, recorder
}
criterion_main!(benches);
