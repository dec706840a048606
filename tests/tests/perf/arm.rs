//! Machines of Arm, with PMUv3 and without.

use pmu::Arm;
use pmu::arm::registers::{Register, UserEnable};
use pmu::arm::{ArmRegisters, Identification, SystemRegisters, frame};
use pmu::facilities::SoftwareEvents;
use pmu_tests::arm::{Registers, install, model};
use pmu_virt::mock::MockPmuv3;

use crate::kernel::{Port, World};
use crate::subsystem::Perf;
use crate::world::{self, EINVAL, ENOENT, EOPNOTSUPP, Has, INTERRUPTED, System, go_to};

/// The port to Arm.
pub(crate) struct ArmPort;

impl Port for ArmPort {
    type Registers = ArmRegisters<Registers>;
    type Architecture = Arm<SoftwareEvents>;
    const REGISTERS: Self::Registers = ArmRegisters::new(Registers);
    fn set_interrupt_masked(masked: bool) {
        model().set_unmasked(!masked);
    }
}

pub(crate) struct ArmMachine {
    name: String,
    perf: &'static Perf<World<ArmPort>>,
    has: Has,
}

impl ArmMachine {
    /// Makes machines with counters of 32 and of 64 bits, with the kernel at EL1 and at EL2, and one without a PMU.
    pub(crate) fn each() -> impl Iterator<Item = Self> {
        let with = [(false, 1), (true, 1), (false, 2), (true, 2)];
        let with = with.map(|(is_long, level)| (is_long, level, true));
        with.into_iter().chain([(true, 1, false)]).map(Self::new)
    }

    fn new((is_long, level, has_pmu): (bool, u8, bool)) -> Self {
        let model: &'static MockPmuv3 = Box::leak(Box::new(MockPmuv3::new(is_long, level)));
        install(model);
        go_to(0);
        let perf = Perf::new().unwrap();
        world::boot(perf);
        let identification =
            if has_pmu { pmu_tests::arm::identify(model) } else { Identification::NONE };
        perf.pmu.processor_up(&identification).unwrap();
        // The kernel permits reads at EL0 (`PMUSERENR_EL0`).
        let open = UserEnable::new().with_cycle_counter(true).with_event_counters(true);
        let Ok(()) = SystemRegisters::write(&Registers, Register::Pmuserenr, open.into_bits());
        model.synchronize();
        let (counters, no_facility) = if has_pmu { (6, EOPNOTSUPP) } else { (0, ENOENT) };
        let (branches, precise) = (Err(no_facility), Err(no_facility));
        // The configuration 0x8000 is an event of 16 bits, which ARMv8.0 does not have.
        let part = match (has_pmu, is_long) {
            (false, _) => Err(ENOENT),
            (true, false) => Err(EINVAL),
            (true, true) => Ok(()),
        };
        let has = Has { counters, branches, precise, part };
        Self { name: format!("Arm, {is_long}, EL{level}, {has_pmu}"), perf, has }
    }

    /// Interrupts while the line is active.
    fn interrupts(&self) {
        while model().is_interrupted() {
            let interrupted = self.perf.pmu.interrupt(&frame(INTERRUPTED, 0x5, 0));
            assert_eq!((interrupted.error, interrupted.is_stuck), (None, false), "{}", self.name);
            assert!(interrupted.claim.interrupts() > 0, "{}", self.name);
            model().synchronize();
        }
    }
}

impl System for ArmMachine {
    type Kernel = World<ArmPort>;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn has(&self) -> Has {
        self.has
    }

    fn perf(&self) -> &'static Perf<Self::Kernel> {
        self.perf
    }

    fn work(&self, count: u64, _branch: u64) {
        for event in [MockPmuv3::INST_RETIRED, MockPmuv3::CPU_CYCLES] {
            let mut left = count;
            while left > 0 {
                left -= model().happen(event, 0, left);
                self.interrupts();
            }
        }
    }

    fn lose_registers(&self) {
        model().reset();
    }

    fn read_counter(&self, number: u32) -> u64 {
        model().read_at_el0(number).unwrap()
    }

    fn end(self) {
        self.perf.pmu.processor_down().unwrap();
        if self.has.counters > 0 {
            assert_eq!(model().left(), 0, "{}", self.name);
        }
    }
}
