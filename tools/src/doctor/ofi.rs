//! The chains of `doctor ofi`: whether libfabric loads our provider, and which clients would take it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::chain::{Chain, Ended, Fix, Link, Walk};
use crate::ofi::PROVIDER;
use crate::ofi::child::{self, File, Taken, Task, Verdict};
use crate::ofi::found::{self, Place, Places};
use crate::process::Runner;

/// What gets the file into a folder.
const BUILD: &str = "cargo xtask provider --into ~/lib/doorbell";

/// Returns the chain of the library and the file, and one for each client.
pub(super) fn chains(places: &Places) -> Vec<Chain> {
    let mut taken = None;
    let first = Walk::along("ofi", |walk| {
        let runner = Runner::new().map_err(|error| {
            let fix = vec![Fix::hand("raise the limit of processes (`ulimit -u`)")];
            walk.broken("process", error.to_string(), "no process can be started", fix)
        })?;
        let (library, release) = library(walk, &runner, places)?;
        let file = file(walk, places, &library, &release)?;
        load(walk, &runner, &file)?;
        filter(walk, std::env::var("FI_PROVIDER").ok().as_deref())?;
        settings(walk, std::env::vars_os())?;
        taken = Some(getinfo(walk, &runner, &library, &release)?);
        Ok(())
    });
    let clients = taken.iter().flat_map(|taken| &taken.clients).map(client);
    std::iter::once(first).chain(clients).collect()
}

/// Returns the library that programs get, and its release.
fn library(walk: &mut Walk, runner: &Runner, places: &Places) -> Result<(PathBuf, String), Ended> {
    let libraries = places.libraries();
    let Some(first) = libraries.first() else {
        let fix = Fix::run("apt-get install libfabric1", "install it (Debian's package)");
        let with = Fix::hand("or set LD_LIBRARY_PATH to the folder of an MPI's own libfabric.so.1");
        return Err(walk.broken(
            "library",
            "the loader finds no libfabric.so.1",
            "libfabric is not installed",
            vec![fix, with],
        ));
    };
    let release = child::run::<String>(runner, &Task::Release(first.clone())).map_err(|reason| {
        let fix = vec![Fix::hand("install libfabric 1.17 or later")];
        walk.broken("library", first.display().to_string(), reason, fix)
    })?;
    let others = match libraries.len() {
        1 => String::new(),
        more => format!("; {} more: `doorbell info` lists them", more - 1),
    };
    walk.ok(
        "library",
        format!("{}, release {release}{others}", first.display()),
    );
    Ok((first.clone(), release))
}

/// Returns the file of our provider that the library looks at.
fn file(walk: &mut Walk, places: &Places, library: &Path, release: &str) -> Result<PathBuf, Ended> {
    let named = places.provider_places();
    let is_file = |place: &Place| matches!(place, Place::File(_));
    if !named.is_empty() && named.iter().all(is_file) && !takes_files(release) {
        let value = places.provider_path.as_deref().unwrap_or_default();
        return Err(walk.broken(
            "path",
            format!("FI_PROVIDER_PATH={value} names files alone, which libfabric {release} does not take"),
            "`+` before a file came with libfabric 1.21",
            vec![Fix::hand("name the file's folder, without the `+`")],
        ));
    }
    let missing: Vec<String> = named.iter().filter_map(missing).collect();
    let folder = library.parent().unwrap_or(library);
    let files = places.providers();
    let looked_at = || files.iter().filter(|file| places.reaches(folder, file).is_ok());
    if let Some(file) = looked_at().find(|file| found::bad_name(file).is_none()) {
        let not_there = match &missing[..] {
            [] => String::new(),
            some => format!("; FI_PROVIDER_PATH also names {}, not there", some.join(", ")),
        };
        walk.ok(
            "path",
            format!("{} is where libfabric looks{not_there}", file.display()),
        );
        return Ok(file.clone());
    }
    if let Some((file, wrong)) = looked_at().find_map(|file| Some((file, found::bad_name(file)?))) {
        let good = file.with_file_name("libdoorbell-fi.so");
        return Err(walk.broken(
            "name",
            format!("{}: {wrong}", file.display()),
            "the file was copied under another name",
            vec![Fix::run(
                format!("mv {} {}", file.display(), good.display()),
                "give it its name",
            )],
        ));
    }
    if !missing.is_empty() {
        return Err(walk.broken(
            "path",
            format!("FI_PROVIDER_PATH names {}, not there", missing.join(", ")),
            "a folder was moved, or the name has an error",
            vec![Fix::run(
                BUILD,
                "build and install the provider, and name that folder",
            )],
        ));
    }
    let Some(any) = files.first() else {
        return Err(walk.broken(
            "path",
            "no file libdoorbell-fi.so in FI_PROVIDER_PATH, beside this program, or in libfabric's own folder",
            "the provider is not installed",
            vec![Fix::run(
                BUILD,
                "build and install it, then `export FI_PROVIDER_PATH=~/lib/doorbell`",
            )],
        ));
    };
    let parent = any.parent().unwrap_or(any);
    let reason = places.reaches(folder, any).err().unwrap_or_default();
    Err(walk.broken(
        "path",
        format!("{} is there, and libfabric does not look at it", any.display()),
        reason,
        vec![Fix::run(
            format!("export FI_PROVIDER_PATH={}", places.path_with(parent)),
            "name the folder",
        )],
    ))
}

