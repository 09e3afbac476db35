//! A member that takes commands and reports events as lines of text: in the test itself, or in a process of
//! its own, which is this program, started again.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use doorbell_fabric::memory::Region;
use doorbell_job::Config;
use doorbell_job::lobby::{Address, PmlMember};
use doorbell_pml::{Payload, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent, Source, Target};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Ends a test that hangs.
pub(crate) const GUARD: Duration = Duration::from_secs(120);
const ROLE: &str = "DOORBELL_TEST_MEMBER";
/// The rails of a started process, where they are not those of this one.
const RAILS: &str = "DOORBELL_TEST_RAILS";

/// The context of tagged messages to endpoint 0.
const CONTEXT: u16 = 1 << 15;
/// Bytes of a message, at most.
const LONGEST: usize = 1024;

pub(crate) fn config() -> Config {
    let mut config = Config::default();
    // Small lanes, since some tests have thousands.
    config.set("shm.cells", "16").unwrap();
    config.set("shm.data", "128 KiB").unwrap();
    if let Ok(rails) = std::env::var(RAILS) {
        config.set("rails.list", &rails).unwrap();
        // A test of silence waits for it.
        config.set("btl.give_up", "3 s").unwrap();
    }
    config
}

/// A member with a receive for any message, and its events as lines.
pub(crate) struct Node {
    pub(crate) member: PmlMember,
    room: Region,
    receive: Option<RequestId>,
    sends: HashMap<RequestId, (u64, Region)>,
    texts: HashMap<String, Region>,
    window: Option<Region>,
    pub(crate) events: VecDeque<String>,
}

impl Node {
    pub(crate) fn enter() -> Self {
        let mut node = Self {
            member: PmlMember::enter(config()).unwrap(),
            room: Region::new(LONGEST).unwrap(),
            receive: None,
            sends: HashMap::new(),
            texts: HashMap::new(),
            window: None,
            events: VecDeque::new(),
        };
        node.receive();
        node
    }

    fn receive(&mut self) {
        self.receive_of(Source::Any);
    }

    /// Receives nothing more, until [`Node::receive_of`]: what comes is kept.
    pub(crate) fn pause(&mut self) {
        if let Some(receive) = self.receive.take() {
            self.member.pml().cancel(receive);
        }
    }

    /// Posts the receive for the next message of a source.
    pub(crate) fn receive_of(&mut self, from: Source) {
        let args = RecvArgs {
            from,
            context: CONTEXT,
            tag: 0,
            ignore: u64::MAX,
            target: Target::Region(self.room.whole()),
            notify: true,
        };
        self.receive = Some(self.member.pml().recv(args).unwrap());
    }

    pub(crate) fn address(&self) -> Address {
        self.member.address(0)
    }

    /// Sends a text; ends when it was matched.
    pub(crate) fn send(&mut self, to: &Address, tag: u64, text: &str) {
        self.send_as(SendMode::Synchronous, to, tag, text);
    }

    fn send_as(&mut self, mode: SendMode, to: &Address, tag: u64, text: &str) {
        match self.member.resolve(to) {
            Ok(rank) => self.send_by(mode, rank, tag, text),
            Err(error) => self.events.push_back(format!("sent {tag} refused: {error}")),
        }
    }

    /// The memory of a text that is sent: the same for each send of it.
    fn memory_of(&mut self, text: &str) -> Region {
        let make = || {
            let region = Region::new(text.len().max(1)).unwrap();
            region.write(0, text.as_bytes());
            region
        };
        self.texts.entry(text.to_owned()).or_insert_with(make).clone()
    }

    fn send_by(&mut self, mode: SendMode, rank: Rank, tag: u64, text: &str) {
        let region = self.memory_of(text);
        let args = SendArgs {
            to: rank,
            context: CONTEXT,
            tag,
            payload: Payload::Region(region.slice(0, text.len()).unwrap()),
            mode,
            notify: true,
        };
        match self.member.pml().send(args) {
            Ok(Sent::Pending(id)) => drop(self.sends.insert(id, (tag, region))),
            Ok(Sent::Done) => self.events.push_back(format!("sent {tag} ok")),
            Err(error) => self.events.push_back(format!("sent {tag} error: {error}")),
        }
        self.member.flush();
    }

    fn name(&self, rank: Rank) -> String {
        let peer = self.member.peer(rank);
        peer.map_or_else(|| format!("{rank:?}"), |peer| name_of(&peer.to_string()))
    }

