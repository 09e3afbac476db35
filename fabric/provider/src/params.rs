//! Parameters: settings of doorbell under their names in libfabric.
//!
//! `FI_DOORBELL_RAILS` stands above `DOORBELL_RAILS`, and that above the configuration file. Where libfabric
//! is found, the names are in its registry, so that `fi_info -e` lists them; else the environment is read.
//! All other `DOORBELL_*` settings count as ever.

use std::ffi::{CStr, CString};
use std::path::PathBuf;

use doorbell_job::{Config, Error};

use crate::{entry, log};

/// A parameter that is a setting.
struct Param {
    /// Its name in libfabric's registry.
    name: &'static CStr,
    /// The variable that the registry makes of the name.
    variable: &'static str,
    /// The setting that it gives a value to.
    setting: &'static str,
}

const fn param(name: &'static CStr, variable: &'static str, setting: &'static str) -> Param {
    Param {
        name,
        variable,
        setting,
    }
}

const PARAMS: [Param; 12] = [
    param(c"rails", "FI_DOORBELL_RAILS", "rails.list"),
    param(c"network", "FI_DOORBELL_NETWORK", "ofi.network"),
    param(c"key_file", "FI_DOORBELL_KEY_FILE", "ofi.key_file"),
    param(c"close", "FI_DOORBELL_CLOSE", "wait.close"),
    param(c"patience", "FI_DOORBELL_PATIENCE", "pml.patience"),
    param(c"eager", "FI_DOORBELL_EAGER", "pml.eager"),
    param(c"unexpected", "FI_DOORBELL_UNEXPECTED", "pml.unexpected"),
    param(c"buffer", "FI_DOORBELL_BUFFER", "pml.buffer"),
    param(c"spins", "FI_DOORBELL_SPINS", "progress.spins"),
    param(c"wait", "FI_DOORBELL_WAIT", "progress.wait"),
    param(c"core", "FI_DOORBELL_CORE", "progress.core"),
    param(c"shm_cma", "FI_DOORBELL_SHM_CMA", "shm.cma"),
];

/// The parameter that names the configuration file.
const FILE: &CStr = c"config";
const FILE_VARIABLE: &str = "FI_DOORBELL_CONFIG";
const FILE_HELP: &CStr = c"The configuration file (TOML), as in DOORBELL_CONFIG.";

/// Defines the parameters in libfabric's registry, where it is found.
pub(crate) fn define() {
    if !log::services().has_params() {
        return;
    }
    let listing = Config::default().list();
    for param in &PARAMS {
        let help = listing
            .iter()
            .find(|line| line.name == param.setting)
            .map(|line| {
                format!(
                    "{} As {}; the default is {}.",
                    line.help, line.variable, line.value
                )
            });
        if let Some(help) = help.and_then(|help| CString::new(help).ok()) {
            define_one(param.name, &help);
        }
    }
    define_one(FILE, FILE_HELP);
}

fn define_one(name: &CStr, help: &CStr) {
    // SAFETY: the provider is static. A parameter that cannot be defined is read from the environment.
    unsafe { log::services().param_define(entry::provider(), name, help) };
}

/// Returns a parameter's value; `None` where the user has set none.
fn value(name: &CStr, variable: &str) -> Option<String> {
    // SAFETY: the provider is static.
    let value = match unsafe { log::services().param_get(entry::provider(), name) } {
        Ok(value) => value.map(|value| value.to_string_lossy().into_owned()),
        Err(_) => std::env::var(variable).ok(),
    };
    value.filter(|value| !value.is_empty())
}

/// Returns the number of processes that the client expects, a hint for the size of tables; 0 where it has
/// given none.
pub(crate) fn universe() -> usize {
    let number = std::env::var("FI_UNIVERSE_SIZE").ok();
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Reads the settings: file, variables of doorbell, then the parameters.
///
/// # Errors
/// A file that cannot be read, and values that a setting cannot have.
pub(crate) fn config() -> Result<Config, Error> {
    let file = value(FILE, FILE_VARIABLE).map(PathBuf::from);
    let mut config = Config::from_variables(std::env::vars_os(), file.as_deref())?;
    for param in &PARAMS {
        if let Some(value) = value(param.name, param.variable) {
            config.set_by(param.variable, param.setting, &value)?;
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_is_a_setting_and_has_the_name_that_libfabric_makes() {
        let listing = Config::default().list();
        for param in &PARAMS {
            assert!(
                listing.iter().any(|line| line.name == param.setting),
                "{}",
                param.setting
            );
            let name = param.name.to_str().unwrap().to_uppercase();
            assert_eq!(param.variable, format!("FI_DOORBELL_{name}"));
        }
    }

    #[test]
    fn the_manual_page_has_each_parameter_with_its_setting() {
        let page = include_str!("../fi_doorbell.7");
        for Param {
            variable, setting, ..
        } in &PARAMS
        {
            assert!(page.contains(&format!(".B {variable}\n")), "{variable}");
            assert!(page.contains(setting) || *setting == "rails.list", "{setting}");
        }
        let listed = page.matches(".B FI_DOORBELL_").count();
        assert_eq!(listed, PARAMS.len() + 1, "the file is the other one");
        assert!(page.contains(&format!(".B {FILE_VARIABLE}\n")));
    }
}