/// Whether a release of libfabric takes `+FILE` in `FI_PROVIDER_PATH`: from 1.21 on.
fn takes_files(release: &str) -> bool {
    let mut numbers = release
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (1, 21)
}

/// Returns a place's path where nothing of its kind is there: libfabric goes on to the next one.
fn missing(place: &Place) -> Option<String> {
    let (path, is_there) = match place {
        Place::Folder(path) => (path, path.is_dir()),
        Place::File(path) => (path, path.is_file()),
    };
    (!is_there).then(|| path.display().to_string())
}

/// Checks the settings as the provider reads them: where it cannot, it offers nothing (`FI_ENODATA`).
fn settings(walk: &mut Walk, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Link {
    const FILE: &str = "FI_DOORBELL_CONFIG";
    let variables: Vec<(OsString, OsString)> = variables.into_iter().collect();
    let value = |name: &str| {
        let found = variables
            .iter()
            .find(|(other, value)| other == name && !value.is_empty());
        found.map(|(_, value)| PathBuf::from(value))
    };
    let named = [FILE, "DOORBELL_CONFIG"]
        .into_iter()
        .find_map(|name| Some((name, value(name)?)));
    let file = value(FILE);
    let read = doorbell::Config::from_variables(variables.iter().cloned(), file.as_deref());
    match (read, &named) {
        (Ok(_), None) => walk.ok(
            "settings",
            "no configuration file is named; the variables can be read",
        ),
        (Ok(_), Some((name, path))) => {
            walk.ok("settings", format!("{name}={} can be read", path.display()));
        }
        (Err(error), _) => {
            let cause = match named {
                Some((name, _)) => format!("{name} names the file; the provider offers nothing (FI_ENODATA)"),
                None => {
                    "a variable has a value that cannot be; the provider offers nothing (FI_ENODATA)".into()
                }
            };
            let fix = vec![Fix::hand(error.remedy())];
            return Err(walk.broken("settings", error.to_string(), cause, fix));
        }
    }
    Ok(())
}

fn load(walk: &mut Walk, runner: &Runner, file: &Path) -> Link {
    let fix = || vec![Fix::run(BUILD, "build and install it again, on this system")];
    let loaded = child::run::<File>(runner, &Task::File(file.to_owned()))
        .map_err(|reason| walk.broken("load", file.display().to_string(), reason, fix()))?;
    if loaded.name != PROVIDER {
        return Err(walk.broken(
            "load",
            format!("{} is the provider {:?}", file.display(), loaded.name),
            "another provider's file has this name",
            fix(),
        ));
    }
    walk.ok(
        "load",
        format!("it can be loaded, and has API level {}", loaded.level),
    );
    Ok(())
}

/// Checks the variable by which a user chooses providers.
fn filter(walk: &mut Walk, value: Option<&str>) -> Link {
    let Some(value) = value else {
        walk.ok("filter", "FI_PROVIDER is not set: all providers are listed");
        return Ok(());
    };
    let (is_inverted, list) = match value.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, value),
    };
    let has_ours = list.split(',').any(|name| name.trim() == PROVIDER);
    if has_ours != is_inverted {
        walk.ok("filter", format!("FI_PROVIDER={value} lets it through"));
        return Ok(());
    }
    Err(walk.broken(
        "filter",
        format!("FI_PROVIDER={value} leaves it out"),
        "the variable chooses other providers",
        vec![Fix::run("export FI_PROVIDER=doorbell", "choose this one")],
    ))
}

