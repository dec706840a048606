//! Records of formats 0–3, which always have the same fields. SDM vol. 3B, "PEBS Record Format".

use crate::precise::fed::FedRecord;
use crate::precise::memory::GuestFault;
use crate::precise::store::Store;

/// Stores a record of format 0–3. `status` is the global status; `counters` are the counters that overflowed.
pub(crate) fn store_fixed(
    format: u8,
    status: u64,
    counters: u64,
    fed: &FedRecord<'_>,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    let [ax, cx, dx, bx, sp, bp, si, di, high @ ..] = fed.registers.general;
    store.words([fed.registers.flags, fed.registers.ip, ax, bx, cx, dx, si, di, bp, sp])?;
    store.words::<8>(high)?;
    if format >= 1 {
        let counters = if format >= 3 { counters } else { status };
        store.words([counters, fed.data_address, fed.data_source, fed.latency.into()])?;
    }
    if format >= 2 {
        store.words([fed.ip, fed.transaction])?;
    }
    if format >= 3 {
        store.words([fed.tsc])?;
    }
    Ok(())
}
