//! `--pmu intel:…,topdown`: the metrics of a guest are those of its issue slots, by the monitor's rates.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod guest;

use guest::{
    GLOBAL_CONTROL, exit, image, kvm, messages, numbers, print, print_counter, run, wrmsr,
};
use iced_x86::code_asm::*;

// SDM vol. 4 and vol. 3B, "Performance Metrics".
const FIXED_CONTROL: u32 = 0x38D;
const SLOTS: u32 = 0x30C;
const METRICS: u32 = 0x329;
const CAPABILITIES: u32 = 0x345;
/// Fixed counter 3 and the metrics, in the global control.
const BOTH: u64 = 1 << 35 | 1 << 48;

#[test]
fn issue_slots_are_divided_by_the_stated_rate_of_instructions() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            let mut again = a.create_label();
            wrmsr(a, SLOTS, 0)?;
            wrmsr(a, METRICS, 0)?;
            wrmsr(a, FIXED_CONTROL, 0b11 << 12)?;
            wrmsr(a, GLOBAL_CONTROL, BOTH)?;
            a.mov(ebx, 200_000)?;
            a.set_label(&mut again)?;
            a.dec(ebx)?;
            a.jnz(again)?;
            wrmsr(a, GLOBAL_CONTROL, 0)?;
            print_counter(a, SLOTS)?;
            print_counter(a, METRICS)?;
            // RDPMC of the metrics.
            a.mov(ecx, 1 << 29)?;
            a.rdpmc()?;
            print(a)?;
            print_counter(a, CAPABILITIES)?;
            exit(a, 0x10)
        },
        &[(13, |a| exit(a, 0x11))],
    );
    // A quarter and half of all slots retire; 255 is all.
    for (rate, retiring) in [(1000, 63), (2000, 127)] {
        let options = format!("--pmu intel:version=5,fixed=4,topdown --rate {rate} --timeout 20");
        let output = run(&kernel, &options);
        assert_eq!(output.status.code(), Some(33), "{}", messages(&output));
        let [slots, metrics, by_rdpmc, capabilities] = numbers(&output)[..] else { panic!() };
        assert!(slots > 100_000, "{slots}");
        assert_eq!((metrics, by_rdpmc), (retiring | (255 - retiring) << 24, metrics), "{rate}");
        assert_eq!(capabilities >> 15 & 1, 1);
    }
}

/// Without `topdown`, the register faults.
#[test]
fn a_guest_without_metrics_has_no_register_of_them() {
    if !kvm() {
        return;
    }
    let kernel = image(
        |a| {
            print_counter(a, CAPABILITIES)?;
            print_counter(a, METRICS)?;
            exit(a, 1)
        },
        &[(13, |a| exit(a, 0x10))],
    );
    guest::expect(&kernel, "--pmu intel:version=5,fixed=4", &[0]);
}
