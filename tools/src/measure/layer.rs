//! The layer that carries the messages of a measurement, once its ranks are connected.

use doorbell::oob::Connection;
use doorbell::{Am, Builder, Job, Portals, World};
use doorbell_bench::error::BenchError;
use doorbell_bench::job::{self, Cores};
use doorbell_bench::layer::Layer;
use doorbell_bench::layer::am::AmState;
use doorbell_bench::load::Progress;
use doorbell_bench::plan::Plan;
use doorbell_bench::report::Report;

use crate::error::ToolError;

/// A job of one of the layers.
pub(super) enum LayerJob {
    World(Box<World>),
    Portals(Box<Portals>),
    Am(Box<Am>, AmState),
}

impl LayerJob {
    /// Joins the job that the environment describes.
    pub(super) fn build(builder: Builder, plan: &Plan) -> Result<Self, ToolError> {
        Ok(match plan.layer {
            Layer::Pml => Self::World(Box::new(builder.build()?)),
            Layer::Portals => Self::Portals(Box::new(builder.build_portals()?)),
            Layer::Am => {
                let state = AmState::new()?;
                Self::Am(Box::new(builder.build_am(state.setup(most(plan))?)?), state)
            }
        })
    }

    /// Meets another rank over a connection.
    pub(super) fn build_over(
        builder: Builder,
        plan: &Plan,
        connection: Connection,
    ) -> Result<Self, doorbell::Error> {
        Ok(match plan.layer {
            Layer::Pml => Self::World(Box::new(builder.build_over(connection)?)),
            Layer::Portals => Self::Portals(Box::new(builder.build_portals_over(connection)?)),
            Layer::Am => {
                let no_memory = |error: BenchError| doorbell::Error::Interface {
                    what: "the handlers of a measurement",
                    reason: error.to_string(),
                };
                let state = AmState::new().map_err(no_memory)?;
                let setup = state.setup(most(plan)).map_err(no_memory)?;
                Self::Am(Box::new(builder.build_am_over(connection, setup)?), state)
            }
        })
    }

    /// The job, whatever its ranks exchange.
    pub(super) fn job(&self) -> &Job {
        match self {
            Self::World(world) => world.job(),
            Self::Portals(portals) => portals.job(),
            Self::Am(am, _) => am.job(),
        }
    }

    /// The core that is meant for this thread, where a progress thread has another one.
    pub(super) fn own_core(&self) -> Option<usize> {
        match self {
            Self::World(world) => world.binding()?.own,
            Self::Portals(portals) => portals.binding()?.own,
            Self::Am(am, _) => am.binding()?.own,
        }
    }

    pub(super) fn rank(&self) -> u32 {
        self.job().rank()
    }

    /// The other side's process, and the rails to it.
    pub(super) fn peer(&self, rank: u32) -> (u32, Vec<String>) {
        let (info, selection) = (self.job().rank_info(rank), self.job().selection(rank));
        let chosen = selection.into_iter().flat_map(doorbell::Selection::chosen);
        let rails = chosen.map(|(rail, _)| rail.to_string()).collect();
        (info.map_or(0, |info| info.pid), rails)
    }

    /// This rank's part of a measurement.
    pub(super) fn measure(
        &mut self,
        plan: &Plan,
        cores: Cores,
        progress: &mut dyn Progress,
    ) -> Result<Option<Report>, BenchError> {
        match self {
            Self::World(world) => job::measure(world, plan, cores, progress),
            Self::Portals(portals) => job::measure_portals(portals, plan, cores, progress),
            Self::Am(am, state) => job::measure_am(am, state, plan, cores, progress),
        }
    }

    pub(super) fn close(self) {
        match self {
            Self::World(world) => world.close(),
            Self::Portals(portals) => portals.close(),
            // The result is known; how the other side ends is its own matter.
            Self::Am(am, _) => _ = am.exit(0),
        }
    }

    /// Whether another program than ours has started the ranks.
    pub(super) fn is_launched(&self) -> bool {
        self.job().launcher().is_some()
    }

    /// Ends the whole job, as far as its launcher has a call for that.
    pub(super) fn abort(self, exit: u8, reason: &str) -> ! {
        match self {
            Self::World(world) => world.abort(exit, reason),
            Self::Portals(portals) => portals.abort(exit, reason),
            Self::Am(am, _) => am.abort(exit, reason),
        }
    }
}

/// Bytes of the longest message of a plan.
fn most(plan: &Plan) -> usize {
    plan.sizes.iter().map(|size| size.bytes()).max().unwrap_or(0)
}
