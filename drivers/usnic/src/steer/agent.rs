//! A process that has the physical function does it: asked over a Unix socket, without ever waiting once connected.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno as SystemErrno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use super::wire::{PACKET, Said, Why};
use super::{Own, Parent, Request, Steering, Trouble};
use crate::errno::Fault;

/// How long a rail that is being made anew waits for one that was gone.
const MOMENT: Duration = Duration::from_millis(100);
/// How long an agent may take to say who it is, and to do something: its device may take 100 ms for each of several clients.
const LIMIT: Duration = Duration::from_secs(5);
/// Packets that one look takes: an agent that talks without end is not listened to for ever.
const BATCH: usize = 32;
/// Most functions of an adapter that are kept in mind until the rail looks.
const NEIGHBOURS_MOST: usize = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Agent {
    path: PathBuf,
    function: u32,
    line: Option<OwnedFd>,
    number: u32,
    /// The request under way, and until when.
    pending: Option<(Request, Instant)>,
    answer: Option<Result<u64, Trouble>>,
    mac: Option<Mac>,
    parent: Parent,
    /// How often another agent was found, or the same one anew: its lives begin at 1 again.
    renewed: u64,
    /// Our own addresses, and those of others that nobody has taken yet.
    own: Option<(Ipv4Addr, Mac)>,
    neighbours: VecDeque<(Ipv4Addr, Mac)>,
    /// Why there is no line.
    gone: &'static str,
}

impl Agent {
    /// Connects, and asks for the function.
    pub(crate) fn connect(path: &Path, function: u32) -> Result<Self, Trouble> {
        let mut agent = Self {
            path: path.to_owned(),
            function,
            line: None,
            number: 0,
            pending: None,
            answer: None,
            mac: None,
            parent: Parent::default(),
            renewed: 0,
            own: None,
            neighbours: VecDeque::new(),
            gone: "has never answered",
        };
        agent.line = Some(agent.dial()?);
        agent.greet(LIMIT)?;
        Ok(agent)
    }

    fn trouble(&self, reason: &str) -> Trouble {
        Trouble::agent(
            format!("the agent at {} {reason}", self.path.display()),
            "start it with `doorbell agent usnic --pf BDF`, or set usnic.agent to its socket",
        )
    }

    fn dial(&self) -> Result<OwnedFd, Trouble> {
        let refused = |errno: SystemErrno| self.trouble(&format!("cannot be reached ({errno})"));
        let address = SocketAddrUnix::new(&self.path).map_err(refused)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let line = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(refused)?;
        connect(&line, &address).map_err(refused)?;
        send(&line, &Said::Hello(self.function).to_bytes(), SendFlags::NOSIGNAL).map_err(refused)?;
        Ok(line)
    }

    /// Waits for the welcome, so long at most.
    fn greet(&mut self, limit: Duration) -> Result<(), Trouble> {
        let end = Instant::now() + limit;
        loop {
            let Some(line) = &self.line else {
                return Err(self.trouble(self.gone));
            };
            let heard = hear(line);
            match heard {
                Heard::Said(Said::Welcome { mac, life }) => {
                    self.welcome(mac, life);
                    return Ok(());
                }
                Heard::Said(Said::Refused(_, why)) => return Err(self.refusal(why)),
                Heard::Said(said @ (Said::News { .. } | Said::Neighbour(..))) => self.hear(said),
                Heard::Said(_) | Heard::Nonsense => {
                    return Err(self.trouble("does not speak this version of the protocol"));
                }
                Heard::End => {
                    return Err(self
                        .trouble("closed the line: its physical function is gone, or it is another user's"));
                }
                Heard::Nothing => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.trouble("does not answer"));
            }
            let Some(line) = &self.line else {
                return Err(self.trouble(self.gone));
            };
            let mut waits = [PollFd::new(line, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let _ = rustix::event::poll(&mut waits, Some(&limit));
        }
    }

    fn welcome(&mut self, mac: u64, life: u64) {
        let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
        self.mac = Some([a, b, c, d, e, f]).filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0);
        self.parent.life = self.renewed << 32 | life & 0xffff_ffff;
    }

    fn refusal(&self, why: Why) -> Trouble {
        let command = self.pending.map_or("", |(request, _)| request.command().name);
        match why {
            Why::Device(errno) => Trouble::Fault(Fault::Refused(command, errno)),
            Why::Silent => self.trouble("says that its physical function does not answer"),
            Why::Taken => Trouble::agent(
                format!(
                    "the agent says that another process has function {}",
                    self.function
                ),
                "name another function, or end the process that has it",
            ),
            Why::Never => self.trouble("does not do that for others"),
            Why::Full => Trouble::agent(
                "the agent serves as many processes, or this one has as many filters, as it may",
                "end processes that do not need their functions",
            ),
        }
    }

