//! The base of the rails that put frames into UDP: two threads, bound as the rail's ranks are, pass a
//! datagram to and fro over connected sockets, polling for the next one without a rest. No rail can be faster
//! over the same sockets; what a rail takes is reported as a multiple of this. The two may also be two
//! processes, on two hosts ([`raw_udp_ask`], [`raw_udp_answer`]), and the sockets those of AF_XDP ([`Line`]).

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_bench::error::BenchError;
use doorbell_bench::pin;
use doorbell_bench::stats::{Spread, mean};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::clock::Clock;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::rail::Rail;
use doorbell_xdp::{Family, Mode, XdpConfig, XdpRail, XdpRaw};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Datagrams of one direction per look at the clock.
const ROUND: u32 = 1_000;
/// Rounds; the first is the warm-up.
const ROUNDS: u32 = 9;
/// Longest datagram that is answered.
const LONGEST: usize = 1 << 16;
/// The longest that UDP over IPv4 carries.
const DATAGRAM: usize = 65_507;
/// Bytes of an IP packet that fits one chunk past the kernel, in every mode.
const IN_ONE_CHUNK: usize = 3000;
/// How many times the empty datagram that ends the exchange is sent.
const FAREWELLS: u32 = 3;
/// Without an answer for this long, in seconds, something is wrong: nothing is lost on the loopback
/// otherwise.
const PATIENCE: f64 = 5.0;
/// Polls between two readings of the clock.
const LOOKS: u32 = 1 << 16;

/// The half round trip of `bytes` bytes over the loopback between two cores, in nanoseconds: the mean over
/// rounds of 1,000 exchanges, as a rail's is.
///
/// # Errors
/// When sockets, threads or cores are not available, or an answer does not arrive.
pub(crate) fn raw_udp_nanos(clock: &Clock, cores: [usize; 2], bytes: usize) -> Result<f64, BenchError> {
    let (near, far) = pair().map_err(|error| failed("make its sockets", &error))?;
    let (mut near, mut far) = (Line::Socket(near), Line::Socket(far));
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    let clock = *clock;
    let asking = std::thread::spawn(move || {
        let enough = |rounds, _| rounds == ROUNDS;
        let burst = Burst { bytes, frames: 1 };
        let halves = pin::bind(cores[0]).and_then(|()| ask(&mut near, &clock, burst, &told, enough));
        told.store(true, Ordering::Release);
        halves
    });
    let answering = std::thread::spawn(move || pin::bind(cores[1]).and_then(|()| answer(&mut far, 1, &over)));
    let halves = asking.join().map_err(|_| panicked())?;
    // The error of the side that sends first is the more precise one.
    let answered = answering.join().map_err(|_| panicked())?;
    let halves = halves?;
    answered?;
    mean(&halves).ok_or_else(panicked)
}

/// What crosses in one direction before the other one has its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    /// Bytes of each datagram.
    pub(crate) bytes: usize,
    /// Datagrams, at least one.
    pub(crate) frames: u32,
}

/// What datagrams go over.
#[derive(Debug)]
pub(crate) enum Line {
    /// A connected socket.
    Socket(UdpSocket),
    /// The queues of an interface, past the kernel.
    Queues(Box<XdpRaw>),
}

impl Line {
    /// The longest datagram that can be sent.
    #[must_use]
    pub(crate) fn longest(&self) -> usize {
        match self {
            Self::Socket(_) => DATAGRAM,
            Self::Queues(raw) => raw.longest(),
        }
    }
}

/// A socket at `own` that takes datagrams from `other` only: the kernel drops those of strangers.
///
/// # Errors
/// When one of the addresses is not available.
pub(crate) fn raw_udp_socket(own: SocketAddr, other: SocketAddr) -> Result<Line, BenchError> {
    let connected = UdpSocket::bind(own).and_then(|socket| socket.connect(other).map(|()| socket));
    let connected = connected.map_err(|error| failed(&format!("connect {own} to {other}"), &error))?;
    Ok(Line::Socket(connected))
}

