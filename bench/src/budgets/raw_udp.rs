//! The base of the udp rail: two threads, bound as the rail's ranks are, hand a datagram to and fro over connected
//! sockets, looking for the next one without a rest. No rail can be faster over the same sockets; what a rail takes is
//! told as a multiple of this. The two may also be two processes, on two hosts ([`raw_udp_ask`], [`raw_udp_answer`]).

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::error::BenchError;
use crate::pin;
use crate::stats::{Spread, median};

/// Exchanges per look at the clock.
const ROUND: u32 = 1_000;
/// Rounds; the first is the warm-up.
const ROUNDS: u32 = 9;
/// Longest datagram that is answered.
const LONGEST: usize = 1 << 16;
/// How often the end is told.
const FAREWELLS: u32 = 3;
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
        let enough = |rounds, _| rounds == ROUNDS;
        let halves = pin::bind(cores[0]).and_then(|()| ask(&near, &clock, bytes, &told, enough));
        told.store(true, Ordering::Release);
        halves
    });
    let answering = std::thread::spawn(move || pin::bind(cores[1]).and_then(|()| answer(&far, &over)));
    let halves = asking.join().map_err(|_| panicked())?;
    // The one who asks knows best what went wrong.
    let answered = answering.join().map_err(|_| panicked())?;
    let halves = halves?;
    answered?;
    median(&halves).ok_or_else(panicked)
}

/// A socket at `own` that takes datagrams from `other` only: the kernel drops those of strangers.
///
/// # Errors
/// When one of the addresses cannot be had.
pub fn raw_udp_socket(own: SocketAddr, other: SocketAddr) -> Result<UdpSocket, BenchError> {
    let connected = UdpSocket::bind(own).and_then(|socket| socket.connect(other).map(|()| socket));
    connected.map_err(|error| failed(&format!("connect {own} to {other}"), &error))
}

/// The asking side between two processes: half round trips of `bytes` bytes in nanoseconds, over rounds of 1,000 exchanges
/// for about `seconds`. It tells the other side at its end.
///
/// # Errors
/// When the other side does not answer, or the system refuses something.
pub fn raw_udp_ask(
    socket: &UdpSocket,
    clock: &Clock,
    bytes: usize,
    seconds: f64,
) -> Result<Spread, BenchError> {
    let enough = |rounds, nanos| rounds > 1 && nanos > seconds * 1e9;
    let halves = ask(socket, clock, bytes, &AtomicBool::new(false), enough)?;
    Ok(Spread::of(&halves))
}

/// Ends the other side; more than once, as datagrams may be lost.
///
/// # Errors
/// When the system refuses to send.
pub fn raw_udp_end(socket: &UdpSocket) -> Result<(), BenchError> {
    (0..FAREWELLS).try_for_each(|_| match send(socket, &[], SendFlags::empty()) {
        // It has heard the first one, and is gone.
        Ok(_) | Err(Errno::CONNREFUSED) => Ok(()),
        Err(error) => Err(failed("send", &error.into())),
    })
}

/// How the answering side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The other side took leave.
    Whole,
    /// Nothing came from it any more.
    Silent,
}

/// The answering side: every datagram goes back as it is, until an empty one, or none for some seconds.
///
/// # Errors
/// [`BenchError::Nobody`] when none came at all; when the system refuses something.
pub fn raw_udp_answer(socket: &UdpSocket) -> Result<Answered, BenchError> {
    match answer(socket, &AtomicBool::new(false))? {
        (_, Some(_)) => Ok(Answered::Whole),
        (1.., None) => Ok(Answered::Silent),
        (0, None) => Err(BenchError::Nobody {
            waited: Duration::from_secs_f64(PATIENCE),
        }),
    }
}

/// Two sockets of the loopback, each connected to the other.
fn pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    Ok((near, far))
}

