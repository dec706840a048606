//! Kernel images into the monitor's memory: ELF, multiboot, PVH, and Linux' protocol, against a reading of
//! the file by the formats' offsets.
//!
//! The bytes: the length of the command line and that of the initial RAM disk, and the file.

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::input::number;
use crate::vmm::boot::image::{Image, Request};
use crate::vmm::boot::layout;
use crate::vmm::boot::parts::Start;

/// The least that the monitor gives a guest.
const TOP: u64 = 2 << 20;
const HIGH: u64 = 1 << 20;
/// "Is 8192 bytes long" and "4-byte aligned": Multiboot Specification, "OS image format".
const SEARCHED: usize = 8192;

/// Address of a piece, its bytes of the file, and its size in memory.
type Piece<'f> = (u64, &'f [u8], u64);

/// The parts of a kernel's image.
struct Kernel<'f> {
    protocol: &'static str,
    pieces: Vec<Piece<'f>>,
    entry: u64,
}

/// Numbers of an ELF file, in its own byte order.
struct Elf<'f> {
    file: &'f [u8],
    big_endian: bool,
    is_64: bool,
}

impl<'f> Elf<'f> {
    fn get(&self, offset: usize, size: usize) -> u64 {
        if self.big_endian {
            let bytes = &self.file[offset..offset + size];
            return bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        }
        number(self.file, offset, size)
    }

    /// A field by its offset in each class, and its size in each.
    fn field(&self, at: usize, places: [(usize, usize); 2]) -> u64 {
        let (offset, size) = places[usize::from(self.is_64)];
        self.get(at + offset, size)
    }

    /// A part of the file. One of no bytes is anywhere.
    fn slice(&self, offset: u64, size: u64) -> &'f [u8] {
        if size == 0 {
            return &[];
        }
        &self.file[offset as usize..][..size as usize]
    }

    /// The entry of the last note "Xen" of type 18 in a segment.
    fn pvh_entry(&self, notes: &'f [u8], align: u64) -> Option<u64> {
        let notes = Elf { file: notes, ..*self };
        let (mut at, mut entry) = (0, None);
        let align = if align == 8 { 8 } else { 4 };
        while at + 12 <= notes.file.len() {
            let [name, desc, kind] = [0, 4, 8].map(|field| notes.get(at + field, 4) as usize);
            let name_at = at + 12;
            let desc_at = (name_at + name).next_multiple_of(align);
            let named = notes.file.get(name_at..name_at + name)?;
            let text = named.split(|byte| *byte == 0).next();
            if text == Some(b"Xen") && kind == 18 {
                entry = (desc >= 4).then(|| number(notes.file, desc_at, 4));
            }
            at = (desc_at + desc).next_multiple_of(align);
        }
        entry
    }
}

/// System V ABI, "Object Files" and "Program Loading". Of a file that was taken for an ELF file.
fn elf(file: &[u8]) -> (Vec<Piece<'_>>, u64, Option<u64>, bool) {
    let elf = Elf { file, big_endian: file[5] == 2, is_64: file[4] == 2 };
    let entry = elf.field(0, [(0x18, 4), (0x18, 8)]);
    let table = elf.field(0, [(0x1C, 4), (0x20, 8)]) as usize;
    let (size, count) =
        (elf.field(0, [(0x2A, 2), (0x36, 2)]) as usize, elf.field(0, [(0x2C, 2), (0x38, 2)]));
    let (mut pieces, mut pvh_entry) = (Vec::new(), None);
    for header in (0..count as usize).map(|place| table + place * size) {
        let kind = elf.get(header, 4);
        let offset = elf.field(header, [(0x04, 4), (0x08, 8)]);
        let physical = elf.field(header, [(0x0C, 4), (0x18, 8)]);
        let in_file = elf.field(header, [(0x10, 4), (0x20, 8)]);
        let in_memory = elf.field(header, [(0x14, 4), (0x28, 8)]);
        let align = elf.field(header, [(0x1C, 4), (0x30, 8)]);
        match kind {
            1 if in_file.max(in_memory) != 0 => {
                pieces.push((physical, elf.slice(offset, in_file), in_file.max(in_memory)));
            }
            4 => pvh_entry = elf.pvh_entry(elf.slice(offset, in_file), align).or(pvh_entry),
            _ => {}
        }
    }
    (pieces, entry, pvh_entry, elf.is_64 && elf.get(0x12, 2) == 62)
}

