//! What is below the clients: our libportals, or a libfabric with our provider and with others beside it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::network::{Network, Place};
use super::trees::Client;

/// The name of our provider.
pub(crate) const OURS: &str = "doorbell";

/// A library of networks that clients are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Over {
    /// The clients use our libportals.
    Portals,
    /// The clients use libfabric, with our provider and with others for comparison.
    Libfabric,
}

impl Over {
    /// Whether a client is built for it here.
    pub(crate) fn has(self, client: Client) -> bool {
        match self {
            Self::Portals => true,
            Self::Libfabric => client == Client::OpenShmem,
        }
    }

    /// Returns the title of the table's column with what carries a row.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Portals => "network",
            Self::Libfabric => "provider",
        }
    }
}

/// A network, and over libfabric the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) network: Network,
    provider: Option<String>,
}

impl Route {
    /// Returns every way in which the tests are run. Rails are ours: over another provider, networks that
    /// differ in rails alone are one.
    pub(crate) fn all(over: Over, networks: &[Network], providers: &[String]) -> Vec<Self> {
        let route = |network: &Network, provider: Option<&String>| Self {
            network: network.clone(),
            provider: provider.cloned(),
        };
        if over == Over::Portals {
            return networks.iter().map(|network| route(network, None)).collect();
        }
        let mut routes: Vec<Self> = Vec::new();
        for provider in providers {
            for network in networks {
                let new = route(network, Some(provider));
                if !routes.iter().any(|old| old.to_string() == new.to_string()) {
                    routes.push(new);
                }
            }
        }
        routes
    }

    /// Whether failures count: those over the providers of others are shown for comparison.
    pub(crate) fn is_ours(&self) -> bool {
        self.provider.as_deref().is_none_or(|name| name == OURS)
    }

    /// Sets the variables that lead a client over it; our provider's file is in `folder`.
    pub(crate) fn lead(&self, command: &mut Command, place: &Place, folder: &Path) {
        let Some(provider) = &self.provider else {
            command.env("DOORBELL_RAILS", place.rails());
            return;
        };
        command.env("FI_PROVIDER", provider);
        if self.is_ours() {
            command.env("FI_PROVIDER_PATH", folder);
            command.env("FI_DOORBELL_RAILS", place.rails());
        }
        if let Some(hosts) = place.hosts() {
            hosts.choose_interface(command);
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.provider, &self.network) {
            (None, network) => network.fmt(out),
            (Some(provider), Network::Rails(_)) if !self.is_ours() => out.write_str(provider),
            (Some(provider), network) => write!(out, "{provider}, {network}"),
        }
    }
}

/// How clients are built for libfabric.
#[derive(Clone, Debug, Default)]
pub(crate) struct Libfabric {
    /// Where it is installed, if it is not the system's.
    pub(crate) prefix: Option<PathBuf>,
    /// OpenSHMEM makes progress in its own calls, and requires none by a thread.
    pub(crate) is_manual: bool,
}

impl Libfabric {
    /// Returns the name of the folder in which a client is built for it: another one for each prefix.
    pub(crate) fn folder(&self, client: Client) -> String {
        let prefix = self.prefix.as_deref().map(short_name).unwrap_or_default();
        let progress = if self.is_manual { "-manual" } else { "" };
        format!("{client}-libfabric{prefix}{progress}")
    }

    /// Returns the folders of its libraries.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        self.prefix.iter().map(|prefix| prefix.join("lib")).collect()
    }
}

/// Returns the last name of a folder with a hash of its whole path, which others of that name do not have.
fn short_name(folder: &Path) -> String {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let last = whole.file_name().unwrap_or_default().to_string_lossy();
    // FNV-1a, since it is the same in each build of this program; a slash at the end is no component.
    let names = whole.components().map(|name| name.as_os_str().as_encoded_bytes());
    let hash = names.fold(0xcbf2_9ce4_8422_2325, |hash, name| {
        let bytes = name.iter().chain(b"/");
        bytes.fold(hash, |hash: u64, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    });
    format!("-{last}-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(over: Over, networks: &[&str], providers: &[&str]) -> Vec<String> {
        let networks: Vec<Network> = networks.iter().map(|name| name.parse().unwrap()).collect();
        let providers: Vec<String> = providers.iter().map(|name| (*name).to_owned()).collect();
        let routes = Route::all(over, &networks, &providers);
        routes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn other_providers_run_once_on_a_host_and_once_on_two() {
        let networks = ["shm", "udp:lo", "two-hosts"];
        assert_eq!(
            names(Over::Portals, &networks, &["doorbell", "sockets"]),
            networks
        );
        assert_eq!(
            names(Over::Libfabric, &networks, &["doorbell", "sockets"]),
            [
                "doorbell, shm",
                "doorbell, udp:lo",
                "doorbell, two-hosts",
                "sockets",
                "sockets, two-hosts"
            ]
        );
    }

    #[test]
    fn only_ours_is_judged_and_has_rails() {
        let place = Network::Rails("udp:lo".to_owned())
            .make(Path::new("/tmp"))
            .unwrap();
        let networks = ["udp:lo".parse().unwrap()];
        let providers = ["doorbell".to_owned(), "sockets".to_owned()];
        let set = |route: &Route| {
            let mut command = Command::new("env");
            route.lead(&mut command, &place, Path::new("/p"));
            let set = command.get_envs();
            set.map(|(name, value)| {
                let value = value.unwrap_or_default();
                format!("{}={}", name.to_string_lossy(), value.to_string_lossy())
            })
            .collect::<Vec<_>>()
        };
        let routes = Route::all(Over::Libfabric, &networks, &providers);
        assert!(routes[0].is_ours() && !routes[1].is_ours());
        assert_eq!(
            set(&routes[0]),
            [
                "FI_DOORBELL_RAILS=udp:lo",
                "FI_PROVIDER=doorbell",
                "FI_PROVIDER_PATH=/p"
            ]
        );
        assert_eq!(set(&routes[1]), ["FI_PROVIDER=sockets"]);
        let portals = Route::all(Over::Portals, &networks, &providers);
        assert!(portals[0].is_ours());
        assert_eq!(set(&portals[0]), ["DOORBELL_RAILS=udp:lo"]);
    }

    #[test]
    fn each_build_has_a_folder_of_its_own() {
        let mut libfabric = Libfabric::default();
        assert_eq!(libfabric.folder(Client::OpenShmem), "openshmem-libfabric");
        libfabric.is_manual = true;
        let mut folder = |prefix: &str| {
            libfabric.prefix = Some(prefix.into());
            libfabric.folder(Client::OpenShmem)
        };
        let first = folder("/a/ofi-2.6");
        assert!(first.starts_with("openshmem-libfabric-ofi-2.6-"), "{first}");
        assert!(first.ends_with("-manual"), "{first}");
        assert_eq!(folder("/a/ofi-2.6/"), first);
        assert_ne!(folder("/b/ofi-2.6"), first);
        assert_ne!(folder("/a/ofi/2.6"), folder("/b/ofi/2.6"));
        assert_eq!(libfabric.libraries(), [PathBuf::from("/b/ofi/2.6/lib")]);
    }
}
