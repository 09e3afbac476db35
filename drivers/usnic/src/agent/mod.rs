//! The agent: a process that owns a physical function, and steers frames to virtual ones for other processes.
//!
//! The credentials of each process that connects are checked: they have to be the agent's own user, root, or
//! a member of a group where one is given. Each process has one function and one address, which no other
//! process gets while it lives; what it installed is removed when its connection ends, however that happens.
//! One request is under way at a time, of each connection in turn, and nothing is waited for: neither a slow
//! device nor a process that does not read. Connections, filters and what is queued to be sent are bounded.
//!
//! | file | |
//! |---|---|
//! | `listener` | the socket |
//! | `connection` | a process at the other end |
//! | `work` | requests to the device, one at a time |

mod connection;
mod listener;
mod work;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use doorbell_fabric::poll::timespec;
use rustix::event::{PollFd, PollFlags};

use crate::errno::Fault;
use crate::filter::Match;
use crate::flow_steering::wire::{Message, Refusal, mac_word};
use crate::flow_steering::{Request, Trouble};
use crate::notify::News;
use crate::pf::{Pf, PfInfo};
use crate::pf_watchdog::PfWatchdog;
use connection::{Connection, Neighbour};
use listener::{Listener, Peer};
use work::{Job, Requester};

/// The most processes at a time, of which a group's members get a [share](Agent::has_share).
const CONNECTIONS_MOST: usize = 64;
/// The most filters of one process; a rail has three.
const FILTERS_MOST: usize = 16;
/// Most connections, and most filters, of one user that is neither root nor the agent's own; and of all such
/// users together. A firmware is assumed to have 64 filters: what is left is for root and the agent's own
/// user.
const USER_MOST: usize = 36;
const OTHERS_MOST: usize = 48;
/// The most queue pairs of one process.
const PAIRS_MOST: usize = 16;
/// Indices of functions: a device and function number less one.
const FUNCTIONS_MOST: u32 = 256;
/// How often the physical function's notify area is looked at, and how often a command that is under way.
const LOOK: Duration = Duration::from_millis(20);
const SHORT: Duration = Duration::from_micros(100);
/// How long it is tried at the end.
const QUIT: Duration = Duration::from_secs(1);
/// ARP's ethertype: the only one that is steered for others.
const ARP: u16 = 0x0806;

/// What a turn did, for reports to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// A process owns this function now.
    Came(u32),
    /// A process has left its function; this many filters and queue pairs were removed.
    Went(u32, usize),
    /// The physical function does not reply as it should, for this reason.
    Slow(String),
    /// The physical function was reset, or is gone, for this reason: everything was lost, and it is opened
    /// again.
    Lost(String),
    /// The physical function is open again.
    Back,
    /// The link of the physical function came up or went down.
    Link(bool),
}

/// An agent at work.
pub struct Agent {
    watchdog: PfWatchdog,
    name: String,
    listener: Listener,
    connections: Vec<Connection>,
    /// The connection that is next to have a request carried out.
    at: usize,
    job: Option<Job>,
    ended: Option<Result<u64, Trouble>>,
    /// What could not be taken away, and when it is tried again.
    orphans: VecDeque<(u32, Request)>,
    later: Instant,
    /// Count up with each change: news, neighbours.
    news_count: u64,
    here_count: u64,
    news: Option<News>,
    life: u64,
    is_here: bool,
    told: Vec<AgentEvent>,
}

impl Agent {
    /// Listens at `path`, which only the agent's user may use. A socket on which no process listens any more
    /// is replaced.
    ///
    /// # Errors
    /// Where the physical function cannot steer, or the socket cannot be made.
    pub fn new(pf: Pf, path: &Path) -> Result<Self, Trouble> {
        Self::for_group(pf, path, None)
    }

