//! What the PML adds to one short message, the driver taken out (design, section 10: at most 100 ns for the
//! pair).

use criterion::{Criterion, criterion_group, criterion_main};
use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_pml::{RailId, Rank};
use std::hint::black_box;

mod null;

fn messages(criterion: &mut Criterion) {
    for payload in [8, 64] {
        let (from, into) = (
            ConstLoan::of_static(vec![0; payload].leak()),
            MutLoan::of_static(vec![0; payload].leak()),
        );
        let mut group = criterion.benchmark_group(format!("pml/{payload}"));
        let mut pml = null::pml(7, payload);
        // The window counts: a real receiver reports, the null rail does not, so a fresh PML now and then.
        let mut left = 1u64 << 28;
        group.bench_function("send", |bencher| {
            bencher.iter(|| {
                left -= 1;
                if left == 0 {
                    pml = null::pml(7, payload);
                    left = 1 << 28;
                }
                black_box(pml.send_loan(Rank(1), 0, 7, black_box(from)))
            });
        });
        let mut pml = null::pml(7, payload);
        group.bench_function("receive-match-complete", |bencher| {
            bencher.iter(|| receive(&mut pml, into));
        });
        let mut pml = null::pml(7, payload);
        group.bench_function("pair", |bencher| {
            bencher.iter(|| {
                let _ = black_box(pml.send_loan(Rank(1), 0, 7, black_box(from)));
                receive(&mut pml, into);
            });
        });
        let mut pml = null::pml(7, payload);
        group.bench_function("empty-poll", |bencher| bencher.iter(|| black_box(pml.poll())));
        group.finish();
    }
}

fn receive(pml: &mut doorbell_pml::Pml<doorbell_sim::NullRail>, into: MutLoan) {
    let request = pml
        .recv_loan(Rank(1).into(), 0, 7, 0, black_box(into))
        .expect("posted");
    if let Some(rail) = pml.rail_mut(RailId(0)) {
        rail.ready = true;
    }
    while !pml.is_done(request) {
        pml.poll();
    }
    black_box(pml.test(request)).expect("ended").expect("succeeded");
}

criterion_group!(benches, messages);
criterion_main!(benches);
