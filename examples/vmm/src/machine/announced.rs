//! The PMU that the guest gets: the command line's, without events that are not fed; and the messages about it.

use kvm_bindings::CpuId;
use pmu_virt::branches::BranchConfiguration;
use pmu_virt::configuration::{Configuration, IntelFeature};
use pmu_virt::precise::PreciseRecords;

use crate::boot::image::Image;
use crate::count::quantity::Quantity;
use crate::emulation::{offered, pvm};
use crate::guest_pmu::spec::GuestPmu;
use crate::messages::say;
use crate::options::{Count, Options};

/// Limit of `--count step` on KVM with hardware virtualization, which is untried.
const NOT_EXACT: &str = "not exact where handlers of interrupts and exceptions run";

/// Returns the guest's PMU without the events that are not fed, where CPUID can express that.
pub(crate) fn with_events_of(configuration: Configuration, fed: &[Quantity]) -> Configuration {
    let available = fed.iter().fold(0, |bits, what| bits | what.architectural());
    match configuration {
        Configuration::Intel(pmu) => {
            Configuration::Intel(pmu.with(|intel| intel.events = pmu.events & available))
        }
        other => other,
    }
}

/// Returns the guest's PMU with the qualifiers of event selects that its CPUID announces, by TSX or SVM, though the
/// monitor hides it: a driver that goes by CPUID would have #GP, or count without the qualifier.
pub(crate) fn with_qualifiers_of(configuration: Configuration, seen: &CpuId) -> Configuration {
    // Leaf 7, EBX: 4 HLE, 11 RTM. Leaf 0x8000_0001, ECX: 2 SVM.
    let sees_tsx = offered::leaf(seen, 7, 0)[1] & (1 << 4 | 1 << 11) != 0;
    let sees_svm = offered::leaf(seen, 0x8000_0001, 0)[2] & 1 << 2 != 0;
    let (feature, bits) = match configuration {
        Configuration::Intel(intel) if sees_tsx && !intel.has(IntelFeature::Transactional) => {
            ("TSX", "IN_TX and IN_TXCP")
        }
        Configuration::Amd(amd) if sees_svm && !amd.guest_host => ("SVM", "GuestOnly and HostOnly"),
        _ => return configuration,
    };
    say(&format_args!(
        "this KVM shows the guest {feature}: event selects have {bits}, and count nothing with them"
    ));
    match configuration {
        Configuration::Intel(intel) => {
            Configuration::Intel(intel.with(|intel| intel.set(IntelFeature::Transactional, true)))
        }
        Configuration::Amd(amd) => Configuration::Amd(amd.with(|amd| amd.guest_host = true)),
        hidden => hidden,
    }
}

/// Returns the guest's PMU with the legacy branch records of Skylake, if the PMU has architectural ones that this KVM
/// does not show: kvm-pvm clears the bit that declares these.
pub(crate) fn with_records_of(guest_pmu: GuestPmu, seen: &CpuId) -> Option<GuestPmu> {
    // Leaf 7, EDX: 19 architectural branch records.
    let shown = offered::leaf(seen, 7, 0)[3] >> 19 & 1 != 0;
    let architectural = matches!(guest_pmu.branches, Some(BranchConfiguration::Architectural(_)));
    if shown || !architectural {
        return None;
    }
    say(&"this KVM hides architectural branch records: the guest gets those of Skylake");
    Some(GuestPmu { branches: Some(BranchConfiguration::Legacy { format: 5 }), ..guest_pmu })
}

/// Says that the guest's CPUID hides its precise records, if this KVM does so.
pub(crate) fn tell_hidden(guest_pmu: &GuestPmu, seen: &CpuId) {
    // Leaf 1, EDX: 21 Debug Store. Leaf 7 sub-leaf 1, EAX: 8 leaf 0x23, which declares architectural PEBS.
    let (shown, what) = match guest_pmu.precise.map(|precise| precise.records) {
        None | Some(PreciseRecords::None) => return,
        Some(PreciseRecords::DebugStore(_)) => {
            (offered::leaf(seen, 1, 0)[3] >> 21 & 1 != 0, "the Debug Store (leaf 1, EDX bit 21)")
        }
        Some(PreciseRecords::Architectural(_)) => {
            (offered::leaf(seen, 7, 1)[0] >> 8 & 1 != 0, "leaf 0x23 (leaf 7.1, EAX bit 8)")
        }
    };
    if !shown {
        say(&format_args!("this KVM hides {what}: a guest that asks CPUID has no precise records"));
    }
}

/// Prints the source of each event, so that none is mistaken for another.
pub(crate) fn announce(
    options: &Options,
    pmu: &Configuration,
    fed: &[Quantity],
    image: &Image<'_>,
) {
    say(&format_args!("{} by {}", options.kernel.display(), image.protocol()));
    if let Configuration::Hidden(_) = pmu {
        say(&"no PMU");
        return;
    }
    let source = match options.count {
        Count::Time => format!(
            "the time the guest ran, at nominally {} MHz, {} instructions and {} branches in 1000 cycles",
            options.frequency, options.rate, options.branch_rate
        ),
        Count::Step => format!(
            "single steps: instructions and branches are {}, a cycle is an instruction",
            if pvm::is_there() { "exact" } else { NOT_EXACT }
        ),
        Count::Perf => "the host's counters".into(),
    };
    let known = |what: &&Quantity| !what.keys(pmu.vendor()).is_empty();
    let names = |quantities: &mut dyn Iterator<Item = &Quantity>| {
        quantities.filter(known).map(|what| what.name()).collect::<Vec<_>>().join(", ")
    };
    say(&format_args!("PMU {}, counting {source}", options.pmu));
    say(&format_args!(
        "fed: {}; not fed: {}, and everything else",
        names(&mut fed.iter()),
        names(&mut Quantity::ALL.iter().filter(|what| !fed.contains(what)))
    ));
}
