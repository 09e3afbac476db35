//! A physical function that this process drives: its firmware is asked to steer frames to virtual functions.
//!
//! Its own queues stay off: it neither sends nor receives. What it is opened for are its command block and its notify area.
//!
//! Sources: DPDK `enic_main.c` (the order of coming and going), Linux `usnic_fwd.c` and `enic_api.c` (PROXY_BY_INDEX).

use std::path::Path;
use std::time::{Duration, Instant};

use doorbell_fabric::ether::Mac;
use doorbell_vfio::{Bdf, Claim, SharedSlab, Slab};

use crate::devcmd::{
    CLOSE, DEV_SPEC, DISABLE, Devcmd, ENABLE, ENABLE_WAIT, INIT, INIT_STATUS, NOTIFY, OPEN, OPEN_STATUS,
    PROXY_BY_INDEX, proxy, unwrap_proxy,
};
use crate::errno::{Errno, Fault};
use crate::notify::{Look, NOTIFY_BYTES, News, read};
use crate::place::{self, DEVICE_PF};
use crate::steer::{Request, Trouble};
use crate::table::Kind;
use crate::window::Window;

/// The memory that it shares with the device: the notify area, then a filter.
const SHARED: usize = 4096;
const FILTER_AT: usize = 256;
/// OPEN: keep the descriptor caches of the adapter's other functions.
pub(crate) const OPEN_KEEPS_CACHES: u64 = 2;
/// No interrupt of its own.
pub(crate) const NO_INTERRUPT: u64 = 0xffff << 32;
/// DEV_SPEC: where the flags are, and the one that says that usNIC is configured `[I]`.
const SPEC_FLAGS: u64 = 0;
const FLAG_USNIC: u64 = 0x2000;
/// The most types of filters that have to be known: UDP over IPv4.
const FILTER_UDP: u64 = 1;

/// What it says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfInfo {
    /// Its hardware address: that of all frames of its functions, in usNIC.
    pub mac: Option<Mac>,
    /// Whether usNIC is configured on it `[I]`.
    pub has_usnic: bool,
    /// The highest type of filter that it knows.
    pub highest_filter: Option<u64>,
}

/// A physical function. Dropped, it is closed.
pub struct Pf {
    devcmd: Devcmd,
    claim: Claim,
    slab: SharedSlab,
    kept: usize,
    info: PfInfo,
    last: Option<News>,
    /// When it was last asked whether it is still open.
    asked: Instant,
    life: u64,
    pending: Option<Request>,
}

impl Pf {
    /// Opens the function of this machine that is bound to vfio-pci.
    ///
    /// # Errors
    /// [`Trouble`] with what to do.
    pub fn open(bdf: Bdf) -> Result<Self, Trouble> {
        Self::over(Claim::open(bdf, SHARED as u64)?)
    }

