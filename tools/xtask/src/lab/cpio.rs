//! Archives that the kernel unpacks into its first root: cpio in the format "newc" (Linux's
//! Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Archives may follow one another in one file, so that what stays the same is written once.

use std::io::{self, Write};
use std::path::Path;

/// Bits of a mode that have the type of an entry (`S_IFMT`).
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const DEVICE: u32 = 0o020_000;

/// Writes one archive.
pub(super) struct Archive<W: Write> {
    out: W,
    /// Bytes so far: entries begin at multiples of four.
    at: usize,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            at: 0,
            entries: 0,
        }
    }

    /// Writes a directory; its parents must have been written.
    pub(super) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY | 0o755, &[], (0, 0))
    }

    /// Writes a file with these bytes.
    pub(super) fn file(&mut self, name: &str, executable: bool, bytes: &[u8]) -> io::Result<()> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.entry(name, FILE | mode, bytes, (0, 0))
    }

    /// Writes a symbolic link.
    pub(super) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK | 0o777, target.as_bytes(), (0, 0))
    }

    /// Writes a character device.
    pub(super) fn device(&mut self, name: &str, number: (u32, u32)) -> io::Result<()> {
        self.entry(name, DEVICE | 0o600, &[], number)
    }

    /// Adds everything in a folder of this machine, below `name`, in the order of names; `wanted` is called
    /// with each path in the archive. All files belong to root there, whatever their owner here.
    pub(super) fn tree(
        &mut self,
        folder: &Path,
        name: &str,
        wanted: &dyn Fn(&str) -> bool,
    ) -> io::Result<()> {
        let mut names: Vec<_> = std::fs::read_dir(folder)?.collect::<io::Result<_>>()?;
        names.sort_by_key(std::fs::DirEntry::file_name);
        for found in names {
            let path = format!("{name}{}", found.file_name().to_string_lossy());
            if !wanted(&path) {
                continue;
            }
            let kind = found.file_type()?;
            if kind.is_dir() {
                self.directory(&path)?;
                self.tree(&found.path(), &format!("{path}/"), wanted)?;
            } else if kind.is_symlink() {
                let target = std::fs::read_link(found.path())?;
                self.link(&path, &target.to_string_lossy())?;
            } else if kind.is_file() {
                self.file(&path, is_executable(&found)?, &std::fs::read(found.path())?)?;
            }
        }
        Ok(())
    }

    /// Ends the archive, so that another one may follow.
    pub(super) fn end(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[], (0, 0))?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8], device: (u32, u32)) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{name} has more than 4 GiB"));
        let length = u32::try_from(bytes.len()).map_err(too_long)?;
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // Number, mode, user, group, links, time, bytes, device, this device, bytes of the name with its
        // zero, sum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            length,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.put(b"070701")?;
        for field in fields {
            self.put(format!("{field:08x}").as_bytes())?;
        }
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        self.put(bytes)?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len();
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = self.at.next_multiple_of(4) - self.at;
        self.put(&[0; 3][..missing])
    }
}

fn is_executable(found: &std::fs::DirEntry) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(found.metadata()?.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode, bytes and device.
    type Entry = (String, u32, Vec<u8>, (u32, u32));

    /// Reads an archive as the kernel does: the entries before the trailer.
    fn read(bytes: &[u8]) -> Vec<Entry> {
        let (mut at, mut found) = (0, Vec::new());
        loop {
            assert_eq!(&bytes[at..at + 6], b"070701", "an entry at {at}");
            let field = |number: usize| {
                let place = at + 6 + 8 * number;
                let text = std::str::from_utf8(&bytes[place..place + 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (length, name) = (field(6) as usize, field(11) as usize);
            let start = at + 110;
            let text = String::from_utf8(bytes[start..start + name - 1].to_vec()).unwrap();
            assert_eq!(bytes[start + name - 1], 0, "the name's end");
            let data = (start + name).next_multiple_of(4);
            if text == "TRAILER!!!" {
                assert_eq!(bytes.len(), data);
                return found;
            }
            found.push((
                text,
                field(1),
                bytes[data..data + length].to_vec(),
                (field(9), field(10)),
            ));
            at = (data + length).next_multiple_of(4);
        }
    }

    #[test]
    fn what_is_written_is_read_back_at_every_alignment() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("dev").unwrap();
        archive.device("dev/console", (5, 1)).unwrap();
        for length in 0..5 {
            let name = format!("f{}", "x".repeat(length));
            archive.file(&name, length == 4, &vec![7; length]).unwrap();
        }
        archive.link("bin/sh", "busybox").unwrap();
        let found = read(&archive.end().unwrap());
        assert_eq!(found[0], ("dev".to_owned(), 0o040_755, vec![], (0, 0)));
        assert_eq!(found[1], ("dev/console".to_owned(), 0o020_600, vec![], (5, 1)));
        for length in 0..5 {
            let mode = if length == 4 { 0o100_755 } else { 0o100_644 };
            let expected = (format!("f{}", "x".repeat(length)), mode, vec![7; length], (0, 0));
            assert_eq!(found[2 + length], expected);
        }
        assert_eq!(found[7].2, b"busybox");
        assert_eq!(found[7].1, 0o120_777);
    }

    #[test]
    fn a_folder_comes_in_order_without_what_is_not_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("usr/share/doc")).unwrap();
        std::fs::write(at("usr/share/doc/x"), "long").unwrap();
        std::fs::write(at("usr/b"), "b").unwrap();
        std::fs::write(at("usr/a"), "a").unwrap();
        std::os::unix::fs::symlink("usr/a", at("link")).unwrap();
        let mut archive = Archive::new(Vec::new());
        let wanted = |path: &str| path != "usr/share/doc";
        archive.tree(folder.path(), "", &wanted).unwrap();
        let names: Vec<_> = read(&archive.end().unwrap())
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        assert_eq!(names, ["link", "usr", "usr/a", "usr/b", "usr/share"]);
    }
}
