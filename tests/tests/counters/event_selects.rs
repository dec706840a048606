//! The event's number and its unit mask in the event selects of both vendors.

use pmu_amd::Amd64;
use pmu_amd::registers::PerfCtl;
use pmu_core::EventSource;
use pmu_core::registers::EventSelect;
use pmu_intel::Emon;
use pmu_intel::registers::PerfEvtSel;
use pmu_tests::{Row, data};

/// SDM vol. 3B, figure "Layout of IA32_PERFEVTSELx MSRs": event 7:0, unit mask 15:8; no other bit is
/// a part of either.
#[test]
fn intels_event_has_8_bits_and_its_unit_mask_8() {
    for (bits, event, unit_mask) in [
        (0x0000_0000_0000_003C, 0x3C, 0x00),
        (0x0000_0000_0043_4F2E, 0x2E, 0x4F),
        (0x0000_0000_0053_01C2, 0xC2, 0x01),
        (0x0000_0000_FFFF_00FF, 0xFF, 0x00),
        (0x0000_0000_FFFF_FF00, 0x00, 0xFF),
        (0xFFFF_FFFF_0000_0000, 0x00, 0x00),
    ] {
        let select = PerfEvtSel::from_bits(bits);
        assert_eq!(select.select().event_number(), event, "{bits:#X}");
        assert_eq!(select.select().event_unit_mask(), unit_mask, "{bits:#X}");
    }
}

/// APM vol. 2, figure "Core Performance Event-Select Register": event 35:32 and 7:0, unit mask 15:8.
#[test]
fn amds_event_has_12_bits_and_its_unit_mask_8() {
    for (bits, event, unit_mask) in [
        (0x0000_0000_0000_0076, 0x076, 0x00),
        (0x0000_0000_0053_1F43, 0x043, 0x1F),
        (0x0000_000A_0043_00D1, 0xAD1, 0x00),
        (0x0000_000F_0000_0000, 0xF00, 0x00),
        (0xFFFF_FFF0_FFFF_0000, 0x000, 0x00),
        (0x0000_0000_0000_FF00, 0x000, 0xFF),
    ] {
        let select = PerfCtl::from_bits(bits);
        assert_eq!(select.select().event_number(), event, "{bits:#X}");
        assert_eq!(select.select().event_unit_mask(), unit_mask, "{bits:#X}");
    }
}

fn every_row<I: EventSource>(interface: &I, rows: &[Row<'_>]) {
    assert_eq!(interface.sources().len(), rows.len());
    for (entry, row) in interface.sources().iter().zip(rows) {
        let select = row.number("select");
        assert_eq!(u64::from(entry.select().event_number()), select & 0xFF, "{}", entry.name());
        let unit_mask = u64::from(entry.select().event_unit_mask());
        assert_eq!(unit_mask, select >> 8 & 0xFF, "{}", entry.name());
    }
}

#[test]
fn a_select_is_shown_as_manuals_write_it() {
    assert_eq!(format!("{:?}", EventSelect::from_bits(0x41_412E)), "EventSelect(0x41412E)");
}

#[test]
fn every_source_tells_its_event_as_the_data_files_have_it() {
    every_row(&Emon::declared(), &data!("emon_sources.csv"));
    every_row(&Amd64::declared(), &data!("amd64_sources.csv"));
}
