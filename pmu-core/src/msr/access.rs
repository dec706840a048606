//! Accesses that are retried once.

use crate::msr::address::{MsrAddress, PmcIndex};
use crate::msr::backend::MsrBackend;
use crate::msr::fault::{MsrError, MsrFault, MsrOperation};
use crate::msr::update::MsrUpdate;

/// Register accesses that are tried once more after a failure. If the second attempt also fails, the error names the
/// register. Because of the retry, a transient fault does not prevent a driver from stopping a counter, servicing an
/// interrupt, or undoing a change.
///
/// Every backend implements this trait through a blanket implementation; no other implementation is possible.
///
/// ```
/// use pmu_core::msr::{MsrAccess, MsrAddress, MsrBackend, MsrFault};
/// /// Returns whether a counter has overflowed.
/// fn has_overflowed(msr: &impl MsrBackend, status: MsrAddress) -> Result<bool, MsrFault> {
///     Ok(msr.rdmsr_retrying(status)? != 0)
/// }
/// ```
pub trait MsrAccess: MsrBackend {
    /// Executes RDMSR, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn rdmsr_retrying(&self, address: MsrAddress) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::Read, address.get(), || self.read(address))
    }

    /// Executes WRMSR, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn wrmsr_retrying(&self, address: MsrAddress, value: u64) -> Result<(), MsrFault> {
        retry_once(MsrOperation::Write, address.get(), || self.write(address, value))
    }

    /// Executes RDPMC, with one retry.
    ///
    /// # Errors
    /// Both attempts failed.
    #[inline]
    fn rdpmc_retrying(&self, index: PmcIndex) -> Result<u64, MsrFault> {
        retry_once(MsrOperation::ReadPmc, index.get(), || self.read_pmc(index))
    }

    /// Changes bits of a register, with one retry, and returns the register's previous value.
    ///
    /// # Errors
    /// Both attempts failed.
    fn update_retrying(&self, update: MsrUpdate) -> Result<u64, MsrFault> {
        let changes = update.clear | update.set != 0;
        let operation = if changes { MsrOperation::Update } else { MsrOperation::Read };
        retry_once(operation, update.register(), || self.update(update))
    }
}

impl<B: MsrBackend + ?Sized> MsrAccess for B {}

#[inline]
fn retry_once<T, E: MsrError>(
    operation: MsrOperation,
    register: u32,
    access: impl Fn() -> Result<T, E>,
) -> Result<T, MsrFault> {
    let fault = |error: E| MsrFault { operation, register, kind: error.kind() };
    access().or_else(|_| access()).map_err(fault)
}
