//! The three sources of values: a TOML file, the environment, and texts set in code.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use doorbell_oob::launch::pmix::VARIABLE as INVITATION;
use doorbell_oob::launch::singleton::VARIABLE;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::unknown::{WARNED, is_service_link};
use super::{Config, FACTS, Origin, nearest};
use crate::error::Error;

/// The prefix of all our variables.
pub(super) const PREFIX: &str = "DOORBELL_";
/// The variable that names the configuration file.
pub(super) const FILE_VARIABLE: &str = "DOORBELL_CONFIG";
/// Variables with the prefix that are no settings: they are read elsewhere, and listed here so that they do
/// not count as unknown.
pub(super) const OTHERS: [&str; 5] = [FILE_VARIABLE, "DOORBELL_SKIP_FILE", VARIABLE, INVITATION, WARNED];
/// The prefix of variables of test programs.
pub(super) const TEST_PREFIX: &str = "DOORBELL_TEST_";
/// Longest configuration file in bytes.
const LONGEST_FILE: u64 = 1 << 20;

impl Config {
    /// Reads the process's environment and the file that `DOORBELL_CONFIG` names, over the defaults.
    ///
    /// # Errors
    /// A bad value, an unknown key of the file, or a file that cannot be read. Variables that begin with
    /// `DOORBELL_` and are no settings are ignored
    /// (`config::warn_of_unknown_variables`).
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(std::env::vars_os(), None)
    }

    /// Reads the given variables, and `file` or the file that they name, over the defaults.
    ///
    /// # Errors
    /// Those of [`Config::from_environment`].
    pub fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        file: Option<&Path>,
    ) -> Result<Self, Error> {
        let ours: Vec<_> = variables
            .into_iter()
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
            .collect();
        let mut config = Self::default();
        let named = ours
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty());
        if let Some(path) = file.or_else(|| named.map(|(_, value)| Path::new(value))) {
            config.read_file(path)?;
        }
        for (name, value) in &ours {
            config
                .read_variable(&name.to_string_lossy(), value)
                .map_err(|error| made_by_kubernetes(error, name, &ours))?;
        }
        config.verify()?;
        Ok(config)
    }

    fn read_variable(&mut self, name: &str, value: &OsStr) -> Result<(), Error> {
        let Some(at) = FACTS.iter().position(|fact| fact.variable == name) else {
            return Ok(());
        };
        let origin = Origin::Environment(FACTS[at].variable);
        match value.to_str() {
            Some(value) => self.read_at(at, value, origin),
            // Replacing characters of a path would make it another path.
            None => Err(Error::BadValue {
                name: FACTS[at].name,
                given: value.to_string_lossy().into_owned(),
                origin: origin.to_string(),
                expected: "a text in UTF-8".to_owned(),
            }),
        }
    }

    /// Sets one value by name (`section.key`) from a text, with code as its origin.
    ///
    /// # Errors
    /// An unknown name, with the nearest one; a bad value, with what was expected. Bounds that involve
    /// several settings are checked together, when the configuration is used.
    ///
    /// ```
    /// # use doorbell_job as doorbell;
    /// let mut config = doorbell::Config::default();
    /// config.set("wait.deadline", "5 s")?;
    /// let error = config.set("wait.deadlin", "5 s").unwrap_err().to_string();
    /// assert!(error.contains("wait.deadline"));
    /// # Ok::<(), doorbell::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let at = find_key(name, String::new())?;
        self.read_at(at, value, Origin::Code)
    }

    /// As [`Config::set`], for a value that a user gave with `option`: errors name the option.
    ///
    /// # Errors
    /// Those of [`Config::set`].
    pub fn set_by(&mut self, option: &'static str, name: &str, value: &str) -> Result<(), Error> {
        let at = find_key(name, String::new())?;
        self.read_at(at, value, Origin::Option(option))
    }

    fn read_at(&mut self, at: usize, value: &str, origin: Origin) -> Result<(), Error> {
        let shown = origin.to_string();
        let bad = |expected| Error::BadValue {
            name: FACTS[at].name,
            given: value.to_owned(),
            origin: shown,
            expected,
        };
        if let Err(expected) = self.all_mut()[at].read(value, origin) {
            return Err(bad(expected));
        }
        self.out_of_bounds(FACTS[at].name)
            .map_or(Ok(()), |expected| Err(bad(expected)))
    }

    fn read_file(&mut self, path: &Path) -> Result<(), Error> {
        let text = read_bounded(path)?;
        let bad = |line: usize, reason: String| Error::ConfigFile {
            path: path.to_owned(),
            line,
            reason,
        };
        let line_at = |offset: usize| {
            1 + text.as_bytes()[..offset.min(text.len())]
                .iter()
                .filter(|b| **b == b'\n')
                .count()
        };
        let table = DeTable::parse(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            bad(line_at(at), error.message().to_owned())
        })?;
        let path: Arc<Path> = path.into();
        for (section, keys) in table.into_inner() {
            let DeValue::Table(keys) = keys.into_inner() else {
                let line = line_at(section.span().start);
                return Err(bad(
                    line,
                    format!("`{}` stands outside a [section]", section.get_ref()),
                ));
            };
            for (key, value) in keys {
                let line = line_at(key.span().start);
                let name = format!("{}.{}", section.get_ref(), key.get_ref());
                let at = find_key(&name, format!(" ({}:{line})", path.display()))?;
                let text = plain(&value)
                    .ok_or_else(|| bad(line, format!("`{name}` needs a plain value or a list of texts")))?;
                self.read_at(
                    at,
                    &text,
                    Origin::File {
                        path: Arc::clone(&path),
                        line,
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// Extends an error where a Kubernetes service link has the name of a setting:
/// a service `doorbell-udp` leads to a variable `DOORBELL_UDP_PORT`.
fn made_by_kubernetes(error: Error, name: &OsStr, variables: &[(OsString, OsString)]) -> Error {
    match error {
        Error::BadValue {
            name: setting,
            given,
            origin,
            expected,
        } if is_service_link(&name.to_string_lossy(), variables) => Error::BadValue {
            name: setting,
            given,
            origin,
            expected: format!(
                "{expected}; Kubernetes made this variable for a service, and `enableServiceLinks: false` \
                 in the pod leaves it out"
            ),
        },
        other => other,
    }
}

fn find_key(name: &str, place: String) -> Result<usize, Error> {
    FACTS
        .iter()
        .position(|fact| fact.name == name)
        .ok_or_else(|| Error::UnknownName {
            kind: "setting",
            given: name.to_owned(),
            nearest: nearest(name, FACTS.iter().map(|fact| fact.name)).to_owned(),
            place,
        })
}

/// Reads a regular file of limited length. No other kind of file is opened: a FIFO would wait for a writer,
/// and a device may never end.
fn read_bounded(path: &Path) -> Result<String, Error> {
    let refused = |reason: String| Error::ConfigUnreadable {
        path: path.to_owned(),
        reason,
    };
    let failed = |error: io::Error| refused(error.to_string());
    regular(&std::fs::metadata(path).map_err(failed)?).map_err(refused)?;
    let file = File::options()
        .read(true)
        // The object at the path may have changed since the check.
        .custom_flags((rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32)
        .open(path)
        .map_err(failed)?;
    regular(&file.metadata().map_err(failed)?).map_err(refused)?;
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(refused(too_long()));
    }
    String::from_utf8(bytes).map_err(|_| refused("it is not a text in UTF-8".to_owned()))
}

fn too_long() -> String {
    format!("it is longer than {} MiB", LONGEST_FILE >> 20)
}

/// Checks that the object at a path is a regular file within the limit; returns why not.
fn regular(found: &Metadata) -> Result<(), String> {
    let kind = found.file_type();
    let what = match () {
        () if kind.is_file() && found.len() > LONGEST_FILE => return Err(too_long()),
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(format!("it is {what}, not a regular file"))
}

/// Converts a TOML value to the text that a variable would have.
fn plain(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Array(items) => {
            let items: Option<Vec<&str>> = items.iter().map(|item| item.get_ref().as_str()).collect();
            items.map(|items| items.join(","))
        }
        _ => None,
    }
}