    /// Opens the one that a process models, behind this socket.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn connect(socket: &Path) -> Result<Self, Trouble> {
        Self::over(Claim::connect(socket)?)
    }

    /// Opens one over a claim.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn over(claim: Claim) -> Result<Self, Trouble> {
        let found = claim.config().identity()?;
        if found != DEVICE_PF {
            return Err(Trouble::agent(
                format!(
                    "the device is {:04x}:{:04x}, and no physical function of a VIC",
                    found.0, found.1
                ),
                "name one of 1137:0043, as `doorbell doctor` lists them",
            ));
        }
        let (table, spaces) = place::read(&claim).map_err(place::Bad::into_trouble)?;
        table
            .check_commands()
            .map_err(|bad| place::Bad::Table(bad).into_trouble())?;
        let block = table.of(Kind::Devcmd);
        let space = spaces[usize::from(block.bar)].as_ref();
        let space = space.ok_or(Trouble::Fault(Fault::Nonsense("the resource table")))?;
        let devcmd = Devcmd::new(Window::new(space, block.at));
        let slab = Slab::new(SHARED)?;
        let slab = claim.share(slab).map_err(|(_, error)| error)?;
        let mut pf = Self {
            devcmd,
            claim,
            slab,
            kept: 0,
            info: PfInfo::default(),
            last: None,
            asked: Instant::now(),
            life: 1,
            pending: None,
        };
        pf.start()?;
        Ok(pf)
    }

    /// OPEN to ENABLE, as DPDK does.
    fn start(&mut self) -> Result<(), Fault> {
        self.devcmd.run(OPEN, &[OPEN_KEEPS_CACHES])?;
        self.devcmd.finish(OPEN_STATUS)?;
        self.devcmd.run(INIT, &[0])?;
        match self.devcmd.finish(INIT_STATUS)? {
            0 => {}
            number => {
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                return Err(Fault::Refused(INIT.name, Errno(number)));
            }
        }
        self.info.mac = self.devcmd.mac()?;
        // Old firmware knows less of it, or nothing: then nothing is known.
        let flags = match self.devcmd.run(DEV_SPEC, &[SPEC_FLAGS, 4]) {
            Ok(said) => said[0],
            Err(Fault::Refused(..)) => 0,
            Err(fault) => return Err(fault),
        };
        self.info.has_usnic = flags & FLAG_USNIC != 0;
        self.info.highest_filter = self.devcmd.highest_filter()?;
        self.watch()?;
        let enable = if self.devcmd.has(ENABLE_WAIT)? {
            ENABLE_WAIT
        } else {
            ENABLE
        };
        self.devcmd.run(enable, &[0])?;
        Ok(())
    }

    /// Has the device keep the notify area.
    fn watch(&mut self) -> Result<(), Fault> {
        let said = self
            .devcmd
            .run(NOTIFY, &[self.slab.iova(), NOTIFY_BYTES as u64 | NO_INTERRUPT])?;
        self.kept = (said[1] as u32 as usize).min(NOTIFY_BYTES);
        Ok(())
    }

    /// What it says of itself.
    #[must_use]
    pub fn info(&self) -> PfInfo {
        self.info
    }

    /// Whether it can steer UDP at all.
    ///
    /// # Errors
    /// Why not, with what to do.
    pub fn check(&self) -> Result<(), Trouble> {
        if self
            .info
            .highest_filter
            .is_some_and(|highest| highest >= FILTER_UDP)
        {
            return Ok(());
        }
        Err(Trouble::agent(
            "the physical function's firmware has no filters of UDP addresses and ports",
            "turn usNIC on in the adapter's policy (CIMC or UCSM), reboot the host, or update the firmware",
        ))
    }

    /// Whether the way to the device is a model's.
    #[must_use]
    pub fn name(&self) -> String {
        self.claim.device().name().to_owned()
    }

    /// What it tells of its link; the last that was whole.
    pub fn news(&mut self) -> Option<News> {
        let memory = self.slab.region().whole();
        if let Look::News(news) = read(memory.as_shared(), self.kept) {
            self.last = Some(news);
        }
        self.last
    }

    /// Counts up each time that everything installed is lost.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Looks whether the function is still as it was left, and opens it anew where it is not: every `every` at most.
    ///
    /// # Errors
    /// Where it is gone, or cannot be opened again.
    pub fn look_after(&mut self, every: Duration) -> Result<(), Fault> {
        if self.asked.elapsed() < every || self.pending.is_some() {
            return Ok(());
        }
        self.asked = Instant::now();
        match self.watch() {
            // One that was reset is not open, and refuses.
            Err(Fault::Refused(..)) => self.begin_anew(),
            other => other,
        }
    }

    fn begin_anew(&mut self) -> Result<(), Fault> {
        self.life += 1;
        self.last = None;
        self.start()
    }

    /// Starts a request for the function with this index.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn begin(&mut self, index: u32, request: Request) -> Result<(), Trouble> {
        if let Request::Steer(what, queue) = request {
            self.slab.region().write(FILTER_AT, &what.steer_to(queue));
        }
        let buffer = self.slab.iova() + FILTER_AT as u64;
        let inner = request.arguments(buffer);
        self.devcmd
            .begin(PROXY_BY_INDEX, &proxy(index, request.command(), &inner))?;
        self.pending = Some(request);
        Ok(())
    }

    /// Looks whether it is done.
    pub fn poll(&mut self) -> Option<Result<u64, Trouble>> {
        let ended = self.devcmd.poll()?;
        let request = self.pending.take()?;
        let answer = ended.and_then(|results| unwrap_proxy(request.command(), &results));
        Some(forgiving(request, answer))
    }

    /// Does a request and waits for it.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn run(&mut self, index: u32, request: Request) -> Result<u64, Trouble> {
        self.begin(index, request)?;
        loop {
            if let Some(ended) = self.poll() {
                return ended;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A filter that is not there any more is taken away, after a reset of the physical function say.
fn forgiving(request: Request, answer: Result<u64, Fault>) -> Result<u64, Trouble> {
    match (request, answer) {
        (Request::Unsteer(_), Err(Fault::Refused(_, Errno::INVALID))) => Ok(0),
        (_, answer) => answer.map_err(Trouble::Fault),
    }
}

impl Drop for Pf {
    fn drop(&mut self) {
        // Who hears of what fails here has left.
        for command in [DISABLE, NOTIFY, CLOSE] {
            if self.devcmd.run(command, &[0, NO_INTERRUPT]).is_err() {
                return;
            }
        }
    }
}
