//! Rail sets: those that are offered. Each is a domain, whose name has the rails with `+` between them.
//!
//! ```text
//!   rails are named by a setting ──► that set alone
//!   the hints name a domain ───────► that set alone: its name names the rails
//!   neither ───────────────────────► shm, then shm+udp:IFACE for each interface that can be used;
//!                                    before both, with ofi.network = "routes", shm with all of these that
//!                                    routes lead to
//! ```
#![forbid(unsafe_code)]

use std::ffi::CStr;

use doorbell_fabric::name::{KINDS, RailName};
use doorbell_fabric::pairs::RAILS_MAX;
use doorbell_fabric::shown::shown;
use doorbell_job::Config;
use doorbell_job::config::OfiNetwork;
use doorbell_job::rails::{leading_out, udp_rails};

/// The rail set of the processes of one host.
const SHARED: &str = "shm";
/// The setting of the rails.
const LIST: &str = "rails.list";
/// The hint that names a domain, as in C.
const HINT: &str = "domain_attr.name";

/// Returns the settings of each rail set that is offered, in the order of preference. `wanted` is the name of
/// a domain, where the hints have one. Rails that are named are looked for, unless that domain is open: its
/// interfaces may have gone meanwhile.
///
/// # Errors
/// Why a rail that is named cannot be used, in a sentence.
pub(crate) fn offered(config: &Config, wanted: Option<&CStr>, is_open: bool) -> Result<Vec<Config>, String> {
    if is_named(config) {
        if !is_open {
            check(config)?;
        }
        return Ok(vec![config.clone()]);
    }
    match wanted.map(CStr::to_string_lossy) {
        Some(name) if is_ours(&name) => Ok(vec![of_name(config, &name, is_open)?]),
        // It is none of ours, and is refused by its name; nothing is looked for.
        Some(_) => Ok(of_rails(config, &[SHARED]).into_iter().collect()),
        None => Ok(listed(config)),
    }
}

/// Returns the settings of the rail set of a domain that is to be opened: by its name, which an entry without
/// one leaves open.
///
/// # Errors
/// Why there can be no such domain, in a sentence.
pub(crate) fn of_domain(config: &Config, name: Option<&CStr>) -> Result<Config, String> {
    let ours = is_named(config).then(|| name_of(config));
    match (ours, name.map(CStr::to_string_lossy)) {
        (Some(ours), Some(name)) if name != ours => Err(format!(
            "the entry is of the rails {}, and the settings name {ours}: call fi_getinfo again",
            shown(&name)
        )),
        (Some(_), _) => Ok(config.clone()),
        (None, Some(name)) => of_name(config, &name, false),
        (None, None) => listed(config)
            .into_iter()
            .next()
            .ok_or_else(|| format!("there is no rail `{SHARED}`")),
    }
}

/// Returns the name of the domain of a rail set.
pub(crate) fn name_of(config: &Config) -> String {
    let names: Vec<&str> = config.rails.list.get().0.iter().map(RailName::as_str).collect();
    names.join("+")
}

/// Whether a setting names the rails.
fn is_named(config: &Config) -> bool {
    !config.rails.list.get().0.is_empty()
}

/// Whether the name of a domain is meant for this provider: libfabric passes the same hints to all.
fn is_ours(name: &str) -> bool {
    let kind = name.split([':', '+', ',']).next().unwrap_or_default();
    KINDS.contains(&kind)
}

/// Returns the settings with these rails; `None` for names that none can have.
fn of_rails(config: &Config, rails: &[&str]) -> Option<Config> {
    let mut config = config.clone();
    config.set(LIST, &rails.join(",")).ok()?;
    Some(config)
}

