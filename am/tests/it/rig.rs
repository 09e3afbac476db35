//! A job of conduits over a simulated network, in one thread and repeatable.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use doorbell_am::{
    AmError, Attaching, Conduit, Config, ExternalError, Handle, Handlers, Remote, Settings, Source,
};
use doorbell_am_portals::{self as portals, Interface, Node, RailId};
use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Incarnation;
use doorbell_fabric::ni::{Kind, NiLimits, Process};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Job, Plane, SimConfig, SimNet, SimRail, Step};

pub(crate) type Am = Conduit<Interface<SimRail>>;
pub(crate) type Making = Attaching<Interface<SimRail>>;

/// What a job is made of.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) ranks: u32,
    pub(crate) rails: usize,
    pub(crate) seed: u64,
    pub(crate) segment: usize,
    pub(crate) kind: Kind,
    pub(crate) sim: SimConfig,
    pub(crate) settings: Settings,
}

impl Setting {
    pub(crate) fn new(ranks: u32) -> Self {
        Self {
            ranks,
            rails: 1,
            seed: 1,
            segment: 1 << 16,
            kind: Kind::MATCHING_LOGICAL,
            sim: SimConfig::default(),
            settings: Settings {
                // Small buffers, so that they are recycled in a test.
                chunks_per_buffer: 8,
                credits_per_node: Some(24),
                banked_credits: Some(64),
                ..Settings::default()
            },
        }
    }

    /// The smallest that every limit may be.
    pub(crate) fn minimal(ranks: u32) -> Self {
        let mut setting = Self::new(ranks);
        setting.settings.message_limit = 12;
        setting.settings.temporaries = 2;
        setting.settings.request_chunks = 1;
        setting.settings.reply_chunks = 1;
        setting.settings.chunks_per_buffer = 2;
        setting.settings.credits_per_node = Some(8);
        setting.settings.banked_credits = Some(0);
        (
            setting.settings.safe_limit,
            setting.settings.am_limit,
            setting.settings.sys_limit,
        ) = (1, 1, 1);
        setting
    }

    pub(crate) fn process(&self, rank: u32) -> Process {
        Process::physical(rank, 10 + rank)
    }
}

/// The network and the conduits that are being made.
pub(crate) struct Start {
    pub(crate) net: SimNet,
    pub(crate) planes: Vec<Plane>,
    pub(crate) making: Vec<Making>,
}

/// Makes the nodes, and on each a conduit that is not attached.
pub(crate) fn start(setting: &Setting, mut handlers: impl FnMut(u32) -> Handlers) -> Result<Start, AmError> {
    let net = SimNet::new(setting.seed, setting.sim);
    let mut planes = vec![Plane::FIRST];
    planes.extend((1..setting.rails).map(|rail| net.add_plane(&format!("p{rail}"))));
    let rails: Vec<Vec<SimRail>> = (0..setting.ranks)
        .map(|rank| planes.iter().map(|plane| net.attach_rank(rank, *plane)).collect())
        .collect();
    let addresses: Vec<Vec<_>> = rails
        .iter()
        .map(|rails| {
            rails
                .iter()
                .map(|rail| (rail.address(), rail.incarnation()))
                .collect()
        })
        .collect();
    let map: Vec<Process> = (0..setting.ranks).map(|rank| setting.process(rank)).collect();
    let mut making = Vec::new();
    for (rank, rails) in rails.into_iter().enumerate() {
        let rank = rank as u32;
        let segment = Region::new(setting.segment).expect("memory").whole();
        let mut config = Config::new(rank, setting.ranks, segment);
        config.settings = setting.settings.clone();
        config.patience = Duration::from_secs(1);
        if !setting.kind.logical {
            config.ranks = doorbell_am::Ranks::Physical(map.clone().into());
        }
        let needs = config.needs()?;
        let mut node = node(setting, rank, rails, &addresses, needs);
        if setting.kind.logical {
            node.set_map(setting.kind, &map).expect("a first map");
        }
        making.push(Attaching::new(
            node.into_ni(setting.kind),
            config,
            handlers(rank),
        )?);
    }
    Ok(Start { net, planes, making })
}

type Address = (RailAddress, Incarnation);

fn node(
    setting: &Setting,
    rank: u32,
    rails: Vec<SimRail>,
    addresses: &[Vec<Address>],
    needs: NiLimits,
) -> Node<SimRail> {
    let mut config = portals::Config::new(setting.process(rank));
    config.seed = setting.seed;
    config.patience = Duration::from_millis(100);
    let mut node = Node::new(config);
    for (plane, rail) in rails.into_iter().enumerate() {
        let id: RailId = node.add_rail(rail).expect("there is room for a rail");
        for other in (0..setting.ranks).filter(|other| *other != rank) {
            let (address, incarnation) = &addresses[other as usize][plane];
            node.connect(setting.process(other), id, address, *incarnation)
                .expect("the peer is there");
        }
    }
    let given = node.ni_init(setting.kind, Some(&needs)).expect("it is offered");
    assert_eq!(given, needs, "limits are granted as requested");
    node
}

/// A launcher's barrier for ranks in one thread.
#[derive(Clone, Default)]
pub(crate) struct Launcher {
    come: Rc<Cell<u32>>,
}

impl Launcher {
    pub(crate) fn barrier(&self, of: u32) -> impl FnMut() -> Result<bool, ExternalError> + use<> {
        let (come, mut mine) = (Rc::clone(&self.come), false);
        move || {
            if !std::mem::replace(&mut mine, true) {
                come.set(come.get() + 1);
            }
            Ok(come.get() >= of)
        }
    }
}

