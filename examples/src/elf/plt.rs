//! The entries of procedure linkage tables: jumps through a pointer that a relocation fills with a function's address
//! (System V ABI, AMD64 supplement, "Procedure Linkage Table").

use std::collections::HashMap;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget,
};

use super::parts::Parts;

/// The bytes of an entry, and where tables are that have other ones.
const ENTRY: usize = 16;
const SECTIONS: [(&str, usize); 4] =
    [(".plt", ENTRY), (".plt.sec", ENTRY), (".plt.got", 8), (".plt.bnd", ENTRY)];

/// The largest table that is read.
const LARGEST: u64 = 16 << 20;

/// Tells the address, the size and the name of each entry whose function is known, as `puts@plt`.
pub(super) fn stubs(file: &Parts<'_>, mut tell: impl FnMut(u64, u64, String)) {
    if file.architecture() != Architecture::X86_64 {
        return;
    }
    let mut names = HashMap::new();
    let (Some(symbols), Some(relocations)) =
        (file.dynamic_symbol_table(), file.dynamic_relocations())
    else {
        return;
    };
    for (pointer, relocation) in relocations.take(1 << 20) {
        if let RelocationTarget::Symbol(index) = relocation.target()
            && let Ok(Ok(name)) = symbols.symbol_by_index(index).map(|symbol| symbol.name())
            && !name.is_empty()
        {
            names.insert(pointer, name);
        }
    }
    for (section, entry) in SECTIONS {
        let Some(section) = file.section_by_name(section).filter(|one| one.size() <= LARGEST)
        else {
            continue;
        };
        let Ok(code) = section.data() else { continue };
        for (index, bytes) in code.chunks_exact(entry).enumerate() {
            let address = section.address().wrapping_add((index * entry) as u64);
            let name = pointer(address, bytes).and_then(|pointer| names.get(&pointer));
            if let Some(name) = name {
                tell(address, entry as u64, format!("{name}@plt"));
            }
        }
    }
}

/// The address of the pointer that an entry jumps through: `jmp *disp32(%rip)`, FF 25, wherever it is in the entry.
fn pointer(address: u64, entry: &[u8]) -> Option<u64> {
    let jump = entry.windows(6).position(|bytes| bytes.starts_with(&[0xFF, 0x25]))?;
    let displacement = entry.get(jump + 2..jump + 6)?.try_into().ok()?;
    let next = address.wrapping_add(jump as u64 + 6);
    Some(next.wrapping_add_signed(i32::from_le_bytes(displacement).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of `objdump -d -j .plt.sec`: `endbr64; bnd jmp *0x2fd5(%rip)`, at 0x1030, to 0x4010.
    #[test]
    fn an_entry_jumps_through_its_pointer() {
        let entry =
            [0xF3, 0x0F, 0x1E, 0xFA, 0xF2, 0xFF, 0x25, 0xD5, 0x2F, 0, 0, 0x0F, 0x1F, 0x44, 0, 0];
        assert_eq!(pointer(0x1030, &entry), Some(0x4010));
        assert_eq!(pointer(0x1030, &entry[..8]), None);
        assert_eq!(pointer(0x1030, &[0x90; 16]), None);
    }
}
