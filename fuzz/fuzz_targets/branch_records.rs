#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmu_fuzz::branch_records::run(bytes));
