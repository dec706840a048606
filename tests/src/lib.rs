//! Shared parts of the tests: the independent data files, and fakes of processors.

pub mod arm;
mod delegate;
pub mod deviations;
pub mod groups;
pub mod kprofile;
pub mod linux_page;
pub mod lives;
pub mod opened;
mod pmu_state;
mod processors;
mod reason;
mod register_file;
pub mod reports;
pub mod sink;
pub mod software_pmu;

use std::collections::HashMap;
use std::sync::LazyLock;

use pmu_core::x86::raw_cpuid::CpuIdResult;

pub use pmu_state::StateRegisters;
pub use processors::{amd_processor, ibs_processor, intel_processor, recorded};
pub use reason::Reason;
pub use register_file::{FakePlatform, Fault, RegisterFile};

/// The answer of CPUID as `raw_cpuid` has it.
pub fn result([eax, ebx, ecx, edx]: [u32; 4]) -> CpuIdResult {
    CpuIdResult { eax, ebx, ecx, edx }
}

/// One row of a data file, by column name.
#[derive(Clone, Debug)]
pub struct Row<'t>(HashMap<&'t str, &'t str>);

impl<'t> Row<'t> {
    /// Returns the text of a column.
    ///
    /// # Panics
    /// If the file has no such column.
    #[track_caller]
    pub fn text(&self, column: &str) -> &'t str {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column}"))
    }

    /// Returns the number in a column, decimal or `0x`; `None` where the column is empty.
    ///
    /// # Panics
    /// If it holds something else.
    #[track_caller]
    pub fn optional(&self, column: &str) -> Option<u64> {
        let text = self.text(column);
        (!text.is_empty()).then(|| match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("{text}")),
            None => text.parse().unwrap_or_else(|_| panic!("{column}: {text}")),
        })
    }

    /// The number in a column.
    ///
    /// # Panics
    /// If it holds none.
    #[track_caller]
    pub fn number(&self, column: &str) -> u64 {
        self.optional(column).unwrap_or_else(|| panic!("{column} is empty"))
    }
}

/// The rows of a data file: CSV without quoting, a heading, remarks after `#`.
pub fn rows(text: &str) -> Vec<Row<'_>> {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            assert_eq!(cells.len(), columns.len(), "{line}");
            Row(columns.iter().copied().zip(cells).collect())
        })
        .collect()
}

/// A data file of `tests/data`.
#[macro_export]
macro_rules! data {
    ($file:literal) => {
        $crate::rows(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/", $file)))
    };
}

/// The masks of `register_fields.csv`, by register and field.
static FIELDS: LazyLock<HashMap<(&str, &str), u64>> = LazyLock::new(|| {
    let rows = data!("register_fields.csv").into_iter().map(|row| {
        let (lsb, msb) = (row.number("lsb"), row.number("msb"));
        let mask = (u64::MAX >> (63 - msb)) & (u64::MAX << lsb);
        ((row.text("register"), row.text("field")), mask)
    });
    rows.collect()
});

/// The mask of a register's field, by the data file.
///
/// # Panics
/// If the file has no such field.
#[track_caller]
pub fn field(register: &str, name: &str) -> u64 {
    *FIELDS.get(&(register, name)).unwrap_or_else(|| panic!("{register} {name}"))
}

/// Defines an enumeration, with the list of its variants in `ALL`.
#[macro_export]
macro_rules! enum_with_all {
    ($(#[$of:meta])* $visible:vis enum $name:ident { $($(#[$meta:meta])* $variant:ident,)* }) => {
        $(#[$of])*
        $visible enum $name { $($(#[$meta])* $variant,)* }

        impl $name {
            /// Every variant.
            $visible const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];
        }
    };
}
