//! Runs one operation this often, to count instructions: build with `cargo bench --no-run`, then `valgrind
//! --tool=callgrind count-… receive 1000` and again with 21000; the difference of the totals divided by 20000
//! is the cost of one, with the loop. Operations: `send`, `receive` (post, poll, match, test), `poll`
//! (empty).

use std::env;
use std::hint::black_box;

use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_pml::{RailId, Rank};

mod null;

fn main() {
    let mut arguments = env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let what = arguments.next().unwrap_or_else(|| "receive".to_owned());
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(1);
    let payload: usize = arguments.next().and_then(|bytes| bytes.parse().ok()).unwrap_or(8);
    let (from, into) = (
        ConstLoan::of_static(vec![0; payload].leak()),
        MutLoan::of_static(vec![0; payload].leak()),
    );
    let mut pml = null::pml(7, payload);
    for _ in 0..count {
        match what.as_str() {
            "send" => {
                let _ = black_box(pml.send_loan(Rank(1), 0, 7, black_box(from)));
            }
            "poll" => {
                black_box(pml.poll());
            }
            _ => {
                let request = pml
                    .recv_loan(Rank(1).into(), 0, 7, 0, black_box(into))
                    .expect("posted");
                if let Some(rail) = pml.rail_mut(RailId(0)) {
                    rail.ready = true;
                }
                pml.poll();
                black_box(pml.test(request)).expect("ended").expect("succeeded");
            }
        }
    }
}
