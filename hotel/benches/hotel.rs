//! The cost of check-in and check-out, of a tick at which no guest is due, and of an eviction.
//!
//! `cargo bench -p doorbell-hotel`. All on virtual time, with stays of 200 µs. The budget "hotel, 4 Ki rooms"
//! is the rows "one guest" and "window" at 4096 (the window's own queue is in it); the rows "and tick" also
//! pass the time, 10 ns a round.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use doorbell_hotel::{Hotel, Key};

const ROOMS: [usize; 3] = [16, 4096, 65536];
const STAY: u64 = 200_000;
const START: u64 = 1 << 40;

/// A hotel with one room left; guests booked one after the other, a nanosecond apart.
fn crowded(rooms: usize, stay: u64) -> (Hotel<u64>, VecDeque<Key>) {
    let mut hotel = Hotel::new(rooms, START).expect("memory");
    let mut keys = VecDeque::with_capacity(rooms);
    for at in 0..rooms as u64 - 1 {
        keys.push_back(hotel.check_in(at, START + stay + at).expect("a vacancy"));
    }
    (hotel, keys)
}

fn reception(c: &mut Criterion) {
    let mut group = c.benchmark_group("check in, check out");
    group.throughput(Throughput::Elements(1));
    for rooms in ROOMS {
        // One guest comes and goes; the others stay.
        let (mut hotel, _keys) = crowded(rooms, STAY);
        group.bench_function(BenchmarkId::new("one guest", rooms), |b| {
            b.iter(|| {
                let key = hotel
                    .check_in(black_box(7), black_box(START + STAY))
                    .expect("a vacancy");
                hotel.check_out(black_box(key))
            })
        });
        // A full window: the newest comes, the oldest goes.
        let (mut hotel, mut keys) = crowded(rooms, STAY);
        group.bench_function(BenchmarkId::new("window", rooms), |b| {
            b.iter(|| {
                keys.push_back(
                    hotel
                        .check_in(black_box(7), black_box(START + STAY))
                        .expect("a vacancy"),
                );
                keys.pop_front().map(|key| hotel.check_out(key))
            })
        });
        let (mut hotel, mut keys) = crowded(rooms, 100 * STAY);
        let mut now = START;
        group.bench_function(BenchmarkId::new("window, and tick", rooms), |b| {
            b.iter(|| {
                now += 10;
                assert!(hotel.evict(now).is_none());
                let deadline = black_box(now + 100 * STAY);
                keys.push_back(hotel.check_in(black_box(7), deadline).expect("a vacancy"));
                keys.pop_front().map(|key| hotel.check_out(key))
            })
        });
        let (mut hotel, keys) = crowded(rooms, STAY);
        let mut round = 0;
        group.bench_function(BenchmarkId::new("re-book", rooms), |b| {
            b.iter(|| {
                round = (round + 1) % keys.len();
                hotel.re_book(keys[round], black_box(START + STAY + round as u64))
            })
        });
    }
    group.finish();
}

fn ticks(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick");
    for rooms in ROOMS {
        let (mut hotel, _keys) = crowded(rooms, 1 << 60);
        let mut now = START;
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("nobody due", rooms), |b| {
            b.iter(|| {
                now += 10;
                black_box(&mut hotel).evict(black_box(now))
            })
        });
        let (mut hotel, _keys) = crowded(rooms, STAY);
        group.bench_function(BenchmarkId::new("next deadline", rooms), |b| {
            b.iter(|| black_box(&mut hotel).next_deadline())
        });
        group.throughput(Throughput::Elements(rooms as u64 - 1));
        group.bench_function(BenchmarkId::new("all due at once, per guest", rooms), |b| {
            b.iter_batched_ref(
                || crowded(rooms, STAY).0,
                |hotel| {
                    hotel.tick(START + 2 * STAY, |evicted| {
                        let _ = black_box(evicted);
                    })
                },
                BatchSize::PerIteration,
            )
        });
        group.bench_function(BenchmarkId::new("one after the other, per guest", rooms), |b| {
            b.iter_batched_ref(
                || crowded(rooms, STAY).0,
                |hotel| {
                    for now in START + STAY..START + STAY + rooms as u64 {
                        let _ = black_box(hotel.evict(now));
                    }
                },
                BatchSize::PerIteration,
            )
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = reception, ticks
}
criterion_main!(benches);
