//! What `doorbell info` shows of libfabric.

use std::path::Path;

use libfabric_sys::Level;
use serde::{Deserialize, Serialize};

use super::child::{self, File, Task};
use super::found::{self, Places};
use crate::process::Runner;

/// The part of `doorbell info` on libfabric.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    /// Files of our provider.
    pub(crate) providers: Vec<Provider>,
    /// Every libfabric; the first is the one that programs get that name none.
    pub(crate) libraries: Vec<LibraryLine>,
}

/// A file of our provider.
#[derive(Debug, Serialize)]
pub(crate) struct Provider {
    pub(crate) path: String,
    /// The API level; `None` if it cannot be loaded.
    pub(crate) level: Option<String>,
    /// What is wrong with it.
    pub(crate) error: Option<String>,
}

/// A libfabric and the file of our provider that it loads.
#[derive(Debug, Serialize)]
pub(crate) struct LibraryLine {
    pub(crate) path: String,
    /// `None` if it cannot be loaded.
    pub(crate) release: Option<String>,
    /// The file of our provider that it loads.
    pub(crate) loads: Option<String>,
    /// Why it loads that file, or none.
    pub(crate) why: String,
}

impl Listing {
    /// Looks at this system; each file is loaded by a child process.
    pub(crate) fn of(places: &Places) -> Self {
        let (files, libraries) = (places.providers(), places.libraries());
        if files.is_empty() && libraries.is_empty() {
            return Self {
                providers: Vec::new(),
                libraries: Vec::new(),
            };
        }
        let runner = Runner::new().map_err(|error| error.to_string());
        let providers: Vec<Provider> = files
            .iter()
            .map(|path| {
                let loaded = load::<File>(&runner, Task::File(path.clone()));
                Provider::of(path, loaded)
            })
            .collect();
        let libraries = libraries
            .iter()
            .map(|path| {
                let release = load::<String>(&runner, Task::Release(path.clone()));
                LibraryLine::of(places, path, release, &providers)
            })
            .collect();
        Self { providers, libraries }
    }
}

/// Runs a task in a child, if children can be started.
fn load<T: for<'a> Deserialize<'a>>(runner: &Result<Runner, String>, task: Task) -> Result<T, String> {
    child::run(runner.as_ref().map_err(Clone::clone)?, &task)
}

impl Provider {
    fn of(path: &Path, loaded: Result<File, String>) -> Self {
        let level = loaded.as_ref().ok().map(|file| file.level.clone());
        Self {
            path: path.display().to_string(),
            level,
            error: found::bad_name(path).or_else(|| loaded.err()),
        }
    }
}

impl LibraryLine {
    fn of(places: &Places, path: &Path, release: Result<String, String>, providers: &[Provider]) -> Self {
        let shown = path.display().to_string();
        let no = |release: Option<String>, why: String| Self {
            path: shown.clone(),
            release,
            loads: None,
            why,
        };
        let release = match release {
            Ok(release) => release,
            Err(why) => return no(None, why),
        };
        let folder = path.parent().unwrap_or(path);
        let mut reasons = Vec::new();
        for provider in providers {
            match loads(places, folder, &release, provider) {
                Ok(why) => {
                    return Self {
                        path: shown,
                        release: Some(release),
                        loads: Some(provider.path.clone()),
                        why,
                    };
                }
                Err(why) => reasons.push(why),
            }
        }
        let first = reasons.into_iter().next();
        no(
            Some(release),
            first.unwrap_or_else(|| "there is no file libdoorbell-fi.so".to_owned()),
        )
    }
}

/// Whether a libfabric loads a file, and why.
fn loads(places: &Places, folder: &Path, release: &str, provider: &Provider) -> Result<String, String> {
    if let Some(error) = &provider.error {
        return Err(format!("{}: {error}", provider.path));
    }
    places.reaches(folder, Path::new(&provider.path))?;
    let level = provider.level.as_deref().unwrap_or_default();
    let (Ok(own), Ok(wanted)) = (level.parse::<Level>(), release.parse::<Level>()) else {
        return Err(format!("{}: it reports no API level", provider.path));
    };
    match own.has(wanted) {
        true => Ok(format!("{}, whose API level is {own}", provider.path)),
        false => Err(format!(
            "{} has API level {own}, and this is release {wanted}: it skips the provider for clients of that level",
            provider.path
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(level: &str) -> Provider {
        let file = File {
            name: "doorbell".to_owned(),
            level: level.to_owned(),
        };
        Provider::of(Path::new("/p/libdoorbell-fi.so"), Ok(file))
    }

    fn line(places: &Places, release: &str, providers: &[Provider]) -> LibraryLine {
        LibraryLine::of(
            places,
            Path::new("/lib/libfabric.so.1"),
            Ok(release.to_owned()),
            providers,
        )
    }

    #[test]
    fn a_library_loads_a_file_by_path_name_and_level() {
        let mut places = Places::default();
        let found = line(&places, "1.17", &[provider("2.6")]);
        assert!(
            found.loads.is_none() && found.why.contains("export FI_PROVIDER_PATH=/p"),
            "{found:?}"
        );
        places.provider_path = Some("/p".to_owned());
        let found = line(&places, "1.17", &[provider("2.6")]);
        assert_eq!(found.loads.as_deref(), Some("/p/libdoorbell-fi.so"));
        let found = line(&places, "2.7", &[provider("2.6")]);
        assert!(
            found.loads.is_none() && found.why.contains("API level 2.6"),
            "{found:?}"
        );
        let found = line(&places, "2.7", &[]);
        assert!(found.why.contains("no file libdoorbell-fi.so"), "{found:?}");
    }

    #[test]
    fn a_file_that_cannot_be_loaded_is_the_reason() {
        let places = Places {
            provider_path: Some("/p".to_owned()),
            ..Places::default()
        };
        let broken = Provider::of(
            Path::new("/p/libdoorbell-fi.so"),
            Err("file too short".to_owned()),
        );
        let found = line(&places, "1.17", &[broken]);
        assert!(found.why.ends_with("file too short"), "{found:?}");
        let named = Provider::of(Path::new("/p/libdoorbell-fi.so.1"), Err("x".to_owned()));
        assert!(named.error.unwrap().contains("does not end in"));
    }
}
