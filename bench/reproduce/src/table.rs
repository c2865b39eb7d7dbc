//! Tables as aligned text and as JSON: one description, two forms.

use serde_json::{Map, Value, json};

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// Words.
    Text(String),
    /// A measured or given number, and the decimals that people see.
    Number(f64, usize),
    /// Nothing there.
    Empty,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A number cell; `None` leaves the cell empty.
pub(crate) fn number(value: impl Into<Option<f64>>, decimals: usize) -> Cell {
    match value.into() {
        Some(value) if value.is_finite() => Cell::Number(value, decimals),
        _ => Cell::Empty,
    }
}

/// As [`number`]; `is_least` marks what was stopped there.
pub(crate) fn number_or_more(
    value: impl Into<Option<f64>>,
    decimals: usize,
    is_least: bool,
) -> Cell {
    match number(value, decimals) {
        cell @ Cell::Number(..) if is_least => Cell::Text(format!(">{}", cell.text())),
        cell => cell,
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value, decimals) => format!("{value:.decimals$}"),
            Self::Empty => "-".into(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(value, _) => json!(value),
            Self::Empty => Value::Null,
        }
    }
}

/// Rows under named columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    title: String,
    // JSON key (with its unit) and the heading for people.
    columns: Vec<(&'static str, &'static str)>,
    rows: Vec<Vec<Cell>>,
    notes: Vec<String>,
}

impl Table {
    /// An empty table; `columns` are JSON keys with their units, and headings.
    pub fn new(title: impl Into<String>, columns: &[(&'static str, &'static str)]) -> Self {
        Self {
            title: title.into(),
            columns: columns.to_vec(),
            ..Self::default()
        }
    }

    /// Adds a row; cells beyond the columns are not shown.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.title);
        self.rows.push(cells);
    }

    /// Adds a remark below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The table for people: numbers to the right, words to the left.
    pub fn text(&self) -> String {
        let cells: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(Cell::text).collect())
            .collect();
        let width = |column: usize| {
            let heading = self.columns[column].1.chars().count();
            let widest = cells
                .iter()
                .filter_map(|row| row.get(column))
                .map(|c| c.chars().count());
            widest.max().unwrap_or(0).max(heading)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let is_words = |column: usize| {
            self.rows
                .iter()
                .all(|row| !matches!(row.get(column), Some(Cell::Number(..))))
        };
        let words: Vec<bool> = (0..self.columns.len()).map(is_words).collect();
        let line = |texts: Vec<&str>| {
            let padded = texts.iter().enumerate().map(|(column, text)| {
                let width = widths[column];
                match words[column] {
                    true => format!("{text:<width$}"),
                    false => format!("{text:>width$}"),
                }
            });
            let joined: Vec<String> = padded.collect();
            joined.join("  ").trim_end().to_owned() + "\n"
        };
        let mut text = format!("{}\n\n", self.title);
        text += &line(self.columns.iter().map(|column| column.1).collect());
        let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        text += &line(rules.iter().map(String::as_str).collect());
        for row in &cells {
            text += &line(row.iter().take(widths.len()).map(String::as_str).collect());
        }
        for note in &self.notes {
            text += &format!("\n  {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    /// The table as an object: `title`, `rows` (one object each), `notes`; `headings` and `printed` are the cells as people
    /// see them.
    pub fn json(&self) -> Value {
        let row = |cells: &Vec<Cell>| {
            let entries = self.columns.iter().zip(cells);
            let object: Map<String, Value> = entries
                .map(|(column, cell)| (column.0.to_owned(), cell.json()))
                .collect();
            Value::Object(object)
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let headings: Vec<&str> = self.columns.iter().map(|column| column.1).collect();
        let print = |row: &Vec<Cell>| row.iter().map(Cell::text).collect::<Vec<_>>();
        let printed: Vec<Vec<String>> = self.rows.iter().map(print).collect();
        json!({
            "title": self.title,
            "rows": rows,
            "notes": self.notes,
            "headings": headings,
            "printed": printed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms show the same numbers: rounded and aligned for people, whole in JSON; gaps stay visible.
    #[test]
    fn two_forms() {
        let mut table = Table::new("T", &[("name", "who"), ("bits_per_second", "bit/s")]);
        table.row(vec!["a".into(), number(1234.567, 1)]);
        table.row(vec!["longer".into(), number(None, 1)]);
        table.note("a note");
        let expected =
            "T\n\nwho      bit/s\n------  ------\na       1234.6\nlonger       -\n\n  a note\n";
        assert_eq!(table.text(), expected);
        let json = table.json();
        assert_eq!(json["rows"][0]["bits_per_second"], 1234.567);
        assert!(json["rows"][1]["bits_per_second"].is_null());
        assert_eq!(json["notes"][0], "a note");
        assert_eq!(json["headings"], json!(["who", "bit/s"]));
        assert_eq!(json["printed"][0], json!(["a", "1234.6"]));
    }
}
