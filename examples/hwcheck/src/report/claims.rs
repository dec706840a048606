//! The claims by their ids. An id never changes its meaning, and none is given twice.

// To add a claim: its id; its row in `docs/untried.md` and in the tool's README; the table of `hardware/README.md`
// anew, by `cargo run --bin hwcheck -- --table hardware`; and the code that tries it, unless that comes later: in
// `programs` or `counts` of the tool, or for the stick a function and its line in `examples/kernel/src/check/list.rs`.

/// A claim that the tool knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The claim's id. An id that ends with a period is completed by a source's name.
    pub id: &'static str,
    /// Statement of the claim.
    pub claim: &'static str,
    /// The place where the claim is tried.
    pub tried: Tried,
}

/// The place where a claim is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// By this tool, without a write.
    Reading,
    /// By this tool.
    Linux,
    /// By the kernel example's stick, on a machine without an operating system: `examples/kernel/run.sh image`.
    Stick,
    /// On bare metal: a later order.
    BareMetal,
}

const fn known(id: &'static str, tried: Tried, claim: &'static str) -> Known {
    Known { id, claim, tried }
}

/// Every claim, in the order in which they are tried.
pub const CLAIMS: [Known; 85] = {
    use Tried::{BareMetal, Linux, Reading, Stick};
    [
        known("model.absent", Reading, "registers that CPUID does not declare fault"),
        known(
            "model.read-only",
            Reading,
            "registers of capabilities and of what is in use read as modeled",
        ),
        known(
            "model.event-select",
            Linux,
            "event selects take and drop bits, and fault, as modeled",
        ),
        known(
            "model.general-counter",
            Linux,
            "general counters take values at each address as modeled",
        ),
        known("model.fixed-counter", Linux, "fixed counters take values as modeled"),
        known("model.fixed-control", Linux, "the fixed counters' control takes bits as modeled"),
        known("model.global-control", Linux, "the global control takes bits as modeled"),
        known(
            "model.global-status",
            Linux,
            "the global status is read and acknowledged as modeled",
        ),
        known("rdpmc.counters", Linux, "RDPMC reads what was written to a counter"),
        known("rdpmc.absent", Linux, "RDPMC of a counter that CPUID does not declare faults"),
        known("driver.take", Linux, "the counter layer takes, proves and gives back the counters"),
        known("count.instructions.general", Linux, "instructions are exact on a general counter"),
        known("count.instructions.fixed", Linux, "instructions are exact on a fixed counter"),
        known("count.instructions.raw", Linux, "event 0xC0 counts instructions exactly"),
        known("count.branches.general", Linux, "branches are exact on a general counter"),
        known(
            "count.branches.raw",
            Linux,
            "the event of branches, by its number, counts them exactly",
        ),
        known("count.taken-branches.raw", Linux, "the event of taken branches counts them exactly"),
        known("source.emon.", Linux, "a source of the Emon interface counts what its name says"),
        known("source.amd64.", Linux, "a source of the Amd64 interface counts what its name says"),
        known("interrupt.vector", Stick, "an overflow interrupts by a vector"),
        known("interrupt.nmi", Stick, "an overflow interrupts by an NMI"),
        known("interrupt.period", Stick, "a period is kept: no overflow is lost, none invented"),
        known("firmware.running", Stick, "no counter is left running by firmware"),
        known("firmware.overflowed", Stick, "no overflow is left unacknowledged by firmware"),
        known(
            "firmware.frozen",
            Stick,
            "the counters are left neither frozen nor freezing by firmware",
        ),
        known("firmware.precise", Stick, "no counter is left enabled for PEBS by firmware"),
        known(
            "processors.same-counters",
            Stick,
            "the second processor has the counters of the boot processor",
        ),
        known("counter.full-width", Stick, "a counter takes a value of all its bits"),
        known(
            "interrupt.mask-on-delivery",
            Stick,
            "delivery masks the LVT entry on Intel, and not on AMD",
        ),
        known("interrupt.second", Stick, "two overflows at once interrupt once"),
        known(
            "interrupt.while-masked",
            Stick,
            "an overflow while the LVT entry is masked does not interrupt, then or later",
        ),
        known(
            "interrupt.raise-on-unmask",
            Stick,
            "unmasking the LVT entry while a bit of the status is set does not interrupt",
        ),
        known("interrupt.again", Stick, "an overflow while another is serviced is in the status"),
        known(
            "interrupt.late",
            Stick,
            "after a counter was stopped, an interrupt comes only of an overflow that it had by then",
        ),
        known("freeze.control", Stick, "the bit that freezes is kept"),
        known(
            "freeze.acknowledge",
            Stick,
            "the acknowledge register takes the bit of frozen counters",
        ),
        known(
            "freeze.counters",
            Stick,
            "the counters freeze on the performance interrupt where that is set, and not otherwise",
        ),
        known(
            "driver.reprogram",
            Stick,
            "counters whose registers were cleared count again once they are programmed again",
        ),
        known("init.registers", Stick, "INIT leaves event selects and counters as they are"),
        known(
            "debug-store.control-area",
            BareMetal,
            "the Debug Store writes where its control area says",
        ),
        known(
            "virtualization.mediated",
            BareMetal,
            "a guest's counters are switched with VMX and SVM",
        ),
        known(
            "event.extra-registers",
            BareMetal,
            "an event's extra register refines what is counted, and is shared",
        ),
        known("version-6.leftovers", BareMetal, "what version 6 has left on is taken away"),
        known(
            "branches.registers",
            Stick,
            "the registers of branch records are there, and hold what is written, where they are declared",
        ),
        known(
            "branches.depth",
            Stick,
            "each legacy stack is as deep as its model's, and its newest record is where the index says",
        ),
        known("branches.formats", BareMetal, "each format's words say what they are decoded to"),
        known(
            "branches.filter",
            Stick,
            "only the branches that the filter selects are recorded, on each thread of a core",
        ),
        known(
            "branches.call-stack",
            BareMetal,
            "a call stack has the callers, and is found again after it was saved and written back",
        ),
        known(
            "branches.clear",
            BareMetal,
            "a write of the depth clears architectural records, also while the processor records",
        ),
        known(
            "branches.freeze",
            Stick,
            "frozen records have no branch of the handler, and their acknowledgement releases them",
        ),
        known(
            "branches.not-frozen",
            BareMetal,
            "AMD's DebugCtl has no freeze bit where CPUID does not declare it",
        ),
        known(
            "branches.sampling",
            BareMetal,
            "Zen 3's branch sampling starts with the first record, and lets the interrupt go once stopped",
        ),
        known(
            "branches.debug-exception",
            BareMetal,
            "a debug exception ends the recording of AMD's last-branch stack",
        ),
        known(
            "reload.registers",
            BareMetal,
            "the registers of counter reload are there for the counters that leaf 0x23 declares",
        ),
        known(
            "reload.value",
            BareMetal,
            "an overflow loads a counter with bits 31:0 of CFG_C, extended with ones",
        ),
        known(
            "reload.itself",
            BareMetal,
            "a counter that reloads itself never sets its bit of the status, and does not interrupt without its interrupt bit",
        ),
        known(
            "reload.group",
            BareMetal,
            "a sampled event interrupts only where its period ends before the reloading event's",
        ),
        known(
            "topdown.registers",
            BareMetal,
            "the metrics are there where IA32_PERF_CAPABILITIES declares them, with level 2 on the models that have it",
        ),
        known(
            "topdown.shares",
            BareMetal,
            "the shares add up to the slots within rounding, and a loop of independent additions retires most of them",
        ),
        known(
            "topdown.start",
            BareMetal,
            "the fractions are of the slots since both registers were written, the slots first",
        ),
        known(
            "topdown.overflow",
            BareMetal,
            "the slots and the metrics overflow with bits 35 and 48 of the status, and interrupt",
        ),
        known(
            "topdown.e-core",
            BareMetal,
            "an E-core's counts of the four parts add up to its slots",
        ),
        known(
            "ibs.registers",
            Reading,
            "the registers that leaf 0x8000001B declares are there, and no other",
        ),
        known(
            "ibs.entry",
            Stick,
            "IBS_CTL names an extended entry, which is where the manual says in both modes of the local APIC",
        ),
        known(
            "ibs.period",
            Linux,
            "a loop of N ops has N samples per period, within the period's random bits",
        ),
        known(
            "ibs.address",
            Linux,
            "each sample of a hand-counted loop is at an address of one of its instructions",
        ),
        known("ibs.latency", Linux, "the latencies of a load that misses are above zero"),
        known(
            "ibs.stop",
            Stick,
            "a sample that comes with a stop keeps its registers, and its interrupt comes once",
        ),
        known(
            "ibs.errata",
            Stick,
            "the errata are those of the families and models that the driver knows",
        ),
        known(
            "ibs.fetch-address",
            Stick,
            "a fetch sample has the address 0 only on the models that the driver knows",
        ),
        known(
            "precise.registers",
            Stick,
            "the registers of precise records that CPUID declares are there, and their enable bits are those of the counters that can write records",
        ),
        known(
            "precise.formats",
            Stick,
            "the records of a hand-counted loop have the format that IA32_PERF_CAPABILITIES declares",
        ),
        known(
            "precise.address",
            Stick,
            "each record of a hand-counted loop is of one of its branch instructions",
        ),
        known(
            "precise.threshold",
            Stick,
            "the buffer's threshold interrupts once, with bit 62 or 54 of the status",
        ),
        known(
            "precise.status",
            Stick,
            "the interrupt of a record finds no bit of the record's counter in the status",
        ),
        known("precise.index", Stick, "the index is behind the last record"),
        known("precise.collisions", Stick, "counters that overflow together write a record each"),
        known(
            "precise.reload",
            Stick,
            "the processor loads a counter again after each record, from the area's reset value",
        ),
        known(
            "precise.exact",
            BareMetal,
            "the records of the counters that the driver calls exact are of the instruction that overflowed",
        ),
        known(
            "precise.cycles",
            BareMetal,
            "in place of cycles, an event is recorded that happens in each cycle",
        ),
        known(
            "precise.latency",
            BareMetal,
            "the latencies of sampled loads are at or above the threshold",
        ),
        known("precise.freeze", Stick, "frozen counters write no record"),
        known("precise.guests", BareMetal, "while a guest runs, no record is written"),
        known(
            "precise.branch-trace",
            BareMetal,
            "a hand-counted loop's branches are traced in order, and filtered by privilege level",
        ),
        known(
            "platform.deviations",
            BareMetal,
            "the platforms' deviations are those that the mock plays",
        ),
    ]
};

/// The claim with this id, or that of its list.
pub fn find(id: &str) -> Option<&'static Known> {
    CLAIMS.iter().find(|known| match known.id.strip_suffix('.') {
        Some(list) => {
            id.strip_prefix(list).is_some_and(|name| name.starts_with('.') && name.len() > 1)
        }
        None => known.id == id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_and_a_name_in_a_list_and_nothing_else() {
        assert_eq!(find("model.event-select").map(|known| known.tried), Some(Tried::Linux));
        assert_eq!(find("source.emon.TotalIssues").map(|known| known.id), Some("source.emon."));
        for unknown in ["", "model", "model.event-select.", "source.emon", "source.emon.", "a"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn no_id_is_given_twice() {
        for (place, known) in CLAIMS.iter().enumerate() {
            assert!(CLAIMS[..place].iter().all(|before| before.id != known.id), "{}", known.id);
        }
    }
}
