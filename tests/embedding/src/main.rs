//! A kernel in miniature: it starts a profile, takes an overflow and reads the bucket; and a hypervisor's exit
//! handler. It links with nothing but the library crates and `core`, and only if no panic can be reached. Its exit
//! status is the number of the failed step; 0: none.
#![no_std]
#![no_main]

mod bare;
mod machine;

use core::hint::black_box;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::{Apic, FIRST_COUNTER, Frame, Msr, register};
use pmu_core::frame::ProcessorNumber;
use pmu_core::memory::{CounterMemory, CounterSlot};
use pmu_core::profile::{KProfileSource, Session};
use pmu_core::x86::Snapshot;
use pmu_core::{CounterSet, EventSource, service};
use pmu_kprofile::hardware::ThisProcessor;
use pmu_kprofile::trace::{
    GroupMask, Hook, PERF_PROFILE, TraceCallback, TraceControl, TraceObjects, TraceRing,
};
use pmu_kprofile::{BasicProfile, PointerWidth, ProfileObject, Profiles, Rules};
use pmu_virt::configuration::{Configuration, IntelConfiguration};
use pmu_virt::policy::{AllowAll, EventFilter, FilterAction, FilterEntry};
use pmu_virt::{
    Delivery, EventKey, FedEvents, Feed, Mode, PerformanceEntry, PmuState, Privilege, Read,
    VirtualPmu, Write,
};

static VENDOR: AtomicU32 = AtomicU32::new(0);
static MEMORY: CounterMemory<[CounterSlot; 8]> = CounterMemory::new();
static PROFILES: Profiles<16, 1> = Profiles::new();
static BUFFER: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];
static RINGS: [TraceRing<16>; 1] = [const { TraceRing::new() }; 1];
static SAMPLED: TraceCallback<16> =
    TraceCallback::new(Hook::SampledProfile, PointerWidth::Bits64, &RINGS);
static PMC: TraceCallback<16> =
    TraceCallback::new(Hook::PmcInterrupt, PointerWidth::Bits64, &RINGS);
static OBJECTS: TraceObjects = TraceObjects::new(Rules::LATEST, &SAMPLED, &PMC);

/// Profiles on a vendor's machine; an error is the number of the failed step.
fn profile<I: EventSource<Processor = Snapshot>>(
    interface: &I,
    processor: &Snapshot,
    counter: u32,
) -> Result<(), i32> {
    let source = KProfileSource::BRANCH_INSTRUCTIONS;
    interface.set_interval(source, 0x4000).map_err(|_| 1)?;
    let mut session: Session<'_, &I, _> =
        Session::take(interface, processor, CounterSet::GENERAL, (Msr, Apic), &MEMORY)
            .map_err(|_| 2)?;
    let mut hardware = ThisProcessor::new(&mut session, ProcessorNumber::from_index(0));
    let request = BasicProfile {
        process: None,
        base: 0x1000,
        size: 0x40,
        bucket_log2: 2,
        buffer: &BUFFER,
        source,
        affinity: None,
    };
    let object = ProfileObject::basic(Rules::LATEST, request, &hardware).map_err(|_| 3)?;
    // SAFETY: the object is stopped below, before it goes out of scope; its buffer is static. A
    // failing stop could only be one of the hardware, which stops the object all the same.
    unsafe { PROFILES.start_borrowed(&object, &mut hardware) }.map_err(|_| 4)?;
    let mut trace = TraceControl::new(&PROFILES, &OBJECTS);
    let traced = trace.set_group_mask(GroupMask::EMPTY.with(PERF_PROFILE), &mut hardware);

    // The counter wraps, and the interrupt comes.
    register(counter).ok_or(5)?.store(1, Ordering::Relaxed);
    register(0x38E).ok_or(5)?.store(1, Ordering::Relaxed);
    let mut acted = 0;
    let serviced = service(interface, &(Msr, Apic), &MEMORY, |sample| {
        if let Some(overflow) = interface.overflow(&sample) {
            acted = PROFILES.interrupt(&Frame { pc: 0x1009, process: None }, overflow.source).hits;
        }
    });
    PROFILES.timer_interrupt(&Frame { pc: 0x2000, process: None });
    let traced = traced.and(trace.set_group_mask(GroupMask::EMPTY, &mut hardware));
    let stopped = PROFILES.stop(&object, &mut hardware);
    let records = RINGS.first().map(TraceRing::drain).map_or(0, Iterator::count);
    let counted = BUFFER.get(2).map_or(0, |bucket| bucket.swap(0, Ordering::Relaxed));

    stopped.map_err(|_| 6)?;
    traced.map_err(|_| 7)?;
    session.shut_down().map_err(|_| 8)?;
    let overflows = serviced.map_err(|_| 9)?.overflows;
    if (overflows, acted, counted, records) == (1, 1, 1, 1) { Ok(()) } else { Err(10) }
}

