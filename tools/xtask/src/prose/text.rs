//! Finds what is written for people in a source file or a document, and splits it into words.
//!
//! In Rust these are comments, documentation and the string literals of several words (errors, help, what is
//! printed); in Markdown, everything but code. Code spans, code blocks, addresses and quotations are left
//! out: they are not ours to reword.

use crate::lexer::{Kind, Token};

/// The longest line of a Rust file that has a comment in it, in characters.
pub(super) const COLUMNS: usize = 110;

/// The fewest words that a documentation comment has.
const DOC_WORDS: usize = 3;

/// The fewest words that make a string literal a text; what has fewer may be a name or a key.
const LITERAL_WORDS: usize = 3;

/// A text, or a fault in its form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Words in their order; in those of one piece, sentences and phrases go on from line to line.
    Words(Vec<Word>),
    /// A documentation comment that is shorter than a sentence.
    ShortDoc {
        /// Where it begins.
        line: usize,
        /// What it consists of.
        text: String,
    },
    /// A line with a comment that is too long.
    LongLine {
        /// The line.
        line: usize,
        /// Its length in characters.
        columns: usize,
    },
}

/// One word of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// The word in small letters, without the ending of a possessive.
    pub(super) text: String,
    /// Its line in the file, from 1.
    pub(super) line: usize,
    /// Whether it begins a sentence with a capital letter.
    pub(super) is_first: bool,
    /// Whether its sentence ends with a question mark.
    pub(super) is_in_question: bool,
}

/// Returns the texts of a Rust file.
pub(super) fn rust(source: &str, tokens: &[Token<'_>]) -> Vec<Piece> {
    let mut pieces = long_lines(source, tokens);
    let mut block: Option<Block> = None;
    for token in tokens {
        let comment = (token.kind == Kind::Comment).then(|| Comment::new(token.text));
        let goes_on = |block: &Block| {
            comment.as_ref().is_some_and(|comment| {
                comment.marker == block.marker && comment.is_line && token.line == block.next_line
            })
        };
        if let Some(ended) = block.take_if(|block| !goes_on(block)) {
            pieces.extend(ended.pieces());
        }
        match (comment, &mut block) {
            (Some(comment), Some(block)) => block.push(&comment),
            (Some(comment), none) => *none = Some(Block::new(token, &comment)),
            (None, _) if token.kind == Kind::Literal => pieces.extend(literal(token)),
            (None, _) => {}
        }
    }
    pieces.extend(block.into_iter().flat_map(Block::pieces));
    pieces
}

/// Returns the text of a Markdown document.
pub(super) fn markdown(source: &str) -> Vec<Piece> {
    vec![Piece::Words(words(1, &without_code_blocks(source, true)))]
}

/// Returns the words of `text`, whose first line is `line` of its file, but those in code, in addresses and
/// in quotations.
pub(super) fn words(line: usize, text: &str) -> Vec<Word> {
    let text = masked(text);
    let mut words: Vec<Word> = Vec::new();
    let (mut line, mut begins, mut sentence) = (line, true, 0);
    let mut rest = text.as_str();
    while let Some(next) = rest.chars().next() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if length > 0 {
            let word = &rest[..length];
            words.push(Word {
                text: word.strip_suffix("'s").unwrap_or(word).to_lowercase(),
                line,
                is_first: begins && next.is_uppercase(),
                is_in_question: false,
            });
            begins = false;
            rest = &rest[length..];
            continue;
        }
        rest = &rest[next.len_utf8()..];
        let stops = rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || ")*_".contains(c));
        match next {
            '\n' => {
                line += 1;
                // A new paragraph, an entry of a list or a row of a table begins a sentence.
                begins |= rest
                    .trim_start_matches(' ')
                    .starts_with(['\n', '*', '-', '|', '#']);
            }
            '|' | MASK => begins = next == '|',
            '.' | '!' | '?' | ':' | ';' if stops => {
                if next == '?' {
                    words[sentence..]
                        .iter_mut()
                        .for_each(|word| word.is_in_question = true);
                }
                begins |= matches!(next, '.' | '!' | '?' | ':');
                sentence = words.len();
            }
            _ => {}
        }
    }
    words
}

fn is_word(character: char) -> bool {
    character == '\'' || character == '_' || character.is_alphanumeric()
}

/// What stands in the place of what is left out. It is no word, and no sentence begins after it.
const MASK: char = '\u{fffc}';

/// Returns the text with each code span, quotation, placeholder and address replaced by masks, and its lines
/// kept.
fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let hidden = hidden(rest, masked.chars().next_back()).filter(|length| *length > 0);
        let length = hidden.unwrap_or(next.len_utf8());
        let (piece, after) = rest.split_at(length);
        if hidden.is_some() {
            masked.extend(piece.chars().map(|c| if c == '\n' { c } else { MASK }));
        } else {
            masked.push_str(piece);
        }
        rest = after;
    }
    masked
}

/// Returns the length of what begins here and is left out.
fn hidden(rest: &str, before: Option<char>) -> Option<usize> {
    let paragraph = &rest[..rest.find("\n\n").unwrap_or(rest.len())];
    let closed = |open: &str, close: &str| {
        let inner = paragraph.strip_prefix(open)?;
        Some(open.len() + inner.find(close)? + close.len())
    };
    let ticks = rest.len() - rest.trim_start_matches('`').len();
    if ticks > 0 {
        return closed(&rest[..ticks], &rest[..ticks]);
    }
    let begins = !before.is_some_and(is_word);
    match rest.as_bytes()[0] {
        b'"' if begins => closed("\"", "\""),
        b'{' => closed("{", "}"),
        b'<' => closed("<", ">").filter(|length| !rest[..*length].contains(char::is_whitespace)),
        // Of a link, the text counts and the address does not.
        b'(' if before == Some(']') => closed("(", ")"),
        b'h' if begins && (rest.starts_with("https://") || rest.starts_with("http://")) => Some(
            rest.find(|c: char| c.is_whitespace() || ")>".contains(c))
                .unwrap_or(rest.len()),
        ),
        _ => closed("“", "”"),
    }
}

