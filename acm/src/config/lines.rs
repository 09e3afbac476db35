//! Splits text into numbered lines and fields; warnings about lines that cannot be used.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum characters of a line that the original reads; it takes the rest for another line.
pub(super) const LINE: usize = 119;
/// Maximum bytes of a line; longer ones are ignored.
const LINE_MAX: usize = 4096;
/// Maximum lines of a file: more than any cluster of today has paths.
const LINES_MAX: u32 = 1 << 28;
/// Maximum bytes of a configuration file.
const FILE_MAX: u64 = 16 << 20;
/// Maximum number of warnings kept; further ones are counted.
pub const WARNINGS_MAX: usize = 100;
/// Maximum characters of a file's text shown in a warning.
const SHOWN: usize = 40;

/// A warning about something in a file that cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path of the file.
    pub file: Arc<Path>,
    /// The line number, from 1; 0 if it concerns the whole file.
    pub line: u32,
    /// What is wrong.
    pub what: String,
    /// How to fix it.
    pub remedy: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " {}; {}", self.what, self.remedy)
    }
}

/// The warnings about some files: the first [`WARNINGS_MAX`], and the number of further ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    kept: Vec<Warning>,
    more: u64,
}

impl Warnings {
    /// Returns the warnings kept, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Warning> {
        self.kept.iter()
    }

    /// Returns the number of warnings not kept.
    #[must_use]
    pub fn more(&self) -> u64 {
        self.more
    }

    /// Whether there are no warnings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Adds a warning, or counts it.
    pub fn push(&mut self, file: &Arc<Path>, line: u32, what: String, remedy: impl Into<String>) {
        if self.kept.len() == WARNINGS_MAX {
            self.more += 1;
            return;
        }
        self.kept.push(Warning {
            file: file.clone(),
            line,
            what,
            remedy: remedy.into(),
        });
    }
}

/// Returns the start of a text in printable form, without characters that move a terminal's cursor.
pub(super) fn shown(text: &str) -> String {
    let begin: String = text.chars().take(SHOWN).collect();
    let more = if begin.len() < text.len() { "…" } else { "" };
    format!("\"{}{more}\"", begin.escape_debug())
}

/// Calls `each` with the number and the text of each line that is neither empty nor a comment.
///
/// Lines longer than the original reads are used whole, with a warning; lines over 4,096 bytes, and lines
/// that are not UTF-8, are ignored with a warning.
///
/// # Errors
/// When reading fails.
pub(super) fn each_line(
    mut from: impl BufRead,
    file: &Arc<Path>,
    warnings: &mut Warnings,
    mut each: impl FnMut(u32, &str, &mut Warnings),
) -> io::Result<()> {
    let mut line = Vec::new();
    for number in 1..=LINES_MAX {
        line.clear();
        let most = LINE_MAX as u64 + 1;
        if from.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let whole = line.last() == Some(&b'\n');
        if !whole && line.len() > LINE_MAX {
            skip_line(&mut from)?;
            let what = format!("the line has more than {LINE_MAX} bytes and is ignored");
            warnings.push(
                file,
                number,
                what,
                format!("shorten it to {LINE} characters at most"),
            );
            continue;
        }
        let Ok(text) = std::str::from_utf8(&line) else {
            let what = "the line is not UTF-8 text and is ignored".to_owned();
            warnings.push(file, number, what, "save the file as UTF-8");
            continue;
        };
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() > LINE {
            let what = format!("the line has {} bytes, of which ibacm reads {LINE}", text.len());
            let remedy = "it is used whole here; shorten it if ibacm reads this file too";
            warnings.push(file, number, what, remedy);
        }
        if !text.starts_with('#') && !text.trim().is_empty() {
            each(number, text, warnings);
        }
    }
    let what = format!("the file has more than {LINES_MAX} lines");
    warnings.push(file, 0, what, "the rest is ignored; split the file");
    Ok(())
}

/// Skips the rest of a line.
fn skip_line(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        let (used, ends) = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (bytes.len(), bytes.is_empty()),
        };
        from.consume(used);
        if ends {
            return Ok(());
        }
    }
}

/// Reads a configuration file; returns `None` if it does not exist.
///
/// # Errors
/// When it exists but cannot be read, is not a regular file, or has more than 16 MiB.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match open_plain(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other("larger than 16 MiB"));
    }
    Ok(Some(bytes))
}

/// Opens a regular file, and nothing else; does not block on a pipe without a writer.
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// Returns the path of a file, to be shared by its warnings.
pub(super) fn named(file: &Path) -> Arc<Path> {
    PathBuf::from(file).into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pipe_is_no_file_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let error = read_file(&pipe).unwrap_err().to_string();
        assert_eq!(error, "not a regular file");
        assert!(read_file(&folder.path().join("none")).unwrap().is_none());
    }

    use super::*;

    fn lines(text: &[u8]) -> (Vec<(u32, String)>, Warnings) {
        let (mut found, mut warnings) = (Vec::new(), Warnings::default());
        each_line(text, &named(Path::new("f")), &mut warnings, |number, line, _| {
            found.push((number, line.to_owned()));
        })
        .unwrap();
        (found, warnings)
    }

    #[test]
    fn comments_and_empty_lines_are_counted_and_not_returned() {
        let (found, warnings) = lines(b"# one\n\n two\r\n#three\nfour");
        assert_eq!(found, [(3, " two".to_owned()), (5, "four".to_owned())]);
        assert!(warnings.is_empty());
    }

    #[test]
    fn what_is_too_long_or_no_text_is_said_with_its_line() {
        let long = "a".repeat(120);
        let endless = "b".repeat(LINE_MAX + 10);
        let text = [long.as_bytes(), b"\n", endless.as_bytes(), b"\n\xff\nlast\n"].concat();
        let (found, warnings) = lines(&text);
        assert_eq!(found, [(1, long), (4, "last".to_owned())]);
        let numbers: Vec<u32> = warnings.iter().map(|warning| warning.line).collect();
        assert_eq!(numbers, [1, 2, 3]);
        let first = warnings.iter().next().unwrap().to_string();
        assert!(first.starts_with("f:1: the line has 120 bytes"), "{first}");
        let (found, warnings) = lines(&b"c".repeat(LINE));
        assert_eq!(
            (found.len(), warnings.is_empty()),
            (1, true),
            "just as long as it may be"
        );
    }

    #[test]
    fn warnings_have_a_bound_and_the_rest_is_counted() {
        let (_, warnings) = lines(&b"\xff\n".repeat(WARNINGS_MAX + 7));
        assert_eq!((warnings.iter().count(), warnings.more()), (WARNINGS_MAX, 7));
    }

    #[test]
    fn what_is_shown_moves_no_cursor() {
        assert_eq!(shown("a\u{1b}[2J"), "\"a\\u{1b}[2J\"");
        assert!(shown(&"x".repeat(1000)).len() < 60);
    }

    #[test]
    fn files_that_are_not_there_are_none_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_file(&folder.path().join("no")).unwrap().is_none());
        assert!(read_file(folder.path()).is_err());
        std::fs::write(folder.path().join("yes"), "a b\n").unwrap();
        assert_eq!(read_file(&folder.path().join("yes")).unwrap().unwrap(), b"a b\n");
    }
}
