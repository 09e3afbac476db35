//! A client for tests, by hand: messages of vfio-user, registers through the shared file, memory of its own.
//! No map and no driver: the file of a memfd is read and written by calls, which see the same bytes.

#![allow(dead_code, unreachable_pub)] // no user of this module uses all of it

pub mod queues;
pub mod scene;

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use doorbell_vic::{Model, Options};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Longer than anything takes here, on a machine with other work.
pub const SOON: Duration = Duration::from_secs(60);

pub const WQ: u8 = 1;
pub const RQ: u8 = 2;
pub const CQ: u8 = 3;
pub const INTR: u8 = 10;
pub const DEVCMD: u8 = 16;
pub const DEVCMD2: u8 = 24;

pub const CAPABILITY: u32 = 0xC001_C024;
pub const PROXY_BY_INDEX: u32 = 0xC001_C02B;
pub const ADD_FILTER: u32 = 0xC000_403A;
pub const DEL_FILTER: u32 = 0x4000_403B;
pub const QP_ENABLE: u32 = 0x4000_403C;
pub const QP_DISABLE: u32 = 0x4000_403D;
pub const MAC_ADDR: u32 = 0x8000_C009;
pub const OPEN: u32 = 0x4101_C017;
pub const OPEN_STATUS: u32 = 0x8001_C018;
pub const INIT: u32 = 0x4101_C023;
pub const INIT_STATUS: u32 = 0x8001_C01F;
pub const ENABLE_WAIT: u32 = 0x4001_C01C;
pub const DISABLE: u32 = 0x0001_C01D;
pub const CLOSE: u32 = 0x0001_C019;
pub const PACKET_FILTER: u32 = 0x4100_4007;
pub const DEV_SPEC: u32 = 0xC001_C002;
pub const STATS_DUMP: u32 = 0x4001_C004;
pub const NOTIFY: u32 = 0xC001_C015;
pub const SOFT_RESET: u32 = 0x0101_C013;
pub const SOFT_RESET_STATUS: u32 = 0x8001_C014;
pub const FW_INFO: u32 = 0xC001_C001;

/// The arguments of a command: the given ones, then zeroes.
pub fn args(given: &[u64]) -> [u64; 15] {
    let mut all = [0; 15];
    all[..given.len()].copy_from_slice(given);
    all
}

/// Waits for something.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < SOON, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Starts a model in a folder of its own.
pub fn model(change: impl FnOnce(&mut Options)) -> (Model, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options {
        dir: Some(folder.path().join("vic")),
        ..Options::default()
    };
    change(&mut options);
    (Model::start(options).unwrap(), folder)
}

/// A connected client.
pub struct Client {
    stream: UnixStream,
    next: u16,
    /// BAR0: its length, what is memory of it, and the file.
    pub length: u64,
    pub areas: Vec<(u64, u64)>,
    pub bar: Option<File>,
    /// All entries of the table: type, BAR, offset, count.
    pub table: Vec<(u8, u8, u32, u32)>,
    memory: Vec<(u64, u64, File)>,
}

pub type Reply = (Vec<u8>, Vec<OwnedFd>);

impl Client {
    /// Connects to a function, agrees on a version, finds registers and reads the table; lets it be bus
    /// master.
    pub fn new(model: &Model, function: &str) -> Self {
        let socket = model
            .sockets()
            .iter()
            .find(|socket| socket.function == function)
            .unwrap();
        Self::connect(&socket.path).unwrap()
    }

    pub fn connect(path: &Path) -> Result<Self, i32> {
        let stream = UnixStream::connect(path).map_err(|error| error.raw_os_error().unwrap_or(-1))?;
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut client = Self {
            stream,
            next: 0,
            length: 0,
            areas: Vec::new(),
            bar: None,
            table: Vec::new(),
            memory: Vec::new(),
        };
        let mut version = vec![0, 0, 1, 0];
        version.extend(b"{\"capabilities\":{\"max_msg_fds\":16}}\0");
        let (answer, _) = client.ask(1, &version, &[])?;
        assert_eq!(answer[..2], [0, 0]);
        client.registers();
        client.read_table();
        client.config_write(4, &6u16.to_le_bytes());
        Ok(client)
    }

