//! Steering by a process that has the physical function: requests go over a Unix socket, without ever waiting
//! once connected.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use doorbell_fabric::poll::timespec;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno as SystemErrno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use super::wire::{Message, Owner, PACKET, Refusal};
use super::{OwnFunction, Parent, Request, Steering, Trouble};
use crate::config::UsnicConfig;
use crate::errno::Fault;
use crate::rail_name::Object;
use crate::remedies;

/// How long an agent may take to send its welcome, and to carry out a request: its device may take 100 ms for
/// each of several clients.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two tries to connect to one whose queue of callers is full.
const BETWEEN: Duration = Duration::from_millis(10);
/// Packets that one look takes: an agent that talks without end is not listened to for ever.
const BATCH: usize = 32;
/// The most functions of an adapter whose addresses are kept until the rail reads them.
const NEIGHBOURS_MOST: usize = 256;

/// How long it is tried again where the agent serves as many as it may: who leaves is cleared away first.
const FULL: Duration = Duration::from_secs(2);

/// What to do where an agent does not let us in. One of another user than root would not be believed.
const REACH: &str = "run as its user, or have root start it with `--group` and a group that this user is in";

/// Why no agent is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absent {
    Never,
    Gone,
    Mute,
    Closed,
    Refused,
    Foreign,
    Odd,
}

impl Absent {
    fn words(self) -> &'static str {
        match self {
            Self::Never => "has never answered",
            Self::Gone => "is gone",
            Self::Mute => "does not answer",
            Self::Closed => {
                "closed the connection: it serves no processes of this user, or it is just ending"
            }
            Self::Refused => "has refused us",
            Self::Foreign => "does not support this version of the protocol",
            Self::Odd => "replies to requests that were not sent",
        }
    }
}

/// The function that the agent steers for, and the settings by which the agent is found, for advice to the
/// user.
#[derive(Clone, Debug)]
pub(crate) struct AgentTarget {
    pub(crate) object: Object,
    pub(crate) config: UsnicConfig,
}

impl AgentTarget {
    fn start(&self) -> String {
        format!("`{}`", remedies::agent_command(&self.config, &self.object))
    }
}

/// How far we are with one.
#[derive(Debug)]
enum Connection {
    /// There is no agent, for this reason.
    None(Absent),
    /// Connected; a welcome is waited for until then.
    Greeting(OwnedFd, Instant),
    /// We have our function.
    Ready(OwnedFd),
}

/// The rail's end of a connection to an agent.
#[derive(Debug)]
pub(crate) struct Agent {
    path: PathBuf,
    target: AgentTarget,
    /// The number of the agent's process, once one was connected.
    process: Option<u32>,
    function: u32,
    address: Ipv4Addr,
    connection: Connection,
    number: u32,
    /// The request under way, and until when.
    pending: Option<(Request, Instant)>,
    answer: Option<Result<u64, Trouble>>,
    /// Why the agent has refused us.
    refused: Option<Trouble>,
    /// The agent refused because it serves as many as it may.
    is_full: bool,
    mac: Option<Mac>,
    parent: Parent,
    /// The agent has reported its physical function as gone.
    is_away: bool,
    /// How often another agent was found, or the same one again: its lives begin at 1 again.
    renewed: u64,
    /// Our own hardware address, and those of others that the rail has not taken yet.
    own: Option<(Ipv4Addr, Mac)>,
    neighbours: VecDeque<(Ipv4Addr, Mac)>,
}