/// Multiboot Specification, "OS image format". Of a file whose header, if it has one, was accepted.
fn kernel(file: &[u8]) -> Kernel<'_> {
    let word = |at: usize| number(file, at, 4) as u32;
    let last = file.len().min(SEARCHED).saturating_sub(12);
    let header = (0..=last).step_by(4).find(|at| {
        let sum = word(*at).wrapping_add(word(at + 4)).wrapping_add(word(at + 8));
        word(*at) == 0x1BAD_B002 && sum == 0
    });
    let (pieces, entry, pvh_entry, is_64) = elf(file);
    let Some(at) = header else {
        return match pvh_entry {
            Some(entry) => Kernel { protocol: "PVH", pieces, entry },
            None => {
                assert!(is_64);
                Kernel { protocol: "Linux' 64-bit boot protocol", pieces, entry }
            }
        };
    };
    let protocol = "multiboot";
    assert_eq!(word(at + 4) & 0xFFFC, 0, "requires nothing that is not offered");
    if word(at + 4) >> 16 & 1 == 0 {
        return Kernel { protocol, pieces, entry };
    }
    let [header, load, load_end, bss_end, entry] =
        [12, 16, 20, 24, 28].map(|field| word(at + field));
    let from = at - (header - load) as usize;
    let end = if load_end == 0 { file.len() } else { from + (load_end - load) as usize };
    let data = &file[from..end];
    let size = (data.len() as u64).max(bss_end.saturating_sub(load).into());
    Kernel { protocol, pieces: vec![(load.into(), data, size)], entry: entry.into() }
}

/// Runs one input: see the module.
pub fn run(bytes: &[u8]) {
    let (head, file) = bytes.split_at(bytes.len().min(4));
    let (line, disk) = (number(head, 0, 2) as usize % 0x2000, number(head, 2, 2) as usize);
    let image = match Image::parse(file) {
        Ok(image) => image,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    // 65535 headers or more: their number is elsewhere.
    if [0x2C, 0x38].iter().any(|count| file[*count..count + 2] == [0xFF; 2]) {
        return;
    }
    let kernel = kernel(file);
    assert_eq!(image.protocol(), kernel.protocol);
    let holds_entry = |(start, _, size): &Piece<'_>| {
        let end = u128::from(*start) + u128::from(*size);
        (u128::from(*start)..end).contains(&kernel.entry.into())
    };
    // A piece may go round the end of the address space, but not in the memory that there is.
    let wraps = kernel.pieces.iter().any(|(start, _, size)| start.checked_add(*size).is_none());
    assert!(wraps || kernel.pieces.iter().any(holds_entry));

    let line = "x".repeat(line);
    let disk: Vec<u8> = (0..disk).map(|place| place as u8 | 1).collect();
    let request = Request { command_line: &line, initrd: Some(&disk) };
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), TOP as usize)])
        .expect("memory for a guest");
    let end = |(start, _, size): &Piece<'_>| start.saturating_add(*size);
    let fits =
        |piece: &Piece<'_>| end(piece) <= TOP && (piece.0 >= HIGH || end(piece) <= layout::INFO);
    let floor = kernel.pieces.iter().map(end).max().unwrap_or(0).max(HIGH);
    // As QEMU does: a multiboot kernel's module is behind it, another kernel's disk at the end of the memory.
    let disk_at = match kernel.protocol {
        // QEMU leaves a page.
        "multiboot" => floor.next_multiple_of(0x1000) + 0x1000,
        _ => (TOP - disk.len() as u64) & !0xFFF,
    };
    let possible = kernel.pieces.iter().all(fits)
        && disk_at >= floor
        && disk_at + disk.len() as u64 <= TOP
        && layout::COMMAND_LINE + (line.len() as u64) < layout::MP_TABLE;
    let start = match image.load(&memory, &request) {
        Ok(start) => start,
        Err(error) => return assert!(!possible, "{error}"),
    };
    assert!(possible);
    match (kernel.protocol, start) {
        ("multiboot", Start::Protected { eip, eax: 0x2BAD_B002, ebx })
        | ("PVH", Start::Protected { eip, eax: 0, ebx }) => {
            assert_eq!((u64::from(eip), u64::from(ebx)), (kernel.entry, layout::INFO));
        }
        (_, Start::Long { rip, rsi }) => assert_eq!((rip, rsi), (kernel.entry, layout::INFO)),
        (protocol, start) => panic!("{protocol}: {start:?}"),
    }
    assert!(kernel.entry < TOP);

    let read = |from: u64, to: u64| {
        let mut bytes = vec![0; (to - from) as usize];
        memory.read_slice(&mut bytes, GuestAddress(from)).unwrap();
        bytes
    };
    let mut expected = vec![0; TOP as usize];
    for (start, data, _) in &kernel.pieces {
        expected[*start as usize..][..data.len()].copy_from_slice(data);
    }
    expected[disk_at as usize..][..disk.len()].copy_from_slice(&disk);
    // The kernel and the disk are at their places, and only the protocol's data beside them.
    assert!(read(0, layout::INFO) == expected[..layout::INFO as usize]);
    assert!(read(HIGH, TOP) == expected[HIGH as usize..]);
    let line_end = layout::COMMAND_LINE + line.len() as u64;
    assert!(read(layout::COMMAND_LINE, line_end) == line.as_bytes());
    assert!(read(line_end, HIGH).iter().all(|byte| *byte == 0));
}
