//! The source tree, and what is built of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use libfabric_sys::Level;

use crate::error::Error;
use crate::workshop::{Workshop, once};

/// The providers of libfabric that its own build is limited to: what runs on any host.
const PROVIDERS: [&str; 7] = ["tcp", "udp", "rxm", "rxd", "shm", "sm2", "sockets"];
/// Providers that are left out, whatever the system has.
const WITHOUT: [&str; 11] = [
    "verbs", "efa", "psm2", "psm3", "opx", "usnic", "cxi", "ucx", "lpp", "mrail", "lnx",
];

/// fabtests, ready to run.
#[derive(Debug)]
pub(super) struct Built {
    /// The release of the tests.
    pub(super) release: String,
    /// The release of the libfabric under them.
    pub(super) libfabric: Level,
    /// The folder of the programs.
    pub(super) programs: PathBuf,
    /// The folder of the libfabric's library.
    pub(super) library: PathBuf,
    /// The tree of the tests, with its scripts and configurations.
    pub(super) tests: PathBuf,
}

impl Built {
    /// Builds fabtests of a tree, and its libfabric where that is needed.
    pub(super) fn of(shop: &Workshop, from: &Path, libfabric: Option<&Path>) -> Result<Self, Error> {
        let tree = Tree::find(from)?;
        let release = tree.release()?;
        let prefix = match libfabric {
            Some(prefix) => Prefix::at(prefix)?,
            None => match Prefix::installed().filter(|prefix| tree.is_of(prefix.level)) {
                Some(prefix) => prefix,
                None => tree.build_libfabric(shop, &release)?,
            },
        };
        let programs = tree.build_tests(shop, &release, &prefix)?;
        Ok(Self {
            release,
            libfabric: prefix.level,
            programs,
            library: prefix.library,
            tests: tree.tests,
        })
    }
}

/// A source tree.
#[derive(Debug)]
struct Tree {
    /// The folder of fabtests.
    tests: PathBuf,
    /// The folder of libfabric, if the tests lie in one.
    libfabric: Option<PathBuf>,
}

impl Tree {
    fn find(from: &Path) -> Result<Self, Error> {
        let from = from.canonicalize().map_err(Error::file("find", from))?;
        let has_script = |folder: &PathBuf| folder.join("scripts/runfabtests.sh").is_file();
        let Some(tests) = [from.join("fabtests"), from.clone()].into_iter().find(has_script) else {
            return Err(Error::Lab(format!(
                "{} has neither fabtests/scripts/runfabtests.sh nor scripts/runfabtests.sh; give a source tree of \
                 libfabric or of fabtests",
                from.display()
            )));
        };
        let above = tests.parent().map(Path::to_path_buf);
        let libfabric = above.filter(|folder| folder.join("include/rdma/fabric.h").is_file());
        Ok(Self { tests, libfabric })
    }

    /// Returns the release that the tree's own script names: `AC_INIT([fabtests], [2.6.0], …`.
    fn release(&self) -> Result<String, Error> {
        let script = self.tests.join("configure.ac");
        let text = std::fs::read_to_string(&script).map_err(Error::file("read", &script))?;
        let named = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("AC_INIT([fabtests]"))
            .and_then(|rest| rest.split(['[', ']']).nth(1));
        named
            .map(str::to_owned)
            .ok_or_else(|| Error::Lab(format!("{} has no AC_INIT([fabtests], …)", script.display())))
    }

    /// Whether the tests are of this release of libfabric.
    fn is_of(&self, level: Level) -> bool {
        let own = format!("{}.{}", level.major(), level.minor());
        self.release().is_ok_and(|release| {
            let mut parts = release.split('.');
            let found = [parts.next(), parts.next()].map(Option::unwrap_or_default);
            found.join(".") == own
        })
    }

    fn build_libfabric(&self, shop: &Workshop, release: &str) -> Result<Prefix, Error> {
        let Some(tree) = &self.libfabric else {
            return Err(Error::Lab(format!(
                "fabtests {release} need a libfabric of their own release, and neither the installed one nor the tree is; \
                 give one with --libfabric DIR"
            )));
        };
        let name = format!("libfabric-{release}");
        let tree = shop.with_configure(tree, &["autogen.sh"], &name)?;
        let (build, prefix) = (shop.folder(&format!("{name}/build"))?, shop.path(&name));
        let mut words = vec![format!("--prefix={}", prefix.display()), "CFLAGS=-O2".to_owned()];
        words.extend(PROVIDERS.map(|provider| format!("--enable-{provider}=yes")));
        words.extend(WITHOUT.map(|provider| format!("--enable-{provider}=no")));
        install(shop, &tree, &build, &words, &name)?;
        Prefix::at(&prefix)
    }

    /// Builds the tests against a libfabric, and returns the folder of the programs.
    fn build_tests(&self, shop: &Workshop, release: &str, prefix: &Prefix) -> Result<PathBuf, Error> {
        let name = format!("fabtests-{release}");
        let tree = shop.with_configure(&self.tests, &["autogen.sh"], &name)?;
        let over = format!("{name}-over-{}", prefix.level);
        let (build, installed) = (shop.folder(&format!("{over}/build"))?, shop.path(&over));
        let mut words = vec![
            format!("--prefix={}", installed.display()),
            "CFLAGS=-O2".to_owned(),
        ];
        // Debian's library folder is one that only the compiler knows.
        if prefix.is_given {
            words.push(format!("--with-libfabric={}", prefix.folder.display()));
        }
        install(shop, &tree, &build, &words, &over)?;
        Ok(installed.join("bin"))
    }
}

