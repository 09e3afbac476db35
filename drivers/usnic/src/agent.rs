//! The agent: a process that has a physical function, and steers frames to virtual ones for other processes of its user.
//!
//! Who connects is looked at first: the user of the agent, or root. Each process has one function, which nobody else gets while it
//! lives; what it installed is taken away when its line ends, however that happens. One request of each line is done in a
//! turn, so that nobody waits for one who asks all day; lines, filters and what waits to be said are bounded.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use doorbell_fabric::ether::Mac;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use rustix::io::Errno as SystemErrno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recv, send, socket_with, sockopt::socket_peercred,
};

use crate::errno::{Errno, Fault};
use crate::filter::Match;
use crate::notify::News;
use crate::pf::Pf;
use crate::steer::wire::{PACKET, Said, Why};
use crate::steer::{Request, Trouble};

/// Most processes at a time.
const LINES_MOST: usize = 64;
/// Most filters of one process; a rail has three.
const FILTERS_MOST: usize = 16;
/// Most queue pairs of one.
const PAIRS_MOST: usize = 16;
/// How often the physical function's notify area is looked at, and how often it is asked whether it is still open.
const LOOK: Duration = Duration::from_millis(20);
const ASK: Duration = Duration::from_secs(1);
/// ARP's ethertype: the only one that is steered for others.
const ARP: u16 = 0x0806;
/// Who may connect to a socket waits here.
const BACKLOG: i32 = 128;

/// A process at the other end.
struct Line {
    socket: OwnedFd,
    /// `None` until it has said which.
    function: Option<u32>,
    filters: Vec<u64>,
    pairs: Vec<u32>,
    /// What it says to be, for the others.
    here: Option<(Ipv4Addr, Mac)>,
    is_over: bool,
}

/// What a turn did, for those who tell people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A process has a function now.
    Came(u32),
    /// It is gone, with this many filters and queue pairs taken away.
    Went(u32, usize),
    /// The physical function was reset: everything was lost.
    Reset,
    /// Its link came or went.
    Link(bool),
}

/// An agent at work.
pub struct Agent {
    pf: Pf,
    listener: OwnedFd,
    path: PathBuf,
    /// The socket's file, by device and number.
    made: (u64, u64),
    lines: Vec<Line>,
    user: u32,
    news: Option<News>,
    life: u64,
    told: Vec<Told>,
}

