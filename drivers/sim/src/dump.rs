//! The capture: every frame of every datagram NIC, with its fate, as pcapng.
//!
//! A sent frame is written at the sender's interface, with the reason if it is dropped; a received one at the
//! receiver's, with what was done to it on the path. Both have the same packet number. Addresses are
//! invented: rank r of plane p is `10.p.r/256.r%256`, and `fd00:db::p:r` where that is not enough; the ports
//! are [`DATA_PORT`] and [`PRIORITY_PORT`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use doorbell_fabric::datagram::Channel;
use doorbell_fabric::memory::SharedBytes;
use doorbell_fabric::pcapng::{Direction, Interface, Packet, Wrap, Writer};

use crate::fault::Fate;
use crate::net::SimNet;
use crate::state::Net;

/// The UDP port of the data channel in a capture (0xDB10; from the range that is never assigned).
pub const DATA_PORT: u16 = 0xdb10;

/// The UDP port of the priority channel.
pub const PRIORITY_PORT: u16 = 0xdb11;

/// How a capture ended.
#[derive(Debug)]
pub struct Dumped {
    /// Packets in it.
    pub written: u64,
    /// Packets that are missing, because of an error.
    pub lost: u64,
    /// The error that ended it.
    pub error: Option<io::Error>,
}

pub(crate) struct Dump {
    writer: Writer<Box<dyn Write + Send>>,
    /// The interfaces of the capture by NIC; each is made at its first frame.
    interfaces: BTreeMap<u32, Interface>,
}

impl fmt::Debug for Dump {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.writer.fmt(out)
    }
}

impl SimNet {
    /// Writes every frame from now on to `out`, as a capture for Wireshark; an earlier capture ends. Should
    /// `out` fail, the traffic goes on, and [`SimNet::end_dump`] returns the error.
    ///
    /// ```
    /// # use doorbell_sim::{SimConfig, SimNet};
    /// let net = SimNet::new(42, SimConfig::default());
    /// net.dump(std::io::sink()); // or a file
    /// assert_eq!(net.end_dump().map(|end| end.written), Some(0));
    /// ```
    pub fn dump(&self, out: impl Write + Send + 'static) {
        let mut net = self.lock();
        let application = format!("doorbell sim:{}", net.seed);
        net.dump = Some(Dump {
            writer: Writer::new(Box::new(out), &application, 0),
            interfaces: BTreeMap::new(),
        });
    }

    /// Ends the capture; `None` when there is none.
    pub fn end_dump(&self) -> Option<Dumped> {
        let mut dump = self.lock().dump.take()?;
        dump.writer.flush();
        Some(Dumped {
            written: dump.writer.written(),
            lost: dump.writer.lost(),
            error: dump.writer.take_error(),
        })
    }
}

impl Net {
    /// Writes the frame at `place`, as `nic` sees it.
    #[inline]
    pub(crate) fn tap(&mut self, place: u32, nic: u32, direction: Direction, fate: Option<Fate>) {
        if self.dump.is_some() {
            self.write_frame(place, nic, direction, fate);
        }
    }

    #[cold]
    fn write_frame(&mut self, place: u32, nic: u32, direction: Direction, fate: Option<Fate>) {
        let (frame, seen) = (&self.frames[place], &self.nics[nic as usize]);
        let (from, to) = (self.nics[frame.from as usize].rank, frame.to_rank);
        let Some(dump) = &mut self.dump else {
            return;
        };
        let interface = *dump.interfaces.entry(nic).or_insert_with(|| {
            let plane = &self.planes[seen.plane as usize].name;
            let name = format!("sim:{}:{plane}:rank{}", self.seed, seen.rank);
            let life = self.lives[seen.life as usize].incarnation.0;
            dump.writer.interface(&name, &format!("incarnation {life:016x}"))
        });
        let port = match frame.channel {
            Channel::Data => DATA_PORT,
            Channel::Priority => PRIORITY_PORT,
        };
        let end = |rank| SocketAddr::new(address(seen.plane, rank), port);
        let mut comments = [""; 8];
        let texts = fate.map(Fate::text).into_iter().chain(frame.marks.texts());
        let n = comments
            .iter_mut()
            .zip(texts)
            .map(|(comment, text)| *comment = text)
            .count();
        dump.writer.packet(&Packet {
            interface,
            at: self.now,
            direction,
            wrap: Wrap::Udp {
                from: end(from),
                to: end(to),
            },
            bytes: &[SharedBytes::of(&frame.bytes)],
            id: frame.origin,
            comments: &comments[..n],
        });
    }
}

/// The made-up address of a rank.
fn address(plane: u32, rank: u32) -> IpAddr {
    match (u8::try_from(plane), u16::try_from(rank)) {
        (Ok(plane), Ok(rank)) => {
            let [high, low] = rank.to_be_bytes();
            Ipv4Addr::new(10, plane, high, low).into()
        }
        _ => {
            let half = |number: u32| [(number >> 16) as u16, number as u16];
            let ([a, b], [c, d]) = (half(plane), half(rank));
            Ipv6Addr::new(0xfd00, 0xdb, 0, 0, a, b, c, d).into()
        }
    }
}