fn snapshot(vendor: &[u8; 12], leaf_0a: u32) -> Snapshot {
    let word = |at: usize| {
        let bytes = vendor.iter().skip(at).take(4).rev();
        bytes.fold(0, |word, byte| word << 8 | u32::from(*byte))
    };
    let (ebx, edx, ecx) = (word(0), word(4), word(8));
    Snapshot::capture(move |leaf: u32, _: u32| {
        let (eax, ebx, ecx, edx) = match leaf {
            0 => (0x0A, ebx, ecx, edx),
            0x0A => (leaf_0a, 0, 0, 0),
            0x8000_0000 => (0x8000_0001, 0, 0, 0),
            0x8000_0001 => (0, 0, 0, 1 << 29),
            _ => (0, 0, 0, 0),
        };
        pmu_core::x86::raw_cpuid::CpuIdResult { eax, ebx, ecx, edx }
    })
}

/// The LVT entry of a virtual processor.
struct Entry(u32);

impl PerformanceEntry for Entry {
    fn entry(&self) -> u32 {
        self.0
    }
    fn set_entry(&mut self, entry: u32) {
        self.0 = entry;
    }
    fn raise(&mut self, _: Delivery) {}
}

/// A hypervisor's part for a guest, with numbers and values that the optimizer cannot know.
fn guest(configuration: Configuration, cycles: EventKey) -> Result<(), i32> {
    let fed = FedEvents::new(&[cycles]).map_err(|_| 1)?;
    let event = fed.find(cycles).ok_or(2)?;
    let mut pmu = VirtualPmu::new(configuration, fed).map_err(|_| 3)?;
    let mut entry = Entry(4 << 8);
    let mut answered = 0;
    for register in 0..0x800 {
        let register = black_box(register | (VENDOR.load(Ordering::Relaxed) * 0xC001_0000));
        let written = pmu.write(register, black_box(0x0053_003C)).answer;
        let read = pmu.read(register);
        answered += u32::from(matches!((written, read), (Write::Done, Read::Value(_))));
        let _ = pmu.read_counter(register, Mode::KERNEL);
    }
    let mut feed = Feed::new(&fed);
    feed.add(event, Privilege::Kernel, black_box(1 << 50)).map_err(|_| 6)?;
    let headroom = pmu.next_overflow().of(event, Privilege::Kernel);
    let pmi = pmu.advance(&mut feed).map_err(|_| 6)?.pmi
        | pmu.advance_through(&mut feed).map_err(|_| 6)?.pmi;
    let _ = pmu.deliver_pmi(&mut entry);
    let state = black_box(pmu.state());
    let restored = VirtualPmu::from_state(&state, configuration, fed, AllowAll).map_err(|_| 4)?;
    let bytes = black_box(state.to_bytes());
    let kept = PmuState::from_bytes(black_box(&bytes[..])).map_err(|_| 7)?;
    let same = restored.state() == state && kept == state && pmu.unfed().count() <= 16;
    for register in black_box(configuration).registers().filter(|register| register.is_state) {
        let _ = pmu.check_write(register.address, black_box(u64::MAX));
        let _ = pmu.host_write(register.address, state.register(register.address).unwrap_or(0));
    }
    let [_, ebx, ..] = configuration.cpuid(black_box(0x0A), 0, [0; 4]);
    let host = Configuration::from_cpuid(|leaf, subleaf| black_box([leaf, subleaf, 0, 0]), 0);
    let common = host.and_then(|host| host.intersect(black_box(&configuration)));
    let entries = black_box([FilterEntry::new(0x3C, 0)]);
    let filter = EventFilter::<2>::compile(FilterAction::Deny, 1, &entries).map_err(|_| 8)?;
    let filtered = VirtualPmu::with_policy(configuration, fed, filter).map_err(|_| 9)?;
    if common.is_ok() || filtered.unfed().count() != 0 {
        return Err(10);
    }
    pmu.init();
    pmu.reset();
    let counts = answered > 4 && headroom.is_some() && pmi && same && ebx == 0;
    if counts { Ok(()) } else { Err(5) }
}

extern "C" fn main() -> i32 {
    #[cfg(feature = "seeded-panic")]
    {
        let index = black_box(0usize);
        BUFFER[index].store(0, Ordering::Relaxed);
    }
    let processor = snapshot(b"GenuineIntel", 0x0730_0402);
    let intel = pmu_intel::Emon::detect(&processor);
    let status = match intel {
        Ok(emon) => profile(&emon, &processor, 0xC1).err().unwrap_or(0),
        Err(_) => 11,
    };
    if status != 0 {
        return status;
    }
    let configuration = Configuration::Intel(IntelConfiguration::new(4, 8, 3));
    if let Err(where_) = guest(configuration, EventKey::general(0x3C, 0)) {
        return 40 + where_;
    }
    VENDOR.store(1, Ordering::Relaxed);
    FIRST_COUNTER.store(0xC001_0004, Ordering::Relaxed);
    let processor = snapshot(b"AuthenticAMD", 0);
    match pmu_amd::Amd64::detect(&processor) {
        Ok(amd64) => {
            profile(&amd64, &processor, 0xC001_0004).map_or_else(|where_| 20 + where_, |()| 0)
        }
        Err(_) => 31,
    }
}