impl Agent {
    /// Listens at `path`, which only the agent's user may use. A socket that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// Where the physical function cannot steer, or the socket cannot be made.
    pub fn new(mut pf: Pf, path: &Path) -> Result<Self, Trouble> {
        pf.check()?;
        let failed = |errno: SystemErrno| {
            Trouble::agent(
                format!("the agent cannot listen at {}: {errno}", path.display()),
                "name another socket with --socket, in a folder that is yours",
            )
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let new = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        if let Ok(there) = rustix::fs::lstat(path) {
            // Only a socket that nobody serves any more is replaced.
            let is_socket = FileType::from_raw_mode(there.st_mode) == FileType::Socket;
            let refused = rustix::net::connect(new().map_err(failed)?, &address).err();
            if !is_socket || refused != Some(SystemErrno::CONNREFUSED) {
                let what = if is_socket {
                    "somebody listens at"
                } else {
                    "there is a file that is no socket:"
                };
                return Err(Trouble::agent(
                    format!("{what} {}", path.display()),
                    "end who has it, or name another socket with --socket",
                ));
            }
            rustix::fs::unlink(path).map_err(failed)?;
        }
        let listener = new().map_err(failed)?;
        // The file gets the socket's own mode: nothing is changed by its name, which somebody else may have taken by then.
        rustix::fs::fchmod(&listener, rustix::fs::Mode::from_raw_mode(0o600))
            .and_then(|()| bind(&listener, &address))
            .and_then(|()| listen(&listener, BACKLOG))
            .map_err(failed)?;
        let made = rustix::fs::lstat(path).map_err(failed)?;
        let (news, life) = (pf.news(), pf.life());
        Ok(Self {
            pf,
            listener,
            path: path.to_owned(),
            made: (made.st_dev, made.st_ino),
            lines: Vec::new(),
            user: rustix::process::geteuid().as_raw(),
            news,
            life,
            told: Vec::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The physical function.
    pub fn pf(&self) -> &Pf {
        &self.pf
    }

    /// One turn: waits for somebody for `limit` at most, and does what is asked.
    ///
    /// # Errors
    /// Where the physical function is gone, or cannot be opened again.
    pub fn turn(&mut self, limit: Duration) -> Result<Vec<Told>, Fault> {
        self.wait(limit.min(LOOK));
        self.accept();
        for at in 0..self.lines.len() {
            self.serve(at);
        }
        self.lines_end();
        self.look()?;
        Ok(std::mem::take(&mut self.told))
    }

    fn wait(&self, limit: Duration) {
        let all =
            std::iter::once(self.listener.as_fd()).chain(self.lines.iter().map(|line| line.socket.as_fd()));
        let mut waits: Vec<PollFd<'_>> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Whatever it says, everybody is looked at.
        let _ = rustix::event::poll(&mut waits, Some(&limit));
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = accept_with(&self.listener, flags) {
            let user = socket_peercred(&socket).map(|peer| peer.uid.as_raw());
            let is_ours = user.is_ok_and(|user| user == self.user || user == 0);
            if !is_ours {
                continue;
            }
            if self.lines.len() == LINES_MOST {
                let _ = say(&socket, Said::Refused(0, Why::Full));
                continue;
            }
            self.lines.push(Line {
                socket,
                function: None,
                filters: Vec::new(),
                pairs: Vec::new(),
                here: None,
                is_over: false,
            });
        }
    }

    /// One packet of a line.
    fn serve(&mut self, at: usize) {
        let mut packet = [0; PACKET + 1];
        let line = &self.lines[at];
        let said = match recv(&line.socket, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(SystemErrno::AGAIN | SystemErrno::INTR) => return,
            Ok((length, _)) if length > 0 => Said::read(&packet[..length.min(packet.len())]),
            _ => None,
        };
        let is_fine = match (said, line.function) {
            (Some(Said::Hello(function)), None) => self.hello(at, function),
            (Some(Said::Request(number, request)), Some(function)) => {
                let answer = self.request(at, function, request);
                let answer = match answer {
                    Ok(value) => Said::Done(number, value),
                    Err(why) => Said::Refused(number, why),
                };
                self.say(at, answer)
            }
            (Some(Said::Here(ip, mac)), Some(_)) => self.here(at, (ip, mac)),
            // The end, or no packet of a rail's.
            _ => false,
        };
        self.lines[at].is_over |= !is_fine;
    }

    /// Says something to a line; false where it does not listen, which ends it: nothing waits here for it.
    fn say(&mut self, at: usize, said: Said) -> bool {
        say(&self.lines[at].socket, said)
    }

    fn hello(&mut self, at: usize, function: u32) -> bool {
        if self.lines.iter().any(|line| line.function == Some(function)) {
            self.say(at, Said::Refused(0, Why::Taken));
            return false;
        }
        let mut mac = [0; 8];
        if let Some(own) = self.pf.info().mac {
            mac[..6].copy_from_slice(&own);
        }
        let welcome = Said::Welcome {
            mac: u64::from_le_bytes(mac),
            life: self.life,
        };
        let news = self.said_news();
        let is_fine = self.say(at, welcome) && self.say(at, news);
        if is_fine {
            self.lines[at].function = Some(function);
            self.told.push(Told::Came(function));
        }
        is_fine
    }

    /// A process says where it is: everybody hears of it, and it of everybody. Nobody takes an address that another one has.
    fn here(&mut self, at: usize, addresses: (Ipv4Addr, Mac)) -> bool {
        let others: Vec<_> = (0..self.lines.len()).filter(|other| *other != at).collect();
        let known = |other: &usize| self.lines[*other].here.map(|here| (*other, here));
        let there: Vec<_> = others.iter().filter_map(known).collect();
        if there.iter().any(|(_, here)| here.0 == addresses.0) {
            return false;
        }
        self.lines[at].here = Some(addresses);
        for (other, (ip, mac)) in there {
            if !self.say(other, Said::Neighbour(addresses.0, addresses.1)) {
                self.lines[other].is_over = true;
            }
            if !self.say(at, Said::Neighbour(ip, mac)) {
                return false;
            }
        }
        true
    }

    fn said_news(&self) -> Said {
        Said::News {
            news: self.news,
            life: self.life,
        }
    }

    fn request(&mut self, at: usize, function: u32, request: Request) -> Result<u64, Why> {
        let line = &self.lines[at];
        match request {
            Request::Steer(Match::Ethertype(kind), _) if kind != ARP => return Err(Why::Never),
            Request::Steer(..) if line.filters.len() == FILTERS_MOST => return Err(Why::Full),
            Request::Enable(pair) if line.pairs.len() == PAIRS_MOST && !line.pairs.contains(&pair) => {
                return Err(Why::Full);
            }
            // Others' filters are not its own to take away.
            Request::Unsteer(id) if !line.filters.contains(&id) => return Ok(0),
            _ => {}
        }
        let value = self.pf.run(function, request).map_err(why)?;
        let line = &mut self.lines[at];
        match request {
            Request::Steer(..) => line.filters.push(value),
            Request::Unsteer(id) => line.filters.retain(|filter| *filter != id),
            Request::Enable(pair) if !line.pairs.contains(&pair) => line.pairs.push(pair),
            Request::Enable(_) => {}
            Request::Disable(pair) => line.pairs.retain(|other| *other != pair),
        }
        Ok(value)
    }

    /// Ends lines, and takes away what their processes had installed.
    fn lines_end(&mut self) {
        let mut at = 0;
        while at < self.lines.len() {
            if !self.lines[at].is_over {
                at += 1;
                continue;
            }
            let line = self.lines.swap_remove(at);
            let Some(function) = line.function else { continue };
            let pairs = line.pairs.iter().map(|pair| Request::Disable(*pair));
            let filters = line.filters.iter().map(|filter| Request::Unsteer(*filter));
            for request in pairs.chain(filters) {
                // What the device does not do for us it does for nobody: the next look finds out.
                let _ = self.pf.run(function, request);
            }
            self.told
                .push(Told::Went(function, line.pairs.len() + line.filters.len()));
        }
    }

    /// The physical function's own news, told to everybody when they change.
    fn look(&mut self) -> Result<(), Fault> {
        self.pf.look_after(ASK)?;
        let (news, life) = (self.pf.news(), self.pf.life());
        if (news, life) == (self.news, self.life) {
            return Ok(());
        }
        if life != self.life {
            for line in &mut self.lines {
                line.filters.clear();
                line.pairs.clear();
            }
            self.told.push(Told::Reset);
        }
        let link = |news: Option<News>| news.is_some_and(|news| news.link);
        if link(news) != link(self.news) {
            self.told.push(Told::Link(link(news)));
        }
        (self.news, self.life) = (news, life);
        let said = self.said_news();
        for at in 0..self.lines.len() {
            if self.lines[at].function.is_some() && !self.say(at, said) {
                self.lines[at].is_over = true;
            }
        }
        Ok(())
    }
}

fn say(socket: &OwnedFd, said: Said) -> bool {
    send(
        socket,
        &said.to_bytes(),
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )
    .is_ok()
}

fn why(trouble: Trouble) -> Why {
    match trouble.errno() {
        Some(errno) => Why::Device(errno),
        None if matches!(trouble, Trouble::Fault(_)) => Why::Silent,
        None => Why::Device(Errno::INVALID),
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for line in &mut self.lines {
            line.is_over = true;
        }
        self.lines_end();
        // What stands there by now may be somebody else's.
        if rustix::fs::lstat(&self.path).is_ok_and(|there| (there.st_dev, there.st_ino) == self.made) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
