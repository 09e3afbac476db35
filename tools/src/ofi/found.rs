//! Which libfabrics and which files of our provider this system has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The name of the library, as the loader looks for it.
const LIBRARY: &str = "libfabric.so.1";
/// How the names of files have to end that libfabric loads as providers.
const ENDING: &str = "fi.so";

/// The places that are looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Folders of `LD_LIBRARY_PATH`.
    pub(crate) library_path: Vec<PathBuf>,
    /// Libraries of the loader's cache.
    pub(crate) cached: Vec<PathBuf>,
    /// Folders of `PATH`: an MPI may bring a libfabric of its own.
    pub(crate) programs: Vec<PathBuf>,
    /// The value of `FI_PROVIDER_PATH`.
    pub(crate) provider_path: Option<String>,
    /// The folder of the program.
    pub(crate) own: Option<PathBuf>,
}

impl Places {
    /// Returns the places of this process's environment.
    pub(crate) fn here() -> Self {
        let folders = |name| {
            let value = std::env::var_os(name).unwrap_or_default();
            std::env::split_paths(&value)
                .filter(|folder| !folder.as_os_str().is_empty())
                .collect()
        };
        let own = std::env::current_exe().ok();
        Self {
            library_path: folders("LD_LIBRARY_PATH"),
            cached: cached(),
            programs: folders("PATH"),
            provider_path: std::env::var("FI_PROVIDER_PATH").ok(),
            own: own.and_then(|program| program.parent().map(Path::to_path_buf)),
        }
    }

    /// Returns every libfabric: first the one that the loader takes for a program that names none.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        let in_folder = |folder: &PathBuf| folder.join(LIBRARY);
        let mut all: Vec<PathBuf> = self.library_path.iter().map(in_folder).collect();
        all.extend(self.cached.iter().cloned());
        for programs in &self.programs {
            let Some(prefix) = programs.parent() else { continue };
            for lib in ["lib", "lib64"].map(|name| prefix.join(name)) {
                all.push(lib.join(LIBRARY));
                all.extend(folders_in(&lib).iter().map(in_folder));
            }
        }
        let mut seen = BTreeSet::new();
        all.retain(|file| {
            file.is_file() && seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone()))
        });
        all
    }

    /// Returns the files of our provider that libfabric would look at, and those beside this program.
    pub(crate) fn providers(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for place in self.provider_places() {
            match place {
                Place::File(file) if !file.is_file() => {}
                Place::File(file) => all.push(file),
                Place::Folder(folder) => all.extend(ours_in(&folder)),
            }
        }
        for library in self.libraries() {
            all.extend(
                library
                    .parent()
                    .map(default_folder)
                    .iter()
                    .flat_map(|folder| ours_in(folder)),
            );
        }
        if let Some(own) = &self.own {
            let lib = own.parent().map(|prefix| prefix.join("lib"));
            let folders = [Some(own.clone()), lib.as_deref().map(default_folder), lib];
            all.extend(folders.iter().flatten().flat_map(|folder| ours_in(folder)));
        }
        let mut seen = BTreeSet::new();
        all.retain(|file| seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone())));
        all
    }

    /// Returns what `FI_PROVIDER_PATH` names; nothing if it is not set.
    pub(crate) fn provider_places(&self) -> Vec<Place> {
        let value = self.provider_path.as_deref().unwrap_or("");
        // With @ the first that is found is taken, instead of the newest.
        let value = value.strip_prefix('@').unwrap_or(value);
        let elements = value.split(':').filter(|element| !element.is_empty());
        elements
            .map(|element| match element.strip_prefix('+') {
                Some(file) => Place::File(file.into()),
                None => Place::Folder(element.into()),
            })
            .collect()
    }

    /// Whether a libfabric, which lies in `folder`, looks at a file; the reason if it does not.
    pub(crate) fn reaches(&self, folder: &Path, provider: &Path) -> Result<(), String> {
        let parent = provider.parent().unwrap_or(provider);
        let is_here = |place: &Path| same(place, parent);
        let places = self.provider_places();
        let is_folder = |place: &Place| matches!(place, Place::Folder(_));
        // Where no folder is named, libfabric looks in its own, too.
        if !places.iter().any(is_folder) && is_here(&default_folder(folder)) {
            return Ok(());
        }
        let named = places.iter().any(|place| match place {
            Place::Folder(named) => is_here(named),
            Place::File(named) => same(named, provider),
        });
        match (named, places.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(format!(
                "FI_PROVIDER_PATH is not set; export FI_PROVIDER_PATH={}",
                parent.display()
            )),
            (false, false) => Err(format!(
                "FI_PROVIDER_PATH does not name {}; libfabric looks nowhere else while it is set",
                parent.display()
            )),
        }
    }

    /// Returns `FI_PROVIDER_PATH` with one folder more, before all that it names.
    pub(crate) fn path_with(&self, folder: &Path) -> String {
        let value = self.provider_path.as_deref().unwrap_or("");
        let (mark, value) = match value.strip_prefix('@') {
            Some(value) => ("@", value),
            None => ("", value),
        };
        match value {
            "" => format!("{mark}{}", folder.display()),
            value => format!("{mark}{}:{value}", folder.display()),
        }
    }
}

