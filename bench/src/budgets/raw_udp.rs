//! The base of the udp rail: two threads, bound as the rail's ranks are, hand a datagram to and fro over connected
//! sockets, looking for the next one without a rest. No rail can be faster over the same sockets; what a rail takes is
//! told as a multiple of this.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use doorbell_fabric::clock::Clock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::BenchError;
use crate::pin;
use crate::stats::median;

/// Exchanges per look at the clock.
const ROUND: u32 = 1_000;
/// Rounds; the first is the warm-up.
const ROUNDS: u32 = 9;
/// Without an answer for this long, in seconds, something is wrong: nothing is lost on the loopback otherwise.
const PATIENCE: f64 = 5.0;
/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 16;

/// The half round trip of `bytes` bytes over the loopback between two cores, in nanoseconds: the median of rounds of
/// 1,000 exchanges.
///
/// # Errors
/// When sockets, threads or cores cannot be had, or an answer does not come.
pub fn raw_udp_nanos(clock: &Clock, cores: [usize; 2], bytes: usize) -> Result<f64, BenchError> {
    let (near, far) = pair().map_err(|error| failed("make its sockets", &error))?;
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    let clock = *clock;
    let asking = std::thread::spawn(move || {
        let halves = pin::bind(cores[0]).and_then(|()| ask(&near, &clock, bytes, &told));
        told.store(true, Ordering::Release);
        halves
    });
    let answering = std::thread::spawn(move || pin::bind(cores[1]).and_then(|()| answer(&far, bytes, &over)));
    let halves = asking.join().map_err(|_| panicked())?;
    // The one who asks knows best what went wrong.
    let answered = answering.join().map_err(|_| panicked())?;
    let halves = halves?;
    answered?;
    median(&halves).ok_or_else(panicked)
}

/// Two sockets of the loopback, each connected to the other.
fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    Ok((near, far))
}

fn ask(socket: &UdpSocket, clock: &Clock, bytes: usize, over: &AtomicBool) -> Result<Vec<f64>, BenchError> {
    let (out, mut into) = (vec![7; bytes], vec![0; bytes]);
    let mut halves = Vec::with_capacity(ROUNDS as usize);
    for round in 0..ROUNDS {
        let start = clock.ticks();
        for _ in 0..ROUND {
            put(socket, &out)?;
            if !take(socket, &mut into, over)? {
                return Err(BenchError::Silent {
                    what: "the raw UDP ping-pong",
                });
            }
        }
        let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
        if round > 0 {
            halves.push(nanos / f64::from(2 * ROUND));
        }
    }
    Ok(halves)
}

fn answer(socket: &UdpSocket, bytes: usize, over: &AtomicBool) -> Result<(), BenchError> {
    let mut buffer = vec![0; bytes];
    while take(socket, &mut buffer, over)? {
        put(socket, &buffer)?;
    }
    Ok(())
}

#[inline]
fn put(socket: &UdpSocket, out: &[u8]) -> Result<(), BenchError> {
    match send(socket, out, SendFlags::empty()) {
        Ok(_) => Ok(()),
        Err(error) => Err(failed("send", &error.into())),
    }
}

/// Looks until a datagram is there; `false` when it is over, or nothing came for too long.
#[inline]
fn take(socket: &UdpSocket, into: &mut [u8], over: &AtomicBool) -> Result<bool, BenchError> {
    let mut begun = None;
    loop {
        for _ in 0..LOOKS {
            match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok(_) => return Ok(true),
                // The other end is not there, or not there any more.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => {}
                Err(error) => return Err(failed("receive", &error.into())),
            }
            if over.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        let begun: &Instant = begun.get_or_insert_with(Instant::now);
        if begun.elapsed().as_secs_f64() > PATIENCE {
            return Ok(false);
        }
        // Both may be bound to one core.
        std::thread::yield_now();
    }
}

#[cold]
fn failed(step: &str, error: &io::Error) -> BenchError {
    BenchError::Thread {
        what: "the raw UDP ping-pong",
        reason: format!("it could not {step}: {error}"),
    }
}

#[cold]
fn panicked() -> BenchError {
    BenchError::Thread {
        what: "the raw UDP ping-pong",
        reason: "its thread ended without a result".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_takes_some_microseconds_between_any_two_cores() {
        let cores = pin::allowed();
        let nanos = raw_udp_nanos(&Clock::start(), [cores[0], *cores.last().unwrap()], 8).unwrap();
        assert!(nanos > 200.0 && nanos < 10e6, "{nanos}");
    }

    #[test]
    fn a_core_that_is_not_there_ends_both_sides() {
        let cores = pin::allowed();
        for pair in [[cores[0], 100_000], [100_000, cores[0]]] {
            let begun = Instant::now();
            let error = raw_udp_nanos(&Clock::start(), pair, 8).unwrap_err();
            assert!(
                !error.to_string().is_empty() && begun.elapsed().as_secs_f64() < 3.0 * PATIENCE,
                "{error}"
            );
        }
    }
}