/// Configures, builds and installs a tree, each once.
fn install(shop: &Workshop, tree: &Path, build: &Path, words: &[String], name: &str) -> Result<(), Error> {
    once(build, "configure", || {
        let mut command = Command::new(tree.join("configure"));
        command.args(words).current_dir(build);
        shop.built(&mut command, &format!("{name}-configure"))
    })?;
    once(build, "make", || shop.make(build, &[], &format!("{name}-make")))?;
    once(build, "install", || {
        shop.make(build, &["install"], &format!("{name}-install"))
    })
}

/// A libfabric that is installed somewhere.
#[derive(Debug)]
struct Prefix {
    folder: PathBuf,
    library: PathBuf,
    level: Level,
    /// Whether the compiler has to be shown where it is.
    is_given: bool,
}

impl Prefix {
    /// Returns the one that the system has, with its headers.
    fn installed() -> Option<Self> {
        let found = Self::at(Path::new("/usr")).ok()?;
        Some(Self {
            is_given: false,
            ..found
        })
    }

    fn at(folder: &Path) -> Result<Self, Error> {
        let folder = folder.canonicalize().map_err(Error::file("find", folder))?;
        let header = folder.join("include/rdma/fabric.h");
        let text = std::fs::read_to_string(&header).map_err(Error::file("read", &header))?;
        let level =
            level_of(&text).ok_or_else(|| Error::Lab(format!("{} defines no release", header.display())))?;
        let machine = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = ["lib", "lib64", &machine].map(|name| folder.join(name));
        let library = folders
            .into_iter()
            .find(|lib| lib.join("libfabric.so.1").exists());
        let Some(library) = library else {
            return Err(Error::Lab(format!(
                "{} has headers of libfabric {level}, and no lib/libfabric.so.1; install the library, too",
                folder.display()
            )));
        };
        Ok(Self {
            folder,
            library,
            level,
            is_given: true,
        })
    }
}

/// Reads the release out of `rdma/fabric.h`.
fn level_of(header: &str) -> Option<Level> {
    let number = |name: &str| {
        let mut lines = header.lines();
        lines.find_map(|line| {
            line.strip_prefix("#define ")?
                .strip_prefix(name)?
                .trim()
                .parse()
                .ok()
        })
    };
    Some(Level::new(
        number("FI_MAJOR_VERSION")?,
        number("FI_MINOR_VERSION")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes files, each with its text.
    fn made(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        root
    }

    const AC: &str = "AC_PREREQ(2.57)\nAC_INIT([fabtests], [2.6.0], [ofiwg@lists.openfabrics.org])\n";
    const HEADER: &str =
        "#define FI_MAJOR_VERSION 1\n#define FI_MINOR_VERSION 17\n#define FI_REVISION_VERSION 0\n";

    #[test]
    fn a_tree_is_libfabric_with_its_tests_or_the_tests_alone() {
        let root = made(&[
            ("fabtests/scripts/runfabtests.sh", ""),
            ("fabtests/configure.ac", AC),
            ("include/rdma/fabric.h", HEADER),
        ]);
        let tree = Tree::find(root.path()).unwrap();
        assert_eq!(tree.release().unwrap(), "2.6.0");
        assert!(tree.libfabric.is_some() && tree.is_of(Level::new(2, 6)));
        assert!(!tree.is_of(Level::new(2, 60)) && !tree.is_of(Level::new(1, 17)));
        let alone = made(&[("scripts/runfabtests.sh", "")]);
        assert!(Tree::find(alone.path()).unwrap().libfabric.is_none());
        let error = Tree::find(&root.path().join("include")).unwrap_err();
        assert!(error.to_string().contains("give a source tree"), "{error}");
    }

    #[test]
    fn a_libfabric_is_headers_and_a_library() {
        let root = made(&[("include/rdma/fabric.h", HEADER)]);
        let error = Prefix::at(root.path()).unwrap_err().to_string();
        assert!(error.contains("headers of libfabric 1.17, and no lib"), "{error}");
        std::fs::create_dir(root.path().join("lib64")).unwrap();
        std::fs::write(root.path().join("lib64/libfabric.so.1"), "").unwrap();
        let prefix = Prefix::at(root.path()).unwrap();
        assert_eq!(prefix.level, Level::new(1, 17));
        assert!(prefix.library.ends_with("lib64"));
    }
}
