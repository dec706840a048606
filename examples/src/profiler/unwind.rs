//! Callers from the registers and the stack that the kernel copied with a sample: by each file's unwind tables, read by
//! `framehop`, and by frame pointers where a file has none.

mod leaf;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, Reg, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use super::call_graph::STACK_BYTES;
use super::graph::label;
use super::kept::Kept;
use super::maps::Mapping;
use super::perf::UserState;
use super::perf_map;
use super::return_address::{BEFORE, BEHIND, Kind, kind};
use crate::elf::unwind_sections::{Section, UnwindSections};

/// The most callers of a sample.
const DEPTH: usize = 512;

/// Linux's numbers of the registers, and the library's (arch/x86/include/uapi/asm/perf_regs.h).
const BP: usize = 6;
const SP: usize = 7;
const REGISTERS: [(usize, Reg); 16] = [
    (0, Reg::RAX),
    (1, Reg::RBX),
    (2, Reg::RCX),
    (3, Reg::RDX),
    (4, Reg::RSI),
    (5, Reg::RDI),
    (BP, Reg::RBP),
    (SP, Reg::RSP),
    (16, Reg::R8),
    (17, Reg::R9),
    (18, Reg::R10),
    (19, Reg::R11),
    (20, Reg::R12),
    (21, Reg::R13),
    (22, Reg::R14),
    (23, Reg::R15),
];

/// The order of the registers that a signal's frame saves; the instruction pointer follows.
const SAVED: [Reg; 16] = [
    Reg::R8,
    Reg::R9,
    Reg::R10,
    Reg::R11,
    Reg::R12,
    Reg::R13,
    Reg::R14,
    Reg::R15,
    Reg::RDI,
    Reg::RSI,
    Reg::RBP,
    Reg::RBX,
    Reg::RDX,
    Reg::RAX,
    Reg::RCX,
    Reg::RSP,
];

/// The unwind tables of all files, and what was found by them.
#[derive(Default)]
pub struct Unwinding {
    /// Set if a stack ends where a file has no tables.
    tables_only: bool,
    files: HashMap<PathBuf, Option<Rc<UnwindSections>>>,
    /// The kinds of addresses, by file and offset.
    kinds: HashMap<PathBuf, HashMap<u64, Kind>>,
    pub(super) used: Used,
}

/// Facts on the callers that were found, for the reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The files whose callers were found by their tables, by name.
    pub by_tables: BTreeSet<String>,
    /// Those whose callers were found by frame pointers.
    pub by_pointers: BTreeSet<String>,
    /// The bytes of stack that were copied.
    pub copied: u64,
    /// The stacks, and those that go on where the copy ends.
    pub stacks: u64,
    /// See `stacks`.
    pub cut: u64,
}

impl Used {
    /// Tells by which files' tables callers were found, and what it cost.
    pub fn describe(&self) -> String {
        let (tables, pointers) = (self.by_tables.len(), &self.by_pointers);
        let mut text = format!("callers by the unwind tables of {tables} files");
        if !pointers.is_empty() {
            let named: Vec<_> = pointers.iter().take(4).map(String::as_str).collect();
            text += &format!(", by frame pointers in {}", named.join(", "));
            if let more @ 1.. = pointers.len() - named.len() {
                text += &format!(" and {more} more");
            }
        }
        let (bytes, copied) = (STACK_BYTES >> 10, self.copied as f64 / 1e6);
        text += &format!("; at most {bytes} KiB of stack per sample, {copied:.1} MB in all");
        if let cut @ 1.. = self.cut {
            text += &format!("; {cut} of {} stacks are longer", self.stacks);
        }
        text
    }
}

/// The tables of the files that a process maps, where it maps them.
pub(super) struct Unwinder {
    modules: UnwinderX86_64<Arc<[u8]>>,
    // One per process: the library tells modules apart by a number of 16 bits.
    cache: CacheX86_64,
}

impl Unwinding {
    /// Unwinding by tables alone, or by frame pointers too.
    pub fn new(tables_only: bool) -> Self {
        Self { tables_only, ..Self::default() }
    }

