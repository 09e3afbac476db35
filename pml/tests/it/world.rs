//! Several ranks in one thread, on the simulator's virtual clock.

use std::cell::OnceCell;
use std::time::Duration;

use doorbell_fabric::memory::{ConstLoan, MutLoan, Region, RegionSlice};
use doorbell_fabric::message::Message;
use doorbell_fabric::rail::Rail;
use doorbell_pml::{
    Payload, Pml, PmlConfig, PmlError, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent, Source, Status,
    Target,
};
use doorbell_sim::{Plane, SimConfig, SimNet, SimRail};

/// A whole job in one process.
pub(crate) struct World<M: Message = SimRail> {
    pub(crate) net: SimNet,
    pub(crate) pmls: Vec<Pml<M>>,
    pub(crate) planes: Vec<Plane>,
}

impl World {
    /// `ranks` ranks with one rail each.
    pub(crate) fn new(ranks: u32, sim: SimConfig, configure: impl Fn(&mut PmlConfig)) -> Self {
        Self::with_planes(ranks, 1, 7, sim, configure)
    }

    /// `ranks` ranks with `planes` rails each.
    pub(crate) fn with_planes(
        ranks: u32,
        planes: usize,
        seed: u64,
        sim: SimConfig,
        configure: impl Fn(&mut PmlConfig),
    ) -> Self {
        Self::wrapped(ranks, planes, seed, sim, |rail| rail, configure)
    }
}

impl<M: Message> World<M> {
    /// The same with rails that are wrapped in something.
    pub(crate) fn wrapped(
        ranks: u32,
        planes: usize,
        seed: u64,
        sim: SimConfig,
        wrap: impl Fn(SimRail) -> M,
        configure: impl Fn(&mut PmlConfig),
    ) -> Self {
        let net = SimNet::new(seed, sim);
        let planes: Vec<Plane> = (0..planes)
            .map(|at| {
                if at == 0 {
                    Plane::FIRST
                } else {
                    net.add_plane(&format!("p{at}"))
                }
            })
            .collect();
        let mut rails: Vec<Vec<SimRail>> = (0..ranks)
            .map(|rank| planes.iter().map(|plane| net.attach_rank(rank, *plane)).collect())
            .collect();
        let known: Vec<Vec<_>> = rails
            .iter()
            .map(|own| {
                own.iter()
                    .map(|rail| (rail.address(), rail.incarnation()))
                    .collect()
            })
            .collect();
        let mut pmls = Vec::new();
        for rank in 0..ranks {
            let mut config = PmlConfig::new(Rank(rank), ranks, seed ^ u64::from(rank));
            configure(&mut config);
            let mut pml = Pml::new(config).unwrap();
            for (plane, rail) in rails[rank as usize].drain(..).enumerate() {
                let id = pml.add_rail(wrap(rail)).unwrap();
                for (peer, addresses) in known.iter().enumerate() {
                    let (address, incarnation) = &addresses[plane];
                    pml.connect(Rank(peer as u32), id, address, *incarnation).unwrap();
                }
            }
            pmls.push(pml);
        }
        Self { net, pmls, planes }
    }

    /// One microsecond: every rank progresses once.
    pub(crate) fn pass(&mut self) {
        let now = self.net.now() + Duration::from_micros(1);
        self.net.advance_to(now);
        for pml in &mut self.pmls {
            pml.progress(now);
        }
    }

    /// Lets this time pass, in steps of 50 microseconds.
    pub(crate) fn leap(&mut self, by: Duration) {
        let end = self.net.now() + by;
        while self.net.now() < end {
            let now = self.net.now() + Duration::from_micros(50);
            self.net.advance_to(now);
            for pml in &mut self.pmls {
                pml.progress(now);
            }
        }
    }

    pub(crate) fn passes(&mut self, count: usize) {
        (0..count).for_each(|_| self.pass());
    }

