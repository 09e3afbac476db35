//! Just enough of Rust's lexical rules to distinguish code from comments and literals.
//!
//! Source: The Rust Reference, chapter "Lexical structure". Literal values, numbers and most punctuation do
//! not matter here; what matters is where each comment, string, character and lifetime ends.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword; raw ones keep their `r#`.
    Word,
    /// A line or block comment, documentation included.
    Comment,
    /// A string, character or number.
    Literal,
    /// `'a`, or a loop label.
    Lifetime,
    /// One other character.
    Punctuation,
}

/// A piece of source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// What it is.
    pub(crate) kind: Kind,
    /// The text of the token.
    pub(crate) text: &'a str,
    /// The line of its first character, from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Returns the line of its last character.
    pub(crate) fn last_line(&self) -> usize {
        self.line + self.text.matches('\n').count()
    }

    /// Whether it is this word or this character, in code.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Punctuation) && self.text == text
    }
}

/// Splits a source file into tokens. Never fails: what makes no sense becomes punctuation.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else {
            one(rest, first)
        };
        let (text, after) = rest.split_at(length);
        tokens.extend(kind.map(|kind| Token { kind, text, line }));
        line += text.matches('\n').count();
        rest = after;
    }
    tokens
}

/// Returns the kind and length of the token that `rest` starts with.
fn one(rest: &str, first: char) -> (Option<Kind>, usize) {
    let (kind, length) = if rest.starts_with("//") {
        (Kind::Comment, rest.find('\n').unwrap_or(rest.len()))
    } else if rest.starts_with("/*") {
        (Kind::Comment, block_comment(rest))
    } else if let Some(length) = string(rest) {
        (Kind::Literal, length)
    } else if let Some(inner) = rest.strip_prefix("b'") {
        (Kind::Literal, 2 + quoted(inner, '\''))
    } else if let Some(inner) = rest.strip_prefix('\'') {
        let (kind, length) = character_or_lifetime(inner);
        (kind, 1 + length)
    } else if first.is_ascii_digit() {
        (Kind::Literal, word(rest))
    } else if rest.starts_with("r#") && rest[2..].starts_with(is_word) {
        (Kind::Word, 2 + word(&rest[2..]))
    } else if is_word(first) {
        (Kind::Word, word(rest))
    } else {
        (Kind::Punctuation, first.len_utf8())
    };
    (Some(kind), length)
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

fn word(text: &str) -> usize {
    text.find(|character| !is_word(character)).unwrap_or(text.len())
}

/// Returns the length of a block comment; block comments nest.
fn block_comment(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length of the string literal that `text` starts with, of any of the kinds "", r"", b"", br"",
/// c"", cr"".
fn string(text: &str) -> Option<usize> {
    let prefix = word(text);
    if !matches!(&text[..prefix], "" | "b" | "c" | "r" | "br" | "cr") {
        return None;
    }
    let after = &text[prefix..];
    if !text[..prefix].ends_with('r') {
        let inner = after.strip_prefix('"')?;
        return Some(prefix + 1 + quoted(inner, '"'));
    }
    let hashes = after.find(|character| character != '#')?;
    let inner = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &after[..hashes]);
    let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
    Some(prefix + hashes + 1 + length)
}

/// Returns the length up to and with the closing `quote`, which a backslash hides.
fn quoted(inner: &str, quote: char) -> usize {
    let mut hidden = false;
    for (at, character) in inner.char_indices() {
        if hidden {
            hidden = false;
        } else if character == '\\' {
            hidden = true;
        } else if character == quote {
            return at + character.len_utf8();
        }
    }
    inner.len()
}

/// Decides what follows a `'`: a character literal if it is escaped or closed after one character, a lifetime
/// otherwise.
fn character_or_lifetime(inner: &str) -> (Kind, usize) {
    let mut characters = inner.chars();
    match (characters.next(), characters.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => (Kind::Literal, quoted(inner, '\'')),
        _ => (Kind::Lifetime, word(inner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source)
            .iter()
            .filter(|token| token.kind == Kind::Word)
            .map(|token| token.text)
            .collect()
    }

    #[test]
    fn comments_and_literals_hide_their_words() {
        for hidden in [
            "// unsafe\n",
            "/// unsafe",
            "/* unsafe */",
            "/* /* */ unsafe */",
            r#""unsafe""#,
            r#""\" unsafe \\""#,
            r####"r##"unsafe "# unsafe"##"####,
            r#"b"unsafe""#,
            r##"br#"unsafe"#"##,
            r#"c"unsafe""#,
            r#"cr"unsafe""#,
            "\"unsafe",
        ] {
            assert_eq!(words(&format!("a {hidden}")), ["a"], "{hidden}");
        }
    }

    #[test]
    fn code_after_them_is_seen() {
        for (source, expected) in [
            ("// x\nunsafe", &["unsafe"][..]),
            ("/* /* */ */ unsafe", &["unsafe"]),
            (r#""\\" unsafe"#, &["unsafe"]),
            (r##"r#"" "# unsafe"##, &["unsafe"]),
            (r"'\'' unsafe '", &["unsafe"]),
            (r"'\u{27}' unsafe", &["unsafe"]),
            ("'\"' unsafe '\"'", &["unsafe"]),
            ("b'\"' unsafe b'\\''", &["unsafe"]),
            ("'é' unsafe", &["unsafe"]),
            (
                "fn f<'a>(x: &'a u8) { unsafe {} }",
                &["fn", "f", "x", "u8", "unsafe"],
            ),
            ("'outer: loop {}", &["loop"]),
            ("'static unsafe", &["unsafe"]),
            ("r#unsafe", &["r#unsafe"]),
            ("br(unsafe)", &["br", "unsafe"]),
            ("1usize..2 unsafe", &["unsafe"]),
            ("unsafe_code not_unsafe", &["unsafe_code", "not_unsafe"]),
        ] {
            assert_eq!(words(source), expected, "{source}");
        }
    }

    #[test]
    fn lines_are_counted_through_literals_and_comments() {
        let source = "a \"x\ny\" b /* \n\n */ c\nd";
        let lines: Vec<(&str, usize)> = tokens(source)
            .iter()
            .filter(|token| token.kind == Kind::Word)
            .map(|token| (token.text, token.line))
            .collect();
        assert_eq!(lines, [("a", 1), ("b", 2), ("c", 4), ("d", 5)]);
        let comment = tokens(source)[3];
        assert_eq!(
            (comment.kind, comment.line, comment.last_line()),
            (Kind::Comment, 2, 4)
        );
    }

    #[test]
    fn any_prefix_of_a_source_is_read_without_panic() {
        let source = include_str!("lexer.rs");
        for end in (0..source.len())
            .filter(|end| source.is_char_boundary(*end))
            .step_by(37)
        {
            let read: usize = tokens(&source[..end]).iter().map(|token| token.text.len()).sum();
            assert!(read <= end);
        }
    }
}
