//! Writing of due records.

use crate::branches::virtual_branches::VirtualBranches;
use crate::model::Model;
use crate::pmu::virtual_pmu::VirtualPmu;
use crate::policy::EventPolicy;
use crate::precise::architectural::Architectural;
use crate::precise::configuration::{ArchitecturalRecords, DebugStoreRecords, PreciseRecords};
use crate::precise::memory::{
    Buffer, GuestFault, GuestMemory, Place, RECORDS, RESETS, Store, read_words,
};
use crate::precise::virtual_precise::{BASE_ADDRESS, BASE_SIZE, INDEX_FULL, INDEX_WRITE, *};
use crate::registers::table::{Family, MAX_PER_KIND, from_global, places, to_global};

/// Result of [`VirtualPrecise::record`](crate::precise::VirtualPrecise::record) and
/// [`VirtualPrecise::branch`](crate::precise::VirtualPrecise::branch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[must_use]
pub struct Recorded {
    /// Number of written records.
    pub written: u32,
    /// Number of lost records. A record is lost if the buffer is full, or if the buffer's index is outside the buffer.
    pub lost: u32,
    /// The record buffer has reached its threshold and raised an interrupt. The interrupt is pending until
    /// [`deliver_pmi`](crate::VirtualPmu::deliver_pmi) is called. If this field is `true`, call
    /// [`pmi_raised`](crate::GuestFacility::pmi_raised) of each other facility of the guest.
    pub pmi: bool,
    /// Failed access to the guest's memory. The guest does not see the unfinished record. The records of the remaining
    /// counters stay [due](crate::precise::VirtualPrecise::due).
    pub fault: Option<GuestFault>,
}

