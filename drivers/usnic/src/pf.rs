//! A physical function that this process drives: its firmware steers frames to virtual functions.
//!
//! Its own queues stay off: it neither sends nor receives. What it is opened for are its command block and
//! its notify area.
//!
//! Sources: DPDK `enic_main.c` (the order of coming and going), Linux `usnic_fwd.c` and `enic_api.c`
//! (PROXY_BY_INDEX).

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_fabric::ether::Mac;
use doorbell_vfio::{Backend, Bdf, Claim, Error, SharedSlab, Slab};

use crate::config::Commands;
use crate::devcmd::{
    CLOSE, DEL_FILTER, DEV_SPEC, DISABLE, Devcmd, ENABLE, ENABLE_WAIT, INIT, INIT_STATUS, NOTIFY, OPEN,
    OPEN_STATUS, PROXY_BY_INDEX, arguments, proxy, ring, unwrap_proxy,
};
use crate::errno::{Errno, Fault};
use crate::flow_steering::{Request, Trouble};
use crate::notify::{NOTIFY_BYTES, News, NotifyRead, read};
use crate::rail_name::{self, DEVICE_PF};
use crate::table::Kind;
use crate::window::Window;

/// The memory that it shares with the device: the notify area, a filter, and the rings of devcmd2.
const FILTER_AT: usize = 256;
const RINGS_AT: usize = 4096;
const SHARED: usize = RINGS_AT + ring::BYTES;
/// OPEN: keep the descriptor caches of the adapter's other functions.
pub(crate) const OPEN_KEEPS_CACHES: u64 = 2;
/// The argument of NOTIFY for no interrupt.
pub(crate) const NO_INTERRUPT: u64 = 0xffff << 32;
/// DEV_SPEC: the offset of the flags, and the flag that is set where usNIC is configured `[I]`.
const SPEC_FLAGS: u64 = 0;
const FLAG_USNIC: u64 = 0x2000;
/// The most types of filters that have to be known: UDP over IPv4.
const FILTER_UDP: u64 = 1;
/// Interval between two checks of a command.
const BETWEEN: Duration = Duration::from_micros(100);
/// How many filters are remembered until they are removed.
const ORPHANS_MOST: usize = 256;

/// How the device is claimed, and claimed again.
pub(crate) type Opener = Arc<dyn Fn() -> Result<Claim, Error> + Send + Sync>;

/// What the physical function reports of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PfInfo {
    /// The hardware address: that of all frames of its functions, in usNIC.
    pub mac: Option<Mac>,
    /// Whether usNIC is configured on it `[I]`.
    pub has_usnic: bool,
    /// The highest type of filter that it knows.
    pub highest_filter: Option<u64>,
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Request(u32, Request),
    Watch,
}

/// How it ended.
pub(crate) enum Ended {
    Request(Result<u64, Trouble>),
    Watch(Result<(), Fault>),
}

/// A physical function. Dropped, it is closed.
pub struct Pf {
    devcmd: Devcmd,
    /// Its other holders are waited for before this is dropped: the memory below stays until the device no
    /// longer reaches it.
    claim: Arc<Claim>,
    slab: SharedSlab,
    kept: usize,
    info: PfInfo,
    last: Option<News>,
    doing: Option<Doing>,
    /// A filter whose coming or going was given up: it may still come or go.
    unanswered: Option<(u32, Request)>,
    orphans: Vec<(u32, u64)>,
    /// A filter that was removed after its request had been given up.
    gone: Option<(u32, u64)>,
    open: Option<Opener>,
    /// A slow request.
    question: Option<JoinHandle<Result<bool, Fault>>>,
}

