//! Half round trips over a rail beside those over bare connected sockets, both busy, in one run.
//!
//! ```text
//! cargo run --release -p doorbell-udp --example raw_pingpong                       # udp:lo, 8 bytes
//! cargo run --release -p doorbell-udp --example raw_pingpong -- 64 udp:v0@a udp:v1@b
//! ```
//!
//! Blocks of exchanges alternate between the two, so that both see the same machine; each block gives one
//! quotient, and the median of those is the result. Both ends poll the two channels of the rail in turn, as
//! the BTL does.

mod common;

use std::error::Error;
use std::time::Instant;

use common::{End, both};
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::Body;
use doorbell_udp::UdpConfig;

const BLOCKS: usize = 200;
const EXCHANGES: u32 = 500;
const LONGEST: usize = 1024;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    if bytes > LONGEST {
        return Err(format!("at most {LONGEST} bytes").into());
    }
    let first = arguments.next().unwrap_or_else(|| "udp:lo".to_owned());
    let second = arguments.next().unwrap_or_else(|| first.clone());
    println!("{first} to {second}, {bytes} bytes, {BLOCKS} blocks of {EXCHANGES} exchanges");
    BYTES.store(bytes, std::sync::atomic::Ordering::Relaxed);
    let [pairs, _] = both([first, second], UdpConfig::default(), run)?;
    let mut quotients: Vec<f64> = pairs.iter().map(|[raw, rail]| rail / raw).collect();
    let [mut raw, mut rail] = [0, 1].map(|i| pairs.iter().map(|pair| pair[i]).collect::<Vec<f64>>());
    println!("half round trip, ns     least   median");
    println!(
        "bare sockets        {:>9.0}{:>9.0}",
        least(&raw),
        median(&mut raw)
    );
    println!(
        "rail                {:>9.0}{:>9.0}",
        least(&rail),
        median(&mut rail)
    );
    println!(
        "rail / bare: {:.3} (median of the blocks' quotients)",
        median(&mut quotients)
    );
    Ok(())
}

static BYTES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(8);

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of a half round trip: bare, over the rail; one pair a block.
fn run(mut end: End) -> Vec<[f64; 2]> {
    let bytes = BYTES.load(std::sync::atomic::Ordering::Relaxed);
    // The first block warms everything up.
    let pairs = (0..=BLOCKS).map(|_| [timed(&mut end, bytes, bare), timed(&mut end, bytes, over_rail)]);
    pairs.skip(1).collect()
}

fn timed(end: &mut End, bytes: usize, exchange: fn(&mut End, usize)) -> f64 {
    end.barrier.wait();
    let start = Instant::now();
    for _ in 0..EXCHANGES {
        exchange(end, bytes);
    }
    start.elapsed().as_nanos() as f64 / f64::from(2 * EXCHANGES)
}

fn bare(end: &mut End, bytes: usize) {
    let mut buffer = [0; LONGEST];
    if end.side == 0 {
        end.raw.send(&buffer[..bytes]).expect("sent");
    }
    while end.raw.recv(&mut buffer).is_err() {}
    if end.side == 1 {
        end.raw.send(&buffer[..bytes]).expect("sent");
    }
}

fn over_rail(end: &mut End, bytes: usize) {
    let message = [0; LONGEST];
    let (tx, rx) = end.rail.split();
    let mut send = || {
        assert_eq!(tx.reserve(Channel::Priority, 1), 1);
        tx.post(Channel::Priority, end.peer, &message[..bytes], Body::Empty)
            .expect("reserved");
        tx.doorbell();
    };
    if end.side == 0 {
        send();
    }
    while rx.poll(Channel::Priority, 16) + rx.poll(Channel::Data, 16) == 0 {}
    if end.side == 1 {
        send();
    }
}
