//! By what means a control plane goes: its transports and their routes, its threads, and rails of its own.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_oob::config::Transport;
use doorbell_oob::lines::rail::{self, Open, endpoint};
use doorbell_oob::lines::tcp;
use doorbell_oob::plane::Carried;
use doorbell_oob::runner::{self, Progress};

use crate::config::{Config, ControlRoutes, ControlThreads, ControlTransport, ControlWait, Value as _};
use crate::error::Error;
use crate::meet::Key;
use crate::rails::{AnyRail, Manage as _, discover};

/// The purpose that the key of the rails is derived for.
pub const RAIL_PURPOSE: &str = "control rails";

/// What a control plane is started with.
#[derive(Debug)]
pub struct Means {
    /// The transports, the preferred one first, with their routes.
    pub transports: Vec<Transport>,
    /// The same, with their settings.
    pub carried: Carried,
    /// Whether its thread sleeps or spins.
    pub runner: runner::Settings,
}

impl Means {
    /// Returns the means that the settings name: `tcp` listens as it is set; rails are opened under `key`; a
    /// thread that spins does so on `core`.
    pub fn of(config: &Config, mut tcp: tcp::Settings, key: &Key, core: Option<usize>) -> Self {
        let control = &config.control;
        tcp.threads = *control.threads.get() == ControlThreads::Nic;
        let route = |transport: &ControlTransport| match control.routes.get() {
            ControlRoutes::Tree => Transport::tree(transport.word()),
            ControlRoutes::Direct => Transport::direct(transport.word()),
        };
        let all = control.transports.get().all();
        let carried = all
            .iter()
            .fold(Carried::new(), |carried, transport| match transport {
                ControlTransport::Tcp => carried.tcp(tcp.clone()),
                ControlTransport::Rail => carried.rail(rail::Settings::default(), rails(config, key)),
            });
        Self {
            transports: all.iter().map(route).collect(),
            carried,
            runner: runner::Settings {
                progress: match control.wait.get() {
                    ControlWait::Block => Progress::Block,
                    ControlWait::Spin => Progress::Spin(core),
                },
                ..runner::Settings::default()
            },
        }
    }
}

/// Whether each end has to have the contacts of all: to call them without the tree, or because a rail calls
/// only those that it knows.
pub(super) fn needs_all_contacts(config: &Config) -> bool {
    let control = &config.control;
    control.transports.get().has(ControlTransport::Rail) || *control.routes.get() == ControlRoutes::Direct
}

/// The rails of the transport `rail`: those that are named, else the one that every host has.
fn names(config: &Config) -> Vec<RailName> {
    match &config.control.rails.get().0[..] {
        [] => "shm".parse().into_iter().collect(),
        named => named.to_vec(),
    }
}

fn rails(config: &Config, key: &Key) -> Vec<Open> {
    let mut own = config.clone();
    // The capture and the faults of a rail are those of the ranks' messages.
    own.udp.capture.set(None);
    own.fault.inject.set(Default::default());
    names(config)
        .into_iter()
        .map(|name| open(name, own.clone(), *key))
        .collect()
}

/// Opens one, on the thread that it will belong to.
fn open(name: RailName, config: Config, key: Key) -> Open {
    Box::new(move || {
        let mut rail = AnyRail::open(&name, &config).map_err(|error| rail_error(&name, error))?;
        rail.set_job_key(&key);
        let life = rail.incarnation();
        Ok(endpoint(rail, life))
    })
}

fn rail_error(name: &RailName, error: Error) -> RailError {
    match error {
        Error::Rail(error) => error,
        other => RailError::Unusable {
            rail: name.to_string(),
            reason: other.to_string(),
            remedy: other.remedy().to_owned(),
        },
    }
}

/// Refuses rails of a control plane that this host does not have, or cannot use.
///
/// # Errors
/// [`Error::Rail`] with the reason and the remedy.
pub fn check_rails(config: &Config) -> Result<(), Error> {
    let named = &config.control.rails.get().0;
    if named.is_empty() || !config.control.transports.get().has(ControlTransport::Rail) {
        return Ok(());
    }
    let mut of_control = config.clone();
    of_control.rails.list.set(config.control.rails.get().clone());
    let found = discover(&of_control);
    for name in named {
        found.named(name)?;
    }
    Ok(())
}

/// Refuses a control plane that would reach no other host, for ranks or daemons of several hosts: over `tcp`
/// it needs interfaces, which its caller checks.
pub(super) fn check_apart(config: &Config) -> Result<(), Error> {
    let control = &config.control;
    let has_tcp = control.transports.get().has(ControlTransport::Tcp);
    if has_tcp || !control.rails.get().0.is_empty() {
        return Ok(());
    }
    let expected = format!(
        "the rails that lead to the other hosts, as in `udp:eth0`, since control.transports is {} and there \
         are several hosts",
        control.transports.get().show()
    );
    config.unfit("control.rails", &expected).map_or(Ok(()), Err)
}