impl fmt::Debug for Pf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pf")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Pf {
    /// Opens the function of this machine that is bound to vfio-pci.
    ///
    /// # Errors
    /// [`Trouble`] with what to do.
    pub fn open(bdf: Bdf) -> Result<Self, Trouble> {
        Self::by(Arc::new(move || Claim::open(bdf, SHARED as u64)))
    }

    /// Opens the one that a process models, behind this socket.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn connect(socket: &Path) -> Result<Self, Trouble> {
        let socket = socket.to_owned();
        Self::by(Arc::new(move || Claim::connect(&socket)))
    }

    /// Opens one so that it can be opened again.
    pub(crate) fn by(open: Opener) -> Result<Self, Trouble> {
        let mut pf = Self::over(open()?)?;
        pf.open = Some(open);
        Ok(pf)
    }

    /// Opens one over a claim. Once it is gone, it stays so.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
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
        let (table, spaces) = rail_name::read(&claim).map_err(rail_name::BadResources::into_trouble)?;
        let kind = table
            .commands(Commands::Auto)
            .map_err(|bad| rail_name::BadResources::Table(bad).into_trouble())?;
        let block = table.of(kind);
        let space = spaces[usize::from(block.bar)].as_ref();
        let space = space.ok_or(Trouble::Fault(Fault::Nonsense("the resource table")))?;
        let slab = Slab::new(SHARED)?;
        let slab = claim.share(slab).map_err(|(_, error)| error)?;
        let window = Window::new(space, block.at);
        let devcmd = match slab.slice(RINGS_AT, ring::BYTES) {
            Some(rings) if kind == Kind::Devcmd2 => {
                Devcmd::ring(window, rings, slab.iova() + RINGS_AT as u64)
            }
            _ => Devcmd::block(window),
        };
        let mut pf = Self {
            devcmd,
            claim: Arc::new(claim),
            slab,
            kept: 0,
            info: PfInfo::default(),
            last: None,
            doing: None,
            unanswered: None,
            orphans: Vec::new(),
            gone: None,
            open: None,
            question: None,
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
        // The area still has the content of an earlier use.
        self.slab.region().write(0, &[0; NOTIFY_BYTES]);
        let said = self.devcmd.run(NOTIFY, &self.watching())?;
        self.kept = (said[1] as u32 as usize).min(NOTIFY_BYTES);
        let enable = if self.devcmd.has(ENABLE_WAIT)? {
            ENABLE_WAIT
        } else {
            ENABLE
        };
        self.devcmd.run(enable, &[0])?;
        Ok(())
    }

    /// Has the device keep the notify area.
    fn watching(&self) -> [u64; 2] {
        [self.slab.iova(), NOTIFY_BYTES as u64 | NO_INTERRUPT]
    }

    /// Returns what the physical function reported of itself.
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

    /// Returns what it reports of its link; the last report that was whole.
    pub fn news(&mut self) -> Option<News> {
        let memory = self.slab.region().whole();
        if let NotifyRead::News(news) = read(memory.as_shared(), self.kept) {
            self.last = Some(news);
        }
        self.last
    }

    /// Returns how it is opened again, where it can be.
    pub(crate) fn opener(&self) -> Option<Opener> {
        self.open.clone()
    }

    /// Whether another process has reset it since it was opened; `None` while that is being read: call again.
    /// Never waits: a device of this machine replies at once; a process that models one may take long, and
    /// another thread waits for that.
    pub(crate) fn was_reset(&mut self) -> Option<Result<bool, Fault>> {
        if let Some(thread) = self.question.take() {
            if thread.is_finished() {
                return Some(thread.join().unwrap_or(Ok(false)));
            }
            self.question = Some(thread);
            return None;
        }
        if self.claim.device().backend() != Backend::User {
            return Some(is_reset(&self.claim));
        }
        let claim = Arc::clone(&self.claim);
        let thread = std::thread::Builder::new().name("usnic-ask".to_owned());
        match thread.spawn(move || is_reset(&claim)) {
            Ok(thread) => {
                self.question = Some(thread);
                None
            }
            // If no thread can be started, NOTIFY shows it, too.
            Err(_) => Some(Ok(false)),
        }
    }

    /// Waits for the end of a check whose result is not needed any more; it has an end.
    fn finish_check(&mut self) {
        if let Some(thread) = self.question.take() {
            let _ = thread.join();
        }
    }

    /// Opens it again, waiting for each step. It is reset first: that it was reset is only inferred, and
    /// everything that was installed has to go, as no connection owns it any more.
    pub(crate) fn begin_anew(&mut self) -> Result<(), Trouble> {
        self.finish_check();
        if self.claim.device().is_resettable() {
            self.claim.reset()?;
        } else {
            self.claim.config().set_bus_master(true)?;
        }
        self.devcmd.forget();
        (self.last, self.kept, self.doing) = (None, 0, None);
        (self.unanswered, self.gone, self.orphans) = (None, None, Vec::new());
        self.start()?;
        self.check()
    }

    /// Whether a command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.doing.is_none()
    }

    /// Checks whether it is still in the state in which it was left: NOTIFY again, which changes nothing
    /// then.
    pub(crate) fn watch(&mut self) -> Result<(), Fault> {
        let arguments = arguments(&self.watching());
        self.devcmd.begin(NOTIFY, &arguments)?;
        self.adopt();
        self.doing = Some(Doing::Watch);
        Ok(())
    }

    /// Starts a request for the function with this index.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn begin(&mut self, index: u32, request: Request) -> Result<(), Trouble> {
        // The device may still read the filter of a command that was given up.
        if self.doing.is_some() || self.devcmd.is_busy()? {
            return Err(Fault::Busy.into());
        }
        self.adopt();
        if let Request::Steer(what, queue) = request {
            self.slab.region().write(FILTER_AT, &what.steer_to(queue));
        }
        let buffer = self.slab.iova() + FILTER_AT as u64;
        let inner = request.arguments(buffer);
        self.devcmd
            .begin(PROXY_BY_INDEX, &proxy(index, request.command(), &inner))?;
        self.doing = Some(Doing::Request(index, request));
        Ok(())
    }

    /// Deals with a late result: a filter that was added belongs to no process, and one that was removed is
    /// gone, so that its number may be another's next.
    fn adopt(&mut self) {
        let Some((index, request)) = self.unanswered.take() else {
            return;
        };
        let Some((PROXY_BY_INDEX, results)) = self.devcmd.belated() else {
            return;
        };
        match (request, unwrap_proxy(request.command(), &results)) {
            (Request::Steer(..), Ok(id)) if self.orphans.len() < ORPHANS_MOST => {
                self.orphans.push((index, id))
            }
            (Request::Unsteer(id), Ok(_)) => self.gone = Some((index, id)),
            _ => {}
        }
    }

    /// Returns a filter that was removed after its request had been given up, once.
    pub(crate) fn gone(&mut self) -> Option<(u32, u64)> {
        self.gone.take()
    }

    /// Returns filters that belong to no process, with their functions, each once.
    pub(crate) fn orphan(&mut self) -> Option<(u32, u64)> {
        self.orphans.pop()
    }

    /// Looks whether a request is done.
    pub fn poll(&mut self) -> Option<Result<u64, Trouble>> {
        match self.ended()? {
            Ended::Request(ended) => Some(ended),
            Ended::Watch(_) => None,
        }
    }

    /// Looks whether what is under way is done.
    pub(crate) fn ended(&mut self) -> Option<Ended> {
        let ended = self.devcmd.poll()?;
        Some(match self.doing.take()? {
            Doing::Watch => {
                let kept = ended.map(|said| (said[1] as u32 as usize).min(NOTIFY_BYTES));
                Ended::Watch(kept.map(|kept| self.kept = kept))
            }
            Doing::Request(index, request) => {
                let is_filter = matches!(request, Request::Steer(..) | Request::Unsteer(_));
                if is_filter && matches!(ended, Err(Fault::TimedOut(_))) {
                    self.unanswered = Some((index, request));
                }
                let answer = ended.and_then(|results| unwrap_proxy(request.command(), &results));
                Ended::Request(forgiving(request, answer))
            }
        })
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
            std::thread::sleep(BETWEEN);
        }
    }

    /// Waits for the end of what is under way, whatever it is.
    pub(crate) fn settle(&mut self) {
        while self.doing.is_some() && self.ended().is_none() {
            std::thread::sleep(BETWEEN);
        }
    }
}

/// Whether the device was reset: one that was may not reach memory.
fn is_reset(claim: &Claim) -> Result<bool, Fault> {
    Ok(!claim.config().is_bus_master()?)
}

/// Removing a filter that is not there any more succeeds, for example after a reset of the physical function.
fn forgiving(request: Request, answer: Result<u64, Fault>) -> Result<u64, Trouble> {
    match (request, answer) {
        // This refusal is the proxy's own, for a filter that does not exist.
        (Request::Unsteer(_), Err(Fault::Refused(command, Errno::INVALID))) if command == DEL_FILTER.name => {
            Ok(0)
        }
        (_, answer) => answer.map_err(Trouble::Fault),
    }
}

impl Drop for Pf {
    fn drop(&mut self) {
        self.finish_check();
        // Commands in progress come to an end first.
        self.settle();
        // The processes that would care about an error here have left.
        for command in [DISABLE, NOTIFY, CLOSE] {
            if self.devcmd.run(command, &[0, NO_INTERRUPT]).is_err() {
                return;
            }
        }
    }
}
