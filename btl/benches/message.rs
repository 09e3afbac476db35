//! What the BTL adds to one short message, the driver taken out: two BTLs over a driver that hands frames
//! over in memory, against the same frames over that driver alone (design, section 10: at most 100 ns
//! together with the PML).

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, Message};
use doorbell_fabric::rail::Rail;

mod pair;

use pair::{lane, two};

fn messages(criterion: &mut Criterion) {
    for payload in [24, 64, 1024] {
        let bytes = vec![1; payload];
        let mut group = criterion.benchmark_group(format!("btl/{payload}"));
        // The driver alone: the same frames, posted and looked at.
        let [mut a, mut b] = lane::pair(true);
        let to = a.open(&b.address(), Incarnation(2)).expect("it is there");
        group.bench_function("driver alone", |bencher| {
            bencher.iter(|| {
                let (tx, _) = a.split();
                tx.reserve(Channel::Priority, 1);
                let _ = black_box(tx.post(Channel::Priority, to, &[0; 24], Body::Bytes(black_box(&bytes))));
                tx.doorbell();
                let (_, rx) = b.split();
                assert_eq!(rx.poll(Channel::Priority, 1), 1);
                black_box(rx.frame(Channel::Priority, 0));
            });
        });
        for (name, checked, mac) in [
            ("", true, false),
            (", CRC-32C", false, false),
            (", MAC", true, true),
        ] {
            let mut pair = two(checked, mac);
            let mut n = 0u64;
            // Back and forth: acknowledgements ride along. Two messages an iteration.
            group.bench_function(format!("back and forth, two messages{name}"), |bencher| {
                bencher.iter(|| {
                    pair.send(0, &bytes);
                    pair.receive(1);
                    pair.send(1, &bytes);
                    pair.receive(0);
                    n += 1;
                    if n.is_multiple_of(32) {
                        pair.tick();
                    }
                });
            });
        }
        let mut pair = two(true, false);
        let mut n = 0u64;
        group.bench_function("one way", |bencher| {
            bencher.iter(|| {
                pair.send(0, &bytes);
                pair.receive(1);
                n += 1;
                if n.is_multiple_of(32) {
                    pair.tick();
                    for (end, sink) in pair.ends.iter_mut().zip(&mut pair.sinks) {
                        end.poll(1, sink);
                    }
                }
            });
        });
        group.finish();
    }
    let mut pair = two(true, false);
    criterion.bench_function("btl/empty poll", |bencher| {
        bencher.iter(|| pair.ends[0].poll(1, &mut pair.sinks[0]))
    });
}

criterion_group!(benches, messages);
criterion_main!(benches);
