#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmu_fuzz::ibs_records::run(bytes));
