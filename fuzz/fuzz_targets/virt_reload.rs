#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmu_fuzz::virt_reload::run(bytes));
