//! Errors of the specification file, with the place of each and a picture of the line.

use std::fmt;
use std::ops::Range as Span;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// Errors listed for one file; the rest is only counted, since one slip often causes many.
pub(super) const ERRORS_MAX: usize = 20;

/// One thing wrong with a specification file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
    /// What the marked place is, a few words beside the caret.
    pub label: String,
    /// What to do about it.
    pub advice: String,
    /// The marked place, in bytes of the file.
    pub span: Span<usize>,
    /// Another place that matters, and what it is.
    pub related: Option<(Span<usize>, String)>,
}

/// Everything found wrong with a specification file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecErrors {
    /// In the order of the file; those about the file as a whole are last.
    pub errors: Vec<SpecError>,
    /// How many more there were than are listed.
    pub more: usize,
}

impl SpecErrors {
    /// The errors with a picture of each line.
    ///
    /// * `text`: the file that was parsed.
    /// * `path`: its name, for the heading of each picture.
    /// * `color`: whether to use terminal colours.
    #[must_use]
    pub fn render(&self, text: &str, path: &str, color: bool) -> String {
        let renderer = if color {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut pictures: Vec<String> = Vec::new();
        for error in &self.errors {
            let snippet = Snippet::source(text).path(path);
            let primary = AnnotationKind::Primary.span(clamp(&error.span, text));
            let mut snippet = snippet.annotation(primary.label(error.label.as_str()));
            if let Some((span, label)) = &error.related {
                let context = AnnotationKind::Context.span(clamp(span, text));
                snippet = snippet.annotation(context.label(label.as_str()));
            }
            let mut group = Level::ERROR
                .primary_title(error.message.as_str())
                .element(snippet);
            if !error.advice.is_empty() {
                group = group.element(Level::HELP.message(error.advice.as_str()));
            }
            pictures.push(renderer.render(&[group]));
        }
        if self.more > 0 {
            pictures.push(format!("error: {} more", self.more));
        }
        pictures.join("\n\n")
    }
}

/// A span that lies in the text, on character boundaries, whatever text was passed.
fn clamp(span: &Span<usize>, text: &str) -> Span<usize> {
    let fit = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = fit(span.start);
    start..fit(span.end).max(start)
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {}: {}",
            self.line, self.column, self.message
        )?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

/// One line for each error, without pictures.
impl fmt::Display for SpecErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for SpecError {}
impl std::error::Error for SpecErrors {}
