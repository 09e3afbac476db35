//! A small device, modelled by a thread behind the server of crate `vfio_user`.
//!
//! BAR 0 has four pages: the first and the last two are shared memory, the second is reached by messages. A
//! bus address written to the doorbell (0x10 of the shared page, or 0x1000 by message) lets the device read
//! eight bytes there, write them plus one behind them, and raise vector 0.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::map::Object;
use vfio_bindings::bindings::vfio::{vfio_region_info, vfio_region_sparse_mmap_area};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const DOORBELL: u64 = 0x10;
pub(crate) const TRAPPED: u64 = 0x1000;
pub(crate) const VECTORS: u32 = 3;
/// A slab of this many bytes, the device does not take.
pub(crate) const REFUSED: u64 = 3 * PAGE;

/// What the device knows, for the tests to look at.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) config: Vec<u8>,
    pub(crate) registers: Vec<u8>,
    pub(crate) maps: Vec<(u64, u64, File)>,
    pub(crate) vectors: Vec<Option<File>>,
    pub(crate) resets: u32,
    /// How many messages each setting of vectors took.
    pub(crate) settings: u32,
    /// It refuses to let memory go.
    pub(crate) holds_on: bool,
}

pub(crate) struct Model {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) socket: PathBuf,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Model {
    pub(crate) fn start(is_resettable: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("device");
        let registers = Arc::new(Object::new("registers", 4 * PAGE as usize).unwrap());
        let irqs = [0, 0, VECTORS, 1, 1].into_iter().enumerate();
        let irqs = irqs.map(|(index, count)| IrqInfo {
            index: index as u32,
            flags: 1,
            count,
        });
        let regions = regions(registers.as_fd().as_raw_fd());
        let server = Server::new(&socket, is_resettable, irqs.collect(), regions).unwrap();
        let state = Arc::new(Mutex::new(State {
            config: config(),
            registers: vec![0; PAGE as usize],
            vectors: (0..VECTORS).map(|_| None).collect(),
            ..State::default()
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let mut backend = Backend(Arc::clone(&state));
        let serving = std::thread::spawn(move || server.run(&mut backend).unwrap_or_default());
        let (polled, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let polling = std::thread::spawn(move || poll(&registers, &polled, &stopped));
        Self {
            state,
            socket,
            stop,
            threads: vec![serving, polling],
            _folder: folder,
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A server without a client still waits for the one connection that it takes.
        drop(std::os::unix::net::UnixStream::connect(&self.socket));
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the model panicked");
        }
    }
}

/// Looks at the doorbell in shared memory, as hardware would.
fn poll(registers: &Object, state: &Mutex<State>, stop: &AtomicBool) {
    let file = File::from(registers.as_fd().try_clone_to_owned().unwrap());
    while !stop.load(Ordering::Relaxed) {
        let mut address = [0; 8];
        file.read_exact_at(&mut address, DOORBELL).unwrap();
        if address != [0; 8] {
            file.write_all_at(&[0; 8], DOORBELL).unwrap();
            state.lock().unwrap().ring(u64::from_le_bytes(address));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl State {
    fn ring(&self, address: u64) {
        let inside = |map: &&(u64, u64, File)| address >= map.0 && address + 16 <= map.0 + map.1;
        let Some((start, _, file)) = self.maps.iter().find(inside) else {
            return;
        };
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, address - start).unwrap();
        let answer = u64::from_le_bytes(bytes) + 1;
        file.write_all_at(&answer.to_le_bytes(), address - start + 8)
            .unwrap();
        self.vectors[0].iter().for_each(raise);
    }
}

fn raise(event: &File) {
    std::io::Write::write_all(&mut &*event, &1u64.to_ne_bytes()).unwrap();
}

fn regions(file: i32) -> Vec<ServerRegion> {
    let region = |index: u32| {
        let (size, flags) = match index {
            0 => (4 * PAGE, 7),
            7 => (256, 3),
            _ => (0, 0),
        };
        let area = |offset, size| SparseArea {
            area: vfio_region_sparse_mmap_area { offset, size },
        };
        ServerRegion {
            region_info: vfio_region_info {
                argsz: 32,
                flags,
                index,
                size,
                ..Default::default()
            },
            sparse_areas: if index == 0 {
                vec![area(0, PAGE), area(2 * PAGE, 2 * PAGE)]
            } else {
                Vec::new()
            },
            mmap_fd: (index == 0).then_some(file),
        }
    };
    (0..9).map(region).collect()
}

/// The header of an 82576's virtual function, with one capability: three MSI-X vectors.
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
        let (from, at) = match region {
            7 => (&state.config, offset as usize),
            0 if offset >= TRAPPED => (&state.registers, (offset - TRAPPED) as usize),
            _ => return refuse(),
        };
        let Some(bytes) = from.get(at..at + data.len()) else {
            return refuse();
        };
        data.copy_from_slice(bytes);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if region == 0 && offset == TRAPPED && data.len() == 8 {
            state.ring(u64::from_le_bytes(data.try_into().unwrap()));
            return Ok(());
        }
        let state = &mut *state;
        let (to, at) = match region {
            7 => (&mut state.config, offset as usize),
            0 if offset >= TRAPPED => (&mut state.registers, (offset - TRAPPED) as usize),
            _ => return refuse(),
        };
        let Some(room) = to.get_mut(at..at + data.len()) else {
            return refuse();
        };
        room.copy_from_slice(data);
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
            Some(file) if offset == 0 && size != REFUSED => {
                self.0.lock().unwrap().maps.push((address, size, file));
                Ok(())
            }
            _ => refuse(),
        }
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let before = state.maps.len();
        if !state.holds_on {
            state
                .maps
                .retain(|(start, length, _)| (*start, *length) != (address, size));
        }
        if state.maps.len() == before {
            refuse()
        } else {
            Ok(())
        }
    }

    fn reset(&mut self) -> std::io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.resets += 1;
        state.config[0x04] = 0;
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
        state.settings += 1;
        if index != 2 {
            return if index > 2 { Ok(()) } else { refuse() };
        }
        if flags & 1 != 0 && count == 0 {
            state.vectors.fill_with(|| None);
            return Ok(());
        }
        if flags & 1 != 0 {
            let vectors = state.vectors.iter().skip(start as usize).take(count as usize);
            vectors.flatten().for_each(raise);
            return Ok(());
        }
        for (place, file) in (start as usize..).zip(fds) {
            let Some(vector) = state.vectors.get_mut(place) else {
                return refuse();
            };
            *vector = Some(file);
        }
        Ok(())
    }
}