impl Agent {
    /// Connects, and requests the function. Waits for the reply.
    pub(crate) fn connect(
        path: &Path,
        function: u32,
        address: Ipv4Addr,
        target: AgentTarget,
    ) -> Result<Self, Trouble> {
        let mut agent = Self {
            path: path.to_owned(),
            target,
            process: None,
            function,
            address,
            connection: Connection::None(Absent::Never),
            number: 0,
            pending: None,
            answer: None,
            refused: None,
            is_full: false,
            mac: None,
            parent: Parent::default(),
            is_away: false,
            renewed: 0,
            own: None,
            neighbours: VecDeque::new(),
        };
        let begun = Instant::now();
        let end = begun + LIMIT;
        loop {
            let tried = agent.call(end);
            let waits = agent.is_full && begun.elapsed() < FULL;
            match tried {
                Ok(()) => return Ok(agent),
                Err(_) if waits => std::thread::sleep(BETWEEN),
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// Connects once, and waits for a welcome or a refusal.
    fn call(&mut self, end: Instant) -> Result<(), Trouble> {
        while let Err((trouble, is_crowded)) = self.dial(end) {
            if !is_crowded || Instant::now() >= end {
                return Err(trouble);
            }
            std::thread::sleep(BETWEEN);
        }
        while !self.greeted()? {
            self.wait(end);
        }
        Ok(())
    }

    fn trouble(&self, reason: &str) -> Trouble {
        self.trouble_with(reason, format!("start it with {}", self.target.start()))
    }

    fn trouble_with(&self, reason: &str, fix: impl Into<String>) -> Trouble {
        let who = match self.process {
            Some(process) if self.fd().is_some() => format!(" (process {process})"),
            _ => String::new(),
        };
        Trouble::agent(format!("the agent at {}{who} {reason}", self.path.display()), fix)
    }

    fn absent(&self, why: Absent) -> Trouble {
        let start = self.target.start();
        let fix = match why {
            Absent::Never | Absent::Gone | Absent::Refused => return self.trouble(why.words()),
            Absent::Mute => self.stuck(),
            Absent::Closed => format!("{REACH}; where it has ended, start it with {start}"),
            Absent::Foreign | Absent::Odd => format!("end it, and start one of this version: {start}"),
        };
        self.trouble_with(why.words(), fix)
    }

    /// Returns what to do about an agent that listens, and sends no reply.
    fn stuck(&self) -> String {
        let start = self.target.start();
        match self.process {
            Some(process) if remedies::is_stopped(process) => {
                format!("it is stopped: `kill -CONT {process}` lets it go on")
            }
            Some(process) => format!(
                "its process {process} hangs, or its physical function does: end it by `kill {process}`, and start it with {start}"
            ),
            None => format!(
                "`pgrep -af 'doorbell agent usnic'` shows its process; end it, and start it with {start}"
            ),
        }
    }

    fn failed(&self, step: &str, errno: SystemErrno) -> Trouble {
        let path = self.path.display();
        let user = rustix::process::geteuid().as_raw();
        match errno {
            SystemErrno::NOENT | SystemErrno::CONNREFUSED => {
                self.trouble("does not run: no process listens there")
            }
            SystemErrno::PROTOTYPE => Trouble::agent(
                format!("{path} is a socket, but not an agent's"),
                "set usnic.agent to an agent's socket, or unset it: `unset DOORBELL_USNIC_AGENT`",
            ),
            SystemErrno::ACCESS | SystemErrno::PERM => Trouble::agent(
                format!(
                    "user {user} may not reach the agent at {path}: it serves its own user and root, and the group that it was started with"
                ),
                REACH,
            ),
            SystemErrno::AGAIN => self.trouble_with(
                "has a full queue of waiting processes: it is stopped, or busy",
                "`pgrep -af 'doorbell agent usnic'` shows its process, and `kill -CONT` with its number lets a stopped one go on",
            ),
            errno => self.trouble(&format!("cannot be reached: {step}: {errno}")),
        }
    }

    /// Connects and requests the function. An error comes with whether it is just that too many processes
    /// connect at once.
    fn dial(&mut self, end: Instant) -> Result<(), (Trouble, bool)> {
        let failed = |this: &Self, step: &str, errno: SystemErrno| {
            (this.failed(step, errno), errno == SystemErrno::AGAIN)
        };
        let address = SocketAddrUnix::new(&self.path).map_err(|errno| failed(self, "name it", errno))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|errno| failed(self, "make a socket", errno))?;
        connect(&connection, &address).map_err(|errno| failed(self, "connect", errno))?;
        // Any user that may write in the folder can listen there: the agent has to be root or our own user.
        let peer = getsockopt(&connection, PeerCredentials).map_err(|errno| {
            failed(
                self,
                "see who listens",
                SystemErrno::from_raw_os_error(errno as i32),
            )
        })?;
        let (theirs, ours) = (peer.uid(), rustix::process::geteuid().as_raw());
        if theirs != ours && theirs != 0 {
            let reason = format!(
                "user {theirs} listens at {}, which is neither root nor this user ({ours})",
                self.path.display()
            );
            let fix = "set usnic.agent to the socket of an agent that root or this user has started";
            return Err((Trouble::agent(reason, fix), false));
        }
        self.process = u32::try_from(peer.pid()).ok().filter(|number| *number != 0);
        let hello = Message::Hello(self.function, self.address).to_bytes();
        match send(&connection, &hello, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // An agent that has closed the connection by now may have sent the reason before.
            Ok(_) | Err(SystemErrno::PIPE | SystemErrno::CONNRESET) => {}
            Err(errno) => return Err(failed(self, "write", errno)),
        }
        self.connection = Connection::Greeting(connection, end);
        (self.pending, self.answer, self.refused) = (None, None, None);
        self.is_full = false;
        (self.parent.news, self.is_away) = (None, false);
        Ok(())
    }

    fn fd(&self) -> Option<&OwnedFd> {
        match &self.connection {
            Connection::None(_) => None,
            Connection::Greeting(fd, _) | Connection::Ready(fd) => Some(fd),
        }
    }

    fn gone(&self) -> Trouble {
        match self.connection {
            Connection::None(why) => self.absent(why),
            Connection::Greeting(..) => self.trouble_with("has not answered yet", self.stuck()),
            Connection::Ready(_) => self.trouble_with(
                "reports that its physical function is gone, or is being opened again",
                remedies::see_model(&self.target.object),
            ),
        }
    }

    /// Waits for something to come, or the end.
    fn wait(&self, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        let limit = timespec(left);
        if let Some(fd) = self.fd() {
            // Whatever `poll` returns, the socket is read.
            let _ = rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit));
        }
    }

