//! Text to numbered lines and fields; and what is to be said of those that cannot be used.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Characters of a line that the original reads; it takes the rest for a line of its own.
pub(super) const LINE: usize = 119;
/// Bytes of a line that are read here; a longer one is no line.
const LINE_MAX: usize = 4096;
/// Lines of a file that are read: more than any cluster of today has paths.
const LINES_MAX: u32 = 1 << 28;
/// Bytes of a configuration file that are read.
const FILE_MAX: u64 = 16 << 20;
/// Warnings that are kept; the others are counted.
pub const WARNINGS_MAX: usize = 100;
/// Characters of a file that are shown in a warning.
const SHOWN: usize = 40;

/// Something in a file that could not be used as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: Arc<Path>,
    /// The line, from 1; 0 where it is about the whole file.
    pub line: u32,
    /// What is the matter.
    pub what: String,
    /// What it would take.
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

/// The warnings about some files: the first [`WARNINGS_MAX`], and how many more there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    kept: Vec<Warning>,
    more: u64,
}

impl Warnings {
    /// Those that were kept, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Warning> {
        self.kept.iter()
    }

    /// How many there were beyond those.
    #[must_use]
    pub fn more(&self) -> u64 {
        self.more
    }

    /// Whether all is well.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps one, or counts it.
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

/// A text from a file as it can be shown: its beginning, with nothing in it that moves a terminal's cursor.
pub(super) fn shown(text: &str) -> String {
    let begin: String = text.chars().take(SHOWN).collect();
    let more = if begin.len() < text.len() { "…" } else { "" };
    format!("\"{}{more}\"", begin.escape_debug())
}

/// Calls `each` with the number and the text of each line that is no comment and not empty.
///
/// Lines that are too long for the original are taken whole, with a warning; those that are longer than 4,096 bytes, and
/// those that are not UTF-8, are left out with one.
///
/// # Errors
/// When it cannot be read on.
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
            let what = format!("the line has more than {LINE_MAX} bytes and is left out");
            warnings.push(
                file,
                number,
                what,
                format!("shorten it to {LINE} characters at most"),
            );
            continue;
        }
        let Ok(text) = std::str::from_utf8(&line) else {
            let what = "the line is not text (UTF-8) and is left out".to_owned();
            warnings.push(file, number, what, "write it as text");
            continue;
        };
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() > LINE {
            let what = format!("the line has {} bytes, of which ibacm reads {LINE}", text.len());
            let remedy = "it is taken whole here; shorten it where ibacm reads this file, too";
            warnings.push(file, number, what, remedy);
        }
        if !text.starts_with('#') && !text.trim().is_empty() {
            each(number, text, warnings);
        }
    }
    let what = format!("the file has more than {LINES_MAX} lines");
    warnings.push(file, 0, what, "what is behind them is not read; split it");
    Ok(())
}

/// Reads up to the end of a line, and keeps nothing of it.
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

/// The text of a configuration file as bytes; nothing where there is no such file.
///
/// # Errors
/// When it is there and cannot be read, is no plain file, or has more than 16 MiB.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match open_plain(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other("it has more than 16 MiB"));
    }
    Ok(Some(bytes))
}

/// Opens a plain file, and nothing else. It does not wait: to open a pipe that nobody writes to would take for ever.
pub(super) fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no plain file"))
    }
}

/// A name for a file in warnings.
pub(super) fn named(file: &Path) -> Arc<Path> {
    PathBuf::from(file).into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_pipe_is_no_file_and_nobody_waits_for_it() {
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
        assert_eq!(error, "it is no plain file");
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
    fn comments_and_empty_lines_are_counted_and_not_told() {
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
