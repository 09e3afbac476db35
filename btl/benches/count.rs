//! Runs one operation so often, to count instructions: build with `cargo bench --no-run`, then `valgrind
//! --tool=callgrind count-… exchange 1000` and again with 21000; the difference of the totals divided by
//! 20000 is the cost of one, with the loop. Operations: `exchange` (a message there and one back), `stream`
//! (one message one way), `driver` (a frame over the driver alone), `poll` (empty). The driver's cost is to
//! be subtracted: twice for an exchange. The second argument is the payload. The time of the best of many
//! short rounds is printed, which is of use on a busy machine, too.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // it measures

use std::env;
use std::hint::black_box;
use std::time::Instant;

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, Message};
use doorbell_fabric::rail::Rail;

mod pair;

use pair::{lane, two};

fn main() {
    let mut arguments = env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let what = arguments.next().unwrap_or_else(|| "exchange".to_owned());
    let mut number = |default| arguments.next().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (count, payload) = (number(1u64), number(24) as usize);
    let bytes = vec![1; payload];
    let mut pair = two(true, false);
    let [mut a, mut b] = lane::pair(true);
    let to = a.open(&b.address(), Incarnation(2)).expect("it is there");
    let mut round = |n: u64| {
        match what.as_str() {
            "driver" => {
                let (tx, _) = a.split();
                tx.reserve(Channel::Priority, 1);
                let _ = black_box(tx.post(Channel::Priority, to, &[0; 24], Body::Bytes(black_box(&bytes))));
                tx.doorbell();
                let (_, rx) = b.split();
                assert_eq!(rx.poll(Channel::Priority, 1), 1);
                black_box(rx.frame(Channel::Priority, 0));
                return;
            }
            "poll" => {
                black_box(pair.ends[0].poll(1, &mut pair.sinks[0]));
            }
            "stream" => {
                pair.send(0, &bytes);
                pair.receive(1);
            }
            _ => {
                pair.send(0, &bytes);
                pair.receive(1);
                pair.send(1, &bytes);
                pair.receive(0);
            }
        }
        if n.is_multiple_of(32) {
            pair.tick();
            for (end, sink) in pair.ends.iter_mut().zip(&mut pair.sinks) {
                end.poll(1, sink);
            }
        }
    };
    // The best of many short rounds: no other process ran then.
    let mut best = f64::MAX;
    let rounds = (count / 1000).max(1);
    for r in 0..rounds {
        let start = Instant::now();
        (0..count / rounds).for_each(|n| round(r * 1000 + n));
        best = best.min(start.elapsed().as_nanos() as f64 / (count / rounds) as f64);
    }
    println!("{what}, {payload} bytes: {best:.1} ns, best of {rounds} rounds");
}
