//! Sets of rails in the configuration: what they stand for on this machine, and which rail is this rank's.
//!
//! | started by | who computes the shares | what counts |
//! |---|---|---|
//! | `doorbell run` | the launcher, or each host's daemon | cores of the ranks, processes that hold a rail |
//! | another launcher | each rank, the same for all of its host | its number among them |
//! | nothing | the process | its own cores, processes that hold a rail |

use std::path::Path;

use doorbell_fabric::cores::Topology;
use doorbell_fabric::discover::Discovery;
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_fabric::rail_set::{Holders, Machine, RailSet, Wanted, shares};
use doorbell_oob::launch::Kind;

use super::find::{Drivers, discover};
use crate::config::{Config, Rails};
use crate::error::Error;
use crate::launcher::{LauncherHandle, launcher, lock};

/// This process among those of its host that take rails of the same sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// It is the only one.
    Alone,
    /// It has this number, from 0, and there are this many.
    Numbered(u32, u32),
    /// Its launcher, of this kind, gives it no number.
    Unnumbered(&'static str),
    /// A running job has started it: its number is one among those that were started with it.
    Spawned,
}

impl Among {
    /// The place of a rank that joins a job by this launcher; without one, all ranks are of this host.
    #[must_use]
    pub fn of(launcher: Option<&LauncherHandle>, rank: u32, size: u32) -> Self {
        let place = launcher.map(|launcher| {
            let launcher = lock(launcher);
            let local = (launcher.place().local_rank, launcher.place().local_size);
            (local.0.zip(local.1), launcher.kind().name())
        });
        match place {
            _ if size == 1 => Self::Alone,
            None => Self::Numbered(rank, size),
            Some((Some((place, ranks)), _)) => Self::Numbered(place, ranks.max(place + 1)),
            Some((None, kind)) => Self::Unnumbered(kind),
        }
    }

    /// The place of a process that joins no job, by the variables of what has started it.
    ///
    /// # Errors
    /// Those of [`launcher`].
    pub fn of_member(config: &Config) -> Result<Self, Error> {
        let found = launcher(config)?;
        Ok(match (found.kind, found.local_rank.zip(found.local_size)) {
            (Kind::Singleton, _) => Self::Alone,
            _ if found.size == Some(1) => Self::Alone,
            (_, Some((place, ranks))) => Self::Numbered(place, ranks.max(place + 1)),
            (kind, None) => Self::Unnumbered(kind.name()),
        })
    }

    /// Its number, and how many there are.
    fn number(self, set: &RailName) -> Result<(usize, usize), RailError> {
        let refused = |reason: String, remedy: &str| RailError::Unusable {
            rail: set.to_string(),
            reason,
            remedy: remedy.to_owned(),
        };
        match self {
            Self::Alone => Ok((0, 1)),
            Self::Numbered(place, ranks) => Ok((place as usize, ranks as usize)),
            Self::Unnumbered(kind) => Err(refused(
                format!(
                    "each rank of a host takes one of the rails that it stands for, and the launcher ({kind}) \
                     does not number the ranks of this host"
                ),
                "name a rail for each rank, or start the job with `doorbell run`",
            )),
            Self::Spawned => Err(refused(
                "ranks that a running job starts do not see which of the rails the others have".to_owned(),
                "name a rail, or start the job with `doorbell run`, which gives them free ones",
            )),
        }
    }
}

/// The rails that a configuration names, with what each set among them stands for on this machine.
#[derive(Clone, Debug)]
pub struct RailSets {
    config: Config,
    sets: Vec<RailSet>,
    topology: Topology,
}

impl RailSets {
    /// Looks up what the sets in `rails.list` stand for; `None` where it has none.
    #[must_use]
    pub fn of(config: &Config) -> Option<Self> {
        Self::look(config, Holders::Count, false)
    }

    /// With `leaves_any`, a set is no set here that its driver takes any free rail of.
    fn look(config: &Config, holders: Holders, leaves_any: bool) -> Option<Self> {
        let drivers = Drivers::of(config);
        let takes_any = |name: &RailName| drivers.all().iter().any(|driver| driver.takes_any(name));
        let list = config.rails.list.get().0.iter();
        let names = list.filter(|name| name.is_set() && !(leaves_any && takes_any(name)));
        let names: Vec<&RailName> = names.collect();
        if names.is_empty() {
            return None;
        }
        let (found, topology): (Discovery, Topology) = (discover(config), Topology::read());
        let machine = Machine {
            topology: &topology,
            root: Path::new("/"),
        };
        let of = |name: &&RailName| RailSet::of(name, &drivers.all(), &found, &machine, holders);
        Some(Self {
            sets: names.iter().map(of).collect(),
            config: config.clone(),
            topology,
        })
    }

    /// Returns what each set stands for.
    #[must_use]
    pub fn sets(&self) -> &[RailSet] {
        &self.sets
    }

