//! `cargo xtask provider`: the provider for libfabric, built, checked and put where libfabric finds it.
//!
//! ```text
//!   cargo build ──► libdoorbell_fi.so ──► one symbol, no libfabric, never unloaded ──► DIR/libdoorbell-fi.so
//! ```
//!
//! libfabric loads every file of a folder in `FI_PROVIDER_PATH` whose name ends in `fi.so`. A library of Rust
//! cannot have a hyphen in its name, which libfabric's own providers have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use libfabric_sys::ProviderFile;

use crate::error::Error;
use crate::workspace::{Workspace, cargo_in};

pub(crate) const HELP: &str = "\
Builds the package doorbell-provider, checks the library, and installs it as DIR/libdoorbell-fi.so. What is checked: its only \
exported symbol is fi_prov_ini; it needs no libfabric, so that every libfabric can load it; it is never unloaded (NODELETE), \
since threads of it may run when a process ends. Its manual page fi_doorbell(7) is installed below DIR/man. Exit status 1 when a \
check fails, and nothing is installed. Needs readelf (package binutils).

Examples:
  cargo xtask provider --into ~/lib/doorbell
  cargo xtask provider --into /tmp/p && FI_PROVIDER_PATH=/tmp/p fi_info -p doorbell";

/// The package that is built.
const PACKAGE: &str = "doorbell-provider";
/// The file that cargo makes.
pub(crate) const BUILT: &str = "libdoorbell_fi.so";
/// The file that is installed.
pub(crate) const INSTALLED: &str = "libdoorbell-fi.so";
/// The manual page, beside the provider's sources.
const PAGE: &str = "fi_doorbell.7";
/// The name of the function that libfabric looks up.
const ENTRY: &str = "fi_prov_ini";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder to install it in; made if it is not there
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// The profile that it is built with
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
}

/// The command; true when all checks hold.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool, Error> {
    let library = build(workspace, &options.profile)?;
    let elf = Elf::read(&library)?;
    let wrong = elf.wrong();
    for line in &wrong {
        println!("{}: {line}", library.display());
    }
    if !wrong.is_empty() {
        return Ok(false);
    }
    let file = ProviderFile::open(&library).map_err(|error| Error::Provider(error.to_string()))?;
    println!(
        "provider {:?}, version {}, API level {}: libfabric up to {} takes it",
        file.name, file.version, file.level, file.level
    );
    println!("exported: {}", elf.exported.join(", "));
    println!("needed: {}", elf.needed.join(", "));
    println!("never unloaded: NODELETE is set");
    let page = install_page(&workspace.root, &options.into)?;
    let installed = install(&library, &options.into)?;
    println!("installed {}", installed.display());
    println!("manual page: man -M {} fi_doorbell", page.display());
    Ok(true)
}

/// Builds the library with a profile, and returns where cargo has put it.
pub(crate) fn build(workspace: &Workspace, profile: &str) -> Result<PathBuf, Error> {
    if !workspace.members.iter().any(|member| member.package == PACKAGE) {
        return Err(Error::Provider(format!(
            "this checkout has no package {PACKAGE}; its folder is fabric/provider"
        )));
    }
    let mut command = cargo_in(&workspace.root);
    command.args(["build", "--quiet", "--locked", "--package", PACKAGE]);
    command.args(["--profile", profile]);
    let status = command.status().map_err(|source| Error::Start {
        program: "cargo".to_owned(),
        source,
    })?;
    if !status.success() {
        return Err(Error::Provider(format!(
            "{PACKAGE} cannot be built; cargo's words are above"
        )));
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(workspace.target.join(folder).join(BUILT))
}

/// Copies the library under its name for libfabric, in one step: processes that run with the old one go on.
pub(crate) fn install(library: &Path, into: &Path) -> Result<PathBuf, Error> {
    std::fs::create_dir_all(into).map_err(Error::file("create", into))?;
    let into = std::path::absolute(into).map_err(Error::file("find", into))?;
    let (new, installed) = (into.join("libdoorbell-fi.new"), into.join(INSTALLED));
    std::fs::copy(library, &new).map_err(Error::file("copy", library))?;
    std::fs::rename(&new, &installed).map_err(Error::file("create", &installed))?;
    Ok(installed)
}

/// Copies the manual page, and returns the folder that man(1) takes with -M. libfabric looks at files alone.
fn install_page(root: &Path, into: &Path) -> Result<PathBuf, Error> {
    let pages = into.join("man");
    let section = pages.join("man7");
    std::fs::create_dir_all(&section).map_err(Error::file("create", &section))?;
    let page = root.join("fabric/provider").join(PAGE);
    std::fs::copy(&page, section.join(PAGE)).map_err(Error::file("copy", &page))?;
    Ok(pages)
}

/// What the linker wrote into a library.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elf {
    needed: Vec<String>,
    exported: Vec<String>,
    never_unloaded: bool,
}

