//! Wraps words into lines that fit a terminal.

use textwrap::core::display_width;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Broken between words only: a word is a file, a number or a command, and is shown whole, however long it
/// is.
fn options<'a>(width: usize) -> Options<'a> {
    Options::new(width)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit)
        .break_words(false)
}

/// The words of a text in lines of at most `width` columns.
#[must_use]
pub fn lines(words: &str, width: usize) -> Vec<String> {
    let lines = textwrap::wrap(words, options(width));
    lines.into_iter().map(String::from).collect()
}

/// Adds `words` and a line's end to `text`, whose last line is `column` columns wide already; further lines
/// are indented by `indent` columns.
pub fn add(text: &mut String, words: &str, column: usize, indent: usize, width: usize) {
    let (before, below) = (" ".repeat(column), " ".repeat(indent));
    let options = options(width).initial_indent(&before).subsequent_indent(&below);
    let filled = textwrap::fill(words, options);
    // What precedes the first word is there already. (Of no words at all nothing is left, not even
    // that.)
    text.push_str(filled.get(column..).unwrap_or_default());
    text.push('\n');
}

/// Adds a label, in `indent` columns, and words that others have written, wrapped beside it.
pub fn paragraph(text: &mut String, label: &str, words: &str, indent: usize, width: usize) {
    text.push_str(label);
    text.push_str(&" ".repeat(indent.saturating_sub(display_width(label))));
    add(
        text,
        &super::printable(words),
        indent.max(display_width(label)),
        indent,
        width,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_none_is_lost() {
        let mut text = "head: ".to_owned();
        add(&mut text, "one two three four averyveryverylongword x", 6, 2, 14);
        assert_eq!(
            text,
            "head: one two\n  three four\n  averyveryverylongword\n  x\n"
        );
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("", 7), [""]);
    }

    #[test]
    fn a_word_that_is_too_long_is_shown_whole() {
        assert_eq!(lines("--bind=192.0.2.1 x-y", 5), ["--bind=192.0.2.1", "x-y"]);
        let mut text = "label ".to_owned();
        add(&mut text, "averyveryverylongword", 6, 6, 10);
        assert_eq!(text, "label averyveryverylongword\n");
    }

    #[test]
    fn no_words_and_no_limit_are_right_too() {
        let mut text = String::new();
        add(&mut text, "", 0, 4, 10);
        add(&mut text, "", 6, 4, 10);
        add(&mut text, "one two", 0, 4, usize::MAX);
        assert_eq!(text, "\n\none two\n");
        let mut text = String::new();
        paragraph(&mut text, "µ", "≥ 2 of\u{1b}[2J", 3, 80);
        assert_eq!(text, "µ  ≥ 2 of\\u{1b}[2J\n");
    }
}
