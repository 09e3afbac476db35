//! A guest's disk: one file that the kernel unpacks into memory, made of the guests' programs, and after them
//! what this run needs.
//!
//! ```text
//!   guest.cpio, kept     Debian's programs
//!   + /init              guest/init.sh
//!   + /lab/modules/NN-*  modules, in the order in which they are loaded
//!   + /lab/run.sh        guest/tell.sh, what the table sets, and the scenario's script
//!   + /lab/bin/*         what is tested
//! ```

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::cpio::Archive;
use super::modules::{Module, Shelf};
use super::qemu::with_own_loader;
use crate::error::Error;

const INIT: &str = include_str!("guest/init.sh");
const TELL: &str = include_str!("guest/tell.sh");

/// Folders of packages that are not used in a guest.
const UNREAD: [&str; 7] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/bash-completion",
    "usr/share/lintian",
    "usr/lib/x86_64-linux-gnu/gconv",
];
/// Folders that are there before anything is mounted on them.
const EMPTY: [&str; 9] = [
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "root",
    "lab",
    "lab/modules",
    "lab/bin",
];
/// Folders that may be links into `usr`, which no package brings.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// What one run needs.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) modules: &'a [&'a str],
    /// The script of the scenario, and what is set for it.
    pub(super) script: &'a str,
    pub(super) settings: &'a [(&'a str, &'a str)],
    /// Programs that are tested, and what they are called in the guest.
    pub(super) programs: &'a [(&'a str, &'a Path)],
}

/// A kernel and its modules, unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelFiles {
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
    pub(super) version: String,
}

impl KernelFiles {
    /// Finds them where Debian's packages put them.
    pub(super) fn of(unpacked: &Path) -> Result<Self, Error> {
        for at in ["lib/modules", "usr/lib/modules"] {
            let Ok(mut listed) = fs::read_dir(unpacked.join(at)) else {
                continue;
            };
            let Some(Ok(found)) = listed.next() else { continue };
            let (modules, version) = (found.path(), found.file_name().to_string_lossy().into_owned());
            let images = [
                unpacked.join(format!("boot/vmlinuz-{version}")),
                modules.join("vmlinuz"),
            ];
            if let Some(image) = images.into_iter().find(|image| image.is_file()) {
                return Ok(Self {
                    image,
                    modules,
                    version,
                });
            }
        }
        let text = format!(
            "{} holds no kernel with modules; remove it, and it is fetched again",
            unpacked.display()
        );
        Err(Error::Lab(text))
    }
}

/// Writes the file for one run.
pub(super) fn write(file: &Path, guest: &Path, kernel: &KernelFiles, run: &Run<'_>) -> Result<(), Error> {
    let kept = guest.with_extension("cpio");
    if !kept.is_file() {
        write_whole(&kept, |out| programs(out, guest))?;
    }
    let shelf = Shelf::of(&kernel.modules)?;
    let modules = shelf.in_order(run.modules, &mut |path| unpacked(guest, path))?;
    let mut tested = Vec::new();
    for (name, program) in run.programs {
        tested.push((name, fs::read(program).map_err(Error::file("read", *program))?));
    }
    write_whole(file, |mut out| {
        io::copy(&mut BufReader::new(File::open(&kept)?), &mut out)?;
        let mut archive = Archive::new(out);
        archive.file("init", true, INIT.as_bytes())?;
        archive.file("lab/run.sh", true, script(run).as_bytes())?;
        for (number, Module { name, bytes }) in modules.iter().enumerate() {
            archive.file(&format!("lab/modules/{number:02}-{name}.ko"), false, bytes)?;
        }
        for (name, bytes) in &tested {
            archive.file(&format!("lab/bin/{name}"), true, bytes)?;
        }
        archive.end()?.flush()
    })
}

/// Writes the guests' programs.
fn programs(out: BufWriter<File>, guest: &Path) -> io::Result<()> {
    let mut archive = Archive::new(out);
    for folder in EMPTY {
        archive.directory(folder)?;
    }
    archive.device("dev/console", (5, 1))?;
    for folder in MERGED {
        if !guest.join(folder).exists() {
            archive.link(folder, &format!("usr/{folder}"))?;
        }
    }
    let wanted = |path: &str| !UNREAD.contains(&path) && !EMPTY.contains(&path);
    archive.tree(guest, "", &wanted)?;
    archive.end()?.flush()
}

/// Returns the script with what is set for it.
fn script(run: &Run<'_>) -> String {
    let settings = run.settings.iter();
    let settings = settings.fold(String::new(), |text, (name, value)| {
        text + &format!("{name}='{}'\n", value.replace('\'', r"'\''"))
    });
    format!("#!/bin/bash\n{TELL}\n{settings}\n{}", run.script)
}

/// Returns the bytes of a module, which may be compressed.
fn unpacked(guest: &Path, module: &Path) -> Result<Vec<u8>, Error> {
    if module.extension().is_some_and(|ending| ending == "ko") {
        return fs::read(module).map_err(Error::file("read", module));
    }
    let mut command = with_own_loader(guest, &guest.join("usr/bin/xz"));
    command.arg("-dc").arg(module).stdin(Stdio::null());
    let output = command.output().map_err(|source| Error::Start {
        program: "xz".to_owned(),
        source,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Lab(format!(
        "{} cannot be unpacked: {}",
        module.display(),
        said.trim()
    )))
}

/// Writes a file that is there whole, or not at all.
fn write_whole(file: &Path, fill: impl FnOnce(BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    let part = file.with_extension("part");
    let out = File::create(&part).map_err(Error::file("create", &part))?;
    fill(BufWriter::with_capacity(1 << 20, out)).map_err(Error::file("write", &part))?;
    fs::rename(&part, file).map_err(Error::file("rename", &part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_found_in_both_places() {
        for (modules, image) in [
            ("lib/modules/6.12-a", "boot/vmlinuz-6.12-a"),
            ("usr/lib/modules/7.2-a", "usr/lib/modules/7.2-a/vmlinuz"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join(modules)).unwrap();
            assert!(KernelFiles::of(folder.path()).is_err(), "modules alone");
            let image = folder.path().join(image);
            fs::create_dir_all(image.parent().unwrap()).unwrap();
            fs::write(&image, "").unwrap();
            let found = KernelFiles::of(folder.path()).unwrap();
            assert_eq!((found.image, found.modules), (image, folder.path().join(modules)));
        }
    }

    #[test]
    fn what_is_set_reaches_the_script_as_it_is() {
        let run = Run {
            modules: &[],
            script: "echo \"$WORDS\"\n",
            settings: &[("WORDS", "it's $HOME")],
            programs: &[],
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.sh");
        // Without the helpers, which are for guests.
        fs::write(&file, script(&run).replace(TELL, "")).unwrap();
        let said = std::process::Command::new("bash").arg(file).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "it's $HOME\n");
    }

    #[test]
    fn guests_and_their_lab_agree_on_the_words() {
        assert!(TELL.contains(super::super::verdict::GOOD) && TELL.contains(super::super::verdict::BAD));
        assert!(INIT.contains("rc + 64"), "the offset of `qemu::status`");
    }
}