/// An element of `FI_PROVIDER_PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Folder(PathBuf),
    /// One file, which libfabric 1.21 and later take.
    File(PathBuf),
}

/// Returns what is wrong with the name of a provider's file.
pub(crate) fn bad_name(file: &Path) -> Option<String> {
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let is_good = name.ends_with(ENDING) && name.len() > ENDING.len();
    (!is_good).then(|| format!("its name does not end in `{ENDING}`, so libfabric does not look at it"))
}

/// Returns the folder in which a libfabric in `lib` looks if `FI_PROVIDER_PATH` is not set.
fn default_folder(lib: &Path) -> PathBuf {
    lib.join("libfabric")
}

/// Returns the files of a folder that have our provider's name and are libraries.
fn ours_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_library = name.ends_with(".so") || name.contains(".so.");
        is_library && (name.starts_with("libdoorbell_fi") || name.starts_with("libdoorbell-fi"))
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_ours).collect();
    files.sort();
    files
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

/// Whether two paths name the same file or folder.
fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    real(one) == real(other)
}

/// Returns the libfabrics of the loader's cache; none where `ldconfig` is not there.
fn cached() -> Vec<PathBuf> {
    // It is often not on the path of users.
    ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"]
        .iter()
        .find_map(|program| {
            let mut command = Command::new(program);
            let command = command.arg("-p").stdin(Stdio::null()).stderr(Stdio::null());
            let output = command.output().ok()?;
            Some(in_cache(&String::from_utf8_lossy(&output.stdout)))
        })
        .unwrap_or_default()
}