/// The queues of the interface that has the address `own`, in the mode that is wanted or the best one; it
/// waits until the hardware address of `other` is known.
///
/// # Errors
/// When they are not available, or the neighbour is not found.
pub(crate) fn raw_xdp_queues(
    own: SocketAddr,
    other: SocketAddr,
    mode: Option<Mode>,
) -> Result<Line, BenchError> {
    // A cause that prevents a rail prevents this as well.
    let said = |error: RailError| BenchError::World {
        source: doorbell::Error::Rail(error),
    };
    let config = XdpConfig {
        port: own.port(),
        pairs: 1,
        mode,
        family: if own.is_ipv4() { Family::V4 } else { Family::V6 },
        // Of a frame in several chunks there is none here.
        mtu: Some(IN_ONE_CHUNK),
        ..XdpConfig::default()
    };
    let name = format!("xdp:{}", own.ip()).parse().map_err(said)?;
    let mut rail = XdpRail::open(&name, &config).map_err(said)?;
    let peer = Datagram::open(&mut rail, &RailAddress::inet("udp", other), Incarnation(1)).map_err(said)?;
    let (clock, begun) = (Clock::start(), Instant::now());
    while !rail.is_resolved(peer) {
        rail.progress(clock.now());
        if begun.elapsed().as_secs_f64() > PATIENCE {
            return Err(said(RailError::Unreachable {
                rail: rail.name().to_string(),
                peer: other.to_string(),
                reason: "no host on the link answers as the next hop to it".to_owned(),
                remedy: "see `ip route get` and `ip neighbour` for its address, and whether that host is up",
            }));
        }
        std::thread::yield_now();
    }
    Ok(Line::Queues(Box::new(XdpRaw::new(rail, peer))))
}

/// Runs the side that sends first between two processes: half round trips of a burst in nanoseconds, over
/// rounds of 1,000 datagrams for about `seconds`. At its end it notifies the other side.
///
/// # Errors
/// When the other side does not answer, or the system refuses something.
pub(crate) fn raw_udp_ask(
    line: &mut Line,
    clock: &Clock,
    burst: Burst,
    seconds: f64,
) -> Result<Spread, BenchError> {
    let enough = |rounds, nanos| rounds > 1 && nanos > seconds * 1e9;
    let halves = ask(line, clock, burst, &AtomicBool::new(false), enough)?;
    Ok(Spread::of(&halves))
}

/// Ends the other side; more than once, as datagrams may be lost.
///
/// # Errors
/// When the system refuses to send.
pub(crate) fn raw_udp_end(line: &mut Line) -> Result<(), BenchError> {
    // It may have received the first one, and be gone.
    (0..FAREWELLS).try_for_each(|_| put(line, &[], 1))
}

/// How the answering side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The other side ended the exchange.
    Whole,
    /// Nothing came from it any more.
    Silent,
}

