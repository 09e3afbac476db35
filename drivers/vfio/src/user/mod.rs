//! A device emulated by another process, over a Unix socket: vfio-user.
//!
//! Registers are shared memory where the model offers them, and messages elsewhere; memory is passed as
//! descriptors; interrupts are eventfds. So the data path is the same as with a device, and needs neither a
//! device nor rights.
//!
//! The client of crate `vfio_user` 0.1.7 is not used, only its server, by the tests; each of these cannot be
//! mended from outside, because the socket is private to it:
//!
//! | `vfio_user::Client` | here |
//! |---|---|
//! | `resettable()` returns the opposite | as the server reports |
//! | replies that refuse count as done (`dma_map`, `set_irqs`, `reset`) | [`Error::Refused`] with the server's reason |
//! | `region_read` waits for ever for the rest of a refusal | a message has its header's length |
//! | no wait ends where the server is silent | each has a deadline; the line is closed then |
//! | wrong lengths end the process (assertion, subtraction) | [`Error::Hostile`] |
//! | number, command and type of a reply are not looked at | they must be those of the request |
//! | the server's limit of descriptors is ignored | vectors are set up in as many messages as it takes |
//! | `&mut self` | a mutex: this is the control path |
//!
//! A model that cuts its file short while it is mapped ends this process with SIGBUS: the file is as long as
//! it must be when it is mapped, and afterwards the model is trusted that far.

mod line;
mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use doorbell_fabric::memory::Region;

use crate::bar::Bar;
use crate::device::{Backend, Device, Irq, IrqInfo, RegionIndex, RegionInfo};
use crate::error::Error;
use crate::iova::Range;
use line::Line;
use wire::{Command, Described, Limits, MOST, REGION_INFO, Writer};

/// How long a model may take for an answer.
const LIMIT: Duration = Duration::from_secs(2);

/// Any 48 bits are a bus address to a model.
const ADDRESSES: Range = Range {
    first: 0,
    last: (1 << 48) - 1,
};

/// Flags of SET_IRQS and GET_IRQ_INFO (linux/vfio.h).
const DATA_NONE: u32 = 1 << 0;
const DATA_EVENTFD: u32 = 1 << 2;
const ACTION_TRIGGER: u32 = 1 << 5;
const BY_EVENT: u32 = 1 << 0;
/// Flags of DMA_MAP.
const READ_WRITE: u32 = 3;

/// A device behind a socket.
#[derive(Debug)]
pub struct UserDevice {
    name: String,
    line: Mutex<Line>,
    regions: Vec<Known>,
    irqs: u32,
    is_resettable: bool,
    limits: Limits,
}

/// A region, and where it can be mapped from.
#[derive(Debug, Default)]
struct Known {
    info: RegionInfo,
    file: Option<(OwnedFd, u64)>,
}

impl UserDevice {
    /// Connects to an emulated device and queries its regions and interrupts. No reply may take longer than
    /// two seconds.
    ///
    /// # Errors
    /// [`Error::Gone`] when nothing listens, [`Error::Silent`] when there is no reply, [`Error::Hostile`]
    /// when the replies are not those of a PCI device.
    pub fn connect(socket: &Path) -> Result<Self, Error> {
        Self::connect_within(socket, LIMIT)
    }

    /// Connects with another limit for each answer, now and later.
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    pub fn connect_within(socket: &Path, limit: Duration) -> Result<Self, Error> {
        let mut line = Line::connect(socket, limit)?;
        let answer = line.ask(Command::Version, wire::version(), &[])?;
        let limits = wire::limits(&answer.payload)
            .ok_or_else(|| line.hostile("has another protocol version of vfio-user than 0"))?;
        let body = Writer::default().u32(16).u32(0).u32(0).u32(0);
        let answer = line.ask(Command::GetInfo, body, &[])?;
        let info =
            wire::device_info(&answer.payload).filter(|info| info.regions <= MOST && info.irqs <= MOST);
        let info = info.ok_or_else(|| line.hostile("sent an invalid description of the device"))?;
        if !info.is_pci {
            return Err(line.hostile("is not a PCI device"));
        }
        let regions = (0..info.regions)
            .map(|index| known(&mut line, index))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name: line.name().to_owned(),
            line: Mutex::new(line),
            regions,
            irqs: info.irqs,
            is_resettable: info.is_resettable,
            limits,
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // A line in the middle of something is closed, whatever panicked.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, index: RegionIndex) -> Option<&Known> {
        self.regions.get(index.number() as usize)
    }

