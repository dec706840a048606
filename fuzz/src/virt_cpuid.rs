//! A host's CPUID from anywhere, as the configuration that a guest can be given: refused, or a PMU whose own CPUID says
//! the same, and which has with any other what both have.
//!
//! The bytes: two processors, each the vendor, `IA32_PERF_CAPABILITIES`, and leaves that matter with their registers.

use pmu_virt::configuration::{Configuration, HostError};
use pmu_virt::{FedEvents, VirtualPmu};

use crate::input::Input;

const LEAVES: [(u32, u32); 9] = [
    (7, 0),
    (7, 1),
    (0x0A, 0),
    (0x23, 0),
    (0x23, 1),
    (0x23, 3),
    (0x8000_0000, 0),
    (0x8000_0001, 0),
    (0x8000_0022, 0),
];

/// EBX, ECX and EDX of leaf 0.
const VENDORS: [[u32; 3]; 4] = [
    [0x756E_6547, 0x6C65_746E, 0x4965_6E69],
    [0x6874_7541, 0x444D_4163, 0x6974_6E65],
    [0x6F67_7948, 0x656E_6975, 0x6E65_476E],
    [0x746E_6543, 0x736C_7561, 0x4872_7561],
];

type Leaf = ((u32, u32), [u32; 4]);

fn answer(leaves: &[Leaf], leaf: u32, subleaf: u32) -> [u32; 4] {
    let found = leaves.iter().find(|(place, _)| *place == (leaf, subleaf));
    found.map_or([0; 4], |(_, registers)| *registers)
}

fn host(input: &mut Input<'_>) -> Result<Configuration, HostError> {
    let [b, c, d] = VENDORS[usize::from(input.u8() % 4)];
    let mut leaves = vec![((0, 0), [u32::from(input.u8()), b, c, d])];
    let capabilities = input.u64();
    for place in LEAVES {
        // Plausible, or anything.
        let registers = match (place.0, input.u8() % 3) {
            (0x0A, 0) => {
                let (version, counters) = (u32::from(input.u8() % 8), u32::from(input.u8() % 10));
                let fixed = u32::from(input.u8() % 10);
                let events = u32::from(input.u8());
                [0x0830_0000 | counters << 8 | version, events, 0, 48 << 5 | fixed]
            }
            (0x8000_0000, 0) => [0x8000_0022, 0, 0, 0],
            (_, 1) => [0; 4],
            _ => [input.u32(), input.u32(), input.u32(), input.u32()],
        };
        leaves.push((place, registers));
    }
    let found =
        Configuration::from_cpuid(|leaf, subleaf| answer(&leaves, leaf, subleaf), capabilities);
    if let Ok(configuration) = found {
        assert_eq!(configuration.check(), Ok(()));
        assert!(VirtualPmu::new(configuration, FedEvents::NONE).is_ok());
        assert_eq!(Configuration::from_bytes(&configuration.to_bytes()), Ok(configuration));
        // Seen through its own CPUID, over the host's.
        let again = Configuration::from_cpuid(
            |leaf, subleaf| configuration.cpuid(leaf, subleaf, answer(&leaves, leaf, subleaf)),
            capabilities,
        );
        assert_eq!(again, Ok(configuration));
    }
    found
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (Ok(one), Ok(other)) = (host(&mut input), host(&mut input)) else { return };
    let common = one.intersect(&other);
    assert_eq!(other.intersect(&one), common);
    let Ok(common) = common else { return };
    for host in [one, other] {
        assert_eq!(common.intersect(&host), Ok(common));
        let there: Vec<_> = host.registers().collect();
        for (register, of_host) in common.registers().zip(there) {
            assert_eq!(register.address, of_host.address);
            assert!(!register.exists || of_host.exists, "{register:?}");
        }
    }
}