    /// Sends a message and waits for its answer; the error is its number.
    pub fn ask(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Reply, i32> {
        self.send(command, body, files);
        let (answer, body, files) = self.receive().ok_or(-1)?;
        assert_eq!(
            (answer.0, answer.1),
            (self.next, command),
            "the answer to this request"
        );
        match answer.2 & 0x20 {
            0 => Ok((body, files)),
            _ => Err(answer.3 as i32),
        }
    }

    pub fn send(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.next += 1;
        let mut message = Vec::new();
        message.extend(self.next.to_le_bytes());
        message.extend(command.to_le_bytes());
        message.extend((16 + body.len() as u32).to_le_bytes());
        message.extend([0; 8]);
        message.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let count = rustix::net::sendmsg(
            &self.stream,
            &[IoSlice::new(&message)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        assert_eq!(count, Ok(message.len()));
    }

    /// The next message: number, command, flags, error; body; files. `None` at the end.
    #[allow(clippy::type_complexity)]
    pub fn receive(&mut self) -> Option<((u16, u16, u32, u32), Vec<u8>, Vec<OwnedFd>)> {
        let mut header = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let room = &mut [std::io::IoSliceMut::new(&mut header)];
        let received = rustix::net::recvmsg(&self.stream, room, &mut control, RecvFlags::WAITALL).ok()?;
        if received.bytes != 16 {
            return None;
        }
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                files.extend(passed);
            }
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut body).ok()?;
        let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        Some(((half(0), half(2), word(8), word(12)), body, files))
    }

    /// Answers a request of the model.
    pub fn reply(&mut self, (number, command): (u16, u16), flags: u32, body: &[u8]) {
        let mut message = Vec::new();
        message.extend(number.to_le_bytes());
        message.extend(command.to_le_bytes());
        message.extend((16 + body.len() as u32).to_le_bytes());
        message.extend(flags.to_le_bytes());
        message.extend([0; 4]);
        message.extend(body);
        self.stream.write_all(&message).unwrap();
    }

    fn registers(&mut self) {
        let ask = |room: u32| {
            let mut body = Vec::new();
            for word in [room, 0, 0, 0, 0, 0, 0, 0] {
                body.extend(word.to_le_bytes());
            }
            body
        };
        let (first, _) = self.ask(5, &ask(32), &[]).unwrap();
        let room = u32::from_le_bytes(first[..4].try_into().unwrap());
        let (answer, files) = self.ask(5, &ask(room), &[]).unwrap();
        let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().unwrap());
        self.length = word(16);
        self.bar = files.into_iter().next().map(File::from);
        if answer.len() > 32 {
            let count = u32::from_le_bytes(answer[40..44].try_into().unwrap()) as usize;
            self.areas = (0..count)
                .map(|area| (word(48 + 16 * area), word(56 + 16 * area)))
                .collect();
        }
    }

    fn read_table(&mut self) {
        let at = match self.read32(0) {
            0x766e_6963 => 8,
            0x544d_474d => 28,
            other => panic!("a magic of {other:#x}"),
        };
        for entry in 0.. {
            let at = at + 12 * entry;
            let head = self.read32(at).to_le_bytes();
            if head[0] == 0 {
                break;
            }
            let (offset, count) = (self.read32(at + 4), self.read32(at + 8));
            self.table.push((head[0], head[1], offset, count));
        }
    }

    /// Where an instance is.
    pub fn find(&self, kind: u8, index: u32) -> u64 {
        let entry = self.table.iter().find(|entry| entry.0 == kind && entry.1 == 0);
        let (.., at, count) = *entry.unwrap_or_else(|| panic!("no resource {kind}"));
        assert!(index < count);
        u64::from(at + 128 * index)
    }

    fn file(&self, at: u64) -> Option<&File> {
        let is_memory = self
            .areas
            .iter()
            .any(|(start, length)| (*start..start + length).contains(&at));
        self.bar.as_ref().filter(|_| is_memory)
    }

    pub fn region_read(&mut self, region: u32, at: u64, to: &mut [u8]) -> Result<(), i32> {
        let mut body = at.to_le_bytes().to_vec();
        body.extend(region.to_le_bytes());
        body.extend((to.len() as u32).to_le_bytes());
        let (answer, _) = self.ask(9, &body, &[])?;
        to.copy_from_slice(&answer[16..]);
        Ok(())
    }

    pub fn region_write(&mut self, region: u32, at: u64, bytes: &[u8]) -> Result<(), i32> {
        let mut body = at.to_le_bytes().to_vec();
        body.extend(region.to_le_bytes());
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend(bytes);
        self.ask(10, &body, &[]).map(drop)
    }

    pub fn bytes(&mut self, at: u64, to: &mut [u8]) {
        match self.file(at) {
            Some(file) => file.read_exact_at(to, at).unwrap(),
            None => self.region_read(0, at, to).unwrap(),
        }
    }

    pub fn put_bytes(&mut self, at: u64, bytes: &[u8]) {
        match self.file(at) {
            Some(file) => file.write_all_at(bytes, at).unwrap(),
            None => self.region_write(0, at, bytes).unwrap(),
        }
    }

