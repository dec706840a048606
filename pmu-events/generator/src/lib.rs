//! The tables of `pmu-events`, from its CSV files.
//!
//! [`generate`] gives the contents of every file; `main` writes them, and a test compares them with the
//! repository's.

mod catalog;
mod csv;
mod dictionary;
mod formula;
mod tables;

#[path = "../../src/name/hash.rs"]
#[allow(dead_code, unreachable_pub, reason = "the crate's own; not all of it is used here")]
mod hash;

use std::path::Path;

/// Returns the contents of the generated files, by their paths in the crate.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn repository() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn the_repository_has_the_tables_that_the_csv_files_give_byte_for_byte() {
        let files = generate(&repository().join("data")).unwrap();
        let stale = files.iter().filter(|(name, contents)| {
            std::fs::read(repository().join(name)).ok().as_ref() != Some(contents)
        });
        let stale: Vec<_> = stale.map(|(name, _)| name).collect();
        assert!(stale.is_empty(), "cargo run -p pmu-events-generator: {stale:?}");
        let tables = std::fs::read_dir(repository().join("tables")).unwrap().count();
        assert_eq!(tables + 1, files.len(), "a table that no core type has");
    }

    const CORE_TYPES: &str = "name,vendor,events,version,published,source\n";
    const EVENTS: &str =
        "name,event,umask,cmask,inv,edge,any,counters,pebs,msr_index,msr_value,errata\n";
    const METRICS: &str = "metric,core_types,source,formula\n";
    const PROCESSORS: &str = "vendor,family,model_lo,model_hi,stepping_lo,stepping_hi,core_type,native_model_id,core,source\n";

    /// A catalog of one core type, `x`, with these rows.
    fn catalog_of(
        vendor: &str,
        events: &str,
        processors: &str,
    ) -> Result<catalog::Catalog, String> {
        catalog::Catalog::read(&|file| {
            Ok(match file {
                "core_types.csv" => {
                    format!("{CORE_TYPES}x,{vendor},{},1,,here\n", events.lines().count())
                }
                "x.csv" => format!("{EVENTS}{events}"),
                "metrics.csv" => METRICS.to_owned(),
                _ => format!("{PROCESSORS}{processors}"),
            })
        })
    }

    fn error_of(vendor: &str, events: &str, processors: &str) -> String {
        catalog_of(vendor, events, processors).err().unwrap_or_default()
    }

    #[test]
    fn events_that_contradict_themselves_stop_it_with_line_and_reason() {
        let good = "A.B,0xC0,0x01,0,0,0,0,0-3,0,,,\n";
        assert_eq!(error_of("intel", good, ""), "");
        for (row, reason) in [
            ("a.b,0xC1,0x02,0,0,0,0,0-3,0,,,", "a.b is in line 2 already"),
            ("C D,0xC0,0x01,0,0,0,0,0-3,0,,,", "\"C D\" cannot be a name"),
            (",0xC0,0x01,0,0,0,0,0-3,0,,,", "\"\" cannot be a name"),
            ("C,0xC0,0x01,0,0,0,0,0-3,0,,", "11 fields, not 12"),
            ("C,0x1C0,0x01,0,0,0,0,0-3,0,,,", "event: 0x1c0 is more than 0xff"),
            ("C,0xC0,,0,0,0,0,0-3,0,,,", "1 events, 0 unit masks and 0 MSRs do not go together"),
            ("C,cycles,0x01,0,0,0,0,0-3,0,,,", "event: \"cycles\" is no number"),
            ("C,0xC0,0x01,0,2,0,0,0-3,0,,,", "inv: 0x2 is more than 0x1"),
            ("C,0xC0,0x01,0,0,0,0,,0,,,", "\"\" are no counters of this vendor's"),
            ("C,0xC0,0x01,0,0,0,0,3-0,0,,,", "there are no counters 3-0"),
            ("C,0xC0,0x01,0,0,0,0,0-16,0,,,", "there are no counters 0-16"),
            ("C,0xC0,0x01,0,0,0,0,few,0,,,", "\"few\" are no counters"),
            (
                "C,0x00,0x01,0,0,0,0,0+F0,0,,,",
                "general and fixed counters, or several fixed ones, for one encoding",
            ),
            ("C,0x00,0x01,0,0,0,0,F1,0,,,", "0x0100 is not the encoding of fixed counter 1"),
            ("C,0xB7,0x01,0,0,0,0,0-3,0,0x1A6,,", "1 MSRs, and 0 values"),
            ("C,0xB7,0x01,0,0,0,0,0-3,0,,0x10,", "0 MSRs, and 1 values"),
            (
                "C,0xB7;0xBB,0x01;0x02;0x04,0,0,0,0,0-3,0,0x1A6;0x1A7,0x10,",
                "2 events, 3 unit masks and 2 MSRs do not go together",
            ),
            ("C,0xB7;0xBB,0x01,0,0,0,0,0-3,0,0x3F6,0x10,", "1 MSRs for 2 encodings"),
            (
                "C,0xB7,0x101;0x02,0,0,0,0,0-3,0,,,",
                "its encodings differ in more than event and unit mask",
            ),
        ] {
            let error = error_of("intel", &format!("{good}{row}\n"), "");
            assert_eq!(error, format!("x.csv:3: {reason}"));
        }
        let amd = "a,0x1C0,0x00,0,0,0,0,0-3,0,,,\n";
        let reason = "x.csv:2: \"0-3\" are no counters of this vendor's";
        assert_eq!(error_of("amd", amd, ""), reason);
    }

    #[test]
    fn processors_that_contradict_themselves_stop_it_with_line_and_reason() {
        let good = "GenuineIntel,0x06,0x55,0x55,0,4,,,x,here\n";
        let hybrid = "GenuineIntel,0x06,0x97,0x97,0,15,0x20,0x000001,x,here\n";
        assert_eq!(error_of("intel", "", &format!("{good}{hybrid}")), "");
        for (row, reason) in [
            ("GenuineIntel,0x06,0x50,0x5F,4,15,,,x,here", "the same processors as in line 2"),
            ("GenuineIntel,0x06,0x97,0x97,0,15,,,x,here", "the same processors as in line 3"),
            ("GenuineIntel,0x06,0x5E,0x5E,0,15,,,y,here", "y is not in core_types.csv"),
            ("GenuineIntel,0x06,0x5F,0x5E,0,15,,,x,here", "a range ends before it begins"),
            ("GenuineIntel,0x06,0x5E,0x5E,0,16,,,x,here", "stepping_hi: 0x10 is more than 0xf"),
            ("Intel,0x06,0x5E,0x5E,0,15,,,x,here", "\"Intel\" is no vendor"),
        ] {
            let error = error_of("intel", "", &format!("{good}{hybrid}{row}\n"));
            assert_eq!(error, format!("processors.csv:4: {reason}"));
        }
    }

    #[test]
    fn core_types_that_contradict_their_files_stop_it_with_line_and_reason() {
        for (row, reason) in [
            ("x,intel,2,1,,here", "x.csv has 1 events"),
            ("x,cyrix,1,1,,here", "no such vendor: \"cyrix\""),
            ("x,intel,1,,,here", "no version, or no source"),
            ("x,intel,1,1,,here\nx,intel,1,1,,here", "x is not behind the name before it"),
        ] {
            let result = catalog::Catalog::read(&|file| {
                Ok(match file {
                    "core_types.csv" => format!("{CORE_TYPES}{row}\n"),
                    "x.csv" => format!("{EVENTS}A,0xC0,0x01,0,0,0,0,0-3,0,,,\n"),
                    "metrics.csv" => METRICS.to_owned(),
                    _ => PROCESSORS.to_owned(),
                })
            });
            let line = 1 + row.lines().count();
            assert_eq!(result.err(), Some(format!("core_types.csv:{line}: {reason}")));
        }
    }

    #[test]
    fn formulas_that_name_what_there_is_not_stop_it_with_line_and_reason() {
        let good = "tma_a,x,here,max(A.B; 2) * A.B:cmask=1\n";
        for (row, reason) in [
            ("tma_b,y,here,A.B", "no such core type: \"y\""),
            ("tma_b,x,here,A.C", "x has no event A.C, nor is it above"),
            ("tma_b,x,here,tma_b * A.B", "x has no event tma_b, nor is it above"),
            ("tma_a,x,here,A.B", "tma_a of x is in a line above already"),
            ("tma_b,x,,A.B", "no metric, no source, or no formula"),
            ("tma_b,x,here,max(A.B,2)", "5 fields, not 4"),
            ("tma_b,x,here,tma_a * 2 if A.B < 3 else 1", ""),
        ] {
            let result = catalog::Catalog::read(&|file| {
                Ok(match file {
                    "core_types.csv" => format!("{CORE_TYPES}x,intel,1,1,,here\n"),
                    "x.csv" => format!("{EVENTS}A.B,0xC0,0x01,0,0,0,0,0-3,0,,,\n"),
                    "metrics.csv" => format!("{METRICS}{good}{row}\n"),
                    _ => PROCESSORS.to_owned(),
                })
            });
            let expected = (!reason.is_empty()).then(|| format!("metrics.csv:3: {reason}"));
            assert_eq!(result.err(), expected, "{row}");
        }
    }

    #[test]
    fn columns_in_another_order_stop_it() {
        let swapped = EVENTS.replace("name,event", "event,name");
        let result = catalog::Catalog::read(&|file| {
            Ok(match file {
                "core_types.csv" => format!("{CORE_TYPES}x,intel,0,1,,here\n"),
                "x.csv" => swapped.clone(),
                _ => PROCESSORS.to_owned(),
            })
        });
        let columns = EVENTS.trim_end();
        assert_eq!(result.err(), Some(format!("x.csv:1: the columns are not {columns}")));
    }

    /// The error of tables of one core type with the events of these rows.
    fn error_of_tables(rows: impl Iterator<Item = String>) -> String {
        let catalog = catalog_of("intel", &rows.collect::<String>(), "").unwrap();
        tables::files(&catalog).err().unwrap_or_default()
    }

    #[test]
    fn more_than_a_tables_numbers_can_express_stops_it() {
        // The name, counter mask, inversion and erratum of an event.
        let row = |n: u32, cmask: u32, inv: u32, erratum: &str| {
            format!("E{n:05},0x{:02X},0,{cmask},{inv},0,0,0-3,0,,,{erratum}\n", n % 0x100)
        };
        let shapes = |count| (0..count).map(|n| row(n, n % 0x100, n / 0x100, ""));
        assert_eq!(error_of_tables(shapes(256)), "");
        assert_eq!(error_of_tables(shapes(257)), "257 shapes and 0 errata do not fit");
        let errata = |count| (0..count).map(|n| row(n, 0, 0, &format!("ERR{n}")));
        assert_eq!(error_of_tables(errata(256)), "");
        assert_eq!(error_of_tables(errata(257)), "1 shapes and 257 errata do not fit");
        // At least a shape, two bytes of the select, and a name of a length and a token.
        let many = error_of_tables((0..0xFFFF / 5 + 1).map(|n| row(n, 0, 0, "")));
        assert!(many.starts_with("x: ") && many.ends_with(" bytes of records"), "{many}");
    }

    #[test]
    fn names_of_too_many_different_parts_stop_it() {
        // Three letters in a row, which are often together in this name alone.
        let letters = || 'A'..='V';
        let three = letters()
            .flat_map(|a| (a..='V').skip(1).map(move |b| [a, b]))
            .flat_map(|[a, b]| (b..='V').skip(1).map(move |c| [a, b, c]));
        let rows = three.map(|[a, b, c]| format!("{a}{b}{c}{a}{b}{c},0xC0,0,0,0,0,0,0-3,0,,,\n"));
        let error = error_of_tables(rows);
        assert!(error.ends_with(" tokens of names do not fit: learn fewer"), "{error}");
    }
}