    /// Returns the unwinder of a process with these mappings.
    pub(super) fn unwinder<'m>(
        &mut self,
        process: u32,
        mappings: impl Iterator<Item = &'m Mapping>,
        kept: &mut Kept,
    ) -> Unwinder {
        let mut modules = UnwinderX86_64::new();
        for mapping in mappings.filter(|mapping| !perf_map::is_anonymous(&mapping.path)) {
            kept.keep(process, mapping);
            let path = &mapping.path;
            let read = || UnwindSections::read(kept.images.get(path)?).map(Rc::new);
            let sections = self.files.entry(path.clone()).or_insert_with(read);
            let module = sections.as_deref().and_then(|sections| module(mapping, sections));
            module.into_iter().for_each(|module| modules.add_module(module));
        }
        Unwinder { modules, cache: CacheX86_64::new() }
    }

    /// Returns addresses in the calls of a sample's callers, the innermost first.
    pub(super) fn callers<'m>(
        &mut self,
        unwinder: &mut Unwinder,
        user: &UserState,
        kept: &Kept,
        mapping: impl Fn(u64) -> Option<&'m Mapping>,
    ) -> Vec<u64> {
        let UserState { registers: values, stack } = user;
        let (ip, sp) = (user.ip(), values[SP]);
        let mut registers = UnwindRegsX86_64::new(ip, sp, values[BP]);
        REGISTERS.iter().for_each(|(number, register)| registers.set(*register, values[*number]));
        let mut is_cut = false;
        let end = sp.wrapping_add(stack.len() as u64);
        let mut read = |address: u64| {
            let place = usize::try_from(address.checked_sub(sp).ok_or(())?).map_err(|_| ())?;
            let word = stack.get(place..).and_then(|rest| rest.first_chunk());
            // Just behind the copy is what was not copied; far from it is no stack.
            is_cut |= word.is_none() && address.wrapping_sub(end) < 1 << 20;
            word.map(|word| u64::from_le_bytes(*word)).ok_or(())
        };
        self.used.stacks += 1;
        self.used.copied += stack.len() as u64;
        let Unwinder { modules, cache } = unwinder;
        let (mut callers, mut here) = (Vec::new(), FrameAddress::from_instruction_pointer(ip));
        if self.returns_from_signal(ip, &mapping, kept)
            && let Some(interrupted) = interrupted(&mut registers, &mut read)
        {
            callers.push(interrupted);
            here = FrameAddress::from_instruction_pointer(interrupted);
        }
        while callers.len() < DEPTH {
            let Some(from) = mapping(here.address_for_lookup()) else { break };
            let has_tables = self.files.get(&from.path).is_some_and(Option::is_some);
            if self.tables_only && !has_tables {
                break;
            }
            let (before, is_innermost) = (registers, !here.is_return_address());
            let leaf = match is_innermost && !has_tables {
                true => self.leaf(&mut registers, &mapping, kept, |address| read(address).ok()),
                false => None,
            };
            let found = leaf.or_else(|| {
                modules.unwind_frame(here, &mut registers, cache, &mut read).ok().flatten()
            });
            let mut way = if has_tables { Way::Tables } else { Way::Pointers };
            let mut to = found.and_then(|address| self.returned_to(address, &mapping, kept));
            if to.is_none() && is_innermost && has_tables && !self.tables_only {
                // Code that the file's tables leave out.
                (registers, way) = (before, Way::Pointers);
                let found = by_pointer(&mut registers, &mut read);
                to = found.and_then(|address| self.returned_to(address, &mapping, kept));
            }
            let Some((address, kind)) = to else { break };
            let names = match way {
                Way::Tables => &mut self.used.by_tables,
                Way::Pointers => &mut self.used.by_pointers,
            };
            note(names, &from.path);
            if kind == Kind::Root {
                callers.push(address.address());
                break;
            }
            here = address;
            if kind == Kind::Signal {
                callers.push(address.address());
                let Some(interrupted) = interrupted(&mut registers, &mut read) else { break };
                here = FrameAddress::from_instruction_pointer(interrupted);
            }
            callers.push(here.address_for_lookup());
        }
        self.used.cut += u64::from(is_cut);
        callers
    }

    /// Returns a return address with its kind, unless it is none.
    fn returned_to<'m>(
        &mut self,
        address: u64,
        mapping: impl Fn(u64) -> Option<&'m Mapping>,
        kept: &Kept,
    ) -> Option<(FrameAddress, Kind)> {
        let address = FrameAddress::from_return_address(address)?;
        let kind = self.kind(mapping(address.address_for_lookup())?, address.address(), kept);
        (kind != Kind::Other).then_some((address, kind))
    }

    /// Returns the address to which a function without a frame returns, and its caller's registers.
    fn leaf<'m>(
        &self,
        registers: &mut UnwindRegsX86_64,
        mapping: impl Fn(u64) -> Option<&'m Mapping>,
        kept: &Kept,
        read: impl FnMut(u64) -> Option<u64>,
    ) -> Option<u64> {
        let code = |address: u64, bytes: &mut [u8]| {
            let here = mapping(address);
            let file = here.and_then(|here| Some((here, kept.images.get(&here.path)?)));
            file.is_some_and(|(here, file)| file.read_exact_at(bytes, here.offset(address)).is_ok())
        };
        let caller = leaf::caller(registers.ip(), registers.sp(), read, code)?;
        registers.set_ip(caller.return_address);
        registers.set_sp(caller.sp);
        caller.bp.into_iter().for_each(|bp| registers.set_bp(bp));
        Some(caller.return_address)
    }

    /// Returns true if an instruction is one of the two that call `rt_sigreturn`, or follows them.
    fn returns_from_signal<'m>(
        &mut self,
        ip: u64,
        mapping: impl Fn(u64) -> Option<&'m Mapping>,
        kept: &Kept,
    ) -> bool {
        let Some(here) = mapping(ip).filter(|here| here.has(ip.saturating_sub(9))) else {
            return false;
        };
        [0, 7, 9].iter().any(|distance| self.kind(here, ip - distance, kept) == Kind::Signal)
    }

    /// Returns the kind of an address; where it is in no file, or the file cannot be read, it is taken for a call's.
    fn kind(&mut self, mapping: &Mapping, address: u64, kept: &Kept) -> Kind {
        let Some(file) = kept.images.get(&mapping.path) else { return Kind::Call };
        let kinds = match self.kinds.entry(mapping.path.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(HashMap::new()),
        };
        let offset = mapping.offset(address);
        *kinds.entry(offset).or_insert_with(|| {
            let mut code = [0; BEFORE + BEHIND];
            let begin = offset.saturating_sub(BEFORE as u64);
            match file.read_exact_at(&mut code, begin) {
                Ok(()) => kind(&code),
                Err(_) => Kind::Call,
            }
        })
    }
}

