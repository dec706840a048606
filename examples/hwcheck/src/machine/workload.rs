//! Code in which the number of instructions, branches and other events is counted by hand.

use core::arch::asm;
use core::cell::Cell;
use core::hint::black_box;

use crate::report::count::WorkloadName;

/// A body that is executed many times. What is known of it is for each time, and the difference of two lengths: what
/// comes before the first time and after the last is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Six instructions, two branches of which one is taken.
    Loop,
    /// A branch that follows a random bit, and the loop's own. Predictors are wrong in half of the first.
    Random,
    /// A read whose address is the result of the read before: one miss of each cache that is smaller than the memory.
    Chase,
    /// A read of 8 bytes of which 4 are in the next cache line.
    Misaligned,
    /// x87, SSE, a locked addition, CLFLUSH, CPUID, a string and a segment: nothing is known.
    Mixed,
}

/// The quantities that events count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Retired instructions.
    Instructions,
    /// Retired branches.
    Branches,
    /// Retired branches that were taken.
    TakenBranches,
    /// Retired branches that were mispredicted.
    Mispredictions,
    /// Misses of the first data cache.
    DataCacheMisses,
    /// Misses of the last cache.
    LastCacheMisses,
    /// Accesses that cross a cache line.
    MisalignedAccesses,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 5] =
        [Self::Loop, Self::Random, Self::Chase, Self::Misaligned, Self::Mixed];

    /// Its name in a report.
    pub const fn name(self) -> WorkloadName {
        match self {
            Self::Loop => WorkloadName::Loop,
            Self::Random => WorkloadName::Random,
            Self::Chase => WorkloadName::Chase,
            Self::Misaligned => WorkloadName::Misaligned,
            Self::Mixed => WorkloadName::Mixed,
        }
    }

    /// Returns the least and the greatest count of a quantity in `iterations` times, if they are known.
    pub fn known(self, quantity: Quantity, memory: &Memory, iterations: u64) -> Option<[u64; 2]> {
        use Quantity::{
            Branches, DataCacheMisses, Instructions, LastCacheMisses, MisalignedAccesses,
            Mispredictions, TakenBranches,
        };
        let exactly = |each: u64| Some([each * iterations, each * iterations]);
        // About one each time; the greatest leaves room for what the kernel does to the caches.
        let about = Some([iterations / 2, 2 * iterations]);
        match (self, quantity) {
            (Self::Loop, Instructions) => exactly(6),
            (Self::Loop, Branches) => exactly(2),
            (Self::Loop, TakenBranches) => exactly(1),
            (Self::Random, Mispredictions) => Some([iterations / 4, iterations]),
            (Self::Chase, DataCacheMisses) if memory.exceeds_first_cache => about,
            (Self::Chase, LastCacheMisses) if memory.exceeds_last_cache => about,
            (Self::Misaligned, MisalignedAccesses) => {
                Some([iterations, iterations + iterations / 8])
            }
            _ => None,
        }
    }

    /// Executes the body so many times, at least once.
    pub fn execute(self, memory: &Memory, iterations: u64) {
        let times = iterations.max(1);
        match self {
            Self::Loop => counted_loop(times),
            Self::Random => memory.random.set(random(times, memory.random.get())),
            Self::Chase => memory.chase(times),
            Self::Misaligned => misaligned(times),
            Self::Mixed => mixed(times),
        }
    }
}

fn counted_loop(times: u64) {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "2:",
            "nop",
            "test {one}, {one}",
            "jz 3f", // never taken
            "lea {sum}, [{sum} + 1]",
            "dec {times}",
            "jnz 2b", // taken but for the last time
            "3:",
            one = in(reg) 1u64,
            sum = inout(reg) 0u64 => _,
            times = inout(reg) times => _,
            options(nomem, nostack),
        );
    }
}

/// Takes the state of the random bits, and returns it: predictors learn bits that come again.
fn random(times: u64, mut state: u64) -> u64 {
    // SAFETY: registers only.
    unsafe {
        asm!(
            "2:",
            // Xorshift of 64 bits (Marsaglia 2003).
            "mov {t}, {x}", "shl {t}, 13", "xor {x}, {t}",
            "mov {t}, {x}", "shr {t}, 7", "xor {x}, {t}",
            "mov {t}, {x}", "shl {t}, 17", "xor {x}, {t}",
            "test {x}, 1",
            "jz 3f", // at random
            "nop",
            "3:",
            "dec {times}",
            "jnz 2b",
            x = inout(reg) state,
            t = out(reg) _,
            times = inout(reg) times => _,
            options(nomem, nostack),
        );
    }
    state
}

/// Two cache lines.
#[repr(align(64))]
struct Lines([u8; 128]);

fn misaligned(times: u64) {
    let lines = Lines([0; 128]);
    // SAFETY: the 8 bytes from 60 on are within the lines.
    unsafe {
        asm!(
            "2:",
            "mov {read}, [{at}]",
            "dec {times}",
            "jnz 2b",
            at = in(reg) lines.0.as_ptr().add(60),
            read = out(reg) _,
            times = inout(reg) times => _,
            options(readonly, nostack),
        );
    }
}

