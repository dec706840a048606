//! Texts as `/proc/PID/maps`.

use std::path::Path;

use pmu_examples::profiler::maps::{Mapping, executable};

/// Runs one input: the text.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mappings = executable(&text);
    assert!(mappings.len() <= text.split('\n').count());
    // Mappings written as proc(5) has them read as the same.
    let line = |mapping: &Mapping| {
        let Mapping { start, size, file_offset, path } = mapping;
        let end = start.checked_add(*size).expect("ends within the address space");
        assert_eq!(end, mapping.end());
        format!("{start:x}-{end:x} r-xp {file_offset:08x} fe:01 1234    {}\n", path.display())
    };
    let written: String = mappings.iter().map(line).collect();
    assert_eq!(executable(&written), mappings);
    // Each line is independent: each mapping is of one line, in order.
    let one_by_one: Vec<_> = text.split('\n').flat_map(executable).collect();
    assert_eq!(one_by_one, mappings);
    for a in mappings.iter().take(16) {
        assert!(a.contains(a));
        assert_eq!(a.overlaps(a), a.size != 0);
        let elsewhere = Mapping { path: Path::new("/elsewhere").join("x"), ..a.clone() };
        assert!(!a.contains(&elsewhere) || a.path == elsewhere.path);
        for b in mappings.iter().take(16) {
            assert_eq!(a.overlaps(b), b.overlaps(a));
            let common = a.start.max(b.start)..a.end().min(b.end());
            if a.size != 0 && b.size != 0 {
                assert_eq!(a.overlaps(b), !common.is_empty());
            }
            if a.contains(b) {
                assert!(a.start <= b.start && b.end() <= a.end());
                let of_file = |m: &Mapping| m.file_offset.wrapping_sub(m.start);
                assert_eq!((of_file(a), &a.path), (of_file(b), &b.path));
            }
        }
    }
}