    pub fn read32(&mut self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.bytes(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn write32(&mut self, at: u64, value: u32) {
        self.put_bytes(at, &value.to_le_bytes());
    }

    pub fn read64(&mut self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.bytes(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub fn write64(&mut self, at: u64, value: u64) {
        self.put_bytes(at, &value.to_le_bytes());
    }

    pub fn config_read(&mut self, at: u64, to: &mut [u8]) {
        self.region_read(7, at, to).unwrap();
    }

    pub fn config_write(&mut self, at: u64, bytes: &[u8]) {
        self.region_write(7, at, bytes).unwrap();
    }

    pub fn reset(&mut self) {
        self.ask(13, &[], &[]).unwrap();
    }

    /// Lets the device reach a file's bytes; flags 1 read, 2 write.
    pub fn dma_map(&mut self, at: u64, length: u64, flags: u32, file: Option<&File>) -> Result<(), i32> {
        let mut body = 32u32.to_le_bytes().to_vec();
        body.extend(flags.to_le_bytes());
        for word in [0, at, length] {
            body.extend(word.to_le_bytes());
        }
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        self.ask(2, &body, &files).map(drop)
    }

    pub fn dma_unmap(&mut self, at: u64, length: u64) -> Result<(), i32> {
        let mut body = 24u32.to_le_bytes().to_vec();
        body.extend([0; 4]);
        for word in [at, length] {
            body.extend(word.to_le_bytes());
        }
        self.ask(3, &body, &[]).map(drop)
    }

    /// Memory of the client that the device may reach.
    pub fn share(&mut self, at: u64, length: u64) {
        let file = memory(length, true);
        self.dma_map(at, length, 3, Some(&file)).unwrap();
        self.memory.push((at, length, file));
    }

    pub fn mem_write(&self, at: u64, bytes: &[u8]) {
        let (start, _, file) = self.part(at);
        file.write_all_at(bytes, at - start).unwrap();
    }

    pub fn mem_read(&self, at: u64, to: &mut [u8]) {
        let (start, _, file) = self.part(at);
        file.read_exact_at(to, at - start).unwrap();
    }

    fn part(&self, at: u64) -> &(u64, u64, File) {
        self.memory
            .iter()
            .find(|(start, length, _)| (*start..start + length).contains(&at))
            .unwrap()
    }

    /// Writes a command and returns at once.
    pub fn command(&mut self, command: u32, args: &[u64; 15]) {
        let at = self.find(DEVCMD, 0);
        for (index, value) in (0..).zip(args) {
            self.write64(at + 8 + 8 * index, *value);
        }
        self.write32(at + 4, command);
    }

    /// A command to its end: results, or the error's number.
    pub fn devcmd(&mut self, command: u32, given: &[u64]) -> Result<[u64; 15], u64> {
        self.command(command, &args(given));
        let at = self.find(DEVCMD, 0);
        if self.file(at).is_some() {
            // In memory, a command that was seen is taken away.
            until("the command is seen", || self.read32(at + 4) == 0);
        }
        let begun = Instant::now();
        while self.read32(at) & 1 != 0 {
            assert!(begun.elapsed() < SOON, "busy for ever: {command:#x}");
        }
        let mut results = [0; 15];
        for (index, value) in (0..).zip(&mut results) {
            *value = self.read64(at + 8 + 8 * index);
        }
        match self.read32(at) & 2 {
            0 => Ok(results),
            _ => Err(results[0]),
        }
    }

    /// A command of a virtual function, by the physical one.
    pub fn proxy(&mut self, vf: u64, command: u32, given: &[u64]) -> Result<[u64; 15], u64> {
        let mut outer = vec![vf, command.into()];
        outer.extend(given);
        let results = self.devcmd(PROXY_BY_INDEX, &outer).expect("the proxy itself");
        let mut inner = [0; 15];
        inner[..14].copy_from_slice(&results[1..]);
        match results[0] & 2 {
            0 => Ok(inner),
            _ => Err(results[1]),
        }
    }

    /// Sets up one vector's bell.
    pub fn bell(&mut self, vector: u32) -> OwnedFd {
        use rustix::event::EventfdFlags;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let mut body = Vec::new();
        for word in [20, 4 | 32, 2, vector, 1] {
            body.extend(u32::to_le_bytes(word));
        }
        self.ask(8, &body, &[bell.as_fd()]).unwrap();
        bell
    }
}

/// How often a bell was rung since the last look.
pub fn rung(bell: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(bell, &mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}

/// A file of memory.
pub fn memory(length: u64, sealed: bool) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("client", flags).unwrap();
    rustix::fs::ftruncate(&file, length).unwrap();
    if sealed {
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    }
    file.into()
}
