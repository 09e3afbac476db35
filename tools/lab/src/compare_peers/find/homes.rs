//! The folders of `--peers-from`: prefixes and virtual environments in which peers are installed, and the
//! variables by which programs there find their libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use doorbell_tools::path::on_path;

/// The programs by which a folder is one of peers.
const PROGRAMS: [&str; 7] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "ucx_perftest",
    "fi_pingpong",
    "fi_rdm_tagged_pingpong",
    "doorbell-peer-iceoryx2",
];

/// Where a peer of `--peers-from` is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    /// The folder above those of programs and libraries.
    prefix: PathBuf,
    programs: PathBuf,
    /// The folder of the libfabric that it brings.
    libfabric: Option<PathBuf>,
    /// The folders of its libraries, and of another one's libfabric where it brings none.
    libraries: Vec<PathBuf>,
}

impl Home {
    /// A prefix, whose programs are in `bin`.
    #[cfg(test)]
    pub(crate) fn at(prefix: &Path) -> Self {
        Self::of(prefix.join("bin"))
    }

    /// A folder of programs. Those of a prefix are in its `bin`; a folder of programs alone is its own
    /// prefix.
    fn of(programs: PathBuf) -> Self {
        let above = programs.parent().filter(|_| programs.ends_with("bin"));
        let prefix = above.unwrap_or(&programs).to_owned();
        let library = prefix.join("lib");
        let deeper = inner(&library).unwrap_or_default();
        let libfabric = [library.clone()].into_iter().chain(deeper);
        let libfabric = libfabric
            .into_iter()
            .find(|folder| folder.join("libfabric.so.1").exists());
        Self {
            prefix,
            programs,
            libfabric,
            libraries: vec![library],
        }
    }

    /// Whether it brings a libfabric.
    pub(super) fn has_libfabric(&self) -> bool {
        self.libfabric.is_some()
    }

    /// The name of its folder.
    pub(super) fn name(&self) -> String {
        let name = self.prefix.file_name().unwrap_or(self.prefix.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// Sets the variables by which its programs and libraries find where they are installed.
    pub(super) fn set(&self, command: &mut Command) {
        let libraries: Vec<String> = self
            .libraries
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        // Of Open MPI, and of Intel MPI.
        command.env("OPAL_PREFIX", &self.prefix);
        command.env("I_MPI_ROOT", &self.prefix);
    }
}

/// Where programs are looked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where<'a> {
    Path,
    Home(&'a Home),
}

impl<'a> Where<'a> {
    /// The program of a name.
    pub(super) fn program(self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Path => on_path(name),
            Self::Home(home) => Some(home.programs.join(name)).filter(|path| path.is_file()),
        }
    }

    /// Where it is, in words.
    pub(super) fn words(self) -> String {
        match self {
            Self::Path => "on the PATH".to_owned(),
            Self::Home(home) => format!("in {}", home.programs.display()),
        }
    }

    /// The home, if it is one.
    pub(super) fn home(self) -> Option<&'a Home> {
        match self {
            Self::Path => None,
            Self::Home(home) => Some(home),
        }
    }
}

/// The homes in a folder and in those in it, by name; or why there are none.
pub(super) fn below(top: &Path) -> Result<Vec<Home>, String> {
    let named = top.display();
    let opened = std::fs::canonicalize(top).and_then(|top| Ok((inner(&top)?, top)));
    let (folders, top) = opened.map_err(|error| {
        format!(
            "`--peers-from {named}` cannot be opened: {error}: name a folder of peers; `cargo xtask peers --into {named}` makes one"
        )
    })?;
    let programs = [top]
        .into_iter()
        .chain(folders)
        .flat_map(|folder| of_programs(&folder));
    let has_any = |folder: &PathBuf| PROGRAMS.iter().any(|name| folder.join(name).is_file());
    let mut homes: Vec<Home> = Vec::new();
    for home in programs.filter(has_any).map(Home::of) {
        // The `bin` of a prefix is a folder of programs, too.
        if !homes.contains(&home) {
            homes.push(home);
        }
    }
    if homes.is_empty() {
        return Err(format!(
            "`--peers-from {named}`: there is no peer in this folder or in those in it: `cargo xtask peers --into {named}` puts \
             peers there"
        ));
    }
    // The wheels of Intel MPI bring none.
    let any = homes.iter().find_map(|home| home.libfabric.clone());
    for home in &mut homes {
        home.libraries
            .extend(home.libfabric.clone().or_else(|| any.clone()));
    }
    Ok(homes)
}

/// The folders of programs of a prefix: its `bin`, those of Python packages in it, and itself.
fn of_programs(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = vec![prefix.join("bin")];
    let pythons = inner(&prefix.join("lib")).unwrap_or_default();
    for python in pythons {
        let packages = inner(&python.join("site-packages")).unwrap_or_default();
        folders.extend(packages.into_iter().map(|package| package.join("bin")));
    }
    folders.push(prefix.to_owned());
    folders
}

/// The folders in a folder, by name; links are not followed.
pub(super) fn inner(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut inner: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    inner.sort();
    Ok(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &Path, name: &str) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join(name), "").unwrap();
    }

    #[test]
    fn prefixes_environments_and_folders_of_programs_are_homes() {
        let root = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(root.path()).unwrap();
        program(&top.join("openmpi/bin"), "mpirun");
        program(
            &top.join("ucx/lib/python3.11/site-packages/libucx/bin"),
            "ucx_perftest",
        );
        program(&top.join("fabtests"), "fi_rdm_tagged_pingpong");
        program(&top.join("other/bin"), "awk");
        let homes = below(&top).unwrap();
        let found: Vec<(PathBuf, PathBuf)> = homes
            .iter()
            .map(|home| (home.prefix.clone(), home.programs.clone()))
            .collect();
        let package = top.join("ucx/lib/python3.11/site-packages/libucx");
        assert_eq!(
            found,
            [
                (top.join("fabtests"), top.join("fabtests")),
                (top.join("openmpi"), top.join("openmpi/bin")),
                (package.clone(), package.join("bin")),
            ]
        );
        // A home without a libfabric has another one's.
        let library = top.join("openmpi/lib/openmpi");
        program(&library, "libfabric.so.1");
        for home in below(&top).unwrap() {
            let own = home.prefix.join("lib");
            assert_eq!(home.libraries, [own, library.clone()]);
            assert_eq!(home.has_libfabric(), home.name() == "openmpi");
        }
        // A prefix itself is a folder of one.
        assert_eq!(below(&top.join("openmpi")).unwrap().len(), 1);
        let at = Where::Home(&homes[1]);
        assert!(at.program("mpirun").is_some() && at.program("mpicc").is_none());
    }

    #[test]
    fn a_folder_that_is_not_there_and_one_without_peers_are_refused_with_what_makes_one() {
        let root = tempfile::tempdir().unwrap();
        let empty = below(root.path()).unwrap_err();
        assert!(empty.contains("there is no peer in this folder"), "{empty}");
        let nowhere = below(&root.path().join("nowhere")).unwrap_err();
        assert!(nowhere.contains("cannot be opened"), "{nowhere}");
        for text in [empty, nowhere] {
            assert!(text.contains("cargo xtask peers --into"), "{text}");
        }
    }
}
