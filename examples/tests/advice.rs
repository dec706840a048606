//! Advice of `profile`: an error names its reason, and the next step to take.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::process::{Command, Output};

const PROFILE: &str = env!("CARGO_BIN_EXE_profile");

fn profile(arguments: &[&str]) -> Output {
    Command::new(PROFILE).args(arguments).output().expect("the program runs")
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The first is Intel's, the second AMD's, so that every machine lacks one.
#[test]
fn a_source_that_the_machine_lacks_has_one_reason_in_every_spelling() {
    let spellings = [
        ["TotalCycles", "totalCYCLES", "PROFILETOTALCYCLES"],
        ["FRInterruptsMaskedCycles", "frINTERRUPTSmaskedCYCLES", "profilefrinterruptsmaskedcycles"],
    ];
    let mut missing = 0;
    for spellings in spellings {
        let complaints =
            spellings.map(|name| complaint(&profile(&["--source", name, "--", "true"])));
        let denied = complaints.each_ref().map(|text| text.contains("no profile source"));
        assert_eq!(denied, [denied[0]; 3], "{complaints:?}");
        for (name, complaint) in spellings.iter().zip(complaints).filter(|_| denied[0]) {
            missing += 1;
            assert!(
                complaint.contains(name) && complaint.contains("`profile --list`"),
                "{complaint}"
            );
            assert!(!complaint.contains("pmcsources"), "{complaint}");
            // One reason: the name is no misspelled event's.
            assert!(!complaint.contains("nearest"), "{complaint}");
            let builtin = profile(&["--seconds", "1", "--source", name]);
            assert_eq!(builtin.status.success(), complaint.contains("built-in"), "{complaint}");
        }
    }
    assert!(missing >= 3, "{missing}");
}

#[test]
fn a_source_of_the_machine_is_not_denied_for_want_of_a_command() {
    for name in ["LLCMisses", "FRInterruptsMaskedCycles"] {
        let complaint = complaint(&profile(&["--source", name]));
        let list = String::from_utf8(profile(&["--list"]).stdout).unwrap();
        let told = if list.contains(&format!(" {name} ")) { "give a COMMAND" } else { name };
        assert!(complaint.contains(told), "{complaint}");
    }
}
