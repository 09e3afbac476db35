//! Texts of others in a line of ours.

use std::fmt::Write as _;

/// The most characters of a text that are shown.
const SHOWN: usize = 64;

/// Returns the beginning of a text that a user or another process has given, fit for a line of a log: at most
/// 64 characters of it, and characters that would end the line, move a terminal's cursor or change the
/// direction of writing as escapes. A text that goes on ends with `…`.
///
/// ```
/// use doorbell_fabric::shown::shown;
///
/// assert_eq!(shown("udp:eth0"), "udp:eth0");
/// assert_eq!(shown("a\nb"), "a\\nb");
/// assert_eq!(shown(&"x".repeat(100)), format!("{}…", "x".repeat(64)));
/// ```
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text.chars();
    for letter in rest.by_ref().take(SHOWN) {
        let is_odd = letter.is_control()
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_odd {
            // Writing to a text cannot fail.
            let _ = write!(shown, "{}", letter.escape_debug());
        } else {
            shown.push(letter);
        }
    }
    if rest.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_short_line() {
        for text in ["", "shm", "µs, `x`", "a\u{1b}[2J\r\n\u{202e}b"] {
            assert!(!shown(text).contains(char::is_control), "{text:?}");
        }
        assert_eq!(shown("µs, `x`"), "µs, `x`");
        assert_eq!(shown("\u{202e}\t"), "\\u{202e}\\t");
        let exact = "y".repeat(SHOWN);
        assert_eq!(shown(&exact), exact);
        assert_eq!(shown(&format!("{exact}\n")).chars().count(), SHOWN + 1);
    }
}