    /// Listens like [`new`](Self::new), for the members of the group with this number, too.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); where the socket cannot be given to the group.
    pub fn for_group(mut pf: Pf, path: &Path, group: Option<u32>) -> Result<Self, Trouble> {
        pf.check()?;
        let listener = Listener::new(path, group)?;
        let (news, name) = (pf.news(), pf.name());
        let watchdog = PfWatchdog::new(pf);
        Ok(Self {
            life: watchdog.life(),
            watchdog,
            name,
            listener,
            connections: Vec::new(),
            at: 0,
            job: None,
            ended: None,
            orphans: VecDeque::new(),
            later: Instant::now(),
            news_count: 1,
            here_count: 0,
            news,
            is_here: true,
            told: Vec::new(),
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// The physical function's own properties.
    #[must_use]
    pub fn info(&self) -> PfInfo {
        self.watchdog.info()
    }

    /// Returns the name of the physical function.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One turn: waits at most `limit` for a packet or connection, and carries out requests as far as that is
    /// possible at once.
    ///
    /// # Errors
    /// Where the physical function is gone, and cannot come back.
    pub fn turn(&mut self, limit: Duration) -> Result<Vec<AgentEvent>, Fault> {
        self.wait(limit);
        for (socket, peer) in self.listener.accept() {
            let connection = Connection::new(socket, peer);
            if self.connections.len() == CONNECTIONS_MOST || !self.has_share(peer, |_| 1) {
                connection.send(Message::Refused(0, Refusal::Full));
            } else {
                self.connections.push(connection);
            }
        }
        for at in 0..self.connections.len() {
            self.serve(at);
        }
        self.work();
        self.look();
        self.update_all();
        self.forget();
        if !self.watchdog.has_hope() {
            return Err(Fault::Gone);
        }
        Ok(std::mem::take(&mut self.told))
    }

    /// Waits, and sees who has hung up.
    fn wait(&mut self, limit: Duration) {
        let is_busy = self.job.is_some() || self.next().is_some();
        let limit = limit.min(if is_busy { SHORT } else { LOOK });
        let mut waits = vec![PollFd::from_borrowed_fd(self.listener.fd(), PollFlags::IN)];
        waits.extend(
            self.connections
                .iter()
                .filter(|connection| !connection.is_over)
                .map(Connection::wait),
        );
        let limit = timespec(limit);
        // Whatever `poll` returns, every connection is checked.
        let _ = rustix::event::poll(&mut waits, Some(&limit));
        let hung_up = |wait: &PollFd<'_>| wait.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let ends: Vec<bool> = waits[1..].iter().map(hung_up).collect();
        let connections = self
            .connections
            .iter_mut()
            .filter(|connection| !connection.is_over);
        for (connection, ends) in connections.zip(ends) {
            // A request that it had sent before is of no use any more.
            connection.is_over = ends;
        }
    }

    /// Whether its user may have one more of what is counted. Users other than root and the agent's own do
    /// not get everything, so that no member of a group keeps the others, or root, out.
    fn has_share(&self, peer: Peer, count: impl Fn(&Connection) -> usize) -> bool {
        let of = |is_meant: &dyn Fn(&Peer) -> bool| {
            let connections = self
                .connections
                .iter()
                .filter(|connection| is_meant(&connection.peer));
            connections.map(&count).sum::<usize>()
        };
        peer.is_own
            || of(&|other| other.user == peer.user) < USER_MOST && of(&|other| !other.is_own) < OTHERS_MOST
    }

    /// Handles one packet of a connection.
    fn serve(&mut self, at: usize) {
        if self.connections[at].wants.is_some() {
            self.hello(at);
        }
        let connection = &mut self.connections[at];
        if connection.is_late() {
            connection.is_over = true;
        }
        if !connection.is_open() {
            return;
        }
        let said = match connection.receive() {
            Ok(None) => return,
            Ok(Some(said)) => said,
            Err(()) => {
                connection.is_over = true;
                return;
            }
        };
        match (said, connection.own) {
            (Message::Hello(function, ip), None) => {
                connection.wants = Some((function, ip));
                self.hello(at);
            }
            (Message::Request(number, request), Some(_)) => self.request(at, number, request),
            (Message::Here(ip, mac), Some(_)) => {
                connection.is_over = !connection.place(ip, mac, &mut self.here_count);
            }
            // No packet of a rail's.
            _ => connection.is_over = true,
        }
    }

    /// A request is answered where it needs no device, or else waits for its turn.
    fn request(&mut self, at: usize, number: u32, request: Request) {
        let is_more = matches!(request, Request::Steer(..));
        let is_full = is_more && !self.has_share(self.connections[at].peer, Connection::filter_count);
        let connection = &mut self.connections[at];
        match judge(connection, request) {
            Some(Ok(value)) => connection.answer(Message::Done(number, value)),
            Some(Err(why)) => connection.answer(Message::Refused(number, why)),
            None if is_full => connection.answer(Message::Refused(number, Refusal::Full)),
            None => connection.asked = Some((number, request)),
        }
    }

    /// A process requests a function for an address: it gets them, or a reply that names their owner. An
    /// owner that has just left is waited for.
    fn hello(&mut self, at: usize) {
        let Some((function, ip)) = self.connections[at].wants else {
            return;
        };
        let taken = self.holder(at, function, ip);
        let connection = &mut self.connections[at];
        let why = match taken {
            _ if function >= FUNCTIONS_MOST => Refusal::Never,
            Some((_, true)) if !connection.has_waited() => return,
            Some((why, _)) => why,
            None => {
                connection.wants = None;
                let welcome = Message::Welcome {
                    mac: mac_word(self.watchdog.info().mac.unwrap_or_default()),
                    life: self.life,
                };
                if connection.send(welcome) {
                    connection.own = Some((function, ip));
                    self.told.push(AgentEvent::Came(function));
                } else {
                    connection.is_over = true;
                }
                return;
            }
        };
        connection.send(Message::Refused(0, why));
        connection.is_over = true;
    }

    /// Returns the owner of the function or the address, and whether only its filters remain to be removed.
    fn holder(&mut self, at: usize, function: u32, ip: Ipv4Addr) -> Option<(Refusal, bool)> {
        for (other, connection) in self.connections.iter_mut().enumerate() {
            let Some(own) = connection.own.filter(|_| other != at) else {
                continue;
            };
            if own.0 == function || own.1 == ip {
                connection.is_over |= connection.has_hung_up();
                let owner = connection.owner();
                let why = if own.0 == function {
                    Refusal::Taken(owner)
                } else {
                    Refusal::AddressTaken(owner)
                };
                return Some((why, connection.is_over));
            }
        }
        None
    }

    /// The physical function's own news.
    fn look(&mut self) {
        let is_here = self.watchdog.is_here();
        let (news, life) = (self.watchdog.news(), self.watchdog.life());
        if (news, life, is_here) == (self.news, self.life, self.is_here) {
            return;
        }
        let link = |news: Option<News>| news.is_some_and(|news| news.link);
        if link(news) != link(self.news) {
            self.told.push(AgentEvent::Link(link(news)));
        }
        (self.news, self.life, self.is_here) = (news, life, is_here);
        self.news_count += 1;
    }

    /// Sends every connection what it does not have yet.
    fn update_all(&mut self) {
        let news = if self.is_here {
            Message::News {
                news: self.news,
                mac: mac_word(self.watchdog.info().mac.unwrap_or_default()),
                life: self.life,
            }
        } else {
            Message::Away
        };
        let alive = self.connections.iter().filter(|connection| !connection.is_over);
        let mut neighbours: Vec<Neighbour> = alive.filter_map(|connection| connection.here).collect();
        neighbours.sort_unstable_by_key(|neighbour| neighbour.0);
        for connection in self
            .connections
            .iter_mut()
            .filter(|connection| !connection.is_over)
        {
            connection.update((self.news_count, news), &neighbours);
        }
    }

    /// Lets go of connections that are over, once nothing of them is left.
    fn forget(&mut self) {
        let busy = self.job.filter(|job| job.requester != Requester::Orphan);
        let told = &mut self.told;
        self.connections.retain_mut(|connection| {
            let is_left = connection.is_over && connection.filters.is_empty() && connection.pairs.is_empty();
            let is_busy = busy.is_some_and(|job| connection.function() == Some(job.function));
            if !is_left || is_busy {
                connection.count_left();
                return true;
            }
            if let Some(function) = connection.function() {
                told.push(AgentEvent::Went(function, connection.left()));
            }
            false
        });
    }
}

/// Answers what needs no device; `None` where it does.
fn judge(connection: &Connection, request: Request) -> Option<Result<u64, Refusal>> {
    let own = connection.own.map(|(_, ip)| ip);
    match request {
        Request::Steer(Match::Ethertype(kind), _) if kind != ARP => Some(Err(Refusal::Never)),
        // No process may receive packets for another address than its own.
        Request::Steer(Match::Udp { address, .. }, _) if own != Some(address) => Some(Err(Refusal::Never)),
        Request::Steer(..) if connection.filters.len() == FILTERS_MOST => Some(Err(Refusal::Full)),
        Request::Enable(pair)
            if connection.pairs.len() == PAIRS_MOST && !connection.pairs.contains(&pair) =>
        {
            Some(Err(Refusal::Full))
        }
        // Others' filters are not its own to take away.
        Request::Unsteer(id) if !connection.filters.contains(&id) => Some(Ok(0)),
        _ => None,
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let end = Instant::now() + QUIT;
        for connection in &self.connections {
            let Some(function) = connection.function() else {
                continue;
            };
            let pairs = connection.pairs.iter().map(|pair| Request::Disable(*pair));
            let filters = connection.filters.iter().map(|filter| Request::Unsteer(*filter));
            for request in pairs.chain(filters) {
                if Instant::now() >= end {
                    return;
                }
                // If the device does not do it now, its end removes it anyway.
                let _ = self.watchdog.run(function, request);
            }
        }
    }
}
