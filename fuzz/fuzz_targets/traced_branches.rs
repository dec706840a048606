#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmu_fuzz::traced_branches::run(bytes));
