//! The functions of a Linux kernel that write its local APIC.

use object::{Object, ObjectSymbol};

/// The functions of a Linux kernel that write a register of the local APIC, whose place in the page is in EDI, and the
/// value in ESI; and the variable that points to the structure with the one in use.
///
/// KVM serves these registers itself, in xAPIC and x2APIC mode, and has no filter for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApicWriters {
    pub(crate) variable: u64,
    pub(crate) functions: Vec<u64>,
}

impl ApicWriters {
    /// Finds the functions by their names in an ELF file. `None`: it has no such symbols.
    pub(crate) fn find(file: &[u8]) -> Option<Self> {
        let elf = object::File::parse(file).ok()?;
        let addresses = |names: &[&str]| {
            let symbols = elf
                .symbols()
                .filter(|symbol| symbol.name().is_ok_and(|name| names.contains(&name)));
            symbols.map(|symbol| symbol.address()).collect::<Vec<_>>()
        };
        let functions = addresses(&["native_apic_mem_write", "native_apic_msr_write"]);
        let variable = addresses(&["apic"]).first().copied()?;
        (!functions.is_empty()).then_some(Self { variable, functions })
    }
}
