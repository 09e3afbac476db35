//! The tests that each MPI is run with: those of `mpi.c`, and the modules of mpi4py's own tests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::installed::{Mpi, install, release_of};
use crate::error::Error;
use crate::workshop::{Workshop, once};

/// A test and the words that start it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    /// The program and its arguments.
    pub(super) words: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// It makes no sense with fewer ranks.
    pub(super) least: u32,
}

/// Tests of one-sided operations.
const ONE_SIDED: [&str; 8] = [
    "fence",
    "accumulate",
    "locks",
    "groups",
    "compare-and-swap",
    "test_rma",
    "test_rma_nb",
    "test_win",
];

/// Modules of mpi4py that need what no test here is about: files.
const LEFT_OUT: [&str; 2] = ["test_io", "test_file"];

impl Case {
    /// Returns a test of `mpi.c`.
    pub(super) fn of_c(program: &Path, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            words: vec![program.as_os_str().to_owned(), name.into()],
            environment: Vec::new(),
            least: 2,
        }
    }

    pub(super) fn is_one_sided(&self) -> bool {
        ONE_SIDED.contains(&self.name.as_str())
    }
}

/// Compiles a program of C with an MPI.
pub(super) fn compiled(shop: &Workshop, mpi: &Mpi, source: &Path) -> Result<PathBuf, Error> {
    let kind = source.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{}-{kind}", mpi.name);
    let program = shop.folder("programs")?.join(&name);
    let mut command = mpi.compiler();
    command.args(["-std=gnu11", "-O1"]).arg(source);
    command.args(["-lpthread", "-o"]).arg(&program);
    shop.built(&mut command, &name)?;
    Ok(program)
}

/// Returns the tests that `mpi.c` lists.
pub(super) fn of_c(mpi: &Mpi, program: &Path) -> Result<Vec<Case>, Error> {
    let mut listing = Command::new(program);
    mpi.at_home(&mut listing);
    let names = printed(&mut listing)?;
    Ok(names.lines().map(|name| Case::of_c(program, name)).collect())
}

/// Runs a program and returns what it printed.
fn printed(command: &mut Command) -> Result<String, Error> {
    let output = command.output().map_err(|source| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// mpi4py and its tests. Its wheel runs over any MPI: it loads the one that it is shown.
#[derive(Debug)]
pub(super) struct Python {
    /// The folders in which python finds it, and its tests.
    path: OsString,
    /// The script that runs one module, and the folder of the modules.
    words: [OsString; 2],
    modules: Vec<String>,
}

impl Python {
    /// Installs mpi4py's wheel and unpacks its tests; `None` where they are not there in one release.
    pub(super) fn of(shop: &Workshop, files: &[PathBuf], root: &Path) -> Result<Option<Self>, Error> {
        let is_of = |file: &&PathBuf, end: &str| {
            file.to_string_lossy().ends_with(end)
                && release_of(file).is_some_and(|(project, _)| project == "mpi4py")
        };
        let wheels = files.iter().filter(|file| is_of(file, ".whl"));
        let pair = wheels.into_iter().find_map(|wheel| {
            let mut archives = files.iter().filter(|file| is_of(file, ".tar.gz"));
            let archive = archives.find(|archive| release_of(archive) == release_of(wheel))?;
            Some((wheel, archive))
        });
        let Some((wheel, archive)) = pair else {
            return Ok(None);
        };
        let prefix = install(shop, wheel, "mpi4py")?;
        let tests = shop.folder("mpi4py-tests")?;
        once(&tests, "unpacked", || {
            let mut command = Command::new("tar");
            command.args(["-xz", "--strip-components=1", "-f"]).arg(archive);
            command.arg("-C").arg(&tests);
            shop.built(&mut command, "mpi4py-unpack")
        })?;
        let Some(library) = site_packages(&prefix) else {
            return Err(Error::Lab(format!(
                "pip has put no mpi4py into {}",
                prefix.display()
            )));
        };
        let script = root.join("am/portals/abi/clients/mpi4py_tests.py");
        let folder = tests.join("test");
        let words = [script.into_os_string(), folder.clone().into_os_string()];
        let listed = printed(Command::new("python3").args(&words))?;
        let modules = listed
            .lines()
            .filter(|module| !LEFT_OUT.contains(module))
            .map(str::to_owned)
            .collect();
        // Processes that a test starts look for its module as well.
        let path = std::env::join_paths([library, folder]).map_err(|error| Error::Lab(error.to_string()))?;
        Ok(Some(Self { path, words, modules }))
    }

    pub(super) fn cases(&self) -> impl Iterator<Item = Case> + '_ {
        self.modules.iter().map(|module| Case {
            name: module.clone(),
            words: [OsString::from("python3")]
                .into_iter()
                .chain(self.words.iter().cloned())
                .chain([module.into()])
                .collect(),
            environment: vec![("PYTHONPATH", self.path.clone())],
            least: 1,
        })
    }
}

/// Returns the folder below a prefix that has mpi4py: `lib/python3.11/site-packages`.
fn site_packages(prefix: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).ok()?;
    let mut folders = entries.flatten().flat_map(|entry| {
        let names = ["site-packages", "dist-packages"];
        names.map(|name| entry.path().join(name))
    });
    folders.find(|folder| folder.join("mpi4py").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_one_sided_operations_are_known_by_name() {
        let case = |name: &str| Case {
            name: name.to_owned(),
            words: Vec::new(),
            environment: Vec::new(),
            least: 1,
        };
        assert!(case("test_rma").is_one_sided() && case("locks").is_one_sided());
        assert!(!case("test_p2p_buf").is_one_sided() && !case("alltoall").is_one_sided());
    }

    #[test]
    fn python_s_folder_is_found_below_a_prefix() {
        let prefix = tempfile::tempdir().unwrap();
        assert_eq!(site_packages(prefix.path()), None);
        let folder = prefix.path().join("lib/python3.11/site-packages");
        std::fs::create_dir_all(folder.join("mpi4py")).unwrap();
        assert_eq!(site_packages(prefix.path()), Some(folder));
    }
}