fn mixed(times: u64) {
    let (mut sum, mut lines) = (1.0f64, Lines([0; 128]));
    for _ in 0..times {
        sum = black_box(black_box(sum) * 1.5 + 1.0) % 7.0;
        let place = lines.0.as_mut_ptr();
        // SAFETY: (1) all memory is within the lines; (2) the x87 stack is left as it was; (3) RBX is saved, which
        // CPUID writes and LLVM keeps for itself; (4) ES is loaded with what it holds.
        unsafe {
            asm!(
                "fld1", "fadd st(0), st(0)", "fstp qword ptr [{at}]",
                "lock add dword ptr [{at}], 1",
                "mov {saved}, rbx", "cpuid", "mov rbx, {saved}",
                "mov {segment:x}, es", "mov es, {segment:x}",
                "clflush [{at}]",
                at = in(reg) place,
                saved = out(reg) _,
                segment = out(reg) _,
                inout("eax") 0 => _, inout("ecx") 0 => _, out("edx") _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
            asm!(
                "rep movsb",
                inout("rsi") place => _,
                inout("rdi") place.add(64) => _,
                inout("rcx") 64u64 => _,
                options(nostack, preserves_flags),
            );
        }
    }
    black_box((sum, lines.0));
}

/// Memory of a pointer chase: one circle through all its cache lines, in random order. Each run goes on where the last
/// one ended: what it had read would be in the caches.
#[derive(Debug)]
pub struct Memory {
    next: Vec<[u32; LINE / 4]>,
    /// The line at which the next chase begins.
    place: Cell<usize>,
    /// The state of the random bits.
    random: Cell<u64>,
    /// It is more than four times the first data cache's 32–64 KiB.
    pub exceeds_first_cache: bool,
    /// It is more than twice the last cache.
    pub exceeds_last_cache: bool,
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// The most bytes that a chase takes.
const MOST: u64 = 256 << 20;

impl Memory {
    /// No memory: a chase of one line.
    pub fn none() -> Self {
        Self::of(vec![[0; LINE / 4]])
    }

    /// A quarter of the available bytes, at most 256 MiB. `last_cache` is that cache's size, 0 where it is not known.
    pub fn new(available: u64, last_cache: u64) -> Self {
        let bytes = (available / 4).min(MOST);
        let lines = (bytes as usize / LINE).max(1);
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut random = crate::random::Random::new(lines as u64);
        // Sattolo's shuffle: a single circle.
        for place in (1..lines).rev() {
            order.swap(place, random.below(place as u64) as usize);
        }
        let next = order.into_iter().map(|to| [to; LINE / 4]).collect();
        Self {
            exceeds_first_cache: bytes > 4 * (64 << 10),
            exceeds_last_cache: last_cache != 0 && bytes > 2 * last_cache,
            ..Self::of(next)
        }
    }

    fn of(next: Vec<[u32; LINE / 4]>) -> Self {
        Self {
            next,
            place: Cell::new(0),
            random: Cell::new(0x9E37_79B9_7F4A_7C15),
            exceeds_first_cache: false,
            exceeds_last_cache: false,
        }
    }

    fn chase(&self, times: u64) {
        let mut place = self.place.get();
        for _ in 0..times {
            place = self.next.get(black_box(place)).map_or(0, |line| line[0] as usize);
        }
        self.place.set(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_comes_by_every_line_once() {
        let memory = Memory::new(4 * 1000 * LINE as u64, 0);
        let mut seen = vec![false; memory.next.len()];
        let mut place = 0;
        for _ in 0..memory.next.len() {
            assert!(!core::mem::replace(&mut seen[place], true));
            place = memory.next[place][0] as usize;
        }
        assert_eq!((place, seen.len()), (0, 1000));
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_ended() {
        let [once, twice] = [(); 2].map(|()| Memory::new(4 * 1000 * LINE as u64, 0));
        for workload in [Workload::Chase, Workload::Random] {
            workload.execute(&once, 300);
            workload.execute(&twice, 100);
            let first = (twice.place.get(), twice.random.get());
            workload.execute(&twice, 200);
            assert_ne!((twice.place.get(), twice.random.get()), first);
        }
        assert_eq!((once.place.get(), once.random.get()), (twice.place.get(), twice.random.get()));
    }

    #[test]
    fn every_workload_comes_to_its_end() {
        for workload in Workload::ALL {
            workload.execute(&Memory::new(1 << 20, 0), 100);
            workload.execute(&Memory::none(), 0);
        }
    }

    #[test]
    fn misses_are_known_only_where_the_memory_is_larger_than_the_cache() {
        let known = |memory: &Memory| {
            [Quantity::DataCacheMisses, Quantity::LastCacheMisses]
                .map(|quantity| Workload::Chase.known(quantity, memory, 10).is_some())
        };
        assert_eq!(known(&Memory::none()), [false, false]);
        assert_eq!(known(&Memory::new(4 << 20, 1 << 20)), [true, false]);
        assert_eq!(known(&Memory::new(16 << 20, 1 << 20)), [true, true]);
        assert_eq!(known(&Memory::new(16 << 20, 0)), [true, false], "a size that is not known");
    }
}