    /// Hears what there is. After the end everything under way has failed.
    fn listen(&mut self) {
        for _ in 0..BATCH {
            let Some(line) = &self.line else { return };
            match hear(line) {
                Heard::Nothing => break,
                Heard::Said(said) => self.hear(said),
                Heard::Nonsense => self.hang_up("does not speak this version of the protocol"),
                Heard::End => self.hang_up("is gone"),
            }
        }
        if self.pending.is_some_and(|(_, end)| Instant::now() >= end) {
            self.hang_up("does not answer");
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Done(number, value) if number == self.number && self.pending.is_some() => {
                self.answer = Some(Ok(value));
            }
            Said::Refused(number, why) if number == self.number && self.pending.is_some() => {
                self.answer = Some(Err(self.refusal(why)));
            }
            Said::News { news, life } => {
                self.parent = Parent {
                    news,
                    life: self.renewed << 32 | life & 0xffff_ffff,
                };
            }
            Said::Neighbour(ip, mac) => {
                if self.neighbours.len() == NEIGHBOURS_MOST {
                    self.neighbours.pop_front();
                }
                self.neighbours.push_back((ip, mac));
            }
            _ => self.hang_up("answers what nobody asked"),
        }
        if self.answer.is_some() {
            self.pending = None;
        }
    }

    fn hang_up(&mut self, why: &'static str) {
        (self.line, self.gone) = (None, why);
        if self.pending.take().is_some() {
            self.answer = Some(Err(self.trouble(why)));
        }
    }
}

/// What a look at a line brings.
enum Heard {
    Nothing,
    Said(Said),
    Nonsense,
    End,
}

fn hear(line: &OwnedFd) -> Heard {
    let mut packet = [0; PACKET + 1];
    match recv(line, &mut packet[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => Heard::End,
        Ok((length, _)) => {
            Said::read(&packet[..length.min(packet.len())]).map_or(Heard::Nonsense, Heard::Said)
        }
        Err(SystemErrno::AGAIN | SystemErrno::INTR) => Heard::Nothing,
        Err(_) => Heard::End,
    }
}

impl Steering for Agent {
    fn begin(&mut self, _: &mut Own, request: Request) -> Result<(), Trouble> {
        let Some(line) = &self.line else {
            return Err(self.trouble(self.gone));
        };
        self.number = self.number.wrapping_add(1);
        let bytes = Said::Request(self.number, request).to_bytes();
        if send(line, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.hang_up("is gone");
            return Err(self.trouble(self.gone));
        }
        (self.pending, self.answer) = (Some((request, Instant::now() + LIMIT)), None);
        Ok(())
    }

    fn poll(&mut self, _: &mut Own) -> Option<Result<u64, Trouble>> {
        self.listen();
        self.answer.take()
    }

    fn parent(&mut self) -> Result<Parent, Trouble> {
        self.listen();
        match self.line {
            Some(_) => Ok(self.parent),
            None => Err(self.trouble(self.gone)),
        }
    }

    fn mac(&mut self) -> Option<Mac> {
        self.mac
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(AsFd::as_fd)
    }

    fn renew(&mut self) -> Result<(), Trouble> {
        if self.line.is_some() {
            return Ok(());
        }
        self.line = Some(self.dial()?);
        self.renewed += 1;
        (self.pending, self.answer, self.parent.news) = (None, None, None);
        // Others' rails wait for this one meanwhile. An agent that is slower is asked anew, later.
        self.greet(MOMENT).inspect_err(|_| self.line = None)?;
        if let Some((ip, mac)) = self.own {
            self.introduce(ip, mac);
        }
        Ok(())
    }

    fn introduce(&mut self, ip: Ipv4Addr, mac: Mac) {
        self.own = Some((ip, mac));
        if let Some(line) = &self.line {
            // One that is gone is found at the next look.
            let _ = send(
                line,
                &Said::Here(ip, mac).to_bytes(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
        }
    }

    fn neighbour(&mut self) -> Option<(Ipv4Addr, Mac)> {
        self.neighbours.pop_front()
    }

    fn how(&self) -> &'static str {
        "filters by the agent of its physical function"
    }
}
