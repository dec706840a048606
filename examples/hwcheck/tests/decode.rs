//! The stick's report, from its codes and from its serial line.

use pmu_hwcheck::report::claims::{CLAIMS, Tried, find};
use pmu_hwcheck::report::decode::{DecodeError, decode};
use pmu_hwcheck::report::{MachineKind, Outcome, Reason};

const FIRST: &str =
    "PMU1 1/2 HARDWARE AUTHENTICAMD:19:61:2 INTERRUPT.NMI:AGREES INTERRUPT.LATE:DISAGREES";
const SECOND: &str =
    "PMU1 2/2 HARDWARE AUTHENTICAMD:19:61:2 FREEZE.CONTROL:ABSENT FREEZE.COUNTERS:SKIPPED";

#[test]
fn codes_in_any_order_and_scanned_twice_are_the_report() {
    for text in
        [format!("{FIRST}\n{SECOND}\n"), format!("{SECOND}\r\nQR-Code:{FIRST}\r\n\n{SECOND}")]
    {
        let report = decode(&text).unwrap();
        let processor = &report.processor;
        assert_eq!(processor.vendor, "AuthenticAMD");
        assert_eq!((processor.family, processor.model, processor.stepping), (0x19, 0x61, 2));
        assert_eq!(report.machine, MachineKind::Hardware);
        let claims: Vec<_> = report
            .claims
            .iter()
            .map(|claim| (claim.id.as_str(), claim.outcome, claim.evidence.reason))
            .collect();
        let expected = [
            ("interrupt.nmi", Outcome::Agrees, None),
            ("interrupt.late", Outcome::Disagrees, None),
            ("freeze.control", Outcome::NotTried, Some(Reason::Absent)),
            ("freeze.counters", Outcome::NotTried, Some(Reason::Skipped)),
        ];
        assert_eq!(claims, expected);
    }
}

#[test]
fn a_missing_code_and_a_code_of_another_report_are_told() {
    assert_eq!(decode(FIRST), Err(DecodeError::Missing(2)));
    assert_eq!(decode(SECOND), Err(DecodeError::Missing(1)));
    let other = SECOND.replace(":61:", ":62:");
    assert_eq!(decode(&format!("{FIRST}\n{other}")), Err(DecodeError::Different));
    let changed = FIRST.replace("NMI:AGREES", "NMI:DISAGREES");
    assert_eq!(decode(&format!("{FIRST}\n{changed}\n{SECOND}")), Err(DecodeError::Different));
    assert_eq!(decode("nothing\n"), Err(DecodeError::Nothing));
}

#[test]
fn texts_that_are_no_codes_are_refused() {
    for text in [
        "PMU1 x",
        "PMU1 1/1",
        "PMU1 0/1 HARDWARE A:6:8F:8 X:AGREES",
        "PMU1 2/1 HARDWARE A:6:8F:8 X:AGREES",
        "PMU1 1/99999999999 HARDWARE A:6:8F:8 X:AGREES",
        "PMU1 1/1 HARDWARE A:6:8F:8",
        "PMU1 1/1 HARDWARE A:6:8F X:AGREES",
        "PMU1 1/1 HARDWARE A:6:1FF:8 X:AGREES",
        "PMU1 1/1 HARDWARE A:6:8F:8 X",
    ] {
        assert!(matches!(decode(text), Err(DecodeError::Code(_))), "{text}");
    }
    assert!(matches!(decode("{\"schema\":1}"), Err(DecodeError::Report(_))));
}

#[test]
fn the_serial_line_has_the_same_report() {
    let line = r#"{"schema":1,"machine":"hardware","processor":{"vendor":"AuthenticAMD","family":25,"model":97,"stepping":2,"brand":"B","microcode":null,"core_type":null},"kernel":"pmu-kernel 0.2.0","hypervisor":null,"seed":"0x0","registers":[],"restored":{"worker_ended_well":true,"restored":0,"left_alone":[],"failed":[]},"claims":[{"id":"interrupt.nmi","outcome":"agrees"},{"id":"interrupt.late","outcome":"disagrees"},{"id":"freeze.control","outcome":"not-tried","evidence":{"reason":"absent"}},{"id":"freeze.counters","outcome":"not-tried","evidence":{"reason":"skipped"}}]}"#;
    let serial =
        decode(&format!("boot multiboot2 processors 2\r\n{line}\r\nend good\r\n")).unwrap();
    let codes = decode(&format!("{FIRST}\n{SECOND}")).unwrap();
    assert_eq!(serial.claims, codes.claims);
    assert_eq!(serial.processor.brand, "B");
}

/// The ids of the kernel's list, which is no crate that this one could use.
#[test]
fn the_claims_of_the_kernel_are_those_of_the_stick_in_the_list() {
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel/src/check/list.rs");
    let text = std::fs::read_to_string(list).unwrap();
    let of_kernel: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'))
        .map(|(id, _)| id)
        .collect();
    assert!(of_kernel.len() > 15, "{of_kernel:?}");
    for id in &of_kernel {
        assert!(find(id).is_some(), "{id} is no claim");
    }
    for known in CLAIMS.iter().filter(|known| known.tried == Tried::Stick) {
        assert!(of_kernel.contains(&known.id), "the kernel does not try {}", known.id);
    }
}