impl VirtualPrecise {
    /// Writes the [due](Self::due) record of each counter in `counters`. The record describes the instruction `fed`,
    /// which causes the counter's event. The call then loads the counter with its reset value. If the guest's record
    /// buffer reaches the threshold, the call sets the buffer's bit in the global status, and raises an interrupt.
    ///
    /// `counters` is a bitmap with the bits of the global status. The record of a stopped counter stays due.
    ///
    /// [`VirtualPrecise`] has an example.
    pub fn record<P: EventPolicy>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        for place in places(from_global(self.ready(&pmu.model, counters))) {
            self.write(&mut pmu.model, to_global(1 << place), fed, memory, &mut recorded);
            if recorded.fault.is_some() {
                break;
            }
        }
        recorded
    }

    /// Writes a single record for all `counters` that have a [due](Self::due) record. A real processor can write such a
    /// record if several counters overflow at the same time. In formats 1 and 2, the record does not say which
    /// counters overflowed.
    pub fn record_collided<P: EventPolicy>(
        &mut self,
        pmu: &mut VirtualPmu<P>,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
    ) -> Recorded {
        let mut recorded = Recorded::default();
        let ready = self.ready(&pmu.model, counters);
        if ready != 0 {
            self.write(&mut pmu.model, ready, fed, memory, &mut recorded);
        }
        recorded
    }

    /// Returns those of the counters whose records are due, and that run.
    fn ready(&self, model: &Model, counters: u64) -> u64 {
        self.words[DUE] & counters & self.enabled() & to_global(model.running())
    }

    /// Writes one record of these counters, and loads them.
    fn write(
        &mut self,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) {
        // Also for a record that is lost: the processor does not try a second time.
        self.words[DUE] &= !counters;
        let (interrupts, bit) = match self.configuration.records {
            PreciseRecords::None => (Ok(false), BUFFER),
            PreciseRecords::DebugStore(records) => {
                (self.write_debug_store(&records, model, counters, fed, memory, recorded), BUFFER)
            }
            PreciseRecords::Architectural(records) => (
                self.write_architectural(&records, model, counters, fed, memory, recorded),
                THRESHOLD,
            ),
        };
        self.finish(interrupts, bit, model, recorded);
    }

    /// Raises the interrupt of a buffer that reached its threshold, or notes the fault.
    pub(crate) fn finish(
        &mut self,
        interrupts: Result<bool, GuestFault>,
        bit: u64,
        model: &mut Model,
        recorded: &mut Recorded,
    ) {
        match interrupts {
            Ok(false) => {}
            Ok(true) => {
                self.words[STATUS] |= bit;
                model.interrupt();
                recorded.pmi = true;
            }
            Err(fault) => recorded.fault = Some(fault),
        }
    }

    /// Returns whether the index has reached the threshold.
    fn write_debug_store(
        &self,
        records: &DebugStoreRecords,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let mut buffer = Buffer::read(memory, self.words[AREA], RECORDS)?;
        let written = self.write_at_index(records, model, counters, fed, memory, &mut buffer);
        match written {
            Ok(true) => recorded.written += 1,
            Ok(false) => recorded.lost += 1,
            Err(_) => {}
        }
        let mut interrupts = written.map(|_| buffer.interrupts());
        // The counter goes on where its record failed, too.
        for place in places(from_global(counters)) {
            // Up to format 4, the fixed counters' reset values follow those of eight general counters; later, those of
            // 32.
            let slot = match (place, records.format) {
                (..MAX_PER_KIND, _) => place,
                (_, ..=4) => place,
                _ => 32 + place - MAX_PER_KIND,
            };
            match read_words(memory, self.words[AREA].wrapping_add(RESETS + 8 * slot as u64)) {
                Ok([reset]) => model.load(place, reset),
                Err(fault) => interrupts = interrupts.and(Err(fault)),
            }
        }
        interrupts
    }

    /// Writes the record, and the index behind it. Returns `false` if there is no room.
    fn write_at_index(
        &self,
        records: &DebugStoreRecords,
        model: &Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        buffer: &mut Buffer,
    ) -> Result<bool, GuestFault> {
        // An overflow that is recorded sets no bit of the status, which the record has all the same.
        let status = model.registers.of(Family::GlobalStatus) | self.words[STATUS] | counters;
        let groups = if self.words[ADAPTIVE] & counters != 0 { self.words[DATA] } else { 0 };
        let adaptive = Adaptive { groups, counters, timing: records.timing, fed, model };
        let store_all = |size: u64, store: &mut Store<'_>| match records.format {
            format @ ..4 => store_fixed(format, status, counters, fed, store),
            _ => adaptive.store(size, store),
        };
        let mut counting = Store::counting();
        // Measured first: a record that does not fit leaves no part of itself in the guest's memory.
        store_all(0, &mut counting)?;
        let size = counting.length;
        if !buffer.has_room(size) {
            return Ok(false);
        }
        store_all(size, &mut Store::at(memory, Place::Linear(buffer.index)))?;
        // Last: the guest's driver reads the records below the index, which must be whole.
        buffer.set_index(memory, buffer.index + size)?;
        Ok(true)
    }

    /// Returns whether the offset has reached the threshold, or the buffer is full.
    fn write_architectural(
        &mut self,
        records: &ArchitecturalRecords,
        model: &mut Model,
        counters: u64,
        fed: &FedRecord<'_>,
        memory: &mut dyn GuestMemory,
        recorded: &mut Recorded,
    ) -> Result<bool, GuestFault> {
        let controls = places(from_global(counters)).map(|place| self.controls[place % 16]);
        let record = Architectural {
            groups: controls.fold(0, |groups, control| groups | control),
            fragments: records.fragments,
            counters,
            readable: self.readable(),
            fed,
            model,
        };
        let mut counting = Store::counting();
        record.store(&mut counting)?;
        let length = 4096 << (self.words[BASE] & BASE_SIZE);
        let offset = self.words[INDEX] & INDEX_WRITE;
        let end = offset + counting.length;
        // A buffer may be longer than the offset can tell.
        let has_room = self.words[INDEX] & INDEX_FULL == 0 && end <= length && end <= INDEX_WRITE;
        let written = if has_room {
            let first = (self.words[BASE] & BASE_ADDRESS).wrapping_add(offset);
            record.store(&mut Store::at(memory, Place::Physical(first)))
        } else {
            Ok(())
        };
        for place in places(from_global(counters)) {
            let reload = self.controls[place % 16] as u32;
            // The field is the low half of a negative number. 0 is no reload: the counter runs on from where it is.
            if reload != 0 {
                model.load(place, u64::from(reload) | 0xFFFF_FFFF << 32);
            }
        }
        // After the reload: the counter goes on where its record failed.
        written?;
        if has_room {
            self.words[INDEX] = self.words[INDEX] & !INDEX_WRITE | end;
            recorded.written += 1;
        } else {
            self.words[INDEX] |= INDEX_FULL;
            recorded.lost += 1;
        }
        let threshold = (self.words[INDEX] >> 36 & 0x7F_FFFF) << 4;
        // A full buffer interrupts wherever its threshold is: nothing is written before the driver has emptied it.
        Ok(!has_room || end >= threshold)
    }

    /// Returns the counters whose values the guest allows in records, general and fixed.
    fn readable(&self) -> [u8; 2] {
        let mut readable = 0;
        for (place, control) in self.controls.iter().enumerate() {
            readable |= ((control >> 35 & 1) as u16) << place;
        }
        readable.to_le_bytes()
    }
}

