//! A virtual function of an 82576, as far as its driver sees it: a thread behind the server of crate
//! `vfio_user`, by the datasheet and not by the driver.
//!
//! Its registers are plain shared memory, so what hardware does when a register is read or written happens a
//! moment later here: bits that a read takes away stay until the next write. Packets go to the function at
//! the other end of a [`Wire`].

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::ether::sum;
use doorbell_fabric::map::Object;
use vfio_bindings::bindings::vfio::{vfio_region_info, vfio_region_sparse_mmap_area};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea};

const BAR: usize = 16 << 10;
const VECTORS: u32 = 3;
const MSIX: u32 = 2;
const REQUEST_IRQ: u32 = 4;

/// Packets on their way.
pub(crate) type Wire = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// How the function and the physical one behave.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// What the physical function gives it; zeroes: none.
    pub(crate) mac: [u8; 6],
    /// The physical function answers.
    pub(crate) answers: bool,
    pub(crate) has_link: bool,
    /// It reports the checksums that it found.
    pub(crate) checks: bool,
    /// A byte of the next packet that is received is another one.
    pub(crate) spoils: u32,
    /// The false values of the next descriptors that are written back: status, length.
    pub(crate) lies: VecDeque<(u32, u16)>,
}

/// What tests may look at and change.
pub(crate) struct State {
    pub(crate) manner: Manner,
    /// Packets with a checksum that it made.
    pub(crate) summed: u32,
    /// Packets whose descriptors lead out of the memory that it may reach.
    pub(crate) stopped: u32,
    pub(crate) handshakes: u32,
    maps: Vec<(u64, u64, File)>,
    vectors: Vec<Option<File>>,
    request: Option<File>,
    config: Vec<u8>,
    contexts: [Option<(usize, usize)>; 2],
    /// Whether a reset was requested.
    resets: bool,
}

