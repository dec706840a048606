# How the machine arrives here, and what Rust finds: 64-bit mode, paging with the first 4 GiB at their
# own addresses, a stack a processor, interrupts off.
#
# Read first: Multiboot Specification 0.6.96, §3; Multiboot2 Specification 2.0, §3; Xen, docs/misc/pvh.pandoc; Intel SDM vol. 3A,
# "Initializing IA-32e Mode" and "MP Initialization Protocol Algorithm for MP Systems".

.set CODE32, 0x08
.set CODE64, 0x10
.set DATA, 0x18

# Flags: modules aligned, memory information, and the addresses, since the file is a 64-bit ELF.
.set MULTIBOOT_MAGIC, 0x1BADB002
.set MULTIBOOT_FLAGS, 0x00010003

.section .multiboot, "a"
.balign 4
multiboot_header:
    .long MULTIBOOT_MAGIC
    .long MULTIBOOT_FLAGS
    .long -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)
    .long multiboot_header
    .long image_start
    .long image_end
    .long bss_end
    .long start_multiboot

# Multiboot2: the memory map, the framebuffer and the copies of ACPI's RSDP are asked for; the loader may lack each.
.set MULTIBOOT2_MAGIC, 0xE85250D6
.balign 8
multiboot2_header:
    .long MULTIBOOT2_MAGIC
    .long 0                         # i386, protected mode
    .long multiboot2_end - multiboot2_header
    .long -(MULTIBOOT2_MAGIC + (multiboot2_end - multiboot2_header))
    .short 1, 1                     # information that is wanted, and can be done without
    .long 8 + 5 * 4
    .long 1, 6, 8, 14, 15           # command line, memory map, framebuffer, RSDP old and new
    .balign 8
    .short 3, 0                     # where to enter: the file is a 64-bit ELF
    .long 12
    .long start_multiboot2
    .balign 8
    .short 5, 1                     # the framebuffer that is wanted, and can be done without
    .long 20
    .long 1024, 768, 32
    .balign 8
    .short 0, 0
    .long 8
multiboot2_end:

.section .note.pvh, "a", @note
.balign 4
    .long 4                         # length of the name
    .long 8                         # length of what follows it
    .long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad start_pvh

# ---- 32-bit protected mode, paging off. EBP remembers by which door; EBX is the loader's.

.section .boot.start, "ax"
.code32
.globl start_multiboot
start_multiboot:
    mov $0, %ebp
    jmp load_segments

start_multiboot2:
    mov $3, %ebp
    jmp load_segments

.globl start_pvh
start_pvh:
    mov $1, %ebp
load_segments:
    lgdt boot_gdt_pointer
    jmp enter_long_mode

start_other_processor:              # its segments are loaded already
    mov $2, %ebp

enter_long_mode:
    cli
    cld
    mov $DATA, %eax
    mov %eax, %ds
    mov %eax, %es
    mov %eax, %ss
    mov $0x20, %eax                 # CR4.PAE
    mov %eax, %cr4
    mov $page_map, %eax
    mov %eax, %cr3
    mov $0xC0000080, %ecx           # IA32_EFER
    rdmsr
    or $0x100, %eax                 # LME
    wrmsr
    mov $0x80010033, %eax           # CR0: PG, WP, NE... and caches on, which INIT turns off
    mov %eax, %cr0
    ljmp $CODE64, $start64

.code64
start64:
    xor %edi, %edi
    cmp $2, %ebp
    jne 1f
    mov $1, %edi                    # the next processor's number
    lock xadd %edi, next_processor(%rip)
    cmp processor_limit(%rip), %edi
    jae park
1:  lea 1(%rdi), %eax
    shl $STACK_SHIFT, %eax
    lea stacks(%rip), %rsp
    add %rax, %rsp
    cmp $2, %ebp
    je 2f
    mov %ebp, %edi
    mov %ebx, %esi
    call kernel_main
2:  call processor_main

# A processor that is not used stands still. An NMI, or a machine check, finds a table of interrupts of which each
# stands still, too: none returns, so nothing reads the stack, and all of these processors have the same.
park:
    lea parking_stack_end(%rip), %rsp
    lidt parking_table_pointer(%rip)
    lock incl parked_processors(%rip)
.globl parked
parked:
    cli
    hlt
    jmp parked

# ---- Another processor begins in real mode, on a page below 1 MiB to which this was copied.

.section .rodata.trampoline, "a"
.code16
.globl trampoline_start
trampoline_start:
    cli
    mov %cs, %ax
    mov %ax, %ds
    lgdtl (trampoline_gdt_pointer - trampoline_start)
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    ljmpl $CODE32, $start_other_processor
trampoline_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
.globl trampoline_end
trampoline_end:
.code64

# ---- Tables.

.section .data.boot, "aw"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00CF9B000000FFFF        # CODE32
    .quad 0x00AF9B000000FFFF        # CODE64
    .quad 0x00CF93000000FFFF        # DATA
boot_gdt_end:
boot_gdt_pointer:
    .word boot_gdt_end - boot_gdt - 1
    .long boot_gdt
.balign 4
.globl next_processor
next_processor:
    .long 1
.globl parked_processors
parked_processors:
    .long 0
.globl processor_limit
processor_limit:
    .long MAX_PROCESSORS
.globl parking_table_pointer
.balign 8
parking_table_pointer:              # its limit and address are written before the first processor parks
    .word 0
    .quad 0

# Present and writable is 3, a page of 2 MiB 0x80, and 0x10 turns caches off: in the last GiB there
# are devices, the local APIC among them.
.balign 4096
page_map:
    .quad page_directory_pointers + 3
    .fill 511, 8, 0
page_directory_pointers:
    .quad page_directories + 3
    .quad page_directories + 0x1003
    .quad page_directories + 0x2003
    .quad page_directories + 0x3003
    .fill 508, 8, 0
page_directories:
.set page, 0
.rept 1536
    .quad page + 0x83
    .set page, page + 0x200000
.endr
.rept 512
    .quad page + 0x93
    .set page, page + 0x200000
.endr

.section .bss.stacks, "aw", @nobits
.balign 4096
stacks:
    .skip MAX_PROCESSORS << STACK_SHIFT
    .skip 256
parking_stack_end:
