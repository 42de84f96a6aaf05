//! A table, before it is drawn.

/// Rows of text under a title; a cell that was not measured is a dash.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &str, note: &str) -> Self {
        Self {
            title: title.to_owned(),
            note: note.to_owned(),
            columns: vec![String::new()],
            rows: Vec::new(),
        }
    }

    /// Names the columns behind the first one.
    pub(crate) fn columns(&mut self, names: impl IntoIterator<Item = String>) {
        self.columns.extend(names);
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = Option<String>>) {
        let cells = cells.into_iter();
        let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
        self.rows
            .push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
}

/// A number for people: three significant digits, with thousands separated.
pub(crate) fn figure(value: f64) -> String {
    if value != 0.0 && value.abs() < 10.0 {
        return format!("{value:.2}");
    }
    if value.abs() < 100.0 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let shown = [0.0, 0.123, 9.0, 45.67, 100.0, 1234.4, 100_000.0, -1500.0].map(figure);
        let wanted = [
            "0", "0.12", "9.00", "45.7", "100", "1 234", "100 000", "-1 500",
        ];
        assert_eq!(shown, wanted);
    }
}
