//! What a test of a virtual function needs beside `doorbell`: a device that tries to reach memory that it may
//! not reach, and a steady state between two marks, for strace.
//!
//! ```text
//! igbvf-lab bad-dma 0000:01:10.0
//! strace -o calls igbvf-lab exchange 0000:01:10.0 0000:01:10.2
//! ```
//!
//! Exit status: 0 the IOMMU stopped it and the kernel logged that, or every frame came back whole; 1 not so;
//! 2 wrong usage; 3 a rail cannot be used.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram as _, Receive as _, Transmit as _};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_igbvf::{IgbvfConfig, IgbvfRail};
use doorbell_vfio::{Bdf, Host};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["bad-dma", bdf] => of(bdf).and_then(|bdf| bad_dma(bdf).map_err(|error| error.to_string())),
        ["exchange", one, other] => of(one)
            .and_then(|one| Ok((one, of(other)?)))
            .and_then(|(one, other)| exchange(one, other).map_err(|error| error.to_string())),
        _ => {
            eprintln!("igbvf-lab: usage: `igbvf-lab bad-dma BDF` or `igbvf-lab exchange BDF BDF`");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("igbvf-lab: {error}");
            ExitCode::from(3)
        }
    }
}

fn of(word: &str) -> Result<Bdf, String> {
    word.parse::<Bdf>().map_err(|error| error.to_string())
}

/// A rail over a function whose last address byte is `number`.
fn rail(bdf: Bdf, number: u8) -> Result<IgbvfRail, RailError> {
    let config = IgbvfConfig {
        address: Some(format!("10.99.0.{number}/24")),
        ..IgbvfConfig::default()
    };
    IgbvfRail::open(&format!("igbvf:{bdf}").parse()?, &config)
}

/// Frames of the steady state.
const FRAMES: u32 = 20_000;
/// Looks for a frame, which take seconds.
const LOOKS: u32 = 20_000_000;
/// Frames between two turns of a rail's own work.
const TURN: u32 = 500;
/// A peer's address is resolved through the rings, with the other rail's answer.
const KNOWN: Duration = Duration::from_secs(20);

/// Frames from one function to the other and back, one at a time, whole and in order, between two marks on
/// the standard error.
fn exchange(one: Bdf, other: Bdf) -> Result<bool, RailError> {
    let mut rails = [rail(one, 1)?, rail(other, 2)?];
    let addresses = [rails[0].address(), rails[1].address()];
    for (rail, peer) in rails.iter_mut().zip(addresses.iter().rev()) {
        rail.open(peer, Incarnation(1))?;
    }
    let began = Instant::now();
    let now = || Time::from_nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    while rails.iter().any(|rail| !rail.is_resolved(PeerIndex(0))) {
        for rail in &mut rails {
            rail.split().1.poll(Channel::Data, 1);
            rail.progress(now());
        }
        if began.elapsed() > KNOWN {
            println!("the functions do not find each other");
            return Ok(false);
        }
    }
    mark("the steady state begins".to_owned());
    let start = Instant::now();
    for number in 0..FRAMES {
        for way in [0, 1] {
            send(&mut rails[way], number);
            if !came(&mut rails[1 - way], number) {
                println!("frame {number} did not come whole");
                return Ok(false);
            }
        }
        if number % TURN == 0 {
            rails.iter_mut().for_each(|rail| _ = rail.progress(now()));
        }
    }
    let spent = start.elapsed().as_millis();
    mark(format!(
        "the steady state ends: {} frames in {spent} ms",
        2 * FRAMES
    ));
    Ok(true)
}

fn send(rail: &mut IgbvfRail, number: u32) {
    let (tx, _) = rail.split();
    let body = number.to_le_bytes().repeat(16);
    if tx.reserve(Channel::Data, 1) == 1 {
        // One that is not taken does not come either, and that is reported.
        let _ = tx.post(Channel::Data, PeerIndex(0), b"", Body::Bytes(&body));
        tx.doorbell();
    }
}

/// Whether the next frame is this one; given up after [`LOOKS`] polls, as reading the time may be a system
/// call.
fn came(rail: &mut IgbvfRail, number: u32) -> bool {
    let (_, rx) = rail.split();
    let found = (0..LOOKS).any(|_| rx.poll(Channel::Data, 1) > 0);
    let frame = rx.frame(Channel::Data, 0).filter(|_| found);
    frame.is_some_and(|frame| frame.bytes.to_vec() == number.to_le_bytes().repeat(16))
}

/// One call of the kernel's, which strace shows with its words.
fn mark(words: String) {
    eprint!("{words}");
}

/// Takes the memory away from the device while its rings are there, and has it send: it looks for the
/// descriptor at a bus address that leads nowhere.
fn bad_dma(bdf: Bdf) -> Result<bool, RailError> {
    let before = faults(bdf).len();
    let mut rail = rail(bdf, 1)?;
    let (Some((at, length)), Some(device)) = (rail.nic().bus_memory(), rail.nic().device()) else {
        return Ok(false);
    };
    if let Err(error) = device.unshare(at, length as u64) {
        println!("not taken away: {error}");
        return Ok(false);
    }
    println!("taken away: {length} bytes at {at:#x}");
    // The rail resolves this address: with a doorbell of its own.
    rail.open(&"udp:10.99.0.2:56080".parse()?, Incarnation(1))?;
    let (tx, _) = rail.split();
    tx.reserve(Channel::Data, 1);
    tx.doorbell();
    let end = Instant::now() + Duration::from_secs(10);
    let mut told = Vec::new();
    while told.len() <= before && Instant::now() < end {
        rail.progress(Time::ZERO);
        std::thread::sleep(Duration::from_millis(50));
        told = faults(bdf);
    }
    for fault in told.iter().skip(before).take(2) {
        println!("stopped: {fault}");
    }
    Ok(told.len() > before)
}

fn faults(bdf: Bdf) -> Vec<String> {
    Host::here().faults(bdf).unwrap_or_default()
}