/// Half round trips of each round but the first, until `enough` rounds were made in so many nanoseconds.
fn ask(
    socket: &UdpSocket,
    clock: &Clock,
    bytes: usize,
    over: &AtomicBool,
    enough: impl Fn(u32, f64) -> bool,
) -> Result<Vec<f64>, BenchError> {
    let (out, mut into) = (vec![7; bytes], vec![0; bytes]);
    let (mut halves, mut rounds, mut all) = (Vec::new(), 0, 0.0);
    while !enough(rounds, all) {
        let start = clock.ticks();
        for _ in 0..ROUND {
            put(socket, &out)?;
            if take(socket, &mut into, over)?.is_none() {
                return Err(BenchError::Silent {
                    what: "the raw UDP ping-pong",
                });
            }
        }
        let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
        if rounds > 0 {
            halves.push(nanos / f64::from(2 * ROUND));
        }
        rounds += 1;
        all += nanos;
    }
    Ok(halves)
}

/// How many were answered, and the length of the one that ended it, if one did.
fn answer(socket: &UdpSocket, over: &AtomicBool) -> Result<(u64, Option<usize>), BenchError> {
    let mut buffer = vec![0; LONGEST];
    let mut answered = 0;
    loop {
        match take(socket, &mut buffer, over)? {
            Some(length @ 1..) => put(socket, &buffer[..length])?,
            end => return Ok((answered, end)),
        }
        answered += 1;
    }
}

#[inline]
fn put(socket: &UdpSocket, out: &[u8]) -> Result<(), BenchError> {
    match send(socket, out, SendFlags::empty()) {
        // A refusal is of an earlier one: the other end was not there yet.
        Ok(_) | Err(Errno::CONNREFUSED) => Ok(()),
        Err(error) => Err(failed("send", &error.into())),
    }
}

/// Looks until a datagram is there, and says how long it is; `None` when it is over, or nothing came for too long.
#[inline]
fn take(socket: &UdpSocket, into: &mut [u8], over: &AtomicBool) -> Result<Option<usize>, BenchError> {
    let mut begun = None;
    loop {
        for _ in 0..LOOKS {
            match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((length, _)) => return Ok(Some(length)),
                // The other end is not there, or not there any more.
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => {}
                Err(error) => return Err(failed("receive", &error.into())),
            }
            if over.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let begun: &Instant = begun.get_or_insert_with(Instant::now);
        if begun.elapsed().as_secs_f64() > PATIENCE {
            return Ok(None);
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
    fn two_processes_exchange_and_the_one_that_answers_hears_of_the_end() {
        let (near, far) = pair().unwrap();
        let answering = std::thread::spawn(move || raw_udp_answer(&far));
        for bytes in [8, 64] {
            let halves = raw_udp_ask(&near, &Clock::start(), bytes, 0.01).unwrap();
            assert!(
                halves.min.unwrap() > 100.0 && halves.max.unwrap() < 100e6,
                "{halves:?}"
            );
        }
        let begun = Instant::now();
        raw_udp_end(&near).unwrap();
        assert_eq!(answering.join().unwrap().unwrap(), Answered::Whole);
        assert!(begun.elapsed().as_secs_f64() < PATIENCE / 2.0);
    }

    #[test]
    fn one_that_nobody_asks_or_takes_leave_of_says_so() {
        let (near, far) = pair().unwrap();
        let alone = std::thread::spawn(move || raw_udp_answer(&far).map(drop).unwrap_err());
        let (asking, left) = pair().unwrap();
        let left = std::thread::spawn(move || raw_udp_answer(&left).unwrap());
        send(&asking, b"x", SendFlags::empty()).unwrap();
        assert_eq!(left.join().unwrap(), Answered::Silent);
        assert!(matches!(alone.join().unwrap(), BenchError::Nobody { .. }));
        drop(near);
    }

    #[test]
    fn strangers_are_not_answered() {
        let [own, stranger] = [0, 1].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let other = own.local_addr().unwrap();
        let socket = raw_udp_socket(SocketAddr::from(([127, 0, 0, 1], 0)), other).unwrap();
        stranger.send_to(b"hello", socket.local_addr().unwrap()).unwrap();
        assert_eq!(
            recv(&socket, &mut [0; 8][..], RecvFlags::DONTWAIT),
            Err(Errno::AGAIN)
        );
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
