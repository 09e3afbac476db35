//! What a test of a virtual function needs beside `doorbell`: a device that is told to reach memory that it may not reach.
//!
//! ```text
//! igbvf-lab bad-dma 0000:01:10.0
//! ```
//!
//! Exit status: 0 the IOMMU stopped it and the kernel said so; 1 it did not; 2 wrong usage; 3 the rail cannot be used.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell_fabric::datagram::{Channel, Datagram as _, Transmit as _};
use doorbell_fabric::error::RailError;
use doorbell_fabric::rail::Rail as _;
use doorbell_fabric::time::Time;
use doorbell_igbvf::{IgbvfConfig, IgbvfRail};
use doorbell_vfio::{Bdf, Host};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let bdf = match &words[..] {
        [command, bdf] if command == "bad-dma" => bdf.parse::<Bdf>(),
        _ => {
            eprintln!("igbvf-lab: say `igbvf-lab bad-dma BDF`");
            return ExitCode::from(2);
        }
    };
    match bdf
        .map_err(|error| error.to_string())
        .and_then(|bdf| bad_dma(bdf).map_err(|error| error.to_string()))
    {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("igbvf-lab: {error}");
            ExitCode::from(3)
        }
    }
}

/// Takes the memory away from the device while its rings are there, and has it send: it looks for the descriptor at a bus address
/// that leads nowhere.
fn bad_dma(bdf: Bdf) -> Result<bool, RailError> {
    let name = format!("igbvf:{bdf}").parse()?;
    let config = IgbvfConfig {
        address: Some("10.99.0.1/24".to_owned()),
        ..IgbvfConfig::default()
    };
    let before = faults(bdf).len();
    let mut rail = IgbvfRail::open(&name, &config)?;
    let (Some((at, length)), Some(device)) = (rail.bus_memory(), rail.device()) else {
        return Ok(false);
    };
    if let Err(error) = device.unshare(at, length as u64) {
        println!("not taken away: {error}");
        return Ok(false);
    }
    println!("taken away: {length} bytes at {at:#x}");
    // The rail asks for this station's address: with a doorbell of its own.
    rail.open(
        &"udp:10.99.0.2:4790".parse()?,
        doorbell_fabric::message::Incarnation(1),
    )?;
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
