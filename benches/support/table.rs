//! Tables of figures, and their forms in text, Markdown and JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

#[derive(Clone, Copy)]
pub(crate) struct Column {
    /// The name in JSON.
    pub(crate) key: &'static str,
    /// The name in tables.
    pub(crate) head: &'static str,
    /// Digits after the point.
    pub(crate) digits: usize,
}

impl Column {
    pub(crate) const fn new(key: &'static str, head: &'static str, digits: usize) -> Self {
        Self { key, head, digits }
    }
}

/// The figures of one scenario in one setting.
pub(crate) struct Table {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Row>,
    /// The keys of the columns that get a chart.
    pub(crate) drawn: &'static [&'static str],
}

pub(crate) struct Row {
    pub(crate) name: String,
    /// One per column; `None` if the figure does not apply.
    pub(crate) values: Vec<Option<f64>>,
}

impl Table {
    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            let mut object = Map::new();
            object.insert("name".to_owned(), json!(row.name));
            let values = self.columns.iter().zip(&row.values);
            object.extend(values.map(|(column, value)| (column.key.to_owned(), json!(value))));
            Value::Object(object)
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        json!({ "scenario": self.id, "title": self.title, "rows": rows })
    }

    /// The values of a column, with the names of their rows.
    pub(crate) fn column(&self, key: &str) -> Option<(&'static Column, Vec<(&str, f64)>)> {
        let index = self.columns.iter().position(|column| column.key == key)?;
        let value = |row: &'_ Row| row.values[index].filter(|value| value.is_finite());
        let rows = self.rows.iter().filter_map(|row| Some((row.name.as_str(), value(row)?)));
        Some((&self.columns[index], rows.collect()))
    }

    pub(crate) fn markdown(&self) -> String {
        let mut out = String::new();
        let heads: Vec<_> = self.columns.iter().map(|column| column.head).collect();
        writeln!(out, "| | {} |", heads.join(" | ")).unwrap();
        writeln!(out, "|---|{}", "---:|".repeat(heads.len())).unwrap();
        for row in &self.rows {
            let values = self.columns.iter().zip(&row.values);
            let values: Vec<_> =
                values.map(|(column, value)| number(*value, column.digits)).collect();
            writeln!(out, "| {} | {} |", row.name, values.join(" | ")).unwrap();
        }
        out
    }

    /// The form for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut lines = vec![vec![String::new()]];
        lines[0].extend(self.columns.iter().map(|column| column.head.to_owned()));
        for row in &self.rows {
            let values = self.columns.iter().zip(&row.values);
            let values = values.map(|(column, value)| number(*value, column.digits));
            lines.push(std::iter::once(row.name.clone()).chain(values).collect());
        }
        format!("{}\n{}", self.title, aligned(&lines))
    }
}

/// Aligns lines of words in columns: the first column left, the others right.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let mut out = String::new();
    let wide = |index: usize| lines.iter().map(|line| line[index].chars().count()).max().unwrap();
    let widths: Vec<_> = (0..lines[0].len()).map(wide).collect();
    for line in lines {
        for (index, (word, width)) in line.iter().zip(&widths).enumerate() {
            if index == 0 {
                write!(out, "  {word:width$}").unwrap();
            } else {
                write!(out, "  {word:>width$}").unwrap();
            }
        }
        out.push('\n');
    }
    out
}

/// Formats a figure with thousands separators.
pub(crate) fn number(value: Option<f64>, digits: usize) -> String {
    let Some(value) = value else { return "–".to_owned() };
    if value.is_infinite() {
        return "∞".to_owned();
    }
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut out = String::new();
    for (index, digit) in text.chars().enumerate() {
        let left = whole.saturating_sub(index);
        if index > 0 && left > 0 && left.is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
