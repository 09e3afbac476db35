//! The whole software path on one thread, so that no cache line moves between cores: what is left is
//! instructions.
//!
//! * `shm`: two worlds of one thread; a message is sent by the one, received by the other, and back: a
//!   whole exchange, two messages.
//! * `recorder`: what recording one sample costs, and the summary of a million.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use doorbell::Config;
use doorbell_bench::stats::Recorder;

const SIZES: [usize; 3] = [8, 64, 1024];

fn shm(c: &mut Criterion) {
    let worlds = doorbell::local(2, &Config::default()).expect("two worlds over shared memory");
    let mut group = c.benchmark_group("shm");
    for bytes in SIZES {
        let body = vec![7; bytes];
        let mut into = vec![0; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{bytes} B"), |b| {
            b.iter(|| {
                for (from, to) in [(0, 1), (1, 0)] {
                    worlds[from as usize].send(to, 7, black_box(&body)).expect("sent");
                    worlds[to as usize]
                        .recv(from, 7, black_box(&mut into))
                        .expect("received");
                }
            });
        });
    }
    group.finish();
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
    targets = shm, recorder
}
criterion_main!(benches);