/// An instruction of the guest, as the embedder describes it for a precise record. A counter writes the record, and the
/// instruction causes the event that this counter counts. A record contains only the data that its format has.
///
/// ```
/// use pmu_virt::precise::{FedRecord, FedRegisters};
/// let record = FedRecord {
///     registers: FedRegisters { ip: 0x40_1003, ..FedRegisters::ZERO },
///     data_address: 0x7000,
///     latency: 12,
///     ..FedRecord::new(0x40_1000)
/// };
/// assert_eq!(record.cache_latency, 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FedRecord<'a> {
    /// Linear address of the instruction.
    pub ip: u64,
    /// The registers after the instruction.
    pub registers: FedRegisters,
    /// The processor is in 64-bit mode.
    pub long_mode: bool,
    /// The time-stamp counter.
    pub tsc: u64,
    /// Linear address of the instruction's access to memory.
    pub data_address: u64,
    /// Source of the data, in the encoding of the processor model that the guest sees.
    pub data_source: u64,
    /// Latency of the access to memory, in cycles. In adaptive records and architectural PEBS, this field is the
    /// latency of the whole instruction.
    pub latency: u16,
    /// Latency of the access to the caches, in cycles. Only adaptive records and architectural PEBS have this value.
    pub cache_latency: u16,
    /// Value of the record's TSX field. Bits 31:0 are the cycles of the last transaction. Bits 39:32 are the reasons
    /// for an abort.
    pub transaction: u64,
    /// Cycles from the retirement of the previous instruction to the retirement of this instruction.
    pub retire_latency: u16,
    /// Values of fixed counter 3 and of `MSR_PERF_METRICS`.
    pub metrics: [u64; 2],
    /// Vector registers. `None` stands for registers that are all 0.
    pub vectors: Option<&'a FedVectors>,
    /// Branch records. `None` stands for empty branch records; on the mock, for those of the processor.
    pub branches: Option<&'a VirtualBranches>,
}

/// Registers of the guest after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct FedRegisters {
    /// RFLAGS.
    pub flags: u64,
    /// RIP: the address of the next instruction.
    pub ip: u64,
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, and R8–R15, in this order.
    pub general: [u64; 16],
    /// SSP, the shadow-stack pointer. Only records of architectural PEBS have this value.
    pub ssp: u64,
}

/// Vector registers of the guest after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FedVectors {
    /// XMM0–15.
    pub xmm: [u128; 16],
    /// Bits 255:128 of YMM0–15.
    pub ymm_high: [u128; 16],
    /// K0–7.
    pub opmask: [u64; 8],
    /// Bits 511:256 of ZMM0–15.
    pub zmm_high: [[u128; 2]; 16],
    /// ZMM16–31.
    pub zmm_16_to_31: [[u128; 4]; 16],
}

impl FedRegisters {
    /// Registers that are all 0.
    pub const ZERO: Self = Self { flags: 0, ip: 0, general: [0; 16], ssp: 0 };
}

impl FedVectors {
    /// Registers that are all 0.
    pub const ZERO: Self = Self {
        xmm: [0; 16],
        ymm_high: [0; 16],
        opmask: [0; 8],
        zmm_high: [[0; 2]; 16],
        zmm_16_to_31: [[0; 4]; 16],
    };
}

impl FedRecord<'_> {
    /// Describes an instruction in 64-bit mode that does not access memory. All fields except `ip` and `long_mode` are
    /// 0 or `None`.
    pub const fn new(ip: u64) -> Self {
        Self {
            ip,
            registers: FedRegisters::ZERO,
            long_mode: true,
            tsc: 0,
            data_address: 0,
            data_source: 0,
            latency: 0,
            cache_latency: 0,
            transaction: 0,
            retire_latency: 0,
            metrics: [0; 2],
            vectors: None,
            branches: None,
        }
    }

    pub(crate) const fn latencies(&self) -> u64 {
        self.latency as u64 | (self.cache_latency as u64) << 32
    }

    pub(crate) fn vectors(&self) -> &FedVectors {
        const NONE: &FedVectors = &FedVectors::ZERO;
        self.vectors.unwrap_or(NONE)
    }
}

