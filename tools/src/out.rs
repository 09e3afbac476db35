//! Writing for people and pipes: nothing here panics because a reader went away.

use std::io::{self, IsTerminal, Write};

use crate::error::ToolError;

/// Writes a text to the standard output.
pub(crate) fn print(text: &str) -> Result<(), ToolError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(ToolError::Output)
}

/// Says one line on the standard error, where a failure to do so has nobody to be told to.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The width for tables: the terminal's, `COLUMNS`, or wide when the output is not read by a person.
pub(crate) fn width() -> usize {
    const UNKNOWN: usize = 120;
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let seen = || {
        let out = io::stdout();
        let size = out
            .is_terminal()
            .then(|| rustix::termios::tcgetwinsize(&out).ok())
            .flatten()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    asked.or_else(seen).unwrap_or(UNKNOWN).max(40)
}