    /// Whether we have been welcomed. Never waits.
    fn greeted(&mut self) -> Result<bool, Trouble> {
        self.listen();
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        match self.connection {
            Connection::Ready(_) => Ok(true),
            Connection::Greeting(..) => Ok(false),
            Connection::None(_) => Err(self.gone()),
        }
    }

    fn take_mac(&mut self, mac: u64) {
        let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
        self.mac = Some([a, b, c, d, e, f]).filter(|mac| *mac != [0; 6] && mac[0] & 1 == 0);
    }

    fn welcome(&mut self, mac: u64, life: u64) {
        self.take_mac(mac);
        self.parent.life = self.renewed << 32 | life & 0xffff_ffff;
        if let Connection::Greeting(fd, _) =
            std::mem::replace(&mut self.connection, Connection::None(Absent::Never))
        {
            self.connection = Connection::Ready(fd);
        }
        if let Some((ip, mac)) = self.own {
            self.introduce(ip, mac);
        }
    }

    fn refusal(&self, why: Refusal) -> Trouble {
        let command = self.pending.map_or("", |(request, _)| request.command().name);
        match why {
            Refusal::Device(errno) => Trouble::Fault(Fault::Refused(command, errno)),
            Refusal::Silent => self.trouble_with(
                "reports that its physical function does not answer",
                remedies::see_model(&self.target.object),
            ),
            Refusal::Taken(owner) => Trouble::agent(
                format!(
                    "the agent reports that another process has function {}: {}",
                    self.function,
                    name(owner)
                ),
                "name another function, or end the process that has it",
            ),
            Refusal::AddressTaken(owner) => Trouble::agent(
                format!(
                    "the agent reports that {} has the address {} already, for function {}",
                    name(owner),
                    self.address,
                    owner.function
                ),
                "give each function an address of its own in usnic.address, or end that process",
            ),
            Refusal::Never => self.trouble_with(
                &format!("does not do that for others, or has no function {}", self.function),
                "unset usnic.function (`unset DOORBELL_USNIC_FUNCTION`), and restart the agent if it is of another version",
            ),
            Refusal::Full => self.trouble_with(
                "is full: the limit of processes or of filters, of this user or of all, is reached",
                "end processes that do not need their functions; the agent itself works",
            ),
        }
    }

    /// Reads all packets that are there. After the end of the connection everything under way has failed.
    fn listen(&mut self) {
        for _ in 0..BATCH {
            let Some(connection) = self.fd() else { return };
            match receive(connection) {
                Received::Nothing => break,
                Received::Message(said) => self.handle(said),
                Received::Nonsense => self.hang_up(Absent::Foreign),
                Received::End if matches!(self.connection, Connection::Greeting(..)) => {
                    self.hang_up(Absent::Closed)
                }
                Received::End => self.hang_up(Absent::Gone),
            }
        }
        let is_late = match self.connection {
            Connection::Greeting(_, end) => Instant::now() >= end,
            _ => self.pending.is_some_and(|(_, end)| Instant::now() >= end),
        };
        if is_late {
            self.hang_up(Absent::Mute);
        }
    }