pub(crate) struct Vf {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) socket: PathBuf,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Vf {
    pub(crate) fn start(mac: [u8; 6], out: &Wire, into: &Wire) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("device");
        let registers = Object::new("registers", BAR).unwrap();
        let irqs = [0, 0, VECTORS, 1, 1].into_iter().enumerate();
        let irqs = irqs.map(|(index, count)| IrqInfo {
            index: index as u32,
            flags: 1,
            count,
        });
        let regions = regions(registers.as_fd().as_raw_fd());
        let server = Server::new(&socket, true, irqs.collect(), regions).unwrap();
        let manner = Manner {
            mac,
            answers: true,
            has_link: true,
            checks: true,
            spoils: 0,
            lies: VecDeque::new(),
        };
        let state = Arc::new(Mutex::new(State {
            manner,
            summed: 0,
            stopped: 0,
            handshakes: 0,
            maps: Vec::new(),
            vectors: (0..VECTORS).map(|_| None).collect(),
            request: None,
            config: config(),
            contexts: [None; 2],
            resets: false,
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let mut backend = Backend(Arc::clone(&state));
        let serving = std::thread::spawn(move || server.run(&mut backend).unwrap_or_default());
        let device = Registers(File::from(registers.as_fd().try_clone_to_owned().unwrap()));
        let (polled, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let (out, into) = (Arc::clone(out), Arc::clone(into));
        let polling = std::thread::spawn(move || {
            // The server names their file by its number.
            let _registers = registers;
            while !stopped.load(Ordering::Relaxed) {
                device.turn(&mut polled.lock().unwrap(), &out, &into);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        Self {
            state,
            socket,
            stop,
            threads: vec![serving, polling],
            _folder: folder,
        }
    }

    /// Changes how it behaves.
    pub(crate) fn be(&self, change: impl FnOnce(&mut Manner)) {
        change(&mut self.state.lock().unwrap().manner);
    }

    /// Resets the physical function.
    pub(crate) fn reset(&self) {
        self.state.lock().unwrap().resets = true;
    }

    /// Raises the request to give the function back.
    pub(crate) fn request(&self) {
        raise(self.state.lock().unwrap().request.as_ref());
    }
}

impl Drop for Vf {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A server that no client has called still waits for the one call that it takes.
        drop(std::os::unix::net::UnixStream::connect(&self.socket));
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the model panicked");
        }
    }
}

fn raise(event: Option<&File>) {
    if let Some(event) = event {
        std::io::Write::write_all(&mut &*event, &1u64.to_ne_bytes()).unwrap();
    }
}

struct Registers(File);

/// Offsets and bits, from the datasheet.
const CTRL: u64 = 0;
const STATUS: u64 = 0x8;
const VMBMEM: u64 = 0x800;
const V2PMAILBOX: u64 = 0xc40;
const EICS: u64 = 0x1520;
const EIMS: u64 = 0x1524;
const EIMC: u64 = 0x1528;
const RX: u64 = 0x2800;
const TX: u64 = 0x3800;
const ENABLE: u32 = 1 << 25;

impl Registers {
    fn get(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn put(&self, at: u64, value: u32) {
        self.0.write_all_at(&value.to_le_bytes(), at).unwrap();
    }

    fn turn(&self, state: &mut State, out: &Wire, into: &Wire) {
        self.put(STATUS, if state.manner.has_link { 0x83 } else { 0x81 });
        if self.get(CTRL) & 1 << 26 != 0 {
            self.turn_off(state);
            self.put(CTRL, 0);
        }
        if std::mem::take(&mut state.resets) {
            self.turn_off(state);
            // "I was reset", and a word that does not know this function.
            self.put(VMBMEM, 0x100);
            self.put(V2PMAILBOX, 1 << 7 | 1 << 4);
        }
        self.mailbox(state);
        self.interrupts(state);
        for queue in 0..2 {
            self.send(state, queue, out);
        }
        self.receive(state, into);
    }

    fn turn_off(&self, state: &mut State) {
        for queue in [RX, TX, TX + 0x100] {
            self.put(queue + 0x28, 0);
        }
        self.put(EIMS, 0);
        state.contexts = [None; 2];
    }

    fn mailbox(&self, state: &mut State) {
        match self.get(V2PMAILBOX) {
            1 if state.manner.answers => {
                let asked = self.get(VMBMEM);
                let [a, b, c, d, e, f] = state.manner.mac;
                let given = state.manner.mac != [0; 6];
                let yes = asked & 0xffff != 1 || given;
                self.put(
                    VMBMEM,
                    asked & 0xffff | if yes { 1 << 31 } else { 1 << 30 } | 1 << 29,
                );
                if asked & 0xffff == 1 {
                    state.handshakes += 1;
                    self.put(VMBMEM + 4, u32::from_le_bytes([a, b, c, d]));
                    self.put(VMBMEM + 8, u32::from_le_bytes([e, f, 0, 0]));
                }
                self.put(V2PMAILBOX, 1 << 4 | 1 << 5);
            }
            2 => self.put(V2PMAILBOX, 0),
            _ => {}
        }
    }

    fn interrupts(&self, state: &State) {
        let cleared = self.get(EIMC);
        if cleared != 0 {
            self.put(EIMC, 0);
            self.put(EIMS, self.get(EIMS) & !cleared);
        }
        let raised = self.get(EICS);
        if raised != 0 {
            self.put(EICS, 0);
            self.interrupt(state, raised);
        }
    }

    fn interrupt(&self, state: &State, causes: u32) {
        let let_through = self.get(EIMS) & causes;
        for vector in 0..VECTORS {
            if let_through & 1 << vector != 0 {
                self.put(EIMS, self.get(EIMS) & !(1 << vector));
                raise(state.vectors[vector as usize].as_ref());
            }
        }
    }

    fn base(&self, queue: u64) -> u64 {
        u64::from(self.get(queue)) | u64::from(self.get(queue + 4)) << 32
    }

    fn send(&self, state: &mut State, number: usize, out: &Wire) {
        let queue = TX + number as u64 * 0x100;
        if self.get(queue + 0x28) & ENABLE == 0 {
            return;
        }
        let entries = self.get(queue + 8) / 16;
        let tail = self.get(queue + 0x18);
        let mut head = self.get(queue + 0x10);
        while head != tail && entries > 0 {
            let at = self.base(queue) + u64::from(head) * 16;
            if let Some(mut descriptor) = state.read::<16>(at) {
                state.process(number, &mut descriptor, out);
                state.write(at, &descriptor);
            } else {
                state.stopped += 1;
            }
            head = (head + 1) % entries;
            self.put(queue + 0x10, head);
        }
    }

    fn receive(&self, state: &mut State, into: &Wire) {
        if self.get(RX + 0x28) & ENABLE == 0 {
            return;
        }
        let (entries, room) = (
            self.get(RX + 8) / 16,
            ((self.get(RX + 0xc) & 0x7f) as usize) << 10,
        );
        let mut came = false;
        loop {
            let head = self.get(RX + 0x10);
            if head == self.get(RX + 0x18) {
                break;
            }
            let Some(packet) = into.lock().unwrap().pop_front() else {
                break;
            };
            let at = self.base(RX) + u64::from(head) * 16;
            state.deliver(at, packet, room);
            self.put(RX + 0x10, (head + 1) % entries);
            came = true;
        }
        if came {
            self.interrupt(state, 1);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl State {
    fn place(&self, address: u64, length: usize) -> Option<(&File, u64)> {
        let inside = |map: &&(u64, u64, File)| address >= map.0 && address + length as u64 <= map.0 + map.1;
        self.maps
            .iter()
            .find(inside)
            .map(|(start, _, file)| (file, address - start))
    }

    fn read<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let (file, at) = self.place(address, N)?;
        let mut bytes = [0; N];
        file.read_exact_at(&mut bytes, at).unwrap();
        Some(bytes)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.place(address, bytes.len())
            .map(|(file, at)| file.write_all_at(bytes, at).unwrap())
            .is_some()
    }

    fn process(&mut self, number: usize, descriptor: &mut [u8; 16], out: &Wire) {
        let (command, options) = (word(descriptor, 8), word(descriptor, 12));
        assert!(command & 1 << 29 != 0, "an advanced descriptor");
        if command >> 20 & 0xf == 2 {
            let lengths = word(descriptor, 0);
            self.contexts[number] = Some(((lengths >> 9 & 0x7f) as usize, (lengths & 0x1ff) as usize));
            return;
        }
        let (address, length) = (
            u64::from_le_bytes(descriptor[..8].try_into().unwrap()),
            command as usize & 0xffff,
        );
        assert_eq!(options >> 14, length as u32, "one descriptor a packet");
        let mut packet = vec![0; length];
        match self.place(address, length) {
            Some((file, at)) => file.read_exact_at(&mut packet, at).unwrap(),
            None => {
                self.stopped += 1;
                return;
            }
        }
        if options & 1 << 9 != 0 {
            let (link, ip) = self.contexts[number].expect("a context before its packets");
            let at = link + ip;
            let value = match !doorbell_fabric::ether::fold(sum(&packet[at..])) {
                0 => u16::MAX,
                value => value,
            };
            packet[at + 6..at + 8].copy_from_slice(&value.to_be_bytes());
            self.summed += 1;
        }
        out.lock().unwrap().push_back(packet);
        if command & 1 << 27 != 0 {
            descriptor[12] |= 1;
        }
    }

    fn deliver(&mut self, at: u64, mut packet: Vec<u8>, room: usize) {
        if self.manner.spoils > 0 {
            self.manner.spoils -= 1;
            *packet.last_mut().unwrap() ^= 0x40;
        }
        let Some(descriptor) = self.read::<16>(at) else {
            self.stopped += 1;
            return;
        };
        let buffer = u64::from_le_bytes(descriptor[..8].try_into().unwrap());
        if packet.len() > room || !self.write(buffer, &packet) {
            self.stopped += 1;
            return;
        }
        let checked = if self.manner.checks { verdict(&packet) } else { 0 };
        let (status, length) = self
            .manner
            .lies
            .pop_front()
            .unwrap_or((3 | checked, packet.len() as u16));
        let mut back = [0; 16];
        back[8..12].copy_from_slice(&status.to_le_bytes());
        back[12..14].copy_from_slice(&length.to_le_bytes());
        self.write(at, &back);
    }
}

/// The device's verdict on UDP's checksum.
fn verdict(packet: &[u8]) -> u32 {
    let (at, addresses) = match packet[12..14] {
        [0x08, 0x00] if packet[23] == 17 => (34, &packet[26..34]),
        [0x86, 0xdd] if packet[20] == 17 => (54, &packet[22..54]),
        _ => return 0,
    };
    let length = u64::from(u16::from_be_bytes([packet[at + 4], packet[at + 5]]));
    let all = sum(addresses) + 17 + length + sum(&packet[at..at + length as usize]);
    let right = doorbell_fabric::ether::fold(all) == u16::MAX;
    1 << 4 | 1 << 5 | if right { 0 } else { 1 << 29 }
}

fn regions(file: i32) -> Vec<ServerRegion> {
    let region = |index: u32| {
        let (size, flags) = match index {
            0 => (BAR as u64, 7),
            7 => (256, 3),
            _ => (0, 0),
        };
        let area = SparseArea {
            area: vfio_region_sparse_mmap_area {
                offset: 0,
                size: BAR as u64,
            },
        };
        ServerRegion {
            region_info: vfio_region_info {
                argsz: 32,
                flags,
                index,
                size,
                ..Default::default()
            },
            sparse_areas: if index == 0 { vec![area] } else { Vec::new() },
            mmap_fd: (index == 0).then_some(file),
        }
    };
    (0..9).map(region).collect()
}

fn config() -> Vec<u8> {
    let mut config = vec![0; 256];
    config[..4].copy_from_slice(&[0x86, 0x80, 0xca, 0x10]);
    config[0x06] = 0x10;
    config[0x34] = 0x70;
    config[0x70..0x74].copy_from_slice(&[0x11, 0, VECTORS as u8 - 1, 0]);
    config
}

struct Backend(Arc<Mutex<State>>);

fn refuse<T>() -> std::io::Result<T> {
    Err(std::io::Error::other("no"))
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        let state = self.0.lock().unwrap();
        let at = offset as usize;
        match state.config.get(at..at + data.len()) {
            Some(bytes) if region == 7 => data.copy_from_slice(bytes),
            _ => return refuse(),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let at = offset as usize;
        match state.config.get_mut(at..at + data.len()) {
            Some(room) if region == 7 => room.copy_from_slice(data),
            _ => return refuse(),
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> std::io::Result<()> {
        match fd {
            Some(file) if offset == 0 => self.0.lock().unwrap().maps.push((address, size, file)),
            _ => return refuse(),
        }
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state
            .maps
            .retain(|(start, length, _)| (*start, *length) != (address, size));
        Ok(())
    }

    fn reset(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap().config[0x04] = 0;
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if index == REQUEST_IRQ {
            state.request = fds.into_iter().next();
        } else if index == MSIX && flags & 1 != 0 && count == 0 {
            state.vectors.fill_with(|| None);
        } else if index == MSIX {
            for (place, file) in (start as usize..).zip(fds) {
                state.vectors[place] = Some(file);
            }
        }
        Ok(())
    }
}