/// The answering side: when as many datagrams as a burst has have come, as many go back as the last one is,
/// until an empty one, or none for some seconds.
///
/// # Errors
/// [`BenchError::NoRequest`] when none came at all; when the system refuses something.
pub(crate) fn raw_udp_answer(line: &mut Line, frames: u32) -> Result<Answered, BenchError> {
    match answer(line, frames, &AtomicBool::new(false))? {
        (_, Some(_)) => Ok(Answered::Whole),
        (1.., None) => Ok(Answered::Silent),
        (0, None) => Err(BenchError::NoRequest {
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

/// Returns half round trips of each round but the first, until `enough`, called with the number of rounds and
/// the nanoseconds that they took, returns true.
fn ask(
    line: &mut Line,
    clock: &Clock,
    Burst { bytes, frames }: Burst,
    over: &AtomicBool,
    enough: impl Fn(u32, f64) -> bool,
) -> Result<Vec<f64>, BenchError> {
    let (out, mut into) = (vec![7; bytes], vec![0; bytes]);
    let (mut halves, mut rounds, mut all) = (Vec::new(), 0, 0.0);
    let exchanges = (ROUND / frames).max(1);
    while !enough(rounds, all) {
        let start = clock.ticks();
        for _ in 0..exchanges {
            put(line, &out, frames)?;
            for _ in 0..frames {
                if take(line, &mut into, over)?.is_none() {
                    return Err(BenchError::Silent {
                        what: "the raw UDP ping-pong",
                    });
                }
            }
        }
        let nanos = clock.ticks_to_nanos_f64(clock.ticks().saturating_sub(start));
        if rounds > 0 {
            halves.push(nanos / f64::from(2 * exchanges));
        }
        rounds += 1;
        all += nanos;
    }
    Ok(halves)
}

/// Returns how many were answered, and the length of the one that ended it, if one did.
fn answer(line: &mut Line, frames: u32, over: &AtomicBool) -> Result<(u64, Option<usize>), BenchError> {
    let mut buffer = vec![0; LONGEST];
    let mut answered = 0;
    let mut come = 0;
    loop {
        match take(line, &mut buffer, over)? {
            Some(length @ 1..) => {
                come += 1;
                if come == frames {
                    put(line, &buffer[..length], frames)?;
                    come = 0;
                }
            }
            end => return Ok((answered, end)),
        }
        answered += 1;
    }
}

/// Sends a datagram `frames` times.
#[inline]
fn put(line: &mut Line, out: &[u8], frames: u32) -> Result<(), BenchError> {
    match line {
        Line::Socket(socket) => {
            for _ in 0..frames {
                match send(&*socket, out, SendFlags::empty()) {
                    // A refusal is of an earlier one: the other end was not there yet.
                    Ok(_) | Err(Errno::CONNREFUSED) => {}
                    Err(error) => return Err(failed("send", &error.into())),
                }
            }
        }
        Line::Queues(raw) => {
            let mut left = frames as usize;
            // The kernel makes room within some of our calls. What finds none is lost, as any datagram may
            // be.
            for _ in 0..LOOKS {
                left -= raw.put_run(out, left);
                if left == 0 {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// One look: the length of a datagram, if one is there.
#[inline]
fn look(line: &mut Line, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
    match line {
        Line::Socket(socket) => match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((length, _)) => Ok(Some(length)),
            // The other end is not there, or not there any more.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNREFUSED) => Ok(None),
            Err(error) => Err(failed("receive", &error.into())),
        },
        Line::Queues(raw) => Ok(raw.take(into)),
    }
}

/// Polls until a datagram is there, and returns its length; `None` when it is over, or nothing came for too
/// long.
#[inline]
fn take(line: &mut Line, into: &mut [u8], over: &AtomicBool) -> Result<Option<usize>, BenchError> {
    let mut begun = None;
    loop {
        for _ in 0..LOOKS {
            if let Some(length) = look(line, into)? {
                return Ok(Some(length));
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
    fn two_processes_exchange_and_the_one_that_answers_learns_of_the_end() {
        let (near, far) = pair().unwrap();
        let (mut near, mut far) = (Line::Socket(near), Line::Socket(far));
        let answering = std::thread::spawn(move || raw_udp_answer(&mut far, 3));
        for bytes in [8, 64] {
            let burst = Burst { bytes, frames: 3 };
            let halves = raw_udp_ask(&mut near, &Clock::start(), burst, 0.01).unwrap();
            assert!(
                halves.min.unwrap() > 100.0 && halves.max.unwrap() < 100e6,
                "{halves:?}"
            );
        }
        let begun = Instant::now();
        raw_udp_end(&mut near).unwrap();
        assert_eq!(answering.join().unwrap().unwrap(), Answered::Whole);
        assert!(begun.elapsed().as_secs_f64() < PATIENCE / 2.0);
    }

    #[test]
    fn one_without_requests_or_a_goodbye_reports_it() {
        let (near, far) = pair().unwrap();
        let mut far = Line::Socket(far);
        let alone = std::thread::spawn(move || raw_udp_answer(&mut far, 1).map(drop).unwrap_err());
        let (asking, left) = pair().unwrap();
        let mut left = Line::Socket(left);
        let left = std::thread::spawn(move || raw_udp_answer(&mut left, 1).unwrap());
        send(&asking, b"x", SendFlags::empty()).unwrap();
        assert_eq!(left.join().unwrap(), Answered::Silent);
        assert!(matches!(alone.join().unwrap(), BenchError::NoRequest { .. }));
        drop(near);
    }

    #[test]
    fn strangers_are_not_answered() {
        let [own, stranger] = [0, 1].map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let other = own.local_addr().unwrap();
        let own = SocketAddr::from(([127, 0, 0, 1], 0));
        let Line::Socket(socket) = raw_udp_socket(own, other).unwrap() else {
            panic!("it is no socket");
        };
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
