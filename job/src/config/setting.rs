//! One setting: its value, and the origin of the value.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::value::Value;

/// Where a value came from. Later ones take precedence: default, file, environment, code (which includes
/// options).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A line of the configuration file.
    File {
        /// The file's path.
        path: Arc<Path>,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// A call of the program.
    Code,
    /// An option of the program's command line.
    Option(&'static str),
    /// The launcher that started the process.
    Launcher(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File { path, line } => write!(out, "{}:{line}", path.display()),
            Self::Environment(name) => write!(out, "${name}"),
            Self::Code => out.write_str("code"),
            Self::Option(name) => out.write_str(name),
            Self::Launcher(name) => write!(out, "launcher ({name})"),
        }
    }
}

/// One setting of a [`Config`](super::Config).
#[derive(Clone, Debug)]
pub struct Setting<T> {
    value: T,
    origin: Origin,
}

impl<T> Setting<T> {
    pub(super) fn built_in(value: T) -> Self {
        Self {
            value,
            origin: Origin::Default,
        }
    }

    /// Returns the setting's value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// Sets the value from code, which takes precedence over all other origins.
    pub fn set(&mut self, value: T) {
        self.value = value;
        self.origin = Origin::Code;
    }

    /// Sets the value that a launcher gave.
    pub fn learn(&mut self, value: T, launcher: &'static str) {
        self.value = value;
        self.origin = Origin::Launcher(launcher);
    }

    /// Sets what the value stands for at this process; its origin stays.
    pub(crate) fn narrow(&mut self, value: T) {
        self.value = value;
    }

    /// Returns where the value came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// A setting of any type, for listing and reading.
pub(super) trait AnySetting {
    fn read(&mut self, text: &str, origin: Origin) -> Result<(), String>;
    fn show(&self) -> String;
    fn came_from(&self) -> &Origin;
    fn unit(&self) -> &'static str;
}

impl<T: Value> AnySetting for Setting<T> {
    fn read(&mut self, text: &str, origin: Origin) -> Result<(), String> {
        self.value = T::read(text)?;
        self.origin = origin;
        Ok(())
    }

    fn show(&self) -> String {
        self.value.show()
    }

    fn came_from(&self) -> &Origin {
        &self.origin
    }

    fn unit(&self) -> &'static str {
        T::UNIT
    }
}
