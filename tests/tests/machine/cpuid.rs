//! Recorded CPUID dumps of real processors: their decoded leaves, and the interface that detects them.

use std::fs;
use std::path::Path;

use pmu::Machine;
use pmu_amd::Amd64;
use pmu_core::error::{NoFacility, NoInterface};
use pmu_core::x86::Snapshot;
use pmu_core::x86::dump::CpuidDump;
use pmu_intel::{ArchitecturalPerfmon, Emon};
use pmu_tests::{RegisterFile, Row, data};

fn snapshot(file: &str) -> Snapshot {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/cpuid").join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Snapshot::capture(&CpuidDump::parse(&text).unwrap_or_else(|e| panic!("{file}: {e}")))
}

fn each(check: impl Fn(&str, &Row<'_>, &Snapshot)) {
    let rows = data!("cpuid/expected.csv");
    assert!(rows.len() >= 10);
    for row in &rows {
        let file = row.text("file");
        check(file, row, &snapshot(file));
    }
}

#[test]
fn vendor_family_and_model_are_as_the_manuals_print_them() {
    each(|file, row, snapshot| {
        assert_eq!(snapshot.vendor(), *row.text("vendor").as_bytes(), "{file}");
        assert_eq!(u64::from(snapshot.family()), row.number("family"), "{file}");
        assert_eq!(u64::from(snapshot.model()), row.number("model"), "{file}");
        assert_eq!(u64::from(snapshot.has_hypervisor()), row.number("hypervisor_bit"), "{file}");
    });
}

#[test]
fn leaf_0a_is_decoded_whole() {
    each(|file, row, snapshot| {
        let leaf = ArchitecturalPerfmon::from_snapshot(snapshot);
        assert_eq!(u64::from(leaf.version()), row.number("perfmon_version"), "{file}");
        assert_eq!(u64::from(leaf.counters()), row.number("gp_counters"), "{file}");
        assert_eq!(u64::from(leaf.width()), row.number("gp_width"), "{file}");
        assert_eq!(u64::from(leaf.events()), row.number("ebx_length"), "{file}");
        assert_eq!(u64::from(leaf.events_unavailable()), row.number("ebx"), "{file}");
        let (version, count) = (row.number("perfmon_version"), row.number("fixed_counters"));
        if version >= 2 {
            let bitmap = if version >= 5 { row.number("fixed_bitmap") } else { 0 };
            let expected = ((1 << count) - 1) | bitmap;
            assert_eq!(u64::from(leaf.fixed_counters()), expected, "{file}");
            assert_eq!(u64::from(leaf.fixed_width()), row.number("fixed_width"), "{file}");
        }
    });
}

/// A second decoder of the same leaf.
#[test]
fn leaf_0a_is_decoded_as_raw_cpuid_does() {
    each(|file, _, snapshot| {
        let Some(theirs) = snapshot.cpuid().get_performance_monitoring_info() else { return };
        let ours = ArchitecturalPerfmon::from_snapshot(snapshot);
        assert_eq!(ours.version(), theirs.version_id(), "{file}");
        assert_eq!(ours.counters(), theirs.number_of_counters(), "{file}");
        assert_eq!(ours.width(), theirs.counter_bit_width(), "{file}");
        assert_eq!(ours.events(), theirs.ebx_length(), "{file}");
        let unavailable = [
            theirs.is_core_cyc_ev_unavailable(),
            theirs.is_inst_ret_ev_unavailable(),
            theirs.is_ref_cycle_ev_unavailable(),
            theirs.is_cache_ref_ev_unavailable(),
            theirs.is_ll_cache_miss_ev_unavailable(),
            theirs.is_branch_inst_ret_ev_unavailable(),
            theirs.is_branch_midpred_ev_unavailable(),
        ];
        for (bit, unavailable) in (0..).zip(unavailable) {
            assert_eq!(ours.events_unavailable() >> bit & 1 != 0, unavailable, "{file} {bit}");
        }
        assert_eq!(ours.any_thread_deprecated(), theirs.has_any_thread_deprecation(), "{file}");
    });
}

/// The reason's word in the data file.
fn word(reason: NoInterface) -> &'static str {
    match reason {
        NoInterface::OtherVendor(_) => "vendor",
        NoInterface::NoPerformanceMonitoring => "no-perfmon",
        NoInterface::CyclesUnavailable => "cycles-absent",
        NoInterface::NoLongMode => "long-mode",
        NoInterface::HiddenByHypervisor => "hypervisor",
        other => panic!("unexpected reason {other:?}"),
    }
}

#[test]
fn the_interface_or_the_reason_for_its_absence_is_windows_choice() {
    let mut seen = std::collections::BTreeSet::new();
    each(|file, row, snapshot| {
        let (interface, reason) = match (Emon::detect(snapshot), Amd64::detect(snapshot)) {
            (Ok(_), Err(_)) => ("emon", ""),
            (Err(_), Ok(_)) => ("amd64", ""),
            (Err(intel), Err(amd)) => ("none", word(intel.or(amd))),
            (Ok(_), Ok(_)) => panic!("{file}: both claim it"),
        };
        assert_eq!(interface, row.text("interface"), "{file}");
        // If several reasons hold, any of them will do.
        let expected = [row.text("reason")].into_iter().chain(row.text("also").split('|'));
        assert!(expected.clone().any(|e| e == reason), "{file}: {reason}, {expected:?}");
    });
    for row in &data!("cpuid/expected.csv") {
        seen.insert((row.text("interface"), row.text("reason")));
    }
    // The dumps must cover the choices.
    for needed in [("emon", ""), ("amd64", ""), ("none", "vendor"), ("none", "hypervisor")] {
        assert!(seen.contains(&needed), "{needed:?}");
    }
}

