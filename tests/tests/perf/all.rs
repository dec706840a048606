//! All machines of all configurations.

/// Passes each machine to a generic function: those of x86 with all facilities and with fewer, each core of a hybrid,
/// Zen 3 with its branch sampling, and those of Arm.
macro_rules! on_every_machine {
    ($check:expr) => {{
        let plain = crate::models::models().into_iter().chain(crate::models::lesser_models());
        for model in plain.chain(crate::models::hybrid()) {
            $check(crate::machine::Machine::new(&model));
        }
        $check(crate::brs::Zen3Machine::new());
        for machine in crate::arm::ArmMachine::each() {
            $check(machine);
        }
    }};
}
pub(crate) use on_every_machine;