/// A way to a caller.
#[derive(Clone, Copy)]
enum Way {
    Tables,
    Pointers,
}

/// Restores the registers of a caller by its frame pointer, and returns the return address.
fn by_pointer(
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    let frame = registers.bp();
    let sp = frame.checked_add(16).filter(|sp| *sp > registers.sp())?;
    let (bp, return_address) = (read(frame).ok()?, read(frame + 8).ok()?);
    registers.set_bp(bp);
    registers.set_sp(sp);
    registers.set_ip(return_address);
    Some(return_address)
}

/// Restores the registers of what a signal interrupted, where its handler returns to the call of `rt_sigreturn`, and
/// returns the instruction pointer. (The library evaluates no expression that reads memory, as tables have it there.)
///
/// On the stack is a `ucontext_t`: Linux, arch/x86/include/uapi/asm/sigcontext.h.
fn interrupted(
    registers: &mut UnwindRegsX86_64,
    read: &mut impl FnMut(u64) -> Result<u64, ()>,
) -> Option<u64> {
    let machine = registers.sp().checked_add(40)?;
    let mut word = |index: u64| read(machine.checked_add(8 * index)?).ok();
    for (index, register) in (0..).zip(SAVED) {
        registers.set(register, word(index)?);
    }
    let ip = word(SAVED.len() as u64)?;
    registers.set_ip(ip);
    Some(ip)
}

/// Adds a file's name.
fn note(names: &mut BTreeSet<String>, path: &Path) {
    let name = label(path);
    if !names.contains(&name) {
        names.insert(name);
    }
}

/// The tables of a file where it is mapped.
fn module(mapping: &Mapping, sections: &UnwindSections) -> Option<Module<Arc<[u8]>>> {
    let bias = sections.bias(mapping.file_offset, mapping.start)?;
    let addresses = |section: &Option<Section>| section.as_ref().map(|one| one.addresses.clone());
    let contents = |section: &Option<Section>| section.as_ref().map(|one| one.contents.clone());
    let information = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: sections.text.clone(),
        got_svma: sections.got.clone(),
        eh_frame_svma: addresses(&sections.frames),
        eh_frame: contents(&sections.frames),
        eh_frame_hdr_svma: addresses(&sections.index),
        eh_frame_hdr: contents(&sections.index),
        debug_frame: contents(&sections.debug_frames),
        ..Default::default()
    };
    Some(Module::new(String::new(), mapping.start..mapping.end(), bias, information))
}