/// Returns the rail sets that are offered where nothing names one.
fn listed(config: &Config) -> Vec<Config> {
    let mut rails = udp_rails(config);
    rails.retain(|rail| can_be_named(config, rail));
    let routed = match config.ofi.network.get() {
        OfiNetwork::Off => Vec::new(),
        OfiNetwork::Routes => leading_out(config, &rails),
    };
    let widest = routed.iter().take(RAILS_MAX - 1).map(RailName::as_str);
    let widest = std::iter::once(SHARED).chain(widest).collect();
    let each = rails.iter().map(|rail| vec![SHARED, rail.as_str()]);
    let mut sets: Vec<Vec<&str>> = Vec::new();
    for set in [widest, vec![SHARED]].into_iter().chain(each) {
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets.iter().filter_map(|set| of_rails(config, set)).collect()
}

/// Whether a rail can be in the name of a domain, and in the list of a setting: interfaces may have names
/// that look like two rails.
fn can_be_named(config: &Config, rail: &RailName) -> bool {
    let set = [SHARED, rail.as_str()];
    let name = set.join("+");
    parts(&name) == set && of_rails(config, &set).is_some_and(|set| name_of(&set) == name)
}

/// Returns the settings of the rail set that the name of a domain names, which may be open.
fn of_name(config: &Config, name: &str, is_open: bool) -> Result<Config, String> {
    let mut named = config.clone();
    let result = match named.set_by(HINT, LIST, &parts(name).join(",")) {
        Ok(()) if !is_named(&named) || name_of(&named) != name => Err(format!(
            "{HINT}: `{}` is no name of a domain, which has the rails with `+` between them",
            shown(name)
        )),
        // It is always there: nothing is looked for.
        Ok(()) if name == SHARED || is_open => Ok(()),
        Ok(()) => check(&named),
        Err(error) => Err(error.sentence()),
    };
    result.map(|()| named).map_err(|reason| {
        let valid: Vec<String> = listed(config).iter().map(name_of).collect();
        format!("{reason}; names of domains are {}", valid.join(", "))
    })
}

/// Returns the names of rails in the name of a domain. Interfaces may have a `+` in their names: what begins
/// with no kind of rails belongs to the name before it.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in name.split('+') {
        let kind = part.split(':').next().unwrap_or_default();
        match parts.last_mut() {
            Some(last) if !KINDS.contains(&kind) => {
                last.push('+');
                last.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

/// Checks that the rails that are named can be used.
fn check(config: &Config) -> Result<(), String> {
    let list = &config.rails.list;
    let found = doorbell_job::discover(config);
    for (at, name) in list.get().0.iter().enumerate() {
        let reason = if name.kind() == "ofi" {
            format!("`{name}` would be this provider under itself: it has no rails over libfabric")
        } else if list.get().0[..at].contains(name) {
            format!("`{name}` is named twice")
        } else {
            match found.named(name) {
                Ok(_) => continue,
                Err(error) => error.to_string(),
            }
        };
        return Err(format!("{}: {reason}", list.origin()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(config: &Config, wanted: Option<&CStr>) -> Result<Vec<String>, String> {
        offered(config, wanted, false).map(|sets| sets.iter().map(name_of).collect())
    }

    fn with(name: &str, value: &str) -> Config {
        let mut config = Config::default();
        config.set(name, value).unwrap();
        config
    }

    #[test]
    fn without_a_name_shm_is_first_and_each_interface_is_behind_it() {
        let listed = names(&Config::default(), None).unwrap();
        assert_eq!(listed[0], "shm");
        assert!(listed.contains(&"shm+udp:lo".to_owned()), "{listed:?}");
        // With routes it is the same list, with another first one where there are any.
        let routed = names(&with("ofi.network", "routes"), None).unwrap();
        assert!(
            routed.contains(&"shm".to_owned()) && !parts(&routed[0]).contains(&"udp:lo".to_owned()),
            "{routed:?}"
        );
        assert!(listed.iter().all(|name| routed.contains(name)), "{routed:?}");
    }

    #[test]
    fn the_name_of_a_domain_names_its_rails() {
        let config = Config::default();
        for name in [c"shm", c"shm+udp:lo", c"udp:lo", c"udp:lo+shm", c"udp:127.0.0.1"] {
            let found = names(&config, Some(name)).unwrap();
            assert_eq!(found, [name.to_str().unwrap()]);
            assert_eq!(name_of(&of_domain(&config, Some(name)).unwrap()), found[0]);
        }
        assert_eq!(name_of(&of_domain(&config, None).unwrap()), "shm");
    }

    #[test]
    fn a_name_that_cannot_be_is_refused_with_the_reason_and_the_names_that_can() {
        for (name, reason) in [
            (c"shm+udp:nope", "this machine has no such rail"),
            (c"shm+shm", "`shm` stands twice"),
            (c"shm+smh", "`shm+smh`"),
            (c"shm+ofi:tcp", "under itself"),
            (c"shm,udp:lo", "no name of a domain"),
            (c"udp:lo+", "udp:lo+"),
        ] {
            let text = names(&Config::default(), Some(name)).unwrap_err();
            assert!(text.contains(reason), "{name:?}: {text}");
            assert!(text.contains("names of domains are shm, shm+udp:"), "{text}");
            assert!(text.starts_with(HINT) || text.contains(HINT), "{text}");
        }
        // Names of other providers' domains are nothing to look for.
        assert_eq!(
            names(&Config::default(), Some(c"eth0")),
            Ok(vec!["shm".to_owned()])
        );
    }

    #[test]
    fn a_domain_has_at_least_one_rail() {
        let text = of_domain(&Config::default(), Some(c"")).unwrap_err();
        assert!(text.contains("no name of a domain"), "{text}");
    }

    #[test]
    fn the_rails_of_an_open_domain_are_not_looked_for() {
        let gone = Some(c"shm+udp:gone");
        for config in [Config::default(), with(LIST, "shm,udp:gone")] {
            assert!(offered(&config, gone, false).is_err());
            let found = offered(&config, gone, true).unwrap();
            assert_eq!(found.iter().map(name_of).collect::<Vec<_>>(), ["shm+udp:gone"]);
        }
    }

    #[test]
    fn a_setting_that_names_rails_is_the_only_set() {
        let config = with(LIST, "udp:lo,shm");
        for wanted in [None, Some(c"shm"), Some(c"udp:lo+shm"), Some(c"udp:nope")] {
            assert_eq!(names(&config, wanted), Ok(vec!["udp:lo+shm".to_owned()]));
        }
        assert!(of_domain(&config, Some(c"udp:lo+shm")).is_ok() && of_domain(&config, None).is_ok());
        let text = of_domain(&config, Some(c"shm")).unwrap_err();
        assert!(text.contains("settings name udp:lo+shm"), "{text}");
    }

    #[test]
    fn an_interface_whose_name_looks_like_two_rails_is_in_no_set() {
        let config = Config::default();
        for (rail, can_be) in [
            ("udp:eth0", true),
            ("udp:a+b", true),
            ("udp:a+", true),
            ("udp:x+shm", false),
            ("udp:a,b", false),
        ] {
            let Ok(rail) = rail.parse() else {
                assert!(!can_be, "{rail}");
                continue;
            };
            assert_eq!(can_be_named(&config, &rail), can_be, "{rail}");
        }
    }

    #[test]
    fn a_name_of_an_interface_may_have_a_plus() {
        for (name, expected) in [
            ("shm+udp:a+b", &["shm", "udp:a+b"][..]),
            ("udp:a++shm+xdp:c", &["udp:a+", "shm", "xdp:c"]),
            ("shm", &["shm"]),
            ("", &[""]),
        ] {
            assert_eq!(parts(name), expected);
        }
    }
}