/// Has the library list our provider, and try the hints of each client.
fn getinfo(walk: &mut Walk, runner: &Runner, library: &Path, release: &str) -> Result<Taken, Ended> {
    let log = || {
        let command = format!("FI_LOG_LEVEL=info fi_info -p {PROVIDER}");
        vec![Fix::run(command, "have libfabric print its reasons")]
    };
    let taken = child::run::<Taken>(runner, &Task::Clients(library.to_owned()))
        .map_err(|reason| walk.broken("getinfo", "libfabric gave no answer", reason, log()))?;
    match &taken.domains {
        Ok(domains) => {
            let names = domains.join(", ");
            walk.proved(
                "getinfo",
                format!("libfabric {release} lists it: domains {names}"),
            );
            Ok(taken)
        }
        Err(error) => Err(walk.broken(
            "getinfo",
            format!("libfabric {release} does not list it: {error}"),
            "the rails that are named cannot be used, or its API level is too old",
            log(),
        )),
    }
}

/// Returns the chain of one client.
fn client(verdict: &Verdict) -> Chain {
    Walk::along(&verdict.client, |walk| {
        if let Some(domain) = &verdict.domain {
            walk.proved(
                "hints",
                format!("taken: domain {domain}, API level {}", verdict.level),
            );
            return Ok(());
        }
        let refused = verdict.refused.join(", ");
        let is_one_sided = |hint: &String| hint == "caps FI_RMA" || hint == "caps FI_ATOMIC";
        if verdict.one_sided && verdict.refused.iter().any(is_one_sided) {
            return Err(walk.end_without(
                "hints",
                format!("it needs one-sided operations, which the provider does not offer: {refused}"),
            ));
        }
        Err(walk.broken(
            "hints",
            format!("not taken: {refused}"),
            "the provider does not offer what the client wants",
            vec![Fix::run(
                format!("FI_LOG_LEVEL=info fi_info -p {PROVIDER} -v"),
                "compare what is offered",
            )],
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::chain::{Is, Verdict as Result};
    use super::*;

    fn verdict(one_sided: bool, domain: Option<&str>, refused: &[&str]) -> Verdict {
        Verdict {
            client: "Open MPI 5 (mtl/ofi)".to_owned(),
            level: "1.18".to_owned(),
            one_sided,
            domain: domain.map(str::to_owned),
            refused: refused.iter().map(|hint| (*hint).to_owned()).collect(),
        }
    }

    #[test]
    fn a_client_takes_it_or_the_hint_is_named() {
        let taken = client(&verdict(false, Some("shm"), &[]));
        assert_eq!(taken.verdict, Result::Usable);
        assert!(taken.steps[0].saw.starts_with("taken: domain shm"));
        let refused = client(&verdict(false, None, &["caps FI_DIRECTED_RECV"]));
        assert_eq!(refused.verdict, Result::Broken);
        assert_eq!(refused.steps[0].saw, "not taken: caps FI_DIRECTED_RECV");
        let apart = client(&verdict(true, None, &["caps FI_RMA"]));
        assert_eq!(apart.verdict, Result::NotApplicable);
    }

    #[test]
    fn a_filter_lets_it_through_or_not() {
        for (value, is) in [
            (None, Is::Ok),
            (Some("doorbell"), Is::Ok),
            (Some("tcp,doorbell"), Is::Ok),
            (Some("^tcp"), Is::Ok),
            (Some("tcp"), Is::Broken),
            (Some("^doorbell"), Is::Broken),
        ] {
            let chain = Walk::along("ofi", |walk| filter(walk, value));
            assert_eq!(chain.steps[0].is, is, "{value:?}");
        }
    }

    #[test]
    fn a_missing_folder_a_wrong_name_and_a_folder_that_is_not_named_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("p");
        std::fs::create_dir(&folder).unwrap();
        let looked = |places: &Places| {
            let chain = Walk::along("ofi", |walk| {
                file(walk, places, Path::new("/x/libfabric.so.1"), "1.17.0").map(|_| ())
            });
            let step = chain.steps[0].clone();
            (
                step.step,
                step.saw,
                step.fixes.first().and_then(|fix| fix.command.clone()),
            )
        };
        let mut places = Places {
            provider_path: Some("/nowhere".to_owned()),
            ..Places::default()
        };
        assert!(looked(&places).1.contains("names /nowhere, not there"));
        places.provider_path = Some(folder.display().to_string());
        assert!(looked(&places).1.starts_with("no file libdoorbell-fi.so"));
        std::fs::write(folder.join("libdoorbell-fi.so.1"), "").unwrap();
        let (step, _, command) = looked(&places);
        assert!(step == "name" && command.unwrap().starts_with("mv "));
        std::fs::write(folder.join("libdoorbell-fi.so"), "").unwrap();
        assert_eq!(looked(&places).0, "path");
        assert_eq!(looked(&places).2, None);
        // A place of several that is not there is passed over.
        for path in ["/nowhere:FOLDER", "@FOLDER:/nowhere", "+/nowhere/x-fi.so:FOLDER"] {
            places.provider_path = Some(path.replace("FOLDER", &folder.display().to_string()));
            let (_, saw, command) = looked(&places);
            assert!(
                saw.contains("is where libfabric looks; FI_PROVIDER_PATH also names /nowhere"),
                "{path}: {saw}"
            );
            assert_eq!(command, None);
        }
        places.provider_path = Some(format!("+{}", folder.join("libdoorbell-fi.so").display()));
        assert!(looked(&places).1.contains("which libfabric 1.17.0 does not take"));
        assert!(takes_files("1.21.0") && takes_files("2.6.0") && !takes_files("1.20.1"));
        places.own = Some(folder.clone());
        places.provider_path = None;
        let command = looked(&places).2.unwrap();
        assert_eq!(command, format!("export FI_PROVIDER_PATH={}", folder.display()));
    }

    #[test]
    fn a_configuration_file_that_cannot_be_read_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (good, bad) = (root.path().join("good.toml"), root.path().join("bad.toml"));
        std::fs::write(&good, "").unwrap();
        std::fs::write(&bad, "[pml]\neagr = 1\n").unwrap();
        let looked = |pairs: &[(&str, &Path)]| {
            let variables = pairs
                .iter()
                .map(|(name, path)| (OsString::from(name), path.into()));
            let chain = Walk::along("ofi", |walk| settings(walk, variables.collect::<Vec<_>>()));
            (chain.steps[0].is == Is::Ok, chain.steps[0].saw.clone())
        };
        assert!(looked(&[]).0);
        assert!(looked(&[("DOORBELL_CONFIG", &good)]).0);
        let none = root.path().join("none.toml");
        for (name, path) in [("FI_DOORBELL_CONFIG", &none), ("DOORBELL_CONFIG", &bad)] {
            let (is_ok, saw) = looked(&[(name, path)]);
            let file = path.display().to_string();
            assert!(!is_ok && saw.contains(&file), "{saw}");
        }
        // The provider's own variable is above the other one.
        assert!(looked(&[("FI_DOORBELL_CONFIG", &good), ("DOORBELL_CONFIG", &bad)]).0);
    }
}