    fn handle(&mut self, said: Message) {
        let is_greeting = matches!(self.connection, Connection::Greeting(..));
        match said {
            Message::Welcome { mac, life } if is_greeting => self.welcome(mac, life),
            Message::Refused(0, why) if is_greeting => {
                self.is_full = why == Refusal::Full;
                self.refused = Some(self.refusal(why));
                self.hang_up(Absent::Refused);
            }
            Message::Done(number, value) if number == self.number && self.pending.is_some() => {
                self.answer = Some(Ok(value));
            }
            Message::Refused(number, why) if number == self.number && self.pending.is_some() => {
                self.answer = Some(Err(self.refusal(why)));
            }
            Message::News { news, mac, life } => {
                self.take_mac(mac);
                let life = self.renewed << 32 | life & 0xffff_ffff;
                (self.parent, self.is_away) = (Parent { news, life }, false);
            }
            Message::Away => (self.parent.news, self.is_away) = (None, true),
            Message::Neighbour(ip, mac) => {
                if self.neighbours.len() == NEIGHBOURS_MOST {
                    self.neighbours.pop_front();
                }
                self.neighbours.push_back((ip, mac));
            }
            _ => self.hang_up(Absent::Odd),
        }
        if self.answer.is_some() {
            self.pending = None;
        }
    }

    fn hang_up(&mut self, why: Absent) {
        self.connection = Connection::None(why);
        if self.pending.take().is_some() {
            self.answer = Some(Err(self.absent(why)));
        }
    }
}

/// Names a process, as far as this one may see it.
fn name(owner: Owner) -> String {
    let process = owner.process;
    if process == 0 {
        return "a process of another pid namespace (another container, or the host)".to_owned();
    }
    match std::fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(command) => format!("process {process} ({})", command.trim_end().escape_debug()),
        Err(_) => format!("process {process}"),
    }
}

/// The result of reading a connection.
enum Received {
    Nothing,
    Message(Message),
    Nonsense,
    End,
}

fn receive(connection: &OwnedFd) -> Received {
    let mut packet = [0; PACKET + 1];
    let mut heard = recv(connection, &mut packet[..], RecvFlags::DONTWAIT);
    if heard.is_err_and(|errno| errno == SystemErrno::CONNRESET) {
        // It closed the connection before it had read all our packets; what it sent before can still be read.
        heard = recv(connection, &mut packet[..], RecvFlags::DONTWAIT);
    }
    match heard {
        Ok((0, _)) => Received::End,
        Ok((length, _)) => {
            Message::read(&packet[..length.min(packet.len())]).map_or(Received::Nonsense, Received::Message)
        }
        Err(SystemErrno::AGAIN | SystemErrno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}

impl Steering for Agent {
    fn begin(&mut self, _: &mut OwnFunction, request: Request) -> Result<(), Trouble> {
        let Connection::Ready(connection) = &self.connection else {
            return Err(self.gone());
        };
        if self.is_away {
            return Err(self.gone());
        }
        // 0 is that of the greeting.
        self.number = self.number.wrapping_add(1).max(1);
        let bytes = Message::Request(self.number, request).to_bytes();
        if send(connection, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            self.hang_up(Absent::Gone);
            return Err(self.gone());
        }
        (self.pending, self.answer) = (Some((request, Instant::now() + LIMIT)), None);
        Ok(())
    }

    fn poll(&mut self, _: &mut OwnFunction) -> Option<Result<u64, Trouble>> {
        self.listen();
        self.answer.take()
    }

    fn parent(&mut self) -> Result<Parent, Trouble> {
        self.listen();
        match self.connection {
            Connection::Ready(_) if !self.is_away => Ok(self.parent),
            _ => Err(self.gone()),
        }
    }

    fn mac(&mut self) -> Option<Mac> {
        self.mac
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        self.fd().map(AsFd::as_fd)
    }

    fn renew(&mut self) -> Result<bool, Trouble> {
        if let Connection::None(_) = self.connection {
            self.renewed += 1;
            let end = Instant::now() + LIMIT;
            self.dial(end).map_err(|(trouble, _)| trouble)?;
        }
        if !self.greeted()? {
            return Ok(false);
        }
        if self.is_away { Err(self.gone()) } else { Ok(true) }
    }

    fn introduce(&mut self, ip: Ipv4Addr, mac: Mac) {
        self.own = Some((ip, mac));
        if let Connection::Ready(connection) = &self.connection {
            // One that is gone is found by the next check.
            let bytes = Message::Here(ip, mac).to_bytes();
            let _ = send(connection, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    fn neighbour(&mut self) -> Option<(Ipv4Addr, Mac)> {
        self.neighbours.pop_front()
    }

    fn how(&self) -> &'static str {
        "filters by the agent of its physical function"
    }
}