    /// Returns the rails of each rank of this host, by the nodes of their cores, where those are known. Rails
    /// that other ranks have `taken` are left out.
    ///
    /// # Errors
    /// [`RailError::Unusable`] for the first set with fewer rails than there are ranks.
    pub fn shares(
        &self,
        ranks: &[Option<usize>],
        taken: &[RailName],
    ) -> Result<Vec<Vec<RailName>>, RailError> {
        let drivers = Drivers::of(&self.config);
        let more = |set: &RailName, count: usize| {
            let drivers = drivers.all();
            let driver = drivers.iter().find(|driver| driver.kind() == set.kind())?;
            driver.more(set, count)
        };
        shares(Wanted {
            list: &self.config.rails.list.get().0,
            sets: &self.sets,
            taken,
            ranks,
            layout: &Machine {
                topology: &self.topology,
                root: Path::new("/"),
            },
            more: &more,
        })
    }

    /// The node of this process's cores, where they are of one.
    fn own_node(&self) -> Option<usize> {
        let mut nodes = self.topology.cores().iter().map(|core| core.node);
        let node = nodes.next()?;
        nodes.all(|other| other == node).then_some(node)
    }
}

/// Puts this process's rails in the place of the sets that the configuration names. A set of which its driver
/// takes any free rail stays as it is.
///
/// # Errors
/// A set with fewer rails than this host has ranks; a launcher that does not number them.
pub fn take_own(config: &mut Config, among: Among) -> Result<(), Error> {
    let holders = match among {
        Among::Alone => Holders::Count,
        _ => Holders::Ignored,
    };
    let Some(sets) = RailSets::look(config, holders, true) else {
        return Ok(());
    };
    let name = sets.sets.first().map(|set| &set.name);
    let (place, count) = name.map_or(Ok((0, 1)), |name| among.number(name))?;
    let node = (among == Among::Alone).then(|| sets.own_node()).flatten();
    let mut each = sets.shares(&vec![node; count], &[])?;
    config.rails.list.narrow(Rails(each.swap_remove(place)));
    config.rails.of_sets.narrow(true);
    Ok(())
}

/// Returns a configuration for each of `size` ranks of this process, with its rails in the place of sets.
///
/// # Errors
/// A set with fewer rails than ranks.
pub fn take_each(config: &Config, size: u32) -> Result<Vec<Config>, Error> {
    let each = |place| {
        let mut own = config.clone();
        take_own(&mut own, Among::Numbered(place, size))?;
        Ok(own)
    };
    (0..size).map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value as _;

    fn config(rails: &str) -> Config {
        let mut config = Config::default();
        config.set("rails.list", rails).unwrap();
        config
    }

    fn taken(rails: &str, among: Among) -> Result<String, Error> {
        let mut config = config(rails);
        take_own(&mut config, among)?;
        Ok(config.rails.list.get().show())
    }

    #[test]
    fn a_rank_takes_its_rail_of_a_set_and_keeps_what_is_named() {
        // Other interfaces may be here; the loopback is alone of its name.
        assert_eq!(taken("shm,udp:l*o", Among::Alone).unwrap(), "shm,udp:lo");
        assert_eq!(taken("udp:l*o", Among::Numbered(0, 1)).unwrap(), "udp:lo");
        assert_eq!(taken("shm,udp:lo", Among::Spawned).unwrap(), "shm,udp:lo");
        // Its driver takes any that is free.
        assert_eq!(
            taken("usnic:model/D/vf*", Among::Numbered(1, 2)).unwrap(),
            "usnic:model/D/vf*"
        );
    }

    #[test]
    fn too_few_rails_or_no_number_are_refused() {
        let refused = |rails: &str, among| {
            let error = taken(rails, among).unwrap_err();
            assert_eq!((error.code(), error.exit_code()), ("rail-unusable", 3), "{error}");
            error.to_string()
        };
        for place in 0..2 {
            let text = refused("udp:l*o", Among::Numbered(place, 2));
            assert!(
                text.contains("each of the 2 ranks of this host takes one, and 1 of those")
                    && text.contains("is free (udp:lo)")
                    && text.contains("start fewer ranks on each host"),
                "{text}"
            );
        }
        let text = refused("udp:nosuch*", Among::Alone);
        assert!(
            text.contains("no rail that it stands for") && text.contains("udp:lo"),
            "{text}"
        );
        let text = refused("udp:l*o", Among::Unnumbered("pmi2"));
        assert!(text.contains("(pmi2) does not number"), "{text}");
        let text = refused("udp:l*o", Among::Spawned);
        assert!(text.contains("ranks that a running job starts"), "{text}");
        let found = discover(&config("udp:l*o"));
        let text = found.named(&"udp:l*o".parse().unwrap()).unwrap_err().to_string();
        assert!(
            text.contains("one is needed here; name one of them: udp:lo"),
            "{text}"
        );
    }
}
