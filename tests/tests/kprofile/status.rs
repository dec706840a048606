//! Windows' numbers, against the data files: status values; classes, bug checks and rights.

use pmu_core::profile::{NtStatus, classes};
use pmu_tests::data;

#[test]
fn every_status_has_the_data_file_s_name_and_value() {
    let rows = data!("nt_status.csv");
    assert!(!NtStatus::ALL.is_empty());
    for status in NtStatus::ALL {
        let row = rows.iter().find(|row| row.text("name") == status.name());
        let row = row.unwrap_or_else(|| panic!("{status:?} is not in the data file"));
        assert_eq!(u64::from(status.value()), row.number("value"), "{status:?}");
        let expected = format!("{} ({:#010X})", row.text("name"), row.number("value"));
        assert_eq!(format!("{status:?}"), expected);
    }
}

#[test]
fn every_row_of_the_data_file_is_a_constant() {
    for row in data!("nt_status.csv") {
        let named = NtStatus::ALL.iter().any(|status| status.name() == row.text("name"));
        assert!(named, "{}", row.text("name"));
    }
}

#[test]
fn each_constant_is_the_status_of_its_name() {
    macro_rules! names {
        ($($constant:ident)*) => {
            [$((NtStatus::$constant, concat!("STATUS_", stringify!($constant)))),*]
        };
    }
    let constants = names! {
        SUCCESS DATATYPE_MISALIGNMENT BUFFER_OVERFLOW NOT_IMPLEMENTED INVALID_INFO_CLASS INFO_LENGTH_MISMATCH
        ACCESS_VIOLATION INVALID_HANDLE INVALID_PARAMETER NO_MEMORY INVALID_SYSTEM_SERVICE ACCESS_DENIED BUFFER_TOO_SMALL
        OBJECT_TYPE_MISMATCH PRIVILEGE_NOT_HELD
        INSUFFICIENT_RESOURCES MEMORY_NOT_ALLOCATED PROFILING_NOT_STARTED PROFILING_NOT_STOPPED
        NOT_SUPPORTED PROFILING_AT_LIMIT INVALID_PARAMETER_7 ADDRESS_ALREADY_EXISTS
        WMI_INSTANCE_NOT_FOUND WMI_ALREADY_ENABLED
    };
    assert_eq!(constants.map(|(status, _)| status), NtStatus::ALL);
    for (status, name) in constants {
        assert_eq!(status.name(), name);
    }
}

#[test]
fn no_two_statuses_are_the_same_and_only_severities_0_and_1_are_success() {
    for (number, status) in NtStatus::ALL.iter().enumerate() {
        assert!(NtStatus::ALL[number + 1..].iter().all(|other| other.value() != status.value()));
        assert_eq!(status.is_success(), status.value() >> 30 < 2, "{status:?}");
    }
    assert!(NtStatus::SUCCESS.is_success() && !NtStatus::BUFFER_OVERFLOW.is_success());
}

#[test]
fn every_class_and_bug_check_has_the_data_file_s_name_and_value() {
    let rows = data!("windows_numbers.csv");
    let of_file: Vec<_> = rows
        .iter()
        .map(|row| (row.text("of"), row.text("constant"), row.text("name"), row.number("value")))
        .collect();
    let constants: Vec<_> = classes::ALL
        .iter()
        .map(|number| (number.of, number.constant, number.name, u64::from(number.value)))
        .collect();
    assert_eq!(constants, of_file);
    assert_eq!(u64::from(pmu_amd::Amd64::BUG_CHECK_WITHOUT_MEMORY), 0xAC);
}
