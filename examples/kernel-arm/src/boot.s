// The way in, the translation table, the exception vectors, EL0, and the instructions that are counted.

.section .boot, "ax"
.global start
start:                          // processor 0; QEMU has cleared .bss
    ldr x20, =stack_0
    mov x21, #0
    b enter_kernel
.global start_second
start_second:                   // processor 1, by PSCI
    ldr x20, =stack_1
    mov x21, #1
enter_kernel:
    msr daifset, #0xF
    mrs x0, currentel
    cmp x0, #2 << 2
    b.ne prepare
    // At EL2, with `-machine virtualization=on`. The interrupt controller's registers are there at this level and below.
    mrs x0, id_aa64pfr0_el1
    tst x0, #0xF << 24
    b.eq 1f
    mov x0, #0xF
    msr S3_4_C12_C9_5, x0       // ICC_SRE_EL2
    isb
1:  mrs x0, id_aa64mmfr1_el1
    tst x0, #0xF << 8           // VH
    b.eq to_el1
    // The kernel stays at EL2, as a host: names of EL1 stand for registers of EL2, and EL0 is the host's.
    ldr x0, =(1 << 34) | (1 << 31) | (1 << 27) // E2H, RW, TGE
    msr hcr_el2, x0
    isb
    b prepare
to_el1:
    mov x0, #1 << 31            // RW
    msr hcr_el2, x0
    mov x0, #0x3C5              // EL1h, all masked
    msr spsr_el2, x0
    adr x0, prepare
    msr elr_el2, x0
    eret
prepare:
    mov sp, x20
    ldr x0, =0xFF00             // attribute 0: Device-nGnRnE; 1: Normal, write-back
    msr mair_el1, x0
    // 39 bits of address, 4 KiB, inner shareable, write-back; no TTBR1; 36 bits of physical address.
    ldr x0, =(1 << 32) | (1 << 23) | (3 << 12) | (1 << 10) | (1 << 8) | 25
    msr tcr_el1, x0
    ldr x0, =table
    msr ttbr0_el1, x0
    ldr x0, =vectors
    msr vbar_el1, x0
    dsb sy
    isb
    ldr x0, =0x30D00800 | (1 << 12) | (1 << 2) | 1 // I, C, M
    msr sctlr_el1, x0
    isb
    mov x0, x21
    bl kernel_main

.section .data
.balign 4096
table:                          // blocks of 1 GiB
    .quad 0x0000000000000401 | (3 << 53)    // devices; not executable
    .quad 0x0000000040000705 | (1 << 54)    // memory, for EL1
    .quad 0x0000000040000705 | (3 << 6) | (1 << 53) // the same at 2 GiB: EL0 reads and executes it
    .fill 509, 8, 0

.macro vector target
    .balign 128
    b \target
.endm

.section .text.vectors, "ax"
.balign 2048
vectors:
    vector unexpected           // from this level, with SP_EL0
    vector unexpected
    vector unexpected
    vector unexpected
    vector unexpected           // from this level
    vector interrupt
    vector unexpected
    vector unexpected
    vector from_user            // from EL0
    vector interrupt
    vector unexpected
    vector unexpected
    vector unexpected           // from EL0 in AArch32 state
    vector unexpected
    vector unexpected
    vector unexpected

unexpected:
    mrs x0, esr_el1
    mrs x1, elr_el1
    mrs x2, far_el1
    b exception

interrupt:
    sub sp, sp, #192
    stp x0, x1, [sp]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x29, [sp, #144]
    mrs x0, elr_el1
    mrs x1, spsr_el1
    stp x30, x0, [sp, #160]
    str x1, [sp, #176]
    bl interrupted
    ldr x1, [sp, #176]
    ldp x30, x0, [sp, #160]
    msr spsr_el1, x1
    msr elr_el1, x0
    ldp x18, x29, [sp, #144]
    ldp x16, x17, [sp, #128]
    ldp x14, x15, [sp, #112]
    ldp x12, x13, [sp, #96]
    ldp x10, x11, [sp, #80]
    ldp x8, x9, [sp, #64]
    ldp x6, x7, [sp, #48]
    ldp x4, x5, [sp, #32]
    ldp x2, x3, [sp, #16]
    ldp x0, x1, [sp]
    add sp, sp, #192
    eret

// run_at_el0(entry, argument): until SVC. Returns x1 of EL0.
.global run_at_el0
run_at_el0:
    mrs x2, daif
    stp x29, x30, [sp, #-112]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    str x2, [sp, #96]
    msr daifset, #2             // an interrupt would overwrite ELR_EL1
    msr elr_el1, x0
    msr spsr_el1, x2            // EL0t: the mode bits are 0
    mov x0, x1
    eret
from_user:
    mrs x0, esr_el1
    lsr x0, x0, #26
    cmp x0, #0x15               // SVC
    b.ne unexpected
    ldr x2, [sp, #96]
    ldp x27, x28, [sp, #80]
    ldp x25, x26, [sp, #64]
    ldp x23, x24, [sp, #48]
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #112
    msr daif, x2
    mov x0, x1
    ret

// Entries for run_at_el0: each reads a counter.
.global user_cycles
user_cycles:
    mrs x1, pmccntr_el0
    svc #0
.global user_counter_0
user_counter_0:
    mrs x1, pmevcntr0_el0
    svc #0

// Each takes a number of turns, of two instructions.
.section .workload, "ax"
.balign 64
.global half_of_it
half_of_it:
    subs x0, x0, #1
    b.ne half_of_it
    ret
.balign 64
.global three_tenths
three_tenths:
    subs x0, x0, #1
    b.ne three_tenths
    ret
.balign 64
.global two_tenths
two_tenths:
    subs x0, x0, #1
    b.ne two_tenths
    ret
.balign 64
.global user_loop
user_loop:
    subs x0, x0, #1
    b.ne user_loop
    svc #0
