//! Assembling a world: the PML above the rails of a job, and the engine that makes progress.

use doorbell_fabric::map::process::Maker;
use doorbell_job::binding;
use doorbell_job::config::Mode;
use doorbell_job::config::drivers::pml_config;
use doorbell_job::connect::PeerPath;
use doorbell_job::control::LostPeers;
use doorbell_job::counter_file::CounterPublisher;
use doorbell_job::error::Error;
use doorbell_job::join::{Built, Joined, crowded, crowded_by};
use doorbell_job::meet::tcp::Remote;
use doorbell_job::rails::AnyRail;
use doorbell_job::random;
use doorbell_job::wait::Hook;
use doorbell_job::wait::turns::{Clock, Patience};
use doorbell_pml::Pml;

use crate::progress::{Core, Engine, Meeting, ThreadHandle, Watch};
use crate::world::World;

/// The PML of a world, with the paths to its peers and its counter file.
struct Layer {
    pml: Pml<AnyRail>,
    paths: Vec<Vec<PeerPath>>,
    seen: Option<CounterPublisher>,
    meeting: Option<Box<Meeting>>,
}

impl World {
    /// Builds a world from what joining a job has produced.
    pub(crate) fn build(
        joined: Joined,
        clock: Clock,
        hook: Option<Hook>,
        remote: Option<Remote>,
    ) -> Result<Self, Error> {
        let Built { job, layer, life } = joined.build(
            remote,
            |job| {
                let mut settings = pml_config(job.config(), job.rank(), job.size(), random::number()?);
                settings.lazy = job.directory().is_lazy();
                Ok(Pml::new(settings)?)
            },
            |pml, job, paths, candidates| {
                let (config, directory) = (job.config(), job.directory());
                let place = *config.counters.place.get();
                let seen = CounterPublisher::create(place, job.rank(), &pml, &paths, directory)?;
                let meeting = directory.is_lazy();
                let meeting =
                    meeting.then(|| Box::new(Meeting::new(directory.clone(), config.clone(), candidates)));
                Ok(Layer {
                    pml,
                    paths,
                    seen,
                    meeting,
                })
            },
        )?;
        let Layer {
            pml,
            paths,
            seen,
            meeting,
        } = layer;
        let config = job.config();
        let counters = seen.as_ref().map(|seen| seen.path().to_owned());
        let lost_peers = LostPeers::default();
        let dedicated = *config.progress.mode.get() == Mode::Dedicated;
        let is_crowded = crowded(job.rank(), job.directory(), dedicated);
        let binding = binding::of(config, job.rank(), job.directory(), is_crowded)?;
        if let (Some(seen), Some(binding)) = (&seen, &binding) {
            seen.show_binding(binding)?;
        }
        let shares = binding.as_ref().is_some_and(|binding| binding.shares.is_some());
        let is_spinning = crowded_by(job.rank(), job.directory(), binding::threads(config));
        let alone_no_more = Patience::of(&config.progress, true);
        let core = Core {
            pml,
            maker: Maker::this(),
            clock,
            patience: Patience::of(&config.progress, is_crowded || is_spinning || shares),
            quiet: *config.wait.quiet.get(),
            seen,
            rank: job.rank(),
            size: job.size(),
            directory: job.directory().clone(),
            paths,
            dedicated,
            life,
            lost_peers: lost_peers.clone(),
            meeting,
            watch: Watch::default(),
            raw_completions: std::collections::VecDeque::new(),
            stopped: None,
            tests: 0,
            unlooked: 0,
            overdue: Vec::new(),
        };
        let engine = match &binding {
            Some(binding) => {
                let mailbox = *config.progress.mailbox.get();
                Engine::Dedicated(ThreadHandle::start(core, mailbox, binding, alone_no_more)?)
            }
            None => Engine::inline(core),
        };
        Ok(Self::assemble(engine, job, counters, hook, lost_peers).bound(binding))
    }
}