    /// Progresses until it is so, for a bounded time.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if is_so(self) {
                return;
            }
            self.pass();
        }
        panic!("never happened: {what}");
    }

    /// Waits for a request of `rank` and ends it.
    pub(crate) fn wait(&mut self, rank: usize, id: RequestId) -> Result<Status, PmlError> {
        for _ in 0..100_000 {
            if let Some(ended) = self.pmls[rank].test(id) {
                return ended;
            }
            self.pass();
        }
        panic!("never ended: {}", self.pmls[rank].explain(id).unwrap());
    }

    pub(crate) fn wait_sent(&mut self, rank: usize, sent: Sent) -> Result<(), PmlError> {
        match sent {
            Sent::Done => Ok(()),
            Sent::Pending(id) => self.wait(rank, id).map(|_| ()),
        }
    }

    pub(crate) fn send(&mut self, from: usize, to: u32, tag: u64, memory: &Memory) -> Sent {
        self.pmls[from]
            .send_loan(Rank(to), 0, tag, memory.loan())
            .unwrap()
    }

    pub(crate) fn ssend(&mut self, from: usize, to: u32, tag: u64, memory: &Memory) -> Sent {
        self.send_as(SendMode::Synchronous, from, to, tag, memory)
    }

    pub(crate) fn send_as(
        &mut self,
        mode: SendMode,
        from: usize,
        to: u32,
        tag: u64,
        memory: &Memory,
    ) -> Sent {
        let args = SendArgs {
            mode,
            ..send_args(to, tag, Payload::Region(memory.whole()))
        };
        self.pmls[from].send(args).unwrap()
    }

    pub(crate) fn recv(
        &mut self,
        rank: usize,
        from: impl Into<Source>,
        tag: u64,
        memory: &Memory,
    ) -> RequestId {
        self.pmls[rank]
            .recv_loan(from.into(), 0, tag, 0, memory.room())
            .unwrap()
    }

    /// Throws away what was not received.
    pub(crate) fn discard_all(&mut self, rank: usize) {
        while let Some(claimed) = self.pmls[rank].claim(Source::Any, 0, 0, u64::MAX) {
            self.pmls[rank].discard(claimed.message).unwrap();
        }
    }

    pub(crate) fn drops(&self, rank: usize) -> u64 {
        self.pmls[rank].counters().drops.total()
    }
}

pub(crate) fn send_args(to: u32, tag: u64, payload: Payload) -> SendArgs {
    SendArgs {
        to: Rank(to),
        context: 0,
        tag,
        payload,
        mode: SendMode::Standard,
        notify: false,
    }
}

pub(crate) fn recv_args(from: impl Into<Source>, tag: u64, target: Target) -> RecvArgs {
    RecvArgs {
        from: from.into(),
        context: 0,
        tag,
        ignore: 0,
        target,
        notify: false,
    }
}

/// Memory of a test. A test lends it, which is safe because it is leaked; or it requests a region, and from
/// then on the region holds the bytes.
pub(crate) struct Memory {
    lent: MutLoan,
    region: OnceCell<Region>,
}

impl Memory {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            lent: MutLoan::of_static(bytes.leak()),
            region: OnceCell::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lent.len()
    }

    pub(crate) fn room(&self) -> MutLoan {
        assert!(self.region.get().is_none(), "a region holds these bytes");
        self.lent
    }

    pub(crate) fn loan(&self) -> ConstLoan {
        self.room().as_const()
    }

    pub(crate) fn region(&self) -> &Region {
        self.region.get_or_init(|| {
            let region = Region::new(self.len()).unwrap();
            region.whole().write_shared(0, self.lent.as_shared());
            region
        })
    }

    pub(crate) fn whole(&self) -> RegionSlice {
        self.region().whole()
    }

    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        match self.region.get() {
            Some(region) => region.read(at, to),
            None => self.lent.as_shared().copy_to(at, to),
        };
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        match self.region.get() {
            Some(region) => region.write(at, bytes),
            None => self.lent.write(at, bytes),
        };
    }
}

/// Memory with bytes that show where they come from.
pub(crate) fn filled(length: usize, salt: u64) -> Memory {
    Memory::of(pattern(length, salt))
}

pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    (0..length as u64)
        .map(|at| {
            (at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .wrapping_add(salt.wrapping_mul(0x1234_5678_9abc_def1))
                >> 56) as u8
        })
        .collect()
}

pub(crate) fn empty(length: usize) -> Memory {
    Memory::of(vec![0; length])
}

pub(crate) fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// The simulator's settings with other optional operations.
pub(crate) fn sim(get: bool, put: bool, gather: bool) -> SimConfig {
    let mut config = SimConfig::default();
    config.capabilities.features.get = get;
    config.capabilities.features.put = put;
    config.capabilities.features.gather = gather;
    config
}
