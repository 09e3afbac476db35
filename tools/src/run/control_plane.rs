//! The control plane of the ranks, as their settings have it: for the placement of its threads, and for
//! `--show-binding`.

use std::fmt;

use doorbell::Config;
use doorbell::config::{ControlTransport, ControlWait, ProgressCore};
use doorbell_fabric::cores::Topology;
use serde::{Deserialize, Serialize};

use crate::error::ToolError;

/// Reads the settings of this process's environment; `None` where another one is bad, which is an error of
/// the ranks, which name it.
///
/// # Errors
/// A bad setting of the control plane, so that nothing is started with it.
pub(super) fn settings() -> Result<Option<Config>, ToolError> {
    match Config::from_environment() {
        Ok(config) => Ok(Some(config)),
        Err(error) if error.setting().is_some_and(|name| name.starts_with("control.")) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// What is shown of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ControlPlane {
    /// What carries it, the preferred one first.
    transports: Vec<String>,
    /// The rails of the transport `rail`.
    rails: Vec<String>,
    routes: String,
    threads: String,
    wait: String,
}

/// The core that the control plane's thread of each rank spins on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ControlCore {
    /// One that the rank's other threads leave.
    Left,
    /// A hardware thread beside that of the rank's own thread.
    Sibling,
    /// The same for each rank.
    Number(usize),
    /// One for each rank.
    List(Vec<usize>),
}

impl ControlPlane {
    /// Returns that of the ranks, if the settings enable one.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let control = &config.control;
        if !*control.mode.get() {
            return None;
        }
        let all = config.list();
        let value = |name: &str| {
            let line = all.iter().find(|line| line.name == name);
            line.map_or_else(String::new, |line| line.value.clone())
        };
        let words = |name: &str| {
            let value = value(name);
            let words = value.split(',').filter(|word| !word.is_empty());
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        let rails = match (
            control.transports.get().has(ControlTransport::Rail),
            words("control.rails"),
        ) {
            (false, _) => Vec::new(),
            (true, named) if named.is_empty() => vec!["shm".to_owned()],
            (true, named) => named,
        };
        Some(Self {
            transports: words("control.transports"),
            rails,
            routes: value("control.routes"),
            threads: value("control.threads"),
            wait: value("control.wait"),
        })
    }
}

impl ControlCore {
    /// Returns that of the settings; `None` where there is no thread that spins.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let control = &config.control;
        if !*control.mode.get() || *control.wait.get() != ControlWait::Spin {
            return None;
        }
        Some(match control.core.get() {
            ProgressCore::Auto | ProgressCore::Next => Self::Left,
            ProgressCore::Sibling => Self::Sibling,
            ProgressCore::Number(core) => Self::Number(*core as usize),
            ProgressCore::List(cores) => Self::List(cores.iter().map(|core| *core as usize).collect()),
        })
    }

    /// Returns the core of this rank, of whose cores those are taken.
    pub(super) fn of_rank(&self, rank: u32, own: &Topology, taken: &[usize]) -> Option<usize> {
        match self {
            Self::Left => own.left(taken).first().copied(),
            Self::Sibling => {
                let siblings = own.siblings(*taken.first()?);
                siblings.iter().find(|core| !taken.contains(core))
            }
            Self::Number(core) => Some(*core),
            Self::List(cores) => cores.get(rank as usize).copied(),
        }
    }
}

/// One line for people.
impl fmt::Display for ControlPlane {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut transports = self.transports.join(", ");
        if !self.rails.is_empty() {
            let rails = format!("rail ({})", self.rails.join(", "));
            transports = transports.replace("rail", &rails);
        }
        let routes = match self.routes.as_str() {
            "direct" => "direct",
            _ => "along the tree",
        };
        let wait = match self.wait.as_str() {
            "spin" => "one thread, which spins",
            _ => "one thread, which sleeps",
        };
        let threads = match self.threads.as_str() {
            "nic" => ", and one for each interface",
            _ => "",
        };
        write!(out, "control plane: {transports}; {routes}; {wait}{threads}")
    }
}
