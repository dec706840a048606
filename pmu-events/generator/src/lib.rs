//! The tables of `pmu-events`, from its CSV files.
//!
//! [`generate`] gives the contents of every file; `main` writes them, and a test compares them with the
//! repository's.

mod catalog;
mod csv;
mod dictionary;
mod tables;

#[path = "../../src/name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the crate's own; not all of it is used here")]
mod name;

use std::path::Path;

/// The generated files, by their paths in the crate.
///
/// # Errors
/// A file cannot be read, or contradicts itself: `file:line: reason`.
pub fn generate(data: &Path) -> Result<Vec<(String, Vec<u8>)>, String> {
    let catalog = catalog::Catalog::read(&|file| {
        let path = data.join(file);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    })?;
    tables::files(&catalog)
}