impl Elf {
    fn read(library: &Path) -> Result<Self, Error> {
        let program = "readelf".to_owned();
        let output = Command::new(&program)
            .args(["--wide", "--dynamic", "--dyn-syms"])
            .arg(library)
            .env("LC_ALL", "C")
            .output()
            .map_err(|source| Error::Start { program, source })?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Provider(format!(
                "readelf cannot read the library: {}",
                words.trim()
            )));
        }
        Ok(Self::of(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Reads what `readelf --dynamic --dyn-syms` prints.
    fn of(text: &str) -> Self {
        let mut elf = Self::default();
        let mut exported = BTreeSet::new();
        for line in text.lines() {
            if line.contains("(NEEDED)") {
                let name = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                elf.needed.extend(name.map(|(name, _)| name.to_owned()));
            } else if line.contains("(FLAGS_1)") {
                elf.never_unloaded = line.contains("NODELETE");
            } else {
                exported.extend(defined(line));
            }
        }
        elf.exported = exported.into_iter().collect();
        elf
    }

    /// Returns what must not be so, each in a sentence.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.exported != [ENTRY] {
            wrong.push(format!(
                "it exports {} instead of {ENTRY} alone",
                listed(&self.exported)
            ));
        }
        let needs_libfabric = |name: &&String| name.starts_with("libfabric");
        if let Some(name) = self.needed.iter().find(needs_libfabric) {
            wrong.push(format!(
                "it is linked to {name}, so a libfabric of another release cannot load it"
            ));
        }
        if !self.never_unloaded {
            wrong.push("it has no flag NODELETE: it may be unloaded while a thread of it runs".to_owned());
        }
        wrong
    }
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => names.join(", "),
    }
}

/// Returns the name of a symbol that a line shows to be defined and visible to others:
/// `1: 0000000000001139 11 FUNC GLOBAL DEFAULT 12 fi_prov_ini`.
fn defined(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [number, _, _, _, binding, visibility, section, name, ..] = words[..] else {
        return None;
    };
    let is_symbol = number
        .strip_suffix(':')
        .is_some_and(|number| number.parse::<u32>().is_ok());
    let is_global = matches!(binding, "GLOBAL" | "WEAK" | "UNIQUE");
    let is_seen = matches!(visibility, "DEFAULT" | "PROTECTED");
    (is_symbol && is_global && is_seen && section != "UND").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
Dynamic section at offset 0x2df8 contains 24 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000006ffffffb (FLAGS_1)            Flags: NOW NODELETE

Symbol table '.dynsym' contains 4 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     0: 0000000000000000     0 NOTYPE  LOCAL  DEFAULT  UND
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (2)
     2: 0000000000000000     0 NOTYPE  WEAK   DEFAULT  UND __gmon_start__
     3: 0000000000001139    11 FUNC    GLOBAL DEFAULT   12 fi_prov_ini
";

    #[test]
    fn a_library_as_it_has_to_be_is_read_from_readelf() {
        let elf = Elf::of(GOOD);
        assert_eq!(elf.needed, ["libgcc_s.so.1", "libc.so.6"]);
        assert_eq!(elf.exported, ["fi_prov_ini"]);
        assert!(elf.never_unloaded && elf.wrong().is_empty(), "{elf:?}");
    }

    #[test]
    fn each_thing_that_is_wrong_is_said() {
        let two =
            format!("{GOOD}     4: 0000000000001150    11 FUNC    GLOBAL DEFAULT   12 rust_eh_personality\n");
        let linked = GOOD.replace("libgcc_s.so.1", "libfabric.so.1");
        let cases = [
            (two.as_str(), "exports fi_prov_ini, rust_eh_personality instead"),
            (&GOOD.replace("fi_prov_ini", ""), "exports nothing instead"),
            (&linked, "linked to libfabric.so.1"),
            (&GOOD.replace(" NODELETE", ""), "no flag NODELETE"),
        ];
        for (text, words) in cases {
            let wrong = Elf::of(text).wrong();
            assert!(wrong.len() == 1 && wrong[0].contains(words), "{wrong:?}");
        }
    }

    #[test]
    fn it_is_installed_in_one_step_under_the_name_that_libfabric_takes() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join(BUILT);
        std::fs::write(&library, "library").unwrap();
        let into = folder.path().join("a/b");
        for _ in 0..2 {
            let installed = install(&library, &into).unwrap();
            assert_eq!(installed, into.join("libdoorbell-fi.so"));
        }
        assert_eq!(std::fs::read_dir(&into).unwrap().count(), 1);
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("fabric/provider")).unwrap();
        std::fs::write(root.join("fabric/provider/fi_doorbell.7"), "page").unwrap();
        let pages = install_page(&root, &into).unwrap();
        assert!(pages.join("man7/fi_doorbell.7").is_file());
    }
}
