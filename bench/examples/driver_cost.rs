//! The cost of a frame in a driver, to be counted by callgrind: a batch of frames is posted with one doorbell
//! in [`post_frames`], and polled for in [`poll_frames`]; between them the device, or the kernel, has time.
//! The `igbvf` rail is over a model of its device, and so is the `usnic` one, whose model is a process of its
//! own and is not counted. Without callgrind, the time of both is printed.
//!
//! ```text
//! RUSTFLAGS="--cfg rustix_use_libc" cargo build --release -p doorbell-bench --example driver_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='*post_frames*' target/release/examples/driver_cost igbvf 200
//! ```
//!
//! (Valgrind shows no ELF header where the crate rustix looks for its own; with the C library it does not
//! look.) The count, divided by batches and by 16, is that of a frame. System calls count what they take in
//! user space alone.

#[path = "../../drivers/igbvf/tests/model/vf.rs"]
#[allow(dead_code)]
mod vf;
mod vic;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::time::Time;
use doorbell_igbvf::IgbvfConfig;
use doorbell_udp::{UdpConfig, UdpRail};
use doorbell_vfio::Claim;

/// Frames of a batch.
const BATCH: usize = 16;
/// Longer than a batch takes to arrive.
const ARRIVES: Duration = Duration::from_millis(20);

/// Posts a batch and rings once.
#[inline(never)]
fn post_frames<D: Datagram>(rail: &mut D, body: &[u8]) {
    let (tx, _) = rail.split();
    let room = tx.reserve(Channel::Data, BATCH);
    for _ in 0..room {
        let _ = tx.post(
            Channel::Data,
            PeerIndex(0),
            b"sixteen bytes of",
            Body::Bytes(body),
        );
    }
    tx.doorbell();
}

/// Looks at a batch that is there.
#[inline(never)]
fn poll_frames<D: Datagram>(rail: &mut D) -> usize {
    let (_, rx) = rail.split();
    let found = rx.poll(Channel::Data, BATCH);
    let looked = (0..found).filter_map(|at| rx.frame(Channel::Data, at));
    looked.map(|frame| frame.bytes.len()).sum()
}

/// What passed, and how long the two took, in all.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    bytes: usize,
    post: Duration,
    poll: Duration,
}

fn exchange<D: Datagram>(mut a: D, mut b: D, batches: usize, resolve: bool) -> Cost {
    let (to_a, to_b) = (a.address(), b.address());
    let known = a.open(&to_b, Incarnation(1)).and(b.open(&to_a, Incarnation(1)));
    known.expect("two rails on one wire know each other");
    let mut now = 0;
    for _ in 0..if resolve { 50 } else { 2 } {
        now += 10_000_000;
        for rail in [&mut a, &mut b] {
            rail.split().1.poll(Channel::Data, 1);
            rail.progress(Time::from_nanos(now));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut cost = Cost::default();
    for _ in 0..batches {
        let began = Instant::now();
        post_frames(&mut a, b"eight by");
        cost.post += began.elapsed();
        std::thread::sleep(ARRIVES);
        let began = Instant::now();
        cost.bytes += poll_frames(&mut b);
        cost.poll += began.elapsed();
        b.split().1.poll(Channel::Data, 0);
    }
    cost
}

fn igbvf(batches: usize) -> Cost {
    let wire = || -> vf::Wire { Arc::new(Mutex::new(VecDeque::new())) };
    let (there, back) = (wire(), wire());
    let ends = [
        vf::Vf::start([2, 0, 0, 0, 0, 1], &there, &back),
        vf::Vf::start([2, 0, 0, 0, 0, 2], &back, &there),
    ];
    let [a, b] = [0, 1].map(|number: usize| {
        let name = format!("igbvf:0000:01:10.{number}").parse().expect("a name");
        let config = IgbvfConfig {
            address: Some(format!("10.0.0.{}/24", number + 1)),
            ..IgbvfConfig::default()
        };
        let claim = Claim::connect(&ends[number].socket).expect("the model is there");
        doorbell_igbvf::over(&name, &config, claim).expect("the model works")
    });
    exchange(a, b, batches, true)
}

fn usnic(batches: usize) -> Cost {
    let vic = vic::Vic::start();
    exchange(vic.open("vf0"), vic.open("vf1"), batches, true)
}

fn udp(batches: usize) -> Cost {
    let name = "udp:lo".parse().expect("a name");
    let open = || UdpRail::open(&name, &UdpConfig::default()).expect("the loopback is there");
    exchange(open(), open(), batches, false)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == vic::ROLE) {
        vic::serve();
        return ExitCode::SUCCESS;
    }
    let [kind, batches] = &words[..] else {
        eprintln!("driver_cost: type `driver_cost igbvf|usnic|udp BATCHES`");
        return ExitCode::from(2);
    };
    let Ok(batches) = batches.parse() else {
        eprintln!("driver_cost: `{batches}` is no number of batches");
        return ExitCode::from(2);
    };
    let cost = match kind.as_str() {
        "igbvf" => igbvf(batches),
        "usnic" => usnic(batches),
        "udp" => udp(batches),
        _ => {
            eprintln!("driver_cost: `{kind}` is none of igbvf, usnic and udp");
            return ExitCode::from(2);
        }
    };
    let frames = batches * BATCH;
    println!("{} of {frames} frames", cost.bytes / 24);
    let each = |time: Duration| time.as_nanos() as f64 / frames.max(1) as f64;
    // After a sleep everything is cold: what a busy rail takes is less.
    println!(
        "post {:.0} ns, poll {:.0} ns a frame, after a sleep of {ARRIVES:?}",
        each(cost.post),
        each(cost.poll)
    );
    ExitCode::SUCCESS
}
