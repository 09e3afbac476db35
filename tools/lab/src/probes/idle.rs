//! The memory of peers without traffic in PML and BTL, as the system reports it: the process's memory before
//! and after ten thousand of them were opened. The driver below keeps nothing about peers, so that nothing of
//! it is in the figure.
//!
//! The process has to be a fresh one: memory that was used and given back is used again, and would not be
//! seen.

use std::fs;

use doorbell_bench::error::BenchError;
use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::datagram::{Channel, Datagram, Frame, FrameId, Receive, Transmit};
use doorbell_fabric::error::RailError;
use doorbell_fabric::message::{Body, Incarnation, PeerIndex, Refused};
use doorbell_fabric::name::RailName;
use doorbell_pml::{Pml, PmlConfig, Rank};

/// The number of idle peers.
pub(crate) const IDLE_PEERS: u32 = 10_000;

/// Bytes for each idle peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Idle {
    /// By the growth of the resident set: what was touched.
    pub(crate) resident: f64,
    /// By the growth of the data segment: what was allocated, and perhaps never touched.
    pub(crate) reserved: f64,
}

impl Idle {
    /// The larger of the two.
    #[must_use]
    pub(crate) fn most(self) -> f64 {
        self.resident.max(self.reserved)
    }
}

/// Returns what one more idle peer takes in this process, by the difference between a rank with one and a
/// rank with [`IDLE_PEERS`].
///
/// # Errors
/// When a peer is refused, or the system does not report the process's memory.
pub(crate) fn idle_peer_bytes() -> Result<Idle, BenchError> {
    // Both stay until the last look, so that the second one gets nothing that the first one gave back. One
    // before them brings in the code.
    let warm = rank(1)?;
    let start = Memory::now()?;
    let one = rank(1)?;
    let middle = Memory::now()?;
    let all = rank(IDLE_PEERS)?;
    let end = Memory::now()?;
    drop((warm, one, all));
    let each = |of: fn(&Memory) -> f64| {
        let (one, all) = (of(&middle) - of(&start), of(&end) - of(&middle));
        (all - one) / f64::from(IDLE_PEERS - 1)
    };
    Ok(Idle {
        resident: each(|memory| memory.resident),
        reserved: each(|memory| memory.reserved),
    })
}

/// What a process has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Memory {
    resident: f64,
    reserved: f64,
}

impl Memory {
    fn now() -> Result<Self, BenchError> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::of(&status).ok_or_else(|| failed("/proc/self/status does not list VmRSS and VmData"))
    }

    /// `VmRSS:     1234 kB`, and the same for the data segment.
    fn of(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kibibytes * 1024.0)
        };
        Some(Self {
            resident: bytes("VmRSS:")?,
            reserved: bytes("VmData:")?,
        })
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Thread {
        what: "the memory of idle peers",
        reason: error.to_string(),
    }
}

/// Returns a rank with `peers` peers that has no traffic with them.
fn rank(peers: u32) -> Result<Pml<Btl<Deaf>>, BenchError> {
    let config = BtlConfig {
        max_peers: peers as usize,
        ..BtlConfig::default()
    };
    let mut btl = Btl::new(Deaf::new().map_err(failed)?, config, Incarnation(1)).map_err(failed)?;
    btl.set_key(JobKey::from_bytes([7; 32]));
    let mut pml = Pml::new(PmlConfig::new(Rank(0), peers + 1, 0x5eed)).map_err(failed)?;
    let rail = pml.add_rail(btl).map_err(failed)?;
    for peer in 1..=peers {
        let address = RailAddress::native("sim", peer.to_le_bytes());
        pml.connect(Rank(peer), rail, &address, Incarnation(1))
            .map_err(failed)?;
    }
    Ok(pml)
}

/// A driver that takes every address, sends nothing and receives nothing.
#[derive(Debug)]
struct Deaf {
    name: RailName,
    can: Capabilities,
    peers: u32,
    ends: (Mute, Mute),
}

#[derive(Debug)]
struct Mute;

/// The longest frame.
const MTU: usize = 1472;

impl Deaf {
    fn new() -> Result<Self, RailError> {
        Ok(Self {
            name: "sim:0".parse()?,
            can: Capabilities {
                features: Features::default(),
                limits: Limits {
                    head: 64,
                    message: MTU,
                    inline: 64,
                    eager: MTU,
                    fragment: MTU,
                    get_from: MTU,
                    parts: 1,
                    one_sided: 0,
                },
                estimate: Estimate {
                    latency_ns: 1_000,
                    bandwidth: 1 << 30,
                },
            },
            peers: 0,
            ends: (Mute, Mute),
        })
    }
}

impl Transmit for Mute {
    fn reserve(&mut self, _: Channel, _: usize) -> usize {
        0
    }
    fn post(&mut self, _: Channel, _: PeerIndex, _: &[u8], _: Body<'_>) -> Result<FrameId, Refused> {
        Err(Refused::Full)
    }
    fn doorbell(&mut self) {}
    fn reaped(&mut self, _: Channel) -> FrameId {
        FrameId(0)
    }
}

impl Receive for Mute {
    type Kept = ();

    fn poll(&mut self, _: Channel, _: usize) -> usize {
        0
    }
    fn frame(&self, _: Channel, _: usize) -> Option<Frame<'_>> {
        None
    }
    fn keep(&mut self, _: Channel, _: usize) -> Result<(), Refused> {
        Err(Refused::Full)
    }
}

doorbell_fabric::still_rail!(Deaf, |_| RailAddress::native("sim", [0; 4]));

impl Datagram for Deaf {
    type Tx = Mute;
    type Rx = Mute;

    fn open(&mut self, _: &RailAddress, _: Incarnation) -> Result<PeerIndex, RailError> {
        self.peers += 1;
        Ok(PeerIndex(self.peers - 1))
    }

    fn split(&mut self) -> (&mut Mute, &mut Mute) {
        (&mut self.ends.0, &mut self.ends.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_words_are_read() {
        let status = "Name:\tx\nVmRSS:\t    1236 kB\nVmData:\t 500 kB\n";
        let memory = Memory::of(status).unwrap();
        assert_eq!(
            (memory.resident, memory.reserved),
            (1236.0 * 1024.0, 500.0 * 1024.0)
        );
        assert_eq!(Memory::of("VmRSS:\t 1236 kB\n"), None);
        assert_eq!(Memory::of("VmRSS:\t 12x kB\nVmData:\t 1 kB\n"), None);
    }

    #[test]
    fn every_peer_is_made_known() {
        // Other tests of this process use and give back memory meanwhile: only a process of its own has a
        // valid figure.
        let pml = rank(100).unwrap();
        assert_eq!(pml.rails().count(), 1);
        let idle = idle_peer_bytes().unwrap();
        assert!(idle.resident.is_finite() && idle.most() >= idle.reserved);
    }
}
