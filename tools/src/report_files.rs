//! The files that a measurement writes: found out about before it begins, whole or not there when it ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::ToolError;

/// Outputs as they were named: the flag, and what was given.
pub type Named<'a> = (&'static str, &'a Path);

/// The name of the standard output.
const STDOUT: &str = "-";

/// Checks that every output can be written and that no two are the same; leaves nothing behind.
///
/// # Errors
/// With the flag, the name, and what is wrong with it.
pub fn check(outputs: &[Named<'_>]) -> Result<(), ToolError> {
    let mut places: Vec<(Named<'_>, Place)> = Vec::new();
    for (flag, name) in outputs.iter().copied() {
        let place = Place::of(name).and_then(|place| place.try_out().map(|()| place));
        let place = place.map_err(|error| {
            let name = name.display();
            ToolError::Usage(format!("`{flag} {name}` cannot be written: {}", reason(&error)))
        })?;
        let same = places
            .iter()
            .find(|(_, other)| *other == place && place != Place::Device);
        if let Some(((other, _), _)) = same {
            let text = match place {
                Place::Stdout => {
                    format!("`{other}` and `{flag}`: only one output can be the standard output (`-`)")
                }
                _ => format!(
                    "`{other}` and `{flag}` name the same file, `{}`: give each its own",
                    name.display()
                ),
            };
            return Err(ToolError::Usage(text));
        }
        places.push(((flag, name), place));
    }
    Ok(())
}

/// Checks that `name` can be used for captures, and that those of `ranks` can be made beside `outputs`.
///
/// # Errors
/// With the name, and what is wrong with it.
pub fn check_captures(name: &Path, ranks: &[u32], outputs: &[Named<'_>]) -> Result<(), ToolError> {
    let refuse = |why: &str| {
        Err(ToolError::Usage(format!(
            "`--pcap {}`: {why}; give the name of a file, as in `--pcap trace.pcapng`",
            name.display()
        )))
    };
    if is_stdout(name) {
        return refuse("each rank writes a file of its own, and the standard output is none");
    }
    let is_folder = name.as_os_str().as_encoded_bytes().ends_with(b"/") || name.file_name().is_none();
    if is_folder || name.is_dir() {
        return refuse("it is a folder");
    }
    if fs::metadata(name).is_ok_and(|found| !found.is_file()) {
        return refuse("it is a device or a pipe");
    }
    // As the configuration reads texts: it would be another name there.
    match name.to_str() {
        Some(text) if text.trim() == text => {}
        _ => return refuse("it begins or ends with a blank, or is not UTF-8"),
    }
    let files: Vec<PathBuf> = ranks
        .iter()
        .map(|rank| doorbell::capture_file(name, *rank))
        .collect();
    if let Some(odd) = files
        .iter()
        .find(|file| fs::metadata(file).is_ok_and(|found| !found.is_file()))
    {
        return refuse(&format!("`{}` is there, and is no plain file", odd.display()));
    }
    let captures = files.iter().map(|file| ("--pcap", &**file));
    check(&outputs.iter().copied().chain(captures).collect::<Vec<_>>())
}

/// Writes an output: a file is there whole or stays as it was.
///
/// # Errors
/// With the name and the system's reason.
pub fn write(name: &Path, text: &str, out: &mut dyn Write) -> Result<(), ToolError> {
    if is_stdout(name) {
        return out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(ToolError::Output);
    }
    let written = match Place::of(name) {
        Ok(Place::Beside(path)) => write_beside(&path, text),
        Ok(_) => OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(name)
            .and_then(|mut file| file.write_all(text.as_bytes())),
        Err(error) => Err(error),
    };
    written.map_err(|source| ToolError::Write {
        path: name.to_owned(),
        source,
    })
}

/// Whether the name means the standard output.
pub fn is_stdout(name: &Path) -> bool {
    name == Path::new(STDOUT)
}

/// Where an output goes.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Stdout,
    /// A file that is made beside this path and renamed over it.
    Beside(PathBuf),
    /// A file whose folder takes no other: written in place.
    Itself(PathBuf),
    /// A pipe, a terminal, `/dev/null`.
    Device,
}

impl Place {
    fn of(name: &Path) -> io::Result<Self> {
        if is_stdout(name) {
            return Ok(Self::Stdout);
        }
        if name.as_os_str().is_empty() {
            return Err(io::Error::other("the name is empty"));
        }
        match fs::metadata(name) {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => Ok(Self::Device),
            Ok(_) => {
                // Through links: it is the file that is replaced, and not the link to it.
                let path = fs::canonicalize(name)?;
                // A file that may not be written is not replaced either.
                OpenOptions::new().write(true).open(&path)?;
                match try_beside(&path) {
                    Ok(()) => Ok(Self::Beside(path)),
                    Err(_) => Ok(Self::Itself(path)),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if fs::symlink_metadata(name).is_ok() {
                    return Err(io::Error::other("it is a link to nowhere"));
                }
                let file = name.file_name().ok_or(io::ErrorKind::IsADirectory)?;
                if name.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")))?;
                Ok(Self::Beside(folder.join(file)))
            }
            Err(error) => Err(error),
        }
    }

    fn try_out(&self) -> io::Result<()> {
        match self {
            Self::Beside(path) => try_beside(path).map_err(|error| match error.kind() {
                // The folder itself was found.
                io::ErrorKind::NotFound => io::Error::other("its folder takes no files"),
                _ => error,
            }),
            Self::Itself(_) | Self::Stdout | Self::Device => Ok(()),
        }
    }
}

/// Makes a file beside `path` and removes it again.
fn try_beside(path: &Path) -> io::Result<()> {
    let (beside, _) = make_beside(path)?;
    fs::remove_file(beside)
}

fn make_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    // A name that only this process uses: hidden, and with the process id in it. It need not hold the file's
    // own name, which may be as long as names can be.
    let beside = path.with_file_name(format!(".doorbell-{}.tmp", std::process::id()));
    // Left by a process of the same number that was killed in the middle.
    let _ = fs::remove_file(&beside);
    let file = OpenOptions::new().write(true).create_new(true).open(&beside)?;
    Ok((beside, file))
}

fn write_beside(path: &Path, text: &str) -> io::Result<()> {
    let (beside, mut file) = make_beside(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| match fs::metadata(path) {
            Ok(old) => file.set_permissions(old.permissions()),
            Err(_) => Ok(()),
        })
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(beside);
    }
    written
}

/// Formats the system's reason with the remedy.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "its folder does not exist".to_owned(),
        io::ErrorKind::IsADirectory => "it is a folder; give the name of a file in it".to_owned(),
        io::ErrorKind::NotADirectory => "a part of its path is a file, and not a folder".to_owned(),
        io::ErrorKind::PermissionDenied => "the permission is missing; check with `ls -ld`".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn refused(outputs: &[Named<'_>]) -> String {
        check(outputs).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        symlink("nowhere", at("link")).unwrap();
        for (name, word) in [
            ("missing/x", "folder does not exist"),
            ("", "is a folder"),
            ("file/x", "is a file, and not a folder"),
            ("new/", "folder"),
            ("link", "link to nowhere"),
        ] {
            let said = refused(&[("--json", &at(name))]);
            assert!(said.contains("--json") && said.contains(word), "{name}: {said}");
        }
        assert!(refused(&[("--csv", Path::new(""))]).contains("empty"));
        assert!(refused(&[("--csv", Path::new("/proc/x"))]).contains("takes no files"));
        assert_eq!(names(folder.path()), ["file", "link"]);
        assert_eq!(fs::read(at("file")).unwrap(), b"old");
    }

    #[test]
    fn captures_are_plain_files_of_each_rank() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("t.1.pcapng")).unwrap();
        for (name, word) in [
            (Path::new("-"), "standard output"),
            (Path::new("/dev/full"), "device"),
            (folder.path(), "folder"),
            (Path::new("new/"), "folder"),
            (&at("missing/t.pcapng"), "folder does not exist"),
            (&at("t.pcapng"), "t.1.pcapng"),
            (&at("blank "), "blank"),
        ] {
            let said = check_captures(name, &[0, 1], &[]).unwrap_err().to_string();
            assert!(
                said.contains("--pcap") && said.contains(word),
                "{}: {said}",
                name.display()
            );
        }
        check_captures(&at("t.pcapng"), &[0], &[]).unwrap();
        let said = check_captures(&at("x"), &[0], &[("--json", &at("x.0.pcapng"))])
            .unwrap_err()
            .to_string();
        assert!(said.contains("same file"), "{said}");
        assert_eq!(names(folder.path()), ["t.1.pcapng"]);
    }

    #[test]
    fn two_outputs_are_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old").unwrap();
        symlink("file", at("link")).unwrap();
        for (one, other) in [("new", "new"), ("new", "./new"), ("file", "link")] {
            let said = refused(&[("--json", &at(one)), ("--csv", &at(other))]);
            assert!(
                said.contains("--json") && said.contains("--csv") && said.contains("same file"),
                "{said}"
            );
        }
        assert!(
            refused(&[("--json", Path::new("-")), ("--csv", Path::new("-"))]).contains("only one output")
        );
        check(&[("--json", &at("new")), ("--csv", &at("file"))]).unwrap();
        let null = Path::new("/dev/null");
        check(&[("--json", null), ("--csv", null)]).unwrap();
        assert_eq!(names(folder.path()), ["file", "link"]);
    }

    #[test]
    fn a_file_is_replaced_whole_through_links_and_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "old and long").unwrap();
        fs::set_permissions(at("file"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", at("link")).unwrap();
        write(&at("link"), "new", &mut Vec::new()).unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"new");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(
            fs::metadata(at("file")).unwrap().permissions().mode() & 0o777,
            0o640
        );
        write(&at("other"), "text", &mut Vec::new()).unwrap();
        assert_eq!(names(folder.path()), ["file", "link", "other"]);
        let mut out = Vec::new();
        write(Path::new("-"), "text", &mut out).unwrap();
        assert_eq!(out, b"text");
    }

    #[test]
    fn a_full_device_is_an_error_with_its_name() {
        let full = Path::new("/dev/full");
        check(&[("--json", full)]).unwrap();
        let said = write(full, "text", &mut Vec::new()).unwrap_err().to_string();
        assert!(said.contains("/dev/full"), "{said}");
    }
}