/// Returns the text with its fenced code blocks empty, and in a document (`indented`) those that are indented
/// by four columns.
fn without_code_blocks(text: &str, indented: bool) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut fence: Option<&str> = None;
    let (mut after_blank, mut in_list) = (true, false);
    for line in text.lines() {
        let start = line.trim_start();
        let ticks = &start[..start.len() - start.trim_start_matches(['`', '~']).len()];
        let is_fence = ticks.len() >= 3;
        let is_indented = line.starts_with("    ") && !in_list && after_blank;
        match fence {
            Some(open) if is_fence && start.trim_end() == open => fence = None,
            Some(_) => {}
            None if is_fence => fence = Some(ticks),
            None if indented && is_indented => {}
            None => kept.push_str(line),
        }
        if !(indented && is_indented) {
            after_blank = start.is_empty();
        }
        if !start.is_empty() {
            let is_entry =
                start.starts_with(['*', '-', '+']) || start.starts_with(|c: char| c.is_ascii_digit());
            in_list = is_entry && !is_indented || in_list && line.starts_with(' ');
        }
        kept.push('\n');
    }
    kept
}

/// Returns the lines with a comment that are too long; an address or a row of a table cannot be wrapped.
fn long_lines(source: &str, tokens: &[Token<'_>]) -> Vec<Piece> {
    let lines: Vec<&str> = source.lines().collect();
    let comments = tokens.iter().filter(|token| token.kind == Kind::Comment);
    let numbers = comments.flat_map(|token| token.line..=token.last_line());
    let long = numbers.filter_map(|number| {
        let line = lines.get(number - 1)?;
        let columns = line.chars().count();
        let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        let may = text.starts_with('|') || line.contains("://");
        (columns > COLUMNS && !may).then_some(Piece::LongLine {
            line: number,
            columns,
        })
    });
    long.collect()
}

/// Returns the text of a string literal of several words.
fn literal(token: &Token<'_>) -> Option<Piece> {
    let quote = token.text.find('"')?;
    let prefix = &token.text[..quote];
    let inner = token.text[quote + 1..].trim_end_matches('#');
    let inner = inner.strip_suffix('"').unwrap_or(inner);
    let text = if prefix.contains('r') {
        inner.to_owned()
    } else {
        unescaped(inner)
    };
    let is_text = prefix.chars().all(|c| c.is_ascii_alphabetic() || c == '#')
        && text
            .split_whitespace()
            .filter(|word| word.contains(char::is_alphabetic))
            .count()
            >= LITERAL_WORDS;
    is_text.then(|| Piece::Words(words(token.line, &text)))
}

/// Returns the text without escapes, as far as words need it: each becomes a character that is in none.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('\n') => plain.push('\n'),
                // Ends a sentence or a paragraph of what is printed; the source's line does not end here.
                Some('n') => plain.push('|'),
                Some('"') => plain.push('"'),
                _ => plain.push(' '),
            },
            other => plain.push(other),
        }
    }
    plain
}

/// A comment without its marker.
struct Comment<'a> {
    /// `//`, `///`, `//!`, `/*` and so on.
    marker: &'static str,
    /// Whether it ends with its line.
    is_line: bool,
    /// What it consists of.
    text: &'a str,
}

impl<'a> Comment<'a> {
    fn new(token: &'a str) -> Self {
        let is_line = token.starts_with("//");
        // Four slashes are no documentation.
        let markers = if token.starts_with("////") || token.starts_with("/***") {
            &["//", "/*"][..]
        } else {
            &["///", "//!", "//", "/**", "/*!", "/*"]
        };
        let marker = markers.iter().find(|marker| token.starts_with(**marker));
        let marker = marker.copied().unwrap_or("");
        let text = token[marker.len()..].trim_start_matches('/');
        let text = if is_line {
            text
        } else {
            text.trim_end_matches("*/")
        };
        Self {
            marker,
            is_line,
            text,
        }
    }
}

/// Comments of one kind on lines that follow each other.
struct Block {
    marker: &'static str,
    line: usize,
    next_line: usize,
    text: String,
}

impl Block {
    fn new(token: &Token<'_>, comment: &Comment<'_>) -> Self {
        Self {
            marker: comment.marker,
            line: token.line,
            next_line: token.last_line() + 1,
            text: comment.text.to_owned(),
        }
    }

    fn push(&mut self, comment: &Comment<'_>) {
        self.next_line += 1;
        self.text.push('\n');
        self.text.push_str(comment.text);
    }

    fn pieces(self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let is_doc = matches!(self.marker, "///" | "/**" | "//!" | "/*!");
        let count = self
            .text
            .split_whitespace()
            .filter(|word| word.contains(char::is_alphanumeric))
            .count();
        if is_doc && (1..DOC_WORDS).contains(&count) {
            pieces.push(Piece::ShortDoc {
                line: self.line,
                text: self.text.trim().to_owned(),
            });
        }
        pieces.push(Piece::Words(words(
            self.line,
            &without_code_blocks(&self.text, false),
        )));
        pieces
    }
}