    fn outside(&self, region: RegionIndex, at: u64, length: usize, reason: &'static str) -> Error {
        Error::OutOfRegion {
            device: self.name.clone(),
            region,
            at,
            length: length as u64,
            reason,
        }
    }

    /// Whether an access is inside of a region and of a message.
    fn inside(&self, region: RegionIndex, at: u64, length: usize) -> Result<(), Error> {
        let end = at.checked_add(length as u64);
        let has = self.known(region).map_or(0, |known| known.info.length);
        if end.is_none_or(|end| end > has) {
            return Err(self.outside(region, at, length, "are not all inside it"));
        }
        if length > self.limits.data {
            return Err(self.outside(region, at, length, "are more than one message can carry"));
        }
        Ok(())
    }

    fn set_irqs(
        &self,
        kind: Irq,
        flags: u32,
        (start, count): (u32, u32),
        events: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let body = Writer::default()
            .u32(20)
            .u32(flags | ACTION_TRIGGER)
            .u32(kind as u32)
            .u32(start);
        let body = body.u32(count);
        self.line().ask(Command::SetIrqs, body, events).map(drop)
    }
}

/// Queries a region, twice if the first reply announces a longer description.
fn known(line: &mut Line, index: u32) -> Result<Known, Error> {
    let mut room = REGION_INFO;
    loop {
        let body = Writer::default()
            .u32(room as u32)
            .u32(0)
            .u32(index)
            .u32(0)
            .u64(0)
            .u64(0);
        let answer = line.ask(Command::GetRegionInfo, body, &[])?;
        let described = wire::region_info(&answer.payload);
        let Some(Described { info, from, whole }) = described else {
            return Err(line.hostile("sent an invalid description of a region"));
        };
        if whole > room && room == REGION_INFO && whole <= wire::LONGEST_DATA {
            room = whole;
            continue;
        }
        if whole > answer.payload.len() {
            return Err(line.hostile("sent a region's description shorter than announced"));
        }
        let file = answer.descriptors.into_iter().next();
        if let Some(file) = &file
            && !reaches(file, from, &info)
        {
            return Err(line.hostile("offers to map a part of a region beyond the end of its file"));
        }
        return Ok(Known {
            info: RegionInfo {
                // Nothing to map without a file.
                areas: if file.is_some() { info.areas } else { Vec::new() },
                ..info
            },
            file: file.map(|file| (file, from)),
        });
    }
}

