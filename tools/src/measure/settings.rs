//! What a measurement's options and the settings of the environment result in: rails, and where progress is
//! made.

use doorbell::Config;
use doorbell::config::{Mode, ProgressCore};
use doorbell_fabric::name::RailName;

use super::args::MeasureArgs;
use crate::error::ToolError;

/// Which thread makes progress, and where: by the options, else by the settings, else by the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// Progress is made by a thread of its own.
    pub(crate) dedicated: bool,
    /// The core that settings name for it.
    pub(crate) core: ProgressCore,
}

impl Threads {
    /// Combines a command line with the settings of the environment and of the file.
    pub(crate) fn of(args: &MeasureArgs) -> Result<Self, ToolError> {
        Ok(Self::of_config(&builder(args, None).resolve()?))
    }

    fn of_config(config: &Config) -> Self {
        let dedicated = *config.progress.mode.get() == Mode::Dedicated;
        let core = match dedicated {
            true => config.progress.core.get().clone(),
            false => ProgressCore::Auto,
        };
        Self { dedicated, core }
    }

    /// The core of the progress thread, where the settings leave it to this program.
    pub(crate) fn core_or(&self, other: Option<usize>) -> Option<usize> {
        other.filter(|_| self.dedicated && self.core == ProgressCore::Auto)
    }
}

/// Refuses a named rail that cannot be used here, and a set with fewer rails than this host has ranks.
pub(crate) fn check_rails(args: &MeasureArgs, ranks: u32) -> Result<(), ToolError> {
    let config = builder(args, None).resolve()?;
    let found = doorbell::discover(&config);
    for name in config.rails.list.get().0.iter().filter(|name| !name.is_set()) {
        found.named(name)?;
    }
    if let Some(sets) = doorbell::RailSets::of(&config) {
        sets.shares(&vec![None; ranks as usize], &[])?;
    }
    let sockets = config.rails.list.get().0.iter().any(|name| name.wire() == "udp");
    if args.pcap.is_some() && !sockets {
        let text = "`--pcap` captures the frames of a udp or xdp rail, and none is named: add `--rail udp:INTERFACE`";
        return Err(ToolError::Usage(text.to_owned()));
    }
    Ok(())
}

/// The rails of the command line, if there are any, over those of the environment.
pub(crate) fn with_rails(builder: doorbell::Builder, rails: &[RailName]) -> doorbell::Builder {
    if rails.is_empty() {
        return builder;
    }
    let names: Vec<&str> = rails.iter().map(RailName::as_str).collect();
    builder.set_by("--rail", "rails.list", &names.join(","))
}

/// The world's settings from the command line, over those of the environment.
pub(crate) fn builder(args: &MeasureArgs, progress_core: Option<usize>) -> doorbell::Builder {
    let mut builder = with_rails(doorbell::Builder::new(), &args.rails);
    if let Some(mode) = args.mode {
        builder = builder.set_by("--mode", "progress.mode", mode.name());
    }
    if args.no_cma {
        builder = builder.set("shm.cma", "false");
    }
    if let Some(file) = &args.pcap {
        let name = file.to_string_lossy();
        // The word that means "none".
        let name = if name == "auto" { "./auto".into() } else { name };
        builder = builder.set("udp.capture", &name);
    }
    if let Some(core) = progress_core {
        builder = builder.set("progress.core", &core.to_string());
    }
    builder
}
