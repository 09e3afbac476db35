//! The transports of a control plane.

use std::sync::Arc;

use doorbell_fabric::cores::{self, CoreSet};

use super::stats::{Board, Carriage, Watched, look};
use crate::config::Config;
use crate::error::OobError;
use crate::key::JobKey;
use crate::lines::rail::{self, Open, Rails};
use crate::lines::tcp::{self, Tcp};
use crate::lines::{Clock, Who};
use crate::runner::{self, Carrier, Carriers, Progress};

/// The names of the transports in contacts.
pub(super) const TCP: &str = "tcp";
pub(super) const RAIL: &str = "rail";

/// The transports of a control plane, the preferred one first, as [`Config::transports`] names them: `tcp`
/// alone, or with rails.
///
/// ```
/// use doorbell_oob::lines::tcp;
/// use doorbell_oob::plane::Carried;
/// use doorbell_oob::lines::rail::{self, Open, endpoint};
/// use doorbell_shm::{ShmConfig, ShmRail};
///
/// let shm: Open = Box::new(|| {
///     let rail = ShmRail::open(&"shm".parse()?, &ShmConfig::default())?;
///     let life = rail.incarnation();
///     Ok(endpoint(rail, life))
/// });
/// let both = Carried::new().rail(rail::Settings::default(), vec![shm]).tcp(tcp::Settings::default());
/// assert_eq!(both.names(), ["rail", "tcp"]);
/// assert_eq!(Carried::from(tcp::Settings::default()).names(), ["tcp"]);
/// ```
#[derive(Debug, Default)]
pub struct Carried(Vec<One>);

enum One {
    Tcp(tcp::Settings),
    Rail(rail::Settings, Vec<Open>),
}

impl Carried {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the transport `tcp`.
    #[must_use]
    pub fn tcp(mut self, settings: tcp::Settings) -> Self {
        self.0.push(One::Tcp(settings));
        self
    }

    /// Appends `rail`, over these rails, the preferred one first. They are opened on the progress thread, for
    /// the control plane only.
    #[must_use]
    pub fn rail(mut self, settings: rail::Settings, rails: Vec<Open>) -> Self {
        self.0.push(One::Rail(settings, rails));
        self
    }

    /// Returns their names in contacts.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(One::name).collect()
    }

    /// Checks that they are those of the configuration, and marks in it which need to know their peers.
    pub(super) fn agree(&self, config: &mut Config) -> Result<(), OobError> {
        let names: Vec<&str> = config
            .transports
            .iter()
            .map(|transport| &*transport.name)
            .collect();
        let twice = |(at, name): (usize, &&str)| names[..at].contains(name);
        if names != self.names() || names.is_empty() || names.iter().enumerate().any(twice) {
            return Err(OobError::Setting {
                setting: "transports",
                given: names.join(","),
                reason: format!(
                    "the transports that were started are `{}`: name the same ones, `{TCP}` and `{RAIL}` at most once each, in this order, direct \
                     or along the tree",
                    self.names().join(",")
                ),
            });
        }
        for (transport, one) in config.transports.iter_mut().zip(&self.0) {
            transport.mutual |= matches!(one, One::Rail(..));
        }
        Ok(())
    }

    /// Returns the function that starts them on the progress thread.
    pub(super) fn carriers(
        self,
        config: &Config,
        key: Option<JobKey>,
        settings: runner::Settings,
        board: &Board,
    ) -> Carriers {
        let who = Who {
            name: config.name,
            epoch: config.epoch,
            key,
        };
        let (longest, spin) = (config.longest, settings.progress != Progress::Block);
        let mut all = self.0;
        for one in &mut all {
            one.leave_core(settings.progress);
        }
        let board = board.clone();
        look(&board).carriages = vec![Carriage::default(); all.len()];
        Box::new(move |clock: Clock| {
            let each = all.into_iter().enumerate();
            each.map(|(at, one)| one.start(&who, clock, (longest, spin), (&board, at)))
                .collect()
        })
    }
}

impl One {
    fn name(&self) -> &'static str {
        match self {
            Self::Tcp(_) => TCP,
            Self::Rail(..) => RAIL,
        }
    }

    /// Keeps further threads off the core that the progress thread spins on, where there are others. Called
    /// before that is bound.
    fn leave_core(&mut self, progress: Progress) {
        let (Self::Tcp(settings), Progress::Spin(Some(core))) = (self, progress) else {
            return;
        };
        let others = cores::allowed().without(&CoreSet::from_iter([core]));
        if settings.cores.is_none() && !others.is_empty() {
            settings.cores = Some(others);
        }
    }

    fn start(
        self,
        who: &Who,
        clock: Clock,
        (longest, spin): (usize, bool),
        (board, at): (&Board, usize),
    ) -> Result<Box<dyn Carrier>, OobError> {
        let (name, board): (Arc<str>, Board) = (self.name().into(), board.clone());
        Ok(match self {
            Self::Tcp(mut settings) => {
                settings.limits.longest = longest;
                let tcp = Tcp::start(settings, who.clone(), clock)?;
                Box::new(Watched::new(tcp, board, at, name))
            }
            Self::Rail(mut settings, rails) => {
                (settings.limits.longest, settings.spin) = (longest, spin);
                let rails = Rails::start(settings, who.clone(), rails)?;
                Box::new(Watched::new(rails, board, at, name))
            }
        })
    }
}

impl std::fmt::Debug for One {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(settings) => write!(out, "tcp: {}", settings.nics),
            Self::Rail(_, rails) => write!(out, "rail: {} rails", rails.len()),
        }
    }
}

impl From<tcp::Settings> for Carried {
    /// Returns a list with `tcp` only.
    fn from(settings: tcp::Settings) -> Self {
        Self::new().tcp(settings)
    }
}