mod choice {
    //! The conditions that no recorded processor fails, with the CPUID of a real one changed.

    use super::*;
    use pmu_core::x86::raw_cpuid::CpuIdReader;

    /// A recorded processor with one leaf changed.
    fn changed(
        file: &str,
        leaf: u32,
        change: impl Fn(&mut pmu_core::x86::raw_cpuid::CpuIdResult) + Clone,
    ) -> Snapshot {
        let recorded = snapshot(file);
        Snapshot::capture(move |eax: u32, ecx: u32| {
            let mut result = (&recorded).cpuid2(eax, ecx);
            if eax == leaf {
                change(&mut result);
            }
            result
        })
    }

    #[test]
    fn intel_conditions() {
        let claim = |change: fn(&mut pmu_core::x86::raw_cpuid::CpuIdResult)| {
            Emon::detect(&changed("intel-skylake.txt", 0x0A, change)).map(|_| ())
        };
        assert_eq!(claim(|_| {}), Ok(()));
        assert_eq!(claim(|r| r.eax &= !0xFF), Err(NoInterface::NoPerformanceMonitoring));
        assert_eq!(claim(|r| r.eax &= 0x00FF_FFFF), Err(NoInterface::NoPerformanceMonitoring));
        assert_eq!(claim(|r| r.ebx |= 1), Err(NoInterface::CyclesUnavailable));
        assert_eq!(claim(|r| r.ebx |= 0x7E), Ok(()));
        for (count, width) in [(0, 48), (11, 48), (255, 48), (4, 31), (4, 65), (4, 0), (4, 255)] {
            let eax = 0x0700_0004 | count << 8 | width << 16;
            let snapshot = changed("intel-skylake.txt", 0x0A, move |r| r.eax = eax);
            let (count, width) = (count as u8, width as u8);
            assert_eq!(
                Emon::detect(&snapshot).map(|_| ()),
                Err(NoInterface::ImplausibleCounters { count, width })
            );
        }
        // Of two reasons, that of the counters.
        assert_eq!(
            claim(|r| (r.eax, r.ebx) = (0x0700_0004 | 11 << 8 | 48 << 16, 1)),
            Err(NoInterface::ImplausibleCounters { count: 11, width: 48 })
        );
        let short = changed("intel-skylake.txt", 0, |r| r.eax = 9);
        assert_eq!(Emon::detect(&short).map(|_| ()), Err(NoInterface::NoPerformanceMonitoring));
    }

    #[test]
    fn amd_needs_long_mode() {
        let long_mode = 1 << 29;
        let without = changed("amd-zen3.txt", 0x8000_0001, move |r| r.edx &= !long_mode);
        assert_eq!(Amd64::detect(&without).map(|_| ()), Err(NoInterface::NoLongMode));
    }

    #[test]
    fn a_microsoft_compatible_hypervisor_hides_amds_counters_too() {
        let recorded = snapshot("amd-zen3.txt");
        for (features, hidden) in [(0, true), (1 << 2, false), (!(1 << 2), true)] {
            let inside = Snapshot::capture(move |eax: u32, ecx: u32| {
                let mut result = (&recorded).cpuid2(eax, ecx);
                match eax {
                    1 => result.ecx |= 1 << 31,
                    0x4000_0000 => result.eax = 0x4000_0006,
                    0x4000_0001 => result.eax = 0x3123_7648,
                    0x4000_0003 => result.edx = features,
                    _ => {}
                }
                result
            });
            assert_eq!(Amd64::detect(&inside).is_err(), hidden);
        }
    }

    /// A source is supported if its event's bit is meaningful and clear; the timer always.
    /// A hypervisor that hides the counters hides the hardware beside them, for the same reason.
    #[test]
    fn where_counters_are_hidden_the_reason_is_told_of_what_is_beside_them() {
        let hidden = snapshot("vm-hyperv-icelake.txt");
        // With the version that a processor of this kind has.
        let hidden = Snapshot::capture(|leaf: u32, subleaf: u32| {
            let mut result = (&hidden).cpuid2(leaf, subleaf);
            result.eax = if leaf == 0x0A { 0x0830_0805 } else { result.eax };
            result
        });
        let why = NoInterface::HiddenByHypervisor;
        let machine = Machine::detect(&hidden);
        assert_eq!(machine.why_time_only(), Some(why));
        let msr = RegisterFile::new(0x345..0x346, 0);
        let precise = machine.precise_of(&hidden, &msr).map(drop);
        let top_down = machine.top_down_of(&hidden, &msr).map(drop);
        assert_eq!([precise, top_down], [Err(NoFacility::NoCounters(why)); 2]);
    }

    #[test]
    fn emon_supports_a_source_by_its_event_bit() {
        use pmu_core::EventSource;
        for length in 1..=8u32 {
            for unavailable in 0..0x80u32 {
                let unavailable = unavailable << 1;
                let snapshot = changed("intel-skylake.txt", 0x0A, move |r| {
                    r.eax = r.eax & 0x00FF_FFFF | length << 24;
                    r.ebx = unavailable;
                });
                let (emon, machine) =
                    (Emon::detect(&snapshot).unwrap(), Machine::detect(&snapshot));
                assert!(!machine.requires_memory());
                for row in &data!("emon_sources.csv") {
                    let expected = row
                        .optional("ebx_bit")
                        .is_none_or(|b| b < length.into() && unavailable >> b & 1 == 0);
                    let entry = &emon.sources()
                        [emon.row((row.number("value") as u32).try_into().unwrap()).unwrap()];
                    assert_eq!(emon.query(entry.source()).is_supported(), expected);
                    assert_eq!(machine.query(entry.source()).is_supported(), expected);
                }
            }
        }
    }
}
