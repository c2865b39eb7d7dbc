//! What reaches a terminal of names and words that others chose: file names, answers of remote agents.

use std::fmt::Write as _;

/// Longest text of others that is printed on one line (1 KiB).
const LINE_LEN_MAX: usize = 1024;

/// Whether a character would act on the terminal instead of showing: controls, and marks that turn the direction of text.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text as one line of at most 1 KiB, with what would act on the terminal written as `\n` or `\u{1b}`; without blanks at its end.
pub fn line(text: &str) -> String {
    name(text.trim_end())
}

/// As [`line()`], of a name of a file: blanks at its end are part of it.
pub fn name(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LINE_LEN_MAX));
    for letter in text.chars() {
        if out.len() > LINE_LEN_MAX {
            out.push_str(" ...");
            break;
        }
        if acts(letter) {
            let _ = write!(out, "{}", letter.escape_default());
        } else {
            out.push(letter);
        }
    }
    out
}

/// As [`line()`], each line of a text by itself: for words of this program that have several.
pub fn lines(text: &str) -> String {
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing of others moves the cursor, begins a line or fills the screen; other letters stay as they are.
    #[test]
    fn texts_of_others_stay_text() {
        assert_eq!(
            line("x\x1b]0;pwned\x07\x1b[2Jdone: 20 GB\n"),
            "x\\u{1b}]0;pwned\\u{7}\\u{1b}[2Jdone: 20 GB"
        );
        assert_eq!(
            line("a\nb\tc\u{9b}d\u{202e}e"),
            "a\\nb\\tc\\u{9b}d\\u{202e}e"
        );
        assert_eq!(line("Grüße \"日本\""), "Grüße \"日本\"");
        let long = line(&"d".repeat(9000));
        assert!(
            long.len() <= LINE_LEN_MAX + 8 && long.ends_with(" ..."),
            "{}",
            long.len()
        );
        assert_eq!(lines("a\x1b\nb"), "a\\u{1b}\nb");
        for (given, shown) in [
            ("t/\t", "t/\\t"),
            ("t/\r", "t/\\r"),
            ("t/trail ", "t/trail "),
        ] {
            assert_eq!(name(given), shown);
        }
    }
}
