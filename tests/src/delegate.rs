//! Registers of a test's kernel.

/// Implements `RegisterBackend` for a type without fields, by the mock that the function returns. A kernel's backend is
/// `Sync`, and a reference to a mock is not.
#[macro_export]
macro_rules! delegate_registers {
    ($registers:ty, $mock:path) => {
        impl ::pmu_core::access::RegisterBackend for $registers {
            type Error = ::pmu_core::access::AccessErrorKind;
            fn read(
                &self,
                address: ::pmu_core::access::RegisterAddress,
            ) -> Result<u64, Self::Error> {
                $mock().read(address)
            }
            fn write(
                &self,
                address: ::pmu_core::access::RegisterAddress,
                value: u64,
            ) -> Result<(), Self::Error> {
                $mock().write(address, value)
            }
            fn read_counter(
                &self,
                index: ::pmu_core::access::CounterIndex,
            ) -> Result<u64, Self::Error> {
                $mock().read_counter(index)
            }
            fn update(
                &self,
                update: ::pmu_core::access::RegisterUpdate,
            ) -> Result<u64, Self::Error> {
                $mock().update(update)
            }
        }
    };
}

/// The local APIC of a mock as a kernel returns it: `delegate_apic!(Type, mock, entry)`, of which `mock()` is the mock,
/// and `entry` what the kernel wrote into the entry for performance counters.
#[macro_export]
macro_rules! delegate_apic {
    ($apic:ty, $mock:path, $entry:expr) => {
        impl ::pmu::apic::ApicRegisters for $apic {
            fn write_performance_entry(&self, entry: ::pmu::apic::LvtEntry) {
                panic!("{entry:?}: the kernel has a function for it")
            }
            fn read_performance_entry(&self) -> Option<u32> {
                Some($entry)
            }
            fn read_extended_entry(&self, number: u8) -> Option<u32> {
                (number < 4).then(|| $mock().extended_entry(number))
            }
            fn write_extended_entry(&self, number: u8, entry: u32) {
                $mock().set_extended_entry(number, entry);
            }
        }
    };
}

/// The functions of a kernel of one processor and one thread, within its `impl Kernel`: `one_processor!(Type, mock)`.
/// The type is that of the registers, and `mock()` the mock.
#[macro_export]
macro_rules! one_processor {
    ($registers:ident, $mock:path) => {
        type Registers = $registers;
        fn registers() -> $registers {
            $registers
        }
        fn this_processor() -> usize {
            0
        }
        fn pinned<R>(act: impl FnOnce() -> R) -> R {
            act()
        }
        fn set_interrupt_masked(masked: bool) {
            match masked {
                false => ::pmu_core::Platform::unmask_performance_interrupt($mock()),
                true => ::pmu_core::Platform::mask_performance_interrupt($mock()),
            }
        }
        fn interrupt(_: usize) {}
    };
}
