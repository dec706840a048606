//! The decoder of Intel's branch trace store.
//!
//! The bytes: the privilege levels, then a buffer.

use pmu_intel::branch_trace::TracedBranches;

/// Decodes a buffer.
pub fn run(bytes: &[u8]) {
    let Some((levels, buffer)) = bytes.split_first() else { return };
    let (user, kernel) = (levels & 1 != 0, levels & 2 != 0);
    let mut branches = TracedBranches::from_bytes(buffer).limited_to(user, kernel);
    let mut shown = 0;
    for branch in branches.by_ref() {
        for address in [branch.from, branch.to] {
            assert!(if address >> 63 != 0 { kernel } else { user });
        }
        shown += 1;
    }
    assert_eq!(shown + branches.hidden() as usize, buffer.len() / 24);
}
