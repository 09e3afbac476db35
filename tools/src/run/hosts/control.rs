//! The settings of the launcher's and the daemons' control plane: `control.*` as the launcher has them.

use doorbell::Config;
use doorbell::config::{ControlTransport, ControlWait, ProgressCore};
use doorbell::control_plane::check_rails;
use doorbell_fabric::cores;

use crate::error::ToolError;
use crate::run::control_plane;

/// The sections of which a daemon gets what is not a default: the control plane's, and those of the rails
/// that it may open.
const SECTIONS: [&str; 8] = [
    "control.", "shm.", "udp.", "xdp.", "btl.", "igbvf.", "usnic.", "verbs.",
];

/// What the launcher and its daemons need of the settings.
#[derive(Debug, Default)]
pub(super) struct PlaneSettings {
    /// Names and values of what is not a default.
    pub(super) changed: Vec<(String, String)>,
    /// The core that the thread of each daemon spins on.
    pub(super) core: Option<u32>,
}

/// Reads the settings of this process's environment, and refuses what the launcher and its daemons cannot
/// carry out, before one of them is started.
pub(super) fn settings(is_local: bool) -> Result<PlaneSettings, ToolError> {
    let Some(config) = control_plane::settings()? else {
        return Ok(PlaneSettings::default());
    };
    config.verify_control()?;
    let refused = unfit(&config, is_local).and_then(|(name, expected)| config.unfit(name, &expected));
    if let Some(error) = refused {
        return Err(error.into());
    }
    check_rails(&config)?;
    let is_changed = |name: &str| SECTIONS.iter().any(|section| name.starts_with(section));
    let changed = config.list().into_iter();
    let changed = changed.filter(|line| line.origin != "default" && is_changed(line.name));
    Ok(PlaneSettings {
        changed: changed.map(|line| (line.name.to_owned(), line.value)).collect(),
        core: core(&config),
    })
}

/// Returns the core that the thread of a launcher or a daemon spins on, where one is named.
pub(super) fn core(config: &Config) -> Option<u32> {
    let spins = *config.control.wait.get() == ControlWait::Spin;
    match config.control.core.get() {
        ProgressCore::Number(core) if spins => Some(*core),
        _ => None,
    }
}

/// Returns the setting that does not suit a launcher and daemons, and what it should be.
fn unfit(config: &Config, is_local: bool) -> Option<(&'static str, String)> {
    let control = &config.control;
    let transports = control.transports.get();
    if !transports.has(ControlTransport::Tcp) {
        let text = "tcp among them with --hosts: daemons call over tcp first, since over a rail both ends \
                    have to know each other before; set rail for the ranks alone by --env \
                    DOORBELL_CONTROL_TRANSPORTS=rail";
        return Some(("control.transports", text.to_owned()));
    }
    let has_rail = transports.has(ControlTransport::Rail);
    if has_rail && control.rails.get().0.is_empty() && !is_local {
        let text =
            "with --hosts, the rails that lead to the other hosts, as in `udp:eth0` (DOORBELL_CONTROL_RAILS)";
        return Some(("control.rails", text.to_owned()));
    }
    let usable = cores::allowed();
    match control.core.get() {
        ProgressCore::Next | ProgressCore::Sibling | ProgressCore::List(_) => {
            let text = "a number or auto with --hosts: the others are about the cores of ranks, which the \
                        launcher and its daemons are not; set it for the ranks alone by --env \
                        DOORBELL_CONTROL_WAIT=spin --env DOORBELL_CONTROL_CORE=next";
            Some(("control.core", text.to_owned()))
        }
        ProgressCore::Number(core) if !usable.contains(*core as usize) => {
            let text =
                format!("one of the cores {usable}, which this process may use (`taskset -p` shows them)");
            Some(("control.core", text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &[(&str, &str)], is_local: bool) -> Option<&'static str> {
        let mut config = Config::default();
        for (name, value) in settings {
            config.set(name, value).unwrap();
        }
        unfit(&config, is_local).map(|(name, _)| name)
    }

    #[test]
    fn what_daemons_cannot_do_is_refused_by_its_name() {
        let spin = ("control.wait", "spin");
        assert_eq!(refused(&[], false), None);
        assert_eq!(
            refused(&[("control.transports", "rail")], true),
            Some("control.transports")
        );
        let both = ("control.transports", "tcp,rail");
        assert_eq!(refused(&[both], false), Some("control.rails"));
        assert_eq!(refused(&[both], true), None);
        assert_eq!(refused(&[both, ("control.rails", "udp:eth0")], false), None);
        for core in ["next", "sibling", "0,1", "4095"] {
            assert_eq!(
                refused(&[spin, ("control.core", core)], false),
                Some("control.core")
            );
        }
        let first = cores::allowed().iter().next().unwrap().to_string();
        assert_eq!(refused(&[spin, ("control.core", &first)], false), None);
        assert_eq!(refused(&[spin], false), None);
    }
}