/// A job that has come together.
pub(crate) struct World {
    pub(crate) net: SimNet,
    pub(crate) planes: Vec<Plane>,
    pub(crate) job: Job<Am>,
    /// Ranks that were killed.
    pub(crate) dead: Vec<u32>,
}

/// The state of a rank after a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Worked,
    Waits,
    Finished,
}

impl World {
    pub(crate) fn new(setting: &Setting, handlers: impl FnMut(u32) -> Handlers) -> Self {
        let Start { net, planes, making } = start(setting, handlers).expect("the objects are made");
        let launcher = Launcher::default();
        let mut made: Vec<_> = making
            .into_iter()
            .map(|making| (making, launcher.barrier(setting.ranks), false))
            .map(Some)
            .collect();
        let mut job = Job::new(&net, made.len(), |rank| made[rank].take());
        let run = job.run(100_000, |_, state, now| {
            let Some((making, barrier, ready)) = state else {
                return Step::Done;
            };
            if *ready {
                return Step::Done;
            }
            *ready = making.step(now, barrier).expect("they come together");
            if *ready { Step::Worked } else { Step::Idle(None) }
        });
        run.expect("they come together");
        let mut conduits: Vec<_> = job
            .ranks_mut()
            .iter_mut()
            .map(|state| {
                state
                    .take()
                    .map(|(making, ..)| making.finish().expect("it is ready"))
            })
            .collect();
        let job = Job::new(&net, conduits.len(), |rank| {
            conduits[rank].take().expect("one each")
        });
        Self {
            net,
            planes,
            job,
            dead: Vec::new(),
        }
    }

    /// Steps all ranks, each followed by what `each` does, until all have finished and nothing is left to do.
    pub(crate) fn run(&mut self, mut each: impl FnMut(u32, &mut Am, Time) -> Doing) {
        let run = self.job.run_explained(
            400_000,
            |rank, am, now| {
                let work = am
                    .step(now)
                    .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
                match each(rank as u32, am, now) {
                    _ if work > 0 => Step::Worked,
                    Doing::Worked => Step::Worked,
                    Doing::Waits => Step::Idle(am.next_deadline()),
                    Doing::Finished => Step::Done,
                }
            },
            |_, am| am.statistics(),
        );
        if let Err(stuck) = run {
            panic!("{stuck}");
        }
    }

    /// Steps all ranks until nothing has happened for a while.
    pub(crate) fn settle(&mut self) {
        let until = |net: &SimNet| net.now() + Duration::from_millis(2);
        let mut quiet = until(&self.net);
        loop {
            let (now, mut work) = (self.net.now(), 0);
            for (rank, am) in self.job.ranks_mut().iter_mut().enumerate() {
                if !self.dead.contains(&(rank as u32)) {
                    work += am.poll() + am.progress(now);
                }
            }
            if work > 0 {
                quiet = until(&self.net);
                continue;
            }
            let next = self.net.next_event().unwrap_or(Time::NEVER);
            if next.min(quiet) >= quiet {
                return;
            }
            self.net.advance_to(next);
        }
    }

    /// Puts 8 bytes at 0 of the rank's own segment to the same place of another's until one of them waits for
    /// room of the interface, without polling meanwhile. The last one is that.
    pub(crate) fn fill(&mut self, from: u32, to: u32) -> Vec<Handle> {
        let (am, to) = (self.am(from), Remote { rank: to, offset: 0 });
        let before = am.stats().deferred;
        let mut puts = Vec::new();
        while am.stats().deferred == before {
            let source = Source::Segment { offset: 0, length: 8 };
            let put = am.put(to, source).expect("it can be put");
            puts.push(put.done().expect("tickets last longer than the interface's room"));
        }
        puts
    }

    pub(crate) fn am(&mut self, rank: u32) -> &mut Am {
        &mut self.job.ranks_mut()[rank as usize]
    }

    /// Nothing that is under way is left anywhere, and the credits of every pair are where they should be.
    pub(crate) fn assert_clean(&mut self) {
        self.settle();
        let ranks = self.job.ranks().len() as u32;
        for rank in 0..ranks {
            let am = self.am(rank);
            assert_eq!(am.stats().hostile, 0, "rank {rank} dropped messages");
            let free = am.resources();
            let settings = am.settings();
            // What is not in use is free, or in hand for the next reply: all of that, or a part.
            let (tickets, temporaries, chunks) = free.in_hand;
            assert_eq!(
                free.tickets,
                (settings.message_limit - tickets, settings.message_limit),
                "rank {rank}"
            );
            assert_eq!(free.request_chunks.0, settings.request_chunks, "rank {rank}");
            assert_eq!(free.reply_chunks.0, settings.reply_chunks - chunks, "rank {rank}");
            assert_eq!(
                free.temporaries.0,
                settings.temporaries - temporaries,
                "rank {rank}"
            );
            assert_eq!((free.halves, am.replies_under_way()), (0, 0), "rank {rank}");
        }
        self.assert_credits();
    }

    /// Conservation, and what one lent is what the other has.
    pub(crate) fn assert_credits(&mut self) {
        let ams = self.job.ranks();
        for (rank, am) in ams.iter().enumerate() {
            let credits = am.credits();
            let total = credits.shares().total;
            let mut sum = credits.bank();
            for (other, peer) in ams.iter().enumerate().filter(|(other, _)| *other != rank) {
                let lent = credits.peer(other as u32).expect("a peer");
                let has = peer.credits().peer(rank as u32).expect("a peer");
                assert_eq!(lent.loan(), has.send(), "{rank} lends to {other}");
                assert_eq!(
                    (lent.held(), has.in_use()),
                    (0, 0),
                    "{rank} and {other} are quiet"
                );
                sum += u32::from(lent.loan());
            }
            assert_eq!(sum, total, "credits of rank {rank} are conserved");
        }
    }
}
