//! The bounds of a report that is read, and the error of bytes that are no report.

use core::fmt;

/// Version of the layout.
pub const SCHEMA: u32 = 1;
/// Greatest length of a report in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Greatest number of entries of each list.
pub const MAX_ENTRIES: usize = 1024;
/// Greatest length of each text in bytes.
pub const MAX_TEXT: usize = 128;

/// Reason for which bytes are not a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// Not an ordinary file.
    NoFile,
    /// More than [`MAX_BYTES`].
    TooLong,
    /// Not the JSON of a report: the place and what is wrong there.
    Json(String),
    /// A layout that this version does not know.
    Schema(u32),
    /// A list of more than [`MAX_ENTRIES`], or a text of more than [`MAX_TEXT`].
    TooMuch,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("not an ordinary file"),
            Self::TooLong => write!(f, "more than {MAX_BYTES} bytes"),
            // It has the report's own words.
            Self::Json(error) => write!(f, "{}", error.escape_debug()),
            Self::Schema(schema) => write!(f, "schema {schema}; this tool reads {SCHEMA}"),
            Self::TooMuch => f.write_str("a list or a text is too long"),
        }
    }
}

impl core::error::Error for ReportError {}