    /// Makes one pass, and turns what has come into events.
    pub(crate) fn turn(&mut self) -> usize {
        let work = self.member.progress();
        while let Some(id) = self.member.pml().next_completion() {
            let Some(outcome) = self.member.pml().test(id) else {
                continue;
            };
            if self.receive == Some(id) {
                let status = outcome.unwrap();
                let mut text = vec![0; status.length as usize];
                self.room.read(0, &mut text);
                let (from, tag) = (self.name(status.source), status.tag);
                let text = String::from_utf8(text).unwrap();
                self.events.push_back(format!("got {tag} from {from}: {text}"));
                self.receive();
            } else if let Some((tag, _)) = self.sends.remove(&id) {
                let outcome = outcome.map_or_else(|error| format!("error: {error}"), |_| "ok".to_owned());
                self.events.push_back(format!("sent {tag} {outcome}"));
            }
        }
        while let Some((rank, reason)) = self.member.lost() {
            let why = self.member.trouble(rank).unwrap_or(reason.as_str()).to_owned();
            let line = format!("lost {}: {why}", self.name(rank));
            self.events.push_back(line);
        }
        while let Some(rank) = self.member.appeared() {
            let line = format!("appeared {}", self.name(rank));
            self.events.push_back(line);
        }
        work
    }

    /// As [`Node::turn`], for a node beside the one that waits.
    pub(crate) fn go_on(&mut self) {
        self.turn();
    }

    /// Sleeps until something comes, also from `other`.
    fn sleep(&mut self, other: BorrowedFd<'_>) {
        // A process without descriptors for the copies does not sleep.
        let mut copies = vec![other.try_clone_to_owned()];
        let busy = self.member.arm(&mut |fd| copies.push(fd.try_clone_to_owned()));
        let descriptors = copies.into_iter().collect::<Result<Vec<_>, _>>();
        if let (false, true, Ok(descriptors)) = (busy, self.events.is_empty(), descriptors) {
            let longest = self.member.idle().unwrap_or(GUARD).min(GUARD);
            let mut set: Vec<_> = descriptors
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            let _ = poll(&mut set, Some(&doorbell_fabric::poll::timespec(longest)));
        }
        self.member.disarm();
    }

    /// Makes passes until an event begins so; returns it. Events before it stay.
    pub(crate) fn until(&mut self, begin: &str) -> String {
        self.until_with(begin, &mut || {})
    }

    pub(crate) fn until_with(&mut self, begin: &str, also: &mut dyn FnMut()) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(|event| event.starts_with(begin)) {
                return self.events.remove(at).unwrap();
            }
            assert!(start.elapsed() < GUARD, "no {begin:?} among {:?}", self.events);
            if self.turn() == 0 {
                std::thread::yield_now();
            }
            also();
        }
    }

    /// Runs a command: `send ADDRESS TAG TEXT`, which ends when it was matched, `post` with the same, which
    /// ends when it is sent, `leave ADDRESS`, `window`, `word OFFSET` of it, `counts`, `files`, `limit COUNT`
    /// of further files, after which only `x` is sent, or `close`.
    fn run(&mut self, line: &str) -> bool {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            command @ ("send" | "post") => {
                let (to, tag, text) = (parse(word()), word().parse().unwrap(), word());
                let mode = if command == "post" {
                    SendMode::Standard
                } else {
                    SendMode::Synchronous
                };
                self.send_as(mode, &to, tag, text);
            }
            "leave" => {
                let rank = self.member.resolve(&parse(word())).unwrap();
                self.member.leave(rank);
            }
            "window" => {
                self.window = Some(super::windows::open(self));
                self.events.push_back("window is open".to_owned());
            }
            "word" => {
                let (at, mut bytes) = (word().parse().unwrap(), [0; 8]);
                let window = self.window.as_ref().unwrap();
                window.read(at, &mut bytes);
                self.events
                    .push_back(format!("word {}", u64::from_le_bytes(bytes)));
            }
            "counts" => {
                let line = format!("counts {} {:?}", self.member.peers(), self.member.desk_counts());
                self.events.push_back(line);
                let line = format!("hellos {:?}", self.member.hello_counts());
                self.events.push_back(line);
            }
            "files" => self.events.push_back(format!("files {}", open_files())),
            "limit" => {
                let more: u64 = word().parse().unwrap();
                // What is sent afterwards.
                self.memory_of("x");
                let limit = Rlimit {
                    current: Some(open_files() as u64 + more),
                    ..getrlimit(Resource::Nofile)
                };
                setrlimit(Resource::Nofile, limit).unwrap();
            }
            "close" => {
                self.member.close(Duration::from_secs(20));
                return false;
            }
            other => panic!("no command: {other:?}"),
        }
        true
    }
}

