#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pmu_fuzz::perf_event::run(bytes));
