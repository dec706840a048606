//! Registers and fields, against the data files.

use pmu_intel::registers as intel;
use pmu_intel::topdown::{TopDownCounts, TopDownPart};
use pmu_tests::data;

fn field(register: &str, name: &str) -> (u64, u64) {
    let rows = data!("register_fields.csv");
    let row = rows
        .iter()
        .find(|row| row.text("register") == register && row.text("field") == name)
        .unwrap_or_else(|| panic!("{register} {name}"));
    (row.number("lsb"), row.number("msb"))
}

#[test]
fn registers_and_fields_equal_the_data_files() {
    let rows = data!("registers.csv");
    let address = |name: &str| {
        rows.iter().find(|row| row.text("name") == name).expect("a register").number("address")
    };
    assert_eq!(u64::from(intel::MSR_PERF_METRICS), address("MSR_PERF_METRICS"));
    let bit = |register, name| 1u64 << field(register, name).0;
    let available = bit("IA32_PERF_CAPABILITIES", "PERF_METRICS_AVAILABLE");
    assert_eq!(intel::PERF_METRICS_AVAILABLE, available);
    assert_eq!(u64::from(intel::RDPMC_METRICS), bit("RDPMC_ECX", "PERF_METRICS"));
    let names = [
        "RETIRING",
        "BAD_SPECULATION",
        "FRONTEND_BOUND",
        "BACKEND_BOUND",
        "HEAVY_OPERATIONS",
        "BRANCH_MISPREDICTS",
        "FETCH_LATENCY",
        "MEMORY_BOUND",
    ];
    for (name, part) in
        names.into_iter().zip(TopDownPart::LEVEL_1.into_iter().chain(TopDownPart::LEVEL_2))
    {
        let (lsb, msb) = field("MSR_PERF_METRICS", name);
        assert_eq!(msb - lsb, 7);
        let counts = TopDownCounts::of_registers(255, 77 << lsb, true);
        assert_eq!(counts.of(part), Some(77), "{part}");
    }
}

/// The counter of the slots comes before the metrics: the fractions are of the slots since then.
#[test]
fn the_slots_are_written_before_the_metrics_and_the_control_last() {
    use pmu_core::access::AccessOperation;
    let processor = crate::support::processors()[2];
    let mock = processor.mock();
    let kernel = crate::support::Kernel::new(&processor, &mock);
    let mut session = kernel.take(&mock);
    // The first start also checks the register of the metrics.
    let group = kernel.start(&mut session);
    session.disable(group, 0).unwrap();
    mock.clear();
    session.enable(group, 0).unwrap();
    let written = |mock: &crate::support::Mock<'_>| -> Vec<u32> {
        let trace = mock.trace();
        let writes = trace.records().filter(|record| record.operation == AccessOperation::Write);
        writes.map(|record| record.register).collect()
    };
    assert_eq!(written(&mock), [0x30C, 0x329, 0x38D]);
    crate::support::pass(&mock, 100, crate::support::MIXES[1]);
    mock.clear();
    kernel.read(&session, group).unwrap();
    assert_eq!(written(&mock), [0x38D, 0x30C, 0x329, 0x38D]);
    mock.clear();
    session.disable(group, 0).unwrap();
    assert_eq!(written(&mock), [0x38D, 0x30C, 0x329]);
}