/// The first letters of a peer's name, as lines have it.
pub(crate) fn name_of(shown: &str) -> String {
    shown.rsplit('/').next().unwrap()[..8].to_owned()
}

pub(crate) fn name(address: &Address) -> String {
    name_of(&address.peer().to_string())
}

pub(crate) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

pub(crate) fn hex(address: &Address) -> String {
    address.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn parse(text: &str) -> Address {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::parse(&(0..text.len() / 2).map(byte).collect::<Vec<_>>()).unwrap()
}

/// What a started process does.
pub(crate) fn play() {
    match std::env::var(ROLE).as_deref() {
        Ok("member") => obey(),
        Ok("guests") => super::again::guests(),
        Ok("leaving") => super::again::leaving(),
        _ => {}
    }
}

/// Runs the commands of a test.
fn obey() {
    let mut node = Node::enter();
    let mut out = std::io::stdout();
    writeln!(out, "\naddress {}", hex(&node.address())).unwrap();
    let input = std::io::stdin();
    let mut unread = Vec::new();
    loop {
        let work = node.turn();
        while let Some(event) = node.events.pop_front() {
            writeln!(out, "{event}").unwrap();
        }
        out.flush().unwrap();
        while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = unread.drain(..=end).collect();
            if !node.run(std::str::from_utf8(&line[..end]).unwrap()) {
                // The harness's own words follow.
                writeln!(out, "closed").unwrap();
                out.flush().unwrap();
                std::process::exit(0);
            }
        }
        let ready = doorbell_fabric::poll::state(&input, PollFlags::IN).unwrap_or(PollFlags::empty());
        if !ready.is_empty() {
            let mut some = [0; 4096];
            match rustix::io::read(&input, &mut some) {
                // The test has ended.
                Ok(0) | Err(_) => std::process::exit(0),
                Ok(count) => unread.extend_from_slice(&some[..count]),
            }
        } else if work == 0 && node.events.is_empty() {
            node.sleep(input.as_fd());
        }
    }
}

/// This program, to be started again in a role.
pub(crate) fn alone(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// A process that plays a member. Dropped, it leaves nothing behind.
pub(crate) struct Other {
    child: Child,
    lines: Receiver<String>,
    seen: VecDeque<String>,
    address: Address,
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Other {
    pub(crate) fn start() -> Self {
        Self::of(alone("member"))
    }

    /// Starts one with these rails, in the network namespace of the calling thread.
    pub(crate) fn with_rails(rails: &str) -> Self {
        let mut command = alone("member");
        command.env(RAILS, rails);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut other = Self {
            child,
            lines,
            seen: VecDeque::new(),
            address: Node::no_process(),
        };
        let line = other.until("address ");
        other.address = parse(&line["address ".len()..]);
        other
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        let to = self.child.stdin.as_mut().unwrap();
        to.write_all(format!("{command}\n").as_bytes()).unwrap();
    }

    pub(crate) fn send(&mut self, to: &Address, tag: u64, text: &str) {
        self.tell(&format!("send {} {tag} {text}", hex(to)));
    }

    /// Whether an event that begins so has come; takes it.
    pub(crate) fn has(&mut self, begin: &str) -> Option<String> {
        self.seen.extend(self.lines.try_iter());
        let at = self.seen.iter().position(|line| line.starts_with(begin))?;
        self.seen.remove(at)
    }

    /// Waits for an event that begins so.
    pub(crate) fn until(&mut self, begin: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(line) = self.has(begin) {
                return line;
            }
            match self.lines.recv_timeout(GUARD.saturating_sub(start.elapsed())) {
                Ok(line) => self.seen.push_back(line),
                Err(error) => panic!("no {begin:?} ({error}) among {:?}", self.seen),
            }
        }
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The names of its Unix sockets in the abstract namespace.
    pub(crate) fn socket_names(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.pid());
        let inodes: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
            .filter_map(|link| {
                let link = link.to_string_lossy().into_owned();
                Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            })
            .collect();
        sockets()
            .into_iter()
            .filter(|(inode, _)| inodes.contains(inode))
            .map(|(_, name)| name)
            .collect()
    }
}

/// All named Unix sockets: inode and name.
pub(crate) fn sockets() -> Vec<(String, String)> {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(((*words.get(6)?).to_owned(), (*words.get(7)?).to_owned()))
    };
    all.lines().skip(1).filter_map(of).collect()
}

impl Node {
    /// An address that no process has.
    pub(crate) fn no_process() -> Address {
        let node = Self::enter();
        node.address()
    }
}