/// Whether a file is long enough for all that may be mapped of it.
fn reaches(file: &OwnedFd, from: u64, info: &RegionInfo) -> bool {
    let has = rustix::fs::fstat(file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let end = |area: &crate::device::Area| from.checked_add(area.at)?.checked_add(area.length);
    info.areas
        .iter()
        .all(|area| end(area).is_some_and(|end| end <= has))
}

impl Device for UserDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn backend(&self) -> Backend {
        Backend::User
    }

    fn is_resettable(&self) -> bool {
        self.is_resettable
    }

    /// Never waits: while another request is in progress, that one finds the end.
    fn is_gone(&self) -> bool {
        match self.line.try_lock() {
            Ok(line) => line.is_over(),
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Poisoned(line)) => line.into_inner().is_over(),
        }
    }

    fn region(&self, index: RegionIndex) -> Result<RegionInfo, Error> {
        Ok(self
            .known(index)
            .map(|known| known.info.clone())
            .unwrap_or_default())
    }

    fn map(&self, index: RegionIndex) -> Result<Bar, Error> {
        match self.known(index) {
            Some(Known {
                info,
                file: Some((file, from)),
            }) => Bar::new(&self.name, index, info.length, &info.areas, (file.as_fd(), *from)),
            _ => Err(self.outside(
                index,
                0,
                0,
                "cannot be mapped: the emulated device does not allow it",
            )),
        }
    }

    fn read(&self, index: RegionIndex, at: u64, to: &mut [u8]) -> Result<(), Error> {
        self.inside(index, at, to.len())?;
        let count = to.len() as u32;
        let body = Writer::default().u64(at).u32(index.number()).u32(count);
        let mut line = self.line();
        let answer = line.ask(Command::RegionRead, body, &[])?;
        match answer.payload.get(16..) {
            Some(bytes) if bytes.len() == to.len() && wire::u32_at(&answer.payload, 12) == Some(count) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(line.hostile("replied with another number of bytes than requested")),
        }
    }

    fn write(&self, index: RegionIndex, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.inside(index, at, bytes.len())?;
        let body = Writer::default()
            .u64(at)
            .u32(index.number())
            .u32(bytes.len() as u32)
            .bytes(bytes);
        self.line().ask(Command::RegionWrite, body, &[]).map(drop)
    }

    fn irq(&self, kind: Irq) -> Result<IrqInfo, Error> {
        if kind as u32 >= self.irqs {
            return Ok(IrqInfo::default());
        }
        let body = Writer::default().u32(16).u32(0).u32(kind as u32).u32(0);
        let mut line = self.line();
        let answer = line.ask(Command::GetIrqInfo, body, &[])?;
        let (flags, count) = (
            wire::u32_at(&answer.payload, 4),
            wire::u32_at(&answer.payload, 12),
        );
        let (Some(flags), Some(count)) = (flags, count) else {
            return Err(line.hostile("sent an invalid description of its interrupts"));
        };
        Ok(IrqInfo {
            count,
            by_event: flags & BY_EVENT != 0,
        })
    }

    fn enable(&self, kind: Irq, events: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.irq(kind)?.check(&self.name, kind, events.len())?;
        let mut start = 0;
        for some in events.chunks(self.limits.descriptors) {
            let count = some.len() as u32;
            self.set_irqs(kind, DATA_EVENTFD, (start, count), some)?;
            start += count;
        }
        Ok(())
    }

    fn disable(&self, kind: Irq) -> Result<(), Error> {
        if kind as u32 >= self.irqs {
            return Ok(());
        }
        self.set_irqs(kind, DATA_NONE, (0, 0), &[])
    }

    fn raise(&self, kind: Irq, vector: u32) -> Result<(), Error> {
        self.irq(kind)?.check(&self.name, kind, vector as usize + 1)?;
        self.set_irqs(kind, DATA_NONE, (vector, 1), &[])
    }

    fn reset(&self) -> Result<(), Error> {
        if !self.is_resettable {
            let source = io::Error::new(io::ErrorKind::Unsupported, "the emulated device has no reset");
            return Err(Error::refused(&self.name, Command::Reset.step(), source));
        }
        self.line().ask(Command::Reset, Writer::default(), &[]).map(drop)
    }

    fn bus_addresses(&self) -> Result<Vec<Range>, Error> {
        Ok(vec![ADDRESSES])
    }

    fn share(&self, memory: &Region, iova: u64) -> Result<(), Error> {
        let object = memory.object();
        let body = Writer::default()
            .u32(32)
            .u32(READ_WRITE)
            .u64(0)
            .u64(iova)
            .u64(object.len() as u64);
        self.line()
            .ask(Command::DmaMap, body, &[object.as_fd()])
            .map(drop)
    }

    fn unshare(&self, iova: u64, length: u64) -> Result<(), Error> {
        let body = Writer::default().u32(24).u32(0).u64(iova).u64(length);
        self.line().ask(Command::DmaUnmap, body, &[]).map(drop)
    }
}