/// Stores a record of format 0–3. `status` is the global status; `counters` are the counters that overflowed.
pub(crate) fn store_fixed(
    format: u8,
    status: u64,
    counters: u64,
    fed: &FedRecord<'_>,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    let [ax, cx, dx, bx, sp, bp, si, di, high @ ..] = fed.registers.general;
    // Only these formats have this order: later ones have the registers by their numbers.
    store.words([fed.registers.flags, fed.registers.ip, ax, bx, cx, dx, si, di, bp, sp])?;
    store.words::<8>(high)?;
    if format >= 1 {
        // Before format 3, the field is the global status, which may also have bits of other counters.
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

/// `MSR_PEBS_DATA_CFG`: memory, general registers, XMM, branch records, counters, metrics.
pub(crate) const DATA_MEMORY: u64 = 1 << 0;
pub(crate) const DATA_GENERAL: u64 = 1 << 1;
pub(crate) const DATA_XMM: u64 = 1 << 2;
pub(crate) const DATA_BRANCHES: u64 = 1 << 3;
pub(crate) const DATA_COUNTERS: u64 = 1 << 4;
pub(crate) const DATA_METRICS: u64 = 1 << 5;

/// A record of formats 4–6.
#[derive(Clone, Copy)]
pub(crate) struct Adaptive<'r> {
    /// The groups beside the basic one, as in `MSR_PEBS_DATA_CFG`.
    pub(crate) groups: u64,
    /// Counters that overflowed.
    pub(crate) counters: u64,
    /// The basic group has the latency of the retirement.
    pub(crate) timing: bool,
    pub(crate) fed: &'r FedRecord<'r>,
    pub(crate) model: &'r Model,
}

impl Adaptive<'_> {
    /// Stores the record; `size` is its size in bytes.
    pub(crate) fn store(&self, size: u64, store: &mut Store<'_>) -> Result<(), GuestFault> {
        let fed = self.fed;
        let retired = if self.timing { u64::from(fed.retire_latency) << 32 } else { 0 };
        let first = u64::from(self.groups as u32) | retired | size << 48;
        store.words([first, fed.ip, self.counters, fed.tsc])?;
        let has = |group: u64| self.groups & group != 0;
        if has(DATA_MEMORY) {
            let access = [fed.data_address, fed.data_source, fed.latencies(), fed.transaction];
            store.words(access)?;
        }
        if has(DATA_GENERAL) {
            store_general(fed, store)?;
        }
        if has(DATA_XMM) {
            fed.vectors().xmm.iter().try_for_each(|value| store.wide(*value))?;
        }
        if has(DATA_BRANCHES) {
            store_branches(fed.branches, (self.groups >> 24 & 0xFF) + 1, store)?;
        }
        if has(DATA_COUNTERS | DATA_METRICS) {
            let read = |place| if has(DATA_COUNTERS) { (self.groups >> place) as u8 } else { 0 };
            let metrics = has(DATA_METRICS).then_some(fed.metrics);
            store_counters(self.model, [read(32), read(48)], metrics, store)?;
        }
        Ok(())
    }
}

/// Stores RFLAGS, RIP and the general registers in the order of their numbers.
pub(crate) fn store_general(fed: &FedRecord<'_>, store: &mut Store<'_>) -> Result<(), GuestFault> {
    store.words([fed.registers.flags, fed.registers.ip])?;
    store.words(fed.registers.general)
}

/// Stores so many branch records, the newest first.
pub(crate) fn store_branches(
    branches: Option<&VirtualBranches>,
    count: u64,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    (0..count as usize).try_for_each(|number| {
        let record = branches.and_then(|branches| branches.newest(number));
        store.words(record.map_or([0; 3], |record| [record.from, record.to, record.info]))
    })
}

/// Stores the values of these general and fixed counters, and the metrics.
pub(crate) fn store_counters(
    model: &Model,
    counters: [u8; 2],
    metrics: Option<[u64; 2]>,
    store: &mut Store<'_>,
) -> Result<(), GuestFault> {
    let [general, fixed] = counters;
    let metrics_mask = if metrics.is_some() { 0b11 } else { 0 };
    store.words([u64::from(general) | u64::from(fixed) << 32, metrics_mask])?;
    let read = u16::from(general) | u16::from(fixed) << MAX_PER_KIND;
    places(read).try_for_each(|place| store.words([model.registers.counter(place)]))?;
    metrics.map_or(Ok(()), |metrics| store.words(metrics))
}
