//! Encodings, fields and event numbers, against data files.

use pmu_arm::registers::{
    CYCLE_COUNTER, DebugFeatures, EventType, Mdcr, Pmcr, Pmmir, Register, UserEnable,
};
use pmu_tests::data;

#[test]
fn encodings_equal_the_data_file() {
    let rows = data!("arm_registers.csv");
    assert_eq!(rows.len(), Register::ALL.len());
    for register in Register::ALL {
        let row = rows.iter().find(|row| row.text("name") == register.name()).unwrap();
        let bits = [("op0", 2), ("op1", 3), ("crn", 4), ("crm", 4), ("op2", 3)];
        let encoding = bits.iter().fold(0, |all, (field, width)| all << width | row.number(field));
        assert_eq!(u64::from(register.encoding()), encoding, "{}", register.name());
    }
}

#[test]
fn each_event_counter_has_its_registers() {
    for number in 0..16 {
        let [value, event] = [Register::event_counter(number), Register::event_type(number)];
        assert_eq!(value.unwrap().name(), format!("PMEVCNTR{number}_EL0"));
        assert_eq!(event.unwrap().name(), format!("PMEVTYPER{number}_EL0"));
    }
    for number in [16, 31, usize::MAX] {
        assert_eq!([Register::event_counter(number), Register::event_type(number)], [None; 2]);
    }
}

/// The mask of a field, by the data file.
fn field(register: &str, name: &str) -> u64 {
    let rows = data!("arm_register_fields.csv");
    let row = rows
        .iter()
        .find(|row| row.text("register") == register && row.text("field") == name)
        .unwrap_or_else(|| panic!("{register} {name}"));
    (u64::MAX >> (63 - row.number("msb"))) & (u64::MAX << row.number("lsb"))
}

#[test]
fn fields_lie_where_the_data_file_says() {
    let new = Pmcr::new;
    let mut checked = 0;
    let mut check = |register, fields: &[(u64, &str)]| {
        for (bits, name) in fields {
            assert_eq!(*bits, field(register, name), "{register}.{name}");
            checked += 1;
        }
    };
    check(
        "PMCR_EL0",
        &[
            (new().with_enable(true).into_bits(), "E"),
            (new().with_reset_event_counters(true).into_bits(), "P"),
            (new().with_reset_cycle_counter(true).into_bits(), "C"),
            (new().with_divide(true).into_bits(), "D"),
            (new().with_export(true).into_bits(), "X"),
            (new().with_disable_prohibited(true).into_bits(), "DP"),
            (new().with_long_cycle_counter(true).into_bits(), "LC"),
            (new().with_long_event_counters(true).into_bits(), "LP"),
            (new().with_freeze_on_overflow(true).into_bits(), "FZO"),
            (new().with_event_counters(0x1F).into_bits(), "N"),
            (new().with_id_code(0xFF).into_bits(), "IDCODE"),
            (new().with_implementer(0xFF).into_bits(), "IMP"),
            (new().with_freeze_on_spe(true).into_bits(), "FZS"),
        ],
    );
    let new = EventType::new;
    check(
        "PMEVTYPERn_EL0",
        &[
            (new().with_event(0xFFFF).into_bits(), "evtCount"),
            (new().with_realm_el2(true).into_bits(), "RLH"),
            (new().with_realm_el0(true).into_bits(), "RLU"),
            (new().with_realm_el1(true).into_bits(), "RLK"),
            (new().with_secure_el2(true).into_bits(), "SH"),
            (new().with_multithreaded(true).into_bits(), "MT"),
            (new().with_el3(true).into_bits(), "M"),
            (new().with_el2(true).into_bits(), "NSH"),
            (new().with_non_secure_el0(true).into_bits(), "NSU"),
            (new().with_non_secure_el1(true).into_bits(), "NSK"),
            (new().with_not_el0(true).into_bits(), "U"),
            (new().with_not_el1(true).into_bits(), "P"),
            (new().with_threshold(0xFFF).into_bits(), "TH"),
            (new().with_threshold_control(7).into_bits(), "TC"),
        ],
    );
    let new = UserEnable::new;
    check(
        "PMUSERENR_EL0",
        &[
            (new().with_all(true).into_bits(), "EN"),
            (new().with_software_increment(true).into_bits(), "SW"),
            (new().with_cycle_counter(true).into_bits(), "CR"),
            (new().with_event_counters(true).into_bits(), "ER"),
        ],
    );
    let version = DebugFeatures::new().with_pmu_version(0xF).into_bits();
    check("ID_AA64DFR0_EL1", &[(version, "PMUVer")]);
    check("PMMIR_EL1", &[(Pmmir::new().with_threshold_width(0xF).into_bits(), "THWIDTH")]);
    check("MDCR_EL2", &[(Mdcr::new().with_guest_counters(0x1F).into_bits(), "HPMN")]);
    assert_eq!(checked, data!("arm_register_fields.csv").len());
    assert_eq!(CYCLE_COUNTER, 31);
}