/// Reads what `ldconfig -p` prints: `libfabric.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libfabric.so.1`.
fn in_cache(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().map(str::trim).filter(|line| {
        line.strip_prefix(LIBRARY)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    lines
        .filter_map(|line| line.split_once("=> "))
        .map(|(_, path)| PathBuf::from(path.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes empty files below a folder.
    fn made(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
        }
        root
    }

    #[test]
    fn libraries_are_found_in_the_order_of_the_loader_and_beside_programs() {
        let root = made(&[
            "first/libfabric.so.1",
            "cache/libfabric.so.1",
            "mpi/lib/mpich/libfabric.so.1",
            "mpi/bin/mpiexec",
        ]);
        let at = |name: &str| root.path().join(name);
        let places = Places {
            library_path: vec![at("empty"), at("first")],
            cached: vec![at("cache/libfabric.so.1"), at("first/libfabric.so.1")],
            programs: vec![at("mpi/bin")],
            ..Places::default()
        };
        let wanted = ["first", "cache", "mpi/lib/mpich"].map(|folder| at(folder).join(LIBRARY));
        assert_eq!(places.libraries(), wanted);
    }

    #[test]
    fn the_path_variable_has_folders_files_and_a_mark() {
        let places = Places {
            provider_path: Some("@/a::+/b/libx-fi.so:/c".to_owned()),
            ..Places::default()
        };
        let wanted = [
            Place::Folder("/a".into()),
            Place::File("/b/libx-fi.so".into()),
            Place::Folder("/c".into()),
        ];
        assert_eq!(places.provider_places(), wanted);
    }

    #[test]
    fn files_alone_leave_the_library_s_own_folder_and_a_folder_is_added_to_the_rest() {
        let root = made(&["lib/libfabric/libdoorbell-fi.so", "x/libx-fi.so"]);
        let at = |name: &str| root.path().join(name);
        let installed = at("lib/libfabric/libdoorbell-fi.so");
        for (path, is_reached) in [
            (String::new(), true),
            ("@".to_owned(), true),
            (format!("+{}", at("x/libx-fi.so").display()), true),
            (at("x").display().to_string(), false),
        ] {
            let places = Places {
                provider_path: Some(path.clone()),
                ..Places::default()
            };
            assert_eq!(
                places.reaches(&at("lib"), &installed).is_ok(),
                is_reached,
                "{path}"
            );
        }
        let path = |value: Option<&str>| {
            let provider_path = value.map(str::to_owned);
            let places = Places {
                provider_path,
                ..Places::default()
            };
            places.path_with(Path::new("/p"))
        };
        assert_eq!(path(None), "/p");
        assert_eq!(path(Some("/a:+/b")), "/p:/a:+/b");
        assert_eq!(path(Some("@/a")), "@/p:/a");
    }

    #[test]
    fn a_file_is_reached_through_the_variable_or_in_the_library_s_own_folder() {
        let root = made(&[
            "p/libdoorbell-fi.so",
            "p/libdoorbell-fi.so.1",
            "p/libother-fi.so",
            "lib/libfabric.so.1",
            "lib/libfabric/libdoorbell-fi.so",
        ]);
        let at = |name: &str| root.path().join(name);
        let mut places = Places {
            cached: vec![at("lib/libfabric.so.1")],
            ..Places::default()
        };
        let installed = at("lib/libfabric/libdoorbell-fi.so");
        assert_eq!(places.providers(), std::slice::from_ref(&installed));
        assert_eq!(places.reaches(&at("lib"), &installed), Ok(()));
        let apart = at("p/libdoorbell-fi.so");
        let reason = places.reaches(&at("lib"), &apart).unwrap_err();
        assert!(
            reason.ends_with(&format!("export FI_PROVIDER_PATH={}", at("p").display())),
            "{reason}"
        );
        places.provider_path = Some(at("p").display().to_string());
        assert_eq!(places.reaches(&at("lib"), &apart), Ok(()));
        let reason = places.reaches(&at("lib"), &installed).unwrap_err();
        assert!(reason.contains("looks nowhere else"), "{reason}");
        assert_eq!(places.providers().len(), 3);
    }

    #[test]
    fn a_name_has_to_end_as_libfabric_wants_it() {
        for good in ["libdoorbell-fi.so", "libdoorbell_fi.so", "xfi.so"] {
            assert_eq!(bad_name(Path::new(good)), None, "{good}");
        }
        for bad in ["libdoorbell.so", "libdoorbell-fi.so.1", "fi.so"] {
            assert!(bad_name(Path::new(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn the_loader_s_cache_is_read() {
        let text = "2 libs found in cache `/etc/ld.so.cache'\n\tlibfabric.so.1 (libc6,x86-64) => /lib/libfabric.so.1\n\
                    \tlibfabric.so.10 (libc6,x86-64) => /lib/libfabric.so.10\n";
        assert_eq!(in_cache(text), [PathBuf::from("/lib/libfabric.so.1")]);
    }
}
