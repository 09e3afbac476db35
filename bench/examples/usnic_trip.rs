//! The time of a frame between two usnic rails of one modelled adapter, as a multiple of the bare exchange of
//! a cache line, and beside the udp rail over the loopback, in one run.
//!
//! ```text
//! cargo run --release -p doorbell-bench --example usnic_trip [ROUNDS]
//! ```
//!
//! Both ends are polled by this thread, and the model's engine looks for doorbells on another core: many
//! machines have no more than two cores. Each end in a process of its own would take three, and add the way
//! of the frame's bytes into another core's cache. Over udp the other core is not needed: the kernel does its
//! part in our own call. What is measured is the model and not an adapter.

mod vic;

use std::process::ExitCode;

use doorbell_bench::{baseline, pin};
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_udp::{UdpConfig, UdpRail};

/// Exchanges of a sample.
const BATCH: usize = 1_000;
/// Looks after which a frame is taken for lost.
const LOST: u32 = 200_000_000;
/// Shortest and usual payload: that of a short message with its head.
const BODY: &[u8] = b"thirty-two bytes of one message.";

fn hop<D: Datagram>(from: &mut D, to: &mut D) {
    let (tx, _) = from.split();
    assert_eq!(
        tx.reserve(Channel::Priority, 1),
        1,
        "a ring that is looked after has room"
    );
    tx.post(Channel::Priority, PeerIndex(0), &[], Body::Bytes(BODY))
        .expect("it is reserved");
    tx.doorbell();
    let (_, rx) = to.split();
    for _ in 0..LOST {
        if rx.poll(Channel::Priority, 1) > 0 {
            return;
        }
        std::hint::spin_loop();
    }
    panic!("a frame was lost");
}

/// Measures half round trips in nanoseconds, sorted: each the mean of a batch.
fn halves<D: Datagram>(mut a: D, mut b: D, clock: &Clock, rounds: usize) -> Vec<f64> {
    let (to_a, to_b) = (a.address(), b.address());
    let known = a.open(&to_b, Incarnation(1)).and(b.open(&to_a, Incarnation(1)));
    known.expect("two rails on one wire know each other");
    // ARP requests are sent, and answered.
    for _ in 0..100 {
        for rail in [&mut a, &mut b] {
            rail.split().1.poll(Channel::Data, 1);
            rail.progress(clock.now());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let mut all = Vec::new();
    for round in 0..=rounds {
        let began = clock.now();
        for _ in 0..BATCH {
            hop(&mut a, &mut b);
            hop(&mut b, &mut a);
        }
        let took = clock.now().since(began).as_nanos() as f64 / (2 * BATCH) as f64;
        // The first one warms up.
        if round > 0 {
            all.push(took);
        }
        a.progress(clock.now());
        b.progress(clock.now());
    }
    all.sort_unstable_by(f64::total_cmp);
    all
}

fn show(name: &str, halves: &[f64], exchange: f64) {
    let at = |share: f64| halves[((halves.len() - 1) as f64 * share) as usize];
    println!(
        "{name:<6} half round trip: {:>6.0} ns (best {:.0}, worst {:.0}): {:>5.1} bare exchanges",
        at(0.5),
        at(0.0),
        at(1.0),
        at(0.5) / exchange
    );
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == vic::ROLE) {
        vic::serve();
        return ExitCode::SUCCESS;
    }
    let Ok(rounds) = words.first().map_or(Ok(50), |word| word.parse()) else {
        eprintln!("usnic_trip: type `usnic_trip [ROUNDS]`");
        return ExitCode::from(2);
    };
    let cores = pin::allowed();
    let [one, other, ..] = cores[..] else {
        eprintln!("usnic_trip: the model's engine and this program need a core each, and there is one");
        return ExitCode::from(2);
    };
    let clock = Clock::start();
    let before = baseline::between(&clock, [one, other]).expect("two threads on two cores");
    // The model takes the other core: it is started before this thread is bound, and looks all the time.
    let vic = vic::Vic::start();
    let usnic = halves(vic.open("vf0"), vic.open("vf1"), &clock, rounds);
    drop(vic);
    let name = "udp:lo".parse().expect("a name");
    let open = || UdpRail::open(&name, &UdpConfig::default()).expect("the loopback is there");
    let udp = halves(open(), open(), &clock, rounds);
    let after = baseline::between(&clock, [one, other]).expect("two threads on two cores");
    let exchange = before + after;
    println!(
        "bare exchange, to and fro, of a doorbell's line: {exchange:.0} ns ({:.0} before, {:.0} after)",
        2.0 * before,
        2.0 * after
    );
    show("usnic", &usnic, exchange);
    show("udp", &udp, exchange);
    let median = |all: &[f64]| all[all.len() / 2];
    println!("usnic / udp: {:.2}", median(&usnic) / median(&udp));
    println!(
        "{} bytes; both ends in this thread, the model's engine in another process",
        BODY.len()
    );
    if cores.len() < 3 {
        println!(
            "{} cores: the figures include the load of other programs; the best ones are the most reliable",
            cores.len()
        );
    }
    ExitCode::SUCCESS
}
