//! A host's branch records while its counters are a mediated guest's.

use super::machine::*;
use pmu_core::access::{RegisterAddress, RegisterBackend};
use pmu_core::branch_recording::BranchRecorder;
use pmu_core::branches::{BranchFilter, BranchMemory, BranchSlot, Branches};
use pmu_core::memory::{CounterMemory, CounterSlot, EventEntry, EventTable};
use pmu_core::registers::MAX_COUNTERS;
use pmu_core::{CounterSession, CounterSet, Events};
use pmu_virt::branches::{BranchConfiguration, FedBranch, FedBranchKind, VirtualBranches};
use pmu_virt::configuration::{Configuration, Vendor};
use pmu_virt::mediated::GuestInterrupts;
use pmu_virt::{Privilege, VirtualPmu, Write};

/// `IA32_DEBUGCTL`, `IA32_LBR_CTL`, `DBG_EXTN_CFG` (SDM vol. 4, table 2-2; APM vol. 2, "Last Branch Stack Registers").
const ENABLES: [u32; 3] = [0x1D9, 0x14CE, 0xC000_010F];

#[test]
fn a_mediated_guest_is_not_recorded_and_finds_no_record() {
    for (host, given) in pairs() {
        let kind = match host {
            Configuration::Amd(_) => BranchConfiguration::AMD,
            Configuration::Intel(intel) if intel.version < 5 => {
                BranchConfiguration::Legacy { format: 5 }
            }
            _ => BranchConfiguration::ARCHITECTURAL,
        };
        let mock = processor(host).with_branches(VirtualBranches::new(&host, kind).unwrap());
        let snapshot = mock.snapshot();
        let (unit, branches) = match host.vendor() {
            Vendor::Intel => {
                (pmu_intel::counters(&snapshot), pmu_intel::branches(&snapshot, &mock))
            }
            Vendor::Amd => (pmu_amd::counters(&snapshot), pmu_amd::branches(&snapshot)),
        };
        let branches = branches.unwrap();
        let (memory, table) = (
            CounterMemory::<[CounterSlot; MAX_COUNTERS]>::new(),
            EventTable::<[EventEntry; 4]>::new(),
        );
        let records = BranchMemory::<[BranchSlot; 32]>::new();
        let source = Events::new(&unit, &table as &EventTable);
        let source = source.with(Branches::new(&branches, &records));
        let mut counters =
            CounterSession::take(source, &unit, CounterSet::ALL, &mock, &memory).unwrap();
        let mut recorder = BranchRecorder::take(&branches, &mock, &records).unwrap();
        recorder.freeze_on_interrupt().unwrap();
        recorder.start(BranchFilter::ALL).unwrap();
        let branch = |from| {
            mock.branch(&FedBranch::new(
                from,
                0x9000,
                FedBranchKind::IndirectCall,
                Privilege::User,
            ));
        };
        branch(0x1000);

        let mut guest = VirtualPmu::new(given, events()).unwrap();
        let (cell, of_guests) = (GuestInterrupts::default(), host_counters(host));
        let mut window = counters.lend(0, |_| ()).unwrap();
        let loaded = of_guests.load(window.lent(), &mut guest, &cell, &mock).unwrap();
        branch(0x2000);
        // SAFETY: the mock's registers are numbers.
        let newest = mock.read(unsafe { RegisterAddress::new(branches.registers().from) });
        assert_eq!(newest, Ok(0), "{host:?}: no branch of the host or the guest");
        for enable in ENABLES {
            assert_ne!(guest.write(enable, 1).answer, Write::Done, "{host:?}: {enable:#X}");
        }
        // An interrupt of the guest does not freeze what the host records later.
        mock.with_branch_records(pmu_virt::GuestFacility::pmi_raised);
        let put = of_guests.put(loaded, 0, &mut guest, &mock).unwrap();
        assert!(!put.interrupt_is_coming);
        window.end(0).unwrap();

        branch(0x3000);
        let found: Vec<u64> = recorder.read().unwrap().iter().map(|branch| branch.from).collect();
        assert_eq!(found, [0x3000], "{host:?}");
        recorder.shut_down().unwrap();
        counters.shut_down().unwrap();
        assert_eq!(mock.breach(), None, "{host:?}");
    }
}
