//! Exits of the guest, as requests to the monitor.

use kvm_bindings::{
    KVM_INTERNAL_ERROR_EMULATION, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN,
    kvm_debug_exit_arch,
};
use kvm_ioctls::VcpuExit;

use crate::error::Error;
use crate::processor::state::Processor;
use crate::shared::end::End;
use crate::shared::ports::MARK;
use crate::stats::Exit;
use crate::trace::What;

/// The guest's request to the monitor.
pub(crate) enum Wants {
    Nothing(Exit),
    Rdmsr(u32),
    Wrmsr(u32, u64),
    Debug(kvm_debug_exit_arch),
    End(End),
    /// KVM does not know the instruction.
    Emulation,
    /// KVM cannot continue.
    Stuck(String),
    TripleFault,
}

impl Processor {
    /// Runs the guest until its next request, in a phase of the statistics.
    pub(crate) fn run_guest(&mut self) -> Result<(u8, Wants), Error> {
        let ports = &self.machine.ports;
        let exit = self.machine.rendezvous.inside(|| self.vcpu.run());
        let phase = ports.phase();
        let wants = match exit {
            Ok(VcpuExit::X86Rdmsr(access)) => Wants::Rdmsr(access.index),
            Ok(VcpuExit::X86Wrmsr(access)) => Wants::Wrmsr(access.index, access.data),
            Ok(VcpuExit::IoIn(port, bytes)) => {
                ports.read(port, bytes);
                Wants::Nothing(Exit::PortIn)
            }
            Ok(VcpuExit::IoOut(port, bytes)) => {
                if let (MARK, Some(trace), [phase, ..]) = (port, &self.machine.trace, bytes) {
                    trace.line(self.number, What::Mark, port.into(), Some((*phase).into()), None);
                }
                ports.write(port, bytes).map_or(Wants::Nothing(Exit::PortOut), Wants::End)
            }
            Ok(VcpuExit::MmioRead(_, bytes)) => {
                bytes.fill(0xFF);
                Wants::Nothing(Exit::Mmio)
            }
            Ok(VcpuExit::MmioWrite(..)) => Wants::Nothing(Exit::Mmio),
            Ok(VcpuExit::Debug(why)) => Wants::Debug(why),
            Ok(VcpuExit::Shutdown) => Wants::TripleFault,
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _)) => {
                Wants::End(End::Orderly("shut down"))
            }
            Ok(VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET, _)) => {
                Wants::End(End::Orderly("reset the machine"))
            }
            Ok(VcpuExit::InternalError) => {
                // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which KVM fills this part of the
                // union.
                let internal = unsafe { self.vcpu.get_kvm_run().__bindgen_anon_1.internal };
                match internal.suberror {
                    KVM_INTERNAL_ERROR_EMULATION => Wants::Emulation,
                    suberror => Wants::Stuck(format!("internal error {suberror}")),
                }
            }
            Ok(VcpuExit::FailEntry(reason, _)) => {
                Wants::Stuck(format!("no entry, hardware's reason is {reason:#x}"))
            }
            Ok(VcpuExit::Intr | VcpuExit::IrqWindowOpen) => Wants::Nothing(Exit::Other),
            Ok(other) => Wants::Stuck(format!("{other:?}")),
            Err(error) if error.errno() == libc::EINTR => Wants::Nothing(Exit::Kick),
            // A processor that waits for its start-up was woken.
            Err(error) if error.errno() == libc::EAGAIN => Wants::Nothing(Exit::Other),
            Err(error) => return Err(Error::kvm("KVM_RUN")(error)),
        };
        Ok((phase, wants))
    }
}
