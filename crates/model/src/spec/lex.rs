//! Cuts a line of the specification file into words.

use std::ops::Range as Span;

/// A word of a line; quotes are taken off, and hide spaces and `#`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// Its text.
    pub text: String,
    /// Where it is: bytes of the whole file, quotes included.
    pub span: Span<usize>,
    /// Whether any part of it was quoted.
    pub quoted: bool,
}

/// A quote that is not closed before the line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenQuote {
    /// From the quote to the end of the line.
    pub span: Span<usize>,
}

/// The words of one line, which begins at byte `start` of the file. The line has no line break.
pub(super) fn words(line: &str, start: usize) -> Result<Vec<Word>, OpenQuote> {
    let mut words: Vec<Word> = Vec::new();
    let mut open_word: Option<Word> = None;
    let mut quote: Option<usize> = None;
    for (at, letter) in line.char_indices() {
        let place = start + at;
        if quote.is_none() && (letter.is_whitespace() || letter == '#') {
            words.extend(open_word.take());
            if letter == '#' {
                break;
            }
            continue;
        }
        let word = open_word.get_or_insert_with(|| Word {
            text: String::new(),
            span: place..place,
            quoted: false,
        });
        word.span.end = place + letter.len_utf8();
        if letter == '"' {
            word.quoted = true;
            quote = match quote {
                Some(_) => None,
                None => Some(place),
            };
        } else {
            word.text.push(letter);
        }
    }
    if let Some(place) = quote {
        return Err(OpenQuote {
            span: place..start + line.len(),
        });
    }
    words.extend(open_word);
    Ok(words)
}
