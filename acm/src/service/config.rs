//! The configuration files, and the settings of the resolver and the carrier that follow from them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::carrier::{self, Key};
use crate::config::{
    ADDRESSES_FILE, AddressEntry, AddressPreload, Interfaces, Loopback, OPTIONS_FILE, Options, Preload,
    RoutePreload, RouteProtocol, Warnings, read_addresses, read_file, read_options,
};
use crate::endpoint::Endpoint;
use crate::resolver::{self, LoopbackProtocol, Table};

/// The whole configuration as read.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceConfig {
    pub(super) options: Options,
    pub(super) entries: Vec<AddressEntry>,
    pub(super) warnings: Warnings,
    /// The folder of the files.
    pub(super) folder: PathBuf,
    /// Whether the interfaces were named on the command line.
    pub(super) is_by_flag: bool,
}

impl ServiceConfig {
    /// Reads both files. One that cannot be read yields a warning and the defaults.
    pub(super) fn read(folder: &Path) -> Self {
        let mut warnings = Warnings::default();
        let mut text = |name: &str| {
            let file = folder.join(name);
            let found = read_file(&file).unwrap_or_else(|error| {
                let what = format!("cannot read the file ({error})");
                warnings.push(&file.as_path().into(), 0, what, "check its mode and its size");
                None
            });
            (file, found)
        };
        let (options_file, options_text) = text(OPTIONS_FILE);
        let (addresses_file, addresses_text) = text(ADDRESSES_FILE);
        let options = options_text.map_or_else(Options::default, |text| {
            read_options(&text, &options_file, &mut warnings)
        });
        let ips = options.support_ips_in_addr_cfg;
        let entries = addresses_text.map_or_else(Vec::new, |text| {
            read_addresses(&text, &addresses_file, ips, &mut warnings)
        });
        Self {
            options,
            entries,
            warnings,
            folder: folder.to_owned(),
            is_by_flag: false,
        }
    }

    /// Returns the files that the configuration depends on.
    pub(super) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let mut files = vec![folder.join(OPTIONS_FILE), folder.join(ADDRESSES_FILE)];
        if self.options.addr_preload != AddressPreload::None {
            files.push(self.options.addr_data_file.clone());
        }
        if self.options.route_preload != RoutePreload::None {
            files.push(self.options.route_data_file.clone());
        }
        files
    }

    /// Replaces the interfaces with those of the command line, if it names any.
    pub(super) fn with_interfaces(mut self, more: &[String]) -> Self {
        if !more.is_empty() {
            self.options.doorbell_interfaces = Interfaces::Named(more.to_vec());
            self.is_by_flag = true;
        }
        self
    }

    /// Warns of changed options that take effect only at a start.
    pub(super) fn warn_of_lasting(&mut self, began: &Options) {
        let (own, file) = (&self.options, Path::new(OPTIONS_FILE).into());
        let lasting = [
            ("server_mode", own.server_mode != began.server_mode),
            ("server_port", own.server_port != began.server_port),
            ("log_file", own.log_file != began.log_file),
            ("lock_file", own.lock_file != began.lock_file),
            (
                "acme_plus_kernel_only",
                own.acme_plus_kernel_only != began.acme_plus_kernel_only,
            ),
            (
                "doorbell_key_file",
                own.doorbell_key_file != began.doorbell_key_file,
            ),
        ];
        for (name, _) in lasting.into_iter().filter(|(_, differs)| *differs) {
            let what = format!("{name} has changed, which takes effect only at a start");
            self.warnings.push(&file, 0, what, "restart the service");
        }
    }

    /// Returns the resolver's options.
    pub(super) fn resolver(&self, authenticated: bool) -> resolver::Options {
        let own = &self.options;
        resolver::Options {
            timeout: own.timeout,
            retries: own.retries.into(),
            resolve_depth: own.resolve_depth.get().into(),
            sa_depth: own.sa_depth.get().into(),
            send_depth: own.send_depth.get().into(),
            min_mtu: own.min_mtu,
            min_rate: own.min_rate,
            addr_timeout: own.addr_timeout.duration(),
            route_timeout: own.route_timeout.duration(),
            route_prot: match own.route_prot {
                RouteProtocol::Sa => resolver::RouteProtocol::Sa,
                RouteProtocol::Acm => resolver::RouteProtocol::Acm,
            },
            loopback_prot: match own.loopback_prot {
                Loopback::Local => LoopbackProtocol::Local,
                Loopback::None => LoopbackProtocol::None,
            },
            has_sa: own.route_preload != RoutePreload::None,
            authenticated,
            verify: own.doorbell_verify,
            refused_first: own.doorbell_negative.min(Duration::from_millis(500)),
            refused_last: own.doorbell_negative,
            ..resolver::Options::default()
        }
    }

    /// Returns the carrier's settings. It sends from a port beside that of the groups, so that a firewall
    /// rule can name both.
    pub(super) fn carrier(&self, key: Option<Key>) -> carrier::Settings {
        carrier::Settings {
            sender_port: self.options.doorbell_port.saturating_add(1),
            ..carrier::Settings::of(&self.options, key)
        }
    }

    /// Reads the preload files.
    pub(super) fn preload(&mut self, endpoints: &[Endpoint]) -> (Preload, Table) {
        let preload = Preload::read(&self.options, endpoints, &mut self.warnings);
        let places = preload
            .hosts()
            .iter()
            .map(|host| (host.address.clone(), host.gid));
        let table = Table::new(places, preload.paths().iter().cloned());
        (preload, table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_files_the_defaults_hold_and_files_are_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        let none = ServiceConfig::read(folder.path());
        assert_eq!(none.options, Options::default());
        assert!(none.warnings.is_empty());
        assert_eq!(none.files(folder.path()).len(), 2);
        let text = "retries 7\nroute_prot acm\nroute_preload opensm_full_v1\nroute_data_file /tmp/routes\nnonsense x\n";
        std::fs::write(folder.path().join(OPTIONS_FILE), text).unwrap();
        std::fs::write(folder.path().join(ADDRESSES_FILE), "node1 eth0 1 default\n").unwrap();
        let some = ServiceConfig::read(folder.path());
        assert_eq!((some.options.retries, some.entries.len()), (7, 1));
        assert_eq!(some.warnings.iter().count(), 1);
        assert!(some.files(folder.path()).contains(&PathBuf::from("/tmp/routes")));
        let options = some.resolver(true);
        assert!(options.has_sa && options.authenticated);
        assert_eq!(options.retries, 7);
        let named = some.with_interfaces(&["eth7".to_owned()]);
        assert!(named.carrier(None).interfaces.has("eth7", false));
    }
}
