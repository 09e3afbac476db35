//! What the programs that are counted have in common: their words, and the messages that pass.

use std::env;
use std::io::Write as _;
use std::process::ExitCode;

use doorbell_fabric::message::Message;

use crate::Pair;

/// Runs a program with its words; an error is its last line.
pub fn program(name: &str, run: impl FnOnce(&[String]) -> Result<(), String>) -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // Without a reader there is nowhere to report it.
            let _ = writeln!(std::io::stderr(), "{name}: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Reads a word that is a number.
///
/// # Errors
/// If it is none.
pub fn number(word: &String) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{word}: expected a number"))
}

impl<R: Message> Pair<R> {
    /// Delivers this many messages: `pingpong`, each when the one before has come, or `posted`, without
    /// waiting.
    ///
    /// # Errors
    /// For another way; or when PML or BTL refuses what it must not refuse.
    pub fn deliver(&mut self, way: &str, messages: u64) -> Result<(), String> {
        let passed = match way {
            "pingpong" => (0..messages / 2).try_for_each(|_| self.there_and_back()),
            "posted" => (0..messages).try_for_each(|_| self.exchange()),
            _ => return Err(format!("{way}: expected pingpong or posted")),
        };
        passed.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass_either_way_and_no_other() {
        let mut pair = Pair::over(&[100]).unwrap();
        let frames = |pair: &mut Pair, way: &str| -> Result<u64, String> {
            let before = pair.frames()[0];
            pair.deliver(way, 10)?;
            Ok(pair.frames()[0] - before)
        };
        assert!(frames(&mut pair, "pingpong").unwrap() >= 10);
        assert!(frames(&mut pair, "posted").unwrap() >= 10);
        let refused = frames(&mut pair, "other").unwrap_err();
        assert_eq!(refused, "other: expected pingpong or posted");
        assert_eq!(number(&"7".to_owned()), Ok(7));
        assert!(number(&"seven".to_owned()).is_err());
    }
}
