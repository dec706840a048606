//! Lines of a CSV file without quotes, and errors that name the line.

/// A line under the column names.
pub(crate) struct Row<'a> {
    file: &'a str,
    pub(crate) line: usize,
    columns: &'a [&'static str],
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    /// Returns an error of this line.
    pub(crate) fn error<T>(&self, reason: impl core::fmt::Display) -> Result<T, String> {
        Err(format!("{}:{}: {reason}", self.file, self.line))
    }

    pub(crate) fn text(&self, column: &str) -> &'a str {
        let place = self.columns.iter().position(|name| *name == column);
        self.fields[place.expect("a column of the file")]
    }

    /// Returns a number, hexadecimal after `0x`, of at most `max`.
    pub(crate) fn number(&self, column: &str, max: u64) -> Result<u64, String> {
        self.parse(column, self.text(column), max)
    }

    /// Returns the numbers between semicolons; an empty text has none.
    pub(crate) fn numbers(&self, column: &str, max: u64) -> Result<Vec<u64>, String> {
        let parts = self.text(column).split(';').filter(|part| !part.is_empty());
        parts.map(|part| self.parse(column, part, max)).collect()
    }

    fn parse(&self, column: &str, text: &str, max: u64) -> Result<u64, String> {
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match parsed {
            Ok(number) if number <= max => Ok(number),
            Ok(number) => self.error(format!("{column}: {number:#x} is more than {max:#x}")),
            Err(_) => self.error(format!("{column}: {text:?} is no number")),
        }
    }
}

/// Returns the rows of a file, whose first line must be the column names.
pub(crate) fn rows<'a>(
    file: &'a str,
    text: &'a str,
    columns: &'a [&'static str],
) -> Result<Vec<Row<'a>>, String> {
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(columns.join(",").as_str()) {
        return Err(format!("{file}:1: the columns are not {}", columns.join(",")));
    }
    let row = |(place, line): (usize, &'a str)| {
        let fields: Vec<_> = line.split(',').collect();
        let row = Row { file, line: place + 1, columns, fields };
        if row.fields.len() == columns.len() {
            Ok(row)
        } else {
            row.error(format!("{} fields, not {}", row.fields.len(), columns.len()))
        }
    };
    lines.map(row).collect()
}
