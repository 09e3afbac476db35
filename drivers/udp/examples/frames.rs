//! Frames and bytes a second from one end to the other, by length, with and without runs of frames in one
//! piece.
//!
//! ```text
//! cargo run --release -p doorbell-udp --example frames                       # udp:lo
//! cargo run --release -p doorbell-udp --example frames -- udp:v0@a udp:v1@b
//! ```
//!
//! The receiver returns a credit for every frame, 32 at a time on the priority channel, and at most 512 KiB
//! are on their way: nothing is lost, and what is counted has arrived.

mod common;

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{End, both};
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::Body;
use doorbell_fabric::rail::Rail;
use doorbell_udp::{UdpConfig, UdpStats};

const TIME: Duration = Duration::from_millis(400);
/// The longest frames are whole parts of the longest datagram: several fit into one piece.
const LENGTHS: [usize; 10] = [64, 512, 1400, 4096, 8184, 9354, 10_912, 16_368, 32_746, 65_000];
const CREDIT: usize = 32;
const IN_FLIGHT: usize = 512 << 10;

static LENGTH: AtomicUsize = AtomicUsize::new(0);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_else(|| "udp:lo".to_owned());
    let second = arguments.next().unwrap_or_else(|| first.clone());
    println!("{first} to {second}");
    println!(
        "{:>7} {:>10} {:>12} {:>10} {:>14} {:>14}",
        "bytes", "offloads", "frames/s", "MB/s", "frames/send", "frames/receive"
    );
    for length in LENGTHS {
        for runs in [false, true] {
            let config = UdpConfig {
                gso: runs,
                gro: runs,
                frame: 65_507,
                ..UdpConfig::default()
            };
            LENGTH.store(length, Ordering::Relaxed);
            let [sent, received] = both([first.clone(), second.clone()], config, run)?;
            let (Some((_, sent)), Some((rate, received))) = (sent, received) else {
                continue;
            };
            println!(
                "{length:>7} {:>10} {rate:>12.0} {:>10.0} {:>14.1} {:>14.1}",
                if runs { "on" } else { "off" },
                rate * length as f64 / 1e6,
                sent.sent as f64 / sent.send_calls as f64,
                received.received as f64 / received.receive_calls as f64,
            );
        }
    }
    Ok(())
}

/// Frames a second, and what the rail counted; `None` where frames are not that long.
fn run(mut end: End) -> Option<(f64, UdpStats)> {
    let length = LENGTH.load(Ordering::Relaxed);
    if length > end.rail.capabilities().limits.message {
        return None;
    }
    end.barrier.wait();
    let rate = if end.side == 0 {
        send(&mut end, length)
    } else {
        receive(&mut end)
    };
    end.barrier.wait();
    Some((rate, end.rail.stats()))
}

fn send(end: &mut End, length: usize) -> f64 {
    let message = vec![7; length];
    let (tx, rx) = end.rail.split();
    let most = (IN_FLIGHT / length).clamp(2 * CREDIT, 4096);
    let (start, mut sent, mut returned) = (Instant::now(), 0, 0);
    while start.elapsed() < TIME {
        let room = tx.reserve(Channel::Data, (returned + most - sent).min(64));
        for _ in 0..room {
            tx.post(Channel::Data, end.peer, b"", Body::Bytes(&message))
                .expect("reserved");
        }
        sent += room;
        tx.doorbell();
        returned += CREDIT * rx.poll(Channel::Priority, 64);
    }
    // A frame of no bytes ends it; it is sent often enough to arrive.
    for _ in 0..100 {
        tx.reserve(Channel::Data, 1);
        tx.post(Channel::Data, end.peer, b"", Body::Empty)
            .expect("reserved");
        tx.doorbell();
        std::thread::sleep(Duration::from_micros(100));
    }
    0.0
}

fn receive(end: &mut End) -> f64 {
    let (tx, rx) = end.rail.split();
    let (mut start, mut frames, mut credit) = (None, 0usize, 0);
    loop {
        let n = rx.poll(Channel::Data, 64);
        for i in 0..n {
            let empty = rx
                .frame(Channel::Data, i)
                .is_none_or(|frame| frame.bytes.is_empty());
            if empty {
                let time = start.unwrap_or_else(Instant::now).elapsed();
                return frames as f64 / time.as_secs_f64();
            }
        }
        if n > 0 && start.is_none() {
            start = Some(Instant::now());
        }
        (frames, credit) = (frames + n, credit + n);
        if credit >= CREDIT {
            let room = tx.reserve(Channel::Priority, credit / CREDIT);
            for _ in 0..room {
                tx.post(Channel::Priority, end.peer, b"credit", Body::Empty)
                    .expect("reserved");
            }
            tx.doorbell();
            credit -= room * CREDIT;
        }
    }
}
