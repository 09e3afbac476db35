//! What lies in the tree: entries at the top, words for unfinished work, tests that are ignored without a
//! reason.

use std::collections::BTreeSet;

use super::Finding;
use super::floors;
use crate::lexer::{Kind, Token};

/// What is allowed at the top beside the folders of the table of floors.
const TOP: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitattributes",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "deny.toml",
    "docs",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

/// Words that mark unfinished work, in comments and in text.
const WORDS: &[&str] = &["FIXME", "XXX"];

/// Macros that mark unfinished work.
const MACROS: &[&str] = &["todo", "unimplemented"];

/// Entries at the top that belong to no crate and are not on the list.
pub(super) fn top_level(files: &[String]) -> Vec<Finding> {
    let tops: BTreeSet<&str> = files.iter().filter_map(|file| file.split('/').next()).collect();
    tops.into_iter()
        .filter(|top| !TOP.contains(top) && !floors::is_top_folder(top))
        .map(|top| Finding {
            file: top.to_owned(),
            line: 1,
            message: "this does not belong at the top; move it into the folder it is part of, or add it to the list \
                      in tools/xtask/src/arrows/tidy.rs"
                .to_owned(),
        })
        .collect()
}

/// Words for unfinished work in files that are not Rust.
pub(super) fn words(file: &str, text: &str) -> Vec<Finding> {
    if file.ends_with(".rs") || file == "Cargo.lock" {
        return Vec::new();
    }
    let lines = text.lines().enumerate();
    lines
        .filter_map(|(at, line)| Some(unfinished(file, at + 1, word_in(line)?)))
        .collect()
}

/// Words for unfinished work in code and comments, and ignored tests without a reason.
pub(super) fn rust(file: &str, tokens: &[Token<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for token in tokens.iter().filter(|token| token.kind == Kind::Comment) {
        let lines = token.text.lines().enumerate();
        findings
            .extend(lines.filter_map(|(at, line)| Some(unfinished(file, token.line + at, word_in(line)?))));
    }
    let code: Vec<&Token<'_>> = tokens
        .iter()
        .filter(|token| token.kind != Kind::Comment)
        .collect();
    for window in code.windows(4) {
        let [first, second, third, fourth] = window else {
            continue;
        };
        if MACROS.iter().any(|name| first.is(name))
            && second.is("!")
            && ["(", "[", "{"].iter().any(|open| third.is(open))
        {
            findings.push(unfinished(file, first.line, first.text));
        }
        if first.is("#") && second.is("[") && third.is("ignore") && fourth.is("]") {
            let message =
                "this test is ignored without a reason; write #[ignore = \"the reason\"]".to_owned();
            findings.push(Finding {
                file: file.to_owned(),
                line: first.line,
                message,
            });
        }
    }
    findings
}

fn unfinished(file: &str, line: usize, word: &str) -> Finding {
    let message = format!("{word} marks unfinished work; finish it or leave it out");
    Finding {
        file: file.to_owned(),
        line,
        message,
    }
}

/// The first of the words that is a whole word of `line`.
fn word_in(line: &str) -> Option<&'static str> {
    let mut words = line.split(|character: char| character != '_' && !character.is_alphanumeric());
    words.find_map(|word| WORDS.iter().find(|unfinished| **unfinished == word).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::tokens;

    const NONE: [usize; 0] = [];

    #[test]
    fn only_known_entries_stand_at_the_top() {
        let files = [
            "Cargo.toml",
            "ring/src/lib.rs",
            "drivers/shm/x",
            ".ci/run",
            "notes.txt",
            "misc/a",
            "misc/b",
        ];
        let findings = top_level(&files.map(str::to_owned));
        let found: Vec<&str> = findings.iter().map(|finding| finding.file.as_str()).collect();
        assert_eq!(found, ["misc", "notes.txt"]);
    }

    #[test]
    fn words_are_found_in_text_as_whole_words() {
        let found = |text: &str| {
            words("README.md", text)
                .iter()
                .map(|finding| finding.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("fine\nFIXME: later\n"), [2]);
        assert_eq!(found("a XXX b"), [1]);
        assert_eq!(found("mktemp nameXXXXXX, XXXL"), NONE);
    }

    #[test]
    fn in_rust_comments_and_macros_count_and_strings_do_not() {
        let found = |text: &str| {
            rust("a.rs", &tokens(text))
                .iter()
                .map(|finding| finding.line)
                .collect::<Vec<_>>()
        };
        assert_eq!(found("fn f() {\n    todo!()\n}"), [2]);
        assert_eq!(found("unimplemented! { }"), [1]);
        assert_eq!(found("/* a\n FIXME */"), [2]);
        assert_eq!(found("// XXX"), [1]);
        assert_eq!(
            found("let s = \"FIXME todo!()\"; let todo = 1; if todo != 2 {}"),
            NONE
        );
        assert_eq!(found("#[test]\n#[ignore]\nfn f() {}"), [2]);
        assert_eq!(found("#[ignore = \"needs a NIC\"]\nfn f() {}"), NONE);
    }
}
