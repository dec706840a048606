//! A processor's counters: their registers, their interrupts, and their reading by user mode.

mod counted_only;
mod event_selects;
mod frames;
mod frozen_interrupts;
mod layouts;
mod registers;
mod user_page;
mod user_rdpmc;
mod zx_c;
